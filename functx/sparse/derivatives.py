"""Sparse Jacobians and Hessians, and their patterns."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.backend import backend
from functx.core.config import check_choice
from functx.core.errors import ConcretizationError, GradientError
from functx.core.masks import select_where
from functx.core.program import Program
from functx.core.rewriting import Rewrite, rewrite_by_structure
from functx.core.tracer import Tracer
from functx.core.types import Shape, ShapedArray, is_complex
from functx.core.typing import Function, NumPyArray, PyTree, Value
from functx.transforms.argument_names import (
    as_decorator,
    check_callable,
    function_name,
    wrap_transform,
)
from functx.transforms.chunked_batching import check_chunk_size
from functx.transforms.grad import Argnums, make_gradient_function
from functx.transforms.jacobian import JacobianFunction, TracedJacobian, Wrap, wrap_dense
from functx.transforms.sparse_derivatives import SparseJacobian, choose_products, limits
from functx.transforms.sparsity import JacobianPattern, KnownArrays, known_arrays
from functx.transforms.sparsity_pattern import SparsityPattern


def jacobian(
    fun: Function | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    mode: str = "auto",
    format: str = "bcoo",
    chunk_size: int | None = None,
) -> Function:
    """The function that computes the Jacobian of `fun` as a sparse matrix.

    Its pattern is read off the program, and colored such that one product gives all columns of one
    color (`mode="forward"`), or all rows (`"reverse"`); `"auto"` takes the fewer products. The result
    has the structure of that of `functx.jacfwd`. With the format "bcoo" its arrays are
    `jax.experimental.sparse.BCOO` of the same shapes; with "csr" `scipy.sparse.csr_array`, a row
    for each element of the output and a column for each of the argument, which have values and so
    cannot be made while tracing; with "dense" they are arrays. `chunk_size` products run at a time.
    Elements outside of the pattern are zero, also where a dense Jacobian has nan, as 0 * inf.

    Raises GradientError for dtypes that neither mode can differentiate, ValueRangeError for an
    unknown mode or format, ConcretizationError for "csr" inside a traced function.

    >>> import functx, numpy
    >>> f = lambda x: x[1:] * x[:-1]
    >>> functx.sparse.jacobian(f)(numpy.array([1.0, 2.0, 3.0])).todense().tolist()
    [[2.0, 1.0, 0.0], [0.0, 3.0, 2.0]]
    """
    if fun is None:
        return as_decorator(jacobian, locals())
    options = argnums, has_aux, holomorphic, mode, format, chunk_size
    return _sparse(fun, fun, "sparse.jacobian", False, *options)


def hessian(
    fun: Function | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    *,
    symmetric: bool = True,
    format: str = "bcoo",
    chunk_size: int | None = None,
) -> Function:
    """The function that computes the Hessian of the scalar function `fun` as a sparse matrix.

    It is the Jacobian of the gradient, forward over reverse, with a star coloring: an element is read
    from that of the transpose where this needs fewer products. Without `symmetric` it is not; then the
    derivatives of custom rules may be those of no function. The result nests the structure of the
    argument twice. Formats, chunks and errors are those of `jacobian`.

    >>> import functx, numpy
    >>> f = lambda x: (x[1:] * x[:-1]).sum()
    >>> functx.sparse.hessian(f)(numpy.array([1.0, 2.0, 3.0])).todense().tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    """
    if fun is None:
        return as_decorator(hessian, locals())
    gradient = make_gradient_function(fun, argnums, has_aux, holomorphic, kind="sparse.hessian")
    options = argnums, has_aux, holomorphic, "forward", format, chunk_size
    return _sparse(gradient, fun, "sparse.hessian", symmetric, *options)


def jacobian_pattern(fun: Function, argnums: Argnums = 0) -> Function:
    """The function that finds the pattern of the Jacobian of `fun`, a `SparsityPattern`.

    Its rows are the elements of all outputs, its columns those of the arguments at `argnums`, in the
    order of their leaves. Only the shapes and dtypes of the arguments matter.

    >>> import functx, numpy
    >>> print(functx.sparse.jacobian_pattern(lambda x: x[1:] * x[:-1])(numpy.ones(4)))
    3 x 4, 6 nonzero, 50.00% of the elements; products: 2 for columns, 3 for rows
    |##  |
    | ## |
    |  ##|
    """
    return analysis(fun, argnums, "jacobian_pattern", find_pattern)


def hessian_pattern(fun: Function, argnums: Argnums = 0) -> Function:
    """The function that finds the pattern of the Hessian of the scalar function `fun`.

    Terms in which `fun` is linear have no places in it. See `jacobian_pattern`.

    >>> import functx, numpy
    >>> functx.sparse.hessian_pattern(lambda x: x[0] * x[2] + x.sum())(numpy.ones(3))
    SparsityPattern(shape=(3, 3), nnz=2)
    """
    gradient = make_gradient_function(fun, argnums, kind="hessian_pattern")
    return analysis(gradient, argnums, "hessian_pattern", find_pattern, shown=fun)


def find_pattern(jacobian: TracedJacobian) -> SparsityPattern:
    """The pattern of a Jacobian; found once for equal programs."""
    call = jacobian.call
    rewrite = JacobianPattern(call.active, sum(jacobian.inexact), known_inputs(jacobian))
    return rewrite_by_structure(rewrite, call.traced.program)


def known_inputs(jacobian: TracedJacobian) -> KnownArrays:
    """The values of the integers that the function captures, and None for its other inputs."""
    traced = jacobian.call.traced
    arguments = len(traced.program.inputs) - len(traced.captured)
    return (None,) * arguments + known_arrays(traced.captured)


def possible_modes(jacobian: TracedJacobian, holomorphic: bool, label: str) -> list[str]:
    """The modes that can differentiate a function of these dtypes."""
    real_inputs = not any([is_complex(a.dtype) for a in jacobian.in_avals])
    real_outputs = not any([is_complex(a.dtype) for a in jacobian.out_avals])
    possible = {"forward": real_inputs or holomorphic, "reverse": real_outputs or holomorphic}
    modes = [mode for mode, is_possible in possible.items() if is_possible]
    if not modes:
        raise GradientError(
            f"{label}: arguments or outputs must be real; got complex ones of both",
            fix="Return real and imaginary parts, or pass holomorphic=True for a complex function.",
        )
    return modes


def analysis(
    fun: Function,
    argnums: Argnums,
    kind: str,
    find: Callable[[TracedJacobian], Any],
    shown: Function | None = None,
) -> Function:
    """The function that traces the Jacobian of `fun` and returns what `find` says about it."""
    check_callable(fun, kind)
    shown = fun if shown is None else shown
    function = JacobianFunction.of(fun, shown, kind, argnums, False, False, False, False)

    def wrapper(*args: PyTree, **kwargs: PyTree) -> PyTree:
        return find(function.trace(args, kwargs))

    return wrap_transform(wrapper, shown, kind)


def _sparse(
    fun: Function,
    shown: Function,
    kind: str,
    symmetric: bool,
    argnums: Argnums,
    has_aux: bool,
    holomorphic: bool,
    mode: str,
    format: str,
    chunk_size: int | None,
) -> Function:
    """The function that computes the Jacobian of `fun` in `format`; messages name `shown`."""
    check_callable(fun, kind)
    label = f"{kind}({function_name(shown)})"
    check_choice(f"{label}: mode", mode, ("auto", "forward", "reverse"))
    check_choice(f"{label}: format", format, tuple(_WRAPS))
    check_chunk_size(label, chunk_size)
    function = JacobianFunction.of(fun, shown, kind, argnums, has_aux, holomorphic, False, False)

    def find_rewrite(jacobian: TracedJacobian) -> Rewrite[Program]:
        allowed = possible_modes(jacobian, holomorphic, label)
        if mode != "auto":
            if mode not in allowed:
                real = "arguments" if mode == "forward" else "outputs"
                raise GradientError(
                    f"{label}: {real} must be real in {mode} mode; got complex ones",
                    fix=f"Use mode={allowed[0]!r}, or pass holomorphic=True for a complex function.",
                )
            allowed = [mode]
        products = choose_products(find_pattern(jacobian), symmetric, allowed)
        outputs = sum(jacobian.inexact)
        return SparseJacobian(
            jacobian.call.active, outputs, products, format == "dense", chunk_size
        )

    return function.computed_by(find_rewrite, _WRAPS[format])


class _Block(NamedTuple):
    """One output by one argument, in a pattern whose blocks begin at the rows and columns in `limits`.

    Blocks are counted along rows of blocks. A negative number, which counts the arguments from the last,
    is that of an output without derivatives, and has no places.
    """

    limits: tuple[tuple[int, ...], tuple[int, ...]]
    number: int

    @classmethod
    def of(cls, jacobian: TracedJacobian, number: int) -> _Block:
        """The block with a number."""
        outs = select_where(jacobian.out_avals, jacobian.inexact)
        return cls((limits(outs), limits(jacobian.in_avals)), number)

    @property
    def columns(self) -> tuple[int, int]:
        """The first column, and that after the last."""
        starts = self.limits[1]
        i = self.number % (len(starts) - 1)
        return starts[i], starts[i + 1]

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.columns[1] - self.columns[0]


@lru_cache(maxsize=16)
def _block_places(pattern: SparsityPattern, block: _Block) -> tuple[NumPyArray, NumPyArray]:
    """The rows and the columns of the places in a block, counted from its first."""
    if block.number < 0:
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    rows, columns = block.limits
    inside = pattern.blocks(rows, columns)[block.number]
    first_row = rows[block.number // (len(columns) - 1)]
    return pattern.rows[inside] - first_row, pattern.columns[inside] - block.columns[0]


@lru_cache(maxsize=16)
def _block_indices(pattern: SparsityPattern, block: _Block, shape: Shape) -> NumPyArray:
    """The indices of the places in a block, which has `shape` as an array."""
    rows, columns = _block_places(pattern, block)
    indices = np.zeros((len(rows), len(shape)), np.int32)
    if shape:
        flat = rows.astype(np.int64) * max(block.width, 1) + columns
        indices[:] = np.stack(np.unravel_index(flat, shape), axis=1)
    return indices


def _wrap_bcoo(
    rewrite: Any, jacobian: TracedJacobian, block: Value | None, aval: ShapedArray, number: int
) -> Function:
    """A Jacobian as a BCOO of type `aval`."""
    bcoo = import_module("jax.experimental.sparse").BCOO
    indices = _block_indices(rewrite.products.pattern, _Block.of(jacobian, number), aval.shape)
    data = ops.zeros_like(aval.update(shape=(0,))) if block is None else block
    return bcoo((data, indices), shape=aval.shape, indices_sorted=True, unique_indices=True)


def _wrap_csr(
    rewrite: Any, jacobian: TracedJacobian, block: Value | None, aval: ShapedArray, number: int
) -> Function:
    """A Jacobian as a `csr_array`, a row for each element of the output."""
    place = _Block.of(jacobian, number)
    rows, columns = _block_places(rewrite.products.pattern, place)
    height = aval.size // place.width if place.width else 0
    data = np.zeros(0, aval.dtype) if block is None else backend.concrete_or_none(block)
    if data is None or isinstance(data, Tracer):
        raise ConcretizationError(
            "functx.sparse: the format 'csr' must be made of values; got a traced function",
            fix="Return the format 'bcoo', and convert it outside of jit, vmap and grad.",
        )
    starts = np.searchsorted(rows, np.arange(height + 1))
    csr_array = import_module("scipy.sparse").csr_array
    return csr_array((np.asarray(data), columns, starts), shape=(height, place.width))


_WRAPS: dict[str, Wrap] = {"bcoo": _wrap_bcoo, "csr": _wrap_csr, "dense": wrap_dense}
"""The formats of Jacobians."""
