"""Known zeros: what a program that is linear in some inputs computes when some of those are zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from functx.core.interpret import forward
from functx.core.program import Equation, Program, Var
from functx.core.tracing import Builder, Tracer, current_builder, trace
from functx.ops.shaping import zeros_like


@dataclass(frozen=True)
class WithZeros:
    """The rewrite of a program that is linear in its first inputs to one without some of them.

    `given` marks those of the first inputs that stay; the others are zero. What depends on
    these alone is zero too, and not computed.
    """

    given: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        pairs = list(zip(program.inputs, self.given, strict=False))
        kept = [v for v, on in pairs if on]
        inputs = [*kept, *program.inputs[len(pairs) :]]

        def body(*args: Any) -> list[Any]:
            env: dict[Any, Any] = dict(zip(inputs, args, strict=True))
            linear, zeros = set(kept), {v for v, on in pairs if not on}
            trace_on = current_builder.get()
            assert trace_on is not None
            builder: Builder = trace_on

            def read(atom: Any) -> Any:
                if type(atom) is not Var:
                    return Tracer(atom, builder)
                return zeros_like(atom.aval) if atom in zeros else env[atom]

            def vanishes(eqn: Equation) -> bool:
                of_zeros = any([a in zeros for a in eqn.inputs])
                return of_zeros and not any([a in linear for a in eqn.inputs])

            for eqn in program.equations:
                if vanishes(eqn) and not eqn.primitive.effects:
                    zeros.update(eqn.outputs)
                    continue
                if any([a in linear or a in zeros for a in eqn.inputs]):
                    linear.update(eqn.outputs)
                builder.source = eqn.source
                env.update(zip(eqn.outputs, forward(eqn, *map(read, eqn.inputs)), strict=True))
            return [read(atom) for atom in program.outputs]

        return trace(body, [v.aval for v in inputs], name=program.name)[0]
