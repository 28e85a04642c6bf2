"""Threads that record, walk and use modes side by side; errors that leave the engine usable."""

import asyncio
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx.autograd import (
    Function,
    Variable,
    allow_mutation_on_saved_tensors,
    backward,
    enable_grad,
    forward_ad,
    grad,
    inference_mode,
    is_anomaly_enabled,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    queue_callback,
    recorded,
    saved_tensors_hooks,
    set_detect_anomaly,
    set_grad_enabled,
)
from functx.autograd.nodes import AccumulateGrad, saving_hooks
from functx.autograd.variable import open_level
from functx.autograd.views import VersionCounter
from functx.core.errors import SavedValueError

THREADS = 6


def leaf(*values):
    return Variable(list(values), requires_grad=True)


def in_threads(work):
    """`work(i)` in several threads that begin together; the results, or the first error."""
    start = threading.Barrier(THREADS)

    def run(i):
        start.wait()
        return work(i)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))


def test_threads_record_and_walk_on_variables_of_their_own():
    def work(i):
        x = leaf(1.0 + i, 2.0)
        for _ in range(15):
            y = x
            for _ in range(1 + i):
                y = y * x
            grad(y.sum(), x, retain_graph=True)[0].tolist()
            y.sum().backward()
        return x.grad.tolist()

    for i, found in enumerate(in_threads(work)):
        wanted = [15 * (i + 2) * (1.0 + i) ** (i + 1), 15 * (i + 2) * 2.0 ** (i + 1)]
        onp.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_threads_use_variables_that_others_recorded():
    shared = leaf(1.0, 2.0, 3.0)
    squares = shared * shared
    parts = [squares[i % 3] * (i + 1) for i in range(THREADS)]

    def work(i):
        (first,) = grad(parts[i] * squares.sum(), shared, retain_graph=True)
        total = (squares + i).sum()
        return first.tolist(), total.item(), np.exp(parts[i]).item()

    for i, (first, total, value) in enumerate(in_threads(work)):
        x = onp.array([1.0, 2.0, 3.0])
        wanted = (i + 1) * (x[i % 3] ** 2 * 2 * x + onp.eye(3)[i % 3] * 2 * x[i % 3] * 14)
        onp.testing.assert_allclose(first, wanted, rtol=1e-5)
        assert total == 14 + 3 * i
        assert value == pytest.approx(onp.exp((i + 1) * x[i % 3] ** 2), rel=1e-4)


def test_modes_levels_anomalies_and_hooks_belong_to_a_thread():
    turn = threading.Barrier(THREADS)

    def work(i):
        seen = []
        x = leaf(2.0)
        x.register_hook(lambda g: seen.append(threading.get_ident()))
        packed = []
        hooks = saved_tensors_hooks(lambda v: packed.append(i) or v, lambda v: v)
        modes = [no_grad(), inference_mode(), enable_grad(), hooks, set_detect_anomaly(True)]
        set_detect_anomaly(False)
        if i == 5:
            level = forward_ad.enter_dual_level()
            dual = forward_ad.make_dual(leaf(3.0), Variable([1.0]))
            turn.wait()
            tangent = forward_ad.unpack_dual(dual * dual).tangent.item()
            forward_ad.exit_dual_level(level=level)
            return tangent
        with modes[i]:
            turn.wait()
            state = is_grad_enabled(), is_inference_mode_enabled(), is_anomaly_enabled()
            y = (x * x).sum()
        if y.requires_grad:
            y.backward()
            assert seen == [threading.get_ident()]
            assert x.grad.item() == 4.0
        return state, y.requires_grad, bool(packed), y.is_inference()

    assert in_threads(work) == [
        ((False, False, False), False, False, False),
        ((False, True, False), False, False, True),
        ((True, False, False), True, False, False),
        ((True, False, False), True, True, False),
        ((True, False, True), True, False, False),
        6.0,
    ]
    assert is_grad_enabled()
    assert not is_anomaly_enabled()


