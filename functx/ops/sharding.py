"""Where arrays lie: constraints on how they are divided among devices."""

from __future__ import annotations

from collections.abc import Hashable
from math import prod
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from functx.core.avals import ShapedArray
from functx.core.axes import batched_axis
from functx.core.errors import ArgumentError, AxisError, ShapeError
from functx.core.samples import c64, f32, sample
from functx.ops.families import Linear

# A mesh without devices, since devices are looked up when something first runs.
_ONE_AXIS_SHARDING = NamedSharding(
    AbstractMesh((1,), ("i",), axis_types=(AxisType.Auto,)), PartitionSpec("i")
)


class ShardingConstraint(Linear):
    """The operand, divided among devices as `sharding` says; so are its tangents and cotangents."""

    sharding: Any
    is_element_mapping = True
    samples = (
        sample(f32[3, 4], sharding=_ONE_AXIS_SHARDING),
        sample(c64[3], sharding=_ONE_AXIS_SHARDING),
    )

    def abstract_eval(self, x):
        return x

    def transpose(self, ct, x):
        return (self(ct),)

    def tangent_mask(self, lives, args):
        return lives[0]

    def cotangent_masks(self, live, args):
        return [live]

    def batch(self, args, dims):
        (x,), (dim,) = args, dims
        sharding = self.sharding
        if isinstance(sharding, NamedSharding):
            axis = batched_axis()
            over = axis.mesh_axes if axis is not None else ()
            spec = [*sharding.spec, *[None] * (x.ndim - 1 - len(sharding.spec))]
            spec.insert(dim, over or PartitionSpec.UNCONSTRAINED)
            sharding = NamedSharding(
                sharding.mesh, PartitionSpec(*spec), memory_kind=sharding.memory_kind
            )
        return ShardingConstraint(sharding)(x), dim

    def lower(self, ctx, x):
        return ctx.via_jax(lambda x: jax.lax.with_sharding_constraint(x, self.sharding), x)


def with_auto_axes(mesh: Any) -> Any:
    """`mesh` with axes that XLA divides arrays over as it sees fit, save for what it is told."""
    if all(kind == AxisType.Auto for kind in mesh.axis_types):
        return mesh
    auto = (AxisType.Auto,) * len(mesh.axis_names)
    if isinstance(mesh, Mesh):
        return Mesh(mesh.devices, mesh.axis_names, axis_types=auto)
    return mesh.update(axis_types=auto)


def current_mesh(what: str) -> Any:
    """The mesh that `jax.set_mesh` set; ArgumentError without one."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        raise ArgumentError(
            f"{what}: there must be a mesh for a PartitionSpec; got none",
            fix="Pass a NamedSharding(mesh, spec), or `mesh`, or call it within jax.set_mesh(mesh).",
        )
    return mesh


def mesh_axes_of_entry(entry: Any) -> tuple[Hashable, ...]:
    """The axes of a mesh that an entry of a PartitionSpec names."""
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return tuple(entry) if isinstance(entry, (tuple, list)) else (entry,)


def check_partition_spec(what: str, aval: ShapedArray, spec: Any, mesh: Any) -> None:
    """Raise unless `spec` names axes of `mesh`, each once, and divides `aval` into equal parts.

    ArgumentError, AxisError and ShapeError say which does not hold.
    """
    if len(spec) > aval.ndim:
        raise AxisError(
            f"{what}: a PartitionSpec must have at most one entry a dimension; got {spec} for "
            f"{aval!r}"
        )
    names = [name for entry in spec for name in mesh_axes_of_entry(entry)]
    unknown = [name for name in names if name not in mesh.axis_names]
    if unknown or len(set(names)) != len(names):
        raise ArgumentError(
            f"{what}: a PartitionSpec must name axes of the mesh, each once; got {spec} for a mesh "
            f"with the axes {', '.join(map(repr, mesh.axis_names))}"
        )
    for dim, entry in enumerate(spec):
        count = prod([mesh.shape[name] for name in mesh_axes_of_entry(entry)])
        if aval.shape[dim] % count:
            raise ShapeError(
                f"{what}: a dimension must be a multiple of the {count} devices that it is divided "
                f"among; got {aval!r}, whose dimension {dim} is {aval.shape[dim]}, for {spec}",
                fix="Pad it, for instance with functx.numpy.pad, or divide another dimension.",
            )
