"""`reduce` and `reduce_window`: elements combined by a function that the user gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from functx.core import tree
from functx.core.avals import ShapedArray
from functx.core.dtypes import kind
from functx.core.errors import (
    ArgumentError,
    DTypeError,
    EffectError,
    ShapeError,
    TreeError,
    type_name,
)
from functx.core.primitive import Primitive
from functx.core.program import Literal, Program
from functx.core.tracebacks import api_boundary
from functx.core.tracing import Tracer, aval_of
from functx.ops.arithmetic import Add, Max, Min, Mul
from functx.ops.joining import pad
from functx.ops.logical import And, Or, Xor
from functx.ops.operands import canonical_axis_sequence
from functx.ops.reductions import (
    ReduceAnd,
    ReduceMax,
    ReduceMin,
    ReduceOr,
    ReduceProd,
    ReduceSum,
    ReduceXor,
    highest,
    lowest,
)
from functx.ops.window_shapes import check_window, make_window
from functx.ops.windows import ReduceWindowMax, ReduceWindowMin, ReduceWindowSum
from functx.transforms.calls import trace_function
from functx.transforms.control.reducers import Reduce, ReduceWindow
from functx.transforms.control.tracing import (
    body_name,
    cast_outputs,
    cast_to_strong,
    check_callables,
    common_aval,
)


class Monoid(NamedTuple):
    """An associative operation that has a reduction of its own, and its neutral element."""

    reduction: type[Primitive]
    neutral: Callable[[Any], Any]
    window_reduction: type[Primitive] | None = None


_MONOIDS: dict[type[Primitive], Monoid] = {
    Add: Monoid(ReduceSum, lambda dtype: 0, ReduceWindowSum),
    Mul: Monoid(ReduceProd, lambda dtype: 1),
    Max: Monoid(ReduceMax, lowest, ReduceWindowMax),
    Min: Monoid(ReduceMin, highest, ReduceWindowMin),
    And: Monoid(ReduceAnd, lambda dtype: -1 if kind(dtype) == "i" else highest(dtype)),
    Or: Monoid(ReduceOr, lambda dtype: 0),
    Xor: Monoid(ReduceXor, lambda dtype: 0),
}


def monoid_of(program: Program) -> tuple[Primitive, Monoid] | None:
    """The operation that is all that `program` does to its two inputs, if it is a known one."""
    if len(program.inputs) != 2 or len(program.equations) != 1:
        return None
    (eqn,) = program.equations
    monoid = _MONOIDS.get(type(eqn.primitive))
    if monoid is None or eqn.outputs != program.outputs or {*eqn.inputs} != {*program.inputs}:
        return None
    return eqn.primitive, monoid


class ReduceCall(NamedTuple):
    """A checked call: leaves of the operands and scalars, what combines them, its consts."""

    xs: list[Any]
    init_values: list[Any]
    program: Program
    consts: list[Any]
    out_tree: Any

    def monoid(self, windowed: bool) -> tuple[Primitive, Any, Any] | None:
        """The operation, its reduction, and the scalar unless it is neutral."""
        found = monoid_of(self.program) if not self.consts else None
        if found is None:
            return None
        operation, monoid = found
        reduction: Any = monoid.window_reduction if windowed else monoid.reduction
        dtype = aval_of(self.xs[0]).dtype
        if reduction is None or kind(dtype) not in reduction.accepts:
            return None
        start = self.init_values[0]
        neutral = kind(dtype) != "c" or reduction in (ReduceSum, ReduceProd, ReduceWindowSum)
        if neutral and _equals_number(start, monoid.neutral(dtype)):
            start = None
        return operation, reduction, start


def _equals_number(x: Any, number: Any) -> bool:
    if type(x) is Tracer:
        x = x.atom
    value = x.value if type(x) is Literal else x
    return isinstance(value, (bool, int, float, complex, np.generic, np.ndarray)) and bool(
        value == number
    )


@api_boundary
def reduce(
    operands: Any,
    init_values: Any,
    computation: Callable[[Any, Any], Any],
    dimensions: Sequence[int],
) -> Any:
    """The elements of `operands` over `dimensions` combined by `computation`, two at a time.

    `operands` is an array, or a pytree of arrays of one shape; `init_values` has the same
    structure, of scalars. `computation(x, y)` takes two scalars, or two such pytrees of them,
    and returns another. It must be associative; the result begins with the initial values,
    once. It may use values around it. A computation that is one operation, as `lax.add`, is
    reduced by the reduction of that name, which has its rules for ties.

    Raises TreeError, ShapeError and DTypeError where operands, initial values and results of
    `computation` do not fit each other.

    >>> import functx, numpy
    >>> x = numpy.array([[1.0, 2.0], [3.0, 4.0]])
    >>> functx.lax.reduce(x, 1.0, lambda x, y: x * y, (1,)).tolist()
    [2.0, 12.0]
    """
    call = _check_reduce_call("reduce", operands, init_values, computation)
    shape = aval_of(call.xs[0]).shape
    axes = canonical_axis_sequence(dimensions, len(shape), "reduce: dimensions")
    found = call.monoid(windowed=False)
    if found is None:
        outs = Reduce(call.program, axes)(*call.xs, *call.init_values, *call.consts)
        return tree.unflatten(call.out_tree, outs)
    operation, reduction, start = found
    total = reduction(axes)(call.xs[0])
    return tree.unflatten(call.out_tree, [total if start is None else operation(start, total)])


@api_boundary
def reduce_window(
    operand: Any,
    init_value: Any,
    computation: Callable[[Any, Any], Any],
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> Any:
    """The elements in each window of `operand` combined by `computation`, two at a time.

    `operand`, `init_value` and `computation` are as in `reduce`. The windows begin at
    multiples of `window_strides`; their elements lie `window_dilation` apart. The operand gets
    `base_dilation - 1` holes between neighbours, and `padding`: "VALID", "SAME", "SAME_LOWER",
    or a pair `(low, high)` for each dimension. Holes and padding consist of `init_value`. A
    derivative of the maximum or minimum goes through the first element of those that tie.

    Raises as `reduce`, and ShapeError, ValueRangeError and ArgumentError for windows that do
    not fit the operand.

    >>> import functx, numpy
    >>> x = numpy.arange(6.0)
    >>> functx.lax.reduce_window(x, 0.0, functx.lax.add, (2,), (2,), "VALID").tolist()
    [1.0, 5.0, 9.0]
    """
    call = _check_reduce_call("reduce_window", operand, init_value, computation)
    window = make_window(
        "reduce_window",
        aval_of(call.xs[0]).shape,
        window_dimensions,
        window_strides,
        padding,
        base_dilation,
        window_dilation,
    )
    found = call.monoid(windowed=True)
    if found is None:
        outs = ReduceWindow(call.program, *window)(*call.xs, *call.init_values, *call.consts)
        return tree.unflatten(call.out_tree, outs)
    operation, reduction, start = found
    (x,) = call.xs
    if start is not None and reduction is ReduceWindowSum:
        check_window("reduce_window", aval_of(x).shape, window)
        x, window = pad(x, start, window.pad_config()), window.without_padding()
    total = reduction(*window)(x)
    return tree.unflatten(call.out_tree, [total if start is None else operation(start, total)])


def _check_reduce_call(what: str, operands: Any, init_values: Any, computation: Any) -> ReduceCall:
    check_callables(what, computation=computation)
    what = body_name(what, computation)
    xs, structure = tree.flatten(operands)
    starts, given = tree.flatten(init_values)
    tree.check_same_structure(structure, given, f"{what}: the initial values", "the operands")
    if not xs:
        raise TreeError(f"{what}: there must be at least one operand; got {operands!r}")
    paths = [tree.keystr(path) for path, _ in tree.leaves_with_path(operands)]
    avals = [_operand_aval(what, "operand", path, x) for path, x in zip(paths, xs, strict=True)]
    scalars = [ShapedArray((), a.dtype) for a in avals]
    for path, aval in zip(paths, avals, strict=True):
        if aval.shape != avals[0].shape:
            raise ShapeError(
                f"{what}: operands must have one shape; got operand{paths[0]}: {avals[0]!r} and "
                f"operand{path}: {aval!r}"
            )
    for path, x, scalar in zip(paths, starts, scalars, strict=True):
        aval = _operand_aval(what, "initial value", path, x)
        if aval.shape:
            raise ShapeError(
                f"{what}: initial values must be scalars; got {aval!r} for operand{path}"
            )
        if common_aval((scalar, aval)) is not scalar:
            raise DTypeError(
                f"{what}: an initial value must have the dtype of its operand; got {aval!r} for "
                f"operand{path}: {scalar.dtype}",
                fix="Convert it with astype, or give a Python number, which takes that dtype.",
            )
    in_tree = tree.structure(((operands, operands), {}))
    traced = trace_function(computation, in_tree, [*scalars, *scalars], "reduce")
    tree.check_same_structure(
        structure, traced.out_tree, f"{what}: what the computation returns", "the operands"
    )
    for path, out, scalar in zip(paths, traced.program.out_avals, scalars, strict=True):
        if common_aval((scalar, out)) is not scalar:
            raise (ShapeError if out.shape else DTypeError)(
                f"{what}: the computation must return scalars of the types that it takes; got "
                f"{out!r} for operand{path}, of which it takes {scalar!r}",
                fix="Convert the result with astype, or reduce operands of the wider dtype.",
            )
    if traced.program.effects:
        raise EffectError(
            f"{what}: the computation must have no effects, since it is called as often as the "
            f"compiler sees fit; got {sorted(map(repr, traced.program.effects))}",
            fix="Use scan for effects in an order.",
        )
    program = cast_outputs(traced.program, scalars)
    begin = [cast_to_strong(x, scalar) for x, scalar in zip(starts, scalars, strict=True)]
    return ReduceCall(xs, begin, program, traced.captured, structure)


def _operand_aval(what: str, role: str, path: str, x: Any) -> ShapedArray:
    try:
        return aval_of(x)
    except ArgumentError:
        raise ArgumentError(
            f"{what}: each {role} must be an array or a number; got {type_name(x)}"
            + (f" at {path}" if path else "")
        ) from None
