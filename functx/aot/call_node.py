"""The node of a call of an `aot_function`, whose pullback is a compiled backward program."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from functx import ops
from functx.autograd.engine import Walk
from functx.autograd.gradients import Gradient
from functx.autograd.nodes import (
    AccumulateGrad,
    Edge,
    Node,
    OperationNode,
    OperationSplit,
    Pullback,
    SavedValue,
    freed_error,
    zero_outputs,
)
from functx.autograd.recorded import Recorded, constant
from functx.autograd.recorded_operations import Operation, operation_of
from functx.autograd.saved import PackedValue
from functx.core.caches import IdentityKey
from functx.core.dead_code import dce_equations
from functx.core.masks import indices_where
from functx.core.program import Atom, Literal, Program
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.types import is_inexact
from functx.core.typing import Value
from functx.passes.memory_planning import backward_slice
from functx.transforms.call_primitive import known_masks
from functx.transforms.dce import (
    RemoveEffects,
    dependents_of,
    take_first_outputs,
    used_variables,
    with_io,
)

if TYPE_CHECKING:
    from functx.aot.compilers import CompiledProgram


class CallPullback:
    """The pullback of the calls of one compiled function.

    `program` is the pure function from the inputs to the outputs that take a tangent, `active` the mask
    of the inputs in which gradients are computed. `compiled` takes the saved values, then the
    tangents, and returns the gradients that exist, which `gradients` numbers by input.
    """

    def __init__(
        self,
        label: str,
        program: Program,
        active: Sequence[bool],
        compiled: CompiledProgram,
        gradients: Sequence[int | None],
    ):
        self.label, self.program, self.active = label, program, tuple(active)
        self.compiled, self.gradients = compiled, gradients
        self.key = IdentityKey(program)

    @cached_property
    def split(self) -> OperationSplit:
        """The function as an operation whose pullback computes everything again from the operands."""
        program = self.without_effects
        unmasked = cached_rewrite(Pullback(self.active, False), program)
        avals = program.out_avals
        return OperationSplit(
            program=program,
            values=operation_of(program),
            pullbacks=None,
            name=self.label,
            out_avals=avals,
            active=self.active,
            active_positions=tuple(indices_where(self.active)),
            is_active=True,
            differentiable=tuple(range(len(avals))),
            operand_residuals=(),
            saved_operands=(),
            saved_outputs=(),
            checks_outputs=True,
            recomputes=True,
            zeros=zero_outputs(unmasked, sum(self.active)),
            refusal=None,
            memo={},
        )

    @cached_property
    def without_effects(self) -> Program:
        """The program for a second run: effects do not happen again.

        Raises EffectError for one whose results are needed.
        """
        program = self.program
        if not program.effects:
            return program
        needed = backward_slice(program.outputs, program.equations)
        return cached_rewrite(RemoveEffects(), replace_program_fields(program, equations=needed))

    @cached_property
    def needs_masks(self) -> bool:
        """Whether a gradient depends on where the tangents are masked."""
        masked = take_first_outputs(
            cached_rewrite(Pullback(self.active, True), self.without_effects), sum(self.active)
        )
        count = len(self.program.outputs)
        read = used_variables(dce_equations(masked.equations, masked.outputs), masked.outputs)
        return not read.isdisjoint(masked.inputs[count : 2 * count])

    def mask_operation(self, masked: bool) -> tuple[Operation, list[Atom]] | None:
        """The operation that computes the masks of the gradients, and its outputs; None without masks.

        It takes what the pullback takes.
        """
        program = cached_rewrite(Pullback(self.active, masked), self.without_effects)
        masks = program.outputs[sum(self.active) :]
        if not any([type(a) is not Literal for a in masks]):
            return None
        return operation_of(cached_rewrite(MaskOutputs(sum(self.active)), program)), masks

    @cached_property
    def tangents_used(self) -> list[frozenset[int]]:
        """For each gradient of the compiled program, the positions of the tangents that it depends on."""
        program = self.compiled.program
        first = len(program.inputs) - len(self.program.outputs)
        reached = [dependents_of([v], program.equations) for v in program.inputs[first:]]
        return [
            frozenset([i for i, found in enumerate(reached) if atom in found])
            for atom in program.outputs
        ]


class MaskOutputs(Rewrite[Program]):
    """The rewrite to the program of the outputs from number `start` on."""

    start: int

    def __call__(self, program: Program) -> Program:
        return with_io(program, program.inputs, program.outputs[self.start :])


class CompiledCallNode(Node):
    """The node of a call of an `aot_function`.

    Its outputs are those that take a tangent. `saved` holds what the compiled pullback takes first;
    `operands` the inputs, from which a derivative of the pullback, or one with masks, computes again.
    Both are None once they are freed.
    """

    saved: list[Any] | None
    operands: list[Any] | None

    def __init__(self, pullback: CallPullback, edges: Sequence[Edge | None]):
        super().__init__(pullback.label, edges, pullback.program.out_avals)
        self.pullback = pullback
        self.saved = self.operands = None

    @property
    def structure(self) -> object:
        return self.pullback.key

    def pull_back(self, walk: Walk, gradients: list[Gradient | None]) -> list[Gradient | None]:
        """The gradients of the inputs."""
        if not any(gradients):
            return [None] * len(self.edges)
        if self.saved is None or self.operands is None:
            raise freed_error(self.label)
        has_masks = any([g is not None and g.mask is not None for g in gradients])
        results = None
        if walk.has_recorded_values:
            results = self.pull_back_compiled(walk, gradients, has_masks)
        if results is None:
            results = self.pull_back_again(walk, gradients)
        if not walk.retain_graph:
            self.saved = self.operands = None
        return results

    def pull_back_again(
        self, walk: Walk, gradients: list[Gradient | None]
    ) -> list[Gradient | None]:
        """The gradients by a pullback that is traced again: operations of the walk, from the operands."""
        node = OperationNode(self.pullback.split, self.edges, [])
        node.operands = self.operands
        results = walk.pull_back(node, gradients)
        return [g if e is not None else None for g, e in zip(results, self.edges, strict=True)]

    def pull_back_compiled(
        self, walk: Walk, gradients: list[Gradient | None], has_masks: bool
    ) -> list[Gradient | None] | None:
        """The gradients by the compiled program; None where these need the masks of the tangents.

        The program multiplies masked zeros too. Where a derivative is infinite, that gives nan.
        """
        pullback = self.pullback
        values = [self.load(x).look() for x in self.saved or ()]
        tangents = [
            walk.filled(aval, 0) if g is None else g.value
            for g, aval in zip(gradients, self.out_avals, strict=True)
        ]
        values += [value_of_gradient(x) for x in tangents]
        outs = pullback.compiled(values)
        if has_masks and pullback.needs_masks and has_nan(outs):
            return None
        masks = self.masks(walk, gradients, tangents, has_masks)
        missing = {i for i, g in enumerate(gradients) if g is None}
        results: list[Gradient | None] = []
        for i, (number, edge) in enumerate(zip(pullback.gradients, self.edges, strict=True)):
            if (
                number is None
                or edge is None
                or (missing and pullback.tangents_used[number] <= missing)
            ):
                results.append(None)
            else:
                results.append(Gradient(constant(outs[number]), masks.get(i)))
        return results

    def masks(
        self,
        walk: Walk,
        gradients: Sequence[Gradient | None],
        tangents: Sequence[Any],
        has_masks: bool,
    ) -> dict[int, Any]:
        """The masks of the gradients by input, as far as they are known; leaves need none."""
        pullback = self.pullback
        if all([e is None or isinstance(e[0], AccumulateGrad) for e in self.edges]):
            return {}
        found = pullback.mask_operation(has_masks)
        if found is None:
            return {}
        operation, atoms = found
        operands = [*tangents]
        if has_masks:
            operands += [
                walk.filled(aval.update(dtype=ops.BOOL), g is not None)
                if g is None or g.mask is None
                else g.mask
                for g, aval in zip(gradients, self.out_avals, strict=True)
            ]
        operands += [self.load(x) for x in self.operands or ()]
        known = known_masks(atoms, walk.apply(operation, operands))
        positions = indices_where(pullback.active)
        return {i: mask for i, mask in zip(positions, known, strict=True) if mask is not None}

    def load(self, x: Any) -> Recorded:
        """A saved value; SavedValueError if it was written to since."""
        return x.load(self.label) if isinstance(x, (SavedValue, PackedValue)) else x


def has_nan(arrays: Sequence[Any]) -> bool:
    """Whether an array has an element that is nan."""
    return bool(_any_nan([x for x in arrays if is_inexact(x.dtype)]))


@jax.jit
def _any_nan(arrays: Sequence[Any]) -> Value:
    found = jnp.array(False)
    for x in arrays:
        found |= jnp.isnan(x).any()
    return found


def value_of_gradient(x: Any) -> Any:
    """The value of a gradient of a plain walk, as an array."""
    return x.look() if type(x) is Recorded else np.asarray(x.value, x.aval.dtype)
