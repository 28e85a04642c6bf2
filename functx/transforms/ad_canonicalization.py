"""Canonicalization before differentiation: decomposes primitives, and recognizes norms.

The derivative of `sqrt` is infinite at 0. That of a norm, the root of a sum of squares, is
defined as 0 there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from functx import ops
from functx.core.program import Atom, Equation, Literal, Program, Var
from functx.core.rewriting import cached_rewrite
from functx.core.types import is_floating
from functx.transforms.decompose import decompose_missing_rules

_SUM_PRESERVING = (
    ops.Add, ops.ReduceSum, ops.BroadcastInDim, ops.Concatenate, ops.ConvertElementType, ops.Full, ops.Pad, ops.PermuteDims, ops.Reshape,
    ops.Slice,
)  # fmt: skip


def canonicalize_for_ad(program: Program, *rules: str) -> Program:
    """The canonical form of `program` for a transform that uses `rules`.

    Primitives that have none of the rules are decomposed; then the `ad_rewrites` are applied.
    """
    program = decompose_missing_rules(program, *rules)
    for rewrite in ad_rewrites:
        program = cached_rewrite(rewrite, program)
    return program


def recognize_norms(program: Program) -> Program:
    """`program` with `safe_sqrt` in place of each `sqrt` of a sum of squares."""
    if not any(type(eqn.primitive) is ops.Sqrt for eqn in program):
        return program
    squares = SumOfSquaresAnalysis(program)
    equations = [
        eqn.replace(primitive=ops.SafeSqrt()) if squares.is_norm(eqn) else eqn for eqn in program
    ]
    return Program(
        program.name, program.inputs, equations, program.outputs, in_names=program.in_names
    )


ad_rewrites: list[Callable[[Program], Program]] = [recognize_norms]
"""The rewrites of a program before its derivative is taken; `functx.passes` adds to them."""


class SumOfSquaresAnalysis:
    """Finds the variables of a program that are sums of squares, by their equations."""

    def __init__(self, program: Program):
        self.producers = program.def_use.producers
        self.memo: dict[Atom, bool] = {}

    def is_norm(self, eqn: Equation) -> bool:
        """Whether `eqn` is the root of a sum of squares of real numbers."""
        if type(eqn.primitive) is not ops.Sqrt:
            return False
        (x,) = eqn.inputs
        return is_floating(x.aval.dtype) and self.is_sum_of_squares(x)

    def is_sum_of_squares(self, atom: Atom) -> bool:
        """Whether `atom` is a sum of squares, or the literal 0."""
        if type(atom) is Literal:
            return bool(atom.value == 0)
        pending = [atom]
        # A stack in place of recursion: programs may be deep.
        while pending:
            v = pending[-1]
            eqn = self.producers.get(v)
            parts = [] if eqn is None else _summed_operands(eqn)
            if v not in self.memo and parts:
                missing = [p for p in parts if type(p) is Var and p not in self.memo]
                if missing:
                    pending += missing
                    continue
            if v not in self.memo:
                self.memo[v] = eqn is not None and (
                    self.is_square(eqn, v) or (bool(parts) and all(map(self.is_known_sum, parts)))
                )
            pending.pop()
        return self.memo[atom]

    def is_known_sum(self, atom: Atom) -> bool:
        return bool(atom.value == 0) if type(atom) is Literal else self.memo[atom]

    def is_square(self, eqn: Equation, v: Atom) -> bool:
        """Whether the output `v` of `eqn` holds squares, or sums of squares of its operands."""
        primitive = eqn.primitive
        if isinstance(primitive, ops.Square):
            return True
        if isinstance(primitive, ops.IntegerPow):
            return primitive.exponent > 0 and primitive.exponent % 2 == 0
        if isinstance(primitive, ops.Mul):
            return self.is_same_value(*eqn.inputs)
        if isinstance(primitive, ops.DotGeneral):
            (left, right), (rows, _) = primitive.contracting_dims, primitive.batch_dims
            summed = len(left) + len(rows) == eqn.inputs[0].aval.ndim
            return left == right and summed and self.is_same_value(*eqn.inputs)
        if primitive.name == "call":
            called: Program = primitive.program  # type: ignore[attr-defined]
            return SumOfSquaresAnalysis(called).is_sum_of_squares(
                called.outputs[eqn.outputs.index(v)]  # type: ignore[arg-type]
            )
        return False

    def is_same_value(self, x: Any, y: Any) -> bool:
        """Whether two operands are one variable, or outputs of equal equations."""
        if x is y or type(x) is Literal or type(y) is Literal:
            return x is y
        a, b = self.producers.get(x), self.producers.get(y)
        return (
            a is not None
            and b is not None
            and (
                a.primitive is b.primitive
                and all(p is q for p, q in zip(a.inputs, b.inputs, strict=True))
            )
        )


def _summed_operands(eqn: Equation) -> list[Atom]:
    """The operands that must all be sums of squares for the output to be one."""
    primitive, inputs = eqn.primitive, eqn.inputs
    if isinstance(primitive, _SUM_PRESERVING):
        return list(inputs)
    if isinstance(primitive, ops.Select):
        return list(inputs[1:])
    if isinstance(primitive, (ops.Mul, ops.Div)):
        x, y = inputs
        if isinstance(primitive, ops.Mul) and type(x) is Literal:
            x, y = y, x
        return [x] if type(y) is Literal and y.value > 0 else []
    return []
