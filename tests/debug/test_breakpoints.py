"""`debug.breakpoint`: a prompt with values, while a function is traced or when its program runs."""

import io
import sys
from bdb import BdbQuit

import jax
import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx import grad, jit, vmap


def loss(x, scale=2.0):
    params = {"w": x, "name": "first"}
    y = x * scale
    functx.debug.breakpoint()
    z = y + params["w"]
    return xp.sum(z)


def told(monkeypatch, capfd, run, commands):
    """What the prompts say while `run()` is given `commands`, and its result."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(commands))
    trace = sys.gettrace()
    try:
        result = run()
        functx.effects_barrier()
    finally:
        sys.settrace(trace)
    return result, capfd.readouterr().out


X = np.arange(3, dtype=np.float32)
ROWS = np.arange(4, dtype=np.float32).reshape(2, 2)


@pytest.mark.parametrize(
    "run, y",
    [
        (lambda: loss(X), "array([0., 2., 4.], dtype=float32)"),
        (lambda: grad(loss)(X), "Traced<f32[3]> in grad(loss) with value [0. 2. 4.]"),
        (
            lambda: vmap(loss)(ROWS),
            "Traced<f32[2]> in vmap(loss) with 2 lanes\n[[0. 2.]\n [4. 6.]]",
        ),
    ],
)
def test_with_known_values_the_debugger_stops_in_the_function(monkeypatch, capfd, run, y):
    # Python 3.13 stops at the line of the breakpoint, others at the next one.
    _, text = told(monkeypatch, capfd, run, "p y\np params['name']\nn\nn\np z\nc\n")
    assert y in text and "'first'" in text
    assert "return xp.sum(z)" in text and "6." in text


@pytest.mark.parametrize(
    "run, values, result",
    [
        (lambda: jit(loss)(X), ["[1., 3., 5.]"], 9),
        (lambda: jit(grad(loss))(X), ["[1., 3., 5.]"], [3, 3, 3]),
        (lambda: jax.jit(lambda x: grad(loss)(x))(X), ["[1., 3., 5.]"], [3, 3, 3]),
        (lambda: jit(vmap(loss))(ROWS), ["[1., 3.]", "[5., 7.]"], [3, 15]),
        (lambda: functx.lax.fori_loop(0, 2, lambda i, c: loss(c), 1.0), ["3.0", "7.0"], 9),
    ],
)
def test_elsewhere_it_stops_when_the_program_runs(monkeypatch, capfd, run, values, result):
    commands = "p y + 1\np params['name'], scale\nc\n" * len(values)
    found, text = told(monkeypatch, capfd, run, commands)
    np.testing.assert_allclose(found, result)
    assert text.count("-> functx.debug.breakpoint()") == len(values)
    assert text.count("('first', 2.0)") == len(values)
    places = [text.index(value) for value in values]
    assert places == sorted(places)


@pytest.mark.parametrize("transform", [jit, grad])
def test_the_end_of_the_input_continues_and_quit_ends_the_program(monkeypatch, capfd, transform):
    told(monkeypatch, capfd, lambda: transform(loss)(X), "")
    with pytest.raises(BdbQuit):
        told(monkeypatch, capfd, lambda: transform(loss)(X), "q\n")
