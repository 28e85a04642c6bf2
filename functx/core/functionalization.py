"""How arrays lie in memory, as NumPy sees it: which reshapes are views and which are copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from functx.core.builder import Builder
from functx.core.errors import ImmutableArrayError, type_name
from functx.core.ndarray import as_numpy_array
from functx.core.program import Atom, Effect, Equation, Program, Var, dce_equations
from functx.core.records import Rewrite
from functx.core.rewriting import bind_equation, cached_rewrite
from functx.core.tracer import Tracer, current_builder
from functx.core.tracing import run_and_finish, trace_closed

Strides = tuple[int, ...]
"""For each dimension, by how many elements its neighbours lie apart."""


def row_major_strides(shape: Sequence[int]) -> Strides:
    """The strides of an array of `shape` in row-major order."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def is_row_major(shape: Sequence[int], strides: Strides) -> bool:
    """Whether the elements of an array lie side by side in row-major order."""
    if 0 in shape:
        return True
    steps = zip(shape, strides, row_major_strides(shape), strict=True)
    return all(n == 1 or step == wanted for n, step, wanted in steps)


def differ_by_unit_dims(shape: Sequence[int], new: Sequence[int]) -> bool:
    """Whether two shapes differ by dimensions of length 1 alone, which any strides allow for."""
    return [n for n in shape if n != 1] == [n for n in new if n != 1]


def reshape_strides(shape: Sequence[int], strides: Strides, new: Sequence[int]) -> Strides | None:
    """The strides of an array of `shape` and `strides` reshaped to `new`; None if it must be copied.

    Dimensions of length 1 do not matter. The others are matched in groups of one product; within
    a group of several old dimensions, each must lie in the next as in one run.
    """
    if 0 in shape:
        return row_major_strides(new)
    old = [(n, step) for n, step in zip(shape, strides, strict=True) if n != 1]
    found: list[int] = []
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
        found += [group[-1][1] * n for n in row_major_strides(new[j:columns])]
        i, j = rows, columns
    return (*found, *[1] * (len(new) - len(found)))


class Storage:
    """What aliases share: its value now, and what each alias that was read shows of that."""

    __slots__ = ("cached_views", "initial_value", "value", "view_chains")

    def __init__(self, value: Tracer):
        self.initial_value = self.value = value
        self.cached_views: dict[int, Tracer] = {}
        self.view_chains: dict[Any, int] = {}


class ViewStep(NamedTuple):
    """Output number `output` of the view `eqn`, whose other operands are `others`."""

    eqn: Equation
    other_operands: tuple[Tracer, ...]
    output: int

    @property
    def key(self) -> Any:
        return self.eqn.primitive, tuple([x.atom for x in self.other_operands]), self.output


class Alias:
    """An array that is seen through a chain of views: the last of them, and what it is a view of."""

    __slots__ = ("key", "parent", "step", "storage", "strides")

    def __init__(self, storage: Storage, strides: Strides):
        self.storage, self.strides = storage, strides
        self.parent: Alias | None = None
        self.step: ViewStep | None = None
        self.key = 0

    def add_view(self, step: ViewStep, strides: Strides) -> Alias:
        """What `step` shows of this alias."""
        alias = Alias(self.storage, strides)
        alias.parent, alias.step = self, step
        # Equal chains of views have one number.
        chains = self.storage.view_chains
        alias.key = chains.setdefault((self.key, step.key), len(chains) + 1)
        return alias

    def read(self) -> Tracer:
        """The value now."""
        shown = self.storage.cached_views
        stale: list[Alias] = []
        alias = self
        while alias.step is not None and alias.key not in shown:
            stale.append(alias)
            alias = alias.parent  # type: ignore[assignment]
        value = self.storage.value if alias.step is None else shown[alias.key]
        for alias in reversed(stale):
            eqn, others, index = alias.step  # type: ignore[misc]
            value = shown[alias.key] = bind_equation(eqn, value, *others)[index]
        return value

    def write(self, value: Tracer) -> None:
        """Let `value` be the value from now on, seen by all that share the storage."""
        if value.atom is self.read().atom:
            return
        shown: dict[int, Tracer] = {}
        alias = self
        while alias.step is not None:
            shown[alias.key] = value
            eqn, others, index = alias.step
            alias = alias.parent  # type: ignore[assignment]
            value = eqn.primitive.scatter_into_base(value, index, alias.read(), *others)
        self.storage.value, self.storage.cached_views = value, shown


