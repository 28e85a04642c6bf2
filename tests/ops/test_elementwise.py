"""Elementwise operations: values against JAX, and derivatives where formulas go wrong."""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy import special as scipy_special

import functx
from functx.core.errors import DTypeError, MissingRuleError, ShapeError
from functx.core.tracer import aval_of
from functx.core.tracing import trace
from functx.lowering.functx_call import jit_program
from functx.lowering.jit import jit
from functx.ops import (
    arithmetic,
    conversion,
    logic,
    powers,
    special,
    transcendental,
)
from functx.ops.reductions import reduce_sum
from functx.transforms.grad import grad
from functx.transforms.jvp import jvp
from functx.transforms.vmap import vmap

INF, NAN = np.inf, np.nan
NUMBERS = [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2, 2.5, -2.5, 0.9, -0.3, 10, -10, 88, 100, -100]
NUMBERS += [1e-3, 1e-5, 3.3e4, INF, -INF, NAN]
PAIRS = np.array([(x, y) for x in NUMBERS for y in NUMBERS]).T

ANY = {
    arithmetic: "neg sign abs",
    powers: "square reciprocal",
    transcendental: "exp exp2 expm1 log log1p sqrt rsqrt logistic "
    "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh",
}
REAL = {
    transcendental: "cbrt",
    special: "erf erfc erf_inv lgamma digamma",
    conversion: "floor ceil round is_finite",
}
COMPLEX = {conversion: "real imag conj"}
ANY_PAIR = {arithmetic: "add sub mul div max min", powers: "pow", logic: "eq ne"}
REAL_PAIR = {
    arithmetic: "rem nextafter",
    transcendental: "atan2",
    logic: "lt le gt ge",
}
INTEGER = {arithmetic: "neg sign", powers: "square", logic: "bitwise_not population_count clz"}
INTEGER_PAIR = {
    arithmetic: "add sub mul div rem max min",
    logic: "eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor shift_left shift_right_logical "
    "shift_right_arithmetic",
}


def named(*tables):
    return {
        n: getattr(m, n) for table in tables for m, names in table.items() for n in names.split()
    }


UNARY = {"f": named(ANY, REAL), "c": named(ANY, COMPLEX), "i": named(INTEGER), "u": named(INTEGER)}
BINARY = {"f": named(ANY_PAIR, REAL_PAIR), "c": named(ANY_PAIR)}
BINARY |= {"i": named(INTEGER_PAIR), "u": named(INTEGER_PAIR)}


def compute(functions, *args):
    """What each of `functions` makes of `args`, all in one program."""
    program, captured = trace(lambda *xs: [f(*xs) for f in functions], [aval_of(x) for x in args])
    return jit_program(program)(*args, *captured)


@lru_cache
def values(dtype, count):
    """By name, our output and JAX's."""
    kind = np.dtype(dtype).kind if dtype != "bfloat16" else "f"
    args = OPERANDS[kind](dtype)[:count]
    ours = (UNARY if count == 1 else BINARY)[kind]
    theirs = jax.jit(lambda *xs: [getattr(lax, name)(*xs) for name in ours])
    pairs = zip(compute(ours.values(), *args), theirs(*args), strict=True)
    return dict(zip(ours, pairs, strict=True))


def floats(dtype):
    return [jnp.asarray(PAIRS[0]).astype(dtype), jnp.asarray(PAIRS[1]).astype(dtype)]


def complex_numbers(dtype):
    z = (PAIRS[0].astype(np.complex128) + 0).copy()
    z.imag = PAIRS[1]
    return [jnp.asarray(z.astype(dtype)), jnp.asarray(z[::-1].astype(dtype))]


def integers(dtype):
    info = np.iinfo(dtype)
    some = [0, 1, 2, 3, 5, 7, 8, 31, 33, 100, info.max, info.max - 1, info.min]
    some += [-1, -2, -7] if info.min < 0 else []
    x, y = np.array([(x, y) for x in some for y in some], dtype).T
    return [jnp.asarray(x), jnp.asarray(y)]


OPERANDS = {"f": floats, "c": complex_numbers, "i": integers, "u": integers}


