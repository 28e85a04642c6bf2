"""Recordings: the operations on Variables of one thread, run together when a value is looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from threading import RLock, local
from typing import Any, NamedTuple
from weakref import ref

import jax
import jax.numpy as jnp
import numpy as np

from functx.core.backend import backend
from functx.core.caches import Cache, clear_on_rule_change
from functx.core.config import contextual_key, recording_limits
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Literal, Program, Var
from functx.core.program_editing import hoist_captures, replace_program_fields
from functx.core.tracer import aval_of, literal_of, variables
from functx.core.tracing import Builder
from functx.core.types import ShapedArray, narrow_dtype, x64_enabled
from functx.core.typing import ArrayLike
from functx.passes.memory_planning import bytes_of


class Recorded:
    """An array that a recording will compute, or has computed.

    It is value `number` of `recording`, which is None once `value` is known. `is_private` says whether
    nobody else holds the array `value`, whose memory a recording may then reuse; `captured_by` is the last
    recording that captured it.
    """

    __slots__ = ("__weakref__", "aval", "captured_by", "is_private", "number", "recording", "value")
    value: Any
    is_private: bool

    def __init__(
        self, aval: ShapedArray, recording: Recording | FailedOperation | None, number: int
    ):
        self.aval = aval
        self.recording = recording
        self.number = number
        self.captured_by: Recording | None = None

    def compute(self) -> Any:
        """The value, for a caller that may keep it.

        Runs the recording if it is not known, and raises the error of one that failed.
        """
        value = self.look()
        self.share()
        return value

    def share(self) -> None:
        """Lets others hold the value: no recording may reuse its memory."""
        self.is_private = False
        if self.captured_by is not None:
            self.captured_by.reusable.pop(id(self.value), None)

    def look(self) -> Any:
        """As `compute`, for a caller that does not keep the value."""
        if self.recording is not None:
            self.recording.run()
            if type(self.recording) is FailedOperation:
                self.recording.run()
        return self.value


def constant(x: ArrayLike, is_private: bool = False) -> Recorded:
    """An array with a value."""
    variables.exist = True
    recorded = Recorded(aval_of(x), None, 0)
    recorded.value, recorded.is_private = x, is_private
    return recorded


Operand = Recorded | Literal


def operand_of(x: Any) -> Operand:
    """An array or a number as an operand."""
    literal = literal_of(x)
    if literal is not None:
        return literal
    # The user may write to a NumPy array before the recording runs.
    return constant(jnp.array(x) if isinstance(x, np.ndarray) else x)


class Operation:
    """A program that recordings call.

    `new_avals` are the types of its new values: the outputs that are no operands, each once. `outputs`
    holds the position of each output among the operands, the captured values and the new values;
    None if the outputs are the new values.
    """

    __slots__ = (
        "arity",
        "bytes",
        "captured",
        "effects",
        "new",
        "new_avals",
        "outputs",
        "program",
        "size",
        "wide",
    )

    def __init__(self, program: Program):
        # A copy, since the memo of `program` holds the operation, and a cycle would keep both.
        program, captured = hoist_captures(replace_program_fields(program))
        positions: dict[Atom, int] = {v: i for i, v in enumerate(program.inputs)}
        self.new = []
        for i, atom in enumerate(program.outputs):
            if atom not in positions:
                positions[atom] = len(positions)
                self.new.append(i)
        self.program = program
        self.captured = [constant(x) for x in captured]
        self.new_avals = [program.outputs[i].aval for i in self.new]
        outputs = [positions[atom] for atom in program.outputs]
        count = len(program.inputs)
        self.outputs = None if outputs == [*range(count, count + len(outputs))] else outputs
        self.effects = bool(program.effects)
        self.size = len(program.equations)
        self.bytes = sum(map(bytes_of, self.new_avals))
        made = [v for eqn in program.equations for v in eqn.outputs]
        self.wide = any([is_wide(v.aval) for v in (*program.inputs, *made)])
        self.arity = len(program.inputs)

    def outputs_of(self, operands: Sequence[Operand], new: list[Recorded]) -> list[Any]:
        """The outputs, of which those that are operands are the operands themselves."""
        if self.outputs is None:
            return new
        values = [*operands, *self.captured, *new]
        return [values[i] for i in self.outputs]


def is_wide(aval: ShapedArray) -> bool:
    """Whether a type is one of those that only 64-bit mode has."""
    return aval.dtype != narrow_dtype(aval.dtype)


def operation_of(program: Program) -> Operation:
    """The operation that a program is; equal programs are one."""
    found: Operation | None = program.memo.get(Operation)
    if found is None:
        found = None if program.has_captures else _operations.get(program.key)
        if found is None:
            found = Operation(program)
            _operations.put(program.key, found)
        program.memo[Operation] = found
    return found


_operations: Cache = Cache("recorded operations", 4096)
clear_on_rule_change(_operations.clear)


def operation_of_primitive(primitive: Primitive, avals: tuple[ShapedArray, ...]) -> Operation:
    """The operation that a primitive is on operands of these types."""
    found: Operation | None = _operations.get((primitive, avals))
    if found is None:
        found = operation_of(program_of_operation(primitive, avals))
        _operations.put((primitive, avals), found)
    return found


def program_of_operation(primitive: Primitive, avals: tuple[ShapedArray, ...]) -> Program:
    """The program of one operation on operands of these types."""
    inputs = [Var(aval) for aval in avals]
    found = primitive.out_avals_memo.get(avals) or primitive.infer_out_avals(avals)
    outputs = [Var(aval) for aval in found]
    equation = Equation(primitive, list(inputs), outputs, None)
    return Program(primitive.name, inputs, [equation], outputs)


class Recording:
    """The operations that were recorded and not yet run.

    `calls` holds each operation, then its operands: the numbers of values of this recording, where -1 is
    the first captured value, and literals. Only those values are computed that somebody still
    holds: `results` are weak references. If an operation raises, each look at a result that depends
    on it raises the same error. `reusable` holds the captured values that are private, by identity.
    """

    def __init__(self) -> None:
        self.calls: list[Operation | int | Literal] = []
        self.captured: list[Any] = []
        self.captured_avals: list[ShapedArray] = []
        self.captured_numbers: dict[int, int] = {}
        self.reusable: dict[int, ref[Recorded]] = {}
        self.results: list[ref[Recorded]] = []
        self.count = self.size = self.bytes = 0
        self.has_effects = self.wide = False
        self.is_open, self.has_run = True, False
        self._running = RLock()

    def call(self, operation: Operation, operands: Sequence[Operand]) -> list[Recorded]:
        """The new values of an operation."""
        call: list[Operation | int | Literal] = [operation]
        for x in operands:
            if type(x) is Recorded and x.recording is self:
                call.append(x.number)
            else:
                call.append(self.capture(x))
        if operation.captured:
            call += [self.capture(x) for x in operation.captured]
        self.calls += call
        new = []
        number = self.count
        for aval in operation.new_avals:
            x = Recorded(aval, self, number)
            self.results.append(ref(x))
            new.append(x)
            number += 1
        self.count = number
        self.size += operation.size
        self.wide = self.wide or operation.wide
        self.bytes += operation.bytes
        if not self.is_open:
            # Another thread has begun to run it, perhaps without this call.
            return current_recording().call(operation, operands)
        limits = recording_limits
        if operation.effects or self.size >= limits.operations or self.bytes >= limits.bytes:
            self.has_effects = self.has_effects or operation.effects
            self.run()
        return new

    def capture(self, x: Recorded | Literal) -> int | Literal:
        """The number of an operand from outside."""
        if type(x) is Literal:
            return x
        value = x.look()  # type: ignore[union-attr]
        if x.captured_by is not self:
            if x.captured_by is not None and not x.captured_by.has_run:
                # Both recordings are to read it.
                x.share()
            x.captured_by = self
        number = self.captured_numbers.get(id(value))
        if number is None:
            self.captured.append(value)
            self.captured_avals.append(x.aval)
            if x.is_private:
                self.reusable[id(value)] = ref(x)
            self.bytes += bytes_of(x.aval)
            number = self.captured_numbers[id(value)] = -len(self.captured)
        return number

    def record(self, primitive: Primitive, args: Sequence[Operand]) -> list[Recorded]:
        """The outputs of a primitive on operands."""
        avals = tuple([x.aval for x in args])
        return self.call(operation_of_primitive(primitive, avals), args)

    def trace(self) -> tuple[Builder, list[Any]]:
        """The equations of the calls, and the traced values by their numbers."""
        builder = Builder("recording", "autograd")
        inputs = [builder.add_input(aval) for aval in self.captured_avals]
        values: list[Any] = []
        calls: Iterator[Any] = iter([*self.calls])
        for operation in calls:
            operands = [
                x if type(x) is Literal else values[x] if x >= 0 else inputs[-1 - x]
                for x in islice(calls, operation.arity)
            ]
            outs = builder.inline(operation.program, operands)
            values += [outs[i] for i in operation.new]
        return builder, values

    def held(self) -> list[Recorded]:
        """The values that somebody still holds."""
        return [x for reference in self.results if (x := reference()) is not None]

    def run(self) -> None:
        """Computes all results that are still held; the thread then begins another recording."""
        with self._running:
            if self.has_run:
                return
            # A run that was interrupted is run again.
            self.is_open = False
            if _thread.recording is self:
                _thread.recording = None
            held = self.held()
            if held or self.has_effects:
                # The types are known: 64-bit values stay so where the switch is off by now.
                with jax.enable_x64(True) if self.wide and not x64_enabled() else nullcontext():
                    values = self.values_of(held)
                for x, value in zip(held, values, strict=True):
                    if type(value) is FailedOperation:
                        x.recording = value
                    else:
                        x.value, x.is_private, x.recording = value, True, None
            self.calls, self.captured, self.results = [], [], []
            self.has_run = True

    def values_of(self, held: Sequence[Recorded]) -> Sequence[Any]:
        """The values of results: operation by operation at first, compiled when they are met again."""
        numbers = tuple([x.number for x in held])
        types = tuple(self.captured_avals)
        key = contextual_key((tuple(self.calls), types, numbers))
        program: Program | None = _programs.get(key)
        if program is None:
            calls = [x.aval if type(x) is Literal else x for x in self.calls]
            form = hash((tuple(calls), types, numbers))
            if _met.get(form) is None:
                _met.put(form, True)
                return self.evaluate(held)
            builder, values = self.trace()
            program, _ = builder.finish([values[x.number] for x in held])
            _programs.put(key, program)
        donated = self.donated_positions(held)
        try:
            return backend.run(None, program, self.captured, donated)
        except Exception as error:
            # Effects must not happen twice, and donated values are gone.
            if self.has_effects or any([self.captured[i].is_deleted() for i in donated]):
                return [FailedOperation(error)] * len(held)
            return self.evaluate(held)

    def donated_positions(self, held: Sequence[Recorded]) -> tuple[int, ...]:
        """The positions of captured values that nobody holds, each with the type of a result of its own."""
        if not any([reference() is None for reference in self.reusable.values()]):
            return ()
        donated = []
        room = Counter([x.aval for x in held])
        for i, (value, aval) in enumerate(zip(self.captured, self.captured_avals, strict=True)):
            reference = self.reusable.get(id(value))
            if reference is not None and reference() is None and room[aval]:
                room[aval] -= 1
                donated.append(i)
        return tuple(donated)

    def evaluate(self, held: Sequence[Recorded]) -> list[Any]:
        """The values of results, whose operations run one after the other.

        A FailedOperation stands for each result that depends on an operation that raised.
        """
        values: dict[int, Any] = {-1 - i: x for i, x in enumerate(self.captured)}
        for operation, operands, first, last in self.steps(held):
            args = [_runtime_value(x) if type(x) is Literal else values[x] for x in operands]
            outs: Any = next((x for x in args if type(x) is FailedOperation), None)
            try:
                outs = outs or backend.run(None, operation.program, args)
            except Exception as error:
                outs = FailedOperation(error)
            for k, i in enumerate(operation.new):
                values[first + k] = outs if type(outs) is FailedOperation else outs[i]
            for number in last:
                del values[number]
        return [values[x.number] for x in held]

    def steps(self, held: Sequence[Recorded]) -> list[Step]:
        """The calls that `held` and effects need, in order."""
        calls: list[tuple[Operation, list[Any], int]] = []
        first = 0
        remaining: Iterator[Any] = iter(self.calls)
        for operation in remaining:
            calls.append((operation, [*islice(remaining, operation.arity)], first))
            first += len(operation.new)
        needed = {x.number for x in held}
        steps = []
        for operation, operands, first in reversed(calls):
            results = range(first, first + len(operation.new))
            if operation.effects or not needed.isdisjoint(results):
                last = {x for x in operands if type(x) is int and x >= 0} - needed
                needed |= last
                last.update([x for x in results if x not in needed])
                steps.append(Step(operation, operands, first, last))
        return steps[::-1]


class Step(NamedTuple):
    """A call in the order of evaluation, whose first result has the number `first`.

    The values with the numbers `last` are not needed after it.
    """

    operation: Operation
    operands: Sequence[int | Literal]
    first: int
    last: set[int]


def _runtime_value(x: Literal) -> Any:
    return x.value if x.aval.weak_type else np.asarray(x.value, x.aval.dtype)[()]


class FailedOperation:
    """The placeholder for the results of an operation that raised; to run it raises the error."""

    def __init__(self, error: Exception):
        self.error = error

    def run(self) -> None:
        """Raises the error."""
        raise self.error


_met: Cache = Cache("met recordings", 4096)
"""The hashes of the programs that have run, without their literals."""
_programs: Cache = Cache("recordings", 512)
"""The programs that have run at least twice."""
clear_on_rule_change(_programs.clear)


class _Thread(local):
    recording: Recording | None = None


_thread = _Thread()


def current_recording() -> Recording:
    """The recording of this thread."""
    recording = _thread.recording
    if recording is None or not recording.is_open:
        recording = _thread.recording = Recording()
    return recording


def continue_recording(recording: Recording | None) -> None:
    """Let this thread continue a recording, whose own thread waits."""
    _thread.recording = recording


def recorded() -> Program:
    """The operations recorded in this thread that were not run yet, as a program."""
    recording = current_recording()
    builder, values = recording.trace()
    outputs = [values[x.number].atom for x in recording.held()]
    return Program("recording", builder.inputs, builder.equations, outputs)
