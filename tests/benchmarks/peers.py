"""Times one set of tasks on functx, JAX, PyTorch, MLX and autograd, and prints a table.

`python -m tests.benchmarks.peers [TASK ...] [--env PATH]`: PATH is a virtual environment in which
JAX and the peers are installed (`pip install jax torch mlx[cpu] autograd`), by default this one.
Each peer runs in a process of its own, task by task; a peer that lacks what a task needs, is not
installed, or takes too long has no number.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks import tasks
from tests.benchmarks.frameworks import FRAMEWORKS
from tests.benchmarks.limits import lines_of
from tests.benchmarks.measures import expect_recompilations, machine, seconds, shown
from tests.benchmarks.repeats import REPEATS

Found = dict[str, float]


def calls(build: Callable[[Any], Callable[[], Any]]) -> Callable[[Any], Found]:
    """The time of a call."""

    def measure(fx: Any) -> Found:
        return {"": least(build(fx), fx.finish)}

    return measure


def compiled(name: str) -> Callable[[Any], Found]:
    """How much longer the first call takes than a later one, and the later one."""

    def measure(fx: Any) -> Found:
        program = REPEATS[name]()
        f, args = fx.jit(program.of(fx)), fx.given(program.args)
        first = seconds(lambda: f(*args), finish=fx.finish)
        later = least(lambda: f(*args), fx.finish)
        return {"_compile": max(first - later, 0.0), "_run": later}

    return measure


def least(run: Callable[[], Any], finish: Callable[[Any], Any]) -> float:
    """The least time of a call, in about two seconds of them."""
    begin = time.perf_counter()
    found: list[float] = []
    while len(found) < 4 or (time.perf_counter() - begin < 2.0 and len(found) < 3000):
        found.append(seconds(run, finish=finish))
    return min(found[1:])


TASKS: dict[str, Callable[[Any], Found]] = {
    "eager_grad": calls(tasks.eager_grad),
    "fresh_lambda": calls(tasks.fresh_lambda),
    "dispatch1": calls(lambda fx: tasks.dispatch(fx, 1)),
    "dispatch100": calls(lambda fx: tasks.dispatch(fx, 100)),
    "trace": calls(tasks.trace),
    "residual24": compiled("residual24"),
    "rnn64": compiled("rnn64"),
    "per_sample": calls(tasks.per_sample),
    "hessian": calls(tasks.hessian),
    "train": calls(tasks.train),
}


def alone(peer: str, names: list[str]) -> None:
    """Measure `names` on one peer, and print a line of JSON for each figure."""
    expect_recompilations()
    fx = FRAMEWORKS[peer]()
    print(json.dumps({"version": fx.version}))
    for name in names:
        try:
            found = TASKS[name](fx)
        except AttributeError as error:
            # The peer has no such function.
            found = {}
            print(f"{peer}: {name}: {error}", file=sys.stderr)
        for part, value in found.items():
            print(json.dumps({"task": name + part, "value": value}))
        print(json.dumps({"done": name}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.benchmarks.peers", description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--env", type=Path, help="a virtual environment with the peers")
    parser.add_argument("--peers", nargs="+", choices=FRAMEWORKS, default=list(FRAMEWORKS))
    parser.add_argument("--limit", type=float, default=150.0, help="seconds for a task of a peer")
    parser.add_argument("--alone", choices=FRAMEWORKS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.tasks or list(TASKS)
    if unknown := {*names} - {*TASKS}:
        parser.error(f"no task is called {unknown.pop()}")
    if given.alone:
        alone(given.alone, names)
        return
    python = str(given.env / "bin" / "python") if given.env else sys.executable
    table: dict[str, dict[str, str]] = {}
    versions: dict[str, str] = {}
    for peer in given.peers:
        command = [python, "-m", "tests.benchmarks.peers", "--alone", peer]
        for name, found in lines_of(command, names, given.limit):
            if isinstance(found, str):
                print(f"{peer}: {name}: {found}", file=sys.stderr, flush=True)
                row = next((task for task in table if task.startswith(name)), name)
                table.setdefault(row, {})[peer] = found if found.startswith("over") else ""
                continue
            for answer in found:
                if "version" in answer:
                    versions[peer] = answer["version"]
                else:
                    table.setdefault(answer["task"], {})[peer] = shown(answer["value"])
                    print(peer, answer["task"], shown(answer["value"]), file=sys.stderr, flush=True)
    print(f"{machine()}\n")
    heads = [f"{peer} {versions.get(peer, '')}".strip() for peer in given.peers]
    print(f"| task | {' | '.join(heads)} |\n|---|{'---|' * len(heads)}")
    for task, row in table.items():
        print(f"| `{task}` | {' | '.join(row.get(peer, '') for peer in given.peers)} |")


if __name__ == "__main__":
    main()
