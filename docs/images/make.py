"""The pictures of the guide `look_at_programs.md`: `python docs/images/make.py` (needs igraph).

The picture of the page is taken by Chromium, if it is there.
"""

import shutil
import subprocess
from pathlib import Path

import numpy

import functx
import functx.numpy as np
from functx import tools

HERE = Path(__file__).parent


def block(x, weights, bias):
    hidden = np.tanh(x @ weights + bias)
    return hidden / np.sqrt((hidden**2).sum(-1, keepdims=True) + 1e-6)


def loss(layers, x, y):
    for weights, bias in layers:
        x = block(x, weights, bias)

    def smooth(state, row):
        state = 0.9 * state + 0.1 * row
        return state, (state * row).sum()

    state, scores = functx.lax.scan(smooth, np.zeros(x.shape[1]), x)
    error = np.where(scores > 0, scores - y, 0.0)
    return (error**2).mean() * 1.0


random = numpy.random.default_rng(0)
layers = [
    (random.normal(size=(256, 256)).astype("float32") / 16, numpy.zeros(256, "float32"))
    for _ in range(2)
]
arguments = layers, random.normal(size=(256, 256)).astype("float32"), numpy.ones(256, "float32")

if __name__ == "__main__":
    with functx.config.set(simplify="always"):
        tools.html(functx.grad(loss))(*arguments).save(HERE / "page.html")
    tools.profile(functx.grad(loss))(*arguments).save(HERE / "profile.svg")
    tools.memory(functx.grad(loss))(*arguments).save(HERE / "memory.svg")
    tools.picture(loss)(layers[:1], *arguments[1:]).save(HERE / "graph.svg")
    if browser := shutil.which("chromium"):
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=1180,640"]
        picture = f"--screenshot={HERE / 'page.png'}"
        subprocess.run([browser, *options, picture, (HERE / "page.html").as_uri()], check=True)
