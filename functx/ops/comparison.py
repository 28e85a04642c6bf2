"""Elementwise comparisons, whose results are boolean."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from functx.core.samples import bool_, c64, f32, i32, sample, u32
from functx.ops.families import Comparison
from functx.ops.operands import promote_scalars


class _StablehloComparison(Comparison, abstract=True):
    """A comparison that StableHLO has, by the name `direction`."""

    direction: ClassVar[str]

    def lower(self, ctx, x, y):
        return ctx.compare(x, y, self.direction, ctx.avals_in[0])


class Eq(_StablehloComparison):
    """x == y."""

    direction = "EQ"
    host_kernel = np.equal
    samples = sample(f32[3, 4], f32[3, 4]), sample(i32[3], i32[()]), sample(c64[3], c64[3])


class Ne(_StablehloComparison):
    """x != y."""

    direction = "NE"
    host_kernel = np.not_equal
    samples = sample(f32[3, 4], f32[3, 4]), sample(i32[()], i32[3]), sample(c64[3], c64[3])


class Lt(_StablehloComparison):
    """x < y."""

    direction = "LT"
    accepts = "biuf"
    host_kernel = np.less
    samples = sample(f32[3, 4], f32[3, 4]), sample(i32[3], i32[()]), sample(bool_[3], bool_[3])


class Le(_StablehloComparison):
    """x <= y."""

    direction = "LE"
    accepts = "biuf"
    host_kernel = np.less_equal
    samples = sample(f32[3, 4], f32[3, 4]), sample(u32[3], u32[()])


class Gt(_StablehloComparison):
    """x > y."""

    direction = "GT"
    accepts = "biuf"
    host_kernel = np.greater
    samples = sample(f32[3, 4], f32[3, 4]), sample(i32[3], i32[()])


class Ge(_StablehloComparison):
    """x >= y."""

    direction = "GE"
    accepts = "biuf"
    host_kernel = np.greater_equal
    samples = sample(f32[3, 4], f32[3, 4]), sample(u32[3], u32[()])


def eq(x: Any, y: Any) -> Any:
    """x == y, elementwise; false where either is nan."""
    return Eq()(*promote_scalars(x, y))


def ne(x: Any, y: Any) -> Any:
    """x != y, elementwise; true where either is nan."""
    return Ne()(*promote_scalars(x, y))


def lt(x: Any, y: Any) -> Any:
    """x < y, elementwise; complex numbers have no order."""
    return Lt()(*promote_scalars(x, y))


def le(x: Any, y: Any) -> Any:
    """x <= y, elementwise; complex numbers have no order."""
    return Le()(*promote_scalars(x, y))


def gt(x: Any, y: Any) -> Any:
    """x > y, elementwise; complex numbers have no order."""
    return Gt()(*promote_scalars(x, y))


def ge(x: Any, y: Any) -> Any:
    """x >= y, elementwise; complex numbers have no order."""
    return Ge()(*promote_scalars(x, y))
