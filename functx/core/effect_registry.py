"""The effects that users register for primitives, and their removal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from functx.core.caches import clear_on_rule_change, scoped_table
from functx.core.effects import NO_EFFECTS, Effect, Effects
from functx.core.primitive import Primitive
from functx.core.program import subprograms
from functx.core.source_info import describe_source, user_source

if TYPE_CHECKING:
    from functx.core.source_info import Source


class EffectRegistration:
    """One registration: the kind of the effect, None for no effect, and the user's line."""

    __slots__ = ("kind", "source")

    def __init__(self, kind: Effect | None, source: Source | None):
        self.kind, self.source = kind, source

    @property
    def effects(self) -> Effects:
        """The effects of a primitive with this registration."""
        return NO_EFFECTS if self.kind is None else frozenset([self.kind])

    def __repr__(self) -> str:
        return f"<effect {self.kind}, registered at {describe_source(self.source)}>"


_registrations: dict[type[Primitive], tuple[EffectRegistration, ...]] = scoped_table()
_defaults: dict[type[Primitive], Effects] = {}
"""The effects that the classes with registrations define themselves."""


def add_registration(cls: type[Primitive], kind: Effect | None) -> EffectRegistration:
    """Registers the effect of a primitive in place of earlier ones; `apply_registrations` follows."""
    registration = EffectRegistration(kind, user_source(2))
    _registrations[cls] = (*_registrations.get(cls, ()), registration)
    return registration


def remove_registration(cls: type[Primitive], registration: EffectRegistration) -> bool:
    """Removes a registration, after which the last of the others holds; whether it was registered."""
    before = _registrations.get(cls, ())
    after = tuple([each for each in before if each is not registration])
    if after:
        _registrations[cls] = after
    else:
        _registrations.pop(cls, None)
    return len(after) < len(before)


def last_registration(cls: type[Primitive]) -> EffectRegistration | None:
    """The registration that holds for a primitive; None if there is none."""
    return _registrations.get(cls, (None,))[-1]


def remove_registrations(cls: type[Primitive]) -> None:
    """Removes all registrations for a primitive."""
    _registrations.pop(cls, None)


@clear_on_rule_change
def apply_registrations() -> None:
    """Sets the effects of primitives: the registered ones, else those that their classes define.

    Operations with these primitives in their sub-programs are updated as well.
    """
    changed = False
    for cls in {*_registrations, *_defaults}:
        registration = last_registration(cls)
        if registration is None:
            effects = _defaults.pop(cls)
        else:
            _defaults.setdefault(cls, cls.effects)
            effects = registration.effects
        if effects != cls.effects:
            cls.effects, changed = effects, True
    if changed:
        done: set[Primitive] = set()
        for cls in _subclasses(Primitive):
            for instance in cls._instances.values():
                _update_effects(instance, done)


def _subclasses(cls: type[Primitive]) -> Iterator[type[Primitive]]:
    """The classes that derive from `cls`, at any depth; a class with several bases more than once."""
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)


def _update_effects(primitive: Primitive, done: set[Primitive]) -> None:
    """Updates the effects of an operation, after those of the operations in its sub-programs."""
    if primitive in done:
        return
    done.add(primitive)
    for program in subprograms(primitive):
        for eqn in program.equations:
            _update_effects(eqn.primitive, done)
        program.memo.pop(Effects, None)
    primitive.update_effects()
