"""`products`: which sums of large products are computed from their factors, without the products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from functx.core.program import Program
from functx.core.source_info import describe_source
from functx.core.typing import Function, PyTree
from functx.passes.reassociation import (
    REASSOCIATION_THRESHOLDS,
    FindLargeProducts,
    LargeProducts,
    hoist_products,
)
from functx.transforms.argument_names import check_callable, wrap_transform
from functx.transforms.make_ir import make_ir


class SumOfProducts(NamedTuple):
    """A sum over a large product, such as the derivatives of all examples in a layer.

    `line` is the user's that made the product, `shape` the product's, `result` the shape of the sum.
    `cost` is that of the sum as it is computed, in operations of a matrix product, and
    `cost_as_written` that with the product formed.
    """

    line: str
    shape: tuple[int, ...]
    result: tuple[int, ...]
    is_formed: bool
    cost: float
    cost_as_written: float

    def __str__(self) -> str:
        how = "product formed" if self.is_formed else "from the factors"
        cells = f"{self.shape!s:20} {self.result!s:16} {how:16}"
        return f"{cells} {self.cost:10.2e} {self.cost_as_written:10.2e}  {self.line}"


@dataclass(frozen=True)
class ProductTable:
    """The sums of a program over large products, in order; it prints as a table."""

    sums: tuple[SumOfProducts, ...]

    def __str__(self) -> str:
        header = f"{'product':20} {'sum':16} {'computed':16} {'cost':>10} {'as written':>10}  line"
        return "\n".join([header, *map(str, self.sums)])


def products(fun: Function) -> Callable[..., ProductTable]:
    """The function that lists the sums over large products in `fun(*args)`, and how each is computed.

    A norm or a weighted sum of the derivatives of each example is computed from the factors of these
    derivatives where that costs less than to form them; see the guide to derivatives of each
    example. Sums over products that are no larger than their factors are not listed.

    >>> import functx, numpy
    >>> loss = lambda w, x: functx.numpy.tanh(x @ w).sum()
    >>> norms = functx.per_example_norms(loss)
    >>> (row,) = functx.tools.products(norms)(numpy.ones((200, 300)), numpy.ones((64, 200))).sums
    >>> row.shape, row.result, row.is_formed
    ((64, 200, 300), (64,), False)
    """
    check_callable(fun, "products")

    def table(*args: PyTree, **kwargs: PyTree) -> ProductTable:
        return ProductTable(_sums_of(make_ir(fun)(*args, **kwargs)))

    return wrap_transform(table, fun, "products")


def _sums_of(program: Program) -> tuple[SumOfProducts, ...]:
    thresholds = REASSOCIATION_THRESHOLDS["auto"]
    found = LargeProducts(hoist_products(program, FindLargeProducts(thresholds)), thresholds)
    sums = list(found.sums)
    chosen = found.select_sums()
    rows = []
    for eqn in sums:
        largest = max(found.products_read_by([eqn]), key=lambda v: v.aval.size)
        written = found.cost_of_products([eqn], set()) + found.cost_as_written(eqn)
        cost = chosen[eqn].cost if eqn in chosen else written
        shapes = largest.aval.shape, eqn.outputs[0].aval.shape
        line = describe_source(found.large[largest].source)
        rows.append(SumOfProducts(line, *shapes, eqn not in chosen, cost, written))
    return tuple(rows)
