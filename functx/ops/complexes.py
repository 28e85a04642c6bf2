"""Complex numbers and their parts.

Cotangents pair with tangents as re(ct * t), without conjugation.
"""

from __future__ import annotations

from typing import Any

from jax.extend.mlir.dialects import stablehlo

from functx.core.dtypes import complex_dtype, real_dtype
from functx.core.errors import DTypeError
from functx.core.primitive import LinearInput
from functx.core.samples import c64, f32, sample
from functx.ops.arithmetic import neg
from functx.ops.families import Binary, Unary, broadcast_scalar, unbroadcast_scalar
from functx.ops.operands import promote_scalars


class Complex(Binary):
    """re + i im."""

    accepts = "f"
    samples = sample(f32[3, 4], f32[3, 4]), sample(f32[()], f32[3])

    def out_dtype(self, dtype):
        if dtype.itemsize < 4:
            raise DTypeError(
                f"complex: the parts must be float32 or float64; got {dtype}",
                fix="Convert with astype.",
            )
        return complex_dtype(dtype)

    def jvp(self, primals, tangents):
        out = self(*primals)
        parts = [0.0 if t is None else t for t in tangents]
        return out, broadcast_scalar(complex(*parts), out.shape)

    def vjp(self, ct, out, args, active):
        return self._operand_cotangents(ct, args, active)

    def transpose(self, ct, re, im):
        return self._operand_cotangents(
            ct, (re, im), (type(re) is LinearInput, type(im) is LinearInput)
        )

    def _operand_cotangents(self, ct: Any, args: Any, active: Any) -> list[Any]:
        # re(ct * (re + i im)) = real(ct) re - imag(ct) im
        re, im = args
        return [
            unbroadcast_scalar(real(ct), re) if active[0] else None,
            unbroadcast_scalar(neg(imag(ct)), im) if active[1] else None,
        ]

    def lower(self, ctx, re, im):
        return stablehlo.complex(re, im)


class _ComplexPart(Unary, abstract=True):
    """The real or the imaginary part."""

    accepts = "c"

    def out_dtype(self, dtype):
        return real_dtype(dtype)

    def jvp(self, primals, tangents):
        return self(*primals), self(*tangents)

    def preserves_zero(self, i, x):
        return True

    def vjp(self, ct, out, args, active):
        return self.transpose(ct, *args)

    view = True

    def view_strides(self, x, strides):
        return tuple([2 * n for n in strides])


class Real(_ComplexPart):
    """The real part."""

    samples = (sample(c64[3, 4]),)

    def transpose(self, ct, x):
        return (complex(ct, 0.0),)

    def scatter_into_base(self, part, index, x):
        return complex(part, imag(x))

    def simplify(self, facts, x):
        inner = facts.defining_equation(x, Complex)
        return None if inner is None else inner.inputs[0]

    def lower(self, ctx, x):
        return stablehlo.real(x)


class Imag(_ComplexPart):
    """The imaginary part."""

    samples = (sample(c64[3, 4]),)

    def transpose(self, ct, x):
        # ct imag(x) = re(-i ct x)
        return (complex(0.0, neg(ct)),)

    def scatter_into_base(self, part, index, x):
        return complex(real(x), part)

    def view_offset(self, x, strides, index):
        # Counted in elements of the part: it lies behind the real one.
        return 1

    def simplify(self, facts, x):
        inner = facts.defining_equation(x, Complex)
        return None if inner is None else inner.inputs[1]

    def lower(self, ctx, x):
        return stablehlo.imag(x)


class Conj(Unary):
    """The complex conjugate."""

    accepts = "c"
    linear = (0,)
    samples = (sample(c64[3, 4]),)

    def partial(self, i, t, out, x):
        return conj(t)

    def preserves_zero(self, i, x):
        return True

    def simplify(self, facts, x):
        inner = facts.defining_equation(x, Conj)
        return None if inner is None else inner.inputs[0]

    def lower(self, ctx, x):
        return stablehlo.complex(stablehlo.real(x), stablehlo.negate(stablehlo.imag(x)))


def complex(re: Any, im: Any) -> Any:
    """re + i im, elementwise, of two float32 or two float64 operands."""
    return Complex()(*promote_scalars(re, im))


def real(x: Any) -> Any:
    """The real part of a complex `x`, elementwise."""
    return Real()(x)


def imag(x: Any) -> Any:
    """The imaginary part of a complex `x`, elementwise."""
    return Imag()(x)


def conj(x: Any) -> Any:
    """The complex conjugate of a complex `x`, elementwise."""
    return Conj()(x)
