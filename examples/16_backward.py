"""Train on digits with `backward()`: an optimizer in hooks of the leaves, and a penalty on a gradient.

Look at `descend`: each leaf is updated as soon as its gradient is accumulated, and the gradient is freed.
"""

import gzip
from pathlib import Path

import numpy as onp

import functx.numpy as np
from functx import nn
from functx.autograd import Variable, grad, no_grad

RATE, STEPS, BATCH = 0.3, 40, 256


def descend(leaf):
    with no_grad():
        leaf -= RATE * leaf.grad
    leaf.grad = None


def loss_of(parameters, x, y):
    weights, bias, out = parameters
    logits = np.tanh(x @ weights + bias) @ out
    return -np.mean(nn.log_softmax(logits)[onp.arange(len(y)), y])


with gzip.open(Path(__file__).parent / "data" / "digits.csv.gz", "rt") as file:
    table = onp.loadtxt(file, delimiter=",", dtype="float32")
images, digits = table[:, :64] / 16, table[:, 64].astype("int32")
random = onp.random.RandomState(0)
shapes = (64, 32), (32,), (32, 10)
parameters = [
    Variable((random.randn(*s) / 8).astype("float32"), requires_grad=True) for s in shapes
]
for leaf in parameters:
    leaf.register_post_accumulate_grad_hook(descend)

losses = []
for step in range(STEPS):
    rows = slice(step * BATCH % 1024, step * BATCH % 1024 + BATCH)
    loss = loss_of(parameters, images[rows], digits[rows])
    loss.backward()
    losses.append(float(loss))
print(f"loss: {losses[0]:.2f} to {losses[-1]:.2f}")
assert losses[-1] < 0.6 * losses[0]

# A penalty on the slope of the loss in the images, differentiated in the weights.
x = Variable(images[:8], requires_grad=True)
(slope,) = grad(loss_of(parameters, x, digits[:8]), x, create_graph=True)
penalty = (slope**2).sum()
(of_weights,) = grad(penalty, parameters[0])
print(
    f"penalty: {float(penalty):.4f}, its gradient has the norm {float(np.linalg.norm(of_weights)):.4f}"
)
assert of_weights.shape == (64, 32)
