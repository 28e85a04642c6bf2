"""Einsums of labelled factors: the cheapest order of contractions, and their equations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf, prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from functx import ops
from functx.core.program import Literal
from functx.core.tracer import aval_of
from functx.core.types import DType, ShapedArray, is_floating
from functx.core.typing import Function, Value
from functx.ops.operands import literal, minus_one
from functx.passes.convolution_patches import Patches
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
"""The cost to read or write an element, in operations of a matrix product."""
ELEMENTWISE_COST = 4
"""The cost to multiply two elements outside a matrix product."""
MAX_FACTORS = 7
"""The most factors that are ordered; each one more triples the time of the search."""


Order: TypeAlias = "int | tuple[Order, Order] | None"
"""The position of a factor, or the trees of two factors that are contracted."""


PrecisionNames: TypeAlias = tuple[str, str] | None
"""The precisions of the two operands of a matrix product; None for the default."""


class ContractionOrder(NamedTuple):
    """A cost, and the tree of pairwise contractions: a factor's position, or two subtrees."""

    cost: float
    tree: Order


def best_contraction_order(
    terms: Sequence[LabelSet], out: LabelSet, one_hot_labels: Sequence[Label | None] = ()
) -> ContractionOrder:
    """The cheapest order for factors with labels `terms`; labels not in `out` are summed.

    `one_hot_labels` gives the label of each factor that is one-hot along it, else None. The cost
    is infinite if there is no order.
    """
    count = len(terms)
    everything = (1 << count) - 1
    best_of: dict[int, tuple[ContractionOrder, LabelSet, Label | None]] = {}
    for i, labels in enumerate(terms):
        kept_labels = labels & _needed_labels(terms, out, 1 << i)
        best_of[1 << i] = (
            ContractionOrder(0.0, i),
            kept_labels,
            one_hot_labels[i] if one_hot_labels else None,
        )
    for subset in sorted(range(1, everything + 1), key=int.bit_count):
        if subset in best_of:
            continue
        needed = _needed_labels(terms, out, subset)
        best: ContractionOrder | None = None
        first_set = (subset - 1) & subset
        while first_set:
            second_set = subset ^ first_set
            if first_set > second_set:
                (first, x, a), (second, y, b) = best_of[first_set], best_of[second_set]
                cost = first.cost + second.cost
                cost += (
                    pair_cost(x, y, needed) if a is b is None else one_hot_cost(x, y, needed, a, b)
                )
                if best is None or cost < best.cost:
                    best = ContractionOrder(cost, (first.tree, second.tree))
                    kept_labels = (x | y) & needed
            first_set = (first_set - 1) & subset
        assert best is not None
        best_of[subset] = best, kept_labels, None
    return best_of[everything][0]


def _needed_labels(terms: Sequence[LabelSet], out: LabelSet, subset: int) -> LabelSet:
    """The labels that a product of the terms in `subset` must keep."""
    return out.union(*[labels for i, labels in enumerate(terms) if not subset >> i & 1])


def pair_cost(x: LabelSet, y: LabelSet, needed: LabelSet) -> float:
    """The cost to multiply and sum two factors, whose result keeps the labels in `needed`."""
    both = x | y
    matrices = x - y and y - x and (x & y) - needed
    work = 2 * label_size(both) if matrices else ELEMENTWISE_COST * label_size(both)
    return work + MEMORY_COST * (label_size(x) + label_size(y) + label_size(both & needed))


def one_hot_cost(
    x: LabelSet, y: LabelSet, needed: LabelSet, a: Label | None, b: Label | None
) -> float:
    """Like `pair_cost`, for factors of which one or both are one-hot along the label `a` or `b`."""
    if a is not None and b is not None:
        # Their product is 1 where both have their ones at the same position.
        both = (x | y) - {a}
        return pair_cost(x - {a}, y - {a}, needed & both) if a is b and a not in needed else inf
    label, rows, other = (a, x, y) if a is not None else (b, y, x)
    assert label is not None
    if label in other or label not in needed or not (rows - {label}) <= other:
        return inf
    return float(MEMORY_COST * (2 * label_size(other) + label_size((x | y) & needed)))


Labels = tuple[Label, ...]


