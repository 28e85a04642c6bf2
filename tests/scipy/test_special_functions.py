"""Special functions against SciPy in both precisions, at special points, and their derivatives."""

import math

import jax
import numpy as np
import pytest
import scipy.special as reference

import functx as fx
from functx.scipy import special as ours
from functx.testing import check_grads
from tests.by_reference import by_reference

INF, NAN = math.inf, math.nan
_random = np.random.RandomState(0)
# Arguments of all sizes, on both sides of each switch between two methods.
LINE = [
    1e-8,
    0.01,
    0.29,
    0.31,
    0.99,
    1.01,
    1.49,
    1.51,
    1.99,
    2.01,
    2.99,
    3.01,
    6.1,
    6.2,
    24.0,
    39.0,
]
BOTH = [-x for x in LINE[:12]] + LINE
UNIT = [1e-12, 1e-3, 0.2, 0.499, 0.501, 0.9, 0.9999]
ORDERS = [0.0, 1.0, 2.0, 5.0, -1.0, -3.0, 0.5, 1.7, -0.3, -2.5, 12.3]
SHAPES = [0.02, 0.6, 1.0, 3.3, 25.0, 900.0]

POINTS = {
    "boxcox": [LINE, [0.0, 1e-9, -0.5, 2.0]],
    "boxcox1p": [LINE, [0.0, 1e-9, -0.5, 2.0]],
    "comb": [[0.0, 1.0, 5.0, 20.0, 7.5], [0.0, 1.0, 4.0, 5.0, 6.0, -1.0]],
    "dawsn": [[*BOTH, 0.0, 1e9, INF, NAN]],
    "erfcx": [[*BOTH[2:], 0.0, 1e9, INF, NAN]],
    "exp1": [[*LINE, 0.0, INF, -1.0, NAN]],
    "expi": [[*BOTH, 0.0, 41.0, 60.0, INF, NAN]],
    "expn": [[0.0, 1.0, 2.0, 7.0, 40.0], [*LINE, 0.0, INF, -1.0]],
    "fresnel": [[*BOTH, 0.0, INF, -INF]],
    "gammaincinv": [SHAPES, [*UNIT, 0.0, 1.0, -0.1, 1.1]],
    "gammainccinv": [SHAPES, [*UNIT, 0.0, 1.0]],
    "hyp1f1": [[0.7, 2.0], [1.5, 3.2], [-89.5, -8.0, -1.0, 0.0, 0.5, 12.0]],
    "hyp2f1": [[0.7, -2.0], [1.5, 3.2], [2.5], [-20.0, -0.9, 0.0, 0.4, 0.8, 0.99]],
    "ive": [ORDERS, LINE],
    "jv": [ORDERS, [*LINE, 0.0, 26.0, 400.0]],
    "kve": [ORDERS, LINE],
    "loggamma": [[*LINE, 0.0, INF, -0.5]],
    "owens_t": [[-3.0, 0.0, 0.4, 2.0, 9.0], [-2.0, 0.0, 0.3, 1.0, 1.1, INF]],
    "poch": [[0.5, 3.0, 40.0, -2.5, -3.0, -4.0], [0.0, 0.5, 1.0, 2.0, 10.0, -1.0]],
    "sici": [[*BOTH, 0.0, INF]],
    "stdtr": [SHAPES, [-30.0, -1.0, -1e-3, 0.0, 0.3, 2.0, INF, NAN]],
    "stdtrit": [[0.6, 1.0, 3.3, 25.0], [1e-12, 1e-3, 0.2, 0.47, 0.53, 0.9, 0.9999, 1.0, NAN]],
    "yv": [ORDERS, [*LINE, 26.0, 400.0]],
    "zeta": [[1.0, 1.1, 2.0, 5.0, 30.0, 0.5], [0.1, 1.0, 2.5, 9.9, 10.1, 1e4, 0.0, INF]],
}
TOLERANCE = {"float64": 1e-12, "float32": 3e-5}


def grid(name):
    return [x.ravel() for x in np.meshgrid(*POINTS[name])]


