"""Operations of several operands, whose dimensions of length 1 are broadcast as JAX does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps

from functx import ops
from functx.core.errors import ShapeError
from functx.core.tracer import aval_of
from functx.core.typing import ArrayLike, DTypeLike, Value
from functx.lax import hurwitz_zeta, incomplete_beta, incomplete_gamma


def broadcasting_unit_dims(operation: Callable[..., Value]) -> Callable[..., Value]:
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


add = broadcasting_unit_dims(ops.add)
sub = broadcasting_unit_dims(ops.sub)
_mul = broadcasting_unit_dims(ops.mul)
div = broadcasting_unit_dims(ops.div)
rem = broadcasting_unit_dims(ops.rem)
max = broadcasting_unit_dims(ops.max)
min = broadcasting_unit_dims(ops.min)
pow = broadcasting_unit_dims(ops.pow)
atan2 = broadcasting_unit_dims(ops.atan2)
polygamma = broadcasting_unit_dims(ops.polygamma)
igamma = broadcasting_unit_dims(incomplete_gamma.igamma)
igammac = broadcasting_unit_dims(incomplete_gamma.igammac)
igamma_grad_a = broadcasting_unit_dims(incomplete_gamma.igamma_grad_a)
random_gamma_grad = broadcasting_unit_dims(incomplete_gamma.random_gamma_grad)
betainc = broadcasting_unit_dims(incomplete_beta.betainc)
zeta = broadcasting_unit_dims(hurwitz_zeta.zeta)
eq = broadcasting_unit_dims(ops.eq)
ne = broadcasting_unit_dims(ops.ne)
lt = broadcasting_unit_dims(ops.lt)
le = broadcasting_unit_dims(ops.le)
gt = broadcasting_unit_dims(ops.gt)
ge = broadcasting_unit_dims(ops.ge)
bitwise_and = broadcasting_unit_dims(ops.bitwise_and)
bitwise_or = broadcasting_unit_dims(ops.bitwise_or)
bitwise_xor = broadcasting_unit_dims(ops.bitwise_xor)
shift_left = broadcasting_unit_dims(ops.shift_left)
shift_right_arithmetic = broadcasting_unit_dims(ops.shift_right_arithmetic)
shift_right_logical = broadcasting_unit_dims(ops.shift_right_logical)
complex = broadcasting_unit_dims(ops.complex)
nextafter = broadcasting_unit_dims(ops.nextafter)


def mul(x: ArrayLike, y: ArrayLike, *, out_dtype: DTypeLike = None) -> Value:
    """The product of two arrays, elementwise; with `out_dtype`, of the arrays in that dtype."""
    if out_dtype is not None:
        x, y = (ops.convert_element_type(operand, out_dtype) for operand in (x, y))
    return _mul(x, y)
