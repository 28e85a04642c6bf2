"""`functx.tools.python_source`: programs as Python functions that give them again when traced."""

import jax
import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.core.errors import ArgumentError, FunctxError
from functx.core.tracing import trace_closed
from functx.testing.random_functions import RandomFunction, eligible_primitives, random_arguments
from functx.tools import python_source

X = onp.ones((3, 4), "float32")


def traced_again(program):
    return fx.make_ir(python_source(program).function())(*program.in_avals)


def test_samples_of_all_primitives_give_their_programs_again():
    with jax.enable_x64(True):
        for cls in eligible_primitives():
            case = cls.samples[-1]
            primitive = cls(**case.params)

            def body(*args, primitive=primitive):
                outs = primitive(*args)
                return list(outs) if primitive.multiple_results else [outs]

            program = trace_closed(body, list(case.avals), name=primitive.name)
            assert traced_again(program) == program, primitive.name


@pytest.mark.parametrize("wide", [False, True])
def test_random_programs_are_given_again(wide):
    with jax.enable_x64(wide):
        for seed in range(12):
            program = fx.make_ir(RandomFunction(seed))(*random_arguments(seed))
            assert traced_again(program) == program, seed


def test_the_text_is_that_which_one_would_write():
    def f(x, w):
        h = np.tanh(x @ w) * 0.1 - 2.0
        return np.where(h > 0, h.reshape(15)[2:5].sum(), -h[0, 0]) ** 2, h.astype("int32")

    text = python_source(fx.make_ir(f)(X, onp.ones((4, 5), "float32"))).text
    body = text[text.index("def ") :]
    for line in ("= x @ w", " * 0.1", " - 2.0", " > 0.0", "np.where(", "[2:5]", "np.sum(", " ** 2"):
        assert line in body
    assert ".astype('int32')" in body and "(shape=" not in body


def test_transforms_and_control_flow_are_given_again():
    def loss(x):
        def step(c, row):
            return fx.lax.cond(c[0] > 0, np.sin, lambda v: v * 2.0, c) + row, c.sum()

        c, sums = fx.lax.scan(step, x[0] * 1.0, x)
        c = fx.lax.while_loop(lambda c: c.sum() < 9.0, lambda c: c + 1.0, c)
        return (fx.checkpoint(np.cos)(c) * fx.jit(np.exp)(c)).sum() + sums[-1]

    for fun in (loss, fx.jvp, fx.grad(lambda x: x[0, 0] * 3.0)):
        if fun is fx.jvp:
            fun = lambda x: fx.jvp(loss, (x,), (x,))  # noqa: E731
        program = fx.make_ir(fun)(X)
        assert traced_again(program) == program
    gradient = fx.make_ir(fx.vmap(fx.grad(lambda x: np.sin(x).sum() * x[0])))(X)
    assert traced_again(gradient) == gradient
    assert onp.allclose(python_source(gradient).function()(X), gradient(X))


def test_names_of_the_user_may_be_keywords_or_those_of_modules():
    def lax(np, numpy, lambda_=2.0):
        sin = np * numpy
        lax = sin + lambda_
        return lax, sin

    program = fx.make_ir(lax)(1.0, 2.0)
    assert traced_again(program) == program
    inner = fx.make_ir(lambda x: fx.jit(lax)(x, x))(1.0)
    assert traced_again(inner) == inner


def test_writes_literals_and_what_has_no_text_are_given_again():
    def writes(x):
        y = x.T
        y[0] = 2.0
        return x.reshape(12)[2], float("inf"), onp.float16(0.5), True, 2, 1.5j

    program = fx.make_ir(writes)(X)
    assert program.writes and traced_again(program) == program
    host = fx.make_ir(lambda x: fx.pure_callback(onp.sin, x, x) * X)(X)
    source = python_source(host)
    assert source.values and "value_1" in source.text
    assert fx.make_ir(source.function())(*host.in_avals) == host
    nothing = fx.make_ir(lambda: ())()
    assert traced_again(nothing) == nothing


def test_errors_in_the_function_show_its_lines():
    program = fx.make_ir(lambda x: np.sin(x) @ x.T)(X)
    with pytest.raises(FunctxError, match="python_source lambda"):
        fx.make_ir(python_source(program).function())(X[0, 0])
    with pytest.raises(ArgumentError, match="program"):
        python_source(np.sin)
