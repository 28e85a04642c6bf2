"""Gradient stops: what is computed in a part of a trace is a constant for derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from functx.core.builder import Builder
from functx.core.effects import Effect
from functx.core.memory_layouts import view_base
from functx.core.program import Atom, Equation, Var, subprograms
from functx.core.tracer import Tracer, current_builder
from functx.core.types import is_inexact
from functx.ops.autodiff import Detach


class GradientStop:
    """The part of a trace, from its equation number `start` on, whose results are constants.

    `apply` puts a `Detach` behind each equation in that part with operands from before it. Views of
    memory from before the part share it still, and values written to such memory are detached.
    Forward mode differentiates the results if `keeps_tangent`.
    """

    def __init__(self, builder: Builder, keeps_tangent: bool):
        self.builder, self.keeps_tangent = builder, keeps_tangent
        self.start = len(builder.equations)

    def detach(self, atom: Atom, out: Var, eqn: Equation, shares_memory: bool) -> Equation:
        """The equation that detaches `atom`, computed or written by `eqn`, as `out`."""
        detach = Detach(shares_memory, self.keeps_tangent)
        return Equation(detach, [atom], [out], eqn.source, eqn.part)

    def constant(self, x: object) -> Any:
        """`x`, detached if it is traced."""
        if type(x) is not Tracer or not is_inexact(x.dtype):
            return x
        return Detach(False, self.keeps_tangent)(x)

    def apply(self) -> None:
        """Detaches what was computed up to here; a new part begins."""
        if self.start == len(self.builder.equations):
            return
        constants: set[Atom] = set()
        equations: list[Equation] = []
        for eqn in self.builder.equations[self.start :]:
            varying = [
                a
                for a in eqn.inputs
                if type(a) is Var and is_inexact(a.aval.dtype) and a not in constants
            ]
            if Effect.WRITE in eqn.primitive.effects:
                target, value = eqn.inputs
                if value in varying:
                    out = Var(value.aval)
                    equations.append(self.detach(value, out, eqn, shares_memory=False))
                    eqn = eqn.replace(inputs=[target, out])
                equations.append(eqn)
                mark_under_no_grad(eqn)
                continue
            outs = [v for v in eqn.outputs if is_inexact(v.aval.dtype)]
            constants.update(outs)
            if not varying and not subprograms(eqn.primitive):
                equations.append(eqn)
                continue
            computed = {v: Var(v.aval) for v in outs}
            shares_memory = view_base(self.builder, eqn) is not None
            equations.append(eqn.replace(outputs=[computed.get(v, v) for v in eqn.outputs]))
            equations += [self.detach(x, v, eqn, shares_memory) for v, x in computed.items()]
        self.builder.replace_equations(self.start, equations)
        self.start = len(self.builder.equations)


def set_gradient_stop(builder: Builder, keeps_tangent: bool | None) -> bool | None:
    """Ends the gradient stop of a builder, and begins one unless `keeps_tangent` is None.

    Returns `keeps_tangent` of the one before.
    """
    before = builder.gradient_stop
    if before is not None:
        before.apply()
    builder.gradient_stop = None if keeps_tangent is None else GradientStop(builder, keeps_tangent)
    return None if before is None else before.keeps_tangent


@contextmanager
def outside_gradient_stop() -> Iterator[Callable[[Any], Any]]:
    """A context in which results keep their derivatives; the function given detaches, if outside they do not."""
    builder = current_builder.get()
    stop = None if builder is None else builder.gradient_stop
    if builder is None or stop is None:
        yield lambda x: x
        return
    stop.apply()
    builder.gradient_stop = None
    try:
        yield stop.constant
    finally:
        for eqn in builder.equations[stop.start :]:
            if Effect.WRITE in eqn.primitive.effects:
                mark_under_no_grad(eqn)
        builder.gradient_stop, stop.start = stop, len(builder.equations)


def mark_under_no_grad(write: Equation) -> None:
    """Marks a new equation as a write that no derivative is recorded for."""
    write.primitive = write.primitive.replace(under_no_grad=True)
