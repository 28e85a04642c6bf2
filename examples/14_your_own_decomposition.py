"""A decomposition of your own: look at how it replaces an operation in every transform."""

import numpy as onp

import functx
import functx.numpy as np
from functx import decomp, grad, jit, make_ir, nn, vmap
from functx.testing import check_rules


def names(fun, *args):
    """The operations in the program of `fun`."""
    return {eqn.primitive.name for eqn in make_ir(fun)(*args)}


def loss(weights, x, label):
    return -np.log(nn.softmax(x @ weights)[label])


random = onp.random.RandomState(0)
weights = random.randn(4, 3).astype("float32")
xs, labels = random.randn(8, 4).astype("float32"), random.randint(0, 3, 8)
gradients = jit(vmap(grad(loss), in_axes=(None, 0, 0)))
ours = gradients(weights, xs, labels)

# A softmax is one equation, until it is opened up.
print(make_ir(loss)(weights, xs[0], 1))
print(make_ir(functx.decompose(loss))(weights, xs[0], 1))
assert "softmax" in names(loss, weights, xs[0], 1)
assert "softmax" not in names(functx.decompose(loss), weights, xs[0], 1)

with decomp.scoped():

    @decomp.register("softmax")
    def softmax_of_powers_of_two(x, axes):
        """2**x in place of e**x, as hardware with a quick exp2 has it."""
        powers = np.exp2((x - x.max(axes, keepdims=True)) / np.log(2.0))
        return powers / powers.sum(axes, keepdims=True)

    # What was compiled with the earlier one is forgotten; its rules, too, are replaced.
    theirs = gradients(weights, xs, labels)
    assert "exp2" in names(grad(loss), weights, xs[0], 1)
    # Against ours, against differences, and against a loop.
    check_rules(functx.Primitive.registry["softmax"], 0)

assert decomp.lookup("softmax") is not softmax_of_powers_of_two
assert np.allclose(theirs, ours, atol=1e-5)
