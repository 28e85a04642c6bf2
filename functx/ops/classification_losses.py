"""Classification losses: negative log likelihood and cross entropy, of class indices or probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan, prod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from ml_dtypes import iinfo

from functx import ops
from functx.core.errors import DTypeError, ShapeError, ValueRangeError
from functx.core.primitive import Primitive, rule
from functx.core.samples import Rounding, f32, i32, sample
from functx.core.types import DType, Shape, ShapedArray, is_integer
from functx.core.typing import Cotangents, Dim, Value, Values
from functx.ops.families import check_same_dtype
from functx.ops.indexing import Gather
from functx.ops.losses import Loss
from functx.ops.operands import (
    batch_size,
    broadcast_along,
    cast_like,
    check_axes,
    literal,
    tuple_delete,
    upcast_half,
)
from functx.ops.softmaxes import log_softmax, softmax


class ClassLoss(Loss, abstract=True):
    """Base class of losses of scores, one for each class along `axis`, and of their backward operations.

    The last operand may give a weight to each class.
    """

    axis: int = 1
    operands_before_weights: ClassVar[int] = 2

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Value, Dim]:
        size, count = batch_size(args, dims), self.operands_before_weights
        operands = [
            ops.batch_dim_at(x, d, 0, size) for x, d in zip(args[:count], dims, strict=False)
        ]
        weights = batched_weights(args[count:], dims[count:], operands[-1].shape, self.batch_ndim)
        batched = self.replace(batch_ndim=self.batch_ndim + 1, axis=self.axis + 1)
        return batched(*operands, *weights), 0


class ClassIndexPrimitive(ClassLoss, abstract=True):
    """Base class of losses of scores, one for each class along `axis`, and of one class index a row.

    Rows whose class is `ignore_index` are ignored. A third operand may give a weight to each class;
    by default all are 1. A mean divides by the sum of the weights of the rows that are not ignored, and
    is nan without any. A class index out of range gives nan.
    """

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

    def target_rows(self, target: Value, weights: Values, dtype: DType) -> TargetRows:
        """The classes, masks and weights of the rows of `target`."""
        counts = not_ignored_mask(target, self.ignore_index)
        classes = target if counts is None else ops.select(counts, target, 0)
        if classes.dtype.itemsize < 4:
            classes = ops.convert_element_type(classes, np.int32)
        weight = (
            take_class_scores(upcast_half(weights[0]), classes, weights[0].ndim - 1)
            if weights
            else None
        )
        return TargetRows(classes, counts, weight, dtype, self.batch_ndim)

    def reduce_terms(self, terms: Value, rows: TargetRows) -> Value:
        """The loss, given its terms."""
        if self.reduction == "none":
            return terms
        total = self.sum_terms(terms)
        return total if self.reduction == "sum" else rows.weighted_mean(total, nan)

    def term_cotangents(self, ct: Value, rows: TargetRows) -> Value:
        """The cotangent of each term that is not ignored, given that of the loss."""
        if self.reduction == "none":
            return ct
        ct = ct if self.reduction == "sum" else rows.weighted_mean(ct, 0.0)
        return ops.broadcast_leading(ct, rows.classes.shape)


class ClassIndexLoss(ClassIndexPrimitive, abstract=True):
    """A loss of the class of each row; a subclass defines `terms`, `unweighted_terms` and `backward`."""

    def abstract_eval(
        self, x: ShapedArray, target: ShapedArray, *weights: ShapedArray
    ) -> ShapedArray:
        self.check(x, target, *weights)
        return ShapedArray(self.loss_shape(target.shape), x.dtype)

    def decompose(self, x: Value, target: Value, *weights: Value) -> Value:
        upcast = upcast_half(x)
        rows = self.target_rows(target, weights, upcast.dtype)
        return cast_like(self.reduce_terms(self.terms(upcast, rows, weights), rows), x)

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        x, target, *weights = args
        of_x = self.backward(ct, x, target, *weights) if active[0] else None
        of_weight = None
        if any(active[2:]):
            upcast, weight = upcast_half(x), upcast_half(weights[0])
            rows = self.target_rows(target, weights, upcast.dtype)
            of_weight = cast_like(self.weight_cotangent(upcast_half(ct), upcast, rows, weight), x)
        return [of_x, None, of_weight][: len(args)]

    @rule
    def terms(self, x: Value, rows: TargetRows, weights: Value) -> Value:
        """The term of each row, 0 where it is ignored."""
        raise NotImplementedError

    @rule
    def unweighted_terms(self, x: Value, rows: TargetRows) -> Value:
        """The term of each row for its own class with weight 1."""
        raise NotImplementedError

    def backward(self, ct: Value, x: Value, target: Value, *weights: Value) -> Value:
        """The cotangent of the scores."""
        raise NotImplementedError

    @rule
    def weight_cotangent(self, ct: Value, x: Value, rows: TargetRows, weight: Value) -> Value:
        """The cotangent of the weights."""
        terms = self.unweighted_terms(x, rows)
        if self.reduction == "mean":
            # With the mean m of terms l: m = sum(w l) / sum(w), dm = sum((l - m) dw) / sum(w).
            mean = rows.weighted_mean(self.sum_terms(self.terms(x, rows, [weight])), 0.0)
            terms = ops.sub(terms, self.broadcast_over_batch(mean, terms.shape))
        result = rows.zero_ignored(ops.mul(self.term_cotangents(ct, rows), terms))
        read, indices = class_gather(weight, rows.classes, weight.ndim - 1)
        return read.add_to_cotangent(ops.zeros_like(weight), result, (weight, indices))


class ClassIndexLossBackward(ClassIndexPrimitive, abstract=True):
    """The cotangent of the scores, given that of the loss."""

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
    """The class of each row, the mask of rows that are not ignored, and the weights.

    A mask that is None is true, weights that are None are 1. Ignored rows have class 0.
    """

    classes: Value
    is_counted: Value | None
    weight: Value | None
    dtype: DType
    batch_ndim: int

    def apply_weights(self, x: Value) -> Value:
        """`x` times the weights, 0 in ignored rows."""
        x = x if self.weight is None else ops.mul(x, self.weight)
        return self.zero_ignored(x)

    def zero_ignored(self, x: Value) -> Value:
        """`x` with 0 in ignored rows."""
        return x if self.is_counted is None else ops.select(self.is_counted, x, 0.0)

    def zero_ignored_along(self, x: Value, axis: int) -> Value:
        """`x`, which has values along `axis` in each row, with 0 in ignored rows."""
        if self.is_counted is None:
            return x
        rows = tuple_delete(range(x.ndim), (axis,))
        return ops.select(ops.broadcast_in_dim(self.is_counted, x.shape, rows), x, 0.0)

    def weighted_mean(self, total: Value, of_nothing: float) -> Value:
        """`total` divided by the total weight of each batch element; `of_nothing` where that is 0."""
        weight = self.total_weight()
        is_zero = ops.eq(weight, 0.0)
        return ops.select(is_zero, of_nothing, ops.div(total, ops.select(is_zero, 1.0, weight)))

    def total_weight(self) -> Value:
        """The sum of the weights of the rows of each batch element."""
        axes = tuple(range(self.batch_ndim, self.classes.ndim))
        if self.weight is not None:
            return ops.reduce_sum(self.zero_ignored(self.weight), axes)
        if self.is_counted is None:
            shape = self.classes.shape
            return ops.full(
                shape[: self.batch_ndim], literal(float(prod(shape[self.batch_ndim :])), self.dtype)
            )
        # Counted in integers: single precision cannot count beyond 2**24.
        count = ops.reduce_sum(ops.convert_element_type(self.is_counted, np.int32), axes)
        return ops.convert_element_type(count, self.dtype)


def batched_weights(
    weights: Values, dims: Sequence[Dim], shape: Shape, batch_ndim: int
) -> list[Value]:
    """Weights with the batch dimension first, if they have one; `shape` begins with the batch dimensions."""
    result = []
    for weight, dim in zip(weights, dims, strict=True):
        if weight.ndim - (dim is not None) > 1:
            result.append(ops.batch_dim_at(weight, dim, 0, shape[0]))
        elif dim is None:
            result.append(weight)
        else:
            batched_shape = (*shape[: batch_ndim + 1], weight.shape[1 - dim])
            weight = ops.batch_dim_at(weight, dim, 0, shape[0])
            result.append(ops.broadcast_in_dim(weight, batched_shape, (0, batch_ndim + 1)))
    return result


def check_class_weights(primitive: Loss, x: ShapedArray, weights: Sequence[ShapedArray]) -> None:
    """Raise ShapeError unless `weights` is at most one array, with an element for each class of `x`."""
    classes = x.shape[primitive.axis]  # type: ignore[attr-defined]
    for weight in weights:
        if weight.shape not in ((classes,), (*x.shape[: primitive.batch_ndim], classes)):
            raise ShapeError(
                f"{primitive.name}: the weights must be a vector, one for each of the {classes} "
                f"classes; got {weight!r}"
            )


def not_ignored_mask(target: Value, ignore_index: int) -> Value | None:
    """The mask of classes other than `ignore_index`; None if the dtype cannot represent that."""
    limits = iinfo(target.dtype)
    if not limits.min <= ignore_index <= limits.max:
        return None
    return ops.ne(target, literal(ignore_index, target.dtype))


def class_gather(x: Value | ShapedArray, classes: Value, axis: int) -> tuple[Gather, Value]:
    """The gather of one element of `x` along `axis` for each of `classes`, and its indices.

    The other dimensions of `x` are the first ones of `classes`.
    """
    others = tuple_delete(range(x.ndim), (axis,))
    gather = ops.Gather(
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
        operand_batching_dims=others,
        start_indices_batching_dims=tuple(range(len(others))),
        slice_sizes=tuple([min(1, n) for n in x.shape]),
        mode="fill",
    )
    return gather, ops.reshape(classes, (*classes.shape, 1))


def take_class_scores(x: Value, classes: Value, axis: int) -> Value:
    """The element of `x` along `axis` for each of `classes`; nan for a class out of range."""
    gather, indices = class_gather(x, classes, axis)
    return gather(x, indices)


def one_hot_mask(classes: Value, shape: Shape, axis: int) -> Value:
    """The mask of `shape` that is true where the index along `axis` is the class of the row."""
    rows = tuple_delete(range(len(shape)), (axis,))
    indices = ops.broadcasted_iota(classes.dtype, shape, axis)
    return ops.eq(ops.broadcast_in_dim(classes, shape, rows), indices)


class NllLoss(ClassIndexLoss):
    """-x at the class of each row, for logarithms `x` of probabilities."""

    samples = (
        sample(f32[3, 4], i32[3], reduction="mean", values={1: [2, 0, -100]}),
        sample(
            f32[4, 2],
            i32[2],
            f32[4],
            reduction="mean",
            axis=0,
            ignore_index=1,
            values={1: [3, 1]},
            domain={2: (0.5, 2.0)},
        ),
        sample(f32[3], i32[()], reduction="none", axis=0, values={1: 2}),
    )

    def terms(self, x: Value, rows: TargetRows, weights: Value) -> Value:
        return rows.apply_weights(self.unweighted_terms(x, rows))

    def unweighted_terms(self, x: Value, rows: TargetRows) -> Value:
        return ops.neg(take_class_scores(x, rows.classes, self.axis))

    def backward(self, ct: Value, x: Value, target: Value, *weights: Value) -> Value:
        backward = NllLossBackward(
            self.reduction, self.batch_ndim, self.axis, self.ignore_index, x.shape[self.axis]
        )
        return backward(ct, target, *weights)


class NllLossBackward(ClassIndexLossBackward):
    """The cotangent of the scores of an `nll_loss` of `classes` classes, given that of the loss.

    -1 at the class of each row, times its weight and its term's cotangent.
    """

    classes: int = 0
    samples = (
        sample(
            f32[()],
            i32[3],
            f32[4],
            reduction="mean",
            classes=4,
            values={1: [2, 0, -100]},
            domain={2: (0.5, 2.0)},
        ),
        sample(
            f32[2, 2],
            i32[2, 2],
            reduction="none",
            classes=3,
            ignore_index=1,
            values={1: [[2, 0], [1, 1]]},
        ),
    )

    def abstract_eval(
        self, ct: ShapedArray, target: ShapedArray, *weights: ShapedArray
    ) -> ShapedArray:
        x = ShapedArray(self.scores_shape(target.shape), ct.dtype)
        self.check(x, target, *weights)
        self.check_cotangent(ct, x, target)
        return x

    def scores_shape(self, shape: Shape) -> Shape:
        """The shape of the scores, given that of the target."""
        return (*shape[: self.axis], self.classes, *shape[self.axis :])

    def decompose(self, ct: Value, target: Value, *weights: Value) -> Value:
        upcast = upcast_half(ct)
        rows = self.target_rows(target, weights, upcast.dtype)
        result = rows.apply_weights(ops.neg(self.term_cotangents(upcast, rows)))
        shape = self.scores_shape(target.shape)
        result = ops.broadcast_in_dim(result, shape, tuple_delete(range(len(shape)), (self.axis,)))
        return cast_like(ops.select(one_hot_mask(rows.classes, shape, self.axis), result, 0.0), ct)


class CrossEntropy(ClassIndexLoss):
    """-log(softmax(x)) at the class of each row.

    With `label_smoothing` s and C classes, the right one has the probability 1 - s + s / C, and
    the others s / C.
    """

    label_smoothing: float = 0.0
    rounding = Rounding(is_absolute=True)
    samples = (
        sample(f32[3, 4], i32[3], reduction="mean", values={1: [2, 0, -100]}),
        sample(
            f32[4, 2],
            i32[2],
            f32[4],
            reduction="mean",
            axis=0,
            ignore_index=1,
            label_smoothing=0.2,
            values={1: [3, 1]},
            domain={2: (0.5, 2.0)},
        ),
    )

    def abstract_eval(
        self, x: ShapedArray, target: ShapedArray, *weights: ShapedArray
    ) -> ShapedArray:
        check_smoothing(self, self.label_smoothing)
        return super().abstract_eval(x, target, *weights)

    def terms(self, x: Value, rows: TargetRows, weights: Values) -> Value:
        own_term, shifted, total = self.log_softmax_parts(x, rows)
        terms = rows.apply_weights(ops.mul(own_term, 1.0 - self.label_smoothing))
        if not self.label_smoothing:
            return terms
        logs = ops.sub(shifted, broadcast_along(total, x, (self.axis,)))
        smoothing, _ = smoothing_terms(self.label_smoothing, self.axis, x, weights)
        return ops.sub(
            terms, rows.zero_ignored(ops.reduce_sum(ops.mul(logs, smoothing), (self.axis,)))
        )

    def unweighted_terms(self, x: Value, rows: TargetRows) -> Value:
        return ops.mul(self.log_softmax_parts(x, rows)[0], 1.0 - self.label_smoothing)

    def log_softmax_parts(self, x: Value, rows: TargetRows) -> tuple[Value, Value, Value]:
        """-log(softmax(x)) at each row's class; x minus its maximum m; log(sum(exp(x - m)))."""
        # Gathered from x, which exists, not from log(softmax(x)), which would have to be computed.
        largest = ops.stop_gradient(ops.shift_of_exponentials(x, (self.axis,)))
        shifted = ops.sub(x, broadcast_along(largest, x, (self.axis,)))
        total = ops.log(ops.reduce_sum(ops.exp(shifted), (self.axis,)))
        return (
            ops.sub(total, ops.sub(take_class_scores(x, rows.classes, self.axis), largest)),
            shifted,
            total,
        )

    def backward(self, ct: Value, x: Value, target: Value, *weights: Value) -> Value:
        fields = [getattr(self, name) for name in self.fields]
        return CrossEntropyBackward(*fields)(ct, x, target, *weights)

    def weight_cotangent(self, ct: Value, x: Value, rows: TargetRows, weight: Value) -> Value:
        result = super().weight_cotangent(ct, x, rows, weight)
        if not self.label_smoothing:
            return result
        term_ct = broadcast_along(
            rows.zero_ignored(self.term_cotangents(ct, rows)), x, (self.axis,)
        )
        logs = ops.mul(log_softmax(x, self.axis), -self.label_smoothing / x.shape[self.axis])
        weight_dims = (*range(weight.ndim - 1), self.axis)
        return ops.add(
            result, ops.reduce_sum(ops.mul(term_ct, logs), tuple_delete(range(x.ndim), weight_dims))
        )


