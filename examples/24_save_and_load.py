"""A model that is saved with its training step, then trained and explained without its code.

Look at the second half, which needs only two files. The loaded step returns the new buffer, the loss
and the gradients, in the order of its signature. The loaded scores are a function to every transform:
`vmap(grad(...))` gives the pixels that decide about each image.
"""

import gzip
import tempfile
from pathlib import Path

import numpy as onp

import functx.numpy as np
from functx import export, grad, nn, vmap

with gzip.open(Path(__file__).parent / "data" / "digits.csv.gz", "rt") as file:
    table = onp.loadtxt(file, delimiter=",", dtype="float32")
images, digits = table[:1024, :64] / 16, table[:1024, 64].astype("int32")
folder = Path(tempfile.mkdtemp())


def save_model():
    random = onp.random.RandomState(0)

    class Classifier(nn.Module):
        def __init__(self):
            self.hidden = nn.Parameter((random.randn(64, 32) / 8).astype("float32"))
            self.out = nn.Parameter((random.randn(32, 10) / 6).astype("float32"))
            self.steps = nn.Buffer(0)

        def forward(self, x, y):
            self.steps += 1
            return -np.mean(nn.log_softmax(scores(self.hidden, self.out, x))[np.arange(256), y])

    def scores(hidden, out, x):
        return np.tanh(x @ hidden) @ out

    model, batch = Classifier(), (images[:256], digits[:256])
    step = export.module(model, batch, trace_joint=True, output_loss_index=0)
    step.save(folder / "step.zip")
    parameters = [step.state_dict[name] for name in step.signature.parameters]
    export.export(scores)(*parameters, images[0]).save(folder / "scores.zip")


save_model()
step, scores = export.load(folder / "step.zip"), export.load(folder / "scores.zip")
print(step.signature)

hidden, out, steps = step.state_dict.values()
losses = []
for i in range(60):
    rows = slice(i * 256 % 1024, i * 256 % 1024 + 256)
    steps, loss, hidden_grad, out_grad = step(hidden, out, steps, images[rows], digits[rows])
    hidden, out = hidden - 2.0 * hidden_grad, out - 2.0 * out_grad
    losses.append(float(loss))

decisive = vmap(grad(lambda x: np.max(scores(hidden, out, x))))(images[:100])
right = np.argmax(vmap(lambda x: scores(hidden, out, x))(images), axis=1) == digits
print(
    f"loss {losses[0]:.2f} to {losses[-1]:.2f} in {int(steps)} steps, {float(np.mean(right)):.0%} right"
)
assert int(steps) == 60 and np.mean(right) > 0.9 and decisive.shape == (100, 64)
