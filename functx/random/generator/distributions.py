"""Random numbers drawn from a generator: distributions, dropout and randomized activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from functx import ops
from functx.core.errors import (
    ArgumentError,
    DTypeError,
    ShapeError,
    ValueRangeError,
)
from functx.core.tracer import aval_of
from functx.core.types import (
    DType,
    Shape,
    canonical_dtype,
    is_floating,
    is_inexact,
    is_integer,
)
from functx.core.typing import ArrayLike, DTypeLike, ShapeLike, Value
from functx.numpy.promotion import (
    broadcast_shapes,
    broadcast_to,
    is_broadcastable,
    number_literal,
    operand,
    promote_inexact,
)
from functx.ops.draws import (
    DrawBernoulli,
    DrawCauchy,
    DrawExponential,
    DrawGeometric,
    DrawIntegers,
    DrawNormal,
    DrawPermutation,
    DrawUniform,
)
from functx.ops.operands import PYTHON_SCALARS, canonical_shape, literal
from functx.ops.views import Copy
from functx.random.generator.states import Generator, check_generator

__all__ = [
    "bernoulli",
    "cauchy",
    "dropout",
    "exponential",
    "geometric",
    "log_normal",
    "normal",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "rrelu",
    "uniform",
]


def rand(*size: ShapeLike, generator: Generator | None = None, dtype: DTypeLike = None) -> Value:
    """Floating-point numbers in [0, 1), an array of the shape `size`.

    The lengths are arguments of their own, or one tuple. Raises DTypeError for a dtype that is no
    floating-point one.

    >>> from functx import random
    >>> random.rand(2, 3).shape
    (2, 3)
    """
    primitive = DrawUniform(size_of(size), dtype=check_float_dtype("rand", dtype))
    return check_generator("rand", generator).draw(primitive)


def rand_like(
    x: ArrayLike, *, generator: Generator | None = None, dtype: DTypeLike = None
) -> Value:
    """Numbers in [0, 1) of the shape and the dtype of `x`; see `rand`.

    >>> import numpy
    >>> from functx import random
    >>> random.rand_like(numpy.ones(3, "float16")).dtype
    dtype('float16')
    """
    aval = aval_of(x)
    return rand(aval.shape, generator=generator, dtype=aval.dtype if dtype is None else dtype)


def randn(*size: ShapeLike, generator: Generator | None = None, dtype: DTypeLike = None) -> Value:
    """Numbers with the standard normal distribution, an array of the shape `size`; see `rand`.

    With a complex dtype, real and imaginary part have half the variance each.

    >>> from functx import random
    >>> random.randn(2).shape
    (2,)
    """
    dtype = canonical_dtype(float if dtype is None else dtype)
    if not is_inexact(dtype):
        raise DTypeError(f"randn: dtype must be a float or complex type; got {dtype}")
    primitive = DrawNormal(size_of(size), dtype=dtype)
    return check_generator("randn", generator).draw(primitive)


def randn_like(
    x: ArrayLike, *, generator: Generator | None = None, dtype: DTypeLike = None
) -> Value:
    """Standard normal numbers of the shape and the dtype of `x`; see `randn`.

    >>> import numpy
    >>> from functx import random
    >>> random.randn_like(numpy.ones((2, 2))).shape
    (2, 2)
    """
    aval = aval_of(x)
    return randn(aval.shape, generator=generator, dtype=aval.dtype if dtype is None else dtype)


def randint(
    low: ArrayLike,
    high: Any = None,
    size: ShapeLike | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike = None,
) -> Value:
    """Integers from `low` to below `high`, each equally likely, an array of the shape `size`.

    `randint(high, size)` draws from 0 on. The bias is below 2^-32. Raises ValueRangeError unless `low`
    is less than `high` and both fit the dtype.

    >>> from functx.random import generator
    >>> sorted(set(generator.randint(3, (100,)).tolist()))
    [0, 1, 2]
    """
    if size is None:
        low, high, size = 0, low, high
    if size is None or isinstance(high, (tuple, list)):
        raise ArgumentError(
            "randint: the arguments must be (high, size) or (low, high, size); got no size"
        )
    dtype = canonical_dtype(np.int64 if dtype is None else dtype)
    if not is_integer(dtype):
        raise DTypeError(f"randint: dtype must be an integer type; got {dtype}")
    shape = canonical_shape(size)
    bounds: list[Any]
    if all([type(x) in PYTHON_SCALARS for x in (low, high)]):
        check_integer_range("randint", int(low), int(high), dtype)  # type: ignore[arg-type]
        count = int(high) - int(low)  # type: ignore[arg-type]
        bounds = [literal(int(low), dtype), literal(wrap_integer(count, dtype), dtype)]  # type: ignore[arg-type]
    else:
        first, end = [draw_parameter("randint", x, shape, dtype) for x in (low, high)]
        bounds = [first, ops.sub(end, first)]
    return check_generator("randint", generator).draw(DrawIntegers(shape), *bounds)


def check_integer_range(caller: str, low: int, high: int, dtype: DType) -> None:
    """Raise ValueRangeError unless the integers from `low` to below `high` are some, and fit `dtype`."""
    limits = np.iinfo(dtype)
    if not low < high:
        raise ValueRangeError(f"{caller}: low must be less than high; got {low} and {high}")
    if not limits.min <= low or not high - 1 <= limits.max:
        raise ValueRangeError(f"{caller}: the bounds must fit {dtype}; got {low} and {high}")


def wrap_integer(count: int, dtype: DType) -> int:
    """The number of `dtype` with the bits of the unsigned number `count`; 0 for all numbers of it."""
    bits = dtype.itemsize * 8
    count %= 2**bits
    return count if count <= np.iinfo(dtype).max else count - 2**bits


def randint_like(
    x: ArrayLike,
    low: ArrayLike,
    high: ArrayLike | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike = None,
) -> Value:
    """Integers of the shape and the dtype of `x`, from `low` to below `high`; see `randint`.

    >>> import numpy
    >>> from functx import random
    >>> random.randint_like(numpy.zeros(3, "int32"), 5).shape
    (3,)
    """
    aval = aval_of(x)
    low, high = (0, low) if high is None else (low, high)
    dtype = aval.dtype if dtype is None else dtype
    return randint(low, high, aval.shape, generator=generator, dtype=dtype)


def randperm(n: int, *, generator: Generator | None = None, dtype: DTypeLike = None) -> Value:
    """The integers below `n` in random order.

    >>> from functx import random
    >>> sorted(random.randperm(4).tolist())
    [0, 1, 2, 3]
    """
    (length,) = canonical_shape((n,))
    out = check_generator("randperm", generator).draw(DrawPermutation((length,)))
    dtype = canonical_dtype(np.int64 if dtype is None else dtype)
    return ops.convert_element_type(out, dtype)


def uniform(
    low: ArrayLike = 0.0,
    high: ArrayLike = 1.0,
    size: ShapeLike | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike = None,
) -> Value:
    """Floating-point numbers between `low` and `high`, differentiable in both.

    Without a `size`, the shape is that of the parameters. Raises ValueRangeError for numbers of which
    `low` exceeds `high`.

    >>> from functx.random import generator
    >>> generator.uniform(2.0, 3.0, (4,)).shape
    (4,)
    """
    if type(low) in PYTHON_SCALARS and type(high) in PYTHON_SCALARS and not low <= high:  # type: ignore[operator]
        raise ValueRangeError(f"uniform: low must not exceed high; got {low} and {high}")
    (low, high), shape, dtype = parameters("uniform", [low, high], size, dtype)
    unit = check_generator("uniform", generator).draw(DrawUniform(shape, dtype=dtype))
    # Equal bounds give themselves.
    return ops.add(low, ops.mul(ops.sub(high, low), unit))


def normal(
    mean: ArrayLike = 0.0,
    std: ArrayLike = 1.0,
    size: ShapeLike | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike = None,
) -> Value:
    """Numbers with the normal distribution, differentiable in `mean` and `std`.

    Without a `size`, the shape is that of the parameters. Raises ValueRangeError for a `std` that is a
    negative number.

    >>> import functx
    >>> from functx.random import generator
    >>> float(functx.grad(lambda mean: generator.normal(mean, 1.0))(0.5))
    1.0
    """
    check_scale("normal", "std", std, may_be_zero=True)
    (mean, std), shape, dtype = parameters("normal", [mean, std], size, dtype)
    unit = check_generator("normal", generator).draw(DrawNormal(shape, dtype=dtype))
    return ops.add(mean, ops.mul(std, unit))


def exponential(
    rate: ArrayLike = 1.0,
    size: ShapeLike | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike = None,
) -> Value:
    """Numbers with the density rate exp(-rate x), differentiable in `rate`; see `normal`.

    Raises ValueRangeError for a `rate` that is a number not above zero.

    >>> from functx.random import generator
    >>> bool((generator.exponential(2.0, (10,)) >= 0).all())
    True
    """
    check_scale("exponential", "rate", rate)
    (rate,), shape, dtype = parameters("exponential", [rate], size, dtype)
    return ops.div(
        check_generator("exponential", generator).draw(DrawExponential(shape, dtype=dtype)), rate
    )


def cauchy(
    median: ArrayLike = 0.0,
    sigma: ArrayLike = 1.0,
    size: ShapeLike | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike = None,
) -> Value:
    """Numbers with the Cauchy distribution, differentiable in `median` and `sigma`; see `normal`.

    Raises ValueRangeError for a `sigma` that is a number not above zero.

    >>> from functx.random import generator
    >>> generator.cauchy(0.0, 1.0, (3,)).shape
    (3,)
    """
    check_scale("cauchy", "sigma", sigma)
    (median, sigma), shape, dtype = parameters("cauchy", [median, sigma], size, dtype)
    unit = check_generator("cauchy", generator).draw(DrawCauchy(shape, dtype=dtype))
    return ops.add(median, ops.mul(sigma, unit))


def log_normal(
    mean: ArrayLike = 1.0,
    std: ArrayLike = 2.0,
    size: ShapeLike | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike = None,
) -> Value:
    """Numbers whose logarithms have the normal distribution with `mean` and `std`; see `normal`.

    Raises ValueRangeError for a `std` that is a number not above zero.

    >>> from functx import random
    >>> bool((random.log_normal(0.0, 1.0, (5,)) > 0).all())
    True
    """
    check_scale("log_normal", "std", std)
    return ops.exp(normal(mean, std, size, generator=generator, dtype=dtype))


def bernoulli(
    p: ArrayLike,
    size: ShapeLike | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike = None,
) -> Value:
    """1 with probability `p`, else 0, in the dtype of `p` unless `dtype` is given.

    Without a `size`, the shape is that of `p`. No derivative passes. Raises ValueRangeError for a number
    that is no probability.

    >>> from functx.random import generator
    >>> generator.bernoulli(1.0, (3,)).tolist()
    [1.0, 1.0, 1.0]
    """
    check_probability("bernoulli", p, 0.0)
    (p,), shape, own = parameters("bernoulli", [p], size, None)
    primitive = DrawBernoulli(shape)
    drawn = check_generator("bernoulli", generator).draw(primitive, p)
    return ops.convert_element_type(drawn, own if dtype is None else canonical_dtype(dtype))


def geometric(
    p: ArrayLike,
    size: ShapeLike | None = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike = None,
) -> Value:
    """The number of trials up to the first success, which has probability `p` in each, as floats.

    Without a `size`, the shape is that of `p`. No derivative passes. Raises ValueRangeError for a number
    that is no probability, or zero.

    >>> from functx.random import generator
    >>> generator.geometric(1.0, (2,)).tolist()
    [1.0, 1.0]
    """
    check_probability("geometric", p, np.finfo(np.float64).tiny)
    (p,), shape, _ = parameters("geometric", [p], size, dtype)
    return check_generator("geometric", generator).draw(DrawGeometric(shape), p)


def dropout(
    x: ArrayLike, p: float = 0.5, train: bool = True, *, generator: Generator | None = None
) -> Value:
    """`x / (1 - p)` with each element set to 0 with probability `p`; `x` itself unless `train`.

    Raises ValueRangeError unless `p` is a probability.

    >>> import numpy
    >>> from functx.random import generator
    >>> sorted(set(generator.dropout(numpy.ones(100), 0.5).tolist()))
    [0.0, 2.0]
    """
    check_probability("dropout", p, 0.0)
    (x,), shape, dtype = parameters("dropout", [x], None, None)
    if not train or p == 0:
        return Copy()(x)  # type: ignore[no-any-return]
    kept = check_generator("dropout", generator).draw(
        DrawBernoulli(shape), literal(1.0 - p, canonical_dtype(float))
    )
    if p == 1:
        return ops.zeros_like(x)
    return ops.select(kept, ops.div(x, 1.0 - p), literal(0.0, dtype))


def rrelu(
    x: ArrayLike,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    *,
    generator: Generator | None = None,
) -> Value:
    """`x` where it is not negative, else `x` times a slope drawn between `lower` and `upper`.

    Unless `training`, the slope is the mean of both. Raises ValueRangeError unless lower <= upper.

    >>> import numpy
    >>> from functx import random
    >>> random.rrelu(numpy.array([-2.0, 3.0]), 0.5, 0.5).tolist()
    [-1.0, 3.0]
    """
    if not lower <= upper:
        raise ValueRangeError(f"rrelu: lower must not exceed upper; got {lower} and {upper}")
    (x,), shape, dtype = parameters("rrelu", [x], None, None)
    slope: Any = literal((lower + upper) / 2, dtype)
    if training:
        unit = check_generator("rrelu", generator).draw(DrawUniform(shape, dtype=dtype))
        slope = ops.add(ops.mul(unit, upper - lower), lower)
    return ops.select(ops.ge(x, literal(0.0, dtype)), x, ops.mul(x, slope))


def size_of(size: Sequence[Any]) -> Shape:
    """The shape that the arguments `size` give: lengths, or one tuple of them."""
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        return canonical_shape(size[0])
    return canonical_shape(size)


def check_float_dtype(caller: str, dtype: DTypeLike) -> DType:
    """A floating-point dtype, by default the default one; DTypeError for others."""
    found = canonical_dtype(float if dtype is None else dtype)
    if not is_floating(found):
        raise DTypeError(f"{caller}: dtype must be a floating-point type; got {found}")
    return found


def check_probability(caller: str, p: ArrayLike, least: float) -> None:
    """Raise ValueRangeError for a number that is less than `least`, greater than 1 or nan."""
    if type(p) in PYTHON_SCALARS and not least <= p <= 1:  # type: ignore[operator]
        raise ValueRangeError(
            f"{caller}: p must be a probability, {'above 0' if least else 'from 0'} to 1; got {p}"
        )


def check_scale(caller: str, name: str, x: ArrayLike, may_be_zero: bool = False) -> None:
    """Raise ValueRangeError for a number that is not above zero, or not zero if that is allowed."""
    if type(x) not in PYTHON_SCALARS or x > 0 or (may_be_zero and x == 0):  # type: ignore[operator]
        return
    must = "not be negative" if may_be_zero else "be above zero"
    raise ValueRangeError(f"{caller}: {name} must {must}; got {x}")


def parameters(
    caller: str, values: Sequence[ArrayLike], size: ShapeLike | None, dtype: DTypeLike
) -> tuple[list[Any], Shape, DType]:
    """Parameters in the dtype of the result, its shape and the dtype.

    The dtype is by default that of the arrays among the parameters, promoted.
    """
    values = [operand(x) for x in values]
    if dtype is None:
        found = promote_inexact(*values)
        dtype = aval_of(found[0]).dtype
    dtype = check_float_dtype(caller, dtype)
    shape = broadcast_shapes(*[aval_of(x).shape for x in values])
    if size is not None:
        shape = canonical_shape(size)
    return [draw_parameter(caller, x, shape, dtype) for x in values], shape, dtype


def draw_parameter(caller: str, x: ArrayLike, shape: Shape, dtype: DType) -> Value:
    """A parameter in `dtype`, a number or broadcast to `shape`.

    Raises DTypeError for a complex one, or a float for integers, and ShapeError if it does not broadcast.
    """
    if type(x) in PYTHON_SCALARS:
        return number_literal(x, dtype)
    aval = aval_of(x)
    if not (is_floating(aval.dtype) or is_integer(aval.dtype)) or (
        is_integer(dtype) and not is_integer(aval.dtype)
    ):
        wanted = "integers" if is_integer(dtype) else "real numbers"
        raise DTypeError(f"{caller}: parameters must be {wanted}; got {aval!r}")
    if not is_broadcastable(aval.shape, shape):
        raise ShapeError(
            f"{caller}: parameters must broadcast to the shape {shape} of the result; got {aval!r}"
        )
    return broadcast_to(ops.convert_element_type(x, dtype), shape)