def test_walks_in_several_threads_add_all_gradients_to_the_leaves():
    x, parts = leaf(1.0, 2.0), [leaf(1.0, 2.0), leaf(3.0, 4.0)]
    buffer = Variable(onp.zeros(4))
    for i, part in enumerate(parts):
        part.grad = buffer[2 * i : 2 * i + 2]
    y = leaf(1.0, 2.0) * 2
    y.retain_grad()

    def work(i):
        for _ in range(5):
            (x * (i + 1)).sum().backward()
            (parts[i % 2] * (i + 1)).sum().backward()
            (y * (i + 1)).sum().backward(retain_graph=True)
        return x.grad.shape

    assert in_threads(work) == [(2,)] * THREADS
    assert x.grad.tolist() == y.grad.tolist() == [5.0 * 21] * 2
    assert buffer.tolist() == [45.0, 45.0, 60.0, 60.0]


class Broken(Exception):
    """The error of a user's function."""


def broken(*_):
    raise Broken


class BrokenBackward(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        raise Broken


def hook_on_a_value(x):
    y = x * x
    y.register_hook(broken)
    y.sum().backward()


def prehook(x):
    y = x * x
    y.grad_fn.register_prehook(broken)
    y.sum().backward()


def posthook(x):
    y = x * x
    y.grad_fn.register_hook(broken)
    y.sum().backward()


def post_accumulate_hook(x):
    handle = x.register_post_accumulate_grad_hook(broken)
    try:
        (x * x).sum().backward()
    finally:
        handle.remove()
        x.grad = None


def rule(x):
    BrokenBackward.apply(x).sum().backward()


def pack(x):
    with saved_tensors_hooks(broken, lambda v: v):
        x * x


def unpack(x):
    with saved_tensors_hooks(lambda v: v, broken):
        y = (x * x).sum()
    y.backward()


def callback(x):
    y = x * x
    y.register_hook(lambda g: queue_callback(broken))
    y.sum().backward()


def nested_walk(x):
    inner = leaf(1.0)

    def walk(gradient):
        with enable_grad():
            z = inner * inner
        z.register_hook(broken)
        z.backward()

    y = x * x
    y.register_hook(walk)
    y.sum().backward()


def keyboard_interrupt(x):
    def interrupt(gradient):
        raise KeyboardInterrupt

    y = x * x
    y.register_hook(interrupt)
    backward(y.sum())


def batched_walk(x):
    y = x * x
    y.register_hook(broken)
    grad(y, x, onp.eye(2, dtype="float32"), is_grads_batched=True)


def traced_function(x):
    functx.jit(lambda y: broken(y * x))(x)


@pytest.mark.parametrize(
    "fail",
    [
        hook_on_a_value,
        prehook,
        posthook,
        post_accumulate_hook,
        rule,
        pack,
        unpack,
        callback,
        nested_walk,
        keyboard_interrupt,
        batched_walk,
        traced_function,
    ],
)
def test_an_error_leaves_the_engine_the_modes_and_the_recording_usable(fail):
    x = leaf(1.0, 2.0)
    kept = x * 3
    for mode in (enable_grad, no_grad):
        with pytest.raises((Broken, KeyboardInterrupt)), mode(), enable_grad():
            fail(x)
        x.grad = None
        assert is_grad_enabled()
        assert recorded() is not None
        (kept * x).sum().backward(retain_graph=True)
        assert x.grad.tolist() == [6.0, 12.0]
        x.grad = None
        with pytest.raises(functx.errors.AutogradError, match="queue_callback"):
            queue_callback(lambda: None)


def test_an_interrupted_run_is_run_again(monkeypatch):
    from functx.core.backend import backend

    x = leaf(1.0, 2.0)
    ys = [(x * x * 3).sum() for _ in range(2)]

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(backend, "run", interrupted)
        patched.setattr(backend, "evaluate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ys[0].item()
    assert ys[0].item() == 15.0
    assert grad(ys[1], x)[0].tolist() == [6.0, 12.0]


def used_by_two(mode, use):
    """`use()` of two overlapping threads inside `mode`, then outside; the first leaves it first."""
    entered, left = threading.Barrier(2, timeout=5), threading.Event()

    def first():
        with mode:
            entered.wait()
            found = use()
        left.set()
        return found, use()

    def second():
        with enable_grad(), no_grad(), mode:
            entered.wait()
            left.wait(5)
            found = use()
        return found, use()

    with ThreadPoolExecutor(2) as pool:
        return [x.result(20) for x in (pool.submit(first), pool.submit(second))]


def is_saving_allowed():
    """Whether a value may be written to after a node saved it."""
    x = leaf(2.0)
    y = x * 1
    z = (y * y).sum()
    with no_grad():
        y += 1
    try:
        z.backward()
    except SavedValueError:
        return False
    return True


@pytest.mark.parametrize(
    "make, use, inside",
    [
        (no_grad, is_grad_enabled, False),
        (inference_mode, is_inference_mode_enabled, True),
        (lambda: set_grad_enabled(False), is_grad_enabled, False),
        (lambda: set_detect_anomaly(True), is_anomaly_enabled, True),
        (forward_ad.dual_level, lambda: open_level.get() is not None, True),
        (lambda: saved_tensors_hooks(id, id), lambda: saving_hooks.get() is not None, True),
    ],
)
def test_two_threads_use_one_context_object_at_once(make, use, inside):
    before = use()
    mode = make()
    if isinstance(mode, (set_grad_enabled, set_detect_anomaly)):
        assert use() == inside
        with mode:
            pass
    assert use() == before == (not inside)
    assert used_by_two(mode, use) == [(inside, not inside)] * 2
    assert use() == before


def test_a_thread_may_write_to_saved_values_until_it_leaves_the_context_itself():
    def use():
        with enable_grad():
            return is_saving_allowed()

    assert used_by_two(allow_mutation_on_saved_tensors(), use) == [(True, False)] * 2


def test_two_tasks_use_one_context_object_at_once():
    mode, packed = saved_tensors_hooks(lambda x: packed.append(1) or x, lambda x: x), []
    x = leaf(2.0)

    async def work(entered, other, left, other_left):
        with mode:
            entered.set()
            await other.wait()
            if other_left is not None:
                await other_left.wait()
            x * x
        left.set()
        return saving_hooks.get()

    async def both():
        a, b, a_left, b_left = [asyncio.Event() for _ in range(4)]
        return await asyncio.gather(work(a, b, a_left, None), work(b, a, b_left, a_left))

    assert asyncio.run(both()) == [None, None]
    assert len(packed) == 4


def test_threads_that_need_the_node_of_a_leaf_at_once_get_one(monkeypatch):
    class Slow(AccumulateGrad):
        def __init__(self, x):
            time.sleep(0.02)
            super().__init__(x)

    monkeypatch.setattr(sys.modules[Variable.__module__], "AccumulateGrad", Slow)
    x = leaf(2.0)
    parts = in_threads(lambda i: (x * (i + 1)).sum())
    assert len({y.grad_fn.edges[0][0].edges[0][0] for y in parts}) == 1
    assert grad(sum(parts), x)[0].tolist() == [21.0]


def test_threads_that_need_the_version_counter_of_a_leaf_at_once_get_one(monkeypatch):
    class Slow(VersionCounter):
        def __init__(self, is_inference):
            time.sleep(0.02)
            super().__init__(is_inference)

    monkeypatch.setattr(sys.modules[Variable.__module__], "VersionCounter", Slow)
    x = leaf(2.0)
    assert len({*in_threads(lambda _: x.version_counter)}) == 1


def test_walks_of_another_thread_add_to_gradients_beside_a_step_under_jit():
    w, count = leaf(1.0, 2.0), 25

    @functx.jit
    def step(x):
        (w * x).sum().backward()

    def walk(*_):
        for _ in range(count):
            (w * 2).sum().backward()

    def call(*_):
        for _ in range(count):
            step(onp.ones(2, "float32"))

    for before in (None, Variable([0.0, 0.0])):
        w.grad = before
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda work: work(), (walk, call)))
        assert w.grad.tolist() == [3.0 * count] * 2
