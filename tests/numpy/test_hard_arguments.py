"""Calls with rare arguments: values against NumPy, dtypes against JAX."""

import warnings

import jax
import jax.numpy
import numpy
import pytest

import functx
import functx.numpy as np
from functx import grad, jit, vmap
from functx.core.errors import (
    ArgumentError,
    AxisError,
    DTypeError,
    FunctxError,
    ShapeError,
    ValueRangeError,
)

NAMES = {
    "numpy": numpy,
    "f": lambda *x: numpy.array(x, "float32"),
    "h": lambda *x: numpy.array(x, "float16"),
    "i": lambda *x: numpy.array(x, "int32"),
    "c": lambda *x: numpy.array(x, "complex64"),
    "b": lambda *x: numpy.array(x, "bool"),
    "cube": numpy.arange(36, dtype="float32").reshape(3, 4, 3) ** 1.5,
    "table": numpy.arange(6, dtype="float32").reshape(2, 3),
    "nan": numpy.nan,
    "inf": numpy.inf,
}
CALLS = """
np.trapezoid(cube, dx=cube[:, 0], axis=1) | np.trapezoid(cube, x=f(1, 3, 7), axis=0) | np.trapezoid(cube, x=2 * cube, axis=1)
np.trapezoid(table, x=f(1, 3)[:, None], axis=0) | np.trapezoid(f()) | np.diff(f(0, 1, 2), n=0, prepend=9.0)
np.setxor1d(f(1, nan, 2), f(nan, 2)) | np.setxor1d(i(1, 1, 2, 3), i(2, 4), assume_unique=True)
np.setxor1d(i(1, 1, 2, 3), i(4, 2, 4)) | np.setxor1d(f(), f(1)) | np.setxor1d(f(2, 1), f())
np.setdiff1d(i(2049, 5), h(2048)) | np.setdiff1d(f(), f(1)) | np.setdiff1d(i(3, 3, 1), i())
np.isin(i(16777217, 2147483647), f(16777216.0, 2147483648.0)) | np.isin(f(16777216.0, 5), i(16777217, 5))
np.intersect1d(i(), i(1, 2)) | np.intersect1d(i(1, 2), i()) | np.intersect1d(i(1, 2), i(), return_indices=True)
np.unique(c(nan, nan * 1j, 1)).shape | np.unique(c(nan, nan * 1j, 1), equal_nan=False).shape | np.unique(c(2, 1j, 1, 1j))
np.union1d(f(), f()) | np.compress(b(), f()) | np.extract(f(), f()) | np.mgrid[()] | np.ogrid[()]
np.permute_dims(table, numpy.array([1, 0])) | np.transpose(table, numpy.array([1, 0])) | np.zeros(numpy.array(2))
np.ones(numpy.array([2, 1])) | np.sum(table, axis=numpy.int64(1)) | np.sum(table, axis=numpy.array(1))
np.squeeze(table[None], numpy.array(0)) | np.expand_dims(table, numpy.int8(1)) | np.reshape(table, numpy.array([3, 2]))
np.reshape(table, numpy.array(6)) | np.repeat(table, numpy.array(2), axis=numpy.int8(1)) | np.tile(table, numpy.array([1, 2]))
np.split(table, numpy.array([1]), axis=1)[1] | np.split(table, numpy.int64(3), axis=numpy.int64(1))[1]
np.array_split(table, numpy.array(2), 1)[1] | np.roll(table, numpy.array(1)) | np.flip(table, numpy.int64(0))
np.moveaxis(cube, numpy.array([0, 1]), numpy.array([1, 0])) | np.rot90(table, numpy.int64(1)) | np.eye(numpy.int64(2))
np.full(numpy.int8(2), 1.5) | np.broadcast_to(f(1, 2, 3), numpy.array([2, 3])) | np.cumsum(table, axis=numpy.array(1))
np.take(f(0, 1), i(5), fill_value=7.0) | np.insert(f(0, 1, 2), [1, 1], 9.0) | np.insert(f(0, 1), [0, 1], [[5, 6]])
np.intersect1d(i(2, 1, 1), i(5, 1), assume_unique=True) | np.bincount(b()) | np.bincount(numpy.array([0, 200, 3], "uint8"))
np.cumsum(table, dtype="bool") | np.prod(f(0.5, 3), dtype="bool") | np.log10(c(0, inf, 100)) | np.log2(c(0, 8j))
np.pad(numpy.array([[True, False], [False, False]]), 1, "mean") | np.trapezoid(h(1.5, -2, 60000, 0.1))
np.round(c(complex(inf, 1.26), complex(nan, -inf)), 1) | np.round(f(-inf, 1.26, nan), 2) | np.linspace(0, 1, 0, retstep=True)
np.nanvar(f(1, nan, 4), correction=1) | np.nanstd(table, axis=0, correction=1) | np.linalg.vector_norm(table, ord=0)
np.linalg.vector_norm(cube, axis=(0, 2), ord=3) | np.linalg.vector_norm(table, axis=1, keepdims=True, ord=inf)
np.array(numpy.ma.array([1, 2])) | np.sum(numpy.ma.array([1.5, 2], mask=[False, False])) | np.repeat(f(2)[0], 2, axis=0)
np.ix_(numpy.zeros(0, "int8")) | np.histogram(table, 3, weights=table)[0] | np.array(numpy.int64(300), "uint8")
numpy.abs(np.linalg.svd(numpy.diag(f(1, 0)), hermitian=True)[2]) | np.ptp(table, axis=0) | np.var(f(1, 2), correction=1) | np.sum(f(1, 2), where=b(1, 0))
"""
BEYOND_BOUNDS = "np.ravel_multi_index((i(0, 1), i(1, 5)), (2, 3), mode='ignore')"
OUTSIDE_NUMPY = {"np.take(f(0, 1), i(5), fill_value=7.0)": "jax", BEYOND_BOUNDS: "jax"}


