"""Contractions: `matmul`, `dot`, `tensordot` and the other products of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import index
from typing import Any, SupportsIndex, TypeAlias

from functx import ops
from functx.core.errors import AxisError, ShapeError
from functx.core.tracer import Tracer, aval_of
from functx.core.types import DType, ShapedArray, canonical_dtype, is_complex
from functx.core.typing import ArrayOrList, Axes, DTypeLike, Out, Value
from functx.numpy.mutation import accept_out
from functx.numpy.promotion import promote
from functx.ops.contraction import PrecisionLike
from functx.ops.operands import canonical_axes, canonical_axis
from functx.ops.parallel import OutSharding, place_result

__all__ = [
    "dot",
    "inner",
    "matmul",
    "matvec",
    "tensordot",
    "vdot",
    "vecdot",
    "vecmat",
]


Precisions: TypeAlias = tuple[str, str] | None
"""The precision of each operand, as `DotGeneral` takes it."""
Labels = tuple[Any, ...]
PairwiseContraction = Callable[[Value, Value], Value]


def pairwise_contraction(
    x: dict[str, int],
    y: dict[str, int],
    out: Labels,
    precision: Precisions = None,
    preferred: DType | None = None,
) -> PairwiseContraction:
    """The function that multiplies two arrays and sums over the labels that are not in `out`.

    `x` and `y` map the label of each dimension, in order, to its size. Labels of only one of
    them must be in `out`. The function uses one `dot_general`, and at most one permutation.
    """
    # A dimension of length 1 that broadcasts to a longer one is dropped.
    left = {label: n for label, n in x.items() if n != 1 or y.get(label, 1) == 1}
    right = {label: n for label, n in y.items() if n != 1 or x.get(label, 1) == 1}
    shapes = tuple(left.values()), tuple(right.values())
    unchanged = shapes == (tuple(x.values()), tuple(y.values()))
    if not left or not right or left.keys() == right.keys() == set(out):
        orders = _output_order(left, out), _output_order(right, out)

        def elementwise(x: Value, y: Value) -> Value:
            args = [
                ops.permute_dims(
                    ops.reshape(
                        a if preferred is None else ops.convert_element_type(a, preferred), s
                    ),
                    o,
                )
                for a, s, o in zip((x, y), shapes, orders, strict=True)
            ]
            return ops.mul(*args)

        return elementwise
    batched = tuple([label for label in out if label in left and label in right])
    contracted = tuple([label for label in left if label in right and label not in out])
    x_free = tuple([label for label in left if label not in right])
    y_free = tuple([label for label in right if label not in left])
    swapped = out == batched + y_free + x_free != batched + x_free + y_free
    if swapped:
        left, right, x_free, y_free = right, left, y_free, x_free
    dot = ops.DotGeneral(
        (label_positions(left, contracted), label_positions(right, contracted)),
        (label_positions(left, batched), label_positions(right, batched)),
        precision[::-1] if swapped and precision else precision,
        preferred,
    )
    axes = label_positions(batched + x_free + y_free, out)
    if unchanged and not swapped and axes == tuple(range(len(axes))):
        return dot

    def contraction(x: Value, y: Value) -> Value:
        x, y = ops.reshape(x, shapes[0]), ops.reshape(y, shapes[1])
        return ops.permute_dims(dot(y, x) if swapped else dot(x, y), axes)

    return contraction


def label_positions(labels: Iterable[Any], selected: Labels) -> tuple[int, ...]:
    labels = list(labels)
    return tuple([labels.index(label) for label in selected])


def _output_order(labels: dict[str, int], out: Labels) -> tuple[int, ...]:
    return label_positions(labels, tuple([label for label in out if label in labels]))


def canonical_preferred_dtype(dtype: DTypeLike) -> DType | None:
    return None if dtype is None else canonical_dtype(dtype)


def to_preferred_dtype(out: Value, dtype: DTypeLike) -> Value:
    """`out` in `dtype`, or unchanged if it is None."""
    return out if dtype is None else ops.convert_element_type(out, dtype)


@accept_out
def matmul(
    a: ArrayOrList,
    b: ArrayOrList,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
    out_sharding: OutSharding = None,
    out: Out = None,
) -> Value:
    """The matrix product of the last two dimensions; the other dimensions broadcast.

    A one-dimensional operand is a row on the left or a column on the right, and this dimension
    is removed from the result. Operands without dimensions raise ShapeError. `out_sharding` is the
    sharding of the result.
    """
    if precision is None is preferred_element_type and type(a) is Tracer and type(b) is Tracer:
        x, y = a.atom.aval, b.atom.aval
        if x.dtype == y.dtype:
            return place_result(_matmul(x, y, None, None)(a, b), out_sharding)
    a, b = promote(a, b)
    dtype = canonical_preferred_dtype(preferred_element_type)
    product = _matmul(aval_of(a), aval_of(b), ops.canonical_precision(precision), dtype)
    return place_result(to_preferred_dtype(product(a, b), dtype), out_sharding)


@lru_cache(maxsize=4096)
def _matmul(
    x: ShapedArray, y: ShapedArray, precision: Precisions, preferred: DType | None
) -> PairwiseContraction:
    if not x.ndim or not y.ndim:
        raise ShapeError(
            f"matmul: operands must have at least one dimension; got {x!r} and {y!r}",
            fix="Multiply by a scalar with `*`.",
        )
    rows, columns = ("m",)[: x.ndim - 1], ("n",)[: y.ndim - 1]
    return _batched_contraction("matmul", x, y, (*rows, "k"), ("k", *columns), precision, preferred)


def _batched_contraction(
    name: str,
    x: ShapedArray,
    y: ShapedArray,
    left: Labels,
    right: Labels,
    precision: Precisions = None,
    preferred: DType | None = None,
) -> PairwiseContraction:
    """The contraction over `k`; the dimensions before those in `left` and `right` broadcast."""
    for aval, labels in ((x, left), (y, right)):
        if aval.ndim < len(labels):
            raise ShapeError(
                f"{name}: operands must have at least {len(left)} and {len(right)} dimensions; "
                f"got {x!r} and {y!r}"
            )
    leading = [range(len(labels) - aval.ndim, 0) for aval, labels in ((x, left), (y, right))]
    sizes = dict(zip((*leading[0], *left), x.shape, strict=True))
    other_sizes = dict(zip((*leading[1], *right), y.shape, strict=True))
    if sizes["k"] != other_sizes["k"]:
        dimensions = " and ".join(
            f"dimension {labels.index('k') - len(labels)} ({n['k']})"
            for labels, n in ((left, sizes), (right, other_sizes))
        )
        raise ShapeError(
            f"{name}: {dimensions} must have one size; got {x!r} and {y!r}",
            fix="Transpose an operand (x.T), or reshape it; `*` multiplies element by element.",
        )
    if any(1 != sizes.get(d, 1) != other_sizes.get(d, 1) != 1 for d in leading[0]):
        raise ShapeError(f"{name}: the leading dimensions must broadcast; got {x!r} and {y!r}")
    batched = max(leading, key=len)
    out = (*batched, *[label for label in (*left, *right) if label != "k"])
    return pairwise_contraction(sizes, other_sizes, out, precision, preferred)


@accept_out
def matvec(x1: ArrayOrList, x2: ArrayOrList, /, *, out: Out = None) -> Value:
    """The product of matrices and vectors: `x1[..., m, k]` with `x2[..., k]`."""
    x1, x2 = promote(x1, x2)
    return _batched_contraction("matvec", aval_of(x1), aval_of(x2), ("m", "k"), ("k",))(x1, x2)


@accept_out
def vecmat(x1: ArrayOrList, x2: ArrayOrList, /, *, out: Out = None) -> Value:
    """The product of conjugated vectors and matrices: `x1[..., k]` with `x2[..., k, n]`."""
    x1, x2 = promote(x1, x2)
    product = _batched_contraction("vecmat", aval_of(x1), aval_of(x2), ("k",), ("k", "n"))
    return product(_conjugate(x1), x2)


@accept_out
def vecdot(
    x1: ArrayOrList,
    x2: ArrayOrList,
    /,
    *,
    axis: int = -1,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
    out: Out = None,
) -> Value:
    """The sum of `conj(x1) * x2` along `axis`; the other dimensions broadcast."""
    x1, x2 = promote(x1, x2)
    ndims = aval_of(x1).ndim, aval_of(x2).ndim
    left, right = (
        ops.moveaxis(x, canonical_axis(axis, n, "vecdot: axis"), n - 1)
        for x, n in zip((x1, x2), ndims, strict=True)
    )
    dtype = canonical_preferred_dtype(preferred_element_type)
    product = _batched_contraction(
        "vecdot",
        aval_of(left),
        aval_of(right),
        ("k",),
        ("k",),
        ops.canonical_precision(precision),
        dtype,
    )
    return to_preferred_dtype(product(_conjugate(left), right), dtype)


def _conjugate(x: Value) -> Value:
    return ops.conj(x) if is_complex(aval_of(x).dtype) else x


def _tensordot(
    name: str,
    a: Value,
    b: Value,
    axes: tuple[Any, Any],
    precision: PrecisionLike,
    preferred_element_type: DTypeLike,
) -> Value:
    """The contraction over `axes`; the remaining dimensions of `a` come before those of `b`."""
    x, y = aval_of(a), aval_of(b)
    sizes = [[aval.shape[i] for i in group] for aval, group in zip((x, y), axes, strict=True)]
    if sizes[0] != sizes[1]:
        raise ShapeError(
            f"{name}: contracted dimensions must have one size; got {x!r} along {axes[0]} "
            f"({sizes[0]}) and {y!r} along {axes[1]} ({sizes[1]})"
        )
    dtype = canonical_preferred_dtype(preferred_element_type)
    return to_preferred_dtype(
        ops.DotGeneral(axes, ((), ()), ops.canonical_precision(precision), dtype)(a, b), dtype
    )


@accept_out
def dot(
    a: ArrayOrList,
    b: ArrayOrList,
    out: Out = None,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
    out_sharding: OutSharding = None,
) -> Value:
    """The sum of products over the last dimension of `a` and the second to last of `b`.

    If `b` has one dimension, over that one; a scalar operand scales the other. `out_sharding` is the
    sharding of the result.
    """
    product = _sum_of_last("dot", a, b, 2, precision, preferred_element_type)
    return place_result(product, out_sharding)


def inner(
    a: ArrayOrList,
    b: ArrayOrList,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
) -> Value:
    """The sum of products over the last dimensions; a scalar operand scales the other."""
    return _sum_of_last("inner", a, b, 1, precision, preferred_element_type)


def _sum_of_last(
    name: str,
    a: ArrayOrList,
    b: ArrayOrList,
    from_end: int,
    precision: PrecisionLike,
    preferred_element_type: DTypeLike,
) -> Value:
    """The sum of products over the last dimension of `a` and one of `b`, counted from its end."""
    a, b = promote(a, b)
    n, m = aval_of(a).ndim, aval_of(b).ndim
    if not n or not m:
        dtype = canonical_preferred_dtype(preferred_element_type)
        return ops.mul(to_preferred_dtype(a, dtype), to_preferred_dtype(b, dtype))
    axes = (n - 1,), (max(m - from_end, 0),)
    return _tensordot(name, a, b, axes, precision, preferred_element_type)


def vdot(
    a: ArrayOrList,
    b: ArrayOrList,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
) -> Value:
    """The sum of `conj(a) * b` over all elements of the flattened operands."""
    a, b = promote(a, b)
    if aval_of(a).size != aval_of(b).size:
        raise ShapeError(
            f"vdot: the arrays must have as many elements; got {aval_of(a)!r} and {aval_of(b)!r}"
        )
    left, right = [ops.reshape(x, (aval_of(x).size,)) for x in (a, b)]
    return _tensordot(
        "vdot", _conjugate(left), right, ((0,), (0,)), precision, preferred_element_type
    )


def tensordot(
    a: ArrayOrList,
    b: ArrayOrList,
    axes: SupportsIndex | tuple[Axes, Axes] | list[Axes] = 2,
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
    out_sharding: OutSharding = None,
) -> Value:
    """The sum of products over `axes`, a pair of axes or lists of axes, one for each operand.

    A number n means the last n axes of `a` and the first n axes of `b`. `out_sharding` is the
    sharding of the result.
    """
    a, b = promote(a, b)
    n, m = aval_of(a).ndim, aval_of(b).ndim
    if isinstance(axes, (tuple, list)):
        if len(axes) != 2:
            raise AxisError(f"tensordot: axes must be a number or a pair; got {axes}")
        groups = [
            canonical_axes(group, ndim, "tensordot: axes")
            for group, ndim in zip(axes, (n, m), strict=True)
        ]
    else:
        count = index(axes)
        if not 0 <= count <= min(n, m):
            raise AxisError(
                f"tensordot: axes must be at most the number of dimensions; got {axes} for "
                f"{aval_of(a)!r} and {aval_of(b)!r}"
            )
        groups = [tuple(range(n - count, n)), tuple(range(count))]
    sums = _tensordot("tensordot", a, b, (groups[0], groups[1]), precision, preferred_element_type)
    return place_result(sums, out_sharding)


def static_diagonal(x: Value, offset: int, axis1: int, axis2: int) -> Value:
    """The diagonal of two dimensions as a new last dimension, read by a strided slice."""
    shape = aval_of(x).shape
    batch = [d for d in range(len(shape)) if d not in (axis1, axis2)]
    sizes = tuple([shape[d] for d in batch])
    n, m = shape[axis1], shape[axis2]
    count = max(0, min(n + min(offset, 0), m - max(offset, 0)))
    first = offset if offset >= 0 else -offset * m
    x = ops.reshape(ops.permute_dims(x, (*batch, axis1, axis2)), (*sizes, n * m))
    if not count:
        first = 0
    stop = first + (count - 1) * (m + 1) + 1 if count else 0
    strides = (*(1 for _ in sizes), m + 1)
    return ops.slice(x, (*(0 for _ in sizes), first), (*sizes, stop), strides)
