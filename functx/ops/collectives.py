"""Collectives: operations across named axes, which `vmap` maps or which devices form.

Every position along a named axis runs the same program. Under `vmap` a collective becomes an operation
on the batch dimension. On devices it becomes communication.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jax import lax

from functx import ops
from functx.core.errors import CollectiveError, ShapeError
from functx.core.named_axes import batched_axis, batched_axis_names
from functx.core.primitive import Primitive, rule
from functx.core.samples import EXACT, f32, i32, sample
from functx.core.tracer import aval_of
from functx.core.types import ShapedArray, real_dtype
from functx.core.typing import Cotangents, Dim, IRValue, Tangent, Value, Values
from functx.ops.families import Constant, Linear, check_same_dtype
from functx.ops.operands import check_axes, literal, tuple_delete

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext

AxisIndexGroups = tuple[tuple[int, ...], ...] | None
BatchedValue = tuple[Any, int | None]


class Collective(Primitive, abstract=True):
    """An operation on the operand's values at all positions of the named `axes`, or of each group."""

    axes: tuple[Hashable, ...]
    accepts: ClassVar[str] = "biufc"

    @property
    def named_axes(self) -> frozenset[Any]:  # type: ignore[override]
        return frozenset(self.axes)

    def check(self, x: ShapedArray) -> None:
        """Raise DTypeError for an operand of a dtype that the operation does not accept."""
        check_same_dtype(self, (x,))

    def varying_axes(self, axes: frozenset[Any]) -> frozenset[Any]:
        """The axes along which the output varies, if the operand varies along `axes`."""
        return axes | self.named_axes

    def batch(self, args: Values, dims: Sequence[int | None]) -> BatchedValue:
        axis = batched_axis()
        (x,), (dim,) = args, dims
        if axis is None or axis.name not in self.axes:
            assert dim is not None
            return self.batch_elsewhere(x, dim)
        if len(self.axes) > 1:
            return self.batch_one_axis_of_several(x, dim)
        groups: AxisIndexGroups = getattr(self, "groups", None)
        if groups is None:
            return self.batch_over_axis(x, dim, axis.size)
        # Each group is treated as an axis.
        x = broadcast_new_dim(x, axis.size) if dim is None else ops.moveaxis(x, dim, 0)
        outs: list[Value] = []
        for group in groups:
            out, out_dim = self.batch_over_axis(take_or_zero(x, 0, group), 0, len(group))
            outs.append(
                broadcast_new_dim(out, len(group))
                if out_dim is None
                else ops.moveaxis(out, out_dim, 0)
            )
        order = [position for group in groups for position in group]
        return take_or_zero(ops.concatenate(outs, 0), 0, np.argsort(order).tolist()), 0

    def batch_one_axis_of_several(self, x: Value, dim: int | None) -> BatchedValue:
        """The output when one of several axes is mapped: one axis is handled after the other."""
        name = batched_axis_names().name
        for each in self.split_by_axis(
            aval_of(x) if dim is None else unmapped_aval(aval_of(x), dim)
        ):
            if dim is None and name not in each.named_axes:
                x = each(x)
            else:
                x, dim = each.batch([x], [dim])
        return x, dim

    @rule
    def split_by_axis(self, x: ShapedArray) -> Sequence[Primitive]:
        """Operations across one axis each whose composition is this one."""
        raise NotImplementedError

    def batch_elsewhere(self, x: Value, dim: int) -> BatchedValue:
        """The output and its batch dimension for a batch `dim` that is none of the axes."""
        raise NotImplementedError

    @rule
    def batch_over_axis(self, x: Value, dim: int | None, size: int) -> BatchedValue:
        """The output when the only axis, or a group of it, is the batch dimension `dim` of `x`.

        If `dim` is None, `x` is the same at all `size` positions.
        """
        raise NotImplementedError

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return ctx.collective(self.axes, self.jax_collective, x)

    def jax_collective(self, x: Value) -> Value:
        """The operation in JAX."""
        raise NotImplementedError


