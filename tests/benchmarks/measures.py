"""How a task is measured, and how what was found is shown."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from functx.core.errors import RecompilationWarning
from tests.benchmarks.frameworks import FUNCTX, JAX

TURN = 0.03
"""Seconds that each of two takes at a time when they take turns."""

Run = Callable[[], Any]


@dataclass(frozen=True)
class Options:
    """`least` is for a busy machine: the least time of all turns, and processor time to compile.

    `slow` waits for minutes of JAX; `seconds` are for the turns of a task.
    """

    least: bool = False
    slow: bool = False
    seconds: float = 4.0


@dataclass(frozen=True)
class Row:
    """A figure of functx beside one of JAX, and the ratio that is wanted.

    `recorded` says that JAX's was measured at another time, since it takes minutes.
    """

    task: str
    ours: float | None
    theirs: float | None
    wanted: float | None = None
    unit: str = "s"
    recorded: bool = False

    @property
    def ratio(self) -> float | None:
        """Functx's figure over JAX's."""
        return self.ours / self.theirs if self.ours and self.theirs else None

    def __str__(self) -> str:
        ours, theirs = [shown(x, self.unit) for x in (self.ours, self.theirs)]
        mark = " (recorded)" if self.recorded and self.theirs else ""
        ratio, wanted = ["" if x is None else f"{x:.3f}" for x in (self.ratio, self.wanted)]
        return f"| {f'`{self.task}`':30} | {ours:>10} | {theirs + mark:>10} | {ratio:>8} | {wanted:>6} |"


HEADER = (
    f"| {'task':30} | {'functx':>10} | {'JAX':>10} | {'ratio':>8} | {'wanted':>6} |\n"
    f"|{'-' * 32}|{'-' * 12}|{'-' * 12}|{'-' * 10}|{'-' * 8}|"
)


def shown(value: float | None, unit: str = "s") -> str:
    """A number with three digits in a unit of its size; nothing for None."""
    if value is None:
        return ""
    scales = {
        "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")),
        "bytes": ((1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    }[unit]
    scale, name = next((each for each in scales if value >= each[0]), scales[-1])
    number = value / scale
    digits = 0 if number >= 100 else 1 if number >= 10 else 2
    return f"{number:.{digits}f} {name}"


def expect_recompilations() -> None:
    """Let functions be made anew and compiled again, which is what some tasks time."""
    warnings.simplefilter("ignore", RecompilationWarning)


def seconds(run: Run, calls: int = 1, finish: Callable[[Any], Any] | None = None) -> float:
    """The time of one of `calls` calls, each finished before the next begins."""
    end = finish or _finish_arrays
    start = time.perf_counter()
    for _ in range(calls):
        end(run())
    return (time.perf_counter() - start) / calls


def _finish_arrays(result: Any) -> Any:
    arrays = [x for x in jax.tree_util.tree_leaves(result) if isinstance(x, jax.Array)]
    return jax.block_until_ready(arrays)


def compare(ours: Run, theirs: Run, options: Options) -> tuple[float, float]:
    """The typical times of both, taken in turns, after a warm-up.

    A turn lasts TURN seconds or one call, the longer: a call of microseconds right after the
    other library's would be timed with the caches and the memory that the other left.
    """
    for _ in range(2):
        calls = [max(1, int(TURN / seconds(run))) for run in (ours, theirs)]
    once = sum(seconds(run, n) * n for run, n in zip((ours, theirs), calls, strict=True))
    rounds = max(7, min(101, int(options.seconds / once)))
    pairs = [(seconds(ours, calls[0]), seconds(theirs, calls[1])) for _ in range(rounds)]
    typical: Callable[..., float] = min if options.least else statistics.median
    return typical(a for a, _ in pairs), typical(b for _, b in pairs)


@dataclass(frozen=True)
class Calls:
    """Repeated calls of what `build` makes for a framework."""

    build: Callable[[Any], Run]
    wanted: float

    def rows(self, name: str, options: Options) -> Iterator[Row]:
        """One row: the time of a call."""
        ours, theirs = compare(self.build(FUNCTX), self.build(JAX), options)
        yield Row(name, ours, theirs, self.wanted)


@dataclass(frozen=True)
class Compiled:
    """A program that is compiled once, and then called.

    `of` makes the function for a framework. `slow` programs take JAX minutes: without that option
    its `recorded` seconds to compile and to run, where there are any, stand in the table.
    """

    of: Callable[[Any], Callable[..., Any]]
    args: tuple[Any, ...]
    wanted: tuple[float | None, float | None]
    slow: bool = False
    recorded: tuple[float | None, float | None] = (None, None)

    def rows(self, name: str, options: Options) -> Iterator[Row]:
        """Two rows: seconds to trace, lower and compile, and seconds of a call."""
        clock = time.process_time if options.least else time.perf_counter
        first, ours = compiled(FUNCTX, self.of, self.args, clock)
        if self.slow and not options.slow:
            found = _typical(ours, options)
            for what, own, other, wanted in zip(
                ("compile", "run"), (first, found), self.recorded, self.wanted, strict=True
            ):
                yield Row(f"{name}_{what}", own, other, wanted, recorded=True)
            return
        first_theirs, theirs = compiled(JAX, self.of, self.args, clock)
        yield Row(f"{name}_compile", first, first_theirs, self.wanted[0])
        yield Row(f"{name}_run", *compare(ours, theirs, options), self.wanted[1])


def compiled(
    fx: Any, of: Callable[[Any], Any], args: tuple[Any, ...], clock: Callable[[], float]
) -> tuple[float, Run]:
    """How long a function takes to its executable, the least of a few if short; and its call."""
    spent: list[float] = []
    while not spent or (sum(spent) < 2.0 and len(spent) < 5):
        f = of(fx)
        start = clock()
        # A function of its own each time, so that nothing is found from the time before.
        executable = fx.jit(lambda *args: f(*args)).lower(*args).compile()  # noqa: B023
        spent.append(clock() - start)
    return min(spent), lambda: executable(*args)


def _typical(run: Run, options: Options) -> float:
    return compare(run, run, options)[0]


IMPORT_LIMIT = 0.060


@dataclass(frozen=True)
class Import:
    """The import of functx in a process of its own, and that of JAX."""

    def rows(self, name: str, options: Options) -> Iterator[Row]:
        """Two rows: both imports, and what is added to JAX's beside what may be."""
        ours, theirs = [_import_seconds(module) for module in ("functx", "jax")]
        yield Row(name, ours, theirs, (theirs + IMPORT_LIMIT) / theirs)


def _import_seconds(module: str) -> float:
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    # Installed packages are compiled to bytecode; so is this one, by the first of the runs.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code]
    runs = [
        subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
        for _ in range(5)
    ]
    return min(map(float, runs))


def growth(rows: Sequence[Row], short: str, long: str, wanted: float | None = None) -> str | None:
    """In words, how much longer the longer of two tasks took; None if either was not measured."""
    found = {row.task: row for row in rows}
    if short not in found or long not in found:
        return None
    a, b = found[short], found[long]
    ours = f"functx {b.ours / a.ours:.1f} times" if a.ours and b.ours else ""
    ours += f" (wanted {wanted})" if wanted else ""
    measured = a.theirs and b.theirs and not b.recorded
    theirs = f", JAX {b.theirs / a.theirs:.1f} times" if measured else ""
    return f"from `{short}` to `{long}`: {ours}{theirs}"


def machine() -> str:
    """What the numbers were measured on and with, in a line."""
    device = jax.devices()[0]
    kind = _processor() if device.platform == "cpu" else device.device_kind
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    return (
        f"{kind}, {os.cpu_count()} CPUs, load {load}; Python {platform.python_version()}, "
        f"jax {jax.__version__}, NumPy {np.__version__}"
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor()
