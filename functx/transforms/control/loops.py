"""`while_loop` and `fori_loop`: loops over a condition, and over integers."""

from __future__ import annotations

from functools import partial
from operator import index
from typing import Any

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.concretization import concretize
from functx.core.errors import (
    ArgumentError,
    ArgumentWriteError,
    ConcretizationError,
    DTypeError,
    ValueRangeError,
    type_name,
)
from functx.core.program import Program, Var
from functx.core.rewriting import cached_rewrite
from functx.core.tracebacks import api_boundary
from functx.core.tracer import Tracer, aval_of
from functx.core.types import ShapedArray, is_complex, is_inexact, is_integer, promote_types
from functx.core.typing import ArrayLike, Avals, Function, PyTree, Value, Values
from functx.transforms.aliasing import MemoryLayout, capture_key, trace_with_shared_captures
from functx.transforms.argument_names import function_name
from functx.transforms.control.body_tracing import (
    COUNTER_AVAL,
    LoopBody,
    WithProgress,
    body_name,
    cast_to,
    check_callables,
    check_progress,
    closure_variable_names,
    show_completion,
    trace_until_carry_types_settle,
)
from functx.transforms.control.bounded_while import (
    CarryBelowLimit,
    WithUnusedInputs,
    run_with_stacks,
)
from functx.transforms.control.rows import unroll_factor
from functx.transforms.control.scan import Scan, run_scan
from functx.transforms.control.while_loop import DEFAULT_CHECKPOINTS, While
from functx.transforms.dce import with_io
from functx.transforms.tracing_api import TracedFunction, avals_of, has_aval, trace_function


@api_boundary
def while_loop(
    cond_fun: Function,
    body_fun: Function,
    init_val: PyTree,
    *,
    checkpoints: int | None = None,
    max_steps: int | None = None,
    progress: str | None = None,
) -> PyTree:
    """Apply `body_fun` to the carry, `init_val` at first, as long as `cond_fun` of it holds.

    Returns the final carry. Both functions are traced once and may close over values.
    `body_fun` must return a carry of the structure, shapes and dtypes that it takes; weak types
    are promoted. `cond_fun` must return a boolean scalar. Under `vmap`, each batch element runs
    until its own condition fails.

    Reverse mode saves the carries before `checkpoints` of the steps, by default 64, and
    recomputes the others from these: no step runs more than r times if there are at most
    `comb(checkpoints + r, r)`, and recomputed steps have no effects. The saved steps are chosen
    while the loop runs, after Stumm and Walther (2010), "New algorithms for optimal online
    checkpointing". The residuals of a block of steps take up to as much memory again. With
    `max_steps`, the loop stops after that many steps at the latest, and the residuals of each
    step are saved; then nothing is recomputed. `progress` names a progress line on standard
    error that shows the number of steps done.

    Raises CarryTypeError for a carry that changes its type.

    >>> import functx
    >>> int(functx.lax.while_loop(lambda n: n < 100, lambda n: n * 3, 1))
    243
    """
    check_callables("while_loop", cond_fun=cond_fun, body_fun=body_fun)
    caller = body_name("while_loop", body_fun)
    reverse_options = check_reverse_options(caller, checkpoints, max_steps)
    check_progress(caller, progress)
    leaves, carry_tree = tree.flatten_with_key_data(init_val)
    in_tree = tree.call_treedef(carry_tree)
    avals = avals_of(leaves, "while_loop", body_fun, in_tree)

    carry = avals

    def both(memory: MemoryLayout) -> list[TracedFunction]:
        nonlocal carry
        call = partial(
            trace_function,
            in_tree=in_tree,
            kind="while_loop",
            memory=memory,
            carries_writes=True,
        )
        body, carry = trace_until_carry_types_settle(
            lambda types: call(body_fun, avals=types),
            avals,
            carry_tree,
            lambda t: t,
            caller,
            body_fun,
        )
        return [body, call(cond_fun, avals=carry)]

    traced, condition = trace_with_shared_captures(both)
    _check_condition(condition, cond_fun)
    body = LoopBody.of(traced, leaves, carry)
    condition_program, condition_consts = _carry_written_arrays(condition, body.written)
    progress_line = None if progress is None else (progress, None)
    outs = run_while(condition_program, body, condition_consts, reverse_options, progress_line)
    return tree.unflatten(carry_tree, body.results(outs))


def _carry_written_arrays(
    condition: TracedFunction, captures: Values
) -> tuple[Program, list[Value]]:
    """The condition with the arrays that the body writes to as carries, and its other captures."""
    program, num_own = condition.program, len(condition.program.inputs) - len(condition.captured)
    inputs_of = {
        capture_key(x): v for x, v in zip(condition.captured, program.inputs[num_own:], strict=True)
    }
    fresh = [Var(aval_of(x)) for x in captures]
    carried = [inputs_of.pop(capture_key(x), v) for x, v in zip(captures, fresh, strict=True)]
    other_captures = [x for x in condition.captured if capture_key(x) in inputs_of]
    inputs = [*inputs_of.values(), *carried, *program.inputs[:num_own]]
    return with_io(program, inputs, program.outputs), other_captures


