"""What is timed: each task, built for a framework that is given as its names."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import jax
import numpy as np

import functx
from tests.benchmarks.draws import DRAWS
from tests.benchmarks.frameworks import FUNCTX
from tests.benchmarks.frameworks import JAX as JAX
from tests.benchmarks.in_place import IN_PLACE
from tests.benchmarks.networks import NETWORKS

random = np.random.RandomState(0)


def normal(*shape: int, scale: float = 1.0) -> Any:
    return jax.numpy.asarray((random.randn(*shape) * scale).astype("float32"))


def layers(*sizes: int) -> list[Any]:
    return [(normal(a, b, scale=0.1), normal(b, scale=0.1)) for a, b in pairwise(sizes)]


def mlp(fx: Any, params: Any, x: Any) -> Any:
    for weights, bias in params[:-1]:
        x = fx.np.tanh(x @ weights + bias)
    weights, bias = params[-1]
    return x @ weights + bias


def mlp_loss(fx: Any) -> Callable[..., Any]:
    return lambda params, x, y: fx.np.mean((mlp(fx, params, x) - y) ** 2)


def residual_net(fx: Any) -> Callable[..., Any]:
    def block(x: Any, p: Any) -> Any:
        w1, b1, w2, b2, gain, bias = p
        mean = x.mean(axis=-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
        h = (x - mean) / fx.np.sqrt(variance + 1e-5) * gain + bias
        return x + fx.nn.gelu(h @ w1 + b1) @ w2 + b2

    def loss(params: Any, x: Any) -> Any:
        for p in params:
            x = block(x, p)
        return fx.np.mean(x**2)

    return loss


def blocks(count: int, width: int = 64) -> list[Any]:
    return [
        (
            normal(width, 4 * width, scale=0.02),
            normal(4 * width),
            normal(4 * width, width, scale=0.02),
            normal(width),
            normal(width),
            normal(width),
        )
        for _ in range(count)
    ]


SMALL = layers(16, 32, 32, 1)
SMALL_X, SMALL_Y = normal(8, 16), normal(8, 1)
DEEP = blocks(32)
DEEP_X = normal(8, 64)
LEAVES = [normal(3) for _ in range(100)]
SAMPLES = layers(64, 128, 128, 10), normal(256, 64), normal(256, 10)
IMAGES = layers(784, 512, 512, 10), normal(256, 784), normal(256, 10)
FLAT = normal(300, scale=0.1)
FIT_X, FIT_Y = normal(64, 8), normal(64, 1)
GAUSSIAN_X, GAUSSIAN_Y, GAUSSIAN_LOGS = normal(300, 4), normal(300), normal(6, scale=0.1)


def eager_grad(fx: Any) -> Callable[[], Any]:
    gradient, given = fx.grad(mlp_loss(fx)), fx.given((SMALL, SMALL_X, SMALL_Y))
    return lambda: gradient(*given)


def fresh_lambda(fx: Any) -> Callable[[], Any]:
    loss, (small, x, y) = mlp_loss(fx), fx.given((SMALL, SMALL_X, SMALL_Y))
    return lambda: fx.grad(lambda params: loss(params, x, y))(small)


def dispatch(fx: Any, leaves: int) -> Callable[[], Any]:
    f = fx.jit(lambda xs: [x + 1 for x in xs])
    given = fx.given(LEAVES[:leaves])

    def run() -> Any:
        for _ in range(300):
            out = f(given)
        return out

    return run


def trace(fx: Any) -> Callable[[], Any]:
    loss, given = residual_net(fx), fx.given((DEEP, DEEP_X))
    return lambda: fx.trace(fx.grad(lambda p, x: loss(p, x)), *given)


def lower(fx: Any) -> Callable[[], Any]:
    loss = residual_net(fx)
    return lambda: fx.jit(fx.grad(lambda p, x: loss(p, x))).lower(DEEP, DEEP_X)


def per_sample(fx: Any) -> Callable[[], Any]:
    f = fx.jit(fx.vmap(fx.grad(mlp_loss(fx)), in_axes=(None, 0, 0)))
    given = fx.given(SAMPLES)
    return lambda: f(*given)


def hessian(fx: Any) -> Callable[[], Any]:
    x, y, flat = fx.given((FIT_X, FIT_Y, FLAT))

    def loss(v: Any) -> Any:
        a, b, c = v[:240].reshape(8, 30), v[240:270], v[270:].reshape(30, 1)
        return fx.np.mean((fx.np.tanh(x @ a + b) @ c - y) ** 2)

    f = fx.jit(fx.hessian(loss))
    return lambda: f(flat)


def gaussian_process(fx: Any) -> Callable[[], Any]:
    points, y, logs = fx.given((GAUSSIAN_X, GAUSSIAN_Y, GAUSSIAN_LOGS))

    def loss(logs: Any) -> Any:
        scaled = points / fx.np.exp(logs[:4])
        squares = (scaled**2).sum(-1)
        distances = squares[:, None] + squares[None] - 2 * scaled @ scaled.T
        kernel = fx.np.exp(logs[4] - 0.5 * distances) + fx.np.exp(logs[5]) * fx.np.eye(len(y))
        return y @ fx.np.linalg.solve(kernel, y) + fx.np.linalg.slogdet(kernel)[1]

    f = fx.jit(fx.grad(loss))
    return lambda: f(logs)


def train(fx: Any) -> Callable[[], Any]:
    def loss(params: Any, x: Any, y: Any) -> Any:
        return -fx.np.mean((fx.nn.log_softmax(mlp(fx, params, x)) * y).sum(-1))

    def step(params: Any, x: Any, y: Any) -> Any:
        gradients = fx.grad(loss)(params, x, y)
        return [
            (w - 0.1 * dw, b - 0.1 * db) for (w, b), (dw, db) in zip(params, gradients, strict=True)
        ]

    f, given = fx.jit(step), fx.given(IMAGES)
    return lambda: f(*given)


def rnn_loss(fx: Any) -> Callable[..., Any]:
    def loss(params: Any, start: Any, xs: Any) -> Any:
        w, u, bias = params

        def step(h: Any, x: Any) -> Any:
            h = fx.np.tanh(x @ w + h @ u + bias)
            return h, h

        return fx.np.mean(fx.lax.scan(step, start, xs)[1] ** 2)

    return loss


def lstm_loss(fx: Any) -> Callable[..., Any]:
    def loss(params: Any, start: Any, xs: Any) -> Any:
        w, u, bias = params

        def step(carry: Any, x: Any) -> Any:
            h, c = carry
            i, f, g, o = fx.np.split(x @ w + h @ u + bias, 4, axis=-1)
            c = fx.nn.sigmoid(f) * c + fx.nn.sigmoid(i) * fx.np.tanh(g)
            h = fx.nn.sigmoid(o) * fx.np.tanh(c)
            return (h, c), h

        return fx.np.mean(fx.lax.scan(step, (start, start), xs)[1] ** 2)

    return loss


def loop_run(loss: Any, given: Any, gradient: bool) -> Callable[[Any], Callable[[], Any]]:
    def task(fx: Any) -> Callable[[], Any]:
        f = fx.jit(fx.grad(loss(fx)) if gradient else loss(fx))
        return lambda: f(*given)

    return task


def loop_compile(loss: Any, given: Any, gradient: bool) -> Callable[[Any], Callable[[], Any]]:
    def task(fx: Any) -> Callable[[], Any]:
        def run() -> Any:
            f = loss(fx)
            whole = fx.grad(lambda *args: f(*args)) if gradient else lambda *args: f(*args)
            return fx.jit(whole).lower(*given).compile()

        return run

    return task


def fixed_points(fx: Any) -> Callable[..., Any]:
    def one(start: Any, tolerance: Any) -> Any:
        def step(carry: Any) -> Any:
            x, _, n = carry
            return fx.np.tanh(x @ CONTRACTION) * 0.9 + start, x, n + 1

        def unsettled(carry: Any) -> Any:
            x, before, n = carry
            return (fx.np.abs(x - before).max() > tolerance) & (n < 500)

        return fx.lax.while_loop(unsettled, step, (start, start + 1.0, 0))

    return fx.vmap(one)


def batched_while(fx: Any) -> Callable[[], Any]:
    f = fx.jit(fixed_points(fx))
    return lambda: f(*LANES)


def grouped_gradients(fx: Any) -> Callable[[], Any]:
    """The gradient of each image in the kernel of a convolution with four groups of channels."""

    def loss(kernel: Any, image: Any) -> Any:
        out = fx.lax.conv_general_dilated(
            image[None], kernel, (1, 1), "SAME", feature_group_count=4
        )
        return (out**2).sum()

    gradients, given = fx.jit(fx.vmap(fx.grad(loss), (None, 0))), fx.given(GROUPED)
    return lambda: gradients(*given)


def borrowed(params: Any, x: Any) -> Any:
    """A network in JAX's own words."""
    for w, b in params:
        x = jax.nn.gelu(jax.nn.standardize(x) @ w + b) + x
    return jax.numpy.mean(x**2)


