"""Libraries written for JAX, called as they are inside functx's transforms."""

import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as onp
import pytest

import functx as fx

optax = pytest.importorskip("optax")
eqx = pytest.importorskip("equinox")
nn = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")

KEY = jax.random.key(0)
ROWS = jax.random.normal(KEY, (4, 3))
PARAMS = {"w": jnp.array([[0.3, -0.2], [0.5, 0.1], [-0.4, 0.7]]), "b": jnp.array([0.1, -0.3])}


def close(got, want, what=""):
    jax.tree.map(
        partial(onp.testing.assert_allclose, rtol=2e-4, atol=2e-5, err_msg=what), got, want
    )


def check(loss, params, rows, mapped=True):
    """Gradients of `loss(params, row)` under each stack of transforms are those of JAX."""
    slope = jax.jit(jax.grad(loss))
    want = slope(params, rows[0])
    close(fx.grad(loss)(params, rows[0]), want, "grad")
    close(fx.jit(fx.grad(loss))(params, rows[0]), want, "jit(grad)")
    if not mapped:
        return
    every = fx.vmap(fx.grad(loss), in_axes=(None, 0))(params, rows)
    close(every, jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0)))(params, rows), "vmap(grad)")


def loss(params, row):
    return jnp.sum(jnp.tanh(row @ params["w"] + params["b"]) ** 2)


OPTIMIZERS = {
    "adam": lambda: optax.adam(1e-2),
    "adamw": lambda: optax.adamw(optax.cosine_decay_schedule(1e-2, 10)),
    "a chain": lambda: optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.scale_by_rms(),
        optax.scale_by_schedule(optax.linear_schedule(0.1, 0.0, 5)),
        optax.scale(-1.0),
    ),
}


def test_the_tutorial_trains_with_optax():
    def error(w, x, y):
        return ((x @ w - y) ** 2).mean()

    page = Path(__file__).parents[2] / "docs" / "tutorial.md"
    (block,) = re.findall(r"```py\n(.*?)```", page.read_text(), re.DOTALL)
    names = {"jit": fx.jit, "grad": fx.grad, "loss": error, "x": ROWS, "y": ROWS.sum(1)}
    names["w"] = onp.zeros(3, "float32")
    exec(block, names)
    assert error(names["w"], ROWS, ROWS.sum(1)) < 1e-3


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_optax(name):
    optimizer = OPTIMIZERS[name]()

    def train(grad, jit, params):
        def step(params, state):
            updates, state = optimizer.update(grad(loss)(params, ROWS[0]), state, params)
            return optax.apply_updates(params, updates), state

        state = optimizer.init(params)
        for _ in range(3):
            params, state = jit(step)(params, state)
        return params

    want = train(jax.grad, jax.jit, PARAMS)
    close(train(fx.grad, fx.jit, PARAMS), want, "steps")
    close(fx.jit(partial(train, fx.grad, lambda f: f))(PARAMS), want, "a loop")
    outer = lambda train: lambda params: loss(train(params), ROWS[1])  # noqa: E731
    meta = jax.jit(jax.grad(outer(partial(train, jax.grad, lambda f: f))))(PARAMS)
    close(fx.grad(outer(partial(train, fx.grad, lambda f: f)))(PARAMS), meta, "through training")


def test_lbfgs_of_optax():
    optimizer = optax.lbfgs()

    def train(value_and_grad, params):
        fun = partial(loss, row=ROWS[0])
        state = optimizer.init(params)
        for _ in range(2):
            value, slope = value_and_grad(fun)(params)
            updates, state = optimizer.update(
                slope, state, params, value=value, grad=slope, value_fn=fun
            )
            params = optax.apply_updates(params, updates)
        return params

    close(fx.jit(partial(train, fx.value_and_grad))(PARAMS), train(jax.value_and_grad, PARAMS))


def test_models_of_equinox():
    model = eqx.nn.MLP(3, 2, 8, 2, key=KEY)
    arrays, static = eqx.partition(model, eqx.is_inexact_array)

    def of_model(arrays, row):
        return jnp.sum(eqx.combine(arrays, static)(row) ** 2)

    check(of_model, arrays, ROWS)

    def mixed(arrays, row):
        slopes = eqx.filter_grad(lambda m: jnp.sum(m(row) ** 2))(eqx.combine(arrays, static))
        outs = eqx.filter_vmap(eqx.filter_jit(eqx.combine(slopes, static)))(ROWS)
        return jnp.sum(outs**2)

    check(mixed, arrays, ROWS)


