"""The primitives of operators, whose rules look up the functions that users registered.

`OperatorCall` is the primitive of an operator with rules, `CompositeCall` of one with a
decomposition. Batching is by the operator's vmap rule, or a loop over the batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from functx import ops
from functx.core import tree
from functx.core.config import config, contextual_key
from functx.core.effects import is_ordered
from functx.core.errors import MissingRuleError, TreeError, type_name
from functx.core.masks import replace_where
from functx.core.named_axes import batched_axis_names
from functx.core.rewriting import apply
from functx.core.source_info import line_number, user_line, user_source
from functx.core.tracer import aval_of, current_builder
from functx.core.tracing import eval_context
from functx.core.types import ShapedArray, x64_enabled
from functx.core.typing import Avals, Dim, Dims, PyTree, Value, Values
from functx.custom.operators.arguments import OperatorPrimitive
from functx.custom.operators.derivatives import DifferentiableCall
from functx.custom.operators.dispatch import find_kernel
from functx.custom.operators.kernels import TracedBody, lower_kernel, trace_body
from functx.custom.operators.outputs import OutputTypes, infer_output_types
from functx.custom.operators.registry import VMAP_RULE, Registration, get_rule
from functx.custom.rule_results import describe_type
from functx.custom.rule_tracing import inline_rule
from functx.ops.operands import batch_size
from functx.transforms.batching import add_axis, remove_axis
from functx.transforms.control.rows import map as map_rows
from functx.transforms.decompose import builtin_decomposition

if TYPE_CHECKING:
    from functx.core.typing import IRValue
    from functx.lowering.stablehlo_emitter import LoweringContext


class VmapInfo(NamedTuple):
    """The first argument of a vmap rule: the size of the batch, and the mode of its random draws."""

    batch_size: int
    randomness: str

    @staticmethod
    def of(size: int) -> VmapInfo:
        """The size and the mode of the batch whose rule runs."""
        return VmapInfo(size, batched_axis_names().randomness or "error")


class OperatorCall(DifferentiableCall, abstract=True):
    """A call of an operator with registered rules."""

    may_share_outputs = True

    def output_types(self, avals: tuple[ShapedArray, ...]) -> OutputTypes:
        key = self, avals
        types: OutputTypes | None = self.operator.output_type_cache.get(key)
        if types is None:
            types = self.operator.cache_types(key, infer_output_types(self, avals))
        return types

    def abstract_eval(self, *avals: ShapedArray) -> Avals:
        mutated = [avals[i] for i in self.mutated_operands()]
        return [*self.output_types(avals).avals, *mutated]

    def lower(self, ctx: LoweringContext, *values: IRValue) -> Sequence[IRValue]:
        return lower_kernel(self, ctx, values)

    def batch(self, args: Values, dims: Dims) -> tuple[Values, Dims]:
        rule = get_rule(self.operator, VMAP_RULE)
        if rule is not None:
            return self.batch_by_rule(rule, args, dims)
        # Ordered effects take place for each element in turn.
        in_turn = is_ordered(self.effects)
        if config.operator_vmap == "error" and not in_turn:
            raise MissingRuleError(
                f"{self.name}: an operator must have a vmap rule to be mapped, since "
                'functx.config.operator_vmap is "error"; got none',
                fix=f"Give it one with {self.operator.__name__}.def_vmap.",
            )
        if not self.operator.has_warned and not in_turn:
            self.operator.has_warned = True
            _warn_sequential(self.name)
        size, is_batched = batch_size(args, dims), [d is not None for d in dims]
        rows = [
            ops.batch_dim_at(x, d, 0, size)
            for x, d in zip(args, dims, strict=True)
            if d is not None
        ]

        def call_on_row(row: Values) -> list[Value]:
            return self(*replace_where(args, is_batched, row))

        call_on_row.__name__ = self.operator.__name__
        outs = map_rows(call_on_row, rows)
        return list(outs), [0] * len(outs)

    def batch_by_rule(self, rule: Registration, args: Values, dims: Dims) -> tuple[Values, Dims]:
        """The result of the user's `rule(info, in_dims, *args, **kwargs)`, checked."""
        arguments = self.operator.arguments
        size = batch_size(args, dims)
        avals = tuple([remove_axis(aval_of(x), d) for x, d in zip(args, dims, strict=True)])
        results = self.output_types(avals)
        # None in `in_dims` is an array that is not batched, an array that is absent, or no array.
        in_dims = self.unflatten(dims, lambda _: None)
        passed = self.num_passed()
        out_dims: list[Dim] = []

        def body(*xs: Value) -> list[Value]:
            values, keywords = self.call_arguments(xs)
            keywords = {
                a.name: keywords[a.name]
                for a in arguments.schema.arguments
                if a.keyword_only and not arguments.is_default(a, keywords[a.name])
            }
            info = VmapInfo.of(size)
            pair = rule(info, tuple(in_dims[:passed]), *values[:passed], **keywords)
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise rule.error(f"return a pair (output, out_dims); got {describe_type(pair)}")
            expected = results.structure(arguments.schema)
            out_dims[:] = check_out_dims(rule.error, expected, results.avals, pair[1])
            return check_batched_outputs(
                rule.error, expected, results.avals, pair[0], out_dims, size
            )

        outs, _ = inline_rule(f"{self.operator.__name__}_vmap", body, args)
        return outs, out_dims


