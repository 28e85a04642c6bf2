"""`call`: an equation that holds a program, and that every transform maps over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from functx.core.dtypes import is_inexact
from functx.core.errors import DTypeError
from functx.core.primitive import LinearInput, Primitive
from functx.core.program import Program
from functx.core.samples import f64, sample
from functx.core.tracing import rewritten, trace
from functx.ops.arithmetic import Mul
from functx.ops.shaping import zeros_like
from functx.ops.trigonometric import Sin
from functx.transforms.batching import NaturalBatch
from functx.transforms.forward_mode import Linearize
from functx.transforms.reverse_mode import SplitVJP, Transpose


def _example() -> Program:
    def body(x: Any, y: Any) -> list[Any]:
        return [Sin()(Mul()(x, y))]

    return trace(body, [f64[3], f64[3]], name="example")[0]


class Call(Primitive):
    """The outputs of `program` on the operands, kept together as a function of its own."""

    program: Program
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

    def jvp(self, primals, tangents):
        varying = tuple([t is not None for t in tangents])
        values, tangent_program = rewritten(Linearize(varying), self.program)
        count = len(self.program.outputs)
        outs = Call(values)(*primals)
        given = [t for t in tangents if t is not None]
        found = iter(Call(tangent_program)(*given, *outs[count:]))
        return outs[:count], [next(found) if is_inexact(x.dtype) else None for x in outs[:count]]

    def forward(self, args, active):
        values, _ = rewritten(SplitVJP(tuple(active)), self.program)
        outs = Call(values)(*args)
        count = len(self.program.outputs)
        return outs[:count], outs[count:]

    def vjp(self, cts, residuals, args, active):
        _, backward = rewritten(SplitVJP(tuple(active)), self.program)
        given = [
            zeros_like(aval) if ct is None else ct
            for ct, aval in zip(cts, self.program.out_avals, strict=True)
            if is_inexact(aval.dtype)
        ]
        found = iter(Call(backward)(*given, *residuals))
        return [next(found) if on else None for on in active]

    def transpose(self, cts, *args):
        linear = tuple([type(x) is LinearInput for x in args])
        program = rewritten(TransposeIn(linear), self.program)
        given = [
            zeros_like(aval) if ct is None else ct
            for ct, aval in zip(cts, self.program.out_avals, strict=True)
            if is_inexact(aval.dtype)
        ]
        known = [x for x, on in zip(args, linear, strict=True) if not on]
        found = iter(Call(program)(*given, *known))
        return [next(found) if on else None for on in linear]

    def batch(self, args, dims):
        size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
        program, out_dims = rewritten(NaturalBatch(size, tuple(dims)), self.program)
        return Call(program)(*args), out_dims

    def lower(self, ctx, *values):
        return ctx.call(self.program, values)


@dataclass(frozen=True)
class TransposeIn:
    """The rewrite to the transpose of a program that is linear in the inputs marked `linear`."""

    linear: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        inputs = [v for v, on in zip(program.inputs, self.linear, strict=True) if on]
        inputs += [v for v, on in zip(program.inputs, self.linear, strict=True) if not on]
        first = Program(program.name, inputs, program.equations, program.outputs)
        return Transpose(sum(self.linear))(first)