def test_loops_of_equinox():
    def halved(params, row):
        out = eqx.internal.while_loop(
            lambda c: jnp.max(c) > 0.1,
            lambda c: c * jnp.tanh(params["b"][0]) * 0.5,
            row,
            max_steps=16,
            kind="checkpointed",
        )
        return jnp.sum(out)

    check(halved, PARAMS, ROWS, mapped=False)


class ConvNet(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Conv(4, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        x = nn.max_pool(nn.relu(x), (2, 2), strides=(2, 2))
        return nn.Dense(2)(x.reshape(x.shape[0], -1))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x))
        return x + nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x))))


def test_a_convolutional_network_of_linen_with_batch_norm():
    images = jax.random.normal(KEY, (2, 3, 6, 6, 1))
    net = ConvNet()
    variables = net.init(KEY, images[0], train=True)

    def of_net(params, x):
        given = {"params": params, "batch_stats": variables["batch_stats"]}
        out, new = net.apply(given, x, train=True, mutable=["batch_stats"])
        return jnp.sum(out**2) + sum(jnp.sum(s) for s in jax.tree.leaves(new))

    check(of_net, variables["params"], images)


def test_a_transformer_block_of_linen():
    tokens = jax.random.normal(KEY, (2, 5, 8))
    block = Block()
    variables = block.init(KEY, tokens[0])
    check(lambda params, x: jnp.sum(block.apply(params, x) ** 2), variables, tokens)


def test_models_of_nnx():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)
            self.out = nnx.Linear(4, 2, rngs=rngs)

        def __call__(self, x):
            x = nnx.relu(self.norm(self.conv(x)))
            return self.out(x.mean((1, 2)))

    images = jax.random.normal(KEY, (2, 3, 6, 6, 1))
    graph, params, rest = nnx.split(Net(nnx.Rngs(0)), nnx.Param, ...)

    def of_net(params, x):
        return jnp.sum(nnx.merge(graph, params, rest, copy=True)(x) ** 2)

    check(of_net, params, images)


@pytest.mark.parametrize("name", ["hmc", "nuts"])
def test_samplers_of_blackjax(name):
    blackjax = pytest.importorskip("blackjax")
    data = jnp.array([0.3, -0.5, 1.2])

    def log_density(np, at):
        return -0.5 * np.sum((at["x"] - data) ** 2) - 0.5 * at["s"] ** 2 * np.cosh(at["x"][0])

    def samples(density, scan, key, start):
        options = {"num_integration_steps": 2} if name == "hmc" else {"max_num_doublings": 2}
        kernel = getattr(blackjax, name)(density, 0.2, jnp.ones(4), **options)

        def step(state, key):
            state, info = kernel.step(key, state)
            return state, (state.position, info.acceptance_rate)

        last, path = scan(step, kernel.init(start), jax.random.split(key, 3))
        return path, last.logdensity_grad

    start = {"x": jnp.zeros((2, 3)), "s": jnp.array([0.1, 0.4])}
    keys = jax.random.split(jax.random.key(1), 2)
    chains = partial(samples, partial(log_density, jnp))
    want = jax.jit(jax.vmap(partial(chains, jax.lax.scan)))(keys, start)
    ours = partial(samples, fx.jit(partial(log_density, fx.numpy)))
    close(fx.jit(fx.vmap(partial(ours, fx.lax.scan)))(keys, start), want)
    one = jax.tree.map(lambda x: x[1], start)
    found = fx.jit(partial(chains, jax.lax.scan))(keys[1], one)
    close(found, jax.tree.map(lambda x: x[1], want))
    if name == "hmc":
        last = lambda scan, x: jnp.sum(chains(scan, keys[0], one | {"x": x})[0][0]["x"])  # noqa: E731
        slope = jax.jit(jax.grad(partial(last, jax.lax.scan)))(one["x"])
        close(fx.jit(fx.grad(partial(last, fx.lax.scan)))(one["x"]), slope)
