"""`jacfwd`, `jacrev`, `hessian` and `hvp`: derivatives of arrays by arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from math import prod
from typing import Any, NamedTuple

from functx import ops
from functx.core import tree
from functx.core.backend import backend
from functx.core.errors import ArgumentError, GradientError, type_name
from functx.core.masks import inexact_mask, select_where, split_list
from functx.core.named_axes import AxisNames
from functx.core.program import Program
from functx.core.rewriting import Rewrite, apply
from functx.core.tracebacks import api_boundary
from functx.core.tracer import aval_of
from functx.core.tracing import trace_closed
from functx.core.types import DType, ShapedArray, is_complex, is_inexact
from functx.core.typing import Avals, Function, PyTree, Value, Values
from functx.core.wrapper_axes import integers_beside_inexact
from functx.transforms.aliasing import copy_transform_results
from functx.transforms.argument_names import (
    as_decorator,
    check_callable,
    function_name,
    key_path_strings,
    wrap_transform,
)
from functx.transforms.batching import Batch
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
    DifferentiatedCall,
    DifferentiatedFunction,
    canonical_argnums,
    make_gradient_function,
)
from functx.transforms.jvp import jvp
from functx.transforms.laplacian_recognition import note_product, with_recognized_trace


def jacfwd(
    fun: Function | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    chunk_size: int | None = None,
) -> Function:
    """The function that computes the Jacobian of `fun`, column by column, in forward mode.

    The result has the structure of the output, with the structure of the argument at `argnums` (a
    tuple of structures for a tuple) at each leaf. Its arrays have the shape of the output followed
    by that of the argument. With `has_aux`, `fun` returns `(output, aux)`, and the result is
    `(jacobian, aux)`. Faster than `jacrev` for fewer inputs than outputs.

    With `chunk_size`, a loop computes that many columns at a time, which limits the memory besides
    the result; a size of 1 runs without batching.

    Raises GradientError, which names the function and the leaf, for arguments that are not real or
    outputs that are not inexact; with `holomorphic`, both must be complex. Raises ValueRangeError
    for a chunk size that is no positive int.

    >>> import functx, numpy
    >>> functx.jacfwd(lambda x: x * x)(numpy.array([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    if fun is None:
        return as_decorator(jacfwd, locals())
    return _jacobian(fun, argnums, has_aux, holomorphic, "jacfwd", ForwardJacobian, chunk_size)


def jacrev(
    fun: Function | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    *,
    chunk_size: int | None = None,
) -> Function:
    """The function that computes the Jacobian of `fun`, row by row, in reverse mode.

    See `jacfwd` for the result and the arguments; a chunk consists of rows. Faster for fewer
    outputs than inputs. Outputs must be real, or complex with `holomorphic`; arguments may be
    complex for real outputs, as for `grad`. With `allow_int`, integer arguments are accepted, with
    None in place of a Jacobian.

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
    fun: Function | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    chunk_size: int | None = None,
) -> Function:
    """The function that computes the second derivatives of `fun`, forward over reverse.

    The result nests the output's structure, then the argument's twice. See `jacfwd` for the
    arguments; `chunk_size` applies to both modes.

    >>> import functx, numpy
    >>> functx.hessian(lambda x: (x ** 3).sum())(numpy.array([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    if fun is None:
        return as_decorator(hessian, locals())
    options = argnums, has_aux, holomorphic, "hessian"
    inner = _jacobian(fun, *options, ReverseJacobian, chunk_size)
    outer = _jacobian(inner, *options, ForwardJacobian, chunk_size, shown=fun)
    if has_aux or holomorphic or chunk_size is not None:
        return outer
    return with_recognized_trace(outer, fun, argnums)


@api_boundary
def hvp(fun: Function, primals: Sequence[PyTree], tangents: Sequence[PyTree]) -> PyTree:
    """The Hessian of the scalar function `fun` at `primals`, times `tangents`.

    Both are tuples with an entry for each argument; so is the result. Costs a few evaluations of
    `fun`, since the Hessian is never formed (Pearlmutter 1994, section 2).

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
    product = jvp(make_gradient_function(fun, numbers, kind="hvp"), primals, tangents)[1]
    note_product(fun, primals, tangents, product)
    return product


class ForwardJacobian(Rewrite[Program]):
    """The rewrite to the outputs, then Jacobians of the first `outputs` by the active inputs.

    `chunk` is the number of columns that are computed at a time, None for all.
    """

    active: tuple[bool, ...]
    outputs: int
    chunk: int | None = None

    def __call__(self, program: Program) -> Program:
        values, tangent_program = Linearize(self.active)(program)

        def body(*args: Value) -> list[Value]:
            outs, residuals = split_list(apply(None, values, args), [len(program.outputs)])
            avals = select_where(program.in_avals, self.active)
            size = sum(a.size for a in avals)
            if size and needs_chunking(self.chunk, size):
                differentiated = take_first_outputs(tangent_program, self.outputs)
                columns = map_over_basis(
                    differentiated, avals, residuals, self.chunk, axis_last=True
                )
            else:
                out_dims = tuple([a.ndim for a in tangent_program.out_avals])
                columns = apply_to_basis(tangent_program, avals, residuals, size, out_dims)
            shapes = [a.shape for a in avals]
            blocks = [split_axis(x, x.ndim - 1, shapes) for x in columns[: self.outputs]]
            return [*outs, *chain(*blocks)]

        return trace_closed(
            body, program.in_avals, name=f"jacfwd_{program.name}", in_names=program.in_names
        )


class ReverseJacobian(Rewrite[Program]):
    """As `ForwardJacobian`, in reverse mode; `chunk` is a number of rows."""

    active: tuple[bool, ...]
    outputs: int
    chunk: int | None = None

    def __call__(self, program: Program) -> Program:
        forward, backward = backend.vjp_split(self.active)(program)

        def body(*args: Value) -> list[Value]:
            outs, residuals = split_list(apply(None, forward, args), [len(program.outputs)])
            inexact = [aval_of(o) for o in outs if is_inexact(o.dtype)]
            avals = inexact[: self.outputs]
            others = [*[ops.zeros_like(a) for a in inexact[self.outputs :]], *residuals]
            size = sum(a.size for a in avals)
            if size and needs_chunking(self.chunk, size):
                rows = map_over_basis(backward, avals, others, self.chunk)
            else:
                out_dims = (0,) * len(backward.outputs)
                rows = apply_to_basis(backward, avals, others, size, out_dims)
            blocks = [split_axis(x, 0, [a.shape for a in avals]) for x in rows]
            return [*outs, *[by_input[o] for o in range(self.outputs) for by_input in blocks]]

        return trace_closed(
            body, program.in_avals, name=f"jacrev_{program.name}", in_names=program.in_names
        )


def apply_to_basis(
    program: Program, avals: Avals, others: Values, size: int, out_dims: tuple[int, ...]
) -> list[Value]:
    """The outputs of `program`, batched along `out_dims`, for all vectors of a standard basis.

    The basis is that of `avals`, the first inputs, and has `size` vectors.
    """
    in_dims = (0,) * len(avals) + (None,) * len(others)
    batch = Batch(size, in_dims, out_dims, names=AxisNames())
    return apply(None, batch(program), [*standard_basis(avals), *others])


def split_axis(x: Value, axis: int, shapes: Sequence[tuple[int, ...]]) -> list[Value]:
    """`x` split along `axis` into pieces, in which one of `shapes` replaces that axis."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    pieces, start = [], 0
    for shape in shapes:
        stop = start + prod(shape)
        piece = x
        if stop - start != x.shape[axis]:
            piece = ops.slice_in_dim(x, start, stop, axis=axis)
        pieces.append(ops.reshape(piece, (*before, *shape, *after)))
        start = stop
    return pieces


def _jacobian(
    fun: Function,
    argnums: Argnums,
    has_aux: bool,
    holomorphic: bool,
    kind: str,
    rewrite: type[ForwardJacobian | ReverseJacobian],
    chunk_size: int | None,
    shown: Function | None = None,
    allow_int: bool = False,
) -> Function:
    """The function that computes the Jacobian of `fun`; messages name `shown` instead.

    Forward mode takes real arguments to inexact outputs, reverse mode inexact ones to real outputs.
    """
    check_callable(fun, kind)
    shown = fun if shown is None else shown
    check_chunk_size(f"{kind}({function_name(shown)})", chunk_size)

    def find_rewrite(traced: TracedJacobian) -> Rewrite[Program]:
        return rewrite(traced.call.active, sum(traced.inexact), chunk_size)

    forward = rewrite is ForwardJacobian
    jacobian = JacobianFunction.of(
        fun, shown, kind, argnums, has_aux, holomorphic, forward, not forward, allow_int
    )
    return jacobian.computed_by(find_rewrite)


class TracedJacobian(NamedTuple):
    """A traced call of a function whose Jacobian is computed, and its outputs without `aux`."""

    call: DifferentiatedCall
    out_tree: tree.TreeDef
    out_avals: Avals

    @property
    def in_avals(self) -> list[ShapedArray]:
        """The types of the inputs to differentiate in."""
        return select_where(self.call.traced.program.in_avals, self.call.active)

    @property
    def inexact(self) -> list[bool]:
        """The mask of the outputs that are differentiated."""
        return inexact_mask(self.out_avals)


FindRewrite = Callable[[TracedJacobian], Rewrite[Program]]
"""The rewrite of a program to its outputs, then Jacobians of its first inexact ones."""
Wrap = Callable[[Rewrite[Program], TracedJacobian, Value | None, ShapedArray, int], Any]
"""The Jacobian of one output by one argument as users get it. It takes the result of the rewrite (None for
zeros), the type of the whole array, and its number among the results of the rewrite (-1 for zeros).
"""


def wrap_dense(
    rewrite: Rewrite[Program],
    jacobian: TracedJacobian,
    block: Value | None,
    aval: ShapedArray,
    number: int,
) -> Value:
    """A Jacobian that is an array already."""
    return ops.zeros_like(aval) if block is None else block


class JacobianFunction(NamedTuple):
    """A function whose Jacobian is computed, and the dtypes that its outputs may have."""

    differentiated: DifferentiatedFunction
    returns: Callable[[DType], bool]

    @classmethod
    def of(
        cls,
        fun: Function,
        shown: Function,
        kind: str,
        argnums: Argnums,
        has_aux: bool,
        holomorphic: bool,
        real_inputs: bool,
        real_outputs: bool,
        allow_int: bool = False,
    ) -> JacobianFunction:
        """The function with its arguments and outputs inexact, real, or complex if `holomorphic`."""
        accepts = is_complex if holomorphic else _is_real if real_inputs else is_inexact
        returns = is_complex if holomorphic else _is_real if real_outputs else is_inexact
        differentiated = DifferentiatedFunction(
            fun,
            shown,
            kind,
            canonical_argnums(argnums, kind),
            accepts,
            _DTYPE_DESCRIPTIONS[accepts],
            "Convert it, or pass holomorphic=True for a complex function.",
            has_aux,
            allow_int,
        )
        return cls(differentiated, returns)

    @property
    def label(self) -> str:
        """The transform and the function, as messages name them."""
        return f"{self.differentiated.kind}({function_name(self.differentiated.shown)})"

    def trace(self, args: Values, kwargs: dict[str, Any]) -> TracedJacobian:
        """The traced call for these arguments; raises GradientError for an output of a wrong dtype."""
        call = self.differentiated.trace(args, kwargs)
        out_tree = call.traced.tree_without_aux(self.differentiated.has_aux)
        out_avals = call.traced.out_avals[: out_tree.num_leaves]
        # Such as those of a quantised array, whose derivatives are zeros.
        integers = integers_beside_inexact(out_tree, out_avals)
        for i, aval in enumerate(out_avals):
            if not (self.returns(aval.dtype) or integers[i]):
                raise GradientError(
                    f"{self.label}: outputs must be {_DTYPE_DESCRIPTIONS[self.returns]}; got {aval!r}, "
                    f"number {i}, at output{key_path_strings(out_tree, out_avals)[i]}",
                    fix="Return real and imaginary parts, or pass holomorphic=True.",
                )
        return TracedJacobian(call, out_tree, out_avals)

    def computed_by(self, find_rewrite: FindRewrite, wrap: Wrap = wrap_dense) -> Function:
        """The function that computes the Jacobian by the rewrite that `find_rewrite` returns."""

        def wrapper(*args: PyTree, **kwargs: PyTree) -> PyTree:
            jacobian = self.trace(args, kwargs)
            call, out_tree, out_avals = jacobian
            traced, operands = call.traced, call.operands
            rewrite = find_rewrite(jacobian)
            outs = apply(rewrite, traced.program, operands)
            count = len(traced.program.outputs)
            blocks = copy_transform_results(outs[count:], operands)
            outs = traced.finish_call(operands, outs[:count])
            remaining = iter(enumerate(blocks))
            rows = []
            for out, on in zip(out_avals, jacobian.inexact, strict=True):
                row = []
                for i, arg in enumerate(jacobian.in_avals, -len(jacobian.in_avals)):
                    number, block = next(remaining) if on else (i, None)
                    aval = arg.update(shape=out.shape + arg.shape)
                    row.append(wrap(rewrite, jacobian, block, aval, number))
                rows.append(call.unflatten(row, out.shape))
            result = tree.unflatten(out_tree, rows)
            if self.differentiated.has_aux:
                return result, tree.unflatten(traced.out_tree, outs)[1]
            return result

        return wrap_transform(wrapper, self.differentiated.shown, self.differentiated.kind)


def _is_real(dtype: DType) -> bool:
    return is_inexact(dtype) and not is_complex(dtype)


_DTYPE_DESCRIPTIONS = {
    _is_real: "real floating point",
    is_inexact: "inexact",
    is_complex: "complex",
}
"""The dtypes of arguments and outputs of Jacobians, as messages name them."""