@pytest.mark.parametrize("name", POINTS)
def test_values_are_those_of_scipy(name):
    for dtype, tolerance in TOLERANCE.items():
        args = [x.astype(dtype) for x in grid(name)]
        with jax.enable_x64(dtype == "float64"):
            found = fx.jit(getattr(ours, name))(*args)
        wide = [x.astype("float64") for x in args]
        if name == "expn":
            wide[0] = wide[0].astype(int)
        with np.errstate(all="ignore"):
            wanted = getattr(reference, name)(*wide)
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            assert x.dtype == dtype
            limit = float(np.finfo(dtype).max)
            y = np.where(np.abs(y) > limit, np.copysign(INF, y), y)
            np.testing.assert_allclose(x, y, tolerance, 2e-6 if dtype == "float32" else 1e-14)


def test_complex_functions_are_those_of_scipy():
    real, imag = np.meshgrid(
        [-30.0, -2.3, -0.4, 0.0, 1.2, 2.6, 7.0], [-1.5, -0.01, 0.0, 0.3, 4.0, 9.0]
    )
    z = (real + 1j * imag).ravel()
    right = z[(z.real > 0.1) | (z.imag != 0)]
    for dtype, tolerance in (("complex128", 1e-13), ("complex64", 1e-5)):
        with jax.enable_x64(dtype == "complex128"):
            for name, points in (("wofz", z), ("loggamma", right)):
                found = np.asarray(fx.jit(getattr(ours, name))(points.astype(dtype)))
                wanted = getattr(reference, name)(points.astype(dtype).astype(complex))
                assert found.dtype == dtype
                np.testing.assert_allclose(found, wanted, tolerance, tolerance, err_msg=name)


def test_spherical_harmonics_are_those_of_scipy():
    n, m = [x.ravel() for x in np.meshgrid(np.arange(6), np.arange(-5, 6))]
    theta, phi = _random.uniform(0, math.pi, n.size), _random.uniform(0, 2 * math.pi, n.size)
    with jax.enable_x64(True):
        found = fx.jit(ours.sph_harm_y)(n, m, theta, phi)
    wanted = np.where(abs(m) > n, 0.0, reference.sph_harm_y(n, m, theta, phi))
    np.testing.assert_allclose(found, wanted, 1e-12, 1e-14)
    with pytest.raises(fx.errors.ArgumentError, match="diff_n must be None"):
        ours.sph_harm_y(1, 0, 0.1, 0.2, diff_n=1)


def test_functions_of_whole_numbers():
    with jax.enable_x64(True):
        np.testing.assert_allclose(ours.bernoulli(12), reference.bernoulli(12), 1e-9)
        np.testing.assert_array_equal(ours.comb(np.arange(12), 3.0), reference.comb(range(12), 3))
        found = ours.comb(np.asarray([0.0, 0.0, 3.0]), np.asarray([0.0, 2.0, 4.0]), repetition=True)
        np.testing.assert_allclose(found, [1.0, 0.0, 15.0])
        x = np.asarray([0.0, 1.0, -2.0, 30.0])
        np.testing.assert_allclose(
            ours.bessel_jn(x, v=2), [reference.jv(n, x) for n in range(3)], 1e-12, 1e-14
        )
        riemann = np.asarray([-3.5, -2.0, -1.0, 0.0, 0.5, 2.0, -259.0, -260.0, -500.0])
        np.testing.assert_allclose(ours.zeta(riemann), reference.zeta(riemann), 1e-12, 1e-14)
    for call in (lambda: ours.bernoulli(-1), lambda: ours.bessel_jn(1.0, v=-1)):
        with pytest.raises(fx.errors.ArgumentError, match="integer that is not negative"):
            call()


# Operands away from kinks, for differences.
SMOOTH = {
    "boxcox": [0.7, 1e-3],
    "comb": [5.5, 2.2],
    "fresnel": [2.2],
    "iv": [None, 2.3],
    "jv": [None, 2.3],
    "kv": [None, 2.3],
    "loggamma": [2.3],
    "poch": [-2.4, 1.3],
    "sici": [2.2],
    "yv": [None, 2.3],
    "zeta": [2.6],
}


