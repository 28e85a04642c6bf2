"""The loop that every transform shares: walk a program, give each equation a meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, overload

from functx.core.backend import backend
from functx.core.caches import clear_on_rule_change, rule_version
from functx.core.config import contextual_key
from functx.core.errors import ArgumentError
from functx.core.garbage_collection import garbage_collection
from functx.core.program import Equation, Program, Var, programs_in_parameter
from functx.core.source_info import derived_source
from functx.core.tracer import Tracer, check_no_escaped_tracers, current_builder


def interpret(
    program: Program,
    args: Iterable[Any],
    step: Callable[..., Sequence[Any]],
    constant: Callable[[Any], Any] = lambda c: c,
) -> list[Any]:
    """The outputs of `program`, when each equation means `step(eqn, *operands)`.

    `step` returns one value an output. Values are whatever the transform makes of an array:
    `args` for the inputs, `constant(literal)` for literals: a traced value, or a tuple that
    starts with one. Runs inside a trace, and gives what is bound while an equation is at
    work the source of that equation, marked as derived except for its own outputs.
    """
    builder = current_builder.innermost()
    if builder is None:
        raise ArgumentError(
            f"interpret: a program is walked inside a trace, to which its steps add; got "
            f"`{program.name}` outside of one",
            fix="Make it a rewrite, and call functx.core.rewriting.apply(rewrite, program, args).",
        )
    env: dict[Var, Any] = dict(zip(program.inputs, args, strict=True))

    def read(atom: Any) -> Any:
        return env[atom] if type(atom) is Var else constant(Tracer(atom, builder))

    outer = builder.source
    equations: Sequence[Equation] = program.equations
    if program.has_captures:
        from functx.core.program_editing import split_captured

        captured, equations = split_captured(program)
        env.update((v, constant(builder.tracer(x))) for v, x in captured.items())
    try:
        for eqn in equations:
            builder.source = mark = derived_source(eqn.source)
            outs = step(eqn, *[read(atom) for atom in eqn.inputs])
            env.update(zip(eqn.outputs, outs, strict=True))
            if mark is not eqn.source:
                for out in outs:
                    restore_source(out if type(out) is Tracer else out[0], eqn.source, mark)
    finally:
        builder.source = outer
    return [read(atom) for atom in program.outputs]


def restore_source(x: Tracer, source: Any, mark: Any) -> None:
    """Give the equation of `x` the plain `source`, if it is one of the last, marked `mark`."""
    for eqn in reversed(x.builder.equations):
        if eqn.source is not mark:
            return
        if x.atom in eqn.outputs:
            eqn.source = source
            return


def bind_equation(eqn: Equation, *args: Any) -> list[Tracer]:
    """The plain meaning of an equation: itself, on other operands of the same types."""
    builder = current_builder.require()
    return builder.copy_equation(eqn, args)


T = TypeVar("T")


class user_rule_runs:  # noqa: N801 - a count, raised by `ran`
    """How often a rule of a user's ran in a rewrite.

    Such a rule may read numbers and arrays that change. So a rewrite that runs one is not
    remembered, and the rule runs again the next time.
    """

    count = 0

    @staticmethod
    def record() -> None:
        user_rule_runs.count += 1


def apply(
    rewrite: Callable[[Program], Program] | None, program: Program, args: Sequence[Any]
) -> list[Any]:
    """`rewrite(program)` applied to `args`: inlined in a trace, run outside one.

    `rewrite` is a `Rewrite`, or a function of a module.
    """
    builder = current_builder.get()
    if builder is None:
        check_no_escaped_tracers(args)
        return backend.run(rewrite, program, args)
    emit = getattr(rewrite, "emit", None)
    with garbage_collection.paused():
        if rewrite is not None:
            program = backend.outline_repeats(program)
        if emit is None:
            return builder.inline(cached_rewrite(rewrite, program), args)
        outs: list[Any] = emit(program, *[Tracer(builder.atom(x), builder) for x in args])
        return outs


@overload
def cached_rewrite(rewrite: None, program: Program) -> Program: ...
@overload
def cached_rewrite(rewrite: Callable[[Program], T], program: Program) -> T: ...
@overload
def cached_rewrite(rewrite: Callable[[Program], T] | None, program: Program) -> T | Program: ...
def cached_rewrite(rewrite: Callable[[Program], Any] | None, program: Program) -> Any:
    """`rewrite(program)`, remembered on the program till rules change; see also `user_rule_runs`."""
    if rewrite is None:
        return program
    if program.rule_version != rule_version.count:
        program.rule_version, program.memo = rule_version.count, {}
    memo = program.memo
    key = contextual_key(rewrite)
    result = memo.get(key)
    if result is None:
        count = user_rule_runs.count
        result = rewrite(program)
        if user_rule_runs.count != count or has_captured_values(result):
            return result
        if len(memo) >= 512:
            memo.clear()
        # A program that held itself would stay until a collection.
        memo[key] = _UNCHANGED if result is program else result
    return program if result is _UNCHANGED else result


_UNCHANGED = object()


def has_captured_values(result: Any) -> bool:
    """Whether a rule captured something in a rewrite, which then is not remembered.

    What the rule finds in the scopes around it may be another value the next time.
    """
    return any([program.has_captures for program in programs_in_parameter(result)])


def rewrite_by_structure(rewrite: Callable[[Program], T], program: Program) -> T:
    """`rewrite(program)`, remembered for all programs that equal this one."""
    key = contextual_key((rewrite, program.key))
    result: T | None = _rewrites_by_structure.get(key)
    if result is None:
        if len(_rewrites_by_structure) >= 1024:
            _rewrites_by_structure.clear()
        count = user_rule_runs.count
        with garbage_collection.paused():
            result = rewrite(program)
        if user_rule_runs.count == count and not has_captured_values(result):
            _rewrites_by_structure[key] = result
    return result


_rewrites_by_structure: dict[Any, Any] = {}
clear_on_rule_change(_rewrites_by_structure.clear)
