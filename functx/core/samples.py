"""Samples: the types, parameters and values on which a primitive's rules are checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from functx.core.types import (
    DTYPES_BY_SHORT_NAME,
    ShapedArray,
    complex_dtype,
    is_complex,
    is_inexact,
    kind,
)

Domain = tuple[float, float]


class _DTypeShorthand:
    """`f32[3, 4]`: the aval of that dtype and shape."""

    def __init__(self, name: str):
        self.dtype = DTYPES_BY_SHORT_NAME[name]

    def __getitem__(self, shape: Any) -> ShapedArray:
        return ShapedArray(shape if isinstance(shape, tuple) else (shape,), self.dtype)


f16, f32, f64, bf16 = (
    _DTypeShorthand("f16"),
    _DTypeShorthand("f32"),
    _DTypeShorthand("f64"),
    _DTypeShorthand("bf16"),
)
i8, i16, i32, i64 = (
    _DTypeShorthand("i8"),
    _DTypeShorthand("i16"),
    _DTypeShorthand("i32"),
    _DTypeShorthand("i64"),
)
u8, u16, u32, u64 = (
    _DTypeShorthand("u8"),
    _DTypeShorthand("u16"),
    _DTypeShorthand("u32"),
    _DTypeShorthand("u64"),
)
c64, c128, bool_ = _DTypeShorthand("c64"), _DTypeShorthand("c128"), _DTypeShorthand("bool")


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


def avals_with_dtype(one: Sample, dtype: Any) -> tuple[ShapedArray, ...]:
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


def draw_operands(one: Sample, seed: int = 0, dtype: Any = None) -> list[np.ndarray[Any, Any]]:
    """Operand values for a sample, its main dtype replaced by `dtype` where that is given."""
    random = np.random.RandomState(seed)
    avals = one.avals if dtype is None else avals_with_dtype(one, np.dtype(dtype))
    given = one.values or {}
    return [
        _given_operand(random, given[i], aval)
        if i in given
        else _random_operand(random, one, i, aval)
        for i, aval in enumerate(avals)
    ]


def _given_operand(random: Any, value: Any, aval: ShapedArray) -> Any:
    value = value(random) if isinstance(value, Callable) else value  # type: ignore[arg-type]
    return np.asarray(value).astype(aval.dtype).reshape(aval.shape)


def _random_operand(random: Any, one: Sample, i: int, aval: ShapedArray) -> Any:
    low, high = one.domain_of(i)
    of = kind(aval.dtype)
    if of == "b":
        return np.asarray(random.rand(*aval.shape) > 0.5)
    if of in "iu":
        start = max(int(np.ceil(low)), 0) if of == "u" else int(np.ceil(low))
        x = random.randint(start, int(high) + 1, aval.shape)
        return np.asarray(np.where(x == 0, 1, x) if i in one.nonzero else x).astype(aval.dtype)
    x = _random_reals(random, one, i, aval)
    if of == "c":
        x = x + 1j * _random_reals(random, one, i, aval)
    return np.asarray(x).astype(aval.dtype)


def _random_reals(random: Any, one: Sample, i: int, aval: ShapedArray) -> Any:
    low, high = one.domain_of(i)
    x = random.uniform(low, high, aval.shape)
    if one.distinct and aval.size:
        places = random.permutation(aval.size) + random.uniform(0.2, 0.8)
        x = low + (high - low) * places.reshape(aval.shape) / aval.size
    if i in one.nonzero:
        x = np.where(abs(x) < 0.5, np.where(x < 0, x - 0.5, x + 0.5), x)
    return x
