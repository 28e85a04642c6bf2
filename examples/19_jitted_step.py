"""A training step under `jit`: momentum, clipped gradients, and a rate that decays, in one program.

Look at `step`: it is written as without `jit`. What it changes, weights, momenta and the rate, is
written back after each call, into the memory that the old values had.
"""

import gzip
from itertools import pairwise
from pathlib import Path

import numpy as onp

import functx
import functx.numpy as np
from functx import nn
from functx.autograd import Variable, no_grad

STEPS, BATCH = 40, 256


class Network:
    """Weights from inputs to classes, each with its momentum."""

    def __init__(self, *sizes):
        random = onp.random.RandomState(0)
        shapes = list(pairwise(sizes))
        self.weights = [
            Variable((random.randn(*s) / 8).astype("float32"), requires_grad=True) for s in shapes
        ]
        self.momenta = [Variable(onp.zeros(s, "float32")) for s in shapes]
        for w in self.weights:
            w.register_hook(lambda g: g / np.maximum(1, np.linalg.norm(g)))

    def __call__(self, x):
        *hidden, last = self.weights
        for w in hidden:
            x = np.tanh(x @ w)
        return x @ last


network, rate = Network(64, 32, 10), Variable(0.3)


@functx.jit
def step(x, y):
    logits = network(x)
    loss = -np.mean(nn.log_softmax(logits)[np.arange(len(y)), y])
    loss.backward()
    with no_grad():
        for w, m in zip(network.weights, network.momenta, strict=True):
            m[...] = 0.9 * m + w.grad
            w -= rate * m
            w.grad = None
        rate[...] = rate * 0.98
    return loss


with gzip.open(Path(__file__).parent / "data" / "digits.csv.gz", "rt") as file:
    table = onp.loadtxt(file, delimiter=",", dtype="float32")
images, digits = table[:, :64] / 16, table[:, 64].astype("int32")

losses = []
for i in range(STEPS):
    rows = slice(i * BATCH % 1024, i * BATCH % 1024 + BATCH)
    losses.append(float(step(images[rows], digits[rows])))
print(f"loss: {losses[0]:.2f} to {losses[-1]:.2f}, rate: {float(rate):.3f}")
assert losses[-1] < 0.6 * losses[0]
assert [w._version for w in network.weights] == [STEPS] * 2
