"""The accuracy of the stable formulas, against mpmath (`python -m tests.benchmarks.formulas [count] [dtype]`).

For each formula of numbers: the largest errors, in units in the last place, of its stable form where
the plain one is accurate, and anywhere; then how many points the plain one gets wrong, and the same
for derivatives.
"""

import sys
from contextlib import suppress
from typing import NamedTuple

import numpy as onp

import functx as fx
import functx.numpy as np
import functx.scipy.special
from functx.passes.formula_replacement import table

with suppress(ImportError):  # the module is collected without it
    import mpmath

ACCURATE = 4.0
WRONG = 1e3


def tiny(rng, n, low=-8.0, high=2.0, signed=True):
    """Numbers of magnitudes from 10**low to 10**high."""
    signs = rng.choice([-1.0, 1.0], n) if signed else 1.0
    return signs * 10.0 ** rng.uniform(low, high, n)


def wide(rng, n):
    return onp.where(rng.random(n) < 0.5, tiny(rng, n), rng.uniform(-120.0, 120.0, n))


def moderate(rng, n):
    return tiny(rng, n, -15.0, 15.0)


def positive(rng, n, low=-8.0, high=6.0):
    return tiny(rng, n, low, high, signed=False)


def near_one(rng, n):
    return onp.clip(tiny(rng, n, -8.0, 0.0), -1 + 1e-6, 1 - 1e-6)


def negative(rng, n):
    return -positive(rng, n, -7.0, 2.0)


def above_minus_one(rng, n):
    small, large = near_one(rng, n), positive(rng, n)
    return onp.where(rng.random(n) < 0.5, small, large)


def gamma_operand(rng, n):
    return rng.uniform(0.5, 150.0, n)


def sigmoid(m, x):
    return 1 / (1 + m.exp(-x))


