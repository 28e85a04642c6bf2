"""Times batched products against JAX: `python -m tests.benchmarks.products [WORD ...]`.

One line a case: the ratio of functx's time to JAX's in each dtype. Words choose the cases whose
names contain one of them.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import ml_dtypes
import numpy as np

from tests.benchmarks.tasks import FUNCTX, JAX

DTYPES = {"f32": "float32", "f64": "float64", "bf16": ml_dtypes.bfloat16, "c64": "complex64"}
ROUNDS, TURN = 9, 0.02


def quadratic(fx: Any) -> Callable[..., Any]:
    return lambda a, x: x @ (a @ x)


def layer_gradient(fx: Any) -> Callable[..., Any]:
    """The per-example gradients of two layers, whose outer products read matrix products."""

    def loss(v: Any, w: Any, x: Any) -> Any:
        h = x @ v
        return fx.np.real((((h * h) @ w) ** 2).sum())

    holomorphic = lambda v, w, x: fx.grad(loss, (0, 1))(v, w, x)  # noqa: E731
    return fx.vmap(holomorphic, (None, None, 0))


# The shapes of the operands, and the function for a framework.
CASES: dict[str, tuple[tuple[tuple[int, ...], ...], Callable[[Any], Callable[..., Any]]]] = {
    "outer": (((256, 128), (256, 128)), lambda fx: fx.vmap(fx.np.outer)),
    "outer, small": (((4096, 8), (4096, 8)), lambda fx: fx.vmap(fx.np.outer)),
    "outer of three": (
        ((64, 32), (64, 32), (64, 32)),
        lambda fx: fx.vmap(lambda x, y, z: fx.np.einsum("i,j,k->ijk", x, y, z)),
    ),
    "outer, transposed": (
        ((256, 128), (256, 128)),
        lambda fx: fx.vmap(lambda x, y: fx.np.outer(x, y).T),
    ),
    "outer, batch last": (((128, 256), (128, 256)), lambda fx: fx.vmap(fx.np.outer, (1, 1), 2)),
    "unit contraction": (((256, 128, 1), (256, 1, 128)), lambda fx: fx.vmap(fx.np.matmul)),
    "empty contraction": (((256, 64, 0), (256, 0, 64)), lambda fx: fx.vmap(fx.np.matmul)),
    "inner": (((1024, 256), (1024, 256)), lambda fx: fx.vmap(fx.np.dot)),
    "shared matrix": (((128, 128), (256, 128)), lambda fx: fx.vmap(fx.np.matmul, (None, 0))),
    "shared, column out": (((128, 128), (256, 128)), lambda fx: fx.vmap(fx.np.matmul, (None, 0), 1)),
    "matrix-vector": (((64, 128, 128), (64, 128)), lambda fx: fx.vmap(fx.np.matmul)),
    "vector-matrix": (((64, 128), (64, 128, 128)), lambda fx: fx.vmap(fx.np.matmul)),
    "matrix-vector, small": (((2048, 8, 8), (2048, 8)), lambda fx: fx.vmap(fx.np.matmul)),
    "matrix-matrix": (((32, 64, 64), (32, 64, 64)), lambda fx: fx.vmap(fx.np.matmul)),
    "matrix-matrix, small": (((2048, 4, 4), (2048, 4, 4)), lambda fx: fx.vmap(fx.np.matmul)),
    "matrix-matrix, batch last": (
        ((64, 64, 32), (64, 64, 32)),
        lambda fx: fx.vmap(fx.np.matmul, (2, 2)),
    ),
    "matrix times transposed": (
        ((32, 64, 64), (32, 64, 64)),
        lambda fx: fx.vmap(lambda x, y: x @ y.T),
    ),
    "transposed product": (
        ((32, 64, 64), (32, 64, 64)),
        lambda fx: fx.vmap(lambda x, y: (x @ y).T),
    ),
    "shared right": (((32, 64, 64), (64, 64)), lambda fx: fx.vmap(fx.np.matmul, (0, None))),
    "shared left": (((64, 64), (32, 64, 64)), lambda fx: fx.vmap(fx.np.matmul, (None, 0))),
    "attention": (
        ((8, 4, 64, 32), (8, 4, 64, 32)),
        lambda fx: fx.vmap(lambda q, k: fx.np.einsum("htd,hsd->hts", q, k)),
    ),
    "quadratic form": (((64, 64), (256, 64)), lambda fx: fx.vmap(quadratic(fx), (None, 0))),
    "layers": (((64, 64), (64, 64), (128, 64)), layer_gradient),
}


def operands(shapes: Any, dtype: Any) -> list[Any]:
    random = np.random.RandomState(0)
    return [jax.numpy.asarray((random.randn(*shape) * 0.1).astype(dtype)) for shape in shapes]


def seconds(run: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        jax.block_until_ready(run())
    return (time.perf_counter() - start) / calls


def ratio(shapes: Any, make: Any, dtype: Any) -> tuple[float, float]:
    """The time of functx, and its ratio to JAX's: medians of turns."""
    args = operands(shapes, dtype)
    ours, theirs = [fx.jit(make(fx)) for fx in (FUNCTX, JAX)]
    runs = [lambda: ours(*args), lambda: theirs(*args)]
    for run in runs:
        seconds(run, 2)
    calls = [max(1, int(TURN / seconds(run, 2))) for run in runs]
    pairs = [[seconds(run, n) for run, n in zip(runs, calls, strict=True)] for _ in range(ROUNDS)]
    return statistics.median(a for a, _ in pairs), statistics.median(a / b for a, b in pairs)


def main(words: list[str]) -> None:
    print(f"{'case':28}" + "".join(f"{name:>18}" for name in DTYPES))
    for name, (shapes, make) in CASES.items():
        if words and not any(word in name for word in words):
            continue
        print(f"{name:28}", end="", flush=True)
        for dtype in DTYPES.values():
            time_of, found = ratio(shapes, make, dtype)
            print(f"{time_of * 1e3:10.3f} {found:7.2f}", end="", flush=True)
        print(flush=True)


if __name__ == "__main__":
    with jax.enable_x64():
        main(sys.argv[1:])
