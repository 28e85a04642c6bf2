"""The family of elementwise functions with parameters that are computed by loops, and the loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

from ml_dtypes import finfo

from functx import ops
from functx.core.errors import MissingRuleError
from functx.core.primitive import Primitive, rule
from functx.core.tracer import aval_of
from functx.core.tracing import trace_closed
from functx.core.types import DType, ShapedArray, is_integer
from functx.core.typing import Tangent, Value, Values
from functx.ops.families import Elementwise, check_same_dtype, elementwise_shape
from functx.ops.operands import cast_like, upcast_half
from functx.transforms.call_primitive import Call
from functx.transforms.control.loops import while_loop
from functx.transforms.jvp import jvp

State = tuple[Value, ...]


class KernelFunction(Elementwise, abstract=True):
    """An elementwise function computed by a `kernel`, which XLA compiles once for all calls."""

    accepts = "f"

    @rule
    def kernel(self, *args: Value) -> Value:
        """The function of arrays of one shape in single or double precision."""
        raise self.missing_rule_error("kernel")

    def decompose(self, *args: Value) -> Value:
        wide = widen(args)

        def body(*args: Value) -> list[Value]:
            return [self.kernel(*args)]

        program = trace_closed(body, [aval_of(x) for x in wide], name=self.name)
        return cast_like(Call(program, noinline=True)(*wide)[0], args[-1])


class FunctionOfOrder(KernelFunction, abstract=True):
    """A function of one or more orders, its first operands, that is differentiable in the last one.

    Orders are integers, or have the dtype of the last operand.
    """

    num_orders: ClassVar[int] = 1

    @rule
    def derivative(self, out: Value, *args: Value) -> Value:
        """The derivative in the last operand."""
        raise self.missing_rule_error("derivative")

    def abstract_eval(self, *avals: ShapedArray) -> ShapedArray:
        orders = [a for a in avals[: self.num_orders] if not is_integer(a.dtype)]
        check_same_dtype(self, [avals[-1], *orders])
        weak = all([aval.weak_type for aval in avals])
        return ShapedArray(elementwise_shape(self, avals), avals[-1].dtype, weak)

    def partial(self, i: int, t: Value, out: Value, *args: Value) -> Tangent:
        if i < self.num_orders:
            raise MissingRuleError(f"{self.name}: an order must not be differentiated")
        return t * self.derivative(out, *[ops.convert_element_type(x, t.dtype) for x in args])

    def decompose(self, *args: Value) -> Value:
        return super().decompose(*[ops.convert_element_type(x, args[-1].dtype) for x in args])


class ParametricFunction(KernelFunction, abstract=True):
    """A function whose derivatives in some operands have no formula.

    `orders` counts the derivatives in each operand, all 0 if it is empty. A subclass defines `value`,
    and `slope` for the operands in which the derivative has a formula; the derivatives in the others
    are those of the steps of `value`.
    """

    orders: tuple[int, ...] = ()

    @rule
    def value(self, *args: Value) -> Value:
        """The function without derivatives."""
        raise self.missing_rule_error("value")

    @rule
    def slope(self, i: int, *args: Value) -> Value | None:
        """The derivative of `value` in operand `i`; None if it has no formula."""
        return None

    def kernel(self, *args: Value) -> Value:
        return derivative(self.value, self.orders)(*args)

    def partial(self, i: int, t: Value, out: Value, *args: Value) -> Tangent:
        wide = widen(args)
        if self.slope(i, *wide) is None:
            return t * self.differentiated(i)(*args)

        def slope(*args: Value) -> Value:
            out = self.slope(i, *args)
            assert out is not None
            return out

        return t * cast_like(derivative(slope, self.orders)(*wide), t)

    def differentiated(self, i: int) -> Primitive:
        """The derivative of the function in operand `i`, a function of the same family."""
        fields = {field: getattr(self, field) for field in self.fields}
        count = max(len(self.orders), i + 1)
        orders = [*self.orders, *[0] * (count - len(self.orders))]
        orders[i] += 1
        return type(self)(**{**fields, "orders": tuple(orders)})


def widen(args: Values) -> list[Value]:
    """The operands of an elementwise operation in one shape, half floats in single precision."""
    like = next((x for x in args if x.shape), args[0])
    return [upcast_half(ops.full(like.shape, x) if x.shape != like.shape else x) for x in args]


def derivative(function: Callable[..., Value], orders: Sequence[int]) -> Callable[..., Value]:
    """The elementwise `function`, differentiated `orders[i]` times in operand i."""
    for i, order in enumerate(orders):
        for _ in range(order):
            function = _derivative_in(i, function)
    return function


def _derivative_in(i: int, function: Callable[..., Value]) -> Callable[..., Value]:
    def slope(*args: Value) -> Value:
        tangents = [ops.constant_like(x, 1.0) if j == i else None for j, x in enumerate(args)]
        tangent: Value = jvp(function, args, tangents)[1]
        return tangent

    return slope


def iterate(
    step: Callable[[Value, State], tuple[State, Value]],
    state: State,
    dtype: DType,
    limit: int = 20000,
    extra: float = 6.0,
) -> State:
    """The state after `step(k, state)` for k = 1, 2, ... until it has settled.

    `step` returns the next state and where it still changes. A fifth of the number of steps and
    `extra` ones follow the last change, in which the derivatives settle, which lag behind the values.
    """

    def unsettled(carry: tuple[Value, Value, State]) -> Value:
        k, last, _ = carry
        return (k <= last * 1.2 + extra) & (k < limit)

    def advance(carry: tuple[Value, Value, State]) -> tuple[Value, Value, State]:
        k, last, state = carry
        state, changes = step(k, state)
        return k + 1.0, ops.select(ops.reduce_or(changes), k, last), state

    one = ops.full((), 1.0, dtype)
    final = while_loop(unsettled, advance, (one, one, state))
    result: State = final[2]
    return result


def sum_series(
    ratio: Callable[[Value], Value],
    first: Value,
    eps: float,
    factor: Callable[[Value], Value] | None = None,
    *,
    may_cancel: bool = False,
) -> Value:
    """The sum of the terms t_k = t_(k-1) `ratio(k)` `factor(k)` for k > 0, without t_0 = `first`.

    Its error is that of the sum with `first`.
    A `factor` may vanish, behind which the terms are zero, but not their derivatives.
    If terms of both signs `may_cancel`, the sum is nan where fewer than three digits are left.
    """

    def step(k: Value, state: State) -> tuple[State, Value]:
        total, term, size, *largest = state
        term, size = term * ratio(k), size * ops.abs(ratio(k))
        if factor is not None:
            term, size = term * factor(k), size * ops.max(ops.abs(factor(k)), 0.5)
        total = total + term
        largest = [ops.max(x, ops.abs(ops.stop_gradient(term))) for x in largest]
        is_open = size > eps * ops.max(ops.abs(total), ops.abs(first))
        return (total, term, size, *largest), is_open

    start = ops.zeros_like(first), first, ops.abs(first)
    total, _, _, *largest = iterate(
        step, (*start, ops.abs(first)) if may_cancel else start, first.dtype
    )
    for x in largest:
        scale = ops.max(ops.abs(first + total), ops.abs(first))
        total = ops.select(x * eps <= 2e-4 * scale, total, math.nan)
    return total


def continued_fraction(
    coefficients: Callable[[Value], tuple[Value, Value, Value]], first: Value, dtype: DType
) -> Value:
    """b_0 + a_1 / (b_1 + a_2 / (b_2 + ...)) with b_0 = `first` and `coefficients(k)` a_k, s_k and b_k.

    s_k is the size of a_k without factors that may vanish. `dtype` is the real dtype. By the modified
    Lentz method of Thompson and Barnett (1986), "Coulomb and Bessel functions of complex
    arguments and order".
    """
    eps, tiny = float(finfo(dtype).eps), float(finfo(dtype).tiny) * 1e4

    def nonzero(x: Value) -> Value:
        return ops.select(ops.abs(x) < tiny, tiny, x)

    def step(k: Value, state: State) -> tuple[State, Value]:
        total, c, d, change = state
        a, size, b = coefficients(k)
        inverse = 1.0 / nonzero(b + a * d)
        c = nonzero(b + a / c)
        # The change of the value by this step, relative to the value.
        change = change * size * ops.abs(inverse * ops.select(k == 1.0, 1.0 / start, d))
        return (total * (c * inverse), c, inverse, change), change > 0.1 * eps

    start = nonzero(first)
    state = (start, start, ops.zeros_like(start), ops.constant_like(ops.abs(start), 1.0))
    return iterate(step, state, dtype)[0]
