"""Static arguments of jit: which they are, and how they compare."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import jax

from functx.core.errors import ArgumentError, StaticArgumentError, type_name
from functx.core.tracing import Tracer
from functx.transforms.calls import function_name

ArgNames = str | Sequence[str] | None
ArgNums = int | Sequence[int] | None


class StaticByValue:
    """A static argument that hashes by identity, compared by its attributes as well.

    Without this, a change of an attribute would find what was compiled before the change.
    """

    __slots__ = ("snapshot", "value")

    def __init__(self, value: Any):
        self.value = value
        self.snapshot = tuple((k, _fingerprint(v)) for k, v in sorted(vars(value).items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticByValue) and (
            self.value is other.value and self.snapshot == other.snapshot
        )

    def __hash__(self) -> int:
        return hash((id(self.value), self.snapshot))


def _fingerprint(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return type(value), id(value)
    return type(value), value


def hashable_static(x: Any, which: str, fun: Callable[..., Any]) -> Any:
    """The static argument `x` of `fun` as one that compares by value.

    Raises StaticArgumentError for one that cannot be hashed, or is an array.
    """
    try:
        hash(x)
    except TypeError:
        raise StaticArgumentError(
            f"jit({function_name(fun)}): static arguments must be hashable; "
            f"got {type_name(x)} for argument {which}",
            fix="Pass a tuple, a frozen dataclass or another hashable value.",
        ) from None
    if isinstance(x, (Tracer, jax.Array)):
        raise StaticArgumentError(
            f"jit({function_name(fun)}): static arguments must be Python values; "
            f"got {type_name(x)} for argument {which}",
        )
    by_identity = getattr(type(x), "__hash__", None) is object.__hash__ and hasattr(x, "__dict__")
    return StaticByValue(x) if by_identity and not isinstance(x, _IDENTITY_HASHED_TYPES) else x


_IDENTITY_HASHED_TYPES = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, partial)


def static_value(x: Any) -> Any:
    """The static argument that `hashable_static` made `x` of."""
    return x.value if type(x) is StaticByValue else x


def infer_argnums_and_argnames(
    fun: Callable[..., Any], numbers: ArgNums, names: ArgNames, what: str
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names of the same arguments, whichever of the two was given."""
    if numbers is None and names is None:
        return (), ()
    nums = (
        () if numbers is None else tuple(numbers) if isinstance(numbers, Sequence) else (numbers,)
    )
    words = () if names is None else (names,) if isinstance(names, str) else tuple(names)
    for n in nums:
        if isinstance(n, bool) or not isinstance(n, int):
            raise ArgumentError(f"jit: {what}_argnums must be ints; got {n!r}")
    try:
        parameters = inspect.signature(fun).parameters
    except (ValueError, TypeError):
        return tuple(map(index, nums)), words
    positional = [
        p.name
        for p in parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    open_ended = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    if not open_ended and any(not -len(positional) <= n < len(positional) for n in nums):
        raise ArgumentError(
            f"jit({function_name(fun)}): {what}_argnums must name parameters; "
            f"got {nums} for {len(positional)} of them"
        )
    keywords = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if not keywords and (unknown := [w for w in words if w not in parameters]):
        raise ArgumentError(
            f"jit({function_name(fun)}): {what}_argnames must name parameters; got {unknown}"
        )
    nums = tuple(n % len(positional) if n < 0 else n for n in nums)
    if names is None:
        words = tuple(positional[n] for n in nums if n < len(positional))
    if numbers is None:
        nums = tuple(positional.index(w) for w in words if w in positional)
    return nums, words
