"""Rules for operators that are defined elsewhere, found by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from functx.custom.operators.registry import resolve_operator


def impl(
    op: Any,
    device_types: str | Iterable[str] | None = None,
    fun: Callable[..., Any] | None = None,
    **options: Any,
) -> Any:
    """Register what computes `op`, an operator or its name, as its method `impl` does."""
    return resolve_operator(op, "impl").impl(device_types, fun, **options)


def def_abstract(op: Any, fun: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Register the types of results of `op`, an operator or its name, as its method does."""
    return resolve_operator(op, "def_abstract").def_abstract(fun, **options)


def register_autograd(
    op: Any,
    backward: Callable[..., Any],
    /,
    *,
    setup_context: Callable[..., Any] | None = None,
) -> None:
    """Register the derivative of `op`, an operator or its name, as its method does."""
    resolve_operator(op, "register_autograd").register_autograd(
        backward, setup_context=setup_context
    )


def def_vmap(op: Any, fun: Callable[..., Any] | None = None) -> Any:
    """Register the batching rule of `op`, an operator or its name, as its method does."""
    found = resolve_operator(op, "def_vmap")
    return partial(def_vmap, found) if fun is None else found.def_vmap(fun)


def def_jvp(op: Any, fun: Callable[..., Any] | None = None) -> Any:
    """Register the forward rule of `op`, an operator or its name, as its method does."""
    found = resolve_operator(op, "def_jvp")
    return partial(def_jvp, found) if fun is None else found.def_jvp(fun)
