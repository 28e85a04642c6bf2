"""Mistakes with JAX functions: what the errors say."""

import jax
import jax.numpy as jnp
import numpy as onp
import pytest

import functx as fx
from functx.core.errors import (
    ArgumentError,
    EscapedTracerError,
    ForeignCodeError,
    MissingRuleError,
)

X = onp.ones((4, 3), "float32")


def test_what_is_no_function():
    with pytest.raises(
        ArgumentError, match="from_jax: the first argument must be a function; got int"
    ):
        fx.from_jax(3)


def test_errors_of_the_function_surface_with_the_line_of_the_call():
    with pytest.raises(TypeError, match="dot_general requires") as info:
        fx.jit(fx.from_jax(lambda x: jnp.dot(x, x)))(X)
    assert not isinstance(info.value, fx.errors.FunctxError)
    assert any(
        "in functx.from_jax(lambda), called at test_errors.py:" in n for n in info.value.__notes__
    )
    with pytest.raises(KeyError) as info:
        fx.grad(fx.from_jax(lambda x: {}["missing"]))(X)
    assert any("functx.from_jax(lambda)" in note for note in info.value.__notes__)


def test_control_flow_on_values_is_refused_in_the_words_of_jax():
    def branches(x):
        return x if x.sum() > 0 else -x

    with pytest.raises(jax.errors.TracerBoolConversionError) as info:
        fx.jit(fx.from_jax(branches))(X)
    # JAX speaks of the function and its argument, not of ours.
    assert "branches at" in str(info.value) and "the argument x" in str(info.value)


def test_what_jax_refuses_inside_a_trace_names_the_line_of_the_user():
    def branches(x):
        return x if x.sum() > 0 else -x

    def looped(x):
        return jax.lax.scan(lambda c, _: (branches(c), None), x, None, length=2)[0]

    for f in (jax.jit(branches), looped, lambda x: jax.vmap(branches)(x)):
        with pytest.raises(jax.errors.TracerBoolConversionError) as info:
            fx.jit(fx.vmap(f))(X[None])
        note = info.value.__notes__[0]
        assert "test_errors.py:" in note and note.endswith(
            "branches: return x if x.sum() > 0 else -x"
        )


def test_traced_arrays_that_have_escaped():
    saved = []
    fx.jit(lambda t: saved.append(t) or t)(X)
    for f in (fx.from_jax(jnp.sin), jnp.sin, lambda x: X @ jnp.cos(x), fx.jit(jnp.sin)):
        with pytest.raises(EscapedTracerError):
            f(saved[0])


def test_rules_that_jax_does_not_have():
    with pytest.raises(MissingRuleError) as info:
        fx.grad(fx.from_jax(lambda x: jnp.linalg.eig(x @ x.T)[1].real.sum()))(X[:3, :3])
    assert info.value.problem.startswith("from_jax: JAX must have a rule for `eig`")
    assert "jax.custom_jvp" in str(info.value)


def test_rules_that_use_what_jax_traced_around_them():
    def f(x, n):
        return jnp.sum(jax.scipy.special.expn(n, x))

    with pytest.raises(ForeignCodeError) as info:
        fx.grad(fx.from_jax(f))(X, onp.full((4, 3), 2.0, "float32"))
    assert "nondiff_argnums" in str(info.value)
