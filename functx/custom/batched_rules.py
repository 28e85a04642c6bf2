"""Rules of custom functions for whole batches."""

from __future__ import annotations

from typing import Any

from functx.core.axes import AxisNames, batched_axis_names
from functx.core.editing import apply_program
from functx.core.program import Program
from functx.core.records import Record, Rewrite, field
from functx.core.rewriting import cached_rewrite
from functx.core.tracing import trace_closed
from functx.ops.reductions import reduce_sum
from functx.transforms.batching import Batch, BatchWithInferredOutDims
from functx.transforms.marks import select_where


class BatchJVPRule(Record):
    """The change of a rule to one for batches of `size` along `dims`."""

    size: int
    dims: tuple[int | None, ...]
    inexact: tuple[bool, ...]

    def __call__(self, programs: tuple[Program, ...]) -> tuple[Program, ...]:
        (rule,) = programs
        count = len(self.inexact)
        own = self.dims[:count]
        tangents = tuple(select_where(own, self.inexact))
        in_dims = (*own, *tangents, *self.dims[count:])
        return (cached_rewrite(Batch(self.size, in_dims, (0,) * len(rule.outputs)), rule),)


class BatchVJPRule(Record):
    """The change of a rule to one for batches of `size` along `dims`."""

    size: int
    dims: tuple[int | None, ...]
    inexact: tuple[bool, ...]
    outputs: int

    def __call__(self, programs: tuple[Program, ...]) -> tuple[Program, ...]:
        first, second, *pushes = programs
        _, found = cached_rewrite(BatchWithInferredOutDims(self.size, self.dims), first)
        out_dims = (0,) * self.outputs + tuple(found[self.outputs :])
        batched = cached_rewrite(Batch(self.size, self.dims, out_dims), first)
        residual_dims = out_dims[self.outputs :]
        cts = len(second.inputs) - len(residual_dims)
        wanted = tuple([d for d, on in zip(self.dims, self.inexact, strict=False) if on])
        in_dims = (*[0] * cts, *residual_dims)
        push = BatchJVPRule(self.size, self.dims, self.inexact)
        return (
            batched,
            cached_rewrite(BatchBackwardRule(self.size, in_dims, wanted), second),
            *[push((rule,))[0] for rule in pushes],
        )


class BatchBackwardRule(Rewrite[Program]):
    """The rewrite of a backward program to one for batches.

    The cotangent of an operand that all shared, with None in `wanted`, is summed.
    """

    size: int
    in_dims: tuple[int | None, ...]
    cotangent_dims: tuple[int | None, ...]
    names: AxisNames = field(default_factory=batched_axis_names, kw_only=True)

    def __call__(self, program: Program) -> Program:
        out_dims = tuple([0 if d is None else d for d in self.cotangent_dims])
        batched = Batch(self.size, self.in_dims, out_dims, names=self.names)(program)

        def body(*xs: Any) -> list[Any]:
            outs = apply_program(batched, xs)
            return [
                reduce_sum(x, (0,)) if d is None else x
                for x, d in zip(outs, self.cotangent_dims, strict=True)
            ]

        return trace_closed(body, batched.in_avals, name=batched.name)
