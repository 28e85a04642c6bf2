"""`autograd.checkpoint`: recomputed values, draws, nesting and mistakes."""

import gc
import random
import weakref

import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx.autograd import Variable, checkpoint, forward_ad, grad, no_grad, save_on_cpu
from functx.core.errors import (
    ArgumentError,
    AutogradInTransformError,
    CheckpointError,
    SavedValueError,
)

POINT = onp.array([0.5, 1.0, 2.0], "float32")


def leaf(value=POINT):
    return Variable(value, requires_grad=True)


def block(x, scale=3):
    y = np.sin(x) * x
    y *= scale
    return np.exp(y) / x


def gradients(fun, **options):
    x = leaf()
    fun(block, x, **options).sum().backward()
    return onp.asarray(x.grad)


def plain(function, *args, **kwargs):
    return function(*args, **kwargs)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradients_are_those_of_the_plain_call(use_reentrant):
    found = gradients(checkpoint, use_reentrant=use_reentrant)
    onp.testing.assert_allclose(found, gradients(plain), rtol=1e-5)


def test_the_values_that_nodes_save_are_not_kept_and_are_computed_once_in_a_walk():
    calls, inner = [], []

    def noted(x):
        calls.append(1)
        y = np.sin(x)
        inner.append(weakref.ref(y._recorded))
        return np.exp(y) * np.tanh(y)

    def overwritten(x):
        y = np.sin(x)
        inner.append(weakref.ref(y._recorded))
        y *= 2
        return y

    gc.disable()
    try:
        x = leaf()
        y = checkpoint(noted, x)
        assert inner[0]() is None and len(calls) == 1
        y.sum().backward()
        assert len(calls) == 2
        y = checkpoint(overwritten, x)
        assert inner[-1]() is None and y.shape == x.shape
    finally:
        gc.enable()


def test_grad_and_derivatives_of_second_order_and_keywords_work():
    def derivatives(call):
        x = leaf()
        (slope,) = grad(call(block, x, scale=2).sum(), x, create_graph=True)
        (curvature,) = grad(slope.sum(), x)
        return onp.asarray(slope), onp.asarray(curvature)

    for found, expected in zip(derivatives(checkpoint), derivatives(plain), strict=True):
        onp.testing.assert_allclose(found, expected, rtol=1e-4)


def test_calls_may_be_nested_and_combined_with_pairs_of_hooks():
    def outer(x):
        y = np.tanh(x) * x
        return checkpoint(lambda y: np.sin(np.sin(y) * x), y * 2) * y

    def outer_plain(x):
        y = np.tanh(x) * x
        return np.sin(np.sin(y * 2) * x) * y

    x = leaf()
    outer_plain(x).sum().backward()
    expected, x.grad = onp.asarray(x.grad), None
    checkpoint(outer, x).sum().backward()
    onp.testing.assert_allclose(onp.asarray(x.grad), expected, rtol=1e-5)
    x.grad = None
    with save_on_cpu():
        y = checkpoint(outer, x)
    y.sum().backward()
    onp.testing.assert_allclose(onp.asarray(x.grad), expected, rtol=1e-5)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_draws_are_repeated_and_the_generators_continue_as_before(use_reentrant):
    drawn = []

    def dropped(x):
        mask = onp.random.rand(3) < 0.5
        drawn.append((mask.tolist(), random.random()))
        return np.sin(x) * mask

    x = leaf()
    y = checkpoint(dropped, x, use_reentrant=use_reentrant)
    before = onp.random.get_state()[1].tolist(), random.getstate()
    y.sum().backward()
    assert drawn[0] == drawn[1]
    assert (onp.random.get_state()[1].tolist(), random.getstate()) == before
    onp.testing.assert_allclose(onp.asarray(x.grad), onp.cos(POINT) * drawn[0][0], rtol=1e-6)
    key = functx.random.key(0)
    x.grad = None
    y = checkpoint(
        lambda x: functx.random.normal(key, (3,)) * x * x, x, use_reentrant=use_reentrant
    )
    y.sum().backward()
    onp.testing.assert_allclose(
        onp.asarray(x.grad), 2 * POINT * onp.asarray(functx.random.normal(key, (3,))), rtol=1e-5
    )


def test_arguments_keep_the_values_that_they_had_in_the_call():
    x, factor = leaf(), POINT.copy()
    y = x * 1
    z = checkpoint(lambda y, factor: np.sin(y * factor), y, factor)
    y *= 100
    factor[:] = 7
    z.sum().backward()
    onp.testing.assert_allclose(onp.asarray(x.grad), POINT * onp.cos(POINT**2), rtol=1e-5)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_captured_variable_must_keep_its_value_until_the_walk(use_reentrant):
    x, shift = leaf(), Variable(POINT)
    z = checkpoint(lambda x: np.sin(x + shift), x, use_reentrant=use_reentrant)
    shift += 1
    with pytest.raises(SavedValueError, match="captures must keep its value"):
        z.sum().backward()
    weight = leaf()
    z = checkpoint(lambda x: np.sin(x * weight), x, use_reentrant=use_reentrant)
    z.sum().backward()
    onp.testing.assert_allclose(onp.asarray(weight.grad), POINT * onp.cos(POINT**2), rtol=1e-5)


