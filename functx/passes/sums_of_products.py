"""The sums of a program as einsums of small factors."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

from functx import ops
from functx.core.program import Atom, Equation
from functx.core.tracer import aval_of
from functx.core.types import ShapedArray, is_floating, kind
from functx.core.typing import Value
from functx.ops.operands import tuple_delete
from functx.ops.statistics import VectorNorm
from functx.passes.einsum import Einsum
from functx.passes.einsum_factors import LabelGroups, ProductExpression, fresh_labels

Producers = dict[Any, Equation]


class SumOfEinsums(NamedTuple):
    """Einsums that are added, or concatenated along `axis`; with `takes_sqrt`, the root of that."""

    einsums: list[Einsum]
    axis: int | None
    takes_sqrt: bool
    aval: ShapedArray

    @property
    def cost(self) -> float:
        """The cost of the sum, in operations of a matrix product."""
        return sum([part.cost for part in self.einsums])

    @property
    def num_scaled(self) -> int:
        """The number of factors that are scaled before they are squared."""
        terms = [term for part in self.einsums for term, _ in part.squared_terms]
        return sum([term.factors[0].one_hot_label is None for term in terms])

    def emit(self, read: Callable[[Any], Any]) -> Value:
        """Emit the equations that compute the sum; `read` gives the value of each variable."""
        arrays = [part.emit(read) for part in self.einsums]
        if self.axis is not None and len(arrays) > 1:
            total = ops.concatenate(arrays, self.axis)
        else:
            total = reduce(ops.add, arrays)
        if self.takes_sqrt:
            total = ops.sqrt(total)
        if aval_of(total) is not self.aval:
            total = ops.convert_element_type(total, self.aval.dtype, self.aval.weak_type)
        return total


def is_sum(eqn: Equation) -> bool:
    """Whether an equation sums products, or arrays that may be products."""
    primitive = eqn.primitive
    if type(primitive) is ops.DotGeneral:
        return bool(primitive.contracting_dims[0])
    if type(primitive) is VectorNorm:
        return primitive.ord == 2 and is_floating(eqn.inputs[0].aval.dtype)
    return type(primitive) is ops.ReduceSum


def expand_sum(eqn: Equation, producers: Producers, expandable: set[Atom]) -> SumOfEinsums | None:
    """The sum `eqn` as einsums of small factors; None if it cannot be one.

    The variables in `expandable` are expanded, and may not be factors.
    """
    (out,) = eqn.outputs
    if kind(out.aval.dtype) == "b":
        return None
    split = split_at_concatenation(eqn, producers)
    if split is None:
        return None
    pieces, axis = split
    einsums = []
    # Some machines round the operands of matrix products of default precision.
    precision = None if type(eqn.primitive) is ops.DotGeneral else ("HIGHEST", "HIGHEST")
    for substitutions, shapes in pieces:
        product = ProductExpression(producers, expandable.__contains__, substitutions)
        groups = expand_summands(product, eqn, shapes)
        if groups is None or any([atom in expandable for atom in product.atoms()]):
            return None
        shape = tuple([group[0].size if group else 1 for group in groups])
        einsum = Einsum.from_product(product, groups, out.aval.update(shape=shape), precision)
        if einsum is None:
            return None
        einsums.append(einsum)
    return SumOfEinsums(einsums, axis, type(eqn.primitive) is VectorNorm, out.aval)


Shapes = list[tuple[int, ...]]


def split_at_concatenation(
    eqn: Equation, producers: Producers
) -> tuple[list[tuple[dict[Any, Any], Shapes]], int | None] | None:
    """The sums that `eqn` consists of if operands are concatenated, and how they combine.

    For each sum: the substitution for the concatenated array, and the shapes of the operands.
    Then the axis along which the results are concatenated, None if they are added. The result is
    None if the sum cannot be split.
    """
    shapes = [x.aval.shape for x in eqn.inputs]
    joins = [concatenation_of(x, producers) for x in eqn.inputs]
    join = next((j for j in joins if j is not None), None)
    if join is None:
        return [({}, shapes)], None
    primitive: Any = eqn.primitive
    concat_axis: int = join.primitive.axis  # type: ignore[attr-defined]
    axis: int | None = None
    if type(primitive) is not ops.DotGeneral:
        if concat_axis not in primitive.axes:
            axis = tuple_delete(range(len(shapes[0])), primitive.axes).index(concat_axis)
    else:
        summed = [
            j is join and concat_axis in dims
            for j, dims in zip(joins, primitive.contracting_dims, strict=True)
        ]
        if any(summed):
            if not all(summed) or eqn.inputs[0] is not eqn.inputs[1]:
                return None
        elif None not in joins:
            return None
        else:
            free = [
                tuple_delete(range(len(shape)), c + b)
                for shape, c, b in zip(
                    shapes, primitive.contracting_dims, primitive.batch_dims, strict=True
                )
            ]
            side = joins.index(join)
            if concat_axis not in free[side]:
                return None
            axis = (
                len(primitive.batch_dims[0]) + side * len(free[0]) + free[side].index(concat_axis)
            )
    pieces = []
    for part in join.inputs:
        n = part.aval.shape[concat_axis]
        part_shapes = [
            (*shape[:concat_axis], n, *shape[concat_axis + 1 :]) if j is join else shape
            for shape, j in zip(shapes, joins, strict=True)
        ]
        pieces.append(({join.outputs[0]: part}, part_shapes))
    return pieces, axis


def concatenation_of(atom: Atom, producers: Producers) -> Equation | None:
    """The equation that concatenates arrays to `atom`, up to elementwise operations; else None."""
    while (eqn := producers.get(atom)) is not None:
        if type(eqn.primitive) is ops.Concatenate:
            return eqn
        is_square = type(eqn.primitive) is ops.Mul and eqn.inputs[0] is eqn.inputs[1]
        if type(eqn.primitive) not in _ELEMENTWISE_OPS and not is_square:
            break
        atom = eqn.inputs[0]
    return None


_ELEMENTWISE_OPS = frozenset({ops.Neg, ops.Square, ops.IntegerPow})


def expand_summands(
    product: ProductExpression, eqn: Equation, shapes: Shapes
) -> LabelGroups | None:
    """Multiply the summands of `eqn`, of `shapes`, into `product`; the labels of the result."""
    primitive: Any = eqn.primitive
    if type(primitive) is ops.DotGeneral:
        out = primitive.out_avals(
            tuple([x.aval.update(shape=s) for x, s in zip(eqn.inputs, shapes, strict=True)])
        )[0]
        groups = fresh_labels(out.shape)
        return groups if product.expand_dot_general(primitive, eqn.inputs, groups, shapes) else None
    (x,), (shape,), axes = eqn.inputs, shapes, primitive.axes
    groups = fresh_labels(tuple_delete(shape, axes))
    free, summed = iter(groups), iter(product.sum_over([shape[d] for d in axes]))
    dims = tuple([next(summed if d in axes else free) for d in range(len(shape))])
    if type(primitive) is VectorNorm:
        product.expand_square(primitive, [x], dims)
    else:
        product.multiply(x, dims)
    return groups
