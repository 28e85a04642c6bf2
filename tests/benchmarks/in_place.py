"""Loops that write one slot of a buffer a step: in place, and with `.at[i].set` in JAX."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

import functx


def fori_loop(x: Any) -> Any:
    y = functx.numpy.zeros(len(x), "float32")

    def step(i: Any, _: Any) -> None:
        y[i] = 0.9 * functx.numpy.sin(y[i - 1]) + x[i]

    functx.lax.fori_loop(1, len(x), step, None)
    return (y * y).sum()


def fori_loop_in_jax(x: Any) -> Any:
    def step(i: Any, y: Any) -> Any:
        return y.at[i].set(0.9 * jax.numpy.sin(y[i - 1]) + x[i])

    y = jax.lax.fori_loop(1, len(x), step, jax.numpy.zeros(len(x), "float32"))
    return (y * y).sum()


def scan(x: Any) -> Any:
    y = functx.numpy.zeros(len(x), "float32")

    def step(last: Any, row: Any) -> Any:
        i, given = row
        y[i] = last = 0.9 * functx.numpy.sin(last) + given
        return last, None

    functx.lax.scan(step, functx.numpy.float32(0), (functx.numpy.arange(len(x)), x))
    return (y * y).sum()


def scan_in_jax(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        (y, last), (i, given) = carry, row
        last = 0.9 * jax.numpy.sin(last) + given
        return (y.at[i].set(last), last), None

    start = jax.numpy.zeros(len(x), "float32"), jax.numpy.float32(0)
    (y, _), _ = jax.lax.scan(step, start, (jax.numpy.arange(len(x)), x))
    return (y * y).sum()


def unrolled(x: Any) -> Any:
    y = functx.numpy.zeros(len(x), "float32")
    for i in range(1, len(x)):
        y[i] = 0.9 * functx.numpy.sin(y[i - 1]) + x[i]
    return (y * y).sum()


def unrolled_in_jax(x: Any) -> Any:
    y = jax.numpy.zeros(len(x), "float32")
    for i in range(1, len(x)):
        y = y.at[i].set(0.9 * jax.numpy.sin(y[i - 1]) + x[i])
    return (y * y).sum()


LOOPS = {
    "fill_fori": (fori_loop, fori_loop_in_jax, (2_000, 20_000)),
    "fill_scan": (scan, scan_in_jax, (2_000, 20_000)),
    "fill_unrolled": (unrolled, unrolled_in_jax, (10, 100)),
}
LANES = 8
MODES = "", "_grad", "_vmap", "_vmap_grad"


def given(steps: int, mode: str) -> Any:
    shape = (LANES, steps) if "vmap" in mode else (steps,)
    return jax.numpy.asarray(np.random.RandomState(0).randn(*shape).astype("float32"))


def task(loop: str, mode: str, steps: int) -> Callable[[SimpleNamespace], Callable[[], Any]]:
    """A loop of so many steps: forward, its gradient, or either for several arrays at once."""

    def build(fx: SimpleNamespace) -> Callable[[], Any]:
        ours, theirs, _ = LOOPS[loop]
        whole = theirs if fx.name == "JAX" else ours
        if "grad" in mode:
            whole = fx.grad(whole)
        if "vmap" in mode:
            whole = fx.vmap(whole)
        f, x = fx.jit(whole), given(steps, mode)
        return lambda: f(x)

    return build


# The short task and the long one of each kind: times should grow as the number of steps does.
PAIRS = [
    tuple([f"{loop}{mode}_{steps}" for steps in sizes])
    for loop, (*_, sizes) in LOOPS.items()
    for mode in MODES
]
IN_PLACE = {
    f"{loop}{mode}_{steps}": (task(loop, mode, steps), 1.05)
    for loop, (*_, sizes) in LOOPS.items()
    for mode in MODES
    for steps in sizes
}
