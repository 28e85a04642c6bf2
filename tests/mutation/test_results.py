"""Results of transforms inside a function that writes share memory with no other array."""

import numpy
import pytest

import functx
import functx.numpy as np
from functx import grad, jit, linearize, vjp, vmap


def ramp(n=3):
    return numpy.arange(1.0, n + 1).astype("float32")


def close(a, b):
    numpy.testing.assert_allclose(numpy.asarray(a), numpy.asarray(b), rtol=1e-5, atol=1e-5)


TRANSFORMS = {
    "vjp": lambda f, x: vjp(f, x)[0],
    "jvp": lambda f, x: functx.jvp(f, (x,), (np.zeros(3),))[0],
    "linearize": lambda f, x: linearize(f, x)[0],
    "vmap": lambda f, x: vmap(f)(x[None])[0],
    "jit": lambda f, x: jit(f)(x),
    "checkpoint": lambda f, x: functx.checkpoint(f)(x),
    "functionalize": lambda f, x: functx.functionalize(f)(x),
    "cond": lambda f, x: functx.lax.cond(True, f, lambda x: x, x),
    "cond around": lambda f, x: functx.lax.cond(True, lambda: f(x), lambda: x),
    "switch": lambda f, x: functx.lax.switch(0, [lambda: f(x)]),
    "loop": lambda f, x: functx.lax.fori_loop(0, 1, lambda i, c: f(x), np.zeros(3), unroll=True),
    "scan": lambda f, x: functx.lax.scan(lambda c, _: (f(x), None), x, length=1, unroll=True)[0],
    "value_and_grad": lambda f, x: functx.value_and_grad(lambda x: (x.sum(), f(x)), has_aux=True)(
        x
    )[0][1],
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_result_that_shows_an_argument_keeps_its_value_when_that_is_written_back(transform):
    def backwards(x):
        x[...] = x[::-1]
        return x

    x = ramp()
    close(jit(lambda x: transform(backwards, x))(x), [3, 2, 1])
    close(x, [3, 2, 1])


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_result_that_shows_an_argument_does_not_follow_later_writes(transform):
    def f(x):
        result = transform(lambda x: x[::-1], x)
        x[0] = 100.0
        result[1] = 7.0
        return result, x * 1.0

    result, x = jit(f)(ramp())
    close(result, [3, 7, 1])
    close(x, [100, 2, 3])


def half_squares(x):
    y = (x * x).sum() / 2
    x[0] = 100.0
    return y


DERIVATIVES = {
    "grad": lambda x: grad(half_squares)(x),
    "vjp": lambda x: vjp(half_squares, x)[1](1.0)[0],
    "linearize": lambda x: vmap(linearize(half_squares, x)[1])(np.eye(3)),
    "jacfwd": lambda x: functx.jacfwd(half_squares)(x),
    "jacrev": lambda x: functx.jacrev(half_squares)(x),
}


@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES)
def test_derivatives_in_a_function_that_writes_are_taken_before_the_write(derivative):
    x = ramp()
    close(jit(derivative)(x), [1, 2, 3])
    close(x, [100, 2, 3])


def test_a_pushed_tangent_does_not_follow_the_tangent_given():
    def f(x, t):
        _, push = linearize(lambda x: x[::-1], x)
        pushed = push(t)
        t[0] = 5.0
        return pushed

    close(jit(f)(ramp(), ramp()), [3, 2, 1])


@pytest.mark.parametrize("transform", [vmap, jit, functx.checkpoint, functx.functionalize])
def test_arguments_that_are_exchanged_are_read_before_either_is_written(transform):
    def exchange(x, y):
        kept = x[..., ::-1].copy()
        x[...] = y[..., ::-1]
        y[...] = kept

    x, y = ramp()[None], 10 * ramp()[None]
    jit(lambda x, y: transform(exchange)(x, y))(x, y)
    close(x, [[30, 20, 10]])
    close(y, [[3, 2, 1]])


def test_a_result_that_is_an_array_around_a_branch_does_not_follow_writes():
    def f(x):
        old = x.copy()
        x[0] = 50.0
        return old

    def branch(x):
        return functx.lax.cond(x[1] > 0, lambda: functx.functionalize(f)(x), lambda: x)

    x = ramp()
    close(jit(branch)(x), ramp())
    close(x, [50, 2, 3])
