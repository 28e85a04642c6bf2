"""The names that tasks are written in, for functx, for JAX, and for peers where they are installed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.scipy
import numpy as np

import functx

Namespace = SimpleNamespace


def _same(x: Any) -> Any:
    return x


def _namespace(name: str, version: str, fx: Any, trace: Any, scipy: Any) -> Namespace:
    return Namespace(
        name=name,
        version=version,
        np=fx.numpy,
        nn=fx.nn,
        lax=fx.lax,
        random=fx.random,
        ops=fx.ops,
        image=fx.image,
        scipy=scipy,
        grad=fx.grad,
        value_and_grad=fx.value_and_grad,
        jacfwd=fx.jacfwd,
        hessian=fx.hessian,
        vmap=fx.vmap,
        jit=fx.jit,
        trace=lambda f, *args: trace(f)(*args),
        given=_same,
        finish=jax.block_until_ready,
    )


JAX = _namespace("JAX", jax.__version__, jax, jax.make_jaxpr, jax.scipy)
FUNCTX = _namespace("functx", "", functx, functx.make_ir, functx.scipy)


def converted(array: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that makes `array(x)` of each NumPy array `x` of a tree of JAX's arrays."""
    return lambda tree: jax.tree_util.tree_map(lambda x: array(np.array(x)), tree)


def torch(compiled: bool = False) -> Namespace:
    """PyTorch's `torch.func`, with `torch.compile` for `jit` if `compiled`."""
    library = importlib.import_module("torch")
    functional = importlib.import_module("torch.nn.functional")
    trace = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx
    library.set_num_threads(2)

    def vmap(f: Any, in_axes: Any = 0) -> Any:
        return library.func.vmap(f, in_dims=in_axes)

    return Namespace(
        name="torch-compile" if compiled else "torch",
        version=library.__version__,
        np=library,
        nn=Namespace(
            log_softmax=lambda x: functional.log_softmax(x, -1),
            gelu=lambda x: functional.gelu(x, approximate="tanh"),
        ),
        grad=library.func.grad,
        vmap=vmap,
        jit=library.compile if compiled else _same,
        hessian=library.func.hessian,
        trace=lambda f, *args: trace(f)(*args),
        given=converted(library.as_tensor),
        finish=_same,
    )


def mlx() -> Namespace:
    """MLX, whose arrays are computed when they are asked for."""
    core = importlib.import_module("mlx.core")
    layers = importlib.import_module("mlx.nn")

    def finish(result: Any) -> Any:
        core.eval(result)
        return result

    return Namespace(
        name="mlx",
        version=core.__version__,
        np=core,
        nn=Namespace(log_softmax=layers.log_softmax, gelu=layers.gelu_approx),
        grad=core.grad,
        vmap=core.vmap,
        jit=core.compile,
        given=converted(core.array),
        finish=finish,
    )


def autograd() -> Namespace:
    """HIPS autograd, which wraps NumPy."""
    library = importlib.import_module("autograd")
    numpy = importlib.import_module("autograd.numpy")
    logsumexp = importlib.import_module("autograd.scipy.special").logsumexp
    metadata = importlib.import_module("importlib.metadata")

    def gelu(x: Any) -> Any:
        return 0.5 * x * (1 + numpy.tanh(0.7978845608 * (x + 0.044715 * x**3)))

    return Namespace(
        name="autograd",
        version=metadata.version("autograd"),
        np=numpy,
        nn=Namespace(log_softmax=lambda x: x - logsumexp(x, axis=-1, keepdims=True), gelu=gelu),
        grad=library.grad,
        jit=_same,
        hessian=library.hessian,
        given=converted(_same),
        finish=_same,
    )


FRAMEWORKS: dict[str, Callable[[], Namespace]] = {
    "functx": lambda: FUNCTX,
    "jax": lambda: JAX,
    "torch": torch,
    "torch-compile": lambda: torch(compiled=True),
    "mlx": mlx,
    "autograd": autograd,
}
