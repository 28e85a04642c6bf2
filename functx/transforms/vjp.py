"""`vjp`: the output of a function, and the function that pulls cotangents back through it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from functx.core import tree
from functx.core.dtypes import is_inexact
from functx.core.errors import ArgumentError
from functx.core.rewriting import apply, rewrite_by_structure
from functx.core.tracebacks import api_boundary
from functx.ops.shaping import zeros_like
from functx.transforms.calls import (
    check_callable,
    check_tangent,
    copy_if_aliased,
    copy_transform_results,
    function_name,
    key_path_strings,
)
from functx.transforms.jvp import trace_at_primals
from functx.transforms.marks import inexact_mask, scatter_where, unflatten_tangents
from functx.transforms.planning.gradients import vjp_split


@api_boundary
def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """`(fun(*primals), pullback)`, where `pullback(ct)` is a tuple of cotangents of the primals.

    `ct` has the structure, shapes and dtypes of the output, with None, zeros of dtype `float0`
    (or anything) for integers, and None for zero. `pullback` may be called many times, and is a pytree of what
    it needs of the primals. Integer primals get None. With `has_aux`, `fun` returns
    `(output, aux)` and the result ends with aux.

    The pullback raises TreeError and TangentError for a cotangent unlike the output.

    >>> import functx
    >>> value, pullback = functx.vjp(lambda x, y: x * y, 2.0, 3.0)
    >>> [float(ct) for ct in pullback(1.0)]
    [3.0, 2.0]
    """
    check_callable(fun, "vjp")
    given = trace_at_primals(fun, primals, "vjp", has_aux)
    in_tree, avals, traced = given.in_tree, given.avals, given.traced
    out_avals = traced.out_avals
    out_tree = traced.tree_without_aux(has_aux)
    own = out_tree.num_leaves
    forward, backward = rewrite_by_structure(vjp_split(given.varying), traced.program)
    operands = [*given.leaves, *traced.captured]
    outs = apply(None, forward, operands)
    count = len(traced.program.outputs)

    def pullback(residuals: Any, *ct: Any) -> Any:
        if len(ct) != 1:
            raise ArgumentError(
                f"pullback of {function_name(fun)}: pass one cotangent, a pytree like the output; "
                f"got {len(ct)} arguments"
            )
        cts = _check_cotangents(fun, out_tree, out_avals, ct[0])
        cts += [zeros_like(a) for a in traced.program.out_avals[own:] if is_inexact(a.dtype)]
        pulled = apply(None, backward, [*cts, *residuals])
        found = scatter_where(
            copy_transform_results(pulled, [*cts, *residuals]), inexact_mask(avals)
        )
        args, _ = unflatten_tangents(in_tree, avals, found)
        return args

    pull = tree.Partial(api_boundary(pullback), copy_if_aliased(outs[count:], operands))
    out = tree.unflatten(traced.out_tree, traced.finish_call(operands, outs[:count]))
    return (out[0], pull, out[1]) if has_aux else (out, pull)


def _check_cotangents(fun: Callable[..., Any], out_tree: Any, avals: Any, ct: Any) -> list[Any]:
    """The cotangents of the inexact outputs, zeros for None."""
    what = f"pullback of {function_name(fun)}"
    leaves = tree.flatten_up_to(out_tree, ct, f"{what}: the cotangent", "the output")
    must = f"{what}: a cotangent must have the shape and dtype of its output"

    def output(i: int) -> tuple[str, str]:
        return must, f"output{key_path_strings(out_tree, avals[: len(leaves)])[i]}"

    return [
        zeros_like(aval) if x is None else check_tangent(x, aval, partial(output, i))
        for i, (x, aval) in enumerate(zip(leaves, avals, strict=False))
        if is_inexact(aval.dtype)
    ]
