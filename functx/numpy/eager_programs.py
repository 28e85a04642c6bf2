"""Functions made of several operations, whose calls outside a trace run as one program."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from inspect import unwrap
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jax
import numpy as np

from functx.core import tree
from functx.core.caches import Cache
from functx.core.config import contextual_key
from functx.core.errors import FunctxError
from functx.core.memory_layouts import noncontiguous_strides, strides_of
from functx.core.program import Program
from functx.core.rewriting import apply
from functx.core.strides import Strides, in_memory_order
from functx.core.tracer import HOST_ARRAY_TYPES, Tracer, aval_of, copy_as_ndarray, current_builder
from functx.core.tracing import trace
from functx.core.types import ShapedArray, x64_enabled

P = ParamSpec("P")
R = TypeVar("R")


class EagerProgram(NamedTuple):
    """The program of calls with one structure, the values that it captures, and that of its result.

    `strides` are those of the results in memory.
    """

    program: Program
    captured: list[Any]
    strides: Sequence[Strides | None]
    out_tree: tree.TreeDef


eager_programs = Cache("eager programs", 1024)
_ARRAY = object()
"""Stands for an array in the static part of the arguments of a call."""


def as_one_program(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, of whose calls outside a trace each runs as one program, traced once for its types.

    Arrays are operands of the program, which must not return them or views of them; numbers and the
    like are a part of its key. Calls with other arguments, such as Variables, and calls that write to `out`
    run operation by operation.
    """
    code = unwrap(function).__code__
    parameters = code.co_varnames[: code.co_argcount]
    out_position = parameters.index("out") if "out" in parameters else len(parameters)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if current_builder.get() is not None or len(args) > out_position or "out" in kwargs:
            return function(*args, **kwargs)
        arrays: list[Any] = []
        avals: list[ShapedArray] = []
        try:
            static = tuple([_static_key(x, arrays, avals) for x in args])
            # In the order in which dictionaries are flattened.
            named = tuple([(k, _static_key(kwargs[k], arrays, avals)) for k in sorted(kwargs)])
        except (FunctxError, TypeError):
            return function(*args, **kwargs)
        layouts = tuple([noncontiguous_strides(x) for x in arrays])
        layouts = layouts if any(layouts) else ()
        key = contextual_key((function, static, named, tuple(avals), layouts, x64_enabled()))
        found: EagerProgram | None = eager_programs.get(key)
        if found is None:
            try:
                found = _trace_call(function, args, kwargs, avals, layouts)
            except FunctxError:
                # The message is that of the call without a trace.
                return function(*args, **kwargs)
            eager_programs.put(key, found)
        outs = apply(None, found.program, [*arrays, *found.captured])
        if not any([isinstance(x, jax.Array) for x in arrays]):
            # While JAX traces, a call without operands gives a tracer too.
            outs = [
                x
                if isinstance(x, _TRACERS)
                else in_memory_order(copy_as_ndarray(x, atom.aval.weak_type), strides)
                for x, atom, strides in zip(outs, found.program.outputs, found.strides, strict=True)
            ]
        return tree.unflatten(found.out_tree, outs)

    return call


def _static_key(x: Any, arrays: list[Any], avals: list[ShapedArray]) -> Hashable:
    """The key of an argument; an array is appended to `arrays`, and its type to `avals`.

    Raises TypeError for what is neither an array nor of a type whose values the key tells apart.
    """
    kind = type(x)
    if kind in HOST_ARRAY_TYPES or (isinstance(x, jax.Array) and not isinstance(x, _TRACERS)):
        avals.append(aval_of(x))
        arrays.append(x)
        return _ARRAY
    if kind in (float, complex):
        # 0.0 == -0.0, and nan is not itself.
        return kind, repr(x)
    if kind in _PLAIN_TYPES:
        return kind, x
    if kind in (tuple, list):
        return kind, tuple([_static_key(item, arrays, avals) for item in x])
    if isinstance(x, (type, np.dtype)):
        return kind, np.dtype(x)
    raise TypeError


_TRACERS = (Tracer, jax.core.Tracer)
_PLAIN_TYPES = frozenset([int, bool, str, type(None)])


def _trace_call(
    function: Callable[..., Any],
    args: object,
    kwargs: dict[str, Any],
    avals: list[ShapedArray],
    layouts: Sequence[Strides | None],
) -> EagerProgram:
    """The program of `function(*args, **kwargs)`, with inputs in place of the arrays.

    `layouts` are the strides of the arrays, None for row-major order.
    """
    leaves, structure = tree.flatten((args, kwargs), is_leaf=lambda x: x is None)
    positions = [i for i, x in enumerate(leaves) if _is_array(x)]
    trees: list[tree.TreeDef] = []
    strides: list[Strides | None] = []

    def body(*tracers: Tracer) -> list[Any]:
        filled = list(leaves)
        for i, x in zip(positions, tracers, strict=True):
            filled[i] = x
        positional, named = tree.unflatten(structure, filled)
        outs, out_tree = tree.flatten(function(*positional, **named))
        trees.append(out_tree)
        strides.extend([strides_of(x.builder, x.atom) if type(x) is Tracer else None for x in outs])
        return outs

    name = getattr(function, "__name__", "f")
    program, captured = trace(body, avals, name=name, layouts=layouts)
    return EagerProgram(program, captured, strides, trees[0])


def _is_array(x: object) -> bool:
    return type(x) in HOST_ARRAY_TYPES or isinstance(x, jax.Array)
