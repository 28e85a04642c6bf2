"""What `custom_jvp` and `custom_vjp` share: a function with rules, and what a call of it does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax

from functx import ops
from functx.core import tree
from functx.core.errors import (
    ArgnumsError,
    ArgumentError,
    ConcretizationError,
    GradientError,
    MissingRuleError,
)
from functx.core.named_axes import AxisNames, batched_axis_names
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.program_editing import apply_program
from functx.core.records import Record, Rewrite, field
from functx.core.rewriting import cached_rewrite
from functx.core.tracebacks import api_boundary
from functx.core.tracing import current_builder, trace_closed
from functx.core.types import ShapedArray
from functx.custom.rule_tracing import (
    Activity,
    Captures,
    LazyRules,
    RuleTrace,
    TracedRule,
    rule_tracing_level,
    transform_rules,
)
from functx.ops.operands import batch_size
from functx.transforms.operand_masks import inexact_mask, select_where
from functx.transforms.tracing_api import (
    avals_of,
    call_outside_trace,
    check_callable,
    copy_function_metadata,
    function_name,
    trace_function,
)
from functx.transforms.vmap import Batch, BatchWithInferredOutDims


class CallInfo(NamedTuple):
    """What a rule has to know of the call that it is the rule of."""

    nondiff: tuple[Any, ...]
    num_args: int  # type: ignore[assignment]
    in_tree: Any
    avals: Sequence[ShapedArray]
    out_avals: Sequence[ShapedArray]
    out_tree: Any


class CustomFunction:
    """A function with a rule that the user gives; what is common to all kinds of rules."""

    kind: str
    symbolic_zeros = False

    def __init__(
        self,
        fun: Callable[..., Any],
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ):
        check_callable(fun, self.kind)
        copy_function_metadata(self, fun, self.kind)
        self.__name__ = function_name(fun)
        self.fun = fun
        numbers = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)
        if not all(isinstance(n, int) for n in numbers) or len(set(numbers)) != len(numbers):
            raise ArgnumsError(f"{self!r}: nondiff_argnums must be distinct ints; got {numbers}")
        names = (nondiff_argnames,) if isinstance(nondiff_argnames, str) else nondiff_argnames
        self.nondiff_argnums = (
            tuple(sorted({*numbers, *map(self.parameter_index, names)})) if names else numbers
        )

    def __repr__(self) -> str:
        return f"{self.kind}({function_name(self.fun)})"

    def rule_functions(self) -> tuple[Callable[..., Any], ...]:
        """The user's rule functions, none when they are not given yet."""
        raise NotImplementedError

    def trace_rules(
        self, call: CallInfo, trace: RuleTrace, values: Sequence[Any], flow: Activity | None
    ) -> list[TracedRule]:
        """The rules traced for one call: programs, each with what it captured.

        With symbolic zeros they are traced for one `flow`, or for that through everything.
        """
        raise NotImplementedError

    def assemble_rules(
        self, traced: Sequence[TracedRule], captures: Captures
    ) -> tuple[Program, ...]:
        """The programs of the rules as the primitive holds them."""
        raise NotImplementedError

    def make_primitive(self, primal: Program, rule: Any, captured: int) -> Any:
        """The primitive whose equation a call makes."""
        raise NotImplementedError

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.rule_functions():
            raise MissingRuleError(
                f"{self!r}: the function must have a derivative rule before it is called; got none",
                fix=f"Give it one with def{self.kind.removeprefix('custom_')}.",
            )
        args = self.bind_positional(args, kwargs)
        level = rule_tracing_level(self)
        if current_builder.get() is None and not has_jax_tracers(args):
            return call_outside_trace(self.fun, *args)
        if level > 1:
            return self.fun(*args)
        nondiff, dynamic = self.split_nondiff(args)
        leaves, in_tree = tree.flatten_with_key_data((dynamic, {}))
        plain = self.argnums_partial(self.fun, nondiff, len(args))
        avals = avals_of(leaves, self.kind, plain, in_tree)
        primal = trace_function(plain, in_tree, avals, self.kind, values=leaves)
        primal = primal.refuse_writes(repr(self))
        call = CallInfo(
            nondiff, len(args), in_tree, avals, primal.program.out_avals, primal.out_tree
        )
        captures = Captures()
        captures.add(primal.captured)
        trace = RuleTrace(self)
        try:
            traced = self.trace_rules(call, trace, leaves, None)
        except ConcretizationError:
            level = 1
        captures.add([x for b in trace.builders for _, x in b.captures.values()])
        deferred = level or self.symbolic_zeros
        rule = (
            LazyRules(self, call, captures) if deferred else self.assemble_rules(traced, captures)
        )
        program = captures.with_capture_inputs(primal.program, primal.captured)
        outs = self.make_primitive(program, rule, len(captures.values))(*leaves, *captures.values)
        return tree.unflatten(primal.out_tree, outs)

    @cached_property
    def signature(self) -> inspect.Signature | None:
        try:
            return inspect.signature(self.fun)
        except (ValueError, TypeError):
            return None

    def parameter_index(self, name: str) -> int:
        """The position of the parameter `name`."""
        parameters = list(self.signature.parameters) if self.signature is not None else []
        if name not in parameters:
            raise ArgnumsError(
                f"{self!r}: nondiff_argnames must name parameters of the function; "
                f"got {name!r}, and parameters {parameters}"
            )
        return parameters.index(name)

    def bind_positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, those left to their defaults included."""
        if self.signature is None:
            if kwargs:
                raise ArgumentError(f"{self!r}: arguments must be positional; got {list(kwargs)}")
            return args
        if not kwargs and len(args) == len(self.signature.parameters):
            return args
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(
                f"{self!r}: arguments must fit the signature {self.signature}; got {error}"
            ) from None
        by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        given = [n for n in bound.arguments if self.signature.parameters[n].kind in by_name]
        if given:
            raise ArgumentError(
                f"{self!r}: no argument may be keyword-only, since rules take them by position; "
                f"got {given}"
            )
        bound.apply_defaults()
        return bound.args

    def split_nondiff(self, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The arguments that are not differentiated, and the others."""
        if not self.nondiff_argnums:
            return (), args
        if any(not -len(args) <= n < len(args) for n in self.nondiff_argnums):
            raise ArgnumsError(
                f"{self!r}: nondiff_argnums must name positional arguments; "
                f"got {self.nondiff_argnums} for {len(args)} of them"
            )
        fixed = [n % len(args) for n in self.nondiff_argnums]
        return (
            tuple([args[n] for n in fixed]),
            tuple([x for i, x in enumerate(args) if i not in fixed]),
        )

    def argnums_partial(self, fun: Callable[..., Any], nondiff: Sequence[Any], count: int) -> Any:
        """`fun`, which takes all of `count` arguments, as a function of the dynamic ones."""
        if not nondiff:
            return fun
        fixed = dict(zip([n % count for n in self.nondiff_argnums], nondiff, strict=True))

        def of_dynamic(*dynamic: Any) -> Any:
            rest = iter(dynamic)
            return fun(*[fixed[i] if i in fixed else next(rest) for i in range(count)])

        of_dynamic.__name__ = function_name(fun)
        return of_dynamic


