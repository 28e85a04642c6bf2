"""How inexact an honest computation may be: the reference, run with errors of the size of rounding.

Nobody may ask two correct ways to compute a sum for the same last digits, but how many digits
they share depends on what was summed. So the reference is run again, each time with operands and
results of its arithmetic changed at random by as much as rounding changes them. How far the
answers lie apart is how far a correct computation may be from the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from ml_dtypes import finfo

from functx.core.dtypes import DTYPES_BY_SHORT_NAME, is_complex, is_inexact, real_dtype
from functx.core.program import Equation
from functx.testing.reference.meanings import EXACT_DTYPE_RULES, SUBPROGRAM_RULES

Array = np.ndarray[Any, Any]

DRAWS_BETWEEN_BOUNDS = {"RandomUniformBetween", "RandomTruncatedNormal"}
"""Draws that are rounded as their bounds are, which may cancel."""

EXACT_PRIMITIVES = (
    (EXACT_DTYPE_RULES - DRAWS_BETWEEN_BOUNDS)
    | SUBPROGRAM_RULES
    | {
        *("BroadcastInDim", "Full", "Reshape", "PermuteDims", "Concatenate", "Split", "Pad", "Rev"),
        *("Copy", "ReadBeforeWrite", "Strided", "Slice", "DynamicSlice", "DynamicUpdateSlice"),
        *("Gather", "ScatterSet", "ScatterMin", "ScatterMax", "Sort", "TopK", "StopGradient"),
        *("Max", "Min", "Clamp", "Select", "Neg", "Sign", "Floor", "Ceil", "Round", "Rem"),
        *(
            "Real",
            "Imag",
            "Conj",
            "Complex",
            "Parts",
            "ViewAsComplex",
            "ReduceMax",
            "ReduceMin",
            "CumMax",
            "CumMin",
        ),
        *(
            "ReduceWindowMax",
            "ReduceWindowMin",
            "Embedding",
            "Boundary",
            "Vary",
            "Name",
            "MaskedOperand",
            "AnyActive",
        ),
        *("ShardingConstraint", "AllGather", "AllToAll", "Ppermute", "Pmax", "Pmin"),
    }
)
"""Operations whose results are among their operands, or made of them without arithmetic."""

CORRECTLY_ROUNDED = {
    *("Add", "Sub", "Mul", "Div", "Sqrt", "Square", "IntegerPow", "ConvertElementType", "Abs"),
}
"""Elementwise operations that give the exact result if the dtype has it."""

RESULT_ULPS = {
    # XLA's on CPUs near -0.41.
    **dict.fromkeys(("Log1p", "Atanh", "Xlog1py"), 130.0),
    **dict.fromkeys(("Lgamma", "Digamma", "Polygamma", "Sinc", "ErfInv", "Ndtri", "Pow"), 64.0),
    **dict.fromkeys(
        ("BesselI0", "BesselI1", "BesselI0e", "BesselI1e", "Erf", "Erfc", "Cbrt"), 16.0
    ),
}
"""By how many units in the last place results of functions may be off, where by more than a few."""

COMPONENTWISE = {"Add", "Sub", "ConvertElementType", "ReduceSum", "CumSum", "ScatterAdd"}
"""Operations on complex numbers whose two components are rounded one by one.

