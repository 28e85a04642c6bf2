"""The state of Python code at a decision: where it is, and the values of its local variables."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import islice, repeat
from operator import length_hint
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

import numpy as np

from functx.core.program import Literal
from functx.core.source_info import FUNCTX_OR_JAX, file_owner
from functx.core.tracer import Tracer

LeafKey = tuple[Any, ...]
"""A frame, the name of a local variable, and the path within its value."""


IS_LEAF = "leaf"
"""Describes a number or a traced array, whose value is among the leaves."""
SAME_AS = "same as"
"""Begins the description of an object that another path of keys leads to as well; that path follows."""
OUT_OF_REACH = "out of reach"
"""Describes state that is too large to be compared."""


class Leaf(NamedTuple):
    """A traced array or a number among the local variables; `set` replaces it, None if it cannot."""

    value: object
    set: Callable[[Any], None] | None


class Position(NamedTuple):
    """The place of a decision: the expressions that run in the user's frames, outermost first.

    `repeats` counts the decisions in a row that one call of C code makes there, as `max` does, and
    `iterators` says how far the iterators that frames do not show have come. `hidden_iterations` counts the
    iterations of each `for` that no variable may show.
    """

    frames: tuple[Any, ...]
    repeats: int = 0
    iterators: tuple[Any, ...] = ()
    hidden_iterations: tuple[Any, ...] = ()


def user_frames(frame: FrameType | None, outermost: CodeType) -> list[FrameType]:
    """The frames of the user's code, outermost first, up to the one that runs `outermost`."""
    frames: list[FrameType] = []
    while frame is not None and frame.f_code is not outermost:
        if is_user_frame(frame):
            frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def is_user_frame(frame: FrameType) -> bool:
    """Whether a frame runs code outside functx and JAX."""
    return file_owner[frame.f_code.co_filename] is not FUNCTX_OR_JAX


def expressions(frames: Iterable[FrameType]) -> tuple[Any, ...]:
    """The code and the position in its text of the expression that each frame runs."""
    return tuple([(f.f_code, *text_position(f.f_code, f.f_lasti)) for f in frames])


