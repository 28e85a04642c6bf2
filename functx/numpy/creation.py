"""New arrays: from values, from shapes, by formula. Inside a trace they are part of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import numpy as np

from functx.core.concrete import concrete, refuse_if_differentiated
from functx.core.dtypes import DType, canonical_dtype, inexact_dtype, is_complex, is_inexact, kind
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from functx.core.program import Literal
from functx.core.storage import lies_in_a_row
from functx.core.tracing import Tracer, apply, aval_of, bind, current_builder, literal_of, trace
from functx.numpy.promotion import (
    broadcast,
    broadcast_to,
    copied,
    promote,
    promote_inexact,
    result_type,
)
from functx.ops.arithmetic import add, div, mul, sub
from functx.ops.comparison import eq, ge
from functx.ops.conversion import convert_element_type
from functx.ops.creation import broadcasted_iota, iota
from functx.ops.operands import (
    PYTHON_SCALARS,
    canonical_axes,
    canonical_axis,
    canonical_shape,
    literal,
)
from functx.ops.selection import select
from functx.ops.shaping import (
    Full,
    broadcast_in_dim,
    concatenate,
    expand_dims,
    pad,
    reshape,
)
from functx.ops.strided import Strided

__all__ = [
    "arange",
    "array",
    "asanyarray",
    "asarray",
    "ascontiguousarray",
    "diag",
    "diag_indices",
    "diag_indices_from",
    "diagflat",
    "diagonal",
    "empty",
    "empty_like",
    "eye",
    "fromfunction",
    "full",
    "full_like",
    "geomspace",
    "identity",
    "indices",
    "linspace",
    "logspace",
    "meshgrid",
    "mgrid",
    "ogrid",
    "ones",
    "ones_like",
    "tri",
    "tril",
    "tril_indices",
    "tril_indices_from",
    "triu",
    "triu_indices",
    "triu_indices_from",
    "vander",
    "zeros",
    "zeros_like",
]

FLOAT, INT = np.dtype("float64"), np.dtype("int64")


def asarray(
    a: Any, dtype: Any = None, order: Any = None, *, copy: bool | None = None, device: Any = None
) -> Any:
    """`a` as an array: numbers, nested lists of numbers and of arrays, or an array itself."""
    if type(a) is Tracer:
        return a if dtype is None else convert_element_type(a, dtype)
    if isinstance(a, (list, tuple)):
        made = _of_list(a, dtype)
        return copied(made) if type(made) is Tracer else made
    builder = current_builder.get()
    if type(a) in PYTHON_SCALARS or isinstance(a, (np.generic, Literal)):
        found = literal_of(a) if dtype is None else _number_in(a, canonical_dtype(dtype))
        assert found is not None
        if builder is None:
            return np.array(found.value, found.aval.dtype)
        return Tracer(found, builder)
    if isinstance(a, np.ndarray):
        a = np.array(a, aval_of(a).dtype if dtype is None else canonical_dtype(dtype), copy=copy)
        return a if builder is None else Tracer(builder.atom(a), builder)
    aval_of(a)
    if builder is not None:
        a = Tracer(builder.atom(a), builder)
    return a if dtype is None else convert_element_type(a, dtype)


def array(
    object: Any, dtype: Any = None, copy: bool = True, order: Any = None, ndmin: int = 0
) -> Any:
    """`object` as an array of its own, with at least `ndmin` dimensions, new ones in front."""
    made = asarray(object, dtype)
    if copy:
        made = copied(made)
    missing = ndmin - aval_of(made).ndim
    return reshape(made, (1,) * missing + aval_of(made).shape) if missing > 0 else made


def asanyarray(a: Any, dtype: Any = None, order: Any = None) -> Any:
    """`a` as an array, as `asarray` makes it."""
    return asarray(a, dtype)


def ascontiguousarray(a: Any, dtype: Any = None) -> Any:
    """`a` as an array of at least one dimension that lies in row-major order, copied if need be."""
    a = asarray(a, dtype)
    if type(a) is Tracer and not lies_in_a_row(a):
        return copied(a)
    return a if aval_of(a).shape else reshape(a, (1,))


def _number(a: Any) -> Any:
    return a.item() if isinstance(a, np.generic) else a.value if type(a) is Literal else a


def _of_list(items: Any, dtype: Any) -> Any:
    """The array of nested lists: at once where all is NumPy's, else the leaves joined."""
    leaves: list[Any] = []
    shape = _collect(items, leaves)
    if all(type(x) in PYTHON_SCALARS or isinstance(x, (np.ndarray, np.generic)) for x in leaves):
        return asarray(np.array(items, _list_dtype(leaves, dtype)))
    if dtype is None:
        leaves = list(promote(*leaves))
    rows = [_row(x, dtype) for x in leaves]
    joined = rows[0] if len(rows) == 1 else concatenate(rows, 0)
    joined = convert_element_type(joined, aval_of(joined).dtype)
    return reshape(joined, shape)


