"""`custom_jvp`: functions with a user-defined rule for forward mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from functx import ops
from functx.core import tree
from functx.core.argument_errors import with_explained_errors
from functx.core.dead_code import dce_equations
from functx.core.errors import ArgumentError, RuleError
from functx.core.masks import (
    indices_where,
    inexact_mask,
    scatter_where,
    select_where,
    select_where_not,
)
from functx.core.primitive import Primitive
from functx.core.program import Atom, Program, Var
from functx.core.program_calls import apply_program
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.samples import LazySamples, f32, sample
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Cotangents, Function, PyTree, Tangents, Value, Values
from functx.custom.custom_function import (
    BatchJVPRule,
    CallInfo,
    CustomDerivativeCall,
    CustomFunction,
    check_captures_not_differentiated,
)
from functx.custom.drawing_functions import StateThreading
from functx.custom.rule_results import RuleResult, rule_source, with_symbolic_zeros
from functx.custom.rule_tracing import (
    Activity,
    Captures,
    Rules,
    RuleTrace,
    TracedRule,
    references_among,
    rule_programs,
)
from functx.transforms.argument_names import as_decorator, check_callable, function_name
from functx.transforms.dce import Subprogram, dependents_of
from functx.transforms.decompose import decompose_missing_rules
from functx.transforms.linear_transpose import transpose_call, transpose_program
from functx.transforms.rule_checks import check_linear
from functx.transforms.symbolic_zeros import ZeroPropagation, is_zero_literal, zero_filled_variables
from functx.transforms.tangents import unflatten_tangents


def custom_jvp(
    fun: Function | None = None,
    nondiff_argnums: int | Sequence[int] = (),
    nondiff_argnames: str | Sequence[str] = (),
) -> Any:
    """`fun` with a user-defined derivative, set by `defjvp` or `defjvps`.

    Every transform uses that derivative: forward mode runs the rule, reverse mode
    transposes it, `vmap` maps it. Arguments at `nondiff_argnums`, or of the names in
    `nondiff_argnames`, are not differentiated and may be of any type; the rule gets them
    first. Keywords and defaults are resolved by the signature. Outside transforms it is `fun`.

    >>> import functx
    >>> @functx.custom_jvp
    ... def square(x):
    ...     return x * x
    >>> @square.defjvp
    ... def square_jvp(primals, tangents):
    ...     (x,), (t,) = primals, tangents
    ...     return square(x), 2.0 * x * t
    >>> float(functx.grad(square)(3.0))
    6.0
    """
    if fun is None:
        return as_decorator(custom_jvp, locals())
    return CustomJVPFunction(fun, nondiff_argnums, nondiff_argnames)


class CustomJVPFunction(CustomFunction):
    """A function with a rule for forward mode, the result of `custom_jvp`."""

    kind = "custom_jvp"
    jvp: Function | None = None

    @with_explained_errors
    def defjvp(self, jvp: Function, symbolic_zeros: bool = False) -> Function:
        """Set the rule, and return it.

        `jvp(*nondiff, primals, tangents)` returns `(output, output tangent)`, linear in the
        tangents. Integers have the tangent None; their output tangent may be None or zeros of
        dtype `float0`. None stands for zero, for a part or for all of the output tangent. With
        `symbolic_zeros`, an argument that does not vary has a `SymbolicZero` as its tangent, and
        an output tangent may be one.
        """
        check_callable(jvp, f"{self!r}.defjvp")
        self.jvp, self.symbolic_zeros = jvp, symbolic_zeros
        return jvp

    @with_explained_errors
    def defjvps(self, *jvps: Function | None) -> None:
        """Set a rule for each argument; the output tangent is the sum of their results.

        `jvps[i](t, output, *primals)` returns the output tangent for the tangent `t` of
        argument i. A rule None means that the output does not vary with the argument.
        """
        if self.nondiff_argnums:
            raise ArgumentError(
                f"{self!r}.defjvps: nondiff_argnums must be empty; got {self.nondiff_argnums}",
                fix="Use defjvp.",
            )
        rules = [rule for rule in jvps if rule is not None]
        for rule in rules:
            check_callable(rule, f"{self!r}.defjvps")

        def jvp(primals: Values, tangents: Tangents) -> tuple[PyTree, PyTree]:
            if len(jvps) != len(primals):
                raise RuleError(
                    f"{self!r}: defjvps must be given a rule for each argument; "
                    f"got {len(jvps)} for {len(primals)} arguments",
                    source=rule_source(rules[0]) if rules else None,
                )
            out = self(*primals)
            total = None
            for rule, t in zip(jvps, tangents, strict=True):
                if rule is not None and tree.leaves(t):
                    term = rule(t, out, *primals)
                    total = term if total is None else tree.map(ops.add, total, term)
            return out, total

        jvp.__name__ = f"{function_name(self.fun)}_jvps"
        if rules:
            jvp.__wrapped__ = rules[0]  # type: ignore[attr-defined]
        self.jvp, self.symbolic_zeros = jvp, False

    def rule_functions(self) -> tuple[Function, ...]:
        return () if self.jvp is None else (self.jvp,)

    def with_states(self, threading: StateThreading) -> CustomFunction:
        assert self.jvp is not None
        numbers = self.positive_nondiff_argnums(threading.num_args)
        drawn = CustomJVPFunction(threading.function(self.fun), numbers)
        drawn.defjvp(threading.jvp_rule(self.jvp), self.symbolic_zeros)
        return drawn

    def trace_rules(
        self, call: CallInfo, trace: RuleTrace, values: Values, activity: Activity | None
    ) -> list[TracedRule]:
        assert self.jvp is not None
        activity = activity or full_activity(call) if self.symbolic_zeros else None
        return [trace_jvp_rule(repr(self), self.jvp, call, trace, values, activity)]

    def assemble_rules(
        self, traced: Sequence[TracedRule], captures: Captures
    ) -> tuple[Program, ...]:
        return tuple([captures.with_capture_inputs(*rule) for rule in traced])

    def make_primitive(self, primal: Program, rule: Rules, num_consts: int) -> Primitive:
        return CustomJVP(primal, rule, num_consts)


def full_activity(call: CallInfo) -> Activity:
    """The activity of the derivative in every argument of a call, from every output."""
    return Activity(*[(True,) * sum(inexact_mask(a)) for a in (call.avals, call.out_avals)])


def trace_jvp_rule(
    owner: str,
    rule: Function,
    call: CallInfo,
    trace: RuleTrace,
    values: Values,
    activity: Activity | None,
) -> TracedRule:
    """The program of `rule`, which gives outputs and their tangents.

    With an `activity` the rule gets symbolic zeros.
    """
    out = RuleResult(owner, rule)
    tangent_avals = [a for a in call.avals if is_inexact(a.dtype)]
    references: list[int] = []

    def body(*xs: Value) -> list[Value]:
        count = len(call.avals)
        perturbed = activity and activity.varying
        leaves = with_symbolic_zeros(call.in_tree, call.avals, xs[count:], perturbed)
        primals, _ = tree.unflatten(call.in_tree, xs[:count])
        tangents, _ = unflatten_tangents(call.in_tree, call.avals, leaves)
        references.extend(references_among(xs, (primals, tangents)))
        takes = "primals and tangents" + " after the nondiff arguments" * bool(call.nondiff)
        pair = out.call(takes, *call.nondiff, primals, tangents)
        return out.check_jvp(pair, call.out_tree, call.out_avals)

    traced = trace(rule, body, [*call.avals, *tangent_avals], values, references)
    program, count = traced.program, len(call.avals)
    tangents = program.inputs[count : count + len(tangent_avals)]
    dependents = dependents_of(tangents, program.equations)
    if not dependents.isdisjoint(program.outputs[: len(call.out_avals)]):
        raise out.error("must not depend on the tangents; got one that does")
    return traced


def _examples() -> tuple[Program, tuple[Program]]:
    def primal(x: Value, y: Value) -> list[Value]:
        return [ops.mul(ops.sin(x), y)]

    def rule(x: Value, y: Value, dx: Value, dy: Value) -> list[Value]:
        return [
            ops.mul(ops.sin(x), y),
            ops.add(ops.mul(ops.mul(ops.cos(x), y), dx), ops.mul(ops.sin(x), dy)),
        ]

    avals = [f32[3], f32[3]]
    return (
        trace_closed(primal, avals, name="example"),
        (trace_closed(rule, [*avals, *avals], name="example_jvp"),),
    )


class CustomJVP(CustomDerivativeCall):
    """The outputs of `primal`, whose derivative is the program in `rule`.

    That program takes the operands of `primal`, the tangents of the inexact ones, and the
    last `num_consts` operands, which are not differentiated. It gives the outputs of
    `primal`, then the tangents of the inexact ones.
    """

    name = "custom_jvp"
    batch_rule = BatchJVPRule
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

    def split_rule(
        self, args: Values | Sequence[ShapedArray], active: Sequence[bool]
    ) -> tuple[Program, Program, tuple[bool, ...]]:
        """The `SplitJVPRule` of the rule for the `active` operands."""
        check_captures_not_differentiated(self, active)
        varying = self.varying(args, active)
        (rule,) = rule_programs(self.rule, Activity(varying, ()))
        split = SplitJVPRule(len(self.explicit_operands(args)), varying, len(self.primal.outputs))
        return cached_rewrite(split, decompose_missing_rules(rule, "transpose"))

    def varying_outputs(
        self, avals: Sequence[ShapedArray], active: Sequence[bool]
    ) -> Sequence[bool]:
        return self.split_rule(avals, active)[2]

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        active = [t is not None for t in tangents]
        values, tangent_program, nonzero = self.split_rule(primals, active)
        outs = apply_program(values, primals)
        count = len(self.primal.outputs)
        nonzero_tangents = select_where(tangents, active)
        out_tangents = apply_program(tangent_program, [*nonzero_tangents, *outs[count:]])
        return outs[:count], scatter_where(out_tangents, nonzero)

    def forward(self, args: Values, active: Sequence[bool]) -> tuple[Values, Values]:
        values, _, _ = self.split_rule(args, active)
        outs = apply_program(values, args)
        count = len(self.primal.outputs)
        return outs[:count], outs[count:]

    def vjp(
        self, cts: Cotangents, residuals: Values, args: Values, active: Sequence[bool]
    ) -> Cotangents:
        _, tangent_program, nonzero = self.split_rule(args, active)
        self.check_rule_is_linear(args, active)
        out_cts = select_where(cts, nonzero)
        outputs = indices_where([ct is not None for ct in out_cts])
        pullback = transpose_program(
            cached_rewrite(Subprogram(outputs=outputs), tangent_program),
            sum(active),
            self.linearity_requirement,
        )
        nonzero_cts = [ct for ct in out_cts if ct is not None]
        return scatter_where(apply_program(pullback, [*nonzero_cts, *residuals]), active)

    @property
    def linearity_requirement(self) -> str:
        return (
            f"custom_jvp({self.primal.name}): the rule must be linear in "
            "the tangents, to be transposed in reverse mode; got one that is not"
        )

    def check_rule_is_linear(self, args: Values, active: Sequence[bool]) -> None:
        """Raise LinearityError for a rule that adds a constant to a tangent."""
        varying = self.varying(args, active)
        (rule,) = rule_programs(self.rule, Activity(varying, ()))
        rule = decompose_missing_rules(rule, "transpose")
        count = len(self.explicit_operands(args))
        tangents = rule.inputs[count : count + len(varying)]
        out_tangents = rule.outputs[len(self.primal.outputs) :]
        check_linear(rule, tangents, out_tangents, self.linearity_requirement)

    def transpose(self, cts: Cotangents, *args: Value) -> Cotangents:
        return transpose_call(self.primal, cts, args, apply_program)


class SplitJVPRule(Rewrite[tuple[Program, Program, tuple[bool, ...]]]):
    """The split of a jvp rule into a program of values and a linear program of tangents.

    The rule takes `num_operands` operands, the tangents of the inexact ones, and captured values;
    it gives `outputs` outputs, then tangents. Tangents are zero where `varying` is False. The
    first program takes all operands and gives the outputs and residuals. The second takes the
    varying tangents and the residuals, and gives the nonzero output tangents. The third part is
    the mask of these, one flag an output.
    """

    num_operands: int
    varying: tuple[bool, ...]
    outputs: int

    def __call__(self, program: Program) -> tuple[Program, Program, tuple[bool, ...]]:
        end = self.num_operands + len(self.varying)
        tangents = program.inputs[self.num_operands : end]
        operands = [*program.inputs[: self.num_operands], *program.inputs[end:]]
        linear_vars = dependents_of(tangents, program.equations)
        is_value = [linear_vars.isdisjoint(eqn.inputs) for eqn in program.equations]
        values = select_where(program.equations, is_value)
        linear = select_where_not(program.equations, is_value)
        outs = program.outputs[: self.outputs]
        nonzero_tangents = select_where(tangents, self.varying)
        propagated = ZeroPropagation(linear, tangents, select_where_not(tangents, self.varying))
        out_tangents = scatter_where(
            [propagated.aliases.get(a, a) for a in program.outputs[self.outputs :]],
            inexact_mask([a.aval for a in outs]),
        )
        zeros = propagated.zeros | zero_filled_variables(values)
        nonzero = tuple([not (a is None or a in zeros or is_zero_literal(a)) for a in out_tangents])
        nonzero_outs = [
            a for a, on in zip(out_tangents, nonzero, strict=True) if on and a is not None
        ]
        linear = dce_equations(propagated.equations, nonzero_outs)
        defined = {v for e in linear for v in e.outputs} | set(nonzero_tangents)
        used: dict[Atom, None] = dict.fromkeys(
            a for atoms in [*[e.inputs for e in linear], nonzero_outs] for a in atoms
        )
        residuals = [a for a in used if type(a) is Var and a not in defined]
        results = [*outs, *residuals]
        inputs = [*nonzero_tangents, *residuals]
        return (
            Program(program.name, operands, dce_equations(values, results), results),
            Program(f"{program.name}_tangent", inputs, linear, nonzero_outs),
            nonzero,
        )
