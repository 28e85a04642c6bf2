"""The time of each operation of a compiled program, by XLA's profiler, and the scopes it belongs to."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple

import jax

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(
    r"^\s+(?:ROOT )?%?(?P<name>[\w.-]+) = \(?\w+\[(?P<shape>[\d,]*)\].*?\s(?P<opcode>[a-z][\w-]*)\("
)
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%?([\w.-]+)")
_SCOPE = re.compile(r'op_name="([^"]*)"')
_CONTROL = frozenset({"call", "conditional", "while"})
_RUNS_OTHERS = _CONTROL | {"fusion"}
_FREE = frozenset({"bitcast", "constant", "get-tuple-element", "parameter", "tuple"})
_WEIGHTS = {
    **dict.fromkeys(("convolution", "dot"), 100),
    **dict.fromkeys(("exponential", "log", "power", "sine", "cosine", "tanh", "erf"), 10),
}
"""The work of an element of an operation inside a fusion, where it is not 1."""


class HloInstruction(NamedTuple):
    """An instruction of a compiled module: its operation, scope, size, and the computations it calls."""

    opcode: str
    scope: str
    size: int
    called: tuple[str, ...]


class HloModule:
    """The instructions of a compiled module by name, read from its text."""

    def __init__(self, text: str):
        self.instructions: dict[str, HloInstruction] = {}
        self.computations: defaultdict[str, list[str]] = defaultdict(list)
        self.callers: dict[str, str] = {}
        """The instruction that calls a computation; of several, the last."""
        self.home: dict[str, str] = {}
        """The computation of an instruction."""
        current = ""
        for line in text.splitlines():
            if (head := _COMPUTATION.match(line)) is not None:
                current = head[1]
            elif (found := _INSTRUCTION.match(line)) is not None:
                name, scope, called = found["name"], _SCOPE.search(line), _CALLED.findall(line)
                size = prod(map(int, filter(None, found["shape"].split(","))))
                self.instructions[name] = HloInstruction(
                    found["opcode"], scope[1] if scope else "", size, tuple(called)
                )
                self.computations[current].append(name)
                self.home[name] = current
                self.callers.update(dict.fromkeys(called, name))

    def scopes(self, name: str) -> dict[tuple[str, ...], float]:
        """The scopes of an instruction and of all that it runs, with their shares of its work.

        Each follows the scopes of the loops and calls around it. An instruction that XLA made has no
        scope of its own.
        """
        weights: Counter[tuple[str, ...]] = Counter()
        for leaf in self._leaves(name):
            instruction = self.instructions[leaf]
            work = instruction.size * _WEIGHTS.get(instruction.opcode, 1)
            scope = (instruction.scope,) if instruction.scope else ()
            weights[(*self._outer_scopes(leaf), *scope)] += max(work, 1)
        if len(weights) > 1:
            weights.pop((), None)
        return {scope: weight / weights.total() for scope, weight in weights.items()}

    def _outer_scopes(self, name: str) -> list[str]:
        """The scopes of the loops and calls around an instruction, the outermost first."""
        found: list[str] = []
        for caller in self.callers_of(name):
            instruction = self.instructions[caller]
            if instruction.opcode in _CONTROL and instruction.scope not in ("", *found):
                found.append(instruction.scope)
        return found[::-1]

    def callers_of(self, name: str) -> Iterator[str]:
        """The instructions around one, the innermost first."""
        while (caller := self.callers.get(self.home.get(name, ""))) is not None:
            yield (name := caller)

    def _leaves(self, name: str) -> Iterator[str]:
        instruction = self.instructions[name]
        inner = [n for c in instruction.called for n in self.computations[c]]
        if inner and instruction.opcode in _RUNS_OTHERS:
            for each in inner:
                yield from self._leaves(each)
        elif instruction.opcode not in _FREE:
            yield name


def profile_instructions(run: Callable[[], Any], module: HloModule, runs: int) -> dict[str, float]:
    """The seconds of each instruction in a run of a compiled module, without those of inner ones.

    Inner instructions are those of loops and calls, where the profiler reports them. Of several runs,
    the one with the median total is taken. Empty if the profiler reports none, as on devices
    that it does not know.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 2
    jax.block_until_ready(run())
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            for _ in range(runs):
                jax.block_until_ready(run())
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        if not files:
            return {}
        data = jax.profiler.ProfileData.from_file(str(files[0]))
    by_run = _durations(data, module)
    if not by_run:
        return {}
    # Without numbers of runs, all of them are in one.
    count = runs if len(by_run) == 1 else 1
    for found in by_run.values():
        for name, duration in [*found.items()]:
            around = next((c for c in module.callers_of(name) if c in found), None)
            if around is not None:
                found[around] -= duration
    totals = {number: found.total() for number, found in by_run.items()}
    middle = median_low(totals.values())
    chosen = next(number for number, total in totals.items() if total == middle)
    return {name: max(ns, 0) * 1e-9 / count for name, ns in by_run[chosen].items()}


def _durations(data: jax.profiler.ProfileData, module: HloModule) -> dict[Any, Counter[str]]:
    """The nanoseconds of the instructions of a module in a profile, by run."""
    by_run: defaultdict[Any, Counter[str]] = defaultdict(Counter)
    with warnings.catch_warnings():
        # The process ends where Python 3.13's warning of jaxlib's types is an error.
        warnings.simplefilter("ignore", DeprecationWarning)
        events = [e for plane in data.planes for line in plane.lines for e in line.events]
        for event in events:
            stats = dict(event.stats)
            name = str(stats.get("hlo_op", ""))
            if name in module.instructions:
                by_run[stats.get("run_id", 0)][name] += event.duration_ns
    return by_run
