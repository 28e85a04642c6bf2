"""Random numbers drawn from a generator and written to an array."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from functx import ops
from functx.core.errors import DTypeError
from functx.core.tracer import aval_of
from functx.core.types import DType, canonical_dtype, is_floating, is_integer
from functx.core.typing import ArrayLike, Function, Value
from functx.numpy.mutation import assign_array
from functx.random.generator.distributions import (
    bernoulli,
    cauchy,
    exponential,
    geometric,
    log_normal,
    normal,
    randint,
    uniform,
)
from functx.random.generator.states import Generator

__all__ = [
    "bernoulli_",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "normal_",
    "random_",
    "uniform_",
]


def uniform_(
    x: Value, low: float = 0.0, high: float = 1.0, *, generator: Generator | None = None
) -> Value:
    """Write numbers between `low` and `high` to the array `x`, which is returned; see `uniform`.

    >>> import numpy
    >>> from functx import random
    >>> x = numpy.zeros(3)
    >>> random.uniform_(x, 1.0, 2.0) is x, bool((x >= 1).all())
    (True, True)
    """
    return _write_floats(x, uniform, low, high, generator=generator)


def normal_(
    x: Value, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> Value:
    """Write normally distributed numbers to the array `x`, which is returned; see `normal`.

    >>> import numpy
    >>> from functx import random
    >>> random.normal_(numpy.zeros(3)).shape
    (3,)
    """
    return _write_floats(x, normal, mean, std, generator=generator)


def exponential_(x: Value, lambd: float = 1.0, *, generator: Generator | None = None) -> Value:
    """Write exponentially distributed numbers to the array `x`, which is returned; see `exponential`.

    >>> import numpy
    >>> from functx import random
    >>> random.exponential_(numpy.zeros(3)).shape
    (3,)
    """
    return _write_floats(x, exponential, lambd, generator=generator)


def cauchy_(
    x: Value, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None
) -> Value:
    """Write numbers with the Cauchy distribution to the array `x`, which is returned; see `cauchy`.

    >>> import numpy
    >>> from functx import random
    >>> random.cauchy_(numpy.zeros(3)).shape
    (3,)
    """
    return _write_floats(x, cauchy, median, sigma, generator=generator)


def log_normal_(
    x: Value, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None
) -> Value:
    """Write log-normally distributed numbers to the array `x`, which is returned; see `log_normal`.

    >>> import numpy
    >>> from functx import random
    >>> bool((random.log_normal_(numpy.zeros(3)) > 0).all())
    True
    """
    return _write_floats(x, log_normal, mean, std, generator=generator)


def geometric_(x: Value, p: float, *, generator: Generator | None = None) -> Value:
    """Write geometrically distributed numbers to the array `x`, which is returned; see `geometric`.

    >>> import numpy
    >>> from functx import random
    >>> random.geometric_(numpy.zeros(2), 1.0).tolist()
    [1.0, 1.0]
    """
    aval = aval_of(x)
    drawn = geometric(p, aval.shape, generator=generator)
    return assign_array(x, ops.convert_element_type(drawn, aval.dtype), "geometric_")


def bernoulli_(x: Value, p: ArrayLike = 0.5, *, generator: Generator | None = None) -> Value:
    """Write 1 with probability `p` and else 0 to the array `x`, which is returned; see `bernoulli`.

    >>> import numpy
    >>> from functx import random
    >>> random.bernoulli_(numpy.zeros(2), 1.0).tolist()
    [1.0, 1.0]
    """
    aval = aval_of(x)
    drawn = bernoulli(p, aval.shape, generator=generator, dtype=aval.dtype)
    return assign_array(x, drawn, "bernoulli_")


def random_(
    x: Value,
    low: int | None = None,
    high: int | None = None,
    *,
    generator: Generator | None = None,
) -> Value:
    """Write integers from `low` to below `high` to the array `x`, which is returned; see `randint`.

    With one bound it is `high`. Without any, the bound is the largest number of the dtype, or for
    floats the largest up to which all integers have one.

    >>> import numpy
    >>> from functx import random
    >>> random.random_(numpy.zeros(2), 1).tolist()
    [0.0, 0.0]
    """
    shape, dtype = aval_of(x).shape, aval_of(x).dtype
    if high is None:
        low, high = 0, largest_integer(dtype) if low is None else low
    drawn_dtype = dtype if is_integer(dtype) else canonical_dtype(np.int64)
    drawn = randint(0 if low is None else low, high, shape, generator=generator, dtype=drawn_dtype)
    return assign_array(x, ops.convert_element_type(drawn, dtype), "random_")


def largest_integer(dtype: DType) -> int:
    """The bound below which `random_` draws integers in arrays of `dtype`."""
    if is_integer(dtype):
        return int(np.iinfo(dtype).max) + 1
    if dtype == np.bool_:
        return 2
    largest = int(2 ** (ml_dtypes.finfo(dtype).nmant + 1))
    return min(largest, int(np.iinfo(canonical_dtype(np.int64)).max))


def _write_floats(
    x: Value, draw: Function, *parameters: float, generator: Generator | None
) -> Value:
    """Write numbers drawn by `draw` to the array `x`, which is returned; DTypeError unless it holds floats."""
    aval, name = aval_of(x), f"{draw.__name__}_"
    if not is_floating(aval.dtype):
        raise DTypeError(
            f"{name}: the array must have a floating-point dtype; got {aval!r}",
            fix="Convert it before with astype.",
        )
    drawn = draw(*parameters, aval.shape, generator=generator, dtype=aval.dtype)
    return assign_array(x, drawn, name)
