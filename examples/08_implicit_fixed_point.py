"""A layer defined by an equation: look at how its derivative never sees the iterations."""

import functx.numpy as np
from functx import custom_vjp, grad, jit, vjp
from functx.lax import while_loop


def iterate(step, start):
    """The point that `step` maps to itself, to single precision."""

    def moving(state):
        before, now, count = state
        return (np.abs(now - before).max() > 1e-6) & (count < 200)

    def onward(state):
        _, now, count = state
        return now, step(now), count + 1

    return while_loop(moving, onward, (start, step(start), 0))[1]


def step(weights, x, z):
    return np.tanh(weights @ z + x)


@custom_vjp
def equilibrium(weights, x):
    """The z with z = tanh(weights @ z + x)."""
    return iterate(lambda z: step(weights, x, z), np.zeros_like(x))


def equilibrium_forward(weights, x):
    z = equilibrium(weights, x)
    return z, (weights, x, z)


def equilibrium_backward(saved, ct):
    """By the implicit function theorem: u = ct + (d step / dz)^T u, then u through `step` once."""
    weights, x, z = saved
    _, pull_z = vjp(lambda z: step(weights, x, z), z)
    u = iterate(lambda u: ct + pull_z(u)[0], ct)
    _, pull_inputs = vjp(lambda weights, x: step(weights, x, z), weights, x)
    return pull_inputs(u)


equilibrium.defvjp(equilibrium_forward, equilibrium_backward)


def loss(weights, x):
    return (equilibrium(weights, x) ** 2).sum()


weights = np.array([[0.3, -0.2, 0.1], [0.0, 0.4, -0.3], [0.2, 0.1, 0.2]])
x = np.array([0.5, -1.0, 0.8])
gradient = jit(grad(loss))(weights, x)
print("the equilibrium:", equilibrium(weights, x))
print("the gradient:\n", gradient)


def unrolled(weights, x):
    z = np.zeros_like(x)
    for _ in range(60):
        z = step(weights, x, z)
    return (z**2).sum()


assert np.allclose(gradient, grad(unrolled)(weights, x), rtol=1e-4, atol=1e-5)
