"""Programs split in two for the derivative of a call, through which masks of cotangents pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from functx import ops
from functx.core.errors import DTypeError
from functx.core.primitive import Primitive
from functx.core.program import Literal, Program, Var
from functx.core.program_editing import replace_program_fields
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.core.samples import f64, sample
from functx.core.tracer import aval_of, current_builder
from functx.core.tracing import trace, trace_closed
from functx.core.types import ShapedArray
from functx.ops.operands import batch_size
from functx.transforms.ad_canonicalization import canonicalize_for_ad
from functx.transforms.dce import Subprogram, active_outputs, dce_program
from functx.transforms.forward_mode import Linearize
from functx.transforms.operand_masks import (
    indices_where,
    inexact_cotangents,
    inexact_mask,
    linear_mask,
    scatter_where,
    select_where,
    select_where_not,
)
from functx.transforms.operand_masks import scatter_where as spread_to
from functx.transforms.partial_evaluation_policy import policy
from functx.transforms.reverse_mode import Cotangents, Transpose, backward_sweep, forward_sweep
from functx.transforms.symbolic_zeros import DropZeroInputs, programs_run, with_programs
from functx.transforms.vmap import BatchWithInferredOutDims


class MaskedVJPPrograms(NamedTuple):
    """A program of the outputs and of what is kept for the derivative, and two that pull back.

    `plain` takes the cotangents of the inexact outputs, then what is kept; `masked` takes
    behind the cotangents where each of them can be other than zero. Both give the cotangents
    of the active inputs, then where those can be other than zero: a literal for anywhere, and
    nothing where all are that.
    """

    values: Program
    unmasked: Program
    masked: Program


class SplitMaskedVJP(Rewrite[MaskedVJPPrograms]):
    """The split of `program` for the derivative in the inputs marked `active`, as `MaskedVJPPrograms`."""

    active: tuple[bool, ...]

    def __call__(self, program: Program) -> MaskedVJPPrograms:
        program = canonicalize_for_ad(program, "vjp", "jvp", "transpose")
        pulled: list[Program] = []

        def body(*args: Any) -> list[Any]:
            outs, tape = forward_sweep(program, args, self.active)
            avals = [aval_of(out) for out in select_where(outs, inexact_mask(outs))]
            masks = [aval.update(dtype=ops.BOOL, weak_type=False) for aval in avals]
            pull_back = partial(self.backward, program, tape, len(avals))
            name = f"pullback_{program.name}"
            names = ["ct"] if len(avals) == 1 else [f"ct_{i}" for i in range(len(avals))]
            plain, kept = trace(pull_back, avals, name=name, in_names=lambda: names)
            masked, more = trace(pull_back, [*avals, *masks], name=name, in_names=lambda: names)
            builder = current_builder.require()
            kept, more = [builder.tracer(x) for x in kept], [builder.tracer(x) for x in more]
            known = {x.atom for x in kept}
            both = [*kept, *[x for x in more if x.atom not in known]]
            pulled.append(align_residual_inputs(plain, len(avals), kept, both))
            pulled.append(align_residual_inputs(masked, 2 * len(avals), more, both))
            return [*outs, *both]

        values = trace_closed(body, program.in_avals, name=program.name, in_names=program.in_names)
        return MaskedVJPPrograms(values, *pulled)

    def backward(self, program: Program, tape: Any, count: int, *given: Any) -> list[Any]:
        cts = Cotangents()
        lives = given[count:] or [None] * count
        inexact = inexact_mask([atom.aval for atom in program.outputs])
        ends = select_where(program.outputs, inexact)
        for atom, ct, live in zip(ends, given[:count], lives, strict=True):
            cts.add(atom, ct, live)
        grads = backward_sweep(program, tape, [None] * len(inexact), self.active, cts)
        masks = [cts.masks.get(v) for v in select_where(program.inputs, self.active)]
        if all([mask is None for mask in masks]):
            return grads
        anywhere = ops.constant_like(ShapedArray((), ops.BOOL), True)
        shown = zip(masks, grads, strict=True)
        return [
            *grads,
            *[anywhere if m is None else ops.instantiate_mask(m, g.shape) for m, g in shown],
        ]


class SelectMaskedVJP(Rewrite[tuple[Program, Program]]):
    """The first of the `MaskedVJPPrograms` of a program and one of those that pull back, `masked` or plain."""

    active: tuple[bool, ...]
    masked: bool

    def __call__(self, program: Program) -> tuple[Program, Program]:
        return self.select(cached_rewrite(self.split, program))

    @property
    def split(self) -> SplitMaskedVJP:
        """The split whose halves these are."""
        return SplitMaskedVJP(self.active)

    def select(self, halves: MaskedVJPPrograms) -> tuple[Program, Program]:
        """Those of `halves` that are wanted."""
        return halves.values, halves.masked if self.masked else halves.unmasked


def align_residual_inputs(
    program: Program, lead: int, kept: Sequence[Any], wanted: Sequence[Any]
) -> Program:
    """`program`, which takes `kept` behind its first `lead` inputs, made to take `wanted` there."""
    own = {x.atom: v for x, v in zip(kept, program.inputs[lead:], strict=True)}
    rest = [own[x.atom] if x.atom in own else Var(aval_of(x)) for x in wanted]
    return replace_program_fields(program, inputs=[*program.inputs[:lead], *rest])


def select_pullback(
    active: Sequence[bool], program: Program, cts: Sequence[Any], lives: Sequence[Any]
) -> tuple[Program, list[Any]]:
    """The program that pulls `cts` back, zero where `lives` do not hold, and its first operands."""
    halves = cached_rewrite(policy.limit_residuals(SplitMaskedVJP(tuple(active))), program)
    inexact = inexact_mask(program.out_avals)
    cts, lives = select_where(cts, inexact), select_where(lives, inexact)
    if any([live is not None for live in lives]):
        avals = select_where(program.out_avals, inexact)
        full = [
            ops.constant_like(a, 0) if ct is None else ct for ct, a in zip(cts, avals, strict=True)
        ]
        return halves.masked, [*full, *broadcast_masks(lives, full)]
    marks = tuple([ct is not None for ct in cts])
    plain = cached_rewrite(DropZeroInputs(marks), halves.unmasked)
    return plain, [ct for ct in cts if ct is not None]


def broadcast_masks(lives: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
    """`lives` as arrays of the shapes of the cotangents."""
    return [ops.instantiate_mask(live, ct.shape) for live, ct in zip(lives, cts, strict=True)]


def unpack_masked_cotangents(
    active: Sequence[bool], program: Program, outs: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The cotangents and their masks among `outs`, what such a `program` gives, one an operand."""
    count = sum(active)
    ends: list[Any] = [*program.outputs[count:]] or [None] * count
    masks = [
        None if end is None or type(end) is Literal else outs[count + i]
        for i, end in enumerate(ends)
    ]
    return spread_to(outs[:count], active), spread_to(masks, active)


