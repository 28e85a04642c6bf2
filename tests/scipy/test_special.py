"""`functx.scipy.special` against SciPy's and JAX's functions, and its derivatives at special points."""

import inspect
import math

import jax
import jax.numpy as jnp
import jax.scipy.special as theirs
import numpy as np
import pytest
import scipy.special as reference

import functx as fx
from functx.scipy import special as ours
from functx.testing import check_grads
from tests.by_reference import by_reference

INF = math.inf
WIDE = [-30.0, -9.0, -2.5, -0.7, -0.1, 0.2, 0.9, 1.7, 6.0, 25.0]
POSITIVE = [1e-3, 0.2, 0.5, 1.0, 1.7, 4.0, 30.0]
UNIT = [1e-7, 0.01, 0.3, 0.5, 0.8, 0.999]
GAMMAS = [-2.5, -1.3, -0.4, *POSITIVE]

POINTS = {
    "digamma": [GAMMAS],
    "entr": [[-1.0, 0.0, 0.2, 3.0]],
    "erf": [WIDE],
    "erfc": [WIDE],
    "erfinv": [[-0.99, -0.3, 0.0, 0.5, 0.999]],
    "expit": [WIDE],
    "factorial": [[-1.0, 0.0, 1.0, 2.5, 6.0]],
    "gamma": [[*GAMMAS, 0.0, -0.0, INF]],
    "gammaln": [GAMMAS],
    "gammasgn": [[*GAMMAS, 0.0, -0.0, INF]],
    "i0": [WIDE],
    "i0e": [WIDE],
    "i1": [WIDE],
    "i1e": [WIDE],
    "log_ndtr": [WIDE],
    "logit": [[0.0, *UNIT, 1.0]],
    "ndtr": [WIDE],
    "ndtri": [[0.0, *UNIT, 1.0]],
    "beta": [POSITIVE, [-0.5, 0.3, 0.7, 1.0, 2.0, 4.0, 5.0]],
    "betaln": [POSITIVE, POSITIVE[::-1]],
    "kl_div": [[0.0, 0.0, 0.3, 2.0, -1.0, 1.0], [0.0, 2.0, 0.4, 2.0, 1.0, 0.0]],
    "rel_entr": [[0.0, 0.0, 0.3, 2.0, -1.0, 1.0], [0.0, 2.0, 0.4, 2.0, 1.0, 0.0]],
    "spence": [[0.0, 1e-30, *POSITIVE, 1e30, INF]],
    "xlog1py": [[0.0, 0.0, 2.0, 1.0], [-1.0, 3.0, 0.5, math.nan]],
    "xlogy": [[0.0, 0.0, 2.0, 0.0], [0.0, 3.0, 0.5, math.nan]],
}


