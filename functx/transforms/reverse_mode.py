"""Reverse-mode differentiation: a forward and a backward sweep, and the residuals between them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from functx import ops
from functx.core.builder import LinearBuilder
from functx.core.context import ContextValue
from functx.core.errors import RuleError
from functx.core.masks import inexact_mask, mask_of, run_rule, scatter_where, select_where
from functx.core.primitive import LinearInput, Primitive, is_linear_input
from functx.core.primitive_families import HasUserVJP, ReadsPart
from functx.core.printing import variable_names
from functx.core.program import Atom, Equation, Program, Var
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import Rewrite, bind_equation, interpret, user_rule_runs
from functx.core.source_info import BackwardSource, Source, backward_source, expression_key
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.tracing import trace, trace_closed
from functx.core.types import is_inexact
from functx.core.typing import Cotangent, Flags, Mask, PyTree, Tangent, Value, Values
from functx.ops.families import Elementwise, unite_masks
from functx.transforms.dce import varying_output_mask
from functx.transforms.forward_mode import canonicalize_for_ad, instantiate_masks
from functx.transforms.rule_checks import apply_linear_rule, check_jvp_result, check_rule_is_linear
from functx.transforms.symbolic_zeros import symbolize_zeros


class TapeEntry(NamedTuple):
    """An equation that the derivative goes through, with its operands and residuals."""

    eqn: Equation
    args: Values
    saved: Any
    active: tuple[bool, ...]


def forward_sweep(
    program: Program, args: Values, active: Flags
) -> tuple[list[Value], list[TapeEntry]]:
    """The outputs of `program`, and the tape of the equations that its derivative goes through."""
    tape: list[TapeEntry] = []

    def step(eqn: Equation, *operands: tuple[Value, bool]) -> list[tuple[Value, bool]]:
        args = [x for x, _ in operands]
        flags = tuple([on for _, on in operands])
        primitive = eqn.primitive
        outs: Values
        saved: Any
        if not primitive.differentiable or primitive.is_constant_in_reverse_mode or not any(flags):
            return [(out, False) for out in bind_equation(eqn, *args)]
        if primitive.effects and primitive.vjp is None:
            # The rule runs the effects, which must not take place again.
            saved = linearize_jvp_rule(primitive, args, flags)
            outs = saved.outs
        elif primitive.forward is None:
            outs = saved = bind_equation(eqn, *args)
        else:
            outs, saved = primitive.forward(args, flags)
        tape.append(TapeEntry(eqn, args, saved, flags))
        if primitive.varying_outputs is None:
            return [(out, is_inexact(out.dtype)) for out in outs]
        mask = varying_output_mask(primitive, [aval_of(x) for x in args], flags, outs)
        return list(zip(outs, mask, strict=True))

    pairs = zip(args, active, strict=True)
    outs = interpret(program, pairs, step, constant=lambda c: (c, False))
    return [x for x, _ in outs], tape


def backward_sweep(
    program: Program,
    tape: Sequence[TapeEntry],
    out_cts: Sequence[Cotangent],
    active: Flags,
    cts: CotangentSums | None = None,
    out_masks: Sequence[Mask] | None = None,
) -> list[Value]:
    """The cotangents of the active inputs, from those of the outputs (None for zero).

    With `cts`, the caller sees the cotangents that are left and the masks.
    """
    cts = CotangentSums() if cts is None else cts
    propagate_cotangents(program, tape, out_cts, cts, out_masks)
    return cts.take(select_where(program.inputs, active))


def propagate_cotangents(
    program: Program,
    tape: Sequence[TapeEntry],
    out_cts: Sequence[Cotangent],
    cts: CotangentSums,
    out_masks: Sequence[Mask] | None = None,
) -> None:
    """Leaves the cotangents of the inputs in `cts`, from those of the outputs (None for zero)."""
    builder = current_builder.require()
    cts.seed(program.outputs, out_cts, out_masks)
    outer = builder.source
    ended: set[Atom] = set()  # Their cotangents are None, since the rule of a user returned zeros.
    for eqn, args, saved, flags in reversed(tape):
        primitive = eqn.primitive
        eqn_cts, ct_masks = cts.pop_outputs(eqn.outputs)
        mask = ct_masks[0] if len(ct_masks) == 1 else None
        is_zero = all(ct is None for ct in eqn_cts)
        if is_zero and not ended.isdisjoint(eqn.outputs):
            ended.update(select_where(eqn.inputs, flags))
            is_zero = not isinstance(primitive, HasUserVJP)
        if not is_zero:
            builder.source = backward_source(eqn.source)
            ct = eqn_cts[0]
            if (
                ct is not None
                and isinstance(primitive, ReadsPart)
                and primitive.is_added_in_place(ct, args[0])
            ):
                slice_mask = primitive.cotangent_masks(mask, args)[0]
                cts.defer(
                    eqn.inputs[0],
                    SparseCotangent(primitive, ct, args, builder.source),
                    slice_mask,
                )
                continue
            start = len(builder.equations)
            in_cts, masks = run_rule(
                eqn_cts, ct_masks, apply_vjp_rule, primitive, eqn_cts, saved, args, flags
            )
            if mask is not None and isinstance(primitive, Elementwise):
                in_cts = primitive.masked_cotangents(mask, in_cts)
            if masks is None:
                masks = primitive.cotangent_masks(mask, args)
            if primitive.multiple_results:
                in_cts = symbolize_zeros(in_cts, builder.equations[start:])
            for atom, on, ct, operand_mask in zip(eqn.inputs, flags, in_cts, masks, strict=True):
                if on:
                    cts.add(atom, ct, operand_mask)
                    if ct is None and isinstance(primitive, HasUserVJP):
                        ended.add(atom)
    builder.source = outer


class SparseCotangent(NamedTuple):
    """A cotangent that is zero outside a slice of its variable, by the equation that slices."""

    primitive: ReadsPart
    ct: Value
    args: Values
    source: Source | BackwardSource | None

    @property
    def user_location(self) -> object:
        """The expression in the user's code that reads the slice."""
        return None if self.source is None else expression_key(self.source)

    def add_to(self, total: Cotangent) -> Value:
        """The sum of `total`, None for zero, and this."""
        primitive, ct, args, _ = self
        if total is not None:
            return primitive.add_to_cotangent(total, ct, args)
        return primitive.vjp(ct, None, args, (True,))[0]  # type: ignore[misc]