def _example() -> Program:
    def body(x: Any, y: Any) -> list[Any]:
        return [ops.Sin()(ops.Mul()(x, y))]

    return trace_closed(body, [f64[3], f64[3]], name="example")


class Call(Primitive):
    """The outputs of `program` on the operands, kept together as a function of its own.

    With `apart`, XLA does not inline it either.
    """

    program: Program
    noinline: bool = False
    multiple_results = True
    samples = (sample(f64[3], f64[3], program=_example()),)

    def abstract_eval(self, *avals):
        wanted = self.program.in_avals
        if [(a.shape, a.dtype) for a in avals] != [(a.shape, a.dtype) for a in wanted]:
            raise DTypeError(
                "call: operands must have the types of the program's inputs; got "
                f"{', '.join(map(repr, avals))} for {', '.join(map(repr, wanted))}"
            )
        return self.program.out_avals

    def with_program(self, program: Program) -> Call:
        """A call of another program, kept apart as this one is."""
        return Call(program, self.noinline)

    def backward_call(self, backward: Program, split: Any) -> Call:
        """A call of `backward`, made by `split`, which may compute again what came before."""
        return (
            RematerializedCall(backward, True)
            if policy.recomputes_forward(split, self.program)
            else self.with_program(backward)
        )

    def call_with_forwarding(self, program: Program, args: Sequence[Any]) -> list[Any]:
        """The outputs of `program` on `args`, by a call but for those that it just passes on."""
        given = enumerate(zip(program.inputs, args, strict=True))
        places: dict[Any, int] = {v: i for i, (v, x) in given if aval_of(x) is v.aval}
        passed = [places.get(atom) for atom in program.outputs]
        own = tuple([n for n, at in enumerate(passed) if at is None])
        if len(own) == len(passed):
            return self.with_program(program)(*args)  # type: ignore[no-any-return]
        outs = iter(self.with_program(cached_rewrite(Subprogram(outputs=own), program))(*args))
        return [next(outs) if at is None else args[at] for at in passed]

    def dce(self, used):
        if all(used):
            return None
        outputs = indices_where(used)
        program, inputs = dce_program(self.program, outputs)
        return self.with_program(program), inputs, outputs

    def varying_outputs(self, avals, active):
        return active_outputs(self.program, active)

    def jvp(self, primals, tangents):
        lives = [False if t is None else None for t in tangents]
        return self.jvp_masked(primals, tangents, lives)[:2]

    def jvp_masked(self, primals, tangents, lives):
        varying = tuple([t is not None for t in tangents])
        masked = tuple([live is not None and live is not False for live in lives])
        split = Linearize(varying, masked)
        values, tangent_program = cached_rewrite(split, self.program)
        masks = [
            ops.instantiate_mask(m, x.shape)
            for m, x, on in zip(lives, primals, masked, strict=True)
            if on
        ]
        found = self.call_with_forwarding(values, [*primals, *masks])
        inexact = inexact_mask(self.program.out_avals)
        count, end = len(inexact), len(inexact) + sum(inexact)
        given = [t for t in tangents if t is not None]
        pushed = self.with_program(tangent_program)(*given, *found[end:])
        masks = [
            None if type(atom) is Literal else mask
            for atom, mask in zip(values.outputs[count:end], found[count:end], strict=True)
        ]
        return found[:count], scatter_where(pushed, inexact), scatter_where(masks, inexact)

    def forward(self, args, active):
        values = cached_rewrite(
            policy.limit_residuals(SplitMaskedVJP(tuple(active))), self.program
        ).values
        outs = self.call_with_forwarding(values, args)
        count = len(self.program.outputs)
        return outs[:count], outs[count:]

    def vjp(self, cts, residuals, args, active):
        return self.vjp_masked(cts, [None] * len(cts), residuals, args, active)[0]

    def vjp_masked(self, cts, lives, residuals, args, active):
        backward, given = select_pullback(active, self.program, cts, lives)
        pull = self.backward_call(backward, policy.limit_residuals(SplitMaskedVJP(tuple(active))))
        return unpack_masked_cotangents(active, backward, pull(*given, *residuals))

    def transpose(self, cts, *args):
        linear = linear_mask(args)
        program = cached_rewrite(TransposeLinearInputs(linear), self.program)
        given = inexact_cotangents(cts, self.program.out_avals)
        return scatter_where(
            self.with_program(program)(*given, *select_where_not(args, linear)), linear
        )

    def batch(self, args, dims):
        size = batch_size(args, dims)
        program, out_dims = cached_rewrite(
            BatchWithInferredOutDims(size, tuple(dims)), self.program
        )
        return self.with_program(program)(*args), out_dims

    def hoist_constants(self, programs, extras, operands):
        return self.with_program(programs[0]), [*extras[0], *operands]

    def lower(self, ctx, *values):
        return ctx.call(self.program, values, self.noinline)


class RematerializedCall(Call):
    """A call that computes again what ran before it.

    It is not merged with that, and does not begin before all its operands are there.
    """

    samples = (sample(f64[3], f64[3], program=_example(), noinline=True),)

    def with_program(self, program):
        return RematerializedCall(program, True)

    def lower(self, ctx, *values):
        return ctx.call(self.program, ctx.barrier(values), True)


class TransposeLinearInputs(Rewrite[Program]):
    """The rewrite to the transpose of a program that is linear in the inputs marked `linear`."""

    linear: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        inputs = [
            *select_where(program.inputs, self.linear),
            *select_where_not(program.inputs, self.linear),
        ]
        first = Program(program.name, inputs, program.equations, program.outputs)
        return Transpose(sum(self.linear))(first)


@programs_run.register
def _program_of_call(primitive: Call) -> Sequence[Program]:
    return (primitive.program,)


@with_programs.register
def _call_of_program(primitive: Call, programs: Sequence[Program]) -> Call:
    return primitive.with_program(programs[0])
