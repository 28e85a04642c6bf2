"""Jacobians, Hessians and their products with vectors, of functions that run on Variables.

Each function calls `func` once, on new Variables of `inputs`, an array or a tuple of arrays. The
results have that structure too: one for one array, a tuple for a tuple. Without `create_graph` they
have no history; with it they can be differentiated. The derivative of a value that does not depend
on an input is zero; with `strict` it is an error. Inside a transform, use the functions of functx
(`functx.vjp`, `jvp`, `jacrev`, `hessian`).

Gradients of complex values are those of `autograd`: rows of Jacobians in reverse mode are conjugates
of derivatives, columns in forward mode the derivatives along the real axis.
"""

from __future__ import annotations

from typing import Any

from functx import numpy as fnp
from functx.autograd.forward_ad import dual_level, make_dual, unpack_dual
from functx.autograd.functional_calls import (
    ArrayOrTuple,
    FunctionalCall,
    as_arrays,
    basis_of,
    check_scalar,
    gradients,
    gradients_enabled,
    pushed_forward,
    reverse_rows,
    vector_for,
    zeros_like,
)
from functx.autograd.variable import Variable, as_variable
from functx.core.errors import FunctionalArgumentError, StrategyError, UnsupportedStrategyError
from functx.core.tracebacks import api_boundary
from functx.core.types import is_complex, is_inexact
from functx.core.typing import Function
from functx.transforms.argument_names import check_callable
from functx.transforms.jvp import jvp as traced_jvp
from functx.transforms.vmap import vmap

__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]

FORWARD, REVERSE = "forward-mode", "reverse-mode"


