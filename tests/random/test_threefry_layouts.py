"""Both layouts of the words of Threefry, between which `jax_threefry_partitionable` chooses."""

import jax
import numpy as np
import pytest

import functx
from functx import random
from functx.core.errors import ValueRangeError

KEYS = np.array([[0, 7], [3, 2**32 - 1]], np.uint32)


def draws(random, key):
    """Bits of two widths, odd in number, keys, and numbers of two distributions, made with a key."""
    keys = random.key_data(random.split(key, 3))
    return (
        *(random.bits(key, (3,), dtype) for dtype in ("uint8", "uint32")),
        *(keys, random.normal(key, (3,)), random.randint(key, (3,), 0, 1000)),
    )


def draws_of_jax(keys):
    return draws(jax.random, jax.random.wrap_key_data(keys))


def test_draws_follow_the_layout_that_jax_has_in_turn_also_under_jit_and_vmap():
    jitted, mapped = functx.jit(lambda key: draws(random, key)), jax.vmap(draws_of_jax)
    batched = functx.jit(functx.vmap(lambda key: draws(random, key)))
    bits = {}
    for partitionable in (True, False, True, False):
        with jax.threefry_partitionable(partitionable):
            expected = mapped(KEYS)
            bits.setdefault(partitionable, np.asarray(expected[1]))
            one = [x[0] for x in expected]
            for outs, wanted in ((jitted(KEYS[0]), one), (batched(KEYS), expected)):
                for out, want in zip(outs, wanted, strict=True):
                    np.testing.assert_allclose(out, want, rtol=1e-6)
            plain = random.bits(KEYS[0], (3,)), random.split(KEYS[0], 3)
            for out, want in zip(plain, (one[1], one[2]), strict=True):
                np.testing.assert_array_equal(out, want)
    assert not (bits[True] == bits[False]).all()


@pytest.mark.parametrize("dtype, size", [("uint16", 3), ("uint64", 3), ("uint8", 0)])
def test_bits_of_every_width_are_pieces_of_one_sequence_of_words(dtype, size):
    with jax.enable_x64(), jax.threefry_partitionable(False):
        wanted = jax.random.bits(jax.random.wrap_key_data(KEYS[1]), (size,), dtype)
        np.testing.assert_array_equal(random.bits(KEYS[1], (size,), dtype), wanted)


def test_a_program_keeps_the_layout_with_which_it_was_traced():
    with jax.threefry_partitionable(False):
        program = functx.make_ir(lambda key: random.normal(key, (3,)))(KEYS[0])
        translated = functx.make_ir(functx.from_jax(lambda key: draws_of_jax(key)[1]))(KEYS[0])
        wanted = draws_of_jax(KEYS[0])
        assert program(KEYS[0]).tolist() == pytest.approx(wanted[3].tolist(), rel=1e-6)
    assert "random_normal[shape=(3,), dtype=f32, partitionable=False]" in str(program)
    assert "partitionable=False" in str(translated)
    np.testing.assert_allclose(program(KEYS[0]), wanted[3], rtol=1e-6)
    np.testing.assert_allclose(functx.vmap(program)(KEYS)[0], wanted[3], rtol=1e-6)
    assert "partitionable" not in str(functx.make_ir(lambda k: random.normal(k, (3,)))(KEYS[0]))


@pytest.mark.parametrize("wide", [False, True])
def test_the_offset_of_seeds_that_jax_has_is_added_to_each_seed(wide):
    seeds = 5, -3, 2**31 - 1, np.int32(5)
    traced = functx.jit(lambda: [random.key(seed) for seed in seeds])
    with jax.enable_x64(wide):
        for offset in (0, 3, 0):
            jax.config.update("jax_random_seed_offset", offset)
            try:
                wanted = [jax.random.key_data(jax.random.key(seed)).tolist() for seed in seeds]
                assert [key.tolist() for key in traced()] == wanted
                assert [random.key(seed).tolist() for seed in seeds] == wanted
            finally:
                jax.config.update("jax_random_seed_offset", 0)


def test_another_default_generator_of_jax_is_refused_unless_the_generator_is_named():
    with jax.default_prng_impl("rbg"):
        for make in (random.key, random.PRNGKey):
            with pytest.raises(ValueRangeError, match="'rbg' from jax_default_prng_impl"):
                make(0)
        assert random.key(0, impl="threefry2x32").tolist() == [0, 0]


def test_more_words_than_a_sequence_has_are_refused():
    with jax.threefry_partitionable(False), pytest.raises(ValueRangeError, match="fewer than"):
        functx.jit(lambda key: random.bits(key, (2**32,))).lower(KEYS[0])
