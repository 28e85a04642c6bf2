"""Inspection of values while a program runs: prints, callbacks and breakpoints."""

from __future__ import annotations

import logging
import pdb
import sys
from bdb import BdbQuit
from collections.abc import Mapping
from functools import partial
from string import Formatter
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple

import numpy as np
from jax.debug import visualize_array_sharding, visualize_sharding

from functx import ops
from functx.core import tree
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.errors import ArgumentError, FormatError, FunctxError, type_name
from functx.core.source_info import user_frame
from functx.core.tracer import Tracer, aval_of
from functx.core.typing import Function, PyTree, Values
from functx.numpy.tracer_conversions import tracer_value

__all__ = [
    "breakpoint",
    "callback",
    "log",
    "print",
    "visualize_array_sharding",
    "visualize_sharding",
]


def callback(
    callback: Function | None = None, *args: PyTree, ordered: bool = False, **kwargs: PyTree
) -> Any:
    """Call `callback(*args, **kwargs)` when the program runs; its result is ignored.

    Arrays in the pytrees of the arguments arrive as NumPy arrays, other leaves unchanged.
    It is called each time the program reaches it: in each step of a loop, in the branch
    that is taken, once for each element of the batch of a `vmap`. A derivative calls it once,
    with the values of the function. With `ordered`, it is called after every earlier ordered
    callback has returned; otherwise the order is undefined. `effects_barrier` waits for all.
    Without a function, `callback(ordered=True)` returns one that takes it and its arguments.

    Raises ArgumentError for a `callback` that is not callable.

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


def _bind_callback(ordered: bool, callback: Any, /, *args: PyTree, **kwargs: PyTree) -> None:
    ops.check_callback("debug.callback", callback)
    host, leaves = ops.flat_callback("debug.callback", callback, args, kwargs, static_too=True)
    ops.DebugCallback(host, (), bool(ordered))(*leaves)


def print(
    fmt: str | None = None,
    *args: PyTree,
    ordered: bool = False,
    skip_format_check: bool = False,
    **kwargs: PyTree,
) -> Any:
    """Print `fmt.format(*args, **kwargs)` and a newline when the program runs.

    `fmt` is a format string, not an f-string, which would be formatted while the function is
    traced, when there are no values. Arguments are pytrees with leaves of any type.
    A string without fields is printed with the arguments after it. It prints when
    `debug.callback` would call a function. Without a string, `print(ordered=True)` returns a
    function that takes it and the values.

    Raises FormatError, at the call, if the fields of the string do not match the values, unless
    `skip_format_check`.

    >>> import functx
    >>> show = functx.jit(lambda x: functx.debug.print("x = {x:.2f}", x=x))
    >>> show(3.0); functx.effects_barrier()
    x = 3.00
    """
    options = PrintOptions(ordered, not skip_format_check)
    if fmt is None and not args and not kwargs:
        return partial(_print, options)
    _print(options, fmt, *args, **kwargs)
    return None


def log(
    fmt: str | None = None,
    *args: PyTree,
    ordered: bool = False,
    skip_format_check: bool = False,
    **kwargs: PyTree,
) -> Any:
    """Log `fmt.format(*args, **kwargs)` when the program runs, as `print` prints it.

    The logger of Python's `logging` is called `functx.debug`, and the level is INFO.

    >>> import functx, logging
    >>> logging.getLogger("functx.debug").addHandler(logging.NullHandler())
    >>> functx.jit(lambda x: functx.debug.log("x = {}", x))(3.0)
    """
    options = PrintOptions(ordered, not skip_format_check, True)
    if fmt is None and not args and not kwargs:
        return partial(_print, options)
    _print(options, fmt, *args, **kwargs)
    return None


class PrintOptions(NamedTuple):
    """Whether prints keep their order, whether their format is checked, and whether they go to the log."""

    ordered: bool
    checked: bool
    to_log: bool = False


def _print(options: PrintOptions, fmt: object, /, *args: PyTree, **kwargs: PyTree) -> None:
    if not isinstance(fmt, str):
        raise ArgumentError(
            f"debug.print: the first argument must be a format string; got {type_name(fmt)}",
            fix='Write debug.print("x = {}", x).',
        )
    has_fields = check_format(fmt, args, kwargs) if options.checked else "{" in fmt
    printer = PrintCallback(fmt, has_fields, options.to_log)
    host, leaves = ops.flat_callback("debug.print", printer, args, kwargs, static_too=True)
    ops.DebugCallback(host, (), bool(options.ordered))(*leaves)


class PrintCallback:
    """The callback that prints or logs a formatted string, with the NumPy print options of its creation."""

    def __init__(self, fmt: str, has_fields: bool, to_log: bool = False):
        self.fmt, self.has_fields, self.to_log = fmt, has_fields, to_log
        self.options = np.get_printoptions()
        self.key = fmt, has_fields, to_log, repr(self.options)
        self.__name__ = f"print {fmt!r}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrintCallback) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> None:
        with np.printoptions(**self.options):
            if self.has_fields:
                text = self.fmt.format(*args, **kwargs)
            else:
                text = " ".join([self.fmt, *map(str, args)])
        if self.to_log:
            logging.getLogger(__name__).info(text)
        else:
            sys.stdout.write(f"{text}\n")


def check_format(
    fmt: str, args: Values, kwargs: Mapping[str, Any], label: str = "debug.print"
) -> bool:
    """Whether `fmt` has fields; FormatError unless its fields and the values match each other."""
    if "Traced<" in fmt:
        raise FormatError(
            f"{label}: the string must be filled in when the program runs; got {fmt!r}",
            fix=f'Pass a plain string with fields, and the values: {label}("x = {{}}", x).',
        )
    checker = _FormatChecker(label)
    try:
        fields = [field for _, field, _, _ in checker.parse(fmt) if field is not None]
        checker.vformat(
            fmt, tree.map(_placeholder, tuple(args)), tree.map(_placeholder, dict(kwargs))
        )
    except FormatError as error:
        # Raised here: the traceback should not show the frames of the formatter.
        raise FormatError(error.problem, fix=error.fix) from None
    except Exception as error:
        raise FormatError(
            f"{label}: the string must be one that str.format takes; got {fmt!r}, of which it "
            f"says: {error}",
            fix="Write {{ and }} for braces that are to be printed.",
        ) from None
    unused = [f"argument {i}" for i in range(len(args)) if i not in checker.used and fields]
    unused += [f"`{name}`" for name in kwargs if name not in checker.used]
    if unused:
        raise FormatError(
            f"{label}: the string must have a field for every value; got {fmt!r}, without one "
            f"for {' and '.join(unused)}",
            fix="Pass a plain string, not an f-string, with a field for it.",
        )
    return bool(fields)


def _placeholder(x: object) -> object:
    """A value of the type that `x` has when it is printed."""
    try:
        aval = aval_of(x)
    except (FunctxError, OverflowError):
        return x
    return np.broadcast_to(np.zeros((), aval.dtype), aval.shape)


class _FormatChecker(Formatter):
    """A formatter that records which values it uses."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.used: set[int | str] = set()

    def get_value(self, key: int | str, args: Values, kwargs: Mapping[str, Any]) -> object:
        self.used.add(key)
        if isinstance(key, int) and key >= len(args):
            raise self._missing_value_error(f"field {key}", f"{len(args)} values by position")
        if isinstance(key, str) and key not in kwargs:
            raise self._missing_value_error(
                f"field `{key}`", ", ".join([f"`{k}`" for k in kwargs]) or "none by name"
            )
        return super().get_value(key, args, kwargs)

    def format_field(self, value: object, format_spec: str) -> str:
        # An array without a format specification always prints, and may be slow to.
        if not format_spec:
            return ""
        try:
            return str(format(value, format_spec))
        except (TypeError, ValueError) as error:
            raise FormatError(
                f"{self.label}: the format {format_spec!r} must be one for its value; got "
                f"{type_name(value)}: {error}",
                fix="Leave it out for an array, or print one element.",
            ) from None

    def _missing_value_error(self, field: str, values: str) -> FormatError:
        return FormatError(
            f"{self.label}: every field must have a value; got none for {field}, given {values}"
        )


