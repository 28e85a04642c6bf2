"""`shard_map`: a function that every device of a mesh runs on its part of the arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from functx.core import tree
from functx.core.axes import Axis, bound_axes, within
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
from functx.lowering.device_map import ShardMap, Spec, spec_of
from functx.ops.sharding import check_spec, mesh_around, with_auto_axes
from functx.transforms.calls import (
    TracedCall,
    avals_of,
    check_callable,
    leaf_paths,
    name_of,
    names_of,
    trace_call,
    transformed,
    with_options,
)
from functx.transforms.varying import counted, varying


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
        return with_options(shard_map, locals())
    check_callable(f, "shard_map")
    what = f"shard_map({name_of(f)})"

    def wrapper(*args: Any) -> Any:
        leaves, in_tree = tree.flatten_words((args, {}))
        on = with_auto_axes(mesh if mesh is not None else mesh_around(what))
        names = tuple([n for n in on.axis_names if not axis_names or n in axis_names])
        if unknown := set(axis_names) - set(names):
            raise ArgumentError(
                f"{what}: axis_names must be axes of the mesh; got {sorted(map(str, unknown))} for "
                f"a mesh with the axes {on.axis_names}"
            )
        shown = names_of(f, in_tree)
        avals = avals_of(leaves, "shard_map", f, in_tree)
        if in_specs is None:
            given_specs = _specs_of(what, tree.leaves(args), on, shown)
        else:
            prefix = tuple(in_specs) if isinstance(in_specs, list) else in_specs
            given_specs = _flat(f"{what}: in_specs", prefix, tree.structure(args))
        specs = [
            _checked(f"{what}: `{name}`", aval, spec, on, names, is_key)
            for name, aval, spec, is_key in zip(
                shown(), avals, given_specs, tree.keys_among(in_tree), strict=True
            )
        ]
        parts = [_part(aval, spec, on) for aval, spec in zip(avals, specs, strict=True)]
        inside = (*bound_axes(), *[Axis(n, on.shape[n], counted=check_vma) for n in names])
        with within(inside):
            traced = trace_call(f, in_tree, parts, "shard_map").without_writes(what)
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
            traced = traced._replace(program=counted(traced.program, given))
            _check_replicated(what, traced, given, outs, names)
        mapped = ShardMap(traced.program, on, tuple(specs), outs, names)
        operands = [*leaves, *traced.captured]
        if any(type(x) is Tracer for x in operands):
            found = mapped(*operands)
        else:
            whole = [
                mapped.whole(a, s) for a, s in zip(traced.program.in_avals, specs, strict=True)
            ]
            program = trace_closed(lambda *xs: mapped(*xs), whole, name=name_of(f))
            found = apply(None, program, operands)
        return tree.unflatten(traced.out_tree, found)

    return transformed(wrapper, f, "shard_map")


def _flat(what: str, specs: Any, like: Any) -> list[Any]:
    """One spec for each leaf of the structure `like`."""
    try:
        return tree.flatten_prefix(specs, like, what)
    except TreeError as error:
        raise ArgumentError(error.problem, *error.details) from None


def _specs_of(what: str, leaves: Sequence[Any], mesh: Any, shown: Any) -> list[Any]:
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


def _checked(
    what: str, aval: Any, spec: Any, mesh: Any, names: Sequence[Any], is_key: bool
) -> Spec:
    """The spec of an array, or of typed keys that are words of type `aval`; these stay together."""
    spec = PartitionSpec() if spec is None else spec
    if not isinstance(spec, PartitionSpec):
        raise ArgumentError(f"{what}: specs must be PartitionSpecs; got {type_name(spec)} {spec!r}")
    check_spec(what, aval.update(shape=aval.shape[: aval.ndim - is_key]), spec, mesh)
    found = spec_of(spec, aval.ndim)
    if others := [name for entry in found for name in entry if name not in names]:
        raise ArgumentError(
            f"{what}: specs must name axes among axis_names; got {others[0]!r} for {tuple(names)}",
            fix="Divide over the others with functx.lax.with_sharding_constraint.",
        )
    return found


def _part(aval: Any, spec: Spec, mesh: Any) -> Any:
    shape = list(aval.shape)
    for dim, entry in enumerate(spec):
        for name in entry:
            shape[dim] //= mesh.shape[name]
    return aval.update(shape=tuple(shape))


def _out_specs(
    what: str, out_specs: Any, traced: TracedCall, mesh: Any, names: Sequence[Any]
) -> tuple[Spec, ...]:
    flat = _flat(f"{what}: out_specs", out_specs, traced.out_tree)
    found = []
    marks = tree.keys_among(traced.out_tree)
    for where, aval, spec, is_key in zip(
        _paths(traced), traced.out_avals, flat, marks, strict=True
    ):
        spec = PartitionSpec() if spec is None else spec
        # Any number of parts make a whole.
        whole = aval.update(shape=(0,) * aval.ndim)
        found.append(_checked(f"{what}: {where}", whole, spec, mesh, names, is_key))
    return tuple(found)


def _paths(traced: TracedCall) -> list[str]:
    return [f"output{path}" for path in leaf_paths(traced.out_tree, traced.out_avals)]


def _check_replicated(
    what: str,
    traced: TracedCall,
    given: Sequence[frozenset[Any]],
    out_specs: Sequence[Spec],
    names: Sequence[Any],
) -> None:
    """Raise ReplicationError for an output that differs along axes which its spec does not name."""
    found = varying(traced.program, given)
    for where, aval, spec, over in zip(
        _paths(traced), traced.out_avals, out_specs, found, strict=True
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
