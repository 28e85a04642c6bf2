"""Window functions, and the Bessel function that one of them needs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from functx.core.tracer import aval_of
from functx.core.types import canonical_dtype
from functx.core.typing import ArrayLike, ArrayOrList, NumPyArray, Value
from functx.numpy import operators, ufuncs
from functx.numpy.array_creation import FLOAT, asarray
from functx.numpy.eager_programs import as_one_program
from functx.numpy.promotion import promote_real
from functx.ops import special
from functx.ops.operands import as_int

__all__ = ["bartlett", "blackman", "hamming", "hanning", "i0", "kaiser"]


def _window(compute: Callable[[int], NumPyArray], doc: str) -> Callable[[int], Value]:
    """The window of NumPy's function `compute`, in the default float dtype."""
    name = compute.__name__

    def window(M: int) -> Value:  # noqa: N803 - NumPy's name
        values = compute(as_int(f"{name}: M", M))
        return asarray(values.astype(canonical_dtype(FLOAT)))

    window.__name__ = window.__qualname__ = name
    window.__doc__ = doc
    return window


bartlett = _window(np.bartlett, "The triangle over `M` points, 0 at both ends.")
blackman = _window(np.blackman, "Three terms of cosines over `M` points: 0.42, 0.5 and 0.08.")
hamming = _window(np.hamming, "0.54 - 0.46 cos(2 pi n / (M - 1)) at the points n of `M`.")
hanning = _window(np.hanning, "0.5 - 0.5 cos(2 pi n / (M - 1)) at the points n of `M`.")


@as_one_program
def kaiser(M: int, beta: ArrayLike) -> Value:  # noqa: N803 - NumPy's name
    """i0(beta sqrt(1 - t^2)) / i0(beta) at `M` points t from -1 to 1.

    >>> import functx.numpy as np
    >>> np.kaiser(3, 2.0).round(3)
    array([0.439, 1.   , 0.439], dtype=float32)
    """
    count = as_int("kaiser: M", M)
    (beta,) = promote_real("kaiser", asarray(beta))
    t = np.linspace(-1.0, 1.0, count) if count > 1 else np.zeros(max(count, 0))
    height = asarray(np.sqrt(np.maximum(1.0 - t * t, 0.0)).astype(aval_of(beta).dtype))
    # exp(-beta) i0(beta) is finite where i0(beta) is not.
    scaled = operators.multiply(operators.absolute(beta), operators.subtract(height, 1))
    ratio = operators.divide(
        special.bessel_i0e(asarray(operators.multiply(beta, height))), special.bessel_i0e(beta)
    )
    return operators.multiply(ratio, ufuncs.exp(scaled))


def i0(x: ArrayOrList) -> Value:
    """The modified Bessel function of the first kind of order 0."""
    (x,) = promote_real("i0", x)
    return special.bessel_i0(x)
