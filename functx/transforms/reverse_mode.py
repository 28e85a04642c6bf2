"""Programs that pull cotangents back through their equations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from functx import ops
from functx.core.builder import LinearBuilder
from functx.core.errors import RuleError
from functx.core.primitive import LinearInput, Primitive
from functx.core.program import Equation, Program, Var, dce_equations
from functx.core.records import Rewrite
from functx.core.rewriting import bind_equation, interpret, user_rule_runs
from functx.core.source_info import backward_source, expression_key
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.tracing import trace, trace_closed
from functx.core.types import is_inexact
from functx.ops.families import Elementwise, apply_mask
from functx.transforms.ad_canonicalization import canonicalize_for_ad
from functx.transforms.dce import RemoveEffects, used_variables, varied, varying_output_mask
from functx.transforms.operand_masks import (
    inexact_mask,
    instantiate_zeros,
    scatter_where,
    select_where,
)
from functx.transforms.rule_checks import apply_linear_rule, check_jvp_result, check_rule_is_linear
from functx.transforms.symbolic_zeros import symbolize_zeros


class TapeEntry(NamedTuple):
    """One equation on the path from the active inputs, with what it was applied to."""

    eqn: Equation
    args: Sequence[Any]
    saved: Any
    active: tuple[bool, ...]


def forward_sweep(
    program: Program, args: Sequence[Any], active: Sequence[bool]
) -> tuple[list[Any], list[TapeEntry]]:
    """The outputs of `program`, and the equations that a derivative goes through."""
    tape: list[TapeEntry] = []

    def step(eqn: Equation, *operands: tuple[Any, bool]) -> list[tuple[Any, bool]]:
        args = [x for x, _ in operands]
        flags = tuple([on for _, on in operands])
        primitive = eqn.primitive
        if not primitive.differentiable or not any(flags):
            return [(out, False) for out in bind_equation(eqn, *args)]
        if primitive.forward is None:
            outs = saved = bind_equation(eqn, *args)
        else:
            outs, saved = primitive.forward(args, flags)
        tape.append(TapeEntry(eqn, args, saved, flags))
        if primitive.varying_outputs is None:
            return [(out, is_inexact(out.dtype)) for out in outs]
        marks = varying_output_mask(primitive, [aval_of(x) for x in args], flags, outs)
        return list(zip(outs, marks, strict=True))

    pairs = zip(args, active, strict=True)
    outs = interpret(program, pairs, step, constant=lambda c: (c, False))
    return [x for x, _ in outs], tape


def backward_sweep(
    program: Program,
    tape: Sequence[TapeEntry],
    out_cts: Sequence[Any],
    active: Sequence[bool],
    cts: Cotangents | None = None,
) -> list[Any]:
    """The cotangents of the active inputs, given those of the outputs (None for zero).

    They are gathered in `cts`, for one who watches.
    """
    builder = current_builder.require()
    cts = Cotangents() if cts is None else cts
    for atom, ct in zip(program.outputs, out_cts, strict=True):
        cts.add(atom, ct)
    outer = builder.source
    for eqn, args, saved, flags in reversed(tape):
        primitive, there = eqn.primitive, None
        if primitive.vjp_masked is not None:
            there = [cts.masks.pop(v, None) for v in eqn.outputs]
        given, live = cts.pop_outputs(eqn.outputs)
        if any(ct is not None for ct in given):
            builder.source = backward_source(eqn.source)
            # What is more than half of an array lies beside no other part of its size.
            beside = primitive.accumulate_slices is not None and 2 * given[0].size <= args[0].size
            if beside or primitive.add_to_cotangent is not None:
                whole = primitive.cotangent_masks(live, args)[0]
                cts.defer(
                    eqn.inputs[0], SparseCotangent(primitive, given[0], args, builder.source), whole
                )
                continue
            start = len(builder.equations)
            if there is None:
                found = apply_vjp_rule(primitive, given, live, saved, args, flags)
                lives = primitive.cotangent_masks(live, args)
            else:
                found, lives = primitive.vjp_masked(given, there, saved, args, flags)
            if primitive.multiple_results:
                found = symbolize_zeros(found, builder.equations[start:])
            for atom, on, ct, part in zip(eqn.inputs, flags, found, lives, strict=True):
                if on:
                    cts.add(atom, ct, part)
    builder.source = outer
    wanted = select_where(program.inputs, active)
    totals = [cts.pop(v) for v in wanted]
    return instantiate_zeros(totals, [v.aval for v in wanted])


class SparseCotangent(NamedTuple):
    """A cotangent that touches a part of the total, by the equation that looked at that part."""

    primitive: Primitive
    ct: Any
    args: Sequence[Any]
    source: Any

    @property
    def user_location(self) -> Any:
        """The place in the user's code that looks at the part."""
        return None if self.source is None else expression_key(self.source)

    def add_to(self, total: Any) -> Any:
        """The total with this, None for zero."""
        primitive, ct, args, _ = self
        if total is not None and primitive.add_to_cotangent is not None:
            return primitive.add_to_cotangent(total, ct, args)
        own = primitive.vjp(ct, None, args, (True,))[0]  # type: ignore[misc]
        return own if total is None else ops.add(total, own)


