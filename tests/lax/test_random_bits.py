"""The random bits of functx.lax."""

import numpy as np
import pytest
from jax import lax as jax_lax

import functx
from functx import lax, random
from functx.core.errors import DTypeError, ShapeError

KEY = np.arange(4, dtype="uint32")


@pytest.mark.parametrize("algorithm", list(jax_lax.RandomAlgorithm))
def test_bits_are_those_of_jax(algorithm):
    for dtype in ("uint8", "uint32"):
        found = lax.rng_bit_generator(KEY, (5, 3), dtype, algorithm)
        expected = jax_lax.rng_bit_generator(KEY, (5, 3), np.dtype(dtype), algorithm)
        for x, y in zip(found, expected, strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


def test_vmap_over_keys_gives_what_a_loop_gives():
    keys = np.stack([KEY, KEY + 4], 1)
    states, bits = functx.vmap(lambda k: lax.rng_bit_generator(k, (2,)), 1)(keys)
    for i in range(2):
        state, expected = lax.rng_bit_generator(keys[:, i], (2,))
        np.testing.assert_array_equal(states[i], state)
        np.testing.assert_array_equal(bits[i], expected)


def test_uniform_numbers_without_a_key_are_those_of_the_default_generator():
    random.seed(3)
    first, second = [lax.rng_uniform(np.float32(1), np.float32(3), (4,)) for _ in range(2)]
    random.seed(3)
    np.testing.assert_array_equal(first, random.generator.uniform(1.0, 3.0, (4,)))
    assert first.tolist() != second.tolist()
    whole = functx.jit(lambda: lax.rng_uniform(np.int32(2), np.int32(5), (200,)))()
    assert whole.dtype == np.int32
    assert set(whole.tolist()) == {2, 3, 4}


def test_wrong_arguments_are_told():
    with pytest.raises(DTypeError, match=r"the key must be u32\[4\] or u64\[2\]; got u32\[3\]"):
        lax.rng_bit_generator(KEY[:3], (2,))
    with pytest.raises(DTypeError, match="dtype must be an unsigned integer type; got int32"):
        lax.rng_bit_generator(KEY, (2,), "int32")
    with pytest.raises(DTypeError, match="rng_uniform: a and b must be floats or integers of one"):
        lax.rng_uniform(np.float32(0), np.int32(1), ())
    with pytest.raises(ShapeError, match="rng_uniform: a and b must be scalars"):
        lax.rng_uniform(np.zeros(2), np.ones(2), (2,))
