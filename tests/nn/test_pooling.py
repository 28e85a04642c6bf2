"""Pooling against JAX's windows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functx
from functx import nn
from functx.core.errors import ArgumentError, DTypeError, ShapeError, ValueRangeError

X = np.random.RandomState(0).randn(2, 7, 6, 3).astype("float32")
CASES = [
    ((2, 2), None, "VALID"),
    ((3, 2), (2, 2), "SAME"),
    ((2, 3), (1, 2), ((1, 1), (0, 2))),
]


def pooled(x, start, operation, shape, strides, padding):
    strides = strides or (1,) * len(shape)
    padding = padding if isinstance(padding, str) else ((0, 0), *padding, (0, 0))
    return jax.lax.reduce_window(x, start, operation, (1, *shape, 1), (1, *strides, 1), padding)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_pools_are_windows_over_the_middle_axes(case):
    x = jnp.asarray(X)
    total, count = (
        pooled(x, 0.0, jax.lax.add, *case),
        pooled(jnp.ones_like(x), 0.0, jax.lax.add, *case),
    )
    size = np.prod(case[0])
    pairs = [
        (nn.max_pool(X, *case), pooled(x, -np.inf, jax.lax.max, *case)),
        (nn.min_pool(X, *case), pooled(x, np.inf, jax.lax.min, *case)),
        (nn.avg_pool(X, *case), total / size),
        (nn.avg_pool(X, *case, count_include_pad=False), total / count),
    ]
    for found, expected in pairs:
        assert type(found) is functx.numpy.ndarray and found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_gradients_take_the_first_of_equals():
    x = np.round(X)
    found = functx.grad(lambda x: (nn.max_pool(x, (3, 3), (1, 2)) ** 2).sum())(x)
    expected = jax.jit(
        jax.grad(lambda x: (pooled(x, -np.inf, jax.lax.max, (3, 3), (1, 2), "VALID") ** 2).sum())
    )(x)
    np.testing.assert_array_equal(found, expected)


def test_any_number_of_batch_axes_is_allowed():
    np.testing.assert_array_equal(nn.max_pool(X[0], (2, 2)), nn.max_pool(X, (2, 2))[0])
    deep = X.reshape(2, 7, 2, 3, 3)
    rows = [nn.avg_pool(each, (2,)) for each in deep.reshape(14, 2, 3, 3)[:, 0]]
    np.testing.assert_allclose(nn.avg_pool(deep, (2,))[:, :, 0].reshape(14, 2, 3), rows)
    np.testing.assert_array_equal(
        functx.vmap(lambda x: nn.min_pool(x, (2, 2)))(X), nn.min_pool(X, (2, 2))
    )


def test_integers_pool_and_half_floats_average_without_loss():
    ints = np.arange(6).reshape(1, 6, 1)
    assert nn.max_pool(ints, (2,), (2,)).ravel().tolist() == [1, 3, 5]
    assert nn.avg_pool(ints, (2,), (2,)).ravel().tolist() == [0.5, 2.5, 4.5]
    ones = functx.numpy.ones((1, 4096, 1), "bfloat16")
    out = nn.avg_pool(ones, (4096,), count_include_pad=False)
    assert out.dtype == "bfloat16" and float(out.ravel()[0]) == 1
    assert float(nn.avg_pool(ones, (4096,)).ravel()[0]) == 1


def test_an_empty_window_averages_to_nan_and_does_not_change_the_gradients():
    x = np.ones((1, 2, 1), "float32")

    def averages(x):
        return nn.avg_pool(x, (2,), padding=((3, 0),), count_include_pad=False)

    assert np.isnan(averages(x).ravel()).tolist() == [True, True, False, False]
    assert functx.grad(lambda x: averages(x)[0, 2:].sum())(x).ravel().tolist() == [1.5, 0.5]


@pytest.mark.parametrize(
    ("call", "error", "problem"),
    [
        (lambda: nn.max_pool(X, (2, 2), (0, 1)), ValueRangeError, "must be positive; got (0, 1)"),
        (lambda: nn.max_pool(X, (2, 2), (1,)), ShapeError, "an entry for each of 2 dimensions"),
        (
            lambda: nn.min_pool(X, (2, 2, 2, 2)),
            ShapeError,
            "then one for channels; got f32[2,7,6,3] for window_shape (2, 2, 2, 2)",
        ),
        (
            lambda: nn.max_pool(X, 2),
            ArgumentError,
            "window_shape must be integers, one for each axis",
        ),
        (lambda: nn.avg_pool(X, (2, 2), None, "FULL"), ValueRangeError, "or pairs; got 'FULL'"),
        (lambda: nn.min_pool(X * 1j, (2, 2)), DTypeError, "inputs must be real; got c64[2,7,6,3]"),
        (lambda: nn.max_pool(X, (2, 2), None, ((1, 1),)), ShapeError, "padding must have an entry"),
    ],
)
def test_bad_calls_are_refused_by_name(call, error, problem):
    with pytest.raises(error) as info:
        call()
    assert problem in info.value.problem and "_pool: " in info.value.problem
