"""Writes to arrays: item assignment, in-place operators and `out=` of traced arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from sys import _getframe
from typing import Any, ParamSpec

import numpy as np

from functx import ops
from functx.core.argument_errors import explain, is_call_with_keys
from functx.core.backend import backend
from functx.core.builder import Builder
from functx.core.errors import (
    ArgumentError,
    CapturedWriteError,
    DTypeError,
    ImmutableArrayError,
    ShapeError,
    ViewWriteError,
    describe_input,
    type_name,
)
from functx.core.memory_layouts import storage_base, view_base
from functx.core.program import Literal
from functx.core.source_info import user_frame
from functx.core.tracer import Tracer, as_numpy_array, aval_of, check_gradient_kept, current_builder
from functx.core.types import DType, ShapedArray, kind
from functx.core.typing import ArrayOrList, Index, NumPyArray, Out, Value
from functx.core.wrappers import is_wrapper
from functx.numpy.boolean_masks import MaskedElements, is_same_mask, parse_mask_index
from functx.numpy.index_parsing import IndexingOptions
from functx.numpy.indexer import fill_to_shape, make_indexer
from functx.numpy.indexing import scatter_update, static_index_key, static_index_primitives
from functx.numpy.promotion import broadcast_to, number_literal, operand
from functx.ops.autodiff import Detach
from functx.ops.gradient_stop import outside_gradient_stop
from functx.ops.operands import PYTHON_SCALARS
from functx.ops.views import Write

P = ParamSpec("P")
_KIND_ORDER = "buifc"


def write_array(x: Tracer, value: ArrayOrList, operation: str) -> None:
    """Write `value` to `x`, broadcast to its shape and cast to its dtype by NumPy's rules.

    Raises ShapeError for a value that does not broadcast, DTypeError for a dtype of a higher kind,
    and ImmutableArrayError for a read-only array.
    """
    check_writable(x, operation)
    value = operand(value)
    aval = aval_of(value)
    check_same_kind_cast(aval, x.dtype, operation)
    if type(value) in PYTHON_SCALARS:
        value = number_literal(value, x.dtype)
    if aval.shape != x.shape:
        if len(aval.shape) > x.ndim or any(
            n not in (1, m) for n, m in zip(reversed(aval.shape), reversed(x.shape), strict=False)
        ):
            raise ShapeError(
                f"{operation}: the value must broadcast to the shape of the target; "
                f"got {aval!r} for {x.atom.aval!r}"
            )
        value = fill_to_shape(broadcast_to(value, x.shape), x.shape)
    Write()(x, ops.convert_element_type(value, x.dtype, x.weak_type))


def check_same_kind_cast(given: ShapedArray, dtype: DType, operation: str) -> None:
    """Raise DTypeError unless NumPy's casting rule "same_kind" allows a value of aval `given` in `dtype`."""
    kinds = kind(given.dtype), kind(dtype)
    if kinds[1] not in _KIND_ORDER:
        raise DTypeError(
            f"{operation}: the array that is written to must hold numbers; got one of {dtype}"
        )
    if _KIND_ORDER.index(kinds[0]) > _KIND_ORDER.index(kinds[1]) and not (
        given.weak_type and kinds == ("i", "u")
    ):
        raise DTypeError(
            f"{operation}: the result must be of the kind of the array that it is written to; "
            f"got {given!r} for an array of {dtype}",
            fix="Convert the array before with astype, or write x = x + y instead of x += y.",
        )


def read_only_error(operation: str, given: str) -> ImmutableArrayError:
    """The error for a write to the read-only array `given`."""
    rebinds = operation.startswith("x ") and operation.endswith("= y")
    new = operation.replace("=", "").replace("x ", "x = x ", 1)
    return ImmutableArrayError(
        f"{operation}: a view that repeats elements or is read-only must not be written to; "
        f"got {given}",
        fix=f"Write {new}, or copy it first (.copy())." if rebinds else "Copy it first (.copy()).",
    )


def check_writable_array(x: NumPyArray, operation: str) -> None:
    """Raise ImmutableArrayError for a NumPy array that is read-only."""
    if not x.flags.writeable:
        raise read_only_error(operation, repr(aval_of(x)))


def check_writable(x: Tracer, operation: str) -> None:
    """Raise for a read-only array, and for one that a transform captures."""
    if type(x) is not Tracer:
        # A Variable knows its own memory.
        x.check_writable(operation)
        return
    builder, atom = x.builder, x.atom
    check_not_captured(x, builder, operation)
    while True:
        if type(atom) is Literal:
            raise ImmutableArrayError(
                f"{operation}: a number cannot be written to; got {x.atom.aval!r}"
            )
        position = builder.producer(atom)
        if position is None:
            captured = builder.captured_value(atom)
            if captured is None:
                return
            if not builder.carries_writes:
                raise captured_write_error(x, builder, captured, operation)
            if type(captured) is not Tracer:
                check_not_captured(x, None, operation, captured)
                return
            builder, atom = captured.builder, captured.atom
            continue
        eqn = builder.equations[position]
        base = view_base(builder, eqn)
        if base is None:
            return
        if eqn.primitive.is_read_only_view(base.aval):  # type: ignore[attr-defined]
            raise read_only_error(operation, f"{x.atom.aval!r}, a view of {base.aval!r}")
        detach = eqn.primitive
        if type(detach) is Detach and not detach.writable and builder.gradient_stop is None:
            raise ViewWriteError(
                f"{operation}: a view made under no_grad must be written to under no_grad; got "
                f"{x.atom.aval!r}, a view of {base.aval!r}",
                fix="Take the view outside no_grad, or copy it (.copy()).",
            )
        atom = base


