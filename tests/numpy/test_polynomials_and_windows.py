"""Polynomials, windows, bits, histograms and joining by indexing: values, types and derivatives."""

import jax.numpy as jnp
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx.core.errors import (
    ConcretizationError,
    DTypeError,
    ShapeError,
    ValueRangeError,
)
from tests.numpy.agreement import (
    Agreement,
    agree_at_once,
    derivatives,
    label,
    same,
    values_of_a_batch,
)

SMOOTH = [
    ("np.polyval(x, y)", "f32[4]", "f32[2,3]"),
    ("np.polyval(x, y)", "f32[3,2]", "f32[4,1]"),
    ("np.polyval(x, y, unroll=2)", "f32[7]", "f32[3]"),
    ("np.polyadd(x, y)", "f32[4]", "f32[2]"),
    ("np.polysub(x, y)", "f32[2]", "c64[4]"),
    ("np.polymul(x, y)", "f32[4]", "f32[2]"),
    ("np.polydiv(x, y + 3)", "f32[5]", "f32[2]"),
    ("np.polyder(x, 2)", "f32[5]"),
    ("np.polyint(x, 3, y)", "f32[3]", "f32[3]"),
    ("np.poly(x)", "f32[3]"),
    ("np.i0(x)", "f32[5]"),
    ("np.kaiser(5, x)", "f32[]"),
    ("np.unwrap(x * 4)", "f32[7]"),
    ("np.unwrap(x * 4, axis=0, discont=4.0, period=3.0)", "f32[5,2]"),
    ("np.r_[x, 0:3, 1.5, y]", "f32[2]", "f32[3]"),
    ("np.c_[x, y]", "f32[3]", "f32[3]"),
]
VALUES = [
    ("np.polyval(x, 2)", "i32[3]"),
    ("np.polyval(x, 2.0)", "f32[0]"),
    ("np.polyval(x, y)", "bf16[3]", "f32[2]"),
    ("np.polyadd(x, y)", "i32[3]", "i32[2]"),
    ("np.polymul(x, y)", "i32[3]", "i32[2]"),
    ("np.polydiv(x, y)", "f32[2]", "f32[4]"),
    ("np.polydiv(x, y)", "f32[4]", "f32[1]"),
    ("np.polyder(x, 4)", "i32[3]"),
    ("np.polyder(x, 0)", "i32[3]"),
    ("np.polyint(x, 2, 5)", "i32[3]"),
    ("np.polyint(x, 0)", "f32[3]"),
    ("np.poly(x)", "c64[4]"),
    ("np.poly(x)", "f32[0]"),
    *[
        (f"np.{name}({n})",)
        for name in ("bartlett", "blackman", "hamming", "hanning")
        for n in (0, 1, 6)
    ],
    ("np.kaiser(1, 3.0)",),
    ("np.kaiser(6, 3)",),
    ("np.i0(x)", "i32[3]"),
    ("np.packbits(x)", "bool[11]"),
    ("np.packbits(x, axis=1)", "i32[2,9]"),
    ("np.packbits(x, axis=-1, bitorder='little')", "bool[3,8]"),
    ("np.packbits(x)", "bool[0]"),
    *[(f"np.unpackbits(x, count={n})", "u8[3]") for n in (None, 5, -3, 30, -30)],
    ("np.unpackbits(x, axis=0, bitorder='little')", "u8[2,3]"),
    ("np.spacing(x)", "f32[5]"),
    ("np.spacing(x)", "i32[3]"),
    ("np.spacing(numpy.array([0, -0.0, numpy.inf, numpy.nan, -1, 1e-40, 3e38], 'float32'))",),
    ("np.unwrap(x, period=4)", "i32[9]"),
    ("np.unwrap(x)", "f32[0]"),
    ("np.histogram2d(x, y, 3)", "f32[9]", "f32[9]"),
    ("np.histogram2d(x, y, 3, range=[[-1, 1], None], density=True)", "f32[9]", "f32[9]"),
    ("np.histogram2d(x, y, [numpy.array([-1.0, 0.0, 2.0]), 4])", "f32[9]", "f32[9]"),
    ("np.histogram2d(x, y, numpy.array([-1.0, 0.0, 2.0]), weights=x)", "f32[9]", "f32[9]"),
    ("np.histogramdd(x, 2)", "f32[9,3]"),
    ("np.histogramdd(x, (2, 3), weights=y)", "f32[9,2]", "f32[9]"),
    ("np.mask_indices(3, np.tril, size=7)",),
    ("np.r_[1:3, 5]",),
    ("np.r_[1:2:3j, -2.0]",),
    ("np.r_['0,2', x, y]", "i32[2]", "f32[2]"),
    ("np.r_['0,2,0', x, y]", "i32[2]", "i32[3]"),
    ("np.r_['-1', x, y]", "f32[2,3]", "f32[2,1]"),
    ("np.r_['r', x, y]", "f32[2]", "f32[3]"),
    ("np.r_['c', x, y]", "f32[2]", "f32[3]"),
    ("np.c_[x, y, x]", "f32[2,3]", "f32[2]"),
    ("np.c_['0', x, y]", "f32[2]", "f32[3]"),
    ("np.apply_over_axes(np.sum, x, [0, 2])", "f32[2,3,4]"),
    ("np.apply_over_axes(np.cumsum, x, [-1])", "f32[2,3]"),
]
agreement = Agreement(fnp, jnp, [*SMOOTH, *VALUES], weak=False)
batched = Agreement(fnp, jnp, SMOOTH, values_of_a_batch, weak=False)
differentiated = Agreement(fnp, jnp, SMOOTH, derivatives, weak=False)


