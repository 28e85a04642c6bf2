"""Comparisons of traced booleans with `True` and `False` by identity: `flag is True`, `case True`.

No traced array is the object `True`, and Python calls no method when it compares identities. Before such a
comparison runs, traced booleans among its operands are decided, and the outcomes take their places on the stack of
the interpreter.
"""

from __future__ import annotations

import ctypes
import dis
import sys
from functools import lru_cache
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

import numpy as np

from functx.core.errors import IdentityTestError
from functx.core.source_info import USER_CODE, file_owner, frame_source
from functx.core.tracer import Tracer
from functx.transforms.explore.iterations import instructions_after, successors


@lru_cache(4096)
def identity_tests(code: CodeType) -> dict[int, int]:
    """The offset of each comparison by identity in a function, and the height of the stack there.

    Comparisons with constants that are no booleans, such as `x is None`, are left out.
    """
    tests = [
        each.offset
        for before, each in pairwise(dis.get_instructions(code))
        if each.opname == "IS_OP"
        and not (before.opname == "LOAD_CONST" and type(before.argval) is not bool)
    ]
    heights = stack_heights(code) if tests else {}
    return {at: heights[at] for at in tests if at in heights}


def stack_heights(code: CodeType) -> dict[int, int]:
    """The number of values on the stack before each instruction that can be reached."""
    instructions, after = instructions_after(code)
    heights: dict[int, int] = {}
    pending = [(min(instructions), 0)]
    # The handlers of a block begin with the height that its table says, and the exception.
    for entry in dis.Bytecode(code).exception_entries:  # type: ignore[attr-defined]
        pending.append((entry.target, entry.depth + 1 + entry.lasti))
    while pending:
        at, height = pending.pop()
        if at in heights:
            continue
        heights[at] = height
        each = instructions[at]
        jumps = each.opcode in dis.hasjrel or each.opcode in dis.hasjabs
        for to in successors(each, after):
            change = dis.stack_effect(each.opcode, each.arg, jump=jumps and to != after.get(at))
            # A generator begins with a value that is sent to it.
            pending.append((to, 1 if each.opname == "RETURN_GENERATOR" else height + change))
    return heights


def decide_identity_test(frame: FrameType) -> None:
    """Decide the traced booleans that a frame is about to compare with another boolean.

    Raises IdentityTestError where it is not known how Python keeps them.
    """
    if not is_layout_known():
        check_plain_flag(frame)
        return
    left, right = uppermost_operands(frame)
    if left.value is not right.value and is_boolean(left.value) and is_boolean(right.value):
        for operand in (left, right):
            replace(operand, bool(operand.value))


def is_boolean(x: object) -> bool:
    """Whether a value is a boolean of Python, or a traced scalar that stands for one."""
    return type(x) is bool or (type(x) is Tracer and x.dtype == np.bool_ and not x.shape)


def uppermost_operands(frame: FrameType) -> list[Any]:
    """The two uppermost places on the stack of a frame that reports an event, as `ctypes.py_object`.

    The frame object points to a structure of eight pointers, two numbers, the variables of the function, and
    the stack.
    """
    code = frame.f_code
    names = dict.fromkeys([*code.co_varnames, *code.co_cellvars])
    height = len(names) + len(code.co_freevars) + identity_tests(code)[frame.f_lasti]
    start = ctypes.c_size_t.from_address(id(frame) + object.__basicsize__ + _POINTER).value
    end = start + (9 + height) * _POINTER
    return [ctypes.py_object.from_address(end - n * _POINTER) for n in (2, 1)]


def replace(operand: Any, outcome: bool) -> None:
    """Put a boolean in the place of an operand, which owns a reference to its value."""
    before = operand.value
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(outcome))
    operand.value = outcome
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(before))


_POINTER = 8
"""The bytes of a pointer."""
_LOADS_OF_VARIABLES = "LOAD_FAST", "LOAD_DEREF", "LOAD_NAME", "LOAD_GLOBAL"


@lru_cache(1)
def is_layout_known() -> bool:
    """Whether frames lie in memory as `uppermost_operands` reads them, as they do in CPython 3.11 to 3.13."""
    # On Windows there are no `abiflags`.
    is_free_threaded = "t" in getattr(sys, "abiflags", "")
    is_cpython = sys.implementation.name == "cpython" and not is_free_threaded
    is_known = is_cpython and (3, 11) <= sys.version_info[:2] <= (3, 13)
    return is_known and ctypes.sizeof(ctypes.c_void_p) == _POINTER


def check_plain_flag(frame: FrameType) -> None:
    """Raise IdentityTestError unless a comparison is that of a variable whose value is not traced.

    Installed packages compare many other objects: there, only comparisons with `True` and `False` count.
    """
    before = [x for x in dis.get_instructions(frame.f_code) if x.offset < frame.f_lasti]
    is_users = file_owner[frame.f_code.co_filename] is USER_CODE
    if before[-1].opname != "LOAD_CONST" and not is_users:
        return
    name = before[-2].argval if before[-2].opname.startswith(_LOADS_OF_VARIABLES) else None
    name = name[-1] if isinstance(name, tuple) else name
    variables = {**frame.f_globals, **frame.f_locals}
    if name not in variables or type(variables[name]) is Tracer:
        raise IdentityTestError(
            "explore: Python must not compare a traced boolean with `True` or `False` by identity where "
            "explore does not know how Python keeps its operands, as it does for CPython 3.11 to 3.13; got "
            f"{sys.implementation.name} {sys.version.split()[0]}",
            fix="Write `if flag` or `flag == True` in place of `flag is True` and `case True`.",
            source=frame_source(frame),
        )
