"""`custom_vjp`: functions with a user-defined rule for reverse mode."""

from __future__ import annotations

from collections.abc import Sequence
from traceback import format_tb
from typing import Any

from functx import ops
from functx.core import tree
from functx.core.argument_errors import with_explained_errors
from functx.core.checking import check_operands
from functx.core.dead_code import dce_equations
from functx.core.errors import FunctxError
from functx.core.masks import (
    indices_where,
    inexact_mask,
    linear_mask,
    scatter_where,
    select_where,
    select_where_not,
)
from functx.core.primitive import Primitive
from functx.core.primitive_families import HasUserVJP
from functx.core.program import Atom, Equation, Program
from functx.core.program_calls import apply_program
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.samples import LazySamples, f32, sample
from functx.core.tracebacks import filter_traceback
from functx.core.tracer import Tracer, aval_of
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Cotangents, Function, PyTree, Tangents, Value, Values
from functx.custom.custom_function import (
    BatchVJPRule,
    CallInfo,
    CustomDerivativeCall,
    CustomFunction,
    check_captures_not_differentiated,
)
from functx.custom.custom_jvp import CustomJVP, full_activity, trace_jvp_rule
from functx.custom.drawing_functions import StateThreading
from functx.custom.rule_results import (
    CustomVJPPrimal,
    RuleResult,
    describe_type,
    with_symbolic_zeros,
)
from functx.custom.rule_tracing import (
    Activity,
    Captures,
    Residuals,
    Rules,
    RuleTrace,
    TracedRule,
    references_among,
    rule_programs,
)
from functx.ops.autodiff import raise_refusal, refused
from functx.transforms.argument_names import as_decorator, check_callable
from functx.transforms.dce import Subprogram, dependents_of, used_variables
from functx.transforms.decompose import decompose_missing_rules
from functx.transforms.linear_transpose import transpose_call, transpose_program
from functx.transforms.rule_checks import check_linear, find_nonlinear_term
from functx.transforms.symbolic_zeros import is_zero_array
from functx.transforms.tangents import unflatten_tangents


def custom_vjp(
    fun: Function | None = None,
    nondiff_argnums: int | Sequence[int] = (),
    nondiff_argnames: str | Sequence[str] = (),
) -> Any:
    """`fun` with a user-defined pullback, set by `defvjp`.

    Every transform uses that derivative: reverse mode runs the rule, forward mode
    transposes it (so it must be linear in the cotangents), `vmap` maps it. Arguments
    at `nondiff_argnums`, or of the names in `nondiff_argnames`, are not differentiated and
    may be of any type, also traced arrays; the backward rule gets them first. Keywords and
    defaults are resolved by the signature. Outside transforms it is `fun`.

    >>> import functx
    >>> @functx.custom_vjp
    ... def square(x):
    ...     return x * x
    >>> square.defvjp(lambda x: (x * x, x), lambda x, ct: (2.0 * x * ct,))
    >>> float(functx.grad(square)(3.0))
    6.0
    """
    if fun is None:
        return as_decorator(custom_vjp, locals())
    return CustomVJPFunction(fun, nondiff_argnums, nondiff_argnames)


