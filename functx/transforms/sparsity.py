"""Sparsity patterns of derivatives, read off the program that computes tangents.

The tangents of the outputs are linear in those of the inputs, so the pattern is that of a linear
program: `index_sets` of each primitive says which elements of the tangents an element depends on. A
Hessian is the Jacobian of a gradient, whose program has no term for linear parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np

from functx import ops
from functx.core.backend import backend
from functx.core.decompositions import class_decomposition
from functx.core.errors import PatternSizeError
from functx.core.index_sets import DependentOperand, IndexSets, Sets
from functx.core.masks import select_where
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Literal, Program, Var
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.tracer import Tracer, aval_of
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Avals, NumPyArray
from functx.transforms.decompose import builtin_decomposition
from functx.transforms.forward_mode import JVPRewrite
from functx.transforms.sparsity_pattern import SparsityPattern

LOOP_EQUATIONS = 20_000
"""The number of equations of loops that are followed step by step; longer loops have a fixed point."""
FIXED_POINT_STEPS = 32
"""The steps after which carries whose sets still grow are taken to depend on all operands."""

MOST_PLACES = 2**27
"""The number of places beyond which a pattern is refused."""

KnownArrays = tuple[ops.DenseConstant | None, ...]
"""The value of each input of a program that is known, as a constant; None for the others."""


def known_arrays(values: Sequence[Any]) -> KnownArrays:
    """The values of captured integers and booleans, which are the same whenever a program runs."""
    return tuple([_known_array(x) for x in values])


def _known_array(x: object) -> ops.DenseConstant | None:
    """The value of an array of integers or booleans; None for other arrays and for traced ones."""
    aval = aval_of(x)
    if isinstance(x, Tracer) or aval.dtype not in _KNOWN_DTYPES:
        return None
    value = backend.concrete_or_none(x)
    if value is None:
        return None
    own = ShapedArray(aval.shape, aval.dtype)
    return ops.DenseConstant(own, np.asarray(value, aval.dtype).tobytes())


_KNOWN_DTYPES = frozenset(map(np.dtype, ("?bhilqBHILQ")))


class SparsityAnalysis(IndexSets):
    """The walk through linear programs that finds the index sets of their outputs."""

    equations = 0
    """The number of equations that the walk has passed."""

    def run(self, program: Program, operands: Sequence[DependentOperand]) -> list[DependentOperand]:
        """The outputs of `program`, with their sets and values, from those of the inputs."""
        env = dict(zip(program.inputs, operands, strict=True))
        for eqn in program.equations:
            self.equations += 1
            outs = self.apply(eqn, [_read(env, atom) for atom in eqn.inputs])
            env.update(zip(eqn.outputs, outs, strict=True))
        return [_read(env, atom) for atom in program.outputs]

    def apply(self, eqn: Equation, operands: Sequence[DependentOperand]) -> list[DependentOperand]:
        """The outputs of an equation on `operands`."""
        primitive, avals = eqn.primitive, [v.aval for v in eqn.outputs]
        if not primitive.differentiable or all([x.sets is None for x in operands]):
            return _constant_outputs(eqn, operands)
        outs: Sequence[Any]
        if primitive.index_sets is not None:
            outs = primitive.as_list(primitive.index_sets(self, *operands))
        elif class_decomposition(type(primitive)) is not None:
            in_avals = tuple([x.aval for x in operands])
            outs = self.run(builtin_decomposition(primitive, in_avals), operands)
        else:
            outs = [self.union_of_all(operands)] * len(avals)
        return [_as_operand(out, aval) for out, aval in zip(outs, avals, strict=True)]

    def can_follow(self, program: Program, steps: int = 1) -> bool:
        """Whether `steps` runs of the body of a loop are few enough to be followed one by one."""
        return self.equations + steps * len(program.equations) <= LOOP_EQUATIONS

    def fixed_point(
        self,
        step: Callable[[Sequence[DependentOperand]], Sequence[DependentOperand]],
        carry: Sequence[DependentOperand],
        operands: Sequence[DependentOperand],
    ) -> list[DependentOperand]:
        """The carries, of unknown values, whose sets contain those before and after any step of a loop.

        `operands` are all operands of the loop.
        """
        state = [DependentOperand(x.aval, x.sets) for x in carry]
        for steps in count():
            following = self.union_operands([state, step(state)])
            grown = [not _same_sets(x.sets, y.sets) for x, y in zip(state, following, strict=True)]
            if not any(grown):
                break
            if steps >= FIXED_POINT_STEPS:
                # No union is larger, so each such step ends the growth of a carry.
                following = [
                    x._replace(sets=self.union_of_all(operands, x.aval.shape)) if on else x
                    for x, on in zip(following, grown, strict=True)
                ]
            state = following
        return state

    def union_operands(
        self, results: Sequence[Sequence[DependentOperand]]
    ) -> list[DependentOperand]:
        """Operands of unknown values that depend on all that those at their position depend on."""
        return [
            DependentOperand(xs[0].aval, self.union(*[x.sets for x in xs]))
            for xs in zip(*results, strict=True)
        ]


def _read(env: dict[Var, DependentOperand], atom: Atom) -> DependentOperand:
    if type(atom) is not Literal:
        return env[atom]  # type: ignore[index]
    if is_inexact(atom.aval.dtype):
        return DependentOperand(atom.aval)
    value = np.asarray(atom.value, atom.aval.dtype)
    return DependentOperand(atom.aval, None, lambda: value)


def _as_operand(out: Sets | DependentOperand, aval: ShapedArray) -> DependentOperand:
    """An output of a rule; sets that are all empty become None."""
    if isinstance(out, DependentOperand):
        return out
    # Operations that were evaluated return arrays of functx, whose methods compile.
    numbers = None if out is None else np.asarray(out)
    if numbers is None or not numbers.any() or not is_inexact(aval.dtype):
        return DependentOperand(aval)
    return DependentOperand(aval, np.broadcast_to(numbers, aval.shape))


def _same_sets(x: Sets, y: Sets) -> bool:
    return x is y or (x is not None and y is not None and np.array_equal(x, y))


def _constant_outputs(
    eqn: Equation, operands: Sequence[DependentOperand]
) -> list[DependentOperand]:
    """The outputs of an equation that depend on no index; integers are computed when they are asked for."""
    primitive, avals = eqn.primitive, [v.aval for v in eqn.outputs]
    inexact = [is_inexact(a.dtype) for a in [*[x.aval for x in operands], *avals]]
    if any(inexact) or primitive.effects or primitive.is_context_dependent:
        return [DependentOperand(aval) for aval in avals]

    pending = PendingValues(primitive, operands, avals)
    return [DependentOperand(a, None, PendingValue(pending, i)) for i, a in enumerate(avals)]


class PendingValues:
    """The values of the outputs of an operation on integers, computed when one is asked for."""

    def __init__(self, primitive: Primitive, operands: Sequence[DependentOperand], avals: Avals):
        self.primitive, self.operands, self.avals = primitive, operands, avals
        self.is_computed = False
        self.values: list[NumPyArray | None] = [None] * len(avals)

    def get(self) -> list[NumPyArray | None]:
        """The values; None where an operand is not known."""
        stack = [self]
        # Operands are computed before the operations on them, so that long chains need no recursion.
        while stack:
            waiting = [p for p in stack[-1].sources() if not p.is_computed]
            stack += waiting
            if not waiting:
                stack.pop().compute()
        return self.values

    def sources(self) -> list[PendingValues]:
        """The operations that the operands are outputs of."""
        values = [x.value for x in self.operands]
        return [value.outputs for value in values if isinstance(value, PendingValue)]

    def compute(self) -> None:
        """Compute the values from those of the operands."""
        if self.is_computed:
            return
        values, primitive = [x.value() for x in self.operands], self.primitive
        if all([value is not None for value in values]):
            if primitive.numpy is not None:
                result = primitive.numpy(*values)
            else:
                result = backend.evaluate_eagerly(primitive, values)
            pairs = zip(primitive.as_list(result), self.avals, strict=True)
            self.values = [np.asarray(x).astype(a.dtype) for x, a in pairs]
        self.is_computed, self.operands = True, ()


class PendingValue:
    """The value of one output of an operation on integers."""

    def __init__(self, outputs: PendingValues, number: int):
        self.outputs, self.number = outputs, number

    def __call__(self) -> NumPyArray | None:
        return self.outputs.get()[self.number]


class JacobianPattern(Rewrite[SparsityPattern]):
    """The analysis that finds the pattern of the Jacobian of a program, forward mode.

    The rows are the elements of its first `outputs` inexact outputs, the columns those of its inputs
    marked `active`. `known` are the values of inputs.
    """

    active: tuple[bool, ...]
    outputs: int
    known: KnownArrays

    def __call__(self, program: Program) -> SparsityPattern:
        tangents = cached_rewrite(JVPRewrite(self.active), program)
        avals = select_where(program.in_avals, self.active)
        operands = [_known_operand(a, c) for a, c in zip(program.in_avals, self.known, strict=True)]
        size = sum(a.size for a in avals)
        analysis = SparsityAnalysis(size)
        operands += standard_sets(avals)
        outs = analysis.run(tangents, operands)[len(program.outputs) :][: self.outputs]
        numbers = [
            np.zeros(x.aval.size, np.int32) if x.sets is None else x.sets.ravel() for x in outs
        ]
        flat = np.concatenate([np.zeros(0, np.int32), *numbers])
        starts = np.concatenate([[0], np.cumsum(analysis.lengths(flat))])
        if starts[-1] > MOST_PLACES:
            raise PatternSizeError(
                f"{program.name}: a sparsity pattern must have at most {MOST_PLACES} places; got "
                f"{starts[-1]} of {len(flat) * size}",
                fix="Use jacfwd or jacrev with a chunk_size, or products with vectors (jvp, vjp, hvp).",
            )
        return SparsityPattern((len(flat), size), starts, analysis.members_of(flat))


def standard_sets(avals: Avals) -> list[DependentOperand]:
    """Operands of types `avals`, each element of which is one index."""
    operands, start = [], 1
    for aval in avals:
        numbers = np.arange(start, start + aval.size, dtype=np.int32).reshape(aval.shape)
        operands.append(DependentOperand(aval, numbers))
        start += aval.size
    return operands


def _known_operand(aval: ShapedArray, constant: ops.DenseConstant | None) -> DependentOperand:
    return (
        DependentOperand(aval) if constant is None else DependentOperand(aval, None, constant.array)
    )
