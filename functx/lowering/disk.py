"""What was compiled, kept on disk for other processes: JAX's cache, by functx's switches."""

from __future__ import annotations

import os
from typing import Any

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

from functx.core.errors import ArgumentError, ValueRangeError, type_name
from functx.core.tracing import backend

_CACHE_DIRECTORY = "jax_compilation_cache_dir"
_MIN_COMPILE_SECONDS = "jax_persistent_cache_min_compile_time_secs"
_MIN_ENTRY_BYTES = "jax_persistent_cache_min_entry_size_bytes"
_JAX_OPTION_NAMES = {
    "compilation_cache": _CACHE_DIRECTORY,
    "compilation_cache_min_seconds": _MIN_COMPILE_SECONDS,
    "compilation_cache_min_bytes": _MIN_ENTRY_BYTES,
}


def jax_option(name: str) -> Any:
    """The value of a switch of functx that is JAX's."""
    return getattr(jax.config, _JAX_OPTION_NAMES[name])


def set_jax_option(name: str, value: Any) -> None:
    """Set a switch of functx that is JAX's."""
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


def _set_cache_directory(path: Any) -> None:
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
        # JAX keeps what took it a second; most programs take functx less.
        jax.config.update(_MIN_COMPILE_SECONDS, 0.0)
    # What JAX found out of the directory at the first compilation, it would not look up again.
    reset_cache()


backend.jax_option = jax_option
backend.set_jax_option = set_jax_option
