"""`jvp`, `linearize` and `vjp`: derivatives along tangents and cotangents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from functx import ops
from functx.core import tree
from functx.core.backend import backend
from functx.core.errors import (
    ArgumentError,
    GradientError,
    TangentError,
    WrapperTangentError,
    type_name,
)
from functx.core.masks import (
    inexact_mask,
    is_float0,
    scatter_where,
    select_where,
)
from functx.core.rewriting import apply, rewrite_by_structure
from functx.core.tracebacks import api_boundary
from functx.core.tracer import aval_of, current_builder
from functx.core.types import ShapedArray, is_complex, is_inexact
from functx.core.typing import Avals, Flags, Function, PyTree, Tangent, Tangents, Value, Values
from functx.core.wrappers import is_wrapper
from functx.transforms.aliasing import copy_if_aliased, copy_transform_results
from functx.transforms.argument_names import (
    argument_names,
    check_callable,
    function_name,
    key_path_strings,
)
from functx.transforms.dce import dependents_of
from functx.transforms.forward_mode import JVPRewrite, Linearize
from functx.transforms.grad import convert_ints_to_floats
from functx.transforms.replayed_draws import num_mapped_levels, replay_draws
from functx.transforms.tangents import flatten_tangents, unflatten_tangents
from functx.transforms.tracing_api import TracedFunction, avals_of, trace_function


@api_boundary
def jvp(
    fun: Function,
    primals: Sequence[PyTree],
    tangents: Sequence[PyTree],
    has_aux: bool = False,
    strict: bool = False,
) -> PyTree:
    """`(fun(*primals), tangent)`: the output and its derivative along `tangents`.

    Tangents have the structure, shapes and dtypes of the primals; None stands for zero, and for the
    tangents of integers. With `has_aux`, `fun` returns `(output, aux)` and the result ends with
    aux. `strict` refuses an output that does not depend on the primals, instead of giving it a zero
    tangent.

    Raises TreeError and TangentError for tangents unlike their primals.

    >>> import functx
    >>> value, slope = functx.jvp(lambda x: x ** 3, (2.0,), (1.0,))
    >>> float(value), float(slope)
    (8.0, 12.0)
    """
    check_callable(fun, "jvp")
    for name, values in (("primals", primals), ("tangents", tangents)):
        if not isinstance(values, (tuple, list)):
            raise ArgumentError(
                f"jvp({function_name(fun)}): {name} must be a tuple, an entry for each argument; "
                f"got {type_name(values)}",
                fix="Write functx.jvp(f, (x,), (t,)) for a function of one argument.",
            )
    leaves, in_tree = tree.flatten((tuple(primals), {}))
    label = f"jvp({function_name(fun)}): tangents"
    tangent_leaves = flatten_tangents(in_tree, (tuple(tangents), {}), label, "primals")
    convert_ints_to_floats(
        leaves, [i for i, t in enumerate(tangent_leaves) if t is not None and not is_float0(t)]
    )
    leaves, in_tree = tree.keys_to_key_data(leaves, in_tree)
    avals = avals_of(leaves, "jvp", fun, in_tree)
    tangent_leaves = _check_tangents(fun, in_tree, avals, tangent_leaves, "jvp")
    active = tuple([t is not None for t in tangent_leaves])
    traced = trace_function(
        fun, in_tree, avals, "jvp", values=leaves, active=active, has_aux=has_aux
    )
    if strict:
        _check_outputs_depend(traced, active, fun)
    operands = [*leaves, *traced.captured, *[t for t in tangent_leaves if t is not None]]
    rewrite = JVPRewrite(active + (False,) * len(traced.captured))
    outs = apply(rewrite, traced.program, operands)
    count = len(traced.program.outputs)
    tangent = _output_tangent(traced, copy_transform_results(outs[count:], operands), has_aux)
    out = tree.unflatten(traced.out_tree, traced.finish_call(operands, outs[:count]))
    return (out[0], tangent, out[1]) if has_aux else (out, tangent)


@api_boundary
def linearize(fun: Function, *primals: PyTree, has_aux: bool = False) -> PyTree:
    """`(fun(*primals), push)`, where `push(*tangents)` is the tangent of the output.

    `push` may be called many times; the residuals are computed once. With `has_aux`, `fun` returns
    `(output, aux)` and the result ends with aux.

    >>> import functx
    >>> value, push = functx.linearize(lambda x: x ** 3, 2.0)
    >>> float(push(1.0))
    12.0
    """
    check_callable(fun, "linearize")
    at_primals = trace_at_primals(fun, primals, "linearize", has_aux)
    in_tree, avals, traced = tree.structure((primals, {})), at_primals.avals, at_primals.traced
    inexact = inexact_mask(avals)
    values, tangent_program = rewrite_by_structure(Linearize(at_primals.active), traced.program)
    operands = [*at_primals.leaves, *traced.captured]
    outs = apply(None, values, operands)
    levels = num_mapped_levels()
    count = len(traced.program.outputs)
    residuals = copy_if_aliased(outs[count:], operands)

    def push(residuals: Values, *tangents: Value) -> PyTree:
        label = f"linearize({function_name(fun)}): tangents"
        leaves = flatten_tangents(in_tree, (tangents, {}), label, "primals")
        leaves = _check_tangents(fun, in_tree, avals, leaves, "linearize")
        filled = ops.instantiate_zeros(select_where(leaves, inexact), select_where(avals, inexact))
        program = replay_draws(tangent_program, levels)
        outs = apply(None, program, [*filled, *residuals])
        outs = copy_transform_results(outs, [*filled, *residuals])
        return _output_tangent(traced, outs, has_aux)

    out = tree.unflatten(traced.out_tree, traced.finish_call(operands, outs[:count]))
    linear = tree.Partial(push, residuals)
    return (out[0], linear, out[1]) if has_aux else (out, linear)


class TracedAtPrimals(NamedTuple):
    """A function traced at primals, to be differentiated in all inexact leaves."""

    leaves: list[Value]
    in_tree: tree.TreeDef
    avals: list[ShapedArray]
    traced: TracedFunction

    @property
    def active(self) -> tuple[bool, ...]:
        """The mask of the inputs of the program that it is differentiated in."""
        return (*inexact_mask(self.avals), *[False] * len(self.traced.captured))


def trace_at_primals(
    fun: Function, primals: tuple[Any, ...], kind: str, has_aux: bool
) -> TracedAtPrimals:
    """`fun` traced at `primals`; messages name the transform `kind`."""
    leaves, in_tree = tree.flatten_with_key_data((primals, {}))
    avals = avals_of(leaves, kind, fun, in_tree)
    active = inexact_mask(avals)
    traced = trace_function(
        fun, in_tree, avals, kind, values=leaves, active=active, has_aux=has_aux
    )
    return TracedAtPrimals(leaves, in_tree, avals, traced)


def _output_tangent(traced: TracedFunction, tangents: Tangents, has_aux: bool) -> PyTree:
    """The tangent of the output without aux, from the tangents of all inexact leaves."""
    out_tree = traced.tree_without_aux(has_aux)
    leaves = scatter_where(tangents, inexact_mask(traced.out_avals))
    return unflatten_tangents(
        out_tree, traced.out_avals[: out_tree.num_leaves], leaves[: out_tree.num_leaves]
    )


def _check_tangents(
    fun: Function, in_tree: tree.TreeDef, avals: Avals, tangents: Tangents, kind: str
) -> list[Tangent]:
    """The tangent of each primal leaf, None for zero and for integers."""
    must = f"{kind}({function_name(fun)}): a tangent must have the shape and dtype of its primal"

    def problem(i: int) -> tuple[str, str]:
        return must, f"`{argument_names(fun, in_tree, avals)()[i]}`"

    return [
        check_tangent(t, aval, partial(problem, i))
        if t is not None and is_inexact(aval.dtype)
        else None
        for i, (t, aval) in enumerate(zip(tangents, avals, strict=True))
    ]


def _check_outputs_depend(traced: TracedFunction, varying: Flags, fun: Function) -> None:
    program = traced.program
    outputs = program.outputs[: len(traced.out_avals)]
    primals = select_where(program.inputs[: len(varying)], varying)
    dependents = dependents_of(primals, program.equations)
    for i, atom in enumerate(outputs):
        if atom not in dependents:
            raise GradientError(
                f"jvp({function_name(fun)}): with strict=True every output must depend on the primals; "
                f"got an output, number {i}, that does not: {atom.aval!r}"
            )


@api_boundary
def vjp(fun: Function, *primals: PyTree, has_aux: bool = False) -> PyTree:
    """`(fun(*primals), pullback)`, where `pullback(ct)` is a tuple of cotangents of the primals.

    `ct` has the structure, shapes and dtypes of the output; None stands for zero. For integers it
    may hold anything, such as None or zeros of dtype `float0`. `pullback` may be called many times,
    and is a pytree of the residuals. The cotangents of integer primals are None. With `has_aux`,
    `fun` returns `(output, aux)` and the result ends with aux.

    The pullback raises TreeError and TangentError for a cotangent unlike the output.

    >>> import functx
    >>> value, pullback = functx.vjp(lambda x, y: x * y, 2.0, 3.0)
    >>> [float(ct) for ct in pullback(1.0)]
    [3.0, 2.0]
    """
    check_callable(fun, "vjp")
    at_primals = trace_at_primals(fun, primals, "vjp", has_aux)
    in_tree, avals, traced = at_primals.in_tree, at_primals.avals, at_primals.traced
    out_avals = traced.out_avals
    out_tree = traced.tree_without_aux(has_aux)
    own = out_tree.num_leaves
    forward, backward = rewrite_by_structure(backend.vjp_split(at_primals.active), traced.program)
    operands = [*at_primals.leaves, *traced.captured]
    outs = apply(None, forward, operands)
    levels = num_mapped_levels()
    count = len(traced.program.outputs)

    def pullback(residuals: Values, *ct: Value) -> PyTree:
        if len(ct) != 1:
            raise ArgumentError(
                f"pullback of {function_name(fun)}: pass one cotangent, a pytree like the output; "
                f"got {len(ct)} arguments"
            )
        cts = _check_cotangents(fun, out_tree, out_avals, ct[0])
        cts += [ops.zeros_like(a) for a in traced.program.out_avals[own:] if is_inexact(a.dtype)]
        pulled = apply(None, replay_draws(backward, levels), [*cts, *residuals])
        found = scatter_where(
            copy_transform_results(pulled, [*cts, *residuals]), inexact_mask(avals)
        )
        args, _ = unflatten_tangents(in_tree, avals, found)
        return args

    pull = tree.Partial(api_boundary(pullback), copy_if_aliased(outs[count:], operands))
    out = tree.unflatten(traced.out_tree, traced.finish_call(operands, outs[:count]))
    return (out[0], pull, out[1]) if has_aux else (out, pull)


def _check_cotangents(
    fun: Function, out_tree: tree.TreeDef, avals: Avals, ct: PyTree
) -> list[Value]:
    """The cotangents of the inexact outputs, with zeros for None."""
    label = f"pullback of {function_name(fun)}"
    leaves = flatten_tangents(out_tree, ct, f"{label}: the cotangent", "the output")
    must = f"{label}: a cotangent must have the shape and dtype of its output"

    def output(i: int) -> tuple[str, str]:
        return must, f"output{key_path_strings(out_tree, avals[: len(leaves)])[i]}"

    return [
        ops.zeros_like(aval) if x is None else check_tangent(x, aval, partial(output, i))
        for i, (x, aval) in enumerate(zip(leaves, avals, strict=False))
        if is_inexact(aval.dtype)
    ]


def check_tangent(x: PyTree, aval: ShapedArray, problem: Callable[[], tuple[str, str]]) -> Value:
    """`x` as a tangent or cotangent of `aval`; TangentError if it has another shape or dtype.

    `problem` gives the requirement and the name of the value, for the message. A weak dtype, that
    of a Python number, fits any other.
    """
    if type(x) is int:
        x = float(x)
    try:
        given = aval_of(x)
    except ArgumentError:
        must, name = problem()
        raise TangentError(f"{must}; got {type_name(x)} for {name}: {aval!r}") from None
    if is_wrapper(x):
        must, name = problem()
        raise WrapperTangentError(
            f"{must}; got {type_name(x)}, an array made of arrays, for {name}: {aval!r}, which is none",
            fix="Pass the array that it stands for.",
        )
    fits = given.weak_type and is_complex(given.dtype) <= is_complex(aval.dtype)
    if given.shape != aval.shape or (given.dtype != aval.dtype and not fits):
        must, name = problem()
        raise TangentError(
            f"{must}; got {given!r} for {name}: {aval!r}",
            fix="Pass an array like it, as functx.numpy.ones_like gives one, or None for zero.",
        )
    if given is aval or (given.dtype == aval.dtype and current_builder.get() is None):
        return x
    return ops.convert_element_type(x, aval.dtype, aval.weak_type)
