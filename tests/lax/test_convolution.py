"""Convolutions and their derivatives against JAX's, NumPy's rows against NumPy's."""

import jax
import numpy as onp
import pytest

import functx as fx
from functx import lax

RNG = onp.random.default_rng(0)
SIZES = {"N": 4, "C": 4, "H": 6, "W": 5, "O": 8}

GEOMETRIES = {
    "same": {"window_strides": (1, 1), "padding": "SAME"},
    "strides": {"window_strides": (2, 1), "padding": "VALID"},
    "holes and negative padding": {
        "window_strides": (2, 3), "padding": [(1, 2), (0, -1)],
        "lhs_dilation": (2, 1), "rhs_dilation": (1, 2),
    },
    "groups": {"window_strides": (1, 2), "padding": "SAME_LOWER", "feature_group_count": 2},
    "depthwise": {
        "window_strides": (3, 2), "padding": "SAME", "rhs_dilation": (2, 2), "feature_group_count": 4,
    },
    "groups of the batch": {
        "window_strides": (1, 1), "padding": [(1, 1), (2, 0)],
        "lhs_dilation": (1, 2), "batch_group_count": 2,
    },
}  # fmt: skip
LAYOUTS = {
    "default": None,
    "channels last": ("NHWC", "HWIO", "NHWC"),
    "mixed": ("NHWC", "OIHW", "CHWN"),
}


def operands(layout, options):
    kernel = {"O": 8, "I": 4 // options.get("feature_group_count", 1), "H": 3, "W": 2}
    array, weights, _ = layout or ("NCHW", "OIHW", "NCHW")
    shapes = [SIZES[c] for c in array], [kernel[c] for c in weights]
    return [RNG.normal(size=shape).astype("float32") for shape in shapes]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("options", GEOMETRIES.values(), ids=GEOMETRIES)
def test_values_gradients_and_batches_are_those_of_jax(options, layout):
    x, k = operands(layout, options)

    def results(framework):
        def conv(x, k):
            return framework.lax.conv_general_dilated(x, k, dimension_numbers=layout, **options)

        def pulled(x, k):
            return framework.grad(lambda x, k: (conv(x, k) ** 2).sum(), (0, 1))(x, k)

        # One program: compiled alone, each of these would cost as much as all of them.
        @framework.jit
        def together(x, k, xs, ks, moved):
            return [
                conv(x, k),
                *pulled(x, k),
                framework.vmap(conv)(xs, ks),
                *framework.vmap(pulled)(xs, ks),
                *framework.vmap(pulled, (None, 0))(x, ks),
                *framework.vmap(pulled, (3, None))(moved, k),
            ]

        xs, ks = onp.stack([x, -x]), onp.stack([k, 2 * k])
        return together(x, k, xs, ks, onp.moveaxis(xs, 0, 3))

    for ours, theirs in zip(results(fx), results(jax), strict=True):
        onp.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("padding", ["SAME", "VALID", [(1, 2), (0, 3)]])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3), (4, 1)])
@pytest.mark.parametrize("flipped", [False, True])
def test_transposed_convolutions_are_those_of_jax(padding, strides, flipped):
    x = RNG.normal(size=(2, 5, 4, 3)).astype("float32")
    k = RNG.normal(size=(3, 2, 4, 3) if flipped else (3, 2, 3, 4)).astype("float32")
    ours, theirs = [
        where.conv_transpose(x, k, strides, padding, transpose_kernel=flipped)
        for where in (lax, jax.lax)
    ]
    onp.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_padding_may_be_that_of_the_convolution_that_is_transposed():
    x = RNG.normal(size=(2, 5, 4, 3)).astype("float32")
    k = RNG.normal(size=(3, 2, 3, 4)).astype("float32")
    ours, theirs = [
        where.conv_transpose(x, k, (2, 1), [(1, 0), (0, 2)], (1, 2), use_consistent_padding=True)
        for where in (lax, jax.lax)
    ]
    onp.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["convolve", "correlate"])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("lengths", [(5, 3), (3, 5), (4, 4), (6, 2), (2, 6), (1, 1)])
def test_rows_are_convolved_as_numpy_does(name, mode, lengths):
    a, v = [RNG.integers(-5, 5, n) for n in lengths]
    expected = getattr(onp, name)(a, v, mode)
    onp.testing.assert_array_equal(getattr(fx.numpy, name)(a, v, mode), expected)
    z = (a + 1j * a[::-1]).astype("complex64"), (v - 2j * v).astype("complex64")
    onp.testing.assert_allclose(getattr(fx.numpy, name)(*z, mode), getattr(onp, name)(*z, mode))


