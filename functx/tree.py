"""Pytrees, by the names of `jax.tree`; `functx.tree_util` registers node classes."""

import os as _os
from typing import IO as _IO

from jax.tree import reduce_associative as reduce_associative
from jax.tree import static as static

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.tree import Partial as Partial
from functx.core.tree import TreeDef as TreeDef
from functx.core.tree import all as all
from functx.core.tree import broadcast as broadcast
from functx.core.tree import broadcast_prefix as broadcast_prefix
from functx.core.tree import flatten as flatten
from functx.core.tree import flatten_with_path as flatten_with_path
from functx.core.tree import keystr as keystr
from functx.core.tree import leaves as leaves
from functx.core.tree import leaves_with_path as leaves_with_path
from functx.core.tree import map as map
from functx.core.tree import map_with_path as map_with_path
from functx.core.tree import reduce as reduce
from functx.core.tree import structure as structure
from functx.core.tree import transpose as transpose
from functx.core.tree import treedef_tuple as treedef_tuple
from functx.core.tree import unflatten as unflatten
from functx.core.typing import PyTree as _PyTree


def save(file: str | _os.PathLike[str] | _IO[bytes], tree: _PyTree) -> None:
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


def load(file: str | _os.PathLike[str] | _IO[bytes], like: _PyTree = None) -> _PyTree:
    """The pytree that `save` wrote to a file, with arrays in host memory. Nothing of the file is executed.

    With `like`, its structure, shapes and dtypes must be those of that pytree, whose classes it gets;
    where `like` has a `jax.Array`, the result has one on the same devices.

    Raises ExportFileError for a file that is altered, or no such file, and TreeError, ShapeError or
    DTypeError where it differs from `like`, with the path of the leaf.
    """
    from functx.export.checkpoints import load_pytree

    return load_pytree(file, like)


__all__ = _explain_errors(__name__)