def group_by_primitive(
    parts: Sequence[SparseCotangent],
) -> dict[type[Primitive], list[SparseCotangent]]:
    """The parts by the class of their primitives."""
    kinds: dict[type[Primitive], list[SparseCotangent]] = {}
    for part in parts:
        kinds.setdefault(type(part.primitive), []).append(part)
    return kinds


class Cotangents:
    """The cotangents of variables so far, and for some, where they can be other than zero.

    Those of equations that looked at a part of a variable wait in `parts`, to be added in
    place to the sum of the others: then a part costs no pass over the whole.
    """

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self.masks: dict[Any, Any] = {}
        self.sparse: dict[Any, list[SparseCotangent]] = {}

    def add(self, atom: Any, ct: Any, live: Any = None) -> None:
        """Add `ct`, which is zero wherever `live` does not hold, to the cotangent of `atom`."""
        if ct is None or type(atom) is not Var:
            return
        self.merge_mask(atom, live)
        self.values[atom] = ops.add(self.values[atom], ct) if atom in self.values else ct

    def defer(self, atom: Any, part: SparseCotangent, live: Any) -> None:
        """Let `part`, which is zero wherever `live` does not hold, be added to that of `atom`."""
        self.merge_mask(atom, live)
        self.sparse.setdefault(atom, []).append(part)

    def merge_mask(self, atom: Any, live: Any) -> None:
        if atom not in self.values and atom not in self.sparse:
            if live is not None:
                self.masks[atom] = live
            return
        before = self.masks.pop(atom, None)
        if live is not None and before is not None and live.shape == before.shape:
            self.masks[atom] = ops.bitwise_or(before, live)

    def pop(self, var: Var) -> Any:
        """The cotangent of `var`, None for zero, which is forgotten."""
        total = self.values.pop(var, None)
        parts = self.sparse.pop(var, None) if self.sparse else None
        if parts is None:
            return total
        builder = current_builder.require()
        outer = builder.source
        for kind, alike in group_by_primitive(parts).items():
            builder.source = alike[0].source
            if kind.accumulate_slices is not None and len(alike) > 1:
                given = [(part.primitive, part.ct, part.user_location) for part in alike]
                found = kind.accumulate_slices(given, aval_of(alike[0].args[0]))
                total = found if total is None else ops.add(total, found)
                continue
            for part in alike:
                builder.source = part.source
                total = part.add_to(total)
        builder.source = outer
        return total

    def pop_outputs(self, variables: Sequence[Var]) -> tuple[list[Any], Any]:
        """The cotangents of the outputs of an equation, None for zero, and where they live."""
        values = [self.pop(v) for v in variables]
        live = self.masks.pop(variables[0], None) if self.masks and len(variables) == 1 else None
        return values, live