def test_derivatives_are_those_of_differences():
    def all_of_them(x):
        outs = []
        for name, operands in SMOOTH.items():
            args = [1.7 if v is None else v * x for v in operands]
            outs += jax.tree.leaves(getattr(ours, name)(*args))
        return outs

    # Values and kernels are compared as compiled by other tests, here and in tests/ops/test_rules.py.
    with jax.enable_x64(True), by_reference():
        check_grads(all_of_them, (np.float64(1.0),), order=1, rtol=1e-6, atol=1e-6)


AT = [
    ("dawsn", [0.0], [1.0]),
    ("erfcx", [0.0], [-2.0 / math.sqrt(math.pi)]),
    ("erfcx", [1e4], [-1.0 / math.sqrt(math.pi) * 1e-8]),
    ("dawsn", [1e4], [-0.5e-8]),
    ("boxcox", [2.0, 0.0], [0.5, 0.5 * math.log(2.0) ** 2]),
    ("comb", [5.0, 5.0], [137 / 60, -137 / 60]),
    ("gammaincinv", [2.0, 0.0], [0.0, INF]),
    ("gammaincinv", [2.0, 1.0], [0.0, INF]),
    ("stdtrit", [3.0, 0.0], [0.0, INF]),
    ("stdtrit", [3.0, 0.5], [0.0, math.pi * math.sqrt(3.0) / 2.0]),
    ("stdtr", [3.0, 0.0], [0.0, 2.0 / (math.pi * math.sqrt(3.0))]),
    ("owens_t", [0.0, 1.0], [0.0, 0.25 / math.pi]),
    ("zeta", [-2.0], [-0.030448457058393271]),
    ("poch", [0.0, 2.0], [1.0, 0.0]),
]


def test_python_numbers_are_operands():
    found = ours.loggamma(5.0), ours.wofz(0), ours.log_ndtr(0.0)
    np.testing.assert_allclose(found, [math.log(24.0), 1.0, math.log(0.5)], 1e-6)


def test_derivatives_at_special_points():
    with jax.enable_x64(True):
        for name, at, wanted in AT:
            f, argnums = getattr(ours, name), tuple(range(len(at)))
            both = fx.jit(lambda *at: (fx.grad(f, argnums)(*at), fx.jacfwd(f, argnums)(*at)))  # noqa: B023
            for found in both(*at):
                np.testing.assert_allclose(found, wanted, 1e-7, 1e-12, err_msg=name)


def test_derivatives_in_parameters_where_a_factor_of_the_series_vanishes():
    # From mpmath, with 40 digits.
    with jax.enable_x64(True):
        np.testing.assert_allclose(fx.grad(ours.gammainc)(1.0, 1.2), -0.38717665175801846, 1e-12)
        np.testing.assert_allclose(
            fx.grad(ours.betainc, 1)(0.5, 1.0, 0.5), 0.29235995883626525, 1e-12
        )
        # M(a, 2, 1) near a = 0: the sum of x**k (k - 1)! / ((2)_k k!)
        slope = math.fsum([1.0 / (k * math.factorial(k + 1)) for k in range(1, 25)])
        np.testing.assert_allclose(fx.grad(ours.hyp1f1)(0.0, 2.0, 1.0), slope, 1e-12)


def test_quantiles_have_first_and_second_derivatives_in_their_parameters():
    h = 1e-3
    cases = {
        "gammaincinv": (2.5, 0.3),
        "betaincinv": (2.5, 0.7, 0.3),
        "stdtrit": (2.5, 0.3),
    }
    with jax.enable_x64(True), by_reference():
        for name, (a, *rest) in cases.items():
            f, slopes = getattr(reference, name), fx.value_and_grad(fx.grad(getattr(ours, name)))
            points = [f(a + k * h, *rest) for k in (-2, -1, 0, 1, 2)]
            first = (points[0] - 8 * points[1] + 8 * points[3] - points[4]) / (12 * h)
            second = -points[0] + 16 * points[1] - 30 * points[2] + 16 * points[3] - points[4]
            found = slopes(a, *rest)
            np.testing.assert_allclose(found[0], first, 1e-8)
            np.testing.assert_allclose(found[1], second / (12 * h * h), 1e-5)


