"""The two forms in which a backward rule is given: by names and saved values, or by a context."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from functx import ops
from functx.core import tree
from functx.core.concretization import is_being_differentiated
from functx.core.errors import NoAutogradFormulaError, OperatorRuleError, RegistrationError
from functx.core.primitive import LinearInput
from functx.core.rewriting import apply
from functx.core.tracing import Tracer, aval_of, trace
from functx.core.types import is_inexact
from functx.custom.operators.outputs import GradientChecker, Gradients, OutputTypes
from functx.custom.operators.registry import Registration, get_rule
from functx.custom.rule_results import RuleResult
from functx.custom.rule_tracing import Residuals, inline_rule
from functx.transforms.decompose import decompose_missing_rules
from functx.transforms.linear_transpose import transpose_program
from functx.transforms.operand_masks import inexact_mask
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
    """Reserved: what a `backward` rule gets first."""

    __slots__ = ()


class AutogradContext:
    """What `setup_context` notes for the backward rule: arrays to save, and any attribute."""

    def __init__(self, needs_input_grad: tuple[Any, ...]):
        self.__dict__["_functx_saved"] = ()
        self.__dict__["_functx_needs"] = needs_input_grad

    @property
    def needs_input_grad(self) -> tuple[Any, ...]:
        """Which of the positional arguments that were passed a derivative is taken in.

        A list of arrays has a list.
        """
        return self.__dict__["_functx_needs"]  # type: ignore[no-any-return]

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The arrays that `save_for_backward` was given."""
        return self.__dict__["_functx_saved"]  # type: ignore[no-any-return]

    def save_for_backward(self, *arrays: Any) -> None:
        """Keep arrays for the backward rule, which finds them as `saved_tensors`."""
        self.__dict__["_functx_saved"] = arrays


def _context_attributes(context: AutogradContext) -> dict[str, Any]:
    """All that was set on a context, the saved arrays included."""
    return {k: v for k, v in context.__dict__.items() if k != "_functx_needs"}


def _restored_context(context: AutogradContext, noted: dict[str, Any]) -> AutogradContext:
    """A context on which that is set."""
    made = AutogradContext(context.needs_input_grad)
    made.__dict__.update(noted)
    return made


class BackwardByName(NamedTuple):
    """`save_for_backward(inputs, output)` and `backward(ctx, saved, *grads)`."""

    save_rule: Registration
    rule: Registration

    def save(
        self,
        call: OperatorPrimitive,
        results: OutputTypes,
        args: Any,
        outs: Any,
        active: Sequence[bool],
    ) -> Residuals:
        """What the backward rule gets of the arguments and results."""
        saved: Any = None

        def body(*xs: Any) -> list[Any]:
            nonlocal saved
            inputs = call.operator.arguments.unflatten(call, xs[: len(args)])
            output = results.unflatten(call.operator.schema, xs[len(args) :])
            found = self.save_rule(call.operator.arguments.namedtuple_class(*inputs), output)
            saved = Residuals.flatten(found)
            return list(saved.arrays)

        found, _ = inline_rule(f"{call.operator.__name__}_save", body, [*args, *outs])
        return saved._replace(arrays=found)  # type: ignore[no-any-return]

    def run_backward(
        self,
        call: OperatorPrimitive,
        results: OutputTypes,
        saved: Residuals,
        cts: Sequence[Any],
        args: Any,
    ) -> Gradients:
        """The cotangents of the operands, for those of the results."""

        def rule(
            arrays: Sequence[Any], grads: Sequence[Any], checked: GradientChecker
        ) -> Gradients:
            found = self.rule(BackwardContext(), saved.unflatten(arrays), *grads)
            return checked.from_dict(found)

        return _run_backward_rule(call, self.rule, results, saved, cts, args, rule)


