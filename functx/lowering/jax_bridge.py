"""The bridge to JAX: avals, typed keys, and options that are JAX's."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax.core import ShapedArray as JaxShapedArray
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from functx.core.backend import backend
from functx.core.errors import ArgumentError, DTypeError, ShapeError, ValueRangeError, type_name
from functx.core.tracer import PRNGKeyTracer, Tracer
from functx.core.types import SHORT_NAMES, ShapedArray
from functx.core.typing import Value

JaxAval: TypeAlias = Any
"""A type of JAX; of an array it has a shape and a dtype."""


@lru_cache(maxsize=16384)
def jax_aval(aval: ShapedArray) -> JaxAval:
    """JAX's aval of the same type."""
    return JaxShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type)


# Avals of JAX with those of functx. The key is the identity, which is quick to look up; the entry
# keeps the object alive, so that no other gets its identity.
_avals_by_type_and_id: dict[tuple[type, int], tuple[Any, ShapedArray]] = {}


def aval_of_jax_array(x: object) -> ShapedArray | None:
    """The aval of an array, tracer or number of JAX; None for anything else.

    Raises ShapeError for a shape with symbolic dimensions.
    """
    aval = getattr(x, "aval", None)
    if aval is None:
        return None
    key = type(x), id(aval)
    found = _avals_by_type_and_id.get(key)
    if found is None:
        # JAX passes numbers with an aval to the rules of its users.
        if not isinstance(x, (jax.Array, int, float, complex)) or aval.dtype not in SHORT_NAMES:
            return None
        if any(type(d) is not int for d in aval.shape):
            raise ShapeError(
                f"the dimensions of an array must be numbers; got the shape {aval.shape} of {aval}",
                fix="Export the function for each shape that it is to take.",
            )
        if len(_avals_by_type_and_id) > 8192:
            _avals_by_type_and_id.clear()
        ours = ShapedArray(tuple(aval.shape), aval.dtype, bool(aval.weak_type))
        found = _avals_by_type_and_id[key] = aval, ours
    return found[1]


backend.aval_of_jax_array = aval_of_jax_array
backend.jax_aval = jax_aval


DEFAULT_PRNG = "threefry2x32"
KEY_DATA_DTYPE = np.dtype("uint32")


class PRNGKeyType(NamedTuple):
    """The type of typed keys: their generator, and the shape of the words of one key.

    In a program a key is the array of its words.
    """

    generator: Any
    key_shape: tuple[int, ...]

    def wrap(self, words: Any) -> Value:
        """The typed keys that hold `words`."""
        return jax.random.wrap_key_data(words, impl=self.generator)


@lru_cache(maxsize=64)
def prng_key_type(dtype: Any) -> PRNGKeyType | None:
    """The key type of a dtype of JAX; None for the dtypes of numbers."""
    if isinstance(dtype, np.dtype) or not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):  # type: ignore[attr-defined]
        return None
    generators: list[Any] = []

    def words(key: Value) -> Value:
        generators.append(jax.random.key_impl(key))
        return jax.random.key_data(key)

    shape = jax.eval_shape(words, jax.ShapeDtypeStruct((), dtype)).shape
    return PRNGKeyType(generators[0], shape)


def raw_key_data(key: Any) -> Any:
    """The words of typed keys, of an array or of its type; any other value as it is."""
    if type(key) is PRNGKeyTracer:
        return key.key_data
    dtype = getattr(key, "dtype", None)
    if dtype is None or prng_key_type(dtype) is None:
        return key
    if not isinstance(key, jax.Array):
        return jax.eval_shape(raw_key_data, jax.ShapeDtypeStruct(key.shape, dtype))
    return jax.random.key_data(key)


def threefry_key_data(key: Any) -> Any:
    """As `raw_key_data`, but raises DTypeError for keys of another generator than Threefry."""
    kind = prng_key_type(key.dtype) if isinstance(key, jax.Array) else None
    if kind is not None and str(kind.generator) != DEFAULT_PRNG:
        raise DTypeError(
            f"a key must be of JAX's default generator, {DEFAULT_PRNG}; got one of {kind.generator}",
            fix="Make keys with functx.random.key, or draw with jax.random.",
        )
    return raw_key_data(key)


def typed_key_array(words: Any, dtype: Any) -> Any:
    """The typed keys of `dtype` that hold `words`, an array or its type; any other value as it is."""
    kind = prng_key_type(dtype)
    assert kind is not None
    if type(words) is Tracer:
        return PRNGKeyTracer(
            words, jax.core.ShapedArray(words.shape[: -len(kind.key_shape)], dtype)
        )
    if type(words) is ShapedArray:
        return jax.ShapeDtypeStruct(words.shape[: -len(kind.key_shape)], dtype)
    if not isinstance(words, (jax.Array, np.ndarray)) or words.dtype != KEY_DATA_DTYPE:
        return words
    return kind.wrap(words)


backend.raw_key_data = raw_key_data
backend.typed_key_array = typed_key_array


_CACHE_DIRECTORY = "jax_compilation_cache_dir"
_MIN_COMPILE_SECONDS = "jax_persistent_cache_min_compile_time_secs"
_MIN_ENTRY_BYTES = "jax_persistent_cache_min_entry_size_bytes"
_JAX_OPTION_NAMES = {
    "compilation_cache": _CACHE_DIRECTORY,
    "compilation_cache_min_seconds": _MIN_COMPILE_SECONDS,
    "compilation_cache_min_bytes": _MIN_ENTRY_BYTES,
}


def jax_option(name: str) -> object:
    """The value of an option of `functx.config` that is one of JAX."""
    return getattr(jax.config, _JAX_OPTION_NAMES[name])


def set_jax_option(name: str, value: Any) -> None:
    """Sets an option of `functx.config` that is one of JAX."""
    if name == "compilation_cache":
        _set_cache_directory(value)
        return
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not value >= 0:
        raise ValueRangeError(
            f"config: {name} must be a number that is not negative; got {value!r}"
        )
    jax.config.update(
        _JAX_OPTION_NAMES[name],
        float(value) if _JAX_OPTION_NAMES[name] == _MIN_COMPILE_SECONDS else int(value),
    )


def _set_cache_directory(path: object) -> None:
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise ArgumentError(
            f"config: compilation_cache must be the path of a directory, or None; "
            f"got {type_name(path)}"
        )
    if path is not None and os.path.exists(path) and not os.path.isdir(path):
        raise ValueRangeError(
            f"config: compilation_cache must be the path of a directory, or None; "
            f"got the file {os.fspath(path)!r}"
        )
    before = jax_option("compilation_cache")
    jax.config.update(_CACHE_DIRECTORY, None if path is None else os.fspath(path))
    if before is None and path is not None:
        # By default JAX stores only programs that took a second to compile.
        jax.config.update(_MIN_COMPILE_SECONDS, 0.0)
    # JAX looks the directory up at its first compilation only.
    reset_cache()


backend.jax_option = jax_option
backend.set_jax_option = set_jax_option
