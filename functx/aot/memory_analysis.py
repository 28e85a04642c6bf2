"""The memory of a program with writes: how inputs are written to, and what outputs are views of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from functx import ops
from functx.aot.meta import ReplayableView
from functx.core.functionalization import Alias, Functionalizer, Storage
from functx.core.memory_layouts import elide_copies, result_strides
from functx.core.primitive import Primitive
from functx.core.primitive_families import CopiesOperand, View
from functx.core.program import (
    Atom,
    Equation,
    Literal,
    Part,
    Program,
    Var,
)
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import Rewrite
from functx.core.strides import MemoryOrder, Strides, row_major_strides
from functx.core.tracer import Tracer, current_builder
from functx.core.tracing import trace_closed
from functx.core.types import is_inexact
from functx.ops.autodiff import Detach, WithValue
from functx.ops.operands import literal


class InputWrites(NamedTuple):
    """The writes to the memory of an input.

    `is_hidden` says that all go through a detached alias, `is_under_no_grad` that all are made under
    no_grad, `in_forward` and `in_backward` that some are in that part of a joint function.
    """

    is_hidden: bool = True
    is_under_no_grad: bool = True
    in_forward: bool = False
    in_backward: bool = False


class OutputMemory(NamedTuple):
    """The storage of an output, by number, and the views that lead from it to the output.

    An output behind a view with computed operands has a storage of its own.
    """

    storage: int
    view: tuple[ReplayableView, ...]


class AnalyzedProgram(NamedTuple):
    """A pure program, with the writes to its inputs and the memory of its outputs.

    The outputs are those of the function, then the new values of the inputs at the keys of `writes`,
    then the final values of the storages at the keys of `roots`, which no input owns, then the values
    after the forward part of the inputs at the keys of `forward_values`, which both parts write to.
    `roots` and `forward_values` hold the numbers of these outputs. `overwrites` are the values of arrays
    after they were overwritten, as `select` of the new and the old value.
    """

    program: Program
    outputs: tuple[OutputMemory, ...]
    writes: dict[int, InputWrites]
    roots: dict[int, int]
    forward_values: dict[int, int]
    layout_dependent: bool
    overwrites: frozenset[Atom] = frozenset()

    @property
    def written(self) -> tuple[int, ...]:
        """The numbers of the inputs that are written to."""
        return tuple(self.writes)


class WriteTrackingFunctionalizer(Functionalizer):
    """A functionalizer that keeps track of the writes to inputs.

    A write that no derivative sees leaves the history of the array as it is, as a write to a
    Variable does: the new value has the derivative of the old one. After another write the array still
    requires a gradient if it did: where all of it is overwritten, the old value has one of zero.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.writes: dict[Storage, InputWrites] = {}
        self.forward_values: dict[Storage, Tracer] = {}
        self.overwrites: set[Atom] = set()

    def write(self, eqn: Equation, target: Alias, value: Tracer) -> None:
        before = self.writes.get(target.storage, InputWrites())
        under_no_grad: bool = eqn.primitive.under_no_grad  # type: ignore[attr-defined]
        in_backward = eqn.part in (Part.BACKWARD, Part.STAYS_BACKWARD)
        if in_backward and not before.in_backward:
            self.forward_values[target.storage] = target.storage.value
        self.writes[target.storage] = InputWrites(
            before.is_hidden and detached_alias(target) is not None,
            before.is_under_no_grad and under_no_grad,
            before.in_forward or not in_backward,
            before.in_backward or in_backward,
        )
        if under_no_grad and is_inexact(value.dtype) and value.atom is not target.read().atom:
            value = WithValue()(target.read(), value)
        storage, detached = target.storage, detached_alias(target)
        old = storage.value if detached is None else storage.histories.get(detached.key)
        target.write(value, keep_history)
        if under_no_grad or old is None:
            return
        new = storage.value if detached is None else storage.histories[detached.key]
        if self.loses_history(new, old) and new.atom is not storage.initial_value.atom:
            new = ops.select(literal(True, ops.BOOL), new, old)  # type: ignore[assignment]
            self.overwrites.add(new.atom)
            if detached is None:
                storage.value = new
            else:
                storage.histories = {**storage.histories, detached.key: new}
            # Views are taken again, since they require a gradient as well.
            storage.cached_views = None

    def loses_history(self, new: Tracer, old: Tracer) -> bool:
        """Whether the value `new`, written over `old`, is not computed from it by one operation."""
        if new.atom is old.atom or not is_inexact(new.dtype):
            return False
        builder = current_builder.require()
        position = builder.producer(new.atom)
        if position is None:
            return True
        eqn = builder.equations[position]
        return old.atom not in eqn.inputs or not is_differentiated(eqn.primitive)


