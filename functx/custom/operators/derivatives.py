"""The derivatives of operators, by the backward and jvp rules that users register.

A backward rule has one of two forms: `save_for_backward` with `backward`, whose gradients are a
dictionary by name, or `register_autograd`, whose context holds the saved values.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from functx import ops
from functx.core import tree
from functx.core.concretization import is_being_differentiated
from functx.core.errors import NoAutogradFormulaError, OperatorRuleError, RegistrationError
from functx.core.rewriting import apply
from functx.core.tracer import Tracer, aval_of
from functx.core.tracing import trace
from functx.core.types import is_inexact
from functx.custom.operators.outputs import GradientChecker, Gradients, OutputTypes
from functx.custom.operators.registry import Registration, get_rule
from functx.custom.rule_results import RuleResult
from functx.custom.rule_tracing import Residuals, inline_rule
from functx.transforms.decompose import decompose_missing_rules
from functx.transforms.linear_transpose import transpose_program
from functx.transforms.operand_masks import (
    inexact_mask,
    instantiate_zeros,
    linear_mask,
    scatter_where,
    select_where,
)
from functx.transforms.refused import refused
from functx.transforms.reverse_mode import transpose_jvp_rule
from functx.transforms.rule_checks import check_linear

if TYPE_CHECKING:
    from functx.custom.operators.operator import Operator
    from functx.custom.operators.primitives import OperatorPrimitive


SAVE_RULE = "save_for_backward"
BACKWARD_RULE = "backward"
AUTOGRAD_RULE = "autograd formula"


class BackwardContext:
    """The first argument of a `backward` rule; reserved, without attributes."""

    __slots__ = ()


class AutogradContext:
    """The context of an autograd formula: `setup_context` sets attributes, the backward rule reads them."""

    def __init__(self, needs_input_grad: tuple[Any, ...]):
        self.__dict__["_functx_saved"] = ()
        self.__dict__["_functx_needs"] = needs_input_grad

    @property
    def needs_input_grad(self) -> tuple[Any, ...]:
        """For each positional argument that was passed, whether it is differentiated.

        A list of arrays has a list of flags.
        """
        return self.__dict__["_functx_needs"]  # type: ignore[no-any-return]

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The arrays that were passed to `save_for_backward`."""
        return self.__dict__["_functx_saved"]  # type: ignore[no-any-return]

    def save_for_backward(self, *arrays: Any) -> None:
        """Save arrays for the backward rule, which reads them as `saved_tensors`."""
        self.__dict__["_functx_saved"] = arrays


def _context_attributes(context: AutogradContext) -> dict[str, Any]:
    """The attributes that were set on a context, and the saved arrays."""
    return {k: v for k, v in context.__dict__.items() if k != "_functx_needs"}


def _restored_context(context: AutogradContext, attributes: dict[str, Any]) -> AutogradContext:
    """A copy of a context with these `attributes`."""
    restored = AutogradContext(context.needs_input_grad)
    restored.__dict__.update(attributes)
    return restored


class BackwardByName(NamedTuple):
    """`save_for_backward(inputs, output)` and `backward(ctx, saved, *grads)`."""

    save_rule: Registration
    rule: Registration

    def save(
        self,
        primitive: OperatorPrimitive,
        results: OutputTypes,
        args: Any,
        outs: Any,
        active: Sequence[bool],
    ) -> Residuals:
        """The result of `save_for_backward` for the arguments and results."""
        saved: Any = None

        def body(*xs: Any) -> list[Any]:
            nonlocal saved
            inputs = primitive.operator.arguments.unflatten(primitive, xs[: len(args)])
            output = results.unflatten(primitive.operator.schema, xs[len(args) :])
            value = self.save_rule(primitive.operator.arguments.namedtuple_class(*inputs), output)
            saved = Residuals.flatten(value)
            return list(saved.arrays)

        arrays, _ = inline_rule(f"{primitive.operator.__name__}_save", body, [*args, *outs])
        return saved._replace(arrays=arrays)  # type: ignore[no-any-return]

    def run_backward(
        self,
        primitive: OperatorPrimitive,
        results: OutputTypes,
        saved: Residuals,
        cts: Sequence[Any],
        args: Any,
    ) -> Gradients:
        """The cotangents of the operands, for those of the results."""

        def rule(
            arrays: Sequence[Any], grads: Sequence[Any], checker: GradientChecker
        ) -> Gradients:
            return checker.from_dict(self.rule(BackwardContext(), saved.unflatten(arrays), *grads))

        return _run_backward_rule(primitive, self.rule, results, saved, cts, args, rule)


