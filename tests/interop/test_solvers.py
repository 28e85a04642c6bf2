"""Solvers and samplers written for JAX, called as they are inside functx's transforms."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as onp
import pytest

import functx as fx

eqx = pytest.importorskip("equinox")


def close(got, want):
    jax.tree.map(partial(onp.testing.assert_allclose, rtol=1e-3, atol=1e-4), got, want)


def test_checks_of_values_are_made_once_for_a_whole_batch():
    def checked(x):
        return jnp.sin(eqx.error_if(x, x < 0, "must not be negative"))

    rows = jnp.linspace(0.1, 1.0, 3)
    close(fx.jit(fx.vmap(fx.grad(checked)))(rows), jnp.cos(rows))
    close(fx.grad(lambda x: fx.vmap(checked)(x).sum())(rows), jnp.cos(rows))
    with pytest.raises(RuntimeError, match="must not be negative"):
        fx.jit(fx.vmap(checked))(-rows).block_until_ready()


def test_unused_results_of_checked_solvers_have_no_cotangent():
    eqxi = pytest.importorskip("equinox.internal")

    def solve(x):
        y, steps = jnp.sin(x), eqxi.nondifferentiable_backward(jnp.cos(x))
        y, steps, _ = eqx.error_if((y, steps, jnp.arange(2)), x > 9, "must be small")
        y, steps = jax.checkpoint(lambda y, steps: (jnp.sin(y), steps * y))(y, steps)
        return jax.lax.cond(x > 0, lambda *ys: ys, lambda y, steps: (y + 1, steps), y, steps)

    close(fx.jit(fx.grad(lambda x: solve(x)[0]))(0.5), jax.grad(lambda x: solve(x)[0])(0.5))
    with pytest.raises(RuntimeError, match="Unexpected cotangent"):
        fx.grad(lambda x: solve(x)[1])(0.5)


def test_rules_that_refuse_cotangents_of_unused_results_are_not_heard_at_any_depth():
    last = pytest.importorskip("equinox.internal").nondifferentiable_backward

    def body(x):
        return jnp.sin(x), last(jnp.cos(x))

    def choice(x):
        return jax.lax.cond(x > 0, body, lambda x: (x, last(x)), x)

    def step(carry, _):
        return choice(carry[0]), None

    def loop(x):
        return jax.lax.scan(jax.checkpoint(step), (x, x), None, length=3)[0]

    def mapped(x):
        return [y.sum() for y in jax.vmap(jax.checkpoint(choice))(x[None])]

    bodies = [jax.checkpoint(body), choice, jax.checkpoint(choice), loop, mapped]
    bodies.append(lambda x: jax.lax.cond(x > 0, jax.checkpoint(body), choice, x))

    def derivatives(grad, x):
        firsts = [lambda x, fun=fun: fun(x)[0] for fun in bodies]
        return [(grad(f)(x), grad(grad(f))(x)) for f in firsts]

    x = jnp.float32(0.5)
    close(fx.jit(partial(derivatives, fx.grad))(x), jax.jit(partial(derivatives, jax.grad))(x))
    for fun in bodies:
        with pytest.raises(RuntimeError, match="Unexpected cotangent"):
            fx.grad(lambda x, fun=fun: fun(x)[1])(x)


def test_a_differential_equation_is_solved_and_differentiated():
    dfx = pytest.importorskip("diffrax")

    def loss(rate):
        term = dfx.ODETerm(lambda t, y, rate: -rate * y)
        steps = dfx.ConstantStepSize()
        y, n = jnp.ones(2), 4
        found = dfx.diffeqsolve(
            term, dfx.Tsit5(), 0, 1, 1 / n, y, rate, stepsize_controller=steps, max_steps=n
        )
        return jnp.sum(found.ys**2)

    rate = jnp.float32(0.7)
    close(fx.jit(fx.grad(loss))(rate), jax.jit(jax.grad(loss))(rate))
