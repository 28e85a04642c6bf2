"""A `Function` with rules of its own: look at `vmap`, which solves for many right-hand sides at once."""

import jax
import numpy as onp

import functx
import functx.numpy as np
from functx.autograd import Function, Variable, gradcheck


class Solve(Function):
    """The solution of matrix @ x = b, for a vector or a matrix b."""

    @staticmethod
    def forward(matrix, b):
        return np.linalg.solve(matrix, b)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, gradient):
        """The gradient of b solves the transposed system; that of the matrix follows from it."""
        matrix, x = ctx.saved_tensors
        of_b = Solve.apply(matrix.T, gradient)
        of_matrix = -np.outer(of_b, x) if x.ndim == 1 else -of_b @ x.T
        return of_matrix, of_b

    @staticmethod
    def vmap(info, in_dims, matrix, b):
        """One matrix is factorized once: the vectors of the batch become the columns of b."""
        of_matrix, of_b = in_dims
        print(f"{info.batch_size} systems at once, along dimensions {in_dims}")
        if of_matrix is not None or b.ndim != 2:
            raise NotImplementedError("batches of matrices are left to you")
        return Solve.apply(matrix, np.moveaxis(b, of_b, -1)), 1


random = onp.random.RandomState(0)
matrix, vectors = random.randn(3, 3) + 3 * onp.eye(3), random.randn(5, 3)

# On Variables a call is one node.
a, b = (Variable(value, requires_grad=True) for value in (matrix, vectors[0]))
x = Solve.apply(a, b)
print(x.grad_fn.name())
x.sum().backward()
assert np.allclose(a.grad, -np.outer(b.grad, x), atol=1e-5)

# Transforms use the rules, too.
solve_all = functx.vmap(Solve.apply, in_axes=(None, 0))
assert np.allclose(solve_all(matrix, vectors), np.linalg.solve(matrix, vectors.T).T, atol=1e-5)
per_system = functx.vmap(functx.grad(lambda v: (Solve.apply(matrix, v) ** 2).sum()))(vectors)
inverse = onp.linalg.inv(matrix)
assert np.allclose(per_system, 2 * vectors @ inverse.T @ inverse, atol=1e-4)

with jax.enable_x64():
    a, b = (Variable(value, requires_grad=True) for value in (matrix, vectors[0]))
    assert gradcheck(Solve.apply, (a, b))