def apply_vjp_rule(
    primitive: Primitive,
    cts: list[Any],
    live: Any,
    saved: Any,
    args: Sequence[Any],
    active: Sequence[bool],
) -> Sequence[Any]:
    """The cotangents of the operands of one equation."""
    if primitive.vjp is None:
        return transpose_jvp_rule(primitive, cts, args, active)
    if primitive.is_user_defined:
        rule: Any = primitive.vjp
        several = primitive.multiple_results

        def body(cts: Sequence[Any]) -> Any:
            return rule(cts if several else cts[0], saved if several else saved[0], args, active)

        return apply_linear_rule(primitive, "vjp", body, cts, args)
    if primitive.multiple_results:
        return primitive.vjp(cts, saved, args, active)  # type: ignore[no-any-return]
    if live is None or primitive.vjp_where is None:
        return primitive.vjp(cts[0], saved[0], args, active)  # type: ignore[no-any-return]
    if not isinstance(primitive, Elementwise) or type(primitive).vjp is Elementwise.vjp:
        return primitive.vjp_where(live, cts[0], saved[0], args, active)  # type: ignore[no-any-return]
    return [
        apply_mask(live, ct) if ct is not None and live.shape in ((), ct.shape) else ct
        for ct in primitive.vjp(cts[0], saved[0], args, active)
    ]


def transpose_jvp_rule(
    primitive: Primitive, cts: Sequence[Any], args: Sequence[Any], active: Sequence[bool]
) -> list[Any]:
    """The cotangents of the operands: what the primitive's `jvp` computes, transposed."""
    outer = current_builder.require()
    builder = LinearBuilder("tangent", "transpose", outer)
    tangents = [
        builder.add_input(aval_of(x)) if on else None for x, on in zip(args, active, strict=True)
    ]
    token = current_builder.set(builder)
    try:
        result = primitive.jvp(args, tangents)
    finally:
        current_builder.reset(token)
    if primitive.is_user_defined:
        user_rule_runs.record()
        check_jvp_result(primitive, primitive.infer_out_avals(tuple(map(aval_of, args))), result)
    _, out_tangents = result
    if not primitive.multiple_results:
        out_tangents = [out_tangents]
    found = Cotangents()
    for t, ct in zip(out_tangents, cts, strict=True):
        if t is not None:
            found.add(builder.atom(t), ct)
    captured = builder.captures.values()
    known = {v: x if type(x) is Tracer else outer.tracer(x) for v, x in captured}
    if primitive.is_user_defined or primitive.checks_rule_results:
        outs = [builder.atom(t) for t in out_tangents if t is not None]
        check_rule_is_linear(
            primitive, "jvp", builder.equations, builder.inputs, outs, known, "tangent"
        )
    transpose_equations(builder.equations, known, found)
    return [None if t is None else found.values.get(t.atom) for t in tangents]


def transpose_equations(
    equations: Sequence[Equation], known: dict[Var, Any], cts: Cotangents
) -> None:
    """Carry cotangents through linear equations, last to first.

    `known` holds the values of the variables that the equations are not linear in.
    """
    builder = current_builder.require()
    for eqn in reversed(equations):
        given, _ = cts.pop_outputs(eqn.outputs)
        if all(ct is None for ct in given):
            continue
        primitive, start = eqn.primitive, len(builder.equations)
        args = [transpose_operand(atom, known) for atom in eqn.inputs]
        if primitive.is_user_defined:

            def rule(cts: Sequence[Any], primitive: Any = primitive, args: Any = args) -> Any:
                return primitive.transpose(cts if primitive.multiple_results else cts[0], *args)

            results: Sequence[Any] = apply_linear_rule(primitive, "transpose", rule, given, args)
        else:
            results = primitive.transpose(given if primitive.multiple_results else given[0], *args)
        if len(results) != len(args):
            raise RuleError(
                f"{primitive.name}: `transpose` must return one cotangent an operand; "
                f"got {len(results)} for {len(args)} operands"
            )
        if primitive.multiple_results:
            results = symbolize_zeros(results, builder.equations[start:])
        for atom, x, ct in zip(eqn.inputs, args, results, strict=True):
            if type(x) is LinearInput:
                cts.add(atom, ct)


def transpose_operand(atom: Any, known: dict[Var, Any]) -> Any:
    if type(atom) is not Var:
        return Tracer(atom, current_builder.require())
    return known[atom] if atom in known else LinearInput(atom.aval)


