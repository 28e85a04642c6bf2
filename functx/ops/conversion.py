"""Conversions between dtypes, and between numbers and their bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from jax.extend.mlir.dialects import stablehlo

from functx.core.arrays import HOST_ARRAY_TYPES, as_ndarray
from functx.core.avals import ShapedArray
from functx.core.dtypes import DType, canonical_dtype, is_inexact, kind, real_dtype
from functx.core.errors import DTypeError, ShapeError
from functx.core.primitive import Primitive
from functx.core.samples import bool_, c64, f32, i32, sample, u8
from functx.core.tracing import aval_of, current_builder
from functx.ops.families import Linear, Unary
from functx.ops.operands import identity_result


class ConvertElementType(Linear):
    """`x` in `dtype`: floats to integers towards zero, complex to real by the real part.

    Numbers become bool by `x != 0`.
    """

    dtype: DType
    weak: bool = False
    samples = (
        sample(f32[3], dtype="bfloat16"),
        sample(f32[3], dtype="complex64"),
        sample(c64[3], dtype="float32"),
        sample(f32[3], dtype="int32"),
        sample(i32[3], dtype="float32"),
        sample(bool_[3], dtype="float32"),
        sample(c64[3], dtype="bool"),
    )

    def abstract_eval(self, x):
        return x.update(dtype=canonical_dtype(self.dtype), weak_type=self.weak)

    def host_kernel(self, x):
        target = canonical_dtype(self.dtype)
        # The conversion of an out-of-range float to an integer depends on the machine.
        exact = target.kind in "biuf" and (x.dtype.kind != "f" or target.kind in "bf")
        return x.astype(target) if exact else None

    def jvp(self, primals, tangents):
        out = self(*primals)
        return out, self(*tangents) if is_inexact(out.dtype) else None

    def transpose(self, ct, x):
        return (convert_element_type(ct, x.dtype),)

    def tangent_mask(self, lives, args):
        return lives[0]

    def cotangent_masks(self, live, args):
        return [live]

    def batch(self, args, dims):
        return self(*args), dims[0]

    def simplify(self, facts, x):
        target = canonical_dtype(self.dtype)
        if x.aval.dtype == target and x.aval.weak_type == self.weak:
            return x
        inner = facts.defining_equation(x, ConvertElementType)
        if inner is None:
            return None
        (given,) = inner.inputs
        # Of what is out of range, integers get what the machine makes of it.
        to_whole = kind(given.aval.dtype) in "fc" and kind(target) in "biu"
        if not holds_exactly(x.aval.dtype, given.aval.dtype) or to_whole:
            return None
        return self, [given]

    def lower(self, ctx, x):
        return ctx.convert(x, ctx.avals_in[0], ctx.avals_out[0])


def holds_exactly(wide: DType, dtype: DType) -> bool:
    """Whether every number of `dtype` is one of `wide`."""
    given, kept = kind(dtype), kind(wide)
    if given == "b":
        return True
    if kept == "b" or (given in "fc" and kept in "iu") or (given == "c" and kept != "c"):
        return False
    if kept == "c":
        return holds_exactly(real_dtype(wide), real_dtype(dtype))
    if given == "f":
        a, b = ml_dtypes.finfo(dtype), ml_dtypes.finfo(wide)
        return bool(a.nmant <= b.nmant and a.maxexp <= b.maxexp and a.minexp >= b.minexp)
    whole = ml_dtypes.iinfo(dtype)
    if kept == "f":
        bits = ml_dtypes.finfo(wide).nmant + 1
        return bool(-(2**bits) <= whole.min and whole.max <= 2**bits <= ml_dtypes.finfo(wide).max)
    room = ml_dtypes.iinfo(wide)
    return bool(room.min <= whole.min and whole.max <= room.max)


class BitcastConvertType(Primitive):
    """The bits of `x` read as `dtype`.

    A narrower dtype adds a last dimension, over the parts of each element; a wider one
    takes the last dimension away, whose elements together make one.
    """

    dtype: DType
    differentiable = False
    samples = (
        sample(f32[3, 4], dtype="int32", dtypes=["f32"]),
        sample(f32[3], dtype="uint8", dtypes=["f32"]),
        sample(u8[3, 4], dtype="float32", dtypes=["u8"], domain=(0.0, 60.0)),
    )

    def abstract_eval(self, x):
        dtype = canonical_dtype(self.dtype)
        if kind(x.dtype) not in "iuf" or kind(dtype) not in "iuf":
            raise DTypeError(
                f"bitcast_convert_type: both dtypes must be int, uint or float; got {x!r} and "
                f"{dtype}"
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

    view = True

    def scatter_into_base(self, part, index, x):
        return convert_element_type(BitcastConvertType(x.dtype.name)(part), x.dtype, x.weak_type)

    def view_strides(self, x, strides):
        old, new = bit_width(x.dtype), bit_width(canonical_dtype(self.dtype))
        if old < new:
            *rest, last = strides
            return None if last != 1 else tuple([n * old // new for n in rest])
        return strides if old == new else (*[n * old // new for n in strides], 1)

    def batch(self, args, dims):
        x = moveaxis(args[0], dims[0], 0)
        return self(x), 0

    def lower(self, ctx, x):
        return stablehlo.bitcast_convert(ctx.out_types[0], x)


class ReducePrecision(Unary):
    """`x` rounded to a float of that many exponent and mantissa bits, in the dtype it has.

    Rounding moves numbers and leaves differences alone: the derivative is 1.
    """

    exponent_bits: int
    mantissa_bits: int
    accepts = "f"
    samples = (sample(f32[3], exponent_bits=8, mantissa_bits=7, gradients={0: [1.0, 1.0, 1.0]}),)

    def partial(self, i, t, out, x):
        return t

    def lower(self, ctx, x):
        return stablehlo.reduce_precision(x, self.exponent_bits, self.mantissa_bits)


def bit_width(dtype: DType) -> int:
    """The number of bits of one number of `dtype`."""
    return 4 if dtype.name in ("int4", "uint4") else dtype.itemsize * 8


def convert_element_type(x: Any, dtype: Any, weak: bool = False) -> Any:
    """`x` in `dtype`, which is then no longer weak, or is if `weak`."""
    dtype = canonical_dtype(dtype)
    aval = aval_of(x)
    if aval.dtype == dtype and aval.weak_type == weak:
        wide = type(x) in HOST_ARRAY_TYPES and x.dtype != dtype and current_builder.get() is None
        return as_ndarray(np.asarray(x, dtype)) if wide else identity_result(x)
    return ConvertElementType(dtype, weak)(x)


def bitcast_convert_type(x: Any, dtype: Any) -> Any:
    """The bits of `x` read as `dtype`.

    A narrower dtype adds a last dimension, over the parts of each element; a wider one
    takes the last dimension away, whose elements together make one.
    """
    return BitcastConvertType(canonical_dtype(dtype))(x)


def reduce_precision(x: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """`x` rounded to a float of that many exponent and mantissa bits, in the dtype it has."""
    return ReducePrecision(exponent_bits, mantissa_bits)(x)


from functx.ops.shaping import moveaxis
