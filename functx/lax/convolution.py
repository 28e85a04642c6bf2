"""Windows of arrays as channels, convolutions with a kernel for each place, and the shapes of both."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from functx import ops
from functx.core.errors import ArgumentError
from functx.core.tracer import aval_of
from functx.core.typing import ArrayLike, DTypeLike, Value
from functx.numpy.matrices import eye
from functx.ops import Precision
from functx.ops.contraction import PrecisionLike
from functx.ops.convolution import (
    ConvDimensionNumbers,
    conv_dimension_numbers,
    conv_general_dilated,
    conv_transpose_padding,
)
from functx.ops.operands import as_ints, canonical_shape
from functx.ops.windows import Window, canonical_padding, dilate_dim, make_window

ConvGeneralDilatedDimensionNumbers = tuple[str, str, str] | ConvDimensionNumbers | None
"""The dimensions of a convolution as users give them."""


def conv_general_dilated_patches(
    lhs: ArrayLike,
    filter_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: ConvGeneralDilatedDimensionNumbers = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
) -> Value:
    """The windows of `lhs` that a convolution with a kernel of `filter_shape` sees, as channels.

    The channels of the result are those of `lhs`, and for each the elements of the window in order; the
    other arguments are those of `conv_general_dilated`.

    >>> import numpy
    >>> from functx import lax
    >>> lax.conv_general_dilated_patches(numpy.arange(4.0)[None, None], (2,), (1,), "VALID").tolist()
    [[[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]]]
    """
    aval, sizes = aval_of(lhs), canonical_shape(filter_shape, "filter_shape")
    numbers = conv_dimension_numbers(aval.shape, (1, 1, *sizes), dimension_numbers)
    channels, count = aval.shape[numbers.lhs_spec[1]], prod(sizes)
    # One output channel for each element of the window, which it picks.
    one_hot = ops.full((channels, 1, 1), 1, aval.dtype) * eye(count, dtype=aval.dtype)
    kernel = ops.reshape(one_hot, (channels * count, 1, *sizes))
    space = iter(range(2, kernel.ndim))
    leading = {d: role for role, d in enumerate(numbers.rhs_spec[:2])}
    axes = [leading[d] if d in leading else next(space) for d in range(kernel.ndim)]
    picks = ops.permute_dims(kernel, tuple(axes))
    return conv_general_dilated(
        lhs, picks, window_strides, padding, lhs_dilation, rhs_dilation, numbers,
        feature_group_count=channels,
        precision=None if precision is None else (precision, Precision.DEFAULT),
        preferred_element_type=preferred_element_type,
    )  # fmt: skip


def conv_general_dilated_local(
    lhs: ArrayLike,
    rhs: ArrayLike,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    filter_shape: Sequence[int],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: ConvGeneralDilatedDimensionNumbers = None,
    precision: PrecisionLike = None,
) -> Value:
    """A convolution whose kernel differs from place to place.

    `rhs` has the output channels, then the channels of `conv_general_dilated_patches`, then the places of
    the windows, in the order of the kernel's dimensions in `dimension_numbers`.
    """
    first = precision[0] if isinstance(precision, (tuple, list)) else precision
    patches = conv_general_dilated_patches(
        lhs, filter_shape, window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers,
        precision=first,
    )  # fmt: skip
    shapes = aval_of(lhs).shape, (1, 1, *canonical_shape(filter_shape, "filter_shape"))
    numbers = conv_dimension_numbers(*shapes, dimension_numbers)
    out, kernel = numbers.out_spec, numbers.rhs_spec
    places = sorted(zip(out[2:], kernel[2:], strict=True))
    batch = tuple([i for i, _ in places]), tuple([j for _, j in places])
    product = ops.dot_general(patches, rhs, (((out[1],), (kernel[1],)), batch), precision)
    # The product has the places, then the batch, then the output channels.
    last = len(places), len(places) + 1
    order = [0] * len(out)
    for source, target in (*enumerate(batch[0]), (last[0], out[0]), (last[1], out[1])):
        order[target] = source
    return ops.permute_dims(product, tuple(order))


def padtype_to_pads(
    in_shape: Sequence[int],
    window_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: str,
) -> list[tuple[int, int]]:
    """The pairs of padding that "SAME", "SAME_LOWER" or "VALID" stands for.

    >>> from functx import lax
    >>> lax.padtype_to_pads((5, 4), (2, 3), (1, 1), "SAME")
    [(0, 1), (1, 1)]
    """
    name = getattr(padding, "name", padding)
    if not isinstance(name, str):
        raise ArgumentError(f"padtype_to_pads: padding must be a name; got {padding!r}")
    shape = canonical_shape(in_shape, "padtype_to_pads: in_shape")
    window = make_window("padtype_to_pads", shape, window_shape, window_strides, name)
    return list(window.padding)


def conv_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    strides: Sequence[int],
    pads: str | Sequence[tuple[int, int]],
    batch_group_count: int = 1,
) -> tuple[int, ...]:
    """The shape of a convolution of arrays with dimensions in the order batch, channels, space."""
    space = tuple(lhs_shape[2:])
    window = make_window("conv_shape_tuple", space, rhs_shape[2:], strides, pads)
    return (lhs_shape[0] // batch_group_count, rhs_shape[0], *window.result_shape(space))


def conv_general_permutations(
    dimension_numbers: Sequence[str],
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The dimensions of array, kernel and result by role, from strings such as ("NHWC", "HWIO", "NHWC")."""
    shape = (1,) * len(dimension_numbers[0])
    numbers = conv_dimension_numbers(shape, shape, tuple(dimension_numbers))
    return numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec


