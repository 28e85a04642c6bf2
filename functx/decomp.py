"""Decompositions: what an operation is made of, to register, look up and remove.

>>> import functx
>>> functx.decomp.lookup("softmax").__name__
'decompose_softmax'
"""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.caches import scoped as scoped
from functx.core.decompositions import get_decompositions as get_decompositions
from functx.core.decompositions import get_jvp_decomposition as get_jvp_decomposition
from functx.core.decompositions import lookup as lookup
from functx.core.decompositions import lowering_decompositions as lowering_decompositions
from functx.core.decompositions import register as register
from functx.core.decompositions import remove as remove
from functx.core.decompositions import remove_decompositions as remove_decompositions

__all__ = _explain_errors(__name__)
