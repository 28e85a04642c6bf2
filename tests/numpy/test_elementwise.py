"""Elementwise functions: values and types against JAX, special points, and error messages."""

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy
import pytest

import functx.numpy as np
from functx import grad, hessian, jit, jvp, make_ir, vmap
from functx.core.errors import (
    ArgumentError,
    DTypeError,
    ImmutableArrayError,
    ShapeError,
    ValueRangeError,
)
from tests.numpy.agreement import same
from tests.numpy.tables import calls, check_at_once, check_types, check_values

ARITHMETIC = calls(
    """
    np.add(i,f)
    np.add(1,2.)
    np.add(u8,i8)
    np.add(bf,1.)
    np.add(bf,f)
    np.add(b,b)
    np.add(f,g)
    np.add(g,f)
    np.subtract(i,2)
    np.subtract(2,i)
    np.multiply(b,2)
    np.multiply(f,i)
    np.multiply(c,f)
    np.divide(i,i3)
    np.true_divide(f,2)
    np.divide(1,f)
    np.divide(1,2)
    np.divide(u8,bf)
    np.floor_divide(i,2)
    np.floor_divide(i,-2)
    np.floor_divide(i,i3)
    np.floor_divide(f,.3)
    np.floor_divide(f,g)
    np.floor_divide(odd,1)
    np.floor_divide(odd,2.)
    np.floor_divide(odd,odd2)
    np.floor_divide(7,2)
    np.floor_divide(u8,7)
    np.remainder(i,2)
    np.remainder(i,-2)
    np.remainder(i,i3)
    np.remainder(whole,parts)
    np.fmod(whole,parts)
    np.remainder(f,.3)
    np.remainder(f,g)
    np.remainder(odd,odd2)
    np.remainder(u8,7)
    np.mod(i,0)
    np.fmod(f,g)
    np.fmod(i,i3)
    np.fmod(u8,0)
    np.divmod(i,3)
    np.divmod(f,.7)
    np.divmod(7.,2)
    np.power(i,2)
    np.power(i,0)
    np.power(i,3)
    np.power(f,2)
    np.power(f,-2)
    np.power(f,0)
    np.power(f,1)
    np.power(g,.5)
    np.power(g,2.)
    np.power(g,-1.)
    np.power(f,3.)
    np.power(g,2.5)
    np.power(2,i)
    np.power(2,u)
    np.power(2.,f)
    np.power(g,i)
    np.power(i,2.)
    np.power(i3,i3)
    np.power(b,b)
    np.power(b,2)
    np.power(bf,2)
    np.power(bf,2.)
    np.power(c,2)
    np.power(c,2.5)
    np.power(2,3)
    np.power(2.,3)
    np.power(i,True)
    np.power(u8,2)
    np.float_power(i3,2)
    np.float_power(i3,-2)
    np.float_power(g,g)
    np.reciprocal(i3)
    np.reciprocal(f)
    np.reciprocal(2)
    np.square(f)
    np.square(b)
    np.square(i)
    np.square(c)
    np.square(3)
    np.positive(f)
    np.positive(2)
    np.negative(f)
    np.negative(i)
    np.negative(u8)
    np.negative(3)
    np.abs(f)
    np.absolute(c)
    np.abs(i)
    np.abs(b)
    np.abs(u8)
    np.fabs(i)
    np.fabs(odd)
    np.sign(f)
    np.sign(i)
    np.sign(c)
    np.sign(odd)
    np.sign(u8)
    """
)
FUNCTIONS = calls(
    """
    np.sqrt(g)
    np.sqrt(i3)
    np.sqrt(4)
    np.sqrt(c)
    np.sqrt(odd)
    np.cbrt(f)
    np.cbrt(i)
    np.exp(f)
    np.exp(i)
    np.exp(b)
    np.exp(1)
    np.exp(bf)
    np.exp(u8)
    np.exp(c)
    np.exp2(f)
    np.exp2(i)
    np.expm1(f)
    np.log(g)
    np.log(odd)
    np.log(i3)
    np.log2(g)
    np.log2(8)
    np.log10(g)
    np.log10(odd)
    np.log1p(g)
    np.logaddexp(f,g)
    np.logaddexp(odd,odd2)
    np.logaddexp(1,2)
    np.logaddexp(i,f)
    np.logaddexp2(f,g)
    np.logaddexp2(odd,odd2)
    np.sin(f)
    np.cos(i)
    np.tan(f)
    np.arcsin(f/2)
    np.arccos(f/2)
    np.arctan(odd)
    np.sinh(f)
    np.cosh(f)
    np.tanh(odd)
    np.arcsinh(f)
    np.arccosh(g+1)
    np.arctanh(f/3)
    np.acos(f/2)
    np.atan2(f,g)
    np.arctan2(i,i3)
    np.arctan2(odd,odd2)
    np.arctan2(1,2)
    np.deg2rad(f)
    np.deg2rad(i)
    np.rad2deg(f)
    np.degrees(2)
    np.radians(1.)
    np.hypot(f,g)
    np.hypot(odd,odd2)
    np.hypot(i,2)
    np.sinc(f)
    np.sinc(gaps)
    np.sinc(i)
    np.sinc(bf)
    np.heaviside(f,g)
    np.heaviside(i,1)
    np.heaviside(odd[:4],.5)
    """
)
ROUNDING = calls(
    """
    np.floor(f)
    np.ceil(odd)
    np.trunc(odd)
    np.trunc(i)
    np.floor(i)
    np.floor(b)
    np.ceil(3)
    np.floor(3.2)
    np.rint(odd)
    np.rint(i)
    np.rint(c)
    np.round(odd)
    np.round(f,1)
    np.round(f,2)
    np.round(f*100,-1)
    np.round(c,1)
    np.around(i)
    np.round(bf,1)
    np.round(2.567,2)
    np.maximum(f,g)
    np.maximum(odd,odd2)
    np.maximum(1,2.)
    np.maximum(c,1)
    np.maximum(i,f)
    np.maximum(b,b)
    np.minimum(f,.3)
    np.minimum(odd,odd2)
    np.fmax(odd,odd2)
    np.fmin(odd,odd2)
    np.fmax(i,2)
    np.fmax(f,g)
    np.clip(f,-1,1)
    np.clip(i,2)
    np.clip(i,None,2)
    np.clip(f,None,.5)
    np.clip(f,max=g)
    np.clip(f,min=-g,max=g)
    np.clip(i,1.5,2)
    np.clip(f,2,1)
    np.clip(odd,-1,numpy.nan)
    np.clip(odd,-1,1)
    np.clip(1,2,3)
    np.clip(u8,5,100)
    np.clip(bf,-1,1)
    """
)
LOGIC = calls(
    """
    np.equal(f,g)
    np.equal(i,1)
    np.equal(c,c)
    np.equal(i,1.5)
    np.not_equal(odd,odd2)
    np.less(f,g)
    np.less(c,c[::-1])
    np.less_equal(c,c)
    np.less(odd,odd2)
    np.greater(i,1)
    np.greater_equal(i,f)
    np.less_equal(b,b)
    np.logical_and(f,i)
    np.logical_or(b,0)
    np.logical_not(i)
    np.logical_not(b)
    np.logical_not(2.5)
    np.logical_and(c,1)
    np.bitwise_and(i,3)
    np.bitwise_or(u8,1)
    np.bitwise_xor(b,True)
    np.bitwise_not(u8)
    np.invert(i)
    np.bitwise_invert(b)
    np.left_shift(i,2)
    np.left_shift(u8,40)
    np.right_shift(i,1)
    np.right_shift(u8,2)
    np.right_shift(i,40)
    np.bitwise_count(u8)
    np.bitwise_count(i)
    np.isfinite(odd)
    np.isfinite(i)
    np.isfinite(c)
    np.isnan(odd2)
    np.isnan(c)
    np.isnan(2)
    np.isinf(odd)
    np.isinf(c)
    np.isposinf(odd)
    np.isneginf(odd)
    np.isposinf(i)
    np.iscomplex(c)
    np.isreal(c)
    np.isreal(f)
    np.iscomplex(i)
    np.signbit(odd)
    np.signbit(i)
    np.signbit(u8)
    np.signbit(bf)
    np.signbit(-1.5)
    np.copysign(odd,odd2)
    np.copysign(i,-1)
    np.copysign(f,-0.0)
    np.nextafter(f,g)
    np.nextafter(1.,2)
    np.ldexp(f,3)
    np.ldexp(f,i3)
    np.ldexp(f,-2)
    np.frexp(f)
    np.frexp(odd)
    np.frexp(8.)
    np.modf(f)
    np.modf(i)
    np.gcd(i,6)
    np.gcd(12,18)
    np.lcm(i,4)
    np.lcm(4,6)
    np.gcd(u8,3)
    np.real(c)
    np.real(f)
    np.imag(c)
    np.imag(f)
    np.imag(i)
    np.conj(c)
    np.conjugate(f)
    np.angle(c)
    np.angle(f)
    np.angle(odd)
    np.angle(c,deg=True)
    np.angle(i)
    np.nan_to_num(odd)
    np.nan_to_num(odd,nan=2.,posinf=3.,neginf=-4.)
    np.nan_to_num(i)
    np.nan_to_num(bf)
    np.nan_to_num(c)
    np.where(b,f,g)
    np.where(b,1,2)
    np.where(b,1.,2)
    np.where(i,f,0)
    np.where(True,i,2.)
    np.where(b,bf,2.)
    np.where(f>0,f,0.)
    np.where(b2,1.,g)
    np.where(b,c,0)
    np.select([b,b2],[1,2.],3)
    np.select([f>1,f>0],[f,f*2],default=-1)
    np.select([f>1,f>0],[f,i])
    np.piecewise(f,[f<0,f>=0],[-1,lambda x: x*2])
    np.piecewise(f,[f<0],[1,2])
    np.piecewise(f,[f<0],[lambda x: x*x])
    np.isclose(f,f+1e-7)
    np.isclose(odd,odd2)
    np.isclose(odd2,odd2,equal_nan=True)
    np.isclose(i,1)
    np.allclose(f,f)
    np.array_equal(f,f)
    np.array_equal(f,g)
    np.array_equal(odd2,odd2,equal_nan=True)
    np.array_equiv(g,[g,g])
    np.array_equiv(f,[1,2])
    np.maximum(none,1)
    np.pow(f,2)
    """
)


