"""The named axes along which the values of a program vary, for derivatives in a device map."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import singledispatch
from math import prod
from typing import Any

from functx import ops
from functx.core.errors import CollectiveError
from functx.core.fixed_point import fixed_point
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Program, Var, scalar_literal, subprograms
from functx.core.program_editing import map_primitive_programs, replace_program_fields
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.core.tracer import aval_of
from functx.core.types import is_complex, kind
from functx.transforms.control.cond import Cond
from functx.transforms.control.scan import Scan
from functx.transforms.control.while_loop import While

AxisSet = frozenset[Any]
NO_AXES: AxisSet = frozenset()


class VaryingAxesAnalysis(Rewrite[tuple[AxisSet, ...]]):
    """The analysis that finds the axes along which each output varies.

    `input_axes` are those of the inputs. Along other axes, a value is replicated.
    """

    input_axes: tuple[AxisSet, ...]

    def __call__(self, program: Program) -> tuple[AxisSet, ...]:
        env: dict[Atom, AxisSet] = dict(zip(program.inputs, self.input_axes, strict=True))
        for eqn in program.equations:
            operand_axes = [env.get(a, NO_AXES) for a in eqn.inputs]
            found = output_axes(eqn.primitive, operand_axes, len(eqn.outputs))
            env.update(zip(eqn.outputs, found, strict=True))
        return tuple([env.get(a, NO_AXES) for a in program.outputs])


def varying_axes(program: Program, input_axes: Sequence[AxisSet]) -> tuple[AxisSet, ...]:
    """The axes along which each output of `program` varies, from those of the inputs."""
    return cached_rewrite(VaryingAxesAnalysis(tuple(input_axes)), program)


class ResolveBoundaries(Rewrite[Program]):
    """The rewrite of the `DerivativeBoundary` equations of a program that runs on each device.

    They sum or divide cotangents as the axes require along which the inputs vary.
    """

    input_axes: tuple[AxisSet, ...]

    def __call__(self, program: Program) -> Program:
        if not has_boundary(program):
            return program
        env: dict[Atom, AxisSet] = dict(zip(program.inputs, self.input_axes, strict=True))
        sizes = dict(
            [
                axis
                for e in program
                if type(e.primitive) is ops.DerivativeBoundary
                for axis in e.primitive.axes
            ]
        )
        aliases: dict[Atom, Any] = {}
        equations = []
        for eqn in program.equations:
            inputs = [aliases.get(a, a) for a in eqn.inputs]
            operand_axes = [env.get(a, NO_AXES) for a in inputs]
            replacements = replacements_for(
                eqn.primitive, inputs[0] if inputs else None, operand_axes, sizes
            )
            if not replacements:
                aliases[eqn.outputs[0]] = inputs[0]
            for i, (primitive, others) in enumerate(replacements):
                if any(has_boundary(sub) for sub in subprograms(primitive)):
                    primitive = resolve_subprogram_boundaries(primitive, operand_axes)
                last = i == len(replacements) - 1
                outputs = eqn.outputs if last else [Var(eqn.outputs[0].aval)]
                operands = inputs if others is None else [inputs[0], *others]
                operand_axes = [env.get(a, NO_AXES) for a in operands]
                env.update(
                    zip(outputs, output_axes(primitive, operand_axes, len(outputs)), strict=True)
                )
                equations.append(Equation(primitive, operands, outputs, eqn.source))
                inputs = outputs
        return replace_program_fields(
            program, equations=equations, outputs=[aliases.get(a, a) for a in program.outputs]
        )


def resolve_boundaries(program: Program, input_axes: Sequence[AxisSet]) -> Program:
    """`program` without `DerivativeBoundary`; `input_axes` are the axes its inputs vary along."""
    return cached_rewrite(ResolveBoundaries(tuple(input_axes)), program)


def has_boundary(program: Program) -> bool:
    """Whether `program` holds a `DerivativeBoundary`, at any depth."""
    found: bool | None = program.memo.get(has_boundary)
    if found is None:
        found = program.memo[has_boundary] = any(
            type(eqn.primitive) is ops.DerivativeBoundary
            for each in program.walk()
            for eqn in each.equations
        )
    return found


Replacement = tuple[Any, Sequence[Any] | None]
"""A primitive, and its operands behind the value so far; None for the operands of the equation."""


def replacements_for(
    primitive: Primitive, x: Any, input_axes: Sequence[AxisSet], sizes: dict[Hashable, int]
) -> Sequence[Replacement]:
    """The operations that replace an equation on `x`; none if its output is `x`."""
    if type(primitive) is ops.Psum and primitive.groups is None:
        return sum_over_axes(primitive.axes, x, input_axes[0], sizes)
    if type(primitive) is not ops.DerivativeBoundary:
        return [(primitive, None)]
    shared = [name for name, _ in primitive.axes if name not in input_axes[1]]
    if primitive.is_identity or not shared:
        return []
    if primitive.kind == "sum":
        return sum_over_axes(shared, x, input_axes[0], sizes)
    return [(ops.Mul(), [literal_like(x, 1 / prod([sizes[name] for name in shared]))])]


def sum_over_axes(
    names: Sequence[Any], x: Any, varying: AxisSet, sizes: dict[Hashable, int]
) -> Sequence[Replacement]:
    """The sum of `x` over named axes; along those where it is replicated, a product."""
    replicated = [name for name in names if name in sizes and name not in varying]
    summed = tuple([name for name in names if name not in replicated])
    replacements: list[Replacement] = [(ops.Psum(summed), [])] if summed else []
    if replicated:
        replacements.insert(
            0, (ops.Mul(), [literal_like(x, prod([sizes[name] for name in replicated]))])
        )
    return replacements


def literal_like(x: Any, value: Any) -> Any:
    """The literal `value` of the type of `x`."""
    aval = aval_of(x)
    value = complex(value) if is_complex(aval.dtype) else value
    value = float(value) if kind(aval.dtype) == "f" else value
    return scalar_literal(value, aval.dtype, aval.weak_type, repr(value))


def resolve_subprogram_boundaries(primitive: Primitive, input_axes: Sequence[AxisSet]) -> Primitive:
    """`primitive` with the boundaries in its subprograms resolved."""
    sets = subprogram_input_axes(primitive, input_axes)
    if sets is None:
        raise CollectiveError(
            f"{primitive.name}: a derivative inside must not be taken within a map over devices; "
            "got one",
            fix="Take it outside of the operation, or pass check_vma=False.",
        )
    rest = iter(sets)
    return map_primitive_programs(
        primitive, lambda program: resolve_boundaries(program, next(rest))
    )


@singledispatch
def subprogram_input_axes(
    primitive: Primitive, input_axes: Sequence[AxisSet]
) -> Sequence[Sequence[AxisSet]] | None:
    """The axes along which the inputs of each subprogram of an equation vary; None if not known."""
    programs = subprograms(primitive)
    one = len(programs) == 1 and len(programs[0].inputs) == len(input_axes)
    return [input_axes] if one else None


@singledispatch
def output_axes(
    primitive: Primitive, input_axes: Sequence[AxisSet], count: int
) -> Sequence[AxisSet]:
    """The axes along which each of the `count` outputs of an equation varies."""
    for field in ("program", "primal"):
        program = getattr(primitive, field, None)
        if type(program) is Program and (len(program.inputs), len(program.outputs)) == (
            len(input_axes),
            count,
        ):
            return varying_axes(program, input_axes)
    return [union_axes(input_axes) | primitive.named_axes] * count


@output_axes.register
def _(primitive: ops.DerivativeBoundary, given: Sequence[AxisSet], count: int) -> Sequence[AxisSet]:
    return [given[0] & given[1] if primitive.kind == "sum" else given[0]]


@output_axes.register
def _(primitive: ops.Collective, given: Sequence[AxisSet], count: int) -> Sequence[AxisSet]:
    return [primitive.varying_axes(given[0])]


@output_axes.register
def _(primitive: ops.AxisIndex, given: Sequence[AxisSet], count: int) -> Sequence[AxisSet]:
    return [primitive.named_axes]


@subprogram_input_axes.register
def _(primitive: Cond, given: Sequence[AxisSet]) -> Sequence[Sequence[AxisSet]]:
    return [given[1:] for _ in primitive.branches]


@output_axes.register
def _(primitive: Cond, given: Sequence[AxisSet], count: int) -> Sequence[AxisSet]:
    found = [varying_axes(branch, given[1:]) for branch in primitive.branches]
    return [union_axes([given[0], *outs]) for outs in zip(*found, strict=True)]


@subprogram_input_axes.register
def _(primitive: Scan, given: Sequence[AxisSet]) -> Sequence[Sequence[AxisSet]]:
    n, m = primitive.consts, primitive.carries
    consts, carry, rows = given[:n], list(given[n : n + m]), given[n + m :]

    def step(carry: list[AxisSet]) -> tuple[list[AxisSet], None]:
        outs = varying_axes(primitive.program, [*consts, *carry, *rows])
        return [a | b for a, b in zip(carry, outs, strict=False)], None

    carry, _ = fixed_point(carry, step)
    return [[*consts, *carry, *rows]]


@output_axes.register
def _(primitive: Scan, given: Sequence[AxisSet], count: int) -> Sequence[AxisSet]:
    (inside,) = subprogram_input_axes(primitive, given)  # type: ignore[misc]
    n, m = primitive.consts, primitive.carries
    return [*inside[n : n + m], *varying_axes(primitive.program, inside)[m:]]


@subprogram_input_axes.register
def _(primitive: While, given: Sequence[AxisSet]) -> Sequence[Sequence[AxisSet]]:
    m, n = primitive.condition_consts, primitive.condition_consts + primitive.body_consts

    def step(carry: list[AxisSet]) -> tuple[list[AxisSet], None]:
        (stops,) = varying_axes(primitive.condition, [*given[:m], *carry])
        outs = varying_axes(primitive.body, [*given[m:n], *carry])
        return [a | b | stops for a, b in zip(carry, outs, strict=True)], None

    carry, _ = fixed_point(list(given[n:]), step)
    return [[*given[:m], *carry], [*given[m:n], *carry]]


@output_axes.register
def _(primitive: While, given: Sequence[AxisSet], count: int) -> Sequence[AxisSet]:
    _, inside = subprogram_input_axes(primitive, given)  # type: ignore[misc]
    return inside[primitive.body_consts :]


def union_axes(sets: Sequence[AxisSet]) -> AxisSet:
    """The axes in any of `sets`."""
    return NO_AXES.union(*sets)
