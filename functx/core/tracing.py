"""Tracing: `trace` runs a function on tracers, `bind` appends an equation or evaluates it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from functx.core.backend import InnerJaxTrace, backend
from functx.core.builder import Builder
from functx.core.garbage_collection import garbage_collection
from functx.core.program import Program
from functx.core.source_info import Source
from functx.core.tracer import Tracer, check_no_escaped_tracers, context_builder, current_builder
from functx.core.types import ShapedArray

if TYPE_CHECKING:
    from functx.core.primitive import Primitive


def bind(primitive: Primitive, args: Sequence[Any]) -> Any:
    """Append `primitive(*args)` to the program of the current builder; evaluate it if there is no builder.

    Inside a trace of JAX that began later, operations on values that are not traced by functx
    belong to JAX, which may use the results after functx's trace has ended.
    """
    builder = context_builder()
    if builder is None or not builder.is_open:
        builder = current_builder.innermost()
        if builder is None:
            check_no_escaped_tracers(args)
            return backend.evaluate(primitive, args)
    untraced = not args or (type(args[0]) is not Tracer and type(args[-1]) is not Tracer)
    if (untraced or primitive.is_context_dependent) and backend.inside_jax_trace():
        return backend.evaluate(primitive, args)
    try:
        return builder.append(primitive, args)
    except InnerJaxTrace:
        return backend.evaluate(primitive, args)


def trace(
    fun: Callable[..., Sequence[Any]],
    avals: Sequence[ShapedArray],
    *,
    name: str = "f",
    kind: str = "trace",
    values: Sequence[Any] | None = None,
    differentiated: Sequence[int] = (),
    in_names: Any = None,
    source: Source | None = None,
    capture_bases: bool = False,
    layouts: Sequence[tuple[int, ...] | None] = (),
    batched_from: tuple[Any, Sequence[tuple[Any, int | None]]] | None = None,
) -> tuple[Program, list[Any]]:
    """The program of `fun`, which takes and returns flat sequences, and the values that it captures.

    The last inputs of the program stand for the captured values. `values` are the known values of
    inputs, on which Python can branch. `differentiated` holds the positions of inputs that a
    derivative is taken in. With `capture_bases`, a view from outside is captured as its base.
    `layouts` gives the strides of inputs that are not in row-major order. `batched_from` is a named
    axis and, for each input, the whole batch and its batch dimension; an input whose dimension is
    None is the same for the whole batch, so its value is known.
    """
    builder = Builder(name, kind, current_builder.innermost())
    builder.source = source or builder.source
    builder.in_names = in_names
    builder.imported_views = {} if capture_bases else None
    tracers = [builder.add_input(aval) for aval in avals]
    builder.layouts.update(zip(builder.inputs, layouts, strict=False))
    if values is not None:
        builder.values.update(zip(builder.inputs, values, strict=True))
    if batched_from is not None:
        builder.axis, batches = batched_from
        pairs = [*zip(builder.inputs, batches, strict=True)]
        builder.batched_inputs.update(pairs)
        builder.values.update([(v, x) for v, (x, dim) in pairs if dim is None])
    builder.differentiated = frozenset(builder.inputs[i] for i in differentiated)
    return run_and_finish(builder, fun, tracers)


def trace_closed(
    fun: Callable[..., Sequence[Any]], avals: Sequence[ShapedArray], **options: Any
) -> Program:
    """As `trace`, with an equation `captured` in place of each input for a captured value."""
    program, captured = trace(fun, avals, **options)
    if not captured:
        return program
    from functx.core.program_editing import close_over

    return close_over(program, captured)


def run_and_finish(
    builder: Builder, fun: Callable[..., Sequence[Any]], tracers: Sequence[Tracer]
) -> tuple[Program, list[Any]]:
    """The program of `fun` on `tracers` of `builder`, and the values that it captures."""
    token = current_builder.set(builder)
    garbage_collection.begin_trace()
    try:
        # `finish` runs inside, since it may capture a result that belongs to an outer trace of JAX.
        return backend.call_traced(lambda *args: builder.finish(fun(*args)), tracers)
    finally:
        garbage_collection.end_trace()
        builder.is_open = False
        current_builder.reset(token)


@contextmanager
def eval_context() -> Iterator[None]:
    """A context in which operations are evaluated, also inside a trace of functx or JAX."""
    token = current_builder.set(None)
    try:
        with backend.outer_jax_trace():
            yield
    finally:
        current_builder.reset(token)
