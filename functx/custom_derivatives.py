"""Functions with derivatives of their own, by the names that JAX has in `jax.custom_derivatives`."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.custom.closure_convert import closure_convert as closure_convert
from functx.custom.closure_convert import custom_gradient as custom_gradient
from functx.custom.custom_jvp import custom_jvp as custom_jvp
from functx.custom.custom_vjp import custom_vjp as custom_vjp
from functx.custom.linear_call import linear_call as linear_call
from functx.custom.rule_results import CustomVJPPrimal as CustomVJPPrimal
from functx.custom.rule_results import SymbolicZero as SymbolicZero
from functx.custom.rule_results import (
    custom_vjp_primal_tree_values as custom_vjp_primal_tree_values,
)
from functx.custom.rule_results import zero_from_primal as zero_from_primal

__all__ = _explain_errors(__name__)
