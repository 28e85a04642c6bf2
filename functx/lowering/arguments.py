"""Static arguments of jit: which they are, and how they compare."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import index
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from functx import ops
from functx.core import tree
from functx.core.errors import (
    ArgumentError,
    CapturedWriteError,
    DonationError,
    StaticArgumentError,
    ValueRangeError,
    type_name,
)
from functx.core.source_info import source_line, user_frame
from functx.core.tracing import Tracer, aval_of
from functx.core.types import canonical_dtype
from functx.transforms.tracing_api import function_name

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


def check_usable(what: str, names: Sequence[str] | None, values: Sequence[Any]) -> None:
    """Raise for a value that has no buffer any more, or for an int that no array can hold.

    `names` are those of the first values, if there are any.
    """
    named = [f"`{name}`" for name in names or ()]
    named += [f"argument number {i}" for i in range(len(named), len(values))]
    for name, x in zip(named, values, strict=False):
        if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and x.is_deleted():
            raise DonationError(
                f"{what}: an array must still have its buffer; got {aval_of(x)!r} for {name}, "
                "which was deleted or donated",
                fix="Donate only what is not used again, or keep a copy of it.",
            )
        if type(x) is int:
            dtype = canonical_dtype(np.int64)
            limits = np.iinfo(dtype)
            if not limits.min <= x <= limits.max:
                raise ValueRangeError(
                    f"{what}: an int must fit {dtype}; got {x} for {name}",
                    fix="Pass a float, make it static, or turn 64-bit types on: "
                    'jax.config.update("jax_enable_x64", True).',
                )


def check_divisible(what: str, names: Sequence[str], args: tuple[Any, ...], shardings: Any) -> None:
    """Raise ShapeError for an argument that its sharding does not divide into equal parts."""
    if shardings is None:
        return
    flat = tree.broadcast_prefix(shardings, tree.structure(args), f"{what}: in_shardings")
    for name, x, sharding in zip(names, tree.leaves(args), flat, strict=False):
        if isinstance(sharding, NamedSharding):
            ops.check_partition_spec(f"{what}: `{name}`", aval_of(x), sharding.spec, sharding.mesh)


def check_donated_once(
    what: str, names: Sequence[str], values: Sequence[Any], donated: Iterable[int]
) -> None:
    """Raise for an array that is donated, and passed a second time in the same call."""
    for i in donated:
        for j, x in enumerate(values):
            if j != i and x is values[i] and isinstance(x, jax.Array):
                raise DonationError(
                    f"{what}: a donated array must be passed once; "
                    f"got one array for `{names[i]}`, which is donated, and for `{names[j]}`",
                    fix="Pass a copy of it, or do not donate it.",
                )


_SEARCH_LIMIT = 256
"""So many functions and containers are looked into at most."""


@contextmanager
def freeze_captured_arrays(fun: Callable[..., Any]) -> Iterator[None]:
    """Let NumPy refuse writes to the arrays that `fun` closes over, as CapturedWriteError."""
    # A view can be made writable again only when its base is.
    arrays = sorted(
        [x for x in reachable_arrays(fun) if x.flags.writeable], key=lambda x: x.base is not None
    )
    for x in arrays:
        x.flags.writeable = False
    try:
        yield
    except ValueError as error:
        if not arrays or "read-only" not in str(error):
            raise
        raise _captured_write_error(error, arrays) from error
    finally:
        for x in arrays:
            x.flags.writeable = True


def reachable_arrays(fun: Callable[..., Any]) -> list[np.ndarray[Any, Any]]:
    """The NumPy arrays that `fun` can see: in its closure, globals, defaults and attributes.

    Those too of functions that it sees, and in lists, tuples and dictionaries.
    """
    found: dict[int, np.ndarray[Any, Any]] = {}
    seen: dict[int, Any] = {}
    pending: list[Any] = [fun]
    if not isinstance(fun, (FunctionType, MethodType, partial)):
        pending = [getattr(type(fun), "__call__", None), *getattr(fun, "__dict__", {}).values()]  # noqa: B004
    while pending and len(seen) < _SEARCH_LIMIT:
        x = pending.pop()
        if isinstance(x, np.ndarray):
            found[id(x)] = x
        elif id(x) not in seen:
            seen[id(x)] = x
            pending += _referents(x)
    return list(found.values())


def _referents(x: Any) -> list[Any]:
    """The objects that a function, method, partial application or container refers to."""
    if type(x) is FunctionType:
        if (x.__module__ or "").partition(".")[0] in ("functx", "jax", "numpy"):
            return [x.__wrapped__] if hasattr(x, "__wrapped__") else []
        cells = [cell.cell_contents for cell in x.__closure__ or () if not _is_empty_cell(cell)]
        names = [x.__globals__[n] for n in x.__code__.co_names if n in x.__globals__]
        return [*cells, *names, *(x.__defaults__ or ()), *(x.__kwdefaults__ or {}).values()]
    if type(x) is MethodType:
        return [x.__func__, *getattr(x.__self__, "__dict__", {}).values()]
    if type(x) is partial:
        return [x.func, *x.args, *x.keywords.values()]
    if type(x) in (list, tuple):
        return list(x) if len(x) <= _SEARCH_LIMIT else []
    if type(x) is dict:
        return list(x.values()) if len(x) <= _SEARCH_LIMIT else []
    return []


def _is_empty_cell(cell: Any) -> bool:
    try:
        return cell.cell_contents is None
    except ValueError:
        return True


def _captured_write_error(error: ValueError, arrays: list[Any]) -> CapturedWriteError:
    """The error for a write to one of `arrays` that NumPy refused."""
    line: Any = None
    names: dict[str, Any] = {}
    trail = error.__traceback__
    while trail is not None:
        frame = trail.tb_frame
        if user_frame(frame) is frame:
            line, names = (frame.f_code, trail.tb_lasti), {**frame.f_globals, **frame.f_locals}
        trail = trail.tb_next
    place, _, text = source_line(line).partition(": ")
    words = {*re.findall(r"\w+", text)} if text else {*names}
    code = line[0]
    used = [n for n in (*code.co_names, *code.co_freevars, *code.co_varnames) if n in words]
    written = [n for n in used if any(names.get(n) is x for x in arrays)]
    which = f"the NumPy array `{written[0]}`" if written else "an array of NumPy's"
    return CapturedWriteError(
        "jit: an array from outside the function must not be written to, since that would happen in "
        f"the first call alone; got {text or place!r} for {which}",
        fix="Pass the array as an argument, make it inside the function, or write to a copy, "
        "functx.numpy.array(x).",
        source=line,
    )
