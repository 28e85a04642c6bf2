"""Operations on numbers alone, computed while a program is made simpler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from functx.core.dtypes import DType, is_complex, kind
from functx.core.program import Equation, Literal, scalar_literal
from functx.ops.arithmetic import Abs, Add, Div, Max, Min, Mul, Neg, Sub
from functx.ops.comparison import Eq, Ge, Gt, Le, Lt, Ne
from functx.ops.conversion import ConvertElementType
from functx.ops.logical import And, Not, Or, Xor
from functx.ops.selection import Clamp

# What IEEE arithmetic and two's complement say to the last bit, wherever it is computed.
_EXACT_OPS: dict[Any, Callable[..., Any]] = {
    Abs: np.abs,
    Add: np.add,
    And: np.bitwise_and,
    Clamp: lambda low, x, high: np.minimum(np.maximum(x, low), high),
    Div: np.divide,
    Eq: np.equal,
    Ge: np.greater_equal,
    Gt: np.greater,
    Le: np.less_equal,
    Lt: np.less,
    Max: np.maximum,
    Min: np.minimum,
    Mul: np.multiply,
    Ne: np.not_equal,
    Neg: np.negative,
    Not: np.invert,
    Or: np.bitwise_or,
    Sub: np.subtract,
    Xor: np.bitwise_xor,
}
_SMALLEST_PORTABLE = 1e-30


def fold_constants(eqn: Equation) -> Literal | None:
    """The number that `eqn` computes from numbers alone; None where that is better left to run."""
    (out,) = eqn.outputs
    dtype = out.aval.dtype
    operands = [np.asarray(a.value, a.aval.dtype) for a in eqn.inputs]  # type: ignore[union-attr]
    if not all([_is_portable_number(x, x.dtype) for x in operands]):
        return None
    with np.errstate(all="ignore"):
        if type(eqn.primitive) is ConvertElementType:
            if kind(operands[0].dtype) == "f" and kind(dtype) in "iu":
                return None
            value = operands[0].astype(dtype)
        else:
            if type(eqn.primitive) is Div and kind(dtype) in "iu":
                return None
            value = np.asarray(_EXACT_OPS[type(eqn.primitive)](*operands)).astype(dtype)
    if not _is_portable_number(value, dtype):
        return None
    number = value.item()
    return scalar_literal(number, dtype, out.aval.weak_type, repr(number))


def can_fold_constants(eqn: Equation) -> bool:
    """Whether `eqn` is one that can be computed from numbers alone, and there are no others."""
    primitive = type(eqn.primitive)
    if primitive not in _EXACT_OPS and primitive is not ConvertElementType:
        return False
    return all([type(a) is Literal for a in eqn.inputs])


def _is_portable_number(x: Any, dtype: DType) -> bool:
    """Whether a number is not complex, nan, infinite, or so small that machines differ."""
    if is_complex(dtype):
        return False
    if kind(dtype) != "f":
        return True
    size = abs(float(x))
    return size == 0.0 or _SMALLEST_PORTABLE < size < np.inf
