"""Sorting, searching and set functions: values and types against jax.numpy, and error messages."""

import jax.numpy as jnp
import numpy as np
import pytest

import functx.numpy as fnp
from functx.core.errors import (
    ArgumentError,
    AxisError,
    ConcretizationError,
    ShapeError,
    ValueRangeError,
)
from functx.lowering.jit import jit
from functx.ops.sorting import SearchSorted
from functx.testing import check_rules
from functx.transforms.grad import grad
from functx.transforms.vmap import vmap
from tests.numpy.agreement import Agreement, agree_at_once, derivatives, label, values_of_a_batch

SORTED = [
    *[
        (f"np.{name}(x{rest})", kind)
        for name in ("sort", "argsort")
        for rest, kind in [
            ("", "f32[5]"),
            ("", "f32[3,4]"),
            (", axis=0", "f32[3,4]"),
            (", axis=None", "f32[3,4]"),
            (", descending=True", "u8[9]"),
            (", axis=0, descending=True", "i8[9,2]"),
            ("", "bool[7]"),
            ("", "c64[5]"),
            ("", "bf16[5]"),
            ("", "~f32[5]"),
            ("", "f32[0]"),
        ]
    ],
    ("np.argsort(x, dtype='uint8')", "f32[5]"),
    ("np.sort(numpy.array([numpy.nan, 1.0, -0.0, 0.0, numpy.inf, -numpy.nan], 'float32'))",),
    ("np.lexsort((x, y))", "i32[20]", "u8[20]"),
    ("np.lexsort([x % 2, y], axis=0)", "i32[5,3]", "f32[5,3]"),
    ("np.lexsort(x)", "i32[3,7]"),
    ("np.sort_complex(x)", "f32[5]"),
    ("np.sort_complex(x)", "c64[5]"),
    ("np.searchsorted(np.sort(x), y)", "f32[6]", "f32[4]"),
    ("np.searchsorted(np.sort(x), y, side='right')", "i32[9]", "i32[2,3]"),
    ("np.searchsorted(x, y, sorter=np.argsort(x))", "f32[9]", "f32[3]"),
    ("np.searchsorted(np.sort(x), 1.5)", "i32[9]"),
    ("np.searchsorted(np.sort(x), y)", "bf16[9]", "f32[3]"),
    ("np.searchsorted(x, y)", "f32[0]", "f32[3]"),
    *[
        (f"np.searchsorted(np.sort(x), y, method={method!r}, side='right')", "u8[9]", "u8[7]")
        for method in ("scan", "scan_unrolled", "sort", "compare_all")
    ],
    ("np.digitize(x, np.sort(y))", "f32[7]", "f32[4]"),
    ("np.digitize(x, np.sort(y), right=True)", "i32[7]", "i32[4]"),
    ("np.digitize(x, np.sort(y)[::-1], right=True)", "i32[7]", "i32[4]"),
    ("np.digitize(x, np.sort(y)[::-1])", "i32[7]", "i32[4]"),
    ("np.digitize(x, numpy.array([2, 0, 0, -3]))", "i32[7]"),
    ("np.digitize(x, numpy.array([-2.5, 0, 1]), True)", "f32[7]"),
    ("np.digitize(x, y)", "f32[3]", "f32[0]"),
    ("np.interp(x, np.sort(y), z)", "f32[7]", "f32[4]", "f32[4]"),
    ("np.interp(x, np.sort(y), z, left=-1.0, right=7)", "f32[2,3]", "f32[4]", "f32[4]"),
    ("np.interp(x, np.sort(y), z, 'extrapolate', 'extrapolate')", "f32[7]", "f32[4]", "f32[4]"),
    ("np.interp(x, y, z, period=1.5)", "f32[7]", "f32[4]", "f32[4]"),
    ("np.interp(0.5, numpy.arange(3), x)", "f32[3]"),
    ("np.interp(x, numpy.array([0.0, 0.0, 1.0], 'float32'), y)", "f32[7]", "f32[3]"),
    ("np.interp(x, np.sort(y), z)", "i32[7]", "i32[4]", "i32[4]"),
    ("np.interp(x, np.sort(y), z)", "f32[7]", "f32[4]", "c64[4]"),
    ("np.interp(x, y, z)", "f32[3]", "f32[1]", "f32[1]"),
]

