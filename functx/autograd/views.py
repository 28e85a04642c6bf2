"""The memory that Variables share: views, reads after writes, and writes, each the same for all nested views."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from functx import ops
from functx.autograd.modes import current_modes, grad_mode
from functx.autograd.nodes import Edge, OverwrittenNode, operand_watch
from functx.autograd.recorded import capture_in_step, step_traces
from functx.core.builder import Builder
from functx.core.errors import (
    CapturedWriteError,
    LeafWriteError,
    OverlappingViewError,
    ViewWriteError,
)
from functx.core.primitive_families import View
from functx.core.tracer import current_builder
from functx.core.tracing import refuse_in_transform
from functx.numpy import mutation

if TYPE_CHECKING:
    from functx.autograd.variable import Variable


class VersionCounter:
    """The count of writes to the memory that a Variable shares with its views.

    `writes` counts the writes to it. `version` does so too, but users may change it: a saved value
    is valid while its version stays. That of an inference array has no version for users.
    """

    __slots__ = ("is_inference", "version", "writes")
    logs: ClassVar[tuple[list[VersionCounter], ...]] = ()
    """The lists that counters are added to when their version changes."""

    def __init__(self, is_inference: bool):
        self.version = self.writes = 0
        self.is_inference = is_inference

    def add(self, versions: int = 1, writes: int = 1) -> None:
        """Counts writes."""
        self.version += versions
        self.writes += writes
        for log in self.logs:
            log.append(self)


_changing_logs = Lock()


@contextmanager
def changed_versions(log: list[VersionCounter]) -> Iterator[None]:
    """A context in which counters are added to `log` when their version changes, in any thread."""
    with _changing_logs:
        VersionCounter.logs = (*VersionCounter.logs, log)
    try:
        yield
    finally:
        with _changing_logs:
            VersionCounter.logs = tuple([x for x in VersionCounter.logs if x is not log])


class ViewOf(NamedTuple):
    """A view: output number `output` of `primitive` on `base` and other operands.

    Without a primitive it is the whole base, without its history: detached, or the output of a call
    of `function`, a `Function`, whose rule is its history until a write. One made under `no_grad` has
    none of the history that the memory had then, `memory_edge`.
    """

    base: Variable
    primitive: View | None
    others: tuple[Any, ...] = ()
    output: int = 0
    function: str | None = None
    under_no_grad: bool = False
    memory_edge: Edge | None = None


def read_again(x: Variable) -> None:
    """Takes a view again after a write, and first those that it is a view of."""
    stale: list[tuple[Variable, ViewOf, bool]] = []
    records = current_modes().records_gradients
    while (view := x._view) is not None and not x.is_current:
        # Of the base of another view, which `forward` may have made under no_grad, only the value is read.
        records = view.primitive is not None and has_history_of(x, view, records)
        stale.append((x, view, records))
        x = view.base
    for x, view, records in reversed(stale):
        take_again(x, view, records)


def take_again(x: Variable, view: ViewOf, records: bool) -> None:
    """Takes a view of its base, which is current, again; `records` says whether with its history."""
    writes = x.version_counter.writes
    if view.primitive is None:
        edge = x._edge
        if edge is not None and view.function is not None:
            edge = OverwrittenNode(view.function, [x.aval_]), 0
        x._replace(view.base.read(), edge, view.base._dual if view.function else None)
    else:
        with grad_mode(records, inference=False):
            outs = x.record(view.primitive, (view.base, *view.others))
            new = outs[view.output] if view.primitive.multiple_results else outs
        x._replace(new._recorded, new._edge, new._dual)
    x._writes_read = writes


def has_history_of(x: Variable, view: ViewOf, records: bool) -> bool:
    """Whether a view, taken again after a write, has the history of its base.

    Raises ViewWriteError for a view made under no_grad after a write that has a history, if the
    mode `records` gradients.
    """
    if not view.under_no_grad:
        return True
    memory = x.owner
    memory.read()
    if memory._edge is view.memory_edge:
        return False
    if view.memory_edge is not None and records:
        raise ViewWriteError(
            "a view made under no_grad must not be read in grad mode after a write to its memory "
            f"that has a derivative; got {x.aval_!r}, a view of {view.base.aval_!r}",
            fix="Take the view outside no_grad, or copy it (.copy()).",
        )
    return True


def detach(x: Variable) -> Variable:
    """The same memory without history."""
    views: list[tuple[Variable, ViewOf]] = []
    view = x._view
    while view is not None and (view.primitive is not None or view.function is not None):
        if view.primitive is not None:
            views.append((x, view))
        x, view = view.base, view.base._view
    detached = x.without_history()
    if view is None:
        # The memory is that of an array without history, lest the result keep the graph of this one.
        view = x._view = ViewOf(x.without_history(), None)
        if step_traces.count and (trace := step_traces.of_thread()) is not None:
            trace.split_memory(x, view.base)
    detached._view = view
    for x, view in reversed(views):
        base, detached = detached, x.without_history()
        detached._view = ViewOf(base, view.primitive, view.others, view.output)
    return detached


def write(x: Variable, new: Variable) -> None:
    """Write `new`, of the same shape and dtype; all views of the memory see it."""
    first, states = x, []
    if (watch := operand_watch.get()) is not None:
        watch((x,))
    while True:
        if step_traces.count:
            capture_in_step(x)
        view = x._view
        if view is not None and view.primitive is not None:
            new = view.primitive.scatter_into_base(new, view.output, view.base, *view.others)
        else:
            new, edge = written(x, new)
            # It may lie in this memory, and must be read before that counts the write.
            recorded = new.read()
            if view is None or view.function is None:
                states.append((x, recorded, edge, new._dual))
            if view is None:
                break
            new = view.base.with_value(recorded)
        x = view.base
    counter = x._counter or x.version_counter
    counter.add()
    for x, recorded, edge, dual in reversed(states):
        x._replace(recorded, edge, dual)
        x._writes_read = counter.writes
    seen: Variable | None = first
    while seen is not None:
        if seen._retains_grad:
            seen.read()
        seen = seen._view and seen._view.base


def written(x: Variable, new: Variable) -> tuple[Variable, Edge | None]:
    """The value that a write of `new` to a whole array stores, and the history of the array after it."""
    if not current_modes().records_gradients or x._leaf is not None:
        # A write that no derivative sees leaves the history as it is.
        return new, x._edge
    if x._edge is not None and new.edge is None:
        # The value before gets a gradient of zero.
        new = ops.select(np.True_, new, x)  # type: ignore[assignment]
    return new, new.edge


def check_writable(
    x: Variable,
    operation: str,
    fix: str = "Write under functx.autograd.no_grad(), or to a copy (x.copy()).",
) -> None:
    """Raises LeafWriteError for a leaf in grad mode, OverlappingViewError for a read-only view."""
    builder = current_builder.get()
    if builder is not None:
        try:
            mutation.check_not_captured(x, None, operation, x)
        except CapturedWriteError as error:
            outer: Builder | None = builder
            while outer is not None and outer.carries_writes:
                outer = outer.parent
            refuse_in_transform(error, outer)
    modes = current_modes()
    if not modes.inference:
        x._check_not_inference(operation, "be written to outside")
    owner = x
    while (view := owner._view) is not None and view.primitive is not None:
        if view.primitive.is_read_only_view(view.base.aval_):
            raise OverlappingViewError(
                f"{operation}: a view that repeats elements or is read-only must not be written "
                f"to; got {x.aval_!r}",
                fix="Copy it first (.copy()).",
            )
        if modes.records_gradients and view.base.grad_fn is not None:
            check_history_of_view(owner, view, operation)
        owner = view.base
    if not modes.records_gradients:
        return
    if view is not None and view.function is not None and owner.requires_grad:
        raise ViewWriteError(
            f"{operation}: a view that the Function {view.function} returned must not be written to "
            f"in grad mode; got {x.aval_!r}",
            fix="Write to the array that it shows, before the call, or to a copy (x.copy()).",
        )
    if owner._leaf is not None:
        which = "a leaf" if owner is x else "a view of a leaf"
        raise LeafWriteError(
            f"{operation}: {which} that requires a gradient must not be written to; got "
            f"{x.aval_!r}",
            fix=fix,
        )


def check_history_of_view(x: Variable, view: ViewOf, operation: str) -> None:
    """Raises ViewWriteError for a view that must not be written to in grad mode."""
    if x.edge is None:
        raise ViewWriteError(
            f"{operation}: a view made under no_grad must be written to under no_grad; got "
            f"{x.aval_!r}, a view of {view.base.aval_!r}",
            fix="Take the view outside no_grad, or copy it (.copy()).",
        )
    if view.primitive is not None and view.primitive.multiple_results:
        raise ViewWriteError(
            f"{operation}: one of several results of `{view.primitive.name}` must not be written "
            f"to in grad mode; got {x.aval_!r}, a view of {view.base.aval_!r}",
            fix="Take the view with an index (x[:n]), or copy it (.copy()).",
        )


def chain(x: Variable) -> list[Any]:
    """The views that lead to an array, the last first."""
    steps: list[Any] = []
    while x._view is not None:
        steps.append((x._view.primitive, x._view.output, *map(id, x._view.others)))
        x = x._view.base
    return steps
