"""Generators: the published words, states, distributions, dtypes, in-place forms, and mistakes."""

import copy
import pickle
import threading

import numpy as np
import pytest

import functx
from functx import random
from functx.core.errors import (
    DTypeError,
    GeneratorError,
    ImplicitDrawError,
    SeedTypeError,
    ShapeError,
    ValueRangeError,
)
from functx.core.generator_state import pack_state
from functx.ops.philox import PhiloxBits
from functx.random import generator as draws
from functx.testing.reference.draws import philox_4x32


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_the_reference_has_the_published_words(counter, key, words):
    found = philox_4x32(counter, key)
    assert " ".join([f"{int(word):08x}" for word in found]) == words


def test_the_primitive_has_the_words_of_the_reference_also_across_a_carry_of_the_counter():
    seed, first = 0x299F31D0A4093822, 0xFFFFFFFE
    words, state = PhiloxBits((13,))(pack_state(seed, 4 * first))
    numbers = np.arange(first, first + 4)
    counter = [numbers & 0xFFFFFFFF, numbers >> 32, np.zeros(4), np.zeros(4)]
    expected = np.stack(philox_4x32(counter, [seed & 0xFFFFFFFF, seed >> 32]), -1).ravel()
    assert words.tolist() == expected[:13].tolist()
    assert state.tolist() == pack_state(seed, 4 * (first + 4)).tolist()


def test_products_are_64_bit_integers_while_the_switch_is_off():
    text = functx.jit(lambda: random.rand(4)).lower().as_text()
    products = [line for line in text.splitlines() if "stablehlo.multiply" in line]
    assert sum(["ui64" in line for line in products]) >= 19
    assert not any(["ui32" in line for line in products])


def test_draws_after_one_another_are_one_draw_and_take_blocks_of_four_words():
    one, two = random.Generator(3), random.Generator(3)
    whole = random.rand(8, generator=one)
    halves = [random.rand(4, generator=two) for _ in range(2)]
    assert np.concatenate(halves).tolist() == whole.tolist()
    assert one.get_state().tolist() == two.get_state().tolist() == [3, 8]
    random.rand(5, generator=two)
    assert two.get_state().tolist() == [3, 16]
    # An offset inside a block is rounded up.
    two.set_state(np.array([3, 1], np.uint64))
    assert random.rand(4, generator=two).tolist() == whole[4:].tolist()
    random.rand(0, generator=two)
    assert two.get_state().tolist() == [3, 8]


def test_a_state_is_two_uint64_and_continues_where_it_was_taken():
    generator = random.Generator(2**64 - 1)
    generator.set_state(np.array([2**64 - 1, 2**34], np.uint64))
    state = generator.get_state()
    assert (state.dtype, state.tolist()) == (np.uint64, [2**64 - 1, 2**34])
    first = random.randn(3, generator=generator)
    generator.set_state(state)
    assert random.randn(3, generator=generator).tolist() == first.tolist()
    assert generator.initial_seed() == 2**64 - 1
    assert repr(generator) == f"Generator(seed={2**64 - 1}, offset={2**34 + 4})"


def test_the_default_generator_is_seeded_and_each_thread_has_its_own():
    assert random.seed(5) == random.initial_seed() == 5
    first = random.rand(3)
    assert random.manual_seed(5) is random.default_generator
    assert random.rand(3).tolist() == first.tolist()
    found = []

    def run():
        found.append(random.initial_seed())
        random.seed(5)
        found.append(random.rand(3).tolist())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found[0] != 5
    assert found[1] == first.tolist()
    assert random.get_state().tolist() == [5, 4]
    assert random.seed() == random.initial_seed() != random.seed()


def test_results_outside_of_transforms_are_arrays_that_can_be_written_to():
    functx.jit(lambda: random.rand(2))()
    x = random.rand(2)
    x[0] = 2.0
    assert isinstance(x, np.ndarray)


N = 4000
"""So many numbers that means differ by less than 0.1 from those of the distributions."""


