"""The values that derivatives save or recompute, by the names of `jax.ad_checkpoint`."""

from functx.custom import checkpoint_policies
from functx.ops.autodiff import checkpoint_name
from functx.transforms.saved_residuals import print_saved_residuals

__all__ = ["checkpoint_name", "checkpoint_policies", "print_saved_residuals"]
