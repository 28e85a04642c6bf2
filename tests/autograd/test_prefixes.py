"""Tests of the tree of recordings: calls are found by the calls before them."""

import threading

import jax
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx import lax
from functx.autograd import Variable, recorded
from functx.autograd import prefixes as tree
from functx.autograd.prefixes import EMPTY_PREFIX, Prefix
from functx.autograd.recording import current_recording
from functx.core.caches import invalidate_caches
from tests.lowering.compiling import compilations

ONES = np.ones(3, "float32")


def prefix_of(step, *args):
    """The prefix of what a step records in a recording of its own, and the values of its results."""
    Variable(0.0).block_until_ready()
    current_recording().run()
    outs = step(*args)
    prefix = current_recording().prefix
    return prefix, [out.tolist() for out in outs]


def test_equal_steps_share_a_prefix_whatever_their_numbers_are():
    def step(x, y, rate):
        product = x * y
        return [(product + x.T).sum(), product - rate * product]

    def fresh(a, b, rate):
        return prefix_of(step, Variable(ONES * a), Variable(ONES * b), rate)

    first, _ = fresh(1, 2, 0.5)
    for a, b, rate in [(1, 2, 0.5), (3, 4, 0.25), (-1, 5, -0.0)]:
        prefix, (total, parts) = fresh(a, b, rate)
        assert prefix is first
        assert (total, parts) == (3 * (a * b + a), [a * b * (1 - rate)] * 3)


def test_what_differs_in_types_activity_or_in_which_values_are_equal_has_another_prefix():
    x, y = Variable(ONES), Variable(ONES * 2)
    one, square = prefix_of(lambda a, b: [a * b], x, y), prefix_of(lambda a, b: [a * b], x, x)
    assert (one[1], square[1]) == ([[2, 2, 2]], [[1, 1, 1]])
    leaf = Variable(ONES, requires_grad=True)
    wide = Variable(ONES.astype("float16"))
    found = [prefix_of(lambda a, b: [a * b], *pair)[0] for pair in [(leaf, y), (wide, wide)]]
    assert len({one[0], square[0], *found}) == 4
    with functx.autograd.no_grad():
        assert prefix_of(lambda a, b: [a * b], leaf, y)[0] is one[0]


def test_an_array_of_the_user_is_one_captured_value_of_a_recording():
    array, x = jax.numpy.array(ONES * 2), Variable(ONES)
    current_recording().run()
    y = x * array + array - array
    assert len(recorded().inputs) == 2
    assert y.tolist() == [2, 2, 2]


def test_a_view_and_an_error_between_the_calls_leave_the_numbers_of_captured_values_right():
    x, y, z = (Variable(ONES * i) for i in (1, 2, 3))
    failed = Variable(1) // 0
    for _ in range(3):
        current_recording().run()
        # The view captures x, which no call of its own has.
        view = x[1:]
        with pytest.raises((TypeError, ValueError)):
            y @ fnp.ones((2, 5))
        out = y[:2] * view + z.reshape(3, 1)[0] * x[0] + failed * 0
        assert out.tolist() == [5, 5]


def test_a_private_value_is_captured_by_recordings_of_two_threads_and_stays():
    def values(x):
        return [(x * i).tolist() for i in range(1, 4)]

    x = Variable(ONES) * 2
    x.block_until_ready()
    mine = x + 1
    found = []
    thread = threading.Thread(target=lambda: found.extend(values(x)))
    thread.start()
    thread.join()
    again = x * x
    assert (mine.tolist(), again.tolist(), x.tolist()) == ([3, 3, 3], [4, 4, 4], [2, 2, 2])
    assert found == [[2, 2, 2], [4, 4, 4], [6, 6, 6]]


def test_rules_that_change_inside_a_recording_hold_from_the_next_call_on():
    x = Variable(2.0, requires_grad=True)

    def slope():
        # The first product is recorded before the rules change.
        y = x * 3.0
        invalidate_caches()
        assert not EMPTY_PREFIX.children
        out = (y * y).sum()
        out.backward()
        found, x.grad = float(x.grad), None
        return found

    assert [slope() for _ in range(4)] == [36.0] * 4


def test_a_tree_that_grew_too_large_is_forgotten(monkeypatch):
    monkeypatch.setattr(tree, "_LIMIT", Prefix.total + 20)
    x = Variable(1.0, requires_grad=True)
    with compilations() as count:
        for length in (3, 7, 11, 3, 7, 11):
            y = x
            for _ in range(length):
                y = y * 1.0 + 0.5
            (slope,) = functx.autograd.grad(y, x)
            assert (float(y), float(slope)) == (1 + length / 2, 1)
    assert Prefix.total <= tree._LIMIT and count.n <= 12


def test_a_view_that_is_read_again_between_operands_leaves_their_values_and_gradients_right():
    base = Variable([0.0, 1.0, 2.0])
    view = base[::-1]
    for k, operate in enumerate(
        [lambda x: x * view, lambda x: 2.0 * x - view, lambda x: fnp.stack([x, x, view])[0] * view]
    ):
        view.tolist()
        base += 10.0
        base.tolist()
        x = Variable(ONES * 5, requires_grad=True)
        y = operate(x)
        known = np.array([2.0, 1.0, 0.0]) + 10 * (k + 1)
        y.sum().backward()
        wanted = [5 * known, 10 - known, 5 * known][k], [known, 2 + 0 * known, known][k]
        assert (y.tolist(), x.grad.tolist()) == tuple([a.tolist() for a in wanted])


def test_an_operation_that_is_refused_leaves_the_next_ones_right():
    x, z = Variable(ONES * 2), Variable(ONES * 7)
    two = Variable([3.0, 3.0])
    for refused in (
        lambda: lax.add(x, two),
        lambda: lax.clamp(x * 0.5, z, two),
        lambda: fnp.concatenate([1.5 * x, Variable([[1.0]])]),
        lambda: lax.reshape(x * 2.5, (7,)),
    ):
        with pytest.raises((TypeError, ValueError)):
            refused()
        assert (z * 1.5 + z).tolist() == [17.5] * 3


def test_a_callback_may_record_while_an_operand_of_another_thread_is_computed():
    kept, computed = [], []

    def host(a):
        kept.append(Variable(ONES * 100) * 2.0)
        return np.asarray(a) * 3

    def call():
        spec = jax.ShapeDtypeStruct((3,), np.dtype("float32"))
        computed.append(functx.pure_callback(host, spec, Variable(ONES * 4)))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert (Variable(ONES * 5) * computed[0]).tolist() == [60] * 3
    assert kept[0].tolist() == [200] * 3


def test_a_number_that_a_walk_saves_and_that_changes_makes_no_prefixes():
    x = Variable(ONES, requires_grad=True)

    def slope(rate):
        (x * x * rate).sum().backward()
        found, x.grad = x.grad.tolist(), None
        return found

    for _ in range(5):
        slope(0.5)
    before = Prefix.total
    assert [slope(rate) for rate in (1.0, 2.0, 4.0)] == [[2] * 3, [4] * 3, [8] * 3]
    assert Prefix.total == before
