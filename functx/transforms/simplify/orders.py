"""The cheapest order in which to multiply and sum the factors of a product."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

from functx.transforms.simplify.factors import Label, label_size

LabelSet = frozenset[Label]

MEMORY_COST = 16
"""What it costs to read or write an element, in operations of a matrix product."""
ELEMENTWISE_COST = 4
"""What it costs to multiply two elements outside a matrix product."""
MAX_FACTORS = 7
"""How many factors are ordered; the time it takes grows by 3 with each."""


class ContractionOrder(NamedTuple):
    """A cost, and how the factors come together: a position, or a pair of what comes together."""

    cost: float
    tree: Any


def best_contraction_order(
    terms: Sequence[LabelSet], out: LabelSet, chosen: Sequence[Label | None] = ()
) -> ContractionOrder:
    """The cheapest order for factors along `terms`, of which the labels not in `out` are summed.

    `chosen` gives the label of factors that are 1 where it is one, else 0. The cost is infinite
    where there is no order.
    """
    count = len(terms)
    everything = (1 << count) - 1
    found: dict[int, tuple[ContractionOrder, LabelSet, Label | None]] = {}
    for i, labels in enumerate(terms):
        kept = labels & _needed_labels(terms, out, 1 << i)
        found[1 << i] = ContractionOrder(0.0, i), kept, chosen[i] if chosen else None
    for subset in sorted(range(1, everything + 1), key=int.bit_count):
        if subset in found:
            continue
        needed = _needed_labels(terms, out, subset)
        best: ContractionOrder | None = None
        part = (subset - 1) & subset
        while part:
            rest = subset ^ part
            if part > rest:
                (first, x, a), (second, y, b) = found[part], found[rest]
                cost = first.cost + second.cost
                cost += (
                    pair_cost(x, y, needed) if a is b is None else one_hot_cost(x, y, needed, a, b)
                )
                if best is None or cost < best.cost:
                    best = ContractionOrder(cost, (first.tree, second.tree))
                    kept = (x | y) & needed
            part = (part - 1) & subset
        assert best is not None
        found[subset] = best, kept, None
    return found[everything][0]


def _needed_labels(terms: Sequence[LabelSet], out: LabelSet, subset: int) -> LabelSet:
    """The labels that a product of the terms in `subset` has to keep."""
    return out.union(*[labels for i, labels in enumerate(terms) if not subset >> i & 1])


def pair_cost(x: LabelSet, y: LabelSet, needed: LabelSet) -> float:
    """What it costs to multiply and sum two factors."""
    both = x | y
    matrices = x - y and y - x and (x & y) - needed
    work = 2 * label_size(both) if matrices else ELEMENTWISE_COST * label_size(both)
    return work + MEMORY_COST * (label_size(x) + label_size(y) + label_size(both & needed))


def one_hot_cost(
    x: LabelSet, y: LabelSet, needed: LabelSet, a: Label | None, b: Label | None
) -> float:
    """As `pair_cost`, where `x`, `y` or both are 1 where their labels `a` and `b` are chosen."""
    if a is not None and b is not None:
        # Where both choose the same.
        both = (x | y) - {a}
        return pair_cost(x - {a}, y - {a}, needed & both) if a is b and a not in needed else inf
    label, rows, other = (a, x, y) if a is not None else (b, y, x)
    assert label is not None
    if label in other or label not in needed or not (rows - {label}) <= other:
        return inf
    return float(MEMORY_COST * (2 * label_size(other) + label_size((x | y) & needed)))
