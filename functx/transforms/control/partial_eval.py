"""Partial evaluation of the bodies of loops and of branches, and bodies with tangents.

A rewrite such as `SplitVJP` or `Linearize` splits a program into a known and an unknown one. The
known program returns residuals, which the unknown one takes. The rewrites here say for each
residual where a loop or a `cond` finds its value, so that nothing is stored twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

from functx import ops
from functx.core.backend import Split
from functx.core.dead_code import dce_equations
from functx.core.masks import (
    T,
    indices_where,
    inexact_mask,
    select_where,
    select_where_not,
    split_list,
)
from functx.core.printing import variable_names
from functx.core.program import Atom, Equation, Literal, Program, Var
from functx.core.program_editing import replace_program_fields, substitute_atoms
from functx.core.rewriting import Record, Rewrite, apply, cached_rewrite
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Avals, Value
from functx.transforms.dce import (
    MUST_STAY,
    RemoveEffects,
    UniqueEquations,
    fixed_point,
    keep_effects_depending_on,
    loop_invariant_variables,
    used_inputs,
    used_variables,
    with_io,
)
from functx.transforms.forward_mode import JVPRewrite
from functx.transforms.jet_rewrite import JetRewrite, groups_where
from functx.transforms.linear_transpose import Transpose

Programs = TypeVar("Programs", Program, tuple[Program, ...])


class ResidualKind(Enum):
    """The source of the value of a residual."""

    OPERAND = "operand"
    """An operand of the equation; of a scan, a row of one of its `xs`."""
    OUTPUT = "output"
    """An output of the known program; of a scan, a row of one of its `ys`."""
    CARRY_BEFORE = "carry_before"
    """A carry of a scan before each step, which one of its `ys` has after each step."""


class Residual(NamedTuple):
    """The source of a residual: `position` is among the values of its kind, `carry` a carry's."""

    kind: ResidualKind
    position: int
    carry: int = 0


class PartialEval(Record, Generic[Programs]):
    """A body, or the branches of a `cond`, split into a known and an unknown program.

    `known` returns the outputs of the original program, then those residuals that are not
    found elsewhere. `unknown` takes tangents or cotangents, then the `residuals` in order.
    """

    known: Programs
    unknown: Programs
    residuals: tuple[Residual, ...]


class LoopPartialEval(PartialEval[Program]):
    """The partial evaluation of the body of a loop.

    `invariant` computes the loop-invariant residuals, before the loop. `unknown` takes them before
    the `residuals`, which differ from step to step. `names` gives the names of its inputs.
    """

    invariant: Program
    names: Callable[[], list[str]] | None = None

    @property
    def num_residuals(self) -> int:
        """The number of residuals that `unknown` takes last, with the loop-invariant ones."""
        return len(self.invariant.outputs) + len(self.residuals)


