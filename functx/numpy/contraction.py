"""Products of two arrays that sum over dimensions: of matrices, of vectors, of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from operator import index
from typing import Any

from functx.core.avals import ShapedArray
from functx.core.dtypes import canonical_dtype, is_complex
from functx.core.errors import AxisError, ShapeError
from functx.core.tracing import Tracer, aval_of
from functx.lax.precision import canonical_precision
from functx.numpy.mutation import accept_out
from functx.numpy.promotion import promote
from functx.ops.arithmetic import mul
from functx.ops.complexes import conj
from functx.ops.contraction import DotGeneral
from functx.ops.conversion import convert_element_type
from functx.ops.operands import canonical_axes, canonical_axis
from functx.ops.shaping import moveaxis, permute_dims, reshape

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

Labels = tuple[Any, ...]
PairwiseContraction = Callable[[Any, Any], Any]


def pairwise_contraction(
    x: dict[Any, int], y: dict[Any, int], out: Labels, precision: Any = None, preferred: Any = None
) -> PairwiseContraction:
    """The function that multiplies two arrays and sums over the labels that `out` lacks.

    `x` and `y` hold the label and the size of each dimension, in order. Labels that only one
    of them has must be in `out`. It takes one `dot_general`, and at most one permutation.
    """
    # A dimension of length 1 beside a longer one is left to the operand that has the longer.
    left = {label: n for label, n in x.items() if n != 1 or y.get(label, 1) == 1}
    right = {label: n for label, n in y.items() if n != 1 or x.get(label, 1) == 1}
    shapes = tuple(left.values()), tuple(right.values())
    whole = shapes == (tuple(x.values()), tuple(y.values()))
    if not left or not right or left.keys() == right.keys() == set(out):
        orders = _output_order(left, out), _output_order(right, out)

        def elementwise(x: Any, y: Any) -> Any:
            args = [
                permute_dims(
                    reshape(a if preferred is None else convert_element_type(a, preferred), s), o
                )
                for a, s, o in zip((x, y), shapes, orders, strict=True)
            ]
            return mul(*args)

        return elementwise
    batched = tuple([label for label in out if label in left and label in right])
    contracted = tuple([label for label in left if label in right and label not in out])
    free = tuple([label for label in left if label not in right])
    other = tuple([label for label in right if label not in left])
    swapped = out == batched + other + free != batched + free + other
    if swapped:
        left, right, free, other = right, left, other, free
    dot = DotGeneral(
        (label_positions(left, contracted), label_positions(right, contracted)),
        (label_positions(left, batched), label_positions(right, batched)),
        precision[::-1] if swapped and precision else precision,
        preferred,
    )
    axes = label_positions(batched + free + other, out)
    if whole and not swapped and axes == tuple(range(len(axes))):
        return dot

    def contraction(x: Any, y: Any) -> Any:
        x, y = reshape(x, shapes[0]), reshape(y, shapes[1])
        return permute_dims(dot(y, x) if swapped else dot(x, y), axes)

    return contraction


def label_positions(labels: Any, wanted: Labels) -> tuple[int, ...]:
    labels = list(labels)
    return tuple([labels.index(label) for label in wanted])


def _output_order(labels: dict[Any, int], out: Labels) -> tuple[int, ...]:
    return label_positions(labels, tuple([label for label in out if label in labels]))


def promote_operands(*args: Any) -> Sequence[Any]:
    """`args` in one dtype, at once where they are traced arrays of one."""
    dtype = args[0].atom.aval.dtype if type(args[0]) is Tracer else None
    for x in args:
        if type(x) is not Tracer or x.atom.aval.dtype != dtype:
            return promote(*args)
    return args


def canonical_preferred_dtype(dtype: Any) -> Any:
    return None if dtype is None else canonical_dtype(dtype)


def to_preferred_dtype(out: Any, dtype: Any) -> Any:
    """`out`; of exactly `dtype` where the caller preferred one."""
    return out if dtype is None else convert_element_type(out, dtype)


@accept_out
def matmul(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The matrix product of the last two dimensions, the others broadcast together.

    A one-dimensional operand stands for a row on the left and a column on the right, which
    leaves the result. The operands must have at least one dimension.
    """
    if precision is None is preferred_element_type and type(a) is Tracer and type(b) is Tracer:
        x, y = a.atom.aval, b.atom.aval
        if x.dtype == y.dtype:
            return _matmul(x, y, None, None)(a, b)
    a, b = promote_operands(a, b)
    dtype = canonical_preferred_dtype(preferred_element_type)
    product = _matmul(aval_of(a), aval_of(b), canonical_precision(precision), dtype)
    return to_preferred_dtype(product(a, b), dtype)