@pytest.mark.parametrize("table", [ARITHMETIC, FUNCTIONS, ROUNDING, LOGIC])
def test_values_and_types_are_those_of_jax(table):
    check_values(table)


@pytest.mark.parametrize("table", [ARITHMETIC, FUNCTIONS, ROUNDING, LOGIC])
def test_types_are_those_of_jax_with_64_bits(table, x64):
    # JAX's rint and angle of int32 are float64, and all its other such functions float32.
    check_types([text for text in table if text not in ("np.rint(i)", "np.angle(i)")])


def test_numpy_operands_give_numpy_results_outside_a_trace():
    check_at_once(
        calls(
            """
    np.add(f, g)
    np.add(i, 2.5)
    np.floor_divide(whole, parts)
    np.remainder(f, g)
    np.power(2, i3)
    np.positive(2)
    np.ceil(3)
    np.logaddexp(odd2, odd)
    np.sinc(gaps)
    np.clip(f, -1, 1)
    np.less(c, c[::-1])
    np.frexp(f)
    np.where(b, 1.0, g)
    np.select([f > 1, f > 0], [f, i])
    np.isclose(odd, odd2)
    np.nan_to_num(c)
    """
        )
    )


@pytest.mark.parametrize("odd", [np.maximum, np.floor_divide])
def test_jax_operands_give_jax_results_outside_a_trace(odd):
    assert isinstance(odd(jnp.ones(3), 2.0), jax.Array)


