"""Recordings: the operations on Variables of one thread, run together when a value is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from threading import local
from typing import Any
from weakref import ref

import jax.numpy as jnp
import numpy as np

from functx.core.backend import backend
from functx.core.caches import Cache
from functx.core.primitive import Primitive
from functx.core.program import Atom, Literal, Program, Var
from functx.core.tracer import Tracer, aval_of
from functx.core.tracing import Builder
from functx.core.types import ShapedArray
from functx.core.typing import ArrayLike


class Recorded:
    """An array that a recording will compute, or has computed.

    `atom` stands for it in `recording`, which is None once `value` is known.
    """

    __slots__ = ("__weakref__", "atom", "recording", "value")

    def __init__(
        self, atom: Atom, recording: Recording | FailedOperation | None, value: Any = None
    ):
        self.atom = atom
        self.recording = recording
        self.value = value

    @property
    def aval(self) -> ShapedArray:
        return self.atom.aval

    def compute(self) -> Any:
        """The value; runs the recording if it is not known."""
        if self.recording is not None:
            self.recording.run()
        return self.value


class Recording(Builder):
    """The program of the operations that were recorded and not yet run.

    Only those results are computed that somebody still holds: `results` are weak references. If an
    operation raises, each look at a result that depends on it raises the same error.
    """

    def __init__(self) -> None:
        super().__init__("recording", "autograd")
        self.results: list[ref[Recorded]] = []

    def result(self, atom: Atom) -> Recorded:
        """A new result of the recording."""
        if type(atom) is Literal:
            return constant(np.asarray(atom.value, atom.aval.dtype))
        recorded = Recorded(atom, self)
        self.results.append(ref(recorded))
        return recorded

    def atom(self, x: object) -> Atom:
        """The atom of an operand, which is captured if it has a value."""
        if type(x) is Recorded:
            if x.recording is self:
                return x.atom
            value = x.compute()
            return self.capture(id(value), value, x.atom.aval)
        if isinstance(x, np.ndarray):
            # The user may write to the array before the recording runs.
            x = jnp.array(x)
        return super().atom(x)

    def record(self, primitive: Primitive, args: Sequence[object]) -> list[Recorded]:
        """The outputs of an operation on operands, each `Recorded`, an array or a number."""
        operands = [Tracer(self.atom(x), self) for x in args]
        outs = self.append(primitive, operands)
        found = [self.result(x.atom) for x in (outs if primitive.multiple_results else [outs])]
        if primitive.effects:
            self.run()
        self.run_if_long()
        return found

    def record_program(self, program: Program, args: Sequence[object]) -> list[Recorded]:
        """The outputs of a program, whose equations join the recording."""
        operands = [Tracer(self.atom(x), self) for x in args]
        known = {
            x.atom: arg for x, arg in zip(operands, args, strict=True) if type(arg) is Recorded
        }
        outs = []
        for out in self.inline(program, operands):
            same = known.get(out.atom)
            if same is None:
                same = known[out.atom] = self.result(out.atom)
            outs.append(same)
        if program.effects:
            self.run()
        self.run_if_long()
        return outs

    def run_if_long(self) -> None:
        """Runs a recording of more operations than the limit."""
        if len(self.equations) >= limits.operations:
            self.run()

    def run(self) -> None:
        """Computes all results that are still held; the thread then begins another recording."""
        if _thread.recording is self:
            _thread.recording = None
        held = [x for x in [reference() for reference in self.results] if x is not None]
        program, captured = self.finish([Tracer(x.atom, self) for x in held])
        self.results, self.captures, self.equations = [], {}, []
        try:
            values = run_program(program, captured)
        except Exception as error:
            # Effects must not happen twice.
            values = (
                [FailedOperation(error)] * len(held)
                if program.effects
                else evaluate_equations(program, captured)
            )
        for x, value in zip(held, values, strict=True):
            if isinstance(value, FailedOperation):
                x.recording = value
            else:
                x.value, x.recording = value, None


class FailedOperation:
    """The placeholder for the results of an operation that raised; to run it raises the error."""

    def __init__(self, error: Exception):
        self.error = error

    def run(self) -> None:
        """Raises the error."""
        raise self.error


class limits:  # noqa: N801 - settings, not instantiated
    """When a recording runs although no value was looked at."""

    operations = 20_000


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
    held = [x for x in [reference() for reference in recording.results] if x is not None]
    inputs = [var for var, _ in recording.captures.values()]
    return Program("recording", inputs, recording.equations, [x.atom for x in held])


def constant(x: ArrayLike) -> Recorded:
    """An array with a value."""
    return Recorded(Var(aval_of(x)), None, x)


_met: Cache = Cache("autograd", 4096)


def run_program(program: Program, args: Sequence[Any]) -> Sequence[Any]:
    """The outputs of a program: operation by operation at first, compiled when it is met again."""
    if not program.outputs and not program.effects:
        return []
    if _met.get(program.key) is None:
        _met.put(program.key, True)
        return evaluate_equations(program, args)
    return backend.run(None, program, args)


def evaluate_equations(program: Program, args: Sequence[Any]) -> list[Any]:
    """The outputs of a program, whose operations run one after the other.

    A FailedOperation stands for each result that depends on an operation that raised.
    """
    last = {atom: i for i, eqn in enumerate(program.equations) for atom in eqn.inputs}
    kept = set(program.outputs)
    env: dict[Atom, Any] = dict(zip(program.inputs, args, strict=True))
    for i, eqn in enumerate(program.equations):
        operands = [env[a] if type(a) is Var else a for a in eqn.inputs]
        outs: Any = next((x for x in operands if isinstance(x, FailedOperation)), None)
        try:
            outs = outs or backend.evaluate(eqn.primitive, operands)
        except Exception as error:
            outs = FailedOperation(error)
        if isinstance(outs, FailedOperation):
            outs = [outs] * len(eqn.outputs)
        elif not eqn.primitive.multiple_results:
            outs = [outs]
        env.update(zip(eqn.outputs, outs, strict=True))
        for atom in eqn.inputs:
            if last[atom] == i and atom not in kept:
                env.pop(atom, None)
    return [
        env[a] if type(a) is Var else jnp.asarray(a.value, a.aval.dtype)  # type: ignore[union-attr]
        for a in program.outputs
    ]
