"""Softmax and losses, and their backward operations."""

# ruff: noqa: N802 - functions are named as the classes whose meaning they are

from __future__ import annotations

import numpy as np
import scipy.special

from functx.testing.reference.meanings import MEANING, meaning


@meaning
def SoftmaxBackward(ct, out, axes, dtype):
    weight = out.sum(axes, keepdims=True)
    mean = (out * ct).sum(axes, keepdims=True) / np.where(weight == 0, 1, weight)
    return out * (ct - mean)


@meaning
def LogSoftmaxBackward(ct, out, axes, dtype):
    weights = np.exp(out - out.max(axes, keepdims=True, initial=-np.inf))
    p = weights / weights.sum(axes, keepdims=True)
    return ct - p * ct.sum(axes, keepdims=True)


def reduced(terms, reduction, lanes):
    rows = terms.reshape((*terms.shape[:lanes], -1))
    if reduction == "batchmean":
        return rows.sum(-1) / terms.shape[lanes]
    return {"none": terms, "sum": rows.sum(-1), "mean": rows.mean(-1)}[reduction]


def shared(ct, x, reduction, lanes):
    count = {"mean": x[(0,) * lanes].size, "batchmean": x.shape[min(lanes, x.ndim - 1)]}
    rest = x.shape[ct.ndim :] if reduction != "none" else ()
    return (ct / count.get(reduction, 1)).reshape(ct.shape + (1,) * len(rest))


def softplus(x):
    return np.logaddexp(0.0, x)


def clipped(log):
    return np.maximum(log, -100.0)


def product(weight, x):
    return np.where(weight == 0, 0.0, weight * x)


TERMS = {
    "L1Loss": lambda x, y: abs(x - y),
    "MseLoss": lambda x, y: (x - y) ** 2,
    "SmoothL1Loss": lambda x, y, beta: (
        scipy.special.huber(beta, x - y) / beta if beta else abs(x - y)
    ),
    "HuberLoss": lambda x, y, delta: scipy.special.huber(delta, x - y),
    "BinaryCrossEntropy": lambda x, y, w=1.0: (
        -w * (y * clipped(np.log(x)) + (1 - y) * clipped(np.log1p(-x)))
    ),
    "BinaryCrossEntropyWithLogits": lambda x, y, w=1.0, p=1.0: (
        w * (p * product(y, softplus(-x)) + product(1 - y, softplus(x)))
    ),
    "KlDiv": lambda x, y, log_target: (
        product(np.exp(y), y - x)
        if log_target
        else scipy.special.xlogy(y, y) - product(y, np.nan_to_num(x))
    ),
}


SLOPES = {
    "L1Loss": lambda x, y: np.sign(x - y),
    "MseLoss": lambda x, y: 2 * (x - y),
    "SmoothL1Loss": lambda x, y, beta: np.clip((x - y) / beta, -1, 1),
    "HuberLoss": lambda x, y, delta: np.clip(x - y, -delta, delta),
    "BinaryCrossEntropy": lambda x, y, w=1.0: (
        w * ((1 - y) / np.maximum(1 - x, 1e-12) - y / np.maximum(x, 1e-12))
    ),
    "BinaryCrossEntropyWithLogits": lambda x, y, w=1.0, p=1.0: (
        w * ((1 - y) * scipy.special.expit(x) - p * y * scipy.special.expit(-x))
    ),
    "KlDiv": lambda x, y, log_target: -np.exp(y) if log_target else -y,
}


for _name, _terms in TERMS.items():
    MEANING[_name] = lambda *args, reduction, lanes, terms=_terms, **params: reduced(
        terms(*args, **params), reduction, lanes
    )
    MEANING[f"{_name}Backward"] = (
        lambda ct, *args, reduction, lanes, slope=SLOPES[_name], **params: (
            shared(ct, args[0], reduction, lanes) * slope(*args, **params)
        )
    )


def class_rows(target, weights, classes, axis, lanes, ignore_index):
    """Along the last axis, 1 at the class of each row; and what each row weighs."""
    counts = target != ignore_index
    there = counts[..., None] & (target[..., None] == np.arange(classes))
    weight = np.ones(classes) if not weights else weights[0]
    weight = weight.reshape(weight.shape[:-1] + (1,) * (target.ndim - weight.ndim + 1) + (classes,))
    found = product(there, weight).sum(-1) if weights else 1.0
    return there, weight, np.where(counts, found, 0.0)


