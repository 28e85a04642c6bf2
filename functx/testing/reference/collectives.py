"""Collectives: the operands of all places come as the first dimension."""

# ruff: noqa: N802 - functions are named as the classes whose meaning they are

from __future__ import annotations

import numpy as np

from functx.testing.reference.meanings import MEANING, meaning


@meaning
def Across(*xs, primitive, axes):
    count = len(axes)
    xs = [x.reshape(-1, *x.shape[count:]) for x in xs] or [np.zeros(axes[0][1])]
    params = {field: getattr(primitive, field) for field in primitive.fields}
    out = MEANING[type(primitive).__name__](*xs, **params)
    return out.reshape(*[n for _, n in axes], *out.shape[1:])


def in_groups(function):
    """`function` of the operands in a group of places, for every group."""

    def apply(x, axes, groups=None, **params):
        groups = groups or (tuple(range(len(x))),)
        found = {}
        for group in groups:
            rows = function(x[list(group)], **params)
            found.update(zip(group, rows, strict=True))
        return np.stack([found[place] for place in range(len(x))])

    apply.__name__ = function.__name__
    return meaning(apply)


@in_groups
def Psum(x):
    return [x.sum(0)] * len(x)


@in_groups
def Pmax(x):
    return [x.max(0)] * len(x)


@in_groups
def Pmin(x):
    return [x.min(0)] * len(x)


@in_groups
def AllGather(x, axis, sizes, invariant):
    return [np.concatenate(list(x), axis)] * len(x)


@in_groups
def PsumScatter(x, axis, sizes):
    return np.split(x.sum(0), len(x), axis)


@in_groups
def AllToAll(x, split, concat, sizes):
    parts = [np.split(row, len(x), split) for row in x]
    return [np.concatenate([row[place] for row in parts], concat) for place in range(len(x))]


@in_groups
def Ppermute(x, perm):
    out = np.zeros_like(x)
    for source, destination in perm:
        out[destination] = x[source]
    return out


@in_groups
def Vary(x):
    return x


@meaning
def AxisIndex(x, axis, size):
    return np.arange(size)


@meaning
def Boundary(x, like, kind, axes):
    return x


@meaning
def ShardingConstraint(x, sharding):
    return x
