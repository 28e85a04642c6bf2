"""Programs as operations that recordings call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from functx.autograd.recorded import Operand, operand_of
from functx.core.caches import Cache
from functx.core.captures import hoist_captures
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Program, Var
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.types import ShapedArray, narrow_dtype
from functx.passes.costs import bytes_of


class Operation:
    """A program that recordings call.

    The last operands of `program` are `captured`, arrays that the program has captured. `new_avals` are
    the types of its new values: the outputs that are no operands, each once. `select` takes the
    outputs from the operands, the captured values and the new values; None if the outputs are the
    new values. Operations of equal programs have the same `structure`, which stands for
    them in the keys of caches.
    """

    __slots__ = (
        "arity",
        "bytes",
        "captured",
        "effects",
        "new",
        "new_avals",
        "program",
        "select",
        "size",
        "structure",
        "wide",
    )

    def __init__(self, program: Program):
        # A copy, since the memo of `program` holds the operation, and a cycle would keep both.
        program, self.captured = hoist_captures(replace_program_fields(program))
        positions: dict[Atom, int] = {v: i for i, v in enumerate(program.inputs)}
        self.new = []
        for i, atom in enumerate(program.outputs):
            if atom not in positions:
                positions[atom] = len(positions)
                self.new.append(i)
        self.program = program
        self.structure = self.find_structure()
        self.new_avals = [program.outputs[i].aval for i in self.new]
        outputs = [positions[atom] for atom in program.outputs]
        count = len(program.inputs)
        self.select: Callable[[Sequence[Any]], Sequence[Any]] | None = None
        if outputs != [*range(count, count + len(outputs))]:
            self.select = itemgetter(*outputs) if len(outputs) > 1 else lambda x: [x[outputs[0]]]
        self.effects = bool(program.effects)
        self.size = len(program.equations)
        self.bytes = sum(map(bytes_of, self.new_avals))
        made = [v for eqn in program.equations for v in eqn.outputs]
        self.wide = any([is_wide(v.aval) for v in (*program.inputs, *made)])
        self.arity = len(program.inputs)

    def find_structure(self) -> Operation:
        """The operation that stands for all of equal programs; it has no captured values."""
        if self.captured:
            return operation_of(self.program).structure
        found: Operation | None = _structures.get(self.program.key)
        if found is None:
            _structures.put(self.program.key, self)
        return found or self

    def outputs_of(self, operands: Sequence[Operand], new: Sequence[Any]) -> Sequence[Any]:
        """The outputs, which may be operands and captured values, or the new values more than once."""
        if self.select is None:
            return new
        if self.captured:
            operands = [*operands, *map(operand_of, self.captured)]
        return self.select([*operands, *new])


def is_wide(aval: ShapedArray) -> bool:
    """Whether a type is one of those that only 64-bit mode has."""
    return aval.dtype != narrow_dtype(aval.dtype)


class RecordedProgram(Rewrite[Operation]):
    """The rewrite of a program to the operation that it is."""

    def __call__(self, program: Program) -> Operation:
        return Operation(program)


_recorded_program = RecordedProgram()


def operation_of(program: Program) -> Operation:
    """The operation that a program is."""
    return cached_rewrite(_recorded_program, program)


_structures: Cache = Cache("recorded programs", 4096)
_operations: Cache = Cache("recorded operations", 4096)


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
    found = primitive.out_avals(avals)
    outputs = [Var(aval) for aval in found]
    equation = Equation(primitive, list(inputs), outputs, None)
    return Program(primitive.name, inputs, [equation], outputs)
