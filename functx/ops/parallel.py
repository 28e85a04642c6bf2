"""Sharding constraints, and the collectives of JAX across named axes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from inspect import Parameter, signature
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from functx import ops
from functx.core import tree
from functx.core.errors import ArgumentError, AxisError, ShapeError, ValueRangeError, type_name
from functx.core.named_axes import batched_axis, canonical_axis_names, named_axis_size
from functx.core.primitive import Primitive
from functx.core.samples import c64, f32, sample
from functx.core.tracer import aval_of, current_builder
from functx.core.types import ShapedArray
from functx.core.typing import (
    ArrayLike,
    Cotangents,
    Dim,
    IRValue,
    Mask,
    NumPyArray,
    PyTree,
    PyTreeOrKeys,
    Value,
)
from functx.ops.collectives import (
    AxisIndexGroups,
)
from functx.ops.families import Linear, MovesElements
from functx.ops.operands import PYTHON_SCALARS, canonical_axis

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext

# A mesh without devices: importing must not initialize a backend.
_ONE_AXIS_SHARDING = NamedSharding(
    AbstractMesh((1,), ("i",), axis_types=(AxisType.Auto,)), PartitionSpec("i")
)


class ShardingConstraint(MovesElements, Linear):
    """The operand with the sharding `sharding`, which its tangents and cotangents get too."""

    sharding: Any
    is_element_mapping = True
    samples = (
        sample(f32[3, 4], sharding=_ONE_AXIS_SHARDING),
        sample(c64[3], sharding=_ONE_AXIS_SHARDING),
    )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        return x

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        return (self(ct),)

    def tangent_mask(self, masks: Sequence[Mask], args: Sequence[Value]) -> Mask:
        return masks[0]

    def cotangent_masks(self, mask: Mask, args: Sequence[Value]) -> Sequence[Mask]:
        return [mask]

    def batch(self, args: Sequence[Value], dims: Sequence[int]) -> tuple[Value, Dim]:
        (x,), (dim,) = args, dims
        sharding = self.sharding
        if isinstance(sharding, NamedSharding):
            axis = batched_axis()
            mesh_axes = axis.mesh_axes if axis is not None else ()
            spec = [*sharding.spec, *[None] * (x.ndim - 1 - len(sharding.spec))]
            spec.insert(dim, mesh_axes or PartitionSpec.UNCONSTRAINED)
            sharding = NamedSharding(
                sharding.mesh, PartitionSpec(*spec), memory_kind=sharding.memory_kind
            )
        return ShardingConstraint(sharding)(x), dim

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return x

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return ctx.via_jax(lambda x: jax.lax.with_sharding_constraint(x, self.sharding), x)


AxisNames: TypeAlias = Hashable | Sequence[Hashable]
"""The name of an axis, or the names of several."""
IndexGroups: TypeAlias = Sequence[Sequence[int]] | None
"""Groups of positions along an axis; None for one group of all."""
OutSharding: TypeAlias = NamedSharding | PartitionSpec | None
"""Where a result lies: a sharding, or a PartitionSpec of the mesh that `jax.set_mesh` set."""


def with_auto_axes(mesh: Mesh | AbstractMesh) -> Mesh | AbstractMesh:
    """`mesh` with all axes of type Auto, over which XLA chooses shardings."""
    if all(kind == AxisType.Auto for kind in mesh.axis_types):
        return mesh
    auto = (AxisType.Auto,) * len(mesh.axis_names)
    if isinstance(mesh, Mesh):
        return Mesh(mesh.devices, mesh.axis_names, axis_types=auto)
    return mesh.update(axis_types=auto)


def current_mesh(name: str) -> Mesh | AbstractMesh:
    """The mesh that `jax.set_mesh` set; ArgumentError without one."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        raise ArgumentError(
            f"{name}: there must be a mesh for a PartitionSpec; got none",
            fix="Pass a NamedSharding(mesh, spec), or `mesh`, or call it within jax.set_mesh(mesh).",
        )
    return mesh


