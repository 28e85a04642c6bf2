"""Lanes: what a batch does where its lanes choose and stop each for itself.

The program that every lane runs is rewritten to one that counts only if its first input,
`live`, holds, and is then batched. A lane that is not live goes along with one that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy as np

from functx import ops
from functx.core.errors import DTypeError, ShapeError
from functx.core.primitive import Primitive
from functx.core.program import Equation, Literal, Program, Var
from functx.core.records import Rewrite
from functx.core.rewriting import apply, bind_equation, cached_rewrite, interpret
from functx.core.samples import bool_, f32, i32, sample
from functx.core.tracing import aval_of, trace_closed
from functx.core.types import is_inexact, kind
from functx.ops.operands import batch_size, literal
from functx.transforms.control.scan import Scan

MASK_AVAL = bool_[()]


class MaskedOperand(Primitive):
    """The operand `x` of a computation that counts only where `live` holds.

    No derivative passes where it does not hold. With `along`, a lane of a batch then has the
    operand of a lane in which it does, so that it computes what that one does: it takes no
    more steps in a loop, and adds nothing that is not finite to the cotangent of an operand
    which the lanes share. `live` has the first dimensions of `x`; none with `along`.
    """

    borrow_active: bool
    # `transpose` is that of the derivative, not of the value.
    linear = ()
    samples = (
        sample(bool_[()], f32[3], values={0: True}, borrow_active=True),
        sample(bool_[()], i32[()], values={0: True}, borrow_active=True),
        sample(bool_[()], f32[3], values={0: False}, gradients={1: [0.0, 0.0, 0.0]}, borrow_active=False),
        sample(
            bool_[2], f32[2, 2], values={0: [True, False]},
            gradients={1: [[1.0, 1.0], [0.0, 0.0]]}, borrow_active=False,
        ),
    )  # fmt: skip

    def abstract_eval(self, live, x):
        if live.dtype != bool:
            raise DTypeError(f"masked_operand: `live` must be boolean; got {live!r}")
        if x.shape[: live.ndim] != live.shape or (self.borrow_active and live.shape):
            raise ShapeError(
                "masked_operand: `live` must have the first dimensions of the operand; "
                f"got {live!r} for {x!r}"
            )
        return x

    def jvp(self, primals, tangents):
        return self(*primals), zero_inactive(primals[0], tangents[1])

    def vjp(self, ct, out, args, active):
        return None, zero_inactive(args[0], ct)

    def transpose(self, ct, live, x):
        return None, zero_inactive(live, ct)

    def batch(self, args, dims):
        (live, x), (live_dim, dim) = args, dims
        size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
        if (live_dim is None and not live.ndim) or (size == 0 and self.borrow_active):
            return self(*args) if live_dim is None else x, dim
        live = ops.batch_dim_at(live, live_dim, 0, size)
        if self.borrow_active:
            # A batch around this one may hold lanes that take none of these.
            x = x if dim is None else borrow_active_row(live, ops.moveaxis(x, dim, 0))
            return self(ops.reduce_or(live), x), None if dim is None else 0
        if dim is None and not is_inexact(x.dtype):
            return x, None
        return self(live, ops.batch_dim_at(x, dim, 0, size)), 0

    def lower(self, ctx, live, x):
        return x


def borrow_active_row(live: Any, x: Any) -> Any:
    """`x` with what the first live lane has in place of what those have that are not."""
    first = ops.argmax(live, 0, np.int32)
    at = [first, *[literal(0, first.dtype)] * (x.ndim - 1)]
    row = MaskedOperand(False)(False, ops.DynamicSlice((1, *x.shape[1:]))(x, *at))
    other = ops.broadcast_in_dim(row, x.shape, tuple(range(x.ndim)))
    return ops.select(ops.broadcast_in_dim(live, x.shape, (0,)), x, other)


class AnyActive(Primitive):
    """Whether `live` holds in any lane of a batch; `live` itself outside one."""

    differentiable = False
    samples = (sample(bool_[()], values={0: True}),)

    def abstract_eval(self, live):
        if live.dtype != bool:
            raise DTypeError(f"any_active: `live` must be boolean; got {live!r}")
        return live

    def batch(self, args, dims):
        return ops.reduce_or(args[0], (dims[0],)), None

    def lower(self, ctx, live):
        return live


def zero_inactive(live: Any, t: Any) -> Any:
    """`t` where `live`, of its first dimensions, holds, else zero; None for zero everywhere."""
    if type(live.atom) is Literal and not live.atom.value:
        return None
    if live.ndim:
        live = ops.broadcast_in_dim(live, t.shape, tuple(range(live.ndim)))
    return ops.select(live, t, literal(0, t.dtype))


class Predicated(Rewrite[Program]):
    """The rewrite to a program that counts only if its first input, `live`, holds.

    `roots[j]` is the input that output j is otherwise, or None where it does not matter. An
    output that comes of that input by updates of parts of it is such an update in any case,
    if need be with what is there already: no whole array is copied.
    """

    in_place_inputs: tuple[int | None, ...]
    borrow_active: bool

    def __call__(self, program: Program) -> Program:
        paths = [
            None if root is None else in_place_update_chain(program, j, program.inputs[root])
            for j, root in enumerate(self.in_place_inputs)
        ]
        updates = {v for found in paths for v in found or ()}
        made = producers(program)
        bases = {
            made[v].inputs[in_place_operand(made[v].primitive, made[v].outputs.index(v))]
            for v in updates
        }

        def as_they_are(eqn: Equation) -> Sequence[int]:
            """The operands that an equation takes without a stand-in, for it has its own way."""
            if not updates.isdisjoint(eqn.outputs):
                return self_masked_operands(eqn.primitive, eqn.inputs)
            return (
                (0,)
                if isinstance(eqn.primitive, READ_PRIMITIVES) and eqn.inputs[0] in bases
                else ()
            )

        used = {
            atom
            for eqn in program.equations
            for i, atom in enumerate(eqn.inputs)
            if i not in as_they_are(eqn)
        }
        standing = [v for v in program.inputs if v in used and self.needs_masking(v.aval)]

        def body(live: Any, *args: Any) -> list[Any]:
            given = dict(zip(program.inputs, args, strict=True))
            stand_ins = {v: MaskedOperand(self.borrow_active)(live, given[v]) for v in standing}

            def step(eqn: Equation, *operands: tuple[Any, Any]) -> list[tuple[Any, Any]]:
                plain = as_they_are(eqn)
                xs = [
                    value
                    if i in plain
                    else MaskedOperand(self.borrow_active)(live, value)
                    if masked_operand is None
                    else masked_operand
                    for i, (value, masked_operand) in enumerate(operands)
                ]
                changed = [v in updates for v in eqn.outputs]
                if any(changed):
                    outs = masked_update(eqn.primitive, live, changed, self.borrow_active, xs)
                    return [(x, None if on else x) for x, on in zip(outs, changed, strict=True)]
                outs = bind_equation(eqn, *xs)
                if plain and self.needs_masking(aval_of(outs[0])):
                    outs = [MaskedOperand(self.borrow_active)(live, outs[0])]
                return [(x, x) for x in outs]

            pairs = [(x, stand_ins.get(v, x)) for v, x in given.items()]
            outs = interpret(program, pairs, step, constant=lambda c: (c, c))
            return [
                x if root is None or found is not None else ops.select(live, x, args[root])
                for (x, _), root, found in zip(outs, self.in_place_inputs, paths, strict=True)
            ]

        return trace_closed(body, [MASK_AVAL, *program.in_avals], name=program.name)

    def needs_masking(self, aval: Any) -> bool:
        """Whether a value of this type needs a stand-in: one that varies, or any to go along."""
        return self.borrow_active or is_inexact(aval.dtype)


READ_PRIMITIVES = ops.DynamicSlice, ops.Gather, ops.Slice


@singledispatch
def in_place_operand(primitive: Any, output: int) -> Any:
    """The operand that an output is but for updates of parts of it; None if there is none."""
    return 0 if isinstance(primitive, (ops.DynamicUpdateSlice, ops.Scatter)) else None


@singledispatch
def self_masked_operands(primitive: Any, operands: Sequence[Any]) -> Sequence[int]:
    """The operands that `masked_update` takes as they are, without a stand-in."""
    return (0,)


@singledispatch
def masked_update(
    primitive: Any, live: Any, changed: Sequence[bool], along: bool, args: Sequence[Any]
) -> list[Any]:
    """The outputs of `primitive`, those `changed` left as the operand was unless `live` holds."""
    x, *rest = args
    if isinstance(primitive, ops.DynamicUpdateSlice):
        update, *indices = rest
        there = ops.DynamicSlice(update.shape)(x, *indices)
        return [primitive(x, ops.select(live, update, there), *indices)]
    indices, updates = rest
    if isinstance(primitive, ops.ScatterAdd):
        there = literal(ADDITIVE_IDENTITIES.get(kind(x.dtype), 0), x.dtype)
    elif isinstance(primitive, ops.ScatterMul):
        there = literal(1, x.dtype)
    else:
        there = primitive.gather(x, indices, updates)
    return [primitive(x, indices, ops.select(live, updates, there))]


# Added to any number it leaves even the sign of zero.
ADDITIVE_IDENTITIES = {"f": -0.0, "c": complex(-0.0, -0.0)}


def in_place_update_chain(
    program: Program, output: int, root: Var | None = None
) -> list[Var] | None:
    """The variables through which an output comes of the input `root` by updates of its parts.

    None if it does not. Without a `root`, any input is one, and is the last variable.
    """
    made = producers(program)
    found: list[Var] = []
    atom: Any = program.outputs[output]
    while (eqn := made.get(atom)) is not None:
        position = in_place_operand(eqn.primitive, eqn.outputs.index(atom))
        if position is None:
            return None
        found.append(atom)
        atom = eqn.inputs[position]
    if root is None:
        return [*found, atom] if type(atom) is Var else None
    return found if atom is root else None


def in_place_input(program: Program, output: int) -> int | None:
    """The input that an output is but for updates of parts of it; None if there is none."""
    found = in_place_update_chain(program, output)
    return None if found is None else program.inputs.index(found[-1])


def producers(program: Program) -> dict[Any, Equation]:
    """The equation of each variable that is not an input."""
    found: dict[Any, Equation] | None = program.memo.get(producers)
    if found is None:
        found = program.memo[producers] = {v: eqn for eqn in program for v in eqn.outputs}
    return found


def must_borrow_active(program: Program, shared: Sequence[bool]) -> bool:
    """Whether lanes that do not count must do as those that do.

    So it is with loops that run as long as a condition holds, and with arrays that vary and
    are shared, since their cotangents are sums over the lanes. Scalars are not worth it.
    """
    if has_unbounded_loop(program):
        return True
    used = {atom for eqn in program.equations for atom in eqn.inputs}
    return any(
        on and v.aval.ndim and is_inexact(v.aval.dtype) and v in used
        for v, on in zip(program.inputs, shared, strict=True)
    )


def has_unbounded_loop(program: Program) -> bool:
    """Whether `program` holds, at any depth, a loop that runs as long as a condition holds."""
    found: bool | None = program.memo.get(has_unbounded_loop)
    if found is None:
        found = program.memo[has_unbounded_loop] = any(
            getattr(eqn.primitive, "unbounded", False)
            for each in program.walk()
            for eqn in each.equations
        )
    return found


class PredicatedLoop(Rewrite[tuple[Program, Program]]):
    """The rewrite of the body of a loop to one for lanes that stop each for itself.

    Gives the condition, that any lane is live, and the body. Both take the consts of the old
    condition (`shared`), those of the old body, whether the lane is live, and the old carry.
    """

    condition: Program
    shared: int
    borrow_active: bool

    def __call__(self, body: Program) -> tuple[Program, Program]:
        count = len(body.outputs)
        consts = len(body.inputs) - count
        gated = cached_rewrite(
            Predicated(tuple(range(consts, consts + count)), self.borrow_active), body
        )
        waits = has_unbounded_loop(self.condition)
        runs = (
            cached_rewrite(Predicated((None,), True), self.condition) if waits else self.condition
        )

        def step(*args: Any) -> list[Any]:
            live = args[self.shared + consts]
            shared, own = args[: self.shared], args[self.shared : self.shared + consts]
            carry = apply(None, gated, [live, *own, *args[self.shared + consts + 1 :]])
            (again,) = apply(None, runs, [*[live] * waits, *shared, *carry])
            return [ops.bitwise_and(live, again), *carry]

        carry_avals = [MASK_AVAL, *body.in_avals[consts:]]
        avals = [
            *self.condition.in_avals[: self.shared],
            *body.in_avals[:consts],
            *carry_avals,
        ]
        any_active = trace_closed(
            lambda live, *_: [AnyActive()(live)], carry_avals, name="any_active"
        )
        return any_active, trace_closed(step, avals, name=body.name)


def batch_sequentially(primitive: Any, args: Sequence[Any], dims: Sequence[int | None]) -> Any:
    """The batched outputs of `primitive`, run on one lane after another, with their dimensions."""
    size = batch_size(args, dims)
    shared = [x for x, d in zip(args, dims, strict=True) if d is None]
    rows = [ops.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True) if d is not None]

    def lane(*xs: Any) -> list[Any]:
        own, given = iter(xs[len(shared) :]), iter(xs)
        operands = [next(given if d is None else own) for d in dims]
        return primitive(*operands)  # type: ignore[no-any-return]

    avals = [*[aval_of(x) for x in shared], *[aval_of(x).update(shape=x.shape[1:]) for x in rows]]
    body = trace_closed(lane, avals, name=f"each_{primitive.name}")
    outs = Scan(body, len(shared), 0, size)(*shared, *rows)
    return outs, [0] * len(outs)
