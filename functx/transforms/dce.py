"""Dead-code elimination, common-subexpression elimination, and analyses of dependence."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, Self, TypeVar

from functx.core.dead_code import dce_equations
from functx.core.errors import EffectError
from functx.core.masks import inexact_mask, select_where
from functx.core.primitive import Primitive
from functx.core.program import (
    Atom,
    Equation,
    Literal,
    Part,
    Program,
    Var,
    pad_input_names,
    subprograms,
)
from functx.core.program_editing import map_primitive_programs, replace_program_fields
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Avals, Flags, Value
from functx.ops.effect_tokens import WithEffects
from functx.ops.views import Copy

MUST_STAY = frozenset([Part.STAYS_FORWARD, Part.STAYS_BACKWARD])
"""The parts of joint programs whose equations no rewrite moves."""

State = TypeVar("State")
Result = TypeVar("Result")


def fixed_point(
    start: State, step: Callable[[State], tuple[State, Result]]
) -> tuple[State, Result]:
    """The `(state, result)` for which `step(state) == (state, result)`, iterated from `start`.

    `step` returns the next state, and a result of which the last is returned.
    """
    state = start
    while True:
        following, result = step(state)
        if following == state:
            return state, result
        state = following


Indices = tuple[int, ...]


def with_io(program: Program, inputs: Sequence[Var], outputs: Sequence[Atom]) -> Program:
    """The program of the equations that `outputs` need, as a function of `inputs`."""
    equations = dce_equations(program.equations, outputs)
    in_names, before = program.in_names, program.inputs

    def names() -> list[str]:
        known = dict(zip(before, pad_input_names(in_names(), len(before)), strict=True))
        return [known.get(v, "") for v in inputs]

    names_of_inputs = None if in_names is None else names
    return Program(program.name, inputs, equations, outputs, in_names=names_of_inputs)


class Subprogram(Rewrite[Program]):
    """The rewrite to the inputs and the outputs at some indices, or to all for None.

    The outputs must need no other inputs.
    """

    inputs: Indices | None = None
    outputs: Indices | None = None

    def __call__(self, program: Program) -> Program:
        inputs, outputs = program.inputs, program.outputs
        if self.inputs is not None:
            inputs = [inputs[i] for i in self.inputs]
        if self.outputs is not None:
            outputs = [outputs[i] for i in self.outputs]
        if inputs == program.inputs and outputs == program.outputs:
            return program
        return with_io(program, inputs, outputs)


class UsedInputs(Rewrite[Indices]):
    """The analysis that finds the indices of the inputs that some outputs need.

    Without `outputs`, it finds the inputs that any equation or output uses.
    """

    outputs: Indices | None = None

    def __call__(self, program: Program) -> Indices:
        equations, outputs = program.equations, program.outputs
        if self.outputs is not None:
            outputs = [outputs[i] for i in self.outputs]
            equations = dce_equations(equations, outputs)
        read = used_variables(equations, outputs)
        return tuple([i for i, v in enumerate(program.inputs) if v in read])


def take_first_outputs(program: Program, count: int) -> Program:
    """`program` with its first `count` outputs only."""
    return cached_rewrite(Subprogram(outputs=tuple(range(count))), program)


def dce_program(program: Program, outputs: Indices | None = None) -> tuple[Program, Indices]:
    """`program` with the outputs at some indices, or all, and the inputs that they need.

    Also returns the indices of these inputs. A program that needs all is returned as it is.
    """
    indices = cached_rewrite(UsedInputs(outputs), program)
    inputs = None if len(indices) == len(program.inputs) else indices
    return cached_rewrite(Subprogram(inputs, outputs), program), indices


def used_inputs(program: Program) -> list[bool]:
    """The mask of the inputs that equations or outputs of `program` use."""
    read = used_variables(program.equations, program.outputs)
    return [v in read for v in program.inputs]


def dependents_of(variables: Iterable[Var], equations: Iterable[Equation]) -> set[Atom]:
    """`variables`, and the variables that the equations compute from any of them."""
    reached: set[Atom] = set(variables)
    for eqn in equations:
        if not reached.isdisjoint(eqn.inputs):
            reached.update(eqn.outputs)
    return reached


def loop_invariant_variables(program: Program, invariant: set[Atom]) -> set[Atom]:
    """`invariant`, extended by the variables that depend on nothing but literals and it."""
    for eqn in program.equations:
        if not eqn.primitive.effects and all(
            type(a) is Literal or a in invariant for a in eqn.inputs
        ):
            invariant.update(eqn.outputs)
    return invariant


class ActivityAnalysis(Rewrite[tuple[bool, ...]]):
    """The analysis that marks the outputs that depend differentiably on `active` inputs."""

    active: tuple[bool, ...]

    def __call__(self, program: Program) -> tuple[bool, ...]:
        reached = set(select_where(program.inputs, self.active))
        for eqn in program.equations:
            if eqn.primitive.differentiable and not reached.isdisjoint(eqn.inputs):
                reached.update(varied(eqn, reached))
        return tuple([atom in reached for atom in program.outputs])


def active_outputs(program: Program, active: Flags) -> list[bool]:
    """The mask of the outputs that depend differentiably on the inputs marked `active`."""
    return list(cached_rewrite(ActivityAnalysis(tuple(active)), program))


def varied(eqn: Equation, active: Container[Any]) -> list[Var]:
    """The outputs of an equation that depend differentiably on its operands in `active`."""
    primitive = eqn.primitive
    if primitive.varying_outputs is None:
        return [v for v in eqn.outputs if is_inexact(v.aval.dtype)]
    flags = [a in active for a in eqn.inputs]
    avals, out_avals = ([a.aval for a in atoms] for atoms in (eqn.inputs, eqn.outputs))
    return select_where(eqn.outputs, varying_output_mask(primitive, avals, flags, out_avals))


def varying_output_mask(
    primitive: Primitive, avals: Avals, active: Flags, outs: Sequence[Value | ShapedArray]
) -> list[bool]:
    """The mask of the outputs of one operation that depend differentiably on its operands."""
    if primitive.varying_outputs is None:
        return inexact_mask(outs)
    mask = primitive.varying_outputs(avals, tuple(active))
    return [on and inexact for on, inexact in zip(mask, inexact_mask(outs), strict=True)]


def used_variables(equations: Iterable[Equation], outputs: Iterable[Atom]) -> set[Var]:
    """The variables that equations and outputs use."""
    read = {a for eqn in equations for a in eqn.inputs if type(a) is Var}
    read.update([a for a in outputs if type(a) is Var])
    return read


def drop_unused_inputs(program: Program) -> tuple[Program, list[int]]:
    """The program without the inputs that nothing uses, and the indices of those that are left."""
    read = used_variables(program.equations, program.outputs)
    used = [i for i, v in enumerate(program.inputs) if v in read]
    return with_io(program, [program.inputs[i] for i in used], program.outputs), used


class UniqueEquations:
    """Equations of a program, in order, of which equal ones are merged as they are added."""

    def __init__(self) -> None:
        self.equations: list[Equation] = []
        self.first: dict[tuple[Primitive | Atom, ...], Equation] = {}
        self.substitutes: dict[Atom, Atom] = {}

    def add_all(self, program: Program) -> Self:
        """Adds the equations of `program`; returns itself."""
        for eqn in program:
            self.add(self.on_substitutes(eqn))
        return self

    def can_merge(self, primitive: Primitive) -> bool:
        """Whether equal equations of `primitive` are merged."""
        return not primitive.effects

    def read(self, atom: Atom) -> Atom:
        """The atom that replaces `atom`."""
        return self.substitutes.get(atom, atom)

    def on_substitutes(self, eqn: Equation) -> Equation:
        """`eqn` on the atoms that replace its operands."""
        return eqn.with_substitutes(self.substitutes)

    def substitute(self, outputs: Sequence[Var], atoms: Sequence[Atom]) -> None:
        """Use `atoms` in place of `outputs` in all later equations."""
        self.substitutes.update(zip(outputs, atoms, strict=True))

    def add(self, eqn: Equation) -> Sequence[Var]:
        """Adds `eqn`, or returns the outputs of an equal equation that replace its own."""
        if self.can_merge(eqn.primitive) and eqn.part not in MUST_STAY:
            equal = self.first.setdefault((eqn.primitive, *eqn.inputs), eqn)
            if equal is not eqn and all(
                [a.aval is b.aval for a, b in zip(equal.outputs, eqn.outputs, strict=True)]
            ):
                self.substitute(eqn.outputs, equal.outputs)
                return equal.outputs
        self.equations.append(eqn)
        return ()

    def finish(self, program: Program) -> Program:
        """The program with the inputs and outputs of `program`, and those equations it needs."""
        outputs = [self.read(a) for a in program.outputs]
        equations = dce_equations(self.equations, outputs)
        return replace_program_fields(program, equations=equations, outputs=outputs)


def eliminate_common_subexpressions(program: Program) -> Program:
    """`program` with one equation for all that apply a primitive to the same operands."""
    return UniqueEquations().add_all(program).finish(program)


def keep_effects_depending_on(program: Program, inputs: Iterable[Var]) -> Program:
    """`program` with only those effects that depend on nothing but `inputs`.

    The transpose in the other inputs has no effects of theirs.
    """
    if not program.effects:
        return program
    known = set(inputs)
    equations = []
    for eqn in program.equations:
        if all(type(a) is not Var or a in known for a in eqn.inputs):
            known.update(eqn.outputs)
        elif eqn.primitive.effects:
            equations += RemoveEffects().without_effects(eqn)
            continue
        equations.append(eqn)
    return replace_program_fields(program, equations=equations)


class RemoveEffects(Rewrite[Program]):
    """The rewrite to the same outputs without effects, for a second run of a program.

    Raises EffectError for an effect whose results are used, which may differ in the second run.
    """

    def __call__(self, program: Program) -> Program:
        if not program.effects:
            return program
        kept: list[Equation] = []
        used = {a for a in program.outputs if type(a) is Var}
        for eqn in reversed(program.equations):
            if eqn.primitive.effects and used.isdisjoint(eqn.outputs):
                continue
            kept += reversed(self.without_effects(eqn))
            used.update(a for a in eqn.inputs if type(a) is Var)
        return replace_program_fields(program, equations=kept[::-1])

    def without_effects(self, eqn: Equation) -> list[Equation]:
        """The equation without its effects; nothing if it is only an effect."""
        if not eqn.primitive.effects:
            return [eqn]
        if isinstance(eqn.primitive, WithEffects):
            count = len(eqn.primitive.kinds)
            operation = Equation(
                eqn.primitive.operation, eqn.inputs[count:], eqn.outputs[count:], eqn.source
            )
            tokens = zip(eqn.inputs[:count], eqn.outputs[:count], strict=True)
            copies = [Equation(Copy(), [old], [new], eqn.source) for old, new in tokens]
            return [*copies, *self.without_effects(operation)]
        if subprograms(eqn.primitive):
            primitive = map_primitive_programs(eqn.primitive, self.rewrite_subprogram)
            return [eqn.replace(primitive=primitive)] if eqn.outputs else []
        if eqn.outputs:
            raise EffectError(
                f"{eqn.primitive.name}: an effect with results must not be in what a derivative "
                "computes again; got one in a checkpoint, a loop of no known length or Taylor mode",
                f"the equation: {eqn.primitive!r}",
                fix="Keep it out of there, or use pure_callback for a function without effects.",
                source=eqn.source,
            )
        return []

    def rewrite_subprogram(self, program: Program) -> Program:
        return cached_rewrite(self, program)