class BackwardByContext(NamedTuple):
    """`setup_context(ctx, inputs, output)` and `backward(ctx, *grads)`."""

    rule: Registration

    def save(
        self,
        primitive: OperatorPrimitive,
        results: OutputTypes,
        args: Any,
        outs: Any,
        active: Sequence[bool],
    ) -> Any:
        """The context after `setup_context`, and its attributes as residuals."""
        arguments = primitive.operator.arguments
        context = AutogradContext(_needs_input_grad(primitive, active))
        setup = self.rule.option
        if setup is None:
            return context, Residuals.flatten({})
        saved: Any = None

        def body(*xs: Any) -> list[Any]:
            nonlocal saved
            inputs, keywords = arguments.call_arguments(primitive, xs[: len(args)])
            output = results.unflatten(primitive.operator.schema, xs[len(args) :])
            setup_args: dict[str, Any] = {"keyword_only_inputs": keywords} if keywords else {}
            setup_args |= {"ctx": context, "inputs": tuple(inputs), "output": output}
            self.rule.run(setup, (), setup_args)
            saved = Residuals.flatten(_context_attributes(context))
            return list(saved.arrays)

        arrays, _ = inline_rule(f"{primitive.operator.__name__}_setup", body, [*args, *outs])
        return context, saved._replace(arrays=arrays)

    def run_backward(
        self,
        primitive: OperatorPrimitive,
        results: OutputTypes,
        saved: Any,
        cts: Sequence[Any],
        args: Any,
    ) -> Gradients:
        """The cotangents of the operands, for those of the results."""
        context, attributes = saved

        def rule(
            arrays: Sequence[Any], grads: Sequence[Any], checker: GradientChecker
        ) -> Gradients:
            result = self.rule(_restored_context(context, attributes.unflatten(arrays)), *grads)
            return checker.from_tuple(result, primitive.operator.arguments.num_passed(primitive))

        return _run_backward_rule(primitive, self.rule, results, attributes, cts, args, rule)


def _needs_input_grad(primitive: OperatorPrimitive, active: Sequence[bool]) -> tuple[Any, ...]:
    """`needs_input_grad` of a call, for the `active` operands."""
    arguments = primitive.operator.arguments
    flags = arguments.unflatten(primitive, active, lambda _: False)[
        : arguments.num_passed(primitive)
    ]
    return tuple([[bool(on) for on in f] if isinstance(f, list) else bool(f) for f in flags])


def _run_backward_rule(
    primitive: OperatorPrimitive,
    registration: Registration,
    results: OutputTypes,
    saved: Residuals,
    cts: Sequence[Any],
    args: Sequence[Any],
    rule: Any,
) -> Gradients:
    """The cotangents by `rule(saved arrays, gradients of the results, checker)`, in the current trace.

    `cts` has None for a result that has no gradient.
    """
    has_cotangent = [ct is not None for ct in cts]
    out_cts = select_where(cts, has_cotangent)
    num_cts, num_saved = len(out_cts), len(saved.arrays)
    nonzero: list[bool] = []

    def body(*xs: Any) -> list[Any]:
        grads = results.group_lists(scatter_where(xs[:num_cts], has_cotangent))
        checker = GradientChecker(primitive, registration, xs[num_cts + num_saved :])
        in_cts = rule(xs[num_cts : num_cts + num_saved], grads, checker)
        nonzero[:] = [ct is not None for ct in in_cts]
        return select_where(in_cts, nonzero)

    operands = [*out_cts, *saved.arrays, *args]
    in_cts, _ = inline_rule(f"{primitive.operator.__name__}_backward", body, operands)
    return scatter_where(in_cts, nonzero)


def backward_rule_of(primitive: OperatorPrimitive) -> BackwardByName | BackwardByContext | None:
    """The backward rule that is registered; None if there is none.

    Raises RegistrationError if only one of `save_for_backward` and `backward` is registered.
    """
    operator = primitive.operator
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


JVP_RULE = "jvp rule"


