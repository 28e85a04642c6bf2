"""Resampling of images against jax.image."""

import jax
import numpy as np
import pytest

import functx
from functx import image
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError

X = np.random.RandomState(0).uniform(-1, 1, (2, 7, 5)).astype("float32")
METHODS = ["nearest", "linear", "cubic", "cubic-pytorch", "lanczos3", "lanczos5", "area"]
SCALE, SHIFT = np.array([1.7, 0.6], "float32"), np.array([0.3, -1.0], "float32")


def results(library, namespace, x):
    """The calls of all methods, as one program."""

    def calls(x):
        for method in METHODS:
            for antialias in (True, False):
                for shape in [(2, 3, 9), (1, 14, 1)]:
                    yield namespace.resize(x, shape, method, antialias)
                if method != "nearest":
                    yield namespace.scale_and_translate(
                        x, (2, 8, 6), (1, 2), SCALE, SHIFT, method, antialias
                    )

    return library.jit(lambda x: list(calls(x)))(x)


def test_the_results_are_those_of_jax():
    for found, expected in zip(results(functx, image, X), results(jax, jax.image, X), strict=True):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(found, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16"])
def test_dtypes_of_results_are_those_of_jax(dtype):
    x = np.asarray(jax.numpy.asarray(X * 10).astype(dtype))
    for method in ("nearest", "linear"):
        found, expected = [n.resize(x, (2, 4, 9), method) for n in (image, jax.image)]
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found.astype("float32"), expected.astype("float32"), 1e-2)


def test_derivatives_in_scale_and_translation_are_those_by_differences(x64):
    weights, x = np.sin(np.arange(96.0)).reshape(2, 8, 6), X.astype(float)

    def losses(scale, shift):
        return [
            (
                weights * image.scale_and_translate(x, (2, 8, 6), (1, 2), scale, shift, m, False)
            ).sum()
            for m in METHODS[1:]
        ]

    scale, shift, step = np.array([1.73, 0.61]), np.array([0.31, -1.07]), 1e-6
    along = np.array([0.6, -0.8]), np.array([1.0, 0.5])
    jitted = functx.jit(losses)
    _, tangents = functx.jvp(losses, (scale, shift), along)
    ends = [jitted(scale + s * along[0], shift + s * along[1]) for s in (-step, step)]
    differences = (np.array(ends[1]) - np.array(ends[0])) / (2 * step)
    np.testing.assert_allclose(np.array(tangents), differences, 1e-6)
    backward = functx.grad(lambda s, t: sum(losses(s, t)), (0, 1))(scale, shift)
    np.testing.assert_allclose(
        sum(np.dot(ct, t) for ct, t in zip(backward, along, strict=True)), np.sum(tangents), 1e-10
    )


def test_an_image_is_mapped_and_may_be_empty():
    resize = functx.vmap(lambda x: image.resize(x, (3, 3), image.ResizeMethod.LINEAR))
    np.testing.assert_allclose(resize(X), image.resize(X, (2, 3, 3), "bilinear"), 1e-6)
    assert image.resize(X[:0], (0, 3, 3), "cubic").shape == (0, 3, 3)
    assert image.resize(X, (2, 0, 3), "cubic").shape == (2, 0, 3)


def test_wrong_arguments_are_told():
    with pytest.raises(ShapeError, match=r"a length for each dimension .* got \(3,\)"):
        image.resize(X, (3,), "linear")
    with pytest.raises(ValueRangeError, match="a method must be one of 'nearest'"):
        image.resize(X, (2, 7, 5), "sharp")
    with pytest.raises(ArgumentError, match="must be a ResizeMethod or its name; got 1"):
        image.resize(X, (2, 7, 5), 1)
    with pytest.raises(ValueRangeError, match="several elements; got 'nearest'"):
        image.scale_and_translate(X, (2, 7, 5), (1,), SCALE[:1], SHIFT[:1], "nearest")
    with pytest.raises(ShapeError, match="scale must have a number for each of the 1"):
        image.scale_and_translate(X, (2, 7, 5), (1,), SCALE, SHIFT, "linear")
