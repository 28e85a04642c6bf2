"""Training on many devices: look at how one step runs divided by XLA, and by hand.

On a machine with one device, run it with XLA_FLAGS=--xla_force_host_platform_device_count=8.
"""

import jax
import numpy as onp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import functx
import functx.numpy as np
from functx import lax


def loss(layers, x, y):
    first, second = layers
    return ((np.tanh(x @ first) @ second - y) ** 2).mean()


def descended(layers, grads):
    return [w - 0.3 * g for w, g in zip(layers, grads, strict=True)]


@functx.jit
def step(layers, x, y):
    value, grads = functx.value_and_grad(loss)(layers, x, y)
    return value, descended(layers, grads)


def step_on_each_device(layers, x, y):
    """The step on some rows of the batch, with some units of the hidden layer."""

    def total(layers):
        first, second = layers
        out = lax.psum(np.tanh(x @ first) @ second, "units")
        return lax.pmean(((out - y) ** 2).mean(), "rows")

    value, grads = functx.value_and_grad(total)(layers)
    return value, descended(layers, grads)


def a_mesh():
    """All devices, two of them along the units if there are as many."""
    units = 2 - jax.device_count() % 2
    shape = jax.device_count() // units, units
    return jax.make_mesh(shape, ("rows", "units"), axis_types=(AxisType.Auto,) * 2)


def main():
    random = onp.random.RandomState(0)
    x = random.randn(64, 4).astype("float32")
    y = onp.sin(x.sum(1, keepdims=True))
    layers = [0.5 * random.randn(*shape).astype("float32") for shape in ((4, 16), (16, 1))]
    mesh = a_mesh()
    parts = [P(None, "units"), P("units")]
    specs = {"in_specs": (parts, P("rows"), P("rows")), "out_specs": (P(), parts)}
    by_hand = functx.jit(functx.shard_map(step_on_each_device, mesh=mesh, **specs))

    divided = [jax.device_put(a, NamedSharding(mesh, P("rows"))) for a in (x, y)]
    places = [NamedSharding(mesh, part) for part in parts]
    plain, by_xla, mapped = layers, jax.device_put(layers, places), layers
    for _ in range(40):
        # Simulated devices share a few threads, so one program at a time.
        first, plain = jax.block_until_ready(step(plain, x, y))
        second, by_xla = jax.block_until_ready(step(by_xla, *divided))
        third, mapped = jax.block_until_ready(by_hand(mapped, x, y))

    print(
        f"{jax.device_count()} devices: loss {float(first):.4f}, {float(second):.4f}, {float(third):.4f}"
    )
    print("second layer:", mapped[1].sharding.spec)
    assert first < 0.1
    assert np.allclose(first, second, rtol=1e-2) and np.allclose(first, third, rtol=1e-2)


if __name__ == "__main__":
    main()
