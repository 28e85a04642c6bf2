"""How much memory the gradient of a deep transformer takes, and how long, by what is kept for it.

`python -m tests.benchmarks.memory [BLOCKS]`: temporaries as XLA counts them, and the median and
the least of some runs, in turns. JAX is asked with each of its stock checkpoint policies, around
the whole function and around each block.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax

import functx
from tests.benchmarks.networks import BATCH, HEADS, IN_FUNCTX, IN_JAX, LENGTH, WIDTH, given

POLICIES = (
    "nothing_saveable", "dots_saveable", "dots_with_no_batch_dims_saveable", "everything_saveable",
)  # fmt: skip
PLANS: tuple[Any, ...] = "off", "min_cut", 0.5, 0.25, 0.0
ROUNDS = 6


def block(fx: Any, x: Any, weights: Any) -> Any:
    """One block of a transformer."""
    h = fx.layer_norm(x, *weights["norm"]) @ weights["in"]
    shape = BATCH, LENGTH, HEADS, WIDTH // HEADS
    q, k, v = [part.reshape(shape) for part in fx.np.split(h, 3, axis=-1)]
    attended = fx.attention(q, k, v, is_causal=True).reshape(BATCH, LENGTH, WIDTH)
    x = x + attended @ weights["out"]
    h = fx.gelu(fx.layer_norm(x, *weights["second_norm"]) @ weights["wide"])
    return x + h @ weights["narrow"]


def loss(fx: Any, around: Callable[..., Any], params: Any, words: Any, target: Any) -> Any:
    """The loss of the transformer, a Python loop over blocks, each under `around`."""
    x = params["embedding"][words]
    of_block = around(partial(block, fx))
    for weights in params["blocks"]:
        x = of_block(x, weights)
    return fx.cross_entropy(x @ params["embedding"].T, target)


def alone(f: Callable[..., Any]) -> Callable[..., Any]:
    return f


def programs() -> Iterator[tuple[str, Any]]:
    """The jitted gradients, by name."""
    for plan in PLANS:
        yield (
            f"functx {plan}",
            functx.jit(functx.grad(partial(loss, IN_FUNCTX, alone)), memory=plan),
        )
    yield (
        "functx checkpoint a block",
        functx.jit(functx.grad(partial(loss, IN_FUNCTX, functx.checkpoint))),
    )
    yield "JAX", jax.jit(jax.grad(partial(loss, IN_JAX, alone)))
    for name in POLICIES:
        saving = partial(jax.checkpoint, policy=getattr(jax.checkpoint_policies, name))
        yield f"JAX whole {name}", jax.jit(jax.grad(saving(partial(loss, IN_JAX, alone))))
        yield f"JAX block {name}", jax.jit(jax.grad(partial(loss, IN_JAX, saving)))


class Row(NamedTuple):
    """What one program took: bytes, and seconds to compile; `run` runs it."""

    bytes: int
    compiling: float
    run: Callable[[], Any]


def compiled(jitted: Any, args: Any) -> Row:
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", functx.errors.MemoryBudgetWarning)
        run = jitted.lower(*args).compile()
    took = time.perf_counter() - start
    return Row(run.memory_analysis().temp_size_in_bytes, took, partial(run, *args))


def seconds(rows: dict[str, Row]) -> dict[str, list[float]]:
    """The times of some runs of each, in turns, so that all suffer alike from other work."""
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(ROUNDS):
        for name, row in rows.items():
            start = time.perf_counter()
            jax.block_until_ready(row.run())
            times[name].append(time.perf_counter() - start)
    return {name: runs[1:] for name, runs in times.items()}


def main(count: int = 12) -> None:
    _, (params, words, target) = given()["transformer"]
    params = params | {"blocks": [params["blocks"][i % 4] for i in range(count)]}
    rows = {name: compiled(jitted, (params, words, target)) for name, jitted in programs()}
    times = seconds(rows)
    print(f"{'gradient':44}{'MB':>8}{'median ms':>11}{'least ms':>10}{'compile s':>11}")
    for name, row in rows.items():
        median, least = statistics.median(times[name]) * 1e3, min(times[name]) * 1e3
        print(f"{name:44}{row.bytes / 1e6:8.1f}{median:11.0f}{least:10.0f}{row.compiling:11.1f}")
    stock = min([name for name in rows if name.startswith("JAX ")], key=lambda n: rows[n].bytes)
    for plan in PLANS[1:]:
        name = f"functx {plan}"
        for other in ("JAX", stock, "functx off"):
            size = rows[name].bytes / rows[other].bytes
            pace = statistics.median(times[name]) / statistics.median(times[other])
            print(f"{name} / {other}: {size:.2f} of the bytes, {pace:.2f} of the time")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
