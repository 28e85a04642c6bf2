"""Programs in which the order of effects is plain: effect tokens go from each effect to the next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from functx.core.checking import check_program_argument
from functx.core.effects import Effect, Effects
from functx.core.errors import ArgumentError, MissingTokenError, type_name
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Program, Var
from functx.ops.effect_tokens import TOKEN, WithEffects
from functx.passes.partition import Partition
from functx.transforms.control.state_threading import move_first, thread_state
from functx.transforms.control.while_loop import While

T = TypeVar("T", Program, Partition)


def token_kinds(program: Program) -> tuple[Effect, ...]:
    """The kinds of effects that need tokens, in the order in which they are first met.

    These are the ordered ones: unordered callbacks, progress bars and writes have no tokens.

    >>> import functx
    >>> def f(x):
    ...     functx.debug.print("{}", x, ordered=True)
    ...     return x
    >>> functx.aot.token_kinds(functx.make_ir(f)(1.0))
    (ordered,)
    """
    check_program_argument("token_kinds", program)
    met: dict[Effect, None] = {}
    for eqn in program.equations:
        met.update(dict.fromkeys(ordered_kinds(eqn.primitive.effects)))
    return tuple(met)


def ordered_kinds(effects: Effects) -> list[Effect]:
    """The ordered ones of `effects`, by name."""
    return sorted([e for e in effects if e.is_ordered], key=lambda effect: effect.name)


def with_tokens(program: T, kinds: Iterable[Effect] | None = None) -> T:
    """`program`, or both programs of a partition, with the order of effects made plain by tokens.

    Each equation with an ordered effect becomes `with_effects`, which takes a token and returns a new
    one before its results; calls, loops and branches take and return tokens themselves. Each kind of
    effect has a chain of its own. A token is an empty array of booleans. Those of a program are its
    first inputs and its first outputs, one for each of `kinds`, by default for `token_kinds(program)`.
    The backward program of a partition has chains of its own: its tokens are its last inputs, behind
    the saved values and the tangents, and its last outputs, behind the gradients.

    The result takes and returns a flat list of arrays. It computes what `program` does, with the same
    effects: when it is run, the order that the equations have anyway replaces the tokens.

    Raises MissingTokenError, with the operation and the kind, for an effect that is not among `kinds`,
    and ArgumentError for a program with tokens.

    >>> import functx, numpy
    >>> def f(x):
    ...     functx.debug.print("{}", x, ordered=True)
    ...     return x
    >>> program = functx.aot.with_tokens(functx.make_ir(f)(1.0))
    >>> [v.aval for v in program.inputs], [e.primitive.name for e in program]
    ([bool[0], ~f32[]], ['with_effects'])
    >>> token, out = program(numpy.zeros(0, bool), 2.0)
    2.0
    """
    if isinstance(program, Partition):
        kinds = kinds if kinds is None else tuple(kinds)
        forward = _add_tokens(program.forward, kinds)
        backward = _add_tokens(program.backward, kinds, last=True)
        return replace(
            program,
            forward=forward,
            backward=backward,
            num_forward_tokens=len(forward.inputs) - len(program.forward.inputs),
            num_backward_tokens=len(backward.inputs) - len(program.backward.inputs),
        )
    check_program_argument("with_tokens", program)
    return _add_tokens(program, kinds)


def _add_tokens(program: Program, kinds: Iterable[Effect] | None, last: bool = False) -> Program:
    """`program` with tokens as first, or as last, inputs and outputs."""
    label = f"with_tokens({program.name})"
    if any([type(eqn.primitive) is WithEffects for each in program.walk() for eqn in each]):
        raise ArgumentError(
            f"{label}: the program must have no tokens; got one that has some",
            fix="Use it as it is.",
        )
    chosen = token_kinds(program) if kinds is None else _check_kinds(label, kinds)
    count = len(chosen)
    if not count:
        return program
    threaded = TokenThreading().thread(program, chosen)
    inputs, outputs = threaded.inputs, threaded.outputs
    names = program.input_names()
    if names is not None:
        names = [*(f"{kind.name}_token" if count > 1 else "token" for kind in chosen), *names]
    if last:
        # Captured values stay behind all other inputs.
        end = len(inputs) - len(program.captured)
        inputs = move_first(inputs, count, end)
        outputs = move_first(outputs, count, len(outputs))
        names = None if names is None else move_first(names, count, end)
    return Program(
        program.name,
        inputs,
        threaded.equations,
        outputs,
        in_names=None if names is None else partial(list, names),
        captured=program.captured,
    )


def _check_kinds(label: str, kinds: Iterable[Effect]) -> tuple[Effect, ...]:
    """`kinds`, each once; ArgumentError unless they are ordered effects."""
    chosen = tuple(dict.fromkeys(kinds))
    for kind in chosen:
        if not isinstance(kind, Effect) or not kind.is_ordered:
            got = repr(kind) if isinstance(kind, Effect) else f"{type_name(kind)} {kind!r}"
            raise ArgumentError(
                f"{label}: kinds must be ordered effects; got {got}",
                fix="Pass functx.effects.ORDERED, or kinds of your own.",
            )
    return chosen


class TokenThreading:
    """The rewrite of programs to ones that take and return tokens first; each is rewritten once."""

    def __init__(self) -> None:
        self.threaded: dict[tuple[Program, tuple[Effect, ...]], Program] = {}

    def thread(self, program: Program, kinds: Sequence[Effect]) -> Program:
        """`program` with a token for each of `kinds` before its inputs and before its outputs."""
        key = program, tuple(kinds)
        found = self.threaded.get(key)
        if found is None:
            inputs = [Var(TOKEN) for _ in kinds]
            tokens: dict[Effect, Atom] = dict(zip(kinds, inputs, strict=True))
            equations = [self.thread_equation(eqn, tokens) for eqn in program.equations]
            outputs = [*[tokens[kind] for kind in kinds], *program.outputs]
            found = Program(program.name, [*inputs, *program.inputs], equations, outputs)
            self.threaded[key] = found
        return found

    def thread_equation(self, eqn: Equation, tokens: dict[Effect, Atom]) -> Equation:
        """`eqn` with the current tokens of its effects; its new ones take their place in `tokens`."""
        primitive = eqn.primitive
        kinds = ordered_kinds(primitive.effects) if primitive.effects else ()
        if not kinds:
            return eqn
        for kind in kinds:
            if kind not in tokens:
                raise MissingTokenError(
                    f"with_tokens: {primitive.name}, whose effect is {kind.name!r}, must be given a "
                    f"token; got {', '.join([repr(k) for k in tokens]) or 'none'}",
                    fix="Name all kinds of the program, or none: functx.aot.token_kinds(program).",
                    source=eqn.source,
                )
        threaded, place = self.thread_primitive(primitive, kinds)
        inputs = [*[tokens[kind] for kind in kinds], *eqn.inputs]
        outputs = [Var(TOKEN) for _ in kinds]
        tokens.update(zip(kinds, outputs, strict=True))
        return eqn.replace(
            primitive=threaded,
            inputs=move_first(inputs, len(kinds), len(kinds) + place),
            outputs=[*outputs, *eqn.outputs],
        )

    def thread_primitive(
        self, primitive: Primitive, kinds: Sequence[Effect]
    ) -> tuple[Primitive, int]:
        """The operation with tokens before its outputs, and the number of operands before tokens."""
        # The condition of a loop returns no token.
        if not (isinstance(primitive, While) and ordered_kinds(primitive.condition.effects)):
            threaded = thread_state(primitive, lambda sub: self.thread(sub, kinds), len(kinds))
            if threaded is not None:
                return threaded
        return WithEffects(primitive, tuple([kind.name for kind in kinds])), 0