class Functionalizer:
    """A program told again without writes, equation by equation, in the builder at work."""

    def __init__(
        self, inputs: Sequence[Var], values: Sequence[Tracer], layouts: Sequence[Strides | None]
    ):
        self.aliases: dict[Var, Alias] = {}
        for v, x, strides in zip(inputs, values, layouts, strict=True):
            self.new_storage(v, x, strides)
        self.input_storages = {alias.storage for alias in self.aliases.values()}
        self.layout_dependent = False

    def new_storage(self, var: Var, value: Tracer, strides: Strides | None = None) -> None:
        """Let `var` stand for an array with a storage of its own, in row-major order by default."""
        self.aliases[var] = Alias(Storage(value), strides or row_major_strides(value.shape))

    def read(self, atom: Atom) -> Tracer:
        """The value of a variable now, or of a literal."""
        if type(atom) is Var:
            return self.aliases[atom].read()
        builder = current_builder.require()
        return Tracer(atom, builder)

    def emit(self, eqn: Equation) -> None:
        """Append what `eqn` means."""
        primitive = eqn.primitive
        if primitive.is_copy:
            self.new_storage(eqn.outputs[0], self.read(eqn.inputs[0]))
            return
        if Effect.WRITE in primitive.effects:
            target, value = eqn.inputs
            self.aliases[target].write(self.read(value))  # type: ignore[index]
            return
        if primitive.view and type(eqn.inputs[0]) is Var:
            base = self.aliases[eqn.inputs[0]]
            if primitive.layout_dependent and base.storage in self.input_storages:
                new = eqn.outputs[0].aval.shape
                self.layout_dependent |= not differ_by_unit_dims(eqn.inputs[0].aval.shape, new)
            strides = primitive.view_strides(eqn.inputs[0].aval, base.strides)
            if strides is not None:
                others = tuple([self.read(a) for a in eqn.inputs[1:]])
                for i, v in enumerate(eqn.outputs):
                    self.aliases[v] = base.add_view(ViewStep(eqn, others, i), strides)
                return
        outs = bind_equation(eqn, *[self.read(a) for a in eqn.inputs])
        for v, out in zip(eqn.outputs, outs, strict=True):
            self.new_storage(v, out)

    def emit_all(self, equations: Sequence[Equation]) -> None:
        """Append what each of `equations` means, with the line that it came from."""
        builder = current_builder.require()
        outer = builder.source
        for eqn in equations:
            builder.source = eqn.source
            self.emit(eqn)
        builder.source = outer


class MemoryLocation(NamedTuple):
    """Where an array that is traced lies: in that of `root`, from the byte `start` on.

    `start` is None where it is not known while tracing.
    """

    base: Atom
    byte_offset: int | None
    strides: Strides


def memory_location(builder: Builder, atom: Atom) -> MemoryLocation:
    """Where an array that is traced lies, and with which strides."""
    pending: list[tuple[Builder, Atom, Equation | None]] = []
    while atom not in builder.memory:
        position = builder.producer(atom)
        if position is not None:
            eqn = builder.equations[position]
            if eqn.primitive.view and type(eqn.inputs[0]) is Var:
                pending.append((builder, atom, eqn))
                atom = eqn.inputs[0]
                continue
        outer = builder.captured_value(atom) if position is None else None
        if type(outer) is Tracer:
            pending.append((builder, atom, None))
            builder, atom = outer.builder, outer.atom
            continue
        strides = builder.layouts.get(atom) or row_major_strides(atom.aval.shape)
        builder.memory[atom] = MemoryLocation(atom, 0, strides)
    memory = builder.memory[atom]
    for builder, atom, view in reversed(pending):
        if view is not None:
            memory = view_location(memory, view, view.outputs.index(atom))  # type: ignore[arg-type]
        builder.memory[atom] = memory
    return memory


