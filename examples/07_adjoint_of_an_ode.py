"""An ODE solver whose derivative is a rule: look at how the adjoint runs backwards in time and stores nothing."""

from functools import partial

import functx.numpy as np
from functx import custom_vjp, grad, jit, vjp, vmap
from functx.lax import fori_loop

STEPS = 200


def runge_kutta(field, y, duration, steps=STEPS):
    """The state after `duration` of dy/dt = field(y), by the classic method of order four."""
    h = duration / steps

    def step(_, y):
        a = field(y)
        b = field(y + h / 2 * a)
        c = field(y + h / 2 * b)
        d = field(y + h * c)
        return y + h / 6 * (a + 2 * b + 2 * c + d)

    return fori_loop(0, steps, step, y)


def field(theta, y):
    """The pendulum of frequency theta[0] and friction theta[1]: y is its angle and speed."""
    return np.stack([y[1], -(theta[0] ** 2) * np.sin(y[0]) - theta[1] * y[1]])


@partial(custom_vjp, nondiff_argnums=(2,))
def solve(theta, y, duration):
    return runge_kutta(partial(field, theta), y, duration)


def solve_forward(theta, y, duration):
    end = solve(theta, y, duration)
    return end, (theta, end)


def solve_backward(duration, saved, ct):
    """The state, its cotangent and that of theta, all carried from the end to the beginning."""
    theta, end = saved
    n = end.shape[0]

    def backwards(state):
        dy, pullback = vjp(field, theta, state[:n])
        theta_ct, y_ct = pullback(state[n : 2 * n])
        return np.concatenate([-dy, y_ct, theta_ct])

    state = np.concatenate([end, ct, np.zeros_like(theta)])
    state = runge_kutta(backwards, state, duration)
    return state[2 * n :], state[n : 2 * n]


solve.defvjp(solve_forward, solve_backward)


def final_angle(theta):
    return solve(theta, np.array([1.0, 0.0]), 2.0)[0]


def final_angle_through_the_steps(theta):
    return runge_kutta(partial(field, theta), np.array([1.0, 0.0]), 2.0)[0]


theta = np.array([2.0, 0.3])
adjoint = jit(grad(final_angle))(theta)
direct = jit(grad(final_angle_through_the_steps))(theta)
print("by the adjoint:       ", adjoint)
print("through every step:   ", direct)
assert np.allclose(adjoint, direct, rtol=1e-3, atol=1e-4)

# The rule is part of the program, so it is kept by every other transform.
several = np.stack([theta, 2 * theta, 3 * theta])
assert np.allclose(vmap(grad(final_angle))(several)[0], adjoint, rtol=1e-4, atol=1e-5)
