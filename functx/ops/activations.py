"""Activations that keep digits or derivatives where their plain formula would lose them."""

from __future__ import annotations

import math
from typing import Any

from functx.core.samples import f32, sample
from functx.ops.arithmetic import abs, add, max, min, mul, neg, sub
from functx.ops.exponential import exp, log1p, logistic
from functx.ops.families import Inexact
from functx.ops.selection import clamp
from functx.ops.special import erfc
from functx.ops.trigonometric import tanh

GELU_CUBIC = 0.044715
GELU_SCALE = math.sqrt(2 / math.pi)
INF = math.inf


class Softplus(Inexact):
    """log(1 + exp(x)), without overflow."""

    has_finite_derivative = True
    accepts = "f"
    samples = (
        sample(f32[3, 4]),
        sample(f32[3], values={0: [0.0, 100.0, -100.0]}, gradients={0: [0.5, 1.0, 0.0]}),
    )

    def derivative(self, out, x):
        return logistic(x)

    def decompose(self, x):
        return add(max(x, 0), log1p(exp(neg(abs(x)))))


class LogSigmoid(Inexact):
    """-log(1 + exp(-x)), without overflow."""

    has_finite_derivative = True
    accepts = "f"
    samples = (
        sample(f32[3, 4]),
        sample(f32[3], values={0: [0.0, 1000.0, -1000.0]}, gradients={0: [0.5, 0.0, 1.0]}),
    )

    def derivative(self, out, x):
        return logistic(neg(x))

    def decompose(self, x):
        return sub(min(x, 0), log1p(exp(neg(abs(x)))))


class Silu(Inexact):
    """x / (1 + exp(-x))."""

    has_finite_derivative = True
    accepts = "f"
    samples = (
        sample(f32[3, 4]),
        sample(f32[4], values={0: [-INF, 0.0, 1000.0, INF]}, gradients={0: [0.0, 0.5, 1.0, 1.0]}),
    )

    def derivative(self, out, x):
        # s (1 + x (1 - s)) for the sigmoid s
        s = logistic(x)
        return mul(s, add(mul(clamp(-1000.0, x, 1000.0), sub(1.0, s)), 1.0))

    def decompose(self, x):
        return mul(x, logistic(x))


class Mish(Inexact):
    """x tanh(log(1 + exp(x)))."""

    has_finite_derivative = True
    accepts = "f"
    samples = (
        sample(f32[3, 4]),
        sample(f32[4], values={0: [-INF, 0.0, 1000.0, INF]}, gradients={0: [0.0, 0.6, 1.0, 1.0]}),
    )

    def derivative(self, out, x):
        # t + x s (1 - t^2) for the sigmoid s and t = tanh(log(1 + exp(x)))
        t = tanh(softplus(x))
        x = clamp(-1000.0, x, 1000.0)
        return add(t, mul(mul(x, logistic(x)), sub(1.0, mul(t, t))))

    def decompose(self, x):
        return mul(x, tanh(softplus(x)))


class Gelu(Inexact):
    """x times the normal distribution function at x, or the approximation of it by a tanh."""

    has_finite_derivative = True
    approximate: bool
    accepts = "f"
    samples = (
        sample(f32[3, 4], approximate=True),
        sample(f32[3, 4], approximate=False),
        *[
            sample(
                f32[5],
                approximate=approximate,
                values={0: [-INF, -1e30, 0.0, 1e30, INF]},
                gradients={0: [0.0, 0.0, 0.5, 1.0, 1.0]},
                dtypes=("f64", "f32", "bf16"),
            )
            for approximate in (True, False)
        ],
    )

    def derivative(self, out, x):
        # d(x F(x)) = F(x) + x F'(x), which from 100 on, where powers may overflow, is 0 or 1.
        x = clamp(-100.0, x, 100.0)
        if not self.approximate:
            density = mul(exp(mul(mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
            return add(self.normal_cdf(x), mul(x, density))
        share = self.normal_cdf(x)
        slope = mul(add(mul(mul(x, x), 3 * GELU_CUBIC), 1.0), 2 * GELU_SCALE)
        return add(share, mul(x, mul(mul(share, sub(1.0, share)), slope)))

    def decompose(self, x):
        return mul(x, self.normal_cdf(x))

    def normal_cdf(self, x: Any) -> Any:
        if self.approximate:
            # (1 + tanh(u)) / 2 is logistic(2 u), which keeps its digits for very negative u.
            return logistic(self.sigmoid_argument(x))
        return mul(erfc(mul(x, -math.sqrt(0.5))), 0.5)

    def sigmoid_argument(self, x: Any) -> Any:
        # 2 sqrt(2 / pi) (x + 0.044715 x^3)
        return mul(add(x, mul(mul(mul(x, x), x), GELU_CUBIC)), 2 * GELU_SCALE)


def softplus(x: Any) -> Any:
    """log(1 + exp(x)), elementwise, without overflow."""
    return Softplus()(x)


def log_sigmoid(x: Any) -> Any:
    """-log(1 + exp(-x)), elementwise, without overflow."""
    return LogSigmoid()(x)


def mish(x: Any) -> Any:
    """x tanh(log(1 + exp(x))), elementwise."""
    return Mish()(x)


def silu(x: Any) -> Any:
    """x / (1 + exp(-x)), elementwise."""
    return Silu()(x)


def gelu(x: Any, approximate: bool = True) -> Any:
    """x times the normal distribution function at x, or an approximation of it by a tanh."""
    return Gelu(approximate)(x)
