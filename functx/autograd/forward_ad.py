"""Forward mode by dual numbers: Variables that carry a tangent while a level is open."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from itertools import count
from typing import NamedTuple

from functx import ops
from functx.autograd.modes import ModeContext, check_outside_transforms, is_inference_mode_enabled
from functx.autograd.operations import record_outputs
from functx.autograd.variable import (
    Dual,
    Variable,
    as_variable,
    closed_level,
    open_level,
)
from functx.core.errors import DualLevelError, DualValueError
from functx.core.types import is_inexact
from functx.core.typing import ArrayLike

__all__ = [
    "UnpackedDual",
    "dual_level",
    "enter_dual_level",
    "exit_dual_level",
    "make_dual",
    "unpack_dual",
]

_levels = count()
_kept: ContextVar[list[Variable] | None] = ContextVar("kept", default=None)
"""The dual numbers that nodes hold weak references to, while a level is open in this context."""
Level = int
_IN_TRANSFORMS = "Use functx.jvp of a function, which nests."


class UnpackedDual(NamedTuple):
    """The primal and the tangent of a dual number; the tangent is None for another array."""

    primal: Variable
    tangent: Variable | None


def enter_dual_level() -> Level:
    """Open a dual level, and return it; DualLevelError if one is open.

    >>> from functx.autograd import Variable, forward_ad
    >>> level = forward_ad.enter_dual_level()
    >>> x = forward_ad.make_dual(Variable(3.0), Variable(1.0))
    >>> print(*forward_ad.unpack_dual(x * x))
    9.0 6.0
    >>> forward_ad.exit_dual_level(level=level)
    """
    check_outside_transforms("enter_dual_level", _IN_TRANSFORMS)
    if open_level.get() is not None:
        raise DualLevelError(
            "enter_dual_level: one level can be open at a time; got a second one",
            fix="Nest functx.jvp of functions instead.",
        )
    level = next(_levels)
    open_level.set(level)
    _kept.set([])
    return level


def exit_dual_level(*, level: Level | None = None) -> None:
    """Close the open dual level, which deletes its tangents; DualLevelError for any other."""
    current = open_level.get()
    if current is None or level not in (None, current):
        got = "no open level" if current is None else f"level {level}, while {current} is open"
        raise DualLevelError(
            f"exit_dual_level: the open level must be closed; got {got}",
            fix="Work inside `with functx.autograd.forward_ad.dual_level():`.",
        )
    open_level.set(None)
    _kept.set(None)


def keep_until_exit(x: Variable) -> None:
    """Keeps a dual number while its level is open, for nodes that hold a weak reference to it."""
    kept = _kept.get()
    assert kept is not None
    kept.append(x)


class dual_level(ModeContext):  # noqa: N801 - PyTorch's name
    """A context, and a decorator, in which a dual level is open; `as` gives the level.

    >>> from functx.autograd import Variable, forward_ad
    >>> with forward_ad.dual_level():
    ...     print(forward_ad.unpack_dual(forward_ad.make_dual(Variable(3.0), Variable(1.0)) ** 2).tangent)
    6.0
    """

    def __enter__(self) -> Level:  # type: ignore[override]
        super().__enter__()
        level = open_level.get()
        assert level is not None
        return level

    def enter(self) -> Callable[[], None]:
        level = enter_dual_level()
        return lambda: exit_dual_level(level=level)


def make_dual(tensor: ArrayLike, tangent: ArrayLike, *, level: Level | None = None) -> Variable:
    """The dual number of `tensor` and `tangent`, with the memory and the history of `tensor`.

    Results of operations on it are dual too, and `backward` differentiates both parts.

    Raises DualLevelError without an open level, DualValueError for integers, a tangent of another
    shape or dtype, and a part that is dual itself, and AutogradInTransformError inside a
    transform.
    """
    check_outside_transforms("make_dual", _IN_TRANSFORMS)
    current = open_level.get()
    if current is None or level not in (None, current):
        raise DualLevelError(
            "make_dual: a level must be open; got none"
            if current is None
            else f"make_dual: the level must be the open one, {current}; got {level}",
            fix="Call it inside `with functx.autograd.forward_ad.dual_level():`.",
        )
    primal, t = as_variable(tensor), as_variable(tangent)
    if not is_inexact(primal.dtype) or not is_inexact(t.dtype):
        raise DualValueError(
            "make_dual: both parts must be of floating point or complex numbers; got "
            f"{primal.aval_!r} and {t.aval_!r}",
            fix="Convert them first (x.astype(float)).",
        )
    if primal.shape != t.shape or primal.dtype != t.dtype:
        raise DualValueError(
            "make_dual: the tangent must have the shape and dtype of the primal; got "
            f"{t.aval_!r} for {primal.aval_!r}",
            fix="Broadcast or convert the tangent first.",
        )
    for part, x in (("primal", primal), ("tangent", t)):
        if x.tangent is not None:
            raise DualValueError(
                f"make_dual: the {part} must not be dual itself; got one that is",
                fix="Pass its primal, as unpack_dual gives it.",
            )
    dual = alias(primal)
    if not is_inference_mode_enabled():
        dual._dual = Dual(current, t)
    return dual


def unpack_dual(tensor: ArrayLike, *, level: Level | None = None) -> UnpackedDual:
    """The primal of an array, and its tangent at the open level, or None.

    Raises AutogradInTransformError inside a transform.
    """
    check_outside_transforms("unpack_dual", _IN_TRANSFORMS)
    x = as_variable(tensor)
    tangent = x.tangent if level is None or level == open_level.get() else None
    if tangent is None:
        return UnpackedDual(x, None)
    return UnpackedDual(alias(x), tangent)


def alias(x: Variable) -> Variable:
    """The whole of `x` as a view of it, without its tangent."""
    with closed_level():
        return record_outputs(ops.Reshape(x.shape), [x])[0]
