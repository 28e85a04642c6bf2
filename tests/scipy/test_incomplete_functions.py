"""Incomplete gamma and beta functions and their inverses: values, ends, derivatives in all operands."""

import math

import jax
import jax.lax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as reference

import functx as fx
from functx import lax
from functx.lax.incomplete_beta import BetaDensity
from functx.scipy import special as ours
from tests.by_reference import by_reference

INF, NAN = math.inf, math.nan
TOLERANCE = {"float64": 3e-13, "float32": 8e-6}


def both_precisions(function, args, wanted, tolerances=TOLERANCE):
    """Compare `function` in single and double precision with `wanted` of the rounded operands."""
    for dtype, tolerance in tolerances.items():
        rounded = [np.asarray(x, dtype) for x in args]
        with jax.enable_x64(dtype == "float64"):
            found = fx.jit(function)(*rounded)
        assert all(x.dtype == dtype for x in jax.tree.leaves(found))
        expected = wanted(*[x.astype("float64") for x in rounded])
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            y = np.where(np.abs(y) < (1e-290 if dtype == "float64" else 1e-36), 0.0, y)
            np.testing.assert_allclose(x, y, tolerance, 1e-35 if dtype == "float32" else 1e-290)


def test_incomplete_gamma_functions_keep_their_digits():
    # Both sides of the switches between the methods, and the tails.
    a = [1e-9, 1e-3, 0.3, 0.5, 1.0, 1.09, 1.11, 3.0, 9.99, 10.0, 19.9, 20.1, 55.0, 1e3, 2e5]
    ratio = [1e-8, 0.1, 0.69, 0.71, 0.999, 1.0, 1.001, 1.29, 1.31, 3.0]
    grid, ratios = [x.ravel() for x in np.meshgrid(a, ratio)]
    near = [np.full(4, 0.2), np.asarray([0.49, 0.51, 1.09, 1.11])]
    args = np.concatenate([grid, near[0]]), np.concatenate([grid * ratios, near[1]])

    def wanted(a, x):
        return reference.gammainc(a, x), reference.gammaincc(a, x)

    # SciPy's own error is larger for large parameters.
    both_precisions(
        lambda a, x: (ours.gammainc(a, x), ours.gammaincc(a, x)),
        args,
        wanted,
        {"float64": 2e-12, "float32": 2e-5},
    )


def test_incomplete_beta_functions_keep_their_digits():
    sizes = [1e-6, 0.02, 0.7, 1.0, 1.3, 4.0, 9.99, 10.0, 300.0]
    xs = [1e-9, 0.01, 0.3, 0.49, 0.51, 0.61, 0.9, 0.9999]
    args = [x.ravel() for x in np.meshgrid(sizes, sizes, xs)]

    def wanted(a, b, x):
        return reference.betainc(a, b, x), reference.betaincc(a, b, x)

    both_precisions(
        lambda a, b, x: (ours.betainc(a, b, x), ours.betaincc(a, b, x)),
        args,
        wanted,
        {"float64": 2e-12, "float32": 3e-5},
    )


def test_incomplete_functions_at_ends_are_those_of_scipy():
    a, x = [v.ravel() for v in np.meshgrid([0.0, 1.0, 2.5, INF, -1.0, NAN], [0.0, 2.0, INF, -1.0])]
    for name in ("gammainc", "gammaincc"):
        found, wanted = getattr(ours, name)(a, x), getattr(reference, name)(a, x)
        np.testing.assert_allclose(found, wanted, 1e-6, err_msg=name)
    ends = [0.0, 1.0, 2.0, INF, -1.0, NAN], [0.0, 2.0, INF], [0.0, 0.5, 1.0, -0.5, 1.5, NAN]
    a, b, x = [v.ravel() for v in np.meshgrid(*ends)]
    for name in ("betainc", "betaincc"):
        found, wanted = getattr(ours, name)(a, b, x), getattr(reference, name)(a, b, x)
        np.testing.assert_allclose(found, wanted, 1e-6, err_msg=name)


# From mpmath, with 60 digits: a, x, and the first and second derivatives of P in a.
GAMMA_SLOPES = [
    (0.01, 0.001, -5.957905603446865, 36.30008774742207),
    (0.5, 0.2, -0.8201614064863388, 1.0339378610953087),
    (0.8, 3.0, -0.07553212080780232, -0.10145336826133829),
    (3.0, 8.0, -0.017791335986496484, -0.017780405958256022),
    (15.0, 9.0, -0.025088780252008547, 0.012896666292568117),
    (40.0, 38.0, -0.06157565466210136, 0.003168238459632257),
    (300.0, 400.0, -2.242209984531739e-08, -6.452205603369946e-09),
]
# a, b, x, and the derivatives of I in a, in b, and in both.
BETA_SLOPES = [
    (0.02, 0.3, 0.4, -3.095782413582492, 0.20581712753146317, 9.001153614463668),
    (0.5, 0.5, 0.9, -0.2768155243583512, 0.5926200221433794, 0.47342123086420335),
    (0.7, 30.0, 0.01, -0.6335257532965877, 0.008230814083122883, 5.0629602034558225e-05),
    (2.5, 1.5, 0.6, -0.17042028789833033, 0.2816884650899177, -0.027929978345246898),
    (40.0, 60.0, 0.35, -0.03060139003568163, 0.018321239196398435, -0.0024015497215611114),
    (500.0, 3.0, 0.999, -7.613886081387081e-05, 0.028635508575338, 0.00012273124943644698),
]


