"""The equations of a stable formula, in the shape and dtype of the one that it replaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from ml_dtypes import finfo

from functx import ops
from functx.core.program import Atom, Equation, Var
from functx.core.source_info import derived_source
from functx.core.tracing import trace
from functx.core.types import DType, is_complex, real_dtype
from functx.core.typing import Value
from functx.passes.formula_matching import Dims, Match, PowerFactor


class Replacement(NamedTuple):
    """The formula `stable` of the operands that the inputs `names` of a pattern stand for, in place of `eqn`."""

    stable: Callable[..., Value]
    names: Sequence[Var]
    match: Match
    eqn: Equation

    def equations(self) -> tuple[Sequence[Equation], Atom] | None:
        """The equations of the stable formula and their result; None if its operands do not fit."""
        out = self.eqn.outputs[0]
        inputs = [self.match.bindings[v].written for v in self.names]
        factors = [factor.written for factor in self.match.rest]
        roots = [] if self.match.root is None else [self.match.root.core]
        atoms = [*[x.atom for x in (*inputs, *factors, *roots)], *self.eqn.inputs]
        try:
            program, _ = trace(self.body, [a.aval for a in atoms])
        except _DoesNotFit:
            return None
        env: dict[Atom, Atom] = dict(zip(program.inputs, atoms, strict=True))
        (result,) = program.outputs
        if type(result) is Var and result not in env:
            env[result] = out
        source = derived_source(self.eqn.source)
        equations = [
            Equation(
                each.primitive,
                [env.get(a, a) for a in each.inputs],
                [env.get(v, v) for v in each.outputs],  # type: ignore[misc]
                self.eqn.source if result in each.outputs else source,
                self.eqn.part,
            )
            for each in program.equations
        ]
        return equations, env.get(result, result)

    def body(self, *values: Value) -> list[Value]:
        match, out = self.match, self.eqn.outputs[0].aval
        inputs = [match.bindings[v].written for v in self.names]
        dtype = self.dtype()
        if not is_in_range(match.ratio, dtype):
            raise _DoesNotFit
        xs = [
            scale_by(value if is_complex(value.dtype) else cast(value, dtype), x.scale)
            for value, x in zip(values, inputs, strict=False)
        ]
        result = cast(self.evaluate(xs, [x.dims for x in inputs]), dtype)
        result = result if match.power == 1 else ops.integer_pow(result, match.power)
        result = scale_by(result, match.ratio)
        for factor, value in zip(match.rest, values[len(inputs) :], strict=False):
            other = place(cast(value, dtype), factor.written.dims, out.shape)
            power = abs(factor.power)
            other = other if power == 1 else ops.integer_pow(other, power)
            result = ops.mul(result, other) if factor.power > 0 else ops.div(result, other)
        if result.shape != out.shape:
            result = ops.broadcast_in_dim(result, out.shape, ())
        if result.aval is not out:
            result = ops.convert_element_type(result, out.dtype, out.weak_type)
        if match.root is not None and (match.rest or not is_moderate(match.ratio)):
            last = values[len(inputs) + len(match.rest) :]
            result = self.where_root_is_zero(match.root, result, *last)
        return [result]

    def where_root_is_zero(
        self, root: PowerFactor, x: Value, value: Value, *inputs: Value
    ) -> Value:
        """The product as the user wrote it, with the derivative of the stable `x` where the root is 0.

        `value` is that of the root. Factors between two roots may keep a product in range where the square
        of the root is not.
        """
        written: Value = self.eqn.primitive(*inputs)
        is_zero = place(ops.eq(value, 0.0), root.core.dims, x.shape)
        if is_zero.shape != x.shape:
            is_zero = ops.broadcast_in_dim(is_zero, x.shape, ())
        return ops.WithValue()(ops.select(is_zero, x, written), written)

    def dtype(self) -> DType:
        """The type of the operands and of the result; float32 for multiples of 16-bit ones, which may overflow."""
        match, out = self.match, self.eqn.outputs[0].aval
        inputs = [match.bindings[v].written.atom for v in self.names]
        dtype = widest([out.dtype, *[real_dtype(x.aval.dtype) for x in inputs]])
        is_multiple = abs(match.ratio) != 1 or match.rest
        return np.dtype("float32") if is_multiple and dtype.itemsize == 2 else dtype

    def evaluate(self, xs: list[Value], dims: list[Dims]) -> Value:
        """The stable formula of `xs`, whose dimensions lie at `dims`, in the shape of the result."""
        match, out = self.match, self.eqn.outputs[0].aval
        places = {d for d in dims if d}
        if match.axes is None:
            if len(places) == 1 and _is_order(next(iter(places))):
                return place(self.stable(*xs), next(iter(places)), out.shape)
            return self.stable(*[place(x, d, out.shape) for x, d in zip(xs, dims, strict=True)])
        if len(places) != 1 or any([not d for d in dims]):
            raise _DoesNotFit
        (own,) = places
        summed = tuple([i for i, d in enumerate(own) if d is not None and d < 0])
        axes = summed or match.axes
        if len(axes) != len(match.axes) or (not summed and own != tuple(range(len(own)))):
            raise _DoesNotFit
        result = self.stable(*xs, axes)
        kept = (
            tuple([d for i, d in enumerate(own) if i not in axes])
            if result.ndim < len(own)
            else own
        )
        return place(result, kept, out.shape)


class _DoesNotFit(Exception):
    """Raised where the operands of a match have shapes for which there is no stable formula."""


def widest(dtypes: Sequence[DType]) -> DType:
    """The widest of some float types; float32 for two types of 16 bits."""
    size = max([d.itemsize for d in dtypes])
    found = {d for d in dtypes if d.itemsize == size}
    return found.pop() if len(found) == 1 else np.dtype("float32")


def is_in_range(number: float, dtype: DType) -> bool:
    """Whether a number is a normal one of a float type."""
    info = finfo(dtype)
    return float(info.tiny) <= abs(number) <= float(info.max)


def cast(x: Value, dtype: DType) -> Value:
    return x if x.dtype == dtype else ops.convert_element_type(x, dtype)


def scale_by(x: Value, scale: float) -> Value:
    if scale == 1:
        return x
    return ops.neg(x) if scale == -1 else ops.mul(x, scale)


def is_moderate(ratio: float) -> bool:
    """Whether it matters little to overflow if a product is multiplied by `ratio` early or late."""
    return 2.0**-8 <= abs(ratio) <= 2.0**8


def place(x: Value, dims: Dims, shape: tuple[int, ...]) -> Value:
    """`x`, whose dimensions lie at `dims` of the result, in the `shape` of the result or a scalar."""
    if not x.ndim or (x.shape == shape and dims == tuple(range(len(shape)))):
        return x
    kept = tuple([d for d in dims if d is not None])
    if not _is_order(kept):
        raise _DoesNotFit
    if len(kept) < len(dims):
        x = ops.reshape(x, tuple([n for n, d in zip(x.shape, dims, strict=True) if d is not None]))
    return ops.broadcast_in_dim(x, shape, kept)


def _is_order(dims: Dims) -> bool:
    """Whether dimensions lie at places of the result in increasing order."""
    known = [d for d in dims if d is not None and d >= 0]
    return len(known) == len(dims) and all([a < b for a, b in pairwise(known)])