@lru_cache(4096)
def text_position(code: CodeType, offset: int) -> tuple[Any, ...]:
    """The position in the text of the expression of an instruction."""
    # A `while` compiles its condition twice; both copies have one position in the text.
    return next(islice(code.co_positions(), offset // 2, None), (offset,))


def live_iterators() -> dict[int, Any]:
    """The iterators and generators by identity that were made since the last garbage collection."""
    return {id(x): x for x in gc.get_objects(0) if type(x) in _ITERATOR_TYPES}


_CONTAINERS: tuple[Any, ...] = ([], {}, {}.values(), {}.items())
_ITERATOR_TYPES = frozenset(
    [
        GeneratorType,
        *[type(iter(x)) for x in (*_CONTAINERS, (), set(), "", range(1), range(2**70))],
        repeat,
        *[type(reversed(x)) for x in _CONTAINERS],
    ]
)


@contextmanager
def other_threads_wait() -> Iterator[None]:
    """A context in which other threads seldom run: their iterators would be taken for those of this one."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A context without garbage collections: they move iterators out of the generation where they are found."""
    gc.collect(0)
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


_SWITCH_INTERVAL = 1.0


def iterator_states(known: Iterable[int]) -> tuple[Any, ...]:
    """How far each young iterator has come, without those of the identities `known`."""
    found = live_iterators()
    for each in known:
        found.pop(each, None)
    return tuple(sorted([iterator_state(x) for x in found.values()]))


def iterator_state(x: object) -> tuple[str, str, int, str]:
    """The progress of an iterator: the position in its code, if it is a generator, and the items left."""
    if not isinstance(x, GeneratorType) or x.gi_frame is None:
        return type(x).__name__, "", length_hint(x, -1), ""
    variables = {
        name: length_hint(value, -1) if type(value) in _ITERATOR_TYPES else value
        for name, value in x.gi_frame.f_locals.items()
        if type(value) in _ITERATOR_TYPES or type(value) in _COMPARED_BY_TEXT
    }
    return type(x).__name__, x.gi_code.co_qualname, x.gi_frame.f_lasti, repr(variables)


class PythonState:
    """The values of the local variables of `frames`.

    `structure` has a comparable description of each variable, in which traced arrays and numbers are
    left out; these are the `leaves`.
    """

    def __init__(self, frames: Iterable[FrameType], keep: Callable[[object], None]):
        self.structure: dict[LeafKey, Any] = {}
        self.leaves: dict[LeafKey, Leaf] = {}
        self._keep = keep
        self._seen: dict[int, LeafKey] = {}
        for i, frame in enumerate(frames):
            for name, value in dict(frame.f_locals).items():
                setter = partial(set_local, frame, name)
                self.structure[i, name] = self._describe(value, (i, name), setter)

    def _describe(self, x: Any, path: LeafKey, setter: Callable[[Any], None] | None) -> Any:
        kind = type(x)
        if kind is Tracer or (
            setter and (kind in (int, float, complex) or isinstance(x, np.generic))
        ):
            self.leaves[path] = Leaf(x, setter)
            return IS_LEAF
        if x is None or x is ... or kind in _COMPARED_BY_TEXT or isinstance(x, np.generic):
            return kind, repr(x)
        if id(x) in self._seen:
            return SAME_AS, self._seen[id(x)]
        if len(self._seen) > _LARGEST_STATE:
            return OUT_OF_REACH
        self._seen[id(x)] = path
        self._keep(x)
        if kind is np.ndarray:
            return x.dtype.str, x.shape, x.tobytes() if x.dtype.kind != "O" else id(x)
        return kind, *[self._describe(*part) for part in self._parts(x, path)], _identity(x)

    def _parts(
        self, x: object, path: LeafKey
    ) -> Iterator[tuple[Any, LeafKey, Callable[[Any], None] | None]]:
        """The values within a container, a function or an object, with their paths and setters."""
        if isinstance(x, (list, dict)):
            for key in range(len(x)) if isinstance(x, list) else list(x):
                if isinstance(x, dict):
                    yield key, (*path, "key", str(key)), None
                yield x[key], (*path, str(key)), partial(x.__setitem__, key)
        elif isinstance(x, (tuple, frozenset, set)):
            for i, each in enumerate(x):
                yield each, (*path, i), None
        elif isinstance(x, FunctionType):
            parts = [contents for cell in x.__closure__ or () for contents in _contents(cell)]
            yield from [(p, (*path, i), None) for i, p in enumerate([*parts, x.__defaults__])]
        elif isinstance(x, (MethodType, partial)):
            inner = x.__reduce__()[1:] if isinstance(x, partial) else (x.__func__, x.__self__)
            yield from [(p, (*path, i), None) for i, p in enumerate(inner)]
        elif not isinstance(x, (type, ModuleType, BuiltinFunctionType)):
            attributes = getattr(x, "__dict__", {})
            for name in list(attributes):
                yield attributes[name], (*path, name), partial(attributes.__setitem__, name)
            for name in [n for c in type(x).__mro__ for n in _slots(c) if hasattr(x, n)]:
                yield getattr(x, name), (*path, name), partial(setattr, x, name)


_COMPARED_BY_TEXT = frozenset([bool, int, float, complex, str, bytes, slice, range])
_LARGEST_STATE = 10_000


def _contents(cell: CellType) -> list[Any]:
    """The value of a closure variable; none before its assignment."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _slots(cls: type) -> Iterable[str]:
    slots = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else [s for s in slots if s != "__weakref__"]


def _identity(x: object) -> Hashable:
    """Says which of several objects with equal parts `x` is; None where the parts say all."""
    if isinstance(x, FunctionType):
        return x.__code__
    if isinstance(x, (list, dict, tuple, set, frozenset, MethodType, partial)):
        return None
    if type(x) in _ITERATOR_TYPES:
        return length_hint(x, -1)
    has_parts = hasattr(x, "__dict__") or any(_slots(c) for c in type(x).__mro__)
    return None if has_parts and not isinstance(x, (type, ModuleType)) else id(x)


def set_local(frame: FrameType, name: str, value: object) -> None:
    """Set a local variable of a function that is running, as debuggers do."""
    variables = frame.f_locals
    variables[name] = value
    if sys.version_info < (3, 13):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def is_number_leaf(value: object) -> bool:
    """Whether a leaf is a number, or a traced array that stands for a literal."""
    return type(value) is not Tracer or type(value.atom) is Literal
