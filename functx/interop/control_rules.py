"""Translations of JAX primitives with jaxprs, callbacks or named axes as parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, primitives
from jax.extend.core import Primitive as JaxPrimitive

from functx import ops
from functx.core import tree
from functx.core.named_axes import (
    Axis,
    bind_named_axes,
    bound_axes,
    canonical_axis_names,
    named_axis_size,
)
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.rewriting import Record
from functx.core.tracer import aval_of
from functx.core.tracing import trace, trace_closed
from functx.core.types import ShapedArray
from functx.core.typing import Function, Value, Values
from functx.custom.checkpoint import Checkpoint
from functx.interop.jaxprs import (
    JaxprEqn,
    JaxprLike,
    aval_from_jax,
    count_equations,
    int_tuple,
    jax_avals,
)
from functx.interop.translation import (
    Translated,
    TranslatedJaxpr,
    register_translation,
    translate_jaxpr,
)
from functx.lowering.functx_call import functx_call
from functx.lowering.jax_bridge import ordered_effect
from functx.lowering.shard_map import ShardMap, dim_specs_of
from functx.transforms.control.cond import Cond
from functx.transforms.control.scan import Scan
from functx.transforms.control.while_loop import While
from functx.transforms.dce import with_io

MAX_INLINED_EQUATIONS = 24
"""A jitted function of so many equations or fewer is inlined; a larger one becomes a `translate_call`."""


def close_jaxpr(jaxpr: JaxprLike) -> JaxprLike:
    """`jaxpr` as a closed jaxpr; an open one has no constants."""
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def avals_of(args: Values) -> list[ShapedArray]:
    return [aval_of(x) for x in args]


@register_translation("jit", "pjit", keys=True)
def translate_jit(eqn: JaxprEqn, *args: Value) -> Translated:
    params = eqn.params
    inner = translate_jaxpr(params["jaxpr"], avals_of(args), params["name"])
    small = params["inline"] or count_equations(params["jaxpr"].jaxpr) <= MAX_INLINED_EQUATIONS
    return inner(args) if small else inner.bind_call(args)


@register_translation("closed_call", "core_call", "call", keys=True)
def translate_call(eqn: JaxprEqn, *args: Value) -> Translated:
    jaxpr = eqn.params.get("call_jaxpr", eqn.params.get("jaxpr"))
    if not isinstance(jaxpr, (ClosedJaxpr, Jaxpr)):
        return NotImplemented
    return translate_jaxpr(close_jaxpr(jaxpr), avals_of(args))(args)


@register_translation(functx_call.name)
def translate_functx_call(eqn: JaxprEqn, *args: Value) -> Translated:
    # A functx function that the JAX function calls.
    return TranslatedJaxpr(eqn.params["program"].program, [])(args)


@register_translation("checkpoint", "remat", "remat2", keys=True)
def translate_remat(eqn: JaxprEqn, *args: Value) -> Translated:
    params = eqn.params
    inner = translate_jaxpr(close_jaxpr(params["jaxpr"]), avals_of(args))
    held = Checkpoint(
        inner.program,
        bool(params["prevent_cse"]),
        bool(params["differentiated"]),
        None if params["policy"] is None else JaxPolicy(params["policy"]),
    )
    return held(*args, *inner.captured)


class JaxPolicy(Record):
    """A JAX checkpoint policy that decides on functx equations.

    It gets the JAX primitive of the same name, and for matrix products JAX's dimension numbers.
    """

    policy: Callable[..., bool]

    def __call__(self, primitive: Primitive, *avals: ShapedArray, **params: object) -> bool:
        theirs = getattr(primitives, f"{primitive.name}_p", None) or JaxPrimitive(primitive.name)
        if isinstance(primitive, ops.DotGeneral):
            params = {"dimension_numbers": (primitive.contracting_dims, primitive.batch_dims)}
        verdict = self.policy(theirs, *jax_avals(avals), **params)
        return verdict is True or type(verdict).__name__ == "SaveableType"


@register_translation("cond", keys=True)
def translate_cond(eqn: JaxprEqn, index: Value, *args: Value) -> Translated:
    branches = branches_outside_kernels(eqn)
    if branches is None:
        return NotImplemented
    avals = avals_of(args)
    inner = [translate_jaxpr(branch, avals, f"branch_{i}") for i, branch in enumerate(branches)]
    if len(inner) == 1:
        return inner[0](args)
    captured = {id(x): x for each in inner for x in each.captured}
    types = [*avals, *avals_of(list(captured.values()))]
    programs = tuple([append_captures(each, types, list(captured), len(args)) for each in inner])
    return Cond(programs)(index, *args, *captured.values())


_KERNEL_PLATFORMS = {"mosaic"}


def branches_outside_kernels(eqn: JaxprEqn) -> Sequence[JaxprLike] | None:
    """The branch for platforms outside of kernels, or all; None if there are several by platform."""
    branches: Sequence[JaxprLike] = eqn.params["branches"]
    platforms = eqn.params.get("branches_platforms")
    if platforms is None:
        return branches
    left = [
        branch
        for branch, names in zip(branches, platforms, strict=True)
        if names is None or not _KERNEL_PLATFORMS.issuperset(names)
    ]
    return left if len(left) == 1 else None


def append_captures(
    inner: TranslatedJaxpr, types: Sequence[JaxprLike], captured: list[int], own: int
) -> Program:
    """The program of a branch with the arrays that any branch captured as its last operands."""
    program = inner.program
    if len(program.inputs) == len(types):
        return program

    def body(*args: Value) -> list[Value]:
        given = dict(zip(captured, args[own:], strict=True))
        return TranslatedJaxpr(program, [given[id(x)] for x in inner.captured])(args[:own])

    return trace_closed(body, types, name=program.name)


@register_translation("scan", keys=True)
def translate_scan(eqn: JaxprEqn, *args: Value) -> Translated:
    params = eqn.params
    if params.get("_split_transpose"):
        return NotImplemented
    consts, carries = params["num_consts"], params["num_carry"]
    fixed = consts + carries
    rows = [aval_of(x) for x in args[fixed:]]
    avals = [
        *avals_of(args[:fixed]),
        *[a.update(shape=a.shape[1:]) for a in rows],
    ]
    inner = translate_jaxpr(params["jaxpr"], avals, "body")
    program, captured = prepend_captures(inner, len(args))
    unroll = params.get("unroll", 1)
    loop = Scan(
        program,
        consts + len(captured),
        carries,
        params["length"],
        bool(params["reverse"]),
        max(int(unroll), 1),
    )
    return loop(*captured, *args)


def prepend_captures(inner: TranslatedJaxpr, own: int) -> tuple[Any, list[Any]]:
    """The program with the captured arrays as its first inputs, and these arrays."""
    program, captured = inner
    if not captured:
        return program, []
    inputs = [*program.inputs[own:], *program.inputs[:own]]
    return with_io(program, inputs, program.outputs), captured


@register_translation("while", keys=True)
def translate_while(eqn: JaxprEqn, *args: Value) -> Translated:
    params = eqn.params
    m = params["cond_nconsts"]
    n = m + params["body_nconsts"]
    avals = avals_of(args)
    condition = translate_jaxpr(params["cond_jaxpr"], [*avals[:m], *avals[n:]], "condition")
    body = translate_jaxpr(params["body_jaxpr"], avals[m:], "body")
    if aval_from_jax(params["cond_jaxpr"].out_avals[0]).shape:
        return while_with_batched_condition(condition, body, args, m, n)
    runs, condition_captured = prepend_captures(condition, m + len(args) - n)
    step, body_captured = prepend_captures(body, len(args) - m)
    loop = While(runs, step, m + len(condition_captured), n - m + len(body_captured))
    return loop(*condition_captured, *args[:m], *body_captured, *args[m:])


def while_with_batched_condition(
    condition: TranslatedJaxpr, body: TranslatedJaxpr, args: Values, m: int, n: int
) -> list[Value]:
    """A loop batched by `jax.vmap`, in which each lane runs as long as its own condition holds."""

    def runs(*xs: Value) -> list[Value]:
        return [ops.reduce_or(condition([*xs[:m], *xs[n:]])[0])]

    def step(*xs: Value) -> list[Value]:
        (active,) = condition([*xs[:m], *xs[n:]])
        moved = body(xs[m:])
        lead = tuple(range(active.ndim))
        return [
            ops.select(ops.broadcast_in_dim(active, x.shape, lead), new, x)
            for x, new in zip(xs[n:], moved, strict=True)
        ]

    avals = avals_of(args)
    first, second = [
        prepend_captures(TranslatedJaxpr(*trace(f, avals, name=f.__name__)), len(args))
        for f in (runs, step)
    ]
    # Both take all constants, since the body evaluates the condition too.
    loop = While(first[0], second[0], len(first[1]) + n, len(second[1]) + n)
    return loop(*first[1], *args[:n], *second[1], *args)


def host_function_of_leaves(fun: Function, eqn: JaxprEqn, results: int | None) -> ops.FlatCallback:
    """The host function of the operands of the equation, which returns `results` arrays."""
    in_tree = tree.structure(((0,) * len(eqn.invars), {}))
    out_tree = None if results is None else tree.structure([0] * results)
    return ops.FlatCallback(fun, in_tree, (), out_tree)


def callback_result_avals(eqn: JaxprEqn) -> tuple[ShapedArray, ...]:
    return tuple([aval_from_jax(a) for a in eqn.params["result_avals"]])


@register_translation("pure_callback")
def translate_pure_callback(eqn: JaxprEqn, *args: Value) -> Translated:
    results, method = callback_result_avals(eqn), eqn.params["vmap_method"]
    if method is not None and method not in ops.VMAP_METHODS:
        return NotImplemented
    host = host_function_of_leaves(eqn.params["callback"], eqn, len(results))
    return ops.PureCallback(host, results, method)(*args)


@register_translation("io_callback")
def translate_io_callback(eqn: JaxprEqn, *args: Value) -> Translated:
    results = callback_result_avals(eqn)
    host = host_function_of_leaves(eqn.params["callback"], eqn, len(results))
    return ops.IoCallback(host, results, bool(eqn.params["ordered"]))(*args)


@register_translation("debug_callback")
def translate_debug_callback(eqn: JaxprEqn, *args: Value) -> Translated:
    host = host_function_of_leaves(eqn.params["callback"], eqn, None)
    return ops.DebugCallback(host, (), ordered_effect() in eqn.effects)(*args)


class FormattedPrint(Record):
    """A function that prints its arguments in the format of `jax.debug.print`."""

    text: str
    has_placeholders: bool
    options: tuple[tuple[str, Any], ...]

    def __call__(self, *args: Value, **kwargs: object) -> None:
        with np.printoptions(**dict(self.options)):
            if self.has_placeholders:
                print(self.text.format(*args, **kwargs))
            else:
                print(self.text, *args)


@register_translation("debug_print")
def translate_debug_print(eqn: JaxprEqn, *args: Value) -> Translated:
    params = eqn.params
    if params.get("logging_record") is not None:
        return NotImplemented
    printed = FormattedPrint(
        params["fmt"], params["has_placeholders"], tuple(params["np_printoptions"])
    )
    host = ops.FlatCallback(printed, params["in_tree"], params["static_args"], None)
    return ops.DebugCallback(host, (), bool(params["ordered"]))(*args)


COLLECTIVE_REDUCTIONS = {
    "psum": ops.Psum,
    "psum_invariant": ops.Psum,
    "pmax": ops.Pmax,
    "pmin": ops.Pmin,
}


@register_translation(*COLLECTIVE_REDUCTIONS)
def translate_collective_reduction(eqn: JaxprEqn, x: Value) -> Translated:
    axes = eqn.params["axes"]
    if any(isinstance(axis, int) for axis in axes):
        return NotImplemented
    return COLLECTIVE_REDUCTIONS[eqn.primitive.name](tuple(axes), replica_groups(eqn))(x)


@register_translation("pvary")
def translate_pvary(eqn: JaxprEqn, x: Value) -> Translated:
    return ops.Pvary(tuple(eqn.params["axes"]))(x)


@register_translation("all_gather")
def translate_all_gather(eqn: JaxprEqn, x: Value) -> Translated:
    axis = eqn.params["all_gather_dimension"]
    x = x if eqn.params["tiled"] else ops.expand_dims(x, (axis,))
    return ops.AllGather(*axes_sizes_and_groups(eqn), axis)(x)


@register_translation("reduce_scatter")
def translate_reduce_scatter(eqn: JaxprEqn, x: Value) -> Translated:
    axis = eqn.params["scatter_dimension"]
    out = ops.PsumScatter(*axes_sizes_and_groups(eqn), axis)(x)
    return out if eqn.params["tiled"] else ops.squeeze(out, (axis,))


@register_translation("all_to_all")
def translate_all_to_all(eqn: JaxprEqn, x: Value) -> Translated:
    split, concat = eqn.params["split_axis"], eqn.params["concat_axis"]
    return ops.AllToAll(*axes_sizes_and_groups(eqn), split, concat)(x)


@register_translation("ppermute")
def translate_ppermute(eqn: JaxprEqn, x: Value) -> Translated:
    pairs = sorted([int_tuple(pair) for pair in eqn.params["perm"]])
    return ops.Ppermute(canonical_axis_names(eqn.params["axis_name"]), tuple(pairs))(x)  # type: ignore[arg-type]


@register_translation("axis_index")
def translate_axis_index(eqn: JaxprEqn) -> Translated:
    (name,) = canonical_axis_names(eqn.params["axis_name"])
    return ops.AxisIndex(name, named_axis_size(name, "axis_index"))()


@register_translation("sharding_constraint")
def translate_sharding_constraint(eqn: JaxprEqn, x: Value) -> Translated:
    return ops.ShardingConstraint(eqn.params["sharding"])(x)


@register_translation("shard_map")
def translate_shard_map(eqn: JaxprEqn, *args: Value) -> Translated:
    params = eqn.params
    mesh, jaxpr = ops.with_auto_axes(params["mesh"]), params["jaxpr"]
    names = tuple([name for name in mesh.axis_names if name in params["newly_manual_axes"]])
    avals = [aval_from_jax(v.aval) for v in jaxpr.invars]
    with bind_named_axes((*bound_axes(), *[Axis(name, mesh.shape[name]) for name in names])):
        body = translate_jaxpr(ClosedJaxpr(jaxpr, ()), avals, "shard_map")
    in_specs = [dim_specs_of(s, a.ndim) for s, a in zip(params["in_specs"], avals, strict=True)]
    in_specs += [((),) * aval_of(x).ndim for x in body.captured]
    outs = body.program.out_avals
    out_specs = [dim_specs_of(s, a.ndim) for s, a in zip(params["out_specs"], outs, strict=True)]
    device_map = ShardMap(body.program, mesh, tuple(in_specs), tuple(out_specs), names)
    return device_map(*args, *body.captured)


def axes_sizes_and_groups(
    eqn: JaxprEqn,
) -> tuple[tuple[Any, ...], tuple[int, ...], ops.AxisIndexGroups]:
    """The names of the axes of an equation, their sizes, and the replica groups."""
    names, groups = canonical_axis_names(eqn.params["axis_name"]), replica_groups(eqn)
    if groups is not None:
        return names, (len(groups[0]),), groups
    return names, tuple([named_axis_size(name, eqn.primitive.name) for name in names]), None


def replica_groups(eqn: JaxprEqn) -> ops.AxisIndexGroups:
    """The replica groups of an equation, None for a single group."""
    groups = eqn.params.get("axis_index_groups")
    return None if groups is None else tuple([int_tuple(group) for group in groups])
