"""`shard_map`, and its equation: a program that every device runs on its shards of the operands."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from functx import ops
from functx.core import tree
from functx.core.backend import backend
from functx.core.effects import is_ordered
from functx.core.errors import (
    ArgumentError,
    DTypeError,
    EffectError,
    ReplicationError,
    ShapeError,
    TreeError,
    type_name,
)
from functx.core.masks import (
    inexact_mask,
    linear_mask,
    scatter_where,
    select_where,
    select_where_not,
)
from functx.core.named_axes import (
    Axis,
    batched_axis,
    batched_axis_names,
    bind_named_axes,
    bound_axes,
)
from functx.core.primitive_families import HasDCE
from functx.core.program import Program
from functx.core.program_calls import apply_program
from functx.core.rewriting import Rewrite, apply, cached_rewrite
from functx.core.samples import LazySamples, f64, sample
from functx.core.tracer import Tracer
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray
from functx.core.typing import (
    Avals,
    Cotangent,
    Cotangents,
    Dims,
    Flags,
    Function,
    IRValue,
    IRValues,
    PyTree,
    Tangents,
    Value,
    Values,
)
from functx.lowering.functx_call import bind_functx_call
from functx.lowering.meshes import resolve_boundaries, varying_axes
from functx.ops.operands import batch_size
from functx.transforms.argument_names import (
    InputNames,
    argument_names,
    as_decorator,
    check_callable,
    function_name,
    key_path_strings,
    wrap_transform,
)
from functx.transforms.batching import BatchWithInferredOutDims
from functx.transforms.call_primitive import RematerializedCall
from functx.transforms.dce import active_outputs, dce_program
from functx.transforms.forward_mode import Linearize
from functx.transforms.linear_transpose import Transpose
from functx.transforms.reverse_mode import SplitVJP
from functx.transforms.tracing_api import TracedFunction, avals_of, trace_function

if TYPE_CHECKING:
    from functx.core.tree import TreeDef
    from functx.lowering.stablehlo_emitter import LoweringContext


DimSpecs = tuple[Any, ...]


def _sample_program() -> Program:
    def body(x: Value, y: Value) -> list[Value]:
        return [ops.mul(ops.sin(x), ops.Psum(("i",))(y)), y]

    return trace_closed(body, [f64[3], f64[3]], name="example")


MeshLike: TypeAlias = jax.sharding.Mesh | AbstractMesh
"""A mesh of devices, or one that names axes only."""
_SAMPLE_MESH = AbstractMesh((1,), ("i",), axis_types=(AxisType.Auto,))


class ShardMap(HasDCE):
    """The outputs of `program`, which every device of `mesh` runs on its shards of the operands.

    A spec has an entry for each dimension: the mesh axes over which it is divided, in order. `axes`
    are the manual axes, over which `program` may have collectives. Along an axis that no entry names,
    every device has the whole operand, and returns the same output.
    """

    program: Program
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh
    in_specs: tuple[DimSpecs, ...]
    out_specs: tuple[DimSpecs, ...]
    axes: tuple[Any, ...]
    multiple_results = True
    samples = LazySamples(
        lambda: (
            sample(
                f64[3],
                f64[3],
                program=_sample_program(),
                mesh=_SAMPLE_MESH,
                in_specs=((("i",),), (("i",),)),
                out_specs=((("i",),), (("i",),)),
                axes=("i",),
            ),
        )
    )

    @property
    def named_axes(self) -> frozenset[Hashable]:  # type: ignore[override]
        return self.program.named_axes - frozenset(self.axes)

    def run(self, args: Values, name: str) -> list[Value]:
        """The outputs on `args`: one equation in a trace; outside, those of a compiled program called `name`."""
        if any(type(x) is Tracer for x in args):
            return self(*args)  # type: ignore[no-any-return]
        pairs = zip(self.program.in_avals, self.in_specs, strict=True)
        avals = [self.global_aval(a, s) for a, s in pairs]
        return apply(None, trace_closed(self, avals, name=name), args)

    def global_aval(self, aval: ShapedArray, spec: DimSpecs) -> ShapedArray:
        """The aval of the array whose shards, by `spec`, are of `aval`."""
        sizes = [self.num_shards(entry) for entry in spec]
        return aval.update(shape=tuple([n * k for n, k in zip(aval.shape, sizes, strict=True)]))

    def num_shards(self, names: Sequence[Hashable]) -> int:
        """The product of the sizes of mesh axes."""
        return prod([self.mesh.shape[name] for name in names])

    def abstract_eval(self, *avals: ShapedArray) -> Avals:
        pairs = zip(self.program.in_avals, self.in_specs, strict=True)
        wanted = [self.global_aval(aval, spec) for aval, spec in pairs]
        if [(a.shape, a.dtype) for a in avals] != [(a.shape, a.dtype) for a in wanted]:
            same = [a.dtype for a in avals] == [a.dtype for a in wanted]
            raise (ShapeError if same else DTypeError)(
                "shard_map: operands must have the types whose parts the program takes; got "
                f"{', '.join(map(repr, avals))} for {', '.join(map(repr, wanted))}"
            )
        pairs = zip(self.program.out_avals, self.out_specs, strict=True)
        return [self.global_aval(aval, spec) for aval, spec in pairs]

    def with_program(
        self, program: Program, in_specs: Sequence[DimSpecs], out_specs: Sequence[DimSpecs]
    ) -> ShardMap:
        """The map of another program over the same axes."""
        return ShardMap(program, self.mesh, tuple(in_specs), tuple(out_specs), self.axes)

    def residual_spec(self, aval: ShapedArray) -> DimSpecs:
        """The spec of a residual, which each device keeps along a new first dimension."""
        return (self.axes, *[()] * aval.ndim)

    def replicated_axes(self, spec: DimSpecs) -> tuple[Any, ...]:
        """The axes along which all devices have the same shard."""
        return tuple([name for name in self.axes if all(name not in entry for entry in spec)])

    def dce(self, used: Flags) -> tuple[ShardMap, tuple[int, ...], tuple[int, ...]] | None:
        if all(used):
            return None
        outputs = tuple([i for i, on in enumerate(used) if on])
        program, inputs = dce_program(self.program, outputs)
        return (
            self.with_program(
                program, [self.in_specs[i] for i in inputs], select_where(self.out_specs, used)
            ),
            inputs,
            outputs,
        )

    def varying_outputs(self, avals: Avals, active: Flags) -> list[bool]:
        return active_outputs(self.program, active)

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        flags = tuple([t is not None for t in tangents])
        values, linear = cached_rewrite(Linearize(flags), self.program)
        outs, residuals, specs = self.run_known(values, primals)
        given = select_where(tangents, flags)
        inexact = inexact_mask(self.program.out_avals)
        push = cached_rewrite(DropShardAxis(len(given)), linear)
        own = [*select_where(self.in_specs, flags), *specs]
        pushed = self.with_program(push, own, select_where(self.out_specs, inexact))(
            *given, *residuals
        )
        return outs, scatter_where(pushed, inexact)

    def run_known(self, values: Program, args: Values) -> tuple[list[Value], list[Value], Any]:
        """The outputs of the known program of a split, its residuals, and the specs of these."""
        count = len(self.program.outputs)
        specs = [self.residual_spec(a) for a in values.out_avals[count:]]
        first = self.with_program(
            cached_rewrite(AddShardAxis(count), values), self.in_specs, [*self.out_specs, *specs]
        )
        found = first(*args)
        return found[:count], found[count:], specs

    def forward(self, args: Values, active: Flags) -> tuple[Values, Values]:
        values, _ = cached_rewrite(backend.limit_residuals(SplitVJP(tuple(active))), self.program)
        outs, residuals, _ = self.run_known(values, args)
        return outs, residuals

    def vjp(self, cts: Cotangents, residuals: Values, args: Values, active: Flags) -> Cotangents:
        split = backend.limit_residuals(SplitVJP(tuple(active)))
        values, backward = cached_rewrite(split, self.program)
        if backend.recomputes_forward(split, self.program):
            backward = cached_rewrite(WrapInRematerialize(), backward)
        specs = [self.residual_spec(a) for a in values.out_avals[len(cts) :]]
        given = ops.inexact_cotangents(cts, self.program.out_avals)
        back = cached_rewrite(DropShardAxis(len(given)), backward)
        return scatter_where(self.run_backward(back, active, given, residuals, specs), active)

    def transpose(self, cts: Cotangents, *args: Value) -> Cotangents:
        linear = linear_mask(args)
        back = cached_rewrite(Transpose(linear), self.program)
        given = ops.inexact_cotangents(cts, self.program.out_avals)
        rest = select_where_not(args, linear)
        return scatter_where(
            self.run_backward(back, linear, given, rest, select_where_not(self.in_specs, linear)),
            linear,
        )

    def run_backward(
        self, back: Program, active: Flags, cts: Cotangents, rest: Values, specs: Sequence[DimSpecs]
    ) -> list[Cotangent]:
        """The cotangents of the operands marked `active`, by the backward program of one device."""
        ct_specs = select_where(self.out_specs, inexact_mask(self.program.out_avals))
        own = select_where(self.in_specs, active)
        shares = tuple([self.num_shards(self.replicated_axes(spec)) for spec in ct_specs])
        sums = tuple([self.replicated_axes(spec) for spec in own])
        program = cached_rewrite(ReduceReplicatedCotangents(shares, sums), back)
        return self.with_program(program, [*ct_specs, *specs], own)(*cts, *rest)

    def batch(self, args: Values, dims: Dims) -> tuple[Values, Dims]:
        size, axis = batch_size(args, dims), batched_axis()
        named = {name for spec in (*self.in_specs, *self.out_specs) for e in spec for name in e}
        over = () if axis is None else axis.mesh_axes
        # A batch that is sharded over axes of the mesh is divided over them.
        if not named.isdisjoint(over) or batched_axis_names().name in self.named_axes:
            over = ()
        over = tuple([name for name in over if name in self.axes])
        local, rest = divmod(size, self.num_shards(over))
        if rest:
            over, local = (), size
        program, out_dims = cached_rewrite(
            BatchWithInferredOutDims(local, tuple(dims)), self.program
        )
        in_specs = [insert_dim_spec(s, d, over) for s, d in zip(self.in_specs, dims, strict=True)]
        out_specs = [
            insert_dim_spec(s, d, over) for s, d in zip(self.out_specs, out_dims, strict=True)
        ]
        return self.with_program(program, in_specs, out_specs)(*args), out_dims

    def lower(self, ctx: LoweringContext, *values: IRValue) -> IRValues:
        several = len(self.out_specs) != 1

        def run(*xs: Value) -> Value | Values:
            outs = bind_functx_call(self.program, xs, ctx.module.target.outline)
            return tuple(outs) if several else outs[0]

        # Inside another map, JAX's mesh has axes that are mapped already.
        here = jax.sharding.get_abstract_mesh()
        out_specs = tuple([PartitionSpec(*spec) for spec in self.out_specs])
        mapped = jax.shard_map(
            run,
            mesh=here if here.manual_axes else self.mesh,
            in_specs=tuple([PartitionSpec(*spec) for spec in self.in_specs]),
            out_specs=out_specs if several else out_specs[0],
            axis_names=set(self.axes),
            check_vma=False,
        )
        outs = ctx.via_jax(mapped, *values)
        return outs if several else [outs]


def insert_dim_spec(spec: DimSpecs, dim: int | None, names: Sequence[Hashable]) -> DimSpecs:
    """`spec` of an array with a new dimension `dim`, divided over `names`."""
    return spec if dim is None else (*spec[:dim], tuple(names), *spec[dim:])


def dim_specs_of(spec: PartitionSpec, ndim: int) -> DimSpecs:
    """A PartitionSpec as a spec of `ShardMap`."""
    return tuple([ops.mesh_axes_of_entry(e) for e in spec]) + ((),) * (ndim - len(spec))


class AddShardAxis(Rewrite[Program]):
    """Rewrites a program to add a first dimension to its outputs from number `first` on."""

    first: int

    def __call__(self, program: Program) -> Program:
        def body(*args: Value) -> list[Value]:
            outs = apply_program(program, args)
            return [*outs[: self.first], *[ops.expand_dims(x, (0,)) for x in outs[self.first :]]]

        return trace_closed(body, program.in_avals, name=program.name, in_names=program.in_names)


class DropShardAxis(Rewrite[Program]):
    """Rewrites a program to take its inputs from number `first` on with a first dimension of size 1."""

    first: int

    def __call__(self, program: Program) -> Program:
        def body(*args: Value) -> list[Value]:
            rows = [ops.squeeze(x, (0,)) for x in args[self.first :]]
            return apply_program(program, [*args[: self.first], *rows])

        own, rest = program.in_avals[: self.first], program.in_avals[self.first :]
        avals = [*own, *[a.update(shape=(1, *a.shape)) for a in rest]]
        return trace_closed(body, avals, name=program.name)


class WrapInRematerialize(Rewrite[Program]):
    """Rewrites a program into one that calls it as a rematerialized program."""

    def __call__(self, program: Program) -> Program:
        def body(*args: Value) -> list[Value]:
            return RematerializedCall(program, True)(*args)

        return trace_closed(body, program.in_avals, name=program.name)


class ReduceReplicatedCotangents(Rewrite[Program]):
    """Rewrites the backward program of one device to take and return replicated cotangents.

    The cotangent of an output that `replica_counts[k]` devices have is divided by that number; that
    of an operand that the devices along `psum_axes[i]` share is summed over them.
    """

    replica_counts: tuple[int, ...]
    psum_axes: tuple[tuple[Hashable, ...], ...]

    def __call__(self, program: Program) -> Program:
        def body(*args: Value) -> list[Value]:
            n = len(self.replica_counts)
            cts = [
                ct if k == 1 else ops.div(ct, k)
                for ct, k in zip(args[:n], self.replica_counts, strict=True)
            ]
            outs = apply_program(program, [*cts, *args[n:]])
            return [
                ops.Psum(names)(x) if names else x
                for x, names in zip(outs, self.psum_axes, strict=True)
            ]

        return trace_closed(body, program.in_avals, name=program.name)


def shard_map(
    f: Function | None = None,
    /,
    *,
    out_specs: PyTree,
    in_specs: PyTree = None,
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh | None = None,
    axis_names: Iterable[Hashable] = frozenset(),
    check_vma: bool = True,
) -> Function:
    """Maps `f` over shards of its arguments, one on each device of `mesh`, as `jax.shard_map` does.

    `in_specs` is a tree prefix of the arguments with a `jax.sharding.PartitionSpec` at each leaf: the
    mesh axes over which each dimension is divided. Along axes that are not named, each device gets
    the whole. `out_specs` says in the same way how results are put together. A result must be the
    same along axes that its spec does not name, which is checked if `check_vma`. Inside, collectives
    such as `lax.psum` work over `axis_names`, by default all. Without `in_specs`, arrays keep their
    shardings; without `mesh`, it is that of `jax.set_mesh`.

    Derivatives of the mapped function are those of the whole computation. A derivative taken inside
    counts a value that all devices share once, and its cotangent is summed over them; after
    `lax.pcast(x, axis_name, to="varying")` each device has its own. If `check_vma` is false, it is, as
    under `vmap`, the derivative of the sum over all devices of the values that `f` returns there.

    Raises ShapeError for a dimension that does not divide into equal parts, ReplicationError for
    a result that differs along an axis that its spec does not name, and ArgumentError for specs
    that fit neither the mesh nor the arguments.
    """
    if f is None:
        return as_decorator(shard_map, locals())
    check_callable(f, "shard_map")
    label = f"shard_map({function_name(f)})"
    _check_mesh(label, mesh)

    def wrapper(*args: PyTree) -> PyTree:
        leaves, in_tree = tree.flatten_with_key_data((args, {}))
        device_mesh = ops.with_auto_axes(mesh if mesh is not None else ops.current_mesh(label))
        names = _mapped_axes(label, device_mesh, axis_names)
        leaf_names = argument_names(f, in_tree)
        avals = avals_of(leaves, "shard_map", f, in_tree)
        if in_specs is None:
            leaf_specs = _specs_from_shardings(label, tree.leaves(args), device_mesh, leaf_names)
        else:
            prefix = tuple(in_specs) if isinstance(in_specs, list) else in_specs
            leaf_specs = _flatten_specs(f"{label}: in_specs", prefix, tree.structure(args))
        per_leaf = zip(leaf_names(), avals, leaf_specs, tree.key_leaves(in_tree), strict=True)
        specs = [
            _check_spec(f"{label}: `{name}`", aval, spec, device_mesh, names, is_key)
            for name, aval, spec, is_key in per_leaf
        ]
        local_avals = [
            _local_aval(aval, spec, device_mesh) for aval, spec in zip(avals, specs, strict=True)
        ]
        axes = [Axis(n, device_mesh.shape[n], tracks_varying=check_vma) for n in names]
        with bind_named_axes((*bound_axes(), *axes)):
            traced = trace_function(f, in_tree, local_avals, "shard_map").refuse_writes(label)
        if is_ordered(traced.program.effects):
            raise EffectError(
                f"{label}: effects on several devices must not be ordered; got some that are",
                fix="Leave out ordered=True.",
            )
        # Every device has the whole of a captured array.
        specs += [((),) * a.ndim for a in traced.program.in_avals[len(specs) :]]
        checked_out_specs = _out_specs(label, out_specs, traced, device_mesh, names)
        if check_vma:
            in_axes = [frozenset([name for entry in spec for name in entry]) for spec in specs]
            traced = traced._replace(program=resolve_boundaries(traced.program, in_axes))
            _check_replicated(label, traced, in_axes, checked_out_specs, names)
        mapped = ShardMap(traced.program, device_mesh, tuple(specs), checked_out_specs, names)
        outs = mapped.run([*leaves, *traced.captured], function_name(f))
        return tree.unflatten(traced.out_tree, outs)

    return wrap_transform(wrapper, f, "shard_map")


def _check_mesh(label: str, mesh: object) -> None:
    if not isinstance(mesh, (jax.sharding.Mesh, jax.sharding.AbstractMesh, type(None))):
        raise ArgumentError(
            f"{label}: mesh must be a jax.sharding.Mesh; got {type_name(mesh)}",
            fix="Make one with jax.make_mesh((count,), (name,)).",
        )


def _mapped_axes(
    label: str, mesh: MeshLike, axis_names: Iterable[Hashable]
) -> tuple[Hashable, ...]:
    """The axes of the mesh that are named, or all; ArgumentError for a name of no axis."""
    names = tuple([n for n in mesh.axis_names if not axis_names or n in axis_names])
    if unknown := set(axis_names) - set(names):
        raise ArgumentError(
            f"{label}: axis_names must be axes of the mesh; got {sorted(map(str, unknown))} for "
            f"a mesh with the axes {mesh.axis_names}"
        )
    return names


def _flatten_specs(what: str, specs: PyTree, like: TreeDef) -> Sequence[PartitionSpec | None]:
    """One spec for each leaf of the structure `like`."""
    try:
        return tree.broadcast_prefix(specs, like, what)
    except TreeError as error:
        raise ArgumentError(error.problem, *error.details) from None


def _specs_from_shardings(
    what: str,
    leaves: Values,
    mesh: MeshLike,
    shown: InputNames,
) -> Sequence[PartitionSpec | None]:
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
    what: str,
    aval: ShapedArray,
    spec: object,
    mesh: MeshLike,
    names: Sequence[Hashable],
    is_key: bool,
) -> DimSpecs:
    """The spec of an array, or of typed keys with words of type `aval`, which are not divided."""
    spec = PartitionSpec() if spec is None else spec
    if not isinstance(spec, PartitionSpec):
        raise ArgumentError(f"{what}: specs must be PartitionSpecs; got {type_name(spec)} {spec!r}")
    ops.check_partition_spec(what, aval.update(shape=aval.shape[: aval.ndim - is_key]), spec, mesh)
    found = dim_specs_of(spec, aval.ndim)
    if others := [name for entry in found for name in entry if name not in names]:
        raise ArgumentError(
            f"{what}: specs must name axes among axis_names; got {others[0]!r} for {tuple(names)}",
            fix="Divide over the others with functx.lax.with_sharding_constraint.",
        )
    return found


def _local_aval(aval: ShapedArray, spec: DimSpecs, mesh: MeshLike) -> ShapedArray:
    shape = list(aval.shape)
    for dim, entry in enumerate(spec):
        for name in entry:
            shape[dim] //= mesh.shape[name]
    return aval.update(shape=tuple(shape))


def _out_specs(
    what: str,
    out_specs: PyTree,
    traced: TracedFunction,
    mesh: MeshLike,
    names: Sequence[Hashable],
) -> tuple[DimSpecs, ...]:
    flat = _flatten_specs(f"{what}: out_specs", out_specs, traced.out_tree)
    found = []
    marks = tree.key_leaves(traced.out_tree)
    for where, aval, spec, is_key in zip(
        _output_paths(traced), traced.out_avals, flat, marks, strict=True
    ):
        spec = PartitionSpec() if spec is None else spec
        # Any number of shards make up a result.
        whole = aval.update(shape=(0,) * aval.ndim)
        found.append(_check_spec(f"{what}: {where}", whole, spec, mesh, names, is_key))
    return tuple(found)


def _output_paths(traced: TracedFunction) -> list[str]:
    return [f"output{path}" for path in key_path_strings(traced.out_tree, traced.out_avals)]


def _check_replicated(
    what: str,
    traced: TracedFunction,
    given: Sequence[frozenset[Hashable]],
    out_specs: Sequence[DimSpecs],
    names: Sequence[Hashable],
) -> None:
    """Raises ReplicationError for an output that differs along axes that its spec does not name."""
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
