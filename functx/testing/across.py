"""What works across named axes, as something that the checks can take by itself."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from functx.core.axes import AxisNames
from functx.core.errors import ShapeError
from functx.core.primitive import LinearInput, Primitive
from functx.core.program import Program
from functx.core.rewriting import apply, cached_rewrite
from functx.core.samples import Sample, f32, sample
from functx.core.tracing import aval_of, trace
from functx.ops.collectives import Psum
from functx.ops.shaping import batch_dim_at
from functx.transforms.batching import Batch, BatchWithInferredOutDims
from functx.transforms.call import TransposeLinearInputs
from functx.transforms.forward_mode import JVPRewrite
from functx.transforms.reverse_mode import SplitVJP


class NamedAxisMap(Primitive):
    """The outputs of `primitive`, mapped over named axes: the first dimensions of all operands.

    Each rule asks the rule of the primitive, and maps what that gives.
    """

    primitive: Any
    axes: tuple[tuple[Hashable, int], ...]
    samples = (sample(f32[4, 3], primitive=Psum(("i",)), axes=(("i", 4),)),)

    @property
    def linear(self) -> tuple[int, ...]:
        """The operands that the operation may be linear in: none, if it has no transpose."""
        return (0,) if self.primitive.has_rule("transpose") else ()

    def program(self, *avals: Any) -> Program:
        """The program of one place."""
        n = len(self.axes)
        lanes = [a.update(shape=a.shape[n:]) for a in avals]
        return trace(lambda *xs: [self.primitive(*xs)], lanes, name=self.primitive.name)[0]

    def run_batched(self, program: Program, args: Any) -> list[Any]:
        """What `program`, of one place, makes of `args` at all places."""
        for name, size in reversed(self.axes):
            dims = (0,) * len(program.inputs), (0,) * len(program.outputs)
            program = Batch(size, *dims, names=AxisNames(name))(program)
        return apply(None, program, args)

    def abstract_eval(self, *avals: Any) -> Any:
        lengths = tuple([n for _, n in self.axes])
        if any(a.shape[: len(lengths)] != lengths for a in avals):
            raise ShapeError(
                f"across: operands must begin with the lengths of {self.axes}; got "
                + ", ".join(map(repr, avals))
            )
        (out,) = self.program(*avals).out_avals
        return out.update(shape=(*lengths, *out.shape))

    def jvp(self, primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
        push = JVPRewrite(tuple([t is not None for t in tangents]))
        program = cached_rewrite(push, self.program(*[aval_of(x) for x in primals]))
        given = [*primals, *[t for t in tangents if t is not None]]
        outs = self.run_batched(program, given)
        return outs[0], outs[1] if len(outs) > 1 else None

    def vjp(self, ct: Any, out: Any, args: Any, active: Sequence[bool]) -> Any:
        forward, backward = cached_rewrite(
            SplitVJP(tuple(active)), self.program(*[aval_of(x) for x in args])
        )
        residuals = self.run_batched(forward, args)[1:]
        found = iter(self.run_batched(backward, [ct, *residuals]))
        return [next(found) if on else None for on in active]

    def transpose(self, ct: Any, *args: Any) -> Any:
        linear = tuple([type(x) is LinearInput for x in args])
        program = cached_rewrite(
            TransposeLinearInputs(linear),
            self.program(
                *[x.aval if on else aval_of(x) for x, on in zip(args, linear, strict=True)]
            ),
        )
        return self.run_batched(program, [ct, *[x for x in args if type(x) is not LinearInput]])

    def batch(self, args: Sequence[Any], dims: Sequence[int | None]) -> Any:
        lanes = [
            aval_of(x) if d is None else aval_of(x).update(shape=(*x.shape[:d], *x.shape[d + 1 :]))
            for x, d in zip(args, dims, strict=True)
        ]
        size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
        batch = BatchWithInferredOutDims(size, (0,) * len(args), names=AxisNames())
        program, (dim,) = cached_rewrite(batch, self.program(*lanes))
        assert dim is not None
        # The batch goes in front in each place, behind the places.
        n = len(self.axes)
        moved = [batch_dim_at(x, d, n, size) for x, d in zip(args, dims, strict=True)]
        (out,) = self.run_batched(program, moved)
        return out, dim + n

    def decompose(self, *args: Any) -> Any:
        return self.run_batched(self.program(*[aval_of(x) for x in args]), args)[0]


def primitive_under_test(cls: Callable[..., Any], one: Sample) -> Any:
    """The primitive to check on a sample: across its named axes, if it has any."""
    primitive = cls(**one.params)
    return NamedAxisMap(primitive, one.across) if one.across else primitive
