"""Known zeros: what equations that are linear in some variables compute when some of those are zero."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import singledispatch
from typing import Any

from functx import ops
from functx.core.program import Atom, Equation, Literal, Program, scalar_literal
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.core.tracer import Tracer
from functx.ops.operands import literal
from functx.transforms.dce import with_io
from functx.transforms.operand_masks import select_where, select_where_not


def is_zero_literal(atom: Any) -> bool:
    """Whether `atom` is the number 0 of a program."""
    return type(atom) is Literal and atom.value == 0


def zero_filled_variables(equations: Iterable[Equation]) -> set[Any]:
    """The variables that equations fill with the number 0."""
    return {
        eqn.outputs[0]
        for eqn in equations
        if type(eqn.primitive) is ops.Full and is_zero_literal(eqn.inputs[0])
    }


def symbolize_zeros(values: Sequence[Any], equations: Iterable[Equation]) -> list[Any]:
    """`values` with None in place of those that are 0, or that `equations` fill with 0."""
    zeros = zero_filled_variables(equations)
    return [
        None if type(x) is Tracer and (x.atom in zeros or is_zero_literal(x.atom)) else x
        for x in values
    ]


def nonzero_output_mask(program: Program) -> list[bool]:
    """Which outputs of `program` are not known to be zero."""
    zeros = zero_filled_variables(program.equations)
    return [not (a in zeros or is_zero_literal(a)) for a in program.outputs]


class ZeroPropagation:
    """Equations without what is zero because some variables are.

    They are linear in the variables `linear`, of which `zeros` are zero. `equations` are those
    that remain, `read` tells what stands for a variable. An equation with several outputs is
    left out only with `drop_multiple_results`, for where none of them is anything but linear.
    """

    def __init__(
        self,
        equations: Iterable[Equation],
        linear: Iterable[Any],
        zeros: Iterable[Any],
        drop_multiple_results: bool = False,
    ):
        self.linear, self.zeros, self.drop_multiple_results = (
            set(linear),
            set(zeros),
            drop_multiple_results,
        )
        self.aliases: dict[Any, Atom] = {}
        self.instantiated: dict[Any, Atom] = {}
        self.equations: list[Equation] = []
        for eqn in equations:
            self.add(eqn)

    def read(self, atom: Any) -> Atom:
        """What stands for `atom`: itself, the one that it equals, or zeros made for it."""
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
        """Take `eqn` among the equations, as far as it gives anything but zeros."""
        moving = [a for a in eqn.inputs if a in self.linear]
        left = [a for a in moving if a not in self.zeros]
        self.linear.update(eqn.outputs if moving else ())
        whole = len(eqn.outputs) == 1 or self.drop_multiple_results
        if moving and not left and whole and not eqn.primitive.effects:
            self.zeros.update(eqn.outputs)
        elif len(moving) == 2 and len(left) == 1 and _is_identity_sum(eqn, left[0]):
            self.aliases[eqn.outputs[0]] = self.read(left[0])
        elif len(left) < len(moving) and (inside := self.inside(eqn)) is not None:
            self.equations.append(inside)
        else:
            self.equations.append(eqn.replace(inputs=[self.read(a) for a in eqn.inputs]))

    def inside(self, eqn: Equation) -> Equation | None:
        """`eqn` without what is zero in the programs that it runs; None if it runs none as they are."""
        programs = programs_run(eqn.primitive)
        if programs is None:
            return None
        first = len(eqn.inputs) - len(programs[0].inputs)
        zeros = tuple([a in self.zeros for a in eqn.inputs[first:]])
        linear = tuple([a in self.linear for a in eqn.inputs[first:]])
        found = [
            cached_rewrite(WithoutZeros(linear, zeros, self.drop_multiple_results), each)
            for each in programs
        ]
        nonzero = zip(*map(nonzero_output_mask, found), strict=True)
        self.zeros.update(select_where_not(eqn.outputs, [any(on) for on in nonzero]))
        kept = [*eqn.inputs[:first], *select_where_not(eqn.inputs[first:], zeros)]
        primitive = with_programs(eqn.primitive, found)
        return eqn.replace(primitive=primitive, inputs=[self.read(a) for a in kept])


@singledispatch
def programs_run(primitive: Any) -> Sequence[Program] | None:
    """The programs of which `primitive` runs one on its last operands, and does nothing else."""
    return None


@singledispatch
def with_programs(primitive: Any, programs: Sequence[Program]) -> Any:
    """`primitive` with other programs in place of `programs_run`."""
    raise NotImplementedError


def _is_identity_sum(eqn: Equation, left: Atom) -> bool:
    """Whether `eqn` gives the operand `left` when its other one is zero."""
    primitive = type(eqn.primitive)
    adds = primitive is ops.Add or (primitive is ops.Sub and eqn.inputs[0] is left)
    return adds and left.aval == eqn.outputs[0].aval


class WithoutZeros(Rewrite[Program]):
    """The rewrite of a program that is linear in the inputs `linear` to one without those of `zeros`."""

    linear: tuple[bool, ...]
    zeros: tuple[bool, ...]
    drop_multiple_results: bool

    def __call__(self, program: Program) -> Program:
        linear, zeros = (
            select_where(program.inputs, self.linear),
            select_where(program.inputs, self.zeros),
        )
        known = ZeroPropagation(program.equations, linear, zeros, self.drop_multiple_results)
        outputs = [known.read(a) for a in program.outputs]
        whole = Program(
            program.name, program.inputs, known.equations, outputs, in_names=program.in_names
        )
        return with_io(whole, select_where_not(program.inputs, self.zeros), outputs)


class DropZeroInputs(Rewrite[Program]):
    """The rewrite of a program that is linear in its first inputs to one without some of them.

    `given` marks those of the first inputs that stay; the others are zero.
    """

    nonzero: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        if all(self.nonzero):
            return program
        count, rest = len(self.nonzero), len(program.inputs) - len(self.nonzero)
        zeros = (*[not on for on in self.nonzero], *[False] * rest)
        without = WithoutZeros((True,) * count + (False,) * rest, zeros, drop_multiple_results=True)
        return cached_rewrite(without, program)
