"""Walks that follow a plan record and do what plain walks do."""

import random

import numpy as onp
import pytest

import functx.numpy as np
from functx.autograd import Variable, grad, no_grad, recorded
from functx.autograd.compiled.plans import CapturePlan
from functx.autograd.planned_walks import known_walks
from functx.autograd.walk_plans import WalkPlan
from functx.compiled_autograd import counters, disable, enable, reset
from functx.core.errors import FreedValueError, SavedValueError

ONES = onp.ones(3, "float32")


@pytest.fixture
def followed(monkeypatch):
    """For each walk that may follow a plan, whether it did."""
    log, follow = [], WalkPlan.follow

    def noted(*args):
        log.append(follow(*args))
        return log[-1]

    monkeypatch.setattr(WalkPlan, "follow", noted)
    return log


@pytest.fixture
def matched(monkeypatch):
    """For each captured walk that may follow a plan, whether it did."""
    log, match = [], CapturePlan.match

    def noted(*args):
        log.append((graph := match(*args)) is not None)
        return graph

    monkeypatch.setattr(CapturePlan, "match", noted)
    return log


def leaves(count):
    return [Variable(ONES, requires_grad=True) for _ in range(count)]


def run_what_is_recorded():
    (Variable(0.0) + 1).item()


def loop(body, steps=4):
    """`body(i)` in each step, each from the start of a recording; no walk is known before."""
    found = []
    known_walks.clear()
    for i in range(steps):
        run_what_is_recorded()
        with disable():
            found.append(body(i))
    return found


def swapped(x):
    first, second = np.split(x, [2])
    return np.concatenate([second, first])


UNARY = [np.sin, lambda x: x * 2.0, lambda x: x[::-1], lambda x: x**2, swapped, lambda x: +x]
BINARY = [np.add, np.multiply, np.maximum, lambda x, y: np.where(x > 0, x, y)]


def random_loss(seed, inputs):
    draw, pool = random.Random(seed), [*inputs]
    for _ in range(draw.randrange(2, 20)):
        if draw.random() < 0.5:
            pool.append(draw.choice(UNARY)(draw.choice(pool)))
        else:
            pool.append(draw.choice(BINARY)(draw.choice(pool), draw.choice(pool)))
    return (pool[-1] * draw.choice(inputs)).sum()


def test_a_followed_walk_records_what_a_plain_walk_records(followed):
    for seed in range(60):
        inputs = leaves(3)

        def step(i, seed=seed, inputs=inputs):
            loss = random_loss(seed, inputs)
            loss.backward()
            gradients = [x.grad for x in inputs]
            for x in inputs:
                x.grad = None
            text = str(recorded())
            return text, [g is None for g in gradients], loss.grad_fn.saved

        plain, _, third, fourth = loop(step)
        assert plain == third == fourth
    assert followed == [True] * 120


def test_a_followed_walk_adds_to_gradients_as_a_plain_walk_does(followed):
    for seed in range(40):
        inputs = leaves(3)

        def step(i, seed=seed, inputs=inputs):
            grads = [Variable(ONES * n) if n != seed % 4 else None for n in range(3)]
            if seed % 5 == 0:
                # One gradient of two leaves, which gets both.
                grads[1] = grads[2] = Variable(ONES * 7)
            elif seed % 5 == 1:
                grads[2] = Variable(onp.ones(6, "float32"))[3:]
            for x, gradient in zip(inputs, grads, strict=True):
                x.grad = gradient
            random_loss(seed, inputs).backward()
            same = [x.grad is gradient for x, gradient in zip(inputs, grads, strict=True)]
            text = str(recorded())
            return text, same, [None if x.grad is None else x.grad.tolist() for x in inputs]

        plain, _, third, fourth = loop(step)
        assert plain == third == fourth
    assert followed.count(True) > 50


def test_a_walk_that_saved_a_gradient_finds_it_changed(followed):
    x, y = leaves(2)
    x.grad = Variable(ONES)

    def step(i):
        factor = [*[Variable(ONES)] * 4, x.grad, x.grad[:]][i]
        # The walk adds to the gradient of x before it comes to the product.
        product = y * factor
        total = (product + x).sum().block_until_ready()
        if i < 4:
            total.backward()
        else:
            with pytest.raises(SavedValueError):
                total.backward()
        y.grad = None

    loop(step, 6)
    assert x.grad.tolist() == [7, 7, 7]
    assert followed == [True, True, False, False]


def test_a_graph_that_differs_in_its_edges_alone_is_walked_plainly(followed):
    x, y = leaves(2)

    def step(i):
        a, b = (x, y) if i < 3 else (x, x)
        c, d = np.sin(a), np.sin(b)
        # In the last steps the second operation comes first, or stands in both places.
        loss = (d * c if i == 4 else c * c if i == 5 else c * d).sum()
        # Walks that begin a recording look for one plan.
        loss.block_until_ready().backward()
        found = [v.grad is not None and v.grad.numpy() for v in (x, y)]
        x.grad = y.grad = None
        return found

    found = loop(step, 6)
    one, half = onp.sin(2.0), onp.sin(2.0) / 2
    wanted = [[half, half]] * 3 + [[one, 0]] * 3
    onp.testing.assert_allclose(
        [[float(onp.max(g)) for g in each] for each in found], wanted, rtol=1e-6
    )
    assert followed == [True, False, False, False]


