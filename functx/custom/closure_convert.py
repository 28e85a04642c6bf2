"""Functions with what they capture as arguments, and rules written as functions inside functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax.core

from functx import ops
from functx.core import tree
from functx.core.errors import ArgumentError, RuleError
from functx.core.program_calls import apply_program
from functx.core.tracebacks import api_boundary
from functx.core.tracer import aval_of
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Function, PyTree, Value
from functx.custom.custom_vjp import custom_vjp
from functx.transforms.argument_names import check_callable, function_name
from functx.transforms.tracing_api import avals_of, trace_function


@api_boundary
def closure_convert(fun: Function, *example_args: PyTree) -> tuple[Callable[..., Any], list[Value]]:
    """`fun` as a function of its arguments and of the values that it captures, and these values.

    `fun` is traced on arguments like `example_args`. The values are those that may have a derivative:
    traced ones that are float or complex. `converted(*args, *values)` is `fun(*args)`; so a rule of a
    function that takes `fun` can give derivatives with respect to what `fun` captures.

    >>> import functx
    >>> def scaled_sine(scale):
    ...     f, captured = functx.closure_convert(lambda x: functx.numpy.sin(scale * x), 1.0)
    ...     return f(2.0, *captured)
    >>> float(functx.grad(scaled_sine)(0.0))
    2.0
    """
    check_callable(fun, "closure_convert")
    label = f"closure_convert({function_name(fun)})"
    leaves, in_tree = tree.flatten_with_key_data((example_args, {}))
    avals = avals_of(leaves, "closure_convert", fun, in_tree)
    traced = trace_function(fun, in_tree, avals, "closure_convert").refuse_writes(label)
    hoisted = [isinstance(x, jax.core.Tracer) and is_inexact(x.dtype) for x in traced.captured]
    count, program, out_tree = len(example_args), traced.program, traced.out_tree
    # The new function must not hold the values that are its arguments now.
    kept = [None if on else x for x, on in zip(traced.captured, hoisted, strict=True)]

    def converted(*args: PyTree) -> PyTree:
        own, values = args[:count], iter(args[count:])
        if len(args) != count + sum(hoisted):
            raise ArgumentError(
                f"{label}: the new function must get {count} arguments and {sum(hoisted)} captured values; "
                f"got {len(args)} arguments",
                fix="Pass them as f(*args, *captured).",
            )
        given, given_tree = tree.flatten_with_key_data((own, {}))
        tree.check_same_structure(in_tree, given_tree, f"{label}: the arguments", "example_args")
        captured = [next(values) if on else x for x, on in zip(kept, hoisted, strict=True)]
        return tree.unflatten(out_tree, apply_program(program, [*given, *captured]))

    converted.__name__ = function_name(fun)
    return converted, [x for x, on in zip(traced.captured, hoisted, strict=True) if on]


def _example_cotangent(aval: ShapedArray) -> Value | None:
    """Zeros of the type of a cotangent; None for an output that has none, of integers or booleans."""
    return ops.zeros_like(aval) if is_inexact(aval.dtype) else None


def custom_gradient(fun: Function) -> Function:
    """`fun` with a pullback that it returns beside its result.

    `fun(*args)` returns `(output, pullback)`; `pullback(ct)` returns a tuple of cotangents, one for each
    argument, or the cotangent of the only one. The new function returns the output, and is a function
    with a rule for reverse mode, as `custom_vjp` makes them.

    >>> import functx
    >>> @functx.custom_gradient
    ... def square(x):
    ...     return x * x, lambda ct: ct * 3.0 * x
    >>> float(square(2.0)), float(functx.grad(square)(2.0))
    (4.0, 6.0)
    """
    check_callable(fun, "custom_gradient")

    def value_and_pullback(args: tuple[PyTree, ...]) -> PyTree:
        result = fun(*args)
        if not (isinstance(result, (tuple, list)) and len(result) == 2 and callable(result[1])):
            raise RuleError(
                f"custom_gradient({function_name(fun)}): the function must return a pair "
                f"(output, pullback); got {result!r}"
            )
        return result

    @custom_vjp
    @wraps(fun)
    def with_rule(*args: PyTree) -> PyTree:
        return value_and_pullback(args)[0]

    def forward(*args: PyTree) -> tuple[PyTree, PyTree]:
        out, pullback = value_and_pullback(args)
        example = tree.map(lambda x: _example_cotangent(aval_of(x)), out)
        return out, closure_convert(pullback, example)

    def backward(residuals: Any, ct: PyTree) -> tuple[PyTree, ...]:
        pullback, captured = residuals
        cts = pullback(ct, *captured)
        return tuple(cts) if isinstance(cts, (tuple, list)) else (cts,)

    with_rule.defvjp(forward, backward)
    return with_rule
