"""What rules that simplify ask of their operands."""

from __future__ import annotations

from math import copysign, isnan
from typing import Any, NamedTuple

from functx.core.avals import ShapedArray
from functx.core.dtypes import is_complex, kind
from functx.core.program import Equation, Literal


class DefUse(NamedTuple):
    """What is known where a rule simplifies: the makers of variables, and how often each is used."""

    producers: dict[Any, Equation]
    uses: dict[Any, int]

    def defining_equation(self, atom: Any, primitive: type[Any]) -> Equation | None:
        """The equation that computes `atom`, if it is of this primitive."""
        eqn = self.producers.get(atom)
        return eqn if eqn is not None and type(eqn.primitive) is primitive else None

    def has_one_use(self, atom: Any) -> bool:
        """Whether one equation alone looks at `atom`, and it is no output."""
        return self.uses.get(atom) == 1


def is_literal_equal(atom: Any, value: Any) -> bool:
    """Whether `atom` is this real number, of this sign, written in the program."""
    if type(atom) is not Literal or is_complex(atom.aval.dtype) or atom.value != value:
        return False
    return bool(value) or copysign(1.0, atom.value) == copysign(1.0, value)


def has_exact_arithmetic(*atoms: Any) -> bool:
    """Whether the operands are integers or booleans, whose arithmetic has no exceptions."""
    return all([kind(atom.aval.dtype) in "biu" for atom in atoms])


def all_ones(aval: ShapedArray) -> Any:
    """The number of which every bit is set."""
    if kind(aval.dtype) == "b":
        return True
    return -1 if kind(aval.dtype) == "i" else 2 ** (8 * aval.dtype.itemsize) - 1


def is_same_value(x: Any, y: Any) -> bool:
    """Whether two atoms are one variable, or one number, which is not nan."""
    if type(x) is Literal and type(y) is Literal:
        return x == y and not (type(x.value) is float and isnan(x.value))
    return x is y
