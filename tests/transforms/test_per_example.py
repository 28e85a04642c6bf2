"""Derivatives of each example: values, norms and clipped sums, and what is not formed."""

import jax
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx import lax
from functx.errors import GradientError, InAxesError, ValueRangeError
from functx.passes.reassociation import ReassociateContractions
from functx.testing.reference import interpret_in_numpy

pytestmark = pytest.mark.usefixtures("scaling_is_free")


def numbers(*shape, seed=0):
    return (np.random.RandomState(seed + sum(shape)).randn(*shape) * 0.3).astype("float32")


def conv(x, kernel, **options):
    return lax.conv_general_dilated(
        x, kernel, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options
    )


def network_loss(params, x, y):
    h = fnp.tanh(conv(x, params[0], window_strides=(2, 2), padding="SAME"))
    h = fnp.tanh(conv(h, params[1], window_strides=(1, 2), padding="VALID"))
    return ((h.mean((1, 2)) @ params[2] - y) ** 2).sum()


NETWORK = [numbers(3, 3, 2, 16), numbers(3, 2, 16, 40), numbers(40, 3)]
IMAGES, TARGETS = numbers(5, 9, 8, 2), numbers(5, 3)


def test_norms_and_clipped_sums_are_those_of_the_gradients():
    gradients = functx.per_example_grad(network_loss, as_batches=True)(NETWORK, IMAGES, TARGETS)
    one = functx.grad(network_loss)(NETWORK, IMAGES[3:4], TARGETS[3:4])
    norms = np.sqrt(sum((np.asarray(g) ** 2).reshape(5, -1).sum(1) for g in gradients))
    limit = float(np.median(norms))
    total, found = functx.clipped_sum(network_loss, limit, as_batches=True, with_norms=True)(
        NETWORK, IMAGES, TARGETS
    )
    np.testing.assert_allclose(found, norms, rtol=1e-4)
    scale = np.minimum(1.0, limit / norms)
    for gradient, alone, summed in zip(gradients, one, total, strict=True):
        np.testing.assert_allclose(gradient[3], alone, rtol=1e-3, atol=1e-5)
        expected = np.tensordot(scale, np.asarray(gradient), 1)
        np.testing.assert_allclose(summed, expected, rtol=1e-3, atol=1e-5)


def test_gradients_of_zero_may_be_clipped_to_zero():
    rows = np.array([[3.0, 4.0], [0.0, 0.0]], "float32")
    total = functx.clipped_sum(lambda w, x: (w * x).sum(), 0.0)(rows[0], rows)
    np.testing.assert_array_equal(total, [0.0, 0.0])


def test_norms_of_several_dtypes_are_in_the_widest():
    params = numbers(3), numbers(3, seed=1).astype("float16"), numbers(3, seed=2).astype("float64")

    def loss(params, x):
        return (params[0] * x).sum() + 2 * (params[1] * x).sum() + 2 * (params[2] * x).sum()

    x = numbers(4, 3)
    with jax.enable_x64(True):
        program = functx.make_ir(functx.clipped_sum(loss, 0.5, with_norms=True))(params, x)
        *total, norms = interpret_in_numpy(program, *params, x)
    assert [g.dtype for g in total] == [p.dtype for p in params] and norms.dtype == "float64"
    np.testing.assert_allclose(norms, 3 * np.linalg.norm(x, axis=1), rtol=1e-3)


def test_a_batch_of_no_examples_has_gradients_of_zero():
    def loss(params, tokens, y):
        rows = params[0].at[0].add(1.0)[tokens]
        out = conv(rows[:, None], params[1], window_strides=(1,), padding="SAME")
        return ((out - y) ** 2).sum()

    def conv(x, kernel, **options):
        numbers = ("NWC", "WIO", "NWC")
        return lax.conv_general_dilated(x, kernel, dimension_numbers=numbers, **options)

    params = numbers(5, 4), numbers(3, 4, 2)
    args = params, np.zeros((0, 3), int), numbers(0, 2)
    gradients = functx.make_ir(functx.per_example_grad(loss))(*args)
    assert [a.shape for a in gradients.out_avals] == [(0, 5, 4), (0, 3, 4, 2)]
    summed = functx.make_ir(functx.clipped_sum(loss, 1.0))(*args)
    for total in interpret_in_numpy(summed, *functx.tree.leaves(args)):
        assert not total.any()


def test_gradients_of_convolutions_are_not_formed_where_windows_are_few():
    clipped = functx.clipped_sum(network_loss, 1.0, as_batches=True)
    rows = functx.tools.products(clipped)(NETWORK, IMAGES, TARGETS).sums
    formed = {row.shape: row.is_formed for row in rows if len(row.result) == 1}
    assert formed == {(3, 2, 16, 200): False}, rows


CONVOLUTIONS = {
    "strides": {"window_strides": (2, 1), "padding": "VALID"},
    "padding": {"window_strides": (1, 2), "padding": [(1, 0), (0, 2)]},
    "dilated windows": {"window_strides": (1, 1), "padding": "SAME", "rhs_dilation": (2, 1)},
    "dilated images": {"window_strides": (1, 2), "padding": "VALID", "lhs_dilation": (1, 2)},
    "groups": {"window_strides": (1, 1), "padding": "VALID", "feature_group_count": 2},
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_sums_over_derivatives_of_kernels_are_computed_from_windows(name):
    options = CONVOLUTIONS[name]
    channels = 16 // options.get("feature_group_count", 1)
    kernel, images = numbers(3, 2, channels, 48), numbers(3, 3, 3, 16)

    def loss(kernel, image):
        return (conv(image, kernel, **options) ** 2).sum()

    def sums(kernel, images):
        gradients = functx.per_example_grad(loss, as_batches=True)(kernel, images)
        return fnp.sum(gradients**2, (1, 2, 3, 4)), fnp.tensordot(images[:, 0, 0, 0], gradients, 1)

    program = functx.make_ir(sums)(kernel, images)
    simpler = ReassociateContractions("always")(program)
    names = [eqn.primitive.name for eqn in simpler]
    assert names.count("convolution") < [e.primitive.name for e in program].count("convolution")
    for found, expected in zip(
        interpret_in_numpy(simpler, kernel, images),
        interpret_in_numpy(program, kernel, images),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5)


def test_axes_are_checked_and_mistakes_named():
    def loss(w, x):
        return (w * x).sum()

    norms = functx.per_example_norms(loss, in_axes=(None, 1))(np.ones(2), np.eye(2, 3))
    np.testing.assert_allclose(norms, [1.0, 1.0, 0.0])
    second = functx.per_example_norms(lambda x, w: loss(w, x), -1)(np.eye(2), np.ones(2))
    np.testing.assert_allclose(second, [1.0, 1.0])
    with pytest.raises(InAxesError, match="an entry for each argument; got \\(None,\\) for 2"):
        functx.per_example_norms(loss, in_axes=(None,))(np.ones(2), np.eye(2))
    with pytest.raises(InAxesError, match="ints and None with as_batches=True"):
        functx.per_example_grad(loss, in_axes=(None, [0]), as_batches=True)(np.ones(2), [np.eye(2)])
    with pytest.raises(ValueRangeError, match="max_norm must be no negative number; got -1"):
        functx.clipped_sum(loss, -1.0)
    with pytest.raises(
        GradientError, match="per_example_norms: the arguments at argnums must hold"
    ):
        functx.per_example_norms(lambda none, x: x.sum())((), np.eye(2))
