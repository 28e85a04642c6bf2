"""Spectra of signals by the transforms of their overlapping segments, and signals without a trend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from functx import ops
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from functx.core.source_info import warn_at_user_line
from functx.core.tracer import aval_of
from functx.core.types import complex_dtype, is_complex, real_dtype
from functx.core.typing import ArrayOrList, Number, Value
from functx.numpy import arange, fft, joining, rearranging, reductions, shapes, statistics, zeros
from functx.numpy.floating_point import conj
from functx.numpy.promotion import as_inexact, promote_inexact
from functx.numpy.tensor_contractions import matmul
from functx.ops.operands import as_int, canonical_axis
from functx.scipy.signal.windows import make_window

WindowLike: TypeAlias = "str | tuple[Any, ...] | ArrayOrList"
Detrend: TypeAlias = "str | bool | Callable[[Value], Value]"


def detrend(
    data: ArrayOrList,
    axis: int = -1,
    type: str = "linear",
    bp: int | Sequence[int] = 0,
    overwrite_data: None = None,
) -> Value:
    """`data` minus its mean, with the type "constant", or minus the line of least squares along `axis`.

    `bp` are indices at which a new line begins.

    >>> from functx.scipy import signal
    >>> signal.detrend([1.0, 2.0, 4.0], type="constant").round(3)
    array([-1.333, -0.333,  1.667], dtype=float32)
    """
    if overwrite_data is not None:
        raise ArgumentError(f"detrend: overwrite_data must be None; got {overwrite_data!r}")
    if type not in ("constant", "linear"):
        raise ValueRangeError(f'detrend: type must be "constant" or "linear"; got {type!r}')
    data = as_inexact(data)
    axis = canonical_axis(axis, aval_of(data).ndim)
    if type == "constant":
        return data - reductions.mean(data, axis, keepdims=True)
    n = data.shape[axis]
    breaks = np.unique([0, *np.ravel(bp).tolist(), n])
    if breaks[0] < 0 or breaks[-1] > n:
        raise ValueRangeError(f"detrend: breakpoints must lie between 0 and {n}; got {bp!r}")
    rows = shapes.moveaxis(data, axis, -1)
    pieces = []
    for start, stop in zip(breaks[:-1].tolist(), breaks[1:].tolist(), strict=True):
        # The lines are spanned by orthonormal columns: a constant one and a centered one.
        columns = np.stack(
            [np.ones(stop - start), np.arange(stop - start) - (stop - start - 1) / 2]
        )
        columns = columns[: stop - start]
        columns = columns / np.linalg.norm(columns, axis=1, keepdims=True)
        basis = ops.convert_element_type(columns, data.dtype)
        piece = rows[..., start:stop]
        weights = matmul(piece, ops.permute_dims(basis, (1, 0)), precision="highest")
        pieces.append(piece - matmul(weights, basis, precision="highest"))
    return shapes.moveaxis(joining.concatenate(pieces, -1), -1, axis)


def stft(
    x: ArrayOrList,
    fs: Number = 1.0,
    window: WindowLike = "hann",
    nperseg: int | None = 256,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Detrend = False,
    return_onesided: bool = True,
    boundary: str | None = "zeros",
    padded: bool = True,
    axis: int = -1,
) -> tuple[Value, Value, Value]:
    """The frequencies, the times, and the transforms of overlapping segments of `x` along `axis`.

    The segments have `nperseg` elements, `noverlap` of which, by default half, are in the next one, and
    are multiplied by a window: a name, a name with parameters such as ("kaiser", 8.0), or an array.
    `boundary` extends `x` by half a segment: "zeros", "even", "odd", "constant" or None. Frequencies
    replace `axis`; times are the last axis.

    >>> import numpy
    >>> from functx.scipy import signal
    >>> x = numpy.sin(numpy.arange(32.0))
    >>> _, _, terms = signal.stft(x, nperseg=8)
    >>> terms.shape, bool(numpy.allclose(signal.istft(terms, nperseg=8)[1], x, atol=1e-5))
    ((5, 9), True)
    """
    return _spectra("stft", x, None, fs, window, nperseg, noverlap, nfft, detrend, return_onesided,
                    "spectrum", axis, boundary, padded)  # fmt: skip


def csd(
    x: ArrayOrList,
    y: ArrayOrList | None,
    fs: Number = 1.0,
    window: WindowLike = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Detrend = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Value, Value]:
    """The frequencies, and the cross power spectral density of `x` and `y` by Welch's method.

    It is the mean, or with `average="median"` the median, of the products of the transforms of the
    segments, a density or with `scaling="spectrum"` a power. `y=None` stands for `x`. The other arguments
    are those of `stft`.
    """
    frequencies, _, density = _spectra(
        "csd", x, y, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis
    )
    if average not in ("mean", "median"):
        raise ValueRangeError(f'csd: average must be "mean" or "median"; got {average!r}')
    if density.ndim < 2 or density.size == 0:
        return frequencies, density
    count = density.shape[-1]
    if average == "mean":
        return frequencies, reductions.mean(density, -1)
    # The mean of the median of so many exponential variables.
    odd = np.arange(3, count + 1, 2)
    bias = 1.0 + float(np.sum(1.0 / odd - 1.0 / (odd - 1.0)))
    parts = [ops.real(density), ops.imag(density)] if y is not None else [density]
    medians = [statistics.median(part, -1) / bias for part in parts]
    return frequencies, ops.complex(*medians) if y is not None else medians[0]


def welch(
    x: ArrayOrList,
    fs: Number = 1.0,
    window: WindowLike = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Detrend = "constant",
    return_onesided: bool = True,
    scaling: str = "density",
    axis: int = -1,
    average: str = "mean",
) -> tuple[Value, Value]:
    """The frequencies, and the power spectral density of `x` by Welch's method; see `csd`."""
    return csd(x, None, fs, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, axis,
               average)  # fmt: skip