REFERENCES = {
    "exp(x) - 1": (lambda m, x: m.expm1(x), lambda m, x: m.exp(x), [wide]),
    "1 - erf(x)": (
        lambda m, x: m.erfc(x),
        lambda m, x: -2 / m.sqrt(m.pi) * m.exp(-x * x),
        [lambda rng, n: rng.uniform(-4.0, 8.0, n)],
    ),
    "1 + erf(x)": (
        lambda m, x: m.erfc(-x),
        lambda m, x: 2 / m.sqrt(m.pi) * m.exp(-x * x),
        [lambda rng, n: rng.uniform(-8.0, 4.0, n)],
    ),
    "1 - cos(x)": (
        lambda m, x: 2 * m.sin(x / 2) ** 2,
        lambda m, x: m.sin(x),
        [lambda rng, n: tiny(rng, n, -6.0, 0.4)],
    ),
    "(exp(x) - exp(-x)) / (exp(x) + exp(-x))": (
        lambda m, x: m.tanh(x),
        lambda m, x: m.sech(x) ** 2,
        [wide],
    ),
    "(exp(2 x) - 1) / (exp(2 x) + 1)": (
        lambda m, x: m.tanh(x),
        lambda m, x: m.sech(x) ** 2,
        [wide],
    ),
    "exp(x) / (1 + exp(x))": (
        sigmoid,
        lambda m, x: sigmoid(m, x) * sigmoid(m, -x),
        [wide],
    ),
    "1 / (1 + exp(-x))": (sigmoid, lambda m, x: sigmoid(m, x) * sigmoid(m, -x), [wide]),
    "exp(x) / (exp(x) + exp(y))": (
        lambda m, x, y: sigmoid(m, x - y),
        lambda m, x, y: sigmoid(m, x - y) * sigmoid(m, y - x),
        [wide, wide],
    ),
    "1 - sigmoid(x)": (
        lambda m, x: sigmoid(m, -x),
        lambda m, x: -sigmoid(m, x) * sigmoid(m, -x),
        [wide],
    ),
    "2 sigmoid(2 x) - 1": (lambda m, x: m.tanh(x), lambda m, x: m.sech(x) ** 2, [wide]),
    "log(exp(x))": (lambda m, x: x, lambda m, x: m.mpf(1), [wide]),
    "sqrt(exp(x))": (lambda m, x: m.exp(x / 2), lambda m, x: m.exp(x / 2) / 2, [wide]),
    "log(exp(x) + exp(y))": (
        lambda m, x, y: m.log(m.exp(x) + m.exp(y)),
        lambda m, x, y: sigmoid(m, x - y),
        [wide, wide],
    ),
    "log(sigmoid(x))": (
        lambda m, x: -m.log1p(m.exp(-x)),
        lambda m, x: sigmoid(m, -x),
        [wide],
    ),
    "log(1 - exp(x))": (
        lambda m, x: m.log(-m.expm1(x)),
        lambda m, x: m.exp(x) / m.expm1(x),
        [negative],
    ),
    "log(exp(x) - 1)": (
        lambda m, x: m.log(m.expm1(x)),
        lambda m, x: -1 / m.expm1(-x),
        [lambda rng, n: positive(rng, n, -7.0, 2.1)],
    ),
    "log(cosh(x))": (lambda m, x: m.log(m.cosh(x)), lambda m, x: m.tanh(x), [wide]),
    "log((1 + x) / (1 - x))": (
        lambda m, x: 2 * m.atanh(x),
        lambda m, x: 2 / (1 - x * x),
        [near_one],
    ),
    "log(1 + x)": (lambda m, x: m.log1p(x), lambda m, x: 1 / (1 + x), [above_minus_one]),
    "log1p(exp(x))": (lambda m, x: m.log1p(m.exp(x)), sigmoid, [wide]),
    "log1p(-exp(x))": (
        lambda m, x: m.log(-m.expm1(x)),
        lambda m, x: m.exp(x) / m.expm1(x),
        [negative],
    ),
    "log(x + sqrt(x^2 + 1))": (
        lambda m, x: m.asinh(x),
        lambda m, x: 1 / m.sqrt(x * x + 1),
        [lambda rng, n: tiny(rng, n, -6.0, 25.0)],
    ),
    "x log(x)": (
        lambda m, x: x * m.log(x),
        lambda m, x: m.log(x) + 1,
        [lambda rng, n: positive(rng, n, -30.0, 6.0)],
    ),
    "(1 + x) log1p(x)": (
        lambda m, x: (1 + x) * m.log1p(x),
        lambda m, x: m.log1p(x) + 1,
        [above_minus_one],
    ),
    "x log(x / y)": (
        lambda m, x, y: x * m.log(x / y),
        lambda m, x, y: m.log(x / y) + 1,
        [positive, positive],
    ),
    "x (log(x) - log(y))": (
        lambda m, x, y: x * m.log(x / y),
        lambda m, x, y: m.log(x / y) + 1,
        [positive, positive],
    ),
    "sqrt(x^2)": (
        lambda m, x: abs(x),
        lambda m, x: m.sign(x),
        [lambda rng, n: tiny(rng, n, -30.0, 30.0)],
    ),
    "sqrt(x^2 + y^2)": (
        lambda m, x, y: m.hypot(x, y),
        lambda m, x, y: x / m.hypot(x, y),
        [lambda rng, n: tiny(rng, n, -30.0, 30.0)] * 2,
    ),
    "abs(x)^2": (lambda m, x: x * x, lambda m, x: 2 * x, [moderate]),
    "hypot(x, y)^2": (lambda m, x, y: x * x + y * y, lambda m, x, y: 2 * x, [moderate, moderate]),
    "sqrt(x)^2": (lambda m, x: x, lambda m, x: m.mpf(1), [positive]),
    "log(erfc(x))": (
        lambda m, x: m.log(m.erfc(x)),
        lambda m, x: -2 / m.sqrt(m.pi) * m.exp(-x * x) / m.erfc(x),
        [lambda rng, n: rng.uniform(-3.0, 60.0, n)],
    ),
    "log(erfc(x) / 2)": (
        lambda m, x: m.log(m.erfc(x) / 2),
        lambda m, x: -2 / m.sqrt(m.pi) * m.exp(-x * x) / m.erfc(x),
        [lambda rng, n: rng.uniform(-3.0, 60.0, n)],
    ),
    "log(gamma(x))": (lambda m, x: m.loggamma(x), lambda m, x: m.digamma(x), [gamma_operand]),
    "log(n!)": (
        lambda m, x: m.loggamma(x + 1),
        lambda m, x: m.digamma(x + 1),
        [gamma_operand],
    ),
    "gamma(x) / gamma(y)": (
        lambda m, x, y: m.gammaprod([x], [y]),
        lambda m, x, y: m.gammaprod([x], [y]) * m.digamma(x),
        [gamma_operand] * 2,
    ),
    "gamma(x) / (gamma(y) gamma(z))": (
        lambda m, x, y, z: m.gammaprod([x], [y, z]),
        lambda m, x, y, z: m.gammaprod([x], [y, z]) * m.digamma(x),
        [gamma_operand] * 3,
    ),
    "gamma(x) gamma(y) / gamma(z)": (
        lambda m, x, y, z: m.gammaprod([x, y], [z]),
        lambda m, x, y, z: m.gammaprod([x, y], [z]) * m.digamma(x),
        [gamma_operand] * 3,
    ),
    "n! / k!": (
        lambda m, n, k: m.gammaprod([n + 1], [k + 1]),
        lambda m, n, k: m.gammaprod([n + 1], [k + 1]) * m.digamma(n + 1),
        [gamma_operand] * 2,
    ),
    "n! / (k! m!)": (
        lambda m, n, k, j: m.gammaprod([n + 1], [k + 1, j + 1]),
        lambda m, n, k, j: m.gammaprod([n + 1], [k + 1, j + 1]) * m.digamma(n + 1),
        [gamma_operand] * 3,
    ),
}
"""For each formula of numbers: its value and derivative in the first operand, and its operands."""

