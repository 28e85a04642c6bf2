"""Train a digit classifier on per-example gradients, clipped and noised: differentially private SGD.

Look at `private_gradient`: `vmap(grad(loss))` gives one gradient an example, each is clipped to a
norm, and noise hides what is left of any single one (Abadi et al. 2016, algorithm 1). Nothing but
NumPy-style code, under `jit`; the program of the step is printed at the end.
"""

import gzip
import time
from itertools import pairwise
from pathlib import Path

import numpy as onp

import functx
import functx.numpy as np
from functx import grad, jit, make_ir, nn, random, vmap

SIZES = (64, 128, 64, 10)
BATCH, STEPS, RATE, CLIP, NOISE = 256, 400, 0.5, 1.0, 0.3


def load():
    """The 1,797 images as rows of 64 values in [0, 1], and their digits."""
    with gzip.open(Path(__file__).parent / "data" / "digits.csv.gz", "rt") as file:
        table = onp.loadtxt(file, delimiter=",", dtype="float32")
    order = onp.random.RandomState(0).permutation(len(table))
    return table[order, :64] / 16, table[order, 64].astype("int32")


def initial_parameters(key):
    """Weights and biases of each layer."""
    layers = []
    for inputs, outputs in pairwise(SIZES):
        key, own = random.split(key)
        layers.append((random.normal(own, (inputs, outputs)) / inputs**0.5, np.zeros(outputs)))
    return layers


def logits(parameters, x):
    for weights, bias in parameters[:-1]:
        x = nn.relu(x @ weights + bias)
    weights, bias = parameters[-1]
    return x @ weights + bias


def loss(parameters, x, label):
    """The cross entropy of one example."""
    return -nn.log_softmax(logits(parameters, x))[label]


def clipped(gradient):
    """One example's gradient, scaled down to norm CLIP if it is longer."""
    norm = np.sqrt(sum((g**2).sum() for g in functx.tree.leaves(gradient)))
    return functx.tree.map(lambda g: g / np.maximum(1.0, norm / CLIP), gradient)


def private_gradient(parameters, x, labels, key):
    """The mean of clipped per-example gradients, with noise of NOISE clips in all."""
    gradients = vmap(grad(loss), in_axes=(None, 0, 0))(parameters, x, labels)
    total = functx.tree.map(lambda g: g.sum(axis=0), vmap(clipped)(gradients))
    leaves, structure = functx.tree.flatten(total)
    keys = random.split(key, len(leaves))
    noisy = [
        (g + NOISE * CLIP * random.normal(k, g.shape)) / len(x)
        for g, k in zip(leaves, keys, strict=True)
    ]
    return functx.tree.unflatten(structure, noisy)


@jit
def step(parameters, x, labels, key):
    """The parameters after one step of gradient descent."""
    gradient = private_gradient(parameters, x, labels, key)
    return functx.tree.map(lambda p, g: p - RATE * g, parameters, gradient)


@jit
def accuracy(parameters, x, labels):
    return (logits(parameters, x).argmax(axis=-1) == labels).mean()


def main(steps=STEPS):
    """Train, show progress, and return the accuracy on the held-out fifth."""
    x, labels = load()
    held_out = len(x) // 5
    x_test, labels_test = x[:held_out], labels[:held_out]
    x, labels = x[held_out:], labels[held_out:]
    parameters = initial_parameters(random.key(0))
    batches = onp.random.RandomState(1)
    seconds = []
    for i in range(steps):
        batch = batches.choice(len(x), BATCH, replace=False)
        start = time.perf_counter()
        parameters = step(parameters, x[batch], labels[batch], random.fold_in(random.key(1), i))
        parameters[0][0].block_until_ready()
        seconds.append(time.perf_counter() - start)
        if (i + 1) % max(1, steps // 10) == 0 and i + 1 < steps:
            train = float(accuracy(parameters, x, labels))
            test = float(accuracy(parameters, x_test, labels_test))
            print(
                f"step {i + 1:4d}  train accuracy {train:.3f}  test accuracy {test:.3f}", flush=True
            )
    print("\nThe gradient of one batch, as it runs:\n")
    print(make_ir(private_gradient)(parameters, x[:BATCH], labels[:BATCH], random.key(2)))
    print(f"\n{1e3 * onp.median(seconds):.2f} ms a step of {BATCH} per-example gradients")
    print(f"train accuracy {float(accuracy(parameters, x, labels)):.3f}")
    test = float(accuracy(parameters, x_test, labels_test))
    print(f"test accuracy  {test:.3f}")
    return test


if __name__ == "__main__":
    assert main() >= 0.93
