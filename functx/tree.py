"""Pytrees, by the names of `jax.tree`; `functx.tree_util` registers node classes."""

from jax.tree import reduce_associative, static

from functx.core.tree import (
    Partial,
    TreeDef,
    all,
    broadcast,
    broadcast_prefix,
    flatten,
    flatten_with_path,
    keystr,
    leaves,
    leaves_with_path,
    map,
    map_with_path,
    reduce,
    structure,
    transpose,
    treedef_tuple,
    unflatten,
)

__all__ = [
    "Partial",
    "TreeDef",
    "all",
    "broadcast",
    "broadcast_prefix",
    "flatten",
    "flatten_with_path",
    "keystr",
    "leaves",
    "leaves_with_path",
    "map",
    "map_with_path",
    "reduce",
    "reduce_associative",
    "static",
    "structure",
    "transpose",
    "treedef_tuple",
    "unflatten",
]
