"""Translations of what works element by element: arithmetic, functions, comparisons, choices."""

from __future__ import annotations

from typing import Any

from jax import lax

from functx.interop.translation import (
    ELEMENTWISE_PRIMITIVES,
    broadcast_unit_dims,
    register_translation,
)
from functx.ops.arithmetic import (
    Abs,
    Add,
    Div,
    IntegerPow,
    Max,
    Min,
    Mul,
    Neg,
    NextAfter,
    Pow,
    Rem,
    Sign,
    Square,
    Sub,
)
from functx.ops.comparison import Eq, Ge, Gt, Le, Lt, Ne
from functx.ops.complexes import Complex, Imag, Real, conj
from functx.ops.conversion import BitcastConvertType, ReducePrecision, convert_element_type
from functx.ops.exponential import (
    Cbrt,
    Exp,
    Exp2,
    Expm1,
    Log,
    Log1p,
    Logistic,
    Rsqrt,
    Sqrt,
)
from functx.ops.gradients import CheckpointName, StopGradient
from functx.ops.logical import (
    And,
    CountLeadingZeros,
    Not,
    Or,
    PopulationCount,
    ShiftLeft,
    ShiftRightArithmetic,
    ShiftRightLogical,
    Xor,
)
from functx.ops.rounding import Ceil, Floor, IsFinite, Round
from functx.ops.selection import Clamp, select_n
from functx.ops.special import Digamma, Erf, Erfc, ErfInv, Lgamma, Polygamma
from functx.ops.trigonometric import (
    Acos,
    Acosh,
    Asin,
    Asinh,
    Atan,
    Atan2,
    Atanh,
    Cos,
    Cosh,
    Sin,
    Sinh,
    Tan,
    Tanh,
)

ELEMENTWISE_PRIMITIVES.update(
    neg=Neg(),
    add=Add(),
    add_any=Add(),
    sub=Sub(),
    mul=Mul(),
    div=Div(),
    rem=Rem(),
    max=Max(),
    min=Min(),
    pow=Pow(),
    square=Square(),
    sign=Sign(),
    abs=Abs(),
    nextafter=NextAfter(),
    exp=Exp(),
    exp2=Exp2(),
    expm1=Expm1(),
    log=Log(),
    log1p=Log1p(),
    sqrt=Sqrt(),
    rsqrt=Rsqrt(),
    cbrt=Cbrt(),
    logistic=Logistic(),
    sin=Sin(),
    cos=Cos(),
    tan=Tan(),
    asin=Asin(),
    acos=Acos(),
    atan=Atan(),
    atan2=Atan2(),
    sinh=Sinh(),
    cosh=Cosh(),
    tanh=Tanh(),
    asinh=Asinh(),
    acosh=Acosh(),
    atanh=Atanh(),
    erf=Erf(),
    erfc=Erfc(),
    erf_inv=ErfInv(),
    lgamma=Lgamma(),
    digamma=Digamma(),
    polygamma=Polygamma(),
    floor=Floor(),
    ceil=Ceil(),
    is_finite=IsFinite(),
    eq=Eq(),
    ne=Ne(),
    lt=Lt(),
    le=Le(),
    gt=Gt(),
    ge=Ge(),
    real=Real(),
    imag=Imag(),
    complex=Complex(),
    clamp=Clamp(),
    population_count=PopulationCount(),
    clz=CountLeadingZeros(),
    shift_left=ShiftLeft(),
    shift_right_logical=ShiftRightLogical(),
    shift_right_arithmetic=ShiftRightArithmetic(),
    stop_gradient=StopGradient(),
)
ELEMENTWISE_PRIMITIVES.update({"and": And(), "or": Or(), "xor": Xor(), "not": Not()})


@register_translation("integer_pow")
def translate_integer_pow(eqn: Any, x: Any) -> Any:
    return IntegerPow(int(eqn.params["y"]))(x)


@register_translation("round")
def translate_round(eqn: Any, x: Any) -> Any:
    return Round(eqn.params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN)(x)


@register_translation("conj")
def translate_conj(eqn: Any, x: Any) -> Any:
    # JAX's takes real arrays too, and gives complex ones.
    return conj(convert_element_type(x, eqn.outvars[0].aval.dtype))


@register_translation("select_n")
def translate_select_n(eqn: Any, which: Any, *cases: Any) -> Any:
    return select_n(*broadcast_unit_dims(eqn, (which, *cases)))


@register_translation("convert_element_type")
def translate_convert_element_type(eqn: Any, x: Any) -> Any:
    return convert_element_type(x, eqn.params["new_dtype"], bool(eqn.params["weak_type"]))


@register_translation("bitcast_convert_type")
def translate_bitcast_convert_type(eqn: Any, x: Any) -> Any:
    return BitcastConvertType(eqn.params["new_dtype"])(x)


@register_translation("reduce_precision")
def translate_reduce_precision(eqn: Any, x: Any) -> Any:
    return ReducePrecision(eqn.params["exponent_bits"], eqn.params["mantissa_bits"])(x)


@register_translation("copy", "copy_p", "random_clone", keys=True)
def translate_identity(eqn: Any, *xs: Any) -> Any:
    return list(xs)


@register_translation("name")
def translate_name(eqn: Any, x: Any) -> Any:
    return CheckpointName(eqn.params["name"])(x)


@register_translation("device_put", keys=True)
def translate_device_put(eqn: Any, *xs: Any) -> Any:
    # Without a device to go to, it is where it was.
    stays = all(device is None for device in eqn.params["devices"])
    return list(xs) if stays else NotImplemented


@register_translation("dce_sink", keys=True)
def translate_dce_sink(eqn: Any, *xs: Any) -> Any:
    return []
