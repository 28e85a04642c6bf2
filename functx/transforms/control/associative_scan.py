"""`associative_scan`: all prefix reductions of the elements along an axis, in parallel."""

from __future__ import annotations

from collections.abc import Callable

from functx import ops
from functx.core import tree
from functx.core.errors import ArgumentError, DTypeError, ShapeError, TreeError, type_name
from functx.core.tracebacks import api_boundary
from functx.core.tracer import aval_of
from functx.core.types import ShapedArray
from functx.core.typing import Function, PyTree, Value, Values
from functx.core.wrapper_axes import check_sliced_axis
from functx.ops.operands import canonical_axis
from functx.ops.views import copy_if_shared
from functx.transforms.control.body_tracing import body_name, check_callables

__all__ = ["associative_scan"]


@api_boundary
def associative_scan(fn: Function, elems: PyTree, reverse: bool = False, axis: int = 0) -> PyTree:
    """Combine the elements of `elems` up to each position along `axis` by the associative `fn`.

    Returns a pytree of the structure, shapes and dtypes of `elems`, a pytree of arrays of one
    length along `axis`. A negative `axis` counts from the last axis of the first array.
    `fn(x, y)` takes two such pytrees, of any length along `axis`, and combines them elementwise,
    `x` being earlier. With `reverse` it goes from the end to the front. It calls `fn` about
    2 log2(n) times, each time on many elements at once (Blelloch 1990, section 1.4).

    Raises TreeError, ShapeError and DTypeError if `fn` returns other types than it takes.

    >>> import functx, numpy
    >>> functx.lax.associative_scan(lambda x, y: x * y, numpy.arange(1.0, 6.0)).tolist()
    [1.0, 2.0, 6.0, 24.0, 120.0]
    """
    check_callables("associative_scan", fn=fn)
    caller = body_name("associative_scan", fn)
    leaves, structure = tree.flatten(elems)
    if not leaves:
        raise TreeError(f"{caller}: there must be an array to scan; got {elems!r}")
    paths = [tree.keystr(path) for path, _ in tree.leaves_with_path(elems)]
    avals = []
    for path, x in zip(paths, leaves, strict=True):
        try:
            avals.append(aval_of(x))
        except ArgumentError:
            raise ArgumentError(
                f"{caller}: elems must be arrays; got {type_name(x)} for elems{path}"
            ) from None
    axis = canonical_axis(axis, avals[0].ndim, f"{caller}: axis")
    check_sliced_axis(caller, "scanned", structure, avals, axis)
    if any(aval.ndim <= axis or aval.shape[axis] != avals[0].shape[axis] for aval in avals):
        raise ShapeError(
            f"{caller}: elems must have one length along axis {axis}; got "
            + " and ".join([f"elems{path}: {a!r}" for path, a in zip(paths, avals, strict=True)])
        )

    def combine(xs: Values, ys: Values) -> list[Value]:
        combined = fn(tree.unflatten(structure, xs), tree.unflatten(structure, ys))
        outs, out_tree = tree.flatten(combined)
        tree.check_same_structure(structure, out_tree, f"{caller}: what fn returns", "elems")
        for path, out, x in zip(paths, outs, xs, strict=True):
            _check_same_type(caller, path, out, aval_of(x))
        return outs

    if reverse:
        leaves = [ops.rev(x, (axis,)) for x in leaves]
    outs = _scan_recursively(combine, leaves, avals[0].shape[axis], axis)
    if reverse:
        outs = [ops.rev(x, (axis,)) for x in outs]
    return tree.unflatten(structure, [copy_if_shared(x, *leaves) for x in outs])


def _scan_recursively(
    combine: Callable[[Values, Values], list[Value]], xs: Values, count: int, axis: int
) -> Values:
    """The prefix reductions of `count` elements, from those of half as many pairs."""
    if count < 2:
        return xs
    # The reductions up to odd positions are those of pairs; those up to even ones add one element.
    half, rest = count // 2, (count - 1) // 2
    evens, odds, later = zip(*[_deinterleave(x, axis) for x in xs], strict=True)
    odd = _scan_recursively(combine, combine(evens, odds), half, axis)
    even = list(evens)
    if rest:
        added = combine([ops.slice_in_dim(x, 0, rest, 1, axis) for x in odd], later)
        first = [ops.slice_in_dim(x, 0, 1, 1, axis) for x in evens]
        even = [ops.concatenate(parts, axis) for parts in zip(first, added, strict=True)]
    return [_interleave(x, y, axis) for x, y in zip(even, odd, strict=True)]


def _deinterleave(x: Value, axis: int) -> tuple[Value, Value, Value]:
    """The elements of the pairs in `x` at even and at odd positions, and those at even ones from 2 on."""
    shape = aval_of(x).shape
    n, count = shape[axis], shape[axis] // 2
    x, *last = ops.split(x, (n - 1, 1), axis) if n % 2 else (x,)
    pairs = ops.reshape(x, (*shape[:axis], count, 2, *shape[axis + 1 :]))
    even, odd = [
        ops.reshape(part, (*shape[:axis], count, *shape[axis + 1 :]))
        for part in ops.split(pairs, (1, 1), axis + 1)
    ]
    return even, odd, ops.concatenate([ops.slice_in_dim(even, 1, count, 1, axis), *last], axis)


def _interleave(even: Value, odd: Value, axis: int) -> Value:
    """The elements of `even` and `odd` in alternation; `even` may have one more."""
    shape = aval_of(odd).shape
    n = shape[axis]
    each = (*shape[:axis], n, 1, *shape[axis + 1 :])
    pairs = [ops.reshape(ops.slice_in_dim(even, 0, n, 1, axis), each), ops.reshape(odd, each)]
    both = ops.reshape(ops.concatenate(pairs, axis + 1), (*shape[:axis], 2 * n, *shape[axis + 1 :]))
    if aval_of(even).shape[axis] == n:
        return both
    return ops.concatenate([both, ops.slice_in_dim(even, n, n + 1, 1, axis)], axis)


def _check_same_type(caller: str, path: str, out: PyTree, expected: ShapedArray) -> None:
    """Raise unless a result of `fn` has the shape and dtype of its operand."""
    try:
        actual = aval_of(out)
    except ArgumentError:
        raise ArgumentError(
            f"{caller}: fn must return arrays; got {type_name(out)} for elems{path}"
        ) from None
    must = f"{caller}: fn must return arrays of the shapes and dtypes that it takes; got"
    if actual.shape != expected.shape:
        raise ShapeError(
            f"{must} {actual!r} for elems{path}: {expected!r}",
            fix="fn gets slices of elems, not single elements: it must work element by element "
            "(map one that does not with vmap).",
        )
    if actual.dtype != expected.dtype:
        raise DTypeError(
            f"{must} {actual!r} for elems{path}: {expected!r}",
            fix="Convert the result, or elems before the scan, with astype.",
        )