KINDS = ["i32[12]", "f32[5]", "bool[4]", "i32[3,4]", "u8[0]"]
SIZED = [
    *[
        (f"np.{name}(x{rest})", kind)
        for kind in KINDS
        for name in ("nonzero", "flatnonzero", "argwhere")
        for rest in (", size=5", ", size=3, fill_value=-1")
        if (kind, rest) != ("u8[0]", ", size=3, fill_value=-1")
    ],
    ("np.nonzero(x, size=4, fill_value=(7, 8))", "i32[3,4]"),
    ("np.argwhere(x, size=2)", "f32[]"),
    ("np.extract(x > 0, x, size=6, fill_value=9)", "i32[2,5]"),
    ("np.compress(x > 0, y, axis=1, size=3)", "i32[3]", "f32[2,4]"),
    ("np.compress(x, y, size=3, fill_value=2)", "bool[9]", "f32[4]"),
    *[
        (f"np.unique(x{rest}{more})", kind)
        for kind in ("u8[12]", "i32[3,3]", "bool[3]")
        for rest in (", size=4", ", size=4, fill_value=1")
        for more in ("", ", return_index=True, return_inverse=True, return_counts=True")
    ],
    ("np.unique(x % 2, True, True, True, axis=0, size=3)", "i32[5,2]"),
    ("np.unique(x % 2, True, True, True, axis=1, size=3, fill_value=5)", "i32[2,5]"),
    ("np.unique(x, size=30)", "~f32[4]"),
    ("np.unique(x, size=2, fill_value=3)", "f32[0]"),
    ("np.unique(x, size=0)", "f32[0]"),
    ("np.unique_all(x, size=5)", "i32[7]"),
    ("np.unique_counts(x, size=5)", "i32[7]"),
    ("np.unique_inverse(x, size=5, fill_value=0)", "i32[7]"),
    ("np.unique_values(x, size=5)", "i32[7]"),
    ("np.union1d(x, y, size=9)", "i32[4]", "u8[2,2]"),
    ("np.union1d(x, y, size=9, fill_value=3)", "i32[4]", "f32[2]"),
    ("np.isin(x, y)", "i32[3,4]", "i32[5]"),
    ("np.isin(x, y, invert=True)", "i32[9]", "f32[5]"),
    ("np.isin(x, y)", "i32[9]", "i32[50]"),
    ("np.isin(x, y)", "i32[9]", "i32[0]"),
    ("np.isin(x, 3)", "i32[]"),
    *[
        (f"np.isin(x, y, method={method!r})", "i32[9]", "i32[5]")
        for method in ("compare_all", "binary_search", "sort")
    ],
    *[
        (f"np.{name}(x, y, size=5{fill})", "i32[9]", "i32[6]")
        for name in ("setdiff1d", "setxor1d", "intersect1d")
        for fill in ("", ", fill_value=11")
    ],
    ("np.intersect1d(x, y, return_indices=True, size=7)", "i32[9]", "u8[20]"),
]

