"""The edge to JAX's arrays: their avals as ours, and ours as theirs."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
from jax.core import ShapedArray as JaxShapedArray

from functx.core.avals import ShapedArray
from functx.core.dtypes import SHORT_NAMES
from functx.core.errors import ShapeError
from functx.core.tracing import backend


@lru_cache(maxsize=16384)
def jax_aval(aval: ShapedArray) -> Any:
    """JAX's aval of the same type."""
    return JaxShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type)


# JAX's avals seen so far and ours for them. The key is the identity, which is quick; the
# entry holds the object, so that its identity is not given to another.
_avals_by_id: dict[int, tuple[Any, ShapedArray]] = {}


def aval_of_jax_array(x: Any) -> ShapedArray | None:
    """The aval of one of JAX's arrays or numbers, traced ones too; None for anything else.

    Raises ShapeError for a shape with symbolic dimensions.
    """
    aval = getattr(x, "aval", None)
    # JAX hands numbers that have a dtype to the rules that its users write.
    if aval is None or not isinstance(x, (jax.Array, int, float, complex)):
        return None
    found = _avals_by_id.get(id(aval))
    if found is None:
        if aval.dtype not in SHORT_NAMES:
            return None
        if any(type(d) is not int for d in aval.shape):
            raise ShapeError(
                f"the dimensions of an array must be numbers; got the shape {aval.shape} of {aval}",
                fix="Export the function for each shape that it is to take.",
            )
        if len(_avals_by_id) > 8192:
            _avals_by_id.clear()
        ours = ShapedArray(tuple(aval.shape), aval.dtype, bool(aval.weak_type))
        found = _avals_by_id[id(aval)] = aval, ours
    return found[1]


backend.aval_of_jax_array = aval_of_jax_array
backend.jax_aval = jax_aval
