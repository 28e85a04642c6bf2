"""Device meshes of JAX around a program: manual axes, varying values and shardings."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import AxisType, ManualAxisType, Mesh, NamedSharding, PartitionSpec

from functx import ops
from functx.core.backend import backend
from functx.core.errors import UnboundAxisError
from functx.core.program import Program
from functx.core.source_info import Source
from functx.core.typing import Value, Values
from functx.lowering.jax_bridge import JaxAval, jax_aval
from functx.transforms.varying_axes import resolve_boundaries, varying_axes

if TYPE_CHECKING:
    from functx.lowering.functx_call import ProgramParam


def axis_size(name: Hashable) -> int | None:
    """The size of the axis `name` that JAX binds here; None if it binds none."""
    try:
        return int(jax.lax.axis_size(name))
    except NameError:
        return None


def axis_names() -> Sequence[Hashable]:
    """The names of the axes that JAX maps over devices here."""
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)


backend.axis_size = axis_size
backend.axis_names = axis_names


def manual_axes(module_context: Any) -> dict[Hashable, int]:
    """The manual axes of the module that is being lowered, with their sizes."""
    context = module_context.axis_context
    names = getattr(context, "manual_axes", ())
    mesh = getattr(context, "mesh", None)
    return {} if mesh is None else {n: size for n, size in mesh.shape.items() if n in names}


def unbound_axis_error(
    name: Hashable, sizes: dict[Hashable, int], source: Source | None
) -> UnboundAxisError:
    """The error for a collective over an axis that nothing binds."""
    given = ", ".join(map(repr, sizes)) or "none"
    return UnboundAxisError(
        f"a collective must run within a map over its axis; got {name!r}, where the bound names "
        f"are: {given}",
        fix=f"Run the program within functx.vmap(f, axis_name={name!r}) or functx.shard_map.",
        source=source,
    )


def meshes_in(program: Program) -> tuple[Any, ...]:
    """The meshes of devices in the parameters of `program`."""
    found: tuple[Any, ...] | None = program.memo.get(meshes_in)
    if found is None:
        meshes = [
            getattr(getattr(eqn.primitive, "sharding", eqn.primitive), "mesh", None)
            for each in program.walk()
            for eqn in each.equations
        ]
        found = tuple(dict.fromkeys([mesh for mesh in meshes if isinstance(mesh, Mesh)]))
        program.memo[meshes_in] = found
    return found


def constrain_to_devices(program: Program, values: Values) -> list[Value]:
    """`values` with the first constrained to the devices of the meshes in `program`.

    `values` are the operands or the outputs. JAX finds devices in its own equations only, not in
    programs that these hold.
    """
    values = list(values)
    for mesh in meshes_in(program):
        anywhere = PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * jax.numpy.ndim(values[0]))
        sharding = NamedSharding(ops.with_auto_axes(mesh), anywhere)
        values[0] = jax.lax.with_sharding_constraint(values[0], sharding)
    return values


def varying_manual_axes(x: Value | JaxAval) -> frozenset[Hashable]:
    """The manual axes of a mesh that a JAX value, or its aval, varies over."""
    aval = x if hasattr(x, "manual_axis_type") else jax.typeof(x)
    return aval.manual_axis_type.varying  # type: ignore[no-any-return]


def tracks_varying(program: Program, operands: Values) -> bool:
    """Whether JAX tracks here which values vary over which manual axes."""
    if any(varying_manual_axes(x) for x in operands):
        return True
    here = [name for name in axis_names() if name in program.named_axes]
    return bool(here) and bool(varying_manual_axes(jax.lax.axis_index(here[0])))


def out_jax_avals(
    program: ProgramParam, mesh: Mesh | jax.sharding.AbstractMesh, operands: Values
) -> list[Value]:
    """The JAX avals of the outputs of a program on operands with these avals, within `mesh`.

    They vary over the manual axes that `varying_axes` finds, and are not sharded explicitly.
    """
    avals = [jax_aval(aval) for aval in program.program.out_avals]
    avals = [a.update(sharding=NamedSharding(mesh, PartitionSpec(*[None] * a.ndim))) for a in avals]
    if not program.tracks_varying:
        return avals
    found = varying_axes(program.program, [varying_manual_axes(a) for a in operands])
    manual = frozenset(axis_names())
    kinds = [ManualAxisType(varying=axes & manual) for axes in found]
    return [a.update(manual_axis_type=kind) for a, kind in zip(avals, kinds, strict=True)]


def bind_on_mesh(
    call: Any, mesh: Mesh | jax.sharding.AbstractMesh, operands: Values, program: ProgramParam
) -> list[Value]:
    """The outputs of `call`, bound to operands within `mesh`.

    With explicit axes, an output has the sharding of the first sharded operand of its shape, else it
    is replicated.
    """

    def bind(*xs: Value) -> list[Value]:
        program.tracks_varying = tracks_varying(program.program, xs)
        if program.tracks_varying:
            program.program = resolve_boundaries(
                program.program, [varying_manual_axes(x) for x in xs]
            )
        outs: list[Any] = call.bind(*xs, program=program)
        return outs

    if AxisType.Explicit not in mesh.axis_types:
        return bind(*operands)
    specs: dict[tuple[int, ...], Any] = {}
    for x in operands:
        aval = jax.typeof(x)
        if any(axis is not None for axis in aval.sharding.spec):
            specs.setdefault(aval.shape, aval.sharding.spec)
    out_specs = [specs.get(a.shape, PartitionSpec()) for a in program.program.out_avals]
    outs = jax.sharding.auto_axes(bind, out_sharding=out_specs)(*operands)
    return list(outs)


def divide_replicated_cotangents(
    program: ProgramParam, cts: Values, operands: Values
) -> list[Value]:
    """The cotangents, each divided by the number of devices that hold the same value.

    The transposed program maps them to the shares that `psum_replicated_cotangents` adds up.
    """
    if not program.tracks_varying:
        return list(cts)
    axes = used_manual_axes(program, [*cts, *operands])
    return [divide_by_axis_sizes(ct, axes - varying_manual_axes(ct)) for ct in cts]


def divide_by_axis_sizes(x: Value, axes: Iterable[Hashable]) -> Value:
    """`x` divided by the product of the sizes of the manual `axes`."""
    count = prod([axis_size(name) or 1 for name in axes])
    return x if count == 1 else x / count


def psum_replicated_cotangents(
    program: ProgramParam, cts: Values, linear_avals: Sequence[JaxAval], operands: Values
) -> Values:
    """The cotangents of linear operands with avals `linear_avals`, summed over the devices that share them."""
    if not program.tracks_varying:
        return cts
    axes = used_manual_axes(program, operands)
    found = []
    for ct, like in zip(cts, linear_avals, strict=True):
        shared = tuple(sorted(axes - varying_manual_axes(like), key=str))
        found.append(pcast_like(jax.lax.psum(ct, shared) if shared else ct, like))
    return found


def pcast_like(x: Value, like: Value | JaxAval) -> Value:
    """`x`, cast to vary over all manual axes that `like` varies over."""
    missing = tuple(sorted(varying_manual_axes(like) - varying_manual_axes(x), key=str))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def used_manual_axes(program: ProgramParam, values: Values) -> frozenset[Hashable]:
    """The manual axes that values vary over, or that the program has collectives over."""
    named = program.program.named_axes & frozenset(axis_names())
    return frozenset().union(named, *[varying_manual_axes(x) for x in values])