class PartialEvalScan(Rewrite[LoopPartialEval]):
    """Partially evaluates the body of a scan by `rewrite`.

    The known program takes `consts` and `carries`, and has `outputs` before the residuals. The unknown
    one repeats the computations of the known one, unless its residuals take at most `most_saved` bytes.
    """

    rewrite: Split[tuple[Program, Program]]
    consts: int
    carries: int
    outputs: int
    most_saved: int = 0

    def __call__(self, program: Program) -> LoopPartialEval:
        known, unknown = cached_rewrite(self.rewrite, program)
        count, n = self.outputs, self.consts + self.carries
        carry, xs = known.inputs[self.consts : n], known.inputs[n:]
        carry_after = dict(zip(carry, known.outputs, strict=False))
        unchanged = [v for v in carry if carry_after[v] is v]
        fixed = loop_invariant_variables(known, {*known.inputs[: self.consts], *unchanged})
        known, unknown = merge_equal_residuals(known, unknown, count)
        free = fixed | {*xs, *known.outputs[:count]}
        known, unknown = self.choose_residuals(known, unknown, free)
        invariant, unknown, saved = hoist_invariant_residuals(known, unknown, count, n, fixed)
        ys: list[Atom] = list(known.outputs[self.carries : count])
        ys += [a for a in saved if not (a in xs or a in carry_after or a in ys)]
        residuals = []
        for atom in saved:
            if type(atom) is Var and atom in xs:
                residuals.append(Residual(ResidualKind.OPERAND, xs.index(atom)))
            elif type(atom) is Var and atom not in ys and carry_after.get(atom) in ys:
                after = ys.index(carry_after[atom])
                residuals.append(Residual(ResidualKind.CARRY_BEFORE, after, carry.index(atom)))
            else:
                if atom not in ys:
                    ys.append(atom)
                residuals.append(Residual(ResidualKind.OUTPUT, ys.index(atom)))

        def names() -> list[str]:
            name_of: dict[Any, str] = {**variable_names(known)}
            outs = [*carry, *known.outputs[self.carries : count]]
            in_order = [*invariant.outputs, *saved]
            return [
                *[f"ct_{name_of.get(v, '')}" for v in outs if is_inexact(v.aval.dtype)],
                *[f"{name_of[v]}_before" if v in carry_after else name_of[v] for v in in_order],
            ]

        return LoopPartialEval(
            with_io(known, known.inputs, [*known.outputs[: self.carries], *ys]),
            unknown,
            tuple(residuals),
            invariant,
            names,
        )

    def choose_residuals(
        self, known: Program, unknown: Program, free: set[Atom]
    ) -> tuple[Program, Program]:
        """The programs with the residuals that are to be saved; those in `free` cost nothing."""

        def with_cost(split: tuple[Program, Program]) -> tuple[int, tuple[Program, Program]]:
            known, unknown = recompute_cheap_residuals(*split, self.outputs, free)
            return sum(map(_bytes, {*known.outputs[self.outputs :]} - free)), (known, unknown)

        least, split = with_cost((known, unknown))
        if not self.most_saved:
            return split
        for moves, most in ((False, self.most_saved), (True, min(least, self.most_saved))):
            cost, other = with_cost(save_expensive_values(known, unknown, self.outputs, moves))
            if cost <= most:
                split = other
        return split


def hoist_invariant_residuals(
    known: Program, unknown: Program, count: int, inputs: int, fixed: set[Atom]
) -> tuple[Program, Program, list[Atom]]:
    """The program of the loop-invariant residuals, `unknown`, and the other residuals.

    The residuals are the outputs of `known` after the first `count`; those in `fixed` need no more
    than the first `inputs`. `unknown` takes them before the others.
    """
    saved = known.outputs[count:]
    lead = len(unknown.inputs) - len(saved)
    mask, residual_inputs = [a in fixed for a in saved], unknown.inputs[lead:]
    in_order = [*select_where(residual_inputs, mask), *select_where_not(residual_inputs, mask)]
    return (
        with_io(drop_effectful_equations(known), known.inputs[:inputs], select_where(saved, mask)),
        with_io(unknown, [*unknown.inputs[:lead], *in_order], unknown.outputs),
        select_where_not(saved, mask),
    )


def drop_effectful_equations(program: Program) -> Program:
    """`program` without its equations with effects, to compute values that need none of them."""
    if not program.effects:
        return program
    pure = [eqn for eqn in program.equations if not eqn.primitive.effects]
    return replace_program_fields(program, equations=pure)


def merge_equal_residuals(known: Program, unknown: Program, count: int) -> tuple[Program, Program]:
    """The programs with one residual for all that are computed by equal equations.

    The residuals are the outputs of `known` after the first `count`.
    """
    unique = UniqueEquations().add_all(known)
    saved = [unique.read(atom) for atom in known.outputs[count:]]
    lead = len(unknown.inputs) - len(saved)
    first: dict[Atom, Var] = {}
    twice: dict[Atom, Var] = {}
    for atom, v in zip(saved, unknown.inputs[lead:], strict=True):
        if first.setdefault(atom, v) is not v:
            twice[v] = first[atom]
    if not twice:
        return known, unknown
    unknown = substitute_atoms(unknown, twice)
    inputs = [*unknown.inputs[:lead], *first.values()]
    return (
        with_io(known, known.inputs, [*known.outputs[:count], *first]),
        with_io(unknown, inputs, unknown.outputs),
    )