def at(f, *points):
    """The gradients of `f` at each point, a number or a tuple of them, compiled together."""
    points = [p if isinstance(p, tuple) else (p,) for p in points]
    argnums = tuple(range(len(points[0])))
    found = jit(lambda: [grad(f, argnums)(*p) for p in points])()
    return [float(x[0]) if len(x) == 1 else tuple(map(float, x)) for x in found]


inf, nan = math.inf, math.nan


def test_ties_share_the_derivative_and_bounds_stop_it():
    ties = [(1.0, 1.0), (2.0, 1.0), (0.0, 1.0)]
    assert at(np.maximum, *ties) == [(0.5, 0.5), (1.0, 0.0), (0.0, 1.0)]
    assert at(np.minimum, *ties) == [(0.5, 0.5), (0.0, 1.0), (1.0, 0.0)]
    assert at(np.fmax, (1.0, 1.0), (nan, 1.0), (1.0, nan)) == [(0.5, 0.5), (0.0, 1.0), (1.0, 0.0)]
    assert at(lambda x: np.clip(x, -1.0, 1.0), -1.0, 0.5, 1.0, 2.0) == [0.0, 1.0, 0.0, 0.0]
    assert at(lambda x: np.clip(x, 0.0), 0.0, 1.0, -1.0) == [0.0, 1.0, 0.0]
    assert at(lambda x: np.clip(x, max=0.0), 0.0, 1.0, -1.0) == [0.0, 0.0, 1.0]
    assert at(np.abs, 0.0, -2.0, 2.0) == [0.0, -1.0, 1.0]


