"""Every public verb once, in ten seconds: `pytest tests/test_smoke.py` before anything longer."""

import subprocess
import sys

import jax
import numpy
import pytest

import functx
import functx.numpy as np

X = numpy.array([0.5, -1.0, 2.0], "float32")
W = numpy.array([[1.0, 2.0, 0.5], [0.0, -1.0, 1.0]], "float32")


def loss(w, x):
    return (np.tanh(w @ x) ** 2).sum()


def loss_of_jax(w, x):
    return (jax.numpy.tanh(w @ x) ** 2).sum()


def equal(found, wanted):
    jax.tree_util.tree_map(
        lambda a, b: numpy.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, wanted
    )


VERBS = {
    "grad": lambda fx, f: fx.grad(f)(W, X),
    "value_and_grad": lambda fx, f: fx.value_and_grad(f, argnums=(0, 1))(W, X),
    "jit": lambda fx, f: fx.jit(f)(W, X),
    "vmap": lambda fx, f: fx.vmap(f, (None, 0))(W, numpy.stack([X, 2 * X])),
    "vmap of grad": lambda fx, f: fx.vmap(fx.grad(f), (None, 0))(W, numpy.stack([X, 2 * X])),
    "jvp": lambda fx, f: fx.jvp(f, (W, X), (W, X)),
    "vjp": lambda fx, f: fx.vjp(f, W, X)[1](numpy.float32(2.0)),
    "linearize": lambda fx, f: fx.linearize(f, W, X)[1](W, X),
    "jacfwd": lambda fx, f: fx.jacfwd(f)(W, X),
    "jacrev": lambda fx, f: fx.jacrev(f)(W, X),
    "hessian": lambda fx, f: fx.hessian(f, 1)(W, X),
    "checkpoint": lambda fx, f: fx.grad(fx.checkpoint(f))(W, X),
    "linear_transpose": lambda fx, _: fx.linear_transpose(lambda x: W @ x, X)(W[:, 0]),
    "scan": lambda fx, _: fx.lax.scan(lambda c, x: (c * x + 1, c), numpy.float32(1.0), X),
    "while_loop": lambda fx, _: fx.lax.while_loop(lambda c: c < 9, lambda c: 2 * c, 1),
    "cond": lambda fx, f: fx.grad(
        lambda w: fx.lax.cond(w.sum() > 0, f, lambda w, x: w.sum(), w, X)
    )(W),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_gives_what_jax_gives(verb):
    equal(VERBS[verb](functx, loss), VERBS[verb](jax, loss_of_jax))


def test_writes_in_place_are_differentiated():
    def smooth(x, rate):
        x[1:] -= rate * (x[1:] - x[:-1])
        return x.sum()

    assert functx.grad(smooth, argnums=1)(np.array([4.0, 2.0, 1.0]), 0.5) == 3.0


def test_a_program_prints_and_parses_and_runs():
    program = functx.make_ir(functx.grad(loss))(W, X)
    again = functx.Program.parse(str(program))
    assert again == program
    equal(again(W, X), functx.grad(loss)(W, X))


def test_functionalize_and_decompose_rewrite_a_program():
    def f(x):
        y = x * 2.0
        y[0] = 1.0
        return functx.nn.softmax(y)

    plain = functx.decompose(functx.functionalize(f))
    names = [eqn.primitive.name for eqn in functx.make_ir(plain)(X)]
    assert "softmax" not in names and "exp" in names
    equal(plain(X), f(X))


def test_a_custom_rule_and_a_custom_operator_are_followed():
    @functx.custom_jvp
    def f(x):
        return np.sin(x)

    f.defjvp(lambda primals, tangents: (f(*primals), 3.0 * tangents[0]))
    assert functx.grad(f)(1.0) == 3.0

    @functx.custom_op("smoke::double", mutates_args=())
    def double(x: jax.Array) -> jax.Array:
        return 2.0 * x

    double.def_abstract(lambda x: x)
    double.register_autograd(lambda ctx, ct: 2.0 * ct)
    assert functx.grad(lambda x: double(x) * x)(3.0) == 12.0


def test_jax_code_runs_inside_and_functx_code_inside_jax():
    equal(functx.grad(lambda x: jax.numpy.sin(x) * np.cos(x))(1.0), numpy.cos(2.0))
    equal(jax.grad(functx.jit(lambda x: np.sin(x)))(1.0), numpy.cos(1.0))


def test_random_numbers_are_those_of_jax():
    key = functx.random.key(7)
    equal(functx.random.normal(key, (3,)), jax.random.normal(jax.random.key(7), (3,)))


FRESH_PROCESS = """
import sys, functx
rare = {"functx.nn", "functx.testing", "functx.random", "functx.aot", "functx.tools"}
assert not rare & set(sys.modules), rare & set(sys.modules)
import jax, numpy
f = lambda x: jax.lax.psum(jax.lax.cond(x > 0, jax.numpy.sin, jax.nn.relu, x), "i")
program = functx.make_ir(functx.vmap(f, axis_name="i"))(numpy.ones(3, "float32"))
assert "jax_call" not in str(program), program
assert functx.Program.parse("program f(x: f32[3]):\\n  a: f32[3] = softmax[axes=(0,)] x\\n  return a")
"""


def test_a_fresh_process_loads_no_rare_namespace_and_translates_jax_code():
    subprocess.run([sys.executable, "-c", FRESH_PROCESS], check=True)