def is_differentiated(primitive: Primitive) -> bool:
    """Whether cotangents go through an operation."""
    return primitive.differentiable and not primitive.is_constant_in_reverse_mode


def detached_alias(alias: Alias) -> Alias | None:
    """The nearest detached alias that `alias` is, or is a view of."""
    current: Alias | None = alias
    while current is not None and current.step is not None:
        if current.step.view.has_own_history:
            return current
        current = current.parent
    return None


def keep_history(
    view: View, part: Tracer, index: int, base: Tracer, *other_operands: Tracer
) -> Tracer:
    """The value of `base` after its view has the value `part`, which a detached alias hides from it."""
    if isinstance(view, Detach) and is_inexact(base.dtype):
        return WithValue()(base, part)
    return view.scatter_into_base(part, index, base, *other_operands)


class AnalyzeMemory(Rewrite[AnalyzedProgram]):
    """The analysis of a program with writes, for inputs with these strides."""

    strides: tuple[Strides | None, ...] = ()

    def __call__(self, program: Program) -> AnalyzedProgram:
        if not program.writes:
            return analyze_without_writes(program, self.strides)
        trace = MemoryTrace(program, self.strides)
        pure = trace_closed(
            trace.run, program.in_avals, name=program.name, in_names=program.in_names
        )
        return AnalyzedProgram(
            pure,
            tuple(trace.outputs),
            trace.writes,
            trace.roots,
            trace.forward_values,
            trace.functionalizer.layout_dependent,
            frozenset(trace.functionalizer.overwrites),
        )


class MemoryTrace:
    """The trace of a program without its writes, which finds the fields of `AnalyzedProgram`."""

    functionalizer: WriteTrackingFunctionalizer

    def __init__(self, program: Program, strides: Sequence[Strides | None]):
        self.program, self.strides = program, strides
        self.outputs: list[OutputMemory] = []
        self.writes: dict[int, InputWrites] = {}
        self.roots: dict[int, int] = {}
        self.forward_values: dict[int, int] = {}

    def run(self, *args: Tracer) -> list[Tracer]:
        """The outputs of the analyzed program."""
        strides = [*self.strides, *[None] * (len(args) - len(self.strides))]
        self.functionalizer = functionalizer = WriteTrackingFunctionalizer(
            self.program.inputs, args, strides
        )
        functionalizer.emit_all(self.program.equations)
        storages = {functionalizer.aliases[v].storage: i for i, v in enumerate(self.program.inputs)}
        results = [functionalizer.read(atom) for atom in self.program.outputs]
        inputs = list(storages.items())
        for storage, i in inputs:
            if storage.value.atom is not storage.initial_value.atom:
                self.writes[i] = functionalizer.writes[storage]
                results.append(storage.value)
        self.find_outputs(storages, len(args))
        values = {number: storage.value for storage, number in storages.items()}
        for memory in self.outputs:
            if memory.view and memory.storage >= len(args) and memory.storage not in self.roots:
                self.roots[memory.storage] = len(results)
                results.append(values[memory.storage])
        for storage, i in inputs:
            if i in self.writes and self.writes[i].in_forward and self.writes[i].in_backward:
                self.forward_values[i] = len(results)
                results.append(functionalizer.forward_values[storage])
        return results

    def find_outputs(self, storages: dict[Storage, int], num_inputs: int) -> None:
        """Finds the memory of each output; adds the storages that no input owns to `storages`."""
        for atom in self.program.outputs:
            number = num_inputs + len(self.outputs)
            view: tuple[ReplayableView, ...] = ()
            if type(atom) is not Literal:
                alias = self.functionalizer.aliases[atom]
                steps = view_steps(alias)
                if steps is not None:
                    number, view = storages.setdefault(alias.storage, number), steps
            self.outputs.append(OutputMemory(number, view))


