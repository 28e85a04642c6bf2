"""Lanes: what a batch does where its lanes choose and stop each for itself.

The program that every lane runs is rewritten to one that counts only if its first input,
`live`, holds, and is then batched. A lane that is not live goes along with one that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from functx.core.dtypes import is_inexact, kind
from functx.core.errors import DTypeError, ShapeError
from functx.core.interpret import forward, interpret
from functx.core.primitive import LinearInput, Primitive
from functx.core.program import Equation, Program, Var
from functx.core.samples import bool_, f32, i32, sample
from functx.core.tracing import apply, rewritten, trace
from functx.ops.gradients import stop_gradient
from functx.ops.indexing import Gather, Scatter, ScatterAdd, ScatterMul
from functx.ops.logical import bitwise_and
from functx.ops.operands import literal
from functx.ops.reductions import argmax, reduce_or
from functx.ops.selection import select
from functx.ops.shaping import batch_at, broadcast_in_dim, moveaxis
from functx.ops.slicing import DynamicSlice, DynamicUpdateSlice, Slice
from functx.transforms.control.scan import Scan

LIVE = bool_[()]


class StandIn(Primitive):
    """The operands that follow `live`, for a computation that counts only where `live` holds.

    No derivative passes where it does not hold. With `along`, a lane of a batch then has the
    operands of a lane in which it does, so that it computes what that one does: it takes no
    more steps in a loop, and adds nothing that is not finite to the cotangent of an operand
    which the lanes share. `live` has the first dimensions of every operand; none with `along`.
    """

    along: bool
    multiple_results = True
    # `transpose` is that of the derivative, not of the value.
    linear = ()
    samples = (
        sample(bool_[()], f32[3], i32[()], values={0: True}, along=True),
        sample(bool_[()], f32[3], values={0: False}, gradients={1: [0.0, 0.0, 0.0]}, along=False),
        sample(
            bool_[2], f32[2], f32[2, 2], values={0: [True, False]},
            gradients={1: [1.0, 0.0], 2: [[1.0, 1.0], [0.0, 0.0]]}, along=False,
        ),
    )  # fmt: skip

    def abstract_eval(self, live, *avals):
        if live.dtype != bool:
            raise DTypeError(f"stand_in: `live` must be boolean; got {live!r}")
        if any(a.shape[: live.ndim] != live.shape for a in avals) or (self.along and live.shape):
            raise ShapeError(
                f"stand_in: `live` must have the first dimensions of each operand; got {live!r} "
                f"for {', '.join(map(repr, avals))}"
            )
        return avals

    def jvp(self, primals, tangents):
        return self(*primals), [None if t is None else where(primals[0], t) for t in tangents[1:]]

    def vjp(self, cts, outs, args, active):
        return [None, *[None if ct is None else where(args[0], ct) for ct in cts]]

    def transpose(self, cts, live, *args):
        linear = [type(x) is LinearInput for x in args]
        pairs = zip(cts, linear, strict=True)
        return [None, *[where(live, ct) if on and ct is not None else None for ct, on in pairs]]

    def batch(self, args, dims):
        (live, *xs), (dim, *in_dims) = args, dims
        size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
        if dim is None and not live.ndim:
            return self(*args), in_dims
        live = batch_at(live, dim, 0, size)
        if self.along:
            return (xs, in_dims) if size == 0 else self.go_along(live, xs, in_dims)
        on = [d is not None or is_inexact(x.dtype) for x, d in zip(xs, in_dims, strict=True)]
        moved = [
            batch_at(x, d, 0, size) if o else x for x, d, o in zip(xs, in_dims, on, strict=True)
        ]
        found = iter(self(live, *[x for x, o in zip(moved, on, strict=True) if o]))
        return (
            [next(found) if o else x for x, o in zip(moved, on, strict=True)],
            [0 if o else None for o in on],
        )

    def go_along(self, live: Any, xs: Sequence[Any], dims: Sequence[int | None]) -> Any:
        """Operands with those of the first live lane in place of those of lanes that are not."""
        first = argmax(live, 0, np.int32)
        outs = []
        for x, dim in zip(xs, dims, strict=True):
            if dim is not None:
                x = moveaxis(x, dim, 0)
                at = [first, *[literal(0, first.dtype)] * (x.ndim - 1)]
                row = DynamicSlice((1, *x.shape[1:]))(stop_gradient(x), *at)
                other = broadcast_in_dim(row, x.shape, tuple(range(x.ndim)))
                x = select(broadcast_in_dim(live, x.shape, (0,)), x, other)
            outs.append(x)
        # A batch around this one may hold lanes that take none of these.
        return self(reduce_or(live), *outs), [None if d is None else 0 for d in dims]

    def lower(self, ctx, live, *values):
        return values


class AnyLane(Primitive):
    """Whether `live` holds in any lane of a batch; `live` itself outside one."""

    differentiable = False
    samples = (sample(bool_[()], values={0: True}),)

    def abstract_eval(self, live):
        if live.dtype != bool:
            raise DTypeError(f"any_lane: `live` must be boolean; got {live!r}")
        return live

    def batch(self, args, dims):
        return reduce_or(args[0], (dims[0],)), None

    def lower(self, ctx, live):
        return live


def where(live: Any, t: Any) -> Any:
    """`t` where `live`, of its first dimensions, holds, else zero."""
    if live.ndim:
        live = broadcast_in_dim(live, t.shape, tuple(range(live.ndim)))
    return select(live, t, literal(0, t.dtype))


@dataclass(frozen=True)
class Gated:
    """The rewrite to a program that counts only if its first input, `live`, holds.

    `roots[j]` is the input that output j is otherwise, or None where it does not matter. An
    output that comes of that input by updates of parts of it is such an update in any case,
    if need be with what is there already: no whole array is copied.
    """

    roots: tuple[int | None, ...]
    along: bool

    def __call__(self, program: Program) -> Program:
        paths = [
            None if root is None else path(program, j, program.inputs[root])
            for j, root in enumerate(self.roots)
        ]
        updates = {eqn.outputs[0] for found in paths for eqn in found or ()}
        bases = {eqn.inputs[0] for found in paths for eqn in found or ()}

        def of_base(eqn: Equation) -> bool:
            """Whether an equation takes the base of updates as such, and stands for it."""
            return eqn.inputs[0] in bases and (
                eqn.outputs[0] in updates or isinstance(eqn.primitive, READS)
            )

        used = {
            atom
            for eqn in program.equations
            for atom in (eqn.inputs[1:] if eqn.inputs and of_base(eqn) else eqn.inputs)
        }
        standing = [v for v in program.inputs if v in used and self.minds(v.aval)]

        def body(live: Any, *args: Any) -> list[Any]:
            given = dict(zip(program.inputs, args, strict=True))
            stand_ins = dict(given)
            if standing:
                found = StandIn(self.along)(live, *[given[v] for v in standing])
                stand_ins.update(zip(standing, found, strict=True))

            def plain(pair: tuple[Any, Any]) -> Any:
                value, stand_in = pair
                return StandIn(self.along)(live, value)[0] if stand_in is None else stand_in

            def step(eqn: Equation, *operands: tuple[Any, Any]) -> list[tuple[Any, Any]]:
                if not operands or not of_base(eqn):
                    return [(x, x) for x in forward(eqn, *map(plain, operands))]
                base, rest = operands[0][0], [plain(pair) for pair in operands[1:]]
                if eqn.outputs[0] in updates:
                    return [(update_if(live, eqn.primitive, base, *rest), None)]
                (part,) = forward(eqn, base, *rest)
                if self.minds(part.aval):
                    (part,) = StandIn(self.along)(live, part)
                return [(part, part)]

            pairs = [(given[v], stand_ins[v]) for v in program.inputs]
            outs = interpret(program, pairs, step, constant=lambda c: (c, c))
            return [
                x if root is None or found is not None else select(live, x, args[root])
                for (x, _), root, found in zip(outs, self.roots, paths, strict=True)
            ]

        return trace(body, [LIVE, *program.in_avals], name=program.name)[0]

    def minds(self, aval: Any) -> bool:
        """Whether a value of this type needs a stand-in: one that varies, or any to go along."""
        return self.along or is_inexact(aval.dtype)


READS = DynamicSlice, Gather, Slice


def path(program: Program, output: int, root: Var) -> list[Equation] | None:
    """The updates by which an output comes of the input `root`, last first; None if it does not."""
    made = producers(program)
    found = []
    atom: Any = program.outputs[output]
    while atom is not root:
        eqn = made.get(atom)
        if eqn is None or not isinstance(eqn.primitive, (DynamicUpdateSlice, Scatter)):
            return None
        found.append(eqn)
        atom = eqn.inputs[0]
    return found


def root_of(program: Program, output: int) -> int | None:
    """The input that an output is, but for updates of parts of it; None if there is none."""
    made = producers(program)
    atom: Any = program.outputs[output]
    while (eqn := made.get(atom)) and isinstance(eqn.primitive, (DynamicUpdateSlice, Scatter)):
        atom = eqn.inputs[0]
    return program.inputs.index(atom) if atom in program.inputs else None


def producers(program: Program) -> dict[Any, Equation]:
    """The equation of each variable that is not an input."""
    found: dict[Any, Equation] | None = program.memo.get(producers)
    if found is None:
        found = program.memo[producers] = {v: eqn for eqn in program for v in eqn.outputs}
    return found


def update_if(live: Any, primitive: Any, x: Any, *rest: Any) -> Any:
    """The update `primitive` of `x`, one that changes nothing unless `live` holds."""
    if isinstance(primitive, DynamicUpdateSlice):
        update, *indices = rest
        there = DynamicSlice(update.shape)(x, *indices)
        return primitive(x, select(live, update, there), *indices)
    indices, updates = rest
    if isinstance(primitive, ScatterAdd):
        there = literal(NOTHING.get(kind(x.dtype), 0), x.dtype)
    elif isinstance(primitive, ScatterMul):
        there = literal(1, x.dtype)
    else:
        there = primitive.gather(x, indices, updates)
    return primitive(x, indices, select(live, updates, there))


# Added to any number it leaves even the sign of zero.
NOTHING = {"f": -0.0, "c": complex(-0.0, -0.0)}


def must_go_along(program: Program, shared: Sequence[bool]) -> bool:
    """Whether lanes that do not count must do as those that do.

    So it is with loops that run as long as a condition holds, and with arrays that vary and
    are shared, since their cotangents are sums over the lanes. Scalars are not worth it.
    """
    if holds_loop(program):
        return True
    used = {atom for eqn in program.equations for atom in eqn.inputs}
    return any(
        on and v.aval.ndim and is_inexact(v.aval.dtype) and v in used
        for v, on in zip(program.inputs, shared, strict=True)
    )


def holds_loop(program: Program) -> bool:
    """Whether `program` holds, at any depth, a loop that runs as long as a condition holds."""
    found: bool | None = program.memo.get(holds_loop)
    if found is None:
        found = program.memo[holds_loop] = any(
            getattr(eqn.primitive, "unbounded", False)
            for each in program.walk()
            for eqn in each.equations
        )
    return found


@dataclass(frozen=True)
class GatedLoop:
    """The rewrite of the body of a loop to one for lanes that stop each for itself.

    Gives the condition, that any lane is live, and the body. Both take the consts of the old
    condition (`shared`), those of the old body, whether the lane is live, and the old carry.
    """

    condition: Program
    shared: int
    along: bool

    def __call__(self, body: Program) -> tuple[Program, Program]:
        count = len(body.outputs)
        consts = len(body.inputs) - count
        gated = rewritten(Gated(tuple(range(consts, consts + count)), self.along), body)
        waits = holds_loop(self.condition)
        runs = rewritten(Gated((None,), True), self.condition) if waits else self.condition

        def step(*args: Any) -> list[Any]:
            live = args[self.shared + consts]
            shared, own = args[: self.shared], args[self.shared : self.shared + consts]
            carry = apply(None, gated, [live, *own, *args[self.shared + consts + 1 :]])
            (again,) = apply(None, runs, [*[live] * waits, *shared, *carry])
            return [bitwise_and(live, again), *carry]

        carry_avals = [LIVE, *body.in_avals[consts:]]
        avals = [
            *self.condition.in_avals[: self.shared],
            *body.in_avals[:consts],
            *carry_avals,
        ]
        any_lane = trace(lambda live, *_: [AnyLane()(live)], carry_avals, name="any_lane")[0]
        return any_lane, trace(step, avals, name=body.name)[0]


def one_by_one(primitive: Any, args: Sequence[Any], dims: Sequence[int | None]) -> Any:
    """The batched outputs of `primitive`, run on one lane after another, with their dimensions."""
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    shared = [x for x, d in zip(args, dims, strict=True) if d is None]
    rows = [moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True) if d is not None]

    def lane(*xs: Any) -> list[Any]:
        own, given = iter(xs[len(shared) :]), iter(xs)
        operands = [next(given if d is None else own) for d in dims]
        return primitive(*operands)  # type: ignore[no-any-return]

    avals = [*[x.aval for x in shared], *[x.aval.update(shape=x.shape[1:]) for x in rows]]
    body = trace(lane, avals, name=f"each_{primitive.name}")[0]
    outs = Scan(body, len(shared), 0, size)(*shared, *rows)
    return outs, [0] * len(outs)
