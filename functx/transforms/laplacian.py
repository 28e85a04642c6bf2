"""`laplacian`, and other linear differential operators, by one forward pass of collapsed Taylor mode."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import comb, gcd, prod
from operator import index
from typing import Any

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.errors import ArgumentError, GradientError, type_name
from functx.core.masks import inexact_mask, select_where
from functx.core.rewriting import apply
from functx.core.types import is_complex, is_inexact
from functx.core.typing import Function, NumPyArray, PyTree
from functx.transforms.aliasing import copy_transform_results
from functx.transforms.argument_names import (
    as_decorator,
    check_callable,
    function_name,
    key_path_strings,
    wrap_transform,
)
from functx.transforms.coefficients import Curves
from functx.transforms.collapsed_jet import CollapsedJet
from functx.transforms.grad import Argnums, DifferentiatedFunction, canonical_argnums
from functx.transforms.jacobian import split_axis
from functx.transforms.tracing_api import TracedFunction


def laplacian(fun: Function | None = None, argnums: Argnums = 0) -> Function:
    """The function that computes the sum of the second derivatives of `fun` by each coordinate.

    The coordinates are the elements of the arguments at `argnums`, pytrees of real arrays. The result has
    the structure and shapes of the output, whose arrays may have any shape. It equals the trace of
    `hessian(fun)`, which is never formed: the value, its Jacobian and its Laplacian are propagated
    forward together (Li et al. 2023, "Forward Laplacian").

    Raises GradientError for arguments that are not real or outputs that are not inexact.

    >>> import functx, numpy
    >>> float(functx.laplacian(lambda x: (x ** 3).sum())(numpy.array([1.0, 2.0])))
    18.0
    """
    if fun is None:
        return as_decorator(laplacian, locals())
    return _second_order(fun, argnums, "laplacian", lambda value, gradient, total: total)


def value_grad_and_laplacian(fun: Function | None = None, argnums: Argnums = 0) -> Function:
    """The function that computes `(value, gradient, laplacian)` of `fun` in one forward pass.

    See `laplacian`. The gradient is as that of `jacfwd`: its arrays have the shape of the output followed
    by that of the argument.

    >>> import functx, numpy
    >>> f = functx.value_grad_and_laplacian(lambda x: (x ** 3).sum())
    >>> value, gradient, laplacian = f(numpy.array([1.0, 2.0]))
    >>> float(value), gradient.tolist(), float(laplacian)
    (9.0, [3.0, 12.0], 18.0)
    """
    if fun is None:
        return as_decorator(value_grad_and_laplacian, locals())
    return _second_order(
        fun, argnums, "value_grad_and_laplacian", lambda *results: results, with_gradient=True
    )


def biharmonic(fun: Function | None = None, argnums: Argnums = 0) -> Function:
    """The function that computes the Laplacian of the Laplacian of `fun`.

    See `laplacian` for arguments and result. It takes one forward pass of order 4 along the square of
    as many directions as there are coordinates.

    >>> import functx, numpy
    >>> round(float(functx.biharmonic(lambda x: x[0] ** 2 * x[1] ** 2)(numpy.ones(2))), 4)
    8.0
    """
    if fun is None:
        return as_decorator(biharmonic, locals())

    def coefficients(size: int) -> dict[tuple[int, ...], float]:
        pairs = product(range(size), repeat=2)
        return Counter([tuple(sorted((i, i, j, j))) for i, j in pairs])  # type: ignore[return-value]

    return _operator(fun, argnums, "biharmonic", coefficients)


def differential_operator(
    fun: Function, coefficients: Mapping[Sequence[int], float], argnums: Argnums = 0
) -> Function:
    """The function that computes a sum of partial derivatives of `fun`, of any order.

    `coefficients` maps each derivative, a tuple of the coordinates that it is taken by, to its factor:
    `{(0, 0): 1.0, (0, 1, 1): -2.0}` is the second derivative by coordinate 0 less twice the third by 0
    and twice by 1. `()` is the value. Coordinates count the elements of the arguments at `argnums` in
    order. The result has the structure and shapes of the output.

    The derivatives of one order are a weighted sum of derivatives along directions, by the polarization
    identity, which one forward pass computes; the highest coefficients are propagated as their sum.

    Raises ArgumentError for a coordinate that the arguments do not have.

    >>> import functx, numpy
    >>> mixed = functx.differential_operator(lambda x: x[0] ** 2 * x[1] ** 3, {(0, 1, 1): 1.0})
    >>> float(mixed(numpy.array([1.0, 2.0])))
    24.0
    """
    label = f"differential_operator({function_name(fun)})"
    if not isinstance(coefficients, Mapping):
        raise ArgumentError(
            f"{label}: coefficients must be a dict from tuples of coordinates to numbers; got "
            f"{type_name(coefficients)}"
        )
    try:
        factors = {tuple([index(i) for i in by]): float(c) for by, c in coefficients.items()}
    except (TypeError, ValueError):
        raise ArgumentError(
            f"{label}: coefficients must map tuples of ints, the coordinates of a derivative, to numbers; "
            f"got {coefficients!r}",
            fix="Count the elements of the arguments in order: {(0, 1): 2.0} is twice the derivative by the "
            "first and the second.",
        ) from None

    def checked(size: int) -> Mapping[tuple[int, ...], float]:
        for i in {i for by in factors for i in by}:
            if not 0 <= i < size:
                raise ArgumentError(
                    f"{label}: coordinates must be at least 0 and below {size}, the number of elements of "
                    f"the arguments; got {i}"
                )
        return factors

    return _operator(fun, argnums, "differential_operator", checked)


def _second_order(
    fun: Function,
    argnums: Argnums,
    kind: str,
    select: Callable[..., Any],
    with_gradient: bool = False,
) -> Function:
    """The function that computes `select(value, gradient, laplacian)`; messages name it `kind`."""
    differentiated = _differentiated(fun, argnums, kind)

    def wrapper(*args: PyTree, **kwargs: PyTree) -> PyTree:
        call = differentiated.trace(args, kwargs)
        traced, operands = call.traced, call.operands
        _check_outputs(traced, kind, fun)
        in_avals = select_where(traced.program.in_avals, call.active)
        size = sum(a.size for a in in_avals)
        first = 1 if with_gradient else 2
        rewrite = CollapsedJet(call.active, Curves(2, size), first, along_basis=True)
        outs = apply(rewrite, traced.program, operands)
        count, own = len(traced.program.outputs), len(traced.out_avals)
        terms = copy_transform_results(outs[count:], operands)
        results = traced.finish_call(operands, outs[:count])
        value = tree.unflatten(traced.out_tree, results)
        each = 2 if with_gradient else 1
        totals = [ops.mul(x, 2.0) for x in terms[each - 1 : own * each : each]]
        gradients = []
        for out, columns in zip(traced.out_avals, terms[: own * each : each], strict=True):
            if with_gradient:
                last = ops.moveaxis(columns, 0, len(out.shape))
                parts = split_axis(last, len(out.shape), [a.shape for a in in_avals])
                gradients.append(call.unflatten(parts, out.shape))
        gradient = tree.unflatten(traced.out_tree, gradients) if with_gradient else None
        return select(value, gradient, tree.unflatten(traced.out_tree, totals))

    return wrap_transform(wrapper, fun, kind)


def _operator(
    fun: Function,
    argnums: Argnums,
    kind: str,
    coefficients: Callable[[int], Mapping[tuple[int, ...], float]],
) -> Function:
    """The function that applies the operator that `coefficients` gives for a number of coordinates."""
    differentiated = _differentiated(fun, argnums, kind)

    def wrapper(*args: PyTree, **kwargs: PyTree) -> PyTree:
        call = differentiated.trace(args, kwargs)
        traced, operands = call.traced, call.operands
        _check_outputs(traced, kind, fun)
        in_avals = select_where(traced.program.in_avals, call.active)
        sizes = [a.size for a in in_avals]
        count = len(traced.program.outputs)
        by_order: dict[int, dict[tuple[int, ...], float]] = defaultdict(dict)
        for by, factor in coefficients(sum(sizes)).items():
            by_order[len(by)][by] = factor
        value_factor = by_order.pop(0, {}).get((), 0.0)
        outs = apply(None, traced.program, operands)
        own = outs[: len(traced.out_avals)]
        totals = [ops.mul(x, value_factor) if value_factor else ops.zeros_like(x) for x in own]
        for order, terms in by_order.items():
            curves, lines = polarized(terms, sum(sizes), order)
            parts = np.split(lines, np.cumsum(sizes)[:-1], axis=1)
            directions = [
                part.reshape(-1, *a.shape).astype(a.dtype)
                for part, a in zip(parts, in_avals, strict=True)
            ]
            rewrite = CollapsedJet(call.active, curves, order)
            found = apply(rewrite, traced.program, [*operands, *directions])[count:]
            totals = [ops.add(x, y) for x, y in zip(totals, found, strict=False)]
        traced.finish_call(operands, outs[:count])
        return tree.unflatten(traced.out_tree, copy_transform_results(totals, operands))

    return wrap_transform(wrapper, fun, kind)


def polarized(
    terms: Mapping[tuple[int, ...], float], size: int, order: int
) -> tuple[Curves, NumPyArray]:
    """The directions whose coefficients of `order` add up to the partial derivatives `terms`.

    Returns the curves, and an array with a row for each direction. By the polarization identity, the
    derivative by coordinates i of multiplicities a_i is 2**-order times the sum, over j_i from 0 to a_i, of
    (-1)**sum(j) * prod(comb(a_i, j_i)) times the Taylor coefficient along sum((a_i - 2 j_i) e_i).
    """
    weights: dict[tuple[tuple[int, int], ...], float] = defaultdict(float)
    for by, factor in terms.items():
        counts = Counter(by)
        for js in product(*[range(a + 1) for a in counts.values()]):
            steps = [(i, a - 2 * j) for (i, a), j in zip(counts.items(), js, strict=True)]
            line = sorted([(i, c) for i, c in steps if c])
            if not line:
                continue
            divisor = gcd(*[c for _, c in line]) * (1 if line[0][1] > 0 else -1)
            binomials = prod(comb(a, j) for a, j in zip(counts.values(), js, strict=True))
            weight = factor * (-1) ** sum(js) * binomials * (divisor / 2) ** order
            weights[tuple([(i, c // divisor) for i, c in line])] += weight
    entries = sorted([(w < 0, d, w) for d, w in weights.items() if w], key=lambda e: e[:2])
    lines = np.zeros((len(entries), size))
    for row, (_, direction, weight) in zip(lines, entries, strict=True):
        # A factor of a direction is its power in the coefficient; a sign is only if the order is odd.
        scale = abs(weight) ** (1 / order) * (-1 if weight < 0 and order % 2 else 1)
        for i, c in direction:
            row[i] = scale * c
    negative = 0 if order % 2 else sum(is_negative for is_negative, _, _ in entries)
    return Curves(order, len(entries), negative), lines


def _differentiated(fun: Function, argnums: Argnums, kind: str) -> DifferentiatedFunction:
    check_callable(fun, kind)
    return DifferentiatedFunction(
        fun,
        fun,
        kind,
        canonical_argnums(argnums, kind),
        lambda dtype: is_inexact(dtype) and not is_complex(dtype),
        "real floating point",
        "Convert it, or choose other argnums.",
        False,
        False,
    )


def _check_outputs(traced: TracedFunction, kind: str, fun: Function) -> None:
    """Raise GradientError unless all outputs are inexact."""
    avals = traced.out_avals
    for i, on in enumerate(inexact_mask(avals)):
        if not on:
            raise GradientError(
                f"{kind}({function_name(fun)}): outputs must be inexact; got {avals[i]!r}, number {i}, at "
                f"output{key_path_strings(traced.out_tree, avals)[i]}",
                fix="Return a float: integers and booleans have no derivative.",
            )