class AllReduce(Collective, abstract=True):
    """A reduction over all positions, whose result every position gets."""

    groups: AxisIndexGroups = None

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        self.check(x)
        return x

    def varying_axes(self, axes: frozenset[Any]) -> frozenset[Any]:
        return axes - self.named_axes if self.groups is None else axes | self.named_axes

    def batch_elsewhere(self, x: Value, dim: int) -> tuple[Value, Dim]:
        return self(x), dim

    def batch_one_axis_of_several(self, x: Value, dim: Dim) -> tuple[Value, Dim]:
        axis = batched_axis()
        assert axis is not None
        if self.groups is not None:
            raise CollectiveError(
                f"{self.name}: groups must be of places along one axis to be mapped by vmap; got "
                f"groups along {self.axes}"
            )
        rest = type(self)(tuple([name for name in self.axes if name != axis.name]))
        x, _ = self.batch_over_axis(x, dim, axis.size)
        return rest(x), None


class Psum(AllReduce, Linear):
    """The sum over all positions of the axes."""

    accepts = "iufc"
    samples = (
        sample(f32[4, 3], axes=("i",), across=(("i", 4),)),
        sample(f32[4, 2], axes=("i",), groups=((0, 3), (2, 1)), across=(("i", 4),)),
        sample(f32[2, 3, 2], axes=("i", "j"), across=(("i", 2), ("j", 3))),
    )

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        return (self(ct),)

    def batch_over_axis(self, x: Value, dim: Dim, size: int) -> tuple[Value, Dim]:
        if dim is None:
            return ops.mul(x, literal(size, x.dtype)), None
        return ops.reduce_sum(x, (dim,)), None

    def jax_collective(self, x: Value) -> Value:
        return lax.psum(x, self.axes, axis_index_groups=self.groups)


class AllReduceExtremum(AllReduce, abstract=True):
    """The largest or smallest operand; positions that tie share the derivative."""

    rounding = EXACT
    accepts = "biuf"
    samples = (
        sample(f32[4, 3], axes=("i",), across=(("i", 4),), distinct=True),
        sample(
            f32[4], axes=("i",), across=(("i", 4),), values={0: [2.0] * 4}, gradients={0: [1.0] * 4}
        ),
        sample(i32[4, 2], axes=("i",), across=(("i", 4),)),
    )

    def jvp(self, primals: Values, tangents: Values) -> tuple[Value, Tangent]:
        (x,), (t,) = primals, tangents
        out = self(x)
        is_extremum = ops.eq(x, out)
        # Half floats cannot count far; ties are counted in single precision.
        count_dtype = real_dtype(x.dtype) if x.dtype.itemsize > 2 else np.dtype("float32")
        add_up = Psum(self.axes, self.groups)
        weight = ops.div(1.0, add_up(ops.convert_element_type(is_extremum, count_dtype)))
        total = add_up(ops.select(is_extremum, t, ops.zeros_like(t)))
        return out, ops.mul(total, ops.convert_element_type(weight, x.dtype))


class Pmax(AllReduceExtremum):
    """The largest over all positions of the axes; nan if there is one."""

    def batch_over_axis(self, x: Value, dim: Dim, size: int) -> tuple[Value, Dim]:
        return (x if dim is None else ops.reduce_max(x, (dim,))), None

    def jax_collective(self, x: Value) -> Value:
        return lax.pmax(x, self.axes, axis_index_groups=self.groups)


class Pmin(AllReduceExtremum):
    """The smallest over all positions of the axes; nan if there is one."""

    def batch_over_axis(self, x: Value, dim: Dim, size: int) -> tuple[Value, Dim]:
        return (x if dim is None else ops.reduce_min(x, (dim,))), None

    def jax_collective(self, x: Value) -> Value:
        return lax.pmin(x, self.axes, axis_index_groups=self.groups)


