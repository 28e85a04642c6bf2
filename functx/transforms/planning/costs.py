"""What values and equations cost: bytes to keep, work to compute, and what the compiler fuses."""

from __future__ import annotations

from math import prod

from functx.core.avals import ShapedArray
from functx.core.primitive import Primitive
from functx.core.program import Equation, subprograms
from functx.ops.arithmetic import Div, Pow, Rem
from functx.ops.contraction import DotGeneral
from functx.ops.conversion import ConvertElementType
from functx.ops.convolution import Convolution
from functx.ops.creation import Iota
from functx.ops.distributions import ParametricDistribution, StandardDistribution
from functx.ops.dropout import Dropout
from functx.ops.families import Constant, Elementwise, Inexact
from functx.ops.gradients import CheckpointName, StopGradient
from functx.ops.joining import Concatenate, Pad, Split
from functx.ops.losses import Loss
from functx.ops.mutation import Copy
from functx.ops.normalizations import Normalization
from functx.ops.random_bits import RandomBits, RandomFoldIn, RandomSeed, RandomSplit
from functx.ops.reductions import Reduction
from functx.ops.shaping import BroadcastInDim, Full, PermuteDims, Reshape, Rev
from functx.ops.slicing import DynamicSlice, Slice
from functx.ops.softmax import LogSoftmax, Softmax
from functx.ops.trigonometric import Atan2

VIEW_PRIMITIVES = (
    BroadcastInDim, Copy, DynamicSlice, CheckpointName, PermuteDims, Reshape, Rev, Slice, Split, StopGradient,
)  # fmt: skip
"""What shows an array in another way: it costs nothing to do again."""
_POINTWISE = (
    Elementwise,
    Constant,
    Concatenate,
    ConvertElementType,
    Full,
    Iota,
    Pad,
    *VIEW_PRIMITIVES,
)
_CHEAP = (*_POINTWISE, Reduction, Normalization, Loss, Softmax, LogSoftmax)
_EXPENSIVE_POINTWISE = (Inexact, Atan2, Div, Pow, Rem)
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
    if isinstance(primitive, DotGeneral):
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