class BackwardByContext(NamedTuple):
    """`setup_context(ctx, inputs, output)` and `backward(ctx, *grads)`."""

    rule: Registration

    def save(
        self,
        call: OperatorPrimitive,
        results: OutputTypes,
        args: Any,
        outs: Any,
        active: Sequence[bool],
    ) -> Any:
        """The context, and what is noted in it, as far as it is arrays apart from the rest."""
        arguments = call.operator.arguments
        context = AutogradContext(_needs_input_grad(call, active))
        setup = self.rule.option
        if setup is None:
            return context, Residuals.flatten({})
        saved: Any = None

        def body(*xs: Any) -> list[Any]:
            nonlocal saved
            inputs, keywords = arguments.call_arguments(call, xs[: len(args)])
            output = results.unflatten(call.operator.schema, xs[len(args) :])
            given: dict[str, Any] = {"keyword_only_inputs": keywords} if keywords else {}
            given |= {"ctx": context, "inputs": tuple(inputs), "output": output}
            self.rule.run(setup, (), given)
            saved = Residuals.flatten(_context_attributes(context))
            return list(saved.arrays)

        found, _ = inline_rule(f"{call.operator.__name__}_setup", body, [*args, *outs])
        return context, saved._replace(arrays=found)

    def run_backward(
        self,
        call: OperatorPrimitive,
        results: OutputTypes,
        saved: Any,
        cts: Sequence[Any],
        args: Any,
    ) -> Gradients:
        """The cotangents of the operands, for those of the results."""
        context, noted = saved

        def rule(
            arrays: Sequence[Any], grads: Sequence[Any], checked: GradientChecker
        ) -> Gradients:
            found = self.rule(_restored_context(context, noted.unflatten(arrays)), *grads)
            return checked.from_tuple(found, call.operator.arguments.num_passed(call))

        return _run_backward_rule(call, self.rule, results, noted, cts, args, rule)


def _needs_input_grad(call: OperatorPrimitive, active: Sequence[bool]) -> tuple[Any, ...]:
    """`needs_input_grad` of a call."""
    arguments = call.operator.arguments
    marks = arguments.unflatten(call, active, lambda _: False)
    passed = marks[: arguments.num_passed(call)]
    return tuple([[bool(on) for on in m] if isinstance(m, list) else bool(m) for m in passed])


def _run_backward_rule(
    call: OperatorPrimitive,
    registration: Registration,
    results: OutputTypes,
    saved: Residuals,
    cts: Sequence[Any],
    args: Sequence[Any],
    rule: Any,
) -> Gradients:
    """What `rule(saved arrays, gradients of the results, check)` gives, in the trace that is on.

    `cts` has None for a result that has no gradient.
    """
    given = [ct for ct in cts if ct is not None]
    marks: list[bool] = []

    def body(*xs: Any) -> list[Any]:
        own = xs[: len(given)]
        rest = iter(own)
        grads = results.group_lists([next(rest) if ct is not None else None for ct in cts])
        held = xs[len(given) : len(given) + len(saved.arrays)]
        found = rule(held, grads, GradientChecker(call, registration, xs[len(given) + len(held) :]))
        marks.extend(g is not None for g in found)
        return [g for g in found if g is not None]

    operands = [*given, *saved.arrays, *args]
    found, _ = inline_rule(f"{call.operator.__name__}_backward", body, operands)
    rest = iter(found)
    return [next(rest) if on else None for on in marks]


def backward_rule_of(call: OperatorPrimitive) -> BackwardByName | BackwardByContext | None:
    """The backward rule that holds now; None if there is none.

    Raises RegistrationError where only half of one was registered.
    """
    operator = call.operator
    explicit = get_rule(operator, AUTOGRAD_RULE)
    if explicit is not None:
        return BackwardByContext(explicit)
    saving, backward = get_rule(operator, SAVE_RULE), get_rule(operator, BACKWARD_RULE)
    if saving is not None and backward is not None:
        return BackwardByName(saving, backward)
    found = saving or backward
    if found is None:
        return None
    other = BACKWARD_RULE if found is saving else SAVE_RULE
    raise RegistrationError(
        f"{operator.qualname}: save_for_backward and backward must both be registered for a "
        f"derivative; got {found.kind} alone, registered at {found.location}, and no {other}",
        fix=f"Register the other half: @{operator.__name__}.{other}.",
        source=found.source,
    )


JVP_RULE = "jvp rule"


@lru_cache(maxsize=1024)
def no_autograd_formula_error(qualname: str) -> NoAutogradFormulaError:
    """The error that a derivative goes through an operator without a rule for it."""
    return NoAutogradFormulaError(
        f"{qualname}: an operator must have a derivative rule to be differentiated; got none, and a "
        "result that a derivative needs",
        fix="Register one: register_autograd(backward, setup_context=...), save_for_backward with "
        "backward, or def_jvp; or take functx.stop_gradient of what it is given.",
    )


