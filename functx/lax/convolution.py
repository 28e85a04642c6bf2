"""Convolutions, by JAX's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from functx import ops
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from functx.core.tracing import aval_of
from functx.core.types import canonical_dtype
from functx.numpy.promotion import promote
from functx.ops.convolution import ConvLayouts, Convolution, DimSpec, GroupCounts
from functx.ops.operands import as_bool, as_int, as_ints, canonical_shape

__all__ = [
    "ConvDimensionNumbers",
    "conv",
    "conv_dimension_numbers",
    "conv_general_dilated",
    "conv_transpose",
    "conv_with_general_padding",
]


class ConvDimensionNumbers(NamedTuple):
    """Which dimensions are batch, channels and space; for the kernel output, input and space."""

    lhs_spec: DimSpec
    rhs_spec: DimSpec
    out_spec: DimSpec


def conv_dimension_numbers(
    lhs_shape: Sequence[int], rhs_shape: Sequence[int], dimension_numbers: Any
) -> ConvDimensionNumbers:
    """The layouts that `dimension_numbers` says, for an array and a kernel of these shapes.

    None is batch, channels, space; output channels, input channels, space. Else three strings, as
    ("NHWC", "HWIO", "NHWC"): N batch, C channels, I and O input and output channels, other
    letters space, in the order in which the kernel has them.
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
        what, given = "conv_general_dilated: dimension_numbers", dimension_numbers
        specs = given.lhs_spec, given.rhs_spec, given.out_spec
        return ConvDimensionNumbers(*[as_ints(what, spec, rank) for spec in specs])
    if dimension_numbers is None:
        own = tuple(range(rank))
        return ConvDimensionNumbers(own, own, own)
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
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """The sums of products of the kernel `rhs` with the windows of `lhs`, over input channels.

    `padding` is "VALID", "SAME", "SAME_LOWER" or a pair `(low, high)` for each dimension of space;
    the others have one number each. `dimension_numbers` are as `conv_dimension_numbers` takes
    them. With `feature_group_count`, each group of channels meets its own part of the kernel's
    output channels; with `batch_group_count`, each group of the batch. The kernel is not flipped.

    Raises ShapeError, ArgumentError and ValueRangeError for what does not fit.

    >>> import numpy
    >>> from functx import lax
    >>> x, kernel = numpy.ones((1, 1, 4), "float32"), numpy.ones((1, 1, 2), "float32")
    >>> lax.conv_general_dilated(x, kernel, (1,), "VALID").tolist()
    [[[2.0, 2.0, 2.0]]]
    """
    lhs, rhs = promote(lhs, rhs)
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
    wide = None if preferred_element_type is None else canonical_dtype(preferred_element_type)
    groups = GroupCounts(feature_group_count, batch_group_count)
    return Convolution(window, layouts, groups, ops.canonical_precision(precision), wide)(lhs, rhs)


def conv(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """`conv_general_dilated` without holes, of batch, channels, space."""
    return conv_general_dilated(
        lhs, rhs, window_strides, padding,
        precision=precision, preferred_element_type=preferred_element_type,
    )  # fmt: skip


def conv_with_general_padding(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None,
    rhs_dilation: Sequence[int] | None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """`conv_general_dilated` of batch, channels, space."""
    return conv_general_dilated(
        lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation,
        precision=precision, preferred_element_type=preferred_element_type,
    )  # fmt: skip


def conv_transpose(
    lhs: Any,
    rhs: Any,
    strides: Sequence[int],
    padding: Any,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    use_consistent_padding: bool = False,
) -> Any:
    """The convolution whose windows lie `1 / strides` apart: so much longer is the result.

    `padding` is "SAME", for a result `strides` times as long, "VALID", for all that the kernel
    touches, or pairs for the array with holes; with `use_consistent_padding`, pairs are those of
    the convolution of which this one is the transpose, as in PyTorch. Without `dimension_numbers`, batch, space, channels and
    space, input channels, output channels. With `transpose_kernel`, the kernel is that of the
    convolution of which this one is the transpose: flipped, its channels exchanged.
    """
    rank = aval_of(lhs).ndim
    if dimension_numbers is None:
        letters = "HWD"[: rank - 2]
        dimension_numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    shape = aval_of(rhs).shape
    numbers = conv_dimension_numbers(aval_of(lhs).shape, shape, dimension_numbers)
    sizes = [shape[d] for d in numbers.rhs_spec[2:]]
    strides = as_ints("conv_transpose: strides", strides, len(sizes))
    apart = (1,) * len(sizes)
    if rhs_dilation is not None:
        apart = as_ints("conv_transpose: rhs_dilation", rhs_dilation, len(sizes))
    if isinstance(padding, str):
        padding = [
            _conv_transpose_padding(padding, ops.dilate_dim(k, step), stride)
            for k, step, stride in zip(sizes, apart, strides, strict=True)
        ]
    elif as_bool("conv_transpose: use_consistent_padding", use_consistent_padding):
        reaches = [ops.dilate_dim(k, step) - 1 for k, step in zip(sizes, apart, strict=True)]
        around = ops.canonical_padding("conv_transpose", padding)
        padding = [(n - low, n - high) for n, (low, high) in zip(reaches, around, strict=False)]
    if as_bool("conv_transpose: transpose_kernel", transpose_kernel):
        out, inner, *space = numbers.rhs_spec
        rhs = ops.rev(rhs, tuple(space))
        numbers = numbers._replace(rhs_spec=(inner, out, *space))
    return conv_general_dilated(
        lhs, rhs, [1] * len(sizes), padding, strides, rhs_dilation, numbers,
        precision=precision, preferred_element_type=preferred_element_type,
    )  # fmt: skip


def _conv_transpose_padding(padding: str, reach: int, stride: int) -> tuple[int, int]:
    """So much around an array with holes gives the length that `padding` names."""
    if padding.upper() == "SAME":
        total = reach + stride - 2
        low = reach - 1 if stride > reach - 1 else -(-total // 2)
    elif padding.upper() == "VALID":
        total = reach + stride - 2 + max(reach - stride, 0)
        low = reach - 1
    else:
        raise ValueRangeError(
            f'conv_transpose: padding must be "SAME", "VALID" or pairs; got {padding!r}'
        )
    return low, total - low
