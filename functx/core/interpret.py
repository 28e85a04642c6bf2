"""The loop that every transform shares: walk a program, give each equation a meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from functx.core.errors import ArgumentError
from functx.core.program import Equation, Program, Var
from functx.core.provenance import derived_source
from functx.core.tracing import Tracer, current_builder


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
        from functx.core.captures import split_captured

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
