"""JAX's names for the operations.

As in JAX, operands must have one dtype, and one rank or be scalars: only Python numbers are promoted, and only
dimensions of length 1 are broadcast. Every result is an array of its own, never a view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps

from functx import ops
from functx.core.errors import ShapeError
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.core.tracer import aval_of
from functx.core.typing import ArrayLike, DTypeLike, Value
from functx.custom.custom_linear_solve import custom_linear_solve
from functx.custom.custom_root import custom_root
from functx.numpy import joining, rearranging
from functx.numpy.shapes import broadcast_shapes
from functx.ops import (
    GatherDimensionNumbers,
    GatherScatterMode,
    Precision,
    RoundingMethod,
    ScatterDimensionNumbers,
    abs,
    acos,
    acosh,
    all_gather,
    all_to_all,
    argmax,
    argmin,
    asin,
    asinh,
    atan,
    atanh,
    axis_index,
    axis_size,
    batch_matmul,
    bitcast_convert_type,
    bitwise_not,
    broadcast,
    broadcast_in_dim,
    broadcast_to_rank,
    broadcasted_iota,
    cbrt,
    ceil,
    clamp,
    clz,
    collapse,
    concatenate,
    conj,
    cos,
    cosh,
    cumlogsumexp,
    cummax,
    cummin,
    cumprod,
    cumsum,
    digamma,
    dot,
    dot_general,
    dynamic_index_in_dim,
    dynamic_slice,
    dynamic_slice_in_dim,
    dynamic_update_index_in_dim,
    dynamic_update_slice,
    dynamic_update_slice_in_dim,
    empty,
    erf,
    erf_inv,
    erfc,
    exp,
    exp2,
    expand_dims,
    expm1,
    floor,
    full,
    full_like,
    gather,
    imag,
    index_in_dim,
    integer_pow,
    iota,
    is_finite,
    lgamma,
    log,
    log1p,
    logistic,
    neg,
    pad,
    pbroadcast,
    pcast,
    pmax,
    pmean,
    pmin,
    population_count,
    ppermute,
    pshuffle,
    psum,
    psum_scatter,
    pswapaxes,
    real,
    reciprocal,
    reduce_and,
    reduce_max,
    reduce_min,
    reduce_or,
    reduce_precision,
    reduce_prod,
    reduce_sum,
    reduce_xor,
    reshape,
    rev,
    round,
    rsqrt,
    scatter,
    scatter_add,
    scatter_max,
    scatter_min,
    scatter_mul,
    scatter_sub,
    select,
    select_n,
    sign,
    sin,
    sinh,
    slice,
    slice_in_dim,
    sort,
    sort_key_val,
    split,
    sqrt,
    square,
    squeeze,
    stop_gradient,
    tan,
    tanh,
    top_k,
    transpose,
    with_sharding_constraint,
)
from functx.ops.convolution import (
    ConvDimensionNumbers,
    conv,
    conv_dimension_numbers,
    conv_general_dilated,
    conv_transpose,
    conv_with_general_padding,
)
from functx.ops.views import returns_new_array
from functx.transforms.control.associative_scan import associative_scan
from functx.transforms.control.cond import cond, switch
from functx.transforms.control.loops import fori_loop, map, while_loop
from functx.transforms.control.reduce import reduce, reduce_window
from functx.transforms.control.scan import scan

__all__ = [
    "ConvDimensionNumbers",
    "GatherDimensionNumbers",
    "GatherScatterMode",
    "Precision",
    "RoundingMethod",
    "ScatterDimensionNumbers",
    "abs",
    "acos",
    "acosh",
    "add",
    "all_gather",
    "all_to_all",
    "argmax",
    "argmin",
    "asin",
    "asinh",
    "associative_scan",
    "atan",
    "atan2",
    "atanh",
    "axis_index",
    "axis_size",
    "batch_matmul",
    "bitcast_convert_type",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "broadcast",
    "broadcast_in_dim",
    "broadcast_shapes",
    "broadcast_to_rank",
    "broadcasted_iota",
    "cbrt",
    "ceil",
    "clamp",
    "clz",
    "collapse",
    "complex",
    "concatenate",
    "cond",
    "conj",
    "conv",
    "conv_dimension_numbers",
    "conv_general_dilated",
    "conv_transpose",
    "conv_with_general_padding",
    "convert_element_type",
    "cos",
    "cosh",
    "cumlogsumexp",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "custom_linear_solve",
    "custom_root",
    "digamma",
    "div",
    "dot",
    "dot_general",
    "dynamic_index_in_dim",
    "dynamic_slice",
    "dynamic_slice_in_dim",
    "dynamic_update_index_in_dim",
    "dynamic_update_slice",
    "dynamic_update_slice_in_dim",
    "empty",
    "eq",
    "erf",
    "erf_inv",
    "erfc",
    "exp",
    "exp2",
    "expand_dims",
    "expm1",
    "floor",
    "fori_loop",
    "full",
    "full_like",
    "gather",
    "ge",
    "gt",
    "imag",
    "index_in_dim",
    "integer_pow",
    "iota",
    "is_finite",
    "le",
    "lgamma",
    "log",
    "log1p",
    "logistic",
    "lt",
    "map",
    "max",
    "min",
    "mul",
    "ne",
    "neg",
    "nextafter",
    "pad",
    "pbroadcast",
    "pcast",
    "pmax",
    "pmean",
    "pmin",
    "polygamma",
    "population_count",
    "pow",
    "ppermute",
    "pshuffle",
    "psum",
    "psum_scatter",
    "pswapaxes",
    "real",
    "reciprocal",
    "reduce",
    "reduce_and",
    "reduce_max",
    "reduce_min",
    "reduce_or",
    "reduce_precision",
    "reduce_prod",
    "reduce_sum",
    "reduce_window",
    "reduce_xor",
    "rem",
    "reshape",
    "rev",
    "round",
    "rsqrt",
    "scan",
    "scatter",
    "scatter_add",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_sub",
    "select",
    "select_n",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "sign",
    "sin",
    "sinh",
    "slice",
    "slice_in_dim",
    "sort",
    "sort_key_val",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "stop_gradient",
    "sub",
    "switch",
    "tan",
    "tanh",
    "tile",
    "top_k",
    "transpose",
    "unstack",
    "while_loop",
    "with_sharding_constraint",
]


def _broadcasting_unit_dims(operation: Callable[..., Value]) -> Callable[..., Value]:
    """`operation` with dimensions of length 1 broadcast where the operands have one rank."""

    @wraps(operation)
    def function(*args: ArrayLike) -> Value:
        try:
            return operation(*args)
        except ShapeError:
            shapes = [aval_of(x).shape for x in args]
            shape = _broadcast_same_rank([s for s in shapes if s])
            if shape is None:
                raise
        dims = tuple(range(len(shape)))
        return operation(
            *[
                ops.broadcast_in_dim(x, shape, dims) if s not in ((), shape) else x
                for x, s in zip(args, shapes, strict=True)
            ]
        )

    return function


def _broadcast_same_rank(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape that shapes of one rank broadcast to, None if there is none."""
    if len({len(shape) for shape in shapes}) != 1:
        return None
    lengths = [set(column) - {1} for column in zip(*shapes, strict=True)]
    if any(len(length) > 1 for length in lengths):
        return None
    return tuple([length.pop() if length else 1 for length in lengths])


