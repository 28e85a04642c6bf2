"""Checks of values in traced functions, and their failures as results, by the names of `jax.experimental.checkify`."""

from functx import ops
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.errors import ArgumentError, type_name
from functx.core.source_info import source_line, user_source
from functx.core.tracer import aval_of
from functx.core.typing import ArrayLike, PyTree
from functx.debug import check_format
from functx.ops.checks import Check, CheckKind, CheckSite, FormatMessage
from functx.transforms.checkify import (
    Error,
    all_checks,
    automatic_checks,
    check_error,
    checkify,
    div_checks,
    float_checks,
    index_checks,
    nan_checks,
    user_checks,
)

__all__ = [
    "CheckKind",
    "Error",
    "all_checks",
    "automatic_checks",
    "check",
    "check_error",
    "checkify",
    "debug_check",
    "div_checks",
    "float_checks",
    "index_checks",
    "nan_checks",
    "user_checks",
]


def check(
    pred: ArrayLike, msg: str, *fmt_args: PyTree, debug: bool = False, **fmt_kwargs: PyTree
) -> None:
    """Check that the boolean scalar `pred` holds when the program runs.

    The message of a failure is `msg.format(*fmt_args, **fmt_kwargs)`, with the arrays in these pytrees as
    NumPy arrays, and the line of the call. With known values, also under `grad` and `vmap` outside of
    `jit`, a failure raises CheckError. A function that is compiled must be transformed by `checkify`,
    which returns the failure. With `debug`, the check is made under `checkify` alone.

    Raises ArgumentError for another `pred`, FormatError for a string that does not fit the values,
    UnhandledCheckError when it is compiled without `checkify`.

    >>> import functx
    >>> from functx.checkify import check
    >>> check(1 < 2, "never seen")
    >>> check(1 > 2, "{} is not more than {}", 1, 2)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    functx.core.errors.CheckError: 1 is not more than 2 (`check` failed)
    ...
    """
    label = "debug_check" if debug else "check"
    aval = None if isinstance(pred, str) else aval_of(pred)
    if aval is None or aval.shape or aval.dtype != bool:
        raise ArgumentError(
            f"{label}: the condition must be a boolean scalar; got {type_name(pred)}",
            fix="Reduce an array with functx.numpy.all.",
        )
    if not isinstance(msg, str):
        raise ArgumentError(
            f"{label}: the message must be a format string; got {type_name(msg)}",
            fix=f'Write {label}(x > 0, "x = {{}}", x).',
        )
    check_format(msg, fmt_args, fmt_kwargs, label)
    host, leaves = ops.flat_callback(
        label, FormatMessage(f"{msg} (`check` failed)"), fmt_args, fmt_kwargs, static_too=True
    )
    site = CheckSite(CheckKind.USER, host, source_line(user_source()), bool(debug))
    number = ops.convert_element_type(ops.bitwise_not(pred), "int32", False)
    Check((site,))(number, *leaves)


def debug_check(pred: ArrayLike, msg: str, *fmt_args: PyTree, **fmt_kwargs: PyTree) -> None:
    """`check` under `checkify`, and nothing without it.

    >>> import functx
    >>> functx.jit(lambda x: [functx.checkify.debug_check(x > 0, "negative"), x][1])(-1.0)
    Array(-1., dtype=float32, weak_type=True)
    """
    check(pred, msg, *fmt_args, debug=True, **fmt_kwargs)


_explain_errors(__name__)