def from_jax(fx: Any) -> Callable[[], Any]:
    f = fx.jit(fx.grad(functx.from_jax(borrowed) if fx is FUNCTX else borrowed))
    return lambda: f(*BORROWED)


BORROWED = [(normal(256, 256, scale=0.05), normal(256)) for _ in range(4)], normal(128, 256)
SEQUENCE = normal(32, 128), normal(100, 32, 128)
RNN = (normal(128, 128, scale=0.05), normal(128, 128, scale=0.05), normal(128)), *SEQUENCE
LSTM = (normal(128, 512, scale=0.05), normal(128, 512, scale=0.05), normal(512)), *SEQUENCE
CONTRACTION = normal(32, 32, scale=0.15)
LANES = normal(64, 32), jax.numpy.exp(-5.0 - 8.0 * jax.numpy.arange(64) / 64)
GROUPED = normal(32, 4, 3, 3), normal(8, 16, 16, 16)
LOOPS = {
    f"{name}{'_grad' if gradient else ''}{'_compile' if task is loop_compile else ''}": (
        task(loss, given, gradient),
        1.0,
    )
    for name, loss, given in (("rnn", rnn_loss, RNN), ("lstm", lstm_loss, LSTM))
    for task in (loop_run, loop_compile)
    for gradient in (False, True)
}


