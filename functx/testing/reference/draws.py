"""NumPy definitions of draws from the state of a generator."""

# ruff: noqa: N802

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import scipy.special

from functx.core.types import DType, Shape
from functx.testing.reference.interpreter import Array, Definition, exact_dtypes

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def philox_4x32(counter: Sequence[Any], key: Sequence[int]) -> list[Array]:
    """The four words of Philox4x32-10 of a counter of four words, arrays of one shape, and a key of two.

    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """
    first, second, third, fourth = [np.asarray(x, np.uint64) for x in counter]
    keys = np.asarray(key, np.uint64)
    for _ in range(10):
        x, y = first * np.uint64(0xD2511F53), third * np.uint64(0xCD9E8D57)
        first, second = (y >> _SHIFT) ^ second ^ keys[0], y & _LOW
        third, fourth = (x >> _SHIFT) ^ fourth ^ keys[1], x & _LOW
        keys = keys + np.array([0x9E3779B9, 0xBB67AE85], np.uint64) & _LOW
    return [x.astype(np.uint32) for x in (first, second, third, fourth)]


def draw_words(state: Array, count: int) -> tuple[Array, Array]:
    """The next `count` words of a state, and the state behind them."""
    seed, offset = [int(state[i]) | int(state[i + 1]) << 32 for i in (0, 2)]
    first, blocks = -(-offset // 4), -(-count // 4)
    numbers = [(first + i) % 2**62 for i in range(blocks)]
    counter = [[n & 0xFFFFFFFF for n in numbers], [n >> 32 for n in numbers], *[[0] * blocks] * 2]
    words = philox_4x32(counter, (seed & 0xFFFFFFFF, seed >> 32))
    end = 4 * (first + blocks) % 2**64
    new_state = np.array([*state[:2], end & 0xFFFFFFFF, end >> 32], np.uint32)
    return np.stack(words, -1).reshape(-1)[:count], new_state


def draw_definition(words_each: Callable[..., int], compute: Callable[..., Array]) -> Definition:
    """The definition of a draw: `compute(words, *parameters, **params)` of the words of one state.

    `words_each(*parameters, **params)` is the number of words that an element takes.
    """

    @exact_dtypes
    def draw(
        state: Array, *parameters: Array, shape: Shape, replays: int, **params: object
    ) -> tuple[Array, Array]:
        count = words_each(*parameters, **params)
        batch = state.shape[:-1]
        outs, states = [], []
        for index in np.ndindex(*batch):
            words, new_state = draw_words(state[index], prod(shape) * count)
            words = words.reshape((*shape, *[count] * (count > 1)))
            own = [x[index] if x.ndim else x for x in parameters]
            outs.append(compute(words, *own, **params))
            states.append(new_state)
        return np.stack(outs).reshape((*batch, *shape)), np.stack(states).reshape(state.shape)

    return draw


def uniform(words: Array, dtype: DType) -> Array:
    """The numbers in [0, 1) of one word, or for float64 of two."""
    if dtype == np.float64:
        high, low = words[..., 0] >> np.uint32(5), words[..., 1] >> np.uint32(6)
        return (high.astype(np.float64) * 2.0**26 + low) * 2.0**-53
    bits = ml_dtypes.finfo(dtype).nmant + 1
    return ((words >> np.uint32(32 - bits)) * 2.0**-bits).astype(dtype)


def symmetric(words: Array, dtype: DType) -> Array:
    """The numbers in (-1, 1), in float64."""
    wide = wide_dtype(dtype)
    return 2.0 * uniform(words, wide).astype(np.float64) - 1 + 2.0 ** -(np.finfo(wide).nmant + 1)


def wide_dtype(dtype: DType) -> Any:
    """The dtype in which numbers of `dtype` are computed."""
    return np.float64 if dtype == np.float64 else np.float32


def words_of_float(dtype: DType) -> int:
    """The number of words that a number of `dtype` takes."""
    if np.dtype(dtype).kind == "c":
        return 2 * words_of_float(np.empty(0, dtype).real.dtype)
    return 2 if dtype == np.float64 else 1


def normal(words: Array, dtype: DType) -> Array:
    """Numbers with the standard normal distribution."""
    if np.dtype(dtype).kind == "c":
        real = np.empty(0, dtype).real.dtype
        pairs = words.reshape(*words.shape[:-1], 2, -1)
        pairs = pairs if real == np.float64 else pairs[..., 0]
        both = normal(pairs, real)
        return ((both[..., 0] + 1j * both[..., 1]) / np.sqrt(2.0)).astype(dtype)
    return (np.sqrt(2.0) * scipy.special.erfinv(symmetric(words, dtype))).astype(dtype)


def integers(words: Array, low: Array, count: Array) -> Array:
    """Integers from `low`, each of the next `count` equally likely."""
    bits, shape = low.dtype.itemsize * 8, words.shape[:-1]
    bounds = [np.broadcast_to(x, shape).ravel().tolist() for x in (low, count)]
    found = []
    for parts, start, number in zip(
        words.reshape(-1, words.shape[-1]).tolist(), *bounds, strict=True
    ):
        fraction = 0
        for word in parts:
            fraction = fraction << 32 | word
        limit = number % 2**bits or 2**bits
        found.append(((fraction * limit >> 32 * len(parts)) + start) % 2**bits)
    return np.array(found, f"uint{bits}").view(low.dtype).reshape(shape)


def permutation(words: Array) -> Array:
    """The integers in the order of two words for each."""
    return np.lexsort((words[..., 1], words[..., 0])).astype(np.int32)


def bernoulli(words: Array, p: Array) -> Array:
    """Whether uniform numbers are less than `p`."""
    wide = wide_dtype(p.dtype)
    return np.asarray(uniform(words, wide) < p.astype(wide))


def geometric(words: Array, p: Array) -> Array:
    """The numbers of trials up to the first success."""
    wide = wide_dtype(p.dtype)
    failures = np.log1p(-uniform(words, wide)) / np.log1p(-p.astype(wide))
    return np.maximum(np.ceil(failures), 1.0).astype(p.dtype)


PhiloxBits = draw_definition(lambda: 1, lambda words: words)
DrawUniform = draw_definition(words_of_float, uniform)
DrawNormal = draw_definition(words_of_float, normal)
DrawExponential = draw_definition(
    words_of_float,
    lambda words, dtype: (-np.log1p(-uniform(words, wide_dtype(dtype)))).astype(dtype),
)
DrawCauchy = draw_definition(
    words_of_float, lambda words, dtype: np.tan(symmetric(words, dtype) * np.pi / 2).astype(dtype)
)
DrawBernoulli = draw_definition(lambda p: words_of_float(p.dtype), bernoulli)
DrawGeometric = draw_definition(lambda p: words_of_float(p.dtype), geometric)
DrawIntegers = draw_definition(lambda low, count: 4 if low.dtype.itemsize > 4 else 2, integers)
DrawPermutation = draw_definition(lambda: 2, permutation)


@exact_dtypes
def SelectState(mask: Array, new: Array, old: Array) -> Array:
    return np.where(mask[..., None], new, old)
