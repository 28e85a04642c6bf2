"""Forward-mode differentiation: JVP programs, and linearization."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from functx import ops
from functx.core.builder import LinearBuilder
from functx.core.masks import run_rule
from functx.core.program import Equation, Program, pad_input_names
from functx.core.records import Rewrite
from functx.core.rewriting import bind_equation, interpret, user_rule_runs
from functx.core.tracer import aval_of, current_builder
from functx.core.tracing import run_and_finish, trace_closed
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Mask, Tangent, Value
from functx.ops.families import Elementwise
from functx.transforms.ad_canonicalization import canonicalize_for_ad
from functx.transforms.dce import varying_output_mask
from functx.transforms.operand_masks import scatter_where, select_where
from functx.transforms.rule_checks import check_jvp_result

MaskedDual = tuple[Value, Tangent, Mask]
"""A value, its tangent (None for zero), and the mask of its nonzero elements (None: unknown)."""


class JVPRewrite(Rewrite[Program]):
    """The rewrite to a program of values and tangents.

    Its inputs are those of the program, then the tangents of the inputs marked `varying`; its
    outputs those of the program, then the tangents of the inexact ones.
    """

    varying: tuple[bool, ...]

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
    program: Program, varying: Sequence[bool], with_primals: bool
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
    program: Program,
    args: Sequence[Value],
    tangents: Sequence[Tangent],
    masks: Sequence[Mask] | None = None,
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
    eqn: Equation, primals: Sequence[Value], tangents: Sequence[Tangent], duals: list[MaskedDual]
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
                    outs.extend(output_masks(results))
                return output_tangents(results)

            tangents = [builder.add_input(aval_of(x)) for x in select_where(args, self.varying)]
            builder.in_names = tangent_names(program, self.varying, with_primals=False)
            tangent_program, residuals = run_and_finish(builder, push, tangents)
            linear.append(tangent_program)
            return [*outs, *residuals]

        masks = [a.update(dtype=ops.BOOL) for a in select_where(program.in_avals, masked)]
        avals = [*program.in_avals, *masks]
        values = trace_closed(body, avals, name=program.name, in_names=program.in_names)
        return values, linear[0]


def output_masks(results: Sequence[MaskedDual]) -> list[Value]:
    """The masks of the tangents of the inexact outputs, a literal for an unknown mask."""
    unknown = ops.constant_like(ShapedArray((), ops.BOOL), True)
    return [
        unknown if mask is None else ops.instantiate_mask(mask, x.shape)
        for x, _, mask in results
        if is_inexact(x.dtype)
    ]


def output_tangents(results: Sequence[MaskedDual]) -> list[Value]:
    """The tangents of the inexact outputs, with zeros for None."""
    return [ops.zeros_like(x) if t is None else t for x, t, _ in results if is_inexact(x.dtype)]
