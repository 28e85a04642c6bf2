"""The trace of a step under `jit`: what it computes, and what it changes of the Variables around it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, NoReturn
from weakref import ref

import jax
import jax.numpy as jnp

from functx.autograd.hooks import Hooks
from functx.autograd.nodes import next_node_number
from functx.autograd.recorded import Operand, Recorded, running_step, step_traces
from functx.autograd.recorded_operations import Operation, is_wide
from functx.autograd.recording import continue_recording, current_recording
from functx.autograd.traced_recording import TracedRecording
from functx.autograd.variable import Variable, make_variable
from functx.autograd.views import ViewOf, read_again
from functx.core.builder import Builder
from functx.core.captured_state import CapturedState, state_table
from functx.core.errors import AutogradError, ConcretizationError, EscapedTracerError
from functx.core.program import Atom, Literal, Program
from functx.core.program_editing import replace_program_fields
from functx.core.source_info import user_source
from functx.core.tracer import Tracer
from functx.core.types import ShapedArray
from functx.transforms.dce import used_variables

HookKeys = dict[Any, tuple[int, ...]]
"""The keys of the hooks of a leaf, which no two registrations have in common, by kind."""

_FIELDS = (
    "_recorded",
    "_edge",
    "_writes_read",
    "_view",
    "_leaf",
    "_hooks",
    "_grad",
    "_retains_grad",
    "_dual",
)


class VariableState:
    """A Variable that a step captures, and its state when the step first used it.

    `value` is the value that it had then; None for a view. `grad_of` is the
    position of the Variable whose `.grad` it was found as.
    """

    def __init__(self, x: Variable, grad_of: int | None):
        self.variable, self.grad_of = x, grad_of
        self.value: Recorded | None = None
        self.reads_grad = self.sets_grad = False
        fields = vars(x)
        self.fields = {name: fields[name] for name in _FIELDS if name in fields}
        counter = x._counter
        self.counts = (0, 0) if counter is None else (counter.version, counter.writes)
        self.hooks = {name: dict(table) for name, table in hook_tables(x).items() if table}
        self.hook_keys = hook_keys_of(x)

    def restore(self) -> None:
        """Gives the Variable its state back; handles of hooks keep their meaning."""
        x = self.variable
        for name, table in hook_tables(x).items():
            if table != self.hooks.get(name, {}):
                table.clear()
                table.update(self.hooks.get(name, {}))
        fields = vars(x)
        for name in _FIELDS:
            fields.pop(name, None)
        fields.update(self.fields)
        if x._counter is not None:
            x._counter.version, x._counter.writes = self.counts


def hook_tables(x: Variable) -> dict[Any, Hooks]:
    """The hooks of a leaf, by kind."""
    hooks = x._hooks
    if hooks is None:
        return {}
    tables: dict[Any, Hooks] = {**hooks.values}
    return tables | {"pre": hooks.pre, "post": hooks.post, "post_accumulate": hooks.post_accumulate}


def hook_keys_of(x: Variable) -> HookKeys:
    """The keys of the hooks of a leaf."""
    return {name: tuple(table) for name, table in hook_tables(x).items() if table}


class VariableGuard(NamedTuple):
    """How a call finds a captured Variable, and what must hold for the traced program to be right.

    It is the `.grad` of the Variable number `grad_of`, or else the one that `reference` refers to.
    `grad` is the number of its `.grad`, None if it had none, and -1 if the step did not read it. A
    Variable that `keeps_history` has that of its own value, not of what it is a view of. `view`, whose
    base is left out, is the view that it was of the Variable number `base`.
    """

    reference: ref[Variable]
    grad_of: int | None
    grad: int | None
    aval: ShapedArray
    owns_memory: bool
    is_leaf: bool
    keeps_history: bool
    has_history: bool
    is_inference: bool
    hooks: HookKeys
    base: int | None
    view: ViewOf | None

    @property
    def compares_flags_only(self) -> bool:
        """Whether it is found by its reference, and has no view, history or hooks."""
        is_found = self.grad_of is None and not self.aval.weak_type
        return is_found and self.owns_memory and not self.has_history and not self.hooks

    def find(self, found: Sequence[Variable], x: Variable | None) -> Variable | None:
        """The Variable of a call, among those that were `found`; None if the program is not for it."""
        if self.grad_of is not None:
            grad = found[self.grad_of]._grad
            if x is not None and x is not grad:
                # The step may have found it under another name too.
                return None
            x = grad
        if (
            x is None
            or x._recorded.aval is not self.aval
            or (x._leaf is None) is self.is_leaf
            or (x._view is None) is not self.owns_memory
            or (self.keeps_history and (x._edge is None) is self.has_history)
            or x.is_inference() is not self.is_inference
            or ((x._hooks is not None or self.hooks) and hook_keys_of(x) != self.hooks)
        ):
            return None
        return x

    def is_same_view(self, found: Sequence[Variable], x: Variable) -> bool:
        """Whether a Variable that was found is the same view of the same one among those found."""
        if self.base is None or self.view is None:
            return True
        view, traced = x._view, self.view
        return (
            view is not None
            and view.base is found[self.base]
            and view.primitive is traced.primitive
            and view.output == traced.output
            and len(view.others) == len(traced.others)
            and all(
                [
                    a is b or (type(a) is Literal and a == b)
                    for a, b in zip(view.others, traced.others, strict=True)
                ]
            )
        )


class NewVariable(NamedTuple):
    """A Variable that a step makes, and that becomes a `.grad`: its value, and its counts of versions and writes.

    It may share memory with a captured Variable. Then it has no value; it is the view `view`, whose base is
    left out, of the Variable number `base`, as `Change.grad` numbers them.
    """

    aval: ShapedArray
    value: Any
    counts: tuple[int, int]
    base: int | None = None
    view: ViewOf | None = None
    strides: tuple[int, ...] | None = None


class Change(NamedTuple):
    """The changes that a step makes to the Variable number `variable`.

    `value` is its new value, if any; `counts` are the versions and writes to add. With `sets_grad`, the
    Variable number `grad` becomes its `.grad`, or None; -1 is the first new one, and others are below.
    """

    variable: int
    value: Any
    counts: tuple[int, int]
    sets_grad: bool
    grad: int | None
    is_leaf: bool | None


class TracedStep(NamedTuple):
    """The program of a step.

    Its inputs are, at the positions `operands`, the arguments, the values of the Variables `owners`, and
    `constants`. A value is the number of an output of the program, or, if it is one of these, -1 for the first
    and so on downwards. `written` are the new values of arguments. `kept` are values that the function
    made and stored, with their numbers. `generators` are the states that draws move on, with the numbers of
    their new values. `has_history` says whether a result has a derivative,
    and `has_walk` whether the step walks backwards.
    """

    guards: list[VariableGuard]
    owners: list[int]
    constants: list[Any]
    program: Program
    operands: list[int]
    results: list[int]
    written: dict[int, int]
    changes: list[Change]
    new_variables: list[NewVariable]
    kept: list[tuple[Recorded, int]]
    has_history: bool
    has_walk: bool
    is_wide: bool
    states: list[tuple[CapturedState, int]]


class StepStates:
    """The values of the states that a step captures: a Variable when first read, and the last one."""

    def __init__(self, trace: StepTrace):
        self.trace = trace
        self.values: dict[CapturedState, list[Any]] = {}

    def read(self, state: CapturedState) -> Any:
        """The value of a state, as a Variable."""
        if state not in self.values:
            self.values[state] = [make_variable(self.trace.constant(state), None)]
        return self.values[state][-1]

    def store(self, state: CapturedState, value: Any) -> None:
        """Replace the value of a state."""
        self.read(state)
        self.values[state].append(value)

    def changed(self) -> dict[CapturedState, Any]:
        """The last value of each state that the step changes."""
        return {state: values[-1] for state, values in self.values.items() if len(values) > 1}


class StepEnd(NamedTuple):
    """The state of a step when its function has returned; as TracedStep, with atoms for values."""

    guards: list[VariableGuard]
    owners: list[int]
    outputs: dict[Atom, Tracer]
    results: list[Atom]
    written: dict[int, Atom]
    changes: list[Change]
    new_variables: list[NewVariable]
    states: dict[CapturedState, Atom]
    has_history: bool


class StepTrace(TracedRecording):
    """The recording of a step while it is traced, whose operations are equations of a program.

    Variables that it captures have traced values until it ends; then their states are restored.
    """

    def __init__(self, name: str, in_names: Any):
        super().__init__(Builder(name, "jit"))
        self.builder.in_names = in_names
        self.arguments: list[Recorded] = []
        self.states: list[VariableState] = []
        self.positions: dict[int, int] = {}
        self.captured_states = StepStates(self)
        self.first_node = next_node_number()
        self.has_walk = self.has_backward = False

    @property
    def owner(self) -> str:
        """`jit(step)`, for messages."""
        return self.builder.owner

    @contextmanager
    def active(self) -> Iterator[None]:
        """The context in which this thread traces the step."""
        before = current_recording()
        continue_recording(self)
        step_traces.count += 1
        token = state_table.set(self.captured_states)
        running_step.begin(self.positions.__contains__)
        try:
            yield
        finally:
            state_table.reset(token)
            step_traces.count -= 1
            continue_recording(before)
            self.is_open = False
            for state in reversed(self.states):
                state.restore()
            running_step.end()
            self.states, self.arguments = [], []

    def add_argument(self, aval: ShapedArray) -> Variable:
        """An argument of the step, as a Variable."""
        self.arguments.append(self.recorded(self.builder.add_input(aval)))
        return make_variable(self.arguments[-1], None)

    def constant(self, x: object) -> Recorded:
        """The value of an array that the step makes, or finds around it."""
        return self.recorded(self.builder.tracer(x))

    def traced_from_outside(self, x: Recorded) -> NoReturn:
        raise AssertionError("Variables are captured when read")

    def call(
        self,
        operation: Operation,
        operands: Sequence[Operand],
        keys: Sequence[Hashable] | None = None,
    ) -> list[Recorded]:
        self.builder.source = user_source(2)
        return super().call(operation, operands)

    def run(self) -> NoReturn:
        """Raises an error: the values are not known."""
        if self.is_open:
            raise ConcretizationError(
                "the value of a Variable must not be read by a jitted function, which would keep that "
                f"of its first call; got a read in {self.owner}",
                fix="Return it from the function, or choose with functx.numpy.where or "
                "functx.lax.cond.",
            )
        raise EscapedTracerError(
            "a Variable that a jitted function makes must be used inside it; got one of "
            f"{self.owner}, which has ended",
            fix="Return the value from the function, or make the Variable outside.",
        )

    def capture_variable(self, x: Variable, grad_of: int | None = None) -> None:
        """Gives a captured Variable a traced value."""
        self.positions[id(x)] = len(self.states)
        running_step.await_others(self.positions.__contains__)
        state = VariableState(x, grad_of)
        self.states.append(state)
        x._retains_grad = False
        if x._view is None:
            state.value = x._recorded = self.recorded(self.builder.add_input(x.aval_))
            x._dual = None
        else:
            x._writes_read = -1
            read_again(x)

    def capture_grad(self, x: Variable) -> None:
        """Captures `.grad` of a Variable, which the step reads."""
        position = self.positions.get(id(x))
        if position is None:
            return
        state, grad = self.states[position], x._grad
        state.reads_grad |= not state.sets_grad
        if grad is not None and grad._recorded.recording is not self:
            # A gradient that the step itself has set is found by a reference to it.
            self.capture_variable(grad, None if state.sets_grad else position)

    def mark_grad_set(self, x: Variable) -> None:
        """Marks `.grad` of a Variable as set by the step."""
        position = self.positions.get(id(x))
        if position is not None:
            self.states[position].sets_grad = True

    def split_memory(self, x: Variable, base: Variable) -> None:
        """Lets `x` become a view of `base`, a new Variable without its history, also after the step."""
        position = self.positions.get(id(x))
        if position is None:
            return
        state = self.states[position]
        of_base = VariableState(base, None)
        of_base.value, of_base.counts = state.value, state.counts
        of_base.fields = {"_recorded": state.fields["_recorded"], "_edge": None}
        of_base.fields["_writes_read"] = state.counts[1]
        state.value = None
        state.fields["_view"], state.fields["_writes_read"] = ViewOf(base, None), state.counts[1]
        self.positions[id(base)] = len(self.states)
        self.states.append(of_base)

    def gather(self, args: Sequence[Variable], results: Sequence[Any]) -> StepEnd:
        """The results and changes of the step, while its Variables are still as it left them."""
        outputs: dict[Atom, Tracer] = {}

        def atom_of(x: object) -> Atom:
            value = self.traced(x.read()) if isinstance(x, Variable) else x
            tracer = self.builder.tracer(value)
            return outputs.setdefault(tracer.atom, tracer).atom

        has_history = any([isinstance(x, Variable) and x.requires_grad for x in results])
        result_atoms = list(map(atom_of, results))
        pairs = zip(args, self.arguments, strict=True)
        written = {i: atom_of(x) for i, (x, first) in enumerate(pairs) if x.read() is not first}
        changes, new_variables = self.changes(atom_of)
        states = {s: atom_of(value) for s, value in self.captured_states.changed().items()}
        guards = list(map(self.guard, self.states))
        # In the order of the inputs, which `split_memory` does not keep.
        numbers = {i: s.value.number for i, s in enumerate(self.states) if s.value is not None}
        owners = sorted(numbers, key=numbers.__getitem__)
        return StepEnd(
            guards=guards,
            owners=owners,
            outputs=outputs,
            results=result_atoms,
            written=written,
            changes=changes,
            new_variables=new_variables,
            states=states,
            has_history=has_history,
        )

    def complete(self, end: StepEnd, num_args: int) -> TracedStep:
        """The traced step, once no frame of its function is left: what is still referenced was stored."""
        self.captured_states.values.clear()
        kept = self.kept_values()
        outputs = dict(end.outputs)
        for x in kept:
            outputs.setdefault(self.values[x.number].atom, self.values[x.number])
        whole, constants = self.builder.finish(list(outputs.values()))
        number: dict[Any, int] = {v: -1 - i for i, v in enumerate(whole.inputs)}
        computed = [a for a in outputs if a not in number]
        number.update({a: i for i, a in enumerate(computed)})
        used = used_variables(whole.equations, computed)
        operands = [i for i, v in enumerate(whole.inputs) if i < num_args or v in used]
        inputs = [whole.inputs[i] for i in operands]
        made = [v for eqn in whole.equations for v in eqn.outputs]
        wide = any([is_wide(v.aval) for v in (*inputs, *made)])
        with jax.enable_x64(True) if wide else nullcontext():
            # A state is read in each call.
            arrays = [x if isinstance(x, CapturedState) else jnp.array(x) for x in constants]
        return TracedStep(
            guards=end.guards,
            owners=end.owners,
            constants=arrays,
            program=replace_program_fields(whole, inputs=inputs, outputs=computed),
            operands=operands,
            results=[number[a] for a in end.results],
            written={i: number[a] for i, a in end.written.items()},
            changes=[c._replace(value=number.get(c.value)) for c in end.changes],
            new_variables=[x._replace(value=number.get(x.value)) for x in end.new_variables],
            kept=[(x, number[self.values[x.number].atom]) for x in kept],
            has_history=end.has_history,
            has_walk=self.has_walk,
            is_wide=wide,
            states=[(s, number[a]) for s, a in end.states.items()],
        )

    def kept_values(self) -> list[Recorded]:
        """The values that something still refers to, though the step has ended."""
        kept = self.held()
        if kept:
            # Cycles, as of gradients with a history, are no use of them.
            del kept
            gc.collect()
            kept = self.held()
        return kept

    def guard(self, state: VariableState) -> VariableGuard:
        """How a call finds the Variable of a state."""
        fields = state.fields
        grad, counter = fields.get("_grad"), state.variable._counter
        number = None if grad is None else self.positions.get(id(grad))
        return VariableGuard(
            reference=ref(state.variable),
            grad_of=state.grad_of,
            grad=number if state.reads_grad else -1,
            aval=fields["_recorded"].aval,
            owns_memory=state.value is not None,
            is_leaf=fields.get("_leaf") is not None,
            keeps_history=(view := fields.get("_view")) is None or view.primitive is None,
            has_history=fields["_edge"] is not None,
            is_inference=counter is not None and counter.is_inference,
            hooks=state.hook_keys,
            base=None if view is None else self.positions.get(id(view.base)),
            view=None if view is None else view._replace(base=None),  # type: ignore[arg-type]
        )

    def changes(self, atom_of: Callable[[Any], Atom]) -> tuple[list[Change], list[NewVariable]]:
        """The changes of captured Variables, and the new Variables that become gradients."""
        changes: list[Change] = []
        new = NewVariables(self, atom_of)
        # The loop also visits Variables that become gradients, which it captures.
        for i, state in enumerate(self.states):
            x, fields, value, counts = state.variable, state.fields, None, (0, 0)
            self.check_left(state)
            if state.value is not None:
                value = None if x.read() is state.value else atom_of(x)
                counter, (version, writes) = x.version_counter, state.counts
                counts = counter.version - version, counter.writes - writes
            sets_grad = x._grad is not fields.get("_grad")
            # Other calls may find another one.
            sets_grad = sets_grad or (state.sets_grad and not state.reads_grad)
            grad = new.number_of(x._grad) if sets_grad and x._grad is not None else None
            is_leaf = x._leaf is not None
            leaf = None if is_leaf is (fields.get("_leaf") is not None) else is_leaf
            change = Change(i, value, counts, sets_grad, grad, leaf)
            if change[1:] != _NO_CHANGE:
                changes.append(change)
        return changes, new.variables

    def check_left(self, state: VariableState) -> None:
        """Raises AutogradError for a Variable that a step leaves with other hooks or another history."""
        x = state.variable
        if hook_keys_of(x) != state.hook_keys:
            raise AutogradError(
                f"{self.owner}: a hook that the function registers on a Variable from around it, or "
                f"removes, must not outlast it; got one of {x.describe()}",
                fix="Remove it in the function that registers it (handle.remove()), or do both outside.",
            )
        if x._view is None or x._view.primitive is None:
            x.read()
            if x._edge is not state.fields["_edge"]:
                raise AutogradError(
                    f"{self.owner}: a Variable from around the function must not get a history "
                    f"from it; got a write to {x.describe()} of a value with a derivative",
                    fix="Write y.detach(), or under functx.autograd.no_grad(), or return the value.",
                )


class NewVariables:
    """The Variables that a step makes and that become gradients, with those that they are views of."""

    def __init__(self, trace: StepTrace, atom_of: Callable[[Any], Atom]):
        self.trace, self.atom_of = trace, atom_of
        self.variables: list[NewVariable] = []
        self.numbers: dict[int, int] = {}

    def number_of(self, x: Variable) -> int:
        """The number of a Variable: its position among captured ones, or -1 for the first new one and so on."""
        trace = self.trace
        if x._recorded.recording is not trace:
            trace.capture_variable(x)
        position = trace.positions.get(id(x), self.numbers.get(id(x)))
        if position is None:
            new = self.view(x) if self.shares_memory(x) else self.array(x)
            self.variables.append(new)
            position = self.numbers[id(x)] = -len(self.variables)
        return position

    def shares_memory(self, x: Variable) -> bool:
        """Whether a new Variable is a view of a captured one."""
        counter = x._counter
        return counter is not None and any(
            [counter is state.variable._counter for state in self.trace.states]
        )

    def array(self, x: Variable) -> NewVariable:
        """An array with memory of its own."""
        counter = x.version_counter
        return NewVariable(x.aval_, self.atom_of(x), (counter.version, counter.writes))

    def view(self, x: Variable) -> NewVariable:
        """A view, whose value is read when it is needed."""
        view = x._view
        assert view is not None
        if any([isinstance(other, Tracer) for other in view.others]):
            raise AutogradError(
                f"{self.trace.owner}: a view of a Variable from around the function, at an index that it "
                f"computes, must not become a gradient; got {x.describe()}",
                fix="Make the view outside, or set x.grad to a copy (y.copy()).",
            )
        base = self.number_of(view.base)
        return NewVariable(
            x.aval_,
            None,
            (0, 0),
            base,
            view._replace(base=None),  # type: ignore[arg-type]
            x._strides,
        )


_NO_CHANGE = (None, (0, 0), False, None, None)


def trace_of_thread() -> StepTrace | None:
    """The trace of the step that this thread runs."""
    recording = current_recording()
    return recording if isinstance(recording, StepTrace) else None


step_traces.of_thread = trace_of_thread
