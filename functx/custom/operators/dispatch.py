"""Rules of an operator for wrapper types of the user, and for modes that are on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from functx.core import tree
from functx.core.config import asked
from functx.core.errors import ArgumentError, type_name
from functx.custom.operators.registry import rules_of
from functx.lowering.static_arguments import ByValue

if TYPE_CHECKING:
    from functx.custom.operators.operator import Operator

KIND = "dispatch rule for"


class Mode:
    """What is on for the length of a `with` block; an operator may have a rule for its class.

    The rule gets the mode first, then the arguments; while it runs, the mode is off.
    """

    def __enter__(self) -> Mode:
        _switch_on((*_modes(), self))
        return self

    def __exit__(self, *exception: Any) -> None:
        _switch_on(_modes()[:-1])

    def key(self) -> Any:
        """A cache key: the class of the mode, and the object too if it has attributes."""
        return ByValue(self) if vars(self) else type(self)


def _modes() -> tuple[Mode, ...]:
    """The modes that are on, the innermost last."""
    return asked.get().modes


def _switch_on(modes: tuple[Mode, ...]) -> Any:
    return asked.set(asked.get()._replace(modes=modes))


def key_of(cls: Any) -> str:
    """The kind of the rule for `cls`; ArgumentError for what is no class."""
    if not isinstance(cls, type):
        raise ArgumentError(f"def_dispatch: the rule must be for a class; got {type_name(cls)}")
    return f"{KIND} {cls.__module__}.{cls.__qualname__}"


def dispatched(operator: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What the rule for a mode or an argument makes of a call; NotImplemented where none does.

    Modes come first, the innermost of them before the others.
    """
    found = rules_of(operator, KIND)
    if not found:
        return NotImplemented
    rules = {rule.details: rule for rule in found.values()}
    modes = _modes()
    for i in reversed(range(len(modes))):
        rule = rules.get(type(modes[i]))
        if rule is not None:
            with _only(modes[:i]):
                return rule(modes[i], *args, **kwargs)
    known = tuple([cls for cls in rules if not issubclass(cls, Mode)])
    if not known:
        return NotImplemented
    leaves = tree.leaves((args, kwargs), is_leaf=lambda x: isinstance(x, known))
    for x in leaves:
        for cls in type(x).__mro__:
            if cls in known:
                return rules[cls](*args, **kwargs)
    return NotImplemented


@contextmanager
def _only(modes: tuple[Mode, ...]) -> Iterator[None]:
    token = _switch_on(modes)
    try:
        yield
    finally:
        asked.reset(token)
