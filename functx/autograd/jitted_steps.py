"""Calls of a jitted function that changes Variables: its traced steps are found, run and written back."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from threading import RLock
from typing import Any
from weakref import ref

import jax
import jax.numpy as jnp
import numpy as np

from functx.autograd.anomaly import current_anomalies
from functx.autograd.engine import running_walk
from functx.autograd.hooks import dead_reference
from functx.autograd.modes import current_modes
from functx.autograd.nodes import operand_watch, saving_hooks
from functx.autograd.recorded import Failure, Recorded, constant, ownership, step_traces
from functx.autograd.step_trace import StepTrace, TracedStep
from functx.autograd.variable import Variable, make_variable, open_level
from functx.core import tree
from functx.core.caches import Cache
from functx.core.errors import AutogradError
from functx.core.tracer import variables
from functx.core.types import x64_enabled
from functx.core.typing import Avals, Function, PyTree
from functx.lowering.execution import find_executable
from functx.lowering.jax_bridge import call_reraising_callback_errors
from functx.transforms.aliasing import shared_buffers, write_back_arguments
from functx.transforms.argument_names import function_name
from functx.transforms.tracing_api import FlatFunction

STEPS_OF_A_KEY = 8
"""How many steps are kept of calls that differ only in what they find of Variables."""
_lock = RLock()
"""Steps are traced and run one at a time: a trace gives Variables traced values."""


class JittedSteps:
    """The steps of a jitted function, by the types of its arguments.

    `tracing` gives the context of a trace. A step that finds other gradients, hooks or flags of
    Variables than those before is traced anew.
    """

    def __init__(self, tracing: Callable[[], AbstractContextManager[None]]):
        self.tracing = tracing
        self.steps = Cache("jit", 256)

    def clear(self) -> None:
        """Forgets all steps."""
        self.steps.clear()

    def __call__(
        self,
        fun: Function,
        leaves: Sequence[Any],
        in_tree: tree.TreeDef,
        avals: Avals,
        key: Hashable,
    ) -> PyTree:
        """The result of a call, after which the Variables are changed.

        NotImplemented if none is changed, and the result has a history: then one node may do.
        """
        if step_traces.count and step_traces.of_thread() is not None:
            # A step inside another one is a part of it.
            return run_here(fun, leaves, in_tree)
        if (level := open_level.get()) is not None:
            raise AutogradError(
                f"jit({function_name(fun)}): a function that changes Variables must not be called while "
                f"a dual level is open; got level {level}",
                fix="Open the level inside the function, or call it without jit.",
            )
        with _lock:
            whole_key = key, current_modes(), saving_hooks.get(), current_anomalies()
            steps: list[Step] | None = self.steps.get(whole_key)
            if steps is None:
                steps = []
                self.steps.put(whole_key, steps)
            for i, step in enumerate(steps):
                found = step.find_variables()
                if found is not None:
                    if i:
                        steps.insert(0, steps.pop(i))
                    break
            else:
                with self.tracing():
                    step = trace_step(fun, in_tree, avals)
                steps.insert(0, step)
                del steps[STEPS_OF_A_KEY:]
                found = step.find_variables()
                assert found is not None, "the state that was traced is that of the call"
            if step.traced.has_history and not step.traced.changes and not step.needs_history:
                step.needs_history = True
                return NotImplemented
            if step.needs_history or step.shares_memory(leaves, found):
                return run_here(fun, leaves, in_tree)
            with self.tracing() if step.executable is None else nullcontext():
                return step.run(leaves, found)


def run_here(fun: Function, leaves: Sequence[Any], in_tree: tree.TreeDef) -> PyTree:
    """The result of the function itself."""
    args, kwargs = in_tree.unflatten(leaves)
    return fun(*args, **kwargs)


def trace_step(fun: Function, in_tree: tree.TreeDef, avals: Avals) -> Step:
    """The step that a call is; afterwards all Variables are as they were before."""
    trace = StepTrace(function_name(fun))
    flat = FlatFunction(fun, in_tree, "jit", False)

    def run() -> TracedStep:
        for variable in (running_walk, operand_watch):
            variable.set(None)
        with trace.active():
            args = [trace.add_argument(aval) for aval in avals]
            results = flat.flatten_result(flat.call(args))
            return trace.complete(args, results)

    # Modes that the function sets end with the trace.
    traced = copy_context().run(run)
    return Step(traced, flat.out_tree, len(avals))


class Step:
    """A traced step of a jitted function, and its executable once it has run."""

    def __init__(self, traced: TracedStep, out_tree: tree.TreeDef, num_args: int):
        self.traced, self.out_tree = traced, out_tree
        self.executable: Callable[..., Sequence[Any]] | None = None
        self.literals: Sequence[Any] = ()
        # Whether it changes nothing, and cannot be one node, which would not know what it does to derivatives.
        self.needs_history = False
        self.finds_grads = any([slot.grad_of is not None for slot in traced.slots])
        self.donated = self.donated_positions(num_args)
        positions = [k for k, i in enumerate(traced.operands) if i in self.donated]
        self.donated_operands = tuple(positions)

    def donated_positions(self, num_args: int) -> dict[int, int]:
        """The inputs whose memory is reused, by position: the numbers of their Variables, which get new values."""
        traced = self.traced
        numbers = [c.value for c in traced.changes] + [g.value for g in traced.new_grads]
        kept = {
            -1 - k for k in (*numbers, *traced.results, *traced.written.values()) if k and k < 0
        }
        new = [c for c in traced.changes if c.value is not None and c.value >= 0]
        # A value that becomes that of two Variables has one memory.
        by_value = {c.value: c.slot for c in new}
        position = {slot: num_args + i for i, slot in enumerate(traced.roots)}
        found = {position[slot]: slot for slot in by_value.values()}
        return {i: slot for i, slot in found.items() if i in traced.operands and i not in kept}

    def find_variables(self) -> list[Variable] | None:
        """The Variables of a call now; None if it is not this step."""
        found: list[Variable] = []
        slots = self.traced.slots
        for slot in slots:
            x = slot.find(found)
            if x is None:
                return None
            found.append(x)
        for x, slot in zip(found, slots, strict=True):
            number = slot.grad
            if number != -1 and x._grad is not (None if number is None else found[number]):
                return None
        if self.finds_grads and len({id(x) for x in found}) < len(found):
            return None
        return found

    def shares_memory(self, leaves: Sequence[Any], found: Sequence[Variable]) -> bool:
        """Whether an argument shares memory that the step writes to with another array of it."""
        traced = self.traced
        arrays = [x for x in leaves if isinstance(x, Variable)]
        if arrays:
            used = [x.memory for x in found]
            changed = {id(found[c.slot].memory) for c in traced.changes if any(c.counts)}
            changed |= {
                id(leaves[i].memory) for i in traced.written if isinstance(leaves[i], Variable)
            }
            together = [id(m) for m in (*[x.memory for x in arrays], *used)]
            if any([together.count(m) > 1 for m in changed]):
                return True
        return bool(traced.written) and bool(shared_buffers(leaves))

    def run(self, leaves: Sequence[Any], found: Sequence[Variable]) -> PyTree:
        """Runs the step, and changes the Variables."""
        traced = self.traced
        if (watch := operand_watch.get()) is not None:
            watch(found)
        inputs: list[Any] = [
            *[x.read() if isinstance(x, Variable) else x for x in leaves],
            *[found[i].read() for i in traced.roots],
            *traced.constants,
        ]
        values = [x.look() if type(x) is Recorded else x for x in inputs]
        before = self.release(inputs, values, found)
        try:
            outs = self.compute([values[i] for i in traced.operands])
        except BaseException as error:
            restore(before, error)
            raise
        new = [recorded_result(x) for x in outs]

        def value_of(number: int) -> Recorded:
            if number >= 0:
                return new[number]
            x = inputs[-1 - number]
            return x if type(x) is Recorded else constant(x)

        grads = [make_variable(value_of(value), None) for value, _ in traced.new_grads]
        for grad, (_, counts) in zip(grads, traced.new_grads, strict=True):
            count(grad, counts)
        for change in traced.changes:
            x = found[change.slot]
            if change.value is not None:
                x._recorded = value_of(change.value)
            count(x, change.counts)
            if change.sets_grad:
                number = change.grad
                x._grad = number if number is None else (*found, *grads[::-1])[number]
            if change.is_leaf is not None:
                x._leaf = dead_reference if change.is_leaf else None
        results = [make_variable(value_of(number), None) for number in traced.results]
        written = {
            i: make_variable(value_of(number), None)
            for i, number in traced.written.items()
            if isinstance(leaves[i], (np.ndarray, Variable))
        }
        if written:
            write_back_arguments(leaves, written)
        return tree.unflatten(self.out_tree, results)

    def release(
        self, inputs: list[Any], values: list[Any], found: Sequence[Variable]
    ) -> list[tuple[Any, Recorded]]:
        """Takes the values that are donated from their Variables; those that others may read are copied.

        Returns each value, and what stands for it meanwhile.
        """
        before = []
        with ownership:
            for i, slot in self.donated.items():
                x, recorded = found[slot], inputs[i]
                is_private = recorded.is_private and (
                    recorded.captured_by is None or recorded.captured_by.has_run
                )
                if is_private:
                    reference, inputs[i] = ref(recorded), None
                    x._recorded = placeholder = Recorded(recorded.aval, None, 0)
                    placeholder.captured_by = None
                    del recorded
                    recorded = reference()
                    if recorded is None:
                        before.append((values[i], placeholder))
                        continue
                    x._recorded = recorded
                values[i] = jnp.array(values[i])
        return before

    def compute(self, operands: list[Any]) -> Sequence[Any]:
        """The outputs of the program."""
        with jax.enable_x64(True) if self.traced.is_wide and not x64_enabled() else nullcontext():
            if self.executable is None:
                self.executable, self.literals = find_executable(
                    None, self.traced.program, operands, self.donated_operands
                )
            return call_reraising_callback_errors(self.executable, *operands, *self.literals)  # type: ignore[no-any-return]


def recorded_result(x: Any) -> Recorded:
    """An output of an executable, which nobody else refers to."""
    recorded = constant(x)
    recorded.is_private = True
    return recorded


def count(x: Variable, counts: tuple[int, int]) -> None:
    """Adds to the counts of versions and writes."""
    if any(counts):
        counter = x.version_counter
        counter.version += counts[0]
        counter.writes += counts[1]


def restore(before: Sequence[tuple[Any, Recorded]], error: BaseException) -> None:
    """Gives Variables their values back after an error, as far as their memory was not reused."""
    for value, recorded in before:
        if isinstance(value, jax.Array) and value.is_deleted():
            failure = AutogradError(
                f"jit: the step was interrupted after the memory of a Variable was reused; got {error!r}",
                fix="Give the Variable a value again (x[...] = value), under no_grad.",
            )
            recorded.recording = Failure(failure)
        else:
            recorded.value, recorded.is_private = value, True


variables.jitted_steps = JittedSteps