def save_expensive_values(
    known: Program, unknown: Program, count: int, moves: bool
) -> tuple[Program, Program]:
    """The programs with residuals in place of the equations that `unknown` repeats from `known`.

    If `moves`, `known` also computes all that needs no cotangents, such as their coefficients:
    XLA computes an array that `unknown` shifts or pads once for each use. The residuals are the outputs of
    `known` after the first `count`. XLA merges equal operations of one computation, but not of two
    loops. The programs are unchanged if all of these are cheap.
    """
    lead = len(unknown.inputs) - (len(known.outputs) - count)
    unique = UniqueEquations().add_all(known)
    residuals = [unique.read(atom) for atom in known.outputs[count:]]
    value_of: dict[Atom, Atom] = dict(zip(unknown.inputs[lead:], residuals, strict=True))
    merged: set[Equation] = set()
    moved: list[Equation] = []
    for eqn in unknown:
        own = eqn.with_substitutes(value_of)
        equal = unique.first.get((own.primitive, *own.inputs))
        if equal is None and moves and is_movable(eqn, value_of):
            equal = own.replace(outputs=[Var(v.aval) for v in eqn.outputs])
            unique.add(equal)
            moved.append(equal)
        if equal is not None and is_same_value(eqn, equal):
            merged.add(eqn)
            value_of.update(zip(eqn.outputs, equal.outputs, strict=True))
    if all([type(eqn.primitive) in _CHEAP_OPS for eqn in merged]):
        return known, unknown
    equations = [eqn for eqn in unknown if eqn not in merged]
    used = used_variables(equations, unknown.outputs)
    saved = {v: atom for v, atom in value_of.items() if type(v) is Var and v in used}
    known = replace_program_fields(known, equations=[*known.equations, *moved])
    known = with_io(known, known.inputs, [*known.outputs[:count], *saved.values()])
    unknown = Program(unknown.name, [*unknown.inputs[:lead], *saved], equations, unknown.outputs)
    return merge_equal_residuals(known, unknown, count)


def is_movable(eqn: Equation, known: Mapping[Atom, Atom]) -> bool:
    """Whether an equation has no effects and needs only values in `known`."""
    return not eqn.primitive.effects and all([type(a) is Literal or a in known for a in eqn.inputs])


def is_same_value(eqn: Equation, equal: Equation) -> bool:
    """Whether `eqn` computes the value of an equation with the same primitive and operands."""
    return (
        any([type(a) is Var for a in eqn.inputs])
        and not eqn.primitive.no_cse
        and eqn.part not in MUST_STAY
        and all([a.aval is b.aval for a, b in zip(eqn.outputs, equal.outputs, strict=True)])
    )


def recompute_cheap_residuals(
    known: Program, unknown: Program, count: int, free: set[Atom]
) -> tuple[Program, Program]:
    """The programs with residuals that `unknown` computes itself, from fewer bytes that are saved.

    The residuals are the outputs of `known` after the first `count`. Saving a variable in `free`
    costs nothing. A loop writes and reads each residual at every step, which takes longer than a
    few operations on elements that fuse with those of `unknown`.
    """
    saved = known.outputs[count:]
    lead = len(unknown.inputs) - len(saved)
    producers = known.def_use.producers
    kept: dict[Atom, None] = {}
    recomputed: dict[Equation, None] = {}
    position = {v: i for i, v in enumerate(producers)}
    for atom in sorted(saved, key=lambda v: position.get(v, -1)):
        equations, operands = _cheap_sources(atom, producers, {*kept, *free})
        new = [v for v in operands if v not in kept and v not in free]
        if len(equations) <= _MOST_RECOMPUTED and sum(map(_bytes, new)) < _bytes(atom):
            recomputed.update(dict.fromkeys(equations))
            kept.update(dict.fromkeys(operands))
        else:
            kept[atom] = None
    if not recomputed:
        return known, unknown
    residual_vars = dict(zip(saved, unknown.inputs[lead:], strict=True))
    inputs = {v: residual_vars.get(v) or Var(v.aval) for v in kept}
    env = dict(inputs)
    equations = []
    for eqn in known.equations:
        if eqn in recomputed and eqn.outputs[0] not in kept:
            outputs = [residual_vars.get(v) or Var(v.aval) for v in eqn.outputs]
            operands = [env.get(a, a) for a in eqn.inputs]
            equations.append(eqn.replace(inputs=operands, outputs=outputs))
            env.update(zip(eqn.outputs, outputs, strict=True))
    known = with_io(known, known.inputs, [*known.outputs[:count], *kept])
    new_inputs = [*unknown.inputs[:lead], *inputs.values()]
    return known, Program(
        unknown.name, new_inputs, [*equations, *unknown.equations], unknown.outputs
    )