def test_the_distributions_have_their_moments_and_bounds():
    g = random.Generator(0)
    x = random.rand(N, generator=g)
    assert x.min() >= 0
    assert x.max() < 1
    assert abs(x.mean() - 0.5) < 0.02
    assert abs(x.std() - 12**-0.5) < 0.02
    x = random.randn(N, generator=g)
    assert abs(x.mean()) < 0.06
    assert abs(x.std() - 1) < 0.05
    assert abs((x**3).mean()) < 0.2
    x = draws.exponential(2.0, (N,), generator=g)
    assert x.min() >= 0
    assert abs(x.mean() - 0.5) < 0.05
    x = draws.uniform(-3.0, 1.0, (N,), generator=g)
    assert x.min() >= -3
    assert x.max() <= 1
    assert abs(x.mean() + 1) < 0.1
    x = draws.normal(2.0, 3.0, (N,), generator=g)
    assert abs(x.mean() - 2) < 0.2
    assert abs(x.std() - 3) < 0.2
    x = draws.cauchy(1.0, 2.0, (N,), generator=g)
    assert np.isfinite(x).all()
    assert abs(np.median(x) - 1) < 0.2
    assert abs(np.quantile(x, 0.75) - 3) < 0.4
    x = draws.log_normal(0.5, 0.25, (N,), generator=g)
    assert abs(np.log(x).mean() - 0.5) < 0.05
    x = draws.geometric(0.25, (N,), generator=g)
    assert x.min() == 1
    assert abs(x.mean() - 4) < 0.4
    x = draws.bernoulli(0.3, (N,), generator=g)
    assert set(x.tolist()) == {0.0, 1.0}
    assert abs(x.mean() - 0.3) < 0.05
    x = draws.randint(-2, 3, (N,), generator=g)
    assert np.abs(np.bincount(x + 2, minlength=5) / N - 0.2).max() < 0.05
    x = random.randperm(N, generator=g)
    assert sorted(x.tolist()) == list(range(N))
    assert abs(np.corrcoef(x, np.arange(N))[0, 1]) < 0.1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_floats_of_each_dtype_stay_in_their_bounds(dtype):
    g = random.Generator(1)
    unit = random.rand(300, dtype=dtype, generator=g)
    assert unit.dtype == np.dtype(dtype)
    assert 0 <= float(unit.min()) <= float(unit.max()) < 1
    assert random.randn(3, dtype=dtype, generator=g).dtype == np.dtype(dtype)


def test_64_bit_numbers_have_full_mantissas():
    import jax

    with jax.enable_x64(True):
        g = random.Generator(1)
        x = random.rand(8, generator=g)
        assert x.dtype == np.float64
        assert (x * 2.0**40 % 1 != 0).any()
        assert g.get_state().tolist() == [1, 16]
        first = draws.randint(-(2**63), 2**63, (8,), generator=g)
        assert first.dtype == np.int64
        assert np.abs(first).max() > 2**40
        assert random.randn(2, dtype=complex, generator=g).dtype == np.complex128
        # The words do not depend on the switch.
        wide = random.rand(4, dtype="float32", generator=random.Generator(1))
    assert wide.tolist() == random.rand(4, generator=random.Generator(1)).tolist()


def test_integers_reach_the_bounds_of_their_dtypes():
    g = random.Generator(0)
    assert {0, 255} <= set(draws.randint(0, 256, (3000,), dtype="uint8", generator=g).tolist())
    assert {-128, 127} <= set(draws.randint(-128, 128, (3000,), dtype="int8", generator=g).tolist())
    x = draws.randint(-(2**31), 2**31, (1000,), dtype="int32", generator=g)
    assert x.min() < -(2**30)
    assert x.max() > 2**30
    # Three quarters of all numbers: a remainder would be half as likely above 2^30 as below.
    x = draws.randint(0, 3 * 2**30, (N,), dtype="uint32", generator=g)
    assert abs((x < 2**30).mean() - 1 / 3) < 0.05
    x = draws.randint(np.array([0, 5]), np.array([2, 6]), (50, 2), generator=g)
    assert set(x[:, 0].tolist()) == {0, 1}
    assert set(x[:, 1].tolist()) == {5}


