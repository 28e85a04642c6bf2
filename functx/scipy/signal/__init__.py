"""Convolutions and spectra of signals, with the names and signatures of `jax.scipy.signal`."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.scipy.signal.convolutions import (
    convolve,
    convolve2d,
    correlate,
    correlate2d,
    fftconvolve,
)
from functx.scipy.signal.spectra import csd, detrend, istft, stft, welch

__all__ = [
    "convolve",
    "convolve2d",
    "correlate",
    "correlate2d",
    "csd",
    "detrend",
    "fftconvolve",
    "istft",
    "stft",
    "welch",
]

_suggest_alternatives("jax.scipy.signal", __name__)
_explain_errors(__name__)