def view_location(memory: MemoryLocation, eqn: Equation, index: int) -> MemoryLocation:
    """Where output `index` of a view lies, the first operand of which lies in `memory`."""
    x, out = eqn.inputs[0], eqn.outputs[index]
    strides = eqn.primitive.view_strides(x.aval, memory.strides)
    if strides is None:
        return MemoryLocation(out, 0, row_major_strides(out.aval.shape))
    step = eqn.primitive.view_offset(x.aval, memory.strides, index)
    if memory.byte_offset is None or step is None:
        return MemoryLocation(memory.base, None, strides)
    return MemoryLocation(memory.base, memory.byte_offset + step * out.aval.dtype.itemsize, strides)


def strides_of(builder: Builder, atom: Atom) -> Strides:
    """How an array that is traced lies in memory."""
    return memory_location(builder, atom).strides


def is_contiguous(x: Any) -> bool:
    """Whether the elements of an array lie side by side, in row-major order."""
    if type(x) is not Tracer:
        return not isinstance(x, np.ndarray) or x.flags.c_contiguous
    record_layout_dependence(x)
    return is_row_major(x.shape, strides_of(x.builder, x.atom))


def record_layout_dependence(x: Any, writes: bool = False) -> None:
    """Note that a function depends on how an array lies in memory, if that is an argument of it.

    It does so only if something is written, by itself or by one that it calls.
    """
    if type(x) is Tracer:
        root = storage_base(x)
        if root.builder.producer(root.atom) is None:
            root.builder.layout_dependent = True
            root.builder.writes |= writes


