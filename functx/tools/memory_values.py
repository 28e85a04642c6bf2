"""What there is to tell of an array in memory: what makes it, and whose line asked for that."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from functx.core.avals import ShapedArray
from functx.core.budgets import format_bytes
from functx.core.primitive import Primitive
from functx.core.program import Equation, Var, subprograms
from functx.core.provenance import BackwardSource, describe_source
from functx.transforms.call import RematerializedCall
from functx.transforms.planning.costs import bytes_of


class LiveArray(NamedTuple):
    """An array in memory: its type and bytes, what makes it, and the user's line that asked for it."""

    aval: ShapedArray
    bytes: int
    operation: str
    place: str
    is_backward: bool = False

    def __str__(self) -> str:
        return f"{format_bytes(self.bytes):>10}  {self.aval!r:20} {self.operation:24} {self.place}"


def is_backward_equation(eqn: Equation) -> bool:
    """Whether an equation is one of a backward computation."""
    return isinstance(eqn.source, BackwardSource) or type(eqn.primitive) is RematerializedCall


def describe_array(eqn: Equation, v: Var) -> LiveArray:
    """What there is to tell of `v`, which `eqn` makes: by a program inside, of what does so there."""
    found, late = (eqn, v), is_backward_equation(eqn)
    inside: tuple[Equation, Var] | None = found
    while inside is not None:
        found, inside = inside, inner_definition(*inside)
    maker = found[0]
    return LiveArray(
        v.aval,
        bytes_of(v.aval),
        operation_name(maker.primitive),
        describe_source(maker.source),
        late,
    )


def inner_definition(eqn: Equation, v: Var) -> tuple[Equation, Var] | None:
    """The equation of a program in `eqn` that makes what `v` is, and its variable; None for none."""
    place = eqn.outputs.index(v)
    for program in subprograms(eqn.primitive):
        if len(program.outputs) == len(eqn.outputs):
            for inner in program:
                for out in inner.outputs:
                    if out is program.outputs[place]:
                        return inner, out
    return None


def describe_scratch(eqn: Equation, count: int) -> LiveArray:
    """The bytes that an operation needs for itself, as a value."""
    aval = ShapedArray((count,), np.dtype("uint8"))
    return LiveArray(
        aval,
        count,
        f"inside {operation_name(eqn.primitive)}",
        describe_source(eqn.source),
        is_backward_equation(eqn),
    )


def operation_name(primitive: Primitive) -> str:
    """The name of an operation, and of the program that it runs."""
    held = subprograms(primitive)
    return f"{primitive.name} {held[0].name}" if held else primitive.name
