"""Dead-code elimination, analyses of dependence, and linear equations without symbolic zeros."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import singledispatch
from typing import Any, Self, TypeVar

from functx import ops
from functx.core.dead_code import dce_equations
from functx.core.errors import EffectError
from functx.core.generator_state import STATE_AVAL
from functx.core.masks import inexact_mask, select_where, select_where_not
from functx.core.primitive import Primitive
from functx.core.program import (
    Atom,
    Equation,
    Literal,
    Part,
    Program,
    Var,
    pad_input_names,
    scalar_literal,
    subprograms,
)
from functx.core.program_editing import map_primitive_programs, replace_program_fields
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.tracer import Tracer
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Avals, Cotangent, Cotangents, Flags, Value
from functx.ops.effect_tokens import WithEffects
from functx.ops.operands import literal
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


def is_zero_literal(atom: Atom) -> bool:
    """Whether `atom` is the literal 0."""
    return type(atom) is Literal and atom.value == 0


def is_zero_array(atom: Atom, producers: Mapping[Atom, Equation]) -> bool:
    """Whether `atom` is known to be zero in all elements, from the equations that make it."""
    while (eqn := producers.get(atom)) and type(eqn.primitive) in (ops.BroadcastInDim, ops.Full):
        atom = eqn.inputs[0]
    return is_zero_literal(atom)


def zero_filled_variables(equations: Iterable[Equation]) -> set[Atom]:
    """The variables that `equations` fill with the literal 0."""
    return {
        eqn.outputs[0]
        for eqn in equations
        if type(eqn.primitive) is ops.Full and is_zero_literal(eqn.inputs[0])
    }


def symbolize_zeros(values: Cotangents, equations: Iterable[Equation]) -> list[Cotangent]:
    """`values` with None for the literal 0, and for arrays that `equations` fill with 0."""
    zeros = zero_filled_variables(equations)
    return [
        None if type(x) is Tracer and (x.atom in zeros or is_zero_literal(x.atom)) else x
        for x in values
    ]


def nonzero_output_mask(program: Program) -> list[bool]:
    """The mask of the outputs of `program` that are not known to be zero."""
    zeros = zero_filled_variables(program.equations)
    return [not (a in zeros or is_zero_literal(a)) for a in program.outputs]


class ZeroPropagation:
    """Propagates zeros through equations that are linear in the variables `linear`.

    Of these, `zeros` are zero. `equations` are the equations that remain, and `read` gives the atom
    that replaces a variable. An equation with several outputs is removed only with
    `drop_multiple_results`, for programs in which all its outputs are linear.
    """

    def __init__(
        self,
        equations: Iterable[Equation],
        linear: Iterable[Atom],
        zeros: Iterable[Atom],
        drop_multiple_results: bool = False,
    ):
        self.linear, self.zeros, self.drop_multiple_results = (
            set(linear),
            set(zeros),
            drop_multiple_results,
        )
        self.aliases: dict[Atom, Atom] = {}
        self.instantiated: dict[Atom, Atom] = {}
        self.equations: list[Equation] = []
        for eqn in equations:
            self.add(eqn)

    def read(self, atom: Atom) -> Atom:
        """The atom that replaces `atom`: itself, an equal one, or instantiated zeros."""
        if atom in self.zeros and atom not in self.instantiated:
            aval = atom.aval
            value = literal(0, aval.dtype).value
            zero: Atom = scalar_literal(value, aval.dtype, aval.weak_type, repr(value))
            if aval.shape:
                self.equations.append(Equation.of(ops.Full(aval.shape), [zero]))
                (zero,) = self.equations[-1].outputs
            self.instantiated[atom] = zero
        return self.instantiated.get(atom) or self.aliases.get(atom, atom)

    def add(self, eqn: Equation) -> None:
        """Adds `eqn` to the equations, simplified, unless all its outputs are zero."""
        varying = [a for a in eqn.inputs if a in self.linear]
        nonzero = [a for a in varying if a not in self.zeros]
        self.linear.update(eqn.outputs if varying else ())
        removable = len(eqn.outputs) == 1 or self.drop_multiple_results
        if varying and not nonzero and removable and not eqn.primitive.effects:
            self.zeros.update(eqn.outputs)
        elif len(varying) == 2 and len(nonzero) == 1 and _is_identity_sum(eqn, nonzero[0]):
            self.aliases[eqn.outputs[0]] = self.read(nonzero[0])
        elif len(nonzero) < len(varying) and (inside := self.inside(eqn)) is not None:
            self.equations.append(inside)
        else:
            self.equations.append(eqn.replace(inputs=[self.read(a) for a in eqn.inputs]))

    def inside(self, eqn: Equation) -> Equation | None:
        """`eqn` with its sub-programs simplified; None if it does not run them as they are."""
        programs = programs_run(eqn.primitive)
        if programs is None:
            return None
        lead = len(eqn.inputs) - len(programs[0].inputs)
        zeros = tuple([a in self.zeros for a in eqn.inputs[lead:]])
        linear = tuple([a in self.linear for a in eqn.inputs[lead:]])
        simplified = [
            cached_rewrite(WithoutZeros(linear, zeros, self.drop_multiple_results), sub)
            for sub in programs
        ]
        nonzero = zip(*map(nonzero_output_mask, simplified), strict=True)
        self.zeros.update(select_where_not(eqn.outputs, [any(flags) for flags in nonzero]))
        inputs = [*eqn.inputs[:lead], *select_where_not(eqn.inputs[lead:], zeros)]
        primitive = with_programs(eqn.primitive, simplified)
        return eqn.replace(primitive=primitive, inputs=[self.read(a) for a in inputs])


@singledispatch
def programs_run(primitive: Primitive) -> Sequence[Program] | None:
    """The programs of which `primitive` runs one on its last operands, and nothing else."""
    return None


@singledispatch
def state_operand(primitive: Primitive, output: int) -> int | None:
    """The operand that is the state of a generator which output `output` moves on; None if it is none."""
    return None


def continued_state(program: Program, output: int) -> int | None:
    """The input that is the state of a generator which an output moves on, or is; None if it is none."""
    atom: Any = program.outputs[output]
    if atom.aval != STATE_AVAL:
        return None
    producers = program.def_use.producers
    while (eqn := producers.get(atom)) is not None:
        position = state_operand(eqn.primitive, eqn.outputs.index(atom))
        if position is None:
            return None
        atom = eqn.inputs[position]
    return program.inputs.index(atom) if type(atom) is Var else None


@singledispatch
def with_programs(primitive: Primitive, programs: Sequence[Program]) -> Primitive:
    """`primitive` with other programs in place of `programs_run`."""
    raise NotImplementedError


def _is_identity_sum(eqn: Equation, operand: Atom) -> bool:
    """Whether `eqn` returns `operand` when its other operand is zero."""
    primitive = type(eqn.primitive)
    adds = primitive is ops.Add or (primitive is ops.Sub and eqn.inputs[0] is operand)
    return adds and operand.aval == eqn.outputs[0].aval


class WithoutZeros(Rewrite[Program]):
    """The rewrite to a program without the inputs `zeros`, which are zero.

    The program is linear in the inputs `linear`.
    """

    linear: tuple[bool, ...]
    zeros: tuple[bool, ...]
    drop_multiple_results: bool

    def __call__(self, program: Program) -> Program:
        linear, zeros = (
            select_where(program.inputs, self.linear),
            select_where(program.inputs, self.zeros),
        )
        propagation = ZeroPropagation(program.equations, linear, zeros, self.drop_multiple_results)
        outputs = [propagation.read(a) for a in program.outputs]
        simplified = Program(
            program.name, program.inputs, propagation.equations, outputs, in_names=program.in_names
        )
        return with_io(simplified, select_where_not(program.inputs, self.zeros), outputs)


class DropZeroInputs(Rewrite[Program]):
    """The rewrite to a program without the zero inputs among its first ones, in which it is linear.

    `nonzero` marks the first inputs that stay.
    """

    nonzero: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        if all(self.nonzero):
            return program
        count, rest = len(self.nonzero), len(program.inputs) - len(self.nonzero)
        zeros = (*[not on for on in self.nonzero], *[False] * rest)
        without = WithoutZeros((True,) * count + (False,) * rest, zeros, drop_multiple_results=True)
        return cached_rewrite(without, program)
