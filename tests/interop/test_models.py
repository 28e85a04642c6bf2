"""A model written in pure JAX, as libraries write them, trained by functx."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as onp
import pytest
from jax import lax, nn

import functx as fx


@jax.tree_util.register_pytree_node_class
class Linear:
    def __init__(self, weight, bias, activation):
        self.weight, self.bias, self.activation = weight, bias, activation

    @classmethod
    def make(cls, key, fan_in, fan_out, activation=None):
        weight = jr.normal(key, (fan_in, fan_out), "float32") * fan_in**-0.5
        return cls(weight, jnp.zeros(fan_out, "float32"), activation)

    def tree_flatten(self):
        return (self.weight, self.bias), self.activation

    @classmethod
    def tree_unflatten(cls, activation, leaves):
        return cls(*leaves, activation)

    def __call__(self, x):
        out = x @ self.weight + self.bias
        return out if self.activation is None else self.activation(out)


def dropout(key, x, rate=0.2):
    return jnp.where(jr.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


def layer_norm(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5)


def initial(key):
    keys = jr.split(key, 4)
    return {
        "kernel": jr.normal(keys[0], (4, 1, 3), "float32") * 0.5,
        "recurrent": Linear.make(keys[1], 4 + 8, 8, jnp.tanh),
        "hidden": Linear.make(keys[2], 8, 8, nn.gelu),
        "out": Linear.make(keys[3], 8, 2),
    }


def model(params, x, key):
    """A convolution over time, an RNN, and a head with dropout."""
    features = lax.conv_general_dilated(x[:, None, :], params["kernel"], (1,), "SAME")
    steps = jnp.moveaxis(nn.relu(features), 2, 0)

    @jax.checkpoint
    def step(state, row):
        return params["recurrent"](jnp.concatenate([row, state], 1)), None

    state, _ = lax.scan(step, jnp.zeros((x.shape[0], 8), "float32"), steps)
    return params["out"](dropout(key, params["hidden"](layer_norm(state))))


def loss(params, x, labels, key):
    logits = jax.vmap(nn.log_softmax)(model(params, x, key))
    return -jnp.mean(jnp.take_along_axis(logits, labels[:, None], 1))


RANDOM = onp.random.RandomState(0)
ROWS = RANDOM.randn(16, 6).astype("float32")
LABELS = (ROWS[:, :3].sum(1) > ROWS[:, 3:].sum(1)).astype("int32")


def test_its_gradient_is_the_one_of_jax():
    params, key = initial(jr.key(0)), jr.key(1)
    wanted = jax.jit(jax.value_and_grad(loss))(params, ROWS, LABELS, key)
    given = fx.jit(lambda *args: fx.value_and_grad(fx.from_jax(loss))(*args, key))(
        params, ROWS, LABELS
    )
    assert jax.tree.structure(wanted) == jax.tree.structure(given)
    for a, b in zip(jax.tree.leaves(given), jax.tree.leaves(wanted), strict=True):
        onp.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


def test_it_trains():
    @fx.jit
    def step(params, words):
        value, grads = fx.value_and_grad(fx.from_jax(loss))(params, ROWS, LABELS, words)
        return value, fx.tree.map(lambda p, g: p - 0.3 * g, params, grads)

    params, losses = initial(jr.key(0)), []
    for i in range(40):
        value, params = step(params, fx.random.key(i))
        losses.append(float(value))
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
    assert isinstance(params["hidden"], Linear) and params["hidden"].activation is nn.gelu


def test_gradients_of_single_examples():
    params = initial(jr.key(0))

    def one(params, x, label):
        return fx.from_jax(lambda p, x, y: loss(p, x[None], y[None], jr.key(2)))(params, x, label)

    given = fx.vmap(fx.grad(one), in_axes=(None, 0, 0))(params, ROWS[:3], LABELS[:3])
    slope = jax.jit(jax.grad(loss))
    for i in range(3):
        wanted = slope(params, ROWS[i][None], LABELS[i][None], jr.key(2))
        for a, b in zip(jax.tree.leaves(given), jax.tree.leaves(wanted), strict=True):
            onp.testing.assert_allclose(a[i], b, rtol=5e-4, atol=1e-5)


# Libraries, where they are installed.


def blobs():
    labels = RANDOM.randint(0, 2, 32)
    return (RANDOM.randn(32, 2) + 3 * labels[:, None]).astype("float32"), labels.astype("int32")


WHY = "an extra of functx: pip install functx[interop]"


def test_a_model_of_flax_trains_with_optax():
    linen = pytest.importorskip("flax.linen", reason=WHY)
    optax = pytest.importorskip("optax", reason=WHY)

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.relu(linen.Dense(8)(x))
            return linen.Dense(2)(linen.LayerNorm()(x))

    net, (x, labels) = Net(), blobs()
    params = net.init(jr.PRNGKey(0), x)
    optimizer = optax.adam(0.05)

    def loss(params, x, labels):
        logits = net.apply(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @fx.jit
    def step(params, state, x, labels):
        value, grads = fx.value_and_grad(fx.from_jax(loss))(params, x, labels)
        updates, state = fx.from_jax(optimizer.update)(grads, state, params)
        return value, fx.from_jax(optax.apply_updates)(params, updates), state

    state, losses = optimizer.init(params), []
    for _ in range(30):
        value, params, state = step(params, state, x, labels)
        losses.append(float(value))
    assert losses[-1] < 0.3 * losses[0]


def test_a_model_of_equinox_trains():
    eqx = pytest.importorskip("equinox", reason=WHY)
    x, labels = blobs()
    model = eqx.nn.MLP(in_size=2, out_size=2, width_size=8, depth=1, key=jr.PRNGKey(0))
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(params, x, labels):
        logits = jax.vmap(eqx.combine(params, static))(x)
        return -jnp.mean(nn.log_softmax(logits)[jnp.arange(len(labels)), labels])

    @fx.jit
    def step(params, x, labels):
        value, grads = fx.value_and_grad(fx.from_jax(loss))(params, x, labels)
        return value, fx.tree.map(lambda p, g: p - 0.3 * g, params, grads)

    losses = []
    for _ in range(30):
        value, params = step(params, x, labels)
        losses.append(float(value))
    assert losses[-1] < 0.5 * losses[0]