def vjp_forward(
    call: OperatorPrimitive, args: Sequence[Any], active: Sequence[bool]
) -> tuple[list[Any], Any]:
    """The results, and what `vjp_backward` needs besides."""
    operator = call.operator
    formula = backward_rule_of(call)
    if formula is None:
        check_not_declaration_only(operator)
        return call(*args), None
    results = output_types_of_call(call, args)
    differentiable_output_mask(call, results)
    outs = call(*args)
    own = outs[: len(results.avals)]
    return outs, (formula, formula.save(call, results, args, own, active))


def check_not_declaration_only(operator: Operator) -> None:
    """Raise for an operator that was declared by `define`, which is refused before it runs."""
    if operator.is_declaration and get_rule(operator, JVP_RULE) is None:
        raise no_autograd_formula_error(operator.qualname)


def check_operands_not_differentiated(call: OperatorPrimitive, operands: Sequence[Any]) -> None:
    """Raise for a call of such an operator on a differentiated operand, used or not."""
    if backward_rule_of(call) is None and any(
        type(x) is Tracer and is_inexact(x.dtype) and is_being_differentiated(x) for x in operands
    ):
        check_not_declaration_only(call.operator)


def output_types_of_call(call: OperatorPrimitive, args: Sequence[Any]) -> OutputTypes:
    """The types of the results for operands `args`."""
    return call.output_types(tuple([aval_of(x) for x in args]))


def vjp_backward(
    call: OperatorPrimitive,
    cts: Sequence[Any],
    saved: Any,
    args: Sequence[Any],
    active: Sequence[bool],
) -> Sequence[Any]:
    """The cotangents of the operands, for those of the results, None for zero."""
    if saved is not None:
        formula, kept = saved
        return _apply_backward(call, formula, kept, cts, args)
    if get_rule(call.operator, JVP_RULE) is not None:
        return transpose_jvp_rule(call, cts, args, active)
    given = [ct for ct in cts if ct is not None]
    return refused(
        no_autograd_formula_error(call.operator.qualname), given, [*map(aval_of, args)], active
    )


def _apply_backward(
    call: OperatorPrimitive,
    formula: BackwardByName | BackwardByContext,
    kept: Any,
    cts: Sequence[Any],
    args: Any,
) -> list[Any]:
    """What the backward rule makes of cotangents; it gets zeros where there is none."""
    results = output_types_of_call(call, args)
    marks = differentiable_output_mask(call, results)
    arrays = results.per_leaf([r.type.is_array for r in call.operator.schema.new_returns])
    given = [
        None if not (on or array) else ops.zeros_like(aval) if ct is None or not on else ct
        for ct, aval, on, array in zip(cts, results.avals, marks, arrays, strict=False)
    ]
    return formula.run_backward(call, results, kept, given, args)


def differentiable_output_mask(call: OperatorPrimitive, results: OutputTypes) -> list[bool]:
    """Which results vary with the operands, as far as derivatives are concerned.

    Raises OperatorRuleError where that was said of a result that is no array.
    """
    operator = call.operator
    inexact = [is_inexact(a.dtype) for a in results.avals]
    rule = get_rule(operator, BACKWARD_RULE)
    if rule is None or rule.option is None or get_rule(operator, AUTOGRAD_RULE) is not None:
        return inexact
    stated = rule.option
    for i, (on, result) in enumerate(zip(stated, operator.schema.new_returns, strict=True)):
        if on and not result.type.is_array:
            raise OperatorRuleError(
                f"{operator.qualname}: output_differentiability must be False for what is no array; "
                f"got True for output {i}, of type {result.type}",
                fix="Pass False there.",
                source=rule.source,
            )
    return [a and b for a, b in zip(inexact, results.per_leaf(stated), strict=True)]