def check_not_captured(
    x: Tracer, owner: Builder | None, operation: str, captured: object = None
) -> None:
    """Raise where a transform lies between the current builder and `owner`, the builder of `x`.

    Without an owner, `x` is a view of `captured`, an array from outside all builders.
    """
    builder = current_builder.get()
    while builder is not None and builder is not owner:
        if not builder.carries_writes:
            raise captured_write_error(x, builder, x if captured is None else captured, operation)
        builder = builder.parent


def captured_write_error(
    x: Tracer, builder: Builder, captured: object, operation: str
) -> CapturedWriteError:
    name = ""
    if type(captured) is Tracer and captured.atom in captured.builder.inputs:
        name = f", {describe_input(captured.builder, captured)}"
    elif isinstance(captured, np.ndarray) and (variable := caller_variable_name(captured)):
        name = f", a view of the NumPy array `{variable}`"
    return CapturedWriteError(
        f"{operation}: a function under {builder.kind} must not write to an array from outside it; got "
        f"{x.atom.aval!r} in {builder.owner}{name}",
        fix="Pass the array as an argument, or write to a copy (x.copy()). For the state of a module, "
        "functx.functional_call(module, state, args) writes to the state it is given.",
    )


def set_item(x: Tracer, idx: Index, value: ArrayOrList | MaskedElements) -> None:
    """Write `value` to `x[idx]` in the dtype of `x`; of repeated indices the last write remains."""
    if is_own_view(x, idx, value):
        return
    check_writable(x, "x[...] =")
    with outside_gradient_stop() as constant:
        Write()(x, with_elements(x, idx, value, constant))


def with_elements(
    x: Value,
    idx: Index,
    value: ArrayOrList | MaskedElements,
    constant: Callable[[Any], Any],
) -> Value:
    """`x` with `value` at `x[idx]`, in the dtype of `x`; of repeated indices the last value remains."""
    if isinstance(value, MaskedElements):
        same = parse_mask_index(idx, x.shape)
        if same is None or not is_same_mask(same.mask, value.axes.mask):
            raise value.error
        new = MaskedElements(constant(value.array), value.axes, value.error).select_into(x)
    else:
        check_value_rank(x, idx, value)
        new = scatter_update(x, idx, constant(value))
    return ops.convert_element_type(new, x.dtype, x.weak_type)


def check_value_rank(x: Value, idx: Index, value: ArrayOrList) -> None:
    """Raise for an array written to a single element, and for lists nested deeper than the target."""
    items = idx if type(idx) is tuple else (idx,)
    is_element = 0 < x.ndim == len(items) and all([is_scalar_index(item) for item in items])
    is_list = isinstance(value, (list, tuple))
    if not is_element and not is_list:
        return
    rank = aval_of(operand(value)).ndim
    max_rank = 0 if is_element else make_indexer(x, idx, IndexingOptions()).rank
    if rank > max_rank:
        raise ShapeError(
            "x[...] =: "
            + (
                "one element takes a number"
                if is_element
                else f"{max_rank} dimensions take a list as deep"
            )
            + f"; got a value of {rank} dimensions",
            fix="Take the number out of the array, as in y[0]." if is_element else "",
        )


def is_scalar_index(item: object) -> bool:
    """Whether an item of an index is one integer."""
    if type(item) is int:
        return True
    return getattr(item, "shape", None) == () and getattr(item, "dtype", np.bool_) != np.bool_


def is_own_view(x: Tracer, idx: Index, value: object) -> bool:
    """Whether `value` is the view `x[idx]`, to which `x[idx] += y` has already written."""
    key = static_index_key(idx)
    if key is None or type(value) is not Tracer or value.builder is not x.builder:
        return False
    steps = static_index_primitives(x.atom.aval.shape, key)
    atom = value.atom
    for step in reversed(steps):
        position = x.builder.producer(atom)
        if position is None or x.builder.equations[position].primitive is not step:
            return False
        atom = x.builder.equations[position].inputs[0]
    # An element, without dimensions, has memory of its own.
    return atom is x.atom and storage_base(value).atom is storage_base(x).atom


def in_place_operator(symbol: str, fun: Callable[..., Any]) -> Callable[..., Any]:
    """The in-place operator `x symbol= y`, which writes `fun(x, y)` to `x`.

    It returns the result without a write, so that the name is bound to it,

    * for an array without dimensions that is not a view of an array with dimensions: like a
      NumPy scalar it is not mutable, unless it stands for a Variable;
    * for an array made by JAX or computed from one: JAX's arrays are immutable.
    """
    operation = f"x {symbol}= y"

    def method(self: Tracer, other: ArrayOrList) -> Value:
        result = fun(self, other)
        base = storage_base(self)
        if not self.shape and not base.shape and not stands_for_variable(base):
            return result
        if base.builder.depends_on_jax(base.atom):
            return result
        write_array(self, result, operation)
        return self

    return method


