"""Convolutions and spectra of signals, with the names and signatures of `jax.scipy.signal`."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.scipy.signal.convolutions import convolve as convolve
from functx.scipy.signal.convolutions import convolve2d as convolve2d
from functx.scipy.signal.convolutions import correlate as correlate
from functx.scipy.signal.convolutions import correlate2d as correlate2d
from functx.scipy.signal.convolutions import fftconvolve as fftconvolve
from functx.scipy.signal.spectra import csd as csd
from functx.scipy.signal.spectra import detrend as detrend
from functx.scipy.signal.spectra import istft as istft
from functx.scipy.signal.spectra import stft as stft
from functx.scipy.signal.spectra import welch as welch

_suggest_alternatives("jax.scipy.signal", __name__)
__all__ = _explain_errors(__name__)
