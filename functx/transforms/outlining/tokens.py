"""Equations as tokens: equal for those that one equation can stand for, and their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from functx.core.decompositions import stand_in
from functx.core.effects import Effect
from functx.core.primitive import Primitive
from functx.core.program import Equation, Program, subprograms
from functx.core.rewriting import rewritten
from functx.ops.creation import Iota
from functx.ops.shaping import Reshape
from functx.ops.slicing import Slice
from functx.transforms.call import Call

# What XLA merges into its uses, nearly for nothing.
_MOVES = Iota, Reshape, Slice
# What is emitted as others is not opened up just to be counted.
_COMPOSITE = 8
_STAY = frozenset({Effect.WRITE, Effect.PROGRESS})


def tokens_of(equations: Sequence[Equation]) -> tuple[list[int], list[int]]:
    """A token for each equation, and how many operations it becomes."""
    numbers: dict[Any, int] = {}
    weights: list[int] = []
    tokens = []
    for i, eqn in enumerate(equations):
        primitive = eqn.primitive
        avals = tuple([atom.aval for atom in eqn.inputs])
        key: Any = primitive, avals
        if type(primitive) is Slice and moves(primitive):
            key = Slice, eqn.outputs[0].aval.shape, avals
        elif primitive.effects and not _STAY.isdisjoint(primitive.effects):
            key = i
        token = numbers.get(key)
        if token is None:
            token = numbers[key] = len(weights)
            weights.append(weight(primitive))
        tokens.append(token)
    return tokens, [weights[token] for token in tokens]


def moves(primitive: Slice) -> bool:
    """Whether the slice can begin where an operand says."""
    return primitive.strides is None or set(primitive.strides) <= {1}


def weight(primitive: Primitive) -> int:
    """About how many operations an equation becomes when it is lowered."""
    if isinstance(primitive, _MOVES) or (type(primitive) is Call and primitive.apart):
        return 0
    if stand_in(type(primitive), ("lower",)) is not None:
        return _COMPOSITE
    return 1 + sum([rewritten(weight_of, sub) for sub in subprograms(primitive)])


def weight_of(program: Program) -> int:
    """About how many operations a program becomes."""
    return sum([weight(e.primitive) for e in program])
