"""Calls of an `aot_function`: their programs, and what is done with the results outside of these."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple
from weakref import ref

import jax.numpy as jnp
import numpy as np

from functx import ops
from functx.aot.analysis import Analysis
from functx.aot.array_results import ArrayResults
from functx.aot.call_arguments import ArgumentPlan
from functx.aot.call_node import CallPullback, CompiledCallNode
from functx.aot.compilers import CompiledProgram, is_input
from functx.aot.meta import BaseKind, InputInfo, Meta, OutputInfo, OutputKind
from functx.autograd.modes import current_modes, grad_mode
from functx.autograd.nodes import SavedValue, make_saved_value, operand_watch
from functx.autograd.recorded import Recorded, constant
from functx.autograd.saved import pack_saved
from functx.autograd.variable import Variable, make_variable
from functx.autograd.views import VersionCounter
from functx.core import tree
from functx.core.captured_state import CapturedState, read_states
from functx.core.functionalization import write_to_numpy_arrays
from functx.core.typing import PyTree
from functx.transforms.aliasing import MemoryLayout, argument_strides, shared_buffers


class CallPrograms(NamedTuple):
    """The compiled programs of a call: `forward` and `pullback`, or `forward` alone for inference.

    `forward` returns the new values of the inputs that are written to outside the program, the outputs
    of the function and the bases, then the values that `pullback` takes first.
    """

    forward: CompiledProgram
    pullback: CallPullback | None


class CompiledCall:
    """All calls of an `aot_function` of one key: how their arguments become inputs, and results outputs.

    `number` is that of the compilation, by which its programs are named.
    """

    def __init__(
        self,
        number: int,
        label: str,
        plan: ArgumentPlan,
        analysis: Analysis,
        programs: CallPrograms,
        results: ArrayResults,
        memory: MemoryLayout | None,
    ):
        self.number, self.label, self.plan = number, label, plan
        self.meta: Meta = analysis.meta
        self.captured, self.out_tree, self.programs = analysis.captured, results.out_tree, programs
        self.memory, self.is_identity = memory, plan.is_identity
        meta = self.meta
        self.written = [i for i, x in enumerate(meta.inputs) if x.mutates_data]
        self.num_results = len(meta.mutated) + len(meta.outputs) + len(meta.bases)
        program = programs.forward.program
        self.inputs_returned = {
            i: program.inputs.index(a)  # type: ignore[arg-type]
            for i, a in enumerate(program.outputs)
            if is_input(program, i)
        }
        self.returned, self.same_objects = results.returned, results.same_objects
        memories = [
            (x.storage, x.requires_grad) if not x.view else i for i, x in enumerate(meta.outputs)
        ]
        self.same_memories = [memories.index(memory) for memory in memories]
        # The numbers of the results that take a tangent.
        self.differentiated = [i for i, on in enumerate(meta.mask) if on]
        self.captured_flags = [isinstance(x, Variable) and x.requires_grad for x in self.captured]
        first = len(meta.inputs) - len(self.captured)
        self.states = {
            first + i: x for i, x in enumerate(self.captured) if isinstance(x, CapturedState)
        }
        self.on_variables = any([isinstance(x, Variable) for x in self.captured])

    def captured_values(self) -> list[Any]:
        """The captured values, with the words of each state of a generator, which the call may change."""
        if not self.states:
            return self.captured
        in_graph = set(self.meta.in_graph)
        first = len(self.meta.inputs) - len(self.captured)
        return [
            np.array(x) if first + i in in_graph and first + i in self.states else x
            for i, x in enumerate(read_states(self.captured))
        ]

    def store_states(self, inputs: Sequence[Any], outs: Sequence[Any]) -> None:
        """Stores the states that a run of the forward program has written or returns."""
        new = dict(zip(self.meta.mutated, outs, strict=False))
        for i, state in self.states.items():
            if i in self.written:
                state.store(new.get(i, inputs[i]))

    def without_states(self, by_input: dict[int, Any]) -> dict[int, Any]:
        """New values of inputs, without those of states."""
        return {i: x for i, x in by_input.items() if i not in self.states}

    def holds(self, arrays: Sequence[Any], records: bool) -> bool:
        """Whether the call is for arguments in this memory, and for the captured Variables as they are now."""
        if self.memory is not None and self.memory != memory_of(arrays):
            return False
        return (
            not self.on_variables
            or not records
            or self.captured_flags
            == [isinstance(x, Variable) and x.requires_grad for x in self.captured]
        )

    def run_on_arrays(self, leaves: Sequence[Any]) -> PyTree:
        """The result of a call without Variables."""
        captured = self.captured_values()
        inputs = [*(leaves if self.is_identity else self.plan.inputs_of(leaves)), *captured]
        outs = self.programs.forward([*inputs])
        mutated = self.meta.mutated
        if self.states:
            self.store_states(inputs, outs)
        if mutated:
            by_input = dict(zip(mutated, outs, strict=False))
            write_to_numpy_arrays(inputs, self.without_states(by_input))
            outs = outs[len(mutated) :]
        return tree.unflatten(self.out_tree, outs[: len(self.meta.outputs)])

    def run_on_variables(self, leaves: Sequence[Any]) -> PyTree:
        """The result of a call with Variables: Variables, of one node."""
        inputs = [*self.plan.inputs_of(leaves), *self.captured_values()]
        if (watch := operand_watch.get()) is not None:
            watch(inputs)
        self.check_writable(inputs)
        operands = [x.read() if isinstance(x, Variable) else recorded_array(x) for x in inputs]
        in_graph = set(self.meta.in_graph)
        values = [inputs[i] if i in in_graph else x.look() for i, x in enumerate(operands)]
        pullback = self.programs.pullback
        node = None
        if pullback is not None:
            edges = [
                x.edge if info.requires_grad and isinstance(x, Variable) else None
                for x, info in zip(inputs, self.meta.inputs, strict=True)
            ]
            if any(edges):
                node = CompiledCallNode(pullback, edges)
        saved_inputs = [] if node is None else self.saved_inputs(node, inputs, operands)
        with grad_mode(False) if in_graph else nullcontext():
            outs = self.programs.forward(values)
        if self.states:
            self.store_states(inputs, outs)
        results = [
            make_variable(
                operands[self.inputs_returned[i]] if i in self.inputs_returned else constant(x),
                None,
            )
            for i, x in enumerate(outs[: self.num_results])
        ]
        if node is not None:
            for n, i in enumerate(self.differentiated):
                results[i]._edge = node, n
            node.operands = saved_inputs
            node.saved = self.saved_values(outs, saved_inputs, results)
        count = len(self.meta.mutated)
        self.write_back(inputs, results[:count])
        return tree.unflatten(self.out_tree, self.results(leaves, inputs, results[count:]))

    def check_writable(self, inputs: Sequence[Any]) -> None:
        """Raises an error for a Variable that the function writes to and that must not be written to."""
        for i in self.written:
            x, info = inputs[i], self.meta.inputs[i]
            if isinstance(x, Variable):
                with grad_mode(current_modes().grad and not is_unseen(info)):
                    x.check_writable(f"{self.label}: a write to `{info.name}`")

    def saved_inputs(
        self, node: CompiledCallNode, inputs: Sequence[Any], operands: Sequence[Recorded]
    ) -> list[Any]:
        """The inputs as saved values; a later write to one that the call itself leaves alone is noted."""
        saved: list[Any] = []
        for i, (x, recorded, edge) in enumerate(zip(inputs, operands, node.edges, strict=True)):
            if not isinstance(x, Variable):
                saved.append(recorded)
            elif self.meta.inputs[i].mutates_data:
                saved.append(SavedValue(recorded, edge, VersionCounter(False), 0))
            else:
                counter = x._counter or x.version_counter
                saved.append(
                    make_saved_value(
                        (recorded, edge, counter, counter.version, None, x._dual, ref(x))
                    )
                )
        return saved

    def saved_values(
        self, outs: Sequence[Any], saved_inputs: Sequence[Any], results: Sequence[Variable]
    ) -> list[Any]:
        """The values that the pullback takes first: inputs, outputs, or values of their own."""
        program = self.programs.forward.program
        position = {a: i for i, a in reversed([*enumerate(program.outputs[: self.num_results])])}
        number = {i: n for n, i in enumerate(self.differentiated)}
        saved: list[Any] = []
        for i in range(self.num_results, len(outs)):
            atom = program.outputs[i]
            if i in self.inputs_returned:
                x = saved_inputs[self.inputs_returned[i]]
            elif atom in position:
                out = position[atom]
                counter = results[out].version_counter
                x = SavedValue(results[out].read(), None, counter, 0, number.get(out))
            else:
                x = constant(outs[i])
            saved.append(pack_saved(x) if isinstance(x, SavedValue) else x)
        return saved

    def write_back(self, inputs: Sequence[Any], new: Sequence[Variable]) -> None:
        """Writes the new values to the inputs that are written to outside the program."""
        by_input = self.without_states(dict(zip(self.meta.mutated, new, strict=True)))
        write_to_numpy_arrays(inputs, by_input)
        for i, value in by_input.items():
            if isinstance(inputs[i], Variable):
                unseen = is_unseen(self.meta.inputs[i])
                with grad_mode(current_modes().grad and not unseen):
                    inputs[i].write(value)

    def results(
        self, leaves: Sequence[Any], inputs: Sequence[Any], outs: Sequence[Variable]
    ) -> list[Any]:
        """The results of the function: the outputs of the program, or views of inputs and of other outputs."""
        meta = self.meta
        count = len(meta.outputs)
        bases = outs[count:]
        results: list[Any] = [*outs[:count]]
        for i, info in enumerate(meta.outputs):
            leaf = self.returned[i]
            if leaf is not None and isinstance(leaves[leaf], (Variable, np.ndarray)):
                results[i] = leaves[leaf]
            elif self.same_objects[i] != i:
                results[i] = results[self.same_objects[i]]
            elif info.kind is OutputKind.PLAIN or info.base is None:
                if self.same_memories[i] != i:
                    results[i] = replay(info, results[self.same_memories[i]])
            elif info.kind is OutputKind.ALIAS_OF_INTERMEDIATE:
                is_output = info.base_kind is BaseKind.USER_OUTPUT
                results[i] = replay(info, results[info.base] if is_output else bases[info.base])
            elif isinstance(base := inputs[info.base], Variable):
                results[i] = replay(info, base)
            elif info.kind is OutputKind.IS_INPUT and not meta.inputs[info.base].mutates_data:
                results[i] = base
        return results


def memory_of(arrays: Sequence[Any]) -> MemoryLayout:
    """How the NumPy arrays among the arguments lie in memory."""
    return MemoryLayout(tuple(shared_buffers(arrays)), strides=tuple(argument_strides(arrays)))


def is_unseen(info: InputInfo) -> bool:
    """Whether no derivative sees the writes to an input."""
    return info.is_hidden or info.is_under_no_grad


def replay(info: OutputInfo, base: Variable) -> PyTree:
    """An output as a view of its base, without history if it has none in the plain call."""
    with grad_mode(current_modes().grad and (info.requires_grad or not base.requires_grad)):
        x = info.replay(base)
        # A view of all elements is an array of its own, too.
        return x if x is not base else ops.PermuteDims(tuple(range(base.ndim)))(base)


def recorded_array(x: Any) -> Recorded:
    """An array or a number as a recorded value."""
    # The user may write to a NumPy array before the walk.
    return constant(jnp.array(x) if isinstance(x, np.ndarray) else x)