def _cheap_sources(
    atom: Atom, producers: Mapping[Any, Equation], stored: set[Atom]
) -> tuple[list[Equation], list[Any]]:
    """The cheap equations that compute `atom` from stored values and others, and these values."""
    equations, operands, pending = [], [], [atom]
    while pending:
        v = pending.pop()
        eqn = producers.get(v)
        if eqn is None or v in stored or type(eqn.primitive) not in _CHEAP_OPS:
            operands.append(v)
        elif eqn not in equations:
            equations.append(eqn)
            pending += [a for a in eqn.inputs if type(a) is Var]
    return equations, operands


def _bytes(atom: Atom) -> int:
    return atom.aval.size * atom.aval.dtype.itemsize


_CHEAP_OPS = (
    ops.BroadcastInDim, ops.DynamicSlice, ops.Full, ops.Gather, ops.PermuteDims, ops.Reshape, ops.Rev, ops.Slice,
    ops.Add, ops.Sub, ops.Mul, ops.Div, ops.Neg, ops.Select, ops.ConvertElementType, ops.Max, ops.Min,
    ops.Lt, ops.Le, ops.Gt, ops.Ge, ops.Eq, ops.Ne,
)  # fmt: skip
_MOST_RECOMPUTED = 16
"""The most equations that are recomputed in place of one residual."""


class PartialEvalWhile(Rewrite[LoopPartialEval]):
    """Partially evaluates the body of a while loop by `rewrite`: all residuals are outputs.

    The fields are as in `PartialEvalScan`.
    """

    rewrite: Split[tuple[Program, Program]]
    consts: int
    outputs: int

    def __call__(self, program: Program) -> LoopPartialEval:
        known, unknown = cached_rewrite(self.rewrite, program)
        count, n = self.outputs, self.consts
        fixed = loop_invariant_variables(known, set(known.inputs[:n]))
        invariant, unknown, saved = hoist_invariant_residuals(known, unknown, count, n, fixed)
        return LoopPartialEval(
            with_io(known, known.inputs, [*known.outputs[:count], *saved]),
            unknown,
            tuple([Residual(ResidualKind.OUTPUT, i) for i in range(len(saved))]),
            invariant,
        )


class SplitTranspose(Rewrite[tuple[Program, Program]]):
    """The split of a loop body that is linear in the inputs marked `varying`, for its transpose.

    The known program takes the other inputs, and returns the carries that do not vary, then those
    inputs that the unknown program takes. That is the transpose.
    """

    varying: tuple[bool, ...]
    consts: int
    carries: int

    def __call__(self, body: Program) -> tuple[Program, Program]:
        backward = cached_rewrite(Transpose(self.varying), cached_rewrite(RemoveEffects(), body))
        inputs = select_where_not(body.inputs, self.varying)
        lead = len(backward.inputs) - len(inputs)
        used = used_inputs(backward)[lead:]
        varying_carries = self.varying[self.consts : self.consts + self.carries]
        carries = select_where_not(body.outputs[: self.carries], varying_carries)
        outputs = [*carries, *select_where(inputs, used)]
        known = with_io(keep_effects_depending_on(body, inputs), inputs, outputs)
        in_vars = [*backward.inputs[:lead], *select_where(backward.inputs[lead:], used)]
        return known, with_io(backward, in_vars, backward.outputs)


class PartialEvalBranches(Rewrite[PartialEval[tuple[Program, ...]]]):
    """Partially evaluates all branches by `rewrite`, with residuals of common types.

    The residuals are operands, then outputs. Branches share output slots of one type, since
    only one of them runs, and fill the slots of others with zeros.
    """

    rewrite: Split[tuple[Program, Program]]

    def __call__(self, *branches: Program) -> PartialEval[tuple[Program, ...]]:
        splits = [cached_rewrite(self.rewrite, branch) for branch in branches]
        count = len(branches[0].outputs)
        slots: list[ShapedArray] = []
        sources = [_residual_sources(known, count, slots) for known, _ in splits]
        operands = [r for each in sources for r in each if r.kind is ResidualKind.OPERAND]
        outputs = [Residual(ResidualKind.OUTPUT, slot) for slot in range(len(slots))]
        residuals = (*dict.fromkeys(operands), *outputs)
        avals = [
            (slots if r.kind is ResidualKind.OUTPUT else branches[0].in_avals)[r.position]
            for r in residuals
        ]
        known_branches, unknown_branches = [], []
        for (known, unknown), own in zip(splits, sources, strict=True):
            known_branches.append(_with_residual_slots(known, count, own, slots))
            inputs = [Var(aval) for aval in avals]
            lead = len(unknown.inputs) - len(own)
            first: dict[Residual, Var] = {}
            twice: dict[Atom, Var] = {}
            for residual, v in zip(own, unknown.inputs[lead:], strict=True):
                if residual in first:
                    # Two residuals are one operand.
                    twice[v] = first[residual]
                else:
                    first[residual] = inputs[residuals.index(residual)] = v
            unknown = substitute_atoms(unknown, twice) if twice else unknown
            unknown_branches.append(
                with_io(unknown, [*unknown.inputs[:lead], *inputs], unknown.outputs)
            )
        return PartialEval(tuple(known_branches), tuple(unknown_branches), residuals)


