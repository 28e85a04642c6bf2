"""Derivatives split in two, of which the second half computes again what is not saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from functx.core.editing import inline
from functx.core.errors import ArgumentError, EffectError, type_name
from functx.core.program import Atom, Equation, Program, Var, remove_dead, subprograms
from functx.core.tracing import rewritten
from functx.ops.gradients import Name
from functx.transforms.call import Call
from functx.transforms.calls import name_of
from functx.transforms.effects import WithoutEffects


class Recomputation(NamedTuple):
    """A program split in two.

    `values` gives the outputs, then what is saved. `rest` takes what the second half of the
    split takes, then what is saved, then the inputs of the program.
    """

    values: Program
    rest: Program


@dataclass(frozen=True)
class Recompute:
    """The rewrite to the halves that `split` makes of a program, for a `policy` of saving.

    Of what the second half needs of the first, it computes again what the policy, by default
    one that saves nothing, does not save.
    """

    split: Any
    policy: Any

    def __call__(self, program: Program) -> Recomputation:
        values, rest = rewritten(self.split, program)
        if any(type(eqn.primitive) is Call for eqn in values):
            values = inline(values, (Call.name,))
        count = len(program.outputs)
        outs, residuals = values.outputs[:count], values.outputs[count:]
        lead = rest.inputs[: len(rest.inputs) - len(residuals)]
        needs: dict[Any, Atom] = dict(zip(rest.inputs[len(lead) :], residuals, strict=True))
        saved, again, same = self.divide(values, residuals)

        def read(atom: Any) -> Any:
            atom = needs.get(atom, atom)
            return same.get(atom, atom)

        results = [read(a) for a in rest.outputs]
        equations = [e.replace(inputs=[read(a) for a in e.inputs]) for e in [*again, *rest]]
        results_of = [*outs, *saved]
        return Recomputation(
            Program(
                program.name, values.inputs, remove_dead(values.equations, results_of), results_of
            ),
            Program(rest.name, [*lead, *saved, *values.inputs], equations, results),
        )

    def divide(
        self, values: Program, residuals: Sequence[Atom]
    ) -> tuple[list[Var], list[Equation], dict[Any, Var]]:
        """The variables to save, and the equations that compute the other residuals again.

        Also variables that saved ones, which have a name, stand for.
        """
        wanted: set[Any] = set(residuals)
        made = {v for eqn in values.equations for v in eqn.outputs}
        saved: list[Var] = []
        again: list[Equation] = []
        same: dict[Any, Var] = {}
        for eqn in reversed(values.equations):
            needed = [v for v in eqn.outputs if v in wanted]
            if type(eqn.primitive) is Name and (needed or eqn.inputs[0] in wanted & made):
                (out,) = eqn.outputs
                if self.saves(eqn, out):
                    saved.append(out)
                    if eqn.inputs[0] in made:
                        same[eqn.inputs[0]] = out
                        wanted.discard(eqn.inputs[0])
                    continue
            if not needed:
                continue
            quiet = _quiet(eqn)
            kept = [v for v in needed if quiet is None or self.saves(eqn, v)]
            saved += kept
            if quiet is not None and len(kept) < len(needed):
                outputs = [Var(v.aval) if v in kept else v for v in eqn.outputs]
                again.append(quiet.replace(outputs=outputs))
                wanted.update([a for a in eqn.inputs if a not in same])
        return saved[::-1], again[::-1], same

    def saves(self, eqn: Equation, out: Atom) -> bool:
        """Whether to save the output `out`; where a program gives it, by what does so there."""
        if self.policy is None:
            return False
        primitive = eqn.primitive
        params: dict[str, Any] = {f: getattr(primitive, f) for f in primitive.fields}
        if isinstance(primitive, Name):
            params = {"name": primitive.label}
        verdict = self.policy(primitive, *[a.aval for a in eqn.inputs], **params)
        if not isinstance(verdict, (bool, np.bool_)):
            raise ArgumentError(
                f"checkpoint: the policy `{name_of(self.policy)}` must return True or False; "
                f"got {type_name(verdict)} for {primitive.name}"
            )
        if verdict:
            return True
        place = eqn.outputs.index(out)  # type: ignore[arg-type]
        held = [p for p in subprograms(primitive) if len(p.outputs) == len(eqn.outputs)]
        makers = [_maker(p, p.outputs[place]) for p in held]
        return bool(makers) and all(
            maker is not None and self.saves(maker, p.outputs[place])
            for p, maker in zip(held, makers, strict=True)
        )


def _quiet(eqn: Equation) -> Equation | None:
    """The equation for a second time, without effects; None if it must not run again."""
    try:
        return WithoutEffects().quiet(eqn)[0]
    except EffectError:
        return None


def _maker(program: Program, atom: Atom) -> Equation | None:
    return next((eqn for eqn in program.equations if atom in eqn.outputs), None)
