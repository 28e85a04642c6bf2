"""Forward mode: JVP programs, linearization, and the canonical form of programs to differentiate.

The canonical form has no primitives without rules, and norms in place of roots of sums of squares:
the derivative of `sqrt` is infinite at 0, that of a norm is defined as 0 there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

from functx import ops
from functx.core.builder import LinearBuilder
from functx.core.masks import run_rule, scatter_where, select_where
from functx.core.program import Atom, Equation, Literal, Program, Var, pad_input_names
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import Rewrite, bind_equation, cached_rewrite, interpret, user_rule_runs
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.tracing import run_and_finish, trace_closed
from functx.core.types import ShapedArray, is_floating, is_inexact
from functx.core.typing import Flags, Mask, Tangent, Tangents, Value, Values
from functx.ops.families import Elementwise
from functx.transforms.dce import varying_output_mask
from functx.transforms.decompose import decompose_missing_rules
from functx.transforms.rule_checks import check_jvp_result, fill_of_zeros

_SUM_PRESERVING = (
    ops.Add, ops.ReduceSum, ops.BroadcastInDim, ops.Concatenate, ops.ConvertElementType, ops.Full, ops.Pad, ops.PermuteDims, ops.Reshape,
    ops.Slice,
)  # fmt: skip


def canonicalize_for_ad(program: Program, *rules: str) -> Program:
    """The canonical form of `program` for a transform that uses `rules`.

    Primitives that have none of the rules are decomposed; then the `ad_rewrites` are applied.
    """
    program = decompose_missing_rules(program, *rules)
    for rewrite in ad_rewrites:
        program = cached_rewrite(rewrite, program)
    return program


def recognize_norms(program: Program) -> Program:
    """`program` with `safe_sqrt` in place of each `sqrt` of a sum of squares."""
    if not any(type(eqn.primitive) is ops.Sqrt for eqn in program):
        return program
    squares = SumOfSquaresAnalysis(program)
    equations = [
        eqn.replace(primitive=ops.SafeSqrt()) if squares.is_norm(eqn) else eqn for eqn in program
    ]
    return Program(
        program.name, program.inputs, equations, program.outputs, in_names=program.in_names
    )


ad_rewrites: list[Callable[[Program], Program]] = [recognize_norms]
"""The rewrites of a program before its derivative is taken; `functx.passes` adds to them."""


class SumOfSquaresAnalysis:
    """Finds the variables of a program that are sums of squares, by their equations."""

    def __init__(self, program: Program):
        self.producers = program.def_use.producers
        self.memo: dict[Atom, bool] = {}

    def is_norm(self, eqn: Equation) -> bool:
        """Whether `eqn` is the root of a sum of squares of real numbers."""
        if type(eqn.primitive) is not ops.Sqrt:
            return False
        (x,) = eqn.inputs
        return is_floating(x.aval.dtype) and self.is_sum_of_squares(x)

    def is_sum_of_squares(self, atom: Atom) -> bool:
        """Whether `atom` is a sum of squares, or the literal 0."""
        if type(atom) is Literal:
            return bool(atom.value == 0)
        pending = [atom]
        # A stack in place of recursion: programs may be deep.
        while pending:
            v = pending[-1]
            eqn = self.producers.get(v)
            parts = [] if eqn is None else _summed_operands(eqn)
            if v not in self.memo and parts:
                missing = [p for p in parts if type(p) is Var and p not in self.memo]
                if missing:
                    pending += missing
                    continue
            if v not in self.memo:
                self.memo[v] = eqn is not None and (
                    self.is_square(eqn, v) or (bool(parts) and all(map(self.is_known_sum, parts)))
                )
            pending.pop()
        return self.memo[atom]

    def is_known_sum(self, atom: Atom) -> bool:
        return bool(atom.value == 0) if type(atom) is Literal else self.memo[atom]

    def is_square(self, eqn: Equation, v: Atom) -> bool:
        """Whether the output `v` of `eqn` holds squares, or sums of squares of its operands."""
        primitive = eqn.primitive
        if isinstance(primitive, ops.Square):
            return True
        if isinstance(primitive, ops.IntegerPow):
            return primitive.exponent > 0 and primitive.exponent % 2 == 0
        if isinstance(primitive, ops.Mul):
            return self.is_same_value(*eqn.inputs)
        if isinstance(primitive, ops.DotGeneral):
            (left, right), (rows, _) = primitive.contracting_dims, primitive.batch_dims
            summed = len(left) + len(rows) == eqn.inputs[0].aval.ndim
            return left == right and summed and self.is_same_value(*eqn.inputs)
        if primitive.name == "call":
            called: Program = primitive.program  # type: ignore[attr-defined]
            return SumOfSquaresAnalysis(called).is_sum_of_squares(
                called.outputs[eqn.outputs.index(v)]  # type: ignore[arg-type]
            )
        return False

    def is_same_value(self, x: Atom, y: Atom) -> bool:
        """Whether two operands are one variable, or outputs of equal equations."""
        if x is y or type(x) is Literal or type(y) is Literal:
            return x is y
        a, b = self.producers.get(x), self.producers.get(y)
        return (
            a is not None
            and b is not None
            and (
                a.primitive is b.primitive
                and all(p is q for p, q in zip(a.inputs, b.inputs, strict=True))
            )
        )


def _summed_operands(eqn: Equation) -> list[Atom]:
    """The operands that must all be sums of squares for the output to be one."""
    primitive, inputs = eqn.primitive, eqn.inputs
    if isinstance(primitive, _SUM_PRESERVING):
        return list(inputs)
    if isinstance(primitive, ops.Select):
        return list(inputs[1:])
    if isinstance(primitive, (ops.Mul, ops.Div)):
        x, y = inputs
        if isinstance(primitive, ops.Mul) and type(x) is Literal:
            x, y = y, x
        return [x] if type(y) is Literal and y.value > 0 else []
    return []


MaskedDual = tuple[Value, Tangent, Mask]
"""A value, its tangent (None for zero), and the mask of its nonzero elements (None: unknown)."""


class JVPRewrite(Rewrite[Program]):
    """The rewrite to a program of values and tangents.

    Its inputs are those of the program, then the tangents of the inputs marked `varying`; its
    outputs those of the program, then the tangents of the inexact ones.
    """

    varying: tuple[bool, ...]
    terms: ClassVar[int] = 1
    """The number of tangents of each varying input."""

    def __call__(self, program: Program) -> Program:
        varying = select_where(program.in_avals, self.varying)
        names = tangent_names(program, self.varying, with_primals=True)
        avals = [*program.in_avals, *varying]
        body = partial(self.emit, program)
        return trace_closed(body, avals, name=f"jvp_{program.name}", in_names=names)

    def emit(self, program: Program, *args: Value) -> list[Value]:
        """Appends the rewritten program on `args` to the current trace; returns its outputs."""
        program = canonicalize_for_ad(program, "jvp")
        tangents = scatter_where(args[len(program.inputs) :], self.varying)
        outs = jvp_program(program, args[: len(program.inputs)], tangents)
        return [x for x, _, _ in outs] + output_tangents(outs)


def tangent_names(
    program: Program, varying: Flags, with_primals: bool
) -> Callable[[], list[str]] | None:
    """The names `dx` of the tangents of inputs `x`; with `with_primals`, behind the primals'."""
    in_names = program.in_names
    if in_names is None:
        return None

    def names() -> list[str]:
        primals = pad_input_names(in_names(), len(varying))
        tangents = [f"d{name}" for name in select_where(primals, varying)]
        return [*primals, *tangents] if with_primals else tangents

    return names