class Pvary(Collective, Linear):
    """The operand, marked as varying along the axes."""

    is_element_mapping = True
    rounding = EXACT
    samples = (sample(f32[4, 3], axes=("i",), across=(("i", 4),)),)

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        return x

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        return (self(ct),)

    def batch_elsewhere(self, x: Value, dim: int) -> tuple[Value, Dim]:
        return self(x), dim

    def split_by_axis(self, x: ShapedArray) -> Sequence[Primitive]:
        return [Pvary((name,)) for name in self.axes]

    def batch_over_axis(self, x: Value, dim: Dim, size: int) -> tuple[Value, Dim]:
        return x, dim

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return x


class AxisIndex(Constant):
    """The index along the axis `axis`, which has length `size`."""

    axis: Hashable
    size: int
    samples = (sample(axis="i", size=4, across=(("i", 4),)),)

    @property
    def named_axes(self) -> frozenset[Any]:  # type: ignore[override]
        return frozenset((self.axis,))

    def abstract_eval(self) -> ShapedArray:
        return ShapedArray((), np.dtype("int32"))

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Value, Dim]:
        return ops.iota(np.dtype("int32"), self.size), 0

    def lower(self, ctx: LoweringContext) -> IRValue:
        return ctx.collective((self.axis,), lambda: lax.axis_index(self.axis))


def take_or_zero(x: Value, dim: int, positions: Sequence[int | None]) -> Value:
    """The elements of `x` at `positions` along dimension `dim`, zeros for None."""
    runs: list[list[int | None]] = []
    for position in positions:
        last = runs[-1] if runs else []
        follows = last and (
            position is last[-1] is None or (position is not None and last[-1] == position - 1)
        )
        if follows:
            last.append(position)
        else:
            runs.append([position])
    parts = []
    for run in runs:
        if run[0] is None:
            parts.append(
                ops.full(
                    ops.tuple_insert(tuple_delete(x.shape, (dim,)), dim, len(run)),
                    literal(0, x.dtype),
                )
            )
        else:
            parts.append(ops.slice_in_dim(x, run[0], run[0] + len(run), axis=dim))
    if not parts:
        return ops.slice_in_dim(x, 0, 0, axis=dim)
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, dim)


def broadcast_new_dim(x: Value, size: int, dim: int = 0) -> Value:
    """`x` repeated `size` times along a new dimension `dim`."""
    shape = ops.tuple_insert(x.shape, dim, size)
    return ops.broadcast_in_dim(x, shape, tuple_delete(range(len(shape)), (dim,)))


def unmapped_aval(x: ShapedArray, dim: int) -> ShapedArray:
    """The aval `x` without dimension `dim`."""
    return x.update(shape=tuple_delete(x.shape, (dim,)))


class TiledCollective(Collective, Linear, abstract=True):
    """An exchange of parts of the operands, one for each position.

    `sizes` are the lengths of the axes, or that of a group. The first of several axes is the major one.
    """

    sizes: tuple[int, ...]
    groups: AxisIndexGroups = None

    def check_divisible(self, x: ShapedArray, axis: int) -> int:
        """The length of a part of dimension `axis`, which must divide among all positions."""
        count = prod(self.sizes)
        if not count or x.shape[axis] % count:
            raise ShapeError(
                f"{self.name}: dimension {axis} must be a multiple of the {count} places that it "
                f"is divided among; got {x!r}",
                fix="Pad it, for instance with functx.numpy.pad.",
            )
        return x.shape[axis] // count


