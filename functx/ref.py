"""Mutable references, by the names of `jax.ref`: boxes around an array that writes change."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import tree_util

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.captured_state import CapturedState
from functx.core.errors import ArgumentError, CapturedWriteError
from functx.core.tracer import Tracer, aval_of, copy_as_ndarray, current_builder, is_device_array
from functx.core.types import DType, ShapedArray
from functx.core.typing import ArrayLike, Index, Value
from functx.lowering.jax_bridge import register_state
from functx.numpy import array, empty, ravel, reshape
from functx.numpy.mutation import with_elements
from functx.ops.gradient_stop import outside_gradient_stop
from functx.transforms.aliasing import write_state

__all__ = ["Ref", "addupdate", "empty_ref", "free_ref", "freeze", "get", "new_ref", "set", "swap"]


class RefState(CapturedState):
    """The array of a reference that was made outside of all traces."""

    __slots__ = ("array",)

    description = "a `Ref`"

    def __init__(self, array: ArrayLike):
        self.array: Any = array

    @property
    def aval(self) -> ShapedArray:
        return aval_of(self.array)

    def load(self) -> Any:
        return self.array

    def replace(self, value: Any) -> None:
        if isinstance(self.array, np.ndarray) and self.array.flags.writeable:
            np.copyto(self.array, np.asarray(value), casting="unsafe")
        else:
            self.array = value

    def jax_trace_error(self) -> ArgumentError:
        return ArgumentError(
            "ref: a function that JAX traces must not use a `Ref` from around it, whose elements JAX would "
            "keep as they are in the first call; got a use under a transform of JAX",
            fix="Use functx.jit and the other transforms of functx in place of JAX's, or pass the `Ref`.",
        )

    def write_error(self, owner: str) -> CapturedWriteError:
        return _captured_write_error(owner, self)


def _captured_write_error(owner: str, state: object) -> CapturedWriteError:
    """The error for a write in a function whose caller, which `owner` names, does not return new values."""
    error = CapturedWriteError(
        f"ref[...] =: {owner} must not write to a `Ref` from around it; got a write",
        fix="Pass the `Ref` as an argument, to vmap with an axis in in_axes, or return the value and write it "
        "outside.",
    )
    error.state = state
    return error


def _check_returned(x: Tracer) -> None:
    """Raise CapturedWriteError where a function that returns no new value of `x` lies between it and a write."""
    builder = current_builder.get()
    while builder is not None and builder is not x.builder:
        if not builder.returns_writes or builder.axis is not None:
            raise _captured_write_error(builder.owner, x)
        builder = builder.parent


register_state(RefState)


class Ref:
    """An array that is read and written to by `ref[index]` and `ref[index] = value`.

    Reads are copies, which later writes do not change. A reference is a pytree of its array: of a function
    under `jit` that takes it as an argument, the writes are seen outside. So are those of a function that
    captures it, which reads the elements of the time of the call.
    """

    def __init__(self, elements: Any, is_scalar: bool):
        # Arrays without dimensions cannot be written to while a function is traced.
        self._is_scalar = is_scalar
        is_outside = isinstance(elements, np.ndarray) or is_device_array(elements)
        self._holder: Any = RefState(elements) if is_outside else elements

    @property
    def elements(self) -> Any:
        """The array; raises ArgumentError after `freeze` and `free_ref`."""
        holder = self._holder
        if holder is None:
            raise ArgumentError(
                "ref: a reference must not be used after freeze or free_ref; got one that was",
                fix="Use the array that freeze returned.",
            )
        builder = current_builder.get()
        is_state = isinstance(holder, RefState)
        if builder is not None and (is_state or holder.builder is not builder):
            return builder.tracer(holder)
        return holder.read() if is_state else holder

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the dimensions."""
        return () if self._is_scalar else tuple(self.elements.shape)

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        return aval_of(self.elements).dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(self.elements.size)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, idx: Index) -> Value:
        if self._is_scalar:
            return array(reshape(self.elements, ())[idx])
        return array(self.elements[idx])

    def __setitem__(self, idx: Index, value: ArrayLike) -> None:
        elements, holder = self.elements, self._holder
        is_state = isinstance(holder, RefState)
        if type(elements) is Tracer or (is_state and not isinstance(elements, np.ndarray)):
            if not is_state:
                _check_returned(holder)
            with outside_gradient_stop() as constant:
                x = reshape(elements, ()) if self._is_scalar else elements
                new = reshape(with_elements(x, idx, value, constant), elements.shape)
                write_state(holder, new, _captured_write_error)
        elif self._is_scalar:
            _ = reshape(elements, ())[idx]
            elements[:] = value
        else:
            elements[idx] = value

    def get(self, idx: Index = ...) -> Value:
        """The elements at `idx`."""
        return self[idx]

    def set(self, value: ArrayLike, idx: Index = ...) -> None:
        """Write `value` to the elements at `idx`."""
        self[idx] = value

    def swap(self, value: ArrayLike, idx: Index = ...) -> Value:
        """Write `value` to the elements at `idx`; what they were before."""
        before = self[idx]
        self[idx] = value
        return before

    def addupdate(self, value: ArrayLike, idx: Index = ...) -> None:
        """Add `value` to the elements at `idx`."""
        self[idx] = self[idx] + value  # type: ignore[operator]

    def __repr__(self) -> str:
        return f"Ref({self[...]!r})"


