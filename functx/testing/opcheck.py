"""Checks of a custom operator's registrations against each other, on arguments of the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from functx.core import tree
from functx.core.caches import invalidate_caches
from functx.core.errors import (
    ArgumentError,
    DynamicShapeError,
    FunctxError,
    OpCheckError,
    ValueRangeError,
    type_name,
)
from functx.core.tracer import aval_of
from functx.core.types import ShapedArray, is_inexact, kind
from functx.custom.custom_function import CustomFunction
from functx.custom.operators import dispatch, registry
from functx.custom.operators.derivatives import JVP_RULE, backward_rule_of
from functx.custom.operators.kernels import CompositeBody, run_kernel
from functx.custom.operators.operator import Operator
from functx.lowering.jit import jit
from functx.transforms.jvp import vjp

SUCCESS = "SUCCESS"


class OpcheckCase(NamedTuple):
    """An operator and arguments to check it on: its operation and the arrays among the arguments."""

    op: Operator
    call: Any
    operands: list[Any]
    tolerance: tuple[float | None, float | None]

    def copy_operands(self) -> list[Any]:
        """The operands in memory of their own, those that are written to as arrays of NumPy's."""
        written = set(self.op.arguments.mutated_operands(self.call))
        return [
            np.array(x) if isinstance(x, np.ndarray) or i in written else x
            for i, x in enumerate(self.operands)
        ]

    def function(self, *operands: Any) -> Any:
        """The operator as a function of its arrays."""
        args, kwargs = self.op.arguments.call_arguments(self.call, operands)
        return self.op(*args, **kwargs)

    def with_operands(self, operands: list[Any]) -> OpcheckCase:
        """The same on other arrays."""
        return self._replace(operands=operands)


def opcheck(
    op: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    *,
    test_utils: str | Sequence[str] | None = None,
    raise_exception: bool = True,
    atol: float | None = None,
    rtol: float | None = None,
) -> dict[str, Any]:
    """Check the custom operator `op`, or that of this name, on the arguments of one call.

    `test_schema`: it writes to what it says alone, and returns arrays of its own, as many as it
    says. `test_autograd_registration`: its derivative rule is registered for the operator, not
    hidden in an implementation. `test_faketensor`: the abstract rule states the types that
    results have. `test_aot_dispatch_static`: a program gives the values, and gradients, that a
    call gives; `test_aot_dispatch_dynamic`: for arrays of twice the length too.
    `test_utils` names some of them; all run by default.

    Returns "SUCCESS" for each check, or what was raised if `raise_exception` is False. Raises
    OpCheckError, which names the check, for the first that fails.

    >>> import functx, numpy
    >>> @functx.custom_op("doc::tripled", mutates_args=())
    ... def tripled(x: functx.Array) -> functx.Array:
    ...     return x * 3
    >>> found = functx.testing.opcheck(tripled, (numpy.ones(3),), raise_exception=False)
    >>> found["test_schema"], type(found["test_faketensor"]).__name__
    ('SUCCESS', 'OpCheckError')
    >>> functx.library.destroy("doc::tripled")
    """
    operator = registry.resolve_operator(op, "opcheck")
    names = [test_utils] if isinstance(test_utils, str) else list(test_utils or CHECKS)
    for name in names:
        if name not in CHECKS:
            raise ValueRangeError(
                f"opcheck: a check must be one of {', '.join(CHECKS)}; got {name!r}"
            )
    if not isinstance(args, tuple | list):
        raise ArgumentError(f"opcheck: args must be a tuple of arguments; got {type_name(args)}")
    operands, parameters = operator.arguments.bind(tuple(args), kwargs or {})
    trial = OpcheckCase(operator, operator.primitive(**parameters), operands, (atol, rtol))
    results: dict[str, Any] = {}
    for name in names:
        try:
            CHECKS[name](trial)
        except Exception as error:
            reason = error.problem if isinstance(error, FunctxError) else error
            failure = OpCheckError(
                f"opcheck({operator.qualname}): {name} failed with {type(error).__name__}: {reason}",
                fix="Mend the rule that it names, or the implementation.",
            )
            failure.__cause__ = error
            if raise_exception:
                raise failure from error
            results[name] = failure
        else:
            results[name] = SUCCESS
    return results


