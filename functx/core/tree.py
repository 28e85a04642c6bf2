"""Pytrees of all types that are registered with `jax.tree_util`, and messages on their structures."""

from __future__ import annotations

import builtins
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

from jax import tree_util

from functx.core.backend import backend
from functx.core.errors import TreeError
from functx.core.typing import PyTree
from functx.core.wrappers import WrapperStructure, has_new_wrappers, plain_types

TreeDef: TypeAlias = tree_util.PyTreeDef
_flatten = tree_util.tree_flatten
map_with_path = tree_util.tree_map_with_path
transpose = tree_util.tree_transpose
broadcast = tree_util.tree_broadcast
all = tree_util.tree_all
reduce = tree_util.tree_reduce
leaves_with_path = tree_util.tree_leaves_with_path
flatten_with_path = tree_util.tree_flatten_with_path
keystr = tree_util.keystr
treedef_tuple = tree_util.treedef_tuple
Partial = tree_util.Partial
register_node_class = tree_util.register_pytree_node_class
T = TypeVar("T")


def flatten(
    tree: PyTree, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[Any], TreeDef]:
    """The leaves of a pytree, and its structure.

    Raises TreeError for a dictionary whose keys cannot be sorted.
    """
    try:
        flat = _flatten(tree, is_leaf)
    except ValueError as error:
        _check_sortable_keys(tree)
        raise error
    if not plain_types.issuperset(builtins.map(type, flat[0])) and has_new_wrappers(flat[0]):
        flat = _flatten(tree, is_leaf)
    return flat  # type: ignore[no-any-return]


def map(
    f: Callable[..., Any],
    tree: PyTree,
    *rest: PyTree,
    is_leaf: Callable[[Any], bool] | None = None,
) -> PyTree:
    """The pytree of `f(x, *others)` for the leaves of `tree`, and the subtrees of `rest` in their places.

    Raises TreeError if `tree` is not a prefix of one of `rest`.

    >>> import functx
    >>> functx.tree.map(lambda x, step: x - step, {"w": 3.0, "b": 1.0}, {"w": 0.5, "b": 1.0})
    {'b': 0.0, 'w': 2.5}
    """
    try:
        return tree_util.tree_map(f, tree, *rest, is_leaf=is_leaf)
    except ValueError:
        for i, other in enumerate(rest):
            difference = first_difference(structure(tree, is_leaf), structure(other), prefix=True)
            if difference is not None:
                raise TreeError(
                    f"tree.map: tree {i + 2} must have the structure of the first; got {difference}"
                ) from None
        raise


