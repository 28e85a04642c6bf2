"""Loops that fill a buffer never copy it, forward and backward: copies counted in compiled HLO."""

import re

import numpy
import pytest

import functx.numpy as np
from functx import grad, jit, lax, vmap

STEPS = 97
LARGE = 1100


def by_fori_loop(x):
    y = np.zeros(STEPS, "float32")

    def step(i, _):
        y[i] = 0.9 * np.sin(y[i - 1]) + x[i]

    lax.fori_loop(1, STEPS, step, None)
    return (y * y).sum()


def by_scan(x):
    y = np.zeros(STEPS, "float32")

    def step(last, row):
        i, given = row
        y[i] = 0.9 * np.sin(last) + given
        return y[i], None

    lax.scan(step, np.float32(0), (np.arange(STEPS), x))
    return (y * y).sum()


def through_a_view(x):
    tail = x[1:]

    def step(i, _):
        tail[i] += np.sin(x[i])

    lax.fori_loop(0, LARGE - 1, step, None)
    return (x * x).sum()


def bodies(compiled):
    """The text of each loop body of a compiled program."""
    text = compiled.as_text()
    names = set(re.findall(r"body=%([\w.\-]+)", text))
    parts = re.split(r"\n\n", text)
    found = [part for part in parts if part.lstrip("%").split(" ", 1)[0] in names]
    assert len(found) == len(names) > 0
    return found


TRANSFORMS = {
    "forward": lambda f: f,
    "grad": grad,
    "vmap": vmap,
    "vmap of grad": lambda f: vmap(grad(f)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("loop", [by_fori_loop, by_scan, through_a_view])
def test_no_step_copies_the_buffer_or_sorts(loop, transform, optimised):
    length = LARGE if loop is through_a_view else STEPS
    shape = (3, length) if "vmap" in transform else (length,)
    x = numpy.ones(shape, "float32")
    compiled = jit(TRANSFORMS[transform](loop)).lower(x).compile()
    for body in bodies(compiled):
        assert not re.findall(r"= \w+\[[\d,]{2,}\]\S* copy\(", body), body
        assert " sort(" not in body


def test_functions_that_do_not_read_the_layout_are_traced_once_for_all_layouts():
    traced = []

    def f(x):
        traced.append(x)
        y = np.zeros(3, x.dtype)
        y[0], y[1] = x[1, 0], x[None, 0, 1][0]
        return y.sum()

    compiled = jit(f)
    x = numpy.arange(4, dtype="float32").reshape(2, 2)
    assert [float(compiled(a)) for a in (x, x.T, x[::-1])] == [3.0, 3.0, 3.0]
    assert len(traced) == 1
