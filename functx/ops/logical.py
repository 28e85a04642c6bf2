"""Logic on booleans, which is arithmetic on the bits of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from functx.core.samples import bool_, i32, sample, u32
from functx.ops.families import Bitwise
from functx.ops.identities import all_ones, is_literal_equal, is_same_value
from functx.ops.operands import literal, promote_scalars


class And(Bitwise):
    """x & y."""

    host_kernel = np.bitwise_and
    samples = sample(bool_[3, 4], bool_[3, 4]), sample(i32[3], i32[()])

    def simplify(self, facts, x, y):
        return simplify_and_or(x, y, neutral=all_ones(x.aval), final=0)

    def lower(self, ctx, x, y):
        return stablehlo.and_(x, y)


class Or(Bitwise):
    """x | y."""

    host_kernel = np.bitwise_or
    samples = sample(bool_[3, 4], bool_[3, 4]), sample(i32[()], i32[3])

    def simplify(self, facts, x, y):
        return simplify_and_or(x, y, neutral=0, final=all_ones(x.aval))

    def lower(self, ctx, x, y):
        return stablehlo.or_(x, y)


class Xor(Bitwise):
    """x ^ y."""

    host_kernel = np.bitwise_xor
    samples = sample(bool_[3, 4], bool_[3, 4]), sample(u32[3], u32[()])

    def simplify(self, facts, x, y):
        if x is y:
            return literal(0, x.aval.dtype)
        if is_literal_equal(x, 0):
            return y
        return x if is_literal_equal(y, 0) else None

    def lower(self, ctx, x, y):
        return stablehlo.xor(x, y)


class Not(Bitwise):
    """~x."""

    host_kernel = np.invert
    samples = sample(bool_[3, 4]), sample(i32[3])

    def simplify(self, facts, x):
        inner = facts.defining_equation(x, Not)
        return None if inner is None else inner.inputs[0]

    def lower(self, ctx, x):
        return stablehlo.not_(x)


class ShiftLeft(Bitwise):
    """x << y; zero once y reaches the number of bits."""

    accepts = "iu"
    samples = sample(u32[3, 4], u32[3, 4]), sample(i32[3], i32[()], domain=(0, 4))

    def lower(self, ctx, x, y):
        return stablehlo.shift_left(x, y)


class ShiftRightLogical(Bitwise):
    """x >> y, zeros moving in from the left."""

    accepts = "iu"
    samples = sample(u32[3, 4], u32[3, 4]), sample(i32[3], i32[()], domain=(0, 4))

    def lower(self, ctx, x, y):
        return stablehlo.shift_right_logical(x, y)


class ShiftRightArithmetic(Bitwise):
    """x >> y, copies of the sign bit moving in from the left."""

    accepts = "iu"
    samples = sample(u32[3, 4], u32[3, 4]), sample(i32[3], i32[()], domain=(0, 4))

    def lower(self, ctx, x, y):
        return stablehlo.shift_right_arithmetic(x, y)


class PopulationCount(Bitwise):
    """The number of bits of x that are set."""

    accepts = "iu"
    samples = sample(u32[3, 4]), sample(i32[3], domain=(0, 9))

    def lower(self, ctx, x):
        return stablehlo.popcnt(x)


class CountLeadingZeros(Bitwise):
    """The number of zero bits before the highest bit of x that is set."""

    accepts = "iu"
    samples = sample(u32[3, 4]), sample(i32[3])

    def lower(self, ctx, x):
        return stablehlo.count_leading_zeros(x)


def simplify_and_or(x: Any, y: Any, neutral: Any, final: Any) -> Any:
    """What two operands come to where they are one, or one of them decides; None elsewhere."""
    if is_same_value(x, y):
        return x
    for number, other in ((x, y), (y, x)):
        if is_literal_equal(number, neutral):
            return other
        if is_literal_equal(number, final):
            return literal(final, x.aval.dtype)
    return None


def bitwise_and(x: Any, y: Any) -> Any:
    """x & y, elementwise, of booleans or of the bits of integers."""
    return And()(*promote_scalars(x, y))


def bitwise_or(x: Any, y: Any) -> Any:
    """x | y, elementwise, of booleans or of the bits of integers."""
    return Or()(*promote_scalars(x, y))


def bitwise_xor(x: Any, y: Any) -> Any:
    """x ^ y, elementwise, of booleans or of the bits of integers."""
    return Xor()(*promote_scalars(x, y))


def bitwise_not(x: Any) -> Any:
    """~x, elementwise, of booleans or of the bits of integers."""
    return Not()(x)


def shift_left(x: Any, y: Any) -> Any:
    """x << y, elementwise; zero once y reaches the number of bits."""
    return ShiftLeft()(*promote_scalars(x, y))


def shift_right_logical(x: Any, y: Any) -> Any:
    """x >> y, elementwise, zeros moving in from the left."""
    return ShiftRightLogical()(*promote_scalars(x, y))


def shift_right_arithmetic(x: Any, y: Any) -> Any:
    """x >> y, elementwise, copies of the sign bit moving in from the left."""
    return ShiftRightArithmetic()(*promote_scalars(x, y))


def population_count(x: Any) -> Any:
    """The number of bits that are set, elementwise."""
    return PopulationCount()(x)


def clz(x: Any) -> Any:
    """The number of zero bits before the highest one that is set, elementwise."""
    return CountLeadingZeros()(x)
