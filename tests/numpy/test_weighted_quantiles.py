"""Quantiles with weights, against NumPy."""

import jax
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx import errors

RANDOM = np.random.RandomState(0)
X, WEIGHTS = RANDOM.standard_normal((4, 5, 3)), RANDOM.rand(4, 5, 3)
WEIGHTS[0, :2, 0] = 0
WITH_NAN = np.where(np.arange(60).reshape(X.shape) == 17, np.nan, X)


@pytest.mark.parametrize("axis", [None, 1, (2, 0)])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_quantiles_of_the_inverted_distribution_function(axis, weights):
    options = {"axis": axis, "weights": weights, "method": "inverted_cdf"}
    q = np.array([0.0, 0.3, 1.0])
    with jax.enable_x64():
        for name, x in (("quantile", X), ("quantile", WITH_NAN), ("nanquantile", WITH_NAN)):
            ours, expected = (getattr(m, name)(x, q, **options) for m in (fnp, np))
            np.testing.assert_allclose(ours, expected)


def test_equal_weights_of_many_short_floats_are_counted_exactly():
    x = np.arange(5000, dtype=np.float32) % 2000
    assert fnp.quantile(x.astype("float16"), 0.75, method="inverted_cdf") == 1374


def test_weights_of_the_reduced_axis_and_percentiles():
    options = {"axis": 1, "weights": WEIGHTS[1, :, 0], "method": "inverted_cdf"}
    with jax.enable_x64():
        expected = np.percentile(X, 40, **options)
        for name in ("percentile", "nanpercentile"):
            np.testing.assert_allclose(getattr(fnp, name)(X, 40, **options), expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sum_that_reaches_the_fraction_exactly_is_enough(dtype):
    with jax.enable_x64():
        rows = np.arange(98, dtype=dtype)
        q = ((rows + 1) / 98).astype(dtype)
        for weights in (None, np.full(98, 3.0, dtype)):
            found = fnp.quantile(rows, q, weights=weights, method="inverted_cdf")
            np.testing.assert_array_equal(found, rows)


def test_the_derivative_goes_to_the_chosen_element():
    def median(x):
        return fnp.quantile(x, 0.5, weights=np.arange(4.0), method="inverted_cdf")

    rows = np.float32([[4, 3, 2, 1], [1, 2, 3, 4]])
    slopes = functx.jit(functx.vmap(functx.grad(median)))(rows)
    np.testing.assert_array_equal(slopes, [[0, 0, 0, 1], [0, 0, 1, 0]])
    assert np.isnan(fnp.quantile(rows, 0.5, weights=0 * rows, method="inverted_cdf"))


def test_mistakes():
    with pytest.raises(errors.ValueRangeError, match="method must be 'inverted_cdf'; got 'linear'"):
        fnp.quantile(X, 0.5, weights=WEIGHTS)
    with pytest.raises(errors.ShapeError, match="the shape of the array or of its reduced axes"):
        fnp.quantile(X, 0.5, axis=0, weights=WEIGHTS[0], method="inverted_cdf")
    with pytest.raises(errors.ValueRangeError, match="there must be elements"):
        fnp.quantile(X[:0], 0.5, method="inverted_cdf")


def test_covariances_in_a_given_dtype():
    rows = RANDOM.standard_normal((2, 9)).astype("float32")
    for name in ("cov", "corrcoef"):
        found = getattr(fnp, name)(rows, dtype="float16")
        assert found.dtype == np.float16
        np.testing.assert_allclose(found, getattr(np, name)(rows), rtol=0.02, atol=0.02)
