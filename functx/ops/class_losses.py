"""Losses of classes given by their numbers: what a row counts, and what such losses share."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan, prod
from typing import Any, NamedTuple

import numpy as np
from ml_dtypes import iinfo

from functx.core.avals import Shape, ShapedArray
from functx.core.dtypes import DType, is_integer
from functx.core.errors import DTypeError, ShapeError
from functx.ops.arithmetic import div, mul, sub
from functx.ops.comparison import eq, ne
from functx.ops.conversion import convert_element_type
from functx.ops.creation import broadcasted_iota
from functx.ops.families import check_same_dtype
from functx.ops.gathering import Gather
from functx.ops.half_floats import cast_like_input, upcast_half
from functx.ops.losses import Loss
from functx.ops.operands import batch_size, check_axes, literal, tuple_delete
from functx.ops.reductions import reduce_sum
from functx.ops.selection import select
from functx.ops.shaping import batch_dim_at, broadcast_in_dim, full, reshape, zeros_like


class ClassIndexPrimitive(Loss, abstract=True):
    """What concerns a loss of scores along `axis`, one a class, and the class of each row.

    Rows with the class `ignore_index` do not count. A row weighs 1, or what a third operand
    gives its class; a mean is over the weights of the rows that count, nan without any.
    Scores of a class that there is not are nan.
    """

    axis: int = 1
    ignore_index: int = -100

    def check(self, x: ShapedArray, target: ShapedArray, *weights: ShapedArray) -> None:
        """Raise unless operands of these types fit each other."""
        self.check_reduction()
        check_same_dtype(self, (x, *weights))
        check_axes(self.name, self.axis, x.ndim)
        if not is_integer(target.dtype):
            raise DTypeError(
                f"{self.name}: the target must hold the numbers of classes, integers; got "
                f"{target!r}",
                fix="Convert it with astype(int).",
            )
        if target.shape != tuple_delete(x.shape, (self.axis,)):
            raise ShapeError(
                f"{self.name}: the target must have the shape of the input without axis "
                f"{self.axis}, that of the classes; got {target!r} for {x!r}"
            )
        if x.shape[self.axis] == 0:
            raise ShapeError(f"{self.name}: there must be at least one class; got {x!r}")
        check_class_weights(self, x, weights)

    def batch_operands(self, args: Any, dims: Any, size: int) -> list[Any]:
        """Scores, target and weights with their batch dimension first."""
        x, target = [batch_dim_at(y, d, 0, size) for y, d in zip(args[:2], dims, strict=False)]
        return [x, target, *batched_weights(args[2:], dims[2:], x.shape, self.batch_ndim)]

    def target_rows(self, target: Any, weights: Any, dtype: DType) -> TargetRows:
        """What the rows of `target` count."""
        counts = not_ignored_mask(target, self.ignore_index)
        classes = target if counts is None else select(counts, target, 0)
        if classes.dtype.itemsize < 4:
            classes = convert_element_type(classes, np.int32)
        weight = (
            take_class_scores(upcast_half(weights[0]), classes, weights[0].ndim - 1)
            if weights
            else None
        )
        return TargetRows(classes, counts, weight, dtype, self.batch_ndim)

    def reduce_terms(self, terms: Any, rows: TargetRows) -> Any:
        """The loss, given its terms."""
        if self.reduction == "none":
            return terms
        total = self.sum_terms(terms)
        return total if self.reduction == "sum" else rows.weighted_mean(total, nan)

    def term_cotangents(self, ct: Any, rows: TargetRows) -> Any:
        """The cotangent of each term that counts, given that of the loss."""
        if self.reduction == "none":
            return ct
        ct = ct if self.reduction == "sum" else rows.weighted_mean(ct, 0.0)
        return broadcast_in_dim(ct, rows.classes.shape, tuple(range(ct.ndim)))


class ClassIndexLoss(ClassIndexPrimitive, abstract=True):
    """A loss of the class of each row; a subclass gives `terms`, `alone` and `backward`."""

    def abstract_eval(self, x, target, *weights):
        self.check(x, target, *weights)
        return ShapedArray(self.loss_shape(target.shape), x.dtype)

    def decompose(self, x, target, *weights):
        wide = upcast_half(x)
        rows = self.target_rows(target, weights, wide.dtype)
        return cast_like_input(self.reduce_terms(self.terms(wide, rows, weights), rows), x)

    def vjp(self, ct, out, args, active):
        x, target, *weights = args
        of_x = self.backward(ct, x, target, *weights) if active[0] else None
        of_weight = None
        if any(active[2:]):
            wide, weight = upcast_half(x), upcast_half(weights[0])
            rows = self.target_rows(target, weights, wide.dtype)
            of_weight = cast_like_input(
                self.weight_cotangent(upcast_half(ct), wide, rows, weight), x
            )
        return [of_x, None, of_weight][: len(args)]

    def batch(self, args, dims):
        batched = self.batch_operands(args, dims, batch_size(args, dims))
        return self.replace(batch_ndim=self.batch_ndim + 1, axis=self.axis + 1)(*batched), 0

    def terms(self, x: Any, rows: TargetRows, weights: Any) -> Any:
        """What each row adds to the loss, 0 where it does not count."""
        raise NotImplementedError

    def unweighted_terms(self, x: Any, rows: TargetRows) -> Any:
        """What each row adds to the loss for its own class, when its weight is 1."""
        raise NotImplementedError

    def backward(self, ct: Any, x: Any, target: Any, *weights: Any) -> Any:
        """The cotangent of the scores."""
        raise NotImplementedError

    def weight_cotangent(self, ct: Any, x: Any, rows: TargetRows, weight: Any) -> Any:
        """The cotangent of the weights."""
        terms = self.unweighted_terms(x, rows)
        if self.reduction == "mean":
            # With the mean m of terms l: m = sum(w l) / sum(w), dm = sum((l - m) dw) / sum(w).
            mean = rows.weighted_mean(self.sum_terms(self.terms(x, rows, [weight])), 0.0)
            terms = sub(terms, self.broadcast_over_batch(mean, terms.shape))
        found = rows.zero_ignored(mul(self.term_cotangents(ct, rows), terms))
        read, places = class_gather(weight, rows.classes, weight.ndim - 1)
        return read.add_to_cotangent(zeros_like(weight), found, (weight, places))


class ClassIndexLossBackward(ClassIndexPrimitive, abstract=True):
    """The cotangent of the scores of such a loss, given that of the loss."""

    def check_cotangent(self, ct: ShapedArray, x: ShapedArray, target: ShapedArray) -> None:
        """Raise unless the cotangent has the type of the loss."""
        check_same_dtype(self, (ct, x))
        shape = self.loss_shape(target.shape)
        if ct.shape != shape:
            raise ShapeError(
                f"{self.name}: the cotangent must have the shape of the loss, {shape}; got {ct!r} "
                f"for a target {target!r}"
            )


class TargetRows(NamedTuple):
    """The class of each row, whether it counts, and what it weighs, None for all and for 1.

    Rows that do not count have class 0.
    """

    classes: Any
    is_counted: Any
    weight: Any
    dtype: DType
    batch_ndim: int

    def apply_weights(self, x: Any) -> Any:
        """`x` times the weights, and 0 in rows that do not count."""
        x = x if self.weight is None else mul(x, self.weight)
        return self.zero_ignored(x)

    def zero_ignored(self, x: Any) -> Any:
        """`x`, and 0 in rows that do not count."""
        return x if self.is_counted is None else select(self.is_counted, x, 0.0)

    def zero_ignored_along(self, x: Any, axis: int) -> Any:
        """`x`, which has values along `axis` in each row, and 0 in rows that do not count."""
        if self.is_counted is None:
            return x
        rows = tuple_delete(range(x.ndim), (axis,))
        return select(broadcast_in_dim(self.is_counted, x.shape, rows), x, 0.0)

    def weighted_mean(self, total: Any, of_nothing: float) -> Any:
        """`total` over the weights of the rows of each lane; `of_nothing` where they are 0."""
        weight = self.total_weight()
        nothing = eq(weight, 0.0)
        return select(nothing, of_nothing, div(total, select(nothing, 1.0, weight)))

    def total_weight(self) -> Any:
        """The sum of the weights of the rows of each lane."""
        axes = tuple(range(self.batch_ndim, self.classes.ndim))
        if self.weight is not None:
            return reduce_sum(self.zero_ignored(self.weight), axes)
        if self.is_counted is None:
            shape = self.classes.shape
            return full(
                shape[: self.batch_ndim], literal(float(prod(shape[self.batch_ndim :])), self.dtype)
            )
        # Counted as integers: single precision ends to count at 16 million.
        count = reduce_sum(convert_element_type(self.is_counted, np.int32), axes)
        return convert_element_type(count, self.dtype)


def batched_weights(weights: Any, dims: Any, shape: Shape, lanes: int) -> list[Any]:
    """Weights with the batch dimension first, if they have one; `shape` begins with the lanes."""
    found = []
    for weight, dim in zip(weights, dims, strict=True):
        if weight.ndim - (dim is not None) > 1:
            found.append(batch_dim_at(weight, dim, 0, shape[0]))
        elif dim is None:
            found.append(weight)
        else:
            all_lanes = (*shape[: lanes + 1], weight.shape[1 - dim])
            weight = batch_dim_at(weight, dim, 0, shape[0])
            found.append(broadcast_in_dim(weight, all_lanes, (0, lanes + 1)))
    return found


def check_class_weights(primitive: Loss, x: ShapedArray, weights: Sequence[ShapedArray]) -> None:
    """Raise unless there is at most one array of weights, with one for each class of `x`."""
    classes = x.shape[primitive.axis]  # type: ignore[attr-defined]
    for weight in weights:
        if weight.shape not in ((classes,), (*x.shape[: primitive.batch_ndim], classes)):
            raise ShapeError(
                f"{primitive.name}: the weights must be a vector, one for each of the {classes} "
                f"classes; got {weight!r}"
            )


def not_ignored_mask(target: Any, ignore_index: int) -> Any:
    """Whether each class is not `ignore_index`; None where the dtype does not hold that."""
    limits = iinfo(target.dtype)
    if not limits.min <= ignore_index <= limits.max:
        return None
    return ne(target, literal(ignore_index, target.dtype))


def class_gather(x: Any, classes: Any, axis: int) -> tuple[Gather, Any]:
    """The gather of one element of `x` along `axis` for each of `classes`, and its indices.

    The other dimensions of `x` are the first ones of `classes`.
    """
    others = tuple_delete(range(x.ndim), (axis,))
    gather = Gather(
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
        operand_batching_dims=others,
        start_indices_batching_dims=tuple(range(len(others))),
        slice_sizes=tuple([min(1, n) for n in x.shape]),
        mode="fill",
    )
    return gather, reshape(classes, (*classes.shape, 1))


def take_class_scores(x: Any, classes: Any, axis: int) -> Any:
    """The element of `x` along `axis` for each of `classes`; nan for a class that is not there."""
    gather, places = class_gather(x, classes, axis)
    return gather(x, places)


def one_hot_mask(classes: Any, shape: Shape, axis: int) -> Any:
    """Whether each place of `shape` is, along `axis`, that of the class of its row."""
    rows = tuple_delete(range(len(shape)), (axis,))
    places = broadcasted_iota(classes.dtype, shape, axis)
    return eq(broadcast_in_dim(classes, shape, rows), places)
