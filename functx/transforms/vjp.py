"""`vjp`: the output of a function, and the function that pulls cotangents back through it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from functx.core import tree
from functx.core.dtypes import is_inexact
from functx.core.errors import ArgumentError, GradientError, TreeError
from functx.core.rewriting import apply, rewritten_alike
from functx.ops.shaping import zeros_like
from functx.transforms.calls import avals_of, check_callable, fitting, fresh, name_of, trace_call
from functx.transforms.grad import floats_for_ints
from functx.transforms.jvp import check_outputs
from functx.transforms.reverse_mode import SplitVJP


def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """`(fun(*primals), pullback)`, where `pullback(ct)` is a tuple of cotangents of the primals.

    `ct` has the structure, shapes and dtypes of the output, with None (or anything) for
    integers and None for zero. `pullback` may be called many times, and is a pytree of what
    it needs of the primals. Integer primals get None. With `has_aux`, `fun` returns
    `(output, aux)` and the result ends with aux.

    Raises GradientError for a function without inexact outputs; the pullback raises
    TreeError and TangentError for a cotangent unlike the output.

    >>> import functx
    >>> value, pullback = functx.vjp(lambda x, y: x * y, 2.0, 3.0)
    >>> [float(ct) for ct in pullback(1.0)]
    [3.0, 2.0]
    """
    check_callable(fun, "vjp")
    leaves, in_tree = tree.flatten((primals, {}))
    floats_for_ints(leaves, range(len(leaves)))
    avals = avals_of(leaves, "vjp", fun, in_tree)
    chosen = [i for i, aval in enumerate(avals) if is_inexact(aval.dtype)]
    traced = trace_call(
        fun, in_tree, avals, "vjp", values=leaves, differentiated=chosen, has_aux=has_aux
    )
    check_outputs(traced, "vjp", fun)
    out_avals = traced.out_avals
    out_tree = traced.out_tree.children()[0] if has_aux else traced.out_tree
    own = out_tree.num_leaves
    if own and not any(is_inexact(a.dtype) for a in out_avals[:own]):
        raise GradientError(
            f"vjp({name_of(fun)}): an output must be inexact to have cotangents; got {out_avals[0]!r}"
        )
    active = tuple([i in set(chosen) for i in range(len(traced.program.inputs))])
    forward, backward = rewritten_alike(SplitVJP(active), traced.program)
    operands = [*leaves, *traced.captured]
    outs = apply(None, forward, operands)
    count = len(traced.program.outputs)

    def pullback(residuals: Any, *given: Any) -> Any:
        if len(given) != 1:
            raise ArgumentError(
                f"pullback of {name_of(fun)}: pass one cotangent, a pytree like the output; "
                f"got {len(given)} arguments"
            )
        cts = _matching_cotangents(fun, out_tree, out_avals, given[0])
        cts += [zeros_like(a) for a in traced.program.out_avals[own:] if is_inexact(a.dtype)]
        pulled = apply(None, backward, [*cts, *residuals])
        found = dict(zip(chosen, fresh(pulled, [*cts, *residuals]), strict=True))
        args, _ = tree.unflatten(in_tree, [found.get(i) for i in range(len(avals))])
        return args

    pull = tree.Partial(pullback, fresh(outs[count:], operands))
    out = tree.unflatten(traced.out_tree, traced.returned(operands, outs[:count]))
    return (out[0], pull, out[1]) if has_aux else (out, pull)


def _matching_cotangents(fun: Callable[..., Any], out_tree: Any, avals: Any, ct: Any) -> list[Any]:
    """The cotangents of the inexact outputs, zeros for None."""
    try:
        leaves = out_tree.flatten_up_to(ct)
    except ValueError:
        raise TreeError(
            f"pullback of {name_of(fun)}: the cotangent must have the structure of the output; "
            "got another one",
            f"expected {out_tree}",
            f"got      {tree.structure(ct)}",
        ) from None
    must = f"pullback of {name_of(fun)}: a cotangent must have the shape and dtype of its output"

    def output(i: int) -> tuple[str, str]:
        path, _ = tree.leaves_with_path(tree.unflatten(out_tree, range(len(leaves))))[i]
        return must, f"output{tree.path_text(path)}"

    return [
        zeros_like(aval) if x is None else fitting(x, aval, partial(output, i))
        for i, (x, aval) in enumerate(zip(leaves, avals, strict=False))
        if is_inexact(aval.dtype)
    ]
