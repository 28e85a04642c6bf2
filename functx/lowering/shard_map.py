"""`shard_map`: a function that every device of a mesh runs on its part of the arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from functx.core import tree
from functx.core.axes import Axis, bind_named_axes, bound_axes
from functx.core.effects import Effect
from functx.core.errors import (
    ArgumentError,
    EffectError,
    ReplicationError,
    TreeError,
    type_name,
)
from functx.core.rewriting import apply
from functx.core.tracing import Tracer, trace_closed
from functx.lowering.device_map import DimSpecs, ShardMap, dim_specs_of
from functx.ops.sharding import check_partition_spec, current_mesh, with_auto_axes
from functx.transforms.calls import (
    TracedFunction,
    argument_names,
    as_decorator,
    avals_of,
    check_callable,
    function_name,
    key_path_strings,
    trace_function,
    wrap_transform,
)
from functx.transforms.varying import resolve_boundaries, varying_axes


def shard_map(
    f: Callable[..., Any] | None = None,
    /,
    *,
    out_specs: Any,
    in_specs: Any = None,
    mesh: Any = None,
    axis_names: Any = frozenset(),
    check_vma: bool = True,
) -> Any:
    """Map `f` over parts of its arguments, one on each device of `mesh`, as `jax.shard_map` does.

    `in_specs` is a tree prefix of the arguments with a `jax.sharding.PartitionSpec` at each leaf:
    the axes of the mesh over which each dimension is divided. A device gets its part, and the
    whole along axes that are not named. `out_specs` says likewise how results are put together; a
    result is the same along axes that its spec does not name, which is checked unless `check_vma`
    is false. Inside, collectives such as `lax.psum` work across `axis_names`, by default all.
    Without `in_specs`, arrays keep their shardings; without `mesh`, it is that of `jax.set_mesh`.

    Derivatives of the mapped function are those of the whole computation. A derivative taken
    inside counts what is the same on all devices once, and is summed over them in what they share;
    in `lax.pcast(x, axis_name, to="varying")` each device has its own. If `check_vma` is false it
    is, as under `vmap`, that of the sum over all devices of what `f` returns there.

    Raises ShapeError for a dimension that does not divide into equal parts, ReplicationError for
    a result that differs along an axis which its spec does not name, and ArgumentError for specs
    that fit neither the mesh nor the arguments.
    """
    if f is None:
        return as_decorator(shard_map, locals())
    check_callable(f, "shard_map")
    what = f"shard_map({function_name(f)})"

    def wrapper(*args: Any) -> Any:
        leaves, in_tree = tree.flatten_with_key_data((args, {}))
        on = with_auto_axes(mesh if mesh is not None else current_mesh(what))
        names = tuple([n for n in on.axis_names if not axis_names or n in axis_names])
        if unknown := set(axis_names) - set(names):
            raise ArgumentError(
                f"{what}: axis_names must be axes of the mesh; got {sorted(map(str, unknown))} for "
                f"a mesh with the axes {on.axis_names}"
            )
        shown = argument_names(f, in_tree)
        avals = avals_of(leaves, "shard_map", f, in_tree)
        if in_specs is None:
            given_specs = _specs_from_shardings(what, tree.leaves(args), on, shown)
        else:
            prefix = tuple(in_specs) if isinstance(in_specs, list) else in_specs
            given_specs = _flatten_specs(f"{what}: in_specs", prefix, tree.structure(args))
        specs = [
            _check_spec(f"{what}: `{name}`", aval, spec, on, names, is_key)
            for name, aval, spec, is_key in zip(
                shown(), avals, given_specs, tree.key_leaves(in_tree), strict=True
            )
        ]
        parts = [_local_aval(aval, spec, on) for aval, spec in zip(avals, specs, strict=True)]
        inside = (*bound_axes(), *[Axis(n, on.shape[n], tracks_varying=check_vma) for n in names])
        with bind_named_axes(inside):
            traced = trace_function(f, in_tree, parts, "shard_map").refuse_writes(what)
        if Effect.ORDERED in traced.program.effects:
            raise EffectError(
                f"{what}: effects on several devices must not be ordered; got some that are",
                fix="Leave out ordered=True.",
            )
        # What the function captures, every device has whole.
        specs += [((),) * a.ndim for a in traced.program.in_avals[len(specs) :]]
        outs = _out_specs(what, out_specs, traced, on, names)
        if check_vma:
            given = [frozenset([name for entry in spec for name in entry]) for spec in specs]
            traced = traced._replace(program=resolve_boundaries(traced.program, given))
            _check_replicated(what, traced, given, outs, names)
        mapped = ShardMap(traced.program, on, tuple(specs), outs, names)
        operands = [*leaves, *traced.captured]
        if any(type(x) is Tracer for x in operands):
            found = mapped(*operands)
        else:
            whole = [
                mapped.global_aval(a, s)
                for a, s in zip(traced.program.in_avals, specs, strict=True)
            ]
            program = trace_closed(lambda *xs: mapped(*xs), whole, name=function_name(f))
            found = apply(None, program, operands)
        return tree.unflatten(traced.out_tree, found)

    return wrap_transform(wrapper, f, "shard_map")


def _flatten_specs(what: str, specs: Any, like: Any) -> list[Any]:
    """One spec for each leaf of the structure `like`."""
    try:
        return tree.broadcast_prefix(specs, like, what)
    except TreeError as error:
        raise ArgumentError(error.problem, *error.details) from None


def _specs_from_shardings(what: str, leaves: Sequence[Any], mesh: Any, shown: Any) -> list[Any]:
    """The specs of the shardings that arrays have."""
    found = []
    for name, x in zip(shown(), leaves, strict=True):
        if isinstance(x, jax.core.Tracer):
            raise ArgumentError(
                f"{what}: in_specs must be given for a traced argument; got none for `{name}`"
            )
        sharding = getattr(x, "sharding", None)
        if isinstance(sharding, NamedSharding) and sharding.mesh.shape == mesh.shape:
            found.append(sharding.spec)
        else:
            found.append(PartitionSpec())
    return found


def _check_spec(
    what: str, aval: Any, spec: Any, mesh: Any, names: Sequence[Any], is_key: bool
) -> DimSpecs:
    """The spec of an array, or of typed keys that are words of type `aval`; these stay together."""
    spec = PartitionSpec() if spec is None else spec
    if not isinstance(spec, PartitionSpec):
        raise ArgumentError(f"{what}: specs must be PartitionSpecs; got {type_name(spec)} {spec!r}")
    check_partition_spec(what, aval.update(shape=aval.shape[: aval.ndim - is_key]), spec, mesh)
    found = dim_specs_of(spec, aval.ndim)
    if others := [name for entry in found for name in entry if name not in names]:
        raise ArgumentError(
            f"{what}: specs must name axes among axis_names; got {others[0]!r} for {tuple(names)}",
            fix="Divide over the others with functx.lax.with_sharding_constraint.",
        )
    return found


def _local_aval(aval: Any, spec: DimSpecs, mesh: Any) -> Any:
    shape = list(aval.shape)
    for dim, entry in enumerate(spec):
        for name in entry:
            shape[dim] //= mesh.shape[name]
    return aval.update(shape=tuple(shape))


def _out_specs(
    what: str, out_specs: Any, traced: TracedFunction, mesh: Any, names: Sequence[Any]
) -> tuple[DimSpecs, ...]:
    flat = _flatten_specs(f"{what}: out_specs", out_specs, traced.out_tree)
    found = []
    marks = tree.key_leaves(traced.out_tree)
    for where, aval, spec, is_key in zip(
        _output_paths(traced), traced.out_avals, flat, marks, strict=True
    ):
        spec = PartitionSpec() if spec is None else spec
        # Any number of parts make a whole.
        whole = aval.update(shape=(0,) * aval.ndim)
        found.append(_check_spec(f"{what}: {where}", whole, spec, mesh, names, is_key))
    return tuple(found)


def _output_paths(traced: TracedFunction) -> list[str]:
    return [f"output{path}" for path in key_path_strings(traced.out_tree, traced.out_avals)]


def _check_replicated(
    what: str,
    traced: TracedFunction,
    given: Sequence[frozenset[Any]],
    out_specs: Sequence[DimSpecs],
    names: Sequence[Any],
) -> None:
    """Raise ReplicationError for an output that differs along axes which its spec does not name."""
    found = varying_axes(traced.program, given)
    for where, aval, spec, over in zip(
        _output_paths(traced), traced.out_avals, out_specs, found, strict=True
    ):
        named = {name for entry in spec for name in entry}
        left = [name for name in names if name in over and name not in named]
        if left:
            axis = repr(left[0])
            raise ReplicationError(
                f"{what}: a result must be the same along the mesh axes that its spec does not "
                f"name; got {where}: {aval!r} with {PartitionSpec(*spec)}, which differs along {axis}",
                fix=f"Name {axis} in its out_specs, sum it with functx.lax.psum(x, {axis}), or pass "
                "check_vma=False if it is the same all the same.",
            )
