"""`jacfwd`, `jacrev`, `hessian` and `hvp`: derivatives of arrays by arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from functx import ops
from functx.core import tree
from functx.core.errors import ArgumentError, GradientError, type_name
from functx.core.named_axes import AxisNames
from functx.core.program import Program
from functx.core.records import Rewrite
from functx.core.rewriting import apply
from functx.core.tracebacks import api_boundary
from functx.core.tracer import aval_of
from functx.core.tracing import trace_closed
from functx.core.types import is_complex, is_inexact
from functx.transforms.aliasing import copy_transform_results
from functx.transforms.argument_names import (
    argument_names,
    as_decorator,
    check_callable,
    function_name,
    key_path_strings,
    wrap_transform,
)
from functx.transforms.chunked_batching import (
    check_chunk_size,
    map_over_basis,
    needs_chunking,
    standard_basis,
)
from functx.transforms.dce import take_first_outputs
from functx.transforms.forward_mode import Linearize
from functx.transforms.grad import (
    Argnums,
    argnums_leaves,
    canonical_argnums,
    convert_ints_to_floats,
    make_gradient_function,
)
from functx.transforms.jvp import jvp
from functx.transforms.operand_masks import select_where, unflatten_tangents
from functx.transforms.partial_evaluation_policy import policy
from functx.transforms.tracing_api import partition_static_arguments, trace_function
from functx.transforms.vmap import Batch


def jacfwd(
    fun: Callable[..., Any] | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    chunk_size: int | None = None,
) -> Any:
    """The function that computes the Jacobian of `fun`, column by column, in forward mode.

    The result has the structure of the output, with at each leaf the structure of the
    argument at `argnums` (a tuple of such for a tuple), of arrays of shape output shape +
    argument shape. With `has_aux`, `fun` returns `(output, aux)`, and the result is
    `(jacobian, aux)`. Quicker than `jacrev` when there are fewer inputs than outputs.

    With `chunk_size`, a loop computes that many columns at a time, so that all else than the
    result takes memory for these alone; a size of 1 maps over nothing.

    Raises GradientError, by name of the function and the leaf, for arguments that are not real or
    outputs that are not inexact, or with `holomorphic` either not complex; ValueRangeError for other chunk sizes than
    positive ints.

    >>> import functx, numpy
    >>> functx.jacfwd(lambda x: x * x)(numpy.array([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    if fun is None:
        return as_decorator(jacfwd, locals())
    return _jacobian(fun, argnums, has_aux, holomorphic, "jacfwd", ForwardJacobian, chunk_size)


def jacrev(
    fun: Callable[..., Any] | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    chunk_size: int | None = None,
) -> Any:
    """The function that computes the Jacobian of `fun`, row by row, in reverse mode.

    See `jacfwd` for the result and the arguments; a chunk consists of rows. Quicker when there
    are fewer outputs. Outputs must be real, or with `holomorphic` complex; arguments may be
    complex for real outputs, as for `grad`. With `allow_int`, integer arguments are let pass,
    and have None in place of a Jacobian.

    >>> import functx, numpy
    >>> functx.jacrev(lambda x: x * x)(numpy.array([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    if fun is None:
        return as_decorator(jacrev, locals())
    return _jacobian(
        fun,
        argnums,
        has_aux,
        holomorphic,
        "jacrev",
        ReverseJacobian,
        chunk_size,
        allow_int=allow_int,
    )


def hessian(
    fun: Callable[..., Any] | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    chunk_size: int | None = None,
) -> Any:
    """The function that computes the second derivatives of `fun`, forward over reverse.

    The result nests the output's structure, then the argument's twice. See `jacfwd` for the
    arguments; `chunk_size` counts for both modes.

    >>> import functx, numpy
    >>> functx.hessian(lambda x: (x ** 3).sum())(numpy.array([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    if fun is None:
        return as_decorator(hessian, locals())
    options = argnums, has_aux, holomorphic, "hessian"
    inner = _jacobian(fun, *options, ReverseJacobian, chunk_size)
    return _jacobian(inner, *options, ForwardJacobian, chunk_size, shown=fun)


@api_boundary
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
    if not isinstance(primals, (tuple, list)) or not primals:
        raise ArgumentError(
            f"hvp({function_name(fun)}): primals must be a tuple, an entry for each argument; "
            f"got {type_name(primals)}"
        )
    numbers = tuple(range(len(primals)))
    return jvp(make_gradient_function(fun, numbers, kind="hvp"), primals, tangents)[1]


class ForwardJacobian(Rewrite[Program]):
    """The rewrite to the outputs, then the derivative of each by each active input.

    `chunk` is how many columns are computed at a time, None for all.
    """

    active: tuple[bool, ...]
    outputs: int
    chunk: int | None = None

    def __call__(self, program: Program) -> Program:
        values, tangent_program = Linearize(self.active)(program)

        def body(*args: Any) -> list[Any]:
            outs = apply(None, values, args)
            count = len(program.outputs)
            outs, residuals = outs[:count], outs[count:]
            avals = select_where(program.in_avals, self.active)
            size = sum(a.size for a in avals)
            if size and needs_chunking(self.chunk, size):
                own = take_first_outputs(tangent_program, self.outputs)
                found = map_over_basis(own, avals, residuals, self.chunk, axis_last=True)
            else:
                columns = standard_basis(avals)
                in_dims = (0,) * len(avals) + (None,) * len(residuals)
                inexact = [aval_of(o) for o in outs if is_inexact(o.dtype)]
                out_dims = tuple([a.ndim for a in inexact])
                batch = Batch(size, in_dims, out_dims, names=AxisNames())
                found = apply(None, batch(tangent_program), [*columns, *residuals])
            return [
                *outs,
                *[
                    block
                    for column in found[: self.outputs]
                    for block in split_last_axis(column, [a.shape for a in avals])
                ],
            ]

        return trace_closed(
            body, program.in_avals, name=f"jacfwd_{program.name}", in_names=program.in_names
        )


class ReverseJacobian(Rewrite[Program]):
    """As `ForwardJacobian`, by pulling back each element of each output."""

    active: tuple[bool, ...]
    outputs: int
    chunk: int | None = None

    def __call__(self, program: Program) -> Program:
        forward, backward = policy.vjp_split(self.active)(program)

        def body(*args: Any) -> list[Any]:
            outs = apply(None, forward, args)
            count = len(program.outputs)
            outs, residuals = outs[:count], outs[count:]
            inexact = [aval_of(o) for o in outs if is_inexact(o.dtype)]
            own = inexact[: self.outputs]
            rest = [ops.zeros_like(a) for a in inexact[self.outputs :]]
            size = sum(a.size for a in own)
            if size and needs_chunking(self.chunk, size):
                found = map_over_basis(backward, own, [*rest, *residuals], self.chunk)
            else:
                rows = standard_basis(own)
                in_dims = (0,) * len(rows) + (None,) * (len(rest) + len(residuals))
                batch = Batch(size, in_dims, (0,) * len(backward.outputs), names=AxisNames())
                found = apply(None, batch(backward), [*rows, *rest, *residuals])
            blocks = [split_first_axis(x, [a.shape for a in own]) for x in found]
            return [*outs, *[by_input[o] for o in range(self.outputs) for by_input in blocks]]

        return trace_closed(
            body, program.in_avals, name=f"jacrev_{program.name}", in_names=program.in_names
        )


def split_last_axis(x: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """The last axis of `x` cut into pieces, each laid out as one of `shapes`."""
    lead = x.shape[:-1]
    blocks, start = [], 0
    for shape in shapes:
        stop = start + prod(shape)
        piece = x
        if stop - start != x.shape[-1]:
            piece = ops.slice(x, (0,) * len(lead) + (start,), (*lead, stop))
        blocks.append(ops.reshape(piece, (*lead, *shape)))
        start = stop
    return blocks


def split_first_axis(x: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """The first axis of `x` cut into pieces, each laid out as one of `shapes`."""
    rest = x.shape[1:]
    blocks, start = [], 0
    for shape in shapes:
        stop = start + prod(shape)
        piece = x
        if stop - start != x.shape[0]:
            piece = ops.slice(x, (start,) + (0,) * len(rest), (stop, *rest))
        blocks.append(ops.reshape(piece, (*shape, *rest)))
        start = stop
    return blocks


def _jacobian(
    fun: Callable[..., Any],
    argnums: Any,
    has_aux: bool,
    holomorphic: bool,
    kind: str,
    rewrite: Any,
    chunk_size: int | None,
    shown: Any = None,
    allow_int: bool = False,
) -> Any:
    """The function that computes the Jacobian of `fun`; errors speak of `shown` instead.

    Forward mode pushes real numbers to anything, reverse mode pulls them back to anything.
    """
    check_callable(fun, kind)
    argnums = canonical_argnums(argnums, kind)
    shown = fun if shown is None else shown
    forward = rewrite is ForwardJacobian
    takes, gives = (_is_real, is_inexact) if forward else (is_inexact, _is_real)
    if holomorphic:
        takes = gives = is_complex
    what = f"{kind}({function_name(shown)})"
    check_chunk_size(what, chunk_size)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        leaves, in_tree = tree.flatten_with_key_data((args, kwargs))
        positions: Sequence[int]
        positions, arg_trees = argnums_leaves(args, argnums, kind, shown)
        if not allow_int:
            convert_ints_to_floats(leaves, positions)
        leaves, in_tree, avals, positions = partition_static_arguments(
            leaves, in_tree, kind, shown, positions
        )
        for i in positions:
            if not (takes(avals[i].dtype) or (allow_int and not is_inexact(avals[i].dtype))):
                raise GradientError(
                    f"{what}: differentiated arguments must be {_DTYPE_DESCRIPTIONS[takes]}; "
                    f"got {avals[i]!r} for `{argument_names(fun, in_tree, avals)()[i]}`",
                    fix="Convert it, or pass holomorphic=True for a complex function.",
                )
        moving = [i for i in positions if is_inexact(avals[i].dtype)]
        traced = trace_function(
            fun, in_tree, avals, kind, values=leaves, differentiated=moving, has_aux=has_aux
        )
        out_tree = traced.tree_without_aux(has_aux)
        out_avals = traced.out_avals[: out_tree.num_leaves]
        for i, aval in enumerate(out_avals):
            if not gives(aval.dtype):
                raise GradientError(
                    f"{what}: outputs must be {_DTYPE_DESCRIPTIONS[gives]}; got {aval!r}, number {i}, "
                    f"at output{key_path_strings(out_tree, out_avals)[i]}",
                    fix="Return real and imaginary parts, or pass holomorphic=True.",
                )
        active = tuple([i in set(moving) for i in range(len(traced.program.inputs))])
        operands = [*leaves, *traced.captured]
        outs = apply(rewrite(active, out_tree.num_leaves, chunk_size), traced.program, operands)
        count = len(traced.program.outputs)
        order = sorted(moving)
        blocks = iter(copy_transform_results(outs[count:], operands))
        outs = traced.finish_call(operands, outs[:count])
        rows = []
        for out in out_avals:
            by_input = dict(zip(order, [next(blocks) for _ in order], strict=True))
            block_avals = [avals[i].update(shape=out.shape + avals[i].shape) for i in positions]
            parts = unflatten_tangents(
                tree.treedef_tuple(arg_trees), block_avals, [by_input.get(i) for i in positions]
            )
            rows.append(parts if isinstance(argnums, tuple) else parts[0])
        jacobian = tree.unflatten(out_tree, rows)
        if has_aux:
            return jacobian, tree.unflatten(traced.out_tree, outs)[1]
        return jacobian

    return wrap_transform(wrapper, shown, kind)


def _is_real(dtype: Any) -> bool:
    return is_inexact(dtype) and not is_complex(dtype)


_DTYPE_DESCRIPTIONS = {
    _is_real: "real floating point",
    is_inexact: "inexact",
    is_complex: "complex",
}
"""The dtypes between which there are Jacobians, as messages name them."""
