"""Functional transformations of NumPy-style programs that you can read."""

from functx import lax, lowering, nn, numpy, ops, random, testing
from functx.core import errors, tree
from functx.core.avals import ShapedArray
from functx.core.config import config
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.custom.checkpoint import checkpoint, remat
from functx.custom.custom_jvp import custom_jvp
from functx.custom.custom_vjp import custom_vjp
from functx.lowering.cache import cache_info, clear_caches
from functx.lowering.jit import jit
from functx.ops.gradients import stop_gradient
from functx.transforms.functionalize import functionalize
from functx.transforms.grad import grad, value_and_grad
from functx.transforms.jacobian import hessian, hvp, jacfwd, jacrev
from functx.transforms.jvp import jvp, linearize
from functx.transforms.make_ir import eval_shape, make_ir
from functx.transforms.vjp import vjp
from functx.transforms.vmap import vmap

__all__ = [
    "Primitive",
    "Program",
    "ShapedArray",
    "cache_info",
    "checkpoint",
    "clear_caches",
    "config",
    "custom_jvp",
    "custom_vjp",
    "errors",
    "eval_shape",
    "functionalize",
    "grad",
    "hessian",
    "hvp",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "lax",
    "linearize",
    "lowering",
    "make_ir",
    "nn",
    "numpy",
    "ops",
    "random",
    "remat",
    "stop_gradient",
    "testing",
    "tree",
    "value_and_grad",
    "vjp",
    "vmap",
]
