"""Training steps of whole networks: functx's layers against JAX's functions, or formulas in them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import functx

WIDTH, HEADS, LENGTH, BATCH, WORDS = 128, 4, 128, 8, 256
CHANNELS = 16, 32, 64


def layer_norm(x: Any, gain: Any, bias: Any) -> Any:
    mean, variance = jnp.mean(x, -1, keepdims=True), jnp.var(x, -1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gain + bias


def batch_norm(x: Any, gain: Any, bias: Any) -> Any:
    axes = (0, 1, 2)
    mean, variance = jnp.mean(x, axes), jnp.var(x, axes)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gain + bias


def cross_entropy(logits: Any, target: Any) -> Any:
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), target[..., None], -1)
    return -jnp.mean(picked)


def own_batch_norm(x: Any, gain: Any, bias: Any) -> Any:
    channels_first = x.transpose(0, 3, 1, 2)
    still = functx.numpy.zeros(x.shape[-1], "float32")
    out, _, _ = functx.nn.batch_norm(channels_first, still, still, gain, bias, training=True)
    return out.transpose(0, 2, 3, 1)


IN_JAX = SimpleNamespace(
    np=jnp,
    grad=jax.grad,
    jit=jax.jit,
    layer_norm=layer_norm,
    batch_norm=batch_norm,
    attention=jax.nn.dot_product_attention,
    gelu=jax.nn.gelu,
    relu=jax.nn.relu,
    cross_entropy=cross_entropy,
    conv=jax.lax.conv_general_dilated,
)
IN_FUNCTX = SimpleNamespace(
    np=functx.numpy,
    grad=functx.grad,
    jit=functx.jit,
    layer_norm=lambda x, gain, bias: functx.nn.layer_norm(x, WIDTH, gain, bias),
    batch_norm=own_batch_norm,
    attention=functx.nn.dot_product_attention,
    gelu=functx.nn.gelu,
    relu=functx.nn.relu,
    cross_entropy=lambda x, y: functx.nn.cross_entropy(x.reshape(-1, x.shape[-1]), y.reshape(-1)),
    conv=functx.lax.conv_general_dilated,
)


def transformer_loss(fx: Any, params: Any, words: Any, target: Any) -> Any:
    x = params["embedding"][words]
    for block in params["blocks"]:
        h = fx.layer_norm(x, *block["norm"]) @ block["in"]
        q, k, v = [
            part.reshape(BATCH, LENGTH, HEADS, WIDTH // HEADS)
            for part in fx.np.split(h, 3, axis=-1)
        ]
        attended = fx.attention(q, k, v, is_causal=True).reshape(BATCH, LENGTH, WIDTH)
        x = x + attended @ block["out"]
        h = fx.gelu(fx.layer_norm(x, *block["second_norm"]) @ block["wide"])
        x = x + h @ block["narrow"]
    return fx.cross_entropy(x @ params["embedding"].T, target)


def convolutional_loss(fx: Any, params: Any, x: Any, target: Any) -> Any:
    for kernel, gain, bias in params["layers"]:
        x = fx.conv(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = fx.relu(fx.batch_norm(x, gain, bias))
    return fx.cross_entropy(x.mean((1, 2)) @ params["last"], target)


def training_step(fx: Any, loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(params: Any, x: Any, y: Any) -> Any:
        gradients = fx.grad(lambda params: loss(fx, params, x, y))(params)
        return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, gradients)

    return fx.jit(step)  # type: ignore[no-any-return]


def given() -> dict[str, Any]:
    """The loss of each network, and what a step takes."""
    random = np.random.RandomState(0)

    def normal(*shape: int) -> Any:
        return jnp.asarray(0.05 * random.randn(*shape), "float32")

    norm = jnp.ones(WIDTH), jnp.zeros(WIDTH)
    blocks = [
        {
            "norm": norm,
            "in": normal(WIDTH, 3 * WIDTH),
            "out": normal(WIDTH, WIDTH),
            "second_norm": norm,
            "wide": normal(WIDTH, 4 * WIDTH),
            "narrow": normal(4 * WIDTH, WIDTH),
        }
        for _ in range(4)
    ]
    text = random.randint(0, WORDS, (BATCH, LENGTH + 1))
    sizes = zip((3, *CHANNELS), CHANNELS, strict=False)
    layers = [(normal(3, 3, a, b), jnp.ones(b), jnp.zeros(b)) for a, b in sizes]
    images = jnp.asarray(random.randn(32, 32, 32, 3), "float32")
    return {
        "transformer": (
            transformer_loss,
            ({"embedding": normal(WORDS, WIDTH), "blocks": blocks}, text[:, :-1], text[:, 1:]),
        ),
        "convolutional": (
            convolutional_loss,
            (
                {"layers": layers, "last": normal(CHANNELS[-1], 10)},
                images,
                random.randint(0, 10, 32),
            ),
        ),
    }


def task(name: str) -> Callable[[Any], Callable[[], Any]]:
    def of(fx: Any) -> Callable[[], Any]:
        loss, args = given()[name]
        step = training_step(IN_JAX if fx.name == "JAX" else IN_FUNCTX, loss)
        return lambda: step(*args)

    return of


def temporary_bytes(name: str) -> tuple[int, int]:
    """What a step needs besides arguments and results, of functx's and of JAX's."""
    loss, args = given()[name]
    ours, theirs = [
        training_step(fx, loss).lower(*args).compile().memory_analysis().temp_size_in_bytes
        for fx in (IN_FUNCTX, IN_JAX)
    ]
    return ours, theirs


NETWORKS = {name: (task(name), 1.0) for name in ("transformer", "convolutional")}
