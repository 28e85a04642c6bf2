"""Equations as tokens: equal for those that one equation can stand for, and their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from functx.core.decompositions import fallback_decomposition
from functx.core.effects import Effect
from functx.core.primitive import Primitive
from functx.core.program import Equation, Program, subprograms
from functx.core.rewriting import cached_rewrite
from functx.ops.creation import Iota
from functx.ops.shaping import Reshape
from functx.ops.slicing import Slice
from functx.transforms.call import Call

# What XLA merges into its uses, nearly for nothing.
_FREE_OPS = Iota, Reshape, Slice
# What is emitted as others is not opened up just to be counted.
_COMPOSITE_WEIGHT = 8
_PINNED_EFFECTS = frozenset({Effect.WRITE, Effect.PROGRESS})


def tokenize(equations: Sequence[Equation]) -> tuple[list[int], list[int]]:
    """A token for each equation, and how many operations it becomes."""
    numbers: dict[Any, int] = {}
    weights: list[int] = []
    tokens = []
    for i, eqn in enumerate(equations):
        primitive = eqn.primitive
        avals = tuple([atom.aval for atom in eqn.inputs])
        key: Any = primitive, avals
        if type(primitive) is Slice and has_unit_strides(primitive):
            key = Slice, eqn.outputs[0].aval.shape, avals
        elif primitive.effects and not _PINNED_EFFECTS.isdisjoint(primitive.effects):
            key = i
        token = numbers.get(key)
        if token is None:
            token = numbers[key] = len(weights)
            weights.append(operation_count(primitive))
        tokens.append(token)
    return tokens, [weights[token] for token in tokens]


def has_unit_strides(primitive: Slice) -> bool:
    """Whether the slice can begin where an operand says."""
    return primitive.strides is None or set(primitive.strides) <= {1}


def operation_count(primitive: Primitive) -> int:
    """About how many operations an equation becomes when it is lowered."""
    if isinstance(primitive, _FREE_OPS) or (type(primitive) is Call and primitive.noinline):
        return 0
    if fallback_decomposition(type(primitive), ("lower",)) is not None:
        return _COMPOSITE_WEIGHT
    return 1 + sum([cached_rewrite(program_operation_count, sub) for sub in subprograms(primitive)])


def program_operation_count(program: Program) -> int:
    """About how many operations a program becomes."""
    return sum([operation_count(e.primitive) for e in program])
