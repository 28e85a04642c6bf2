"""Operations on Variables: what is recorded, the node that is made, and the memory that views share."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any
from weakref import ref

import numpy as np

from functx import ops
from functx.autograd.modes import current_modes
from functx.autograd.nodes import (
    Edge,
    OperationNode,
    OperationSplit,
    is_sum_of_squares,
    make_saved_value,
    operand_watch,
    saving_hooks,
    split_operation,
    split_program,
)
from functx.autograd.recorded import Operand, Recorded, capture_in_step, operand_of, step_traces
from functx.autograd.recorded_operations import operation_of_primitive
from functx.autograd.recording import Recording, current_recording
from functx.autograd.variable import Dual, Variable, as_variable, closed_level, open_level
from functx.autograd.views import VersionCounter, ViewOf
from functx.core.captured_state import read_states
from functx.core.captures import hoist_captures
from functx.core.config import option_key
from functx.core.memory_layouts import noncontiguous_strides, result_strides
from functx.core.primitive import Primitive
from functx.core.primitive_families import View
from functx.core.program import Literal, Program
from functx.core.rewriting import cached_rewrite
from functx.core.strides import MemoryOrder, is_row_major, row_major_strides
from functx.core.tracer import aval_of
from functx.core.types import is_inexact
from functx.ops.operands import literal
from functx.ops.views import Write
from functx.transforms.forward_mode import JVPRewrite

_new = object.__new__
_no_writes = VersionCounter(False)
"""The counter of saved values that are not checked for writes."""
_INT32 = np.dtype(np.int32)


def record_outputs(primitive: Primitive, args: Sequence[Any]) -> list[Variable]:
    """The outputs of an operation, at least one of whose operands is a Variable."""
    if (watch := operand_watch.get()) is not None:
        watch(args)
    if type(primitive) is Write:
        args[0].write(as_variable(args[1]))
        return []
    if type(primitive) is ops.Slice and primitive.strides is None:
        # Its start is an operand, so that slices that start elsewhere have the same program.
        sizes = [b - a for a, b in zip(primitive.start, primitive.limit, strict=True)]
        args = [args[0], *[literal(start, _INT32) for start in primitive.start]]
        primitive = ops.DynamicSlice(tuple(sizes))
    if open_level.get() is not None and primitive.differentiable and has_tangent(args):
        avals = tuple([x.read().aval if isinstance(x, Variable) else aval_of(x) for x in args])
        outs = record_duals(operation_of_primitive(primitive, avals).program, args)
    else:
        outs = record_primitive(primitive, args)
    if isinstance(primitive, View) and isinstance(args[0], Variable):
        share_memory(primitive, args, outs)
    elif primitive.memory_order is not MemoryOrder.ROW_MAJOR:
        set_memory_order(primitive, args, outs)
    return outs


def record_primitive(primitive: Primitive, args: Sequence[Any]) -> list[Variable]:
    """The outputs of an operation, which share no memory with its operands."""
    recording = current_recording()
    operands, edges, key = operands_of(recording, primitive, args, primitive.differentiable)
    if type(primitive) is ops.Sqrt and is_sum_of_squares(edges[0]):
        key[0] = primitive = ops.SafeSqrt()
    known = option_key(tuple(key))
    new = recording.repeat_call(known)
    if new is not None:
        return outputs_of(recording.prefix.split, args, operands, edges, new)
    types: list[Any] = [primitive]
    for x, edge in zip(operands, edges, strict=True):
        types += (x.aval, edge is not None)
    split, is_lasting = split_operation(tuple(types))
    new = recording.call_split(known if is_lasting else None, split, operands, key[1::2])
    return outputs_of(split, args, operands, edges, new)


def operands_of(
    recording: Recording, function: object, args: Sequence[Any], differentiable: bool
) -> tuple[list[Operand], list[Edge | None], list[Any]]:
    """The operands and edges of a call, and its key: `function`, then the key and activity of each operand."""
    if step_traces.count:
        for x in args:
            if isinstance(x, Variable):
                capture_in_step(x)
    if recording.has_pending:
        recording.abandon_call()
    prefix = recording.prefix
    records = differentiable and current_modes().records_gradients
    operands: list[Operand] = []
    edges: list[Edge | None] = []
    key = [function]
    try:
        for x in args:
            edge: Edge | None = None
            if isinstance(x, Variable):
                if x._view is not None:
                    x.read()
                operand: Operand = x._recorded
                if records:
                    # As the property `edge`, in fewer calls.
                    leaf = x._leaf
                    edge = x._edge if leaf is None else (leaf() or x.leaf_node(), 0)
            else:
                operand = x if type(x) is Literal else operand_of(x)
            if type(operand) is Literal:
                operand_key: Hashable = recording.key_of_literal(operand)
            elif operand.recording is recording:
                operand_key = operand.number
            elif operand.recording is None and (known := operand.captured)[0] is recording:
                operand_key = known[1]
            else:
                operand_key = recording.key_from_outside(operand)
            operands.append(operand)
            edges.append(edge)
            key += (operand_key, edge is not None)
    except BaseException:
        recording.abandon_call()
        raise
    if recording.prefix is not prefix:
        # An operand was a view that was written to, and has been recorded again, or a value whose
        # computation has called Python.
        return operands_of(recording, function, args, differentiable)
    return operands, edges, key


def record_program(program: Program, args: Sequence[Any]) -> list[Variable]:
    """The outputs of a program, at least one of whose operands is a Variable: one node."""
    if (watch := operand_watch.get()) is not None:
        watch(args)
    program, captured = hoist_captures(program)
    args = [*args, *read_states(captured)]
    if open_level.get() is not None and has_tangent(args):
        return record_duals(program, args)
    recording = current_recording()
    operands, edges, key = operands_of(recording, program, args, True)
    split = split_program(program, tuple(key[2::2]))
    new = recording.call(split.values, operands, key[1::2])
    return outputs_of(split, args, operands, edges, new)


def outputs_of(
    split: OperationSplit,
    args: Sequence[Any],
    operands: Sequence[Operand],
    edges: Sequence[Edge | None],
    new: Sequence[Recorded],
) -> list[Variable]:
    """The outputs of an operation, which was recorded with `new` values; with a node if it is active."""
    operation, is_active = split.values, split.is_active
    values = new if operation.select is None else operation.outputs_of(operands, new)
    is_inference = not is_active and current_modes().inference
    outs: list[Variable] = []
    count = len(split.out_avals)
    for value in values[:count]:
        # As `make_variable`, without a call.
        x: Variable = _new(Variable)
        x._recorded, x._edge = value, None
        if is_inference:
            x._counter = VersionCounter(True)
        outs.append(x)
    if is_active:
        node = OperationNode(split, edges, [*values[count:]])
        for n in split.differentiable:
            outs[n]._edge = node, n
        if node.saved:
            save_residuals(node, args, operands, outs)
    return outs


def save_residuals(
    node: OperationNode, args: Sequence[Any], operands: Sequence[Operand], outs: Sequence[Variable]
) -> None:
    """Notes the versions of the values that `node` saved, and saves the operands if it needs all."""
    split, edges, saved = node.split, node.edges, node.saved
    assert saved is not None
    keeps_operands = split.recomputes
    for k, i in split.saved_operands:
        x = args[i]
        if isinstance(x, Variable):
            counter, dual = x._counter or x.version_counter, x._dual
            if counter.is_inference:
                x._check_not_inference(split.name, "be saved for a derivative")
            if dual is not None:
                keeps_operands = True
            saved[k] = make_saved_value(
                (saved[k], edges[i], counter, counter.version, None, dual, ref(x))
            )
    if split.saved_outputs:
        for k, i in split.saved_outputs:
            # No other thread has the new value.
            new = outs[i]._counter or VersionCounter(False) if split.checks_outputs else _no_writes
            if split.checks_outputs:
                outs[i]._counter = new
            saved[k] = make_saved_value((saved[k], None, new, 0, i, None, None))
        # The tangents of outputs are computed again.
        if any([isinstance(x, Variable) and x._dual is not None for x in args]):
            keeps_operands = True
    if keeps_operands:
        node.operands = [*operands]
        for k, i in split.saved_operands:
            node.operands[i] = saved[k]
        for i, x in enumerate(args):
            if isinstance(x, Variable) and type(node.operands[i]) is Recorded:
                counter = x._counter or x.version_counter
                node.operands[i] = make_saved_value(
                    (operands[i], edges[i], counter, counter.version, None, x._dual, ref(x))
                )
    if (hooks := saving_hooks.get()) is not None:
        hooks.pack_node(node)


def share_memory(primitive: View, args: Sequence[Any], outs: Sequence[Variable]) -> None:
    """Makes the outputs of a view share the memory of its first operand, where NumPy's do."""
    base = args[0]
    strides = primitive.view_strides(base.aval_, base.strides_())
    if strides is None:
        return
    layout = None if is_row_major(outs[0].shape, strides) else strides
    under_no_grad = not current_modes().records_gradients
    memory_edge = base.owner._edge if under_no_grad else None
    same = base._view if type(primitive) is ops.Reshape and primitive.shape == base.shape else None
    # A detached array is a view of its memory with a history of its own, which its views share.
    if same is not None and (
        same.primitive is None
        or (same.under_no_grad, same.memory_edge) != (under_no_grad, memory_edge)
    ):
        same = None
    for i, out in enumerate(outs):
        out.version_counter, out._writes_read = base.version_counter, base.version_counter.writes
        # The whole of a view is that view, so that x = x[...] makes no chain.
        out._view = same or ViewOf(
            base, primitive, tuple(args[1:]), i, None, under_no_grad, memory_edge
        )
        out._strides = layout