def breakpoint(*, ordered: bool = False) -> None:
    """Stop at this line, at a prompt of `pdb` in which variables have their values.

    If the values are known while the function is traced (under `grad`, `vjp`, `jvp`, `vmap` of
    concrete arguments, and without a transform), the prompt is Python's debugger in the function
    itself: `n` runs the next line, and a traced array shows its value. Otherwise, as under `jit`
    and in the body of a loop, the prompt opens each time the running program reaches this line:
    `p`, `pp`, `l` and any expression show the variables of the function at this line, as NumPy
    arrays, and `c` continues. `q` ends the program. With `ordered`, prompts open in the order of
    the program, like the calls of `debug.callback`.

    >>> import functx, io, sys
    >>> def loss(x):
    ...     y = x * 2
    ...     functx.debug.breakpoint()
    ...     return y * y
    >>> stdin, sys.stdin = sys.stdin, io.StringIO("p float(y) + 1\\nc\\n")
    >>> print("value", functx.jit(loss)(3.0)); sys.stdin = stdin  # doctest: +ELLIPSIS
    > <doctest ...>(3)loss()
    -> functx.debug.breakpoint()
    (Pdb) 7.0
    (Pdb) value 36.0
    """
    frame = user_frame(sys._getframe(1))
    assert frame is not None
    variables = {k: x for k, x in frame.f_locals.items() if k.isidentifier()}
    traced = {k: x for k, x in variables.items() if any(map(_is_open_tracer, tree.leaves(x)))}
    leaves = [x for x in tree.leaves(traced) if _is_open_tracer(x)]
    if all(tracer_value(x) is not None for x in leaves):
        Debugger().set_trace(frame)
        return
    known = {k: x for k, x in variables.items() if k not in traced}
    callback = BreakpointCallback(frame.f_code, frame.f_lineno, frame.f_globals, known)
    host, leaves = ops.flat_callback("debug.breakpoint", callback, (traced,), {}, static_too=True)
    ops.DebugCallback(host, (), bool(ordered))(*leaves)


