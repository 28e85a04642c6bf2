"""`hook_grad`: values whose cotangents pass through a function of the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from functx import ops
from functx.core import tree
from functx.core.checking import check_operands
from functx.core.errors import HookResultError
from functx.core.masks import mask_of, set_result_masks
from functx.core.primitive import LinearInput
from functx.core.program import Program
from functx.core.program_calls import apply_program
from functx.core.rewriting import cached_rewrite
from functx.core.samples import LazySamples, f32, sample
from functx.core.tracer import aval_of, current_builder
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import ArrayLike, Cotangents, Dim, Mask, PyTree, Tangent, Value, Values
from functx.custom.custom_function import has_jax_tracers
from functx.ops.families import UnchangedValue
from functx.ops.operands import batch_size
from functx.transforms.argument_names import check_callable, function_name
from functx.transforms.batching import Batch
from functx.transforms.tracing_api import trace_function


def hook_grad(x: PyTree, fn: Callable[[Value], Any]) -> PyTree:
    """`x`, an array or a pytree of arrays, whose cotangents pass through `fn`.

    In reverse mode, `fn` gets the cotangent of each array, and the array that it returns takes its
    place; None leaves it. `fn` is traced, may capture traced values, and is differentiated by
    derivatives of higher order. Under `vmap` it gets the cotangent of one element of the batch. The
    values and the tangents of forward mode are those of `x`. Integers have no cotangent.

    Raises HookResultError for a result of another shape or dtype than the cotangent.

    >>> import functx
    >>> double = lambda ct: ct * 2
    >>> float(functx.grad(lambda x: functx.hook_grad(x, double) ** 2)(3.0))
    12.0
    """
    check_callable(fn, "hook_grad")
    if current_builder.get() is None and not has_jax_tracers(x):
        return ops.stop_gradient(x)
    return tree.map(
        lambda leaf: hook_array(leaf, fn) if is_inexact(aval_of(leaf).dtype) else leaf, x
    )


def hook_array(x: ArrayLike, fn: Callable[[Value], Any]) -> Value:
    """As `hook_grad`, for one array."""
    aval = aval_of(x).update(weak_type=False)

    def hook(ct: Value) -> PyTree:
        result = fn(ct)
        return ct if result is None else result

    hook.__name__ = function_name(fn)
    in_tree = tree.structure(((x,), {}))
    traced = trace_function(hook, in_tree, [aval], "hook_grad").refuse_writes("hook_grad")
    out_avals = [(a.shape, a.dtype) for a in traced.out_avals]
    if out_avals != [(aval.shape, aval.dtype)]:
        raise HookResultError(
            f"hook_grad: `{function_name(fn)}` must return an array of the shape and dtype of the "
            f"cotangent; got {', '.join(map(repr, traced.out_avals))} for {aval!r}"
        )
    return HookGrad(traced.program)(x, *traced.captured)


class HookGrad(UnchangedValue):
    """`x`, whose cotangent is replaced by the result of the program `hook`.

    The program takes the cotangent and the values that it captures, which are the other operands.
    """

    hook: Program
    not_executed = ("hook",)
    linear = (0,)
    no_cse = True
    samples = LazySamples(lambda: (sample(f32[3], f32[3], dtypes=("f32",), hook=_example()),))

    def abstract_eval(self, x: ShapedArray, *captures: ShapedArray) -> ShapedArray:
        check_operands(self, (x, *captures), self.hook.in_avals)
        return x

    def jvp(self, primals: Values, tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        # The hook of the tangent runs where it is transposed.
        tangent = tangents[0]
        return self(*primals), None if tangent is None else self(tangent, *primals[1:])

    def tangent_mask(self, masks: Sequence[Mask], args: Values) -> Mask:
        return masks[0]

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        return self.transpose(ct, LinearInput(aval_of(args[0])), *args[1:])

    def transpose(self, ct: Value, x: LinearInput, *captures: Value) -> Cotangents:
        mask = mask_of(ct)
        (result,) = apply_program(self.hook, [ct, *captures])
        unknown = [None] * len(captures)
        if mask is not None:
            set_result_masks([ops.Or()(mask, ops.Ne()(result, ops.zeros_like(result))), *unknown])
        return [result, *unknown]

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Value, Dim]:
        size = batch_size(args, dims)
        x = ops.batch_dim_at(args[0], dims[0], 0, size)
        hook = cached_rewrite(Batch(size, (0, *dims[1:]), (0,)), self.hook)
        return HookGrad(hook)(x, *args[1:]), 0


def _example() -> Program:
    # A hook that leaves the cotangent, so that the rules agree.
    def body(ct: Value, x: Value) -> list[Value]:
        return [ops.add(ct, ops.sub(x, x))]

    return trace_closed(body, [f32[3], f32[3]], name="example")
