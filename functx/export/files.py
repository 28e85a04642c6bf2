"""The file of an exported program or a pytree: a zip archive of texts and arrays that ends in its checksum.

    manifest.json        versions, names, types and structures
    program.txt          the printed program
    rules/0/1.txt        the program 1 of rule 0 of a derivative
    arrays/0.npy         a captured array, of its own dtype or as unsigned integers of its bits
    stablehlo/cpu.mlirbc the StableHLO module for a platform

The comment of the archive, which ends the file, is `functx export, format 1, sha256` and 64 digits, the
SHA-256 of all bytes before these digits. `numpy.load` opens the file too. Nothing in it is code of Python.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np

from functx.core.errors import ArgumentError, ExportFileError, type_name
from functx.core.types import DTYPES_BY_SHORT_NAME, SHORT_NAMES, ShapedArray
from functx.core.typing import NumPyArray
from functx.export.structures import JSON

FORMAT = 1
"""The version of the format that this module writes, the newest that it reads."""

_TRAILER = f"functx export, format {FORMAT}, sha256 "
_ANY_TRAILER = re.compile(rb"functx export, format (\d{1,9}), sha256 ([0-9a-f]{64})\Z")
_SAVED = {"program": "an exported program", "pytree": "a pytree"}
_DIGEST_LENGTH = 64
_CHUNK = 1 << 20


class Archive(NamedTuple):
    """The contents of a file: a manifest, texts and binary data by name, and arrays."""

    manifest: JSON
    texts: Mapping[str, str]
    data: Mapping[str, bytes]
    arrays: Sequence[NumPyArray]


def save_archive(archive: Archive, path: str | os.PathLike[str]) -> None:
    """Writes the file, which is there as a whole or not at all: it is written under another name first."""
    target = check_path("save", path)
    temporary = target.with_name(f".{target.name}.{token_hex(8)}")
    try:
        with open(temporary, "x+b") as file:
            write_archive(archive, file)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_path(label: str, path: object) -> Path:
    """The path of a file; ArgumentError for anything else."""
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(f"{label}: the file must be given by its path; got {type_name(path)}")
    return Path(path)


def archive_to_bytes(archive: Archive) -> bytes:
    """The bytes of the file."""
    file = BytesIO()
    write_archive(archive, file)
    return file.getvalue()


def write_archive(archive: Archive, file: IO[bytes]) -> None:
    """Writes the archive to an empty file that can be read and sought. Equal archives give equal bytes."""
    with ZipFile(file, "w") as zipped:

        def add(name: str, data: bytes, compression: int = ZIP_DEFLATED) -> None:
            zipped.writestr(_entry(name, compression), data)

        add("manifest.json", json.dumps(archive.manifest, indent=1, allow_nan=False).encode())
        for name, text in archive.texts.items():
            add(f"{name}.txt", text.encode())
        for name, data in archive.data.items():
            add(name, data)
        for i, array in enumerate(archive.arrays):
            with zipped.open(_entry(f"arrays/{i}.npy", ZIP_STORED), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, _as_plain(array), allow_pickle=False)
        zipped.comment = _TRAILER.encode() + b"0" * _DIGEST_LENGTH
    size = file.seek(0, os.SEEK_END)
    digest = _digest(file, size - _DIGEST_LENGTH)
    file.seek(size - _DIGEST_LENGTH)
    file.write(digest)


def _entry(name: str, compression: int) -> ZipInfo:
    entry = ZipInfo(name)
    entry.compress_type = compression
    entry.external_attr = 0o644 << 16
    return entry


def _digest(file: IO[bytes], size: int) -> bytes:
    """The SHA-256 of the first `size` bytes, as hexadecimal digits."""
    found = hashlib.sha256()
    file.seek(0)
    while size > 0:
        chunk = file.read(min(size, _CHUNK))
        if not chunk:
            break
        found.update(chunk)
        size -= len(chunk)
    return found.hexdigest().encode()


def load_archive(path: str | os.PathLike[str], what: str = "program") -> Archive:
    """The contents of a file; ExportFileError, which names `what` it holds, unless it is whole."""
    with open(check_path("load", path), "rb") as file:
        return read_archive(file, os.fspath(path), what)


def archive_of_bytes(data: bytes) -> Archive:
    """The contents of the bytes of a file."""
    return read_archive(BytesIO(data), "the serialized program")


def read_archive(file: IO[bytes], name: str, what: str = "program") -> Archive:
    """The contents of a file called `name` in messages, which say `what` it holds."""
    _check_whole(file, name, what)
    try:
        with ZipFile(file) as zipped:
            manifest = json.loads(zipped.read("manifest.json"))
            texts, data, arrays = {}, {}, {}
            for entry in zipped.namelist():
                if entry.startswith("arrays/"):
                    with zipped.open(entry) as opened:
                        number = int(entry.removeprefix("arrays/").removesuffix(".npy"))
                        arrays[number] = np.lib.format.read_array(opened, allow_pickle=False)
                elif entry.endswith(".txt"):
                    texts[entry.removesuffix(".txt")] = zipped.read(entry).decode()
                elif entry != "manifest.json":
                    data[entry] = zipped.read(entry)
            return Archive(manifest, texts, data, [arrays[i] for i in range(len(arrays))])
    except (
        BadZipFile,
        KeyError,
        ValueError,
        EOFError,
        NotImplementedError,
        RecursionError,
    ) as error:
        raise ExportFileError(
            f"load: the file of a saved {what} must have the parts of format {FORMAT}; got {name}, in "
            f"which {error}",
            fix=f"Save the {what} again.",
        ) from None


def _check_whole(file: IO[bytes], name: str, what: str) -> None:
    """Raises ExportFileError unless the file ends in its format and the checksum of all else."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - 128, 0))
    found = _ANY_TRAILER.search(file.read())
    file.seek(0)
    if found is None:
        is_archive = file.read(4) == b"PK\x03\x04"
        state = "its end is missing or altered" if is_archive else "it is no such file"
        raise ExportFileError(
            f"load: the file must be one that {_SAVED[what]} was saved to; got {name}, but {state}",
            fix=f"Save the {what} again, or copy the whole file.",
        )
    version = int(found[1])
    if not 1 <= version <= FORMAT:
        raise ExportFileError(
            f"load: the format of a saved {what} must be at most {FORMAT}; got format {version} in "
            f"{name}",
            fix=f"Update functx, or save the {what} with this version.",
        )
    if _digest(file, size - _DIGEST_LENGTH) != found[2]:
        raise ExportFileError(
            f"load: the file of a saved {what} must have the checksum that it ends in; got {name}, "
            "which was altered after it was saved",
            fix=f"Save the {what} again, or copy the file again.",
        )