def _row(x: Any, dtype: Any) -> Any:
    """`x` as a vector of its elements, in `dtype` where it is given."""
    if dtype is not None:
        x = asarray(x, dtype)
    aval = aval_of(x)
    if aval.ndim:
        return reshape(x, (aval.size,))
    return bind(Full((1,)), (literal(x.value, aval.dtype) if type(x) is Literal else x,))


def _collect(items: Any, leaves: list[Any]) -> tuple[int, ...]:
    """Append what nested lists hold to `leaves`; the shape of the whole."""
    if not isinstance(items, (list, tuple)):
        leaves.append(items)
        return aval_of(items).shape
    shapes = [_collect(x, leaves) for x in items]
    if any(s != shapes[0] for s in shapes):
        raise ShapeError(f"array: the items of a list must have one shape; got {_distinct(shapes)}")
    return (len(items), *(shapes[0] if shapes else ()))


def _distinct(shapes: Sequence[Any]) -> str:
    return " and ".join(map(str, dict.fromkeys(shapes)))


def _list_dtype(leaves: Sequence[Any], dtype: Any) -> DType:
    if dtype is not None:
        return canonical_dtype(dtype)
    return result_type(*leaves)[0] if leaves else canonical_dtype(FLOAT)


def _filled(shape: Any, value: Any, dtype: DType, weak: bool = False) -> Any:
    """A new array of `shape` with the number `value` everywhere."""
    shape = canonical_shape(shape)
    builder = current_builder.get()
    if builder is None:
        return np.full(shape, value, dtype)
    fill = literal_of(value) if weak else literal(value, dtype)
    return builder.append(Full(shape), (fill,))


def zeros(shape: Any, dtype: Any = None, order: Any = "C", *, device: Any = None) -> Any:
    """An array of zeros, floating point unless `dtype` says otherwise."""
    return _filled(shape, 0, canonical_dtype(FLOAT if dtype is None else dtype))


def ones(shape: Any, dtype: Any = None, order: Any = "C", *, device: Any = None) -> Any:
    """An array of ones, floating point unless `dtype` says otherwise."""
    return _filled(shape, 1, canonical_dtype(FLOAT if dtype is None else dtype))


def empty(shape: Any, dtype: Any = None, order: Any = "C", *, device: Any = None) -> Any:
    """An array to be written into; here, of zeros."""
    return zeros(shape, dtype)


def full(
    shape: Any, fill_value: Any, dtype: Any = None, order: Any = "C", *, device: Any = None
) -> Any:
    """An array of `shape` with `fill_value`, a number or an array to broadcast, everywhere."""
    if type(fill_value) in PYTHON_SCALARS:
        found = canonical_dtype(type(fill_value) if dtype is None else dtype)
        weak = dtype is None and type(fill_value) is not bool
        return _filled(shape, _cast(fill_value, found), found, weak)
    return copied(broadcast_to(asarray(fill_value, dtype), canonical_shape(shape)))


def _cast(value: Any, dtype: DType) -> Any:
    """The number `value` as an array of `dtype` would hold it, fractions cut off for integers."""
    if kind(dtype) in "iu" and isinstance(value, float):
        return int(value)
    return value


