"""Programs that repeat themselves, unrolled by Python's loops: how long to compile, and to run.

`python -m tests.benchmarks.repeats [NAME ...] [--jax] [--never]`: each is compiled once, since JAX
takes minutes for some; `--never` is functx without outlining.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax

import functx
from tests.benchmarks import networks
from tests.benchmarks.tasks import FUNCTX, JAX, blocks, normal, residual_net

Task = tuple[Callable[[Any], Callable[..., Any]], tuple[Any, ...]]


def residual(count: int) -> Task:
    return lambda fx: fx.grad(residual_net(fx)), (blocks(count), normal(8, 64))


def unrolled_rnn(steps: int, width: int = 32) -> Task:
    def of(fx: Any) -> Callable[..., Any]:
        def loss(params: Any, xs: Any) -> Any:
            w, u, bias = params
            h = fx.np.zeros((8, width), "float32")
            for t in range(steps):
                h = fx.np.tanh(xs[t] @ w + h @ u + bias)
            return fx.np.mean(h**2)

        return fx.grad(loss)  # type: ignore[no-any-return]

    weights = normal(width, width, scale=0.2), normal(width, width, scale=0.2), normal(width)
    return of, (weights, normal(steps, 8, width))


def unrolled_solver(steps: int, size: int = 1000) -> Task:
    """Explicit steps of a diffusion with a reaction."""

    def of(fx: Any) -> Callable[..., Any]:
        def slope(u: Any) -> Any:
            return fx.np.roll(u, 1) - 2.0 * u + fx.np.roll(u, -1) + u * (1.0 - u)

        def solve(u: Any, dt: Any) -> Any:
            for _ in range(steps):
                middle = u + 0.5 * dt * slope(u)
                u = u + dt * slope(middle)
            return u

        return solve

    return of, (normal(size), 0.01)


def deep_transformer(count: int) -> Task:
    """The gradient of the transformer of `networks`, with other weights in each block."""
    loss, (params, words, target) = networks.given()["transformer"]
    params = params | {"blocks": [params["blocks"][i % 4] for i in range(count)]}

    def of(fx: Any) -> Callable[..., Any]:
        library = networks.IN_JAX if fx.name == "JAX" else networks.IN_FUNCTX
        return fx.grad(lambda params, x, y: loss(library, params, x, y))  # type: ignore[no-any-return]

    return of, (params, words, target)


TASKS: dict[str, Callable[[], Task]] = {
    "residual24": lambda: residual(24),
    "residual48": lambda: residual(48),
    "rnn64": lambda: unrolled_rnn(64),
    "rnn256": lambda: unrolled_rnn(256),
    "solver100": lambda: unrolled_solver(100),
    "solver1000": lambda: unrolled_solver(1000),
    "transformer12": lambda: deep_transformer(12),
}


def times(jitted: Any, args: Any) -> tuple[float, float, float]:
    """Seconds to trace and lower, to compile, and to run (the median of 30)."""
    start = time.perf_counter()
    lowered = jitted.lower(*args)
    made = time.perf_counter()
    compiled = lowered.compile()
    done = time.perf_counter()
    runs = []
    for _ in range(33):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        runs.append(time.perf_counter() - begin)
    return made - start, done - made, statistics.median(runs[3:])


def main(names: list[str]) -> None:
    kinds: list[tuple[str, Any, Any]] = [("functx", FUNCTX, functx.jit)]
    if "--never" in names:
        kinds.append(("never", FUNCTX, lambda f: functx.jit(f, outline="never")))
    if "--jax" in names:
        kinds.append(("JAX", JAX, jax.jit))
    print(f"{'task':16}{'':8}{'lower s':>10}{'compile s':>11}{'run ms':>10}")
    for name in [name for name in names if name in TASKS] or list(TASKS):
        of, args = TASKS[name]()
        for kind, fx, jit in kinds:
            lower, compile_, run = times(jit(of(fx)), args)
            print(f"{name:16}{kind:8}{lower:10.3f}{compile_:11.3f}{run * 1e3:10.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