Elsewhere either may be off by a rounding of the modulus: the real part of `rsqrt(-2 + 0j)` is 0
in one correct computation and 1e-8 in another.
"""

ABSOLUTE = {
    *("LogSumExp", "CumLogSumExp", "LogSoftmax", "CrossEntropy", "SoftTargetCrossEntropy", "Sinc"),
}
"""Operations with an error of a rounding of 1: the logarithm of a number near 1, the sine of pi x."""

NORMWISE = {"Cofactors"}
"""Operations with an error of a rounding of the largest element, by factors of a matrix."""

Compute = Callable[[Sequence[Array]], list[Array]]


class RoundingErrors:
    """Random errors of the size of rounding, the same for the same seed; without a seed, none.

    `clips` says whether values beyond the largest number of their dtype become infinite, which
    is open where a compiler keeps them in a wider dtype in between, and those below the least
    normal number 0, which is open everywhere. With `narrow`, each operation is computed in the
    dtypes of the program.
    """

    def __init__(self, seed: int | None = None, clips: bool = True, narrow: bool = False):
        self.random = None if seed is None else np.random.RandomState(seed)
        self.clips, self.narrow = clips, narrow

    def outputs(self, eqn: Equation, args: Sequence[Array], compute: Compute) -> list[Array]:
        """The outputs of an equation, which are `compute(args)` where nothing is rounded."""
        name = type(eqn.primitive).__name__
        if name == "BitcastConvertType" and self.random is not None:
            return compute([self.perturb_last_bits(args[0], eqn.inputs[0].aval.dtype)])
        if name in EXACT_PRIMITIVES:
            return compute(args)
        types = [v.aval.dtype for v in eqn.outputs]
        if self.random is None:
            outs = compute(args)
        else:
            dtypes = [atom.aval.dtype for atom in eqn.inputs]
            if self.clips:
                args = [flush_subnormals(x, d) for x, d in zip(args, dtypes, strict=True)]
            outs = compute([self.perturb(x, d, 1.0) for x, d in zip(args, dtypes, strict=True)])
            if self.narrow:
                outs = recompute_narrow(outs, args, dtypes, compute)
            if name == "Div" and not self.clips:
                # XLA divides the branches of a selection, and there takes 0 / x for 0.
                outs = [np.where((args[0] == 0) & (args[1] == 0), 0, outs[0])]
            units = RESULT_ULPS.get(name, 2.0)
            modulus = name not in COMPONENTWISE
            outs = [self.perturb(x, d, units, modulus) for x, d in zip(outs, types, strict=True)]
            if name in ABSOLUTE or name in NORMWISE:
                size = np.max(np.abs(outs[0]), initial=0.0) if name in NORMWISE else 1.0
                outs = [
                    x + units * limits(d).eps * size * self.random_factors(x.shape)
                    for x, d in zip(outs, types, strict=True)
                ]
            if name == "ConvertElementType" and not is_inexact(types[0]):
                outs = [self.randomize_overflow(args[0], outs[0])]
            if name in CORRECTLY_ROUNDED and is_inexact(types[0]):
                (exact,), (out,) = compute(args), outs
                kept = is_surely_representable(exact, types[0])
                for x, dtype in zip(args, dtypes, strict=True):
                    kept = kept & is_surely_representable(x, dtype)
                outs = [np.where(kept, exact, out)]
        if not self.clips:
            return outs
        outs = [overflow_to_infinity(x, d) for x, d in zip(outs, types, strict=True)]
        return (
            outs
            if self.random is None
            else [flush_subnormals(x, d) for x, d in zip(outs, types, strict=True)]
        )

    def perturb_last_bits(self, x: Array, dtype: Any) -> Array:
        """`x`, moved by some units in the last place where it may have been rounded."""
        moved = self.perturb(x, dtype, self.random.randint(0, 5))  # type: ignore[union-attr]
        return (
            np.where(is_representable(x, np.dtype(np.float16)), x, moved)
            if is_inexact(dtype)
            else x
        )

    def randomize_overflow(self, x: Array, out: Array) -> Array:
        """`out`, the integers of `x`, with any where `x` is beyond them: XLA leaves that open."""
        if not is_inexact(x.dtype) or out.dtype == bool:
            return out
        info = np.iinfo(out.dtype)
        inside = (x.real > float(info.min) - 1) & (x.real < float(info.max) + 1)
        return np.where(inside, out, self.random.randint(0, 2, out.shape)).astype(out.dtype)  # type: ignore[union-attr]

    def perturb(self, x: Array, dtype: Any, units: float, modulus: bool = False) -> Array:
        """`x` with an error of about `units` in the last place and the least normal number.

        With `modulus` the components of a complex number have errors of its modulus, not their own.
        """
        if self.random is None or not is_inexact(dtype):
            return x
        eps, least, _ = limits(dtype)
        errors = self.random_factors(x.shape)
        if modulus and is_complex(dtype):
            errors = errors + 1j * self.random_factors(x.shape)
        error = errors * (units * eps * (np.abs(x) if modulus else x) + least)
        return x + np.where(np.isfinite(x) & (x != 0), error, 0.0)

    def random_factors(self, shape: tuple[int, ...]) -> Any:
        """Factors of about 1 and -1: were they the same, a period could be mistaken for no change."""
        between = 2.0 * self.random.random_sample(shape) - 1.0  # type: ignore[union-attr]
        return 0.5 * between + np.copysign(0.75, between)


class Limits(NamedTuple):
    """The distance of 1 to the next number, the least normal number, and the largest."""

    eps: float
    least: float
    largest: float


@lru_cache(maxsize=64)
def limits(dtype: Any) -> Limits:
    info = finfo(dtype)
    return Limits(float(info.eps), float(info.tiny), float(info.max))


def is_representable(x: Array, dtype: Any) -> Any:
    """Where `dtype` has the numbers of the wide array `x`."""
    return (not is_inexact(dtype)) | (x.astype(dtype).astype(x.dtype) == x)


def is_surely_representable(x: Array, dtype: Any) -> Any:
    """The same, for 64 bits where half of them do: `x` may be rounded to these already."""
    narrower = {np.dtype(np.float64): np.float32, np.dtype(np.complex128): np.complex64}
    return is_representable(x, np.dtype(narrower.get(dtype, dtype)))


def recompute_narrow(
    outs: Sequence[Array], args: Sequence[Array], dtypes: Sequence[Any], compute: Compute
) -> list[Array]:
    """`outs`, but as computed in the dtypes of the operands where something overflows on the way.

    Of 32 bits all is taken: it has the digits of an honest computation, also where terms cancel.
    """
    bf16, single = DTYPES_BY_SHORT_NAME["bf16"], np.dtype(np.float32)
    dtypes = [single if d == bf16 else d for d in dtypes]
    narrow = [x.astype(d) for x, d in zip(args, dtypes, strict=True)]
    try:
        found = compute(narrow)
    except TypeError:
        # NumPy has no matrix functions of halves.
        return list(outs)
    if single in dtypes or np.dtype(np.complex64) in dtypes:
        return found
    pairs = zip(found, outs, strict=True)
    return [np.where(np.isfinite(few) & (few != 0), many, few) for few, many in pairs]


def flush_subnormals(x: Array, dtype: Any) -> Array:
    """`x` with 0 for elements below the least normal number of `dtype`."""
    if not is_inexact(dtype):
        return x
    if is_complex(dtype):
        part = real_dtype(dtype)
        return complex_from_parts(flush_subnormals(x.real, part), flush_subnormals(x.imag, part))
    small = np.abs(x) < limits(dtype).least
    return np.where(small, np.copysign(0.0, x), x) if small.any() else x


def complex_from_parts(real: Array, imag: Array) -> Array:
    out = np.empty(real.shape, np.complex128)
    out.real, out.imag = real, imag
    return out


def overflow_to_infinity(x: Array, dtype: Any) -> Array:
    """`x` with infinities for elements beyond the largest number of `dtype`."""
    if not is_inexact(dtype):
        return x
    if is_complex(dtype):
        part = real_dtype(dtype)
        return complex_from_parts(
            overflow_to_infinity(x.real, part), overflow_to_infinity(x.imag, part)
        )
    eps, _, largest = limits(dtype)
    beyond = np.abs(x) > largest + largest * eps / 4
    return np.where(beyond, x * np.inf, x) if beyond.any() else x
