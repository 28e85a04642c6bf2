"""An ensemble of networks as one program: look at `predict`, which is one network under `vmap`.

Each member learns from examples of its own; where there are none, the members differ.
"""

import numpy as onp

import functx.numpy as np
from functx import functional_call, grad, jit, nn, stack_module_state, vmap

MEMBERS, WIDTH, STEPS, RATE = 8, 32, 500, 0.02
random = onp.random.RandomState(0)


class Linear(nn.Module):
    def __init__(self, inputs, outputs):
        self.weight = nn.Parameter(random.randn(outputs, inputs) / onp.sqrt(inputs))
        self.bias = nn.Parameter(random.randn(outputs))

    def forward(self, x):
        return x @ self.weight.T + self.bias


def network():
    return nn.Sequential(Linear(1, WIDTH), np.tanh, Linear(WIDTH, WIDTH), np.tanh, Linear(WIDTH, 1))


models = [network() for _ in range(MEMBERS)]
stacked, _ = stack_module_state(models)
parameters = {name: value.compute() for name, value in stacked.items()}


def loss(state, x, y):
    return np.mean((functional_call(models[0], state, x) - y) ** 2)


@jit
def step(states, xs, ys):
    slopes = vmap(grad(loss))(states, xs, ys)
    return {name: value - RATE * slopes[name] for name, value in states.items()}


# Half of a period of a sine; each member draws 24 of the examples.
x = onp.linspace(-1.5, 1.5, 48, dtype="float32")[:, None]
y = onp.sin(2 * x) + 0.1 * random.randn(48, 1).astype("float32")
rows = onp.array([random.choice(48, 24) for _ in range(MEMBERS)])
for _ in range(STEPS):
    parameters = step(parameters, x[rows], y[rows])

predict = jit(vmap(lambda state, x: functional_call(models[0], state, x), in_axes=(0, None)))
inside, outside = predict(parameters, x), predict(parameters, x * 3)[:, abs(x[:, 0]) > 1]
error = float(np.mean((inside.mean(axis=0) - onp.sin(2 * x)) ** 2))
spread = float(inside.std(axis=0).mean()), float(outside.std(axis=0).mean())
print(
    f"error {error:.4f}; the members differ by {spread[0]:.3f}, and without examples by {spread[1]:.3f}"
)
assert error < 0.05 and spread[1] > 2 * spread[0]

# Member 3, by itself.
alone = {name: value[3] for name, value in parameters.items()}
assert np.allclose(functional_call(models[3], alone, x), inside[3], atol=1e-5)