def jvp_operator(
    call: OperatorPrimitive, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The results and their tangents."""
    operator = call.operator
    rule = get_rule(operator, JVP_RULE)
    if rule is not None:
        return _jvp_by_rule(call, rule, primals, tangents)
    formula = backward_rule_of(call)
    if formula is not None:
        return _jvp_by_transpose(call, primals, tangents)
    check_not_declaration_only(operator)
    outs = call(*primals)
    given = [t for t in tangents if t is not None]
    return outs, refused(
        no_autograd_formula_error(operator.qualname),
        given,
        [*map(aval_of, outs)],
        inexact_mask(outs),
    )


def _jvp_by_rule(
    call: OperatorPrimitive, rule: Registration, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """What the rule that the user gave for forward mode makes of values and tangents."""
    operator = call.operator
    arguments = operator.arguments
    results = output_types_of_call(call, primals)
    avals = list(results.avals)
    structure = tree.structure(results.unflatten(operator.schema, [0] * len(avals)))
    out = RuleResult(operator.qualname, rule.fun)
    moving = [is_inexact(x.dtype) for x in primals]
    given = [
        (ops.zeros_like(x) if t is None else t)
        for x, t, on in zip(primals, tangents, moving, strict=True)
        if on
    ]

    def body(*xs: Any) -> list[Any]:
        rest = iter(xs[len(primals) :])
        moved = [next(rest) if on else None for on in moving]
        make = arguments.namedtuple_class
        found = rule(
            make(*arguments.unflatten(call, xs[: len(primals)])),
            make(*arguments.unflatten(call, moved, lambda _: None)),
        )
        value, tangent = out.check_pair(found, "(output, output tangent)")
        return [
            *out.check_output(value, structure, avals),
            *out.for_part("the output tangent").check_tangents(
                tangent, structure, avals, "the output"
            ),
        ]

    found, _ = inline_rule(f"{operator.__name__}_jvp", body, [*primals, *given])
    pushed = iter(found[len(avals) :])
    return found[: len(avals)], [next(pushed) if is_inexact(a.dtype) else None for a in avals]


def _jvp_by_transpose(
    call: OperatorPrimitive, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The tangents by the transpose of the backward rule, which is linear in the cotangents."""
    active = [t is not None for t in tangents]
    outs, (formula, kept) = vjp_forward(call, primals, active)
    marks = differentiable_output_mask(call, output_types_of_call(call, primals))
    avals = [aval_of(x) for x, on in zip(outs, marks, strict=True) if on]

    def body(*xs: Any) -> list[Any]:
        rest = iter(xs)
        cts = [next(rest) if on else None for on in marks]
        found = _apply_backward(call, formula, kept, cts, primals)
        return [
            ops.zeros_like(x) if ct is None else ct
            for x, ct, on in zip(primals, found, active, strict=True)
            if on
        ]

    program, captured = trace(body, avals, name=f"{call.operator.__name__}_pullback")
    program = decompose_missing_rules(program, "transpose")
    problem = (
        f"{call.operator.qualname}: in forward mode its {formula.rule.kind}, registered at "
        f"{formula.rule.location}, must be linear in the cotangents, since it is transposed; "
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
    backward = transpose_program(
        program,
        len(avals),
        problem,
        fix="Use reverse mode, or give the operator a rule with def_jvp.",
    )
    found = iter(apply(None, backward, [*[t for t in tangents if t is not None], *captured]))
    return outs, [next(found) if on else None for on in marks]


_calls_being_transposed: ContextVar[tuple[Any, ...]] = ContextVar("transposing", default=())


def transpose_operator(
    call: OperatorPrimitive, cts: Sequence[Any], args: Sequence[Any]
) -> list[Any]:
    """The cotangents of the operands that a program is linear in.

    The derivative of what is linear is the same everywhere, so it is taken at zero.
    """
    linear = [type(x) is LinearInput for x in args]
    values = [ops.zeros_like(x) if on else x for x, on in zip(args, linear, strict=True)]
    around = _calls_being_transposed.get()
    if call in around:
        raise NoAutogradFormulaError(
            f"{call.operator.qualname}: an operator whose jvp rule calls it on tangents must have a "
            "backward rule too, to be transposed in reverse mode; got none",
            fix="Register one: register_autograd(backward, setup_context=...).",
        )
    token = _calls_being_transposed.set((*around, call))
    try:
        _, saved = vjp_forward(call, values, linear)
        found = vjp_backward(call, cts, saved, values, linear)
    finally:
        _calls_being_transposed.reset(token)
    return [ct if on else None for ct, on in zip(found, linear, strict=True)]
