"""Where numbers that are not finite are born in a run of a program, equation by equation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from functx.core.dtypes import is_inexact
from functx.core.printing import equation_text, variable_names
from functx.core.program import Equation, Program, Var
from functx.core.provenance import source_line

Index = tuple[int, ...]


@dataclass(frozen=True)
class NonFiniteOrigin:
    """The equation that made a nan of numbers that were none, or an infinity of finite ones.

    `values` are those of its operands and outputs by name, at `index` where they have the shape
    of the output. In the derivative of an equation, `local` are its derivatives there in its
    operands, by name, and `cotangent` is what it was handed. An argument has no equation.
    """

    line: str
    equation: str = ""
    index: Index = ()
    values: dict[str, Any] = field(default_factory=dict)
    derivative: bool = False
    local_derivatives: dict[str, Any] = field(default_factory=dict)
    cotangent: Any = None

    def __str__(self) -> str:
        place = f", at {list(self.index)}" if self.index else ""
        lines = [self.line]
        if self.equation:
            part = "the derivative of " if self.derivative else ""
            lines.append(f"  {part}{self.equation}{place}")
        lines += [f"    {name} = {format_value(x)}" for name, x in self.values.items()]
        lines += [
            f"    local derivative in {name} = {format_value(x)}"
            for name, x in self.local_derivatives.items()
        ]
        if self.derivative:
            lines.append(f"    cotangent = {format_value(self.cotangent)}")
        return "\n".join(lines)


class EvaluatedProgram:
    """A program without control flow, and the values of its variables."""

    def __init__(self, program: Program, values: dict[Var, Any]):
        self.program, self.values = program, values
        self.names = variable_names(program)
        self.producers = {v: eqn for eqn in program for v in eqn.outputs}

    def origin_variables(self, var: Var) -> list[Var]:
        """The variable in which what is not finite in `var` was born, and those that it was made of."""
        found = []
        while True:
            eqn, value = self.producers.get(var), self.values[var]
            index = first_nonfinite_index(value)
            bad = [] if eqn is None else self.nonfinite_operands(eqn, index, value)
            worst = [v for v in bad if np.isnan(self.values[v]).any()]
            handed_on = worst if np.isnan(value[index]) else bad
            if not handed_on:
                found.append(var)
            if not bad:
                return found
            var = (handed_on or bad)[0]

    def nonfinite_operands(self, eqn: Equation, index: Index, value: Any) -> list[Var]:
        """The operands that are not finite, first those that are not at `index`."""
        bad = [
            a
            for a in eqn.inputs
            if type(a) is Var and first_nonfinite_index(self.values[a]) is not None
        ]

        def elsewhere(v: Var) -> bool:
            x = self.values[v]
            return x.shape == value.shape and bool(np.isfinite(x[index]))

        return sorted(dict.fromkeys(bad), key=elsewhere)

    def origin_at(self, var: Var) -> NonFiniteOrigin:
        """What there is to tell of `var`, where something was born."""
        eqn, value = self.producers.get(var), self.values[var]
        index = first_nonfinite_index(value)
        if eqn is None:
            return NonFiniteOrigin(
                f"the argument {self.names[var]}", "", index, {self.names[var]: value[index]}
            )
        shown = self.values_at([*eqn.inputs, var], index, value.shape)
        return NonFiniteOrigin(
            source_line(eqn.source), equation_text(self.program, eqn), index, shown
        )

    def values_at(self, atoms: Sequence[Any], index: Index, shape: Any) -> dict[str, Any]:
        """The values of `atoms` by name, at `index` if they have `shape`."""
        found = {}
        for a in atoms:
            if type(a) is Var:
                x = self.values[a]
                found[self.names[a]] = x[index] if x.shape == shape else x
        return found


def first_nonfinite_index(x: Any) -> Any:
    """The first place where `x` is nan, or else infinite; None if it is finite."""
    if not is_inexact(x.dtype):
        return None
    for bad in (np.isnan(x), ~np.isfinite(x)):
        if bad.any():
            return tuple([int(i) for i in np.unravel_index(int(np.argmax(bad)), x.shape)])
    return None


def format_value(x: Any) -> str:
    """A number, or the type and the range of an array."""
    x = np.asarray(x)
    if x.ndim == 0:
        return f"{x[()]}"
    if x.size <= 6:
        return np.array2string(x, separator=", ").replace("\n", "")
    return f"{x.dtype}{list(x.shape)}, between {x.min()} and {x.max()}"