def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: Any = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    """An array of the shape and dtype of `a`, or those given, with `fill_value` everywhere."""
    a = asarray(a) if isinstance(a, (list, tuple)) else a
    aval = aval_of(a)
    dims = aval.shape if shape is None else canonical_shape(shape)
    found = aval.dtype if dtype is None else canonical_dtype(dtype)
    if type(fill_value) in PYTHON_SCALARS:
        weak = dtype is None and aval.weak_type
        value = literal(_cast(fill_value, found), found).value
        return _as_given(a, lambda: _filled(dims, value, found, weak))
    return copied(broadcast_to(asarray(fill_value, found), dims))


def _as_given(like: Any, make: Callable[[], Any]) -> Any:
    """What `make` makes, as a JAX array outside a trace if `like` is one."""
    if (
        current_builder.get() is not None
        or isinstance(like, (np.ndarray, np.generic))
        or (type(like) in PYTHON_SCALARS)
    ):
        return make()
    program, captured = trace(lambda: [make()], [])
    return apply(None, program, captured)[0]


def zeros_like(
    a: Any,
    dtype: Any = None,
    order: Any = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    """Zeros of the shape and dtype of `a`, or those given."""
    return full_like(a, 0, dtype, shape=shape)


def ones_like(
    a: Any,
    dtype: Any = None,
    order: Any = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    """Ones of the shape and dtype of `a`, or those given."""
    return full_like(a, 1, dtype, shape=shape)


def empty_like(
    a: Any,
    dtype: Any = None,
    order: Any = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    """An array to be written into, of the shape and dtype of `a`; here, of zeros."""
    return full_like(a, 0, dtype, shape=shape)


# Ranges.


def arange(
    start: Any, stop: Any = None, step: Any = None, dtype: Any = None, *, device: Any = None
) -> Any:
    """The numbers from `start` (0 if left out) to before `stop`, `step` apart."""
    start, stop, step = [_static(x, "arange") for x in (start, stop, step)]
    if stop is None:
        start, stop = 0 if isinstance(start, (int, np.integer)) else type(start)(0), start
    step = 1 if step is None else step
    found = canonical_dtype(dtype) if dtype is not None else result_type(start, stop, step)[0]
    if current_builder.get() is None:
        return np.arange(start, stop, step).astype(found)
    if step == 0:
        raise ValueRangeError("arange: the step must not be 0; got 0")
    count = max(0, math.ceil((stop - start) / step))
    # Short floats cannot count far, and bool cannot count.
    wide = canonical_dtype(INT) if found == np.bool_ else _at_least_single(found)
    numbers = iota(wide, count)
    if step != 1:
        numbers = mul(numbers, _number_in(step, wide))
    if start != 0:
        numbers = add(numbers, _number_in(start, wide))
    return convert_element_type(numbers, found)


def _static(x: Any, asked: str) -> Any:
    """The number that `x` is, which must be known while tracing."""
    if x is None or type(x) in PYTHON_SCALARS:
        return x
    if type(x) is Tracer:
        refuse_if_differentiated(x, asked)
        x = concrete(x, asked)
    value = np.asarray(x)
    if value.ndim:
        raise ArgumentError(f"{asked}: the bounds must be numbers; got {aval_of(x)!r}")
    return value[()]


def _number_in(x: Any, dtype: DType) -> Literal:
    return literal(_cast(_number(x), dtype), dtype)


def _at_least_single(dtype: DType) -> DType:
    return np.dtype("float32") if is_inexact(dtype) and dtype.itemsize < 4 else dtype


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    """`num` numbers evenly from `start` to exactly `stop`, which comes last if `endpoint`.

    With `retstep` a pair, of which the second is the distance between them.
    """
    num = _count("linspace", num)
    start, stop = broadcast(*promote_inexact(start, stop))
    shape = max(aval_of(start).shape, aval_of(stop).shape, key=len)
    wide = aval_of(start).dtype
    gaps = num - 1 if endpoint else num
    axis = canonical_axis(axis, len(shape) + 1)
    start, stop = [_beside(x, shape, axis) for x in (start, stop)]
    wanted = inexact_dtype(wide) if dtype is None else canonical_dtype(dtype)
    # (1 - t) start + t stop keeps more digits than start + t (stop - start).
    dims = (*shape[:axis], num, *shape[axis:])
    position = broadcasted_iota(_real(wide), dims, axis)
    t = div(position, float(gaps or 1))
    if is_complex(wide):
        t = convert_element_type(t, wide)
    numbers = add(mul(_spread(start, dims, axis), sub(1.0, t)), mul(_spread(stop, dims, axis), t))
    if endpoint and num > 1:
        numbers = select(eq(position, float(gaps)), _spread(stop, dims, axis), numbers)
    if kind(wanted) in "iu":
        from functx.numpy.whole_numbers import floor

        numbers = floor(numbers)
    numbers = convert_element_type(numbers, wanted)
    if not retstep:
        return numbers
    gap = sub(stop, start) if gaps else full(shape, math.nan, wide)
    step = reshape(div(gap, float(gaps or 1)), shape)
    return numbers, convert_element_type(step, inexact_dtype(wanted))


def _count(name: str, num: Any) -> int:
    try:
        count = index(num)
    except TypeError:
        raise ArgumentError(
            f"{name}: the number of samples must be an integer; got {num!r}"
        ) from None
    if count < 0:
        raise ValueRangeError(f"{name}: the number of samples must not be negative; got {count}")
    return count


def _real(dtype: DType) -> DType:
    return np.dtype(f"float{dtype.itemsize * 4}") if is_complex(dtype) else dtype


def _beside(x: Any, shape: tuple[int, ...], axis: int) -> Any:
    """A bound with a unit dimension at `axis`; a scalar stays one."""
    return expand_dims(broadcast_to(x, shape), axis) if shape else x


def _spread(x: Any, dims: tuple[int, ...], axis: int) -> Any:
    return broadcast_to(x, dims) if aval_of(x).shape else x


def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    """`base` to the powers of `linspace(start, stop, num)`."""
    from functx.numpy.operators import power

    numbers = power(base, linspace(start, stop, num, endpoint, axis=axis))
    return numbers if dtype is None else convert_element_type(numbers, dtype)


def geomspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0
) -> Any:
    """`num` numbers from exactly `start` to exactly `stop`, in one ratio to each other."""
    from functx.numpy import elementary, operators

    num = _count("geomspace", num)
    start, stop = broadcast(*promote_inexact(start, stop))
    wide = aval_of(start).dtype
    ratio = elementary.log(div(stop, start))
    exponents = linspace(operators.multiply(ratio, 0.0), ratio, num, endpoint, axis=axis)
    shape = max(aval_of(start).shape, aval_of(stop).shape, key=len)
    axis = canonical_axis(axis, len(shape) + 1)
    dims = (*shape[:axis], num, *shape[axis:])
    first, last = [_spread(_beside(x, shape, axis), dims, axis) for x in (start, stop)]
    numbers = mul(first, elementary.exp(exponents))
    if endpoint and num > 1:
        position = broadcasted_iota(np.int32, dims, axis)
        numbers = select(eq(position, num - 1), last, numbers)
    return convert_element_type(numbers, inexact_dtype(wide) if dtype is None else dtype)


# Matrices.


def eye(
    N: int,  # noqa: N803 - NumPy's names
    M: int | None = None,  # noqa: N803
    k: int = 0,
    dtype: Any = None,
    *,
    device: Any = None,
) -> Any:
    """A matrix of `N` rows and `M` columns (`N` if left out) with ones on diagonal `k`."""
    rows, columns = _matrix_shape("eye", N, M)
    found = canonical_dtype(FLOAT if dtype is None else dtype)
    if current_builder.get() is None:
        return np.eye(rows, columns, k, dtype=found)
    return convert_element_type(_compare_places(eq, (rows, columns), k), found)


def identity(n: int, dtype: Any = None) -> Any:
    """The square matrix of `n` rows with ones on its diagonal."""
    return eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Any:  # noqa: N803
    """A matrix with ones on diagonal `k` and below it."""
    rows, columns = _matrix_shape("tri", N, M)
    found = canonical_dtype(FLOAT if dtype is None else dtype)
    if current_builder.get() is None:
        return np.tri(rows, columns, k, dtype=found)
    return convert_element_type(_compare_places(ge, (rows, columns), k), found)


def _matrix_shape(name: str, rows: Any, columns: Any) -> tuple[int, int]:
    rows, columns = canonical_shape((rows, rows if columns is None else columns), f"{name}: shape")
    return rows, columns


def _compare_places(compare: Callable[..., Any], shape: tuple[int, ...], k: Any) -> Any:
    """`compare(row + k, column)` at each place of matrices."""
    row = broadcasted_iota(np.int32, shape, len(shape) - 2)
    column = broadcasted_iota(np.int32, shape, len(shape) - 1)
    return compare(row if type(k) is int and k == 0 else add(row, k), column)


def tril(m: Any, k: int = 0) -> Any:
    """`m` with zeros above diagonal `k` of its last two dimensions."""
    return _triangle("tril", m, k, lower=True)


def triu(m: Any, k: int = 0) -> Any:
    """`m` with zeros below diagonal `k` of its last two dimensions."""
    return _triangle("triu", m, k, lower=False)


def _triangle(name: str, m: Any, k: Any, lower: bool) -> Any:
    m = asarray(m)
    aval = aval_of(m)
    if aval.ndim < 2:
        raise ShapeError(f"{name}: the array must have at least two dimensions; got {aval!r}")
    inside = _compare_places(ge, aval.shape[-2:], k if lower else k - 1)
    inside = broadcast_in_dim(inside, aval.shape, (aval.ndim - 2, aval.ndim - 1))
    zero = literal(0, aval.dtype)
    return select(inside, m, zero) if lower else select(inside, zero, m)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Any, Any]:
    """The rows and the columns of the places on diagonal `k` and below it, as NumPy arrays."""
    return _places(np.tril_indices(n, k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Any, Any]:
    """The rows and the columns of the places on diagonal `k` and above it, as NumPy arrays."""
    return _places(np.triu_indices(n, k, m))


def tril_indices_from(arr: Any, k: int = 0) -> tuple[Any, Any]:
    """`tril_indices` for a matrix."""
    rows, columns = aval_of(arr).shape
    return tril_indices(rows, k, columns)


def triu_indices_from(arr: Any, k: int = 0) -> tuple[Any, Any]:
    """`triu_indices` for a matrix."""
    rows, columns = aval_of(arr).shape
    return triu_indices(rows, k, columns)


def diag_indices(n: int, ndim: int = 2) -> tuple[Any, ...]:
    """The places on the main diagonal of a cube of `ndim` dimensions, as NumPy arrays."""
    return _places(np.diag_indices(n, ndim))


def diag_indices_from(arr: Any) -> tuple[Any, ...]:
    """`diag_indices` for an array whose dimensions are equal."""
    shape = aval_of(arr).shape
    if len(shape) < 2 or len(set(shape)) != 1:
        raise ShapeError(
            f"diag_indices_from: the array must have equal dimensions, at least two; got {shape}"
        )
    return diag_indices(shape[0], len(shape))


def _places(found: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([x.astype(canonical_dtype(INT)) for x in found])


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The elements on a diagonal of two dimensions, along a new last one in their place.

    A view that is read-only, as in NumPy.
    """
    a = asarray(a)
    aval = aval_of(a)
    if aval.ndim < 2:
        raise ShapeError(f"diagonal: the array must have at least two dimensions; got {aval!r}")
    rows, columns = canonical_axes((axis1, axis2), aval.ndim, "diagonal: axis1 and axis2")
    n, m, offset = aval.shape[rows], aval.shape[columns], index(offset)
    lead = [d for d in range(aval.ndim) if d not in (rows, columns)]
    count = max(0, min(n + min(offset, 0), m - max(offset, 0)))
    # Without elements it may begin anywhere.
    start = {rows: max(-offset, 0), columns: max(offset, 0)} if count else {}
    steps = [tuple([int(d == along) for d in range(aval.ndim)]) for along in lead]
    steps.append(tuple([int(d in (rows, columns)) for d in range(aval.ndim)]))
    shape = (*[aval.shape[d] for d in lead], count)
    places = tuple([start.get(d, 0) for d in range(aval.ndim)])
    return Strided(shape, places, tuple(steps), writable=False)(a)


def diag(v: Any, k: int = 0) -> Any:
    """The matrix with the vector `v` on its diagonal `k`; of a matrix, that diagonal."""
    v = asarray(v)
    aval = aval_of(v)
    if aval.ndim == 2:
        return diagonal(v, k)
    if aval.ndim != 1:
        raise ShapeError(f"diag: the array must have one or two dimensions; got {aval!r}")
    length, k = aval.shape[0], index(k)
    n = length + (k if k >= 0 else -k)
    if length == 0:
        return zeros((n, n), aval.dtype)
    # Row by row, neighbours on a diagonal lie n + 1 apart.
    before = k if k >= 0 else -k * n
    after = n * n - before - length - (length - 1) * n
    flat = pad(v, literal(0, aval.dtype), ((before, after, n),))
    return reshape(flat, (n, n))


def diagflat(v: Any, k: int = 0) -> Any:
    """The matrix with the elements of `v` on its diagonal `k`."""
    v = asarray(v)
    return diag(reshape(v, (aval_of(v).size,)), k)


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:  # noqa: N803
    """The matrix whose columns are the powers of `x`, the highest first unless `increasing`."""
    from functx.numpy.operators import power

    x = asarray(x)
    aval = aval_of(x)
    if aval.ndim != 1:
        raise ShapeError(f"vander: the array must have one dimension; got {aval!r}")
    count = aval.shape[0] if N is None else _count("vander", N)
    found = aval.dtype if kind(aval.dtype) in "iu" else np.int32
    exponents = arange(count, dtype=found) if increasing else arange(count - 1, -1, -1, found)
    return power(expand_dims(x, 1), exponents)


# Grids.


def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> list[Any]:
    """Arrays that vary along one dimension each, with the values of `xi`.

    The first two trade places for `indexing="xy"`. With `sparse`, the other dimensions have
    length 1.
    """
    if indexing not in ("xy", "ij"):
        raise ValueRangeError(f"meshgrid: indexing must be 'xy' or 'ij'; got {indexing!r}")
    vectors = [asarray(x) for x in xi]
    for x in vectors:
        if aval_of(x).ndim > 1:
            raise ShapeError(f"meshgrid: arguments must have one dimension; got {aval_of(x)!r}")
    places = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        places[:2] = 1, 0
    sizes = [aval_of(x).size for x in vectors]
    shape = tuple([sizes[p] for p in places])
    grids = []
    for x, place in zip(vectors, places, strict=True):
        dims = tuple([aval_of(x).size if d == place else 1 for d in range(len(shape))])
        grids.append(broadcast_to(reshape(x, dims), dims if sparse else shape))
    return [copied(grid) for grid in grids] if copy else grids


def indices(dimensions: Any, dtype: Any = None, sparse: bool = False) -> Any:
    """The index along each dimension at every place, stacked along a first one.

    With `sparse` a tuple of arrays, of which each varies along its own dimension alone.
    """
    from functx.numpy.manipulation import stack

    dims = canonical_shape(dimensions)
    found = INT if dtype is None else dtype
    ranges = [arange(n, dtype=found) for n in dims]
    grids = meshgrid(*ranges, sparse=sparse, indexing="ij")
    if sparse:
        return tuple(grids)
    return stack(grids) if grids else zeros((0,), found)


def fromfunction(
    function: Callable[..., Any], shape: Any, *, dtype: Any = float, **kwargs: Any
) -> Any:
    """`function` of the arrays of indices of an array of `shape`."""
    grids = meshgrid(*[arange(n, dtype=dtype) for n in canonical_shape(shape)], indexing="ij")
    return function(*grids, **kwargs)


class _Grid:
    """Grids by slices: `mgrid[0:3, 0:1:5j]`, where an imaginary step counts the points."""

    def __init__(self, name: str, sparse: bool):
        self.name, self.sparse = name, sparse

    def __getitem__(self, key: Any) -> Any:
        from functx.numpy.manipulation import stack

        if not isinstance(key, tuple):
            return _range(key)
        ranges = promote(*[_range(one) for one in key])
        grids = meshgrid(*ranges, sparse=self.sparse, indexing="ij")
        return tuple(grids) if self.sparse else stack(grids)

    def __repr__(self) -> str:
        return f"functx.numpy.{self.name}"


def _range(key: slice) -> Any:
    start = 0 if key.start is None else key.start
    if isinstance(key.step, complex):
        return linspace(start, key.stop, int(abs(key.step)))
    return arange(start, key.stop, key.step)


mgrid, ogrid = _Grid("mgrid", sparse=False), _Grid("ogrid", sparse=True)
