"""Random bits of XLA's generators, and uniform numbers without a key."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.lax import RandomAlgorithm

from functx import ops
from functx.core.errors import DTypeError, ShapeError
from functx.core.primitive import Primitive
from functx.core.samples import sample, u32
from functx.core.tracer import aval_of
from functx.core.types import DType, Shape, ShapedArray, canonical_dtype, is_floating, is_integer
from functx.core.typing import (
    ArrayLike,
    Dims,
    DTypeLike,
    IRValue,
    IRValues,
    ShapeLike,
    Value,
    Values,
)
from functx.ops.operands import canonical_shape, promote_scalars
from functx.ops.philox import UINT32, UINT64
from functx.transforms.control.rows import map as map_rows

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class RngBitGenerator(Primitive):
    """The next state of a generator of XLA, and an array of `shape` of random unsigned integers.

    The state is u32[4] or u64[2].
    """

    shape: Shape
    size_fields = ("shape",)
    dtype: DType
    algorithm: RandomAlgorithm
    multiple_results = True
    differentiable = False
    samples = (
        sample(u32[4], shape=(3,), dtype=UINT32, algorithm=RandomAlgorithm.RNG_THREE_FRY),
        sample(u32[4], shape=(2, 2), dtype=np.dtype("uint8"), algorithm=RandomAlgorithm.RNG_PHILOX),
    )

    def abstract_eval(self, key: ShapedArray) -> tuple[ShapedArray, ShapedArray]:
        if (key.dtype, key.shape) not in [(UINT32, (4,)), (UINT64, (2,))]:
            raise DTypeError(f"{self.name}: the key must be u32[4] or u64[2]; got {key!r}")
        return key, ShapedArray(self.shape, self.dtype)

    def batch(self, args: Values, dims: Dims) -> tuple[Values, Dims]:
        (dim,) = dims
        assert dim is not None
        return map_rows(self, ops.moveaxis(args[0], dim, 0)), (0, 0)

    def lower(self, ctx: LoweringContext, key: IRValue) -> IRValues:
        options = {"dtype": self.dtype, "algorithm": self.algorithm}
        return ctx.via_jax(lambda key: jax.lax.rng_bit_generator(key, self.shape, **options), key)


def rng_bit_generator(
    key: ArrayLike,
    shape: ShapeLike,
    dtype: DTypeLike = np.uint32,
    algorithm: RandomAlgorithm = RandomAlgorithm.RNG_DEFAULT,
    *,
    out_sharding: object = None,
) -> tuple[Value, Value]:
    """The next state, and an array of `shape` of random unsigned integers, of a generator of XLA.

    `key` is the state, u32[4] or u64[2]. The bits depend on `algorithm` and, by default, on the platform.
    Unlike in JAX, `vmap` over keys gives what a loop gives.

    >>> import numpy
    >>> from functx import lax
    >>> state, bits = lax.rng_bit_generator(numpy.arange(4, dtype="uint32"), (5,))
    >>> state.shape, bits.shape
    ((4,), (5,))
    """
    dtype = canonical_dtype(dtype)
    if dtype.kind != "u":
        raise DTypeError(f"rng_bit_generator: dtype must be an unsigned integer type; got {dtype}")
    algorithm = RandomAlgorithm(algorithm)
    state, bits = RngBitGenerator(canonical_shape(shape), dtype, algorithm)(key)
    if out_sharding is not None:
        bits = ops.with_sharding_constraint(bits, out_sharding)
    return state, bits


def rng_uniform(a: ArrayLike, b: ArrayLike, shape: ShapeLike) -> Value:
    """An array of `shape` of numbers in [a, b), floats or integers, which differ in each call.

    They are drawn from `functx.random.default_generator`. `a` and `b` are scalars of one dtype.

    >>> from functx import lax
    >>> bool((lax.rng_uniform(1.0, 2.0, (3,)) >= 1.0).all())
    True
    """
    a, b = promote_scalars(a, b)
    avals = aval_of(a), aval_of(b)
    dtype = avals[0].dtype
    if dtype != avals[1].dtype or not (is_floating(dtype) or is_integer(dtype)):
        raise DTypeError(
            f"rng_uniform: a and b must be floats or integers of one dtype; got {avals[0]!r} and {avals[1]!r}"
        )
    if avals[0].shape or avals[1].shape:
        raise ShapeError(f"rng_uniform: a and b must be scalars; got {avals[0]!r} and {avals[1]!r}")
    # Generators are in a layer above.
    generator = import_module("functx.random.generator")
    draw = generator.uniform if is_floating(dtype) else generator.randint
    return draw(a, b, canonical_shape(shape), dtype=dtype)
