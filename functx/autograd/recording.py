"""Recordings: the operations on Variables of one thread, run together when a value is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from threading import RLock, local
from typing import Any, NamedTuple
from weakref import ref

import jax
import numpy as np

from functx.autograd.recorded import Failure, Operand, Recorded, operand_of, ownership
from functx.autograd.recorded_operations import Operation, operation_of_primitive
from functx.core.backend import backend
from functx.core.caches import Cache
from functx.core.config import contextual_key, recording_limits
from functx.core.errors import AutogradError
from functx.core.primitive import Primitive
from functx.core.program import Literal, Program
from functx.core.tracing import Builder
from functx.core.types import ShapedArray, x64_enabled
from functx.ops.callbacks import HostPrimitive
from functx.passes.costs import bytes_of


class PlannedCalls(NamedTuple):
    """Calls that are recorded at once.

    `arrange(table)` gives them as entries of `Recording.calls`. The table has the numbers of their
    `new_count` new values, then the operations and literals in `constants`, then the operands from the last
    to the first. `wanted` are the positions and types of the values that are read. The other fields
    are the sums of those of the operations.
    """

    arrange: Callable[[Sequence[Any]], Sequence[Any]]
    new_count: int
    constants: Sequence[Operation | Literal]
    wanted: Sequence[tuple[int, ShapedArray]]
    size: int
    bytes: int
    wide: bool


class Recording:
    """The operations that were recorded and not yet run.

    `calls` holds each operation, then its operands: the numbers of values of this recording, where -1 is
    the first captured value, and literals. Only values that are still referenced are
    computed: `results` are weak references. If an operation raises, reading a result that depends on it
    raises the same error. `reusable` holds the captured values that are private, by identity.
    """

    first_node = 0
    """The number of the first node that a walk in this recording may pass."""

    def __init__(self) -> None:
        self.calls: list[Operation | int | Literal] = []
        self.captured: list[Any] = []
        self.captured_avals: list[ShapedArray] = []
        self.captured_numbers: dict[int, int] = {}
        self.reusable: dict[int, ref[Recorded]] = {}
        self.results: list[ref[Recorded]] = []
        self.count = self.size = self.bytes = 0
        self.has_effects = self.wide = False
        self.is_open, self.is_running, self.has_run = True, False, False
        self.effect_error: Exception | None = None
        self._lock = RLock()

    def call(self, operation: Operation, operands: Sequence[Operand]) -> list[Recorded]:
        """The new values of an operation."""
        given = operands
        if operation.captured:
            given = [*operands, *map(operand_of, operation.captured)]
        call: list[Operation | int | Literal] = [operation.structure]
        self.add_numbers(call, given)
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
        self.bytes += operation.bytes
        if operation.wide:
            self.wide = True
        if not self.is_open:
            # Another thread has begun to run it, perhaps without this call.
            return current_recording().call(operation, operands)
        limits = recording_limits
        if operation.effects or self.size >= limits.operations or self.bytes >= limits.bytes:
            self.has_effects = self.has_effects or operation.effects
            self.run()
            for x in new:
                x.look()
        return new

    def add_numbers(
        self, call: list[Operation | int | Literal], operands: Sequence[Operand]
    ) -> None:
        """Appends operands to `call`: the numbers of values, which may be captured, and literals."""
        numbers, private = self.captured_numbers, []
        try:
            for x in operands:
                if type(x) is Literal:
                    call.append(x)
                elif x.recording is self:
                    call.append(x.number)
                else:
                    # As `look`, without a call.
                    value = x.value if x.recording is None else x.look()
                    number = numbers.get(id(value))
                    if number is None:
                        number = self.capture(value, x.aval)
                        if x.is_private:
                            private.append(x)
                    call.append(number)
        finally:
            # Also if the value of a later operand raises: this recording holds those before it.
            if private:
                self.note_reusable(private)

    def call_all(self, calls: PlannedCalls, operands: Sequence[Operand]) -> list[Recorded]:
        """The wanted values of several calls, which are added at once."""
        numbers: list[Any] = []
        new: list[Recorded] = []
        self.add_numbers(numbers, operands)
        first = self.count
        numbers.reverse()
        self.calls += calls.arrange(
            [*range(first, first + calls.new_count), *calls.constants, *numbers]
        )
        for number, aval in calls.wanted:
            x = Recorded(aval, self, first + number)
            self.results.append(ref(x))
            new.append(x)
        self.count += calls.new_count
        self.size += calls.size
        self.bytes += calls.bytes
        self.wide = self.wide or calls.wide
        # Else another thread has begun to run it, perhaps without these calls.
        return new if self.is_open else current_recording().call_all(calls, operands)

    def has_room(self, calls: PlannedCalls) -> bool:
        """Whether it need not run after such calls."""
        return (
            self.size + calls.size < recording_limits.operations
            and self.bytes + calls.bytes < recording_limits.bytes
        )

    def capture(self, value: object, aval: ShapedArray) -> int:
        """The number of a new value from outside."""
        self.captured.append(value)
        self.captured_avals.append(aval)
        self.bytes += bytes_of(aval)
        number = self.captured_numbers[id(value)] = -len(self.captured)
        return number

    def note_reusable(self, values: Sequence[Recorded]) -> None:
        """Notes that the memory of captured values may be reused, unless another recording is to read it."""
        with ownership:
            for x in values:
                other = x.captured_by
                if other is not None and not other.has_run:
                    x.is_private = False
                    other.reusable.pop(id(x.value), None)
                elif x.is_private:
                    x.captured_by = self
                    self.reusable[id(x.value)] = ref(x)

    def record(self, primitive: Primitive, args: Sequence[Operand]) -> list[Recorded]:
        """The outputs of a primitive on operands."""
        avals = tuple([x.aval for x in args])
        return self.call(operation_of_primitive(primitive, avals), args)

    def trace(self, calls: Sequence[Operation | int | Literal]) -> tuple[Builder, list[Any]]:
        """The equations of `calls`, and the traced values by their numbers."""
        builder = Builder("recording", "autograd")
        inputs = [builder.add_input(aval) for aval in self.captured_avals]
        values: list[Any] = []
        remaining: Iterator[Any] = iter(calls)
        for operation in remaining:
            operands = [
                x if type(x) is Literal else values[x] if x >= 0 else inputs[-1 - x]
                for x in islice(remaining, operation.arity)
            ]
            outs = builder.inline(operation.program, operands)
            values += [outs[i] for i in operation.new]
        return builder, values

    def held(self) -> list[Recorded]:
        """The values that are still referenced."""
        return [x for reference in self.results if (x := reference()) is not None]

    def run(self) -> None:
        """Computes all results that are still referenced; the thread then begins another recording.

        Raises the error of an operation with effects.
        """
        with self._lock:
            if self.has_run:
                return
            if self.is_running:
                raise AutogradError(
                    "callback: it must not read a Variable that is computed together with the "
                    "operation that calls it; got a read of one",
                    fix="Read it before (x.block_until_ready()), or pass it to the callback.",
                )
            # A run that was interrupted is run again.
            self.is_open, self.is_running = False, True
            if _thread.recording is self:
                _thread.recording = None
            try:
                self.run_held(self.held())
            finally:
                self.is_running = False
        if self.effect_error is not None:
            raise self.effect_error.with_traceback(None)

    def run_held(self, held: Sequence[Recorded]) -> None:
        """Computes `held`, and frees the recording."""
        if held or self.has_effects:
            try:
                if self.wide and not x64_enabled():
                    # The types are known: 64-bit values stay so where the switch is off by now.
                    with jax.enable_x64(True):
                        values = self.values_of(held)
                else:
                    values = self.values_of(held)
            except BaseException:
                if self.has_effects or self.has_donated():
                    self.finish(held, [self.interruption()] * len(held))
                raise
            self.finish(held, values)
        else:
            self.finish((), ())

    def finish(self, held: Sequence[Recorded], values: Sequence[Any]) -> None:
        """Gives results their values, or their errors."""
        for x, value in zip(held, values, strict=True):
            if isinstance(value, Exception):
                x.recording = Failure(value)
            else:
                x.value, x.is_private, x.captured_by = value, True, None
                x.recording = None
        self.has_run = True
        self.calls, self.captured, self.captured_avals, self.results = [], [], [], []
        self.captured_numbers, self.reusable = {}, {}

    def has_donated(self) -> bool:
        """Whether captured values are gone, since their memory was given to an executable."""
        return any([isinstance(x, jax.Array) and x.is_deleted() for x in self.captured])

    def interruption(self) -> AutogradError:
        """The error of results whose computation was interrupted, and must not happen again."""
        return AutogradError(
            "recording: it was interrupted after effects, or after the memory of operands was reused; "
            "got a read of a result that was not computed",
            fix="Compute it anew, from values that were kept.",
        )

    def values_of(self, held: Sequence[Recorded]) -> Sequence[Any]:
        """The values of results, or errors: operation by operation at first, compiled when seen again."""
        numbers = tuple([x.number for x in held])
        # The thread of the recording may be adding a call, which does not count.
        calls, types = tuple(self.calls), tuple(self.captured_avals)
        captured = self.captured[: len(types)]
        key = contextual_key((calls, types, numbers))
        found: tuple[Program, tuple[int, ...]] | None = _programs.get(key)
        if found is None:
            structure = hash(
                (tuple([x.aval if type(x) is Literal else x for x in calls]), types, numbers)
            )
            if _seen.get(structure) is None:
                _seen.put(structure, True)
                return self.evaluate(calls, held)
            builder, values = self.trace(calls)
            program, _ = builder.finish([values[x.number] for x in held])
            # A callback that raises would leave neither the old values nor the new ones.
            found = program, () if calls_python(program) else self.donatable_positions(held)
            _programs.put(key, found)
        program, donated = found
        if not self.may_donate(donated):
            # One more executable, not one for each set of values that are referenced.
            donated = ()
        try:
            return backend.run(None, program, captured, donated)
        except Exception as error:
            if self.has_donated():
                return [error] * len(held)
            # Effects must not happen twice.
            self.effect_error = error if self.has_effects else None
            return self.evaluate(calls, held)

    def may_donate(self, positions: Sequence[int]) -> bool:
        """Whether nothing refers to the captured values at these positions."""
        with ownership:
            references = [self.reusable.get(id(self.captured[i])) for i in positions]
            return all([r is not None and r() is None for r in references])

    def donatable_positions(self, held: Sequence[Recorded]) -> tuple[int, ...]:
        """The positions of captured values without references, each with the type of a result of its own."""
        with ownership:
            free = {key for key, reference in self.reusable.items() if reference() is None}
        donatable = []
        room = Counter([x.aval for x in held]) if free else Counter()
        for i, (value, aval) in enumerate(zip(self.captured, self.captured_avals, strict=False)):
            if id(value) in free and room[aval]:
                room[aval] -= 1
                donatable.append(i)
        return tuple(donatable)

    def evaluate(
        self, calls: Sequence[Operation | int | Literal], held: Sequence[Recorded]
    ) -> list[Any]:
        """The values of results, whose operations run one after the other.

        A result that depends on an operation that raised is its error. Operations with effects do
        not run if one has raised before.
        """
        values: dict[int, Any] = {-1 - i: x for i, x in enumerate(self.captured)}
        for operation, operands, first, last in steps_of(calls, held):
            args = [_runtime_value(x) if type(x) is Literal else values[x] for x in operands]
            outs: Any = next((x for x in args if isinstance(x, Exception)), None)
            if outs is None and operation.effects:
                outs = self.effect_error
            try:
                outs = outs or backend.run(None, operation.program, args)
            except Exception as error:
                outs = error
            if isinstance(outs, Exception):
                if operation.effects:
                    self.effect_error = self.effect_error or outs
                outs = [outs] * len(operation.program.outputs)
            values.update([(first + k, outs[i]) for k, i in enumerate(operation.new)])
            for number in last:
                del values[number]
        return [values[x.number] for x in held]


class Step(NamedTuple):
    """A call in the order of evaluation, whose first result has the number `first`.

    The values with the numbers `last` are not needed after it.
    """

    operation: Operation
    operands: Sequence[int | Literal]
    first: int
    last: set[int]


def steps_of(calls: Sequence[Operation | int | Literal], held: Sequence[Recorded]) -> list[Step]:
    """The calls that `held` and effects need, in order."""
    parsed: list[tuple[Operation, list[Any], int]] = []
    first = 0
    remaining: Iterator[Any] = iter(calls)
    for operation in remaining:
        parsed.append((operation, [*islice(remaining, operation.arity)], first))
        first += len(operation.new)
    needed = {x.number for x in held}
    steps = []
    for operation, operands, first in reversed(parsed):
        results = range(first, first + len(operation.new))
        if operation.effects or not needed.isdisjoint(results):
            last = {x for x in operands if type(x) is int and x >= 0} - needed
            needed |= last
            last.update([x for x in results if x not in needed])
            steps.append(Step(operation, operands, first, last))
    return steps[::-1]


def calls_python(program: Program) -> bool:
    """Whether a program has callbacks, at any depth."""
    return any(
        [isinstance(eqn.primitive, HostPrimitive) for each in program.walk() for eqn in each]
    )


def _runtime_value(x: Literal) -> Any:
    return x.value if x.aval.weak_type else np.asarray(x.value, x.aval.dtype)[()]


_seen: Cache = Cache("seen recordings", 4096)
"""The hashes of the recordings that have run, without their literals."""
_programs: Cache = Cache("recordings", 512)
"""The programs of recordings that have run at least twice, and the positions of donated operands."""


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
    builder, values = recording.trace(recording.calls)
    outputs = [values[x.number].atom for x in recording.held()]
    return Program("recording", builder.inputs, builder.equations, outputs)