def refuse_unreduced(what: str, spec: PartitionSpec) -> None:
    """Raise ArgumentError if `spec` has unreduced or reduced axes, which functx does not track."""
    if spec.unreduced or spec.reduced:
        raise ArgumentError(
            f"{what}: a PartitionSpec must have no unreduced and no reduced axes; got {spec}",
            fix="Sum over them first: jax.reshard(x, PartitionSpec(...)), outside functions of functx.",
        )


def mesh_axes_of_entry(entry: object) -> tuple[Hashable, ...]:
    """The axes of a mesh that an entry of a PartitionSpec names."""
    if entry is None or entry is PartitionSpec.UNCONSTRAINED:
        return ()
    return tuple(entry) if isinstance(entry, (tuple, list)) else (entry,)


def check_partition_spec(
    what: str, aval: ShapedArray, spec: PartitionSpec, mesh: Mesh | AbstractMesh
) -> None:
    """Raise unless `spec` names axes of `mesh`, each once, and divides `aval` into equal parts.

    Raises ArgumentError, AxisError or ShapeError.
    """
    refuse_unreduced(what, spec)
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


def with_sharding_constraint(x: PyTree, shardings: PyTree) -> PyTree:
    """`x` with each leaf sharded as `shardings` specify; its derivatives are sharded so too.

    `shardings` is a tree prefix of `x` with a sharding of JAX at each leaf, a PartitionSpec of
    the mesh that `jax.set_mesh` set, or None to leave a leaf alone. A sharding over an empty mesh,
    such as `functx.typeof(x).sharding` where there is no mesh, leaves it alone, too.

    Raises ShapeError for a dimension that cannot be divided into equal parts, and ArgumentError
    for what is no sharding.
    """
    leaves, structure = tree.flatten_with_key_data(x)
    op = "with_sharding_constraint"
    flat = tree.broadcast_prefix(shardings, structure, f"{op}: shardings")
    outs = [_constrain_leaf(op, leaf, s) for leaf, s in zip(leaves, flat, strict=True)]
    return tree.unflatten(structure, outs)


def place_result(x: Value, out_sharding: OutSharding) -> Value:
    """`x`, sharded as `out_sharding` says unless it is None."""
    return x if out_sharding is None else with_sharding_constraint(x, out_sharding)


def with_sharding_keyword(
    function: Callable[..., Value], keyword: str = "out_sharding"
) -> Callable[..., Value]:
    """`function` with a further keyword, the sharding of its result; None leaves it to XLA."""

    @wraps(function)
    def call(*args: PyTree, **kwargs: PyTree) -> Value:
        sharding = kwargs.pop(keyword, None)
        out = function(*args, **kwargs)
        return place_result(out, sharding)

    own = signature(function)
    added = Parameter(keyword, Parameter.KEYWORD_ONLY, default=None)
    call.__signature__ = own.replace(parameters=[*own.parameters.values(), added])  # type: ignore[attr-defined]
    return call


def _constrain_leaf(op: str, leaf: ArrayLike, sharding: object) -> ArrayLike:
    if sharding is None:
        return leaf
    if isinstance(sharding, PartitionSpec):
        sharding = NamedSharding(current_mesh(op), sharding)
    if not isinstance(sharding, Sharding):
        raise ArgumentError(
            f"{op}: shardings must be shardings of JAX, or PartitionSpecs; got "
            f"{type_name(sharding)} {sharding!r}"
        )
    if isinstance(sharding, NamedSharding):
        check_partition_spec(op, aval_of(leaf), sharding.spec, sharding.mesh)
        if sharding.mesh.empty:
            # The sharding in the type of an array that no mesh divides.
            return leaf
        mesh = with_auto_axes(sharding.mesh)
        sharding = NamedSharding(mesh, sharding.spec, memory_kind=sharding.memory_kind)
    if current_builder.get() is None:
        # A NumPy array has no device.
        leaf = jax.numpy.asarray(leaf)
    return ShardingConstraint(sharding)(leaf)


