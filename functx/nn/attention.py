"""Dot-product attention and its cotangents, computed over blocks of keys in linear memory.

The online softmax: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018;
Rabe and Staats, "Self-attention Does Not Need O(n^2) Memory", 2021. The residuals and the
cotangents: Dao et al., "FlashAttention", 2022, section 3 and appendix B.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as onp

import functx.numpy as np
from functx import ops
from functx.core.errors import ArgumentError, DTypeError, ShapeError, ValueRangeError
from functx.core.primitive import Primitive
from functx.core.samples import bool_, f32, sample
from functx.core.tracer import aval_of
from functx.core.types import Shape, ShapedArray, accumulation_dtype, is_floating
from functx.core.typing import ArrayLike, Cotangent, Cotangents, Dim, Dims, Flags, Value, Values
from functx.numpy.promotion import is_broadcastable, promote_inexact
from functx.ops.operands import as_bool, as_float, as_int, batch_size
from functx.transforms.control.rows import scan

__all__ = ["dot_product_attention"]

DEFAULT_BLOCK_SIZE = 512
SoftmaxSums: TypeAlias = tuple[Value, Value, Value]
"""The largest score, the sum of exponentials, and the values weighted by them."""


T = TypeVar("T")


class AttentionOperands(NamedTuple, Generic[T]):
    """The operands of attention: query, key and value; bias and mask, or None.

    Shapes (B, T, K, G, H), (B, S, K, H), (B, S, K, V); bias and mask (B, K, T, G, S), or 1 in
    dimensions that are broadcast. The query has G heads for each of the K heads of the key.
    """

    q: T
    k: T
    v: T
    bias: T | None
    mask: T | None

    def map_keys(self, function: Callable[[T, int], T]) -> AttentionOperands[T]:
        """The operands with `function` applied to those that have keys, and to the axis of these."""
        q, k, v, bias, mask = self
        scores = [x if x is None else function(x, 4) for x in (bias, mask)]
        return AttentionOperands(q, function(k, 1), function(v, 1), *scores)


class AttentionBase(Primitive, abstract=True):
    """The scores of attention by blocks of keys, for attention and its cotangents.

    Scores are `scale` times the products of queries and keys, plus the bias. They are -inf where
    the mask is False, if `causal` for keys after the query, and outside of a `window`
    (left, right) around the query. Keys are processed in blocks of `block_size`.
    """

    scale: float
    causal: bool = False
    window: tuple[int, int] | None = None
    biased: bool = False
    masked: bool = False
    block_size: int = DEFAULT_BLOCK_SIZE
    multiple_results = True
    operand_samples: ClassVar[Any] = (
        ((f32[1, 3, 1, 1, 2], f32[1, 3, 1, 2], f32[1, 3, 1, 2]), {"causal": True}),
        (
            (f32[2, 2, 2, 2, 2], f32[2, 5, 2, 2], f32[2, 5, 2, 1], f32[1, 2, 2, 1, 5]),
            {"biased": True, "block_size": 2, "window": (1, 2)},
        ),
        (
            (f32[2, 2, 1, 1, 2], f32[2, 3, 1, 2], f32[2, 3, 1, 2], bool_[2, 1, 1, 1, 3]),
            {"masked": True, "block_size": 2},
        ),
    )

    def operands(self, args: Sequence[T]) -> tuple[AttentionOperands[T], Sequence[T]]:
        """The operands of attention among `args`, and the operands after them."""
        q, k, v, *others = args
        bias = others.pop(0) if self.biased else None
        mask = others.pop(0) if self.masked else None
        return AttentionOperands(q, k, v, bias, mask), others

    def check(self, operands: AttentionOperands[ShapedArray]) -> None:
        """Raise ShapeError or DTypeError for operands that do not agree with each other."""
        q, k, v, bias, mask = operands
        if not (q.ndim == 5 and k.ndim == v.ndim == 4):
            raise ShapeError(
                f"{self.name}: the query must have rank 5, the key and the value rank 4; "
                f"got {q!r}, {k!r}, {v!r}"
            )
        (b, t, heads, groups, h), s = q.shape, k.shape[1]
        if k.shape != (b, s, heads, h) or v.shape[:3] != (b, s, heads):
            raise ShapeError(
                f"{self.name}: the key and the value must fit the query; got {q!r}, {k!r}, {v!r}"
            )
        if not q.dtype == k.dtype == v.dtype or not is_floating(q.dtype):
            raise DTypeError(
                f"{self.name}: the operands must have one floating dtype; got {q!r}, {k!r}, {v!r}"
            )
        for name, x in (("bias", bias), ("mask", mask)):
            shape = (b, heads, t, groups, s)
            if x is not None and not (x.ndim == 5 and is_broadcastable(x.shape, shape)):
                raise ShapeError(f"{self.name}: the {name} must be broadcast to {shape}; got {x!r}")
        if mask is not None and mask.dtype != onp.bool_:
            raise DTypeError(f"{self.name}: the mask must be boolean; got {mask!r}")

    def block_layout(self, length: int) -> tuple[int, int]:
        """The size and the number of the blocks of `length` keys."""
        if length <= self.block_size:
            return length, 1
        return self.block_size, -(-length // self.block_size)

    def pad_keys(self, operands: AttentionOperands[Value]) -> AttentionOperands[Value]:
        """The operands with keys padded to the end of the last block."""
        length = operands.k.shape[1]
        size, count = self.block_layout(length)
        padding = size * count - length
        if not padding:
            return operands

        def pad(x: Value, axis: int) -> Value:
            if x.shape[axis] == 1 < length:
                return x
            return np.pad(x, [(0, padding if i == axis else 0) for i in range(x.ndim)])

        return operands.map_keys(pad)

    def key_block(
        self, operands: AttentionOperands[Value], length: int, start: Value | int
    ) -> AttentionOperands[Value]:
        """The operands of the block of keys that begins at `start`."""
        size, count = self.block_layout(length)

        def cut(x: Value, axis: int) -> Value:
            if count == 1 or x.shape[axis] == 1:
                return x
            return ops.dynamic_slice_in_dim(x, start, size, axis)

        return operands.map_keys(cut)

    def scores(self, block: AttentionOperands[Value], length: int, start: Value | int) -> Value:
        """The scores of one block, (B, K, T, G, keys), in single precision at least."""
        s = np.einsum(
            "btkgh,bskh->bktgs",
            block.q,
            block.k,
            preferred_element_type=accumulation_dtype(block.q.dtype),
        )
        s = s * self.scale
        if block.bias is not None:
            s = s + np.astype(block.bias, s.dtype)
        masks = self.masks(block, length, start)
        if block.mask is not None:
            masks.append(block.mask)
        return np.where(reduce(operator.and_, masks), s, -np.inf) if masks else s

    def masks(
        self, block: AttentionOperands[Value], length: int, start: Value | int
    ) -> list[Value]:
        """The masks of the positions of queries and keys, which are broadcast."""
        size, count = self.block_layout(length)
        rows = np.arange(block.q.shape[1])[:, None, None]
        columns = np.arange(size) + start
        masks = []
        if self.causal:
            masks.append(columns <= rows)
        if self.window is not None:
            left, right = self.window
            masks += [columns >= rows - left, columns <= rows + right]
        if size * count > length:
            masks.append(columns < length)
        return masks

    def merge_batch(
        self, args: Sequence[Any], dims: Dims, shared: Sequence[int]
    ) -> tuple[int, list[Value]]:
        """The size of a batch, and the operands with it merged into the first dimension.

        The operands at the indices `shared` are not changed if they are not batched.
        """
        size = batch_size(args, dims)
        batched = ops.batch_dims_at(args, dims)
        b = batched[0].shape[1]
        merged = []
        for i, (arg, dim, x) in enumerate(zip(args, dims, batched, strict=True)):
            if dim is None and i in shared and arg.shape[0] == 1:
                merged.append(arg)
                continue
            shape = x.shape[2:]
            if x.shape[1] != b:
                x = np.broadcast_to(x, (size, b, *shape))
            merged.append(ops.reshape(x, (size * b, *shape)))
        return size, merged


class DotProductAttention(AttentionBase):
    """softmax(scores) @ value, (B, T, K, G, V), and the logsumexp of the scores, (B, K, T, G).

    For a query without keys they are 0 and -inf.
    """

    samples = tuple(
        sample(*avals, scale=0.7, dtypes=("f64",), **params)
        for avals, params in AttentionBase.operand_samples[:2]
    )

    def abstract_eval(self, *avals: ShapedArray) -> list[ShapedArray]:
        operands, _ = self.operands(avals)
        self.check(operands)
        b, t, heads, groups, _ = operands.q.shape
        out = operands.q.update(shape=(b, t, heads, groups, operands.v.shape[-1]), weak_type=False)
        return [out, ShapedArray((b, heads, t, groups), accumulation_dtype(operands.q.dtype))]

    def decompose(self, *args: Value) -> list[Value]:
        operands, _ = self.operands(args)
        length = operands.k.shape[1]
        size, count = self.block_layout(length)
        operands = self.pad_keys(operands)
        sums = self.softmax_sums(operands, length, 0)
        if count > 1:

            def step(carry: SoftmaxSums, start: Value) -> tuple[SoftmaxSums, None]:
                return merge_softmax_sums(carry, self.softmax_sums(operands, length, start)), None

            sums, _ = scan(step, sums, np.arange(1, count) * size)
        largest, total, weighted = sums
        is_zero = total == 0
        total = np.where(is_zero, 1, total)
        logs = np.where(is_zero, -np.inf, largest + np.log(total))
        out = np.astype(weighted / total, operands.q.dtype)
        return [np.permute_dims(out, (0, 2, 1, 3, 4)), logs[..., 0]]

    def softmax_sums(
        self, operands: AttentionOperands[Value], length: int, start: Value | int
    ) -> SoftmaxSums:
        """The largest score of one block, the sum of exponentials, and the values weighted by them."""
        block = self.key_block(operands, length, start)
        s = self.scores(block, length, start)
        # The maximum is finite, so that a block without keys makes no nan.
        lowest = float(np.finfo(s.dtype).min) / 2
        largest = ops.expand_dims(ops.shift_of_exponentials(s, (s.ndim - 1,)), s.ndim - 1)
        largest = ops.stop_gradient(np.maximum(largest, lowest))
        powers = np.exp(s - largest)
        weighted = np.einsum(
            "bktgs,bskv->bktgv",
            np.astype(powers, block.v.dtype),
            block.v,
            preferred_element_type=s.dtype,
        )
        return largest, np.sum(powers, axis=-1, keepdims=True), weighted

    def batch(self, args: Values, dims: Dims) -> tuple[list[Value], list[Dim]]:
        size, merged = self.merge_batch(args, dims, range(3, len(args)))
        return [unmerge_batch(x, size) for x in self(*merged)], [0, 0]

    def vjp(self, cts: Cotangents, saved: Values, args: Values, active: Flags) -> list[Cotangent]:
        out, logs = saved
        ct, ct_logs = cts
        if ct is None:
            ct = ops.zeros_like(out)
        products = np.einsum("btkgv,btkgv->bktg", ct, out, preferred_element_type=logs.dtype)
        if ct_logs is not None:
            products = products - ct_logs
        params = {name: getattr(self, name) for name in self.fields}
        in_cts = DotProductAttentionBackward(**params)(*args, logs, products, ct)
        return [*in_cts, None] if self.masked else in_cts


class DotProductAttentionBackward(AttentionBase):
    """The cotangents of query, key, value and bias of attention.

    The operands of attention are followed by its logsumexp, by the sums over V of the products
    of its output and the cotangent of that, minus the cotangent of the logsumexp, and by the
    cotangent of the output.
    """

    samples = tuple(
        sample(
            *avals,
            avals[0].update(shape=(avals[0].shape[0], *[avals[0].shape[i] for i in (2, 1, 3)])),
            avals[0].update(shape=(avals[0].shape[0], *[avals[0].shape[i] for i in (2, 1, 3)])),
            avals[0].update(shape=(*avals[0].shape[:4], avals[2].shape[3])),
            scale=0.7,
            dtypes=("f64",),
            **params,
        )
        for avals, params in AttentionBase.operand_samples[2:]
    )

    def abstract_eval(self, *avals: ShapedArray) -> list[ShapedArray]:
        operands, (logs, products, ct) = self.operands(avals)
        self.check(operands)
        b, t, heads, groups, _ = operands.q.shape
        if not logs.shape == products.shape == (b, heads, t, groups):
            raise ShapeError(
                f"{self.name}: the logarithms and products must be {(b, heads, t, groups)}; "
                f"got {logs!r}, {products!r}"
            )
        if ct.shape != (b, t, heads, groups, operands.v.shape[-1]):
            raise ShapeError(f"{self.name}: the cotangent must be like the output; got {ct!r}")
        q, k, v, bias, _ = operands
        return [x.update(weak_type=False) for x in (q, k, v, bias) if x is not None]

    def decompose(self, *args: Value) -> list[Value]:
        operands, (logs, products, ct) = self.operands(args)
        length = operands.k.shape[1]
        size, count = self.block_layout(length)
        operands = self.pad_keys(operands)
        logs = np.where(np.isneginf(logs), 0, logs)[..., None]
        residuals = logs, products[..., None], ct
        if count == 1:
            return list(self.cotangents(operands, length, 0, residuals)[: 3 + self.biased])
        # The cotangent of a bias that is broadcast over the keys is a sum over the blocks.
        summed = [x for x in (operands.bias,) if x is not None and x.shape[-1] == 1]

        def step(
            carry: tuple[Value, ...], start: Value
        ) -> tuple[tuple[Value, ...], tuple[Value | None, ...]]:
            dq, dk, dv, dbias = self.cotangents(operands, length, start, residuals)
            if summed:
                return (carry[0] + dq, carry[1] + dbias), (dk, dv)
            return (carry[0] + dq,), (dk, dv, dbias)

        init = tuple([ops.zeros_like(x) for x in (operands.q, *summed)])
        (dq, *bias_sum), (dk, dv, *bias_rows) = scan(step, init, np.arange(count) * size)
        dk, dv = [concatenate_blocks(x, 1, length) for x in (dk, dv)]
        dbias = bias_sum or [concatenate_blocks(x, 4, length) for x in bias_rows if x is not None]
        return [dq, dk, dv, *dbias]

    def cotangents(
        self,
        operands: AttentionOperands[Value],
        length: int,
        start: Value | int,
        residuals: tuple[Value, Value, Value],
    ) -> tuple[Value, Value, Value, Any]:
        """The cotangents of the query, and of key, value and bias of one block."""
        logs, products, ct = residuals
        block = self.key_block(operands, length, start)
        q, k, v, bias, _ = block
        p = np.exp(self.scores(block, length, start) - logs)
        dv = np.einsum("bktgs,btkgv->bskv", np.astype(p, ct.dtype), ct)
        dp = np.einsum("btkgv,bskv->bktgs", ct, v, preferred_element_type=p.dtype)
        # d softmax = p (dp - sum(p dp)), where sum(p dp) is `products`.
        ds = p * (dp - products)
        dbias = None if bias is None else np.astype(sum_to_shape(ds, bias.shape), bias.dtype)
        ds = np.astype(ds * self.scale, q.dtype)
        dq = np.einsum("bktgs,bskh->btkgh", ds, k)
        dk = np.einsum("bktgs,btkgh->bskh", ds, q)
        return dq, dk, dv, dbias

    def batch(self, args: Values, dims: Dims) -> tuple[list[Value], list[Dim]]:
        # The cotangent of a bias is batched, even if the bias is not.
        size, merged = self.merge_batch(
            args, dims, range(3 + self.biased, 3 + self.biased + self.masked)
        )
        outs = [unmerge_batch(x, size) for x in self(*merged)]
        if self.biased and ops.batch_dim_at(args[3], dims[3], 0, size).shape[1] == 1:
            outs[3] = np.sum(outs[3], axis=1, keepdims=True)
        return outs, [0] * len(outs)


def merge_softmax_sums(x: SoftmaxSums, y: SoftmaxSums) -> SoftmaxSums:
    """The softmax sums of two blocks of keys together; exponentials are relative to the largest score."""
    largest = np.maximum(x[0], y[0])
    left, right = np.exp(x[0] - largest), np.exp(y[0] - largest)
    return largest, x[1] * left + y[1] * right, x[2] * left + y[2] * right


def unmerge_batch(x: Value, size: int) -> Value:
    """`x` with its first dimension split into a batch of `size` and its former length."""
    return ops.reshape(x, (size, x.shape[0] // size, *x.shape[1:]))


def concatenate_blocks(x: Value, axis: int, length: int) -> Value:
    """The stacked blocks `x` concatenated along `axis`, up to `length`."""
    x = ops.moveaxis(x, 0, axis)
    shape = (*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])
    return ops.reshape(x, shape)[(slice(None),) * axis + (slice(0, length),)]


def sum_to_shape(x: Value, shape: tuple[int, ...]) -> Value:
    """`x` summed along the dimensions in which `shape` has 1."""
    axes = tuple([i for i, n in enumerate(shape) if n == 1 and x.shape[i] != 1])
    return np.sum(x, axis=axes, keepdims=True) if axes else x


def dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    bias: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: ArrayLike | None = None,
    key_value_seq_lengths: ArrayLike | None = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> Value | tuple[Value, Value]:
    """softmax(query @ key * scale + bias) @ value, for each batch and head, in memory linear in length.

    `query` is (B, T, N, H), `key` (B, S, K, H), `value` (B, S, K, V), all with or all without B;
    N is a multiple of K, and each head of the key serves N / K consecutive heads of the query.
    The result is (B, T, N, V). `bias` is added to the scores, and the boolean `mask` selects
    scores; both are broadcast to (B, N, T, S). `scale` is by default 1 / sqrt(H). With
    `is_causal`, a query attends to no later keys; with `local_window_size`, an int or
    (left, right), only to keys at that distance; with sequence lengths, one for each batch
    element, to no keys beyond the end, and the result of queries there is 0. The result of a
    query without keys is 0, with derivative 0.

    The keys are processed in blocks of `block_size`, forward and backward, so that no array of
    T by S is made unless `bias` or `mask` is one. With `return_residual`, the result is a pair,
    whose second part is the logsumexp of the scores, (B, T, N). `implementation`, for
    compatibility with JAX, may be None or "xla".

    Raises ShapeError, DTypeError and ValueRangeError for arguments that do not agree.

    >>> import numpy
    >>> from functx import nn
    >>> x = numpy.ones((1, 4, 2, 8), "float32")
    >>> nn.dot_product_attention(x, x, x, is_causal=True).shape
    (1, 4, 2, 8)
    """
    if not (implementation is None or (type(implementation) is str and implementation == "xla")):
        raise ValueRangeError(
            f"dot_product_attention: implementation must be None or 'xla'; got {implementation!r}",
            fix="For cudnn's, use functx.from_jax(jax.nn.dot_product_attention).",
        )
    residual = as_bool("dot_product_attention: return_residual", return_residual)
    q, k, v = promote_inexact(query, key, value)
    is_unbatched = aval_of(q).ndim == 3
    if is_unbatched:
        q, k, v = [np.asarray(x)[None] for x in (q, k, v)]
    shapes = [aval_of(x).shape for x in (q, k, v)]
    block_size = as_int("dot_product_attention: block_size", block_size)
    groups = _check_attention_shapes(shapes, block_size)
    (b, t, n, h), (_, s, heads, _), _ = shapes
    score_shape = (b, n, t, s)
    if mask is not None:
        mask = _group_heads("mask", mask, score_shape, heads)
        if aval_of(mask).dtype != bool:
            raise DTypeError(f"dot_product_attention: mask must be boolean; got {aval_of(mask)!r}")
    if key_value_seq_lengths is not None:
        ends = _check_seq_lengths("key_value_seq_lengths", key_value_seq_lengths, b)
        in_sequence = (np.arange(s) < ends[:, None])[:, None, None, None, :]
        mask = in_sequence if mask is None else mask & in_sequence
    if bias is not None:
        bias = _group_heads("bias", bias, score_shape, heads)
    attention = DotProductAttention(
        max(h, 1) ** -0.5 if scale is None else as_float("dot_product_attention: scale", scale),
        as_bool("dot_product_attention: is_causal", is_causal),
        _check_local_window(local_window_size),
        bias is not None,
        mask is not None,
        block_size,
    )
    optional = [x for x in (bias, mask) if x is not None]
    out, logs = attention(ops.reshape(q, (b, t, heads, groups, h)), k, v, *optional)
    out = ops.reshape(out, (b, t, n, shapes[2][-1]))
    if query_seq_lengths is not None:
        ends = _check_seq_lengths("query_seq_lengths", query_seq_lengths, b)
        out = np.where((np.arange(t) < ends[:, None])[:, :, None, None], out, 0)
    logs = ops.reshape(np.permute_dims(logs, (0, 2, 1, 3)), (b, t, n))
    out, logs = (out[0], logs[0]) if is_unbatched else (out, logs)
    return (out, ops.convert_element_type(logs, aval_of(q).dtype)) if residual else out


def _check_attention_shapes(shapes: Sequence[Shape], block_size: int) -> int:
    """The number of heads of the query for each head of the key, once the shapes are checked."""
    if not all(len(shape) == 4 for shape in shapes):
        raise ShapeError(
            "dot_product_attention: query, key and value must all be (batch, length, heads, size), "
            f"or all without batch; got shapes {', '.join(map(str, shapes))}"
        )
    (b, _, n, h), (kb, s, heads, kh), (vb, vs, vheads, _) = shapes
    if not (b == kb == vb and h == kh and s == vs and heads == vheads):
        raise ShapeError(
            "dot_product_attention: key and value must have the batch of the query, one length and "
            f"heads, and the key its size; got shapes {', '.join(map(str, shapes))}"
        )
    if not heads or n % heads:
        raise ShapeError(
            "dot_product_attention: the heads of the query must be a multiple of those of the key; "
            f"got {n} and {heads}"
        )
    if block_size < 1:
        raise ValueRangeError(
            f"dot_product_attention: block_size must be positive; got {block_size}"
        )
    return int(n // heads)


def _group_heads(name: str, x: ArrayLike, score_shape: tuple[int, ...], heads: int) -> Value:
    """`x`, broadcastable to (B, N, T, S), as (B, K, T, G, S) or 1 in dimensions that are broadcast."""
    x = np.asarray(x)
    if not is_broadcastable(x.shape, score_shape):
        raise ShapeError(
            f"dot_product_attention: {name} must be broadcast to (batch, heads, queries, keys), "
            f"{score_shape}; got {aval_of(x)!r}"
        )
    b, n, t, s = (1,) * (4 - x.ndim) + tuple(x.shape)
    grouped = (b, 1, 1, t, s) if n == 1 else (b, heads, n // heads, t, s)
    return np.permute_dims(ops.reshape(x, grouped), (0, 1, 3, 2, 4))


def _check_seq_lengths(name: str, x: ArrayLike, b: int) -> Value:
    x = np.asarray(x)
    if x.shape != (b,) or x.dtype.kind not in "iu":
        raise ArgumentError(
            f"dot_product_attention: {name} must be {b} integers, one for each batch element; got {aval_of(x)!r}"
        )
    return x


def _check_local_window(size: int | Sequence[int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    label = "dot_product_attention: local_window_size"
    pair = size if isinstance(size, tuple | list) and len(size) == 2 else (size, size)
    left, right = [as_int(label, n) for n in pair]
    if left < 0 or right < 0:
        raise ValueRangeError(f"{label} must not be negative; got {size}")
    return left, right
