"""Images: resampling to another size, with the names and arguments of `jax.image`.

>>> import numpy
>>> from functx import image
>>> image.resize(numpy.array([0.0, 4.0], "float32"), (4,), "linear").tolist()
[0.0, 1.0, 3.0, 4.0]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial

import numpy as np
from ml_dtypes import finfo

from functx import ops
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.core.tracer import aval_of
from functx.core.types import Shape, canonical_dtype
from functx.core.typing import ArrayLike, Number, NumPyArray, ShapeLike, Value
from functx.lowering.jit import jit
from functx.numpy.array_creation import arange
from functx.numpy.indexing import take
from functx.numpy.promotion import as_inexact, operand, promote_inexact
from functx.numpy.tensor_contractions import tensordot
from functx.numpy.ufuncs import maximum, minimum, where
from functx.ops.contraction import PrecisionLike, canonical_precision
from functx.ops.operands import canonical_axes, canonical_shape

__all__ = ["ResizeMethod", "resize", "scale_and_translate"]


class ResizeMethod(Enum):
    """How the elements of a resampled image follow from the elements around them.

    NEAREST takes the nearest one. LINEAR, CUBIC (Keys 1981), CUBIC_PYTORCH (as PyTorch has it),
    LANCZOS3 and LANCZOS5 weigh those in a radius of 1, 2, 2, 3 and 5; AREA weighs by the common area.
    """

    NEAREST = 0
    LINEAR = 1
    LANCZOS3 = 2
    LANCZOS5 = 3
    CUBIC = 4
    CUBIC_PYTORCH = 5
    AREA = 6

    @staticmethod
    def from_string(s: str) -> ResizeMethod:
        """The method that a name stands for, such as "bilinear" or "cubic-pytorch".

        >>> from functx.image import ResizeMethod
        >>> ResizeMethod.from_string("bicubic").name
        'CUBIC'
        """
        for method, names in _METHOD_NAMES.items():
            if s in names:
                return method
        choices = ", ".join([repr(name) for names in _METHOD_NAMES.values() for name in names])
        raise ValueRangeError(f"ResizeMethod: a method must be one of {choices}; got {s!r}")


_METHOD_NAMES = {
    ResizeMethod.NEAREST: ("nearest",),
    ResizeMethod.LINEAR: ("linear", "bilinear", "trilinear", "triangle"),
    ResizeMethod.LANCZOS3: ("lanczos3",),
    ResizeMethod.LANCZOS5: ("lanczos5",),
    ResizeMethod.CUBIC: ("cubic", "bicubic", "tricubic"),
    ResizeMethod.CUBIC_PYTORCH: ("cubic-pytorch", "bicubic-pytorch"),
    ResizeMethod.AREA: ("area",),
}


def resize(
    image: ArrayLike,
    shape: ShapeLike,
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: PrecisionLike = ops.Precision.HIGHEST,
) -> Value:
    """`image` resampled to `shape`, which has a length for each of its dimensions.

    Dimensions that keep their length, such as those of a batch or of channels, are not resampled.
    `antialias` widens the window where the image becomes smaller. The result is a float except with
    "nearest". `precision` is that of the products.

    >>> import numpy
    >>> from functx import image
    >>> image.resize(numpy.eye(4, dtype="float32"), (2, 2), "bilinear").shape
    (2, 2)
    """
    image, shape, method = _check("resize", image, shape, method, antialias)
    return _resize(image, shape, method, bool(antialias), canonical_precision(precision))


@partial(jit, static_argnums=(1, 2, 3, 4))
def _resize(
    image: Value, shape: Shape, method: ResizeMethod, antialias: bool, precision: PrecisionLike
) -> Value:
    dims = [d for d, (m, n) in enumerate(zip(image.shape, shape, strict=True)) if m != n]
    if method is ResizeMethod.NEAREST:
        for d in dims:
            image = take(image, _nearest_indices(image.shape[d], shape[d]), d, mode="clip")
        return image
    weights = [
        weight_matrix(
            image.shape[d], shape[d], _ratio(shape[d], image.shape[d]), 0.0, method, antialias
        )
        for d in dims
    ]
    return _resample(as_inexact(image), dims, weights, precision)


def _ratio(length: int, original: int) -> float:
    return length / original if length and original else 1.0


def _nearest_indices(length: int, new_length: int) -> NumPyArray:
    """The index of the element of a row of `length` at the center of each of `new_length` elements."""
    centers = np.arange(new_length, dtype=np.float32) + np.float32(0.5)
    return np.floor(centers * np.float32(length) / np.float32(new_length)).astype(np.int32)


def scale_and_translate(
    image: ArrayLike,
    shape: ShapeLike,
    spatial_dims: Sequence[int],
    scale: ArrayLike,
    translation: ArrayLike,
    method: str | ResizeMethod,
    antialias: bool = True,
    precision: PrecisionLike = ops.Precision.HIGHEST,
) -> Value:
    """`image`, its point x along each of `spatial_dims` moved to `x * scale + translation`.

    Element i is centered at i + 1/2. `scale` and `translation` have a number for each of `spatial_dims`,
    and the result is differentiable in them. It has `shape`, and zeros outside of the image. `method` must
    not be "nearest".

    >>> import numpy
    >>> from functx import image
    >>> x = numpy.array([1.0, 2.0, 3.0], "float32")
    >>> shift = numpy.array([1.0], "float32")
    >>> image.scale_and_translate(x, (3,), (0,), numpy.ones_like(shift), shift, "linear").tolist()
    [0.0, 1.0, 2.0]
    """
    image, shape, method = _check("scale_and_translate", image, shape, method, antialias)
    if method is ResizeMethod.NEAREST:
        raise ValueRangeError(
            "scale_and_translate: method must weigh several elements; got 'nearest'",
            fix="Use resize.",
        )
    dims = canonical_axes(spatial_dims, aval_of(image).ndim, "scale_and_translate: spatial_dims")
    scale, translation = promote_inexact(scale, translation)
    for name, numbers in (("scale", scale), ("translation", translation)):
        if aval_of(numbers).shape != (len(dims),):
            raise ShapeError(
                f"scale_and_translate: {name} must have a number for each of the {len(dims)} spatial_dims; "
                f"got {aval_of(numbers)!r}"
            )
    options = method, bool(antialias), canonical_precision(precision)
    return _scale_and_translate(image, scale, translation, shape, dims, *options)


@partial(jit, static_argnums=(3, 4, 5, 6, 7))
def _scale_and_translate(
    image: Value,
    scale: Value,
    translation: Value,
    shape: Shape,
    dims: tuple[int, ...],
    method: ResizeMethod,
    antialias: bool,
    precision: PrecisionLike,
) -> Value:
    weights = [
        weight_matrix(image.shape[d], shape[d], scale[i], translation[i], method, antialias)
        for i, d in enumerate(dims)
    ]
    return _resample(as_inexact(image), dims, weights, precision)


def _check(
    name: str, image: ArrayLike, shape: ShapeLike, method: str | ResizeMethod, antialias: bool
) -> tuple[Value, Shape, ResizeMethod]:
    """The image as an array, and the shape and method in canonical form."""
    image, shape = operand(image), canonical_shape(shape)
    aval = aval_of(image)
    if len(shape) != aval.ndim:
        raise ShapeError(
            f"{name}: shape must have a length for each dimension of the image; got {shape} for {aval!r}"
        )
    if isinstance(method, str):
        method = ResizeMethod.from_string(method)
    if not isinstance(method, ResizeMethod):
        raise ArgumentError(f"{name}: method must be a ResizeMethod or its name; got {method!r}")
    if method is ResizeMethod.CUBIC_PYTORCH and antialias:
        method = ResizeMethod.CUBIC
    return image, shape, method


def _resample(
    image: Value, dims: Sequence[int], weights: Sequence[Value], precision: PrecisionLike
) -> Value:
    """`image` times a matrix of weights along each of `dims`, those first that make it smallest."""
    pairs = sorted(
        zip(dims, weights, strict=True),
        key=lambda pair: pair[1].shape[1] / max(pair[1].shape[0], 1),
    )
    for d, matrix in pairs:
        matrix = ops.convert_element_type(matrix, image.dtype)
        product = tensordot(image, matrix, ((d,), (0,)), precision=precision)
        image = ops.moveaxis(product, image.ndim - 1, d)
    return image


def weight_matrix(
    length: int,
    new_length: int,
    scale: Number,
    translation: Number,
    method: ResizeMethod,
    antialias: bool,
) -> Value:
    """The weight of each of `length` elements, the rows, in each of `new_length` new ones, the columns.

    The weights of a new element have the sum 1, or are 0 if it lies outside.
    """
    dtype = canonical_dtype(float) if isinstance(scale, float) else scale.dtype
    inverse = 1 / scale
    # The start of each new element, in elements of the image.
    start = arange(new_length, dtype=dtype) * inverse - translation * inverse
    center = start + (0.5 * inverse - 0.5)
    repeats_edges = method is ResizeMethod.CUBIC_PYTORCH and not antialias and length > 0
    margin = 2 if repeats_edges else 0
    rows = ops.expand_dims(arange(-margin, length + margin, dtype=dtype), (1,))
    if method is ResizeMethod.AREA:
        weights = maximum(minimum(start + inverse, rows + 1) - maximum(start, rows), 0.0)
    else:
        window = _WINDOWS[method]
        width = maximum(inverse, 1.0) if antialias else 1.0
        weights = window(ops.abs(center - rows) / width)
    if repeats_edges:
        weights = _add_to_edges(weights, margin)
    total = ops.reduce_sum(weights, (0,))
    is_inside = ops.abs(total) > 1000.0 * float(finfo("float32").eps)
    if not repeats_edges:
        is_inside &= (center >= -0.5) & (center <= length - 0.5)
    return where(is_inside, weights / where(is_inside, total, 1.0), 0.0)


def _add_to_edges(weights: Value, margin: int) -> Value:
    """The rows of `weights` without `margin` ones at both ends, which are added to the outermost that stay."""
    length = weights.shape[0] - 2 * margin
    if length == 1:
        return ops.expand_dims(ops.reduce_sum(weights, (0,)), (0,))
    ends = [
        ops.expand_dims(ops.reduce_sum(part, (0,)), (0,))
        for part in (weights[: margin + 1], weights[length + margin - 1 :])
    ]
    return ops.concatenate([ends[0], weights[margin + 1 : length + margin - 1], ends[1]], 0)


def _triangle(x: Value) -> Value:
    return ops.max(1 - x, 0.0)


def _cubic(x: Value, a: float) -> Value:
    """The cubic convolution window with the slope `a` at 1.

    Keys, "Cubic convolution interpolation for digital image processing" (1981).
    """
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return ops.select(x < 1, inner, ops.select(x < 2, outer, 0.0))


def _lanczos(x: Value, radius: float) -> Value:
    return ops.select(x <= radius, ops.sinc(x) * ops.sinc(x / radius), 0.0)


_WINDOWS: dict[ResizeMethod, Callable[[Value], Value]] = {
    ResizeMethod.LINEAR: _triangle,
    ResizeMethod.LANCZOS3: partial(_lanczos, radius=3.0),
    ResizeMethod.LANCZOS5: partial(_lanczos, radius=5.0),
    ResizeMethod.CUBIC: partial(_cubic, a=-0.5),
    ResizeMethod.CUBIC_PYTORCH: partial(_cubic, a=-0.75),
}
"""By method, the weight at a distance from the center."""

_suggest_alternatives("jax.image", __name__)
_explain_errors(__name__)