@api_boundary
def vjp(
    func: Function,
    inputs: ArrayOrTuple,
    v: ArrayOrTuple | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """The outputs of `func` at `inputs`, and the product of `v` with its Jacobian.

    `v` has the structure and shapes of the outputs; it can be left out for one output of one element.

    Raises FunctionalTypeError for an object that is not an array, FunctionalArgumentError for a `v`
    that does not fit, and with `strict` IndependenceError for an input on which no output depends.

    >>> from functx.autograd import Variable, functional
    >>> outputs, products = functional.vjp(lambda x: x * x, Variable([1.0, 2.0]), Variable([1.0, 1.0]))
    >>> print(outputs, products)
    [1. 4.] [2. 4.]
    """
    with gradients_enabled():
        call = FunctionalCall("vjp", func, inputs, create_graph, strict)
        cts = vector_for(call.name, v, call.outputs, "output")
        products = gradients(call.outputs, call.inputs, cts, create_graph)
        return call.results_with(products, "input", "first derivative")


@api_boundary
def jvp(
    func: Function,
    inputs: ArrayOrTuple,
    v: ArrayOrTuple | None = None,
    create_graph: bool = False,
    strict: bool = False,
    strategy: str = REVERSE,
) -> tuple[Any, Any]:
    """The outputs of `func` at `inputs`, and the product of its Jacobian with `v`.

    `v` has the structure and shapes of the inputs; it can be left out for one input of one element.
    With the strategy "reverse-mode", two reverse passes compute it; with "forward-mode", dual numbers
    do, which is faster but needs the forward rules, and cannot be `strict`.

    Raises the errors of `vjp`, and StrategyError for an unknown strategy.

    >>> from functx.autograd import Variable, functional
    >>> outputs, products = functional.jvp(lambda x: x * x, Variable([1.0, 2.0]), Variable([1.0, 1.0]))
    >>> print(products)
    [2. 4.]
    """
    check_callable(func, "jvp")
    check_strategy("jvp", strategy, strict, is_batched=False)
    with gradients_enabled():
        if strategy == FORWARD:
            return jvp_by_duals(func, inputs, v, create_graph)
        call = FunctionalCall("jvp", func, inputs, create_graph, strict)
        vector = vector_for(call.name, v, call.inputs, "input")
        pulled, tangents = pushed_forward(call.outputs, call.inputs, vector, create_graph)
        call.check_gradient(pulled)
        return call.results_with(tangents, "output", "first derivative")


def jvp_by_duals(
    func: Function, inputs: ArrayOrTuple, v: ArrayOrTuple | None, create_graph: bool
) -> tuple[Any, Any]:
    """`jvp` by dual numbers."""
    tangents: list[Any] = []

    def on_duals(*xs: Any) -> Any:
        vector = vector_for("jvp", v, xs, "input")
        duals = [
            make_dual(x, fnp.ones_like(x) if t is None else cast_to(x, t))
            if is_inexact(x.dtype)
            else x
            for x, t in zip(xs, vector, strict=True)
        ]
        outputs = func(*duals)
        parts = [unpack_dual(y) for y in as_arrays("jvp", "the result of func", outputs)[0]]
        tangents[:] = [zeros_like(y) if t is None else t for y, t in parts]
        return outputs

    with dual_level():
        call = FunctionalCall("jvp", on_duals, inputs, create_graph, strict=False)
        return (
            call.results(call.outputs, call.is_single_output),
            call.results(tangents, call.is_single_output),
        )


@api_boundary
def jacobian(
    func: Function,
    inputs: ArrayOrTuple,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = REVERSE,
) -> Any:
    """The Jacobian of `func` at `inputs`: `jacobian[i][j]` is that of output i in input j.

    Its shape is that of the output, followed by that of the input. One output or one input has no
    tuple around it. A walk computes each row; with `vectorize`, one walk under `vmap` computes all
    rows. The strategy "forward-mode" computes columns, under `vmap` alone.

    Raises the errors of `vjp`, StrategyError for an unknown strategy, UnsupportedStrategyError for
    forward mode without `vectorize` or with `create_graph`, and FunctionalArgumentError for
    `vectorize` with `strict`.

    >>> from functx.autograd import Variable, functional
    >>> print(functional.jacobian(lambda x: x * x, Variable([1.0, 2.0])))
    [[2. 0.]
     [0. 4.]]
    """
    with gradients_enabled():
        return jacobian_of("jacobian", func, inputs, create_graph, strict, vectorize, strategy)


@api_boundary
def hessian(
    func: Function,
    inputs: ArrayOrTuple,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = REVERSE,
) -> Any:
    """The second derivatives of `func`, which returns one array of one element.

    `hessian[i][j]` has the shape of input i followed by that of input j; for one input there are no
    tuples. It is the Jacobian of the gradient, to which `vectorize` and the strategy apply.

    Raises the errors of `jacobian`, and FunctionalArgumentError for another result of `func`.

    >>> from functx.autograd import Variable, functional
    >>> print(functional.hessian(lambda x: (x**3).sum(), Variable([1.0, 2.0])))
    [[ 6.  0.]
     [ 0. 12.]]
    """
    is_single = not isinstance(inputs, tuple)

    def gradient(*xs: object) -> Any:
        outputs, is_single_output = as_arrays("hessian", "the result of func", func(*xs))
        check_scalar("hessian", outputs, is_single_output)
        slopes = gradients(outputs, xs, [None], create_graph=True)
        slopes = [zeros_like(x) if g is None else g for g, x in zip(slopes, xs, strict=True)]
        return slopes[0] if is_single else tuple(slopes)

    with gradients_enabled():
        return jacobian_of(
            "hessian", gradient, inputs, create_graph, strict, vectorize, outer_jacobian_strategy
        )


@api_boundary
def vhp(
    func: Function,
    inputs: ArrayOrTuple,
    v: ArrayOrTuple | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """The output of `func`, one array of one element, and the product of `v` with its Hessian.

    `v` has the structure and shapes of the inputs; it can be left out for one input of one element.

    Raises the errors of `vjp`, and FunctionalArgumentError for another result of `func`.

    >>> from functx.autograd import Variable, functional
    >>> output, product = functional.vhp(lambda x: (x**3).sum(), Variable([1.0, 2.0]), Variable([1.0, 1.0]))
    >>> print(output, product)
    9.0 [ 6. 12.]
    """
    with gradients_enabled():
        call = FunctionalCall("vhp", func, inputs, create_graph, strict)
        vector = vector_for(call.name, v, call.inputs, "input")
        products = gradients(call.scalar_gradient(), call.inputs, vector, create_graph)
        return call.results_with(products, "input", "second derivative")


@api_boundary
def hvp(
    func: Function,
    inputs: ArrayOrTuple,
    v: ArrayOrTuple | None = None,
    create_graph: bool = False,
    strict: bool = False,
) -> tuple[Any, Any]:
    """The output of `func`, one array of one element, and the product of its Hessian with `v`.

    This is `vhp` for a function whose second derivatives are symmetric, and costs one more walk.

    Raises the errors of `vhp`.

    >>> from functx.autograd import Variable, functional
    >>> output, product = functional.hvp(lambda x: (x**3).sum(), Variable([1.0, 2.0]), Variable([1.0, 1.0]))
    >>> print(product)
    [ 6. 12.]
    """
    with gradients_enabled():
        call = FunctionalCall("hvp", func, inputs, create_graph, strict)
        vector = vector_for(call.name, v, call.inputs, "input")
        slopes = call.scalar_gradient()
        pulled, tangents = pushed_forward(slopes, call.inputs, vector, create_graph)
        call.check_gradient(pulled)
        return call.results_with(tangents, "input", "second derivative")


def jacobian_of(
    name: str,
    func: Function,
    inputs: ArrayOrTuple,
    create_graph: bool,
    strict: bool,
    vectorize: bool,
    strategy: str,
) -> Any:
    """The Jacobian of `func`, for the function `name`."""
    check_strategy(name, strategy, strict, is_batched=vectorize)
    if strategy == FORWARD and (create_graph or not vectorize):
        raise UnsupportedStrategyError(
            f"{name}: forward mode needs vectorize=True and has no create_graph; got "
            f"vectorize={vectorize} and create_graph={create_graph}",
            fix='Pass strategy="reverse-mode".',
        )
    call = FunctionalCall(name, func, inputs, create_graph, strict)
    columns = (
        [forward_columns(name, func, call, j) for j in range(len(call.inputs))]
        if strategy == FORWARD
        else None
    )
    rows = []
    for i, y in enumerate(call.outputs):
        blocks = (
            reverse_rows(y, call.inputs, create_graph, vectorize)
            if columns is None
            else [column[i] for column in columns]
        )
        row = []
        for j, (x, block) in enumerate(zip(call.inputs, blocks, strict=True)):
            if block is None:
                if y.size:
                    call.refuse_if_strict(f"output {i} and input {j}, which do not")
                block = fnp.zeros(y.shape + x.shape, x.dtype)
            elif create_graph and not block.requires_grad:
                got = f"the derivative of output {i} in input {j}, which depends on no input"
                call.refuse_if_strict(got)
            row.append(as_variable(block.reshape(y.shape + x.shape)))
        rows.append(call.results(row, call.is_single_input))
    return rows[0] if call.is_single_output else tuple(rows)


def forward_columns(name: str, func: Function, call: FunctionalCall, j: int) -> list[Any]:
    """The Jacobian of each output in input `j`, columns along the last axis; None for zeros."""
    x = call.inputs[j]
    is_varying = [is_inexact(y.dtype) for y in call.outputs]
    if not x.size or not is_inexact(x.dtype) or not any(is_varying):
        return [None] * len(call.outputs)

    def varying(*xs: object) -> list[Any]:
        outputs, _ = as_arrays(name, "the result of func", func(*xs))
        return [y for y, keep in zip(outputs, is_varying, strict=True) if keep]

    def column(unit: object) -> Any:
        tangents = [unit if k == j else None for k in range(len(call.inputs))]
        return traced_jvp(varying, tuple(call.inputs), tangents)[1]

    columns = iter(vmap(column)(basis_of(x)))
    return [fnp.moveaxis(next(columns), 0, -1) if keep else None for keep in is_varying]


def check_strategy(name: str, strategy: str, strict: bool, is_batched: bool) -> None:
    """Raise an error for an unknown strategy, or one that cannot be `strict`."""
    if strategy not in (FORWARD, REVERSE):
        raise StrategyError(
            f'{name}: the strategy must be "{FORWARD}" or "{REVERSE}"; got {strategy!r}'
        )
    if strict and (is_batched or strategy == FORWARD):
        got = "vectorize=True" if is_batched else f'strategy="{FORWARD}"'
        raise FunctionalArgumentError(
            f"{name}: strict=True needs a separate walk for each row; got {got} too"
        )


def cast_to(x: Variable, tangent: Variable) -> Variable:
    """A tangent in the real or complex dtype of `x`."""
    if is_complex(tangent.dtype) != is_complex(x.dtype):
        return tangent
    return as_variable(tangent.astype(x.dtype))
