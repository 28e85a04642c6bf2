"""Decisions that assume the outcome of an earlier one: `if c: y = ...`, and later `if c: use(y)`.

A path has only that outcome there. Another path may merge before it that has not decided the same: a run
that comes there in this way opens the decision for both outcomes. This file finds where to run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from functx.core.program import Atom
from functx.transforms.explore.failed_runs import Contradiction
from functx.transforms.explore.merging import Renaming
from functx.transforms.explore.paths import Decision, Explorer, Merge, Route
from functx.transforms.explore.run import Run


def check_assumptions(explorer: Explorer) -> None:
    """Run to each decision that assumes an outcome which a merged path has not decided before.

    The runs open these decisions. Raises Restart where no run can come there, and PathLimitError after
    too many runs.
    """
    if all([d.assumed is None for each in explorer.decisions.values() for d in each]):
        return
    for merge in [*explorer.merges]:
        for predicate, path in [*merge.undecided.items()]:
            for decision, outcomes in decisions_on(explorer, predicate, merge.decision):
                if decision.assumed is None:
                    continue
                explorer.count_run()
                with suppress(Contradiction):
                    Run(explorer, Route([*path, *outcomes])).execute()
                if decision.assumed is not None:
                    explorer.findings.refuse(merge)


def decisions_on(
    explorer: Explorer, predicate: Atom, start: Decision
) -> Iterator[tuple[Decision, list[bool]]]:
    """The first decisions on a predicate from `start` on, with the outcomes on the way to each."""
    label, captured = explorer.labels.label, explorer.findings.captured
    seen = {(start, predicate)}
    pending = deque([(start, predicate, list[bool]())])
    while pending:
        decision, predicate, outcomes = pending.popleft()
        if label(decision.arrival.predicate) is predicate:
            yield decision, outcomes
            continue
        for outcome, segment in decision.after.items():
            end, name = segment.end, predicate
            if isinstance(end, Merge):
                renamed = Renaming(end, end.arrival, captured)(predicate)
                if isinstance(renamed, Merge):
                    continue
                end, name = end.decision, label(renamed)
            if isinstance(end, Decision) and (end, name) not in seen:
                seen.add((end, name))
                pending.append((end, name, [*outcomes, outcome]))
