"""The values that derivatives save or recompute, by the names of `jax.ad_checkpoint`."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.custom import checkpoint_policies
from functx.ops.autodiff import checkpoint_name
from functx.transforms.saved_residuals import print_saved_residuals

__all__ = ["checkpoint_name", "checkpoint_policies", "print_saved_residuals"]

_explain_errors(__name__)
