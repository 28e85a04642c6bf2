"""JAX's names for the primitives."""

from functx.custom.custom_linear_solve import custom_linear_solve
from functx.custom.custom_root import custom_root
from functx.lax.arrays import *
from functx.lax.associative_scan import associative_scan
from functx.lax.collectives import *
from functx.lax.convolution import *
from functx.lax.elementwise import *
from functx.lax.losses import *
from functx.lax.normalizations import *
from functx.lax.precision import Precision
from functx.lax.products import *
from functx.lax.reductions import *
from functx.lax.sharding import *
from functx.lax.slicing import *
from functx.transforms.control.cond import cond, switch
from functx.transforms.control.loops import fori_loop, while_loop
from functx.transforms.control.reduce import reduce, reduce_window
from functx.transforms.control.scan import map, scan
