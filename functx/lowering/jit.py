"""`jit`: a function compiled once for each type of its arguments, run by JAX's dispatch."""

from __future__ import annotations

from types import MethodType
from typing import Any

import jax

from functx.core.config import (
    OUTLINE_MODES,
    TraceOptions,
    check_choice,
    parse_memory_mode,
    trace_options,
)
from functx.core.errors import ArgumentError
from functx.core.replaced_state import replaced_state
from functx.core.tracebacks import api_boundary, explain_and_filter
from functx.core.tracer import WeakNdarray, current_builder, variables
from functx.core.typing import Function, PyTree
from functx.core.wrappers import wrapper_types
from functx.lowering import jax_bridge
from functx.lowering.argument_checks import keep_weak
from functx.lowering.arguments import ArgNames, ArgNums, StaticArguments, infer_argnums_and_argnames
from functx.lowering.captured_arrays import Retrace
from functx.lowering.jitted_function import JittedFunction
from functx.lowering.lowered import Lowered, Traced
from functx.lowering.state_arguments import taking_state
from functx.ops.operands import as_bool
from functx.transforms.argument_names import (
    as_decorator,
    check_callable,
    copy_function_metadata,
    function_name,
)
from functx.transforms.explore import explore as explore_function
from functx.transforms.make_ir import eval_shape


def jit(
    fun: Function | None = None,
    *,
    static_argnums: ArgNums = None,
    static_argnames: ArgNames = None,
    donate_argnums: ArgNums = None,
    donate_argnames: ArgNames = None,
    in_shardings: PyTree = None,
    out_shardings: PyTree = None,
    inline: bool = False,
    keep_unused: bool = False,
    device: jax.Device | None = None,
    backend: str | None = None,
    compiler_options: dict[str, Any] | None = None,
    outline: str | None = None,
    memory: str | int | float | None = None,
    explore: bool = False,
) -> Any:
    """`fun`, traced and compiled once for each set of argument types, then run by XLA.

    Arguments and results are pytrees of arrays; results are `jax.Array`s. Arguments at
    `static_argnums` or named in `static_argnames` are hashable Python values, compared by value, for
    each of which `fun` is compiled. Buffers of donated arguments may be reused. `in_shardings` and
    `out_shardings`, `device` or `backend`, and `compiler_options` for XLA, are as in `jax.jit`. Inside a trace, a call
    becomes one `call` equation, or with `inline` the equations of `fun`.

    `outline` says whether repeats of the program are compiled once and called: "auto", "always" or
    "never", by default as in `functx.config.outline`. `memory` says which values derivatives keep
    from the forward computation: all that they need ("off"), the cheapest from which to compute the
    others ("min_cut"), or as many as fit a budget for temporaries, such as "2GiB", an int of bytes, or
    a float for a fraction of the temporaries without a budget; by default as in `functx.config.memory`.

    With `explore`, the Python control flow of `fun` may depend on traced values (`functx.explore`).

    Outside of other transforms, `fun` may be a step on Variables of `functx.autograd` that it reads from
    around it: call `backward()`, and write to them. What it changes is written back after each call; its
    results have no history.

    The result has the methods `trace(...)`, whose result has the program as `jaxpr`, `out_info` and
    `lower()`; `lower(...)`, whose result has `compile()`, `as_text()` and `cost_analysis()`;
    `eval_shape(...)`; and `clear_cache()`.

    Raises StaticArgumentError for a static argument that cannot be hashed. Where a budget is too
    small, MemoryBudgetWarning gives the smallest possible one, which is used.

    >>> import functx
    >>> float(functx.jit(lambda x: x * 2.0)(3.0))
    6.0
    """
    if fun is None:
        return as_decorator(jit, locals())
    check_callable(fun, "jit")
    if as_bool("jit: explore", explore):
        fun = explore_function(fun)
    if outline is not None:
        check_choice("jit: outline", outline, OUTLINE_MODES)
    nums, names, donated, donated_names = _static_and_donated(
        fun, static_argnums, static_argnames, donate_argnums, donate_argnames
    )
    shared: dict[str, Any] = {
        "static_argnames": names,
        "donate_argnames": donated_names,
        "inline": inline,
        "keep_unused": keep_unused,
        "compiler_options": compiler_options,
    }
    # The hidden arguments come first.
    options = shared | {
        "static_argnums": tuple(n + 1 for n in nums),
        "donate_argnums": tuple(n + 1 for n in donated),
        **_placement(in_shardings, out_shardings, device, backend),
    }
    own_options = TraceOptions(outline, parse_memory_mode("jit", memory))

    def jit_with_state() -> Function:
        return jit(  # type: ignore[no-any-return]
            taking_state(fun),
            static_argnums=nums,
            donate_argnums=donated,
            out_shardings=None if out_shardings is None else (out_shardings, None, None),
            outline=outline,
            memory=memory,
            **shared,
        )

    static_arguments = StaticArguments(fun, nums, names)
    compiled = JittedFunction(fun, static_arguments, options, own_options, jit_with_state)
    jitted = Jitted(compiled, bool(nums or names), inline)
    copy_function_metadata(jitted, fun, "jit").__name__ = function_name(fun)
    return jitted


