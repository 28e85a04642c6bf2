"""Facts about elementwise and other operations that bounds of their outputs follow from."""

from __future__ import annotations

from functx import ops
from functx.core.primitive import Primitive
from functx.custom.hook_grad import HookGrad
from functx.ops import activations as nn
from functx.ops import (
    autodiff,
    collectives,
    cumulative,
    indexing,
    scattering,
    sorting,
    special,
    views,
)
from functx.ops.powers import HalfIntegerPow
from functx.ops.softmaxes import LogSumExp, Softmax
from functx.transforms.control import predication

Class = type[Primitive]

SIGNS: dict[Class, tuple[int, ...]] = {
    # Functions of numbers that increase, or decrease.
    **dict.fromkeys((ops.Exp, ops.Exp2, ops.Expm1, ops.Log, ops.Log1p, ops.Logistic), (1,)),
    **dict.fromkeys((ops.Sqrt, ops.SafeSqrt, ops.Cbrt, ops.Sinh, ops.Tanh, ops.Asinh), (1,)),
    **dict.fromkeys((ops.Asin, ops.Atan, ops.Acosh, ops.Atanh), (1,)),
    **dict.fromkeys((special.Erf, special.ErfInv, special.Ndtri, special.BesselI1), (1,)),
    **dict.fromkeys((nn.Relu, nn.Softplus, nn.LogSigmoid), (1,)),
    **dict.fromkeys((ops.Sign, ops.Floor, ops.Ceil, ops.Round, ops.ReducePrecision), (1,)),
    **dict.fromkeys((ops.Neg, ops.Not, ops.Acos, ops.Rsqrt, special.Erfc), (-1,)),
    # Functions of several operands; False is below True. The last sign is that of the others.
    **dict.fromkeys((ops.Add, ops.Max, ops.Min, ops.Clamp, ops.And, ops.Or), (1,)),
    **dict.fromkeys((ops.Sub, ops.Gt, ops.Ge), (1, -1)),
    **dict.fromkeys((ops.Lt, ops.Le), (-1, 1)),
    # Reductions and scans.
    **dict.fromkeys((ops.ReduceSum, ops.ReduceMax, ops.ReduceMin, LogSumExp), (1,)),
    **dict.fromkeys((ops.ReduceAnd, ops.ReduceOr), (1,)),
    **dict.fromkeys((cumulative.CumSum, cumulative.CumMax, cumulative.CumMin), (1,)),
    **dict.fromkeys((ops.ReduceWindowSum, ops.ReduceWindowMax, ops.ReduceWindowMin), (1,)),
    # Operations that move elements.
    **dict.fromkeys((ops.BroadcastInDim, ops.Full, ops.Reshape, ops.PermuteDims, ops.Rev), (1,)),
    **dict.fromkeys((ops.Slice, ops.Concatenate, ops.Split, ops.Pad, views.Copy), (1,)),
    **dict.fromkeys((ops.DynamicSlice, ops.DynamicUpdateSlice, indexing.Gather), (1,)),
    **dict.fromkeys((scattering.ScatterSet, scattering.ScatterAdd, scattering.ScatterMax), (1,)),
    **dict.fromkeys((scattering.ScatterMin, predication.AnyActive), (1,)),
    **dict.fromkeys((autodiff.CheckpointName, autodiff.DerivativeBoundary), (1,)),
    **dict.fromkeys((collectives.Psum, collectives.Pmax, collectives.Pmin), (1,)),
    **dict.fromkeys((collectives.AllGather, collectives.Ppermute, ops.OptimizationBarrier), (1,)),
}
"""For each operand, 1 if outputs never fall where it rises, -1 if they never rise."""

BITWISE = (ops.And, ops.Or, ops.ReduceAnd, ops.ReduceOr)
"""Operations in `SIGNS` that are monotone on booleans alone."""

VALLEYS: dict[Class, float] = {
    **dict.fromkeys((ops.Abs, ops.Square, ops.Cosh, special.BesselI0), 0.0),
    nn.Silu: -1.2784645427610738,
    nn.Mish: -1.1924312145314953,
}
"""The place of the least value of a function that falls before it and rises after it."""

