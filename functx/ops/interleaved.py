"""Views of complex arrays as interleaved real and imaginary parts, and back."""

from __future__ import annotations

from typing import Any

from functx.core.dtypes import complex_dtype, is_complex, kind, real_dtype
from functx.core.errors import DTypeError, ShapeError
from functx.core.primitive import Primitive
from functx.core.samples import c64, f32, sample
from functx.ops.complexes import complex, imag, real
from functx.ops.joining import concatenate
from functx.ops.shaping import expand_dims, reshape
from functx.ops.slicing import slice_in_dim


class ViewAsReal(Primitive):
    """The real and the imaginary part of each element, along a new last dimension."""

    samples = sample(c64[3]), sample(c64[2, 3])
    view = True

    def abstract_eval(self, x):
        if not is_complex(x.dtype):
            raise DTypeError(f"parts: the operand must be complex; got {x!r}")
        return x.update(shape=(*x.shape, 2), dtype=real_dtype(x.dtype))

    def decompose(self, x):
        return concatenate([expand_dims(part, x.ndim) for part in (real(x), imag(x))], x.ndim)

    def scatter_into_base(self, part, index, x):
        return ViewAsComplex()(part)

    def view_strides(self, x, strides):
        return (*[2 * n for n in strides], 1)


class ViewAsComplex(Primitive):
    """The complex numbers whose parts lie along the last dimension, of length 2."""

    samples = sample(f32[3, 2]), sample(f32[2, 3, 2])
    view = True

    def abstract_eval(self, x):
        if x.shape[-1:] != (2,):
            raise ShapeError(f"of_parts: the last dimension must be 2; got {x!r}")
        if kind(x.dtype) != "f" or x.dtype.itemsize < 4:
            raise DTypeError(f"of_parts: the parts must be float32 or float64; got {x!r}")
        return x.update(shape=x.shape[:-1], dtype=complex_dtype(x.dtype))

    def decompose(self, x):
        return complex(*[_part(x, i) for i in (0, 1)])

    def scatter_into_base(self, part, index, x):
        return ViewAsReal()(part)

    def view_strides(self, x, strides):
        *rest, last = strides
        return tuple([n // 2 for n in rest]) if last == 1 and not any(n % 2 for n in rest) else None


def _part(x: Any, i: int) -> Any:
    return reshape(slice_in_dim(x, i, i + 1, 1, x.ndim - 1), x.shape[:-1])
