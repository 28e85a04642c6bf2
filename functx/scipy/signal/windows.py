"""Windows of signals, by SciPy's names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from functx import ops
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.types import DType
from functx.core.typing import NumPyArray, Value
from functx.numpy.promotion import as_inexact

# Sums of a[j] (-1)^j cos(2 pi j t) for t from 0 to 1.
_COSINES = {
    "boxcar": (1.0,),
    "hann": (0.5, 0.5),
    "hamming": (0.54, 0.46),
    "blackman": (0.42, 0.5, 0.08),
    "nuttall": (0.3635819, 0.4891775, 0.1365995, 0.0106411),
    "blackmanharris": (0.35875, 0.48829, 0.14128, 0.01168),
    "flattop": (0.21557895, 0.41663158, 0.277263158, 0.083578947, 0.006947368),
}


def _cosines(t: NumPyArray, *weights: float) -> NumPyArray:
    terms = [a * (-1) ** j * np.cos(2 * math.pi * j * t) for j, a in enumerate(weights)]
    return np.sum(terms, axis=0)


def _tukey(t: NumPyArray, alpha: float = 0.5) -> NumPyArray:
    distance = np.minimum(t, 1 - t)
    taper = 0.5 * (1 - np.cos(2 * math.pi * distance / alpha)) if alpha else 1.0
    return np.where(distance < alpha / 2, taper, 1.0)


# Functions of the position in the window, from 0 to 1, of the number of steps and of parameters.
_OTHERS: dict[str, Callable[..., NumPyArray]] = {
    "bartlett": lambda t, n: 1 - np.abs(2 * t - 1),
    "barthann": lambda t, n: 0.62 - 0.48 * np.abs(t - 0.5) + 0.38 * np.cos(2 * math.pi * (t - 0.5)),
    "bohman": lambda t, n: (
        (1 - np.abs(2 * t - 1)) * np.cos(math.pi * np.abs(2 * t - 1))
        + np.sin(math.pi * np.abs(2 * t - 1)) / math.pi
    ),
    "cosine": lambda t, n: np.sin(math.pi * (t * n + 0.5) / (n + 1)),
    "lanczos": lambda t, n: np.sinc(2 * t - 1),
    "triang": lambda t, n: 1 - np.abs(2 * t * n - n) / (n + 2 - n % 2),
    "tukey": lambda t, n, alpha=0.5: _tukey(t, alpha),
    "kaiser": lambda t, n, beta: np.i0(beta * np.sqrt(1 - (2 * t - 1) ** 2)) / np.i0(beta),
    "gaussian": lambda t, n, std: np.exp(-0.5 * ((t - 0.5) * n / std) ** 2),
    "general_gaussian": lambda t, n, p, sig: np.exp(-0.5 * np.abs((t - 0.5) * n / sig) ** (2 * p)),
    "general_hamming": lambda t, n, alpha: _cosines(t, alpha, 1 - alpha),
    "general_cosine": lambda t, n, weights: _cosines(t, *weights),
}


def make_window(name: str, window: Any, length: int, dtype: DType) -> Value:
    """The weights of `window`, a name, a name with parameters or an array, for `length` elements.

    A window with a name is periodic: one of `length + 1` elements, symmetric, without the last one.
    Messages begin with `name`. Raises ValueRangeError and ShapeError for what is no such window.
    """
    if not isinstance(window, str | tuple):
        weights = as_inexact(window)
        if aval_of(weights).shape != (length,):
            raise ShapeError(
                f"{name}: the window must be a vector of {length} elements; got {aval_of(weights)!r}"
            )
        return weights
    kind, *parameters = (window,) if isinstance(window, str) else window
    t = np.arange(length) / length
    try:
        if length == 1:
            values = np.ones(1)
        elif kind in _COSINES:
            values = _cosines(t, *_COSINES[kind], *parameters)
        else:
            values = _OTHERS[kind](t, length, *parameters)
    except (KeyError, TypeError) as error:
        raise ValueRangeError(
            f"{name}: window must be one of {', '.join([*_COSINES, *_OTHERS])}, in a tuple with its "
            f"parameters if it has some, or an array; got {window!r}"
        ) from error
    return ops.convert_element_type(values, dtype)
