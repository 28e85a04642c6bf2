"""Tracing: `trace` runs a function on tracers of a builder, and returns its program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from typing import TYPE_CHECKING, Any, NoReturn

from functx.core.backend import backend
from functx.core.builder import Builder
from functx.core.caches import garbage_collection
from functx.core.context import ContextValue
from functx.core.program import Part, Program
from functx.core.rewriting import interpret
from functx.core.source_info import Source
from functx.core.tracer import Tracer, current_builder, is_variable, with_parents
from functx.core.types import ShapedArray
from functx.core.typing import ArrayLike, Dim, Value

if TYPE_CHECKING:
    from functx.core.named_axes import Axis


@contextmanager
def program_part(part: Part) -> Iterator[None]:
    """A context whose equations belong to a part of a joint program; those of an inner one to its part.

    Outside a trace it changes nothing.
    """
    builder = current_builder.get()
    if builder is None:
        yield
        return
    if builder.gradient_stop is not None:
        builder.gradient_stop.apply()
    start = len(builder.equations)
    outer, builder.part = builder.part, part
    try:
        yield
    finally:
        builder.part = outer
        for eqn in builder.equations[start:]:
            if eqn.part is None:
                eqn.part = part


class StepNeeded(BaseException):
    """Raised to end the trace of a jitted function that does something only Variables can do.

    The function is then traced again as a step on Variables; if it cannot be one, `error` is raised.
    """

    def __init__(self, error: Exception):
        self.error = error


def refuse_in_transform(error: Exception, builder: Builder | None) -> NoReturn:
    """Raises StepNeeded if `builder` traces a jitted function and no other transform, else `error`.

    The jitted function may be called by other jitted functions.
    """
    if builder is not None and all([b.kind == "jit" for b in with_parents(builder)]):
        raise StepNeeded(error)
    raise error


def refuse_of_traced(error: Exception, x: Tracer) -> NoReturn:
    """As `refuse_in_transform` if a trace around `x` has read a Variable, else raises `error`."""
    if any([is_variable(y) for b in with_parents(x.builder) for _, y in b.captures.values()]):
        refuse_in_transform(error, x.builder)
    raise error


def trace(
    fun: Callable[..., Sequence[Any]],
    avals: Sequence[ShapedArray],
    *,
    name: str = "f",
    kind: str = "trace",
    values: Sequence[Any] | None = None,
    active: Sequence[bool] = (),
    in_names: Any = None,
    source: Source | None = None,
    capture_bases: bool = False,
    layouts: Sequence[tuple[int, ...] | None] = (),
    batched_from: tuple[Axis, Sequence[tuple[ArrayLike, Dim]]] | None = None,
    carries_writes: bool = False,
    keeps_copies: bool = False,
    returns_writes: bool = False,
) -> tuple[Program, list[Any]]:
    """The program of `fun`, which takes and returns flat sequences, and the values that it captures.

    The last inputs of the program stand for the captured values. `values` are the known values of
    inputs, on which Python can branch. `active` is the mask of the inputs that a derivative
    is taken in. With `capture_bases`, a view from outside is captured as its base.
    `layouts` gives the strides of inputs that are not in row-major order. `batched_from` is a named
    axis and, for each input, the whole batch and its batch dimension; an input whose dimension is
    None is the same for the whole batch, so its value is known. With `carries_writes`, the function
    may write to captured arrays, since the caller carries their new values out. With `returns_writes`,
    it may draw from generators, since the caller returns the new states. With `keeps_copies`, the
    program has the copies of a function without writes.
    """
    builder = Builder(name, kind, current_builder.innermost())
    builder.source = source or builder.source
    builder.in_names = in_names
    builder.carries_writes, builder.returns_writes = carries_writes, returns_writes
    builder.keeps_copies = keeps_copies
    builder.imported_views = {} if capture_bases else None
    tracers = [builder.add_input(aval) for aval in avals]
    if layouts:
        builder.layouts.update(zip(builder.inputs, layouts, strict=False))
    if values is not None:
        builder.values.update(zip(builder.inputs, values, strict=True))
    if batched_from is not None:
        builder.axis, batches = batched_from
        pairs = [*zip(builder.inputs, batches, strict=True)]
        builder.batched_inputs.update(pairs)
        builder.values.update([(v, x) for v, (x, dim) in pairs if dim is None])
    builder.differentiated = frozenset(compress(builder.inputs, active))
    return run_and_finish(builder, fun, tracers)


def trace_closed(
    fun: Callable[..., Sequence[Any]], avals: Sequence[ShapedArray], **options: Any
) -> Program:
    """As `trace`, with an equation `captured` in place of each input for a captured value."""
    program, captured = trace(fun, avals, **options)
    if not captured:
        return program
    from functx.core.captures import close_over

    return close_over(program, captured)


def map_equations(
    program: Program,
    step: Callable[..., Sequence[Any]],
    avals: Sequence[ShapedArray] | None = None,
) -> Program:
    """The program in which the outputs of each equation are those of `step(eqn, *operands)`.

    Its inputs have the types `avals`, by default those of `program`.
    """

    def body(*args: Value) -> list[Value]:
        return interpret(program, args, step)

    in_avals = program.in_avals if avals is None else avals
    return trace_closed(body, in_avals, name=program.name, in_names=program.in_names)


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
        if builder.restore_modes is not None:
            builder.restore_modes()
        current_builder.reset(token)


@contextmanager
def eval_context() -> Iterator[None]:
    """A context in which operations are evaluated, also inside a trace of functx or JAX."""
    with ContextValue(current_builder, None), backend.outer_jax_trace():
        yield
