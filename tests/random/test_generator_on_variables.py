"""Draws in code on Variables: recordings, steps under jit, checkpoints and captured walks."""

import threading
from contextlib import nullcontext

import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx import aot, autograd, compiled_autograd, lax, random
from functx.autograd import Variable, no_grad
from functx.core.generator_state import DEFAULT_STATE
from functx.random import generator as draws

X = np.arange(1.0, 4.0, dtype=np.float32)
captured = random.Generator(0)


def leaf():
    return Variable(np.ones(3, "float32"), requires_grad=True)


def seeded(fun):
    """The result of a call after seed 5, and the state afterwards."""
    random.seed(5)
    return fun(), random.get_state().tolist()


def test_draws_with_variables_as_parameters_have_the_numbers_of_arrays():
    p = Variable(X / 4, requires_grad=True)
    found, state = seeded(lambda: np.asarray(draws.bernoulli(p)))
    expected, expected_state = seeded(lambda: draws.bernoulli(X / 4))
    assert found.tolist() == expected.tolist()
    assert state == expected_state
    mean = leaf()
    out, _ = seeded(lambda: draws.normal(mean, 2.0))
    out.sum().backward()
    assert np.asarray(mean.grad).tolist() == [1.0] * 3
    written, _ = seeded(lambda: random.normal_(Variable(X.copy())))
    assert np.asarray(written).tolist() == seeded(lambda: random.randn(3))[0].tolist()


def test_a_jitted_function_is_a_node_that_draws_other_numbers_in_each_call():
    compiled = functx.jit(lambda v: v * random.rand(3))
    v = leaf()

    def backward():
        (compiled(v) + compiled(v)).sum().backward()
        return np.asarray(v.grad)

    found, state = seeded(backward)
    expected, expected_state = seeded(lambda: random.rand(3) + random.rand(3))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert state == expected_state


inner = functx.jit(lambda v: fnp.sin(v) * random.rand(3))


def checkpointed(w, x):
    return autograd.checkpoint(lambda v: fnp.sin(v * random.rand(3)), w, use_reentrant=False) * x


def with_states(w, x):
    state = random.get_state()
    a = random.rand(3)
    random.set_state(state)
    return w * a * random.rand(3)


LOSSES = {
    "draw": lambda w, x: w * random.rand(3) * x,
    "jit": lambda w, x: inner(w) * x + random.rand(()),
    "checkpoint": checkpointed,
    "grad": lambda w, x: w * functx.grad(lambda y: (y * random.rand(3)).sum())(x),
    "states": with_states,
    "seed": lambda w, x: random.manual_seed(3) and w * random.rand(3),
    "scan": lambda w, x: lax.scan(lambda c, _: (c * random.rand(3), None), w, None, 2)[0],
    "generator": lambda w, x: w * random.rand(3, generator=captured),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_step_under_jit_draws_what_the_step_draws(name):
    def train(compile_step):
        captured.manual_seed(1)
        w, runs = leaf(), []

        def step(x):
            runs.append(None)
            w.grad = None
            loss = LOSSES[name](w, x).sum() * random.rand(())
            loss.backward()
            with no_grad():
                w[...] = w - 0.1 * w.grad
            return loss

        step = functx.jit(step) if compile_step else step
        losses = [float(step(X)) for _ in range(3)]
        assert not compile_step or len(runs) <= 2
        return [*losses, *np.asarray(w.detach()), *captured.get_state().tolist()]

    (found, state), (expected, expected_state) = [
        seeded(lambda on=on: train(on)) for on in (True, False)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert state == expected_state


@pytest.mark.parametrize("partition", [None, aot.min_cut_rematerialization_partition])
def test_programs_compiled_ahead_of_time_draw_what_the_function_draws(partition):
    def loss(w, x):
        return (fnp.sin(w * random.rand(3)) * x).sum()

    def twice(f):
        w, found = leaf(), []
        for _ in range(2):
            w.grad = None
            value = f(w, X)
            found.append(random.rand(()))
            value.backward()
            found += [float(value), *np.asarray(w.grad)]
        return [*found, float(f(np.ones(3, "float32"), X))]

    for options in ({}, {"keep_inference_input_mutations": True}):
        compiled = aot.aot_function(loss, partition_fn=partition, **options)
        (found, state), (expected, expected_state) = [
            seeded(lambda f=f: twice(f)) for f in (compiled, loss)
        ]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        assert state == expected_state


def test_a_function_that_draws_is_not_exported():
    with pytest.raises(functx.errors.ExportError, match="must not draw"):
        functx.export.export(lambda x: x * random.rand(3))(X)


def test_steps_of_threads_draw_from_their_own_generators():
    w = leaf()
    found = {}

    @functx.jit
    def step(x):
        w.grad = None
        loss = (w * random.rand(3) * x).sum()
        loss.backward()
        return loss

    def run(number):
        random.seed(number)
        found[number] = [float(step(X)) for _ in range(2)]

    threads = [threading.Thread(target=run, args=(n,)) for n in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in (1, 2):
        generator = random.Generator(number)
        expected = [(random.rand(3, generator=generator) * X).sum() for _ in range(2)]
        np.testing.assert_allclose(found[number], expected, rtol=1e-6)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_the_recomputation_of_a_checkpoint_repeats_the_numbers_and_moves_no_state(use_reentrant):
    v = leaf()

    def run():
        y = autograd.checkpoint(
            lambda v: fnp.sin(v * random.rand(3)), v, use_reentrant=use_reentrant
        )
        other = random.rand(3)
        y.sum().backward()
        return np.asarray(v.grad), other

    def expected():
        factors, other = random.rand(3), random.rand(3)
        return np.cos(factors) * factors, other

    (found, state), (wanted, wanted_state) = seeded(run), seeded(expected)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert state == wanted_state


class Noisy(autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * random.rand(3)


def test_captured_walks_draw_what_walks_draw():
    def walks(context):
        v, gradients = leaf(), []
        with context:
            for _ in range(4):
                v.grad = None
                y = autograd.checkpoint(
                    lambda v: fnp.sin(v * random.rand(3)), Noisy.apply(v), use_reentrant=False
                )
                y.register_hook(lambda g: g * random.rand(3))
                y.sum().backward()
                gradients.append(np.asarray(v.grad))
        return gradients

    found, state = seeded(lambda: walks(compiled_autograd.enable()))
    expected, expected_state = seeded(lambda: walks(nullcontext()))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert state == expected_state


def test_a_jitted_step_that_recomputes_without_drawing_leaves_the_state_as_it_was():
    w = leaf()

    def step():
        autograd.checkpoint(fnp.sin, w, use_reentrant=False).sum().backward()

    jitted = functx.jit(step)
    for _ in range(3):
        before, words = seeded(jitted)[1], DEFAULT_STATE.read()
        assert before == [5, 0]
        assert (words.dtype, words.shape) == (np.uint32, (4,))
    np.testing.assert_allclose(np.asarray(w.grad), 3 * np.cos(np.ones(3)), rtol=1e-6)
