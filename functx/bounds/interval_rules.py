"""Interval rules of products, quotients, powers, trigonometric functions and control flow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce, wraps
from typing import Any

from ml_dtypes import finfo

from functx import ops
from functx.bounds.boxes import Pair, flat, pairs
from functx.bounds.interval import (
    INFINITY,
    PropagateIntervals,
    bounds_of,
    hull,
    interval_rule,
    is_nan,
    missing_rule_error,
    unbounded,
)
from functx.core.caches import invalidate_caches
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.program_calls import apply_program
from functx.core.rewriting import cached_rewrite
from functx.core.tracer import aval_of
from functx.core.types import is_inexact
from functx.core.typing import Function, Value
from functx.custom.custom_function import CustomDerivativeCall
from functx.ops.convolution import Convolution
from functx.ops.cumulative import CumProd
from functx.ops.operands import broadcast_along
from functx.ops.reductions import ArgExtremum
from functx.ops.softmaxes import LogSoftmax, LogSumExp, Softmax
from functx.ops.sorting import Sort, TopK
from functx.transforms.call_primitive import ProgramCall
from functx.transforms.control.cond import Cond
from functx.transforms.control.scan import Scan
from functx.transforms.control.while_loop import While
from functx.transforms.dce import fixed_point, take_first_outputs


def corners(primitive: Primitive, x: Pair, y: Pair, undefined: float) -> Pair:
    """The bounds of a function that is monotone in each operand, which are among its values at corners.

    At corners where it is nan it has the value `undefined`.
    """
    x_ends, y_ends = [pair[: 1 + (pair[0] is not pair[1])] for pair in (x, y)]
    values = [primitive(a, b) for a in x_ends for b in y_ends]
    if is_inexact(values[0].dtype):
        values = [ops.select(is_nan(v), undefined, v) for v in values]
    return hull(*[(v, v) for v in values])


@interval_rule.register(ops.Mul)
def _mul(primitive: ops.Mul, x: Pair, y: Pair) -> Sequence[Pair]:
    if x is y:
        return bounds_of(ops.Square(), x)
    # An infinite bound stands for large numbers, whose product with 0 is 0.
    return [corners(primitive, x, y, 0.0)]


@interval_rule.register(ops.Div)
def _div(primitive: ops.Div, x: Pair, y: Pair) -> Sequence[Pair]:
    low, high = y
    if not is_inexact(low.dtype):
        raise missing_rule_error(primitive, "floats")
    # The zero at which positive divisors begin is positive.
    divisor = (ops.select(ops.eq(low, 0.0), 0.0, low), high)
    lower, upper = corners(primitive, x, divisor if low is not high else y, 0.0)
    may_be_zero = ops.bitwise_and(ops.lt(low, 0.0), ops.ge(high, 0.0))
    return [(ops.select(may_be_zero, -INFINITY, lower), ops.select(may_be_zero, INFINITY, upper))]


@interval_rule.register(ops.Pow)
def _pow(primitive: ops.Pow, x: Pair, y: Pair) -> Sequence[Pair]:
    lower, upper = corners(primitive, x, y, 1.0)
    is_defined = ops.ge(x[0], 0.0)
    return [(ops.select(is_defined, lower, -INFINITY), ops.select(is_defined, upper, INFINITY))]


@interval_rule.register(ops.IntegerPow)
def _integer_pow(primitive: ops.IntegerPow, x: Pair) -> Sequence[Pair]:
    if primitive.exponent >= 0:
        return interval_rule.dispatch(Primitive)(primitive, x)
    (power,) = bounds_of(ops.IntegerPow(-primitive.exponent), x)
    one = ops.full_like(power[0], 1.0)
    return bounds_of(ops.Div(), (one, one), power)


@interval_rule.register(ops.DotGeneral)
@interval_rule.register(Convolution)
def _bilinear(primitive: Primitive, x: Pair, y: Pair) -> Sequence[Pair]:
    """S. M. Rump, "Fast and parallel interval arithmetic" (1999): products of midpoints and radii."""
    if not is_inexact(x[0].dtype):
        raise missing_rule_error(primitive, "floats")
    (x_mid, x_radius), (y_mid, y_radius) = [_midpoint_and_radius(*pair) for pair in (x, y)]
    terms = []
    if x_radius is not None:
        terms.append(primitive(x_radius, ops.abs(y_mid)))
    if y_radius is not None:
        x_size = ops.abs(x_mid) if x_radius is None else ops.add(ops.abs(x_mid), x_radius)
        terms.append(primitive(x_size, y_radius))
    middle = primitive(x_mid, y_mid)
    radius = reduce(ops.add, terms)
    return [(ops.sub(middle, radius), ops.add(middle, radius))]


def _midpoint_and_radius(low: Value, high: Value) -> tuple[Value, Value | None]:
    if low is high:
        return low, None
    middle = ops.add(ops.mul(low, 0.5), ops.mul(high, 0.5))
    return middle, ops.max(ops.sub(high, middle), ops.sub(middle, low))


@interval_rule.register(ops.ReduceProd)
@interval_rule.register(CumProd)
def _prod(primitive: Primitive, x: Pair) -> Sequence[Pair]:
    low, high = x
    size = primitive(ops.max(ops.abs(low), ops.abs(high)))
    is_positive = ops.reduce_and(ops.ge(low, 0.0))
    return [
        (
            ops.select(is_positive, primitive(low), ops.neg(size)),
            ops.select(is_positive, primitive(high), size),
        )
    ]


def _holds_point(x: Pair, phase: float, period: float) -> Value:
    """Whether the interval holds `phase` plus a multiple of `period`, or nearly."""
    low, high = [ops.div(ops.sub(v, phase), period) for v in x]
    slack = 4.0 * float(finfo(low.dtype).eps)
    low, high = [
        ops.add(v, ops.mul(ops.add(ops.abs(v), 1.0), sign * slack))
        for v, sign in ((low, -1.0), (high, 1.0))
    ]
    return ops.ge(ops.floor(high), ops.ceil(low))


def _wave(primitive: Primitive, x: Pair, crest: float) -> Sequence[Pair]:
    ends = [primitive(v) for v in x]
    lower, upper = ops.min(*ends), ops.max(*ends)
    return [
        (
            ops.select(_holds_point(x, crest + math.pi, 2 * math.pi), -1.0, lower),
            ops.select(_holds_point(x, crest, 2 * math.pi), 1.0, upper),
        )
    ]


@interval_rule.register(ops.Sin)
def _sin(primitive: ops.Sin, x: Pair) -> Sequence[Pair]:
    return _wave(primitive, x, math.pi / 2)


@interval_rule.register(ops.Cos)
def _cos(primitive: ops.Cos, x: Pair) -> Sequence[Pair]:
    return _wave(primitive, x, 0.0)


@interval_rule.register(ops.Tan)
def _tan(primitive: ops.Tan, x: Pair) -> Sequence[Pair]:
    has_pole = _holds_point(x, math.pi / 2, math.pi)
    lower, upper = [primitive(v) for v in x]
    return [(ops.select(has_pole, -INFINITY, lower), ops.select(has_pole, INFINITY, upper))]


@interval_rule.register(ops.Eq)
def _eq(primitive: ops.Eq, x: Pair, y: Pair) -> Sequence[Pair]:
    is_known = ops.bitwise_and(ops.eq(x[0], x[1]), ops.eq(y[0], y[1]))
    meet = ops.bitwise_and(ops.le(x[0], y[1]), ops.le(y[0], x[1]))
    return [(ops.bitwise_and(is_known, ops.eq(x[0], y[0])), meet)]


@interval_rule.register(ops.Ne)
def _ne(primitive: ops.Ne, x: Pair, y: Pair) -> Sequence[Pair]:
    ((low, high),) = _eq(ops.Eq(), x, y)
    return [(ops.bitwise_not(high), ops.bitwise_not(low))]


@interval_rule.register(ops.IsFinite)
def _is_finite(primitive: ops.IsFinite, x: Pair) -> Sequence[Pair]:
    low = ops.bitwise_and(*[primitive(v) for v in x])
    return [(low, ops.full_like(low, True))]


@interval_rule.register(ops.Select)
def _select(primitive: ops.Select, pred: Pair, on_false: Pair, on_true: Pair) -> Sequence[Pair]:
    is_certain, is_possible = pred
    either = hull(on_false, on_true)
    return [
        tuple(
            [
                primitive(is_certain, primitive(is_possible, no, both), yes)
                for no, yes, both in zip(on_false, on_true, either, strict=True)
            ]
        )
    ]


@interval_rule.register(ops.ConvertElementType)
def _convert(primitive: ops.ConvertElementType, x: Pair) -> Sequence[Pair]:
    if primitive.dtype != bool or x[0].dtype == bool:
        low, high = [primitive(v) for v in x]
        return [(low, high)]
    zero = ops.zeros_like(x[0])
    return bounds_of(ops.Ne(), x, (zero, zero))


@interval_rule.register(Softmax)
@interval_rule.register(LogSoftmax)
def _softmax(primitive: Softmax | LogSoftmax, x: Pair) -> Sequence[Pair]:
    # x - logsumexp(x) is at most 0.
    total = [broadcast_along(LogSumExp(primitive.axes)(v), v, primitive.axes) for v in x]
    logs = [ops.sub(x[0], total[1]), ops.min(ops.sub(x[1], total[0]), 0.0)]
    low, high = logs if isinstance(primitive, LogSoftmax) else [ops.exp(v) for v in logs]
    return [(low, high)]


@interval_rule.register(ops.Rem)
def _rem(primitive: ops.Rem, x: Pair, y: Pair) -> Sequence[Pair]:
    size = ops.max(*[ops.abs(v) for v in y])
    # The remainder has the sign of x, and is no greater than x.
    lower = ops.max(ops.neg(size), ops.min(x[0], 0))
    upper = ops.min(size, ops.max(x[1], 0))
    if y[0] is not y[1]:
        return [(lower, upper)]
    ends = [primitive(v, y[0]) for v in x]
    has_one_sign = ops.ge(ops.mul(ops.sign(x[0]), ops.sign(x[1])), 0)
    is_short = ops.bitwise_and(ops.lt(ops.sub(x[1], x[0]), size), ops.le(*ends))
    is_straight = ops.bitwise_and(has_one_sign, is_short)
    return [(ops.select(is_straight, ends[0], lower), ops.select(is_straight, ends[1], upper))]


@interval_rule.register(ArgExtremum)
def _arg_extremum(primitive: ArgExtremum, x: Pair) -> Sequence[Pair]:
    indices = primitive(x[0])
    last = x[0].shape[primitive.axis] - 1
    return [(ops.zeros_like(indices), ops.full_like(indices, last))]


@interval_rule.register(TopK)
def _top_k(primitive: TopK, x: Pair) -> Sequence[Pair]:
    (low, indices), (high, _) = [primitive(v) for v in x]
    return [(low, high), (ops.zeros_like(indices), ops.full_like(indices, x[0].shape[-1] - 1))]


@interval_rule.register(Sort)
def _sort(primitive: Sort, *operands: Pair) -> Sequence[Pair]:
    if len(operands) > 1 or primitive.permutation:
        raise missing_rule_error(primitive, "one operand, and no permutation")
    (low,), (high,) = [primitive.as_list(primitive(v)) for v in operands[0]]
    return [(low, high)]


@interval_rule.register(ops.Atan2)
def _atan2(primitive: ops.Atan2, y: Pair, x: Pair) -> Sequence[Pair]:
    # Away from the cut, the angle is monotone in each coordinate.
    lower, upper = corners(primitive, y, x, 0.0)
    has_cut = ops.bitwise_and(
        ops.le(x[0], 0.0), ops.bitwise_and(ops.le(y[0], 0.0), ops.ge(y[1], 0.0))
    )
    return [(ops.select(has_cut, -math.pi, lower), ops.select(has_cut, math.pi, upper))]


def propagate(
    program: Program, varying: tuple[bool, ...], returned: tuple[bool, ...] = ()
) -> tuple[Program, tuple[bool, ...]]:
    """`program` as one of bounds, and the outputs that vary; those in `returned` do."""
    returned = returned or (False,) * len(program.outputs)
    return cached_rewrite(PropagateIntervals(varying, returned), program)


def varies(operands: Sequence[Pair]) -> tuple[bool, ...]:
    """Whether each operand is not known exactly."""
    return tuple([x is not y for x, y in operands])


@interval_rule.register(ProgramCall)
def _call(primitive: ProgramCall, *operands: Pair) -> Sequence[Pair]:
    varying = varies(operands)
    program, out_varying = propagate(primitive.program, varying)
    return pairs(primitive.with_program(program)(*flat(operands, varying)), out_varying)


@interval_rule.register(CustomDerivativeCall)
def _custom_call(primitive: CustomDerivativeCall, *operands: Pair) -> Sequence[Pair]:
    varying = varies(operands)
    program, out_varying = propagate(primitive.primal, varying)
    return pairs(apply_program(program, flat(operands, varying)), out_varying)


@interval_rule.register(Cond)
def _cond(primitive: Cond, index: Pair, *operands: Pair) -> Sequence[Pair]:
    varying = varies(operands)
    branches = primitive.branches
    every = (True,) * len(branches[0].outputs)
    if index[0] is index[1]:
        bodies = tuple([propagate(branch, varying, every)[0] for branch in branches])
        return pairs(Cond(bodies)(index[0], *flat(operands, varying)), every)
    values = [
        pairs(apply_program(propagate(b, varying, every)[0], flat(operands, varying)), every)
        for b in branches
    ]
    return [hull(*alternatives) for alternatives in zip(*values, strict=True)]


@interval_rule.register(Scan)
def _scan(primitive: Scan, *operands: Pair) -> Sequence[Pair]:
    consts, carry, xs = primitive.split_operands(varies(operands))
    rest = (False,) * (len(primitive.program.outputs) - len(carry))

    def step(carry: tuple[bool, ...]) -> tuple[tuple[bool, ...], tuple[Program, tuple[bool, ...]]]:
        found = propagate(primitive.program, (*consts, *carry, *xs), (*carry, *rest))
        return found[1][: len(carry)], found

    varying_carry, (body, out_varying) = fixed_point(tuple(carry), step)
    varying = (*consts, *varying_carry, *xs)
    loop = primitive.with_program(
        body, len(consts) + sum(consts), len(varying_carry) + sum(varying_carry)
    )
    return pairs(loop(*flat(operands, varying)), out_varying)


@interval_rule.register(While)
def _while(primitive: While, *operands: Pair) -> Sequence[Pair]:
    condition_consts, consts, carry = primitive.split_operands(varies(operands))

    def step(carry: tuple[bool, ...]) -> tuple[tuple[bool, ...], Program]:
        body, out_varying = propagate(primitive.body, (*consts, *carry), carry)
        return out_varying, body

    varying_carry, body = fixed_point(tuple(carry), step)
    in_condition = (*condition_consts, *varying_carry)
    condition, (is_uncertain,) = propagate(primitive.condition, in_condition)
    loop = primitive.with_program(
        take_first_outputs(condition, 1),
        body,
        len(condition_consts) + sum(condition_consts),
        len(consts) + sum(consts),
    )
    args = flat(operands, (*condition_consts, *consts, *varying_carry))
    outs = loop(*args)
    if not is_uncertain:
        return pairs(outs, varying_carry)
    # The loop ran while all arguments need a further step. If some do then, nothing is known.
    goes_on = apply_program(condition, [*args[: loop.condition_consts], *outs])[1]
    wide = [unbounded(aval_of(x)) for x, _ in pairs(outs, varying_carry)]
    return [
        (ops.select(goes_on, w[0], x[0]), ops.select(goes_on, w[1], x[1]))
        for w, x in zip(wide, pairs(outs, varying_carry), strict=True)
    ]


def _invalidate_caches_before(register: Function) -> Function:
    @wraps(register)
    def wrapper(*args: object, **kwargs: object) -> Any:
        invalidate_caches()
        return register(*args, **kwargs)

    return wrapper


# A rule that is registered from here on changes results that are cached.
interval_rule.register = _invalidate_caches_before(interval_rule.register)  # type: ignore[method-assign]
