"""How values are computed, at a glance: which formulas an equation may end, before they are matched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from functx import ops
from functx.core.concretization import SymbolicScalar
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Literal, Var
from functx.passes import formula_matching as matching

Kinds = frozenset[Any]
"""How a value is computed: its primitive, `(kind,)` of each operand, and the pair of both.

`Add` stands for any sum, `Mul` for any product, and `Literal` for the number 1.
"""
_NUMBER: Kinds = frozenset([Literal])


class KindIndex:
    """Says how values are computed, from the equations that define them.

    Negations, numeric factors, casts and broadcasts are looked through, and products multiplied out.
    """

    def __init__(self, producers: dict[Atom, Equation]):
        self.producers = producers
        self.found: dict[Atom, Kinds | None] = {}

    def core(self, x: Atom) -> Atom:
        """The value of which `x` is a multiple, cast or broadcast."""
        while (eqn := self.producers.get(x)) is not None:
            operand = scaled_operand(type(eqn.primitive), eqn.inputs)
            if operand is None:
                return x
            x = operand
        return x

    def operands(self, eqn: Equation) -> list[Atom]:
        """The terms, factors or operands of `eqn`."""
        operands = [self.core(a) for a in eqn.inputs]
        if type(eqn.primitive) not in matching.PRODUCTS:
            return operands
        factors: list[Atom] = []
        while operands and len(factors) < matching.MAX_FACTORS:
            x = operands.pop()
            inner = self.producers.get(x)
            if inner is not None and type(inner.primitive) in matching.PRODUCTS:
                operands += [self.core(a) for a in inner.inputs]
            else:
                factors.append(x)
        return factors

    def own_kind(self, x: Atom) -> type | None:
        """The primitive that computes `x`; None for an input."""
        if type(x) is Literal:
            # The number 1 or -1, or another.
            unknown = type(x.value) is SymbolicScalar
            return Literal if unknown or x.value == 1 or x.value == -1 else float
        eqn = self.producers.get(x)
        return None if eqn is None else _ONE_OF.get(kind := type(eqn.primitive), kind)

    def kinds(self, x: Atom) -> Kinds | None:
        """How `x` is computed; None for an input and for numbers other than 1."""
        if x in self.found:
            return self.found[x]
        own, found = self.own_kind(x), None
        if own is Literal:
            found = _NUMBER
        elif own is not None and own is not float:
            known = [self.own_kind(a) for a in self.operands(self.producers[x])]
            pair = [tuple(sorted(known, key=id))] if own is ops.Add and None not in known else []  # type: ignore[type-var]
            found = frozenset([own, *pair, *[(k,) for k in known if k is not None]])
        self.found[x] = found
        return found

    def kinds_of_operands(self, eqn: Equation) -> list[Kinds]:
        """The kinds of the terms, factors or operands of `eqn`; none if it only scales or rearranges."""
        if scaled_operand(type(eqn.primitive), eqn.inputs) is not None:
            return []
        operands = self.operands(eqn)
        if type(eqn.primitive) in matching.PRODUCTS:
            operands = [a for a in operands if type(a) is Var]
        kinds = [self.kinds(a) for a in operands]
        return [k for k in kinds if k is not None]


_ONE_OF: dict[type, type] = {
    **dict.fromkeys(matching.SUMS, ops.Add),
    **dict.fromkeys(matching.PRODUCTS, ops.Mul),
}


def scaled_operand(kind: type[Primitive], inputs: Sequence[Atom]) -> Atom | None:
    """The operand of which an equation computes a multiple, cast or broadcast; else None."""
    if kind is ops.Mul or kind is ops.Div:
        x, y = inputs
        if type(y) is Literal:
            return x
        return y if kind is ops.Mul and type(x) is Literal else None
    return inputs[0] if kind in matching.TRANSPARENT else None


def marking_names(kinds: Kinds) -> list[str]:
    """The names of the primitives by which a term or factor of these kinds is noticed."""
    (own,) = [k for k in kinds if type(k) is not tuple]
    noticed = [k[0] for k in kinds if type(k) is tuple and len(k) == 1]
    every = noticed if own in (ops.Add, ops.Mul, ops.Select) else [own]
    return [k.name for k in every if k not in (Literal, float, ops.Add, ops.Mul)]
