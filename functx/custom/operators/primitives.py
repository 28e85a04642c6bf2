"""An operator as an equation of programs: every rule of it looks up what the user registered."""

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
from functx.core.tracing import aval_of, current_builder, eval_context
from functx.core.types import ShapedArray, x64_enabled
from functx.custom.operators import derivatives, outputs, primitives
from functx.custom.operators.dispatch import find_kernel
from functx.custom.operators.kernels import lower_kernel
from functx.custom.operators.outputs import OutputTypes, operator_rule_error
from functx.custom.operators.registry import Registration, get_rule
from functx.custom.rule_results import describe_type
from functx.custom.rule_tracing import inline_rule
from functx.ops.operands import batch_size
from functx.transforms.control.scan import map as map_rows
from functx.transforms.decompose import builtin_decomposition

if TYPE_CHECKING:
    from functx.custom.operators.kernels import TracedBody
    from functx.custom.operators.operator import Operator


class OperatorPrimitive(Primitive, abstract=True):
    """One operation of a program, called `namespace::name`.

    Its operands are the arrays among the arguments; its parameters say the rest. It gives the
    results, then the new values of the operands that it writes to.
    """

    operator: ClassVar[Operator]
    multiple_results = True
    checks_rule_results = True

    def __reduce__(self) -> Any:
        values = tuple([getattr(self, field) for field in self.fields])
        return _unpickle, (self.operator.qualname, values)

    def output_types(self, avals: tuple[ShapedArray, ...]) -> OutputTypes:
        """The types of the results for operands of `avals`, remembered."""
        raise NotImplementedError


class OperatorCall(OperatorPrimitive, abstract=True):
    """An operation whose rules are those that users registered for it."""

    def output_types(self, avals: tuple[ShapedArray, ...]) -> OutputTypes:
        key = self, avals
        found: OutputTypes | None = self.operator.output_type_cache.get(key)
        if found is None:
            found = self.operator.cache_types(key, outputs.infer_output_types(self, avals))
        return found  # type: ignore[return-value]

    def abstract_eval(self, *avals):
        written = [avals[i] for i in self.operator.arguments.written(self)]
        return [*self.output_types(avals).avals, *written]

    def jvp(self, primals, tangents):
        return derivatives.jvp_operator(self, primals, tangents)

    def forward(self, args, active):
        return derivatives.vjp_forward(self, args, active)

    def vjp(self, cts, saved, args, active):
        return derivatives.vjp_backward(self, cts, saved, args, active)

    def transpose(self, cts, *args):
        return derivatives.transpose_operator(self, cts, args)

    def batch(self, args, dims):
        return primitives.batch_operator(self, args, dims)

    def lower(self, ctx, *values):
        return lower_kernel(self, ctx, values)


class CompositeCall(OperatorPrimitive, abstract=True):
    """An operation that is made of others, with the rules that they have.

    An implementation takes the place of the decomposition where it runs.
    """

    def body(self, avals: tuple[ShapedArray, ...]) -> TracedBody:
        """What the operation is made of on operands of `avals`, remembered."""
        operator, key = self.operator, contextual_key((self, avals, x64_enabled()))
        found: TracedBody | None = operator.output_type_cache.get(key)
        if found is None:
            assert operator.composite is not None
            with eval_context():
                found = operator.cache_types(key, operator.composite.body(self, avals))
        return found  # type: ignore[return-value]

    def output_types(self, avals: tuple[ShapedArray, ...]) -> OutputTypes:
        program, _, lengths = self.body(avals)
        count = len(program.outputs) - len(self.operator.arguments.written(self))
        return OutputTypes(tuple(program.out_avals[:count]), lengths)

    def abstract_eval(self, *avals):
        return self.body(avals).program.out_avals

    def decompose(self, *args):
        program, captured, _ = self.body(tuple([aval_of(x) for x in args]))
        return apply(None, program, [*args, *captured])

    def lower(self, ctx, *values):
        if all(find_kernel(self, platform) is None for platform in ctx.platforms):
            return ctx.call(builtin_decomposition(self, tuple(ctx.avals_in)), values)
        return lower_kernel(self, ctx, values)


def _unpickle(qualname: str, values: Sequence[Any]) -> Primitive:
    """The operation that was pickled."""
    from functx.custom.operators.registry import resolve_operator

    made: Primitive = resolve_operator(qualname).primitive(*values)
    return made


VMAP_RULE = "vmap rule"


class VmapInfo(NamedTuple):
    """What a batching rule is told of the batch."""

    batch_size: int
    randomness: str


def batch_operator(
    call: OperatorPrimitive, args: Sequence[Any], dims: Sequence[int | None]
) -> tuple[list[Any], list[int | None]]:
    """The results of `call` at every index of the dimensions `dims`, and where they are batched."""
    rule = get_rule(call.operator, VMAP_RULE)
    if rule is not None:
        return _batch_by_rule(call, rule, args, dims)
    operator = call.operator
    if config.operator_vmap == "error":
        raise MissingRuleError(
            f"{operator.qualname}: an operator must have a vmap rule to be mapped, since "
            'functx.config.operator_vmap is "error"; got none',
            fix=f"Give it one with {operator.__name__}.def_vmap.",
        )
    if not operator.has_warned:
        operator.has_warned = True
        _warn_sequential(operator.qualname)
    return _batch_sequentially(call, args, dims)


