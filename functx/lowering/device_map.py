"""The equation of `shard_map`: a program that every device runs on its parts of the operands."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from functx.core.avals import ShapedArray
from functx.core.axes import batched_axis, batched_names
from functx.core.editing import applied
from functx.core.errors import DTypeError, ShapeError
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.records import Rewrite
from functx.core.rewriting import rewritten
from functx.core.samples import f64, sample
from functx.core.tracing import trace_closed
from functx.lowering.call import call_in_jax
from functx.ops.arithmetic import div, mul
from functx.ops.collectives import Psum
from functx.ops.operands import batch_size
from functx.ops.shaping import expand_dims, squeeze
from functx.ops.sharding import mesh_axes
from functx.ops.trigonometric import sin
from functx.transforms.batching import NaturalBatch
from functx.transforms.call import Rerun, TransposeIn
from functx.transforms.expand import expand
from functx.transforms.forward_mode import Linearize
from functx.transforms.marks import (
    chosen,
    inexact_cotangents,
    inexact_marks,
    linear_marks,
    others,
    spread,
)
from functx.transforms.parts import depends, part_of
from functx.transforms.planning.planned import computes_again, planned
from functx.transforms.reverse_mode import SplitVJP

Spec = tuple[Any, ...]


def _example() -> Program:
    def body(x: Any, y: Any) -> list[Any]:
        return [mul(sin(x), Psum(("i",))(y)), y]

    return trace_closed(body, [f64[3], f64[3]], name="example")


_ONE = AbstractMesh((1,), ("i",), axis_types=(AxisType.Auto,))


class ShardMap(Primitive):
    """The outputs of `program`, which every device of `mesh` runs on its parts of the operands.

    A spec has an entry a dimension: the mesh axes over which that is divided, in order. `axes`
    are those that `program` works across; each place along an axis that no entry names has the
    whole operand, and returns one and the same output.
    """

    program: Program
    mesh: Any
    in_specs: tuple[Spec, ...]
    out_specs: tuple[Spec, ...]
    axes: tuple[Any, ...]
    multiple_results = True
    samples = (
        sample(
            f64[3],
            f64[3],
            program=_example(),
            mesh=_ONE,
            in_specs=((("i",),), (("i",),)),
            out_specs=((("i",),), (("i",),)),
            axes=("i",),
        ),
    )

    @property
    def named_axes(self) -> frozenset[Any]:  # type: ignore[override]
        return self.program.named_axes - frozenset(self.axes)

    def whole(self, aval: ShapedArray, spec: Spec) -> ShapedArray:
        """The type of the array whose parts, by `spec`, are of `aval`."""
        sizes = [self.count(entry) for entry in spec]
        return aval.update(shape=tuple([n * k for n, k in zip(aval.shape, sizes, strict=True)]))

    def count(self, names: Sequence[Any]) -> int:
        """The number of places along mesh axes."""
        return prod([self.mesh.shape[name] for name in names])

    def abstract_eval(self, *avals: Any) -> Any:
        pairs = zip(self.program.in_avals, self.in_specs, strict=True)
        wanted = [self.whole(aval, spec) for aval, spec in pairs]
        if [(a.shape, a.dtype) for a in avals] != [(a.shape, a.dtype) for a in wanted]:
            same = [a.dtype for a in avals] == [a.dtype for a in wanted]
            raise (ShapeError if same else DTypeError)(
                "shard_map: operands must have the types whose parts the program takes; got "
                f"{', '.join(map(repr, avals))} for {', '.join(map(repr, wanted))}"
            )
        pairs = zip(self.program.out_avals, self.out_specs, strict=True)
        return [self.whole(aval, spec) for aval, spec in pairs]

    def again(self, program: Program, in_specs: Sequence[Spec], out_specs: Sequence[Spec]) -> Any:
        """Another program, run by the same devices."""
        return ShardMap(program, self.mesh, tuple(in_specs), tuple(out_specs), self.axes)

    def kept(self, aval: ShapedArray) -> Spec:
        """The spec of what each device keeps for itself, along a new first dimension."""
        return (self.axes, *[()] * aval.ndim)

    def shared_over(self, spec: Spec) -> tuple[Any, ...]:
        """The axes along which all places have the same part."""
        return tuple([name for name in self.axes if all(name not in entry for entry in spec)])

    def trim(self, used: Sequence[bool]) -> Any:
        if all(used):
            return None
        outputs = tuple([i for i, on in enumerate(used) if on])
        program, inputs = part_of(self.program, outputs)
        return (
            self.again(program, [self.in_specs[i] for i in inputs], chosen(self.out_specs, used)),
            inputs,
            outputs,
        )

    def varying_outputs(self, avals: Any, active: Sequence[bool]) -> list[bool]:
        return depends(self.program, active)

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        flags = tuple([t is not None for t in tangents])
        values, linear = rewritten(Linearize(flags), self.program)
        outs, residuals, specs = self.run_first(values, primals)
        given = chosen(tangents, flags)
        inexact = inexact_marks(self.program.out_avals)
        push = rewritten(Unstack(len(given)), linear)
        own = [*chosen(self.in_specs, flags), *specs]
        pushed = self.again(push, own, chosen(self.out_specs, inexact))(*given, *residuals)
        return outs, spread(pushed, inexact)

    def run_first(self, values: Program, args: Sequence[Any]) -> tuple[list[Any], list[Any], Any]:
        """The outputs of a split program, and what is kept behind them, with its specs."""
        count = len(self.program.outputs)
        specs = [self.kept(a) for a in values.out_avals[count:]]
        first = self.again(
            rewritten(Stack(count), values), self.in_specs, [*self.out_specs, *specs]
        )
        found = first(*args)
        return found[:count], found[count:], specs

    def forward(self, args: Sequence[Any], active: Sequence[bool]) -> Any:
        values, _ = rewritten(planned(SplitVJP(tuple(active))), self.program)
        outs, residuals, _ = self.run_first(values, args)
        return outs, residuals

    def vjp(self, cts: Any, residuals: Any, args: Any, active: Sequence[bool]) -> Any:
        split = planned(SplitVJP(tuple(active)))
        values, backward = rewritten(split, self.program)
        if computes_again(split, self.program):
            backward = rewritten(Later(), backward)
        specs = [self.kept(a) for a in values.out_avals[len(cts) :]]
        given = inexact_cotangents(cts, self.program.out_avals)
        back = rewritten(Unstack(len(given)), backward)
        return spread(self.pulled_back(back, active, given, residuals, specs), active)

    def transpose(self, cts: Any, *args: Any) -> Any:
        linear = linear_marks(args)
        back = rewritten(TransposeIn(linear), expand(self.program, "transpose"))
        given = inexact_cotangents(cts, self.program.out_avals)
        rest = others(args, linear)
        return spread(
            self.pulled_back(back, linear, given, rest, others(self.in_specs, linear)), linear
        )

    def pulled_back(
        self,
        back: Program,
        active: Sequence[bool],
        cts: Sequence[Any],
        rest: Sequence[Any],
        specs: Sequence[Spec],
    ) -> list[Any]:
        """The cotangents of the operands that are `active`, by a program of one device's."""
        ct_specs = chosen(self.out_specs, inexact_marks(self.program.out_avals))
        own = chosen(self.in_specs, active)
        shares = tuple([self.count(self.shared_over(spec)) for spec in ct_specs])
        sums = tuple([self.shared_over(spec) for spec in own])
        program = rewritten(OfShared(shares, sums), back)
        return self.again(program, [*ct_specs, *specs], own)(*cts, *rest)  # type: ignore[no-any-return]

    def batch(self, args: Sequence[Any], dims: Sequence[int | None]) -> Any:
        size, axis = batch_size(args, dims), batched_axis()
        named = {name for spec in (*self.in_specs, *self.out_specs) for e in spec for name in e}
        over = () if axis is None else axis.mesh_axes
        # A batch that lies over axes of the mesh is divided among these.
        if not named.isdisjoint(over) or batched_names().name in self.named_axes:
            over = ()
        over = tuple([name for name in over if name in self.axes])
        local, rest = divmod(size, self.count(over))
        if rest:
            over, local = (), size
        program, out_dims = rewritten(NaturalBatch(local, tuple(dims)), self.program)
        in_specs = [with_entry(s, d, over) for s, d in zip(self.in_specs, dims, strict=True)]
        out_specs = [with_entry(s, d, over) for s, d in zip(self.out_specs, out_dims, strict=True)]
        return self.again(program, in_specs, out_specs)(*args), out_dims

    def lower(self, ctx: Any, *values: Any) -> Any:
        several = len(self.out_specs) != 1

        def run(*xs: Any) -> Any:
            outs = call_in_jax(self.program, xs, ctx.module.outline.mode)
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


