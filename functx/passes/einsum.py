"""The cheapest order in which to multiply and sum the factors of a product."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.program import Literal
from functx.core.tracing import aval_of
from functx.core.types import DType, ShapedArray, is_floating
from functx.ops.operands import literal, minus_one
from functx.passes.einsum_factors import (
    ConcatenatedSum,
    Factor,
    Label,
    LabelGroups,
    ProductExpression,
    label_size,
    resolve_labels,
)

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


Labels = tuple[Label, ...]


class Term(NamedTuple):
    """Factors that are multiplied element by element into the first of them, which has all labels."""

    labels: Labels
    factors: tuple[Factor, ...]


class Einsum:
    """The sum over all labels but `out` of a product of `terms`, times what has no other labels.

    `roots` are the terms of a value that is squared: each stands for itself twice, with the labels
    in `again` in place of its own the second time. `outside` are factors along labels of `out`
    alone, and `squared_outer_factors` those of a value that is squared.
    """

    def __init__(self, aval: ShapedArray, out: Labels, precision: Any):
        self.aval, self.out, self.precision = aval, out, precision
        self.terms: list[Term] = []
        self.squared_terms: list[tuple[Term, Labels]] = []
        self.outer_factors: list[Factor] = []
        self.squared_outer_factors: list[Factor] = []
        self.repeat_count = 1
        self.order: Any = None
        self.cost = 0.0

    @staticmethod
    def of(
        product: ProductExpression, groups: LabelGroups, aval: ShapedArray, precision: Any = None
    ) -> Einsum | None:
        """The sum of `product` over what is not in `groups`, the labels of the result's dimensions.

        None for one of too many factors, or of squares of squares. `precision` is that of matrix
        products that it is made of.
        """
        out = resolve_labels([label for group in groups for label in group])
        found = Einsum(aval, out, precision)
        factors = product.factors
        squared = [range(s.first, s.second + s.length) for s in product.squares]
        if sum(map(len, squared)) != len({i for run in squared for i in run}):
            return None
        if squared and not is_floating(aval.dtype):
            squared = []
        inside = {i for run in squared for i in run}
        found.terms, found.outer_factors = group_into_terms(
            [f for i, f in enumerate(factors) if i not in inside], {*out}
        )
        for s in product.squares if squared else ():
            first, second = factors[s.first : s.second], factors[s.second : s.second + s.length]
            again = dict(
                pair
                for f, g in zip(first, second, strict=True)
                for pair in zip(f.labels(), g.labels(), strict=True)
            )
            terms, outside = group_into_terms(first, {*out})
            found.squared_terms += [(t, tuple([again[x] for x in t.labels])) for t in terms]
            found.squared_outer_factors += outside
        all_terms = found.all_terms()
        if len(all_terms) > MAX_FACTORS:
            return None
        covered = {x for f in factors for x in f.labels()}
        found.repeat_count = prod(
            [x.size for x in resolve_labels(product.summed) if x not in covered]
        )
        wanted = frozenset(out)
        if all_terms:
            chosen = [t.factors[0].one_hot_label for t in found.terms]
            chosen += [t.factors[0].one_hot_label for t, _ in found.squared_terms for _ in range(2)]
            labels = [frozenset(x) for x in all_terms]
            found.cost, found.order = best_contraction_order(labels, wanted, chosen)
            if found.cost == inf or (len(all_terms) == 1 and chosen[0] is not None):
                return None
            if len(all_terms) == 1:
                found.cost = pair_cost(frozenset(all_terms[0]), frozenset(), wanted)
        return found

    def all_terms(self) -> list[Labels]:
        """The labels of each term, those of a squared value twice."""
        terms = [t.labels for t in self.terms]
        for term, again in self.squared_terms:
            terms += [term.labels, again]
        return terms

    def emit(self, read: Callable[[Any], Any]) -> Any:
        """The equations that compute the sum, from what `read` gives for each variable."""
        dtype = self.aval.dtype
        if self.squared_terms and dtype.itemsize < 4:
            dtype = np.dtype("float32")
        work = _EinsumEmitter(read, dtype, self.out, self.precision)
        values = [work.term(t) for t in self.terms]
        outside = [work.factor(f) for f in self.squared_outer_factors]
        for term, again in self.squared_terms:
            # Largest elements of 1, so that a square overflows only if that of the product does.
            value = work.term(term)
            if value.one_hot_label is None:
                value, scale = work.normalized(value)
                outside.append((scale, False))
            values += [value, value._replace(labels=again)]
        result = work.contract_in_order(self.order, values)
        root = work.product_of(outside)
        if root is not None:
            result = work.multiply(work.multiply(result, root), root)
        rest = work.product_of([work.factor(f) for f in self.outer_factors])
        if rest is not None:
            result = work.multiply(result, rest)
        if self.repeat_count != 1:
            number = LabeledArray(literal(self.repeat_count, dtype), ())
            result = work.multiply(result, number)
        array = work.to_array(result, self.out)
        # A square that was multiplied out is a sum of terms that cancel.
        if not self.terms and any([again != term.labels for term, again in self.squared_terms]):
            array = ops.max(array, 0.0)
        array = ops.reshape(array, self.aval.shape)
        if aval_of(array) is not self.aval:
            array = ops.convert_element_type(array, self.aval.dtype, self.aval.weak_type)
        return array


def group_into_terms(factors: Sequence[Factor], out: set[Label]) -> tuple[list[Term], list[Factor]]:
    """`factors` as terms, and those along labels in `out` alone.

    What divides is put to the smallest factor that has its labels.
    """
    outside = [f for f in factors if out.issuperset(f.labels())]
    inside = [f for f in factors if not out.issuperset(f.labels())]
    hosts = [[f] for f in inside if not f.is_divisor and f.one_hot_label is None]
    for f in [f for f in inside if f.is_divisor]:
        labels = {*f.labels()}
        fit = [h for h in hosts if labels.issubset(h[0].labels())]
        if fit:
            sorted(fit, key=lambda h: label_size(h[0].labels()))[0].append(f)
        else:
            hosts.append([f])
    hosts += [[f] for f in inside if f.one_hot_label is not None]
    return [Term(h[0].labels(), tuple(h)) for h in hosts], outside


class LabeledArray(NamedTuple):
    """An array, or a literal, with a label along each dimension.

    With `chosen`, the last label, what is meant is 1 where the array holds its number, else 0.
    """

    array: Any
    labels: Labels
    one_hot_label: Label | None = None


class _EinsumEmitter:
    """The equations of a sum in the making."""

    def __init__(self, read: Callable[[Any], Any], dtype: DType, out: Labels, precision: Any):
        self.read, self.dtype, self.out, self.precision = read, dtype, out, precision

    def factor(self, factor: Factor) -> tuple[LabeledArray, bool]:
        """The array of a factor in the dtype of the sum, a label a dimension; whether it divides."""
        atom = factor.atom
        if type(atom) is ConcatenatedSum:
            return self.concatenated_addends(atom, factor.labels()), False
        if type(atom) is Literal:
            return LabeledArray(literal(atom.value, self.dtype), ()), factor.is_divisor
        array = self.read(atom)
        if factor.one_hot_label is not None:
            return self.row_numbers(factor, array), False
        if array.dtype != self.dtype:
            array = ops.convert_element_type(array, self.dtype)
        labels = factor.labels()
        return LabeledArray(
            ops.reshape(array, tuple([x.size for x in labels])), labels
        ), factor.is_divisor

    def concatenated_addends(self, sum_of: ConcatenatedSum, labels: Labels) -> LabeledArray:
        """The factors of the addends of a sum, one behind the other along the last dimension."""
        shared, arrays = resolve_labels(sum_of.shared), []
        for factors, own in sum_of.addends:
            along = (*shared, *resolve_labels(own))
            array = None
            for value, divides in [self.one_hot_array(f) for f in factors]:
                wide = self.broadcast_to_labels(value, along)
                array = wide if array is None else (ops.div if divides else ops.mul)(array, wide)
            arrays.append(
                ops.reshape(array, (*[x.size for x in shared], label_size(resolve_labels(own))))
            )
        return LabeledArray(ops.concatenate(arrays, len(shared)), labels)

    def one_hot_array(self, factor: Factor) -> tuple[LabeledArray, bool]:
        """As `factor`, with the ones and zeros of a factor that chooses."""
        value, divides = self.factor(factor)
        if value.one_hot_label is None:
            return value, divides
        shape = tuple([x.size for x in value.labels])
        numbers = ops.broadcast_in_dim(value.array, shape, tuple(range(len(shape) - 1)))
        same = ops.eq(numbers, ops.Iota(value.array.dtype, shape, len(shape) - 1)())
        return LabeledArray(ops.convert_element_type(same, self.dtype), value.labels), divides

    def row_numbers(self, factor: Factor, array: Any) -> LabeledArray:
        """The numbers of rows that a factor chooses; -1 for those of no row."""
        label, labels = factor.one_hot_label, factor.labels()
        assert label is not None
        array = ops.reshape(array, tuple([x.size for x in labels[:-1]]))
        clipped = ops.clamp(0, array, label.size - 1)
        if not factor.clips_indices:
            clipped = ops.select(ops.eq(clipped, array), array, minus_one(array.dtype))
        return LabeledArray(clipped, labels, label)

    def term(self, term: Term) -> LabeledArray:
        """The product of the factors of a term."""
        first, divides = self.factor(term.factors[0])
        if divides:
            first = LabeledArray(ops.div(1.0, first.array), first.labels)
        for factor in term.factors[1:]:
            value, _ = self.factor(factor)
            wide = self.broadcast_to_labels(value, first.labels)
            first = LabeledArray(ops.div(first.array, wide), first.labels)
        return first

    def normalized(self, value: LabeledArray) -> tuple[LabeledArray, LabeledArray]:
        """`value` over its largest element at each index of the result, and that."""
        kept = tuple([x for x in value.labels if x in self.out])
        axes = tuple([d for d, x in enumerate(value.labels) if x not in self.out])
        largest = ops.reduce_max(ops.abs(value.array), axes)
        fit = ops.bitwise_and(ops.gt(largest, 0), ops.gt(float("inf"), largest))
        largest = LabeledArray(ops.select(fit, largest, 1.0), kept)
        small = ops.div(value.array, self.broadcast_to_labels(largest, value.labels))
        return LabeledArray(small, value.labels), largest

    def product_of(self, factors: Iterable[tuple[LabeledArray, bool]]) -> LabeledArray | None:
        """The product of factors along labels of the result; None where there are none."""
        product: LabeledArray | None = None
        for value, divides in sorted(factors, key=lambda pair: pair[1]):
            if product is None:
                array = ops.div(1.0, value.array) if divides else value.array
                product = LabeledArray(array, value.labels)
            else:
                product = self.multiply(product, value, ops.div if divides else ops.mul)
        return product

    def multiply(
        self, x: LabeledArray | None, y: LabeledArray, operation: Any = ops.mul
    ) -> LabeledArray:
        """`x` times `y` element by element, along the labels of both."""
        if x is None:
            return y
        labels = (*x.labels, *[label for label in y.labels if label not in x.labels])
        return LabeledArray(
            operation(self.broadcast_to_labels(x, labels), self.broadcast_to_labels(y, labels)),
            labels,
        )

    def contract_in_order(self, tree: Any, values: Sequence[LabeledArray]) -> LabeledArray | None:
        """The product of `values`, summed over all labels but the result's, in the order of `tree`."""
        if tree is None:
            return None
        users: dict[Label, int] = dict.fromkeys(self.out, 1)
        for value in values:
            for label in value.labels:
                users[label] = users.get(label, 0) + 1

        def made(tree: Any) -> LabeledArray:
            if type(tree) is int:
                return self.summed(values[tree], users)
            x, y = made(tree[0]), made(tree[1])
            for label in x.labels:
                if label in y.labels:
                    users[label] -= 1
            return self.contract_pair(x, y, users)

        return made(tree)

    def summed(self, value: LabeledArray, users: dict[Label, int]) -> LabeledArray:
        """`value` summed over the labels that nothing else has."""
        if value.one_hot_label is not None:
            return value
        axes = tuple([d for d, x in enumerate(value.labels) if users[x] == 1 and x not in self.out])
        if not axes:
            return value
        labels = tuple([x for d, x in enumerate(value.labels) if d not in axes])
        return LabeledArray(ops.reduce_sum(value.array, axes), labels)

    def contract_pair(
        self, x: LabeledArray, y: LabeledArray, users: dict[Label, int]
    ) -> LabeledArray:
        """`x` times `y`, summed over the labels that nothing else has."""
        if x.one_hot_label is not None and y.one_hot_label is not None:
            return self.contract_one_hots(x, y, users)
        if x.one_hot_label is not None or y.one_hot_label is not None:
            return (
                self.scatter_rows(x, y, users)
                if x.one_hot_label is not None
                else self.scatter_rows(y, x, users)
            )
        if self.comes_first(y, x):
            x, y = y, x
        shared = [label for label in x.labels if label in y.labels]
        gone = [label for label in shared if users[label] == 1 and label not in self.out]
        kept = [label for label in shared if label not in gone]
        x_free = [label for label in x.labels if label not in shared]
        y_free = [label for label in y.labels if label not in shared]
        if ((x_free or y_free) and gone) or (x_free and y_free):

            def places(labels: Iterable[Label]) -> tuple[Any, Any]:
                labels = [*labels]
                return (
                    tuple([x.labels.index(label) for label in labels]),
                    tuple([y.labels.index(label) for label in labels]),
                )

            array = ops.dot_general(x.array, y.array, places(gone), places(kept), self.precision)
            return LabeledArray(array, (*kept, *x_free, *y_free))
        wide, other = (y, x) if y_free else (x, y)
        if other.array is wide.array and other.labels == wide.labels:
            array = ops.square(wide.array)
        else:
            array = ops.mul(wide.array, self.broadcast_to_labels(other, wide.labels))
        axes = tuple([d for d, label in enumerate(wide.labels) if label in gone])
        labels = tuple([label for label in wide.labels if label not in gone])
        return LabeledArray(ops.reduce_sum(array, axes) if axes else array, labels)

    def contract_one_hots(
        self, x: LabeledArray, y: LabeledArray, users: dict[Label, int]
    ) -> LabeledArray:
        """1 where two factors choose the same, else 0, summed over the labels that nothing else has."""
        labels = (*x.labels[:-1], *[z for z in y.labels[:-1] if z not in x.labels])
        first = self.broadcast_to_labels(LabeledArray(x.array, x.labels[:-1]), labels)
        second = self.broadcast_to_labels(LabeledArray(y.array, y.labels[:-1]), labels)
        same = ops.bitwise_and(ops.eq(first, second), ops.ge(first, 0))
        return self.summed(LabeledArray(ops.convert_element_type(same, self.dtype), labels), users)

    def scatter_rows(
        self, x: LabeledArray, y: LabeledArray, users: dict[Label, int]
    ) -> LabeledArray:
        """`y` added up in the rows that `x` chooses."""
        label, labels = x.one_hot_label, x.labels[:-1]
        assert label is not None
        kept = [z for z in labels if users[z] > 1 or z in self.out]
        gone = [z for z in labels if z not in kept]
        free = [z for z in y.labels if z not in labels]
        numbers = self.broadcast_to_labels(LabeledArray(x.array, labels), (*kept, *gone))
        values = self.broadcast_to_labels(y, (*kept, *gone, *free))
        lengths = [label_size(group) for group in (kept, gone, free)]
        numbers, values = (
            ops.reshape(numbers, (*lengths[:2], 1)),
            ops.reshape(values, tuple(lengths)),
        )
        into = ops.full((lengths[0], label.size, lengths[2]), literal(0, self.dtype))
        found = ops.scatter_add(into, numbers, values, _ROW_SCATTER_DIMS, mode="drop")
        found = ops.reshape(found, tuple([z.size for z in (*kept, label, *free)]))
        return LabeledArray(found, (*kept, label, *free))

    def comes_first(self, x: LabeledArray, y: LabeledArray) -> bool:
        """Whether what `x` alone has lies before what `y` alone has in the result."""
        places = [
            [
                self.out.index(label)
                for label in a.labels
                if label in self.out and label not in b.labels
            ]
            for a, b in ((x, y), (y, x))
        ]
        return bool(places[0] and places[1]) and min(places[0]) < min(places[1])

    def broadcast_to_labels(self, value: LabeledArray, labels: Labels) -> Any:
        """`value` along `labels`, repeated along those that it lacks."""
        if not value.labels:
            return value.array
        ordered = tuple([label for label in labels if label in value.labels])
        array = ops.permute_dims(value.array, tuple([value.labels.index(x) for x in ordered]))
        places = tuple([d for d, label in enumerate(labels) if label in value.labels])
        return ops.broadcast_in_dim(array, tuple([x.size for x in labels]), places)

    def to_array(self, value: LabeledArray | None, labels: Labels) -> Any:
        """`value` as an array along `labels`."""
        if value is None:
            value = LabeledArray(literal(1, self.dtype), ())
        if not value.labels:
            return ops.full(tuple([x.size for x in labels]), value.array)
        return self.broadcast_to_labels(value, labels)


_ROW_SCATTER_DIMS = ops.ScatterDimensionNumbers((2,), (1,), (1,), (0,), (0,))
"""Of numbers along (batch, row) and rows along (batch, row, column), into (batch, number, column)."""
