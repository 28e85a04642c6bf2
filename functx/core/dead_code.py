"""Dead-code elimination of equations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from functx.core.primitive_families import HasDCE
from functx.core.program import Atom, Equation


def dce_equations(equations: list[Equation], outputs: Iterable[Atom]) -> list[Equation]:
    """Dead-code elimination: the equations that `outputs` need, each with `dce_equation` applied."""
    needed = set(outputs)
    kept: list[Equation] = []
    for eqn in reversed(equations):
        outs = eqn.outputs
        if (outs[0] in needed if len(outs) == 1 else not needed.isdisjoint(outs)) or (
            eqn.primitive.effects
        ):
            if isinstance(eqn.primitive, HasDCE):
                eqn = dce_equation(eqn, [v in needed for v in outs])
            kept.append(eqn)
            needed.update(eqn.inputs)
    kept.reverse()
    return kept


def dce_equation(eqn: Equation, used: Sequence[bool]) -> Equation:
    """`eqn` without the outputs that are not `used` and the operands that only they need."""
    found = eqn.primitive.dce(used) if isinstance(eqn.primitive, HasDCE) else None
    if found is None:
        return eqn
    primitive, inputs, outputs = found
    return eqn.replace(
        primitive=primitive,
        inputs=[eqn.inputs[i] for i in inputs],
        outputs=[eqn.outputs[i] for i in outputs],
    )
