"""`jvp` and `linearize`: derivatives along a direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
)
from functx.transforms.forward_mode import Linearize, PushForward
from functx.transforms.grad import floats_for_ints
from functx.transforms.marks import chosen, inexact_marks, places_of, spread, zeros_for_none
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
                f"got {type_name(given)}"
            )
    leaves, in_tree = tree.flatten((tuple(primals), {}))
    floats_for_ints(leaves, range(len(leaves)))
    avals = avals_of(leaves, "jvp", fun, in_tree)
    tangent_leaves = _matching_tangents(fun, in_tree, avals, (tuple(tangents), {}), "jvp")
    varying = tuple([t is not None for t in tangent_leaves])
    positions = [i for i, v in enumerate(varying) if v]
    traced = trace_call(
        fun, in_tree, avals, "jvp", values=leaves, differentiated=positions, has_aux=has_aux
    )
    check_outputs(traced, "jvp", fun)
    if strict:
        _check_dependence(traced, varying, fun)
    operands = [*leaves, *traced.captured, *[t for t in tangent_leaves if t is not None]]
    rewrite = PushForward(varying + (False,) * len(traced.captured))
    outs = apply(rewrite, traced.program, operands)
    count = len(traced.program.outputs)
    out_tangents = _with_nones(traced, fresh(outs[count:], operands))
    out = tree.unflatten(traced.out_tree, traced.returned(operands, outs[:count]))
    tangent = tree.unflatten(traced.out_tree, out_tangents)
    return (out[0], tangent[0], out[1]) if has_aux else (out, tangent)


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
    in_tree, avals, traced = given.in_tree, given.avals, given.traced
    inexact = inexact_marks(avals)
    values, tangent_program = rewritten_alike(Linearize(given.varying), traced.program)
    operands = [*given.leaves, *traced.captured]
    outs = apply(None, values, operands)
    count = len(traced.program.outputs)
    residuals = fresh(outs[count:], operands)

    def push(residuals: Any, *tangents: Any) -> Any:
        found = _matching_tangents(fun, in_tree, avals, (tangents, {}), "linearize")
        filled = zeros_for_none(chosen(found, inexact), chosen(avals, inexact))
        found = apply(None, tangent_program, [*filled, *residuals])
        found = fresh(found, [*filled, *residuals])
        result = tree.unflatten(traced.out_tree, _with_nones(traced, found))
        return result[0] if has_aux else result

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
    """`fun` traced at `primals`, for the transform `kind`.

    Raises GradientError for a function that returns no arrays.
    """
    leaves, in_tree = tree.flatten((primals, {}))
    floats_for_ints(leaves, range(len(leaves)))
    avals = avals_of(leaves, kind, fun, in_tree)
    inexact = places_of(inexact_marks(avals))
    traced = trace_call(
        fun, in_tree, avals, kind, values=leaves, differentiated=inexact, has_aux=has_aux
    )
    check_outputs(traced, kind, fun)
    return AtPrimals(leaves, in_tree, avals, traced)


def check_outputs(traced: TracedCall, kind: str, fun: Callable[..., Any]) -> None:
    """Raise GradientError for a function that returns no arrays."""
    if not traced.program.outputs:
        raise GradientError(
            f"{kind}({name_of(fun)}): the function must return at least one array; "
            f"got {tree.unflatten(traced.out_tree, [])!r}"
        )


def _with_nones(traced: TracedCall, tangents: Sequence[Any]) -> list[Any]:
    return spread(tangents, inexact_marks(traced.out_avals))


def _matching_tangents(
    fun: Callable[..., Any], in_tree: Any, avals: Sequence[Any], tangents: Any, kind: str
) -> list[Any]:
    """The tangent of each primal leaf, None where it is zero."""
    leaves = tree.flatten_as(in_tree, tangents, f"{kind}({name_of(fun)}): tangents", "primals")
    return [
        check_like(t, aval, kind, fun, in_tree, i)
        for i, (t, aval) in enumerate(zip(leaves, avals, strict=True))
    ]


def check_like(t: Any, aval: Any, kind: str, fun: Callable[..., Any], in_tree: Any, i: int) -> Any:
    if t is None or not is_inexact(aval.dtype):
        return None
    must = f"{kind}({name_of(fun)}): a tangent must have the shape and dtype of its primal"
    return fitting(t, aval, lambda: (must, f"`{names_of(fun, in_tree)()[i]}`"))


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
