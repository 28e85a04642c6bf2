"""Samples on which the rules of a primitive are checked, and the rounding errors that are allowed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from functx.core.types import (
    DTYPES_BY_SHORT_NAME,
    ShapedArray,
    complex_dtype,
    is_complex,
    is_inexact,
    kind,
)
from functx.core.typing import DTypeLike, NumPyArray

if TYPE_CHECKING:
    from functx.core.types import DType


Domain = tuple[float, float]


class _DTypeShorthand:
    """A dtype by its short name; `f32[3, 4]` is the aval of that dtype and shape."""

    def __init__(self, name: str):
        self.dtype = DTYPES_BY_SHORT_NAME[name]

    def __getitem__(self, shape: int | tuple[int, ...]) -> ShapedArray:
        return ShapedArray(shape if isinstance(shape, tuple) else (shape,), self.dtype)


f16, f32, f64, bf16 = map(_DTypeShorthand, ("f16", "f32", "f64", "bf16"))
i8, i16, i32, i64 = map(_DTypeShorthand, ("i8", "i16", "i32", "i64"))
u8, u16, u32, u64 = map(_DTypeShorthand, ("u8", "u16", "u32", "u64"))
c64, c128, bool_ = map(_DTypeShorthand, ("c64", "c128", "bool"))


class Sample(NamedTuple):
    """Operand types, parameters and constraints on operand values; see `sample`."""

    avals: tuple[ShapedArray, ...]
    params: dict[str, Any]
    domain: Domain | dict[int, Domain] = (-2.0, 2.0)
    nonzero: Sequence[int] = ()
    distinct: bool = False
    values: dict[int, Any] | None = None
    gradients: dict[int, Any] | None = None
    dtypes: Sequence[str] | None = None
    tolerance: tuple[float, str] | None = None
    across: tuple[tuple[Hashable, int], ...] = ()

    def domain_of(self, i: int) -> Domain:
        """The bounds of operand `i`."""
        return self.domain.get(i, (-2.0, 2.0)) if isinstance(self.domain, dict) else self.domain


class LazySamples(Sequence[Sample]):
    """The samples that `make` returns, made at their first use, since they hold programs to trace."""

    def __init__(self, make: Callable[[], tuple[Sample, ...]]):
        self._make = make

    @cached_property
    def _samples(self) -> tuple[Sample, ...]:
        return self._make()

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        return self._samples[index]


def sample(
    *avals: ShapedArray,
    domain: Domain | dict[int, Domain] = (-2.0, 2.0),
    nonzero: Sequence[int] = (),
    distinct: bool = False,
    values: dict[int, Any] | None = None,
    gradients: dict[int, Any] | None = None,
    dtypes: Sequence[str] | None = None,
    tolerance: tuple[float, str] | None = None,
    across: tuple[tuple[Hashable, int], ...] = (),
    **params: object,
) -> Sample:
    """A sample of a primitive: `sample(f32[3, 4], axes=(0,))`.

    Keywords other than those below are parameters of the primitive. Operands are drawn uniformly
    from `domain`, a pair of bounds for all operands or for each position; so are the real and
    imaginary parts of complex operands. Operands at the positions `nonzero` stay away from zero.
    With `distinct`, the elements of an operand are evenly spaced over the domain, in random order.
    `values` gives operands by position: an array, or a function that draws one from a
    `numpy.random.RandomState`.

    The checks also run in float64, and in each other dtype that `abstract_eval` accepts in place of
    the dtype of the first inexact operand; `dtypes` restricts them to the dtypes it names.

    `gradients` gives, by position, the derivative of the sum of all outputs. It replaces finite
    differences, to check conventions at kinks:
    `sample(f32[3], values={0: [-2.0, 0.0, 3.0]}, gradients={0: [-1.0, 0.0, 1.0]})`.
    `tolerance=(factor, reason)` multiplies the tolerances, and states the reason.

    Operations that communicate over named axes are checked under `vmap` over them: `across` gives
    the names and sizes of the axes, which are the first dimensions of the operands.
    """
    return Sample(
        avals, params, domain, nonzero, distinct, values, gradients, dtypes, tolerance, across
    )


def avals_with_dtype(case: Sample, dtype: DType) -> tuple[ShapedArray, ...]:
    """The operand types of a sample with its main dtype, that of the first inexact operand, replaced."""
    main = next((a.dtype for a in case.avals if is_inexact(a.dtype)), None)
    main = main or (case.avals[0].dtype if case.avals else None)

    def change(aval: ShapedArray) -> ShapedArray:
        if aval.dtype == main:
            return aval.update(dtype=dtype)
        if is_complex(aval.dtype) and kind(dtype) == "f":
            return aval.update(dtype=complex_dtype(dtype))
        if kind(aval.dtype) == "f" and is_complex(dtype):
            return aval.update(dtype=np.finfo(dtype).dtype)
        return aval

    return tuple([change(aval) for aval in case.avals])


def draw_operands(case: Sample, seed: int = 0, dtype: DTypeLike = None) -> list[NumPyArray]:
    """Random operand values for a sample, with `dtype` in place of its main dtype if given."""
    random = np.random.RandomState(seed)
    avals = case.avals if dtype is None else avals_with_dtype(case, np.dtype(dtype))
    values = case.values or {}
    return [
        _given_operand(random, values[i], aval)
        if i in values
        else _random_operand(random, case, i, aval)
        for i, aval in enumerate(avals)
    ]


def _given_operand(random: np.random.RandomState, value: object, aval: ShapedArray) -> NumPyArray:
    value = value(random) if callable(value) else value
    return np.asarray(value).astype(aval.dtype).reshape(aval.shape)


def _random_operand(
    random: np.random.RandomState, case: Sample, i: int, aval: ShapedArray
) -> NumPyArray:
    low, high = case.domain_of(i)
    dtype_kind = kind(aval.dtype)
    if dtype_kind == "b":
        return np.asarray(random.rand(*aval.shape) > 0.5)
    if dtype_kind in "iu":
        start = max(int(np.ceil(low)), 0) if dtype_kind == "u" else int(np.ceil(low))
        x = random.randint(start, int(high) + 1, aval.shape)
        return np.asarray(np.where(x == 0, 1, x) if i in case.nonzero else x).astype(aval.dtype)
    reals = _random_reals(random, case, i, aval)
    if dtype_kind == "c":
        reals = reals + 1j * _random_reals(random, case, i, aval)
    return np.asarray(reals).astype(aval.dtype)


def _random_reals(
    random: np.random.RandomState, case: Sample, i: int, aval: ShapedArray
) -> NumPyArray:
    low, high = case.domain_of(i)
    x = random.uniform(low, high, aval.shape)
    if case.distinct and aval.size:
        positions = random.permutation(aval.size) + random.uniform(0.2, 0.8)
        x = low + (high - low) * positions.reshape(aval.shape) / aval.size
    if i in case.nonzero:
        x = np.where(abs(x) < 0.5, np.where(x < 0, x - 0.5, x + 0.5), x)
    return x


class Rounding(NamedTuple):
    """The rounding error of one operation, from operands without errors.

    `ulps` is its size in units in the last place of each element of the result. With
    `is_exact_if_representable`, a result that the dtype can represent has none. With
    `is_componentwise`, the two components of a complex result are rounded by themselves; without,
    either may have an error of the size of the modulus: the real part of `rsqrt(-2 + 0j)` is 0 in
    one correct computation and 1e-8 in another. With `is_absolute`, there is also the error of a
    result of size 1, as in the logarithm of a number near 1. With `is_normwise`, there is also the
    error of the largest element.
    """

    ulps: float = 2.0
    is_exact_if_representable: bool = False
    is_componentwise: bool = False
    is_absolute: bool = False
    is_normwise: bool = False


EXACT = Rounding(0.0)
"""No error: the operation selects, moves or negates elements of its operands."""

CORRECTLY_ROUNDED = Rounding(is_exact_if_representable=True)
"""The rounding of the arithmetic of IEEE 754."""
