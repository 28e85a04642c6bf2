"""`opcheck`: the registrations of a custom operator compared with each other on given arguments."""

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
from functx.core.typing import ArrayLike, PyTree, Value, Values
from functx.custom.custom_function import CustomFunction
from functx.custom.operators import dispatch, registry
from functx.custom.operators.kernels import run_body, run_kernel
from functx.custom.operators.operator import Operator
from functx.custom.operators.primitives import CompositeCall, OperatorCall
from functx.lowering.jit import jit
from functx.transforms.jvp import vjp

SUCCESS = "SUCCESS"


class OpcheckCase(NamedTuple):
    """An operator with arguments to check it on: its primitive, and the arrays as operands."""

    op: Operator
    call: OperatorCall | CompositeCall
    operands: list[ArrayLike]
    tolerance: tuple[float | None, float | None]

    def copy_operands(self) -> list[ArrayLike]:
        """Copies of the operands; written operands are NumPy arrays."""
        written = set(self.call.mutated_operands())
        return [
            np.array(x) if isinstance(x, np.ndarray) or i in written else x
            for i, x in enumerate(self.operands)
        ]

    def function(self, *operands: ArrayLike) -> PyTree:
        """The operator as a function of its arrays."""
        args, kwargs = self.call.call_arguments(operands)
        return self.op(*args, **kwargs)

    def with_operands(self, operands: list[ArrayLike]) -> OpcheckCase:
        """The case with other operands."""
        return self._replace(operands=operands)


