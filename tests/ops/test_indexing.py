"""Gathers and scatters: the values of jax.lax, repeated writes, and what does not fit."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from functx import lax as functx_lax
from functx.core.errors import ArgumentError, DTypeError, ShapeError
from functx.core.samples import draw_operands
from functx.core.tracing import trace
from functx.core.types import ShapedArray
from functx.lowering.functx_call import jit_program
from functx.lowering.jit import jit
from functx.ops.arithmetic import mul
from functx.ops.indexing import Gather, GatherDimensionNumbers, ScatterDimensionNumbers, gather
from functx.ops.reductions import reduce_sum
from functx.ops.scattering import ScatterAdd, ScatterSet, scatter, scatter_add
from functx.ops.shapes import broadcast_in_dim
from functx.transforms.grad import grad
from functx.transforms.jvp import jvp
from functx.transforms.vmap import vmap

ROWS = ScatterDimensionNumbers((1,), (0,), (0,))
ELEMENTS = ScatterDimensionNumbers((), (0,), (0,))
SCATTERS = ("scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max")
random = np.random.RandomState(0)


def numbers(dimension_numbers):
    """The same dimension numbers as JAX's."""
    kind = type(dimension_numbers).__name__
    return getattr(lax, kind)(**dimension_numbers._asdict())


@pytest.mark.parametrize("mode", ["clip", "fill", None, lax.GatherScatterMode.CLIP])
@pytest.mark.parametrize("number", range(len(Gather.samples)))
def test_gather_agrees_with_jax(number, mode):
    one = Gather.samples[number]
    args = draw_operands(one)
    read = Gather(**one.params)
    theirs = lax.gather(*args, numbers(read.dimension_numbers), read.slice_sizes, mode=mode)
    ours = jit(lambda *a: gather(*a, read.dimension_numbers, read.slice_sizes, mode=mode))(*args)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "int8", "uint16", "bool"])
def test_gather_fills_in_every_dtype(dtype):
    x = random.uniform(0, 2, (4, 2)).astype(jnp.dtype(dtype))
    places = np.array([[3], [-1], [4], [0]])
    dims = GatherDimensionNumbers((1,), (0,), (0,))
    for fill_value in (None, 1):
        options = {"mode": "fill", "fill_value": fill_value}
        theirs = lax.gather(x, places, numbers(dims), (1, 2), **options)
        ours = gather(x, places, dims, (1, 2), **options)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours.astype("complex64"), theirs.astype("complex64"))


@pytest.mark.parametrize("mode", ["clip", "drop"])
@pytest.mark.parametrize("name", SCATTERS)
def test_scatters_agree_with_jax(name, mode):
    x, updates = random.randn(5, 3).astype("f"), random.randn(4, 3).astype("f")
    places = np.array([[3], [0], [3], [9]])
    theirs = getattr(lax, name)(x, places, updates, numbers(ROWS), mode=mode)
    ours = jit(lambda *a: getattr(functx_lax, name)(*a, ROWS, mode=mode))(x, places, updates)
    np.testing.assert_allclose(ours, theirs, 1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "complex64", "int8", "uint16", "bool"])
@pytest.mark.parametrize("name", SCATTERS)
def test_scatters_take_every_dtype_that_makes_sense(name, dtype):
    x = random.uniform(0, 4, 5).astype(jnp.dtype(dtype))
    updates = random.uniform(0, 4, 4).astype(jnp.dtype(dtype))
    places = np.array([[3], [0], [3], [9]])
    ours = partial(getattr(functx_lax, name), x, places, updates, ELEMENTS)
    if dtype == "complex64" and name in ("scatter_min", "scatter_max"):
        with pytest.raises(DTypeError, match="bool or int or uint or float"):
            ours()
        return
    if dtype == "bool":
        # JAX adds and multiplies no booleans; here that is "or" and "and".
        name = {"scatter_add": "scatter_max", "scatter_mul": "scatter_min"}.get(name, name)
    # Sums and products of bfloat16 are made in float32, and rounded once.
    many = name in ("scatter_add", "scatter_mul")
    wide = "float32" if many and dtype == "bfloat16" else dtype
    args = x.astype(jnp.dtype(wide)), places, updates.astype(jnp.dtype(wide)), numbers(ELEMENTS)
    theirs = getattr(lax, name)(*args, mode="drop")
    np.testing.assert_array_equal(ours(), theirs.astype(x.dtype))


