"""The equation of `shard_map`: a program that every device runs on its parts of the operands."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from functx.core.avals import ShapedArray
from functx.core.axes import batched_axis, batched_axis_names
from functx.core.editing import apply_program
from functx.core.errors import DTypeError, ShapeError
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.core.samples import f64, sample
from functx.core.tracing import trace_closed
from functx.lowering.call import bind_functx_call
from functx.ops.arithmetic import div, mul
from functx.ops.collectives import Psum
from functx.ops.operands import batch_size
from functx.ops.shaping import expand_dims, squeeze
from functx.ops.sharding import mesh_axes_of_entry
from functx.ops.trigonometric import sin
from functx.transforms.batching import BatchWithInferredOutDims
from functx.transforms.call import RematerializedCall, TransposeLinearInputs
from functx.transforms.expand import decompose_missing_rules
from functx.transforms.forward_mode import Linearize
from functx.transforms.marks import (
    inexact_cotangents,
    inexact_mask,
    linear_mask,
    scatter_where,
    select_where,
    select_where_not,
)
from functx.transforms.parts import active_outputs, dce_program
from functx.transforms.planning.planned import recomputes_forward, with_rematerialization
from functx.transforms.reverse_mode import SplitVJP

DimSpecs = tuple[Any, ...]


def _sample_program() -> Program:
    def body(x: Any, y: Any) -> list[Any]:
        return [mul(sin(x), Psum(("i",))(y)), y]

    return trace_closed(body, [f64[3], f64[3]], name="example")


_SAMPLE_MESH = AbstractMesh((1,), ("i",), axis_types=(AxisType.Auto,))


class ShardMap(Primitive):
    """The outputs of `program`, which every device of `mesh` runs on its parts of the operands.

    A spec has an entry a dimension: the mesh axes over which that is divided, in order. `axes`
    are those that `program` works across; each place along an axis that no entry names has the
    whole operand, and returns one and the same output.
    """

    program: Program
    mesh: Any
    in_specs: tuple[DimSpecs, ...]
    out_specs: tuple[DimSpecs, ...]
    axes: tuple[Any, ...]
    multiple_results = True
    samples = (
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

    @property
    def named_axes(self) -> frozenset[Any]:  # type: ignore[override]
        return self.program.named_axes - frozenset(self.axes)

    def global_aval(self, aval: ShapedArray, spec: DimSpecs) -> ShapedArray:
        """The type of the array whose parts, by `spec`, are of `aval`."""
        sizes = [self.num_shards(entry) for entry in spec]
        return aval.update(shape=tuple([n * k for n, k in zip(aval.shape, sizes, strict=True)]))

    def num_shards(self, names: Sequence[Any]) -> int:
        """The number of places along mesh axes."""
        return prod([self.mesh.shape[name] for name in names])

    def abstract_eval(self, *avals: Any) -> Any:
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
    ) -> Any:
        """Another program, run by the same devices."""
        return ShardMap(program, self.mesh, tuple(in_specs), tuple(out_specs), self.axes)

    def residual_spec(self, aval: ShapedArray) -> DimSpecs:
        """The spec of what each device keeps for itself, along a new first dimension."""
        return (self.axes, *[()] * aval.ndim)

    def replicated_axes(self, spec: DimSpecs) -> tuple[Any, ...]:
        """The axes along which all places have the same part."""
        return tuple([name for name in self.axes if all(name not in entry for entry in spec)])

    def dce(self, used: Sequence[bool]) -> Any:
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

    def varying_outputs(self, avals: Any, active: Sequence[bool]) -> list[bool]:
        return active_outputs(self.program, active)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
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

    def run_known(self, values: Program, args: Sequence[Any]) -> tuple[list[Any], list[Any], Any]:
        """The outputs of a split program, and what is kept behind them, with its specs."""
        count = len(self.program.outputs)
        specs = [self.residual_spec(a) for a in values.out_avals[count:]]
        first = self.with_program(
            cached_rewrite(AddShardAxis(count), values), self.in_specs, [*self.out_specs, *specs]
        )
        found = first(*args)
        return found[:count], found[count:], specs

    def forward(self, args: Sequence[Any], active: Sequence[bool]) -> Any:
        values, _ = cached_rewrite(with_rematerialization(SplitVJP(tuple(active))), self.program)
        outs, residuals, _ = self.run_known(values, args)
        return outs, residuals

    def vjp(self, cts: Any, residuals: Any, args: Any, active: Sequence[bool]) -> Any:
        split = with_rematerialization(SplitVJP(tuple(active)))
        values, backward = cached_rewrite(split, self.program)
        if recomputes_forward(split, self.program):
            backward = cached_rewrite(WrapInRematerialize(), backward)
        specs = [self.residual_spec(a) for a in values.out_avals[len(cts) :]]
        given = inexact_cotangents(cts, self.program.out_avals)
        back = cached_rewrite(DropShardAxis(len(given)), backward)
        return scatter_where(self.run_backward(back, active, given, residuals, specs), active)

    def transpose(self, cts: Any, *args: Any) -> Any:
        linear = linear_mask(args)
        back = cached_rewrite(
            TransposeLinearInputs(linear), decompose_missing_rules(self.program, "transpose")
        )
        given = inexact_cotangents(cts, self.program.out_avals)
        rest = select_where_not(args, linear)
        return scatter_where(
            self.run_backward(back, linear, given, rest, select_where_not(self.in_specs, linear)),
            linear,
        )

    def run_backward(
        self,
        back: Program,
        active: Sequence[bool],
        cts: Sequence[Any],
        rest: Sequence[Any],
        specs: Sequence[DimSpecs],
    ) -> list[Any]:
        """The cotangents of the operands that are `active`, by a program of one device's."""
        ct_specs = select_where(self.out_specs, inexact_mask(self.program.out_avals))
        own = select_where(self.in_specs, active)
        shares = tuple([self.num_shards(self.replicated_axes(spec)) for spec in ct_specs])
        sums = tuple([self.replicated_axes(spec) for spec in own])
        program = cached_rewrite(ReduceReplicatedCotangents(shares, sums), back)
        return self.with_program(program, [*ct_specs, *specs], own)(*cts, *rest)  # type: ignore[no-any-return]

    def batch(self, args: Sequence[Any], dims: Sequence[int | None]) -> Any:
        size, axis = batch_size(args, dims), batched_axis()
        named = {name for spec in (*self.in_specs, *self.out_specs) for e in spec for name in e}
        over = () if axis is None else axis.mesh_axes
        # A batch that lies over axes of the mesh is divided among these.
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

    def lower(self, ctx: Any, *values: Any) -> Any:
        several = len(self.out_specs) != 1

        def run(*xs: Any) -> Any:
            outs = bind_functx_call(self.program, xs, ctx.module.outline.mode)
            return tuple(outs) if several else outs[0]

        # Within another map JAX's mesh is the one of which some axes are mapped already.
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


