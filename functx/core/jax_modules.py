"""Modules of JAX about devices, settings, types and profiling, which are modules of functx too."""

from __future__ import annotations

import sys

import jax

MODULES = (
    *("distributed", "dlpack", "dtypes", "ffi", "monitoring", "profiler", "sharding"),
    *("stages", "typing"),
)


def share_modules_of_jax(package: str) -> None:
    """Let `package.sharding` and the others be JAX's modules, in `import` statements too."""
    for name in MODULES:
        module = getattr(jax, name)
        sys.modules[f"{package}.{name}"] = module
        setattr(sys.modules[package], name, module)