def known(terms, target, classes, ignore_index):
    """The terms of a loss, with nan for a class that is not there."""
    absent = (target != ignore_index) & ((target < 0) | (target >= classes))
    return np.where(absent, np.nan, terms)


def mean_by_weights(total, weight, lanes, of_nothing):
    weight = weight.reshape((*weight.shape[:lanes], -1)).sum(-1)
    return np.where(weight == 0, of_nothing, total / np.where(weight == 0, 1, weight))


def reduced_by_weights(terms, weight, reduction, lanes):
    if reduction != "mean":
        return reduced(terms, reduction, lanes)
    return mean_by_weights(reduced(terms, "sum", lanes), weight, lanes, np.nan)


def shared_by_weights(ct, weight, reduction, lanes):
    ct = mean_by_weights(ct, weight, lanes, 0.0) if reduction == "mean" else ct
    return ct.reshape(ct.shape + (1,) * (weight.ndim - ct.ndim)) * weight


@meaning
def NllLoss(x, target, *weights, reduction, lanes, axis, ignore_index):
    there, _, weight = class_rows(target, weights, x.shape[axis], axis, lanes, ignore_index)
    terms = -product(weight, np.where(there, np.moveaxis(x, axis, -1), 0).sum(-1))
    terms = known(terms, target, x.shape[axis], ignore_index)
    return reduced_by_weights(terms, weight, reduction, lanes)


@meaning
def NllLossBackward(ct, target, *weights, reduction, lanes, axis, ignore_index, classes):
    there, _, weight = class_rows(target, weights, classes, axis, lanes, ignore_index)
    found = -product(there, shared_by_weights(ct, weight, reduction, lanes)[..., None])
    return np.moveaxis(found, -1, axis)


def class_distribution(target, weights, x, axis, lanes, ignore_index, label_smoothing):
    """Along the last axis, what each class of a row counts; and what the row weighs."""
    classes = x.shape[axis]
    there, each, weight = class_rows(target, weights, classes, axis, lanes, ignore_index)
    counts = (target != ignore_index)[..., None]
    smooth = label_smoothing / classes * each
    return counts * ((1 - label_smoothing) * there * weight[..., None] + smooth), weight


def of_distribution(x, shares, axis):
    weight = shares.sum(-1, keepdims=True)
    return product(weight, np.moveaxis(scipy.special.softmax(x, axis), axis, -1)) - shares


@meaning
def CrossEntropy(x, target, *weights, reduction, lanes, axis, ignore_index, label_smoothing):
    shares, weight = class_distribution(
        target, weights, x, axis, lanes, ignore_index, label_smoothing
    )
    logs = np.moveaxis(scipy.special.log_softmax(x, axis), axis, -1)
    terms = known(-product(shares, logs).sum(-1), target, x.shape[axis], ignore_index)
    return reduced_by_weights(terms, weight, reduction, lanes)


@meaning
def CrossEntropyBackward(ct, x, target, *weights, reduction, lanes, axis, **others):
    shares, weight = class_distribution(target, weights, x, axis, lanes, **others)
    ct = mean_by_weights(ct, weight, lanes, 0.0) if reduction == "mean" else ct
    ct = ct.reshape(ct.shape + (1,) * (x.ndim - ct.ndim))
    return np.moveaxis(ct * of_distribution(x, shares, axis), -1, axis)


def mixed(target, weights, axis, label_smoothing):
    """The probabilities of classes, smoothed and weighed, along the last axis."""
    weight = weights[0] if weights else np.ones(())
    target = np.moveaxis(target, axis, -1)
    weight = weight.reshape(
        weight.shape[:-1] + (1,) * (target.ndim - weight.ndim) + weight.shape[-1:]
    )
    return weight * (target * (1 - label_smoothing) + label_smoothing / target.shape[-1])


@meaning
def SoftCrossEntropy(x, target, *weights, reduction, lanes, axis, label_smoothing):
    shares = mixed(target, weights, axis, label_smoothing)
    logs = np.moveaxis(scipy.special.log_softmax(x, axis), axis, -1)
    return reduced(-(shares * logs).sum(-1), reduction, lanes)


@meaning
def SoftCrossEntropyBackward(ct, x, target, *weights, reduction, lanes, axis, label_smoothing):
    found = of_distribution(x, mixed(target, weights, axis, label_smoothing), axis)
    ct = shared(ct, found[..., 0], reduction, lanes)[..., None]
    return np.moveaxis(ct * found, -1, axis)
