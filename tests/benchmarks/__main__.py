"""Times functx against JAX, in turns in one process: `python -m tests.benchmarks [TASK ... | all]`.

Without tasks it lists them. The table is Markdown, as in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import functx
from functx.core.config import OUTLINE_MODES
from tests.benchmarks.in_place import PAIRS
from tests.benchmarks.jobs import JOBS
from tests.benchmarks.measures import (
    HEADER,
    Calls,
    Import,
    Options,
    Row,
    expect_recompilations,
    growth,
    machine,
)
from tests.benchmarks.networks import NETWORKS, temporary_bytes
from tests.benchmarks.repeats import GROWTH, REPEATS
from tests.benchmarks.tasks import TASKS

MEASURES: dict[str, Callable[[], Any]] = {
    **{name: lambda task=task: Calls(*task) for name, task in TASKS.items()},  # type: ignore[misc]
    **REPEATS,
    **{name: lambda job=job: job for name, job in JOBS.items()},  # type: ignore[misc]
    "import": Import,
}
SUITES = {
    "all": list(MEASURES),
    "repeats": list(REPEATS),
    "jobs": list(JOBS),
    "quick": [*list(TASKS)[:9], "rnn64", "residual24"],
}


def rows_of(name: str, options: Options) -> list[Row]:
    """What a task gives, and the temporary bytes of a whole network."""
    rows = list(MEASURES[name]().rows(name, options))
    if name in NETWORKS:
        rows.append(Row(f"{name}_bytes", *temporary_bytes(name), 1.0, "bytes"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.benchmarks", description=__doc__)
    parser.add_argument("tasks", nargs="*", help=f"names, or {', '.join(SUITES)}")
    parser.add_argument("--least", action="store_true", help="the least time, for a busy machine")
    parser.add_argument("--slow", action="store_true", help="wait minutes for JAX to compile")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long to time a task")
    parser.add_argument(
        "--json", action="store_true", help="lines of JSON, the last of a task says it is done"
    )
    parser.add_argument("--outline", choices=OUTLINE_MODES, help="functx.config.outline")
    given = parser.parse_args()
    names = [name for word in given.tasks for name in SUITES.get(word, [word])]
    if unknown := [name for name in names if name not in MEASURES]:
        parser.error(f"no task is called {unknown[0]}")
    if not names:
        print("\n".join([*MEASURES, "", *(f"{k}: {len(v)} of them" for k, v in SUITES.items())]))
        return
    expect_recompilations()
    if given.outline:
        functx.config.update("outline", given.outline)
    options = Options(given.least, given.slow, given.seconds)
    if not given.json:
        print(f"{machine()}\n\n{HEADER}")
    found: list[Row] = []
    for name in names:
        for row in rows_of(name, options):
            print(json.dumps(dataclasses.asdict(row)) if given.json else row, flush=True)
            found.append(row)
        if given.json:
            print(json.dumps({"done": name}), flush=True)
    lines = [growth(found, *pair) for pair in (*GROWTH, *PAIRS)]
    if not given.json and any(lines):
        print("\n" + "\n".join(line for line in lines if line))


if __name__ == "__main__":
    main()