def istft(
    Zxx: ArrayOrList,  # noqa: N803 - JAX's name
    fs: Number = 1.0,
    window: WindowLike = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    input_onesided: bool = True,
    boundary: bool = True,
    time_axis: int = -1,
    freq_axis: int = -2,
) -> tuple[Value, Value]:
    """The times, and the signal whose `stft` is nearest to `Zxx`; the arguments are those of `stft`."""
    terms = as_inexact(Zxx)
    ndim = aval_of(terms).ndim
    if ndim < 2:
        raise ShapeError(f"istft: Zxx must have two axes; got {aval_of(terms)!r}")
    time_axis, freq_axis = canonical_axis(time_axis, ndim), canonical_axis(freq_axis, ndim)
    if time_axis == freq_axis:
        raise ArgumentError(f"istft: time_axis and freq_axis must differ; got {time_axis} twice")
    terms = shapes.moveaxis(terms, (time_axis, freq_axis), (-2, -1))
    count = terms.shape[-1]
    whole = 2 * (count - 1) if input_onesided else count
    length = Segments.check_length("istft", nperseg or whole)
    if nfft is None:
        nfft = whole + (input_onesided and length == whole + 1)
    segments = Segments.check("istft", length, noverlap or None, nfft)
    inverse = fft.irfft if input_onesided else fft.ifft
    parts = inverse(terms, segments.transform)[..., : segments.length]
    weights = make_window("istft", window, segments.length, real_dtype(parts.dtype))
    total = _add_overlapping(_scale_last(parts, weights * reductions.sum(weights)), segments.step)
    squares = ops.broadcast_in_dim(weights * weights, parts.shape[-2:], (1,))
    norm = _add_overlapping(squares, segments.step)
    if boundary:
        half = segments.length // 2
        total, norm = [v[..., half : v.shape[-1] - half] for v in (total, norm)]
    is_covered = ops.gt(ops.real(norm) if is_complex(norm.dtype) else norm, 1e-10)
    signal = _scale_last(total, 1.0 / ops.select(is_covered, norm, 1.0))
    if ndim > 2:
        signal = shapes.moveaxis(signal, -1, time_axis - (freq_axis < time_axis))
    times = arange(signal.shape[0], dtype=real_dtype(signal.dtype))
    return times / fs, signal