def check_schema(trial: OpcheckCase) -> None:
    """What an implementation writes to is named, and what it returns is its own."""
    op, call = trial.op, trial.call
    given = [np.array(x) for x in trial.operands]
    before = [x.copy() for x in given]
    rule = dispatch.select_kernel(call, trial.operands)
    if rule is None and op.composite is None:
        dispatch.raise_missing_kernel(call, trial.operands)
    elif rule is None:
        assert isinstance(op.composite, CompositeBody)
        op.composite.check_outputs(call, given)
    elif rule.option == "numpy":
        run_kernel(call, rule, given)
    else:
        run_kernel(call, rule, [jax.numpy.asarray(x) for x in given])
    names = op.arguments.operand_names(call)
    written = op.arguments.mutated_operands(call)
    for i, (x, old) in enumerate(zip(given, before, strict=True)):
        if i not in written and x.tobytes() != old.tobytes():
            raise OpCheckError(
                f"{op.qualname}: an argument that is written to must be named in mutates_args; "
                f"`{names[i]}` is not, and has changed",
                f"schema {op.schema}",
            )


def check_autograd_registration(trial: OpcheckCase) -> None:
    """No implementation has a derivative rule, which nothing would ask for."""
    op, call = trial.op, trial.call
    if op.composite is not None:
        return
    if backward_rule_of(call) is not None or registry.get_rule(op, JVP_RULE) is not None:
        return
    if not any(is_inexact(aval_of(x).dtype) for x in trial.operands):
        return
    for rule in registry.get_rules(op, dispatch.KERNEL_RULE).values():
        if _has_derivative_rule(trial, rule):
            raise OpCheckError(
                f"{op.qualname}: a derivative rule must be registered for the operator; its "
                f"{rule.kind}, registered at {rule.location}, has one of its own, which no transform sees",
                fix="Register it with register_autograd or def_jvp.",
            )


def _has_derivative_rule(trial: OpcheckCase, rule: registry.Registration) -> bool:
    fun: Any = rule.fun
    while fun is not None:
        if isinstance(fun, (CustomFunction, jax.custom_jvp, jax.custom_vjp)):
            return True
        fun = getattr(fun, "__wrapped__", None)
    if rule.option == "numpy":
        return False

    def function(*xs: Any) -> Any:
        return run_kernel(trial.call, rule, xs).leaves

    made = jax.make_jaxpr(function)(*[jax.numpy.asarray(x) for x in trial.operands])
    return any("custom_vjp" in eqn.primitive.name for eqn in made.eqns)


def check_abstract_rule(trial: OpcheckCase) -> None:
    """The abstract rule is right about shapes and dtypes."""
    op = trial.op
    given = trial.copy_operands()
    try:
        stated = trial.call.infer_out_avals(tuple([aval_of(x) for x in given]))
    except DynamicShapeError:
        # Such an operator is in no program, so that nothing relies on the types.
        return
    results = trial.call.output_types(tuple([aval_of(x) for x in given]))
    out = trial.function(*given)
    padded = results.padded or ((),) * len(results.avals)
    leaves = tree.leaves(out)
    expected = list(zip(stated, padded, strict=False))
    aliased = len(op.schema.returns) - len(op.schema.new_returns)
    if len(leaves) - aliased != len(results.avals):
        raise OpCheckError(
            f"{op.qualname}: its abstract rule must state as many results as there are, "
            f"{len(leaves)}; it states {len(results.avals)}"
        )
    for i, (x, (aval, axes)) in enumerate(zip(leaves, expected, strict=False)):
        real = aval_of(x)
        shape = tuple(
            [min(n, m) if k in axes else m
             for k, (n, m) in enumerate(zip(real.shape, aval.shape, strict=False))]
        )  # fmt: skip
        number = isinstance(x, (bool, int, float, complex)) and kind(real.dtype) == kind(aval.dtype)
        if not number and (real.shape != shape or real.dtype != aval.dtype):
            raise OpCheckError(
                f"{op.qualname}: its abstract rule must state the types that results have; it states "
                f"{aval!r} for result {i}, which is {ShapedArray(real.shape, real.dtype)!r}"
            )


