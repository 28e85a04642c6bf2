"""`jit`: a function compiled once for each type of its arguments, run by JAX's dispatch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from sys import getrefcount
from types import FunctionType
from typing import Any, ClassVar
from weakref import WeakSet, proxy

import jax
import numpy as np
from jax.extend.core import find_top_trace

from functx.core import tree
from functx.core.caches import Cache, clear_on_rule_change
from functx.core.config import (
    OUTLINE_MODES,
    TraceOptions,
    check_choice,
    config,
    parse_memory_mode,
    trace_options,
)
from functx.core.errors import ArgumentError, type_name
from functx.core.functionalization import Strides
from functx.core.named_axes import bound_axes
from functx.core.program_editing import hoist_captures
from functx.core.records import Record
from functx.core.rewriting import pause_gc
from functx.core.tracebacks import api_boundary, filter_traceback
from functx.core.tracing import aval_of, backend, check_no_escaped_tracers, current_builder
from functx.core.types import x64_enabled
from functx.lowering import callbacks
from functx.lowering.arguments import (
    ArgNames,
    ArgNums,
    check_divisible,
    check_donated_once,
    check_usable,
    freeze_captured_arrays,
    hashable_static,
    infer_argnums_and_argnames,
    static_value,
)
from functx.lowering.execution import current_target
from functx.lowering.functx_call import bind_functx_call
from functx.lowering.recompilation import code_of_function, record_compilation
from functx.lowering.stages import CallingConvention, Lowered
from functx.passes.pipeline import Stage, run_passes
from functx.transforms.aliasing import SharedBuffer, find_aliased_pair, shared_buffers
from functx.transforms.call_primitive import Call
from functx.transforms.make_ir import eval_shape
from functx.transforms.tracing_api import (
    TracedFunction,
    abstractify,
    argument_names,
    argument_strides,
    as_decorator,
    avals_of,
    check_callable,
    copy_function_metadata,
    function_name,
    trace_function,
    write_back_arguments,
)


def jit(
    fun: Callable[..., Any] | None = None,
    *,
    static_argnums: ArgNums = None,
    static_argnames: ArgNames = None,
    donate_argnums: ArgNums = None,
    donate_argnames: ArgNames = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    inline: bool = False,
    keep_unused: bool = False,
    outline: str | None = None,
    memory: str | int | float | None = None,
) -> Any:
    """`fun`, traced and compiled once for each set of argument types, then run by XLA.

    Arguments and results are pytrees of arrays; results are `jax.Array`s. Arguments at
    `static_argnums` or named in `static_argnames` are Python values, hashable and compared
    by value, and part of what is compiled. Buffers of donated arguments may be reused.
    `in_shardings` and `out_shardings` are as in `jax.jit`. Inside a trace, the result makes
    one `call` equation; with `inline`, the equations of `fun`. `outline` says whether what the
    program repeats is compiled once and called ("auto", "always" or "never"), by default as
    `functx.config.outline` does. `memory` says what derivatives keep of the forward computation:
    all that they need ("off"), the cheapest values to compute the rest from ("min_cut"), or as
    much as fits a budget for their temporaries, such as "2GiB", an int of bytes, or a float for
    a fraction of what they take plainly; by default as `functx.config.memory` does.

    The result has `lower(...)`, whose result has `compile()`, `as_text()` and
    `cost_analysis()`; `eval_shape(...)`; and `clear_cache()`.

    Raises StaticArgumentError for a static argument that cannot be hashed. Where a budget is too
    small, MemoryBudgetWarning says what the least is, and that is taken.

    >>> import functx
    >>> float(functx.jit(lambda x: x * 2.0)(3.0))
    6.0
    """
    if fun is None:
        return as_decorator(jit, locals())
    check_callable(fun, "jit")
    if outline is not None:
        check_choice("jit: outline", outline, OUTLINE_MODES)
    nums, names = infer_argnums_and_argnames(fun, static_argnums, static_argnames, "static")
    donated, donated_names = infer_argnums_and_argnames(
        fun, donate_argnums, donate_argnames, "donate"
    )
    options = {
        "static_argnums": tuple(n + 1 for n in nums),
        "static_argnames": names,
        "donate_argnums": tuple(n + 1 for n in donated),
        "donate_argnames": donated_names,
        "inline": inline,
        "keep_unused": keep_unused,
    }
    if in_shardings is not None:
        per_argument = isinstance(in_shardings, (tuple, list))
        options["in_shardings"] = (None, *in_shardings) if per_argument else in_shardings
    if out_shardings is not None:
        options["out_shardings"] = out_shardings
    if both := {*nums} & {*donated} | {*names} & {*donated_names}:
        raise ArgumentError(
            f"jit({function_name(fun)}): an argument must not be both static and donated; "
            f"got {', '.join(map(str, sorted(both, key=str)))} for both",
            fix="Donate arrays only; what is static is no array.",
        )
    wishes = TraceOptions(outline, parse_memory_mode("jit", memory))
    compiled = JittedFunction(fun, nums, names, options, wishes)
    dispatch, get_builder, get_asked = compiled.dispatch, current_builder.get, trace_options.get
    static = bool(nums or names)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # A boundary of tracebacks, without a call in between.
        try:
            if get_builder() is not None:
                return compiled.bind(args, kwargs, inline)
            if static:
                args, kwargs = compiled.hashable_arguments(args, kwargs)
            while True:
                try:
                    if compiled.writes:
                        return compiled.call_and_write_back(args, kwargs)
                    hidden: Any = compiled.captured
                    if get_asked().modes:
                        hidden = compiled.captured_with_dispatch_key()
                    return dispatch(hidden, *args, **kwargs)
                except _NewCaptures:
                    compiled.add_new_captures()
                except _WritesArguments:
                    compiled.writes = True
                except _Unverified as new:
                    compiled.verify(new, args, kwargs)
                except (TypeError, ValueError, OverflowError, RuntimeError) as error:
                    if isinstance(error, jax.errors.JaxRuntimeError):
                        callbacks.reraise_callback_error(error)
                    compiled.check_arguments(args, kwargs)
                    raise
        except Exception as error:
            filter_traceback(error)
            raise

    if type(fun) is FunctionType:
        vars(wrapper).update(vars(fun))
    copy_function_metadata(wrapper, fun, "jit").__name__ = function_name(fun)
    wrapper.lower = api_boundary(compiled.lower)  # type: ignore[attr-defined]
    wrapper.eval_shape = partial(eval_shape, fun)  # type: ignore[attr-defined]
    wrapper.clear_cache = compiled.clear  # type: ignore[attr-defined]
    return wrapper


@jax.tree_util.register_static
class DispatchKey(Record):
    """The part of the dispatch key beside argument types: layouts, shared memory, active modes.

    JAX sees it as a static part of the arguments.
    """

    blocks: tuple[SharedBuffer, ...] = ()
    layouts: tuple[Strides | None, ...] = ()
    modes: tuple[Any, ...] = ()


class _WritesArguments(Exception):
    """The function writes to its arguments; the next call takes their new values back."""


class _NewCaptures(Exception):
    """The trace met captured arrays that the call did not pass; the next call does."""


class _Unverified(Exception):
    """The trace made a program that `config.verify` wants checked; the next call has been."""

    def __init__(self, traced: TracedFunction):
        self.traced = traced


def _reference_count(x: Any) -> int:
    return getrefcount(x)


_UNSHARED_REFERENCE_COUNT = max([_reference_count(x) for x in [object()]])
"""The count for an object in a list that nothing else holds."""


def _is_bitwise_equal(x: Any, copy: jax.Array) -> bool:
    """Whether `copy`, of an array, still has the dtype and the elements of it."""
    if x is copy:
        return True
    with backend.outer_jax_trace():
        now, then = _snapshot(x), np.asarray(copy)
    if now.dtype != then.dtype:
        return False
    return np.array_equal(now.ravel().view(np.uint8), then.ravel().view(np.uint8))


def _snapshot(x: Any) -> Any:
    """The elements of `x` as they are now, in functx's dtype.

    JAX remembers what it converts to another dtype by identity, also once that was written to.
    """
    with np.errstate(all="ignore"):
        return x if isinstance(x, jax.Array) else np.array(x, aval_of(x).dtype)


def _abandon_jax_trace() -> None:
    """Let JAX forget the trace it is at, which an exception would leave alive with its constants."""
    # Without jit, JAX traces for somebody else.
    if not jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        find_top_trace(()).invalidate()


class JittedFunction:
    """One jitted function: its JAX function, and the arrays that it captured so far."""

    instances: ClassVar[WeakSet[JittedFunction]] = WeakSet()
    ids: ClassVar[Iterator[int]] = count()

    def __init__(
        self,
        fun: Callable[..., Any],
        nums: tuple[int, ...],
        names: tuple[str, ...],
        options: Any,
        wishes: TraceOptions,
    ):
        self.own_options = wishes
        self.fun, self.nums, self.names, self.options = fun, nums, names, options
        self.id = next(JittedFunction.ids)
        self.captured: tuple[Any, ...] = ()
        self.captured_originals: list[Any] = []
        self.has_new_captures = False
        self.writes = self.layout_dependent = False
        self.traced = Cache("jit", 256)
        self.capture_positions = Cache("jit", 256)
        self.verified: set[Any] = set()

        # Not in a cycle with its JAX function, so that both go, programs and all, with the last
        # use and not at some later collection.
        owner = proxy(self)

        def call(captured: Any, *args: Any, **kwargs: Any) -> Any:
            return owner.trace_for_jax(captured, args, kwargs)

        call.__name__ = call.__qualname__ = function_name(fun)
        self.dispatch: Any = jax.jit(call, **options)
        JittedFunction.instances.add(self)

    def trace_for_jax(self, captured: Sequence[Any], args: Any, kwargs: Any) -> Any:
        """What JAX traces: the one equation that carries the program."""
        static = self.static_text(args, kwargs)
        args_given, kwargs_given = args, kwargs
        fun, args, kwargs = self.without_static(args, kwargs)
        leaves, in_tree = tree.flatten_with_key_data((args, kwargs))
        asking = trace_options.set(self.effective_options())
        try:
            avals = avals_of(leaves, "jit", self.fun, in_tree)
            setting = DispatchKey()
            if len(captured) == 2 and type(captured[1]) is DispatchKey:
                captured, setting = captured
            layouts = setting.layouts or [None] * len(avals)
            with freeze_captured_arrays(self.fun):
                traced = trace_function(
                    fun, in_tree, avals, "jit", blocks=setting.blocks, layouts=layouts
                )
            decomposed = run_passes(Stage.LOOKUP, current_target(), traced.program)
            program, captured_by_rules = hoist_captures(decomposed)
            traced = traced._replace(
                program=program, captured=[*traced.captured, *captured_by_rules]
            )
        finally:
            trace_options.reset(asking)
        alone = [_reference_count(x) <= _UNSHARED_REFERENCE_COUNT for x in traced.captured]
        key = setting, *self.key(args_given, kwargs_given, in_tree, avals)
        count, places = self.capture_positions.get(key) or (0, {})
        if count == len(self.captured):
            # JAX has dropped the program, or traces for a setting of its own.
            places = {}
        pairs = zip(traced.captured, alone, strict=True)
        hidden = [
            self.captured_argument(x, captured, made_inside, places) for x, made_inside in pairs
        ]
        if any(x is None for x in hidden):
            _abandon_jax_trace()
            raise _NewCaptures
        self.capture_positions.put(key, (len(self.captured), places))
        self.has_new_captures = False
        if config.verify and traced.program.key not in self.verified:
            _abandon_jax_trace()
            raise _Unverified(traced)
        record_compilation(
            code_of_function(self.fun),
            f"jit({function_name(self.fun)})",
            traced.program,
            self.id,
            in_tree,
            static,
            kind="jit",
        )
        outs = bind_functx_call(traced.program, [*leaves, *hidden], self.own_options.outline)
        own = len(traced.out_avals)
        out = tree.unflatten(traced.out_tree, outs[:own])
        if traced.layout_dependent and not self.layout_dependent:
            self.layout_dependent = True
            _abandon_jax_trace()
            raise _WritesArguments
        if not traced.written and not self.writes:
            return out
        if not self.writes:
            _abandon_jax_trace()
            raise _WritesArguments
        return out, dict(zip(traced.written, outs[own:], strict=True))

    def verify(self, new: _Unverified, args: Any, kwargs: Any) -> None:
        """Check a new program on the arguments of this call."""
        _, dynamic, keywords = self.without_static(args, kwargs)
        program = new.traced.program
        backend.verify(program, [*tree.leaves((dynamic, keywords)), *new.traced.captured])
        self.verified.add(program.key)

    def call_and_write_back(self, args: Any, kwargs: Any) -> Any:
        """The result of a call that also writes to NumPy arrays among the arguments."""
        _, dynamic, keywords = self.without_static(args, kwargs)
        leaves = tree.leaves((dynamic, keywords))
        layouts = tuple(argument_strides(leaves)) if self.layout_dependent else ()
        out, new = self.dispatch(
            self.captured_with_dispatch_key(tuple(shared_buffers(leaves)), layouts), *args, **kwargs
        )
        write_back_arguments(leaves, new)
        return out

    def captured_with_dispatch_key(
        self, blocks: tuple[SharedBuffer, ...] = (), layouts: tuple[Strides | None, ...] = ()
    ) -> tuple[tuple[Any, ...], DispatchKey]:
        """The captured arrays, and what the program depends on, for a call that JAX dispatches."""
        return self.captured, DispatchKey(blocks, layouts, trace_options.get().key.modes)

    def effective_options(self) -> TraceOptions:
        """What is asked for while the function is traced, by it or by what it is in."""
        around, own = trace_options.get(), self.own_options
        return around._replace(
            outline=own.outline or around.outline, memory=own.memory or around.memory
        )

    def captured_argument(
        self, x: Any, captured: Sequence[Any], made_inside: bool, places: dict[int, int]
    ) -> Any:
        """The JAX argument that stands for the captured array `x`; None if it is a new one.

        One that the function makes itself is a constant: the next trace will make another. One
        whose elements have changed since it was copied is new. `places` says which copy of each
        array a program takes, for when it is traced again only to be passed more.
        """
        if isinstance(x, jax.core.Tracer):
            return x
        for i, original in enumerate(self.captured_originals):
            if original is not x or places.get(id(x), i) != i:
                continue
            if i >= len(captured):
                return None
            if id(x) in places or _is_bitwise_equal(x, self.captured[i]):
                places[id(x)] = i
                return captured[i]
        if made_inside or self.has_new_captures:
            return _snapshot(x)
        self.captured_originals.append(x)
        return None

    def add_new_captures(self) -> None:
        """Pass the newly captured arrays from now on, those that may change as copies."""
        self.has_new_captures = True
        new = self.captured_originals[len(self.captured) :]
        # Arrays now, also while JAX is tracing the call.
        with jax.core.eval_context():
            copies = [jax.numpy.asarray(_snapshot(x)) for x in new]
        self.captured = (*self.captured, *copies)

    def check_arguments(self, args: Any, kwargs: Any) -> None:
        """Raise for arguments that JAX has refused, or will have, in its own words."""
        _, dynamic, keywords = self.without_static(args, kwargs)
        leaves, in_tree = tree.flatten((dynamic, keywords))
        what = f"jit({function_name(self.fun)})"
        given = self.options.get("in_shardings")
        count = len(dynamic) - len(self.nums)
        if isinstance(given, tuple) and len(given) != count + 1:
            raise ArgumentError(
                f"{what}: in_shardings must have an entry for each positional argument that is "
                f"not static; got {len(given) - 1} for {count}"
            )
        avals_of(leaves, "jit", self.fun, in_tree)
        check_no_escaped_tracers(leaves)
        names = argument_names(self.fun, in_tree, leaves)()
        own = tuple([x for i, x in enumerate(dynamic) if i not in self.nums])
        check_divisible(what, names, own, given[1:] if isinstance(given, tuple) else given)
        donated = self.options["donate_argnums"], self.options["donate_argnames"]
        flags = [i + 1 in donated[0] for i, x in enumerate(dynamic) for _ in tree.leaves(x)]
        flags += [k in donated[1] for k in sorted(keywords) for _ in tree.leaves(keywords[k])]
        captured = [f"c{i}`, which the function captured: `c{i}" for i in range(len(self.captured))]
        shared = [i for i, on in enumerate(flags) if on]
        check_donated_once(what, [*names, *captured], [*leaves, *self.captured], shared)
        check_usable(what, names, leaves)
        check_usable(what, captured, self.captured)

    def bind(self, args: Any, kwargs: Any, inline: bool) -> Any:
        """The function inside a trace: a call of its program, or its equations."""
        builder = current_builder.require()
        args, kwargs = self.hashable_arguments(args, kwargs)
        fun, dynamic, keywords = self.without_static(args, kwargs)
        leaves, in_tree = tree.flatten_with_key_data((dynamic, keywords))
        avals = avals_of(leaves, "jit", self.fun, in_tree)
        key = self.key(args, kwargs, in_tree, avals)
        traced: TracedFunction | None = self.traced.get(key)
        if traced is None:
            asking = trace_options.set(self.effective_options())
            try:
                with freeze_captured_arrays(self.fun):
                    traced = trace_function(fun, in_tree, avals, "jit")
            finally:
                trace_options.reset(asking)
            # Captured values of a trace do not outlive it.
            if not any(isinstance(x, jax.core.Tracer) for x in traced.captured):
                self.traced.put(key, traced)
        operands = [*leaves, *traced.captured]
        if (traced.written and find_aliased_pair(operands, traced.written) is not None) or (
            traced.layout_dependent and any(argument_strides(leaves))
        ):
            # In the open, a write to one view is seen by the other.
            return fun(*dynamic, **keywords)
        if inline:
            outs = builder.inline(traced.program, operands)
        else:
            outs = Call(traced.program)(*operands)
        return tree.unflatten(traced.out_tree, traced.finish_call(operands, outs))

    def key(self, args: Any, kwargs: Any, in_tree: Any, avals: Sequence[Any]) -> tuple[Any, ...]:
        """The program of a call depends on this, and on what the function captured."""
        static = (
            tuple(args[n] for n in self.nums if n < len(args)),
            tuple((k, kwargs[k]) for k in sorted(self.names) if k in kwargs),
        )
        return (
            in_tree,
            tuple(avals),
            static,
            x64_enabled(),
            bound_axes(),
            self.effective_options().key,
        )

    def without_static(self, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """The function of the arguments that are not static, and those, with None for the rest."""
        if not self.nums and not self.names:
            return self.fun, args, kwargs
        fixed = {n: static_value(args[n]) for n in self.nums if n < len(args)}
        fixed_names = {k: static_value(v) for k, v in kwargs.items() if k in self.names}

        def fun(*dynamic: Any, **keywords: Any) -> Any:
            merged = [fixed.get(i, x) for i, x in enumerate(dynamic)]
            return self.fun(*merged, **keywords, **fixed_names)

        copy_function_metadata(fun, self.fun, "jit").__name__ = function_name(self.fun)
        # None has no leaves, and the others keep their places, and with them their names.
        dynamic = tuple([None if i in fixed else x for i, x in enumerate(args)])
        return fun, dynamic, {k: v for k, v in kwargs.items() if k not in fixed_names}

    def static_text(self, args: Any, kwargs: Any) -> dict[str, str]:
        """The static arguments of a call, by name, as messages show them."""
        if not self.nums and not self.names:
            return {}
        code = code_of_function(self.fun)
        names = () if code is None else code.co_varnames
        given = {
            names[n] if n < len(names) else f"{n}": args[n] for n in self.nums if n < len(args)
        }
        given |= {k: x for k, x in kwargs.items() if k in self.names}
        return {k: repr(static_value(x))[:80] for k, x in given.items()}

    def hashable_arguments(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments with static ones made such that they compare by value."""
        if not self.nums and not self.names:
            return args, kwargs
        args = tuple(
            hashable_static(x, f"number {i}", self.fun) if i in self.nums else x
            for i, x in enumerate(args)
        )
        return args, {
            k: hashable_static(v, f"`{k}`", self.fun) if k in self.names else v
            for k, v in kwargs.items()
        }

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The program for these arguments, which may be abstract, as StableHLO."""
        args, kwargs = self.hashable_arguments(args, kwargs)
        while True:
            try:
                with pause_gc():
                    captured: Any = self.captured
                    if self.writes or trace_options.get().modes:
                        captured = self.captured_with_dispatch_key()
                    lowered = self.dispatch.lower(captured, *args, **kwargs)
                _, *dynamic = self.without_static(args, kwargs)
                in_names = argument_names(self.fun, tree.structure(tuple(dynamic)))
                call = CallingConvention(
                    function_name(self.fun), in_names, captured, lowered.args_info, self.writes
                )
                return Lowered(call, lowered)
            except _NewCaptures:
                self.add_new_captures()
            except _WritesArguments:
                self.writes = True
            except _Unverified as new:
                # Without values there is nothing to check it on.
                self.verified.add(new.traced.program.key)
            except TypeError:
                self.check_abstract_arguments(args, kwargs)
                raise

    def check_abstract_arguments(self, args: Any, kwargs: Any) -> None:
        """Raise for an argument of `lower` that has no type."""
        _, dynamic, keywords = self.without_static(args, kwargs)
        leaves, in_tree = tree.flatten((dynamic, keywords))
        for name, x in zip(argument_names(self.fun, in_tree, leaves)(), leaves, strict=True):
            try:
                abstractify(x)
            except ArgumentError:
                raise ArgumentError(
                    f"jit({function_name(self.fun)}).lower: arguments must be arrays, or have a shape "
                    f"and a dtype; got {type_name(x)} for `{name}`"
                ) from None

    def clear(self) -> None:
        """Forget what was compiled."""
        self.dispatch.clear_cache()
        self.traced.clear()
        self.capture_positions.clear()
        self.verified.clear()


@clear_on_rule_change
def _clear_jitted_functions() -> None:
    for compiled in list(JittedFunction.instances):
        compiled.clear()