# The task, and the ratio functx / JAX that it is to reach.
def composite(call: Callable[[Any, Any], Any]) -> Callable[[Any], Callable[[], Any]]:
    """A function of numpy made of several operations, called outside a trace on an array of JAX."""

    def of(fx: Any) -> Callable[[], Any]:
        x = jax.numpy.linspace(0.0, 1.0, 1000)
        return lambda: call(fx.np, x)

    return of


COMPOSITES = {
    "eager_allclose": (composite(lambda np, x: np.allclose(x, x)), 1.5),
    "eager_linspace": (composite(lambda np, x: np.linspace(0.0, 1.0, 1000)), 1.5),
    "eager_norm": (composite(lambda np, x: np.linalg.norm(x)), 1.5),
    "eager_median": (composite(lambda np, x: np.median(x)), 1.5),
}
TASKS: dict[str, tuple[Callable[[Any], Callable[[], Any]], float]] = {
    "trace": (trace, 1 / 12),
    "lower": (lower, 1 / 10),
    "eager_grad": (eager_grad, 1 / 15),
    "fresh_lambda": (fresh_lambda, 1 / 15),
    "dispatch1": (lambda fx: dispatch(fx, 1), 1.15),
    "dispatch100": (lambda fx: dispatch(fx, 100), 1.15),
    "hessian": (hessian, 1.0),
    "gaussian_process": (gaussian_process, 1.0),
    "train": (train, 1.0),
    "per_sample": (per_sample, 0.25),
    **LOOPS,
    "batched_while": (batched_while, 1.0),
    "grouped_gradients": (grouped_gradients, 0.2),
    "from_jax": (from_jax, 1.0),
    **COMPOSITES,
    **IN_PLACE,
    **NETWORKS,
    **DRAWS,
}