class CustomVJPFunction(CustomFunction):
    """A function with a rule for reverse mode, the result of `custom_vjp`."""

    kind = "custom_vjp"
    fwd: Function | None = None
    bwd: Function | None = None
    jvp: Function | None = None
    jvp_symbolic_zeros = False
    """Whether the rule for forward mode gets symbolic zeros, too."""

    @with_explained_errors
    def defvjp(
        self,
        fwd: Function,
        bwd: Function,
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:
        """Set the rule.

        `fwd(*args)` returns `(output, residuals)`, where the residuals are a pytree. Arrays among
        them are traced; all other leaves (numbers, shapes, strings, functions) are passed to the
        backward rule unchanged. `bwd(*nondiff, residuals, ct)` returns a tuple of cotangents, one
        for each differentiable argument; None, for an argument or a part of one, stands for zero.
        Integer outputs have the cotangent None; the cotangent of an integer argument may be None
        or zeros, of dtype `float0` or of the argument. With `symbolic_zeros`, each array that
        `fwd` gets is a `CustomVJPPrimal`, whose flag is `perturbed`, and `bwd` gets a
        `SymbolicZero` for an output without a cotangent. An error that `bwd` raises is raised
        only where one of its cotangents is needed. `optimize_remat` has no effect.
        """
        check_callable(fwd, f"{self!r}.defvjp")
        check_callable(bwd, f"{self!r}.defvjp")
        self.fwd, self.bwd, self.symbolic_zeros = fwd, bwd, symbolic_zeros

    @with_explained_errors
    def defjvp(self, jvp: Function) -> Function:
        """Set a rule for forward mode, in addition to that of `defvjp`, and return it.

        It has the form of the rule of `custom_jvp`, and need not be the transpose of the other.
        """
        check_callable(jvp, f"{self!r}.defjvp")
        self.jvp = jvp
        return jvp

    def rule_functions(self) -> tuple[Function, ...]:
        if self.fwd is None or self.bwd is None:
            return ()
        return (self.fwd, self.bwd) if self.jvp is None else (self.fwd, self.bwd, self.jvp)

    def with_states(self, threading: StateThreading) -> CustomFunction:
        assert self.fwd is not None and self.bwd is not None
        numbers = self.positive_nondiff_argnums(threading.num_args)
        drawn = CustomVJPFunction(threading.function(self.fun), numbers)
        rules = threading.forward_rule(self.fwd), threading.backward_rule(self.bwd)
        drawn.defvjp(*rules, symbolic_zeros=self.symbolic_zeros)
        if self.jvp is not None:
            drawn.defjvp(threading.jvp_rule(self.jvp))
            drawn.jvp_symbolic_zeros = self.jvp_symbolic_zeros
        return drawn

    def trace_rules(
        self, call: CallInfo, trace: RuleTrace, values: Values, activity: Activity | None
    ) -> list[TracedRule]:
        assert self.fwd is not None and self.bwd is not None
        activity = activity or full_activity(call) if self.symbolic_zeros else None
        fun = self.bind_nondiff(self.fwd, call.nondiff, call.num_args)
        fwd, residuals = trace_fwd_rule(repr(self), self.fwd, fun, call, trace, values, activity)
        bwd = trace_bwd_rule(repr(self), self.bwd, residuals, call, trace, values, activity)
        if self.jvp is None:
            return [fwd, bwd]
        jvp = trace_jvp_rule(
            repr(self),
            self.jvp,
            call,
            trace,
            values,
            activity if self.jvp_symbolic_zeros else None,
        )
        return [fwd, bwd, jvp]

    def assemble_rules(
        self, traced: Sequence[TracedRule], captures: Captures
    ) -> tuple[Program, ...]:
        fwd, (backward, backward_captures), *jvp_rules = traced
        forward = captures.with_capture_inputs(*fwd)
        # Values that the backward rule captures are further residuals. With symbolic zeros they
        # may differ from one activity to the next, so all captured values are residuals.
        if self.symbolic_zeros:
            backward = captures.with_capture_inputs(backward, backward_captures)
            backward_captures = captures.values
        capture_inputs = forward.inputs[len(forward.inputs) - len(captures.values) :]
        captured_residuals = [capture_inputs[captures.index(x)] for x in backward_captures]
        return (
            replace_program_fields(forward, outputs=[*forward.outputs, *captured_residuals]),
            backward,
            *[captures.with_capture_inputs(*rule) for rule in jvp_rules],
        )

    def make_primitive(self, primal: Program, rule: Rules, num_consts: int) -> Primitive:
        return CustomVJP(primal, rule, num_consts)


def trace_fwd_rule(
    owner: str,
    rule: Function,
    forward: Function,
    call: CallInfo,
    trace: RuleTrace,
    values: Values,
    activity: Activity | None,
) -> tuple[TracedRule, Residuals]:
    """The program of the forward `rule`, called as `forward(*dynamic)`, and its residuals."""
    out = RuleResult(owner, rule)
    residuals = Residuals.flatten(())
    references: list[int] = []

    def body(*xs: Value) -> list[Value]:
        nonlocal residuals
        leaves: Sequence[PyTree] = xs
        if activity is not None:
            varying = iter(activity.varying)
            perturbed = [is_inexact(a.dtype) and next(varying) for a in call.avals]
            # The structure makes typed keys of key data.
            typed = tree.leaves(tree.unflatten(call.in_tree, xs))
            leaves = [CustomVJPPrimal(x, on) for x, on in zip(typed, perturbed, strict=True)]
        args, _ = tree.unflatten(call.in_tree, leaves)
        references.extend(references_among(xs, args))
        value, saved = out.check_pair(forward(*args), "(output, residuals)")
        residuals = Residuals.flatten(saved)
        return [*out.check_output(value, call.out_tree, call.out_avals), *residuals.arrays]

    traced = trace(rule, body, call.avals, values, references)
    return traced, residuals


def trace_bwd_rule(
    owner: str,
    rule: Function,
    residuals: Residuals,
    call: CallInfo,
    trace: RuleTrace,
    values: Values,
    activity: Activity | None,
) -> TracedRule:
    """The program of the backward `rule`, from cotangents and residuals to cotangents.

    If the rule raises an error of the user's code, its cotangents are `refused`: the error is
    raised where one of them is needed.
    """
    out = RuleResult(owner, rule, "the cotangents")
    ct_avals = [a for a in call.out_avals if is_inexact(a.dtype)]
    references: list[int] = []

    def body(*xs: Value) -> list[Value]:
        leaves = with_symbolic_zeros(
            call.out_tree, call.out_avals, xs[: len(ct_avals)], activity and activity.has_cotangent
        )
        ct = unflatten_tangents(call.out_tree, call.out_avals, leaves)
        saved = residuals.unflatten(xs[len(ct_avals) :])
        references.extend(references_among(xs, saved))
        takes = "residuals and a cotangent" + " after the nondiff arguments" * bool(call.nondiff)
        cts = out.call(takes, *call.nondiff, saved, ct)
        args = call.in_tree.children()[0]
        count = len(args.children())
        if not isinstance(cts, (tuple, list)) or len(cts) != count:
            raise out.error(
                f"must be a tuple with a cotangent for each of {count} arguments; "
                f"got {describe_type(cts)}"
            )
        return out.check_tangents(tuple(cts), args, call.avals, "the arguments", any_width=True)

    # The rule may make a residual concrete, if the forward rule computed it from known values.
    known = [None] * len(ct_avals) + [x if type(x) is Tracer else None for x in residuals.arrays]
    avals = [*ct_avals, *[aval_of(x) for x in residuals.arrays]]
    try:
        return trace(rule, body, avals, known if values else (), references)
    except FunctxError:
        raise
    except Exception as error:
        # The frames hold the user's arrays, so only their text is kept.
        filter_traceback(error)
        error.add_note("in the backward rule:\n" + "".join(format_tb(error.__traceback__)))
        refusal = error.with_traceback(None)
    return trace(rule, refuse_cotangents(refusal, call, len(ct_avals)), avals)


def refuse_cotangents(error: Exception, call: CallInfo, count: int) -> Function:
    """The backward rule in place of one that raised `error`, which it raises where a cotangent is used.

    Its first `count` operands are the cotangents of the outputs.
    """
    in_avals = select_where(call.avals, inexact_mask(call.avals))

    def refuse(*xs: Value) -> list[Value]:
        cts = refused(error, xs[:count], in_avals, [True] * len(in_avals))
        return [ct for ct in cts if ct is not None]

    return refuse


def _examples() -> tuple[Program, tuple[Program, Program]]:
    def primal(x: Value, y: Value) -> list[Value]:
        return [ops.mul(ops.sin(x), y)]

    def forward(x: Value, y: Value) -> list[Value]:
        return [ops.mul(ops.sin(x), y), x, y]

    def backward(ct: Value, x: Value, y: Value) -> list[Value]:
        return [ops.mul(ct, ops.mul(ops.cos(x), y)), ops.mul(ct, ops.sin(x))]

    avals = [f32[3], f32[3]]
    return (
        trace_closed(primal, avals, name="example"),
        (
            trace_closed(forward, avals, name="example_fwd"),
            trace_closed(backward, [f32[3], *avals], name="example_bwd"),
        ),
    )


class CustomVJP(CustomDerivativeCall, HasUserVJP):
    """The outputs of `primal`, whose pullback is defined by the programs in `rule`.

    The first takes the operands and gives the outputs and residuals. The second takes the
    cotangents of the inexact outputs and the residuals, and gives those of the inexact
    operands, except the last `num_consts`, which are not differentiated. A third is a rule for
    forward mode.
    """

    name = "custom_vjp"
    batch_rule = BatchVJPRule
    samples = LazySamples(
        lambda: (
            sample(
                f32[3],
                f32[3],
                dtypes=("f32",),
                primal=_examples()[0],
                rule=_examples()[1],
            ),
        )
    )

    def forward(self, args: Values, active: Sequence[bool]) -> tuple[Values, Values]:
        check_captures_not_differentiated(self, active)
        forward, *_ = rule_programs(self.rule, self.activity(args, active))
        outs = apply_program(forward, args)
        count = len(self.primal.outputs)
        return outs[:count], outs[count:]

    def vjp(
        self, cts: Cotangents, residuals: Values, args: Values, active: Sequence[bool]
    ) -> Cotangents:
        backward = self.backward_program(args, active, cts)
        out_cts = ops.inexact_cotangents(cts, self.primal.out_avals)
        in_cts = apply_program(backward, [*out_cts, *residuals])
        # A cotangent of zero, which may be None in the rule, ends the derivative there.
        if all(ct is None for ct in cts):
            has_constant = cached_rewrite(ConstantTerms(len(out_cts)), backward)
            is_zero = [not on for on in has_constant]
        else:
            producers: dict[Atom, Equation] = {v: e for e in backward.equations for v in e.outputs}
            is_zero = [is_zero_array(a, producers) for a in backward.outputs]
        found = [None if zero else ct for ct, zero in zip(in_cts, is_zero, strict=True)]
        return scatter_where(found, active)

    def activity(
        self, args: Values, active: Sequence[bool], cts: Cotangents | None = None
    ) -> Activity:
        """The activity of the derivative in the active operands; a cotangent None is zero."""
        avals = self.primal.out_avals
        has_cotangent = [
            cts is None or cts[i] is not None for i, a in enumerate(avals) if is_inexact(a.dtype)
        ]
        return Activity(self.varying(args, active), tuple(has_cotangent))

    def backward_program(
        self, args: Values, active: Sequence[bool], cts: Cotangents | None = None
    ) -> Program:
        """The backward program for the active operands alone."""
        activity = self.activity(args, active, cts)
        _, backward, *_ = rule_programs(self.rule, activity)
        return cached_rewrite(Subprogram(outputs=indices_where(activity.varying)), backward)

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        active = [t is not None for t in tangents]
        _, _, *jvp_rules = rule_programs(self.rule, self.activity(primals, active))
        if jvp_rules:
            return CustomJVP(self.primal, tuple(jvp_rules), self.num_consts).jvp(primals, tangents)
        outs, residuals = self.forward(primals, active)
        tangent = self.tangent_call(self.backward_program(primals, active))
        out_tangents = tangent(*select_where(tangents, active), *residuals)
        return outs, scatter_where(out_tangents, inexact_mask(self.primal.out_avals))

    def tangent_call(self, backward: Program) -> CustomVJPTangent:
        """The primitive of the tangents, the transpose of `backward`."""
        return CustomVJPTangent(backward, self.primal.name)

    def transpose(self, cts: Cotangents, *args: Value) -> Cotangents:
        linear = linear_mask(args)
        forward, *_ = rule_programs(self.rule, self.activity(args, linear))
        linear_vars = dependents_of(select_where(forward.inputs, linear), forward.equations)
        backward = self.backward_program(args, linear)
        saved = forward.outputs[len(self.primal.outputs) :]
        residual_inputs = backward.inputs[len(backward.inputs) - len(saved) :]
        used = used_variables(backward.equations, backward.outputs)
        if any(a in linear_vars and v in used for a, v in zip(saved, residual_inputs, strict=True)):
            return transpose_call(self.primal, cts, args, apply_program)
        known_program = Program(
            forward.name,
            select_where_not(forward.inputs, linear),
            [e for e in forward.equations if not any(v in linear_vars for v in e.outputs)],
            [a for a in saved if a not in linear_vars],
        )
        known = iter(apply_program(known_program, select_where_not(args, linear)))
        residuals = [ops.zeros_like(a.aval) if a in linear_vars else next(known) for a in saved]
        return self.vjp(cts, residuals, args, linear)


class ConstantTerms(Rewrite[tuple[bool, ...]]):
    """The analysis that marks the outputs that may be nonzero where the first `count` inputs are zero."""

    count: int

    def __call__(self, program: Program) -> tuple[bool, ...]:
        zero = program.inputs[: self.count]
        found = [
            find_nonlinear_term(dce_equations(program.equations, [a]), zero, [a])
            for a in program.outputs
        ]
        return tuple([term is not None for term in found])


def transpose_backward_rule(
    backward: Program, residuals: Values, problem: str, fix: str
) -> Program:
    """The program from tangents and `residuals` to tangents, the transpose of a backward program.

    Raises LinearityError with `problem` unless `backward` is linear in its inputs before the
    residuals.
    """
    backward = decompose_missing_rules(backward, "transpose")
    raise_refusal([backward])
    count = len(backward.inputs) - len(residuals)
    known = dict(zip(backward.inputs[count:], residuals, strict=True))
    check_linear(backward, backward.inputs[:count], backward.outputs, problem, fix, known)
    return transpose_program(backward, count, problem, fix)


class CustomVJPTangent(Primitive):
    """The tangents of the inexact outputs of `function`, by the transpose of its `backward` program.

    The operands are a tangent for each output of `backward`, then the residuals. Transposed, it is
    `backward` itself, which may be any function there: only forward mode needs a linear one.
    """

    name = "custom_vjp_tangent"
    backward: Program
    function: str
    not_executed = ("backward",)
    multiple_results = True
    samples = LazySamples(
        lambda: (
            sample(
                *[f32[3]] * 4,
                dtypes=("f32",),
                backward=_examples()[1][1],
                function="example",
            ),
        )
    )

    def abstract_eval(self, *avals: ShapedArray) -> Sequence[ShapedArray]:
        backward = self.backward
        count = len(backward.inputs) + len(backward.outputs) - len(avals)
        tangents, residuals = backward.in_avals[:count], backward.in_avals[count:]
        check_operands(self, avals, [*backward.out_avals, *residuals])
        return tangents

    def tangent_program(self, operands: Values) -> Program:
        """The program that computes the tangents."""
        return transpose_backward_rule(
            self.backward,
            operands[len(self.backward.outputs) :],
            f"custom_vjp({self.function}): in forward mode the backward rule must be linear in the "
            "cotangents, since it is transposed; got one that is not",
            "Use reverse mode, give the function a `defjvp` too, or use custom_jvp.",
        )

    def decompose(self, *operands: Value) -> Values:
        return apply_program(self.tangent_program(operands), operands)

    def transpose(self, cts: Cotangents, *args: Value) -> Cotangents:
        count, linear = len(self.backward.outputs), linear_mask(args)
        if any(linear[count:]):
            return transpose_call(self.tangent_program(args), cts, args, apply_program)
        out_cts = ops.instantiate_zeros(cts, self.backward.in_avals[: len(cts)])
        in_cts = apply_program(self.backward, [*out_cts, *args[count:]])
        return [*in_cts, *[None] * len(args[count:])]
