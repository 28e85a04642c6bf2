"""Programs that repeat themselves, unrolled by Python's loops: how long to compile, and to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tests.benchmarks.measures import Compiled
from tests.benchmarks.tasks import blocks, normal, residual_net


def residual(count: int, wanted: float, recorded: Any = None) -> Compiled:
    """The gradient of a network of residual blocks."""

    def of(fx: Any) -> Callable[..., Any]:
        return fx.grad(residual_net(fx))  # type: ignore[no-any-return]

    return compiled_or_recorded(of, (blocks(count), normal(8, 64)), wanted, recorded)


def unrolled_rnn(
    steps: int, wanted: float | None, recorded: Any = None, width: int = 32
) -> Compiled:
    """The gradient of a gated recurrent network, one step after the other."""

    def of(fx: Any) -> Callable[..., Any]:
        def sigmoid(x: Any) -> Any:
            return 0.5 * (fx.np.tanh(0.5 * x) + 1.0)

        def loss(params: Any, start: Any, xs: Any) -> Any:
            w, u, bias = params
            h = start
            for t in range(steps):
                x = xs[t]
                gate = sigmoid(x @ w + h @ u + bias)
                h = (1.0 - gate) * h + gate * fx.np.tanh(x @ u + (h * gate) @ w)
            return fx.np.mean(h**2)

        return fx.grad(loss)  # type: ignore[no-any-return]

    weights = normal(width, width, scale=0.1), normal(width, width, scale=0.1), normal(width)
    args = weights, normal(16, width), normal(steps, 16, width)
    return compiled_or_recorded(of, args, wanted, recorded)


def deep_transformer(count: int, wanted: float, size: tuple[int, int] = (8, 128)) -> Compiled:
    """The gradient of a causal transformer in plain formulas: so many texts of so many words."""
    width, heads, words = 128, 4, 256

    def of(fx: Any) -> Callable[..., Any]:
        def norm(x: Any, gain: Any, bias: Any) -> Any:
            mean = x.mean(axis=-1, keepdims=True)
            variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
            return (x - mean) / fx.np.sqrt(variance + 1e-5) * gain + bias

        def split(x: Any) -> Any:
            return x.reshape(*size, heads, width // heads).transpose(0, 2, 1, 3)

        def block(x: Any, p: Any) -> Any:
            h = norm(x, *p["norm"]) @ p["in"]
            q, k, v = [split(part) for part in fx.np.split(h, 3, axis=-1)]
            scores = q @ k.transpose(0, 1, 3, 2) / (width / heads) ** 0.5
            seen = fx.np.tril(fx.np.ones((size[1], size[1]), bool))
            weights = fx.nn.softmax(fx.np.where(seen, scores, -1e30), axis=-1)
            x = x + (weights @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ p["out"]
            return x + fx.nn.gelu(norm(x, *p["second_norm"]) @ p["wide"]) @ p["narrow"]

        def loss(params: Any, text: Any, target: Any) -> Any:
            x = params["embedding"][text]
            for p in params["blocks"]:
                x = block(x, p)
            found = fx.nn.log_softmax(x @ params["embedding"].T)
            return -fx.np.mean(fx.np.take_along_axis(found, target[..., None], -1))

        return fx.grad(loss)  # type: ignore[no-any-return]

    blocks = [
        {
            "norm": (normal(width), normal(width)),
            "in": normal(width, 3 * width, scale=0.05),
            "out": normal(width, width, scale=0.05),
            "second_norm": (normal(width), normal(width)),
            "wide": normal(width, 4 * width, scale=0.05),
            "narrow": normal(4 * width, width, scale=0.05),
        }
        for _ in range(count)
    ]
    params = {"embedding": normal(words, width), "blocks": blocks}
    text = np.random.RandomState(0).randint(0, words, (size[0], size[1] + 1))
    return Compiled(of, (params, text[:, :-1], text[:, 1:]), (wanted, 1.0))


def relaxation(fx: Any, u: Any, dt: Any) -> Any:
    """An explicit step, of four operations."""
    return u + dt * (fx.np.sin(u) - u)


def diffusion(fx: Any, u: Any, dt: Any) -> Any:
    """A midpoint step of a diffusion with a reaction, of some thirty operations."""

    def slope(u: Any) -> Any:
        return fx.np.roll(u, 1) - 2.0 * u + fx.np.roll(u, -1) + u * (1.0 - u)

    return u + dt * slope(u + 0.5 * dt * slope(u))


def solver(step: Callable[..., Any], steps: int, gradient: bool = False, size: int = 1000) -> Any:
    """Explicit steps, unrolled, beside JAX's `scan` by hand."""

    def of(fx: Any) -> Callable[..., Any]:
        def solve(u: Any, dt: Any) -> Any:
            if fx.name == "JAX":
                return jax.lax.scan(lambda u, _: (step(fx, u, dt), None), u, length=steps)[0]
            for _ in range(steps):
                u = step(fx, u, dt)
            return u

        if not gradient:
            return solve
        return fx.grad(lambda u, dt: fx.np.mean(solve(u, dt) ** 2), (0, 1))  # type: ignore[no-any-return]

    return Compiled(of, (normal(size), np.float32(0.01)), (2.0, 2.0))


def compiled_or_recorded(of: Any, args: Any, wanted: float | None, recorded: Any) -> Compiled:
    if recorded is None:
        return Compiled(of, args, (wanted, 1.0))
    return Compiled(of, args, (wanted, 1.0), slow=True, recorded=recorded)


# What JAX took on two quiet cores of an AMD EPYC stands where it takes too long to measure again.
REPEATS: dict[str, Callable[[], Compiled]] = {
    "residual24": lambda: residual(24, 1 / 10),
    "residual48": lambda: residual(48, 1 / 25, recorded=(36.0, 0.0103)),
    "rnn64": lambda: unrolled_rnn(64, 1 / 20),
    "rnn256": lambda: unrolled_rnn(256, 1 / 20, recorded=(200.0, None)),
    "transformer12": lambda: deep_transformer(12, 1 / 8),
    "solver1000": lambda: solver(relaxation, 1000),
    "solver1000_grad": lambda: solver(relaxation, 1000, gradient=True),
    "diffusion1000": lambda: solver(diffusion, 1000),
    "diffusion1000_grad": lambda: solver(diffusion, 1000, gradient=True),
}
# The shorter and the longer of two, and how many times longer that may take.
GROWTH = [("rnn64_compile", "rnn256_compile", 1.3)]
