"""Elementwise comparisons, whose results are boolean."""

from __future__ import annotations

from typing import Any

from functx.core.samples import bool_, c64, f32, i32, sample, u32
from functx.ops.families import Comparison
from functx.ops.operands import match


class Eq(Comparison):
    """x == y."""

    samples = sample(f32[3, 4], f32[3, 4]), sample(i32[3], i32[()]), sample(c64[3], c64[3])

    def lower(self, ctx, x, y):
        return ctx.compare(x, y, "EQ", ctx.avals_in[0])


class Ne(Comparison):
    """x != y."""

    samples = sample(f32[3, 4], f32[3, 4]), sample(i32[()], i32[3]), sample(c64[3], c64[3])

    def lower(self, ctx, x, y):
        return ctx.compare(x, y, "NE", ctx.avals_in[0])


class Lt(Comparison):
    """x < y."""

    accepts = "biuf"
    samples = sample(f32[3, 4], f32[3, 4]), sample(i32[3], i32[()]), sample(bool_[3], bool_[3])

    def lower(self, ctx, x, y):
        return ctx.compare(x, y, "LT", ctx.avals_in[0])


class Le(Comparison):
    """x <= y."""

    accepts = "biuf"
    samples = sample(f32[3, 4], f32[3, 4]), sample(u32[3], u32[()])

    def lower(self, ctx, x, y):
        return ctx.compare(x, y, "LE", ctx.avals_in[0])


class Gt(Comparison):
    """x > y."""

    accepts = "biuf"
    samples = sample(f32[3, 4], f32[3, 4]), sample(i32[3], i32[()])

    def lower(self, ctx, x, y):
        return ctx.compare(x, y, "GT", ctx.avals_in[0])


class Ge(Comparison):
    """x >= y."""

    accepts = "biuf"
    samples = sample(f32[3, 4], f32[3, 4]), sample(u32[3], u32[()])

    def lower(self, ctx, x, y):
        return ctx.compare(x, y, "GE", ctx.avals_in[0])


def eq(x: Any, y: Any) -> Any:
    """x == y, elementwise; false where either is nan."""
    return Eq()(*match(x, y))


def ne(x: Any, y: Any) -> Any:
    """x != y, elementwise; true where either is nan."""
    return Ne()(*match(x, y))


def lt(x: Any, y: Any) -> Any:
    """x < y, elementwise; complex numbers have no order."""
    return Lt()(*match(x, y))


def le(x: Any, y: Any) -> Any:
    """x <= y, elementwise; complex numbers have no order."""
    return Le()(*match(x, y))


def gt(x: Any, y: Any) -> Any:
    """x > y, elementwise; complex numbers have no order."""
    return Gt()(*match(x, y))


def ge(x: Any, y: Any) -> Any:
    """x >= y, elementwise; complex numbers have no order."""
    return Ge()(*match(x, y))
