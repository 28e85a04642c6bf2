"""`linear_call`: linear functions with a transpose of the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from functx import ops
from functx.core import tree
from functx.core.checking import check_operands
from functx.core.masks import scatter_where
from functx.core.primitive import Primitive, is_linear_input
from functx.core.program import Program
from functx.core.rewriting import cached_rewrite
from functx.core.samples import LazySamples, f64, sample
from functx.core.tracebacks import api_boundary
from functx.core.tracing import trace_closed
from functx.core.typing import Avals, Cotangents, Dims, Function, PyTree, Tangents, Value, Values
from functx.custom.custom_linear_solve import consts_jvp
from functx.custom.rule_tracing import Captures
from functx.ops.operands import batch_size
from functx.transforms.argument_names import check_callable, function_name
from functx.transforms.batching import Batch
from functx.transforms.tracing_api import TracedFunction, avals_of, trace_function

if TYPE_CHECKING:
    from functx.core.typing import IRValue
    from functx.lowering.stablehlo_emitter import LoweringContext


@api_boundary
def linear_call(
    fun: Callable[[Any, Any], Any],
    fun_transpose: Callable[[Any, Any], Any],
    residual_args: PyTree,
    linear_args: PyTree,
) -> PyTree:
    """`fun(residual_args, linear_args)`, linear in `linear_args`, with a transpose of the user.

    `fun_transpose(residual_args, ct)` is the cotangent of `linear_args` for that of the result. It takes
    the place of the transpose that would be derived from `fun`; the transpose of the transpose is `fun`
    again. Derivatives in `residual_args` are those of `fun`.

    Raises TreeError, ShapeError and DTypeError if the transpose returns other types than `linear_args`.

    >>> import functx
    >>> def halve(x):
    ...     return functx.custom_derivatives.linear_call(
    ...         lambda scale, x: x / scale, lambda scale, ct: ct / scale, 2.0, x)
    >>> float(functx.grad(halve)(3.0))
    0.5
    """
    check_callable(fun, "linear_call")
    check_callable(fun_transpose, "linear_call")
    label = f"linear_call({function_name(fun)})"
    residuals, residual_tree = tree.flatten_with_key_data(residual_args)
    linear, linear_tree = tree.flatten(linear_args)

    def trace(function: Function, second_tree: tree.TreeDef, first_avals: Avals) -> TracedFunction:
        def linear_first(x: PyTree, residual: PyTree) -> PyTree:
            return function(residual, x)

        linear_first.__name__ = function_name(function)
        in_tree = tree.call_treedef(second_tree, residual_tree)
        avals = [*first_avals, *avals_of(residuals, "linear_call", function, in_tree)]
        return trace_function(linear_first, in_tree, avals, "linear_call").refuse_writes(label)

    avals = avals_of(linear, "linear_call", fun, linear_tree)
    forward = trace(fun, linear_tree, avals)
    transpose = trace(fun_transpose, forward.out_tree, forward.out_avals)
    what = f"{label}: what fun_transpose returns"
    tree.check_same_structure(linear_tree, transpose.out_tree, what, "linear_args")
    captures = Captures()
    captures.add(forward.captured)
    captures.add(transpose.captured)
    primitive = LinearCall(
        captures.with_capture_inputs(forward.program, forward.captured),
        captures.with_capture_inputs(transpose.program, transpose.captured),
    )
    return tree.unflatten(forward.out_tree, primitive(*linear, *residuals, *captures.values))


def _example(scale: bool) -> Program:
    def body(x: Value, r: Value) -> list[Value]:
        return [ops.mul(r, x)] if scale else [ops.mul(x, r)]

    return trace_closed(body, [f64[3], f64[3]], name="example")


class LinearCall(Primitive):
    """The outputs of `program`, which is linear in its first inputs and whose transpose is `transposed`.

    The operands are the linear ones, then the residuals. `transposed` takes cotangents of all outputs,
    then the residuals, and returns a cotangent for each linear operand.
    """

    program: Program
    transposed: Program
    not_executed = ("transposed",)
    multiple_results = True
    samples = LazySamples(
        lambda: (sample(f64[3], f64[3], program=_example(True), transposed=_example(False)),)
    )

    @property
    def linear(self) -> tuple[int, ...]:
        """The positions of the linear operands."""
        return tuple(range(self.count))

    @property
    def count(self) -> int:
        """The number of linear operands."""
        return len(self.transposed.outputs)

    def abstract_eval(self, *avals: object) -> Avals:
        check_operands(self, avals, self.program.in_avals)  # type: ignore[arg-type]
        check_operands(self, self.program.in_avals[: self.count], self.transposed.out_avals)
        return self.program.out_avals

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        linear, residuals = primals[: self.count], primals[self.count :]
        outs: Tangents = [None] * len(self.program.outputs)
        if any(t is not None for t in tangents[: self.count]):
            given = ops.instantiate_zeros(tangents[: self.count], linear)
            outs = self(*given, *residuals)
        of_residuals = consts_jvp(self.program, linear, residuals, tangents[self.count :])
        if of_residuals is not None:
            outs = [
                t if term is None else term if t is None else ops.add(t, term)
                for t, term in zip(outs, of_residuals, strict=True)
            ]
        return self(*primals), outs

    def transpose(self, cts: Cotangents, *args: Value) -> Cotangents:
        given = ops.instantiate_zeros(cts, self.program.out_avals)
        transposed = LinearCall(self.transposed, self.program)
        found = transposed(*given, *args[self.count :])
        return scatter_where(found, [is_linear_input(x) for x in args])

    def batch(self, args: Values, dims: Dims) -> tuple[Values, Dims]:
        size = batch_size(args, dims)
        batched = [
            ops.batch_dim_at(x, d, 0, size) if i < self.count or d is not None else x
            for i, (x, d) in enumerate(zip(args, dims, strict=True))
        ]
        residual_dims = tuple([None if d is None else 0 for d in dims[self.count :]])

        def mapped(program: Program) -> Program:
            linear_dims = (0,) * (len(program.inputs) - len(residual_dims))
            out_dims = (0,) * len(program.outputs)
            return cached_rewrite(Batch(size, (*linear_dims, *residual_dims), out_dims), program)

        outs = LinearCall(mapped(self.program), mapped(self.transposed))(*batched)
        return outs, [0] * len(outs)

    def lower(self, ctx: LoweringContext, *values: IRValue) -> Sequence[IRValue]:
        return ctx.call(self.program, values)
