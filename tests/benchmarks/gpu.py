"""What to look at on a GPU, in under eight minutes: `python -m tests.benchmarks.gpu`.

Programs of every transform against their values on the CPU, the example, figures beside JAX's, and
what calls of repeated blocks cost there. Each task runs in a process that ends when it takes too
long. Without a GPU nothing runs; `--cpu` rehearses all of it on the CPU with little of each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import functx
from tests.benchmarks.frameworks import FUNCTX
from tests.benchmarks.limits import lines_of
from tests.benchmarks.measures import HEADER, Options, Row, compare, machine, shown
from tests.benchmarks.repeats import REPEATS
from tests.benchmarks.smoke import CHECKS

MINUTES = 7.5
TOLERANCE = 1e-2
"""Of the largest value; products of single floats have ten bits on some cards."""
SOURCE = Path(__file__).parents[2]
FIGURES = (
    *("eager_grad", "fresh_lambda", "dispatch1", "dispatch100", "train", "per_sample", "hessian"),
    *("transformer", "convolutional", "rnn", "rnn_grad", "lstm_grad", "batched_while", "from_jax"),
    *("residual24", "rnn64", "solver1000_grad"),
)
REHEARSED = ["eager_grad", "dispatch1", "rnn64"]
OUTLINED = ["rnn64", "residual24", "transformer12"]


def check(name: str) -> dict[str, Any]:
    """How far the values of a program here are from those on the CPU, in parts of the largest."""
    f, args = CHECKS[name]
    found = []
    for device in (jax.devices()[0], jax.devices("cpu")[0]):
        # Donated arrays are gone after the first call.
        with jax.default_device(device):
            out = f(*jax.tree_util.tree_map(lambda x: jax.device_put(np.array(x), device), args))  # noqa: B023
        found.append([np.asarray(x, "float64") for x in jax.tree_util.tree_leaves(out)])
    off = 0.0
    for here, there in zip(*found, strict=True):
        scale = max(1e-6, float(np.abs(there).max(initial=0.0)))
        off = max(off, float(np.abs(here - there).max(initial=0.0)) / scale)
    return {"task": name, "off": off}


def outlined(name: str) -> dict[str, Any]:
    """Seconds to compile a program and to run it, with calls and loops for repeats and without."""
    program = REPEATS[name]()
    compile_seconds, runs = {}, {}
    for mode in ("never", "always"):
        f = functx.jit(program.of(FUNCTX), outline=mode)
        start = time.perf_counter()
        executable = f.lower(*program.args).compile()
        compile_seconds[mode] = time.perf_counter() - start
        runs[mode] = lambda executable=executable: executable(*program.args)
    times = compare(runs["never"], runs["always"], Options(seconds=1.0))
    return {"task": name, "compile": list(compile_seconds.values()), "run": times}


PARTS = {"check": check, "outlined": outlined}


def part(which: str, names: list[str]) -> None:
    """One part of all this, in a process of its own."""
    for name in names:
        print(json.dumps(PARTS[which](name)))
        print(json.dumps({"done": name}), flush=True)


def section(title: str) -> None:
    print(f"\n## {title}\n", flush=True)


def report(until: float, rehearsal: bool) -> None:
    """Run everything, and print it as it comes."""
    own = [sys.executable, "-m", "tests.benchmarks.gpu"]
    print(f"{machine()}\n\nSeconds at most: {until - time.monotonic():.0f}")
    section("Values, against those of the CPU")
    for name, found in lines_of([*own, "--part", "check"], list(CHECKS), 60, until):
        if isinstance(found, str):
            print(f"{name:24} FAILED: {found}", flush=True)
            continue
        off = found[0]["off"]
        print(f"{name:24} {'ok' if off < TOLERANCE else 'OFF'}  {off:.1e}", flush=True)
    section("The example")
    example(min(120.0, until - time.monotonic()))
    section("Calls and loops for repeats, beside none")
    print(
        "| program | compile, never | always | run, never | always | ratio |\n|---|---|---|---|---|---|"
    )
    names = OUTLINED[:1] if rehearsal else OUTLINED
    for name, found in lines_of([*own, "--part", "outlined"], names, 75, until):
        if isinstance(found, str):
            print(f"| `{name}` | {found} | | | | |", flush=True)
            continue
        (a, b), (c, d) = found[0]["compile"], found[0]["run"]
        cells = [shown(x) for x in (a, b, c, d)]
        print(f"| `{name}` | {' | '.join(cells)} | {d / c:.3f} |", flush=True)
    section("Beside JAX")
    print(HEADER)
    command = [
        sys.executable,
        "-m",
        "tests.benchmarks",
        "--json",
        "--seconds",
        "0.3" if rehearsal else "1.5",
    ]
    for name, found in lines_of(command, REHEARSED if rehearsal else FIGURES, 60, until):
        if isinstance(found, str):
            print(f"| `{name}` | {found} | | | |", flush=True)
            continue
        for row in found:
            print(Row(**row), flush=True)


def example(limit: float) -> None:
    """Run examples/digits.py, and show the end of what it prints."""
    start = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, str(SOURCE / "examples" / "digits.py")],
            env=os.environ | {"PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            timeout=max(limit, 1.0),
        )
    except subprocess.TimeoutExpired:
        print(f"over {limit:.0f} s", flush=True)
        return
    print("\n".join((done.stdout if done.returncode == 0 else done.stderr).splitlines()[-3:]))
    print(f"ended with {done.returncode} after {time.monotonic() - start:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.benchmarks.gpu", description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="rehearse it on the CPU")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="all that it may take")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        part(given.part, given.names)
        return
    until = time.monotonic() + 60.0 * given.minutes
    if given.cpu:
        os.environ["JAX_PLATFORMS"] = "cpu"
        jax.config.update("jax_platforms", "cpu")
    # The processes take turns on the card, so none takes all of its memory at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if not given.cpu and jax.default_backend() != "gpu":
        sys.exit(f"no GPU: JAX runs on {jax.devices()[0].platform}; --cpu rehearses there")
    if not given.cpu:
        os.environ["JAX_PLATFORMS"] = "cuda,cpu"
    report(until, given.cpu)


if __name__ == "__main__":
    main()