def conv_general_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    dimension_numbers: Sequence[str],
) -> tuple[int, ...]:
    """The shape of a convolution of arrays whose dimensions three strings name."""
    lhs, rhs, out = conv_general_permutations(dimension_numbers)
    shapes = [lhs_shape[d] for d in lhs], [rhs_shape[d] for d in rhs]
    return _in_order_of(out, conv_shape_tuple(*shapes, window_strides, padding))


def conv_transpose_shape_tuple(
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    dimension_numbers: Sequence[str],
) -> tuple[int, ...]:
    """The shape of a `conv_transpose` of arrays whose dimensions three strings name."""
    lhs, rhs, out = conv_general_permutations(dimension_numbers)
    sizes, space = [rhs_shape[d] for d in rhs[2:]], [lhs_shape[d] for d in lhs[2:]]
    strides = as_ints("conv_transpose_shape_tuple: window_strides", window_strides, len(sizes))
    if isinstance(padding, str):
        pairs = zip(sizes, strides, strict=True)
        padding = [conv_transpose_padding(padding, size, stride) for size, stride in pairs]
    spread = [dilate_dim(n, stride) for n, stride in zip(space, strides, strict=True)]
    window = make_window("conv_transpose_shape_tuple", tuple(spread), sizes, None, padding)
    shape = lhs_shape[lhs[0]], rhs_shape[rhs[0]], *window.result_shape(tuple(spread))
    return _in_order_of(out, shape)


def reduce_window_shape_tuple(
    operand_shape: Sequence[int],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """The shape of a `reduce_window` of an array of `operand_shape`."""
    shape, ones = tuple(operand_shape), (1,) * len(operand_shape)
    pairs = canonical_padding("reduce_window_shape_tuple", padding)
    window = Window(
        tuple(window_dimensions), tuple(window_strides), pairs,
        tuple(base_dilation or ones), tuple(window_dilation or ones),
    )  # fmt: skip
    return window.result_shape(shape)


def _in_order_of(layout: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """The lengths `shape`, given by role, as the dimensions of `layout` have them."""
    return tuple([shape[layout.index(d)] for d in range(len(layout))])
