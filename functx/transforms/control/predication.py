"""Predication: `cond` and `while` under `vmap`, if batch elements choose or stop on their own.

All elements of a batch run the same equations. An element is *inactive* in a branch that it
does not take, and in the steps of a loop that it has left. Selecting the results of active
elements by a mask is not enough, since inactive ones compute on operands for which the code
was not written:

- a loop in the branch may never end for them;
- they may compute inf or nan, and 0 * inf is nan in derivatives. Masks keep that from the
  cotangent of an operand of one element. The cotangent of an operand that the batch shares is
  a sum over all elements; to mask its terms would take a copy of the operand for each.

So an inactive element borrows the operands of the first active one, and computes the same:

    def f(n, x):
        return cond(n > 0, lambda: while_loop(lambda y: y < 100, lambda y: 2 * y, x), lambda: x)

    vmap(f)([1, 0], [3, 0])

    mask      [True, False]   n > 0
    operands  [3, 0]          2 * 0 stays below 100: the second loop would never end
    borrowed  [3, 3]          MaskedOperand(borrow_active=True)(mask, x)
    loop      [192, 192]      both end after 6 steps
    result    [192, 0]        select(mask, loop, x)

This happens in three steps:

1. `Predicated` rewrites the program of one element to take a scalar `mask` first, and passes
   operands through `MaskedOperand`. In-place updates write back the old values if the mask
   does not hold, so no whole array is copied for the selection.
2. The derivative of `MaskedOperand` is zero where the mask does not hold.
3. Batching turns the scalar mask to one for each element. The batching rule of
   `MaskedOperand` then copies the row of the first active element to the inactive ones.

Borrowing copies each batched operand. If the program has no unbounded loop and no shared
array (`must_borrow_active`), `MaskedOperand(borrow_active=False)` only masks derivatives.
`PredicatedLoop` does the same to a loop: the mask, one more carry, says which elements go on;
the loop runs while any does (`AnyActive`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import TypeIs

from functx import ops
from functx.core.captures import Hoisting
from functx.core.effects import Effect
from functx.core.errors import DTypeError, ShapeError
from functx.core.masks import split_list
from functx.core.primitive import Primitive
from functx.core.primitive_families import HasPrograms, UpdatesInPlace
from functx.core.program import Atom, Equation, Literal, Program, Var, subprograms
from functx.core.rewriting import Rewrite, apply, bind_equation, cached_rewrite, interpret
from functx.core.samples import EXACT, bool_, f32, i32, sample
from functx.core.tracer import Tracer, aval_of
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import (
    Cotangents,
    Dim,
    Dims,
    Flags,
    IRValue,
    NumPyArray,
    Tangent,
    Tangents,
    Value,
    Values,
)
from functx.ops.collectives import AxisIndex
from functx.ops.families import TransposedByVJP, UnchangedValue
from functx.ops.operands import batch_size, literal
from functx.ops.philox import Draw, SelectState
from functx.transforms.control.scan import Scan
from functx.transforms.symbolic_zeros import continued_state, state_operand

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext

MASK_AVAL = bool_[()]


class MaskedOperand(TransposedByVJP):
    """The operand `x` of a computation that counts only if `mask` holds.

    No derivative passes where `mask` does not hold. With `borrow_active`, inactive elements of a
    batch get the operand of the first active one. `mask` has the leading dimensions of `x`, and
    no dimensions with `borrow_active`.
    """

    borrow_active: bool
    # `transpose` is that of the derivative: the value is not masked.
    linear = ()
    may_share_outputs = True
    rounding = EXACT
    samples = (
        sample(bool_[()], f32[3], values={0: True}, borrow_active=True),
        sample(bool_[()], i32[()], values={0: True}, borrow_active=True),
        sample(bool_[()], f32[3], values={0: False}, gradients={1: [0.0, 0.0, 0.0]}, borrow_active=False),
        sample(
            bool_[2], f32[2, 2], values={0: [True, False]},
            gradients={1: [[1.0, 1.0], [0.0, 0.0]]}, borrow_active=False,
        ),
    )  # fmt: skip

    def abstract_eval(self, mask: ShapedArray, x: ShapedArray) -> ShapedArray:
        if mask.dtype != bool:
            raise DTypeError(f"masked_operand: `mask` must be boolean; got {mask!r}")
        if x.shape[: mask.ndim] != mask.shape or (self.borrow_active and mask.shape):
            raise ShapeError(
                "masked_operand: `mask` must have the first dimensions of the operand; "
                f"got {mask!r} for {x!r}"
            )
        return x

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Value, Tangent]:
        return self(*primals), zero_inactive(primals[0], tangents[1])

    def vjp(self, ct: Value, out: Value, args: Values, active: Flags) -> Cotangents:
        return None, zero_inactive(args[0], ct)

    def batch(self, args: Values, dims: Dims) -> tuple[Value, Dim]:
        (mask, x), (mask_dim, dim) = args, dims
        size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
        if (mask_dim is None and not mask.ndim) or (size == 0 and self.borrow_active):
            return self(*args) if mask_dim is None else x, dim
        mask = ops.batch_dim_at(mask, mask_dim, 0, size)
        if self.borrow_active:
            # In an outer batch, there may be elements for which no element of this batch is active.
            x = x if dim is None else borrow_active_row(mask, ops.moveaxis(x, dim, 0))
            return self(ops.reduce_or(mask), x), None if dim is None else 0
        if dim is None and not is_inexact(x.dtype):
            return x, None
        return self(mask, ops.batch_dim_at(x, dim, 0, size)), 0

    def numpy(self, mask: NumPyArray, x: NumPyArray) -> NumPyArray:
        return x

    def lower(self, ctx: LoweringContext, mask: IRValue, x: IRValue) -> IRValue:
        return x


def borrow_active_row(mask: Value, x: Value) -> Value:
    """`x` with the rows of inactive elements replaced by that of the first active one."""
    first = ops.argmax(mask, 0, np.int32)
    start = [first, *[literal(0, first.dtype)] * (x.ndim - 1)]
    row = MaskedOperand(False)(False, ops.DynamicSlice((1, *x.shape[1:]))(x, *start))
    borrowed = ops.broadcast_in_dim(row, x.shape, tuple(range(x.ndim)))
    return ops.select(ops.broadcast_in_dim(mask, x.shape, (0,)), x, borrowed)


class AnyActive(UnchangedValue):
    """Whether `mask` holds for any element of a batch; `mask` itself without a batch."""

    differentiable = False
    may_share_outputs = True
    samples = (sample(bool_[()], values={0: True}),)

    def abstract_eval(self, mask: ShapedArray) -> ShapedArray:
        if mask.dtype != bool:
            raise DTypeError(f"any_active: `mask` must be boolean; got {mask!r}")
        return mask

    def batch(self, args: Values, dims: Sequence[int]) -> tuple[Value, Dim]:
        return ops.reduce_or(args[0], dims), None


def zero_inactive(mask: Value, t: Tangent) -> Tangent:
    """`t` where `mask`, of its leading dimensions, holds, else zero; None if all is zero."""
    never = type(mask) is Tracer and type(mask.atom) is Literal and not mask.atom.value
    if t is None or never:
        return None
    if mask.ndim:
        mask = ops.broadcast_leading(mask, t.shape)
    return ops.select(mask, t, literal(0, t.dtype))


class Predicated(Rewrite[Program]):
    """Rewrites a program to one that counts only if its first input, `mask`, holds.

    `in_place_inputs[j]` is the input that output j keeps if the mask does not hold, None if any
    value will do. An output that is made of that input by in-place updates remains so: the
    updates are masked, and no whole array is selected.
    """

    in_place_inputs: tuple[int | None, ...]
    borrow_active: bool

    def __call__(self, program: Program) -> Program:
        updates = _InPlaceUpdates(program, self.in_place_inputs)
        masked_operands = {
            atom
            for eqn in program.equations
            for i, atom in enumerate(eqn.inputs)
            if i not in updates.unmasked_operands(eqn)
        }

        def body(mask: Value, *args: Value) -> list[Value]:
            def masked(x: Value) -> Value:
                return MaskedOperand(self.borrow_active)(mask, x)

            # Each variable has its value, and the masked value; None where that is not made yet.
            def step(eqn: Equation, *operands: tuple[Any, Any]) -> list[tuple[Any, Any]]:
                unmasked = updates.unmasked_operands(eqn)
                xs = [
                    x if i in unmasked else masked(x) if masked_x is None else masked_x
                    for i, (x, masked_x) in enumerate(operands)
                ]
                changed = [v in updates.updated for v in eqn.outputs]
                if any(changed):
                    update: Any = eqn.primitive
                    outs = update.masked_update(mask, changed, self.borrow_active, xs)
                    return [(x, None if on else x) for x, on in zip(outs, changed, strict=True)]
                outs = [*bind_equation(eqn, *xs)]
                if unmasked and self.needs_masking(aval_of(outs[0])):
                    outs = [masked(outs[0])]
                return [(x, x) for x in outs]

            pairs = [
                (x, masked(x) if v in masked_operands and self.needs_masking(v.aval) else x)
                for v, x in zip(program.inputs, args, strict=True)
            ]
            outs = interpret(program, pairs, step, constant=lambda c: (c, c))
            kept = zip(outs, self.in_place_inputs, updates.chains, strict=True)
            return [
                x
                if i is None or chain is not None
                else SelectState()(mask, x, args[i])
                if continued_state(program, j) == i
                else ops.select(mask, x, args[i])
                for j, ((x, _), i, chain) in enumerate(kept)
            ]

        return trace_closed(body, [MASK_AVAL, *program.in_avals], name=program.name)

    def needs_masking(self, aval: ShapedArray) -> bool:
        """Whether values of this type are masked: inexact ones, or all that are borrowed."""
        return self.borrow_active or is_inexact(aval.dtype)


class _InPlaceUpdates:
    """The in-place updates of a program that make inputs its outputs.

    `chains` has for each output the variables that lead to it from its input, or None;
    `updated` are all of these, and `bases` the variables that they update.
    """

    def __init__(self, program: Program, in_place_inputs: Sequence[int | None]):
        self.chains = [
            None if i is None else in_place_update_chain(program, j, program.inputs[i])
            for j, i in enumerate(in_place_inputs)
        ]
        self.updated = {v for chain in self.chains for v in chain or ()}
        self.bases = {updated_atom(program.def_use.producers[v], v) for v in self.updated}

    def unmasked_operands(self, eqn: Equation) -> Sequence[int]:
        """The positions of the operands that an equation takes as they are."""
        if isinstance(eqn.primitive, UpdatesInPlace) and not self.updated.isdisjoint(eqn.outputs):
            return eqn.primitive.self_masked_operands(len(eqn.inputs))
        reads_base = isinstance(eqn.primitive, READ_PRIMITIVES) and eqn.inputs[0] in self.bases
        return (0,) if reads_base else ()


READ_PRIMITIVES = ops.DynamicSlice, ops.Gather, ops.Slice


def updated_atom(eqn: Equation, output: Var) -> Atom | None:
    """The operand that an equation updates in place to get `output`; None if there is none."""
    if not isinstance(eqn.primitive, UpdatesInPlace):
        return None
    position = eqn.primitive.in_place_operand(eqn.outputs.index(output))
    return None if position is None else eqn.inputs[position]


@state_operand.register
def _state_of_draw(primitive: Draw, output: int) -> int | None:
    return primitive.in_place_operand(output)


@state_operand.register
def _state_of_selection(primitive: SelectState, output: int) -> int | None:
    return primitive.in_place_operand(output)


@state_operand.register
def _state_of_scan(primitive: Scan, output: int) -> int | None:
    carry = primitive.consts + output
    is_carried = output < primitive.carries and continued_state(primitive.program, output) == carry
    return carry if is_carried else None


def in_place_update_chain(
    program: Program, output: int, root: Var | None = None
) -> list[Var] | None:
    """The variables that lead from the input `root` to an output by in-place updates.

    None if they do not. Without a `root`, any input will do, and is the last variable.
    """
    producer_of = program.def_use.producers
    chain: list[Var] = []
    atom: Any = program.outputs[output]
    while (eqn := producer_of.get(atom)) is not None:
        updated = updated_atom(eqn, atom)
        if updated is None:
            return None
        chain.append(atom)
        atom = updated
    if root is None:
        return [*chain, atom] if type(atom) is Var else None
    return chain if atom is root else None


def in_place_input(program: Program, output: int) -> int | None:
    """The position of the input that an output is made of by in-place updates; None without one."""
    chain = in_place_update_chain(program, output)
    return continued_state(program, output) if chain is None else program.inputs.index(chain[-1])


def must_borrow_active(program: Program, shared: Flags) -> bool:
    """Whether inactive batch elements must borrow the operands of an active one.

    They must if `program` has a loop whose condition may never fail for them, or reads an
    inexact array of those marked in `shared`: to mask its cotangent for each element would take
    a copy of the array for each. For shared scalars such copies are cheap.
    """
    if has_unbounded_loop(program):
        return True
    used = {atom for eqn in program.equations for atom in eqn.inputs}
    return any(
        on and v.aval.ndim and is_inexact(v.aval.dtype) and v in used
        for v, on in zip(program.inputs, shared, strict=True)
    )


def has_unbounded_loop(program: Program) -> bool:
    """Whether `program` contains, at any depth, a loop that runs until a condition fails."""
    found: bool | None = program.memo.get(has_unbounded_loop)
    if found is None:
        found = program.memo[has_unbounded_loop] = any(
            getattr(eqn.primitive, "unbounded", False)
            for each in program.walk()
            for eqn in each.equations
        )
    return found


class PredicatedLoop(Rewrite[tuple[Program, Program]]):
    """Rewrites the body of a loop to one for batch elements that stop on their own.

    Returns the condition that any element is active, and the body. Both take the `shared` consts
    of the old condition, the consts of the old body, the mask, and the old carry.
    """

    condition: Program
    shared: int
    borrow_active: bool

    def __call__(self, body: Program) -> tuple[Program, Program]:
        count = len(body.outputs)
        consts = len(body.inputs) - count
        predicated = cached_rewrite(
            Predicated(tuple(range(consts, consts + count)), self.borrow_active), body
        )
        condition_is_masked = has_unbounded_loop(self.condition)
        masked_condition = (
            cached_rewrite(Predicated((None,), True), self.condition)
            if condition_is_masked
            else self.condition
        )

        def step(*args: Value) -> list[Value]:
            condition_consts, body_consts, (mask,), carry = split_list(
                args, [self.shared, consts, 1]
            )
            carry = apply(None, predicated, [mask, *body_consts, *carry])
            masks = [mask] * condition_is_masked
            (goes_on,) = apply(None, masked_condition, [*masks, *condition_consts, *carry])
            return [ops.bitwise_and(mask, goes_on), *carry]

        carry_avals = [MASK_AVAL, *body.in_avals[consts:]]
        avals = [*self.condition.in_avals[: self.shared], *body.in_avals[:consts], *carry_avals]
        any_active = trace_closed(
            lambda mask, *_: [AnyActive()(mask)], carry_avals, name="any_active"
        )
        return any_active, trace_closed(step, avals, name=body.name)


def with_index_operands(
    primitive: HasPrograms, args: Values, dims: Dims, name: Hashable
) -> tuple[Primitive, Values, Dims] | None:
    """`primitive` with the index along the mapped axis `name` as an operand, which can be borrowed.

    Also returns its operands and their batch dimensions. It is `primitive` itself if only operations
    such as custom derivatives read the index, which pass it on to no loop of unknown length. None if
    the programs communicate over the axis.
    """

    def is_index(each: Primitive) -> TypeIs[AxisIndex]:
        return type(each) is AxisIndex and each.axis == name

    hoisting = Hoisting(is_index, lambda each: name in each.named_axes)
    programs, indices = hoisting.hoist_from_subprograms(primitive)
    left = [
        eqn.primitive
        for program in programs
        for each in program.walk()
        for eqn in each.equations
        if name in eqn.primitive.named_axes and not subprograms(eqn.primitive)
    ]
    if not all(map(is_index, left)) or (left and any(map(has_unbounded_loop, programs))):
        return None
    if not any(indices):
        return primitive, args, dims
    extras = [[index.batch([], []) for index in each] for each in indices]
    pairs: Sequence[tuple[Any, Any]] = list(zip(args, dims, strict=True))
    hoisted, pairs = primitive.hoist_constants(programs, extras, pairs)
    return hoisted, [x for x, _ in pairs], [dim for _, dim in pairs]


def batch_sequentially(
    primitive: Primitive, args: Values, dims: Sequence[int | None]
) -> tuple[Values, Dims]:
    """The batched outputs of `primitive`, run for one element at a time; their dimensions.

    Elements whose only effects are checks run together.
    """
    if Effect.CHECK in primitive.effects:
        from functx.transforms.checkify import batch_checked

        return batch_checked(primitive, args, dims)
    size = batch_size(args, dims)
    shared = [x for x, d in zip(args, dims, strict=True) if d is None]
    rows = [ops.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True) if d is not None]

    def element(*xs: Value) -> list[Value]:
        row_values, values = iter(xs[len(shared) :]), iter(xs)
        operands = [next(values if d is None else row_values) for d in dims]
        return primitive(*operands)

    avals = [*[aval_of(x) for x in shared], *[aval_of(x).update(shape=x.shape[1:]) for x in rows]]
    body = trace_closed(element, avals, name=f"each_{primitive.name}")
    outs = Scan(body, len(shared), 0, size)(*shared, *rows)
    return outs, [0] * len(outs)
