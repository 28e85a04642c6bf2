"""Rules of an operator for wrapper types of the user, and for modes that are on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from functx.core import tree
from functx.core.errors import ArgumentError, type_name
from functx.custom.operators.registry import rules_of

if TYPE_CHECKING:
    from functx.custom.operators.operator import Operator

KIND = "dispatch rule for"


class Mode:
    """What is on for the length of a `with` block; an operator may have a rule for its class.

    The rule gets the mode first, then the arguments; while it runs, the mode is off.
    """

    def __enter__(self) -> Mode:
        self._token = _modes.set((*_modes.get(), self))
        return self

    def __exit__(self, *exception: Any) -> None:
        _modes.reset(self._token)


_modes: ContextVar[tuple[Mode, ...]] = ContextVar("operator_modes", default=())


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
    modes = _modes.get()
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
    token = _modes.set(modes)
    try:
        yield
    finally:
        _modes.reset(token)
