"""Distributions: classes with functions of standardized values, and the public functions made of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from inspect import Parameter, Signature, cleandoc
from operator import and_
from types import ModuleType
from typing import ClassVar

from functx.core.argument_errors import mismatch_error
from functx.core.primitive import Primitive, rule
from functx.core.samples import Rounding, f32, sample
from functx.core.types import ShapedArray
from functx.core.typing import ArrayLike, Dim, Value, Values
from functx.numpy.promotion import broadcast, promote_real
from functx.numpy.ufuncs import exp, log, where
from functx.ops.families import align_batch_dims, check_same_dtype, elementwise_shape
from functx.ops.operands import cast_like, upcast_half
from functx.scipy.stats.kernels import exp_of_log, log_probability

INF = math.inf

DESCRIPTIONS = {
    "pdf": "The density",
    "logpdf": "The logarithm of the density",
    "pmf": "The probability",
    "logpmf": "The logarithm of the probability",
    "cdf": "The probability of values up to {}",
    "logcdf": "The logarithm of the probability of values up to {}",
    "sf": "The probability of values above {}",
    "logsf": "The logarithm of the probability of values above {}",
    "ppf": "The quantile, the inverse of `cdf`,",
    "isf": "The inverse of `sf`",
    "entropy": "The differential entropy",
}
"""The beginning of the docstring of each public function."""

DEFAULTS = {"loc": 0, "scale": 1}
CONTINUOUS = ("pdf", "logpdf", "cdf", "logcdf", "sf", "logsf", "ppf", "isf")
QUANTILES = ("ppf", "isf")
OUTSIDE = {
    "pdf": (0.0, 0.0),
    "logpdf": (-INF, -INF),
    "cdf": (0.0, 1.0),
    "logcdf": (-INF, 0.0),
    "sf": (1.0, 0.0),
    "logsf": (0.0, -INF),
}
"""The values of functions below and above the support."""


class Distribution:
    """A probability distribution, whose methods the public functions of its module call.

    The methods get traced arrays of one floating-point dtype, in single precision for half floats,
    that broadcast to each other.
    """

    name: ClassVar[str]
    """The name of its module in `functx.scipy.stats`."""
    shapes: ClassVar[tuple[str, ...]] = ()
    """The names of its parameters beside `loc` and `scale`."""
    functions: ClassVar[tuple[str, ...]]
    """The names of its public functions."""
    parameters: ClassVar[tuple[str, ...]] = ("loc",)
    """The names of the parameters after the shapes, which have defaults."""
    variable: ClassVar[str] = "k"
    quantile_variable: ClassVar[str] = "q"

    @rule
    def evaluate(self, function: str, *args: Value) -> Value:
        """The public function `function` of its arguments."""
        raise NotImplementedError

    def arguments(self, function: str) -> dict[str, int | None]:
        """The names of the arguments of `function`, with their defaults."""
        variable = self.quantile_variable if function in QUANTILES else self.variable
        required = dict.fromkeys([variable, *self.shapes])
        return {**required, **{name: DEFAULTS[name] for name in self.parameters}}

    @rule
    def is_valid(self, *shapes: Value) -> ArrayLike:
        """Where the parameters are those of a distribution; by default, where they are positive."""
        return all_of([shape > 0 for shape in shapes])

    @rule
    def product(self, x: Value, *shapes: Value) -> Value | None:
        """The density or the probability as a product of powers, for where one is 0 or infinite.

        None for distributions without such a factor.
        """
        return None

    def density(self, log_density: Value, x: Value, *shapes: Value) -> Value:
        """The density or the probability, by its logarithm."""
        product = self.product(x, *shapes)
        return exp(log_density) if product is None else exp_of_log(log_density, product)


class ContinuousDistribution(Distribution):
    """A distribution with a density; it defines `logpdf` and `cdf`, and what is accurate otherwise.

    The methods are functions of z = (x - loc) / scale, or of a probability, and of the shapes.
    """

    functions: ClassVar[tuple[str, ...]] = CONTINUOUS
    parameters: ClassVar[tuple[str, ...]] = ("loc", "scale")
    variable = "x"

    low: ClassVar[float] = -INF
    high: ClassVar[float] = INF
    formulas_at_infinity: ClassVar[tuple[str, ...]] = ()
    """The functions whose formulas hold at infinite values too, with their derivatives."""

    @rule
    def support(self, *shapes: Value) -> tuple[Value | float, Value | float]:
        """The smallest and the largest value with a positive density."""
        return self.low, self.high

    @rule
    def logpdf(self, z: Value, *shapes: Value) -> Value:
        raise NotImplementedError

    @rule
    def cdf(self, z: Value, *shapes: Value) -> Value:
        raise NotImplementedError

    @rule
    def sf(self, z: Value, *shapes: Value) -> Value:
        raise NotImplementedError

    @rule
    def logcdf(self, z: Value, *shapes: Value) -> Value:
        return log_probability(self.cdf(z, *shapes), self.sf(z, *shapes))

    @rule
    def logsf(self, z: Value, *shapes: Value) -> Value:
        return log_probability(self.sf(z, *shapes), self.cdf(z, *shapes))

    @rule
    def ppf(self, q: Value, *shapes: Value) -> Value:
        raise NotImplementedError

    @rule
    def isf(self, q: Value, *shapes: Value) -> Value:
        raise NotImplementedError

    def evaluate(self, function: str, x: Value, *args: Value) -> Value:
        shapes, location = args[: len(self.shapes)], args[len(self.shapes) :]
        loc, scale = location or (0.0, 1.0)
        conditions = [self.is_valid(*shapes)]
        if function != "logpdf":
            # The logarithm of the scale, the last term of `logpdf`, says the same.
            conditions.append(scale > 0)
        if function in QUANTILES:
            out = getattr(self, function)(x, *shapes) * scale + loc
            conditions += [x >= 0, x <= 1]
        else:
            z = (x - loc) / scale if location else x
            out = self.evaluate_in_support(function, z, shapes, scale)
        is_valid = all_of(conditions)
        return out if is_valid is True else where(is_valid, out, math.nan)

    def evaluate_in_support(
        self, function: str, z: Value, shapes: Values, scale: Value | float
    ) -> Value:
        """The function of z, with its limits outside of the support."""
        if function == "pdf":
            out = self.density(self.logpdf(z, *shapes), z, *shapes) / scale
        else:
            out = getattr(self, function)(z, *shapes)
        if function not in self.formulas_at_infinity:
            low, high = self.support(*shapes)
            below, above = OUTSIDE[function]
            is_below = z == -INF if isinstance(low, float) and low == -INF else z < low
            is_above = z == INF if isinstance(high, float) and high == INF else z > high
            out = where(is_above, above, where(is_below, below, out))
        return out - log(scale) if function == "logpdf" else out


class SymmetricDistribution(ContinuousDistribution):
    """A distribution with equal densities at z and -z; it defines `logpdf`, `cdf` and `ppf`."""

    @rule
    def sf(self, z: Value, *shapes: Value) -> Value:
        return self.cdf(-z, *shapes)

    @rule
    def logsf(self, z: Value, *shapes: Value) -> Value:
        return self.logcdf(-z, *shapes)

    @rule
    def isf(self, q: Value, *shapes: Value) -> Value:
        return -self.ppf(q, *shapes)


def all_of(conditions: Sequence[Value | bool]) -> ArrayLike:
    """Where all conditions hold; those that are not True are arrays."""
    arrays = [condition for condition in conditions if condition is not True]
    return reduce(and_, arrays) if arrays else True


class DistributionFunction(Primitive):
    """A function of `functx.scipy.stats` that is named as its module and itself: `norm.logpdf`."""

    function: str
    accepts: ClassVar[str] = "f"
    rounding = Rounding(ulps=64.0)
    samples = (
        sample(f32[3], f32[3], f32[()], function="norm.logpdf", domain={2: (0.5, 2.0)}),
        sample(f32[3], f32[()], f32[()], f32[()], function="pareto.cdf", domain=(0.3, 0.9)),
    )

    def abstract_eval(self, *avals: ShapedArray) -> ShapedArray:
        check_same_dtype(self, avals)
        shape = elementwise_shape(self, avals)
        return ShapedArray(shape, avals[0].dtype, all([aval.weak_type for aval in avals]))

    def decompose(self, *args: Value) -> Value:
        name, _, function = self.function.partition(".")
        out = DISTRIBUTIONS[name].evaluate(function, *[upcast_half(x) for x in args])
        return cast_like(out, args[0])

    def batch(self, args: Values, dims: Sequence[int | None]) -> tuple[Value, Dim]:
        args, dim = align_batch_dims(args, dims)
        return self(*args), dim


DISTRIBUTIONS: dict[str, Distribution] = {}
"""The distributions by name."""


def add_modules(package: str, distributions: Sequence[Distribution]) -> None:
    """Give `package` a module for each distribution, which holds its functions."""
    for distribution in distributions:
        DISTRIBUTIONS[distribution.name] = distribution
        name = f"{package}.{distribution.name}"
        module = ModuleType(name, distribution.__doc__)
        for function in distribution.functions:
            setattr(module, function, _public_function(distribution, function, name))
        module.__all__ = list(distribution.functions)  # type: ignore[attr-defined]
        sys.modules[name] = module
        setattr(sys.modules[package], distribution.name, module)


def _public_function(distribution: Distribution, name: str, module: str) -> Callable[..., Value]:
    path = f"{distribution.name}.{name}"
    arguments = distribution.arguments(name)
    defaults = tuple(arguments.values())
    counts = range(defaults.count(None), len(defaults) + 1)
    signature = Signature(
        [
            Parameter(
                argument,
                Parameter.POSITIONAL_OR_KEYWORD,
                default=Parameter.empty if default is None else default,
            )
            for argument, default in arguments.items()
        ]
    )

    def function(*args: ArrayLike, **kwargs: ArrayLike) -> Value:
        if kwargs or len(args) not in counts:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as mismatch:
                raise mismatch_error(signature, path, mismatch, args, kwargs) from None
            bound.apply_defaults()
            args = bound.args
        operands = promote_real(path, *args, *defaults[len(args) :])  # type: ignore[arg-type]
        return DistributionFunction(path)(*broadcast(*operands))

    function.__name__ = function.__qualname__ = name
    function.__module__ = module
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__doc__ = _docstring(name, next(iter(arguments)), distribution)
    return function


def _docstring(name: str, variable: str, distribution: Distribution) -> str:
    text = cleandoc(distribution.__doc__ or "")
    return f"{DESCRIPTIONS[name].format(f'`{variable}`')} of {text[0].lower()}{text[1:]}"
