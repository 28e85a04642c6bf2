"""Random numbers without keys: generators, and functions that draw from one, under PyTorch's names.

A generator has a state, a seed and an offset, that each draw moves on. Without `generator=`, a
function draws from the default generator, of which each thread has its own. Inside a transformed
function the state is a hidden argument and result: a compiled function draws what the same calls
draw without `jit`, each call draws other numbers, and derivatives repeat those of the function.

Names that `jax.random` has too, such as `normal`, take keys in `functx.random`, and draw from
a generator in `functx.random.generator`.

>>> from functx import random
>>> generator = random.Generator(0)
>>> random.rand(3, generator=generator).shape
(3,)
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import jax
import ml_dtypes
import numpy as np

from functx import ops
from functx.core.backend import backend
from functx.core.errors import (
    ArgumentError,
    DTypeError,
    GeneratorError,
    SeedTypeError,
    ShapeError,
    ValueRangeError,
    type_name,
)
from functx.core.generator_state import (
    DEFAULT_STATE,
    STATE_AVAL,
    GeneratorState,
    fresh_seed,
    pack_state,
    state_table,
    unpack_state,
)
from functx.core.tracer import Tracer, aval_of, current_builder, is_variable
from functx.core.types import (
    DType,
    Shape,
    canonical_dtype,
    is_floating,
    is_inexact,
    is_integer,
)
from functx.core.typing import ArrayLike, DTypeLike, Function, NumPyArray, PyTree, ShapeLike, Value
from functx.numpy.mutation import assign_array
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
from functx.ops.philox import Draw
from functx.ops.views import Copy
from functx.transforms.aliasing import write_state

__all__ = [
    "Generator",
    "bernoulli",
    "bernoulli_",
    "cauchy",
    "cauchy_",
    "default_generator",
    "dropout",
    "exponential",
    "exponential_",
    "geometric",
    "geometric_",
    "get_state",
    "initial_seed",
    "log_normal",
    "log_normal_",
    "manual_seed",
    "normal",
    "normal_",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "random_",
    "randperm",
    "rrelu",
    "run_and_save_rng_state",
    "run_with_rng_state",
    "seed",
    "set_state",
    "uniform",
    "uniform_",
]


class Generator:
    """A source of random numbers: a seed of 64 bits, and the number of words that were drawn from it.

    Draws take whole blocks of four words from the offset on. Without a seed, the operating system
    gives one. A generator belongs to one thread at a time. One that is made inside a transformed
    function begins anew in each call.

    Raises SeedTypeError for a seed that is no int, ValueRangeError for a negative one or one of more
    than 64 bits.

    >>> from functx import random
    >>> generator = random.Generator(7)
    >>> before = generator.get_state()
    >>> first = random.rand(2, generator=generator)
    >>> generator.set_state(before)
    >>> bool((random.rand(2, generator=generator) == first).all())
    True
    """

    __slots__ = ("_state",)

    def __init__(self, seed: int | None = None):
        seed = fresh_seed() if seed is None else check_seed("Generator", seed)
        builder = current_builder.get()
        if builder is None:
            self._state: Any = GeneratorState(seed)
        else:
            self._state = Copy()(builder.tracer(pack_state(seed, 0)))

    def __repr__(self) -> str:
        is_traced = isinstance(self._state, Tracer) or state_table.get() is not None
        if is_traced or current_builder.get() is not None or backend.jax_is_tracing():
            return "Generator(traced)"
        seed, offset = unpack_state(self._state.read()).tolist()
        return f"Generator(seed={seed}, offset={offset})"

    def manual_seed(self, seed: int) -> Generator:
        """Start from `seed`, at offset 0; returns the generator."""
        self._write(pack_state(check_seed("manual_seed", seed), 0))
        return self

    def seed(self) -> int:
        """Start from a seed of the operating system, which is returned."""
        seed = fresh_seed()
        self._write(pack_state(seed, 0))
        return seed

    def initial_seed(self) -> int:
        """The seed that the generator started from."""
        if isinstance(self._state, Tracer) or current_builder.get() is not None:
            raise GeneratorError(
                "initial_seed: the seed must be read outside of a transformed function, in which it has "
                "no value; got a call inside one",
                fix="Use get_state(), or read the seed before.",
            )
        return int(unpack_state(self._state.read())[0])

    def get_state(self) -> NumPyArray | Value:
        """The seed and the offset, as two uint64; inside a transformed function the four words of both."""
        builder = current_builder.get()
        if builder is not None:
            return Copy()(builder.tracer(self._state))  # type: ignore[no-any-return]
        words = self._read()
        return words if is_variable(words) else unpack_state(words)

    def set_state(self, state: ArrayLike) -> None:
        """Continue from a state that `get_state` returned, inside a transformed function or outside.

        Raises GeneratorError for an array that is no state.
        """
        self._write(as_words(state))

    def _read(self) -> Any:
        if isinstance(self._state, Tracer):
            raise GeneratorError(
                "Generator: one that is made inside a transformed function must be used in it; got a use "
                "after the function has ended",
                fix="Make the generator outside of the function, which may capture it.",
            )
        return self._state.read()

    def _write(self, words: Any) -> None:
        if current_builder.get() is None:
            self._read()
        write_state(self._state, words)

    def draw(self, primitive: Draw, *parameters: ArrayLike) -> Value:
        """The numbers that `primitive` draws with these parameters; the state moves on."""
        builder = current_builder.get()
        if builder is None:
            state = self._read()
            if isinstance(state, jax.Array) and not is_variable(state):
                # On the host, so that draws outside of transforms are arrays that can be written to.
                state = np.asarray(state)
            out, words = primitive(state, *parameters)
        else:
            out, words = primitive(builder.tracer(self._state), *parameters)
        write_state(self._state, words)
        return out  # type: ignore[no-any-return]


def check_seed(caller: str, seed: object) -> int:
    """`seed` as an int; SeedTypeError unless it is an integer, ValueRangeError unless it has 64 bits."""
    if isinstance(seed, (bool, np.bool_)) or not hasattr(type(seed), "__index__"):
        raise SeedTypeError(f"{caller}: a seed must be an int; got {type_name(seed)} {seed!r:.40}")
    number = index(seed)  # type: ignore[arg-type]
    if not 0 <= number < 2**64:
        raise ValueRangeError(
            f"{caller}: a seed must not be negative and have at most 64 bits; got {number}"
        )
    return int(number)


def as_words(state: ArrayLike) -> Any:
    """The four words of a state as users have it; GeneratorError for an array that is none."""
    try:
        shape, dtype = np.shape(state), np.dtype(getattr(state, "dtype", type(state)))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        shape, dtype = (), np.dtype(object)
    if shape == (2,) and dtype == np.uint64 and not isinstance(state, Tracer):
        seed, offset = np.asarray(state).tolist()
        return pack_state(seed, offset)
    if shape == STATE_AVAL.shape and dtype == STATE_AVAL.dtype:
        return state if isinstance(state, Tracer) else np.array(state)
    raise GeneratorError(
        "set_state: a state must be what get_state returns, the seed and the offset as two uint64, or "
        f"the four words of both as uint32; got {type_name(state)}"
    )


default_generator = Generator.__new__(Generator)
"""The default generator, of which each thread has its own state."""
default_generator._state = DEFAULT_STATE


def check_generator(caller: str, generator: Generator | None) -> Generator:
    """`generator`, or the default one; GeneratorError for anything else."""
    if generator is None:
        return default_generator
    if not isinstance(generator, Generator):
        raise GeneratorError(
            f"{caller}: generator must be a functx.random.Generator or None; got {type_name(generator)}",
            fix="Make one with functx.random.Generator(seed); a key is the first argument of the function "
            "of the same name in functx.random.",
        )
    return generator


def manual_seed(seed: int) -> Generator:
    """Start the default generator of this thread from `seed`; returns the generator.

    >>> from functx import random
    >>> first = random.manual_seed(0) and random.rand(2)
    >>> again = random.manual_seed(0) and random.rand(2)
    >>> bool((first == again).all())
    True
    """
    return default_generator.manual_seed(seed)


def seed(seed: int | None = None) -> int:
    """Start the default generator of this thread from `seed`, which is returned.

    Without one, the operating system gives a seed.

    >>> from functx import random
    >>> random.seed(3)
    3
    """
    if seed is None:
        return default_generator.seed()
    default_generator.manual_seed(seed)
    return index(seed)


def initial_seed() -> int:
    """The seed that the default generator of this thread started from.

    >>> from functx import random
    >>> random.seed(5) == random.initial_seed()
    True
    """
    return default_generator.initial_seed()


def get_state(generator: Generator | None = None) -> NumPyArray | Value:
    """The state of a generator, by default that of this thread: the seed and the offset, as two uint64.

    Inside a transformed function it is the four words of both, `uint32`.

    >>> from functx import random
    >>> _ = random.seed(1), random.rand(5)
    >>> random.get_state().tolist()
    [1, 8]
    """
    return check_generator("get_state", generator).get_state()


def set_state(state: ArrayLike, generator: Generator | None = None) -> None:
    """Continue a generator, by default that of this thread, from a state of `get_state`.

    Raises GeneratorError for an array that is no state.

    >>> from functx import random
    >>> state = random.get_state()
    >>> first = random.rand(2)
    >>> random.set_state(state)
    >>> bool((first == random.rand(2)).all())
    True
    """
    check_generator("set_state", generator).set_state(state)


def run_and_save_rng_state(
    fun: Function, *args: PyTree, generator: Generator | None = None, **kwargs: PyTree
) -> tuple[NumPyArray | Value, PyTree]:
    """`(state, fun(*args, **kwargs))`, where `state` is that of the generator before the call.

    >>> from functx import random
    >>> state, first = random.run_and_save_rng_state(random.rand, 2)
    >>> bool((random.run_with_rng_state(state, random.rand, 2) == first).all())
    True
    """
    return check_generator("run_and_save_rng_state", generator).get_state(), fun(*args, **kwargs)


def run_with_rng_state(
    state: ArrayLike,
    fun: Function,
    *args: PyTree,
    generator: Generator | None = None,
    **kwargs: PyTree,
) -> PyTree:
    """`fun(*args, **kwargs)` with the generator at `state`; afterwards it is where it was before.

    Raises GeneratorError for an array that is no state.

    >>> from functx import random
    >>> before = random.get_state().tolist()
    >>> _ = random.run_with_rng_state(random.get_state(), random.randn, 3)
    >>> random.get_state().tolist() == before
    True
    """
    generator = check_generator("run_with_rng_state", generator)
    before = generator.get_state()
    generator.set_state(state)
    try:
        return fun(*args, **kwargs)
    finally:
        generator.set_state(before)


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
        first, end = [as_parameter("randint", x, shape, dtype) for x in (low, high)]
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
    return [as_parameter(caller, x, shape, dtype) for x in values], shape, dtype


def as_parameter(caller: str, x: ArrayLike, shape: Shape, dtype: DType) -> Any:
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
