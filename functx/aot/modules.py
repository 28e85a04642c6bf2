"""`aot_module`: modules whose forward and backward programs take parameters and buffers as inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from functx.aot.compilation import PartitionFunction
from functx.aot.compilers import Compiler
from functx.aot.functions import aot_function, is_part_of_trace
from functx.core.errors import ModuleTypeError, type_name
from functx.core.typing import Function, PyTree
from functx.module_calls import call_and_write_back
from functx.nn.module import Module, module_structure
from functx.transforms.decompose import decompose


def aot_module(
    module: Module,
    fw_compiler: Compiler | None = None,
    bw_compiler: Compiler | None = None,
    partition_fn: PartitionFunction | None = None,
    decompositions: Mapping[Any, Any] | None = None,
    inference_compiler: Compiler | None = None,
    keep_inference_input_mutations: bool = True,
    dynamic: bool = False,
    *,
    strict: bool = False,
    backward_at_once: bool = False,
) -> AotModule:
    """`module`, as a module whose calls are compiled as by `aot_function`.

    Its parameters and buffers, each once, are the first inputs of the programs; it holds them as
    submodule `module`. What the module writes to buffers, or assigns to them, becomes a write at the
    end of the forward program. In evaluation mode, where nothing is written, there is none. Programs
    are compiled for the mode of each submodule. Other attributes of a module are constants. A compiler
    whose functions do not write to buffers needs `keep_inference_input_mutations=False`.

    The options are those of `aot_function`.

    Raises ModuleTypeError for what is no `nn.Module`.

    >>> import functx, functx.numpy as np
    >>> from functx import nn
    >>> class Scale(nn.Module):
    ...     def __init__(self):
    ...         self.factor, self.calls = nn.Parameter(3.0), nn.Buffer(0)
    ...     def forward(self, x):
    ...         self.calls += 1
    ...         return x * self.factor
    >>> scale = functx.aot.aot_module(Scale())
    >>> scale(np.ones(2)).sum().backward()
    >>> print(scale.module.factor.grad, scale.module.calls)
    2.0 1
    """
    if not isinstance(module, Module):
        raise ModuleTypeError(
            f"aot_module: the first argument must be a functx.nn.Module; got {type_name(module)}",
            fix="Use functx.aot.aot_function for a function.",
        )
    options = {
        "fw_compiler": fw_compiler,
        "bw_compiler": bw_compiler,
        "partition_fn": partition_fn,
        "decompositions": decompositions,
        "inference_compiler": inference_compiler,
        "keep_inference_input_mutations": keep_inference_input_mutations,
        "dynamic": dynamic,
        "strict": strict,
        "backward_at_once": backward_at_once,
    }
    return AotModule(module, options)


class AotModule(Module):
    """The result of `aot_module`: a module that calls its submodule `module` by compiled programs."""

    def __init__(self, module: Module, options: dict[str, Any]):
        self.module, self.options = module, options
        self._forget()

    def _forget(self) -> None:
        """Forgets what is compiled, and where parameters and buffers are held."""
        self._compiled: Function | None = None
        self._places: list[tuple[str, Module, str]] = []
        self._structure_version = -1

    def __getstate__(self) -> dict[str, Any]:
        # A copy compiles its own module.
        state = super().__getstate__()
        return {k: v for k, v in state.items() if k not in _FORGOTTEN_ATTRIBUTES}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget()

    def forward(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """The result of the module; inside a transform that of the module itself."""
        if is_part_of_trace():
            table = self.options["decompositions"]
            fun = self.module if table is None else decompose(self.module, table=table)
            return fun(*args, **kwargs)
        compiled = self._compiled
        if compiled is None:
            compiled = self._compiled = aot_function(module_function(self.module), **self.options)
        if self._structure_version != module_structure.version:
            self._find_places()
        state = {name: getattr(module, attribute) for name, module, attribute in self._places}
        out, replaced = compiled(state, *args, **kwargs)
        for name, module, attribute in self._places if replaced else ():
            if name in replaced:
                setattr(module, attribute, replaced[name])
        return out

    def _find_places(self) -> None:
        """Notes where the parameters and buffers are held, each under its first name."""
        own: dict[int, tuple[str, Module, str]] = {}
        for path, module in self.module.named_modules():
            for attribute in (*module._parameters, *module._buffers):
                x = getattr(module, attribute)
                if x is not None:
                    name = f"{path}.{attribute}" if path else attribute
                    own.setdefault(id(x), (name, module, attribute))
        self._places = [*own.values()]
        self._structure_version = module_structure.version


_FORGOTTEN_ATTRIBUTES = frozenset({"_compiled", "_places", "_structure_version"})


def module_function(module: Module) -> Function:
    """A module as a function of its state and its arguments, which also returns what it could not write back."""

    def call(
        state: dict[str, Any], /, *args: PyTree, **kwargs: PyTree
    ) -> tuple[PyTree, dict[str, Any]]:
        return call_and_write_back(module, state, args, kwargs)

    call.__name__ = type(module).__name__
    return call