def has_jax_tracers(args: Any) -> bool:
    """Whether JAX traces what is called with `args`, so that rules must reach it."""
    return any(isinstance(x, jax.core.Tracer) for x in tree.leaves(args))


def check_captures_not_differentiated(primitive: Any, active: Sequence[bool]) -> None:
    """Raise GradientError if a captured value is differentiated, for which no rule speaks."""
    if primitive.captured and any(active[-primitive.captured :]):
        raise GradientError(
            f"{primitive.name}({primitive.primal.name}): the rule gives derivatives in the "
            "arguments alone; got a derivative in a value that the function closes over, or "
            "in an argument of nondiff_argnums",
            fix="Pass the value as an argument to differentiate, or take stop_gradient of it.",
        )


class CustomDerivativeCall(Primitive, abstract=True):
    """The outputs of `primal`, with a derivative of which `rule` speaks.

    The last `captured` operands are not differentiated.
    """

    primal: Program
    rule: Any
    captured: int = 0
    not_executed = ("rule",)
    multiple_results = True

    def explicit_operands(self, args: Sequence[Any]) -> Sequence[Any]:
        """The operands that are not captured."""
        return args[: len(args) - self.captured]

    def varying(self, args: Sequence[Any], active: Sequence[bool]) -> tuple[bool, ...]:
        """Which of the inexact operands, except captured ones, are active."""
        return tuple(
            select_where(self.explicit_operands(active), inexact_mask(self.explicit_operands(args)))
        )

    def batched_rule(
        self, size: int, dims: tuple[int | None, ...], inexact: tuple[bool, ...]
    ) -> Callable[[tuple[Program, ...]], tuple[Program, ...]]:
        """The change of the rule to that for batches of `size` along `dims`."""
        raise NotImplementedError

    def abstract_eval(self, *avals: Any) -> Any:
        return self.primal.out_avals

    def batch(self, args: Sequence[Any], dims: Sequence[int | None]) -> tuple[Any, Any]:
        size = batch_size(args, dims)
        zeros = (0,) * len(self.primal.outputs)
        primal = cached_rewrite(Batch(size, tuple(dims), zeros), self.primal)
        change = self.batched_rule(
            size, tuple(dims), tuple(inexact_mask(self.explicit_operands(args)))
        )
        batched = type(self)(primal, transform_rules(self.rule, change), self.captured)
        return batched(*args), list(zeros)

    def lower(self, ctx: Any, *values: Any) -> Any:
        return ctx.call(self.primal, values)


