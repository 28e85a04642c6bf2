"""Elementwise powers: of any exponent, of integer and half-integer ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from jax import lax
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core.errors import ArgumentError, DTypeError
from functx.core.primitive_families import HasHostKernel
from functx.core.program import Atom, Literal
from functx.core.samples import CORRECTLY_ROUNDED, Rounding, c64, f32, i32, sample
from functx.core.tracer import Tracer, aval_of
from functx.core.types import ShapedArray, is_complex, is_inexact, is_integer, kind
from functx.core.typing import ArrayLike, IRValue, NumPyArray, Tangent, Value
from functx.ops.arithmetic import Abs, Add, Div, Max, Mul, Neg, mul, sub
from functx.ops.families import Binary, Unary, check_same_dtype, elementwise_shape, unary_function
from functx.ops.operands import (
    PYTHON_SCALARS,
    RewriteContext,
    Simplified,
    is_literal_equal,
    promote_scalars,
)

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class Pow(Binary):
    """x to the power y; y has the dtype of x, or an integer dtype if x is inexact.

    An integer to a negative power is 1 / x**-y rounded towards zero.
    """

    widens_one_byte_floats = True
    accepts = "iufc"
    rounding = Rounding(ulps=64.0)
    samples = (
        sample(f32[3, 4], f32[3, 4], domain={0: (0.5, 2.0)}),
        sample(f32[()], f32[3], domain={0: (0.5, 2.0)}),
        sample(f32[3], i32[3], nonzero=(0,)),
        sample(c64[3], c64[3], nonzero=(0,), domain={0: (0.5, 2.0)}),
        sample(
            f32[4],
            f32[4],
            values={0: [0.0, 0.0, 0.0, 3.0], 1: [0.0, 1.0, 2.0, 0.0]},
            gradients={0: [0.0, 1.0, 0.0, 0.0], 1: [0.0, 0.0, 0.0, math.log(3.0)]},
        ),
        sample(i32[3], i32[3], domain={1: (0, 3)}),
    )

    def abstract_eval(self, x: ShapedArray, y: ShapedArray) -> ShapedArray:
        mixed = is_inexact(x.dtype) and is_integer(y.dtype)
        check_same_dtype(self, (x,) if mixed else (x, y))
        return ShapedArray(elementwise_shape(self, (x, y)), x.dtype, x.weak_type and y.weak_type)

    def partial(self, i: int, t: Value, out: Value, x: Value, y: Value) -> Tangent:
        twice = twice_half_integer(x, y)
        if i == 0 and twice:
            return mul(t, mul(half_integer_pow(x, twice - 2), twice / 2))
        if i == 0:
            # y x**(y - 1), which at x = y = 0 is 0 and not 0 * inf.
            y = ops.convert_element_type(y, x.dtype)
            base = ops.select(ops.bitwise_and(ops.eq(x, 0), ops.eq(y, 0)), 1, x)
            return mul(t, mul(y, pow(base, sub(y, 1))))
        # log(x) x**y, which at x = 0 is 0 unless y is negative.
        base = ops.select(ops.bitwise_and(ops.eq(x, 0), _is_nonnegative(y)), 1, x)
        return mul(t, mul(ops.log(base), out))

    def simplify(self, context: RewriteContext, x: Atom, y: Atom) -> Simplified:
        if is_literal_equal(y, 1) and not is_complex(x.aval.dtype):
            return x
        twice = twice_half_integer(x, y)
        return (HalfIntegerPow(twice), [x]) if twice and is_nonnegative(context, x) else None

    def lower(self, ctx: LoweringContext, x: IRValue, y: IRValue) -> IRValue:
        source, target = ctx.avals_in[1], ctx.avals_in[0]
        if source.dtype != target.dtype:
            y = ctx.convert(y, source, target)
        if is_inexact(target.dtype):
            return stablehlo.power(x, y)
        return ctx.via_jax(_integer_power, x, y)


class IntegerPow(Unary):
    """x to the power `exponent`, by repeated multiplication."""

    exponent: int
    widens_one_byte_floats = True
    accepts = "iufc"
    rounding = CORRECTLY_ROUNDED
    samples = (
        sample(f32[3, 4], exponent=2),
        sample(f32[3], exponent=5),
        sample(f32[3], exponent=-3, nonzero=(0,)),
        sample(f32[3], exponent=1),
        sample(f32[3], exponent=0),
        sample(c64[3], exponent=3),
        sample(i32[3], exponent=4),
    )

    @property
    def has_finite_derivative(self) -> bool:  # type: ignore[override]
        return self.exponent >= 0

    @classmethod
    def from_jax_params(cls, y: int) -> IntegerPow:
        return cls(int(y))

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        check_same_dtype(self, (x,))
        if self.exponent < 0 and not is_inexact(x.dtype):
            raise DTypeError(
                "integer_pow: operands must be float or complex for a negative exponent; got "
                f"{x!r} to the power {self.exponent}",
                fix="Convert with astype(float).",
            )
        return x

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        n = self.exponent
        if n == 0:
            return None
        return mul(t, mul(integer_pow(x, n - 1), n)) if n != 1 else t

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        return x if self.exponent == 1 else None

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return x**self.exponent if self.exponent >= 0 else 1 / x**-self.exponent

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        one = ctx.constant(1, ctx.avals_in[0])
        n = -self.exponent if self.exponent < 0 else self.exponent
        product = None
        while n:
            if n % 2:
                product = x if product is None else stablehlo.multiply(product, x)
            n //= 2
            x = stablehlo.multiply(x, x) if n else x
        if product is None:
            return one
        return product if self.exponent > 0 else stablehlo.divide(one, product)


class HalfIntegerPow(Unary):
    """x to the power `numerator` / 2 for an odd `numerator`, by a square root and products; nan for x < 0.

    Simplification puts it in the place of `pow`, which takes several times as long.
    """

    widens_one_byte_floats = True
    numerator: int
    accepts = "f"
    rounding = Rounding(ulps=8.0)
    samples = (
        sample(f32[3, 4], numerator=3, domain=(0.5, 2.0)),
        sample(f32[3], numerator=-5, domain=(0.5, 2.0)),
    )

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        return mul(t, mul(half_integer_pow(x, self.numerator - 2), self.numerator / 2))

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.power(x, np.asarray(self.numerator / 2, x.dtype))

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        out = stablehlo.sqrt(x)
        if self.numerator < 0:
            # A reciprocal of the whole product would be infinite before the power is.
            one = ctx.constant(1, ctx.avals_in[0])
            x, out = stablehlo.divide(one, x), stablehlo.divide(one, out)
        for _ in range((abs(self.numerator) - 1) // 2):
            out = stablehlo.multiply(out, x)
        # The root of -0 is -0, of which an odd power would be -0 or -inf.
        return stablehlo.abs(out)


def half_integer_pow(x: Value, numerator: int) -> Value:
    """`x` to the power `numerator` / 2 for an odd `numerator`; nan for negative `x`."""
    return HalfIntegerPow(numerator)(x)


def twice_half_integer(x: Value | Atom, y: Value | Atom) -> int:
    """Twice the literal exponent `y` of `x` if it is half of a small odd integer, else 0."""
    exponent = y.atom if isinstance(y, Tracer) else y
    if type(exponent) is not Literal or aval_of(x).dtype not in (np.float32, np.float64):
        return 0
    # Values may be symbolic: they compare, but have no arithmetic.
    return next((n for n in (-5, -3, -1, 1, 3, 5) if exponent.value == n / 2), 0)


def is_nonnegative(context: RewriteContext, atom: Atom, depth: int = 8) -> bool:
    """Whether no element of `atom` is negative, by the few equations that define it."""
    if type(atom) is Literal:
        return not is_complex(atom.aval.dtype) and atom.value >= 0
    eqn = context.producers.get(atom)
    if eqn is None or not depth or kind(atom.aval.dtype) != "f":
        return False
    primitive, inputs = eqn.primitive, eqn.inputs
    if isinstance(primitive, (Square, Abs, ops.Exp)) or (
        type(primitive) is IntegerPow and primitive.exponent % 2 == 0
    ):
        return True
    if type(primitive) is Mul and inputs[0] is inputs[1]:
        return True
    keeps_signs = (Add, Mul, Div, Max, ops.ReduceSum, ops.BroadcastInDim, ops.Reshape, ops.Slice)
    return isinstance(primitive, keeps_signs) and all(
        [is_nonnegative(context, a, depth - 1) for a in inputs]
    )


class Square(Unary, HasHostKernel):
    """x * x."""

    has_finite_derivative = True
    accepts = "iufc"
    numpy = host_kernel = np.square
    host_kernel_kinds = "iuf"
    rounding = CORRECTLY_ROUNDED
    samples = sample(f32[3, 4]), sample(c64[3]), sample(i32[3])

    def derivative(self, out: Value, x: Value) -> Value:
        return mul(x, 2)

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        inner = context.defining_equation(x, Neg) or context.defining_equation(x, Abs)
        if inner is None or kind(inner.inputs[0].aval.dtype) != "f":
            return None
        return self, inner.inputs

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        if is_complex(ctx.avals_in[0].dtype):
            return ctx.via_jax(lax.square, x)
        return stablehlo.multiply(x, x)


def _integer_power(x: Value, y: Value) -> Value:
    """x**y of JAX integers, wrapping; XLA's power reads only six bits of the exponent."""
    bits = 8 * y.dtype.itemsize - (y.dtype.kind == "i")
    out, square = lax.full_like(x, 1), x
    for bit in range(bits):
        is_set = lax.ne(lax.bitwise_and(y, lax.full_like(y, 1 << bit)), lax.full_like(y, 0))
        out = lax.select(is_set, lax.mul(out, square), out)
        square = lax.mul(square, square)
    if y.dtype.kind == "u":
        return out
    # The only integers with an inverse are 1 and -1.
    has_inverse = lax.eq(lax.abs(x), lax.full_like(x, 1))
    odd = lax.ne(lax.bitwise_and(y, lax.full_like(y, 1)), lax.full_like(y, 0))
    inverse = lax.select(odd, x, lax.full_like(x, 1))
    fraction = lax.select(has_inverse, inverse, lax.full_like(x, 0))
    return lax.select(lax.lt(y, lax.full_like(y, 0)), fraction, out)


