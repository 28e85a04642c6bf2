"""The largest and smallest elements, found approximately where the hardware does that faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from functx import ops
from functx.core.errors import DTypeError, ShapeError, ValueRangeError
from functx.core.primitive import Primitive
from functx.core.samples import EXACT, f32, sample
from functx.core.tracer import aval_of
from functx.core.types import ShapedArray, kind
from functx.core.typing import (
    ArrayLike,
    Cotangents,
    Dim,
    Function,
    IRValue,
    NumPyArray,
    Tangents,
    Value,
    Values,
)
from functx.ops.operands import as_float, as_int, canonical_axis, check_axes
from functx.ops.sorting import put_along_axis, take_along_axis

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class ApproxTopK(Primitive):
    """About the `k` largest or smallest elements along `axis`, in order, and their indices.

    `recall` is the share of the true ones that are expected among them. Without `aggregates`, more
    candidates are returned, in any order; `input_size` is the length for which the recall holds, -1 for
    that of the axis.
    """

    k: int
    axis: int
    largest: bool = True
    recall: float = 0.95
    input_size: int = -1
    aggregates: bool = True
    multiple_results = True
    rounding = EXACT
    samples = (
        sample(f32[2, 6], k=2, axis=1, distinct=True),
        sample(f32[5, 2], k=3, axis=0, largest=False, distinct=True),
    )

    def abstract_eval(self, x: ShapedArray) -> Sequence[ShapedArray]:
        if kind(x.dtype) != "f":
            raise DTypeError(f"approx_top_k: the operand must be float; got {x!r}")
        check_axes(self.name, self.axis, x.ndim)
        if not 0 < self.k <= x.shape[self.axis]:
            raise ValueRangeError(
                f"approx_top_k: k must be from 1 to the length of the axis; got {self.k} for {x!r}"
            )
        struct = jax.ShapeDtypeStruct(x.shape, x.dtype)
        shape = jax.eval_shape(self._of_jax(), struct)[0].shape
        return [x.update(shape=shape), ShapedArray(shape, np.dtype("int32"))]

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        values, indices = self(*primals)
        (t,) = tangents
        return [values, indices], [t if t is None else take_along_axis(t, indices, self.axis), None]

    def vjp(
        self, cts: Cotangents, outs: Values, args: Values, active: Sequence[bool]
    ) -> Cotangents:
        (x,) = args
        if cts[0] is None:
            return (None,)
        return (put_along_axis(cts[0], outs[1], self.axis, x.shape[self.axis]),)

    def batch(self, args: Values, dims: Sequence[int]) -> tuple[Values, Sequence[Dim]]:
        return self.replace(axis=self.axis + 1)(ops.moveaxis(args[0], dims[0], 0)), [0, 0]

    def numpy(self, x: NumPyArray) -> Sequence[NumPyArray]:
        order = np.argsort(-x if self.largest else x, axis=self.axis, kind="stable")
        found = np.take(order, np.arange(self.k), axis=self.axis)
        return [np.take_along_axis(x, found, self.axis), found]

    def lower(self, ctx: LoweringContext, x: IRValue) -> Sequence[IRValue]:
        return ctx.via_jax(self._of_jax(), x)

    def _of_jax(self) -> Function:
        """JAX's function of the operand."""
        fun = jax.lax.approx_max_k if self.largest else jax.lax.approx_min_k
        options = self.k, self.axis, self.recall, self.input_size, self.aggregates
        return lambda x: fun(x, *options)


def approx_max_k(
    operand: ArrayLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> tuple[Value, Value]:
    """About the `k` largest elements along `reduction_dimension` in descending order, and their indices.

    TPUs find a share `recall_target` of the true ones faster than all; other platforms find all. Without
    `aggregate_to_topk`, the candidates of each part of the axis are returned instead.

    >>> import numpy
    >>> from functx import lax
    >>> [x.tolist() for x in lax.approx_max_k(numpy.array([1.0, 5.0, 3.0]), 2)]
    [[5.0, 3.0], [1, 2]]
    """
    return _approx_top_k(
        True, operand, k, reduction_dimension, recall_target, reduction_input_size_override,
        aggregate_to_topk,
    )  # fmt: skip


def approx_min_k(
    operand: ArrayLike,
    k: int,
    reduction_dimension: int = -1,
    recall_target: float = 0.95,
    reduction_input_size_override: int = -1,
    aggregate_to_topk: bool = True,
) -> tuple[Value, Value]:
    """About the `k` smallest elements, in ascending order, and their indices; see `approx_max_k`."""
    return _approx_top_k(
        False, operand, k, reduction_dimension, recall_target, reduction_input_size_override,
        aggregate_to_topk,
    )  # fmt: skip


def _approx_top_k(
    largest: bool, operand: ArrayLike, k: int, axis: int, recall: float, size: int, aggregates: bool
) -> tuple[Value, Value]:
    aval = aval_of(operand)
    if not aval.ndim:
        raise ShapeError(f"approx_top_k: the operand must have a dimension; got {aval!r}")
    axis = canonical_axis(axis, aval.ndim, "approx_top_k: reduction_dimension")
    recall = as_float("approx_top_k: recall_target", recall)
    if not 0 < recall <= 1:
        raise ValueRangeError(f"approx_top_k: recall_target must be in (0, 1]; got {recall}")
    size = as_int("approx_top_k: reduction_input_size_override", size)
    k = as_int("approx_top_k: k", k)
    found = ApproxTopK(k, axis, largest, recall, size, bool(aggregates))(operand)
    return found[0], found[1]
