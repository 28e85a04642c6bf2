"""Bodies of loops split in two: what a second loop needs of the first, and whence it gets that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from functx import ops
from functx.core.printing import variable_names
from functx.core.program import Atom, Equation, Literal, Program, Var, dce_equations
from functx.core.program_editing import replace_program_fields
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.core.types import is_inexact
from functx.transforms.dce import keep_effects_depending_on, used_variables, with_io
from functx.transforms.forward_mode import JVPRewrite
from functx.transforms.operand_masks import indices_where, inexact_mask, scatter_where, select_where


class ResidualSource(NamedTuple):
    """Where the rows of something lie: `kind` and the position say in which array.

    `x`: an operand of the loop; `y`: an output; `before`: carry `carry` before each step, of
    which the output at `position` has the values after each step.
    """

    kind: str
    position: int
    carry: int = 0


class ScanSplit(NamedTuple):
    """A body split in two: its values, and the rest, which needs something of the values.

    `kinds` says of each thing needed, in order, whether it is the same in every step (`c`) or
    not (`x`). The former `invariant` computes from the consts and the carries at first; the
    latter lie in `rows`. `values` returns what no array holds yet behind its outputs.
    `names` tells what the cotangents of the inexact outputs, then the things needed, are called.
    """

    known: Program
    unknown: Program
    residual_kinds: str
    invariant: Program
    sources: tuple[ResidualSource, ...]
    names: Callable[[], list[str]]

    def stacked_residuals(
        self, carries: Sequence[Any], xs: Sequence[Any], ys: Sequence[Any], reverse: bool
    ) -> list[Any]:
        """The arrays of which the rest needs rows, from the operands and outputs of the loop."""
        return [
            xs[row.position]
            if row.kind == "x"
            else ys[row.position]
            if row.kind == "y"
            else carry_history(carries[row.carry], ys[row.position], reverse)
            for row in self.sources
        ]


def carry_history(start: Any, after: Any, reverse: bool) -> Any:
    """The values of a carry before each step, from that at first and those after each step."""
    length = after.shape[0]
    if not length:
        return after
    first = ops.reshape(start, (1, *after.shape[1:]))
    if reverse:
        return ops.concatenate([ops.slice_in_dim(after, 1, length), first], 0)
    return ops.concatenate([first, ops.slice_in_dim(after, 0, length - 1)], 0)


def drop_effectful_equations(program: Program) -> Program:
    """`program` without the equations with effects, to compute what needs none of them."""
    if not program.effects:
        return program
    pure = [eqn for eqn in program.equations if not eqn.primitive.effects]
    return replace_program_fields(program, equations=pure)


class PartialEvalScan(Rewrite[ScanSplit]):
    """The rewrite to the halves into which `rewrite` splits a body."""

    rewrite: Any
    consts: int
    carries: int

    def __call__(self, program: Program) -> ScanSplit:
        values, rest = cached_rewrite(self.rewrite, program)
        count, n = len(program.outputs), self.consts + self.carries
        start, xs = values.inputs[self.consts : n], values.inputs[n:]
        after = dict(zip(start, values.outputs, strict=False))
        same = {*values.inputs[: self.consts], *[v for v in start if after[v] is v]}
        loop_invariant_variables(values, same)
        values, rest = recompute_layout_ops(values, rest, count, same | set(xs))
        saved = values.outputs[count:]

        stacked: list[Atom] = list(values.outputs[self.carries : count])
        for atom in saved:
            if not (atom in same or atom in xs or atom in after or atom in stacked):
                stacked.append(atom)
        rows = []
        for atom in saved:
            if atom in same:
                continue
            if atom in xs:
                rows.append(ResidualSource("x", xs.index(atom)))
            elif atom in after and atom not in stacked and after[atom] in stacked:
                rows.append(ResidualSource("before", stacked.index(after[atom]), start.index(atom)))
            else:
                if atom not in stacked:
                    stacked.append(atom)
                rows.append(ResidualSource("y", stacked.index(atom)))

        def names() -> list[str]:
            known: dict[Any, str] = variable_names(values)
            outs = [*start, *values.outputs[self.carries : count]]
            return [
                *[f"ct_{known.get(v, '')}" for v in outs if is_inexact(v.aval.dtype)],
                *[f"{known[atom]}_before" if atom in after else known[atom] for atom in saved],
            ]

        return ScanSplit(
            with_io(values, values.inputs, [*values.outputs[: self.carries], *stacked]),
            rest,
            "".join(["c" if atom in same else "x" for atom in saved]),
            with_io(
                drop_effectful_equations(values),
                values.inputs[:n],
                [atom for atom in saved if atom in same],
            ),
            tuple(rows),
            names,
        )


def loop_invariant_variables(program: Program, same: set[Any]) -> set[Any]:
    """`same` with the variables added that depend on nothing but literals and others in it."""
    for eqn in program.equations:
        if not eqn.primitive.effects and all(type(a) is Literal or a in same for a in eqn.inputs):
            same.update(eqn.outputs)
    return same


def recompute_layout_ops(
    values: Program, rest: Program, count: int, free: set[Any]
) -> tuple[Program, Program]:
    """The two halves, the second doing again what only moves or repeats things, if that is smaller.

    `values` has `count` outputs before what `rest` needs. Those in `free` cost nothing.
    """
    made = {v: eqn for eqn in values.equations for v in eqn.outputs}
    saved = values.outputs[count:]
    lead = len(rest.inputs) - len(saved)
    free = free | {*values.outputs[:count]}

    def sources(atom: Any) -> tuple[list[Equation], list[Any]]:
        """What makes `atom`, last first, and of what."""
        equations, found, pending = [], [], [atom]
        while pending:
            v = pending.pop()
            eqn = made.get(v)
            if eqn is None or v in free or type(eqn.primitive) not in _LAYOUT_OPS:
                found.append(v)
            elif eqn not in equations:
                equations.append(eqn)
                pending += [a for a in eqn.inputs if type(a) is Var]
        return equations, found

    again: dict[Equation, None] = {}
    kept: dict[Any, None] = {}
    for atom in saved:
        equations, found = sources(atom)
        size = sum([v.aval.size for v in {*found} if v not in free])
        smaller = size < atom.aval.size
        again.update(dict.fromkeys(equations if smaller else ()))
        kept.update(dict.fromkeys(found if smaller else [atom]))
    if not again:
        return values, rest
    needs = dict(zip(saved, rest.inputs[lead:], strict=True))
    inputs = {v: needs.get(v) or Var(v.aval) for v in kept}
    names = dict(inputs)
    before = []
    for eqn in values.equations:
        if eqn in again and eqn.outputs[0] not in kept:
            made_again = [needs[v] if v in needs else Var(v.aval) for v in eqn.outputs]
            before.append(
                eqn.replace(inputs=[names.get(a, a) for a in eqn.inputs], outputs=made_again)
            )
            names.update(zip(eqn.outputs, made_again, strict=True))
    return (
        with_io(values, values.inputs, [*values.outputs[:count], *kept]),
        Program(
            rest.name,
            [*rest.inputs[:lead], *inputs.values()],
            [*before, *rest.equations],
            rest.outputs,
        ),
    )


_LAYOUT_OPS = (
    ops.BroadcastInDim, ops.DynamicSlice, ops.Full, ops.Gather, ops.PermuteDims, ops.Reshape, ops.Rev, ops.Slice,
)  # fmt: skip


class LinearizedScanBody(Rewrite[Program]):
    """The rewrite of the tangents of a body, and what they need, to the body of a scan.

    The first `tangents` inputs are tangents, of them `consts` of consts. Of what follows,
    `kinds` says which are consts (`c`). `kept` says which outputs stay.
    """

    tangents: int
    consts: int
    residual_kinds: str
    kept: tuple[bool, ...]

    def __call__(self, rest: Program) -> Program:
        tangents, needs = rest.inputs[: self.tangents], rest.inputs[self.tangents :]
        inputs: list[Var] = [
            *tangents[: self.consts],
            *[v for v, kind in zip(needs, self.residual_kinds, strict=True) if kind == "c"],
            *tangents[self.consts :],
            *[v for v, kind in zip(needs, self.residual_kinds, strict=True) if kind == "x"],
        ]
        return with_io(rest, inputs, select_where(rest.outputs, self.kept))


class DCEScanBody(Rewrite[tuple[Program, list[int], tuple[int, ...]] | None]):
    """The rewrite of a body to what the outputs marked `used` need, over all the steps.

    Returns it with the positions of the inputs and outputs that it keeps, or None for all.
    """

    consts: int
    carries: int
    used: tuple[bool, ...]

    def __call__(self, program: Program) -> tuple[Program, list[int], tuple[int, ...]] | None:
        start = program.inputs[self.consts : self.consts + self.carries]
        kept = list(self.used)
        while True:
            outputs = select_where(program.outputs, kept)
            equations = dce_equations(program.equations, outputs)
            needed = used_variables(equations, outputs)
            grown = [on or (i < self.carries and start[i] in needed) for i, on in enumerate(kept)]
            if grown == kept:
                break
            kept = grown
        needed |= {v for v, on in zip(start, kept, strict=False) if on}
        inputs = [i for i, v in enumerate(program.inputs) if v in needed]
        if len(inputs) == len(program.inputs) and all(kept):
            return None
        body = with_io(program, [program.inputs[i] for i in inputs], outputs)
        return body, inputs, indices_where(kept)


class KnownScanBody(Rewrite[Program]):
    """The rewrite of a body to that of the carries not marked in `flags`, each also a row."""

    consts: int
    carries: int
    flags: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        fixed = [not on for on in self.flags]
        n = self.consts + self.carries
        now = select_where(program.inputs[self.consts : n], fixed[self.consts : n])
        after = select_where(program.outputs[: self.carries], fixed[self.consts : n])
        inputs = select_where(program.inputs, fixed)
        return with_io(keep_effects_depending_on(program, inputs), inputs, [*after, *now])


class JVPScanBody(Rewrite[Program]):
    """The rewrite of a body to one of values and tangents, each tangent behind its group."""

    consts: int
    carries: int
    flags: tuple[bool, ...]
    out_flags: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        pushed = cached_rewrite(JVPRewrite(self.flags), program)
        count, n = len(program.inputs), self.consts + self.carries
        values = pushed.inputs[:count]
        tangents = scatter_where(pushed.inputs[count:], self.flags)
        inputs = [
            v
            for start, end in ((0, self.consts), (self.consts, n), (n, count))
            for v in [*values[start:end], *[t for t in tangents[start:end] if t is not None]]
        ]
        outs = pushed.outputs[: len(program.outputs)]
        found = _none_unless_marked(program, pushed.outputs[len(outs) :], self.out_flags)
        k = self.carries
        moved = [[t for t in group if t is not None] for group in (found[:k], found[k:])]
        return with_io(pushed, inputs, [*outs[:k], *moved[0], *outs[k:], *moved[1]])


def _none_unless_marked(
    program: Program, tangents: Sequence[Atom], flags: Sequence[bool]
) -> list[Any]:
    """The tangents of the inexact outputs, None for those whose flag is not set."""
    found = scatter_where(tangents, inexact_mask(program.out_avals))
    return [t if on else None for t, on in zip(found, flags, strict=True)]
