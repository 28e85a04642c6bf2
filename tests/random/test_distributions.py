"""The distributions with parameters: the numbers of jax.random, and those of SciPy's distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import digamma

import functx
from functx import random
from functx.core.errors import AxisError, DTypeError, ShapeError, ValueRangeError

ROWS = np.array([[0.5], [3.0]], "float32")
COV = np.array([[2.0, 1.0], [1.0, 3.0]], "float32")
CALLS = [
    # The name, the arguments after the key, and how many units in the last place results may differ.
    ("pareto", (2.5, (33,)), 1),
    ("pareto", (ROWS, (2, 3)), 1),
    ("rayleigh", (ROWS, (2, 3)), 1),
    ("triangular", (-1.0, ROWS, 4.0, (2, 3)), 2),
    ("wald", (ROWS,), 200),
    ("lognormal", (0.5, (33,)), 1),
    ("maxwell", ((33,),), 1),
    ("double_sided_maxwell", (0.0, ROWS, (3,)), 1),
    ("weibull_min", (2.0, 1.5, (33,)), 1),
    ("multivariate_normal", (np.ones(2, "float32"), COV, (5,)), 4),
    ("multivariate_normal", (np.ones((3, 2), "float32"), COV, None, None, "eigh"), 16),
    ("multivariate_normal", (np.ones(2, "float32"), COV, (), None, "svd"), 16),
    ("geometric", (0.2, (33,)), 0),
    ("geometric", (ROWS / 4, (2, 3), "uint8"), 0),
]
LOOPS = [
    ("gamma", (ROWS, (2, 4)), 1),
    ("loggamma", (ROWS / 100, (2, 4)), 1),
    ("beta", (2.0, ROWS), 1),
    ("chisquare", (5, (7,)), 4),
    ("f", (5.0, 8, (7,)), 16),
    ("t", (3.0, (7,)), 4),
    ("dirichlet", (np.array([1.0, 2.0, 0.3], "float32"), (3,)), 1),
    ("generalized_normal", (3.0, (7,)), 2),
    ("ball", (3, 1.5, (4,)), 2),
    ("poisson", (np.array([0, 0.5, 9, 11, 1e4, -1, np.nan], "float32"),), 0),
    ("poisson", (ROWS, (2, 3), "int8"), 0),
    ("binomial", (np.array([10, 1000, 1000, 5, np.inf]), np.array([0.3, 0.3, 0.7, 1, 0.5])), 0),
    ("binomial", (np.array([-1, 5, 5, np.nan]), np.array([0.5, -1, 2, 0.5])), 0),
]


def draws(namespace, key, calls):
    """The results of the calls, compiled as one program."""
    library = functx if namespace is random else jax
    return library.jit(lambda k: [getattr(namespace, name)(k, *args) for name, args, _ in calls])(
        key
    )


@pytest.mark.parametrize("calls", [CALLS, LOOPS[:3], LOOPS[3:6], LOOPS[6:9], LOOPS[9:]])
def test_the_numbers_are_those_of_jax(calls):
    ours, theirs = draws(random, random.key(7), calls), draws(jax.random, jax.random.key(7), calls)
    for call, x, y in zip(calls, ours, theirs, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape), call
        if call[2]:
            np.testing.assert_array_max_ulp(np.asarray(x), np.asarray(y), call[2])
        else:
            np.testing.assert_array_equal(x, y, str(call))


def test_a_multinomial_count_is_that_of_jax_and_all_trials_are_counted():
    p = np.array([[0.1, 0.2, 0.7], [0.0, 1.0, 0.0]], "float32")
    found = random.multinomial(random.key(3), 50, p)
    expected = jax.jit(lambda k: jax.random.multinomial(k, 50, p))(jax.random.key(3))
    np.testing.assert_array_equal(found, expected)
    assert found.sum(-1).tolist() == [50, 50]


N = 3000
DISTRIBUTIONS = [
    ("gamma", (0.4,), stats.gamma(0.4)),
    ("gamma", (20.0,), stats.gamma(20)),
    ("beta", (0.5, 3.0), stats.beta(0.5, 3)),
    ("t", (2.5,), stats.t(2.5)),
    ("f", (6.0, 9.0), stats.f(6, 9)),
    ("chisquare", (1.5,), stats.chi2(1.5)),
    ("wald", (2.0,), stats.invgauss(2)),
    ("triangular", (-1.0, 0.0, 3.0), stats.triang(0.25, -1, 4)),
    ("rayleigh", (2.0,), stats.rayleigh(scale=2)),
    ("weibull_min", (2.0, 1.5), stats.weibull_min(1.5, scale=2)),
    ("generalized_normal", (3.0,), stats.gennorm(3)),
    ("maxwell", (), stats.maxwell),
    ("pareto", (2.0,), stats.pareto(2)),
]
COUNTS = [
    ("poisson", (0.3,), stats.poisson(0.3)),
    ("poisson", (40.0,), stats.poisson(40)),
    ("poisson", (3e5,), stats.poisson(3e5)),
    ("binomial", (5.0, 0.3), stats.binom(5, 0.3)),
    ("binomial", (60.0, 0.8), stats.binom(60, 0.8)),
    ("binomial", (1e5, 0.4), stats.binom(100000, 0.4)),
    ("geometric", (0.3,), stats.geom(0.3)),
]


def test_the_numbers_have_the_distributions_of_scipy():
    """By Kolmogorov and Smirnov; counts are made continuous by uniform numbers."""
    everything = DISTRIBUTIONS + COUNTS
    found = functx.jit(
        lambda k: [getattr(random, name)(k, *args, shape=(N,)) for name, args, _ in everything]
    )(random.key(11))
    uniform = np.random.RandomState(0).uniform(size=N)
    for (name, args, law), x in zip(everything, found, strict=True):
        x = np.asarray(x, np.float64)
        if hasattr(law, "dist") and hasattr(law.dist, "pmf"):
            x = law.cdf(x - 1) + uniform * law.pmf(x)
            law = stats.uniform
        assert stats.kstest(x, law.cdf).pvalue > 1e-3, (name, args)


def test_vmap_draws_the_numbers_of_a_loop():
    keys = random.split(random.key(1), 3)
    rates = np.array([0.5, 20.0, 3.0], "float32")

    def draw(key, rate):
        return random.gamma(key, rate, (2,)), random.poisson(key, rate, (2,))

    mapped = functx.jit(functx.vmap(draw))(keys, rates)
    compiled = functx.jit(draw)
    for i in range(3):
        for found, expected in zip(mapped, compiled(keys[i], rates[i]), strict=True):
            # The last digits of gamma variates depend on the vector instructions of the lengths.
            np.testing.assert_allclose(found[i], expected, rtol=1e-6)


def test_a_call_is_one_equation_and_small_arrays_work():
    program = functx.make_ir(lambda k: random.pareto(k, 2.0, (3,)))(random.key(0))
    (equation,) = program
    assert equation.primitive.name == "call"
    assert "program=pareto" in str(program)
    assert random.gamma(random.key(0), np.ones((0, 2), "float32")).shape == (0, 2)
    assert random.poisson(random.key(0), [], dtype="int8").dtype == np.int8
    assert random.dirichlet(random.key(0), np.ones((2, 1), "float32")).tolist() == [[1.0], [1.0]]


def quantile_slope(law, x, parameter, step=1e-4):
    """The change of the quantile at the probability of `x` with the parameter, by differences."""
    tail = x > law(parameter).median()
    probability = np.where(tail, law(parameter).sf(x), law(parameter).cdf(x))
    ends = [
        np.where(tail, law(p).isf(probability), law(p).ppf(probability))
        for p in (parameter - step, parameter + step)
    ]
    return (ends[1] - ends[0]) / (2 * step)


def test_derivatives_of_variates_are_those_of_quantiles(x64):
    key, a, mean = random.key(5), np.full(4, 2.5), np.full(4, 1.5)

    def draw(a, mean):
        return random.gamma(key, a), random.loggamma(key, a), random.wald(key, mean)

    def run(a, mean):
        return functx.jvp(draw, (a, mean), (np.ones(4), np.ones(4)))

    (x, log_x, w), (dx, dlog_x, dw) = functx.jit(run)(a, mean)
    np.testing.assert_allclose(dx, quantile_slope(stats.gamma, np.asarray(x), 2.5), 1e-6)
    np.testing.assert_allclose(
        dlog_x * np.exp(log_x), quantile_slope(stats.gamma, np.exp(log_x), 2.5), 1e-6
    )
    np.testing.assert_allclose(dw, quantile_slope(stats.invgauss, np.asarray(w), 1.5), 1e-6)


def test_the_logarithm_of_a_variate_has_a_derivative_where_the_variate_underflows():
    draw = functx.jit(functx.value_and_grad(lambda a: random.loggamma(random.key(2), a)))
    log_x, slope = draw(np.float32(1e-4))
    # The distribution function is exp(a log x) / gamma(a + 1) there.
    assert log_x < -200
    assert slope == pytest.approx((float(digamma(1 + 1e-4)) - float(log_x)) / 1e-4, rel=1e-5)


def test_inverse_gaussian_numbers_of_large_means_are_positive():
    x = np.asarray(random.wald(random.key(1), 1e5, (N,)), np.float64)
    assert (x > 0).all()
    assert stats.kstest(x, stats.invgauss(1e5).cdf).pvalue > 1e-3


def test_derivatives_of_counts_are_zero():
    counts = functx.grad(lambda p: random.binomial(random.key(0), 40.0, p) ** 2)
    assert float(counts(np.float32(0.7))) == 0.0


@pytest.mark.parametrize(
    ("mistake", "error", "text"),
    [
        (lambda k: random.gamma(k, np.ones(2), (3,)), ShapeError, r"broadcast to the shape \(3,\)"),
        (
            lambda k: random.gamma(k, 1.0, (3,), int),
            DTypeError,
            "gamma: dtype must be a float type",
        ),
        (
            lambda k: random.poisson(k, 1.0, (3,), float),
            DTypeError,
            "poisson: dtype must be an int",
        ),
        (lambda k: random.t(k, 1j), DTypeError, "t: parameters must be real"),
        (lambda k: random.dirichlet(k, 1.0), ShapeError, "dirichlet: alpha must have"),
        (lambda k: random.multinomial(k, 3, 0.5), ShapeError, "multinomial: p must have an axis"),
        (
            lambda k: random.multivariate_normal(k, 0.0, COV),
            ShapeError,
            r"mean must have the shape",
        ),
        (
            lambda k: random.multivariate_normal(k, np.zeros(2), COV, method="lu"),
            ValueRangeError,
            "method must be one of 'cholesky', 'eigh', 'svd'; got 'lu'",
        ),
        (lambda k: random.lognormal(k, dtype=int), DTypeError, "lognormal: dtype must be"),
        (lambda k: random.beta(3, 1.0, 1.0), DTypeError, "beta: a key must be"),
        (lambda k: random.beta(k, 1.0), TypeError, "missing a required argument: 'b'"),
    ],
)
def test_wrong_arguments_are_told(mistake, error, text):
    with pytest.raises(error, match=text):
        mistake(random.key(0))


def test_results_lie_where_out_sharding_says():
    mesh = jax.make_mesh((1,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    for draw in (random.normal, random.maxwell):
        assert functx.jit(lambda k, draw=draw: draw(k, (4,), out_sharding=sharding))(
            random.key(0)
        ).shape == (4,)
    with pytest.raises(AxisError, match="must have at most one entry"):
        random.normal(random.key(0), (), out_sharding=sharding)
    # Without a mesh, the type of a traced array has a sharding over an empty one.
    place = functx.make_ir(
        lambda x: random.normal(random.key(0), (3,), out_sharding=functx.typeof(x).sharding)
    )
    assert "constraint" not in str(place(np.ones(3, "float32")))


def test_the_dtype_of_keys_is_that_of_jax():
    assert random.key_dtype() == jax.random.key(0).dtype
    assert jnp.issubdtype(random.key_dtype("threefry2x32"), jax.dtypes.prng_key)
    with pytest.raises(ValueRangeError, match="the generator must be"):
        random.key_dtype("rbg")