class Term(NamedTuple):
    """Factors multiplied elementwise into the first, which has all of their labels."""

    labels: Labels
    factors: tuple[Factor, ...]


class Einsum:
    """The sum over all labels but `out` of the product of `terms`, times outer factors.

    `squared_terms` are the terms of a value that is squared: each occurs twice, the second time
    with other labels in place of its own. `outer_factors` have only labels of `out`, and
    `squared_outer_factors` are those of a squared value.
    """

    def __init__(self, aval: ShapedArray, out: Labels, precision: PrecisionNames):
        self.aval, self.out, self.precision = aval, out, precision
        self.terms: list[Term] = []
        self.squared_terms: list[tuple[Term, Labels]] = []
        self.outer_factors: list[Factor] = []
        self.squared_outer_factors: list[Factor] = []
        self.repeat_count = 1
        self.order: Order = None
        self.cost = 0.0

    @staticmethod
    def from_product(
        product: ProductExpression,
        groups: LabelGroups,
        aval: ShapedArray,
        precision: PrecisionNames = None,
    ) -> Einsum | None:
        """The sum of `product` over the labels not in `groups`, those of the result's axes.

        None if there are too many factors, or squares of squares. `precision` is that of the matrix
        products.
        """
        out = resolve_labels([label for group in groups for label in group])
        einsum = Einsum(aval, out, precision)
        factors = product.factors
        squared = [range(s.first, s.second + s.length) for s in product.squares]
        if sum(map(len, squared)) != len({i for run in squared for i in run}):
            return None
        if squared and not is_floating(aval.dtype):
            squared = []
        squared_factors = {i for run in squared for i in run}
        einsum.terms, einsum.outer_factors = group_into_terms(
            [f for i, f in enumerate(factors) if i not in squared_factors], {*out}
        )
        for s in product.squares if squared else ():
            first, second = factors[s.first : s.second], factors[s.second : s.second + s.length]
            second_labels = dict(
                pair
                for f, g in zip(first, second, strict=True)
                for pair in zip(f.labels(), g.labels(), strict=True)
            )
            terms, outer_factors = group_into_terms(first, {*out})
            einsum.squared_terms += [
                (t, tuple([second_labels[x] for x in t.labels])) for t in terms
            ]
            einsum.squared_outer_factors += outer_factors
        all_terms = einsum.all_terms()
        if len(all_terms) > MAX_FACTORS:
            return None
        covered = {x for f in factors for x in f.labels()}
        einsum.repeat_count = prod(
            [x.size for x in resolve_labels(product.summed) if x not in covered]
        )
        out_labels = frozenset(out)
        if all_terms:
            one_hot_labels = [t.factors[0].one_hot_label for t in einsum.terms]
            one_hot_labels += [
                t.factors[0].one_hot_label for t, _ in einsum.squared_terms for _ in range(2)
            ]
            labels = [frozenset(x) for x in all_terms]
            einsum.cost, einsum.order = best_contraction_order(labels, out_labels, one_hot_labels)
            if einsum.cost == inf or (len(all_terms) == 1 and one_hot_labels[0] is not None):
                return None
            if len(all_terms) == 1:
                einsum.cost = pair_cost(frozenset(all_terms[0]), frozenset(), out_labels)
            terms = [*einsum.terms, *[term for term, _ in einsum.squared_terms]]
            patches = [f for term in terms for f in term.factors if type(f.atom) is Patches]
            einsum.cost += MEMORY_COST * sum([label_size(f.labels()) for f in patches])
        return einsum

    def all_terms(self) -> list[Labels]:
        """The labels of each term; those of a squared value occur twice."""
        terms = [t.labels for t in self.terms]
        for term, second_labels in self.squared_terms:
            terms += [term.labels, second_labels]
        return terms

    def emit(self, read: Callable[[Any], Any]) -> Value:
        """Emit the equations that compute the sum; `read` gives the value of each variable."""
        dtype = self.aval.dtype
        if self.squared_terms and dtype.itemsize < 4:
            dtype = np.dtype("float32")
        emitter = _EinsumEmitter(read, dtype, self.out, self.precision)
        values = [emitter.term(t) for t in self.terms]
        squared_outer = [emitter.factor(f) for f in self.squared_outer_factors]
        for term, second_labels in self.squared_terms:
            # Scaled to largest elements of 1, so that squares overflow only if the result does.
            value = emitter.term(term)
            if value.one_hot_label is None:
                value, scale = emitter.normalized(value)
                squared_outer.append((scale, False))
            values += [value, value._replace(labels=second_labels)]
        result = emitter.contract_in_order(self.order, values)
        square_root = emitter.product_of(squared_outer)
        if square_root is not None:
            result = emitter.multiply(emitter.multiply(result, square_root), square_root)
        outer = emitter.product_of([emitter.factor(f) for f in self.outer_factors])
        if outer is not None:
            result = emitter.multiply(result, outer)
        if self.repeat_count != 1:
            number = LabeledArray(literal(self.repeat_count, dtype), ())
            result = emitter.multiply(result, number)
        array = emitter.to_array(result, self.out)
        # The terms of an expanded square cancel, and rounding may leave a negative number.
        if not self.terms and any(
            [second_labels != term.labels for term, second_labels in self.squared_terms]
        ):
            array = ops.max(array, 0.0)
        array = ops.reshape(array, self.aval.shape)
        if aval_of(array) is not self.aval:
            array = ops.convert_element_type(array, self.aval.dtype, self.aval.weak_type)
        return array


