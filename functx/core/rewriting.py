"""Interpretation of programs equation by equation, and the application and caching of rewrites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from functx.core.backend import backend
from functx.core.caches import clear_on_rule_change, rule_version
from functx.core.config import contextual_key
from functx.core.errors import ArgumentError
from functx.core.garbage_collection import garbage_collection
from functx.core.program import Equation, Program, Var, programs_in_parameter
from functx.core.source_info import derived_source
from functx.core.tracer import Tracer, check_no_escaped_tracers, current_builder
from functx.core.typing import ArrayLike

if TYPE_CHECKING:
    from functx.core.program import Atom
    from functx.core.source_info import Source


def interpret(
    program: Program,
    args: Iterable[Any],
    step: Callable[..., Sequence[Any]],
    constant: Callable[[Any], Any] = lambda c: c,
) -> list[Any]:
    """Interpret `program`: call `step(eqn, *operands)` for each equation; returns the outputs.

    `step` returns one value for each output of the equation. A value is a traced value, or a tuple
    that starts with one. The values of the inputs are `args`, that of a literal is
    `constant(literal)`. Must run inside a trace. Equations that `step` appends get the source of
    `eqn`, marked as derived unless they compute the values that `step` returns.
    """
    builder = current_builder.innermost()
    if builder is None:
        raise ArgumentError(
            f"interpret: a program must be interpreted inside a trace; got `{program.name}` outside of one",
            fix="Make it a rewrite, and call functx.core.rewriting.apply(rewrite, program, args).",
        )
    env: dict[Var, Any] = dict(zip(program.inputs, args, strict=True))

    def read(atom: Atom) -> Any:
        return env[atom] if type(atom) is Var else constant(Tracer(atom, builder))

    outer = builder.source
    equations: Sequence[Equation] = program.equations
    if program.has_captures:
        from functx.core.program_editing import split_captured

        captured, equations = split_captured(program)
        env.update((v, constant(builder.tracer(x))) for v, x in captured.items())
    try:
        for eqn in equations:
            builder.source = derived = derived_source(eqn.source)
            outs = step(eqn, *[read(atom) for atom in eqn.inputs])
            env.update(zip(eqn.outputs, outs, strict=True))
            if derived is not eqn.source:
                for out in outs:
                    restore_source(out if type(out) is Tracer else out[0], eqn.source, derived)
    finally:
        builder.source = outer
    return [read(atom) for atom in program.outputs]


def restore_source(x: Tracer, source: Source | None, derived: Source | None) -> None:
    """Set the source of the equation that computes `x`, if it is among the last with source `derived`."""
    for eqn in reversed(x.builder.equations):
        if eqn.source is not derived:
            return
        if x.atom in eqn.outputs:
            eqn.source = source
            return


def bind_equation(eqn: Equation, *args: ArrayLike) -> list[Tracer]:
    """Append `eqn` on other operands of the same types; its outputs."""
    return current_builder.require().copy_equation(eqn, args)


T = TypeVar("T")


class user_rule_runs:  # noqa: N801 - a count, raised by `record`
    """The number of times that rules of users ran in rewrites.

    Such a rule may read Python values that change. So the result of a rewrite that runs one is not
    cached, and the rule runs again next time.
    """

    count = 0

    @staticmethod
    def record() -> None:
        user_rule_runs.count += 1


def apply(
    rewrite: Callable[[Program], Program] | None, program: Program, args: Sequence[Any]
) -> list[Any]:
    """Apply `rewrite(program)` to `args`: inlined inside a trace, run outside one; its outputs.

    `rewrite` is a `Rewrite` or a module-level function; None stands for the identity.
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
    """`rewrite(program)`, cached on the program until rules change, unless rules of users ran."""
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
        # A program whose memo holds itself would be freed only by the garbage collector.
        memo[key] = _UNCHANGED if result is program else result
    return program if result is _UNCHANGED else result


_UNCHANGED = object()


def has_captured_values(result: object) -> bool:
    """Whether programs in the result of a rewrite have captured values; then it is not cached.

    A rule that captures variables of enclosing scopes may capture other values next time.
    """
    return any([program.has_captures for program in programs_in_parameter(result)])


def rewrite_by_structure(rewrite: Callable[[Program], T], program: Program) -> T:
    """`rewrite(program)`, cached for all programs equal to this one."""
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
