"""`debug.callback`: a Python function called with the values of a program that runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from string import Formatter
from typing import Any

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.errors import ArgumentError, FormatError, FunctxError, type_name
from functx.core.tracer import aval_of


def callback(
    callback: Callable[..., Any] | None = None, *args: Any, ordered: bool = False, **kwargs: Any
) -> Any:
    """Call `callback(*args, **kwargs)` when the program runs, and drop what it returns.

    Arrays in the pytrees of the arguments arrive as NumPy arrays, other leaves as they are.
    It is called once wherever the program comes by: in each step of a loop, in the branch
    that is taken, for each lane of a `vmap` in turn. A derivative calls it once, with the
    values of the function. With `ordered`, it is called after every earlier ordered callback
    has returned; else the order is not promised. `effects_barrier` waits for all.
    Without a function, `callback(ordered=True)` gives one that takes it and its arguments.

    Raises ArgumentError for a `callback` that cannot be called.

    >>> import functx
    >>> seen = []
    >>> def f(x):
    ...     functx.debug.callback(seen.append, x * 2)
    ...     return x * x
    >>> float(functx.grad(f)(3.0)), [float(x) for x in seen]
    (6.0, [6.0])
    """
    if callback is None and not args and not kwargs:
        return partial(_bind_callback, ordered)
    _bind_callback(ordered, callback, *args, **kwargs)
    return None


def _bind_callback(ordered: bool, callback: Any, /, *args: Any, **kwargs: Any) -> None:
    ops.check_callback("debug.callback", callback)
    host, leaves = ops.flat_callback("debug.callback", callback, args, kwargs, static_too=True)
    ops.DebugCallback(host, (), bool(ordered))(*leaves)


def print(fmt: str | None = None, *args: Any, ordered: bool = False, **kwargs: Any) -> Any:
    """Print `fmt.format(*args, **kwargs)`, with a line's end, when the program runs.

    `fmt` is a format string, not an f-string: that would be filled in while the function is
    traced, when there are no values. Arguments are pytrees of arrays and of anything else.
    A string without fields is printed with the arguments behind it. When and how often it
    prints is said at `debug.callback`. Without a string, `print(ordered=True)` gives a
    function that takes it and the values.

    Raises FormatError, at the call, where the string and the values do not fit each other.

    >>> import functx
    >>> show = functx.jit(lambda x: functx.debug.print("x = {x:.2f}", x=x))
    >>> show(3.0); functx.effects_barrier()
    x = 3.00
    """
    if fmt is None and not args and not kwargs:
        return partial(_print, ordered)
    _print(ordered, fmt, *args, **kwargs)
    return None


def _print(ordered: bool, fmt: Any, /, *args: Any, **kwargs: Any) -> None:
    if not isinstance(fmt, str):
        raise ArgumentError(
            f"debug.print: the first argument must be a format string; got {type_name(fmt)}",
            fix='Write debug.print("x = {}", x).',
        )
    has_fields = check_format(fmt, args, kwargs)
    shown = PrintCallback(fmt, has_fields)
    host, leaves = ops.flat_callback("debug.print", shown, args, kwargs, static_too=True)
    ops.DebugCallback(host, (), bool(ordered))(*leaves)


class PrintCallback:
    """A line of text to be printed with values in it, as NumPy's print options are now."""

    def __init__(self, fmt: str, has_fields: bool):
        self.fmt, self.has_fields = fmt, has_fields
        self.options = np.get_printoptions()
        self.key = fmt, has_fields, repr(self.options)
        self.__name__ = f"print {fmt!r}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrintCallback) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        with np.printoptions(**self.options):
            if self.has_fields:
                text = self.fmt.format(*args, **kwargs)
            else:
                text = " ".join([self.fmt, *map(str, args)])
        sys.stdout.write(f"{text}\n")


def check_format(fmt: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether `fmt` has fields; FormatError unless they are for the values, and all of them."""
    if "Traced<" in fmt:
        raise FormatError(
            f"debug.print: the string must be filled in when the program runs; got {fmt!r}",
            fix='Pass a plain string with fields, and the values: debug.print("x = {}", x).',
        )
    checker = _FormatChecker()
    try:
        fields = [field for _, field, _, _ in checker.parse(fmt) if field is not None]
        checker.vformat(
            fmt, tree.map(_placeholder, tuple(args)), tree.map(_placeholder, dict(kwargs))
        )
    except FormatError as error:
        # Made here, for the frames of the formatter are not the user's.
        raise FormatError(error.problem, fix=error.fix) from None
    except Exception as error:
        raise FormatError(
            f"debug.print: the string must be one that str.format takes; got {fmt!r}, of which it "
            f"says: {error}",
            fix="Write {{ and }} for braces that are to be printed.",
        ) from None
    spare = [f"argument {i}" for i in range(len(args)) if i not in checker.used and fields]
    spare += [f"`{name}`" for name in kwargs if name not in checker.used]
    if spare:
        raise FormatError(
            f"debug.print: the string must have a field for every value; got {fmt!r}, without one "
            f"for {' and '.join(spare)}",
            fix="Pass a plain string, not an f-string, with a field for it.",
        )
    return bool(fields)


def _placeholder(x: Any) -> Any:
    """Something of the type that `x` will have when it is printed."""
    try:
        aval = aval_of(x)
    except (FunctxError, OverflowError):
        return x
    return np.broadcast_to(np.zeros((), aval.dtype), aval.shape)


class _FormatChecker(Formatter):
    """Fills in a string, and notes which values it takes."""

    def __init__(self) -> None:
        self.used: set[int | str] = set()

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.used.add(key)
        if isinstance(key, int) and key >= len(args):
            raise _missing_value_error(f"field {key}", f"{len(args)} values by position")
        if isinstance(key, str) and key not in kwargs:
            raise _missing_value_error(
                f"field `{key}`", ", ".join([f"`{k}`" for k in kwargs]) or "none by name"
            )
        return super().get_value(key, args, kwargs)

    def format_field(self, value: Any, format_spec: str) -> str:
        # Large arrays take a while to print, and do so without fail.
        if not format_spec:
            return ""
        try:
            return str(format(value, format_spec))
        except (TypeError, ValueError) as error:
            raise FormatError(
                f"debug.print: the format {format_spec!r} must be one for its value; got "
                f"{type_name(value)}: {error}",
                fix="Leave it out for an array, or print one element.",
            ) from None


def _missing_value_error(field: str, given: str) -> FormatError:
    return FormatError(
        f"debug.print: every field must have a value; got none for {field}, given {given}"
    )
