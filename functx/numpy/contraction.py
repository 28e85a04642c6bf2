"""Products of arrays: matrix products, tensor contractions, `einsum`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import index
from typing import Any, NamedTuple

import numpy as np

from functx.core.avals import Shape, ShapedArray
from functx.core.dtypes import canonical_dtype, is_complex, kind
from functx.core.errors import ArgumentError, AxisError, ShapeError, ValueRangeError
from functx.core.tracing import Tracer, aval_of
from functx.lax.precision import canonical_precision
from functx.numpy.mutation import with_out
from functx.numpy.promotion import broadcast, operand, promote
from functx.ops.arithmetic import mul, sub
from functx.ops.complexes import conj
from functx.ops.contraction import DotGeneral
from functx.ops.conversion import convert_element_type
from functx.ops.operands import canonical_axes, canonical_axis, literal
from functx.ops.reductions import reduce_or, reduce_sum
from functx.ops.shaping import (
    broadcast_in_dim,
    concatenate,
    moveaxis,
    pad,
    permute_dims,
    reshape,
)
from functx.ops.slicing import slice as slice_

__all__ = [
    "cross",
    "dot",
    "einsum",
    "einsum_path",
    "inner",
    "kron",
    "matmul",
    "matvec",
    "outer",
    "tensordot",
    "trace",
    "vdot",
    "vecdot",
    "vecmat",
]

Labels = tuple[Any, ...]
Pair = Callable[[Any, Any], Any]


def product(
    x: dict[Any, int], y: dict[Any, int], out: Labels, precision: Any = None, preferred: Any = None
) -> Pair:
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
        orders = _order(left, out), _order(right, out)

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
        (_positions(left, contracted), _positions(right, contracted)),
        (_positions(left, batched), _positions(right, batched)),
        precision[::-1] if swapped and precision else precision,
        preferred,
    )
    axes = _positions(batched + free + other, out)
    if whole and not swapped and axes == tuple(range(len(axes))):
        return dot

    def contraction(x: Any, y: Any) -> Any:
        x, y = reshape(x, shapes[0]), reshape(y, shapes[1])
        return permute_dims(dot(y, x) if swapped else dot(x, y), axes)

    return contraction


def _positions(labels: Any, wanted: Labels) -> tuple[int, ...]:
    labels = list(labels)
    return tuple([labels.index(label) for label in wanted])


def _order(labels: dict[Any, int], out: Labels) -> tuple[int, ...]:
    return _positions(labels, tuple([label for label in out if label in labels]))


def _promoted(*args: Any) -> Sequence[Any]:
    """`args` in one dtype, at once where they are traced arrays of one."""
    dtype = args[0].aval.dtype if type(args[0]) is Tracer else None
    for x in args:
        if type(x) is not Tracer or x.aval.dtype != dtype:
            return promote(*args)
    return args


def _preferred(dtype: Any) -> Any:
    return None if dtype is None else canonical_dtype(dtype)


def _typed(out: Any, dtype: Any) -> Any:
    """`out`; of exactly `dtype` where the caller preferred one."""
    return out if dtype is None else convert_element_type(out, dtype)


@with_out
def matmul(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The matrix product of the last two dimensions, the others broadcast together.

    A one-dimensional operand stands for a row on the left and a column on the right, which
    leaves the result. The operands must have at least one dimension.
    """
    if precision is None is preferred_element_type and type(a) is Tracer and type(b) is Tracer:
        x, y = a.aval, b.aval
        if x.dtype == y.dtype:
            return _matmul(x, y, None, None)(a, b)
    a, b = _promoted(a, b)
    dtype = _preferred(preferred_element_type)
    product = _matmul(aval_of(a), aval_of(b), canonical_precision(precision), dtype)
    return _typed(product(a, b), dtype)


@lru_cache(maxsize=4096)
def _matmul(x: ShapedArray, y: ShapedArray, precision: Any, preferred: Any) -> Pair:
    if not x.ndim or not y.ndim:
        raise ShapeError(
            f"matmul: operands must have at least one dimension; got {x!r} and {y!r}",
            fix="Multiply by a scalar with `*`.",
        )
    rows, columns = ("m",)[: x.ndim - 1], ("n",)[: y.ndim - 1]
    return _batched_product("matmul", x, y, (*rows, "k"), ("k", *columns), precision, preferred)


