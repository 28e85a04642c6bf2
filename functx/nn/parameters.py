"""`Parameter` and `Buffer`: the values of modules that are trained, and those that calls change."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any
from weakref import ref

import jax

from functx.core.tracer import current_builder, is_variable
from functx.core.typing import ArrayOrList
from functx.numpy.array_creation import array

__all__ = ["Buffer", "Parameter"]


class StateKind(type):
    """The metaclass of `Parameter` and `Buffer`, whose instances are the Variables that they made."""

    def __instancecheck__(cls, x: object) -> bool:
        if is_variable(x):
            return x._state_kind is cls  # type: ignore[attr-defined]
        return type(x) is cls or traced_kinds.of(x) is cls


class Parameter(metaclass=StateKind):
    """A parameter of a `Module`: a new Variable that requires a gradient, unless told otherwise.

    Assigned to an attribute of a module, it is one of its parameters. Inside a transform it holds an
    array, its `value`, until then; the attribute is that array, which is a parameter, too, of other
    modules that it is assigned to.

    >>> from functx import nn
    >>> weight = nn.Parameter([1.0, 2.0])
    >>> (weight * weight).sum().backward()
    >>> print(weight.grad)
    [2. 4.]
    """

    value: Any

    def __new__(cls, value: ArrayOrList, requires_grad: bool = True) -> Any:
        return _declare(cls, value, requires_grad=requires_grad)


class Buffer(metaclass=StateKind):
    """A buffer of a `Module`: a new Variable that no gradient is computed for, such as a running mean.

    Assigned to an attribute of a module, it is one of its buffers, and part of its `state_dict` unless it
    is not `persistent`. Inside a transform it holds an array, its `value`, until then; the attribute is
    that array.

    >>> from functx import nn
    >>> class Counter(nn.Module):
    ...     def __init__(self):
    ...         self.calls = nn.Buffer(0)
    ...     def forward(self, x):
    ...         self.calls += 1
    ...         return x
    >>> counter = Counter()
    >>> counter(5.0), int(counter.calls)
    (5.0, 1)
    """

    value: Any
    persistent: bool

    def __new__(cls, value: ArrayOrList, persistent: bool = True) -> Any:
        x = _declare(cls, value, requires_grad=False)
        x._is_persistent = persistent
        return x


class TracedKinds:
    """Which arrays are parameters or buffers that were declared inside a transform, while they live."""

    def __init__(self) -> None:
        self._kinds: dict[int, tuple[ref[Any], type]] = {}

    def note(self, x: object, kind: type) -> None:
        """Notes that the array `x` is a `kind`, `Parameter` or `Buffer`."""
        key = id(x)

        def forget(dead: ref[Any]) -> None:
            if key in self._kinds and self._kinds[key][0] is dead:
                del self._kinds[key]

        with suppress(TypeError):  # an array of a foreign class may have no weak references
            self._kinds[key] = ref(x, forget), kind

    def of(self, x: object) -> type | None:
        """`Parameter`, `Buffer`, or None for anything else."""
        known, kind = self._kinds.get(id(x), (None, None))
        return kind if known is not None and known() is x else None


traced_kinds = TracedKinds()


def _declare(kind: type, value: ArrayOrList, *, requires_grad: bool) -> Any:
    """A Variable of a known value, or, inside a transform, an object that holds the value."""
    if is_in_transform(value):
        x: Any = object.__new__(kind)
        x.value = array(value)
        traced_kinds.note(x.value, kind)
        return x
    x = autograd_module().Variable(value, requires_grad)
    x._state_kind = kind
    return x


def is_in_transform(value: object = None) -> bool:
    """Whether a transform traces now, of functx or, as `value` shows, of JAX."""
    is_traced = isinstance(value, jax.core.Tracer) and not is_variable(value)
    return is_traced or current_builder.innermost() is not None


def autograd_module() -> ModuleType:
    """`functx.autograd`, a layer above this one, imported when a Variable is first needed."""
    return import_module("functx.autograd")


def is_declared(x: object) -> bool:
    """Whether `x` is a `Parameter` or `Buffer` that was declared inside a transform."""
    return type(x) is Parameter or type(x) is Buffer


def value_of(kind: Any, value: Any) -> Any:
    """The value of a parameter or buffer that a module holds."""
    if value is None or (is_variable(value) and (kind is Buffer or isinstance(value, kind))):
        return value
    declared = value if isinstance(value, kind) else kind(value)
    return declared.value if is_declared(declared) else declared