@lru_cache(maxsize=4096)
def _matmul(x: ShapedArray, y: ShapedArray, precision: Any, preferred: Any) -> PairwiseContraction:
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
    precision: Any = None,
    preferred: Any = None,
) -> PairwiseContraction:
    """The product over `k`, the dimensions before those in `left` and `right` broadcast."""
    for aval, labels in ((x, left), (y, right)):
        if aval.ndim < len(labels):
            raise ShapeError(
                f"{name}: operands must have at least {len(left)} and {len(right)} dimensions; "
                f"got {x!r} and {y!r}"
            )
    leading = [range(len(labels) - aval.ndim, 0) for aval, labels in ((x, left), (y, right))]
    sizes = dict(zip((*leading[0], *left), x.shape, strict=True))
    others = dict(zip((*leading[1], *right), y.shape, strict=True))
    if sizes["k"] != others["k"]:
        places = " and ".join(
            f"dimension {labels.index('k') - len(labels)} ({n['k']})"
            for labels, n in ((left, sizes), (right, others))
        )
        raise ShapeError(
            f"{name}: {places} must have one size; got {x!r} and {y!r}",
            fix="Transpose an operand (x.T), or reshape it; `*` multiplies element by element.",
        )
    if any(1 != sizes.get(d, 1) != others.get(d, 1) != 1 for d in leading[0]):
        raise ShapeError(f"{name}: the leading dimensions must broadcast; got {x!r} and {y!r}")
    batched = max(leading, key=len)
    out = (*batched, *[label for label in (*left, *right) if label != "k"])
    return pairwise_contraction(sizes, others, out, precision, preferred)


@accept_out
def matvec(x1: Any, x2: Any, /) -> Any:
    """The product of matrices and vectors: `x1[..., m, k]` with `x2[..., k]`."""
    x1, x2 = promote_operands(x1, x2)
    return _batched_contraction("matvec", aval_of(x1), aval_of(x2), ("m", "k"), ("k",))(x1, x2)


@accept_out
def vecmat(x1: Any, x2: Any, /) -> Any:
    """The product of conjugated vectors and matrices: `x1[..., k]` with `x2[..., k, n]`."""
    x1, x2 = promote_operands(x1, x2)
    product = _batched_contraction("vecmat", aval_of(x1), aval_of(x2), ("k",), ("k", "n"))
    return product(_conjugate(x1), x2)


@accept_out
def vecdot(
    x1: Any,
    x2: Any,
    /,
    *,
    axis: int = -1,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """The sum of `conj(x1) * x2` along `axis`, the other dimensions broadcast together."""
    x1, x2 = promote_operands(x1, x2)
    ndims = aval_of(x1).ndim, aval_of(x2).ndim
    x1, x2 = (
        moveaxis(x, canonical_axis(axis, n, "vecdot: axis"), n - 1)
        for x, n in zip((x1, x2), ndims, strict=True)
    )
    dtype = canonical_preferred_dtype(preferred_element_type)
    product = _batched_contraction(
        "vecdot", aval_of(x1), aval_of(x2), ("k",), ("k",), canonical_precision(precision), dtype
    )
    return to_preferred_dtype(product(_conjugate(x1), x2), dtype)


def _conjugate(x: Any) -> Any:
    return conj(x) if is_complex(aval_of(x).dtype) else x


def _tensordot(
    name: str, a: Any, b: Any, axes: tuple[Any, Any], precision: Any, preferred_element_type: Any
) -> Any:
    """The sum of products over `axes`; what is left of `a` comes before what is left of `b`."""
    x, y = aval_of(a), aval_of(b)
    sizes = [[aval.shape[i] for i in group] for aval, group in zip((x, y), axes, strict=True)]
    if sizes[0] != sizes[1]:
        raise ShapeError(
            f"{name}: contracted dimensions must have one size; got {x!r} along {axes[0]} "
            f"({sizes[0]}) and {y!r} along {axes[1]} ({sizes[1]})"
        )
    dtype = canonical_preferred_dtype(preferred_element_type)
    return to_preferred_dtype(
        DotGeneral(axes, ((), ()), canonical_precision(precision), dtype)(a, b), dtype
    )


@partial(accept_out, place=2)
def dot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The sum of products over the last dimension of `a` and the last but one of `b`.

    The last of `b` where it has but one; a scalar operand scales the other.
    """
    a, b = promote_operands(a, b)
    n, m = aval_of(a).ndim, aval_of(b).ndim
    if not n or not m:
        dtype = canonical_preferred_dtype(preferred_element_type)
        return mul(to_preferred_dtype(a, dtype), to_preferred_dtype(b, dtype))
    return _tensordot("dot", a, b, ((n - 1,), (max(m - 2, 0),)), precision, preferred_element_type)


def inner(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The sum of products over the last dimensions; a scalar operand scales the other."""
    a, b = promote_operands(a, b)
    n, m = aval_of(a).ndim, aval_of(b).ndim
    if not n or not m:
        dtype = canonical_preferred_dtype(preferred_element_type)
        return mul(to_preferred_dtype(a, dtype), to_preferred_dtype(b, dtype))
    return _tensordot("inner", a, b, ((n - 1,), (m - 1,)), precision, preferred_element_type)


def vdot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The sum of `conj(a) * b` over all elements, each operand taken as one vector."""
    a, b = (reshape(x, (aval_of(x).size,)) for x in promote(a, b))
    return _tensordot("vdot", _conjugate(a), b, ((0,), (0,)), precision, preferred_element_type)


def tensordot(
    a: Any, b: Any, axes: Any = 2, *, precision: Any = None, preferred_element_type: Any = None
) -> Any:
    """The sum of products over `axes`: a pair of axes or of lists of them, one each operand.

    A number means so many of the last axes of `a` and of the first axes of `b`.
    """
    a, b = promote_operands(a, b)
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
    return _tensordot("tensordot", a, b, (groups[0], groups[1]), precision, preferred_element_type)
