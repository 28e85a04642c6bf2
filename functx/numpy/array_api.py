"""The members that the Python array API standard asks of a namespace: version, capabilities, devices.

https://data-apis.org/array-api/2025.12
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import jax

from functx.core.errors import ValueRangeError
from functx.core.tracer import Tracer, ndarray
from functx.core.types import DType, canonical_dtype, x64_enabled
from functx.core.wrappers import ArrayWrapper
from functx.numpy.devices import to_device, traced_device
from functx.numpy.inspection import isdtype

__all__: list[str] = []

__array_api_version__ = "2025.12"

_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", "2025.12")


class ArrayNamespaceInfo:
    """The inspection functions of the array API standard: the capabilities of `functx.numpy`.

    >>> import functx.numpy as np
    >>> info = np.__array_namespace_info__()
    >>> info.capabilities()["max dimensions"]
    64
    >>> [*info.dtypes(kind="complex floating")]
    ['complex64']
    """

    __module__ = "functx.numpy"

    def capabilities(self) -> dict[str, bool | int | None]:
        """The capabilities under every transform.

        Boolean masks and functions such as `nonzero`, whose results have shapes that depend on
        values, work outside of transforms, and in `jit` with the argument `size`.
        """
        return {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": 64}

    def default_device(self) -> None:
        """None: an array is bound to no device unless one is asked for."""
        return None

    def devices(self) -> tuple[Any, ...]:
        """The values of `device=`: None, "cpu" for the memory of the host, and the devices of JAX."""
        return tuple(dict.fromkeys([None, "cpu", *jax.devices(), *jax.devices("cpu")]))

    def default_dtypes(self, *, device: object = None) -> dict[str, DType]:
        """The dtypes of arrays that are made without one, of 32 or 64 bits by the 64-bit switch."""
        return {
            "real floating": canonical_dtype(float),
            "complex floating": canonical_dtype(complex),
            "integral": canonical_dtype(int),
            "indexing": canonical_dtype(int),
        }

    def dtypes(
        self, *, device: object = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The dtypes of the standard that the 64-bit switch allows, or those of `kind`."""
        names = [
            "bool",
            "int8",
            "int16",
            "int32",
            "uint8",
            "uint16",
            "uint32",
            "float32",
            "complex64",
        ]
        if x64_enabled():
            names += ["int64", "uint64", "float64", "complex128"]
        dtypes = {name: canonical_dtype(name) for name in names}
        return {n: d for n, d in dtypes.items() if kind is None or isdtype(d, kind)}


def _array_namespace(self: object, *, api_version: str | None = None) -> ModuleType:
    """The module `functx.numpy`.

    Raises ValueRangeError for a version of the array API standard other than 2021.12 to 2025.12.
    """
    if api_version is not None and api_version not in _VERSIONS:
        raise ValueRangeError(
            f"__array_namespace__: api_version must be one of {', '.join(_VERSIONS)}; got {api_version!r}"
        )
    return sys.modules["functx.numpy"]


def load_special_functions(package: str) -> None:
    """Make `functx.scipy.special` the attribute `special` of `package`, imported on first use.

    With SCIPY_ARRAY_API=1, the functions of `scipy.special` look there for one that takes traced arrays.
    """
    module = sys.modules[package]
    refuse = vars(module)["__getattr__"]

    def load(name: str) -> object:
        return import_module("functx.scipy.special") if name == "special" else refuse(name)

    vars(module)["__getattr__"] = load


def _dlpack(self: Tracer, **options: object) -> object:
    """The memory of a value that is known while tracing, for another library."""
    return self.__array__().__dlpack__(**options)  # type: ignore[attr-defined]


def _dlpack_device(self: Tracer) -> tuple[int, int]:
    """The CPU, where values lie that are known while tracing."""
    return self.__array__().__dlpack_device__()  # type: ignore[attr-defined, no-any-return]


_METHODS = {"__array_namespace__": _array_namespace, "to_device": to_device}
_TRACED = {"device": property(traced_device), **_METHODS}
for _cls, _members in (
    (Tracer, {"__dlpack__": _dlpack, "__dlpack_device__": _dlpack_device, **_TRACED}),
    (ArrayWrapper, _TRACED),
    (ndarray, _METHODS),
):
    for _name, _value in _members.items():
        setattr(_cls, _name, _value)
