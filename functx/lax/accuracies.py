"""Elementwise functions that take JAX's `accuracy`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from functx import ops
from functx.core.errors import ArgumentError, short_repr
from functx.core.typing import ArrayLike, Value


def _taking_accuracy(function: Callable[[ArrayLike], Value]) -> Any:
    """`function` with a keyword `accuracy`: any but the default is that of the function of JAX."""
    name = function.__name__

    def call(
        x: ArrayLike, *, accuracy: jax.lax.Tolerance | jax.lax.AccuracyMode | None = None
    ) -> Value:
        if accuracy is None or accuracy is jax.lax.AccuracyMode.DEFAULT:
            return function(x)
        if not isinstance(accuracy, (jax.lax.AccuracyMode, jax.lax.Tolerance)):
            raise ArgumentError(
                f"{name}: accuracy must be a jax.lax.AccuracyMode, a jax.lax.Tolerance or None; got "
                f"{short_repr(accuracy)}"
            )
        return getattr(jax.lax, name)(x, accuracy=accuracy)  # type: ignore[no-any-return]

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"""{function.__doc__}

    With an `accuracy` other than the default it is an operation that JAX runs.
    """
    return call


cbrt = _taking_accuracy(ops.cbrt)
cos = _taking_accuracy(ops.cos)
exp = _taking_accuracy(ops.exp)
exp2 = _taking_accuracy(ops.exp2)
expm1 = _taking_accuracy(ops.expm1)
log = _taking_accuracy(ops.log)
log1p = _taking_accuracy(ops.log1p)
logistic = _taking_accuracy(ops.logistic)
rsqrt = _taking_accuracy(ops.rsqrt)
sin = _taking_accuracy(ops.sin)
sqrt = _taking_accuracy(ops.sqrt)
tan = _taking_accuracy(ops.tan)
tanh = _taking_accuracy(ops.tanh)
