"""Pytrees, through `jax.tree_util`: every type registered there, None and dataclasses included."""

from __future__ import annotations

from typing import Any

from jax import tree_util

from functx.core.errors import TreeError

_flatten: Any = tree_util.tree_flatten
unflatten: Any = tree_util.tree_unflatten
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
path_text = tree_util.keystr
Partial = tree_util.Partial
TreeDef = Any


def flatten(tree: Any, is_leaf: Any = None) -> tuple[list[Any], TreeDef]:
    """The leaves of a pytree, and its structure.

    Raises TreeError for a dictionary whose keys have no order.
    """
    try:
        return _flatten(tree, is_leaf)  # type: ignore[no-any-return]
    except ValueError as error:
        _refuse_unsortable(tree)
        raise error


def _refuse_unsortable(tree: Any) -> None:
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


def flatten_prefix(prefix: Any, tree: Any, what: str) -> list[Any]:
    """One leaf of `prefix` for each leaf of `tree`; None counts as a leaf of the prefix.

    Raises TreeError, which calls the prefix `what`, when it is not a tree prefix.
    """
    result: list[Any] = []

    def repeat(leaf: Any, subtree: Any) -> None:
        result.extend([leaf] * structure(subtree).num_leaves)

    try:
        map(repeat, prefix, tree, is_leaf=lambda x: x is None)
    except (ValueError, TypeError) as error:
        raise TreeError(
            f"{what} must be a tree prefix; got {prefix!r}",
            f"for a tree of structure {structure(tree)}",
            f"because {str(error).splitlines()[0]}",
        ) from None
    return result


def flatten_as(expected: TreeDef, tree: Any, what: str, like: str) -> list[Any]:
    """What `tree` has in place of the leaves of `expected`, None where it has None.

    Raises TreeError if it has another structure.
    """
    try:
        return expected.flatten_up_to(tree)
    except ValueError as error:
        failure = error
    check_same_structure(expected, structure(tree), what, like)
    raise failure


def check_same_structure(expected: TreeDef, given: TreeDef, what: str, like: str) -> None:
    """Raise TreeError unless the structures agree."""
    if expected != given:
        raise TreeError(
            f"{what} must have the structure of {like}; got another one",
            f"expected {expected}",
            f"got      {given}",
        )