def set_memory_order(primitive: Primitive, args: Sequence[Any], outs: Sequence[Variable]) -> None:
    """Lays out new results in the memory order that NumPy gives them."""
    if primitive.memory_order is not MemoryOrder.REARRANGED and not any(
        [isinstance(x, Variable) and x._strides is not None for x in args]
    ):
        return
    avals = [x.aval_ if isinstance(x, Variable) else aval_of(x) for x in args]
    layouts = [
        x.strides_()
        if isinstance(x, Variable)
        else noncontiguous_strides(x) or row_major_strides(aval.shape)
        for x, aval in zip(args, avals, strict=True)
    ]
    strides = result_strides(primitive, avals, layouts, outs[0].shape)
    if not is_row_major(outs[0].shape, strides):
        for x in outs:
            x._strides = strides


def has_tangent(args: Sequence[Any]) -> bool:
    """Whether an operand is dual at the open level of `forward_ad`, and forward mode is on."""
    return not current_modes().inference and any(
        [isinstance(x, Variable) and x.tangent is not None for x in args]
    )


def record_duals(program: Program, args: Sequence[Any]) -> list[Variable]:
    """The outputs of a program with their tangents, from operands with tangents."""
    level = open_level.get()
    tangents = [x.tangent if isinstance(x, Variable) else None for x in args]
    varying = tuple([t is not None for t in tangents])
    rewritten = cached_rewrite(JVPRewrite(varying), program)
    with closed_level():
        outs = record_program(rewritten, [*args, *[t for t in tangents if t is not None]])
    count = len(program.outputs)
    remaining = iter(outs[count:])
    for x in outs[:count]:
        if is_inexact(x.dtype):
            x._dual = Dual(level, next(remaining))  # type: ignore[arg-type]
    return outs[:count]


def _record(self: Variable, primitive: Primitive, args: Sequence[Any]) -> Any:
    """The output of an operation with this operand, or a list of them, as Variables."""
    outs = record_outputs(primitive, args)
    return outs if primitive.multiple_results else outs[0]


def _record_program(self: Variable, program: Program, args: Sequence[Any]) -> list[Variable]:
    """The outputs of a program with this operand, as Variables: one node."""
    return record_program(program, args)


Variable.record, Variable.record_program = _record, _record_program  # type: ignore[assignment]
