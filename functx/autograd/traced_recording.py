"""Recordings whose operations become equations of a trace."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING
from weakref import ref

from functx.autograd.recorded import Operand, Recorded
from functx.autograd.recorded_operations import Operation
from functx.autograd.recording import Recording
from functx.core.builder import Builder
from functx.core.program import Literal
from functx.core.tracer import Tracer

if TYPE_CHECKING:
    from functx.autograd.nodes import OperationSplit


class TracedRecording(Recording):
    """A recording whose operations become equations of a trace at once; `values` are its traced values."""

    def __init__(self, builder: Builder):
        super().__init__()
        self.builder = builder
        self.values: list[Tracer] = []

    def recorded(self, value: Tracer) -> Recorded:
        """A traced value as a value of this recording."""
        x = Recorded(value.atom.aval, self, len(self.values))
        self.values.append(value)
        self.results.append(ref(x))
        return x

    def traced(self, x: Operand) -> Tracer | Literal:
        """The traced value of an operand."""
        if type(x) is Literal:
            return x
        assert isinstance(x, Recorded)
        return self.values[x.number] if x.recording is self else self.traced_from_outside(x)

    def traced_from_outside(self, x: Recorded) -> Tracer:
        """The traced value of a value of another recording."""
        raise NotImplementedError

    def traced_constant(self, x: object) -> Tracer:
        """The traced value of an array that a program has captured."""
        return self.builder.tracer(x)

    def key_from_outside(self, x: Recorded) -> None:
        """None: its calls are not found by numbers."""

    def key_of_literal(self, x: Literal) -> None:  # type: ignore[override]
        """None, as of a value from outside."""

    def repeat_call(self, key: Hashable) -> None:
        """None: each call is made by `call`."""

    def note_call(self, key: Hashable, split: OperationSplit, keys: Sequence[Hashable]) -> None:
        """Does nothing, since no call is found by a key."""

    def call(
        self,
        operation: Operation,
        operands: Sequence[Operand],
        keys: Sequence[Hashable] | None = None,
    ) -> list[Recorded]:
        args = [*map(self.traced, operands), *map(self.traced_constant, operation.captured)]
        outs = self.builder.inline(operation.program, args)
        return [self.recorded(outs[i]) for i in operation.new]
