"""Fitting, optimization and control."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.benchmarks.jobs.learning import network, normals


def batched_newton(fx: Any) -> Any:
    """Ten Newton steps of 64 logistic regressions at once."""

    def fit(points: Any, labels: Any) -> Any:
        def loss(w: Any) -> Any:
            fit = fx.np.logaddexp(0.0, -labels * (points @ w))
            return fit.sum() + 0.5 * (w * w).sum()

        def step(_: Any, w: Any) -> Any:
            return w - fx.np.linalg.solve(fx.hessian(loss)(w), fx.grad(loss)(w))

        return fx.lax.fori_loop(0, 10, step, fx.np.zeros(12))

    normal = normals()
    return fx.vmap(fit), (normal(64, 80, 12), np.sign(normal(64, 80)))


def curve_fit(fx: Any) -> Any:
    """20 steps of Levenberg and Marquardt of a small network on 200 points."""
    normal = normals()
    x, y = normal(200, 1), normal(200)

    def residuals(flat: Any) -> Any:
        w, b, v = flat[:15].reshape(1, 15), flat[15:30], flat[30:45].reshape(15, 1)
        return network(fx, [(w, b), (v, flat[45:])], x)[:, 0] - y

    def step(flat: Any, _: Any) -> Any:
        error, slopes = residuals(flat), fx.jacfwd(residuals)(flat)
        change = fx.np.linalg.solve(slopes.T @ slopes + 5.0 * fx.np.eye(46), slopes.T @ error)
        return flat - change, (error**2).sum()

    return (lambda flat: fx.lax.scan(step, flat, None, length=20)), (normal(46),)


def optimal_control(fx: Any) -> Any:
    """Five sweeps of the iterative linear quadratic regulator on a pendulum of 60 steps."""

    def move(x: Any, u: Any) -> Any:
        change = fx.np.stack([x[1], fx.np.sin(x[0]) + u[0] - 0.1 * x[1]])
        return x + 0.05 * change

    def trajectory(start: Any, controls: Any) -> Any:
        def step(x: Any, u: Any) -> Any:
            return move(x, u), x

        return fx.lax.scan(step, start, controls)[1]

    def improve(controls: Any, start: Any) -> Any:
        states = trajectory(start, controls)
        a, b = fx.vmap(fx.jacfwd(move, (0, 1)))(states, controls)

        def back(carry: Any, inputs: Any) -> Any:
            value, slope = carry
            a, b, x, u = inputs
            q_u = 0.1 * u + b.T @ slope
            q_ux, q_uu = b.T @ value @ a, 0.1 * fx.np.eye(1) + b.T @ value @ b
            gain, offset = fx.np.linalg.solve(q_uu, q_ux), fx.np.linalg.solve(q_uu, q_u)
            value = fx.np.eye(2) + a.T @ value @ a - q_ux.T @ gain
            return (value, x + a.T @ slope - q_ux.T @ offset), (gain, offset)

        end = 10.0 * fx.np.eye(2), 10.0 * states[-1]
        gains = fx.lax.scan(back, end, (a, b, states, controls), reverse=True)[1]

        def forward(x: Any, inputs: Any) -> Any:
            gain, offset, old, u = inputs
            u = u - 0.5 * offset - gain @ (x - old)
            return move(x, u), u

        return fx.lax.scan(forward, start, (*gains, states, controls))[1]

    def solve(controls: Any, start: Any) -> Any:
        return fx.lax.fori_loop(0, 5, lambda _, u: improve(u, start), controls)

    return solve, (np.zeros((60, 1), "float32"), np.array([3.0, 0.0], "float32"))


def image_registration(fx: Any) -> Any:
    """The gradient of the difference of two images in a smooth warp of one of them."""
    axis = np.arange(96, dtype="float32")
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"))

    def loss(warp: Any, moving: Any, fixed: Any) -> Any:
        shifts = fx.image.resize(warp, (2, 96, 96), "linear")
        warped = fx.scipy.ndimage.map_coordinates(
            moving, list(grid + shifts), order=1, mode="nearest"
        )
        smooth = sum((fx.np.diff(warp, axis=axis) ** 2).sum() for axis in (1, 2))
        return ((warped - fixed) ** 2).mean() + 0.01 * smooth

    normal = normals()
    return fx.value_and_grad(loss), (normal(2, 8, 8), normal(96, 96), normal(96, 96))


JOBS = batched_newton, curve_fit, optimal_control, image_registration