def test_a_list_of_a_histogram_has_the_coordinates_along_each_axis():
    x, y = np.float32([1, 2, 3]), np.float32([4, 5, 9])
    for sample in ((x, y), [x.tolist(), y.tolist()], np.stack([x, y], 1)):
        counts, edges = fnp.histogramdd(sample, 2)
        np.testing.assert_array_equal(counts, [[1, 0], [1, 1]])
        np.testing.assert_array_equal(edges, [[1, 2, 3], [4, 6.5, 9]])


@pytest.mark.parametrize("call", [*SMOOTH, *VALUES], ids=label)
def test_values_and_dtypes_are_those_of_jax(call):
    agreement.check(call, 128)


@pytest.mark.parametrize("call", SMOOTH, ids=label)
def test_mapped_values_are_those_of_jax(call):
    batched.check(call, 32)


@pytest.mark.parametrize("call", SMOOTH, ids=label)
def test_derivatives_are_those_of_jax(call):
    differentiated.check(call, 32)


@pytest.mark.parametrize("call", VALUES[::3], ids=label)
def test_calls_outside_a_trace_give_the_same(call):
    agree_at_once(fnp, jnp, *call)


def test_integers_are_unwrapped_as_numpy_unwraps_them():
    x = np.random.RandomState(0).randint(-9, 10, 20).astype(np.int32)
    for period in (4, 5, 7):
        same(fnp.unwrap(x, period=period), np.unwrap(x, period=period), weak=False)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_distances_of_neighbours_are_those_of_numpy_for_small_and_large_numbers(dtype):
    x = np.arange(2**16, dtype="uint16")
    x = x.view(dtype) if dtype == "float16" else (x[::7].astype("uint32") << 16).view(dtype)
    with np.errstate(all="ignore"):
        expected = np.spacing(x)
    np.testing.assert_array_equal(fnp.spacing(x), expected)
    np.testing.assert_array_equal(functx.jit(fnp.spacing)(x), expected)


def test_masks_give_indices():
    same(fnp.mask_indices(4, fnp.triu, 1), jnp.mask_indices(4, jnp.triu, 1))


def test_leading_zeros_are_trimmed_where_they_are_known():
    p = np.array([0.0, 1.0, 2.0], np.float32)
    same(
        [
            fnp.polymul(p, p, trim_leading_zeros=True),
            *fnp.polydiv(np.array([1.0, 4.0, 4.0], np.float32), p[1:], trim_leading_zeros=True),
        ],
        [
            jnp.polymul(p, p, trim_leading_zeros=True),
            *jnp.polydiv(np.array([1.0, 4.0, 4.0], np.float32), p[1:], trim_leading_zeros=True),
        ],
        weak=False,
    )


def test_the_roots_of_a_polynomial_are_its_zeros():
    p = np.array([0.0, 2.0, -6.0, 4.0, 0.0], np.float32)
    assert np.allclose(np.sort(fnp.roots(p).real), [0, 1, 2], atol=1e-5)
    assert fnp.roots(np.zeros(3)).shape == fnp.roots([4.0]).shape == (0,)
    found = functx.jit(lambda p: fnp.roots(p, strip_zeros=False))(p)
    assert np.isnan(found[-1]) and np.allclose(np.sort(found[:-1].real), [0, 1, 2], atol=1e-5)
    assert np.isnan(fnp.roots(np.zeros(3, np.float32), strip_zeros=False)).all()
    with pytest.raises(ConcretizationError):
        functx.jit(fnp.roots)(p)


