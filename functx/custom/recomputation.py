"""Derivatives split in two, of which the second half computes again what is not saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from functx.core.editing import inline
from functx.core.errors import ArgumentError, EffectError, type_name
from functx.core.program import Atom, Equation, Program, Var, dce_equations, subprograms
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.custom.checkpoint_policies import MinCut
from functx.ops.gradients import CheckpointName
from functx.transforms.call import Call
from functx.transforms.calls import function_name
from functx.transforms.control.scan import Scan
from functx.transforms.effects import RemoveEffects
from functx.transforms.masked_split import SelectMaskedVJP
from functx.transforms.planning.planned import MIN_CUT_PLAN, MinCutSplit, use_memory_plan


class RematSplit(NamedTuple):
    """A program split in two.

    `values` gives the outputs, then what is saved. `rest` takes what the second half of the
    split takes, then what is saved, then the inputs of the program.
    """

    known: Program
    unknown: Program


class RematPlan(NamedTuple):
    """What of a program is saved, and the equations that compute the rest again.

    `same` holds variables that saved ones, which have a name, stand for; `changed` equations
    that must be others to give what is saved.
    """

    saved: list[Var]
    again: list[Equation]
    aliases: dict[Any, Var]
    replaced_equations: dict[Equation, Equation]

    def known_program(self, program: Program, outputs: Sequence[Atom]) -> Program:
        """`program` with other outputs, saved ones among them."""
        equations = [self.replaced_equations.get(eqn, eqn) for eqn in program.equations]
        return Program(program.name, program.inputs, dce_equations(equations, outputs), outputs)


class RematPartialEval(Rewrite[RematSplit]):
    """The rewrite to the halves that `split` makes of a program, for a `policy` of saving.

    Of what the second half needs of the first, it computes again what the policy, by default
    one that saves nothing, does not save.
    """

    partial_eval: Any
    policy: Any

    def __call__(self, program: Program) -> RematSplit:
        if isinstance(self.policy, MinCut):
            return self.min_cut_partial_eval(program)
        # What the policy decides, nothing else has decided before.
        with use_memory_plan("off"):
            values, rest = cached_rewrite(self.partial_eval, program)
        values = inline_call_equations(values)
        count = len(program.outputs)
        outs, residuals = values.outputs[:count], values.outputs[count:]
        lead = rest.inputs[: len(rest.inputs) - len(residuals)]
        needs: dict[Any, Atom] = dict(zip(rest.inputs[len(lead) :], residuals, strict=True))
        parts = self.plan(values, residuals)

        def read(atom: Any) -> Any:
            atom = needs.get(atom, atom)
            return parts.aliases.get(atom, atom)

        results = [read(a) for a in rest.outputs]
        equations = [e.replace(inputs=[read(a) for a in e.inputs]) for e in [*parts.again, *rest]]
        inputs = [*lead, *parts.saved, *values.inputs]
        return RematSplit(
            parts.known_program(values, [*outs, *parts.saved]),
            Program(rest.name, inputs, dce_equations(equations, results), results),
        )

    def min_cut_partial_eval(self, program: Program) -> RematSplit:
        """The halves between which the cheapest values are saved, where the inputs cost nothing."""
        masked = isinstance(self.partial_eval, SelectMaskedVJP)
        free = tuple(range(len(program.inputs)))
        divide = MinCutSplit(
            self.partial_eval.split if masked else self.partial_eval, MIN_CUT_PLAN, free
        )
        with use_memory_plan(MIN_CUT_PLAN):
            halves = cached_rewrite(divide, program).programs
        values, rest = self.partial_eval.select(halves) if masked else halves
        inputs = [*rest.inputs, *[Var(aval) for aval in program.in_avals]]
        return RematSplit(values, Program(rest.name, inputs, rest.equations, rest.outputs))

    def plan(self, values: Program, residuals: Sequence[Atom]) -> RematPlan:
        """What of `values` to save and what to compute again, to have the `residuals`."""
        wanted: set[Any] = set(residuals)
        made = {v for eqn in values.equations for v in eqn.outputs}
        saved: list[Var] = []
        again: list[Equation] = []
        same: dict[Any, Var] = {}
        changed: dict[Equation, Equation] = {}
        for eqn in reversed(values.equations):
            needed = [v for v in eqn.outputs if v in wanted]
            if type(eqn.primitive) is CheckpointName and (needed or eqn.inputs[0] in wanted & made):
                (out,) = eqn.outputs
                if self.is_saved(eqn, out):
                    saved.append(out)
                    if eqn.inputs[0] in made:
                        same[eqn.inputs[0]] = out
                        wanted.discard(eqn.inputs[0])
                    continue
            if not needed:
                continue
            kept = [v for v in needed if self.is_saved(eqn, v)]
            missing = [v for v in needed if v not in kept]
            saved += kept
            if not missing:
                continue
            loop = self.plan_scan(eqn, missing) if type(eqn.primitive) is Scan else None
            repeated = _effect_free_equation(eqn)
            if loop is not None:
                changed[eqn], repeated, rows = loop
                saved += [v for v in rows if v not in saved]
                missing = [v for v in missing if v not in rows]
                if not missing:
                    continue
            elif repeated is None:
                saved += missing
                continue
            outputs = [v if v in missing else Var(v.aval) for v in repeated.outputs]  # type: ignore[union-attr]
            again.append(repeated.replace(outputs=outputs))  # type: ignore[union-attr]
            wanted.update([a for a in again[-1].inputs if a not in same and a not in saved])
        return RematPlan(saved[::-1], again[::-1], same, changed)

    def plan_scan(
        self, eqn: Equation, missing: Sequence[Var]
    ) -> tuple[Equation, Equation, list[Var]] | None:
        """A loop that also gives the rows to save, one that is given them, and the rows.

        The second gives the outputs that are `missing`. None where there are none to save.
        """
        loop: Any = eqn.primitive
        body, carries = inline_call_equations(loop.program), loop.carries
        rows = [i for i, v in enumerate(eqn.outputs) if i >= carries and v in missing]
        parts = self.plan(body, [*body.outputs[:carries], *[body.outputs[i] for i in rows]])
        if not parts.saved:
            return None
        # What the loop gives already is not stacked a second time.
        given = dict(zip(body.outputs[carries:], eqn.outputs[carries:], strict=True))
        fresh = [a for a in parts.saved if a not in given]
        given |= {a: Var(a.aval.update(shape=(loop.length, *a.aval.shape))) for a in fresh}
        first = parts.known_program(body, [*body.outputs, *fresh])
        stacked = [given[a] for a in parts.saved]
        rows = [i for i in rows if body.outputs[i] not in parts.saved]
        read = parts.aliases.get
        outputs = [read(a, a) for a in [*body.outputs[:carries], *[body.outputs[i] for i in rows]]]
        equations = [e.replace(inputs=[read(a, a) for a in e.inputs]) for e in parts.again]
        second = Program(body.name, [*body.inputs, *parts.saved], equations, outputs)
        return (
            eqn.replace(
                primitive=loop.with_program(first, loop.consts, carries),
                outputs=[*eqn.outputs, *[given[a] for a in fresh]],
            ),
            eqn.replace(
                primitive=loop.with_program(second, loop.consts, carries),
                inputs=[*eqn.inputs, *stacked],
                outputs=[*eqn.outputs[:carries], *[eqn.outputs[i] for i in rows]],
            ),
            stacked,
        )

    def is_saved(self, eqn: Equation, out: Atom) -> bool:
        """Whether to save the output `out`; where a program gives it, by what does so there."""
        primitive = eqn.primitive
        # What an effect gives may be something else the next time.
        if (primitive.effects and not subprograms(primitive)) or self.policy_saves(eqn):
            return True
        place = eqn.outputs.index(out)  # type: ignore[arg-type]
        held = [p for p in subprograms(primitive) if len(p.outputs) == len(eqn.outputs)]
        makers = [_defining_equation(p, p.outputs[place]) for p in held]
        return bool(makers) and all(
            maker is not None and self.is_saved(maker, p.outputs[place])
            for p, maker in zip(held, makers, strict=True)
        )

    def policy_saves(self, eqn: Equation) -> bool:
        """What the policy says of an equation."""
        if self.policy is None:
            return False
        primitive = eqn.primitive
        params: dict[str, Any] = {f: getattr(primitive, f) for f in primitive.fields}
        if isinstance(primitive, CheckpointName):
            params = {"name": primitive.label}
        verdict = self.policy(primitive, *[a.aval for a in eqn.inputs], **params)
        if not isinstance(verdict, (bool, np.bool_)):
            raise ArgumentError(
                f"checkpoint: the policy `{function_name(self.policy)}` must return True or False; "
                f"got {type_name(verdict)} for {primitive.name}"
            )
        return bool(verdict)


def inline_call_equations(program: Program) -> Program:
    """`program` with the calls in it opened up, so that a policy sees what they do."""
    if all(type(eqn.primitive) is not Call for eqn in program):
        return program
    return inline(program, (Call.name,))


def _effect_free_equation(eqn: Equation) -> Equation | None:
    """The equation for a second time, without effects; None if it must not run again."""
    try:
        return RemoveEffects().without_effects(eqn)[0]
    except EffectError:
        return None


def _defining_equation(program: Program, atom: Atom) -> Equation | None:
    return next((eqn for eqn in program.equations if atom in eqn.outputs), None)
