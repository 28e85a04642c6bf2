"""Small programs of every transform, to be computed on two devices and compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import functx
import functx.numpy as fnp
from functx import checkpoint, grad, hessian, jit, jvp, lax, nn, random, vmap

_random = np.random.RandomState(0)


def normal(*shape: int) -> Any:
    return _random.randn(*shape).astype("float32")


X, W, ROWS, V = normal(8, 16), 0.3 * normal(16, 16), normal(12, 8, 16), normal(16)
IMAGES, KERNELS = normal(2, 3, 8, 8), normal(4, 3, 3, 3)
HEADS = normal(2, 32, 4, 8)
PLACES = _random.randint(0, 8, 20)


def loss(w: Any, x: Any) -> Any:
    return fnp.sum(fnp.tanh(fnp.tanh(x @ w) @ w) ** 2)


def scanned(w: Any, rows: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = fnp.tanh(h @ w + x)
        return h, h[0]

    return fnp.sum(lax.scan(step, fnp.zeros((8, 16), "float32"), rows)[1] ** 2)


def unrolled(w: Any, rows: Any) -> Any:
    h = fnp.zeros((8, 16), "float32")
    for x in rows:
        h = fnp.tanh(h @ w + x)
    return fnp.sum(h**2)


def settled(x: Any) -> Any:
    def unsettled(pair: Any) -> Any:
        return fnp.abs(pair[0] - pair[1]).max() > 1e-4

    return lax.while_loop(unsettled, lambda p: (fnp.cos(p[0]), p[0]), (x, x + 1.0))[0]


def chosen(x: Any) -> Any:
    return lax.cond(fnp.sum(x) > 0, fnp.sin, lambda x: x**2, x)


def filled(x: Any) -> Any:
    y = fnp.zeros(16, "float32")
    for i in range(1, 16):
        y[i] = 0.9 * fnp.sin(y[i - 1]) + x[i]
    y[::2] *= 2.0
    return fnp.sum(y**2)


@functx.custom_vjp
def clipped(x: Any) -> Any:
    return x


clipped.defvjp(lambda x: (x, None), lambda _, ct: (fnp.clip(ct, -0.1, 0.1),))


def symmetric(w: Any) -> Any:
    return w @ w.T + fnp.eye(16, dtype="float32")


def on_host(x: Any) -> Any:
    return functx.pure_callback(lambda x: np.asarray(x) * 2, x, x)


# What is computed, and its arguments.
CHECKS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "grad": (grad(loss), (W, X)),
    "vmap of grad": (vmap(grad(loss), in_axes=(None, 0)), (W, X)),
    "grad of vmap": (grad(lambda w, x: vmap(loss, in_axes=(None, 0))(w, x).sum()), (W, X)),
    "jvp of grad": (lambda w, x: jvp(grad(loss), (w, x), (w, x)), (W, X)),
    "hessian": (hessian(lambda v: fnp.sum(fnp.sin(v) ** 2) * fnp.sum(v)), (V,)),
    "grad of scan": (grad(scanned, (0, 1)), (W, ROWS)),
    "vmap of while_loop": (vmap(settled), (X,)),
    "vmap of grad of cond": (vmap(grad(lambda x: fnp.sum(chosen(x)))), (X,)),
    "writes": (vmap(grad(filled)), (X,)),
    "custom rule": (grad(lambda x: fnp.sum(clipped(x) ** 2)), (X,)),
    "checkpoint": (grad(lambda w, x: checkpoint(loss)(w, x) ** 2), (W, X)),
    "attention": (grad(lambda q: fnp.sum(nn.dot_product_attention(q, q, q) ** 2)), (HEADS,)),
    "norms and losses": (
        grad(lambda w, x: nn.cross_entropy(nn.layer_norm(x @ w, 16), np.arange(8))),
        (W, X),
    ),
    "convolution": (
        grad(lambda x, k: fnp.sum(lax.conv_general_dilated(x, k, (1, 1), "SAME") ** 2), (0, 1)),
        (IMAGES, KERNELS),
    ),
    "linear algebra": (
        grad(
            lambda w: fnp.sum(fnp.linalg.solve(symmetric(w), w) + fnp.linalg.cholesky(symmetric(w)))
        ),
        (W,),
    ),
    "fft": (grad(lambda x: fnp.sum(fnp.abs(fnp.fft.fft(x)) ** 2)), (X,)),
    "sort and indices": (
        grad(lambda x: fnp.sum(fnp.sort(x[PLACES], axis=0) * x[PLACES])),
        (X,),
    ),
    "random bits": (lambda x: x + random.normal(random.key(3), x.shape), (X,)),
    "callback": (on_host, (X,)),
    "donation": (jit(lambda x: x + 1.0, donate_argnums=0), (X,)),
    "unrolled loop": (jit(grad(unrolled, (0, 1)), outline="always"), (W, ROWS)),
    "calls": (
        jit(grad(lambda ws, x: fnp.sum(sum(fnp.tanh(x @ w) + x for w in ws))), outline="always"),
        ([W * 0.1 * i for i in range(8)], X),
    ),
}
