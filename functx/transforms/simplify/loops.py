"""Loops: what each step computes anew although it stays the same is computed before them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from functx.core.program import Atom, Equation, Literal, Program, Var, dce_equations
from functx.ops.constants import DenseConstant
from functx.ops.creation import Iota
from functx.ops.shaping import BroadcastInDim, Full, PermuteDims, Reshape
from functx.ops.slicing import Slice
from functx.transforms.control.scan import Scan
from functx.transforms.control.while_loop import While

HoistedLoop = tuple[list[Equation], Equation, dict[Var, Atom]]
"""The equations before a loop, the loop, and what outputs of the old one are from then on."""


def invariant_equations(program: Program, fixed: set[Any]) -> list[Equation]:
    """The equations of `program` that compute the same in each step, and pay outside of the loop.

    `fixed` are the inputs that stay. What repeats or rearranges elements costs little to do again,
    and outside would hold memory through the whole loop; so would what is larger than its operands.
    """
    known = set(fixed)
    moved: list[Equation] = []
    cheap: dict[Any, Equation] = {}
    for eqn in program.equations:
        primitive = eqn.primitive
        if primitive.effects or primitive.no_cse or primitive.named_axes:
            continue
        if not all([type(a) is Literal or a in known or a in cheap for a in eqn.inputs]):
            continue
        if isinstance(primitive, _CHEAP_OPS) or not any([type(a) is Var for a in eqn.inputs]):
            cheap.update(dict.fromkeys(eqn.outputs, eqn))
            continue
        given = sum([_bytes_of(a) for a in eqn.inputs if a in known])
        if sum(map(_bytes_of, eqn.outputs)) > max(given, _SMALL_BYTES):
            continue
        moved += _cheap_producers(eqn, cheap)
        moved.append(eqn)
        known.update(eqn.outputs)
    return list(dict.fromkeys(moved))


def _cheap_producers(eqn: Equation, cheap: dict[Any, Equation]) -> list[Equation]:
    """The cheap equations that `eqn` needs, in order, which are done outside as well."""
    needed: list[Equation] = []
    pending = [cheap[a] for a in eqn.inputs if a in cheap]
    while pending:
        maker = pending.pop()
        needed.append(maker)
        pending += [cheap[a] for a in maker.inputs if a in cheap]
    return needed[::-1]


_CHEAP_OPS = (BroadcastInDim, Full, Iota, DenseConstant, Reshape, PermuteDims, Slice)
_SMALL_BYTES = 256


def _bytes_of(atom: Atom) -> int:
    return atom.aval.size * atom.aval.dtype.itemsize


def hoist_invariants(
    program: Program, fixed: dict[Any, Atom]
) -> tuple[list[Equation], Program, list[Atom]]:
    """The equations of a body to do before the loop, the body without them, and what it takes more.

    `fixed` gives the atoms outside for the inputs that stay. The new inputs come first.
    """
    moved = invariant_equations(program, {*fixed})
    env: dict[Any, Atom] = dict(fixed)
    before = []
    for eqn in moved:
        outputs = [Var(v.aval) for v in eqn.outputs]
        inputs = [env[a] if type(a) is Var else a for a in eqn.inputs]
        env.update(zip(eqn.outputs, outputs, strict=True))
        before.append(eqn.replace(inputs=inputs, outputs=outputs))
    # What is cheap is made again inside, too, where it is needed.
    gone = {eqn for eqn in moved if not isinstance(eqn.primitive, _CHEAP_OPS)}
    left = dce_equations([e for e in program.equations if e not in gone], program.outputs)
    read = {a for eqn in left for a in eqn.inputs} | {*program.outputs}
    taken = [v for eqn in moved if eqn in gone for v in eqn.outputs if v in read]
    body = Program(program.name, [*taken, *program.inputs], left, program.outputs)
    return before, body, [env[v] for v in taken]


def hoist_from_scan(eqn: Equation) -> HoistedLoop | None:
    """A scan whose steps compute nothing that stays the same, and carry nothing that does."""
    loop: Any = eqn.primitive
    program, n = loop.program, loop.consts
    carried = program.inputs[n : n + loop.carries]
    kept = [i for i, v in enumerate(carried) if program.outputs[i] is not v]
    passed: dict[Var, Atom] = {}
    inputs, outputs = list(eqn.inputs), list(eqn.outputs)
    if len(kept) < loop.carries:
        still = [i for i in range(loop.carries) if i not in kept]
        passed = {
            outputs[i]: inputs[n + i] for i in still if _have_same_aval(outputs[i], inputs[n + i])
        }
        if len(passed) < len(still):
            return None
        order = [*range(n), *[n + i for i in still], *[n + i for i in kept]]
        order += range(n + loop.carries, len(inputs))
        inputs, places = [inputs[i] for i in order], [program.inputs[i] for i in order]
        kept_outputs = [*kept, *range(loop.carries, len(outputs))]
        outputs = [outputs[i] for i in kept_outputs]
        results = [program.outputs[i] for i in kept_outputs]
        program = Program(program.name, places, program.equations, results)
        n += len(still)
        loop = loop.with_program(program, n, len(kept))
    fixed = dict(zip(program.inputs[:n], inputs[:n], strict=True))
    before, body, extra = hoist_invariants(program, fixed)
    if not before and not passed:
        return None
    if before:
        loop, inputs = loop.hoist_constants([body], [extra], inputs)
    return before, eqn.replace(primitive=loop, inputs=list(inputs), outputs=outputs), passed


def _have_same_aval(v: Var, atom: Atom) -> bool:
    return v.aval is atom.aval


def hoist_from_while(eqn: Equation) -> HoistedLoop | None:
    """A loop whose condition and body compute nothing that stays the same in each step."""
    loop: Any = eqn.primitive
    shared, consts, _ = loop.split_operands(eqn.inputs)
    carry = loop.body.inputs[loop.body_consts :]
    fixed: dict[Any, Atom] = dict(zip(loop.body.inputs, consts, strict=False))
    given = eqn.inputs[loop.condition_consts + loop.body_consts :]
    in_condition: dict[Any, Atom] = dict(zip(loop.condition.inputs, shared, strict=False))
    for i, (v, atom) in enumerate(zip(carry, given, strict=True)):
        if loop.body.outputs[i] is v and v.aval is atom.aval:
            fixed[v] = atom
            in_condition[loop.condition.inputs[loop.condition_consts + i]] = atom
    before, body, extra = hoist_invariants(loop.body, fixed)
    more, condition, needed = hoist_invariants(loop.condition, in_condition)
    if not before and not more:
        return None
    loop, inputs = loop.hoist_constants([condition, body], [needed, extra], eqn.inputs)
    return [*before, *more], eqn.replace(primitive=loop, inputs=list(inputs)), {}


HOISTING_RULES: dict[Any, Callable[[Equation], HoistedLoop | None]] = {
    Scan: hoist_from_scan,
    While: hoist_from_while,
}
