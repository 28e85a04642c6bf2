"""Programs and errors that travel: pickled and copied."""

import copy
import pickle

import jax.numpy as jnp
import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx import errors

x = np.array([1.0, 2.0, 3.0], "float32")
table = jnp.arange(3.0)


def model(x, params):
    last, rows = functx.lax.scan(lambda c, row: (xp.sin(c) * row, c), x[0], table)
    chosen = functx.lax.cond(last > 0, xp.sin, xp.cos, last)
    return {"rows": rows, "out": functx.jit(lambda v: v * params["scale"])(chosen)}


# Some names are those of JAX's own errors.
ERRORS = [
    e
    for e in vars(errors).values()
    if isinstance(e, type) and issubclass(e, Exception) and e.__module__.startswith("functx")
]


@pytest.mark.parametrize("travel", [lambda p: pickle.loads(pickle.dumps(p)), copy.deepcopy])
def test_a_program_arrives_as_it_was(travel):
    program = functx.make_ir(model)(x, {"scale": 2.0})
    again = travel(program)
    assert again == program and hash(again) == hash(program)
    assert again.input_names() == program.input_names() == ["x", "params['scale']", "c0"]
    found, wanted = again(x, {"scale": 2.0}), program(x, {"scale": 2.0})
    np.testing.assert_array_equal(found["rows"], wanted["rows"])
    np.testing.assert_array_equal(functx.jit(again)(x, {"scale": 2.0})["out"], wanted["out"])


def test_programs_of_derivatives_and_of_texts_travel():
    program = functx.make_ir(functx.vmap(functx.grad(lambda v: v**2 + 1.0)))(x)
    for each in (program, functx.Program.parse(str(program))):
        again = pickle.loads(pickle.dumps(each))
        assert again == program
        assert functx.Program.parse(str(again)) == program


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: e.__name__)
def test_an_error_arrives_with_what_it_said(error):
    before = error("f: x must be 1; got 2", "in an equation", fix="Pass 1.")
    after = pickle.loads(pickle.dumps(before))
    assert type(after) is error and str(after) == str(before)
    assert "test_pickling.py" in str(after)
    assert str(pickle.loads(pickle.dumps(after))) == str(before)


def test_an_error_that_a_function_raised_travels():
    with pytest.raises(errors.ShapeError) as caught:
        functx.jit(lambda v: v + table[:2])(x)
    again = copy.copy(caught.value)
    assert str(again) == str(caught.value) and again.location == caught.value.location
