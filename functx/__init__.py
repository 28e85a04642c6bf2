"""Functional transformations of NumPy-style programs that you can read."""

from pkgutil import iter_modules as _iter_modules
from typing import TYPE_CHECKING as _TYPE_CHECKING

# JAX's own names about devices, settings, types and profiling.
from jax import Array as Array
from jax import Device as Device
from jax import NamedSharding as NamedSharding
from jax import P as P
from jax import ShapeDtypeStruct as ShapeDtypeStruct
from jax import Shard as Shard

# Code written for JAX asks for its release.
from jax import __version__ as __version__
from jax import __version_info__ as __version_info__
from jax import allow_f16_reductions as allow_f16_reductions
from jax import array_garbage_collection_guard as array_garbage_collection_guard
from jax import auto_pcast as auto_pcast
from jax import block_until_ready as block_until_ready
from jax import check_tracer_leaks as check_tracer_leaks
from jax import checking_leaks as checking_leaks
from jax import copy_to_host_async as copy_to_host_async
from jax import debug_infs as debug_infs
from jax import debug_key_reuse as debug_key_reuse
from jax import debug_nans as debug_nans
from jax import default_backend as default_backend
from jax import default_device as default_device
from jax import default_matmul_precision as default_matmul_precision
from jax import default_prng_impl as default_prng_impl
from jax import device_count as device_count
from jax import device_get as device_get
from jax import device_put as device_put
from jax import devices as devices
from jax import disable_jit as disable_jit
from jax import ds as ds
from jax import enable_checks as enable_checks
from jax import enable_custom_prng as enable_custom_prng
from jax import enable_x64 as enable_x64
from jax import ensure_compile_time_eval as ensure_compile_time_eval
from jax import explain_cache_misses as explain_cache_misses
from jax import host_count as host_count
from jax import host_id as host_id
from jax import host_ids as host_ids
from jax import jax2tf_associative_scan_reductions as jax2tf_associative_scan_reductions
from jax import legacy_prng_key as legacy_prng_key
from jax import live_arrays as live_arrays
from jax import local_device_count as local_device_count
from jax import local_devices as local_devices
from jax import log_compiles as log_compiles
from jax import make_array_from_callback as make_array_from_callback
from jax import make_array_from_process_local_data as make_array_from_process_local_data
from jax import make_array_from_single_device_arrays as make_array_from_single_device_arrays
from jax import make_mesh as make_mesh
from jax import make_user_context as make_user_context
from jax import memory as memory
from jax import no_execution as no_execution
from jax import no_tracing as no_tracing
from jax import numpy_dtype_promotion as numpy_dtype_promotion
from jax import numpy_rank_promotion as numpy_rank_promotion
from jax import pmap as pmap
from jax import print_environment_info as print_environment_info
from jax import process_count as process_count
from jax import process_index as process_index
from jax import process_indices as process_indices
from jax import remove_size_one_mesh_axis_from_type as remove_size_one_mesh_axis_from_type
from jax import reshard as reshard
from jax import set_mesh as set_mesh
from jax import smap as smap
from jax import softmax_custom_jvp as softmax_custom_jvp
from jax import thread_guard as thread_guard
from jax import threefry_partitionable as threefry_partitionable
from jax import transfer_guard as transfer_guard
from jax import transfer_guard_device_to_device as transfer_guard_device_to_device
from jax import transfer_guard_device_to_host as transfer_guard_device_to_host
from jax import transfer_guard_host_to_device as transfer_guard_host_to_device
from jax import typeof as typeof

from functx.core.caches import garbage_collection as _garbage_collection

with _garbage_collection.paused_for_import():
    from functx.core.caches import cache_info, clear_caches
    from functx.core.config import config
    from functx.core.jax_modules import share_modules_of_jax as _share_modules_of_jax
    from functx.core.missing_names import load_on_first_use as _load_on_first_use
    from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
    from functx.core.primitive import Primitive
    from functx.core.program import Program
    from functx.core.tracebacks import install_excepthook as _filter_tracebacks
    from functx.core.tracer import Array as Array  # type: ignore[assignment]
    from functx.core.types import ShapedArray, float0

if _TYPE_CHECKING:
    from functx import (
        ad_checkpoint,
        aot,
        aten,
        autograd,
        bounds,
        checkify,
        compiled_autograd,
        custom_batching,
        custom_derivatives,
        debug,
        decomp,
        effects,
        errors,
        experimental,
        export,
        flatten_util,
        image,
        implicit,
        lax,
        library,
        lowering,
        nn,
        numpy,
        ops,
        random,
        ref,
        scipy,
        sparse,
        testing,
        tools,
        tree,
        tree_util,
    )
    from functx.api import *
    from functx.custom.operators.definition import custom_op
    from functx.interop.jax_trace import from_jax
    from functx.lowering.shard_map import shard_map
    from functx.module_calls import create_functional_call, functional_call, stack_module_state
    from functx.ref import Ref, empty_ref, free_ref, freeze, new_ref

__all__ = [
    "ArrayWrapper",
    "Primitive",
    "Program",
    "Ref",
    "ShapedArray",
    "ad_checkpoint",
    "aot",
    "aten",
    "autograd",
    "biharmonic",
    "bounds",
    "cache_info",
    "checkify",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "clear_caches",
    "clipped_sum",
    "closure_convert",
    "compiled_autograd",
    "config",
    "create_functional_call",
    "custom_batching",
    "custom_derivatives",
    "custom_gradient",
    "custom_jvp",
    "custom_op",
    "custom_vjp",
    "custom_vmap",
    "debug",
    "decomp",
    "decompose",
    "differential_operator",
    "effects",
    "effects_barrier",
    "empty_ref",
    "errors",
    "eval_shape",
    "experimental",
    "explore",
    "export",
    "flatten_util",
    "float0",
    "free_ref",
    "freeze",
    "from_jax",
    "functional_call",
    "functionalize",
    "fwd_and_bwd",
    "grad",
    "grad_and_value",
    "hessian",
    "hook_grad",
    "hvp",
    "image",
    "implicit",
    "io_callback",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jet",
    "jit",
    "jvp",
    "laplacian",
    "lax",
    "library",
    "linear_transpose",
    "linearize",
    "lowering",
    "make_ir",
    "make_jaxpr",
    "named_call",
    "named_scope",
    "new_ref",
    "nn",
    "numpy",
    "ops",
    "per_example_grad",
    "per_example_norms",
    "pure_callback",
    "random",
    "ref",
    "remat",
    "scipy",
    "shard_map",
    "sparse",
    "stack_module_state",
    "stop_gradient",
    "taylor",
    "testing",
    "tools",
    "trace",
    "tree",
    "tree_util",
    "value_and_grad",
    "value_grad_and_laplacian",
    "vjp",
    "vmap",
]

_suggest_alternatives("jax", __name__)
_load_on_first_use(
    __name__,
    modules={_module.name for _module in _iter_modules(__path__)},
    names={
        **dict.fromkeys(("Ref", "empty_ref", "free_ref", "freeze", "new_ref"), "functx.ref"),
        "create_functional_call": "functx.module_calls",
        "custom_op": "functx.custom.operators.definition",
        "from_jax": "functx.interop.jax_trace",
        "functional_call": "functx.module_calls",
        "shard_map": "functx.lowering.shard_map",
        "stack_module_state": "functx.module_calls",
    },
    others="functx.api",
)

_share_modules_of_jax(__name__)
_filter_tracebacks()
