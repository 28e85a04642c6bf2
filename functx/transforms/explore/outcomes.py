"""The choice of the outcome that a run takes at each decision.

A run begins with the outcomes of its route. Then it takes those that the path has decided before, and outcomes
that no run has taken. Where it finds a loop, it follows it for many rounds; where all outcomes are known, it takes
the one that the fewest runs have taken.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from functx.core.program import Atom
from functx.transforms.explore.failed_runs import Contradiction, PathEnds
from functx.transforms.explore.merging import Renaming
from functx.transforms.explore.paths import Decision, Explorer, Merge, Route

LOOP_ROUNDS = 64
"""The number of times that a loop is followed: a Python loop whose end no variable shows ends within these."""
_FEWEST_ROUNDS, _ROUND_EQUATIONS = 8, 1000
_LONGEST_WALK, _LONGEST_PLAN = 320, 1280


class PassedDecision(NamedTuple):
    """A decision on the way of a run, its outcome, and the number of equations before it."""

    decision: Decision
    outcome: bool
    equations: int


class Outcomes:
    """The outcomes that a run has taken, `history`, and the choice of the next one.

    `facts` are the outcomes by label of the predicate; those in `shared_facts` the path has decided too that the
    run is on. `idle` counts the decisions in a row that an earlier run has been at.
    """

    def __init__(self, explorer: Explorer, route: Route):
        self.explorer, self.route = explorer, route
        self.history: list[PassedDecision] = []
        self.facts: dict[Atom, bool] = {}
        self.shared_facts: set[Atom] = set()
        self.idle = 0
        self._forced, self._planned = deque(route.outcomes), deque[bool]()
        self._passed: dict[Decision, int] = {}

    def taken(self) -> list[bool]:
        """The outcomes so far."""
        return [step.outcome for step in self.history]

    def known_facts(self) -> dict[Atom, bool]:
        """The facts of the path that the run is on."""
        return {p: on for p, on in self.facts.items() if p in self.shared_facts}

    def cross(self, merge: Merge, renaming: Renaming, equations: int) -> None:
        """Rename the facts at a merge, and note in it those that only the other path knows."""
        label, known = self.explorer.labels.label, merge.decision.arrival.facts
        renamed = {renaming(p): on for p, on in self.facts.items()}
        self.facts = {label(p): on for p, on in renamed.items() if not isinstance(p, Merge)}
        self.shared_facts = {p for p, on in self.facts.items() if known.get(p) is on}
        if not known.keys() <= self.shared_facts | merge.undecided.keys():
            taken = self.taken()
            for predicate in known:
                if predicate not in self.shared_facts:
                    merge.undecided.setdefault(predicate, taken)
        self.plan_rounds(merge.decision, equations)

    def plan_rounds(self, decision: Decision, equations: int) -> None:
        """Follow a loop that is found for many rounds: one of Python may end although nothing shows it."""
        start = self._passed.get(decision)
        if start is not None and not self._planned and self.idle == 0:
            cycle = [step.outcome for step in self.history[start:]]
            in_round = equations - self.history[start].equations
            rounds = max(_FEWEST_ROUNDS, min(LOOP_ROUNDS, _ROUND_EQUATIONS // (in_round + 1)))
            self._planned.extend(cycle * rounds)

    def take(self, decision: Decision, equations: int) -> bool:
        """The outcome at a decision, which is a fact from then on."""
        label = self.explorer.labels.label(decision.arrival.predicate)
        outcome = self._next(decision, self.facts.get(label))
        self.facts[label] = outcome
        self.shared_facts.add(label)
        self._passed[decision] = len(self.history)
        self.history.append(PassedDecision(decision, outcome, equations))
        self.explorer.last_outcome[decision.arrival.position.frames[-1:]] = outcome
        return outcome

    def _next(self, decision: Decision, fact: bool | None) -> bool:
        """The outcome that the path has decided before, else one that is not known or the less used one."""
        if self._forced:
            outcome = self._forced.popleft()
            if fact not in (None, outcome) and not self.route.contradicts:
                raise Contradiction
            return outcome
        if decision.assumed not in (None, fact):
            # A path has merged that has not decided the same before.
            self.explorer.reopen(decision)
        is_too_long = self.idle > (_LONGEST_PLAN if self._planned else _LONGEST_WALK)
        if self.route.is_replay or is_too_long:
            raise PathEnds
        if fact is not None:
            return fact
        if self._planned:
            return self._planned.popleft()
        missing = decision.missing()
        if len(missing) == 2:
            return self.explorer.last_outcome.get(decision.arrival.position.frames[-1:], True)
        if missing:
            return missing[0]
        if self.route.prefer and decision not in self._passed:
            return self.route.prefer(decision)
        return min((True, False), key=lambda on: decision.after[on].used)
