"""Random orders and choices, the same that `jax.random` makes."""

from __future__ import annotations

from math import prod
from operator import index
from typing import Any

from functx.core.dtypes import canonical_dtype, is_floating, is_inexact
from functx.core.errors import DTypeError, ShapeError, ValueRangeError
from functx.core.tracing import aval_of
from functx.numpy.indexing import take
from functx.numpy.promotion import broadcast_to, operand, promote_inexact
from functx.numpy.sorting import searchsorted
from functx.ops.arithmetic import add, mul, sub
from functx.ops.conversion import convert_element_type
from functx.ops.creation import iota
from functx.ops.cumulative import cumsum
from functx.ops.distributions import RandomShuffle
from functx.ops.exponential import log
from functx.ops.operands import canonical_axis, canonical_shape, literal
from functx.ops.reductions import argmax
from functx.ops.shaping import full, moveaxis, reshape
from functx.ops.slicing import slice_in_dim
from functx.ops.sorting import top_k
from functx.random.draws import gumbel, is_broadcastable, randint, uniform
from functx.random.keys import check_single_key


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
        return full(shape, literal(0, dtype))
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
        return reshape(slice_in_dim(ordered, 0, drawn, axis=axis if aval.ndim else 0), out_shape)
    return reshape(take(a, places, axis, mode="clip") if aval.ndim else places, out_shape)


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
        total = cumsum(p, 0)
        last = reshape(slice_in_dim(total, count - 1, count), ())
        places = searchsorted(total, mul(sub(1.0, uniform(key, shape, aval.dtype)), last))
    else:
        # The largest of log p + gumbel are a weighted sample without repetitions.
        noise = gumbel(key, (count,), aval.dtype, mode)
        _, places = top_k(add(noise, log(p)), prod(shape))
    return convert_element_type(places, canonical_dtype(int))


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
        return argmax(add(noise, broadcast_to(logits, whole)), lead + axis, canonical_dtype(int))
    count = prod(shape[:lead])
    if wide != lanes or count > aval.shape[axis]:
        raise ValueRangeError(
            f"categorical: without replacement at most {aval.shape[axis]} can be drawn, for "
            f"logits of the shape {lanes} beside the axis; got the shape {shape}"
        )
    noisy = add(logits, gumbel(key, aval.shape, aval.dtype, mode))
    _, chosen = top_k(moveaxis(noisy, axis, aval.ndim - 1), count)
    return reshape(moveaxis(chosen, aval.ndim - 1, 0), shape)


def _iota(count: int) -> Any:
    return iota(canonical_dtype(int), count)


def _check_bound(name: str, x: Any) -> int:
    aval = aval_of(x)
    if is_inexact(aval.dtype):
        raise DTypeError(f"{name}: a number to choose below must be an integer; got {aval!r}")
    return index(x)