def value_of(text, module):
    scope = {**NAMES, "np": module}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eval(text, scope)


def arrays_of(out):
    if isinstance(out, (tuple, list)):
        return [x for y in out for x in arrays_of(y)]
    return [numpy.asarray(out)]


def dtypes_by_jax(text):
    """The dtypes of the results in JAX, or None where it refuses the arguments."""

    def leaves():
        return jax.tree.leaves(value_of(text, jax.numpy))

    try:
        # Types alone compile nothing.
        return [x.dtype for x in jax.eval_shape(leaves)]
    except jax.errors.JAXTypeError:
        # The values of the operands decide about the shape.
        return [x.dtype for x in arrays_of(leaves())]
    except Exception:
        return None


@pytest.mark.parametrize("line", [*CALLS.strip().splitlines(), BEYOND_BOUNDS])
def test_values_are_those_of_numpy_and_dtypes_those_of_jax(line):
    for text in line.split(" | "):
        oracle = jax.numpy if text in OUTSIDE_NUMPY else numpy
        found = arrays_of(value_of(text, np))
        wanted = arrays_of(value_of(text, oracle))
        assert len(found) == len(wanted), text
        for x, y in zip(found, wanted, strict=True):
            assert x.shape == y.shape, text
            numpy.testing.assert_allclose(x, y, 2e-6, 1e-6, err_msg=text)
        dtypes = dtypes_by_jax(text)
        assert dtypes is None or [x.dtype for x in found] == dtypes or ".shape" in text, text