def run_while(
    condition: Program,
    body: LoopBody,
    condition_consts: Values,
    reverse_options: tuple[int, int | None],
    progress: tuple[str, int | None] | None = None,
) -> list[Value]:
    """The final carry of a loop, which counts its steps if `reverse_options` bound their number.

    `progress` is the name of the progress line, and the number of steps if known.
    """
    program, consts, _, start = body
    if progress is not None:
        program = cached_rewrite(WithProgress(*progress, len(consts), len(start)), program)
        body = body._replace(program=program, start=[*start, np.int32(0)])
        condition = cached_rewrite(WithUnusedInputs((COUNTER_AVAL,)), condition)
        *outs, count = run_while(condition, body, condition_consts, reverse_options)
        show_completion(*progress, count, outs)
        return outs
    loop = While(condition, program, len(condition_consts), len(consts), *reverse_options)
    if loop.max_steps is None:
        return loop(*condition_consts, *consts, *start)
    return run_with_stacks(loop, program, condition_consts, consts, start, limited=True)[0]


def check_reverse_options(caller: str, checkpoints: Any, max_steps: Any) -> tuple[int, int | None]:
    """The number of states that reverse mode saves, and the largest number of steps or None."""
    for name, value in (("checkpoints", checkpoints), ("max_steps", max_steps)):
        if value is None:
            continue
        if isinstance(value, bool) or not hasattr(type(value), "__index__"):
            raise ArgumentError(
                f"{caller}: {name} must be a positive integer known while tracing; "
                f"got {type_name(value)}"
            )
        if not 1 <= index(value) < 2**31:
            raise ValueRangeError(
                f"{caller}: {name} must be a positive integer below 2**31; got {value}"
            )
    if checkpoints is not None and max_steps is not None:
        raise ArgumentError(
            f"{caller}: there must be either checkpoints or max_steps, since residuals that are saved for "
            f"every step are never recomputed; got checkpoints={checkpoints} and max_steps={max_steps}",
            fix="Leave out max_steps to save memory, checkpoints to save time.",
        )
    return (
        DEFAULT_CHECKPOINTS if checkpoints is None else index(checkpoints),
        None if max_steps is None else index(max_steps),
    )


def _check_condition(traced: TracedFunction, cond_fun: Function) -> None:
    """Raise unless a traced condition writes to no array and returns a boolean scalar."""
    caller = body_name("while_loop", cond_fun)
    if traced.written:
        num_own = len(traced.program.inputs) - len(traced.captured)
        traced.refuse_state_writes(f"{caller}, the condition")
        variable_names = closure_variable_names(cond_fun, traced.captured) or [""] * len(
            traced.captured
        )
        names = [
            *["its carry"] * num_own,
            *[f"`{name}`" if name else "an array" for name in variable_names],
        ]
        raise ArgumentWriteError(
            f"{caller}: the condition must not write to arrays; got one that writes to "
            + " and ".join([names[i] for i in traced.written]),
            fix="Write in the body.",
        )
    avals = traced.program.out_avals
    if (
        len(avals) != 1
        or traced.out_tree.num_nodes != 1
        or avals[0].shape
        or avals[0].dtype != np.bool_
    ):
        actual = avals[0] if avals and traced.out_tree.num_nodes == 1 else traced.out_tree
        raise DTypeError(
            f"{caller}: the condition must return a boolean scalar; got {actual!r}",
            fix="Compare with something, and reduce with .any() or .all().",
        )


