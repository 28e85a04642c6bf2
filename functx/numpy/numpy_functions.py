"""Functions of NumPy that `jax.numpy` lacks, for `numpy.common_type(x)` and its like on arrays of functx."""

from __future__ import annotations

import os
from typing import IO, Any

import numpy as np

from functx.core.errors import ForeignCodeError
from functx.core.memory_layouts import memory_location, record_layout_dependence
from functx.core.tracer import Tracer, aval_of
from functx.core.types import is_complex
from functx.core.typing import ArrayOrList, Value
from functx.numpy import floating_point
from functx.numpy.array_creation import asarray
from functx.numpy.input_output import array_str, host_array

__all__ = [
    "array2string",
    "common_type",
    "may_share_memory",
    "min_scalar_type",
    "real_if_close",
    "savetxt",
    "savez_compressed",
    "shares_memory",
]


def array2string(a: ArrayOrList, *args: Any, **options: Any) -> str:
    """The text of an array with NumPy's options; of a traced one, its type."""
    if type(a) is Tracer:
        return array_str(a)
    return np.array2string(host_array("array2string", a), *args, **options)


def common_type(*arrays: ArrayOrList) -> type[np.generic]:
    """The inexact type of NumPy that holds the elements of all arrays."""
    return np.common_type(*[np.empty(0, aval_of(x).dtype) for x in arrays])


def min_scalar_type(a: ArrayOrList) -> np.dtype[Any]:
    """The dtype of an array with dimensions; the smallest one that holds a number."""
    aval = aval_of(a)
    return (
        np.dtype(aval.dtype) if aval.ndim else np.min_scalar_type(host_array("min_scalar_type", a))
    )


def real_if_close(a: ArrayOrList, tol: float = 100) -> Value:
    """`a`, as real numbers if all imaginary parts are nearly 0, which must be known while tracing."""
    a = asarray(a)
    if not is_complex(aval_of(a).dtype):
        return a
    is_close = np.isrealobj(np.real_if_close(host_array("real_if_close", a), tol))
    return floating_point.real(a) if is_close else a


def savetxt(fname: IO[Any] | str | os.PathLike[str], X: ArrayOrList, **options: Any) -> None:  # noqa: N803
    """Writes the numbers of an array to a file as a text, with NumPy's options."""
    np.savetxt(fname, host_array("savetxt", X), **options)


def savez_compressed(
    file: IO[bytes] | str | os.PathLike[str], *args: ArrayOrList, **kwds: ArrayOrList
) -> None:
    """Writes arrays to a compressed file with the ending `.npz`, as `savez` does."""
    named: dict[str, Any] = {k: host_array("savez_compressed", x) for k, x in kwds.items()}
    np.savez_compressed(file, *[host_array("savez_compressed", x) for x in args], **named)


def shares_memory(a: ArrayOrList, b: ArrayOrList, /, max_work: int | None = None) -> bool:
    """Whether two arrays have an element in common, as views of one array do."""
    if type(a) is Tracer and type(b) is Tracer:
        places = [_element_places(x) for x in (a, b)]
        return places[0][0] is places[1][0] and not places[0][1].isdisjoint(places[1][1])
    first, second = [host_array("shares_memory", x) for x in (a, b)]
    return np.shares_memory(first, second, max_work)  # type: ignore[arg-type]


may_share_memory = shares_memory


def _element_places(x: Tracer) -> tuple[object, set[int]]:
    """The array that owns the memory of `x`, and the bytes at which its elements are."""
    record_layout_dependence(x)
    memory = memory_location(x.builder, x.atom)
    if memory.byte_offset is None:
        raise ForeignCodeError(
            f"shares_memory: the place of a view must be known while tracing; got {aval_of(x)!r}",
            fix="Index with integers that are known.",
        )
    places = np.full(x.shape, memory.byte_offset)
    for d, (n, stride) in enumerate(zip(x.shape, memory.strides, strict=True)):
        steps = np.arange(n) * stride * x.dtype.itemsize
        places += steps.reshape(-1, *[1] * (x.ndim - d - 1))
    return memory.base, {*places.ravel().tolist()}
