"""Derivatives of operators: by the rules that hold when a derivative is taken, never silently zero."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from functx.core import tree
from functx.core.concrete import differentiated
from functx.core.dtypes import is_inexact
from functx.core.errors import NoAutogradFormulaError, OperatorRuleError
from functx.core.primitive import LinearInput
from functx.core.rewriting import apply
from functx.core.tracing import Tracer, aval_of, trace
from functx.custom.operators.formulas import BACKWARD, FORMULA, ByContext, ByName, formula_of
from functx.custom.operators.registry import Registration, rule_of
from functx.custom.operators.results import Results
from functx.custom.operators.traced import run_rule
from functx.custom.results import Result
from functx.ops.shaping import zeros_like
from functx.transforms.expand import expand
from functx.transforms.linear_transpose import transposed
from functx.transforms.marks import inexact_marks
from functx.transforms.refused import refused
from functx.transforms.reverse_mode import transposed_jvp
from functx.transforms.rule_checks import check_linear

if TYPE_CHECKING:
    from functx.custom.operators.equations import OperatorEquation
    from functx.custom.operators.operator import Operator

JVP = "jvp rule"


@lru_cache(maxsize=1024)
def no_formula(qualname: str) -> NoAutogradFormulaError:
    """The error that a derivative goes through an operator without a rule for it."""
    return NoAutogradFormulaError(
        f"{qualname}: an operator must have a derivative rule to be differentiated; got none, and a "
        "result that a derivative needs",
        fix="Register one: register_autograd(backward, setup_context=...), save_for_backward with "
        "backward, or def_jvp; or take functx.stop_gradient of what it is given.",
    )


def forward(
    call: OperatorEquation, args: Sequence[Any], active: Sequence[bool]
) -> tuple[list[Any], Any]:
    """The results, and what `pull` needs besides."""
    operator = call.operator
    formula = formula_of(call)
    if formula is None:
        refuse_at_call(operator)
        return call(*args), None
    results = results_for(call, args)
    differentiable_marks(call, results)
    outs = call(*args)
    own = outs[: len(results.avals)]
    return outs, (formula, formula.save(call, results, args, own, active))


def refuse_at_call(operator: Operator) -> None:
    """Raise for an operator that was declared by `define`, which is refused before it runs."""
    if operator.prototype and rule_of(operator, JVP) is None:
        raise no_formula(operator.qualname)


def refuse_differentiated(call: OperatorEquation, operands: Sequence[Any]) -> None:
    """Raise for a call of such an operator on a differentiated operand, used or not."""
    if formula_of(call) is None and any(
        type(x) is Tracer and is_inexact(x.dtype) and differentiated(x) for x in operands
    ):
        refuse_at_call(call.operator)


def results_for(call: OperatorEquation, args: Sequence[Any]) -> Results:
    """The types of the results for operands `args`."""
    return call.results(tuple([aval_of(x) for x in args]))


def pull(
    call: OperatorEquation,
    cts: Sequence[Any],
    saved: Any,
    args: Sequence[Any],
    active: Sequence[bool],
) -> Sequence[Any]:
    """The cotangents of the operands, for those of the results, None for zero."""
    if saved is not None:
        formula, kept = saved
        return _pulled(call, formula, kept, cts, args)
    if rule_of(call.operator, JVP) is not None:
        return transposed_jvp(call, cts, args, active)
    given = [ct for ct in cts if ct is not None]
    return refused(no_formula(call.operator.qualname), given, [*map(aval_of, args)], active)


def _pulled(
    call: OperatorEquation, formula: ByName | ByContext, kept: Any, cts: Sequence[Any], args: Any
) -> list[Any]:
    """What the backward rule makes of cotangents; it gets zeros where there is none."""
    results = results_for(call, args)
    marks = differentiable_marks(call, results)
    arrays = results.marks([r.type.is_array for r in call.operator.schema.made])
    given = [
        None if not (on or array) else zeros_like(aval) if ct is None or not on else ct
        for ct, aval, on, array in zip(cts, results.avals, marks, arrays, strict=False)
    ]
    return formula.pull(call, results, kept, given, args)


def differentiable_marks(call: OperatorEquation, results: Results) -> list[bool]:
    """Which results vary with the operands, as far as derivatives are concerned.

    Raises OperatorRuleError where that was said of a result that is no array.
    """
    operator = call.operator
    inexact = [is_inexact(a.dtype) for a in results.avals]
    rule = rule_of(operator, BACKWARD)
    if rule is None or rule.details is None or rule_of(operator, FORMULA) is not None:
        return inexact
    stated = rule.details
    for i, (on, result) in enumerate(zip(stated, operator.schema.made, strict=True)):
        if on and not result.type.is_array:
            raise OperatorRuleError(
                f"{operator.qualname}: output_differentiability must be False for what is no array; "
                f"got True for output {i}, of type {result.type}",
                fix="Pass False there.",
                source=rule.source,
            )
    return [a and b for a, b in zip(inexact, results.marks(stated), strict=True)]


def push(
    call: OperatorEquation, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The results and their tangents."""
    operator = call.operator
    rule = rule_of(operator, JVP)
    if rule is not None:
        return _pushed_by_rule(call, rule, primals, tangents)
    formula = formula_of(call)
    if formula is not None:
        return _pushed_by_transpose(call, primals, tangents)
    refuse_at_call(operator)
    outs = call(*primals)
    given = [t for t in tangents if t is not None]
    return outs, refused(
        no_formula(operator.qualname), given, [*map(aval_of, outs)], inexact_marks(outs)
    )


