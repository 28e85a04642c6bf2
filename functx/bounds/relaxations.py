"""Linear relaxations of operations: lines that enclose them between the bounds of their operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from functx import ops
from functx.bounds.boxes import Interval, Pair
from functx.bounds.interval import INFINITY, bounds_of, interval, interval_rule
from functx.bounds.monotonicity import (
    CONVEX_KINKS,
    JOINTLY_AFFINE,
    SIGMOIDS,
    SLOPES,
    signs,
    valley,
)
from functx.core.decompositions import class_decomposition
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.tracer import aval_of
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Function, Value
from functx.custom.custom_function import CustomDerivativeCall
from functx.ops.activations import relu
from functx.ops.convolution import Convolution
from functx.ops.families import Elementwise, Linear, unbroadcast_scalar
from functx.transforms.call_primitive import ProgramCall
from functx.transforms.decompose import builtin_decomposition
from functx.transforms.jvp import jvp, vjp


class BoundedValue(NamedTuple):
    """A value on the tape: its bounds, and its place."""

    lower: Value
    upper: Value
    place: int

    @property
    def is_exact(self) -> bool:
        """Whether the value is known exactly."""
        return self.lower is self.upper


Backward: TypeAlias = Callable[[Value], "tuple[list[tuple[int, Value]], Pair | None]"]
"""From coefficients of a value, those of the values that it depends on, and the bounds of what is added."""


def affine_backward(primitive: Primitive, operands: Sequence[BoundedValue], k: int) -> Backward:
    """The backward function of output `k` of a `primitive` that is affine in the operands that vary."""
    varying = [x for x in operands if not x.is_exact]
    is_joint = isinstance(primitive, (Linear, *JOINTLY_AFFINE))
    is_linear = not is_joint or len(varying) == len(operands)

    def fun(*values: Value) -> Value:
        given = iter(values)
        args = [x.lower if x.is_exact else next(given) for x in operands]
        return primitive.as_list(primitive(*args))[k]

    def backward(ct: Value) -> tuple[list[tuple[int, Value]], Pair | None]:
        origin, pull = vjp(fun, *[ops.zeros_like(x.lower) for x in varying])
        terms = [(x.place, c) for x, c in zip(varying, pull(ct), strict=True)]
        return terms, None if is_linear else (origin, origin)

    return backward


def relax(
    primitive: Primitive, operands: Sequence[BoundedValue], bounds: Sequence[Pair]
) -> tuple[Pair, Backward]:
    """The bounds and the backward function of the output of a nonlinear `primitive`."""
    (pair,) = bounds_of(primitive, *bounds)
    lines = product_lines(*bounds) if len(bounds) == 2 else lines_of(primitive, *bounds[0])
    is_usable = ops.bitwise_and(*[ops.is_finite(v) for v in pair])
    for value in (*lines[0], *lines[1]):
        is_usable = ops.bitwise_and(is_usable, ops.is_finite(value))
    below, above = [
        [ops.select(is_usable, v, ops.zeros_like(v)) for v in slopes] for *slopes, _ in lines
    ]
    offsets = [ops.select(is_usable, line[-1], v) for line, v in zip(lines, pair, strict=True)]

    def backward(ct: Value) -> tuple[list[tuple[int, Value]], Pair | None]:
        positive, negative = ops.max(ct, 0.0), ops.min(ct, 0.0)
        cts = [
            ops.add(ops.mul(positive, a), ops.mul(negative, b))
            for a, b in zip(below, above, strict=True)
        ]
        terms = [
            (x.place, unbroadcast_scalar(c, x.lower)) for x, c in zip(operands, cts, strict=True)
        ]
        return terms, (offsets[0], offsets[1])

    return pair, backward


def least_value(ct: Value, low: Value, high: Value) -> Value:
    """The least sum of `ct` times an array between `low` and `high`; 0 times infinity is 0."""
    value = low if low is high else ops.select(ops.ge(ct, 0.0), low, high)
    terms = ops.mul(ct, value)
    terms = ops.select(ops.eq(ct, 0.0), 0.0, terms)
    return ops.reduce_sum(terms, tuple(range(terms.ndim)))


def intersect(first: Pair, second: Pair) -> Pair:
    """The bounds that two pairs of bounds of one value give together; nan in the second is no bound."""
    low = ops.select(ops.gt(second[0], first[0]), second[0], first[0])
    return low, ops.select(ops.lt(second[1], first[1]), second[1], first[1])


def is_affine(primitive: Primitive, operands: Sequence[tuple[Value, Value, Any]]) -> bool:
    """Whether the outputs are affine functions of all operands that vary, given by bounds first."""
    varying = [i for i, x in enumerate(operands) if x[0] is not x[1]]
    outs = primitive.out_avals(tuple([aval_of(x[0]) for x in operands]))
    dtypes = [*[operands[i][0].dtype for i in varying], *[a.dtype for a in outs]]
    if not all([is_inexact(dtype) for dtype in dtypes]):
        return False
    if isinstance(primitive, (Linear, *JOINTLY_AFFINE)):
        return True
    linear = primitive.linear if isinstance(primitive, Elementwise) else ()
    return len(varying) == 1 and (
        varying[0] in linear or isinstance(primitive, ops.DotGeneral | Convolution)
    )


def has_interval_rule(primitive: Primitive) -> bool:
    """Whether `interval` knows the operation itself."""
    rule = interval_rule.dispatch(type(primitive))
    is_known = signs(primitive, 1) is not None or valley(primitive) is not None
    return is_known or rule is not interval_rule.dispatch(Primitive)


REWRITTEN: dict[type[Primitive], Function] = {
    ops.Max: lambda x, y: ops.add(y, relu(ops.sub(x, y))),
    ops.Min: lambda x, y: ops.sub(x, relu(ops.sub(x, y))),
    ops.Clamp: lambda low, x, high: ops.min(ops.max(x, low), high),
    ops.Div: lambda x, y: ops.mul(x, ops.integer_pow(y, -1)),
    ops.Select: lambda pred, no, yes: ops.add(
        no, ops.mul(ops.convert_element_type(pred, no.dtype), ops.sub(yes, no))
    ),
}
"""Operations by others that have linear relaxations."""


def program_of(primitive: Primitive, avals: Sequence[ShapedArray]) -> Program | None:
    """The program that computes `primitive` by equations with better relaxations; None if there is none."""
    if isinstance(primitive, ProgramCall):
        return primitive.program
    if isinstance(primitive, CustomDerivativeCall):
        return primitive.primal
    if type(primitive) in REWRITTEN and is_inexact(avals[-1].dtype):
        fun = REWRITTEN[type(primitive)]
        return trace_closed(lambda *args: [fun(*args)], avals, name=primitive.name)
    if has_interval_rule(primitive) or class_decomposition(type(primitive)) is None:
        return None
    return builtin_decomposition(primitive, tuple(avals))


Line: TypeAlias = tuple[Value, ...]
"""The slope in each operand, and the value at 0."""


def product_lines(x: Pair, y: Pair) -> tuple[Line, Line]:
    """The planes below and above a product: G. P. McCormick (1976)."""
    return (
        (y[0], x[0], ops.neg(ops.mul(x[0], y[0]))),
        (y[1], x[0], ops.neg(ops.mul(x[0], y[1]))),
    )


def lines_of(primitive: Primitive, low: Value, high: Value) -> tuple[Line, Line]:
    """The lines below and above a function of a number between `low` and `high`."""
    at_low, at_high, width = primitive(low), primitive(high), ops.sub(high, low)
    middle = ops.add(ops.mul(low, 0.5), ops.mul(high, 0.5))
    slope = derivative(primitive)
    chord = line_through(low, at_low, ops.div(ops.sub(at_high, at_low), width))
    tangent = line_through(middle, primitive(middle), slope(middle))
    if type(primitive) in CONVEX_KINKS:
        return select_lines(ops.gt(width, 0.0), (tangent, chord), (tangent, tangent))
    # f(low) + d (x - low) and f(high) + d (x - high) enclose f, for the least and the greatest slope d.
    least, greatest = slope_bounds(primitive, low, high)
    by_least = line_through(low, at_low, least), line_through(high, at_high, least)
    by_greatest = line_through(high, at_high, greatest), line_through(low, at_low, greatest)
    gaps = [ops.sub(above[1], below[1]) for below, above in (by_least, by_greatest)]
    lines = select_lines(ops.le(*gaps), by_least, by_greatest)
    is_wide = ops.gt(width, 0.0)
    if isinstance(primitive, SIGMOIDS):
        curvature = Interval(ops.neg(high), ops.neg(low))
    else:
        curvature = interval(derivative(slope))(Interval(low, high))
    lines = select_lines(
        ops.bitwise_and(is_wide, ops.ge(curvature.lower, 0.0)), (tangent, chord), lines
    )
    return select_lines(
        ops.bitwise_and(is_wide, ops.le(curvature.upper, 0.0)), (chord, tangent), lines
    )


def slope_bounds(primitive: Primitive, low: Value, high: Value) -> Pair:
    """The bounds of the derivative of a function of a number between `low` and `high`."""
    slope = derivative(primitive)
    if isinstance(primitive, SIGMOIDS):
        peak = ops.clamp(low, ops.zeros_like(low), high)
        return ops.min(slope(low), slope(high)), slope(peak)
    least, greatest = interval(slope)(Interval(low, high))
    known = SLOPES.get(type(primitive), (-INFINITY, INFINITY))
    return ops.max(least, known[0]), ops.min(greatest, known[1])


def derivative(fun: Function) -> Function:
    """The derivative of an elementwise function."""
    return lambda x: jvp(fun, (x,), (ops.full_like(x, 1.0),))[1]


def line_through(x: Value, y: Value, slope: Value) -> Line:
    """The line of a slope through a point."""
    return slope, ops.sub(y, ops.mul(slope, x))


def select_lines(mask: Value, lines: Sequence[Line], others: Sequence[Line]) -> tuple[Line, Line]:
    """`lines` where `mask` holds, else `others`."""
    below, above = [
        tuple([ops.select(mask, v, w) for v, w in zip(*both, strict=True)])
        for both in zip(lines, others, strict=True)
    ]
    return below, above
