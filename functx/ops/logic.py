"""Comparisons, bitwise operations and selections, elementwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from functx.core.errors import ArgumentError, DTypeError
from functx.core.index_sets import DependentOperand, IndexSets, Sets
from functx.core.primitive_families import HasHostKernel
from functx.core.program import Atom, Literal
from functx.core.samples import EXACT, bool_, c64, f32, i32, sample, u32
from functx.core.tracer import aval_of
from functx.core.types import ShapedArray, is_integer
from functx.core.typing import (
    ArrayLike,
    IRValue,
    Keys,
    Mask,
    NumPyArray,
    Tangent,
    Value,
    Values,
)
from functx.ops.families import (
    Bitwise,
    Comparison,
    Elementwise,
    binary_function,
    broadcast_scalar,
    check_same_dtype,
    elementwise_shape,
    lower_to,
    unary_function,
)
from functx.ops.operands import (
    RewriteContext,
    Simplified,
    all_ones,
    is_literal_equal,
    is_same_value,
    literal,
    promote_scalars,
)

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class _StablehloComparison(Comparison, HasHostKernel, abstract=True):
    """A comparison that StableHLO calls `direction`."""

    direction: ClassVar[str]

    def lower(self, ctx: LoweringContext, x: IRValue, y: IRValue) -> IRValue:
        return ctx.compare(x, y, self.direction, ctx.avals_in[0])


class Eq(_StablehloComparison):
    """x == y; false where either is nan."""

    direction = "EQ"
    numpy = host_kernel = np.equal
    samples = sample(f32[3, 4], f32[3, 4]), sample(i32[3], i32[()]), sample(c64[3], c64[3])


class Ne(_StablehloComparison):
    """x != y; true where either is nan."""

    direction = "NE"
    numpy = host_kernel = np.not_equal
    samples = sample(f32[3, 4], f32[3, 4]), sample(i32[()], i32[3]), sample(c64[3], c64[3])


class Lt(_StablehloComparison):
    """x < y; complex numbers have no order."""

    direction = "LT"
    accepts = "biuf"
    numpy = host_kernel = np.less
    samples = sample(f32[3, 4], f32[3, 4]), sample(i32[3], i32[()]), sample(bool_[3], bool_[3])


class Le(_StablehloComparison):
    """x <= y; complex numbers have no order."""

    direction = "LE"
    accepts = "biuf"
    numpy = host_kernel = np.less_equal
    samples = sample(f32[3, 4], f32[3, 4]), sample(u32[3], u32[()])


class Gt(_StablehloComparison):
    """x > y; complex numbers have no order."""

    direction = "GT"
    accepts = "biuf"
    numpy = host_kernel = np.greater
    samples = sample(f32[3, 4], f32[3, 4]), sample(i32[3], i32[()])


class Ge(_StablehloComparison):
    """x >= y; complex numbers have no order."""

    direction = "GE"
    accepts = "biuf"
    numpy = host_kernel = np.greater_equal
    samples = sample(f32[3, 4], f32[3, 4]), sample(u32[3], u32[()])


class _BitwiseLogic(Bitwise, HasHostKernel, abstract=True):
    host_kernel_kinds = "biu"


class And(_BitwiseLogic):
    """x & y, of booleans or of the bits of integers."""

    numpy = host_kernel = np.bitwise_and
    samples = sample(bool_[3, 4], bool_[3, 4]), sample(i32[3], i32[()])

    def simplify(self, context: RewriteContext, x: Atom, y: Atom) -> Simplified:
        return simplify_and_or(x, y, neutral=all_ones(x.aval), final=0)

    lower = lower_to(stablehlo.and_)


class Or(_BitwiseLogic):
    """x | y, of booleans or of the bits of integers."""

    numpy = host_kernel = np.bitwise_or
    samples = sample(bool_[3, 4], bool_[3, 4]), sample(i32[()], i32[3])

    def simplify(self, context: RewriteContext, x: Atom, y: Atom) -> Simplified:
        return simplify_and_or(x, y, neutral=0, final=all_ones(x.aval))

    lower = lower_to(stablehlo.or_)


class Xor(_BitwiseLogic):
    """x ^ y, of booleans or of the bits of integers."""

    numpy = host_kernel = np.bitwise_xor
    samples = sample(bool_[3, 4], bool_[3, 4]), sample(u32[3], u32[()])

    def simplify(self, context: RewriteContext, x: Atom, y: Atom) -> Simplified:
        if x is y:
            return literal(0, x.aval.dtype)
        if is_literal_equal(x, 0):
            return y
        return x if is_literal_equal(y, 0) else None

    lower = lower_to(stablehlo.xor)


class Not(_BitwiseLogic):
    """~x, of booleans or of the bits of integers."""

    numpy = host_kernel = np.invert
    samples = sample(bool_[3, 4]), sample(i32[3])

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        inner = context.defining_equation(x, Not)
        return None if inner is None else inner.inputs[0]

    lower = lower_to(stablehlo.not_)


class ShiftLeft(Bitwise):
    """x << y; zero once y reaches the number of bits."""

    accepts = "iu"
    samples = sample(u32[3, 4], u32[3, 4]), sample(i32[3], i32[()], domain=(0, 4))

    lower = lower_to(stablehlo.shift_left)


class ShiftRightLogical(Bitwise):
    """x >> y, filled with zeros from the left."""

    accepts = "iu"
    samples = sample(u32[3, 4], u32[3, 4]), sample(i32[3], i32[()], domain=(0, 4))

    lower = lower_to(stablehlo.shift_right_logical)


class ShiftRightArithmetic(Bitwise):
    """x >> y, filled with copies of the sign bit from the left."""

    accepts = "iu"
    samples = sample(u32[3, 4], u32[3, 4]), sample(i32[3], i32[()], domain=(0, 4))

    lower = lower_to(stablehlo.shift_right_arithmetic)


class PopulationCount(Bitwise):
    """The number of bits of x that are set."""

    accepts = "iu"
    numpy = np.bitwise_count
    samples = sample(u32[3, 4]), sample(i32[3], domain=(0, 9))

    lower = lower_to(stablehlo.popcnt)


class CountLeadingZeros(Bitwise):
    """The number of zero bits before the highest bit of x that is set."""

    jax_primitive = "clz"
    accepts = "iu"
    samples = sample(u32[3, 4]), sample(i32[3])

    lower = lower_to(stablehlo.count_leading_zeros)


def simplify_and_or(x: Atom, y: Atom, neutral: int, final: int) -> Simplified:
    """The simplified form of x & y or x | y if the operands are equal or one decides; else None."""
    if is_same_value(x, y):
        return x
    for number, other in ((x, y), (y, x)):
        if is_literal_equal(number, neutral):
            return other
        if is_literal_equal(number, final):
            return literal(final, x.aval.dtype)
    return None


class Select(Elementwise):
    """`on_true` where `pred` holds, else `on_false`; the other operand has no influence.

    The operands are `pred, on_false, on_true`; the function `select` takes `pred, on_true, on_false`.
    """

    has_finite_derivative = True
    linear = (1, 2)
    rounding = EXACT
    samples = (
        sample(bool_[3, 4], f32[3, 4], f32[3, 4]),
        sample(bool_[()], f32[3], f32[3]),
        sample(bool_[3], f32[()], f32[3]),
        sample(bool_[3], c64[3], c64[()]),
        sample(bool_[3], i32[3], i32[3]),
    )

    def abstract_eval(
        self, pred: ShapedArray, on_false: ShapedArray, on_true: ShapedArray
    ) -> ShapedArray:
        if pred.dtype != bool:
            raise DTypeError(
                f"select: the condition must be boolean; got {pred!r}",
                fix="Compare it with something, as in `x != 0`.",
            )
        check_same_dtype(self, (on_false, on_true))
        shape = elementwise_shape(self, (pred, on_false, on_true))
        weak = on_false.weak_type and on_true.weak_type
        return ShapedArray(shape, on_false.dtype, weak)

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        pred, on_false, on_true = operands
        known = pred.value()
        if known is None:
            return sets.union(on_false.sets, on_true.sets)
        return np.where(known, *[0 if x.sets is None else x.sets for x in (on_true, on_false)])

    def jvp(self, primals: Values, tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        out = self(*primals)
        zero = literal(0, out.dtype)
        cases = [zero if t is None else t for t in tangents[1:]]
        return out, broadcast_scalar(self(primals[0], *cases), out.shape)

    def partial(
        self, i: int, t: Value, out: Value, pred: Value, on_false: Value, on_true: Value
    ) -> Tangent:
        zero = literal(0, t.dtype)
        return self(pred, t, zero) if i == 1 else self(pred, zero, t)

    def nonzero_derivative_mask(self, i: int, pred: Value, on_false: Value, on_true: Value) -> Mask:
        return (None, bitwise_not(pred), pred)[i] if i else None

    def preserves_zero(self, i: int, pred: Value, on_false: Value, on_true: Value) -> bool:
        return True

    def simplify(
        self, context: RewriteContext, pred: Atom, on_false: Atom, on_true: Atom
    ) -> Simplified:
        if is_same_value(on_false, on_true):
            return on_true
        if type(pred) is Literal:
            return on_true if pred.value else on_false
        inner = context.defining_equation(pred, Not)
        return None if inner is None else (self, [inner.inputs[0], on_true, on_false])

    def numpy(self, pred: NumPyArray, on_false: NumPyArray, on_true: NumPyArray) -> ArrayLike:
        return np.where(pred, on_true, on_false)

    def lower(
        self, ctx: LoweringContext, pred: IRValue, on_false: IRValue, on_true: IRValue
    ) -> IRValue:
        return stablehlo.select(pred, on_true, on_false)


class Clamp(Elementwise):
    """min(max(x, low), high); nan where any of the three is."""

    has_finite_derivative = True
    accepts = "biuf"
    rounding = EXACT
    samples = (
        sample(f32[3, 4], f32[3, 4], f32[3, 4]),
        sample(f32[()], f32[3], f32[()]),
        sample(i32[3], i32[3], i32[3]),
    )

    def partial(self, i: int, t: Value, out: Value, low: Value, x: Value, high: Value) -> Tangent:
        return select(self.nonzero_derivative_mask(i, low, x, high), t, 0)

    def nonzero_derivative_mask(self, i: int, low: Value, x: Value, high: Value) -> Value:
        # An operand has a derivative where it alone decides: at a tie with a bound all are 0.
        if i == 0:
            return bitwise_and(lt(x, low), lt(low, high))
        if i == 1:
            return bitwise_and(gt(x, low), lt(x, high))
        return bitwise_or(gt(x, high), gt(low, high))

    def preserves_zero(self, i: int, low: Value, x: Value, high: Value) -> bool:
        return True

    def numpy(self, low: NumPyArray, x: NumPyArray, high: NumPyArray) -> ArrayLike:
        return np.minimum(np.maximum(x, low), high)

    def lower(self, ctx: LoweringContext, low: IRValue, x: IRValue, high: IRValue) -> IRValue:
        if ctx.avals_in[1].dtype == bool:
            # XLA has no clamp of booleans on CPUs.
            return ctx.via_jax(lambda low, x, high: (low | x) & high, low, x, high)
        return stablehlo.clamp(low, x, high)


def eq(x: ArrayLike | Keys, y: ArrayLike | Keys) -> Value:
    """x == y, elementwise; false where either is nan."""
    return Eq()(*promote_scalars(x, y))


def ne(x: ArrayLike | Keys, y: ArrayLike | Keys) -> Value:
    """x != y, elementwise; true where either is nan."""
    return Ne()(*promote_scalars(x, y))


def select_n(which: ArrayLike, *cases: ArrayLike | Keys) -> Value:
    """`cases[which]`, elementwise; `which` is boolean, or integer for more than two cases.

    An integer out of range selects the nearest case. A scalar stands for a whole array.

    Raises ArgumentError without a case, and for a boolean with more than two, DTypeError where
    `which` is neither boolean nor integer, ShapeError for shapes that differ.
    """
    if not cases:
        raise ArgumentError("select_n: there must be at least one case; got none")
    aval = aval_of(which)
    if aval.dtype != bool and not is_integer(aval.dtype):
        raise DTypeError(
            f"select_n: `which` must be boolean or integer; got {aval!r}",
            fix="Compare it with something, or convert it with astype.",
        )
    if aval.dtype == bool and len(cases) > 2:
        raise ArgumentError(
            f"select_n: there must be at most two cases for a boolean `which`; got {len(cases)}",
            fix="Convert `which` to an integer.",
        )
    if len(cases) == 1:
        return cases[0]  # type: ignore[return-value]
    cases = promote_scalars(*cases)
    if aval.dtype == bool:
        on_false, on_true = cases
        return Select()(which, on_false, on_true)
    selected = select(ge(which, 1), cases[1], cases[0])
    for i, case in enumerate(cases[2:], 2):
        selected = select(ge(which, i), case, selected)
    return selected


def select(pred: ArrayLike, on_true: ArrayLike | Keys, on_false: ArrayLike | Keys) -> Value:
    """`on_true` where the boolean `pred` holds, else `on_false`, elementwise.

    An integer `pred` selects `on_true` where it is positive. A derivative goes through the selected
    operand alone. A scalar stands for a whole array.
    """
    if is_integer(aval_of(pred).dtype):
        return select_n(pred, on_false, on_true)
    on_true, on_false = promote_scalars(on_true, on_false)
    return Select()(pred, on_false, on_true)


def clamp(min: ArrayLike, x: ArrayLike, max: ArrayLike) -> Value:
    """The smaller of `max` and the larger of `x` and `min`, elementwise; nan where any of the three is.

    The derivative in `x` is 0 where it ties with a bound.
    """
    return Clamp()(*promote_scalars(min, x, max))


lt = binary_function(Lt)
le = binary_function(Le)
gt = binary_function(Gt)
ge = binary_function(Ge)
bitwise_and = binary_function(And, "bitwise_and")
bitwise_or = binary_function(Or, "bitwise_or")
bitwise_xor = binary_function(Xor, "bitwise_xor")
shift_left = binary_function(ShiftLeft)
shift_right_logical = binary_function(ShiftRightLogical)
shift_right_arithmetic = binary_function(ShiftRightArithmetic)
bitwise_not = unary_function(Not, "bitwise_not")
population_count = unary_function(PopulationCount)
clz = unary_function(CountLeadingZeros, "clz")
