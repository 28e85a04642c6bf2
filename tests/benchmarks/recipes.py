"""The recipes of docs/recipes beside the same in JAX: `python -m tests.benchmarks.recipes [PAGE ...]`.

A page runs, then its functions are defined again under the names of JAX, with those of `IN_JAX` where
JAX lacks what the page uses. Printed are functx's times as shares of JAX's: compiled calls in turns,
the least of all turns, and processor time to trace, lower and compile.
"""

import ast
import contextlib
import importlib
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as onp

from tests.benchmarks.frameworks import FUNCTX, JAX
from tests.benchmarks.measures import Options, Row, compare, compiled

PAGES = Path(__file__).parents[2] / "docs" / "recipes"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)

IN_JAX = {
    "pinns": """
_, unravel = ravel_pytree([
    (np.ones((DIM, 10)), np.ones(10)), (np.ones((10, 8)), np.ones(8)), (np.ones((8, 1)), np.ones(1)),
])
def laplacian(f, argnum):
    return lambda *args: np.trace(jax.hessian(f, argnum)(*args))
""",
    "private_training": """
def clipped_sum(loss, clip):
    def summed(params, images, labels):
        slopes = jax.vmap(jax.grad(loss), (None, 0, 0))(params, images, labels)
        squares = sum((leaf.reshape(len(images), -1) ** 2).sum(1) for leaf in tree.leaves(slopes))
        shares = np.minimum(1.0, clip / np.sqrt(squares))
        return tree.map(lambda leaf: np.tensordot(shares, leaf, 1), slopes)
    return summed
""",
    "sparse_newton": """
def surface(inner):
    return np.array(frame).at[1:-1, 1:-1].set(inner.reshape(SIDE - 2, SIDE - 2))
""",
    "implicit_layers": """
@jax.custom_vjp
def equilibrium(z, params, x):
    def apart(state):
        z, before = state
        return abs(z - before).max() > 1e-5
    def step(state):
        return layer(state[0], params, x), state[0]
    return jax.lax.while_loop(apart, step, (layer(z, params, x), z))[0]

def forward(z, params, x):
    z = equilibrium(z, params, x)
    return z, (z, params, x)

def backward(saved, ct):
    z, params, x = saved
    system = np.eye(len(z)) - jax.jacrev(layer)(z, params, x)
    ct = np.linalg.solve(system.T, ct)
    return np.zeros_like(z), *jax.vjp(lambda params, x: layer(z, params, x), params, x)[1](ct)

equilibrium.defvjp(forward, backward)
""",
    "in_place_physics": """
def step(u, v):
    neighbours = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    v = v.at[1:-1, 1:-1].add(0.2 * (neighbours - 4 * u[1:-1, 1:-1]))
    return u + v, v

def signals(place):
    u, v, table = drop(place), np.zeros((SIDE, SIDE)), np.zeros((STEPS, 4))
    def advance(t, state):
        u, v, table = state
        u, v = step(u, v)
        return u, v, table.at[t].set(u[SENSORS])
    return jax.lax.fori_loop(0, STEPS, advance, (u, v, table))[2]
""",
    "verified_robustness": """
def loss(params, radius, image, label):
    (w1, b1), (w2, b2) = params
    middle, spread = image @ w1 + b1, radius * abs(w1).sum(0)
    low, high = nn.relu(middle - spread), nn.relu(middle + spread)
    weights = w2[:, label, None] - w2
    lower = low @ np.maximum(weights, 0) + high @ np.minimum(weights, 0) + b2[label] - b2
    return nn.logsumexp(-lower)
""",
}
"""The functions in JAX that take the place of those of a page."""

