"""Random bits by the Threefry hash of a key and a position.

A key is two words, `u32[2]`; every operation takes batches of keys, `u32[..., 2]`. The words
at each position are those of `jax.random` with Threefry. JAX's `jax_threefry_partitionable` decides
where an equation is made which of two layouts it has, the field `partitionable`: each word is the hash
of its own position, or the words are the sequence of the hashes of pairs of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core.errors import DTypeError, ShapeError, ValueRangeError
from functx.core.primitive import Primitive
from functx.core.samples import i32, sample, u32
from functx.core.types import DType, Shape, ShapedArray, kind, threefry_partitionable
from functx.core.typing import ArrayLike, Dim, DTypeLike, IRValue, Value, Values
from functx.ops.families import MapsLastDims
from functx.ops.philox import UINT32, UINT64

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class RandomSeed(Primitive):
    """The key of an integer seed: its high and its low 32 bits."""

    differentiable = False
    samples = (sample(i32[()]),)

    def abstract_eval(self, seed: ShapedArray) -> ShapedArray:
        if kind(seed.dtype) not in "iu":
            raise DTypeError(f"random_seed: the seed must be an integer; got {seed!r}")
        return ShapedArray((*seed.shape, 2), UINT32)

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Value, Dim]:
        return self(*args), dims[0]

    def lower(self, ctx: LoweringContext, seed: IRValue) -> IRValue:
        (aval,) = ctx.avals_in
        word = ShapedArray(aval.shape, UINT32)
        low = stablehlo.convert(ctx.type(word), seed)
        if aval.dtype.itemsize < 8:
            return stack_words(ctx, ctx.constant(0, word), low, word)
        shifted = stablehlo.shift_right_logical(seed, ctx.constant(32, aval))
        return stack_words(ctx, stablehlo.convert(ctx.type(word), shifted), low, word)


class _Threefry(Primitive, abstract=True):
    """Hashes of many steps, which XLA must not fuse: each reader would compute them again."""

    differentiable = False

    emit: ClassVar[Callable[..., IRValue]]
    """The output, as a `lower` rule gives it."""

    def lower(self, ctx: LoweringContext, *operands: IRValue) -> IRValue:
        return ctx.call_unfused(self, self.emit, operands)


class RandomFoldIn(_Threefry):
    """The keys at the positions `data`: `data[i, j]` under `key[i]`.

    The shape of `data` begins with that of the batch of keys.
    """

    samples = sample(u32[2], u32[()]), sample(u32[3, 2], u32[3, 4])

    def abstract_eval(self, key: ShapedArray, data: ShapedArray) -> ShapedArray:
        check_key(self, key)
        if data.dtype != UINT32 or data.shape[: key.ndim - 1] != key.shape[:-1]:
            raise ShapeError(
                f"random_fold_in: data must be uint32 with a shape that begins with that of the "
                f"keys; got {data!r} for {key!r}"
            )
        return ShapedArray((*data.shape, 2), UINT32)

    def batch(self, args: Values, dims: Sequence[Any]) -> tuple[Value, Dim]:
        (key, data), (key_dim, data_dim) = args, dims
        if key_dim is None:
            last = data.ndim - 1
            return self(key, ops.moveaxis(data, data_dim, last)), last
        key = ops.moveaxis(key, key_dim, 0)
        if data_dim is None:
            dims = tuple(range(1, data.ndim + 1))
            data = ops.broadcast_in_dim(data, (key.shape[0], *data.shape), dims)
        else:
            data = ops.moveaxis(data, data_dim, 0)
        return self(key, data), 0

    def emit(self, ctx: LoweringContext, key: IRValue, data: IRValue) -> IRValue:
        keys, words = ctx.avals_in
        high = ctx.constant(0, words)
        return stack_words(ctx, *threefry_2x32(ctx, key, keys, high, data, words), words)


class RandomSplit(MapsLastDims, _Threefry):
    """An array of `shape` of keys, at the positions 0, 1, ... under `key`."""

    shape: Shape
    size_fields = ("shape",)
    partitionable: bool = True
    samples = (
        sample(u32[2], shape=(2,)),
        sample(u32[3, 2], shape=(2, 2)),
        sample(u32[2], shape=(0,)),
        sample(u32[2, 2], shape=(3,), partitionable=False),
    )

    def abstract_eval(self, key: ShapedArray) -> ShapedArray:
        check_key(self, key)
        return ShapedArray((*key.shape[:-1], *self.shape, 2), UINT32)

    def emit(self, ctx: LoweringContext, key: IRValue) -> IRValue:
        if not self.partitionable:
            words = sequential_words(ctx, key, 2 * prod(self.shape))
            return stablehlo.reshape(ctx.out_types[0], words)
        aval, first, second = threefry_words(ctx, key, self.shape)
        return stack_words(ctx, first, second, aval)


class RandomBits(MapsLastDims, _Threefry):
    """An array of `shape` of random unsigned integers of `dtype`."""

    shape: Shape
    size_fields = ("shape",)
    dtype: DType
    partitionable: bool = True
    samples = (
        sample(u32[2], shape=(3, 4), dtype=UINT32),
        sample(u32[3, 2], shape=(2,), dtype=np.dtype("uint8")),
        sample(u32[2], shape=(0, 2), dtype=np.dtype("uint16")),
        sample(u32[2, 2], shape=(3,), dtype=np.dtype("uint8"), partitionable=False),
        sample(u32[2], shape=(3,), dtype=UINT32, partitionable=False),
    )

    def abstract_eval(self, key: ShapedArray) -> ShapedArray:
        check_key(self, key)
        return ShapedArray((*key.shape[:-1], *self.shape), self.dtype)

    def emit(self, ctx: LoweringContext, key: IRValue) -> IRValue:
        (out,) = ctx.avals_out
        if not self.partitionable:
            return sequential_bits(ctx, key, self.shape, out)
        _, first, second = threefry_words(ctx, key, self.shape)
        if self.dtype == UINT64:
            high, low = (stablehlo.convert(ctx.type(out), word) for word in (first, second))
            return stablehlo.or_(stablehlo.shift_left(high, ctx.constant(32, out)), low)
        word = stablehlo.xor(first, second)
        return word if self.dtype == UINT32 else stablehlo.convert(ctx.out_types[0], word)


def check_key(primitive: Primitive, key: ShapedArray) -> None:
    """Raise unless `key` is the type of a key, or of a batch of keys."""
    if key.dtype != UINT32 or not key.ndim or key.shape[-1] != 2:
        raise DTypeError(
            f"{primitive.name}: a key must be two 32-bit words, u32[2]; got {key!r}",
            fix="Make keys with functx.random.key, split and fold_in.",
        )


def stack_words(
    ctx: LoweringContext, first: IRValue, second: IRValue, words: ShapedArray
) -> IRValue:
    """Two arrays of type `words` stacked along a new last dimension."""
    one = ctx.type(ShapedArray((*words.shape, 1), UINT32))
    parts = [stablehlo.reshape(one, word) for word in (first, second)]
    return stablehlo.concatenate(parts, words.ndim)


def threefry_words(
    ctx: LoweringContext, key: IRValue, shape: Shape
) -> tuple[ShapedArray, IRValue, IRValue]:
    """The type of an array of words, and the two words at each position of `shape` for each key."""
    (keys,) = ctx.avals_in
    batch_ndim = keys.ndim - 1
    words = ShapedArray((*keys.shape[:-1], *shape), UINT32)
    count = ShapedArray(words.shape, UINT64 if prod(shape) > 2**32 else UINT32)
    # The position is a sum over dimensions, which XLA can partition, unlike one long iota.
    position: IRValue | None = None
    stride = 1
    for i in reversed(range(len(shape))):
        if shape[i] != 1:
            term = stablehlo.iota(ctx.type(count), batch_ndim + i)
            if stride != 1:
                term = stablehlo.multiply(term, ctx.constant(stride, count))
            position = term if position is None else stablehlo.add(term, position)
            stride *= shape[i]
    high = ctx.constant(0, words)
    if position is None:
        low = high
    elif count.dtype == UINT64:
        upper = stablehlo.shift_right_logical(position, ctx.constant(32, count))
        high, low = (stablehlo.convert(ctx.type(words), half) for half in (upper, position))
    else:
        low = position
    return words, *threefry_2x32(ctx, key, keys, high, low, words)


def sequential_bits(ctx: LoweringContext, key: IRValue, shape: Shape, out: ShapedArray) -> IRValue:
    """The bits of type `out`, with `shape` for each key, as pieces of a sequence of words.

    Short integers are the pieces of a word, the lowest bits first. The two halves of a long integer
    are a word of the first half of the sequence, and the word of the second half.
    """
    size, per_word = prod(shape), max(1, 4 // out.dtype.itemsize)
    count = 2 * size if out.dtype == UINT64 else -(-size // per_word)
    words = sequential_words(ctx, key, count)
    batch = out.shape[: len(out.shape) - len(shape)]
    if out.dtype == UINT64:
        flat = ShapedArray((*batch, size), UINT64)
        high, low = (
            stablehlo.convert(ctx.type(flat), _slice_last(ctx, words, (*batch, count), start, size))
            for start in (0, size)
        )
        words = stablehlo.or_(stablehlo.shift_left(high, ctx.constant(32, flat)), low)
    elif per_word > 1:
        parts = ShapedArray((*batch, count, per_word), UINT32)
        shifts = stablehlo.multiply(
            stablehlo.iota(ctx.type(parts), len(batch) + 1),
            ctx.constant(32 // per_word, parts),
        )
        dims = ctx.i64_array(range(len(batch) + 1))
        words = stablehlo.broadcast_in_dim(ctx.type(parts), words, dims)
        pieces = stablehlo.convert(
            ctx.type(ShapedArray(parts.shape, out.dtype)),
            stablehlo.shift_right_logical(words, shifts),
        )
        flat = ShapedArray((*batch, count * per_word), out.dtype)
        pieces = stablehlo.reshape(ctx.type(flat), pieces)
        words = _slice_last(ctx, pieces, flat.shape, 0, size)
    return stablehlo.reshape(ctx.out_types[0], words)


def sequential_words(ctx: LoweringContext, key: IRValue, count: int) -> IRValue:
    """`count` words for each key: all first words of the hashes of pairs, then all second words.

    The pair at position i is (i, i + n) with n the number of pairs; if `count` is odd, the last pair
    has 0 in place of its second number, and its second word is left out.
    """
    if count >= 2**32 - 1:
        raise ValueRangeError(
            f"without jax_threefry_partitionable, a draw must need fewer than 2**32 - 1 words; got {count}",
            fix="Draw in parts with the keys of split, or set jax_threefry_partitionable.",
        )
    (keys,) = ctx.avals_in
    batch = keys.shape[:-1]
    num_pairs = (count + 1) // 2
    words = ShapedArray((*batch, num_pairs), UINT32)
    first = stablehlo.iota(ctx.type(words), len(batch))
    second = stablehlo.add(first, ctx.constant(num_pairs, words))
    if count % 2:
        is_last = stablehlo.compare(
            second,
            ctx.constant(count, words),
            stablehlo.ComparisonDirectionAttr.get("EQ"),
        )
        second = stablehlo.select(is_last, ctx.constant(0, words), second)
    parts = threefry_2x32(ctx, key, keys, first, second, words)
    both = stablehlo.concatenate(parts, len(batch))
    return _slice_last(ctx, both, (*batch, 2 * num_pairs), 0, count)


def _slice_last(ctx: LoweringContext, x: IRValue, shape: Shape, start: int, count: int) -> IRValue:
    """`count` elements of `x` of `shape` along its last dimension, from `start`."""
    if count == shape[-1]:
        return x
    starts, limits = [0] * len(shape), [*shape]
    starts[-1], limits[-1] = start, start + count
    return stablehlo.slice(x, *map(ctx.i64_array, (starts, limits, [1] * len(shape))))


ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


PARITY = 0x1BD11BDA


def threefry_2x32(
    ctx: LoweringContext,
    key: IRValue,
    keys: ShapedArray,
    high: IRValue,
    low: IRValue,
    words: ShapedArray,
) -> tuple[IRValue, IRValue]:
    """The two words of Threefry-2x32 with 20 rounds for `high` and `low` under `key`.

    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """
    schedule = key_schedule(ctx, key, keys, words)
    shifts: dict[int, IRValue] = {}

    def by(bits: int) -> IRValue:
        if bits not in shifts:
            shifts[bits] = ctx.constant(bits, words)
        return shifts[bits]

    x, y = stablehlo.add(high, schedule[0]), stablehlo.add(low, schedule[1])
    for group in range(5):
        for bits in ROTATIONS[group % 2]:
            x = stablehlo.add(x, y)
            left = stablehlo.shift_left(y, by(bits))
            right = stablehlo.shift_right_logical(y, by(32 - bits))
            y = stablehlo.xor(x, stablehlo.or_(left, right))
        x = stablehlo.add(x, schedule[(group + 1) % 3])
        y = stablehlo.add(y, schedule[(group + 2) % 3])
        y = stablehlo.add(y, by(group + 1))
    return x, y


def key_schedule(
    ctx: LoweringContext, key: IRValue, keys: ShapedArray, words: ShapedArray
) -> list[IRValue]:
    """The two words of the keys and their parity word, broadcast to the shape of `words`."""
    batch_shape = keys.shape[:-1]
    word_aval = ShapedArray(batch_shape, UINT32)

    def word(i: int) -> IRValue:
        start, limit = [0] * len(batch_shape) + [i], [*batch_shape, i + 1]
        part = stablehlo.slice(key, *map(ctx.i64_array, (start, limit, [1] * keys.ndim)))
        return stablehlo.reshape(ctx.type(word_aval), part)

    first, second = word(0), word(1)
    parity = stablehlo.xor(stablehlo.xor(first, second), ctx.constant(PARITY, word_aval))
    dims = ctx.i64_array(range(len(batch_shape)))
    return [
        stablehlo.broadcast_in_dim(ctx.type(words), part, dims) for part in (first, second, parity)
    ]


def random_seed(seed: ArrayLike) -> Value:
    """The key of an integer `seed`: its high and its low 32 bits."""
    return RandomSeed()(seed)


def random_fold_in(key: Value, data: ArrayLike) -> Value:
    """The key at position `data`, a uint32, under `key`."""
    return RandomFoldIn()(key, data)


def random_split(key: Value, shape: Shape) -> Value:
    """An array of `shape` of keys made from `key`."""
    return draw(RandomSplit(shape), key)


def random_bits(key: Value, shape: Shape, dtype: DTypeLike = UINT32) -> Value:
    """An array of `shape` of random unsigned integers of `dtype`."""
    return draw(RandomBits(shape, np.dtype(dtype)), key)


def draw(primitive: Primitive, *operands: ArrayLike) -> Value:
    """The numbers of a primitive with the field `partitionable`, as JAX's configuration states it."""
    if not threefry_partitionable():
        primitive = primitive.replace(partitionable=False)
    out: Value = primitive(*operands)
    return out
