"""Values that rules capture: `captured` equations, and their hoisting out of sub-programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import numpy as np
from typing_extensions import TypeIs, TypeVar

from functx.core.backend import backend
from functx.core.binding import bind
from functx.core.caches import IdentityKey
from functx.core.errors import EscapedTracerError
from functx.core.memory_layouts import noncontiguous_strides
from functx.core.primitive import Primitive
from functx.core.primitive_families import HasNewStrides, HasPrograms
from functx.core.program import Atom, Equation, Program, Var, subprograms
from functx.core.program_editing import replace_program_fields
from functx.core.strides import MemoryOrder, Strides, row_major_strides
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.types import ShapedArray
from functx.core.typing import ArrayLike, IRValue, Value

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


HoistedT = TypeVar("HoistedT", bound=Primitive)


class CapturedValue(IdentityKey):
    """A captured value, compared by identity and printed as its aval."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(aval_of(self.value))


class Captured(HasNewStrides, abstract=True):
    """An operation without operands whose output is a captured array or traced value, held in `box`."""

    box: CapturedValue
    differentiable = False
    has_captures = True
    name = "captured"

    @property
    def memory_order(self) -> MemoryOrder:  # type: ignore[override]
        value = self.box.value
        if isinstance(value, np.ndarray) and noncontiguous_strides(value):
            return MemoryOrder.REARRANGED
        return MemoryOrder.ROW_MAJOR

    def new_strides(
        self, avals: Sequence[ShapedArray], strides: Sequence[Strides], shape: tuple[int, ...]
    ) -> Strides:
        value: Any = self.box.value
        return noncontiguous_strides(value) or row_major_strides(shape)

    def abstract_eval(self) -> ShapedArray:
        return aval_of(self.box.value)

    def lower(self, ctx: LoweringContext) -> IRValue:
        # Reached only in sub-programs of a primitive that is not a `HasPrograms`.
        value = None if type(self.box.value) is Tracer else backend.concrete_or_none(self.box.value)
        if value is None:
            raise EscapedTracerError(
                "a rule that captures a traced value must not be inside of a primitive that cannot "
                f"pass it on; got {self.box!r}",
                fix="Pass the value as an argument, or derive the primitive from `HasPrograms`.",
            )
        return ctx.dense(np.asarray(value, self.abstract_eval().dtype))


def close_over(program: Program, values: Sequence[ArrayLike]) -> Program:
    """`program` with `captured` equations in place of its last inputs, which stand for `values`."""
    count = len(program.inputs) - len(values)
    captured = [
        Equation(Captured(CapturedValue(x)), [], [v], None)
        for x, v in zip(values, program.inputs[count:], strict=True)
    ]
    equations = [*captured, *program.equations]
    return replace_program_fields(program, inputs=program.inputs[:count], equations=equations)


def split_captured(program: Program) -> tuple[dict[Var, Any], list[Equation]]:
    """The values of the `captured` equations by their variables, and all other equations."""
    captured: dict[Var, object] = {}
    equations = []
    for eqn in program.equations:
        if type(eqn.primitive) is Captured:
            captured[eqn.outputs[0]] = eqn.primitive.box.value
        else:
            equations.append(eqn)
    return captured, equations


def hoist_captures(program: Program) -> tuple[Program, list[Any]]:
    """`program` with inputs in place of its `captured` equations, at any depth; and their values.

    The new inputs are the last. A primitive with sub-programs that is not a `HasPrograms` keeps
    their captured values.
    """
    if not program.has_captures:
        return program, []
    hoisted: dict[Captured, Var] = {}
    equations, outputs = _CAPTURES.hoist_into(program, hoisted)
    inputs = [*program.inputs, *hoisted.values()]
    values = [captured.box.value for captured in hoisted]
    return replace_program_fields(
        program, inputs=inputs, equations=equations, outputs=outputs
    ), values


def bind_with_captures(primitive: HasPrograms, args: Sequence[Any]) -> list[Value]:
    """`primitive(*args)`, with the captured values of its sub-programs as further operands."""
    builder = current_builder.get()
    if builder is None:
        return bind(primitive, args)
    programs, captured = _CAPTURES.hoist_from_subprograms(primitive)
    extras = [[builder.tracer(each.box.value) for each in values] for values in captured]
    return bind(*primitive.hoist_constants(programs, extras, args))


class Hoisting(NamedTuple, Generic[HoistedT]):
    """Replaces equations by inputs: those of operations without operands that satisfy `is_hoisted`.

    `contains_hoisted` says whether the sub-programs of an operation have such equations.
    """

    is_hoisted: Callable[[Primitive], TypeIs[HoistedT]]
    contains_hoisted: Callable[[Primitive], bool]

    def hoist_into(
        self, program: Program, hoisted: dict[HoistedT, Var]
    ) -> tuple[list[Equation], list[Atom]]:
        """The other equations and the outputs of `program`; the variables are added to `hoisted`."""
        env: dict[Atom, Atom] = {}
        equations = []
        for eqn in program.equations:
            primitive = eqn.primitive
            inputs: Sequence[Atom] = [env.get(a, a) for a in eqn.inputs]
            if self.is_hoisted(primitive):
                (out,) = eqn.outputs
                env[out] = hoisted.setdefault(primitive, Var(out.aval))
                continue
            if isinstance(primitive, HasPrograms) and self.contains_hoisted(primitive):
                programs, operations = self.hoist_from_subprograms(primitive)
                extras = [
                    [
                        hoisted.setdefault(each, Var(v.aval))
                        for each, v in zip(own, p.inputs, strict=False)
                    ]
                    for own, p in zip(operations, programs, strict=True)
                ]
                primitive, inputs = primitive.hoist_constants(programs, extras, inputs)
            equations.append(eqn.replace(primitive=primitive, inputs=list(inputs)))
        return equations, [env.get(a, a) for a in program.outputs]

    def hoist_from_subprograms(
        self, primitive: Primitive
    ) -> tuple[list[Program], list[list[HoistedT]]]:
        """The sub-programs of `primitive` with the hoisted values as first inputs; their operations."""
        programs, operations = [], []
        for subprogram in subprograms(primitive):
            hoisted: dict[HoistedT, Var] = {}
            equations, outputs = self.hoist_into(subprogram, hoisted)
            inputs = [*hoisted.values(), *subprogram.inputs]
            programs.append(Program(subprogram.name, inputs, equations, outputs))
            operations.append(list(hoisted))
        return programs, operations


def _is_captured(primitive: Primitive) -> TypeIs[Captured]:
    return type(primitive) is Captured


_CAPTURES = Hoisting(_is_captured, lambda primitive: primitive.has_captures)