class AllGather(TiledCollective):
    """The operands of all positions, in order, concatenated along the dimension `axis`.

    If `invariant`, the result is known to be the same at all positions.
    """

    axis: int  # type: ignore[misc]
    invariant: bool = False
    rounding = EXACT
    samples = (
        sample(f32[4, 3, 2], axes=("i",), axis=1, sizes=(4,), across=(("i", 4),)),
        sample(
            f32[4, 2], axes=("i",), axis=0, sizes=(2,), groups=((0, 3), (2, 1)), across=(("i", 4),)
        ),
    )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        check_axes(self.name, self.axis, x.ndim)
        return resize_dim(x, self.axis, x.shape[self.axis] * prod(self.sizes))

    def varying_axes(self, axes: frozenset[Any]) -> frozenset[Any]:
        if self.invariant and self.groups is None:
            return axes - self.named_axes
        return super().varying_axes(axes)

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        if not prod(self.sizes):
            return (ops.constant_like(x.aval, 0),)
        return (PsumScatter(self.axes, self.sizes, self.groups, self.axis)(ct),)

    def batch_elsewhere(self, x: Value, dim: int) -> tuple[Value, Dim]:
        axis = self.axis + (dim <= self.axis)
        return AllGather(self.axes, self.sizes, self.groups, axis, self.invariant)(x), dim

    def split_by_axis(self, x: ShapedArray) -> Sequence[Primitive]:
        each = zip(reversed(self.axes), reversed(self.sizes), strict=True)
        return [AllGather((name,), (size,), None, self.axis) for name, size in each]

    def batch_over_axis(self, x: Value, dim: Dim, size: int) -> tuple[Value, Dim]:
        x = (
            broadcast_new_dim(x, size, self.axis)
            if dim is None
            else ops.moveaxis(x, dim, self.axis)
        )
        return merge_dims(x, self.axis), None

    def jax_collective(self, x: Value) -> Value:
        return lax.all_gather(
            x, self.axes, axis=self.axis, tiled=True, axis_index_groups=self.groups
        )


class PsumScatter(TiledCollective):
    """The sum over all positions, of which each position gets its part of the dimension `axis`."""

    axis: int  # type: ignore[misc]
    accepts = "iufc"
    samples = (sample(f32[4, 3, 8], axes=("i",), axis=1, sizes=(4,), across=(("i", 4),)),)

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        self.check(x)
        check_axes(self.name, self.axis, x.ndim)
        return resize_dim(x, self.axis, self.check_divisible(x, self.axis))

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        return (AllGather(self.axes, self.sizes, self.groups, self.axis)(ct),)

    def batch_elsewhere(self, x: Value, dim: int) -> tuple[Value, Dim]:
        axis = self.axis + (dim <= self.axis)
        return PsumScatter(self.axes, self.sizes, self.groups, axis)(x), dim

    def split_by_axis(self, x: ShapedArray) -> Sequence[Primitive]:
        each = zip(self.axes, self.sizes, strict=True)
        return [PsumScatter((name,), (size,), None, self.axis) for name, size in each]

    def batch_over_axis(self, x: Value, dim: Dim, size: int) -> tuple[Value, Dim]:
        x = ops.mul(x, literal(size, x.dtype)) if dim is None else ops.reduce_sum(x, (dim,))
        return split_dim(x, self.axis, (size,)), self.axis

    def jax_collective(self, x: Value) -> Value:
        return lax.psum_scatter(
            x,
            self.axes,
            scatter_dimension=self.axis,
            tiled=True,
            axis_index_groups=self.groups,
        )


