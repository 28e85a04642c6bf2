"""Derivatives that do not exist: nan, unless the tangent that they multiply is 0."""

from __future__ import annotations

from math import nan
from typing import Any, NamedTuple

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from functx.core.primitive import LinearInput
from functx.core.samples import bool_, f32, sample
from functx.core.tracing import aval_of
from functx.ops.arithmetic import abs, div, mul, sub
from functx.ops.comparison import eq, le
from functx.ops.families import Elementwise, check_same_dtype, combine_masks, elementwise_shape
from functx.ops.logical import bitwise_and, bitwise_not, bitwise_or
from functx.ops.matrices import cast_like, insert_matrix_dim, position_mask
from functx.ops.operands import literal
from functx.ops.reductions import reduce_max, reduce_or
from functx.ops.selection import select
from functx.ops.shaping import broadcast_in_dim
from functx.ops.shaping import instantiate_mask as mask_of


class UndefinedDerivative(Elementwise):
    """`x`, but nan where `which` holds and `x` is not 0.

    A cotangent is nan wherever `which` holds: its being 0 does not show that the output has
    no influence, since the factor that it came through may be 0 at this point alone.
    """

    linear = (1,)
    accepts = "fc"
    samples = (
        sample(bool_[3], f32[3], values={0: [False, False, False]}),
        sample(
            bool_[3],
            f32[3],
            values={0: [True, True, False], 1: [0.0, 1.0, 2.0]},
            gradients={1: [nan, nan, 1.0]},
        ),
    )

    def abstract_eval(self, which, x):
        check_same_dtype(self, (x,))
        return x.update(shape=elementwise_shape(self, (which, x)))

    def jvp(self, primals, tangents):
        which, x = primals
        return self(which, x), self(which, tangents[1])

    def vjp(self, ct, out, args, active):
        which, x = args
        return self.transpose(ct, which, LinearInput(aval_of(x)))

    def transpose(self, ct, which, x):
        return [None, select(which, literal(nan, ct.dtype), ct)]

    def lower(self, ctx, which, x):
        aval = ctx.avals_in[1]
        nonzero = ctx.compare(x, ctx.constant(0, aval), "NE", aval)
        return stablehlo.select(stablehlo.and_(which, nonzero), ctx.constant(nan, aval), x)


class MaskedReciprocal(NamedTuple):
    """1 / x, or 0 where x is zero up to rounding errors; `undefined` is the mask of those places."""

    factors: Any
    undefined: Any

    @staticmethod
    def from_values(x: Any, scale: Any) -> MaskedReciprocal:
        """The inverses of `x`, which counts as 0 within rounding error of the largest of `scale`."""
        largest = reduce_max(abs(scale), (scale.ndim - 1,))
        least = mul(largest, max(8.0, scale.shape[-1]) * float(np.finfo(x.dtype).eps))
        small = le(abs(x), broadcast_in_dim(least, x.shape, tuple(range(largest.ndim))))
        inverse = div(literal(1, x.dtype), select(small, literal(1, x.dtype), x))
        return MaskedReciprocal(select(small, literal(0, x.dtype), inverse), small)

    @staticmethod
    def from_gaps(x: Any, y: Any) -> MaskedReciprocal:
        """The inverses of x_j - y_i, in row i and column j."""
        shape = (*x.shape, x.shape[-1])
        return MaskedReciprocal.from_values(
            sub(broadcast_columns(x, shape), broadcast_rows(y, shape)), x
        )

    @property
    def off_diagonal(self) -> MaskedReciprocal:
        """These, of square matrices, with a diagonal that is 0 because nothing varies along it."""
        elsewhere = bitwise_not(position_mask(self.factors.shape, eq))
        return MaskedReciprocal(self.factors, bitwise_and(self.undefined, elsewhere))

    def broadcast_by(self, lay: Any, shape: tuple[int, ...]) -> MaskedReciprocal:
        """These repeated to matrices of `shape` by `lay`, which is `broadcast_rows` or `broadcast_columns`."""
        return MaskedReciprocal(lay(self.factors, shape), lay(self.undefined, shape))

    def multiply_tangent(self, t: Any) -> Any:
        """The products with a tangent; nan where one that is not 0 meets an undefined factor."""
        return mul(cast_like(self.factors, t), UndefinedDerivative()(self.undefined, t))

    def multiply_cotangent(self, ct: Any, live: Any = None) -> Any:
        """The products with a cotangent; nan where the factor is undefined and the mask `live` is True."""
        found = mul(cast_like(self.factors, ct), ct)
        return select(combine_masks(live, self.undefined), literal(nan, ct.dtype), found)


def broadcast_rows(x: Any, shape: tuple[int, ...]) -> Any:
    """Matrices of `shape` with the elements of `x` each along a whole row."""
    return insert_matrix_dim(x, shape, drop=1)


def broadcast_columns(x: Any, shape: tuple[int, ...]) -> Any:
    """Matrices of `shape` with the elements of `x` each along a whole column."""
    return insert_matrix_dim(x, shape, drop=2)


def vector_mask(live: Any, shape: tuple[int, ...], drop: int) -> Any:
    """Which columns (`drop` 2) or rows (`drop` 1) of matrices have an element where `live` holds.

    None where that is anywhere.
    """
    return None if live is None else reduce_or(mask_of(live, shape), (len(shape) - drop,))


def vector_pair_mask(live: Any) -> Any:
    """Where the vector of the row or that of the column is among the `live`; None for anywhere."""
    if live is None:
        return None
    shape = (*live.shape, live.shape[-1])
    return bitwise_or(broadcast_rows(live, shape), broadcast_columns(live, shape))
