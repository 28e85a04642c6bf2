"""Conversions: between dtypes, between numbers and bits, to integers, and between complex numbers and their parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core.errors import DTypeError, ShapeError, ValueRangeError
from functx.core.index_sets import DependentOperand, IndexSets, Sets
from functx.core.primitive_families import HasHostKernel, View
from functx.core.program import Atom
from functx.core.samples import EXACT, Rounding, bool_, c64, f32, i32, sample, u8
from functx.core.strides import MemoryOrder
from functx.core.tracer import HOST_ARRAY_TYPES, as_ndarray, aval_of, current_builder
from functx.core.types import (
    DType,
    ShapedArray,
    canonical_dtype,
    complex_dtype,
    is_complex,
    is_inexact,
    kind,
    real_dtype,
)
from functx.core.typing import (
    ArrayLike,
    Cotangent,
    Cotangents,
    Dim,
    DTypeLike,
    IRValue,
    Mask,
    NumPyArray,
    Tangent,
    Value,
    Values,
)
from functx.ops.families import (
    Binary,
    Linear,
    MapsLastDims,
    TransposedByVJP,
    Unary,
    broadcast_scalar,
    lower_to,
    unary_function,
    unbroadcast_scalar,
)
from functx.ops.operands import RewriteContext, Simplified, as_int, identity_result, promote_scalars

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class ConvertElementType(Linear, HasHostKernel):
    """`x` in `dtype`: floats to integers towards zero, complex to real by the real part.

    Numbers become bool by `x != 0`.
    """

    dtype: DType
    weak: bool = False
    memory_order = MemoryOrder.COPIED
    rounding = Rounding(is_exact_if_representable=True, is_componentwise=True)
    samples = (
        sample(f32[3], dtype="bfloat16"),
        sample(f32[3], dtype="complex64"),
        sample(c64[3], dtype="float32"),
        sample(f32[3], dtype="int32"),
        sample(i32[3], dtype="float32"),
        sample(bool_[3], dtype="float32"),
        sample(c64[3], dtype="bool"),
    )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        return x.update(dtype=canonical_dtype(self.dtype), weak_type=self.weak)

    def host_kernel(self, x: NumPyArray) -> NumPyArray | None:
        target = canonical_dtype(self.dtype)
        # The conversion of an out-of-range float to an integer depends on the machine.
        exact = target.kind in "biuf" and (x.dtype.kind != "f" or target.kind in "bf")
        return x.astype(target) if exact else None

    def jvp(self, primals: Values, tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        out = self(*primals)
        return out, self(*tangents) if is_inexact(out.dtype) else None

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        return operands[0].sets

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        return (convert_element_type(ct, x.dtype),)

    def tangent_mask(self, masks: Sequence[Mask], args: Values) -> Mask:
        return masks[0]

    def cotangent_masks(self, mask: Mask, args: Values) -> Sequence[Mask]:
        return [mask]

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Value, Dim]:
        return self(*args), dims[0]

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        target = canonical_dtype(self.dtype)
        if x.aval.dtype == target and x.aval.weak_type == self.weak:
            return x
        inner = context.defining_equation(x, ConvertElementType)
        if inner is None:
            return None
        (source,) = inner.inputs
        # A float out of range becomes an integer that depends on the machine.
        to_integer = kind(source.aval.dtype) in "fc" and kind(target) in "biu"
        if not holds_exactly(x.aval.dtype, source.aval.dtype) or to_integer:
            return None
        return self, [source]

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return ctx.convert(x, ctx.avals_in[0], ctx.avals_out[0])


def holds_exactly(wide: DType, dtype: DType) -> bool:
    """Whether `wide` represents every number of `dtype` exactly."""
    source, target = kind(dtype), kind(wide)
    if source == "b":
        return True
    if target == "b" or (source in "fc" and target in "iu") or (source == "c" and target != "c"):
        return False
    if target == "c":
        return holds_exactly(real_dtype(wide), real_dtype(dtype))
    if source == "f":
        a, b = ml_dtypes.finfo(dtype), ml_dtypes.finfo(wide)
        return bool(a.nmant <= b.nmant and a.maxexp <= b.maxexp and a.minexp >= b.minexp)
    integers = ml_dtypes.iinfo(dtype)
    if target == "f":
        bits = ml_dtypes.finfo(wide).nmant + 1
        return bool(
            -(2**bits) <= integers.min and integers.max <= 2**bits <= ml_dtypes.finfo(wide).max
        )
    target_integers = ml_dtypes.iinfo(wide)
    return bool(target_integers.min <= integers.min and integers.max <= target_integers.max)


class BitcastConvertType(MapsLastDims, View):
    """The bits of `x` as numbers of `dtype`.

    A narrower dtype adds a last dimension for the parts of each element. A wider one removes the last
    dimension, whose elements it joins. A boolean is a byte, True for any that is not 0.
    """

    dtype: DType
    differentiable = False
    samples = (
        sample(f32[3, 4], dtype="int32", dtypes=["f32"]),
        sample(f32[3], dtype="uint8", dtypes=["f32"]),
        sample(u8[3, 4], dtype="float32", dtypes=["u8"], domain=(0.0, 60.0)),
    )

    @classmethod
    def from_jax_params(cls, new_dtype: DType) -> BitcastConvertType:
        return cls(new_dtype)

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        dtype = canonical_dtype(self.dtype)
        if kind(x.dtype) == "c" or kind(dtype) == "c":
            raise DTypeError(
                f"bitcast_convert_type: both dtypes must be real; got {x!r} and {dtype}"
            )
        return ShapedArray(self._bitcast_shape(x, bit_width(x.dtype), bit_width(dtype)), dtype)

    def _bitcast_shape(self, x: ShapedArray, old: int, new: int) -> tuple[int, ...]:
        if old == new:
            return x.shape
        if old > new:
            return (*x.shape, old // new)
        if x.shape[-1:] != (new // old,):
            raise ShapeError(
                f"bitcast_convert_type: the last dimension must be {new // old}, the parts of one "
                f"element of {self.dtype}; got {x!r}"
            )
        return x.shape[:-1]

    def scatter_into_base(self, part: Value, index: Value | int, x: Value) -> Value:
        return convert_element_type(BitcastConvertType(x.dtype)(part), x.dtype, x.weak_type)

    def view_strides(self, x: ShapedArray, strides: tuple[int, ...]) -> tuple[int, ...] | None:
        old, new = bit_width(x.dtype), bit_width(canonical_dtype(self.dtype))
        if min(old, new) < 8:
            # In memory an integer of less bits takes a byte.
            return None
        if old < new:
            *leading, last = strides
            return None if last != 1 else tuple([n * old // new for n in leading])
        return strides if old == new else (*[n * old // new for n in strides], 1)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        source, (target,) = ctx.avals_in[0], ctx.avals_out
        if source.dtype == bool:
            byte = source.update(dtype=np.dtype(np.uint8))
            x, source = ctx.convert(x, source, byte), byte
        if target.dtype != bool:
            return stablehlo.bitcast_convert(ctx.out_types[0], x)
        byte = target.update(dtype=np.dtype(np.uint8))
        return ctx.convert(stablehlo.bitcast_convert(ctx.type(byte), x), byte, target)


class ReducePrecision(Unary):
    """`x` rounded to a float of `exponent_bits` and `mantissa_bits`; the dtype stays.

    The derivative is 1.
    """

    exponent_bits: int
    mantissa_bits: int
    accepts = "f"
    samples = (sample(f32[3], exponent_bits=8, mantissa_bits=7, gradients={0: [1.0, 1.0, 1.0]}),)

    @classmethod
    def from_jax_params(cls, exponent_bits: int, mantissa_bits: int) -> ReducePrecision:
        return cls(exponent_bits, mantissa_bits)

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        return t

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return stablehlo.reduce_precision(x, self.exponent_bits, self.mantissa_bits)


@cache
def bit_width(dtype: DType) -> int:
    """The number of bits of an element of `dtype`."""
    packed = re.match(r"(?:int|uint|float)([1246])(?:_|$)", dtype.name)
    return int(packed[1]) if packed else dtype.itemsize * 8


def convert_element_type(operand: ArrayLike, new_dtype: DTypeLike, weak: bool = False) -> Value:
    """`operand` in `new_dtype`: floats to integers towards zero, numbers to bool by `x != 0`.

    The result is weakly typed only if `weak`. None as `new_dtype` keeps the dtype.
    """
    aval = aval_of(operand)
    dtype = aval.dtype if new_dtype is None else canonical_dtype(new_dtype)
    if aval.dtype == dtype and aval.weak_type == weak:
        narrows = (
            type(operand) in HOST_ARRAY_TYPES
            and operand.dtype != dtype  # type: ignore[union-attr]
            and current_builder.get() is None
        )
        return as_ndarray(np.asarray(operand, dtype)) if narrows else identity_result(operand)
    return ConvertElementType(dtype, weak)(operand)


def bitcast_convert_type(operand: ArrayLike, new_dtype: DTypeLike) -> Value:
    """The bits of `operand` as numbers of `new_dtype`.

    A narrower dtype adds a last dimension for the parts of each element. A wider one removes the last
    dimension, whose elements it joins.
    """
    return BitcastConvertType(canonical_dtype(new_dtype))(operand)


def reduce_precision(operand: ArrayLike, exponent_bits: int, mantissa_bits: int) -> Value:
    """`operand` rounded to floats of that many exponent and mantissa bits; the dtype stays."""
    bits = as_int("exponent_bits", exponent_bits), as_int("mantissa_bits", mantissa_bits)
    if bits[0] < 1 or bits[1] < 0:
        raise ValueRangeError(f"reduce_precision: a float must have exponent bits; got {bits}")
    return ReducePrecision(*bits)(operand)


class Floor(Unary):
    """The largest integer that is not above x."""

    accepts = "f"
    differentiable = False
    numpy = np.floor
    rounding = EXACT
    samples = (sample(f32[3, 4]),)

    lower = lower_to(stablehlo.floor)


class Ceil(Unary):
    """The smallest integer that is not below x."""

    accepts = "f"
    differentiable = False
    numpy = np.ceil
    rounding = EXACT
    samples = (sample(f32[3, 4]),)

    lower = lower_to(stablehlo.ceil)


class Round(Unary):
    """The nearest integer; halves go away from zero, or to the even neighbour if `to_even`."""

    to_even: bool = False
    accepts = "f"
    differentiable = False
    rounding = EXACT
    samples = sample(f32[3, 4]), sample(f32[3, 4], to_even=True)

    @classmethod
    def from_jax_params(cls, rounding_method: Enum) -> Round:
        return cls(rounding_method.name == "TO_NEAREST_EVEN")

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        if self.to_even:
            return stablehlo.round_nearest_even(x)
        return stablehlo.round_nearest_afz(x)


class IsFinite(Unary, HasHostKernel):
    """Whether x is neither infinite nor nan."""

    accepts = "f"
    differentiable = False
    numpy = host_kernel = np.isfinite
    host_kernel_kinds = "f"
    samples = (sample(f32[3, 4]),)

    def out_dtype(self, dtype: DType) -> DType:
        return ops.BOOL

    lower = lower_to(stablehlo.is_finite)


class RoundingMethod(Enum):
    """How `round` rounds numbers halfway between two integers."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def round(x: ArrayLike, rounding_method: object = RoundingMethod.AWAY_FROM_ZERO) -> Value:
    """The nearest integer, elementwise, as a float; `rounding_method` decides between two."""
    name = getattr(rounding_method, "name", rounding_method)
    if name not in RoundingMethod.__members__:
        raise ValueRangeError(
            f"round: rounding_method must be a RoundingMethod; got {rounding_method!r}"
        )
    return Round(name == "TO_NEAREST_EVEN")(x)


