"""Conversions between dtypes, and between numbers and their bits."""

from __future__ import annotations

from typing import Any

from functx.core.dtypes import canonical_dtype, is_inexact
from functx.core.samples import f32, i32, sample
from functx.core.tracing import aval_of
from functx.ops.families import Linear


class ConvertElementType(Linear):
    """`x` in `dtype`: floats to integers towards zero, numbers to bool by `x != 0`."""

    dtype: Any
    weak: bool = False
    samples = sample(f32[3], dtype="bfloat16"), sample(i32[3], dtype="float32")

    def abstract_eval(self, x):
        return x.update(dtype=canonical_dtype(self.dtype), weak_type=self.weak)

    def jvp(self, primals, tangents):
        out = self(*primals)
        return out, self(*tangents) if is_inexact(out.dtype) else None

    def transpose(self, ct, x):
        return (convert_element_type(ct, x.dtype),)

    def batch(self, args, dims):
        return self(*args), dims[0]

    def lower(self, ctx, x):
        return ctx.convert(x, ctx.avals_in[0], ctx.avals_out[0])


def convert_element_type(x: Any, dtype: Any, weak: bool = False) -> Any:
    """`x` in `dtype`, which is then no longer weak, or is if `weak`."""
    dtype = canonical_dtype(dtype)
    aval = aval_of(x)
    if aval.dtype == dtype and aval.weak_type == weak:
        return x
    return ConvertElementType(dtype, weak)(x)
