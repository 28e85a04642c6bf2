"""Module attributes that load on first use, and messages with alternatives for missing attributes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import NoReturn

from functx.core.pytorch_names import FUNCTIONS


def load_on_first_use(
    package: str, modules: Collection[str], names: Mapping[str, str], others: str
) -> None:
    """Give `package` attributes that are imported on first use.

    They are its `modules`, `names` by module, and the other names of its `__all__`, from the module
    `others`. Errors of Python in the functions are explained.
    """
    module = sys.modules[package]
    refuse = vars(module)["__getattr__"]
    public = {*vars(module).get("__all__", ())} - vars(module).keys()

    def load(name: str) -> object:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name in public:
            # Imported on first use, since errors are imported before all else.
            from functx.core.argument_errors import explained

            value = getattr(import_module(names.get(name, others)), name)
            return vars(module).setdefault(name, explained(value, package))
        return refuse(name)

    def names_of_package() -> list[str]:
        return sorted({*vars(module), *modules, *public})

    vars(module).update(__getattr__=load, __dir__=names_of_package)


def suggest_alternatives(original: str, module: str) -> None:
    """Let errors for missing attributes of `module` suggest a replacement for the name in JAX's `original`."""
    vars(sys.modules[module])["__getattr__"] = _missing_attribute_hook(original, module)


def _missing_attribute_hook(original: str, module: str) -> Callable[[str], NoReturn]:
    def refuse(name: str) -> NoReturn:
        message = f"module {module!r} has no attribute {name!r}"
        path = f"{original}.{name}"
        of_jax = import_module(original)
        found = None if name.startswith("_") else vars(of_jax).get(name)
        functx = sys.modules["functx"]
        if name in FUNCTIONS.get(module, ()):
            message += f"; {FUNCTIONS[module][name]}"
        elif path.removeprefix("jax.") in ABSENT:
            message += f"; {ABSENT[path.removeprefix('jax.')]}"
        elif found is not None:
            message += f"; {_suggestion(path, found)}"
        elif module != "functx" and isinstance(getattr(functx, name, None), ModuleType):
            message += f"; there is functx.{name}"
        elif module == "functx.nn" and (function := _function_of_module(name)):
            message += f"; in place of this module, write the function functx.nn.{function}"
        elif module == "functx.numpy" and name in _functions_of_nn().values():
            message += f"; there is functx.nn.{name}"
        elif name.startswith("tree_") and hasattr(sys.modules["functx.core.tree"], name[5:]):
            message += f"; there is functx.tree.{name[5:]}"
        elif name[0] != "_" and hasattr(of_jax, "__path__") and find_spec(path):
            message += f"; {_module_suggestion(path)}"
        raise AttributeError(message, name=name, obj=sys.modules[module])

    return refuse


def _functions_of_nn() -> dict[str, str]:
    """The functions of `functx.nn`, by their names without underscores."""
    functions = [
        name
        for name, value in vars(import_module("functx.nn")).items()
        if callable(value) and not name.startswith("_")
    ]
    return {name.replace("_", ""): name for name in functions}


def _function_of_module(name: str) -> str | None:
    """The function of `functx.nn` that a module of PyTorch calls, by the name of the module."""
    functions, lower = _functions_of_nn(), name.lower()
    if lower == name:
        return None
    return functions.get(lower) or functions.get(lower.removesuffix("loss"))


def _suggestion(path: str, found: object) -> str:
    if isinstance(found, ModuleType):
        return _module_suggestion(path)
    if path.count(".") == 1 or isinstance(found, type) or not callable(found):
        return f"{path} works beside functx, on its arrays and jitted functions"
    return f"in its place write {path}, which takes arrays that are traced too"


def _module_suggestion(path: str) -> str:
    return f"import {path}, whose functions take arrays that are traced too"


def _on_accelerators(path: str) -> str:
    return (
        f"only GPUs and TPUs have it; in its place write jax.{path}, which takes traced arrays too"
    )


ABSENT = {
    path: _on_accelerators(path) for path in ("lax.precv", "lax.psend", "lax.ragged_all_to_all")
}
"""For each function of JAX's library that functx lacks, the reason and what to do.

`docs/reference/coverage.md` lists them; a test finds those that are missing here, and those that are no
longer absent.
"""