def jvp_program(
    program: Program, args: Values, tangents: Tangents, masks: Sequence[Mask] | None = None
) -> list[MaskedDual]:
    """The outputs of `program` with their tangents and masks, from those of the inputs."""
    duals = list(zip(args, tangents, masks or [None] * len(args), strict=True))
    return interpret(program, duals, jvp_equation, constant=lambda c: (c, None, None))


def jvp_equation(eqn: Equation, *operands: MaskedDual) -> list[MaskedDual]:
    """The outputs of an equation with their tangents and masks."""
    primals = [x for x, _, _ in operands]
    tangents = [t for _, t, _ in operands]
    primitive = eqn.primitive
    if not primitive.differentiable or all([t is None for t in tangents]):
        return [(out, None, None) for out in bind_equation(eqn, *primals)]
    masks = [mask for _, _, mask in operands]
    result, out_masks = run_rule(tangents, masks, primitive.jvp, primals, tangents)
    if primitive.is_user_defined:
        user_rule_runs.record()
        check_jvp_result(primitive, [v.aval for v in eqn.outputs], result)
    outs, out_tangents = result
    if primitive.multiple_results:
        duals = list(zip(outs, out_tangents, out_masks or [None] * len(outs), strict=True))
        return only_varying(eqn, primals, tangents, duals)
    if out_tangents is None or primitive.tangent_mask is None:
        return [(outs, out_tangents, None)]
    masks_or_false = [False if t is None else mask for t, mask in zip(tangents, masks, strict=True)]
    out_mask = primitive.tangent_mask(masks_or_false, primals)
    if isinstance(primitive, Elementwise) and any([mask is not None for mask in masks]):
        out_tangents = primitive.masked_tangent(out_mask, out_tangents, primals)
    return [(outs, out_tangents, out_mask)]


