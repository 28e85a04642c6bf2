"""Immutable records, equal and hashed by the values of their fields; rewrites are records."""

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
    """As `dataclasses.field`: a field, given by keyword only, whose default is made for each record."""
    assert kw_only
    return _Factory(default_factory)  # type: ignore[return-value]


def annotated_fields(cls: type) -> list[str]:
    """The names that the body of `cls` annotates, without class variables."""
    own = cls.__dict__.get("__annotations__", {}).items()
    return [name for name, kind in own if "ClassVar" not in str(kind)]


class Uncompared(Generic[T]):
    """A value that does not count when records are compared: two of these are equal."""

    def __init__(self, value: T):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Uncompared

    def __hash__(self) -> int:
        return hash(Uncompared)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Record:
    """An immutable record. A subclass annotates its fields, as in a dataclass.

    It costs a tenth of a dataclass to define: nothing is compiled for a class.
    """

    fields: ClassVar[tuple[str, ...]] = ()
    defaults: ClassVar[dict[str, Any]] = {}
    if TYPE_CHECKING:
        _values: tuple[Any, ...]

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        own = [name for name in annotated_fields(cls) if name not in cls.fields]
        fields = (*cls.fields, *own)
        given = {name: cls.__dict__[name] for name in fields if name in cls.__dict__}
        cls.defaults = {**cls.defaults, **given}
        late = [name for name in fields if type(cls.defaults.get(name)) is _Factory]
        cls.fields = (*[name for name in fields if name not in late], *late)

    def __init__(self, *args: Any, **kwargs: Any):
        fields = self.fields
        if kwargs or len(args) != len(fields):
            args = self._completed(args, kwargs)
        attributes = self.__dict__
        attributes.update(zip(fields, args, strict=True))
        attributes["_values"] = args

    def _completed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The values of all fields, given some by position and some by name."""
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

    def replace(self, **changes: Any) -> Self:
        """The record with other values in some fields."""
        values = dict(zip(self.fields, self._values, strict=True))
        return type(self)(**(values | changes))

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self._values == other._values  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self._values)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}: a record does not change; use replace()")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}: a record does not change")

    def __repr__(self) -> str:
        pairs = zip(self.fields, self._values, strict=True)
        return f"{type(self).__qualname__}({', '.join([f'{n}={v!r}' for n, v in pairs])})"

    def __reduce__(self) -> Any:
        return _record, (type(self), self._values)


def _record(cls: type[Record], values: tuple[Any, ...]) -> Record:
    return cls(*values)


class Rewrite(Record, Generic[T]):
    """A function of a program, as a record: `Batch(8, (0, None))(program)` is the batched program.

    Its result is most often a program, sometimes several or facts about one. Results are
    remembered by the rewrite's fields (`functx.core.rewriting`). A rewrite with a method
    `emit(program, *args)` can append its equations to the program being built, without a
    program of its own in between.
    """

    def __call__(self, program: Program) -> T:
        raise NotImplementedError(f"{type(self).__name__} must define __call__")
