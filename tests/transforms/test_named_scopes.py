"""Names of parts of a computation."""

import jax
import pytest

import functx
import functx.numpy as np
from functx import errors


@functx.named_scope("decoder")
def decode(x):
    return np.cos(x)


def model(x):
    with functx.named_scope("encoder"):
        y = np.sin(x)
        with functx.named_scope("attention"):
            y = y @ y
    return decode(y).sum() + functx.named_call(lambda z: np.exp(z), name="last")(x).sum()


def comments(program):
    return [
        line.split("#")[1].split(":")[0].strip()
        for line in str(program).splitlines()
        if "#" in line
    ]


def test_a_program_shows_the_path_of_names():
    shown = comments(functx.make_ir(model)(np.ones((2, 2))))
    assert shown[:3] == ["encoder", "encoder/attention", "decoder"]
    assert "last" in shown
    assert comments(functx.make_ir(lambda x: x + 1)(1.0))[0].startswith("test_named_scopes.py")


def test_derivatives_and_maps_keep_the_names():
    for transform in (functx.grad, lambda f: functx.vmap(f, 1)):
        assert "encoder/attention" in comments(
            functx.make_ir(transform(model))(np.ones((2, 2, 2))[0])
        )


def test_compiled_code_has_them_as_metadata():
    gradient = functx.jit(functx.grad(model))
    text = gradient.lower(np.ones((2, 2))).compile().as_text()
    assert 'op_name="encoder/attention/dot_general"' in text
    assert 'op_name="encoder/sin"' in text
    text = jax.jit(gradient).lower(np.ones((2, 2))).compile().as_text()
    assert "grad_model)/encoder/" in text


def test_a_jitted_function_has_the_names_of_its_own_scopes():
    inner = functx.jit(lambda x: np.sin(decode(x)))

    def f(x):
        with functx.named_scope("a"):
            x = inner(x)
        with functx.named_scope("b"):
            return inner(x)

    shown = comments(functx.make_ir(f)(1.0))
    assert [name for name in shown if "py" not in name] == ["a", "decoder", "b"]


def test_errors_and_generators_leave_the_scope():
    with pytest.raises(ZeroDivisionError), functx.named_scope("a"):
        raise ZeroDivisionError
    assert comments(functx.make_ir(np.sin)(1.0)) == [] or "a" not in comments(
        functx.make_ir(lambda x: np.sin(x))(1.0)
    )


def test_a_name_is_a_string():
    with (
        pytest.raises(errors.ArgumentError, match="the name must be a string; got int"),
        functx.named_scope(3),
    ):
        pass
