"""Runs of an explored function, which record its paths and check those that are known.

A run that arrives at a decision in a state in which another path has been there merges with that path:
from then on, its values have the names that they have there, and what it does must be what is known.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.builder import Builder
from functx.core.concretization import UnknownValues
from functx.core.effects import Effect
from functx.core.functionalization import functionalized_atom
from functx.core.program import Atom, Equation, Literal, Var
from functx.core.source_info import Source, frame_source
from functx.core.tracer import Tracer, current_builder
from functx.core.tracing import run_and_finish
from functx.core.types import ShapedArray
from functx.core.typing import Function, PyTree
from functx.transforms.explore.arrivals import arrival_of, captured_arrays, define_variables
from functx.transforms.explore.failed_runs import (
    Crossing,
    PathEnds,
    ReplayMismatch,
    raise_for_mismatch,
    restart_or_explain,
)
from functx.transforms.explore.iterations import (
    DecisionStep,
    Loop,
    count_iterations,
    loop_variables,
)
from functx.transforms.explore.limits import iteration_limit_error, recursion_error
from functx.transforms.explore.memory import RunMemory, Slot
from functx.transforms.explore.merging import Renaming, can_merge, has_same_structure
from functx.transforms.explore.names import Names
from functx.transforms.explore.outcomes import Outcomes
from functx.transforms.explore.paths import (
    Arrival,
    Decision,
    Explorer,
    Merge,
    PathResult,
    Route,
    Segment,
)
from functx.transforms.explore.python_state import (
    LeafKey,
    Position,
    PythonState,
    expressions,
    iterator_states,
    live_iterators,
    no_garbage_collection,
    other_threads_wait,
    user_frames,
)
from functx.transforms.tracing_api import check_output

_DEEPEST_RECURSION = 50


class Run:
    """One run of the function along a route."""

    def __init__(self, explorer: Explorer, route: Route):
        self.explorer, self.findings, self.route = explorer, explorer.findings, route
        self.segment = explorer.root if route.merges else Segment()
        self.outcomes = Outcomes(explorer, route)
        builder = self.builder = Builder(explorer.name, "explore", current_builder.innermost())
        builder.carries_writes = builder.returns_writes = True
        builder.imported_views = {}
        builder.explored_path = self
        # Functionalizes from the start, so that all runs have the same equations.
        builder.writes = True
        builder.explorer = explorer
        self.names = Names(builder, explorer.findings)
        self.memory = RunMemory(explorer.memory, self.names.name)
        self.position_in_segment = self.emitted = self.scanned = 0
        self.crossings: list[Crossing] = []
        self.crossed: dict[Merge, Arrival] = {}
        self.numbers: set[Slot] = set()
        self.step, self.loops = DecisionStep(()), dict[Loop, int]()
        self.unknown_values = UnknownValues()
        self.visits: dict[Any, list[Arrival]] = {}
        self.last_decision: tuple[Source | None, int, int] = (None, 0, 0)
        self.ended: BaseException | None = None

    def execute(self) -> None:
        """Run the function in a builder of its own."""
        try:
            watching = self.findings.events.watching(self.segment.end is None)
            with other_threads_wait(), no_garbage_collection(), watching:
                self.known_iterators = [*live_iterators()]
                run_and_finish(self.builder, self.call_function, [])
        except PathEnds:
            pass
        except ReplayMismatch as mismatch:
            if self.route.is_replay:
                raise
            raise_for_mismatch(self, *mismatch.args)
        except (Exception, GeneratorExit) as error:
            if not self.route.is_replay:
                restart_or_explain(self, error)
            raise

    def call_function(self) -> list[Any]:
        """Call the function, and record its results."""
        explorer = self.explorer
        out = _call(explorer.fun, explorer.args, explorer.kwargs)
        self.check_not_ended()
        leaves, out_tree = tree.flatten_with_key_data(out)
        for x in leaves:
            if type(x) is not Tracer:
                check_output("explore", explorer.fun, x, out)
        self.finish([self.builder.tracer(x) for x in leaves], out_tree)
        return []

    def mismatch(self, eqn: Equation | None = None) -> NoReturn:
        """End this run, which differs from the known path."""
        raise ReplayMismatch(eqn)

    # Equations

    def atom(self, x: object) -> Atom:
        """The name of the current value of `x`."""
        atom = functionalized_atom(self.builder, self.builder.atom(x))[1]
        self.record_equations()
        return self.names.needed_name(atom)

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
            inputs = [self.names.needed_name(a) for a in eqn.inputs]
            outputs = [Var(v.aval) for v in eqn.outputs]
            new = Equation(eqn.primitive, inputs, outputs, eqn.source, eqn.part)
            segment.equations.append(new)
            segment.define(outputs)
            self.explorer.labels.add(new)
            self.names.set(eqn.outputs, outputs)
            self.position_in_segment += 1

    def match_equation(self, eqn: Equation) -> None:
        """Find an equation among those of the segment.

        After a merge, one of the paths may read a view that the other does not have.
        """
        inputs = [self.names.name(a) for a in eqn.inputs]
        known = self.segment.equations
        for i in range(self.position_in_segment, len(known)):
            if known[i].primitive == eqn.primitive and known[i].inputs == inputs:
                self.position_in_segment = i + 1
                self.names.set(eqn.outputs, known[i].outputs)
                return
            if known[i].primitive.effects or not self.names.renamings:
                break
        if eqn.primitive.effects or not self.names.renamings:
            self.mismatch(eqn)
        lost = [x for x in inputs if isinstance(x, Merge)] or [self.names.renamings[-1].merge]
        self.names.set(eqn.outputs, lost[:1] * len(eqn.outputs))

    def check_all_matched(self) -> None:
        """Check that the known equations of the segment that are left have no effects."""
        left = self.segment.equations[self.position_in_segment :]
        if left and (not self.names.renamings or any([eqn.primitive.effects for eqn in left])):
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
        self.check_not_ended()
        try:
            return self.decide_here(tracer)
        except BaseException as end:
            self.ended = end
            raise

    def check_not_ended(self) -> None:
        """Raise what ended this run, where `finally` or `except` of the user goes on after it."""
        if self.ended is not None:
            raise self.ended

    def decide_here(self, tracer: Tracer) -> bool:
        """The outcome for a boolean of `tracer` at the present place in the code."""
        frames = user_frames(sys._getframe(2), _call.__code__)
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
        definitions = define_variables(self, position, state)
        arrival = arrival_of(self, position, source, predicate, state)
        self.last_decision = source, repeats, len(self.builder.equations)
        outcome = self.arrive(arrival, definitions)
        self.step = DecisionStep(instructions, outcome)
        return outcome

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

    def arrive(self, arrival: Arrival, definitions: dict[LeafKey, tuple[Var, Atom]]) -> bool:
        """The outcome at a decision; from then on, the run goes where the path leads that it merges with."""
        segment = self.segment
        self.outcomes.idle += 1
        if segment.end is None:
            if self.route.is_replay:
                raise PathEnds
            self.outcomes.idle = 0
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
        fact = self.outcomes.facts.get(label)
        decisions = (
            self.explorer.decisions.setdefault(arrival.position, []) if self.route.merges else []
        )
        unmerged = self.findings.unmerged
        # Between two decisions of one call of C code, such as `max`, its state is hidden.
        if not arrival.position.repeats and arrival.constants() not in unmerged:
            for each in decisions:
                # Its predicate may be a fact of its path, but not of this one.
                if each.assumed not in (None, fact) or each.arrival.constants() in unmerged:
                    continue
                if can_merge(each.arrival, arrival, self.findings):
                    merge = Merge(each, arrival)
                    self.explorer.merges.append(merge)
                    return merge
        self.count_visit(arrival)
        decision = Decision(arrival, fact if label in self.outcomes.shared_facts else None)
        decisions.append(decision)
        if self.route.merges:
            self.explorer.add(decision)
        return decision

    def match_end(self, arrival: Arrival, definitions: dict[LeafKey, tuple[Var, Atom]]) -> None:
        """Check that the run arrives where, and as, an earlier one on this path has arrived."""
        segment = self.segment
        end = segment.end
        self.check_all_matched()
        if not isinstance(end, (Decision, Merge)) or end.arrival.predicate != arrival.predicate:
            self.mismatch()
        # The run that was here first may have merged with a path that assigns a variable which it does not.
        later = {key: x for key, x in definitions.items() if key not in segment.definitions}
        segment.definitions |= later
        segment.define([var for var, _ in later.values()])
        for key in definitions:
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
        # Parts of the state that no earlier run shows again may differ.
        if not has_same_structure(self.crossed.setdefault(merge, arrival), arrival):
            self.mismatch()
        renaming = Renaming(merge, arrival, self.findings.captured)
        self.names.renamings.append(renaming)
        self.crossings.append(Crossing(merge, len(self.outcomes.history)))
        self.outcomes.cross(merge, renaming, len(self.builder.equations))

    def leave(self, decision: Decision) -> bool:
        """Go on after a decision; its outcome."""
        outcome = self.outcomes.take(decision, len(self.builder.equations))
        if outcome not in decision.after:
            segment = decision.after[outcome] = Segment(decision.arrival.segment)
            segment.recorded_path = self.outcomes.taken()
        segment = decision.after[outcome]
        segment.used += 1
        self.segment, self.position_in_segment = segment, 0
        self.findings.events.watch(segment.end is None)
        return outcome

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
        current = {v: self.names.needed_name(a) for v, (_, a) in captured_arrays(self).items()}
        written = {v: a for v, a in current.items() if a is not v}
        end = PathResult([self.names.needed_name(a) for a in outputs], out_tree, written)
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


def is_same_value(x: object, y: object) -> bool:
    """Whether two leaves are one variable, or equal numbers."""
    return x is y or (type(x) is not Var and type(y) is not Var and repr(x) == repr(y))
