"""Emitted operations that are repeated for later equations are repeated on the right operands."""

import jax
import numpy as np
import pytest
from jax.extend.mlir.dialects import stablehlo

import functx
import functx.numpy as xp
from functx.core.primitive import Primitive


class SameValue(Primitive, abstract=True):
    """The operand: the very MLIR value, in another Python object."""

    def abstract_eval(self, x):
        return x

    def lower(self, ctx, x):
        return stablehlo.AddOp(x, x).operands[0]


class SameValues(Primitive, abstract=True):
    """Both operands, likewise."""

    multiple_results = True

    def abstract_eval(self, x, y):
        return x, y

    def lower(self, ctx, x, y):
        return [*stablehlo.AddOp(x, y).operands]


class Between(Primitive, abstract=True):
    """`x` between a number of its own and `y`."""

    number: float
    flipped: bool = False

    def abstract_eval(self, x, y):
        return x

    def lower(self, ctx, x, y):
        bound = ctx.constant(self.number, ctx.avals_in[0])
        return stablehlo.clamp(*((y, x, bound) if self.flipped else (bound, x, y)))


def renamed_by_jax(x):
    same = jax.custom_batching.custom_vmap(lambda x: x)
    same.def_vmap(lambda size, batched, x: (x, batched[0]))
    return functx.from_jax(same)(x)


@pytest.mark.parametrize(
    ("fun", "right"),
    [
        (lambda x, y, z: (renamed_by_jax(x) + x, y + z), (2, 5)),
        (lambda x, y, z: (SameValue()(x) + x, y + z, z - y, y - SameValue()(y)), (2, 5, 1, 0)),
        (lambda x, y, z: (SameValues()(x, y)[1] - y, z - y), (0, 1)),
        (lambda x, y, z: (SameValues()(x, x)[1] * x, z * y, y * z * x), (1, 6, 6)),
        (lambda x, y, z: (Between(0.0)(x, 0.0), Between(0.0)(x, y)), (0, 1)),
        (lambda x, y, z: (Between(9.0, True)(z, 9.0), Between(9.0, True)(x, y)), (9, 2)),
        (lambda x, y, z: (Between(0.0)(x, x), Between(0.0)(y, x)), (1, 1)),
    ],
    ids=["custom_vmap", "value", "values", "twice", "least", "most", "operand-twice"],
)
def test_a_repeated_operation_takes_the_operands_of_its_own_equation(fun, right):
    assert tuple(float(y) for y in functx.jit(fun)(1.0, 2.0, 3.0)) == right


def swapped(x, y):
    """A step whose results are those of one call, in the other order."""
    sine, cosine = functx.jit(lambda x, y: (xp.sin(x) + y, xp.cos(y)))(x, y)
    return cosine, sine


def test_a_repeated_operation_gives_its_results_in_the_order_of_its_equation():
    def twice(x, y):
        once = functx.lax.scan(lambda c, _: (swapped(*c), None), (x, y), length=1)[0]
        return functx.lax.scan(lambda c, _: (swapped(*c), None), once, length=1)[0]

    np.testing.assert_allclose(functx.jit(twice)(3.0, 4.0), swapped(*swapped(3.0, 4.0)), rtol=1e-6)


def test_an_equation_whose_results_are_reshaped_is_not_repeated_without_the_reshape():
    def step(x, _):
        return functx.jit(lambda x: (xp.sin(x), xp.cos(x)))(x)

    def twice(x):
        x, first = functx.lax.scan(step, x, length=1)
        return first, functx.lax.scan(step, x, length=1)[1]

    wanted = [np.cos(3.0)], [np.cos(np.sin(3.0))]
    np.testing.assert_allclose(functx.jit(twice)(3.0), wanted, rtol=1e-6)


def test_the_two_zeros_are_two_constants():
    def f(x):
        return xp.copysign(x, 0.0), xp.copysign(x, -0.0), x + xp.array(0.0), 1 / (x * -0.0 - 0.0)

    x = np.ones(2, "float32")
    for i, expected in enumerate((1.0, -1.0, 1.0, -np.inf)):
        assert functx.jit(f)(x)[i].tolist() == [expected] * 2
