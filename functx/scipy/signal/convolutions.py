"""Convolutions and correlations, directly and by Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from functx import ops
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.types import is_complex
from functx.core.typing import ArrayOrList, Value
from functx.numpy import fft, rearranging
from functx.numpy.floating_point import conj
from functx.numpy.promotion import promote_inexact
from functx.ops.contraction import PrecisionLike
from functx.ops.convolution import conv_general_dilated
from functx.ops.operands import canonical_axes


def convolve(
    in1: ArrayOrList,
    in2: ArrayOrList,
    mode: str = "full",
    method: str = "auto",
    precision: PrecisionLike = None,
) -> Value:
    """The convolution of two arrays of one rank.

    `mode` is "full", "same", for the middle part of the shape of `in1`, or "valid", for the part that
    needs no zeros around the larger array. `method` is "direct", also by "auto", or "fft".

    >>> from functx.scipy import signal
    >>> signal.convolve([1, 2, 3, 2, 1], [1, 1, 1], "same").tolist()
    [3.0, 6.0, 7.0, 6.0, 3.0]
    """
    if method not in ("auto", "direct", "fft"):
        raise ValueRangeError(f'convolve: method must be "auto", "direct" or "fft"; got {method!r}')
    if method == "fft":
        return fftconvolve(in1, in2, mode)
    operands = ConvolutionOperands.check("convolve", in1, in2, mode)
    return _convolve(operands, precision)


def correlate(
    in1: ArrayOrList,
    in2: ArrayOrList,
    mode: str = "full",
    method: str = "auto",
    precision: PrecisionLike = None,
) -> Value:
    """The sums of products of `in1` with the shifted conjugate of `in2`; the arguments are `convolve`'s."""
    in1, in2 = promote_inexact(in1, in2)
    return convolve(in1, rearranging.flip(conj(in2)), mode, method, precision)


def fftconvolve(
    in1: ArrayOrList,
    in2: ArrayOrList,
    mode: str = "full",
    axes: int | Sequence[int] | None = None,
) -> Value:
    """The convolution of two arrays along `axes`, by default all, by Fourier transforms.

    Along other axes the arrays have one shape, or 1. See `convolve` for `mode`.
    """
    operands = ConvolutionOperands.check("fftconvolve", in1, in2, mode, axes)
    x, y = operands.x, operands.y
    full = [operands.full_length(d) for d in operands.axes]
    if all(1 in (x.shape[d], y.shape[d]) for d in operands.axes):
        out = x * y
    elif is_complex(x.dtype):
        terms = fft.fftn(x, full, operands.axes) * fft.fftn(y, full, operands.axes)
        out = fft.ifftn(terms, full, operands.axes)
    else:
        terms = fft.rfftn(x, full, operands.axes) * fft.rfftn(y, full, operands.axes)
        out = fft.irfftn(terms, full, operands.axes)
    out = ops.convert_element_type(out, x.dtype)
    for d in operands.axes:
        start, length = operands.kept_range(d)
        out = ops.slice_in_dim(out, start, start + length, axis=d)
    return out


def convolve2d(
    in1: ArrayOrList,
    in2: ArrayOrList,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: float = 0,
    precision: PrecisionLike = None,
) -> Value:
    """The convolution of two matrices; see `convolve` for `mode`.

    Around `in1` there is the `fillvalue`, or with `boundary` "wrap" or "symm" its elements again, periodic
    or mirrored.
    """
    return _convolve2d("convolve2d", in1, in2, mode, boundary, fillvalue, precision)


def correlate2d(
    in1: ArrayOrList,
    in2: ArrayOrList,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: float = 0,
    precision: PrecisionLike = None,
) -> Value:
    """The correlation of two matrices; the arguments are those of `convolve2d`.

    With "same", as in SciPy, the middle of an even number of rows is the one after the middle of
    `correlate`.
    """
    in1, in2 = promote_inexact(in1, in2)
    mirrored = rearranging.flip(conj(in2))
    return _convolve2d(
        "correlate2d", in1, mirrored, mode, boundary, fillvalue, precision, rounds_up=True
    )