def test_the_derivative_of_a_root_is_that_of_the_implicit_function():
    p = np.array([1.0, -3.0, 2.0], np.float32)

    def largest(p):
        return fnp.roots(p, strip_zeros=False).real.max()

    # p(r) = 0, so that dr = -r^k dp / p'(r) with r = 2 and p'(r) = 1
    assert np.allclose(functx.grad(largest)(p), [-4.0, -2.0, -1.0], atol=1e-4)
    assert np.allclose(functx.jvp(largest, (p,), (np.ones_like(p),))[1], -7.0, atol=1e-4)


@pytest.mark.parametrize("weights", [None, np.array([1, 2, 1, 3, 1, 0.5, 1])])
def test_polyfit_finds_what_numpy_finds(weights):
    x = np.linspace(-1, 1, 7)
    y = np.stack([np.cos(x), np.exp(x)], 1)
    for values in (y[:, 0], y):
        expected = np.polyfit(x, values, 3, w=weights)
        assert np.allclose(fnp.polyfit(x, values, 3, w=weights), expected, atol=1e-5)
    found, covariance = fnp.polyfit(x, y[:, 1], 2, w=weights, cov=True)
    expected, expected_covariance = np.polyfit(x, y[:, 1], 2, w=weights, cov=True)
    assert np.allclose(found, expected, atol=1e-5)
    assert np.allclose(covariance, expected_covariance, rtol=1e-3)
    full = fnp.polyfit(x, y[:, 0], 2, full=True)
    assert np.allclose(full[1], np.polyfit(x, y[:, 0], 2, full=True)[1], rtol=1e-3)
    assert full[2] == 3 and full[3].shape == (3,)


def test_numbers_of_elements_in_bins_of_no_finite_width_are_nan():
    assert np.isnan(fnp.histogram([1.0, np.inf], 2)[0]).all()
    assert list(fnp.histogram([1.0, np.inf], [0.0, 2.0, np.inf])[0]) == [1.0, 1.0]


def test_the_derivative_of_a_fit_is_linear_in_the_values():
    x = np.linspace(-1, 1, 6, dtype=np.float32)
    jacobian = functx.jacrev(lambda y: fnp.polyfit(x, y, 2))(np.cos(x))
    assert np.allclose(jacobian, np.linalg.pinv(np.vander(x, 3)), atol=1e-4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fnp.polyval(2.0, 1.0), ShapeError, "p must have a dimension"),
        (lambda: fnp.polyder([1.0], -1), ValueRangeError, "m must not be negative; got -1"),
        (lambda: fnp.polyint([1.0], 3, [1.0, 2.0]), ShapeError, "k must hold 1 or 3 constants"),
        (lambda: fnp.polydiv([1.0], np.zeros(0)), ShapeError, "v must have coefficients"),
        (lambda: fnp.polymul(np.ones((2, 2)), 1.0), ShapeError, "must have one dimension"),
        (lambda: fnp.poly(np.ones((2, 3))), ShapeError, "or be a square matrix"),
        (lambda: fnp.polyfit([1.0], [1.0, 2.0], 1), ShapeError, "x must be a vector"),
        (lambda: fnp.packbits([1.5]), DTypeError, "must be boolean or integer"),
        (lambda: fnp.packbits([1], bitorder="up"), ValueRangeError, "'big' or 'little'"),
        (lambda: fnp.unpackbits([1]), DTypeError, "must be uint8"),
        (lambda: fnp.kaiser(3, 1j), DTypeError, "must be real"),
        (lambda: fnp.unwrap(1.0), ShapeError, "must have a dimension"),
        (lambda: fnp.histogramdd(np.ones((4, 2)), [3]), ShapeError, "for each of 2 axes"),
        (lambda: fnp.histogram2d([1.0], [1.0, 2.0]), ShapeError, "vectors of one length"),
        (lambda: fnp.r_["0,x", [1]], ValueRangeError, "one to three integers"),
        (lambda: fnp.r_[()], ValueRangeError, "there must be arrays to join"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