def leaves(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves of a pytree."""
    return flatten(tree, is_leaf)[0]


def structure(tree: PyTree, is_leaf: Callable[[Any], bool] | None = None) -> TreeDef:
    """The structure of a pytree."""
    return flatten(tree, is_leaf)[1]


def _check_sortable_keys(tree: PyTree) -> None:
    """Raise for the first dictionary in `tree` whose keys cannot be sorted."""
    pending = [tree]
    while pending:
        part = pending.pop()
        if type(part) is dict:
            try:
                sorted(part)
            except TypeError:
                raise TreeError(
                    "the keys of a dictionary in a pytree must be sortable; got "
                    + ", ".join(repr(key) for key in part),
                    fix="Use keys of one type, or an OrderedDict, which keeps its order.",
                ) from None
            pending += part.values()
        elif isinstance(part, (list, tuple)):
            pending += part


def unflatten(treedef: TreeDef | TreeDefWithStatic, leaves: Iterable[object]) -> PyTree:
    """The pytree of the structure `treedef` with these leaves."""
    return treedef.unflatten(leaves)


class TreeDefWithStatic(NamedTuple):
    """A structure with some static leaves, which are not arrays and are not traced."""

    structure: TreeDef
    static_leaves: dict[int, Any]

    @property
    def num_leaves(self) -> int:
        """The number of leaves that are not static."""
        return int(self.structure.num_leaves) - len(self.static_leaves)

    def unflatten(self, leaves: Iterable[object]) -> PyTree:
        """The pytree with `leaves` for the leaves that are not static."""
        return self.structure.unflatten(self.merge_static(leaves))

    def merge_static(self, leaves: Iterable[object]) -> list[Any]:
        """All leaves in order, given the `leaves` that are not static."""
        traced, static = iter(leaves), self.static_leaves
        return [
            static[i] if i in static else next(traced) for i in range(self.structure.num_leaves)
        ]

    def without_static(self, items: Sequence[T]) -> tuple[T, ...]:
        """The items, one for each leaf, of the leaves that are not static."""
        return tuple([x for i, x in enumerate(items) if i not in self.static_leaves])

    def children(self) -> list[TreeDef]:
        """The structures of the children of the root, with their static leaves."""
        return self.structure.children()  # type: ignore[no-any-return]


def treedef_with_static(structure: TreeDef, fixed: dict[int, Any]) -> TreeDef | TreeDefWithStatic:
    """`structure` with the static leaves `fixed` by position; `structure` itself without any."""
    return TreeDefWithStatic(structure, fixed) if fixed else structure


class PRNGKeyNode:
    """A pytree node for JAX's typed PRNG keys, whose only leaf is their key data.

    Unflattened from any other leaf, such as an axis or None, the node returns that leaf.
    """

    def __init__(self, dtype: object):
        self.dtype = dtype


tree_util.register_pytree_node(
    PRNGKeyNode,
    lambda keys: ((0,), keys.dtype),
    lambda dtype, words: backend.typed_key_array(words[0], dtype),
)


def flatten_with_key_data(tree: PyTree) -> tuple[list[Any], TreeDef]:
    """As `flatten`, with key data in place of typed keys; the structure restores the keys."""
    return keys_to_key_data(*flatten(tree))


def keys_to_key_data(leaves: list[Any], structure: TreeDef) -> tuple[list[Any], TreeDef]:
    """The leaves with key data in place of typed keys, and the structure that restores the keys."""
    if not _keyless_types.issuperset(builtins.map(type, leaves)):
        key_data = [backend.raw_key_data(x) for x in leaves]
        pairs = enumerate(zip(leaves, key_data, strict=True))
        keys = tuple([(i, x.dtype) for i, (x, data) in pairs if data is not x])
        if keys:
            return key_data, _insert_key_nodes(structure, keys)
        _keyless_types.update([type(x) for x in leaves if type(x).__module__ in _CONCRETE])
    return leaves, structure


_keyless_types: set[type] = set()
_CONCRETE = frozenset(
    [
        *("builtins", "numpy", "jaxlib._jax"),
        *("functx.numpy", "functx.core.tracer", "functx.autograd.variable"),
    ]
)
"""The modules whose types are never typed keys."""


@lru_cache(4096)
def _insert_key_nodes(structure: TreeDef, keys: tuple[tuple[int, Any], ...]) -> TreeDef:
    """`structure` with a key node in place of the leaf at each `(position, dtype)` of `keys`."""
    node = structure.node_data()
    if node is None:
        return tree_util.tree_structure(PRNGKeyNode(keys[0][1]))
    children, start = [], 0
    for child in structure.children():
        end = start + child.num_leaves
        inside = tuple([(i - start, dtype) for i, dtype in keys if start <= i < end])
        children.append(_insert_key_nodes(child, inside) if inside else child)
        start = end
    registry = tree_util.default_registry
    return tree_util.PyTreeDef.from_node_data_and_children(registry, node, children)


def key_leaves(structure: TreeDef | TreeDefWithStatic) -> tuple[bool, ...]:
    """For each leaf of a structure that is not static, whether it is the key data of typed keys."""
    if isinstance(structure, TreeDefWithStatic):
        return structure.without_static(key_leaves(structure.structure))
    return _key_leaves(structure)


@lru_cache(4096)
def _key_leaves(structure: TreeDef) -> tuple[bool, ...]:
    node = structure.node_data()
    if node is None or node[0] is PRNGKeyNode:
        return (node is not None,)
    return tuple([is_key for child in structure.children() for is_key in _key_leaves(child)])


_BUILT_IN = frozenset(
    [tuple, list, dict, OrderedDict, defaultdict, type(None), Partial, PRNGKeyNode]
)
_ONE_LEAF = structure(0)


def _is_user_node(structure: TreeDef) -> bool:
    """Whether the root is of a node class of the user, built neither into Python nor into JAX."""
    return root_node_type(structure) not in _BUILT_IN and not _is_named_tuple(structure)


def _is_named_tuple(structure: TreeDef) -> bool:
    """Whether the children of the root are the fields of a named tuple, whose class is not registered."""
    kind, data = structure.node_data()
    if data is not None or not (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return False
    # Only the text tells it from a registered class.
    return str(structure).startswith(f"PyTreeDef(CustomNode(namedtuple[{kind.__name__}]")


def root_node_type(structure: TreeDef | TreeDefWithStatic) -> type | None:
    """The class of the root of a structure, None for a leaf."""
    if isinstance(structure, TreeDefWithStatic):
        structure = structure.structure
    node = structure.node_data()
    return None if node is None else node[0]


def leaves_in_user_nodes(structure: TreeDef | TreeDefWithStatic) -> tuple[bool, ...]:
    """For each leaf that is not static, whether a node class of the user contains it."""
    if isinstance(structure, TreeDefWithStatic):
        return structure.without_static(leaves_in_user_nodes(structure.structure))
    return _leaves_in_user_nodes(structure)


@lru_cache(4096)
def _leaves_in_user_nodes(structure: TreeDef) -> tuple[bool, ...]:
    node = structure.node_data()
    if node is None:
        return (False,)
    if _is_user_node(structure):
        return (True,) * structure.num_leaves
    children = structure.children()
    return tuple([is_inside for child in children for is_inside in _leaves_in_user_nodes(child)])


def paths(structure: TreeDef | TreeDefWithStatic) -> list[tuple[Any, ...]]:
    """The path of each leaf that is not static.

    Children of users' nodes have numbers as keys, those of arrays made of arrays have names.
    """
    if isinstance(structure, TreeDefWithStatic):
        return [*structure.without_static(paths(structure.structure))]
    if structure == _ONE_LEAF or root_node_type(structure) is PRNGKeyNode:
        return [()]
    pairs = zip(_child_keys(structure), structure.children(), strict=True)
    return [(key, *path) for key, child in pairs for path in paths(child)]


def _child_keys(structure: TreeDef) -> list[Any]:
    """The keys of the children of the root."""
    kind, data = structure.node_data()
    names = {dict: data, OrderedDict: data}.get(kind)
    if kind is defaultdict:
        names = data[1]
    if names is not None:
        return [tree_util.DictKey(name) for name in names]
    if kind in (tuple, list):
        return [tree_util.SequenceKey(i) for i in range(len(structure.children()))]
    if _is_named_tuple(structure):
        return [tree_util.GetAttrKey(name) for name in kind._fields]  # type: ignore[attr-defined]
    if type(data) is WrapperStructure:
        return [tree_util.GetAttrKey(name) for name in data.names]
    return [tree_util.FlattenedIndexKey(i) for i in range(len(structure.children()))]


def call_treedef(*arguments: TreeDef) -> TreeDef:
    """The structure of `(args, kwargs)` of a call with positional arguments of these structures."""
    return treedef_tuple([treedef_tuple(arguments), structure({})])


class StructureDifference(NamedTuple):
    """The first path at which two structures differ, and the subtrees there."""

    path: tuple[object, ...]
    expected: TreeDef
    given: TreeDef

    def __str__(self) -> str:
        path, expected, given = self.texts()
        return f"{given} for {expected}" + (f" at {path}" if path else "")

    def texts(self) -> tuple[str, str, str]:
        """The path, and the expected and the given subtree, as messages show them."""
        texts = [_node_text(x) for x in (self.expected, self.given)]
        if texts[0] == texts[1]:
            texts = [str(x) for x in (self.expected, self.given)]
        return keystr(self.path), texts[0], texts[1]


def first_difference(
    expected: TreeDef, given: TreeDef, prefix: bool = False, path: tuple[object, ...] = ()
) -> StructureDifference | None:
    """The first difference of two structures, None if they are equal.

    With `prefix`, a leaf of `expected` matches any subtree.
    """
    if expected == given or (prefix and expected == _ONE_LEAF):
        return None
    first, second = expected.node_data(), given.node_data()
    children, given_children = expected.children(), given.children()
    if None in (first, second) or first != second or len(children) != len(given_children):
        return StructureDifference(path, expected, given)
    for key, x, y in zip(_child_keys(expected), children, given_children, strict=True):
        difference = first_difference(x, y, prefix, (*path, key))
        if difference is not None:
            return difference
    return None


def _node_text(structure: TreeDef) -> str:
    """The root of a structure as messages show it."""
    node = structure.node_data()
    if node is None:
        return "a leaf"
    kind, data = node
    if kind is type(None):
        return "None"
    count = len(structure.children())
    if kind in (dict, OrderedDict, defaultdict):
        keys = ", ".join([repr(key.key) for key in _child_keys(structure)])
        return f"{kind.__name__} with the keys {keys}" if keys else f"an empty {kind.__name__}"
    return f"{kind.__name__} of {count}"


def broadcast_prefix(prefix: PyTree, whole: TreeDef, what: str) -> list[Any]:
    """The leaf of the tree prefix `prefix` for each leaf of the structure `whole`; None is a leaf.

    Raises TreeError, which names the prefix `what`, if it is not a tree prefix.
    """
    leaves, structure = flatten(prefix, lambda x: x is None)
    difference = first_difference(structure, whole, prefix=True)
    if difference is not None:
        path, in_prefix, in_whole = difference.texts()
        at_path = f", at {path}" if path else ""
        raise TreeError(
            f"{what} must be a tree prefix; got {prefix!r}",
            f"for a tree of structure {whole}",
            f"which has {in_whole} where the prefix has {in_prefix}{at_path}",
        )
    return _repeat_leaves(leaves, _subtrees_at_leaves(structure, whole))


def _subtrees_at_leaves(prefix: TreeDef, whole: TreeDef) -> list[TreeDef]:
    """The subtree of `whole` at each leaf of its prefix."""
    if prefix == _ONE_LEAF:
        return [whole]
    pairs = zip(prefix.children(), whole.children(), strict=True)
    return [subtree for x, y in pairs for subtree in _subtrees_at_leaves(x, y)]


def _repeat_leaves(leaves: list[Any], subtrees: list[TreeDef]) -> list[Any]:
    """Each leaf as often as its subtree has leaves."""
    pairs = zip(leaves, subtrees, strict=True)
    return [x for x, subtree in pairs for _ in range(subtree.num_leaves)]


def flatten_with_nones(whole: TreeDef, tree: PyTree) -> list[Any] | StructureDifference:
    """The leaves of `tree` in the order of `whole`, with None for each leaf of a subtree that is None.

    Returns the first difference if the structures do not match.
    """
    leaves, structure = flatten(tree, lambda x: x is None)
    difference = first_difference(structure, whole, prefix=True)
    if difference is not None:
        return StructureDifference(difference.path, difference.given, difference.expected)
    subtrees = _subtrees_at_leaves(structure, whole)
    for i, (x, subtree) in enumerate(zip(leaves, subtrees, strict=True)):
        if x is not None and subtree != _ONE_LEAF and root_node_type(subtree) is not PRNGKeyNode:
            return StructureDifference(paths(structure)[i], subtree, _ONE_LEAF)
    return _repeat_leaves(leaves, subtrees)


def flatten_up_to(expected: TreeDef, tree: PyTree, what: str, like: str) -> list[Any]:
    """The subtrees of `tree` at the leaves of `expected`.

    Raises TreeError if `expected` is not a prefix of the structure of `tree`.
    """
    try:
        return expected.flatten_up_to(tree)  # type: ignore[no-any-return]
    except ValueError as error:
        failure = error
    check_same_structure(expected, structure(tree), what, like)
    raise failure


def check_same_structure(expected: TreeDef, given: TreeDef, what: str, like: str) -> None:
    """Raise TreeError, with the first difference, unless the structures are equal."""
    if expected != given:
        raise TreeError(
            f"{what} must have the structure of {like}; got {describe_difference(expected, given)}",
            *full_structures(expected, given),
        )


def full_structures(expected: TreeDef, given: TreeDef) -> list[str]:
    """Two lines that show the structures, for messages; none if a structure is large."""
    if max(expected.num_nodes, given.num_nodes) > _LARGEST_SHOWN:
        return []
    return [f"expected {expected}", f"got      {given}"]


_LARGEST_SHOWN = 20


def describe_difference(expected: TreeDef, given: TreeDef) -> str:
    """`a leaf for tuple of 2 at [1]['x']`: the first difference of `given` from `expected`."""
    difference = first_difference(expected, given)
    return str(difference) if difference else f"{given} for {expected}"