def opcheck(
    op: Operator | str,
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    *,
    test_utils: str | Sequence[str] | None = None,
    raise_exception: bool = True,
    atol: float | None = None,
    rtol: float | None = None,
) -> dict[str, Any]:
    """Check the custom operator `op`, an operator or its name, on the arguments of one call.

    - `test_schema`: it writes to no argument other than the declared ones, and returns the
      declared number of new arrays.
    - `test_autograd_registration`: its derivative rule is registered for the operator, not
      hidden in an implementation.
    - `test_faketensor`: the abstract rule states the types of the results.
    - `test_aot_dispatch_static`: a compiled program gives the values and gradients of a call.
    - `test_aot_dispatch_dynamic`: it does so for arrays of twice the length, too.

    `test_utils` names the checks to run; by default all run. `atol` and `rtol` are the tolerances
    of the last two, by default 1e-5, or 1e-2 for dtypes of less than 4 bytes.

    Returns "SUCCESS" by the name of each check, or with `raise_exception=False` the OpCheckError of
    a failed one. Else raises OpCheckError for the first check that fails, ValueRangeError for an
    unknown check, and ArgumentError if `args` is not a tuple.

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
    case = OpcheckCase(operator, operator.primitive(**parameters), operands, (atol, rtol))
    results: dict[str, Any] = {}
    for name in names:
        try:
            CHECKS[name](case)
        except Exception as error:
            reason = error.problem if isinstance(error, FunctxError) else error
            failure = OpCheckError(
                f"opcheck({operator.qualname}): {name} failed with {type(error).__name__}: {reason}",
                fix="Correct the rule that it names, or the implementation.",
            )
            failure.__cause__ = error
            if raise_exception:
                raise failure from error
            results[name] = failure
        else:
            results[name] = SUCCESS
    return results


def check_schema(case: OpcheckCase) -> None:
    """Check that the implementation writes to declared arguments only, and returns new arrays."""
    op, call = case.op, case.call
    operands = [np.array(x) for x in case.operands]
    originals = [x.copy() for x in operands]
    rule = dispatch.select_kernel(call, case.operands)
    if rule is None and op.composite is None:
        dispatch.raise_missing_kernel(call, case.operands)
    elif rule is None:
        assert op.composite is not None
        run_body(call, op.composite, operands)
    elif rule.option == "numpy":
        run_kernel(call, rule, operands)
    else:
        run_kernel(call, rule, [jax.numpy.asarray(x) for x in operands])
    names = call.operand_names()
    written = call.mutated_operands()
    for i, (x, original) in enumerate(zip(operands, originals, strict=True)):
        if i not in written and x.tobytes() != original.tobytes():
            raise OpCheckError(
                f"{op.qualname}: an argument that is written to must be named in mutates_args; "
                f"`{names[i]}` is not, and has changed",
                f"schema {op.schema}",
            )


def check_autograd_registration(case: OpcheckCase) -> None:
    """Check that no implementation has a derivative rule, which no transform would use."""
    op, call = case.op, case.call
    if isinstance(call, CompositeCall):
        return
    if call.backward_rule() is not None or registry.get_rule(op, registry.JVP_RULE) is not None:
        return
    if not any(is_inexact(aval_of(x).dtype) for x in case.operands):
        return
    for rule in registry.get_rules(op, registry.KERNEL_RULE).values():
        if _has_derivative_rule(case, rule):
            raise OpCheckError(
                f"{op.qualname}: a derivative rule must be registered for the operator; its "
                f"{rule.kind}, registered at {rule.location}, has one of its own, which no transform sees",
                fix="Register it with register_autograd or def_jvp.",
            )


def _has_derivative_rule(case: OpcheckCase, rule: registry.Registration) -> bool:
    """Whether an implementation is, wraps or calls a function with a custom derivative."""
    fun: object = rule.fun
    while fun is not None:
        if isinstance(fun, (CustomFunction, jax.custom_jvp, jax.custom_vjp)):
            return True
        fun = getattr(fun, "__wrapped__", None)
    if rule.option == "numpy":
        return False

    def function(*xs: Value) -> list[PyTree]:
        return run_kernel(case.call, rule, xs).leaves

    jaxpr = jax.make_jaxpr(function)(*[jax.numpy.asarray(x) for x in case.operands])
    return any("custom_vjp" in eqn.primitive.name for eqn in jaxpr.eqns)


def check_abstract_rule(case: OpcheckCase) -> None:
    """Check the shapes and dtypes that the abstract rule states."""
    op = case.op
    operands = case.copy_operands()
    try:
        stated = case.call.infer_out_avals(tuple([aval_of(x) for x in operands]))
    except DynamicShapeError:
        # An operator with a dynamic shape is in no program, so nothing relies on its types.
        return
    results = case.call.output_types(tuple([aval_of(x) for x in operands]))
    out = case.function(*operands)
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
        actual = aval_of(x)
        shape = tuple(
            [min(n, m) if k in axes else m
             for k, (n, m) in enumerate(zip(actual.shape, aval.shape, strict=False))]
        )  # fmt: skip
        is_number = isinstance(x, (bool, int, float, complex)) and kind(actual.dtype) == kind(
            aval.dtype
        )
        if not is_number and (actual.shape != shape or actual.dtype != aval.dtype):
            raise OpCheckError(
                f"{op.qualname}: its abstract rule must state the types of the results; it states "
                f"{aval!r} for result {i}, which is {ShapedArray(actual.shape, actual.dtype)!r}"
            )


def check_compiled_program(case: OpcheckCase) -> None:
    """Check that a compiled program gives the values, writes and gradients of a call."""
    called, traced = case.copy_operands(), case.copy_operands()
    try:
        case.call.infer_out_avals(tuple([aval_of(x) for x in called]))
    except DynamicShapeError:
        return
    out = case.function(*called)
    program_out = jit(case.function)(*traced)
    padded = case.call.output_types(tuple([aval_of(x) for x in called])).padded
    if padded:
        return
    _check_close(case, "a program must give the results of a call", program_out, out)
    _check_close(case, "a program must write what a call writes", traced, called)
    _check_gradients(case)


def _check_gradients(case: OpcheckCase) -> None:
    """Check that a compiled program gives the gradients of a call, if the operator has a derivative."""
    op = case.op
    inexact = [i for i, x in enumerate(case.operands) if is_inexact(aval_of(x).dtype)]
    has_derivative = (
        isinstance(case.call, CompositeCall)
        or registry.get_rule(op, registry.JVP_RULE)
        or case.call.backward_rule()
    )
    if not inexact or not has_derivative or op.schema.mutated:
        return

    def inexact_outputs(*xs: Value) -> list[Value]:
        operands = list(case.operands)
        for i, x in zip(inexact, xs, strict=True):
            operands[i] = x
        return [x for x in tree.leaves(case.function(*operands)) if is_inexact(x.dtype)]

    def gradients(*xs: ArrayLike) -> Values:
        outs, pullback = vjp(inexact_outputs, *xs)
        return pullback([x * 0 + 1 for x in outs])

    operands = [case.operands[i] for i in inexact]
    if not tree.leaves(jit(inexact_outputs).eval_shape(*operands)):
        return
    called = gradients(*operands)
    # Without this the rule would not run again.
    invalidate_caches()
    _check_close(
        case, "a program must give the gradients of a call", jit(gradients)(*operands), called
    )


def check_compiled_program_for_other_sizes(case: OpcheckCase) -> None:
    """`check_compiled_program`, also with every first axis twice as long if the operator accepts that."""
    check_compiled_program(case)
    longer = [
        np.concatenate([x, x]) if np.ndim(x) else np.asarray(x)
        for x in map(np.asarray, case.operands)
    ]
    other = case.with_operands([
        jax.numpy.asarray(x) if isinstance(old, jax.Array) else x
        for x, old in zip(longer, case.operands, strict=True)
    ])  # fmt: skip
    try:
        other.function(*other.copy_operands())
    except Exception:
        # The operator refuses these shapes.
        return
    check_compiled_program(other)


def _check_close(case: OpcheckCase, requirement: str, got: PyTree, expected: PyTree) -> None:
    """Raise OpCheckError with `requirement` unless the leaves of two pytrees agree."""
    atol, rtol = case.tolerance
    for i, (x, y) in enumerate(zip(tree.leaves(got), tree.leaves(expected), strict=True)):
        a, b = np.asarray(x), np.asarray(y)
        if a.shape != b.shape:
            raise OpCheckError(
                f"{case.op.qualname}: {requirement}; for leaf {i} got {a.shape} and {b.shape}"
            )
        default = 1e-2 if a.dtype.itemsize < 4 and is_inexact(a.dtype) else 1e-5
        wide = [v.astype("complex128" if kind(v.dtype) == "c" else "float64") for v in (a, b)]
        bounds = (default if atol is None else atol, default if rtol is None else rtol)
        if not np.allclose(wide[0], wide[1], atol=bounds[0], rtol=bounds[1], equal_nan=True):
            difference = float(np.max(np.abs(wide[0] - wide[1])))
            raise OpCheckError(
                f"{case.op.qualname}: {requirement}; leaf {i} differs by {difference:.6g} at most",
                fix="Does the implementation depend on something other than its arguments?",
            )


CHECKS: dict[str, Callable[[OpcheckCase], None]] = {
    "test_schema": check_schema,
    "test_autograd_registration": check_autograd_registration,
    "test_faketensor": check_abstract_rule,
    "test_aot_dispatch_static": check_compiled_program,
    "test_aot_dispatch_dynamic": check_compiled_program_for_other_sizes,
}
