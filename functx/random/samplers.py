"""Numbers drawn with a key: the same key, shape and dtype give the same numbers.

They are those of `jax.random`. Derivatives flow to the parameters, as in `mean + std * normal(key)`.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from operator import index
from typing import Any

import numpy as np

from functx import ops
from functx.core.errors import DTypeError, ShapeError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.types import (
    DType,
    Shape,
    canonical_dtype,
    is_complex,
    is_floating,
    is_inexact,
    is_integer,
)
from functx.numpy.indexing import take
from functx.numpy.promotion import broadcast_shapes, broadcast_to, operand, promote_inexact
from functx.numpy.sorting_and_searching import searchsorted
from functx.ops.operands import PYTHON_SCALARS, canonical_axis, canonical_shape, literal
from functx.ops.random import (
    RandomBernoulli,
    RandomCauchy,
    RandomExponential,
    RandomGumbel,
    RandomIntegers,
    RandomLaplace,
    RandomLogistic,
    RandomNormal,
    RandomShuffle,
    RandomTruncatedNormal,
    random_uniform,
)
from functx.random.keys import check_single_key, wrapping_literal


def uniform(
    key: Any, shape: Any = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0
) -> Any:
    """Floating point numbers in [minval, maxval), each equally likely.

    `minval` and `maxval` may be arrays that broadcast to `shape`.
    """
    key, shape, dtype = _check_arguments("uniform", key, shape, dtype)
    if type(minval) not in PYTHON_SCALARS or type(maxval) not in PYTHON_SCALARS:
        minval, maxval = [_as_parameter("uniform", x, shape, dtype) for x in (minval, maxval)]
        return random_uniform(key, shape, dtype, minval, maxval)
    return random_uniform(key, shape, dtype, float(minval), float(maxval))


def normal(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Numbers with the standard normal distribution.

    With a complex `dtype`, real and imaginary part have half the variance each.
    """
    dtype = canonical_dtype(float if dtype is None else dtype)
    if not is_inexact(dtype):
        raise DTypeError(f"normal: dtype must be a float or complex type; got {dtype}")
    return RandomNormal(canonical_shape(shape), dtype)(check_single_key("normal", key))


def truncated_normal(key: Any, lower: Any, upper: Any, shape: Any = None, dtype: Any = None) -> Any:
    """Numbers with the standard normal distribution, given that they lie in (lower, upper)."""
    lower, upper = operand(lower), operand(upper)
    shape = _result_shape("truncated_normal", shape, lower, upper)
    key, shape, dtype = _check_arguments("truncated_normal", key, shape, dtype)
    bounds = [_as_parameter("truncated_normal", x, shape, dtype) for x in (lower, upper)]
    return RandomTruncatedNormal(shape)(key, *bounds)


