"""Draws the pictures of the recipes from the values that their code computes.

`python docs/recipes/pictures.py [PAGE ...]`, run by hand after a page changes; needs matplotlib.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

with suppress(ImportError):  # tests of the documents import this file without them
    import matplotlib
    import matplotlib.pyplot as plt
    from PIL import Image

HERE = Path(__file__).parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def verified_robustness(s: dict[str, Any], axes: Any) -> None:
    radii = np.linspace(0, 0.2, 21).astype("float32")
    for name in ("ordinary", "robust"):
        axes[0].plot(radii, [100 * s["verified"](s[name], r) for r in radii], label=name)
    axes[0].set(xlabel="radius", ylabel="verified, %", title="digits with a proof")
    axes[0].legend()
    axes[1].imshow(s["images"][401].reshape(8, 8), cmap="gray_r")
    axes[1].set(title=f"one of them, a {s['labels'][401]}", xticks=[], yticks=[])


def pinns(s: dict[str, Any], axes: Any) -> None:
    axes[0].semilogy(s["losses"])
    axes[0].set(xlabel="step", title="mean squared residual")
    found = np.asarray(s["solution"]).reshape(21, 21)
    axes[1].contourf(s["grid"], s["grid"], found, 9)
    axes[1].plot(*s["points"].T, "w.", markersize=2)
    axes[1].set(title="solution, and the points", aspect="equal")


def private_training(s: dict[str, Any], axes: Any) -> None:
    import functx

    losses = functx.per_example_norms(s["loss"])
    for name in ("start", "params"):
        norms = losses(s[name], s["train_images"], s["train_labels"])
        axes[0].hist(norms, 30, alpha=0.6, label={"start": "before", "params": "after"}[name])
    axes[0].axvline(s["CLIP"], color="k")
    axes[0].set(title="norms of the examples' gradients")
    axes[0].legend()
    steps = np.arange(1, s["STEPS"] + 1)
    rho = steps / (2 * s["NOISE"] ** 2)
    axes[1].plot(steps, rho + 2 * np.sqrt(rho * np.log(1e5)))
    axes[1].set(xlabel="step", title="ε spent")


def sparse_newton(s: dict[str, Any], axes: Any) -> None:
    axes[0].imshow(np.asarray(s["surface"](s["inner"])), cmap="viridis")
    axes[0].contour(np.asarray(s["surface"](s["inner"])), 12, colors="w", linewidths=0.6)
    axes[0].set(title="heights of the film", xticks=[], yticks=[])
    axes[1].semilogy(s["sizes"], "o-")
    axes[1].set(xlabel="Newton step", title="largest slope")


def implicit_layers(s: dict[str, Any], axes: Any) -> None:
    z, steps = np.zeros((100, 16), "float32"), []
    x = s["images"][:100]
    for _ in range(25):
        new = np.asarray(s["layer"](z, s["params"], x))
        steps.append(abs(new - z).max(1))
        z = new
    axes[0].semilogy(np.array(steps), "C0", linewidth=0.4)
    axes[0].set(xlabel="iteration", title="change, for each of 100 digits")
    u, values, _ = np.linalg.svd(z - z.mean(0))
    axes[1].scatter(*(u[:, :2] * values[:2]).T, c=s["labels"][:100], cmap="tab10", s=12)
    axes[1].set(title="equilibria, two main directions")


def in_place_physics(s: dict[str, Any], axes: Any) -> None:
    axes[0].imshow(s["u"].T, cmap="RdBu", vmin=-0.3, vmax=0.3, origin="lower")
    axes[0].plot(*s["SENSORS"], "k^", label="sensors")
    axes[0].plot(*np.array(s["path"]).T, "C2o-", label="guesses")
    axes[0].set(title="the wave at the end", xticks=[], yticks=[])
    axes[0].legend(fontsize=7)
    axes[1].plot(s["heard"])
    axes[1].set(xlabel="time", title="signals")


def probabilistic_programming(s: dict[str, Any], axes: Any) -> None:
    axes[0].plot(np.asarray(s["samples"])[:4, :, 1].T, linewidth=0.7)
    axes[0].set(xlabel="draw", title="a weight, in four chains")
    first, second = np.asarray(s["kept"])[:, ::4, 1:].reshape(-1, 2).T
    axes[1].scatter(first, second, s=4, alpha=0.5)
    axes[1].set(title="posterior of two weights")


def meta_learning(s: dict[str, Any], axes: Any) -> None:
    x = np.linspace(-3, 3, 80, dtype="float32")[:, None]
    for i, ax in enumerate(axes):
        seen = [part[i] for part in s["seen"]]
        adapted = s["adapt"](s["params"], *seen)
        ax.plot(x, s["network"](s["params"], x), "C0:", label="learned")
        ax.plot(x, s["network"](adapted, x), "C0", label="adapted")
        ax.plot(*seen, "ko", label="seen")
        ax.plot(*(part[i] for part in s["other"]), "C3.", label="not seen")
        ax.set(title=f"new task {i + 1}")
    axes[0].legend(fontsize=7)


def neural_odes(s: dict[str, Any], axes: Any) -> None:
    found = s["odeint"](s["field"], s["begin"], s["times"], s["params"])
    axes[0].plot(*np.asarray(found).T, label="network")
    axes[0].plot(*np.asarray(s["observed"]).T, "k.", label="observed")
    axes[0].set(title="trajectory", aspect="equal")
    axes[0].legend(fontsize=7)
    y = np.stack(np.meshgrid(*[np.linspace(-1.5, 1.5, 12)] * 2), -1)
    axes[1].quiver(*np.moveaxis(y, -1, 0), *np.moveaxis(s["field"](y, 0.0, s["params"]), -1, 0))
    axes[1].set(title="learned field", aspect="equal")


def gaussian_processes(s: dict[str, Any], axes: Any) -> None:
    mean, spread = np.asarray(s["mean"]), np.asarray(s["spread"])
    axes[0].fill_between(s["at"], mean - 2 * spread, mean + 2 * spread, alpha=0.3)
    axes[0].plot(s["at"], mean, label="mean")
    axes[0].plot(s["x"], s["y"], "k.", label="data")
    axes[0].set(title="posterior, two standard deviations")
    axes[0].legend(fontsize=7)
    axes[1].plot(s["at"], s["slope"], label="slope of the mean")
    axes[1].plot(s["at"], 2 * np.cos(2 * s["at"]), "k:", label="true slope")
    axes[1].set(title="its derivative")
    axes[1].legend(fontsize=7, loc="lower right")


def graph_networks(s: dict[str, Any], axes: Any) -> None:
    x = s["batch"][50]
    axes[0].plot(*x.T, "ko", markersize=4)
    for name, color, width in (("true", "0.7", 0.014), ("found", "C1", 0.006)):
        axes[0].quiver(*x.T, *s[name][0].T, scale=20, color=color, width=width, label=name)
    axes[0].set(title="forces on a new graph", xlim=(-1.5, 1.5), ylim=(-1.5, 1.5))
    axes[0].legend(fontsize=7)
    axes[1].semilogy(s["losses"])
    axes[1].set(xlabel="step", title="mean squared error")


def sequence_models(s: dict[str, Any], axes: Any) -> None:
    image, state, shares = s["images"][1], np.zeros(20), []
    for row in image:
        state = s["step"](s["params"], state, row)
        scores = np.exp(np.asarray(state @ s["params"]["read"]))
        shares.append(scores / scores.sum())
    axes[0].imshow(image, cmap="gray_r")
    axes[0].set(title=f"a {s['labels'][1]}, read by rows", xticks=[], ylabel="row")
    axes[1].imshow(np.array(shares), cmap="Blues", vmin=0)
    axes[1].set(title="probability after each row", xlabel="digit", xticks=range(10))


def main(names: list[str]) -> None:
    matplotlib.use("agg")
    plt.rcParams.update({"font.size": 9})
    for name in names or [path.stem for path in sorted(HERE.glob("[a-z]*.md"))]:
        scope: dict[str, Any] = {"__name__": name}
        for code in BLOCK.findall((HERE / f"{name}.md").read_text()):
            exec(compile(code, name, "exec"), scope)
        figure, axes = plt.subplots(1, 2, figsize=(7, 2.6), layout="constrained")
        globals()[name](scope, axes)
        path = HERE / "images" / f"{name}.png"
        figure.savefig(path, dpi=110)
        plt.close(figure)
        Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)
        print(path, path.stat().st_size)


if __name__ == "__main__":
    main(sys.argv[1:])