def _warn_sequential(qualname: str) -> None:
    """Warn, at the line of the call, that a batch is computed element by element."""
    builder = current_builder.get()
    asked = (None if builder is None else builder.source) or user_source()
    source = None if asked is None else user_line(asked)
    warnings.warn_explicit(
        f"{qualname} has no vmap rule, so it is called for each element in turn; give it one with "
        "def_vmap",
        UserWarning,
        "unknown" if source is None else source[0].co_filename,
        0 if source is None else line_number(source),
    )


def _batch_sequentially(
    call: OperatorPrimitive, args: Sequence[Any], dims: Sequence[int | None]
) -> tuple[list[Any], list[int | None]]:
    size = batch_size(args, dims)
    rows = [
        ops.batch_dim_at(x, d, 0, size) for x, d in zip(args, dims, strict=True) if d is not None
    ]

    def of_row(row: Sequence[Any]) -> list[Any]:
        rest = iter(row)
        outs: list[Any] = call(
            *[x if d is None else next(rest) for x, d in zip(args, dims, strict=True)]
        )
        return outs

    of_row.__name__ = call.operator.__name__
    outs = map_rows(of_row, rows)
    return list(outs), [0] * len(outs)


def _batch_by_rule(
    call: OperatorPrimitive, rule: Registration, args: Sequence[Any], dims: Sequence[int | None]
) -> tuple[list[Any], list[int | None]]:
    """What `rule(info, in_dims, *args, **kwargs)` returns: results and where they are batched."""
    operator = call.operator
    arguments = operator.arguments
    size = batch_size(args, dims)
    avals = tuple(
        [
            aval_of(x) if d is None else aval_of(x).update(shape=_remove_axis(x.shape, d))
            for x, d in zip(args, dims, strict=True)
        ]
    )
    results = call.output_types(avals)
    # A dimension that all share is None to the rule, which a list of operands cannot tell from
    # an array that is not there, but its argument can.
    in_dims = arguments.unflatten(call, dims, lambda _: None)
    passed = arguments.num_passed(call)
    out_dims: list[int | None] = []

    def body(*xs: Any) -> list[Any]:
        values, keywords = arguments.call_arguments(call, xs)
        given = {
            a.name: keywords[a.name]
            for a in arguments.schema.arguments
            if a.keyword_only and not arguments.is_default(a, keywords[a.name])
        }
        found = rule(VmapInfo(size, "error"), tuple(in_dims[:passed]), *values[:passed], **given)
        if not isinstance(found, tuple) or len(found) != 2:
            raise operator_rule_error(
                operator.qualname,
                rule,
                f"return a pair (output, out_dims); got {describe_type(found)}",
            )
        out, dims_given = found
        out_dims[:] = _check_out_dims(call, rule, results, dims_given)
        return _check_batched_outputs(call, rule, results, out, out_dims, size)

    outs, _ = inline_rule(f"{operator.__name__}_vmap", body, args)
    return outs, out_dims


def _remove_axis(shape: tuple[int, ...], dim: int) -> tuple[int, ...]:
    return (*shape[:dim], *shape[dim + 1 :])


def _output_tree(call: OperatorPrimitive, results: OutputTypes) -> Any:
    places = range(len(results.avals))
    return results.unflatten(call.operator.schema, list(places))


def _check_out_dims(
    call: OperatorPrimitive, rule: Registration, results: OutputTypes, given: Any
) -> list[int | None]:
    """The batch dimension of each result, of a tree that may be a prefix of theirs."""
    example = _output_tree(call, results)
    if isinstance(given, list) and isinstance(example, tuple):
        given = tuple(given)
    try:
        found = tree.broadcast_prefix(given, tree.structure(example), "out_dims")
    except TreeError:
        none = tree.structure(given, is_leaf=lambda x: x is None)
        raise operator_rule_error(
            call.operator.qualname,
            rule,
            f"return out_dims of the structure of its output, {tree.structure(example)}, or a "
            f"prefix of it; got {none}",
        ) from None
    dims: list[int | None] = []
    for aval, dim in zip(results.avals, found, strict=True):
        whole = aval.ndim + 1
        if dim is not None and (not isinstance(dim, int) or not -whole <= dim < whole):
            raise operator_rule_error(
                call.operator.qualname,
                rule,
                f"return dimensions from {-whole} to {whole - 1}, or None, as out_dims; got {dim!r}",
            )
        dims.append(None if dim is None else dim % whole)
    return dims


def _check_batched_outputs(
    call: OperatorPrimitive,
    rule: Registration,
    results: OutputTypes,
    out: Any,
    out_dims: Sequence[int | None],
    size: int,
) -> list[Any]:
    """The leaves of what a rule returned; OperatorRuleError for other shapes or dtypes."""
    qualname = call.operator.qualname
    leaves, given = tree.flatten(out)
    wanted = tree.structure(_output_tree(call, results))
    if given != wanted:
        raise operator_rule_error(
            qualname, rule, f"return outputs of the structure {wanted}; got {given}"
        )
    found = []
    for i, (x, aval, dim) in enumerate(zip(leaves, results.avals, out_dims, strict=True)):
        if dim is not None:
            aval = aval.update(shape=(*aval.shape[:dim], size, *aval.shape[dim:]))
        own = aval_of(x)
        if own.shape != aval.shape or own.dtype != aval.dtype:
            raise operator_rule_error(
                qualname, rule, f"return {aval!r} as output {i}; got {own!r} ({type_name(x)})"
            )
        found.append(x if own is aval else ops.ConvertElementType(aval.dtype, aval.weak_type)(x))
    return found
