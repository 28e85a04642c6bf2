"""Times saved programs: their first run beside compiling alone, their calls beside those of `jit`.

`python -m tests.benchmarks.saved_programs [--turns N]` prints a Markdown table. A training step of a
network of twelve layers is compiled, and loaded and run, in turns; times are the least of all turns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import functx
import functx.numpy as fnp
from functx import export

LAYERS, WIDTH, BATCH = 12, 64, 32


def loss(params: Any, x: Any) -> Any:
    for w, b in params:
        x = fnp.tanh(x @ w + b)
        x = (x - x.mean(axis=1, keepdims=True)) / fnp.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    return (x**2).mean()


def step(params: Any, x: Any) -> Any:
    value, slopes = functx.value_and_grad(loss)(params, x)
    return value, functx.tree.map(lambda p, slope: p - 0.1 * slope, params, slopes)


def arguments() -> tuple[Any, Any]:
    random = np.random.RandomState(0)
    params = [
        ((random.randn(WIDTH, WIDTH) / 8).astype("float32"), np.zeros(WIDTH, "float32"))
        for _ in range(LAYERS)
    ]
    return params, random.randn(BATCH, WIDTH).astype("float32")


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - start


def least_of_call(run: Callable[[], Any], count: int) -> float:
    """The least time of a call, in repetitions of `count`."""
    run()
    return min([seconds(lambda: [run() for _ in range(count)][-1]) / count for _ in range(5)])


def rows(turns: int, calls: int = 2000) -> list[tuple[str, float, float, float]]:
    """Tasks, the time of the saved program, what it is compared with, and the ratio that is wanted."""
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.zip"
        export.export(step)(*args).save(path)
        compiling, loading = [], []
        for _ in range(turns):
            lowered = functx.jit(lambda p, x: step(p, x)).lower(*args)
            compiling.append(seconds(lambda lowered=lowered: lowered.compile() and 0))
            loading.append(seconds(lambda: export.load(path)(*args)))
    found = [("first_run", min(loading), min(compiling), 1.2)]
    for count in (1, 100):
        values = {f"x{i}": jax.numpy.ones(4) for i in range(count)}
        plain = functx.jit(lambda p: sum(p.values()))
        loaded = export.deserialize(export.export(lambda p: sum(p.values()))(values).serialize())
        times = [least_of_call(lambda f=f, v=values: f(v), calls) for f in (loaded, plain)]
        found.append((f"call{count}", *times, 2.0))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.benchmarks.saved_programs", description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    print("| task | saved | compared with | ratio | wanted |\n|---|---|---|---|---|")
    for name, ours, theirs, wanted in rows(parser.parse_args().turns):
        print(
            f"| `{name}` | {1e6 * ours:.4g} us | {1e6 * theirs:.4g} us | {ours / theirs:.2f} | {wanted} |"
        )


if __name__ == "__main__":
    main()