class Segments(NamedTuple):
    """The lengths of overlapping segments of a signal and of their transforms, and their distance."""

    length: int
    step: int
    transform: int

    @staticmethod
    def check_length(name: str, length: object) -> int:
        """The length of a segment as a Python int; raises ValueRangeError unless it is positive."""
        length = as_int(f"{name}: nperseg", length)  # type: ignore[arg-type]
        if length < 1:
            raise ValueRangeError(f"{name}: nperseg must be positive; got {length}")
        return length

    @classmethod
    def check(cls, name: str, length: int, overlap: int | None, transform: int | None) -> Segments:
        """The segments; raises ValueRangeError for lengths that do not fit."""
        overlap = length // 2 if overlap is None else as_int(f"{name}: noverlap", overlap)
        transform = length if transform is None else as_int(f"{name}: nfft", transform)
        if not 0 <= overlap < length:
            raise ValueRangeError(
                f"{name}: noverlap must be less than nperseg, {length}; got {overlap}"
            )
        if transform < length:
            raise ValueRangeError(
                f"{name}: nfft must be at least nperseg, {length}; got {transform}"
            )
        return cls(length, length - overlap, transform)

    def cut(self, x: Value) -> Value:
        """The segments of `x` along its last axis, as the last two axes."""
        count = (x.shape[-1] - self.length) // self.step + 1
        rows = -(-self.length // self.step)
        # Row i of `rows` copies, cut with a period of one more step, is shifted by i steps.
        width = (count + rows - 1) * self.step
        lead = x.shape[:-1]
        x = fft.crop_or_pad(x, width, x.ndim - 1)
        x = ops.broadcast_in_dim(x, (*lead, rows, width), (*range(len(lead)), len(lead) + 1))
        x = ops.reshape(x, (*lead, rows * width))
        x = fft.crop_or_pad(x, rows * (width + self.step), len(lead))
        x = ops.reshape(x, (*lead, rows, count + rows, self.step))[..., :count, :]
        x = shapes.moveaxis(x, -3, -2)
        return ops.reshape(x, (*lead, count, rows * self.step))[..., : self.length]


def _add_overlapping(x: Value, step: int) -> Value:
    """The sum of the segments that are the last two axes of `x`, each `step` after the one before."""
    *lead, count, length = x.shape
    rows = -(-length // step)
    x = fft.crop_or_pad(x, rows * step, x.ndim - 1)
    x = shapes.moveaxis(ops.reshape(x, (*lead, count, rows, step)), -2, -3)
    x = fft.crop_or_pad(x, count + rows, x.ndim - 2)
    width = (count + rows - 1) * step
    x = ops.reshape(x, (*lead, rows * (width + step)))[..., : rows * width]
    return reductions.sum(ops.reshape(x, (*lead, rows, width)), -2)[
        ..., : (count - 1) * step + length
    ]


def _spectra(
    name: str,
    x: ArrayOrList,
    y: ArrayOrList | None,
    fs: Number,
    window: WindowLike,
    nperseg: int | None,
    noverlap: int | None,
    nfft: int | None,
    detrend: Detrend,
    return_onesided: bool,
    scaling: str,
    axis: int,
    boundary: str | None = None,
    padded: bool = False,
) -> tuple[Value, Value, Value]:
    """The frequencies, the times, and the transforms of segments or their products, by `name`."""
    if scaling not in ("density", "spectrum"):
        raise ValueRangeError(f'{name}: scaling must be "density" or "spectrum"; got {scaling!r}')
    if boundary not in _EXTENSIONS:
        raise ValueRangeError(f"{name}: boundary must be one of {[*_EXTENSIONS]}; got {boundary!r}")
    signals = promote_inexact(x) if y is None else promote_inexact(x, y)
    ndims = [aval_of(s).ndim for s in signals]
    if len({*ndims}) != 1:
        raise ShapeError(f"{name}: x and y must have one rank; got {' and '.join(map(str, ndims))}")
    axis = canonical_axis(axis, ndims[0])
    dtype = aval_of(signals[0]).dtype
    signals = tuple([shapes.moveaxis(s, axis, -1) for s in signals])
    length = max([s.shape[-1] for s in signals])
    if 0 in [s.size for s in signals]:
        shape = list(np.broadcast_shapes(*[s.shape[:-1] for s in signals]))
        shape.insert(axis, min([s.shape[-1] for s in signals]))
        empty = zeros(shape, real_dtype(dtype))
        of_products = real_dtype(dtype) if name == "csd" and y is None else complex_dtype(dtype)
        return empty, empty, zeros(shape, of_products)
    size = _segment_length(name, window, nperseg, length)
    weights = make_window(name, window, size, real_dtype(dtype))
    segments = Segments.check(name, size, noverlap, nfft)
    signals = tuple([
        _extend(fft.crop_or_pad(s, length, s.ndim - 1), segments, boundary, padded) for s in signals
    ])  # fmt: skip
    onesided = return_onesided and not is_complex(dtype) and not is_complex(weights.dtype)
    if return_onesided and not onesided:
        warn_at_user_line(f"{name}: of complex values both sides are returned", UserWarning)
    terms = [_windowed_transforms(s, segments, weights, detrend, onesided) for s in signals]
    total = reductions.sum(weights * weights) * fs if scaling == "density" else (
        reductions.sum(weights) ** 2
    )  # fmt: skip
    if name == "stft":
        out = terms[0] / ops.sqrt(total).astype(terms[0].dtype)
    else:
        out = _products(terms, segments, onesided)
        out = out / total.astype(out.dtype)
        out = ops.convert_element_type(out, complex_dtype(dtype))
        out = ops.real(out) if y is None else out
    starts = arange(terms[0].shape[-2], dtype=real_dtype(dtype)) * segments.step
    times = (starts + (size / 2 if boundary is None else 0.0)) / fs
    frequency_of = fft.rfftfreq if onesided else fft.fftfreq
    frequencies = frequency_of(segments.transform, 1.0 / fs, dtype=real_dtype(dtype))
    # The segments are the last axis.
    return frequencies, times, shapes.moveaxis(out, -1, axis)


def _segment_length(name: str, window: WindowLike, nperseg: int | None, length: int) -> int:
    """The length of the segments of a signal of `length`: that of the window, or at most 256."""
    if nperseg is not None:
        nperseg = Segments.check_length(name, nperseg)
    if not isinstance(window, str | tuple):
        size = aval_of(as_inexact(window)).shape
        if len(size) != 1 or size[0] > length or nperseg not in (None, size[0]):
            raise ShapeError(
                f"{name}: the window must be a vector of nperseg elements, at most {length}; got "
                f"the shape {size}" + (f" for nperseg={nperseg}" if nperseg else "")
            )
        return int(size[0])
    if nperseg is not None and nperseg > length:
        warn_at_user_line(
            f"{name}: nperseg = {nperseg} is greater than {length}, which is used", UserWarning
        )
    return min(nperseg or 256, length)


_EXTENSIONS: dict[str | None, dict[str, Any]] = {
    None: {},
    "zeros": {"mode": "constant"},
    "constant": {"mode": "edge"},
    "even": {"mode": "reflect"},
    "odd": {"mode": "reflect", "reflect_type": "odd"},
}
"""For each name of a boundary, the mode of `numpy.pad`."""


def _extend(x: Value, segments: Segments, boundary: str | None, padded: bool) -> Value:
    """`x` with half a segment added at both ends, and zeros at the end up to a whole segment."""
    options, half = _EXTENSIONS[boundary], segments.length // 2
    if options and half:
        x = rearranging.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)], **options)
    if padded:
        missing = -(x.shape[-1] - segments.length) % segments.step % segments.length
        x = fft.crop_or_pad(x, x.shape[-1] + missing, x.ndim - 1)
    return x