def psum(x: PyTree, axis_name: AxisNames, *, axis_index_groups: IndexGroups = None) -> PyTree:
    """The sum of each leaf of `x` over the axis, or axes, `axis_name`.

    `axis_index_groups`, lists of indices, restricts it to the positions of a group. A Python number
    is the same at all positions: `psum(1, "i")` is the length of the axis. Booleans are counted.

    Raises UnboundAxisError where nothing binds the axis.

    >>> import functx, numpy
    >>> share = lambda x: x / functx.lax.psum(x, "i")
    >>> functx.vmap(share, axis_name="i")(numpy.array([1.0, 3.0])).tolist()
    [0.25, 0.75]
    """
    names, sizes, groups = _bound_axes("psum", axis_name, axis_index_groups)

    def add_up(leaf: Value | complex) -> ArrayLike:
        if type(leaf) in PYTHON_SCALARS:
            return leaf * prod(sizes)
        if aval_of(leaf).dtype == bool:
            leaf = ops.convert_element_type(leaf, np.int32)
        return ops.Psum(names, groups)(leaf)

    return tree.map(add_up, x)


def pmean(x: PyTree, axis_name: AxisNames, *, axis_index_groups: IndexGroups = None) -> PyTree:
    """The mean of each leaf of `x` over `axis_name`, or over the positions of a group."""
    _, sizes, _ = _bound_axes("pmean", axis_name, axis_index_groups)
    total = psum(x, axis_name, axis_index_groups=axis_index_groups)
    return tree.map(lambda leaf: leaf / prod(sizes), total)


def pmax(x: PyTree, axis_name: AxisNames, *, axis_index_groups: IndexGroups = None) -> PyTree:
    """The maximum of each leaf of `x` over `axis_name`, or over the positions of a group.

    Positions that tie share the derivative.
    """
    return _all_reduce_extremum("pmax", ops.Pmax, x, axis_name, axis_index_groups)


def pmin(x: PyTree, axis_name: AxisNames, *, axis_index_groups: IndexGroups = None) -> PyTree:
    """The minimum of each leaf of `x` over `axis_name`, or over the positions of a group.

    Positions that tie share the derivative.
    """
    return _all_reduce_extremum("pmin", ops.Pmin, x, axis_name, axis_index_groups)


def _all_reduce_extremum(
    op: str,
    primitive: Callable[..., Primitive],
    x: PyTree,
    axis_name: AxisNames,
    axis_index_groups: IndexGroups,
) -> PyTree:
    names, _, groups = _bound_axes(op, axis_name, axis_index_groups)

    def choose(leaf: ArrayLike) -> ArrayLike:
        return leaf if type(leaf) in PYTHON_SCALARS else primitive(names, groups)(leaf)

    return tree.map(choose, x)


def all_gather(
    x: PyTreeOrKeys,
    axis_name: AxisNames,
    *,
    axis_index_groups: IndexGroups = None,
    axis: int = 0,
    tiled: bool = False,
    to: str = "varying",
) -> PyTree:
    """Each leaf of `x` from all positions of `axis_name`, stacked along a new dimension `axis`.

    With `tiled`, they are concatenated along their dimension `axis`. Every position gets the result;
    `to="invariant"` tells `shard_map` that it is replicated.
    """
    names, sizes, groups = _bound_axes("all_gather", axis_name, axis_index_groups)
    if to not in ("varying", "invariant"):
        raise ValueRangeError(f'all_gather: to must be "varying" or "invariant"; got {to!r}')

    def gather(leaf: ArrayLike) -> Value:
        ndim = aval_of(leaf).ndim
        along = canonical_axis(axis, ndim if tiled else ndim + 1)
        leaf = leaf if tiled else ops.expand_dims(leaf, (along,))
        return ops.AllGather(names, sizes, groups, along, to == "invariant")(leaf)

    return tree.map(gather, x)


