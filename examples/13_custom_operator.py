"""An operator that NumPy computes: look at its rules, and at the equation that its derivatives solve."""

from functools import partial

import numpy

import functx.numpy as np
from functx import Array, custom_op, grad, jit, make_ir, vmap
from functx.testing import opcheck


@custom_op("bessel::j", mutates_args=(), kernel="numpy")
def j(x: Array, order: int) -> Array:
    """Bessel's function of the first kind: the mean of cos(order t - x sin t) over a turn."""
    t = numpy.linspace(0, numpy.pi, 200, endpoint=False) + numpy.pi / 400
    return numpy.cos(order * t - x[..., None] * numpy.sin(t)).mean(-1).astype(x.dtype)


# A program knows types before it runs: the result is like x.
@j.def_abstract
def j_type(x, order):
    return x


# 2 J'(n) = J(n - 1) - J(n + 1): the rule calls the operator, and so has derivatives of its own.
def setup_context(ctx, inputs, output):
    x, ctx.order = inputs
    ctx.save_for_backward(x)


def backward(ctx, g):
    (x,) = ctx.saved_tensors
    return g * (j(x, ctx.order - 1) - j(x, ctx.order + 1)) / 2, None


j.register_autograd(backward, setup_context=setup_context)


# It works element by element, so a batch is one call.
@j.def_vmap
def j_batch(info, in_dims, x, order):
    return j(x, order), in_dims[0]


x = np.linspace(0.5, 8.0, 6)
print(make_ir(grad(lambda x: j(x, 2)))(1.0))
print(opcheck(j, (x, 2)))


# Bessel's equation: x^2 y'' + x y' + (x^2 - n^2) y = 0.
def equation(x, order):
    y = partial(j, order=order)
    return x**2 * grad(grad(y))(x) + x * grad(y)(x) + (x**2 - order**2) * y(x)


for order in range(3):
    residual = jit(vmap(partial(equation, order=order)))(x)
    assert np.allclose(residual, 0.0, atol=1e-3)