def _pushed_by_rule(
    call: OperatorEquation, rule: Registration, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """What the rule that the user gave for forward mode makes of values and tangents."""
    operator = call.operator
    arguments = operator.arguments
    results = results_for(call, primals)
    avals = list(results.avals)
    structure = tree.structure(results.arranged(operator.schema, [0] * len(avals)))
    out = Result(operator.qualname, rule.fun)
    moving = [is_inexact(x.dtype) for x in primals]
    given = [
        (zeros_like(x) if t is None else t)
        for x, t, on in zip(primals, tangents, moving, strict=True)
        if on
    ]

    def body(*xs: Any) -> list[Any]:
        rest = iter(xs[len(primals) :])
        moved = [next(rest) if on else None for on in moving]
        make = arguments.inputs_class
        found = rule(
            make(*arguments.arranged(call, xs[: len(primals)])),
            make(*arguments.arranged(call, moved, lambda _: None)),
        )
        value, tangent = out.pair(found, "(output, output tangent)")
        return [
            *out.leaves(value, structure, avals),
            *out.of("the output tangent").tangent_leaves(tangent, structure, avals, "the output"),
        ]

    found, _ = run_rule(f"{operator.__name__}_jvp", body, [*primals, *given])
    pushed = iter(found[len(avals) :])
    return found[: len(avals)], [next(pushed) if is_inexact(a.dtype) else None for a in avals]


def _pushed_by_transpose(
    call: OperatorEquation, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The tangents by the transpose of the backward rule, which is linear in the cotangents."""
    active = [t is not None for t in tangents]
    outs, (formula, kept) = forward(call, primals, active)
    marks = differentiable_marks(call, results_for(call, primals))
    avals = [aval_of(x) for x, on in zip(outs, marks, strict=True) if on]

    def body(*xs: Any) -> list[Any]:
        rest = iter(xs)
        cts = [next(rest) if on else None for on in marks]
        found = _pulled(call, formula, kept, cts, primals)
        return [
            zeros_like(x) if ct is None else ct
            for x, ct, on in zip(primals, found, active, strict=True)
            if on
        ]

    program, captured = trace(body, avals, name=f"{call.operator.__name__}_pullback")
    program = expand(program, "transpose")
    problem = (
        f"{call.operator.qualname}: in forward mode its {formula.rule.kind}, registered at "
        f"{formula.rule.place}, must be linear in the cotangents, since it is transposed; "
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
    backward = transposed(
        program,
        len(avals),
        problem,
        fix="Use reverse mode, or give the operator a rule with def_jvp.",
    )
    found = iter(apply(None, backward, [*[t for t in tangents if t is not None], *captured]))
    return outs, [next(found) if on else None for on in marks]


_transposing: ContextVar[tuple[Any, ...]] = ContextVar("transposing", default=())


def transpose(call: OperatorEquation, cts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """The cotangents of the operands that a program is linear in.

    The derivative of what is linear is the same everywhere, so it is taken at zero.
    """
    linear = [type(x) is LinearInput for x in args]
    values = [zeros_like(x) if on else x for x, on in zip(args, linear, strict=True)]
    around = _transposing.get()
    if call in around:
        raise NoAutogradFormulaError(
            f"{call.operator.qualname}: an operator whose jvp rule calls it on tangents must have a "
            "backward rule too, to be transposed in reverse mode; got none",
            fix="Register one: register_autograd(backward, setup_context=...).",
        )
    token = _transposing.set((*around, call))
    try:
        _, saved = forward(call, values, linear)
        found = pull(call, cts, saved, values, linear)
    finally:
        _transposing.reset(token)
    return [ct if on else None for ct, on in zip(found, linear, strict=True)]