def group_by_primitive(
    parts: Sequence[SparseCotangent],
) -> dict[type[ReadsPart], list[SparseCotangent]]:
    """The sparse cotangents by the class of their primitives."""
    groups: dict[type[ReadsPart], list[SparseCotangent]] = {}
    for part in parts:
        groups.setdefault(type(part.primitive), []).append(part)
    return groups


class CotangentSums:
    """The accumulated cotangents of variables, with masks of the elements that can be nonzero.

    Sparse cotangents wait in `sparse`, and are added to the sum of the others in place: so a slice
    costs no pass over the whole array.
    """

    def __init__(self) -> None:
        self.values: dict[Atom, Value] = {}
        self.masks: dict[Var, Mask] = {}
        self.sparse: dict[Var, list[SparseCotangent]] = {}

    def seed(
        self, atoms: Sequence[Atom], cts: Sequence[Cotangent], masks: Sequence[Mask] | None = None
    ) -> None:
        """Adds `cts`, the cotangents of outputs, to those of `atoms`."""
        for atom, ct, mask in zip(atoms, cts, masks or [None] * len(cts), strict=True):
            self.add(atom, ct, mask)

    def take(self, variables: Sequence[Var]) -> list[Value]:
        """Removes and returns the cotangents of `variables`, with zeros for None."""
        return ops.instantiate_zeros([self.pop(v) for v in variables], [v.aval for v in variables])

    def add(self, atom: Atom, ct: Cotangent, mask: Mask = None) -> None:
        """Adds `ct`, zero where `mask` is false, to the cotangent of `atom`."""
        if ct is None or type(atom) is not Var:
            return
        self.merge_mask(atom, mask)
        self.values[atom] = ops.add(self.values[atom], ct) if atom in self.values else ct

    def defer(self, atom: Var, part: SparseCotangent, mask: Mask) -> None:
        """Keeps `part`, zero where `mask` is false, to be added to the cotangent of `atom`."""
        self.merge_mask(atom, mask)
        self.sparse.setdefault(atom, []).append(part)

    def merge_mask(self, atom: Var, mask: Mask) -> None:
        if atom not in self.values and atom not in self.sparse:
            if mask is not None:
                self.masks[atom] = mask
            return
        before = self.masks.pop(atom, None)
        if mask is not None and before is not None and mask.shape == before.shape:
            total = unite_masks(before, mask)
            if total is not None:
                self.masks[atom] = total

    def pop(self, var: Var) -> Cotangent:
        """Removes and returns the cotangent of `var`, None for zero."""
        total = self.values.pop(var, None)
        parts = self.sparse.pop(var, None) if self.sparse else None
        if parts is None:
            return total
        builder = current_builder.require()
        outer = builder.source
        for cls, alike in group_by_primitive(parts).items():
            builder.source = alike[0].source
            if cls.accumulate_slices is not None and len(alike) > 1:
                slices = [(part.primitive, part.ct, part.user_location) for part in alike]
                slice_sum = cls.accumulate_slices(slices, aval_of(alike[0].args[0]))
                total = slice_sum if total is None else ops.add(total, slice_sum)
                continue
            for part in alike:
                builder.source = part.source
                total = part.add_to(total)
        builder.source = outer
        return total

    def pop_outputs(self, variables: Sequence[Var]) -> tuple[list[Cotangent], list[Mask]]:
        """Removes and returns the cotangents of the outputs of an equation, and their masks."""
        return [self.pop(v) for v in variables], [self.masks.pop(v, None) for v in variables]


