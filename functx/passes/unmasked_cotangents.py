"""Variables of a program whose cotangents have no masks, so that a loop that computes them needs none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from functx import ops
from functx.core.concretization import is_concrete_literal
from functx.core.primitive import Primitive
from functx.core.primitive_families import HasPrograms
from functx.core.program import Atom, Equation, Var
from functx.core.typing import NumPyArray
from functx.ops.dynamic_slicing import clamp_starts
from functx.ops.families import Elementwise, Linear
from functx.ops.reductions import Reduction

_WHOLE: NumPyArray = np.array(True)
_PASSING_RULES = Primitive.cotangent_masks, Linear.cotangent_masks, Reduction.cotangent_masks
_PASSING_OPS = ops.BroadcastInDim, ops.Concatenate, ops.ConvertElementType, ops.Full


def variables_with_unmasked_cotangents(
    equations: Sequence[Equation], outputs: Sequence[Atom]
) -> set[Atom]:
    """The variables of which each element has influence on `outputs` that no mask takes away.

    For a cotangent without a mask, zero times an infinite derivative is nan in any case.
    """
    unmasked = _UnmaskedElements()
    for atom in outputs:
        unmasked.add(atom, _WHOLE)
    for eqn in reversed(equations):
        unmasked.propagate(eqn)
    return {v for v, elements in unmasked.elements.items() if elements.all()}


class _UnmaskedElements:
    """For each variable a boolean array, True where no mask makes the cotangent zero.

    It has the shape of the variable, or is one scalar.
    """

    def __init__(self) -> None:
        self.elements: dict[Atom, NumPyArray] = {}

    def add(self, atom: Atom, elements: NumPyArray) -> None:
        if type(atom) is Var:
            before = self.elements.get(atom)
            self.elements[atom] = elements if before is None else before | elements

    def propagate(self, eqn: Equation) -> None:
        """Add the elements of the operands of `eqn`, given those of its results."""
        found = [self.elements[v] for v in eqn.outputs if v in self.elements]
        primitive = eqn.primitive
        if not found or not primitive.differentiable:
            return
        if isinstance(primitive, (ops.Slice, ops.DynamicSlice)):
            self.propagate_through_slice(eqn, found[0])
        elif type(primitive) is ops.DynamicUpdateSlice:
            self.propagate_through_update(eqn, found[0])
        elif type(primitive) is ops.Reshape:
            elements = found[0]
            shape = eqn.inputs[0].aval.shape
            self.add(eqn.inputs[0], elements.reshape(shape) if elements.shape else elements)
        elif passes_whole_cotangents(primitive):
            if any(elements.all() for elements in found):
                found = [_WHOLE]
            elif not isinstance(primitive, (Elementwise, ops.ConvertElementType)):
                return
            for atom in eqn.inputs:
                if not found[0].shape or found[0].shape == atom.aval.shape:
                    self.add(atom, found[0])

    def propagate_through_slice(self, eqn: Equation, elements: NumPyArray) -> None:
        part = part_of(eqn, eqn.inputs[0], eqn.outputs[0])
        if part is not None:
            whole = np.zeros(eqn.inputs[0].aval.shape, bool)
            whole[part] = elements
            self.add(eqn.inputs[0], whole)

    def propagate_through_update(self, eqn: Equation, elements: NumPyArray) -> None:
        array, update = eqn.inputs[:2]
        part = part_of(eqn, array, update)
        if part is not None:
            kept = np.broadcast_to(elements, array.aval.shape).copy()
            self.add(update, kept[part].copy())
            kept[part] = False
            self.add(array, kept)


def part_of(eqn: Equation, array: Atom, part: Atom) -> tuple[slice, ...] | None:
    """The index of the part of `array` that `eqn` reads or writes; None if it is not known."""
    primitive, sizes = eqn.primitive, part.aval.shape
    if type(primitive) is ops.Slice:
        strides = primitive.strides or (1,) * len(sizes)
        limits = zip(primitive.start, primitive.limit, strides, strict=True)
        return tuple([slice(*each) for each in limits])
    indices = eqn.inputs[len(eqn.inputs) - len(sizes) :]
    if not all(map(is_concrete_literal, indices)):
        return None
    values = [index.value for index in indices]  # type: ignore[union-attr]
    starts = clamp_starts(values, array.aval.shape, sizes)
    return tuple([slice(a, a + n) for a, n in zip(starts, sizes, strict=True)])


def passes_whole_cotangents(primitive: Primitive) -> bool:
    """Whether cotangents of operands have no mask if that of a result has none."""
    if isinstance(primitive, HasPrograms) or primitive.is_user_defined:
        return False
    if isinstance(primitive, Elementwise):
        cls = type(primitive)
        return cls.nonzero_derivative_mask is Elementwise.nonzero_derivative_mask
    rule = type(primitive).cotangent_masks
    return isinstance(primitive, _PASSING_OPS) or rule in _PASSING_RULES
