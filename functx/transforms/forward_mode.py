"""Programs that push tangents forward beside their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from functx.core.dtypes import is_inexact
from functx.core.interpret import forward, interpret
from functx.core.program import Equation, Program, padded
from functx.core.tracing import LinearBuilder, build, current_builder, trace
from functx.ops.shaping import zeros_like
from functx.transforms.marks import chosen, spread
from functx.transforms.norms import expand_to_differentiate

Pair = tuple[Any, Any]


@dataclass(frozen=True)
class PushForward:
    """The rewrite to a program of values and tangents.

    `varying` marks the inputs that have tangents, which follow all the inputs. The outputs
    are followed by the tangents of those that are inexact.
    """

    varying: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        varying = chosen(program.in_avals, self.varying)
        names = tangent_names(program, self.varying, with_primals=True)
        avals = [*program.in_avals, *varying]
        body = partial(self.emit, program)
        return trace(body, avals, name=f"jvp_{program.name}", in_names=names)[0]

    def emit(self, program: Program, *args: Any) -> list[Any]:
        """The outputs of the rewritten program on `args`, appended to the trace that is on."""
        program = expand_to_differentiate(program, "jvp")
        pairs = zip(args, spread(args[len(program.inputs) :], self.varying), strict=False)
        outs = interpret(program, pairs, push_equation, constant=lambda c: (c, None))
        return [x for x, _ in outs] + tangents_of(outs)


def tangent_names(program: Program, varying: Sequence[bool], with_primals: bool) -> Any:
    """The names `dx` for the tangents of inputs `x`, behind those of the inputs if asked."""
    in_names = program.in_names
    if in_names is None:
        return None

    def names() -> list[str]:
        primals = padded(in_names(), len(varying))
        tangents = [f"d{name}" for name in chosen(primals, varying)]
        return [*primals, *tangents] if with_primals else tangents

    return names


def push_equation(eqn: Equation, *operands: Pair) -> list[Pair]:
    """What an equation makes of values with tangents."""
    primals = [x for x, _ in operands]
    tangents = [t for _, t in operands]
    primitive = eqn.primitive
    if not primitive.differentiable or all(t is None for t in tangents):
        return [(out, None) for out in forward(eqn, *primals)]
    outs, out_tangents = primitive.jvp(primals, tangents)
    if not primitive.multiple_results:
        return [(outs, out_tangents)]
    return list(zip(outs, out_tangents, strict=True))


@dataclass(frozen=True)
class Linearize:
    """The split of `program` into a program of its values and one of its tangents.

    The first returns the outputs, then what the second needs of them. The second takes the
    tangents of the inputs marked `varying`, then that, and returns the output tangents.
    """

    varying: tuple[bool, ...]

    def __call__(self, program: Program) -> tuple[Program, Program]:
        program = expand_to_differentiate(program, "jvp")
        linear: list[Program] = []

        def body(*args: Any) -> list[Any]:
            outs: list[Any] = []
            builder = LinearBuilder(f"linear_{program.name}", "linearize", current_builder.get())

            def push(*tangents: Any) -> list[Any]:
                pairs = zip(args, spread(tangents, self.varying), strict=True)
                results = interpret(program, pairs, push_equation, constant=lambda c: (c, None))
                outs.extend(x for x, _ in results)
                return tangents_of(results)

            tangents = [builder.add_input(x.aval) for x in chosen(args, self.varying)]
            builder.in_names = tangent_names(program, self.varying, with_primals=False)
            tangent_program, residuals = build(builder, push, tangents)
            linear.append(tangent_program)
            return [*outs, *residuals]

        values, _ = trace(body, program.in_avals, name=program.name, in_names=program.in_names)
        return values, linear[0]


def tangents_of(results: Sequence[Pair]) -> list[Any]:
    """The tangents of the inexact outputs, zeros where there is none."""
    return [zeros_like(x) if t is None else t for x, t in results if is_inexact(x.dtype)]
