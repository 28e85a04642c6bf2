"""The parts of memory plans: joint programs, and the cost of their values in memory and work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

from functx import ops
from functx.core.effects import Effect
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Part, Program, Var, subprograms
from functx.core.program_editing import substitute_atoms
from functx.core.rewriting import cached_rewrite
from functx.ops.families import Constant, Elementwise, Inexact
from functx.ops.losses import Loss
from functx.ops.normalizations import Normalization
from functx.ops.random import Dropout, ParametricDistribution, StandardDistribution
from functx.ops.softmaxes import LogSoftmax, Softmax
from functx.ops.threefry import RandomBits, RandomFoldIn, RandomSeed, RandomSplit
from functx.ops.views import Copy
from functx.passes.costs import bytes_of, contraction_flops
from functx.transforms.dce import MUST_STAY, UniqueEquations, eliminate_common_subexpressions
from functx.transforms.decompose import lowering_decomposition


class JointProgram(NamedTuple):
    """A program that computes outputs from primals, and gradients from primals and tangents.

    The first `num_primals` inputs are the primals; the others are the tangents, which here means the
    cotangents of outputs. The first `num_outputs` outputs are those of the forward computation: the new
    values of `num_mutated` inputs, the results of the function, and `num_bases` extra ones; the others are
    gradients. `gradients` has an entry for each primal: the number of its gradient, None without
    one. Variables in `free_to_save` cost nothing to save. Variables in `recompute` are recomputed,
    not saved.

    `captured` holds the values of the last primals, which the function captured. The forward program
    of a partition supplies them; a call of `program` passes them between the arguments and the
    tangents. As for programs, they are not compared.
    """

    program: Program
    num_primals: int
    num_outputs: int
    free_to_save: frozenset[Any] = frozenset()
    recompute: frozenset[Any] = frozenset()
    num_mutated: int = 0
    num_bases: int = 0
    gradients: tuple[int | None, ...] | None = None
    captured: tuple[Any, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JointProgram) and self[:-1] == other[:-1]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:-1])

    @property
    def tangents(self) -> list[Var]:
        """The inputs that only the backward computation takes."""
        return self.program.inputs[self.num_primals :]


class JointDataflow:
    """The forward and backward equations of a joint program, and the users of variables."""

    def __init__(self, joint: JointProgram):
        self.joint, program = joint, joint.program
        self.outputs = program.outputs[: joint.num_outputs]
        self.gradients = program.outputs[joint.num_outputs :]
        self.tangent_dependent: set[Atom] = {*joint.tangents}
        self.tangent_free: list[Equation] = []
        self.backward: list[Equation] = []
        """The equations that depend on tangents, or must stay in the backward computation."""
        for eqn in program.equations:
            if stays_backward(eqn) or not self.tangent_dependent.isdisjoint(eqn.inputs):
                self.tangent_dependent.update(eqn.outputs)
                self.backward.append(eqn)
            else:
                self.tangent_free.append(eqn)
        self.producers, self.users = program.def_use.producers, program.def_use.users

    @cached_property
    def required_forward(self) -> set[Atom]:
        """The primals, and the outputs of the equations that the forward computation needs.

        These compute its outputs, or must stay in it.
        """
        stays = [e for e in self.tangent_free if e.part is Part.STAYS_FORWARD]
        needed = [*self.outputs, *[a for e in stays for a in (*e.inputs, *e.outputs)]]
        computed = [v for eqn in backward_slice(needed, self.tangent_free) for v in eqn.outputs]
        return {*self.joint.program.inputs[: self.joint.num_primals], *computed}

    @cached_property
    def backward_inputs(self) -> dict[Var, None]:
        """The variables independent of tangents whose values the backward computation uses."""
        operands = [a for eqn in self.backward for a in values_read(eqn)]
        return dict.fromkeys(
            [
                a
                for a in (*operands, *self.gradients)
                if type(a) is Var and a not in self.tangent_dependent
            ]
        )

    @cached_property
    def recompute_candidates(self) -> list[Equation]:
        """The equations that `backward_inputs` need."""
        return backward_slice(self.backward_inputs, self.tangent_free)

    @cached_property
    def recomputed_constants(self) -> set[Atom]:
        """The values that depend on no input and are computed where they are used, never saved.

        They are cheap, or the forward computation does not need them. Expensive ones that it needs,
        random numbers among them, are left to the partition, with all that depends on them.
        """
        recomputed: set[Atom] = set()
        stored = self.required_forward | self.joint.free_to_save
        for eqn in self.tangent_free:
            operands = [a for a in eqn.inputs if type(a) is Var]
            stays = bool(eqn.primitive.effects) or eqn.part in MUST_STAY
            if stays or not recomputed.issuperset(operands):
                continue
            if is_cheap_to_recompute(eqn.primitive) or stored.isdisjoint(eqn.outputs):
                recomputed.update(eqn.outputs)
        return recomputed


def values_read(eqn: Equation) -> list[Atom]:
    """The operands of which an equation reads the value: all but the target of a write."""
    return eqn.inputs[1:] if Effect.WRITE in eqn.primitive.effects else eqn.inputs


def write_targets(equations: Iterable[Equation]) -> list[Var]:
    """The variables that the equations write to, in their order."""
    writes = [e for e in equations if Effect.WRITE in e.primitive.effects]
    return list(dict.fromkeys([e.inputs[0] for e in writes]))  # type: ignore[misc]


def stays_backward(eqn: Equation) -> bool:
    """Whether an equation must stay in the backward computation, also if it needs no tangent."""
    if eqn.part is Part.BACKWARD:
        return bool(eqn.primitive.effects)
    return eqn.part is Part.STAYS_BACKWARD


def backward_slice(
    outputs: Iterable[Atom], equations: Sequence[Equation], effects: bool = False
) -> list[Equation]:
    """The equations that `outputs` need, as the same objects; with `effects`, also those with any."""
    needed: set[Atom] = {*outputs}
    selected = []
    for eqn in reversed(equations):
        if not needed.isdisjoint(eqn.outputs) or (effects and eqn.primitive.effects):
            selected.append(eqn)
            needed.update(eqn.inputs)
    selected.reverse()
    return selected


def join_split(values: Program, count: int, backward_programs: Sequence[Program]) -> JointProgram:
    """The programs of a split as one joint program.

    The first `count` outputs of the forward program `values` are those of the function, the others
    residuals. Each backward program takes cotangents, then the residuals. Common subexpressions
    are eliminated.
    """
    residuals = values.outputs[count:]
    inputs, equations, outputs = list(values.inputs), list(values.equations), values.outputs[:count]
    for backward in backward_programs:
        lead = len(backward.inputs) - len(residuals)
        inputs += backward.inputs[:lead]
        residual_of: dict[Atom, Atom] = dict(zip(backward.inputs[lead:], residuals, strict=True))
        backward = substitute_atoms(backward, residual_of)
        equations += backward.equations
        outputs = [*outputs, *backward.outputs]
    joint = Program(values.name, inputs, equations, outputs, in_names=values.in_names)
    return JointProgram(eliminate_common_subexpressions(joint), len(values.inputs), count)


def inline_checkpoints(joint: JointProgram) -> JointProgram:
    """`joint` with checkpoints inlined, and the variables that they recompute marked.

    Inputs of a region stay unmarked, so that values between two regions are saved.
    """
    if all(eqn.primitive.name != "checkpoint" for eqn in joint.program):
        return joint
    inliner = CheckpointInliner()
    for eqn in joint.program:
        inliner.inline(eqn, recomputes=False)
    recompute = frozenset(inliner.recomputed - inliner.region_inputs)
    return joint._replace(program=inliner.finish(joint.program), recompute=recompute)


class CheckpointInliner(UniqueEquations):
    """Unique equations in which checkpoints are inlined, with marks of the recomputed equations."""

    def __init__(self) -> None:
        super().__init__()
        self.recomputed: set[Atom] = set()
        self.region_inputs: set[Atom] = set()

    def inline(self, eqn: Equation, recomputes: bool) -> None:
        """Adds `eqn`, which is in a region that recomputes or not; a checkpoint is inlined."""
        if eqn.primitive.name == "checkpoint":
            self.inline_checkpoint(eqn, [self.read(a) for a in eqn.inputs])
            return
        merged = self.add(self.on_substitutes(eqn))
        if recomputes:
            self.recomputed.update(merged)

    def inline_checkpoint(self, eqn: Equation, inputs: list[Atom]) -> None:
        region: Any = eqn.primitive
        if region.differentiated:
            self.region_inputs.update(inputs)
        program: Program = region.program
        copies: dict[Atom, Atom] = dict(zip(program.inputs, inputs, strict=True))
        for inner in program:
            outputs = [Var(v.aval) for v in inner.outputs]
            copy = inner.replace(inputs=[copies.get(a, a) for a in inner.inputs], outputs=outputs)
            copies.update(zip(inner.outputs, outputs, strict=True))
            self.inline(copy, region.differentiated)
        self.substitute(eqn.outputs, [self.read(copies.get(a, a)) for a in program.outputs])


VIEW_PRIMITIVES = (
    ops.BroadcastInDim, Copy, ops.DynamicSlice, ops.CheckpointName, ops.PermuteDims, ops.Reshape, ops.Rev, ops.Slice, ops.Split, ops.StopGradient, ops.Detach,
)  # fmt: skip
"""Primitives that show an array in another way, which cost nothing to recompute."""
_POINTWISE = (
    Elementwise,
    Constant,
    ops.Concatenate,
    ops.ConvertElementType,
    ops.Full,
    ops.Iota,
    ops.Pad,
    *VIEW_PRIMITIVES,
)
_CHEAP = (*_POINTWISE, ops.Reduction, Normalization, Loss, Softmax, LogSoftmax)
_EXPENSIVE_POINTWISE = (Inexact, ops.Atan2, ops.Div, ops.Pow, ops.Rem)
RANDOM_PRIMITIVES = (
    RandomBits,
    RandomFoldIn,
    RandomSeed,
    RandomSplit,
    StandardDistribution,
    ParametricDistribution,
    Dropout,
)

_FLOPS_PER_BYTE = 8
"""The operations on numbers that take as long as moving one byte."""


def is_cheap_to_recompute(primitive: Primitive) -> bool:
    """Whether computing it costs little more than reading the operands."""
    if primitive.effects:
        return False
    programs = subprograms(primitive)
    if programs:
        return primitive.name == "call" and all(
            is_cheap_to_recompute(e.primitive) for p in programs for e in p
        )
    return isinstance(primitive, _CHEAP)


def is_pointwise(primitive: Primitive) -> bool:
    """Whether a compiler computes it elementwise where its output is used."""
    return isinstance(primitive, _POINTWISE) and not primitive.effects


def is_expensive_pointwise(primitive: Primitive) -> bool:
    """Whether a compiler, though it could, does not compute it for each user."""
    return isinstance(primitive, _EXPENSIVE_POINTWISE)


def compute_cost(eqn: Equation) -> int:
    """The cost of an equation, in bytes that could be moved in the time."""
    primitive = eqn.primitive
    moved = sum([bytes_of(atom.aval) for atom in (*eqn.inputs, *eqn.outputs)])
    flops = contraction_flops(eqn)
    if flops is not None:
        return moved + flops // _FLOPS_PER_BYTE
    programs = subprograms(primitive)
    if programs:
        iterations = getattr(primitive, "length", 1)
        return moved + iterations * max([sum(map(compute_cost, p.equations)) for p in programs])
    if not isinstance(primitive, _CHEAP):
        # Attention, factorizations and sorts read their operands several times.
        return 8 * moved
    return moved


class LiveRange(NamedTuple):
    """The equations during which a variable is in memory: from `start` to `end`, both included."""

    var: Var
    start: int
    end: int

    @property
    def bytes(self) -> int:
        """The bytes of the variable."""
        return bytes_of(self.var.aval)


class MemoryTimeline:
    """The arrays that a program has in memory during each of its equations.

    Operands of the program are not counted, nor results without `results`. A pointwise value is in
    memory only if some user cannot fuse it, or if it is expensive and has several users; views
    never are.
    """

    def __init__(self, program: Program, results: bool = False):
        self.program = program
        self.position = {v: i for i, eqn in enumerate(program) for v in eqn.outputs}
        self.outputs = {a for a in program.outputs if type(a) is Var}
        self.uncounted = set() if results else self.outputs

    def in_memory(self, v: Var) -> bool:
        """Whether the output `v` of an equation has memory of its own."""
        primitive = self.program.equations[self.position[v]].primitive
        if isinstance(primitive, VIEW_PRIMITIVES):
            return False
        users = self.program.def_use.users.get(v, ())
        # Each user would compute it again.
        is_shared = is_expensive_pointwise(primitive) and len(users) > 1
        return (
            is_shared
            or not is_pointwise(primitive)
            or not all([_is_fusible_consumer(e) for e in users])
        )

    @cached_property
    def live_ranges(self) -> list[LiveRange]:
        """The live range of each array in memory, in the order of their equations."""
        last: dict[Atom, int] = {}
        ranges = []
        end = len(self.program.equations) - 1
        for i in range(end, -1, -1):
            eqn = self.program.equations[i]
            # A value that is computed at its use needs its operands there.
            until = i
            for v in eqn.outputs:
                used = end if v in self.outputs else last.get(v, i)
                if v in self.outputs or self.in_memory(v):
                    if v not in self.uncounted:
                        ranges.append(LiveRange(v, i, used))
                else:
                    until = max(until, used)
            for atom in eqn.inputs:
                last[atom] = max(until, last.get(atom, 0))
        ranges.reverse()
        return ranges

    @cached_property
    def own_bytes(self) -> list[int]:
        """The bytes that each equation needs for its sub-programs."""
        return [subprogram_bytes(eqn) for eqn in self.program]

    @cached_property
    def total_bytes(self) -> list[int]:
        """The bytes in memory during each equation."""
        changes = [0] * (len(self.program.equations) + 1)
        for span in self.live_ranges:
            changes[span.start] += span.bytes
            changes[span.end + 1] -= span.bytes
        alive = accumulate(changes[:-1])
        return [a + b for a, b in zip(alive, self.own_bytes, strict=True)]

    @property
    def peak(self) -> int:
        """The position of the equation with most bytes in memory."""
        totals = self.total_bytes
        return max(range(len(totals)), key=totals.__getitem__, default=0)

    @property
    def peak_bytes(self) -> int:
        """The largest number of bytes in memory."""
        return max(self.total_bytes, default=0)


def _is_fusible_consumer(eqn: Equation) -> bool:
    return is_pointwise(eqn.primitive) or isinstance(eqn.primitive, ops.Reduction)


def temporary_bytes(program: Program) -> int:
    """An estimate of the bytes that `program` needs besides its operands and results."""
    return MemoryTimeline(program).peak_bytes


def temporary_and_result_bytes(program: Program) -> int:
    """As `temporary_bytes`, with the results."""
    return MemoryTimeline(program, results=True).peak_bytes


def subprogram_bytes(eqn: Equation) -> int:
    """The bytes that the sub-programs of an equation, or its decomposition, need."""
    primitive = eqn.primitive
    programs: Sequence[Program] = subprograms(primitive)
    if programs:
        # An iteration of a loop has results of its own.
        count = temporary_and_result_bytes if hasattr(primitive, "carries") else temporary_bytes
        return max([cached_rewrite(count, program) for program in programs])
    decomposition = lowering_decomposition(primitive, tuple([a.aval for a in eqn.inputs]))
    return 0 if decomposition is None else cached_rewrite(temporary_bytes, decomposition)
