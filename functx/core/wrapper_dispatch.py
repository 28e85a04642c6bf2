"""Operations on wrapper types, which are handed to `__functx_dispatch__`."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from functx.core.context import ContextValue
from functx.core.effects import Effect
from functx.core.errors import (
    ArgumentError,
    ImmutableArrayError,
    WrapperDispatchError,
    WrapperProtocolError,
    type_name,
)
from functx.core.program import Atom, Literal, Program
from functx.core.tracer import (
    HOST_ARRAY_TYPES,
    Tracer,
    as_numpy_array,
    aval_of,
    current_builder,
    filled_ndarray,
)
from functx.core.types import ShapedArray, words_layout
from functx.core.typing import NumPyArray, Value, Values
from functx.core.wrappers import is_wrapper

if TYPE_CHECKING:
    from functx.core.primitive import Primitive


class WrapperOperation:
    """An operation as a handler gets it: `op(*args, **params)` computes it, on inner arrays as well.

    There is one object for each primitive, so that `is` compares them.
    """

    __slots__ = ("name", "primitive")

    def __init__(self, primitive: type[Primitive]):
        self.primitive = primitive
        self.name = primitive.name

    def __call__(self, *args: object, **params: object) -> Value | Values:
        primitive = self.primitive(**params)
        if Effect.WRITE in primitive.effects and current_builder.innermost() is None:
            return write_eagerly(primitive, args)
        return primitive(*args)

    def __repr__(self) -> str:
        return self.name


eager_writes: ContextVar[list[Any] | None] = ContextVar("eager_writes", default=None)
"""The list to which handlers outside of a trace add the arrays that they write to."""
_running_calls: ContextVar[frozenset[tuple[Any, ...]]] = ContextVar(
    "running_calls", default=frozenset()
)
"""The operations, with the identities of their operands, whose handlers run."""
operation_of = cache(WrapperOperation)


def write_eagerly(primitive: Primitive, args: Sequence[Any]) -> Values:
    """The write of a handler to an inner array, outside of a trace."""
    target, value = args
    if (targets := eager_writes.get()) is not None:
        targets.append(target)
    if type(target) in HOST_ARRAY_TYPES:
        np.copyto(as_numpy_array(target), np.asarray(value))
        return []
    if isinstance(target, Tracer) or is_wrapper(target):
        return primitive(*args)
    raise ImmutableArrayError(
        f"x[...] =: an inner array must be a NumPy array or a traced one to be written to; got "
        f"{type_name(target)}",
        fix="Make the inner arrays with functx.numpy, or convert them with numpy.array.",
    )


def ordered_types(operands: Sequence[Any]) -> list[type]:
    """The wrapper types of the operands: subclasses before base classes, others as they come."""
    types: list[type] = []
    for x in operands:
        kind = type(x)
        if kind not in types and is_wrapper(x):
            later = [i for i, other in enumerate(types) if issubclass(kind, other)]
            types.insert(later[0] if later else len(types), kind)
    return types


def dispatch(primitive: Primitive, args: Sequence[Any]) -> Value | Values:
    """The result of an operation with an operand of a wrapper type, as the handlers compute it.

    Raises WrapperDispatchError where all handlers return NotImplemented, and WrapperProtocolError for
    a result of another type than that of the operation.
    """
    operands = tuple([_as_array(x) if type(x) is Literal else x for x in args])
    avals = tuple([aval_of(x) for x in args])
    outs = primitive.out_avals_memo.get(avals)
    if outs is None:
        outs = primitive.infer_out_avals(avals)
    op = operation_of(type(primitive))
    params = {name: getattr(primitive, name) for name in primitive.fields}
    types = tuple(ordered_types(operands))
    call = primitive, *map(id, operands)
    running = _running_calls.get()
    if call in running:
        raise WrapperProtocolError(
            f"{types[0].__name__}.__functx_dispatch__({primitive.name}): it must apply the operation to "
            f"inner arrays; got {', '.join(map(type_name, operands))} again",
            fix="Return NotImplemented for an operation that the handler does not compute.",
        )
    with ContextValue(_running_calls, running | {call}):
        for kind in types:
            handler: Any = next(x for x in operands if type(x) is kind)
            out = handler.__functx_dispatch__(op, types, operands, params)
            if out is not NotImplemented:
                return check_result(primitive, kind, out, outs)
    if primitive.decompose is not None:
        with words_layout(primitive):
            return primitive.decompose(*operands)
    names = ", ".join([kind.__name__ for kind in types])
    given = ", ".join([type_name(x) for x in operands])
    raise WrapperDispatchError(
        f"{primitive.name}: a handler of {names} must compute the operation; got NotImplemented for "
        f"{given}",
        f"the operation: {primitive!r}",
        fix=f"Handle op.name == {primitive.name!r} in {types[0].__name__}.__functx_dispatch__, or convert "
        "the operand to an array before.",
    )


def _as_array(literal: Literal) -> Value | NumPyArray:
    """A literal as an operand of a handler: a traced number, or an array outside of a trace."""
    builder = current_builder.innermost()
    if builder is not None:
        return Tracer(literal, builder)
    aval = literal.aval
    return filled_ndarray(literal.value, (), aval.dtype, aval.weak_type)


def check_result(
    primitive: Primitive, kind: type, out: Any, expected: tuple[ShapedArray, ...]
) -> Value | Values:
    """The result of a handler; WrapperProtocolError unless it has the types `expected`."""
    label = f"{kind.__name__}.__functx_dispatch__({primitive.name})"
    if not primitive.multiple_results:
        check_output(label, out, expected[0])
        return out
    if not expected:
        return []
    if not isinstance(out, (list, tuple)) or len(out) != len(expected):
        got = f"{len(out)} results" if isinstance(out, (list, tuple)) else type_name(out)
        raise WrapperProtocolError(
            f"{label}: it must return a list of {len(expected)} results; got {got}"
        )
    for x, aval in zip(out, expected, strict=True):
        check_output(label, x, aval)
    return [*out]


def check_output(label: str, x: object, expected: ShapedArray) -> None:
    """Raise WrapperProtocolError unless `x` is an array of the shape and dtype `expected`."""
    try:
        given = aval_of(x)
    except ArgumentError:
        given = None
    if given is None or given.shape != expected.shape or given.dtype != expected.dtype:
        raise WrapperProtocolError(
            f"{label}: the result must have the type of that of the operation, {expected!r}; got "
            f"{type_name(x)}",
            fix="Apply op to the inner arrays, or to the array that they stand for.",
        )


class WrapperRecorder:
    """Records operations on operands of wrapper types by their handlers."""

    record = staticmethod(dispatch)

    @staticmethod
    def record_program(program: Program, args: Sequence[Any]) -> list[Any]:
        """The outputs of a program on operands of wrapper types, equation by equation."""
        from functx.core.binding import bind
        from functx.core.captures import hoist_captures

        program, captured = hoist_captures(program)
        env: dict[Atom, Any] = dict(zip(program.inputs, [*args, *captured], strict=True))
        for eqn in program.equations:
            outs = bind(eqn.primitive, [env.get(a, a) for a in eqn.inputs])
            env.update(zip(eqn.outputs, eqn.primitive.as_list(outs), strict=True))
        return [env.get(a, a) for a in program.outputs]


wrapper_recorder = WrapperRecorder()
