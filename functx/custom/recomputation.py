"""Derivatives split in two, of which the second half computes again what is not saved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from functx.core.editing import inline
from functx.core.errors import ArgumentError, EffectError, type_name
from functx.core.program import Atom, Equation, Program, Var, remove_dead, subprograms
from functx.core.records import Rewrite
from functx.core.rewriting import rewritten
from functx.custom.checkpoint_policies import MinCut
from functx.ops.gradients import Name
from functx.transforms.call import Call
from functx.transforms.calls import name_of
from functx.transforms.control.scan import Scan
from functx.transforms.effects import WithoutEffects
from functx.transforms.masked_split import MaskedHalf
from functx.transforms.planning.planned import MIN_CUT, Divide, asking_for


class Recomputation(NamedTuple):
    """A program split in two.

    `values` gives the outputs, then what is saved. `rest` takes what the second half of the
    split takes, then what is saved, then the inputs of the program.
    """

    values: Program
    rest: Program


class Division(NamedTuple):
    """What of a program is saved, and the equations that compute the rest again.

    `same` holds variables that saved ones, which have a name, stand for; `changed` equations
    that must be others to give what is saved.
    """

    saved: list[Var]
    again: list[Equation]
    same: dict[Any, Var]
    changed: dict[Equation, Equation]

    def first(self, program: Program, outputs: Sequence[Atom]) -> Program:
        """`program` with other outputs, saved ones among them."""
        equations = [self.changed.get(eqn, eqn) for eqn in program.equations]
        return Program(program.name, program.inputs, remove_dead(equations, outputs), outputs)


class Recompute(Rewrite[Recomputation]):
    """The rewrite to the halves that `split` makes of a program, for a `policy` of saving.

    Of what the second half needs of the first, it computes again what the policy, by default
    one that saves nothing, does not save.
    """

    split: Any
    policy: Any

    def __call__(self, program: Program) -> Recomputation:
        if isinstance(self.policy, MinCut):
            return self.planned(program)
        # What the policy decides, nothing else has decided before.
        with asking_for("off"):
            values, rest = rewritten(self.split, program)
        values = without_calls(values)
        count = len(program.outputs)
        outs, residuals = values.outputs[:count], values.outputs[count:]
        lead = rest.inputs[: len(rest.inputs) - len(residuals)]
        needs: dict[Any, Atom] = dict(zip(rest.inputs[len(lead) :], residuals, strict=True))
        parts = self.divide(values, residuals)

        def read(atom: Any) -> Any:
            atom = needs.get(atom, atom)
            return parts.same.get(atom, atom)

        results = [read(a) for a in rest.outputs]
        equations = [e.replace(inputs=[read(a) for a in e.inputs]) for e in [*parts.again, *rest]]
        inputs = [*lead, *parts.saved, *values.inputs]
        return Recomputation(
            parts.first(values, [*outs, *parts.saved]),
            Program(rest.name, inputs, remove_dead(equations, results), results),
        )

    def planned(self, program: Program) -> Recomputation:
        """The halves between which the cheapest values are saved, where the inputs cost nothing."""
        masked = isinstance(self.split, MaskedHalf)
        free = tuple(range(len(program.inputs)))
        divide = Divide(self.split.whole if masked else self.split, MIN_CUT, free)
        with asking_for(MIN_CUT):
            halves = rewritten(divide, program).halves
        values, rest = self.split.of(halves) if masked else halves
        inputs = [*rest.inputs, *[Var(aval) for aval in program.in_avals]]
        return Recomputation(values, Program(rest.name, inputs, rest.equations, rest.outputs))

    def divide(self, values: Program, residuals: Sequence[Atom]) -> Division:
        """What of `values` to save and what to compute again, to have the `residuals`."""
        wanted: set[Any] = set(residuals)
        made = {v for eqn in values.equations for v in eqn.outputs}
        saved: list[Var] = []
        again: list[Equation] = []
        same: dict[Any, Var] = {}
        changed: dict[Equation, Equation] = {}
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
            kept = [v for v in needed if self.saves(eqn, v)]
            missing = [v for v in needed if v not in kept]
            saved += kept
            if not missing:
                continue
            loop = self.divide_loop(eqn, missing) if type(eqn.primitive) is Scan else None
            repeated = _quiet(eqn)
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
        return Division(saved[::-1], again[::-1], same, changed)

    def divide_loop(
        self, eqn: Equation, missing: Sequence[Var]
    ) -> tuple[Equation, Equation, list[Var]] | None:
        """A loop that also gives the rows to save, one that is given them, and the rows.

        The second gives the outputs that are `missing`. None where there are none to save.
        """
        loop: Any = eqn.primitive
        body, carries = without_calls(loop.program), loop.carries
        rows = [i for i, v in enumerate(eqn.outputs) if i >= carries and v in missing]
        parts = self.divide(body, [*body.outputs[:carries], *[body.outputs[i] for i in rows]])
        if not parts.saved:
            return None
        # What the loop gives already is not stacked a second time.
        given = dict(zip(body.outputs[carries:], eqn.outputs[carries:], strict=True))
        fresh = [a for a in parts.saved if a not in given]
        given |= {a: Var(a.aval.update(shape=(loop.length, *a.aval.shape))) for a in fresh}
        first = parts.first(body, [*body.outputs, *fresh])
        stacked = [given[a] for a in parts.saved]
        rows = [i for i in rows if body.outputs[i] not in parts.saved]
        read = parts.same.get
        outputs = [read(a, a) for a in [*body.outputs[:carries], *[body.outputs[i] for i in rows]]]
        equations = [e.replace(inputs=[read(a, a) for a in e.inputs]) for e in parts.again]
        second = Program(body.name, [*body.inputs, *parts.saved], equations, outputs)
        return (
            eqn.replace(
                primitive=loop.again(first, loop.consts, carries),
                outputs=[*eqn.outputs, *[given[a] for a in fresh]],
            ),
            eqn.replace(
                primitive=loop.again(second, loop.consts, carries),
                inputs=[*eqn.inputs, *stacked],
                outputs=[*eqn.outputs[:carries], *[eqn.outputs[i] for i in rows]],
            ),
            stacked,
        )

    def saves(self, eqn: Equation, out: Atom) -> bool:
        """Whether to save the output `out`; where a program gives it, by what does so there."""
        primitive = eqn.primitive
        # What an effect gives may be something else the next time.
        if (primitive.effects and not subprograms(primitive)) or self.allows(eqn):
            return True
        place = eqn.outputs.index(out)  # type: ignore[arg-type]
        held = [p for p in subprograms(primitive) if len(p.outputs) == len(eqn.outputs)]
        makers = [_maker(p, p.outputs[place]) for p in held]
        return bool(makers) and all(
            maker is not None and self.saves(maker, p.outputs[place])
            for p, maker in zip(held, makers, strict=True)
        )

    def allows(self, eqn: Equation) -> bool:
        """What the policy says of an equation."""
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
        return bool(verdict)


def without_calls(program: Program) -> Program:
    """`program` with the calls in it opened up, so that a policy sees what they do."""
    if all(type(eqn.primitive) is not Call for eqn in program):
        return program
    return inline(program, (Call.name,))


def _quiet(eqn: Equation) -> Equation | None:
    """The equation for a second time, without effects; None if it must not run again."""
    try:
        return WithoutEffects().quiet(eqn)[0]
    except EffectError:
        return None


def _maker(program: Program, atom: Atom) -> Equation | None:
    return next((eqn for eqn in program.equations if atom in eqn.outputs), None)
