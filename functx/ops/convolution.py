"""Convolutions, with strides, dilations and groups of channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core.errors import ArgumentError, DTypeError, ShapeError, ValueRangeError
from functx.core.index_sets import DependentOperand, IndexSets, Sets
from functx.core.samples import f32, sample
from functx.core.tracer import aval_of
from functx.core.types import DType, ShapedArray, canonical_dtype, is_complex
from functx.core.typing import ArrayLike, Dim, DTypeLike, IRValue, Value, Values
from functx.ops.contraction import PrecisionLike
from functx.ops.families import Bilinear, check_same_dtype
from functx.ops.operands import Dims, as_bool, as_int, as_ints, canonical_shape, cast_like
from functx.ops.windows import Pairs, Window

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext

DimSpec = Dims
"""The dimensions of an array in the order of their roles: two leading ones, then space."""


class ConvLayouts(NamedTuple):
    """The dimensions in the order of their roles.

    These are (batch, channels, space) for the array and the output, and (output channels, input
    channels, space) for the kernel.
    """

    array: DimSpec
    kernel: DimSpec
    out: DimSpec


class GroupCounts(NamedTuple):
    """The numbers of groups of the channels and of the batch, each with its part of the kernel."""

    channels: int = 1
    batch: int = 1


class Convolution(Bilinear):
    """The sums of products of a kernel with the windows of an array.

    The kernel is not flipped. Each group of channels, or of the batch, is multiplied by its group of
    the kernel's output channels.
    """

    window: Window
    layouts: ConvLayouts
    groups: GroupCounts = GroupCounts()
    precision: tuple[str, str] | None = None
    preferred_element_type: DType | None = None
    accepts: ClassVar[str] = "iufc"
    samples = (
        sample(
            f32[2, 2, 4, 3], f32[3, 2, 2, 2],
            window=Window((2, 2), (1, 2), ((1, 0), (0, 1)), (1, 1), (1, 1)),
            layouts=ConvLayouts((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)),
        ),
        sample(
            f32[2, 5, 4], f32[3, 2, 4],
            window=Window((3,), (2,), ((2, 1),), (2,), (2,)),
            layouts=ConvLayouts((0, 2, 1), (2, 1, 0), (0, 2, 1)), groups=GroupCounts(channels=2),
        ),
        sample(
            f32[4, 5, 2], f32[2, 2, 4],
            window=Window((2,), (1,), ((0, 0),), (1,), (2,)),
            layouts=ConvLayouts((0, 2, 1), (2, 1, 0), (0, 2, 1)), groups=GroupCounts(batch=2),
        ),
        sample(
            f32[3, 2], f32[2, 4],
            window=Window((), (), (), (), ()), layouts=ConvLayouts((0, 1), (1, 0), (0, 1)),
        ),
    )  # fmt: skip

    def abstract_eval(self, x: ShapedArray, k: ShapedArray) -> ShapedArray:
        check_same_dtype(self, (x, k))
        wide = self.preferred_element_type
        if wide is not None and (is_complex(wide) != is_complex(x.dtype) or wide.kind == "b"):
            raise DTypeError(
                f"convolution: preferred_element_type must be real for real operands, and complex "
                f"for complex ones; got {wide} for {x!r}"
            )
        layouts, (channels, batch) = self.layouts, self.groups
        for name, aval, layout in (("array", x, layouts.array), ("kernel", k, layouts.kernel)):
            if sorted(layout) != list(range(aval.ndim)) or len(layout) != x.ndim:
                raise ShapeError(
                    f"convolution: the layout of the {name} must name each dimension once; got "
                    f"{layout} for {aval!r}"
                )
        (n, c, *space), (o, i, *sizes) = (
            permuted_shape(x, layouts.array),
            permuted_shape(k, layouts.kernel),
        )
        if c != i * channels or o % channels or o % batch or n % batch:
            raise ShapeError(
                f"convolution: the kernel must have as many input channels as each of {channels} "
                "groups of the array, and its output channels and the batch must divide into groups; "
                f"got {x!r} and {k!r}, whose batch and channels are {n}, {c} and {o}, {i}"
                + (f", and {batch} groups of the batch" if batch > 1 else "")
            )
        if tuple(sizes) != self.window.sizes:
            raise ShapeError(
                f"convolution: the window must be that of the kernel; got {self.window.sizes} for {k!r}"
            )
        ops.check_window("convolution", tuple(space), self.window)
        out_shape = n // batch, o, *self.window.result_shape(tuple(space))
        shape = tuple([out_shape[layouts.out.index(d)] for d in range(x.ndim)])
        return ShapedArray(shape, wide or x.dtype, x.weak_type and k.weak_type)

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        x, k = operands
        by_channel, by_window = None, None
        count = self.groups.channels * self.groups.batch
        _, i, *space = permuted_shape(k.aval, self.layouts.kernel)
        if k.sets is not None:
            kernel = np.transpose(k.sets, self.layouts.kernel)
            by_channel = sets.union_along(kernel, range(1, kernel.ndim), keepdims=True)
            by_channel = by_channel.swapaxes(0, 1)  # type: ignore[union-attr]
        if x.sets is not None:
            array = np.transpose(x.sets, self.layouts.array)
            n, c, *space = array.shape
            lanes = n // self.groups.batch
            # The batch and the channels of each group, of which one is whole.
            grouped = array.reshape(self.groups.batch, lanes, self.groups.channels, i, *space)
            merged: Any = sets.union_along(grouped, (3,))
            merged = np.moveaxis(merged, 2, 1).reshape(count, lanes, *space)
            windows: Any = self.window.with_batch_dim(0).with_batch_dim(0).union(sets, merged)
            outputs = k.aval.shape[self.layouts.kernel[0]]
            by_window = np.swapaxes(np.repeat(windows, outputs // count, axis=0), 0, 1)
        out = sets.union(by_window, by_channel)
        return out if out is None else np.transpose(out, np.argsort(self.layouts.out))

    def lhs_cotangent(self, ct: Value, x: Value, k: Value) -> Value:
        # ct, dilated by the strides, convolved with the flipped kernel.
        window, layouts, (channels, batch) = self.window, self.layouts, self.groups
        if 0 in ct.shape:
            return ops.zeros_like(x)
        groups = channels * batch
        k = cast_like(k, ct)
        if groups > 1:
            # Output channels become input channels, within each group.
            k = move_group_dim(k, layouts.kernel[0], layouts.kernel[1], groups)
        window_of_ct = ops.Window(
            window.sizes, window.base_dilation, self.lhs_cotangent_padding(x), window.strides,
            window.window_dilation,
        )  # fmt: skip
        flipped = ops.rev(k, layouts.kernel[2:]) if layouts.kernel[2:] else k
        x_ct = self.with_layouts(
            window_of_ct,
            ConvLayouts(layouts.out, swap_leading_roles(layouts.kernel), layouts.array),
            GroupCounts(groups),
            x,
        )(ct, flipped)
        if batch > 1:
            x_ct = move_group_dim(x_ct, layouts.array[1], layouts.array[0], batch)
        return x_ct

    def lhs_cotangent_padding(self, x: Value) -> Pairs:
        """The padding of ct with which each element of the array gets all its windows."""
        window = self.window
        space = permuted_shape(x, self.layouts.array)[2:]
        pairs = []
        for n, size, stride, (low, _), base_step, window_step, out in zip(
            space, *window, window.result_shape(space), strict=True
        ):
            reach = ops.dilate_dim(size, window_step)
            before = reach - low - 1
            pairs.append(
                (
                    before,
                    ops.dilate_dim(n, base_step) + reach - 1 - ops.dilate_dim(out, stride) - before,
                )
            )
        return tuple(pairs)

    def rhs_cotangent(self, ct: Value, x: Value, k: Value) -> Value:
        """The cotangent of the kernel: the array convolved with ct, channels as batch."""
        window, layouts = self.window, self.layouts
        # Without windows ct is no kernel.
        if 0 in ct.shape:
            return ops.zeros_like(k)
        space = permuted_shape(x, layouts.array)[2:]
        pairs = []
        for n, size, stride, (low, _), base_step, window_step, out in zip(
            space, *window, window.result_shape(space), strict=True
        ):
            total = (
                ops.dilate_dim(out, stride)
                + ops.dilate_dim(size, window_step)
                - ops.dilate_dim(n, base_step)
                - 1
            )
            pairs.append((low, total - low))
        sizes = permuted_shape(ct, layouts.out)[2:]
        window_of_x = ops.Window(
            sizes, window.window_dilation, tuple(pairs), window.base_dilation, window.strides
        )
        swapped = ConvLayouts(
            swap_leading_roles(layouts.array),
            swap_leading_roles(layouts.out),
            swap_leading_roles(layouts.kernel),
        )
        return self.with_layouts(window_of_x, swapped, GroupCounts(*self.groups[::-1]), k)(
            cast_like(x, ct), ct
        )

    def with_layouts(
        self, window: Window, layouts: ConvLayouts, groups: GroupCounts, like: Value
    ) -> Convolution:
        """A convolution of this precision whose result has the dtype of `like`."""
        wide = self.preferred_element_type is not None
        return Convolution(window, layouts, groups, self.precision, like.dtype if wide else None)

    def batch(self, args: Values, dims: Sequence[Any]) -> tuple[Value, Dim]:
        (x, k), (dx, dk) = args, dims
        (array, kernel, out), (channels, batch) = self.layouts, self.groups
        size = x.shape[dx] if dx is not None else k.shape[dk]
        groups, batched_into, inner = self.groups, out[1], 1
        if dx is not None and dk is not None:
            # Each batch element is a group: of the batch if there are such groups, else of channels.
            x = merge_dim_into(x, dx, array[0 if batch > 1 else 1], 1)
            k = merge_dim_into(k, dk, kernel[0], 1)
            groups = GroupCounts(1, batch * size) if batch > 1 else GroupCounts(channels * size)
        elif dx is not None:
            x, batched_into, inner = merge_dim_into(x, dx, array[0], batch), out[0], 1
        else:
            k, inner = merge_dim_into(k, dk, kernel[0], channels * batch), channels * batch
        out_with_batch = self._with_groups(groups)(x, k)
        return split_dim_out_of(out_with_batch, batched_into, size, inner)

    def _with_groups(self, groups: GroupCounts) -> Convolution:
        return Convolution(
            self.window, self.layouts, groups, self.precision, self.preferred_element_type
        )

    def lower(self, ctx: LoweringContext, x: IRValue, k: IRValue) -> IRValue:
        window, (array, kernel, out) = self.window, self.layouts
        if self.groups.batch > 1 and {*ctx.platforms} == {"cpu"}:
            return ctx.via_jax(self.as_jax_with_channel_groups, x, k)
        if is_complex(ctx.avals_in[0].dtype):
            return ctx.via_jax(self.as_jax, x, k)
        rank = len(window.sizes)
        padding = np.array(window.padding, np.int64).reshape(rank, 2)
        return stablehlo.convolution(
            ctx.out_types[0],
            x,
            k,
            stablehlo.ConvDimensionNumbers.get(
                *(array[0], array[1], array[2:], kernel[1], kernel[0], kernel[2:]),
                *(out[0], out[1], out[2:]),
            ),
            self.groups.channels,
            self.groups.batch,
            window_strides=ctx.i64_array(window.strides),
            padding=ir.DenseIntElementsAttr.get(padding.data),
            lhs_dilation=ctx.i64_array(window.base_dilation),
            rhs_dilation=ctx.i64_array(window.window_dilation),
            window_reversal=ir.DenseBoolArrayAttr.get([False] * rank),
            precision_config=ctx.precision(self.precision),
        )

    def as_jax_with_channel_groups(self, x: Value, k: Value) -> Value:
        """The convolution with the groups of the batch as groups of channels.

        XLA's convolutions with groups of the batch are slower on CPUs, by one or two orders of magnitude.
        """
        groups, (batch, channels, *_) = self.groups.batch, self.layouts.array
        shape = (*x.shape[:batch], groups, x.shape[batch] // groups, *x.shape[batch + 1 :])
        # The dimension of the groups moves in front of that of the channels.
        moved = jnp.moveaxis(jnp.reshape(x, shape), batch, channels)
        rest = moved.shape[channels + 2 :]
        shape = (*moved.shape[:channels], groups * moved.shape[channels + 1], *rest)
        return self._with_groups(GroupCounts(groups)).as_jax(jnp.reshape(moved, shape), k)

    def as_jax(self, x: Value, k: Value) -> Value:
        window = self.window
        precision = None
        if self.precision is not None:
            precision = lax.Precision[self.precision[0]], lax.Precision[self.precision[1]]
        return lax.conv_general_dilated(
            x, k, window.strides, window.padding, window.base_dilation, window.window_dilation,
            lax.ConvDimensionNumbers(*self.layouts), *self.groups,
            precision=precision, preferred_element_type=self.preferred_element_type,
        )  # fmt: skip


def permuted_shape(x: Value | ShapedArray, layout: DimSpec) -> Dims:
    """The shape of `x` in the order of `layout`."""
    return tuple([x.shape[d] for d in layout])


def swap_leading_roles(layout: DimSpec) -> DimSpec:
    """`layout` with its first two roles exchanged."""
    return (layout[1], layout[0], *layout[2:])


def split_dim_out_of(x: Value, dim: int, count: int, inner: int) -> tuple[Value, int]:
    """`x` with `dim` split into `inner` groups of `count`, and where the `count` then lies."""
    n = x.shape[dim] // (count * inner)
    shape = (*x.shape[:dim], inner, count, n, *x.shape[dim + 1 :])
    x = ops.moveaxis(ops.reshape(x, shape), dim + 1, 0)
    return ops.reshape(x, (count, *x.shape[1 : dim + 1], inner * n, *x.shape[dim + 3 :])), 0


def merge_dim_into(x: Value, dim: int, into: int, inner: int) -> Value:
    """`x` with its batch dimension `dim` merged into `into`, in front of each of `inner` groups."""
    x = ops.moveaxis(x, dim, into)
    count, n = x.shape[into], x.shape[into + 1]
    rest = x.shape[into + 2 :]
    if inner > 1:
        x = ops.reshape(x, (*x.shape[:into], count, inner, n // inner, *rest))
        x = ops.moveaxis(x, into, into + 1)
    return ops.reshape(x, (*x.shape[:into], count * n, *rest))


def move_group_dim(x: Value, source: int, target: int, groups: int) -> Value:
    """`x` with the number of the group, which leads in `source`, leading in `target` instead."""
    shape = (*x.shape[:source], groups, x.shape[source] // groups, *x.shape[source + 1 :])
    x = ops.reshape(x, shape)
    # Without `source`'s group the dimensions are those of before; put it in front of `target`.
    x = ops.moveaxis(x, source, target)
    shape = (*x.shape[:target], groups * x.shape[target + 1], *x.shape[target + 2 :])
    return ops.reshape(x, shape)


class ConvDimensionNumbers(NamedTuple):
    """The dimensions of batch, channels and space; of the kernel output and input channels and space."""

    lhs_spec: DimSpec
    rhs_spec: DimSpec
    out_spec: DimSpec


def conv_dimension_numbers(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], dimension_numbers: Any
) -> ConvDimensionNumbers:
    """The `ConvDimensionNumbers` for an array and a kernel of these shapes.

    `dimension_numbers` is None for batch, channels, space and output channels, input channels, space, or
    three strings such as ("NHWC", "HWIO", "NHWC"): N is batch, C channels, I and O input and output
    channels, other letters are space, in the order of the kernel.

    Raises ShapeError and ArgumentError for what does not fit.
    """
    lhs_shape, rhs_shape = [
        canonical_shape(shape, "conv_general_dilated: shapes") for shape in (lhs_shape, rhs_shape)
    ]
    rank = len(lhs_shape)
    if len(rhs_shape) != rank or rank < 2:
        raise ShapeError(
            "conv_general_dilated: array and kernel must have one rank, of at least 2; "
            f"got shapes {tuple(lhs_shape)} and {tuple(rhs_shape)}"
        )
    if isinstance(dimension_numbers, ConvDimensionNumbers) or hasattr(
        dimension_numbers, "lhs_spec"
    ):
        name, numbers = "conv_general_dilated: dimension_numbers", dimension_numbers
        specs = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
        return ConvDimensionNumbers(*[as_ints(name, spec, rank) for spec in specs])
    if dimension_numbers is None:
        identity = tuple(range(rank))
        return ConvDimensionNumbers(identity, identity, identity)
    if not (
        isinstance(dimension_numbers, (tuple, list))
        and len(dimension_numbers) == 3
        and all(isinstance(spec, str) for spec in dimension_numbers)
    ):
        raise ArgumentError(
            "conv_general_dilated: dimension_numbers must be None, three strings as "
            f"('NHWC', 'HWIO', 'NHWC'), or ConvDimensionNumbers; got {dimension_numbers!r}"
        )
    lhs, rhs, out = dimension_numbers
    space = [c for c in rhs if c not in "OI"]
    for spec, roles in ((lhs, "NC"), (rhs, "OI"), (out, "NC")):
        if len(spec) != rank or sorted(spec) != sorted([*roles, *space]):
            raise ArgumentError(
                f"conv_general_dilated: dimension_numbers must name each of {rank} dimensions once, "
                f"with {roles[0]} and {roles[1]} and the same letters for space; got {spec!r} in "
                f"{tuple(dimension_numbers)}"
            )
    layouts = [
        tuple([spec.index(c) for c in (*roles, *space)])
        for spec, roles in ((lhs, "NC"), (rhs, "OI"), (out, "NC"))
    ]
    return ConvDimensionNumbers(*layouts)


def conv_general_dilated(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: object = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
) -> Value:
    """The sums of products of the kernel `rhs` with the windows of `lhs`, over input channels.

    `padding` is "VALID", "SAME", "SAME_LOWER" or a pair `(low, high)` for each dimension of space.
    Strides and dilations have one number for each. `dimension_numbers` are those of
    `conv_dimension_numbers`. With `feature_group_count`, each group of channels has its part of the
    kernel's output channels; with `batch_group_count`, each group of the batch. The kernel is not
    flipped.

    Raises ShapeError, ArgumentError and ValueRangeError for what does not fit.

    >>> import numpy
    >>> from functx import lax
    >>> x, kernel = numpy.ones((1, 1, 4), "float32"), numpy.ones((1, 1, 2), "float32")
    >>> lax.conv_general_dilated(x, kernel, (1,), "VALID").tolist()
    [[[2.0, 2.0, 2.0]]]
    """
    lhs, rhs = ops.promote_operands(lhs, rhs)
    shapes = aval_of(lhs).shape, aval_of(rhs).shape
    layouts = ConvLayouts(*conv_dimension_numbers(*shapes, dimension_numbers))
    space, sizes = [
        tuple([shape[d] for d in layout[2:]])
        for shape, layout in zip(shapes, layouts[:2], strict=True)
    ]
    window = ops.make_window(
        "conv_general_dilated", space, sizes, window_strides, padding, lhs_dilation, rhs_dilation
    )
    feature_group_count, batch_group_count = [
        as_int(f"conv_general_dilated: {name}", count)
        for name, count in (
            ("feature_group_count", feature_group_count),
            ("batch_group_count", batch_group_count),
        )
    ]
    if feature_group_count < 1 or batch_group_count < 1:
        raise ValueRangeError(
            "conv_general_dilated: feature_group_count and batch_group_count must be positive; "
            f"got {feature_group_count} and {batch_group_count}"
        )
    if feature_group_count > 1 and batch_group_count > 1:
        raise ValueRangeError(
            "conv_general_dilated: at most one of feature_group_count and batch_group_count may be "
            f"more than 1; got {feature_group_count} and {batch_group_count}"
        )
    dtype = None if preferred_element_type is None else canonical_dtype(preferred_element_type)
    groups = GroupCounts(feature_group_count, batch_group_count)
    return Convolution(window, layouts, groups, ops.canonical_precision(precision), dtype)(lhs, rhs)


def conv(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
) -> Value:
    """`conv_general_dilated` without dilation, with the dimensions batch, channels, space."""
    return conv_general_dilated(
        lhs, rhs, window_strides, padding,
        precision=precision, preferred_element_type=preferred_element_type,
    )  # fmt: skip


def conv_with_general_padding(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
) -> Value:
    """`conv_general_dilated` with the dimensions batch, channels, space."""
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation,
        precision=precision, preferred_element_type=preferred_element_type,
    )  # fmt: skip


def conv_transpose(
    lhs: ArrayLike,
    rhs: ArrayLike,
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: object = None,
    transpose_kernel: bool = False,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
    use_consistent_padding: bool = False,
) -> Value:
    """The transposed convolution, whose windows are `1 / strides` apart.

    `padding` is "SAME", for a result `strides` times as long, "VALID", for all elements that the kernel
    reaches, or pairs that pad the dilated array. With `use_consistent_padding`, pairs are those of the
    convolution that this one transposes, as in PyTorch. The default `dimension_numbers` are batch, space,
    channels and space, input channels, output channels. With `transpose_kernel`, the kernel is that of
    the convolution that this one transposes: it is flipped and its channels are exchanged.
    """
    rank = aval_of(lhs).ndim
    if dimension_numbers is None:
        letters = "HWD"[: rank - 2]
        dimension_numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    shape = aval_of(rhs).shape
    numbers = conv_dimension_numbers(aval_of(lhs).shape, shape, dimension_numbers)
    sizes = [shape[d] for d in numbers.rhs_spec[2:]]
    strides = as_ints("conv_transpose: strides", strides, len(sizes))
    dilation = (1,) * len(sizes)
    if rhs_dilation is not None:
        dilation = as_ints("conv_transpose: rhs_dilation", rhs_dilation, len(sizes))
    if isinstance(padding, str):
        padding = [
            conv_transpose_padding(padding, ops.dilate_dim(k, step), stride)
            for k, step, stride in zip(sizes, dilation, strides, strict=True)
        ]
    elif as_bool("conv_transpose: use_consistent_padding", use_consistent_padding):
        extents = [ops.dilate_dim(k, step) - 1 for k, step in zip(sizes, dilation, strict=True)]
        pairs = ops.canonical_padding("conv_transpose", padding)
        padding = [(n - low, n - high) for n, (low, high) in zip(extents, pairs, strict=False)]
    if as_bool("conv_transpose: transpose_kernel", transpose_kernel):
        out, inner, *space = numbers.rhs_spec
        rhs = ops.rev(rhs, tuple(space))
        numbers = numbers._replace(rhs_spec=(inner, out, *space))
    return conv_general_dilated(
        lhs, rhs, [1] * len(sizes), padding, strides, rhs_dilation, numbers,
        precision=precision, preferred_element_type=preferred_element_type,
    )  # fmt: skip


def conv_transpose_padding(padding: str, extent: int, stride: int) -> tuple[int, int]:
    """The (low, high) padding of the dilated array that gives the length of the named `padding`."""
    if padding.upper() == "SAME":
        total = extent + stride - 2
        low = extent - 1 if stride > extent - 1 else -(-total // 2)
    elif padding.upper() == "VALID":
        total = extent + stride - 2 + max(extent - stride, 0)
        low = extent - 1
    else:
        raise ValueRangeError(
            f'conv_transpose: padding must be "SAME", "VALID" or pairs; got {padding!r}'
        )
    return low, total - low
