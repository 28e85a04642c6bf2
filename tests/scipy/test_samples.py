"""Densities of vectors, kernel density estimates, modes and ranks against SciPy and JAX."""

import jax
import jax.scipy.stats as theirs
import numpy as np
import pytest
import scipy.stats as reference

import functx as fx
from functx.scipy import stats as ours
from functx.testing import check_grads

random = np.random.RandomState(0)
A = random.randn(4, 4).astype("float32")
COVARIANCE = A @ A.T + np.eye(4, dtype="float32")
X, MEAN = random.randn(5, 4).astype("float32"), random.randn(4).astype("float32")
STACK = np.stack([COVARIANCE, 2 * COVARIANCE, 3 * COVARIANCE])


def close(found, expected, tolerance=2e-5):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, tolerance, tolerance)


def compiled(evaluate):
    """The results of both libraries, each compiled as one program."""
    return [jit(evaluate, static_argnums=0)(x) for jit, x in ((fx.jit, ours), (jax.jit, theirs))]


def test_normal_densities_of_vectors_are_those_of_jax():
    def evaluate(stats):
        log_density = stats.multivariate_normal.logpdf
        return [
            log_density(X, MEAN, COVARIANCE),
            stats.multivariate_normal.pdf(X, MEAN, COVARIANCE),
            log_density(X, MEAN, 2.0),
            log_density(X, 0.3, 2.0),
            log_density(X[:3], MEAN, STACK),
            log_density(X[0], MEAN, STACK),
            log_density(X[:, None], MEAN, STACK),
            log_density(X[:0], MEAN, COVARIANCE),
        ]

    close(*compiled(evaluate))
    args = [x.astype(float) for x in (X[:2], MEAN, COVARIANCE)]
    check_grads(lambda x, m, c: ours.multivariate_normal.logpdf(x, m, (c + c.T) / 2), args, order=1)
    with pytest.raises(fx.errors.ShapeError, match=r"cov must have the shape \(..., 4, 4\)"):
        ours.multivariate_normal.logpdf(X, MEAN, COVARIANCE[:2])


def test_densities_of_probabilities_and_counts_are_those_of_scipy():
    alpha, x = np.array([0.5, 2.0, 3.0]), random.dirichlet([1, 2, 3], 6).T
    expected = reference.dirichlet.logpdf(x, alpha)
    for rows in (x, x[:2]):
        np.testing.assert_allclose(ours.dirichlet.logpdf(rows, alpha), expected, 1e-4, 1e-5)
    np.testing.assert_allclose(ours.dirichlet.pdf(np.array([0.0, 1.0]), np.ones(2)), 1.0, 1e-5)
    assert ours.dirichlet.pdf(np.array([0.3, 0.3]), np.ones(2)) == 0.0
    p = np.array([0.2, 0.3, 0.5])
    k = random.multinomial(7, p, 5)
    np.testing.assert_allclose(
        ours.multinomial.logpmf(k, 7, p), reference.multinomial.logpmf(k, 7, p), 1e-5
    )
    assert np.all(ours.multinomial.pmf(k, 8, p) == 0.0)
    gradient = fx.grad(lambda p: ours.multinomial.logpmf(np.array([2, 0]), 2, p))(
        np.array([1.0, 0.0])
    )
    np.testing.assert_allclose(gradient, [2.0, 0.0])
    with pytest.raises(fx.errors.DTypeError, match="x and n must be integers"):
        ours.multinomial.logpmf(k / 2, 7, p)


@pytest.mark.parametrize(
    "options", [{}, {"bw_method": "silverman", "weights": True}, {"bw_method": 0.4}]
)
def test_kernel_density_estimates_are_those_of_jax(options):
    data, points = random.randn(2, 20).astype("float32"), random.randn(2, 7).astype("float32")
    if "weights" in options:
        options = {**options, "weights": np.arange(1.0, 21.0, dtype="float32")}

    def evaluate(stats):
        kde = stats.gaussian_kde(data, **options)
        line = stats.gaussian_kde(data[0], **options)
        return [
            kde(points),
            kde.logpdf(points),
            kde.integrate_gaussian(np.zeros(2, "float32"), np.eye(2, dtype="float32")),
            line.integrate_box_1d(-1.0, 0.5),
            kde.integrate_kde(stats.gaussian_kde(points)),
            kde,
        ]

    close(*compiled(evaluate), 1e-4)


def test_an_estimate_is_differentiable_and_gives_samples():
    data = random.randn(10).astype("float32")
    kde = ours.gaussian_kde(data)
    key = jax.random.key(0)
    close(kde.resample(key, (5,)), theirs.gaussian_kde(data).resample(key, (5,)))
    assert kde.resample(key, (3, 2)).shape == (1, 3, 2)
    far = fx.grad(lambda x: kde.logpdf(x)[0])(np.array([60.0], "float32"))
    assert np.isfinite(far) and far < -100
    kde.set_bandwidth(lambda kde: 2.0)
    np.testing.assert_allclose(kde.covariance, 4 * np.cov(data), 1e-5)
    np.testing.assert_allclose(
        kde.integrate_box(np.array([-np.inf]), np.array([np.inf])), 1.0, 1e-5
    )
    for wrong in (lambda: kde(np.zeros((2, 3))), lambda: ours.gaussian_kde(np.ones(1))):
        with pytest.raises(fx.errors.ShapeError, match="gaussian_kde: "):
            wrong()
    with pytest.raises(fx.errors.ArgumentError, match="bw_method must be"):
        ours.gaussian_kde(data, "scot")


SAMPLES = [
    random.randint(0, 4, (5, 6)),
    random.randint(0, 4, (5, 6)).astype("float32"),
    np.array([1.0, np.nan, 3.0, 2.0, 2.0, np.nan], "float32"),
]


def test_modes_ranks_and_standard_errors_are_those_of_jax():
    def evaluate(stats):
        return [
            [
                tuple(stats.mode(x, axis)),
                tuple(stats.mode(x, axis, keepdims=True)),
                stats.sem(x, axis),
                stats.sem(x, axis, 0, "omit", keepdims=True),
                *[
                    stats.rankdata(x, method, axis=axis)
                    for method in ("average", "min", "max", "dense", "ordinal")
                ],
            ]
            for x, axis in zip(SAMPLES, (0, None, -1), strict=True)
        ]

    close(*compiled(evaluate))
    for x in (np.float32(3), np.zeros((0, 3), "float32")):
        close(tuple(ours.mode(x)), tuple(theirs.mode(x)))


def test_nan_is_left_out_or_refused_as_in_scipy():
    x = SAMPLES[2]
    np.testing.assert_array_equal(
        ours.mode(x, nan_policy="omit"), reference.mode(x, nan_policy="omit")
    )
    ranks = ours.rankdata(x, nan_policy="omit")
    np.testing.assert_array_equal(ranks, reference.rankdata(x, nan_policy="omit"))
    for wrong in (ours.mode, ours.rankdata, ours.sem):
        with pytest.raises(fx.errors.ValueRangeError, match="a must hold no nan"):
            wrong(x, nan_policy="raise")
        with pytest.raises(fx.errors.ValueRangeError, match="nan_policy must be one of"):
            wrong(x, nan_policy="skip")
    with pytest.raises(fx.errors.ConcretizationError):
        fx.jit(lambda x: ours.mode(x, nan_policy="raise"))(x)
    with pytest.raises(fx.errors.ValueRangeError, match="method must be one of"):
        ours.rankdata(x, "first")