def test_probabilities_of_zero_and_one_are_certain():
    assert draws.bernoulli(0.0, (50,)).sum() == 0
    assert draws.bernoulli(np.ones(50, "float32")).sum() == 50
    assert draws.geometric(1.0, (50,)).tolist() == [1.0] * 50
    assert draws.dropout(np.ones(4, "float32"), 1.0).tolist() == [0.0] * 4
    assert draws.dropout(np.ones(4, "float32"), 0.9, train=False).tolist() == [1.0] * 4


def test_functions_like_an_array_take_its_shape_and_dtype():
    x = np.zeros((2, 3), "float16")
    for out in (
        random.rand_like(x),
        random.randn_like(x),
        random.randint_like(x.astype("int16"), 9),
    ):
        assert out.shape == (2, 3)
        assert out.dtype.itemsize == 2
    assert random.rand_like(x, dtype="float32").dtype == np.float32
    assert random.rand((2, 3)).shape == random.rand(2, 3).shape == (2, 3)


@pytest.mark.parametrize(
    ("write", "draw"),
    [
        (random.uniform_, draws.uniform),
        (random.normal_, draws.normal),
        (random.exponential_, draws.exponential),
        (random.cauchy_, draws.cauchy),
        (random.log_normal_, draws.log_normal),
        (lambda x: random.geometric_(x, 0.5), lambda size: draws.geometric(0.5, size)),
        (random.bernoulli_, lambda size: draws.bernoulli(0.5, size)),
        (lambda x: random.random_(x, 7), lambda size: draws.randint(7, size)),
    ],
)
def test_in_place_forms_write_what_the_functions_return(write, draw):
    x = np.zeros(3, "float32")
    random.seed(4)
    assert write(x) is x
    random.seed(4)
    np.testing.assert_array_equal(x, draw(size=(3,)))


def test_in_place_forms_fill_integers_and_booleans():
    flags, bytes_ = np.zeros(200, bool), np.zeros(2000, "uint8")
    random.bernoulli_(flags)
    random.random_(bytes_)
    assert set(flags.tolist()) == {False, True}
    assert {0, 255} <= set(bytes_.tolist())
    with pytest.raises(DTypeError, match="normal_: the array must have a floating-point dtype"):
        random.normal_(bytes_)


def test_run_with_a_saved_state_repeats_and_does_not_move_the_generator():
    random.seed(0)
    state, first = random.run_and_save_rng_state(random.rand, 3)
    after = random.get_state().tolist()
    assert random.run_with_rng_state(state, random.rand, 3).tolist() == first.tolist()
    assert random.get_state().tolist() == after
    with pytest.raises(KeyError):
        random.run_with_rng_state(state, lambda name: {}[name], "missing")
    assert random.get_state().tolist() == after


