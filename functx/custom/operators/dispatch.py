"""Rules of an operator for wrapper types of the user, and for modes that are on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from functx.core import tree
from functx.core.config import trace_options
from functx.core.errors import ArgumentError, type_name
from functx.custom.operators.registry import get_rules
from functx.lowering.static_arguments import StaticByValue

if TYPE_CHECKING:
    from functx.custom.operators.operator import Operator

DISPATCH_RULE = "dispatch rule for"


class Mode:
    """What is on for the length of a `with` block; an operator may have a rule for its class.

    The rule gets the mode first, then the arguments; while it runs, the mode is off.
    """

    def __enter__(self) -> Mode:
        _set_active_modes((*_active_modes(), self))
        return self

    def __exit__(self, *exception: Any) -> None:
        _set_active_modes(_active_modes()[:-1])

    def key(self) -> Any:
        """A cache key: the class of the mode, and the object too if it has attributes."""
        return StaticByValue(self) if vars(self) else type(self)


def _active_modes() -> tuple[Mode, ...]:
    """The modes that are on, the innermost last."""
    return trace_options.get().modes


def _set_active_modes(modes: tuple[Mode, ...]) -> Any:
    return trace_options.set(trace_options.get()._replace(modes=modes))


def dispatch_rule_of_class(cls: Any) -> str:
    """The kind of the rule for `cls`; ArgumentError for what is no class."""
    if not isinstance(cls, type):
        raise ArgumentError(f"def_dispatch: the rule must be for a class; got {type_name(cls)}")
    return f"{DISPATCH_RULE} {cls.__module__}.{cls.__qualname__}"


def dispatch_call(operator: Operator, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What the rule for a mode or an argument makes of a call; NotImplemented where none does.

    Modes come first, the innermost of them before the others.
    """
    found = get_rules(operator, DISPATCH_RULE)
    if not found:
        return NotImplemented
    rules = {rule.option: rule for rule in found.values()}
    modes = _active_modes()
    for i in reversed(range(len(modes))):
        rule = rules.get(type(modes[i]))
        if rule is not None:
            with _only_modes(modes[:i]):
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
def _only_modes(modes: tuple[Mode, ...]) -> Iterator[None]:
    token = _set_active_modes(modes)
    try:
        yield
    finally:
        trace_options.reset(token)
