"""One gradient an example, in one program: look at how `vmap` moved into the products."""

import numpy as onp

import functx
import functx.numpy as np
from functx import grad, jit, vmap


def loss(weights, x, y):
    return ((np.tanh(x @ weights) - y) ** 2).sum()


random = onp.random.RandomState(0)
weights = random.randn(4, 3).astype("float32")
xs, ys = random.randn(8, 4).astype("float32"), random.randn(8, 3).astype("float32")

per_example = vmap(grad(loss), in_axes=(None, 0, 0))
gradients = jit(per_example)(weights, xs, ys)
print(functx.make_ir(per_example)(weights, xs, ys))
print("norms:", np.sqrt((gradients**2).sum(axis=(1, 2))))

assert gradients.shape == (8, 4, 3)
for i in range(8):
    assert np.allclose(gradients[i], grad(loss)(weights, xs[i], ys[i]), atol=1e-5)
