"""`crown`: bounds of the outputs of a function over a box, by linear relaxations of its equations.

H. Zhang et al., "Efficient neural network robustness certification with general activation functions"
(2018). An example of a transform that records a tape and walks it backward.
"""

from __future__ import annotations

from collections.abc import Sequence

from functx import ops
from functx.bounds.boxes import Box, Pair, flat, on_boxes, pairs
from functx.bounds.interval import bounds_of
from functx.bounds.monotonicity import (
    CONVEX_KINKS,
    PASSING,
    SMOOTH,
)
from functx.bounds.relaxations import (
    REWRITTEN,
    Backward,
    BoundedValue,
    affine_backward,
    intersect,
    is_affine,
    least_value,
    program_of,
    relax,
)
from functx.core.errors import ValueRangeError
from functx.core.primitive import Primitive
from functx.core.program import Equation, Program
from functx.core.rewriting import Rewrite, apply, bind_equation, interpret
from functx.core.tracer import aval_of
from functx.core.tracing import trace_closed
from functx.core.types import is_inexact
from functx.core.typing import Function, PyTree, Value
from functx.numpy import eye
from functx.ops.operands import literal
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
    if intermediate not in ("crown", "interval"):
        raise ValueRangeError(
            f'crown: intermediate must be "crown" or "interval"; got {intermediate!r}'
        )

    def compute(box: Box) -> PyTree:
        rewrite = RelaxLinearly(box.varying, intermediate == "crown")
        return box.unflatten(apply(rewrite, box.program, box.operands))

    return on_boxes("crown", f, compute)


class RelaxLinearly(Rewrite[Program]):
    """The rewrite to the program of bounds by linear relaxations, with inputs as `PropagateIntervals`."""

    varying: tuple[bool, ...]
    refines: bool

    def __call__(self, program: Program) -> Program:
        def body(*args: Value) -> list[Value]:
            tape = Tape(self.refines)
            nodes = [tape.add(pair) for pair in pairs(args, self.varying)]
            outs = interpret(program, nodes, tape.step, tape.add)
            return [x for node in outs for x in tape.tighten(node)]

        avals = flat([(a, a) for a in program.in_avals], self.varying)
        return trace_closed(body, avals, name=f"crown_{program.name}")


class Tape:
    """The values of a program, and how a linear function of one is bounded by one of earlier values."""

    def __init__(self, refines: bool):
        self.refines = refines
        self.bounds: list[Pair] = []
        self.backward: list[Backward | None] = []
        self.tight: set[int] = set()

    def add(self, bounds: Pair | Value, backward: Backward | None = None) -> BoundedValue:
        """A new value, anything between its bounds without `backward`."""
        low, high = bounds if isinstance(bounds, tuple) else (bounds, bounds)
        self.bounds.append((low, high))
        self.backward.append(backward)
        return BoundedValue(low, high, len(self.bounds) - 1)

    def least(self, index: int, ct: Value) -> Value:
        """A lower bound of the sum of the value at `index` times `ct`."""
        coefficients, dtype = {index: ct}, ct.dtype
        total = ops.full((), literal(0, dtype))
        for i in range(index, -1, -1):
            if i in coefficients:
                ct, backward = coefficients.pop(i), self.backward[i]
                terms, constant = ([], self.bounds[i]) if backward is None else backward(ct)
                if constant is not None:
                    least = ops.convert_element_type(least_value(ct, *constant), dtype)
                    total = ops.add(total, least)
                for j, c in terms:
                    coefficients[j] = ops.add(coefficients[j], c) if j in coefficients else c
        return total

    def tighten(self, node: BoundedValue) -> Pair:
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

    def step(self, eqn: Equation, *operands: BoundedValue) -> Sequence[BoundedValue]:
        """The outputs of an equation."""
        if all([x.is_exact for x in operands]):
            return [self.add(x) for x in bind_equation(eqn, *[x.lower for x in operands])]
        return self.apply(eqn.primitive, *operands)

    def apply(self, primitive: Primitive, *operands: BoundedValue) -> Sequence[BoundedValue]:
        """The outputs of `primitive`."""
        bounds = [self.bounds[x.place] for x in operands]
        if type(primitive) in PASSING:
            return [operands[PASSING[type(primitive)]]]
        if isinstance(primitive, ops.Mul) and operands[0] is operands[1]:
            return self.apply(ops.Square(), operands[0])
        if is_affine(primitive, operands):
            outs = bounds_of(primitive, *bounds)
            return [
                self.add(pair, affine_backward(primitive, operands, k))
                for k, pair in enumerate(outs)
            ]
        is_curved = isinstance(primitive, ops.Mul) or type(primitive) in SMOOTH | CONVEX_KINKS
        if is_curved and is_inexact(operands[0].lower.dtype):
            if self.refines:
                bounds = [self.tighten(x) for x in operands]
            return [self.add(*relax(primitive, operands, bounds))]
        program = program_of(primitive, [aval_of(x.lower) for x in operands])
        if program is None:
            return [self.add(pair) for pair in bounds_of(primitive, *bounds)]
        outs = interpret(program, operands, self.step, self.add)
        if type(primitive) in REWRITTEN:
            (pair,), (out,) = bounds_of(primitive, *bounds), outs
            self.bounds[out.place] = intersect(self.bounds[out.place], pair)
        return outs