tree_util.register_pytree_node(
    Ref,
    lambda ref: ((ref.elements,), ref._is_scalar),
    lambda is_scalar, children: Ref(children[0], is_scalar),
)


def new_ref(init_val: ArrayLike, *, memory_space: object = None, kind: str | None = None) -> Ref:
    """A reference to a copy of `init_val`; `memory_space` and `kind` are ignored.

    >>> import functx
    >>> def running_sum(xs):
    ...     total = functx.new_ref(0.0)
    ...     functx.lax.fori_loop(0, len(xs), lambda i, _: total.addupdate(xs[i]), None)
    ...     return functx.freeze(total)
    >>> float(functx.jit(running_sum)(functx.numpy.arange(4.0)))
    6.0
    """
    is_scalar = aval_of(init_val).ndim == 0
    elements = array(ravel(init_val) if is_scalar else init_val)
    if is_device_array(elements):
        # JAX's arrays cannot be written to.
        elements = copy_as_ndarray(np.asarray(elements), elements.weak_type)
    return Ref(elements, is_scalar)


def empty_ref(ty: Any, memory_space: object = None) -> Ref:
    """A reference to an array of the shape and dtype of `ty`, whose elements are arbitrary."""
    aval = ShapedArray(tuple(ty.shape), ty.dtype)
    return Ref(empty(aval.shape or (1,), aval.dtype), not aval.shape)


def freeze(ref: Ref) -> Value:
    """The array of `ref`, which must not be used afterwards."""
    value = ref[...]
    free_ref(ref)
    return value


def free_ref(ref: Ref) -> None:
    """End the use of `ref`."""
    _ = ref.elements
    ref._holder = None


def get(ref: Ref, idx: Index = None) -> Value:
    """The elements of `ref` at `idx`; None stands for all."""
    return ref[_index(idx)]


def set(ref: Ref, idx: Index, value: ArrayLike) -> None:
    """Write `value` to the elements of `ref` at `idx`; None stands for all."""
    ref[_index(idx)] = value


def swap(ref: Ref, idx: Index, value: ArrayLike) -> Value:
    """Write `value` to the elements of `ref` at `idx`; what they were before."""
    return ref.swap(value, _index(idx))


def addupdate(ref: Ref, idx: Index, x: ArrayLike) -> None:
    """Add `x` to the elements of `ref` at `idx`."""
    ref.addupdate(x, _index(idx))


def _index(idx: Index) -> Index:
    return ... if idx is None else idx


_explain_errors(__name__)
