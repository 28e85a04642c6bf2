"""JAX code as it stands inside functx's transforms, against the same code in pure JAX."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as onp
import pytest
from jax.experimental.ode import odeint

import functx as fx

X = jnp.arange(1.0, 4.0) + 0.3
ROWS = jnp.stack([X, X * 1.1])
A = jnp.arange(9.0).reshape(3, 3) / 7
WEIGHTS = jnp.array([0.3, 0.5, 0.7])


def stop(x):
    return jax.lax.stop_gradient(x)


@jax.custom_jvp
def tripled(x):
    return jnp.sin(x)


tripled.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 3 * tangents[0]))


@jax.custom_vjp
def bent(x):
    return jnp.sin(x)


bent.defvjp(lambda x: (jnp.sin(x), x), lambda r, g: (g * r,))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def power(n, x):
    return x**n


power.defvjp(lambda n, x: (x**n, x), lambda n, r, g: (5 * n * g * r,))


@jax.jit
def long(x):
    for _ in range(40):
        x = jnp.sin(x) * 1.1
    return x


def step(carry, row):
    return carry * 0.5 + jnp.sin(row), carry


def converted(x):
    closed, consts = jax.closure_convert(lambda y: y * x, x)
    return closed(x, *consts)


PLAIN = {
    "ufunc": jnp.sin,
    "softmax": jax.nn.softmax,
    "activations": lambda x: jax.nn.relu(x - 2) + jax.nn.gelu(x) + jax.nn.silu(x),
    "where": lambda x: jnp.where(x > 2, x**2, jnp.zeros(3)),
    "array[tracer]": lambda x: A[jnp.int32(x[0])] * x,
    "tracer[array]": lambda x: x[jnp.array([0, 2, 0])],
    "array.at": lambda x: A.at[1].set(x).at[0, 1].multiply(x[2]) @ x,
    "products": lambda x: A @ x + x @ A + jnp.einsum("ij,j->i", A, x),
    "mixed operands": lambda x: jnp.add(x, onp.ones(3, onp.float32)) * 2 + jnp.maximum(1, x),
    "cond": lambda x: jax.lax.cond(x[0] > 1, lambda y: y * 2, lambda y: y * 3, x),
    "vmap": lambda x: jax.vmap(lambda r: jnp.sum(r * x))(A) + jax.vmap(lambda r: r**2)(x),
    "grad": lambda x: jax.grad(lambda y: jnp.sum(jnp.sin(y) * x))(x),
    "hessian": lambda x: jax.hessian(lambda y: jnp.sum(y**3 * x))(x) @ x,
    "jacfwd": lambda x: jax.jacfwd(lambda y: y**3 * x)(x) @ x,
    "scan": lambda x: (
        sum(jax.tree.map(jnp.ravel, [*jax.lax.scan(step, x, A)])[0:1])
        + jax.lax.scan(step, x, A)[1].sum(0)
    ),
    "scan over a closure": lambda x: jax.lax.scan(lambda c, r: (c * x + r, None), X, A)[0],
    "fori_loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, c: c * x, x),
    "while_loop": lambda x: (
        jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * stop(x)), (0, stop(x)))[
            1
        ]
        * x
    ),
    "map": lambda x: jax.lax.map(lambda r: r * x, A).sum(0),
    "jit": lambda x: jax.jit(lambda y: y * x)(x),
    "calls": lambda x: long(x) + long(x * 2),
    "custom_jvp": tripled,
    "custom_vjp": bent,
    "nondiff_argnums": partial(power, 3),
    "checkpoint": lambda x: jax.checkpoint(lambda y: jnp.sin(jnp.sin(y) * x))(x),
    "stop_gradient": lambda x: stop(x) * x,
    "keys": lambda x: jax.random.normal(jax.random.key(3), (3,)) * x,
    "raw keys": lambda x: jax.random.uniform(jax.random.split(jax.random.PRNGKey(3))[1], (3,)) * x,
    "arrays of keys": lambda x: (
        sum(
            jax.random.normal(jax.random.fold_in(k, 2), (3,))
            for k in jax.random.split(jax.random.key(3), 3)
        )
        * x
    ),
    "pure_callback": lambda x: (
        jax.pure_callback(
            onp.sin, jax.ShapeDtypeStruct((3,), jnp.float32), stop(x), vmap_method="sequential"
        )
        * x
    ),
    "closure_convert": converted,
    "eval_shape": lambda x: jnp.ones(jax.eval_shape(jnp.outer, x, x).shape).sum() * x,
    "jax.scipy": lambda x: jax.scipy.special.gammaln(x) + jax.scipy.stats.norm.logpdf(x),
    "linalg": lambda x: jnp.linalg.solve(A + jnp.diag(x), x) + jnp.linalg.inv(A + jnp.diag(X)) @ x,
    "cholesky": lambda x: jax.scipy.linalg.cho_solve(
        jax.scipy.linalg.cho_factor(A @ A.T + jnp.diag(x)), x
    ),
    "odeint": lambda x: odeint(lambda y, t, p: -p * y, x, jnp.linspace(0.0, 1.0, 5), x)[-1],
    "odeint of a closure": lambda x: odeint(lambda y, t: -x * y, x, jnp.linspace(0.0, 1.0, 5))[-1],
    "constants": lambda x: onp.asarray(jnp.ones(3)) * int(jnp.sum(jnp.ones(3))) * x,
    "fft": lambda x: jnp.abs(jnp.fft.fft(x)),
    "sorting": lambda x: jnp.sort(-x) * x[jnp.argsort(-x)],
    "logsumexp": lambda x: jax.nn.logsumexp(x) * jax.scipy.special.logsumexp(x, b=2.0) * x,
}
"""Functions of JAX alone."""

NESTED = {
    "ops of both": lambda np, x: np.sin(jnp.cos(x)) * jnp.exp(np.cos(x)),
    "jax.grad of an op": lambda np, x: jax.grad(lambda y: (np.sin(y) * x).sum())(x),
    "jax.vmap of an op": lambda np, x: jax.vmap(lambda r: np.dot(r, x))(A),
    "jax.grad of grad": lambda np, x: jax.grad(
        lambda y: grad(np)(lambda z: (z**3 * y * x).sum())(y).sum()
    )(x),
    "jax.vmap of grad": lambda np, x: jax.vmap(grad(np)(lambda y: jnp.sin(y) * x[0]))(x),
    "scan": lambda np, x: jax.lax.scan(lambda c, r: (np.sin(c) * x + r, np.cos(x)), x, A)[0],
    "while_loop": lambda np, x: (
        jax.lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, np.sin(c[1]) * stop(x)), (0, stop(x))
        )[1]
        * x
    ),
    "cond": lambda np, x: jax.lax.cond(x[0] > 1, lambda y: np.sin(y) * x, lambda y: y * 3, x),
    "vmap of jax.grad": lambda np, x: (
        namespace(np).vmap(lambda r: jax.grad(lambda y: np.sum(jnp.sin(y) * r * x))(r))(A).sum(0)
    ),
    "jax.jit of vmap": lambda np, x: jax.jit(namespace(np).vmap(lambda r: jnp.sum(r * x)))(A),
    "jax.jvp of jit": lambda np, x: jax.jvp(
        lambda y: namespace(np).jit(lambda z: np.sin(z) * y)(x * y), (x,), (x,)
    )[1],
    "jax.vjp of scan": lambda np, x: jax.vjp(
        lambda y: namespace(np).lax.scan(lambda c, r: (c * y, c), x, None, length=3)[0], x
    )[1](x)[0],
    "views in jax.grad": lambda np, x: jax.grad(lambda y: (x[1:] * y[:2]).sum() + np.sum(x[::2]))(
        x
    ),
}
"""Functions of JAX and of `np`, which is `functx.numpy` or its counterpart in JAX."""


def namespace(np):
    return fx if np is fx.numpy else jax


def grad(np):
    return namespace(np).grad


def loss_of(f):
    return lambda x: jnp.sum(f(x) * WEIGHTS)


def check(f, pure):
    """The value and the gradient of `f` under each stack of transforms are those of `pure`."""
    loss, want = loss_of(f), jax.grad(loss_of(pure))
    close = partial(onp.testing.assert_allclose, rtol=2e-4, atol=1e-5)
    close(fx.jit(f)(X), pure(X))
    close(fx.grad(loss)(X), want(X))
    close(fx.jit(fx.grad(loss))(X), want(X))
    close(fx.vmap(fx.grad(loss))(ROWS), jax.vmap(want)(ROWS))
    close(jax.grad(fx.jit(loss))(X), want(X))


@pytest.mark.parametrize("name", PLAIN)
def test_jax_code_inside_gives_the_values_and_gradients_of_jax(name):
    check(PLAIN[name], PLAIN[name])


@pytest.mark.parametrize("name", NESTED)
def test_transforms_of_jax_inside_nest_with_those_of_functx(name):
    check(partial(NESTED[name], fx.numpy), partial(NESTED[name], jnp))
