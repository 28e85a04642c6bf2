"""Recordings: the operations on Variables of one thread, run together when a value is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice
from threading import RLock, local
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import jax
import numpy as np

from functx.autograd.prefixes import EMPTY_PREFIX, Prefix
from functx.autograd.recorded import NOT_CAPTURED, Failure, Operand, Recorded, operand_of, ownership
from functx.autograd.recorded_operations import Operation, operation_of_primitive
from functx.core.backend import backend
from functx.core.builder import Builder
from functx.core.caches import Cache
from functx.core.config import recording_limits
from functx.core.errors import AutogradError
from functx.core.primitive import Primitive
from functx.core.program import Literal, Program
from functx.core.types import ShapedArray, x64_enabled
from functx.ops.callbacks import HostPrimitive

if TYPE_CHECKING:
    from functx.autograd.nodes import OperationSplit


class PlannedCalls(NamedTuple):
    """Calls that are recorded at once.

    `arrange(table)` gives the keys of their `Prefix`. The table has the numbers of their
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

    `prefix` says which calls they are, on `captured` values and `literals`. Only values that are still
    referenced are computed: `results` are weak references. If an operation raises, reading a result
    that depends on it raises the same error. `reusable` holds the captured values that are private, by
    identity; `known_constants` has the numbers of the others, by identity and type. `has_pending` is True
    from the first operand of a call that is captured, or a literal, until the call is made.
    `prefix_of_run` is the prefix that was run.
    """

    first_node = 0
    """The number of the first node that a walk in this recording may pass."""

    def __init__(self) -> None:
        self.prefix = EMPTY_PREFIX
        self.captured: list[Any] = []
        self.captured_avals: list[ShapedArray] = []
        self.known_constants: dict[tuple[int, ShapedArray], int] = {}
        self.literals: list[Literal] = []
        self.reusable: dict[int, ref[Recorded]] = {}
        self.results: list[ref[Recorded]] = []
        self.is_open, self.is_running, self.has_run = True, False, False
        self.has_effects = self.has_pending = False
        self.prefix_of_run: Prefix | None = None
        self.effect_error: Exception | None = None
        self._lock = RLock()

    @property
    def count(self) -> int:
        """The number of the results."""
        return self.prefix.count

    def call(
        self,
        operation: Operation,
        operands: Sequence[Operand],
        keys: Sequence[Hashable] | None = None,
    ) -> list[Recorded]:
        """The new values of an operation, on operands whose `keys` may be known."""
        if operation.captured:
            self.abandon_call()
            keys = self.keys_of([*operands, *map(operand_of, operation.captured)])
        elif keys is None:
            keys = self.keys_of(operands)
        new = None
        if self.is_open:
            new = self.append_call(self.prefix.child_with_call(operation.structure, keys))
        return current_recording().call(operation, operands) if new is None else new

    def call_all(self, calls: PlannedCalls, operands: Sequence[Operand]) -> list[Recorded]:
        """The wanted values of several calls, which are added at once."""
        keys = self.keys_of(operands)
        new = self.append_call(self.prefix.child_with_calls(calls, keys)) if self.is_open else None
        return current_recording().call_all(calls, operands) if new is None else new

    def repeat_call(self, key: Hashable) -> list[Recorded] | None:
        """The new values of a call that was made after the same calls before; None if its key is not known."""
        known = self.prefix.children.get(key)
        return None if known is None or not self.is_open else self.append_call(known)

    def append_call(self, prefix: Prefix) -> list[Recorded] | None:
        """The new values of the last call of `prefix`, which follows the calls made so far.

        None if another thread has run the recording without the call.
        """
        results = self.results
        new = []
        for number, aval in prefix.new:
            x = Recorded(aval, self, number)
            results.append(ref(x))
            new.append(x)
        self.prefix, self.has_pending = prefix, False
        if not self.is_open:
            # The other thread may have run the call, which must not have its effects twice.
            self.run()
            return new if self.prefix_of_run is prefix else None
        limits = recording_limits
        if (
            prefix.last_has_effects
            or prefix.size >= limits.operations
            or prefix.bytes >= limits.bytes
        ):
            self.has_effects = prefix.last_has_effects
            self.run()
            for x in new:
                x.look()
        return new

    def keys_of(self, operands: Sequence[Operand]) -> list[Hashable]:
        """Operands of the next call as `Prefix` takes them; values from outside are captured."""
        if self.has_pending:
            self.abandon_call()
        prefix = self.prefix
        keys: list[Hashable] = []
        try:
            for x in operands:
                if type(x) is Literal:
                    keys.append(self.key_of_literal(x))
                elif x.recording is self:  # type: ignore[union-attr]
                    keys.append(x.number)  # type: ignore[union-attr]
                elif x.recording is None and (known := x.captured)[0] is self:  # type: ignore[union-attr]
                    keys.append(known[1])
                else:
                    keys.append(self.key_from_outside(x))  # type: ignore[arg-type]
        except BaseException:
            self.abandon_call()
            raise
        # A callback has recorded meanwhile, where a value of another recording was computed.
        return keys if self.prefix is prefix else self.keys_of(operands)

    def key_of_literal(self, x: Literal) -> tuple[ShapedArray]:
        """A literal as an operand of the next call."""
        self.has_pending = True
        self.literals.append(x)
        return (x.aval,)

    def key_from_outside(self, x: Recorded) -> Hashable:
        """A value of another recording, or from outside, as an operand of the next call."""
        # As `look`, without a call.
        value = x.value if x.recording is None else x.look()
        recording, number = x.captured
        if recording is self:
            return number
        aval = x.aval
        if not x.is_private:
            # Each operation makes another value of the user's array.
            known = self.known_constants.get((id(value), aval))
            if known is not None:
                x.captured = self, known
                return known
        self.has_pending = True
        self.captured.append(value)
        self.captured_avals.append(aval)
        number = -len(self.captured)
        if x.is_private:
            self.note_reusable(x, number)
        else:
            self.known_constants[id(value), aval] = number
            x.captured = self, number
        return aval

    def call_split(
        self,
        key: Hashable | None,
        split: OperationSplit,
        operands: Sequence[Operand],
        keys: Sequence[Hashable],
    ) -> list[Recorded]:
        """The new values of the operation of a split, which is found by `key` from now on, unless that is None."""
        new = None
        if key is not None:
            self.note_call(key, split, keys)
            new = self.repeat_call(key)
        return self.call(split.values, operands, keys) if new is None else new

    def note_call(self, key: Hashable, split: OperationSplit, keys: Sequence[Hashable]) -> None:
        """Lets recordings that have made these calls find the next one, of a split, by `key`."""
        if self.is_open and not split.values.captured:
            longer = self.prefix.new_child(split.values.structure, keys)
            longer.split = split
            self.prefix.keep_child(key, longer)

    def abandon_call(self) -> None:
        """Gives up a call whose operands have keys: its captured values stay captured, its literals go."""
        self.has_pending = False
        del self.literals[self.prefix.literal_count :]
        if self.is_open and (types := self.captured_avals[self.prefix.captured_count :]):
            self.prefix = self.prefix.child_with_captured(types)

    def has_room(self, calls: PlannedCalls) -> bool:
        """Whether it need not run after such calls."""
        return (
            self.prefix.size + calls.size < recording_limits.operations
            and self.prefix.bytes + calls.bytes < recording_limits.bytes
        )

    def note_reusable(self, x: Recorded, number: int) -> None:
        """Notes that the memory of a captured value may be reused, unless another recording is to read it."""
        with ownership:
            other, _ = x.captured
            if other is not None and not other.has_run:
                x.is_private = False
                other.reusable.pop(id(x.value), None)
            elif x.is_private:
                self.reusable[id(x.value)] = ref(x)
            x.captured = self, number

    def record(self, primitive: Primitive, args: Sequence[Operand]) -> list[Recorded]:
        """The outputs of a primitive on operands."""
        avals = tuple([x.aval for x in args])
        return self.call(operation_of_primitive(primitive, avals), args)

    def trace(
        self, calls: Sequence[Operation | int | Literal], types: Sequence[ShapedArray]
    ) -> tuple[Builder, list[Any]]:
        """The equations of `calls` on captured values of these types, and the traced values by number."""
        builder = Builder("recording", "autograd")
        inputs = [builder.add_input(aval) for aval in types]
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
                # The thread of the recording may be adding a call, which does not count.
                prefix = self.prefix
                self.run_held(prefix, [x for x in self.held() if x.number < prefix.count])
            finally:
                self.is_running = False
        if self.effect_error is not None:
            raise self.effect_error.with_traceback(None)

    def run_held(self, prefix: Prefix, held: Sequence[Recorded]) -> None:
        """Runs the calls of `prefix`, which compute `held`, and frees the recording."""
        if held or self.has_effects:
            self.prefix_of_run = prefix
            try:
                if prefix.wide and not x64_enabled():
                    # The types are known: 64-bit values stay so where the switch is off by now.
                    with jax.enable_x64(True):
                        values = self.values_of(prefix, held)
                else:
                    values = self.values_of(prefix, held)
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
                x.value, x.is_private, x.captured = value, True, NOT_CAPTURED
                x.recording = None
        self.has_run = True
        self.captured, self.captured_avals, self.results, self.literals = [], [], [], []
        self.known_constants, self.reusable = {}, {}

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

    def values_of(self, prefix: Prefix, held: Sequence[Recorded]) -> Sequence[Any]:
        """The values of results, or errors: operation by operation at first, compiled when seen again."""
        numbers = tuple([x.number for x in held])
        captured, literals = (
            self.captured[: prefix.captured_count],
            self.literals[: prefix.literal_count],
        )
        # Neither the operations nor their order depend on settings.
        key = prefix, numbers, *literals
        found: tuple[Program, tuple[int, ...]] | None = _programs.get(key)
        if found is None:
            types = tuple(self.captured_avals[: prefix.captured_count])
            found = self.program_of(prefix.calls(literals), types, held)
            if found is None:
                return self.evaluate(prefix.calls(literals), held)
            _programs.put(key, found)
        program, donated = found
        if donated and not self.may_donate(donated):
            # One more executable, not one for each set of values that are referenced.
            donated = ()
        try:
            return backend.run(None, program, captured, donated)
        except Exception as error:
            if self.has_donated():
                return [error] * len(held)
            # Effects must not happen twice.
            self.effect_error = error if self.has_effects else None
            return self.evaluate(prefix.calls(literals), held)

    def program_of(
        self,
        calls: Sequence[Operation | int | Literal],
        types: tuple[ShapedArray, ...],
        held: Sequence[Recorded],
    ) -> tuple[Program, tuple[int, ...]] | None:
        """The program that computes results, and the positions of donated operands; None at first."""
        numbers = tuple([x.number for x in held])
        key = tuple(calls), types, numbers
        found: tuple[Program, tuple[int, ...]] | None = _programs.get(key)
        if found is None:
            structure = hash(
                (tuple([x.aval if type(x) is Literal else x for x in calls]), types, numbers)
            )
            if _seen.get(structure) is None:
                _seen.put(structure, True)
                return None
            builder, values = self.trace(calls, types)
            program, _ = builder.finish([values[x.number] for x in held])
            # A callback that raises would leave neither the old values nor the new ones.
            found = program, () if calls_python(program) else self.donatable_positions(held)
            _programs.put(key, found)
        return found

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
_programs: Cache = Cache("recordings", 1024)
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
    recording.abandon_call()
    calls = recording.prefix.calls(recording.literals)
    builder, values = recording.trace(calls, recording.captured_avals)
    outputs = [values[x.number].atom for x in recording.held()]
    return Program("recording", builder.inputs, builder.equations, outputs)