@pytest.mark.parametrize("name", POINTS)
def test_values_are_those_of_scipy(name):
    function = {"gammasgn": theirs.gammasgn}.get(name, getattr(reference, name, None))
    for dtype, tolerance in (("float64", 1e-9), ("float32", 2e-5)):
        args = [np.asarray(x, dtype) for x in POINTS[name]]
        with jax.enable_x64(dtype == "float64"):
            found = np.asarray(fx.jit(getattr(ours, name))(*args))
        assert found.dtype == args[0].dtype
        with jax.enable_x64(True):
            wanted = np.asarray(function(*[x.astype("float64") for x in args]))
        np.testing.assert_allclose(found, wanted, tolerance, 1e-6 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("name", sorted(set(POINTS) - {"factorial", "gammasgn"}))
def test_derivatives_are_those_of_differences(name):
    def inside(x):
        # Away from kinks and ends, and from the places where a function is infinite.
        return np.asarray([v for v in x if abs(v) < 10 and abs(v - round(v)) > 1e-2 and v > 0][:3])

    args = [inside(x) for x in POINTS[name]]
    n = min(map(len, args))
    with by_reference():
        check_grads(
            getattr(ours, name), tuple([x[:n] for x in args]), order=1, rtol=1e-3, atol=1e-3
        )


AT = [
    ("entr", [0.0], [INF]),
    ("xlogy", [0.0, 3.0], [math.log(3.0), 0.0]),
    ("xlogy", [0.0, 0.0], [-INF, 0.0]),
    ("xlog1py", [0.0, 1.0], [math.log(2.0), 0.0]),
    ("rel_entr", [0.0, 0.5], [-INF, 0.0]),
    ("rel_entr", [0.0, 0.0], [-INF, 0.0]),
    ("kl_div", [0.5, 0.5], [0.0, 0.0]),
    ("i0", [0.0], [0.0]),
    ("i1", [0.0], [0.5]),
    ("i0e", [0.0], [0.0]),
    ("i1e", [0.0], [0.5]),
    ("log_ndtr", [-40.0], [40.0249688]),
    ("log_ndtr", [40.0], [0.0]),
    ("logit", [0.0], [INF]),
    ("logit", [1.0], [INF]),
    ("erfinv", [1.0], [INF]),
    ("erfinv", [0.0], [math.sqrt(math.pi) / 2]),
    ("expit", [-800.0], [0.0]),
    ("gammaln", [1.0], [-0.5772156649]),
    ("spence", [0.0], [-INF]),
    ("spence", [1.0], [-1.0]),
]


@pytest.mark.parametrize(("name", "at", "wanted"), AT)
def test_derivatives_at(name, at, wanted):
    f, argnums = getattr(ours, name), tuple(range(len(at)))
    for found in (fx.grad(f, argnums)(*at), fx.jacfwd(f, argnums)(*at)):
        if name != "rel_entr" and name != "entr":
            np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5, atol=1e-7)
        else:
            np.testing.assert_allclose(np.asarray(found), wanted)


def test_bessel_functions_and_their_slopes_keep_their_digits():
    x = np.asarray([1e-300, -1e-20, 1e-9, 2.0, -50.0, 700.0])
    slopes = {"i0": reference.i1(x), "i1": reference.ivp(1, x)}
    far = {"i0e": -1.9947114020819652e-16, "i1e": -1.9947114017827586e-16}
    with jax.enable_x64(True):
        for name, wanted in slopes.items():
            value, slope = fx.jit(fx.vmap(fx.value_and_grad(getattr(ours, name))))(x)
            np.testing.assert_allclose(value, getattr(reference, name)(x), 1e-12, 0)
            np.testing.assert_allclose(slope, wanted, 1e-12, 0)
            ends = fx.vmap(fx.value_and_grad(getattr(ours, name)))(np.asarray([800.0, INF]))
            np.testing.assert_array_equal(ends, np.full((2, 2), INF))
        for name, wanted in far.items():
            assert fx.grad(getattr(ours, name))(1e10) == pytest.approx(wanted, 1e-12)
        assert fx.grad(fx.grad(ours.i1))(1e-9) == pytest.approx(3.75e-10, 1e-9)


def test_beta_functions_of_large_arguments_keep_their_digits():
    sizes = [0.3, 1.0, 2.5, 9.99, 10.0, 20.0, 171.0, 1e3, 1e10]
    a, b = (x.ravel() for x in np.meshgrid(sizes, sizes))
    for dtype, tolerance in (("float64", 1e-13), ("float32", 4e-6)):
        with jax.enable_x64(dtype == "float64"):
            found = np.asarray(fx.jit(ours.betaln)(a.astype(dtype), b.astype(dtype)))
            of_one = np.asarray(ours.betaln(np.asarray(sizes, dtype), np.ones(9, dtype)))
        np.testing.assert_allclose(found, reference.betaln(a, b), 1e3 * tolerance, tolerance)
        np.testing.assert_allclose(of_one, -np.log(sizes), tolerance, tolerance)
    with jax.enable_x64(True):
        mixed = fx.vmap(fx.grad(fx.grad(ours.betaln), 1))(a, b)
        np.testing.assert_allclose(mixed, -reference.polygamma(1, a + b), 1e-9)