def _placement(
    in_shardings: PyTree, out_shardings: PyTree, device: jax.Device | None, backend: str | None
) -> dict[str, Any]:
    """The options of JAX's jit that say where arrays lie, for a function with hidden arguments."""
    options: dict[str, Any] = {}
    if device is not None or backend is not None:
        options |= {"device": device, "backend": backend}
    if in_shardings is not None:
        per_argument = isinstance(in_shardings, (tuple, list))
        options["in_shardings"] = (None, *in_shardings) if per_argument else in_shardings
    if out_shardings is not None:
        options["out_shardings"] = out_shardings
    return options


def _static_and_donated(
    fun: Function,
    static_argnums: ArgNums,
    static_argnames: ArgNames,
    donate_argnums: ArgNums,
    donate_argnames: ArgNames,
) -> tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...], tuple[str, ...]]:
    """The positions and the names of the static arguments, and those of the donated arguments."""
    nums, names = infer_argnums_and_argnames(fun, static_argnums, static_argnames, "static")
    donated, donated_names = infer_argnums_and_argnames(
        fun, donate_argnums, donate_argnames, "donate"
    )
    if both := {*nums} & {*donated} | {*names} & {*donated_names}:
        raise ArgumentError(
            f"jit({function_name(fun)}): an argument must not be both static and donated; "
            f"got {', '.join(map(str, sorted(both, key=str)))} for both",
            fix="Donate arrays only; what is static is no array.",
        )
    return nums, names, donated, donated_names


class Jitted:
    """A function compiled once for each set of argument types: the result of `jit`."""

    __slots__ = (
        *("__dict__", "__weakref__"),
        *("_captured", "_compiled", "_dispatch", "_has_static_arguments", "_inline"),
    )

    def __init__(self, compiled: JittedFunction, has_static_arguments: bool, inline: bool):
        self._compiled, self._inline = compiled, inline
        self._has_static_arguments = has_static_arguments
        self._dispatch, self._captured = compiled.dispatch, compiled.captured

    def __call__(self, /, *args: PyTree, **kwargs: PyTree) -> PyTree:
        # By JAX's dispatch where the call needs nothing else.
        compiled = self._compiled
        # `api_boundary` inlined, to save a call.
        try:
            flat = None
            if _get_builder() is not None or (
                variables.exist and (flat := compiled.flatten_variables(args, kwargs)) is not None
            ):
                return compiled.bind(args, kwargs, self._inline, flat)
            if compiled.reads_modules and replaced_state() is not None:
                return compiled.call_in_state(args, kwargs)
            if self._has_static_arguments:
                args, kwargs = compiled.static.as_hashable(args, kwargs)
            while True:
                try:
                    if compiled.writes:
                        return compiled.call_and_write_back(args, kwargs)
                    hidden: tuple[PyTree, ...] = self._captured.arguments
                    if _get_options().modes or compiled.modules:
                        hidden = compiled.hidden_arguments()
                    passed = keep_weak(args, kwargs) if WeakNdarray.exist else (args, kwargs)
                    return self._dispatch(hidden, *passed[0], **passed[1])
                except Retrace as retrace:
                    retrace.prepare((args, kwargs))
                    if compiled.captures_variables:
                        break
                    if compiled.reads_modules and replaced_state() is not None:
                        return compiled.call_in_state(args, kwargs)
                except (TypeError, ValueError, OverflowError, RuntimeError) as error:
                    if isinstance(error, jax.errors.JaxRuntimeError):
                        jax_bridge.reraise_callback_error(error)
                    if (known_arrays := compiled.with_known_arrays(args, kwargs)) is not None:
                        args, kwargs = known_arrays
                        continue
                    known = len(wrapper_types)
                    compiled.check_arguments(args, kwargs)
                    if len(wrapper_types) == known:
                        raise
            return compiled.bind(args, kwargs, self._inline)
        except Exception as error:
            explain_and_filter(error)
            raise

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """The function as a method of `instance`."""
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<jitted {function_name(self._compiled.fun)}>"

    @api_boundary
    def trace(self, /, *args: PyTree, **kwargs: PyTree) -> Traced:
        """The program for arguments, which may be abstract."""
        return self._compiled.trace_call(*args, **kwargs)

    @api_boundary
    def lower(self, /, *args: PyTree, **kwargs: PyTree) -> Lowered:
        """The function lowered to StableHLO for arguments, which may be abstract."""
        return self._compiled.lower(*args, **kwargs)

    def eval_shape(self, /, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """The shapes and dtypes of the result for arguments, which may be abstract."""
        return eval_shape(self._compiled.fun, *args, **kwargs)

    def clear_cache(self) -> None:
        """Forget all traces and executables."""
        self._compiled.clear()


_get_builder, _get_options = current_builder.get, trace_options.get
