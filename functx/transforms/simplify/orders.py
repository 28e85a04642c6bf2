"""The cheapest order in which to multiply and sum the factors of a product."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

from functx.transforms.simplify.factors import Label

Labels = frozenset[Label]

MOVED = 16
"""What it costs to read or write an element, in operations of a matrix product."""
ELEMENTWISE = 4
"""What it costs to multiply two elements outside a matrix product."""
MOST = 7
"""How many factors are ordered; the time it takes grows by 3 with each."""


class Order(NamedTuple):
    """A cost, and how the factors come together: a position, or a pair of what comes together."""

    cost: float
    tree: Any


def size(labels: Iterable[Label]) -> int:
    return prod([label.size for label in labels])


def best_order(terms: Sequence[Labels], out: Labels) -> Order:
    """The cheapest order for factors along `terms`, of which the labels not in `out` are summed."""
    count = len(terms)
    everything = (1 << count) - 1
    found: dict[int, tuple[Order, Labels]] = {}
    for i, labels in enumerate(terms):
        found[1 << i] = Order(0.0, i), labels & _needed(terms, out, 1 << i)
    for subset in sorted(range(1, everything + 1), key=int.bit_count):
        if subset in found:
            continue
        needed = _needed(terms, out, subset)
        best: Order | None = None
        part = (subset - 1) & subset
        while part:
            rest = subset ^ part
            if part > rest:
                (first, x), (second, y) = found[part], found[rest]
                cost = first.cost + second.cost + pair_cost(x, y, needed)
                if best is None or cost < best.cost:
                    best = Order(cost, (first.tree, second.tree))
                    kept = (x | y) & needed
            part = (part - 1) & subset
        assert best is not None
        found[subset] = best, kept
    return found[everything][0]


def _needed(terms: Sequence[Labels], out: Labels, subset: int) -> Labels:
    """The labels that a product of the terms in `subset` has to keep."""
    return out.union(*[labels for i, labels in enumerate(terms) if not subset >> i & 1])


def pair_cost(x: Labels, y: Labels, needed: Labels) -> float:
    """What it costs to multiply and sum two factors."""
    both = x | y
    matrices = x - y and y - x and (x & y) - needed
    work = 2 * size(both) if matrices else ELEMENTWISE * size(both)
    return work + MOVED * (size(x) + size(y) + size(both & needed))