def test_logaddexp_is_smooth_at_ties_and_at_minus_infinity():
    pairs = (0.0, 0.0), (-inf, -inf), (-inf, 1.0), (1000.0, 1000.0), (1e8, -1e8)
    assert at(np.logaddexp, *pairs) == [(0.5, 0.5), (0.5, 0.5), (0.0, 1.0), (0.5, 0.5), (1.0, 0.0)]
    assert at(lambda x: np.logaddexp(x, x), 0.0, -inf, inf) == [1.0, 1.0, 1.0]
    assert at(np.logaddexp2, *pairs) == at(np.logaddexp, *pairs)
    one = numpy.float32(1.0)
    second = hessian(np.logaddexp, (0, 1))(one, one)
    numpy.testing.assert_allclose(second, [[0.25, -0.25], [-0.25, 0.25]], rtol=1e-6)


def test_sinc_has_all_its_derivatives_at_zero():
    # sin(pi x) / (pi x) = 1 - (pi x)^2 / 6 + (pi x)^4 / 120 - ...
    f = np.sinc
    found = []
    for _ in range(5):
        found.append(float(f(0.0)))
        f = grad(f)
    expected = [1, 0, -(math.pi**2) / 3, 0, math.pi**4 / 5]
    numpy.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_hypot_is_flat_at_the_origin_and_does_not_overflow():
    found = at(np.hypot, (0.0, 0.0), (3.0, 4.0), (0.0, -2.0))
    numpy.testing.assert_allclose(found, [(0.0, 0.0), (0.6, 0.8), (0.0, -1.0)], rtol=1e-6)
    assert float(np.hypot(3e30, 4e30)) == pytest.approx(5e30)
    numpy.testing.assert_allclose(at(np.hypot, (3e30, 4e30)), [(0.6, 0.8)], rtol=1e-6)


def test_powers_have_the_derivatives_of_mathematics_at_zero():
    assert at(lambda x: x**0, 0.0, 2.0) == [0.0, 0.0]
    assert at(lambda x: x**1, 0.0) == [1.0]
    assert at(lambda x: x**2.0, 0.0, -3.0) == [0.0, -6.0]
    assert at(lambda x: x**0.5, 0.0, 4.0) == [inf, 0.25]
    assert at(np.power, (0.0, 0.0), (0.0, 2.0), (0.0, 1.0), (2.0, 0.0)) == [
        (0.0, 0.0),
        (0.0, 0.0),
        (1.0, 0.0),
        (0.0, pytest.approx(math.log(2.0))),
    ]
    assert at(lambda x: 2.0**x, 0.0) == [pytest.approx(math.log(2.0))]
    assert at(np.sqrt, 0.0) == [inf]


def test_rounding_is_flat_and_remainders_follow_their_quotient():
    assert at(lambda x: np.floor(x) + np.round(x) + np.trunc(x) + np.rint(x), 2.5, 2.0) == [
        0.0,
        0.0,
    ]
    assert at(lambda x: np.round(x, 2), 2.5) == [0.0]
    pairs = (7.0, 2.0), (-7.0, 2.0), (7.0, -2.0)
    assert at(np.floor_divide, *pairs) == [(0.0, 0.0)] * 3
    assert at(np.remainder, *pairs) == [(1.0, -3.0), (1.0, 4.0), (1.0, 4.0)]
    assert at(np.fmod, *pairs) == [(1.0, -3.0), (1.0, 3.0), (1.0, 3.0)]
    assert at(lambda x: np.modf(x)[0], 2.5, -2.5, 2.0) == [1.0, 1.0, 1.0]


