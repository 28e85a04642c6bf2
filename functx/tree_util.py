"""Pytrees and the registration of node classes, by the names of `jax.tree_util`.

The registry is JAX's own: a class that is registered here is a node for JAX and every library on it.
"""

from jax.tree_util import (
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    KeyEntry,
    KeyPath,
    Partial,
    PyTreeDef,
    SequenceKey,
    all_leaves,
    default_registry,
    flatten_one_level,
    flatten_one_level_with_keys,
    is_tree_node,
    keystr,
    register_dataclass,
    register_pytree_node,
    register_pytree_node_class,
    register_pytree_with_keys,
    register_pytree_with_keys_class,
    register_static,
    tree_all,
    tree_broadcast,
    tree_flatten_with_path,
    tree_leaves_with_path,
    tree_map_with_path,
    tree_reduce,
    tree_reduce_associative,
    tree_transpose,
    treedef_children,
    treedef_is_leaf,
    treedef_tuple,
)

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.tree import flatten as tree_flatten
from functx.core.tree import leaves as tree_leaves
from functx.core.tree import map as tree_map
from functx.core.tree import structure as tree_structure
from functx.core.tree import unflatten as tree_unflatten

__all__ = [
    "DictKey",
    "FlattenedIndexKey",
    "GetAttrKey",
    "KeyEntry",
    "KeyPath",
    "Partial",
    "PyTreeDef",
    "SequenceKey",
    "all_leaves",
    "default_registry",
    "flatten_one_level",
    "flatten_one_level_with_keys",
    "is_tree_node",
    "keystr",
    "register_dataclass",
    "register_pytree_node",
    "register_pytree_node_class",
    "register_pytree_with_keys",
    "register_pytree_with_keys_class",
    "register_static",
    "tree_all",
    "tree_broadcast",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_with_path",
    "tree_reduce",
    "tree_reduce_associative",
    "tree_structure",
    "tree_transpose",
    "tree_unflatten",
    "treedef_children",
    "treedef_is_leaf",
    "treedef_tuple",
]

_explain_errors(__name__)
