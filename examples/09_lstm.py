"""A recurrent network over a sequence: look at how the program holds one step, and how few values it saves."""

import functx
import functx.numpy as np
from functx import jit, random, value_and_grad
from functx.lax import scan
from functx.nn import sigmoid

WIDTH, LENGTH, BATCH = 16, 24, 32


def initial(key):
    first, second = random.split(key)
    return {
        "gates": random.normal(first, (1 + WIDTH, 4 * WIDTH)) * 0.3,
        "bias": np.zeros(4 * WIDTH),
        "readout": random.normal(second, (WIDTH,)) * 0.3,
    }


def lstm_step(params, carry, x):
    """One step of a long short-term memory (Hochreiter and Schmidhuber 1997) with a forget gate."""
    hidden, cell = carry
    mixed = np.concatenate([x[:, None], hidden], axis=1) @ params["gates"] + params["bias"]
    enter, forget, leave, new = np.split(mixed, 4, axis=1)
    cell = sigmoid(forget + 1.0) * cell + sigmoid(enter) * np.tanh(new)
    hidden = sigmoid(leave) * np.tanh(cell)
    return (hidden, cell), None


def loss(params, xs, targets):
    start = np.zeros((xs.shape[1], WIDTH)), np.zeros((xs.shape[1], WIDTH))
    (hidden, _), _ = scan(lambda carry, x: lstm_step(params, carry, x), start, xs)
    return ((hidden @ params["readout"] - targets) ** 2).mean()


@jit
def train_step(params, momentum, key):
    """One step of descent towards the sum of a random sequence, scaled to about one."""
    xs = random.uniform(key, (LENGTH, BATCH), minval=-1.0, maxval=1.0)
    error, gradient = value_and_grad(loss)(params, xs, xs.sum(axis=0) / 3.0)
    momentum = functx.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
    params = functx.tree.map(lambda p, m: p - 0.03 * m, params, momentum)
    return params, momentum, error


params = initial(random.key(0))
momentum = functx.tree.map(np.zeros_like, params)
errors = []
for i, key in enumerate(random.split(random.key(1), 400)):
    params, momentum, error = train_step(params, momentum, key)
    errors.append(float(error))
    if i % 80 == 0:
        print(f"step {i:3d}  error {np.mean(np.array(errors[-40:])):.4f}")

xs = np.zeros((LENGTH, BATCH))
print(functx.make_ir(loss)(params, xs, xs[0]))
assert sum(errors[-40:]) < 0.3 * sum(errors[:40])