class AllToAll(TiledCollective):
    """Part j of dimension `split` goes to position j, which concatenates its parts along `concat`."""

    split: int  # type: ignore[misc]
    concat: int  # type: ignore[misc]
    rounding = EXACT
    samples = (
        sample(f32[4, 3, 8], axes=("i",), split=1, concat=0, sizes=(4,), across=(("i", 4),)),
    )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        check_axes(self.name, self.split, x.ndim)
        check_axes(self.name, self.concat, x.ndim)
        x = resize_dim(x, self.split, self.check_divisible(x, self.split))
        return resize_dim(x, self.concat, x.shape[self.concat] * prod(self.sizes))

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        back = AllToAll(self.axes, self.sizes, self.groups, self.concat, self.split)
        return (back(ct),)

    def batch_elsewhere(self, x: Value, dim: int) -> tuple[Value, Dim]:
        split, concat = (k + (dim <= k) for k in (self.split, self.concat))
        return AllToAll(self.axes, self.sizes, self.groups, split, concat)(x), dim

    def split_by_axis(self, x: ShapedArray) -> Sequence[Primitive]:
        k, c, n = self.split, self.concat, len(self.sizes)
        part = x.shape[k] // prod(self.sizes)
        shape = (*x.shape[:k], *self.sizes, part, *x.shape[k + 1 :])
        steps: list[Primitive] = [ops.Reshape(shape)]
        for i, (name, size) in enumerate(zip(self.axes, self.sizes, strict=True)):
            steps.append(AllToAll((name,), (size,), None, k + i, k + i))
        others = [*range(k), *range(k + n, len(shape))]
        order = (*others[:c], *range(k, k + n), *others[c:])
        after = self.abstract_eval(x)
        return [*steps, ops.PermuteDims(order), ops.Reshape(after.shape)]

    def batch_over_axis(self, x: Value, dim: Dim, size: int) -> tuple[Value, Dim]:
        x = broadcast_new_dim(x, size) if dim is None else ops.moveaxis(x, dim, 0)
        # The receiving positions come first, then the sending ones.
        x = ops.moveaxis(split_dim(x, self.split + 1, (size,)), self.split + 1, 0)
        return merge_dims(ops.moveaxis(x, 1, self.concat + 1), self.concat + 1), 0

    def jax_collective(self, x: Value) -> Value:
        return lax.all_to_all(
            x, self.axes, self.split, self.concat, tiled=True, axis_index_groups=self.groups
        )


class Ppermute(Collective, Linear):
    """The operand of the source position in `perm`, pairs (source, destination), or zeros."""

    perm: tuple[tuple[int, int], ...]
    rounding = EXACT
    samples = (
        sample(f32[4, 3], axes=("i",), perm=((0, 1), (1, 2), (2, 3), (3, 0)), across=(("i", 4),)),
        sample(f32[4], axes=("i",), perm=((3, 0), (0, 2)), across=(("i", 4),)),
    )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        return x

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        back = sorted([(destination, source) for source, destination in self.perm])
        return (Ppermute(self.axes, tuple(back))(ct),)

    def batch_elsewhere(self, x: Value, dim: int) -> tuple[Value, Dim]:
        return self(x), dim

    def split_by_axis(self, x: ShapedArray) -> Sequence[Primitive]:
        raise CollectiveError(
            f"ppermute: pairs over several axes must be sent between devices; got {self.axes} "
            "under a vmap over one of them",
            fix="Send over one axis after the other.",
        )

    def batch_over_axis(self, x: Value, dim: Dim, size: int) -> tuple[Value, Dim]:
        source = {to: position for position, to in self.perm}
        if dim is None and len(source) == size:
            return x, None
        x = broadcast_new_dim(x, size) if dim is None else ops.moveaxis(x, dim, 0)
        return take_or_zero(x, 0, [source.get(to) for to in range(size)]), 0

    def jax_collective(self, x: Value) -> Value:
        return lax.ppermute(x, self.axes, self.perm)


def merge_dims(x: Value, dim: int) -> Value:
    """`x` with dimensions `dim` and `dim + 1` merged."""
    return ops.reshape(x, (*x.shape[:dim], x.shape[dim] * x.shape[dim + 1], *x.shape[dim + 2 :]))


def split_dim(x: Value, dim: int, sizes: tuple[int, ...]) -> Value:
    """`x` with dimension `dim` split into dimensions of `sizes` and of the remaining length."""
    rest = x.shape[dim] // prod(sizes)
    return ops.reshape(x, (*x.shape[:dim], *sizes, rest, *x.shape[dim + 1 :]))


def resize_dim(x: ShapedArray, dim: int, size: int) -> ShapedArray:
    """The aval `x` with dimension `dim` of length `size`."""
    return x.update(shape=(*x.shape[:dim], size, *x.shape[dim + 1 :]))
