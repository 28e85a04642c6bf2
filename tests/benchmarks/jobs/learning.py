"""Networks and their training."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import numpy as np

NHWC = "NHWC", "HWIO", "NHWC"


def normals(seed: int = 1) -> Any:
    """A function that draws arrays of normal numbers of a shape, times `scale`."""
    random = np.random.RandomState(seed)
    return lambda *shape, scale=1.0: (random.randn(*shape) * scale).astype("float32")


def integers(limit: int, *shape: int) -> Any:
    return np.random.RandomState(2).randint(0, limit, shape).astype("int32")


def layers(normal: Any, *sizes: int, scale: float = 0.3) -> Any:
    return [(normal(a, b, scale=scale), normal(b, scale=0.1)) for a, b in pairwise(sizes)]


def network(fx: Any, params: Any, x: Any) -> Any:
    for w, b in params[:-1]:
        x = fx.np.tanh(x @ w + b)
    return x @ params[-1][0] + params[-1][1]


def gpt(fx: Any) -> Any:
    """A step of Adam on a causal transformer of six layers."""
    depth, width, heads, length, batch, words = 6, 128, 4, 128, 4, 96
    np_, tree_map = fx.np, jax.tree.map

    def norm(x: Any, gain: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) / np_.sqrt(variance + 1e-5) * gain

    def block(p: Any, x: Any) -> Any:
        h = norm(x, p["first"])
        q, k, v = [
            np_.reshape(h @ p[name], (batch, length, heads, width // heads)) for name in "qkv"
        ]
        scores = np_.einsum("bthd,bshd->bhts", q, k) / (width // heads) ** 0.5
        scores = np_.where(np_.tril(np_.ones((length, length), bool)), scores, -1e30)
        mixed = np_.einsum("bhts,bshd->bthd", fx.nn.softmax(scores, -1), v)
        x = x + np_.reshape(mixed, (batch, length, width)) @ p["out"]
        return x + fx.nn.gelu(norm(x, p["second"]) @ p["wide"]) @ p["narrow"]

    def loss(params: Any, tokens: Any) -> Any:
        x = params["words"][tokens[:, :-1]]
        for p in params["blocks"]:
            x = block(p, x)
        found = fx.nn.log_softmax(norm(x, params["last"]) @ params["words"].T, -1)
        return -np_.take_along_axis(found, tokens[:, 1:, None], -1).mean()

    def step(params: Any, first: Any, second: Any, tokens: Any) -> Any:
        value, gradient = fx.value_and_grad(loss)(params, tokens)
        first = tree_map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
        second = tree_map(lambda v, g: 0.99 * v + 0.01 * g * g, second, gradient)
        moved = tree_map(lambda p, m, v: p - 1e-3 * m / (np_.sqrt(v) + 1e-8), params, first, second)
        return value, moved, first, second

    normal, ones = normals(), np.ones(width, "float32")
    sizes = dict.fromkeys(("q", "k", "v", "out"), (width, width))
    sizes |= {"wide": (width, 4 * width), "narrow": (4 * width, width)}
    blocks = [
        {"first": ones, "second": ones}
        | {name: normal(*size, scale=0.05) for name, size in sizes.items()}
        for _ in range(depth)
    ]
    params = {"words": normal(words, width, scale=0.05), "last": ones, "blocks": blocks}
    zeros = tree_map(np.zeros_like, params)
    return step, (params, zeros, zeros, integers(words, batch, length + 1))


def resnet(fx: Any) -> Any:
    """The gradient of a residual convolutional network."""

    def conv(x: Any, w: Any, stride: int = 1) -> Any:
        return fx.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=NHWC)

    def norm(x: Any, gain: Any) -> Any:
        mean = x.mean((0, 1, 2))
        return (x - mean) / fx.np.sqrt(((x - mean) ** 2).mean((0, 1, 2)) + 1e-5) * gain

    def loss(params: Any, x: Any, y: Any) -> Any:
        x = fx.nn.relu(norm(conv(x, params["first"]), params["gain"]))
        for w1, g1, w2, g2, shortcut in params["blocks"]:
            h = fx.nn.relu(norm(conv(x, w1, 1 if shortcut is None else 2), g1))
            x = x if shortcut is None else conv(x, shortcut, 2)
            x = fx.nn.relu(norm(conv(h, w2), g2) + x)
        found = fx.nn.log_softmax(x.mean((1, 2)) @ params["out"])
        return -fx.np.take_along_axis(found, y[:, None], 1).mean()

    normal, blocks = normals(), []
    for a, b in pairwise((16, 16, 16, 32, 32, 64, 64)):
        weights = normal(3, 3, a, b, scale=0.1), normal(3, 3, b, b, scale=0.1)
        shortcut = normal(1, 1, a, b, scale=0.3) if a != b else None
        gain = np.ones(b, "float32")
        blocks.append((weights[0], gain, weights[1], gain, shortcut))
    params = {
        "first": normal(3, 3, 3, 16, scale=0.2),
        "gain": np.ones(16, "float32"),
        "blocks": blocks,
        "out": normal(64, 10, scale=0.1),
    }
    return fx.value_and_grad(loss), (params, normal(16, 32, 32, 3), integers(10, 16))


def convnext(fx: Any) -> Any:
    """A training step of three blocks of depthwise convolutions and layer norms."""
    width = 24

    def conv(x: Any, w: Any, stride: int = 1, groups: int = 1) -> Any:
        return fx.lax.conv_general_dilated(
            x, w, (stride, stride), "SAME", dimension_numbers=NHWC, feature_group_count=groups
        )

    def norm(x: Any, gain: Any, bias: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        variance = x.var(-1, keepdims=True)
        return (x - mean) / fx.np.sqrt(variance + 1e-6) * gain + bias

    def loss(params: Any, x: Any, y: Any) -> Any:
        x = norm(conv(x, params["stem"], 4), *params["first"])
        for p in params["blocks"]:
            h = norm(conv(x, p["depthwise"], 1, width), *p["norm"])
            h = fx.nn.gelu(h @ p["wide"] + p["bias"]) @ p["narrow"]
            x = x + p["scale"] * h
        found = fx.nn.log_softmax(norm(x.mean((1, 2)), *params["last"]) @ params["out"])
        return -fx.np.take_along_axis(found, y[:, None], 1).mean()

    def step(params: Any, momentum: Any, x: Any, y: Any) -> Any:
        value, gradient = fx.value_and_grad(loss)(params, x, y)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        return value, jax.tree.map(lambda p, m: p - 1e-2 * m, params, momentum), momentum

    normal = normals()
    affine = np.ones(width, "float32"), np.zeros(width, "float32")
    blocks = [
        {
            "depthwise": normal(7, 7, 1, width, scale=0.1),
            "norm": affine,
            "wide": normal(width, 4 * width, scale=0.2),
            "bias": normal(4 * width, scale=0.1),
            "narrow": normal(4 * width, width, scale=0.1),
            "scale": np.full(width, 0.1, "float32"),
        }
        for _ in range(3)
    ]
    params = {
        "stem": normal(4, 4, 3, width, scale=0.2),
        "first": affine,
        "blocks": blocks,
        "last": affine,
        "out": normal(width, 10, scale=0.2),
    }
    zeros = jax.tree.map(np.zeros_like, params)
    return step, (params, zeros, normal(8, 32, 32, 3), integers(10, 8))


def per_example_convolutions(fx: Any) -> Any:
    """The sum of the clipped gradients of 64 images in a convolutional network."""

    def conv(x: Any, w: Any) -> Any:
        return fx.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)

    def loss(params: Any, x: Any, y: Any) -> Any:
        h = fx.nn.relu(conv(x[None], params[0]))
        h = fx.nn.relu(conv(h, params[1])).mean((1, 2))
        return -fx.nn.log_softmax(h @ params[2])[0, y]

    def clipped(params: Any, x: Any, y: Any) -> Any:
        gradients = fx.vmap(fx.grad(loss), (None, 0, 0))(params, x, y)
        squares = sum((g.reshape(len(x), -1) ** 2).sum(1) for g in gradients)
        scale = fx.np.minimum(1.0, 1.0 / fx.np.sqrt(squares))
        return [fx.np.tensordot(scale, g, 1) for g in gradients]

    normal = normals()
    params = [
        normal(3, 3, 1, 16, scale=0.3),
        normal(3, 3, 16, 32, scale=0.1),
        normal(32, 10, scale=0.1),
    ]
    return clipped, (params, normal(64, 14, 14, 1), integers(10, 64))


def message_passing(fx: Any) -> Any:
    """The gradient of a network on a graph of 500 nodes and 4,000 edges."""
    nodes, edges, width = 500, 4000, 32

    def loss(params: Any, x: Any, sources: Any, targets: Any, y: Any) -> Any:
        for w, u, v, b in params:
            message = fx.nn.relu(x[sources] @ w + x[targets] @ u)
            received = fx.ops.segment_sum(message, targets, num_segments=nodes)
            x = fx.np.tanh(x @ v + received + b)
        return ((x.mean(0) - y) ** 2).sum()

    normal = normals()
    params = [
        (*[normal(width, width, scale=0.2) for _ in range(3)], normal(width)) for _ in range(3)
    ]
    ends = integers(nodes, 2, edges)
    return fx.value_and_grad(loss), (params, normal(nodes, width), *ends, normal(width))


def graph_attention(fx: Any) -> Any:
    """The gradient of two layers of attention over the 3,000 edges of a graph of 400 nodes."""
    nodes, edges, heads, width = 400, 3000, 4, 16

    def softmax(scores: Any, targets: Any) -> Any:
        greatest = fx.ops.segment_max(scores, targets, num_segments=nodes)
        exponentials = fx.np.exp(scores - greatest[targets])
        total = fx.ops.segment_sum(exponentials, targets, num_segments=nodes)
        return exponentials / total[targets]

    def layer(p: Any, x: Any, sources: Any, targets: Any) -> Any:
        h = (x @ p["w"]).reshape(nodes, heads, width)
        leaving, arriving = (h * p["source"]).sum(-1), (h * p["target"]).sum(-1)
        scores = fx.nn.leaky_relu(leaving[sources] + arriving[targets], 0.2)
        messages = softmax(scores, targets)[:, :, None] * h[sources]
        received = fx.ops.segment_sum(messages, targets, num_segments=nodes)
        return received.reshape(nodes, heads * width) + p["bias"]

    def loss(params: Any, x: Any, sources: Any, targets: Any, y: Any) -> Any:
        x = fx.nn.elu(layer(params[0], x, sources, targets))
        found = fx.nn.log_softmax(layer(params[1], x, sources, targets)[:, :7])
        return -fx.np.take_along_axis(found, y[:, None], 1).mean()

    normal = normals()
    params = [
        {
            "w": normal(size, heads * width, scale=0.2),
            "source": normal(heads, width, scale=0.3),
            "target": normal(heads, width, scale=0.3),
            "bias": normal(heads * width, scale=0.1),
        }
        for size in (32, heads * width)
    ]
    ends = integers(nodes, 2, edges)
    return fx.value_and_grad(loss), (params, normal(nodes, 32), *ends, integers(7, nodes))


def meta_learning(fx: Any) -> Any:
    """The gradient through three steps of gradient descent on each of 16 tasks (MAML)."""

    def loss(params: Any, x: Any, y: Any) -> Any:
        return ((network(fx, params, x) - y) ** 2).mean()

    def after_steps(params: Any, x: Any, y: Any, x_test: Any, y_test: Any) -> Any:
        for _ in range(3):
            gradient = fx.grad(loss)(params, x, y)
            params = jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient)
        return loss(params, x_test, y_test)

    def mean(params: Any, *tasks: Any) -> Any:
        return fx.vmap(after_steps, (None, 0, 0, 0, 0))(params, *tasks).mean()

    normal = normals()
    tasks = [normal(16, 10, 1) for _ in range(4)]
    return fx.value_and_grad(mean), (layers(normal, 1, 40, 40, 1), *tasks)


def physics_informed(fx: Any) -> Any:
    """The gradient of the residual of a Poisson equation at 256 points."""

    def u(params: Any, x: Any) -> Any:
        return network(fx, params, x)[0]

    def residual(params: Any, x: Any) -> Any:
        return fx.np.trace(fx.hessian(u, 1)(params, x)) + fx.np.sin(x).sum()

    def loss(params: Any, xs: Any) -> Any:
        return (fx.vmap(residual, (None, 0))(params, xs) ** 2).mean()

    normal = normals()
    return fx.value_and_grad(loss), (layers(normal, 4, 64, 64, 64, 1), normal(256, 4))


def denoiser(fx: Any) -> Any:
    """A training step of a diffusion model: noise at random times, and Adam."""

    def loss(params: Any, key: Any, x: Any) -> Any:
        first, second = fx.random.split(key)
        t = fx.random.uniform(first, (len(x), 1))
        noise = fx.random.normal(second, x.shape)
        noised = fx.np.cos(1.5 * t) * x + fx.np.sin(1.5 * t) * noise
        waves = fx.np.concatenate([fx.np.sin(t * 2.0**k) for k in range(8)], 1)
        found = network(fx, params, fx.np.concatenate([noised, waves], 1))
        return ((found - noise) ** 2).mean()

    def step(params: Any, moments: Any, key: Any, x: Any) -> Any:
        value, gradient = fx.value_and_grad(loss)(params, key, x)
        moments = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments, gradient)
        return value, jax.tree.map(lambda p, m: p - 1e-3 * m, params, moments), moments

    normal = normals()
    params = layers(normal, 40, 256, 256, 32, scale=0.1)
    key = jax.random.PRNGKey(0)
    return step, (params, jax.tree.map(np.zeros_like, params), key, normal(256, 32))


JOBS = (
    gpt,
    resnet,
    convnext,
    per_example_convolutions,
    message_passing,
    graph_attention,
    meta_learning,
    physics_informed,
    denoiser,
)
