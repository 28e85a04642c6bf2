"""Functions with user-defined rules in every nest of transforms up to three deep.

Rules that are true are measured against plain functions, rules that are not against JAX's with
the same rule: no nest may lose one. Programs run by the NumPy meaning of their equations.
"""

import itertools
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.custom_derivatives import SymbolicZero
from functx.testing import reference

VERBS = {
    "jit": lambda m, xp, f: m.jit(f),
    "vmap": lambda m, xp, f: lambda x: m.vmap(f)(xp.stack([x, 0.5 * x])).sum(),
    "grad": lambda m, xp, f: m.grad(f),
    "jvp": lambda m, xp, f: lambda x: m.jvp(f, (x,), (xp.ones_like(x),))[1],
    "checkpoint": lambda m, xp, f: m.checkpoint(f),
    "scan": lambda m, xp, f: lambda x: m.lax.scan(lambda c, _: (f(c), None), x, length=2)[0],
}
# JAX's scan does not keep to a rule in its second derivatives.
OF_JAX = VERBS | {"scan": lambda m, xp, f: lambda x: f(f(x))}
NESTS = [n for depth in (1, 2, 3) for n in itertools.product(VERBS, repeat=depth)]
POINT = onp.float64(0.7)


def nested(m, xp, names, f):
    for name in reversed(names):
        f = (OF_JAX if m is jax else VERBS)[name](m, xp, f)
    return f


def value(names, f):
    program = fx.make_ir(nested(fx, np, names, f))(POINT)
    return reference.interpret_in_numpy(program, POINT)[0]


@cache
def canonical(names, f):
    with jax.enable_x64(True):
        return float(jax.jit(nested(jax, jnp, names, f))(POINT))


def by_jax(names, f):
    """JAX's value, found once for all nests that mean the same."""
    same = [{"jvp": "grad"}.get(n, n) for n in names if n not in ("jit", "checkpoint")]
    return canonical(tuple(same), f)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def plain(xp, x):
    return xp.sin(x) * x + xp.exp(-x)


def along(x, t):
    return np.sin(x) * t + (x * np.cos(x) - np.exp(-x)) * t


def by_jvp():
    f = fx.custom_jvp(partial(plain, np))
    f.defjvp(lambda primals, tangents: (f(*primals), along(*primals, *tangents)))
    return f


def by_vjp():
    f = fx.custom_vjp(partial(plain, np))
    f.defvjp(lambda x: (f(x), (x, np.sin(x))), lambda r, ct: (ct * along(r[0], 1.0),))
    return f


def by_symbolic_zeros():
    """With an argument that is not differentiated, one that is, and an integer."""

    @partial(fx.custom_vjp, nondiff_argnums=(0,))
    def g(fun, x, y, n):
        return fun(x) * n + y, n

    def fwd(fun, x, y, n):
        return g(fun, x.value, y.value, n.value), (x.value if x.perturbed else None, n.value)

    def bwd(fun, residuals, cts):
        x, n = residuals
        ct, of_n = cts
        assert isinstance(of_n, SymbolicZero)
        return None if x is None else n * ct * along(x, 1.0), ct, onp.zeros((), fx.float0)

    g.defvjp(fwd, bwd, symbolic_zeros=True)
    return lambda x: g(partial(plain, np), x, 0.0, 1)[0]


def by_vmap():
    f = fx.custom_vmap(partial(plain, np))
    f.def_vmap(lambda size, batched, x: (np.exp(-x) + x * np.sin(x), batched[0]))
    return f


def by_checkpoint():
    save = fx.checkpoint_policies.save_only_these_names("sine")
    return fx.checkpoint(
        lambda x: fx.checkpoint_name(np.sin(x), "sine") * x + np.exp(-x), policy=save
    )


def by_closure():
    def f(x):
        w = fx.stop_gradient(x)
        g = fx.custom_jvp(lambda y: plain(np, y) + 0.0 * w)
        g.defjvp(lambda p, t: (g(*p), along(*p, *t) + 0.0 * w * t[0]))
        return g(x)

    return f


TRUE = [by_jvp, by_vjp, by_symbolic_zeros, by_vmap, by_checkpoint, by_closure]


@cache
def plain_of_jax():
    return partial(plain, jnp)


@pytest.mark.parametrize("make", TRUE)
@pytest.mark.parametrize("first", VERBS)
def test_a_correct_rule_agrees_with_the_function_without_a_rule(make, first):
    f = make()
    for names in NESTS:
        if names[0] == first:
            want = by_jax(names, plain_of_jax())
            onp.testing.assert_allclose(value(names, f), want, rtol=1e-8, atol=1e-9, err_msg=names)


def odd(m, xp):
    """sin(x), with the derivative 7 x cos(x) sin(x)."""
    f = m.custom_jvp(xp.sin)
    f.defjvp(lambda p, t: (f(*p), 7.0 * p[0] * xp.cos(p[0]) * f(*p) * t[0]))
    return f


@cache
def odd_of_jax():
    return odd(jax, jnp)


def odd_by_vjp():
    f = fx.custom_vjp(np.sin)
    f.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * 7.0 * x * np.cos(x) * f(x),))
    return f


@pytest.mark.parametrize("make", [partial(odd, fx, np), odd_by_vjp], ids=["jvp", "vjp"])
@pytest.mark.parametrize("first", VERBS)
def test_a_rule_that_is_not_the_true_derivative_is_never_lost(make, first):
    f = make()
    for names in NESTS:
        if names[0] == first:
            want = by_jax(names, odd_of_jax())
            onp.testing.assert_allclose(value(names, f), want, rtol=1e-8, atol=1e-9, err_msg=names)


@cache
def sine_of_jax():
    return jnp.sin


@cache
def batched_of_jax():
    return lambda x: 3.0 * jnp.sin(x)


@pytest.mark.parametrize("first", VERBS)
def test_a_batching_rule_is_never_lost(first):
    f = fx.custom_vmap(np.sin)
    f.def_vmap(lambda size, batched, x: (3.0 * np.sin(x), True))
    for names in NESTS:
        if names[0] == first:
            # The innermost map makes of every call in it what the rule says.
            meant = batched_of_jax() if "vmap" in names else sine_of_jax()
            want = by_jax(names, meant)
            onp.testing.assert_allclose(value(names, f), want, rtol=1e-8, atol=1e-9, err_msg=names)


FIVE_DEEP = [
    ("jit", "vmap", "grad", "checkpoint", "scan"),
    ("grad", "scan", "checkpoint", "vmap", "jvp"),
    ("scan", "jit", "jvp", "vmap", "grad"),
    ("vmap", "checkpoint", "grad", "jit", "grad"),
]


@pytest.mark.parametrize("names", FIVE_DEEP, ids="-".join)
def test_rules_hold_five_deep_and_compiled(names):
    for f in (odd(fx, np), odd_by_vjp()):
        want = by_jax(names, odd_of_jax())
        onp.testing.assert_allclose(value(names, f), want, rtol=1e-8)
        onp.testing.assert_allclose(nested(fx, np, names, f)(POINT), want, rtol=1e-8)
    f = fx.custom_vmap(np.sin)
    f.def_vmap(lambda size, batched, x: (3.0 * np.sin(x), True))
    onp.testing.assert_allclose(
        nested(fx, np, names, f)(POINT), by_jax(names, batched_of_jax()), rtol=1e-8
    )