def test_signs_and_scales_pass_derivatives_on():
    assert at(np.copysign, (2.0, -1.0), (0.0, -1.0), (-2.0, -1.0)) == [
        (-1.0, 0.0),
        (-1.0, 0.0),
        (1.0, 0.0),
    ]
    assert at(np.sign, 0.0, 2.0) == [0.0, 0.0]
    assert at(np.heaviside, (0.0, 0.5), (1.0, 0.5)) == [(0.0, 1.0), (0.0, 0.0)]
    assert at(lambda x: np.ldexp(x, 3), 5.0) == [8.0]
    assert at(lambda x: np.frexp(x)[0], 12.0) == [1 / 16]
    assert at(np.deg2rad, 1.0) == [pytest.approx(math.pi / 180)]


def test_elements_not_selected_do_not_affect_derivatives():
    assert at(lambda x: np.where(x > 0, np.log(x), 0.0), 0.0, 2.0) == [0.0, 0.5]
    assert at(lambda x: np.where(x > 0, np.sqrt(x), x), 0.0, -1.0) == [1.0, 1.0]
    assert at(lambda x: np.select([x > 0], [np.log(x)], 0.0), 0.0) == [0.0]
    assert at(lambda x: np.piecewise(x, [x > 0], [np.log, 0.0]), 0.0, 2.0) == [0.0, 0.5]
    assert at(lambda x: np.nan_to_num(x), nan, inf, 2.0) == [0.0, 0.0, 1.0]


def test_division_of_integers_by_zero_gives_zero():
    x, zero = numpy.array([5, -5, 0, -(2**31)], "int32"), numpy.zeros(4, "int32")
    for f in (np.floor_divide, np.remainder, np.fmod):
        assert f(x, zero).tolist() == [0, 0, 0, 0]
        assert jit(f)(x, zero).tolist() == [0, 0, 0, 0]
        assert jit(lambda x, f=f: f(x, 0))(x).tolist() == [0, 0, 0, 0]
    least, minus = numpy.array([-(2**31)], "int32"), numpy.array([-1], "int32")
    assert np.floor_divide(least, minus).tolist() == [-(2**31)]
    assert np.remainder(least, minus).tolist() == [0]


def test_integer_powers_wrap_for_every_exponent():
    known = [0, 1, 5, 31, 63, 64, 65, 100]
    for dtype in ("int8", "int32", "uint32", "int64"):
        limit = numpy.iinfo(dtype)
        bases = numpy.array([0, 1, 2, 3, 7, limit.max - 2, *([-1, -3] if limit.min else [])], dtype)
        exponents = numpy.array([*known, limit.max], dtype)[:, None]
        with jax.enable_x64(True):
            wanted = bases**exponents
            numpy.testing.assert_array_equal(jit(np.power)(bases, exponents), wanted)
            powers = jit(lambda x: [np.power(x, n) for n in known])(bases)
            numpy.testing.assert_array_equal(powers, wanted[:-1])
    inverses = jit(np.power)(numpy.array([0, 1, -1, -1, 2]), numpy.array([-1, -3, -3, -2, -1]))
    assert inverses.tolist() == [0, 1, -1, 1, 0]


def test_zeros_of_quotients_and_remainders_have_the_signs_of_numpy():
    values = [0.0, 1.0, 2.5, 3.0, 5.0, 0.1, 6e4, inf]
    x, y = numpy.meshgrid([nan, *values, *(-v for v in values)], [*values, *(-v for v in values)])
    for dtype in ("float16", "float32", "float64"):
        for name in ("remainder", "fmod", "floor_divide", "divmod"):
            args = x.astype(dtype), y.astype(dtype)
            with jax.enable_x64(), numpy.errstate(all="ignore"):
                found = numpy.asarray(jit(getattr(np, name))(*args))
                wanted = numpy.asarray(getattr(numpy, name)(*args))
            numpy.testing.assert_array_equal(found, wanted, err_msg=name)
            signs = numpy.signbit(found) == numpy.signbit(wanted)
            assert numpy.all(signs | numpy.isnan(wanted)), name
    assert at(np.remainder, (6.0, -2.0), (-6.0, 2.0)) == [(1.0, 3.0), (1.0, 3.0)]