def stands_for_variable(x: Tracer) -> bool:
    """Whether `x` is, or is computed from, an argument of a function traced on Variables."""
    return x.builder.inputs_are_variables and x.builder.depends_on_input(x.atom)


def write_out(name: str, result: Value, out: Out, where: ArrayOrList | None = True) -> Any:
    """`out` after `result` is written to it where the mask is True; `result` if `out` is None."""
    if out is None:
        if where is True or where is None:
            return result
        raise ArgumentError(
            f"{name}: where= must come with out=, which keeps what the mask leaves; got it alone",
            fix="Pass out=, or choose with functx.numpy.where.",
        )
    if isinstance(result, tuple):
        outs = out if isinstance(out, tuple) else (out,)
        outs = (*outs, *[None] * (len(result) - len(outs)))
        if len(outs) > len(result):
            raise ArgumentError(
                f"{name}(out=...): there must be an array for each of {len(result)} results; got "
                f"{len(outs)}"
            )
        return tuple([write_out(name, x, y, where) for x, y in zip(result, outs, strict=True)])
    if isinstance(out, tuple) and len(out) == 1:
        return write_out(name, result, out[0], where)
    if where is not True and where is not None:
        check_mask(name, where)
        result = _select_where(where, result, out)
    return assign_array(out, result, f"{name}(out=...)")


def check_mask(name: str, where: ArrayOrList) -> None:
    """Raise DTypeError unless the mask `where` is boolean."""
    if kind(aval_of(operand(where)).dtype) != "b":
        raise DTypeError(
            f"{name}: where= must be boolean; got {type_name(where)}",
            fix="Compare the array, as in where=mask != 0.",
        )


def write_out_exact(name: str, result: Value, out: Out) -> Value:
    """`out` after `result`, of the same shape, is written to it; `result` if `out` is None."""
    if out is not None and aval_of(out).shape != aval_of(result).shape:
        raise ShapeError(
            f"{name}(out=...): the array must have the shape of the result; got {aval_of(out)!r} "
            f"for {aval_of(result)!r}"
        )
    return write_out(name, result, out)


def accept_out(function: Callable[P, Value]) -> Callable[P, Value]:
    """`function` with its result written to its argument `out`, an array of the shape of the result."""
    code = function.__code__
    position = code.co_varnames.index("out")

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Value:
        try:
            result = function(*args, **kwargs)
            out: Any = kwargs.get("out")
            if position < code.co_argcount and position < len(args):
                out = args[position]
            return result if out is None else write_out_exact(function.__name__, result, out)
        except Exception as error:
            if is_call_with_keys(error):
                return backend.call_with_keys(function, args, kwargs)  # type: ignore[no-any-return]
            explain(error, function, args, kwargs)
            raise

    call.explains_errors = True  # type: ignore[attr-defined]
    return call


def assign_array(target: object, value: ArrayOrList, operation: str) -> Any:
    """`target`, a traced or NumPy array, after `value` is written to it."""
    if isinstance(target, Tracer):
        write_array(target, value, operation)
    elif isinstance(target, np.ndarray) and type(value) is not Tracer:
        check_gradient_kept(value, operation)
        check_same_kind_cast(aval_of(value), target.dtype, operation)
        check_writable_array(target, operation)
        try:
            np.copyto(as_numpy_array(target), np.asarray(value), casting="unsafe")
        except ValueError as error:
            raise ShapeError(f"{operation}: {error}") from None
    elif isinstance(target, np.ndarray):
        name = caller_variable_name(target)
        raise CapturedWriteError(
            f"{operation}: a NumPy array must not be written to with a traced value; got "
            f"{type_name(value)} for the NumPy array {f'`{name}`, ' if name else ''}"
            f"{target.dtype}{list(target.shape)}",
            fix=f"Make {f'`{name}`' if name else 'the array'} inside the function with functx.numpy "
            "(functx.numpy.zeros in place of numpy.zeros), or pass it as an argument.",
        )
    elif is_wrapper(target):
        from functx.numpy.wrapper_methods import write_wrapper

        write_wrapper(target, value, operation)  # type: ignore[arg-type]
    else:
        raise ImmutableArrayError(
            f"{operation}: the target must be a NumPy array or a traced one; "
            f"got {type_name(target)}",
            fix="Convert it with numpy.array before.",
        )
    return target


def caller_variable_name(value: object) -> str:
    """The name of the variable of the user's code that holds `value`, or an empty string."""
    frame = user_frame(_getframe(1))
    for scope in () if frame is None else (frame.f_locals, frame.f_globals):
        for name, bound_value in scope.items():
            if bound_value is value:
                return str(name)
    return ""


def _select_where(where: ArrayOrList, result: Value, out: ArrayOrList) -> Value:
    from functx.numpy.ufuncs import where as select_where

    return select_where(where, result, out)
