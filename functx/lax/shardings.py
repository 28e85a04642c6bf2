"""Functions that take the sharding of their result, by JAX's keywords."""

from __future__ import annotations

from functx import ops
from functx.lax import copies, values
from functx.ops import convolution
from functx.ops.parallel import with_sharding_keyword
from functx.transforms.control import reduce as reductions

broadcast = with_sharding_keyword(copies.broadcast)
broadcast_in_dim = with_sharding_keyword(copies.broadcast_in_dim)
broadcasted_iota = with_sharding_keyword(ops.broadcasted_iota)
conv_general_dilated = with_sharding_keyword(convolution.conv_general_dilated)
dot = with_sharding_keyword(ops.dot)
dot_general = with_sharding_keyword(ops.dot_general)
empty = with_sharding_keyword(values.empty)
full = with_sharding_keyword(values.full, "sharding")
full_like = with_sharding_keyword(values.full_like, "sharding")
reduce = with_sharding_keyword(reductions.reduce)
reduce_sum = with_sharding_keyword(copies.reduce_sum)
reshape = with_sharding_keyword(copies.reshape)
