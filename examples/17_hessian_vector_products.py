"""Newton's method without the Hessian: its products with vectors, by dual numbers over reverse mode.

Look at `gradient_and_product`: a gradient of dual numbers is dual, and its tangent is the product.
"""

import numpy as onp

import functx
import functx.numpy as np
from functx.autograd import Variable, forward_ad, grad

random = onp.random.RandomState(0)
points = random.randn(40, 6).astype("float32")


def loss(x):
    return np.log(np.exp(points @ x).sum()) + (x**2).sum()


def gradient_and_product(x, v):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, v)
        (gradient,) = grad(loss(dual), dual)
        return forward_ad.unpack_dual(gradient)


def solve(x, gradient, steps=6):
    """The Newton step, by conjugate gradients: each step needs one product with the Hessian."""
    step, residual = np.zeros_like(gradient), -gradient
    direction = residual
    for _ in range(steps):
        product = gradient_and_product(x, direction).tangent
        length = (residual @ residual) / (direction @ product)
        step = step + length * direction
        new = residual - length * product
        direction = new + (new @ new) / (residual @ residual) * direction
        residual = new
    return step


x = Variable(onp.zeros(6, "float32"), requires_grad=True)
norms = []
for _ in range(3):
    (gradient,) = grad(loss(x), x)
    norms.append(float(np.linalg.norm(gradient)))
    x = (x + solve(x, gradient)).detach().requires_grad_()
print("norms of the gradient:", *[f"{norm:.1e}" for norm in norms])
assert norms[-1] < 1e-3 * norms[0]

# The transforms give the same product.
v = onp.arange(6, dtype="float32")
(expected,) = functx.hvp(loss, (x.numpy(),), (v,))
assert np.allclose(gradient_and_product(x, v).tangent, expected, atol=1e-5)
