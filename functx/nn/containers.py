"""Modules that hold modules: in a list, in a sequence of calls, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self, SupportsIndex, overload

from functx.core.errors import ArgumentError, type_name
from functx.core.typing import PyTree, Value
from functx.nn.module import Module

__all__ = ["ModuleDict", "ModuleList", "Sequential"]


class ModuleList(Module):
    """A list of modules, whose parameters belong to the module that holds it.

    >>> from functx import nn
    >>> len(nn.ModuleList([nn.Sequential(), nn.Sequential()]))
    2
    """

    def __init__(self, modules: Iterable[Module] = ()):
        self.extend(modules)

    def append(self, module: Module) -> Self:
        """Adds a module at the end."""
        self.register_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Adds modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter([*self._modules.values()])

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        found = [*self._modules.values()][index]
        return type(self)(*_as_arguments(self, found)) if isinstance(index, slice) else found

    def __setitem__(self, index: SupportsIndex, module: Module) -> None:
        self.register_module(str(range(len(self))[index]), module)


class Sequential(ModuleList):
    """Modules that are called one after the other, each with the result of the one before.

    Functions that are no modules, such as `nn.relu`, may stand among them.

    >>> from functx import nn
    >>> float(nn.Sequential(nn.relu, lambda x: x + 1)(-2.0))
    1.0
    """

    def __init__(self, *modules: Callable[..., Any]):
        for module in modules:
            if not callable(module):
                raise ArgumentError(
                    f"Sequential: each argument must be a module or a function; got {type_name(module)}",
                    fix="Unpack a sequence of modules: nn.Sequential(*modules).",
                )
            self.append(module if isinstance(module, Module) else FunctionModule(module))

    def forward(self, x: Value) -> PyTree:
        """The result of the last module."""
        for module in self._modules.values():
            x = module(x)
        return x


class FunctionModule(Module):
    """A function as a module without parameters."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function

    def forward(self, *args: object, **kwargs: object) -> PyTree:
        """The result of the function."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))


class ModuleDict(Module):
    """Modules by name, whose parameters belong to the module that holds the dictionary.

    >>> from functx import nn
    >>> list(nn.ModuleDict({"left": nn.Sequential(), "right": nn.Sequential()}))
    ['left', 'right']
    """

    def __init__(self, modules: Mapping[str, Module] | None = None):
        for name, module in (modules or {}).items():
            self[name] = module

    def __getitem__(self, name: str) -> Any:
        return self._modules[name]

    def __setitem__(self, name: str, module: Module) -> None:
        self.register_module(name, module)

    def __delitem__(self, name: str) -> None:
        delattr(self, name)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._modules])

    def __contains__(self, name: str) -> bool:
        return name in self._modules

    def keys(self) -> list[str]:
        """The names."""
        return [*self._modules]

    def values(self) -> list[Any]:
        """The modules."""
        return [*self._modules.values()]

    def items(self) -> list[tuple[str, Any]]:
        """Pairs of a name and its module."""
        return [*self._modules.items()]


def _as_arguments(modules: ModuleList, found: list[Any]) -> list[Any]:
    """The arguments that make a list of the class of `modules`."""
    return found if isinstance(modules, Sequential) else [found]
