"""Random graphs with random hooks: plain walks, first walks and hits have one result."""

import random

import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx import compiled_autograd
from functx.autograd import (
    Function,
    Variable,
    checkpoint,
    get_gradient_edge,
    grad,
    register_multi_grad_hook,
)
from functx.autograd.compiled.compilers import WalkCompiler
from functx.compiled_autograd import compile_stages, counters, disable, enable

pytestmark = pytest.mark.usefixtures("x64", "nothing_captured")


class Halve(Function):
    """x / 2."""

    @staticmethod
    def forward(ctx, x):
        return x / 2

    @staticmethod
    def backward(ctx, g):
        return g / 2


class Product(Function):
    """x * y, whose rule gives None where no gradient is needed."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y if ctx.needs_input_grad[0] else None, g * x


def swish(x):
    return x * np.tanh(x)


jitted_swish = functx.jit(swish)


def written(x):
    """A copy of `x` that is written to, also through a view."""
    y = x * 1
    y[0] = x[-1] * 2
    view = y[1:]
    view *= 0.7
    return y


UNARY = [
    np.sin,
    np.tanh,
    lambda x: x[::-1],
    lambda x: x * 0.5,
    lambda x: np.exp(-x * x),
    lambda x: np.where(x > 0, x, 0.1 * x),
    lambda x: x.sum() + x * 0,
    lambda x: np.cumsum(x),
    lambda x: np.sqrt(1 + x * x),
    lambda x: x.copy(),
    lambda x: Halve.apply(x),
    lambda x: checkpoint(swish, x, use_reentrant=False),
    lambda x: jitted_swish(x),
    lambda x: written(x),
    lambda x: np.split(x, 2)[0].repeat(2),
]
BINARY = [
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: x - y,
    lambda x, y: np.maximum(x, y),
    lambda x, y: np.concatenate([x[:1], y[1:]]),
    lambda x, y: x / (2 + np.cos(y)),
    lambda x, y: Product.apply(x, y),
]


class RandomGraph:
    """A graph of about `length` nodes, and hooks, that depend on `seed` alone; not on the values."""

    def __init__(self, seed, length):
        self.seed, self.length = seed, length

    def __call__(self, values):
        """The gradients of the leaves and what the hooks saw."""
        self.draw = random.Random(self.seed)
        self.log = []
        leaves = [Variable(v, requires_grad=True) for v in values]
        pool = list(leaves)
        while len(pool) < self.length:
            pool.append(self.node(pool))
            self.add_hook(pool[-1])
        for leaf in leaves:
            self.add_hook_of_leaf(leaf)
        watched = self.draw.sample(pool, 3)
        register_multi_grad_hook(watched, self.note_all)
        total = sum([x.sum() for x in [pool[-1], *self.draw.sample(pool, 4)]])
        self.walk(total, leaves, pool)
        return [*[x.grad for x in leaves], *self.log]

    def walk(self, total, leaves, pool):
        kind = self.draw.randrange(6)
        if kind == 0:
            total.backward(inputs=leaves[:2])
        elif kind == 1:
            self.log += grad(total, [*self.draw.sample(pool, 2), leaves[0]], allow_unused=True)
        elif kind == 2:
            leaves[0].grad = Variable(np.ones(4, "float64"))
            total.backward(retain_graph=True)
            total.backward()
        else:
            total.backward()

    def node(self, pool):
        recent = pool[-10:] + pool[: self.draw.randrange(3)]
        if self.draw.random() < 0.5:
            return np.tanh(self.draw.choice(BINARY)(*self.draw.choices(recent, k=2)))
        return self.draw.choice(UNARY)(self.draw.choice(recent))

    def note_all(self, gradients):
        self.log += [x if x is None else x.copy() for x in gradients]

    def add_hook(self, x):
        factor, kind = self.draw.uniform(0.5, 1.5), self.draw.random()
        if kind < 0.04:
            x.register_hook(lambda g: g * factor)
        elif kind < 0.08:
            x.register_hook(lambda g: self.log.append(g.copy()))
        elif kind < 0.11:
            x.register_hook(lambda g: g * (2 if float(g.sum()) > 0 else factor))
        elif kind < 0.14:
            x.register_hook(self.scale_in_place)
        elif kind < 0.17:
            x.grad_fn.register_prehook(lambda gs: (gs[0] * factor,))
        elif kind < 0.20:
            x.grad_fn.register_hook(
                lambda ins, outs: tuple(None if i is None else i + outs[0].sum() for i in ins)
            )
        elif kind < 0.23:
            x.retain_grad()
            x.register_hook(lambda g: None if x.grad is None else self.log.append(x.grad.copy()))

    def scale_in_place(self, g):
        g *= 0.5

    def double(self, gradients):
        return tuple(None if g is None else g * 2 for g in gradients)

    def add_hook_of_leaf(self, x):
        kind = self.draw.random()
        if kind < 0.3:
            x.register_post_accumulate_grad_hook(lambda x: self.log.append(x.grad.copy()))
        elif kind < 0.6:
            get_gradient_edge(x).node.register_prehook(self.double)


class ChangingGraph(RandomGraph):
    """Such a graph, whose hooks drop gradients now and then, and add and remove hooks in the walk."""

    def __call__(self, values):
        self.hooked = []
        return super().__call__(values)

    def add_hook(self, x):
        factor, kind = self.draw.uniform(0.5, 1.5), self.draw.random()
        if kind < 0.06:
            x.grad_fn.register_prehook(
                lambda gs: tuple(
                    None if g is None or float(g.sum()) > 0 else g * factor for g in gs
                )
            )
        elif kind < 0.12:
            x.grad_fn.register_hook(
                lambda ins, outs: tuple(
                    None if i is None or float(i.sum()) < 0 else i * factor for i in ins
                )
            )
        elif kind < 0.18 and self.hooked:
            other = self.draw.choice(self.hooked)
            x.register_hook(lambda g: other.register_hook(lambda g: g * factor) and None)
        elif kind < 0.22 and self.hooked:
            node = self.draw.choice(self.hooked).grad_fn
            x.register_hook(lambda g: node.register_prehook(self.double) and None)
        elif kind < 0.26:
            handle = x.register_hook(lambda g: (handle.remove(), g * factor)[1])
        else:
            super().add_hook(x)
        self.hooked.append(x)


def run(graph, values, context):
    with context:
        return [None if x is None else onp.array(x) for x in graph(values)]


def check_near(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            scale = max(1, abs(a).max())
            onp.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12 * scale)


@pytest.mark.parametrize(
    ("seed", "length"), [(0, 5), (1, 5), (2, 12), (3, 12), (4, 30), (5, 30), (6, 60), (7, 200)]
)
def test_plain_walks_first_walks_and_hits_have_one_result(seed, length, monkeypatch):
    graph = RandomGraph(seed, length)
    draw = onp.random.default_rng(length)
    one, other = ([draw.normal(size=4) for _ in range(3)] for _ in range(2))
    plain, plain_other = run(graph, one, disable()), run(graph, other, disable())
    check_near(plain, run(graph, one, enable()))
    hit = run(graph, other, enable())
    assert counters.captures == counters.hits
    check_near(plain_other, hit)
    check_near(plain, run(graph, one, enable()))
    # The first run of a recording differs by rounding: its operations are compiled one by one.
    again = run(graph, other, enable())
    for a, b in zip(again, run(graph, other, enable()), strict=True):
        onp.testing.assert_array_equal(a, b)
    check_near(plain, run(graph, one, enable(compile_stages)))
    compiled_autograd.reset()
    monkeypatch.setattr(WalkCompiler, "runs_first_walk", True)
    check_near(plain, run(graph, one, enable()))


@pytest.mark.parametrize("runs_first_walk", [False, True])
@pytest.mark.parametrize(("seed", "length"), [(0, 8), (1, 16), (2, 25), (3, 16)])
def test_hits_go_on_node_by_node_where_hooks_change_what_follows(
    seed, length, runs_first_walk, monkeypatch
):
    monkeypatch.setattr(WalkCompiler, "runs_first_walk", runs_first_walk)
    graph, draw = ChangingGraph(seed, length), onp.random.default_rng(seed)
    points = [[draw.normal(size=4) for _ in range(3)] for _ in range(3)]
    plain = [run(graph, values, disable()) for values in points]
    for i in (0, 1, 2, 0):
        check_near(plain[i], run(graph, points[i], enable()))
