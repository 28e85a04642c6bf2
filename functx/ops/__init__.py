"""What a program can say: every primitive, one file a family, every rule beside its primitive."""

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
# The families first, since every file needs them; then whatever registers primitives.
from functx.ops import (  # noqa: F401
    arithmetic,
    autodiff,
    callbacks,
    collectives,
    concatenation,
    contraction,
    conversion,
    cumulative,
    factorizations,
    indexing,
    linear_algebra,
    logic,
    parallel,
    reductions,
    scattering,
    shapes,
    slicing,
    sorting,
    special,
    transcendental,
    windows,
)

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
