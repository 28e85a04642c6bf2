"""The methods of ufuncs (`add.reduce`, `add.at`, ...), and ufuncs made of Python functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from functx import ops
from functx.core.concretization import concretize
from functx.core.errors import (
    ArgumentError,
    ConcretizationError,
    IndexingError,
    ValueRangeError,
)
from functx.core.tracer import Tracer, aval_of
from functx.core.typing import ArrayLike, ArrayOrList, Axes, DTypeLike, Index, Out, Value
from functx.numpy import cumulative, floating_point, operators, reductions, shapes, ufuncs
from functx.numpy.array_creation import asarray, full
from functx.numpy.indexing import IndexUpdateRef, take
from functx.numpy.joining import concatenate
from functx.numpy.mutating_functions import Assignable, check_assignable
from functx.numpy.mutation import assign_array, check_same_kind_cast, write_out, write_out_exact
from functx.numpy.vectorization import vectorize
from functx.ops.operands import canonical_axes, canonical_axis
from functx.transforms.control.rows import scan

__all__ = ["frompyfunc", "ufunc"]


class _UfuncType(type):
    def __instancecheck__(cls, x: object) -> bool:
        found = vars(x).get("ufunc") if isinstance(x, FunctionType) else x
        return type.__instancecheck__(cls, found)


class ufunc(metaclass=_UfuncType):  # noqa: N801 - NumPy's name
    """A function applied to all elements, with the methods of NumPy's ufuncs.

    `func` takes `nin` numbers and returns `nout`; `identity` is the result of a reduction of no elements.
    `call` is the function of arrays, by default `vectorize(func)`. `reduce`, `accumulate`, `at` and
    `reduceat` replace methods, which otherwise apply `func` to one element after the other. Functions of
    functx.numpy that have the methods are instances too.

    >>> import functx.numpy as np
    >>> subtract = np.frompyfunc(lambda x, y: x - y, 2, 1)
    >>> subtract.reduce(np.array([7, 2, 1]))
    array(4, dtype=int32)
    >>> isinstance(np.add, np.ufunc)
    True
    """

    def __init__(
        self,
        func: Callable[..., Any],
        /,
        nin: int,
        nout: int,
        *,
        name: str | None = None,
        nargs: int | None = None,
        identity: ArrayLike | None = None,
        call: Callable[..., Any] | None = None,
        reduce: Callable[..., Any] | None = None,
        accumulate: Callable[..., Any] | None = None,
        at: Callable[..., Any] | None = None,
        reduceat: Callable[..., Any] | None = None,
    ):
        self.__name__: str = name or str(getattr(func, "__name__", "ufunc"))
        self.__qualname__ = self.__name__
        self.__doc__ = func.__doc__
        self.nin, self.nout, self.identity = nin, nout, identity
        self.nargs = nin + nout if nargs is None else nargs
        self._call = vectorize(func) if call is None else call
        self._methods = {"reduce": reduce, "accumulate": accumulate, "at": at, "reduceat": reduceat}

    def __repr__(self) -> str:
        return f"<functx.numpy.ufunc {self.__name__!r}>"

    def __call__(self, *args: ArrayOrList, out: Out = None, where: ArrayOrList = True) -> Any:
        """The function of arrays that broadcast together, written to `out` where `where` is True."""
        if len(args) != self.nin:
            raise ArgumentError(
                f"{self.__name__}: there must be {self.nin} operands; got {len(args)}"
            )
        return write_out(self.__name__, self._call(*args), out, where)

    def _check_binary(self, method: str) -> str:
        """The name of a method, which a function of two numbers must have."""
        if self.nin != 2 or self.nout != 1:
            raise ValueRangeError(
                f"{self.__name__}.{method}: the function must take two operands and return one result; "
                f"got {self.nin} and {self.nout}"
            )
        return f"{self.__name__}.{method}"

    def reduce(
        self,
        a: ArrayOrList,
        axis: Axes = 0,
        dtype: DTypeLike = None,
        out: Out = None,
        keepdims: bool = False,
        initial: ArrayLike | None = None,
        where: ArrayOrList | None = None,
    ) -> Value:
        """The function applied to the elements along `axis`, from the first to the last.

        It begins with `initial`, if that is given; `where` leaves elements out.
        """
        name, a = self._check_binary("reduce"), _converted(a, dtype)
        axes = canonical_axes(axis, a.ndim)
        where = None if where is True else where
        if self._methods["reduce"] is not None:
            options = {} if initial is None else {"initial": initial}
            result = self._methods["reduce"](a, axes, where=where, **options)
        else:
            result = self._reduce_in_order(name, a, axes, initial, where)
        result = reductions.restore_reduced_axes(result, a.shape, axes, keepdims)
        return write_out_exact(name, result, out)

    def _reduce_in_order(
        self,
        name: str,
        a: Value,
        axes: tuple[int, ...],
        initial: ArrayLike | None,
        where: ArrayOrList | None,
    ) -> Value:
        rows = _rows(a, axes)
        mask = None if where is None else _rows(shapes.broadcast_to(asarray(where), a.shape), axes)
        start = (
            self.identity if initial is None and (mask is not None or not len(rows)) else initial
        )
        if start is None:
            if not len(rows) or mask is not None:
                raise ValueRangeError(
                    f"{name}: with no elements, or with where=, initial= must be given, for want of an "
                    f"identity; got {aval_of(a)!r}"
                )
            first, rows = rows[0], rows[1:]
        else:
            first = full(rows.shape[1:], start, None if type(start) in (int, float) else a.dtype)
            first = shapes.astype(first, a.dtype)
        if not len(rows):
            return first
        first = shapes.astype(first, aval_of(self(first, rows[0])).dtype)

        def step(x: Value, inputs: tuple[Value, Value | None]) -> tuple[Value, None]:
            y, keep = inputs
            new = self(x, y)
            return new if keep is None else ufuncs.where(keep, new, x), None

        return scan(step, first, (rows, mask))[0]

    def accumulate(
        self, a: ArrayOrList, axis: int = 0, dtype: DTypeLike = None, out: Out = None
    ) -> Value:
        """The function applied to each element along `axis` and the result for those before it."""
        name, a = self._check_binary("accumulate"), _converted(a, dtype)
        axis = canonical_axis(axis, a.ndim, f"{name}: axis")
        if self._methods["accumulate"] is not None:
            return write_out_exact(name, self._methods["accumulate"](a, axis), out)
        rows = shapes.moveaxis(a, axis, 0)
        if len(rows) > 1:
            first = shapes.astype(rows[0], aval_of(self(rows[0], rows[1])).dtype)

            def step(x: Value, y: Value) -> tuple[Value, Value]:
                new = self(x, y)
                return new, new

            _, rest = scan(step, first, rows[1:])
            rows = concatenate([first[None], rest])
        return write_out_exact(name, shapes.moveaxis(rows, 0, axis), out)

    def reduceat(
        self,
        a: ArrayOrList,
        indices: ArrayOrList,
        axis: int = 0,
        dtype: DTypeLike = None,
        out: Out = None,
    ) -> Value:
        """`reduce` of the slices along `axis` that begin at `indices` and end before the next one.

        Where the next index is not larger, the slice is the element at the index.
        """
        name, a = self._check_binary("reduceat"), _converted(a, dtype)
        axis = canonical_axis(axis, a.ndim, f"{name}: axis")
        if self._methods["reduceat"] is not None:
            return write_out_exact(name, self._methods["reduceat"](a, indices, axis), out)
        rows, positions = shapes.moveaxis(a, axis, 0), asarray(indices)
        if positions.ndim != 1 or positions.dtype.kind not in "iu":
            raise IndexingError(
                f"{name}: indices must be a vector of integers; got {aval_of(positions)!r}"
            )
        known = _known_value(positions)
        if known is None or len(known) > _MAX_SLICES:
            result = self._reduce_slices_in_step(rows, positions)
        else:
            result = self._reduce_each_slice(name, rows, known.tolist())
        return write_out_exact(name, shapes.moveaxis(result, 0, axis), out)

    def _reduce_each_slice(self, name: str, rows: Value, starts: list[int]) -> Value:
        for start in starts:
            if not 0 <= start < len(rows):
                raise IndexingError(
                    f"{name}: indices must be in [0, {len(rows)}); got {start}",
                )
        ends = [*starts[1:], len(rows)] if starts else []
        results = [
            self.reduce(rows[start : max(end, start + 1)], keepdims=True)
            for start, end in zip(starts, ends, strict=True)
        ]
        return concatenate(results) if results else rows[:0]

    def _reduce_slices_in_step(self, rows: Value, starts: Value) -> Value:
        """All slices in one loop over the rows, each of which counts for the slices that it is in."""
        ends = concatenate([starts[1:], asarray([len(rows)], starts.dtype)])
        shape = (-1, *[1] * (rows.ndim - 1))
        starts, ends = [shapes.reshape(x, shape) for x in (starts, ends)]
        first = take(rows, shapes.ravel(starts), 0, mode="clip")
        first = shapes.astype(first, aval_of(self(first, first)).dtype)

        def step(x: Value, inputs: tuple[Value, Value]) -> tuple[Value, None]:
            i, row = inputs
            is_inside = operators.logical_and(operators.less(starts, i), operators.less(i, ends))
            return ufuncs.where(is_inside, self(x, row[None]), x), None

        positions = np.arange(len(rows), dtype=starts.dtype)
        return scan(step, first, (positions, rows))[0]

    def at(
        self,
        a: Assignable,
        indices: Index,
        b: ArrayOrList | None = None,
        /,
        *,
        inplace: bool = True,
    ) -> Assignable | None:
        """Write the function of `a[indices]` (and `b`) to `a[indices]`, again for repeated indices.

        Without `inplace`, return the array instead.
        """
        name = f"{self.__name__}.at"
        operands = () if b is None else (asarray(b),)
        if self.nout != 1 or self.nin != 1 + len(operands):
            raise ArgumentError(
                f"{name}: the function must take the elements{' and b' if operands else ''}, and return "
                f"one result; got a function of {self.nin} with {self.nout}"
            )
        if self._methods["at"] is not None:
            new = self._methods["at"](a, indices, *operands)
        else:
            new = _sequential_update(name, self, a, indices, *operands)
        if not inplace:
            return new  # type: ignore[no-any-return]
        assign_array(check_assignable(name, a), new, name)
        return None

    def outer(self, A: ArrayOrList, B: ArrayOrList, /, **options: Any) -> Any:  # noqa: N803
        """The function of all pairs of an element of `A` and an element of `B`."""
        if self.nin != 2:
            raise ValueRangeError(
                f"{self.__name__}.outer: the function must take two operands; got {self.nin}"
            )
        a, b = asarray(A), asarray(B)
        return self(shapes.reshape(a, (*a.shape, *[1] * b.ndim)), b, **options)


_MAX_SLICES = 64


def frompyfunc(func: Callable[..., Any], /, nin: int, nout: int, *, identity: Any = None) -> ufunc:
    """The ufunc of a Python function of `nin` numbers that returns `nout`.

    >>> import functx.numpy as np
    >>> np.frompyfunc(lambda x, y: x * y + 1, 2, 1).accumulate(np.array([1, 2, 3])).tolist()
    [1, 3, 10]
    """
    return ufunc(func, nin, nout, identity=identity)


def _converted(a: ArrayOrList, dtype: DTypeLike) -> Value:
    return asarray(a) if dtype is None else shapes.astype(asarray(a), dtype)


def _rows(a: Value, axes: tuple[int, ...]) -> Value:
    """`a` with its `axes` as one leading axis, in row-major order."""
    kept = [n for d, n in enumerate(a.shape) if d not in axes]
    count = int(np.prod([a.shape[d] for d in axes], dtype=int))
    moved = shapes.moveaxis(a, tuple(sorted(axes)), tuple(range(len(axes))))
    return shapes.reshape(moved, (count, *kept))


def _known_value(x: Value) -> np.ndarray[Any, Any] | None:
    """The value of an array, if it is known while tracing."""
    if type(x) is not Tracer:
        return np.asarray(x)
    try:
        return concretize(x, "indices")
    except ConcretizationError:
        return None


def _reduce_in_pairs(
    fun: ufunc,
    a: Value,
    axes: tuple[int, ...],
    initial: ArrayLike | None = None,
    where: ArrayOrList | None = None,
) -> Value:
    """The reduction by an associative function: neighbours first, then pairs of results."""
    if where is not None:
        return fun._reduce_in_order(f"{fun.__name__}.reduce", a, axes, initial, where)
    rows = _rows(a, axes)
    if initial is not None or not len(rows):
        return fun._reduce_in_order(f"{fun.__name__}.reduce", a, axes, initial, None)
    if len(rows) == 1:
        return shapes.astype(rows[0], aval_of(fun(rows[0], rows[0])).dtype)
    while len(rows) > 1:
        half = len(rows) // 2
        pairs = fun(rows[: 2 * half : 2], rows[1 : 2 * half : 2])
        rest = rows[2 * half :]
        rows = concatenate([pairs, shapes.astype(rest, pairs.dtype)]) if len(rest) else pairs
    return rows[0]


def _sequential_update(
    operation: str, fun: Callable[..., Any], a: Assignable, indices: Index, *args: Value
) -> Assignable:
    """`a` with `fun` applied to the elements at `indices`, one after the other, in a scan."""
    aval = aval_of(a)
    positions = np.arange(aval.size, dtype=np.int32).reshape(aval.shape)
    selected = IndexUpdateRef(positions, indices).get()
    shape = aval_of(selected).shape
    if 0 in shape:
        return a
    operands = tuple([shapes.reshape(shapes.broadcast_to(x, shape), -1) for x in args])

    def step(x: Value, inputs: Sequence[Value]) -> tuple[Value, None]:
        i, *values = inputs
        value = fun(x[i], *values)
        check_same_kind_cast(aval_of(value), aval.dtype, operation)
        return IndexUpdateRef(x, i).set(value, mode="promise_in_bounds"), None

    flat = shapes.reshape(asarray(a), -1)
    updated, _ = scan(step, flat, (shapes.reshape(selected, -1), *operands))
    return shapes.reshape(updated, aval.shape)


def _scattered_update(method: str, a: Assignable, indices: Index, b: Value) -> Value:
    """`a` with its elements at `indices` updated by a method of `a.at[indices]`."""
    return getattr(IndexUpdateRef(a, indices), method)(shapes.astype(b, aval_of(a).dtype))  # type: ignore[no-any-return]


_SCATTER_METHODS = {
    "add": "add",
    "subtract": "subtract",
    "multiply": "multiply",
    "maximum": "max",
    "minimum": "min",
}
_REDUCE_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": reductions.sum,
    "multiply": reductions.prod,
    "maximum": reductions.max,
    "minimum": reductions.min,
    "logical_and": reductions.all,
    "logical_or": reductions.any,
}
_ASSOCIATIVE = {
    *("bitwise_and", "bitwise_or", "bitwise_xor", "logical_xor", "gcd", "lcm", "fmax", "fmin"),
    *("hypot", "logaddexp", "logaddexp2"),
}
_ACCUMULATE_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": cumulative.cumsum,
    "multiply": cumulative.cumprod,
    "maximum": ops.cummax,
    "minimum": ops.cummin,
    "logaddexp": ops.cumlogsumexp,
}


def _give_methods(function: Any, known: np.ufunc) -> None:
    """Give a function of functx the attributes and methods that NumPy's ufunc `known` has."""
    name = function.__name__
    scatter = _SCATTER_METHODS.get(name)
    made = ufunc(
        function,
        known.nin,
        known.nout,
        identity=known.identity,
        call=function,
        reduce=_REDUCE_FUNCTIONS.get(name),
        accumulate=_ACCUMULATE_FUNCTIONS.get(name),
        at=None if scatter is None else partial(_scattered_update, scatter),
    )
    if name in _ASSOCIATIVE:
        made._methods["reduce"] = partial(_reduce_in_pairs, made)
    function.ufunc = made
    for attribute in ("nin", "nout", "nargs", "identity"):
        setattr(function, attribute, getattr(made, attribute))
    if known.nout == 1:
        function.at = made.at
    if known.nin == 2:
        function.outer = made.outer
    if known.nin == 2 and known.nout == 1:
        function.reduce, function.accumulate = made.reduce, made.accumulate
        function.reduceat = made.reduceat


for _module in (ufuncs, floating_point, operators):
    for _name, _function in list(vars(_module).items()):
        _known = getattr(np, _name, None)
        if isinstance(_known, np.ufunc) and not hasattr(_function, "ufunc"):
            _give_methods(_function, _known)
