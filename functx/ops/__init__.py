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
    boundaries,
    callbacks,
    collectives,
    comparison,
    complexes,
    conversion,
    creation,
    cumulative,
    determinants,
    exchanges,
    exponential,
    factorizations,
    fourier,
    gathering,
    gradients,
    joining,
    linear_systems,
    logical,
    numerics,
    reductions,
    rounding,
    scatter_reductions,
    scatter_set,
    scattering,
    searching,
    selection,
    shaping,
    sharding,
    slicing,
    sorting,
    special,
    trigonometric,
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