def _batched_product(
    name: str,
    x: ShapedArray,
    y: ShapedArray,
    left: Labels,
    right: Labels,
    precision: Any = None,
    preferred: Any = None,
) -> Pair:
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
        raise ShapeError(f"{name}: {places} must have one size; got {x!r} and {y!r}")
    if any(1 != sizes.get(d, 1) != others.get(d, 1) != 1 for d in leading[0]):
        raise ShapeError(f"{name}: the leading dimensions must broadcast; got {x!r} and {y!r}")
    batched = max(leading, key=len)
    out = (*batched, *[label for label in (*left, *right) if label != "k"])
    return product(sizes, others, out, precision, preferred)


@with_out
def matvec(x1: Any, x2: Any, /) -> Any:
    """The product of matrices and vectors: `x1[..., m, k]` with `x2[..., k]`."""
    x1, x2 = _promoted(x1, x2)
    return _batched_product("matvec", aval_of(x1), aval_of(x2), ("m", "k"), ("k",))(x1, x2)


@with_out
def vecmat(x1: Any, x2: Any, /) -> Any:
    """The product of conjugated vectors and matrices: `x1[..., k]` with `x2[..., k, n]`."""
    x1, x2 = _promoted(x1, x2)
    product = _batched_product("vecmat", aval_of(x1), aval_of(x2), ("k",), ("k", "n"))
    return product(_conjugate(x1), x2)


@with_out
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
    x1, x2 = _promoted(x1, x2)
    ndims = aval_of(x1).ndim, aval_of(x2).ndim
    x1, x2 = (
        moveaxis(x, canonical_axis(axis, n, "vecdot: axis"), n - 1)
        for x, n in zip((x1, x2), ndims, strict=True)
    )
    dtype = _preferred(preferred_element_type)
    product = _batched_product(
        "vecdot", aval_of(x1), aval_of(x2), ("k",), ("k",), canonical_precision(precision), dtype
    )
    return _typed(product(_conjugate(x1), x2), dtype)


def _conjugate(x: Any) -> Any:
    return conj(x) if is_complex(aval_of(x).dtype) else x


