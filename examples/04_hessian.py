"""Second derivatives three ways: in full, along a direction, and as a function of one's own."""

import numpy as onp

import functx.numpy as np
from functx import grad, hessian, hvp, jacfwd, jvp


def rosenbrock(x):
    return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2).sum()


x = onp.array([1.2, 0.9, 1.1], "float32")
v = onp.array([1.0, 0.0, -1.0], "float32")

full = hessian(rosenbrock)(x)
along = hvp(rosenbrock, (x,), (v,))[0]
print(full)
print("along v:", along)

assert np.allclose(full, full.T, rtol=1e-5)
assert np.allclose(full @ v, along, rtol=1e-4)
assert np.allclose(jacfwd(grad(rosenbrock))(x), full, rtol=1e-5)
assert np.allclose(jvp(grad(rosenbrock), (x,), (v,))[1], along, rtol=1e-5)
