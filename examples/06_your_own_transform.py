"""A transform of your own: one rewrite of a program, here from `exp` and `log` to base two."""

import functools

import functx.numpy as np
from functx import grad, jit, make_ir
from functx.ops.transcendental import Exp, exp2

LN2 = 0.6931471805599453


def base_two(eqn, *args):
    """Rewrite e to the x as 2 to the x / ln 2, and leave other equations."""
    if isinstance(eqn.primitive, Exp):
        return exp2(args[0] * (1.0 / LN2))
    return NotImplemented


def in_base_two(fun):
    """`fun`, computed without `exp`."""

    @functools.wraps(fun)
    def wrapper(*args):
        return make_ir(fun)(*args).rewrite(base_two)(*args)

    return wrapper


def energy(x):
    return np.log(np.exp(x).sum())


x = np.array([0.5, 1.0, 2.0])
print(make_ir(in_base_two(energy))(x))

# The result is a function like any other: transforms compose with it on both sides.
assert np.allclose(in_base_two(energy)(x), energy(x))
assert np.allclose(jit(grad(in_base_two(energy)))(x), grad(energy)(x))
assert "exp " not in str(make_ir(in_base_two(energy))(x))
assert not any(isinstance(e.primitive, Exp) for e in make_ir(in_base_two(grad(energy)))(x))
