"""Statistics: sampling, filtering, likelihoods."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from tests.benchmarks.jobs.learning import integers, layers, network, normals


def hamiltonian(fx: Any) -> Any:
    """200 steps of Hamiltonian Monte Carlo on a logistic regression."""
    normal = normals()
    points, labels = normal(500, 20), integers(2, 500).astype("float32")

    def log_density(w: Any) -> Any:
        z = points @ w
        fit = labels * fx.nn.log_sigmoid(z) + (1 - labels) * fx.nn.log_sigmoid(-z)
        return fit.sum() - 0.5 * (w * w).sum()

    slope = fx.grad(log_density)

    def leap(state: Any, _: Any) -> Any:
        q, p = state
        p = p + 0.005 * slope(q)
        q = q + 0.01 * p
        return (q, p + 0.005 * slope(q)), None

    def step(w: Any, key: Any) -> Any:
        first, second = fx.random.split(key)
        momentum = fx.random.normal(first, w.shape)
        (q, p), _ = fx.lax.scan(leap, (w, momentum), None, length=10)
        energy = 0.5 * ((p * p).sum() - (momentum * momentum).sum())
        change = log_density(q) - log_density(w) - energy
        w = fx.np.where(fx.np.log(fx.random.uniform(second)) < change, q, w)
        return w, w

    def mean(w: Any, key: Any) -> Any:
        return fx.lax.scan(step, w, fx.random.split(key, 200))[1].mean(0)

    return mean, (np.zeros(20, "float32"), jax.random.PRNGKey(0))


def gaussian_process_fit(fx: Any) -> Any:
    """The gradient of the likelihood of a Gaussian process of 300 points."""
    normal = normals()
    points, y = normal(300, 5), normal(300)

    def loss(logs: Any) -> Any:
        scaled = points / fx.np.exp(logs[:5])
        squares = (scaled * scaled).sum(-1)
        distances = squares[:, None] + squares[None] - 2 * scaled @ scaled.T
        noise = (fx.np.exp(logs[6]) + 1e-3) * fx.np.eye(300)
        kernel = fx.np.exp(logs[5]) * fx.np.exp(-0.5 * distances) + noise
        root = fx.np.linalg.cholesky(kernel)
        a = fx.lax.linalg.triangular_solve(root, y[:, None], left_side=True, lower=True)
        return 0.5 * (a * a).sum() + fx.np.log(fx.np.diagonal(root)).sum()

    return fx.value_and_grad(loss), (np.zeros(7, "float32"),)


def sinkhorn(fx: Any) -> Any:
    """The gradient of a transport cost by 60 unrolled steps of Sinkhorn."""

    def transport(x: Any, y: Any) -> Any:
        cost = ((x[:, None] - y[None]) ** 2).sum(-1)
        f = g = fx.np.zeros(100)
        for _ in range(60):
            f = -0.1 * fx.nn.logsumexp((g[None] - cost) / 0.1, 1)
            g = -0.1 * fx.nn.logsumexp((f[:, None] - cost) / 0.1, 0)
        return (f + g).sum()

    normal = normals()
    return fx.value_and_grad(transport), (normal(100, 2), normal(100, 2))


def kalman(fx: Any) -> Any:
    """The gradient of the likelihood of 200 observations under a linear Gaussian model."""

    def loss(params: Any, observations: Any) -> Any:
        a, c, q, r = params
        noise, seen_noise = q @ q.T + 0.1 * fx.np.eye(6), r @ r.T + 0.1 * fx.np.eye(3)

        def step(state: Any, y: Any) -> Any:
            mean, covariance = state
            mean, covariance = a @ mean, a @ covariance @ a.T + noise
            spread = c @ covariance @ c.T + seen_noise
            gain = fx.np.linalg.solve(spread, c @ covariance).T
            error = y - c @ mean
            fit = error @ fx.np.linalg.solve(spread, error) + fx.np.linalg.slogdet(spread)[1]
            return (mean + gain @ error, covariance - gain @ c @ covariance), fit

        start = fx.np.zeros(6), fx.np.eye(6)
        return fx.lax.scan(step, start, observations)[1].sum()

    normal = normals()
    params = normal(6, 6, scale=0.3), normal(3, 6), normal(6, 6), normal(3, 3)
    return fx.value_and_grad(loss), (params, normal(200, 3))


def variational_regression(fx: Any) -> Any:
    """The gradient of a bound on the evidence of a Bayesian regression, by 16 draws."""
    normal = normals()
    points, y = normal(400, 30), normal(400)

    def loss(params: Any, key: Any) -> Any:
        mean, log_deviation = params

        def energy(noise: Any) -> Any:
            w = mean + fx.np.exp(log_deviation) * noise
            fit = fx.scipy.stats.norm.logpdf(y, points @ w[:-1], fx.np.exp(w[-1])).sum()
            return fit + fx.scipy.stats.t.logpdf(w, 4.0).sum()

        draws = fx.vmap(energy)(fx.random.normal(key, (16, 31)))
        return -draws.mean() - log_deviation.sum()

    params = normal(31, scale=0.1), normal(31, scale=0.1)
    return fx.value_and_grad(loss), (params, jax.random.PRNGKey(0))


def gaussian_mixture(fx: Any) -> Any:
    """50 steps of expectation maximization of a mixture of ten normal distributions."""

    def fit(points: Any, means: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            means, logs, weights = state
            errors = (points[:, None] - means) * fx.np.exp(-logs)
            scores = weights - 0.5 * (errors**2).sum(-1) - logs.sum(-1)
            share = fx.nn.softmax(scores, -1)
            total = share.sum(0)
            means = share.T @ points / total[:, None]
            spread = share.T @ points**2 / total[:, None] - means**2
            state = means, 0.5 * fx.np.log(spread + 1e-2), fx.np.log(total / len(points))
            return state, fx.nn.logsumexp(scores, -1).mean()

        start = means, fx.np.zeros((10, 4)), fx.np.zeros(10)
        return fx.lax.scan(step, start, None, length=50)

    normal = normals()
    return fit, (normal(2000, 4), normal(10, 4))


def particle_filter(fx: Any) -> Any:
    """The likelihood of 100 observations by 1,000 particles, resampled at each step."""

    def likelihood(key: Any, observations: Any) -> Any:
        def step(state: Any, y: Any) -> Any:
            x, key = state
            key, first, second = fx.random.split(key, 3)
            x = 0.9 * x + 8.0 * fx.np.sin(x) + fx.random.normal(first, x.shape)
            logs = -0.5 * (y - x**2 / 20.0) ** 2
            total = fx.nn.logsumexp(logs)
            sums = fx.np.cumsum(fx.np.exp(logs - total))
            places = (fx.np.arange(1000) + fx.random.uniform(second)) / 1000.0
            chosen = fx.np.minimum(fx.np.searchsorted(sums, places), 999)
            return (x[chosen], key), total

        start = fx.random.normal(key, (1000,)), key
        return fx.lax.scan(step, start, observations)[1].sum()

    return likelihood, (jax.random.PRNGKey(0), normals()(100) ** 2)


def spline_flow(fx: Any) -> Any:
    """The gradient of the log-likelihood of a flow of four coupling layers of rational splines."""
    bins, bound = 8, 3.0

    def spline(params: Any, x: Any) -> Any:
        widths, heights, slopes = fx.np.split(params, (bins, 2 * bins), -1)
        widths, heights = [
            2 * bound * (1e-3 + (1 - 1e-3 * bins) * fx.nn.softmax(part, -1))
            for part in (widths, heights)
        ]
        edges = ((0, 0),) * (params.ndim - 1)
        slopes = fx.np.pad(fx.nn.softplus(slopes), (*edges, (1, 1)), constant_values=1.0)
        xs, ys = [
            fx.np.pad(fx.np.cumsum(part, -1), (*edges, (1, 0))) - bound
            for part in (widths, heights)
        ]
        inside = fx.np.abs(x) < bound
        kept = fx.np.clip(x, -bound, bound)
        place = fx.np.clip((kept[..., None] >= xs).sum(-1) - 1, 0, bins - 1)[..., None]

        def at(table: Any, place: Any) -> Any:
            return fx.np.take_along_axis(table, place, -1)[..., 0]

        width, height = at(widths, place), at(heights, place)
        left, right = at(slopes, place), at(slopes, place + 1)
        ratio = height / width
        t = (kept - at(xs, place)) / width
        mixed = t * (1 - t)
        below = ratio + (left + right - 2 * ratio) * mixed
        y = at(ys, place) + height * (ratio * t**2 + left * mixed) / below
        steepness = right * t**2 + 2 * ratio * mixed + left * (1 - t) ** 2
        log_slope = 2 * fx.np.log(ratio) + fx.np.log(steepness) - 2 * fx.np.log(below)
        return fx.np.where(inside, y, x), fx.np.where(inside, log_slope, 0.0)

    def log_likelihood(layers: Any, x: Any) -> Any:
        total = 0.0
        for params in layers:
            first, second = fx.np.split(x, 2, -1)
            splines = network(fx, params, first).reshape(*second.shape, 3 * bins - 1)
            second, logs = spline(splines, second)
            total = total + logs.sum(-1)
            x = fx.np.concatenate([second, first], -1)
        return (total - 0.5 * (x**2).sum(-1)).mean()

    normal = normals()
    params = [layers(normal, 3, 32, 3 * (3 * bins - 1), scale=0.2) for _ in range(4)]
    return fx.value_and_grad(log_likelihood), (params, normal(256, 6))


def hmm_em(fx: Any) -> Any:
    """A step of expectation maximization of a hidden Markov model of 12 states on 16 sequences."""
    states, symbols, length = 12, 20, 60

    def counts(model: Any, sequence: Any) -> Any:
        start, moves, emissions = model
        seen = emissions[:, sequence].T

        def forward(before: Any, log: Any) -> Any:
            now = log + fx.nn.logsumexp(before[:, None] + moves, 0)
            return now, now

        def backward(after: Any, log: Any) -> Any:
            now = fx.nn.logsumexp(moves + log + after, 1)
            return now, now

        first = start + seen[0]
        last, later = fx.lax.scan(forward, first, seen[1:])
        alphas = fx.np.concatenate([first[None], later])
        zero = fx.np.zeros(states)
        earlier = fx.lax.scan(backward, zero, seen[1:], reverse=True)[1]
        betas = fx.np.concatenate([earlier, zero[None]])
        fit = fx.nn.logsumexp(last)
        at = fx.np.exp(alphas + betas - fit)
        between = fx.np.exp(
            alphas[:-1, :, None] + moves + (seen[1:] + betas[1:])[:, None] - fit
        ).sum(0)
        emitted = fx.np.zeros((symbols, states)).at[sequence].add(at)
        return at[0], between, emitted.T, fit

    def step(model: Any, sequences: Any) -> Any:
        *found, fits = fx.vmap(counts, (None, 0))(model, sequences)
        sums = [part.sum(0) + 1e-3 for part in found]
        return [fx.np.log(part / part.sum(-1, keepdims=True)) for part in sums], fits.mean()

    normal = normals()
    model = [normal(states), normal(states, states), normal(states, symbols)]
    model = [part - np.log(np.exp(part).sum(-1, keepdims=True)) for part in model]
    return step, (model, integers(symbols, 16, length))


JOBS = (
    hamiltonian,
    gaussian_process_fit,
    sinkhorn,
    kalman,
    variational_regression,
    gaussian_mixture,
    particle_filter,
    spline_flow,
    hmm_em,
)