def apply_vjp_rule(
    primitive: Primitive, cts: list[Cotangent], saved: PyTree, args: Values, active: Flags
) -> Sequence[Cotangent]:
    """The cotangents of the operands of one equation."""
    if type(saved) is LinearizedRule:
        return saved.transpose(cts)
    if primitive.vjp is None:
        return transpose_jvp_rule(primitive, cts, args, active)
    if primitive.is_user_defined:
        rule = primitive.vjp
        several = primitive.multiple_results

        def body(cts: Sequence[Cotangent]) -> Sequence[Cotangent]:
            return rule(cts if several else cts[0], saved if several else saved[0], args, active)

        return apply_linear_rule(primitive, "vjp", body, cts, args)
    if primitive.multiple_results:
        return primitive.vjp(cts, saved, args, active)
    return primitive.vjp(cts[0], saved[0], args, active)


def transpose_jvp_rule(
    primitive: Primitive,
    cts: Sequence[Cotangent],
    args: Values,
    active: Flags,
    is_users_rule: bool = False,
) -> list[Cotangent]:
    """The cotangents of the operands, by the transpose of the primitive's `jvp` rule.

    RuleError if a user's rule is not linear: that of a user's primitive, or if `is_users_rule`.
    """
    return linearize_jvp_rule(primitive, args, active, is_users_rule).transpose(cts)


class LinearizedRule(NamedTuple):
    """The `jvp` rule of a primitive after it ran: outputs, and a linear program from tangents to tangents.

    `builder` holds the equations on tangents; `tangents` and `out_tangents` have None for zero.
    """

    primitive: Primitive
    builder: LinearBuilder
    outs: Values
    tangents: list[Tracer | None]
    out_tangents: Sequence[Tangent]
    is_users_rule: bool

    def transpose(self, cts: Sequence[Cotangent]) -> list[Cotangent]:
        """The cotangents of the operands, given those of the outputs."""
        primitive, builder = self.primitive, self.builder
        outer = current_builder.require()
        found = CotangentSums()
        for t, ct in zip(self.out_tangents, cts, strict=True):
            if t is not None:
                found.add(builder.atom(t), ct, mask_of(ct))
        captured = builder.captures.values()
        known = {v: x if type(x) is Tracer else outer.tracer(x) for v, x in captured}
        if primitive.is_user_defined or self.is_users_rule:
            outs = [builder.atom(t) for t in self.out_tangents if t is not None]
            check_rule_is_linear(
                primitive, "jvp", builder.equations, builder.inputs, outs, known, "tangent"
            )
        transpose_equations(builder.equations, known, found)
        return [None if t is None else found.values.get(t.atom) for t in self.tangents]


