"""`PrimitiveType`, the metaclass of primitives: equal instances are one object."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

import numpy as np

from functx.core.errors import ArgumentError, FunctxError

if TYPE_CHECKING:
    from functx.core.primitive import Primitive


class InstanceTable:
    """The live instances of one primitive, by the hashes of their parameters.

    It holds weak references to instances and no parameters, since the memo of a program among the
    parameters may hold the primitive. No cache can depend on the rules of a class whose table was never
    used.
    """

    def __init__(self) -> None:
        self.buckets: dict[int, list[ref[Primitive]]] = {}
        self.was_used = False

    def find(self, key: Hashable) -> Primitive | None:
        """The live instance with the key `key`, or None."""
        for reference in tuple(self.buckets.get(hash(key), ())):
            instance = reference()
            if instance is not None and instance._key == key:
                return instance
        return None

    def values(self) -> list[Primitive]:
        """All live instances."""
        instances = [reference() for bucket in list(self.buckets.values()) for reference in bucket]
        return [instance for instance in instances if instance is not None]

    def add(self, instance: Primitive) -> None:
        """Adds an instance, until it is garbage."""
        self.was_used = True
        key_hash = hash(instance._key)

        def remove(reference: ref[Primitive]) -> None:
            bucket = self.buckets[key_hash]
            bucket.remove(reference)
            if not bucket:
                del self.buckets[key_hash]

        self.buckets.setdefault(key_hash, []).append(ref(instance, remove))


class PrimitiveType(type):
    """The metaclass of primitives. Equal instances are one object: comparing and hashing them is free."""

    fields: tuple[str, ...]
    defaults: dict[str, Any]
    _instances: InstanceTable
    _interned: Callable[..., Primitive]
    """The function from parameters to the instance: `_make`, with a cache where parameters allow one."""

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        try:
            return cls._interned(*args, **kwargs)
        except TypeError as error:
            if isinstance(error, FunctxError) or "unhashable" not in str(error):
                raise
            raise ArgumentError(
                f"{cls.__name__}: parameters must be hashable; got {args} {kwargs}"
            ) from None

    def intern_instances(cls) -> None:
        """Makes equal instances one object from now on; called when the class is defined."""
        cls._instances = InstanceTable()
        # The keys of the cache do not tell numbers of different types in tuples apart.
        may_be_inexact = any(name in kind for kind in _field_types(cls) for name in _MAY_BE_INEXACT)
        cached = lru_cache(maxsize=4096, typed=True)(cls._make_while_plain)
        cls._interned = cls._make if may_be_inexact else cached

    def _make_while_plain(cls, *args: object, **kwargs: object) -> Primitive:
        """The instance with these parameters; a cache by parameters calls it while all are plain.

        From then on the class has no such cache: it does not tell 0.0 from -0.0, and would keep programs and
        their memos alive.
        """
        self = cls._make(*args, **kwargs)
        if not _is_plain(tuple([getattr(self, field) for field in cls.fields])):
            cls._interned = cls._make
        return self

    def _make(cls, *args: object, **kwargs: object) -> Primitive:
        """The live instance with these parameters, or a new one."""
        if kwargs or len(args) != len(cls.fields):
            args = cls._with_defaults(args, kwargs)
        key = tuple([_parameter_key(value) for value in args])
        self = cls._instances.find(key)
        if self is None:
            self = cast("Primitive", object.__new__(cast("type", cls)))
            parameters = zip(cls.fields, args, strict=True)
            self.__dict__.update(parameters, out_avals_memo={}, _key=key)
            self.read_subprograms()
            cls._instances.add(self)
        return self

    def _with_defaults(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The values of all fields, from positional and keyword arguments and defaults."""
        fields = cls.fields
        if len(args) > len(fields) or not kwargs.keys() <= set(fields):
            given = [*map(repr, args), *[f"{name}={value!r}" for name, value in kwargs.items()]]
            raise ArgumentError(
                f"{cls.__name__}: the parameters must be {', '.join(fields) or 'none'}; got "
                f"{', '.join(given)}",
                fix=f"Operands follow in a second call: {cls.__name__}({', '.join(fields)})(x).",
            )
        values = {**cls.defaults, **dict(zip(fields, args, strict=False)), **kwargs}
        if missing := [field for field in fields if field not in values]:
            raise ArgumentError(
                f"{cls.__name__}: the parameters must be {', '.join(fields)}; got no value for "
                f"{', '.join(missing)}",
                fix=f"Give it, or a default in the class: {missing[0]}: int = 0.",
            )
        return tuple([values[field] for field in fields])


_MAY_BE_INEXACT = ("float", "complex", "Any", "object", "Hashable")
"""Parts of annotations of fields that may hold a float or a complex number."""


def _field_types(cls: PrimitiveType) -> list[str]:
    """The annotations of the fields of `cls`."""
    return [
        str(base.__dict__["__annotations__"][field])
        for base in cls.__mro__
        for field in cls.fields
        if field in base.__dict__.get("__annotations__", {})
    ]


def _is_plain(value: object) -> bool:
    """Whether `value` equals no other parameter, and holds no program or array."""
    if isinstance(value, tuple):
        return all([_is_plain(part) for part in value])
    return value is None or isinstance(value, (int, str, np.integer, np.dtype, Enum, type))


def _parameter_key(value: object) -> tuple[type, Hashable]:
    """A parameter as part of a key; floats, also in tuples, are replaced by their repr."""
    if isinstance(value, (float, complex)):
        return type(value), repr(value)
    if isinstance(value, tuple):
        return type(value), tuple([_parameter_key(part) for part in value])
    return type(value), value