def psum_scatter(
    x: PyTree,
    axis_name: AxisNames,
    *,
    scatter_dimension: int = 0,
    axis_index_groups: IndexGroups = None,
    tiled: bool = False,
) -> PyTree:
    """The sum of each leaf of `x` over `axis_name`, of which each position gets the part of its index.

    The parts lie along `scatter_dimension`, which is removed. With `tiled` it stays, divided by the
    length of the axis.

    Raises ShapeError for a dimension that cannot be divided so.
    """
    names, sizes, groups = _bound_axes("psum_scatter", axis_name, axis_index_groups)

    def scatter(leaf: ArrayLike) -> Value:
        aval = aval_of(leaf)
        along = canonical_axis(scatter_dimension, aval.ndim, "scatter_dimension")
        if not tiled:
            _check_dim_matches_axis("psum_scatter", "scatter_dimension", along, aval, sizes)
        out = ops.PsumScatter(names, sizes, groups, along)(leaf)
        return out if tiled else ops.squeeze(out, (along,))

    return tree.map(scatter, x)


def all_to_all(
    x: PyTreeOrKeys,
    axis_name: AxisNames,
    split_axis: int,
    concat_axis: int,
    *,
    axis_index_groups: IndexGroups = None,
    tiled: bool = False,
) -> PyTree:
    """Each leaf of `x` with the axis `axis_name` and its dimension `split_axis` exchanged.

    Position j gets element j along `split_axis` of all positions, stacked along the dimension
    `concat_axis` of the result. With `tiled`, parts of `split_axis` are concatenated along the
    dimension `concat_axis`, and no dimension is added or removed.

    Raises ShapeError for a dimension that cannot be divided so.
    """
    names, sizes, groups = _bound_axes("all_to_all", axis_name, axis_index_groups)

    def exchange(leaf: ArrayLike) -> Value:
        aval = aval_of(leaf)
        split = canonical_axis(split_axis, aval.ndim, "split_axis")
        concat = canonical_axis(concat_axis, aval.ndim, "concat_axis")
        if tiled:
            return ops.AllToAll(names, sizes, groups, split, concat)(leaf)
        _check_dim_matches_axis("all_to_all", "split_axis", split, aval, sizes)
        if split == concat:
            return ops.AllToAll(names, sizes, groups, split, concat)(leaf)
        if split < concat:
            concat += 1
        else:
            split += 1
        out = ops.AllToAll(names, sizes, groups, split, concat)(ops.expand_dims(leaf, (concat,)))
        return ops.squeeze(out, (split,))

    return tree.map(exchange, x)


def pswapaxes(
    x: PyTreeOrKeys, axis_name: AxisNames, axis: int, *, axis_index_groups: IndexGroups = None
) -> PyTree:
    """Each leaf of `x` with the axis `axis_name` and its dimension `axis` exchanged."""
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)


def ppermute(x: PyTreeOrKeys, axis_name: AxisNames, perm: Sequence[tuple[int, int]]) -> PyTree:
    """Each leaf of `x` sent between positions, by the pairs (source, destination) in `perm`.

    A position that is no destination gets zeros.

    Raises ValueRangeError for a position out of range, or one that is twice a source or a destination.
    """
    names, sizes, _ = _bound_axes("ppermute", axis_name, None)
    try:
        pairs = [(index(source), index(destination)) for source, destination in perm]
    except TypeError:
        raise ArgumentError(
            f"ppermute: perm must be a sequence of pairs of integers; got {perm!r}"
        ) from None
    count = prod(sizes)
    for each in zip(*pairs, strict=True):
        if len(set(each)) != len(each) or not all(0 <= place < count for place in each):
            raise ValueRangeError(
                f"ppermute: perm must have each of the {count} places at most once as a source and "
                f"once as a destination; got {perm}"
            )
    return tree.map(ops.Ppermute(names, tuple(sorted(pairs))), x)


