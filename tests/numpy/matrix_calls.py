"""Comparison of tables of calls on matrices with JAX, compiled as one program for each namespace."""

import jax
import numpy

import functx


def operands(dtype):
    """Matrices and vectors by name; `C` and `H` are complex, `S` and `H` positive definite."""
    random = numpy.random.RandomState(0)
    draw = lambda *shape: random.randn(*shape).astype(dtype)  # noqa: E731
    a, c = draw(3, 3), draw(3, 3) + 1j * draw(3, 3)
    unit = numpy.eye(3, dtype=dtype)
    return {
        "A": a,
        "B": draw(2, 3, 3),
        "C": c,
        "D": draw(4, 4),
        "H": c @ c.conj().T + unit,
        "I": random.randint(-3, 4, (3, 3)).astype("int32"),
        "N": numpy.zeros((0, 3), dtype),
        "S": a @ a.T + unit,
        "T": draw(2, 3, 3, 2),
        "R": draw(2, 4, 3),
        "W": draw(2, 4),
        "Z": numpy.ones((3, 3), dtype),
        "c": draw(3) + 1j * draw(3),
        "u": draw(2),
        "v": draw(3),
        "w": draw(4),
    }


def results(transform, namespace, texts, values):
    def body(values):
        return [jax.tree.leaves(eval(text, {"np": namespace, **values})) for text in texts]

    return transform(body)(values)


def check_calls(ours, theirs, table, dtype="float64", tolerance=1e-9):
    """Require the shapes, dtypes and values of JAX of each call, a line of `table`."""
    texts, values = [line.strip() for line in table.splitlines() if line.strip()], operands(dtype)
    with jax.enable_x64(dtype == "float64"):
        found = results(functx.jit, ours, texts, values)
        wanted = results(jax.jit, theirs, texts, values)
    wrong = []
    for text, *pair in zip(texts, found, wanted, strict=True):
        for g, w in zip(*pair, strict=True):
            same = g.shape == w.shape and g.dtype == w.dtype
            scale = max(1, numpy.abs(w).max(initial=0, where=numpy.isfinite(w)))
            if not same or not numpy.allclose(g, w, rtol=0, atol=tolerance * scale, equal_nan=True):
                wrong.append(f"{text}: {g.dtype}{g.shape} {w.dtype}{w.shape}\n{g}\n{w}")
    assert not wrong, "\n".join(wrong)