def linearize_jvp_rule(
    primitive: Primitive, args: Values, active: Flags, is_users_rule: bool = False
) -> LinearizedRule:
    """The `jvp` rule of `primitive`, run once on `args`; its effects take place."""
    builder = LinearBuilder("tangent", "transpose", current_builder.require())
    tangents = [
        builder.add_input(aval_of(x)) if on else None for x, on in zip(args, active, strict=True)
    ]
    with ContextValue(current_builder, builder):
        result = primitive.jvp(args, tangents)
    if primitive.is_user_defined:
        user_rule_runs.record()
        check_jvp_result(primitive, primitive.out_avals(tuple(map(aval_of, args))), result)
    outs, out_tangents = result
    if not primitive.multiple_results:
        outs, out_tangents = [outs], [out_tangents]
    return LinearizedRule(primitive, builder, outs, tangents, out_tangents, is_users_rule)


def transpose_equations(
    equations: Sequence[Equation], known: dict[Var, Any], cts: CotangentSums
) -> None:
    """Propagates cotangents through linear equations, from the last to the first.

    `known` holds the values of the variables that the equations are not linear in.
    """
    builder = current_builder.require()
    for eqn in reversed(equations):
        out_cts, masks = cts.pop_outputs(eqn.outputs)
        if all(ct is None for ct in out_cts):
            continue
        primitive, start = eqn.primitive, len(builder.equations)
        args = [transpose_operand(atom, known) for atom in eqn.inputs]
        results, _ = run_rule(out_cts, masks, apply_transpose_rule, primitive, out_cts, args)
        if len(results) != len(args):
            raise RuleError(
                f"{primitive.name}: `transpose` must return one cotangent an operand; "
                f"got {len(results)} for {len(args)} operands"
            )
        if primitive.multiple_results:
            results = symbolize_zeros(results, builder.equations[start:])
        mask = masks[0] if len(masks) == 1 else None
        operand_masks = primitive.cotangent_masks(mask, args)
        for atom, x, ct, operand_mask in zip(eqn.inputs, args, results, operand_masks, strict=True):
            if is_linear_input(x):
                cts.add(atom, ct, operand_mask)


def apply_transpose_rule(
    primitive: Primitive, cts: Sequence[Cotangent], args: Sequence[Any]
) -> Sequence[Cotangent]:
    """The cotangents of the linear operands of one equation."""
    if primitive.is_user_defined:

        def rule(cts: Sequence[Cotangent]) -> Sequence[Cotangent]:
            return primitive.transpose(cts if primitive.multiple_results else cts[0], *args)  # type: ignore[arg-type]

        return apply_linear_rule(primitive, "transpose", rule, cts, args)
    return primitive.transpose(cts if primitive.multiple_results else cts[0], *args)  # type: ignore[arg-type]


def transpose_operand(atom: Atom, known: dict[Var, Any]) -> Any:
    if type(atom) is not Var:
        return Tracer(atom, current_builder.require())
    return known[atom] if atom in known else LinearInput(atom.aval)


class ValueAndGrad(Rewrite[Program]):
    """The rewrite to the outputs, then the gradients of the first output.

    `active` marks the inputs to differentiate in. Without `with_value`, the first output itself is
    left out.
    """

    active: tuple[bool, ...]
    with_value: bool

    def __call__(self, program: Program) -> Program:
        body = partial(self.emit, program)
        name = f"grad_{program.name}"
        return trace_closed(body, program.in_avals, name=name, in_names=program.in_names)

    def emit(self, program: Program, *args: Value) -> list[Value]:
        """Appends the rewritten program on `args` to the current trace; returns its outputs."""
        program = canonicalize_for_ad(program, "vjp", "jvp")
        outs, tape = forward_sweep(program, args, self.active)
        seeds = [ops.constant_like(outs[0], 1)] + [None] * (len(outs) - 1)
        grads = backward_sweep(program, tape, seeds, self.active)
        return [*outs[0 if self.with_value else 1 :], *grads]