@pytest.mark.parametrize(
    ("mistake", "error", "text"),
    [
        (lambda: random.Generator("1"), SeedTypeError, "a seed must be an int; got str '1'"),
        (lambda: random.Generator(True), SeedTypeError, "got bool True"),
        (lambda: random.Generator(-1), ValueRangeError, "must not be negative .* got -1"),
        (lambda: random.seed(2**64), ValueRangeError, "at most 64 bits"),
        (lambda: random.set_state(np.zeros(3)), GeneratorError, r"got ndarray float64\[3\]"),
        (lambda: random.set_state(None), GeneratorError, "got NoneType"),
        (lambda: random.get_state(3), GeneratorError, "get_state: generator must be"),
        (lambda: random.rand(3, dtype=int), DTypeError, "rand: dtype must be a floating-point"),
        (lambda: random.randn(3, dtype=int), DTypeError, "randn: dtype must be a float or complex"),
        (
            lambda: draws.randint(3, 3, (1,)),
            ValueRangeError,
            "low must be less than high; got 3 and 3",
        ),
        (lambda: draws.randint(0, 300, (1,), dtype="uint8"), ValueRangeError, "must fit uint8"),
        (lambda: draws.randint(2), functx.errors.ArgumentError, "got no size"),
        (lambda: draws.randint(np.zeros(2), 3, (2,)), DTypeError, "parameters must be integers"),
        (
            lambda: draws.normal(np.zeros(2), 1.0, (3,)),
            ShapeError,
            r"broadcast to the shape \(3,\)",
        ),
        (lambda: draws.normal(1j, 1.0), DTypeError, "normal: "),
        (
            lambda: draws.uniform(3.0, 2.0),
            ValueRangeError,
            "low must not exceed high; got 3.0 and 2.0",
        ),
        (lambda: draws.normal(0.0, -1.0), ValueRangeError, "std must not be negative; got -1.0"),
        (lambda: draws.log_normal(0.0, 0.0), ValueRangeError, "std must be above zero; got 0.0"),
        (lambda: draws.exponential(0.0), ValueRangeError, "rate must be above zero; got 0.0"),
        (lambda: draws.cauchy(0.0, -2.0), ValueRangeError, "sigma must be above zero; got -2.0"),
        (
            lambda: random.random_(np.zeros(2), 0),
            ValueRangeError,
            "low must be less than high; got 0",
        ),
        (lambda: draws.bernoulli(1.5), ValueRangeError, "from 0 to 1; got 1.5"),
        (lambda: draws.bernoulli(float("nan")), ValueRangeError, "got nan"),
        (lambda: draws.geometric(0.0), ValueRangeError, "above 0 to 1; got 0.0"),
        (
            lambda: draws.dropout(np.ones(2), -0.1),
            ValueRangeError,
            "dropout: p must be a probability",
        ),
        (
            lambda: random.rrelu(np.ones(2), 0.5, 0.1),
            ValueRangeError,
            "lower must not exceed upper",
        ),
        (lambda: PhiloxBits((2,))(np.zeros(2, "uint32")), DTypeError, "four 32-bit words"),
    ],
)
def test_wrong_arguments_are_told(mistake, error, text):
    with pytest.raises(error, match=text):
        mistake()


def backward_that_draws():
    identity = functx.custom_vjp(lambda x: x * random.rand(3))
    identity.defvjp(lambda x: (x, None), lambda residuals, ct: (ct * random.rand(3),))
    return functx.grad(lambda x: identity(x).sum())


@pytest.mark.parametrize(
    "fun",
    [
        backward_that_draws(),
        functx.jit(lambda x: functx.lax.reduce(x, 0.0, lambda a, b: a + b * random.rand(()), (0,))),
        lambda x: functx.linear_transpose(lambda x: x * random.rand(3), x),
        lambda x: functx.lax.while_loop(lambda x: random.rand(()) < x[0], lambda x: x + 1, x),
    ],
)
def test_a_function_that_returns_no_state_must_not_draw(fun):
    random.seed(1)
    with pytest.raises(ImplicitDrawError, match="returns no state"):
        fun(np.ones(3, "float32"))
    assert random.get_state().tolist() == [1, 0]


def test_copies_and_pickles_continue_by_themselves_and_the_default_one_stays_the_default():
    generator = random.Generator(3)
    random.rand(1, generator=generator)
    for other in (copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))):
        assert (
            random.rand(2, generator=other).tolist()
            == random.rand(8, generator=random.Generator(3))[4:6].tolist()
        )
    assert generator.get_state().tolist() == [3, 4]
    random.seed(6)
    assert copy.deepcopy(random.default_generator).initial_seed() == 6


def test_dropout_takes_a_generator_in_place_of_a_key():
    x = np.ones(100, "float32")
    first, second = [
        functx.nn.dropout(x, 0.5, generator=random.default_generator) for _ in range(2)
    ]
    assert set(first.tolist()) == {0.0, 2.0}
    assert first.tolist() != second.tolist()
    for options in ({}, {"key": random.key(0), "generator": random.default_generator}):
        with pytest.raises(functx.errors.ArgumentError, match="a key or a generator must be given"):
            functx.nn.dropout(x, 0.5, **options)
