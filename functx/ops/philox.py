"""Random words by the Philox function of a counter and a key, and the draws that are made of them.

A state is four words, `u32[4]`: the low and the high word of the seed, then those of the offset, the
number of words that were drawn. A draw takes the words from the next multiple of four on, and
returns the state behind them. Every operation takes batches of states, `u32[..., 4]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core.errors import DTypeError, RandomnessError, ShapeError
from functx.core.named_axes import RANDOMNESS_MODES, Axis, batched_axis_names, set_batched_axis
from functx.core.primitive_families import UpdatesInPlace
from functx.core.samples import bool_, sample, u32
from functx.core.tracer import aval_of
from functx.core.types import DType, Shape, ShapedArray
from functx.core.typing import Dim, Dims, Flags, IRValue, Value, Values
from functx.ops.operands import batch_size, check_parameter_shapes

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext

UINT32 = np.dtype("uint32")
UINT64 = np.dtype("uint64")
ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL_STEPS = 0x9E3779B9, 0xBB67AE85


class Draw(UpdatesInPlace, abstract=True):
    """An array of `shape` drawn from a state, and the state behind the words that it took.

    The parameters are further operands: scalars, or arrays of the shape of the result. `replays` is the
    number of innermost batches that share the numbers, since the draw repeats one that was made outside
    of them.
    """

    shape: Shape
    replays: int = 0
    size_fields = ("shape",)
    multiple_results = True
    differentiable = False
    draws = True
    label: ClassVar[str] = ""
    """The name of the draw in messages; by default that of the primitive."""

    def out_dtype(self, *parameters: ShapedArray) -> DType:
        """The dtype of the numbers, given the types of the parameters."""
        return UINT32

    def abstract_eval(
        self, state: ShapedArray, *parameters: ShapedArray
    ) -> tuple[ShapedArray, ShapedArray]:
        if state.dtype != UINT32 or state.shape[-1:] != (4,):
            raise DTypeError(
                f"{self.name}: a state must be four 32-bit words, u32[4]; got {state!r}",
                fix="Pass the state of a functx.random.Generator.",
            )
        shape = (*state.shape[:-1], *self.shape)
        check_parameter_shapes(self.name, parameters, shape)
        return ShapedArray(shape, self.out_dtype(*parameters)), state

    def batch(self, args: Values, dims: Dims) -> tuple[Values, Dims]:
        (state, *parameters), (state_dim, *parameter_dims) = args, dims
        size = batch_size(args, dims)
        mode = batched_axis_names().randomness
        if self.replays and mode is not None:
            outer = self.replace(replays=self.replays - 1)
            with set_batched_axis(Axis(None, size)):
                return outer.batch(args, dims)
        if state_dim is not None:
            # Each element has a state of its own, and draws from it under every mode.
            return self.with_parameters(ops.moveaxis(state, state_dim, 0), args, dims, 0)
        if mode == "error":
            choices = " or ".join(
                [f"{name!r} ({does})" for name, does in RANDOMNESS_MODES.items() if name != "error"]
            )
            raise RandomnessError(
                f"vmap: a function that draws from a generator must say what the elements of the batch "
                f"draw; got {self.label or self.name} under randomness='error'",
                fix=f"Pass randomness={choices}.",
            )
        if mode == "different":
            batched = self.replace(shape=(size, *self.shape))
            return batched.with_parameters(state, args, dims, state.ndim - 1)
        if all([d is None for d in parameter_dims]):
            return self(*args), (None, None)
        if mode == "same":
            given = next(
                x for x, d in zip(parameters, parameter_dims, strict=True) if d is not None
            )
            raise RandomnessError(
                "vmap: with randomness='same' the parameters of a draw must be the same for all elements "
                f"of the batch; got a batched one, {aval_of(given)!r}, for {self.label or self.name}",
                fix="Pass randomness='different', or compare one draw of functx.random.rand with it.",
            )
        if not size:
            zeros = [ops.constant_like(x.update(shape=()), 0) for x in map(aval_of, parameters)]
            out, state = self(state, *zeros)
            return (ops.broadcast_in_dim(out, (0, *out.shape), range(1, out.ndim + 1)), state), (
                0,
                None,
            )
        states = ops.broadcast_in_dim(state, (size, *state.shape), tuple(range(1, state.ndim + 1)))
        (out, states), _ = self.with_parameters(states, args, dims, 0)
        return (out, ops.squeeze(ops.slice_in_dim(states, 0, 1), (0,))), (0, None)

    def with_parameters(
        self, state: Value, args: Values, dims: Dims, axis: int
    ) -> tuple[Values, Dims]:
        """The draw from `state` with parameters that have the batch dimension at `axis`, or are scalars."""
        shape = (*state.shape[:-1], *self.shape)
        parameters = []
        for x, d in zip(args[1:], dims[1:], strict=True):
            element_ndim = x.ndim - (d is not None)
            if d is None and not x.ndim:
                parameters.append(x)
            elif d is not None and element_ndim:
                parameters.append(ops.moveaxis(x, d, axis))
            else:
                kept = (
                    (axis,) if d is not None else tuple([i for i in range(len(shape)) if i != axis])
                )
                parameters.append(ops.broadcast_in_dim(x, shape, kept))
        state_dim = 0 if state.ndim > args[0].ndim or dims[0] is not None else None
        return self(state, *parameters), (axis, state_dim)

    # Under a mask the state moves on where an element of the batch draws.

    def in_place_operand(self, output: int) -> int | None:
        return 0 if output == 1 else None

    def masked_update(
        self, mask: Value, changed: Flags, borrow_active: bool, args: Values
    ) -> Values:
        out, state = self(*args)
        return out, SelectState()(mask, state, args[0])


class PhiloxBits(Draw):
    """An array of `shape` of random words of 32 bits, by Philox4x32 with 10 rounds.

    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011). The key is the seed, and the
    counter of a block of four words is its number; the words of a block follow one another.
    """

    samples = (
        sample(u32[4], shape=(3, 3)),
        sample(u32[2, 4], shape=(5,)),
        sample(u32[4], shape=(0,)),
        sample(u32[4], shape=(), values={0: [1, 2, 0xFFFFFFFD, 3]}),
    )

    def lower(self, ctx: LoweringContext, state: IRValue) -> Sequence[IRValue]:
        (states,) = ctx.avals_in
        batch = states.shape[:-1]
        count = prod(self.shape)
        blocks = ShapedArray((*batch, -(-count // 4)), UINT32)
        word_aval, wide_aval = ShapedArray(batch, UINT32), ShapedArray(batch, UINT64)

        def word(i: int) -> IRValue:
            bounds = [0] * len(batch) + [i], [*batch, i + 1], [1] * states.ndim
            return stablehlo.reshape(
                ctx.type(word_aval), stablehlo.slice(state, *map(ctx.i64_array, bounds))
            )

        def widen(x: IRValue) -> IRValue:
            return stablehlo.convert(ctx.type(wide_aval), x)

        seed, offset = (word(0), word(1)), (word(2), word(3))
        high = stablehlo.shift_left(widen(offset[1]), ctx.constant(32, wide_aval))
        start = stablehlo.or_(high, widen(offset[0]))
        start = stablehlo.add(start, ctx.constant(3, wide_aval))
        first = stablehlo.shift_right_logical(start, ctx.constant(2, wide_aval))
        end = stablehlo.add(first, ctx.constant(blocks.shape[-1], wide_aval))
        end = stablehlo.shift_left(end, ctx.constant(2, wide_aval))
        end_high = stablehlo.shift_right_logical(end, ctx.constant(32, wide_aval))
        column = ctx.type(ShapedArray((*batch, 1), UINT32))
        new_words = [*seed, *[stablehlo.convert(ctx.type(word_aval), x) for x in (end, end_high)]]
        new_state = stablehlo.concatenate(
            [stablehlo.reshape(column, x) for x in new_words], len(batch)
        )
        if not count:
            return ctx.constant(0, ctx.avals_out[0]), new_state
        words = philox_words(ctx, first, seed, batch, blocks)
        along = ShapedArray((*blocks.shape, 1), UINT32)
        parts = [stablehlo.reshape(ctx.type(along), x) for x in words]
        bits = stablehlo.concatenate(parts, len(blocks.shape))
        flat = ShapedArray((*batch, 4 * blocks.shape[-1]), UINT32)
        bits = stablehlo.reshape(ctx.type(flat), bits)
        if count % 4:
            bounds = [0] * flat.ndim, [*batch, count], [1] * flat.ndim
            bits = stablehlo.slice(bits, *map(ctx.i64_array, bounds))
        return stablehlo.reshape(ctx.out_types[0], bits), new_state


def philox_words(
    ctx: LoweringContext,
    first: IRValue,
    seed: tuple[IRValue, IRValue],
    batch: Shape,
    blocks: ShapedArray,
) -> list[IRValue]:
    """The four words of each block of `blocks`, which begin at number `first` of each state."""
    wide = blocks.update(dtype=UINT64)
    batch_dims = ctx.i64_array(range(len(batch)))

    def spread(x: IRValue, aval: ShapedArray) -> IRValue:
        return stablehlo.broadcast_in_dim(ctx.type(aval), x, batch_dims)

    def high(x: IRValue) -> IRValue:
        shifted = stablehlo.shift_right_logical(x, ctx.constant(32, wide))
        return stablehlo.convert(ctx.type(blocks), shifted)

    def low(x: IRValue) -> IRValue:
        return stablehlo.convert(ctx.type(blocks), x)

    def product(x: IRValue, factor: int) -> IRValue:
        widened = stablehlo.convert(ctx.type(wide), x)
        return stablehlo.multiply(widened, ctx.constant(factor, wide))

    number = stablehlo.add(stablehlo.iota(ctx.type(wide), len(batch)), spread(first, wide))
    zero = ctx.constant(0, blocks)
    counter = [low(number), high(number), zero, zero]
    key = [spread(x, blocks) for x in seed]
    for i in range(ROUNDS):
        if i:
            key = [
                stablehlo.add(x, ctx.constant(step, blocks))
                for x, step in zip(key, WEYL_STEPS, strict=True)
            ]
        x, y = product(counter[0], MULTIPLIERS[0]), product(counter[2], MULTIPLIERS[1])
        counter = [
            stablehlo.xor(stablehlo.xor(high(y), counter[1]), key[0]),
            low(y),
            stablehlo.xor(stablehlo.xor(high(x), counter[3]), key[1]),
            low(x),
        ]
    return counter


class SelectState(UpdatesInPlace):
    """`new` where `mask` holds, else `old`; a state that a batch shares is new if any element draws."""

    differentiable = False
    may_share_outputs = True
    samples = (
        sample(bool_[()], u32[4], u32[4], values={0: True}),
        sample(bool_[2], u32[2, 4], u32[2, 4], values={0: [True, False]}),
    )

    def abstract_eval(self, mask: ShapedArray, new: ShapedArray, old: ShapedArray) -> ShapedArray:
        if mask.dtype != bool:
            raise DTypeError(f"{self.name}: `mask` must be boolean; got {mask!r}")
        if new.shape != old.shape or new.shape[: mask.ndim] != mask.shape:
            raise ShapeError(
                f"{self.name}: the states must have one shape, which begins with that of `mask`; got "
                f"{new!r} and {old!r} for {mask!r}"
            )
        return old

    def batch(self, args: Values, dims: Dims) -> tuple[Value, Dim]:
        mask, new, old = args
        if dims[1] is None and dims[2] is None and batched_axis_names().randomness is not None:
            return self(ops.reduce_or(mask, dims[0]), new, old), None
        return self(*ops.batch_dims_at(args, dims)), 0

    def in_place_operand(self, output: int) -> int | None:
        return 2

    def self_masked_operands(self, count: int) -> Sequence[int]:
        return (2,)

    def masked_update(
        self, mask: Value, changed: Flags, borrow_active: bool, args: Values
    ) -> Values:
        return (self(ops.bitwise_and(mask, args[0]), *args[1:]),)

    def decompose(self, mask: Value, new: Value, old: Value) -> Value:
        if mask.ndim:
            mask = ops.broadcast_leading(mask, old.shape)
        return ops.select(mask, new, old)