KNOWN = [
    *[(f"np.{name}(x)", kind) for kind in KINDS for name in ("nonzero", "flatnonzero", "argwhere")],
    ("np.argwhere(x)", "f32[]"),
    ("np.extract(x > 0, y)", "i32[2,5]", "f32[2,5]"),
    ("np.compress(x > 0, y, axis=1)", "i32[3]", "f32[2,4]"),
    ("np.unique(x, True, True, True)", "i32[3,4]"),
    ("np.unique(x, True, True, True)", "f32[0,2]"),
    ("np.unique(x % 2, True, True, True, axis=0)", "i32[5,2]"),
    ("np.unique(x, axis=1)", "bool[2,5]"),
    ("np.unique(x, True, True, True, axis=0)", "f32[2,0]"),
    ("np.unique(numpy.array([numpy.nan, 1.0, numpy.nan]))",),
    ("np.unique(numpy.array([numpy.nan, 1.0, numpy.nan]), equal_nan=False)",),
    ("np.unique_all(numpy.array([numpy.nan, 1.0, numpy.nan]))",),
    ("np.union1d(x, y)", "i32[4]", "u8[2,2]"),
    ("np.setdiff1d(x, y)", "i32[9]", "i32[6]"),
    ("np.setdiff1d(x, y, assume_unique=True)", "i32[9]", "i32[6]"),
    ("np.setdiff1d(x, y)", "i32[0]", "i32[6]"),
    ("np.setxor1d(x, y)", "i32[9]", "i32[6]"),
    ("np.intersect1d(x, y)", "i32[9]", "f32[6]"),
    ("np.intersect1d(x, y, return_indices=True)", "i32[9]", "i32[16]"),
]


CALLS = Agreement(fnp, jnp, [*SORTED, *SIZED])


@pytest.mark.parametrize("call", CALLS.calls, ids=label)
def test_calls_agree_with_jax(call):
    CALLS.check(call)


@pytest.mark.parametrize("call", [*KNOWN, *SORTED[::9], *SIZED[::9]], ids=label)
def test_calls_agree_with_jax_step_by_step(call):
    agree_at_once(fnp, jnp, *call)


BATCHES = Agreement(
    fnp,
    jnp,
    [call for call in [*SORTED, *SIZED] if len(call) > 1][::10],
    values_of_a_batch,
    weak=False,
)


@pytest.mark.parametrize("call", BATCHES.calls, ids=label)
def test_calls_map_over_batches(call):
    BATCHES.check(call)


WIDE = Agreement(
    fnp,
    jnp,
    [
        tuple([part.replace("f32", "f64").replace("i32", "i64") for part in call])
        for call in [*SORTED[::6], *SIZED[::6]]
    ],
)


@pytest.mark.parametrize("call", WIDE.calls, ids=label)
def test_calls_agree_with_jax_in_64_bits(call, x64):
    WIDE.check(call)


DERIVATIVES = Agreement(
    fnp,
    jnp,
    [
        ("np.sort(x, axis=0)", "f32[5,2]"),
        ("np.sort(x, descending=True)", "f32[5]"),
        ("np.interp(x, np.sort(y), z)", "f32[7]", "f32[4]", "f32[4]"),
        ("np.interp(x, y, z, period=1.5)", "f32[7]", "f32[4]", "f32[4]"),
        ("np.interp(x, numpy.array([0.0, 0.0, 1.0], 'float32'), y)", "f32[7]", "f32[3]"),
        ("np.extract(numpy.array([True, False, True]), x, size=2)", "f32[3]"),
        ("np.unique(x, size=4)", "f32[3]"),
    ],
    derivatives,
    weak=False,
)


@pytest.mark.parametrize("call", DERIVATIVES.calls, ids=label)
def test_derivatives_agree_with_jax(call):
    DERIVATIVES.check(call)


def test_partition_puts_each_kth_element_at_its_sorted_position():
    x = np.random.RandomState(0).rand(4, 7).astype(np.float32)
    parted, places = fnp.partition(x, 3), fnp.argpartition(x, 3)
    np.testing.assert_array_equal(parted[:, 3], np.sort(x)[:, 3])
    np.testing.assert_array_equal(np.take_along_axis(x, places, -1), parted)
    assert fnp.partition(x, (0, 2), axis=0).shape == x.shape


def test_stable_descending_argsort_keeps_the_order_of_ties():
    np.testing.assert_array_equal(fnp.argsort([1, 2, 1, 2], descending=True), [1, 3, 0, 2])


def test_nonzero_fills_up_arrays_without_elements_too():
    np.testing.assert_array_equal(fnp.nonzero(np.ones(0), size=2, fill_value=-1)[0], [-1, -1])


