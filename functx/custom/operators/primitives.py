"""The primitives of operators, whose rules look up the functions that users registered.

`OperatorCall` is the primitive of an operator with rules, `CompositeCall` of one with a
decomposition. Batching is by the operator's vmap rule, or a loop over the batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from functx import ops
from functx.core import tree
from functx.core.config import config, contextual_key
from functx.core.errors import MissingRuleError, TreeError, type_name
from functx.core.primitive import Primitive
from functx.core.rewriting import apply
from functx.core.source_info import line_number, user_line, user_source
from functx.core.tracer import aval_of, current_builder
from functx.core.tracing import eval_context
from functx.core.types import ShapedArray, x64_enabled
from functx.custom.operators import derivatives, outputs
from functx.custom.operators.dispatch import find_kernel
from functx.custom.operators.kernels import lower_kernel
from functx.custom.operators.outputs import OutputTypes, operator_rule_error
from functx.custom.operators.registry import Registration, get_rule, resolve_operator
from functx.custom.rule_results import describe_type
from functx.custom.rule_tracing import inline_rule
from functx.ops.operands import batch_size
from functx.transforms.control.loops import map as map_rows
from functx.transforms.decompose import builtin_decomposition
from functx.transforms.operand_masks import replace_where
from functx.transforms.vmap import add_axis, remove_axis

if TYPE_CHECKING:
    from functx.custom.operators.kernels import TracedBody
    from functx.custom.operators.operator import Operator


class OperatorPrimitive(Primitive, abstract=True):
    """The primitive of an operator, with the name `namespace::name`.

    Its operands are the arrays among the arguments; the other arguments are its parameters. It
    gives the results, then the new values of the mutated operands.
    """

    operator: ClassVar[Operator]
    multiple_results = True
    checks_rule_results = True

    def __reduce__(self) -> Any:
        values = tuple([getattr(self, field) for field in self.fields])
        return _unpickle, (self.operator.qualname, values)

    def output_types(self, avals: tuple[ShapedArray, ...]) -> OutputTypes:
        """The types of the results for operands of `avals`, cached."""
        raise NotImplementedError


class OperatorCall(OperatorPrimitive, abstract=True):
    """A call of an operator with registered rules."""

    def output_types(self, avals: tuple[ShapedArray, ...]) -> OutputTypes:
        key = self, avals
        types: OutputTypes | None = self.operator.output_type_cache.get(key)
        if types is None:
            types = self.operator.cache_types(key, outputs.infer_output_types(self, avals))
        return types  # type: ignore[return-value]

    def abstract_eval(self, *avals):
        mutated = [avals[i] for i in self.operator.arguments.mutated_operands(self)]
        return [*self.output_types(avals).avals, *mutated]

    def jvp(self, primals, tangents):
        return derivatives.jvp_operator(self, primals, tangents)

    def forward(self, args, active):
        return derivatives.vjp_forward(self, args, active)

    def vjp(self, cts, saved, args, active):
        return derivatives.vjp_backward(self, cts, saved, args, active)

    def transpose(self, cts, *args):
        return derivatives.transpose_operator(self, cts, args)

    def batch(self, args, dims):
        return batch_operator(self, args, dims)

    def lower(self, ctx, *values):
        return lower_kernel(self, ctx, values)


class CompositeCall(OperatorPrimitive, abstract=True):
    """A call of an operator with a decomposition, from which all its rules follow.

    On a platform with a registered kernel, the kernel is lowered instead.
    """

    def trace_body(self, avals: tuple[ShapedArray, ...]) -> TracedBody:
        """The traced decomposition for operands of `avals`, cached."""
        operator, key = self.operator, contextual_key((self, avals, x64_enabled()))
        body: TracedBody | None = operator.output_type_cache.get(key)
        if body is None:
            assert operator.composite is not None
            with eval_context():
                body = operator.cache_types(key, operator.composite.trace_body(self, avals))
        return body  # type: ignore[return-value]

    def output_types(self, avals: tuple[ShapedArray, ...]) -> OutputTypes:
        program, _, lengths = self.trace_body(avals)
        count = len(program.outputs) - len(self.operator.arguments.mutated_operands(self))
        return OutputTypes(tuple(program.out_avals[:count]), lengths)

    def abstract_eval(self, *avals):
        return self.trace_body(avals).program.out_avals

    def decompose(self, *args):
        program, captured, _ = self.trace_body(tuple([aval_of(x) for x in args]))
        return apply(None, program, [*args, *captured])

    def lower(self, ctx, *values):
        if all(find_kernel(self, platform) is None for platform in ctx.platforms):
            return ctx.call(builtin_decomposition(self, tuple(ctx.avals_in)), values)
        return lower_kernel(self, ctx, values)


def _unpickle(qualname: str, values: Sequence[Any]) -> Primitive:
    """The primitive of the operator called `qualname`, with these parameters."""
    primitive: Primitive = resolve_operator(qualname).primitive(*values)
    return primitive


VMAP_RULE = "vmap rule"


class VmapInfo(NamedTuple):
    """The first argument of a vmap rule: the size of the batch."""

    batch_size: int
    randomness: str


def batch_operator(
    primitive: OperatorPrimitive, args: Sequence[Any], dims: Sequence[int | None]
) -> tuple[list[Any], list[int | None]]:
    """The batching rule of operators: the results for batches along `dims`, and their dimensions."""
    rule = get_rule(primitive.operator, VMAP_RULE)
    if rule is not None:
        return _batch_by_rule(primitive, rule, args, dims)
    operator = primitive.operator
    if config.operator_vmap == "error":
        raise MissingRuleError(
            f"{operator.qualname}: an operator must have a vmap rule to be mapped, since "
            'functx.config.operator_vmap is "error"; got none',
            fix=f"Give it one with {operator.__name__}.def_vmap.",
        )
    if not operator.has_warned:
        operator.has_warned = True
        _warn_sequential(operator.qualname)
    return _batch_sequentially(primitive, args, dims)


def _warn_sequential(qualname: str) -> None:
    """Warn, at the line of the call, that a batch is computed element by element."""
    builder = current_builder.get()
    source = (None if builder is None else builder.source) or user_source()
    line = None if source is None else user_line(source)
    warnings.warn_explicit(
        f"{qualname} has no vmap rule, so it is called for each element in turn; give it one with "
        "def_vmap",
        UserWarning,
        "unknown" if line is None else line[0].co_filename,
        0 if line is None else line_number(line),
    )


def _batch_sequentially(
    primitive: OperatorPrimitive, args: Sequence[Any], dims: Sequence[int | None]
) -> tuple[list[Any], list[int | None]]:
    """The results of a loop over the batch."""
    size = batch_size(args, dims)
    rows = [
        ops.batch_dim_at(x, d, 0, size) for x, d in zip(args, dims, strict=True) if d is not None
    ]

    def call_on_row(row: Sequence[Any]) -> list[Any]:
        operands: list[Any] = replace_where(args, [d is not None for d in dims], row)
        return primitive(*operands)  # type: ignore[no-any-return]

    call_on_row.__name__ = primitive.operator.__name__
    outs = map_rows(call_on_row, rows)
    return list(outs), [0] * len(outs)


def _batch_by_rule(
    primitive: OperatorPrimitive,
    rule: Registration,
    args: Sequence[Any],
    dims: Sequence[int | None],
) -> tuple[list[Any], list[int | None]]:
    """The result of the user's `rule(info, in_dims, *args, **kwargs)`, checked."""
    operator = primitive.operator
    arguments = operator.arguments
    size = batch_size(args, dims)
    avals = tuple([remove_axis(aval_of(x), d) for x, d in zip(args, dims, strict=True)])
    results = primitive.output_types(avals)
    # None in `in_dims` is an array that is not batched, an array that is absent, or no array.
    in_dims = arguments.unflatten(primitive, dims, lambda _: None)
    passed = arguments.num_passed(primitive)
    out_dims: list[int | None] = []

    def body(*xs: Any) -> list[Any]:
        values, keywords = arguments.call_arguments(primitive, xs)
        keywords = {
            a.name: keywords[a.name]
            for a in arguments.schema.arguments
            if a.keyword_only and not arguments.is_default(a, keywords[a.name])
        }
        info = VmapInfo(size, "error")
        pair = rule(info, tuple(in_dims[:passed]), *values[:passed], **keywords)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise operator_rule_error(
                operator.qualname,
                rule,
                f"return a pair (output, out_dims); got {describe_type(pair)}",
            )
        out_dims[:] = _check_out_dims(primitive, rule, results, pair[1])
        return _check_batched_outputs(primitive, rule, results, pair[0], out_dims, size)

    outs, _ = inline_rule(f"{operator.__name__}_vmap", body, args)
    return outs, out_dims


