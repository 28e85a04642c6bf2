"""Operations that may return a view or their operand in `functx.ops`; here they return new arrays, as JAX's do."""

from __future__ import annotations

from collections.abc import Sequence

from functx import ops
from functx.core.typing import ArrayLike, DTypeLike, Value
from functx.numpy import joining, rearranging
from functx.ops.views import returns_new_array

bitcast_convert_type = returns_new_array(ops.bitcast_convert_type)
broadcast = returns_new_array(ops.broadcast)
broadcast_in_dim = returns_new_array(ops.broadcast_in_dim)
broadcast_to_rank = returns_new_array(ops.broadcast_to_rank)
collapse = returns_new_array(ops.collapse)
concatenate = returns_new_array(ops.concatenate)
conj = returns_new_array(ops.conj)
dynamic_index_in_dim = returns_new_array(ops.dynamic_index_in_dim)
dynamic_slice = returns_new_array(ops.dynamic_slice)
dynamic_slice_in_dim = returns_new_array(ops.dynamic_slice_in_dim)
dynamic_update_slice = returns_new_array(ops.dynamic_update_slice)
expand_dims = returns_new_array(ops.expand_dims)
index_in_dim = returns_new_array(ops.index_in_dim)
integer_pow = returns_new_array(ops.integer_pow)
pad = returns_new_array(ops.pad)
reduce_and = returns_new_array(ops.reduce_and)
reduce_max = returns_new_array(ops.reduce_max)
reduce_min = returns_new_array(ops.reduce_min)
reduce_or = returns_new_array(ops.reduce_or)
reduce_prod = returns_new_array(ops.reduce_prod)
reduce_sum = returns_new_array(ops.reduce_sum)
reduce_xor = returns_new_array(ops.reduce_xor)
reshape = returns_new_array(ops.reshape)
rev = returns_new_array(ops.rev)
slice = returns_new_array(ops.slice)
slice_in_dim = returns_new_array(ops.slice_in_dim)
split = returns_new_array(ops.split)
squeeze = returns_new_array(ops.squeeze)
transpose = returns_new_array(ops.transpose)


@returns_new_array
def convert_element_type(operand: ArrayLike, new_dtype: DTypeLike) -> Value:
    """`operand` in `new_dtype`: floats to integers towards zero, numbers to bool by `x != 0`.

    None as `new_dtype` keeps the dtype. The result is not weakly typed.
    """
    return ops.convert_element_type(operand, new_dtype)


@returns_new_array
def stack(operands: Sequence[ArrayLike], axis: int = 0) -> Value:
    """The arrays `operands`, all of one shape, joined along a new axis."""
    return joining.stack(operands, axis)


@returns_new_array
def unstack(x: ArrayLike, axis: int = 0) -> tuple[Value, ...]:
    """The arrays along `axis` of `x`, each without that axis."""
    return joining.unstack(x, axis=axis)


@returns_new_array
def tile(operand: ArrayLike, reps: Sequence[int]) -> Value:
    """`operand` repeated `reps[i]` times along dimension i."""
    return rearranging.tile(operand, reps)