def _is_open_tracer(x: object) -> bool:
    return type(x) is Tracer and x.builder.is_open


class BreakpointCallback:
    """The callback that opens a prompt at a line of the user's function."""

    def __init__(
        self, code: CodeType, line: int, scope: dict[str, Any], variables: Mapping[str, Any]
    ):
        self.code, self.line, self.scope, self.variables = code, line, scope, variables
        self.__name__ = "breakpoint"

    def __call__(self, traced: Mapping[str, Any]) -> None:
        # The code runs at that line, in a frame whose locals are the values.
        prompt = FrozenFrameDebugger()
        prompt.reset()
        values = {**self.variables, **traced, _PROMPT_NAME: prompt}
        text = "\n" * (self.line - 1) + f"{_PROMPT_NAME}.interaction({_CURRENT_FRAME}, None)"
        code = compile(text, self.code.co_filename, "exec")
        exec(code.replace(co_name=self.code.co_name), self.scope, values)
        prompt.end()


_PROMPT_NAME = "__prompt__"
_CURRENT_FRAME = "__import__('sys')._getframe()"


class Debugger(pdb.Pdb):
    """Python's debugger; it continues at the end of its input, and skips functx and JAX."""

    def __init__(self) -> None:
        replaced = sys.stdin is not sys.__stdin__
        streams = {"stdin": sys.stdin, "stdout": sys.stdout} if replaced else {}
        super().__init__(skip=["functx.*", "jax.*", "jax"], **streams)  # type: ignore[arg-type]

    def do_EOF(self, arg: str) -> bool | None:  # noqa: N802 - the name that cmd.Cmd looks for
        """Continue, as `continue` does."""
        return self.do_continue(arg)


class FrozenFrameDebugger(Debugger):
    """A debugger at a frame that is not running: it shows values, continues or ends the program."""

    def get_stack(
        self, f: FrameType | None, t: TracebackType | None
    ) -> tuple[list[tuple[FrameType, int]], int]:
        assert f is not None
        return [(f, f.f_lineno)], 0

    def do_continue(self, arg: str) -> bool | None:
        """Continue the program."""
        return True

    do_c = do_cont = do_n = do_next = do_s = do_step = do_r = do_return = do_continue
    do_u = do_until = do_unt = do_continue

    def do_quit(self, arg: str) -> bool | None:
        """End the program."""
        self.quitting = True
        return True

    do_q = do_exit = do_quit

    def end(self) -> None:
        """Raise BdbQuit if the user quit."""
        if self.quitting:
            raise BdbQuit


_explain_errors(__name__)
