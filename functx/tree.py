"""Pytrees, by the names of `jax.tree`; `functx.tree_util` registers node classes."""

from __future__ import annotations

import os
from typing import IO

from jax.tree import reduce_associative, static

from functx.core.argument_errors import explain_errors as _explain_errors
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
from functx.core.typing import PyTree

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
    "load",
    "map",
    "map_with_path",
    "reduce",
    "reduce_associative",
    "save",
    "static",
    "structure",
    "transpose",
    "treedef_tuple",
    "unflatten",
]


def save(file: str | os.PathLike[str] | IO[bytes], tree: PyTree) -> None:
    """Writes a pytree of arrays and numbers to a file, such as a checkpoint of a training run.

    The file is there as a whole or not at all. It ends in a checksum, and `numpy.load` opens it too. The
    structure is saved for tuples, lists, dictionaries, None, typed keys and classes that are registered
    with `functx.export.register_pytree_node_serialization` and its like; for other classes, such as the
    states of optax, `load` needs a pytree like the one that was saved.

    Raises ArgumentError for a leaf that is neither an array nor a number, and ForeignCodeError for one
    that is traced.

    >>> import io, functx, functx.numpy as np
    >>> file = io.BytesIO()
    >>> functx.tree.save(file, {"w": np.ones(2), "step": 3})
    >>> _ = file.seek(0)
    >>> functx.tree.load(file)
    {'step': 3, 'w': array([1., 1.], dtype=float32)}
    """
    from functx.export.checkpoints import save_pytree

    save_pytree(file, tree)


def load(file: str | os.PathLike[str] | IO[bytes], like: PyTree = None) -> PyTree:
    """The pytree that `save` wrote to a file, with arrays in host memory. Nothing of the file is executed.

    With `like`, its structure, shapes and dtypes must be those of that pytree, whose classes it gets;
    where `like` has a `jax.Array`, the result has one on the same devices.

    Raises ExportFileError for a file that is altered, or no such file, and TreeError, ShapeError or
    DTypeError where it differs from `like`, with the path of the leaf.
    """
    from functx.export.checkpoints import load_pytree

    return load_pytree(file, like)


_explain_errors(__name__)
