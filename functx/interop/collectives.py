"""Translations of collectives, of maps over devices, and of constraints on where arrays lie."""

from __future__ import annotations

from typing import Any

from jax.extend.core import ClosedJaxpr

from functx.core.axes import (
    Axis,
    bind_named_axes,
    bound_axes,
    canonical_axis_names,
    named_axis_size,
)
from functx.core.tracing import aval_of
from functx.interop.jaxprs import aval_from_jax, int_tuple
from functx.interop.translation import register_translation, translate_jaxpr
from functx.lowering.device_map import ShardMap, dim_specs_of
from functx.ops.collectives import AxisIndex, AxisIndexGroups, Pmax, Pmin, Psum, Pvary
from functx.ops.exchanges import AllGather, AllToAll, Ppermute, PsumScatter
from functx.ops.shaping import expand_dims, squeeze
from functx.ops.sharding import ShardingConstraint, with_auto_axes

COLLECTIVE_REDUCTIONS = {"psum": Psum, "psum_invariant": Psum, "pmax": Pmax, "pmin": Pmin}


@register_translation(*COLLECTIVE_REDUCTIONS)
def translate_collective_reduction(eqn: Any, x: Any) -> Any:
    axes = eqn.params["axes"]
    if any(isinstance(axis, int) for axis in axes):
        return NotImplemented
    return COLLECTIVE_REDUCTIONS[eqn.primitive.name](tuple(axes), replica_groups(eqn))(x)


@register_translation("pvary")
def translate_pvary(eqn: Any, x: Any) -> Any:
    return Pvary(tuple(eqn.params["axes"]))(x)


@register_translation("all_gather")
def translate_all_gather(eqn: Any, x: Any) -> Any:
    axis = eqn.params["all_gather_dimension"]
    x = x if eqn.params["tiled"] else expand_dims(x, (axis,))
    return AllGather(*axes_sizes_and_groups(eqn), axis)(x)


@register_translation("reduce_scatter")
def translate_reduce_scatter(eqn: Any, x: Any) -> Any:
    axis = eqn.params["scatter_dimension"]
    out = PsumScatter(*axes_sizes_and_groups(eqn), axis)(x)
    return out if eqn.params["tiled"] else squeeze(out, (axis,))


@register_translation("all_to_all")
def translate_all_to_all(eqn: Any, x: Any) -> Any:
    split, concat = eqn.params["split_axis"], eqn.params["concat_axis"]
    return AllToAll(*axes_sizes_and_groups(eqn), split, concat)(x)


@register_translation("ppermute")
def translate_ppermute(eqn: Any, x: Any) -> Any:
    pairs = sorted([int_tuple(pair) for pair in eqn.params["perm"]])
    return Ppermute(canonical_axis_names(eqn.params["axis_name"]), tuple(pairs))(x)  # type: ignore[arg-type]


@register_translation("axis_index")
def translate_axis_index(eqn: Any) -> Any:
    (name,) = canonical_axis_names(eqn.params["axis_name"])
    return AxisIndex(name, named_axis_size(name, "axis_index"))()


@register_translation("sharding_constraint")
def translate_sharding_constraint(eqn: Any, x: Any) -> Any:
    return ShardingConstraint(eqn.params["sharding"])(x)


@register_translation("shard_map")
def translate_shard_map(eqn: Any, *args: Any) -> Any:
    params = eqn.params
    mesh, jaxpr = with_auto_axes(params["mesh"]), params["jaxpr"]
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


def axes_sizes_and_groups(eqn: Any) -> tuple[tuple[Any, ...], tuple[int, ...], AxisIndexGroups]:
    """The names of the axes of an equation, the numbers of places along them, and its groups."""
    names, groups = canonical_axis_names(eqn.params["axis_name"]), replica_groups(eqn)
    if groups is not None:
        return names, (len(groups[0]),), groups
    return names, tuple([named_axis_size(name, eqn.primitive.name) for name in names]), None


def replica_groups(eqn: Any) -> AxisIndexGroups:
    """The groups of places of an equation."""
    groups = eqn.params.get("axis_index_groups")
    return None if groups is None else tuple([int_tuple(group) for group in groups])
