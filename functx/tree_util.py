"""Pytrees and the registration of node classes, by the names of `jax.tree_util`.

The registry is JAX's own: a class that is registered here is a node for JAX and every library on it.
"""

from jax.tree_util import DictKey as DictKey
from jax.tree_util import FlattenedIndexKey as FlattenedIndexKey
from jax.tree_util import GetAttrKey as GetAttrKey
from jax.tree_util import KeyEntry as KeyEntry
from jax.tree_util import KeyPath as KeyPath
from jax.tree_util import Partial as Partial
from jax.tree_util import PyTreeDef as PyTreeDef
from jax.tree_util import SequenceKey as SequenceKey
from jax.tree_util import all_leaves as all_leaves
from jax.tree_util import default_registry as default_registry
from jax.tree_util import flatten_one_level as flatten_one_level
from jax.tree_util import flatten_one_level_with_keys as flatten_one_level_with_keys
from jax.tree_util import is_tree_node as is_tree_node
from jax.tree_util import keystr as keystr
from jax.tree_util import register_dataclass as register_dataclass
from jax.tree_util import register_pytree_node as register_pytree_node
from jax.tree_util import register_pytree_node_class as register_pytree_node_class
from jax.tree_util import register_pytree_with_keys as register_pytree_with_keys
from jax.tree_util import register_pytree_with_keys_class as register_pytree_with_keys_class
from jax.tree_util import register_static as register_static
from jax.tree_util import tree_all as tree_all
from jax.tree_util import tree_broadcast as tree_broadcast
from jax.tree_util import tree_flatten_with_path as tree_flatten_with_path
from jax.tree_util import tree_leaves_with_path as tree_leaves_with_path
from jax.tree_util import tree_map_with_path as tree_map_with_path
from jax.tree_util import tree_reduce as tree_reduce
from jax.tree_util import tree_reduce_associative as tree_reduce_associative
from jax.tree_util import tree_transpose as tree_transpose
from jax.tree_util import treedef_children as treedef_children
from jax.tree_util import treedef_is_leaf as treedef_is_leaf
from jax.tree_util import treedef_tuple as treedef_tuple

from functx.core import tree as _tree
from functx.core.argument_errors import explain_errors as _explain_errors

tree_flatten = _tree.flatten
tree_leaves = _tree.leaves
tree_map = _tree.map
tree_structure = _tree.structure
tree_unflatten = _tree.unflatten

__all__ = _explain_errors(__name__)
