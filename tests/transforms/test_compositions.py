"""Every ordered pair of transforms, and triples, against JAX and against differences.

Each transform is used as a map from functions of one number to such functions, so that all of them nest.
Programs are evaluated by the NumPy meaning of their equations, which compiles nothing; some also run compiled.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import functx
from functx.testing import reference

FUNCTX = SimpleNamespace(
    np=functx.numpy, fx=functx, make_ir=lambda f: lambda x: functx.make_ir(f)(x)(x)
)
JAX = SimpleNamespace(
    np=jax.numpy,
    fx=jax,
    make_ir=lambda f: lambda x: jax.core.jaxpr_as_fun(jax.make_jaxpr(f)(x))(x)[0],
)

VERBS = {
    "grad": lambda lib, f: lib.fx.grad(f),
    "value_and_grad": lambda lib, f: lambda x: sum(lib.fx.value_and_grad(f)(x)),
    "jvp": lambda lib, f: lambda x: lib.fx.jvp(f, (x,), (lib.np.ones_like(x),))[1],
    "vjp": lambda lib, f: lambda x: lib.fx.vjp(f, x)[1](lib.np.ones_like(x))[0],
    "linearize": lambda lib, f: lambda x: lib.fx.linearize(f, x)[1](lib.np.ones_like(x)),
    "vmap": lambda lib, f: lambda x: lib.fx.vmap(f)(lib.np.stack([x, x * x])).sum(),
    "jit": lambda lib, f: lib.fx.jit(f),
    "jacfwd": lambda lib, f: lib.fx.jacfwd(f),
    "jacrev": lambda lib, f: lib.fx.jacrev(f),
}
DERIVATIVES = {"grad", "jvp", "vjp", "linearize", "jacfwd", "jacrev"}

WEIGHTS = np.random.RandomState(0).randn(3, 3)
TABLE = np.array([0.3, -1.2, 0.8, 2.0])


def polynomial(np, x):
    return x**4 - 2.0 * x**2 + x / (1.0 + x * x)


def layers(np, x):
    h = np.tanh(np.array([1.0, 0.5, -0.3]) * x @ WEIGHTS)
    return (np.exp(h) @ WEIGHTS).mean() + np.log1p(x * x)


def indexing(np, x):
    v = x * np.asarray(TABLE)
    return (v[1:] * v[:-1]).sum() + v[np.array([3, 0, 3])].prod() + np.sin(v)[::-2].sum()


def choices(np, x):
    v = x + np.asarray(TABLE)
    return np.where(v > 0.5, v**3, np.sin(v)).sum() + np.maximum(v, 0.1).max() + np.sort(v * v)[1]


def reductions(np, x):
    m = np.outer(np.cos(x * np.asarray(TABLE)), np.asarray(TABLE) + x)
    return np.sqrt((m**2).sum(axis=0) + 1.0).std() + np.cumsum(m, axis=1)[:, 2].var()


PROGRAMS = [polynomial, layers, indexing, choices, reductions]


def compose(lib, names, program):
    f = lambda x: program(lib.np, x)  # noqa: E731
    for name in reversed(names):
        f = VERBS[name](lib, f)
    return f


def evaluate(f, x):
    """`f(x)` for a functx function, each equation by its NumPy meaning."""
    program = functx.make_ir(f)(x)
    return reference.interpret_in_numpy(program, x)[0]


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


POINT = np.float64(0.7)


@cache
def canonical_jax_value(names, program):
    with jax.enable_x64(True):
        # One compilation in place of one for each operation.
        return float(jax.jit(compose(JAX, names, program))(POINT))


def jax_value_of_the_same_mathematics(names, program):
    """JAX's value, found once for all nests that mean the same.

    Six of the verbs are the derivative, and `jit` changes nothing.
    """
    same = tuple("grad" if n in DERIVATIVES else n for n in names if n != "jit")
    return canonical_jax_value(same, program)


def check(names, program):
    got = evaluate(compose(FUNCTX, names, program), POINT)
    want = jax_value_of_the_same_mathematics(names, program)
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-8)
    if names[0] in DERIVATIVES:
        inner = compose(FUNCTX, names[1:], program)
        h = 1e-4
        difference = (evaluate(inner, POINT + h) - evaluate(inner, POINT - h)) / (2 * h)
        np.testing.assert_allclose(got, difference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("first", VERBS)
def test_a_pair_of_transforms_agrees_with_jax_and_with_differences(first, program):
    for second in VERBS:
        check((first, second), program)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("first", VERBS)
def test_a_triple_of_transforms_agrees_with_jax_and_with_differences(first, program):
    for second, third in thirds(first, program):
        check((first, second, third), program)


def thirds(first, program):
    """A Latin square of verbs: any two of a triple's places hold each ordered pair once.

    Each program has a square of its own, so no triple is tried twice.
    """
    verbs = list(VERBS)
    shift = verbs.index(first) + PROGRAMS.index(program)
    return [(second, verbs[(shift + j) % len(verbs)]) for j, second in enumerate(verbs)]


DEEP = [
    ("grad", "vmap", "jvp", "jit", "grad"),
    ("jit", "jacfwd", "vjp", "vmap", "linearize"),
    ("vmap", "vmap", "grad", "grad", "jit"),
    ("linearize", "jit", "vmap", "jacrev", "jvp"),
    ("jvp", "grad", "jit", "vjp", "vmap", "jacfwd"),
    ("vjp", "vmap", "jit", "jit", "vmap", "grad"),
]


@pytest.mark.parametrize("program", PROGRAMS[:3], ids=lambda p: p.__name__)
@pytest.mark.parametrize("names", DEEP, ids="-".join)
def test_transforms_nest_five_deep_and_more(names, program):
    check(names, program)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize(
    "names",
    [("jit", "vmap", "grad"), ("grad", "jit", "jvp"), ("vmap", "jit", "jacrev")],
    ids="-".join,
)
def test_a_compiled_triple_agrees_with_jax(names, program):
    got = compose(FUNCTX, names, program)(POINT)
    np.testing.assert_allclose(got, compose(JAX, names, program)(POINT), rtol=1e-8, atol=1e-8)
