"""A type of arrays of your own: a matrix of low rank, whose products never form it. Look at the program."""

import numpy as onp

import functx
import functx.numpy as np
from functx import grad, jit, vmap


class LowRank(functx.ArrayWrapper):
    """The product of a tall and a wide matrix, or of stacks of them."""

    def __init__(self, tall, wide):
        self.tall, self.wide = tall, wide

    @property
    def shape(self):
        return (*self.tall.shape[:-1], self.wide.shape[-1])

    def __functx_flatten__(self):
        return ("tall", "wide"), None

    @staticmethod
    def __functx_unflatten__(inner, meta, shape):
        return LowRank(inner["tall"], inner["wide"])

    @staticmethod
    def __functx_axes__(axis, ndim, meta):
        """A matrix of a stack has both factors, and a row of a matrix a row of the tall one."""
        if axis < ndim - 2:
            return axis, axis
        return (0, None) if axis == 0 and ndim == 2 else NotImplemented

    def __functx_dispatch__(self, op, types, args, params):
        if (
            op.name == "dot_general"
            and args[0] is self
            and params["contracting_dims"] == ((1,), (0,))
        ):
            return op(self.tall, op(self.wide, args[1], **params), **params)
        if op.name == "permute_dims" and params["axes"] == (1, 0):
            return LowRank(self.wide.T, self.tall.T)
        # All other operations get the whole matrix.
        return op(*[x.tall @ x.wide if isinstance(x, LowRank) else x for x in args], **params)


random = onp.random.RandomState(0)
weights = LowRank(random.randn(500, 2).astype("float32"), random.randn(2, 400).astype("float32"))
x, y = random.randn(400).astype("float32"), random.randn(500).astype("float32")
assert np.allclose(weights @ x, weights.tall @ (weights.wide @ x), atol=1e-3)


def loss(w, x, y):
    return np.mean((w @ x - y) ** 2)


# The program has no array of 500 x 400, and neither has that of the gradient, which is of low rank too.
program = functx.make_ir(grad(loss))(weights, x, y)
print(program)
assert max(v.aval.size for eqn in program for v in eqn.outputs) <= 1000
slope = jit(grad(loss))(weights, x, y)
assert isinstance(slope, LowRank) and slope.tall.shape == (500, 2)

# Code for matrices takes it: operators, functions, other transforms.
norms = vmap(np.linalg.norm)(np.asarray([x, 2 * x]))
assert isinstance(weights.T, LowRank) and weights.T.shape == (400, 500)
scaled = (weights.T @ y) / norms[0]
assert scaled.shape == (400,) and float(np.max(np.abs(weights))) > 0

# A row of the matrix has the whole wide factor.
rows = vmap(lambda row: np.tanh(row) @ x)(weights)
assert np.allclose(rows, np.tanh(weights.tall @ weights.wide) @ x, atol=1e-3)

# Five of them, trained at once.
stack = LowRank(
    random.randn(5, 500, 2).astype("float32"), random.randn(5, 2, 400).astype("float32")
)
slopes = vmap(grad(loss), in_axes=(0, None, None))(stack, x, y)
trained = functx.tree.map(lambda w, slope: w - 1e-4 * slope, stack, slopes)
losses = vmap(loss, in_axes=(0, None, None))
print(losses(stack, x, y).mean(), losses(trained, x, y).mean())
assert np.all(losses(trained, x, y) < losses(stack, x, y))
