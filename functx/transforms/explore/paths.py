"""The paths through a function: it is run once for each outcome of its decisions."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.concretization import UnknownValues
from functx.core.errors import (
    FunctxError,
    IterationLimitError,
    PathLimitError,
    ReplayError,
)
from functx.core.functionalization import functionalized_atom
from functx.core.program import Atom, Equation, Literal, Var
from functx.core.source_info import Source, frame_source, source_line, user_line
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.tracing import Builder, run_and_finish
from functx.core.types import ShapedArray
from functx.core.typing import Function, PyTree
from functx.transforms.aliasing import capture_key
from functx.transforms.argument_names import function_name
from functx.transforms.control.body_tracing import common_aval
from functx.transforms.explore.python_state import (
    LeafKey,
    Position,
    PythonState,
    expressions,
    is_number_leaf,
    iterator_states,
    live_iterators,
    user_frames,
)


class PathEnds(BaseException):
    """Ends a run of the function whose remaining program is known."""


class Restart(BaseException):
    """Ends an exploration, after which another begins with what this one has found out."""


class Arrival(NamedTuple):
    """The state in which a path arrives at a decision: the predicate, and the values of variables.

    `leaves` has the atom of each traced array, and the number of each other leaf. `numbers` are those
    that become values of the program here. `facts` are the outcomes of earlier decisions on the path by
    predicate.
    """

    predicate: Atom
    structure: dict[LeafKey, Any]
    leaves: dict[LeafKey, Any]
    numbers: dict[LeafKey, Literal]
    facts: dict[Atom, bool]
    segment: Segment


class Decision:
    """A boolean of a traced value that Python code asks for, with the segment after each outcome.

    `assumed` is the outcome if the path has decided the same before; then there is no other.
    """

    def __init__(
        self,
        position: Position,
        source: Source | None,
        arrival: Arrival,
        assumed: bool | None,
    ):
        self.position, self.source, self.arrival = position, source, arrival
        self.assumed = assumed
        self.after: dict[bool, Segment] = {}


class Merge(NamedTuple):
    """The end of a path at a decision that another path has arrived at in an equal state."""

    decision: Decision
    arrival: Arrival


class PathResult(NamedTuple):
    """The end of a path at which the function returns; `written` has the new values of captured arrays."""

    outputs: list[Atom]
    out_tree: tree.TreeDef
    written: dict[Var, Atom]


class Segment:
    """The equations of a path from one decision to the next.

    After them come `definitions`, variables that stand for numbers from then on.
    """

    def __init__(self, before: Segment | None = None):
        self.before = before
        self.equations: list[Equation] = []
        self.definitions: dict[LeafKey, tuple[Var, Atom]] = {}
        self.end: Decision | Merge | PathResult | None = None

    def path(self) -> list[bool]:
        """The outcomes that lead to this segment."""
        outcomes: list[bool] = []
        segment = self
        while (before := segment.before) is not None:
            assert isinstance(before.end, Decision)
            outcomes.append(before.end.after.get(True) is segment)
            segment = before
        return outcomes[::-1]

    def chain(self) -> Iterator[Segment]:
        """This segment and those before it, the first one last."""
        segment: Segment | None = self
        while segment is not None:
            yield segment
            segment = segment.before

    def follows(self, other: Segment) -> bool:
        """Whether `other` is this segment or one before it."""
        return any([segment is other for segment in self.chain()])

    def defines(self, atom: Atom) -> bool:
        """Whether this segment, or one before it, defines `atom`."""
        for segment in self.chain():
            if any([v is atom for v, _ in segment.definitions.values()]):
                return True
            if any([atom in eqn.outputs for eqn in segment.equations]):
                return True
        return False


class Findings:
    """Facts about the variables and decisions of a function that its explorations share.

    `types` are those of numbers that become values of the program, `constants` the numbers that cannot.
    Paths do not merge at the positions `unmerged`. `written` are the captured arrays that some
    path writes to.
    """

    def __init__(self) -> None:
        self.types: dict[Any, ShapedArray] = {}
        self.constants: set[Any] = set()
        self.unmerged: set[Any] = set()
        self.captures: dict[Any, tuple[Var, Any]] = {}
        self.written: dict[Var, None] = {}
        self.kept: list[object] = []

    def capture(self, value: Any) -> Var:
        """The variable that stands for a captured value in all runs."""
        found = self.captures.get(capture_key(value)) or next(
            (known for known in self.captures.values() if _equal_constants(known[1], value)), None
        )
        if found is None:
            found = self.captures[capture_key(value)] = Var(aval_of(value)), value
        return found[0]


def _equal_constants(x: object, y: object) -> bool:
    """Whether two captured NumPy arrays, which a run may make anew, are equal."""
    if type(x) is not type(y) or not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        return False
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


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
        self.root = Segment()
        self.decisions: dict[Position, list[Decision]] = {}

    def call(self, fun: Function, args: Sequence[PyTree], kwargs: PyTree) -> PyTree:
        """The result of a function that is traced inside of the explored one, explored as well."""
        from functx.transforms.explore import run_explored

        return run_explored(fun, args, kwargs, self.paths, self.iterations)

    def explore(self) -> Segment:
        """The first segment of all paths."""
        self.root = Segment()
        self.decisions = {}
        pending: list[list[bool]] = [[]]
        count = 0
        while pending:
            count += 1
            if count > self.paths:
                raise self.path_limit_error()
            run = Run(self, pending.pop())
            run.execute()
            pending += run.alternatives
        return self.root

    def path_limit_error(self) -> PathLimitError:
        """The error for too many paths, which names the lines where most of them part."""
        lines: dict[str, int] = {}
        for decisions in self.decisions.values():
            for each in decisions:
                line = source_line(each.source)
                lines[line] = lines.get(line, 0) + 1
        most = sorted(lines.items(), key=lambda item: -item[1])[:3]
        return PathLimitError(
            f"explore({self.name}): the function must have at most {self.paths} paths; got more",
            *[f"{count} decisions at {line}" for line, count in most],
            fix="Choose between values with functx.numpy.where or functx.lax.cond at that line, or pass a "
            "larger `paths`.",
        )


class Run:
    """One run of the function, which takes the outcomes `path` and then True at each new decision."""

    def __init__(self, explorer: Explorer, path: Sequence[bool]):
        self.explorer, self.findings = explorer, explorer.findings
        self.path, self.taken = path, list[bool]()
        self.alternatives: list[list[bool]] = []
        self.segment = explorer.root
        self.position_in_segment = self.emitted = 0
        self.canonical_of: dict[Var, Atom] = {}
        self.unknown_values = UnknownValues()
        self.value_numbers: dict[Any, list[Var]] = {}
        self.facts: dict[Atom, bool] = {}
        self.visits: dict[Any, list[Arrival]] = {}
        self.numbers: dict[Any, dict[Literal, None]] = {}
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
            with other_threads_wait():
                gc.collect(0)
                self.known_iterators = [*live_iterators()]
                run_and_finish(builder, self.call_function, [])
        except PathEnds:
            pass
        except (Exception, GeneratorExit) as error:
            self.handle_error(error)
            raise

    def call_function(self) -> list[Any]:
        """Call the function, and record its results."""
        explorer = self.explorer
        out = _call(explorer.fun, explorer.args, explorer.kwargs)
        leaves, out_tree = tree.flatten_with_key_data(out)
        self.finish([self.builder.tracer(x) for x in leaves], out_tree)
        return []

    def handle_error(self, error: BaseException) -> None:
        """Raise Restart for an error that a number as a traced value may have caused.

        Else name the outcomes that led to the error.
        """
        generalised = [key for key in self.generalised_here() if key not in self.findings.constants]
        if generalised and not isinstance(
            error, (PathLimitError, IterationLimitError, ReplayError)
        ):
            self.findings.constants.update(generalised)
            raise Restart from None
        if self.taken and not isinstance(error, FunctxError):
            outcomes = [
                f"  {outcome}: {source_line(each.source)}" for each, outcome in self.outcomes()
            ]
            error.add_note("\n".join(["explored with these outcomes:", *outcomes]))

    def generalised_here(self) -> list[Any]:
        """The numbers that are values of the program on this path."""
        keys: list[Any] = []
        for segment in self.segment.chain():
            end = segment.end if isinstance(segment.end, Decision) else None
            keys += [
                (end.position.frames, key)
                for key, (_, source) in segment.definitions.items()
                if end and type(source) is Literal
            ]
        return keys

    def outcomes(self) -> list[tuple[Decision, bool]]:
        """The decisions of this path and their outcomes."""
        segment, found = self.explorer.root, []
        for outcome in self.taken:
            if not isinstance(segment.end, Decision):
                break
            found.append((segment.end, outcome))
            segment = segment.end.after[outcome]
        return found

    # Equations

    def atom(self, x: Any) -> Atom:
        """The canonical atom of the current value of `x`."""
        atom = functionalized_atom(self.builder, self.builder.atom(x))[1]
        self.record_equations()
        return self.canonical(atom)

    def canonical(self, atom: Atom) -> Atom:
        """The atom that stands for `atom` of this run in all runs."""
        if type(atom) is not Var:
            return atom
        found = self.canonical_of.get(atom)
        if found is None:
            value = self.builder.captured_value(atom)
            assert value is not None, "a value has an equation or is captured"
            found = self.canonical_of[atom] = self.findings.capture(value)
        return found

    def new_equations(self) -> list[Equation]:
        """The pure equations that have been appended since the last call."""
        copy, _ = functionalized_atom(self.builder, _NOTHING)
        new = copy.equations[self.emitted :]
        self.emitted += len(new)
        return new

    def record_equations(self) -> None:
        """Append the new equations to the segment; check them where an earlier run has been here."""
        for eqn in self.new_equations():
            inputs = [self.canonical(a) for a in eqn.inputs]
            known = self.segment.equations[self.position_in_segment :][:1]
            if known:
                if known[0].primitive != eqn.primitive or known[0].inputs != inputs:
                    raise self.replay_error(eqn)
                outputs = known[0].outputs
            elif self.segment.end is not None:
                raise self.replay_error(eqn)
            else:
                outputs = [Var(v.aval) for v in eqn.outputs]
                self.segment.equations.append(
                    Equation(eqn.primitive, inputs, outputs, eqn.source, eqn.part)
                )
            self.position_in_segment += 1
            self.canonical_of.update(zip(eqn.outputs, outputs, strict=True))
            self.number_values(eqn, inputs, outputs)

    def number_values(self, eqn: Equation, inputs: Sequence[Atom], outputs: list[Var]) -> None:
        """Note which earlier equation on this path computes the same as `eqn`."""
        if not (eqn.primitive.effects or eqn.primitive.draws):
            same = (eqn.primitive, *[self.value_number(a) for a in inputs])
            first = self.value_numbers.setdefault(same, outputs)
            if first is not outputs:
                self.value_numbers.update(zip(outputs, [[v] for v in first], strict=True))

    def value_number(self, atom: Atom) -> Atom:
        """The first atom on this path with the value of `atom`."""
        return self.value_numbers[atom][0] if atom in self.value_numbers else atom

    def replay_error(self, eqn: Equation | None = None) -> ReplayError:
        """The error for a run that differs from an earlier one with the same outcomes."""
        return ReplayError(
            f"explore({self.explorer.name}): the function must compute the same whenever it runs; got "
            + (f"{eqn.primitive!r}, which it did not compute before" if eqn else "another end"),
            *[f"after {outcome} at {source_line(d.source)}" for d, outcome in self.outcomes()[-1:]],
            fix="Leave out side effects, such as appending to a list from outside, and random numbers of "
            "Python or NumPy: the function runs once for each outcome of its decisions.",
            source=None if eqn is None else eqn.source,
        )

    # Decisions

    def decide(self, tracer: Tracer) -> bool:
        """The outcome for a boolean of `tracer`, whose value is unknown."""
        frames = user_frames(sys._getframe(1), _call.__code__)
        source = frame_source(frames[-1]) if frames else None
        repeats = self.count_repeats(source)
        position = self.position(expressions(frames), repeats)
        predicate = tracer if tracer.dtype == np.bool_ else ops.ne(tracer, 0)
        predicate = ops.reshape(predicate, ()) if predicate.shape else predicate
        state = PythonState(frames, self.findings.kept.append)
        definitions = self.generalise(position, state)
        found = self.predicate_and_leaves(predicate, state)
        self.last_decision = source, repeats, len(self.builder.equations)
        return self.settle(position, source, state, *found, definitions)

    def position(self, frames: tuple[Any, ...], repeats: int) -> Position:
        """The position of a decision; iterators are not compared where an earlier run has been here."""
        end = self.segment.end
        if isinstance(end, Decision):
            if (end.position.frames, end.position.repeats) != (frames, repeats):
                raise self.replay_error()
            return end.position
        return Position(frames, repeats, iterator_states(self.known_iterators))

    def count_repeats(self, source: Source | None) -> int:
        """The number of decisions in a row that one instruction has asked for, as a call of `max` does."""
        before, repeats, count = self.last_decision
        new = self.builder.equations[count:]
        same = source == before and all([eqn.source == source for eqn in new])
        return repeats + 1 if same else 0

    def predicate_and_leaves(
        self, predicate: Any, state: PythonState
    ) -> tuple[Atom, dict[LeafKey, Any]]:
        """The predicate, and the atom or number of each leaf, in the terms of all runs."""
        values = {k: x.value for k, x in state.leaves.items()}
        tracers = {k: self.builder.tracer(x) for k, x in values.items() if type(x) is Tracer}
        # Reading the current values may append equations, which are recorded all at once.
        atoms = {k: functionalized_atom(self.builder, x.atom)[1] for k, x in tracers.items()}
        found = self.atom(predicate)
        leaves = {
            k: self.canonical(atoms[k]) if k in atoms else literal_number(x)
            for k, x in values.items()
        }
        return found, leaves | {captured_key(v): a for v, a in self.captured_arrays().items()}

    def captured_arrays(self) -> dict[Var, Atom]:
        """The current value of each captured array; those written to are results of the function."""
        aliases = self.builder.functionalizer.functionalizer.aliases  # type: ignore[union-attr]
        found: dict[Var, Atom] = {}
        for var, value in self.builder.captures.values():
            if var in aliases:
                current = self.canonical(aliases[var].storage.value.atom)
                captured = self.findings.capture(value)
                found[captured] = current
                if current is not captured:
                    self.findings.written[captured] = None
        return found

    def generalise(self, position: Position, state: PythonState) -> dict[LeafKey, Any]:
        """Turn numbers that vary between paths into values of the program; their new tracers."""
        found = {}
        for key, leaf in state.leaves.items():
            aval = self.findings.types.get((position.frames, key))
            if (
                aval is None
                or leaf.set is None
                or (position.frames, key) in self.findings.constants
            ):
                continue
            if not is_number_leaf(leaf.value) and aval_of(leaf.value) == aval:
                continue
            tracer = self.builder.add_input(aval)
            found[key] = tracer, leaf.value
            leaf.set(tracer)
            state.leaves[key] = leaf._replace(value=tracer)
        return self.define(position, found)

    def define(self, position: Position, found: dict[LeafKey, Any]) -> dict[LeafKey, Any]:
        """Record the variables of `found`, each with the value that it stands for."""
        sources = self.sources_of(found)
        for key, (tracer, _) in found.items():
            source = sources[key]
            known = self.segment.definitions.get(key)
            var = known[0] if known else Var(tracer.atom.aval)
            self.canonical_of[tracer.atom] = var
            found[key] = var, source
        return found

    def sources_of(self, found: dict[LeafKey, Any]) -> dict[LeafKey, Atom]:
        """The values that new variables stand for."""
        sources: dict[LeafKey, Atom] = {}
        for key, (_, value) in found.items():
            sources[key] = literal_number(value) if is_number_leaf(value) else self.atom(value)
        return sources

    def check_computed(self, position: Position, numbers: dict[LeafKey, Literal]) -> None:
        """Raise Restart for a number that Python sets anew at each arrival, as a `for` does."""
        for key, number in numbers.items():
            slot = position.frames, key
            seen = self.numbers.setdefault(slot, {})
            seen[number] = None
            if len(seen) > _MOST_NUMBERS:
                self.findings.constants.add(slot)
                raise Restart

    def settle(
        self,
        position: Position,
        source: Source | None,
        state: PythonState,
        predicate: Atom,
        leaves: dict[LeafKey, Any],
        definitions: dict[LeafKey, Any],
    ) -> bool:
        """The outcome at a decision; raises PathEnds where an equal state is known."""
        fact = self.facts.get(self.value_number(predicate))
        segment = self.segment
        numbers = {k: a for k, (_, a) in definitions.items() if type(a) is Literal}
        self.check_computed(position, numbers)
        arrival = Arrival(predicate, state.structure, leaves, numbers, {**self.facts}, segment)
        self.count_visit(position, source, arrival)
        if segment.end is None:
            segment.definitions = definitions
            segment.end = self.find_decision(position, source, arrival, fact)
            if isinstance(segment.end, Merge):
                raise PathEnds
        elif not isinstance(segment.end, Decision):
            raise self.replay_error()
        outcome = self.choose(fact)
        self.facts[self.value_number(predicate)] = outcome
        self.segment = segment.end.after.setdefault(outcome, Segment(segment))
        self.position_in_segment = 0
        return outcome

    def choose(self, fact: bool | None) -> bool:
        """The outcome of the next decision of this run: that which the path has decided before, if any."""
        if len(self.taken) < len(self.path):
            outcome = self.path[len(self.taken)]
        elif fact is not None:
            outcome = fact
        else:
            outcome = True
            self.alternatives.append([*self.taken, False])
        self.taken.append(outcome)
        return outcome

    def find_decision(
        self, position: Position, source: Source | None, arrival: Arrival, fact: bool | None
    ) -> Decision | Merge:
        """The end of a new segment: a merge with an equal state, or a new decision."""
        decisions = self.explorer.decisions.setdefault(position, [])
        # Between two decisions of one call of C code, such as `max`, its state is hidden.
        if not position.repeats and position.frames not in self.findings.unmerged:
            on_path = {each for each, _ in self.outcomes()}
            for each in decisions:
                if each.assumed not in (None, fact):
                    continue
                if each in on_path and has_new_numbers(each.arrival, arrival):
                    continue
                if can_merge(each.arrival, arrival, position, self.findings):
                    return Merge(each, arrival)
        decision = Decision(position, source, arrival, fact)
        decisions.append(decision)
        return decision

    def count_visit(self, position: Position, source: Source | None, arrival: Arrival) -> None:
        """Count the arrivals of this path at a position; IterationLimitError for too many."""
        visits = self.visits.setdefault(position.frames, [])
        visits.append(arrival)
        if len(visits) > self.explorer.iterations:
            raise IterationLimitError(
                f"explore({self.explorer.name}): a loop must repeat its state within "
                f"{self.explorer.iterations} iterations; got other values of "
                + (", ".join(changed_names(*visits[-2:])) or "what no local variable shows"),
                fix="Keep what the loop changes in traced arrays of fixed shapes and in numbers, or write "
                "it with functx.lax.while_loop; to unroll more of it, pass larger `iterations` and `paths`.",
                source=None if source is None else user_line(source),
            )

    # The end

    def finish(self, outs: Sequence[Tracer], out_tree: tree.TreeDef) -> None:
        """Record the results as the end of the path."""
        end = self.make_return(outs, out_tree)
        if self.segment.end is None:
            self.segment.end = end
        elif self.segment.end != end:
            raise self.replay_error()

    def make_return(self, outs: Sequence[Tracer], out_tree: tree.TreeDef) -> PathResult:
        """The results, and the new values of captured arrays that the function wrote to."""
        outputs = [functionalized_atom(self.builder, x.atom)[1] for x in outs]
        self.record_equations()
        written = {v: a for v, a in self.captured_arrays().items() if a is not v}
        return PathResult([self.canonical(a) for a in outputs], out_tree, written)


def captured_key(var: Var) -> LeafKey:
    """The key of a captured array among the leaves of a state."""
    return _CAPTURED, var


_CAPTURED = -1


@contextmanager
def other_threads_wait() -> Iterator[None]:
    """A context in which other threads seldom run: their iterators would be taken for those of this one."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