def group_into_terms(factors: Sequence[Factor], out: set[Label]) -> tuple[list[Term], list[Factor]]:
    """`factors` as terms, and the factors with only labels of `out`.

    A divisor joins the smallest factor that has all of its labels.
    """
    outer = [f for f in factors if out.issuperset(f.labels())]
    inner = [f for f in factors if not out.issuperset(f.labels())]
    hosts = [[f] for f in inner if not f.is_divisor and f.one_hot_label is None]
    for f in [f for f in inner if f.is_divisor]:
        labels = {*f.labels()}
        fit = [h for h in hosts if labels.issubset(h[0].labels())]
        if fit:
            sorted(fit, key=lambda h: label_size(h[0].labels()))[0].append(f)
        else:
            hosts.append([f])
    hosts += [[f] for f in inner if f.one_hot_label is not None]
    return [Term(h[0].labels(), tuple(h)) for h in hosts], outer


class LabeledArray(NamedTuple):
    """An array or a literal with a label along each axis.

    With `one_hot_label`, which is the last label, the array has no axis for it. It stands for
    one-hot vectors along that label: 1 at the position that the array holds, else 0.
    """

    array: Any
    labels: Labels
    one_hot_label: Label | None = None


class _EinsumEmitter:
    """Emits the equations of one sum."""

    def __init__(self, read: Function, dtype: DType, out: Labels, precision: PrecisionNames):
        self.read, self.dtype, self.out, self.precision = read, dtype, out, precision

    def factor(self, factor: Factor) -> tuple[LabeledArray, bool]:
        """The array of a factor, in the dtype of the sum; whether it divides."""
        atom = factor.atom
        if type(atom) is ConcatenatedSum:
            return self.concatenated_addends(atom, factor.labels()), False
        if type(atom) is Literal:
            return LabeledArray(literal(atom.value, self.dtype), ()), factor.is_divisor
        array = atom.emit(self.read(atom.array)) if type(atom) is Patches else self.read(atom)
        if factor.one_hot_label is not None:
            return self.row_numbers(factor, array), False
        if array.dtype != self.dtype:
            array = ops.convert_element_type(array, self.dtype)
        labels = factor.labels()
        return LabeledArray(
            ops.reshape(array, tuple([x.size for x in labels])), labels
        ), factor.is_divisor

    def concatenated_addends(self, sum_of: ConcatenatedSum, labels: Labels) -> LabeledArray:
        """The factors of the addends of a sum, concatenated along the last axis."""
        shared, arrays = resolve_labels(sum_of.shared), []
        for factors, own_labels in sum_of.addends:
            labels_of_addend = (*shared, *resolve_labels(own_labels))
            array = None
            for value, divides in [self.one_hot_array(f) for f in factors]:
                factor_array = self.broadcast_to_labels(value, labels_of_addend)
                array = (
                    factor_array
                    if array is None
                    else (ops.div if divides else ops.mul)(array, factor_array)
                )
            assert array is not None
            arrays.append(
                ops.reshape(
                    array, (*[x.size for x in shared], label_size(resolve_labels(own_labels)))
                )
            )
        return LabeledArray(ops.concatenate(arrays, len(shared)), labels)

    def one_hot_array(self, factor: Factor) -> tuple[LabeledArray, bool]:
        """Like `factor`, with one-hot vectors as an array of ones and zeros."""
        value, divides = self.factor(factor)
        if value.one_hot_label is None:
            return value, divides
        shape = tuple([x.size for x in value.labels])
        numbers = ops.broadcast_in_dim(value.array, shape, tuple(range(len(shape) - 1)))
        is_one = ops.eq(numbers, ops.Iota(value.array.dtype, shape, len(shape) - 1)())
        return LabeledArray(ops.convert_element_type(is_one, self.dtype), value.labels), divides

    def row_numbers(self, factor: Factor, array: Value) -> LabeledArray:
        """The positions of the ones of a one-hot factor, -1 for vectors of zeros."""
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
        """`value` divided by its largest element at each index of the result, and that element."""
        kept_labels = tuple([x for x in value.labels if x in self.out])
        axes = tuple([d for d, x in enumerate(value.labels) if x not in self.out])
        size = ops.reduce_max(ops.abs(value.array), axes)
        is_usable = ops.bitwise_and(ops.gt(size, 0), ops.gt(float("inf"), size))
        largest = LabeledArray(ops.select(is_usable, size, 1.0), kept_labels)
        quotient = ops.div(value.array, self.broadcast_to_labels(largest, value.labels))
        return LabeledArray(quotient, value.labels), largest

    def product_of(self, factors: Iterable[tuple[LabeledArray, bool]]) -> LabeledArray | None:
        """The product of factors along labels of the result; None without factors."""
        product: LabeledArray | None = None
        for value, divides in sorted(factors, key=lambda pair: pair[1]):
            if product is None:
                array = ops.div(1.0, value.array) if divides else value.array
                product = LabeledArray(array, value.labels)
            else:
                product = self.multiply(product, value, ops.div if divides else ops.mul)
        return product

    def multiply(
        self, x: LabeledArray | None, y: LabeledArray, operation: Function = ops.mul
    ) -> LabeledArray:
        """`x` times `y`, or another `operation`, elementwise along the labels of both."""
        if x is None:
            return y
        labels = (*x.labels, *[label for label in y.labels if label not in x.labels])
        return LabeledArray(
            operation(self.broadcast_to_labels(x, labels), self.broadcast_to_labels(y, labels)),
            labels,
        )

    def contract_in_order(self, tree: Order, values: Sequence[LabeledArray]) -> LabeledArray | None:
        """The product of `values` in the order of `tree`, summed over labels not in the result."""
        if tree is None:
            return None
        users: dict[Label, int] = dict.fromkeys(self.out, 1)
        for value in values:
            for label in value.labels:
                users[label] = users.get(label, 0) + 1

        def contract(tree: Any) -> LabeledArray:
            if not isinstance(tree, tuple):
                return self.sum_unused_labels(values[tree], users)
            x, y = contract(tree[0]), contract(tree[1])
            for label in x.labels:
                if label in y.labels:
                    users[label] -= 1
            return self.contract_pair(x, y, users)

        return contract(tree)

    def sum_unused_labels(self, value: LabeledArray, users: dict[Label, int]) -> LabeledArray:
        """`value` summed over the labels that no other value has."""
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
        """`x` times `y`, summed over the labels that no other value has."""
        if x.one_hot_label is not None and y.one_hot_label is not None:
            return self.contract_one_hots(x, y, users)
        if x.one_hot_label is not None:
            return self.scatter_rows(x, y, users)
        if y.one_hot_label is not None:
            return self.scatter_rows(y, x, users)
        if self.comes_first(y, x):
            x, y = y, x
        shared = [label for label in x.labels if label in y.labels]
        summed = [label for label in shared if users[label] == 1 and label not in self.out]
        batch = [label for label in shared if label not in summed]
        x_free = [label for label in x.labels if label not in shared]
        y_free = [label for label in y.labels if label not in shared]
        if ((x_free or y_free) and summed) or (x_free and y_free):

            def axes_of(labels: Iterable[Label]) -> tuple[Any, Any]:
                labels = [*labels]
                return (
                    tuple([x.labels.index(label) for label in labels]),
                    tuple([y.labels.index(label) for label in labels]),
                )

            product = ops.DotGeneral(axes_of(summed), axes_of(batch), self.precision)
            array = product(x.array, y.array)
            return LabeledArray(array, (*batch, *x_free, *y_free))
        larger, smaller = (y, x) if y_free else (x, y)
        if smaller.array is larger.array and smaller.labels == larger.labels:
            array = ops.square(larger.array)
        else:
            array = ops.mul(larger.array, self.broadcast_to_labels(smaller, larger.labels))
        axes = tuple([d for d, label in enumerate(larger.labels) if label in summed])
        labels = tuple([label for label in larger.labels if label not in summed])
        return LabeledArray(ops.reduce_sum(array, axes) if axes else array, labels)

    def contract_one_hots(
        self, x: LabeledArray, y: LabeledArray, users: dict[Label, int]
    ) -> LabeledArray:
        """The product of two one-hot values, summed over the labels that no other value has."""
        labels = (*x.labels[:-1], *[z for z in y.labels[:-1] if z not in x.labels])
        first = self.broadcast_to_labels(LabeledArray(x.array, x.labels[:-1]), labels)
        second = self.broadcast_to_labels(LabeledArray(y.array, y.labels[:-1]), labels)
        is_equal = ops.bitwise_and(ops.eq(first, second), ops.ge(first, 0))
        return self.sum_unused_labels(
            LabeledArray(ops.convert_element_type(is_equal, self.dtype), labels), users
        )

    def scatter_rows(
        self, x: LabeledArray, y: LabeledArray, users: dict[Label, int]
    ) -> LabeledArray:
        """The product of the one-hot value `x` with `y`, as a scatter-add of rows."""
        label, labels = x.one_hot_label, x.labels[:-1]
        assert label is not None
        batch = [z for z in labels if users[z] > 1 or z in self.out]
        rows = [z for z in labels if z not in batch]
        columns = [z for z in y.labels if z not in labels]
        numbers = self.broadcast_to_labels(LabeledArray(x.array, labels), (*batch, *rows))
        values = self.broadcast_to_labels(y, (*batch, *rows, *columns))
        lengths = [label_size(group) for group in (batch, rows, columns)]
        numbers, values = (
            ops.reshape(numbers, (*lengths[:2], 1)),
            ops.reshape(values, tuple(lengths)),
        )
        zeros = ops.full((lengths[0], label.size, lengths[2]), literal(0, self.dtype))
        result = ops.scatter_add(zeros, numbers, values, _ROW_SCATTER_DIMS, mode="drop")
        result = ops.reshape(result, tuple([z.size for z in (*batch, label, *columns)]))
        return LabeledArray(result, (*batch, label, *columns))

    def comes_first(self, x: LabeledArray, y: LabeledArray) -> bool:
        """Whether the labels that only `x` has precede those that only `y` has in the result."""
        positions = [
            [
                self.out.index(label)
                for label in a.labels
                if label in self.out and label not in b.labels
            ]
            for a, b in ((x, y), (y, x))
        ]
        return bool(positions[0] and positions[1]) and min(positions[0]) < min(positions[1])

    def broadcast_to_labels(self, value: LabeledArray, labels: Labels) -> Value:
        """`value` broadcast to `labels`."""
        if not value.labels:
            return value.array
        ordered = tuple([label for label in labels if label in value.labels])
        array = ops.permute_dims(value.array, tuple([value.labels.index(x) for x in ordered]))
        axes = tuple([d for d, label in enumerate(labels) if label in value.labels])
        return ops.broadcast_in_dim(array, tuple([x.size for x in labels]), axes)

    def to_array(self, value: LabeledArray | None, labels: Labels) -> Value:
        """`value`, or one for None, as an array along `labels`."""
        if value is None:
            value = LabeledArray(literal(1, self.dtype), ())
        if not value.labels:
            return ops.full(tuple([x.size for x in labels]), value.array)
        return self.broadcast_to_labels(value, labels)


_ROW_SCATTER_DIMS = ops.ScatterDimensionNumbers((2,), (1,), (1,), (0,), (0,))
"""Numbers (batch, row) and rows (batch, row, column) scattered into (batch, number, column)."""
