"""Arrays that a jitted function captures: hidden arguments of its program, which it may not write to."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import jax
import numpy as np
from jax.extend.core import find_top_trace

from functx.core import tree
from functx.core.backend import backend
from functx.core.caches import Cache
from functx.core.captured_state import CapturedState, read_states
from functx.core.errors import ArgumentError, CapturedWriteError, FunctxError
from functx.core.generator_state import GeneratorState
from functx.core.source_info import closure_values, source_line, user_frame
from functx.core.tracer import aval_of
from functx.core.typing import ArrayLike, Function, NumPyArray, PyTree, Value, Values
from functx.transforms.aliasing import write_back_arguments, write_state


class Retrace(Exception):
    """Ends JAX's trace of a jitted function, which has to be traced in another way.

    `prepare(call)` makes the next trace that way; `call` are the arguments of the call, None where
    they are abstract. By default nothing has to be prepared, since the trace itself has noted what the
    next one needs.
    """

    def __init__(self, prepare: Callable[[Any], None] = lambda _call: None):
        self.prepare = prepare
        # An exception would leave the trace alive with its constants. Without jit, JAX traces for
        # somebody else.
        if not jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            find_top_trace(()).invalidate()


LARGEST_CONSTANT = 1 << 12
"""The most bytes of a captured array that is a constant of the compiled program."""


class CapturedArrays:
    """The arrays that a jitted function has captured, which JAX gets as hidden arguments.

    `originals` are the arrays themselves, `arguments` JAX arrays with their elements: copies of
    those that may change. The state of a generator is passed as it is: JAX reads it at each call.
    """

    def __init__(self) -> None:
        self.originals: list[Value] = []
        self.arguments: tuple[Any, ...] = ()
        # The captured NumPy arrays that are constants of compiled programs, by identity.
        self.constants: dict[int, NumPyArray] = {}
        self.positions_by_key = Cache("jit", 256)
        # The arguments from here on are those of the trace before this one.
        self.num_settled = 0
        self.is_retrace = False

    def in_trace(self, captured: list[Value], arguments: Values, key: Hashable) -> list[Any]:
        """The values of captured arrays in JAX's trace of a call with the cache key `key`.

        `arguments` are the hidden arguments of the call. An array that the function makes itself
        is a constant: the next trace makes another. Raises Retrace for arrays to pass as well, and
        where the trace before this one met arrays that do not come again.
        """
        is_local = local_mask(captured)
        count, positions = self.positions_by_key.get(key) or (0, {})
        if count == len(self.arguments):
            # JAX has dropped the program, or traces under options of its own.
            positions = {}
        pairs = zip(captured, is_local, strict=True)
        values = [self.argument_for(x, local, arguments, positions) for x, local in pairs]
        if any([x is None for x in values]):
            raise Retrace(self.pass_new)
        if any([i not in positions.values() for i in range(self.num_settled, len(self.arguments))]):
            raise Retrace(partial(self.drop_unmet, frozenset(positions.values())))
        self.positions_by_key.put(key, (len(self.arguments), positions))
        self.num_settled, self.is_retrace = len(self.arguments), False
        # JAX reads them as it takes arguments, but not while its own jit is off.
        return read_states(values)

    def argument_for(
        self, x: Value, is_local: bool, arguments: Values, positions: dict[int, int]
    ) -> jax.Array | NumPyArray | None:
        """The hidden argument or the constant for the captured array `x`; None if it is new.

        An array whose elements have changed since it was copied is new. `positions` says which
        copy of each array the program takes, for when it is traced again only to be passed more.
        """
        if isinstance(x, jax.core.Tracer):
            return x
        if becomes_constant(x):
            if isinstance(x, np.ndarray) and not is_local:
                self.constants[id(x)] = x
            return snapshot(x)
        for i, original in enumerate(self.originals):
            if original is not x or positions.get(id(x), i) != i:
                continue
            if i >= len(arguments):
                return None
            if id(x) in positions or is_bitwise_equal(x, self.arguments[i]):
                positions[id(x)] = i
                return arguments[i]
        if (is_local or self.is_retrace) and not isinstance(x, CapturedState):
            return snapshot(x)
        self.originals.append(x)
        return None

    def pass_new(self, _call: object) -> None:
        """Pass the new captured arrays from now on, those that may change as copies."""
        self.is_retrace = True
        new = self.originals[len(self.arguments) :]
        # Arrays now, also while JAX is tracing the call.
        with jax.core.eval_context():
            copies = [
                x if isinstance(x, CapturedState) else jax.numpy.asarray(snapshot(x)) for x in new
            ]
        self.arguments = (*self.arguments, *copies)

    def check_not_passed(self, call: PyTree) -> None:
        """Raise ArgumentError if an argument shares memory with a `Ref` that the function captures."""
        held = [
            x.load()
            for x in self.arguments
            if isinstance(x, CapturedState) and not isinstance(x, GeneratorState)
        ]
        for x in tree.leaves(call) if held else ():
            if isinstance(x, np.ndarray) and any([np.may_share_memory(x, y) for y in held]):
                raise ArgumentError(
                    "jit: a `Ref` must not be both an argument and captured by a function that writes to "
                    f"one; got one of {aval_of(x)!r}",
                    fix="Use the argument inside the function.",
                )

    def check_not_written(self, written: Values) -> None:
        """Raise ArgumentError if an argument that a call writes to shares memory with a captured array."""
        captured = [
            x for x in (*self.originals, *self.constants.values()) if isinstance(x, np.ndarray)
        ]
        for x in written:
            if isinstance(x, np.ndarray) and any([np.may_share_memory(x, y) for y in captured]):
                raise ArgumentError(
                    "jit: a function must not write to an argument that shares memory with an array around "
                    f"the function; got one of {aval_of(x)!r}",
                    fix="Use the argument inside the function, or pass a copy.",
                )

    def position_of_state(self, state: Value) -> int:
        """The position of the state of a generator among the hidden arguments."""
        return next(i for i, x in enumerate(self.arguments) if x is state)

    def drop_unmet(self, met: frozenset[int], _call: object) -> None:
        """Leave out new arrays that the last trace did not meet: the function makes them itself."""
        count = range(len(self.arguments))
        kept = [i for i in count if i < self.num_settled or i in met]
        self.originals = [self.originals[i] for i in kept]
        self.arguments = tuple([self.arguments[i] for i in kept])


def _count_of_local() -> int:
    """The reference count of an object that only a list holds; 0 where counts do not tell.

    They do on CPython with the global interpreter lock, where an object that more than the list
    holds has a larger count.
    """
    has_gil: Callable[[], bool] = getattr(sys, "_is_gil_enabled", lambda: True)
    if sys.implementation.name != "cpython" or not has_gil():
        return 0
    shared = object()
    (local,) = [sys.getrefcount(x) for x in [object()]]
    (more,) = [sys.getrefcount(x) for x in [shared]]
    return local if local < more else 0


COUNT_OF_LOCAL = _count_of_local()


def local_mask(arrays: list[Value]) -> list[bool]:
    """Whether only the list holds each array, since the function made it while it was traced.

    False for all where the interpreter does not count references exactly. Then a second trace
    shows which arrays come again, and were there before.
    """
    if not COUNT_OF_LOCAL:
        return [False] * len(arrays)
    return [sys.getrefcount(x) <= COUNT_OF_LOCAL for x in arrays]


def read_hidden_states(hidden: tuple[Any, ...]) -> tuple[Any, ...]:
    """Hidden arguments with the words of each state of a generator, as ahead-of-time calls take them."""
    if len(hidden) == 2 and isinstance(hidden[0], tuple):
        return (read_hidden_states(hidden[0]), hidden[1])
    return tuple(read_states(hidden))


def write_back_call(leaves: Values, hidden: Values, new: dict[int, Value]) -> None:
    """Write the new values that a call returns: of arguments, and of the states of generators.

    A state has the key -1 - i if it is number i of the `hidden` arguments.
    """
    write_back_arguments(leaves, {i: x for i, x in new.items() if i >= 0})
    for i, x in new.items():
        if i < 0:
            write_state(hidden[-1 - i], x)


def becomes_constant(x: Value) -> bool:
    """Whether the captured array `x` becomes a constant of the compiled program.

    XLA moves what a loop computes from an argument out of the loop, which costs more than to compute
    it again; and it multiplies by large constants more slowly than by arguments.
    """
    # A committed array says on which device the function runs.
    is_free = isinstance(x, np.ndarray) or (isinstance(x, jax.Array) and not x.committed)
    # XLA does not compile constants of all dtypes of fewer than 8 bits, or of small floats.
    return bool(is_free and np.dtype(x.dtype).isbuiltin == 1 and x.nbytes <= LARGEST_CONSTANT)


def is_bitwise_equal(x: ArrayLike, copy: jax.Array) -> bool:
    """Whether `copy`, of an array, still has the dtype and the elements of it."""
    if x is copy:
        return True
    with backend.outer_jax_trace():
        now, then = snapshot(x), np.asarray(copy)
    if now.dtype != then.dtype:
        return False
    return np.array_equal(now.ravel().view(np.uint8), then.ravel().view(np.uint8))


def snapshot(x: ArrayLike) -> jax.Array | NumPyArray:
    """The elements of `x` as they are now, in functx's dtype.

    JAX remembers what it converts to another dtype by identity, also once that was written to.
    """
    with np.errstate(all="ignore"):
        return x if isinstance(x, jax.Array) else np.array(x, aval_of(x).dtype)


_SEARCH_LIMIT = 256
"""The largest number of functions and containers that `reachable_arrays` looks into."""


@contextmanager
def freeze_captured_arrays(fun: Function) -> Iterator[None]:
    """Makes the NumPy arrays that `fun` can reach read-only; a write raises CapturedWriteError."""
    # A view can be made writable again only when its base is.
    arrays = sorted(
        [x for x in reachable_arrays(fun) if x.flags.writeable], key=lambda x: x.base is not None
    )
    for x in arrays:
        x.flags.writeable = False
    try:
        yield
    except FunctxError:
        raise
    except ValueError as error:
        if not arrays or "read-only" not in str(error):
            raise
        raise _captured_write_error(error, arrays) from error
    finally:
        for x in arrays:
            x.flags.writeable = True


def reachable_arrays(fun: Function) -> list[NumPyArray]:
    """The NumPy arrays in the closure, globals, defaults and attributes of `fun`.

    Also those reached through other functions and through lists, tuples and dictionaries.
    """
    arrays: dict[int, NumPyArray] = {}
    seen: dict[int, Any] = {}
    pending: list[object] = [fun]
    if not isinstance(fun, (FunctionType, MethodType, partial)):
        pending = [getattr(type(fun), "__call__", None), *getattr(fun, "__dict__", {}).values()]  # noqa: B004
    while pending and len(seen) < _SEARCH_LIMIT:
        x = pending.pop()
        if isinstance(x, np.ndarray):
            arrays[id(x)] = x
        elif id(x) not in seen:
            seen[id(x)] = x
            pending += _referents(x)
    return list(arrays.values())


def _referents(x: Any) -> list[Any]:
    """The objects that a function, method, partial application or container refers to."""
    if type(x) is FunctionType:
        if (x.__module__ or "").partition(".")[0] in ("functx", "jax", "numpy"):
            return [x.__wrapped__] if hasattr(x, "__wrapped__") else []
        names = [x.__globals__[n] for n in x.__code__.co_names if n in x.__globals__]
        return [
            *closure_values(x),
            *names,
            *(x.__defaults__ or ()),
            *(x.__kwdefaults__ or {}).values(),
        ]
    if type(x) is MethodType:
        return [x.__func__, *getattr(x.__self__, "__dict__", {}).values()]
    if type(x) is partial:
        return [x.func, *x.args, *x.keywords.values()]
    if type(x) in (list, tuple):
        return list(x) if len(x) <= _SEARCH_LIMIT else []
    if type(x) is dict:
        return list(x.values()) if len(x) <= _SEARCH_LIMIT else []
    return []


def _captured_write_error(error: ValueError, arrays: Sequence[NumPyArray]) -> CapturedWriteError:
    """The error for a write to one of `arrays` that NumPy refused."""
    line: Any = None
    names: dict[str, Any] = {}
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if user_frame(frame) is frame:
            line, names = (frame.f_code, traceback.tb_lasti), {**frame.f_globals, **frame.f_locals}
        traceback = traceback.tb_next
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