GELU_VALLEYS = {False: -0.7517915249365562, True: -0.7524614220710162}
"""The place of the least value of `gelu`, by its field `approximate`."""

PASSING: dict[Class, int] = {
    ops.StopGradient: 0,
    autodiff.Detach: 0,
    HookGrad: 0,
    autodiff.WithValue: 1,
    predication.MaskedOperand: 1,
}
"""Operations whose value is that of one operand, or counts only where it is."""

POSITIONS: dict[Class, slice] = {
    indexing.Gather: slice(1, None),
    ops.DynamicSlice: slice(1, None),
    ops.DynamicUpdateSlice: slice(2, None),
    **dict.fromkeys(
        (scattering.ScatterSet, scattering.ScatterAdd, scattering.ScatterMax), slice(1, 2)
    ),
    scattering.ScatterMin: slice(1, 2),
}
"""The operands of operations in `SIGNS` that are positions, which must be known exactly."""

SMOOTH: frozenset[Class] = frozenset(
    (
        *(ops.Exp, ops.Exp2, ops.Expm1, ops.Log, ops.Log1p, ops.Sqrt, ops.Rsqrt, ops.Cbrt),
        *(ops.Square, ops.IntegerPow, ops.Sin, ops.Cos, ops.Tan, ops.Asin, ops.Acos, ops.Atan),
        *(ops.Sinh, ops.Cosh, ops.Tanh, ops.Asinh, ops.Acosh, ops.Atanh, ops.Logistic),
        *(special.Erf, special.Erfc, special.ErfInv, nn.Softplus, nn.LogSigmoid),
        *(nn.Silu, nn.Gelu, nn.Mish),
    )
)
"""Functions that are twice differentiable between any two arguments between which they are bounded."""

SIGMOIDS = (ops.Tanh, ops.Logistic, ops.Atan, ops.Asinh, special.Erf)
"""Functions in `SMOOTH` whose derivative is greatest at 0 and falls on both sides."""

SLOPES: dict[Class, tuple[float, float]] = {
    nn.Silu: (-0.0999, 1.0999),
    nn.Gelu: (-0.1291, 1.1291),
    nn.Mish: (-0.1131, 1.0885),
}
"""The least and the greatest derivative of other functions in `SMOOTH`."""

CONVEX_KINKS: frozenset[Class] = frozenset((ops.Abs, nn.Relu))
"""Functions that are convex, and differentiable but for one place."""

JOINTLY_AFFINE = (
    *(ops.Add, ops.Sub, ops.Select, ops.DynamicSlice, ops.DynamicUpdateSlice, indexing.Gather),
    *(scattering.ScatterAdd, scattering.ScatterSet),
)
"""Operations that are affine in all their floats together, besides those of the family `Linear`."""

NONEXPANSIVE = (
    *(ops.Max, ops.Min, ops.Clamp, ops.Select, ops.ReduceMax, ops.ReduceMin, LogSumExp),
    *(Softmax, sorting.Sort, ops.Concatenate, nn.Relu, ops.Abs),
)
"""Operations whose results are no further apart than their operands together.

This holds for the Euclidean norm and for the largest element; for `Select` while the choices are the same.
"""

LOCALLY_CONSTANT = (ops.Sign, ops.Floor, ops.Ceil, ops.Round)
"""Functions whose derivative is zero wherever it exists."""


def valley(primitive: Primitive) -> float | None:
    """The place of the least value of a function that falls and then rises; None for another."""
    if type(primitive) is nn.Gelu:
        return GELU_VALLEYS[primitive.approximate]
    if type(primitive) is ops.IntegerPow and primitive.exponent % 2 == 0:
        return 0.0 if primitive.exponent >= 0 else None
    return VALLEYS.get(type(primitive))


def signs(primitive: Primitive, count: int) -> tuple[int, ...] | None:
    """The sign of each of `count` operands, as in `SIGNS`; None for an operation without."""
    if type(primitive) is ops.IntegerPow and primitive.exponent % 2 == 1 and primitive.exponent > 0:
        return (1,)
    if type(primitive) is HalfIntegerPow:
        return (1,) if primitive.numerator > 0 else (-1,)
    known = SIGNS.get(type(primitive))
    return None if known is None else (*known, *known[-1:] * count)[:count]
