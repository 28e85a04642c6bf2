"""Sparse Jacobians and Hessians, by patterns that are read off the traced program.

The pattern depends on the program and the shapes alone, so all functions work under `jit`, `vmap` and
`grad`. Integers that a function captures, such as the edges of a graph, count as part of the program;
integer arguments do not: what is gathered at them may be any element.
"""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.sparse.derivatives import hessian as hessian
from functx.sparse.derivatives import hessian_pattern as hessian_pattern
from functx.sparse.derivatives import jacobian as jacobian
from functx.sparse.derivatives import jacobian_pattern as jacobian_pattern
from functx.sparse.modes import hessian_plan as hessian_plan
from functx.sparse.modes import jacobian_plan as jacobian_plan
from functx.sparse.plans import JacobianPlan as JacobianPlan
from functx.transforms.sparsity_pattern import SparsityPattern as SparsityPattern

__all__ = _explain_errors(__name__)
