"""Times functx against JAX, alternating in one process: `python -m tests.benchmarks [TASK ...]`.

With `--least` the least time of all turns is shown in place of the median, for a busy machine.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax

from tests.benchmarks.in_place import PAIRS
from tests.benchmarks.networks import NETWORKS, temporary_bytes
from tests.benchmarks.tasks import FUNCTX, JAX, TASKS

IMPORT_LIMIT = 60.0


TURN = 0.03


def seconds(run: Callable[[], Any], calls: int = 1) -> float:
    """The time of one of `calls` calls, each finished before the next begins."""
    start = time.perf_counter()
    for _ in range(calls):
        jax.block_until_ready(_arrays(run()))
    return (time.perf_counter() - start) / calls


def _arrays(result: Any) -> Any:
    return [x for x in jax.tree_util.tree_leaves(result) if isinstance(x, jax.Array)]


def compare(
    ours: Callable[[], Any], theirs: Callable[[], Any], typical: Callable[..., float]
) -> tuple[float, float]:
    """The `typical` times of both, taken in turns, after a warm-up; about four seconds in all.

    A turn lasts TURN seconds or one call, the longer: a call of microseconds right after the
    other library's would be timed with the caches and the memory that the other left.
    """
    for _ in range(2):
        calls = [max(1, int(TURN / seconds(run))) for run in (ours, theirs)]
    once = sum(seconds(run, n) * n for run, n in zip((ours, theirs), calls, strict=True))
    rounds = max(7, min(101, int(4.0 / once)))
    pairs = [(seconds(ours, calls[0]), seconds(theirs, calls[1])) for _ in range(rounds)]
    return typical(a for a, _ in pairs), typical(b for _, b in pairs)


def import_milliseconds(module: str) -> float:
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    # Installed packages are compiled to bytecode; so is this one, by the first of the runs.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    runs = [
        float(
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
            ).stdout
        )
        for _ in range(5)
    ]
    return 1e3 * min(runs)


def main(names: list[str]) -> None:
    typical = min if "--least" in names else statistics.median
    names = [name for name in names if name != "--least"]
    found: dict[str, tuple[float, float]] = {}
    print(f"{'task':26}{'functx ms':>12}{'JAX ms':>12}{'ratio':>9}{'wanted':>9}")
    for name in names or [*TASKS, "import"]:
        if name == "import":
            ours, theirs = import_milliseconds("functx"), import_milliseconds("jax")
            print(
                f"{name:26}{ours:12.1f}{theirs:12.1f}{ours - theirs:+9.0f}{IMPORT_LIMIT:+9.0f} ms"
            )
            continue
        task, wanted = TASKS[name]
        ours, theirs = found[name] = compare(task(FUNCTX), task(JAX), typical)
        print(
            f"{name:26}{ours * 1e3:12.4f}{theirs * 1e3:12.4f}{ours / theirs:9.3f}{wanted:9.3f}",
            flush=True,
        )
        if name in NETWORKS:
            own, other = temporary_bytes(name)
            print(f"{name + ', bytes':26}{own:12}{other:12}{own / other:9.3f}{1.0:9.3f}")
    for short, long in PAIRS:
        if short in found and long in found:
            growth = [b / a for a, b in zip(found[short], found[long], strict=True)]
            print(
                f"from {short} to {long}: functx {growth[0]:.1f} times, JAX {growth[1]:.1f} times"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
