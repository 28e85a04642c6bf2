"""Files of pytrees, such as the parameters and the state of an optimizer: `functx.tree.save` and `load`."""

from __future__ import annotations

import os
from io import BytesIO
from typing import IO, Any

import jax
import numpy as np

from functx.core import tree
from functx.core.errors import (
    ArgumentError,
    DTypeError,
    ExportError,
    ExportFileError,
    FunctxError,
    ShapeError,
    TreeError,
    type_name,
)
from functx.core.tracer import as_ndarray, aval_of
from functx.core.types import ShapedArray
from functx.core.typing import PyTree
from functx.export.files import (
    Archive,
    array_of_plain,
    aval_from_json,
    aval_to_json,
    load_archive,
    read_archive,
    save_archive,
    write_archive,
)
from functx.export.structures import (
    JSON,
    static_from_json,
    static_to_json,
    structure_from_json,
    structure_to_json,
)
from functx.numpy.input_output import host_array
from functx.ops.operands import PYTHON_SCALARS

SAVE, LOAD = "tree.save", "tree.load"


def save_pytree(file: str | os.PathLike[str] | IO[bytes], pytree: PyTree) -> None:
    """Writes the arrays and numbers of a pytree, and its structure where JSON can hold that."""
    leaves, structure = tree.flatten_with_key_data(pytree)
    paths = _paths(pytree)
    entries: list[JSON] = []
    arrays = []
    for path, x in zip(paths, leaves, strict=True):
        if type(x) in PYTHON_SCALARS:
            entries.append({"number": static_to_json(x, SAVE)})
            continue
        try:
            aval = aval_of(x)
        except ArgumentError as error:
            raise ArgumentError(
                f"{SAVE}: leaves must be arrays or numbers; got {type_name(x)} at tree{path}",
                fix=error.fix,
            ) from None
        array = host_array(SAVE, x)
        # Without 64-bit mode, arrays of NumPy are wider than their types.
        entries.append(
            {"array": aval_to_json(ShapedArray(aval.shape, array.dtype, aval.weak_type))}
        )
        arrays.append(array)
    try:
        described: JSON = {"structure": structure_to_json(structure, SAVE)}
    except ExportError as error:
        described = {"unregistered": error.problem}
    archive = Archive({"pytree": entries, "paths": paths, **described}, {}, {}, arrays)
    if isinstance(file, (str, os.PathLike)):
        save_archive(archive, file)
        return
    stream = BytesIO()
    write_archive(archive, stream)
    file.write(stream.getvalue())


def load_pytree(file: str | os.PathLike[str] | IO[bytes], like: PyTree = None) -> PyTree:
    """The pytree in a file; with `like`, whose structure, shapes and dtypes it must have, of its classes."""
    if isinstance(file, (str, os.PathLike)):
        archive = load_archive(file, "pytree")
    else:
        archive = read_archive(BytesIO(file.read()), getattr(file, "name", "the file"), "pytree")
    try:
        return _pytree_of_archive(archive, like)
    except FunctxError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ExportFileError(
            f"{LOAD}: the file must describe a pytree as this version of functx does; got "
            f"{type(error).__name__}: {error}",
            fix="Write it with functx.tree.save. functx.export.load reads exported programs, and "
            "functx.numpy.load other arrays.",
        ) from None


def _pytree_of_archive(archive: Archive, like: PyTree) -> PyTree:
    manifest = archive.manifest
    arrays = iter(archive.arrays)
    leaves = []
    for entry in manifest["pytree"]:
        ((kind, described),) = entry.items()
        if kind == "number":
            leaves.append(static_from_json(described))
            continue
        aval = aval_from_json(described)
        leaves.append(as_ndarray(array_of_plain(next(arrays), aval), aval.weak_type))
    if like is not None:
        return _in_structure_of(like, leaves, manifest["paths"])
    if "structure" not in manifest:
        raise ExportFileError(
            f"{LOAD}: without like=, a file must hold the structure of the pytree; got one of classes that "
            f"were not registered when it was saved: {manifest['unregistered']}",
            fix="Pass like=, a pytree of the same structure, such as a new state of the optimizer.",
        )
    structure = structure_from_json(manifest["structure"])
    if structure.num_leaves != len(leaves):
        raise ValueError(f"a structure of {structure.num_leaves} leaves for {len(leaves)}")
    return tree.unflatten(structure, leaves)


def _paths(pytree: PyTree) -> list[str]:
    """The path to each leaf, as `keystr` writes it."""
    return [tree.keystr(path) for path, _ in tree.leaves_with_path(pytree)]


def _in_structure_of(like: PyTree, leaves: list[Any], paths: list[str]) -> PyTree:
    """The pytree of the structure of `like` with these leaves, whose paths and types must be its own."""
    expected, structure = tree.flatten_with_key_data(like)
    wanted = _paths(like)
    if wanted != paths:
        missing = [path for path in wanted if path not in paths]
        added = [path for path in paths if path not in wanted]
        which = "; ".join(
            [
                f"{text} tree{found[0]}" + (f" and {len(found) - 1} more" if found[1:] else "")
                for text, found in (("the file lacks", missing), ("it has besides", added))
                if found
            ]
        )
        raise TreeError(
            f"{LOAD}: the file must hold a pytree of the structure of `like`; got {len(paths)} leaves for "
            f"{len(wanted)}" + (f": {which}" if which else ", in another order"),
            fix="Pass the pytree that was saved, or one like it; without like=, the file is read as it is.",
        )
    return tree.unflatten(
        structure,
        [_like(x, leaf, path) for x, leaf, path in zip(expected, leaves, paths, strict=True)],
    )


def _like(expected: Any, found: Any, path: str) -> Any:
    """The leaf `found`, whose type must be that of `expected`; on its devices, if that is a `jax.Array`."""
    if type(expected) in PYTHON_SCALARS and type(found) in PYTHON_SCALARS:
        return found
    shapes = np.shape(expected), np.shape(found)
    dtypes = [getattr(x, "dtype", None) or np.result_type(x) for x in (expected, found)]
    place = f"{LOAD}: the array at tree{path} must be that of `like`"
    if shapes[0] != shapes[1]:
        raise ShapeError(f"{place}, of shape {shapes[0]}; got one of shape {shapes[1]}")
    if dtypes[0] != dtypes[1]:
        raise DTypeError(f"{place}, of {dtypes[0]}; got one of {dtypes[1]}")
    if isinstance(expected, jax.Array) and not isinstance(expected, np.ndarray):
        return jax.device_put(np.asarray(found), getattr(expected, "sharding", None))
    return found
