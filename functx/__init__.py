"""Functional transformations of NumPy-style programs that you can read."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from jax import Array as Array

from functx.core.caches import garbage_collection as _garbage_collection

with _garbage_collection.paused_for_import():
    from functx.core import errors, tree
    from functx.core.caches import cache_info, clear_caches
    from functx.core.config import config
    from functx.core.missing_names import load_on_first_use as _load_on_first_use
    from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
    from functx.core.primitive import Primitive
    from functx.core.program import Program
    from functx.core.tracebacks import install_excepthook as _filter_tracebacks
    from functx.core.types import ShapedArray, float0

if _TYPE_CHECKING:
    from functx import (
        aot,
        aten,
        autograd,
        compiled_autograd,
        custom_batching,
        custom_derivatives,
        debug,
        decomp,
        effects,
        export,
        lax,
        library,
        lowering,
        nn,
        numpy,
        ops,
        random,
        scipy,
        testing,
        tools,
    )
    from functx.api import *
    from functx.custom.operators.definition import custom_op
    from functx.interop.jax_trace import from_jax
    from functx.lowering.shard_map import shard_map
    from functx.module_calls import create_functional_call, functional_call, stack_module_state

__all__ = [
    "ArrayWrapper",
    "Primitive",
    "Program",
    "ShapedArray",
    "aot",
    "aten",
    "autograd",
    "cache_info",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "clear_caches",
    "compiled_autograd",
    "config",
    "create_functional_call",
    "custom_batching",
    "custom_derivatives",
    "custom_jvp",
    "custom_op",
    "custom_vjp",
    "custom_vmap",
    "debug",
    "decomp",
    "decompose",
    "effects",
    "effects_barrier",
    "errors",
    "eval_shape",
    "export",
    "float0",
    "from_jax",
    "functional_call",
    "functionalize",
    "grad",
    "grad_and_value",
    "hessian",
    "hook_grad",
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
    "stack_module_state",
    "stop_gradient",
    "testing",
    "tools",
    "trace",
    "tree",
    "value_and_grad",
    "vjp",
    "vmap",
]

_suggest_alternatives("jax", __name__)
_load_on_first_use(
    __name__,
    modules=(
        *(
            "aot",
            "aten",
            "autograd",
            "compiled_autograd",
            "custom",
            "custom_batching",
            "custom_derivatives",
            "debug",
            "decomp",
            "effects",
            "export",
        ),
        *("interop", "lax", "library", "lowering", "nn", "numpy", "ops", "passes", "random"),
        *("scipy", "testing", "tools", "transforms"),
    ),
    names={
        "create_functional_call": "functx.module_calls",
        "custom_op": "functx.custom.operators.definition",
        "from_jax": "functx.interop.jax_trace",
        "functional_call": "functx.module_calls",
        "shard_map": "functx.lowering.shard_map",
        "stack_module_state": "functx.module_calls",
    },
    others="functx.api",
)

_filter_tracebacks()
