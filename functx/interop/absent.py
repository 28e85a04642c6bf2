"""What the modules with JAX's names say of the names in JAX that they do not have."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def point_to(original: ModuleType, module: ModuleType) -> None:
    """Let `module` name what to write instead of a missing name that `original` has."""
    vars(module)["__getattr__"] = _refusal(original, module)


def _refusal(original: ModuleType, module: ModuleType) -> Callable[[str], Any]:
    def refuse(name: str) -> Any:
        message = f"module {module.__name__!r} has no attribute {name!r}"
        found = None if name.startswith("_") else vars(original).get(name)
        if found is not None:
            message += f"; {_instead(f'{original.__name__}.{name}', found)}"
        elif isinstance(vars(sys.modules["functx"]).get(name), ModuleType):
            message += f"; there is functx.{name}"
        raise AttributeError(message, name=name, obj=module)

    return refuse


def _instead(path: str, found: Any) -> str:
    if path.count(".") == 1 or isinstance(found, (type, ModuleType)) or not callable(found):
        return f"{path} works beside functx, on its arrays and jitted functions"
    return f"in its place write functx.from_jax({path})"