def test_the_dilogarithm_has_all_its_derivatives_at_one():
    with jax.enable_x64(True):
        slope = fx.grad(ours.spence)
        for z in (1e-30, 0.3, 0.49, 0.51, 1 - 1e-9, 1 + 1e-7, 1.4, 1.6, 1e30):
            np.testing.assert_allclose(
                slope(z), np.log1p(z - 1) / (1 - z) if z > 0.1 else np.log(z), 1e-15
            )
        np.testing.assert_allclose(fx.grad(slope)(1.0), 1 / 2, 1e-15)
        np.testing.assert_allclose(fx.grad(fx.grad(slope))(1.0), -2 / 3, 1e-15)


def test_entropies_of_ratios_that_overflow_are_finite():
    p, q = np.array([1e10, 1e-300, 1e-300]), np.array([1e-300, 1e10, 1e-300])
    with jax.enable_x64(True):
        found = fx.jit(lambda p, q: (ours.rel_entr(p, q), ours.kl_div(p, q)))(p, q)
    wanted = reference.rel_entr(p, q)
    np.testing.assert_allclose(found, (wanted, wanted - p + q), 1e-14)


def test_small_entries_of_the_second_derivative_of_logsumexp_keep_their_digits():
    p = math.exp(-37.5)
    with jax.enable_x64(True):
        for transform in (fx.hessian, lambda f: fx.jacrev(fx.jacrev(f))):
            found = transform(ours.logsumexp)(np.asarray([37.5, 0.0]))
            np.testing.assert_allclose(found, [[p, -p], [-p, p]], 1e-12, 0)


def test_a_sum_of_entropies_without_a_probability_has_the_gradient_of_the_others():
    def loss(p, held):
        return fx.numpy.where(held, ours.entr(p), 0.0).sum()

    p, held = np.asarray([0.0, 0.5]), np.asarray([False, True])
    np.testing.assert_allclose(fx.grad(loss)(p, held), [0.0, math.log(2.0) - 1.0], rtol=1e-6)


def test_reductions_have_the_signatures_of_jax():
    x = np.asarray([[1.0, 2.0, 3.0], [4.0, 0.0, -1.0]])
    for name in ("softmax", "log_softmax", "logsumexp"):
        f, g = getattr(ours, name), getattr(theirs, name)
        for axis in (None, 0, (0, 1), -1):
            np.testing.assert_allclose(f(x, axis=axis), g(jnp.asarray(x), axis=axis), rtol=1e-6)


@pytest.mark.parametrize(
    "name",
    sorted(
        [n for n, f in vars(ours).items() if callable(f) and n[0] != "_" and hasattr(theirs, n)]
    ),
)
def test_parameters_are_named_as_in_jax(name):
    def names(f):
        return list(inspect.signature(f).parameters)

    assert names(getattr(ours, name)) == names(getattr(theirs, name))


def test_functions_of_orders_agree_with_scipy():
    x = np.asarray([2.6, 3.0, 5.5])
    np.testing.assert_allclose(ours.multigammaln(x, 3), reference.multigammaln(x, 3), rtol=1e-5)
    for n in (0, 1, 3):
        np.testing.assert_allclose(ours.polygamma(n, x), reference.polygamma(n, x), rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ours.multigammaln(2.0, 1.5), "multigammaln: d must be a positive integer"),
        (lambda: ours.factorial(2.0, exact=True), "factorial: exact must be False"),
        (lambda: ours.log_ndtr(2.0, -1), "log_ndtr: series_order must be an integer"),
    ],
)
def test_arguments_are_refused_by_name(call, message):
    with pytest.raises(fx.errors.ArgumentError, match=message):
        call()


def test_a_missing_function_points_to_jax(monkeypatch):
    monkeypatch.setattr(theirs, "of_tomorrow", theirs.erf, raising=False)
    with pytest.raises(AttributeError, match=r"write jax\.scipy\.special\.of_tomorrow"):
        ours.of_tomorrow  # noqa: B018
