"""Arrays that the rules of a rewrite capture: equations of its result, then operands again.

A rewrite runs rules that users wrote, and such a rule may use an array, or a traced value, of the
scope that it was defined in. A rewritten program has an equation `captured` for each of them. Where
the program is inlined or run, the values of these equations are passed to it as arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from functx.core.avals import ShapedArray
from functx.core.editing import replace_program_fields
from functx.core.errors import EscapedTracerError
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Program, Var, subprograms
from functx.core.tracing import Tracer, aval_of, backend, bind, current_builder


class IdentityRef:
    """An object that equals itself alone, whatever its `==` says."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityRef) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return repr(aval_of(self.value))


class Captured(Primitive, abstract=True):
    """A captured array or traced value, held by identity in `box`; an equation without operands."""

    box: Any
    differentiable = False
    has_captures = True
    name = "captured"

    def abstract_eval(self) -> ShapedArray:
        return aval_of(self.box.value)

    def lower(self, ctx: Any) -> Any:
        # Reached inside of programs of a primitive without `hoist` alone.
        value = None if type(self.box.value) is Tracer else backend.concrete_or_none(self.box.value)
        if value is None:
            raise EscapedTracerError(
                "a rule that captures a traced value must not be inside of a primitive that cannot "
                f"pass it on; got {self.box!r}",
                fix="Pass the value as an argument, or give the primitive a `hoist` method.",
            )
        return ctx.dense(np.asarray(value, self.abstract_eval().dtype))


def close_over(program: Program, values: Sequence[Any]) -> Program:
    """`program` with its last inputs, which stand for the captured `values`, as equations."""
    count = len(program.inputs) - len(values)
    captured = [
        Equation(Captured(IdentityRef(x)), [], [v], None)
        for x, v in zip(values, program.inputs[count:], strict=True)
    ]
    equations = [*captured, *program.equations]
    return replace_program_fields(program, inputs=program.inputs[:count], equations=equations)


def split_captured(program: Program) -> tuple[dict[Var, Any], list[Equation]]:
    """The captured value of each variable that stands for one, and the remaining equations."""
    captured: dict[Var, Any] = {}
    rest = []
    for eqn in program.equations:
        if type(eqn.primitive) is Captured:
            captured[eqn.outputs[0]] = eqn.primitive.box.value
        else:
            rest.append(eqn)
    return captured, rest


def hoist_captures(program: Program) -> tuple[Program, list[Any]]:
    """`program` with captured values, at any depth, as its last inputs; and those values.

    A primitive with sub-programs but without `hoist` keeps their captured values.
    """
    if not program.has_captures:
        return program, []
    found: dict[Captured, Var] = {}
    equations, outputs = _hoist_into(program, found)
    inputs = [*program.inputs, *found.values()]
    values = [captured.box.value for captured in found]
    return replace_program_fields(
        program, inputs=inputs, equations=equations, outputs=outputs
    ), values


def bind_with_captures(primitive: Primitive, args: Sequence[Any]) -> Any:
    """`primitive(*args)`, with the values that its sub-programs captured as further operands."""
    builder = current_builder.get()
    if primitive.hoist_constants is None or builder is None:
        return bind(primitive, args)
    programs, captured = _hoist_from_subprograms(primitive)
    extras = [[builder.tracer(each.box.value) for each in own] for own in captured]
    primitive, operands = primitive.hoist_constants(programs, extras, args)
    return bind(primitive, operands)


def _hoist_into(program: Program, found: dict[Captured, Var]) -> tuple[list[Equation], list[Atom]]:
    """The equations and outputs of `program` with the variables in `found`, which grows, for those captured."""
    env: dict[Any, Any] = {}
    equations = []

    def place(primitive: Any) -> Var:
        if primitive not in found:
            found[primitive] = Var(primitive.abstract_eval())
        return found[primitive]

    for eqn in program.equations:
        primitive = eqn.primitive
        inputs: Sequence[Any] = [env.get(a, a) for a in eqn.inputs]
        if type(primitive) is Captured:
            env[eqn.outputs[0]] = place(primitive)
            continue
        if primitive.has_captures and primitive.hoist_constants is not None:
            programs, captured = _hoist_from_subprograms(primitive)
            extras = [[place(each) for each in own] for own in captured]
            primitive, inputs = primitive.hoist_constants(programs, extras, inputs)
        equations.append(eqn.replace(primitive=primitive, inputs=list(inputs)))
    return equations, [env.get(a, a) for a in program.outputs]


def _hoist_from_subprograms(primitive: Primitive) -> tuple[list[Program], list[list[Captured]]]:
    """The sub-programs of `primitive` with captured values as first inputs; and those values."""
    programs, captured = [], []
    for sub in subprograms(primitive):
        found: dict[Captured, Var] = {}
        equations, outputs = _hoist_into(sub, found)
        inputs = [*found.values(), *sub.inputs]
        programs.append(Program(sub.name, inputs, equations, outputs))
        captured.append(list(found))
    return programs, captured
