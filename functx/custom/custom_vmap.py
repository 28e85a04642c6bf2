"""`custom_vmap`: a function whose meaning for whole batches the user gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from functx.core import tree
from functx.core.errors import MissingRuleError
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.rewriting import apply, cached_rewrite
from functx.core.samples import f32, sample
from functx.core.tracing import current_builder, trace_closed
from functx.custom.captures import Captures
from functx.custom.function import CustomFunction, has_jax_tracers
from functx.custom.repeating import RecomputingJVP, RecomputingTranspose, RecomputingVJP
from functx.custom.user_vmap_rule import UserVmapRule, captured_tracers
from functx.custom.vmap_rules import JVPVmapRule, NestedVmapRule, TransposeVmapRule, VJPVmapRule
from functx.ops.arithmetic import mul
from functx.ops.operands import batch_size
from functx.ops.shaping import batch_dim_at
from functx.ops.trigonometric import sin
from functx.transforms.batching import Batch
from functx.transforms.calls import avals_of, call_outside_trace, check_callable, trace_function
from functx.transforms.control.scan import map as map_rows
from functx.transforms.marks import (
    inexact_cotangents,
    inexact_mask,
    linear_mask,
    replace_where,
    scatter_where,
    select_where,
    select_where_not,
)
from functx.transforms.parts import active_outputs


def custom_vmap(fun: Callable[..., Any]) -> CustomVmapFunction:
    """`fun`, with a rule that the user gives by `def_vmap` for what `vmap` makes of it.

    Derivatives are those of `fun`, and batches of derivatives those of the rule. Where maps
    are nested, the innermost calls the rule, and the others map what the rule does. Outside
    of maps it is `fun`.

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


def sequential_vmap(fun: Callable[..., Any]) -> CustomVmapFunction:
    """`fun`, which `vmap` calls one row after the other, by `functx.lax.map`.

    >>> import functx, numpy
    >>> double = functx.custom_batching.sequential_vmap(lambda x: x + x)
    >>> functx.vmap(double)(numpy.arange(3.0)).tolist()
    [0.0, 2.0, 4.0]
    """
    custom = CustomVmapFunction(fun)

    def one_by_one(axis_size: int, in_batched: Sequence[Any], *args: Any) -> Any:
        leaves, structure = tree.flatten(args)
        flags = tree.broadcast_prefix(tuple(in_batched), structure, "in_batched")

        def of_row(row: Sequence[Any]) -> Any:
            return custom(*tree.unflatten(structure, replace_where(leaves, flags, row)))

        out = map_rows(of_row, select_where(leaves, flags))
        return out, True

    custom.def_vmap(one_by_one)
    return custom


class CustomVmapFunction(CustomFunction):
    """What `custom_vmap` makes of a function."""

    kind = "custom_vmap"
    vmap_rule: Callable[..., Any] | None = None

    def __init__(self, fun: Callable[..., Any]):
        super().__init__(fun)

    def def_vmap(self, vmap_rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the rule, and return it.

        `vmap_rule(axis_size, in_batched, *args)` gets the arguments with the batch along the
        first axis of each array that `in_batched`, a list with a pytree for each argument,
        marks with True. It returns `(output, out_batched)`, where the second, a pytree like
        the output or a prefix of one, says in the same way what of the output is batched.
        """
        check_callable(vmap_rule, f"{self!r}.def_vmap")
        self.vmap_rule = vmap_rule
        return vmap_rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
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
        users = UserVmapRule(
            self, rule, in_tree, traced.out_tree, tuple(traced.program.out_avals), captures
        )
        outs = CustomVmap(program, users)(*leaves, *captures.values)
        return tree.unflatten(traced.out_tree, outs)


class _ExampleRule:
    """The rule that does what mapping the example does."""

    def applies_to(self, flags: Sequence[bool]) -> bool:
        return any(flags)

    def __call__(
        self, size: int, flags: Sequence[bool], args: Sequence[Any]
    ) -> tuple[list[Any], list[bool]]:
        dims = tuple([0 if on else None for on in flags])
        return apply(Batch(size, dims, (0,)), _EXAMPLE, args), [True]


def _example() -> Program:
    def body(x: Any, y: Any) -> list[Any]:
        return [mul(sin(x), y)]

    return trace_closed(body, [f32[3], f32[3]], name="example")


_EXAMPLE = _example()


class CustomVmap(Primitive):
    """The outputs of `program`, for batches of which `rule`, a `VmapRule`, speaks.

    Derivatives compute what they need again, from the operands, since what the rule would
    save of a batch is not what the program saves; one compiled program merges the two.
    """

    program: Program
    rule: Any
    multiple_results = True
    samples = (sample(f32[3], f32[3], dtypes=("f32",), program=_EXAMPLE, rule=_ExampleRule()),)

    def abstract_eval(self, *avals):
        return self.program.out_avals

    def varying_outputs(self, avals, active):
        return active_outputs(self.program, active)

    def jvp(self, primals, tangents):
        varying = tuple([t is not None for t in tangents])
        pushed = cached_rewrite(RecomputingJVP(varying), self.program)
        given = [t for t in tangents if t is not None]
        found = CustomVmap(pushed, JVPVmapRule(self.rule, varying))(*primals, *given)
        return self(*primals), scatter_where(found, inexact_mask(self.program.out_avals))

    def forward(self, args, active):
        return self(*args), ()

    def vjp(self, cts, saved, args, active):
        active, given = tuple(active), tuple([ct is not None for ct in cts])
        pulled = cached_rewrite(RecomputingVJP(active, given), self.program)
        rule = VJPVmapRule(self.rule, active, given)
        return scatter_where(
            CustomVmap(pulled, rule)(*[ct for ct in cts if ct is not None], *args), active
        )

    def transpose(self, cts, *args):
        linear = linear_mask(args)
        pulled = cached_rewrite(RecomputingTranspose(linear), self.program)
        rule = TransposeVmapRule(
            self.rule, linear, tuple([x.aval for x in select_where(args, linear)])
        )
        given = inexact_cotangents(cts, self.program.out_avals)
        return scatter_where(
            CustomVmap(pulled, rule)(*given, *select_where_not(args, linear)), linear
        )

    def batch(self, args, dims):
        size = batch_size(args, dims)
        flags = [d is not None for d in dims]
        if not self.rule.applies_to(flags):
            zeros = (0,) * len(self.program.outputs)
            program = cached_rewrite(Batch(size, tuple(dims), zeros), self.program)
            rule = NestedVmapRule(self.rule, size, tuple(dims))
            return CustomVmap(program, rule)(*args), list(zeros)
        rows = [
            x if d is None else batch_dim_at(x, d, 0, size) for x, d in zip(args, dims, strict=True)
        ]
        outs, out_flags = self.rule(size, flags, rows)
        return outs, [0 if on else None for on in out_flags]

    def lower(self, ctx, *values):
        return ctx.call(self.program, list(values))