def analyze_without_writes(program: Program, strides: Sequence[Strides | None]) -> AnalyzedProgram:
    """As `AnalyzeMemory`, for a program without writes: it stays as it is, without its copies."""
    count = len(program.inputs)
    storages: dict[Atom, int] = {v: i for i, v in enumerate(program.inputs)}
    strides_of = _known_strides(program, strides)
    outputs: list[OutputMemory] = []
    roots: dict[int, Atom] = {}
    for atom in program.outputs:
        number = count + len(outputs)
        view: tuple[ReplayableView, ...] = ()
        if type(atom) is Var:
            root, view = views_of(program, atom, strides_of)
            number = storages.setdefault(root, number)
            if view and number >= count:
                roots.setdefault(number, root)
        outputs.append(OutputMemory(number, view))
    results = [*program.outputs, *roots.values()]
    equations = program.equations
    if any([isinstance(eqn.primitive, CopiesOperand) for eqn in equations]):
        equations, results = elide_copies(equations, results)
    pure = program
    if roots or equations is not program.equations:
        pure = replace_program_fields(program, equations=equations, outputs=results)
    numbers = {number: len(program.outputs) + k for k, number in enumerate(roots)}
    return AnalyzedProgram(pure, tuple(outputs), {}, numbers, {}, False)


def _known_strides(
    program: Program, strides: Sequence[Strides | None]
) -> dict[Var, Strides | None]:
    """The strides of the values of a program whose inputs have `strides`; row-major ones may be missing."""
    known = dict(zip(program.inputs, strides, strict=False))
    if not any(known.values()) and not any(
        e.primitive.memory_order is MemoryOrder.REARRANGED for e in program.equations
    ):
        return known
    for eqn in program.equations:
        primitive, avals = eqn.primitive, [a.aval for a in eqn.inputs]
        operands = [
            (known.get(a) if type(a) is Var else None) or row_major_strides(a.aval.shape)
            for a in eqn.inputs
        ]
        found = None
        if isinstance(primitive, View):
            found = primitive.view_strides(avals[0], operands[0])
        elif primitive.memory_order is not MemoryOrder.ROW_MAJOR:
            found = result_strides(primitive, avals, operands, eqn.outputs[0].aval.shape)
        known.update(dict.fromkeys(eqn.outputs, found))
    return known


def views_of(
    program: Program, atom: Var, strides_of: dict[Var, Strides | None]
) -> tuple[Var, tuple[ReplayableView, ...]]:
    """The array that `atom` is a view of, and the views that lead from there to it.

    An array behind a view with computed operands is one of its own.
    """
    chain: list[tuple[Equation, int]] = []
    root: Atom = atom
    producers = program.def_use.producers
    while (
        (eqn := producers.get(root)) is not None
        and isinstance(eqn.primitive, View)
        and type(eqn.inputs[0]) is Var
    ):
        chain.append((eqn, eqn.outputs.index(root)))  # type: ignore[arg-type]
        root = eqn.inputs[0]
    assert type(root) is Var
    strides = strides_of.get(root) or row_major_strides(root.aval.shape)
    steps: list[ReplayableView] = []
    for eqn, index in reversed(chain):
        view, (base, *others) = eqn.primitive, eqn.inputs
        assert isinstance(view, View)
        shared = view.view_strides(base.aval, strides)
        literals = tuple([a for a in others if type(a) is Literal])
        if shared is None or len(literals) < len(others):
            root, steps = eqn.outputs[index], []
            strides = row_major_strides(root.aval.shape)
        else:
            strides = shared
            steps.append(ReplayableView(view, literals, index))
    return root, tuple(steps)


def view_steps(alias: Alias) -> tuple[ReplayableView, ...] | None:
    """The views that lead from the storage to `alias`; None if one of them has computed operands."""
    steps: list[ReplayableView] = []
    while alias.step is not None:
        view, _, others, output = alias.step
        atoms = [x.atom for x in others]
        literals = tuple([a for a in atoms if type(a) is Literal])
        if len(literals) < len(atoms):
            return None
        steps.append(ReplayableView(view, literals, output))
        assert alias.parent is not None
        alias = alias.parent
    return tuple(reversed(steps))
