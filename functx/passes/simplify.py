"""Simplification: constant folding, CSE, DCE, algebraic rewrites, hoisting out of loops.

`ReassociateContractions` then orders sums of products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from functx import ops
from functx.core.dead_code import dce_equations
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Literal, Program, Var, scalar_literal
from functx.core.program_editing import map_primitive_programs
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.types import DType, is_complex, kind
from functx.ops.families import Elementwise
from functx.ops.operands import RewriteContext
from functx.passes.costs import bytes_of
from functx.passes.reassociation import ReassociateContractions
from functx.transforms.control.scan import Scan
from functx.transforms.control.while_loop import While
from functx.transforms.dce import UniqueEquations

# Operations that IEEE arithmetic or two's complement define to the last bit.
_EXACT_OPS: dict[type[Primitive], Callable[..., Any]] = {
    ops.Abs: np.abs,
    ops.Add: np.add,
    ops.And: np.bitwise_and,
    ops.Clamp: lambda low, x, high: np.minimum(np.maximum(x, low), high),
    ops.Div: np.divide,
    ops.Eq: np.equal,
    ops.Ge: np.greater_equal,
    ops.Gt: np.greater,
    ops.Le: np.less_equal,
    ops.Lt: np.less,
    ops.Max: np.maximum,
    ops.Min: np.minimum,
    ops.Mul: np.multiply,
    ops.Ne: np.not_equal,
    ops.Neg: np.negative,
    ops.Not: np.invert,
    ops.Or: np.bitwise_or,
    ops.Sub: np.subtract,
    ops.Xor: np.bitwise_xor,
}
_SMALLEST_PORTABLE = 1e-30


def fold_constants(eqn: Equation) -> Literal | None:
    """The literal that `eqn` computes from literals; None if its value depends on the machine."""
    (out,) = eqn.outputs
    dtype = out.aval.dtype
    operands = [np.asarray(a.value, a.aval.dtype) for a in eqn.inputs]  # type: ignore[union-attr]
    if not all([_is_portable_number(x, x.dtype) for x in operands]):
        return None
    with np.errstate(all="ignore"):
        if type(eqn.primitive) is ops.ConvertElementType:
            if kind(operands[0].dtype) == "f" and kind(dtype) in "iu":
                return None
            value = operands[0].astype(dtype)
        else:
            if type(eqn.primitive) is ops.Div and kind(dtype) in "iu":
                return None
            value = np.asarray(_EXACT_OPS[type(eqn.primitive)](*operands)).astype(dtype)
    if not _is_portable_number(value, dtype):
        return None
    number = value.item()
    return scalar_literal(number, dtype, out.aval.weak_type, repr(number))


def can_fold_constants(eqn: Equation) -> bool:
    """Whether `eqn` has only literal operands, and an operation with an exact NumPy equivalent."""
    primitive = type(eqn.primitive)
    if primitive not in _EXACT_OPS and primitive is not ops.ConvertElementType:
        return False
    return all([type(a) is Literal for a in eqn.inputs])


def _is_portable_number(x: Any, dtype: DType) -> bool:
    """Whether a number is real, finite, and not so small that machines differ on it."""
    if is_complex(dtype):
        return False
    if kind(dtype) != "f":
        return True
    size = abs(float(x))
    return size == 0.0 or _SMALLEST_PORTABLE < size < np.inf


HoistedLoop = tuple[list[Equation], Equation, dict[Var, Atom]]
"""The equations before a loop, the new loop, and the atoms that replace outputs of the old."""


def invariant_equations(program: Program, fixed: set[Atom]) -> list[Equation]:
    """The loop-invariant equations of a body that are worth hoisting.

    `fixed` are the loop-invariant inputs. Equations that only repeat or rearrange elements are
    cheap to recompute, and hoisted they would hold memory during the whole loop; so would results
    larger than their operands.
    """
    invariant = set(fixed)
    hoisted: list[Equation] = []
    cheap: dict[Atom, Equation] = {}
    for eqn in program.equations:
        primitive = eqn.primitive
        if primitive.effects or primitive.no_cse or primitive.named_axes:
            continue
        if not all([type(a) is Literal or a in invariant or a in cheap for a in eqn.inputs]):
            continue
        if isinstance(primitive, _CHEAP_OPS) or not any([type(a) is Var for a in eqn.inputs]):
            cheap.update(dict.fromkeys(eqn.outputs, eqn))
            continue
        read_bytes = sum([bytes_of(a.aval) for a in eqn.inputs if a in invariant])
        if sum([bytes_of(v.aval) for v in eqn.outputs]) > max(read_bytes, _SMALL_BYTES):
            continue
        hoisted += _cheap_producers(eqn, cheap)
        hoisted.append(eqn)
        invariant.update(eqn.outputs)
    return list(dict.fromkeys(hoisted))


def _cheap_producers(eqn: Equation, cheap: dict[Atom, Equation]) -> list[Equation]:
    """The cheap equations that `eqn` needs, in order; they are computed before the loop as well."""
    needed: list[Equation] = []
    pending = [cheap[a] for a in eqn.inputs if a in cheap]
    while pending:
        producer = pending.pop()
        needed.append(producer)
        pending += [cheap[a] for a in producer.inputs if a in cheap]
    return needed[::-1]


_CHEAP_OPS = (
    ops.BroadcastInDim,
    ops.Full,
    ops.Iota,
    ops.DenseConstant,
    ops.Reshape,
    ops.PermuteDims,
    ops.Slice,
)
_SMALL_BYTES = 256


def hoist_invariants(
    program: Program, fixed: dict[Atom, Atom]
) -> tuple[list[Equation], Program, list[Atom]]:
    """The hoisted equations of a body, the body without them, and its additional operands.

    `fixed` maps the loop-invariant inputs to the operands. The new inputs come first.
    """
    hoisted = invariant_equations(program, {*fixed})
    env: dict[Atom, Atom] = dict(fixed)
    before = []
    for eqn in hoisted:
        outputs = [Var(v.aval) for v in eqn.outputs]
        inputs = [env[a] if type(a) is Var else a for a in eqn.inputs]
        env.update(zip(eqn.outputs, outputs, strict=True))
        before.append(eqn.replace(inputs=inputs, outputs=outputs))
    # Cheap equations are recomputed inside the loop where it needs them.
    removed = {eqn for eqn in hoisted if not isinstance(eqn.primitive, _CHEAP_OPS)}
    remaining = dce_equations([e for e in program.equations if e not in removed], program.outputs)
    read = {a for eqn in remaining for a in eqn.inputs} | {*program.outputs}
    new_inputs = [v for eqn in hoisted if eqn in removed for v in eqn.outputs if v in read]
    body = Program(program.name, [*new_inputs, *program.inputs], remaining, program.outputs)
    return before, body, [env[v] for v in new_inputs]


def hoist_from_scan(eqn: Equation) -> HoistedLoop | None:
    """A scan without loop-invariant equations and without carries that never change."""
    loop: Any = eqn.primitive
    program, n = loop.program, loop.consts
    carried = program.inputs[n : n + loop.carries]
    changing = [i for i, v in enumerate(carried) if program.outputs[i] is not v]
    replaced: dict[Var, Atom] = {}
    inputs, outputs = list(eqn.inputs), list(eqn.outputs)
    if len(changing) < loop.carries:
        unchanging = [i for i in range(loop.carries) if i not in changing]
        replaced = {
            outputs[i]: inputs[n + i] for i in unchanging if outputs[i].aval is inputs[n + i].aval
        }
        if len(replaced) < len(unchanging):
            return None
        operand_order = [*range(n), *[n + i for i in unchanging], *[n + i for i in changing]]
        operand_order += range(n + loop.carries, len(inputs))
        inputs, body_inputs = (
            [inputs[i] for i in operand_order],
            [program.inputs[i] for i in operand_order],
        )
        kept_outputs = [*changing, *range(loop.carries, len(outputs))]
        outputs = [outputs[i] for i in kept_outputs]
        results = [program.outputs[i] for i in kept_outputs]
        program = Program(program.name, body_inputs, program.equations, results)
        n += len(unchanging)
        loop = loop.with_program(program, n, len(changing))
    fixed = dict(zip(program.inputs[:n], inputs[:n], strict=True))
    before, body, extra_operands = hoist_invariants(program, fixed)
    if not before and not replaced:
        return None
    if before:
        loop, inputs = loop.hoist_constants([body], [extra_operands], inputs)
    return before, eqn.replace(primitive=loop, inputs=list(inputs), outputs=outputs), replaced


def hoist_from_while(eqn: Equation) -> HoistedLoop | None:
    """A while loop whose condition and body have no loop-invariant equations."""
    loop: Any = eqn.primitive
    condition_consts, consts, _ = loop.split_operands(eqn.inputs)
    carry = loop.body.inputs[loop.body_consts :]
    fixed: dict[Atom, Atom] = dict(zip(loop.body.inputs, consts, strict=False))
    init = eqn.inputs[loop.condition_consts + loop.body_consts :]
    fixed_in_condition: dict[Atom, Atom] = dict(
        zip(loop.condition.inputs, condition_consts, strict=False)
    )
    for i, (v, atom) in enumerate(zip(carry, init, strict=True)):
        if loop.body.outputs[i] is v and v.aval is atom.aval:
            fixed[v] = atom
            fixed_in_condition[loop.condition.inputs[loop.condition_consts + i]] = atom
    before, body, body_operands = hoist_invariants(loop.body, fixed)
    before_condition, condition, condition_operands = hoist_invariants(
        loop.condition, fixed_in_condition
    )
    if not before and not before_condition:
        return None
    loop, inputs = loop.hoist_constants(
        [condition, body], [condition_operands, body_operands], eqn.inputs
    )
    return [*before, *before_condition], eqn.replace(primitive=loop, inputs=list(inputs)), {}


HOISTING_RULES: dict[type[Primitive], Callable[[Equation], HoistedLoop | None]] = {
    Scan: hoist_from_scan,
    While: hoist_from_while,
}


_MAX_REWRITES = 8


def simplify_equations(
    program: Program, nested: Callable[[Program], Program] | None = None
) -> Program:
    """`program` with constants folded, CSE, DCE and algebraic rewrites.

    `nested` is applied first to the programs inside its equations.
    """
    simplifier = _LocalSimplifier(program, nested)
    for eqn in program.equations:
        simplifier.add_equation(eqn)
    simplified = simplifier.finish(program)
    if not simplifier.changed and len(simplified.equations) == len(program.equations):
        return program
    return simplified


class _LocalSimplifier(UniqueEquations):
    """One pass over the equations of a program, in order."""

    def __init__(self, program: Program, nested: Callable[[Program], Program] | None):
        super().__init__()
        self.nested = nested
        self.changed = False
        self.producers: dict[Atom, Equation] = {}
        self.uses: dict[Atom, int] = {}
        uses = self.uses
        for eqn in program.equations:
            for atom in eqn.inputs:
                uses[atom] = uses.get(atom, 0) + 1
        for atom in program.outputs:
            uses[atom] = uses.get(atom, 0) + 2
        self.context = RewriteContext(self.producers, uses)

    def add_equation(self, eqn: Equation) -> None:
        """Append the simplified `eqn`."""
        eqn = self.on_substitutes(eqn)
        primitive = eqn.primitive
        if primitive.multiple_results:
            eqn = self.simplify_nested(eqn)
        elif primitive.simplify is not None or isinstance(primitive, Elementwise):
            simplified = self.simplify_equation(eqn)
            if simplified is None:
                return
            eqn = simplified
        if not self.add(eqn):
            for v in eqn.outputs:
                self.producers[v] = eqn

    def can_merge(self, primitive: Primitive) -> bool:
        return not primitive.effects and not primitive.no_cse

    def substitute(self, outputs: Sequence[Var], atoms: Sequence[Atom]) -> None:
        """Use `atoms` in place of `outputs` in all later equations."""
        super().substitute(outputs, atoms)
        self.changed = True
        for v, atom in zip(outputs, atoms, strict=True):
            self.uses[atom] = self.uses.get(atom, 0) + self.uses.get(v, 0)

    def simplify_equation(self, eqn: Equation) -> Equation | None:
        """The simplest equation for the output of `eqn`; None if that is already computed."""
        (out,) = eqn.outputs
        for _ in range(_MAX_REWRITES):
            result: Any = None
            if not out.aval.shape and can_fold_constants(eqn):
                result = fold_constants(eqn)
            elif eqn.primitive.simplify is not None:
                result = eqn.primitive.simplify(self.context, *eqn.inputs)
            if result is None and isinstance(eqn.primitive, Elementwise) and out.aval.shape:
                result = self.with_scalars(eqn)
            if result is None:
                break
            if type(result) is Literal and out.aval.shape:
                result = ops.Full(out.aval.shape), [result]
            if type(result) is not tuple:
                if result.aval is not out.aval:
                    break
                self.substitute([out], [result])
                return None
            primitive, inputs = result
            avals = tuple([atom.aval for atom in inputs])
            (aval,) = primitive.out_avals(avals)
            if aval is not out.aval:
                break
            self.changed = True
            eqn = eqn.replace(primitive=primitive, inputs=list(inputs))
        return eqn

    def with_scalars(self, eqn: Equation) -> tuple[Primitive, list[Atom]] | None:
        """An elementwise operation with scalars in place of arrays that repeat them, if any are."""
        shape = eqn.outputs[0].aval.shape
        full_equations = [self.context.defining_equation(a, ops.Full) for a in eqn.inputs]
        if all([f is None for f in full_equations]):
            return None
        inputs = [
            a if f is None else f.inputs[0] for a, f in zip(eqn.inputs, full_equations, strict=True)
        ]
        if any([a.aval.shape == shape for a in inputs]):
            return eqn.primitive, inputs
        return None

    def simplify_nested(self, eqn: Equation) -> Equation:
        """The simplified form of an equation with several outputs or with programs inside."""
        if self.nested is not None:
            primitive = map_primitive_programs(eqn.primitive, self.nested)
            if primitive is not eqn.primitive:
                self.changed = True
                eqn = eqn.replace(primitive=primitive)
        rule = HOISTING_RULES.get(type(eqn.primitive))
        if rule is not None:
            hoisted = rule(eqn)
            if hoisted is not None:
                self.changed = True
                before, eqn, replaced = hoisted
                for each in before:
                    self.add_equation(each)
                eqn = self.on_substitutes(eqn)
                self.substitute([*replaced], [*replaced.values()])
        if eqn.primitive.simplify is not None:
            result = eqn.primitive.simplify(self.context, *eqn.inputs)
            if result is not None:
                primitive, inputs = result
                outs = primitive.out_avals(tuple([atom.aval for atom in inputs]))
                if all([aval is v.aval for aval, v in zip(outs, eqn.outputs, strict=True)]):
                    self.changed = True
                    eqn = eqn.replace(primitive=primitive, inputs=list(inputs))
        return eqn


class Simplify(Rewrite[Program]):
    """Rewrites a program by constant folding, CSE, DCE, algebraic rewrites and hoisting.

    Sums of products are computed in the cheapest order. With `deep`, programs inside of equations
    are simplified too; lowering rewrites each program on its own.
    """

    mode: str = "auto"
    deep: bool = False

    def __call__(self, program: Program) -> Program:
        if self.mode == "never" or program.writes:
            return program
        nested = (lambda inner: cached_rewrite(self, inner)) if self.deep else None
        simplified = (
            simplify_equations(program, nested)
            if self.mode == "always" or is_profitable(program)
            else program
        )
        reassociated = ReassociateContractions(self.mode)(simplified)
        return (
            simplified if reassociated is simplified else simplify_equations(reassociated, nested)
        )


def is_profitable(program: Program) -> bool:
    """Whether simplification makes the compiled program faster than XLA alone would."""
    primitives = {type(eqn.primitive) for eqn in program.equations}
    if ops.Pow in primitives or not primitives.isdisjoint(HOISTING_RULES):
        return True
    return (
        ops.PermuteDims in primitives
        and ops.DotGeneral in primitives
        and any([_is_outer_product(eqn.primitive) for eqn in program.equations])
    )


def _is_outer_product(primitive: Primitive) -> bool:
    """Whether the operation is a product without contraction."""
    return type(primitive) is ops.DotGeneral and not primitive.contracting_dims[0]
