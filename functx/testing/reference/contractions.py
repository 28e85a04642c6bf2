"""Products of arrays, convolutions, attention."""

# ruff: noqa: N802 - functions are named as the classes whose meaning they are

from __future__ import annotations

import numpy as np

from functx.testing.reference.meanings import reference_rule


@reference_rule
def DotGeneral(x, y, contract, batched, precision, preferred_element_type):
    if preferred_element_type is not None and x.dtype.kind in "iu":
        x, y = x.astype(preferred_element_type), y.astype(preferred_element_type)
    letters = iter("abcdefghijklmnop")
    left, right = [None] * x.ndim, [None] * y.ndim
    for i, j in (*zip(*batched, strict=True), *zip(*contract, strict=True)):
        left[i] = right[j] = next(letters)
    lead = "".join([left[i] for i in batched[0]])
    free = ["", ""]
    for k, labels in enumerate((left, right)):
        for i, label in enumerate(labels):
            if label is None:
                labels[i] = next(letters)
                free[k] += labels[i]
    return np.einsum(f"{''.join(left)},{''.join(right)}->{lead}{free[0]}{free[1]}", x, y)


@reference_rule
def Convolution(x, k, window, layouts, groups, precision, preferred_element_type):
    x, k = np.transpose(x, layouts.array), np.transpose(k, layouts.kernel)
    (n, c), (o, i), space = x.shape[:2], k.shape[:2], x.shape[2:]
    widths = [
        (low, max((size - 1) * hole + 1, 0), high)
        for size, hole, (low, high) in zip(space, window.base_dilation, window.padding, strict=True)
    ]
    around = [max(low, 0) + size + max(high, 0) for low, size, high in widths]
    wide = np.zeros((n, c, *around), x.dtype)
    places = [
        np.s_[max(low, 0) : max(low, 0) + size : hole]
        for (low, size, _), hole in zip(widths, window.base_dilation, strict=True)
    ]
    wide[(..., *places)] = x
    cut = [
        np.s_[max(-low, 0) : end - max(-high, 0)]
        for (low, _, high), end in zip(widths, around, strict=True)
    ]
    wide = wide[(..., *cut)]
    out = np.zeros((n // groups.batch, o, *window.result_shape(space)), x.dtype)
    for at in np.ndindex(*out.shape):
        b, channel, *place = at
        group = channel // (o // (groups.channels * groups.batch))
        lane = b + (group * out.shape[0] if groups.batch > 1 else 0)
        first = group * i if groups.channels > 1 else 0
        rows = [
            np.s_[p * stride : p * stride + (size - 1) * apart + 1 : apart]
            for p, stride, size, apart in zip(
                place, window.strides, window.sizes, window.window_dilation, strict=True
            )
        ]
        out[at] = (wide[(lane, np.s_[first : first + i], *rows)] * k[channel]).sum()
    return np.transpose(out, np.argsort(layouts.out))


def attention_scores(q, k, bias, mask, scale, causal, window):
    """The scores of attention, (B, K, T, G, S); -inf where nothing is seen."""
    s = np.einsum("btkgh,bskh->bktgs", q, k) * scale + (0 if bias is None else bias)
    rows, columns = np.arange(q.shape[1])[:, None, None], np.arange(k.shape[1])
    left, right = window or (len(columns) + len(rows),) * 2
    seen = (columns >= rows - left) & (columns <= (rows if causal else rows + right))
    return np.where(seen & (True if mask is None else mask), s, -np.inf)


def attention_weights(s):
    """The weights of scores, and the logarithms of the sums of their powers."""
    largest = s.max(-1, initial=-np.inf, keepdims=True)
    shift = np.where(largest == -np.inf, 0, largest)
    powers = np.exp(s - shift)
    sums = powers.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return powers / np.where(sums == 0, 1, sums), (np.log(sums) + shift)[..., 0]


def attention_operands(args, biased, masked):
    q, k, v, *rest = args
    bias = rest.pop(0) if biased else None
    mask = rest.pop(0) if masked else None
    return q, k, v, bias, mask, rest


@reference_rule
def DotProductAttention(*args, scale, causal, window, biased, masked, block):
    q, k, v, bias, mask, _ = attention_operands(args, biased, masked)
    weights, logs = attention_weights(attention_scores(q, k, bias, mask, scale, causal, window))
    return np.einsum("bktgs,bskv->btkgv", weights, v), logs


@reference_rule
def DotProductAttentionBackward(*args, scale, causal, window, biased, masked, block):
    q, k, v, bias, mask, (logs, products, ct) = attention_operands(args, biased, masked)
    s = attention_scores(q, k, bias, mask, scale, causal, window)
    p = np.where(s == -np.inf, 0, np.exp(s - logs[..., None]))
    ds = p * (np.einsum("btkgv,bskv->bktgs", ct, v) - products[..., None])
    found = [
        np.einsum("bktgs,bskh->btkgh", ds, k) * scale,
        np.einsum("bktgs,btkgh->bskh", ds, q) * scale,
        np.einsum("bktgs,btkgv->bskv", p, ct),
    ]
    if biased:
        axes = tuple(i for i, n in enumerate(bias.shape) if n == 1)
        found.append(ds.sum(axes, keepdims=True))
    return found
