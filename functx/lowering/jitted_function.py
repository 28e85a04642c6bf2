"""Jitted functions: their programs by types of arguments, captured arrays, and writes to arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, ClassVar
from weakref import WeakSet, proxy

import jax

from functx.core import tree
from functx.core.backend import backend
from functx.core.caches import Cache, clear_on_rule_change, garbage_collection
from functx.core.captured_state import state_table
from functx.core.captures import hoist_captures
from functx.core.config import TraceOptions, config, trace_options
from functx.core.errors import ArgumentError, ReplacedStateError, type_name
from functx.core.named_axes import bound_axes
from functx.core.replaced_state import (
    ModulesRead,
    StateRead,
    StateWatch,
    replaced_state,
    replaced_values,
    state_of_call,
)
from functx.core.rewriting import Record, apply
from functx.core.source_info import named_scopes
from functx.core.tracer import (
    Tracer,
    abstractify,
    as_known_array,
    check_no_escaped_tracers,
    current_builder,
    is_jax_tracer,
    is_variable,
    recording_operand,
    variables,
)
from functx.core.tracing import StepNeeded
from functx.core.tree import TreeDef
from functx.core.types import jax_settings
from functx.core.typing import Avals, Function, PyTree
from functx.lowering import jax_bridge
from functx.lowering.argument_checks import (
    check_divisible,
    check_donated_once,
    check_usable,
    keep_weak,
)
from functx.lowering.arguments import StaticArguments
from functx.lowering.captured_arrays import (
    CapturedArrays,
    Retrace,
    freeze_captured_arrays,
    read_hidden_states,
    write_back_call,
)
from functx.lowering.execution import prepare_for_lookup
from functx.lowering.functx_call import bind_functx_call
from functx.lowering.lowered import CallingConvention, Lowered, Traced
from functx.lowering.recompilation import code_of_function, record_compilation
from functx.lowering.state_arguments import KEYWORD, StateArguments, taking_state
from functx.transforms.aliasing import (
    ROW_MAJOR,
    MemoryLayout,
    argument_strides,
    have_aliased_pair,
    shared_buffers,
)
from functx.transforms.argument_names import argument_names, function_name
from functx.transforms.call_primitive import Call
from functx.transforms.dce import drop_unused_inputs
from functx.transforms.make_ir import trace_program
from functx.transforms.replayed_draws import has_replays
from functx.transforms.tracing_api import TracedFunction, avals_of, trace_function


@jax.tree_util.register_static
class DispatchKey(Record):
    """The part of JAX's dispatch key besides argument types: the memory of arguments, active modes.

    `module_modes` are the modes, training or evaluation, of the modules that read theirs. With `is_lowering`, captured
    Variables have the values of the call.

    `returns` says which new values the caller writes back, beside the result: those of "states" of
    generators, of these and of "arguments", or none. JAX sees it as a static part of the arguments.
    """

    memory: MemoryLayout = ROW_MAJOR
    modes: tuple[Any, ...] = ()
    returns: str = ""
    module_modes: tuple[bool | None, ...] = ()
    is_lowering: bool = False


class JittedFunction:
    """A jitted function: its JAX function, and the arrays that it has captured so far."""

    instances: ClassVar[WeakSet[JittedFunction]] = WeakSet()
    ids: ClassVar[Iterator[int]] = count()

    def __init__(
        self,
        fun: Function,
        static: StaticArguments,
        options: dict[str, Any],
        own_options: TraceOptions,
        jit_with_state: Callable[[], Function],
    ):
        self.fun, self.static, self.options, self.own_options = fun, static, options, own_options
        self.jit_with_state = jit_with_state
        self.id = next(JittedFunction.ids)
        self.captured = CapturedArrays()
        # Whether calls return new values, of states of generators or of arguments.
        self.writes = self.writes_arguments = False
        self.layout_dependent = self.captures_variables = False
        # The steps of a function that changes Variables, and whether it was asked if it may be one.
        self.steps: Any = None
        self.steps_expected: bool | None = None
        # Whether a program reads parameters or buffers of modules; and the function that takes them, for
        # calls inside a functional call.
        self.reads_modules, self.modules = False, ModulesRead()
        self.with_state: Any = None
        self.traced = Cache("jit", 256)
        self.verified: set[Any] = set()

        # No cycle with the JAX function, so that both are freed, with their programs, after the last
        # use and not at a later garbage collection.
        owner = proxy(self)

        def call(hidden: Sequence[PyTree], *args: PyTree, **kwargs: PyTree) -> PyTree:
            return owner.trace_for_jax(hidden, args, kwargs)

        call.__name__ = call.__qualname__ = function_name(fun)
        self.call: Any = call
        self.dispatch: Any = jax.jit(call, **options)
        JittedFunction.instances.add(self)

    def flatten_variables(self, args: PyTree, kwargs: PyTree) -> tuple[list[Any], TreeDef] | None:
        """The flat arguments of a call that takes or captures a Variable; None for other calls.

        In a step, the state of a generator that the function may capture is one.
        """
        flat = tree.flatten((args, kwargs))
        has_variables = (
            self.captures_variables
            or recording_operand(flat[0]) is not None
            or state_table.get() is not None
        )
        return flat if has_variables else None

    def enable_variables(self, _call: object) -> None:
        """Makes calls operations on Variables."""
        self.captures_variables = True

    def enable_steps(self, error: Exception, call: object) -> None:
        """Makes calls steps, which change Variables; raises `error` where they cannot be."""
        if call is None or not is_outermost():
            raise error from None
        self.captures_variables = True
        self.steps = self.steps or variables.jitted_steps(proxy(self))
        self.steps.is_step = True

    def expects_steps(self, takes_variables: bool) -> bool:
        """Whether the code of the function names `backward`, so that it is traced as a step first."""
        if self.steps_expected is None:
            self.steps_expected = self.steps is None and variables.jitted_steps.may_be_step(
                self.fun, takes_variables
            )
        return self.steps_expected

    def enable_expected_steps(self, call: object) -> None:
        """Lets calls be traced as steps first, if they can be steps."""
        self.steps_expected = call is not None and is_outermost()
        self.captures_variables |= self.steps_expected

    def trace_for_jax(self, hidden: Sequence[PyTree], args: PyTree, kwargs: PyTree) -> PyTree:
        """The results on JAX's tracers, computed by one equation that holds the program.

        Raises Retrace where JAX has to trace again with other hidden arguments.
        """
        dispatch_key = DispatchKey()
        if len(hidden) == 2 and type(hidden[1]) is DispatchKey:
            hidden, dispatch_key = hidden
        if variables.exist and self.steps_expected is None and self.expects_steps(False):
            raise Retrace(self.enable_expected_steps)
        fun, dynamic, keywords = self.static.bind(args, kwargs)
        if is_disabled():
            out = fun(*dynamic, **keywords)
            return (out, {}) if dispatch_key.returns else out
        leaves, in_tree = tree.flatten_with_key_data((dynamic, keywords))
        avals = avals_of(leaves, "jit", self.fun, in_tree)
        traced = self.trace(fun, in_tree, avals, dispatch_key)
        if self.modules and dispatch_key.module_modes != self.modules.key():
            raise Retrace()
        key = dispatch_key, *self.key(args, kwargs, in_tree, avals)
        if recording_operand(traced.captured) is not None:
            if not dispatch_key.is_lowering:
                raise Retrace(self.enable_variables)
            traced = traced._replace(captured=values_of_variables(traced.captured))
        values = self.captured.in_trace(traced.captured, hidden, key)
        # The key of a program would not do: another trace may make other callbacks.
        if config.verify and key not in self.verified:
            raise Retrace(partial(self.verify, traced, key))
        record_compilation(
            code_of_function(self.fun),
            f"jit({function_name(self.fun)})",
            traced.program,
            self.id,
            in_tree,
            self.static.texts(args, kwargs),
            kind="jit",
        )
        outs = bind_functx_call(traced.program, [*leaves, *values], self.own_options.outline)
        self.check_writes(traced, len(leaves), dispatch_key)
        count = len(traced.out_avals)
        out = tree.unflatten(traced.out_tree, outs[:count])
        if not dispatch_key.returns:
            return out
        operands = [*leaves, *traced.captured]
        keys = [
            i if i < len(leaves) else -1 - self.captured.position_of_state(operands[i])
            for i in traced.written
        ]
        return out, dict(zip(keys, outs[count:], strict=True))

    def check_writes(
        self, traced: TracedFunction, num_arguments: int, dispatch_key: DispatchKey
    ) -> None:
        """Raises Retrace unless the call is traced for the layouts and the new values of `traced`."""
        writes_arguments = any([i < num_arguments for i in traced.written])
        if (
            (traced.layout_dependent and not self.layout_dependent)
            or (traced.written and not dispatch_key.returns)
            or (writes_arguments and dispatch_key.returns != "arguments")
        ):
            raise Retrace(partial(self.enable_writes, writes_arguments, traced.layout_dependent))

    def trace(
        self, fun: Function, in_tree: TreeDef, avals: Avals, dispatch_key: DispatchKey
    ) -> TracedFunction:
        """The program of a call, with the decompositions that users registered applied."""
        with self.tracing():
            try:
                traced = trace_function(fun, in_tree, avals, "jit", memory=dispatch_key.memory)
            except StepNeeded as needed:
                raise Retrace(partial(self.enable_steps, needed.error)) from None
            except StateRead as read:
                if read.watch.owner != self.id:
                    raise
                raise Retrace() from None
            prepared = prepare_for_lookup(traced.program)
        program, captured = hoist_captures(prepared)
        return traced._replace(program=program, captured=[*traced.captured, *captured])

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """The context of a trace: its options, read-only captured arrays, and no named scope.

        Calls in other scopes use the trace again.
        Raises StateRead for a read of a value that a functional call around it gave.
        """
        token = trace_options.set(self.effective_options())
        watch = StateWatch(self.id)
        scope = named_scopes.set("")
        try:
            with watch, freeze_captured_arrays(self.fun):
                yield
        finally:
            self.reads_modules |= watch.was_read
            if watch.modes:
                self.modules = self.modules.joined(watch)
            named_scopes.reset(scope)
            trace_options.reset(token)

    def enable_writes(self, arguments: bool, layout_dependent: bool, _call: object) -> None:
        """Makes calls return new values: of states of generators and, with `arguments`, of arguments."""
        if not self.writes and "out_shardings" in self.options:
            shardings = self.options["out_shardings"], None
            self.dispatch = jax.jit(self.call, **self.options | {"out_shardings": shardings})
        self.writes = True
        self.writes_arguments |= arguments or layout_dependent
        self.layout_dependent |= layout_dependent

    def verify(
        self, traced: TracedFunction, key: object, call: tuple[PyTree, PyTree] | None
    ) -> None:
        """Verifies a new program on the arguments of a call, if they have values."""
        if call is not None:
            _, *dynamic = self.static.bind(*call)
            backend.verify(traced.program, [*tree.leaves(tuple(dynamic)), *traced.captured])
        self.verified.add(key)

    def call_and_write_back(self, args: PyTree, kwargs: PyTree) -> PyTree:
        """The result of a call that also writes to NumPy arrays among the arguments, or draws."""
        leaves, memory, returns = [], ROW_MAJOR, self.returned_values()
        if returns == "arguments":
            _, *dynamic = self.static.bind(args, kwargs)
            leaves = tree.leaves(tuple(dynamic))
            strides = tuple(argument_strides(leaves)) if self.layout_dependent else ()
            memory = MemoryLayout(tuple(shared_buffers(leaves)), strides=strides)
        hidden = self.hidden_arguments(memory, returns)
        self.captured.check_not_passed((args, kwargs))
        passed = keep_weak(args, kwargs)
        out, new = self.dispatch(hidden, *passed[0], **passed[1])
        self.captured.check_not_written([leaves[i] for i in new if i >= 0])
        write_back_call(leaves, hidden[0], new)
        return out

    def returned_values(self) -> str:
        """The `returns` of the dispatch key of calls."""
        if not self.writes:
            return ""
        return "arguments" if self.writes_arguments else "states"

    def hidden_arguments(
        self, memory: MemoryLayout = ROW_MAJOR, returns: str = "", is_lowering: bool = False
    ) -> tuple[tuple[Any, ...], DispatchKey]:
        """The captured arrays, and the rest of the dispatch key, for a call that JAX dispatches."""
        modes = trace_options.get().key.modes
        key = DispatchKey(memory, modes, returns, self.modules.key(), is_lowering)
        return self.captured.arguments, key

    def effective_options(self) -> TraceOptions:
        """The options while the function is traced: its own, else those of the trace around it."""
        outer, own = trace_options.get(), self.own_options
        if own.outline is None and own.memory is None:
            return outer
        return outer._replace(
            outline=own.outline or outer.outline, memory=own.memory or outer.memory
        )

    def bind(
        self,
        args: PyTree,
        kwargs: PyTree,
        inline: bool,
        flat: tuple[list[Any], TreeDef] | None = None,
    ) -> PyTree:
        """The function inside a trace: a call of its program, or its equations.

        `flat` are the arguments, if they were flattened before.
        """
        args, kwargs = self.static.as_hashable(args, kwargs)
        fun, dynamic, keywords = self.static.bind(args, kwargs)
        if is_disabled():
            return fun(*dynamic, **keywords)
        state = StateArguments.current() if self.reads_modules else None
        if state is not None:
            fun, keywords = taking_state(fun), {**keywords, KEYWORD: state.argument}
        if flat is None or state is not None or not self.static.is_empty:
            flat = tree.flatten((dynamic, keywords))
        leaves, in_tree = tree.keys_to_key_data(*flat)
        avals = avals_of(leaves, "jit", self.fun, in_tree)
        key = self.key(args, kwargs, in_tree, avals)
        try:
            out = self.call_program(fun, leaves, in_tree, avals, key, inline)
        except StateRead as read:
            if read.watch.owner != self.id:
                raise
            return self.bind(args, kwargs, inline)
        return out if state is None else state.take(out)

    def call_in_state(self, args: PyTree, kwargs: PyTree) -> PyTree:
        """A call inside a functional call, whose values are arguments of another jitted function."""
        options, state = self.options, StateArguments.current()
        if state is None or "in_shardings" in options:
            # JAX takes no keywords beside shardings of arguments.
            return self.bind(args, kwargs, options["inline"])
        if self.with_state is None:
            self.with_state = self.jit_with_state()
        with state_of_call(None):
            result = self.with_state(*args, **kwargs, **{KEYWORD: state.argument})
        return state.take(result)

    def call_program(
        self,
        fun: Function,
        leaves: list[Any],
        in_tree: TreeDef,
        avals: Avals,
        key: tuple[Any, ...],
        inline: bool,
    ) -> PyTree:
        """The result of the program of a call, which `key` finds, on flat arguments."""
        found: tuple[TracedFunction, Call, list[int]] | None = self.traced.get(key)
        if found is None and is_outermost():
            if self.steps is None and self.expects_steps(True):
                self.steps = variables.jitted_steps(proxy(self), is_step=None)
            if self.steps is not None:
                out = self.steps(fun, leaves, in_tree, avals, key, may_be_node=True)
                if out is not NotImplemented:
                    return out
        if found is None:
            try:
                with self.tracing():
                    traced = trace_function(fun, in_tree, avals, "jit")
                program, used = traced.program, [*range(len(traced.program.inputs))]
                if self.reads_modules and replaced_state() is not None:
                    # The function reads few of the values that it got.
                    program, used = drop_unused_inputs(program)
                found = traced, Call(program), used
            except StepNeeded as needed:
                if current_builder.innermost() is not None:
                    # The jitted function around it is the step.
                    raise
                self.enable_steps(needed.error, leaves)
            if found is None:
                return self.steps(fun, leaves, in_tree, avals, key)
            # Captured values of a trace do not outlive it.
            local = any([type(x) is Tracer or is_jax_tracer(x) for x in traced.captured])
            if not local and not has_replays(traced.program):
                self.traced.put((*key[:-1], self.modules.key()), found)
        traced, call, used = found
        operands = [*leaves, *traced.captured]
        if (traced.written and have_aliased_pair(operands, traced.written)) or (
            traced.layout_dependent and any(argument_strides(leaves))
        ):
            # Inlined, a write to one view is seen by the other.
            args, kwargs = in_tree.unflatten(leaves)
            return fun(*args, **kwargs)
        read = operands if len(used) == len(operands) else [operands[i] for i in used]
        outs = apply(None, call.program, read) if inline else call(*read)
        return tree.unflatten(traced.out_tree, traced.finish_call(operands, outs))

    def key(self, args: PyTree, kwargs: PyTree, in_tree: TreeDef, avals: Avals) -> tuple[Any, ...]:
        """The key of the program of a call, which also depends on what the function captured."""
        return (
            in_tree,
            tuple(avals),
            self.static.key(args, kwargs),
            jax_settings(),
            bound_axes(),
            self.effective_options().key,
            self.modules.key(),
        )

    def trace_call(self, *args: PyTree, **kwargs: PyTree) -> Traced:
        """The program for these arguments, which may be abstract, before it is lowered."""
        fun, dynamic, keywords = self.static.bind(*self.static.as_hashable(args, kwargs))
        with self.tracing():
            program = trace_program(fun, dynamic, keywords, "jit")
        return Traced(function_name(self.fun), program, partial(self.lower, *args, **kwargs))

    def lower(self, *args: PyTree, **kwargs: PyTree) -> Lowered:
        """The program for these arguments, which may be abstract, as StableHLO."""
        args, kwargs = self.static.as_hashable(args, kwargs)
        while True:
            try:
                if replaced_values() is not None:
                    raise ReplacedStateError(
                        f"jit({function_name(self.fun)}).lower: it must be called outside of a functional "
                        "call, whose values end with it; got a call inside one",
                        fix="Lower a function that takes the state, and calls functx.functional_call.",
                    )
                with garbage_collection.paused():
                    hidden: tuple[PyTree, ...] = self.captured.arguments
                    returns = self.returned_values()
                    if (
                        returns
                        or trace_options.get().modes
                        or self.modules
                        or self.captures_variables
                    ):
                        hidden = self.hidden_arguments(returns=returns, is_lowering=True)
                    lowered = self.dispatch.lower(read_hidden_states(hidden), *args, **kwargs)
                _, *dynamic = self.static.bind(args, kwargs)
                in_names = argument_names(self.fun, tree.structure(tuple(dynamic)))
                call = CallingConvention(
                    function_name(self.fun), in_names, hidden, lowered.args_info, bool(returns)
                )
                return Lowered(call, lowered)
            except Retrace as retrace:
                retrace.prepare(None)
            except TypeError:
                self.check_abstract_arguments(args, kwargs)
                raise

    def with_known_arrays(self, args: PyTree, kwargs: PyTree) -> tuple[Any, Any] | None:
        """The arguments with arrays of NumPy for those of other libraries; None if there are none."""
        leaves, structure = tree.flatten((args, kwargs))
        arrays = [as_known_array(x) for x in leaves]
        if all([x is y for x, y in zip(leaves, arrays, strict=True)]):
            return None
        return tree.unflatten(structure, arrays)

    def check_arguments(self, args: PyTree, kwargs: PyTree) -> None:
        """Raises an error for arguments that JAX refuses, with functx's message."""
        _, dynamic, keywords = self.static.bind(args, kwargs)
        leaves, in_tree = tree.flatten((dynamic, keywords))
        what = f"jit({function_name(self.fun)})"
        shardings = self.options.get("in_shardings")
        count = len(dynamic) - len(self.static.nums)
        if isinstance(shardings, tuple) and len(shardings) != count + 1:
            raise ArgumentError(
                f"{what}: in_shardings must have an entry for each positional argument that is "
                f"not static; got {len(shardings) - 1} for {count}"
            )
        avals_of(leaves, "jit", self.fun, in_tree)
        check_no_escaped_tracers(leaves)
        names = argument_names(self.fun, in_tree, leaves)()
        sharded = tuple([x for i, x in enumerate(dynamic) if i not in self.static.nums])
        check_divisible(
            what, names, sharded, shardings[1:] if isinstance(shardings, tuple) else shardings
        )
        donated = self.options["donate_argnums"], self.options["donate_argnames"]
        mask = [i + 1 in donated[0] for i, x in enumerate(dynamic) for _ in tree.leaves(x)]
        mask += [k in donated[1] for k in sorted(keywords) for _ in tree.leaves(keywords[k])]
        captured = self.captured.arguments
        captured_names = [
            f"c{i}`, which the function captured: `c{i}" for i in range(len(captured))
        ]
        donated_leaves = [i for i, is_donated in enumerate(mask) if is_donated]
        check_donated_once(what, [*names, *captured_names], [*leaves, *captured], donated_leaves)
        check_usable(what, names, leaves)
        check_usable(what, captured_names, captured)

    def check_abstract_arguments(self, args: PyTree, kwargs: PyTree) -> None:
        """Raises ArgumentError for an argument of `lower` that has no type."""
        _, dynamic, keywords = self.static.bind(args, kwargs)
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
        """Forgets all traces and executables."""
        self.dispatch.clear_cache()
        self.traced.clear()
        if self.steps is not None:
            self.steps.clear()
        if self.with_state is not None:
            self.with_state.clear_cache()
        self.captured.positions_by_key.clear()
        self.verified.clear()


def values_of_variables(captured: Sequence[Any]) -> list[Any]:
    """Captured values, with the present value of each Variable in place of it."""
    with jax.core.eval_context():
        return [x.compute() if is_variable(x) else x for x in captured]


def is_disabled() -> bool:
    """Whether jitted functions run as they are, in `jax.disable_jit`."""
    return bool(jax.config.jax_disable_jit)  # type: ignore[attr-defined]


def is_outermost() -> bool:
    """Whether no transform of functx or JAX traces now."""
    return current_builder.innermost() is None and not jax_bridge.jax_is_tracing()


@clear_on_rule_change
def _clear_jitted_functions() -> None:
    for compiled in list(JittedFunction.instances):
        compiled.clear()
