"""Composites opened up: `expand` replaces what lacks a rule by its decomposition."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from functx.core.avals import ShapedArray
from functx.core.interpret import forward, interpret
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.registrations import forgotten_with_rules
from functx.core.tracing import rewritten, trace


@dataclass(frozen=True)
class Expand:
    """The rewrite that decomposes every primitive that has none of `rules`."""

    rules: tuple[str, ...]

    def lacks(self, primitive: Primitive) -> bool:
        cls = type(primitive)
        # What never varies needs no rule for its derivative.
        if not cls.differentiable and _DERIVATIVES.issuperset(self.rules):
            return False
        # Without a decomposition it stays, and an error says so where the rule is used.
        return cls.decompose is not None and not any(cls.has_rule(rule) for rule in self.rules)

    def __call__(self, program: Program) -> Program:
        if not any(self.lacks(primitive) for primitive in {e.primitive for e in program}):
            return program

        def step(eqn: Any, *args: Any) -> Any:
            primitive = eqn.primitive
            if not self.lacks(primitive):
                return forward(eqn, *args)
            out = primitive.decompose(*args)
            return out if primitive.multiple_results else [out]

        def body(*args: Any) -> list[Any]:
            return interpret(program, args, step, constant=lambda c: c)

        expanded, _ = trace(body, program.in_avals, name=program.name, in_names=program.in_names)
        # A decomposition may itself contain composites.
        return self(expanded)


_DERIVATIVES = frozenset({"jvp", "vjp", "transpose"})


@lru_cache(maxsize=1024)
def decomposition(primitive: Primitive, avals: tuple[ShapedArray, ...]) -> Program:
    """What `primitive` decomposes into on operands of `avals`, as a program."""
    assert primitive.decompose is not None

    def body(*args: Any) -> Any:
        out = primitive.decompose(*args)  # type: ignore[misc]
        return out if primitive.multiple_results else [out]

    return trace(body, avals, name=primitive.name)[0]


forgotten_with_rules(decomposition.cache_clear)


def expand(program: Program, *rules: str) -> Program:
    """`program` with every primitive that has none of `rules` decomposed."""
    expanded: Program = rewritten(Expand(rules), program)
    return expanded
