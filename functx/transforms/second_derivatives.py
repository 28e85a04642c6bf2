"""Sums of second derivatives along directions, each computed by one pass of collapsed Taylor mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from functx import ops
from functx.core.builder import Builder
from functx.core.captured_state import CapturedState
from functx.core.concretization import UnknownValues, concretize
from functx.core.dead_code import dce_equations
from functx.core.errors import ConcretizationError
from functx.core.masks import select_where
from functx.core.named_axes import AxisNames
from functx.core.program import Atom, Literal, Program, Var
from functx.core.rewriting import apply
from functx.core.tracer import Tracer, aval_of, is_jax_tracer, is_variable
from functx.core.types import ShapedArray
from functx.core.typing import ArrayLike, Dim, Flags, NumPyArray, Value
from functx.transforms.batching import Batch
from functx.transforms.coefficients import Curves
from functx.transforms.collapsed_jet import CollapsedJet


class DifferentiatedArray(NamedTuple):
    """A function of one array, as a program with one output, and its operands in a trace."""

    program: Program
    operands: Sequence[ArrayLike]
    active: tuple[bool, ...]

    @property
    def argument(self) -> ShapedArray:
        """The type of the array."""
        return self.program.in_avals[self.active.index(True)]

    def equals(self, other: DifferentiatedArray, builder: Builder) -> bool:
        """Whether both are the same function of the same operands."""
        return (
            self.active == other.active
            and self.program.key == other.program.key
            and [builder.atom(x) for x in self.operands]
            == [builder.atom(x) for x in other.operands]
        )

    def sum_of_second_derivatives(self, directions: Value | None) -> Value:
        """The sum of the second derivatives along the rows of `directions`, or along all coordinates."""
        count = self.argument.size if directions is None else directions.shape[0]
        rewrite = CollapsedJet(self.active, Curves(2, count), 2, along_basis=directions is None)
        rows = [] if directions is None else [directions]
        return ops.mul(apply(rewrite, self.program, [*self.operands, *rows])[1], 2.0)


class Direction(NamedTuple):
    """The direction v of a second derivative v · H v or, if `is_batch`, the directions in an array's rows.

    With a `coordinate`, the term is this element of H v, which is v · H v if v is its unit vector.
    """

    tangent: Atom
    is_batch: bool = False
    coordinate: Atom | int | None = None


class SecondDerivatives(NamedTuple):
    """A sum of second derivatives of `fun` along `directions`, or along all coordinates, and of `start`.

    It was computed from the variables `sources`, which hold the Hessian or its products.
    """

    fun: DifferentiatedArray
    sources: frozenset[Var]
    directions: tuple[Direction, ...] | None = None
    start: Atom | None = None

    def operands(self) -> list[Atom]:
        """The directions and their coordinates, which may be computed after the sum itself."""
        pairs = [(d.tangent, d.coordinate) for d in self.directions or ()]
        return [x for pair in pairs for x in pair if isinstance(x, (Var, Literal))]

    def plus(self, other: SecondDerivatives, builder: Builder) -> SecondDerivatives | None:
        """The sum of two sums; None if it is none of one function along directions."""
        if self.directions is None or other.directions is None or other.start is not None:
            return None
        if not self.fun.equals(other.fun, builder):
            return None
        return self._replace(
            sources=self.sources | other.sources, directions=self.directions + other.directions
        )

    def emit(self, builder: Builder, varying: VaryingValues) -> Value | None:
        """The sum, computed by a jet; None if a coordinate is not known to be that of its direction."""
        rows: Value | None = None
        if self.directions is not None:
            size = self.fun.argument.size
            parts: list[Value] = []
            values: list[NumPyArray | None] = []
            for tangent, is_batch, coordinate in self.directions:
                value = known_value(tangent, builder, varying)
                value = None if value is None else value.reshape(-1 if size else 1, size)
                if coordinate is not None:
                    at = known_value(coordinate, builder, varying)
                    if value is None or at is None or not are_unit_vectors(value, at):
                        return None
                x = Tracer(tangent, builder)
                parts.append(x if is_batch else ops.expand_dims(x, 0))
                values.append(value)
            known = [v for v in values if v is not None]
            if len(known) < len(values) or not is_basis(np.concatenate(known)):
                rows = parts[0] if len(parts) == 1 else ops.concatenate(parts, 0)
        total = self.fun.sum_of_second_derivatives(rows)
        return total if self.start is None else ops.add(Tracer(self.start, builder), total)


class VaryingValues(UnknownValues):
    """The values of a program that depend on an argument of a traced function, a Variable or a draw."""

    def _has_input(self, builder: Builder, atom: Atom) -> bool:
        source = builder.captured_value(atom)
        is_varying = (
            is_jax_tracer(source) or is_variable(source) or isinstance(source, CapturedState)
        )
        return is_varying or super()._has_input(builder, atom)


def known_value(x: Atom | int, builder: Builder, varying: VaryingValues) -> NumPyArray | None:
    """The value of `x` as an array; None if it varies."""
    if isinstance(x, (int, Literal)):
        return np.asarray(x if isinstance(x, int) else x.value)
    if varying.has(builder, x):
        return None
    try:
        return concretize(Tracer(x, builder), "laplacian")
    except ConcretizationError:
        return None


def are_unit_vectors(rows: NumPyArray, coordinates: NumPyArray) -> bool:
    """Whether each row is the unit vector of its coordinate."""
    return np.array_equal(rows, np.arange(rows.shape[1]) == coordinates.reshape(-1, 1))


def is_basis(rows: NumPyArray) -> bool:
    """Whether the rows are the unit vectors of all coordinates, in any order."""
    places = rows.argmax(1) if rows.size else np.zeros(0)
    return np.array_equal(np.sort(places), np.arange(rows.shape[1])) and are_unit_vectors(
        rows, places
    )


class RowTerm(NamedTuple):
    """A second derivative that a program computes, as a loop or `vmap` of it may sum over its rows.

    `operands` are the positions of those of `fun` among the inputs. `direction` computes the direction
    from the inputs, and its coordinate. `carry` is the position of the input that the output adds it to.
    """

    fun: DifferentiatedArray
    operands: tuple[int, ...]
    direction: Program
    carry: int | None

    @staticmethod
    def of(
        term: SecondDerivatives, program: Program, carry: Atom | None, builder: Builder
    ) -> RowTerm | None:
        """The term of an output of `program`; None for one that no loop can sum."""
        position = {v: i for i, v in enumerate(program.inputs)}
        operands = [position.get(builder.atom(x)) for x in term.fun.operands]  # type: ignore[arg-type]
        carried = None if carry is None else position.get(carry)  # type: ignore[arg-type]
        if term.start is not None or len(term.directions or ()) != 1 or None in operands:
            return None
        ((tangent, is_batch, coordinate),) = term.directions  # type: ignore[misc]
        if is_batch or (carry is not None and carried is None):
            return None
        outs: list[Atom] = [tangent]
        if coordinate is not None:
            outs.append(builder.atom(coordinate) if isinstance(coordinate, int) else coordinate)
        equations = dce_equations(builder.equations, outs)
        direction = Program(program.name, program.inputs, equations, outs)
        fun = term.fun._replace(operands=())
        return RowTerm(fun, tuple(n for n in operands if n is not None), direction, carried)

    def rows(
        self,
        builder: Builder,
        args: Sequence[ArrayLike],
        dims: Sequence[Dim],
        differing: Flags,
    ) -> tuple[DifferentiatedArray, Direction] | None:
        """The function and its directions for all rows of `args`; None if the function differs by row.

        `args` are the inputs, whose rows lie along `dims`; those marked `differing` have other values
        for each row.
        """
        if any(differing[n] or dims[n] is not None for n in self.operands):
            return None
        read: set[Atom] = {a for eqn in self.direction.equations for a in eqn.inputs}
        read.update(self.direction.outputs)
        inputs = self.direction.inputs
        sizes = [aval_of(x).shape[d] for x, d in zip(args, dims, strict=True) if d is not None]
        if not sizes or not read.isdisjoint(select_where(inputs, differing)):
            return None
        batch = Batch(sizes[0], tuple(dims), (0,) * len(self.direction.outputs), names=AxisNames())
        tangents, *coordinates = apply(batch, self.direction, args)
        at = builder.atom(coordinates[0]) if coordinates else None
        fun = self.fun._replace(operands=[args[n] for n in self.operands])
        return fun, Direction(builder.atom(tangents), True, at)