def test_an_order_is_not_differentiated():
    with pytest.raises(fx.errors.MissingRuleError, match="jv: an order must not be differentiated"):
        fx.grad(ours.jv)(1.0, 2.0)


def test_relative_entropies_with_nan_are_nan():
    p, q = np.array([[0.0, np.nan], [-1.0, np.nan], [np.nan, -1.0], [np.nan, 0.0]], "float32").T
    assert np.isnan(ours.rel_entr(p, q)).all() and np.isnan(ours.kl_div(p, q)).all()


def test_functions_in_compositions():
    x = np.linspace(0.2, 3.0, 6, dtype="float32").reshape(2, 3)
    f = fx.jit(fx.vmap(fx.vmap(fx.grad(lambda x: ours.erfcx(x) * ours.gammainc(x, 1.0)))))
    assert f(x).shape == (2, 3)
    scanned = fx.lax.scan(lambda c, x: (c + ours.dawsn(x), c), np.float32(0.0), x.ravel())
    np.testing.assert_allclose(scanned[0], reference.dawsn(x).sum(), 1e-5)
    assert ours.expi(np.zeros((0, 2), "float16")).dtype == np.float16


def test_hypergeometric_functions_keep_digits_or_are_nan_where_terms_cancel():
    args = np.array([[30.0, 0.6, 1.7, 0.9], [33.5, 10.5, 2.75, -2.5], [-1.0, 2.0, 1.0, 0.5]]).T
    # From mpmath.
    wanted = [1.3450247836596206e27, 6.17090982222801e-15, 0.0]
    with jax.enable_x64(True):
        np.testing.assert_allclose(ours.hyp2f1(*args), wanted, rtol=1e-7)
    a, b, c, x = args.astype("float32")
    found = np.asarray(ours.hyp2f1(a, b, c, x)).tolist()
    assert found[0] / wanted[0] == pytest.approx(1.0, rel=1e-5)
    assert np.isnan(found[1]) or abs(found[1] - wanted[1]) < 1e-3
    assert found[2] == 0.0


def test_values_at_unusual_arguments_are_those_of_scipy():
    degree, order = np.array([1, 1, 2, 3, 3, 2]), np.array([1, -1, 1, -3, 2, -2])
    theta = np.array([-1.25, -1.25, 4.0, -0.4, -2.0, 5.0])
    z = np.array([1 + 1j, -0.5 + 2j, -1.5 - 0.3j, 3.2, 10 + 10j])
    with jax.enable_x64(True):
        found = ours.sph_harm_y(degree, order, theta, 0.3)
        np.testing.assert_allclose(found, reference.sph_harm_y(degree, order, theta, 0.3), 1e-10)
        slopes = fx.grad(lambda t: np.sum(ours.sph_harm_y(degree, order, t, 0.3).real))(theta)
        above, below = [reference.sph_harm_y(degree, order, theta + h, 0.3) for h in (1e-5, -1e-5)]
        np.testing.assert_allclose(slopes, (above - below).real / 2e-5, 1e-7)
        np.testing.assert_allclose(ours.gamma(z), reference.gamma(z), 1e-10)
        np.testing.assert_allclose(ours.erfcx(z), reference.erfcx(z), 1e-10)
        x = np.array([0.3, 2.5, 11.0])
        for name in ("j0", "j1", "y0", "y1"):
            np.testing.assert_allclose(getattr(ours, name)(x), getattr(reference, name)(x), 1e-10)
        for name in ("jn", "yn"):
            np.testing.assert_allclose(
                getattr(ours, name)(2, x), getattr(reference, name)(2, x), 1e-10
            )
        ends = np.array([-np.inf, np.inf, 0.0])
        np.testing.assert_allclose(ours.sici(ends), reference.sici(ends), 1e-10)
    assert ours.logsumexp(1.0).shape == ()


def test_gamma_of_complex_numbers_is_nan_at_its_poles():
    z = np.array([0, -1, -2, -1.5, 3, 2 + 1j], "complex64")
    found = ours.gamma(z)
    assert found.dtype == z.dtype
    np.testing.assert_allclose(found, reference.gamma(z), rtol=1e-5)
