"""Rounding to whole numbers, and tests for being finite."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from functx.core.samples import f32, sample
from functx.ops.arithmetic import BOOL
from functx.ops.families import Unary


class Floor(Unary):
    """The largest whole number that is not above x."""

    accepts = "f"
    differentiable = False
    samples = (sample(f32[3, 4]),)

    def lower(self, ctx, x):
        return stablehlo.floor(x)


class Ceil(Unary):
    """The smallest whole number that is not below x."""

    accepts = "f"
    differentiable = False
    samples = (sample(f32[3, 4]),)

    def lower(self, ctx, x):
        return stablehlo.ceil(x)


class Round(Unary):
    """The nearest whole number; halves go away from zero, or `to_even` ones."""

    to_even: bool = False
    accepts = "f"
    differentiable = False
    samples = sample(f32[3, 4]), sample(f32[3, 4], to_even=True)

    def lower(self, ctx, x):
        if self.to_even:
            return stablehlo.round_nearest_even(x)
        return stablehlo.round_nearest_afz(x)


class IsFinite(Unary):
    """Whether x is neither infinite nor nan."""

    accepts = "f"
    differentiable = False
    host_kernel = np.isfinite
    host_kernel_kinds = "f"
    samples = (sample(f32[3, 4]),)

    def out_dtype(self, dtype):
        return BOOL

    def lower(self, ctx, x):
        return stablehlo.is_finite(x)


def floor(x: Any) -> Any:
    """The largest whole number that is not above x, elementwise."""
    return Floor()(x)


def ceil(x: Any) -> Any:
    """The smallest whole number that is not below x, elementwise."""
    return Ceil()(x)


def round(x: Any, to_even: bool = False) -> Any:
    """The nearest whole number, elementwise; halves go away from zero, or `to_even` ones."""
    return Round(to_even)(x)


def is_finite(x: Any) -> Any:
    """Whether x is neither infinite nor nan, elementwise."""
    return IsFinite()(x)