class CrossEntropyBackward(ClassIndexLossBackward):
    """The cotangent of the scores of a `cross_entropy`, given that of the loss.

    softmax(x), minus 1 at the class of each row, times its weight and its term's cotangent.
    """

    label_smoothing: float = 0.0
    operands_before_weights = 3
    samples = (
        sample(f32[()], f32[3, 4], i32[3], reduction="mean", values={2: [2, 0, -100]}),
        sample(
            f32[2],
            f32[4, 2],
            i32[2],
            f32[4],
            reduction="none",
            axis=0,
            label_smoothing=0.2,
            values={2: [3, 1]},
        ),
    )

    def abstract_eval(
        self, ct: ShapedArray, x: ShapedArray, target: ShapedArray, *weights: ShapedArray
    ) -> ShapedArray:
        check_smoothing(self, self.label_smoothing)
        self.check(x, target, *weights)
        self.check_cotangent(ct, x, target)
        return ShapedArray(x.shape, x.dtype)

    def decompose(self, ct: Value, x: Value, target: Value, *weights: Value) -> Value:
        upcast = upcast_half(x)
        rows = self.target_rows(target, weights, upcast.dtype)
        term_ct = self.term_cotangents(upcast_half(ct), rows)
        right = rows.apply_weights(ops.mul(term_ct, 1.0 - self.label_smoothing))
        is_class = one_hot_mask(rows.classes, x.shape, self.axis)
        if not self.label_smoothing:
            # 1 - p at the class is the sum of the other exponentials over the sum of all.
            largest = ops.stop_gradient(ops.shift_of_exponentials(upcast, (self.axis,)))
            powers = ops.exp(ops.sub(upcast, broadcast_along(largest, x, (self.axis,))))
            others = ops.reduce_sum(ops.select(is_class, 0.0, powers), (self.axis,))
            total = ops.add(
                others,
                ops.exp(ops.sub(take_class_scores(upcast, rows.classes, self.axis), largest)),
            )
            result = ops.select(is_class, broadcast_along(ops.neg(others), x, (self.axis,)), powers)
            result = ops.mul(result, broadcast_along(ops.div(right, total), x, (self.axis,)))
        else:
            smoothing, total = smoothing_terms(self.label_smoothing, self.axis, upcast, weights)
            smoothing_ct = ops.mul(broadcast_along(term_ct, x, (self.axis,)), smoothing)
            result = ops.mul(
                softmax(upcast, self.axis),
                broadcast_along(ops.add(right, ops.mul(term_ct, total)), x, (self.axis,)),
            )
            result = ops.sub(
                ops.sub(result, smoothing_ct),
                ops.select(is_class, broadcast_along(right, x, (self.axis,)), 0.0),
            )
        return cast_like(rows.zero_ignored_along(result, self.axis), x)


def check_smoothing(primitive: Primitive, label_smoothing: float) -> None:
    """Raises ValueRangeError unless `label_smoothing` is a probability."""
    if not 0 <= label_smoothing <= 1:
        raise ValueRangeError(
            f"{primitive.name}: label_smoothing must be between 0 and 1; got {label_smoothing}"
        )


def smoothing_terms(
    label_smoothing: float, axis: int, x: Value, weights: Values
) -> tuple[Any, Any]:
    """The target that smoothing gives each class, and its sum over classes, scalars if equal for all."""
    term_ct = label_smoothing / x.shape[axis]
    if not weights:
        return term_ct, label_smoothing
    each = broadcast_class_weights(ops.mul(upcast_half(weights[0]), term_ct), x.shape, axis)
    return each, ops.reduce_sum(each, (axis,))


def broadcast_class_weights(weight: Value, shape: tuple[int, ...], axis: int) -> Value:
    """`weight`, a value for each class and perhaps batch element, broadcast to `shape`."""
    return ops.broadcast_in_dim(weight, shape, (*range(weight.ndim - 1), axis))