def test_isin_finds_no_nan():
    for method in ("compare_all", "binary_search", "sort"):
        found = fnp.isin(np.array([np.nan, 1.0]), np.array([1.0, np.nan]), method=method)
        np.testing.assert_array_equal(found, [False, True])


def test_unique_of_known_values_is_differentiable():
    def loss(x):
        return fnp.sum(fnp.unique(x) ** 2)

    np.testing.assert_allclose(grad(loss)(np.array([3.0, 1.0, 3.0], np.float32)), [6.0, 2.0, 0.0])


def test_searchsorted_maps_over_vectors_and_values():
    a = np.sort(np.random.RandomState(0).rand(3, 5), axis=1).astype(np.float32)
    v = np.random.RandomState(1).rand(3, 2).astype(np.float32)
    each = np.stack([np.searchsorted(x, y) for x, y in zip(a, v, strict=True)])
    np.testing.assert_array_equal(vmap(fnp.searchsorted)(a, v), each)
    shared = np.stack([np.searchsorted(a[0], y) for y in v])
    np.testing.assert_array_equal(vmap(fnp.searchsorted, (None, 0))(a[0], v), shared)
    other = np.stack([np.searchsorted(x, v[0]) for x in a])
    np.testing.assert_array_equal(vmap(fnp.searchsorted, (0, None))(a, v[0]), other)


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda np: np.sort(X, 2), AxisError, r"sort: axis must be in \[-2, 2\)"),
        (lambda np: np.sort(X, order="f"), ArgumentError, r"sort: order must be None"),
        (lambda np: np.argsort(X, kind="bubble"), ValueRangeError, r"argsort: kind"),
        (lambda np: np.lexsort(()), ValueRangeError, r"lexsort: .*at least one key"),
        (lambda np: np.lexsort((X, X[0])), ShapeError, r"lexsort: keys must have one shape"),
        (lambda np: np.partition(X, 3), AxisError, r"partition: kth must be in \[-3, 3\)"),
        (lambda np: np.searchsorted(X, 1.0), ShapeError, r"searchsorted: .* must be a vector"),
        (lambda np: np.searchsorted(X[0], 1.0, "up"), ValueRangeError, r"searchsorted: side"),
        (lambda np: np.searchsorted(X[0], 1.0, method="x"), ValueRangeError, r"method must be"),
        (lambda np: np.digitize(X, X), ShapeError, r"digitize: bins must be a vector"),
        (lambda np: np.interp(X, X[0], X[0, :2]), ShapeError, r"interp: xp and fp must be vectors"),
        (lambda np: np.interp(X, X[0], X[0], "left"), ValueRangeError, r"interp: left"),
        (lambda np: np.interp(X, X[0], X[0], period=0), ValueRangeError, r"interp: period"),
        (lambda np: np.nonzero(1.0), ShapeError, r"nonzero: the array must have a dimension"),
        (lambda np: np.nonzero(X, size=1, fill_value=(1,)), ShapeError, r"nonzero: fill_value"),
        (lambda np: np.compress(X, X), ShapeError, r"compress: the condition must be a vector"),
        (lambda np: np.compress([0, 0, 1], X[:, 0]), ValueRangeError, r"compress: .* index 2"),
        (lambda np: np.isin(X, X, method="x"), ValueRangeError, r"isin: method"),
        (lambda np: jit(np.nonzero)(X), ConcretizationError, r"(?s)nonzero without `size`.*Give"),
        (
            lambda np: np.unique([], size=2),
            ValueRangeError,
            r"(?s)unique: `size` must be 0.*fill_value",
        ),
        (lambda np: jit(np.unique)(X), ConcretizationError, r"(?s)unique without `size`.*Give"),
    ],
)
def test_misuse_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call(fnp)


@pytest.mark.parametrize("number", range(len(SearchSorted.samples)))
def test_rules_of_searchsorted(number):
    check_rules(SearchSorted, number)


def test_parts_without_elements_are_counted_as_equal():
    *_, counts = fnp.unique(np.zeros((2, 0)), True, True, True, axis=0, size=3)
    assert counts.tolist() == [2, 0, 0]
