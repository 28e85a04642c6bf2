"""Values as products of factors: what is summed, scaled and reshaped, as one expression."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from functx import ops
from functx.core.program import Atom, Equation, Literal
from functx.core.types import is_floating
from functx.ops.operands import minus_one, tuple_delete


class Label:
    """An index that runs over `label_size` values; one that a reshape takes apart has `parts`."""

    __slots__ = ("parts", "size")

    def __init__(self, size: int):
        self.size = size
        self.parts: LabelGroup = ()


LabelGroup = tuple[Label, ...]
LabelGroups = tuple[LabelGroup, ...]


def resolve_labels(group: Iterable[Label]) -> LabelGroup:
    """The labels of `group`, those that were taken apart replaced by their parts."""
    found: list[Label] = []
    for label in group:
        if label.parts:
            found += resolve_labels(label.parts)
        else:
            found.append(label)
    return tuple(found)


def fresh_labels(shape: Iterable[int]) -> LabelGroups:
    """A label of its own for each dimension, none for those of length 1."""
    return tuple([() if n == 1 else (Label(n),) for n in shape])


class Factor(NamedTuple):
    """An array in a product: the labels along each of its dimensions, and whether it divides.

    With `chosen`, the array holds numbers, and the factor is 1 where that of the label `chosen` is
    the one, else 0. With `clips`, numbers beyond the ends stand for those at the ends.
    """

    atom: Any
    groups: LabelGroups
    is_divisor: bool = False
    one_hot_label: Label | None = None
    clips_indices: bool = False

    def labels(self) -> LabelGroup:
        """The labels that the factor varies with, `chosen` last."""
        labels = [label for group in self.groups for label in resolve_labels(group)]
        return tuple(labels if self.one_hot_label is None else [*labels, self.one_hot_label])


class ConcatenatedSum(NamedTuple):
    """An array that holds the factors of each addend of a sum, one behind the other.

    `addends` gives the factors that are multiplied for each, and the labels that it alone has, which
    share the last dimension. The dimensions before it have the labels in `shared`.
    """

    addends: tuple[tuple[tuple[Factor, ...], LabelGroup], ...]
    shared: LabelGroup


class SquaredFactors(NamedTuple):
    """Two runs of factors, from `first` and from `second` on, that are the same but for what is summed."""

    first: int
    second: int
    length: int


class ProductExpression:
    """The factors of a value, opened up as far as the equations that made it allow.

    Opened up are variables that `may_expand` says so of; the rest are factors. `instead` gives
    what stands in place of some variables.
    """

    def __init__(
        self,
        makers: dict[Any, Equation],
        may_open: Callable[[Any], bool],
        instead: dict[Any, Atom] | None = None,
    ):
        self.producers = makers
        self.may_expand = may_open
        self.substitutions = instead or {}
        self.factors: list[Factor] = []
        self.squares: list[SquaredFactors] = []
        self.summed: list[Label] = []

    def sum_over(self, shape: Iterable[int]) -> LabelGroups:
        """Labels along `shape` that are summed over."""
        groups = fresh_labels(shape)
        self.summed += [label for group in groups for label in group]
        return groups

    def multiply(self, atom: Atom, groups: LabelGroups) -> None:
        """Take `atom`, with labels along its dimensions, as one more factor, or as several."""
        atom = self.substitutions.get(atom, atom)
        eqn = self.producers.get(atom)
        if eqn is not None:
            shown = type(eqn.primitive) in _ALWAYS_EXPANDED
            if shown or self.may_expand(atom):
                rule = _EXPANSION_RULES.get(type(eqn.primitive))
                if rule is not None and rule(self, eqn.primitive, eqn.inputs, groups):
                    return
        self.factors.append(Factor(atom, groups))

    def atoms(self) -> Iterator[Any]:
        """The variables and numbers that are multiplied."""
        pending = [*self.factors]
        while pending:
            factor = pending.pop()
            if type(factor.atom) is ConcatenatedSum:
                pending += [f for factors, _ in factor.atom.addends for f in factors]
            else:
                yield factor.atom

    def expand_elementwise(self, inputs: Iterable[Any], groups: LabelGroups) -> bool:
        for atom in inputs:
            self.multiply(atom, groups if atom.aval.ndim else ())
        return True

    def expand_div(self, primitive: Any, inputs: list[Any], groups: LabelGroups) -> bool:
        x, y = inputs
        if not is_floating(x.aval.dtype):
            return False
        start = len(self.factors)
        self.expand_elementwise([y], groups)
        # A quotient by a product would divide by each factor, of which one may be 0 alone.
        if len(self.factors) != start + 1:
            del self.factors[start:]
            self.squares = [s for s in self.squares if s.first < start]
            return False
        self.factors[start] = self.factors[start]._replace(is_divisor=True)
        return self.expand_elementwise([x], groups)

    def expand_add(self, primitive: Any, inputs: list[Any], groups: LabelGroups) -> bool:
        parts = [self.sub_product() for _ in inputs]
        for part, atom in zip(parts, inputs, strict=True):
            part.multiply(atom, groups)
        return self.concatenate_addends(parts, groups)

    def expand_sub(self, primitive: Any, inputs: list[Any], groups: LabelGroups) -> bool:
        parts = [self.sub_product() for _ in inputs]
        for part, atom in zip(parts, inputs, strict=True):
            part.multiply(atom, groups)
        parts[1].factors.append(Factor(minus_one(inputs[1].aval.dtype), ()))
        return self.concatenate_addends(parts, groups)

    def sub_product(self) -> ProductExpression:
        """A product within this one."""
        return ProductExpression(self.producers, self.may_expand, self.substitutions)

    def concatenate_addends(self, parts: list[ProductExpression], groups: LabelGroups) -> bool:
        """Take the sum of `parts`, products of two factors each, as one of two; False where it is none."""
        outer = resolve_labels([label for group in groups for label in group])
        sides: list[list[Any]] = [[], []]
        for part in parts:
            pair = None if part.squares else bipartition(part.factors)
            if pair is None:
                return False
            kept = [frozenset(outer).intersection(side[0].labels()) for side in pair]
            if sides[0] and kept != [first[2] for first, *_ in sides]:
                pair, kept = pair[::-1], kept[::-1]
                if kept != [first[2] for first, *_ in sides]:
                    return False
            own = [[x for x in side[0].labels() if x not in outer] for side in pair]
            if {*own[0]} != {*own[1]}:
                return False
            for side, factors, found in zip(sides, pair, kept, strict=True):
                side.append((tuple(factors), tuple(own[0]), found))
        (together,) = self.sum_over([sum([label_size(own) for _, own, _ in sides[0]])])
        for side in sides:
            shared = tuple([x for x in outer if x in side[0][2]])
            addends = tuple([(factors, own) for factors, own, _ in side])
            self.factors.append(
                Factor(ConcatenatedSum(addends, shared), (*[(x,) for x in shared], together))
            )
        return True

    def expand_neg(self, primitive: Any, inputs: list[Any], groups: LabelGroups) -> bool:
        self.factors.append(Factor(minus_one(inputs[0].aval.dtype), ()))
        return self.expand_elementwise(inputs, groups)

    def expand_integer_pow(self, primitive: Any, inputs: list[Any], groups: LabelGroups) -> bool:
        return primitive.exponent == 2 and self.expand_square(primitive, inputs, groups)

    def expand_square(self, primitive: Any, inputs: list[Any], groups: LabelGroups) -> bool:
        (x,) = inputs
        start = len(self.factors)
        self.multiply(x, groups)
        middle = len(self.factors)
        self.multiply(x, groups)
        self.squares.append(SquaredFactors(start, middle, middle - start))
        return True

    def expand_mul(self, primitive: Any, inputs: list[Any], groups: LabelGroups) -> bool:
        x, y = inputs
        if x is y:
            return self.expand_square(primitive, [x], groups)
        return self.expand_elementwise(inputs, groups)

    def expand_dot_general(
        self, primitive: Any, inputs: list[Any], groups: LabelGroups, shapes: Any = None
    ) -> bool:
        if primitive.precision is not None or primitive.preferred_element_type is not None:
            return False
        x, y = inputs
        (xc, yc), (xb, yb) = primitive.contracting_dims, primitive.batch_dims
        shape = x.aval.shape if shapes is None else shapes[0]
        summed = self.sum_over([shape[d] for d in xc])
        x_free = tuple_delete(range(x.aval.ndim), xc + xb)
        y_free = tuple_delete(range(y.aval.ndim), yc + yb)
        batch, rest = groups[: len(xb)], groups[len(xb) :]
        if x is y and (xc, xb) == (yc, yb) and not x_free:
            of = dict(zip((*xc, *xb), (*summed, *batch), strict=True))
            return self.expand_square(primitive, [x], tuple([of[d] for d in range(len(shape))]))
        for atom, dims, free, parts in (
            (x, xc + xb, x_free, rest[: len(x_free)]),
            (y, yc + yb, y_free, rest[len(x_free) :]),
        ):
            of = dict(zip((*dims, *free), (*summed, *batch, *parts), strict=True))
            self.multiply(atom, tuple([of[d] for d in range(atom.aval.ndim)]))
        return True

    def expand_broadcast(self, primitive: Any, inputs: list[Any], groups: LabelGroups) -> bool:
        (x,) = inputs
        dims = zip(x.aval.shape, primitive.dims, strict=True)
        self.multiply(x, tuple([() if n == 1 else groups[d] for n, d in dims]))
        return True

    def expand_full(self, primitive: Any, inputs: list[Any], groups: LabelGroups) -> bool:
        self.multiply(inputs[0], ())
        return True

    def expand_permute_dims(self, primitive: Any, inputs: list[Any], groups: LabelGroups) -> bool:
        place = {axis: i for i, axis in enumerate(primitive.axes)}
        self.multiply(inputs[0], tuple([groups[place[d]] for d in range(len(groups))]))
        return True

    def expand_reshape(self, primitive: Any, inputs: list[Any], groups: LabelGroups) -> bool:
        (x,) = inputs
        regrouped = regroup_labels(x.aval.shape, [label for group in groups for label in group])
        if regrouped is None:
            return False
        self.multiply(x, regrouped)
        return True

    def expand_scatter_add(self, primitive: Any, inputs: list[Any], groups: LabelGroups) -> bool:
        x, indices, updates = inputs
        place = scatter_row_axis(primitive, x, indices, updates)
        label = () if place is None else resolve_labels(groups[place])
        if place is None or len(label) != 1:
            return False
        if not is_zero_array(x, self.producers):
            parts = [self.sub_product(), self.sub_product()]
            parts[0].multiply(x, groups)
            parts[1].add_scattered_rows(primitive, inputs, groups, place)
            return self.concatenate_addends(parts, groups)
        self.add_scattered_rows(primitive, inputs, groups, place)
        return True

    def add_scattered_rows(
        self, primitive: Any, inputs: list[Any], groups: LabelGroups, place: int
    ) -> None:
        """Take updates that are added into the rows of zeros along dimension `place`."""
        x, indices, updates = inputs
        label = resolve_labels(groups[place])
        along: dict[int, LabelGroup] = dict(
            zip(
                primitive.start_indices_batching_dims,
                [groups[d] for d in primitive.operand_batching_dims],
                strict=True,
            )
        )
        dims = range(indices.aval.ndim - 1)
        left = [d for d in dims if d not in along]
        along.update(zip(left, self.sum_over([indices.aval.shape[d] for d in left]), strict=True))
        numbers = tuple([along[d] for d in dims])
        outside = (place, *primitive.operand_batching_dims)
        windows = iter([groups[d] for d in range(x.aval.ndim) if d not in outside])
        scattered = iter(numbers)
        self.factors.append(
            Factor(indices, (*numbers, ()), False, label[0], primitive.mode == "clip")
        )
        inside = primitive.offset_dims
        dims = range(updates.aval.ndim)
        self.multiply(updates, tuple([next(windows if d in inside else scattered) for d in dims]))

    def expand_convert(self, primitive: Any, inputs: list[Any], groups: LabelGroups) -> bool:
        (x,) = inputs
        source, target = x.aval.dtype, primitive.dtype
        wider = is_floating(source) and is_floating(target) and source.itemsize <= target.itemsize
        # The widest dtype of the factors is the one that the product is made in.
        if source != target and not (wider and source.itemsize < target.itemsize):
            return False
        self.multiply(x, groups)
        return True


def regroup_labels(shape: tuple[int, ...], labels: list[Label]) -> LabelGroups | None:
    """`labels` in groups of the lengths `shape`, taking them apart where needed; None if it fails."""
    flat = list(resolve_labels(labels))
    groups: list[LabelGroup] = []
    for n in shape:
        group: list[Label] = []
        while n != 1:
            if not flat:
                return None
            label = flat.pop(0)
            if n % label.size == 0 and n:
                group.append(label)
                n //= label.size
            elif label.size % n == 0 if n else False:
                first, rest = Label(n), Label(label.size // n)
                label.parts = first, rest
                group.append(first)
                flat.insert(0, rest)
                n = 1
            else:
                return None
        groups.append(tuple(group))
    return None if flat else tuple(groups)


def bipartition(factors: Sequence[Factor]) -> list[list[Factor]] | None:
    """`factors` as two lists, in each of which the first has all labels; None where that is not so."""
    whole = sorted([f for f in factors if not f.is_divisor], key=lambda f: -len(f.labels()))
    sides: list[list[Factor]] = []
    for factor in [*whole, *[f for f in factors if f.is_divisor]]:
        labels = {*factor.labels()}
        fit = [side for side in sides if labels.issubset(side[0].labels())]
        # Two factors along the same labels are the two sides, if there are no others.
        if fit and (len(sides) == 2 or len(labels) == 0 or factor.is_divisor):
            fit[-1].append(factor)
        elif len(sides) < 2 and not factor.is_divisor:
            sides.append([factor])
        else:
            return None
    return sides if len(sides) == 2 else None


def label_size(labels: Iterable[Label]) -> int:
    """How many elements an array along `labels` has."""
    return prod([label.size for label in labels])


def scatter_row_axis(primitive: Any, x: Any, indices: Any, updates: Any) -> int | None:
    """The dimension of `x` along which a scatter puts whole rows; None for other scatters."""
    collapsed = primitive.collapsed_slice_dims
    if len(collapsed) != 1 or collapsed != primitive.start_index_map:
        return None
    outside = (*collapsed, *primitive.operand_batching_dims)
    whole = [updates.aval.shape[d] for d in primitive.offset_dims]
    if whole != list(tuple_delete(x.aval.shape, outside)) or indices.aval.shape[-1] != 1:
        return None
    return int(collapsed[0])


def is_zero_array(atom: Any, makers: dict[Any, Equation]) -> bool:
    """Whether `atom` is an array of zeros, as its equations show it."""
    while (eqn := makers.get(atom)) is not None and type(eqn.primitive) in _ALWAYS_EXPANDED:
        atom = eqn.inputs[0]
    return type(atom) is Literal and atom.value == 0


_EXPANSION_RULES: dict[Any, Callable[..., bool]] = {
    ops.Mul: ProductExpression.expand_mul,
    ops.Div: ProductExpression.expand_div,
    ops.Neg: ProductExpression.expand_neg,
    ops.Square: ProductExpression.expand_square,
    ops.IntegerPow: ProductExpression.expand_integer_pow,
    ops.DotGeneral: ProductExpression.expand_dot_general,
    ops.BroadcastInDim: ProductExpression.expand_broadcast,
    ops.Full: ProductExpression.expand_full,
    ops.PermuteDims: ProductExpression.expand_permute_dims,
    ops.Reshape: ProductExpression.expand_reshape,
    ops.ConvertElementType: ProductExpression.expand_convert,
    ops.ScatterAdd: ProductExpression.expand_scatter_add,
    ops.Add: ProductExpression.expand_add,
    ops.Sub: ProductExpression.expand_sub,
}
_ALWAYS_EXPANDED = frozenset({ops.BroadcastInDim, ops.Full})
"""What is opened up wherever it is found: the factor is then smaller, and as good."""

EXPANDABLE_PRIMITIVES = frozenset(
    _EXPANSION_RULES.keys() - {ops.DotGeneral, ops.ScatterAdd, ops.Add, ops.Sub}
)
"""What an operand may be opened up through."""
