"""`call`: an equation that holds a program, and that every transform maps over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from functx.core.errors import DTypeError
from functx.core.primitive import Primitive
from functx.core.program import Literal, Program
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.core.samples import f64, sample
from functx.core.tracing import aval_of, trace_closed
from functx.ops.arithmetic import Mul
from functx.ops.operands import batch_size
from functx.ops.shaping import instantiate_mask as mask_of
from functx.ops.trigonometric import Sin
from functx.transforms.batching import BatchWithInferredOutDims
from functx.transforms.forward_mode import Linearize
from functx.transforms.marks import (
    indices_where,
    inexact_cotangents,
    inexact_mask,
    linear_mask,
    scatter_where,
    select_where,
    select_where_not,
)
from functx.transforms.masked_split import SplitMaskedVJP, select_pullback, unpack_masked_cotangents
from functx.transforms.parts import Subprogram, active_outputs, dce_program
from functx.transforms.planning.planned import recomputes_forward, with_rematerialization
from functx.transforms.reverse_mode import Transpose
from functx.transforms.zeros import programs_run, with_programs


def _example() -> Program:
    def body(x: Any, y: Any) -> list[Any]:
        return [Sin()(Mul()(x, y))]

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
            if recomputes_forward(split, self.program)
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
        masks = [mask_of(m, x.shape) for m, x, on in zip(lives, primals, masked, strict=True) if on]
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
            with_rematerialization(SplitMaskedVJP(tuple(active))), self.program
        ).values
        outs = self.call_with_forwarding(values, args)
        count = len(self.program.outputs)
        return outs[:count], outs[count:]

    def vjp(self, cts, residuals, args, active):
        return self.vjp_masked(cts, [None] * len(cts), residuals, args, active)[0]

    def vjp_masked(self, cts, lives, residuals, args, active):
        backward, given = select_pullback(active, self.program, cts, lives)
        pull = self.backward_call(backward, with_rematerialization(SplitMaskedVJP(tuple(active))))
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
