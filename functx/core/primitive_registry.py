"""`Registry`: the primitives by name, also those of modules that are loaded on first use."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from _collections_abc import dict_items, dict_keys, dict_values

    from functx.core.primitive import Primitive


class Registry(dict[str, "type[Primitive]"]):
    """The primitives by name. To find one, or to list all, loads the modules that define primitives."""

    unloaded: ClassVar[list[str]] = [
        "functx.testing",
        "functx.random",
        "functx.nn",
        "functx.transforms.spectral_functions",
        "functx.scipy.stats",
        "functx.scipy.special",
        "functx.scipy.linalg",
        "functx.lax",
        "functx.lax.schur",
        "functx.custom_derivatives",
        "functx.api",
    ]
    """The modules that define primitives and may not have been imported; the last is imported first."""

    def _load_all(self) -> None:
        while self.unloaded:
            import_module(self.unloaded.pop())

    def loaded(self) -> list[type[Primitive]]:
        """The primitives of the modules that are loaded."""
        return list(super().values())

    def __missing__(self, name: str) -> type[Primitive]:
        if name not in self:
            raise KeyError(name)
        return self[name]

    def __contains__(self, name: object) -> bool:
        while not super().__contains__(name):
            if not self.unloaded:
                return False
            import_module(self.unloaded.pop())
        return True

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            return default
        return super().get(name)

    def __iter__(self) -> Iterator[str]:
        self._load_all()
        return super().__iter__()

    def keys(self) -> dict_keys[str, type[Primitive]]:
        self._load_all()
        return super().keys()

    def values(self) -> dict_values[str, type[Primitive]]:
        self._load_all()
        return super().values()

    def items(self) -> dict_items[str, type[Primitive]]:
        self._load_all()
        return super().items()