def _residual_sources(known: Program, count: int, slots: list[ShapedArray]) -> list[Residual]:
    """The sources of the residuals of a branch, behind its first `count` outputs.

    Adds to `slots` where none of them that the branch does not use yet has the type.
    """
    sources: list[Residual] = []
    for atom in known.outputs[count:]:
        if type(atom) is Var and atom in known.inputs:
            sources.append(Residual(ResidualKind.OPERAND, known.inputs.index(atom)))
            continue
        aval = atom.aval.update(weak_type=False)
        same_type = [Residual(ResidualKind.OUTPUT, i) for i, a in enumerate(slots) if a is aval]
        free = [slot for slot in same_type if slot not in sources]
        if not free:
            free = [Residual(ResidualKind.OUTPUT, len(slots))]
            slots.append(aval)
        sources.append(free[0])
    return sources


def _with_residual_slots(
    known: Program, count: int, sources: Sequence[Residual], slots: Avals
) -> Program:
    """`known` with its residuals, the outputs behind the first `count`, in `slots`."""

    def body(*args: Value) -> list[Value]:
        outs = apply(None, known, args)
        residuals = dict(zip(sources, outs[count:], strict=True))
        slot_values = [residuals.get(Residual(ResidualKind.OUTPUT, i)) for i in range(len(slots))]
        return [*outs[:count], *ops.instantiate_zeros(slot_values, slots)]

    return trace_closed(body, known.in_avals, name=known.name)


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

    `rewrite` makes the program with tangents or, as a `JetRewrite`, with several coefficients in place of
    each tangent. `out_varying` are the outputs that have tangents.
    """

    consts: int
    carries: int
    rewrite: JVPRewrite | JetRewrite
    out_varying: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        rewrite, k = self.rewrite, self.carries
        jvp_program = cached_rewrite(rewrite, program)
        count, n = len(program.inputs), self.consts + k
        tangents = groups_where(jvp_program.inputs[count:], rewrite.terms, rewrite.varying)
        inputs = [
            v
            for start, end in ((0, self.consts), (self.consts, n), (n, count))
            for v in [*jvp_program.inputs[start:end], *_concatenated(tangents[start:end])]
        ]
        out_primals = jvp_program.outputs[: len(program.outputs)]
        inexact = inexact_mask(program.out_avals)
        found = groups_where(jvp_program.outputs[len(out_primals) :], rewrite.terms, inexact)
        out_tangents = [
            group if on else [] for group, on in zip(found, self.out_varying, strict=True)
        ]
        outputs = [
            *out_primals[:k],
            *_concatenated(out_tangents[:k]),
            *out_primals[k:],
            *_concatenated(out_tangents[k:]),
        ]
        return with_io(jvp_program, inputs, outputs)


def _concatenated(groups: Iterable[Sequence[T | None]]) -> list[T]:
    """The items of all groups, without None."""
    return [x for group in groups for x in group if x is not None]


def carry_history(initial: Value, after: Value, reverse: bool) -> Value:
    """The values of a carry before each step, from its initial value and those after each step."""
    length = after.shape[0]
    if not length:
        return after
    first = ops.reshape(initial, (1, *after.shape[1:]))
    if reverse:
        return ops.concatenate([ops.slice_in_dim(after, 1, length), first], 0)
    return ops.concatenate([first, ops.slice_in_dim(after, 0, length - 1)], 0)
