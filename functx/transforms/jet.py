"""`jet` and `taylor`: Taylor mode, derivatives of any order along a curve."""

from __future__ import annotations

from collections.abc import Sequence
from math import factorial
from operator import index
from typing import Any

from functx import ops
from functx.core import tree
from functx.core.errors import ArgumentError, TangentError, ValueRangeError, type_name
from functx.core.masks import inexact_mask
from functx.core.rewriting import apply
from functx.core.tracebacks import api_boundary
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Function, PyTree, Tangent
from functx.transforms.aliasing import copy_transform_results
from functx.transforms.argument_names import check_callable, function_name
from functx.transforms.coefficients import Curves, scaled_value
from functx.transforms.grad import convert_ints_to_floats
from functx.transforms.jet_rewrite import JetRewrite, groups_where
from functx.transforms.jvp import check_tangent
from functx.transforms.tangents import flatten_tangents
from functx.transforms.tracing_api import avals_of, trace_function


@api_boundary
def jet(
    fun: Function,
    primals: Sequence[PyTree],
    series: Sequence[Sequence[PyTree]],
    factorial_scaled: bool = True,
) -> tuple[PyTree, PyTree]:
    """`(fun(*primals), terms)`: the output and its derivatives along a curve, of any order.

    Argument i moves along the curve whose value at 0 is `primals[i]` and whose derivatives there are
    `series[i]`, the first first; so `series[i]` holds as many pytrees like `primals[i]` as there are
    orders. None stands for zero, and for the terms of integers. `terms` has the structure of the output,
    with a list of its derivatives along the curve, one for each order, in place of each array.

    Terms are derivatives, as in `jax.experimental.jet.jet`; with `factorial_scaled=False` they are Taylor
    coefficients, derivative k divided by k!.

    Raises ArgumentError and TangentError for series unlike their primals.

    >>> import functx
    >>> value, terms = functx.jet(lambda x: x ** 3, (2.0,), ([1.0, 0.0, 0.0],))
    >>> float(value), [float(term) for term in terms]
    (8.0, [12.0, 12.0, 6.0])
    """
    check_callable(fun, "jet")
    label = f"jet({function_name(fun)})"
    order = _check_series(label, primals, series)
    leaves, in_tree = tree.flatten((tuple(primals), {}))
    terms = [
        flatten_tangents(
            in_tree, (tuple([s[k] for s in series]), {}), f"{label}: series", "primals"
        )
        for k in range(order)
    ]
    by_leaf = [[term[i] for term in terms] for i in range(len(leaves))]
    convert_ints_to_floats(
        leaves, [i for i, own in enumerate(by_leaf) if any(t is not None for t in own)]
    )
    leaves, in_tree = tree.keys_to_key_data(leaves, in_tree)
    avals = avals_of(leaves, "jet", fun, in_tree)
    coefficients = [
        [
            _coefficient(label, aval, t, k, factorial_scaled) if is_inexact(aval.dtype) else None
            for k, t in enumerate(own, 1)
        ]
        for aval, own in zip(avals, by_leaf, strict=True)
    ]
    active = tuple([any(c is not None for c in own) for own in coefficients])
    traced = trace_function(fun, in_tree, avals, "jet", values=leaves, active=active)
    given = [tuple([c is not None for c in own]) for own in coefficients]
    given += [()] * len(traced.captured)
    rewrite = JetRewrite(Curves(order), order, tuple(given))
    values = [c for own in coefficients for c in own if c is not None]
    operands = [*leaves, *traced.captured, *values]
    outs = apply(rewrite, traced.program, operands)
    count = len(traced.program.outputs)
    mask = inexact_mask(traced.program.out_avals)
    found = groups_where(copy_transform_results(outs[count:], operands), order, mask)
    factors = [float(factorial(k)) if factorial_scaled else 1.0 for k in range(order + 1)]
    scaled = [
        [
            ops.zeros_like(aval) if c is None else scaled_value(c, factors[k])
            for k, c in enumerate(own, 1)
        ]
        for own, aval in zip(found, traced.program.out_avals, strict=True)
    ]
    results = traced.finish_call(operands, outs[:count])
    out = tree.unflatten(traced.out_tree, results)
    return out, tree.unflatten(traced.out_tree, scaled[: len(traced.out_avals)])


def taylor(fun: Function, order: int) -> Function:
    """The function of `(x, v)` that gives the Taylor coefficients of `fun(x + t * v)` in t at 0.

    It returns a list of pytrees like the output: coefficients 0 to `order`. `x` and `v` are pytrees of
    one structure.

    Raises ValueRangeError for an order that is no non-negative int.

    >>> import functx
    >>> exp = functx.numpy.exp
    >>> [round(float(c), 4) for c in functx.taylor(exp, 4)(0.0, 1.0)]
    [1.0, 1.0, 0.5, 0.1667, 0.0417]
    """
    check_callable(fun, "taylor")
    if isinstance(order, bool) or not hasattr(type(order), "__index__") or index(order) < 0:
        raise ValueRangeError(
            f"taylor({function_name(fun)}): order must be a non-negative int; got {order!r}"
        )
    order = index(order)

    def wrapper(x: PyTree, v: PyTree) -> list[PyTree]:
        zero = tree.map(lambda _: None, x)
        series = [v, *[zero] * (order - 1)][:order]
        out, terms = jet(fun, (x,), (series,), factorial_scaled=False)
        structure = tree.structure(out)
        lists = structure.flatten_up_to(terms)
        return [out, *[tree.unflatten(structure, [own[k] for own in lists]) for k in range(order)]]

    wrapper.__name__ = wrapper.__qualname__ = f"taylor_{function_name(fun)}"
    return api_boundary(wrapper)


def _check_series(label: str, primals: PyTree, series: PyTree) -> int:
    """The common number of terms of the series of all primals."""
    for name, values in (("primals", primals), ("series", series)):
        if not isinstance(values, (tuple, list)):
            raise ArgumentError(
                f"{label}: {name} must be a tuple, an entry for each argument; got {type_name(values)}",
                fix="Write functx.jet(f, (x,), ([v, w],)) for a function of one argument.",
            )
    if len(primals) != len(series):
        raise TangentError(
            f"{label}: series must have an entry for each of the primals; got {len(series)} for "
            f"{len(primals)} primals"
        )
    lengths = [len(terms) for terms in series]
    if len(set(lengths)) > 1:
        raise TangentError(
            f"{label}: the series of all arguments must have one length; got lengths {lengths}",
            fix="Fill the shorter ones up with None, which stands for zero.",
        )
    return lengths[0] if lengths else 0


def _coefficient(
    label: str, aval: ShapedArray, term: Any, order: int, is_derivative: bool
) -> Tangent:
    """The Taylor coefficient for a term of the series of a value of type `aval`."""
    if term is None:
        return None
    must = f"{label}: a term must have the shape and dtype of its primal"
    given = check_tangent(term, aval, lambda: (must, f"term {order}"))
    value = ops.convert_element_type(given, aval.dtype, aval.weak_type)
    return scaled_value(value, 1 / factorial(order)) if is_derivative else value
