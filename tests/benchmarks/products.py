"""Times batched products against JAX: `python -m tests.benchmarks.products [WORD ...]`.

One line a case: milliseconds and the ratio of functx's time to JAX's, in each dtype. Then derivatives
of each example and what is computed from them, with the ratio of the bytes that are needed besides
arguments and results. Words choose the cases whose names contain one of them.
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

from tests.benchmarks.tasks import FUNCTX, JAX, SAMPLES, mlp_loss, normal

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
    "shared, column out": (
        ((128, 128), (256, 128)),
        lambda fx: fx.vmap(fx.np.matmul, (None, 0), 1),
    ),
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


def norms(fx: Any, leaves: list[Any]) -> Any:
    """The norm of the derivatives of each example, of which `leaves` are the parts."""
    squares = [fx.np.sum(g.reshape(g.shape[0], -1) ** 2, axis=1) for g in leaves]
    return fx.np.sqrt(sum(squares))


def clipped(fx: Any, leaves: list[Any]) -> list[Any]:
    """The sum over examples of derivatives that are at most 1 long."""
    scale = fx.np.minimum(1.0, 1.0 / norms(fx, leaves))
    return [fx.np.tensordot(scale, g, 1) for g in leaves]


def sequence_loss(fx: Any) -> Callable[..., Any]:
    """The loss of two layers along a sequence, which an attention without parameters follows."""

    def loss(params: Any, x: Any) -> Any:
        v, w = params
        h = fx.np.tanh(x @ v)
        return fx.np.mean((fx.nn.softmax(h @ h.T, axis=-1) @ h @ w) ** 2)

    return loss


SEQUENCES = (normal(256, 256, scale=0.05), normal(256, 256, scale=0.05)), normal(32, 16, 256)


def of_examples(what: Any, loss: Any, given: Any) -> Any:
    """What `what` makes of the derivatives of each example, as a jitted function, and arguments."""
    axes = (None, *[0] * (len(given) - 1))

    def make(fx: Any) -> Any:
        gradients = fx.vmap(fx.grad(loss(fx)), in_axes=axes)
        return fx.jit(lambda *args: what(fx, jax.tree_util.tree_leaves(gradients(*args))))

    return make, given


def as_they_are(fx: Any, leaves: list[Any]) -> list[Any]:
    return leaves


# What of each example, for a framework, with its arguments, and the ratio of times wanted.
EXAMPLES: dict[str, tuple[Any, float]] = {
    "per_sample": (of_examples(as_they_are, mlp_loss, SAMPLES), 0.1),
    "per_sample_norms": (of_examples(norms, mlp_loss, SAMPLES), 0.25),
    "per_sample_clipped": (of_examples(clipped, mlp_loss, SAMPLES), 0.1),
    "sequence_norms": (of_examples(norms, sequence_loss, SEQUENCES), 1.0),
    "sequence_clipped": (of_examples(clipped, sequence_loss, SEQUENCES), 1.0),
}


def temporary_bytes(f: Any, args: Any) -> int:
    found: int = f.lower(*args).compile().memory_analysis().temp_size_in_bytes
    return found


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
    return compare(*[fx.jit(make(fx)) for fx in (FUNCTX, JAX)], operands(shapes, dtype))


def compare(ours: Any, theirs: Any, args: Any) -> tuple[float, float]:
    """The time of `ours`, and its ratio to that of `theirs`: medians of turns."""
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
    print(f"{'case':28}{'ms':>10}{'ratio':>8}{'wanted':>8}{'bytes':>12}{'ratio':>8}")
    for name, ((make, args), wanted) in EXAMPLES.items():
        if words and not any(word in name for word in words):
            continue
        ours, theirs = make(FUNCTX), make(JAX)
        time_of, found = compare(ours, theirs, args)
        own, other = temporary_bytes(ours, args), temporary_bytes(theirs, args)
        print(
            f"{name:28}{time_of * 1e3:10.3f}{found:8.3f}{wanted:8.2f}{own:12}{own / other:8.3f}",
            flush=True,
        )


if __name__ == "__main__":
    with jax.enable_x64():
        main(sys.argv[1:])
