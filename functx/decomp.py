"""Decompositions: what an operation is made of, to register, look up and remove.

>>> import functx
>>> functx.decomp.lookup("softmax").__name__
'decompose_softmax'
"""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.caches import scoped
from functx.core.decompositions import (
    get_decompositions,
    get_jvp_decomposition,
    lookup,
    lowering_decompositions,
    register,
    remove,
    remove_decompositions,
)

__all__ = [
    "get_decompositions",
    "get_jvp_decomposition",
    "lookup",
    "lowering_decompositions",
    "register",
    "remove",
    "remove_decompositions",
    "scoped",
]

_explain_errors(__name__)