def test_a_gradient_keeps_its_history_where_walks_add_to_it():
    (x,) = leaves(1)

    def step(i):
        (x.grad,) = grad((x**3).sum(), x, create_graph=True)
        (np.sin(x) * x).sum().backward()
        return grad(x.grad.sum(), x)[0].numpy()[0]

    assert loop(step, 5) == [6.0] * 5


def test_hooks_gradients_and_versions_keep_a_walk_from_its_plan(followed):
    (x,) = leaves(1)

    def step(i):
        y = x * 3.0
        z = np.sin(y) * y
        loss, seen = z.sum(), []
        if i == 3:
            z.register_hook(seen.append)
        if i == 4:
            x.grad = Variable(ONES)
        if i == 5:
            with no_grad():
                y[...] = x
        if i == 6:
            loss.backward(retain_graph=True)
            loss.backward()
            with pytest.raises(FreedValueError):
                loss.backward()
        elif i == 5:
            with pytest.raises(SavedValueError):
                loss.backward()
        else:
            loss.backward()
        found = None if x.grad is None else x.grad.numpy()[0]
        x.grad = None
        return found, len(seen)

    found = loop(step, 8)
    slope = 3 * (onp.cos(3.0) * 3 + onp.sin(3.0))
    wanted = [slope, slope, slope, slope, slope + 1, None, 2 * slope, slope]
    for (got, hooks), i, one in zip(found, range(8), wanted, strict=True):
        assert hooks == (i == 3)
        assert got is None if one is None else onp.isclose(got, one, rtol=1e-5)
    assert followed == [True, False, False, False, True, True]


def compiled_loop(body, steps, compiler=None):
    """`body(i)` in each step where walks are compiled, with hits, misses and captures; none is known before."""
    reset()
    found = []
    for i in range(steps):
        run_what_is_recorded()
        with enable(compiler):
            found.append(body(i))
    return found, (counters.hits, counters.misses, counters.captures)


def test_a_captured_walk_that_follows_a_plan_does_what_one_found_by_its_key_does(matched):
    for seed in range(40):
        inputs = leaves(3)

        def step(i, seed=seed, inputs=inputs):
            for x in inputs:
                x.grad = Variable(ONES) if seed % 2 else None
            loss = random_loss(seed, inputs)
            loss.backward()
            return str(recorded()), [x.grad is None for x in inputs], loss.grad_fn.saved

        (_, second, third, *rest), counts = compiled_loop(step, 5)
        assert second == third == rest[0] == rest[1]
        assert counts == (4, 1, 1)
    assert matched == [True] * 80


def test_captured_walks_that_differ_in_what_they_saved_alone_have_plans_of_their_own(matched):
    (x,) = leaves(1)
    two, three = Variable(ONES * 2), Variable(ONES * 3)
    number = Variable(5.0)

    def walk(first, second, factor):
        loss = (x * first * second * factor).sum()
        loss.block_until_ready().backward()
        found, x.grad = x.grad.numpy()[0], None
        return found

    # Arrays that are the same or not, and a number or an array, with the same nodes and edges.
    kinds = [(two, three, 5.0), (three, three, 5.0), (two, three, number), (two, two, 7.0)]
    order = [0] * 4 + [1] * 2 + [2] * 2 + [0, 3, 0, 3]
    found, (hits, misses, captures) = compiled_loop(lambda i: walk(*kinds[order[i]]), len(order))
    assert found == [[30, 45, 30, 28][kind] for kind in order]
    assert (hits, misses, captures) == (9, 3, 3)
    # The first plan is for the first kind.
    assert matched == [kind == 0 for kind in order[3:]]


def test_hooks_gradients_and_versions_keep_a_captured_walk_from_its_plan(matched):
    (x,) = leaves(1)

    def step(i):
        y = x * 3.0
        loss, seen = (np.sin(y) * y).sum(), []
        if i == 4:
            loss.register_hook(seen.append)
        if i == 5:
            with no_grad():
                y[...] = x
            with pytest.raises(SavedValueError):
                loss.backward()
        elif i == 6:
            loss.backward(retain_graph=True)
            loss.backward()
            with pytest.raises(FreedValueError):
                loss.backward()
        elif i == 7:
            x.grad = Variable(ONES)
            loss.backward()
        else:
            loss.backward()
        found = None if x.grad is None else x.grad.numpy()[0]
        x.grad = None
        return found, len(seen)

    found, _ = compiled_loop(step, 9)
    slope = 3 * (onp.cos(3.0) * 3 + onp.sin(3.0))
    wanted = [*[slope] * 5, None, 2 * slope, slope + 1, slope]
    for (got, hooks), i, one in zip(found, range(9), wanted, strict=True):
        assert hooks == (i == 4)
        assert got is None if one is None else onp.isclose(got, one, rtol=1e-5)
    assert matched == [True, False, False, True, False, True]


def test_a_compiler_function_gets_the_values_of_a_walk_that_follows_a_plan(matched):
    (x,) = leaves(1)
    seen = []

    def compiler(program):
        def run(inputs, sizes, scalars, hooks, packed):
            seen.append((len(inputs), *scalars))
            outs = program(inputs, sizes, scalars, hooks, packed)
            assert not inputs
            return outs

        return run

    def step(i):
        (np.sin(x) * (i + 2.0)).sum().backward()
        found, x.grad = x.grad.numpy()[0], None
        return found

    found, counts = compiled_loop(step, 5, compiler)
    onp.testing.assert_allclose(found, [onp.cos(1.0) * (i + 2) for i in range(5)], rtol=1e-6)
    assert counts == (4, 1, 1)
    assert seen == [(1, 1.0, i + 2.0) for i in range(5)]
    assert matched == [True, True]