@api_boundary
def fori_loop(
    lower: Any,
    upper: ArrayLike,
    body_fun: Function,
    init_val: PyTree,
    *,
    unroll: int | bool | None = None,
    checkpoints: int | None = None,
    max_steps: int | None = None,
    progress: str | None = None,
) -> PyTree:
    """Apply `body_fun(i, value)` to the value, `init_val` at first, for i in range(lower, upper).

    Returns the final value. If the bounds are known while tracing and there are no
    `checkpoints`, it becomes a `scan`, for which `unroll` is as there. Otherwise it becomes a
    `while_loop`, for which `checkpoints` and `max_steps` are as there, and `unroll` must be
    None. `progress` is as in both. A bound may be a float if its value is integral and known
    while tracing.

    Raises CarryTypeError for a value that changes its type.

    >>> import functx
    >>> float(functx.lax.fori_loop(0, 4, lambda i, x: x + i, 0.0))
    6.0
    """
    check_callables("fori_loop", body_fun=body_fun)
    caller = body_name("fori_loop", body_fun)
    reverse_options = check_reverse_options(caller, checkpoints, max_steps)
    check_progress(caller, progress)
    lower, upper = _integral_bound("lower", lower), _integral_bound("upper", upper)
    counter = _counter_aval(lower, upper)
    first, last = _static_bound(lower), _static_bound(upper)
    leaves, carry_tree = tree.flatten_with_key_data(init_val)
    one = tree.structure(0)
    in_tree = tree.call_treedef(carry_tree, one)
    leaves = [0, *leaves]
    avals = avals_of(leaves, "fori_loop", body_fun, tree.call_treedef(one, carry_tree))[1:]
    del leaves[0]

    def step(value: PyTree, i: Value) -> tuple[Any, Any]:
        return body_fun(i, value), ops.add(i, 1)

    step.__name__ = function_name(body_fun)

    def trace_with(carry: Avals) -> TracedFunction:
        return trace_function(step, in_tree, [*carry, counter], "fori_loop", carries_writes=True)

    traced, carry = trace_until_carry_types_settle(
        trace_with, avals, carry_tree, lambda t: t.children()[0], caller, body_fun
    )
    body = LoopBody.of(traced, [*leaves, lower], [*carry, counter], body_fun)
    if first is not None and last is not None and checkpoints is None:
        length = max(last - first, 0)
        length = length if max_steps is None else min(length, index(max_steps))
        rounds = unroll_factor(caller, 1 if unroll is None else unroll, length)
        loop = Scan(body.program, len(body.consts), len(body.start), length, False, rounds)
        results = body.results(run_scan(loop, [*body.consts, *body.start], progress))
        if traced.row_terms:
            _note_row_terms(traced, body, results, range(first, first + length), counter)
    elif unroll is not None:
        raise ValueRangeError(
            f"{caller}: the bounds must be known while tracing to unroll, and there must be no "
            f"checkpoints; got unroll={unroll} for bounds {type_name(lower)} and "
            f"{type_name(upper)}, checkpoints={checkpoints}"
        )
    else:
        condition = cached_rewrite(CarryBelowLimit(len(body.consts), -1, "below"), body.program)
        num_steps = None if first is None or last is None else max(last - first, 0)
        progress_line = None if progress is None else (progress, num_steps)
        limit = [cast_to(upper, counter)]
        results = body.results(run_while(condition, body, limit, reverse_options, progress_line))
    return tree.unflatten(carry_tree, results[:-1])


def _note_row_terms(
    traced: TracedFunction, body: LoopBody, results: Values, numbers: range, counter: ShapedArray
) -> None:
    """Note the terms of sums over rows that the iterations of these numbers computed."""
    iota = ops.add(ops.broadcasted_iota(counter.dtype, (len(numbers),), 0), numbers.start)
    iota = ops.convert_element_type(iota, counter.dtype, counter.weak_type)
    start = body.start[len(body.written) : -1]
    args = [*start, iota, *traced.captured]
    dims = [0 if x is iota else None for x in args]
    traced.row_terms.note(args, dims, results, len(start))


def _counter_aval(lower: ArrayLike, upper: ArrayLike) -> ShapedArray:
    """The integer type of the counter for loop bounds of these types."""
    avals = []
    for name, x in (("lower", lower), ("upper", upper)):
        try:
            aval = aval_of(x)
        except ArgumentError:
            raise ArgumentError(
                f"fori_loop: `{name}` must be an integer; got {type_name(x)}"
            ) from None
        if aval.shape or not is_integer(aval.dtype):
            raise DTypeError(
                f"fori_loop: `{name}` must be an integer scalar; got {aval!r}",
                fix="Convert it with astype(int), which drops a fraction.",
            )
        avals.append(aval)
    promoted = promote_types(tuple([(a.dtype, a.weak_type) for a in avals]))
    if promoted is None or not is_integer(promoted[0]):
        raise DTypeError(
            f"fori_loop: the bounds must have a common integer dtype; got {avals[0]!r} and {avals[1]!r}"
        )
    return ShapedArray((), *promoted)


def _integral_bound(name: str, x: ArrayLike) -> Any:
    """A loop bound; a float of known integral value becomes an integer."""
    if not (has_aval(x) and is_inexact((aval := aval_of(x)).dtype)):
        return x
    try:
        value = concretize(x, "fori_loop") if type(x) is Tracer else np.asarray(x)
    except ConcretizationError:
        return x
    if aval.shape or is_complex(aval.dtype):
        return x
    if not float(value).is_integer():
        raise ValueRangeError(
            f"fori_loop: a float `{name}` must be a whole number; got {value}",
            fix="Round it up or down, with math.ceil or math.floor.",
        )
    return int(value)


def _static_bound(x: Any) -> int | None:
    """The value of a loop bound if it is known while tracing, else None."""
    try:
        return int(concretize(x, "fori_loop")) if type(x) is Tracer else index(x)
    except (ConcretizationError, TypeError):
        return None