REFUSED = {
    "np.sum(f(1, 2), where=f(0.5, 1))": (DTypeError, "where= must be boolean"),
    "np.mean(f(1, 2), where=i(1, 0))": (DTypeError, "where= must be boolean"),
    "np.any(i(1, 2), where=i(1, 0))": (DTypeError, "where= must be boolean"),
    "np.var(f(1, 2), ddof=1, correction=0)": (ArgumentError, "ddof and correction are one thing"),
    "np.std(f(1, 2), ddof=1, correction=2)": (ArgumentError, "ddof and correction are one thing"),
    "np.fft.fft(f(1, 2), n=0)": (ValueRangeError, "must be positive"),
    "np.sum(table, axis=1.0)": (ArgumentError, "axis must be an integer"),
    "np.sum(table, axis=numpy.array([1, 1]))": (AxisError, "each axis once"),
    "np.zeros(numpy.array(2.5))": (ArgumentError, "made of integers"),
    "np.sin(numpy.ma.array([1, 2], mask=[True, False]))": (
        ArgumentError,
        r"Pass x.filled\(value\)",
    ),
    "np.tril_indices_from(f(1))": (ShapeError, "must have two dimensions; got f32"),
    "np.var(c(1, 2j), dtype='float32')": (DTypeError, "complex elements dtype must be complex"),
    "np.nanstd(c(1, 2j), where=b(1, 0), dtype='float32')": (DTypeError, "dtype must be complex"),
    "np.interp(1j, c(0, 2j), f(0, 1))": (DTypeError, "x and xp must be real; got c64"),
    "np.interp(1, f(0, 2), f(0, 1), period=f(1))": (ShapeError, "period must be a number"),
    "np.cov(f(2, 3), f(4))": (ShapeError, "m and y must have as many observations; got f32"),
    "np.tril_indices('a')": (ArgumentError, "n must be an integer.*got 'a'"),
    "np.triu_indices(3, 0.5)": (ArgumentError, "k must be an integer.*got 0.5"),
    "np.diag_indices(2.5)": (ArgumentError, "n must be an integer.*got 2.5"),
    "np.einsum('ii', table[:, :1])": (
        ShapeError,
        "twice in one term must have one size; got 2 and 1",
    ),
    "np.trim_zeros(f(0, 1), i(1))": (ValueRangeError, 'trim must be made of "f" and "b"'),
    "np.array(2**40)": (
        ValueRangeError,
        "must fit the dtype that it gets; got 1099511627776 for int32",
    ),
    "np.array([1, 2**70])": (ValueRangeError, "the numbers must fit int32"),
    "np.full(2, -1, 'uint8')": (ValueRangeError, "got -1 for uint8"),
    "np.full_like(numpy.zeros(2, 'uint8'), 300)": (ValueRangeError, "got 300 for uint8"),
    "np.uint8(300)": (ValueRangeError, "got 300 for uint8"),
    "np.int8(-1e9)": (ValueRangeError, "got -1000000000 for int8"),
    "np.int32(nan)": (DTypeError, "got nan"),
    "np.max(numpy.zeros(2, 'uint8'), initial=-1)": (ValueRangeError, "got -1 for uint8"),
    "functx.lax.max(numpy.zeros(2, 'uint8'), -1)": (ValueRangeError, "got -1 for uint8"),
    "functx.lax.dynamic_slice(table, (0,), (1, 1))": (IndexError, "one index a dimension; got 1"),
    'jit(lambda x: x.view("complex64"))(table)': (ShapeError, "whole complex numbers"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_errors_name_the_wrong_argument(text):
    error, message = REFUSED[text]
    with pytest.raises(error, match=message) as found:
        eval(text, {**NAMES, "np": np, "jit": jit, "functx": functx})
    assert isinstance(found.value, FunctxError)


def test_result_type_takes_dtypes_of_functx_and_follows_the_switch():
    assert np.result_type(np.int8, np.int64) == "int32"
    assert np.result_type(np.int8, int) == "int8" and np.result_type("float16", float) == "float16"
    with jax.enable_x64(True):
        assert np.result_type(np.complex64, np.float64) == "complex128"
        assert np.result_type(numpy.dtype("int64"), numpy.dtype("int32")) == "int64"
    assert (np.float32.__name__, np.bfloat16.__name__) == ("float32", "bfloat16")


TRACED_INSERTS = [
    (numpy.arange(4.0), 1, 9.0, None),
    (numpy.arange(4.0), -1, [5.0, 6.0], 0),
    (numpy.arange(4.0), [3, 0, 0], [5.0, 6.0, 7.0], 0),
    (numpy.arange(6.0).reshape(2, 3), 1, [7.0, 8.0], 1),
    (numpy.arange(6.0).reshape(2, 3), [0, 2], [[1.0, 2.0], [3.0, 4.0]], 1),
    (numpy.arange(6.0).reshape(2, 3), [1, 1], 9.0, 0),
]


def test_shapes_and_dtypes_are_those_that_a_struct_describes():
    struct = jax.ShapeDtypeStruct((2, 3), numpy.complex64)
    assert (np.shape(struct), np.ndim(struct), np.size(struct)) == ((2, 3), 2, 6)
    assert np.result_type(struct, 1.0) == functx.lax.dtype(struct) == "complex64"
    assert np.iscomplexobj(struct) and not np.isrealobj(struct)
    assert functx.eval_shape(lambda x: (x[0], struct), struct)[1] == struct
    structs = [jax.ShapeDtypeStruct((2,), "int64"), struct.update(weak_type=True)]
    assert functx.eval_shape(lambda: structs) == jax.eval_shape(lambda: structs)
    with pytest.raises(ArgumentError, match="must return arrays, numbers"):
        functx.jit(lambda: struct)()


def test_the_other_name_of_a_64_bit_integer_is_the_same_dtype():
    x = numpy.array([3, 1], numpy.ulonglong)
    with jax.enable_x64():
        assert [i.tolist() for i in np.unravel_index(x, (2, 2))] == [[1, 0], [1, 1]]
        assert functx.make_ir(lambda x: x)(x).in_avals[0].dtype.type is numpy.uint64


def test_values_are_inserted_at_traced_positions():
    places = [numpy.array(row[1]) for row in TRACED_INSERTS]
    found = jit(
        lambda places: [
            np.insert(x, at, values, axis)
            for at, (x, _, values, axis) in zip(places, TRACED_INSERTS, strict=True)
        ]
    )(places)
    for out, (x, at, values, axis) in zip(found, TRACED_INSERTS, strict=True):
        numpy.testing.assert_array_equal(out, numpy.insert(x, at, values, axis))


def test_a_function_is_applied_again_wherever_an_index_repeats():
    x = numpy.array([1, 2, 3], "float32")
    for places in ([1, 1], [0, 2], [0, 2, 2, 0, 2]):
        at = numpy.array(places)
        wanted = jax.numpy.asarray(x).at[at].apply(lambda v: v * v + 1)
        for known in (True, False):
            f = lambda x, i, at=at, known=known: (  # noqa: E731
                x.at[at if known else i].apply(lambda v: v * v + 1)
            )
            numpy.testing.assert_array_equal(jit(f)(x, at), wanted)
    slope = grad(lambda x: x.at[numpy.array([1, 1, 0])].apply(lambda v: v * v + 1).sum())(x)
    assert slope.tolist() == [2.0, 40.0, 1.0]
    dropped = jit(lambda x: x.at[numpy.array([5, 1, 1])].apply(lambda v: v + 1, mode="drop"))(x)
    assert dropped.tolist() == [1.0, 4.0, 3.0]


def test_complex_numbers_are_views_of_their_parts_and_back():
    def write(x):
        parts = x.view("float32")
        parts[0, 1] = 50.0
        parts[1] *= 2.0
        return parts + 0

    def back(x):
        whole = x.view("complex64")
        whole[..., 0] *= 1j
        return whole + 0

    z = (numpy.arange(6) + 1j * numpy.arange(6, 12)).astype("complex64").reshape(2, 3)
    x = numpy.arange(8, dtype="float32").reshape(2, 4)
    for f, given in ((write, z), (back, x)):
        ours, theirs = given.copy(), given.copy()
        numpy.testing.assert_array_equal(jit(f)(ours), f(theirs))
        numpy.testing.assert_array_equal(ours, theirs)
    numpy.testing.assert_array_equal(vmap(lambda x: x.view("float32"))(z), z.view("float32"))
    numpy.testing.assert_array_equal(jit(lambda x: x.view("int32"))(z), z.view("int32"))
    loss = lambda n: lambda x: n.abs(x.view("complex64")).sum()  # noqa: E731
    numpy.testing.assert_allclose(grad(loss(np))(x), jax.jit(jax.grad(loss(jax.numpy)))(x), 1e-6)


def test_a_transform_of_nothing_is_nothing():
    for shape, axis in (((0,), -1), ((0, 3), 0), ((0, 3), 1)):
        x = numpy.zeros(shape, "complex64")
        for name in ("fft", "ifft"):
            found = getattr(np.fft, name)(x, axis=axis)
            assert (found.shape, found.dtype) == (shape, "complex64")
            assert functx.jit(getattr(np.fft, name))(x[:, None] if x.ndim == 1 else x).size == 0


def test_sets_of_nothing_have_the_size_that_is_asked_for():
    nothing = numpy.zeros(0, "int8")
    found = jit(
        lambda x: [
            *(np.setdiff1d(x, x, size=2), np.setxor1d(x, x, size=2)),
            *np.intersect1d(x, x, size=2, return_indices=True),
            np.compress(x > 0, x, size=2, fill_value=7),
        ]
    )(nothing)
    assert [x.tolist() for x in found] == [[0, 0]] * 5 + [[7, 7]]


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8"])
def test_divisors_of_the_lowest_and_the_highest_integer_are_found(dtype):
    low, high = numpy.iinfo(dtype).min, numpy.iinfo(dtype).max
    x, y = numpy.meshgrid(numpy.array([low, low + 1, high, 0, 1, 6, 64], dtype), [low, high, 96, 0])
    x, y = x.ravel(), y.astype(dtype).ravel()
    assert jit(np.gcd)(x, y).tolist() == numpy.gcd(x, y).tolist()
    assert jit(np.lcm)(x, y).tolist() == numpy.lcm(x, y).tolist()


def test_a_number_too_large_for_its_decimals_stays():
    assert np.round(numpy.float32(3e38), 2) == numpy.float32(3e38)


def test_unsigned_numbers_count_down():
    powers, down = jit(lambda x: (np.vander(x), np.arange(2, -1, -1, dtype="uint8")))(
        numpy.array([1, 2, 3], "uint8")
    )
    assert powers.tolist() == [[1, 1, 1], [4, 2, 1], [9, 3, 1]] and down.tolist() == [2, 1, 0]


def test_windows_and_products_of_half_floats_are_computed_in_single_precision():
    ones, factors = numpy.ones(5000, "float16"), numpy.full(1000, 1.001, "float16")
    exact = float(numpy.prod(factors, dtype="float64"))

    def all_of_it(ones, factors):
        whole = functx.lax.reduce_window(
            ones, numpy.float16(0), functx.lax.add, (5000,), (1,), "VALID"
        )
        scattered = np.ones(1, "float16").at[numpy.zeros(1000, int)].multiply(factors)
        plain = functx.lax.reduce_prod(factors, (0,))
        return whole[0], scattered[0], plain, functx.lax.cumprod(factors)[-1]

    for outs in (all_of_it(ones, factors), jit(all_of_it)(ones, factors)):
        numpy.testing.assert_allclose([float(x) for x in outs], [5000, *[exact] * 3], 1e-3)
