"""Functionalization: rewrites programs with in-place writes and views into programs without writes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from functx.core.builder import Builder
from functx.core.context import ContextValue
from functx.core.dead_code import dce_equations
from functx.core.effects import Effect
from functx.core.errors import ImmutableArrayError, type_name
from functx.core.memory_layouts import noncontiguous_strides, result_strides, strides_of
from functx.core.primitive_families import CopiesOperand, View
from functx.core.program import Atom, Equation, Program, Var
from functx.core.rewriting import Rewrite, bind_equation, cached_rewrite
from functx.core.strides import MemoryOrder, Strides, differ_by_unit_dims, row_major_strides
from functx.core.tracer import Tracer, as_numpy_array, check_gradient_kept, current_builder
from functx.core.tracing import run_and_finish, trace_closed
from functx.core.typing import Value

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
            if (
                primitive.memory_order is MemoryOrder.BY_LAYOUT
                and base.storage in self.input_dependent
            ):
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
        order = eqn.primitive.memory_order
        if order is MemoryOrder.ROW_MAJOR or isinstance(eqn.primitive, View):
            for v, value in zip(eqn.outputs, values, strict=True):
                self.new_storage(v, value)
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
) -> tuple[Program, list[Any], tuple[int, ...]]:
    """As `run_and_finish`, functionalized, and the positions of the inputs that `fun` writes to.

    The new values of these are dropped.
    """
    program, captured = run_and_finish(builder, fun, tracers)
    written: tuple[int, ...] = ()
    if builder.writes:
        count = len(program.outputs)
        rewrite = Functionalize(input_layouts(builder, program))
        pure, written, _ = cached_rewrite(rewrite, program)
        program = Program(
            pure.name,
            pure.inputs,
            dce_equations(pure.equations, pure.outputs[:count]),
            pure.outputs[:count],
            in_names=pure.in_names,
        )
    return program, captured, written


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