def test_magnitudes_and_signs_of_complex_infinities_are_those_of_numpy():
    parts = [inf, -inf, nan, 1.0, -3.0]
    z = numpy.array([complex(a, b) for a in parts for b in parts], "complex64")
    with numpy.errstate(invalid="ignore"):
        numpy.testing.assert_allclose(jit(np.abs)(z), numpy.abs(z), 1e-6)
        numpy.testing.assert_allclose(jit(np.sign)(z), numpy.sign(z), 1e-6)
    slopes = vmap(grad(np.abs))(numpy.array([inf, complex(1, inf), -3 + 4j], "complex64"))
    numpy.testing.assert_allclose(slopes, [1, -1j, -0.6 - 0.8j], 1e-6)


def test_logaddexp_of_complex_numbers_is_the_principal_value():
    rng = numpy.random.default_rng(0)
    x, y = [rng.normal(size=50) * 3 + 1j * rng.uniform(-10, 10, 50) for _ in range(2)]
    x[:2], y[:2] = [-2.5 - 3.1j, 1 + 3j], [-4 + 2.9j, 1 + 3j]
    wanted = numpy.log(numpy.exp(x) + numpy.exp(y))
    numpy.testing.assert_allclose(jit(np.logaddexp)(x, y), wanted, 1e-5, 1e-5)


