"""One walk through a program: each equation made simpler, looked up among earlier ones, or kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from functx.core.editing import map_primitive_programs, replace_program_fields
from functx.core.program import Atom, Equation, Literal, Program, Var, dce_equations
from functx.ops.identities import DefUse
from functx.ops.shaping import Full
from functx.transforms.simplify.fold import can_fold_constants, fold_constants
from functx.transforms.simplify.loops import HOISTING_RULES

_MAX_REWRITES = 8


def simplify_equations(
    program: Program, nested: Callable[[Program], Program] | None = None
) -> Program:
    """`program` without what is unused, done twice, or simpler in another way.

    `nested` is done to the programs in its equations first.
    """
    walk = _LocalSimplifier(program, nested)
    for eqn in program.equations:
        walk.add_equation(eqn)
    outputs = [walk.substitutions.get(a, a) for a in program.outputs]
    equations = dce_equations(walk.equations, outputs)
    if not walk.changed and len(equations) == len(program.equations):
        return program
    return replace_program_fields(program, equations=equations, outputs=outputs)


class _LocalSimplifier:
    """What is known of a program up to some equation of it."""

    def __init__(self, program: Program, nested: Callable[[Program], Program] | None):
        self.nested = nested
        self.equations: list[Equation] = []
        self.changed = False
        self.substitutions: dict[Any, Atom] = {}
        self.producers: dict[Any, Equation] = {}
        self.available: dict[Any, Equation] = {}
        self.uses: dict[Any, int] = {}
        uses = self.uses
        for eqn in program.equations:
            for atom in eqn.inputs:
                uses[atom] = uses.get(atom, 0) + 1
        for atom in program.outputs:
            uses[atom] = uses.get(atom, 0) + 2
        self.context = DefUse(self.producers, uses)

    def add_equation(self, eqn: Equation) -> None:
        """Put what becomes of `eqn` behind what there is."""
        names = self.substitutions
        for atom in eqn.inputs:
            if atom in names:
                eqn = eqn.replace(inputs=[names.get(a, a) for a in eqn.inputs])
                break
        primitive = eqn.primitive
        if primitive.multiple_results:
            eqn = self.simplify_nested(eqn)
            primitive = eqn.primitive
        elif primitive.simplify is not None or primitive.scalars_broadcast:
            simpler = self.simplify_equation(eqn)
            if simpler is None:
                return
            eqn, primitive = simpler, simpler.primitive
        if not primitive.effects and not primitive.no_cse:
            key = primitive, *eqn.inputs
            same = self.available.setdefault(key, eqn)
            if same is not eqn and all(
                [a.aval is b.aval for a, b in zip(same.outputs, eqn.outputs, strict=True)]
            ):
                self.substitute(eqn.outputs, same.outputs)
                return
        self.equations.append(eqn)
        for v in eqn.outputs:
            self.producers[v] = eqn

    def substitute(self, outputs: Sequence[Var], atoms: Sequence[Atom]) -> None:
        """Let `atoms` be what is meant by `outputs` from here on."""
        self.changed = True
        for v, atom in zip(outputs, atoms, strict=True):
            self.substitutions[v] = atom
            self.uses[atom] = self.uses.get(atom, 0) + self.uses.get(v, 0)

    def simplify_equation(self, eqn: Equation) -> Equation | None:
        """What computes the output of `eqn` in the simplest way; None if it is there already."""
        (out,) = eqn.outputs
        for _ in range(_MAX_REWRITES):
            found: Any = None
            if not out.aval.shape and can_fold_constants(eqn):
                found = fold_constants(eqn)
            elif eqn.primitive.simplify is not None:
                found = eqn.primitive.simplify(self.context, *eqn.inputs)
            if found is None and eqn.primitive.scalars_broadcast and out.aval.shape:
                found = self.with_scalars(eqn)
            if found is None:
                break
            if type(found) is Literal and out.aval.shape:
                found = Full(out.aval.shape), [found]
            if type(found) is not tuple:
                if found.aval is not out.aval:
                    break
                self.substitute([out], [found])
                return None
            primitive, inputs = found
            avals = tuple([atom.aval for atom in inputs])
            (aval,) = primitive.out_avals_memo.get(avals) or primitive.infer_out_avals(avals)
            if aval is not out.aval:
                break
            self.changed = True
            eqn = eqn.replace(primitive=primitive, inputs=list(inputs))
        return eqn

    def with_scalars(self, eqn: Equation) -> Any:
        """An elementwise operation on scalars in place of arrays filled with them, if it has any."""
        shape = eqn.outputs[0].aval.shape
        filled = [self.context.defining_equation(a, Full) for a in eqn.inputs]
        if all([f is None for f in filled]):
            return None
        inputs = [a if f is None else f.inputs[0] for a, f in zip(eqn.inputs, filled, strict=True)]
        if any([a.aval.shape == shape for a in inputs]):
            return eqn.primitive, inputs
        return None

    def simplify_nested(self, eqn: Equation) -> Equation:
        """As `simpler`, for an equation with several outputs, or with programs."""
        if self.nested is not None:
            primitive = map_primitive_programs(eqn.primitive, self.nested)
            if primitive is not eqn.primitive:
                self.changed = True
                eqn = eqn.replace(primitive=primitive)
        rule = HOISTING_RULES.get(type(eqn.primitive))
        if rule is not None:
            moved = rule(eqn)
            if moved is not None:
                self.changed = True
                before, eqn, passed = moved
                for each in before:
                    self.add_equation(each)
                eqn = eqn.replace(inputs=[self.substitutions.get(a, a) for a in eqn.inputs])
                self.substitute([*passed], [*passed.values()])
        if eqn.primitive.simplify is not None:
            found = eqn.primitive.simplify(self.context, *eqn.inputs)
            if found is not None:
                primitive, inputs = found
                outs = primitive.infer_out_avals(tuple([atom.aval for atom in inputs]))
                if all([aval is v.aval for aval, v in zip(outs, eqn.outputs, strict=True)]):
                    self.changed = True
                    eqn = eqn.replace(primitive=primitive, inputs=list(inputs))
        return eqn
