"""The batching rule that the user gives, as programs of one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from functx.core import tree
from functx.core.avals import ShapedArray
from functx.core.errors import ArgumentError, TreeError, type_name
from functx.core.program import Program
from functx.core.rewriting import apply, user_rule_runs
from functx.core.storage import build_functionalized
from functx.core.tracing import PRNGKeyTracer, Tracer, aval_of, current_builder, trace_closed
from functx.custom.captures import Captures, identity_key
from functx.custom.deferral import RuleBuilder, reopened_builders
from functx.custom.function import CustomFunction
from functx.custom.results import RuleResult
from functx.ops.shaping import expand_dims, reshape
from functx.transforms.batching import Batch, add_axis
from functx.transforms.calls import function_name


def captured_tracers(rule: Any) -> list[Tracer]:
    """The traced values among the variables of `rule`, and of functions in these."""
    found: list[Tracer] = []
    pending, seen = [rule], set()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        for part in tree.leaves(each):
            if type(part) is Tracer:
                found.append(part)
            elif type(part) is PRNGKeyTracer:
                found.append(part.key_data)
            elif isinstance(part, partial):
                pending += [part.func, part.args, part.keywords]
            elif isinstance(part, CustomFunction):
                pending.append(part.fun)
            else:
                cells = getattr(part, "__closure__", None) or ()
                pending += [cell.cell_contents for cell in cells if _has_contents(cell)]
                pending.append(getattr(part, "__defaults__", None))
    return found


def _has_contents(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


class UserVmapRule:
    """The user's batching rule of one call.

    Two are equal when they stand for the same function, called alike with the same values
    captured.
    """

    def __init__(
        self,
        custom: CustomFunction,
        rule: Callable[..., Any],
        in_tree: Any,
        out_tree: Any,
        out_avals: tuple[ShapedArray, ...],
        captures: Captures,
    ):
        self.custom_function, self.rule, self.captures = custom, rule, captures
        self.in_tree, self.out_tree, self.out_avals = in_tree, out_tree, out_avals
        self.definition_builder = current_builder.get()
        held = tuple([identity_key(x) for x in captures.values])
        self.key = custom, rule, in_tree, out_tree, out_avals, held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UserVmapRule) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def __name__(self) -> str:
        return function_name(self.rule)

    def applies_to(self, flags: Sequence[bool]) -> bool:
        return any(flags)

    def __call__(
        self, size: int, flags: Sequence[bool], args: Sequence[Any]
    ) -> tuple[list[Any], list[bool]]:
        own = len(args) - len(self.captures.values)
        if any(flags[own:]):
            return self.map_over_captures(size, flags, args), [True] * len(self.out_avals)
        avals = tuple([aval_of(x) for x in args[:own]])
        program, out_flags = self.trace_rule(size, flags[:own], avals)
        return apply(None, program, args), out_flags

    def map_over_captures(self, size: int, flags: Sequence[bool], args: Sequence[Any]) -> list[Any]:
        """The outputs where captured values are batched: the rule of a batch of one, mapped.

        The rule is a function of the arguments, and another one for each captured value.
        """
        own = len(args) - len(self.captures.values)
        marks = [i < own for i in range(len(args))]

        def of_one(*xs: Any) -> list[Any]:
            rows = [expand_dims(x, (0,)) if one else x for x, one in zip(xs, marks, strict=True)]
            outs, out_flags = self(1, marks, rows)
            return [
                reshape(x, x.shape[1:]) if on else x for x, on in zip(outs, out_flags, strict=True)
            ]

        dims = tuple([0 if on else None for on in flags])
        avals = [
            aval_of(x).update(shape=x.shape[1:]) if on else aval_of(x)
            for x, on in zip(args, flags, strict=True)
        ]
        program = trace_closed(of_one, avals, name=function_name(self.rule))
        return apply(None, Batch(size, dims, (0,) * len(self.out_avals))(program), args)

    def trace_rule(
        self, size: int, flags: Sequence[bool], avals: Sequence[ShapedArray]
    ) -> tuple[Program, list[bool]]:
        """The program of the rule, which takes captured values last; which outputs are batched."""
        user_rule_runs.record()
        out_flags: list[bool] = []
        result = RuleResult(repr(self.custom_function), self.rule)

        def body(*xs: Any) -> list[Any]:
            args, _ = tree.unflatten(self.in_tree, xs)
            marks, _ = tree.unflatten(self.in_tree, flags)
            out, batched = result.check_pair(
                self.rule(size, list(marks), *args), "(output, out_batched)"
            )
            out_flags[:] = self.check_out_batched(result, batched)
            expected = [
                add_axis(a, 0 if on else None, size)
                for a, on in zip(self.out_avals, out_flags, strict=True)
            ]
            return result.leaves(out, self.out_tree, expected)

        builder = RuleBuilder(
            function_name(self.rule), self.custom_function.kind, self.definition_builder
        )
        builder.custom_function, builder.is_deferred = self.custom_function, True
        with reopened_builders(self.definition_builder):
            program, captured = build_functionalized(
                builder, body, [builder.add_input(a) for a in avals]
            )
        return self.with_capture_inputs(program, captured), out_flags

    def check_out_batched(self, result: RuleResult, batched: Any) -> list[bool]:
        """One flag for each output."""
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

    def with_capture_inputs(self, program: Program, captured: Sequence[Any]) -> Program:
        """`program` with inputs for the captured values of the call, and for no others.

        Other arrays are captured by the program (`functx.core.captures`).
        """
        found = [self.captures.index_or_none(x) for x in captured]
        for x, place in zip(captured, found, strict=True):
            if place is None and type(x) is Tracer:
                raise ArgumentError(
                    f"{self.custom_function!r}: its rule `{function_name(self.rule)}` must use traced values that "
                    f"are arguments, or variables around the rule; got {x!r}",
                    fix="Pass the value as an argument of the function.",
                )

        def body(*xs: Any) -> list[Any]:
            own = len(xs) - len(self.captures.values)
            held = xs[own:]
            others = [
                x if place is None else held[place]
                for x, place in zip(captured, found, strict=True)
            ]
            return apply(None, program, [*xs[:own], *others])

        own_avals = program.in_avals[: len(program.inputs) - len(captured)]
        avals = [*own_avals, *[aval_of(x) for x in self.captures.values]]
        return trace_closed(body, avals, name=program.name)
