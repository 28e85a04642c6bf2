"""Functionalization: rewrites programs with in-place writes and views into programs without writes.

Also finds the memory of traced arrays: strides, the base of a view, and which reshapes are views.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from functx.core.context import ContextValue
from functx.core.effects import Effect
from functx.core.errors import ImmutableArrayError, type_name
from functx.core.primitive import CopiesOperand, Primitive, View
from functx.core.program import Atom, Equation, Program, Var, dce_equations
from functx.core.rewriting import Rewrite, bind_equation, cached_rewrite
from functx.core.tracer import (
    Tracer,
    as_numpy_array,
    check_gradient_kept,
    current_builder,
    is_variable,
)
from functx.core.tracing import Builder, run_and_finish, trace_closed, with_parents
from functx.core.types import ShapedArray
from functx.core.typing import ArrayLike, NumPyArray, Value

Strides = tuple[int, ...]
"""The distance in elements between neighbours along each dimension."""


def row_major_strides(shape: Sequence[int]) -> Strides:
    """The strides of an array of `shape` in row-major order."""
    return _row_major_strides(tuple(shape))


@lru_cache(4096)
def _row_major_strides(shape: tuple[int, ...]) -> Strides:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def is_row_major(shape: Sequence[int], strides: Strides) -> bool:
    """Whether the elements of an array are contiguous in row-major order."""
    if 0 in shape:
        return True
    steps = zip(shape, strides, row_major_strides(shape), strict=True)
    return all(n == 1 or step == row_major for n, step, row_major in steps)


def differ_by_unit_dims(shape: Sequence[int], new: Sequence[int]) -> bool:
    """Whether two shapes differ only by dimensions of length 1; such a reshape is always a view."""
    return [n for n in shape if n != 1] == [n for n in new if n != 1]


def reshape_strides(shape: Sequence[int], strides: Strides, new: Sequence[int]) -> Strides | None:
    """The strides of an array of `shape` and `strides` reshaped to `new`; None if it must be copied.

    Dimensions of length 1 are ignored. All others are matched in groups of the same size; the old
    dimensions of a group must be contiguous with each other.
    """
    if 0 in shape:
        return row_major_strides(new)
    old = [(n, step) for n, step in zip(shape, strides, strict=True) if n != 1]
    new_strides: list[int] = []
    i = j = 0
    while i < len(old):
        rows, columns, before, after = i + 1, j + 1, old[i][0], new[j]
        while before != after:
            if before < after:
                before, rows = before * old[rows][0], rows + 1
            else:
                after, columns = after * new[columns], columns + 1
        group = old[i:rows]
        if any(s != n * t for (_, s), (n, t) in pairwise(group)):
            return None
        new_strides += [group[-1][1] * n for n in row_major_strides(new[j:columns])]
        i, j = rows, columns
    return (*new_strides, *[1] * (len(new) - len(new_strides)))


def result_strides(
    primitive: Primitive,
    avals: Sequence[ShapedArray],
    strides: Sequence[Strides],
    shape: tuple[int, ...],
) -> Strides:
    """The strides of outputs of `shape`, in memory of their own, for operands with `strides`.

    They have the memory order of the operands if the operation `keeps_memory_order`.
    """
    row_major = _row_major_strides(shape)
    if len(shape) < 2 or 0 in shape:
        return row_major
    if not primitive.reorders_memory and all(
        [s == _row_major_strides(x.shape) for x, s in zip(avals, strides, strict=True)]
    ):
        return row_major
    along = [
        [None if step is None else abs(step) for step in each]
        for each in primitive.strides_along_output(avals, strides)
    ]
    if not primitive.copies_operands:
        along = [[step or None for step in each] for each in along]
    return _strides_in_order(shape, along, not primitive.copies_operands) or row_major


def _strides_in_order(
    shape: tuple[int, ...], operands: Sequence[Sequence[int | None]], from_last: bool
) -> Strides | None:
    """The strides of an array that NumPy allocates in the memory order of `operands`.

    An axis goes outside of another if it has the longer stride in all operands that have both. A
    stride is None where it decides nothing; then it matters if axes are placed `from_last` to first.
    None for row-major order.
    """

    def goes_outside(d: int, other: int) -> bool | None:
        steps = [(s[d], s[other]) for s in operands if None not in (s[d], s[other])]
        return all([a > b for a, b in steps]) if steps else None  # type: ignore[operator]

    # From the innermost axis to the outermost if `from_last`, else the other way.
    axes: list[int] = []
    dims = [d for d, n in enumerate(shape) if n != 1]
    for d in reversed(dims) if from_last else dims:
        place = len(axes)
        for i in reversed(range(len(axes))):
            swaps = goes_outside(axes[i], d) if from_last else goes_outside(d, axes[i])
            if swaps:
                place = i
            elif swaps is not None:
                break
        axes.insert(place, d)
    outwards = axes if from_last else axes[::-1]
    if outwards == dims[::-1]:
        return None
    strides, step = [1] * len(shape), 1
    for d in outwards:
        strides[d], step = step, step * shape[d]
    return tuple(strides)


def in_memory_order(x: NumPyArray, strides: Strides | None) -> NumPyArray:
    """A NumPy array in row-major order as one of the same class with `strides`, in elements.

    It is the array itself if they are row-major, or None.
    """
    if strides is None or is_row_major(x.shape, strides):
        return x
    axes = sorted(range(x.ndim), key=lambda d: -abs(strides[d]))
    return np.ndarray.copy(x.transpose(axes)).transpose(np.argsort(axes))


_NO_HISTORIES: Mapping[int, Any] = MappingProxyType({})


class Storage:
    """The storage that aliases share: its current value, and cached values of its views.

    `histories` has the last value written to each view with a history of its own.
    """

    __slots__ = ("cached_views", "histories", "initial_value", "value", "view_chains")

    def __init__(self, value: Tracer):
        self.initial_value = self.value = value
        # Made for the first view, since most storages have none.
        self.cached_views: dict[int, Tracer] | None = None
        self.view_chains: dict[tuple[int, Hashable], int] | None = None
        self.histories: Mapping[int, Tracer] = _NO_HISTORIES


class ViewStep(NamedTuple):
    """One step of a chain of views: output `output` of `view` in `eqn`, with these other operands."""

    view: View
    eqn: Equation
    other_operands: tuple[Tracer, ...]
    output: int

    @property
    def key(self) -> Hashable:
        if self.view.has_own_history:
            return self.eqn.outputs[self.output]
        return self.view, tuple([x.atom for x in self.other_operands]), self.output


def scatter_into_base(
    view: View, part: Tracer, index: int, base: Tracer, *other_operands: Tracer
) -> Tracer:
    """The value of `base` after its view has the value `part`."""
    return view.scatter_into_base(part, index, base, *other_operands)


class Alias:
    """An array as a chain of views of a storage: the last step, and the alias that it is a view of."""

    __slots__ = ("key", "parent", "step", "storage", "strides")

    def __init__(self, storage: Storage, strides: Strides):
        self.storage, self.strides = storage, strides
        self.parent: Alias | None = None
        self.step: ViewStep | None = None
        self.key = 0

    def add_view(self, step: ViewStep, strides: Strides) -> Alias:
        """The alias for the view `step` of this alias."""
        alias = Alias(self.storage, strides)
        alias.parent, alias.step = self, step
        # Equal chains of views have equal keys.
        chains = self.storage.view_chains
        if chains is None:
            chains = self.storage.view_chains = {}
        alias.key = chains.setdefault((self.key, step.key), len(chains) + 1)
        return alias

    def read(self) -> Tracer:
        """The current value."""
        if self.step is None:
            return self.storage.value
        cached_views = self.storage.cached_views
        if cached_views is None:
            cached_views = self.storage.cached_views = {}
        stale: list[Alias] = []
        alias = self
        while alias.step is not None and alias.key not in cached_views:
            stale.append(alias)
            alias = alias.parent  # type: ignore[assignment]
        value = self.storage.value if alias.step is None else cached_views[alias.key]
        for alias in reversed(stale):
            view, eqn, other_operands, index = alias.step  # type: ignore[misc]
            value = bind_equation(eqn, value, *other_operands)[index]
            if view.has_own_history and alias.key in self.storage.histories:
                before = self.storage.histories[alias.key]
                value = view.with_history(before, value)  # type: ignore[assignment]
            cached_views[alias.key] = value
        return value

    def write(self, value: Tracer, scatter: Callable[..., Tracer] = scatter_into_base) -> None:
        """Write `value` to the storage, such that all aliases see it.

        `scatter` puts the new value of a view into its base.
        """
        if value.atom is self.read().atom:
            return
        cached_views: dict[int, Tracer] = {}
        alias = self
        while alias.step is not None:
            cached_views[alias.key] = value
            view, _, other_operands, index = alias.step
            if view.has_own_history:
                self.storage.histories = {**self.storage.histories, alias.key: value}
            alias = alias.parent  # type: ignore[assignment]
            value = scatter(view, value, index, alias.read(), *other_operands)
        self.storage.value, self.storage.cached_views = value, cached_views


class Functionalizer:
    """Emits the equations of a program without writes into the current builder."""

    def __init__(
        self, inputs: Sequence[Var], values: Sequence[Tracer], layouts: Sequence[Strides | None]
    ):
        self.aliases: dict[Var, Alias] = {}
        for v, x, strides in zip(inputs, values, layouts, strict=True):
            self.new_storage(v, x, strides)
        # The storages whose layout depends on that of an input.
        self.input_dependent = {alias.storage for alias in self.aliases.values()}
        self.layout_dependent = False

    def new_storage(self, var: Var, value: Tracer, strides: Strides | None = None) -> None:
        """Give `var` a new storage with these strides, by default in row-major order."""
        self.aliases[var] = Alias(Storage(value), strides or row_major_strides(value.shape))

    def read(self, atom: Atom) -> Tracer:
        """The current value of a variable, or that of a literal."""
        if type(atom) is Var:
            return self.aliases[atom].read()
        return Tracer(atom, current_builder.require())

    def emit(self, eqn: Equation) -> None:
        """Emit `eqn`: copies and views become aliases, writes update storages."""
        primitive = eqn.primitive
        if isinstance(primitive, CopiesOperand):
            self.new_results(eqn, [self.read(eqn.inputs[0])])
            return
        if primitive.effects and Effect.WRITE in primitive.effects:
            self.write(eqn, self.aliases[eqn.inputs[0]], self.read(eqn.inputs[1]))  # type: ignore[index]
            return
        if isinstance(primitive, View) and type(eqn.inputs[0]) is Var:
            base = self.aliases[eqn.inputs[0]]
            if primitive.layout_dependent and base.storage in self.input_dependent:
                new = eqn.outputs[0].aval.shape
                self.layout_dependent |= not differ_by_unit_dims(eqn.inputs[0].aval.shape, new)
            strides = primitive.view_strides(eqn.inputs[0].aval, base.strides)
            if strides is not None:
                other_operands = tuple([self.read(a) for a in eqn.inputs[1:]])
                for i, v in enumerate(eqn.outputs):
                    self.aliases[v] = base.add_view(
                        ViewStep(primitive, eqn, other_operands, i), strides
                    )
                return
        outs = current_builder.require().copy_equation(eqn, [self.read(a) for a in eqn.inputs])
        self.new_results(eqn, outs)

    def new_results(self, eqn: Equation, values: Sequence[Tracer]) -> None:
        """Give the outputs of `eqn` new storages, with the memory order that NumPy gives them."""
        if not eqn.primitive.keeps_memory_order:
            for v, value in zip(eqn.outputs, values, strict=True):
                self.new_storage(v, value, eqn.primitive.captured_strides)
            return
        aliases = [self.aliases[a] if type(a) is Var else None for a in eqn.inputs]
        strides = result_strides(
            eqn.primitive,
            [a.aval for a in eqn.inputs],
            [() if a is None else a.strides for a in aliases],
            eqn.outputs[0].aval.shape,
        )
        depends = any(
            [a is not None and a.strides and a.storage in self.input_dependent for a in aliases]
        )
        for v, value in zip(eqn.outputs, values, strict=True):
            self.new_storage(v, value, strides)
            if depends and len(strides) > 1:
                self.input_dependent.add(self.aliases[v].storage)

    def write(self, eqn: Equation, target: Alias, value: Tracer) -> None:
        """Write `value` to `target`, as the equation `eqn` does."""
        target.write(value)

    def emit_all(self, equations: Sequence[Equation]) -> None:
        """Emit `equations`, each with its source."""
        builder = current_builder.require()
        outer = builder.source
        for eqn in equations:
            builder.source = eqn.source
            self.emit(eqn)
        builder.source = outer


class MemoryLocation(NamedTuple):
    """The memory of a traced array: that of `base`, from the byte `byte_offset`, with `strides`.

    `byte_offset` is None if a traced value determines it.
    """

    base: Atom
    byte_offset: int | None
    strides: Strides


def memory_location(builder: Builder, atom: Atom) -> MemoryLocation:
    """The memory of a traced array; cached in `builder.memory`."""
    pending = [(builder, atom)]
    while pending:
        owner, each = pending[-1]
        if each not in owner.memory:
            eqn = owner.defining_equation(each)
            sources = _layout_sources(owner, each, eqn)
            missing = [(b, a) for b, a in sources if a not in b.memory]
            if missing:
                pending += missing
                continue
            found = [b.memory[a] for b, a in sources]
            owner.memory[each] = _location_from(owner, each, eqn, found)
        pending.pop()
    return builder.memory[atom]  # type: ignore[no-any-return]


def _layout_sources(
    builder: Builder, atom: Atom, eqn: Equation | None, *, exact: bool = False
) -> Sequence[tuple[Builder, Atom]]:
    """The arrays whose memory determines that of `atom`, the output of `eqn`, which is None for inputs.

    Unless `exact`, results that surely lie in row-major order have none.
    """
    if eqn is None:
        outer = builder.captured_value(atom)
        return [(outer.builder, outer.atom)] if type(outer) is Tracer else ()
    if isinstance(eqn.primitive, View) and type(eqn.inputs[0]) is Var:
        return [(builder, eqn.inputs[0])]
    keeps_order = eqn.primitive.keeps_memory_order and atom.aval.ndim > 1
    if keeps_order and (exact or not builder.has_row_major_results()):
        return [(builder, a) for a in eqn.inputs]
    return ()


def _location_from(
    builder: Builder, atom: Atom, eqn: Equation | None, sources: Sequence[MemoryLocation]
) -> MemoryLocation:
    """The memory of `atom`, the output of `eqn`, for that of its `_layout_sources`."""
    if eqn is None:
        if sources:
            return sources[0]
        captured = builder.captured_value(atom)
        strides = builder.layouts.get(atom) or (
            noncontiguous_strides(captured) if isinstance(captured, np.ndarray) else None
        )
        return MemoryLocation(atom, 0, strides or row_major_strides(atom.aval.shape))
    if not sources:
        strides = eqn.primitive.captured_strides or row_major_strides(atom.aval.shape)
        return MemoryLocation(atom, 0, strides)
    if isinstance(eqn.primitive, View):
        return view_location(sources[0], eqn, eqn.outputs.index(atom))  # type: ignore[arg-type]
    avals = [a.aval for a in eqn.inputs]
    strides_of_operands = [memory.strides for memory in sources]
    return MemoryLocation(
        atom, 0, result_strides(eqn.primitive, avals, strides_of_operands, atom.aval.shape)
    )


def layout_owners(*arrays: Tracer) -> set[Builder]:
    """The builders with inputs whose layout determines that of one of `arrays`."""
    owners: set[Builder] = set()
    pending = [(x.builder, x.atom) for x in arrays]
    seen = {*pending}
    while pending:
        builder, atom = pending.pop()
        eqn = builder.defining_equation(atom)
        sources = [
            (b, a) for b, a in _layout_sources(builder, atom, eqn, exact=True) if type(a) is Var
        ]
        if eqn is None and not sources:
            owners.add(builder)
        pending += [(b, a) for b, a in sources if a.aval.shape and (b, a) not in seen]
        seen.update(sources)
    return owners


def view_location(memory: MemoryLocation, eqn: Equation, index: int) -> MemoryLocation:
    """The memory of output `index` of the view `eqn`, whose first operand has the memory `memory`."""
    x, out, view = eqn.inputs[0], eqn.outputs[index], eqn.primitive
    assert isinstance(view, View)
    strides = view.view_strides(x.aval, memory.strides)
    if strides is None:
        return MemoryLocation(out, 0, row_major_strides(out.aval.shape))
    step = view.view_offset(x.aval, memory.strides, index)
    if memory.byte_offset is None or step is None:
        return MemoryLocation(memory.base, None, strides)
    return MemoryLocation(memory.base, memory.byte_offset + step * out.aval.dtype.itemsize, strides)


def strides_of(builder: Builder, atom: Atom) -> Strides:
    """The strides of a traced array."""
    return memory_location(builder, atom).strides


def is_contiguous(x: ArrayLike) -> bool:
    """Whether an array is contiguous in row-major order."""
    if is_variable(x):
        return is_row_major(x.shape, x.strides_())  # type: ignore[union-attr]
    if type(x) is not Tracer:
        return not isinstance(x, np.ndarray) or x.flags.c_contiguous
    record_layout_dependence(x)
    return is_row_major(x.shape, strides_of(x.builder, x.atom))


def record_layout_dependence(x: ArrayLike, writes: bool = False) -> None:
    """Record that the trace depends on the memory layout of `x`, if that depends on an input.

    The layout matters only if the program has writes; `writes` says that it has.
    """
    if type(x) is Tracer:
        builders = {*with_parents(x.builder)}
        if (current := current_builder.innermost()) is not None:
            builders.update(with_parents(current))
        for builder in builders:
            builder.layout_reads.append(x)
        if writes:
            mark_layout_owners(x)


def mark_layout_owners(*arrays: Tracer) -> None:
    """Record that programs whose inputs determine layouts of `arrays` depend on them, as writes do."""
    for builder in layout_owners(*arrays):
        builder.writes = True


def depends_on_layouts(builder: Builder) -> bool:
    """Whether a program with writes depends on the memory layout of its inputs."""
    return builder.writes and builder in layout_owners(*builder.layout_reads)


def noncontiguous_strides(x: ArrayLike) -> Strides | None:
    """The strides of an array in elements; None for row-major order."""
    if type(x) is Tracer:
        strides = strides_of(x.builder, x.atom)
        return None if is_row_major(x.shape, strides) else strides
    if not isinstance(x, np.ndarray) or x.flags.c_contiguous:
        return None
    return tuple([step // x.itemsize for step in x.strides])


def storage_base(x: Tracer) -> Tracer:
    """The traced array that owns the memory of `x`: `x` itself, or the base of the view."""
    while True:
        position = x.builder.producer(x.atom)
        if position is None:
            outer = x.builder.captured_value(x.atom)
            if type(outer) is not Tracer:
                return x
            x = outer
            continue
        base = view_base(x.builder, x.builder.equations[position])
        if base is None:
            return x
        x = Tracer(base, x.builder)


def is_computed(x: Tracer) -> bool:
    """Whether a traced array is computed in its program: neither an input nor a view."""
    if type(x.atom) is not Var:
        return True
    position = x.builder.producer(x.atom)
    return position is not None and not isinstance(x.builder.equations[position].primitive, View)


def view_base(builder: Builder, eqn: Equation) -> Atom | None:
    """The base that the outputs of an equation are views of; None if they have memory of their own."""
    view = eqn.primitive
    if not isinstance(view, View) or type(base := eqn.inputs[0]) is not Var:
        return None
    copied = view.view_strides(base.aval, strides_of(builder, base)) is None
    return None if copied else base


class FunctionalizedProgram(NamedTuple):
    """A program without writes, whose last outputs are the new values of the inputs at `written`.

    If `layout_dependent`, it is valid only for inputs of the layouts that it was made for.
    """

    program: Program
    written: tuple[int, ...]
    layout_dependent: bool


class Functionalize(Rewrite[FunctionalizedProgram]):
    """Rewrites a program into one without writes, for inputs with the strides `layouts`.

    An entry None, or a missing one, stands for row-major order.
    """

    layouts: tuple[Strides | None, ...] = ()

    def __call__(self, program: Program) -> FunctionalizedProgram:
        written: list[int] = []
        layout_dependent = False

        def body(*args: Tracer) -> list[Tracer]:
            nonlocal layout_dependent
            layouts = [*self.layouts, *[None] * (len(args) - len(self.layouts))]
            functionalizer = Functionalizer(program.inputs, args, layouts)
            functionalizer.emit_all(program.equations)
            outs = [functionalizer.read(atom) for atom in program.outputs]
            storages = [functionalizer.aliases[v].storage for v in program.inputs]
            layout_dependent = functionalizer.layout_dependent
            written.extend(
                i for i, s in enumerate(storages) if s.value.atom is not s.initial_value.atom
            )
            return outs + [storages[i].value for i in written]

        result = trace_closed(body, program.in_avals, name=program.name, in_names=program.in_names)
        return FunctionalizedProgram(result, tuple(written), layout_dependent)


def write_to_numpy_arrays(args: Sequence[Any], new: dict[int, Value]) -> None:
    """Write `new[i]` to `args[i]` for each NumPy array `args[i]`.

    Raises ImmutableArrayError, before it writes to any, if one of them is read-only.
    """
    arrays = {i: args[i] for i in new if isinstance(args[i], np.ndarray)}
    for x in arrays.values():
        if not x.flags.writeable:
            raise ImmutableArrayError(
                "an argument that the function writes to must be writable; got a read-only array, "
                f"{type_name(x)}",
                fix="Pass a copy of it.",
            )
    for i in arrays:
        check_gradient_kept(new[i], "a write to an argument")
    for i, array in arrays.items():
        x, value = as_numpy_array(array), np.asarray(new[i])
        if value.dtype == x.dtype:
            x[...] = value
            continue
        # The new values have a narrower dtype (32-bit mode): elements without a write stay exact.
        before = x.astype(value.dtype)
        written = (value != before) & ((value == value) | (before == before))
        np.copyto(x, value, casting="unsafe", where=written)


def input_layouts(builder: Builder, program: Program) -> tuple[Strides | None, ...]:
    """The `layouts` to functionalize `program` for, which `builder` finished."""
    return tuple([noncontiguous_strides(Tracer(v, builder)) for v in program.inputs])


def build_functionalized(
    builder: Builder, fun: Callable[..., Sequence[Any]], tracers: Sequence[Tracer]
) -> tuple[Program, list[Any]]:
    """As `run_and_finish`, functionalized; new values of arguments that `fun` writes to are dropped."""
    program, captured = run_and_finish(builder, fun, tracers)
    if builder.writes:
        count = len(program.outputs)
        pure = cached_rewrite(Functionalize(input_layouts(builder, program)), program).program
        program = Program(
            pure.name,
            pure.inputs,
            dce_equations(pure.equations, pure.outputs[:count]),
            pure.outputs[:count],
            in_names=pure.in_names,
        )
    return program, captured


def functionalized_atom(builder: Builder, atom: Atom) -> tuple[Builder, Atom]:
    """The current value of `atom`, as an atom of a builder that has the same values and no writes."""
    if not builder.writes:
        return builder, atom
    if builder.functionalizer is None:
        builder.functionalizer = IncrementalFunctionalizer(builder)
    return builder.functionalizer.atom(atom)  # type: ignore[no-any-return]


class IncrementalFunctionalizer:
    """Functionalizes the equations of an open builder as they are appended."""

    def __init__(self, builder: Builder):
        self.builder = builder
        self.copy = builder.with_same_inputs()
        self.functionalizer = Functionalizer([], [], [])
        self.emitted_count = 0

    def atom(self, atom: Atom) -> tuple[Builder, Atom]:
        """The builder without writes, and the atom in it for the current value of `atom`."""
        builder, functionalizer = self.builder, self.functionalizer
        for v in [*builder.inputs, *[v for v, _ in builder.captures.values()]]:
            if v not in functionalizer.aliases:
                functionalizer.new_storage(v, Tracer(v, self.copy), strides_of(builder, v))
        with ContextValue(current_builder, self.copy):
            new_equations = builder.equations[self.emitted_count :]
            self.emitted_count += len(new_equations)
            functionalizer.emit_all(new_equations)
            return self.copy, functionalizer.read(atom).atom


def elide_copies(
    equations: Sequence[Equation], outputs: Sequence[Atom]
) -> tuple[list[Equation], list[Atom]]:
    """The equations and outputs without copies, which a program without writes does not need."""
    originals: dict[Atom, Atom] = {}
    remaining = []
    for eqn in equations:
        if isinstance(eqn.primitive, CopiesOperand):
            originals[eqn.outputs[0]] = originals.get(eqn.inputs[0], eqn.inputs[0])
        else:
            remaining.append(eqn.with_substitutes(originals))
    return remaining, [originals.get(a, a) for a in outputs]
