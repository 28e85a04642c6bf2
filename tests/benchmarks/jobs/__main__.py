"""Prints the table of the jobs in docs/benchmarks.md: `python -m tests.benchmarks.jobs [JOB ...]`.

A row is a job, with its times in functx over those in JAX; the last row has their geometric means.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from statistics import geometric_mean

from tests.benchmarks.jobs import JOBS
from tests.benchmarks.measures import Options, Row, expect_recompilations, machine, shown

HEADER = "| job | compile: functx | JAX | ratio | run: functx | JAX | ratio |\n|---|---|---|---|---|---|---|"


def line(name: str, compiling: Row, running: Row) -> str:
    """A job as a row of the table."""
    cells = [
        cell
        for row in (compiling, running)
        for cell in (shown(row.ours), shown(row.theirs), f"{row.ratio:.2f}")
    ]
    return "| " + " | ".join([f"`{name}`", *cells]) + " |"


def lines(names: Sequence[str], options: Options) -> Iterator[str]:
    """The rows of the jobs, and that of the geometric means."""
    ratios = []
    for name in names:
        compiling, running = JOBS[name].rows(name, options)
        ratios.append((compiling.ratio or 1.0, running.ratio or 1.0))
        yield line(name, compiling, running)
    compiling_mean, running_mean = [geometric_mean(column) for column in zip(*ratios, strict=True)]
    yield f"| geometric mean | | | {compiling_mean:.2f} | | | {running_mean:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.benchmarks.jobs", description=__doc__)
    parser.add_argument("jobs", nargs="*", help="names; by default all")
    parser.add_argument("--least", action="store_true", help="the least time, for a busy machine")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long to time a job")
    given = parser.parse_args()
    if unknown := [name for name in given.jobs if name not in JOBS]:
        parser.error(f"no job is called {unknown[0]}")
    expect_recompilations()
    print(f"{machine()}\n\n{HEADER}")
    for row in lines(given.jobs or list(JOBS), Options(given.least, seconds=given.seconds)):
        print(row, flush=True)


if __name__ == "__main__":
    main()