@pytest.mark.parametrize("index_dtype", ["int8", "uint8", "int32", "uint32"])
def test_narrow_indices_reach_into_long_axes(index_dtype):
    x = np.arange(300.0, dtype="f")
    places = np.array([[100], [120]], index_dtype)
    dims = GatherDimensionNumbers((), (0,), (0,))
    for mode in ("clip", "fill"):
        np.testing.assert_array_equal(gather(x, places, dims, (1,), mode=mode), [100, 120])
    for mode in ("clip", "drop"):
        written = scatter_add(x, places, np.ones(2, "f"), ELEMENTS, mode=mode)
        np.testing.assert_array_equal(np.asarray(written) - x, np.isin(x, [100, 120]))

    @jit
    def at(x, i):
        one = x[:1] + 1
        new = functx_lax.dynamic_update_slice(x, one, (i,), allow_negative_indices=False)
        return (
            new,
            x.at[i].set(1.0),
            functx_lax.dynamic_slice(x, (i,), (1,), allow_negative_indices=False),
        )

    new, put, part = at(x, np.array(120, index_dtype))
    wanted = np.where(x == 120, 1, x)
    assert np.array_equal(new, wanted) and np.array_equal(put, wanted) and part == 120


def test_of_repeated_writes_the_last_stays_and_has_the_derivative():
    places = np.array([[1], [0], [1], [7], [0]])
    updates = np.arange(1.0, 6.0, dtype="f")
    weights = np.array([10.0, 100.0, 1000.0], "f")

    def loss(x, updates):
        return reduce_sum(mul(weights, scatter(x, places, updates, ELEMENTS)))

    x = np.zeros(3, "f")
    np.testing.assert_array_equal(scatter(x, places, updates, ELEMENTS), [5, 3, 0])
    found = grad(loss, (0, 1))(x, updates)
    np.testing.assert_array_equal(found[0], [0, 0, 1000])
    np.testing.assert_array_equal(found[1], [0, 0, 100, 0, 10])
    tangents = np.zeros(3, "f"), np.array([1, 2, 3, 4, 5], "f")
    pushed = jvp(lambda *a: scatter(a[0], places, a[1], ELEMENTS), (x, updates), tangents)[1]
    np.testing.assert_array_equal(pushed, [5, 3, 0])


@pytest.mark.parametrize("name", SCATTERS)
def test_updates_that_are_dropped_or_replaced_have_no_influence(name):
    update = getattr(functx_lax, name)

    def total(u, w, columns):
        rows = np.array([[0], [1], [9], [-7]])
        if not columns:
            return reduce_sum(update(np.ones(3, "float32"), rows, mul(w, u), ELEMENTS))
        wide = broadcast_in_dim(mul(w, u), (4, 2), (0,))
        return reduce_sum(update(np.ones((3, 2), "float32"), rows, wide, ROWS))

    u = np.array([1, 2, 3, 4], "float32")
    w, zeroed = np.array([[0.5, 5, np.nan, np.inf], [0.5, 5, 0, 0]], "float32")
    for columns in (False, True):
        found = jit(grad(lambda u, w, c=columns: total(u, w, c)))
        np.testing.assert_array_equal(found(u, w), found(u, zeroed))
        assert np.any(found(u, w) != 0)

    def replaced(u, w):
        x = scatter(
            mul(w[2:], u[2:]), np.array([[0], [1], [1]]), mul(w[[0, 1, 0]], u[:3]), ELEMENTS
        )
        return reduce_sum(x)

    overwritten = np.array([2, np.nan, np.inf, np.nan], "float32")
    np.testing.assert_array_equal(grad(replaced)(u, overwritten), [2, 0, 2, 0])


@pytest.mark.parametrize("number", range(len(ScatterSet.samples)))
@pytest.mark.parametrize("dtype", ["float32", "int32", "complex64", "bool"])
def test_writing_in_any_order_gives_what_writing_in_order_does(number, dtype):
    one = ScatterSet.samples[number]
    x, places, updates = draw_operands(one)
    x, updates = x.astype(dtype), updates.astype(dtype)
    updates.flat[0] = -0.0
    write = ScatterSet(**one.params)
    in_order, any_order = jit(lambda *a: [write(*a), *write.order_independent(*a)])(
        x, places, updates
    )
    np.testing.assert_array_equal(in_order, any_order)
    if dtype == "float32":
        np.testing.assert_array_equal(np.signbit(in_order), np.signbit(any_order))


@pytest.mark.parametrize("name", SCATTERS)
def test_scatters_are_lowered_for_accelerators(x64, name):
    x, places = np.ones((5, 3)), np.array([[3], [0], [3]])
    for dtype in ("float32", "complex128")[: 1 if name in ("scatter_min", "scatter_max") else 2]:
        types = [
            ShapedArray(a.shape, np.dtype(kind))
            for a, kind in ((x, dtype), (places, "int32"), (np.ones((3, 3)), dtype))
        ]
        program, _ = trace(lambda *a: [getattr(functx_lax, name)(*a, ROWS)], types)
        args = [np.zeros(aval.shape, aval.dtype) for aval in types]
        lowered = jit_program(program).trace(*args).lower(lowering_platforms=("cuda",))
        count = lowered.as_text().count('"stablehlo.scatter"(')
        # Set: the numbers of the updates, what is cleared, and the last of them. Add: by parts.
        by_parts = dtype == "complex128" and name in ("scatter", "scatter_add")
        assert count == {"scatter": 3, "scatter_add": 1}.get(name, 1) + by_parts


