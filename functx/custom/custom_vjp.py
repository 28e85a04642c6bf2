"""`custom_vjp`: a function whose pullback of cotangents the user gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from functx import ops
from functx.core import tree
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.program_editing import apply_program
from functx.core.rewriting import cached_rewrite
from functx.core.samples import f32, sample
from functx.core.tracing import Tracer, aval_of, trace_closed
from functx.core.types import is_inexact
from functx.custom.custom_function import (
    BatchVJPRule,
    CallInfo,
    CustomDerivativeCall,
    CustomFunction,
    check_captures_not_differentiated,
)
from functx.custom.custom_jvp import CustomJVP, full_activity, trace_jvp_rule, transpose_primal
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
    RuleTrace,
    TracedRule,
    rule_programs,
)
from functx.transforms.dce import Subprogram, dependents_of, used_variables
from functx.transforms.decompose import decompose_missing_rules
from functx.transforms.linear_transpose import transpose_program
from functx.transforms.operand_masks import (
    indices_where,
    inexact_cotangents,
    inexact_mask,
    linear_mask,
    scatter_where,
    select_where,
    unflatten_tangents,
)
from functx.transforms.rule_checks import check_linear
from functx.transforms.tracing_api import as_decorator, check_callable


def custom_vjp(
    fun: Callable[..., Any] | None = None,
    nondiff_argnums: int | Sequence[int] = (),
    nondiff_argnames: str | Sequence[str] = (),
) -> Any:
    """`fun`, with a derivative that the user gives by `defvjp`, as a pullback.

    Every transform keeps to that derivative: reverse mode runs the rule, forward mode
    transposes it (which needs it to be linear in the cotangents), `vmap` maps it. Arguments
    at `nondiff_argnums`, or of the names in `nondiff_argnames`, are not differentiated and
    may be of any type, traced arrays too; the backward rule gets them first. Keywords and
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
    """What `custom_vjp` makes of a function."""

    kind = "custom_vjp"
    fwd: Callable[..., Any] | None = None
    bwd: Callable[..., Any] | None = None
    jvp: Callable[..., Any] | None = None

    def defvjp(
        self,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        symbolic_zeros: bool = False,
        optimize_remat: bool = False,
    ) -> None:
        """Set the rule.

        `fwd(*args)` returns `(output, residuals)`, where the residuals are a pytree. Arrays among
        them are traced, anything else (numbers, shapes, strings, functions) reaches the backward
        rule as it is. `bwd(*nondiff, residuals, ct)` returns a tuple of cotangents, one for each
        differentiable argument; None, for an argument or a part of one, stands for zero.
        Integer outputs have the cotangent None; integer arguments may be given None or
        zeros, of dtype `float0` or their own. With `symbolic_zeros`, each array that `fwd`
        gets is a `CustomVJPPrimal`, which says whether it is `perturbed`, and `bwd` gets a
        `SymbolicZero` for an output without a cotangent. `optimize_remat` changes nothing.
        """
        check_callable(fwd, f"{self!r}.defvjp")
        check_callable(bwd, f"{self!r}.defvjp")
        self.fwd, self.bwd, self.symbolic_zeros = fwd, bwd, symbolic_zeros

    def defjvp(self, jvp: Callable[..., Any]) -> Callable[..., Any]:
        """Set a rule for forward mode beside that of `defvjp`, and return it.

        It is as that of `custom_jvp`, and need not be the transpose of the other.
        """
        check_callable(jvp, f"{self!r}.defjvp")
        self.jvp = jvp
        return jvp

    def rule_functions(self) -> tuple[Callable[..., Any], ...]:
        if self.fwd is None or self.bwd is None:
            return ()
        return (self.fwd, self.bwd) if self.jvp is None else (self.fwd, self.bwd, self.jvp)

    def trace_rules(
        self, call: CallInfo, trace: RuleTrace, values: Sequence[Any], flow: Activity | None
    ) -> list[TracedRule]:
        assert self.fwd is not None and self.bwd is not None
        flow = flow or full_activity(call) if self.symbolic_zeros else None
        forward = self.argnums_partial(self.fwd, call.nondiff, call.num_args)
        first, residuals = trace_fwd_rule(repr(self), self.fwd, forward, call, trace, values, flow)
        second = trace_bwd_rule(repr(self), self.bwd, residuals, call, trace, values, flow)
        if self.jvp is None:
            return [first, second]
        return [first, second, trace_jvp_rule(repr(self), self.jvp, call, trace, values, None)]

    def assemble_rules(
        self, traced: Sequence[TracedRule], captures: Captures
    ) -> tuple[Program, ...]:
        (first, first_captured), (second, second_captured), *pushes = traced
        forward = captures.with_capture_inputs(first, first_captured)
        # What the backward rule captured is for it one more residual. With symbolic zeros that
        # may differ from one cotangent to the next, so all of them are handed on.
        if self.symbolic_zeros:
            second, second_captured = (
                captures.with_capture_inputs(second, second_captured),
                captures.values,
            )
        given = forward.inputs[len(forward.inputs) - len(captures.values) :]
        handed = [given[captures.index(x)] for x in second_captured]
        outputs = [*forward.outputs, *handed]
        return (
            Program(
                forward.name, forward.inputs, forward.equations, outputs, in_names=forward.in_names
            ),
            second,
            *[captures.with_capture_inputs(*push) for push in pushes],
        )

    def make_primitive(self, primal: Program, rule: Any, captured: int) -> Primitive:
        return CustomVJP(primal, rule, captured)


