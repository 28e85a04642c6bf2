"""When two paths may merge: a comparison of the states in which they arrive at a decision."""

from __future__ import annotations

from collections.abc import Container, Hashable
from typing import Any

from functx.core.program import Atom, Literal, Var
from functx.core.types import ShapedArray
from functx.transforms.control.body_tracing import common_aval
from functx.transforms.explore.memory import Slot
from functx.transforms.explore.paths import Arrival, Findings, Merge, Restart, is_captured
from functx.transforms.explore.python_state import LeafKey

Pairs = dict[LeafKey, tuple[Any, Any]]
"""The value of each leaf in two states."""
_PREDICATE: LeafKey = ("predicate",)


def common_leaves(known: Arrival, new: Arrival) -> Pairs:
    """The leaves of variables that both states have, and of arrays that either has captured."""
    shared = known.structure.keys() & new.structure.keys()
    pairs = {
        key: (x, new.leaves[key])
        for key, x in known.leaves.items()
        if key in new.leaves and (key[:2] in shared or is_captured(key))
    }
    for key in [*known.leaves, *new.leaves]:
        if is_captured(key) and key not in pairs:
            pairs[key] = known.leaves.get(key, key[1]), new.leaves.get(key, key[1])
    return pairs


def can_merge(known: Arrival, new: Arrival, findings: Findings) -> bool:
    """Whether a path may go on as one that arrived in the state `known`.

    Raises Restart if it may once leaves that differ have variables of the program of their own.
    """
    if not has_same_structure(known, new):
        return False
    pairs = common_leaves(known, new)
    varying = varying_numbers(known, pairs, findings)
    if varying is None or not has_same_memory(known, new, pairs, findings):
        return False
    traced = {k: pair for k, pair in pairs.items() if known.slot(k) not in varying}
    separate = leaves_to_separate(known, new, traced, findings)
    if separate is None:
        return False
    if not varying and not separate:
        return True
    for slot, aval in varying.items():
        if findings.types.get(slot) == aval:
            findings.constants.add(slot)
        findings.types[slot] = aval
    findings.separated |= separate
    raise Restart


def has_same_structure(known: Arrival, new: Arrival) -> bool:
    """Whether the variables that both states have differ in nothing but their leaves."""
    shared = known.structure.keys() & new.structure.keys()
    return all([known.structure[name] == new.structure[name] for name in shared])


def varying_numbers(
    known: Arrival, pairs: Pairs, findings: Findings
) -> dict[Slot, ShapedArray] | None:
    """The types of numbers that differ, and must become values of the program; None if they cannot."""
    varying: dict[Slot, ShapedArray] = {}
    for key, (x, y) in pairs.items():
        if type(x) is Var and type(y) is Var and x.aval == y.aval:
            continue
        if type(x) is not Var and type(y) is not Var and repr(x) == repr(y):
            continue
        avals = [a.aval for a in (x, y) if isinstance(a, (Var, Literal))]
        common = None if len(avals) < 2 or avals[0].shape else common_aval(avals)
        if common is None or known.slot(key) in findings.constants:
            return None
        varying[known.slot(key)] = common
    return varying


def leaves_to_separate(
    known: Arrival, new: Arrival, pairs: Pairs, findings: Findings
) -> set[Slot] | None:
    """The leaves that share a value in one state only; None if one of them cannot get its own variable."""
    found: set[Slot] = set()
    atoms = {_PREDICATE: (known.predicate, new.predicate), **pairs}
    traced = {k: p for k, p in atoms.items() if type(p[0]) is Var and type(p[1]) is Var}
    for side in (0, 1):
        first: dict[Atom, LeafKey] = {}
        for key, pair in traced.items():
            other = first.setdefault(pair[side], key)
            if traced[other][1 - side] is pair[1 - side]:
                continue
            separable = [
                known.slot(k)
                for k in (key, other)
                if k in known.settable
                and k in new.settable
                and known.slot(k) not in findings.mutable | findings.constants
            ]
            if not separable:
                return None
            if found.isdisjoint(separable):
                found.add(separable[0])
    return found


def has_same_memory(known: Arrival, new: Arrival, pairs: Pairs, findings: Findings) -> bool:
    """Whether arrays that are written to later share memory with the same arrays in both states."""

    def sharing(arrival: Arrival, key: LeafKey) -> set[Hashable]:
        storage = arrival.memory[key][0]
        return {
            (k, arrival.memory[k][1])
            for k in pairs
            if k in arrival.memory and arrival.memory[k][0] == storage
        }

    return all(
        [
            sharing(known, key) == sharing(new, key)
            for key in pairs
            if key in known.memory and key in new.memory and known.slot(key) in findings.mutable
        ]
    )


class Renaming:
    """The atoms of a decision that a path merges with, for those of the path."""

    def __init__(self, merge: Merge, arrival: Arrival, captured: Container[Atom]):
        known = merge.decision.arrival
        self.merge, self._known = merge, known.segment
        pairs = [*common_leaves(known, arrival).values(), (known.predicate, arrival.predicate)]
        self._names: dict[Atom, Atom] = {y: x for x, y in pairs if type(y) is Var}
        self._parameters = {x for x, _ in pairs if type(x) is Var}
        self._captured = captured

    def __call__(self, atom: Atom) -> Atom | Merge:
        """The atom that stands for `atom`; the merge if there is none."""
        found = self._names.get(atom)
        if found is not None:
            return found
        if atom not in self._parameters and (atom in self._captured or self._known.defines(atom)):
            return atom
        return self.merge
