"""Collectives: the operands of all places come as the first dimension."""

# ruff: noqa: N802 - functions are named as the classes whose meaning they are

from __future__ import annotations

import numpy as np

from functx.testing.reference.meanings import REFERENCE_RULES, reference_rule


@reference_rule
def NamedAxisMap(*xs, primitive, axes):
    count = len(axes)
    xs = [x.reshape(-1, *x.shape[count:]) for x in xs] or [np.zeros(axes[0][1])]
    params = {field: getattr(primitive, field) for field in primitive.fields}
    out = REFERENCE_RULES[type(primitive).__name__](*xs, **params)
    return out.reshape(*[n for _, n in axes], *out.shape[1:])


def grouped_collective(function):
    """`function` of the operands in a group of places, for every group."""

    def apply(x, axes, groups=None, **params):
        groups = groups or (tuple(range(len(x))),)
        found = {}
        for group in groups:
            rows = function(x[list(group)], **params)
            found.update(zip(group, rows, strict=True))
        return np.stack([found[place] for place in range(len(x))])

    apply.__name__ = function.__name__
    return reference_rule(apply)


@grouped_collective
def Psum(x):
    return [x.sum(0)] * len(x)


@grouped_collective
def Pmax(x):
    return [x.max(0)] * len(x)


@grouped_collective
def Pmin(x):
    return [x.min(0)] * len(x)


@grouped_collective
def AllGather(x, axis, sizes, invariant):
    return [np.concatenate(list(x), axis)] * len(x)


@grouped_collective
def PsumScatter(x, axis, sizes):
    return np.split(x.sum(0), len(x), axis)


@grouped_collective
def AllToAll(x, split, concat, sizes):
    parts = [np.split(row, len(x), split) for row in x]
    return [np.concatenate([row[place] for row in parts], concat) for place in range(len(x))]


@grouped_collective
def Ppermute(x, perm):
    out = np.zeros_like(x)
    for source, destination in perm:
        out[destination] = x[source]
    return out


@grouped_collective
def Vary(x):
    return x


@reference_rule
def AxisIndex(x, axis, size):
    return np.arange(size)


@reference_rule
def Boundary(x, like, kind, axes):
    return x


@reference_rule
def ShardingConstraint(x, sharding):
    return x
