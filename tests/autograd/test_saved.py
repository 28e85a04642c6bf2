"""Hooks for saved values, versions of arrays, and writes to saved values."""

import gc
import weakref

import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx.autograd import (
    Function,
    Variable,
    allow_mutation_on_saved_tensors,
    checkpoint,
    disable_saved_tensors_hooks,
    grad,
    increment_version,
    save_on_cpu,
    saved_tensors_hooks,
    unsafe_preserve_version_counter,
)
from functx.core.errors import (
    ArgumentError,
    AutogradError,
    SavedValueError,
    SavedValueHooksError,
    UnpackedTypeError,
)

POINT = onp.array([1.0, 2.0], "float32")


def leaf(value=POINT):
    return Variable(value, requires_grad=True)


class Counting:
    """A pair that counts its calls."""

    def __init__(self):
        self.packs = self.unpacks = 0

    def pack(self, x):
        self.packs += 1
        return x

    def unpack(self, x):
        self.unpacks += 1
        return x

    @property
    def counts(self):
        return self.packs, self.unpacks

    def context(self):
        return saved_tensors_hooks(self.pack, self.unpack)


def test_a_saved_value_is_packed_when_the_node_is_made_and_unpacked_when_it_is_used():
    x, counting = leaf(), Counting()
    with counting.context():
        y = x**3
        assert counting.counts == (1, 0)
        (slope,) = grad(y.sum(), x, create_graph=True)
        assert counting.counts == (3, 1)
        (curvature,) = grad(slope.sum(), x)
    assert counting.counts == (3, 3)
    onp.testing.assert_allclose(onp.asarray(curvature), 6 * POINT)


def test_derivatives_read_the_values_that_unpack_returns():
    x = leaf()
    with saved_tensors_hooks(lambda x: x * 2, lambda x: x):
        y = x * x
    y.sum().backward()
    onp.testing.assert_allclose(onp.asarray(x.grad), 4 * POINT)


@pytest.mark.parametrize(
    "fun", [np.exp, lambda x: x * x / (x + 3), functx.jit(lambda x: np.sin(x) * x * np.exp(x))]
)
def test_pairs_keep_values_and_derivatives_of_every_order(fun):
    def derivatives():
        x = leaf()
        found = [fun(x)]
        for _ in range(2):
            found += grad(found[-1].sum(), x, create_graph=True)
        return [onp.asarray(y) for y in found]

    expected = derivatives()
    for context in (save_on_cpu(), save_on_cpu(pin_memory=True), Counting().context()):
        with context:
            found = derivatives()
        onp.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_innermost_pair_packs_and_constants_are_not_packed():
    x, outer, inner = leaf(), Counting(), Counting()
    with outer.context():
        with inner.context():
            y = np.sin(x)
        z = y / 3.0 + x * onp.ones(2, "float32")
        w = y * x
    assert inner.counts == (1, 0) and outer.counts == (2, 0)
    (z + w).sum().backward()
    assert inner.counts == (1, 1) and outer.counts == (2, 2)


def test_pairs_of_one_value_can_be_registered_once():
    x = leaf()
    y = x * 3
    z = y * y
    first, _ = z.grad_fn.saved_values
    onp.testing.assert_array_equal(onp.asarray(first.value), 3 * POINT)
    first.register_hooks(lambda x: x * 2, lambda x: x)
    onp.testing.assert_array_equal(onp.asarray(first.value), 6 * POINT)
    with pytest.raises(SavedValueHooksError, match="second pair"):
        first.register_hooks(lambda x: x, lambda x: x)
    z.sum().backward()
    onp.testing.assert_allclose(onp.asarray(x.grad), 3 * 9 * POINT)
    with pytest.raises(SavedValueError, match="freed"):
        _ = first.value


def test_saved_operands_keep_their_identity_and_saved_results_their_history():
    x = leaf()
    assert np.sin(x).grad_fn.saved_values[0].value is x
    y, factor = x * 1, Variable(POINT)
    assert {id(saved.value) for saved in (y * y).grad_fn.saved_values} == {id(y)}
    (saved,) = (y * factor).grad_fn.saved_values
    assert saved.value is factor
    (saved,) = np.sin(y * 2).grad_fn.saved_values
    assert saved.value is saved.value
    y = np.exp(x)
    (saved,) = y.grad_fn.saved_values
    assert saved.value.grad_fn is y.grad_fn


