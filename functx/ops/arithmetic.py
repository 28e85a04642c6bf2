"""Elementwise arithmetic: sums, products, quotients, signs and extrema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.mlir.dialects import chlo, stablehlo

from functx import ops
from functx.core.primitive_families import HasHostKernel, HasJet
from functx.core.program import Atom
from functx.core.samples import CORRECTLY_ROUNDED, EXACT, Rounding, Sample, c64, f32, i32, sample
from functx.core.types import DType, ShapedArray, is_complex, is_inexact, kind, real_dtype
from functx.core.typing import ArrayLike, Cotangents, IRValue, Mask, Tangent, Value
from functx.ops.families import Binary, Unary, apply_mask, binary_function, lower_to, unary_function
from functx.ops.operands import (
    RewriteContext,
    Simplified,
    has_exact_arithmetic,
    is_finite_literal,
    is_literal_equal,
    is_same_value,
    literal,
    promote_scalars,
)

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext
    from functx.transforms.coefficients import Series
    from functx.transforms.series import SeriesEvaluator

BOOL = np.dtype("bool")


class Neg(Unary, HasHostKernel):
    """-x."""

    has_finite_derivative = True
    accepts = "iufc"
    linear = (0,)
    numpy = host_kernel = np.negative
    host_kernel_kinds = "iuf"
    rounding = EXACT
    samples = (sample(f32[3, 4]),)

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        return neg(t)

    def preserves_zero(self, i: int, x: Value) -> bool:
        return True

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        inner = context.defining_equation(x, Neg)
        return None if inner is None else inner.inputs[0]

    lower = lower_to(stablehlo.negate)


class Add(Binary, HasHostKernel):
    """x + y."""

    has_finite_derivative = True
    accepts = "biufc"
    linear = (0, 1)
    numpy = host_kernel = np.add
    rounding = Rounding(is_exact_if_representable=True, is_componentwise=True)
    samples = sample(f32[3, 4], f32[3, 4]), sample(f32[3], f32[()])

    def partial(self, i: int, t: Value, out: Value, x: Value, y: Value) -> Tangent:
        return t

    def simplify(self, context: RewriteContext, x: Atom, y: Atom) -> Simplified:
        # Adding +0 would make +0 of -0.
        zero = 0 if has_exact_arithmetic(x) else -0.0
        if is_literal_equal(x, zero):
            return y
        return x if is_literal_equal(y, zero) else None

    def lower(self, ctx: LoweringContext, x: IRValue, y: IRValue) -> IRValue:
        # XLA may rewrite the sum of two equal booleans as twice one, which is 0.
        add = stablehlo.or_ if ctx.avals_in[0].dtype == bool else stablehlo.add
        return add(x, y)


class Sub(Binary, HasHostKernel):
    """x - y."""

    has_finite_derivative = True
    accepts = "iufc"
    linear = (0, 1)
    numpy = host_kernel = np.subtract
    host_kernel_kinds = "iuf"
    rounding = Rounding(is_exact_if_representable=True, is_componentwise=True)
    samples = sample(f32[3, 4], f32[3, 4]), sample(f32[()], f32[3])

    def partial(self, i: int, t: Value, out: Value, x: Value, y: Value) -> Tangent:
        return t if i == 0 else neg(t)

    def preserves_zero(self, i: int, x: Value, y: Value) -> bool:
        return True

    def simplify(self, context: RewriteContext, x: Atom, y: Atom) -> Simplified:
        if is_literal_equal(y, 0.0 if is_inexact(x.aval.dtype) else 0):
            return x
        return literal(0, x.aval.dtype) if x is y and has_exact_arithmetic(x) else None

    lower = lower_to(stablehlo.subtract)


class Mul(Binary, HasHostKernel, HasJet):
    """x * y."""

    has_finite_derivative = True
    linear = (0, 1)
    numpy = host_kernel = np.multiply
    rounding = CORRECTLY_ROUNDED
    samples = sample(f32[3, 4], f32[3, 4]), sample(f32[3], f32[()])

    def partial(self, i: int, t: Value, out: Value, x: Value, y: Value) -> Tangent:
        return mul(t, y if i == 0 else x)

    def jet(self, evaluator: SeriesEvaluator, x: Series, y: Series) -> Series:
        return evaluator.product(self, x, y)

    def preserves_zero(self, i: int, x: Value, y: Value) -> bool:
        return is_finite_literal(y if i == 0 else x)

    def simplify(self, context: RewriteContext, x: Atom, y: Atom) -> Simplified:
        for one, other in ((x, y), (y, x)):
            if is_literal_equal(one, 1):
                return other
            if has_exact_arithmetic(x) and is_literal_equal(one, 0):
                return one
        return None

    def lower(self, ctx: LoweringContext, x: IRValue, y: IRValue) -> IRValue:
        multiply = stablehlo.and_ if ctx.avals_in[0].dtype == bool else stablehlo.multiply
        return multiply(x, y)


class Div(Binary, HasHostKernel, HasJet):
    """x / y; between integers, the quotient rounded towards zero."""

    accepts = "iufc"
    linear = (0,)
    host_kernel = np.divide
    host_kernel_kinds = "f"
    rounding = CORRECTLY_ROUNDED
    samples = sample(f32[3, 4], f32[3, 4], nonzero=(1,)), sample(f32[()], f32[3], nonzero=(1,))

    def partial(self, i: int, t: Value, out: Value, x: Value, y: Value) -> Tangent:
        # d(x / y) = dx / y - out * dy / y
        slope = div(t, y)
        return slope if i == 0 else neg(mul(slope, out))

    def jet(self, evaluator: SeriesEvaluator, x: Series, y: Series) -> Series:
        return evaluator.quotient(self, x, y)

    def preserves_zero(self, i: int, x: Value, y: Value) -> bool:
        return i == 0 and is_finite_literal(y, but_zero=True)

    def simplify(self, context: RewriteContext, x: Atom, y: Atom) -> Simplified:
        return x if is_literal_equal(y, 1) else None

    lower = lower_to(stablehlo.divide)


class Sign(Unary):
    """-1, 0 or 1 as x is below, at or above zero; x / |x| for complex x, and 0 at 0."""

    accepts = "iufc"
    numpy = np.sign
    rounding = EXACT
    samples = (
        sample(f32[3, 4], nonzero=(0,)),
        sample(c64[3], nonzero=(0,)),
        sample(f32[3], values={0: [-2.0, 0.0, 3.0]}, gradients={0: [0.0, 0.0, 0.0]}),
        sample(i32[3]),
    )

    def varying_outputs(
        self, avals: Sequence[ShapedArray], active: Sequence[bool]
    ) -> Sequence[bool]:
        return [is_complex(avals[0].dtype)]

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Value]) -> tuple[Value, Tangent]:
        (x,), (t,) = primals, tangents
        out = self(x)
        if not is_complex(x.dtype):
            return out, None
        # d(x / |x|) = i out imag(conj(out) dx) / |x|
        rotation = div(ops.imag(mul(ops.conj(out), t)), replace_zero_by_one(abs(x)))
        return out, mul(out, ops.complex(0.0, rotation))

    def vjp(
        self, ct: Value, out: Value, args: Sequence[Value], active: Sequence[bool]
    ) -> Cotangents:
        (x,) = args
        if not is_complex(x.dtype):
            return (None,)
        # The transpose: i conj(out) imag(ct out) / |x|
        rotation = div(ops.imag(mul(ct, out)), replace_zero_by_one(abs(x)))
        return (mul(ops.conj(out), ops.complex(0.0, rotation)),)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        if kind(ctx.avals_in[0].dtype) == "u":
            return ctx.via_jax(lax.sign, x)
        if is_complex(ctx.avals_in[0].dtype):
            return ctx.via_jax(_complex_sign, x)
        return stablehlo.sign(x)


class Abs(Unary, HasHostKernel):
    """|x|, real for complex x; the derivative at 0 is 0."""

    has_finite_derivative = True
    accepts = "iufc"
    numpy = host_kernel = np.absolute
    host_kernel_kinds = "iuf"
    rounding = CORRECTLY_ROUNDED
    samples = (
        sample(f32[3, 4], nonzero=(0,)),
        sample(c64[3], nonzero=(0,)),
        sample(f32[3], values={0: [-2.0, 0.0, 3.0]}, gradients={0: [-1.0, 0.0, 1.0]}),
        sample(c64[2], values={0: [0.0, 3.0 - 4.0j]}, gradients={0: [0.0, 0.6 + 0.8j]}),
        sample(i32[3]),
    )

    def out_dtype(self, dtype: DType) -> DType:
        return real_dtype(dtype)

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Value]) -> tuple[Value, Tangent]:
        (x,), (t,) = primals, tangents
        slope = sign(x)
        if not is_complex(x.dtype):
            return self(x), apply_mask(self.nonzero_derivative_mask(0, x), mul(t, slope))
        # d|x| = re(conj(x / |x|) dx)
        return self(x), ops.real(mul(t, ops.conj(slope)))

    def vjp(
        self, ct: Value, out: Value, args: Sequence[Value], active: Sequence[bool]
    ) -> Cotangents:
        (x,) = args
        slope = sign(x)
        if not is_complex(x.dtype):
            return (apply_mask(self.nonzero_derivative_mask(0, x), mul(ct, slope)),)
        return (mul(ops.complex(ct, 0.0), ops.conj(slope)),)

    def nonzero_derivative_mask(self, i: int, x: Value) -> Mask:
        return ops.ne(x, 0)

    def preserves_zero(self, i: int, x: Value) -> bool:
        return not is_complex(x.dtype)

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        if context.defining_equation(x, Abs) is not None:
            return x
        inner = context.defining_equation(x, Neg)
        return None if inner is None or has_exact_arithmetic(x) else (self, inner.inputs)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        dtype = ctx.avals_in[0].dtype
        if kind(dtype) == "u":
            return x
        return ctx.via_jax(_complex_abs, x) if is_complex(dtype) else stablehlo.abs(x)


class Rem(Binary):
    """The remainder of x / y rounded towards zero; it has the sign of x."""

    accepts = "iuf"
    numpy = np.fmod
    rounding = EXACT
    samples = (
        sample(f32[3, 4], f32[3, 4], nonzero=(1,)),
        sample(f32[()], f32[3], nonzero=(1,)),
        sample(i32[3], i32[3], nonzero=(1,)),
    )

    def partial(self, i: int, t: Value, out: Value, x: Value, y: Value) -> Tangent:
        # x = out + y * n for the integer n, the quotient rounded towards zero
        return t if i == 0 else neg(mul(t, ops.round(div(sub(x, out), y))))

    lower = lower_to(stablehlo.remainder)


class _BinaryExtremum(Binary, abstract=True):
    """The larger or the smaller operand; nan where either is. Ties share the derivative."""

    rounding = EXACT
    has_finite_derivative = True

    def partial(self, i: int, t: Value, out: Value, x: Value, y: Value) -> Tangent:
        tie = ops.select(ops.eq(x, y), mul(t, 0.5), 0)
        return ops.select(self.is_selected((x, y)[i], (y, x)[i], out), t, tie)

    def nonzero_derivative_mask(self, i: int, x: Value, y: Value) -> Mask:
        if is_complex(x.dtype):
            return None
        return ops.bitwise_not(
            self.is_strictly_selected(y, x) if i == 0 else self.is_strictly_selected(x, y)
        )

    def preserves_zero(self, i: int, x: Value, y: Value) -> bool:
        return True

    def is_selected(self, x: Value, y: Value, out: Value) -> Value:
        """The mask of elements where the output is x and not y."""
        return (
            ops.bitwise_and(ops.eq(x, out), ops.ne(x, y))
            if is_complex(x.dtype)
            else self.is_strictly_selected(x, y)
        )

    def simplify(self, context: RewriteContext, x: Atom, y: Atom) -> Simplified:
        return x if is_same_value(x, y) else None

    def is_strictly_selected(self, x: Value, y: Value) -> Value:
        """`is_selected` for operands that are not complex."""
        raise NotImplementedError


def complex_max(x: Value, y: Value) -> Value:
    """The larger of complex arrays of JAX; nan where either is, which `lax.max` does not ensure."""
    return _first_nan(x, y, lax.max(x, y))


def complex_min(x: Value, y: Value) -> Value:
    """The smaller of complex arrays of JAX; nan where either is, which `lax.min` does not ensure."""
    return _first_nan(x, y, lax.min(x, y))


def _first_nan(x: Value, y: Value, otherwise: Value) -> Value:
    return lax.select(lax.ne(x, x), x, lax.select(lax.ne(y, y), y, otherwise))


def _extremum_samples(*gradients: list[float]) -> tuple[Sample, ...]:
    """Samples, among them one with ties, with the expected `gradients` of its two operands."""
    values = {0: [1.0, 2.0, 3.0], 1: [2.0, 2.0, 2.0]}
    return (
        sample(f32[3, 4], f32[3, 4]),
        sample(f32[()], f32[3]),
        sample(f32[3], f32[3], values=values, gradients=dict(enumerate(gradients))),
        sample(c64[3], c64[3]),
        sample(i32[3], i32[3]),
    )


class Max(_BinaryExtremum):
    """The larger of x and y; nan where either is.

    Operands that tie share the derivative. Complex numbers compare by their real parts first.
    """

    numpy = np.maximum
    samples = _extremum_samples([0.0, 0.5, 1.0], [1.0, 0.5, 0.0])

    def is_strictly_selected(self, x: Value, y: Value) -> Value:
        return ops.gt(x, y)

    def lower(self, ctx: LoweringContext, x: IRValue, y: IRValue) -> IRValue:
        if is_complex(ctx.avals_in[0].dtype):
            return ctx.via_jax(complex_max, x, y)
        return stablehlo.maximum(x, y)


class Min(_BinaryExtremum):
    """The smaller of x and y; nan where either is.

    Operands that tie share the derivative. Complex numbers compare by their real parts first.
    """

    numpy = np.minimum
    samples = _extremum_samples([1.0, 0.5, 0.0], [0.0, 0.5, 1.0])

    def is_strictly_selected(self, x: Value, y: Value) -> Value:
        return ops.lt(x, y)

    def lower(self, ctx: LoweringContext, x: IRValue, y: IRValue) -> IRValue:
        if is_complex(ctx.avals_in[0].dtype):
            return ctx.via_jax(complex_min, x, y)
        return stablehlo.minimum(x, y)


class NextAfter(Binary):
    """The number of the dtype that follows x in the direction of y."""

    jax_primitive = "nextafter"
    accepts = "f"
    samples = (sample(f32[3, 4], f32[3, 4]),)

    def partial(self, i: int, t: Value, out: Value, x: Value, y: Value) -> Tangent:
        return t if i == 0 else ops.zeros_like(t)

    lower = lower_to(chlo.next_after)


def _complex_abs(x: Value) -> Value:
    """|x| of JAX complex numbers: infinite if a part is, even if the other is nan."""
    return jnp.where(_signs_of_infinite_parts(x) != 0, jnp.inf, lax.abs(x))


def _complex_sign(x: Value) -> Value:
    """x / |x| of JAX complex numbers, also where a part is infinite."""
    signs = _signs_of_infinite_parts(x)
    finite = jnp.where(x == 0, 0, lax.sign(x))  # 0 without signs, as in NumPy
    return jnp.where(lax.abs(signs) == 1, signs, finite)


def _signs_of_infinite_parts(x: Value) -> Value:
    """The complex numbers of the signs of infinite parts, 0 for finite ones."""
    parts = [jnp.where(jnp.isinf(p), lax.sign(p), 0) for p in (lax.real(x), lax.imag(x))]
    return lax.complex(*parts)


def replace_zero_by_one(x: ArrayLike) -> Value:
    """`x` with 0 replaced by 1."""
    return ops.select(ops.eq(x, 0), 1, x)


neg = unary_function(Neg)
add = binary_function(Add)
sub = binary_function(Sub)
mul = binary_function(Mul)
div = binary_function(Div)
rem = binary_function(Rem)
max = binary_function(Max)
min = binary_function(Min)
abs = unary_function(Abs)
sign = unary_function(Sign)


def nextafter(x1: ArrayLike, x2: ArrayLike) -> Value:
    """The number of the dtype that follows `x1` in the direction of `x2`, elementwise."""
    return NextAfter()(*promote_scalars(x1, x2))
