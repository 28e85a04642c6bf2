"""`interval`: bounds of all values of a function over a box of arguments, by interval arithmetic.

R. E. Moore, "Interval analysis" (1966). An example of a transform whose values are pairs: each equation
is replaced by the equations of its lower and its upper bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

from ml_dtypes import iinfo

from functx import ops
from functx.bounds.boxes import Box, Pair, flat, on_boxes, pairs
from functx.bounds.monotonicity import BITWISE, PASSING, POSITIONS, signs, valley
from functx.core.decompositions import class_decomposition
from functx.core.errors import MissingRuleError
from functx.core.primitive import Primitive
from functx.core.program import Equation, Program
from functx.core.rewriting import (
    Rewrite,
    apply,
    bind_equation,
    cached_rewrite,
    interpret,
    user_rule_runs,
)
from functx.core.tracer import aval_of
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray, is_complex, is_inexact
from functx.core.typing import Function, PyTree, Value
from functx.ops.operands import literal
from functx.transforms.decompose import builtin_decomposition

INFINITY = float("inf")


def interval(f: Function) -> Function:
    """The function from boxes of arguments to bounds of the results of `f`.

    It takes the arguments of `f`, with an `Interval` in place of each array that varies, and returns the
    result of `f` with an `Interval` in place of each array: every result for arguments in the box lies in
    it. Loops, branches and calls are followed. Bounds are computed in the dtype of the arguments and not
    rounded outward, so they hold up to rounding; use float64 for a margin. Values that have no bound, such
    as quotients whose divisor may be 0, are between -inf and inf.

    Raises MissingRuleError for an operation without a rule; `interval_rule.register` takes one. Integers
    are taken not to overflow.

    >>> import functx.numpy as np
    >>> from functx.bounds import Interval, interval
    >>> bounds = interval(lambda x: np.exp(-(x**2)))(Interval(-1.0, 2.0))
    >>> round(float(bounds.lower), 4), float(bounds.upper)
    (0.0183, 1.0)
    """

    def compute(box: Box) -> PyTree:
        rewrite = PropagateIntervals(box.varying, (True,) * len(box.program.outputs))
        program, _ = cached_rewrite(rewrite, box.program)
        return box.unflatten(apply(None, program, box.operands))

    return on_boxes("interval", f, compute)


class PropagateIntervals(Rewrite[tuple[Program, tuple[bool, ...]]]):
    """The rewrite to the program of bounds, with the outputs that vary.

    It takes two arrays for each input that is `varying`, and returns two for each output that varies,
    or is marked in `returned`.
    """

    varying: tuple[bool, ...]
    returned: tuple[bool, ...]

    def __call__(self, program: Program) -> tuple[Program, tuple[bool, ...]]:
        flags: list[bool] = []

        def body(*args: Value) -> list[Value]:
            outs = interpret(program, pairs(args, self.varying), interval_step, lambda c: (c, c))
            flags[:] = [on or x is not y for on, (x, y) in zip(self.returned, outs, strict=True)]
            return flat(outs, flags)

        avals = flat([(a, a) for a in program.in_avals], self.varying)
        return trace_closed(body, avals, name=f"interval_{program.name}"), tuple(flags)


def interval_step(eqn: Equation, *operands: Pair) -> Sequence[Pair]:
    """The bounds of the outputs of an equation, given those of its operands."""
    if all([x is y for x, y in operands]):
        return [(x, x) for x in bind_equation(eqn, *[x for x, _ in operands])]
    return bounds_of(eqn.primitive, *operands)


def bounds_of(primitive: Primitive, *operands: Pair) -> Sequence[Pair]:
    """The bounds of the outputs of `primitive`, given those of its operands."""
    if type(primitive) in PASSING:
        return [operands[PASSING[type(primitive)]]]
    directions = signs(primitive, len(operands))
    if any([is_complex(x.dtype) for x, _ in operands]):
        raise missing_rule_error(primitive, "real operands")
    if isinstance(primitive, BITWISE) and operands[0][0].dtype != bool:
        raise missing_rule_error(primitive, "booleans")
    if directions is None:
        if not interval_rule.dispatch(type(primitive)).__module__.startswith("functx."):
            user_rule_runs.record()
        return [bounded(*pair) for pair in interval_rule(primitive, *operands)]
    if any([x is not y for x, y in operands[POSITIONS.get(type(primitive), slice(0, 0))]]):
        raise missing_rule_error(primitive, "positions that are known exactly")
    lower = [pair[d < 0] for pair, d in zip(operands, directions, strict=True)]
    upper = [pair[d > 0] for pair, d in zip(operands, directions, strict=True)]
    lows, highs = [primitive.as_list(primitive(*args)) for args in (lower, upper)]
    return [bounded(*pair) for pair in zip(lows, highs, strict=True)]


def bounded(lower: Value, upper: Value) -> Pair:
    """The bounds, infinite instead of nan."""
    if lower is upper or not is_inexact(lower.dtype):
        return lower, upper
    return ops.select(is_nan(lower), -INFINITY, lower), ops.select(is_nan(upper), INFINITY, upper)


def is_nan(x: Value) -> Value:
    return ops.ne(x, x)


def unbounded(aval: ShapedArray) -> Pair:
    """The least and the greatest array of a type."""
    if aval.dtype == bool:
        return ops.full(aval.shape, False), ops.full(aval.shape, True)
    limits = (-INFINITY, INFINITY)
    if not is_inexact(aval.dtype):
        limits = (int(iinfo(aval.dtype).min), int(iinfo(aval.dtype).max))
    low, high = [ops.full(aval.shape, literal(v, aval.dtype)) for v in limits]
    return low, high


def hull(*intervals: Pair) -> Pair:
    """The least interval around several."""
    lower, upper = intervals[0]
    for low, high in intervals[1:]:
        lower, upper = ops.Min()(lower, low), ops.Max()(upper, high)
    return lower, upper


def missing_rule_error(
    primitive: Primitive, needed: str = "a rule or a decomposition"
) -> MissingRuleError:
    return MissingRuleError(
        f"interval: {primitive.name} must have {needed}; got an interval of arrays",
        fix=f"Register a rule: functx.bounds.interval_rule.register({type(primitive).__name__}).",
    )


@singledispatch
def interval_rule(primitive: Primitive, *operands: Pair) -> Sequence[Pair]:
    """The bounds of the outputs of `primitive`, one or several; a function to register rules on.

    A rule takes the primitive and pairs of bounds, which are one array twice for operands that are
    known exactly, and returns a list of such pairs. nan stands for an unknown bound.
    """
    place = valley(primitive)
    if place is not None:
        ((low, high),) = operands
        least = primitive(ops.clamp(low, ops.full_like(low, place), high))
        return [(least, ops.max(primitive(low), primitive(high)))]
    if class_decomposition(type(primitive)) is None:
        raise missing_rule_error(primitive)
    program = builtin_decomposition(primitive, tuple([aval_of(x) for x, _ in operands]))
    return interpret(program, operands, interval_step, lambda c: (c, c))