def only_varying(
    eqn: Equation, primals: Values, tangents: Tangents, duals: list[MaskedDual]
) -> list[MaskedDual]:
    """The outputs of an equation, without tangents for those that `varying_outputs` excludes."""
    if eqn.primitive.varying_outputs is None:
        return duals
    flags = [t is not None for t in tangents]
    avals = [aval_of(x) for x in primals]
    mask = varying_output_mask(eqn.primitive, avals, flags, [v.aval for v in eqn.outputs])
    return [x if on else (x[0], None, None) for x, on in zip(duals, mask, strict=True)]


class Linearize(Rewrite[tuple[Program, Program]]):
    """The split of a program into a program of its values and a program of its tangents.

    The first returns the outputs, then the residuals. The second takes the tangents of the inputs
    marked `varying`, then the residuals, and returns the tangents of the inexact outputs.

    With `masked`, the first also takes, behind its inputs, the masks of the tangents marked so,
    and returns, behind the outputs, the masks of the output tangents: a literal for an unknown
    mask.
    """

    varying: tuple[bool, ...]
    masked: tuple[bool, ...] | None = None

    def __call__(self, program: Program) -> tuple[Program, Program]:
        program = canonicalize_for_ad(program, "jvp")
        linear: list[Program] = []
        count = len(self.varying)
        masked = self.masked or (False,) * count

        def body(*args_and_masks: Value) -> list[Value]:
            outs: list[Value] = []
            builder = LinearBuilder(f"linear_{program.name}", "linearize", current_builder.get())
            args, masks_of_tangents = (
                args_and_masks[:count],
                scatter_where(args_and_masks[count:], masked),
            )

            def push(*tangents: Value) -> list[Value]:
                results = jvp_program(
                    program, args, scatter_where(tangents, self.varying), masks_of_tangents
                )
                outs.extend(x for x, _, _ in results)
                if self.masked is not None:
                    found = [x for x in results if is_inexact(x[0].dtype)]
                    outs.extend(instantiate_masks([m for *_, m in found], [x for x, *_ in found]))
                return output_tangents(results)

            tangents = [builder.add_input(aval_of(x)) for x in select_where(args, self.varying)]
            builder.in_names = tangent_names(program, self.varying, with_primals=False)
            tangent_program, residuals = make_zero_residuals(
                *run_and_finish(builder, push, tangents)
            )
            linear.append(tangent_program)
            return [*outs, *residuals]

        masks = [a.update(dtype=ops.BOOL) for a in select_where(program.in_avals, masked)]
        avals = [*program.in_avals, *masks]
        values = trace_closed(body, avals, name=program.name, in_names=program.in_names)
        return values, linear[0]


def make_zero_residuals(program: Program, residuals: Values) -> tuple[Program, Values]:
    """A linear program that itself makes those residuals that are arrays of zeros, and the others.

    As an array, a zero tangent would take memory, and make the program seem affine.
    """
    count = len(program.inputs) - len(residuals)
    kept: list[Value] = []
    equations: list[Equation] = []
    inputs = program.inputs[:count]
    for x, variable in zip(residuals, program.inputs[count:], strict=True):
        zero = fill_of_zeros(x) if type(x) is Tracer and variable.aval.shape else None
        if zero is not None and zero.aval.update(shape=variable.aval.shape) is variable.aval:
            repeat = ops.BroadcastInDim(variable.aval.shape, ())
            equations.append(Equation(repeat, [zero], [variable], None))
        else:
            kept.append(x)
            inputs.append(variable)
    if not equations:
        return program, residuals
    equations += program.equations
    return replace_program_fields(program, inputs=inputs, equations=equations), kept


def instantiate_masks(masks: Sequence[Mask], values: Values) -> list[Value]:
    """The masks of tangents or cotangents of `values`, with a literal for an unknown mask."""
    unknown = ops.constant_like(ShapedArray((), ops.BOOL), True)
    return [
        unknown if mask is None else ops.instantiate_mask(mask, x.shape)
        for mask, x in zip(masks, values, strict=True)
    ]


def output_tangents(results: Sequence[MaskedDual]) -> list[Value]:
    """The tangents of the inexact outputs, with zeros for None."""
    return [ops.zeros_like(x) if t is None else t for x, t, _ in results if is_inexact(x.dtype)]
