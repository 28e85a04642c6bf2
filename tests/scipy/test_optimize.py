"""Minima against SciPy, their derivatives against differences."""

import jax
import jax.numpy as jnp
import jax.scipy.optimize
import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx.core.errors import FunctxError
from functx.scipy.optimize import minimize

METHODS = ["BFGS", "L-BFGS-B", "Newton-CG", "trust-ncg", "trust-exact"]


def rosenbrock(x):
    return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2).sum()


def himmelblau(x):
    return (x[0] ** 2 + x[1] - 11) ** 2 + (x[0] + x[1] ** 2 - 7) ** 2


@pytest.mark.parametrize("method", METHODS)
def test_minima_are_found_from_afar(method):
    with jax.enable_x64():
        guesses = np.array([[-1.2, 1.0], [2.0, -1.0], [0.5, 3.0]])
        found = functx.jit(functx.vmap(lambda x: minimize(rosenbrock, x, method=method)))(guesses)
        np.testing.assert_allclose(found.x, np.ones((3, 2)), rtol=1e-3)
        assert found.success.all() and not found.status.any()
        assert (found.nit < 100).all() and (found.nfev < 200).all()


@pytest.mark.parametrize("method", METHODS)
def test_minima_are_found_in_single_precision(method):
    found = minimize(rosenbrock, np.array([-1.2, 1.0], "float32"), method=method)
    assert found.x.dtype == found.fun.dtype == np.float32 and found.status.dtype == np.int32
    np.testing.assert_allclose(found.x, np.ones(2), rtol=1e-3)


def test_jax_and_scipy_find_the_same_minimum():
    x0 = np.ones(2, "float32")
    expected = jax.scipy.optimize.minimize(himmelblau, x0, method="BFGS")
    for method in ("BFGS", "l-bfgs-experimental-do-not-rely-on-this"):
        found = minimize(himmelblau, x0, method=method)
        np.testing.assert_allclose(found.x, expected.x, rtol=1e-4)
        assert [*found._fields] == [*expected._fields]
    np.testing.assert_allclose(minimize(himmelblau, x0, method="bfgs").hess_inv.shape, (2, 2))


def test_minima_within_bounds_equal_those_of_scipy():
    optimize = pytest.importorskip("scipy.optimize")
    bowl = lambda x: ((x - 3.0) ** 2 * jnp.arange(1.0, 6.0)).sum()  # noqa: E731
    problems = [
        (rosenbrock, [-1.2, 1.0], [(-2, 0.5), (None, None)]),
        (himmelblau, [1.0, 1.0], [(0, 2.5), (0, 1.5)]),
        (bowl, [10.0] * 5, [(4, 20), (None, 2), (0, None), (None, None), (3, 3)]),
    ]
    with jax.enable_x64():
        for f, x0, bounds in problems:
            options = {"gtol": 1e-8, "ftol": 0.0}
            found = minimize(
                functx.from_jax(f), np.array(x0), method="L-BFGS-B", bounds=bounds, options=options
            )
            slope = jax.grad(f)
            expected = optimize.minimize(
                f, x0, method="L-BFGS-B", bounds=bounds, jac=lambda v, d=slope: np.asarray(d(v))
            )
            assert found.success
            np.testing.assert_allclose(found.x, expected.x, atol=1e-5)
    box = optimize.Bounds([0.0, 0.0], 2.5)
    boxed = minimize(himmelblau, np.ones(2, "float32"), method="L-BFGS-B", bounds=box)
    np.testing.assert_allclose(boxed.x, [2.5, 2.2486], rtol=1e-3)


A, B = np.array([0.3, -0.5, 0.9]), 0.7


def minimum(method, **options):
    def objective(x, a, b):
        return ((x - a) ** 2 * (1 + x**2)).sum() + b * xp.sin(x.sum())

    def find(a, b):
        options_ = {"ftol": 0.0} if method == "L-BFGS-B" else {}
        return minimize(
            objective, np.zeros(3), (a, b), method=method, tol=1e-10, options=options_, **options
        )

    return find


