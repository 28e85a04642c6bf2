"""Along which named axes the values of a program differ from place to place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from functx.core.program import Program, Var
from functx.core.rewriting import rewritten
from functx.ops.collectives import AxisIndex, Collective
from functx.transforms.control.cond import Cond
from functx.transforms.control.scan import Scan
from functx.transforms.control.while_loop import While

Axes = frozenset[Any]
NOWHERE: Axes = frozenset()


@dataclass(frozen=True)
class Varying:
    """The analysis of a program that finds the axes along which each output differs.

    `given` says so of the inputs. What does not, is the same in all places of an axis.
    """

    given: tuple[Axes, ...]

    def __call__(self, program: Program) -> tuple[Axes, ...]:
        env: dict[Any, Axes] = dict(zip(program.inputs, self.given, strict=True))
        for eqn in program.equations:
            given = [env[a] if type(a) is Var else NOWHERE for a in eqn.inputs]
            env.update(
                zip(
                    eqn.outputs,
                    of_outputs(eqn.primitive, given, len(eqn.outputs)),
                    strict=True,
                )
            )
        return tuple([env[a] if type(a) is Var else NOWHERE for a in program.outputs])


def varying(program: Program, given: Sequence[Axes]) -> tuple[Axes, ...]:
    """The axes along which each output of `program` differs, if the inputs do along `given`."""
    found: tuple[Axes, ...] = rewritten(Varying(tuple(given)), program)
    return found


@singledispatch
def of_outputs(primitive: Any, given: Sequence[Axes], count: int) -> Sequence[Axes]:
    """The axes along which each of the `count` outputs of an equation differs, by its operands."""
    for field in ("program", "primal"):
        program = getattr(primitive, field, None)
        if type(program) is Program and (len(program.inputs), len(program.outputs)) == (
            len(given),
            count,
        ):
            return varying(program, given)
    return [union(given) | primitive.named_axes] * count


@of_outputs.register
def _(primitive: Collective, given: Sequence[Axes], count: int) -> Sequence[Axes]:
    return [primitive.varying(given[0])]


@of_outputs.register
def _(primitive: AxisIndex, given: Sequence[Axes], count: int) -> Sequence[Axes]:
    return [primitive.named_axes]


@of_outputs.register
def _(primitive: Cond, given: Sequence[Axes], count: int) -> Sequence[Axes]:
    found = [varying(branch, given[1:]) for branch in primitive.branches]
    return [union([given[0], *outs]) for outs in zip(*found, strict=True)]


@of_outputs.register
def _(primitive: Scan, given: Sequence[Axes], count: int) -> Sequence[Axes]:
    n, m = primitive.consts, primitive.carries
    consts, carry, rows = given[:n], list(given[n : n + m]), given[n + m :]
    while True:
        outs = varying(primitive.program, [*consts, *carry, *rows])
        grown = [a | b for a, b in zip(carry, outs, strict=False)]
        if grown == carry:
            return [*carry, *outs[m:]]
        carry = grown


@of_outputs.register
def _(primitive: While, given: Sequence[Axes], count: int) -> Sequence[Axes]:
    m, n = primitive.condition_consts, primitive.condition_consts + primitive.body_consts
    carry = list(given[n:])
    while True:
        (stops,) = varying(primitive.condition, [*given[:m], *carry])
        outs = varying(primitive.body, [*given[m:n], *carry])
        grown = [a | b | stops for a, b in zip(carry, outs, strict=True)]
        if grown == carry:
            return carry
        carry = grown


def union(sets: Sequence[Axes]) -> Axes:
    """The axes in any of `sets`."""
    return NOWHERE.union(*sets)
