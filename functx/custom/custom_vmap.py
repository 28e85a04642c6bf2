"""`custom_vmap`: functions with a user-defined batching rule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

from functx import ops
from functx.core import tree
from functx.core.argument_errors import with_explained_errors
from functx.core.checking import check_operands
from functx.core.errors import ArgumentError, MissingRuleError, TreeError, type_name
from functx.core.masks import (
    inexact_mask,
    linear_mask,
    replace_where,
    scatter_where,
    select_where,
    select_where_not,
)
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.rewriting import apply, cached_rewrite, user_rule_runs
from functx.core.samples import LazySamples, f32, sample
from functx.core.source_info import closure_values
from functx.core.tracer import PRNGKeyTracer, Tracer, aval_of, current_builder
from functx.core.tracing import trace_closed
from functx.core.tree import TreeDef
from functx.core.types import ShapedArray
from functx.core.typing import (
    Avals,
    Cotangents,
    Dims,
    Flags,
    Function,
    PyTree,
    Tangents,
    Value,
    Values,
)
from functx.custom.custom_function import CustomFunction, has_jax_tracers
from functx.custom.custom_vmap_derivatives import (
    JVPVmapRule,
    NestedVmapRule,
    RecomputingJVP,
    RecomputingTranspose,
    RecomputingVJP,
    TransposeVmapRule,
    VJPVmapRule,
    VmapRule,
)
from functx.custom.rule_results import RuleResult
from functx.custom.rule_tracing import (
    Captures,
    RuleTrace,
    references_among,
    reopened_builders,
)
from functx.ops.operands import batch_size
from functx.transforms.aliasing import call_outside_trace, capture_key
from functx.transforms.argument_names import check_callable, function_name
from functx.transforms.batching import Batch, add_axis, remove_axis
from functx.transforms.control.rows import map as map_rows
from functx.transforms.dce import active_outputs
from functx.transforms.tracing_api import avals_of, trace_function

if TYPE_CHECKING:
    from functx.core.typing import IRValue
    from functx.lowering.stablehlo_emitter import LoweringContext


def custom_vmap(fun: Function) -> CustomVmapFunction:
    """`fun` with a user-defined batching rule, set by `def_vmap`.

    Derivatives are those of `fun`, and batches of derivatives are those of the rule. If maps
    are nested, the innermost calls the rule, and the others map the rule. Outside of maps it
    is `fun`.

    >>> import functx, numpy
    >>> @functx.custom_vmap
    ... def double(x):
    ...     return x + x
    >>> @double.def_vmap
    ... def double_rows(axis_size, in_batched, x):
    ...     return 2.0 * x, in_batched[0]
    >>> functx.vmap(double)(numpy.arange(3.0)).tolist()
    [0.0, 2.0, 4.0]
    """
    return CustomVmapFunction(fun)


def sequential_vmap(fun: Function) -> CustomVmapFunction:
    """`fun`, which `vmap` calls for one row after the other, by `functx.lax.map`.

    >>> import functx, numpy
    >>> double = functx.custom_batching.sequential_vmap(lambda x: x + x)
    >>> functx.vmap(double)(numpy.arange(3.0)).tolist()
    [0.0, 2.0, 4.0]
    """
    custom = CustomVmapFunction(fun)

    def map_rule(axis_size: int, in_batched: Sequence[PyTree], *args: PyTree) -> PyTree:
        leaves, structure = tree.flatten(args)
        flags = tree.broadcast_prefix(tuple(in_batched), structure, "in_batched")

        def call_on_row(row: Values) -> PyTree:
            return custom(*tree.unflatten(structure, replace_where(leaves, flags, row)))

        return map_rows(call_on_row, select_where(leaves, flags)), True

    custom.def_vmap(map_rule)
    return custom


class CustomVmapFunction(CustomFunction):
    """A function with a batching rule, the result of `custom_vmap`."""

    kind = "custom_vmap"
    vmap_rule: Function | None = None

    def __init__(self, fun: Function):
        super().__init__(fun)

    @with_explained_errors
    def def_vmap(self, vmap_rule: Function) -> Function:
        """Set the rule, and return it.

        `vmap_rule(axis_size, in_batched, *args)` gets the arguments with the batch along the
        first axis of each array that `in_batched`, a list with a pytree for each argument,
        marks with True. It returns `(output, out_batched)`, where `out_batched`, a pytree like
        the output or a prefix of one, marks the batched arrays of the output.
        """
        check_callable(vmap_rule, f"{self!r}.def_vmap")
        self.vmap_rule = vmap_rule
        return vmap_rule

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        rule = self.vmap_rule
        if rule is None:
            raise MissingRuleError(
                f"{self!r}: the function must have a batching rule before it is called; got none",
                fix="Give it one with def_vmap.",
            )
        args = self.bind_positional(args, kwargs)
        if current_builder.get() is None and not has_jax_tracers(args):
            return call_outside_trace(self.fun, *args)
        leaves, in_tree = tree.flatten_with_key_data((args, {}))
        avals = avals_of(leaves, self.kind, self.fun, in_tree)
        traced = trace_function(self.fun, in_tree, avals, self.kind, values=leaves)
        traced = traced.refuse_writes(repr(self))
        captures = Captures()
        captures.add(traced.captured)
        captures.add(captured_tracers(rule))
        program = captures.with_capture_inputs(traced.program, traced.captured)
        user_rule = UserVmapRule(
            self, rule, in_tree, traced.out_tree, tuple(traced.program.out_avals), captures
        )
        outs = CustomVmap(program, user_rule)(*leaves, *captures.values)
        return tree.unflatten(traced.out_tree, outs)


class _ExampleRule:
    """A batching rule that maps the example."""

    def applies_to(self, flags: Flags) -> bool:
        return any(flags)

    def __call__(self, size: int, flags: Flags, args: Values) -> tuple[list[Value], list[bool]]:
        dims = tuple([0 if on else None for on in flags])
        return apply(Batch(size, dims, (0,)), _example(), args), [True]


@cache
def _example() -> Program:
    def body(x: Value, y: Value) -> list[Value]:
        return [ops.mul(ops.sin(x), y)]

    return trace_closed(body, [f32[3], f32[3]], name="example")


class CustomVmap(Primitive):
    """The outputs of `program`, whose batches `rule` computes.

    Derivatives recompute their residuals from the operands, since the residuals of the rule are
    not those of the program; the compiler merges the two computations.
    """

    program: Program
    rule: VmapRule
    primal_field = "program"
    multiple_results = True
    samples = LazySamples(
        lambda: (sample(f32[3], f32[3], dtypes=("f32",), program=_example(), rule=_ExampleRule()),)
    )

    def abstract_eval(self, *avals: ShapedArray) -> Avals:
        check_operands(self, avals, self.program.in_avals)
        return self.program.out_avals

    def varying_outputs(self, avals: Avals, active: Flags) -> Flags:
        return active_outputs(self.program, active)

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        varying = tuple([t is not None for t in tangents])
        program = cached_rewrite(RecomputingJVP(varying), self.program)
        tangent_call = CustomVmap(program, JVPVmapRule(self.rule, varying))
        out_tangents = tangent_call(*primals, *select_where(tangents, varying))
        return self(*primals), scatter_where(out_tangents, inexact_mask(self.program.out_avals))

    def forward(self, args: Values, active: Flags) -> tuple[Values, Values]:
        return self(*args), ()

    def vjp(self, cts: Cotangents, saved: Values, args: Values, active: Flags) -> Cotangents:
        active, has_cotangent = tuple(active), tuple([ct is not None for ct in cts])
        program = cached_rewrite(RecomputingVJP(active, has_cotangent), self.program)
        pullback = CustomVmap(program, VJPVmapRule(self.rule, active, has_cotangent))
        return scatter_where(pullback(*select_where(cts, has_cotangent), *args), active)

    def transpose(self, cts: Cotangents, *args: Value) -> Cotangents:
        linear = linear_mask(args)
        program = cached_rewrite(RecomputingTranspose(linear), self.program)
        linear_avals = tuple([x.aval for x in select_where(args, linear)])
        pullback = CustomVmap(program, TransposeVmapRule(self.rule, linear, linear_avals))
        out_cts = ops.inexact_cotangents(cts, self.program.out_avals)
        return scatter_where(pullback(*out_cts, *select_where_not(args, linear)), linear)

    def batch(self, args: Values, dims: Dims) -> tuple[Values, Dims]:
        size = batch_size(args, dims)
        flags = [d is not None for d in dims]
        if not self.rule.applies_to(flags):
            zeros = (0,) * len(self.program.outputs)
            program = cached_rewrite(Batch(size, tuple(dims), zeros), self.program)
            rule = NestedVmapRule(self.rule, size, tuple(dims))
            return CustomVmap(program, rule)(*args), list(zeros)
        rows = ops.batch_dims_at(args, dims, add_missing=False)
        outs, out_flags = self.rule(size, flags, rows)
        return outs, [0 if on else None for on in out_flags]

    def lower(self, ctx: LoweringContext, *values: IRValue) -> Sequence[IRValue]:
        return ctx.call(self.program, list(values))


def captured_tracers(rule: object) -> list[Tracer]:
    """The traced values in the closure of `rule`, and in those of the functions there."""
    tracers: list[Tracer] = []
    pending: list[object] = [rule]
    visited: set[int] = set()
    while pending:
        value = pending.pop()
        if id(value) in visited:
            continue
        visited.add(id(value))
        for leaf in tree.leaves(value):
            if type(leaf) is Tracer:
                tracers.append(leaf)
            elif type(leaf) is PRNGKeyTracer:
                tracers.append(leaf.key_data)
            elif isinstance(leaf, partial):
                pending += [leaf.func, leaf.args, leaf.keywords]
            elif isinstance(leaf, CustomFunction):
                pending.append(leaf.fun)
            else:
                pending += closure_values(leaf)
                pending.append(getattr(leaf, "__defaults__", None))
    return tracers


class UserVmapRule:
    """The user's batching rule of one call.

    Two are equal if they have the same function, types of arguments and captured values.
    """

    def __init__(
        self,
        custom: CustomFunction,
        rule: Function,
        in_tree: TreeDef,
        out_tree: TreeDef,
        out_avals: tuple[ShapedArray, ...],
        captures: Captures,
    ):
        self.custom_function, self.rule, self.captures = custom, rule, captures
        self.in_tree, self.out_tree, self.out_avals = in_tree, out_tree, out_avals
        self.definition_builder = current_builder.get()
        capture_keys = tuple([capture_key(x) for x in captures.values])
        self.key = custom, rule, in_tree, out_tree, out_avals, capture_keys

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UserVmapRule) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def __name__(self) -> str:
        return function_name(self.rule)

    def applies_to(self, flags: Flags) -> bool:
        return any(flags)

    def __call__(self, size: int, flags: Flags, args: Values) -> tuple[list[Value], list[bool]]:
        num_args = len(args) - len(self.captures.values)
        if any(flags[num_args:]):
            return self.map_over_captures(size, flags, args), [True] * len(self.out_avals)
        avals = tuple([aval_of(x) for x in args[:num_args]])
        program, out_flags = self.trace_rule(size, flags[:num_args], avals)
        return apply(None, program, args), out_flags

    def map_over_captures(self, size: int, flags: Flags, args: Values) -> list[Value]:
        """The outputs for batched captured values: the rule of a batch of one, mapped.

        The rule itself takes no batch of captured values: it is another function for each.
        """
        num_args = len(args) - len(self.captures.values)
        is_argument = [i < num_args for i in range(len(args))]

        def call_on_batch_of_one(*xs: Value) -> list[Value]:
            rows = [
                ops.expand_dims(x, (0,)) if on else x for x, on in zip(xs, is_argument, strict=True)
            ]
            outs, out_flags = self(1, is_argument, rows)
            return [
                ops.reshape(x, x.shape[1:]) if on else x
                for x, on in zip(outs, out_flags, strict=True)
            ]

        dims = tuple([0 if on else None for on in flags])
        avals = [remove_axis(aval_of(x), d) for x, d in zip(args, dims, strict=True)]
        program = trace_closed(call_on_batch_of_one, avals, name=function_name(self.rule))
        return apply(None, Batch(size, dims, (0,) * len(self.out_avals))(program), args)

    def trace_rule(self, size: int, flags: Flags, avals: Avals) -> tuple[Program, list[bool]]:
        """The program of the rule, which takes captured values last, and the flags of its outputs."""
        user_rule_runs.record()
        out_flags: list[bool] = []
        references: list[int] = []
        result = RuleResult(repr(self.custom_function), self.rule)

        def body(*xs: Value) -> list[Value]:
            args, _ = tree.unflatten(self.in_tree, xs)
            references.extend(references_among(xs, args))
            in_batched, _ = tree.unflatten(self.in_tree, flags)
            out, batched = result.check_pair(
                result.call(
                    "the batch size, in_batched and the arguments", size, list(in_batched), *args
                ),
                "(output, out_batched)",
            )
            out_flags[:] = self.check_out_batched(result, batched)
            expected = [
                add_axis(a, 0 if on else None, size)
                for a, on in zip(self.out_avals, out_flags, strict=True)
            ]
            return result.check_output(out, self.out_tree, expected)

        trace = RuleTrace(self.custom_function, self.definition_builder, is_deferred=True)
        with reopened_builders(self.definition_builder):
            program, captured = trace(self.rule, body, avals, (), references)
        return self.with_capture_inputs(program, captured), out_flags

    def check_out_batched(self, result: RuleResult, batched: PyTree) -> list[bool]:
        """The flags `batched` of the output, one for each leaf."""
        if isinstance(batched, list) and tree.root_node_type(self.out_tree) is tuple:
            batched = tuple(batched)
        try:
            flags = tree.broadcast_prefix(batched, self.out_tree, "out_batched")
        except TreeError as error:
            raise result.for_part("out_batched").error(
                "must be a pytree like the output, or a prefix of one; got another structure",
                *error.details,
            ) from None
        for flag in flags:
            if not isinstance(flag, bool):
                raise result.for_part("out_batched").error(
                    f"must be made of True and False; got {type_name(flag)}"
                )
        return flags

    def with_capture_inputs(self, program: Program, captured: Values) -> Program:
        """`program`, whose last inputs stand for `captured`, with the captured values of the call.

        Other arrays become constants of the program; ArgumentError for another traced value.
        """
        indices = [self.captures.index_or_none(x) for x in captured]
        for x, index in zip(captured, indices, strict=True):
            if index is None and type(x) is Tracer:
                raise ArgumentError(
                    f"{self.custom_function!r}: its rule `{function_name(self.rule)}` must use traced values that "
                    f"are arguments, or variables around the rule; got {x!r}",
                    fix="Pass the value as an argument of the function.",
                )

        arg_avals = program.in_avals[: len(program.inputs) - len(captured)]

        def body(*xs: Value) -> list[Value]:
            args, captures = xs[: len(arg_avals)], xs[len(arg_avals) :]
            capture_operands = [
                x if index is None else captures[index]
                for x, index in zip(captured, indices, strict=True)
            ]
            return apply(None, program, [*args, *capture_operands])

        avals = [*arg_avals, *[aval_of(x) for x in self.captures.values]]
        return trace_closed(body, avals, name=program.name)
