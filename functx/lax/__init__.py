"""JAX's names for the primitives. As in JAX, every result is an array of its own, never a view."""

from functx.custom.custom_linear_solve import custom_linear_solve
from functx.custom.custom_root import custom_root
from functx.lax.arrays import *
from functx.lax.associative_scan import associative_scan
from functx.lax.convolution import *
from functx.lax.elementwise import *
from functx.lax.products import *
from functx.lax.reductions import *
from functx.lax.slicing import *
from functx.numpy.promotion import returns_new_array as _never_aliased
from functx.ops.contraction import Precision
from functx.ops.parallel import (
    all_gather,
    all_to_all,
    axis_index,
    axis_size,
    pbroadcast,
    pcast,
    pmax,
    pmean,
    pmin,
    ppermute,
    pshuffle,
    psum,
    psum_scatter,
    pswapaxes,
    with_sharding_constraint,
)
from functx.transforms.control.cond import cond, switch
from functx.transforms.control.loops import fori_loop, while_loop
from functx.transforms.control.reduce import reduce, reduce_window
from functx.transforms.control.scan import map, scan

for _name in [
    "bitcast_convert_type",
    "broadcast",
    "broadcast_in_dim",
    "broadcast_to_rank",
    "collapse",
    "concatenate",
    "conj",
    "convert_element_type",
    "dynamic_index_in_dim",
    "dynamic_slice",
    "dynamic_slice_in_dim",
    "dynamic_update_slice",
    "expand_dims",
    "index_in_dim",
    "integer_pow",
    "pad",
    "reduce_and",
    "reduce_max",
    "reduce_min",
    "reduce_or",
    "reduce_prod",
    "reduce_sum",
    "reduce_xor",
    "reshape",
    "rev",
    "slice",
    "slice_in_dim",
    "split",
    "squeeze",
    "stack",
    "transpose",
    "unstack",
]:
    globals()[_name] = _never_aliased(globals()[_name])
