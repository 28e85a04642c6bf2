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
