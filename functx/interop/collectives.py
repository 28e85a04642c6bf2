"""Translations of collectives, of maps over devices, and of constraints on where arrays lie."""

from __future__ import annotations

from typing import Any

from jax.extend.core import ClosedJaxpr

from functx.core.axes import Axis, axis_names_in, bound_axes, size_of, within
from functx.core.tracing import aval_of
from functx.interop.jaxprs import aval_from_jax, ints
from functx.interop.translation import translate, translates
from functx.lowering.device_map import ShardMap, spec_of
from functx.ops.collectives import AxisIndex, Groups, Pmax, Pmin, Psum, Vary
from functx.ops.exchanges import AllGather, AllToAll, Ppermute, PsumScatter
from functx.ops.shaping import expand_dims, squeeze
from functx.ops.sharding import ShardingConstraint, with_auto_axes

REDUCTIONS = {"psum": Psum, "psum_invariant": Psum, "pmax": Pmax, "pmin": Pmin}


@translates(*REDUCTIONS)
def reduced(eqn: Any, x: Any) -> Any:
    axes = eqn.params["axes"]
    if any(isinstance(axis, int) for axis in axes):
        return NotImplemented
    return REDUCTIONS[eqn.primitive.name](tuple(axes), groups_of(eqn))(x)


@translates("pvary")
def varied(eqn: Any, x: Any) -> Any:
    return Vary(tuple(eqn.params["axes"]))(x)


@translates("all_gather")
def gathered(eqn: Any, x: Any) -> Any:
    axis = eqn.params["all_gather_dimension"]
    x = x if eqn.params["tiled"] else expand_dims(x, (axis,))
    return AllGather(*places(eqn), axis)(x)


@translates("reduce_scatter")
def scattered(eqn: Any, x: Any) -> Any:
    axis = eqn.params["scatter_dimension"]
    out = PsumScatter(*places(eqn), axis)(x)
    return out if eqn.params["tiled"] else squeeze(out, (axis,))


@translates("all_to_all")
def exchanged(eqn: Any, x: Any) -> Any:
    split, concat = eqn.params["split_axis"], eqn.params["concat_axis"]
    return AllToAll(*places(eqn), split, concat)(x)


@translates("ppermute")
def permuted(eqn: Any, x: Any) -> Any:
    pairs = sorted([ints(pair) for pair in eqn.params["perm"]])
    return Ppermute(axis_names_in(eqn.params["axis_name"]), tuple(pairs))(x)  # type: ignore[arg-type]


@translates("axis_index")
def numbered(eqn: Any) -> Any:
    (name,) = axis_names_in(eqn.params["axis_name"])
    return AxisIndex(name, size_of(name, "axis_index"))()


@translates("sharding_constraint")
def constrained(eqn: Any, x: Any) -> Any:
    return ShardingConstraint(eqn.params["sharding"])(x)


@translates("shard_map")
def mapped(eqn: Any, *args: Any) -> Any:
    params = eqn.params
    mesh, jaxpr = with_auto_axes(params["mesh"]), params["jaxpr"]
    names = tuple([name for name in mesh.axis_names if name in params["newly_manual_axes"]])
    avals = [aval_from_jax(v.aval) for v in jaxpr.invars]
    with within((*bound_axes(), *[Axis(name, mesh.shape[name]) for name in names])):
        body = translate(ClosedJaxpr(jaxpr, ()), avals, "shard_map")
    in_specs = [spec_of(s, a.ndim) for s, a in zip(params["in_specs"], avals, strict=True)]
    in_specs += [((),) * aval_of(x).ndim for x in body.captured]
    outs = body.program.out_avals
    out_specs = [spec_of(s, a.ndim) for s, a in zip(params["out_specs"], outs, strict=True)]
    device_map = ShardMap(body.program, mesh, tuple(in_specs), tuple(out_specs), names)
    return device_map(*args, *body.captured)


def places(eqn: Any) -> tuple[tuple[Any, ...], tuple[int, ...], Groups]:
    """The names of the axes of an equation, the numbers of places along them, and its groups."""
    names, groups = axis_names_in(eqn.params["axis_name"]), groups_of(eqn)
    if groups is not None:
        return names, (len(groups[0]),), groups
    return names, tuple([size_of(name, eqn.primitive.name) for name in names]), None


def groups_of(eqn: Any) -> Groups:
    """The groups of places of an equation."""
    groups = eqn.params.get("axis_index_groups")
    return None if groups is None else tuple([ints(group) for group in groups])
