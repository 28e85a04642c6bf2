"""Memory that the arguments and captured arrays of a function share, and writes to it.

A trace that writes is functionalized here: traced again until it was made for the memory that its
arguments really have. A trace without writes and views needs nothing of this file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.captured_state import CapturedState, state_table
from functx.core.errors import ArgumentError, type_name
from functx.core.functionalization import (
    Functionalize,
    FunctionalizedProgram,
    write_to_numpy_arrays,
)
from functx.core.generator_state import implicit_draw_error
from functx.core.masks import indices_where
from functx.core.memory_layouts import (
    MemoryLocation,
    is_computed,
    memory_location,
    noncontiguous_strides,
    record_layout_dependence,
    storage_base,
)
from functx.core.program import Atom, Var
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.strides import Strides
from functx.core.tracer import Tracer, check_not_escaped, current_builder, is_variable
from functx.core.typing import ArrayLike, Flags, Function, NumPyArray, PyTree, Value, Values
from functx.ops.operands import literal
from functx.ops.views import AsStrided, Copy, Write

if TYPE_CHECKING:
    from functx.transforms.tracing_api import TracedFunction

ArgumentStrides = Sequence[Strides | None]
"""The strides of arguments; None for those in row-major order."""
OffsetAndStrides = tuple[int, Strides]
"""Where an array begins in a shared buffer, and its strides, in elements."""


class SharedBuffer(NamedTuple):
    """A buffer of `size` elements that several arguments lie in.

    `members` are the indices of these arguments, each with its offset and strides.
    """

    size: int
    members: tuple[tuple[int, OffsetAndStrides], ...]

    def rebase_members(self, args: list[Value], last: Sequence[int]) -> list[Value]:
        """`args` with the members as views of one array, the buffer.

        Where members overlap, the buffer holds the elements of those with an index in `last`.
        """
        members = sorted(self.members, key=lambda member: member[0] in last)
        first = args[members[0][0]]
        buffer = ops.full((self.size,), literal(0, first.dtype))
        views = {
            i: AsStrided(args[i].shape, (start,), tuple([(step,) for step in steps]))
            for i, (start, steps) in members
        }
        for i, view in views.items():
            buffer = view.scatter_into_base(args[i], 0, buffer)
        return [views[i](buffer) if i in views else x for i, x in enumerate(args)]


class MemoryLayout(NamedTuple):
    """The memory that a trace assumes its arguments and captured arrays to have.

    `buffers` are the buffers that several arguments share. With `capture_bases`, a trace that
    reads a view from outside captures the array that owns its memory. `strides` are those of the
    arguments, empty if all are in row-major order.
    """

    buffers: tuple[SharedBuffer, ...] = ()
    capture_bases: bool = False
    strides: tuple[Strides | None, ...] = ()

    def corrected(
        self,
        values: Sequence[ArrayLike] | None,
        captured: Values,
        written: Sequence[int],
        layout_dependent: bool,
        count: int,
    ) -> MemoryLayout:
        """The layout of arguments with these `values`, for a trace that writes to `written`.

        The `captured` values are the inputs from number `count` on.
        """
        buffers, strides = self.buffers, self.strides
        if values is not None and not buffers:
            buffers = written_shared_buffers(values, written)
        bases = self.capture_bases or _captures_alias(captured, [i - count for i in written])
        if layout_dependent:
            argument_strides(captured)
            if values is not None and any(found := argument_strides(values)):
                strides = tuple(found)
        return MemoryLayout(buffers, bases, strides)


ROW_MAJOR = MemoryLayout()
"""The layout of arguments in row-major order that share no memory."""


def functionalize_trace(
    traced: TracedFunction,
    trace_in: Callable[[MemoryLayout], tuple[TracedFunction, bool]],
    memory: MemoryLayout,
    values: Sequence[ArrayLike] | None,
) -> TracedFunction:
    """The pure form of `traced`, a function with writes that `trace_in(memory)` traced.

    A trace assumes a memory layout. If the writes of the program, or its dependence on strides, show
    that the arguments `values` lie in memory otherwise, the function is traced again: `trace_in`
    returns the traced function, and whether it writes.
    """
    traced, strides = find_memory_layout(traced, trace_in, memory, values, Functionalize)
    if not traced.program.writes:
        return traced
    pure: FunctionalizedProgram = cached_rewrite(Functionalize(strides), traced.program)
    return traced._replace(
        program=pure.program,
        written=pure.written,
        layout_dependent=traced.layout_dependent or pure.layout_dependent,
    )


def find_memory_layout(
    traced: TracedFunction,
    trace_in: Callable[[MemoryLayout], tuple[TracedFunction, bool]],
    memory: MemoryLayout,
    values: Sequence[ArrayLike] | None,
    rewrite: Callable[..., Rewrite[Any]],
) -> tuple[TracedFunction, tuple[Strides | None, ...]]:
    """The trace for the memory that the arguments lie in, and the strides of its inputs.

    The arguments are as in `functionalize_trace`; `rewrite(strides)` finds which inputs are written
    to, and whether the layout matters.
    """
    strides: tuple[Strides | None, ...] = ()
    writes = True
    while writes:
        program, captured = traced.program, traced.captured
        count = len(program.inputs) - len(captured)
        strides = (
            *(memory.strides or (None,) * count),
            *[noncontiguous_strides(x) for x in captured],
        )
        pure = cached_rewrite(rewrite(strides), program)
        layout_dependent = traced.layout_dependent or pure.layout_dependent
        found = memory.corrected(values, captured, pure.written, layout_dependent, count)
        if found == memory:
            if values is not None:
                check_captures_not_aliased(values, captured, pure.written)
            break
        memory = found
        traced, writes = trace_in(memory)
    return traced, strides


def with_shared_buffers(
    flat: Callable[..., list[Value]], buffers: Sequence[SharedBuffer], active: Flags
) -> Callable[..., list[Value]]:
    """`flat` applied to arguments that are views of `buffers`; writes go back to the arguments."""

    def body(*tracers: Tracer) -> list[Value]:
        leaves: list[Value] = list(tracers)
        for buffer in buffers:
            leaves = buffer.rebase_members(leaves, indices_where(active))
        outs = flat(*leaves)
        if current_builder.require().writes:
            for i in [i for buffer in buffers for i, _ in buffer.members]:
                Write()(tracers[i], leaves[i])
        return outs

    return body


def written_shared_buffers(
    args: Sequence[Any], written: Collection[int]
) -> tuple[SharedBuffer, ...]:
    """The buffers that several of `args` share, of which at least one has an index in `written`.

    Raises ArgumentError for arguments that overlap there and have several dtypes, for traced
    arguments whose offset in the buffer is not known, and for Variables.
    """
    check_variables_not_aliased(args, written)
    found = tuple([b for b in shared_buffers(args) if any(i in written for i, _ in b.members)])
    for i, _ in [member for buffer in found for member in buffer.members]:
        x = args[i]
        if type(x) is Tracer and memory_location(x.builder, x.atom).byte_offset is None:
            raise ArgumentError(
                "arguments that share memory and are written to must lie in it at places that are "
                f"known while tracing; got {x.atom.aval!r}, a part of an array from a traced place on",
                fix="Pass a copy of it.",
            )
    return found


def check_variables_not_aliased(args: Sequence[Any], written: Collection[int]) -> None:
    """Raise ArgumentError if Variables share memory and one of them has an index in `written`."""
    targets = {id(x.memory): x for i, x in enumerate(args) if i in written and is_variable(x)}
    for x in args if targets else ():
        target = targets.get(id(x.memory), x) if is_variable(x) else x
        if target is not x:
            raise ArgumentError(
                "a function that is transformed must not write to a Variable that shares memory with "
                f"another one that it uses; got {target.describe()} and {x.describe()}",
                fix="Take the view inside the function, or pass a copy of one of them.",
            )


def shared_buffers(args: Sequence[Any]) -> list[SharedBuffer]:
    """The buffers that arrays among `args` share with arrays that they overlap."""
    args = [*map(array_of_state, args)]
    arrays = {i: x for i, x in enumerate(args) if isinstance(x, np.ndarray) and x.size}
    arrays |= _placeholder_arrays(args)
    arrays = arrays_in_one_range(arrays)
    groups: list[list[int]] = []
    for i, x in arrays.items():
        touching = [g for g in groups if any(overlap(x, arrays[j]) for j in g)]
        groups = [g for g in groups if g not in touching]
        groups.append([*[j for g in touching for j in g], i])
    return [_shared_buffer({i: arrays[i] for i in group}) for group in groups if len(group) > 1]


def array_of_state(x: Any) -> Any:
    """The array of a state, inside a trace the traced array that stands for it; any other value unchanged."""
    if not isinstance(x, CapturedState):
        return x
    builder = current_builder.get()
    return x.load() if builder is None else builder.tracer(x)


def arrays_in_one_range(arrays: dict[int, NumPyArray]) -> dict[int, NumPyArray]:
    """The arrays whose range of addresses overlaps with that of another one, in the same order."""
    ranges = sorted([(*address_range(x), i) for i, x in arrays.items()])
    touching: set[int] = set()
    end, last = -1, -1
    for low, high, i in ranges:
        if low < end:
            touching.update((last, i))
        if high > end:
            end, last = high, i
    return {i: x for i, x in arrays.items() if i in touching}


def address_range(x: NumPyArray) -> tuple[int, int]:
    """The addresses of the first byte of an array, and of that behind the last."""
    if x.flags.c_contiguous or x.flags.f_contiguous:
        start: int = x.__array_interface__["data"][0]
        return start, start + x.nbytes
    return np.lib.array_utils.byte_bounds(x)


def _placeholder_arrays(args: Values) -> dict[int, NumPyArray]:
    """NumPy arrays that overlap as the traced arguments with one base do, by index."""
    by_base: dict[Atom, list[tuple[int, Tracer, MemoryLocation]]] = {}
    for i, x in enumerate(args):
        if type(x) is Tracer and type(x.atom) is Var and x.size:
            location = memory_location(x.builder, x.atom)
            by_base.setdefault(location.base, []).append((i, x, location))
    arrays: dict[int, NumPyArray] = {}
    for base, members in by_base.items():
        if len(members) < 2:
            continue
        whole = np.empty(base.aval.size, base.aval.dtype)
        for i, x, location in members:
            if location.byte_offset is None:
                arrays[i] = whole
                continue
            size = x.dtype.itemsize
            first = np.ndarray((), x.dtype, whole.data, location.byte_offset)
            steps = tuple([n * size for n in location.strides])
            arrays[i] = np.lib.stride_tricks.as_strided(first, x.shape, steps)
    return arrays


def overlap(x: NumPyArray, y: NumPyArray) -> bool:
    if not np.may_share_memory(x, y):
        return False
    try:
        return np.shares_memory(x, y, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _shared_buffer(arrays: dict[int, NumPyArray]) -> SharedBuffer:
    bounds = [np.lib.array_utils.byte_bounds(x) for x in arrays.values()]
    low, high = min([b[0] for b in bounds]), max([b[1] for b in bounds])
    first = next(iter(arrays.values()))
    size = first.itemsize
    offsets = {i: x.__array_interface__["data"][0] - low for i, x in arrays.items()}
    if any(
        x.dtype != first.dtype or offsets[i] % size or any(s % size for s in x.strides)
        for i, x in arrays.items()
    ):
        raise ArgumentError(
            "arguments that share memory and are written to must have one dtype; got "
            + " and ".join(map(type_name, arrays.values())),
            fix="Pass a copy of all but one.",
        )
    members = [
        (i, (offsets[i] // size, tuple([s // size for s in x.strides]))) for i, x in arrays.items()
    ]
    return SharedBuffer((high - low) // size, tuple(members))


def check_captures_not_aliased(
    args: Sequence[ArrayLike], captured: Sequence[Value | None], written: Collection[int]
) -> None:
    """Raise ArgumentError if an array of `args` shares memory with a captured one, and one is written to."""
    values = [*args, *captured]
    for buffer in written_shared_buffers(values, written):
        members = [i for i, _ in buffer.members]
        if max(members) >= len(args):
            raise ArgumentError(
                "a function that is transformed must not write to an argument that shares memory "
                "with an array around the function; got "
                + " and ".join([type_name(array_of_state(values[i])) for i in members]),
                fix="Pass that as an argument too, or a copy of one of them.",
            )


def have_aliased_pair(args: Sequence[Value | None], written: Collection[int]) -> bool:
    """Whether two traced arguments or Variables share memory, and one of them is written to."""
    memories = [memory for x in args if (memory := traced_memory(x)) is not None]
    counts = Counter(map(id, memories))
    if len(counts) == len(memories):
        return False
    return any([counts[id(traced_memory(args[i]))] > 1 for i in written])


def traced_memory(x: Any) -> object:
    """An object that traced values which share memory have in common; None for a literal or an array."""
    if type(x) is Tracer:
        return storage_base(x).atom if type(x.atom) is Var else None
    if is_variable(x):
        return x.memory
    return traced_memory(array_of_state(x)) if isinstance(x, CapturedState) else None


def trace_with_shared_captures(
    trace: Callable[[MemoryLayout], list[TracedFunction]], memory: MemoryLayout = ROW_MAJOR
) -> list[TracedFunction]:
    """The calls `trace(memory)` of functions that see each other's writes to captures.

    Views are captured as their bases only if one is written to.
    """
    calls = trace(memory)
    captured = {capture_key(x): x for call in calls for x in call.captured}
    indices = {key: i for i, key in enumerate(captured)}
    written = set()
    for call in calls:
        own = len(call.program.inputs) - len(call.captured)
        written |= {indices[capture_key(call.captured[i - own])] for i in call.written if i >= own}
    if not _captures_alias(list(captured.values()), written):
        return calls
    return trace(memory._replace(capture_bases=True))


def capture_key(x: object) -> Hashable:
    """A key that two captured values share exactly when they are one value."""
    return x.atom if type(x) is Tracer else id(x)


def _captures_alias(captured: Sequence[Value | None], written: Collection[int]) -> bool:
    """Whether a captured array that is written to is a view, or has views among the captured."""
    check_captures_not_aliased([], [None if type(x) is Tracer else x for x in captured], written)
    targets = [captured[i] for i in written if i >= 0]
    return any(
        type(x) is Tracer and storage_base(x).atom is not x.atom for x in targets
    ) or have_aliased_pair(captured, written)


def argument_strides(values: Sequence[Any]) -> ArgumentStrides:
    """The strides of arguments, recorded as something that the functions around depend on."""
    for x in values:
        record_layout_dependence(x, writes=True)
    return [noncontiguous_strides(x) for x in values]


def is_written_to(x: Tracer) -> bool:
    """Whether the program being traced writes to `x` or to a view of it."""
    builder = x.builder
    return any(
        type(eqn.primitive) is Write and storage_base(Tracer(eqn.inputs[0], builder)).atom is x.atom
        for eqn in builder.equations
    )


def write_back_arguments(args: Values, new: dict[int, Any]) -> None:
    """Write the values of `new` to the arguments at its keys.

    Raises ImmutableArrayError, before any is changed, if one is a read-only NumPy array, and
    AutogradError for a Variable that must not be written to.
    """
    in_trace, write = current_builder.get() is not None, Write()
    traced = [i for i in new if isinstance(args[i], Tracer)]
    recorded: list[Any] = [args[i] for i in traced if type(args[i]) is not Tracer]
    for x in recorded:
        # A trace takes values written inside no_grad as constants; the history of a leaf does not.
        x.check_writable(
            "a write to an argument",
            fix="Enter functx.autograd.no_grad() around the call of the transformed function or the "
            "loop, not only inside it, or write to a copy (x.copy()).",
        )
    states = [i for i in new if isinstance(args[i], CapturedState)]
    write_to_numpy_arrays(args, new)
    values = [new[i] for i in traced]
    if len(traced) > 1:
        # A value may be a view of an argument that another one overwrites.
        values = copy_if_aliased(values, [args[i] for i in traced])
    for i, value in zip(traced, values, strict=True):
        if in_trace or type(args[i]) is Tracer:
            write(args[i], value)
        else:
            args[i].write(value)  # type: ignore[attr-defined]
    for i in states:
        write_state(args[i], new[i])


def write_state(
    state: Any, value: Value, error: Callable[[str, object], Exception] = implicit_draw_error
) -> None:
    """Replace the value of a state: by an equation inside a trace, else in the state.

    `state` is a `CapturedState`, or the traced value of one that was made in a trace. `error` makes the error
    for a traced one whose new value the function cannot return.
    """
    builder = current_builder.get()
    if builder is not None:
        target = builder.tracer(state)
        is_state = isinstance(state, CapturedState)
        is_refused = not builder.returns_writes or (
            builder.axis is not None and is_state and not state.is_writable_under_vmap
        )
        if is_refused and builder.captured_value(target.atom) is not None:
            raise state.write_error(builder.owner) if is_state else error(builder.owner, state)
        Write()(target, value)
    elif type(state) is Tracer:
        check_not_escaped(state, None)
    elif is_variable(value) and state_table.get() is None:
        state.store(value.compute())  # type: ignore[attr-defined]
    else:
        state.store(value)


def copy_if_aliased(values: Values, args: Values) -> list[Value]:
    """`values`, with a copy of each that is one of the operands `args`, captured, or a view."""
    operands = {x.atom for x in args if type(x) is Tracer}
    if not operands:
        return list(values)
    return [
        Copy()(x) if type(x) is Tracer and (x.atom in operands or not is_computed(x)) else x
        for x in values
    ]


def copy_transform_results(values: Values, args: Values) -> list[Value]:
    """The results of a transform of operands `args`: `values`, copied where they are aliases.

    Outside a trace they are JAX arrays. So `x += y` binds a new value to `x` inside a trace too, unless
    the trace is that of a call on Variables, where they are Variables.
    """
    results = copy_if_aliased(values, args)
    for x in results:
        if type(x) is Tracer and not x.builder.inputs_are_variables:
            x.builder.mark_made_by_jax(x.atom)
    return results


def call_outside_trace(fun: Function, *args: PyTree, **kwargs: PyTree) -> PyTree:
    """`fun(*args, **kwargs)` outside a trace; results that alias a NumPy argument are copied."""
    arrays = [x for x in tree.leaves((args, kwargs)) if isinstance(x, np.ndarray)]

    def copy_result(x: PyTree) -> PyTree:
        shared = isinstance(x, np.ndarray) and any([np.may_share_memory(x, y) for y in arrays])
        return x.copy() if shared else x

    out = fun(*args, **kwargs)
    return tree.map(copy_result, out) if arrays else out