def check_values(name, dtype, count):
    ours, theirs = values(dtype, count)[name]
    if dtype == "complex64" and name in ("abs", "sign"):
        # A number with an infinite part is infinite, also where JAX finds nan.
        with np.errstate(all="ignore"):
            theirs = getattr(np, name)(np.asarray(complex_numbers(dtype)[0]))
    if dtype == "complex64" and name in ("max", "min"):
        # JAX gives a number where one operand is nan.
        theirs = getattr(np, f"{name}imum")(*map(np.asarray, complex_numbers(dtype)))
    if dtype == "complex64" and name in ("sinh", "cosh"):
        # JAX's lose digits near their zeros.
        z = np.asarray(complex_numbers(dtype)[0])
        inside = np.isfinite(z) & (np.abs(z.real) < 88)
        ours, theirs = np.asarray(ours)[inside], getattr(np, name)(z[inside])
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    if theirs.dtype.kind not in "fcV":
        np.testing.assert_array_equal(ours, theirs)
        return
    wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(np.asarray(ours, wide), np.asarray(theirs, wide), rtol=2e-6)


UNARY_CASES = [
    (dtype, name)
    for dtype in ("float32", "bfloat16", "complex64", "int8", "uint32")
    for name in UNARY["f" if dtype == "bfloat16" else np.dtype(dtype).kind]
]
BINARY_CASES = [
    (dtype, name)
    for dtype in ("float32", "bfloat16", "complex64", "int32", "uint8")
    for name in BINARY["f" if dtype == "bfloat16" else np.dtype(dtype).kind]
]


@pytest.mark.parametrize(("dtype", "name"), UNARY_CASES)
def test_unary_values_are_those_of_jax_at_special_points(dtype, name):
    check_values(name, dtype, 1)


@pytest.mark.parametrize(("dtype", "name"), BINARY_CASES)
def test_binary_values_are_those_of_jax_at_special_points(dtype, name):
    check_values(name, dtype, 2)


def test_integer_division_by_zero_gives_numbers():
    x, zero = np.array([7, -7, 0], np.int32), np.zeros(3, np.int32)
    quotient, remainder = compute([arithmetic.div, arithmetic.rem], x, zero)
    np.testing.assert_array_equal(quotient, [-1, -1, -1])
    np.testing.assert_array_equal(remainder, x)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "uint32"])
def test_integer_powers(dtype):
    x, y = np.meshgrid(np.arange(7), np.array([0, 1, 2, 3, 5, 9, 31]))
    x, y = x.astype(dtype), y.astype(dtype)
    power, fifth, zeroth = compute(
        [powers.pow, lambda x, _: powers.pow(x, 5), lambda x, _: powers.pow(x, 0)], x, y
    )
    np.testing.assert_array_equal(power, x**y)
    np.testing.assert_array_equal(fifth, x**5)
    np.testing.assert_array_equal(zeroth, np.ones_like(x))


@pytest.mark.parametrize("n", range(-4, 6))
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_a_python_int_exponent_multiplies(n, dtype):
    x = np.array([0.5, -2.0, 3.0], dtype) * (1 if dtype == "float32" else 1 + 0.5j)
    np.testing.assert_allclose(compute([lambda x: powers.pow(x, n)], x)[0], x**n, rtol=1e-5)


def test_floats_to_the_power_of_integers():
    x, y = np.array([0.0, -2.0, 3.0, NAN], np.float32), np.array([0, 3, -1, 0], np.int32)
    np.testing.assert_allclose(compute([powers.pow], x, y)[0], [1, -8, 1 / 3, 1], rtol=1e-6)


def test_round_to_even():
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 0.4, INF, NAN], np.float32)
    away, even = compute(
        [
            conversion.round,
            lambda x: conversion.round(x, conversion.RoundingMethod.TO_NEAREST_EVEN),
        ],
        x,
    )
    np.testing.assert_array_equal(away, [1, 2, 3, -1, -2, 0, INF, NAN])
    np.testing.assert_array_equal(even, np.round(x))


def test_clamp_passes_nan_on_from_every_operand():
    some = [0.0, 1.0, -1.0, 2.0, INF, -INF, NAN]
    x, low, high = np.array([(a, b, c) for a in some for b in some for c in some], np.float32).T
    want = np.minimum(np.maximum(x, low), high)
    np.testing.assert_array_equal(compute([logic.clamp], low, x, high)[0], want)