class ValueAndGrad(Rewrite[Program]):
    """The rewrite to the outputs, then the gradients of the first of them.

    `active` marks the inputs to differentiate in. With `with_value` false, the first
    output itself is left out.
    """

    active: tuple[bool, ...]
    with_value: bool

    def __call__(self, program: Program) -> Program:
        body = partial(self.emit, program)
        name = f"grad_{program.name}"
        return trace_closed(body, program.in_avals, name=name, in_names=program.in_names)

    def emit(self, program: Program, *args: Any) -> list[Any]:
        """The outputs of the rewritten program on `args`, appended to the trace that is on."""
        program = canonicalize_for_ad(program, "vjp", "jvp", "transpose")
        outs, tape = forward_sweep(program, args, self.active)
        seeds = [ops.constant_like(outs[0], 1)] + [None] * (len(outs) - 1)
        grads = backward_sweep(program, tape, seeds, self.active)
        return [*outs[0 if self.with_value else 1 :], *grads]


class SplitVJP(Rewrite[tuple[Program, Program]]):
    """The split of `program` into a forward and a backward program.

    The first returns the outputs, then what the second needs of them. The second takes the
    cotangents of the inexact outputs, then that, and returns those of the active inputs.
    """

    active: tuple[bool, ...]

    def __call__(self, program: Program) -> tuple[Program, Program]:
        program = canonicalize_for_ad(program, "vjp", "jvp", "transpose")
        backward: list[Program] = []

        def body(*args: Any) -> list[Any]:
            outs, tape = forward_sweep(program, args, self.active)
            inexact = inexact_mask(outs)

            def pull_back(*given: Any) -> list[Any]:
                return backward_sweep(program, tape, scatter_where(given, inexact), self.active)

            ct_avals = [aval_of(out) for out in select_where(outs, inexact)]
            names = ["ct"] if len(ct_avals) == 1 else [f"ct_{i}" for i in range(len(ct_avals))]
            pullback, residuals = trace(
                pull_back, ct_avals, name=f"pullback_{program.name}", in_names=lambda: names
            )
            backward.append(pullback)
            return [*outs, *residuals]

        forward_program = trace_closed(
            body, program.in_avals, name=program.name, in_names=program.in_names
        )
        return forward_program, backward[0]


class Transpose(Rewrite[Program]):
    """The rewrite to the transpose of a program that is linear in its first inputs.

    The result takes the cotangents of the inexact outputs, then the other inputs, and
    returns the cotangents of the first `linear` inputs.
    """

    linear: int

    def __call__(self, program: Program) -> Program:
        def body(*args: Any) -> list[Any]:
            n = len(args) - (len(program.inputs) - self.linear)
            known: dict[Var, Any] = dict(zip(program.inputs[self.linear :], args[n:], strict=True))
            cts = Cotangents()
            rest = iter(args[:n])
            for atom in program.outputs:
                if is_inexact(atom.aval.dtype):
                    cts.add(atom, next(rest))
            linear_equations = evaluate_known(program, known)
            transpose_equations(linear_equations, known, cts)
            return [
                cts.values[v] if v in cts.values else ops.zeros_like(v.aval)
                for v in program.inputs[: self.linear]
            ]

        ct_avals = [a for a in program.out_avals if is_inexact(a.dtype)]
        known_avals = program.in_avals[self.linear :]
        return trace_closed(body, [*ct_avals, *known_avals], name=f"transpose_{program.name}")


def evaluate_known(program: Program, known: dict[Var, Any]) -> list[Equation]:
    """Append the equations on known values alone; returns the others, linear in the rest.

    A loop, a branch or a call may compute both: the outputs that do not vary are computed apart.
    """
    linear = []
    read = used_variables(program.equations, ())
    for eqn in program.equations:
        if all(type(a) is not Var or a in known for a in eqn.inputs):
            args = [transpose_operand(atom, known) for atom in eqn.inputs]
            known.update(zip(eqn.outputs, bind_equation(eqn, *args), strict=True))
            continue
        linear.append(eqn)
        if eqn.primitive.dce is None:
            continue
        active = {a for a in eqn.inputs if type(a) is Var and a not in known}
        moving = varied(eqn, active)
        steady = [v for v in eqn.outputs if v in read and v not in moving]
        part = Program(program.name, program.inputs, dce_equations([eqn], steady), steady)
        for own in RemoveEffects()(part).equations:
            if all(type(a) is not Var or a in known for a in own.inputs):
                args = [transpose_operand(atom, known) for atom in own.inputs]
                known.update(zip(own.outputs, bind_equation(own, *args), strict=True))
    return linear
