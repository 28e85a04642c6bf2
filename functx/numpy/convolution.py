"""Convolutions and correlations of rows of numbers."""

from __future__ import annotations

from typing import Any

from functx.core.dtypes import canonical_dtype
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.tracing import aval_of
from functx.lax.precision import canonical_precision
from functx.numpy.number_parts import conj
from functx.numpy.promotion import promote
from functx.ops.convolution import ConvLayouts, Convolution
from functx.ops.shaping import reshape, rev
from functx.ops.window_shapes import Window

__all__ = ["convolve", "correlate"]


def convolve(
    a: Any, v: Any, mode: str = "full", *, precision: Any = None, preferred_element_type: Any = None
) -> Any:
    """The sums of products of `a` with `v` flipped, at each place where they meet.

    "full" has all places, "same" the middle ones, as many as the longer has elements, "valid"
    those where the shorter lies within the longer.

    Raises ShapeError unless both are one-dimensional and not empty.
    """
    a, v = _vector_operands("convolve", a, v)
    if aval_of(a).shape < aval_of(v).shape:
        a, v = v, a
    return _convolve_vectors("convolve", a, rev(v, (0,)), mode, precision, preferred_element_type)


def correlate(
    a: Any,
    v: Any,
    mode: str = "valid",
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """The sums of products of `a` with the conjugate of `v`, at each place where they meet.

    `mode` is as in `convolve`; exchanging `a` and `v` gives the conjugates in reverse order.

    Raises ShapeError unless both are one-dimensional and not empty.
    """
    a, v = _vector_operands("correlate", a, v)
    v = conj(v)
    if aval_of(a).shape < aval_of(v).shape:
        found = _convolve_vectors("correlate", v, a, mode, precision, preferred_element_type)
        return rev(found, (0,))
    return _convolve_vectors("correlate", a, v, mode, precision, preferred_element_type)


def _vector_operands(name: str, a: Any, v: Any) -> tuple[Any, ...]:
    a, v = promote(a, v)
    if not aval_of(a).ndim == aval_of(v).ndim == 1 or not (aval_of(a).size and aval_of(v).size):
        raise ShapeError(
            f"{name}: both must be one-dimensional and not empty; "
            f"got {aval_of(a)!r} and {aval_of(v)!r}"
        )
    return a, v


def _convolve_vectors(name: str, a: Any, v: Any, mode: str, precision: Any, wide: Any) -> Any:
    """The sums of products of `v` with the windows of `a`, which is no shorter."""
    n = aval_of(v).size
    paddings = {"full": (n - 1, n - 1), "same": (n // 2, n - n // 2 - 1), "valid": (0, 0)}
    if not isinstance(mode, str) or mode not in paddings:
        raise ValueRangeError(f'{name}: mode must be "full", "same" or "valid"; got {mode!r}')
    layout = (0, 1, 2)
    slide = Convolution(
        Window((n,), (1,), (paddings[mode],), (1,), (1,)),
        ConvLayouts(layout, layout, layout),
        precision=canonical_precision(precision),
        preferred_element_type=None if wide is None else canonical_dtype(wide),
    )
    out = slide(reshape(a, (1, 1, aval_of(a).size)), reshape(v, (1, 1, n)))
    return reshape(out, aval_of(out).shape[2:])
