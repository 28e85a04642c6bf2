"""The arguments of `jit` that its options name: static ones by value, donated ones by position."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Sequence
from functools import partial
from operator import index
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import jax

from functx.core.errors import ArgumentError, StaticArgumentError, type_name
from functx.core.tracer import Tracer
from functx.core.typing import Function, PyTree
from functx.lowering.recompilation import code_of_function
from functx.transforms.argument_names import copy_function_metadata, function_name

ArgNames = str | Sequence[str] | None
ArgNums = int | Sequence[int] | None


class StaticByValue:
    """A static argument that hashes by identity, compared by its attributes as well.

    Without this, a changed attribute would find the program compiled before the change.
    """

    __slots__ = ("snapshot", "value")

    def __init__(self, value: object):
        self.value = value
        self.snapshot = tuple((k, _fingerprint(v)) for k, v in sorted(vars(value).items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticByValue) and (
            self.value is other.value and self.snapshot == other.snapshot
        )

    def __hash__(self) -> int:
        return hash((id(self.value), self.snapshot))


def _fingerprint(value: object) -> Hashable:
    try:
        hash(value)
    except TypeError:
        return type(value), id(value)
    return type(value), value


def hashable_static(x: object, which: str, fun: Function) -> Hashable:
    """The static argument `x` of `fun`, as a value that compares by value.

    Raises StaticArgumentError for an argument that cannot be hashed, or is an array.
    """
    try:
        hash(x)
    except TypeError:
        raise StaticArgumentError(
            f"jit({function_name(fun)}): static arguments must be hashable; "
            f"got {type_name(x)} for argument {which}",
            fix=_PASS_ARRAY
            if hasattr(x, "dtype")
            else "Pass a tuple, a frozen dataclass or another hashable value.",
        ) from None
    if isinstance(x, (Tracer, jax.Array)):
        raise StaticArgumentError(
            f"jit({function_name(fun)}): static arguments must be Python values; "
            f"got {type_name(x)} for argument {which}",
            fix=_PASS_ARRAY,
        )
    by_identity = getattr(type(x), "__hash__", None) is object.__hash__ and hasattr(x, "__dict__")
    return StaticByValue(x) if by_identity and not isinstance(x, _IDENTITY_HASHED_TYPES) else x


_PASS_ARRAY = "Leave it out of static_argnums and static_argnames: arrays are traced."
_IDENTITY_HASHED_TYPES = (type, FunctionType, BuiltinFunctionType, MethodType, ModuleType, partial)


def static_value(x: object) -> object:
    """The static argument from which `hashable_static` made `x`."""
    return x.value if type(x) is StaticByValue else x


def infer_argnums_and_argnames(
    fun: Function, numbers: ArgNums, names: ArgNames, what: str
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The positions and the names of the same arguments, if one of the two is given."""
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


class StaticArguments:
    """The static arguments of a jitted function, by position and by name."""

    def __init__(self, fun: Function, nums: tuple[int, ...], names: tuple[str, ...]):
        self.fun, self.nums, self.names = fun, nums, names
        self.is_empty = not nums and not names

    def as_hashable(
        self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> tuple[PyTree, PyTree]:
        """The arguments of a call, with static ones that compare by value."""
        if self.is_empty:
            return args, kwargs
        args = tuple(
            hashable_static(x, f"number {i}", self.fun) if i in self.nums else x
            for i, x in enumerate(args)
        )
        return args, {
            k: hashable_static(v, f"`{k}`", self.fun) if k in self.names else v
            for k, v in kwargs.items()
        }

    def bind(self, args: PyTree, kwargs: PyTree) -> tuple[Function, PyTree, PyTree]:
        """The function of the other arguments, and these, with None at positions of static ones."""
        if self.is_empty:
            return self.fun, args, kwargs
        by_position = {n: static_value(args[n]) for n in self.nums if n < len(args)}
        by_name = {k: static_value(v) for k, v in kwargs.items() if k in self.names}

        def fun(*dynamic: PyTree, **keywords: PyTree) -> PyTree:
            merged = [by_position.get(i, x) for i, x in enumerate(dynamic)]
            return self.fun(*merged, **keywords, **by_name)

        copy_function_metadata(fun, self.fun, "jit").__name__ = function_name(self.fun)
        # None has no leaves, and the others keep their positions, and with them their names.
        dynamic = tuple([None if i in by_position else x for i, x in enumerate(args)])
        return fun, dynamic, {k: v for k, v in kwargs.items() if k not in by_name}

    def key(self, args: PyTree, kwargs: PyTree) -> tuple[Hashable, ...]:
        """The static arguments of a call as a part of a cache key."""
        if self.is_empty:
            return ()
        return (
            tuple([args[n] for n in self.nums if n < len(args)]),
            tuple([(k, kwargs[k]) for k in sorted(self.names) if k in kwargs]),
        )

    def texts(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> dict[str, str]:
        """The static arguments of a call, by name, as messages show them."""
        if self.is_empty:
            return {}
        code = code_of_function(self.fun)
        parameters = () if code is None else code.co_varnames
        values = {
            parameters[n] if n < len(parameters) else f"{n}": args[n]
            for n in self.nums
            if n < len(args)
        }
        values |= {k: x for k, x in kwargs.items() if k in self.names}
        return {k: repr(static_value(x))[:80] for k, x in values.items()}