def _as_plain(array: NumPyArray) -> NumPyArray:
    """An array as `.npy` files hold it: of a dtype of NumPy, else the bits as unsigned integers."""
    array = np.asarray(array, order="C")
    if array.dtype.kind in "biufc" and array.dtype.isbuiltin == 1:
        return array
    return array.view(f"uint{array.dtype.itemsize * 8}")


def array_of_plain(array: NumPyArray, aval: ShapedArray) -> NumPyArray:
    """The array of `aval` that was saved as `array`; ExportFileError if that has another type."""
    plain = _as_plain(np.empty((0,), aval.dtype)).dtype
    if array.shape != aval.shape or array.dtype != plain:
        raise ExportFileError(
            f"load: a saved array must have the type that the file states, {aval!r}; got "
            f"{array.dtype}{list(array.shape)}"
        )
    return array if plain == aval.dtype else array.view(aval.dtype)


def aval_to_json(aval: ShapedArray) -> JSON:
    """The JSON of a type."""
    return [SHORT_NAMES[aval.dtype], list(aval.shape), aval.weak_type]


def aval_from_json(value: Any) -> ShapedArray:
    """The type of its JSON."""
    dtype, shape, weak = value
    if not all(type(n) is int and n >= 0 for n in shape) or type(weak) is not bool:
        raise ValueError(f"no type: {value}")
    return ShapedArray(tuple(shape), DTYPES_BY_SHORT_NAME[dtype], weak)