def trace_fwd_rule(
    owner: str,
    rule: Callable[..., Any],
    forward: Callable[..., Any],
    call: CallInfo,
    trace: RuleTrace,
    values: Sequence[Any],
    flow: Activity | None,
) -> tuple[TracedRule, Residuals]:
    """The program of `rule`, as `forward` of the dynamic arguments, and what it saves."""
    out = RuleResult(owner, rule)
    kept = Residuals.flatten(())

    def body(*xs: Any) -> list[Any]:
        nonlocal kept
        leaves: Sequence[Any] = xs
        if flow is not None:
            varying = iter(flow.varying)
            marks = [is_inexact(a.dtype) and next(varying) for a in call.avals]
            # Through the structure words are typed keys.
            given = tree.leaves(tree.unflatten(call.in_tree, xs))
            leaves = [CustomVJPPrimal(x, on) for x, on in zip(given, marks, strict=True)]
        args, _ = tree.unflatten(call.in_tree, leaves)
        value, saved = out.check_pair(forward(*args), "(output, residuals)")
        kept = Residuals.flatten(saved)
        return [*out.leaves(value, call.out_tree, call.out_avals), *kept.arrays]

    traced = trace(rule, body, call.avals, values)
    return traced, kept


def trace_bwd_rule(
    owner: str,
    rule: Callable[..., Any],
    saved: Residuals,
    call: CallInfo,
    trace: RuleTrace,
    values: Sequence[Any],
    flow: Activity | None,
) -> TracedRule:
    """The program of the backward `rule`, from cotangents and residuals to cotangents."""
    out = RuleResult(owner, rule, "the cotangents")
    ct_avals = [a for a in call.out_avals if is_inexact(a.dtype)]

    def body(*xs: Any) -> list[Any]:
        leaves = with_symbolic_zeros(
            call.out_tree, call.out_avals, xs[: len(ct_avals)], flow and flow.has_cotangent
        )
        ct = unflatten_tangents(call.out_tree, call.out_avals, leaves)
        found = rule(*call.nondiff, saved.unflatten(xs[len(ct_avals) :]), ct)
        args = call.in_tree.children()[0]
        count = len(args.children())
        if not isinstance(found, (tuple, list)) or len(found) != count:
            raise out.error(
                f"must be a tuple with a cotangent for each of {count} arguments; "
                f"got {describe_type(found)}"
            )
        return out.check_tangents(tuple(found), args, call.avals, "the arguments", any_width=True)

    # Python may ask for the value of a residual, which the forward rule can find.
    known = [None] * len(ct_avals) + [x if type(x) is Tracer else None for x in saved.arrays]
    avals = [*ct_avals, *[aval_of(x) for x in saved.arrays]]
    return trace(rule, body, avals, known if values else ())


def _examples() -> tuple[Program, tuple[Program, Program]]:
    def primal(x: Any, y: Any) -> list[Any]:
        return [ops.mul(ops.sin(x), y)]

    def forward(x: Any, y: Any) -> list[Any]:
        return [ops.mul(ops.sin(x), y), x, y]

    def backward(ct: Any, x: Any, y: Any) -> list[Any]:
        return [ops.mul(ct, ops.mul(ops.cos(x), y)), ops.mul(ct, ops.sin(x))]

    avals = [f32[3], f32[3]]
    return (
        trace_closed(primal, avals, name="example"),
        (
            trace_closed(forward, avals, name="example_fwd"),
            trace_closed(backward, [f32[3], *avals], name="example_bwd"),
        ),
    )


