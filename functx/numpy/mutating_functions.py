"""Functions and methods that write to an array: `put`, `copyto`, `place`, `x.sort()`, `x.flat`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from functx import ops
from functx.core.errors import ArgumentError, ImmutableArrayError, ShapeError, type_name
from functx.core.primitive_families import View
from functx.core.program import Atom, Equation
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.typing import ArrayLike, ArrayOrList, Index, NumPyArray, ShapeLike, Value
from functx.core.wrappers import is_wrapper
from functx.numpy import floating_point, indexing, joining, shapes, sorting_and_searching, ufuncs
from functx.numpy.array_creation import asarray, zeros
from functx.numpy.indexer import cast_for_assignment, drop_leading_ones
from functx.numpy.indexing import IndexUpdateRef
from functx.numpy.inspection import can_cast
from functx.numpy.mutation import assign_array, check_mask, set_item
from functx.numpy.promotion import operand
from functx.ops.operands import PYTHON_SCALARS
from functx.ops.views import Copy

__all__ = ["copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask"]


Assignable: TypeAlias = Value | NumPyArray
"""An array that can be written to, if it is traced or of NumPy."""


def check_assignable(name: str, x: object) -> Tracer | NumPyArray:
    """`x`, which must be a traced or a NumPy array; raises ImmutableArrayError for others."""
    if isinstance(x, (Tracer, np.ndarray)) or is_wrapper(x):
        return x  # type: ignore[return-value]
    raise ImmutableArrayError(
        f"{name}: the target must be a NumPy array or a traced one; got {type_name(x)}",
        fix="Convert it with numpy.array before.",
    )


def _assign_or_return(name: str, a: object, new: Value, inplace: bool) -> Assignable | None:
    """None after `new` is written to `a`, if `inplace`; else `new`."""
    if not inplace:
        return new
    assign_array(check_assignable(name, a), new, name)
    return None


def _cast(value: ArrayOrList, x: ArrayLike) -> Value:
    return cast_for_assignment(
        value if type(value) in PYTHON_SCALARS else asarray(value), aval_of(x).dtype
    )


def copyto(
    dst: Assignable, src: ArrayOrList, casting: str = "same_kind", where: ArrayOrList = True
) -> None:
    """Write `src`, broadcast to the shape of `dst`, to `dst` where the mask `where` is True.

    `casting` is NumPy's casting rule; the default is "same_kind".
    """
    check_assignable("copyto", dst)
    if casting == "unsafe":
        src = _cast(src, dst)
    elif casting != "same_kind" and not can_cast(src, dst, casting):
        raise ArgumentError(
            f"copyto: {type_name(src)} must be castable to {type_name(dst)} by the rule {casting!r}"
        )
    if where is not True:
        check_mask("copyto", where)
        src = ufuncs.where(where, src, dst)
    assign_array(dst, drop_leading_ones(operand(src), aval_of(dst).ndim), "copyto")


def put(
    a: Assignable, ind: ArrayOrList, v: ArrayOrList, mode: str = "raise", *, inplace: bool = True
) -> Assignable | None:
    """Write the values `v`, repeated as needed, to the indices `ind` of the flattened `a`.

    By default a known index out of bounds raises IndexingError; "wrap" takes indices modulo
    the size, "clip" moves them into bounds. Without `inplace`, the result is a new array.
    """
    indices = (
        np.asarray(ind).ravel() if is_concrete_value(ind) else shapes.reshape(asarray(ind), -1)
    )
    if aval_of(indices).dtype == bool:
        indices = shapes.astype(indices, np.int32)
    values = shapes.reshape(asarray(v), -1)
    count, size = aval_of(indices).size, aval_of(a).size
    indices = ops.widen_index(indices, size)
    if not count or not aval_of(values).size:
        return None if inplace else a
    if mode == "wrap":
        indices = floating_point.remainder(indices, size)
    elif mode == "clip":
        indices = ufuncs.clip(indices, 0, size - 1)
    values = _repeat_values("put", values, count)
    flat = IndexUpdateRef(shapes.reshape(a, -1), indices).set(_cast(values, a))
    return _assign_or_return("put", a, shapes.reshape(flat, aval_of(a).shape), inplace)


def is_concrete_value(x: object) -> bool:
    """Whether `x` is concrete: a number, a NumPy array, or a list of them."""
    if isinstance(x, (list, tuple)):
        return all(map(is_concrete_value, x))
    return isinstance(x, (int, float, complex, np.generic, np.ndarray))


def _repeat_values(name: str, values: ArrayOrList, count: int) -> Value:
    """A vector of `count` elements that repeats `values`."""
    size = aval_of(values).size
    if not size:
        raise ShapeError(f"{name}: there must be values to write; got none for {count} places")
    return indexing.take(values, np.arange(count) % size)


def place(
    arr: Assignable, mask: ArrayOrList, vals: ArrayOrList, *, inplace: bool = True
) -> Assignable | None:
    """Write the values `vals`, in order and repeated as needed, to `arr` where the mask is True.

    Without `inplace`, the result is a new array.
    """
    values, selected = shapes.reshape(asarray(vals), -1), shapes.reshape(asarray(mask), -1) != 0
    if aval_of(selected).size != aval_of(arr).size:
        raise ShapeError(
            f"place: the mask must have the size of the array; got {type_name(mask)} for {type_name(arr)}"
        )
    if not aval_of(values).size:
        if is_concrete_value(mask) and not np.any(np.asarray(mask)):
            return None if inplace else arr
        raise ShapeError("place: there must be values to write; got none")
    from functx.numpy.cumulative import cumsum

    positions = floating_point.remainder(cumsum(selected) - 1, aval_of(values).size)
    flat = ufuncs.where(
        selected, indexing.take(_cast(values, arr), positions, mode="clip"), shapes.reshape(arr, -1)
    )
    return _assign_or_return("place", arr, shapes.reshape(flat, aval_of(arr).shape), inplace)


def putmask(a: Assignable, mask: ArrayOrList, values: ArrayOrList) -> None:
    """Write to each element of `a` where the mask is True the element of `values` at its position.

    Positions are those in the flattened array, modulo the number of values.
    """
    check_assignable("putmask", a)
    given = shapes.reshape(asarray(values), -1)
    if not aval_of(given).size:
        return
    repeated = shapes.reshape(_repeat_values("putmask", given, aval_of(a).size), aval_of(a).shape)
    mask = shapes.reshape(asarray(mask), aval_of(a).shape)
    assign_array(a, ufuncs.where(mask != 0, _cast(repeated, a), a), "putmask")


def fill_diagonal(
    a: Assignable, val: ArrayOrList, wrap: bool = False, *, inplace: bool = True
) -> Assignable | None:
    """Write `val`, an array repeated as needed, to the main diagonal of `a`.

    With `wrap`, the diagonal of a tall matrix continues from the top after one skipped row.
    Without `inplace`, the result is a new array.
    """
    shape = aval_of(a).shape
    if len(shape) < 2:
        raise ShapeError(f"fill_diagonal: the array must be at least 2-d; got {type_name(a)}")
    if len(shape) > 2 and len(set(shape)) > 1:
        raise ShapeError(
            f"fill_diagonal: all dimensions must be of equal length; got {type_name(a)}"
        )
    end = shape[1] * shape[1] if len(shape) == 2 and not wrap else int(np.prod(shape))
    step = shape[1] + 1 if len(shape) == 2 else 1 + int(np.cumprod(shape[:-1]).sum())
    return put(a, np.arange(0, min(end, int(np.prod(shape))), step), val, inplace=inplace)


def put_along_axis(
    arr: Assignable,
    indices: ArrayOrList,
    values: ArrayOrList,
    axis: int | None,
    mode: str | None = None,
    *,
    inplace: bool = True,
) -> Assignable | None:
    """Write `values` to the elements that `take_along_axis(arr, indices, axis)` reads.

    A traced index out of bounds writes nothing. Without `inplace`, the result is a new array.
    """
    new = indexing.scatter_along_axis(arr, indices, values, axis, mode)
    return _assign_or_return("put_along_axis", arr, new, inplace)


def _sort(
    self: Tracer, axis: int = -1, kind: str | None = None, order: None = None, **options: bool
) -> None:
    """Sort the array in place along `axis`."""
    assign_array(
        self, sorting_and_searching.sort(self, axis, kind=kind, order=order, **options), "x.sort()"
    )


def _partition(self: Tracer, kth: int | Sequence[int], axis: int = -1) -> None:
    """Partition the array in place: the element at `kth` along `axis` is where sorting puts it."""
    assign_array(self, sorting_and_searching.partition(self, kth, axis), "x.partition()")


def _fill(self: Tracer, value: ArrayOrList) -> None:
    """Write the scalar `value` to every element."""
    if aval_of(value).shape:
        raise ShapeError(f"x.fill(): the value must be a scalar; got {type_name(value)}")
    assign_array(self, _cast(value, self), "x.fill()")


def _itemset(self: Tracer, *args: Any) -> None:
    """Write the last argument to one element, at a flat index or at the index in the others."""
    *position, value = args
    index = tuple(position[0] if len(position) == 1 and type(position[0]) is tuple else position)
    if len(index) == 1 and self.ndim != 1:
        index = tuple([int(i) for i in np.unravel_index(index[0], self.shape)])
    set_item(self, index, value)


def _resize(self: Tracer, *shape: ShapeLike, refcheck: bool = True) -> None:
    """Change the shape of the array in place, and truncate its elements or append zeros.

    Raises ImmutableArrayError for an argument, for a view, and for an array that has views,
    unless `refcheck` is False: the views then keep the old memory.
    """
    target = tuple(shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape)
    position = self.builder.producer(self.atom)
    if position is None or self.builder is not current_builder.get():
        problem = "an argument, or a captured array"
    elif isinstance(self.builder.equations[position].primitive, View):
        problem = "a view of another array"
    elif refcheck and has_views(self.builder.equations[position:], self.atom):
        problem = "which has views"
    else:
        problem = ""
    if problem:
        raise ImmutableArrayError(
            f"x.resize(): the array must not share its memory; got {self.atom.aval!r}, {problem}",
            fix="Use functx.numpy.resize, which returns a new array.",
        )
    size = int(np.prod(target))
    flat = shapes.reshape(self, -1)[:size]
    if size > self.size:
        flat = joining.concatenate([flat, zeros(size - self.size, self.dtype)])
    new = Copy()(shapes.reshape(flat, target))
    self.atom = new.atom


def has_views(equations: Sequence[Equation], atom: Atom) -> bool:
    """Whether an array has views, apart from views through which a single element was read."""
    for i, eqn in enumerate(equations):
        if isinstance(eqn.primitive, View) and eqn.inputs[0] is atom:
            after = equations[i + 1] if i + 1 < len(equations) else None
            is_read = after is not None and after.inputs[:1] == eqn.outputs
            if not is_read or after.outputs[0].aval.shape:  # type: ignore[union-attr]
                return True
    return False


class FlatIterator:
    """`x.flat`: reads, writes and iterates over the elements in row-major order."""

    __slots__ = ("x",)

    def __init__(self, x: Tracer):
        self.x = x

    def __len__(self) -> int:
        return self.x.size

    def __iter__(self) -> Iterator[Value]:
        if isinstance(self.x, np.ndarray):
            # NumPy's scalars, as in NumPy, where `pytest.approx` relies on them.
            return iter(self.x.view(np.ndarray).flat)
        flat = shapes.reshape(self.x, -1)
        return (flat[i] for i in range(self.x.size))

    def __getitem__(self, idx: Index) -> Value:
        return Copy()(shapes.reshape(self.x, -1)[idx])

    def __setitem__(self, idx: Index, value: ArrayOrList) -> None:
        elements, values = shapes.reshape(self.x, -1), shapes.reshape(asarray(value), -1)
        if aval_of(values).size > 1:
            # Fewer values than elements are repeated.
            shape = aval_of(indexing.getitem(np.empty(self.x.size, bool), idx)).shape
            values = shapes.reshape(_repeat_values("x.flat", values, int(np.prod(shape))), shape)
        flat = IndexUpdateRef(elements, idx).set(values)
        assign_array(self.x, shapes.reshape(flat, self.x.shape), "x.flat[...] =")

    def copy(self) -> Value:
        """The elements as a new one-dimensional array."""
        return Copy()(shapes.reshape(self.x, -1))


for _name, _method in {
    "sort": _sort,
    "partition": _partition,
    "fill": _fill,
    "itemset": _itemset,
    "resize": _resize,
    "put": put,
    "flat": property(
        FlatIterator, lambda self, value: FlatIterator(self).__setitem__(slice(None), value)
    ),
}.items():
    setattr(Tracer, _name, _method)
