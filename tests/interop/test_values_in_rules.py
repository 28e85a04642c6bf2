"""Functions of JAX with derivative rules, whose Python code reads the values of arrays."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as onp
import pytest

import functx as fx
from functx.core.errors import ConcretizationError

X = onp.linspace(0.5, 2.0, 4, dtype="float32")


def close(got, want, what):
    onp.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=what)


@jax.custom_vjp
def square_above(x):
    return x * x if x > 0 else -x


@jax.custom_jvp
def cube_above(x):
    return x * x * x if x > 1 else 4 * x


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def applied_above(fun, x):
    return fun(x) if x > 0 else -x


@jax.custom_vjp
def nested_above(x):
    return square_above(x) * cube_above(2 * x) if x > 0 else cube_above(x)


@jax.custom_vjp
def with_integers(i, x, tables):
    found = tables["a"][:1] * x if x > 0 else tables["a"][1:2]
    return {"next": i + 1, "found": found}, x * 2


def with_integers_backward(residuals, cts):
    i, x, factor, a = residuals
    ct = cts[0]["found"].sum()
    return None, cts[1] * factor + ct * i if x > 0 else ct, {"a": a * ct}


square_above.defvjp(lambda x: (square_above(x), x), lambda r, ct: (2 * r * ct if r > 0 else -ct,))
cube_above.defjvp(lambda p, t: (cube_above(*p), 3 * p[0] * p[0] * t[0] if p[0] > 1 else 4 * t[0]))
applied_above.defvjp(
    lambda fun, x: (applied_above(fun, x), x),
    lambda fun, r, ct: (ct * jax.grad(fun)(r) if r > 0 else -ct,),
)
nested_above.defvjp(
    lambda x: (nested_above(x), (x, jnp.sin(x))),
    lambda r, ct: (ct * (jax.grad(square_above)(r[0]) + r[1]),),
)
with_integers.defvjp(
    lambda i, x, tables: (with_integers(i, x, tables), (i, x, 3.0, tables["a"])),
    with_integers_backward,
)


def reads_integers(x):
    out, doubled = with_integers(jnp.int32(2), x, {"a": jnp.array([3.0, 5.0])})
    return out["found"].sum() * x + doubled * out["next"]


def reads_closed_over(x):
    limit = jnp.float32(1.5)

    @jax.custom_vjp
    def above(x):
        return jnp.sin(x) if x > limit else x

    above.defvjp(lambda x: (above(x), x), lambda r, ct: (ct * limit if r > limit else ct,))
    return above(x) * x


def augments(x):
    @jax.custom_vjp
    def f(x):
        before = x
        x += 1
        return x * before if x > 1 else before

    f.defvjp(lambda x: (f(x), x), lambda r, ct: (ct * (2 * r + 1),))
    return f(x)


READS_VALUES = {
    "vjp": square_above,
    "jvp": cube_above,
    "nondiff": partial(applied_above, jnp.sin),
    "nested": nested_above,
    "product": lambda x: square_above(x * 2) * cube_above(x) + 3 * x,
    "integers": reads_integers,
    "closure": reads_closed_over,
    "augmented": augments,
}


@pytest.mark.parametrize("name", READS_VALUES)
def test_python_code_reads_known_values_in_functions_with_rules(name):
    f = READS_VALUES[name]
    for x in (jnp.float32(2.0), jnp.float32(0.5), jnp.float32(-3.0)):
        value, want = jax.value_and_grad(f)(x)
        close(fx.value_and_grad(f)(x), (value, want), "value_and_grad")
        close(fx.vjp(f, x)[1](jnp.float32(1.0))[0], want, "vjp")
        close(fx.jvp(f, (x,), (jnp.float32(1.0),)), (value, want), "jvp")


def test_what_jax_gives_for_second_derivatives_of_functions_that_read_values():
    for f in (square_above, cube_above, partial(applied_above, jnp.sin)):
        for x in (2.0, -3.0):
            close(fx.grad(fx.grad(f))(x), jax.grad(jax.grad(f))(x), "grad(grad)")


def test_python_code_reads_the_value_that_a_batch_shares():
    def f(x, y):
        return cube_above(y) * x

    for argnum in (0, 1):
        want = jax.vmap(jax.grad(f, argnum), (0, None))(X, 2.0)
        close(fx.vmap(fx.grad(f, argnum), (0, None))(X, 2.0), want, "vmap(grad)")


@pytest.mark.parametrize("name", READS_VALUES)
def test_python_code_cannot_read_values_that_are_not_known(name):
    slope = fx.grad(READS_VALUES[name])
    for transformed, x in ((fx.jit(slope), X[0]), (fx.vmap(slope), X)):
        with pytest.raises(ConcretizationError, match="needs the value of an array"):
            transformed(x)
