"""Operations whose sub-programs take further values first and return them first, as a state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.program_editing import replace_program_fields
from functx.transforms.call_primitive import ProgramCall
from functx.transforms.control.cond import Cond
from functx.transforms.control.scan import Scan
from functx.transforms.control.while_loop import While

Item = TypeVar("Item")


def thread_state(
    primitive: Primitive, thread: Callable[[Program], Program], count: int
) -> tuple[Primitive, int] | None:
    """The operation with `count` values of a state before its outputs; the number of operands before them.

    `thread` gives the sub-programs that take the state before their inputs and return it before their
    outputs. The condition of a loop leaves it as it is. None for an operation that passes no state on.
    """
    if isinstance(primitive, ProgramCall):
        return primitive.with_program(thread(primitive.program)), 0
    if isinstance(primitive, Cond):
        return Cond(tuple([thread(b) for b in primitive.branches])), 1
    if isinstance(primitive, Scan):
        first = primitive.consts
        body = _move_inputs(thread(primitive.program), count, first)
        return primitive.with_program(body, first, primitive.carries + count), first
    if isinstance(primitive, While):
        m, n = primitive.condition_consts, primitive.body_consts
        body = _move_inputs(thread(primitive.body), count, n)
        condition = thread(primitive.condition)
        condition = replace_program_fields(condition, outputs=condition.outputs[count:])
        return primitive.with_program(_move_inputs(condition, count, m), body, m, n), m + n
    return None


def move_first(items: Sequence[Item], count: int, end: int) -> list[Item]:
    """`items` with the first `count` of them behind the others, up to `end`."""
    return [*items[count:end], *items[:count], *items[end:]]


def _move_inputs(program: Program, count: int, place: int) -> Program:
    """`program` with its first `count` inputs behind the `place` ones that follow them."""
    return replace_program_fields(program, inputs=move_first(program.inputs, count, count + place))
