"""Normalizations, and their backward operations."""

# ruff: noqa: N802 - functions are named as the classes whose meaning they are

from __future__ import annotations

import numpy as np

from functx.testing.reference.meanings import REFERENCE_RULES, reference_rule


def normalize(x, shape, axes, eps, centered=True, rstd=None):
    """x in `shape`, standardized over `axes`, and 1 over the deviation."""
    x = x.reshape(shape)
    count = max(int(np.prod([shape[d] for d in axes])), 1)
    mean = x.sum(axes, keepdims=True) / count if centered else 0.0
    variance = ((x - mean) ** 2).sum(axes, keepdims=True) / count
    rstd = 1 / np.sqrt(variance + eps) if rstd is None else rstd.reshape(variance.shape)
    return (x - mean) * rstd, rstd


def normalization(layout, centered=True):
    def norm(x, *affine, eps, weighted=False, biased=False, **params):
        shape, axes, kept = layout(x, **params)
        out = normalize(x, shape, axes, eps, centered)[0].reshape(x.shape)
        affine = [a.reshape(kept) for a in affine]
        out = out * affine[0] if weighted else out
        return out + affine[-1] if biased else out

    return norm


def normalization_backward(layout, centered=True):
    def pull(ct, x, *rest, eps, weighted=False, wanted=(True, True, True), **params):
        shape, axes, kept = layout(x, **params)
        out, rstd = normalize(x, shape, axes, eps, centered, None if eps is not None else rest[0])
        weight = rest[-1] if weighted else np.ones([n for n in kept if n != 1] or 1, x.dtype)
        g = (ct * weight.reshape(kept)).reshape(shape)
        count = max(int(np.prod([shape[d] for d in axes])), 1)
        mean = g.sum(axes, keepdims=True) / count if centered else 0.0
        of_x = rstd * (g - mean - out * (g * out).sum(axes, keepdims=True) / count)
        summed = tuple(d for d, n in enumerate(kept) if n == 1)
        sizes = [n for d, n in enumerate(x.shape) if d not in summed]
        sums = [t.sum(summed).reshape(sizes) for t in (ct * out.reshape(x.shape), ct)]
        found = of_x.reshape(x.shape), *sums
        return [one for one, on in zip(found, wanted, strict=True) if on]

    return pull


def layer_layout(x, rank, lead=0):
    kept = [n if d < lead or d >= x.ndim - rank else 1 for d, n in enumerate(x.shape)]
    return x.shape, tuple(range(x.ndim - rank, x.ndim)), kept


def group_layout(x, groups, axis=1, lead=0):
    channels, rest = x.shape[axis], x.shape[axis + 1 :]
    shape = (*x.shape[:axis], groups, channels // groups, *rest)
    kept = [n if d < lead or d == axis else 1 for d, n in enumerate(x.shape)]
    return shape, tuple(range(axis + 1, len(shape))), kept


def batch_layout(x, axes):
    return x.shape, axes, [1 if d in axes else n for d, n in enumerate(x.shape)]


REFERENCE_RULES |= {
    "LayerNorm": normalization(layer_layout),
    "LayerNormBackward": normalization_backward(layer_layout),
    "RMSNorm": normalization(layer_layout, centered=False),
    "RMSNormBackward": normalization_backward(layer_layout, centered=False),
    "GroupNorm": normalization(group_layout),
    "GroupNormBackward": normalization_backward(group_layout),
    "BatchNormBackward": normalization_backward(batch_layout),
}


@reference_rule
def BatchNorm(x, *rest, axes, momentum=0.1, tracked=False, **params):
    affine = rest[: len(rest) - 2 * tracked]
    out = normalization(batch_layout)(x, *affine, axes=axes, **params)
    if not tracked:
        return [out]
    if not x.size:
        return [out, *rest[-2:]]
    found = x.mean(axes), x.var(axes, ddof=1)
    moved = [
        (1 - momentum) * old + momentum * new for old, new in zip(rest[-2:], found, strict=True)
    ]
    return [out, *moved]


@reference_rule
def BatchNormInference(x, mean, variance, *affine, eps, axes, weighted=False, biased=False):
    kept = batch_layout(x, axes)[2]
    out = (x - mean.reshape(kept)) / np.sqrt(variance.reshape(kept) + eps)
    out = out * affine[0].reshape(kept) if weighted else out
    return out + affine[-1].reshape(kept) if biased else out


@reference_rule
def BatchNormInferenceBackward(ct, x, mean, variance, *weight, eps, axes, wanted=(True,) * 5, **_):
    kept = batch_layout(x, axes)[2]
    rstd = 1 / np.sqrt(variance + eps)
    scale = rstd * weight[0] if weight else rstd
    total, along = ct.sum(axes), (ct * (x - mean.reshape(kept))).sum(axes)
    found = (
        ct * scale.reshape(kept),
        -scale * total,
        -0.5 * along * scale * rstd**2,
        along * rstd,
        total,
    )
    return [one for one, on in zip(found, wanted, strict=True) if on]
