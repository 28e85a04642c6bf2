"""Convolutions and spectra against SciPy and JAX."""

import jax
import numpy as np
import pytest

import functx
from functx.core.errors import FunctxError
from functx.scipy import signal
from functx.scipy.signal.windows import make_window

scipy_signal = pytest.importorskip("scipy.signal")
R = np.random.RandomState(0)


def complex_values(*shape):
    return R.randn(*shape) + 1j * R.randn(*shape)


def check(calls, operands):
    """Require that calls, as (name, names of operands, options), give the values of SciPy."""
    calls = [*calls]

    def ours(values):
        return [getattr(signal, f)(*[values[x] for x in xs], **kw) for f, xs, kw in calls]

    with jax.enable_x64():
        found = functx.jit(ours)(operands)
    for (name, names, options), outs in zip(calls, found, strict=True):
        expected = getattr(scipy_signal, name)(*[operands[x] for x in names], **options)
        pairs = (
            [(outs, expected)]
            if not isinstance(expected, tuple)
            else [*zip(outs, expected, strict=True)]
        )
        for value, want in pairs:
            assert value.shape == want.shape and value.dtype == want.dtype, (name, options)
            np.testing.assert_allclose(value, want, atol=1e-11, err_msg=f"{name} {options}")


@pytest.mark.parametrize("method", ["direct", "fft"])
def test_convolutions_equal_those_of_scipy(method):
    operands = {
        "a": R.randn(7), "b": R.randn(4), "z": complex_values(7), "w": complex_values(3),
        "m": R.randn(5, 6), "k": R.randn(3, 2), "t": R.randn(3, 4, 2), "u": R.randn(2, 2, 2),
    }  # fmt: skip
    check(
        (
            (name, xs, {"mode": mode, "method": method})
            for name in ("convolve", "correlate")
            for mode in ("full", "same", "valid")
            for xs in ("ab", "ba", "zw", "mk", "km", "tu")
        ),
        operands,
    )


def test_convolutions_of_matrices_with_boundaries_equal_those_of_scipy():
    operands = {"m": R.randn(4, 5), "k": R.randn(3, 2), "z": complex_values(4, 4)}
    check(
        (
            (name, xs, {"mode": mode, "boundary": boundary, "fillvalue": fill})
            for name in ("convolve2d", "correlate2d")
            for xs in ("mk", "km", "zk")
            for mode, boundary, fill in [
                ("full", "fill", 0), ("same", "fill", 1.5), ("same", "wrap", 0),
                ("full", "symm", 0), ("valid", "wrap", 0), ("same", "fill", 0),
            ]
        ),
        operands,
    )  # fmt: skip


def test_correlations_conjugate_the_second_operand_where_it_is_larger_too():
    x, y = complex_values(2, 3).astype("complex64"), complex_values(4, 5).astype("complex64")
    expected = scipy_signal.correlate(x, y, "valid")
    np.testing.assert_allclose(signal.correlate2d(x, y, "valid"), expected, rtol=1e-4)


def test_convolutions_along_some_axes_and_detrended_values_equal_those_of_scipy():
    check(
        [
            ("fftconvolve", "ab", {"axes": 1}),
            ("fftconvolve", "ac", {"axes": 1, "mode": "same"}),
            ("detrend", "d", {}),
            ("detrend", "d", {"type": "constant"}),
            ("detrend", "d", {"axis": 0}),
            ("detrend", "d", {"bp": [10, 25]}),
        ],
        {"a": R.randn(3, 5), "b": R.randn(3, 4), "c": R.randn(1, 4), "d": R.randn(2, 40)},
    )


SEGMENTS = [
    {"nperseg": 16},
    {"nperseg": 16, "noverlap": 11, "window": "blackman"},
    {"nperseg": 7, "noverlap": 2, "nfft": 9},
    {"window": ("kaiser", 3.0), "nperseg": 10, "detrend": "linear", "fs": 2.5},
    {"window": np.linspace(0.1, 1, 12), "nperseg": 12},
    {"nperseg": 9, "return_onesided": False},
]


