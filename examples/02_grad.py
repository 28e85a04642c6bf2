"""Derivatives of plain Python: look at how `if` and `while` on values just work without `jit`."""

import functx
from functx import grad, value_and_grad


def newton_root(a):
    """The square root of `a`, by as many steps as it takes."""
    x = a
    while abs(x * x - a) > 1e-6 * a:
        x = 0.5 * (x + a / x)
    return x


value, slope = value_and_grad(newton_root)(2.0)
print(f"sqrt(2) = {value:.6f}, and its derivative {slope:.6f}")
assert abs(slope - 0.5 / 2**0.5) < 1e-5

# Derivatives nest, and the gradient is itself a program to read.
curvature = grad(grad(lambda x: x**3 + 2.0 * x))
print(functx.make_ir(curvature)(3.0))
assert curvature(3.0) == 18.0
