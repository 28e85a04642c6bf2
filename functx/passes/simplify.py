"""Operations on numbers alone, computed while a program is made simpler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from functx import ops
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Literal, Program, Var, dce_equations, scalar_literal
from functx.core.program_editing import map_primitive_programs, replace_program_fields
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.core.types import DType, is_complex, kind
from functx.ops.operands import DefUse
from functx.passes.reassociation import ReassociateContractions
from functx.transforms.control.scan import Scan
from functx.transforms.control.while_loop import While

# What IEEE arithmetic and two's complement say to the last bit, wherever it is computed.
_EXACT_OPS: dict[Any, Callable[..., Any]] = {
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
    """The number that `eqn` computes from numbers alone; None where that is better left to run."""
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
    """Whether `eqn` is one that can be computed from numbers alone, and there are no others."""
    primitive = type(eqn.primitive)
    if primitive not in _EXACT_OPS and primitive is not ops.ConvertElementType:
        return False
    return all([type(a) is Literal for a in eqn.inputs])


def _is_portable_number(x: Any, dtype: DType) -> bool:
    """Whether a number is not complex, nan, infinite, or so small that machines differ."""
    if is_complex(dtype):
        return False
    if kind(dtype) != "f":
        return True
    size = abs(float(x))
    return size == 0.0 or _SMALLEST_PORTABLE < size < np.inf


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


_MAX_REWRITES = 8


def simplify_equations(
    program: Program, nested: Callable[[Program], Program] | None = None
) -> Program:
    """`program` without what is unused, done twice, or simpler in another way.

    `nested` is done to the programs in its equations first.
    """
    walk = _LocalSimplifier(program, nested)
    for eqn in program.equations:
        walk.add_equation(eqn)
    outputs = [walk.substitutions.get(a, a) for a in program.outputs]
    equations = dce_equations(walk.equations, outputs)
    if not walk.changed and len(equations) == len(program.equations):
        return program
    return replace_program_fields(program, equations=equations, outputs=outputs)


class _LocalSimplifier:
    """What is known of a program up to some equation of it."""

    def __init__(self, program: Program, nested: Callable[[Program], Program] | None):
        self.nested = nested
        self.equations: list[Equation] = []
        self.changed = False
        self.substitutions: dict[Any, Atom] = {}
        self.producers: dict[Any, Equation] = {}
        self.available: dict[Any, Equation] = {}
        self.uses: dict[Any, int] = {}
        uses = self.uses
        for eqn in program.equations:
            for atom in eqn.inputs:
                uses[atom] = uses.get(atom, 0) + 1
        for atom in program.outputs:
            uses[atom] = uses.get(atom, 0) + 2
        self.context = DefUse(self.producers, uses)

    def add_equation(self, eqn: Equation) -> None:
        """Put what becomes of `eqn` behind what there is."""
        names = self.substitutions
        for atom in eqn.inputs:
            if atom in names:
                eqn = eqn.replace(inputs=[names.get(a, a) for a in eqn.inputs])
                break
        primitive = eqn.primitive
        if primitive.multiple_results:
            eqn = self.simplify_nested(eqn)
            primitive = eqn.primitive
        elif primitive.simplify is not None or primitive.scalars_broadcast:
            simpler = self.simplify_equation(eqn)
            if simpler is None:
                return
            eqn, primitive = simpler, simpler.primitive
        if not primitive.effects and not primitive.no_cse:
            key = primitive, *eqn.inputs
            same = self.available.setdefault(key, eqn)
            if same is not eqn and all(
                [a.aval is b.aval for a, b in zip(same.outputs, eqn.outputs, strict=True)]
            ):
                self.substitute(eqn.outputs, same.outputs)
                return
        self.equations.append(eqn)
        for v in eqn.outputs:
            self.producers[v] = eqn

    def substitute(self, outputs: Sequence[Var], atoms: Sequence[Atom]) -> None:
        """Let `atoms` be what is meant by `outputs` from here on."""
        self.changed = True
        for v, atom in zip(outputs, atoms, strict=True):
            self.substitutions[v] = atom
            self.uses[atom] = self.uses.get(atom, 0) + self.uses.get(v, 0)

    def simplify_equation(self, eqn: Equation) -> Equation | None:
        """What computes the output of `eqn` in the simplest way; None if it is there already."""
        (out,) = eqn.outputs
        for _ in range(_MAX_REWRITES):
            found: Any = None
            if not out.aval.shape and can_fold_constants(eqn):
                found = fold_constants(eqn)
            elif eqn.primitive.simplify is not None:
                found = eqn.primitive.simplify(self.context, *eqn.inputs)
            if found is None and eqn.primitive.scalars_broadcast and out.aval.shape:
                found = self.with_scalars(eqn)
            if found is None:
                break
            if type(found) is Literal and out.aval.shape:
                found = ops.Full(out.aval.shape), [found]
            if type(found) is not tuple:
                if found.aval is not out.aval:
                    break
                self.substitute([out], [found])
                return None
            primitive, inputs = found
            avals = tuple([atom.aval for atom in inputs])
            (aval,) = primitive.out_avals_memo.get(avals) or primitive.infer_out_avals(avals)
            if aval is not out.aval:
                break
            self.changed = True
            eqn = eqn.replace(primitive=primitive, inputs=list(inputs))
        return eqn

    def with_scalars(self, eqn: Equation) -> Any:
        """An elementwise operation on scalars in place of arrays filled with them, if it has any."""
        shape = eqn.outputs[0].aval.shape
        filled = [self.context.defining_equation(a, ops.Full) for a in eqn.inputs]
        if all([f is None for f in filled]):
            return None
        inputs = [a if f is None else f.inputs[0] for a, f in zip(eqn.inputs, filled, strict=True)]
        if any([a.aval.shape == shape for a in inputs]):
            return eqn.primitive, inputs
        return None

    def simplify_nested(self, eqn: Equation) -> Equation:
        """As `simpler`, for an equation with several outputs, or with programs."""
        if self.nested is not None:
            primitive = map_primitive_programs(eqn.primitive, self.nested)
            if primitive is not eqn.primitive:
                self.changed = True
                eqn = eqn.replace(primitive=primitive)
        rule = HOISTING_RULES.get(type(eqn.primitive))
        if rule is not None:
            moved = rule(eqn)
            if moved is not None:
                self.changed = True
                before, eqn, passed = moved
                for each in before:
                    self.add_equation(each)
                eqn = eqn.replace(inputs=[self.substitutions.get(a, a) for a in eqn.inputs])
                self.substitute([*passed], [*passed.values()])
        if eqn.primitive.simplify is not None:
            found = eqn.primitive.simplify(self.context, *eqn.inputs)
            if found is not None:
                primitive, inputs = found
                outs = primitive.infer_out_avals(tuple([atom.aval for atom in inputs]))
                if all([aval is v.aval for aval, v in zip(outs, eqn.outputs, strict=True)]):
                    self.changed = True
                    eqn = eqn.replace(primitive=primitive, inputs=list(inputs))
        return eqn


class Simplify(Rewrite[Program]):
    """The rewrite to a program without what is unused, done twice, or simpler in another way.

    Sums of products are made in the cheapest order. With `deep`, the same happens to the programs
    in its equations; what is lowered is rewritten program by program.
    """

    mode: str = "auto"
    deep: bool = False

    def __call__(self, program: Program) -> Program:
        if self.mode == "never" or program.writes:
            return program
        nested = (lambda inner: cached_rewrite(self, inner)) if self.deep else None
        simpler = (
            simplify_equations(program, nested)
            if self.mode == "always" or is_profitable(program)
            else program
        )
        contracted = ReassociateContractions(self.mode)(simpler)
        return simpler if contracted is simpler else simplify_equations(contracted, nested)


def is_profitable(program: Program) -> bool:
    """Whether a walk makes what is compiled quicker, where XLA would not do the same."""
    primitives = {type(eqn.primitive) for eqn in program.equations}
    if not primitives.isdisjoint(HOISTING_RULES):
        return True
    return (
        ops.PermuteDims in primitives
        and ops.DotGeneral in primitives
        and any([_is_outer_product(eqn.primitive) for eqn in program.equations])
    )


def _is_outer_product(primitive: Primitive) -> bool:
    return type(primitive) is ops.DotGeneral and not primitive.contracting_dims[0]
