"""Where arrays lie, by JAX's name."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from functx.core import tree
from functx.core.errors import ArgumentError, type_name
from functx.core.tracing import aval_of, current_builder
from functx.ops.sharding import (
    ShardingConstraint,
    check_partition_spec,
    current_mesh,
    with_auto_axes,
)

__all__ = ["with_sharding_constraint"]


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """`x` with each leaf divided among devices as `shardings` says; so are its derivatives.

    `shardings` is a tree prefix of `x` with a sharding of JAX at each leaf, a PartitionSpec of
    the mesh that `jax.set_mesh` set, or None to leave a leaf alone.

    Raises ShapeError for a dimension that cannot be divided into equal parts, and ArgumentError
    for what is no sharding.
    """
    leaves, structure = tree.flatten_with_key_data(x)
    op = "with_sharding_constraint"
    flat = tree.broadcast_prefix(shardings, structure, f"{op}: shardings")
    outs = [_constrain_leaf(op, leaf, s) for leaf, s in zip(leaves, flat, strict=True)]
    return tree.unflatten(structure, outs)


def _constrain_leaf(op: str, leaf: Any, sharding: Any) -> Any:
    if sharding is None:
        return leaf
    if isinstance(sharding, PartitionSpec):
        sharding = NamedSharding(current_mesh(op), sharding)
    if not isinstance(sharding, Sharding):
        raise ArgumentError(
            f"{op}: shardings must be shardings of JAX, or PartitionSpecs; got "
            f"{type_name(sharding)} {sharding!r}"
        )
    if isinstance(sharding, NamedSharding):
        check_partition_spec(op, aval_of(leaf), sharding.spec, sharding.mesh)
        mesh = with_auto_axes(sharding.mesh)
        sharding = NamedSharding(mesh, sharding.spec, memory_kind=sharding.memory_kind)
    if current_builder.get() is None:
        # An array of NumPy's lies nowhere.
        leaf = jax.numpy.asarray(leaf)
    return ShardingConstraint(sharding)(leaf)