@lru_cache(maxsize=1024)
def no_autograd_formula_error(qualname: str) -> NoAutogradFormulaError:
    """The error that an operator without a derivative rule is differentiated."""
    return NoAutogradFormulaError(
        f"{qualname}: an operator must have a derivative rule to be differentiated; got none, and a "
        "result that a derivative needs",
        fix="Register one: register_autograd(backward, setup_context=...), save_for_backward with "
        "backward, or def_jvp; or take functx.stop_gradient of its arguments.",
    )


def vjp_forward(
    primitive: OperatorPrimitive, args: Sequence[Any], active: Sequence[bool]
) -> tuple[list[Any], Any]:
    """The results, and the backward rule with its residuals; None without a backward rule."""
    operator = primitive.operator
    rule = backward_rule_of(primitive)
    if rule is None:
        check_not_declaration_only(operator)
        return primitive(*args), None
    types = output_types_of_call(primitive, args)
    differentiable_output_mask(primitive, types)
    outs = primitive(*args)
    results = outs[: len(types.avals)]
    return outs, (rule, rule.save(primitive, types, args, results, active))


def check_not_declaration_only(operator: Operator) -> None:
    """Raise NoAutogradFormulaError for an operator that `define` declared, if it has no jvp rule."""
    if operator.is_declaration and get_rule(operator, JVP_RULE) is None:
        raise no_autograd_formula_error(operator.qualname)


def check_operands_not_differentiated(
    primitive: OperatorPrimitive, operands: Sequence[Any]
) -> None:
    """Raise NoAutogradFormulaError for such an operator if an operand is differentiated."""
    if backward_rule_of(primitive) is None and any(
        type(x) is Tracer and is_inexact(x.dtype) and is_being_differentiated(x) for x in operands
    ):
        check_not_declaration_only(primitive.operator)


def output_types_of_call(primitive: OperatorPrimitive, args: Sequence[Any]) -> OutputTypes:
    """The types of the results for operands `args`."""
    return primitive.output_types(tuple([aval_of(x) for x in args]))


def vjp_backward(
    primitive: OperatorPrimitive,
    cts: Sequence[Any],
    saved: Any,
    args: Sequence[Any],
    active: Sequence[bool],
) -> Sequence[Any]:
    """The cotangents of the operands, for those of the results, None for zero."""
    if saved is not None:
        rule, residuals = saved
        return _apply_backward(primitive, rule, residuals, cts, args)
    if get_rule(primitive.operator, JVP_RULE) is not None:
        return transpose_jvp_rule(primitive, cts, args, active)
    nonzero = [ct for ct in cts if ct is not None]
    error = no_autograd_formula_error(primitive.operator.qualname)
    return refused(error, nonzero, [*map(aval_of, args)], active)


def _apply_backward(
    primitive: OperatorPrimitive,
    rule: BackwardByName | BackwardByContext,
    residuals: Any,
    cts: Sequence[Any],
    args: Any,
) -> list[Any]:
    """The cotangents of the operands by the backward rule, which gets zeros for a cotangent None."""
    types = output_types_of_call(primitive, args)
    differentiable = differentiable_output_mask(primitive, types)
    is_array = types.per_leaf([r.type.is_array for r in primitive.operator.schema.new_returns])
    out_cts = [
        None if not (on or array) else ops.zeros_like(aval) if ct is None or not on else ct
        for ct, aval, on, array in zip(cts, types.avals, differentiable, is_array, strict=False)
    ]
    return rule.run_backward(primitive, types, residuals, out_cts, args)


def differentiable_output_mask(primitive: OperatorPrimitive, results: OutputTypes) -> list[bool]:
    """The mask of the results that have a derivative: inexact, and by `output_differentiability`.

    Raises OperatorRuleError if that marks a result that is no array.
    """
    operator = primitive.operator
    inexact = [is_inexact(a.dtype) for a in results.avals]
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
    return [a and b for a, b in zip(inexact, results.per_leaf(stated), strict=True)]