class SplitVJP(Rewrite[tuple[Program, Program]]):
    """The split of a program into a forward and a backward program.

    The first returns the outputs, then the residuals. The second takes the cotangents of the
    inexact outputs, then the residuals, and returns the cotangents of the active inputs.
    """

    active: tuple[bool, ...]

    def __call__(self, program: Program) -> tuple[Program, Program]:
        forward, backward = trace_vjp_split(program, self.active)
        return forward, backward


def trace_vjp_split(
    program: Program,
    active: Flags,
    takes_masks: Flags = (False,),
    returns_masks: bool = False,
) -> list[Program]:
    """The forward program of `program`, and a backward program for each entry of `takes_masks`.

    The forward program returns the outputs, then the residuals. A backward program takes the
    cotangents of the inexact outputs, then their masks if its entry is true, then the residuals. It
    returns the cotangents of the active inputs and, with `returns_masks`, the masks of these: a
    literal for an unknown mask, and no masks at all if all are unknown.
    """
    program = canonicalize_for_ad(program, "vjp", "jvp")
    backward: list[Program] = []

    def body(*args: Value) -> list[Value]:
        outs, tape = forward_sweep(program, args, active)
        inexact = inexact_mask(outs)
        avals = [aval_of(out) for out in select_where(outs, inexact)]
        count = len(avals)

        def pull(*cts_and_masks: Value) -> list[Value]:
            cts = CotangentSums()
            out_cts = scatter_where(cts_and_masks[:count], inexact)
            out_masks = scatter_where(cts_and_masks[count:] or [None] * count, inexact)
            grads = backward_sweep(program, tape, out_cts, active, cts, out_masks)
            masks = [cts.masks.get(v) for v in select_where(program.inputs, active)]
            if not returns_masks or all([mask is None for mask in masks]):
                return grads
            return [*grads, *instantiate_masks(masks, grads)]

        masks = [aval.update(dtype=ops.BOOL, weak_type=False) for aval in avals]
        pullbacks = [
            trace(pull, [*avals, *masks] if masked else avals, name=f"pullback_{program.name}")
            for masked in takes_masks
        ]
        tracer = current_builder.require().tracer
        captured = [[tracer(x) for x in residuals] for _, residuals in pullbacks]
        residuals = [*{x.atom: x for each in captured for x in each}.values()]
        for (pullback, _), own in zip(pullbacks, captured, strict=True):
            backward.append(align_residual_inputs(pullback, own, residuals))
        return [*outs, *residuals]

    forward = trace_closed(body, program.in_avals, name=program.name, in_names=program.in_names)
    residuals = forward.outputs[len(program.outputs) :]
    for pullback in backward:
        count = len(pullback.inputs) - len(residuals)
        pullback.in_names = partial(_backward_names, forward, residuals, count)
    return [forward, *backward]


def _backward_names(forward: Program, residuals: Sequence[Any], num_cts: int) -> list[str]:
    """The names of the cotangents and masks of a backward program, then those of residuals in `forward`."""
    name_of = variable_names(forward)
    cts = ["ct"] if num_cts == 1 else [f"ct_{i}" for i in range(num_cts)]
    return [*cts, *[name_of[v] for v in residuals]]


def align_residual_inputs(
    program: Program, residuals: Sequence[Tracer], all_residuals: Sequence[Tracer]
) -> Program:
    """`program` with inputs for `all_residuals` in place of its last inputs, for `residuals`."""
    lead = len(program.inputs) - len(residuals)
    input_of = {x.atom: v for x, v in zip(residuals, program.inputs[lead:], strict=True)}
    residual_inputs = [
        input_of[x.atom] if x.atom in input_of else Var(aval_of(x)) for x in all_residuals
    ]
    return replace_program_fields(program, inputs=[*program.inputs[:lead], *residual_inputs])
