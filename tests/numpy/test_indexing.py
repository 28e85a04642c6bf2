"""Indexing: values against NumPy, derivatives and vmap against JAX, and error messages."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functx.numpy as fnp
from functx import lax
from functx.core.errors import (
    ArgumentError,
    AxisError,
    DTypeError,
    IndexingError,
    ShapeError,
    SliceBoundError,
)
from functx.core.tracing import trace
from functx.core.types import ShapedArray
from functx.lowering.jit import jit
from functx.numpy import indexing, sorting_and_searching
from functx.numpy.indexing import At, getitem
from functx.transforms.grad import grad
from functx.transforms.jvp import jvp
from functx.transforms.vmap import vmap

X = np.random.RandomState(0).randn(4, 5, 3).astype("f")
MASK = np.random.RandomState(1).rand(4, 5) > 0.5

STATIC = [
    np.s_[()],
    np.s_[1],
    np.s_[-1],
    np.s_[...],
    np.s_[1:3],
    np.s_[::2],
    np.s_[::-1],
    np.s_[-2::-2, 1],
    np.s_[1, ::-1, None],
    np.s_[..., 0],
    np.s_[None, 2, ..., None, 1:],
    np.s_[5:2],
    np.s_[3:0:-2, 4:1:-1],
    np.s_[np.int64(2), np.uint8(1), 0],
    np.s_[True],
    np.s_[False, 1],
    np.s_[None, True, 1, None],
]
ADVANCED = [
    np.s_[[0, 2]],
    np.s_[[-1, 0, -1]],
    np.s_[:, [0, 2]],
    np.s_[..., [[0, 2], [1, 1]]],
    np.s_[[0, 1], [2, -3]],
    np.s_[[[0], [1]], [2, 3]],
    np.s_[[0, 2], :, [1, 1]],
    np.s_[0, :, [1, 2]],
    np.s_[:, 0, [1, 2]],
    np.s_[[0, 2], 1:4, [1, 1]],
    np.s_[[0, 2], None, [1, 1]],
    np.s_[:, None, [1, 1], 2],
    np.s_[[0, 2], ::-1],
    np.s_[::2, [0, 2]],
    np.s_[3::-2, [0, 2], 1:],
    np.s_[np.array(1), [0, 2]],
    np.s_[np.array([[1], [2]], np.int8), np.array([3, 4], np.uint16)],
    np.s_[[]],
    np.s_[np.zeros((0, 2), int), 1],
    np.s_[[0], ..., [1]],
    np.s_[[0], [1], ..., [1]],
]
MASKED = [
    np.s_[MASK],
    np.s_[MASK, 1],
    np.s_[MASK[:, 0]],
    np.s_[:, MASK[0]],
    np.s_[..., np.array([True, False, True])],
    np.s_[MASK[:, 0], :, 1:],
    np.s_[np.array([True, False, True, False]), [0, 1]],
    np.s_[MASK & False],
    np.s_[X > 0],
]


def written(x, idx, values, ufunc=None):
    x = x.copy()
    if ufunc is None:
        x[idx] = values
    else:
        ufunc.at(x, idx, values)
    return x


def traced_items(idx):
    """The positions of the items that can be traced integers, and those as arrays."""
    items = idx if isinstance(idx, tuple) else (idx,)
    integers = [
        np.asarray(item) if isinstance(item, int | list | np.ndarray) else None for item in items
    ]
    return items, {
        i: array.astype(array.dtype if array.size and array.dtype != np.int64 else np.int32)
        for i, array in enumerate(integers)
        if array is not None and array.dtype != bool
    }


@pytest.mark.parametrize("idx", STATIC + ADVANCED + MASKED, ids=str)
def test_reading_and_writing_agree_with_numpy(idx):
    expected = X[idx]
    values = np.cos(np.arange(expected.size, dtype="f")).reshape(expected.shape)
    ufuncs = {"set": None, "add": np.add, "multiply": np.multiply, "min": np.minimum}

    def everything(x, values):
        return [getitem(x, idx), *[getattr(At(x)[idx], name)(values) for name in ufuncs]]

    read, *writes = jit(everything)(X, values)
    np.testing.assert_array_equal(read, expected)
    for (name, ufunc), found in zip(ufuncs.items(), writes, strict=True):
        np.testing.assert_allclose(found, written(X, idx, values, ufunc), 1e-5, err_msg=name)


@pytest.mark.parametrize("idx", [idx for idx in STATIC + ADVANCED if traced_items(idx)[1]], ids=str)
def test_traced_integers_select_the_elements_of_known_ones(idx):
    items, integers = traced_items(idx)
    expected = X[idx]
    values = np.cos(np.arange(expected.size, dtype="f")).reshape(expected.shape)

    def everything(x, values, integers):
        idx = tuple([integers.get(i, item) for i, item in enumerate(items)])
        return getitem(x, idx), At(x)[idx].set(values), At(x)[idx].add(values)

    read, put, added = jit(everything)(X, values, integers)
    np.testing.assert_array_equal(read, expected)
    np.testing.assert_array_equal(put, written(X, idx, values))
    np.testing.assert_allclose(added, written(X, idx, values, np.add), 1e-5)


def equations(fun, *types):
    avals = [ShapedArray(shape, np.dtype(dtype)) for shape, dtype in types]
    program, _ = trace(lambda *args: [fun(*args)], avals)
    return [eqn.primitive.name for eqn in program]


@pytest.mark.parametrize(
    ("fun", "names"),
    [
        (lambda x, i: getitem(x, ...), []),
        (lambda x, i: getitem(x, 2), ["slice", "reshape"]),
        (lambda x, i: getitem(x, np.s_[1:]), ["slice"]),
        (lambda x, i: getitem(x, np.s_[None]), ["reshape"]),
        (lambda x, i: getitem(x, np.s_[::-2]), ["slice", "rev"]),
        (lambda x, i: getitem(x, i), ["lt", "add", "select", "dynamic_slice", "reshape"]),
        (lambda x, i: getitem(x, (i, 1)), ["lt", "add", "select", "dynamic_slice", "reshape"]),
        (lambda x, i: getitem(x, np.array([1, 2])), ["gather"]),
        (lambda x, i: getitem(x, (slice(1, 3), np.array([1, 2]))), ["gather"]),
        (lambda x, i: At(x)[1].set(0.0), ["full", "dynamic_update_slice"]),
        (lambda x, i: At(x)[:].set(0.0), ["full"]),
        (lambda x, i: At(x)[1].add(1.0), ["slice", "add", "dynamic_update_slice"]),
        (lambda x, i: At(x)[np.array([1, 1])].add(1.0), ["full", "scatter_add"]),
        (lambda x, i: At(x)[i, 0].set(1.0), ["lt", "add", "select", "reshape", "scatter_set"]),
    ],
)
def test_programs_are_short(fun, names):
    found = equations(fun, ((4, 5), "float32"), ((), "int32"))
    assert [name for name in found if name != "full" or "full" in names] == names


def test_known_indices_that_do_not_repeat_are_said_to_be_unique():
    def flags(places):
        x = ShapedArray((4, 5), np.dtype("float32"))
        program, _ = trace(lambda x: [At(x)[places, places].add(1.0)], [x])
        return [e.primitive.unique_indices for e in program if e.primitive.name == "scatter_add"]

    assert flags(np.array([0, 1, 3])) == [True]
    assert flags(np.array([0, 1, 1])) == [False]


def test_traced_indices_out_of_bounds_are_clipped_when_read_and_dropped_when_written():
    x = np.arange(4.0, dtype="f")
    for places in (np.array([7, -1, -9], "i"), np.array(9, "i"), np.array(-9, "i")):
        jx, at = jnp.asarray(x), jnp.asarray(places)
        ours = jit(lambda x, i: (getitem(x, i), At(x)[i].set(5.0), At(x)[i].add(5.0)))(x, places)
        theirs = jax.jit(lambda x, i: (x[i], x.at[i].set(5.0), x.at[i].add(5.0)))(jx, at)
        for found, expected in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("mode", ["clip", "fill", "drop", "promise_in_bounds"])
def test_modes_are_those_of_jax(mode):
    x, jx = X[:, :, 0], jnp.asarray(X[:, :, 0])
    places = np.array([0, 9, -1] if mode != "promise_in_bounds" else [0, 3, -1], "i")
    reads = "clip" if mode == "drop" else mode
    for idx, traced in ((9, False), (np.s_[1, 2], False), (places, True), (places[1], True)):
        if mode == "promise_in_bounds" and not traced:
            continue

        def ours(x, i, idx=idx, traced=traced):
            place = At(x)[i if traced else idx]
            return place.get(mode=reads), place.set(1.0, mode=mode), place.max(0.5, mode=mode)

        def theirs(x, idx=idx):
            place = x.at[idx]
            return place.get(mode=reads), place.set(1.0, mode=mode), place.max(0.5, mode=mode)

        for found, expected in zip(jit(ours)(x, idx), jax.jit(theirs)(x), strict=True):
            np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(
        At(x)[places].get(mode="fill", fill_value=7.0),
        jx.at[places].get(mode="fill", fill_value=7.0),
    )


@pytest.mark.parametrize("mode", [None, "fill"])
def test_negative_indices_may_be_out_of_bounds(mode):
    options = {"mode": mode, "wrap_negative_indices": False}
    x, jx = np.arange(4.0, dtype="f"), jnp.arange(4.0)
    for places in (np.array([-1, 2], "i"), np.array([2, -3, -1], "i"), -1):
        place, expected = At(x)[places], jx.at[places]
        np.testing.assert_array_equal(place.get(**options), expected.get(**options))
        np.testing.assert_array_equal(place.set(9.0, **options), expected.set(9.0, **options))


@pytest.mark.parametrize("places", [-1, np.int32(-7), np.array([2, -3], "i")])
def test_a_known_index_must_keep_the_promise_to_be_in_bounds(places):
    options = {"mode": "promise_in_bounds", "wrap_negative_indices": False}
    place = At(np.arange(4.0, dtype="f"))[places]
    for access in (place.get, partial(place.set, 9.0), partial(place.add, 9.0)):
        with pytest.raises(IndexingError, match=r"an index must be in \[0, 4\)"):
            access(**options)


@pytest.mark.parametrize("values", [2.0, np.ones(3, "f"), np.ones((1, 1, 3), "f"), X[:1, :1]])
def test_traced_masks_may_be_written_through(values):
    expected = written(X, MASK, np.reshape(values, np.shape(values)[-1:]))
    ours = jit(lambda x, m, v: At(x)[m].set(v))(X, MASK, values)
    np.testing.assert_array_equal(ours, expected)
    added = jit(lambda x, m, v: At(x)[m].add(v))(X, MASK, values)
    np.testing.assert_allclose(added, X + np.where(MASK[..., None], values, 0), 1e-6)


def test_traced_masks_of_some_axes():
    row, last = MASK[:, 0], np.array([True, False, True])
    found = jit(lambda x, m: At(x)[m].multiply(0.0))(X, row)
    np.testing.assert_array_equal(found, written(X, row, 0.0))
    found = jit(lambda x, m: At(x)[..., m].set(1.0))(X, last)
    np.testing.assert_array_equal(found, written(X, np.s_[..., last], 1.0))
    values = np.arange(5.0, dtype="f")[:, None]
    found = jit(lambda x, m: At(x)[:, :, m].set(values))(X, last)
    np.testing.assert_array_equal(found, written(X, np.s_[:, :, last], values))
    found = jit(lambda x, m: At(x)[m].set(2.0))(X, True)
    np.testing.assert_array_equal(found, np.full_like(X, 2.0))
    found = grad(lambda x: At(x)[x > 0].apply(lambda x: x**0.5).sum())(np.float32([-4.0, 4.0]))
    np.testing.assert_array_equal(found, [1.0, 0.25])


def test_masks_computed_from_differentiated_values_are_known():
    found = grad(lambda x: getitem(x, x > 0).sum() + At(x)[x < 0].set(x[x < 0] ** 2).sum())(X)
    np.testing.assert_allclose(found, np.where(X > 0, 2.0, 2 * X), 1e-6)


def test_other_updates_agree_with_jax():
    x, jx = np.abs(X), jnp.abs(X)

    def updates(at):
        return lambda x: [
            getattr(at(x)[idx], name)(3.0)
            for idx in (1, np.s_[::2], np.s_[:, [0, 0, 1]])
            for name in ("divide", "power", "subtract", "mul")
        ]

    for ours, theirs in zip(jit(updates(At))(x), jax.jit(updates(lambda x: x.at))(x), strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-5)
    ours = At(x)[1:3].apply(lambda x: x * 2)
    np.testing.assert_array_equal(ours, jx.at[1:3].apply(lambda x: x * 2))
    assert isinstance(ours, np.ndarray)
    assert isinstance(At(jx)[0].set(1.0), jax.Array)


def test_values_are_converted_to_the_dtype_of_the_array():
    x = np.arange(4, dtype="i")
    for values in (1.7, np.float32(1.7), np.array([1.7], "f"), True, np.uint8(1)):
        found = At(x)[1:3].set(values)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, [0, 1, 1, 3])
    assert At(np.ones(3, jnp.bfloat16))[0].add(1.0).dtype == jnp.bfloat16
    assert At(np.ones(3, "c8"))[0].set(1.0).dtype == np.complex64
    np.testing.assert_array_equal(At(np.ones(3, bool))[np.array([0])].set(0), [False, True, True])


LOSSES = {
    "read": lambda np, at, x, v, i: x[i] ** 2,
    "read twice": lambda np, at, x, v, i: x[i, :, 1] * x[0, :, 0],
    "set": lambda np, at, x, v, i: at(x)[i].set(v) ** 2,
    "add": lambda np, at, x, v, i: at(x)[i, 1:4].add(v[1:4]) ** 2,
    "multiply": lambda np, at, x, v, i: at(x)[:, i, 0].multiply(v[0, :1], unique_indices=True) ** 2,
    "max": lambda np, at, x, v, i: at(x)[i].max(v) ** 2,
    "strided": lambda np, at, x, v, i: at(x)[::2, i].set(v[:1]) ** 2,
    "known": lambda np, at, x, v, i: at(x)[1::2, ::-1].add(v) ** 2,
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("places", [2, -1, [1, 3]], ids=str)
def test_derivatives_agree_with_jax(name, places):
    values, places = np.sin(X[1]), np.array(places, "i")
    tangents = np.cos(X), np.cos(values)

    def loss(np, at):
        return lambda x, v, i: LOSSES[name](np, at, x, v, i).sum()

    ours, theirs = loss(indexing, At), loss(jnp, lambda x: x.at)
    found = jit(grad(ours, (0, 1)))(X, values, places)
    for x, y in zip(found, jax.jit(jax.grad(theirs, (0, 1)))(X, values, places), strict=True):
        np.testing.assert_allclose(x, y, 1e-5, 1e-6)
    pushed = jvp(lambda *a: ours(*a, places), (X, values), tangents)[1]
    expected = jax.jit(partial(jax.jvp, lambda *a: theirs(*a, places)))((X, values), tangents)[1]
    np.testing.assert_allclose(pushed, expected, 1e-5)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("in_axes", [(0, None, None), (None, None, 0), (2, 0, 0)], ids=str)
def test_batches_agree_with_jax(name, in_axes):
    values, places = np.sin(X[1]), np.array([1, -4], "i")
    shared = np.array(2, "i")
    args = [
        x if axis is None else np.stack([x, x[::-1]], axis)
        for x, axis in zip((X, values), in_axes, strict=False)
    ]
    args.append(shared if in_axes[2] is None else places)

    def fun(np, at):
        return lambda x, v, i: LOSSES[name](np, at, x, v, i)

    found = jit(vmap(fun(indexing, At), in_axes))(*args)
    expected = jax.jit(jax.vmap(fun(jnp, lambda x: x.at), in_axes))(*map(jnp.asarray, args))
    np.testing.assert_allclose(found, expected, 1e-5)


def test_a_gradient_of_a_batch_of_a_gradient():
    places = np.array([[0, 1], [2, 2], [3, 0]], "i")

    def through(grad, vmap, at):
        def inner(x, i):
            return (at(x)[i].add(x[i] ** 3) ** 2).sum()

        return grad(lambda x: (vmap(grad(inner), (None, 0))(x, places) ** 2).sum())

    x = X[:, 0, 0]
    ours = through(grad, vmap, At)(x)
    np.testing.assert_allclose(ours, through(jax.grad, jax.vmap, lambda x: x.at)(x), 1e-4)


def test_the_last_of_repeated_writes_has_the_derivative():
    x, values = np.zeros(3, "f"), np.array([1.0, 2.0, 3.0], "f")
    for places in (np.array([1, 1, 0]), [1, 1, 0]):
        found = jit(grad(lambda v, i=places: (At(x)[i].set(v) ** 2).sum()))(values)
        np.testing.assert_array_equal(found, [0, 4, 6])


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("mode", [None, "clip", "wrap", "fill"])
def test_take_agrees_with_jax(mode, axis):
    for places in (np.array([[0, -1], [200, -70]], "i"), np.array(1, "i"), np.zeros((0, 2), "i")):
        ours = jit(lambda x, i: indexing.take(x, i, axis, mode=mode))(X, places)
        theirs = jax.jit(lambda x, i: jnp.take(x, i, axis, mode=mode))(X, places)
        np.testing.assert_array_equal(ours, theirs)
    known = indexing.take(X, [[0, -1]], axis)
    np.testing.assert_array_equal(known, np.take(X, [[0, -1]], axis))
    assert jit(lambda x: indexing.take(x, 1, axis=0))(X).shape == (5, 3)
    filled = jit(lambda x, i: indexing.take(x, i, 0, fill_value=7.0))(X, np.array([9], "i"))
    np.testing.assert_array_equal(filled, np.full((1, 5, 3), 7.0))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_along_axis_functions_agree_with_numpy(axis):
    order = np.argsort(X, axis)
    flat = X.ravel() if axis is None else X
    ours = jit(lambda x, i: indexing.take_along_axis(x, i, axis))(X, order)
    np.testing.assert_array_equal(ours, np.take_along_axis(X, order, axis))
    expected = X.copy()
    np.put_along_axis(expected, order, np.sort(X, axis), axis)
    values = np.sort(X, axis)
    ours = jit(lambda x, i, v: indexing.scatter_along_axis(x, i, v, axis))(X, order, values)
    np.testing.assert_array_equal(ours, expected)
    theirs = jax.jit(jax.grad(lambda x: (jnp.take_along_axis(x, order, axis) ** 3).sum()))(flat)
    found = grad(lambda x: (indexing.take_along_axis(x, order, axis) ** 3).sum())(flat)
    np.testing.assert_allclose(found, theirs, 1e-5)


@pytest.mark.parametrize("shape", [(1, 2, 3), (4, 2, 1), (1, 2, 1), (4, 0, 3)])
def test_along_axis_functions_broadcast(shape):
    places = np.random.RandomState(2).randint(-5, 5, shape)
    expected = np.take_along_axis(X, places, 1)
    np.testing.assert_array_equal(indexing.take_along_axis(X, places, 1), expected)
    thin = X[:, :, :1]
    np.testing.assert_array_equal(
        indexing.take_along_axis(thin, places, 1), np.take_along_axis(thin, places, 1)
    )
    put = X.copy()
    np.put_along_axis(put, places, 9.0, 1)
    np.testing.assert_array_equal(indexing.scatter_along_axis(X, places, 9.0, 1), put)


def test_choose_and_compress_agree_with_numpy():
    numbers, cases = np.array([[0, 2], [1, 2]]), [1.0, np.array([2.0, 3.0], "f"), X[:2, :2, 0]]
    np.testing.assert_array_equal(indexing.choose(numbers, cases), np.choose(numbers, cases))
    wide = numbers * 7 - 5
    for mode in ("clip", "wrap"):
        expected = np.choose(wide, cases, mode=mode)
        np.testing.assert_array_equal(indexing.choose(wide, cases, mode=mode), expected)
        ours = jit(lambda i, mode=mode: indexing.choose(i, cases, mode=mode))(wide)
        np.testing.assert_array_equal(ours, expected)
    keep = [True, False, True]
    np.testing.assert_array_equal(
        sorting_and_searching.compress(keep, X, 2), np.compress(keep, X, 2)
    )
    ours = jit(lambda x: sorting_and_searching.compress(MASK.ravel(), x))(X)
    np.testing.assert_array_equal(ours, np.compress(MASK.ravel(), X))


def test_empty_axes():
    x = np.zeros((0, 3), "f")
    assert jit(getitem)(x, np.zeros((0,), "i")).shape == (0, 3)
    assert jit(lambda x, i: At(x)[i].set(1.0))(x, np.zeros((2, 0), "i")).shape == (0, 3)
    assert jit(getitem)(np.zeros((2, 0), "f"), np.zeros(5, "i")).shape == (5, 0)
    with pytest.raises(IndexingError, match="an axis of length 0"):
        jit(getitem)(x, np.zeros(2, "i"))


def test_wide_and_unsigned_indices(x64):
    x = np.arange(4.0)
    for places in ([2**32 + 1], [-1], [3]):
        at = np.array(places, np.int64)
        clipped = np.clip(np.where(at < 0, at + 4, at), 0, 3)
        np.testing.assert_array_equal(jit(getitem)(x, at), x[clipped])
        twice = jit(lambda x, i: getitem(x[None], (0 * i, i)))(x, at)
        np.testing.assert_array_equal(twice, x[clipped])
    at = np.array([2**63 + 5, 1], np.uint64)
    np.testing.assert_array_equal(jit(getitem)(x, at), [3, 1])
    np.testing.assert_array_equal(jit(lambda x, i: getitem(x[None], (i * 0, i)))(x, at), [3, 1])


@pytest.mark.parametrize(
    ("idx", "message"),
    [
        (4, r"in \[-4, 4\) for axis 0 of size 4; got 4"),
        ((0, -6), r"in \[-5, 5\) for axis 1 of size 5; got -6"),
        ([0, 7], "axis 0 of size 4; got 7"),
        ((0, 0, 0, 0), "takes at most 3 indices"),
        ((..., 0, ...), "one Ellipsis"),
        (1.0, "must be made of integers"),
        (np.ones(2), "must be made of integers"),
        ("one", "must be made of integers"),
        ((slice(None), MASK), "mask must have the shape of the axes"),
        (slice(1.5), "integer bounds"),
        (slice(None, None, 0), "step that is not 0"),
        (([0, 1], [0, 1, 2]), "index arrays must broadcast"),
    ],
    ids=str,
)
def test_errors_describe_values_that_do_not_fit(idx, message):
    with pytest.raises(IndexError, match=message):
        jit(lambda x: getitem(x, idx))(X)
    with pytest.raises(IndexError, match=message):
        jit(lambda x: At(x)[idx].set(0.0))(X)


def test_traced_items_that_cannot_index_are_said():
    with pytest.raises(IndexingError, match=r"known value[\s\S]*where\(mask[\s\S]*size="):
        jit(getitem)(X, MASK)
    with pytest.raises(IndexingError, match="known value"):
        vmap(lambda x: getitem(x, x > 0))(X)
    with pytest.raises(IndexingError, match="must be made of integers"):
        jit(getitem)(X, np.float32(1.0))
    with pytest.raises(SliceBoundError, match="A slice has a length known while tracing"):
        jit(lambda x, i: getitem(x, slice(i, None)))(X, 1)
    with pytest.raises(IndexingError, match="known value"):
        jit(lambda x, m: At(x)[m].set(np.ones((7, 3))))(X, MASK)
    with pytest.raises(IndexingError, match="mask must have the shape"):
        jit(lambda x, m: At(x)[m].set(1.0))(X, MASK[:, :2])


def test_values_that_do_not_fit_are_said():
    with pytest.raises(ShapeError, match="broadcast to the shape of the indexed elements"):
        At(X)[0].set(np.ones(4))
    with pytest.raises(ShapeError, match="broadcast to the shape of the indexed elements"):
        At(X)[0, 0].set(np.ones((2, 3)))
    with pytest.raises(DTypeError, match="complex value"):
        At(X)[0].set(1j)
    with pytest.raises(ArgumentError, match="mode must be"):
        At(X)[0].set(1.0, mode="sometimes")
    with pytest.raises(ArgumentError, match="fill_value must be a number"):
        jit(lambda x: At(x)[0].get(fill_value=x[0, 0, 0]))(X)
    with pytest.raises(IndexingError, match="take: indices must be integers"):
        indexing.take(X, MASK[0])
    with pytest.raises(AxisError):
        indexing.take(X, 0, axis=3)
    with pytest.raises(ShapeError, match="broadcast but for axis 1"):
        indexing.take_along_axis(X, np.zeros((2, 5, 3), int), 1)
    with pytest.raises(IndexingError, match="numbers must be in"):
        indexing.choose([3], [1.0, 2.0])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_narrow_integers_count_along_axes_longer_than_their_dtype_holds(dtype):
    n = 200
    x = np.arange(n) * 1.0
    low = -100 if dtype == "int8" else 100
    given = np.array([3, low, 127, 0], dtype)
    places = given.astype(int)
    counts = np.abs(places)

    def found(i):
        along = fnp.take_along_axis(fnp.asarray(x), i, 0)
        put = fnp.put(fnp.asarray(x), i, -1.0, mode="wrap", inplace=False)
        part = lax.dynamic_slice(x, (i[1],), (1,))
        new = lax.dynamic_update_slice(x, fnp.full(1, -1.0), (i[1],))
        branches = [lambda k=k: 1.0 * k for k in range(n)]
        chosen = lax.switch(i[2], branches), fnp.choose(i, [*x], mode="wrap")
        flat = fnp.ravel_multi_index((i, i), (n, n), mode="wrap"), *fnp.unravel_index(i, (n, n))
        rolled = fnp.roll(x, i[1]), fnp.roll(x, i[2])
        repeated = fnp.repeat(fnp.arange(4), fnp.abs(i), total_repeat_length=int(counts.sum()))
        taken = fnp.asarray(x)[i], fnp.take(x, i), fnp.take(x, i, mode="wrap")
        return along, put, part, new, *chosen, *flat, *rolled, repeated, *taken

    written = np.array(x)
    written[places] = -1
    new = np.where(x == places[1] % n, -1, x)
    at, around = x[places], places % n
    flat = np.ravel_multi_index((around, around), (n, n))
    split = np.unravel_index(places % (n * n), (n, n))
    rolled = np.roll(x, places[1]), np.roll(x, places[2])
    repeated = np.repeat(np.arange(4), counts)
    wanted = at, written, at[1:2], new, 127.0, at, flat, *split, *rolled, repeated, at, at, at
    for results in (found(given), jit(found)(given)):
        for k, (theirs, ours) in enumerate(zip(wanted, results, strict=True)):
            np.testing.assert_array_equal(ours, theirs, err_msg=str(k))
