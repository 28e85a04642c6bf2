"""Attention: averages of values, weighted by how well their keys fit a query."""

from __future__ import annotations

from typing import Any

import functx.numpy as np
from functx.core.errors import ArgumentError, DTypeError, ShapeError, ValueRangeError
from functx.core.tracing import aval_of
from functx.nn.attention_blocks import DotProductAttention
from functx.numpy.promotion import promote_inexact
from functx.ops.conversion import convert_element_type
from functx.ops.parameters import as_bool, as_float, as_int
from functx.ops.shaping import reshape

DEFAULT_BLOCK_SIZE = 512


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> Any:
    """softmax(query @ key * scale + bias) @ value, for each batch and head, in memory linear in length.

    `query` is (B, T, N, H), `key` (B, S, K, H), `value` (B, S, K, V), all without B or all with
    it; N is a multiple of K, and each key serves as many heads in a row. The result is
    (B, T, N, V). `bias` is added to the scores and `mask`, boolean, says which count; both are
    broadcast to (B, N, T, S). `scale` is by default 1 / sqrt(H). With `is_causal`, a query sees no
    keys behind its own place; with `local_window_size`, an int or (left, right), none further
    off; with sequence lengths, one a batch, none behind the end, and queries there get zeros.
    A query that sees no key gets zeros, and has no derivative.

    The keys are taken in blocks of `block_size`, forward and backward, so that no array of
    T by S is made unless `bias` or `mask` is one. With `return_residual`, a pair, whose
    second part is the logarithm of the sum of exponentials, (B, T, N). `implementation` is
    there for JAX's sake, and may be None or "xla".

    Raises ShapeError, DTypeError and ValueRangeError for arguments that do not fit.

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
    alone = aval_of(q).ndim == 3
    if alone:
        q, k, v = [np.asarray(x)[None] for x in (q, k, v)]
    shapes = [aval_of(x).shape for x in (q, k, v)]
    block_size = as_int("dot_product_attention: block_size", block_size)
    groups = _check_attention_shapes(shapes, block_size)
    (b, t, n, h), (_, s, heads, _), _ = shapes
    scored = (b, n, t, s)
    seen = None if mask is None else _group_heads("mask", mask, scored, heads)
    if seen is not None and aval_of(seen).dtype != bool:
        raise DTypeError(f"dot_product_attention: mask must be boolean; got {aval_of(seen)!r}")
    if key_value_seq_lengths is not None:
        ends = _check_seq_lengths("key_value_seq_lengths", key_value_seq_lengths, b)
        inside = (np.arange(s) < ends[:, None])[:, None, None, None, :]
        seen = inside if seen is None else seen & inside
    given = [] if bias is None else [_group_heads("bias", bias, scored, heads)]
    given += [] if seen is None else [seen]
    attend = DotProductAttention(
        max(h, 1) ** -0.5 if scale is None else as_float("dot_product_attention: scale", scale),
        as_bool("dot_product_attention: is_causal", is_causal),
        _check_local_window(local_window_size),
        bias is not None,
        seen is not None,
        block_size,
    )
    out, logs = attend(reshape(q, (b, t, heads, groups, h)), k, v, *given)
    out = reshape(out, (b, t, n, shapes[2][-1]))
    if query_seq_lengths is not None:
        ends = _check_seq_lengths("query_seq_lengths", query_seq_lengths, b)
        out = np.where((np.arange(t) < ends[:, None])[:, :, None, None], out, 0)
    logs = reshape(np.permute_dims(logs, (0, 2, 1, 3)), (b, t, n))
    out, logs = (out[0], logs[0]) if alone else (out, logs)
    return (out, convert_element_type(logs, aval_of(q).dtype)) if residual else out


def _check_attention_shapes(shapes: list[Any], block_size: int) -> int:
    """How many heads of the query each head of the key serves."""
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


def _group_heads(name: str, x: Any, scored: tuple[int, ...], heads: int) -> Any:
    """`x`, which is broadcast to (B, N, T, S), as (B, K, T, G, S) or 1 where all share."""
    x = np.asarray(x)
    shape = (*[1] * (4 - x.ndim), *x.shape)
    if len(shape) != 4 or not all(n in (1, m) for n, m in zip(shape, scored, strict=True)):
        raise ShapeError(
            f"dot_product_attention: {name} must be broadcast to (batch, heads, queries, keys), "
            f"{scored}; got {aval_of(x)!r}"
        )
    b, n, t, s = shape
    grouped = (b, 1, 1, t, s) if n == 1 else (b, heads, n // heads, t, s)
    return np.permute_dims(reshape(x, grouped), (0, 1, 3, 2, 4))


def _check_seq_lengths(name: str, x: Any, b: int) -> Any:
    x = np.asarray(x)
    if x.shape != (b,) or x.dtype.kind not in "iu":
        raise ArgumentError(
            f"dot_product_attention: {name} must be {b} integers, one a batch; got {aval_of(x)!r}"
        )
    return x


def _check_local_window(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    what = "dot_product_attention: local_window_size"
    pair = isinstance(size, tuple | list) and len(size) == 2
    left, right = [as_int(what, n) for n in (size if pair else (size, size))]
    if left < 0 or right < 0:
        raise ValueRangeError(
            f"dot_product_attention: local_window_size must not be negative; got {size}"
        )
    return left, right
