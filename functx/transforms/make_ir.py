"""`make_ir` and `eval_shape`: the program of a function, and the types of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from functx.core import tree
from functx.core.arrays import HOST_ARRAY_TYPES
from functx.core.program import Program
from functx.core.tracebacks import api_boundary
from functx.transforms.calls import abstractify, check_callable, trace_function, wrap_transform
from functx.transforms.decompose import decompose
from functx.transforms.functionalize import FunctionalizedFunction


def make_ir(
    fun: Callable[..., Any] | None = None, *, decompositions: Mapping[Any, Any] | None = None
) -> Any:
    """The function that returns the `Program` of `fun` for the given arguments.

    Arguments may be arrays, or anything with `shape` and `dtype`. Arrays that `fun` closes
    over become the program's last inputs, and calling the program supplies them. What is in
    `decompositions`, a dictionary as `functx.decomp.get_decompositions` gives, is opened up.

    >>> import functx
    >>> print(functx.make_ir(lambda x: x * 2.0)(1.0).out_avals)
    [~f32[]]
    """
    if fun is None:
        return partial(make_ir, decompositions=decompositions)
    check_callable(fun, "make_ir")
    if decompositions is not None:
        return wrap_transform(make_ir(decompose(fun, table=decompositions)), fun, "make_ir")

    def wrapper(*args: Any, **kwargs: Any) -> Program:
        if isinstance(fun, FunctionalizedFunction):
            program = fun.program(*args, **kwargs)
        else:
            leaves, in_tree = tree.flatten_with_key_data((args, kwargs))
            traced = trace_function(fun, in_tree, [abstractify(x) for x in leaves], "make_ir")
            program = traced.program
            program.trees, program.captured = (in_tree, traced.out_tree), traced.captured
        # A program is a value: what becomes of a captured NumPy array is nothing to it.
        program.captured = [
            np.array(x) if type(x) in HOST_ARRAY_TYPES else x for x in program.captured
        ]
        return program

    return wrap_transform(wrapper, fun, "make_ir")


@api_boundary
def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of `fun(*args, **kwargs)` with a `ShapedArray` in place of each array.

    Nothing is computed; arguments may be arrays, or anything with `shape` and `dtype`.

    >>> import functx, numpy
    >>> functx.eval_shape(lambda x: x.sum(axis=0), numpy.ones((3, 4), "float32"))
    f32[4]
    """
    check_callable(fun, "eval_shape")
    leaves, in_tree = tree.flatten_with_key_data((args, kwargs))
    traced = trace_function(fun, in_tree, [abstractify(x) for x in leaves], "eval_shape")
    return tree.unflatten(traced.out_tree, traced.out_avals)
