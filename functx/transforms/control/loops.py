"""`while_loop` and `fori_loop`: a function run until a condition fails, or from a number to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.core.tracebacks import api_boundary
from functx.core.tracing import Tracer, aval_of, trace_closed
from functx.core.types import ShapedArray, is_complex, is_inexact, is_integer, promote_types
from functx.transforms.control.body_tracing import (
    COUNTER_AVAL,
    WithProgress,
    body_name,
    cast_outputs,
    cast_to,
    check_callables,
    check_progress,
    closure_variable_names,
    show_completion,
    trace_until_carry_types_settle,
    with_captures_first,
    write_back_captures,
)
from functx.transforms.control.bounded_while import (
    WithUnusedInputs,
    run_with_stacks,
)
from functx.transforms.control.scan import Scan, run_scan, unroll_factor
from functx.transforms.control.while_loop import DEFAULT_CHECKPOINTS, While
from functx.transforms.dce import with_io
from functx.transforms.tracing_api import (
    TracedFunction,
    avals_of,
    capture_key,
    function_name,
    has_aval,
    trace_function,
    trace_with_shared_captures,
)


@api_boundary
def while_loop(
    cond_fun: Callable[[Any], Any],
    body_fun: Callable[[Any], Any],
    init_val: Any,
    *,
    checkpoints: int | None = None,
    max_steps: int | None = None,
    progress: str | None = None,
) -> Any:
    """What `body_fun` makes of `init_val`, applied again as long as `cond_fun` of it holds.

    Both are traced once and may use values around them. `body_fun` must return a carry of
    the types it takes, where weak types give way; `cond_fun` a boolean scalar. Under `vmap`
    each lane runs as long as its own condition holds.

    Reverse mode keeps the carries before `checkpoints` of the steps, 64 unless given, and
    computes the others again from these: no step runs more than r times where there are at
    most `comb(checkpoints + r, r)`, and effects do not take place again. The steps that are
    kept are chosen while the loop runs, after Stumm and Walther (2010), "New algorithms for
    optimal online checkpointing". What some steps in a row leave behind to be run back takes
    up to as much memory again. With `max_steps`, the loop stops after so many steps at the
    latest, and keeps what reverse mode needs of each; then nothing is computed again.
    `progress` is the name of a line on standard error that shows how many steps are done.

    Raises CarryTypeError for a carry that changes its type.

    >>> import functx
    >>> int(functx.lax.while_loop(lambda n: n < 100, lambda n: n * 3, 1))
    243
    """
    check_callables("while_loop", cond_fun=cond_fun, body_fun=body_fun)
    what = body_name("while_loop", body_fun)
    means = check_reverse_options(what, checkpoints, max_steps)
    check_progress(what, progress)
    leaves, carry_tree = tree.flatten_with_key_data(init_val)
    in_tree = tree.call_treedef(carry_tree)
    avals = avals_of(leaves, "while_loop", body_fun, in_tree)

    carry = avals

    def both(from_roots: bool) -> list[TracedFunction]:
        nonlocal carry
        call = partial(trace_function, in_tree=in_tree, kind="while_loop", from_roots=from_roots)
        body, carry = trace_until_carry_types_settle(
            lambda types: call(body_fun, avals=types),
            avals,
            carry_tree,
            lambda t: t,
            what,
            body_fun,
        )
        return [body, call(cond_fun, avals=carry)]

    traced, condition = trace_with_shared_captures(both)
    _check_condition(condition, cond_fun)
    traced, around = traced.with_writes_as_carries()
    types = [aval_of(x) for x in around]
    runs, known = _carry_written_arrays(condition, around)
    body = cast_outputs(with_captures_first(traced), [*types, *carry])
    start = [cast_to(x, a) for x, a in zip(leaves, carry, strict=True)]
    consts = [known, traced.captured[: len(traced.captured) - len(around)]]
    shown = None if progress is None else (progress, None)
    outs = run_while(runs, body, consts, [*around, *start], means, shown)
    return tree.unflatten(carry_tree, write_back_captures(around, outs))


def _carry_written_arrays(
    condition: TracedFunction, around: Sequence[Any]
) -> tuple[Program, list[Any]]:
    """The condition of a loop that carries the arrays `around`, and what else it captured."""
    program, own = condition.program, len(condition.program.inputs) - len(condition.captured)
    seen = {
        capture_key(x): v for x, v in zip(condition.captured, program.inputs[own:], strict=True)
    }
    fresh = [Var(aval_of(x)) for x in around]
    carried = [seen.pop(capture_key(x), v) for x, v in zip(around, fresh, strict=True)]
    known = [x for x in condition.captured if capture_key(x) in seen]
    inputs = [*seen.values(), *carried, *program.inputs[:own]]
    return with_io(program, inputs, program.outputs), known


def run_while(
    condition: Program,
    body: Program,
    consts: Sequence[Sequence[Any]],
    start: Sequence[Any],
    means: tuple[int, int | None],
    progress: tuple[str, int | None] | None = None,
) -> list[Any]:
    """The last carry of a loop that counts its steps if `means` bound their number.

    `progress` is the name of the line that shows how far it is, and their number if known.
    """
    shared, own = consts
    if progress is not None:
        body = cached_rewrite(WithProgress(*progress, len(own), len(start)), body)
        condition = cached_rewrite(WithUnusedInputs((COUNTER_AVAL,)), condition)
        *outs, count = run_while(condition, body, consts, [*start, np.int32(0)], means)
        show_completion(*progress, count, outs)
        return outs
    loop = While(condition, body, len(shared), len(own), *means)
    if loop.max_steps is None:
        return loop(*shared, *own, *start)  # type: ignore[no-any-return]
    return run_with_stacks(loop, body, shared, own, start, limited=True)[0]


def check_reverse_options(what: str, checkpoints: Any, max_steps: Any) -> tuple[int, int | None]:
    """How many states reverse mode keeps, and the largest number of steps if there is one."""
    for name, value in (("checkpoints", checkpoints), ("max_steps", max_steps)):
        if value is None:
            continue
        if isinstance(value, bool) or not hasattr(type(value), "__index__"):
            raise ArgumentError(
                f"{what}: {name} must be a positive integer known while tracing; "
                f"got {type_name(value)}"
            )
        if not 1 <= index(value) < 2**31:
            raise ValueRangeError(
                f"{what}: {name} must be a positive integer below 2**31; got {value}"
            )
    if checkpoints is not None and max_steps is not None:
        raise ArgumentError(
            f"{what}: there must be checkpoints or max_steps, since what is kept for every step "
            f"is never computed again; got checkpoints={checkpoints} and max_steps={max_steps}",
            fix="Leave out max_steps to save memory, checkpoints to save time.",
        )
    return (
        DEFAULT_CHECKPOINTS if checkpoints is None else index(checkpoints),
        None if max_steps is None else index(max_steps),
    )


def _check_condition(traced: TracedFunction, cond_fun: Any) -> None:
    what = body_name("while_loop", cond_fun)
    if traced.written:
        own = len(traced.program.inputs) - len(traced.captured)
        around = closure_variable_names(cond_fun, traced.captured) or [""] * len(traced.captured)
        names = [*["its carry"] * own, *[f"`{name}`" if name else "an array" for name in around]]
        raise ArgumentWriteError(
            f"{what}: the condition must not write to arrays; got one that writes to "
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
        given = avals[0] if avals and traced.out_tree.num_nodes == 1 else traced.out_tree
        raise DTypeError(
            f"{what}: the condition must return a boolean scalar; got {given!r}",
            fix="Compare with something, and reduce with .any() or .all().",
        )


@api_boundary
def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, Any], Any],
    init_val: Any,
    *,
    unroll: int | bool | None = None,
    checkpoints: int | None = None,
    max_steps: int | None = None,
    progress: str | None = None,
) -> Any:
    """What `body_fun(i, value)` makes of `init_val`, for i from `lower` to before `upper`.

    With bounds that are known while tracing it is a `scan`, unless there are `checkpoints`;
    else a `while_loop`, to which `checkpoints` and `max_steps` mean the same. `unroll` is as
    in `scan`, and needs one. `progress` is as in both. A float that is known while tracing, and
    whole, is a bound too.

    Raises CarryTypeError for a value that changes its type.

    >>> import functx
    >>> float(functx.lax.fori_loop(0, 4, lambda i, x: x + i, 0.0))
    6.0
    """
    check_callables("fori_loop", body_fun=body_fun)
    what = body_name("fori_loop", body_fun)
    means = check_reverse_options(what, checkpoints, max_steps)
    check_progress(what, progress)
    lower, upper = _integral_bound("lower", lower), _integral_bound("upper", upper)
    counter = _counter_aval(lower, upper)
    first, last = _static_bound(lower), _static_bound(upper)
    leaves, carry_tree = tree.flatten_with_key_data(init_val)
    one = tree.structure(0)
    in_tree = tree.call_treedef(carry_tree, one)
    leaves = [0, *leaves]
    avals = avals_of(leaves, "fori_loop", body_fun, tree.call_treedef(one, carry_tree))[1:]
    del leaves[0]

    def step(value: Any, i: Any) -> tuple[Any, Any]:
        return body_fun(i, value), ops.add(i, 1)

    step.__name__ = function_name(body_fun)

    def trace_with(carry: Sequence[ShapedArray]) -> TracedFunction:
        return trace_function(step, in_tree, [*carry, counter], "fori_loop")

    traced, carry = trace_until_carry_types_settle(
        trace_with, avals, carry_tree, lambda t: t.children()[0], what, body_fun
    )
    traced, around = traced.with_writes_as_carries()
    types = [aval_of(x) for x in around]
    body = cast_outputs(with_captures_first(traced, body_fun), [*types, *carry])
    start = [cast_to(x, a) for x, a in zip(leaves, carry, strict=True)]
    operands = [*traced.captured, *start, cast_to(lower, counter)]
    consts, carries = len(traced.captured) - len(around), len(around) + len(start) + 1
    if first is not None and last is not None and checkpoints is None:
        length = max(last - first, 0)
        length = length if max_steps is None else min(length, index(max_steps))
        rounds = unroll_factor(what, 1 if unroll is None else unroll, length)
        outs = run_scan(Scan(body, consts, carries, length, False, rounds), operands, progress)
    elif unroll is not None:
        raise ValueRangeError(
            f"{what}: the bounds must be known while tracing to unroll, and there must be no "
            f"checkpoints; got unroll={unroll} for bounds {type_name(lower)} and "
            f"{type_name(upper)}, checkpoints={checkpoints}"
        )
    else:
        condition = cached_rewrite(CounterBelowLimit((*types, *carry, counter)), body)
        limit = [cast_to(upper, counter)]
        known = None if first is None or last is None else max(last - first, 0)
        shown = None if progress is None else (progress, known)
        given = [limit, operands[:consts]]
        outs = run_while(condition, body, given, operands[consts:], means, shown)
    return tree.unflatten(carry_tree, write_back_captures(around, outs)[:-1])


class CounterBelowLimit(Rewrite[Program]):
    """The condition that the last of a carry of types `avals` is below the const before it."""

    avals: tuple[ShapedArray, ...]

    def __call__(self, body: Program) -> Program:
        avals = [self.avals[-1], *self.avals]
        return trace_closed(lambda limit, *carry: [ops.lt(carry[-1], limit)], avals, name="below")


def _counter_aval(lower: Any, upper: Any) -> ShapedArray:
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
    found = promote_types(tuple([(a.dtype, a.weak_type) for a in avals]))
    if found is None or not is_integer(found[0]):
        raise DTypeError(
            f"fori_loop: the bounds must have a common integer dtype; got {avals[0]!r} and {avals[1]!r}"
        )
    return ShapedArray((), *found)


def _integral_bound(name: str, x: Any) -> Any:
    """A loop bound: a float of known integral value becomes that integer."""
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
    """The value of a bound, if it has one while tracing."""
    try:
        return int(concretize(x, "fori_loop")) if type(x) is Tracer else index(x)
    except (ConcretizationError, TypeError):
        return None
