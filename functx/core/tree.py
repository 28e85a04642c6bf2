"""Pytrees, through `jax.tree_util`: every type registered there, None and dataclasses included."""

from __future__ import annotations

import builtins
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from jax import tree_util

from functx.core.errors import TreeError

_flatten: Any = tree_util.tree_flatten
structure: Any = tree_util.tree_structure
leaves: Any = tree_util.tree_leaves
map = tree_util.tree_map
map_with_path = tree_util.tree_map_with_path
transpose = tree_util.tree_transpose
broadcast = tree_util.tree_broadcast
all = tree_util.tree_all
reduce = tree_util.tree_reduce
leaves_with_path = tree_util.tree_leaves_with_path
flatten_with_path = tree_util.tree_flatten_with_path
keystr: Any = tree_util.keystr
treedef_tuple = tree_util.treedef_tuple
Partial = tree_util.Partial
TreeDef = Any


def flatten(tree: Any, is_leaf: Any = None) -> tuple[list[Any], TreeDef]:
    """The leaves of a pytree, and its structure.

    Raises TreeError for a dictionary whose keys have no order.
    """
    try:
        return _flatten(tree, is_leaf)  # type: ignore[no-any-return]
    except ValueError as error:
        _check_sortable_keys(tree)
        raise error


def _check_sortable_keys(tree: Any) -> None:
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


def unflatten(structure: TreeDef | TreeDefWithStatic, leaves: Any) -> Any:
    """The pytree of a structure with these leaves."""
    return structure.unflatten(leaves)


class TreeDefWithStatic(NamedTuple):
    """A structure of which some leaves are fixed: they are no arrays, and are not traced."""

    structure: TreeDef
    static_leaves: dict[int, Any]

    @property
    def num_leaves(self) -> int:
        """The number of leaves that are not fixed."""
        return int(self.structure.num_leaves) - len(self.static_leaves)

    def unflatten(self, leaves: Any) -> Any:
        """The pytree with `leaves` in the places that are not fixed."""
        return self.structure.unflatten(self.merge_static(leaves))

    def merge_static(self, leaves: Any) -> list[Any]:
        """All leaves in their order, where `leaves` are those that are not fixed."""
        rest = iter(leaves)
        places = range(self.structure.num_leaves)
        return [self.static_leaves[i] if i in self.static_leaves else next(rest) for i in places]

    def children(self) -> list[TreeDef]:
        """The structures of the children of the outermost node, fixed leaves included."""
        return self.structure.children()  # type: ignore[no-any-return]


def treedef_with_static(structure: TreeDef, fixed: dict[int, Any]) -> TreeDef | TreeDefWithStatic:
    """`structure` with the leaves at the keys of `fixed` given, if there are any."""
    return TreeDefWithStatic(structure, fixed) if fixed else structure


class PRNGKeyNode:
    """A pytree node for JAX's typed PRNG keys, whose one leaf is the array of their words.

    Rebuilt from another leaf than words, such as an axis or None, the node gives that leaf.
    """

    typed_key_array: Callable[[Any, Any], Any]
    """The typed keys of some words, of a dtype of JAX's."""
    key_data: Callable[[Any], Any]
    """The words of typed keys; anything else as it is."""

    def __init__(self, dtype: Any):
        self.dtype = dtype


tree_util.register_pytree_node(
    PRNGKeyNode,
    lambda keys: ((0,), keys.dtype),
    lambda dtype, words: PRNGKeyNode.typed_key_array(words[0], dtype),
)


def flatten_with_key_data(tree: Any) -> tuple[list[Any], TreeDef]:
    """As `flatten`, with the words of typed keys for their leaves; the structure makes keys of them."""
    return keys_to_key_data(*flatten(tree))


def keys_to_key_data(leaves: list[Any], structure: TreeDef) -> tuple[list[Any], TreeDef]:
    """Leaves and a structure, with the words of typed keys for those keys."""
    if not _keyless_types.issuperset(builtins.map(type, leaves)):
        words = [PRNGKeyNode.key_data(x) for x in leaves]
        pairs = enumerate(zip(leaves, words, strict=True))
        places = tuple([(i, x.dtype) for i, (x, each) in pairs if each is not x])
        if places:
            return words, _insert_key_nodes(structure, places)
        _keyless_types.update([type(x) for x in leaves if type(x).__module__ in _CONCRETE])
    return leaves, structure


_keyless_types: set[type] = set()
_CONCRETE = frozenset(["builtins", "numpy", "jaxlib._jax", "functx.numpy"])
"""The modules of types that are never those of typed keys."""