def _contract(
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
    dtype = _preferred(preferred_element_type)
    return _typed(DotGeneral(axes, ((), ()), canonical_precision(precision), dtype)(a, b), dtype)


@with_out
def dot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The sum of products over the last dimension of `a` and the last but one of `b`.

    The last of `b` where it has but one; a scalar operand scales the other.
    """
    a, b = _promoted(a, b)
    n, m = aval_of(a).ndim, aval_of(b).ndim
    if not n or not m:
        dtype = _preferred(preferred_element_type)
        return mul(_typed(a, dtype), _typed(b, dtype))
    return _contract("dot", a, b, ((n - 1,), (max(m - 2, 0),)), precision, preferred_element_type)


def inner(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The sum of products over the last dimensions; a scalar operand scales the other."""
    a, b = _promoted(a, b)
    n, m = aval_of(a).ndim, aval_of(b).ndim
    if not n or not m:
        dtype = _preferred(preferred_element_type)
        return mul(_typed(a, dtype), _typed(b, dtype))
    return _contract("inner", a, b, ((n - 1,), (m - 1,)), precision, preferred_element_type)


def vdot(a: Any, b: Any, *, precision: Any = None, preferred_element_type: Any = None) -> Any:
    """The sum of `conj(a) * b` over all elements, each operand taken as one vector."""
    a, b = (reshape(x, (aval_of(x).size,)) for x in promote(a, b))
    return _contract("vdot", _conjugate(a), b, ((0,), (0,)), precision, preferred_element_type)


def tensordot(
    a: Any, b: Any, axes: Any = 2, *, precision: Any = None, preferred_element_type: Any = None
) -> Any:
    """The sum of products over `axes`: a pair of axes or of lists of them, one each operand.

    A number means so many of the last axes of `a` and of the first axes of `b`.
    """
    a, b = _promoted(a, b)
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
    return _contract("tensordot", a, b, (groups[0], groups[1]), precision, preferred_element_type)


@with_out
def outer(a: Any, b: Any) -> Any:
    """The products of every element of `a` with every one of `b`, as a matrix."""
    a, b = (reshape(x, (aval_of(x).size,)) for x in promote(a, b))
    shape = aval_of(a).size, aval_of(b).size
    return mul(broadcast_in_dim(a, shape, (0,)), broadcast_in_dim(b, shape, (1,)))


def kron(a: Any, b: Any) -> Any:
    """The Kronecker product: each element of `a` times all of `b`, as blocks of one array."""
    a, b = _promoted(a, b)
    x, y = aval_of(a).shape, aval_of(b).shape
    rank = max(len(x), len(y))
    x, y = (1,) * (rank - len(x)) + x, (1,) * (rank - len(y)) + y
    shape = tuple([n for pair in zip(x, y, strict=True) for n in pair])
    a = broadcast_in_dim(reshape(a, x), shape, tuple(range(0, 2 * rank, 2)))
    b = broadcast_in_dim(reshape(b, y), shape, tuple(range(1, 2 * rank, 2)))
    return reshape(mul(a, b), tuple([n * m for n, m in zip(x, y, strict=True)]))


def cross(
    a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Any:
    """The cross product of vectors of two or three components, which lie along `axis`.

    `axisa`, `axisb` and `axisc` place them in each operand and in the result. Of two vectors
    of two components only the third component of the product is given.
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = _promoted(a, b)
    given = aval_of(a), aval_of(b)
    a, b = (
        moveaxis(x, canonical_axis(k, aval_of(x).ndim, f"cross: {name}"), aval_of(x).ndim - 1)
        for x, k, name in ((a, axisa, "axisa"), (b, axisb, "axisb"))
    )
    sizes = aval_of(a).shape[-1], aval_of(b).shape[-1]
    if not set(sizes) <= {2, 3}:
        raise ShapeError(
            f"cross: vectors must have 2 or 3 components; got {given[0]!r} and {given[1]!r}"
        )
    if sizes == (2, 2):
        first, second = (_components(x) for x in (a, b))
        left = mul(*broadcast(first[0], second[1]))
        return sub(left, mul(*broadcast(first[1], second[0])))
    a, b = broadcast(*[_in_space(x) if n == 2 else x for x, n in zip((a, b), sizes, strict=True)])
    # With the components rotated: c[i + 2] = a[i] b[i + 1] - a[i + 1] b[i]
    out = _rotate(sub(mul(a, _rotate(b)), mul(_rotate(a), b)))
    ndim = aval_of(out).ndim
    return moveaxis(out, ndim - 1, canonical_axis(axisc, ndim, "cross: axisc"))


def _last(x: Any, start: int, stop: int) -> Any:
    lead = aval_of(x).shape[:-1]
    return slice_(x, (*(0 for _ in lead), start), (*lead, stop))


def _components(x: Any) -> list[Any]:
    shape = aval_of(x).shape
    return [reshape(_last(x, i, i + 1), shape[:-1]) for i in range(shape[-1])]


def _rotate(x: Any) -> Any:
    return concatenate([_last(x, 1, 3), _last(x, 0, 1)], aval_of(x).ndim - 1)


def _in_space(x: Any) -> Any:
    """Vectors of two components with a third that is zero."""
    aval = aval_of(x)
    return pad(x, literal(0, aval.dtype), (*((0, 0, 0) for _ in aval.shape[:-1]), (0, 1, 0)))


def diagonal_of(x: Any, offset: int, axis1: int, axis2: int) -> Any:
    """The elements on a diagonal of two dimensions, along a new last dimension in their place."""
    shape = aval_of(x).shape
    lead = [d for d in range(len(shape)) if d not in (axis1, axis2)]
    sizes = tuple([shape[d] for d in lead])
    n, m = shape[axis1], shape[axis2]
    count = max(0, min(n + min(offset, 0), m - max(offset, 0)))
    first = offset if offset >= 0 else -offset * m
    x = reshape(permute_dims(x, (*lead, axis1, axis2)), (*sizes, n * m))
    if not count:
        first = 0
    stop = first + (count - 1) * (m + 1) + 1 if count else 0
    strides = (*(1 for _ in sizes), m + 1)
    return slice_(x, (*(0 for _ in sizes), first), (*sizes, stop), strides)


@with_out
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Any:
    """The sum along a diagonal of two dimensions, which leave the shape.

    Booleans and narrow integers are summed in the default integer type.
    """
    a = operand(a)
    aval = aval_of(a)
    if aval.ndim < 2:
        raise ShapeError(f"trace: the operand must have at least two dimensions; got {aval!r}")
    axes = canonical_axes((axis1, axis2), aval.ndim, "trace: axis1 and axis2")
    if dtype is None:
        dtype = _summed(aval.dtype)
    on_diagonal = convert_element_type(diagonal_of(a, index(offset), *axes), dtype)
    return reduce_sum(on_diagonal, aval.ndim - 2)


def _summed(dtype: Any) -> Any:
    wide = {"b": "int64", "i": "int64", "u": "uint64"}.get(kind(dtype))
    if wide is None:
        return dtype
    default = canonical_dtype(wide)
    return default if default.itemsize > dtype.itemsize else dtype


def matrix_power(a: Any, n: int) -> Any:
    """The square matrices `a` multiplied by themselves, `n` factors, which is not negative."""
    a = operand(a)
    aval = aval_of(a)
    if aval.ndim < 2 or aval.shape[-1] != aval.shape[-2]:
        raise ShapeError(f"matrix_power: the operand must be square matrices; got {aval!r}")
    try:
        n = index(n)
    except TypeError:
        raise ArgumentError(f"matrix_power: n must be an integer; got {n!r}") from None
    if n == 0:
        from functx.numpy.matrices import eye

        unit = eye(aval.shape[-1], dtype=aval.dtype)
        return broadcast_in_dim(unit, aval.shape, (aval.ndim - 2, aval.ndim - 1))
    if n < 0:
        raise ValueRangeError(
            f"matrix_power: n must not be negative; got {n}", fix="Invert the matrices first."
        )
    result = None
    while n:
        if n & 1:
            result = a if result is None else matmul(result, a)
        n >>= 1
        if n:
            a = matmul(a, a)
    return result


def multi_dot(arrays: Sequence[Any], *, precision: Any = None) -> Any:
    """The product of a chain of matrices, in the order that takes the fewest operations.

    The first and the last may be vectors.
    """
    arrays = promote(*arrays)
    if len(arrays) < 2:
        raise ValueRangeError(f"multi_dot: there must be at least two arrays; got {len(arrays)}")
    ndims = [aval_of(x).ndim for x in arrays]
    if any(n != 2 for n in ndims[1:-1]) or not {ndims[0], ndims[-1]} <= {1, 2}:
        raise ShapeError(
            "multi_dot: all operands must be matrices, but the first and last may be vectors; "
            "got " + " and ".join(repr(aval_of(x)) for x in arrays)
        )
    terms: list[tuple[int, ...]] = [(i, i + 1) for i in range(len(arrays))]
    out = [0, len(arrays)]
    if ndims[0] == 1:
        terms[0], out = (1,), out[1:]
    if ndims[-1] == 1:
        terms[-1], out = (len(arrays) - 1,), out[:-1]
    interleaved = [item for pair in zip(arrays, terms, strict=True) for item in pair]
    return einsum(*interleaved, out, optimize="optimal", precision=precision)


class Contraction(NamedTuple):
    """A compiled `einsum`: every operand prepared, then products of two, in order.

    `steps` names its operands by position among the prepared ones and the results so far.
    """

    prepare: tuple[Callable[[Any], Any], ...]
    steps: tuple[tuple[int, int, Pair], ...]

    def __call__(self, operands: Sequence[Any]) -> Any:
        terms = [f(x) for f, x in zip(self.prepare, operands, strict=True)]
        for i, j, multiply in self.steps:
            terms.append(multiply(terms[i], terms[j]))
        return terms[-1]


@with_out
def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    optimize: Any = "auto",
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """The sum of products that `subscripts` describes: `"ij,jk->ik"` is a matrix product.

    Each operand has one letter a dimension, `...` for those that broadcast. A letter that
    stands twice in one operand takes its diagonal; one that the output lacks is summed over.
    Without `->`, the output has the letters that occur once, in alphabetical order.
    `optimize` is how `opt_einsum` finds the order of the products of three or more operands.
    """
    if type(subscripts) is not str:
        subscripts, operands = _from_interleaved((subscripts, *operands))
    arrays = _promoted(*operands) if operands else ()
    shapes = tuple([aval_of(x).shape for x in arrays])
    if isinstance(optimize, list):
        optimize = tuple([step if isinstance(step, str) else tuple(step) for step in optimize])
    dtype = _preferred(preferred_element_type)
    plan = _plan(subscripts, shapes, optimize, canonical_precision(precision), dtype)
    return _typed(plan(arrays), dtype)


def einsum_path(subscripts: Any, /, *operands: Any, optimize: Any = "auto") -> tuple[Any, Any]:
    """The order in which `einsum` would multiply, and a report on its cost that prints."""
    import opt_einsum

    if type(subscripts) is not str:
        subscripts, operands = _from_interleaved((subscripts, *operands))
    shapes = [aval_of(operand(x)).shape for x in operands]
    path, report = opt_einsum.contract_path(subscripts, *shapes, shapes=True, optimize=optimize)
    return path, report


def _from_interleaved(args: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """The string and the operands of `einsum(x, [0, 1], y, [1, 2], [0, 2])`."""
    operands, lists = args[: len(args) // 2 * 2 : 2], list(args[1::2])
    out = [args[-1]] if len(args) % 2 else []
    try:
        terms = [
            "".join("..." if label is Ellipsis else _letter(label) for label in labels)
            for labels in (*lists, *out)
        ]
    except TypeError:
        raise ArgumentError(
            "einsum: operands must follow a string, or alternate with lists of integers; got "
            f"{type(args[0]).__name__} first"
        ) from None
    inputs = ",".join(terms[: len(lists)])
    return (f"{inputs}->{terms[-1]}" if out else inputs), operands


def _letter(label: Any) -> str:
    # Letters while there are some, in the order of the numbers, which decides implicit outputs.
    number = index(label)
    return chr(ord("a") + number) if 0 <= number < 26 else chr(0x4E00 + number)


def _parse(subscripts: str, shapes: Sequence[Shape]) -> tuple[list[str], str]:
    """The labels of each operand and of the output, with `...` written out."""
    text = "".join(subscripts.split())
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise ArgumentError(
            f"einsum: there must be one operand a term; got {len(shapes)} for {subscripts!r}"
        )
    inputs = []
    widest = 0
    for term, shape in zip(terms, shapes, strict=True):
        named, dots, rest = term.partition("...")
        extra = len(shape) - len(named) - len(rest)
        if extra < 0 or (extra and not dots):
            raise ShapeError(
                f"einsum: a term must have one letter a dimension; got `{term}` for an array of "
                f"shape {shape}, in {subscripts!r}"
            )
        widest = max(widest, extra)
        inputs.append(named + _ellipsis(extra) + rest)
    every = "".join(inputs)
    broadcast = _ellipsis(widest)
    if arrow:
        output = right.replace("...", broadcast)
    else:
        output = broadcast + "".join(
            sorted(c for c in set(every) if every.count(c) == 1 and c not in broadcast)
        )
    odd = [c for c in every + output if c in ".->,"]
    absent = [c for c in output if c not in every]
    if odd or absent or len(set(output)) != len(output):
        raise ValueRangeError(
            "einsum: subscripts must be letters, with those of the output in some operand and "
            f"there but once; got {subscripts!r}"
        )
    return inputs, output


def _ellipsis(count: int) -> str:
    """Labels for the dimensions that `...` covers, the last one always the same."""
    return "".join([chr(0x3400 + i) for i in reversed(range(count))])


@lru_cache(maxsize=1024)
def _plan(
    subscripts: str, shapes: tuple[Shape, ...], optimize: Any, precision: Any, preferred: Any
) -> Contraction:
    inputs, output = _parse(subscripts, shapes)
    sizes = _sizes(subscripts, inputs, shapes)
    # A dimension of length 1 beside a longer one of its letter is left to the longer.
    kept = [
        "".join([c for c, n in zip(term, shape, strict=True) if n == sizes[c]])
        for term, shape in zip(inputs, shapes, strict=True)
    ]
    prepare, terms = [], []
    for i, term in enumerate(kept):
        others = output + "".join(kept[:i] + kept[i + 1 :])
        shape = tuple([sizes[c] for c in term])
        function, left = _prepared(term, shape, others, output if len(kept) == 1 else None)
        prepare.append(function)
        terms.append(left)
    steps: list[tuple[int, int, Pair]] = []
    live = list(range(len(terms)))
    for positions in (*_path(terms, output, sizes, optimize), range(len(terms))):
        chosen = [live[p] for p in sorted(positions) if p < len(live)]
        if not chosen:
            continue
        live = [term for term in live if term not in chosen]
        i = chosen[0]
        for count, j in enumerate(chosen[1:], 2):
            later = [*live, *chosen[count:]]
            needed = set(output).union(*[terms[k] for k in later])
            labels = _natural_order(terms[i], terms[j], needed) if later else output
            x, y = ({c: sizes[c] for c in terms[k]} for k in (i, j))
            steps.append((i, j, product(x, y, tuple(labels), precision, preferred)))
            terms.append(labels)
            i = len(terms) - 1
        live.append(i)
    return Contraction(tuple(prepare), tuple(steps))


def _sizes(subscripts: str, inputs: list[str], shapes: Sequence[Shape]) -> dict[str, int]:
    """The size of the dimension that each letter stands for."""
    sizes: dict[str, int] = {}
    for term, shape in zip(inputs, shapes, strict=True):
        for label, n in zip(term, shape, strict=True):
            if 1 != sizes.setdefault(label, n) != n != 1:
                raise ShapeError(
                    f"einsum: the dimensions of one letter must have one size; got {sizes[label]} "
                    f"and {n} for `{label}` in {subscripts!r} with shapes {shapes}"
                )
            if n != 1:
                sizes[label] = n
    return sizes


def _natural_order(left: str, right: str, needed: set[str]) -> str:
    """The labels of a product in the order in which `dot_general` gives them."""
    both = [c for c in left if c in right and c in needed]
    return "".join(both + [c for c in left if c not in right] + [c for c in right if c not in left])


def _path(terms: list[str], output: str, sizes: dict[str, int], optimize: Any) -> Sequence[Any]:
    """Which operands to multiply, step by step, as positions among those that are left."""
    if len(terms) < 3:
        return []
    if isinstance(optimize, tuple):
        return [step for step in optimize if not isinstance(step, str)]
    if optimize is False:
        return [(0, 1), *[(0, len(terms) - 1 - i) for i in range(1, len(terms) - 1)]]
    import opt_einsum

    path: Sequence[Any]
    path, _ = opt_einsum.contract_path(
        f"{','.join(terms)}->{output}",
        *[tuple([sizes[c] for c in term]) for term in terms],
        shapes=True,
        optimize="optimal" if optimize is True else optimize,
    )
    return path


def _prepared(
    term: str, shape: Shape, others: str, output: str | None
) -> tuple[Callable[[Any], Any], str]:
    """What takes an operand to the shape and diagonals of `term`, summed over what it alone has.

    The dimensions are then in the order of `output`, if that is given. Their labels follow.
    """
    diagonals = []
    labels = term
    while repeated := next((c for c in labels if labels.count(c) > 1), ""):
        first = labels.index(repeated)
        second = labels.index(repeated, first + 1)
        diagonals.append((first, second))
        labels = labels[:first] + labels[first + 1 : second] + labels[second + 1 :] + repeated
    summed = tuple([d for d, c in enumerate(labels) if c not in others])
    left = "".join([c for c in labels if c in others])
    axes = _positions(left, tuple(left if output is None else output))

    def prepare(x: Any) -> Any:
        x = reshape(x, shape)
        for first, second in diagonals:
            x = diagonal_of(x, 0, first, second)
        if summed:
            x = (reduce_or if aval_of(x).dtype == np.bool_ else reduce_sum)(x, summed)
        return permute_dims(x, axes)

    return prepare, left