def test_mistakes_of_pairs_are_named():
    x = leaf()
    with pytest.raises(TypeError, match="positional"), saved_tensors_hooks(lambda: 1, lambda x: x):
        np.sin(x)
    writing = saved_tensors_hooks(lambda x: x.__imul__(2), lambda x: x)
    with pytest.raises(SavedValueHooksError, match="pack must not write to its"), writing:
        np.sin(x)
    for unpack, error, message in [
        (lambda x: 1, UnpackedTypeError, "must return an array; got int for a value that `sin`"),
        (lambda x: x[:1], SavedValueHooksError, r"shape and dtype.*f32\[1\] for f32\[2\]"),
    ]:
        with saved_tensors_hooks(lambda x: x, unpack):
            y = np.sin(x)
        with pytest.raises(error, match=message):
            y.sum().backward()
    with pytest.raises(AutogradError, match="inside a transform"):
        functx.vmap(lambda y: save_on_cpu().__enter__())(POINT)


def test_a_value_that_is_packed_does_not_see_later_writes():
    x = leaf()
    y = x * 2
    with saved_tensors_hooks(lambda x: x, lambda x: x):
        z = y * y
    y *= 100
    z.sum().backward()
    onp.testing.assert_allclose(onp.asarray(x.grad), 8 * POINT)


def test_pairs_can_be_disabled_with_a_message():
    with disable_saved_tensors_hooks("first"):
        with disable_saved_tensors_hooks("second"), pytest.raises(AutogradError, match="second"):
            save_on_cpu().__enter__()
        with pytest.raises(RuntimeError, match="first"), save_on_cpu():
            pass
    with save_on_cpu(), pytest.raises(AutogradError, match="third"):
        disable_saved_tensors_hooks("third").__enter__()
    with save_on_cpu():
        pass

    @disable_saved_tensors_hooks("decorated")
    def fun():
        with save_on_cpu():
            pass

    with pytest.raises(AutogradError, match="decorated"):
        fun()


def test_values_may_be_written_to_where_the_context_allows_it():
    x = leaf()
    with allow_mutation_on_saved_tensors():
        y = x * 2
        z = y * y
        y *= 3
        z.sum().backward(retain_graph=True)
        with pytest.raises(SavedValueHooksError, match="inside another"):
            allow_mutation_on_saved_tensors().__enter__()
    onp.testing.assert_allclose(onp.asarray(x.grad), 8 * POINT)
    with pytest.raises(SavedValueHooksError, match="walk outside"):
        z.sum().backward()
    with allow_mutation_on_saved_tensors(), pytest.raises(SavedValueHooksError):
        z.sum().backward()


def test_versions_can_be_raised_and_kept():
    x = leaf()
    y = x * 2
    z, view = y * y, y[:1]
    increment_version([y, y])
    assert y._version == view._version == 2
    with pytest.raises(ArgumentError, match="only Variables have versions; got ndarray"):
        increment_version([y, onp.ones(2)])
    with pytest.raises(SavedValueError, match="version 2, expected version 0"):
        z.sum().backward()
    y = x * 2
    z, view = y * y, y[:1]
    with pytest.raises(ZeroDivisionError), unsafe_preserve_version_counter(y):
        y *= 3
        raise ZeroDivisionError
    assert y._version == 0 and view.tolist() == [6]
    z.sum().backward()
    onp.testing.assert_allclose(onp.asarray(x.grad), 8 * POINT)


def test_packed_values_go_with_their_node():
    gc.disable()
    try:
        x, counting = leaf(), Counting()
        with counting.context():
            y = np.exp(x) * x
            gone = weakref.ref(y.grad_fn)
        del y
        assert gone() is None
    finally:
        gc.enable()


read = []
"""The values of `x` that the rule of `Cubed` read."""


class Cubed(Function):
    @staticmethod
    def forward(ctx, x):
        y = x * x
        ctx.save_for_backward(x, y)
        return y * x

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        read.append(x)
        return gradient * (2 * y + x * x)


def test_values_that_a_function_saves_are_packed():
    x, counting = leaf(), Counting()
    with counting.context():
        y = Cubed.apply(x)
    assert counting.counts == (2, 0)
    y.sum().backward()
    assert counting.counts == (2, 2)
    onp.testing.assert_allclose(onp.asarray(x.grad), 3 * POINT**2)
    Cubed.apply(x).sum().backward()
    assert read[-1] is x


def test_walks_for_a_batch_of_gradients_unpack_values_of_pairs_and_checkpoints():
    x, batch = leaf(), onp.eye(2, dtype="float32")
    with save_on_cpu():
        y = np.sin(x) * x
    expected = onp.diag(onp.sin(POINT) + POINT * onp.cos(POINT))
    for z in (y, checkpoint(lambda x: np.sin(x) * x, x)):
        (found,) = grad(z, x, batch, is_grads_batched=True)
        onp.testing.assert_allclose(onp.asarray(found), expected, rtol=1e-6)
