"""Programs that run at every index of a new axis at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from functx.core.avals import ShapedArray
from functx.core.errors import RuleError
from functx.core.interpret import forward, interpret
from functx.core.program import Equation, Program
from functx.core.tracing import trace
from functx.ops.shaping import broadcast_in_dim, moveaxis
from functx.transforms.expand import expand


@dataclass(frozen=True)
class Batch:
    """The rewrite to a program of whole batches of length `size`.

    `in_dims` gives the batch dimension of each input, None for one that all share;
    `out_dims` that of each output, None for one that must not depend on the batch.
    """

    size: int
    in_dims: tuple[int | None, ...]
    out_dims: tuple[int | None, ...]

    def __call__(self, program: Program) -> Program:
        avals = [
            add_axis(v.aval, dim, self.size)
            for v, dim in zip(program.inputs, self.in_dims, strict=True)
        ]
        body = partial(self.emit, program)
        return trace(body, avals, name=f"vmap_{program.name}", in_names=program.in_names)[0]

    def emit(self, program: Program, *args: Any) -> list[Any]:
        """The outputs of the rewritten program on `args`, appended to the trace that is on."""
        program = expand(program, "batch")
        pairs = zip(args, self.in_dims, strict=True)
        outs = interpret(program, pairs, batch_equation, constant=lambda c: (c, None))
        return [
            self.lay_out(i, x, dim, wanted)
            for i, ((x, dim), wanted) in enumerate(zip(outs, self.out_dims, strict=True))
        ]

    def lay_out(self, i: int, x: Any, dim: int | None, wanted: int | None) -> Any:
        if wanted is None:
            if dim is not None:
                raise BatchedOutput(i)
            return x
        if dim is None:
            shape = list(x.shape)
            shape.insert(wanted, self.size)
            dims = tuple(d + (d >= wanted) for d in range(x.ndim))
            return broadcast_in_dim(x, tuple(shape), dims)
        return moveaxis(x, dim, wanted)


@dataclass(frozen=True)
class NaturalBatch:
    """As `Batch`, for outputs laid out as they come: the program, and their batch dimensions."""

    size: int
    in_dims: tuple[int | None, ...]

    def __call__(self, program: Program) -> tuple[Program, tuple[int | None, ...]]:
        program = expand(program, "batch")
        out_dims: list[int | None] = []

        def body(*args: Any) -> list[Any]:
            pairs = zip(args, self.in_dims, strict=True)
            outs = interpret(program, pairs, batch_equation, constant=lambda c: (c, None))
            out_dims.extend(dim for _, dim in outs)
            return [x for x, _ in outs]

        avals = [
            add_axis(v.aval, dim, self.size)
            for v, dim in zip(program.inputs, self.in_dims, strict=True)
        ]
        batched, _ = trace(body, avals, name=f"vmap_{program.name}", in_names=program.in_names)
        return batched, tuple(out_dims)


class BatchedOutput(Exception):
    """Output `args[0]` depends on the batch, and was asked for without a batch dimension."""


def batch_equation(eqn: Equation, *operands: tuple[Any, int | None]) -> list[tuple[Any, Any]]:
    """What an equation makes of batches."""
    args = [x for x, _ in operands]
    dims = [dim for _, dim in operands]
    if all(dim is None for dim in dims):
        return [(out, None) for out in forward(eqn, *args)]
    primitive = eqn.primitive
    result = primitive.batch(args, dims)
    try:
        out, out_dim = result
    except (TypeError, ValueError):
        raise RuleError(
            f"{primitive.name}: `batch` must return the output and its batch dimension; "
            f"got {result!r}"
        ) from None
    return list(zip(out, out_dim, strict=True)) if primitive.multiple_results else [(out, out_dim)]


def add_axis(aval: ShapedArray, dim: int | None, size: int) -> ShapedArray:
    """The aval of a batch of `size` such arrays, along `dim`."""
    if dim is None:
        return aval
    return aval.update(shape=(*aval.shape[:dim], size, *aval.shape[dim:]))
