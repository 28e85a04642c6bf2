"""The public functions of functx, and the hooks of the core. The first use of one imports this module."""

from functx.core.caches import garbage_collection as _garbage_collection

with _garbage_collection.paused_for_import():
    from functx import lax, lowering, numpy, ops  # noqa: F401 - set hooks and register primitives
    from functx.core.wrappers import ArrayWrapper as ArrayWrapper
    from functx.custom import checkpoint_policies as checkpoint_policies
    from functx.custom.checkpoint import checkpoint as checkpoint
    from functx.custom.checkpoint import remat as remat
    from functx.custom.closure_convert import closure_convert as closure_convert
    from functx.custom.closure_convert import custom_gradient as custom_gradient
    from functx.custom.custom_jvp import custom_jvp as custom_jvp
    from functx.custom.custom_vjp import custom_vjp as custom_vjp
    from functx.custom.custom_vmap import custom_vmap as custom_vmap
    from functx.custom.hook_grad import hook_grad as hook_grad
    from functx.interop import jax_trace as _jax_trace  # noqa: F401 - sets hooks
    from functx.lowering.fwd_and_bwd import fwd_and_bwd as fwd_and_bwd
    from functx.lowering.jax_bridge import effects_barrier as effects_barrier
    from functx.lowering.jit import jit as jit
    from functx.lowering.named_scopes import named_call as named_call
    from functx.lowering.named_scopes import named_scope as named_scope
    from functx.ops.autodiff import checkpoint_name as checkpoint_name
    from functx.ops.autodiff import stop_gradient as stop_gradient
    from functx.ops.callbacks import io_callback as io_callback
    from functx.ops.callbacks import pure_callback as pure_callback
    from functx.sparse.modes import hessian as hessian
    from functx.sparse.modes import jacobian as jacobian
    from functx.transforms.decompose import decompose as decompose
    from functx.transforms.explore import explore as explore
    from functx.transforms.grad import grad as grad
    from functx.transforms.grad import grad_and_value as grad_and_value
    from functx.transforms.grad import value_and_grad as value_and_grad
    from functx.transforms.jacobian import hvp as hvp
    from functx.transforms.jacobian import jacfwd as jacfwd
    from functx.transforms.jacobian import jacrev as jacrev
    from functx.transforms.jet import jet as jet
    from functx.transforms.jet import taylor as taylor
    from functx.transforms.jvp import jvp as jvp
    from functx.transforms.jvp import linearize as linearize
    from functx.transforms.jvp import vjp as vjp
    from functx.transforms.laplacian import biharmonic as biharmonic
    from functx.transforms.laplacian import differential_operator as differential_operator
    from functx.transforms.laplacian import laplacian as laplacian
    from functx.transforms.laplacian import value_grad_and_laplacian as value_grad_and_laplacian
    from functx.transforms.linear_transpose import linear_transpose as linear_transpose
    from functx.transforms.make_ir import eval_shape as eval_shape
    from functx.transforms.make_ir import functionalize as functionalize
    from functx.transforms.make_ir import make_ir as make_ir
    from functx.transforms.make_ir import make_jaxpr as make_jaxpr
    from functx.transforms.make_ir import trace as trace
    from functx.transforms.per_example import clipped_sum as clipped_sum
    from functx.transforms.per_example import per_example_grad as per_example_grad
    from functx.transforms.per_example import per_example_norms as per_example_norms
    from functx.transforms.vmap import vmap as vmap