def _is_nonnegative(x: Value) -> Value:
    """Where `x`, or its real part, is not negative."""
    return ops.ge(ops.real(x) if is_complex(x.dtype) else x, 0)


square = unary_function(Square)


def pow(x: ArrayLike, y: ArrayLike) -> Value:
    """x to the power y, elementwise; y has the dtype of x, or an integer dtype if x is inexact.

    A Python integer y gives `integer_pow`. The derivative of x**0 is 0 everywhere. That in `y` is 0 at
    x = 0 unless y is negative.
    """
    if type(y) is int:
        return integer_pow(x, y)
    if not isinstance(x, int) and type(x) in PYTHON_SCALARS and is_integer(aval_of(y).dtype):
        return Pow()(x, y)
    return Pow()(*promote_scalars(x, y))


def integer_pow(x: ArrayLike, y: int) -> Value:
    """x to the power of the Python integer `y`, elementwise, by repeated multiplication.

    Raises ArgumentError for another `y`, DTypeError for integers to a negative power.
    """
    if not isinstance(y, int):
        raise ArgumentError(f"integer_pow: the exponent must be a Python int; got {y!r}")
    return x if y == 1 and type(x) is Tracer else IntegerPow(y)(x)


def reciprocal(x: ArrayLike) -> Value:
    """1 / x, elementwise."""
    return IntegerPow(-1)(x)
