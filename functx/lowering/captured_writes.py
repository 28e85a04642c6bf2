"""Writes of known values to arrays around a function that is traced once and called often.

NumPy carries such a write out while the function is traced, and nothing of it is in the program, so
that the next call would not do it. The arrays that the function can see are therefore read-only while
`jit` traces it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from functx.core.errors import CapturedWriteError
from functx.core.provenance import source_line, user_frame

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