class BatchJVPRule(Record):
    """The change of a rule to one for batches of `size` along `dims`."""

    size: int
    dims: tuple[int | None, ...]
    inexact: tuple[bool, ...]

    def __call__(self, programs: tuple[Program, ...]) -> tuple[Program, ...]:
        (rule,) = programs
        count = len(self.inexact)
        own = self.dims[:count]
        tangents = tuple(select_where(own, self.inexact))
        in_dims = (*own, *tangents, *self.dims[count:])
        return (cached_rewrite(Batch(self.size, in_dims, (0,) * len(rule.outputs)), rule),)


class BatchVJPRule(Record):
    """The change of a rule to one for batches of `size` along `dims`."""

    size: int
    dims: tuple[int | None, ...]
    inexact: tuple[bool, ...]
    outputs: int

    def __call__(self, programs: tuple[Program, ...]) -> tuple[Program, ...]:
        first, second, *pushes = programs
        _, found = cached_rewrite(BatchWithInferredOutDims(self.size, self.dims), first)
        out_dims = (0,) * self.outputs + tuple(found[self.outputs :])
        batched = cached_rewrite(Batch(self.size, self.dims, out_dims), first)
        residual_dims = out_dims[self.outputs :]
        cts = len(second.inputs) - len(residual_dims)
        wanted = tuple([d for d, on in zip(self.dims, self.inexact, strict=False) if on])
        in_dims = (*[0] * cts, *residual_dims)
        push = BatchJVPRule(self.size, self.dims, self.inexact)
        return (
            batched,
            cached_rewrite(BatchBackwardRule(self.size, in_dims, wanted), second),
            *[push((rule,))[0] for rule in pushes],
        )


class BatchBackwardRule(Rewrite[Program]):
    """The rewrite of a backward program to one for batches.

    The cotangent of an operand that all shared, with None in `wanted`, is summed.
    """

    size: int
    in_dims: tuple[int | None, ...]
    cotangent_dims: tuple[int | None, ...]
    names: AxisNames = field(default_factory=batched_axis_names, kw_only=True)

    def __call__(self, program: Program) -> Program:
        out_dims = tuple([0 if d is None else d for d in self.cotangent_dims])
        batched = Batch(self.size, self.in_dims, out_dims, names=self.names)(program)

        def body(*xs: Any) -> list[Any]:
            outs = apply_program(batched, xs)
            return [
                ops.reduce_sum(x, (0,)) if d is None else x
                for x, d in zip(outs, self.cotangent_dims, strict=True)
            ]

        return trace_closed(body, batched.in_avals, name=batched.name)
