"""A primitive of your own: one class, and every transform knows it."""

from jax.extend.mlir.dialects import stablehlo

import functx
import functx.numpy as np
from functx import grad, jit, vmap
from functx.ops import Unary
from functx.testing import check_rules, f32, sample


class Softsign(Unary):
    """x / (1 + |x|)."""

    accepts = "f"
    samples = (sample(f32[3, 4], nonzero=(0,)),)

    def derivative(self, out, x):
        return (1.0 - abs(out)) ** 2

    def lower(self, ctx, x):
        one = ctx.constant(1.0, ctx.avals_in[0])
        return stablehlo.divide(x, stablehlo.add(one, stablehlo.abs(x)))


def softsign(x):
    """x / (1 + |x|), elementwise."""
    return Softsign()(x)


x = np.linspace(-2.0, 2.0, 5)
print(functx.make_ir(grad(lambda x: softsign(x).sum()))(x))
assert np.allclose(jit(vmap(grad(softsign)))(x), (1.0 - abs(softsign(x))) ** 2)

# Its rules against each other, against differences, and against a loop.
check_rules(Softsign)