class CustomVJP(CustomDerivativeCall):
    """The outputs of `primal`, whose pullback is what the programs in `rule` say.

    The first takes the operands and gives the outputs and residuals. The second takes the
    cotangents of the inexact outputs and the residuals, and gives those of the inexact
    operands, except the last `captured`, which are not differentiated.
    """

    name = "custom_vjp"
    samples = (
        sample(
            f32[3],
            f32[3],
            dtypes=("f32",),
            primal=_examples()[0],
            rule=_examples()[1],
        ),
    )

    def forward(self, args, active):
        check_captures_not_differentiated(self, active)
        first, *_ = rule_programs(self.rule, self.activity(args, active))
        outs = apply_program(first, args)
        count = len(self.primal.outputs)
        return outs[:count], outs[count:]

    def vjp(self, cts, residuals, args, active):
        second = self.backward_program(args, active, cts)
        given = inexact_cotangents(cts, self.primal.out_avals)
        return scatter_where(apply_program(second, [*given, *residuals]), active)

    def activity(
        self, args: Sequence[Any], active: Sequence[bool], cts: Sequence[Any] | None = None
    ) -> Activity:
        """The derivative in the active operands, for cotangents that may be None for zero."""
        avals = self.primal.out_avals
        given = [
            cts is None or cts[i] is not None for i, a in enumerate(avals) if is_inexact(a.dtype)
        ]
        return Activity(self.varying(args, active), tuple(given))

    def backward_program(
        self, args: Sequence[Any], active: Sequence[bool], cts: Sequence[Any] | None = None
    ) -> Program:
        """The backward program for the active operands alone."""
        flow = self.activity(args, active, cts)
        _, second, *_ = rule_programs(self.rule, flow)
        return cached_rewrite(Subprogram(outputs=indices_where(flow.varying)), second)

    def jvp(self, primals, tangents):
        active = [t is not None for t in tangents]
        _, _, *push_rules = rule_programs(self.rule, self.activity(primals, active))
        if push_rules:
            return CustomJVP(self.primal, tuple(push_rules), self.captured).jvp(primals, tangents)
        outs, residuals = self.forward(primals, active)
        inexact = inexact_mask(self.primal.out_avals)
        second = decompose_missing_rules(self.backward_program(primals, active), "transpose")
        problem = (
            f"custom_vjp({self.primal.name}): in forward mode the backward rule must be linear in the "
            "cotangents, since it is transposed; got one that is not"
        )
        fix = (
            "Use reverse mode of functx (jax.grad of a function of functx asks for forward mode: take "
            "functx.grad), give the function a `defjvp` too, or use custom_jvp."
        )
        check_linear(second, second.inputs[: sum(inexact)], second.outputs, problem, fix)
        # The backward program is linear, and its transpose takes tangents forward.
        push = transpose_program(second, sum(inexact), problem, fix)
        given = [t for t in tangents if t is not None]
        return outs, scatter_where(apply_program(push, [*given, *residuals]), inexact)

    def transpose(self, cts, *args):
        linear = linear_mask(args)
        first, *_ = rule_programs(self.rule, self.activity(args, linear))
        linear_vars = dependents_of(select_where(first.inputs, linear), first.equations)
        second = self.backward_program(args, linear)
        count = len(self.primal.outputs)
        given_cts = len(second.inputs) - len(first.outputs) + count
        used = used_variables(second.equations, second.outputs)
        wanted = second.inputs[given_cts:]
        if any(
            a in linear_vars and v in used
            for a, v in zip(first.outputs[count:], wanted, strict=True)
        ):
            return transpose_primal(self.primal, cts, args)
        known = [i for i, on in enumerate(linear) if not on]
        values = Program(
            first.name,
            [first.inputs[i] for i in known],
            [e for e in first.equations if not any(v in linear_vars for v in e.outputs)],
            [a for a in first.outputs[count:] if a not in linear_vars],
        )
        rest = iter(apply_program(values, [args[i] for i in known]))
        residuals = [
            ops.zeros_like(a.aval) if a in linear_vars else next(rest)
            for a in first.outputs[count:]
        ]
        return self.vjp(cts, residuals, args, linear)

    def batched_rule(self, size, dims, inexact):
        return BatchVJPRule(size, dims, inexact, len(self.primal.outputs))
