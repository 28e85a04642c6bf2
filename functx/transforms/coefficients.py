"""Taylor coefficients along curves, and the lazy series of them of a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from functx import ops
from functx.core.program import scalar_literal
from functx.core.rewriting import Record
from functx.core.tracer import aval_of
from functx.core.types import ShapedArray, is_complex
from functx.core.typing import Value
from functx.transforms.batching import add_axis


class Curves(Record):
    """The curves along which series are computed, up to coefficient `order`.

    With `directions`, there are so many curves through one point. Then the coefficients below the highest
    have a leading axis of that length, and the highest is the sum over all curves, which is all that is
    ever computed of it: it depends linearly on the highest coefficients before it (Dangel et al. 2025,
    "Collapsing Taylor mode automatic differentiation"). In that sum the last `negative` curves count -1.
    """

    order: int
    directions: int | None = None
    negative: int = 0

    def is_batched(self, degree: int) -> bool:
        """Whether coefficients of this degree have the axis of the curves."""
        return self.directions is not None and 0 < degree < self.order

    def aval(self, aval: ShapedArray, degree: int) -> ShapedArray:
        """The type of the coefficient of this degree of a value."""
        return add_axis(aval, 0, self.directions or 0) if self.is_batched(degree) else aval

    def common_degree(self, degrees: Sequence[int]) -> int:
        """The one degree of coefficients that are added; UncollapsedError if they have several."""
        if self.directions is not None and len(set(degrees)) > 1:
            raise UncollapsedError
        return degrees[0]

    def move_axis(self, x: Value, degree: int, source: int, destination: int) -> Value:
        """A coefficient of this degree with the axis of the curves, if it has it, at another place."""
        return ops.moveaxis(x, source, destination) if self.is_batched(degree) else x

    def collapse(self, x: Value) -> Value:
        """The sum over the curves of `x`, whose leading axis they are."""
        if self.negative:
            numbers = ops.broadcasted_iota("int32", x.shape, 0)
            is_positive = ops.lt(numbers, self.directions - self.negative)  # type: ignore[operator]
            x = ops.select(is_positive, x, ops.neg(x))
        return ops.reduce_sum(x, (0,))


class Coefficient(NamedTuple):
    """A Taylor coefficient, and the power of the curves' parameter that it belongs to.

    In the series of a derivative, coefficient k has the degree k + 1.
    """

    value: Value
    degree: int


class UncollapsedError(Exception):
    """Raised for an operation whose coefficients cannot be summed over the curves as they are computed.

    Such is a loop in the `jvp` rule of a user's function, which adds products of derivatives.
    """


def scaled_value(x: Value, factor: float) -> Value:
    """An array times a number, of the same type: weak if the array is. Numbers stay numbers."""
    if factor == 1:
        return x
    if isinstance(x, (float, complex)):
        return x * factor
    aval = aval_of(x)
    number = complex if is_complex(aval.dtype) else float
    literal = scalar_literal(number(factor), aval.dtype, aval.weak_type, repr(factor))
    return ops.mul(x, literal)


def scaled(c: Coefficient | None, factor: float) -> Coefficient | None:
    """A coefficient times a number, of the same type."""
    return c and Coefficient(scaled_value(c.value, factor), c.degree)


class Series:
    """The Taylor coefficients of a value of type `aval`: `series[k]`, None for zero.

    `compute(k)` gives a coefficient when it is first read. `is_shifted` marks a series that is linear in a
    derivative, whose first coefficient has a degree above 0.
    """

    __slots__ = ("aval", "coefficients", "compute", "is_constant", "is_shifted")

    def __init__(
        self,
        aval: ShapedArray,
        compute: Callable[[int], Coefficient | None],
        is_constant: bool = False,
        is_shifted: bool = False,
    ):
        self.aval = aval
        self.compute = compute
        self.is_constant = is_constant
        self.is_shifted = is_shifted
        self.coefficients: dict[int, Coefficient | None] = {}

    @staticmethod
    def constant(x: Value) -> Series:
        """The series of a value that does not vary."""
        first = Coefficient(x, 0)
        return Series(aval_of(x), lambda k: None if k else first, is_constant=True)

    @staticmethod
    def given(x: Value, coefficients: Sequence[Value | None]) -> Series:
        """The series of an input with these coefficients, from the first order on."""
        values = [x, *coefficients]

        def compute(k: int) -> Coefficient | None:
            value = values[k] if k < len(values) else None
            return None if value is None else Coefficient(value, k)

        return Series(aval_of(x), compute, is_constant=all(c is None for c in coefficients))

    def __getitem__(self, k: int) -> Coefficient | None:
        if k not in self.coefficients:
            self.coefficients[k] = self.of_own_type(self.compute(k))
        return self.coefficients[k]

    def of_own_type(self, c: Coefficient | None) -> Coefficient | None:
        """`c`, weakly typed if the value is, since rules that are traced for the value take it."""
        if c is None or aval_of(c.value).weak_type == self.aval.weak_type:
            return c
        value = ops.convert_element_type(c.value, c.value.dtype, self.aval.weak_type)
        return Coefficient(value, c.degree)

    @property
    def first(self) -> Coefficient:
        """Coefficient 0, with zeros for None."""
        return self[0] or Coefficient(ops.zeros_like(self.aval), 0)
