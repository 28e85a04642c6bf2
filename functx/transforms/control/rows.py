"""`scan` and `map`: loops over the rows of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, SupportsIndex

from functx import ops
from functx.core import tree
from functx.core.errors import ArgumentError, AxisSizeError, ValueRangeError, short_repr, type_name
from functx.core.tracebacks import api_boundary
from functx.core.tracer import aval_of
from functx.core.typing import Avals, Function, PyTree, Value
from functx.core.wrapper_axes import check_sliced_axis, check_stacked_axis
from functx.transforms.argument_names import copy_function_metadata, key_path_strings
from functx.transforms.control.body_tracing import (
    LoopBody,
    body_name,
    check_callables,
    check_progress,
    trace_until_carry_types_settle,
)
from functx.transforms.control.scan import Scan, run_scan
from functx.transforms.tracing_api import TracedFunction, avals_of, trace_function
from functx.transforms.vmap import vmap


@api_boundary
def scan(
    f: Function,
    init: PyTree,
    xs: PyTree = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    progress: str | None = None,
) -> tuple[Any, Any]:
    """Loop over the rows of `xs`; return `(carry, ys)`, the final carry and stacked outputs.

    `f(carry, x)` returns `(carry, y)`. It is traced once, may close over values, and must
    return a carry of the structure, shapes and dtypes that it takes; weak types are promoted.
    `xs` is a pytree of arrays with a common leading axis, or None if `length` is given. With
    `reverse` the loop begins at the last row. `unroll` is the number of steps per iteration of
    the compiled loop, or True to unroll it completely. `progress` names a progress line on
    standard error.

    Raises CarryTypeError for a carry that changes its type, AxisSizeError if the lengths of the
    leading axes differ.

    >>> import functx, numpy
    >>> total, sums = functx.lax.scan(lambda c, x: (c + x, c + x), 0.0, numpy.arange(1.0, 4.0))
    >>> float(total), sums.tolist()
    (6.0, [1.0, 3.0, 6.0])
    """
    check_callables("scan", f=f)
    caller = body_name("scan", f)
    check_progress(caller, progress)
    carry_leaves, carry_tree = tree.flatten_with_key_data(init)
    x_leaves, x_tree = tree.flatten_with_key_data(xs)
    in_tree = tree.call_treedef(carry_tree, x_tree)
    leaves, count = [*carry_leaves, *x_leaves], len(carry_leaves)
    leaf_avals = avals_of(leaves, "scan", f, in_tree)
    carry_leaves, x_leaves = leaves[:count], leaves[count:]
    length = scan_length(caller, leaf_avals[count:], x_tree, length)
    check_sliced_axis(caller, "scanned", x_tree, leaf_avals[count:])
    rows = [a.update(shape=a.shape[1:]) for a in leaf_avals[count:]]

    def step(carry: PyTree, x: Value) -> PyTree:
        out = f(carry, x)
        if not isinstance(out, (tuple, list)) or len(out) != 2:
            raise ArgumentError(
                f"{caller}: the body must return a pair (carry, y); got {type_name(out)}",
                fix="Return (carry, None) where each step has no output.",
            )
        return tuple(out)

    copy_function_metadata(step, f, "scan").__name__ = getattr(f, "__name__", "body")

    def trace_with(carry: Sequence[PyTree]) -> TracedFunction:
        return trace_function(step, in_tree, [*carry, *rows], "scan", carries_writes=True)

    traced, carry = trace_until_carry_types_settle(
        trace_with, leaf_avals[:count], carry_tree, lambda t: t.children()[0], caller, f
    )
    y_tree = traced.out_tree.children()[1]
    check_stacked_axis(caller, y_tree, traced.out_avals[count:])
    body = LoopBody.of(traced, carry_leaves, carry, f)
    factor = unroll_factor(caller, unroll, length)
    loop = Scan(body.program, len(body.consts), len(body.start), length, bool(reverse), factor)
    outs = body.results(run_scan(loop, [*body.consts, *body.start, *x_leaves], progress))
    if terms := traced.row_terms:
        dims = [None] * count + [0] * len(x_leaves) + [None] * len(traced.captured)
        start = body.start[len(body.start) - count :]
        terms.note([*start, *x_leaves, *traced.captured], dims, outs, count)
    return tree.unflatten(carry_tree, outs[:count]), tree.unflatten(y_tree, outs[count:])


@api_boundary
def map(f: Function, xs: PyTree, *, batch_size: int | None = None) -> PyTree:
    """Apply `f` to each row of `xs`, one after the other, and stack the results.

    Like `vmap`, but holds the intermediate values of one call at a time, or of `batch_size`
    calls; with `batch_size=0`, of all calls. `xs` is a pytree of arrays with a common leading
    axis, which the results have too.

    Raises AxisSizeError if the lengths of the leading axes differ.

    >>> import functx, numpy
    >>> functx.lax.map(lambda x: x * x, numpy.arange(4.0)).tolist()
    [0.0, 1.0, 4.0, 9.0]
    """
    check_callables("map", f=f)
    if batch_size is None:
        return scan(copy_function_metadata(lambda _, x: ((), f(x)), f, "map"), (), xs)[1]
    leaves, x_tree = tree.flatten_with_key_data(xs)
    caller = body_name("map", f)
    avals = [aval_of(x) for x in leaves]
    length = scan_length(caller, avals, x_tree, None)
    check_sliced_axis(caller, "mapped", x_tree, avals)
    batch_size = non_negative_integer(caller, "batch_size", batch_size)
    # No row at a time: all are the remainder.
    if not batch_size:
        return vmap(f, randomness="different")(xs)
    num_batched = length - length % batch_size
    results = []
    if num_batched or not length:
        batches = [
            ops.reshape(
                ops.slice_in_dim(x, 0, num_batched),
                (num_batched // batch_size, batch_size, *aval_of(x).shape[1:]),
            )
            for x in leaves
        ]
        batched = vmap(f, randomness="different")
        stacked = map(batched, tree.unflatten(x_tree, batches))
        results.append(
            _map_key_words(lambda y: ops.reshape(y, (num_batched, *aval_of(y).shape[2:])), stacked)
        )
    if num_batched < length:
        remainder = [ops.slice_in_dim(x, num_batched, length) for x in leaves]
        batched = vmap(f, randomness="different")
        results.append(batched(tree.unflatten(x_tree, remainder)))
    return (
        results[0]
        if len(results) == 1
        else _map_key_words(lambda *ys: ops.concatenate(ys, 0), *results)
    )


def _map_key_words(f: Function, *trees: Value) -> PyTree:
    """Apply `f` to the leaves of pytrees of one structure; to the words of typed keys."""
    (_, structure), *_ = flat = [tree.flatten_with_key_data(x) for x in trees]
    return tree.unflatten(structure, [f(*xs) for xs in zip(*[xs for xs, _ in flat], strict=True)])


def scan_length(
    caller: str, avals: Avals, x_tree: tree.TreeDef, length: SupportsIndex | None
) -> int:
    """The common length of the leading axes of `xs`, which must equal `length` if that is given."""
    for i, aval in enumerate(avals):
        if not aval.ndim:
            path = key_path_strings(x_tree, avals)[i]
            raise AxisSizeError(f"{caller}: xs must have rows; got the scalar xs{path}: {aval!r}")
    sizes = {aval.shape[0] for aval in avals}
    if length is not None:
        try:
            sizes.add(index(length))
        except TypeError:
            raise ArgumentError(
                f"{caller}: the length must be an integer known while tracing; got {short_repr(length)}",
                fix="Use while_loop for a number of steps that is not known.",
            ) from None
    if not sizes:
        raise AxisSizeError(
            f"{caller}: there must be xs or a length; got neither",
            fix="Write scan(f, init, xs), or pass length=n.",
        )
    if len(sizes) > 1:
        paths = key_path_strings(x_tree, avals)
        rows = [f"xs{path}: {aval!r}" for path, aval in zip(paths, avals, strict=True)]
        raise AxisSizeError(
            f"{caller}: xs and length must agree on the number of steps; "
            f"got {' and '.join([str(n) for n in sorted(sizes)])}",
            *rows,
            *([] if length is None else [f"length={length}"]),
            fix="Let all arrays of xs have one length, and close over what every step shares.",
        )
    size: int = sizes.pop()
    if size < 0:
        raise AxisSizeError(f"{caller}: the length must not be negative; got {size}")
    return size


def unroll_factor(caller: str, unroll: object, length: int) -> int:
    """The number of the `length` steps that one iteration of the compiled loop runs."""
    if isinstance(unroll, bool):
        return max(length, 1) if unroll else 1
    return max(non_negative_integer(caller, "unroll", unroll), 1)


def non_negative_integer(caller: str, name: str, value: Any) -> int:
    """The argument `name` as an integer; raises if it is negative or no integer."""
    try:
        count = index(value)
    except TypeError:
        raise ArgumentError(
            f"{caller}: {name} must be an integer; got {short_repr(value)}"
        ) from None
    if count < 0:
        raise ValueRangeError(f"{caller}: {name} must not be negative; got {count}")
    return count
