"""`make_ir`, `eval_shape` and `functionalize`: programs, types and pure forms of functions."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np

from functx.core import tree
from functx.core.errors import FunctionalizeError
from functx.core.named_axes import Axis, bind_named_axes, bound_axes
from functx.core.primitive_families import View
from functx.core.program import Equation, Program
from functx.core.rewriting import Rewrite, apply, bind_equation, cached_rewrite
from functx.core.tracebacks import api_boundary
from functx.core.tracer import HOST_ARRAY_TYPES, Tracer, abstractify, current_builder
from functx.core.tracing import map_equations
from functx.core.types import shape_dtype_struct
from functx.core.typing import Avals, Function, PyTree, Values
from functx.ops.views import Copy
from functx.transforms.argument_names import check_callable, copy_function_metadata, wrap_transform
from functx.transforms.decompose import decompose
from functx.transforms.tracing_api import TracedFunction, avals_of, trace_function

_REMOVE_OPTIONS = {
    "mutations": "writes become new values",
    "mutations_and_views": "and each view is copied as well",
}


def functionalize(fun: Function | None = None, *, remove: str = "mutations") -> Any:
    """`fun` as a function whose program has no writes, with the same results and effects.

    With `remove="mutations"`, writes become new values; with "mutations_and_views", views are
    copied too. A NumPy array that `fun` writes to is written once, at the end, and only if its
    value has changed; a `jax.Array` never is. `make_ir` of the result shows the pure program, which
    returns `(result, written)`, where `written` are the last values of the arguments that `fun`
    writes to.

    Every transform functionalizes a function with writes first.

    Raises FunctionalizeError for another `remove`.

    >>> import functx, functx.numpy as np, numpy
    >>> def double_first(x):
    ...     x[0] *= 2.0
    ...     return x.sum()
    >>> x = numpy.ones(3)
    >>> float(functx.functionalize(double_first)(x)), x.tolist()
    (4.0, [2.0, 1.0, 1.0])
    """
    if remove not in _REMOVE_OPTIONS:
        choices = " or ".join(f"{name!r} ({effect})" for name, effect in _REMOVE_OPTIONS.items())
        raise FunctionalizeError(f"functionalize: remove must be {choices}; got {remove!r}")
    if fun is None:
        return partial(functionalize, remove=remove)
    check_callable(fun, "functionalize")
    return FunctionalizedFunction(fun, remove)


class FunctionalizedFunction:
    """The result of `functionalize`; it is called as the function itself."""

    def __init__(self, fun: Function, remove: str):
        # First, since a function with rules of the user has an attribute `fun` too.
        copy_function_metadata(self, fun, "functionalize")
        self.fun, self.remove = fun, remove

    @api_boundary
    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        leaves, in_tree = tree.flatten_with_key_data((args, kwargs))
        traced = self.trace(leaves, avals_of(leaves, "functionalize", self.fun, in_tree), in_tree)
        operands = [*leaves, *traced.captured]
        outs = traced.finish_call(operands, apply(None, traced.program, operands))
        return tree.unflatten(traced.out_tree, outs)

    def trace(
        self,
        leaves: Values | None,
        avals: Avals,
        in_tree: tree.TreeDef,
        kind: str = "functionalize",
    ) -> TracedFunction:
        """The pure program of a call, in a transform that messages name `kind`."""
        traced = trace_function(self.fun, in_tree, avals, kind, values=leaves)
        if self.remove == "mutations":
            return traced
        return traced._replace(program=cached_rewrite(CopyViews(), traced.program))

    @api_boundary
    def program(self, *args: PyTree, **kwargs: PyTree) -> Program:
        """The pure program, which returns the result and the last values of written arguments."""
        leaves, in_tree = tree.flatten_with_key_data((args, kwargs))
        traced = self.trace(None, [abstractify(x) for x in leaves], in_tree)
        out_tree = tree.treedef_tuple([traced.out_tree, tree.structure((0,) * len(traced.written))])
        program = traced.program
        program.trees, program.captured = (in_tree, out_tree), traced.captured
        return program


class CopyViews(Rewrite[Program]):
    """The rewrite to a program that copies the elements of each of its views."""

    def __call__(self, program: Program) -> Program:
        def step(eqn: Equation, *args: Tracer) -> list[Tracer]:
            outs = bind_equation(eqn, *args)
            builder = current_builder.get()
            assert builder is not None
            is_view = isinstance(eqn.primitive, View)
            return [builder.append(Copy(), [x]) for x in outs] if is_view else outs

        return map_equations(program, step)


def make_ir(
    fun: Function | None = None, *, decompositions: Mapping[Any, Any] | None = None
) -> Function:
    """The function that returns the `Program` of `fun` for the given arguments.

    Arguments may be arrays, or anything with `shape` and `dtype`. Arrays that `fun` closes over
    become the last inputs of the program, and calling the program supplies them. `decompositions`,
    a dictionary that `functx.decomp.get_decompositions` returns, are applied.

    >>> import functx
    >>> print(functx.make_ir(lambda x: x * 2.0)(1.0).out_avals)
    [~f32[]]
    """
    if fun is None:
        return partial(make_ir, decompositions=decompositions)
    check_callable(fun, "make_ir")
    if decompositions is not None:
        return wrap_transform(make_ir(decompose(fun, table=decompositions)), fun, "make_ir")

    def wrapper(*args: PyTree, **kwargs: PyTree) -> Program:
        return trace_program(fun, args, kwargs, "make_ir")

    return wrap_transform(wrapper, fun, "make_ir")


def trace_program(fun: Function, args: PyTree, kwargs: PyTree, kind: str) -> Program:
    """The program of `fun` for arguments, which may be abstract; `kind` is the transform that traces it."""
    if isinstance(fun, FunctionalizedFunction):
        program = fun.program(*args, **kwargs)
    else:
        leaves, in_tree = tree.flatten_with_key_data((args, kwargs))
        traced = trace_function(fun, in_tree, [abstractify(x) for x in leaves], kind)
        program = traced.program
        program.trees, program.captured = (in_tree, traced.out_tree), traced.captured
    # Later writes to a captured NumPy array must not change the program.
    program.captured = [copy_host_array(x) for x in program.captured]
    return program


def copy_host_array(x: Any) -> Any:
    """A copy of a NumPy array; any other value as it is."""
    if type(x) not in HOST_ARRAY_TYPES:
        return x
    # Repeated elements stay repeated, since a copy in their place may lie in memory otherwise.
    once = x[tuple([slice(1) if step == 0 else slice(None) for step in x.strides])]
    return np.array(x) if once.shape == x.shape else np.broadcast_to(np.array(once), x.shape)


def trace(fun: Function | None = None, decompositions: Mapping[Any, Any] | None = None) -> Function:
    """The function that returns the `Program` of `fun` for the given arguments; `make_ir` of another name.

    `decompositions`, a dictionary that `functx.decomp.get_decompositions` returns, are applied. The
    program is called with other arguments of the same shapes and dtypes, and goes through every
    transform. PyTorch's name for this is `make_fx`.

    >>> import functx
    >>> table = functx.decomp.get_decompositions(["silu"])
    >>> program = functx.trace(functx.nn.silu, table)(1.0)
    >>> [eqn.primitive.name for eqn in program], round(float(program(2.0)), 4)
    (['logistic', 'mul'], 1.7616)
    """
    if fun is None:
        return partial(trace, decompositions=decompositions)
    check_callable(fun, "trace")
    return make_ir(fun, decompositions=decompositions)


def make_jaxpr(
    fun: Function,
    static_argnums: int | Sequence[int] = (),
    axis_env: Sequence[tuple[Hashable, int]] | None = None,
    return_shape: bool = False,
) -> Function:
    """The function that returns the `Program` of `fun`, as `make_ir` does, under JAX's name.

    Arguments at `static_argnums` may be of any type. `axis_env` names axes, with their sizes, that
    collectives in `fun` may use. With `return_shape`, the result is a pair of the program and the result of
    `fun` with a `jax.ShapeDtypeStruct` in place of each array.

    >>> import functx
    >>> program, result = functx.make_jaxpr(lambda x, n: x * n, 1, return_shape=True)(1.0, 3)
    >>> len(program.inputs), result.shape
    (1, ())
    """
    check_callable(fun, "make_jaxpr")
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
    axes = [Axis(name, size) for name, size in axis_env or ()]

    def wrapper(*args: PyTree, **kwargs: PyTree) -> tuple[PyTree, PyTree]:
        static = {n % len(args): args[n % len(args)] for n in numbers}

        @wraps(fun)
        def of_traced(*traced: PyTree, **keywords: PyTree) -> PyTree:
            given = iter(traced)
            values = [static[i] if i in static else next(given) for i in range(len(args))]
            return fun(*values, **keywords)

        traced = [x for i, x in enumerate(args) if i not in static]
        with bind_named_axes([*bound_axes(), *axes]):
            program = make_ir(of_traced if static else fun)(*traced, **kwargs)
        if not return_shape:
            return program
        out_tree = program.trees[1]
        types = [shape_dtype_struct(a) for a in program.out_avals[: out_tree.num_leaves]]
        return program, tree.unflatten(out_tree, types)

    return wrap_transform(wrapper, fun, "make_jaxpr")


@api_boundary
def eval_shape(fun: Function, *args: PyTree, **kwargs: PyTree) -> PyTree:
    """The result of `fun(*args, **kwargs)` with a `jax.ShapeDtypeStruct` in place of each array.

    Nothing is computed; arguments may be arrays, or anything with `shape` and `dtype`.

    >>> import functx, numpy
    >>> functx.eval_shape(lambda x: x.sum(axis=0), numpy.ones((3, 4), "float32"))
    ShapeDtypeStruct(shape=(4,), dtype=float32)
    """
    check_callable(fun, "eval_shape")
    leaves, in_tree = tree.flatten_with_key_data((args, kwargs))
    traced = trace_function(fun, in_tree, [abstractify(x) for x in leaves], "eval_shape")
    return tree.unflatten(traced.out_tree, [shape_dtype_struct(a) for a in traced.out_avals])