add = _broadcasting_unit_dims(ops.add)
sub = _broadcasting_unit_dims(ops.sub)
mul = _broadcasting_unit_dims(ops.mul)
div = _broadcasting_unit_dims(ops.div)
rem = _broadcasting_unit_dims(ops.rem)
max = _broadcasting_unit_dims(ops.max)
min = _broadcasting_unit_dims(ops.min)
pow = _broadcasting_unit_dims(ops.pow)
atan2 = _broadcasting_unit_dims(ops.atan2)
polygamma = _broadcasting_unit_dims(ops.polygamma)
eq = _broadcasting_unit_dims(ops.eq)
ne = _broadcasting_unit_dims(ops.ne)
lt = _broadcasting_unit_dims(ops.lt)
le = _broadcasting_unit_dims(ops.le)
gt = _broadcasting_unit_dims(ops.gt)
ge = _broadcasting_unit_dims(ops.ge)
bitwise_and = _broadcasting_unit_dims(ops.bitwise_and)
bitwise_or = _broadcasting_unit_dims(ops.bitwise_or)
bitwise_xor = _broadcasting_unit_dims(ops.bitwise_xor)
shift_left = _broadcasting_unit_dims(ops.shift_left)
shift_right_arithmetic = _broadcasting_unit_dims(ops.shift_right_arithmetic)
shift_right_logical = _broadcasting_unit_dims(ops.shift_right_logical)
complex = _broadcasting_unit_dims(ops.complex)
nextafter = _broadcasting_unit_dims(ops.nextafter)


def convert_element_type(operand: ArrayLike, new_dtype: DTypeLike) -> Value:
    """`operand` in `new_dtype`: floats to integers towards zero, numbers to bool by `x != 0`.

    None as `new_dtype` keeps the dtype. The result is not weakly typed.
    """
    return ops.convert_element_type(operand, new_dtype)


def stack(operands: Sequence[ArrayLike], axis: int = 0) -> Value:
    """The arrays `operands`, all of one shape, joined along a new axis."""
    return joining.stack(operands, axis)


def unstack(x: ArrayLike, axis: int = 0) -> tuple[Value, ...]:
    """The arrays along `axis` of `x`, each without that axis."""
    return joining.unstack(x, axis=axis)


def tile(operand: ArrayLike, reps: Sequence[int]) -> Value:
    """`operand` repeated `reps[i]` times along dimension i."""
    return rearranging.tile(operand, reps)


# Operations that may return a view or their operand; NumPy's functions need that, JAX's copy.
for _name in [
    "bitcast_convert_type",
    "broadcast",
    "broadcast_in_dim",
    "broadcast_to_rank",
    "collapse",
    "concatenate",
    "conj",
    "convert_element_type",
    "dynamic_index_in_dim",
    "dynamic_slice",
    "dynamic_slice_in_dim",
    "dynamic_update_slice",
    "expand_dims",
    "index_in_dim",
    "integer_pow",
    "pad",
    "reduce_and",
    "reduce_max",
    "reduce_min",
    "reduce_or",
    "reduce_prod",
    "reduce_sum",
    "reduce_xor",
    "reshape",
    "rev",
    "slice",
    "slice_in_dim",
    "split",
    "squeeze",
    "stack",
    "transpose",
    "unstack",
]:
    globals()[_name] = returns_new_array(globals()[_name])

_suggest_alternatives("jax.lax", __name__)
