"""JAX's names for the primitives."""

from functx.transforms.control.cond import cond, switch
from functx.transforms.control.scan import map, scan
from functx.transforms.control.while_loop import fori_loop, while_loop
