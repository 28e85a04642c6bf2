"""Writes, copies and views: writes into values, copies that writes do not reach, views by strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from typing import Any, ParamSpec, TypeVar

import numpy as np

from functx import ops
from functx.core.effects import Effect
from functx.core.errors import CapturedWriteError, DTypeError, ProgramError, ShapeError
from functx.core.memory_layouts import is_computed, is_contiguous
from functx.core.primitive import Primitive
from functx.core.primitive_families import CopiesOperand, HasHostKernel, View
from functx.core.samples import EXACT, c64, f32, sample
from functx.core.strides import MemoryOrder, Strides, row_major_strides
from functx.core.tracer import (
    Tracer,
    aval_of,
    copy_as_ndarray,
    current_builder,
    is_device_array,
    is_variable,
)
from functx.core.types import ShapedArray, complex_dtype, is_complex, kind, real_dtype
from functx.core.typing import ArrayLike, Cotangents, Dim, NumPyArray, Tangents, Value
from functx.core.wrappers import is_wrapper
from functx.ops.families import Linear, MovesElements, UnchangedValue
from functx.ops.operands import literal


class Write(Primitive):
    """Writes the value `new` into `x`, and into the array that `x` is a view of; there is no output.

    `under_no_grad` says that no derivative is recorded where the write is. Only `functionalize`
    handles writes; all other transforms get pure programs.
    """

    under_no_grad: bool = False
    effects = frozenset({Effect.WRITE})
    multiple_results = True

    def __call__(self, *args: object) -> Value:
        builder = current_builder.get()
        if builder is None and is_variable(args[0]):
            return args[0].record(self, args)  # type: ignore[attr-defined]
        if is_wrapper(args[0]):
            return super().__call__(*args)
        if builder is None:
            raise CapturedWriteError(
                "a function that JAX traces must not write to an array from outside it, which JAX "
                f"would not know of; got a write to {aval_of(args[0])!r}",
                fix="Return the new value from that function and write it outside, or use the "
                "transform of functx in place of JAX's.",
            )
        builder.writes = True
        return super().__call__(*args)

    def abstract_eval(self, x: ShapedArray, new: ShapedArray) -> Sequence[ShapedArray]:
        if new.shape != x.shape or new.dtype != x.dtype:
            raise DTypeError(
                f"write: the value must have the type of the target; got {new!r} for {x!r}"
            )
        return ()

    def forward(self, args: Sequence[Value], active: Sequence[bool]) -> tuple[Any, Any]:
        raise impure_program_error()

    def jvp(self, primals: Sequence[Value], tangents: Tangents) -> tuple[Sequence[Value], Tangents]:
        raise impure_program_error()

    def batch(
        self, args: Sequence[Value], dims: Sequence[Dim]
    ) -> tuple[Sequence[Value], Sequence[Dim]]:
        raise impure_program_error()


def impure_program_error() -> ProgramError:
    """The error for a rewrite of a program that still has writes."""
    return ProgramError(
        "write: a program must have no writes when it is differentiated or batched; got one with "
        "a write to a value that varies",
        fix="Remove the writes first: functx.make_ir(functx.functionalize(f))(*args).",
    )


class Copy(UnchangedValue, CopiesOperand, MovesElements, Linear, HasHostKernel):
    """A copy of `x` in its own storage, in row-major order ("C") or in the memory order of `x` ("K")."""

    order: str = "C"
    is_element_mapping = True
    host_kernel = np.array
    host_kernel_kinds = "biufc"
    samples = sample(f32[2, 3]), sample(f32[2, 3], order="K")

    @property
    def memory_order(self) -> MemoryOrder:  # type: ignore[override]
        return MemoryOrder.COPIED if self.order == "K" else MemoryOrder.ROW_MAJOR

    def __call__(self, *args: object) -> Any:
        builder = current_builder.get()
        if builder is not None:
            builder.has_copies = True
        return super().__call__(*args)

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        return (ct,)

    def batch(self, args: Sequence[Value], dims: Sequence[Dim]) -> tuple[Value, Dim]:
        return args[0], dims[0]


INDEX_DTYPE = np.dtype("int32")
_MAX_STACKED = 16
"""The largest number of windows that are sliced one by one; more are gathered."""


class AsStrided(MovesElements, View):
    """An array of `shape` whose element at `i` is that of `x` at `start + sum(i[k] * steps[k])`.

    There is a step along every dimension of `x` for each dimension of the result.
    """

    shape: tuple[int, ...]
    start: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]
    writable: bool = True
    size_fields = ("shape", "start", "steps")
    memory_order = MemoryOrder.REARRANGED
    samples = (
        sample(f32[12], shape=(3, 2), start=(1,), steps=((4,), (-1,))),
        sample(f32[6], shape=(2, 3), start=(0,), steps=((3,), (1,))),
        sample(f32[2, 3, 4], shape=(2, 3), start=(0, 0, 1), steps=((1, 0, 0), (0, 1, 1))),
        sample(f32[2, 4], shape=(2, 3, 2), start=(0, 0), steps=((1, 0), (0, 1), (0, 1))),
        sample(f32[2, 3], shape=(), start=(1, 2), steps=()),
    )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        has_all_steps = len(self.steps) == len(self.shape)
        if not has_all_steps or any(len(step) != x.ndim for step in (self.start, *self.steps)):
            raise ShapeError(
                "as_strided: there must be a step along each dimension of the operand for each of "
                f"the result; got {self.start} and {self.steps} for {x!r}"
            )
        ends = [[(n - 1) * k for k in step] for n, step in zip(self.shape, self.steps, strict=True)]
        for d, (first, n) in enumerate(zip(self.start, x.shape, strict=True)):
            low = first + sum([min(end[d], 0) for end in ends])
            high = first + sum([max(end[d], 0) for end in ends])
            if prod(self.shape) and not 0 <= low <= high < n:
                raise ShapeError(
                    f"as_strided: the places from {low} to {high} must lie in dimension {d} of the "
                    f"operand; got {x!r}"
                )
        return x.update(shape=self.shape)

    def flat_strides(self, shape: tuple[int, ...]) -> tuple[int, Strides]:
        """The flat offset and strides of the result in a row-major array of `shape`."""
        along = row_major_strides(shape)
        first, *steps = [
            sum([k * n for k, n in zip(step, along, strict=True)])
            for step in (self.start, *self.steps)
        ]
        return first, tuple(steps)

    def flat_indices(self, shape: tuple[int, ...]) -> Value:
        """The flat index in a row-major array of `shape` of each element of the result."""
        first, strides = self.flat_strides(shape)
        indices = ops.full(self.shape, literal(first, INDEX_DTYPE))
        for d, step in enumerate(strides):
            along = ops.broadcasted_iota(INDEX_DTYPE, self.shape, d)
            indices = ops.add(
                indices, ops.mul(along, ops.full(self.shape, literal(step, INDEX_DTYPE)))
            )
        return indices

    def decompose(self, x: Value) -> Value:
        if 0 in self.shape:
            return ops.full(self.shape, literal(0, x.dtype))
        first, strides = self.flat_strides(x.shape)
        if strides == row_major_strides(self.shape):
            size = prod(self.shape)
            return ops.reshape(ops.slice(_flatten(x), [first], [first + size]), self.shape)
        for attempt in (self.as_slice, self.as_diagonal, self.as_stack):
            out = attempt(x)
            if out is not None:
                return out
        read = ops.Gather(
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
            slice_sizes=(1,),
            mode="promise_in_bounds",
        )
        return read(_flatten(x), ops.reshape(self.flat_indices(x.shape), (*self.shape, 1)))

    def as_slice(self, x: Value) -> Value | None:
        """The result as a slice, if each of its dimensions steps along a different dimension of `x`."""
        along = [[d for d, k in enumerate(step) if k] for step in self.steps]
        used = [dims[0] for dims in along if dims]
        if any(len(dims) != 1 for dims in along) or len(set(used)) != len(used):
            return None
        low, high, strides = list(self.start), [n + 1 for n in self.start], [1] * x.ndim
        for d, n, step in zip(used, self.shape, self.steps, strict=True):
            end = self.start[d] + (n - 1) * step[d]
            low[d], high[d] = min(low[d], end), max(low[d], end) + 1
            strides[d] = abs(step[d])
        x = ops.slice(x, low, high, strides)
        x = ops.rev(x, [d for d, step in zip(used, self.steps, strict=True) if step[d] < 0])
        x = ops.permute_dims(x, (*used, *[d for d in range(x.ndim) if d not in used]))
        return ops.reshape(x, self.shape)

    def as_diagonal(self, x: Value) -> Value | None:
        """The result as a slice, if it keeps dimensions of `x` and the last one steps through the others."""
        *lead, last = self.steps
        unit = [0] * (x.ndim - 1) + [1]
        kept_dims = [step.index(1) for step in lead if sorted(step) == unit]
        others = [d for d in range(x.ndim) if d not in kept_dims]
        if (
            len(set(kept_dims)) != len(lead)
            or tuple([x.shape[d] for d in kept_dims]) != self.shape[:-1]
            or any(self.start[d] or last[d] for d in kept_dims)
        ):
            return None
        strides = row_major_strides([x.shape[d] for d in others])
        first = sum([self.start[d] * n for d, n in zip(others, strides, strict=True)])
        step = sum([last[d] * n for d, n in zip(others, strides, strict=True)])
        if step <= 0:
            return None
        sizes = self.shape[:-1]
        x = ops.permute_dims(x, (*kept_dims, *others))
        x = ops.reshape(x, (*sizes, prod([x.shape[d] for d in range(len(kept_dims), x.ndim)])))
        limit = first + (self.shape[-1] - 1) * step + 1
        ones = [1] * len(sizes)
        return ops.slice(x, [*[0] * len(sizes), first], [*sizes, limit], [*ones, step])

    def as_stack(self, x: Value) -> Value | None:
        """The result as a stack of views along its last dimension, if that is short."""
        last = self.shape[-1]
        if last > _MAX_STACKED:
            return None
        starts = [
            tuple([a + i * k for a, k in zip(self.start, self.steps[-1], strict=True)])
            for i in range(last)
        ]
        axis = len(self.shape) - 1
        parts = [AsStrided(self.shape[:-1], s, self.steps[:-1]).decompose(x) for s in starts]
        return ops.concatenate([ops.expand_dims(part, axis) for part in parts], axis)

    def scatter_into_base(self, part: Value, index: Value | int, x: Value) -> Value:
        if not part.size:
            return x
        row, (first, strides) = _flatten(x), self.flat_strides(x.shape)
        if strides == row_major_strides(self.shape):
            bounds = [(first, first + part.size, 1)]
            return ops.reshape(
                ops.update_strided_slice(row, ops.reshape(part, (part.size,)), bounds), x.shape
            )
        numbers = ops.ScatterDimensionNumbers((), (0,), (0,))
        indices = ops.reshape(self.flat_indices(x.shape), (part.size, 1))
        values = ops.reshape(part, (part.size,))
        row = ops.scatter(row, indices, values, numbers, mode="promise_in_bounds")
        return ops.reshape(row, x.shape)

    def is_read_only_view(self, x: ShapedArray) -> bool:
        repeats = any(n > 1 and not any(k) for n, k in zip(self.shape, self.steps, strict=True))
        return repeats or not self.writable

    def view_strides(self, x: ShapedArray, strides: tuple[int, ...]) -> tuple[int, ...] | None:
        return tuple(
            [sum([k * n for k, n in zip(step, strides, strict=True)]) for step in self.steps]
        )

    def view_offset(self, x: ShapedArray, strides: tuple[int, ...], index: int) -> int | None:
        return sum([k * n for k, n in zip(self.start, strides, strict=True)])


def _flatten(x: Value) -> Value:
    return ops.reshape(x, (x.size,))


def element_view(x: ArrayLike, index: tuple[int, ...]) -> Value:
    """The element of `x` at `index` as a view without dimensions."""
    return AsStrided((), index, ())(x)


class ViewAsReal(View):
    """The real and the imaginary part of each element, along a new last dimension."""

    rounding = EXACT
    samples = sample(c64[3]), sample(c64[2, 3])

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        if not is_complex(x.dtype):
            raise DTypeError(f"view_as_real: the operand must be complex; got {x!r}")
        return x.update(shape=(*x.shape, 2), dtype=real_dtype(x.dtype))

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.stack([x.real, x.imag], -1)

    def decompose(self, x: Value) -> Value:
        return ops.concatenate(
            [ops.expand_dims(part, x.ndim) for part in (ops.real(x), ops.imag(x))], x.ndim
        )

    def scatter_into_base(self, part: Value, index: Value | int, x: Value) -> Value:
        return ViewAsComplex()(part)

    def view_strides(self, x: ShapedArray, strides: tuple[int, ...]) -> tuple[int, ...] | None:
        return (*[2 * n for n in strides], 1)


class ViewAsComplex(View):
    """The complex numbers whose parts are the last dimension, of length 2."""

    rounding = EXACT
    samples = sample(f32[3, 2]), sample(f32[2, 3, 2])

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        if x.shape[-1:] != (2,):
            raise ShapeError(f"view_as_complex: the last dimension must be 2; got {x!r}")
        if kind(x.dtype) != "f" or x.dtype.itemsize < 4:
            raise DTypeError(f"view_as_complex: the parts must be float32 or float64; got {x!r}")
        return x.update(shape=x.shape[:-1], dtype=complex_dtype(x.dtype))

    def decompose(self, x: Value) -> Value:
        return ops.complex(*[_part(x, i) for i in (0, 1)])

    def scatter_into_base(self, part: Value, index: Value | int, x: Value) -> Value:
        return ViewAsReal()(part)

    def view_strides(self, x: ShapedArray, strides: tuple[int, ...]) -> tuple[int, ...] | None:
        *rest, last = strides
        return tuple([n // 2 for n in rest]) if last == 1 and not any(n % 2 for n in rest) else None


def _part(x: Value, i: int) -> Value:
    return ops.reshape(ops.slice_in_dim(x, i, i + 1, 1, x.ndim - 1), x.shape[:-1])


def copy_array(x: Value) -> Value:
    """A copy of the array `x`, in its memory order; inside a trace a traced one."""
    if isinstance(x, Tracer) or current_builder.get() is not None or is_wrapper(x):
        is_array = isinstance(x, (Tracer, np.ndarray)) and len(x.shape) > 1
        keeps_order = is_array and (type(x) is Tracer or not is_contiguous(x))
        return Copy("K" if keeps_order else "C")(x)
    if not isinstance(x, np.ndarray):
        # A copy outlives the donation of the original.
        return x.copy() if is_device_array(x) else x
    aval = aval_of(x)
    return copy_as_ndarray(np.asarray(x, aval.dtype), aval.weak_type)


def copy_if_shared(out: Value, *arrays: object) -> Value:
    """`out`, copied if it is one of `arrays`, a view, or an array from outside the trace."""
    if type(out) is Tracer:
        shared = not is_computed(out) or any(
            [type(x) is Tracer and x.atom is out.atom for x in arrays]
        )
        return copy_array(out) if shared else out
    if isinstance(out, Tracer):
        # A Variable, whose views know their base.
        return copy_array(out) if out.is_view or any([x is out for x in arrays]) else out  # type: ignore[attr-defined]
    shared = isinstance(out, np.ndarray) and (
        out.base is not None or any([x is out for x in arrays])
    )
    return copy_array(out) if shared else out


P = ParamSpec("P")
T = TypeVar("T")


def returns_new_array(function: Callable[P, T]) -> Callable[P, T]:
    """`function` with every result copied that shares memory with an argument or is a view.

    So the caller may write into the results.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        out: Any = function(*args, **kwargs)
        operands: tuple[Any, ...] = *args, *kwargs.values()
        arrays = [x for arg in operands for x in (arg if type(arg) in _LISTS else (arg,))]
        if type(out) in _LISTS:
            return type(out)([copy_if_shared(x, *arrays) for x in out])
        return copy_if_shared(out, *arrays)

    return call


def returns_view(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, which returns a view of a Variable where it would return the Variable itself.

    A view of all elements has a gradient and hooks of its own.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Any:
        out: Any = function(*args, **kwargs)
        arrays = *args, *kwargs.values()
        if type(out) in _LISTS:
            return type(out)([as_view(x, arrays) for x in out])
        return as_view(out, arrays)

    return call


def as_view(out: Any, arrays: Sequence[object]) -> Any:
    """`out`; outside a trace, a view of it if it is a Variable and one of `arrays`."""
    if is_variable(out) and current_builder.get() is None and any([x is out for x in arrays]):
        return ops.Reshape(out.shape)(out)
    return out


_LISTS = (list, tuple)
