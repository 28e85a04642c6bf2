"""Writing into arrays: what `x[i] = v`, `x += y` and their like do to a traced array."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from sys import _getframe
from typing import Any

import numpy as np

from functx import ops
from functx.core.builder import Builder
from functx.core.errors import (
    ArgumentError,
    CapturedWriteError,
    DTypeError,
    ImmutableArrayError,
    ShapeError,
    describe_input,
    type_name,
)
from functx.core.functionalization import storage_base, view_base
from functx.core.ndarray import as_numpy_array
from functx.core.program import Literal
from functx.core.source_info import user_frame
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.types import kind
from functx.numpy.boolean_masks import MaskedElements, is_same_mask, parse_mask_index
from functx.numpy.indexer import IndexingOptions, fill_to_shape, make_indexer
from functx.numpy.indexing import scatter_update, static_index_key, static_index_primitives
from functx.numpy.promotion import broadcast_to, number_literal, operand
from functx.ops.operands import PYTHON_SCALARS
from functx.ops.views import Write

_CONTROL_FLOW_KINDS = {"cond", "switch", "scan", "while_loop", "fori_loop", "map", "checkpoint"}
"""What may write to arrays around it: they then are carried in and out."""

_KIND_ORDER = "buifc"


def write_array(x: Tracer, value: Any, what: str) -> None:
    """Let `x` take `value`, which is broadcast to its shape and cast to its dtype as NumPy would.

    Raises where NumPy would: for a value of another shape, or of a dtype of another kind, and
    for what is read-only.
    """
    check_writable(x, what)
    value = operand(value)
    aval = aval_of(value)
    check_same_kind_cast(aval, x.dtype, what)
    if type(value) in PYTHON_SCALARS:
        value = number_literal(value, x.dtype)
    if aval.shape != x.shape:
        if len(aval.shape) > x.ndim or any(
            n not in (1, m) for n, m in zip(reversed(aval.shape), reversed(x.shape), strict=False)
        ):
            raise ShapeError(
                f"{what}: the value must broadcast to the shape of what is written to; "
                f"got {aval!r} for {x.atom.aval!r}"
            )
        value = fill_to_shape(broadcast_to(value, x.shape), x.shape)
    Write()(x, ops.convert_element_type(value, x.dtype, x.weak_type))


def check_same_kind_cast(given: Any, dtype: Any, what: str) -> None:
    """Raise for a value whose dtype NumPy would not cast to `dtype` by its rule of the same kind."""
    kinds = kind(given.dtype), kind(dtype)
    if _KIND_ORDER.index(kinds[0]) > _KIND_ORDER.index(kinds[1]) and not (
        given.weak_type and kinds == ("i", "u")
    ):
        raise DTypeError(
            f"{what}: the result must be of the kind of the array that it is written to; "
            f"got {given!r} for an array of {dtype}",
            fix="Convert the array before with astype, or write x = x + y in place of x += y.",
        )


def check_writable(x: Tracer, what: str) -> None:
    """Raise for what NumPy makes read-only, and for an array that is captured by a transform."""
    builder, atom = x.builder, x.atom
    check_not_captured(x, builder, what)
    while True:
        if type(atom) is Literal:
            raise ImmutableArrayError(f"{what}: a number cannot be written to; got {x.atom.aval!r}")
        position = builder.producer(atom)
        if position is None:
            captured = builder.captured_value(atom)
            if captured is None:
                return
            if builder.kind not in _CONTROL_FLOW_KINDS:
                raise captured_write_error(x, builder, captured, what)
            if type(captured) is not Tracer:
                check_not_captured(x, None, what, captured)
                return
            builder, atom = captured.builder, captured.atom
            continue
        eqn = builder.equations[position]
        base = view_base(builder, eqn)
        if base is None:
            return
        if eqn.primitive.is_read_only_view(base.aval):
            raise ImmutableArrayError(
                f"{what}: a view that repeats elements or is read-only must not be written "
                f"to; got {x.atom.aval!r}, a view of {base.aval!r}",
                fix="Copy it first (.copy()).",
            )
        atom = base


def check_not_captured(x: Tracer, owner: Builder | None, what: str, captured: Any = None) -> None:
    """Raise where a transform lies between the builder at work and `owner`, that of `x`.

    Without an owner `x` is a view of `captured`, from outside all of them.
    """
    builder = current_builder.get()
    while builder is not None and builder is not owner:
        if builder.kind not in _CONTROL_FLOW_KINDS:
            raise captured_write_error(x, builder, x if captured is None else captured, what)
        builder = builder.parent


def captured_write_error(
    x: Tracer, builder: Builder, captured: Any, what: str
) -> CapturedWriteError:
    name = ""
    if type(captured) is Tracer and captured.atom in captured.builder.inputs:
        name = f", {describe_input(captured.builder, captured)}"
    elif isinstance(captured, np.ndarray) and (held := caller_variable_name(captured)):
        name = f", a view of the NumPy array `{held}`"
    return CapturedWriteError(
        f"{what}: a function under {builder.kind} must not write to an array from outside it; got "
        f"{x.atom.aval!r} in {builder.owner}{name}",
        fix="Pass the array as an argument, or write to a copy (x.copy()).",
    )


def set_item(x: Tracer, idx: Any, value: Any) -> None:
    """Let `x[idx]` take `value`, converted to the dtype of `x`; the last one to a place stays."""
    if is_own_view(x, idx, value):
        return
    check_writable(x, "x[...] =")
    if type(value) is MaskedElements:
        same = parse_mask_index(idx, x.shape)
        if same is None or not is_same_mask(same.mask, value.axes.mask):
            raise value.error
        new = value.select_into(x)
    else:
        check_value_rank(x, idx, value)
        new = scatter_update(x, idx, value)
    Write()(x, ops.convert_element_type(new, x.dtype, x.weak_type))


def check_value_rank(x: Tracer, idx: Any, value: Any) -> None:
    """Raise for an array that is written to one element, and for lists nested deeper than the target."""
    items = idx if type(idx) is tuple else (idx,)
    one = 0 < x.ndim == len(items) and all([is_scalar_index(item) for item in items])
    nested = isinstance(value, (list, tuple))
    if not one and not nested:
        return
    rank = aval_of(operand(value)).ndim
    most = 0 if one else make_indexer(x, idx, IndexingOptions()).rank
    if rank > most:
        raise ShapeError(
            "x[...] =: "
            + ("one element takes a number" if one else f"{most} dimensions take a list as deep")
            + f"; got a value of {rank} dimensions",
            fix="Take the number out of the array, as in y[0]." if one else "",
        )


def is_scalar_index(item: Any) -> bool:
    """Whether an item of an index is one integer."""
    if type(item) is int:
        return True
    return getattr(item, "shape", None) == () and item.dtype != bool


def is_own_view(x: Tracer, idx: Any, value: Any) -> bool:
    """Whether `value` is the view `x[idx]`, which `x[idx] += y` has written to already."""
    key = static_index_key(idx)
    if key is None or type(value) is not Tracer or value.builder is not x.builder:
        return False
    steps = static_index_primitives(x.atom.aval.shape, key)
    atom: Any = value.atom
    for step in reversed(steps):
        position = x.builder.producer(atom)
        if position is None or x.builder.equations[position].primitive is not step:
            return False
        atom = x.builder.equations[position].inputs[0]
    return atom is x.atom


def in_place_operator(symbol: str, fun: Callable[..., Any]) -> Callable[..., Any]:
    """The operator `symbol`=, which gives `x` the value that `fun` makes of it and another operand.

    A scalar is not written to: as in NumPy, the name gets the result instead. An array without
    dimensions is written to only where it is a view of another, since it looks like a scalar.
    Nor is what JAX made, or what was computed from that: JAX's arrays never change.
    """
    what = f"x {symbol}= y"

    def method(self: Tracer, other: Any) -> Any:
        result = fun(self, other)
        root = storage_base(self)
        if not self.shape and not root.shape:
            return result
        if root.builder.depends_on_jax(root.atom):
            return result
        write_array(self, result, what)
        return self

    return method


def write_out(name: str, result: Any, out: Any, where: Any = True) -> Any:
    """`out`, to which `result` is written where the mask holds; `result` itself without `out`."""
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


def check_mask(name: str, where: Any) -> None:
    """Raise unless `where` is made of booleans."""
    if kind(aval_of(operand(where)).dtype) != "b":
        raise DTypeError(
            f"{name}: where= must be boolean; got {type_name(where)}",
            fix="Compare the array, as in where=mask != 0.",
        )


def write_out_exact(name: str, result: Any, out: Any) -> Any:
    """`out`, of the very shape of `result`, which is written to it; `result` itself without `out`."""
    if out is not None and aval_of(out).shape != aval_of(result).shape:
        raise ShapeError(
            f"{name}(out=...): the array must have the shape of the result; got {aval_of(out)!r} "
            f"for {aval_of(result)!r}"
        )
    return write_out(name, result, out)


def accept_out(function: Callable[..., Any], place: int | None = None) -> Callable[..., Any]:
    """`function` with the argument `out` of NumPy's, an array of the shape of the result.

    It may be given by position behind `place` others.
    """

    @wraps(function)
    def call(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        if place is not None and len(args) == place + 1:
            *args, out = args  # type: ignore[assignment]
        result = function(*args, **kwargs)
        return result if out is None else write_out_exact(function.__name__, result, out)

    return call


def assign_array(target: Any, value: Any, what: str) -> Any:
    """`target`, a traced array or one of NumPy's, with `value` written to it."""
    if type(target) is Tracer:
        write_array(target, value, what)
    elif isinstance(target, np.ndarray) and type(value) is not Tracer:
        check_same_kind_cast(aval_of(value), target.dtype, what)
        try:
            np.copyto(as_numpy_array(target), np.asarray(value), casting="unsafe")
        except ValueError as error:
            raise ShapeError(f"{what}: {error}") from None
    elif isinstance(target, np.ndarray):
        name = caller_variable_name(target)
        raise CapturedWriteError(
            f"{what}: a traced value must not be written to an array from outside the trace; got "
            f"{type_name(value)} for the NumPy array {f'`{name}`, ' if name else ''}"
            f"{target.dtype}{list(target.shape)}",
            fix=f"Pass {f'`{name}`' if name else 'the array'} as an argument, or make it inside with "
            "functx.numpy.",
        )
    else:
        raise ImmutableArrayError(
            f"{what}: what is written to must be a NumPy array or a traced one; "
            f"got {type_name(target)}",
            fix="Convert it with numpy.array before.",
        )
    return target


def caller_variable_name(value: Any) -> str:
    """The variable of the user's code that holds `value`; empty without one."""
    frame = user_frame(_getframe(1))
    for scope in () if frame is None else (frame.f_locals, frame.f_globals):
        for name, held in scope.items():
            if held is value:
                return str(name)
    return ""


def _select_where(where: Any, result: Any, out: Any) -> Any:
    from functx.numpy.ufuncs import where as choose

    return choose(where, result, out)
