"""Effects: what an equation does besides computing its outputs."""

from __future__ import annotations

from typing import ClassVar, final

from functx.core.errors import ArgumentError, type_name


@final
class Effect:
    """A kind of side effect, of which a program keeps the number, and the order if `is_ordered`.

    `Effect(name)` is the kind of that name, always the same object. Names that functx does not use are
    kinds of users. They are ordered: equations with such an effect run in the order of the program.

    `is_per_element` says that the effect takes place for each element of a batch, and only for those
    that reach the equation.

    >>> import functx
    >>> functx.effects.Effect("log") is functx.effects.Effect("log")
    True
    """

    __slots__ = ("is_ordered", "is_per_element", "name")

    by_name: ClassVar[dict[str, Effect]] = {}
    """All kinds, by name."""

    CALLBACK: ClassVar[Effect]
    """Python code runs, in any order."""
    CHECK: ClassVar[Effect]
    """A value is checked: `functx.checkify` returns which check failed first."""
    ORDERED: ClassVar[Effect]
    """Python code runs, in the order of the ordered equations of the program."""
    PROGRESS: ClassVar[Effect]
    """Python code shows the progress of a loop, once for a whole batch."""
    WRITE: ClassVar[Effect]
    """An operand is overwritten; all its aliases have the new value afterwards."""

    name: str
    is_ordered: bool
    is_per_element: bool

    def __new__(cls, name: str) -> Effect:
        if not isinstance(name, str) or not name.isidentifier():
            raise ArgumentError(
                f"Effect: the name must be an identifier; got {type_name(name)} {name!r}",
                fix='Name it as programs are to show it: Effect("log").',
            )
        found = cls.by_name.get(name)
        return _make_effect(name, True, True) if found is None else found

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return Effect, (self.name,)


def _make_effect(name: str, is_ordered: bool, is_per_element: bool) -> Effect:
    """The new kind called `name`, or the one that another thread has made meanwhile."""
    effect = object.__new__(Effect)
    effect.name, effect.is_ordered, effect.is_per_element = name, is_ordered, is_per_element
    return Effect.by_name.setdefault(name, effect)


Effect.CALLBACK = _make_effect("callback", False, True)
Effect.CHECK = _make_effect("check", False, True)
Effect.ORDERED = _make_effect("ordered", True, True)
Effect.PROGRESS = _make_effect("progress", False, False)
Effect.WRITE = _make_effect("write", False, False)

Effects = frozenset[Effect]
NO_EFFECTS: Effects = frozenset()


def is_ordered(effects: Effects) -> bool:
    """Whether one of `effects` takes place in the order of the program."""
    return any([effect.is_ordered for effect in effects])


def is_per_element(effects: Effects) -> bool:
    """Whether one of `effects` takes place for each element of a batch."""
    return any([effect.is_per_element for effect in effects])
