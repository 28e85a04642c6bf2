"""`Module`: a function with parameters and buffers, held as attributes, and with submodules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from inspect import Signature, signature
from itertools import count
from reprlib import recursive_repr
from typing import Any, ClassVar, NamedTuple, Self

from functx.core.errors import (
    ArgumentError,
    MissingForwardError,
    ModuleAttributeError,
    StateKeysError,
    StateShapeError,
    type_name,
)
from functx.core.pytorch_names import MODULE_METHODS
from functx.core.replaced_state import note_mode, replaced_state, state_with
from functx.core.tracer import aval_of, is_variable
from functx.core.typing import PyTree
from functx.nn.parameters import (
    Buffer,
    Parameter,
    autograd_module,
    is_declared,
    is_in_transform,
    value_of,
)
from functx.numpy.array_creation import asarray

__all__ = ["Module"]


class ModuleStructure:
    """The version of the structure of all modules: which values they hold, and which they share."""

    version = 0
    _versions: ClassVar[Iterator[int]] = count(1)

    def changed(self) -> None:
        """Makes what was found in modules outdated."""
        self.version = next(self._versions)


module_structure = ModuleStructure()
_serials = count()


class StateNames(NamedTuple):
    """The dotted names of the parameters and buffers of a module.

    `places` are the serial number of the module that holds each, and its attribute there. `tied` are, for
    a name whose value has others too, all names of that value.
    """

    version: int
    places: dict[str, tuple[int, str]]
    tied: dict[str, tuple[str, ...]]


class InitSignature:
    """The signature of a class that defines `__new__` for its subclasses: that of `__init__`."""

    def __get__(self, instance: object, owner: type) -> Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        whole = signature(owner.__init__)  # type: ignore[misc]
        return whole.replace(parameters=[*whole.parameters.values()][1:], return_annotation=owner)


class IncompatibleKeys(NamedTuple):
    """The keys that a state lacked, and those that the module does not have."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """A function with parameters and buffers, which are attributes, and with submodules.

    A subclass defines `forward(...)`, which a call of the module runs. A `Parameter`, a `Buffer` or
    a module that is assigned to an attribute belongs to the module; `named_parameters` and its kin find
    it, also through submodules, under names as `hidden.weight`. Parameters and buffers are Variables of
    `functx.autograd`, so that `backward` computes gradients. `functx.functional_call` calls the module
    with other values, traced ones too.

    Transforms take no module for an array: they pass it on as it is, and the arrays that it holds are
    captured. A derivative in its parameters is one of a function that calls `functx.functional_call`.

    Raises ModuleAttributeError for an assignment that would lose a parameter, and MissingForwardError
    for a call of a module without `forward`.

    >>> import functx.numpy as np
    >>> from functx import nn
    >>> class Linear(nn.Module):
    ...     def __init__(self, inputs, outputs):
    ...         self.weight = nn.Parameter(np.ones((outputs, inputs)))
    ...         self.bias = nn.Parameter(np.zeros(outputs))
    ...     def forward(self, x):
    ...         return x @ self.weight.T + self.bias
    >>> model = Linear(3, 2)
    >>> model
    Linear(weight: f32[2,3], bias: f32[2])
    >>> model(np.ones(3)).tolist()
    [3.0, 3.0]
    """

    __signature__ = InitSignature()
    _training = True
    _parameters: dict[str, Any]
    _buffers: dict[str, Any]
    _modules: dict[str, Any]
    _not_persistent: set[str]
    _serial: int
    _names: StateNames | None

    def __new__(cls, *_: object, **__: object) -> Self:
        module = object.__new__(cls)
        vars(module).update(
            _parameters={}, _buffers={}, _modules={}, _not_persistent=set(), _names=None
        )
        vars(module)["_serial"] = next(_serials)
        return module

    def __init__(self) -> None:
        """Does nothing; a subclass need not call it."""

    @property
    def training(self) -> bool:
        """Whether it is in training mode; `train()` and `eval()` change it.

        A jitted function that reads it is compiled for each mode.
        """
        if replaced_state() is not None:
            note_mode(self._serial, self)
        return self._training

    @training.setter
    def training(self, mode: bool) -> None:
        vars(self)["_training"] = bool(mode)

    def forward(self, *_: Any, **__: Any) -> PyTree:
        """The result of a call; a subclass defines it."""
        raise MissingForwardError(
            f"{type(self).__name__}: a module that is called must define forward; got none",
            fix="Define forward(self, ...) in the class.",
        )

    def __call__(self, *args: object, **kwargs: object) -> PyTree:
        return self.forward(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # Reached for what is no plain attribute.
        own = vars(self)
        for kind in ("_parameters", "_buffers"):
            if name in own[kind]:
                state = state_with(own["_serial"], name)
                return own[kind][name] if state is None else state.values[own["_serial"]][name]
        if name in own["_modules"]:
            return own["_modules"][name]
        found: object = getattr(type(self), name, None)
        if hasattr(found, "__get__"):
            # A property that raised an AttributeError, which the user is to see.
            return found.__get__(self, type(self))
        message = f"{type(self).__name__!r} object has no attribute {name!r}"
        if name in MODULE_METHODS:
            message += f"; {MODULE_METHODS[name]}"
        raise AttributeError(message, name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        state = state_with(self._serial, name)
        if state is not None:
            state.write(self._serial, name, value.value if is_declared(value) else value)
        elif isinstance(value, Parameter):
            if type(self).register_parameter is not Module.register_parameter:
                self.register_parameter(name, value)
            else:
                self._hold(self._parameters, name, value_of(Parameter, value))
        elif isinstance(value, Buffer):
            persistent = getattr(value, "_is_persistent", name not in self._not_persistent)
            if type(self).register_buffer is not Module.register_buffer:
                self.register_buffer(name, value, persistent)
            else:
                self._hold_buffer(name, value, persistent)
        elif isinstance(value, Module):
            self.register_module(name, value)
        elif (holder := self._holder(name)) is None:
            object.__setattr__(self, name, value)
        elif value is None:
            self._hold(holder, name, None)
        elif holder is self._buffers:
            self._hold(holder, name, self._buffer_value(name, value))
        else:
            is_parameter = holder is self._parameters
            what, kind = (
                ("parameter", "nn.Parameter") if is_parameter else ("submodule", "nn.Module")
            )
            raise ModuleAttributeError(
                f"{type(self).__name__}: the {what} `{name}` must be replaced by an {kind} or None; "
                f"got {type_name(value)}",
                fix=f"Write in place (module.{name}[...] = value, under functx.autograd.no_grad()), or "
                "assign nn.Parameter(value)."
                if is_parameter
                else "Delete the submodule first, or use another name.",
            )

    def __delattr__(self, name: str) -> None:
        holder = self._holder(name)
        if holder is None:
            object.__delattr__(self, name)
            return
        if state_with(self._serial, name) is not None:
            raise ModuleAttributeError(
                f"{type(self).__name__}: a value that a functional call gave must not be deleted, since the "
                f"module keeps its own; got `{name}`",
                fix="Assign None, or leave the name out of the state.",
            )
        del holder[name]
        self._not_persistent.discard(name)
        module_structure.changed()

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._parameters, *self._buffers, *self._modules})

    def _holder(self, name: str) -> dict[str, Any] | None:
        """The dictionary that holds a parameter, buffer or submodule; None if there is none."""
        return next((h for h in self._holders() if name in h), None)

    def _holders(self) -> tuple[dict[str, Any], ...]:
        return self._parameters, self._buffers, self._modules

    def _hold(self, holder: dict[str, Any], name: str, value: object) -> None:
        """Makes `value` the attribute `name`, in one of the dictionaries, or in a replaced state."""
        state = state_with(self._serial, name)
        if state is not None:
            state.write(self._serial, name, value)
            return
        if holder.get(name) is value and name in holder:
            return
        if not name or "." in name or (hasattr(type(self), name) and name not in holder):
            raise ModuleAttributeError(
                f"{type(self).__name__}: the name of a parameter, buffer or submodule must not be empty, "
                f"have a dot, or be that of an attribute of the class; got {name!r}",
                fix="Use another name.",
            )
        vars(self).pop(name, None)
        for other in self._holders():
            if other is not holder:
                other.pop(name, None)
        holder[name] = value
        module_structure.changed()

    def _check_new(self, name: str, holder: dict[str, Any]) -> None:
        """Raise ModuleAttributeError if `name` is an attribute that `holder` does not hold."""
        if name not in holder and (name in vars(self) or self._holder(name) is not None):
            raise ModuleAttributeError(
                f"{type(self).__name__}: the name of a new parameter or buffer must not be that of another "
                f"attribute; got {name!r}, which is {type_name(getattr(self, name))}",
                fix=f"Use another name, or `del module.{name}` first.",
            )

    def register_parameter(self, name: str, value: object) -> None:
        """Makes `value` the parameter `name`: a `Parameter`, an array of which one is made, or None."""
        self._check_new(name, self._parameters)
        self._hold(self._parameters, name, value_of(Parameter, value))

    def register_buffer(self, name: str, value: object, persistent: bool = True) -> None:
        """Makes `value` the buffer `name`: an array or None. If it is not persistent, states lack it."""
        self._check_new(name, self._buffers)
        self._hold_buffer(name, value, persistent)

    def _hold_buffer(self, name: str, value: object, persistent: bool) -> None:
        self._hold(self._buffers, name, value_of(Buffer, value))
        (self._not_persistent.discard if persistent else self._not_persistent.add)(name)

    def register_module(self, name: str, module: Module | None) -> None:
        """Makes `module` the submodule `name`."""
        if module is not None and not isinstance(module, Module):
            raise ModuleAttributeError(
                f"{type(self).__name__}: a submodule must be an nn.Module or None; got "
                f"{type_name(module)} for `{name}`",
                fix="Derive its class from functx.nn.Module.",
            )
        self._hold(self._modules, name, module)

    def _buffer_value(self, name: str, value: object) -> Any:
        """The value that replaces a buffer of the module itself."""
        if is_variable(value):
            return value
        if is_in_transform(value) and is_variable(self._buffers[name]):
            raise ModuleAttributeError(
                f"{type(self).__name__}: the buffer `{name}` must not be given a traced value, which ends "
                f"with the transform; got {_describe(value)}",
                fix=f"Call the module through functx.functional_call with `{name}` in the state, which "
                "then gets the new value.",
            )
        return value_of(Buffer, value)

    def named_modules(
        self, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """The module itself and all submodules, by dotted name; one that has two names comes once.

        Without `remove_duplicate` it comes under each.
        """
        yield from _walk(self, prefix, set(), remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """The module itself and all submodules, each once."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The submodules that are attributes of the module itself; one that has two names comes once."""
        seen: set[Module] = set()
        for name, child in self._modules.items():
            if child is not None and child not in seen:
                seen.add(child)
                yield name, child

    def children(self) -> Iterator[Module]:
        """The submodules of `named_children`."""
        return (child for _, child in self.named_children())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        """The parameters by dotted name; one that has two names comes once.

        Without `remove_duplicate` it comes under each; without `recurse`, those of submodules are left out.
        """
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Any]:
        """The parameters, each once."""
        return (x for _, x in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Any]]:
        """The buffers by dotted name, as `named_parameters` the parameters."""
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Any]:
        """The buffers, each once."""
        return (x for _, x in self.named_buffers(recurse=recurse))

    def _named(
        self, kind: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen = set()
        whole = self.named_modules(prefix, remove_duplicate) if recurse else [(prefix, self)]
        for path, module in whole:
            for name, own in [*vars(module)[kind].items()]:
                x = getattr(module, name)
                # In a functional call, one array may stand in for several that the module does not tie.
                key = id(own), id(x)
                if x is not None and not (remove_duplicate and key in seen):
                    seen.add(key)
                    yield _join(path, name), x

    def train(self, mode: bool = True) -> Self:
        """Sets training mode, or with False evaluation mode, here and in all submodules."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Sets evaluation mode here and in all submodules."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Lets all parameters require gradients, or not."""
        for x in self.parameters():
            x.requires_grad_(requires_grad)
        return self

    def zero_grad(self) -> None:
        """Sets the gradients of all parameters to None."""
        for x in self.parameters():
            x.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The values of parameters and persistent buffers by dotted name, as they are now.

        They are Variables without a history, which later writes to the module do not change. A value that
        has two names is there under both.
        """
        return {
            name: autograd_module().Variable(x) if is_variable(x) else x
            for name, x in self._state_items()
            if x is not None
        }

    def _state_items(self) -> Iterator[tuple[str, Any]]:
        for path, module in self.named_modules(remove_duplicate=False):
            for name in (*module._parameters, *module._buffers):
                if name not in module._not_persistent:
                    yield _join(path, name), getattr(module, name)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Writes the values of a state to the parameters and buffers, and returns the keys left out.

        Raises StateKeysError, unless `strict` is False, if keys are missing or unexpected, and
        StateShapeError for a value of another shape; then nothing is written.
        """
        if not isinstance(state, Mapping):
            raise ArgumentError(
                f"{type(self).__name__}.load_state_dict: the state must be a dictionary of arrays by name; "
                f"got {type_name(state)}",
                fix="Pass what `module.state_dict()` returned.",
            )
        own = {name: x for name, x in self._state_items() if x is not None}
        keys = IncompatibleKeys(
            [name for name in own if name not in state], [name for name in state if name not in own]
        )
        if strict:
            check_keys(f"{type(self).__name__}.load_state_dict", *keys)
        new = {name: asarray(state[name]) for name in own if name in state}
        for name, value in new.items():
            if value.shape != own[name].shape:
                raise StateShapeError(
                    f"{type(self).__name__}.load_state_dict: a value must have the shape of the one that "
                    f"it replaces; got {aval_of(value)!r} for `{name}`, {aval_of(own[name])!r}",
                    fix="Load the state of a module of the same sizes.",
                )
        with autograd_module().no_grad():
            for name, value in new.items():
                own[name][...] = value
        return keys

    def state_names(self) -> StateNames:
        """The dotted names of all parameters and buffers, and which of them share a value."""
        found = self._names
        if found is None or found.version != module_structure.version:
            found = find_state_names(self)
            vars(self)["_names"] = found
        return found

    def __getstate__(self) -> dict[str, Any]:
        # A copy has dictionaries and a number of its own.
        own = {k: v for k, v in vars(self).items() if k not in ("_serial", "_names")}
        for name in ("_parameters", "_buffers", "_modules", "_not_persistent"):
            own[name] = own[name].copy()
        return own

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        module_structure.changed()

    @recursive_repr("...")
    def __repr__(self) -> str:
        own = [f"{name}: {_describe(x)}" for name, x in self._parameters.items()]
        own += [f"{name}: buffer {_describe(x)}" for name, x in self._buffers.items()]
        if not self._modules:
            return f"{type(self).__name__}({', '.join(own)})"
        parts = [*own, *[f"{name}: {child!r}" for name, child in self._modules.items()]]
        lines = "\n".join(parts).replace("\n", "\n  ")
        return f"{type(self).__name__}(\n  {lines}\n)"


def _describe(x: object) -> str:
    return "None" if x is None else repr(aval_of(x))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _walk(
    module: Module, path: str, seen: set[int], remove_duplicate: bool
) -> Iterator[tuple[str, Module]]:
    """A module and its submodules; `seen` are those that were met, or are around it."""
    if id(module) in seen:
        return
    seen.add(id(module))
    yield path, module
    for name, child in [*module._modules.items()]:
        if child is not None:
            yield from _walk(child, _join(path, name), seen, remove_duplicate)
    if not remove_duplicate:
        seen.discard(id(module))


def tied_names(names_by_value: Mapping[int, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """For each name whose value has other names too, all names of that value."""
    groups = map(tuple, names_by_value.values())
    return {name: group for group in groups if len(group) > 1 for name in group}


def find_state_names(module: Module) -> StateNames:
    """The names of the parameters and buffers of a module, each under all of its names."""
    version = module_structure.version
    places: dict[str, tuple[int, str]] = {}
    names_by_value: dict[int, list[str]] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        for attribute, x in (*part._parameters.items(), *part._buffers.items()):
            if x is not None:
                name = _join(path, attribute)
                places[name] = part._serial, attribute
                names_by_value.setdefault(id(x), []).append(name)
    tied = tied_names(names_by_value)
    return StateNames(version, places, tied)


def check_keys(label: str, missing: Iterable[str], unexpected: Iterable[str]) -> None:
    """Raises StateKeysError if keys are missing or unexpected."""
    faults = [
        f"{what} {', '.join([repr(key) for key in keys])}"
        for what, keys in (("unexpected", [*unexpected]), ("missing", [*missing]))
        if keys
    ]
    if faults:
        raise StateKeysError(
            f"{label}: the keys of the state must be those of the parameters and buffers; got "
            + " and ".join(faults),
            fix="Give exactly these keys, or pass strict=False.",
        )
