"""functx.random against jax.random: the same numbers to the last bit.

Floats are the same in programs that XLA has optimised, too; integers do not depend on that.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functx
from functx import random
from functx.core.errors import DTypeError, ShapeError, ValueRangeError
from functx.ops.random import float_of_fraction

SHAPES = [(), (3, 4), (0, 2), (257,)]
FLOATS = ["float32", "bfloat16", "float16"]
INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32"]
DISTRIBUTIONS = ["uniform", "normal", "exponential", "laplace", "logistic", "cauchy", "gumbel"]


def same(ours, theirs):
    """Equal in dtype, shape and every bit."""
    theirs = np.asarray(theirs)
    ours = np.asarray(ours)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    np.testing.assert_array_equal(ours, theirs)


def keys(seed=7):
    return random.key(seed), jax.random.key(seed)


def words(typed):
    return jax.random.key_data(typed)


# Keys


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, 2**40 + 3, -1, True])
def test_a_key_holds_the_words_of_jaxs(seed):
    same(random.key(seed), words(jax.random.key(seed)))
    same(random.PRNGKey(seed), jax.random.PRNGKey(seed))
    same(functx.jit(lambda: random.key(seed))(), words(jax.random.key(seed)))


@pytest.mark.parametrize("seed", [np.int8(-2), np.uint8(3), np.int32(-5), np.uint32(2**32 - 1)])
def test_a_key_from_an_array(seed):
    same(random.key(seed), words(jax.random.key(seed)))
    same(functx.jit(random.key)(seed), words(jax.random.key(seed)))


@pytest.mark.parametrize("seed", [2**40 + 3, -1, -(2**63), 2**63 - 1, np.int64(-7)])
def test_a_seed_has_64_bits_with_x64(x64, seed):
    same(random.key(seed), words(jax.random.key(seed)))
    same(functx.jit(lambda: random.key(seed))(), words(jax.random.key(seed)))


@pytest.mark.parametrize("num", [0, 1, 2, 5, (2, 3), ()])
def test_split(num):
    ours, theirs = keys()
    same(random.split(ours, num), words(jax.random.split(theirs, num)))


@pytest.mark.parametrize(
    "data", [0, 5, np.uint32(2**32 - 1), np.int32(-3), np.uint8(200), np.int16(9)]
)
def test_fold_in(data):
    ours, theirs = keys()
    same(random.fold_in(ours, data), words(jax.random.fold_in(theirs, data)))
    same(functx.jit(random.fold_in)(ours, data), words(jax.random.fold_in(theirs, data)))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", None])
@pytest.mark.parametrize("shape", SHAPES)
def test_bits(shape, dtype):
    ours, theirs = keys()
    same(random.bits(ours, shape, dtype), jax.random.bits(theirs, shape, dtype))


def test_bits_with_x64(x64):
    ours, theirs = keys()
    same(random.bits(ours, (5, 2)), jax.random.bits(theirs, (5, 2)))
    same(random.bits(ours, (5, 2), "uint64"), jax.random.bits(theirs, (5, 2), "uint64"))


def test_typed_keys_are_taken_for_their_words():
    ours, theirs = keys()
    same(random.normal(theirs, (3,)), jax.random.normal(theirs, (3,)))
    same(words(random.split(theirs)), random.split(ours))
    same(words(functx.jit(random.fold_in)(theirs, 3)), random.fold_in(ours, 3))
    same(random.key_data(jax.random.split(theirs)), random.split(ours))
    assert random.wrap_key_data(ours) is ours
    assert random.clone(ours) is ours
    assert random.key_impl(theirs) == random.key_impl(ours) == "threefry2x32"
    same(jax.jit(lambda k: random.uniform(k, (3,)))(theirs), jax.random.uniform(theirs, (3,)))


def test_a_key_that_is_none_is_refused():
    with pytest.raises(DTypeError, match="a key must be an array of uint32"):
        random.normal(0)
    with pytest.raises(ShapeError, match="one key"):
        random.normal(random.split(random.key(0)))
    with pytest.raises(DTypeError, match="threefry2x32"):
        random.normal(jax.random.key(0, impl="rbg"))
    with pytest.raises(ValueRangeError, match="generator"):
        random.key(0, impl="rbg")


def test_a_seed_that_is_none_is_refused():
    with pytest.raises(ValueRangeError, match="64 bits"):
        random.key(2**63)
    with pytest.raises(DTypeError, match="one integer"):
        random.key(1.5)
    with pytest.raises(DTypeError, match="one integer"):
        random.key(np.arange(3))
    with pytest.raises(ValueRangeError, match="32 bits"):
        random.fold_in(random.key(0), -1)
    with pytest.raises(DTypeError, match="one integer"):
        random.fold_in(random.key(0), 1.5)


# Distributions


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(name, dtype):
    ours, theirs = keys(3)
    for shape in SHAPES if dtype == "float32" else [(257,)]:
        same(
            getattr(random, name)(ours, shape, dtype),
            getattr(jax.random, name)(theirs, shape, jnp.dtype(dtype)),
        )


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_with_x64(x64, name):
    ours, theirs = keys(3)
    found, expected = getattr(random, name)(ours, (257,)), getattr(jax.random, name)(theirs, (257,))
    if name in ("exponential", "laplace", "logistic"):
        # log1p of doubles has two digits more than that of XLA, where logarithms are small.
        np.testing.assert_allclose(found, expected, rtol=1e-13)
    else:
        same(found, expected)


@pytest.mark.usefixtures("optimised")
def test_complex_normal():
    ours, theirs = keys()
    same(random.normal(ours, (9,), "complex64"), jax.random.normal(theirs, (9,), "complex64"))


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("dtype", FLOATS)
def test_bounds(dtype):
    ours, theirs = keys()
    jax_dtype = jnp.dtype(dtype)
    rows = np.array([[0.0], [-1.0], [2.0]], "float32")
    columns = np.arange(3, 7).astype("float32")
    shape = (3, 4)
    same(
        random.uniform(ours, shape, dtype, -1.5, 2),
        jax.random.uniform(theirs, shape, jax_dtype, -1.5, 2),
    )
    same(
        random.uniform(ours, shape, dtype, rows, columns),
        jax.random.uniform(theirs, shape, jax_dtype, rows, columns),
    )
    same(
        random.truncated_normal(ours, -1, 2.0, shape, dtype),
        jax.random.truncated_normal(theirs, -1, 2.0, shape, jax_dtype),
    )
    same(
        random.truncated_normal(ours, rows, columns, dtype=dtype),
        jax.random.truncated_normal(theirs, rows, columns, dtype=jax_dtype),
    )


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("mode", ["low", "high"])
def test_bernoulli_and_gumbel_in_both_modes(mode):
    ours, theirs = keys()
    p = np.linspace(0, 1, 257, dtype="float32")
    same(random.bernoulli(ours, p, mode=mode), jax.random.bernoulli(theirs, p, mode=mode))
    same(random.bernoulli(ours, 0.3, (3, 4), mode), jax.random.bernoulli(theirs, 0.3, (3, 4), mode))
    same(random.gumbel(ours, (9,), mode=mode), jax.random.gumbel(theirs, (9,), mode=mode))


@pytest.mark.usefixtures("optimised")
def test_gumbel_of_64_bits():
    ours, theirs = keys()
    for dtype in ("float32", "bfloat16"):
        same(
            random.gumbel(ours, (257,), dtype, "highest"),
            jax.random.gumbel(theirs, (257,), jnp.dtype(dtype), "highest"),
        )
    words = np.array([[0, 0], [0, 1], [0, 2**31], [1, 5], [2**32 - 1] * 2, [2**31, 0]], "uint32")
    found = [float_of_fraction(*pair) for pair in words[1:]]
    exact = [(int(high) * 2**32 + int(low)) / 2**64 for high, low in words[1:]]
    np.testing.assert_allclose(found, exact, 2.0**-23)
    assert float_of_fraction(*words[0]) == 2.0**-65


@pytest.mark.parametrize("dtype", [None, "int8", "float32", "bfloat16"])
def test_rademacher(dtype):
    ours, theirs = keys()
    same(
        random.rademacher(ours, (33,), dtype),
        jax.random.rademacher(theirs, (33,), dtype and jnp.dtype(dtype)),
    )


@pytest.mark.parametrize("dtype", INTEGERS)
def test_randint(dtype):
    ours, theirs = keys()
    info = np.iinfo(dtype)
    low, high = max(info.min, -(2**31)), min(info.max, 2**31 - 1)
    for bounds in [(0, 10), (3, 3), (5, 2), (low, high), (-5, 7), (0, 300)]:
        theirs_drawn = jax.random.randint(theirs, (40,), *bounds, dtype)
        same(random.randint(ours, (40,), *bounds, dtype), theirs_drawn)
        arrays = [np.asarray(b, "int32") for b in bounds]
        same(random.randint(ours, (40,), *arrays, dtype), theirs_drawn)


def test_randint_takes_arrays_of_bounds():
    ours, theirs = keys()
    low, high = np.array([[0], [5]]), np.array([3, 9, 7])
    same(random.randint(ours, (2, 3), low, high), jax.random.randint(theirs, (2, 3), low, high))
    same(
        functx.jit(lambda n: random.randint(ours, (9,), 0, n))(5), random.randint(ours, (9,), 0, 5)
    )


@pytest.mark.parametrize("dtype", ["uint8", "int32", "uint32"])
def test_randint_of_all_numbers(dtype):
    ours, _ = keys()
    info = np.iinfo(dtype)
    drawn = random.randint(ours, (4000,), info.min, info.max + 1, dtype)
    spread = (info.max - info.min) / 500
    assert drawn.min() < info.min + spread and drawn.max() > info.max - spread


def test_randint_with_x64(x64):
    ours, theirs = keys()
    for bounds in [(0, 10), (-(2**63), 2**63 - 1), (2**40, 2**40 + 5)]:
        same(random.randint(ours, (40,), *bounds), jax.random.randint(theirs, (40,), *bounds))
    same(
        random.randint(ours, (40,), 0, 2**32, "uint32"),
        jax.random.randint(theirs, (40,), 0, 2**32, "uint32"),
    )


# Orders and choices


@pytest.mark.parametrize("n", [0, 1, 10, 3000])
def test_permutation_of_numbers(n):
    ours, theirs = keys()
    same(random.permutation(ours, n), jax.random.permutation(theirs, n))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("independent", [False, True])
def test_permutation_of_slices(axis, independent):
    ours, theirs = keys()
    x = np.arange(15.0, dtype="float32").reshape(5, 3)
    same(
        random.permutation(ours, x, axis, independent),
        jax.random.permutation(theirs, x, axis, independent),
    )


@pytest.mark.parametrize("shape", [(), (2, 2), (0,)])
@pytest.mark.parametrize("replace", [True, False])
def test_choice(shape, replace):
    ours, theirs = keys()
    p = np.array([0.1, 0.2, 0.3, 0.0, 0.4], "float32")
    x = np.arange(20.0, dtype="float32").reshape(4, 5)
    same(random.choice(ours, 5, shape, replace), jax.random.choice(theirs, 5, shape, replace))
    same(random.choice(ours, 5, shape, replace, p), jax.random.choice(theirs, 5, shape, replace, p))
    if 0 not in shape:
        same(random.choice(ours, x, shape, replace), jax.random.choice(theirs, x, shape, replace))
        same(
            random.choice(ours, x, shape, replace, p, 1, "high"),
            jax.random.choice(theirs, x, shape, replace, p, 1, "high"),
        )


@pytest.mark.parametrize(
    "axis, shape", [(-1, None), (0, None), (1, (3,)), (1, (4, 3)), (0, (2, 2, 6)), (-2, (2, 6))]
)
def test_categorical(axis, shape):
    ours, theirs = keys()
    logits = np.linspace(-2, 2, 18, dtype="float32").reshape(3, 6)
    same(
        random.categorical(ours, logits, axis, shape),
        jax.random.categorical(theirs, logits, axis, shape),
    )


def test_categorical_without_replacement_and_with_fine_noise():
    ours, theirs = keys()
    logits = np.linspace(-2, 2, 18, dtype="float32").reshape(3, 6)
    same(
        random.categorical(ours, logits, 1, (2, 3), replace=False),
        jax.random.categorical(theirs, logits, 1, (2, 3), replace=False),
    )
    same(
        random.categorical(ours, logits[:1], shape=(5,), mode="high"),
        jax.random.categorical(theirs, logits[:1], shape=(5,), mode="high"),
    )


def test_bad_arguments_are_refused_by_name():
    key = random.key(0)
    with pytest.raises(DTypeError, match="uniform: dtype must be a float type; got int32"):
        random.uniform(key, (), "int32")
    with pytest.raises(ShapeError, match="uniform: parameters must broadcast"):
        random.uniform(key, (3,), minval=np.zeros(2))
    with pytest.raises(DTypeError, match="bernoulli: the probability p must be a float"):
        random.bernoulli(key, 1)
    with pytest.raises(ValueRangeError, match="mode must be 'low' or 'high' or 'highest'"):
        random.gumbel(key, mode="medium")
    with pytest.raises(ValueRangeError, match="enough to choose from; got 3 for 4"):
        random.choice(key, 3, (4,), replace=False)
    with pytest.raises(ShapeError, match="one number for each of the 3"):
        random.choice(key, 3, (2,), p=np.ones(2))
    with pytest.raises(ShapeError, match=r"must end in the shape \(3,\)"):
        random.categorical(key, np.zeros((3, 4), "float32"), shape=(2,))


# Under transforms


@pytest.mark.parametrize("name", [*DISTRIBUTIONS, "truncated_normal", "bernoulli"])
def test_vmap_over_keys_draws_for_each_key(name):
    ours, theirs = keys()
    ours, theirs = random.split(ours, 5), jax.random.split(theirs, 5)
    args = {"truncated_normal": (-1.0, 1.0, (3,)), "bernoulli": (0.3, (3,))}.get(name, ((3,),))
    same(
        functx.vmap(lambda k: getattr(random, name)(k, *args))(ours),
        jax.jit(jax.vmap(lambda k: getattr(jax.random, name)(k, *args)))(theirs),
    )


def test_vmap_over_seeds_keys_and_parameters():
    ours, theirs = keys()
    ours, theirs = random.split(ours, (4, 3)), jax.random.split(theirs, (4, 3))
    seeds, data = np.arange(4, dtype="int32"), np.arange(4, dtype="int32")
    same(
        functx.vmap(random.key)(seeds), jax.jit(jax.vmap(lambda s: words(jax.random.key(s))))(seeds)
    )
    same(
        functx.vmap(functx.vmap(random.split))(ours),
        words(jax.jit(jax.vmap(jax.vmap(jax.random.split)))(theirs)),
    )
    for axes in [(0, 0), (None, 0), (0, None)]:
        mine, other = (ours[:, 0], theirs[:, 0]) if axes[0] == 0 else (ours[0, 0], theirs[0, 0])
        number = data if axes[1] == 0 else data[3]
        same(
            functx.vmap(random.fold_in, axes)(mine, number),
            words(jax.jit(jax.vmap(jax.random.fold_in, axes))(other, number)),
        )
        same(
            functx.vmap(lambda k, n: random.randint(k, (2,), 0, n + 3), axes)(mine, number),
            jax.jit(jax.vmap(lambda k, n: jax.random.randint(k, (2,), 0, n + 3), axes))(
                other, number
            ),
        )
    same(
        functx.vmap(random.permutation, (0, None), 1)(ours[0], np.arange(9, dtype="int32")),
        jax.jit(jax.vmap(jax.random.permutation, (0, None), 1))(
            theirs[0], np.arange(9, dtype="int32")
        ),
    )


def test_derivatives_flow_to_parameters_and_not_through_bits():
    ours, theirs = keys()

    def gauss(library, key):
        return lambda m, s: ((m + s * library.normal(key, (6,))) ** 2).sum()

    def bounds(library, key):
        return lambda a, b: (library.uniform(key, (6,), minval=a, maxval=b) ** 2).sum()

    def truncated(library, key):
        return lambda a, b: (library.truncated_normal(key, a, b, (6,)) ** 2).sum()

    at = np.float32(-1.0), np.float32(2.0)
    for function in (gauss, bounds, truncated):
        got = functx.grad(function(random, ours), (0, 1))(*at)
        wanted = jax.jit(jax.grad(function(jax.random, theirs), (0, 1)))(*at)
        np.testing.assert_allclose(got, wanted, 2e-5)
    second = functx.hessian(gauss(random, ours), (0, 1))(*at)
    expected = jax.jit(jax.hessian(gauss(jax.random, theirs), (0, 1)))(*at)
    np.testing.assert_allclose(second, expected, 1e-5)


def test_draws_are_one_equation_each():
    def f(key, p):
        return random.normal(key, (3,)), random.bernoulli(key, p, (3,)), random.split(key)

    program = functx.make_ir(f)(random.key(0), np.float32(0.5))
    names = [eqn.primitive.name for eqn in program]
    assert names == ["random_normal", "random_bernoulli", "random_split"]


@pytest.mark.usefixtures("optimised")
def test_the_words_of_an_array_are_computed_once_for_all_that_read_it():
    def f(key, x):
        noise = random.normal(key, x.shape)
        return (x * noise).sum(), (x + noise).sum(0), functx.numpy.exp(noise).sum(1), noise * x

    x = np.ones((16, 16), "float32")
    text = functx.jit(f).lower(random.key(0), x).compile().as_text()
    # One in each of the 20 rounds of the hash.
    assert text.count(" shift-left(") == 20


def test_equal_draws_are_compiled_once():
    def f(key):
        return [random.uniform(k, (3,)) for k in random.split(key, 4)]

    text = functx.jit(f).lower(random.key(0)).as_text()
    assert text.count("func.func private @random_bits") == 1
    assert text.count("call @random_bits") == 4


def test_a_draw_in_the_form_of_pytorch_names_the_function_that_takes_no_key():
    with pytest.raises(DTypeError, match=r"functx\.random\.generator\.normal takes none"):
        random.normal(0.0, 1.0, (3,))
    with pytest.raises(AttributeError, match=r"functx\.random\.generator\.dropout\(x, p\)"):
        _ = random.dropout