def check_compiled_program(trial: OpcheckCase) -> None:
    """A compiled program gives the values that a call gives, and the same gradients."""
    called, traced = trial.copy_operands(), trial.copy_operands()
    try:
        trial.call.infer_out_avals(tuple([aval_of(x) for x in called]))
    except DynamicShapeError:
        return
    out = trial.function(*called)
    program_out = jit(trial.function)(*traced)
    padded = trial.call.output_types(tuple([aval_of(x) for x in called])).padded
    if padded:
        return
    _check_close(trial, "a program must give the results of a call", program_out, out)
    _check_close(trial, "a program must write what a call writes", traced, called)
    _check_gradients(trial)


def _check_gradients(trial: OpcheckCase) -> None:
    op = trial.op
    inexact = [i for i, x in enumerate(trial.operands) if is_inexact(aval_of(x).dtype)]
    known = (
        op.composite is not None or registry.get_rule(op, JVP_RULE) or backward_rule_of(trial.call)
    )
    if not inexact or not known or op.schema.mutated:
        return

    def of_inexact(*xs: Any) -> list[Any]:
        given = list(trial.operands)
        for i, x in zip(inexact, xs, strict=True):
            given[i] = x
        return [x for x in tree.leaves(trial.function(*given)) if is_inexact(x.dtype)]

    def gradients(*xs: Any) -> Any:
        outs, pullback = vjp(of_inexact, *xs)
        return pullback([x * 0 + 1 for x in outs])

    given = [trial.operands[i] for i in inexact]
    if not tree.leaves(jit(of_inexact).eval_shape(*given)):
        return
    called = gradients(*given)
    # Else the rule would not run again.
    invalidate_caches()
    _check_close(
        trial, "a program must give the gradients of a call", jit(gradients)(*given), called
    )


def check_compiled_program_for_other_sizes(trial: OpcheckCase) -> None:
    """The same for arrays with every first axis twice as long, where the operator takes them."""
    check_compiled_program(trial)
    longer = [
        np.concatenate([x, x]) if np.ndim(x) else np.asarray(x)
        for x in map(np.asarray, trial.operands)
    ]
    other = trial.with_operands([
        jax.numpy.asarray(x) if isinstance(old, jax.Array) else x
        for x, old in zip(longer, trial.operands, strict=True)
    ])  # fmt: skip
    try:
        other.function(*other.copy_operands())
    except Exception:
        # It takes no arrays of those shapes.
        return
    check_compiled_program(other)


def _check_close(trial: OpcheckCase, what: str, got: Any, wanted: Any) -> None:
    atol, rtol = trial.tolerance
    for i, (x, y) in enumerate(zip(tree.leaves(got), tree.leaves(wanted), strict=True)):
        a, b = np.asarray(x), np.asarray(y)
        if a.shape != b.shape:
            raise OpCheckError(
                f"{trial.op.qualname}: {what}; for number {i} got {a.shape} and {b.shape}"
            )
        coarse = a.dtype.itemsize < 4 or not is_inexact(a.dtype)
        loose = 1e-2 if coarse and is_inexact(a.dtype) else 1e-5
        wide = [v.astype("complex128" if kind(v.dtype) == "c" else "float64") for v in (a, b)]
        bounds = (loose if atol is None else atol, loose if rtol is None else rtol)
        if not np.allclose(wide[0], wide[1], atol=bounds[0], rtol=bounds[1], equal_nan=True):
            difference = float(np.max(np.abs(wide[0] - wide[1])))
            raise OpCheckError(
                f"{trial.op.qualname}: {what}; number {i} differs by {difference:.6g} at most",
                fix="Does the implementation depend on something other than its arguments?",
            )


CHECKS: dict[str, Callable[[OpcheckCase], None]] = {
    "test_schema": check_schema,
    "test_autograd_registration": check_autograd_registration,
    "test_faketensor": check_abstract_rule,
    "test_aot_dispatch_static": check_compiled_program,
    "test_aot_dispatch_dynamic": check_compiled_program_for_other_sizes,
}
