"""How a run arrives at a decision: the state of Python code in the terms of all runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from functx.core.errors import FunctxError
from functx.core.functionalization import functionalized_atom
from functx.core.program import Atom, Literal, Var
from functx.core.source_info import Source
from functx.core.tracer import Tracer, aval_of
from functx.core.types import ShapedArray
from functx.transforms.explore.memory import Slot
from functx.transforms.explore.paths import Arrival, Findings, Merge, captured_key
from functx.transforms.explore.python_state import (
    LeafKey,
    Position,
    PythonState,
    is_number_leaf,
)

if TYPE_CHECKING:
    from functx.transforms.explore.run import Run


def define_variables(
    run: Run, position: Position, state: PythonState
) -> dict[LeafKey, tuple[Var, Atom]]:
    """Give numbers that vary between paths, and arrays that only some share, variables of the program.

    Returns each variable with the value that it stands for.
    """
    found: dict[LeafKey, tuple[Var, Atom]] = {}
    for key, leaf in [*state.leaves.items()]:
        aval = type_of_variable(run.findings, (position.frames, key), leaf.value)
        if aval is None or leaf.set is None:
            continue
        if is_number_leaf(leaf.value):
            source = literal_number(leaf.value)
            run.numbers.add((position.frames, key))
        else:
            own = functionalized_atom(run.builder, run.builder.atom(leaf.value))[1]
            run.record_equations()
            source = run.names.name(own)
        tracer = run.builder.add_input(aval)
        leaf.set(tracer)
        state.leaves[key] = leaf._replace(value=tracer)
        if isinstance(source, Merge):
            run.names.set([tracer.atom], [source])  # type: ignore[list-item]
            continue
        known = run.segment.definitions.get(key)
        found[key] = known[0] if known else Var(aval), source
        run.names.set([tracer.atom], [found[key][0]])  # type: ignore[list-item]
    return found


def type_of_variable(findings: Findings, slot: Slot, value: object) -> ShapedArray | None:
    """The type of the variable that a leaf gets; None if it gets none."""
    if slot in findings.constants:
        return None
    aval = findings.types.get(slot)
    if is_number_leaf(value):
        return aval
    if slot in findings.separated:
        return aval or aval_of(value)
    return None if aval == aval_of(value) else aval


def arrival_of(
    run: Run,
    position: Position,
    source: Source | None,
    predicate: object,
    state: PythonState,
) -> Arrival:
    """The state at a decision, in the terms of all runs."""
    values = {k: x.value for k, x in state.leaves.items()}
    arrays = {k: run.builder.tracer(x).atom for k, x in values.items() if type(x) is Tracer}
    # Reading the current values may append equations, which are recorded all at once.
    atoms = {k: functionalized_atom(run.builder, a)[1] for k, a in arrays.items()}
    found = run.atom(predicate)
    named = {
        k: run.names.name(atoms[k]) if k in atoms else literal_number(x) for k, x in values.items()
    }
    captured = captured_arrays(run)
    named |= {captured_key(v): run.names.name(a) for v, (_, a) in captured.items()}
    arrays |= {captured_key(v): own for v, (own, _) in captured.items()}
    memory = run.memory.describe(
        position.frames, {k: a for k, a in arrays.items() if type(a) is Var}, run.aliases()
    )
    return Arrival(
        position,
        source,
        found,
        state.structure,
        {k: x for k, x in named.items() if not isinstance(x, Merge)},
        frozenset([k for k, leaf in state.leaves.items() if leaf.set is not None]),
        memory,
        run.outcomes.known_facts(),
        run.segment,
    )


def captured_arrays(run: Run) -> dict[Var, tuple[Var, Atom]]:
    """Each captured array, as a variable of this run, and its current value.

    Captured arrays that the function writes to are among its results.
    """
    aliases = run.aliases()
    found: dict[Var, tuple[Var, Atom]] = {}
    for var, value in run.builder.captures.values():
        if var in aliases:
            current = aliases[var].storage.value.atom
            captured = run.findings.capture(value)
            found[captured] = var, current
            if current is not var:
                run.findings.written[captured] = None
    return found


def literal_number(value: object) -> Any:
    """The literal for a number among the leaves; anything else unchanged."""
    if type(value) is Tracer:
        return value.atom if type(value.atom) is Literal else value
    try:
        return Literal(value.item() if isinstance(value, np.generic) else value, aval_of(value))
    except (FunctxError, OverflowError):
        return value
