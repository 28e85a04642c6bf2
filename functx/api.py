"""The public functions of functx, and the hooks of the core. The first use of one imports this module."""

from functx.core.caches import garbage_collection as _garbage_collection

with _garbage_collection.paused_for_import():
    from functx import lax, lowering, numpy, ops  # noqa: F401 - set hooks and register primitives
    from functx.core.wrappers import ArrayWrapper
    from functx.custom import checkpoint_policies
    from functx.custom.checkpoint import checkpoint, remat
    from functx.custom.closure_convert import closure_convert, custom_gradient
    from functx.custom.custom_jvp import custom_jvp
    from functx.custom.custom_vjp import custom_vjp
    from functx.custom.custom_vmap import custom_vmap
    from functx.custom.hook_grad import hook_grad
    from functx.interop import jax_trace  # noqa: F401 - sets hooks
    from functx.lowering.fwd_and_bwd import fwd_and_bwd
    from functx.lowering.jax_bridge import effects_barrier
    from functx.lowering.jit import jit
    from functx.lowering.named_scopes import named_call, named_scope
    from functx.ops.autodiff import checkpoint_name, stop_gradient
    from functx.ops.callbacks import io_callback, pure_callback
    from functx.sparse.modes import hessian, jacobian
    from functx.transforms.decompose import decompose
    from functx.transforms.explore import explore
    from functx.transforms.grad import grad, grad_and_value, value_and_grad
    from functx.transforms.jacobian import hvp, jacfwd, jacrev
    from functx.transforms.jet import jet, taylor
    from functx.transforms.jvp import jvp, linearize, vjp
    from functx.transforms.laplacian import (
        biharmonic,
        differential_operator,
        laplacian,
        value_grad_and_laplacian,
    )
    from functx.transforms.linear_transpose import linear_transpose
    from functx.transforms.make_ir import eval_shape, functionalize, make_ir, make_jaxpr, trace
    from functx.transforms.per_example import clipped_sum, per_example_grad, per_example_norms
    from functx.transforms.vmap import vmap

__all__ = [
    "ArrayWrapper",
    "biharmonic",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "clipped_sum",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "custom_vmap",
    "decompose",
    "differential_operator",
    "effects_barrier",
    "eval_shape",
    "explore",
    "functionalize",
    "fwd_and_bwd",
    "grad",
    "grad_and_value",
    "hessian",
    "hook_grad",
    "hvp",
    "io_callback",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jet",
    "jit",
    "jvp",
    "laplacian",
    "linear_transpose",
    "linearize",
    "make_ir",
    "make_jaxpr",
    "named_call",
    "named_scope",
    "per_example_grad",
    "per_example_norms",
    "pure_callback",
    "remat",
    "stop_gradient",
    "taylor",
    "trace",
    "value_and_grad",
    "value_grad_and_laplacian",
    "vjp",
    "vmap",
]
