"""Searching: where values belong in arrays that are in order."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from functx.core.avals import ShapedArray
from functx.core.dtypes import canonical_dtype
from functx.core.errors import ShapeError
from functx.core.primitive import Primitive
from functx.core.samples import f32, i32, sample
from functx.core.tracing import aval_of
from functx.ops.families import check_same_dtype
from functx.ops.shaping import batch_dim_at


class SearchSorted(Primitive):
    """How many elements of an ordered vector come before each of some values.

    `side` says whether elements equal to a value do, "right", or not, "left". The first
    `batch` dimensions of both operands run together: a vector for each of their indices.
    """

    side: str = "left"
    method: str = "scan"
    batch_ndim: int = 0
    differentiable = False
    accepts: ClassVar[str] = "biufc"
    samples = (
        sample(f32[4], f32[2, 3], values={0: [-1.0, 0.0, 0.0, 1.0]}),
        sample(
            i32[4],
            i32[5],
            values={0: [1, 2, 2, 5], 1: [0, 2, 5, 7, 3]},
            side="right",
            method="sort",
        ),
        sample(f32[2, 3], f32[2, 4], values={0: [[-1.0, 0.0, 1.0], [0.5, 0.5, 0.5]]}, batch_ndim=1),
        sample(f32[0], f32[3], method="compare_all"),
    )

    def abstract_eval(self, x, values):
        check_same_dtype(self, (x, values))
        lanes = x.shape[: self.batch_ndim]
        if x.ndim != self.batch_ndim + 1 or values.shape[: self.batch_ndim] != lanes:
            raise ShapeError(
                f"searchsorted: the first operand must be a vector; got {x!r} for {values!r}"
            )
        wide = x.shape[-1] > np.iinfo(np.int32).max
        return ShapedArray(values.shape, canonical_dtype(np.int64 if wide else np.int32))

    def batch(self, args, dims):
        (x, values), (dx, dv) = args, dims
        if dx is None and not self.batch_ndim:
            return self(x, values), dv
        size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
        x, values = batch_dim_at(x, dx, 0, size), batch_dim_at(values, dv, 0, size)
        return SearchSorted(self.side, self.method, self.batch_ndim + 1)(x, values), 0

    def lower(self, ctx, x, values):
        def search(x: Any, values: Any) -> Any:
            return jnp.searchsorted(x, values, side=self.side, method=self.method)

        for _ in range(self.batch_ndim):
            search = jax.vmap(search)
        return ctx.via_jax(search, x, values)


def searchsorted(x: Any, values: Any, side: str = "left", method: str = "scan") -> Any:
    """Where each of `values` belongs in the ordered vector `x`: how many elements come before.

    Elements equal to a value do with the side "right", not with "left". `method` is one of
    "scan" and "scan_unrolled", a binary search, "sort", and "compare_all".
    """
    if aval_of(x).ndim != 1:
        raise ShapeError(f"searchsorted: the first operand must be a vector; got {aval_of(x)!r}")
    return SearchSorted(side, method)(x, values)
