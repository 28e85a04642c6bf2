"""The devices of arrays: where the functions that make arrays place them."""

from __future__ import annotations

import jax

from functx import ops
from functx.core.errors import ArgumentError, ValueRangeError
from functx.core.tracer import (
    HOST_ARRAY_TYPES,
    Tracer,
    as_ndarray,
    as_numpy_array,
    aval_of,
    is_variable,
)
from functx.core.typing import Value
from functx.core.wrappers import is_wrapper

__all__: list[str] = []


def traced_device(x: object) -> None:
    """None: a traced array lies where its program will run, and `device=None` makes an array there."""


def on_device(x: Value, device: object) -> Value:
    """`x` on `device`; unchanged for None.

    "cpu", NumPy's name of its device, is the memory of the host: the result is an `ndarray`, or traced.
    On a device or sharding of JAX, the result is a `jax.Array` that is bound to it. Raises ArgumentError
    for a Variable.
    """
    if device is None:
        return x
    if isinstance(device, str):
        if device != "cpu":
            raise ValueRangeError(
                f'device: a name must be "cpu", the memory of the host; got {device!r}',
                fix=f"Pass a device of JAX, functx.devices({device!r})[0].",
            )
        if isinstance(x, Tracer) or is_wrapper(x) or type(x) in HOST_ARRAY_TYPES:
            return x
        return as_ndarray(jax.device_get(x))  # type: ignore[no-any-return]
    if is_variable(x):
        raise ArgumentError(
            f"device: a Variable keeps its place; got {aval_of(x)!r} for {device}",
            fix="Make the Variable of an array that lies there, functx.device_put(value, device).",
        )
    placed: Value = jax.device_put(as_numpy_array(x), device)
    return ops.convert_element_type(placed, placed.dtype, True) if aval_of(x).weak_type else placed


def to_device(x: Value, device: object, /, *, stream: object = None) -> Value:
    """The array on `device`, "cpu" or a device or sharding of JAX; unchanged for None."""
    if stream is not None:
        raise ValueRangeError(
            f"x.to_device(): XLA orders its work, so stream must be None; got {stream!r}"
        )
    return on_device(x, device)
