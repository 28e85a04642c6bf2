"""Structural operations: values against JAX's, derivatives where they are delicate, batches."""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

import functx
from functx.core.errors import (
    AxisError,
    DTypeError,
    IndexingError,
    ShapeError,
    ValueRangeError,
)
from functx.core.tracing import trace
from functx.core.types import ShapedArray
from functx.ops.arithmetic import mul
from functx.ops.autodiff import stop_gradient
from functx.ops.concatenation import concatenate, pad, split
from functx.ops.cumulative import (
    cumlogsumexp,
    cummax,
    cummin,
    cumprod,
    cumsum,
    linear_recurrence,
)
from functx.ops.dynamic_slicing import dynamic_slice, dynamic_update_slice
from functx.ops.reductions import (
    argmax,
    argmin,
    reduce_and,
    reduce_max,
    reduce_min,
    reduce_or,
    reduce_prod,
    reduce_sum,
    reduce_xor,
)
from functx.ops.shapes import broadcasted_iota, iota, rev, squeeze
from functx.ops.slicing import slice, slice_in_dim
from functx.ops.sorting import argsort, sort, top_k
from functx.ops.transcendental import sqrt
from functx.testing import check_grads
from functx.transforms.grad import grad, value_and_grad
from functx.transforms.jacobian import hessian, jacfwd, jacrev
from functx.transforms.vmap import vmap
from tests.by_reference import by_reference

random = np.random.RandomState(0)
FLOATS = ("float32", "bfloat16", "float16")
DTYPES = (*FLOATS, "complex64", "int32", "uint8", "bool")
SOME = ("float32", "bfloat16", "complex64", "bool")


def array(shape, dtype="float32"):
    dtype = jnp.dtype(dtype)
    x = random.randint(-3, 4, shape) if dtype.kind in "iub" else random.randn(*shape)
    if dtype.kind == "c":
        x = x + 1j * random.randn(*shape)
    return np.asarray(np.abs(x) if dtype.kind == "u" else x).astype(dtype)


