"""The paths through a function, which its runs find: decisions, and the equations between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np

from functx.core import tree
from functx.core.program import Atom, Equation, Literal, Var
from functx.core.source_info import Source
from functx.core.tracer import aval_of
from functx.core.types import ShapedArray
from functx.core.typing import Function, PyTree
from functx.transforms.aliasing import capture_key
from functx.transforms.argument_names import function_name
from functx.transforms.explore.identity import decide_identity_test, identity_tests
from functx.transforms.explore.instruction_events import InstructionEvents
from functx.transforms.explore.memory import MemoryFlow, Slot
from functx.transforms.explore.python_state import LeafKey, Position


class Restart(BaseException):
    """Ends an exploration, after which another begins with the results of this one."""


class Arrival(NamedTuple):
    """The state in which a path arrives at a decision: the predicate, and the values of variables.

    `leaves` has the atom of each traced array, and the number of each other leaf; `settable` are those
    that a run can replace.
    `memory` says, for arrays, which storage they are views of. `facts` are the
    outcomes of earlier decisions on the path, by the label of the predicate.
    """

    position: Position
    source: Source | None
    predicate: Atom
    structure: dict[LeafKey, Any]
    leaves: dict[LeafKey, Any]
    settable: frozenset[LeafKey]
    memory: dict[LeafKey, tuple[int, Any]]
    facts: dict[Atom, bool]
    segment: Segment

    def slot(self, key: LeafKey) -> Slot:
        """The slot of a leaf."""
        return self.position.frames, key

    def constants(self) -> tuple[Any, ...]:
        """The position, and the numbers of Python in this state."""
        numbers = [(key, repr(x)) for key, x in self.leaves.items() if type(x) is not Var]
        return self.position, frozenset(numbers)


class Decision:
    """A boolean of a traced value that Python code asks for, with the segment after each outcome.

    `assumed` is the outcome if the path has decided the same before; then there is no other.
    """

    def __init__(self, arrival: Arrival, assumed: bool | None):
        self.arrival, self.assumed = arrival, assumed
        self.after: dict[bool, Segment] = {}
        self.number = 0

    @property
    def source(self) -> Source | None:
        """The line of the decision."""
        return self.arrival.source

    def first_outcome(self) -> bool:
        """The outcome that a run has taken first."""
        return next(iter(self.after))

    def last_outcome(self) -> bool:
        """The outcome that a run has taken last for the first time."""
        return next(reversed(self.after))

    def bit(self, bit: int, flip: int) -> bool:
        """A bit of the number of the decision, or its complement."""
        return bool((self.number >> bit ^ flip) & 1)

    def missing(self) -> list[bool]:
        """The outcomes that no run has taken."""
        possible = (True, False) if self.assumed is None else (self.assumed,)
        return [outcome for outcome in possible if outcome not in self.after]


class Merge:
    """The end of a segment at a decision that another path has arrived at in an equal state.

    `undecided` are predicates that the path of the decision has decided before, and some run that merges
    here has not; with the outcomes of that run up to here.
    """

    def __init__(self, decision: Decision, arrival: Arrival):
        self.decision, self.arrival = decision, arrival
        self.undecided: dict[Atom, list[bool]] = {}


class PathResult(NamedTuple):
    """The end of a path at which the function returns; `written` has the new values of captured arrays."""

    outputs: list[Atom]
    out_tree: tree.TreeDef
    written: dict[Var, Atom]


class Segment:
    """The equations of a path from one decision to the next; `used` counts the runs through it.

    `recorded_path` has the outcomes of the run that recorded it. After the equations come `definitions`, variables
    that stand for numbers, or for arrays that another variable has too, from then on.
    """

    def __init__(self, before: Segment | None = None):
        self.before = before
        self.definers: dict[Atom, Segment] = {} if before is None else before.definers
        self.depth: int = 0 if before is None else before.depth + 1
        # One segment before, or a stretch as long as the last two: any earlier one is few jumps away.
        self.jump: Segment = self if before is None else before.jump_after()
        self.equations: list[Equation] = []
        self.definitions: dict[LeafKey, tuple[Var, Atom]] = {}
        self.end: Decision | Merge | PathResult | None = None
        self.recorded_path: list[bool] = []
        self.used = 0

    def path(self) -> list[bool]:
        """The outcomes that lead to this segment."""
        outcomes: list[bool] = []
        segment = self
        while (before := segment.before) is not None:
            assert isinstance(before.end, Decision)
            outcomes.append(before.end.after.get(True) is segment)
            segment = before
        return outcomes[::-1]

    def define(self, variables: Iterable[Var]) -> None:
        """Note that this segment defines `variables`."""
        self.definers.update(dict.fromkeys(variables, self))

    def defines(self, atom: Atom) -> bool:
        """Whether this segment, or one before it, defines `atom`."""
        definer = self.definers.get(atom)
        return definer is not None and self.ancestor(definer.depth) is definer

    def ancestor(self, depth: int) -> Segment:
        """The segment at a depth before this one; this one if it is not as deep."""
        segment = self
        while segment.before is not None and segment.depth > depth:
            segment = segment.jump if segment.jump.depth >= depth else segment.before
        return segment

    def jump_after(self) -> Segment:
        """The segment that `jump` of one after this is."""
        middle = self.jump
        equal = self.depth - middle.depth == middle.depth - middle.jump.depth
        return middle.jump if equal else self


class Findings:
    """Facts about the variables and decisions of a function that its explorations share.

    `types` are those of numbers that become values of the program, `constants` the numbers that cannot.
    Each of the arrays `separated` gets a variable of its own, since it is the value of another leaf on some
    paths only. `mutable` are the arrays that are written to later. Paths do not merge in the states
    `unmerged`. `captured` are the variables of `captures`, `written` those that some path writes to.
    `kept` are objects whose identities must stay theirs.
    """

    def __init__(self) -> None:
        self.types: dict[Slot, ShapedArray] = {}
        self.constants: set[Slot] = set()
        self.separated: set[Slot] = set()
        self.mutable: set[Slot] = set()
        self.unmerged: set[Any] = set()
        self.captures: dict[Any, tuple[Var, Any]] = {}
        self.captured: set[Atom] = set()
        self.written: dict[Var, None] = {}
        self.kept: list[object] = []
        self.events = InstructionEvents(identity_tests, decide_identity_test)

    def capture(self, value: object) -> Var:
        """The variable that stands for a captured value in all runs."""
        found = self.captures.get(capture_key(value)) or next(
            (known for known in self.captures.values() if _equal_constants(known[1], value)), None
        )
        if found is None:
            found = self.captures[capture_key(value)] = Var(aval_of(value)), value
            self.captured.add(found[0])
        return found[0]

    def give_up_numbers(self, slots: Iterable[Slot]) -> None:
        """Raise Restart if numbers in these slots are values of the program: they become constants."""
        new = {*slots} - self.constants
        if new:
            self.constants |= new
            raise Restart from None

    def refuse(self, merge: Merge) -> NoReturn:
        """Raise Restart, since a merge is wrong.

        Numbers that Python sets anew on both of its paths become constants, those that differ first. If there
        are none, the next exploration does not merge paths in this state.
        """
        known, new = [each.segment.definitions for each in (merge.decision.arrival, merge.arrival)]
        pairs = {key: (known[key][1], new[key][1]) for key in known if key in new}
        numbers = {k: p for k, p in pairs.items() if type(p[0]) is type(p[1]) is Literal}
        different = [key for key, (x, y) in numbers.items() if repr(x) != repr(y)]
        for keys in (different, numbers):
            self.give_up_numbers([merge.arrival.slot(key) for key in keys])
        self.unmerged |= {merge.decision.arrival.constants(), merge.arrival.constants()}
        raise Restart


def _equal_constants(x: object, y: object) -> bool:
    """Whether two captured NumPy arrays, which a run may make anew, are equal."""
    if type(x) is not type(y) or not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        return False
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


class Route(NamedTuple):
    """Where a run goes: it takes `outcomes`, then those that are not yet known.

    A run that does not merge has paths of its own. Where all outcomes are known, `prefer` chooses one for each
    decision that the run comes to for the first time. It raises Contradiction where one of `outcomes` is
    excluded by an earlier one, unless it `contradicts`. A replay ends after them, and raises ReplayMismatch.
    """

    outcomes: Sequence[bool] = ()
    merges: bool = True
    prefer: Callable[[Decision], bool] | None = None
    contradicts: bool = False
    is_replay: bool = False


class Explorer:
    """The exploration of one call of `fun`.

    It stops with PathLimitError after `paths` runs, and with IterationLimitError where a path comes
    to one position more than `iterations` times.
    """

    def __init__(
        self, fun: Function, args: Sequence[PyTree], kwargs: PyTree, paths: int, iterations: int
    ):
        self.fun, self.args, self.kwargs = fun, args, kwargs
        self.paths, self.iterations = paths, iterations
        self.name = function_name(fun)
        self.findings = Findings()
        self.reset()

    def reset(self) -> None:
        """Forget the paths, but not the findings."""
        self.root = Segment()
        self.decisions: dict[Position, list[Decision]] = {}
        self.merges: list[Merge] = []
        self.count = 0
        self.open: deque[Decision] = deque()
        self.last_outcome: dict[Any, bool] = {}
        self.labels = Labels()
        self.memory = MemoryFlow()

    def call(self, fun: Function, args: Sequence[PyTree], kwargs: PyTree) -> PyTree:
        """The result of a function that is traced inside of the explored one, explored as well."""
        from functx.transforms.explore import run_explored

        return run_explored(fun, args, kwargs, self.paths, self.iterations)

    def add(self, decision: Decision) -> None:
        """Add a new decision."""
        decision.number, self.count = self.count, self.count + 1
        self.open.append(decision)

    def reopen(self, decision: Decision) -> None:
        """Allow both outcomes of a decision, which a path has come to that has not decided it before."""
        decision.assumed = None
        self.open.append(decision)

    def explore(self) -> Segment:
        """The first segment of all paths. Raises Restart if another exploration must follow."""
        from functx.transforms.explore.assumptions import check_assumptions
        from functx.transforms.explore.run import Run

        self.reset()
        Run(self, Route()).execute()
        self.runs = 1
        while self.open:
            self.close_decisions()
            self.verify_merges()
            check_assumptions(self)
        mutable = self.memory.mutable_slots()
        if not mutable <= self.findings.mutable:
            self.findings.mutable |= mutable
            self.findings.separated -= mutable
            raise Restart
        return self.root

    def close_decisions(self) -> None:
        """Run to each outcome that no run has taken."""
        from functx.transforms.explore.run import Run

        while self.open:
            # The first one, since a run from there may come through those that follow.
            decision = self.open[0]
            missing = decision.missing()
            if not missing:
                self.open.popleft()
                continue
            self.count_run()
            if not self.run_to(decision.arrival.segment, missing[:1]):
                # Only a run that has merged otherwise would come here with this outcome.
                path = [*decision.arrival.segment.path(), missing[0]]
                Run(self, Route(path, contradicts=True)).execute()

    def count_run(self) -> None:
        """Count a run that looks for new paths. Raises PathLimitError where there have been too many."""
        from functx.transforms.explore.limits import path_limit_error

        self.runs += 1
        if self.runs > self.paths:
            raise path_limit_error(self)

    def run_to(
        self,
        segment: Segment,
        outcomes: Sequence[bool],
        prefer: Callable[[Decision], bool] | None = None,
    ) -> bool:
        """Run to the end of a segment, and go on with `outcomes`; whether a path can be decided that way."""
        from functx.transforms.explore.failed_runs import Contradiction
        from functx.transforms.explore.run import Run

        for path in (segment.path(), segment.recorded_path):
            try:
                Run(self, Route([*path, *outcomes], prefer=prefer)).execute()
            except Contradiction:
                continue
            return True
        return False

    def verify_merges(self) -> None:
        """Run on from merges where other runs have been. Raises Restart where a run does something else.

        Parts of the state of Python code are shown by no local variable: operands of an unfinished expression,
        attributes of global objects, what a call of `max` with a `key` has found so far. A few merges are
        verified one by one, on both paths with both outcomes of what follows; many by runs among which, for each two
        decisions, all pairs of outcomes occur.
        """
        from functx.transforms.explore.run import Run

        if len(self.merges) <= _VERIFIED_ONE_BY_ONE:
            arrivals = [x for each in self.merges for x in (each.arrival, each.decision.arrival)]
            for segment in dict.fromkeys([each.segment for each in arrivals]):
                for prefer in (Decision.first_outcome, Decision.last_outcome):
                    self.run_to(segment, [], prefer)
            return
        # The last bit is that of no number: all outcomes are alike.
        for bit in range(self.count.bit_length() + 1):
            for flip in (0, 1):
                Run(self, Route(prefer=partial(Decision.bit, bit=bit, flip=flip))).execute()


class Labels:
    """Value numbering: variables that are computed alike from the same atoms have one label."""

    def __init__(self) -> None:
        self._first: dict[Any, Sequence[Var]] = {}
        self._label_of: dict[Atom, Atom] = {}

    def add(self, eqn: Equation) -> None:
        """Label the outputs of an equation."""
        if not (eqn.primitive.effects or eqn.primitive.draws):
            computed = eqn.primitive, *map(self.label, eqn.inputs)
            first = self._first.setdefault(computed, eqn.outputs)
            if first is not eqn.outputs:
                self._label_of.update(zip(eqn.outputs, first, strict=True))

    def label(self, atom: Atom) -> Atom:
        """The label of an atom."""
        return self._label_of.get(atom, atom)


_VERIFIED_ONE_BY_ONE = 32
_CAPTURED = -1


def captured_key(var: Var) -> LeafKey:
    """The key of a captured array among the leaves of a state."""
    return _CAPTURED, var


def is_captured(key: LeafKey) -> bool:
    """Whether a leaf is a captured array."""
    return key[0] == _CAPTURED