def test_spectra_equal_those_of_scipy():
    others = [{"nperseg": 8, "average": "median"}, {"nperseg": 8, "scaling": "spectrum"}]
    operands = {"x": R.randn(2, 40), "y": R.randn(2, 33), "z": R.randn(2, 20, 3)}
    calls = [("welch", "x", options) for options in SEGMENTS + others]
    calls += [("csd", "xy", options) for options in SEGMENTS + others]
    check([*calls, ("welch", "z", {"nperseg": 8, "axis": 1})], operands)


def test_short_time_transforms_and_their_inverses_equal_those_of_scipy():
    x = R.randn(2, 40)
    calls = [("stft", "x", options) for options in SEGMENTS]
    calls += [
        ("stft", "x", {"nperseg": 8, "boundary": boundary, "padded": boundary is None})
        for boundary in ("even", "odd", "constant", None)
    ]
    check([*calls, ("stft", "z", {"nperseg": 8, "axis": 1})], {"x": x, "z": R.randn(2, 20, 3)})
    operands, calls = {}, []
    for i, options in enumerate([{"nperseg": 16, "noverlap": 12}, {"nperseg": 7, "noverlap": 4}]):
        operands[str(i)] = scipy_signal.stft(x, **options)[2]
        operands[str(i) + "t"] = np.moveaxis(operands[str(i)], 0, 1)
        calls += [
            ("istft", [str(i)], options),
            ("istft", [str(i) + "t"], {**options, "freq_axis": 0, "time_axis": 2}),
        ]
    check(calls, operands)


def test_windows_equal_those_of_scipy():
    windows = [
        *("boxcar", "hann", "hamming", "blackman", "nuttall", "blackmanharris", "flattop"),
        *("bartlett", "barthann", "bohman", "cosine", "lanczos", "triang", "tukey"),
        *[("tukey", 0.3), ("kaiser", 4.0), ("gaussian", 2.0), ("general_gaussian", 1.5, 2.0)],
        *[("general_hamming", 0.6), ("general_cosine", [0.5, 0.3, 0.2])],
    ]
    for window in windows:
        for n in (1, 2, 7, 8):
            found = make_window("stft", window, n, np.dtype("float32"))
            np.testing.assert_allclose(found, scipy_signal.get_window(window, n), atol=1e-6)


def test_spectra_differentiate_and_batch():
    x = R.randn(3, 24).astype("float32")

    def power(of):
        return lambda v: of.welch(v, nperseg=8)[1].sum() + abs(of.stft(v, nperseg=8)[2]).sum()

    found = functx.jit(functx.vmap(functx.grad(power(signal))))(x)
    expected = jax.jit(jax.vmap(jax.grad(power(jax.scipy.signal))))(x)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_a_signal_is_found_again_from_its_transforms():
    x = R.randn(30).astype("float32")
    back = functx.jit(lambda v: signal.istft(signal.stft(v, nperseg=8)[2], nperseg=8)[1][:30])
    np.testing.assert_allclose(back(x), x, atol=1e-5)
    np.testing.assert_allclose(functx.jacrev(back)(x), np.eye(30), atol=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: signal.convolve(x, x, "half"),
        lambda x: signal.convolve(x, x, method="slow"),
        lambda x: signal.convolve(x, x[None]),
        lambda x: signal.convolve(x, x[:0]),
        lambda x: signal.convolve2d(x, x),
        lambda x: signal.correlate2d(x[None], x[:, None], "valid"),
        lambda x: signal.fftconvolve(x[None], np.ones((2, 3)), axes=(0, 0)),
        lambda x: signal.detrend(x, type="square"),
        lambda x: signal.detrend(x, bp=20),
        lambda x: signal.welch(x, window="hat"),
        lambda x: signal.welch(x, window="kaiser"),
        lambda x: signal.welch(x, nperseg=4, noverlap=4),
        lambda x: signal.welch(x, nperseg=4, nfft=3),
        lambda x: signal.welch(x, average="mode"),
        lambda x: signal.stft(x, nperseg=4, boundary="open"),
        lambda x: signal.istft(x),
        lambda x: signal.istft(x[None], time_axis=0, freq_axis=0),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call):
    with pytest.raises(FunctxError):
        call(np.ones(8))