class Complex(TransposedByVJP, Binary):
    """re + i im, of floats of 32 or 64 bits."""

    accepts = "f"
    rounding = EXACT
    samples = sample(f32[3, 4], f32[3, 4]), sample(f32[()], f32[3])

    def out_dtype(self, dtype: DType) -> DType:
        if dtype.itemsize < 4:
            raise DTypeError(
                f"complex: the parts must be float32 or float64; got {dtype}",
                fix="Convert with astype.",
            )
        return complex_dtype(dtype)

    def jvp(self, primals: Values, tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        out = self(*primals)
        parts = [0.0 if t is None else t for t in tangents]
        return out, broadcast_scalar(complex(*parts), out.shape)

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> list[Cotangent]:
        # re(ct * (re + i im)) = real(ct) re - imag(ct) im
        re, im = args
        return [
            unbroadcast_scalar(real(ct), re) if active[0] else None,
            unbroadcast_scalar(ops.neg(imag(ct)), im) if active[1] else None,
        ]

    lower = lower_to(stablehlo.complex)


class _ComplexPart(Unary, View, abstract=True):
    """The real or the imaginary part."""

    accepts = "c"

    def out_dtype(self, dtype: DType) -> DType:
        return real_dtype(dtype)

    def jvp(self, primals: Values, tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        return self(*primals), self(*tangents)

    def preserves_zero(self, i: int, x: Value) -> bool:
        return True

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        return self.transpose(ct, *args)

    def view_strides(self, x: ShapedArray, strides: tuple[int, ...]) -> tuple[int, ...] | None:
        return tuple([2 * n for n in strides])


class Real(_ComplexPart):
    """The real part of complex numbers."""

    rounding = EXACT
    samples = (sample(c64[3, 4]),)

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        return (complex(ct, 0.0),)

    def scatter_into_base(self, part: Value, index: Value | int, x: Value) -> Value:
        return complex(part, imag(x))

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        inner = context.defining_equation(x, Complex)
        return None if inner is None else inner.inputs[0]

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return x.real

    lower = lower_to(stablehlo.real)


class Imag(_ComplexPart):
    """The imaginary part of complex numbers."""

    rounding = EXACT
    samples = (sample(c64[3, 4]),)

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        # ct imag(x) = re(-i ct x)
        return (complex(0.0, ops.neg(ct)),)

    def scatter_into_base(self, part: Value, index: Value | int, x: Value) -> Value:
        return complex(real(x), part)

    def view_offset(self, x: ShapedArray, strides: tuple[int, ...], index: int) -> int | None:
        # In elements of the part: the imaginary part follows the real one.
        return 1

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        inner = context.defining_equation(x, Complex)
        return None if inner is None else inner.inputs[1]

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return x.imag

    lower = lower_to(stablehlo.imag)


class Conj(Unary):
    """The complex conjugate."""

    accepts = "c"
    linear = (0,)
    numpy = np.conj
    rounding = EXACT
    samples = (sample(c64[3, 4]),)

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        return conj(t)

    def preserves_zero(self, i: int, x: Value) -> bool:
        return True

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        inner = context.defining_equation(x, Conj)
        return None if inner is None else inner.inputs[0]

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return stablehlo.complex(stablehlo.real(x), stablehlo.negate(stablehlo.imag(x)))


def complex(x: ArrayLike, y: ArrayLike) -> Value:
    """The complex numbers with real parts `x` and imaginary parts `y`, both float32 or float64."""
    return Complex()(*promote_scalars(x, y))


def conj(x: ArrayLike) -> Value:
    """The complex conjugate of `x`, elementwise; complex also if `x` is real."""
    return Conj()(x) if is_complex(aval_of(x).dtype) else complex(x, 0.0)


floor = unary_function(Floor)
ceil = unary_function(Ceil)
is_finite = unary_function(IsFinite)
real = unary_function(Real)
imag = unary_function(Imag)
