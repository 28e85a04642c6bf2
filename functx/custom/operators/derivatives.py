"""The derivatives of operators, by the backward and jvp rules that users register.

A backward rule has one of two forms: `save_for_backward` with `backward`, whose gradients are a
dictionary by name, or `register_autograd`, whose context holds the saved values.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from functx import ops
from functx.core.concretization import is_being_differentiated
from functx.core.context import ContextValue
from functx.core.errors import NoAutogradFormulaError, OperatorRuleError, RegistrationError
from functx.core.masks import inexact_mask, linear_mask, scatter_where, select_where
from functx.core.primitive import Primitive
from functx.core.rewriting import apply
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.tracing import trace
from functx.core.types import is_inexact
from functx.core.typing import Cotangent, Cotangents, Flags, PyTree, Tangents, Value, Values
from functx.custom.custom_vjp import transpose_backward_rule
from functx.custom.operators.arguments import OperatorPrimitive
from functx.custom.operators.outputs import GradientChecker, Gradients, OutputTypes
from functx.custom.operators.registry import (
    AUTOGRAD_RULE,
    BACKWARD_RULE,
    JVP_RULE,
    SAVE_RULE,
    Registration,
    get_rule,
)
from functx.custom.rule_results import RuleResult
from functx.custom.rule_tracing import Residuals, inline_rule
from functx.ops.autodiff import refused
from functx.transforms.reverse_mode import apply_vjp_rule, linearize_jvp_rule, transpose_jvp_rule


class BackwardContext:
    """The first argument of a `backward` rule; reserved, without attributes."""

    __slots__ = ()


class AutogradContext:
    """The context of an autograd formula: `setup_context` sets attributes, the backward rule reads them."""

    def __init__(self, needs_input_grad: tuple[bool | list[bool], ...]):
        self.__dict__["_functx_saved"] = ()
        self.__dict__["_functx_needs"] = needs_input_grad

    @property
    def needs_input_grad(self) -> tuple[bool | list[bool], ...]:
        """For each positional argument that was passed, whether it is differentiated.

        A list of arrays has a list of flags.
        """
        return self.__dict__["_functx_needs"]

    @property
    def saved_tensors(self) -> tuple[Value, ...]:
        """The arrays that were passed to `save_for_backward`."""
        return self.__dict__["_functx_saved"]

    def save_for_backward(self, *arrays: Value) -> None:
        """Save arrays for the backward rule, which reads them as `saved_tensors`."""
        self.__dict__["_functx_saved"] = arrays


class BackwardByName(NamedTuple):
    """`save_for_backward(inputs, output)` and `backward(ctx, saved, *grads)`."""

    save_rule: Registration
    rule: Registration

    def saved_values(
        self, call: OperatorPrimitive, operands: Values, output: PyTree, active: Flags
    ) -> PyTree:
        """The result of `save_for_backward` for the operands and the output of a call."""
        return self.save_rule(call.named_arguments(operands), output)

    def gradients(
        self, saved: PyTree, grads: Sequence[PyTree], checker: GradientChecker
    ) -> Gradients:
        """The cotangents of the operands, for `grads` of the results."""
        return checker.from_dict(self.rule(BackwardContext(), saved, *grads))


class BackwardByContext(NamedTuple):
    """`setup_context(ctx, inputs, output)` and `backward(ctx, *grads)`."""

    rule: Registration

    def saved_values(
        self, call: OperatorPrimitive, operands: Values, output: PyTree, active: Flags
    ) -> PyTree:
        """The attributes of the context after `setup_context`."""
        flags = call.unflatten(active, lambda _: False)[: call.num_passed()]
        needs = [[bool(on) for on in f] if isinstance(f, list) else bool(f) for f in flags]
        context = AutogradContext(tuple(needs))
        setup = self.rule.option
        if setup is not None:
            inputs, keywords = call.call_arguments(operands)
            setup_args = {"ctx": context, "inputs": tuple(inputs), "output": output}
            if keywords:
                setup_args["keyword_only_inputs"] = keywords
            self.rule.run(setup, (), setup_args)
        return dict(context.__dict__)

    def gradients(
        self, saved: PyTree, grads: Sequence[PyTree], checker: GradientChecker
    ) -> Gradients:
        """The cotangents of the operands, for `grads` of the results."""
        context = AutogradContext(())
        context.__dict__.update(saved)
        return checker.from_tuple(self.rule(context, *grads))


BackwardRule: TypeAlias = BackwardByName | BackwardByContext


@lru_cache(maxsize=1024)
def no_autograd_formula_error(qualname: str) -> NoAutogradFormulaError:
    """The error that an operator without a derivative rule is differentiated."""
    return NoAutogradFormulaError(
        f"{qualname}: an operator must have a derivative rule to be differentiated; got none, and a "
        "result that a derivative needs",
        fix="Register one: register_autograd(backward, setup_context=...), save_for_backward with "
        "backward, or def_jvp; or take functx.stop_gradient of its arguments.",
    )


_calls_being_transposed: ContextVar[tuple[Primitive, ...]] = ContextVar("transposing", default=())


class DifferentiableCall(OperatorPrimitive, abstract=True):
    """A call of an operator whose derivatives are those of its registered rules."""

    def backward_rule(self) -> BackwardRule | None:
        """The backward rule that is registered; None if there is none.

        Raises RegistrationError if only one of `save_for_backward` and `backward` is registered.
        """
        operator = self.operator
        autograd = get_rule(operator, AUTOGRAD_RULE)
        if autograd is not None:
            return BackwardByContext(autograd)
        save, backward = get_rule(operator, SAVE_RULE), get_rule(operator, BACKWARD_RULE)
        if save is not None and backward is not None:
            return BackwardByName(save, backward)
        registered = save or backward
        if registered is None:
            return None
        missing = BACKWARD_RULE if registered is save else SAVE_RULE
        raise RegistrationError(
            f"{operator.qualname}: save_for_backward and backward must both be registered for a "
            f"derivative; got {registered.kind} alone, registered at {registered.location}, and no "
            f"{missing}",
            fix=f"Register the other half: @{operator.__name__}.{missing}.",
            source=registered.source,
        )

    def check_not_declaration_only(self) -> None:
        """Raise NoAutogradFormulaError if `define` declared the operator and it has no jvp rule."""
        if self.operator.is_declaration and get_rule(self.operator, JVP_RULE) is None:
            raise no_autograd_formula_error(self.operator.qualname)

    def check_operands_not_differentiated(self, operands: Values) -> None:
        """Raise NoAutogradFormulaError for such an operator if an operand is differentiated."""
        if self.backward_rule() is None and any(
            type(x) is Tracer and is_inexact(x.dtype) and is_being_differentiated(x)
            for x in operands
        ):
            self.check_not_declaration_only()

    def differentiable_outputs(self, types: OutputTypes) -> list[bool]:
        """The mask of the results that have a derivative: inexact, and by `output_differentiability`.

        Raises OperatorRuleError if that marks a result that is no array.
        """
        operator = self.operator
        inexact = inexact_mask(types.avals)
        rule = get_rule(operator, BACKWARD_RULE)
        if rule is None or rule.option is None or get_rule(operator, AUTOGRAD_RULE) is not None:
            return inexact
        stated = rule.option
        for i, (on, result) in enumerate(zip(stated, operator.schema.new_returns, strict=True)):
            if on and not result.type.is_array:
                raise OperatorRuleError(
                    f"{operator.qualname}: output_differentiability must be False for a result that is no array; "
                    f"got True for output {i}, of type {result.type}",
                    fix="Pass False there.",
                    source=rule.source,
                )
        return [a and b for a, b in zip(inexact, types.per_leaf(stated), strict=True)]

    def forward(self, args: Values, active: Flags) -> tuple[Values, PyTree]:
        rule = self.backward_rule()
        if rule is None:
            self.check_not_declaration_only()
            if self.effects and get_rule(self.operator, JVP_RULE) is not None:
                # The rule runs the effect, which must not take place again.
                linearized = linearize_jvp_rule(self, args, active, is_users_rule=True)
                return linearized.outs, linearized
            return self(*args), None
        self.differentiable_outputs(self.output_types_of(args))
        outs = self(*args)
        return outs, (rule, self.save_residuals(rule, args, outs, active))

    def save_residuals(
        self, rule: BackwardRule, args: Values, outs: Values, active: Flags
    ) -> Residuals:
        """The saved values of `rule` for the operands and the results of a call."""
        types = self.output_types_of(args)
        residuals = Residuals.flatten(())

        def body(*xs: Value) -> list[Value]:
            nonlocal residuals
            output = types.unflatten(self.operator.schema, xs[len(args) :])
            residuals = Residuals.flatten(rule.saved_values(self, xs[: len(args)], output, active))
            return list(residuals.arrays)

        operands = [*args, *outs[: len(types.avals)]]
        arrays, _ = inline_rule(f"{self.operator.__name__}_save", body, operands)
        return residuals._replace(arrays=arrays)

    def vjp(self, cts: Cotangents, saved: PyTree, args: Values, active: Flags) -> Cotangents:
        if saved is not None:
            rule, residuals = saved
            return self.apply_backward(rule, residuals, cts, args)
        if get_rule(self.operator, JVP_RULE) is not None:
            return transpose_jvp_rule(self, cts, args, active, is_users_rule=True)
        nonzero = [ct for ct in cts if ct is not None]
        error = no_autograd_formula_error(self.operator.qualname)
        return refused(error, nonzero, [*map(aval_of, args)], active)

    def apply_backward(
        self, rule: BackwardRule, residuals: Residuals, cts: Cotangents, args: Values
    ) -> list[Cotangent]:
        """The cotangents of the operands by the backward rule.

        It gets zeros for a cotangent None, and None for a result that is no array.
        """
        types = self.output_types_of(args)
        is_array = types.per_leaf([r.type.is_array for r in self.operator.schema.new_returns])
        out_cts = [
            None if not (on or array) else ops.zeros_like(aval) if ct is None or not on else ct
            for ct, aval, on, array in zip(
                cts, types.avals, self.differentiable_outputs(types), is_array, strict=False
            )
        ]
        has_cotangent = [ct is not None for ct in out_cts]
        num_cts = sum(has_cotangent)
        num_saved = len(residuals.arrays)
        nonzero: list[bool] = []

        def body(*xs: Value) -> list[Value]:
            grads = types.group_lists(scatter_where(xs[:num_cts], has_cotangent))
            checker = GradientChecker(self, rule.rule, xs[num_cts + num_saved :])
            saved = residuals.unflatten(xs[num_cts : num_cts + num_saved])
            in_cts = rule.gradients(saved, grads, checker)
            nonzero[:] = [ct is not None for ct in in_cts]
            return [ct for ct in in_cts if ct is not None]

        operands = [*[ct for ct in out_cts if ct is not None], *residuals.arrays, *args]
        in_cts, _ = inline_rule(f"{self.operator.__name__}_backward", body, operands)
        return scatter_where(in_cts, nonzero)

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        rule = get_rule(self.operator, JVP_RULE)
        if rule is not None:
            return self.jvp_by_rule(rule, primals, tangents)
        if self.backward_rule() is not None:
            return self.jvp_by_transpose(primals, tangents)
        self.check_not_declaration_only()
        outs = self(*primals)
        nonzero = [t for t in tangents if t is not None]
        error = no_autograd_formula_error(self.operator.qualname)
        return outs, refused(error, nonzero, [*map(aval_of, outs)], inexact_mask(outs))

    def jvp_by_rule(
        self, rule: Registration, primals: Values, tangents: Tangents
    ) -> tuple[Values, Tangents]:
        """The results and their tangents by the user's rule for forward mode."""
        types = self.output_types_of(primals)
        avals = list(types.avals)
        result = RuleResult(self.operator.qualname, rule.fun)
        inexact = inexact_mask(primals)
        in_tangents = ops.instantiate_zeros(
            select_where(tangents, inexact), select_where(primals, inexact)
        )

        has_run = False

        def body(*xs: Value) -> list[Value]:
            nonlocal has_run
            primal_arguments = self.named_arguments(xs[: len(primals)])
            tangent_leaves = scatter_where(xs[len(primals) :], inexact)
            pair = rule(primal_arguments, self.named_arguments(tangent_leaves, lambda _: None))
            called = [eqn.primitive for eqn in current_builder.require().equations]
            has_run = any([self.effects & primitive.effects for primitive in called])
            return result.check_jvp(pair, types.structure(self.operator.schema), avals)

        outs, _ = inline_rule(f"{self.operator.__name__}_jvp", body, [*primals, *in_tangents])
        if self.effects and not has_run:
            self(*primals)
        return outs[: len(avals)], scatter_where(outs[len(avals) :], inexact_mask(avals))

    def jvp_by_transpose(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        """The results and their tangents by the transpose of the backward rule."""
        active = [t is not None for t in tangents]
        outs, (rule, residuals) = self.forward(primals, active)
        differentiable = self.differentiable_outputs(self.output_types_of(primals))
        avals = [aval_of(x) for x in select_where(outs, differentiable)]

        def body(*xs: Value) -> list[Value]:
            cts = scatter_where(xs, differentiable)
            in_cts = self.apply_backward(rule, residuals, cts, primals)
            return ops.instantiate_zeros(
                select_where(in_cts, active), select_where(primals, active)
            )

        program, captured = trace(body, avals, name=f"{self.operator.__name__}_pullback")
        tangent_program = transpose_backward_rule(
            program,
            captured,
            f"{self.operator.qualname}: in forward mode its {rule.rule.kind}, registered at "
            f"{rule.rule.location}, must be linear in the cotangents, since it is transposed; "
            "got one that is not",
            "Let every term have a cotangent as a factor, use reverse mode, or give the operator a "
            "rule with def_jvp.",
        )
        out_tangents = apply(None, tangent_program, [*select_where(tangents, active), *captured])
        return outs, scatter_where(out_tangents, differentiable)

    def transpose(self, cts: Cotangents, *args: Value) -> Cotangents:
        # The derivative of a linear function is the same everywhere, so it is taken at zero.
        linear = linear_mask(args)
        values = [ops.zeros_like(x) if on else x for x, on in zip(args, linear, strict=True)]
        outer_calls = _calls_being_transposed.get()
        if self in outer_calls:
            raise NoAutogradFormulaError(
                f"{self.operator.qualname}: an operator whose jvp rule calls it on tangents must have a "
                "backward rule too, to be transposed in reverse mode; got none",
                fix="Register one: register_autograd(backward, setup_context=...).",
            )
        with ContextValue(_calls_being_transposed, (*outer_calls, self)):
            in_cts = self.vjp_at_zero(cts, values, linear)
        return [ct if on else None for ct, on in zip(in_cts, linear, strict=True)]

    def vjp_at_zero(self, cts: Cotangents, args: Values, linear: Flags) -> Sequence[Cotangent]:
        """The cotangents of the operands, where the `linear` ones are zero.

        The effect of an operator with one result takes place once: in its backward rule if that
        has one, else in a call.
        """
        rule, types = self.backward_rule(), self.output_types_of(args)
        if rule is None or not self.effects or self.differentiable_outputs(types) != [True]:
            _, saved = self.forward(args, linear)
            return apply_vjp_rule(self, list(cts), saved, args, linear)
        # A linear function is zero at zero. Of several results, some may not be linear.
        outs = [ops.zeros_like(aval) for aval in types.avals]
        equations = current_builder.require().equations
        start = len(equations)
        saved = rule, self.save_residuals(rule, args, outs, linear)
        in_cts = apply_vjp_rule(self, list(cts), saved, args, linear)
        if not any([self.effects & eqn.primitive.effects for eqn in equations[start:]]):
            self(*args)
        return in_cts
