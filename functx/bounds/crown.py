"""`crown`: bounds of the outputs of a function over a box, by linear relaxations of its equations.

H. Zhang et al., "Efficient neural network robustness certification with general activation functions"
(2018). An example of a transform that records a tape and walks it backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from functx import ops
from functx.bounds.interval import (
    INFINITY,
    Flags,
    Interval,
    Pair,
    bounds_of,
    flat,
    interval,
    interval_rule,
    pairs,
    read_box,
    results,
)
from functx.bounds.monotonicity import (
    CONVEX_KINKS,
    JOINTLY_AFFINE,
    SIGMOIDS,
    SLOPES,
    SMOOTH,
    signs,
    valley,
)
from functx.core import tree
from functx.core.decompositions import class_decomposition
from functx.core.errors import ValueRangeError
from functx.core.primitive import Primitive
from functx.core.program import Equation, Program
from functx.core.rewriting import Rewrite, apply, bind_equation, interpret
from functx.core.tracer import aval_of
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Function, PyTree, Value
from functx.custom.custom_function import CustomDerivativeCall
from functx.numpy import eye
from functx.ops.activations import relu
from functx.ops.autodiff import Detach
from functx.ops.convolution import Convolution
from functx.ops.families import Elementwise, Linear, unbroadcast_scalar
from functx.ops.operands import literal
from functx.transforms.argument_names import check_callable, wrap_transform
from functx.transforms.call_primitive import ProgramCall
from functx.transforms.decompose import builtin_decomposition
from functx.transforms.jvp import jvp, vjp
from functx.transforms.vmap import vmap


def crown(f: Function, *, intermediate: str = "crown") -> Function:
    """The function from boxes of arguments to bounds of the results of `f`, by linear relaxations.

    Arguments and results are as for `interval`, whose bounds are never tighter. Each result is bounded by
    a linear function of the arguments: the coefficients go backward through the equations of `f`, and a
    nonlinear one is replaced by two lines that enclose it. The lines follow from the sign of the
    second derivative, and else from the range of the first. The operands of nonlinear equations are
    bounded in the same way, or by `intermediate="interval"` at the cost of tightness, in time
    proportional to the program. Equations without lines, loops and branches among them, keep the bounds
    of `interval`. Bounds are not rounded outward.

    Raises MissingRuleError as `interval` does.

    >>> import functx.numpy as np
    >>> from functx.bounds import Interval, crown
    >>> bounds = crown(lambda x: np.maximum(x, 0) + 2 - x)(Interval(1.0, 3.0))
    >>> float(bounds.lower), float(bounds.upper)
    (2.0, 2.0)
    """
    check_callable(f, "crown")
    if intermediate not in ("crown", "interval"):
        raise ValueRangeError(
            f'crown: intermediate must be "crown" or "interval"; got {intermediate!r}'
        )

    def wrapper(*args: PyTree, **kwargs: PyTree) -> PyTree:
        box = read_box("crown", f, args, kwargs)
        rewrite = RelaxLinearly(box.varying, intermediate == "crown")
        outs = apply(rewrite, box.program, box.operands)
        return tree.unflatten(box.out_tree, [Interval(*x) for x in pairs(outs, box.all_outputs)])

    return wrap_transform(wrapper, f, "crown")


class RelaxLinearly(Rewrite[Program]):
    """The rewrite to the program of bounds by linear relaxations, with inputs as `PropagateIntervals`."""

    varying: Flags
    refines: bool

    def __call__(self, program: Program) -> Program:
        def body(*args: Value) -> list[Value]:
            tape = Tape(self.refines)
            nodes = [tape.add(pair) for pair in pairs(args, self.varying)]
            outs = interpret(program, nodes, tape.step, tape.add)
            return [x for node in outs for x in tape.tighten(node)]

        avals = flat([(a, a) for a in program.in_avals], self.varying)
        return trace_closed(body, avals, name=f"crown_{program.name}")


class Node(NamedTuple):
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


class Tape:
    """The values of a program, and how a linear function of one is bounded by one of earlier values."""

    def __init__(self, refines: bool):
        self.refines = refines
        self.bounds: list[Pair] = []
        self.backward: list[Backward | None] = []
        self.tight: set[int] = set()

    def add(self, bounds: Pair | Value, backward: Backward | None = None) -> Node:
        """A new value, anything between its bounds without `backward`."""
        low, high = bounds if isinstance(bounds, tuple) else (bounds, bounds)
        self.bounds.append((low, high))
        self.backward.append(backward)
        return Node(low, high, len(self.bounds) - 1)

    def least(self, index: int, ct: Value) -> Value:
        """A lower bound of the sum of the value at `index` times `ct`."""
        coefficients, total = {index: ct}, ops.full((), literal(0, ct.dtype))
        for i in range(index, -1, -1):
            if i in coefficients:
                ct, backward = coefficients.pop(i), self.backward[i]
                terms, constant = ([], self.bounds[i]) if backward is None else backward(ct)
                if constant is not None:
                    total = ops.add(total, least_value(ct, *constant))
                for j, c in terms:
                    coefficients[j] = ops.add(coefficients[j], c) if j in coefficients else c
        return total

    def tighten(self, node: Node) -> Pair:
        """The bounds of a value, improved by linear functions of the inputs."""
        low, high = self.bounds[node.place]
        is_constant = self.backward[node.place] is None or not is_inexact(low.dtype)
        if is_constant or node.place in self.tight:
            return low, high
        self.tight.add(node.place)
        # The greatest value is the least one of the negative.
        unit = eye(low.size, dtype=low.dtype)
        rows = ops.reshape(ops.concatenate([unit, ops.neg(unit)], 0), (2 * low.size, *low.shape))
        least, most = ops.split(vmap(lambda ct: self.least(node.place, ct))(rows), [low.size] * 2)
        by_lines = ops.reshape(least, low.shape), ops.neg(ops.reshape(most, low.shape))
        self.bounds[node.place] = intersect((low, high), by_lines)
        return self.bounds[node.place]

    def step(self, eqn: Equation, *operands: Node) -> Sequence[Node]:
        """The outputs of an equation."""
        if all([x.is_exact for x in operands]):
            return [self.add(x) for x in bind_equation(eqn, *[x.lower for x in operands])]
        return self.apply(eqn.primitive, *operands)

    def apply(self, primitive: Primitive, *operands: Node) -> Sequence[Node]:
        """The outputs of `primitive`."""
        bounds = [self.bounds[x.place] for x in operands]
        if isinstance(primitive, ops.StopGradient | Detach):
            return operands
        if isinstance(primitive, ops.Mul) and operands[0] is operands[1]:
            return self.apply(ops.Square(), operands[0])
        if is_affine(primitive, operands):
            return self.apply_affine(primitive, operands)
        if isinstance(primitive, ops.Mul) or type(primitive) in SMOOTH | CONVEX_KINKS:
            if self.refines:
                bounds = [self.tighten(x) for x in operands]
            return [self.relax(primitive, operands, bounds)]
        program = program_of(primitive, [aval_of(x.lower) for x in operands])
        if program is None:
            return [self.add(pair) for pair in bounds_of(primitive, *bounds)]
        outs = interpret(program, operands, self.step, self.add)
        if type(primitive) in REWRITTEN:
            (pair,), (out,) = bounds_of(primitive, *bounds), outs
            self.bounds[out.place] = intersect(self.bounds[out.place], pair)
        return outs

    def apply_affine(self, primitive: Primitive, operands: Sequence[Node]) -> Sequence[Node]:
        """The outputs of a `primitive` that is affine in the operands that vary."""
        varying = [x for x in operands if not x.is_exact]
        is_linear = not isinstance(primitive, (Linear, *JOINTLY_AFFINE)) or len(varying) == len(
            operands
        )
        avals = bounds_of(primitive, *[self.bounds[x.place] for x in operands])

        def output(k: int) -> Backward:
            def fun(*values: Value) -> Value:
                given = iter(values)
                args = [x.lower if x.is_exact else next(given) for x in operands]
                return results(primitive, args)[k]

            def backward(ct: Value) -> tuple[list[tuple[int, Value]], Pair | None]:
                origin, pull = vjp(fun, *[ops.zeros_like(x.lower) for x in varying])
                cts = zip(varying, pull(ct), strict=True)
                terms = [(x.place, c) for x, c in cts]
                return terms, None if is_linear else (origin, origin)

            return backward

        return [self.add(pair, output(k)) for k, pair in enumerate(avals)]

    def relax(self, primitive: Primitive, operands: Sequence[Node], bounds: Sequence[Pair]) -> Node:
        """The output of a nonlinear `primitive` of operands within `bounds`."""
        (pair,) = bounds_of(primitive, *bounds)
        lines = product_lines(*bounds) if len(bounds) == 2 else lines_of(primitive, *bounds[0])
        finite = [ops.is_finite(v) for v in (*pair, *[v for line in lines for v in line])]
        is_usable = finite[0]
        for mask in finite[1:]:
            is_usable = ops.bitwise_and(is_usable, mask)
        below, above = [
            [ops.select(is_usable, v, ops.zeros_like(v)) for v in slopes] for *slopes, _ in lines
        ]
        offsets = [ops.select(is_usable, line[-1], v) for line, v in zip(lines, pair, strict=True)]

        def backward(ct: Value) -> tuple[list[tuple[int, Value]], Pair | None]:
            positive, negative = ops.max(ct, 0.0), ops.min(ct, 0.0)
            terms = [
                (
                    x.place,
                    unbroadcast_scalar(
                        ops.add(ops.mul(positive, a), ops.mul(negative, b)), x.lower
                    ),
                )
                for x, a, b in zip(operands, below, above, strict=True)
            ]
            return terms, (offsets[0], offsets[1])

        return self.add(pair, backward)


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
    outs = primitive.infer_out_avals(tuple([aval_of(x[0]) for x in operands]))
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
        return choose(ops.gt(width, 0.0), (tangent, chord), (tangent, tangent))
    # f(low) + d (x - low) and f(high) + d (x - high) enclose f, for the least and the greatest slope d.
    least, greatest = slope_bounds(primitive, low, high)
    by_least = line_through(low, at_low, least), line_through(high, at_high, least)
    by_greatest = line_through(high, at_high, greatest), line_through(low, at_low, greatest)
    gaps = [ops.sub(above[1], below[1]) for below, above in (by_least, by_greatest)]
    lines = choose(ops.le(*gaps), by_least, by_greatest)
    is_wide = ops.gt(width, 0.0)
    if isinstance(primitive, SIGMOIDS):
        curvature = Interval(ops.neg(high), ops.neg(low))
    else:
        curvature = interval(derivative(slope))(Interval(low, high))
    lines = choose(ops.bitwise_and(is_wide, ops.ge(curvature.lower, 0.0)), (tangent, chord), lines)
    return choose(ops.bitwise_and(is_wide, ops.le(curvature.upper, 0.0)), (chord, tangent), lines)


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


def choose(mask: Value, lines: Sequence[Line], others: Sequence[Line]) -> tuple[Line, Line]:
    """`lines` where `mask` holds, else `others`."""
    below, above = [
        tuple([ops.select(mask, v, w) for v, w in zip(*both, strict=True)])
        for both in zip(lines, others, strict=True)
    ]
    return below, above
