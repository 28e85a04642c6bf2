"""Calls of a jitted function that changes Variables: its traced steps are found, run and written back."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from operator import is_not
from sys import getrefcount
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from functx.autograd.anomaly import current_anomalies
from functx.autograd.engine import running_walk
from functx.autograd.hooks import dead_reference
from functx.autograd.modes import current_modes
from functx.autograd.nodes import operand_watch, saving_hooks
from functx.autograd.recorded import (
    NOT_CAPTURED,
    Failure,
    Recorded,
    callback_write_error,
    constant,
    ownership,
    running_step,
    step_traces,
)
from functx.autograd.recording import calls_python
from functx.autograd.step_trace import StepEnd, StepTrace, TracedStep, hook_keys_of
from functx.autograd.variable import Variable, make_variable, open_level
from functx.autograd.variable_places import CODE_LIMIT, PlaceSearch, VariablePlaces
from functx.autograd.views import ViewOf
from functx.core import tree
from functx.core.caches import Cache
from functx.core.captured_state import CapturedState, read_states
from functx.core.errors import AutogradError, EscapedTracerError
from functx.core.source_info import user_source
from functx.core.tracer import HOST_ARRAY_TYPES, variables
from functx.core.types import ShapedArray, x64_enabled
from functx.core.typing import Avals, Function, PyTree
from functx.lowering.captured_arrays import COUNT_OF_LOCAL
from functx.lowering.execution import find_executable
from functx.lowering.jax_bridge import call_reraising_callback_errors, is_in_callback
from functx.lowering.recompilation import code_of_function, warn_of_repeats
from functx.transforms.aliasing import shared_buffers, write_back_arguments
from functx.transforms.argument_names import argument_names, function_name
from functx.transforms.tracing_api import FlatFunction

if TYPE_CHECKING:
    from functx.lowering.jitted_function import JittedFunction

StepWithVariables: TypeAlias = "tuple[JittedStep, list[Variable]]"
"""A step, and the Variables that it has in a call."""

STEPS_OF_A_KEY = 8
"""How many steps are kept of calls that differ only in what they find of Variables."""
_lock = RLock()
"""Steps are traced and run one at a time: a trace gives Variables traced values."""


class JittedSteps:
    """The steps of a jitted function, by the types of its arguments.

    `function`, a weak reference, gives the context of a trace. A step that finds other gradients, hooks or flags of
    Variables than those before is traced anew.

    `is_step` says whether calls of the function are steps; None until the first trace finds out.
    """

    def __init__(self, function: JittedFunction, is_step: bool | None = True):
        self.function, self.is_step = function, is_step
        self.steps = Cache("jit", 256)

    @staticmethod
    def may_be_step(fun: Function, takes_variables: bool) -> bool:
        """Whether a function names `backward` in its code, and takes or can read Variables."""
        search = PlaceSearch(fun, CODE_LIMIT)
        return (takes_variables or bool(search.variables)) and search.names_backward()

    def clear(self) -> None:
        """Forgets all steps."""
        self.steps.clear()

    def __call__(
        self,
        fun: Function,
        leaves: Sequence[Any],
        in_tree: tree.TreeDef,
        avals: Avals,
        key: Hashable,
        may_be_node: bool = False,
    ) -> PyTree:
        """The result of a call, after which the Variables are changed.

        NotImplemented if no Variable is changed and the result has a history, which one node may give.
        While `is_step` is None, also if the trace raises an error, or neither calls `backward` nor changes
        a Variable.
        """
        if self.is_step is False:
            return NotImplemented
        if is_in_callback() or (step_traces.count and step_traces.of_thread() is not None):
            # A step inside another one is a part of it; one in a callback may not wait for another one.
            return call_uncompiled(fun, leaves, in_tree)
        if (level := open_level.get()) is not None:
            raise AutogradError(
                f"jit({function_name(fun)}): a function that changes Variables must not be called while "
                f"a dual level is open; got level {level}",
                fix="Open the level inside the function, or call it without jit.",
            )
        with _lock:
            whole_key = key, current_modes(), saving_hooks.get(), current_anomalies()
            steps: list[JittedStep] | None = self.steps.get(whole_key)
            if steps is None:
                steps = []
                self.steps.put(whole_key, steps)
            known = take_step(steps, fun) or self.trace(steps, fun, in_tree, avals)
            if known is None:
                return NotImplemented
            step, found = known
            if step.needs_history and may_be_node and not step.is_no_node:
                # Another trace finds out, once.
                step.is_no_node = True
                return NotImplemented
            if step.needs_history or (leaves and step.shares_memory(leaves, found)):
                return call_uncompiled(fun, leaves, in_tree)
            if step.traced.has_walk:
                check_arguments(fun, leaves)
            with nullcontext() if step.executable is not None else self.function.tracing():
                results = step.run(leaves, found)
            if results is not None:
                return tree.unflatten(step.out_tree, results)
            return self(fun, leaves, in_tree, avals, key, may_be_node)

    def trace(
        self, steps: list[JittedStep], fun: Function, in_tree: tree.TreeDef, avals: Avals
    ) -> StepWithVariables | None:
        """A new step with its Variables, first among `steps` if it can run again; None if it is none.

        Sets `is_step` if that is not known.
        """
        trace = StepTrace(function_name(fun), argument_names(fun, in_tree, avals))
        try:
            with self.function.tracing():
                step, found = trace_step(trace, fun, in_tree, avals)
        except Exception:
            if self.is_step or trace.has_backward:
                raise
            self.is_step = False
            return None
        self.is_step = bool(self.is_step or trace.has_backward or step.traced.changes)
        if not self.is_step:
            return None
        stores = bool(step.traced.kept)
        if not stores and step.places.hold(fun, found):
            steps.insert(0, step)
            del steps[STEPS_OF_A_KEY:]
        else:
            warn_of_trace(fun, UnrepeatableStep(stores))
        return step, found


def take_step(steps: list[JittedStep], fun: Function) -> StepWithVariables | None:
    """The step that finds what it found when it was traced, which moves to the front of `steps`."""
    for i, step in enumerate(steps):
        found = step.find_variables(fun)
        if found is not None:
            if i:
                steps.insert(0, steps.pop(i))
            return step, found
    return None


class UnrepeatableStep(NamedTuple):
    """A step that finds other Variables next time, since it stores what it makes, or replaces some that it reads."""

    stores: bool

    def may_be_same_function(self, _before: UnrepeatableStep) -> bool:
        return True

    def difference(self, _before: UnrepeatableStep) -> tuple[str, str]:
        if self.stores:
            return (
                "a value that the function stores, such as an argument or a `.grad` in a list",
                "Return it, or write it to a Variable (kept[...] = value).",
            )
        return (
            "the Variables that the function reads, since it puts others in their places",
            "Write to the ones that are there (w[...] = value).",
        )


def warn_of_trace(fun: Function, step: UnrepeatableStep) -> None:
    """Counts a trace of a step that cannot be called again; warns when there are too many."""
    source, code = user_source(2), code_of_function(fun)
    if source is not None and code is not None:
        warn_of_repeats(
            source,
            code,
            UnrepeatableStep,
            lambda: step,
            f"jit({function_name(fun)}): a step should be traced a few times at most, since that takes "
            "far longer than to run",
        )


def check_arguments(fun: Function, leaves: Sequence[Any]) -> None:
    """Raises AutogradError for an argument whose gradient a walk in the step would not compute."""
    for i, x in enumerate(leaves):
        if isinstance(x, Variable) and x.requires_grad:
            raise AutogradError(
                f"jit({function_name(fun)}): an argument of a function that calls backward() or "
                "autograd.grad must not require a gradient, since arguments have no history in it; got "
                f"{x.describe()} as argument number {i}",
                fix="Let the function read the Variable from around it, or pass x.detach().",
            )


def call_uncompiled(fun: Function, leaves: Sequence[Any], in_tree: tree.TreeDef) -> PyTree:
    """The result of the function itself."""
    args, kwargs = in_tree.unflatten(leaves)
    return fun(*args, **kwargs)


def trace_step(
    trace: StepTrace, fun: Function, in_tree: tree.TreeDef, avals: Avals
) -> StepWithVariables:
    """The step that a call is, and its Variables, all as they were before."""
    search = PlaceSearch(fun)
    flat = FlatFunction(fun, in_tree, "jit", False)

    found: list[Variable] = []

    def run() -> StepEnd:
        for variable in (running_walk, operand_watch):
            variable.set(None)
        with trace.active():
            args = [trace.add_argument(aval) for aval in avals]
            results = flat.flatten_result(flat.call(args))
            end = trace.gather(args, results)
            found.extend([state.variable for state in trace.states])
            return end

    # Modes that the function sets end with the trace.
    try:
        end = copy_context().run(run)
    except EscapedTracerError as error:
        if error.problem.endswith(f"] of {trace.owner}, which has ended") and error.details:
            error.fix = (
                "A function that changes Variables is traced again from its first such act (backward(), "
                "x.grad = ..., a write), and what it stored before is of the first trace: store it "
                "after that act, or write it to a Variable (m[...] = value)."
            )
        raise
    traced = trace.complete(end, len(avals))
    return JittedStep(traced, flat.out_tree, len(avals), search.places_of(found)), found


class JittedStep:
    """A traced step of a jitted function, and its executable once it has run.

    `donated` holds the numbers of the owners whose memory is reused, and of their new values. The Variables at
    the numbers of `flags` are leaves or not, as it says, and have no view, history or hooks.
    """

    def __init__(
        self, traced: TracedStep, out_tree: tree.TreeDef, num_args: int, places: VariablePlaces
    ):
        self.traced, self.out_tree, self.places = traced, out_tree, places
        self.executable: Callable[..., Sequence[Any]] | None = None
        self.literals: Sequence[Any] = ()
        # A node of the program would not know what the function does to derivatives.
        self.needs_history = traced.has_history and not traced.changes
        self.is_no_node = False
        self.num_args, self.out_avals = num_args, traced.program.out_avals
        self.references = [guard.reference for guard in traced.guards]
        self.flags = [(i, g.is_leaf) for i, g in enumerate(traced.guards) if g.compares_flags_only]
        self.others = [(i, g) for i, g in enumerate(traced.guards) if not g.compares_flags_only]
        self.reads_grads = [(i, g.grad) for i, g in enumerate(traced.guards) if g.grad != -1]
        self.finds_grads = any([guard.grad_of is not None for guard in traced.guards])
        self.has_callbacks = calls_python(traced.program)
        self.donated = [] if self.has_callbacks else list(self.donated_owners())
        num_inputs = num_args + len(traced.owners) + len(traced.constants)
        self.drops_inputs = traced.operands != [*range(num_inputs)]
        self.reads_states = any([isinstance(x, CapturedState) for x in traced.constants])
        changes = traced.changes
        self.writes = [(c.variable, c.value, *c.counts) for c in changes if c.value is not None]
        self.changes_more = len(self.writes) < len(changes) or any(
            [c.sets_grad or c.is_leaf is not None for c in changes]
        )
        positions = {num_args + k for k, _ in self.donated}
        self.donated_operands = tuple([k for k, i in enumerate(traced.operands) if i in positions])

    def donated_owners(self) -> Iterator[tuple[int, int]]:
        """The owners that the program reads and that nothing else needs after it, each with a new value."""
        traced = self.traced
        numbers = [c.value for c in traced.changes] + [x.value for x in traced.new_variables]
        numbers += [*traced.results, *traced.written.values(), *[k for _, k in traced.kept]]
        # A new value that several Variables get takes the memory of one.
        by_value = {
            c.value: c.variable for c in traced.changes if c.value is not None and c.value >= 0
        }
        for number, variable in by_value.items():
            k = traced.owners.index(variable)
            if self.num_args + k in traced.operands and -1 - self.num_args - k not in numbers:
                yield k, number

    def find_variables(self, fun: Function) -> list[Variable] | None:
        """The Variables of a call of `fun` now; None if it is not this step."""
        found: list[Any] = [reference() for reference in self.references]
        for i, is_leaf in self.flags:
            x = found[i]
            if (
                x is None
                or (x._leaf is None) is is_leaf
                or x._view is not None
                or x._edge is not None
                or (x._hooks is not None and hook_keys_of(x))
            ):
                return None
        for i, guard in self.others:
            x = guard.find(found, found[i])
            if x is None:
                return None
            found[i] = x
        if not self.has_grads(found):
            return None
        if self.finds_grads and len({id(x) for x in found}) < len(found):
            return None
        if not all([guard.is_same_view(found, found[i]) for i, guard in self.others]):
            return None
        return found if self.places.hold(fun, found) else None

    def has_grads(self, found: Sequence[Variable]) -> bool:
        """Whether `.grad` of the Variables, as far as the step reads it, is what it was when traced."""
        for i, number in self.reads_grads:
            if found[i]._grad is not (None if number is None else found[number]):
                return False
        return True

    def shares_memory(self, leaves: Sequence[Any], found: Sequence[Variable]) -> bool:
        """Whether an argument shares memory that the step writes to with another array of it."""
        traced = self.traced
        arrays = [x for x in leaves if isinstance(x, Variable)]
        if arrays:
            used = [x.memory for x in found]
            changed = {id(found[c.variable].memory) for c in traced.changes if any(c.counts)}
            changed |= {
                id(leaves[i].memory) for i in traced.written if isinstance(leaves[i], Variable)
            }
            together = [id(m) for m in (*[x.memory for x in arrays], *used)]
            if any([together.count(m) > 1 for m in changed]):
                return True
        return bool(traced.written) and bool(shared_buffers(leaves))

    def run(self, leaves: Sequence[Any], found: Sequence[Variable]) -> list[Variable] | None:
        """Runs the step, and changes the Variables.

        None, and no change, if a walk of another thread has meanwhile made a `.grad`.
        """
        running_step.begin(lambda number: number in map(id, found))
        try:
            # The types are known: 64-bit values stay so where the switch is off by now.
            is_switched = self.traced.is_wide and not x64_enabled()
            with jax.enable_x64(True) if is_switched else nullcontext():
                return self.run_here(leaves, found) if self.has_grads(found) else None
        finally:
            running_step.end()

    def run_here(self, leaves: Sequence[Any], found: Sequence[Variable]) -> list[Variable]:
        """Runs the step, and changes the Variables, while no other thread adds to their gradients.

        Raises CallbackWriteError if a callback of the step wrote to a Variable that the step changes.
        """
        traced = self.traced
        if (watch := operand_watch.get()) is not None:
            watch(found)
        arguments = [x.read() if isinstance(x, Variable) else x for x in leaves]
        owners = [found[i]._recorded for i in traced.owners]
        constants = read_states(traced.constants) if self.reads_states else traced.constants
        values, reused = self.operands(arguments, owners, constants)
        before = self.written_values(found) if self.has_callbacks else ()
        try:
            outs = self.compute(values)
        except BaseException as error:
            mark_interrupted(owners, error)
            raise
        if self.has_callbacks and any(map(is_not, before, self.written_values(found))):
            raise callback_write_error(
                "got one that wrote to a Variable which the step changes too"
            )
        results = StepResults(self.out_avals, outs, (*arguments, *owners, *constants))
        computed = results.computed
        for k, number in reused:
            computed[number] = owner = owners[k]
            owner.value = outs[number]
        for variable, number, versions, writes in self.writes:
            x = found[variable]
            # As `results[number]`, without a call where it is known.
            x._recorded = computed.get(number) or results[number]
            counter = x._counter or x.version_counter
            counter.add(versions, writes)
        if self.changes_more:
            self.change_rest(found, results)
        for stored, number in traced.kept:
            give_value(stored, results[number])
        for state, number in traced.states:
            state.store(results[number].compute())
        returned = [make_variable(results[number], None) for number in traced.results]
        if traced.written:
            written = {
                i: make_variable(results[number], None)
                for i, number in traced.written.items()
                if isinstance(leaves[i], (np.ndarray, Variable))
            }
            write_back_arguments(leaves, written)
        return returned

    def written_values(self, found: Sequence[Variable]) -> list[Recorded]:
        """The values of the Variables that the step writes to."""
        return [found[variable]._recorded for variable, *_ in self.writes]

    def operands(
        self, arguments: Sequence[Any], owners: Sequence[Recorded], constants: Sequence[Any]
    ) -> tuple[list[Any], list[tuple[int, int]]]:
        """The operands of the program, and which of `donated` have memory that it may reuse.

        These are private values to which neither a recording nor the user refers. Others are copied first, so that
        there is one executable.
        """
        of_owners = [x.value if x.recording is None else x.look() for x in owners]
        if not HOST_ARRAY_TYPES.isdisjoint(map(type, of_owners)):
            of_owners = list(map(on_device, owners))
        with ownership:
            counts = [getrefcount(x) for x in owners]
            reused = [
                (k, number)
                for k, number in self.donated
                if counts[k] == COUNT_OF_OWNED
                and owners[k].is_private
                and ((by := owners[k].captured[0]) is None or by.has_run)
            ]
        if len(reused) < len(self.donated):
            for k, _ in {*self.donated}.difference(reused):
                of_owners[k] = jnp.array(of_owners[k])
        values = [x.look() if type(x) is Recorded else x for x in arguments]
        values += of_owners
        values += constants
        if self.drops_inputs:
            values = [values[i] for i in self.traced.operands]
        return values, reused

    def change_rest(self, found: Sequence[Variable], results: StepResults) -> None:
        """Changes what is no value: counts, flags and gradients."""
        new: list[Variable] = []
        for each in self.traced.new_variables:
            if each.view is None:
                x = make_variable(results[each.value], None)
                if any(each.counts):
                    x.version_counter.add(*each.counts)
            else:
                assert each.base is not None
                base = found[each.base] if each.base >= 0 else new[-1 - each.base]
                x = unread_view(each.aval, each.view._replace(base=base), each.strides)
            new.append(x)
        # The number of the first new one is -1.
        variables = (*found, *new[::-1])
        for change in self.traced.changes:
            x = found[change.variable]
            if change.value is None and any(change.counts):
                x.version_counter.add(*change.counts)
            if change.is_leaf is not None:
                x._leaf = dead_reference if change.is_leaf else None
            if change.sets_grad:
                x._grad = None if change.grad is None else variables[change.grad]

    def compute(self, operands: list[Any]) -> Sequence[Any]:
        """The outputs of the program."""
        if self.executable is None:
            self.executable, self.literals = find_executable(
                None, self.traced.program, operands, self.donated_operands
            )
        return call_reraising_callback_errors(self.executable, *operands, *self.literals)  # type: ignore[no-any-return]


class StepResults:
    """The values that a call of a step gives, by number: outputs of the program, or what it was given."""

    __slots__ = ("avals", "computed", "given", "outs")

    def __init__(self, avals: Sequence[ShapedArray], outs: Sequence[Any], given: Sequence[Any]):
        self.avals, self.outs, self.given = avals, outs, given
        self.computed: dict[int, Recorded] = {}

    def __getitem__(self, number: int) -> Recorded:
        if number >= 0:
            x = self.computed.get(number)
            if x is None:
                x = self.computed[number] = private(self.avals[number], self.outs[number])
            return x
        given = self.given[-1 - number]
        return given if type(given) is Recorded else constant(given)


def unread_view(aval: ShapedArray, view: ViewOf, strides: tuple[int, ...] | None) -> Variable:
    """A view that reads its value from its base when it is needed."""
    x = make_variable(Recorded(aval, None, 0), None)
    x.version_counter, x._view, x._strides = view.base.version_counter, view, strides
    x._writes_read = -1
    return x


def give_value(x: Recorded, result: Recorded) -> None:
    """Gives a traced value that the function stored the value that it stands for."""
    x.value, x.is_private, x.captured = result.compute(), False, NOT_CAPTURED
    x.recording = None


def on_device(x: Recorded) -> Any:
    """A value as an array of JAX, once and not in each call."""
    value = x.look()
    if type(value) in HOST_ARRAY_TYPES:
        value = x.value = jnp.array(value)
    return value


def private(aval: ShapedArray, value: object) -> Recorded:
    """A value that nobody else refers to."""
    recorded = Recorded(aval, None, 0)
    recorded.value, recorded.is_private, recorded.captured = value, True, NOT_CAPTURED
    return recorded


COUNT_OF_OWNED = COUNT_OF_LOCAL + 1 if COUNT_OF_LOCAL else 0
"""The reference count of a value that only a Variable and a list hold; 0 where counts do not tell."""


def mark_interrupted(owners: Sequence[Recorded], error: BaseException) -> None:
    """Lets reads of values raise whose memory was reused before an error."""
    for x in owners:
        if isinstance(x.value, jax.Array) and x.value.is_deleted():
            failure = AutogradError(
                "jit: the step was interrupted after the memory of a Variable was reused; got "
                f"{error!r}",
                fix="Give the Variable a value again (x[...] = value), under no_grad.",
            )
            x.recording = Failure(failure)


variables.jitted_steps = JittedSteps
