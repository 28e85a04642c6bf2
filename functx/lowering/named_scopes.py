"""Names of parts of a computation, which programs, profiles and compiled code show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import jax

from functx.core.context import ContextValue
from functx.core.errors import ArgumentError, type_name
from functx.core.source_info import named_scopes
from functx.core.typing import PyTree
from functx.transforms.argument_names import check_callable, function_name


@contextmanager
def named_scope(name: str) -> Iterator[None]:
    """Name the operations that are traced in a `with` block, or in a function that it decorates.

    Programs show the names of nested blocks as a path in front of the line, for derivatives too, and so
    do the metadata of the compiled code, for profilers. Names do not count as a part of the program: of
    two that differ in them alone, the first is compiled.

    >>> import functx
    >>> def f(x):
    ...     with functx.named_scope("encoder"):
    ...         return functx.numpy.sin(x)
    >>> print(functx.make_ir(f)(1.0))  # doctest: +ELLIPSIS
    program f(x: ~f32[]):
      a: ~f32[] = sin x     # encoder: ... in f
      return a
    """
    if not isinstance(name, str):
        raise ArgumentError(f"named_scope: the name must be a string; got {type_name(name)}")
    outer = named_scopes.get()
    with ContextValue(named_scopes, f"{outer}/{name}" if outer else name), jax.named_scope(name):
        yield


def named_call(fun: Callable[..., Any], *, name: str | None = None) -> Callable[..., Any]:
    """`fun` under `named_scope(name)`, by default under its own name."""
    check_callable(fun, "named_call")
    label = function_name(fun) if name is None else name

    @wraps(fun)
    def call(*args: object, **kwargs: object) -> PyTree:
        with named_scope(label):
            return fun(*args, **kwargs)

    return call