def jvp_operator(
    primitive: OperatorPrimitive, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The results and their tangents."""
    operator = primitive.operator
    rule = get_rule(operator, JVP_RULE)
    if rule is not None:
        return _jvp_by_rule(primitive, rule, primals, tangents)
    if backward_rule_of(primitive) is not None:
        return _jvp_by_transpose(primitive, primals, tangents)
    check_not_declaration_only(operator)
    outs = primitive(*primals)
    nonzero = [t for t in tangents if t is not None]
    error = no_autograd_formula_error(operator.qualname)
    return outs, refused(error, nonzero, [*map(aval_of, outs)], inexact_mask(outs))


def _jvp_by_rule(
    primitive: OperatorPrimitive,
    rule: Registration,
    primals: Sequence[Any],
    tangents: Sequence[Any],
) -> tuple[list[Any], list[Any]]:
    """The results and their tangents by the user's rule for forward mode."""
    operator = primitive.operator
    arguments = operator.arguments
    results = output_types_of_call(primitive, primals)
    avals = list(results.avals)
    structure = tree.structure(results.unflatten(operator.schema, [0] * len(avals)))
    out = RuleResult(operator.qualname, rule.fun)
    inexact = inexact_mask(primals)
    in_tangents = instantiate_zeros(select_where(tangents, inexact), select_where(primals, inexact))

    def body(*xs: Any) -> list[Any]:
        make = arguments.namedtuple_class
        tangent_leaves = scatter_where(xs[len(primals) :], inexact)
        pair = rule(
            make(*arguments.unflatten(primitive, xs[: len(primals)])),
            make(*arguments.unflatten(primitive, tangent_leaves, lambda _: None)),
        )
        value, tangent = out.check_pair(pair, "(output, output tangent)")
        return [
            *out.check_output(value, structure, avals),
            *out.for_part("the output tangent").check_tangents(
                tangent, structure, avals, "the output"
            ),
        ]

    outs, _ = inline_rule(f"{operator.__name__}_jvp", body, [*primals, *in_tangents])
    return outs[: len(avals)], scatter_where(outs[len(avals) :], inexact_mask(avals))


def _jvp_by_transpose(
    primitive: OperatorPrimitive, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The tangents by the transpose of the backward rule, which is linear in the cotangents."""
    active = [t is not None for t in tangents]
    outs, (rule, residuals) = vjp_forward(primitive, primals, active)
    differentiable = differentiable_output_mask(primitive, output_types_of_call(primitive, primals))
    avals = [aval_of(x) for x in select_where(outs, differentiable)]

    def body(*xs: Any) -> list[Any]:
        cts = scatter_where(xs, differentiable)
        in_cts = _apply_backward(primitive, rule, residuals, cts, primals)
        return instantiate_zeros(select_where(in_cts, active), select_where(primals, active))

    program, captured = trace(body, avals, name=f"{primitive.operator.__name__}_pullback")
    program = decompose_missing_rules(program, "transpose")
    problem = (
        f"{primitive.operator.qualname}: in forward mode its {rule.rule.kind}, registered at "
        f"{rule.rule.location}, must be linear in the cotangents, since it is transposed; "
        "got one that is not"
    )
    known = dict(zip(program.inputs[len(avals) :], captured, strict=True))
    check_linear(
        program,
        program.inputs[: len(avals)],
        program.outputs,
        problem,
        "Let every term have a cotangent as a factor.",
        known,
    )
    tangent_program = transpose_program(
        program,
        len(avals),
        problem,
        fix="Use reverse mode, or give the operator a rule with def_jvp.",
    )
    out_tangents = apply(None, tangent_program, [*select_where(tangents, active), *captured])
    return outs, scatter_where(out_tangents, differentiable)


_calls_being_transposed: ContextVar[tuple[Any, ...]] = ContextVar("transposing", default=())


def transpose_operator(
    primitive: OperatorPrimitive, cts: Sequence[Any], args: Sequence[Any]
) -> list[Any]:
    """The cotangents of the operands that a program is linear in.

    The derivative of a linear function is the same everywhere, so it is taken at zero.
    """
    linear = linear_mask(args)
    values = [ops.zeros_like(x) if on else x for x, on in zip(args, linear, strict=True)]
    outer_calls = _calls_being_transposed.get()
    if primitive in outer_calls:
        raise NoAutogradFormulaError(
            f"{primitive.operator.qualname}: an operator whose jvp rule calls it on tangents must have a "
            "backward rule too, to be transposed in reverse mode; got none",
            fix="Register one: register_autograd(backward, setup_context=...).",
        )
    token = _calls_being_transposed.set((*outer_calls, primitive))
    try:
        _, saved = vjp_forward(primitive, values, linear)
        in_cts = vjp_backward(primitive, cts, saved, values, linear)
    finally:
        _calls_being_transposed.reset(token)
    return [ct if on else None for ct, on in zip(in_cts, linear, strict=True)]