TASKS = {
    "verified_robustness": {"gradient": ("lambda p: grad(mean_loss)(p, 0.1)", "start")},
    "pinns": {"residuals": ("residuals", "start"), "Jacobian": ("jacrev(residuals)", "start")},
    "private_training": {
        "sum": ("lambda p: clipped_sum(loss, CLIP)(p, train_images, train_labels)", "params")
    },
    "sparse_newton": {"Hessian": ("lambda x: sparse_or_dense_hessian(area)(x).sum()", "inner")},
    "implicit_layers": {"gradient": ("grad(mean_loss)", "start")},
    "in_place_physics": {
        "gradient": ("grad(misfit)", "path[0]"),
        "Jacobian": ("jacfwd(signals)", "path[0]"),
    },
    "probabilistic_programming": {"chains": ("chain", "random.split(random.key(0), 8)")},
    "sequence_models": {"gradient": ("grad(mean_loss)", "start")},
    "gaussian_processes": {"fit": ("fit", "np.array([0.0, 0.0, -1.0])")},
    "graph_networks": {"gradient": ("grad(mean_loss)", "start")},
    "meta_learning": {"gradient": ("lambda p: grad(meta_loss)(p, seen, other)", "start")},
    "neural_odes": {
        "gradient": ("lambda p: grad(loss)(p, 24.0)", "tree.map(lambda p: p / 2, params)")
    },
}
"""For each page, what is timed, a function and its argument in the scope of the page."""

BESIDE = {
    "functx": """
from functx import jacfwd
def sparse_or_dense_hessian(f):
    return lambda x: functx.sparse.hessian(f)(x).data
""",
    "JAX": "\nfrom jax import hessian as sparse_or_dense_hessian, jacfwd\n",
}


def scopes(page: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The names of a page in functx, and in JAX with the same data."""
    code = "\n".join(BLOCK.findall((PAGES / f"{page}.md").read_text()))
    ours: dict[str, Any] = {"__name__": page}
    exec(code + BESIDE["functx"], ours)
    theirs = {name: jax.tree.map(in_jax_arrays, x) for name, x in ours.items() if is_data(x)}
    exec(in_jax(code, IN_JAX.get(page, "")) + BESIDE["JAX"], theirs)
    return ours, theirs


def is_data(x: Any) -> bool:
    """Whether a value is made of arrays and numbers."""
    leaves = jax.tree.leaves(x)
    return bool(leaves) and all(
        isinstance(v, onp.ndarray | jax.Array | float | int) for v in leaves
    )


def in_jax_arrays(x: Any) -> Any:
    """An array of JAX for an array; numbers, which may be sizes, as they are."""
    return x if isinstance(x, int | float | jax.Array) else jax.numpy.asarray(onp.array(x))


def in_jax(code: str, replacements: str) -> str:
    """The imports and functions of a page under JAX's names, and the functions that replace some."""
    replaced = {x.name for x in ast.parse(replacements).body if isinstance(x, ast.FunctionDef)}
    kept: list[ast.stmt] = []
    for statement in ast.parse(code.replace("functx", "jax")).body:
        if isinstance(statement, ast.ImportFrom):
            with contextlib.suppress(ImportError):
                module = importlib.import_module(statement.module or "")
                statement.names = [x for x in statement.names if hasattr(module, x.name)]
                kept.append(statement)
        elif isinstance(statement, ast.Import) or (
            isinstance(statement, ast.FunctionDef) and statement.name not in replaced
        ):
            kept.append(statement)
    return "\n".join(map(ast.unparse, kept)) + replacements


def rows(page: str, options: Options) -> Iterator[tuple[Row, Row]]:
    """For each task of a page: the time to compile it, and that of a call."""
    both = scopes(page)
    for task, (function, argument) in TASKS[page].items():
        found = []
        for library, scope in zip((FUNCTX, JAX), both, strict=True):
            f = eval(function, scope)
            x = jax.tree.map(in_jax_arrays, eval(argument, scope))
            found.append(compiled(library, lambda _, f=f: f, (x,), time.process_time))
        (first, ours), (first_theirs, theirs) = found
        for a, b in zip(jax.tree.leaves(ours()), jax.tree.leaves(theirs()), strict=True):
            onp.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-2 * abs(onp.asarray(b)).max())
        name = f"{page}: {task}"
        yield (
            Row(f"{name}, compile", first, first_theirs),
            Row(name, *compare(ours, theirs, options)),
        )


def main(pages: list[str]) -> None:
    for page in pages or TASKS:
        for first, run in rows(page, Options(least=True, seconds=2.0)):
            print(f"{run.task:40} run {run.ratio:.2f}, compile {first.ratio:.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
