"""Functional transformations of NumPy-style programs that you can read."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from jax import Array as Array

from functx.core.garbage_collection import garbage_collection as _garbage_collection

with _garbage_collection.paused_for_import():
    from functx import lax, lowering, numpy, ops
    from functx.core import errors, tree
    from functx.core.caches import cache_info, clear_caches
    from functx.core.config import config
    from functx.core.missing_names import load_on_first_use as _load_on_first_use
    from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
    from functx.core.primitive import Primitive
    from functx.core.program import Program
    from functx.core.tracebacks import install_excepthook as _filter_tracebacks
    from functx.core.types import ShapedArray, float0
    from functx.custom import checkpoint_policies
    from functx.custom.checkpoint import checkpoint, remat
    from functx.custom.custom_jvp import custom_jvp
    from functx.custom.custom_vjp import custom_vjp
    from functx.custom.custom_vmap import custom_vmap
    from functx.interop import jax_trace as _jax_trace
    from functx.lowering.callbacks import effects_barrier
    from functx.lowering.jit import jit
    from functx.ops.autodiff import checkpoint_name, stop_gradient
    from functx.ops.callbacks import io_callback, pure_callback
    from functx.transforms.decompose import decompose
    from functx.transforms.grad import grad, value_and_grad
    from functx.transforms.jacobian import hessian, hvp, jacfwd, jacrev
    from functx.transforms.jvp import jvp, linearize, vjp
    from functx.transforms.linear_transpose import linear_transpose
    from functx.transforms.make_ir import eval_shape, functionalize, make_ir
    from functx.transforms.vmap import vmap

if _TYPE_CHECKING:
    from functx import (
        aot,
        aten,
        custom_batching,
        custom_derivatives,
        debug,
        decomp,
        library,
        nn,
        random,
        scipy,
        testing,
        tools,
    )
    from functx.custom.operators.definition import custom_op
    from functx.interop.from_jax import from_jax
    from functx.lowering.shard_map import shard_map

__all__ = [
    "Primitive",
    "Program",
    "ShapedArray",
    "aot",
    "aten",
    "cache_info",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "clear_caches",
    "config",
    "custom_batching",
    "custom_derivatives",
    "custom_jvp",
    "custom_op",
    "custom_vjp",
    "custom_vmap",
    "debug",
    "decomp",
    "decompose",
    "effects_barrier",
    "errors",
    "eval_shape",
    "float0",
    "from_jax",
    "functionalize",
    "grad",
    "hessian",
    "hvp",
    "io_callback",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "lax",
    "library",
    "linear_transpose",
    "linearize",
    "lowering",
    "make_ir",
    "nn",
    "numpy",
    "ops",
    "pure_callback",
    "random",
    "remat",
    "scipy",
    "shard_map",
    "stop_gradient",
    "testing",
    "tools",
    "tree",
    "value_and_grad",
    "vjp",
    "vmap",
]

for _original, _module in (
    ("jax", "functx"),
    ("jax.lax", "functx.lax"),
    ("jax.numpy", "functx.numpy"),
    ("jax.numpy.fft", "functx.numpy.fft"),
    ("jax.numpy.linalg", "functx.numpy.linalg"),
    ("jax.ops", "functx.ops"),
):
    _suggest_alternatives(_original, _module)

_load_on_first_use(
    __name__,
    modules=(
        *("aot", "aten", "custom_batching", "custom_derivatives", "debug", "decomp", "library"),
        *("nn", "random", "scipy", "testing", "tools"),
    ),
    names={
        "custom_op": "functx.custom.operators.definition",
        "from_jax": "functx.interop.from_jax",
        "shard_map": "functx.lowering.shard_map",
    },
)

_filter_tracebacks()
