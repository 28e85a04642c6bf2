"""What there is to tell of an array in memory: what makes it, and whose line asked for that."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from functx.core.avals import ShapedArray
from functx.core.budgets import size_text
from functx.core.primitive import Primitive
from functx.core.program import Equation, Var, subprograms
from functx.core.provenance import Pulled, describe
from functx.transforms.call import Rerun
from functx.transforms.planning.costs import bytes_of


class Value(NamedTuple):
    """An array in memory: its type and bytes, what makes it, and the user's line that asked for it."""

    aval: ShapedArray
    bytes: int
    operation: str
    place: str
    late: bool = False

    def __str__(self) -> str:
        return f"{size_text(self.bytes):>10}  {self.aval!r:20} {self.operation:24} {self.place}"


def is_late(eqn: Equation) -> bool:
    """Whether an equation is one of a backward computation."""
    return isinstance(eqn.source, Pulled) or type(eqn.primitive) is Rerun


def value_of(eqn: Equation, v: Var) -> Value:
    """What there is to tell of `v`, which `eqn` makes: by a program inside, of what does so there."""
    found, late = (eqn, v), is_late(eqn)
    inside: tuple[Equation, Var] | None = found
    while inside is not None:
        found, inside = inside, maker_inside(*inside)
    maker = found[0]
    return Value(v.aval, bytes_of(v.aval), name_of(maker.primitive), describe(maker.source), late)


def maker_inside(eqn: Equation, v: Var) -> tuple[Equation, Var] | None:
    """The equation of a program in `eqn` that makes what `v` is, and its variable; None for none."""
    place = eqn.outputs.index(v)
    for program in subprograms(eqn.primitive):
        if len(program.outputs) == len(eqn.outputs):
            for inner in program:
                for out in inner.outputs:
                    if out is program.outputs[place]:
                        return inner, out
    return None


def inside_of(eqn: Equation, count: int) -> Value:
    """The bytes that an operation needs for itself, as a value."""
    aval = ShapedArray((count,), np.dtype("uint8"))
    return Value(
        aval, count, f"inside {name_of(eqn.primitive)}", describe(eqn.source), is_late(eqn)
    )


def name_of(primitive: Primitive) -> str:
    """The name of an operation, and of the program that it runs."""
    held = subprograms(primitive)
    return f"{primitive.name} {held[0].name}" if held else primitive.name