def insert_dim_spec(spec: DimSpecs, dim: int | None, names: Sequence[Any]) -> DimSpecs:
    """`spec` of an array with a new dimension `dim`, which is divided over `names`."""
    return spec if dim is None else (*spec[:dim], tuple(names), *spec[dim:])


def dim_specs_of(spec: Any, ndim: int) -> DimSpecs:
    """A PartitionSpec as a spec of `ShardMap`."""
    return tuple([mesh_axes_of_entry(e) for e in spec]) + ((),) * (ndim - len(spec))


class AddShardAxis(Rewrite[Program]):
    """The rewrite to a program whose outputs from number `first` on have a new first dimension."""

    first: int

    def __call__(self, program: Program) -> Program:
        def body(*args: Any) -> list[Any]:
            outs = apply_program(program, args)
            return [*outs[: self.first], *[expand_dims(x, (0,)) for x in outs[self.first :]]]

        return trace_closed(body, program.in_avals, name=program.name, in_names=program.in_names)


class DropShardAxis(Rewrite[Program]):
    """The rewrite to a program whose inputs from number `first` on have a new first dimension."""

    first: int

    def __call__(self, program: Program) -> Program:
        def body(*args: Any) -> list[Any]:
            rows = [squeeze(x, (0,)) for x in args[self.first :]]
            return apply_program(program, [*args[: self.first], *rows])

        own, rest = program.in_avals[: self.first], program.in_avals[self.first :]
        avals = [*own, *[a.update(shape=(1, *a.shape)) for a in rest]]
        return trace_closed(body, avals, name=program.name)


class WrapInRematerialize(Rewrite[Program]):
    """The rewrite to a program that calls the program, so that it computes again what it is to."""

    def __call__(self, program: Program) -> Program:
        def body(*args: Any) -> list[Any]:
            return RematerializedCall(program, True)(*args)  # type: ignore[no-any-return]

        return trace_closed(body, program.in_avals, name=program.name)


class ReduceReplicatedCotangents(Rewrite[Program]):
    """The rewrite of a program that pulls cotangents back on one device to one for what is shared.

    The cotangent of an output that `shares[k]` places have is divided among them; that of an
    operand that places along `sums[i]` share is their sum.
    """

    replica_counts: tuple[int, ...]
    psum_axes: tuple[tuple[Any, ...], ...]

    def __call__(self, program: Program) -> Program:
        def body(*args: Any) -> list[Any]:
            n = len(self.replica_counts)
            cts = [
                ct if k == 1 else div(ct, k)
                for ct, k in zip(args[:n], self.replica_counts, strict=True)
            ]
            outs = apply_program(program, [*cts, *args[n:]])
            return [
                Psum(names)(x) if names else x
                for x, names in zip(outs, self.psum_axes, strict=True)
            ]

        return trace_closed(body, program.in_avals, name=program.name)