class CompositeCall(OperatorPrimitive, abstract=True):
    """A call of an operator with a decomposition, from which all its rules follow.

    On a platform with a registered kernel, the kernel is lowered instead.
    """

    def traced_body(self, avals: tuple[ShapedArray, ...]) -> TracedBody:
        """The traced decomposition for operands of `avals`, cached."""
        operator, key = self.operator, contextual_key((self, avals, x64_enabled()))
        body: TracedBody | None = operator.output_type_cache.get(key)
        if body is None:
            assert operator.composite is not None
            with eval_context():
                body = operator.cache_types(key, trace_body(self, operator.composite, avals))
        return body

    def output_types(self, avals: tuple[ShapedArray, ...]) -> OutputTypes:
        program, _, lengths = self.traced_body(avals)
        count = len(program.outputs) - len(self.mutated_operands())
        return OutputTypes(tuple(program.out_avals[:count]), lengths)

    def abstract_eval(self, *avals: ShapedArray) -> Avals:
        return self.traced_body(avals).program.out_avals

    def decompose(self, *args: Value) -> Values:
        program, captured, _ = self.traced_body(tuple([aval_of(x) for x in args]))
        return apply(None, program, [*args, *captured])

    def lower(self, ctx: LoweringContext, *values: IRValue) -> Sequence[IRValue]:
        if all(find_kernel(self, platform) is None for platform in ctx.platforms):
            return ctx.call(builtin_decomposition(self, tuple(ctx.avals_in)), values)
        return lower_kernel(self, ctx, values)


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


def check_out_dims(
    error: Callable[[str], Exception],
    structure: tree.TreeDef,
    avals: Avals,
    out_dims: PyTree,
) -> list[Dim]:
    """The batch dimension of each result, from a pytree like the output or a prefix of one."""
    if isinstance(out_dims, list) and tree.root_node_type(structure) is tuple:
        out_dims = tuple(out_dims)
    try:
        dims = tree.broadcast_prefix(out_dims, structure, "out_dims")
    except TreeError:
        got = tree.structure(out_dims, is_leaf=lambda x: x is None)
        raise error(
            f"return out_dims of the structure of its output, {structure}, or a "
            f"prefix of it; got {got}"
        ) from None
    checked: list[Dim] = []
    for aval, dim in zip(avals, dims, strict=True):
        rank = aval.ndim + 1
        if dim is not None and (not isinstance(dim, int) or not -rank <= dim < rank):
            raise error(
                f"return dimensions from {-rank} to {rank - 1}, or None, as out_dims; got {dim!r}"
            )
        checked.append(None if dim is None else dim % rank)
    return checked


def check_batched_outputs(
    error: Callable[[str], Exception],
    expected: tree.TreeDef,
    avals: Avals,
    out: PyTree,
    out_dims: Dims,
    size: int,
) -> list[Value]:
    """The leaves of the output `out` of a rule; OperatorRuleError for other shapes or dtypes."""
    leaves, structure = tree.flatten(out)
    if structure != expected:
        raise error(f"return outputs of the structure {expected}; got {structure}")
    outs = []
    for i, (x, aval, dim) in enumerate(zip(leaves, avals, out_dims, strict=True)):
        aval, actual = add_axis(aval, dim, size), aval_of(x)
        if actual.shape != aval.shape or actual.dtype != aval.dtype:
            raise error(f"return {aval!r} as output {i}; got {actual!r} ({type_name(x)})")
        outs.append(x if actual is aval else ops.ConvertElementType(aval.dtype, aval.weak_type)(x))
    return outs
