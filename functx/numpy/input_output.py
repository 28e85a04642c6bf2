"""Arrays from and to files, bytes, texts and other libraries, and the text of arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import IO, Any

import jax
import ml_dtypes
import numpy as np
from numpy import get_printoptions, printoptions, set_printoptions

from functx.core.errors import (
    ArgumentError,
    ConcretizationError,
    ForeignCodeError,
    ValueRangeError,
    type_name,
)
from functx.core.tracer import Tracer, as_ndarray, as_numpy_array, aval_of
from functx.core.tracer import ndarray as functx_ndarray
from functx.core.types import canonical_dtype
from functx.core.typing import ArrayOrList, DTypeLike, NumPyArray, Value
from functx.numpy.array_creation import FLOAT, array, asarray
from functx.numpy.devices import on_device
from functx.numpy.promotion import operand

__all__ = [
    "array_repr",
    "array_str",
    "from_dlpack",
    "frombuffer",
    "fromfile",
    "fromiter",
    "fromstring",
    "get_printoptions",
    "iterable",
    "load",
    "printoptions",
    "save",
    "savez",
    "set_printoptions",
]


def host_array(name: str, x: ArrayOrList) -> NumPyArray:
    """The value of `x` as an array of NumPy; ForeignCodeError, which names the function, for a traced one."""
    x = operand(x)
    try:
        return np.asarray(as_numpy_array(x.detach() if isinstance(x, Tracer) else x))
    except (ConcretizationError, ForeignCodeError) as error:
        raise ForeignCodeError(
            f"{name}: it needs the value of an array; got {aval_of(x)!r}, which is traced",
            fix="Call it outside of the transform on what the function returns, or inside it through "
            "functx.io_callback.",
        ) from error


def save(
    file: IO[bytes] | str | os.PathLike[str], arr: ArrayOrList, allow_pickle: bool = True
) -> None:
    """Writes an array to a file with the ending `.npy`.

    `load` reads it, and `numpy.load`, for which bfloat16 is two bytes without a type.
    """
    np.save(file, host_array("save", arr), allow_pickle=allow_pickle)


def savez(
    file: IO[bytes] | str | os.PathLike[str],
    *args: ArrayOrList,
    allow_pickle: bool = True,
    **kwds: ArrayOrList,
) -> None:
    """Writes arrays to a file with the ending `.npz`, with the names of the keywords, or `arr_0`, ...."""
    np.savez(
        file,
        *[host_array("savez", x) for x in args],
        allow_pickle=allow_pickle,
        **{name: host_array("savez", x) for name, x in kwds.items()},
    )


def load(file: IO[bytes] | str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
    """The array in a file that `save` wrote; of a file that `savez` wrote, NumPy's mapping of arrays.

    The options are those of `numpy.load`, which executes nothing of the file unless `allow_pickle`.

    >>> import io, functx.numpy as np
    >>> file = io.BytesIO()
    >>> np.save(file, np.arange(3))
    >>> _ = file.seek(0)
    >>> np.load(file)
    array([0, 1, 2], dtype=int32)
    """
    out = np.load(file, *args, **kwargs)
    if not isinstance(out, np.ndarray):
        return out
    if out.dtype == "V2":
        out = out.view(ml_dtypes.bfloat16)
    return asarray(out)


def frombuffer(
    buffer: bytes | Any, dtype: DTypeLike = float, count: int = -1, offset: int = 0
) -> Value:
    """`count` numbers in memory, such as bytes, from the byte `offset` on; on that memory, if their dtype is kept."""
    memory = host_array("frombuffer", buffer) if isinstance(buffer, Tracer) else buffer
    return asarray(np.frombuffer(memory, np.dtype(dtype), count, offset))


def fromfile(
    file: IO[bytes] | str | os.PathLike[str],
    dtype: DTypeLike = float,
    count: int = -1,
    sep: str = "",
    offset: int = 0,
) -> Value:
    """The numbers in a file of bytes, or with `sep` in a text."""
    return array(np.fromfile(file, np.dtype(dtype), count, sep, offset))


def fromiter(iter: Iterable[Any], dtype: DTypeLike = float, count: int = -1) -> Value:
    """The numbers that an iterable yields, or the first `count`."""
    return array(np.fromiter(iter, np.dtype(dtype), count))


def fromstring(string: str, dtype: DTypeLike = float, count: int = -1, *, sep: str) -> Value:
    """The numbers in a text, with `sep` between them."""
    return array(np.fromstring(string, canonical_dtype(dtype or FLOAT), count, sep=sep))


def from_dlpack(x: object, /, *, device: object = None, copy: bool | None = None) -> Value:
    """An array of another library, such as a tensor of PyTorch, on its memory unless `copy`.

    An array in host memory becomes an `ndarray`; one of a device, or of a dtype that NumPy lacks, such as
    bfloat16, a `jax.Array`.

    Raises ArgumentError for what is no array, and BufferError where a copy would be needed and `copy` is
    False.

    >>> import numpy, functx.numpy as np
    >>> np.from_dlpack(numpy.ones(2, numpy.float32))
    array([1., 1.], dtype=float32)
    """
    if isinstance(x, (Tracer, jax.Array)):
        return on_device(array(x) if copy else x, device)  # type: ignore[arg-type]
    if not hasattr(x, "__dlpack__"):
        raise ArgumentError(
            f"from_dlpack: the array must have a method __dlpack__; got {type_name(x)}",
            fix="Convert lists and numbers with asarray.",
        )
    try:
        found = as_ndarray(np.from_dlpack(x, copy=copy))
    except (BufferError, RuntimeError, TypeError):
        found = jax.dlpack.from_dlpack(x, copy=copy)
    placed = on_device(found, device)
    if copy is False and isinstance(found, np.ndarray) is not isinstance(placed, np.ndarray):
        raise ValueRangeError(
            f"from_dlpack: with copy=False the memory must be shared; got {type_name(x)} for {device}"
        )
    return placed


def _to_dlpack(
    self: functx_ndarray,
    *,
    stream: object = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> object:
    """The array as a capsule of DLPack; for a dtype that NumPy lacks there, a copy."""
    options: Any = {"stream": stream, "max_version": max_version, "dl_device": dl_device}
    try:
        return np.ndarray.__dlpack__(as_numpy_array(self), copy=copy, **options)
    except BufferError:
        if copy is False or self.dtype.kind in "biufc":
            raise
        return jax.device_put(as_numpy_array(self)).__dlpack__(**options)


functx_ndarray.__dlpack__ = _to_dlpack  # type: ignore[method-assign, assignment]


def array_repr(
    arr: ArrayOrList,
    max_line_width: int | None = None,
    precision: int | None = None,
    suppress_small: bool | None = None,
) -> str:
    """The text of an array as `repr` gives it; of a traced one, its type."""
    if type(arr) is Tracer:
        return repr(arr)
    return np.array_repr(host_array("array_repr", arr), max_line_width, precision, suppress_small)


def array_str(
    a: ArrayOrList,
    max_line_width: int | None = None,
    precision: int | None = None,
    suppress_small: bool | None = None,
) -> str:
    """The text of an array as `str` gives it; of a traced one, its type."""
    if type(a) is Tracer:
        return str(a)
    return np.array_str(host_array("array_str", a), max_line_width, precision, suppress_small)


def iterable(y: object) -> bool:
    """Whether `y` can be iterated over: an array without dimensions cannot."""
    ndim = getattr(y, "ndim", None)
    return np.iterable(y) if not isinstance(ndim, int) else ndim > 0
