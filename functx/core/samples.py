"""Samples: the types, parameters and domain on which a primitive's rules are checked."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from functx.core.avals import ShapedArray
from functx.core.dtypes import DTYPES_BY_SHORT_NAME


class _Typed:
    """`f32[3, 4]`: the aval of that dtype and shape."""

    def __init__(self, dtype: np.dtype[Any]):
        self.dtype = dtype

    def __getitem__(self, shape: Any) -> ShapedArray:
        return ShapedArray(shape if isinstance(shape, tuple) else (shape,), self.dtype)


f32 = _Typed(DTYPES_BY_SHORT_NAME["f32"])
f64 = _Typed(DTYPES_BY_SHORT_NAME["f64"])
bf16 = _Typed(DTYPES_BY_SHORT_NAME["bf16"])
i32 = _Typed(DTYPES_BY_SHORT_NAME["i32"])
u32 = _Typed(DTYPES_BY_SHORT_NAME["u32"])
c64 = _Typed(DTYPES_BY_SHORT_NAME["c64"])
bool_ = _Typed(DTYPES_BY_SHORT_NAME["bool"])


class Sample(NamedTuple):
    """Typed operands, parameters, and where the operands' values may lie.

    `domain` bounds the values drawn, `(low, high)`; `nonzero` lists operands kept away from
    zero; `distinct` asks that no two elements of an operand tie; `values` gives operands
    outright, by position.
    """

    avals: tuple[ShapedArray, ...]
    params: dict[str, Any]
    domain: tuple[float, float] = (-2.0, 2.0)
    nonzero: tuple[int, ...] = ()
    distinct: bool = False
    values: tuple[tuple[int, Any], ...] = ()


def sample(
    *avals: ShapedArray,
    domain: tuple[float, float] = (-2.0, 2.0),
    nonzero: tuple[int, ...] = (),
    distinct: bool = False,
    values: dict[int, Any] | None = None,
    **params: Any,
) -> Sample:
    """A sample of a primitive: `sample(f32[3, 4], axes=(0,))`."""
    return Sample(avals, params, domain, nonzero, distinct, tuple((values or {}).items()))


def draw(one: Sample, seed: int = 0, dtype: Any = None) -> list[np.ndarray[Any, Any]]:
    """Operand values for a sample; inexact operands in `dtype` where it is given."""
    random = np.random.RandomState(seed)
    given = dict(one.values)
    return [
        np.asarray(given[i], aval.dtype) if i in given else _values(random, one, i, aval, dtype)
        for i, aval in enumerate(one.avals)
    ]


def _values(random: Any, one: Sample, i: int, aval: ShapedArray, dtype: Any) -> Any:
    low, high = one.domain
    if aval.dtype.kind == "b":
        return random.rand(*aval.shape) > 0.5
    if aval.dtype.kind in "iu":
        return random.randint(max(int(low), 0 if aval.dtype.kind == "u" else int(low)), int(high) + 1, aval.shape).astype(aval.dtype)
    x = random.uniform(low, high, aval.shape)
    if one.distinct:
        x = np.linspace(low, high, aval.size)[random.permutation(aval.size)].reshape(aval.shape)
    if aval.dtype.kind == "c":
        x = x + 1j * random.uniform(low, high, aval.shape)
    if i in one.nonzero:
        x = np.where(abs(x) < 0.5, x + 1.0, x)
    if dtype is not None:
        dtype = np.promote_types(dtype, np.complex64) if aval.dtype.kind == "c" else dtype
    return np.asarray(x).astype(dtype or aval.dtype)
