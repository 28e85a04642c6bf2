"""A layer defined by an equation: look at how its derivative never sees the iterations."""

import functx.numpy as np
from functx import grad, hessian, jit, make_ir
from functx.implicit import fixed_point
from functx.lax import while_loop


def layer(z, weights, x):
    return np.tanh(weights @ z + x)


@fixed_point(layer)
def equilibrium(z, weights, x):
    """The z with z = tanh(weights @ z + x), to single precision."""

    def moving(state):
        before, now, count = state
        return (np.abs(now - before).max() > 1e-6) & (count < 200)

    def onward(state):
        _, now, count = state
        return now, layer(now, weights, x), count + 1

    return while_loop(moving, onward, (z, layer(z, weights, x), 0))[1]


def loss(weights, x):
    return (equilibrium(np.zeros_like(x), weights, x) ** 2).sum()


weights = np.array([[0.3, -0.2, 0.1], [0.0, 0.4, -0.3], [0.2, 0.1, 0.2]])
x = np.array([0.5, -1.0, 0.8])
gradient = jit(grad(loss))(weights, x)
print("the equilibrium:", equilibrium(np.zeros(3), weights, x))
print("the gradient:\n", gradient)


def unrolled(weights, x):
    z = np.zeros_like(x)
    for _ in range(60):
        z = layer(z, weights, x)
    return (z**2).sum()


assert np.allclose(gradient, grad(unrolled)(weights, x), rtol=1e-4, atol=1e-5)

# Derivatives of every order solve linear systems with one matrix, which is factored once.
program = make_ir(hessian(loss))(weights, x)
assert sum(eqn.primitive.name == "lu" for sub in program.walk() for eqn in sub) == 1
