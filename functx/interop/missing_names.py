"""What the modules with JAX's names say of the names in JAX that they do not have."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def suggest_alternatives(original: ModuleType, module: ModuleType) -> None:
    """Let `module` name what to write instead of a missing name that `original` has."""
    vars(module)["__getattr__"] = _missing_attribute_hook(original, module)


def _missing_attribute_hook(original: ModuleType, module: ModuleType) -> Callable[[str], Any]:
    def refuse(name: str) -> Any:
        message = f"module {module.__name__!r} has no attribute {name!r}"
        path = f"{original.__name__}.{name}"
        found = None if name.startswith("_") else vars(original).get(name)
        if path in _SUGGESTIONS:
            message += f"; {_SUGGESTIONS[path]}"
        elif found is not None:
            message += f"; {_suggestion(path, found)}"
        elif isinstance(vars(sys.modules["functx"]).get(name), ModuleType):
            message += f"; there is functx.{name}"
        elif name.startswith("tree_") and hasattr(sys.modules["functx.core.tree"], name[5:]):
            message += f"; there is functx.tree.{name[5:]}"
        elif name[0] != "_" and hasattr(original, "__path__") and find_spec(path):
            message += f"; {_module_suggestion(path)}"
        raise AttributeError(message, name=name, obj=module)

    return refuse


def _suggestion(path: str, found: Any) -> str:
    if isinstance(found, ModuleType):
        return _module_suggestion(path)
    if path.count(".") == 1 or isinstance(found, type) or not callable(found):
        return f"{path} works beside functx, on its arrays and jitted functions"
    return f"in its place write {path}, which takes arrays that are traced too"


def _module_suggestion(path: str) -> str:
    return f"import {path}, whose functions take arrays that are traced too"


def _numpy_suggestion(name: str) -> str:
    return f"numpy.{name} works on arrays of functx, outside of what is traced"


# Of files, texts and Python objects.
_NUMPY_FUNCTIONS = [
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
    "mask_indices",
    "printoptions",
    "save",
    "savez",
    "set_printoptions",
]

_SUGGESTIONS = {
    "jax.make_jaxpr": "in its place write functx.make_ir(f)(*args), the program of f",
    "jax.jacobian": "in its place write functx.jacrev",
    "jax.tree_util": "there is functx.tree",
    "jax.custom_gradient": "in its place write functx.custom_vjp",
    "jax.pmap": "in its place write functx.shard_map",
    "jax.numpy.roots": "in its place write jax.numpy.roots(p, strip_zeros=False)",
    **{f"jax.numpy.{name}": _numpy_suggestion(name) for name in _NUMPY_FUNCTIONS},
}
"""The replacement for each name whose function takes or returns no arrays."""