def exponential(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Numbers with the density exp(-x) for x >= 0."""
    key, shape, dtype = _check_arguments("exponential", key, shape, dtype)
    return RandomExponential(shape, dtype)(key)


def laplace(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Numbers with the density exp(-|x|) / 2."""
    key, shape, dtype = _check_arguments("laplace", key, shape, dtype)
    return RandomLaplace(shape, dtype)(key)


def logistic(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Numbers whose distribution function is the logistic sigmoid."""
    key, shape, dtype = _check_arguments("logistic", key, shape, dtype)
    return RandomLogistic(shape, dtype)(key)


def cauchy(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Numbers with the density 1 / (pi (1 + x^2))."""
    key, shape, dtype = _check_arguments("cauchy", key, shape, dtype)
    return RandomCauchy(shape, dtype)(key)


def gumbel(key: Any, shape: Any = (), dtype: Any = None, mode: str | None = None) -> Any:
    """Numbers with the distribution function exp(-exp(-x)).

    With `mode="high"` each takes two draws, so that large ones are as fine as small ones.
    """
    key, shape, dtype = _check_arguments("gumbel", key, shape, dtype)
    return RandomGumbel(shape, dtype, _is_high_precision("gumbel", mode))(key)


def bernoulli(key: Any, p: Any = 0.5, shape: Any = None, mode: str = "low") -> Any:
    """Booleans that are true with probability `p`, of the shape of `p` or the one given.

    With `mode="high"` each takes two draws, so that small probabilities are met closely.
    """
    p = operand(p)
    aval = aval_of(p)
    if not is_floating(aval.dtype):
        raise DTypeError(f"bernoulli: the probability p must be a float; got {aval!r}")
    shape = _result_shape("bernoulli", shape, p)
    p = _as_parameter("bernoulli", p, shape, aval.dtype)
    return RandomBernoulli(shape, _is_high_precision("bernoulli", mode))(
        check_single_key("bernoulli", key), p
    )


def rademacher(key: Any, shape: Any = (), dtype: Any = None) -> Any:
    """Numbers that are -1 or 1, equally likely."""
    dtype = canonical_dtype(int if dtype is None else dtype)
    heads = ops.convert_element_type(bernoulli(key, shape=shape), dtype)
    return ops.sub(ops.add(heads, heads), 1)


def randint(key: Any, shape: Any, minval: Any, maxval: Any, dtype: Any = None) -> Any:
    """Integers in [minval, maxval), each equally likely; minval where that is empty.

    The bounds may be arrays that broadcast to `shape`; beyond the range of `dtype` they
    stand for its ends.
    """
    shape, dtype = canonical_shape(shape), canonical_dtype(int if dtype is None else dtype)
    if not is_integer(dtype):
        raise DTypeError(f"randint: dtype must be an integer type; got {dtype}")
    drawn = dtype if dtype.itemsize >= 4 else np.dtype("int32")
    if type(minval) is int and type(maxval) is int:
        low, count = _static_integer_range(minval, maxval, dtype, drawn)
    else:
        minval, maxval = [
            _broadcast_parameter("randint", operand(x), shape) for x in (minval, maxval)
        ]
        low, count = _traced_integer_range(minval, maxval, dtype, drawn)
    integers = RandomIntegers(shape)(check_single_key("randint", key), low, count)
    return ops.convert_element_type(integers, dtype)


@lru_cache(maxsize=1024)
def _static_integer_range(minval: int, maxval: int, dtype: DType, drawn: DType) -> tuple[Any, Any]:
    """The smallest of the integers, and how many they are, as far as the bits of `drawn` go."""
    info = np.iinfo(dtype)
    low = min(max(minval, info.min), info.max)
    count = max(min(maxval, info.max + 1) - low, 1)
    return wrapping_literal(low, drawn), wrapping_literal(count, drawn)


def _traced_integer_range(minval: Any, maxval: Any, dtype: DType, drawn: DType) -> tuple[Any, Any]:
    """The same, worked out on arrays, without a number that `drawn` cannot hold."""
    (low, _), (high, beyond) = [_clip_bound(x, np.iinfo(dtype), drawn) for x in (minval, maxval)]
    span = ops.add(ops.sub(high, low), ops.convert_element_type(beyond, drawn))
    return low, ops.select(ops.gt(high, low), span, 1)


def _clip_bound(x: Any, info: Any, drawn: DType) -> tuple[Any, Any]:
    """A bound as `drawn`, within the range that `info` gives, and whether it lay above it."""
    if type(x) in PYTHON_SCALARS or not is_integer(aval_of(x).dtype):
        x = ops.convert_element_type(x, np.int64)
    own = np.iinfo(aval_of(x).dtype)
    lowest, highest = max(own.min, info.min), min(own.max, info.max)
    clipped = ops.convert_element_type(ops.clamp(lowest, x, highest), drawn)
    return clipped, ops.gt(x, highest)


def _check_arguments(name: str, key: Any, shape: Any, dtype: Any) -> tuple[Any, Shape, DType]:
    """The words of the key, the shape and the dtype of floating point numbers."""
    dtype = canonical_dtype(float if dtype is None else dtype)
    if not is_floating(dtype):
        raise DTypeError(f"{name}: dtype must be a float type; got {dtype}")
    return check_single_key(name, key), canonical_shape(shape), dtype


def _result_shape(name: str, shape: Any, *parameters: Any) -> Shape:
    """`shape`, or where that is None the one that the parameters broadcast to."""
    if shape is None:
        return broadcast_shapes(*[aval_of(x).shape for x in parameters])
    return canonical_shape(shape)


def _as_parameter(name: str, x: Any, shape: Shape, dtype: DType) -> Any:
    """A parameter of a distribution in `dtype`: a scalar, or of `shape`."""
    if type(x) in PYTHON_SCALARS:
        return literal(x, dtype)
    x = operand(x)
    if is_complex(aval_of(x).dtype):
        raise DTypeError(f"{name}: parameters must be real; got {aval_of(x)!r}")
    return _broadcast_parameter(name, ops.convert_element_type(x, dtype), shape)


def _broadcast_parameter(name: str, x: Any, shape: Shape) -> Any:
    own = aval_of(x).shape
    if own in ((), shape):
        return x
    if not is_broadcastable(own, shape):
        raise ShapeError(
            f"{name}: parameters must broadcast to the shape {shape}; got {aval_of(x)!r}"
        )
    return broadcast_to(x, shape)


def is_broadcastable(own: Shape, shape: Shape) -> bool:
    """Whether an array of the shape `own` broadcasts to `shape`."""
    lead = len(shape) - len(own)
    return lead >= 0 and all(n in (1, m) for n, m in zip(own, shape[lead:], strict=True))


def _is_high_precision(name: str, mode: str | None) -> bool:
    if mode not in (None, "low", "high"):
        raise ValueRangeError(f"{name}: mode must be 'low' or 'high'; got {mode!r}")
    return mode == "high"


def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False) -> Any:
    """`x` with its slices along `axis` in random order; the numbers below `x` for an int.

    With `independent`, each vector along `axis` gets an order of its own.
    """
    key, x = check_single_key("permutation", key), operand(x)
    aval = aval_of(x)
    axis = canonical_axis(axis, aval.ndim or 1)
    if not aval.ndim:
        return RandomShuffle(0)(key, _iota(_check_bound("permutation", x)))
    if independent or aval.ndim == 1:
        return RandomShuffle(axis)(key, x)
    order = RandomShuffle(0)(key, _iota(aval.shape[axis]))
    return take(x, order, axis, mode="clip", unique_indices=True)


def choice(
    key: Any,
    a: Any,
    shape: Any = (),
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    mode: str | None = None,
) -> Any:
    """A sample of `shape` from the slices of `a` along `axis`; from the numbers below an int.

    `p` gives the probability of each. With `replace=False` no slice is taken twice, so
    there must be enough of them, and with `p` enough of which the probability is not zero.
    """
    key, a, shape = check_single_key("choice", key), operand(a), canonical_shape(shape)
    aval = aval_of(a)
    if aval.ndim:
        axis = canonical_axis(axis, aval.ndim)
        count = aval.shape[axis]
        out_shape = (*aval.shape[:axis], *shape, *aval.shape[axis + 1 :])
    else:
        count, out_shape = _check_bound("choice", a), shape
    drawn = prod(shape)
    if not drawn:
        dtype = aval.dtype if aval.ndim else canonical_dtype(int)
        return ops.full(shape, literal(0, dtype))
    if count <= 0 or (not replace and drawn > count):
        raise ValueRangeError(
            f"choice: there must be enough to choose from; got {count} for {drawn} "
            f"{'or more ' if replace else ''}draws with replace={replace}"
        )
    if p is not None:
        places = _weighted_indices(key, p, shape, count, replace, mode)
    elif replace:
        places = randint(key, shape, 0, count)
    else:
        ordered = permutation(key, a if aval.ndim else count, axis)
        return ops.reshape(
            ops.slice_in_dim(ordered, 0, drawn, axis=axis if aval.ndim else 0), out_shape
        )
    return ops.reshape(take(a, places, axis, mode="clip") if aval.ndim else places, out_shape)


def _weighted_indices(
    key: Any, p: Any, shape: Any, count: int, replace: bool, mode: str | None
) -> Any:
    """The places chosen when the one at i has the probability `p[i]`."""
    (p,) = promote_inexact(p)
    aval = aval_of(p)
    if aval.shape != (count,):
        raise ShapeError(
            f"choice: p must have one number for each of the {count} to choose from; got {aval!r}"
        )
    if replace:
        total = ops.cumsum(p, 0)
        last = ops.reshape(ops.slice_in_dim(total, count - 1, count), ())
        places = searchsorted(total, ops.mul(ops.sub(1.0, uniform(key, shape, aval.dtype)), last))
    else:
        # The largest of log p + gumbel are a weighted sample without repetitions.
        noise = gumbel(key, (count,), aval.dtype, mode)
        _, places = ops.top_k(ops.add(noise, ops.log(p)), prod(shape))
    return ops.convert_element_type(places, canonical_dtype(int))


def categorical(
    key: Any,
    logits: Any,
    axis: int = -1,
    shape: Any = None,
    replace: bool = True,
    mode: str | None = None,
) -> Any:
    """Indices along `axis`, each with a probability in proportion to exp(logits).

    `shape` ends in the shape of `logits` without `axis`; what comes before says how many
    are drawn. With `replace=False` those of one place are different indices.
    """
    logits = operand(logits)
    aval = aval_of(logits)
    axis = canonical_axis(axis, aval.ndim)
    if not is_floating(aval.dtype):
        raise DTypeError(f"categorical: logits must be floats; got {aval!r}")
    lanes = (*aval.shape[:axis], *aval.shape[axis + 1 :])
    shape = lanes if shape is None else canonical_shape(shape)
    lead = len(shape) - len(lanes)
    wide = shape[max(lead, 0) :]
    if lead < 0 or not is_broadcastable(lanes, wide):
        raise ShapeError(
            f"categorical: shape must end in the shape {lanes} of the logits without the axis; "
            f"got {shape}"
        )
    if replace:
        whole = (*shape[: lead + axis], aval.shape[axis], *shape[lead + axis :])
        noise = gumbel(key, whole, aval.dtype, mode)
        return ops.argmax(
            ops.add(noise, broadcast_to(logits, whole)), lead + axis, canonical_dtype(int)
        )
    count = prod(shape[:lead])
    if wide != lanes or count > aval.shape[axis]:
        raise ValueRangeError(
            f"categorical: without replacement at most {aval.shape[axis]} can be drawn, for "
            f"logits of the shape {lanes} beside the axis; got the shape {shape}"
        )
    noisy = ops.add(logits, gumbel(key, aval.shape, aval.dtype, mode))
    _, chosen = ops.top_k(ops.moveaxis(noisy, axis, aval.ndim - 1), count)
    return ops.reshape(ops.moveaxis(chosen, aval.ndim - 1, 0), shape)


def _iota(count: int) -> Any:
    return ops.iota(canonical_dtype(int), count)


def _check_bound(name: str, x: Any) -> int:
    aval = aval_of(x)
    if is_inexact(aval.dtype):
        raise DTypeError(f"{name}: a number to choose below must be an integer; got {aval!r}")
    return index(x)
