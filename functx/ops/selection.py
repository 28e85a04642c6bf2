"""Choices between values, element by element."""

from __future__ import annotations

from typing import Any

from jax.extend.mlir.dialects import stablehlo

from functx.core.avals import ShapedArray
from functx.core.dtypes import is_integer
from functx.core.errors import ArgumentError, DTypeError
from functx.core.program import Literal
from functx.core.samples import bool_, c64, f32, i32, sample
from functx.core.tracing import aval_of
from functx.ops.comparison import ge, gt, lt
from functx.ops.families import Elementwise, broadcast_scalar, check_same_dtype, elementwise_shape
from functx.ops.identities import is_same_value
from functx.ops.logical import Not, bitwise_and, bitwise_not, bitwise_or
from functx.ops.operands import literal, promote_scalars


class Select(Elementwise):
    """`on_true` where `which` holds, else `on_false`; what is not taken has no influence."""

    has_finite_derivative = True
    linear = (1, 2)
    samples = (
        sample(bool_[3, 4], f32[3, 4], f32[3, 4]),
        sample(bool_[()], f32[3], f32[3]),
        sample(bool_[3], f32[()], f32[3]),
        sample(bool_[3], c64[3], c64[()]),
        sample(bool_[3], i32[3], i32[3]),
    )

    def abstract_eval(self, which, on_false, on_true):
        if which.dtype != bool:
            raise DTypeError(
                f"select: the condition must be boolean; got {which!r}",
                fix="Compare it with something, as in `x != 0`.",
            )
        check_same_dtype(self, (on_false, on_true))
        shape = elementwise_shape(self, (which, on_false, on_true))
        weak = on_false.weak_type and on_true.weak_type
        return ShapedArray(shape, on_false.dtype, weak)

    def jvp(self, primals, tangents):
        out = self(*primals)
        zero = literal(0, out.dtype)
        cases = [zero if t is None else t for t in tangents[1:]]
        return out, broadcast_scalar(self(primals[0], *cases), out.shape)

    def partial(self, i, t, out, which, on_false, on_true):
        zero = literal(0, t.dtype)
        return self(which, t, zero) if i == 1 else self(which, zero, t)

    def nonzero_derivative_mask(self, i, which, on_false, on_true):
        return (None, bitwise_not(which), which)[i] if i else None

    def preserves_zero(self, i, which, on_false, on_true):
        return True

    def simplify(self, facts, which, on_false, on_true):
        if is_same_value(on_false, on_true):
            return on_true
        if type(which) is Literal:
            return on_true if which.value else on_false
        inner = facts.defining_equation(which, Not)
        return None if inner is None else (self, [inner.inputs[0], on_true, on_false])

    def lower(self, ctx, which, on_false, on_true):
        return stablehlo.select(which, on_true, on_false)


class Clamp(Elementwise):
    """min(max(x, low), high); nan where any of the three is."""

    has_finite_derivative = True
    accepts = "biuf"
    samples = (
        sample(f32[3, 4], f32[3, 4], f32[3, 4]),
        sample(f32[()], f32[3], f32[()]),
        sample(i32[3], i32[3], i32[3]),
    )

    def partial(self, i, t, out, low, x, high):
        return select(self.nonzero_derivative_mask(i, low, x, high), t, 0)

    def nonzero_derivative_mask(self, i, low, x, high):
        # Each operand counts where it alone decides: a tie with a bound gives 0.
        if i == 0:
            return bitwise_and(lt(x, low), lt(low, high))
        if i == 1:
            return bitwise_and(gt(x, low), lt(x, high))
        return bitwise_or(gt(x, high), gt(low, high))

    def preserves_zero(self, i, low, x, high):
        return True

    def lower(self, ctx, low, x, high):
        if ctx.avals_in[1].dtype == bool:
            # XLA has no clamp of booleans on CPUs.
            return ctx.via_jax(lambda low, x, high: (low | x) & high, low, x, high)
        return stablehlo.clamp(low, x, high)


def select(which: Any, on_true: Any, on_false: Any) -> Any:
    """`on_true` where the boolean `which` holds, else `on_false`.

    A derivative goes through what was taken alone. Scalars stand for whole arrays.
    """
    on_true, on_false = promote_scalars(on_true, on_false)
    return Select()(which, on_false, on_true)


def select_n(which: Any, *cases: Any) -> Any:
    """`cases[which]`, element by element: `which` is boolean, or an integer for several cases.

    An integer out of range takes the nearest case. Scalars stand for whole arrays.

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
        return cases[0]
    cases = promote_scalars(*cases)
    if aval.dtype == bool:
        on_false, on_true = cases
        return Select()(which, on_false, on_true)
    taken = cases[0]
    for i, case in enumerate(cases[1:], 1):
        taken = select(ge(which, i), case, taken)
    return taken


def clamp(low: Any, x: Any, high: Any) -> Any:
    """min(max(x, low), high), elementwise; nan where any of the three is.

    The derivative in `x` is 0 where it ties with a bound.
    """
    return Clamp()(*promote_scalars(low, x, high))
