"""Immutable records with equality and hash by the values of their fields, and rewrites as records."""

from __future__ import annotations

from collections.abc import Callable
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Self,
    TypeVar,
    dataclass_transform,
)

if TYPE_CHECKING:
    from functx.core.program import Program

T = TypeVar("T")


class _Factory(NamedTuple):
    make: Callable[[], Any]


def field(*, default_factory: Callable[[], T], kw_only: bool) -> T:
    """A keyword-only field whose default is `default_factory()`, as in `dataclasses.field`."""
    assert kw_only
    return _Factory(default_factory)  # type: ignore[return-value]


def annotated_fields(cls: type) -> list[str]:
    """The names that the body of `cls` annotates, without class variables."""
    annotations = cls.__dict__.get("__annotations__", {}).items()
    return [name for name, kind in annotations if "ClassVar" not in str(kind)]


class Uncompared(Generic[T]):
    """A field value that comparisons of records ignore: all instances are equal."""

    def __init__(self, value: T):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Uncompared

    def __hash__(self) -> int:
        return hash(Uncompared)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Record:
    """An immutable record. A subclass annotates its fields, as in a dataclass.

    Defining one takes a tenth of the time of a dataclass, since no code is compiled.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    defaults: ClassVar[dict[str, Any]] = {}
    if TYPE_CHECKING:
        _values: tuple[Any, ...]

    def __init_subclass__(cls, **kwargs: object):
        super().__init_subclass__(**kwargs)
        new_fields = [name for name in annotated_fields(cls) if name not in cls.fields]
        fields = (*cls.fields, *new_fields)
        new_defaults = {name: cls.__dict__[name] for name in fields if name in cls.__dict__}
        cls.defaults = {**cls.defaults, **new_defaults}
        keyword_only = [name for name in fields if type(cls.defaults.get(name)) is _Factory]
        cls.fields = (*[name for name in fields if name not in keyword_only], *keyword_only)

    def __init__(self, *args: object, **kwargs: object):
        fields = self.fields
        if kwargs or len(args) != len(fields):
            args = self._with_defaults(args, kwargs)
        attributes = self.__dict__
        attributes.update(zip(fields, args, strict=True))
        attributes["_values"] = args

    def _with_defaults(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The values of all fields, from positional and keyword arguments and defaults."""
        cls, fields = type(self).__name__, self.fields
        if len(args) > len(fields):
            raise TypeError(f"{cls} takes {len(fields)} fields, {fields}; got {len(args)}")
        values = dict(zip(fields, args, strict=False))
        if unknown := [name for name in kwargs if name not in fields or name in values]:
            raise TypeError(f"{cls} takes the fields {fields}, each once; got {unknown[0]}")
        values.update(kwargs)
        for name in fields[len(args) :]:
            if name not in values:
                if name not in self.defaults:
                    raise TypeError(f"{cls} needs the fields {fields}; got no {name}")
                default = self.defaults[name]
                values[name] = default.make() if type(default) is _Factory else default
        return tuple([values[name] for name in fields])

    def replace(self, **changes: object) -> Self:
        """The record with other values in some fields."""
        values = dict(zip(self.fields, self._values, strict=True))
        return type(self)(**(values | changes))

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self._values == other._values  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self._values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}: a record does not change; use replace()")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}: a record does not change")

    def __repr__(self) -> str:
        pairs = zip(self.fields, self._values, strict=True)
        return f"{type(self).__qualname__}({', '.join([f'{n}={v!r}' for n, v in pairs])})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _record, (type(self), self._values)


def _record(cls: type[Record], values: tuple[Any, ...]) -> Record:
    return cls(*values)


class Rewrite(Record, Generic[T]):
    """A function of a program, as a record: `Batch(8, (0, None))(program)` is the batched program.

    The result is a program, several programs, or an analysis. Results are cached by the fields of the
    rewrite (`functx.core.rewriting`). A rewrite with a method `emit(program, *args)` appends its
    equations directly to the current builder.
    """

    def __call__(self, program: Program) -> T:
        raise NotImplementedError(f"{type(self).__name__} must define __call__")
