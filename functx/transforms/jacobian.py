"""`jacfwd`, `jacrev`, `hessian` and `hvp`: derivatives of arrays by arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from functx.core import tree
from functx.core.dtypes import is_complex, is_inexact
from functx.core.errors import GradientError
from functx.core.program import Program
from functx.core.tracing import apply, current_builder, trace
from functx.ops.comparison import eq
from functx.ops.conversion import convert_element_type
from functx.ops.creation import broadcasted_iota
from functx.ops.shaping import reshape, zeros_like
from functx.ops.slicing import slice as slice_
from functx.transforms.batching import Batch
from functx.transforms.calls import (
    TracedCall,
    avals_of,
    check_callable,
    name_of,
    named_after,
    names_of,
    trace_call,
)
from functx.transforms.forward_mode import Linearize
from functx.transforms.grad import Argnums, argument_leaves, check_argnums, floats_for_ints, grad
from functx.transforms.jvp import check_outputs, jvp
from functx.transforms.reverse_mode import SplitVJP


def jacfwd(
    fun: Callable[..., Any] | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Any:
    """The function that computes the Jacobian of `fun`, column by column, in forward mode.

    The result has the structure of the output, with at each leaf the structure of the
    argument at `argnums` (a tuple of such for a tuple), of arrays of shape output shape +
    argument shape. With `has_aux`, `fun` returns `(output, aux)`, and the result is
    `(jacobian, aux)`. Quicker than `jacrev` when there are fewer inputs than outputs.

    >>> import functx, numpy
    >>> functx.jacfwd(lambda x: x * x)(numpy.array([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    if fun is None:
        return partial(jacfwd, argnums=argnums, has_aux=has_aux, holomorphic=holomorphic)
    return _jacobian(fun, argnums, has_aux, holomorphic, "jacfwd", ForwardJacobian)


def jacrev(
    fun: Callable[..., Any] | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Any:
    """The function that computes the Jacobian of `fun`, row by row, in reverse mode.

    See `jacfwd` for the result and the arguments. Quicker when there are fewer outputs.

    >>> import functx, numpy
    >>> functx.jacrev(lambda x: x * x)(numpy.array([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    if fun is None:
        return partial(jacrev, argnums=argnums, has_aux=has_aux, holomorphic=holomorphic)
    return _jacobian(fun, argnums, has_aux, holomorphic, "jacrev", ReverseJacobian)


def hessian(
    fun: Callable[..., Any] | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Any:
    """The function that computes the second derivatives of `fun`, forward over reverse.

    The result nests the output's structure, then the argument's twice.

    >>> import functx, numpy
    >>> functx.hessian(lambda x: (x ** 3).sum())(numpy.array([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    if fun is None:
        return partial(hessian, argnums=argnums, has_aux=has_aux, holomorphic=holomorphic)
    inner = jacrev(fun, argnums=argnums, has_aux=has_aux, holomorphic=holomorphic)
    return jacfwd(inner, argnums=argnums, has_aux=has_aux, holomorphic=holomorphic)


def hvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """The Hessian of the scalar function `fun` at `primals`, times `tangents`.

    Both are tuples with an entry for each argument; so is the result. Costs a few
    evaluations of `fun`, since the Hessian is never formed (Pearlmutter 1994, section 2).

    >>> import functx, numpy
    >>> x, v = numpy.array([1.0, 2.0]), numpy.array([1.0, 1.0])
    >>> functx.hvp(lambda x: (x ** 3).sum(), (x,), (v,))[0].tolist()
    [6.0, 12.0]
    """
    check_callable(fun, "hvp")
    return jvp(grad(fun, argnums=tuple(range(len(primals)))), primals, tangents)[1]


@dataclass(frozen=True)
class ForwardJacobian:
    """The rewrite to the outputs, then the derivative of each by each active input."""

    active: tuple[bool, ...]
    outputs: int

    def __call__(self, program: Program) -> Program:
        values, tangent_program = Linearize(self.active)(program)

        def body(*args: Any) -> list[Any]:
            outs = inline(values, args)
            count = len(program.outputs)
            outs, residuals = outs[:count], outs[count:]
            avals = [v.aval for v, on in zip(program.inputs, self.active, strict=True) if on]
            columns = standard_basis(avals)
            in_dims = (0,) * len(avals) + (None,) * len(residuals)
            inexact = [o.aval for o in outs if is_inexact(o.aval.dtype)]
            out_dims = tuple([a.ndim for a in inexact])
            batch = Batch(sum(a.size for a in avals), in_dims, out_dims)
            found = inline(batch(tangent_program), [*columns, *residuals])
            return [
                *outs,
                *[
                    block
                    for column in found[: self.outputs]
                    for block in split_last(column, [a.shape for a in avals])
                ],
            ]

        return trace(
            body, program.in_avals, name=f"jacfwd_{program.name}", in_names=program.in_names
        )[0]


@dataclass(frozen=True)
class ReverseJacobian:
    """As `ForwardJacobian`, by pulling back each element of each output."""

    active: tuple[bool, ...]
    outputs: int

    def __call__(self, program: Program) -> Program:
        forward, backward = SplitVJP(self.active)(program)

        def body(*args: Any) -> list[Any]:
            outs = inline(forward, args)
            count = len(program.outputs)
            outs, residuals = outs[:count], outs[count:]
            inexact = [o.aval for o in outs if is_inexact(o.aval.dtype)]
            rows = standard_basis(inexact[: self.outputs])
            rest = [zeros_like(a) for a in inexact[self.outputs :]]
            in_dims = (0,) * len(rows) + (None,) * (len(rest) + len(residuals))
            size = sum(a.size for a in inexact[: self.outputs])
            batch = Batch(size, in_dims, (0,) * len(backward.outputs))
            found = inline(batch(backward), [*rows, *rest, *residuals])
            blocks = [split_first(x, [a.shape for a in inexact[: self.outputs]]) for x in found]
            return [*outs, *[by_input[o] for o in range(self.outputs) for by_input in blocks]]

        return trace(
            body, program.in_avals, name=f"jacrev_{program.name}", in_names=program.in_names
        )[0]


def inline(program: Program, args: Sequence[Any]) -> list[Any]:
    builder = current_builder.get()
    assert builder is not None
    return builder.inline(program, args)


def standard_basis(avals: Sequence[Any]) -> list[Any]:
    """The unit vectors of the product of the spaces of `avals`: for each, a batch of its parts."""
    total = sum(a.size for a in avals)
    parts = []
    start = 0
    for aval in avals:
        rows = broadcasted_iota("int32", (total, aval.size), 0)
        columns = broadcasted_iota("int32", (total, aval.size), 1)
        ones = convert_element_type(
            eq(rows, columns + start if start else columns), aval.dtype, aval.weak_type
        )
        parts.append(reshape(ones, (total, *aval.shape)))
        start += aval.size
    return parts


def split_last(x: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """The last axis of `x` cut into pieces, each laid out as one of `shapes`."""
    lead = x.shape[:-1]
    blocks, start = [], 0
    for shape in shapes:
        stop = start + prod(shape)
        piece = x
        if stop - start != x.shape[-1]:
            piece = slice_(x, (0,) * len(lead) + (start,), (*lead, stop))
        blocks.append(reshape(piece, (*lead, *shape)))
        start = stop
    return blocks


def split_first(x: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """The first axis of `x` cut into pieces, each laid out as one of `shapes`."""
    rest = x.shape[1:]
    blocks, start = [], 0
    for shape in shapes:
        stop = start + prod(shape)
        piece = x
        if stop - start != x.shape[0]:
            piece = slice_(x, (start,) + (0,) * len(rest), (stop, *rest))
        blocks.append(reshape(piece, (*shape, *rest)))
        start = stop
    return blocks


def _jacobian(
    fun: Callable[..., Any], argnums: Any, has_aux: bool, holomorphic: bool, kind: str, rewrite: Any
) -> Any:
    check_callable(fun, kind)
    check_argnums(argnums, kind)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        leaves, in_tree = tree.flatten((args, kwargs))
        positions, arg_trees = argument_leaves(args, argnums, kind, fun)
        floats_for_ints(leaves, positions)
        avals = avals_of(leaves, kind, fun, in_tree)
        for i in positions:
            if not is_inexact(avals[i].dtype) or is_complex(avals[i].dtype) != holomorphic:
                raise GradientError(
                    f"{kind}({name_of(fun)}): differentiated arguments must be "
                    f"{'complex' if holomorphic else 'real floating point'}; "
                    f"got {avals[i]!r} for `{names_of(fun, in_tree)()[i]}`",
                    fix="Convert it, or pass holomorphic=True for a complex function.",
                )
        traced = trace_call(
            fun, in_tree, avals, kind, values=leaves, differentiated=positions, has_aux=has_aux
        )
        check_outputs(traced, kind, fun)
        out_tree = traced.out_tree.children()[0] if has_aux else traced.out_tree
        _check_outputs(traced, out_tree.num_leaves, kind, fun, holomorphic)
        wanted = set(positions)
        active = tuple([i in wanted for i in range(len(traced.program.inputs))])
        outs = apply(
            rewrite(active, out_tree.num_leaves), traced.program, [*leaves, *traced.captured]
        )
        count = len(traced.program.outputs)
        order = sorted(positions)
        blocks = iter(outs[count:])
        rows = []
        for _ in range(out_tree.num_leaves):
            by_input = dict(zip(order, [next(blocks) for _ in order], strict=True))
            rest = iter([by_input[i] for i in positions])
            parts = tuple(
                [tree.unflatten(t, [next(rest) for _ in range(t.num_leaves)]) for t in arg_trees]
            )
            rows.append(parts if isinstance(argnums, tuple) else parts[0])
        jacobian = tree.unflatten(out_tree, rows)
        if has_aux:
            return jacobian, tree.unflatten(traced.out_tree, outs[:count])[1]
        return jacobian

    return named_after(wrapper, fun, kind)


def _check_outputs(
    traced: TracedCall, own: int, kind: str, fun: Callable[..., Any], holomorphic: bool
) -> None:
    for i, aval in enumerate(traced.program.out_avals[:own]):
        if not is_inexact(aval.dtype) or is_complex(aval.dtype) != holomorphic:
            raise GradientError(
                f"{kind}({name_of(fun)}): outputs must be "
                f"{'complex' if holomorphic else 'real floating point'}; got {aval!r}, number {i}",
                fix="Return real and imaginary parts, or pass holomorphic=True.",
            )
