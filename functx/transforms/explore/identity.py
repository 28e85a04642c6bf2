"""Comparisons whose results Python code compares with `True` or `False` by identity: `is True`, `case True`.

No traced array is the object `True`. A comparison that flows into such an expression is decided where it is
made, so that its result is a boolean of Python. Where it flows to follows from the bytecode.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FrameType
from typing import NamedTuple

from functx.transforms.explore.iterations import (
    instruction_at,
    instructions_after,
    stored_names,
    successors,
)


class Uses(NamedTuple):
    """The uses of the value that an instruction pushes: by identity, by storing it, by returning it."""

    is_compared: bool
    variables: frozenset[str]
    is_returned: bool


def is_compared_by_identity(
    frame: FrameType | None, is_user_frame: Callable[[FrameType], bool]
) -> bool:
    """Whether the value that a frame computes at its current instruction may be compared with `True` by identity."""
    while frame is not None and is_user_frame(frame):
        uses = uses_of_value(frame.f_code, frame.f_lasti)
        if uses.is_compared or not uses.variables.isdisjoint(compared_variables(frame.f_code)):
            return True
        if not uses.is_returned:
            return False
        frame = frame.f_back
    return False


@lru_cache(4096)
def uses_of_value(code: CodeType, offset: int) -> Uses:
    """The uses of the value that the instruction at `offset` pushes, as long as no other work is done with it."""
    instructions, after = instructions_after(code)
    is_compared = is_returned = False
    variables: set[str] = set()
    seen, pending = set[int](), successors(instruction_at(code, offset), after)
    while pending:
        at = pending.pop()
        if at in seen:
            continue
        seen.add(at)
        each = instructions[at]
        is_compared |= compares_with_bool(code, at) or (
            # A `match` of a tuple compares its elements.
            each.opname == "BUILD_TUPLE"
            and any([compares_with_bool(code, x) for x in instructions])
        )
        is_returned |= each.opname == "RETURN_VALUE"
        if each.opname.startswith(_STORES_OF_VARIABLES):
            variables.update(stored_names(each))
        keeps_copy = each.opname.startswith("STORE_") and copies_value(instructions.get(at - 2))
        if each.opname.startswith(_WAYS_OF_VALUE) or keeps_copy:
            pending += successors(each, after)
    return Uses(is_compared, frozenset(variables), is_returned)


def compares_with_bool(code: CodeType, offset: int) -> bool:
    """Whether an instruction loads `True` or `False` for a comparison by identity."""
    instructions, after = instructions_after(code)
    each, following = instructions[offset], instructions.get(after.get(offset, -1))
    is_bool = each.opname == "LOAD_CONST" and type(each.argval) is bool
    return is_bool and following is not None and following.opname == "IS_OP"


def copies_value(instruction: dis.Instruction | None) -> bool:
    """Whether an instruction copies a value, as that before the store of `(name := value)` does."""
    return instruction is not None and instruction.opname == "COPY"


@lru_cache(4096)
def compared_variables(code: CodeType) -> frozenset[str]:
    """The variables that a function, or one within it, compares by identity with `True` or `False`."""
    instructions, _ = instructions_after(code)
    loads = [(x.offset, loaded_name(x)) for x in instructions.values()]
    found = [name for at, name in loads if name and uses_of_value(code, at).is_compared]
    inner = [compared_variables(c) for c in code.co_consts if isinstance(c, CodeType)]
    return frozenset(found).union(*inner)


def loaded_name(instruction: dis.Instruction) -> str | None:
    """The variable whose value an instruction pushes, the last one of two; None for other instructions."""
    if not instruction.opname.endswith(_LOADS_OF_VARIABLES):
        return None
    names = instruction.argval
    return str(names[-1] if isinstance(names, tuple) else names)


_STORES_OF_VARIABLES = "STORE_FAST", "STORE_DEREF", "STORE_NAME", "STORE_GLOBAL"
_LOADS_OF_VARIABLES = "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_DEREF", "LOAD_NAME", "LOAD_GLOBAL"
_WAYS_OF_VALUE = (
    *_LOADS_OF_VARIABLES,
    "LOAD_CONST",
    "COPY",
    "SWAP",
    "IS_OP",
    "COMPARE_OP",
    "NOP",
    "POP_JUMP",
    "JUMP",
)