LENGTH = 5


def row(rng, n):
    """Rows of exponents, some of them wide."""
    scale = onp.where(rng.random((n, 1)) < 0.5, 3.0, 120.0)
    return scale * rng.uniform(-1.0, 1.0, (n, LENGTH))


def weights(rng, n):
    return rng.uniform(0.1, 2.0, (n, LENGTH))


def far_from_zero(rng, n):
    """Rows that vary little around a number of any size."""
    return rng.normal(size=(n, LENGTH)) + positive(rng, n, -2.0, 4.0)[:, None]


def share(m, xs):
    """The first element of softmax."""
    return 1 / sum(m.exp(x - xs[0]) for x in xs)


def average(xs):
    return sum(xs) / len(xs)


ROW_REFERENCES = {
    "exp(x) / sum(exp(x))": (
        share,
        lambda m, xs: share(m, xs) * (sum(m.exp(x - xs[0]) for x in xs[1:]) * share(m, xs)),
        [row],
    ),
    "exp(log_softmax(x))": (
        share,
        lambda m, xs: share(m, xs) * (sum(m.exp(x - xs[0]) for x in xs[1:]) * share(m, xs)),
        [row],
    ),
    "log(sum(exp(x)))": (lambda m, xs: xs[0] - m.log(share(m, xs)), share, [row]),
    "log(mean(exp(x)))": (
        lambda m, xs: xs[0] - m.log(share(m, xs)) - m.log(len(xs)),
        share,
        [row],
    ),
    "log(sum(y exp(x)))": (
        lambda m, ys, xs: m.log(sum(y * m.exp(x) for y, x in zip(ys, xs, strict=True))),
        lambda m, ys, xs: m.exp(xs[0]) / sum(y * m.exp(x) for y, x in zip(ys, xs, strict=True)),
        [weights, row],
    ),
    "x - logsumexp(x)": (
        lambda m, xs: m.log(share(m, xs)),
        lambda m, xs: sum(m.exp(x - xs[0]) for x in xs[1:]) * share(m, xs),
        [row],
    ),
    "log(softmax(x))": (
        lambda m, xs: m.log(share(m, xs)),
        lambda m, xs: sum(m.exp(x - xs[0]) for x in xs[1:]) * share(m, xs),
        [row],
    ),
    "mean(x^2) - mean(x)^2": (
        lambda m, xs: average([(x - average(xs)) ** 2 for x in xs]),
        lambda m, xs: 2 * (xs[0] - average(xs)) / len(xs),
        [far_from_zero],
    ),
    "norm(x)^2": (lambda m, xs: sum(x * x for x in xs), lambda m, xs: 2 * xs[0], [row]),
    "std(x)^2": (
        lambda m, xs: average([(x - average(xs)) ** 2 for x in xs]),
        lambda m, xs: 2 * (xs[0] - average(xs)) / len(xs),
        [far_from_zero],
    ),
    "std(x, ddof=1)^2": (
        lambda m, xs: average([(x - average(xs)) ** 2 for x in xs]) * len(xs) / (len(xs) - 1),
        lambda m, xs: 2 * (xs[0] - average(xs)) / (len(xs) - 1),
        [far_from_zero],
    ),
    "mean(x y) - mean(x) mean(y)": (
        lambda m, xs, ys: average(
            [(x - average(xs)) * (y - average(ys)) for x, y in zip(xs, ys, strict=True)]
        ),
        lambda m, xs, ys: (ys[0] - average(ys)) / len(xs),
        [far_from_zero, far_from_zero],
    ),
}
"""For each formula of rows: its first element, the derivative in the first number, and its operands."""


