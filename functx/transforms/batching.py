"""Batching: the rewrite of a program to one that runs on batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from functx import ops
from functx.core.errors import RuleError
from functx.core.named_axes import (
    Axis,
    AxisNames,
    batched_axis,
    batched_axis_names,
    set_batched_axis,
)
from functx.core.program import Equation, Program, subprograms
from functx.core.rewriting import Rewrite, bind_equation, field, interpret, user_rule_runs
from functx.core.tracer import aval_of
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray
from functx.core.typing import Value, Values
from functx.transforms.decompose import decompose_missing_rules
from functx.transforms.rule_checks import check_batch_result


class Batch(Rewrite[Program]):
    """The rewrite to a program that runs on batches of `size` elements.

    `in_dims` gives the batch dimension of each input, None for one that all elements share;
    `out_dims` that of each output, None for one that must not depend on the batch. Collectives over
    one of the `names` work across the batch; by default these are the names of the batch whose rule
    asks for the rewrite.
    """

    size: int
    in_dims: tuple[int | None, ...]
    out_dims: tuple[int | None, ...]
    names: AxisNames = field(default_factory=batched_axis_names, kw_only=True)

    def __call__(self, program: Program) -> Program:
        return trace_batched(partial(self.emit, program), program, self.size, self.in_dims)

    def emit(self, program: Program, *args: Value) -> list[Value]:
        """Appends the rewritten program on `args` to the current trace; returns its outputs."""
        outs = interpret_batched(program, args, self.in_dims, self.names.with_size(self.size))
        return [
            self.move_batch_dim(i, x, dim, out_dim)
            for i, ((x, dim), out_dim) in enumerate(zip(outs, self.out_dims, strict=True))
        ]

    def move_batch_dim(self, i: int, x: Value, dim: int | None, out_dim: int | None) -> Value:
        if out_dim is None:
            if dim is None:
                return x
            aval = remove_axis(aval_of(x), dim)
            if aval.size:
                raise BatchedOutputError(i)
            # Empty arrays, such as effect tokens, are the same for all elements.
            return ops.constant_like(aval, 0)
        return ops.batch_dim_at(x, dim, out_dim, self.size)


class BatchWithInferredOutDims(Rewrite[tuple[Program, tuple[int | None, ...]]]):
    """As `Batch`, but the batch dimensions of the outputs are inferred and returned."""

    size: int
    in_dims: tuple[int | None, ...]
    names: AxisNames = field(default_factory=batched_axis_names, kw_only=True)

    def __call__(self, program: Program) -> tuple[Program, tuple[int | None, ...]]:
        out_dims: list[int | None] = []

        def body(*args: Value) -> list[Value]:
            outs = interpret_batched(program, args, self.in_dims, self.names.with_size(self.size))
            out_dims.extend(dim for _, dim in outs)
            return [x for x, _ in outs]

        return trace_batched(body, program, self.size, self.in_dims), tuple(out_dims)


def trace_batched(
    body: Callable[..., list[Value]], program: Program, size: int, in_dims: Sequence[int | None]
) -> Program:
    """The program of `body`, which takes the inputs of `program` in batches along `in_dims`."""
    avals = [add_axis(a, d, size) for a, d in zip(program.in_avals, in_dims, strict=True)]
    return trace_closed(body, avals, name=f"vmap_{program.name}", in_names=program.in_names)


def interpret_batched(
    program: Program, args: Values, in_dims: Sequence[int | None], axis: Axis | None = None
) -> list[tuple[Any, int | None]]:
    """The outputs of `program` on batches along `in_dims`, each with its batch dimension.

    `axis` is the named axis of the batches, by default that of the batching rule that runs.
    """
    pairs = zip(args, in_dims, strict=True)
    program = decompose_missing_rules(program, "batch")
    axis = axis or batched_axis()
    is_empty = axis is not None and axis.size == 0
    step = batch_equation_without_elements if is_empty else batch_equation
    with set_batched_axis(axis):
        return interpret(program, pairs, step, constant=lambda c: (c, None))


class BatchedOutputError(Exception):
    """Output `args[0]` depends on the batch, but must have no batch dimension."""


def batch_equation(eqn: Equation, *operands: tuple[Any, int | None]) -> list[tuple[Any, Any]]:
    """The outputs of an equation on batches, each with its batch dimension."""
    args = [x for x, _ in operands]
    dims = [dim for _, dim in operands]
    primitive = eqn.primitive
    if all(dim is None for dim in dims):
        names = batched_axis_names()
        draws = primitive.draws and names.randomness is not None
        if not draws and names.name not in primitive.named_axes:
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


def batch_equation_without_elements(
    eqn: Equation, *operands: tuple[Any, int | None]
) -> list[tuple[Any, Any]]:
    """As `batch_equation`, for an empty batch: outputs that depend on it are empty arrays.

    The rule runs only where an output may have no batch dimension.
    """
    primitive = eqn.primitive
    runs_rule = (
        primitive.may_share_outputs
        or primitive.is_user_defined
        or primitive.named_axes
        or primitive.draws
        or primitive.effects
        or subprograms(primitive)
    )
    if runs_rule or all([dim is None for _, dim in operands]):
        return batch_equation(eqn, *operands)
    return [(ops.constant_like(add_axis(v.aval, 0, 0), 0), 0) for v in eqn.outputs]


def add_axis(aval: ShapedArray, dim: int | None, size: int) -> ShapedArray:
    """The aval of a batch of `size` such arrays, along `dim`."""
    if dim is None:
        return aval
    return aval.update(shape=(*aval.shape[:dim], size, *aval.shape[dim:]))


def remove_axis(aval: ShapedArray, dim: int | None) -> ShapedArray:
    """The aval of one array of a batch along `dim`."""
    if dim is None:
        return aval
    return aval.update(shape=(*aval.shape[:dim], *aval.shape[dim + 1 :]))