@lru_cache(4096)
def _insert_key_nodes(structure: TreeDef, places: tuple[tuple[int, Any], ...]) -> TreeDef:
    """`structure` with keys of a dtype in place of the leaves at some places."""
    node = structure.node_data()
    if node is None:
        return tree_util.tree_structure(PRNGKeyNode(places[0][1]))
    children, start = [], 0
    for child in structure.children():
        end = start + child.num_leaves
        inside = tuple([(i - start, dtype) for i, dtype in places if start <= i < end])
        children.append(_insert_key_nodes(child, inside) if inside else child)
        start = end
    registry = tree_util.default_registry
    return tree_util.PyTreeDef.from_node_data_and_children(registry, node, children)


def key_leaves(structure: TreeDef | TreeDefWithStatic) -> tuple[bool, ...]:
    """Which leaves of a structure are words of typed keys."""
    if isinstance(structure, TreeDefWithStatic):
        every = key_leaves(structure.structure)
        return tuple([on for i, on in enumerate(every) if i not in structure.static_leaves])
    return _key_leaves(structure)


@lru_cache(4096)
def _key_leaves(structure: TreeDef) -> tuple[bool, ...]:
    node = structure.node_data()
    if node is None or node[0] is PRNGKeyNode:
        return (node is not None,)
    return tuple([on for child in structure.children() for on in _key_leaves(child)])


_BUILT_IN = frozenset(
    [tuple, list, dict, OrderedDict, defaultdict, type(None), Partial, PRNGKeyNode]
)
_ONE_LEAF = structure(0)