def add(total, x):
    total += x


def add_to_view(total, x):
    total[:] += x


def add_to_detached(total, x):
    detached = total.detach()
    detached += x


def replace(total, x):
    total *= 0
    total[...] = x


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("write", [add, add_to_view, add_to_detached, replace])
def test_what_a_function_writes_to_what_it_captures_is_written_once(write, use_reentrant):
    w, x, total = leaf(), leaf(), Variable(POINT)
    outside, scales = total[1:], [w * 1, w * 1]

    def weighted(x, i):
        with no_grad():
            write(total, x)
            scales[i] *= 2
        return np.sin(x) * total * scales[i]

    y, z = [checkpoint(weighted, x * (i + 1), i, use_reentrant=use_reentrant) for i in range(2)]
    (y + z).sum().backward()
    totals = [POINT, 2 * POINT] if write is replace else [2 * POINT, 4 * POINT]
    slopes = [onp.cos(POINT) * totals[0], 2 * onp.cos(2 * POINT) * totals[1]]
    weights = [onp.sin(POINT) * totals[0], onp.sin(2 * POINT) * totals[1]]
    onp.testing.assert_allclose(onp.asarray(x.grad), 2 * POINT * sum(slopes), rtol=1e-5)
    onp.testing.assert_allclose(onp.asarray(w.grad), sum(weights), rtol=1e-5)
    assert total.tolist() == totals[1].tolist() and outside.tolist() == totals[1][1:].tolist()
    assert [scale.tolist() for scale in scales] == [(2 * POINT).tolist()] * 2


def test_the_function_may_take_derivatives_itself():
    def fun(x):
        (slope,) = grad((np.sin(x) * x).sum(), x, create_graph=True)
        return slope * x

    x = leaf()
    checkpoint(fun, x).sum().backward()
    found, x.grad = onp.asarray(x.grad), None
    fun(x).sum().backward()
    onp.testing.assert_allclose(found, onp.asarray(x.grad), rtol=1e-5)


def changing(*functions):
    """A function that computes the first of `functions` in the first call, and so on."""
    remaining = list(functions)
    return lambda x: remaining.pop(0)(x)


def test_a_recomputation_that_differs_is_refused_unless_it_saves_more():
    def saved_more(x):
        return np.cos(np.sin(np.sin(x)))

    for second, message in [
        (lambda x: np.sin(x) + 1, "got 1, expected 2"),
        (lambda x: np.sin(np.sin(x[:2])), r"got f32\[2\] at position 0, expected f32\[3\]"),
    ]:
        y = checkpoint(changing(lambda x: np.sin(np.sin(x)), second), leaf())
        with pytest.raises(CheckpointError, match=message):
            y.sum().backward()
    x = leaf()
    checkpoint(changing(lambda x: np.sin(np.sin(x)), saved_more), x).sum().backward()
    onp.testing.assert_allclose(
        onp.asarray(x.grad), onp.cos(onp.sin(POINT)) * onp.cos(POINT), rtol=1e-5
    )


def test_the_reentrant_form_reaches_captured_leaves_and_refuses_what_it_cannot_do():
    x, weight = leaf(), leaf()

    def fun(x):
        return np.sin(x * weight), x * 2

    a, b = checkpoint(fun, x, use_reentrant=True)
    (a + b).sum().backward()
    slope = onp.cos(POINT**2) * POINT
    onp.testing.assert_allclose(onp.asarray(weight.grad), slope, rtol=1e-5)
    onp.testing.assert_allclose(onp.asarray(x.grad), slope + 2, rtol=1e-5)
    with pytest.raises(SavedValueError, match="freed"):
        a.sum().backward()
    with pytest.raises(CheckpointError, match="use_reentrant=False"):
        grad(checkpoint(block, x, use_reentrant=True).sum(), x)
    with pytest.raises(ArgumentError, match="takes no keywords; got scale"):
        checkpoint(block, x, use_reentrant=True, scale=2)
    with pytest.warns(UserWarning, match="no argument requires a gradient"):
        assert not checkpoint(lambda x: x * weight, POINT, use_reentrant=True).requires_grad


def test_without_gradients_nothing_is_saved_and_inside_transforms_the_function_is_named():
    with no_grad():
        assert not checkpoint(block, leaf()).requires_grad
    for reentrant in (False, True):
        with pytest.raises(AutogradInTransformError, match=r"functx\.checkpoint"):
            functx.grad(lambda x, r=reentrant: checkpoint(block, x, use_reentrant=r).sum())(POINT)


def test_arguments_may_be_dual():
    found = []
    for call in (checkpoint, plain):
        with forward_ad.dual_level():
            x = forward_ad.make_dual(leaf(), POINT)
            (slope,) = grad(call(block, x).sum(), x)
            found.append(onp.asarray(forward_ad.unpack_dual(slope).tangent))
    onp.testing.assert_allclose(*found, rtol=1e-4)


def test_a_function_may_compute_while_its_recomputation_ends():
    def function(x):
        try:
            return np.sin(x) * x
        except BaseException:
            np.exp(np.sin(x))
            raise

    x = leaf()
    checkpoint(function, x).sum().backward()
    onp.testing.assert_allclose(x.grad, onp.cos(POINT) * POINT + onp.sin(POINT), rtol=1e-5)
