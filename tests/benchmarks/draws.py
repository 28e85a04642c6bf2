"""Random numbers: arrays of noise with one reader and with many, a variational autoencoder, variates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

random = np.random.RandomState(0)
IMAGES = random.uniform(size=(128, 784)).astype("float32")
WEIGHTS = [(0.02 * random.randn(*shape)).astype("float32") for shape in ((784, 64), (32, 784))]
X = np.ones((1000, 1000), "float32")


def one_reader(fx: Any, key: Any, x: Any) -> Any:
    return x + fx.random.normal(key, x.shape)


def many_readers(fx: Any, key: Any, x: Any) -> Any:
    noise = fx.random.normal(key, x.shape)
    sums = (x * noise).sum(), (fx.np.sin(x) + noise).sum(0), fx.np.exp(noise).sum(1)
    return *sums, noise @ noise.T[:, :8], noise * x


def autoencoder_gradient(fx: Any, key: Any, weights: Any, images: Any) -> Any:
    def loss(weights: Any) -> Any:
        hidden = fx.np.tanh(images @ weights[0])
        mean, log_deviation = hidden[:, :32], hidden[:, 32:]
        latent = mean + fx.np.exp(log_deviation) * fx.random.normal(key, mean.shape)
        divergence = (mean**2 + fx.np.exp(2 * log_deviation) - 2 * log_deviation).sum()
        return ((latent @ weights[1] - images) ** 2).sum() + 0.5 * divergence

    return fx.grad(loss)(weights)


def walk(fx: Any, key: Any, x: Any) -> Any:
    def step(x: Any, key: Any) -> Any:
        noise = fx.random.normal(key, x.shape)
        return 0.9 * x + noise * fx.random.uniform(key, x.shape), (noise * noise).sum()

    return fx.lax.scan(step, x, fx.random.split(key, 20))


def task(f: Callable[..., Any], *args: Any) -> Callable[[Any], Callable[[], Any]]:
    def of(fx: Any) -> Callable[[], Any]:
        compiled, key = fx.jit(lambda key, *args: f(fx, key, *args)), fx.random.key(0)
        return lambda: compiled(key, *args)

    return of


DRAWS = {
    "noise_one_reader": (task(one_reader, X), 1.0),
    "noise_many_readers": (task(many_readers, X), 1.0),
    "autoencoder": (task(autoencoder_gradient, WEIGHTS, IMAGES), 1.0),
    "random_walk": (task(walk, X[:256, :64]), 1.0),
    "gamma_variates": (task(lambda fx, key: fx.random.gamma(key, 2.0, (10000,))), 1.0),
    "poisson_counts": (task(lambda fx, key: fx.random.poisson(key, 20.0, (10000,))), 1.0),
}
