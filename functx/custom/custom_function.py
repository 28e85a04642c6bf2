"""Functions with user-defined rules: the base classes of `custom_jvp`, `custom_vjp`, `custom_vmap`."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import jax

from functx import ops
from functx.core import tree
from functx.core.captured_state import CapturedState
from functx.core.checking import check_operands
from functx.core.errors import (
    ArgnumsError,
    ArgumentError,
    CapturedWriteError,
    ConcretizationError,
    FunctxError,
    GradientError,
    ImplicitDrawError,
    MissingRuleError,
)
from functx.core.generator_state import STATE_AVAL, implicit_draw_error
from functx.core.masks import inexact_mask, select_where
from functx.core.named_axes import AxisNames, batched_axis_names
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.program_calls import apply_program
from functx.core.rewriting import Record, Rewrite, cached_rewrite, field
from functx.core.tracebacks import api_boundary
from functx.core.tracer import current_builder
from functx.core.tracing import trace_closed
from functx.core.tree import TreeDef
from functx.core.types import ShapedArray
from functx.core.typing import Avals, Dim, Dims, Flags, Function, PyTree, Value, Values
from functx.custom.drawing_functions import StateThreading, call_with_states, states_moved_on
from functx.custom.rule_tracing import (
    Activity,
    Captures,
    LazyRules,
    Rules,
    RuleTrace,
    RuleTracing,
    SavedRules,  # noqa: F401 - the texts of calls name it
    TracedRule,
    rule_tracing,
    transform_rules,
)
from functx.ops.operands import batch_size
from functx.transforms.aliasing import call_outside_trace
from functx.transforms.argument_names import check_callable, copy_function_metadata, function_name
from functx.transforms.batching import Batch, BatchWithInferredOutDims
from functx.transforms.symbolic_zeros import continued_state, state_operand
from functx.transforms.tracing_api import avals_of, trace_function

if TYPE_CHECKING:
    from functx.core.typing import IRValue
    from functx.lowering.stablehlo_emitter import LoweringContext


class CallInfo(NamedTuple):
    """The arguments that are not traced, and the types and structures of one call."""

    nondiff: tuple[PyTree, ...]
    num_args: int
    in_tree: TreeDef
    avals: Avals
    out_avals: Avals
    out_tree: TreeDef


Item = TypeVar("Item")


class CustomFunction:
    """A function with user-defined rules, of any kind."""

    kind: str
    symbolic_zeros = False
    original: CustomFunction
    """The function of the user, if this one takes states of generators in its place."""

    def __init__(
        self,
        fun: Function,
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ):
        check_callable(fun, self.kind)
        copy_function_metadata(self, fun, self.kind)
        self.__name__ = function_name(fun)
        self.fun = fun
        self.original = self
        self.by_states: dict[Hashable, CustomFunction] = {}
        numbers = (nondiff_argnums,) if isinstance(nondiff_argnums, int) else tuple(nondiff_argnums)
        if not all(isinstance(n, int) for n in numbers) or len(set(numbers)) != len(numbers):
            raise ArgnumsError(f"{self!r}: nondiff_argnums must be distinct ints; got {numbers}")
        names = (nondiff_argnames,) if isinstance(nondiff_argnames, str) else nondiff_argnames
        self.nondiff_argnums = (
            tuple(sorted({*numbers, *map(self.parameter_index, names)})) if names else numbers
        )

    def __repr__(self) -> str:
        return f"{self.kind}({function_name(self.fun)})"

    def __getattr__(self, name: str) -> Any:
        """A method of the wrapped function that defines a rule of another kind."""
        if name in ("defjvp", "defjvps", "defvjp", "def_vmap") and "fun" in self.__dict__:
            return getattr(self.fun, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def rule_functions(self) -> tuple[Function, ...]:
        """The user's rule functions; empty until they are defined."""
        raise NotImplementedError

    def with_states(self, threading: StateThreading) -> CustomFunction:
        """This function with the states that it draws from as last argument and second result.

        Raises ImplicitDrawError where its rules cannot return them.
        """
        raise implicit_draw_error(repr(self))

    def positive_nondiff_argnums(self, num_args: int) -> tuple[int, ...]:
        """The `nondiff_argnums` of a call with `num_args` arguments, counted from the first."""
        return tuple([n % num_args for n in self.nondiff_argnums])

    def is_function_of(self, other: CustomFunction) -> bool:
        """Whether `self` and `other` are one function of the user."""
        return self is other

    def trace_rules(
        self, call: CallInfo, trace: RuleTrace, values: Values, activity: Activity | None
    ) -> list[TracedRule]:
        """Trace the rules of one call to programs, each with the values that it captured.

        With symbolic zeros they are traced for one `activity`; None stands for a derivative in
        every argument, from every output.
        """
        raise NotImplementedError

    def trace_single_derivatives(self, call: CallInfo, trace: RuleTrace, values: Values) -> None:
        """Trace rules with symbolic zeros for each argument alone, to find the values that they capture."""
        if self.symbolic_zeros:
            count, out_count = [sum(inexact_mask(a)) for a in (call.avals, call.out_avals)]
            for i in range(count):
                varying = tuple([j == i for j in range(count)])
                with suppress(Exception):
                    self.trace_rules(call, trace, values, Activity(varying, (True,) * out_count))

    def assemble_rules(
        self, traced: Sequence[TracedRule], captures: Captures
    ) -> tuple[Program, ...]:
        """The programs of the rules in the form that the primitive holds."""
        raise NotImplementedError

    def make_primitive(self, primal: Program, rule: Rules, num_consts: int) -> Primitive:
        """The primitive of a call."""
        raise NotImplementedError

    @api_boundary
    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        if not self.rule_functions():
            raise MissingRuleError(
                f"{self!r}: the function must have a derivative rule before it is called; got none",
                fix=f"Give it one with def{self.kind.removeprefix('custom_')}.",
            )
        args = self.bind_positional(args, kwargs)
        tracing = rule_tracing(self)
        if current_builder.get() is None and not has_jax_tracers(args):
            return call_outside_trace(self.fun, *args)
        if tracing is RuleTracing.NEVER:
            return self.fun(*args)
        nondiff, dynamic = self.split_nondiff(args)
        leaves, in_tree = tree.flatten_with_key_data((dynamic, {}))
        function = self.bind_nondiff(self.fun, nondiff, len(args))
        avals = avals_of(leaves, self.kind, function, in_tree)
        primal = trace_function(function, in_tree, avals, self.kind, values=leaves)
        if states := states_moved_on(primal):
            return call_with_states(self, states, args)
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
            tracing = RuleTracing.DEFERRED
        except (CapturedWriteError, ImplicitDrawError) as error:
            if not isinstance(error.state, CapturedState):
                raise
            return call_with_states(self, (error.state,), args)
        except FunctxError:
            raise
        except Exception:
            # The rule refuses a derivative: the error is raised where that derivative is taken.
            tracing = RuleTracing.DEFERRED
            self.trace_single_derivatives(call, trace, leaves)
        captures.add([x for b in trace.builders for _, x in b.captures.values()])
        deferred = tracing is RuleTracing.DEFERRED or self.symbolic_zeros
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
        """The position of the parameter called `name`."""
        parameters = list(self.signature.parameters) if self.signature is not None else []
        if name not in parameters:
            raise ArgnumsError(
                f"{self!r}: nondiff_argnames must name parameters of the function; "
                f"got {name!r}, and parameters {parameters}"
            )
        return parameters.index(name)

    def bind_positional(
        self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> tuple[PyTree, ...]:
        """All arguments by position, with defaults filled in."""
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
        keyword_kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        parameters = self.signature.parameters
        keywords = [name for name in bound.arguments if parameters[name].kind in keyword_kinds]
        if keywords:
            raise ArgumentError(
                f"{self!r}: no argument may be keyword-only, since rules take them by position; "
                f"got {keywords}"
            )
        bound.apply_defaults()
        return bound.args

    def split_nondiff(
        self, args: tuple[PyTree, ...]
    ) -> tuple[tuple[PyTree, ...], tuple[PyTree, ...]]:
        """The arguments at `nondiff_argnums`, and the others, which are dynamic."""
        if not self.nondiff_argnums:
            return (), args
        if any(not -len(args) <= n < len(args) for n in self.nondiff_argnums):
            raise ArgnumsError(
                f"{self!r}: nondiff_argnums must name positional arguments; "
                f"got {self.nondiff_argnums} for {len(args)} of them"
            )
        nondiff = [n % len(args) for n in self.nondiff_argnums]
        return (
            tuple([args[n] for n in nondiff]),
            tuple([x for i, x in enumerate(args) if i not in nondiff]),
        )

    def bind_nondiff(self, fun: Function, nondiff: Sequence[PyTree], num_args: int) -> Function:
        """`fun` of `num_args` arguments as a function of the dynamic ones."""
        argnums = [n % num_args for n in self.nondiff_argnums]
        return bind_arguments(fun, dict(zip(argnums, nondiff, strict=True)), num_args)


def bind_arguments(
    fun: Function,
    static: dict[int, PyTree],
    num_args: int,
    static_keywords: dict[str, PyTree] | None = None,
) -> Function:
    """`fun` of `num_args` positional arguments as a function of those that are not in `static`.

    `static` holds arguments by position, `static_keywords` by name.
    """
    if not static and not static_keywords:
        return fun

    def dynamic_function(*dynamic: PyTree, **keywords: PyTree) -> PyTree:
        remaining = iter(dynamic)
        args = [static[i] if i in static else next(remaining) for i in range(num_args)]
        return fun(*args, **keywords, **(static_keywords or {}))

    dynamic_function.__name__ = function_name(fun)
    return dynamic_function


def has_jax_tracers(args: PyTree) -> bool:
    """Whether JAX traces the call with these `args`, so that the rules must reach JAX."""
    return any(isinstance(x, jax.core.Tracer) for x in tree.leaves(args))


def check_captures_not_differentiated(primitive: CustomDerivativeCall, active: Flags) -> None:
    """Raise GradientError if a captured value is active: no rule gives its derivative."""
    if primitive.num_consts and any(active[-primitive.num_consts :]):
        raise GradientError(
            f"{primitive.name}({primitive.primal.name}): the rule gives derivatives in the "
            "arguments alone; got a derivative in a value that the function closes over, or "
            "in an argument of nondiff_argnums",
            fix="Pass the value as an argument to differentiate, or take stop_gradient of it.",
        )


class CustomDerivativeCall(Primitive, abstract=True):
    """The outputs of `primal`, whose derivative `rule` defines.

    The last `num_consts` operands are captured values, which are not differentiated.
    """

    primal: Program
    rule: Rules
    num_consts: int = 0
    batch_rule: ClassVar[type[BatchRule]]
    not_executed = ("rule",)
    primal_field = "primal"
    multiple_results = True

    def explicit_operands(self, args: Sequence[Item]) -> Sequence[Item]:
        """The operands that are not captured."""
        return args[: len(args) - self.num_consts]

    def varying(self, args: Values | Avals, active: Flags) -> tuple[bool, ...]:
        """For each inexact operand that is not captured, whether it is active."""
        return tuple(
            select_where(self.explicit_operands(active), inexact_mask(self.explicit_operands(args)))
        )

    def abstract_eval(self, *avals: ShapedArray) -> Avals:
        check_operands(self, avals, self.primal.in_avals)
        return self.primal.out_avals

    def batch(self, args: Values, dims: Dims) -> tuple[Values, Dims]:
        size = batch_size(args, dims)
        out_dims = self.batched_out_dims(size, tuple(dims))
        primal = cached_rewrite(Batch(size, tuple(dims), out_dims), self.primal)
        inexact = tuple(inexact_mask(self.explicit_operands(args)))
        batch_rule = self.batch_rule(size, tuple(dims), inexact, out_dims)
        batched = type(self)(primal, transform_rules(self.rule, batch_rule), self.num_consts)
        return batched(*args), list(out_dims)

    def batched_out_dims(self, size: int, dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """The batch dimensions of the outputs: the first one, but none for a state that the batch shares."""
        avals = self.primal.out_avals
        if STATE_AVAL not in avals:
            return (0,) * len(avals)
        _, inferred = cached_rewrite(BatchWithInferredOutDims(size, dims), self.primal)
        pairs = zip(avals, inferred, strict=True)
        return tuple([None if d is None and aval == STATE_AVAL else 0 for aval, d in pairs])

    def lower(self, ctx: LoweringContext, *values: IRValue) -> Sequence[IRValue]:
        return ctx.call(self.primal, values)


class BatchRule(Record):
    """The rewrite of a rule's programs to those for batches of `size` along `dims`.

    `inexact` marks the operands that have tangents and cotangents; `out_dims` are the batch dimensions
    of the outputs of the function.
    """

    size: int
    dims: tuple[Dim, ...]
    inexact: tuple[bool, ...]
    out_dims: tuple[Dim, ...]

    def __call__(self, programs: tuple[Program, ...]) -> tuple[Program, ...]:
        raise NotImplementedError


class BatchJVPRule(BatchRule):
    """The rewrite of a jvp rule to one for batches."""

    def __call__(self, programs: tuple[Program, ...]) -> tuple[Program, ...]:
        (rule,) = programs
        count = len(self.inexact)
        primal_dims, const_dims = self.dims[:count], self.dims[count:]
        in_dims = (*primal_dims, *select_where(primal_dims, self.inexact), *const_dims)
        out_dims = (*self.out_dims, *[0] * (len(rule.outputs) - len(self.out_dims)))
        return (cached_rewrite(Batch(self.size, in_dims, out_dims), rule),)


class BatchVJPRule(BatchRule):
    """The rewrite of a vjp rule, and of a further rule for forward mode, to those for batches."""

    def __call__(self, programs: tuple[Program, ...]) -> tuple[Program, ...]:
        forward, backward, *jvp_programs = programs
        _, inferred = cached_rewrite(BatchWithInferredOutDims(self.size, self.dims), forward)
        residual_dims = tuple(inferred[len(self.out_dims) :])
        out_dims = self.out_dims + residual_dims
        ct_dims = (0,) * (len(backward.inputs) - len(residual_dims))
        in_dims = tuple([d for d, on in zip(self.dims, self.inexact, strict=False) if on])
        batch_backward = BatchBackwardRule(self.size, (*ct_dims, *residual_dims), in_dims)
        batch_jvp = BatchJVPRule(self.size, self.dims, self.inexact, self.out_dims)
        return (
            cached_rewrite(Batch(self.size, self.dims, out_dims), forward),
            cached_rewrite(batch_backward, backward),
            *[batch_jvp((rule,))[0] for rule in jvp_programs],
        )


class BatchBackwardRule(Rewrite[Program]):
    """The rewrite of a backward program to one for batches.

    `cotangent_dims` has None for an operand that is not batched: its cotangent is the sum over
    the batch.
    """

    size: int
    in_dims: tuple[Dim, ...]
    cotangent_dims: tuple[Dim, ...]
    names: AxisNames = field(default_factory=batched_axis_names, kw_only=True)

    def __call__(self, program: Program) -> Program:
        out_dims = tuple([0 if d is None else d for d in self.cotangent_dims])
        batched = Batch(self.size, self.in_dims, out_dims, names=self.names)(program)

        def body(*xs: Value) -> list[Value]:
            outs = apply_program(batched, xs)
            return [
                ops.reduce_sum(x, (0,)) if d is None else x
                for x, d in zip(outs, self.cotangent_dims, strict=True)
            ]

        return trace_closed(body, batched.in_avals, name=batched.name)


@state_operand.register
def _state_of_custom_call(primitive: CustomDerivativeCall, output: int) -> int | None:
    return continued_state(primitive.primal, output)