def _windowed_transforms(
    x: Value, segments: Segments, weights: Value, trend: Detrend, onesided: bool
) -> Value:
    """The transforms of the segments of `x`, each without its trend and multiplied by the window."""
    parts = segments.cut(x)
    if callable(trend):
        parts = trend(parts)
    elif trend:
        parts = detrend(parts, -1, trend)  # type: ignore[arg-type]
    transform = fft.rfft if onesided else fft.fft
    return transform(_scale_last(parts, weights), segments.transform)


def _scale_last(x: Value, factors: Value) -> Value:
    """`x` times the vector `factors` along its last axis."""
    x, factors = promote_inexact(x, factors)
    return ops.mul(x, ops.broadcast_in_dim(factors, x.shape, (x.ndim - 1,)))


def _products(terms: Sequence[Value], segments: Segments, onesided: bool) -> Value:
    """The products of the transforms of two signals, or of one with itself."""
    out = conj(terms[0]) * terms[-1]
    if onesided:
        # All frequencies but zero and the middle one stand for two.
        sides = np.full(segments.transform // 2 + 1, 2.0)
        sides[0] = 1.0
        if segments.transform % 2 == 0:
            sides[-1] = 1.0
        out = _scale_last(out, ops.convert_element_type(sides, out.dtype))
    return out