@pytest.mark.parametrize("method", METHODS)
def test_the_minimum_is_differentiated_by_the_implicit_function_theorem(method):
    step = 1e-5

    def columns(a):
        x = functx.vmap(lambda a: minimum(method)(a, B).x)(a)
        forward = functx.jacfwd(lambda a: minimum(method)(a, B).x)
        return x, forward(A), functx.jacrev(lambda a: minimum(method)(a, B).x)(A)

    with jax.enable_x64():
        shifts = step * np.concatenate([np.eye(3), -np.eye(3)])
        x, forward, reverse = functx.jit(columns)(A + shifts)
        differences = ((x[:3] - x[3:]) / (2 * step)).T
        np.testing.assert_allclose(forward, differences, atol=1e-5)
        np.testing.assert_allclose(reverse, forward, atol=1e-9)


def test_second_derivatives_of_the_minimum_and_of_its_value():
    def value(b):
        result = minimum("trust-exact")(A, b)
        return xp.stack([result.fun, result.x.sum()])

    with jax.enable_x64():
        first = functx.jit(functx.jacfwd(value))
        second = functx.jit(functx.jacfwd(functx.jacrev(value)))(B)
        differences = (first(B + 1e-5) - first(B - 1e-5)) / 2e-5
        np.testing.assert_allclose(second, differences, rtol=1e-5)


def test_a_minimum_at_a_bound_follows_the_bound():
    def find(a, low):
        return minimize(
            lambda x: ((x - a) ** 2).sum() + x[0] * x[1], np.ones(2), method="L-BFGS-B",
            bounds=((low, 2.0), (None, None)), tol=1e-9, options={"ftol": 0.0},
        ).x  # fmt: skip

    with jax.enable_x64():
        for derivative in (functx.jacfwd, functx.jacrev):
            in_a, in_low = functx.jit(derivative(find, (0, 1)))(np.array([0.1, 0.4]), 0.5)
            np.testing.assert_allclose(in_a, [[0, 0], [0, 1]], atol=1e-8)
            np.testing.assert_allclose(in_low, [1, -0.5], atol=1e-8)


def test_minima_of_many_unknowns_are_differentiated_without_a_matrix():
    scale = np.linspace(0.0, 1.0, 600).astype("float32")

    def total(s):
        objective = lambda x: ((x - s * scale) ** 2).sum() + 0.1 * (x**4).sum()  # noqa: E731
        return minimize(objective, np.zeros(600), method="L-BFGS-B").x.sum()

    gradient = functx.jit(functx.grad(total))
    assert "600, 600" not in str(functx.make_ir(gradient)(2.0))
    assert float(gradient(2.0)) == pytest.approx(182.64, rel=1e-3)


def test_complex_elements_are_minimized_by_their_parts():
    target = np.array([1 + 2j, -0.5j], "complex64")
    for method in ("L-BFGS-B", "BFGS"):
        sphere = lambda z: (abs(z - target) ** 2).sum()  # noqa: E731
        found = minimize(sphere, np.zeros(2, "complex64"), method=method)
        assert found.x.dtype == np.complex64 and found.success
        np.testing.assert_allclose(found.x, target, atol=1e-5)


def test_what_ends_an_iteration_is_told():
    x0 = np.array([-1.2, 1.0], "float32")
    few = minimize(rosenbrock, x0, method="BFGS", options={"maxiter": 3})
    assert not few.success and few.status == 1 and few.nit == 3
    calls = minimize(rosenbrock, x0, method="L-BFGS-B", options={"maxfun": 4})
    assert not calls.success and calls.status == 2
    for method in METHODS:
        undefined = minimize(lambda x: xp.log(x).sum() * xp.nan, x0, method=method)
        assert not undefined.success and undefined.status == 3


@pytest.mark.parametrize(
    "call",
    [
        lambda: minimize(rosenbrock, np.ones(2), method="simplex"),
        lambda: minimize(rosenbrock, np.ones(2), 3.0, method="BFGS"),
        lambda: minimize(rosenbrock, np.ones((2, 2)), method="BFGS"),
        lambda: minimize(rosenbrock, np.ones(2), method="BFGS", options={"maxcor": 3}),
        lambda: minimize(rosenbrock, np.ones(2), method="BFGS", bounds=[(0, 1), (0, 1)]),
        lambda: minimize(rosenbrock, np.ones(2), method="L-BFGS-B", bounds=[(0, 1)]),
        lambda: minimize(lambda x: x, np.ones(2), method="BFGS"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call):
    with pytest.raises(FunctxError):
        call()
