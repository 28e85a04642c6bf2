"""What values and equations cost: bytes to keep, work to compute, and what the compiler fuses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

from functx import ops
from functx.core.primitive import Primitive
from functx.core.program import Equation, Program, Var, subprograms
from functx.core.rewriting import cached_rewrite
from functx.core.types import ShapedArray
from functx.ops.activations import LogSoftmax, Softmax
from functx.ops.convolution import Convolution
from functx.ops.families import Constant, Elementwise, Inexact
from functx.ops.losses import Loss
from functx.ops.normalizations import Normalization
from functx.ops.random import (
    Dropout,
    ParametricDistribution,
    RandomBits,
    RandomFoldIn,
    RandomSeed,
    RandomSplit,
    StandardDistribution,
)
from functx.ops.views import Copy
from functx.transforms.decompose import lowering_decomposition

VIEW_PRIMITIVES = (
    ops.BroadcastInDim, Copy, ops.DynamicSlice, ops.CheckpointName, ops.PermuteDims, ops.Reshape, ops.Rev, ops.Slice, ops.Split, ops.StopGradient,
)  # fmt: skip
"""What shows an array in another way: it costs nothing to do again."""
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

# So many operations on numbers take as long as moving one byte.
_FLOPS_PER_BYTE = 8


def bytes_of(aval: ShapedArray) -> int:
    """What an array takes in memory."""
    return aval.size * aval.dtype.itemsize


def is_cheap_to_recompute(primitive: Primitive) -> bool:
    """Whether it is quick: what it computes costs little more than to read the operands."""
    if primitive.effects:
        return False
    held = subprograms(primitive)
    if held:
        return primitive.name == "call" and all(
            is_cheap_to_recompute(e.primitive) for p in held for e in p
        )
    return isinstance(primitive, _CHEAP)


def is_pointwise(primitive: Primitive) -> bool:
    """Whether a compiler computes it where its output is used, element by element."""
    return isinstance(primitive, _POINTWISE) and not primitive.effects


def is_expensive_pointwise(primitive: Primitive) -> bool:
    """Whether a compiler does not compute it more than once though it could."""
    return isinstance(primitive, _EXPENSIVE_POINTWISE)


def compute_cost(eqn: Equation) -> int:
    """How much an equation takes to compute, in bytes that could be moved in the time."""
    primitive, outs = eqn.primitive, eqn.outputs
    moved = sum([bytes_of(atom.aval) for atom in (*eqn.inputs, *outs)])
    if isinstance(primitive, ops.DotGeneral):
        shape = eqn.inputs[0].aval.shape
        terms = prod([shape[d] for d in primitive.contracting_dims[0]])
        return moved + 2 * outs[0].aval.size * terms // _FLOPS_PER_BYTE
    if isinstance(primitive, Convolution):
        kernel = eqn.inputs[1].aval
        terms = kernel.size // max(kernel.shape[primitive.layouts.kernel[0]], 1)
        return moved + 2 * outs[0].aval.size * terms // _FLOPS_PER_BYTE
    held = subprograms(primitive)
    if held:
        rounds = getattr(primitive, "length", 1)
        return moved + rounds * max([sum(map(compute_cost, p.equations)) for p in held])
    if not isinstance(primitive, _CHEAP):
        # Attention, decompositions of matrices, sorts: several times what they read.
        return 8 * moved
    return moved


class LiveRange(NamedTuple):
    """That a variable is in memory from one equation to another, by their positions, both included."""

    var: Var
    start: int
    end: int

    @property
    def bytes(self) -> int:
        """What it takes there."""
        return bytes_of(self.var.aval)


class MemoryTimeline:
    """Which arrays a program has in memory while each of its equations is computed.

    Operands of the program are not counted, nor results unless `results` are. What is computed
    element by element is in memory only if something else than that uses it, or if it is slow and
    used more than once; views never are.
    """

    def __init__(self, program: Program, results: bool = False):
        self.program = program
        self.position = {v: i for i, eqn in enumerate(program) for v in eqn.outputs}
        self.outputs = {a for a in program.outputs if type(a) is Var}
        self.uncounted = set() if results else self.outputs

    @cached_property
    def users(self) -> dict[Any, list[Equation]]:
        """The equations that use each variable."""
        users: dict[Any, list[Equation]] = {}
        for eqn in self.program:
            for atom in dict.fromkeys(eqn.inputs):
                users.setdefault(atom, []).append(eqn)
        return users

    def in_memory(self, v: Var) -> bool:
        """Whether `v`, an output of an equation, is ever in memory of its own."""
        primitive = self.program.equations[self.position[v]].primitive
        if isinstance(primitive, VIEW_PRIMITIVES):
            return False
        users = self.users.get(v, ())
        # Each user would compute it for itself.
        often = is_expensive_pointwise(primitive) and len(users) > 1
        return (
            often
            or not is_pointwise(primitive)
            or not all([_is_fusible_consumer(e) for e in users])
        )

    @cached_property
    def live_ranges(self) -> list[LiveRange]:
        """Where each array is in memory, in the order in which they are made."""
        last: dict[Any, int] = {}
        found = []
        end = len(self.program.equations) - 1
        for i in range(end, -1, -1):
            eqn = self.program.equations[i]
            # What is computed where it is used needs its operands there.
            until = i
            for v in eqn.outputs:
                used = end if v in self.outputs else last.get(v, i)
                if v in self.outputs or self.in_memory(v):
                    if v not in self.uncounted:
                        found.append(LiveRange(v, i, used))
                else:
                    until = max(until, used)
            for atom in eqn.inputs:
                last[atom] = max(until, last.get(atom, 0))
        found.reverse()
        return found

    @cached_property
    def own_bytes(self) -> list[int]:
        """What each equation needs for itself while it is computed."""
        return [subprogram_bytes(eqn) for eqn in self.program]

    @cached_property
    def total_bytes(self) -> list[int]:
        """The bytes in memory while each equation is computed."""
        changes = [0] * (len(self.program.equations) + 1)
        for span in self.live_ranges:
            changes[span.start] += span.bytes
            changes[span.end + 1] -= span.bytes
        alive = accumulate(changes[:-1])
        return [a + b for a, b in zip(alive, self.own_bytes, strict=True)]

    @property
    def peak(self) -> int:
        """The position of the equation at which most is in memory."""
        totals = self.total_bytes
        return max(range(len(totals)), key=totals.__getitem__, default=0)

    @property
    def peak_bytes(self) -> int:
        """The bytes that are in memory there."""
        return max(self.total_bytes, default=0)


def _is_fusible_consumer(eqn: Equation) -> bool:
    return is_pointwise(eqn.primitive) or isinstance(eqn.primitive, ops.Reduction)


def temporary_bytes(program: Program) -> int:
    """About what it takes to run `program`, besides its operands and results."""
    return MemoryTimeline(program).peak_bytes


def temporary_and_result_bytes(program: Program) -> int:
    """As `temporary_bytes`, with the results counted as well."""
    return MemoryTimeline(program, results=True).peak_bytes


def subprogram_bytes(eqn: Equation) -> int:
    """What the programs inside an equation, or those that it is made of, need for themselves."""
    primitive = eqn.primitive
    held: Sequence[Program] = subprograms(primitive)
    if held:
        # A round of a loop has results of its own.
        count = temporary_and_result_bytes if hasattr(primitive, "carries") else temporary_bytes
        return max([cached_rewrite(count, program) for program in held])
    opened = lowering_decomposition(primitive, tuple([a.aval for a in eqn.inputs]))
    return 0 if opened is None else cached_rewrite(temporary_bytes, opened)  # type: ignore[no-any-return]
