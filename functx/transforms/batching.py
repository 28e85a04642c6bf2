"""Programs that run at every index of a new axis at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from functx.core.avals import ShapedArray
from functx.core.axes import Axis, AxisNames, batched_axis, batched_axis_names, set_batched_axis
from functx.core.errors import RuleError
from functx.core.interpret import bind_equation, interpret
from functx.core.program import Equation, Program
from functx.core.records import Rewrite, field
from functx.core.rewriting import user_rule_runs
from functx.core.tracing import trace_closed
from functx.ops.shaping import broadcast_in_dim, moveaxis
from functx.transforms.expand import decompose_missing_rules
from functx.transforms.rule_checks import check_batch_result


class Batch(Rewrite[Program]):
    """The rewrite to a program of whole batches of length `size`.

    `in_dims` gives the batch dimension of each input, None for one that all share;
    `out_dims` that of each output, None for one that must not depend on the batch.
    What works across an axis of one of the `names` works across the batch, which by default is
    called as that of the rule which asks for the rewrite.
    """

    size: int
    in_dims: tuple[int | None, ...]
    out_dims: tuple[int | None, ...]
    names: AxisNames = field(default_factory=batched_axis_names, kw_only=True)

    def __call__(self, program: Program) -> Program:
        return trace_batched(partial(self.emit, program), program, self.size, self.in_dims)

    def emit(self, program: Program, *args: Any) -> list[Any]:
        """The outputs of the rewritten program on `args`, appended to the trace that is on."""
        outs = interpret_batched(program, args, self.in_dims, self.names.with_size(self.size))
        return [
            self.move_batch_dim(i, x, dim, wanted)
            for i, ((x, dim), wanted) in enumerate(zip(outs, self.out_dims, strict=True))
        ]

    def move_batch_dim(self, i: int, x: Any, dim: int | None, wanted: int | None) -> Any:
        if wanted is None:
            if dim is not None:
                raise BatchedOutputError(i)
            return x
        if dim is None:
            shape = list(x.shape)
            shape.insert(wanted, self.size)
            dims = tuple(d + (d >= wanted) for d in range(x.ndim))
            return broadcast_in_dim(x, tuple(shape), dims)
        return moveaxis(x, dim, wanted)


class BatchWithInferredOutDims(Rewrite[tuple[Program, tuple[int | None, ...]]]):
    """As `Batch`, for outputs laid out as they come: the program, and their batch dimensions."""

    size: int
    in_dims: tuple[int | None, ...]
    names: AxisNames = field(default_factory=batched_axis_names, kw_only=True)

    def __call__(self, program: Program) -> tuple[Program, tuple[int | None, ...]]:
        out_dims: list[int | None] = []

        def body(*args: Any) -> list[Any]:
            outs = interpret_batched(program, args, self.in_dims, self.names.with_size(self.size))
            out_dims.extend(dim for _, dim in outs)
            return [x for x, _ in outs]

        return trace_batched(body, program, self.size, self.in_dims), tuple(out_dims)


def trace_batched(
    body: Callable[..., list[Any]], program: Program, size: int, in_dims: Sequence[int | None]
) -> Program:
    """The program of `body`, which takes the inputs of `program` in batches along `in_dims`."""
    avals = [add_axis(a, d, size) for a, d in zip(program.in_avals, in_dims, strict=True)]
    return trace_closed(body, avals, name=f"vmap_{program.name}", in_names=program.in_names)


def interpret_batched(
    program: Program,
    args: Sequence[Any],
    in_dims: Sequence[int | None],
    axis: Axis | None = None,
) -> list[tuple[Any, int | None]]:
    """What `program` makes of batches along `in_dims`: each output, and its batch dimension.

    `axis` is what the batches run over, by default what the rule at work batches over.
    """
    pairs = zip(args, in_dims, strict=True)
    program = decompose_missing_rules(program, "batch")
    with set_batched_axis(axis or batched_axis()):
        return interpret(program, pairs, batch_equation, constant=lambda c: (c, None))


class BatchedOutputError(Exception):
    """Output `args[0]` depends on the batch, and was asked for without a batch dimension."""


def batch_equation(eqn: Equation, *operands: tuple[Any, int | None]) -> list[tuple[Any, Any]]:
    """What an equation makes of batches."""
    args = [x for x, _ in operands]
    dims = [dim for _, dim in operands]
    primitive = eqn.primitive
    if all(dim is None for dim in dims) and batched_axis_names().name not in primitive.named_axes:
        return [(out, None) for out in bind_equation(eqn, *args)]
    result = primitive.batch(args, dims)
    try:
        out, out_dim = result
    except (TypeError, ValueError):
        raise RuleError(
            f"{primitive.name}: `batch` must return the output and its batch dimension; "
            f"got {result!r}"
        ) from None
    if primitive.is_user_defined:
        user_rule_runs.record()
        size = next((x.shape[dim] for x, dim in operands if dim is not None), 0)
        check_batch_result(primitive, size, [v.aval for v in eqn.outputs], out, out_dim)
    return list(zip(out, out_dim, strict=True)) if primitive.multiple_results else [(out, out_dim)]


def add_axis(aval: ShapedArray, dim: int | None, size: int) -> ShapedArray:
    """The aval of a batch of `size` such arrays, along `dim`."""
    if dim is None:
        return aval
    return aval.update(shape=(*aval.shape[:dim], size, *aval.shape[dim:]))