def same(got, wanted):
    """Equal in shape, dtype and value."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


def rounded_once(f, x):
    """`f(x)` in the dtype of `x`, but of floats of 16 bits computed in float32."""
    return f(x.astype("float32")).astype(x.dtype) if x.dtype in FLOATS else f(x)


def close(got, wanted, tolerance=1e-6):
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), tolerance, tolerance)


# Each is named, and given once for functx and once for JAX.
SHAPING = {
    "pad": (
        lambda x: pad(x, x.dtype.type(1), [(1, 2, 0), (-1, 3, 2)]),
        lambda x: lax.pad(x, x.dtype.type(1), [(1, 2, 0), (-1, 3, 2)]),
    ),
    "pad_cut": (
        lambda x: pad(x, x.dtype.type(0), [(-1, -1, 1), (0, 0, 1)]),
        lambda x: lax.pad(x, x.dtype.type(0), [(-1, -1, 1), (0, 0, 1)]),
    ),
    "slice": (
        lambda x: slice(x, (1, 0), (3, 4), (1, 3)),
        lambda x: lax.slice(x, (1, 0), (3, 4), (1, 3)),
    ),
    "slice_in_dim": (
        lambda x: slice_in_dim(x, -3, None, 2, axis=-1),
        lambda x: lax.slice_in_dim(x, -3, None, 2, axis=-1),
    ),
    "rev": (lambda x: rev(x, (0, 1)), lambda x: lax.rev(x, (0, 1))),
    "concatenate": (
        lambda x: concatenate([x, x[:1], x[:0]], 0),
        lambda x: lax.concatenate([x, x[:1], x[:0]], 0),
    ),
    "dynamic_slice": (
        lambda x: dynamic_slice(x, (2, -3), (2, 2)),
        lambda x: lax.dynamic_slice(x, (2, -3), (2, 2)),
    ),
    "dynamic_update_slice": (
        lambda x: dynamic_update_slice(x, x[:2, :3], (np.int32(2), np.int32(-9))),
        lambda x: lax.dynamic_update_slice(x, x[:2, :3], (np.int32(2), np.int32(-9))),
    ),
    "sort": (lambda x: sort(x, 0), lambda x: lax.sort(x, 0)),
}


@pytest.mark.parametrize("dtype", SOME)
@pytest.mark.parametrize("name", SHAPING)
def test_shaping_gives_what_jax_gives(name, dtype):
    ours, theirs = SHAPING[name]
    x = array((3, 4), dtype)
    same(ours(x), theirs(x))


REDUCTIONS = {
    "reduce_sum": (reduce_sum, jax.lax.reduce_sum_p, (*FLOATS, "complex64", "int32", "uint8")),
    "reduce_prod": (reduce_prod, jax.lax.reduce_prod_p, (*FLOATS, "complex64", "int32", "uint8")),
    "reduce_max": (reduce_max, jax.lax.reduce_max_p, DTYPES),
    "reduce_min": (reduce_min, jax.lax.reduce_min_p, DTYPES),
    "reduce_and": (reduce_and, jax.lax.reduce_and_p, ("int32", "uint8", "bool")),
    "reduce_or": (reduce_or, jax.lax.reduce_or_p, ("int32", "uint8", "bool")),
    "reduce_xor": (reduce_xor, jax.lax.reduce_xor_p, ("int32", "uint8", "bool")),
}
REDUCTION_CASES = [(name, dtype) for name, (_, _, dtypes) in REDUCTIONS.items() for dtype in dtypes]
REDUCED = [((3, 5, 2), (0, 2)), ((2, 600), (1,)), ((0, 3), (0,))]


@pytest.mark.parametrize(("name", "dtype"), REDUCTION_CASES)
def test_reductions_give_what_jax_gives(name, dtype):
    ours, theirs, _ = REDUCTIONS[name]
    arrays = [array(shape, dtype) for shape, _ in REDUCED]
    more = {"out_sharding": None} if name in ("reduce_sum", "reduce_max", "reduce_min") else {}
    once = name in ("reduce_sum", "reduce_prod")

    def wanted(x, axes):
        bound = partial(theirs.bind, axes=axes, **more)
        return rounded_once(bound, x) if once else bound(x)

    found, expected = [
        library.jit(lambda xs, f=f: [f(x, axes) for x, (_, axes) in zip(xs, REDUCED, strict=True)])
        for library, f in ((functx, ours), (jax, wanted))
    ]
    for x, got, want in zip(arrays, found(arrays), expected(arrays), strict=True):
        if dtype == "complex64" and not x.size and not once:
            # JAX's infinity has no imaginary part, and so there are numbers beyond it.
            infinity = np.inf if name == "reduce_min" else -np.inf
            want = np.full(want.shape, complex(infinity, infinity), dtype)
        same(got, want)


def test_no_axes_reduce_nothing_and_none_reduces_all():
    x = array((2, 3))
    assert np.shares_memory(reduce_sum(x, ()), x)
    same(reduce_sum(x, ()), x)
    assert reduce_prod(np.float32(3.0)) == 3.0
    assert reduce_max(x).shape == ()


@pytest.mark.parametrize("dtype", (*FLOATS, "int32", "uint8", "bool"))
@pytest.mark.parametrize("axis", (0, 1))
def test_argmax_and_argmin_give_the_first(axis, dtype):
    x = array((6, 50), dtype)

    def places(*functions):
        return lambda x: [f(x, axis, index) for f in functions for index in (np.int32, np.uint8)]

    found = functx.jit(places(argmax, argmin))(x)
    for got, want in zip(found, jax.jit(places(lax.argmax, lax.argmin))(x), strict=True):
        same(got, want)


@pytest.mark.parametrize("shape, axis", [((40, 600), 1), ((600, 40), 0), ((20, 30, 40), 1)])
@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float8_e5m2", "float8_e8m0fnu", "int32", "uint8", "bool"]
)
def test_argmax_and_argmin_of_large_arrays_give_the_first(shape, axis, dtype):
    x = np.random.RandomState(0).randint(1, 5, shape).astype(dtype)
    arrays = [x]
    if dtype in ("float32", "bfloat16", "float8_e5m2"):
        some_nan, none_finite = x.copy(), np.full_like(x, -np.inf)
        some_nan.reshape(-1)[::97] = np.nan
        arrays += [some_nan, none_finite]
    for x in arrays:
        for name in ("argmax", "argmin"):
            found = functx.jit(lambda x: getattr(functx.numpy, name)(x, axis))(x)  # noqa: B023
            expected = getattr(np, name)(x.astype("float64"), axis)
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("copies", [1, 200])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_extrema_of_floats_of_one_byte_start_from_a_number_of_the_dtype(dtype, copies):
    numbers = np.tile([[1.0, 4.0, 0.5, 4.0], [2.0, 1.0, 1.0, 2.0]], copies)
    x, ids = numbers.astype(getattr(ml_dtypes, dtype)), np.zeros(2, int)

    def extrema(x):
        reductions = [
            getattr(functx.numpy, name)(x, 1) for name in ("max", "min", "argmax", "argmin")
        ]
        segments = functx.ops.segment_max(x, ids, 1)[0], functx.ops.segment_min(x, ids, 1)[0]
        return [*reductions, *segments]

    expected = [numbers.max(1), numbers.min(1), [1, 0], [2, 1], numbers.max(0), numbers.min(0)]
    for got, want in zip(functx.jit(extrema)(x), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(got, "float64"), want)


def test_argmax_finds_the_first_nan_and_refuses_the_empty():
    x = np.array([[1.0, np.nan, 3.0, np.nan], [1.0, 2.0, 2.0, -np.inf]], "float32")
    assert list(argmax(x, 1, np.int32)) == list(np.argmax(x, 1)) == [1, 1]
    assert list(argmin(x, 1, np.int32)) == list(np.argmin(x, 1)) == [1, 3]
    lowest = np.full(3, -np.inf, "float32")
    assert argmax(lowest, 0, np.int32) == argmin(-lowest, 0, np.int32) == 0
    with pytest.raises(ShapeError, match="argmax: the axis must not be empty"):
        argmax(array((0, 2)), 0, np.int32)
    with pytest.raises(DTypeError, match="must hold 299"):
        argmax(array((300,)), 0, np.uint8)


CUMULATIVE = {
    "cumsum": (cumsum, lax.cumsum),
    "cumprod": (cumprod, lax.cumprod),
    "cummax": (cummax, lax.cummax),
    "cummin": (cummin, lax.cummin),
}


@pytest.mark.parametrize("dtype", (*FLOATS, "complex64", "int32", "uint8"))
@pytest.mark.parametrize("name", CUMULATIVE)
def test_cumulative_operations_give_what_jax_gives(name, dtype):
    ours, theirs = CUMULATIVE[name]
    arrays = [array(shape, dtype) for shape in [(40,), (3, 7), (0, 2), (2, 0)]]

    def wanted(x, reverse):
        of_jax = partial(theirs, axis=x.ndim - 1, reverse=reverse)
        return rounded_once(of_jax, x) if name in ("cumsum", "cumprod") else of_jax(x)

    both_ways = [
        library.jit(lambda xs, f=f: [f(x, reverse) for x in xs for reverse in (False, True)])
        for library, f in [
            (functx, lambda x, reverse: ours(x, x.ndim - 1, reverse)),
            (jax, wanted),
        ]
    ]
    for x, y in zip(*[f(arrays) for f in both_ways], strict=True):
        same(x, y)


@pytest.mark.parametrize("reverse", (False, True))
def test_cumlogsumexp_stays_accurate_for_large_and_infinite_elements(reverse):
    x = np.array([-np.inf, -500.0, 3.0, 3.0, 700.0, -2.0], "float32")
    order = x[::-1] if reverse else x
    wanted = np.logaddexp.accumulate(order.astype("float64"))
    close(cumlogsumexp(x, 0, reverse), wanted[::-1] if reverse else wanted)
    x[2] = np.inf
    assert list(cumlogsumexp(x)) == [-np.inf, -500.0, np.inf, np.inf, np.inf, np.inf]
    x[2] = np.nan
    assert np.isnan(cumlogsumexp(x)[2:]).all()
    many = np.zeros(70000, "float16")
    close(cumlogsumexp(many)[-1], np.log(70000), 1e-3)


@pytest.mark.parametrize("n", (0, 1, 2, 4, 5, 16, 17, 67))
@pytest.mark.parametrize("reverse", (False, True))
def test_linear_recurrence_is_the_loop(n, reverse):
    factor, x = array((n, 2)), array((n, 2))
    for f in (factor, factor > 0):
        y, rows = np.zeros(2), {}
        for i in reversed(range(n)) if reverse else range(n):
            rows[i] = y = f[i] * y + x[i]
        wanted = np.reshape([rows[i] for i in range(n)], (n, 2))
        close(linear_recurrence(f, x, 0, reverse), wanted, 1e-5)


def test_a_recurrence_ignores_the_first_factor_and_what_a_false_one_cuts_off():
    factor = np.array([np.nan, 2.0, 2.0], "float32")
    assert list(linear_recurrence(factor, np.ones(3, "float32"))) == [1.0, 3.0, 7.0]
    keep, x = np.arange(12) % 3 != 0, np.ones(12, "float32")
    x[2] = np.inf
    assert list(linear_recurrence(keep, x)[3:]) == [1.0, 2.0, 3.0] * 3


def test_scalars_and_unit_dimensions():
    x = np.float32(2.0)
    assert pad(x, 0.0, []) == rev(x, ()) == slice(x, (), ()) == dynamic_slice(x, (), ()) == 2.0
    assert dynamic_update_slice(x, np.float32(3.0), ()) == 3.0
    y = array((1, 3, 1))
    assert squeeze(y).shape == (3,)
    assert squeeze(y, -1).shape == (1, 3)
    with pytest.raises(ShapeError, match="squeeze: the axes must have length 1"):
        squeeze(y, 1)


def test_split_and_concatenate_undo_each_other():
    x = array((2, 6))
    parts = split(x, (1, 0, 5), -1)
    assert [p.shape for p in parts] == [(2, 1), (2, 0), (2, 5)]
    same(concatenate(parts, 1), x)
    with pytest.raises(ShapeError, match="split: sizes must sum to the length of axis 1"):
        split(x, (1, 2), 1)


def test_iota():
    same(iota(np.int32, 4), np.arange(4, dtype="int32"))
    same(
        broadcasted_iota(jnp.bfloat16, (2, 3), 1),
        np.tile(np.arange(3.0), (2, 1)).astype(ml_dtypes.bfloat16),
    )
    with pytest.raises(DTypeError, match="iota: the dtype must be a number's"):
        iota(bool, 3)
    with pytest.raises(AxisError):
        broadcasted_iota(np.int32, (2, 3), 2)


def test_sort_takes_several_operands_and_orders_nan_last():
    keys = np.array([2, 1, 2, 1], "int32"), np.array([0.5, np.nan, -0.5, 1.0], "float32")
    values = np.arange(4, dtype="float32")
    for ours, theirs in zip(
        sort([*keys, values], num_keys=2), lax.sort([*keys, values], num_keys=2), strict=True
    ):
        same(ours, theirs)
    assert list(argsort(keys[0])) == [1, 3, 0, 2]
    with pytest.raises(ValueRangeError, match=r"sort: num_keys must be in \[1, 1\]"):
        sort(values, num_keys=2)
    with pytest.raises(ShapeError, match="sort: operands must have one shape"):
        sort([values, values[:2]])


@pytest.mark.parametrize("dtype", (*FLOATS, "int32", "uint8"))
def test_top_k_gives_what_jax_gives(dtype):
    x = array((3, 9), dtype)
    for ours, theirs in zip(top_k(x, 4), lax.top_k(x, 4), strict=True):
        same(ours, theirs)
    with pytest.raises(ValueRangeError, match="top_k: k must be between 0 and the length"):
        top_k(x, 10)


def test_shapes_that_do_not_fit_are_refused():
    x = array((2, 3))
    with pytest.raises(ShapeError, match="concatenate: operands must have one dtype"):
        concatenate([x, x.astype("float16")], 0)
    with pytest.raises(ShapeError, match="one shape but for axis 1"):
        concatenate([x, x[:1]], 1)
    with pytest.raises(ShapeError, match="concatenate: there must be at least one"):
        concatenate([], 0)
    with pytest.raises(ShapeError, match="pad: no length may become negative"):
        pad(x, 0.0, [(-3, 0, 0), (0, 0, 0)])
    with pytest.raises(IndexingError, match="slice: 0 <= start <= limit <= length"):
        slice(x, (0, 0), (2, 4))
    with pytest.raises(ShapeError, match="dynamic_slice: the part must fit"):
        dynamic_slice(x, (0, 0), (2, 4))
    with pytest.raises(IndexingError, match="there must be one index a dimension"):
        dynamic_slice(x, (0,), (1, 1))
    with pytest.raises(IndexingError, match="one integer scalar index a dimension"):
        dynamic_slice(x, (0.5, 0), (1, 1))
    with pytest.raises(AxisError):
        cumsum(x, 2)
    with pytest.raises(DTypeError, match="reduce_sum: operands must be int"):
        reduce_sum(x > 0)


WEAK = {
    "reshape": lambda x: squeeze(x),
    "rev": lambda x: rev(x, (0,)),
    "slice": lambda x: slice_in_dim(x, 0, 1),
    "pad": lambda x: pad(x, 0.0, [(0, 0, 0), (1, 0, 0)]),
    "sum": lambda x: reduce_sum(x, 0),
    "max": lambda x: reduce_max(x, 0),
    "cumsum": lambda x: cumsum(x, 0),
    "sort": lambda x: sort(x, 0),
    "concatenate": lambda x: concatenate([x, x], 0),
    "stop_gradient": stop_gradient,
}


@pytest.mark.parametrize("name", WEAK)
def test_weak_types_stay_weak_where_no_other_dtype_joins(name):
    aval = ShapedArray((1, 3), np.dtype("float32"), True)
    program, _ = trace(lambda x: [WEAK[name](x)], [aval])
    assert program.out_avals[0].weak_type == (name != "pad")
    strong, _ = trace(lambda x: [WEAK[name](x)], [aval.update(weak_type=False)])
    assert not strong.out_avals[0].weak_type


# Derivatives

SMOOTH = {
    "pad": lambda x: pad(x, 0.5, [(1, -1, 0), (0, 1, 2)]),
    "slice": lambda x: slice(x, (0, 1), (3, 4), (2, 2)),
    "rev": lambda x: rev(x, (1,)),
    "concatenate": lambda x: concatenate([x, mul(x, x)], 1),
    "split": lambda x: mul(*split(x, (2, 2), 1)),
    "dynamic_slice": lambda x: dynamic_slice(mul(x, x), (1, 1), (2, 3)),
    "dynamic_update_slice": lambda x: dynamic_update_slice(
        mul(x, x), slice_in_dim(x, 0, 1), (2, 0)
    ),
    "reduce_prod": lambda x: reduce_prod(x, (1,)),
    "reduce_max": lambda x: mul(reduce_max(x, 0), reduce_max(x, 0)),
    "reduce_min": lambda x: mul(reduce_min(x, 0), reduce_min(x, 0)),
    "cumsum": lambda x: cumsum(mul(x, x), 1),
    "cumprod": lambda x: cumprod(x, 1),
    "cumprod_reverse": lambda x: cumprod(x, 0, True),
    "cummax": lambda x: cummax(mul(x, x), 1),
    "cummin": lambda x: cummin(mul(x, x), 0, True),
    "cumlogsumexp": lambda x: cumlogsumexp(x, 1),
    "linear_recurrence": lambda x: linear_recurrence(x, mul(x, x), 0),
    "sort": lambda x: mul(sort(mul(x, x), 1), x),
    "sort_pair": lambda x: mul(*sort([x, mul(x, x)], 0)),
    "top_k": lambda x: mul(top_k(x, 2)[0], 2.0),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_match_differences_to_second_order(name):
    x = np.linspace(-1.9, 2.1, 12)[random.permutation(12)].reshape(3, 4)
    with by_reference():
        check_grads(SMOOTH[name], (x,), order=2)


@pytest.mark.parametrize("zeros", ((), (1,), (0, 3), (0, 1, 2)))
def test_products_have_derivatives_to_second_order_with_zeros_among_the_factors(zeros, x64):
    x = np.array([1.5, -2.0, 0.5, 3.0])
    x[list(zeros)] = 0.0
    others = [np.prod(np.delete(x, i)) for i in range(4)]
    pairs = [[np.prod(np.delete(x, [i, j])) if i != j else 0.0 for j in range(4)] for i in range(4)]
    close(grad(reduce_prod)(x), others)
    close(jacfwd(reduce_prod)(x), others)
    close(hessian(reduce_prod)(x), pairs)

    def last(x):
        return squeeze(slice_in_dim(cumprod(x), 3, 4))

    close(grad(last)(x), others)
    close(jacfwd(grad(last))(x), pairs)
    close(jacrev(jacrev(last))(x), pairs)
    triangle = [
        [np.prod(np.delete(x[: i + 1], j)) if j <= i else 0.0 for j in range(4)] for i in range(4)
    ]
    close(jacrev(cumprod)(x), triangle)


def test_products_of_complex_numbers_follow_jax():
    x = array((2, 3), "complex64")
    x[0, 1] = 0
    ours = grad(lambda x: reduce_sum(reduce_prod(x, (1,))), holomorphic=True)(x)
    close(ours, jax.jit(jax.grad(lambda x: jnp.prod(x, 1).sum(), holomorphic=True))(x), 1e-5)
    ours = grad(lambda x: reduce_sum(cumprod(x, 1)), holomorphic=True)(x)
    close(ours, jax.jit(jax.grad(lambda x: jnp.cumprod(x, 1).sum(), holomorphic=True))(x), 1e-5)


def test_elements_that_tie_share_the_derivative():
    x = np.array([1.0, 3.0, 3.0, 0.0, 3.0], "float32")
    close(grad(reduce_max)(x), [0, 1 / 3, 1 / 3, 0, 1 / 3])
    close(grad(lambda x: reduce_min(x))(-x), [0, 1 / 3, 1 / 3, 0, 1 / 3])
    wanted = [
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [0, 1 / 2, 1 / 2, 0, 0],
        [0, 1 / 2, 1 / 2, 0, 0],
        [0, 1 / 3, 1 / 3, 0, 1 / 3],
    ]
    close(jacrev(cummax)(x), wanted)
    close(jacfwd(cummax)(x), wanted)
    close(jacrev(cummin)(-x), wanted)
    many = np.zeros(70000, "float16")
    assert np.all(np.asarray(grad(reduce_max)(many)) > 0)


def test_the_largest_of_infinities_and_of_nothing():
    x = np.array([-np.inf, -np.inf], "float32")
    close(grad(reduce_max)(x), [0.5, 0.5])
    assert grad(lambda x: reduce_sum(reduce_max(x, (1,))))(array((2, 0))).shape == (2, 0)
    assert grad(reduce_prod)(array((0,))).shape == (0,)


def test_a_cotangent_that_is_not_chosen_does_not_become_nan():
    x = np.array([1.0, 2.0], "float32")
    _, pulled = value_and_grad(lambda x: mul(reduce_max(x), np.float32(np.inf)))(x)
    assert list(pulled) == [0.0, np.inf]
    padded = grad(lambda v: reduce_sum(mul(pad(x, v, [(1, 0, 0)]), np.array([1, np.inf, 1], "f"))))
    assert padded(np.float32(0.0)) == 1.0


def test_cumlogsumexp_of_nothing_has_no_derivative():
    x = np.array([-np.inf, -np.inf, 1.0], "float32")
    close(jacrev(cumlogsumexp)(x), [[0, 0, 0], [0, 0, 0], [0, 0, 1]])
    assert np.isfinite(jacfwd(jacrev(cumlogsumexp))(x)).all()


def test_sorted_elements_carry_their_derivative_with_them():
    x = np.array([3.0, 1.0, 2.0], "float32")
    weights = np.array([1.0, 10.0, 100.0], "float32")
    close(grad(lambda x: reduce_sum(mul(sort(x), weights)))(x), [100.0, 1.0, 10.0])
    keys = np.array([2, 0, 1], "int32")
    close(grad(lambda x: reduce_sum(mul(sort([keys, x])[1], weights)))(x), [100.0, 1.0, 10.0])
    close(grad(lambda x: reduce_sum(mul(top_k(x, 2)[0], weights[:2])))(x), [1.0, 0.0, 10.0])
    close(grad(reduce_sum)(np.float32(1.0)), 1.0)


def test_stop_gradient():
    x = np.array([1.0, 2.0], "float32")
    close(grad(lambda x: reduce_sum(mul(x, stop_gradient(x))))(x), x)
    close(grad(lambda x: reduce_sum(stop_gradient(x)))(x), [0.0, 0.0])


# Batches

ONE_OPERAND = {
    "pad": lambda x: pad(x, 0.0, [(1, 0, 1), (-1, 2, 0)]),
    "slice": lambda x: slice(x, (0, 1), (2, 4), (1, 2)),
    "rev": lambda x: rev(x, (1,)),
    "reduce_prod": lambda x: reduce_prod(x, (1,)),
    "argmax": lambda x: argmax(x, 1, np.int32),
    "cumprod": lambda x: cumprod(x, 1),
    "cumlogsumexp": lambda x: cumlogsumexp(x, 0),
    "sort": lambda x: sort(x, 1),
    "top_k": lambda x: top_k(x, 2)[1],
    "split": lambda x: split(x, (1, 3), 1)[1],
    "iota": lambda x: mul(x, broadcasted_iota(np.float32, (2, 4), 1)),
    "gradient": grad(lambda x: reduce_sum(mul(sort(cumprod(x, 1), 0), x))),
}


@pytest.mark.parametrize("dim", (0, 1, 2))
@pytest.mark.parametrize("name", ONE_OPERAND)
def test_vmap_is_the_loop(name, dim):
    f = ONE_OPERAND[name]
    x = array((3, 2, 4))
    wanted = np.stack([np.asarray(f(row)) for row in x], dim and dim - 1)
    close(vmap(f, in_axes=dim, out_axes=dim and dim - 1)(np.moveaxis(x, 0, dim)), wanted)


def loop(f, axes, args):
    size = next(x.shape[a] for x, a in zip(args, axes, strict=True) if a is not None)
    rows = [
        [x if a is None else np.take(x, i, a) for x, a in zip(args, axes, strict=True)]
        for i in range(size)
    ]
    return np.stack([np.asarray(f(*row)) for row in rows])


SEVERAL_OPERANDS = {
    "concatenate": (lambda x, y: concatenate([x, y], 1), ((2, 3), (2, 1))),
    "pad": (lambda x, v: pad(x, v, [(1, 1, 1), (0, -1, 0)]), ((2, 3), ())),
    "linear_recurrence": (lambda f, x: linear_recurrence(f, x, 1), ((2, 3), (2, 3))),
    "sort": (lambda x, y: sort([x, y], 0)[1], ((2, 3), (2, 3))),
}


@pytest.mark.parametrize("name", SEVERAL_OPERANDS)
def test_vmap_with_every_choice_of_batched_operands_is_the_loop(name):
    f, shapes = SEVERAL_OPERANDS[name]
    for axes in product(*[(None, *range(len(shape) + 1)) for shape in shapes]):
        if any(a is not None for a in axes):
            args = [
                array(shape if a is None else (*shape[:a], 4, *shape[a:]))
                for shape, a in zip(shapes, axes, strict=True)
            ]
            close(vmap(f, in_axes=axes)(*args), loop(f, axes, args))


@pytest.mark.parametrize(
    "axes", [a for a in product((None, 0, 2), *[(None, 0)] * 2) if any(d is not None for d in a)]
)
def test_dynamic_slices_at_batched_indices_are_the_loop(axes):
    shape = (3, 4) if axes[0] is None else (*(3, 4)[: axes[0]], 5, *(3, 4)[axes[0] :])
    indices = [np.int32(1) if a is None else np.array([0, 2, -1, 9, -9], "int32") for a in axes[1:]]
    x, update = array(shape), array((2, 3))

    def read(x, i, j):
        return dynamic_slice(x, (i, j), (2, 3))

    def write(x, i, j):
        return dynamic_update_slice(x, update, (i, j))

    def both(x, i, j):
        return grad(lambda x: reduce_sum(mul(read(mul(x, x), i, j), read(write(x, j, i), i, j))))(x)

    args = [x, *indices]
    for f in (read, write, both):
        close(vmap(f, in_axes=axes)(*args), loop(f, axes, args))


def test_a_batch_of_updates_at_one_place():
    x, updates = array((3, 4)), array((5, 2, 3))
    close(
        vmap(lambda u: dynamic_update_slice(x, u, (1, 0)))(updates),
        [dynamic_update_slice(x, u, (1, 0)) for u in updates],
    )


def test_indices_of_different_dtypes():
    x = array((4, 5))
    i, j = np.array([1, 3], "uint8"), np.array([2, -1], "int32")
    same(dynamic_slice(x, (i[0], j[0]), (2, 2)), x[1:3, 2:4])
    same(dynamic_slice(x, (i[1], j[1]), (2, 2)), x[2:4, 3:5])
    same(vmap(lambda i, j: dynamic_slice(x, (i, j), (2, 2)))(i, j)[1], x[2:4, 3:5])


# Roots of zero, whose derivative is infinite, in places that have no influence.
WITHOUT_INFLUENCE = {
    "reduce_max": (lambda r: reduce_max(r, (0,)), [0.0, 1.0, 4.0]),
    "reduce_max_all": (reduce_max, [0.0, 1.0, 4.0]),
    "slice": (lambda r: slice(r, (1,), (3,)), [0.0, 1.0, 4.0]),
    "slice_strided": (lambda r: slice(r, (0,), (3,), (2,)), [1.0, 0.0, 4.0]),
    "slice_of_a_slice": (lambda r: slice_in_dim(slice_in_dim(r, 0, 2), 1, 2), [0.0, 4.0, 0.0]),
    "pad_cut": (lambda r: pad(r, 0.0, [(-1, 2, 1)]), [0.0, 1.0, 4.0]),
    "concatenate": (lambda r: slice_in_dim(concatenate([r, r], 0), 1, 3), [1.0, 0.0, 4.0]),
    "rev": (lambda r: slice_in_dim(rev(r, (0,)), 0, 2), [0.0, 1.0, 4.0]),
    "dynamic_slice": (lambda r: dynamic_slice(r, (np.int32(5),), (2,)), [0.0, 1.0, 4.0]),
    "dead_store": (
        lambda r: dynamic_update_slice(r, np.ones(1, "float32"), (np.int32(0),)),
        [0.0, 1.0, 4.0],
    ),
    "live_store": (
        lambda r: slice_in_dim(dynamic_update_slice(np.ones(4, "f"), r, (0,)), 1, 4),
        [0.0, 1.0, 4.0],
    ),
    "cumsum": (lambda r: slice_in_dim(cumsum(r), 0, 2), [1.0, 4.0, 0.0]),
    "reduce_sum": (
        lambda r: slice_in_dim(reduce_sum(concatenate([r, r], 0), ()), 1, 3),
        [1.0, 0.0, 4.0],
    ),
}


@pytest.mark.parametrize("name", WITHOUT_INFLUENCE)
def test_infinite_derivatives_without_influence_leave_no_nan(name):
    f, x = WITHOUT_INFLUENCE[name]
    x = np.array(x, "float32")
    found = np.asarray(grad(lambda x: reduce_sum(f(sqrt(x))))(x))
    eps = 1e-3
    steps = eps * np.eye(3, dtype="float32") * (x > 0)
    slopes = [(f(np.sqrt(x + s)).sum() - f(np.sqrt(x)).sum()) / eps for s in steps]
    influential = np.isinf(found)
    assert not np.isnan(found).any()
    close(found[~influential], np.array(slopes)[~influential], 1e-2)
    assert influential.any() == (name in ("concatenate", "reduce_sum"))
