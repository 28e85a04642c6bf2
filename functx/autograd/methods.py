"""The operators and methods of Variables, whose operations are found by the types of the operands.

What a method records depends on the types of its arrays and on its other arguments alone, so it is
traced once for these.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from types import EllipsisType, NoneType
from typing import Any

import numpy as np

from functx import ops
from functx.autograd.modes import current_modes
from functx.autograd.nodes import Edge, OperationSplit, operand_watch, split_program
from functx.autograd.operations import (
    operands_of,
    outputs_of,
    record_outputs,
    record_primitive,
)
from functx.autograd.recording import current_recording
from functx.autograd.variable import Variable, open_level
from functx.autograd.views import chain
from functx.core.caches import Cache
from functx.core.config import NO_TRACE_OPTIONS, trace_options
from functx.core.memory_layouts import strides_of
from functx.core.primitive import Primitive
from functx.core.primitive_families import View
from functx.core.program import Atom, Literal, Program
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import user_rule_runs
from functx.core.strides import is_row_major
from functx.core.tracer import Tracer, context_builder, current_builder
from functx.core.tracing import trace
from functx.core.types import DType, x64_enabled
from functx.core.typing import ArrayOrList
from functx.numpy import mutation, operators
from functx.numpy.boolean_masks import OPERATOR_SYMBOLS
from functx.numpy.promotion import promotion_modes
from functx.numpy.tracer_methods import OPERATORS
from functx.ops.operands import literal

_methods: Cache = Cache("recorded methods", 4096)
NO_OPTIONS: dict[str, Any] = {}


def record_function(
    fun: Callable[..., Any],
    args: Sequence[Variable],
    static: tuple[Any, ...] = (),
    options: dict[str, Any] = NO_OPTIONS,
) -> Any:
    """`fun(*args, *static, **options)`, by the operations that it was for such arguments before."""
    if not records_only():
        return fun(*args, *static, **options)
    others: tuple[Hashable, ...] = args[0]._strides, args[-1]._strides, x64_enabled()
    if args[0]._recorded.aval is not args[-1]._recorded.aval:
        others = *others, promotion_modes()
    if static or options:
        try:
            others = *others, static_key((*static, *options.items()))
        except TypeError:
            return fun(*args, *static, **options)
    recording = current_recording()
    operands, edges, key = operands_of(recording, fun, args, True)
    known = (*key, *others)
    new = recording.repeat_call(known)
    if new is not None:
        return outputs_of(recording.prefix.split, args, operands, edges, new)[0]
    types = [(x.aval, edge is not None) for x, edge in zip(operands, edges, strict=True)]
    of_types = (fun, *types, *others)
    found = _methods.get(of_types)
    count = user_rule_runs.count
    if found is None:
        call = partial(fun, **options)
        found = trace_method(fun.__name__, call, args, static, edges)
        if user_rule_runs.count == count:
            _methods.put(of_types, found)
    if type(found) is OperationSplit:
        lasting = known if user_rule_runs.count == count else None
        new = recording.call_split(lasting, found, operands, key[1::2])
        return outputs_of(found, args, operands, edges, new)[0]
    recording.abandon_call()
    return replay(found, args) if type(found) is Program else fun(*args, *static, **options)


def static_key(x: Any) -> Hashable:
    """A key for an argument that is no array, by type and value; TypeError for one that has none."""
    kind = type(x)
    if kind is tuple:
        return (kind, *[static_key(part) for part in x])
    if kind is slice:
        return kind, static_key(x.start), static_key(x.stop), static_key(x.step)
    if kind is float or kind is complex:
        return kind, repr(x)
    if kind in _STATIC_TYPES or isinstance(x, (type, np.dtype)):
        return kind, x
    raise TypeError


_STATIC_TYPES = frozenset([bool, int, str, NoneType, EllipsisType])


def trace_method(
    name: str,
    fun: Callable[..., Any],
    args: Sequence[Variable],
    static: tuple[Any, ...],
    edges: Sequence[Edge | None],
) -> OperationSplit | Program | bool:
    """The operation that `fun` records, or the program of several; False if the types do not tell.

    Views that are returned are operations of their own, since they share memory, and so are results in another
    memory order than by rows.
    """
    copies, by_rows = False, True

    def body(*xs: Tracer) -> list[Any]:
        nonlocal copies, by_rows
        out = fun(*xs, *static)
        if type(out) is Tracer:
            by_rows = is_row_major(out.shape, strides_of(out.builder, out.atom))
        # The program will lack its copies, which new memory needs.
        copies = current_builder.require().has_copies
        return [out]

    try:
        avals, layouts = [x.aval_ for x in args], [x.strides_() for x in args]
        program, captured = trace(body, avals, name=name, layouts=layouts)
    except Exception:
        return False
    if captured or copies or program.has_captures or program.effects or not program.equations:
        return False
    primitives = [eqn.primitive for eqn in program.equations]
    views = [v for eqn in program.equations if isinstance(eqn.primitive, View) for v in eqn.outputs]
    if type(primitives[0]) is ops.Sqrt or not by_rows or not set(views).isdisjoint(program.outputs):
        return program
    # The method serves calls from other lines too.
    equations = [eqn.replace(source=None) for eqn in program.equations]
    if len(primitives) == 1:
        name = primitives[0].name
    program = replace_program_fields(program, name=name, equations=equations)
    return split_program(program, tuple([e is not None for e in edges]))


def replay(program: Program, args: Sequence[Variable]) -> Any:
    """The output of a program on Variables, whose equations are operations of their own."""
    env: dict[Atom, Any] = dict(zip(program.inputs, args, strict=True))
    for eqn in program.equations:
        outs = record_outputs(eqn.primitive, [env.get(a, a) for a in eqn.inputs])
        env.update(zip(eqn.outputs, outs, strict=True))
    (out,) = program.outputs
    return env[out]


def _define_operator(
    name: str, fun: Callable[[Any, Any], Any], primitive: Primitive | None = None
) -> None:
    """Define the operator `__name__` of Variables, and its reflection.

    `primitive` is what `fun` binds for an array of floating-point numbers and a Python number.
    """
    general = getattr(Tracer, f"__{name}__")

    def method(self: Variable, other: Any) -> Variable:
        kind = type(other)
        if kind is Variable:
            return record_function(fun, (self, other))
        if primitive is not None and (kind is float or kind is int) and takes_number(self):
            return record_primitive(primitive, (self, number_operand(other, self.dtype)))[0]
        return general(self, other)

    setattr(Variable, f"__{name}__", method)
    reflected = getattr(Tracer, f"__r{name}__", None)
    if primitive is None or reflected is None:
        return

    def reflection(self: Variable, other: Any) -> Variable:
        if (type(other) is float or type(other) is int) and takes_number(self):
            return record_primitive(primitive, (number_operand(other, self.dtype), self))[0]
        return reflected(self, other)

    setattr(Variable, f"__r{name}__", reflection)


def takes_number(x: Variable) -> bool:
    """Whether a number takes the dtype of `x`, which lies in row-major order, and operations are only recorded."""
    aval = x._recorded.aval
    is_plain = aval.dtype.kind == "f" and not aval.weak_type and x._strides is None
    return is_plain and records_only()


def records_only() -> bool:
    """Whether operations on Variables are recorded, and nothing else is done with them."""
    return (
        context_builder() is None
        and open_level.get() is None
        and operand_watch.get() is None
        and trace_options.get() is NO_TRACE_OPTIONS
    )


def number_operand(number: float, dtype: DType) -> Literal:
    """A Python number as an operand of a floating-point dtype."""
    return _nonzero_operand(number, dtype) if number else literal(number, dtype)


# -0.0 equals 0.0, so that zeros must not be keys.
_nonzero_operand = lru_cache(maxsize=4096, typed=True)(literal)


def _define_method(name: str) -> None:
    fun = getattr(Tracer, name)

    def method(self: Variable, *args: object, **kwargs: object) -> Variable:
        out = record_function(fun, (self,), args, kwargs)
        if out is self and context_builder() is None:
            # A view of all elements has a node and hooks of its own.
            return record_outputs(ops.Reshape(self.shape), (self,))[0]
        return out

    method.__name__ = name
    method.__doc__ = fun.__doc__
    setattr(Variable, name, method)


_define_operator("add", operators.add, ops.Add())
_define_operator("sub", operators.subtract, ops.Sub())
_define_operator("mul", operators.multiply, ops.Mul())
_define_operator("truediv", operators.divide, ops.Div())
_define_operator("lt", operators.less, ops.Lt())
_define_operator("le", operators.less_equal, ops.Le())
_define_operator("gt", operators.greater, ops.Gt())
_define_operator("ge", operators.greater_equal, ops.Ge())
for _name in ("floordiv", "mod", "matmul"):
    _define_operator(_name, OPERATORS[_name])

for _name in [
    "__neg__",
    "__abs__",
    "__invert__",
    "__getitem__",
    "__pow__",
    "sum",
    "prod",
    "max",
    "min",
    "mean",
    "any",
    "all",
    "argmax",
    "argmin",
    "var",
    "std",
    "cumsum",
    "cumprod",
    "ravel",
    "reshape",
    "transpose",
    "squeeze",
    "swapaxes",
    "astype",
    "clip",
]:
    _define_method(_name)


def before_write(x: Variable, other: object) -> Variable:
    """The value as an array of its own, which nodes can save while `x` is written to.

    In a trace it is the array itself, which the trace captures.
    """
    if (
        not current_modes().records_gradients
        or current_builder.innermost() is not None
        or not (x.requires_grad or (isinstance(other, Variable) and other.requires_grad))
    ):
        return x
    copy = x.with_value(x.read())
    copy._dual, copy._strides = x._dual, x._strides
    return copy


def takes_whole(x: Variable, value: object, operation: str) -> bool:
    """Whether a value can be written to the whole array as it is; the array is writable then."""
    if (
        type(value) is not Variable
        or value._recorded.aval is not x._recorded.aval
        or current_builder.innermost() is not None
    ):
        return False
    x.check_writable(operation)
    return True


def set_item(self: Variable, idx: Any, value: Any) -> None:
    if isinstance(value, Variable):
        if value._counter is not None and value._counter is self._counter:
            part: Any = self[idx]
            is_view = isinstance(part, Variable) and part._counter is value._counter
            if is_view and chain(part) == chain(value):
                # `x[idx] += y` has written to this view already.
                return
        if value.size == self.size and current_modes().records_gradients:
            # The value written is a node of its own, with a gradient and hooks of its own.
            if self.requires_grad and value.dtype == self.dtype:
                # The history of the array before stays, with a gradient of zero.
                value = ops.select(np.True_, value, ops.reshape(self, value.shape))
            else:
                value = value.copy()
        if idx is Ellipsis and takes_whole(self, value, "x[...] ="):
            self.write(value)
            return
    mutation.set_item(self, idx, value)


Variable.__setitem__ = set_item  # type: ignore[assignment]


def _in_place_operator(symbol: str, name: str) -> Callable[[Variable, Any], Variable]:
    fun, operation = getattr(Variable, f"__{name}__"), f"x {symbol}= y"

    def method(self: Variable, other: ArrayOrList) -> Variable:
        value = fun(before_write(self, other), other)
        if takes_whole(self, value, operation):
            self.write(value)
        else:
            mutation.write_array(self, value, operation)
        return self

    return method


for _name, _symbol in OPERATOR_SYMBOLS.items():
    setattr(Variable, f"__i{_name}__", _in_place_operator(_symbol, _name))
