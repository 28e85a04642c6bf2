"""Bodies of scans for tangents and without unused results; carry histories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from functx import ops
from functx.core.fixed_point import fixed_point
from functx.core.program import Atom, Program, Var, dce_equations
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.core.typing import Value
from functx.transforms.dce import used_variables, with_io
from functx.transforms.forward_mode import JVPRewrite
from functx.transforms.operand_masks import (
    indices_where,
    inexact_mask,
    scatter_where,
    select_where,
    split_list,
)


class LinearizedScanBody(Rewrite[Program]):
    """Rewrites the unknown program of `Linearize` to the body of a scan.

    The program takes `tangents`, of which the first `consts` are tangents of consts, then the
    residuals, of which the first `invariants` are consts. Outputs not in `kept` are dropped.
    """

    tangents: int
    consts: int
    invariants: int
    kept: tuple[bool, ...]

    def __call__(self, unknown: Program) -> Program:
        dconsts, others, invariants, per_step = split_list(
            unknown.inputs, [self.consts, self.tangents - self.consts, self.invariants]
        )
        inputs = [*dconsts, *invariants, *others, *per_step]
        return with_io(unknown, inputs, select_where(unknown.outputs, self.kept))


class DCEScanBody(Rewrite[tuple[Program, list[int], tuple[int, ...]] | None]):
    """Rewrites the body of a loop to one that computes only the outputs in `used`, in any step.

    Returns it with the positions of the inputs and outputs that remain, or None if all do.
    """

    consts: int
    carries: int
    used: tuple[bool, ...]

    def __call__(self, program: Program) -> tuple[Program, list[int], tuple[int, ...]] | None:
        carry = program.inputs[self.consts : self.consts + self.carries]

        def step(used: list[bool]) -> tuple[list[bool], tuple[list[Atom], set[Var]]]:
            outputs = select_where(program.outputs, used)
            equations = dce_equations(program.equations, outputs)
            needed = used_variables(equations, outputs)
            used = [on or (i < self.carries and carry[i] in needed) for i, on in enumerate(used)]
            return used, (outputs, needed)

        used, (outputs, needed) = fixed_point(list(self.used), step)
        needed |= {v for v, on in zip(carry, used, strict=False) if on}
        inputs = [i for i, v in enumerate(program.inputs) if v in needed]
        if len(inputs) == len(program.inputs) and all(used):
            return None
        body = with_io(program, [program.inputs[i] for i in inputs], outputs)
        return body, inputs, indices_where(used)


class JVPScanBody(Rewrite[Program]):
    """Rewrites a body to one with tangents; those of each group of inputs and outputs follow it.

    `varying` are the inputs, and `out_varying` the outputs, that have tangents.
    """

    consts: int
    carries: int
    varying: tuple[bool, ...]
    out_varying: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        jvp_program = cached_rewrite(JVPRewrite(self.varying), program)
        count, n = len(program.inputs), self.consts + self.carries
        primals = jvp_program.inputs[:count]
        tangents = scatter_where(jvp_program.inputs[count:], self.varying)
        inputs = [
            v
            for start, end in ((0, self.consts), (self.consts, n), (n, count))
            for v in [*primals[start:end], *[t for t in tangents[start:end] if t is not None]]
        ]
        out_primals = jvp_program.outputs[: len(program.outputs)]
        out_tangents = _none_unless_marked(
            program, jvp_program.outputs[len(out_primals) :], self.out_varying
        )
        k = self.carries
        carry_and_y_tangents = [
            [t for t in group if t is not None] for group in (out_tangents[:k], out_tangents[k:])
        ]
        return with_io(
            jvp_program,
            inputs,
            [
                *out_primals[:k],
                *carry_and_y_tangents[0],
                *out_primals[k:],
                *carry_and_y_tangents[1],
            ],
        )


def _none_unless_marked(
    program: Program, tangents: Sequence[Atom], mask: Sequence[bool]
) -> list[Atom | None]:
    """The tangents of the outputs, with None for those that are not in `mask`."""
    out_tangents = scatter_where(tangents, inexact_mask(program.out_avals))
    return [t if on else None for t, on in zip(out_tangents, mask, strict=True)]


def carry_history(initial: Any, after: Any, reverse: bool) -> Value:
    """The values of a carry before each step, from its initial value and those after each step."""
    length = after.shape[0]
    if not length:
        return after
    first = ops.reshape(initial, (1, *after.shape[1:]))
    if reverse:
        return ops.concatenate([ops.slice_in_dim(after, 1, length), first], 0)
    return ops.concatenate([first, ops.slice_in_dim(after, 0, length - 1)], 0)
