"""Runs of an explored function, which record its paths and check those that are known.

A run that arrives at a decision in a state in which another path has been there merges with that path:
from then on, its values have the names that they have there, and what it does must be what is known.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.concretization import UnknownValues
from functx.core.effects import Effect
from functx.core.errors import FunctxError
from functx.core.functionalization import functionalized_atom
from functx.core.program import Atom, Equation, Literal, Var
from functx.core.source_info import Source, frame_source
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.tracing import Builder, run_and_finish
from functx.core.types import ShapedArray
from functx.core.typing import Function, PyTree
from functx.transforms.explore.failed_runs import (
    Contradiction,
    Crossing,
    PathEnds,
    ReplayMismatch,
    raise_for_mismatch,
    restart_or_explain,
)
from functx.transforms.explore.identity import is_compared_by_identity
from functx.transforms.explore.iterations import (
    DecisionStep,
    Loop,
    count_iterations,
    loop_variables,
)
from functx.transforms.explore.limits import iteration_limit_error, recursion_error
from functx.transforms.explore.memory import RunMemory, Slot
from functx.transforms.explore.merging import Renaming, can_merge, has_same_structure
from functx.transforms.explore.paths import (
    Arrival,
    Decision,
    Explorer,
    Merge,
    PathResult,
    Segment,
    captured_key,
)
from functx.transforms.explore.python_state import (
    LeafKey,
    Position,
    PythonState,
    expressions,
    is_number_leaf,
    is_user_frame,
    iterator_states,
    live_iterators,
    no_garbage_collection,
    other_threads_wait,
    user_frames,
)
from functx.transforms.tracing_api import check_output

LOOP_ROUNDS = 64
"""The number of times that a loop is followed: a Python loop whose end no variable shows ends within these."""
_FEWEST_ROUNDS, _ROUND_EQUATIONS = 8, 1000
_LONGEST_WALK, _LONGEST_PLAN = 320, 1280
_DEEPEST_RECURSION = 50


class PassedDecision(NamedTuple):
    """A decision on the way of a run, its outcome, and the number of equations before it."""

    decision: Decision
    outcome: bool
    equations: int


class Run:
    """One run of the function, which takes the outcomes `path`, then those that are not yet known.

    A run that does not merge has paths of its own. Where all outcomes are known, `prefer` chooses one for each
    decision that the run comes to for the first time. It raises Contradiction where an outcome of `path` is
    excluded by an earlier one, unless it `contradicts`. A replay ends after `path`, and raises ReplayMismatch.
    """

    def __init__(
        self,
        explorer: Explorer,
        path: Sequence[bool],
        merges: bool = True,
        prefer: Callable[[Decision], bool] | None = None,
        contradicts: bool = False,
        is_replay: bool = False,
    ):
        self.prefer, self.contradicts, self.is_replay = prefer, contradicts, is_replay
        self.explorer, self.findings, self.merges = explorer, explorer.findings, merges
        self.segment = explorer.root if merges else Segment()
        self.forced, self.planned = deque(path), deque[bool]()
        self.history: list[PassedDecision] = []
        self.passed: dict[Decision, int] = {}
        self.position_in_segment = self.emitted = self.scanned = self.idle = 0
        self.names: dict[Var, tuple[Any, int]] = {}
        self.renamings: list[Renaming] = []
        self.crossings: list[Crossing] = []
        self.crossed: dict[Merge, Arrival] = {}
        self.numbers: set[Slot] = set()
        self.step, self.loops = DecisionStep(()), dict[Loop, int]()
        self.unknown_values = UnknownValues()
        self.facts: dict[Atom, bool] = {}
        self.shared_facts: set[Atom] = set()
        self.visits: dict[Any, list[Arrival]] = {}
        self.memory = RunMemory(explorer.memory, self.name)
        self.last_decision: tuple[Source | None, int, int] = (None, 0, 0)

    def execute(self) -> None:
        """Run the function in a builder of its own."""
        explorer = self.explorer
        builder = self.builder = Builder(explorer.name, "explore", current_builder.innermost())
        builder.carries_writes = builder.returns_writes = True
        builder.imported_views = {}
        builder.explored_path = self
        # Functionalizes from the start, so that all runs have the same equations.
        builder.writes = True
        builder.explorer = explorer
        try:
            with other_threads_wait(), no_garbage_collection():
                self.known_iterators = [*live_iterators()]
                run_and_finish(builder, self.call_function, [])
        except PathEnds:
            pass
        except ReplayMismatch as mismatch:
            if self.is_replay:
                raise
            raise_for_mismatch(self, *mismatch.args)
        except (Exception, GeneratorExit) as error:
            if not self.is_replay:
                restart_or_explain(self, error)
            raise

    def call_function(self) -> list[Any]:
        """Call the function, and record its results."""
        explorer = self.explorer
        out = _call(explorer.fun, explorer.args, explorer.kwargs)
        leaves, out_tree = tree.flatten_with_key_data(out)
        for x in leaves:
            if type(x) is not Tracer:
                check_output("explore", explorer.fun, x, out)
        self.finish([self.builder.tracer(x) for x in leaves], out_tree)
        return []

    def outcomes(self) -> list[bool]:
        """The outcomes of this run so far."""
        return [step.outcome for step in self.history]

    def mismatch(self, eqn: Equation | None = None) -> NoReturn:
        """End this run, which differs from the known path."""
        raise ReplayMismatch(eqn)

    # Equations

    def atom(self, x: Any) -> Atom:
        """The canonical atom of the current value of `x`."""
        atom = functionalized_atom(self.builder, self.builder.atom(x))[1]
        self.record_equations()
        return self.canonical(atom)

    def canonical(self, atom: Atom) -> Atom:
        """The atom that stands for `atom` of this run in all runs; the path has merged wrongly without one."""
        found = self.name(atom)
        if isinstance(found, Merge):
            self.findings.refuse(found)
        return found

    def name(self, atom: Atom) -> Atom | Merge:
        """As `canonical`; the merge since which there is no such atom, if there is none."""
        if type(atom) is not Var:
            return atom
        known = self.names.get(atom)
        if known is None:
            value = self.builder.captured_value(atom)
            assert value is not None, "a value has an equation or is captured"
            known = self.findings.capture(value), 0
        found, count = known
        for renaming in self.renamings[count:]:
            if isinstance(found, Merge):
                break
            found = renaming(found)
        self.names[atom] = found, len(self.renamings)
        return found  # type: ignore[no-any-return]

    def set_names(self, own: Sequence[Var], names: Sequence[Any]) -> None:
        """Give variables of this run the names that they have now."""
        count = len(self.renamings)
        self.names.update({v: (name, count) for v, name in zip(own, names, strict=True)})

    def new_equations(self) -> list[Equation]:
        """The pure equations that have been appended since the last call."""
        copy, _ = functionalized_atom(self.builder, _NOTHING)
        self.note_writes()
        new = copy.equations[self.emitted :]
        self.emitted += len(new)
        return new

    def record_equations(self) -> None:
        """Append the new equations to the segment; find them there if an earlier run has been here."""
        segment = self.segment
        for eqn in self.new_equations():
            if segment.end is not None or self.position_in_segment < len(segment.equations):
                self.match_equation(eqn)
                continue
            inputs = [self.canonical(a) for a in eqn.inputs]
            outputs = [Var(v.aval) for v in eqn.outputs]
            new = Equation(eqn.primitive, inputs, outputs, eqn.source, eqn.part)
            segment.equations.append(new)
            segment.define(outputs)
            self.explorer.labels.add(new)
            self.set_names(eqn.outputs, outputs)
            self.position_in_segment += 1

    def match_equation(self, eqn: Equation) -> None:
        """Find an equation among those of the segment.

        After a merge, one of the paths may read a view that the other does not have.
        """
        inputs = [self.name(a) for a in eqn.inputs]
        known = self.segment.equations
        for i in range(self.position_in_segment, len(known)):
            if known[i].primitive == eqn.primitive and known[i].inputs == inputs:
                self.position_in_segment = i + 1
                self.set_names(eqn.outputs, known[i].outputs)
                return
            if known[i].primitive.effects or not self.renamings:
                break
        if eqn.primitive.effects or not self.renamings:
            self.mismatch(eqn)
        lost = [x for x in inputs if isinstance(x, Merge)] or [self.renamings[-1].merge]
        self.set_names(eqn.outputs, lost[:1] * len(eqn.outputs))

    def check_all_matched(self) -> None:
        """Check that the known equations of the segment that are left have no effects."""
        left = self.segment.equations[self.position_in_segment :]
        if left and (not self.renamings or any([eqn.primitive.effects for eqn in left])):
            self.mismatch()

    # Memory

    def note_writes(self) -> None:
        """Note the storages that new equations of this run write to."""
        new = self.builder.equations[self.scanned :]
        self.scanned += len(new)
        for eqn in new:
            effects = eqn.primitive.effects
            if effects and Effect.WRITE in effects:
                storage = self.aliases()[eqn.inputs[0]].storage
                self.memory.write(storage)

    def aliases(self) -> dict[Atom, Any]:
        """The chain of views that each variable of this run is."""
        return self.builder.functionalizer.functionalizer.aliases  # type: ignore

    # Decisions

    def decide(self, tracer: Tracer) -> bool:
        """The outcome for a boolean of `tracer`, whose value is unknown."""
        frames = user_frames(sys._getframe(1), _call.__code__)
        source = frame_source(frames[-1]) if frames else None
        self.check_recursion([f.f_code for f in frames], source)
        repeats = self.count_repeats(source)
        instructions = tuple([(f.f_code, f.f_lasti) for f in frames])
        self.loops = count_iterations(self.loops, self.step, instructions)
        position = self.position(expressions(frames), repeats)
        # An iterator of Python gives these their next value: no traced one can stand for it.
        self.findings.constants |= {
            (position.frames, (i, name))
            for i, (code, offset) in enumerate(instructions)
            for name in loop_variables(code, offset)
        }
        predicate = tracer if tracer.dtype == np.bool_ else ops.ne(tracer, 0)
        predicate = ops.reshape(predicate, ()) if predicate.shape else predicate
        state = PythonState(frames, self.findings.kept.append)
        definitions = self.define(position, state)
        arrival = self.arrival(position, source, predicate, state)
        self.last_decision = source, repeats, len(self.builder.equations)
        outcome = self.arrive(arrival, definitions)
        self.step = DecisionStep(instructions, outcome)
        return outcome

    def decided_comparison(self, comparison: Tracer) -> Any:
        """The outcome of a comparison that the code compares by identity with True; else the comparison."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not is_user_frame(frame):
            frame = frame.f_back
        decides = not comparison.shape and is_compared_by_identity(frame, is_user_frame)
        return bool(comparison) if decides else comparison

    def check_recursion(self, codes: Sequence[Any], source: Source | None) -> None:
        """Raise IterationLimitError for a function that calls itself too often."""
        if codes and codes.count(codes[-1]) > _DEEPEST_RECURSION:
            raise recursion_error(self.explorer, codes[-1].co_name, _DEEPEST_RECURSION, source)

    def position(self, frames: tuple[Any, ...], repeats: int) -> Position:
        """The position of a decision; iterators are not compared where an earlier run has been here."""
        end = self.segment.end
        if isinstance(end, (Decision, Merge)):
            known = end.arrival.position
            if (known.frames, known.repeats) != (frames, repeats):
                self.mismatch()
            return known
        iterators = iterator_states(self.known_iterators)
        return Position(frames, repeats, iterators, tuple(self.loops.items()))

    def count_repeats(self, source: Source | None) -> int:
        """The number of decisions in a row that one instruction has asked for, as a call of `max` does."""
        before, repeats, count = self.last_decision
        new = self.builder.equations[count:]
        same = source == before and all([eqn.source == source for eqn in new])
        return repeats + 1 if same else 0

    def define(self, position: Position, state: PythonState) -> dict[LeafKey, tuple[Var, Atom]]:
        """Give numbers that vary between paths, and arrays that only some share, variables of the program.

        Returns each variable with the value that it stands for.
        """
        found: dict[LeafKey, tuple[Var, Atom]] = {}
        for key, leaf in [*state.leaves.items()]:
            aval = self.type_of_variable((position.frames, key), leaf.value)
            if aval is None or leaf.set is None:
                continue
            if is_number_leaf(leaf.value):
                source = literal_number(leaf.value)
                self.numbers.add((position.frames, key))
            else:
                own = functionalized_atom(self.builder, self.builder.atom(leaf.value))[1]
                self.record_equations()
                source = self.name(own)
            tracer = self.builder.add_input(aval)
            leaf.set(tracer)
            state.leaves[key] = leaf._replace(value=tracer)
            if isinstance(source, Merge):
                self.set_names([tracer.atom], [source])  # type: ignore[list-item]
                continue
            known = self.segment.definitions.get(key)
            found[key] = known[0] if known else Var(aval), source
            self.set_names([tracer.atom], [found[key][0]])  # type: ignore[list-item]
        return found

    def type_of_variable(self, slot: Slot, value: Any) -> ShapedArray | None:
        """The type of the variable that a leaf gets; None if it gets none."""
        if slot in self.findings.constants:
            return None
        aval = self.findings.types.get(slot)
        if is_number_leaf(value):
            return aval
        if slot in self.findings.separated:
            return aval or aval_of(value)
        return None if aval == aval_of(value) else aval

    def arrival(
        self,
        position: Position,
        source: Source | None,
        predicate: Any,
        state: PythonState,
    ) -> Arrival:
        """The state at a decision, in the terms of all runs."""
        values = {k: x.value for k, x in state.leaves.items()}
        arrays = {k: self.builder.tracer(x).atom for k, x in values.items() if type(x) is Tracer}
        # Reading the current values may append equations, which are recorded all at once.
        atoms = {k: functionalized_atom(self.builder, a)[1] for k, a in arrays.items()}
        found = self.atom(predicate)
        named = {
            k: self.name(atoms[k]) if k in atoms else literal_number(x) for k, x in values.items()
        }
        captured = self.captured_arrays()
        named |= {captured_key(v): self.name(a) for v, (_, a) in captured.items()}
        arrays |= {captured_key(v): own for v, (own, _) in captured.items()}
        memory = self.memory.describe(
            position.frames, {k: a for k, a in arrays.items() if type(a) is Var}, self.aliases()
        )
        return Arrival(
            position,
            source,
            found,
            state.structure,
            {k: x for k, x in named.items() if not isinstance(x, Merge)},
            frozenset([k for k, leaf in state.leaves.items() if leaf.set is not None]),
            memory,
            {p: on for p, on in self.facts.items() if p in self.shared_facts},
            self.segment,
        )

    def captured_arrays(self) -> dict[Var, tuple[Var, Atom]]:
        """Each captured array, as a variable of this run, and its current value.

        Captured arrays that the function writes to are among its results.
        """
        aliases = self.aliases()
        found: dict[Var, tuple[Var, Atom]] = {}
        for var, value in self.builder.captures.values():
            if var in aliases:
                current = aliases[var].storage.value.atom
                captured = self.findings.capture(value)
                found[captured] = var, current
                if current is not var:
                    self.findings.written[captured] = None
        return found

    def arrive(self, arrival: Arrival, definitions: dict[LeafKey, tuple[Var, Atom]]) -> bool:
        """The outcome at a decision; from then on, the run goes where the path leads that it merges with."""
        segment = self.segment
        self.idle += 1
        if segment.end is None:
            if self.is_replay:
                raise PathEnds
            self.idle = 0
            segment.definitions = definitions
            segment.define([var for var, _ in definitions.values()])
            segment.end = self.new_end(arrival)
        else:
            self.match_end(arrival, definitions)
        end = segment.end
        if isinstance(end, Merge):
            self.cross(end, arrival)
            end = end.decision
        assert isinstance(end, Decision)
        return self.leave(end)

    def new_end(self, arrival: Arrival) -> Decision | Merge:
        """The end of a new segment: a merge with an equal state, or a new decision."""
        label = self.explorer.labels.label(arrival.predicate)
        fact = self.facts.get(label)
        decisions = self.explorer.decisions.setdefault(arrival.position, []) if self.merges else []
        unmerged = self.findings.unmerged
        # Between two decisions of one call of C code, such as `max`, its state is hidden.
        if not arrival.position.repeats and arrival.constants() not in unmerged:
            for each in decisions:
                if each.assumed not in (None, fact) or each.arrival.constants() in unmerged:
                    continue
                if can_merge(each.arrival, arrival, self.findings):
                    merge = Merge(each, arrival)
                    self.explorer.merges.append(merge)
                    return merge
        self.count_visit(arrival)
        decision = Decision(arrival, fact if label in self.shared_facts else None)
        decisions.append(decision)
        if self.merges:
            self.explorer.add(decision)
        return decision

    def match_end(self, arrival: Arrival, definitions: dict[LeafKey, tuple[Var, Atom]]) -> None:
        """Check that the run arrives where, and as, an earlier one on this path has arrived."""
        segment = self.segment
        end = segment.end
        self.check_all_matched()
        if not isinstance(end, (Decision, Merge)) or end.arrival.predicate != arrival.predicate:
            self.mismatch()
        for key in definitions.keys() & segment.definitions.keys():
            new, known = definitions[key][1], segment.definitions[key][1]
            if not is_same_value(known, new):
                if type(known) is type(new) is Literal:
                    self.findings.give_up_numbers([arrival.slot(key)])
                self.mismatch()
        for key, known in end.arrival.leaves.items():
            if key in arrival.leaves and not is_same_value(known, arrival.leaves[key]):
                self.mismatch()

    def cross(self, merge: Merge, arrival: Arrival) -> None:
        """Go on as the path that this one merges with."""
        decision = merge.decision
        # Parts of the state that no earlier run shows again may differ.
        if not has_same_structure(self.crossed.setdefault(merge, arrival), arrival):
            self.mismatch()
        renaming = Renaming(merge, arrival, self.findings.captured)
        self.renamings.append(renaming)
        self.crossings.append(Crossing(merge, len(self.history)))
        renamed = {renaming(p): on for p, on in self.facts.items()}
        label, known = self.explorer.labels.label, decision.arrival.facts
        self.facts = {label(p): on for p, on in renamed.items() if not isinstance(p, Merge)}
        self.shared_facts = {p for p, on in self.facts.items() if known.get(p) is on}
        if not known.keys() <= self.shared_facts | merge.undecided.keys():
            outcomes = self.outcomes()
            for predicate in known:
                if predicate not in self.shared_facts:
                    merge.undecided.setdefault(predicate, outcomes)
        self.plan_rounds(decision)

    def plan_rounds(self, decision: Decision) -> None:
        """Follow a loop that is found for many rounds: one of Python may end although nothing shows it."""
        start = self.passed.get(decision)
        if start is not None and not self.planned and self.idle == 0:
            cycle = [step.outcome for step in self.history[start:]]
            equations = len(self.builder.equations) - self.history[start].equations
            rounds = max(_FEWEST_ROUNDS, min(LOOP_ROUNDS, _ROUND_EQUATIONS // (equations + 1)))
            self.planned.extend(cycle * rounds)

    def leave(self, decision: Decision) -> bool:
        """Go on after a decision; its outcome."""
        label = self.explorer.labels.label(decision.arrival.predicate)
        outcome = self.next_outcome(decision, self.facts.get(label))
        self.facts[label] = outcome
        self.shared_facts.add(label)
        self.passed[decision] = len(self.history)
        self.history.append(PassedDecision(decision, outcome, len(self.builder.equations)))
        self.explorer.last_outcome[decision.arrival.position.frames[-1:]] = outcome
        if outcome not in decision.after:
            segment = decision.after[outcome] = Segment(decision.arrival.segment)
            segment.recorded_path = self.outcomes()
        segment = decision.after[outcome]
        segment.used += 1
        self.segment, self.position_in_segment = segment, 0
        return outcome

    def next_outcome(self, decision: Decision, fact: bool | None) -> bool:
        """The outcome that the path has decided before, else one that is not known or the less used one."""
        if self.forced:
            outcome = self.forced.popleft()
            if fact not in (None, outcome) and not self.contradicts:
                raise Contradiction
            return outcome
        if decision.assumed not in (None, fact):
            # A path has merged that has not decided the same before.
            self.explorer.reopen(decision)
        if self.is_replay:
            raise PathEnds
        if self.idle > (_LONGEST_PLAN if self.planned else _LONGEST_WALK):
            raise PathEnds
        if fact is not None:
            return fact
        if self.planned:
            return self.planned.popleft()
        missing = decision.missing()
        if len(missing) == 2:
            return self.explorer.last_outcome.get(decision.arrival.position.frames[-1:], True)
        if missing:
            return missing[0]
        if self.prefer and decision not in self.passed:
            return self.prefer(decision)
        return min((True, False), key=lambda on: decision.after[on].used)

    def count_visit(self, arrival: Arrival) -> None:
        """Count the new decisions of this run at a position; IterationLimitError for too many."""
        visits = self.visits.setdefault(arrival.position.frames, [])
        visits.append(arrival)
        if len(visits) >= self.explorer.iterations:
            raise iteration_limit_error(self.explorer, *visits[-2:])

    # The end

    def finish(self, outs: Sequence[Tracer], out_tree: tree.TreeDef) -> None:
        """Record the results as the end of the path."""
        outputs = [functionalized_atom(self.builder, x.atom)[1] for x in outs]
        self.record_equations()
        current = {v: self.canonical(a) for v, (_, a) in self.captured_arrays().items()}
        written = {v: a for v, a in current.items() if a is not v}
        end = PathResult([self.canonical(a) for a in outputs], out_tree, written)
        if self.segment.end is None:
            self.segment.end = end
            return
        self.check_all_matched()
        if self.segment.end != end:
            self.mismatch()


_NOTHING = Literal(0, ShapedArray((), np.dtype("int32")))


def _call(fun: Function, args: Sequence[PyTree], kwargs: PyTree) -> PyTree:
    """Call `fun`; frames inside this one belong to its state."""
    return fun(*args, **kwargs)


def literal_number(value: Any) -> Any:
    """The literal for a number among the leaves; anything else unchanged."""
    if type(value) is Tracer:
        return value.atom if type(value.atom) is Literal else value
    try:
        return Literal(value.item() if isinstance(value, np.generic) else value, aval_of(value))
    except (FunctxError, OverflowError):
        return value


def is_same_value(x: Any, y: Any) -> bool:
    """Whether two leaves are one variable, or equal numbers."""
    return x is y or (type(x) is not Var and type(y) is not Var and repr(x) == repr(y))
