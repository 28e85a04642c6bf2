"""Zeros that are known when a program is rewritten, and linear equations without them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from typing import Any

from functx import ops
from functx.core.generator_state import STATE_AVAL
from functx.core.masks import select_where, select_where_not
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Literal, Program, Var, scalar_literal
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.tracer import Tracer
from functx.core.typing import Cotangent, Cotangents
from functx.ops.operands import literal
from functx.transforms.dce import with_io


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
