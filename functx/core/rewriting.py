"""Rewrites of programs: applied to values, and remembered for programs that they met before."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, overload

from functx.core.config import in_context
from functx.core.program import Program, programs_in
from functx.core.registrations import forgotten_with_rules, registrations
from functx.core.tracing import Tracer, check_no_tracers, current_builder, execution

T = TypeVar("T")


class user_rules:  # noqa: N801 - a count, raised by `ran`
    """How often a rule of a user's ran in a rewrite.

    Such a rule may read numbers and arrays that change. So a rewrite that runs one is not
    remembered, and the rule runs again the next time.
    """

    count = 0

    @staticmethod
    def ran() -> None:
        user_rules.count += 1


@contextmanager
def collection_paused() -> Iterator[None]:
    """No cyclic garbage collection: rewrites make many objects and no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def apply(
    rewrite: Callable[[Program], Program] | None, program: Program, args: Sequence[Any]
) -> list[Any]:
    """`rewrite(program)` applied to `args`: inlined in a trace, run outside one.

    `rewrite` is a `Rewrite`, or a function of a module.
    """
    builder = current_builder.get()
    if builder is None:
        check_no_tracers(args)
        return execution.run(rewrite, program, args)
    emit = getattr(rewrite, "emit", None)
    with collection_paused():
        if rewrite is not None:
            program = execution.outlined(program)
        if emit is None:
            return builder.inline(rewritten(rewrite, program), args)
        outs: list[Any] = emit(program, *[Tracer(builder.atom(x), builder) for x in args])
        return outs


@overload
def rewritten(rewrite: None, program: Program) -> Program: ...
@overload
def rewritten(rewrite: Callable[[Program], T], program: Program) -> T: ...
@overload
def rewritten(rewrite: Callable[[Program], T] | None, program: Program) -> T | Program: ...
def rewritten(rewrite: Callable[[Program], Any] | None, program: Program) -> Any:
    """`rewrite(program)`, remembered on the program till rules change; see also `user_rules`."""
    if rewrite is None:
        return program
    if program.rules != registrations.count:
        program.rules, program.memo = registrations.count, {}
    memo = program.memo
    key = in_context(rewrite)
    result = memo.get(key)
    if result is None:
        count = user_rules.count
        result = rewrite(program)
        if user_rules.count != count or captured_in(result):
            return result
        if len(memo) >= 512:
            memo.clear()
        # A program that held itself would stay until a collection.
        memo[key] = _ITSELF if result is program else result
    return program if result is _ITSELF else result


_ITSELF = object()


def captured_in(result: Any) -> bool:
    """Whether a rule captured something in a rewrite, which then is not remembered.

    What the rule finds in the scopes around it may be another value the next time.
    """
    return any([program.captures for program in programs_in(result)])


def rewritten_alike(rewrite: Callable[[Program], T], program: Program) -> T:
    """`rewrite(program)`, remembered for all programs that equal this one."""
    key = in_context((rewrite, program.key))
    result: T | None = _rewritten.get(key)
    if result is None:
        if len(_rewritten) >= 1024:
            _rewritten.clear()
        count = user_rules.count
        with collection_paused():
            result = rewrite(program)
        if user_rules.count == count and not captured_in(result):
            _rewritten[key] = result
    return result


_rewritten: dict[Any, Any] = {}
forgotten_with_rules(_rewritten.clear)