def test_the_product_of_many_repeated_factors_is_differentiated_without_dividing():
    places = np.array([[0], [2], [0], [0], [1], [2], [0]])
    factors = np.array([2.0, 0.0, 3.0, 5.0, 7.0, 0.0, 1.0], "f")
    x = np.array([1.0, 2.0, 3.0, 4.0], "f")

    def loss(factors):
        return reduce_sum(functx_lax.scatter_mul(x, places, factors, ELEMENTS))

    np.testing.assert_allclose(grad(loss)(factors), [15, 0, 10, 6, 2, 0, 30])
    factors[1] = 6.0
    np.testing.assert_allclose(grad(loss)(factors), [15, 0, 10, 6, 2, 18, 30])


@pytest.mark.parametrize("in_axes", [(0, None, None), (None, 1, None), (None, None, 2), (1, 0, 1)])
@pytest.mark.parametrize("name", ["scatter", "scatter_add"])
def test_batched_scatters_agree_with_jax(name, in_axes):
    args = random.randn(5, 3).astype("f"), np.array([[3], [0], [2], [9]]), random.randn(4, 3)
    args = [
        a if d is None else np.stack([a, a[::-1]], d) for a, d in zip(args, in_axes, strict=True)
    ]
    args[2] = args[2].astype("f")
    theirs = jax.jit(
        jax.vmap(lambda *a: getattr(lax, name)(*a, numbers(ROWS), mode="drop"), in_axes)
    )(*args)
    ours = jit(vmap(lambda *a: getattr(functx_lax, name)(*a, ROWS), in_axes))(*args)
    np.testing.assert_allclose(ours, theirs, 1e-6)


def test_batched_gathers_and_scatters_stay_one_operation():
    x, places = np.ones((2, 5, 3), "f"), np.ones((2, 4, 1), "i")
    dims = GatherDimensionNumbers((1,), (0,), (0,))
    text = jit(vmap(lambda *a: gather(*a, dims, (1, 3)))).lower(x, places).as_text()
    assert text.count('"stablehlo.gather"(') == 1
    assert "concatenate" not in text


def test_arrays_without_elements():
    dims = GatherDimensionNumbers((1,), (0,), (0,))
    x = np.ones((3, 0), "f")
    assert gather(x, np.zeros((4, 1), "i"), dims, (1, 0)).shape == (4, 0)
    assert gather(np.ones((3, 2), "f"), np.zeros((0, 1), "i"), dims, (1, 2)).shape == (0, 2)
    empty = scatter_add(x, np.zeros((4, 1), "i"), np.ones((4, 0), "f"), ROWS)
    assert empty.shape == (3, 0)
    batched = vmap(lambda x, i: gather(x, i, dims, (1, 2), mode="clip"))
    assert batched(np.ones((0, 3, 2), "f"), np.zeros((0, 4, 1), "i")).shape == (0, 4, 2)


@pytest.mark.parametrize(
    ("fields", "types", "message"),
    [
        ({}, ("f4", "f4"), "indices must be integers"),
        ({"slice_sizes": (1, 9)}, ("f4", "i4"), "must fit inside the operand"),
        ({"slice_sizes": (2, 3)}, ("f4", "i4"), "collapsed dimensions must have length 1"),
        ({"start_index_map": (0, 1)}, ("f4", "i4"), "a component for each dimension"),
        ({"start_index_map": (7,)}, ("f4", "i4"), "must be dimensions of the operand"),
        ({"offset_dims": ()}, ("f4", "i4"), "give a place to every dimension"),
        ({"operand_batching_dims": (1,)}, ("f4", "i4"), "pairs of one size"),
    ],
)
def test_gather_says_what_does_not_fit(fields, types, message):
    one = Gather.samples[0]
    read = Gather(**{**one.params, **fields})
    args = [x.astype(dtype) for x, dtype in zip(draw_operands(one), types, strict=True)]
    with pytest.raises((ShapeError, DTypeError), match=message):
        read(*args)


def test_scatters_say_what_does_not_fit():
    x, places = np.ones((5, 3), "f"), np.zeros((4, 1), "i")
    with pytest.raises(ShapeError, match="updates must have the dimensions of the indices"):
        scatter_add(x, places, np.ones((2, 3), "f"), ROWS)
    with pytest.raises(ShapeError, match="must fit inside the operand"):
        scatter_add(x, places, np.ones((4, 7), "f"), ROWS)
    with pytest.raises(DTypeError, match="one dtype"):
        ScatterAdd(*ROWS)(x, places, np.ones((4, 3), "i"))
    with pytest.raises(ArgumentError, match="mode must be"):
        scatter(x, places, np.ones((4, 3), "f"), ROWS, mode="wrap")
