"""Times walks under compiled_autograd beside PyTorch eager: `python -m tests.benchmarks.compiled_walks [TASK ...]`.

Times are those of `tests.benchmarks.imperative`. PyTorch walks node by node, and computes meanwhile;
functx records the walk, except in the training steps.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from functx import compiled_autograd
from functx.compiled_autograd import counters, enable
from tests.benchmarks.imperative import (
    NETWORKS,
    Build,
    Namespace,
    Network,
    Row,
    Step,
    TaskRows,
    Timed,
    jitted_step,
    least_times,
    normal,
    run_tasks,
    training,
)

LAYERS = 12
WEIGHTS = [normal(8, 8, scale=0.1) for _ in range(LAYERS)]
INPUT = normal(4, 8)


def same_gradient(gradient: Any) -> Any:
    return gradient


def layered(fx: Namespace, weights: Sequence[Any], hooks: int = 0) -> Any:
    """The sum of the results of layers with tanh, the last few of which have hooks."""
    x = fx.array(INPUT)
    for i, w in enumerate(weights):
        x = fx.np.tanh(x @ w.T)
        if i >= LAYERS - hooks:
            x.register_hook(same_gradient)
    return x.sum()


def layered_walk(fx: Namespace, hooks: int = 0, restarts: bool = False) -> Timed:
    """A walk through layers. With `restarts` nothing that was captured before is known."""
    weights = [fx.parameter(w) for w in WEIGHTS]
    roots: list[Any] = []

    def before() -> None:
        if restarts:
            compiled_autograd.reset()
        roots.append(layered(fx, weights, hooks))

    def after() -> None:
        for w in weights:
            w.grad = None
        fx.run_recorded()

    return Timed(lambda: roots.pop().backward(), 1, before, after)


def compiled(timed: Timed) -> Timed:
    """The same with walks as captured programs."""

    def run() -> None:
        with enable():
            timed.run()

    return timed._replace(run=run)


def count_of_nodes(fx: Namespace) -> int:
    """The number of nodes of the walk through layers."""
    root = layered(fx, [fx.parameter(w) for w in WEIGHTS])
    nodes, pending = set(), [root.grad_fn]
    while pending:
        node = pending.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            pending += [edge[0] for edge in node.next_functions]
    return len(nodes)


def hit_rows(libraries: Sequence[Namespace], seconds: float) -> Iterator[Row]:
    ours, *theirs = libraries
    runs = [layered_walk(ours), compiled(layered_walk(ours)), *map(layered_walk, theirs)]
    plain, hit, *other = least_times(runs, seconds)
    nodes = count_of_nodes(ours)
    yield Row("walk", [plain, *other])
    yield Row("walk_hit", [hit, *other], most=2e-6 * nodes)
    yield Row("walk_hit_node", [hit / nodes], most=2e-6)


def capture_rows(libraries: Sequence[Namespace], seconds: float) -> Iterator[Row]:
    ours = libraries[0]
    runs = [layered_walk(ours), compiled(layered_walk(ours, restarts=True))]
    plain, first = least_times(runs, seconds)
    yield Row("capture", [first - plain], most=1e-3)


def hook_rows(libraries: Sequence[Namespace], seconds: float) -> Iterator[Row]:
    ours, *theirs = libraries
    none = [compiled(layered_walk(ours)), *map(layered_walk, theirs)]
    each = [compiled(layered_walk(ours, LAYERS)), *[layered_walk(fx, LAYERS) for fx in theirs]]
    times = least_times([*none, *each], seconds)
    pairs = zip(times[: len(none)], times[len(none) :], strict=True)
    yield Row("hook_of_hit", [(more - less) / LAYERS for less, more in pairs], most=8e-6)


def compiled_step(fx: Namespace, net: Network) -> Step:
    """A step of gradient descent whose loss and update are operations, with compiled walks."""
    step = jitted_step(fx, net)

    def run() -> Any:
        with enable():
            return step()

    return run


def training_rows(
    name: str, part: float, libraries: Sequence[Namespace], seconds: float
) -> Iterator[Row]:
    ours, *theirs = libraries
    net = NETWORKS[name]
    builds: list[Build] = [training(jitted_step, net), training(compiled_step, net)]
    runs = [*[build(ours) for build in builds], *map(builds[0], theirs)]
    plain, hit, *other = least_times(runs, seconds)
    yield Row(f"{name}_jit", [plain, *other])
    yield Row(f"{name}_jit_compiled", [hit, *other], part=part)


def storm_rows(libraries: Sequence[Namespace], seconds: float) -> Iterator[Row]:
    ours, structures = libraries[0], 100
    leaf = ours.parameter(np.ones(3, "float32"))

    def walk_all(first: int) -> None:
        for i in range(structures):
            x = leaf
            for bit in range(11):
                x = ours.np.sin(x) if (first + i) >> bit & 1 else x * 2.0
            x.sum().backward()
            leaf.grad = None
            ours.run_recorded()

    def run(walk: Callable[[int], None]) -> Timed:
        return Timed(partial(walk, 0), structures)

    @enable()
    def walk_compiled(first: int) -> None:
        walk_all(first)

    compiled_autograd.reset()
    plain, known = least_times([run(walk_all), run(walk_compiled)], seconds)
    yield Row("storm_walk", [plain])
    yield Row("storm_walk_hit", [known])
    assert counters.captures == structures
    sizes = []
    for first in range(0, 18 * structures, structures):
        walk_compiled(first)
        gc.collect()
        sizes.append(len(gc.get_objects()))
    # Caches hold two generations of 512 walks.
    yield Row("storm_objects", [sizes[-1] / max(sizes[11:14])], most=1.05, unit=None)


TASKS: dict[str, TaskRows] = {
    "walk_hit": hit_rows,
    "capture": capture_rows,
    "hook": hook_rows,
    "deep": partial(training_rows, "deep", 0.7),
    "small": partial(training_rows, "small", 1.1),
    "storm": storm_rows,
}

if __name__ == "__main__":
    run_tasks("tests.benchmarks.compiled_walks", __doc__, TASKS)
