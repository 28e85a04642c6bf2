"""A rule along a direction, split into the values it gives and their tangents."""

from __future__ import annotations

from typing import Any

from functx.core.program import Program, Var, dce_equations
from functx.core.records import Rewrite
from functx.transforms.marks import inexact_mask, scatter_where, select_where, select_where_not
from functx.transforms.parts import dependents_of
from functx.transforms.zeros import ZeroPropagation, is_zero_literal, zero_filled_variables


class SplitJVPRule(Rewrite[tuple[Program, Program, tuple[bool, ...]]]):
    """The split of a rule program into its values and its tangents.

    The rule has `count` operands, whose tangents follow, given where `varying` holds and
    zero elsewhere, and `outputs` outputs besides their tangents. The first program takes
    all operands and gives the outputs and residuals; the second takes the tangents given
    and the residuals, and gives the output tangents that can be other than zero, which
    are marked, one mark an output, in the third part.
    """

    num_operands: int
    varying: tuple[bool, ...]
    outputs: int

    def __call__(self, program: Program) -> tuple[Program, Program, tuple[bool, ...]]:
        end = self.num_operands + len(self.varying)
        tangents = program.inputs[self.num_operands : end]
        known = [*program.inputs[: self.num_operands], *program.inputs[end:]]
        linear_vars = dependents_of(tangents, program.equations)
        apart = [linear_vars.isdisjoint(eqn.inputs) for eqn in program.equations]
        values, linear = (
            select_where(program.equations, apart),
            select_where_not(program.equations, apart),
        )
        outs = program.outputs[: self.outputs]
        given = select_where(tangents, self.varying)
        left = ZeroPropagation(linear, tangents, select_where_not(tangents, self.varying))
        out_tangents = [left.aliases.get(a, a) for a in program.outputs[self.outputs :]]
        marks = scatter_where(out_tangents, inexact_mask([a.aval for a in outs]))
        zeros = left.zeros | zero_filled_variables(values)
        nonzero = tuple([not (a is None or a in zeros or is_zero_literal(a)) for a in marks])
        kept = select_where(marks, nonzero)
        linear = dce_equations(left.equations, kept)
        made = {v for e in linear for v in e.outputs} | set(given)
        used: dict[Any, None] = dict.fromkeys(
            a for atoms in [*[e.inputs for e in linear], kept] for a in atoms
        )
        residuals = [a for a in used if type(a) is Var and a not in made]
        results = [*outs, *residuals]
        return (
            Program(program.name, known, dce_equations(values, results), results),
            Program(f"{program.name}_tangent", [*given, *residuals], linear, kept),
            nonzero,
        )