_SWITCH_INTERVAL = 1.0
_MOST_NUMBERS = 3
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


def has_new_numbers(known: Arrival, new: Arrival) -> bool:
    """Whether Python has set a number anew between two arrivals of one path."""
    return any([known.numbers.get(key, number) != number for key, number in new.numbers.items()])


def can_merge(known: Arrival, new: Arrival, position: Position, findings: Findings) -> bool:
    """Whether a path may go on as one that arrived in the state `known`.

    Raises Restart if it may once numbers that differ are values of the program.
    """
    shared = known.structure.keys() & new.structure.keys()
    if any([known.structure[name] != new.structure[name] for name in shared]):
        return False
    keys = [k for k in known.leaves if k in new.leaves and (k[:2] in shared or k[0] == _CAPTURED)]
    varying: dict[Any, ShapedArray] = {}
    for key in keys:
        x, y = known.leaves[key], new.leaves[key]
        if type(x) is Var and type(y) is Var and x.aval == y.aval:
            continue
        if type(x) is not Var and type(y) is not Var and repr(x) == repr(y):
            continue
        slot = position.frames, key
        avals = [a.aval for a in (x, y) if isinstance(a, (Var, Literal))]
        common = None if len(avals) < 2 or avals[0].shape else common_aval(avals)
        if common is None or slot in findings.constants:
            return False
        varying[slot] = common
    partition: dict[Any, Any] = {}
    for key in [key for key in keys if (position.frames, key) not in varying]:
        # Variables that share a value in the known state must share one in the new state.
        if partition.setdefault(known.leaves[key], new.leaves[key]) != new.leaves[key]:
            return False
    if varying:
        for slot, aval in varying.items():
            if findings.types.get(slot) == aval:
                findings.constants.add(slot)
            findings.types[slot] = aval
        raise Restart
    return True


def changed_names(before: Arrival, after: Arrival) -> list[str]:
    """The local variables whose values differ between two arrivals, for a message."""
    return [
        f"`{name}`"
        for i, name in after.structure
        if before.structure.get((i, name)) != after.structure[i, name]
        or any(
            [
                type(leaf) is not Var and repr(before.leaves.get(key)) != repr(leaf)
                for key, leaf in after.leaves.items()
                if key[:2] == (i, name)
            ]
        )
    ]
