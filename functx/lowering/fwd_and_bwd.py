"""The forward and the backward computation of a function, as two functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from functx.core.errors import ArgnumsError
from functx.core.typing import PyTree
from functx.lowering.jit import jit
from functx.transforms.argument_names import check_callable, function_name
from functx.transforms.grad import canonical_argnums
from functx.transforms.jvp import vjp


def fwd_and_bwd(
    fun: Callable[..., Any],
    argnums: int | Sequence[int],
    has_aux: bool = False,
    jitted: bool = True,
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A function of the arguments, which saves residuals, and one of the residuals and a cotangent.

    `forward(*args)` returns `(output, residuals)`, and with `has_aux`, where `fun` returns
    `(output, aux)`, `(output, residuals, aux)`. `backward(residuals, ct)` returns the cotangent of the
    argument `argnums`, or a tuple of those of several. The residuals are a pytree. Both are compiled,
    unless `jitted` is False.

    >>> import functx
    >>> forward, backward = functx.fwd_and_bwd(lambda x, y: x * y, argnums=(0, 1))
    >>> value, residuals = forward(2.0, 3.0)
    >>> [float(ct) for ct in backward(residuals, 1.0)]
    [3.0, 2.0]
    """
    check_callable(fun, "fwd_and_bwd")
    numbers = canonical_argnums(argnums, "fwd_and_bwd")
    positions = (numbers,) if isinstance(numbers, int) else numbers

    @wraps(fun)
    def forward(*args: PyTree, **kwargs: PyTree) -> PyTree:
        if any(not -len(args) <= i < len(args) for i in positions):
            raise ArgnumsError(
                f"fwd_and_bwd({function_name(fun)}): argnums must name positional arguments; got "
                f"{argnums} for {len(args)} of them"
            )
        chosen = [i % len(args) for i in positions]

        @wraps(fun)
        def of_chosen(*values: PyTree) -> PyTree:
            given = dict(zip(chosen, values, strict=True))
            return fun(*[given.get(i, x) for i, x in enumerate(args)], **kwargs)

        return vjp(of_chosen, *[args[i] for i in chosen], has_aux=has_aux)

    def backward(residuals: Callable[..., Any], ct: PyTree) -> PyTree:
        cts = residuals(ct)
        return cts[0] if isinstance(numbers, int) else cts

    return (jit(forward), jit(backward)) if jitted else (forward, backward)