def _output_example(primitive: OperatorPrimitive, results: OutputTypes) -> Any:
    """A pytree with the structure of the output."""
    return results.unflatten(primitive.operator.schema, [0] * len(results.avals))


def _check_out_dims(
    primitive: OperatorPrimitive, rule: Registration, results: OutputTypes, out_dims: Any
) -> list[int | None]:
    """The batch dimension of each result, from a pytree like the output or a prefix of one."""
    example = _output_example(primitive, results)
    if isinstance(out_dims, list) and isinstance(example, tuple):
        out_dims = tuple(out_dims)
    try:
        dims = tree.broadcast_prefix(out_dims, tree.structure(example), "out_dims")
    except TreeError:
        structure = tree.structure(out_dims, is_leaf=lambda x: x is None)
        raise operator_rule_error(
            primitive.operator.qualname,
            rule,
            f"return out_dims of the structure of its output, {tree.structure(example)}, or a "
            f"prefix of it; got {structure}",
        ) from None
    checked: list[int | None] = []
    for aval, dim in zip(results.avals, dims, strict=True):
        rank = aval.ndim + 1
        if dim is not None and (not isinstance(dim, int) or not -rank <= dim < rank):
            raise operator_rule_error(
                primitive.operator.qualname,
                rule,
                f"return dimensions from {-rank} to {rank - 1}, or None, as out_dims; got {dim!r}",
            )
        checked.append(None if dim is None else dim % rank)
    return checked


def _check_batched_outputs(
    primitive: OperatorPrimitive,
    rule: Registration,
    results: OutputTypes,
    out: Any,
    out_dims: Sequence[int | None],
    size: int,
) -> list[Any]:
    """The leaves of the output `out` of a rule; OperatorRuleError for other shapes or dtypes."""
    qualname = primitive.operator.qualname
    leaves, structure = tree.flatten(out)
    expected = tree.structure(_output_example(primitive, results))
    if structure != expected:
        raise operator_rule_error(
            qualname, rule, f"return outputs of the structure {expected}; got {structure}"
        )
    outs = []
    for i, (x, aval, dim) in enumerate(zip(leaves, results.avals, out_dims, strict=True)):
        aval, actual = add_axis(aval, dim, size), aval_of(x)
        if actual.shape != aval.shape or actual.dtype != aval.dtype:
            raise operator_rule_error(
                qualname, rule, f"return {aval!r} as output {i}; got {actual!r} ({type_name(x)})"
            )
        outs.append(x if actual is aval else ops.ConvertElementType(aval.dtype, aval.weak_type)(x))
    return outs
