"""Values that the function and the rules of one call close over, as operands of its equation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from functx.core.errors import RuleError, type_name
from functx.core.program import Program, Var
from functx.core.tracing import Tracer, aval_of


class Captures:
    """Values that the programs of one call captured, each once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.indices: dict[Any, int] = {}

    def add(self, values: Sequence[Any]) -> None:
        for x in values:
            if self.indices.setdefault(identity_key(x), len(self.values)) == len(self.values):
                self.values.append(x)

    def index_or_none(self, x: Any) -> int | None:
        """Where `x` is among the values: itself, or an array that equals it."""
        found = self.indices.get(identity_key(x))
        if found is not None:
            return found
        for i, y in enumerate(self.values):
            if (
                type(x) is not Tracer
                and type(y) is not Tracer
                and aval_of(x) is aval_of(y)
                and np.array_equal(np.asarray(x), np.asarray(y))
            ):
                return i
        return None

    def index(self, x: Any) -> int:
        """As `find`; RuleError for a value that is not among them."""
        found = self.index_or_none(x)
        if found is None:
            raise RuleError(
                "a custom rule must use the same values whenever it is traced; "
                f"got {type_name(x)}, which it did not use before",
                fix="Make the rule a function of its arguments and of values that stay.",
            )
        return found

    def with_capture_inputs(self, program: Program, captured: Sequence[Any]) -> Program:
        """`program`, which captured some of the values, with an input for every one."""
        own = program.inputs[: len(program.inputs) - len(captured)]
        given = zip(captured, program.inputs[len(own) :], strict=True)
        stand_in = {self.index(x): v for x, v in given}
        inputs = [
            stand_in[i] if i in stand_in else Var(aval_of(x)) for i, x in enumerate(self.values)
        ]
        # Two captured arrays may be found equal to one value.
        same = {
            v: inputs[self.index(x)]
            for x, v in zip(captured, program.inputs[len(own) :], strict=True)
        }
        equations = program.equations
        if any(v is not w for v, w in same.items()):
            equations = [e.replace(inputs=[same.get(a, a) for a in e.inputs]) for e in equations]  # type: ignore[arg-type]
        outputs = [same.get(a, a) if type(a) is Var else a for a in program.outputs]
        return Program(program.name, [*own, *inputs], equations, outputs, in_names=program.in_names)


def identity_key(x: Any) -> Any:
    """What two values share exactly when they are one."""
    return x.atom if type(x) is Tracer else id(x)