def test_division_of_floats_rounds_as_numpy_does():
    x = numpy.array([1.0, -1.0, 7.5, 1.0, -1.0, 0.0, 5.0, -5.0, inf])
    y = numpy.array([0.1, 0.1, -2.5, 0.0, 0.0, 0.0, inf, inf, 2.0])
    with jax.enable_x64(), numpy.errstate(all="ignore"):
        numpy.testing.assert_array_equal(np.floor_divide(x, y), x // y)
        numpy.testing.assert_array_equal(np.remainder(x, y), x % y)


def test_integers_to_powers():
    assert np.power(2, numpy.arange(31)).tolist() == [2**n for n in range(31)]
    assert np.power(numpy.array([2, 1, -1, 3], "int32"), numpy.array([-1, -2, -3, 0])).tolist() == [
        0,
        1,
        -1,
        1,
    ]
    with pytest.raises(ValueRangeError, match="power: integers must not be raised to negative"):
        np.power(numpy.array([1, 2]), -1)


def test_numbers_beyond_a_dtype_compare_truly_and_do_not_wrap():
    x = numpy.array([0, 100, 255], "uint8")
    assert np.less(x, 300).all() and np.greater(300, x).all() and np.not_equal(x, -1).all()
    assert not np.equal(x, 256).any() and np.greater_equal(x, -5).all()
    assert jit(lambda x: x < 300)(x).all()
    with pytest.raises(
        ValueRangeError, match="a Python int must fit the dtype that it gets; got 300"
    ):
        np.add(x, 300)


def test_rounding_tens_of_integers_is_exact():
    x = numpy.array([5, 15, 25, -15, 14, 16, -26, 2**31 - 5], "int32")
    assert np.round(x, -1).tolist() == [*numpy.round(x[:-1], -1).tolist(), 2147483640]
    assert np.round(x, -20).tolist() == [0] * 8


def test_modf_splits_infinities():
    x = numpy.array([inf, -inf, -0.0, 2.5, nan], "float32")
    for found, expected in zip(np.modf(x), numpy.modf(x), strict=True):
        numpy.testing.assert_array_equal(found, expected)


def test_ldexp_reaches_the_ends_of_the_range():
    x, n = numpy.float32([1.0, 1.5, 0.0, inf]), numpy.array([126, -126, 1000, -5], "int32")
    numpy.testing.assert_array_equal(np.ldexp(x, n), numpy.ldexp(x, n))
    assert float(np.ldexp(numpy.float32(2.0**-126), 252)) == 2.0**126
    small = numpy.array([1.0, 0.75], "float8_e4m3fn")
    for n in range(-9, 9):
        expected = numpy.ldexp(numpy.float32([1.0, 0.75]), n).astype(small.dtype)
        found = np.ldexp(small, n)
        numpy.testing.assert_array_equal(found.astype("float32"), expected.astype("float32"))


def test_frexp_of_halves_and_of_small_numbers():
    for dtype in ("float16", "bfloat16", "float8_e4m3fn", "float32"):
        limits = ml_dtypes.finfo(dtype)
        tiny, smallest, largest = limits.tiny, limits.smallest_subnormal, limits.max
        x = numpy.array([0.0, 1.0, -6.5, 1e-2, tiny, -tiny / 3, smallest, largest], dtype)
        expected = numpy.frexp(x.astype("float32"))
        for fun in (np.frexp, jit(np.frexp)):
            mantissa, exponent = fun(x)
            assert mantissa.dtype == dtype
            numpy.testing.assert_array_equal(mantissa.astype("float32"), expected[0])
            numpy.testing.assert_array_equal(exponent, expected[1])
    assert np.frexp(numpy.float32(inf)) == (inf, 0)


def test_quotients_rounded_down_have_no_derivative_at_a_divisor_of_0():
    for fun in (np.floor_divide, lambda x, y: np.divmod(x, y)[0]):
        assert "return 0.0:f32, 0.0:f32" in repr(make_ir(grad(fun, (0, 1)))(1.0, 0.0))


def test_mapped_and_complex_derivatives_agree_with_jax():
    z = numpy.complex64(0.7 - 0.4j)
    for name in ("exp", "log", "sqrt", "sin", "tanh", "square", "reciprocal", "log2", "sinc"):
        found = grad(getattr(np, name), holomorphic=True)(z)
        numpy.testing.assert_allclose(
            found, jax.jit(jax.grad(getattr(jnp, name), holomorphic=True))(z), 2e-5
        )
    for name in ("abs", "angle", "real", "imag"):
        found = grad(getattr(np, name))(z)
        numpy.testing.assert_allclose(found, jax.jit(jax.grad(getattr(jnp, name)))(z), 2e-5)


def test_programs_are_short():
    x = numpy.ones((3, 4), "float32")
    for f, count in [
        (lambda x: x + 1, 1),
        (lambda x: x**2, 1),
        (lambda x: np.where(x > 0, x, 0.0), 2),
        (lambda x: np.clip(x, 0, 1), 1),
        (lambda x: np.logaddexp(x, x), 1),
        (lambda x: x / 2, 1),
        (lambda x: np.log2(x), 2),
        (lambda x: x + numpy.ones(4, "float32"), 2),
    ]:
        assert len(make_ir(f)(x)) == count


def test_weakly_typed_numbers_stay_weak():
    def f(x, n):
        half = np.floor_divide(n, 2) * 0.5
        return half, x * half

    x = numpy.ones(3, jnp.bfloat16)
    half, product = jit(f)(x, 5)
    assert half.weak_type and half.dtype == "float32"
    assert product.dtype == jnp.bfloat16


def test_wrong_arguments_are_named():
    x = numpy.ones(3, "float32")
    with pytest.raises(ArgumentError, match="add: where= must come with out="):
        np.add(x, x, where=x > 0)
    with pytest.raises(ImmutableArrayError, match="the target must be a NumPy array"):
        np.round(x, 1, jnp.ones(3))
    with pytest.raises(ArgumentError, match="must be arrays or numbers; got str 'one'"):
        np.sin("one")
    with pytest.raises(ArgumentError, match="must be arrays or numbers"):
        np.add(x, None)
    with pytest.raises(ShapeError, match=r"shapes must broadcast.*\(3,\) and \(2,\)"):
        np.add(x, x[:2])
    with pytest.raises(DTypeError, match="sub: operands must be int or uint or float or complex"):
        np.subtract(x > 0, x > 0)
    with pytest.raises(DTypeError, match="neg"):
        np.negative(x > 0)
    with pytest.raises(DTypeError, match="and: operands must be"):
        np.bitwise_and(x, 1)
    with pytest.raises(DTypeError, match="isposinf: the array must not be complex"):
        np.isposinf(x * 1j)
    with pytest.raises(DTypeError, match="clip: the array must not be complex"):
        np.clip(x * 1j, 0, 1)
    with pytest.raises(ArgumentError, match="where: x and y must be given together"):
        np.where(x > 0, x)
    with pytest.raises(ValueRangeError, match="select: there must be as many choices"):
        np.select([x > 0], [])


def test_dtypes_and_numbers_by_name():
    assert np.float32(3).dtype == "float32" and np.bfloat16(numpy.ones(2)).dtype == jnp.bfloat16
    assert np.zeros(2, np.int8).dtype == np.int8 == numpy.int8
    assert np.issubdtype(np.bfloat16, np.floating) and not np.issubdtype(np.int8, np.inexact)
    assert np.isdtype(jnp.bfloat16, "real floating") and np.isdtype("int8", ("bool", np.int8))
    assert np.finfo(np.bfloat16).eps == 0.0078125 and np.iinfo(numpy.ones(2, "int8")).max == 127
    assert np.result_type(numpy.ones(2, "int8"), 1.0) == "float32"
    assert np.promote_types("int8", "uint8") == "int16" and np.can_cast("int8", "int16")
    assert (np.shape([[1, 2]]), np.ndim(3), np.size(numpy.ones((2, 3)), 0)) == ((1, 2), 0, 2)
    assert np.iscomplexobj(1j) and np.isrealobj(2) and np.isscalar(3.0) and not np.isscalar([1])
    assert np.iscomplexobj(np.complex64) and np.isrealobj(np.float32) and np.isrealobj(None)
    found = jit(lambda x: np.float16(x))(2.5)
    same(found, jnp.float16(2.5))
    with pytest.raises(ArgumentError, match="result_type: at least one"):
        np.result_type()


def test_pushing_forward_agrees_with_pulling_back():
    x, t = numpy.float32([0.3, -1.2, 2.0]), numpy.float32([1.0, 2.0, -1.0])
    for f in (np.logaddexp2, np.hypot, np.remainder, np.arctan2, np.maximum, np.copysign):

        def g(x, f=f):
            return f(x, x[::-1])

        pushed = jvp(g, (x,), (t,))[1]
        pulled = [grad(lambda x, i=i: g(x)[i])(x) @ t for i in range(3)]
        numpy.testing.assert_allclose(pushed, pulled, rtol=1e-5, atol=1e-6)


def test_every_array_is_an_ndarray():
    jit(lambda x: isinstance(x, np.ndarray) or pytest.fail())(1.0)
    assert isinstance(numpy.ones(2), np.ndarray) and isinstance(jnp.ones(2), np.ndarray)
    assert not isinstance(2.0, np.ndarray) and np.zeros(2, np.bool).dtype == bool


def test_sums_and_products_of_booleans_are_those_of_numpy_under_jit():
    # XLA takes the sum of two equal booleans for twice one of them, which is 0.
    def f(a, i):
        b, c = a == a, i == i
        return c + c, b + b, a + b, a * a, (c * a) + (a + a), a @ a, c.T @ b, c[0] @ a[1]

    a = numpy.random.RandomState(0).rand(4, 4) > 0.5
    i = a.astype(numpy.int8)
    found = [jit(f)(a, i), vmap(f)(a[None], i[None]), f(np.asarray(a), np.asarray(i))]
    for k, wanted in enumerate(f(a, i)):
        for each in found:
            assert each[k].reshape(wanted.shape).tolist() == wanted.tolist()


def test_extrema_of_complex_numbers_are_nan_where_either_is():
    nan = numpy.nan
    x, y = numpy.array([nan, 1, 1 + nan * 1j, 2]), numpy.array([1, nan * 1j, 2, 3])
    numpy.testing.assert_array_equal(np.maximum(x, y), numpy.maximum(x, y).astype("complex64"))
    numpy.testing.assert_array_equal(np.minimum(x, y), numpy.minimum(x, y).astype("complex64"))
    assert numpy.isnan(np.max(x[::-1])) and numpy.isnan(np.maximum.accumulate(x)).all()
