"""The primitives, one file for each family, with their rules and the functions that bind them.

Files that only `functx.nn` or `functx.random` need, such as `activations`, are not imported here, and
load with these packages.
"""

from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.ops.families import (
    Binary,
    Bitwise,
    Comparison,
    Constant,
    Elementwise,
    Inexact,
    Linear,
    Unary,
)

# isort: split
# The families come first, since every file needs them; the other files register primitives.
from functx.ops.arithmetic import *  # noqa: F403
from functx.ops.autodiff import *  # noqa: F403
from functx.ops.callbacks import *  # noqa: F403
from functx.ops.collectives import *  # noqa: F403
from functx.ops.concatenation import *  # noqa: F403
from functx.ops.contraction import *  # noqa: F403
from functx.ops.conversion import *  # noqa: F403
from functx.ops.cumulative import *  # noqa: F403
from functx.ops.determinants import *  # noqa: F403
from functx.ops.dynamic_slicing import *  # noqa: F403
from functx.ops.effect_tokens import *  # noqa: F403
from functx.ops.eigenvectors import *  # noqa: F403
from functx.ops.factorizations import *  # noqa: F403
from functx.ops.indexing import *  # noqa: F403
from functx.ops.least_squares import *  # noqa: F403
from functx.ops.linear_algebra import *  # noqa: F403
from functx.ops.linear_systems import *  # noqa: F403
from functx.ops.logic import *  # noqa: F403
from functx.ops.parallel import *  # noqa: F403
from functx.ops.powers import *  # noqa: F403
from functx.ops.reductions import *  # noqa: F403
from functx.ops.scattering import *  # noqa: F403
from functx.ops.segments import *  # noqa: F403
from functx.ops.shapes import *  # noqa: F403
from functx.ops.slicing import *  # noqa: F403
from functx.ops.sorting import *  # noqa: F403
from functx.ops.special import *  # noqa: F403
from functx.ops.staging import *  # noqa: F403
from functx.ops.transcendental import *  # noqa: F403
from functx.ops.tridiagonal_systems import *  # noqa: F403
from functx.ops.windows import *  # noqa: F403

__all__ = [
    "Binary",
    "Bitwise",
    "Comparison",
    "Constant",
    "Elementwise",
    "Inexact",
    "Linear",
    "Unary",
]

_suggest_alternatives("jax.ops", __name__)
