"""`jvp` and `linearize`: derivatives along a direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from functx.core import tree
from functx.core.avals import ShapedArray
from functx.core.dtypes import is_inexact
from functx.core.errors import ArgumentError, GradientError, type_name
from functx.core.rewriting import apply, rewritten_alike
from functx.core.tracebacks import boundary
from functx.transforms.calls import (
    TracedCall,
    avals_of,
    check_callable,
    fitting,
    fresh,
    name_of,
    names_of,
    trace_call,
    transform_results,
)
from functx.transforms.forward_mode import Linearize, PushForward
from functx.transforms.grad import floats_for_ints
from functx.transforms.marks import (
    chosen,
    inexact_marks,
    is_float0,
    places_of,
    spread,
    tangent_tree,
    zeros_for_none,
)
from functx.transforms.parts import reached_from


@boundary
def jvp(
    fun: Callable[..., Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    has_aux: bool = False,
    strict: bool = False,
) -> Any:
    """`(fun(*primals), tangent)`: the output and its derivative along `tangents`.

    Tangents have the structure, shapes and dtypes of the primals; None stands for zero, as
    it does for integers, whose output tangents are None too. With `has_aux`, `fun` returns
    `(output, aux)` and the result ends with aux. `strict` refuses an output that does not
    depend on the primals, instead of giving it a zero tangent.

    Raises TreeError and TangentError for tangents unlike their primals.

    >>> import functx
    >>> value, slope = functx.jvp(lambda x: x ** 3, (2.0,), (1.0,))
    >>> float(value), float(slope)
    (8.0, 12.0)
    """
    check_callable(fun, "jvp")
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            raise ArgumentError(
                f"jvp({name_of(fun)}): {name} must be a tuple, an entry for each argument; "
                f"got {type_name(given)}",
                fix="Write functx.jvp(f, (x,), (t,)) for a function of one argument.",
            )
    leaves, in_tree = tree.flatten((tuple(primals), {}))
    what = f"jvp({name_of(fun)}): tangents"
    given = tree.flatten_as(in_tree, (tuple(tangents), {}), what, "primals")
    floats_for_ints(leaves, [i for i, t in enumerate(given) if t is not None and not is_float0(t)])
    leaves, in_tree = tree.as_words(leaves, in_tree)
    avals = avals_of(leaves, "jvp", fun, in_tree)
    tangent_leaves = _matching_tangents(fun, in_tree, avals, given, "jvp")
    varying = tuple([t is not None for t in tangent_leaves])
    positions = [i for i, v in enumerate(varying) if v]
    traced = trace_call(
        fun, in_tree, avals, "jvp", values=leaves, differentiated=positions, has_aux=has_aux
    )
    if strict:
        _check_dependence(traced, varying, fun)
    operands = [*leaves, *traced.captured, *[t for t in tangent_leaves if t is not None]]
    rewrite = PushForward(varying + (False,) * len(traced.captured))
    outs = apply(rewrite, traced.program, operands)
    count = len(traced.program.outputs)
    tangent = _out_tangent(traced, transform_results(outs[count:], operands), has_aux)
    out = tree.unflatten(traced.out_tree, traced.returned(operands, outs[:count]))
    return (out[0], tangent, out[1]) if has_aux else (out, tangent)


@boundary
def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """`(fun(*primals), push)`, where `push(*tangents)` is the output's tangent.

    `push` may be called many times; what it needs of the primals is computed once. With
    `has_aux`, `fun` returns `(output, aux)` and the result ends with aux.

    >>> import functx
    >>> value, push = functx.linearize(lambda x: x ** 3, 2.0)
    >>> float(push(1.0))
    12.0
    """
    check_callable(fun, "linearize")
    given = at_primals(fun, primals, "linearize", has_aux)
    in_tree, avals, traced = tree.structure((primals, {})), given.avals, given.traced
    inexact = inexact_marks(avals)
    values, tangent_program = rewritten_alike(Linearize(given.varying), traced.program)
    operands = [*given.leaves, *traced.captured]
    outs = apply(None, values, operands)
    count = len(traced.program.outputs)
    residuals = fresh(outs[count:], operands)

    def push(residuals: Any, *tangents: Any) -> Any:
        what = f"linearize({name_of(fun)}): tangents"
        found = tree.flatten_as(in_tree, (tangents, {}), what, "primals")
        found = _matching_tangents(fun, in_tree, avals, found, "linearize")
        filled = zeros_for_none(chosen(found, inexact), chosen(avals, inexact))
        found = apply(None, tangent_program, [*filled, *residuals])
        found = transform_results(found, [*filled, *residuals])
        return _out_tangent(traced, found, has_aux)

    out = tree.unflatten(traced.out_tree, traced.returned(operands, outs[:count]))
    return (
        (out[0], tree.Partial(push, residuals), out[1])
        if has_aux
        else (
            out,
            tree.Partial(push, residuals),
        )
    )


class AtPrimals(NamedTuple):
    """A function traced at primals, to be differentiated in all that are inexact."""

    leaves: list[Any]
    in_tree: Any
    avals: list[ShapedArray]
    traced: TracedCall

    @property
    def varying(self) -> tuple[bool, ...]:
        """The inputs of the program that it is differentiated in."""
        return (*inexact_marks(self.avals), *[False] * len(self.traced.captured))


def at_primals(
    fun: Callable[..., Any], primals: tuple[Any, ...], kind: str, has_aux: bool
) -> AtPrimals:
    """`fun` traced at `primals`, for the transform `kind`."""
    leaves, in_tree = tree.flatten_words((primals, {}))
    avals = avals_of(leaves, kind, fun, in_tree)
    inexact = places_of(inexact_marks(avals))
    traced = trace_call(
        fun, in_tree, avals, kind, values=leaves, differentiated=inexact, has_aux=has_aux
    )
    return AtPrimals(leaves, in_tree, avals, traced)


def _out_tangent(traced: TracedCall, tangents: Sequence[Any], has_aux: bool) -> Any:
    """The tangent of the output, aux left out, from the tangents of all inexact results."""
    own = traced.own_tree(has_aux)
    found = spread(tangents, inexact_marks(traced.out_avals))
    return tangent_tree(own, traced.out_avals[: own.num_leaves], found[: own.num_leaves])


def _matching_tangents(
    fun: Callable[..., Any],
    in_tree: Any,
    avals: Sequence[Any],
    tangents: Sequence[Any],
    kind: str,
) -> list[Any]:
    """The tangent of each primal leaf, None where it is zero."""
    must = f"{kind}({name_of(fun)}): a tangent must have the shape and dtype of its primal"

    def problem(i: int) -> tuple[str, str]:
        return must, f"`{names_of(fun, in_tree, avals)()[i]}`"

    return [
        fitting(t, aval, partial(problem, i)) if t is not None and is_inexact(aval.dtype) else None
        for i, (t, aval) in enumerate(zip(tangents, avals, strict=True))
    ]


def _check_dependence(traced: TracedCall, varying: Sequence[bool], fun: Callable[..., Any]) -> None:
    program = traced.program
    own = program.outputs[: len(traced.out_avals)]
    moving = chosen(program.inputs[: len(varying)], varying)
    reached = reached_from(moving, program.equations)
    for i, atom in enumerate(own):
        if atom not in reached:
            raise GradientError(
                f"jvp({name_of(fun)}): with strict=True every output must depend on the primals; "
                f"got an output, number {i}, that does not: {atom.aval!r}"
            )
