"""Namespaces of the array API whose functions run inside a transform.

`ARRAY_API_TESTS_MODULE` of the standard's test suite takes one of them:
`exec('from tests.array_api.transformed import namespace; xp = namespace("jit")')`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import wraps
from types import ModuleType
from typing import Any

import jax

TRANSFORMS = ("jit", "vmap", "jvp", "vjp")
UNTRACED = frozenset(
    ["from_dlpack", "nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"]
)
"""Functions of arrays of other libraries, and those whose results have shapes that depend on values."""


def namespace(transform: str | None, library: str = "functx") -> ModuleType:
    """`library.numpy` with each function, and those of `linalg` and `fft`, called inside `transform`."""
    package = importlib.import_module(library)
    numpy = importlib.import_module(f"{library}.numpy")
    if transform is None:
        return numpy
    apply = globals()[f"_through_{transform}"]

    def wrap(fun: Callable[..., Any]) -> Callable[..., Any]:
        return _transformed(fun, apply, package)

    xp: Any = _wrapped_module(numpy, wrap)
    xp.linalg, xp.fft = _wrapped_module(numpy.linalg, wrap), _wrapped_module(numpy.fft, wrap)
    return xp


def _wrapped_module(module: ModuleType, wrap: Callable[..., Any]) -> ModuleType:
    copy = ModuleType(module.__name__)
    for name in dir(module):
        value = getattr(module, name)
        is_function = (
            callable(value) and not isinstance(value, type) and not hasattr(value, "dtype")
        )
        setattr(copy, name, wrap(value) if is_function and name[0] != "_" else value)
    for name in ("__array_namespace_info__", "__array_api_version__"):
        if hasattr(module, name):
            setattr(copy, name, getattr(module, name))
    return copy


def _transformed(fun: Callable[..., Any], apply: Callable[..., Any], package: ModuleType) -> Any:
    """`fun` with its array arguments traced by a transform; results that are no arrays stay as they are."""
    if getattr(fun, "__name__", None) in UNTRACED:
        return fun

    @wraps(fun)
    def call(*args: object, **kwargs: object) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs), is_leaf=lambda x: x is None)
        places = [i for i, x in enumerate(leaves) if _is_array(x)]
        if not places:
            return fun(*args, **kwargs)
        static: list[Any] = []

        def body(*arrays: Any) -> Sequence[Any]:
            inner = list(leaves)
            for i, x in zip(places, arrays, strict=True):
                inner[i] = x
            args, kwargs = jax.tree.unflatten(structure, inner)
            out, treedef = jax.tree.flatten(fun(*args, **kwargs), is_leaf=lambda x: x is None)
            static[:] = [treedef, [None if _is_array(x) else x for x in out]]
            return [x for x in out if _is_array(x)]

        results = iter(apply(package, body, [leaves[i] for i in places]))
        treedef, others = static
        return jax.tree.unflatten(treedef, [next(results) if x is None else x for x in others])

    return call


def _is_array(x: object) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype") and hasattr(x, "ndim")


def _through_jit(package: ModuleType, body: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    return package.jit(body)(*arrays)


def _through_vmap(package: ModuleType, body: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    batched = package.vmap(body)(*[package.numpy.stack([x, x]) for x in arrays])
    return [x[1] for x in batched]


def _split(
    package: ModuleType, body: Callable[..., Any], arrays: Sequence[Any]
) -> tuple[list[Any], Callable[..., Any], list[bool]]:
    """The inexact arrays, and `body` as a function of them with exact results as auxiliary output."""
    inexact = [i for i, x in enumerate(arrays) if _is_inexact(x)]
    kinds: list[bool] = []

    def differentiable(*primals: Any) -> tuple[list[Any], list[Any]]:
        inner = list(arrays)
        for i, x in zip(inexact, primals, strict=True):
            inner[i] = x
        outs = body(*inner)
        kinds[:] = [_is_inexact(x) for x in outs]
        return [x for x in outs if _is_inexact(x)], [x for x in outs if not _is_inexact(x)]

    return [arrays[i] for i in inexact], differentiable, kinds


def _is_inexact(x: Any) -> bool:
    return x.dtype.kind in "fc"


def _merged(kinds: Sequence[bool], outs: Sequence[Any], aux: Sequence[Any]) -> list[Any]:
    outs, aux = iter(outs), iter(aux)
    return [next(outs if kind else aux) for kind in kinds]


def _through_jvp(package: ModuleType, body: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    primals, fun, kinds = _split(package, body, arrays)
    if not primals:
        return body(*arrays)
    tangents = [package.numpy.ones_like(x) for x in primals]
    outs, _, aux = package.jvp(fun, tuple(primals), tuple(tangents), has_aux=True)
    return _merged(kinds, outs, aux)


def _through_vjp(package: ModuleType, body: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    primals, fun, kinds = _split(package, body, arrays)
    if not primals:
        return body(*arrays)
    outs, pullback, aux = package.vjp(fun, *primals, has_aux=True)
    pullback([package.numpy.ones_like(x) for x in outs])
    return _merged(kinds, outs, aux)
