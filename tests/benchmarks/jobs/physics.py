"""Simulations and their derivatives."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import numpy as np

from tests.benchmarks.jobs.learning import network, normals


def neural_ode(fx: Any) -> Any:
    """The gradient through 500 steps of Runge and Kutta."""

    def slope(params: Any, y: Any) -> Any:
        return fx.np.tanh(y @ params[0] + params[1]) @ params[2]

    def loss(params: Any, y: Any, target: Any) -> Any:
        def step(y: Any, _: Any) -> Any:
            h = 0.01
            k1 = slope(params, y)
            k2 = slope(params, y + h / 2 * k1)
            k3 = slope(params, y + h / 2 * k2)
            k4 = slope(params, y + h * k3)
            return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

        return ((fx.lax.scan(step, y, None, length=500)[0] - target) ** 2).mean()

    normal = normals()
    params = normal(8, 64, scale=0.3), normal(64, scale=0.1), normal(64, 8, scale=0.3)
    return fx.value_and_grad(loss), (params, normal(32, 8), normal(32, 8))


def adaptive_ode(fx: Any) -> Any:
    """The derivative in two parameters of a predator and its prey, by steps of adapted length."""

    def slope(params: Any, y: Any) -> Any:
        prey, predator = y
        gained = params[1] * prey * predator
        return fx.np.stack([params[0] * prey - gained, gained - predator])

    def attempt(params: Any, y: Any, h: Any) -> Any:
        k1 = slope(params, y)
        k2 = slope(params, y + h * k1 / 2)
        k3 = slope(params, y + h * 3 * k2 / 4)
        found = y + h * (2 * k1 + 3 * k2 + 4 * k3) / 9
        k4 = slope(params, found)
        error = h * (-5 * k1 / 72 + k2 / 12 + k3 / 9 - k4 / 8)
        return found, fx.np.sqrt((error**2).mean()) / 1e-4

    def end(params: Any, start: Any) -> Any:
        def step(state: Any) -> Any:
            t, y, h = state
            h = fx.np.minimum(h, 20.0 - t)
            found, error = attempt(params, y, h)
            accepted = error <= 1.0
            t = fx.np.where(accepted, t + h, t)
            factor = fx.np.clip(0.9 * fx.np.maximum(error, 1e-8) ** (-1 / 3), 0.2, 5.0)
            return t, fx.np.where(accepted, found, y), h * factor

        state = fx.lax.while_loop(lambda state: state[0] < 20.0, step, (0.0, start, 0.1))
        return state[1]

    def derivative(params: Any, start: Any) -> Any:
        return end(params, start), fx.jacfwd(end)(params, start)

    return derivative, (np.array([1.1, 0.4], "float32"), np.array([1.0, 0.5], "float32"))


def n_body(fx: Any) -> Any:
    """The gradient through 50 steps of 128 bodies that attract each other."""

    def acceleration(x: Any) -> Any:
        d = x[None] - x[:, None]
        squares = (d * d).sum(-1) + 0.01
        return (d / (squares**1.5)[..., None]).sum(1)

    def simulate(x: Any, v: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            x, v = state
            v = v + 0.001 * acceleration(x)
            return (x + 0.001 * v, v), None

        (x, v), _ = fx.lax.scan(step, (x, v), None, length=50)
        return (x * x).sum()

    normal = normals()
    return fx.value_and_grad(simulate, (0, 1)), (normal(128, 3), normal(128, 3, scale=0.1))


def molecular_dynamics(fx: Any) -> Any:
    """100 steps of 125 atoms in a periodic box; forces are gradients of the energy."""

    def energy(x: Any) -> Any:
        d = x[:, None] - x[None]
        d = d - 6.0 * fx.np.round(d / 6.0)
        squares = (d**2).sum(-1) + 10.0 * fx.np.eye(len(x))
        inverse = fx.np.where(squares < 6.25, 1.0 / squares, 0.0) ** 3
        return 2.0 * (inverse**2 - inverse).sum()

    force = fx.grad(energy)

    def simulate(x: Any, v: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            x, v = state
            v = v - 0.0005 * force(x)
            x = x + 0.001 * v
            return (x, v - 0.0005 * force(x)), energy(x)

        return fx.lax.scan(step, (x, v), None, length=100)

    axis = np.arange(5) * 1.2
    grid = np.stack(np.meshgrid(axis, axis, axis), -1).reshape(-1, 3)
    return simulate, (grid.astype("float32"), normals()(125, 3, scale=0.1))


def spectral_wave(fx: Any) -> Any:
    """The gradient through 50 spectral steps of a Burgers equation on 64 by 64 points."""
    waves = np.fft.fftfreq(64, 1 / 64).astype("float32")
    first, second = np.meshgrid(waves, waves, indexing="ij")
    decay = np.exp(-0.0005 * (first**2 + second**2)).astype("float32")

    def loss(u: Any) -> Any:
        def step(u: Any, _: Any) -> Any:
            spectrum = fx.np.fft.fft2(u)
            slopes = [fx.np.fft.ifft2(1j * k * spectrum).real for k in (first, second)]
            moved = u - 0.002 * u * (slopes[0] + slopes[1])
            return fx.np.fft.ifft2(decay * fx.np.fft.fft2(moved)).real, None

        return (fx.lax.scan(step, u, None, length=50)[0] ** 2).sum()

    return fx.value_and_grad(loss), (normals()(64, 64),)


def ising(fx: Any) -> Any:
    """200 sweeps of a checkerboard of 64 by 64 spins."""
    black = (np.indices((64, 64)).sum(0) % 2).astype(bool)

    def sweep(spins: Any, key: Any) -> Any:
        for color, key_of_color in zip((black, ~black), fx.random.split(key), strict=True):
            field = sum(fx.np.roll(spins, s, axis) for s in (1, -1) for axis in (0, 1))
            chance = fx.nn.sigmoid(0.88 * field)
            new = fx.np.where(fx.random.uniform(key_of_color, (64, 64)) < chance, 1.0, -1.0)
            spins = fx.np.where(color, new, spins)
        return spins, spins.mean()

    def simulate(spins: Any, key: Any) -> Any:
        return fx.lax.scan(sweep, spins, fx.random.split(key, 200))

    return simulate, (np.ones((64, 64), "float32"), jax.random.PRNGKey(0))


def tensor_network(fx: Any) -> Any:
    """The gradient of the norm of a product of 40 matrices with open indices."""

    def loss(sites: Any) -> Any:
        left = fx.np.ones((1, 1))
        for site in sites:
            left = fx.np.einsum("ab,apc,bpd->cd", left, site, site)
            left = left / fx.np.sqrt((left**2).sum())
        return fx.np.log(fx.np.trace(left) ** 2)

    normal, bonds = normals(), [1, *[24] * 39, 1]
    sites = [normal(a, 2, b) for a, b in pairwise(bonds)]
    return fx.value_and_grad(loss), (sites,)


def ray_marching(fx: Any) -> Any:
    """The gradient of a picture of 64 by 64 rays in the shape of a scene, a network."""

    def picture(params: Any, rays: Any) -> Any:
        def distance(x: Any) -> Any:
            return fx.np.sqrt((x * x).sum()) - 1.0 + 0.1 * network(fx, params, x)[0]

        def shade(ray: Any) -> Any:
            def march(_: Any, depth: Any) -> Any:
                return depth + 0.5 * distance(start + depth * ray)

            start = fx.np.array([0.0, 0.0, -3.0])
            depth = fx.lax.fori_loop(0, 16, march, 0.0)
            return fx.grad(distance)(start + depth * ray) @ fx.np.array([0.3, 0.5, -0.8])

        return (fx.vmap(shade)(rays) ** 2).mean()

    axis = np.linspace(-0.4, 0.4, 64)
    x, y = np.meshgrid(axis, axis)
    rays = np.stack([x, y, np.ones_like(x)], -1).reshape(-1, 3).astype("float32")
    normal = normals()
    params = [(normal(3, 16, scale=0.5), normal(16)), (normal(16, 1, scale=0.5), normal(1))]
    return fx.value_and_grad(picture), (params, rays)


JOBS = (
    neural_ode,
    adaptive_ode,
    n_body,
    molecular_dynamics,
    spectral_wave,
    ising,
    tensor_network,
    ray_marching,
)
