"""`check_grads`: the derivatives of a function against differences of its values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from functx.core import tree
from functx.core.dtypes import complex_dtype, is_complex, is_inexact
from functx.core.errors import ValueRangeError
from functx.core.tracing import aval_of
from functx.ops.parameters import as_int
from functx.testing.jacobians import copy_arrays
from functx.transforms.jvp import jvp
from functx.transforms.vjp import vjp

Array = np.ndarray[Any, Any]


def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int,
    modes: Sequence[str] = ("fwd", "rev"),
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
) -> None:
    """Check the derivatives of `f` at `args` up to `order`, by differences in float64.

    `modes` names the ways to differentiate, forward (`"fwd"`) and reverse (`"rev"`); beyond
    the first order every sequence of them is checked. `args` are pytrees, whose inexact
    leaves all vary, in a random direction. `eps` is the step of the difference, 1e-4 unless
    given; `atol` and `rtol` are 1e-6 unless given.

    Raises AssertionError, which says how far off which derivative is.

    >>> from functx.testing import check_grads
    >>> check_grads(lambda x: x * x * x, (2.0,), order=2)
    """
    order = as_int("check_grads: order", order)
    if order < 1 or not set(modes) <= {"fwd", "rev"}:
        raise ValueRangeError(
            f"check_grads: order must be at least 1, and modes among 'fwd' and 'rev'; got {order} "
            f"and {modes}"
        )
    with jax.enable_x64():
        leaves, in_tree = tree.flatten(tuple(args))
        wide = [_widen_leaf(x) for x in leaves]
        varying = [i for i, x in enumerate(wide) if is_inexact(x.dtype)]
        checker = _GradientChecker(
            tuple(modes),
            1e-6 if atol is None else atol,
            1e-6 if rtol is None else rtol,
            1e-4 if eps is None else eps,
        )

        def flat(*moving: Any) -> list[Any]:
            every = list(wide)
            for i, x in zip(varying, moving, strict=True):
                every[i] = x
            outs = tree.leaves(f(*tree.unflatten(in_tree, copy_arrays(every))))
            return [out for out in outs if is_inexact(aval_of(out).dtype)]

        checker.check(flat, [wide[i] for i in varying], order, getattr(f, "__name__", "f"))


class _GradientChecker:
    """The modes, tolerances and step of one call of `check_grads`."""

    def __init__(self, modes: Sequence[str], atol: float, rtol: float, eps: float):
        self.modes, self.atol, self.rtol, self.eps = modes, atol, rtol, eps
        self.random = np.random.RandomState(0)

    def check(
        self, flat: Callable[..., list[Any]], leaves: list[Array], order: int, name: str
    ) -> None:
        """Check the first derivative of `flat`, then those of its derivative."""
        directions = [self.direction(x) for x in leaves]

        def at(step: float) -> list[Array]:
            moved = [np.asarray(x + step * d) for x, d in zip(leaves, directions, strict=True)]
            return [np.asarray(x) for x in flat(*moved)]

        slopes = central_difference(at, self.eps)
        if "fwd" in self.modes:
            _, tangents = jvp(flat, leaves, directions)
            for k, (got, wanted) in enumerate(zip(tangents, slopes, strict=True)):
                self.compare(f"jvp of {name}, output {k}", np.asarray(got), wanted)
        outs, pullback = vjp(flat, *leaves)
        cts = [self.direction(np.asarray(out)) for out in outs]
        if "rev" in self.modes:
            pulled = [np.asarray(x) for x in pullback(cts)]
            got = real_inner_product(pulled, directions)
            self.compare(f"vjp of {name}, along a direction", got, real_inner_product(cts, slopes))
        if order == 1:
            return
        n = len(leaves)
        if "fwd" in self.modes:
            self.check(
                lambda *xs: list(jvp(flat, xs[:n], xs[n:])[1]),
                [*leaves, *directions],
                order - 1,
                f"jvp of {name}",
            )
        if "rev" in self.modes:
            self.check(
                lambda *xs: list(vjp(flat, *xs[:n])[1](list(xs[n:]))),
                [*leaves, *cts],
                order - 1,
                f"vjp of {name}",
            )

    def direction(self, x: Array) -> Array:
        d: Any = self.random.uniform(-1.0, 1.0, x.shape)
        if is_complex(x.dtype):
            d = d + 1j * self.random.uniform(-1.0, 1.0, x.shape)
        return np.asarray(d, x.dtype)

    def compare(self, what: str, got: Any, wanted: Any) -> None:
        scale = max(1.0, float(np.max(np.abs(wanted), initial=0.0)))
        if not np.allclose(got, wanted, rtol=self.rtol, atol=self.atol * scale):
            raise AssertionError(
                f"check_grads: {what} must match a central difference; got\n{got}\nfor\n{wanted}"
            )


def central_difference(at: Callable[[float], Sequence[Array]], step: float) -> list[Array]:
    """The derivative of the arrays `at(s)` at s = 0, with an error of the order of `step**4`."""

    def slopes(h: float) -> list[Array]:
        pairs = [(widen(x), widen(y)) for x, y in zip(at(h), at(-h), strict=True)]
        # Not inf - inf where a value stays infinite.
        return [np.subtract(x, y, out=np.zeros_like(x), where=x != y) / (2 * h) for x, y in pairs]

    near, far = slopes(step), slopes(2 * step)
    return [(4 * x - y) / 3 for x, y in zip(near, far, strict=True)]


def real_inner_product(xs: Sequence[Array], ys: Sequence[Array]) -> float:
    """The real part of the sum of products, without conjugation: what transposing keeps."""
    return float(sum(np.sum((widen(x) * widen(y)).real) for x, y in zip(xs, ys, strict=True)))


def widen(x: Array) -> Array:
    """`x` in float64, or complex128."""
    return np.asarray(x, np.complex128 if np.iscomplexobj(x) else np.float64)


def _widen_leaf(x: Any) -> Array:
    x = np.asarray(x)
    if not is_inexact(x.dtype):
        return x
    return x.astype(complex_dtype(np.dtype(np.float64)) if is_complex(x.dtype) else np.float64)