def test_derivatives_in_parameters_are_those_of_mpmath():
    a, x, first, second = np.asarray(GAMMA_SLOPES).T
    with jax.enable_x64(True):
        slope = fx.grad(ours.gammainc)
        found = fx.jit(fx.vmap(lambda a, x: (slope(a, x), fx.grad(slope)(a, x))))(a, x)
        np.testing.assert_allclose(found, (first, second), 1e-11)
        np.testing.assert_allclose(lax.igamma_grad_a(a, x), first, 1e-12)
    a, b, x, in_a, in_b, mixed = np.asarray(BETA_SLOPES).T
    with jax.enable_x64(True):
        slope = fx.grad(ours.betainc, (0, 1))
        both = fx.jit(fx.vmap(lambda *args: (*slope(*args), fx.jacfwd(slope)(*args)[1])))
        np.testing.assert_allclose(both(a, b, x), (in_a, in_b, mixed), 1e-10)


def test_derivatives_at_ends():
    gamma = fx.vmap(fx.grad(ours.gammainc, (0, 1)))(
        np.asarray([2.0, 1.0, 2.0, 0.5]), np.asarray([0.0, 0.0, INF, 0.0])
    )
    np.testing.assert_array_equal(gamma, [[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, INF]])
    beta = fx.vmap(fx.grad(ours.betainc, (0, 1, 2)))(
        np.asarray([1.0, 2.0, 3.0]), np.asarray([2.0, 2.0, 1.0]), np.asarray([0.0, 1.0, 1.0])
    )
    np.testing.assert_array_equal(beta, [[0.0] * 3, [0.0] * 3, [2.0, 0.0, 3.0]])

    # Of x - x**2 / 2 among others.
    a, zero = np.asarray([0.5, 1.0, 2.0, 3.0]), np.zeros(4)
    second = fx.vmap(fx.grad(fx.grad(ours.gammainc, 1), 1))(a, zero)
    np.testing.assert_array_equal(second, [-INF, -1.0, 1.0, 0.0])
    # The second derivatives of (1 - x)**(a - 1) / beta(3, a) at 1.
    power = BetaDensity(power_orders=(0, 2))(zero + 3.0, a, zero + 1.0)
    np.testing.assert_array_equal(power, [INF, 0.0, 0.0, 60.0])


def test_derivatives_near_zero_do_not_underflow_with_powers_of_the_operand():
    a, x = np.asarray([1.5, 2.0, 3.0], "float32"), np.asarray([1e-26, 1e-20, 1e-13], "float32")
    slope = fx.grad(ours.gammainc, 1)
    np.testing.assert_allclose(slope(a[0], x[0]), 1.1283792e-13, 1e-6)
    np.testing.assert_allclose(fx.grad(slope, 1)(a[1], x[1]), 1.0, 1e-6)
    b = np.float32(2.0)
    curvature = fx.grad(fx.grad(ours.betainc, 2), 2)
    np.testing.assert_allclose(curvature(a[1], b, x[1]), 6.0, 1e-6)
    np.testing.assert_allclose(fx.grad(curvature, 2)(a[2], b, x[2]), 24.0, 1e-5)
    # x**12 (1 - x)**4999 / beta(13, 5000), where x**13 underflows.
    large, density = np.asarray([13.0, 5000.0, 1e-6], "float32"), BetaDensity()
    np.testing.assert_allclose(density(*large), 2.5755582e-33, 1e-4)
    np.testing.assert_allclose(fx.grad(density, 2)(*large), 3.0893825e-26, 1e-4)
    # A factor of 0, of a - 1, stays 0 next to a power that is infinite.
    assert float(BetaDensity(power_orders=(3, 0))(b - 1.0, b, x[2])) == 0.0


def test_the_fastest_growing_term_is_the_derivative_at_an_infinite_end():
    half = np.float32(0.5)
    curvature = fx.grad(fx.grad(ours.betainc, 2), 2)
    assert [float(curvature(half, half, end)) for end in (0.0, 1.0)] == [-INF, INF]


def test_names_of_lax_agree_with_jax():
    a = np.asarray([0.3, 2.5, 30.0, 1.0], "float32")
    x = np.asarray([0.2, 4.0, 25.0, 0.0], "float32")
    for name in ("igamma", "igammac", "igamma_grad_a", "random_gamma_grad"):
        found, wanted = getattr(lax, name)(a, x), getattr(jax.lax, name)(a, x)
        np.testing.assert_allclose(found, wanted, 1e-4, err_msg=name)
        assert found.dtype == wanted.dtype
    unit = np.asarray([0.1, 0.5, 0.9, 0.2], "float32")
    np.testing.assert_allclose(lax.betainc(a, a, unit), jax.lax.betainc(a, a, unit), 1e-4)
    assert lax.igamma(a.astype(jnp.bfloat16), x.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    with pytest.raises(fx.errors.DTypeError):
        lax.igamma(np.arange(3), np.arange(3))


def test_a_draw_of_the_gamma_distribution_has_a_second_derivative_in_its_shape():
    with jax.enable_x64(True), by_reference():
        a, x, h = 2.5, 4.0, 1e-4
        p = reference.gammainc(a, x)
        second = (reference.gammaincinv(a + h, p) - 2 * x + reference.gammaincinv(a - h, p)) / h**2

        def slope(a, x):
            return lax.random_gamma_grad(a, x)

        in_a, in_x = fx.grad(slope, (0, 1))(a, x)
        assert float(in_a + in_x * slope(a, x)) == pytest.approx(second, 1e-5)


def test_empty_and_broadcast_operands():
    assert ours.gammainc(np.zeros((0, 3), "float32"), 1.0).shape == (0, 3)
    assert ours.betainc(np.ones((2, 1)), np.ones(3), 0.5).shape == (2, 3)
    assert ours.gammainc([1, 2], 3).dtype == np.float32
