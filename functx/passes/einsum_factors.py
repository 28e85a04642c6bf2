"""Values as products of labelled factors, expanded through the equations that compute them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from functx import ops
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation
from functx.core.types import is_floating
from functx.ops.convolution import Convolution, permuted_shape
from functx.ops.operands import minus_one, tuple_delete
from functx.passes.convolution_patches import Patches
from functx.transforms.symbolic_zeros import is_zero_array


class Label:
    """An index with `size` values; a reshape may split it into `parts`."""

    __slots__ = ("parts", "size")

    def __init__(self, size: int):
        self.size = size
        self.parts: LabelGroup = ()


LabelGroup = tuple[Label, ...]
LabelGroups = tuple[LabelGroup, ...]


def resolve_labels(group: Iterable[Label]) -> LabelGroup:
    """The labels of `group`, with split labels replaced by their parts."""
    resolved: list[Label] = []
    for label in group:
        if label.parts:
            resolved += resolve_labels(label.parts)
        else:
            resolved.append(label)
    return tuple(resolved)


def fresh_labels(shape: Iterable[int]) -> LabelGroups:
    """A new label for each axis, none for axes of length 1."""
    return tuple([() if n == 1 else (Label(n),) for n in shape])


class Factor(NamedTuple):
    """An array in a product, with the labels along each of its axes; a divisor divides.

    With `one_hot_label`, the array holds positions, and the factor is one-hot along that label:
    1 at the position, else 0. With `clips_indices`, positions are clamped to the range; otherwise a
    position out of range gives zeros.
    """

    atom: Any
    groups: LabelGroups
    is_divisor: bool = False
    one_hot_label: Label | None = None
    clips_indices: bool = False

    def labels(self) -> LabelGroup:
        """The labels that the factor depends on, `one_hot_label` last."""
        labels = [label for group in self.groups for label in resolve_labels(group)]
        return tuple(labels if self.one_hot_label is None else [*labels, self.one_hot_label])


class ConcatenatedSum(NamedTuple):
    """The factors of the addends of a sum, concatenated along the last axis.

    `addends` has for each addend its factors, and the labels that only it has, which are merged
    into the last axis. The axes before it have the labels in `shared`.
    """

    addends: tuple[tuple[tuple[Factor, ...], LabelGroup], ...]
    shared: LabelGroup


class SquaredFactors(NamedTuple):
    """Two runs of equal factors, from `first` and from `second` on, with other summed labels."""

    first: int
    second: int
    length: int


class ProductExpression:
    """A value as a product of factors, expanded through the equations that compute it.

    Variables for which `may_expand` holds are expanded; all others are factors. `substitutions`
    replaces some variables.
    """

    def __init__(
        self,
        producers: dict[Atom, Equation],
        may_expand: Callable[[Atom], bool],
        substitutions: dict[Atom, Atom] | None = None,
    ):
        self.producers = producers
        self.may_expand = may_expand
        self.substitutions = substitutions or {}
        self.factors: list[Factor] = []
        self.squares: list[SquaredFactors] = []
        self.summed: list[Label] = []

    def sum_over(self, shape: Iterable[int]) -> LabelGroups:
        """New labels along `shape` that are summed over."""
        groups = fresh_labels(shape)
        self.summed += [label for group in groups for label in group]
        return groups

    def multiply(self, atom: Atom, groups: LabelGroups) -> None:
        """Multiply by `atom`, with labels along its axes: as a factor, or expanded into several."""
        atom = self.substitutions.get(atom, atom)
        eqn = self.producers.get(atom)
        if eqn is not None:
            always = type(eqn.primitive) in _ALWAYS_EXPANDED
            if always or self.may_expand(atom):
                rule = _EXPANSION_RULES.get(type(eqn.primitive))
                if rule is not None and rule(self, eqn.primitive, eqn.inputs, groups):
                    return
        self.factors.append(Factor(atom, groups))

    def atoms(self) -> Iterator[Any]:
        """The variables and literals that are multiplied."""
        pending = [*self.factors]
        while pending:
            factor = pending.pop()
            if type(factor.atom) is ConcatenatedSum:
                pending += [f for factors, _ in factor.atom.addends for f in factors]
            elif type(factor.atom) is Patches:
                yield factor.atom.array
            else:
                yield factor.atom

    def expand_elementwise(self, inputs: Iterable[Atom], groups: LabelGroups) -> bool:
        for atom in inputs:
            self.multiply(atom, groups if atom.aval.ndim else ())
        return True

    def expand_div(self, primitive: Primitive, inputs: list[Atom], groups: LabelGroups) -> bool:
        x, y = inputs
        if not is_floating(x.aval.dtype):
            return False
        start = len(self.factors)
        self.expand_elementwise([y], groups)
        # Division by each factor of a product is not exact: one may be 0, or overflow.
        if len(self.factors) != start + 1:
            del self.factors[start:]
            self.squares = [s for s in self.squares if s.first < start]
            return False
        self.factors[start] = self.factors[start]._replace(is_divisor=True)
        return self.expand_elementwise([x], groups)

    def expand_add(self, primitive: Primitive, inputs: list[Atom], groups: LabelGroups) -> bool:
        parts = [self.sub_product() for _ in inputs]
        for part, atom in zip(parts, inputs, strict=True):
            part.multiply(atom, groups)
        return self.concatenate_addends(parts, groups)

    def expand_sub(self, primitive: Primitive, inputs: list[Atom], groups: LabelGroups) -> bool:
        parts = [self.sub_product() for _ in inputs]
        for part, atom in zip(parts, inputs, strict=True):
            part.multiply(atom, groups)
        parts[1].factors.append(Factor(minus_one(inputs[1].aval.dtype), ()))
        return self.concatenate_addends(parts, groups)

    def sub_product(self) -> ProductExpression:
        """A product of the same settings without factors."""
        return ProductExpression(self.producers, self.may_expand, self.substitutions)

    def concatenate_addends(self, parts: list[ProductExpression], groups: LabelGroups) -> bool:
        """Multiply by the sum of `parts` as two factors, if each has two; whether it could."""
        outer_labels = resolve_labels([label for group in groups for label in group])
        sides: list[list[Any]] = [[], []]
        for part in parts:
            pair = None if part.squares else bipartition(part.factors)
            if pair is None:
                return False
            shared_labels = [
                frozenset(outer_labels).intersection(side[0].labels()) for side in pair
            ]
            if sides[0] and shared_labels != [first[2] for first, *_ in sides]:
                pair, shared_labels = pair[::-1], shared_labels[::-1]
                if shared_labels != [first[2] for first, *_ in sides]:
                    return False
            own = [[x for x in side[0].labels() if x not in outer_labels] for side in pair]
            if {*own[0]} != {*own[1]}:
                return False
            for side, factors, kept in zip(sides, pair, shared_labels, strict=True):
                side.append((tuple(factors), tuple(own[0]), kept))
        (concatenated,) = self.sum_over([sum([label_size(own) for _, own, _ in sides[0]])])
        for side in sides:
            shared = tuple([x for x in outer_labels if x in side[0][2]])
            addends = tuple([(factors, own) for factors, own, _ in side])
            self.factors.append(
                Factor(ConcatenatedSum(addends, shared), (*[(x,) for x in shared], concatenated))
            )
        return True

    def expand_neg(self, primitive: Primitive, inputs: list[Atom], groups: LabelGroups) -> bool:
        self.factors.append(Factor(minus_one(inputs[0].aval.dtype), ()))
        return self.expand_elementwise(inputs, groups)

    def expand_integer_pow(
        self, primitive: ops.IntegerPow, inputs: list[Atom], groups: LabelGroups
    ) -> bool:
        return primitive.exponent == 2 and self.expand_square(primitive, inputs, groups)

    def expand_square(self, primitive: Primitive, inputs: list[Atom], groups: LabelGroups) -> bool:
        (x,) = inputs
        start = len(self.factors)
        self.multiply(x, groups)
        middle = len(self.factors)
        self.multiply(x, groups)
        self.squares.append(SquaredFactors(start, middle, middle - start))
        return True

    def expand_mul(self, primitive: Primitive, inputs: list[Atom], groups: LabelGroups) -> bool:
        x, y = inputs
        if x is y:
            return self.expand_square(primitive, [x], groups)
        return self.expand_elementwise(inputs, groups)

    def expand_dot_general(
        self,
        primitive: ops.DotGeneral,
        inputs: list[Atom],
        groups: LabelGroups,
        shapes: Sequence[tuple[int, ...]] | None = None,
    ) -> bool:
        if primitive.precision is not None or primitive.preferred_element_type is not None:
            return False
        x, y = inputs
        (xc, yc), (xb, yb) = primitive.contracting_dims, primitive.batch_dims
        shape = x.aval.shape if shapes is None else shapes[0]
        summed = self.sum_over([shape[d] for d in xc])
        x_free = tuple_delete(range(x.aval.ndim), xc + xb)
        y_free = tuple_delete(range(y.aval.ndim), yc + yb)
        batch_groups, free_groups = groups[: len(xb)], groups[len(xb) :]
        if x is y and (xc, xb) == (yc, yb) and not x_free:
            label_of = dict(zip((*xc, *xb), (*summed, *batch_groups), strict=True))
            return self.expand_square(
                primitive, [x], tuple([label_of[d] for d in range(len(shape))])
            )
        for atom, dims, free, free_labels in (
            (x, xc + xb, x_free, free_groups[: len(x_free)]),
            (y, yc + yb, y_free, free_groups[len(x_free) :]),
        ):
            label_of = dict(
                zip((*dims, *free), (*summed, *batch_groups, *free_labels), strict=True)
            )
            self.multiply(atom, tuple([label_of[d] for d in range(atom.aval.ndim)]))
        return True

    def expand_convolution(
        self, primitive: Convolution, inputs: list[Atom], groups: LabelGroups
    ) -> bool:
        if primitive.precision is not None or primitive.preferred_element_type is not None:
            return False
        x, kernel = inputs
        layouts, count = primitive.layouts, max(primitive.groups)
        out_channels, in_channels, *sizes = permuted_shape(kernel.aval, layouts.kernel)
        batch, channels, *space = [groups[d] for d in layouts.out]
        parts = regroup_labels((count, out_channels // count), list(channels))
        if parts is None:
            return False
        summed, *within = self.sum_over([in_channels, *sizes])
        of_array = batch, parts[0] + summed
        if primitive.groups.batch > 1:
            of_array = parts[0] + batch, summed
        windows = [labels for pair in zip(space, within, strict=True) for labels in pair]
        patches = Patches(x, primitive.window, layouts.array)
        self.factors.append(Factor(patches, (*of_array, *windows)))
        of_kernel = dict(zip(layouts.kernel, (channels, summed, *within), strict=True))
        self.multiply(kernel, tuple([of_kernel[d] for d in range(kernel.aval.ndim)]))
        return True

    def expand_broadcast(
        self, primitive: ops.BroadcastInDim, inputs: list[Atom], groups: LabelGroups
    ) -> bool:
        (x,) = inputs
        dims = zip(x.aval.shape, primitive.dims, strict=True)
        self.multiply(x, tuple([() if n == 1 else groups[d] for n, d in dims]))
        return True

    def expand_full(self, primitive: Primitive, inputs: list[Atom], groups: LabelGroups) -> bool:
        self.multiply(inputs[0], ())
        return True

    def expand_permute_dims(
        self, primitive: ops.PermuteDims, inputs: list[Atom], groups: LabelGroups
    ) -> bool:
        position_of = {axis: i for i, axis in enumerate(primitive.axes)}
        self.multiply(inputs[0], tuple([groups[position_of[d]] for d in range(len(groups))]))
        return True

    def expand_reshape(self, primitive: Primitive, inputs: list[Atom], groups: LabelGroups) -> bool:
        (x,) = inputs
        regrouped = regroup_labels(x.aval.shape, [label for group in groups for label in group])
        if regrouped is None:
            return False
        self.multiply(x, regrouped)
        return True

    def expand_scatter_add(
        self, primitive: object, inputs: list[Atom], groups: LabelGroups
    ) -> bool:
        x, indices, updates = inputs
        row_axis = scatter_row_axis(primitive, x, indices, updates)
        label = () if row_axis is None else resolve_labels(groups[row_axis])
        if row_axis is None or len(label) != 1:
            return False
        if not is_zero_array(x, self.producers):
            parts = [self.sub_product(), self.sub_product()]
            parts[0].multiply(x, groups)
            parts[1].add_scattered_rows(primitive, inputs, groups, row_axis)
            return self.concatenate_addends(parts, groups)
        self.add_scattered_rows(primitive, inputs, groups, row_axis)
        return True

    def add_scattered_rows(
        self, primitive: Any, inputs: list[Atom], groups: LabelGroups, row_axis: int
    ) -> None:
        """Multiply by updates that are added to rows of zeros along axis `row_axis`."""
        x, indices, updates = inputs
        label = resolve_labels(groups[row_axis])
        label_of: dict[int, LabelGroup] = dict(
            zip(
                primitive.start_indices_batching_dims,
                [groups[d] for d in primitive.operand_batching_dims],
                strict=True,
            )
        )
        dims = range(indices.aval.ndim - 1)
        summed_dims = [d for d in dims if d not in label_of]
        label_of.update(
            zip(
                summed_dims,
                self.sum_over([indices.aval.shape[d] for d in summed_dims]),
                strict=True,
            )
        )
        index_labels = tuple([label_of[d] for d in dims])
        other_dims = (row_axis, *primitive.operand_batching_dims)
        window_groups = iter([groups[d] for d in range(x.aval.ndim) if d not in other_dims])
        index_labels_iter = iter(index_labels)
        self.factors.append(
            Factor(indices, (*index_labels, ()), False, label[0], primitive.mode == "clip")
        )
        window_dims = primitive.offset_dims
        dims = range(updates.aval.ndim)
        self.multiply(
            updates,
            tuple([next(window_groups if d in window_dims else index_labels_iter) for d in dims]),
        )

    def expand_convert(
        self, primitive: ops.ConvertElementType, inputs: list[Atom], groups: LabelGroups
    ) -> bool:
        (x,) = inputs
        source, target = x.aval.dtype, primitive.dtype
        wider = is_floating(source) and is_floating(target) and source.itemsize <= target.itemsize
        # The product is computed in the widest dtype of its factors.
        if source != target and not (wider and source.itemsize < target.itemsize):
            return False
        self.multiply(x, groups)
        return True


def regroup_labels(shape: tuple[int, ...], labels: list[Label]) -> LabelGroups | None:
    """`labels` in groups of the sizes `shape`, split where needed; None if they do not fit."""
    remaining = list(resolve_labels(labels))
    groups: list[LabelGroup] = []
    for n in shape:
        group: list[Label] = []
        while n != 1:
            if not remaining:
                return None
            label = remaining.pop(0)
            if n % label.size == 0 and n:
                group.append(label)
                n //= label.size
            elif label.size % n == 0 if n else False:
                first, second = Label(n), Label(label.size // n)
                label.parts = first, second
                group.append(first)
                remaining.insert(0, second)
                n = 1
            else:
                return None
        groups.append(tuple(group))
    return None if remaining else tuple(groups)


def bipartition(factors: Sequence[Factor]) -> list[list[Factor]] | None:
    """`factors` in two lists, in each of which the first has all labels; None if none exist."""
    multipliers = sorted([f for f in factors if not f.is_divisor], key=lambda f: -len(f.labels()))
    sides: list[list[Factor]] = []
    for factor in [*multipliers, *[f for f in factors if f.is_divisor]]:
        labels = {*factor.labels()}
        candidates = [side for side in sides if labels.issubset(side[0].labels())]
        # Two factors with the same labels are the two sides if there are no others.
        if candidates and (len(sides) == 2 or len(labels) == 0 or factor.is_divisor):
            candidates[-1].append(factor)
        elif len(sides) < 2 and not factor.is_divisor:
            sides.append([factor])
        else:
            return None
    return sides if len(sides) == 2 else None


def label_size(labels: Iterable[Label]) -> int:
    """The number of elements of an array along `labels`."""
    return prod([label.size for label in labels])


def scatter_row_axis(primitive: Any, x: Atom, indices: Atom, updates: Atom) -> int | None:
    """The axis of `x` along which a scatter adds whole rows; None for other scatters."""
    collapsed = primitive.collapsed_slice_dims
    if len(collapsed) != 1 or collapsed != primitive.start_index_map:
        return None
    other_dims = (*collapsed, *primitive.operand_batching_dims)
    window_shape = [updates.aval.shape[d] for d in primitive.offset_dims]
    if window_shape != list(tuple_delete(x.aval.shape, other_dims)) or indices.aval.shape[-1] != 1:
        return None
    return int(collapsed[0])


_EXPANSION_RULES: dict[type[Primitive], Callable[..., bool]] = {
    ops.Mul: ProductExpression.expand_mul,
    ops.Div: ProductExpression.expand_div,
    ops.Neg: ProductExpression.expand_neg,
    ops.Square: ProductExpression.expand_square,
    ops.IntegerPow: ProductExpression.expand_integer_pow,
    ops.DotGeneral: ProductExpression.expand_dot_general,
    Convolution: ProductExpression.expand_convolution,
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
"""Equations that are always expanded: the factor becomes smaller."""

EXPANDABLE_PRIMITIVES = frozenset(
    _EXPANSION_RULES.keys() - {ops.DotGeneral, Convolution, ops.ScatterAdd, ops.Add, ops.Sub}
)
"""Equations through which a large product is traced without a sum."""