@pytest.mark.parametrize("name", ["convolve", "correlate"])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("lengths", [(5, 3), (3, 5), (6, 1), (300, 280)])
def test_rows_of_booleans_are_convolved_as_numpy_does(name, mode, lengths):
    ours, theirs = getattr(fx.numpy, name), getattr(onp, name)
    a, v = [RNG.random(n) < 0.5 for n in lengths]
    for first, second in [(a, v), (a, a & False), (a | True, v | True)]:
        expected = theirs(first, second, mode)
        for function in (ours, fx.jit(ours, static_argnums=2)):
            found = function(first, second, mode)
            assert found.dtype == expected.dtype == bool
            onp.testing.assert_array_equal(found, expected)
    counts = ours(a, v, mode, preferred_element_type="float32")
    onp.testing.assert_array_equal(counts, theirs(a.astype("float32"), v.astype("float32"), mode))
    mixed = ours(a, onp.arange(len(v)), mode)
    onp.testing.assert_array_equal(mixed, theirs(a, onp.arange(len(v)), mode))


X, K = onp.ones((1, 2, 4, 4), "float32"), onp.ones((3, 2, 2, 2), "float32")


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"rhs": K[:, :1]}, "ShapeError", "whose batch and channels are 1, 2 and 3, 1"),
        ({"rhs": K[0]}, "ShapeError", "array and kernel must have one rank"),
        ({"dimension_numbers": ("NCHW", "OIHW")}, "ArgumentError", "must be None, three strings"),
        ({"dimension_numbers": ("NCHW", "OIHX", "NCHW")}, "ArgumentError", "got 'NCHW' in"),
        ({"window_strides": (1,)}, "ShapeError", "window_strides must have an entry for each of 2"),
        ({"padding": "FULL"}, "ValueRangeError", 'padding must be "SAME", "SAME_LOWER", "VALID"'),
        ({"feature_group_count": 0}, "ValueRangeError", "must be positive; got 0 and 1"),
        ({"feature_group_count": 2, "batch_group_count": 2}, "ValueRangeError", "at most one of"),
        ({"feature_group_count": 2}, "ShapeError", "as many input channels as each of 2 groups"),
    ],
)
def test_mistakes_are_named(change, kind, message):
    given = {"lhs": X, "rhs": K, "window_strides": (1, 1), "padding": "VALID", **change}
    with pytest.raises(getattr(fx.errors, kind)) as caught:
        lax.conv_general_dilated(**given)
    assert message in str(caught.value)


def test_rows_that_are_none_are_refused():
    with pytest.raises(fx.errors.ShapeError, match="one-dimensional and not empty; got"):
        fx.numpy.convolve(X, K)
    with pytest.raises(fx.errors.ValueRangeError, match="mode must be"):
        fx.numpy.correlate([1.0], [1.0], "half")


@pytest.mark.parametrize("shape", [(2, 2, 0), (2, 2, 1), (0, 2, 4)])
def test_a_convolution_without_windows_has_zeros_for_derivatives(shape):
    x, kernel = onp.ones(shape, "float32"), onp.ones((3, 2, 2), "float32")

    def total(x, kernel):
        return (lax.conv(x, kernel, (2,), "VALID") ** 2).sum()

    for function in (fx.grad(total, (0, 1)), fx.jit(fx.grad(total, (0, 1)))):
        for found, like in zip(function(x, kernel), (x, kernel), strict=True):
            assert found.shape == like.shape and not found.any()
    batch = onp.stack([kernel, kernel])
    assert not fx.vmap(fx.grad(total, 1), in_axes=(None, 0))(x, batch).any()
    assert fx.hessian(total, 1)(x, kernel).shape == (*kernel.shape, *kernel.shape)


def test_groups_of_the_batch_are_groups_of_channels_on_cpus():
    x, kernel = onp.ones((4, 2, 5), "float32"), onp.ones((6, 2, 3), "float32")
    convolve = fx.jit(
        lambda x, k: lax.conv_general_dilated(x, k, (1,), "SAME", batch_group_count=2)
    )
    text = convolve.lower(x, kernel).as_text()
    assert "batch_group_count = 1" in text and "feature_group_count = 2" in text
