"""Functions with derivatives of their own, by the names that JAX has in `jax.custom_derivatives`."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.custom.closure_convert import closure_convert, custom_gradient
from functx.custom.custom_jvp import custom_jvp
from functx.custom.custom_vjp import custom_vjp
from functx.custom.linear_call import linear_call
from functx.custom.rule_results import (
    CustomVJPPrimal,
    SymbolicZero,
    custom_vjp_primal_tree_values,
    zero_from_primal,
)

__all__ = [
    "CustomVJPPrimal",
    "SymbolicZero",
    "closure_convert",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "custom_vjp_primal_tree_values",
    "linear_call",
    "zero_from_primal",
]

_explain_errors(__name__)
