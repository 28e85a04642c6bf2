"""Which iteration of a `for` a path is in, where the loop's variable does not show it.

A `for` whose body also assigns to its variable hides its iteration: the iterator is on the stack of
the interpreter. Whether a path between two decisions begins an iteration follows from the bytecode.
"""

from __future__ import annotations

import dis
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise, takewhile
from types import CodeType
from typing import NamedTuple

Instruction = tuple[CodeType, int]
"""A code object, and the offset of an instruction in it."""

Loop = tuple[int, CodeType, int]
"""A `for`: the depth of its frame, the code, and the offset of the instruction that begins an iteration."""


class DecisionStep(NamedTuple):
    """The instructions that the user's frames run at a decision, outermost first, and its outcome."""

    instructions: tuple[Instruction, ...]
    outcome: bool | None = None


def count_iterations(
    counts: dict[Loop, int], before: DecisionStep, instructions: tuple[Instruction, ...]
) -> dict[Loop, int]:
    """The iterations of each loop that hides them, at a decision that follows `before`.

    Counts the ways between decisions on which an iteration may begin: paths with different counts may
    be in one iteration, but those in different iterations seldom have equal counts.
    """
    after = DecisionStep(instructions)
    found: dict[Loop, int] = {}
    for depth, (code, offset) in enumerate(instructions):
        for start in hiding_loops(code, offset):
            loop = depth, code, start
            count = counts.get(loop)
            found[loop] = 0 if count is None else count + may_iterate(before, after, loop)
    return found


def may_iterate(before: DecisionStep, after: DecisionStep, loop: Loop) -> bool:
    """Whether an iteration of `loop`, which is around both of two successive decisions, may begin between them."""
    depth, code, start = loop
    is_innermost = len(before.instructions) == depth + 1
    (_, first), (_, last) = before.instructions[depth], after.instructions[depth]
    return reaches(code, first, before.outcome if is_innermost else None, last, start)


@lru_cache(4096)
def reaches(code: CodeType, start: int, outcome: bool | None, end: int, loop: int) -> bool:
    """Whether a way from the instruction `start` may come to `loop` before it comes to `end`."""
    if code.co_exceptiontable:
        return True
    instructions, after = instructions_after(code)
    seen, pending = {end}, successors(instruction_at(code, start), after, outcome)
    while pending:
        offset = pending.pop()
        if offset == loop:
            return True
        if offset not in seen:
            seen.add(offset)
            pending += successors(instructions[offset], after)
    return False


@lru_cache(4096)
def instructions_after(code: CodeType) -> tuple[dict[int, dis.Instruction], dict[int, int]]:
    """The instructions by offset, and the offset that follows each."""
    instructions = {x.offset: x for x in dis.get_instructions(code)}
    return instructions, dict(pairwise(instructions))


def instruction_at(code: CodeType, offset: int) -> dis.Instruction:
    """The instruction at an offset, which may be that of a cache entry after it."""
    instructions, _ = instructions_after(code)
    while offset not in instructions:
        offset -= 2
    return instructions[offset]


def successors(
    instruction: dis.Instruction, after: dict[int, int], outcome: bool | None = None
) -> list[int]:
    """The instructions that may follow one, after which a boolean that it asks for is `outcome`."""
    name = instruction.opname
    if name.startswith(("RETURN_VALUE", "RETURN_CONST", "RAISE", "RERAISE")):
        return []
    jumps = instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs
    if jumps and "IF_" not in name and name.startswith("JUMP"):
        return [instruction.argval]
    follows = [after[instruction.offset]] if instruction.offset in after else []
    if not jumps:
        return follows
    if outcome is not None and ("IF_TRUE" in name or "IF_FALSE" in name):
        is_taken = ("IF_TRUE" in name) is outcome
        return [instruction.argval] if is_taken else follows
    return [instruction.argval, *follows]


class ForLoop(NamedTuple):
    """A `for`: the offsets of its first instruction and of the one after it, and its variables.

    Nothing else in the loop assigns to these `variables`.
    """

    start: int
    end: int
    variables: frozenset[str]


def hiding_loops(code: CodeType, offset: int) -> Iterable[int]:
    """The offsets of the `for` loops around an instruction that also assign to their variables elsewhere.

    No variable may show which iteration of these it is.
    """
    return [x.start for x in for_loops(code) if x.start <= offset < x.end and not x.variables]


@lru_cache(4096)
def loop_variables(code: CodeType, offset: int) -> frozenset[str]:
    """The variables that show the iterations of the `for` loops around an instruction."""
    around = [x.variables for x in for_loops(code) if x.start <= offset < x.end]
    return frozenset().union(*around)


@lru_cache(4096)
def for_loops(code: CodeType) -> list[ForLoop]:
    """The `for` loops of a function."""
    instructions = [*dis.get_instructions(code)]
    found = []
    for i, each in enumerate(instructions):
        if each.opname != "FOR_ITER":
            continue
        variables = set[str]()
        for x in takewhile(
            lambda x: x.opname.startswith(("STORE", "UNPACK")), instructions[i + 1 :]
        ):
            variables.update(stored_names(x))
            if "LOAD" in x.opname:
                break
        inside = [x for x in instructions if each.offset < x.offset < each.argval]
        stores = Counter([name for x in inside for name in stored_names(x)])
        shown = frozenset([name for name in variables if stores[name] == 1])
        found.append(ForLoop(each.offset, each.argval, shown))
    return found


def stored_names(instruction: dis.Instruction) -> list[str]:
    """The variables that an instruction assigns to."""
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    count = instruction.opname.count("STORE_")
    return [*names[:count]] if count and "SUBSCR" not in instruction.opname else []