def with_entry(spec: Spec, dim: int | None, names: Sequence[Any]) -> Spec:
    """`spec` of an array with a new dimension `dim`, which is divided over `names`."""
    return spec if dim is None else (*spec[:dim], tuple(names), *spec[dim:])


def spec_of(spec: Any, ndim: int) -> Spec:
    """A PartitionSpec as a spec of `ShardMap`."""
    return tuple([mesh_axes(e) for e in spec]) + ((),) * (ndim - len(spec))


class Stack(Rewrite[Program]):
    """The rewrite to a program whose outputs from number `first` on have a new first dimension."""

    first: int

    def __call__(self, program: Program) -> Program:
        def body(*args: Any) -> list[Any]:
            outs = applied(program, args)
            return [*outs[: self.first], *[expand_dims(x, (0,)) for x in outs[self.first :]]]

        return trace_closed(body, program.in_avals, name=program.name, in_names=program.in_names)


class Unstack(Rewrite[Program]):
    """The rewrite to a program whose inputs from number `first` on have a new first dimension."""

    first: int

    def __call__(self, program: Program) -> Program:
        def body(*args: Any) -> list[Any]:
            rows = [squeeze(x, (0,)) for x in args[self.first :]]
            return applied(program, [*args[: self.first], *rows])

        own, rest = program.in_avals[: self.first], program.in_avals[self.first :]
        avals = [*own, *[a.update(shape=(1, *a.shape)) for a in rest]]
        return trace_closed(body, avals, name=program.name)


class Later(Rewrite[Program]):
    """The rewrite to a program that calls the program, so that it computes again what it is to."""

    def __call__(self, program: Program) -> Program:
        def body(*args: Any) -> list[Any]:
            return Rerun(program, True)(*args)  # type: ignore[no-any-return]

        return trace_closed(body, program.in_avals, name=program.name)


class OfShared(Rewrite[Program]):
    """The rewrite of a program that pulls cotangents back on one device to one for what is shared.

    The cotangent of an output that `shares[k]` places have is divided among them; that of an
    operand that places along `sums[i]` share is their sum.
    """

    shares: tuple[int, ...]
    sums: tuple[tuple[Any, ...], ...]

    def __call__(self, program: Program) -> Program:
        def body(*args: Any) -> list[Any]:
            n = len(self.shares)
            cts = [
                ct if k == 1 else div(ct, k) for ct, k in zip(args[:n], self.shares, strict=True)
            ]
            outs = applied(program, [*cts, *args[n:]])
            return [
                Psum(names)(x) if names else x for x, names in zip(outs, self.sums, strict=True)
            ]

        return trace_closed(body, program.in_avals, name=program.name)
