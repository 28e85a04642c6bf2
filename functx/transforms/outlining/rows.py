"""Variables that show a part of an array at a known place, so that a loop can look it up."""

from __future__ import annotations

from typing import Any, NamedTuple

from functx.core.program import Atom, Var
from functx.ops.joining import Split
from functx.ops.shaping import Reshape
from functx.ops.slicing import Slice
from functx.transforms.outlining.blocks import EquationDataflow
from functx.transforms.outlining.tokens import has_unit_strides

Shape = tuple[int, ...]


class StaticSlice(NamedTuple):
    """The part of `whole` of shape `sizes` that begins at `start`, under another shape or not."""

    array: Atom
    start: Shape
    sizes: Shape


def static_slice_of(
    atom: Atom, flow: EquationDataflow, known: dict[Any, StaticSlice]
) -> StaticSlice | None:
    """The part that `atom` shows, by `known` or by the equations that make it; None for others."""
    while type(atom) is Var:
        if atom in known:
            return known[atom]
        place = flow.producers.get(atom)
        if place is None:
            return None
        eqn = flow.equations[place[0]]
        primitive = eqn.primitive
        if type(primitive) is Slice and has_unit_strides(primitive):
            return StaticSlice(eqn.inputs[0], primitive.start, eqn.outputs[0].aval.shape)
        if type(primitive) is Split:
            before = sum(primitive.sizes[: place[1]])
            start = [0] * atom.aval.ndim
            start[primitive.axis] = before
            return StaticSlice(eqn.inputs[0], tuple(start), atom.aval.shape)
        if type(primitive) is not Reshape:
            return None
        atom = eqn.inputs[0]
    return None