@pytest.mark.parametrize(
    "shapes", [((), (3,), (3,)), ((3,), (), (3,)), ((3,), (), ()), ((), (), ())]
)
def test_select_takes_scalars_for_arrays(shapes):
    shape = np.broadcast_shapes(*shapes)
    which = np.resize([True, False, True], shapes[0])
    on_true, on_false = np.ones(shapes[1], np.float32), np.zeros(shapes[2], np.float32)
    (out,) = compute([logic.select], which, on_true, on_false)
    assert out.shape == shape
    np.testing.assert_array_equal(out, np.where(which, on_true, on_false))


def test_select_n_of_several_cases():
    which = np.array([0, 1, 2, 5, -1], np.int32)
    cases = [np.full(5, n, np.float32) for n in (10, 20, 30)]
    (out,) = compute([logic.select_n], which, *cases)
    np.testing.assert_array_equal(out, lax.select_n(np.clip(which, 0, 2), *cases))


DTYPES = ["bool", "int8", "int32", "uint8", "uint32", "float16", "bfloat16"]
DTYPES += ["float32", "complex64", "int4", "uint4", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.filterwarnings("ignore:.*discards the imaginary part")
def test_conversions_between_all_dtypes_are_those_of_jax(source):
    numbers = [0, 1, 2, 3, 5, 7]
    if source not in ("int4", "uint4", "bool") and "float8" not in source:
        numbers += [100, 127]
    if source[0] in "fbc" and source != "bool" and "float8" not in source:
        numbers += [-0.0, -1, 0.3, 1.5, -2.7, 300, -300, 1e5, -1e5, 3e9, -3e9, 1e20, INF, -INF, NAN]
    elif source[0] == "i":
        numbers += [-1, -3]
    x = jnp.asarray(np.array(numbers)).astype(source)
    ours = compute([partial(conversion.convert_element_type, new_dtype=d) for d in DTYPES], x)
    theirs = jax.jit(lambda x: [lax.convert_element_type(x, d) for d in DTYPES])(x)
    for one, other in zip(ours, theirs, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(
            np.asarray(one, np.complex64), np.asarray(other, np.complex64)
        )


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz"])
def test_functions_of_floats_of_one_byte_are_those_of_float32_rounded(dtype):
    names = ["logistic", "tanh", "atan", "asinh", "erf", "cbrt", "log1p", "bessel_i0e"]
    functions = [functx.lax.erf if n == "erf" else getattr(functx.lax, n) for n in names]
    functions += [functx.nn.silu, functx.nn.mish, functx.nn.gelu, functx.nn.softplus]
    functions += [lambda x: transcendental.atan2(x, 2.0), lambda x: special.logaddexp(x, x)]
    functions += [functx.lax.reciprocal, lambda x: x**3, lambda x: x**-2]

    def values_and_slopes(x):
        slopes = [vmap(grad(f))(x) for f in functions]
        return [*[f(x) for f in functions], *slopes]

    x = np.arange(256, dtype=np.uint8).view(dtype)
    wanted = jit(values_and_slopes)(x.astype(np.float32))
    for found, exact in zip(jit(values_and_slopes)(x), wanted, strict=True):
        assert found.dtype == x.dtype
        rounded = exact.astype(dtype).astype(np.float32)
        np.testing.assert_allclose(found.astype(np.float32), rounded, rtol=0.13)


def test_a_complex_number_is_true_unless_it_is_zero():
    z = np.array([0, 1, 1j], np.complex64)
    (out,) = compute([lambda z: conversion.convert_element_type(z, bool)], z)
    np.testing.assert_array_equal(out, [False, True, True])


def test_conversion_drops_weakness_unless_asked():
    def check(x):
        assert x.weak_type
        assert not conversion.convert_element_type(x, np.float32).weak_type
        assert conversion.convert_element_type(x, np.int32, weak=True).weak_type
        return []

    trace(check, [aval_of(1.0)])


@pytest.mark.parametrize(
    ("source", "dtype"), [("float32", "int32"), ("float32", "uint8"), ("uint8", "uint32")]
)
def test_bits_read_as_another_dtype(source, dtype):
    x = np.arange(12).reshape(3, 4).astype(source)
    (out,) = compute([lambda x: conversion.bitcast_convert_type(x, dtype)], x)
    want = lax.bitcast_convert_type(x, dtype)
    assert out.dtype == want.dtype
    np.testing.assert_array_equal(out, want)


def test_reduced_precision_is_that_of_the_narrow_dtype():
    x = np.linspace(-3, 3, 50, dtype=np.float32)
    (out,) = compute([lambda x: conversion.reduce_precision(x, 8, 7)], x)
    np.testing.assert_array_equal(out, jnp.asarray(x).astype(jnp.bfloat16).astype(np.float32))


def slope(f, i=0):
    """The elementwise derivative of `f` in operand `i`."""
    return lambda *xs: grad(lambda *xs: reduce_sum(f(*xs)), i)(*xs)


def derivative(f, *xs, order=1):
    for _ in range(order):
        f = slope(f)
    return np.asarray(jit(f)(*[np.asarray(x) for x in xs]))


KINKS = {
    "abs": (arithmetic.abs, [0.0, -0.0, 2, -INF], [0, 0, 1, -1]),
    "sign": (arithmetic.sign, [0.0, 2.0], [0, 0]),
    "sqrt": (transcendental.sqrt, [0.0, 4.0, INF], [INF, 0.25, 0]),
    "rsqrt": (transcendental.rsqrt, [0.0, 4.0, INF], [-INF, -0.0625, 0]),
    "cbrt": (transcendental.cbrt, [0.0, 8.0, -8.0], [INF, 1 / 12, 1 / 12]),
    "log": (transcendental.log, [0.0, 2.0, INF], [INF, 0.5, 0]),
    "expm1": (transcendental.expm1, [-40.0, -INF], [np.exp(-40), 0]),
    "asin": (transcendental.asin, [1.0, -1.0, 0.0], [INF, INF, 1]),
    "acosh": (transcendental.acosh, [1.0, 1e200], [INF, 1e-200]),
    "atanh": (transcendental.atanh, [1.0, -1.0, 0.0], [INF, INF, 1]),
    "tanh": (transcendental.tanh, [0.0, INF, -INF], [1, 0, 0]),
    "logistic": (transcendental.logistic, [0.0, INF, -INF], [0.25, 0, 0]),
    "reciprocal": (powers.reciprocal, [0.0, 2.0], [-INF, -0.25]),
    "floor": (conversion.floor, [0.0, 0.5], [0, 0]),
    "max": (lambda x: arithmetic.max(x, 1.0), [0.0, 1.0, 2.0, NAN], [0, 0.5, 1, 0]),
    "min": (lambda x: arithmetic.min(x, 1.0), [0.0, 1.0, 2.0], [1, 0.5, 0]),
    "clamp": (lambda x: logic.clamp(0.0, x, 1.0), [-1.0, 0, 0.5, 1, 2], [0, 0, 1, 0, 0]),
    "clamp low": (lambda x: logic.clamp(x, 0.5, 1.0), [0.0, 0.5, 0.7, 2], [0, 0, 1, 0]),
    "clamp high": (lambda x: logic.clamp(1.0, 0.5, x), [0.0, 1.0, 2.0], [1, 0, 0]),
    "x**0": (lambda x: powers.pow(x, 0), [0.0, 2.0], [0, 0]),
    "x**0.": (lambda x: powers.pow(x, 0.0), [0.0, 2.0], [0, 0]),
    "x**1.": (lambda x: powers.pow(x, 1.0), [0.0, -2.0], [1, 1]),
    "x**2.": (lambda x: powers.pow(x, 2.0), [0.0, -3.0], [0, -6]),
    "0**x": (lambda x: powers.pow(0.0, x), [0.0, 1.0, 2.5], [0, 0, 0]),
    "rem x": (lambda x: arithmetic.rem(x, 3.0), [7.0, -7.0, 0.5], [1, 1, 1]),
    "rem y": (lambda y: arithmetic.rem(7.0, y), [3.0, -3.0, 100.0, INF], [-2, 2, 0, 0]),
    "atan2": (lambda x: transcendental.atan2(x, 0.0), [0.0, 1.0], [0, 0]),
    "select": (
        lambda x: logic.select(logic.gt(x, 0), transcendental.log(x), 0.0),
        [2.0],
        [0.5],
    ),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", KINKS)
def test_derivatives_at_special_points(name):
    f, points, want = KINKS[name]
    np.testing.assert_allclose(derivative(f, np.array(points, float)), want, rtol=1e-13)


SECOND = {
    "tanh": (transcendental.tanh, lambda x: -2 * np.sinh(x) / np.cosh(x) ** 3),
    "logistic": (transcendental.logistic, lambda x: -np.sinh(x / 2) / (4 * np.cosh(x / 2) ** 3)),
    "expm1": (transcendental.expm1, np.exp),
    "sqrt": (lambda x: transcendental.sqrt(powers.square(x)), lambda x: 0 * x),
    "rsqrt": (transcendental.rsqrt, lambda x: np.where(x > 0, 0.75 * abs(x) ** -2.5, np.nan)),
    "abs": (arithmetic.abs, lambda x: 0 * x),
    "x**3": (lambda x: powers.pow(x, 3), lambda x: 6 * x),
    "x**-1": (powers.reciprocal, lambda x: 2 / x**3),
    "x**3.": (lambda x: powers.pow(x, 3.0), lambda x: 6 * x),
}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_keep_their_relative_accuracy(name):
    f, want = SECOND[name]
    x = np.array([-40.0, -20, -3, -1, 1, 2, 3, 20, 40])
    found = derivative(f, x, order=2)
    # tanh computes its slope from its value, which tells the slope to an absolute accuracy.
    atol = {"sqrt": 1e-15, "tanh": 1e-15}.get(name, 0)
    np.testing.assert_allclose(found, want(x), rtol=1e-12, atol=atol)


@pytest.mark.usefixtures("x64")
def test_tanh_has_derivatives_of_every_order_at_zero():
    coefficients = [1, 0, -2, 0, 16]
    for order, want in enumerate(coefficients, 1):
        assert derivative(transcendental.tanh, 0.0, order=order) == pytest.approx(want, abs=1e-12)


def test_saturated_slopes_are_not_lost_in_single_precision():
    x = np.array([12.0, 25.0], np.float32)
    np.testing.assert_allclose(
        derivative(transcendental.logistic, x), np.exp(-x.astype(float)), rtol=2e-5
    )


@pytest.mark.usefixtures("x64")
def test_mixed_partials_of_a_power_are_right_where_the_exponent_is_zero():
    x, y = np.array([0.5, 2.0, 3.0]), np.array([0.0, 0.0, 1.0])
    want = x ** (y - 1) * (1 + y * np.log(x))
    one = jit(slope(slope(powers.pow, 0), 1))(x, y)
    other = jit(slope(slope(powers.pow, 1), 0))(x, y)
    np.testing.assert_allclose(one, want, rtol=1e-14)
    np.testing.assert_allclose(other, want, rtol=1e-14)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("order", range(1, 5))
def test_digamma_has_derivatives_of_every_order(order):
    x = np.array([0.1, 0.5, 1.0, 3.0, 50.0])
    found = derivative(special.digamma, x, order=order)
    np.testing.assert_allclose(found, scipy_special.polygamma(order, x), rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_digamma_has_a_derivative_far_left_of_zero():
    x = np.array([-0.5, -1.3, -20.5])
    step = 1e-5
    want = (scipy_special.digamma(x + step) - scipy_special.digamma(x - step)) / (2 * step)
    np.testing.assert_allclose(derivative(special.digamma, x), want, rtol=1e-7)


def test_the_order_of_polygamma_is_not_differentiated():
    with pytest.raises(MissingRuleError, match="order"):
        grad(lambda m: special.polygamma(m, 2.0))(1.0)


COMPLEX_FUNCTIONS = [
    powers.square,
    arithmetic.sign,
    arithmetic.abs,
    conversion.conj,
    conversion.real,
    conversion.imag,
    transcendental.exp,
    transcendental.log,
    transcendental.sqrt,
    transcendental.logistic,
    transcendental.sin,
    transcendental.tanh,
    transcendental.asin,
    transcendental.acosh,
    transcendental.atan,
    lambda z: powers.pow(z, 3),
    lambda z: powers.pow(z, 1.5),
    lambda z: conversion.complex(conversion.real(z), arithmetic.abs(z)),
]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("f", COMPLEX_FUNCTIONS)
def test_complex_gradients_match_differences(f):
    points = np.array([0.3 + 0.4j, -1.5 + 1.0j, 0.7 - 2.0j])

    def loss(z):
        out = f(z)
        if out.dtype.kind == "c":
            out = arithmetic.add(conversion.real(out), arithmetic.mul(conversion.imag(out), 0.7))
        return reduce_sum(out)

    found = jit(grad(loss))(points)
    values, step = jit(vmap(lambda z: loss(z))), 1e-6
    along = [(values(points + d) - values(points - d)) / (2 * step) for d in (step, 1j * step)]
    # With real losses a gradient is d/dx - i d/dy, as in JAX.
    np.testing.assert_allclose(found, along[0] - 1j * along[1], rtol=1e-7, atol=1e-8)


@pytest.mark.usefixtures("x64")
def test_the_angle_of_a_complex_number_turns_twice_differentiably():
    def loss(z):
        return conversion.real(arithmetic.mul(arithmetic.sign(z), 2.0 - 1.0j))

    def second(x):
        return loss(conversion.complex(x, 0.5))

    x, step = np.array([0.3, -1.2, 2.0]), 1e-5
    first = jit(slope(second))
    want = (first(x + step) - first(x - step)) / (2 * step)
    np.testing.assert_allclose(derivative(second, x, order=2), want, rtol=1e-8)


def test_complex_zero_has_gradient_zero_under_abs_and_sign():
    z = np.zeros(2, np.complex64)
    np.testing.assert_array_equal(jit(slope(arithmetic.abs))(z), 0)
    turned = slope(lambda z: conversion.real(arithmetic.sign(z)))
    np.testing.assert_array_equal(jit(turned)(z), 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("f", [transcendental.tanh, transcendental.logistic, arithmetic.abs])
def test_gradients_keep_the_dtype(f, dtype):
    x = jnp.asarray([0.5, -1.0]).astype(dtype)
    assert jit(slope(f))(x).dtype == dtype


ERRORS = [
    (DTypeError, lambda: logic.lt(np.zeros(2, np.complex64), np.zeros(2, np.complex64))),
    (DTypeError, lambda: arithmetic.add(np.zeros(2, np.float32), np.zeros(2, np.int32))),
    (DTypeError, lambda: transcendental.exp(np.zeros(2, np.int32))),
    (DTypeError, lambda: logic.bitwise_and(np.zeros(2, np.float32), np.zeros(2, np.float32))),
    (DTypeError, lambda: powers.integer_pow(np.zeros(2, np.int32), -1)),
    (DTypeError, lambda: powers.pow(np.zeros(2, np.int8), np.zeros(2, np.int32))),
    (DTypeError, lambda: logic.select(np.zeros(2, np.float32), 1.0, np.zeros(2, np.float32))),
    (DTypeError, lambda: conversion.real(np.zeros(2, np.float32))),
    (DTypeError, lambda: conversion.complex(np.zeros(2, np.float16), np.zeros(2, np.float16))),
    (DTypeError, lambda: conversion.bitcast_convert_type(np.zeros(2, "complex64"), "int8")),
    (DTypeError, lambda: conversion.floor(np.zeros(2, np.complex64))),
    (ShapeError, lambda: arithmetic.max(np.zeros(2, np.float32), np.zeros(3, np.float32))),
    (ShapeError, lambda: logic.clamp(np.zeros(2, np.float32), np.zeros(3, np.float32), 1.0)),
    (ShapeError, lambda: conversion.bitcast_convert_type(np.zeros(3, np.uint8), "int32")),
]


@pytest.mark.parametrize(("error", "call"), ERRORS)
def test_bad_operands_are_refused_by_name(error, call):
    with pytest.raises(error, match=r"^[a-z_]+: .*; got "):
        call()


def test_derivatives_on_branch_cuts_are_those_of_the_side_that_the_value_is_of():
    # A real number that becomes complex has the imaginary part +0.
    right, up = (
        np.array([2.0, -2.0, 0.5, -0.5], np.complex64),
        np.array([2j, complex(0, -2)], np.complex64),
    )
    table = [
        (transcendental.asin, right[:2], 1.0, [1j / 3**0.5, -1j / 3**0.5]),
        (transcendental.acos, right[:2], 1.0, [-1j / 3**0.5, 1j / 3**0.5]),
        (transcendental.acosh, right[1:], 1.0, [-(3**-0.5), -2j / 3**0.5, -2j / 3**0.5]),
        (transcendental.asinh, up, 1j, [3**-0.5, -(3**-0.5)]),
    ]

    def tangents(points):
        rows = zip(table, points, strict=True)
        return [jvp(f, (x,), (np.full(x.shape, t, x.dtype),))[1] for (f, _, t, _), x in rows]

    found = jit(tangents)([x for _, x, *_ in table])
    for got, (f, *_, wanted) in zip(found, table, strict=True):
        np.testing.assert_allclose(got, wanted, 1e-5, 1e-6, err_msg=f.__name__)