class ConvolutionOperands(NamedTuple):
    """Two arrays to convolve along `axes`, and the part of the convolution that is kept."""

    x: Value
    y: Value
    axes: tuple[int, ...]
    mode: str
    rounds_up: bool = False

    @classmethod
    def check(
        cls,
        name: str,
        in1: ArrayOrList,
        in2: ArrayOrList,
        mode: str,
        axes: int | Sequence[int] | None = None,
        rounds_up: bool = False,
    ) -> ConvolutionOperands:
        """The operands promoted, the smaller second if only products without zeros around are kept."""
        if mode not in ("full", "same", "valid"):
            raise ValueRangeError(f'{name}: mode must be "full", "same" or "valid"; got {mode!r}')
        x, y = promote_inexact(in1, in2)
        avals = aval_of(x), aval_of(y)
        if avals[0].ndim != avals[1].ndim:
            raise ShapeError(
                f"{name}: in1 and in2 must have one rank; got {avals[0]!r} and {avals[1]!r}"
            )
        axes = canonical_axes(axes, avals[0].ndim)
        pairs = [*zip(avals[0].shape, avals[1].shape, strict=True)]
        if 0 in [n for pair in pairs for n in pair]:
            raise ShapeError(
                f"{name}: in1 and in2 must have elements; got {avals[0]!r} and {avals[1]!r}"
            )
        if any(n != m and 1 not in (n, m) for d, (n, m) in enumerate(pairs) if d not in axes):
            raise ShapeError(
                f"{name}: along axes that are not in {axes} the lengths must be equal or 1; got "
                f"{avals[0]!r} and {avals[1]!r}"
            )
        larger = [pairs[d][0] >= pairs[d][1] for d in axes]
        if mode == "valid" and not all(larger):
            if any(pairs[d][0] > pairs[d][1] for d in axes):
                raise ShapeError(
                    f'{name}: with mode "valid" one array must be at least as large as the other along '
                    f"each axis; got {avals[0]!r} and {avals[1]!r}"
                )
            x, y = y, x
        return cls(x, y, axes, mode, rounds_up)

    def full_length(self, d: int) -> int:
        """The length of the whole convolution along the dimension `d`."""
        return int(self.x.shape[d] + self.y.shape[d] - 1)

    def kept_range(self, d: int) -> tuple[int, int]:
        """The start in the whole convolution, and the length, of the part that is kept."""
        n, m = self.x.shape[d], self.y.shape[d]
        if self.mode == "full":
            return 0, n + m - 1
        if self.mode == "valid":
            return m - 1, n - m + 1
        return (m - 1 + self.rounds_up) // 2, n


def _convolve(operands: ConvolutionOperands, precision: PrecisionLike) -> Value:
    x, y, axes = operands.x, operands.y, operands.axes
    padding = []
    for d in axes:
        start, length = operands.kept_range(d)
        # The window of term i of the whole convolution begins m - 1 elements before element i.
        padding.append((y.shape[d] - 1 - start, start + length - x.shape[d]))
    out = conv_general_dilated(
        ops.expand_dims(x, (0, 1)), ops.expand_dims(rearranging.flip(y), (0, 1)),
        [1] * x.ndim, padding, precision=precision,
    )  # fmt: skip
    return ops.squeeze(out, (0, 1))


_BOUNDARIES = {"fill": "constant", "wrap": "wrap", "symm": "symmetric"}


def _convolve2d(
    name: str,
    in1: ArrayOrList,
    in2: ArrayOrList,
    mode: str,
    boundary: str,
    fillvalue: float,
    precision: PrecisionLike,
    rounds_up: bool = False,
) -> Value:
    if boundary not in _BOUNDARIES:
        raise ValueRangeError(
            f'{name}: boundary must be "fill", "wrap" or "symm"; got {boundary!r}'
        )
    operands = ConvolutionOperands.check(name, in1, in2, mode, rounds_up=rounds_up)
    x, y = operands.x, operands.y
    if x.ndim != 2:
        raise ShapeError(f"{name}: in1 and in2 must be matrices; got {aval_of(x)!r}")
    if mode == "valid" or (boundary == "fill" and isinstance(fillvalue, int) and fillvalue == 0):
        return _convolve(operands, precision)
    options = {"constant_values": fillvalue} if boundary == "fill" else {}
    widths = [(m - 1, m - 1) for m in y.shape]
    around = rearranging.pad(x, widths, _BOUNDARIES[boundary], **options)
    out = _convolve(ConvolutionOperands(around, y, (0, 1), "valid"), precision)
    for d in (0, 1):
        start, length = operands.kept_range(d)
        out = ops.slice_in_dim(out, start, start + length, axis=d)
    return out
