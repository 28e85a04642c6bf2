"""`call`: an equation that holds a program, and that every transform maps over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from functx.core.errors import DTypeError
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.rewriting import rewritten
from functx.core.samples import f64, sample
from functx.core.tracing import trace
from functx.ops.arithmetic import Mul
from functx.ops.operands import batch_size
from functx.ops.trigonometric import Sin
from functx.transforms.batching import NaturalBatch
from functx.transforms.forward_mode import Linearize
from functx.transforms.marks import (
    chosen,
    inexact_cotangents,
    inexact_marks,
    linear_marks,
    others,
    places_of,
    spread,
)
from functx.transforms.parts import part_of
from functx.transforms.reverse_mode import SplitVJP, Transpose
from functx.transforms.zeros import WithZeros


def _example() -> Program:
    def body(x: Any, y: Any) -> list[Any]:
        return [Sin()(Mul()(x, y))]

    return trace(body, [f64[3], f64[3]], name="example")[0]


class Call(Primitive):
    """The outputs of `program` on the operands, kept together as a function of its own.

    With `apart`, XLA does not inline it either.
    """

    program: Program
    apart: bool = False
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

    def again(self, program: Program) -> Call:
        """A call of another program, kept apart as this one is."""
        return Call(program, self.apart)

    def trim(self, used):
        if all(used):
            return None
        outputs = places_of(used)
        program, inputs = part_of(self.program, outputs)
        return self.again(program), inputs, outputs

    def jvp(self, primals, tangents):
        varying = tuple([t is not None for t in tangents])
        values, tangent_program = rewritten(Linearize(varying), self.program)
        count = len(self.program.outputs)
        outs = self.again(values)(*primals)
        given = [t for t in tangents if t is not None]
        found = self.again(tangent_program)(*given, *outs[count:])
        return outs[:count], spread(found, inexact_marks(self.program.out_avals))

    def forward(self, args, active):
        values, _ = rewritten(SplitVJP(tuple(active)), self.program)
        outs = self.again(values)(*args)
        count = len(self.program.outputs)
        return outs[:count], outs[count:]

    def vjp(self, cts, residuals, args, active):
        _, backward = rewritten(SplitVJP(tuple(active)), self.program)
        inexact = chosen(cts, inexact_marks(self.program.out_avals))
        marks = tuple([ct is not None for ct in inexact])
        if not all(marks):
            backward = rewritten(WithZeros(marks), backward)
        given = [ct for ct in inexact if ct is not None]
        return spread(self.again(backward)(*given, *residuals), active)

    def transpose(self, cts, *args):
        linear = linear_marks(args)
        program = rewritten(TransposeIn(linear), self.program)
        given = inexact_cotangents(cts, self.program.out_avals)
        return spread(self.again(program)(*given, *others(args, linear)), linear)

    def batch(self, args, dims):
        size = batch_size(args, dims)
        program, out_dims = rewritten(NaturalBatch(size, tuple(dims)), self.program)
        return self.again(program)(*args), out_dims

    def lower(self, ctx, *values):
        return ctx.call(self.program, values, self.apart)


@dataclass(frozen=True)
class TransposeIn:
    """The rewrite to the transpose of a program that is linear in the inputs marked `linear`."""

    linear: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        inputs = [*chosen(program.inputs, self.linear), *others(program.inputs, self.linear)]
        first = Program(program.name, inputs, program.equations, program.outputs)
        return Transpose(sum(self.linear))(first)