def _is_user_node(kind: type) -> bool:
    """Whether nodes of the class `kind` are made by code of the user's."""
    return kind not in _BUILT_IN and not (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def root_node_type(structure: TreeDef) -> type | None:
    """The class of the outermost node of a structure, None for a leaf."""
    node = structure.node_data()
    return None if node is None else node[0]


def leaves_in_user_nodes(structure: TreeDef | TreeDefWithStatic) -> tuple[bool, ...]:
    """Which leaves of a structure lie in nodes that code of the user's makes."""
    if isinstance(structure, TreeDefWithStatic):
        every = leaves_in_user_nodes(structure.structure)
        return tuple([on for i, on in enumerate(every) if i not in structure.static_leaves])
    return _leaves_in_user_nodes(structure)


@lru_cache(4096)
def _leaves_in_user_nodes(structure: TreeDef) -> tuple[bool, ...]:
    node = structure.node_data()
    if node is None:
        return (False,)
    if _is_user_node(node[0]):
        return (True,) * structure.num_leaves
    return tuple([on for child in structure.children() for on in _leaves_in_user_nodes(child)])


def paths(structure: TreeDef | TreeDefWithStatic) -> list[tuple[Any, ...]]:
    """The path of each leaf, found without an instance: children of users' nodes are numbered."""
    if isinstance(structure, TreeDefWithStatic):
        every = paths(structure.structure)
        return [path for i, path in enumerate(every) if i not in structure.static_leaves]
    if structure == _ONE_LEAF or root_node_type(structure) is PRNGKeyNode:
        return [()]
    pairs = zip(_child_keys(structure), structure.children(), strict=True)
    return [(key, *path) for key, child in pairs for path in paths(child)]


def _child_keys(structure: TreeDef) -> list[Any]:
    """The keys of the children of the outermost node."""
    kind, data = structure.node_data()
    names = {dict: data, OrderedDict: data}.get(kind)
    if kind is defaultdict:
        names = data[1]
    if names is not None:
        return [tree_util.DictKey(name) for name in names]
    if kind in (tuple, list):
        return [tree_util.SequenceKey(i) for i in range(len(structure.children()))]
    if not _is_user_node(kind) and issubclass(kind, tuple):
        return [tree_util.GetAttrKey(name) for name in kind._fields]  # type: ignore[attr-defined]
    return [tree_util.FlattenedIndexKey(i) for i in range(len(structure.children()))]


def call_treedef(*arguments: TreeDef) -> TreeDef:
    """The structure of the arguments of a call, positional ones of these structures."""
    return treedef_tuple([treedef_tuple(arguments), structure({})])


class StructureDifference(NamedTuple):
    """The first place at which two structures differ, and the subtrees there."""

    path: tuple[Any, ...]
    expected: TreeDef
    given: TreeDef

    def __str__(self) -> str:
        path, mine, other = self.texts()
        return f"{other} for {mine}" + (f" at {path}" if path else "")

    def texts(self) -> tuple[str, str, str]:
        """The path, and both parts, as messages show them."""
        parts = [_node_text(x) for x in (self.expected, self.given)]
        if parts[0] == parts[1]:
            parts = [str(x) for x in (self.expected, self.given)]
        return keystr(self.path), parts[0], parts[1]


def first_difference(
    expected: TreeDef, given: TreeDef, prefix: bool = False, path: tuple[Any, ...] = ()
) -> StructureDifference | None:
    """Where two structures first differ, None if nowhere.

    With `prefix`, a leaf of `expected` stands for anything.
    """
    if expected == given or (prefix and expected == _ONE_LEAF):
        return None
    first, second = expected.node_data(), given.node_data()
    parts, others = expected.children(), given.children()
    if first is None or second is None or first != second or len(parts) != len(others):
        return StructureDifference(path, expected, given)
    for key, part, other in zip(_child_keys(expected), parts, others, strict=True):
        found = first_difference(part, other, prefix, (*path, key))
        if found is not None:
            return found
    return None


def _node_text(structure: TreeDef) -> str:
    """The outermost node, in words."""
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


def broadcast_prefix(prefix: Any, whole: TreeDef, what: str) -> list[Any]:
    """One leaf of `prefix` for each leaf of the structure `whole`; None is a leaf of the prefix.

    Raises TreeError, which calls the prefix `what`, when it is not a tree prefix.
    """
    found, given = flatten(prefix, lambda x: x is None)
    difference = first_difference(given, whole, prefix=True)
    if difference is not None:
        path, mine, other = difference.texts()
        raise TreeError(
            f"{what} must be a tree prefix; got {prefix!r}",
            f"for a tree of structure {whole}",
            f"which has {other} where the prefix has {mine}" + (f", at {path}" if path else ""),
        )
    parts = _subtrees_at_leaves(given, whole)
    return [x for x, part in zip(found, parts, strict=True) for _ in range(part.num_leaves)]


def _subtrees_at_leaves(prefix: TreeDef, whole: TreeDef) -> list[TreeDef]:
    """The part of `whole` at each leaf of its prefix."""
    if prefix == _ONE_LEAF:
        return [whole]
    pairs = zip(prefix.children(), whole.children(), strict=True)
    return [below for part, other in pairs for below in _subtrees_at_leaves(part, other)]


def flatten_with_nones(whole: TreeDef, tree: Any) -> list[Any] | StructureDifference:
    """The leaves of `tree` in the order of `whole`; a part that is None gives None for each leaf.

    If the structures do not match, the first difference instead.
    """
    found, given = flatten(tree, lambda x: x is None)
    difference = first_difference(given, whole, prefix=True)
    if difference is not None:
        return StructureDifference(difference.path, difference.given, difference.expected)
    parts = _subtrees_at_leaves(given, whole)
    for i, (x, part) in enumerate(zip(found, parts, strict=True)):
        if x is not None and part != _ONE_LEAF and root_node_type(part) is not PRNGKeyNode:
            return StructureDifference(paths(given)[i], part, _ONE_LEAF)
    return [x for x, part in zip(found, parts, strict=True) for _ in range(part.num_leaves)]


def flatten_up_to(expected: TreeDef, tree: Any, what: str, like: str) -> list[Any]:
    """What `tree` has in place of the leaves of `expected`, None where it has None.

    Raises TreeError if it has another structure.
    """
    try:
        return expected.flatten_up_to(tree)  # type: ignore[no-any-return]
    except ValueError as error:
        failure = error
    check_same_structure(expected, structure(tree), what, like)
    raise failure


def check_same_structure(expected: TreeDef, given: TreeDef, what: str, like: str) -> None:
    """Raise TreeError, which names the first place where they differ, unless structures agree."""
    if expected != given:
        raise TreeError(
            f"{what} must have the structure of {like}; got {describe_difference(expected, given)}",
            *full_structures(expected, given),
        )


def full_structures(expected: TreeDef, given: TreeDef) -> list[str]:
    """Lines that show two structures, if they are small; else the place where they differ says more."""
    if max(expected.num_nodes, given.num_nodes) > _LARGEST_SHOWN:
        return []
    return [f"expected {expected}", f"got      {given}"]


_LARGEST_SHOWN = 20


def describe_difference(expected: TreeDef, given: TreeDef) -> str:
    """`a leaf for tuple of 2 at [1]['x']`: how a structure first differs from the one expected."""
    difference = first_difference(expected, given)
    return str(difference) if difference else f"{given} for {expected}"