def noncontiguous_strides(x: Any) -> Strides | None:
    """The strides of an array, in elements; None if they are those of row-major order."""
    if type(x) is Tracer:
        strides = strides_of(x.builder, x.atom)
        return None if is_row_major(x.shape, strides) else strides
    if not isinstance(x, np.ndarray) or x.flags.c_contiguous:
        return None
    return tuple([step // x.itemsize for step in x.strides])


def storage_base(x: Tracer) -> Tracer:
    """What owns the memory of an array that is traced: itself, or what it is a view of."""
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
    """Whether an array that is traced, or number, is no argument, none from around, and no view."""
    if type(x.atom) is not Var:
        return True
    position = x.builder.producer(x.atom)
    return position is not None and not x.builder.equations[position].primitive.view


def view_base(builder: Builder, eqn: Equation) -> Atom | None:
    """What the outputs of an equation are views of; None if they have memory of their own."""
    if not eqn.primitive.view or type(base := eqn.inputs[0]) is not Var:
        return None
    copied = eqn.primitive.view_strides(base.aval, strides_of(builder, base)) is None
    return None if copied else base


class FunctionalizedProgram(NamedTuple):
    """A pure program, whose outputs are followed by new values of the inputs at `written`.

    `layout_dependent` says that it is right only for inputs that lie as was said.
    """

    program: Program
    written: tuple[int, ...]
    layout_dependent: bool


class Functionalize(Rewrite[FunctionalizedProgram]):
    """The rewrite to a pure program, for inputs with strides of `layouts`.

    None there, and where there are no more, stands for row-major order.
    """

    layouts: tuple[Strides | None, ...] = ()

    def __call__(self, program: Program) -> FunctionalizedProgram:
        written: list[int] = []
        by_layout = False

        def body(*args: Tracer) -> list[Tracer]:
            nonlocal by_layout
            layouts = [*self.layouts, *[None] * (len(args) - len(self.layouts))]
            pure = Functionalizer(program.inputs, args, layouts)
            pure.emit_all(program.equations)
            outs = [pure.read(atom) for atom in program.outputs]
            storages = [pure.aliases[v].storage for v in program.inputs]
            by_layout = pure.layout_dependent
            written.extend(
                i for i, s in enumerate(storages) if s.value.atom is not s.initial_value.atom
            )
            return outs + [storages[i].value for i in written]

        made = trace_closed(body, program.in_avals, name=program.name, in_names=program.in_names)
        return FunctionalizedProgram(made, tuple(written), by_layout)


def write_to_numpy_arrays(args: Sequence[Any], new: dict[int, Any]) -> None:
    """Write the values of `new` to those of `args` at its keys that are arrays of NumPy's.

    Raises ImmutableArrayError, before any is changed, if one of them is read-only.
    """
    arrays = {i: args[i] for i in new if isinstance(args[i], np.ndarray)}
    for x in arrays.values():
        if not x.flags.writeable:
            raise ImmutableArrayError(
                "an argument that the function writes to must be writable; got a read-only array, "
                f"{type_name(x)}",
                fix="Pass a copy of it.",
            )
    for i, given in arrays.items():
        x, value = as_numpy_array(given), np.asarray(new[i])
        if value.dtype == x.dtype:
            x[...] = value
            continue
        # In a narrower dtype, as without 64-bit values: what was not written to stays exact.
        before = x.astype(value.dtype)
        written = (value != before) & ((value == value) | (before == before))
        np.copyto(x, value, casting="unsafe", where=written)


def build_functionalized(
    builder: Builder, fun: Callable[..., Sequence[Any]], tracers: Sequence[Tracer]
) -> tuple[Program, list[Any]]:
    """As `build`, without the writes of `fun`, and what it writes to its arguments lost."""
    program, captured = run_and_finish(builder, fun, tracers)
    if builder.writes:
        count = len(program.outputs)
        pure = cached_rewrite(Functionalize(), program).program
        program = Program(
            pure.name,
            pure.inputs,
            dce_equations(pure.equations, pure.outputs[:count]),
            pure.outputs[:count],
            in_names=pure.in_names,
        )
    return program, captured


def functionalized_atom(builder: Builder, atom: Atom) -> tuple[Builder, Atom]:
    """What `atom` is now, in a builder of the same values that has no writes."""
    if not builder.writes:
        return builder, atom
    if builder.functionalizer is None:
        builder.functionalizer = IncrementalFunctionalizer(builder)
    return builder.functionalizer.atom(atom)  # type: ignore[no-any-return]


class IncrementalFunctionalizer:
    """The pure form of a program in the making, which grows with it."""

    def __init__(self, builder: Builder):
        self.builder = builder
        self.builder_copy = own = Builder(builder.name, builder.kind, builder.parent)
        own.inputs, own.captures, own.values = builder.inputs, builder.captures, builder.values
        own.differentiated, own.in_names = builder.differentiated, builder.in_names
        own.batched_inputs, own.axis = builder.batched_inputs, builder.axis
        self.form = Functionalizer([], [], [])
        self.emitted_count = 0

    def atom(self, atom: Atom) -> tuple[Builder, Atom]:
        given = [*self.builder.inputs, *[v for v, _ in self.builder.captures.values()]]
        for v in given[len(self.form.aliases) :] if not self.emitted_count else given:
            if v not in self.form.aliases:
                self.form.new_storage(v, Tracer(v, self.builder_copy), strides_of(self.builder, v))
        token = current_builder.set(self.builder_copy)
        try:
            fresh = self.builder.equations[self.emitted_count :]
            self.emitted_count += len(fresh)
            self.form.emit_all(fresh)
            return self.builder_copy, self.form.read(atom).atom
        finally:
            current_builder.reset(token)