def errors(values, exact, dtype):
    """The errors of `values` in units in the last place of `exact`; 0 where that is out of range."""
    info = onp.finfo(dtype)
    found = []
    for value, true in zip(values.astype("float64").tolist(), exact, strict=True):
        size = abs(true)
        if not info.tiny < size < info.max:
            found.append(0.0)
        elif not onp.isfinite(value):
            found.append(onp.inf)
        else:
            unit = mpmath.ldexp(float(info.eps), int(mpmath.frexp(size)[1]) - 1)
            found.append(float(abs(value - true) / unit))
    return onp.array(found)


def is_accurate(errors, args):
    """Where the errors of all neighbours, in the order of the first operand, are small: not by luck."""
    order = onp.argsort(args[0])
    windows = onp.lib.stride_tricks.sliding_window_view(onp.pad(errors[order], 25, "edge"), 51)
    found = onp.empty(len(errors), bool)
    found[order] = windows.max(-1) <= ACCURATE
    return found


class Measured(NamedTuple):
    """A formula at some points: `errors` of the plain and the stable one, for value and derivative.

    `condition` is the change of the exact value by one unit in the last place of each operand, in
    units in the last place of it; None for formulas of rows.
    """

    args: list
    errors: list
    condition: onp.ndarray | None


def first_element(plain):
    """The formula of rows, of which each gives one number."""
    return fx.vmap(lambda *xs: np.ravel(plain(*xs))[0])


def measure(formulas, count, dtype, seed=0):
    """Each of `formulas` at `count` points, by two programs for all of them."""
    rng = onp.random.default_rng(seed)
    references = REFERENCES | ROW_REFERENCES
    args = {
        f.text: [domain(rng, count).astype(dtype) for domain in references[f.text][2]]
        for f in formulas
    }

    def both(args):
        found = []
        for formula in formulas:
            of_rows = formula.text in ROW_REFERENCES
            fun = first_element(formula.plain) if of_rows else formula.plain
            out, pullback = fx.vjp(fun, *args[formula.text])
            slope = pullback(onp.ones(count, dtype))[0]
            found.append((out, slope[:, 0] if of_rows else slope))
        return found

    with fx.config.set(stable_formulas=False):
        plain = fx.jit(both)(args)
    stable = fx.jit(both)(args)
    measured = {}
    with mpmath.workprec(160):
        for formula, before, after in zip(formulas, plain, stable, strict=True):
            own = args[formula.text]
            points = list(zip(*[exact_numbers(arg) for arg in own], strict=True))
            exact = [[f(mpmath, *xs) for xs in points] for f in references[formula.text][:2]]
            pairs = [
                [errors(onp.asarray(side[i]), exact[i], dtype) for side in (before, after)]
                for i in range(2)
            ]
            condition = None
            if formula.text in REFERENCES:
                each = zip(points, *exact, strict=True)
                change = [
                    float(sum(map(abs, xs)) * abs(d / y)) if y else onp.inf for xs, y, d in each
                ]
                condition = onp.array(change)
            measured[formula.text] = Measured(own, pairs, condition)
    return measured


def exact_numbers(x):
    """The numbers of an array as those of mpmath; of a matrix in rows."""
    if x.ndim == 1:
        return [mpmath.mpf(float(number)) for number in x]
    return [exact_numbers(row) for row in x]


CHUNK = 20_000


def main(count=10_000, dtype="float32"):
    table.update()
    print(f"{count} points, {dtype}; errors in units in the last place")
    print(f"{'':42}{'accurate':>10}{'all':>10}{'plain wrong':>13}")
    for each in table.rows:
        formula = each.formula
        if formula.text not in REFERENCES | ROW_REFERENCES:
            print(formula.text, "is not measured")
            continue
        summary = onp.zeros((2, 3))
        chunks = max(count // CHUNK, 1)
        for seed in range(chunks):
            found = measure([formula], min(count, CHUNK), dtype, seed)[formula.text]
            for i, (plain, stable) in enumerate(found.errors):
                # Where the plain formula is not good by luck alone: so are its neighbours.
                keys = [x if x.ndim == 1 else x.max(-1) for x in found.args]
                accurate = onp.where(is_accurate(plain, keys), stable, 0.0)
                worst = [accurate.max(), stable.max()]
                summary[i, :2] = onp.maximum(summary[i, :2], worst)
                summary[i, 2] += (plain > WRONG).mean() / chunks
        for name, (accurate, every, wrong) in zip(("", "  derivative"), summary, strict=True):
            text = (name or formula.text)[:41]
            print(f"{text:42}{accurate:10.2f}{every:10.3g}{wrong:13.2%}", flush=True)


if __name__ == "__main__":
    if "float64" in sys.argv:
        fx.config.update("jax_enable_x64", True)
    main(*[int(a) if a.isdigit() else a for a in sys.argv[1:]])
