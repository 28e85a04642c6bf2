"""Random numbers drawn from a generator and written to an array."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from functx import ops
from functx.core.errors import (
    DTypeError,
)
from functx.core.tracer import aval_of
from functx.core.types import (
    DType,
    Shape,
    canonical_dtype,
    is_floating,
    is_integer,
)
from functx.core.typing import ArrayLike
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
    x: Any, low: float = 0.0, high: float = 1.0, *, generator: Generator | None = None
) -> Any:
    """Write numbers between `low` and `high` to the array `x`, which is returned; see `uniform`.

    >>> import numpy
    >>> from functx import random
    >>> x = numpy.zeros(3)
    >>> random.uniform_(x, 1.0, 2.0) is x, bool((x >= 1).all())
    (True, True)
    """
    shape, dtype = target_of("uniform_", x, is_floating)
    drawn = uniform(low, high, shape, generator=generator, dtype=dtype)
    return assign_array(x, drawn, "uniform_")


def normal_(
    x: Any, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> Any:
    """Write normally distributed numbers to the array `x`, which is returned; see `normal`.

    >>> import numpy
    >>> from functx import random
    >>> random.normal_(numpy.zeros(3)).shape
    (3,)
    """
    shape, dtype = target_of("normal_", x, is_floating)
    return assign_array(x, normal(mean, std, shape, generator=generator, dtype=dtype), "normal_")


def exponential_(x: Any, lambd: float = 1.0, *, generator: Generator | None = None) -> Any:
    """Write exponentially distributed numbers to the array `x`, which is returned; see `exponential`.

    >>> import numpy
    >>> from functx import random
    >>> random.exponential_(numpy.zeros(3)).shape
    (3,)
    """
    shape, dtype = target_of("exponential_", x, is_floating)
    return assign_array(
        x, exponential(lambd, shape, generator=generator, dtype=dtype), "exponential_"
    )


def cauchy_(
    x: Any, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None
) -> Any:
    """Write numbers with the Cauchy distribution to the array `x`, which is returned; see `cauchy`.

    >>> import numpy
    >>> from functx import random
    >>> random.cauchy_(numpy.zeros(3)).shape
    (3,)
    """
    shape, dtype = target_of("cauchy_", x, is_floating)
    return assign_array(
        x, cauchy(median, sigma, shape, generator=generator, dtype=dtype), "cauchy_"
    )


def log_normal_(
    x: Any, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None
) -> Any:
    """Write log-normally distributed numbers to the array `x`, which is returned; see `log_normal`.

    >>> import numpy
    >>> from functx import random
    >>> bool((random.log_normal_(numpy.zeros(3)) > 0).all())
    True
    """
    shape, dtype = target_of("log_normal_", x, is_floating)
    drawn = log_normal(mean, std, shape, generator=generator, dtype=dtype)
    return assign_array(x, drawn, "log_normal_")


def geometric_(x: Any, p: float, *, generator: Generator | None = None) -> Any:
    """Write geometrically distributed numbers to the array `x`, which is returned; see `geometric`.

    >>> import numpy
    >>> from functx import random
    >>> random.geometric_(numpy.zeros(2), 1.0).tolist()
    [1.0, 1.0]
    """
    shape, dtype = target_of("geometric_", x, lambda dtype: True)
    drawn = geometric(p, shape, generator=generator)
    return assign_array(x, ops.convert_element_type(drawn, dtype), "geometric_")


def bernoulli_(x: Any, p: ArrayLike = 0.5, *, generator: Generator | None = None) -> Any:
    """Write 1 with probability `p` and else 0 to the array `x`, which is returned; see `bernoulli`.

    >>> import numpy
    >>> from functx import random
    >>> random.bernoulli_(numpy.zeros(2), 1.0).tolist()
    [1.0, 1.0]
    """
    shape, dtype = target_of("bernoulli_", x, lambda dtype: True)
    return assign_array(x, bernoulli(p, shape, generator=generator, dtype=dtype), "bernoulli_")


def random_(
    x: Any,
    low: int | None = None,
    high: int | None = None,
    *,
    generator: Generator | None = None,
) -> Any:
    """Write integers from `low` to below `high` to the array `x`, which is returned; see `randint`.

    With one bound it is `high`. Without any, the bound is the largest number of the dtype, or for
    floats the largest up to which all integers have one.

    >>> import numpy
    >>> from functx import random
    >>> random.random_(numpy.zeros(2), 1).tolist()
    [0.0, 0.0]
    """
    shape, dtype = target_of("random_", x, lambda dtype: True)
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


def target_of(caller: str, x: Any, accepts: Any) -> tuple[Shape, DType]:
    """The shape and dtype of an array to write to; DTypeError unless `accepts` the dtype."""
    aval = aval_of(x)
    if not accepts(aval.dtype):
        raise DTypeError(
            f"{caller}: the array must have a floating-point dtype; got {aval!r}",
            fix="Convert it before with astype.",
        )
    return aval.shape, aval.dtype
