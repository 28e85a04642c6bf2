"""Reads of arrays in the body of a loop, moved before writes of other elements in the same step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from functx import ops
from functx.core.concretization import is_concrete_literal
from functx.core.program import Atom, Equation, Var
from functx.core.typing import NumPyArray

_READS = ops.Slice, ops.DynamicSlice


class StepSlices(NamedTuple):
    """A part of an array in every step: its starts, an array of axes by steps, and its shape."""

    starts: NumPyArray
    sizes: tuple[int, ...]

    def is_apart_from(self, other: StepSlices) -> bool:
        """Whether the two have no element in common in any step."""
        distance = other.starts - self.starts
        before = distance >= np.reshape(self.sizes, (-1, 1))
        after = -distance >= np.reshape(other.sizes, (-1, 1))
        return bool((before | after).any(0).all())


class LoopReads:
    """The equations of a loop body, with reads of arrays before writes that do not affect them.

    XLA copies an array that is read after an element of it was written. `scalars_of` gives the
    value of an atom in each of the `count` steps, if these are known.
    """

    def __init__(
        self,
        equations: Sequence[Equation],
        count: int,
        scalars_of: Callable[[Atom], Sequence[Atom] | None],
    ):
        self.equations, self.count, self.scalars_of = equations, count, scalars_of
        self.producers: dict[Atom, Equation] = {v: eqn for eqn in equations for v in eqn.outputs}

    def moved(self) -> list[Equation]:
        """The equations, with each read right after the first array that has its elements."""
        following: dict[Atom, list[Equation]] = {}
        others = []
        for eqn in self.equations:
            array = self.array_to_read(eqn)
            if array is None or array is eqn.inputs[0]:
                others.append(eqn)
            else:
                following.setdefault(array, []).extend(_with_type_of(eqn, array))
        moved: list[Equation] = []

        def emit(equations: Iterable[Equation]) -> None:
            for eqn in equations:
                moved.append(eqn)
                for v in eqn.outputs:
                    emit(following.get(v, ()))

        for array, reads in following.items():
            if array not in self.producers:
                emit(reads)
        emit(others)
        return moved

    def array_to_read(self, eqn: Equation) -> Atom | None:
        """The first array of the step that has the elements which `eqn` reads."""
        read = self.slices(eqn) if isinstance(eqn.primitive, _READS) else None
        if read is None:
            return None
        array = eqn.inputs[0]
        found = array
        while (producer := self.producers.get(array)) is not None:
            if type(producer.primitive) is ops.DynamicUpdateSlice:
                written = self.slices(producer)
                if written is None or not read.is_apart_from(written):
                    break
                found = producer.inputs[0]
            elif not retypes(producer):
                break
            array = producer.inputs[0]
        return found

    def slices(self, eqn: Equation) -> StepSlices | None:
        """The part that `eqn` reads or writes; None if it is not known."""
        array, indices = eqn.inputs[0], eqn.inputs[1:]
        if type(eqn.primitive) is ops.Slice:
            if eqn.primitive.strides is not None:
                return None
            starts = np.repeat(np.reshape(eqn.primitive.start, (-1, 1)), self.count, 1)
            return StepSlices(starts, eqn.outputs[0].aval.shape)
        if type(eqn.primitive) is ops.DynamicUpdateSlice:
            sizes, indices = indices[0].aval.shape, indices[1:]
        else:
            sizes = eqn.outputs[0].aval.shape
        rows = [self.scalars_of(index) for index in indices]
        if not rows or any(row is None or not all(map(is_concrete_literal, row)) for row in rows):
            return None
        numbers = np.array([[atom.value for atom in row] for row in rows])  # type: ignore
        limits = np.subtract(array.aval.shape, sizes).reshape(-1, 1)
        return StepSlices(np.clip(numbers, 0, limits), sizes)


def retypes(eqn: Equation) -> bool:
    """Whether `eqn` changes no more than the weak type of its operand, which XLA does not see."""
    return (
        type(eqn.primitive) is ops.ConvertElementType
        and eqn.inputs[0].aval.dtype == eqn.outputs[0].aval.dtype
    )


def _with_type_of(eqn: Equation, array: Atom) -> list[Equation]:
    """The read `eqn` of `array`, and a conversion if the result has another weak type."""
    (out,) = eqn.outputs
    inputs = [array, *eqn.inputs[1:]]
    if array.aval.weak_type == eqn.inputs[0].aval.weak_type:
        return [eqn.replace(inputs=inputs)]
    part = Var(out.aval.update(weak_type=array.aval.weak_type))
    retype = ops.ConvertElementType(out.aval.dtype, out.aval.weak_type)
    return [eqn.replace(inputs=inputs, outputs=[part]), Equation(retype, [part], [out], eqn.source)]
