"""Fine-tuning with walks that are captured once: each layer clips and updates in its own hook.

Look at `add_hooks`: gradients are clipped by the norm of each layer, and the optimizer runs within
`backward()`, as soon as the gradient of a layer is there. The counters show two captures, before
and after the first layer is thawed. All other steps are hits, whatever their hooks compute.
"""

import gzip
from pathlib import Path

import numpy as onp

import functx.numpy as np
from functx import compiled_autograd, nn
from functx.autograd import Variable, no_grad

STEPS, BATCH = 40, 256
random = onp.random.RandomState(0)
first, *others = layers = [
    Variable((random.randn(*shape) / 8).astype("float32"), requires_grad=True)
    for shape in [(64, 48), (48, 32), (32, 10)]
]


def add_hooks(w, rate):
    def clip(gradient):
        return gradient / np.maximum(1, np.linalg.norm(gradient))

    def update(w):
        with no_grad():
            w -= rate * w.grad
        w.grad = None

    w.register_hook(clip)
    w.register_post_accumulate_grad_hook(update)


def loss_of(x, y):
    for w in layers[:-1]:
        x = np.tanh(x @ w)
    return -np.mean(nn.log_softmax(x @ layers[-1])[np.arange(len(y)), y])


with gzip.open(Path(__file__).parent / "data" / "digits.csv.gz", "rt") as file:
    table = onp.loadtxt(file, delimiter=",", dtype="float32")
images, digits = table[:, :64] / 16, table[:, 64].astype("int32")

for i, w in enumerate(layers):
    add_hooks(w, rate=0.1 + 0.1 * i)
first.requires_grad = False
losses = []
with compiled_autograd.enable():
    for i in range(STEPS):
        if i == STEPS // 2:
            first.requires_grad = True
        rows = slice(i * BATCH % 1024, i * BATCH % 1024 + BATCH)
        loss = loss_of(images[rows], digits[rows])
        loss.backward()
        losses.append(float(loss))

print(f"loss: {losses[0]:.2f} to {losses[-1]:.2f}")
print(compiled_autograd.counters)
assert losses[-1] < 0.8 * losses[0] and all(w.grad is None for w in layers)
assert compiled_autograd.counters.captures == 2 and compiled_autograd.counters.hits == STEPS - 2
