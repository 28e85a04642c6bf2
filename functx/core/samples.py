"""Samples: the types, parameters and values on which a primitive's rules are checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from functx.core.avals import ShapedArray
from functx.core.dtypes import DTYPES_BY_SHORT_NAME, complex_dtype, is_complex, is_inexact, kind

Domain = tuple[float, float]


class _Typed:
    """`f32[3, 4]`: the aval of that dtype and shape."""

    def __init__(self, name: str):
        self.dtype = DTYPES_BY_SHORT_NAME[name]

    def __getitem__(self, shape: Any) -> ShapedArray:
        return ShapedArray(shape if isinstance(shape, tuple) else (shape,), self.dtype)


f16, f32, f64, bf16 = _Typed("f16"), _Typed("f32"), _Typed("f64"), _Typed("bf16")
i8, i16, i32, i64 = _Typed("i8"), _Typed("i16"), _Typed("i32"), _Typed("i64")
u8, u16, u32, u64 = _Typed("u8"), _Typed("u16"), _Typed("u32"), _Typed("u64")
c64, c128, bool_ = _Typed("c64"), _Typed("c128"), _Typed("bool")


class Sample(NamedTuple):
    """Typed operands, parameters, and what the operands' values may be: see `sample`."""

    avals: tuple[ShapedArray, ...]
    params: dict[str, Any]
    domain: Domain | dict[int, Domain] = (-2.0, 2.0)
    nonzero: Sequence[int] = ()
    distinct: bool = False
    values: dict[int, Any] | None = None
    gradients: dict[int, Any] | None = None
    dtypes: Sequence[str] | None = None
    tolerance: tuple[float, str] | None = None
    across: tuple[tuple[Any, int], ...] = ()

    def domain_of(self, i: int) -> Domain:
        """The bounds of operand `i`."""
        return self.domain.get(i, (-2.0, 2.0)) if isinstance(self.domain, dict) else self.domain


def sample(
    *avals: ShapedArray,
    domain: Domain | dict[int, Domain] = (-2.0, 2.0),
    nonzero: Sequence[int] = (),
    distinct: bool = False,
    values: dict[int, Any] | None = None,
    gradients: dict[int, Any] | None = None,
    dtypes: Sequence[str] | None = None,
    tolerance: tuple[float, str] | None = None,
    across: tuple[tuple[Any, int], ...] = (),
    **params: Any,
) -> Sample:
    """A sample of a primitive: `sample(f32[3, 4], axes=(0,))`.

    Keywords other than those below are the primitive's parameters. Operands are drawn
    between the bounds `domain` (for all operands, or by position), the real and imaginary
    parts alike. Those whose positions are in `nonzero` stay away from zero. With
    `distinct`, no two elements of an operand are closer than a thirtieth of the domain.
    `values` gives operands outright, by position: an array, or a function that draws one
    from a `numpy.random.RandomState`.

    The checks run in float64 too, and in every other dtype that `abstract_eval` accepts in
    place of that of the first inexact operand; `dtypes` names the only ones instead.

    `gradients` gives, by position, the derivative of the sum of all outputs. It takes the
    place of differences, and so is how a convention at a kink is checked:
    `sample(f32[3], values={0: [-2.0, 0.0, 3.0]}, gradients={0: [-1.0, 0.0, 1.0]})`.
    `tolerance=(factor, reason)` multiplies the tolerances, and must say why.

    What works across named axes is checked under a map over them: `across` gives their names
    and lengths, and the operands have them as their first dimensions.
    """
    return Sample(
        avals, params, domain, nonzero, distinct, values, gradients, dtypes, tolerance, across
    )


def retyped(one: Sample, dtype: Any) -> tuple[ShapedArray, ...]:
    """The operand types of `one` with its main dtype, that of the first inexact, changed."""
    main = next((a.dtype for a in one.avals if is_inexact(a.dtype)), None)
    main = main or (one.avals[0].dtype if one.avals else None)

    def change(aval: ShapedArray) -> ShapedArray:
        if aval.dtype == main:
            return aval.update(dtype=dtype)
        if is_complex(aval.dtype) and kind(dtype) == "f":
            return aval.update(dtype=complex_dtype(dtype))
        if kind(aval.dtype) == "f" and is_complex(dtype):
            return aval.update(dtype=np.finfo(dtype).dtype)
        return aval

    return tuple([change(aval) for aval in one.avals])


def draw(one: Sample, seed: int = 0, dtype: Any = None) -> list[np.ndarray[Any, Any]]:
    """Operand values for a sample, its main dtype replaced by `dtype` where that is given."""
    random = np.random.RandomState(seed)
    avals = one.avals if dtype is None else retyped(one, np.dtype(dtype))
    given = one.values or {}
    return [
        _given(random, given[i], aval) if i in given else _values(random, one, i, aval)
        for i, aval in enumerate(avals)
    ]


def _given(random: Any, value: Any, aval: ShapedArray) -> Any:
    value = value(random) if isinstance(value, Callable) else value  # type: ignore[arg-type]
    return np.asarray(value).astype(aval.dtype).reshape(aval.shape)


def _values(random: Any, one: Sample, i: int, aval: ShapedArray) -> Any:
    low, high = one.domain_of(i)
    of = kind(aval.dtype)
    if of == "b":
        return np.asarray(random.rand(*aval.shape) > 0.5)
    if of in "iu":
        start = max(int(np.ceil(low)), 0) if of == "u" else int(np.ceil(low))
        x = random.randint(start, int(high) + 1, aval.shape)
        return np.asarray(np.where(x == 0, 1, x) if i in one.nonzero else x).astype(aval.dtype)
    x = _reals(random, one, i, aval)
    if of == "c":
        x = x + 1j * _reals(random, one, i, aval)
    return np.asarray(x).astype(aval.dtype)


def _reals(random: Any, one: Sample, i: int, aval: ShapedArray) -> Any:
    low, high = one.domain_of(i)
    x = random.uniform(low, high, aval.shape)
    if one.distinct and aval.size:
        places = random.permutation(aval.size) + random.uniform(0.2, 0.8)
        x = low + (high - low) * places.reshape(aval.shape) / aval.size
    if i in one.nonzero:
        x = np.where(abs(x) < 0.5, np.where(x < 0, x - 0.5, x + 0.5), x)
    return x