def pshuffle(x: PyTreeOrKeys, axis_name: AxisNames, perm: Sequence[int]) -> PyTree:
    """Each leaf of `x` from another position: position j gets that of position `perm[j]`.

    Raises ValueRangeError unless `perm` is a permutation of all positions.
    """
    _, sizes, _ = _bound_axes("pshuffle", axis_name, None)
    if sorted(perm) != list(range(prod(sizes))):
        raise ValueRangeError(
            f"pshuffle: perm must have each of the {prod(sizes)} places once; got {perm}"
        )
    return ppermute(x, axis_name, list(zip(perm, range(len(perm)), strict=True)))


def pbroadcast(x: PyTreeOrKeys, axis_name: AxisNames, source: int) -> PyTree:
    """Each leaf of `x` at the position `source`, sent to all positions."""
    is_source = ops.eq(axis_index(axis_name), source)
    return psum(
        tree.map(lambda leaf: ops.select(is_source, leaf, ops.zeros_like(leaf)), x), axis_name
    )


def pcast(x: PyTree, axis_name: AxisNames, *, to: str) -> PyTree:
    """`x` marked as varying along `axis_name`; `to` must be "varying".

    It affects derivatives inside `shard_map`: the gradient in a replicated value is summed over the
    axis, the gradient in the result of `pcast` is not.
    """
    names, _, _ = _bound_axes("pcast", axis_name, None)
    if to != "varying":
        raise ValueRangeError(f'pcast: to must be "varying"; got {to!r}')
    return tree.map(ops.Pvary(names), x)


def axis_index(axis_name: AxisNames) -> Value:
    """The index along the axis `axis_name`, an int32; the first of several axes is the major one."""
    number: Any = None
    for name in canonical_axis_names(axis_name):
        size = named_axis_size(name, "axis_index")
        position = ops.AxisIndex(name, size)()
        number = position if number is None else ops.add(ops.mul(number, size), position)
    return number


def axis_size(axis_name: AxisNames) -> int:
    """The length of the axis `axis_name`, or the product for several, a Python int.

    Raises UnboundAxisError where nothing binds the axis.
    """
    return prod([named_axis_size(name, "axis_size") for name in canonical_axis_names(axis_name)])


def _bound_axes(
    op: str, axis_name: AxisNames, groups: IndexGroups
) -> tuple[tuple[Any, ...], tuple[int, ...], AxisIndexGroups]:
    """The names of the axes, their lengths or that of a group, and the groups."""
    names = canonical_axis_names(axis_name)
    sizes = tuple([named_axis_size(name, op) for name in names])
    if groups is None:
        return names, sizes, None
    try:
        groups = tuple([tuple([index(place) for place in group]) for group in groups])
    except TypeError:
        raise ArgumentError(
            f"{op}: axis_index_groups must be lists of integers; got {groups!r}"
        ) from None
    count = prod(sizes)
    if sorted([place for group in groups for place in group]) != list(range(count)):
        raise ValueRangeError(
            f"{op}: axis_index_groups must have each of the {count} places once; got {groups}"
        )
    if len({len(group) for group in groups}) != 1:
        raise ValueRangeError(
            f"{op}: the groups of axis_index_groups must have one length; got {groups}"
        )
    return names, (len(groups[0]),), groups


def _check_dim_matches_axis(
    op: str, name: str, axis: int, aval: ShapedArray, sizes: tuple[int, ...]
) -> None:
    if aval.shape[axis] != prod(sizes):
        raise ShapeError(
            f"{op}: without `tiled`, the dimension {name} must be as long as there are places; got "
            f"{aval!r}, whose dimension {axis} is {aval.shape[axis]}, for {prod(sizes)} places",
            fix="Pass tiled=True to divide it in as many parts.",
        )
