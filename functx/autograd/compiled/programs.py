"""The program of a captured walk, as compiler functions get it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from functx.autograd.compiled.primitives import PythonCall
from functx.autograd.compiled.stages import cut_into_stages, is_call, number_of
from functx.autograd.recorded_operations import Operation
from functx.autograd.variable import as_variable, variable_of_literal
from functx.core.errors import CapturedWalkError
from functx.core.program import Equation, Program, Var
from functx.core.rewriting import apply
from functx.ops.operands import literal


class RuleOrigin(NamedTuple):
    """The rule that an equation of a captured walk comes from, and the number of its node; the root is 0."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name} ({self.number})"


class Groups(NamedTuple):
    """The groups of inputs of a captured walk, each a list in a call of its compiled form.

    `inputs` are the names of the arrays: gradients of roots, saved values and `.grad` of leaves. `sizes`
    are all sizes of a walk whose sizes are dynamic, for information: no equation reads them, and each set
    of sizes has a program of its own. `scalars` are the names of numbers. `hooks` says for each call of
    Python what it calls, and `packed` numbers the values that saved-tensor hooks have packed.
    """

    inputs: tuple[str, ...]
    sizes: tuple[int, ...]
    scalars: tuple[str, ...]
    hooks: tuple[str, ...]
    packed: tuple[int, ...]


class CapturedProgram(Program):
    """The program of a captured walk. Its inputs are arrays, then numbers, which `groups` names.

    Called with a list for each group, it runs the walk: it calls hooks, adds to `.grad`, and returns
    the gradients that are asked for. It empties the list of arrays.
    """

    __slots__ = ("compiled", "groups", "origins")

    def __init__(self, program: Program, groups: Groups, origins: dict[Var | int, RuleOrigin]):
        super().__init__(
            program.name,
            program.inputs,
            program.equations,
            program.outputs,
            in_names=program.in_names,
        )
        self.groups, self.origins = groups, origins
        self.compiled: Callable[..., list[Any]] | None = None

    def origin(self, eqn: Equation) -> RuleOrigin | None:
        """The rule that an equation comes from, and the number of its node; None for one of no rule."""
        if isinstance(eqn.primitive, PythonCall):
            return self.origins.get(eqn.primitive.index)
        return self.origins.get(eqn.outputs[0]) if eqn.outputs else None

    def __str__(self) -> str:
        from functx.core.printing import program_text

        return program_text(self, lambda eqn: str(self.origin(eqn) or ""))

    __repr__ = __str__

    def __call__(self, *lists: object) -> list[Any]:  # type: ignore[override]
        if self.compiled is None:
            self.compiled = compile_stages(self)
        return self.compiled(*lists)


def compile_stages(program: Program) -> Callable[..., list[Any]]:
    """A function that runs a captured walk, cut at its calls of Python into stages.

    It takes the lists `(inputs, sizes, scalars, hooks, packed)`, empties the first, and returns the
    gradients that were asked for. Stages are recorded: a stage is compiled together with what is
    recorded around it, unless a hook reads a value. `program` may be one that was made of a captured
    walk, whose inputs are as before.
    """
    stages = cut_into_stages(program)
    names = program.input_names() or []
    num_scalars = sum([name.startswith("scalar") for name in names])
    counts = {number_of(eqn): len(eqn.outputs) for eqn in program.equations if is_call(eqn)}
    num_hooks = 1 + max(counts, default=-1)

    def run(
        inputs: list[Any],
        sizes: Sequence[int],
        scalars: Sequence[Any],
        hooks: Sequence[Callable[..., Any]],
        packed: Sequence[Any],
    ) -> list[Any]:
        count = len(inputs) + len(scalars)
        is_other_split = bool(names) and len(scalars) != num_scalars
        if count != len(program.inputs) or is_other_split or len(hooks) < num_hooks:
            wanted = len(program.inputs) - num_scalars, num_scalars, num_hooks
            raise CapturedWalkError(
                "a captured walk: there must be as many arrays, numbers and hooks as in program.groups; "
                f"got {(len(inputs), len(scalars), len(hooks))}, expected {wanted}",
                fix="Pass the lists on as they are given.",
            )
        avals = program.in_avals[len(inputs) :]
        values: list[Any] = [*map(as_variable, inputs)]
        values += [
            variable_of_literal(literal(x, aval.dtype))
            for x, aval in zip(scalars, avals, strict=True)
        ]
        inputs.clear()

        def call_each(calls: Sequence[tuple[int, Sequence[Any]]]) -> list[Any]:
            return [x for number, operands in calls for x in call(number, operands)]

        def call(number: int, operands: Sequence[Any]) -> list[Any]:
            outs = [*map(as_variable, hooks[number](*operands) or ())]
            if len(outs) != counts[number]:
                raise CapturedWalkError(
                    "a captured walk: an entry of the list of hooks must return as many arrays as its "
                    f"equation has results; got {len(outs)} of number {number}, expected {counts[number]}",
                    fix="Return what the entry that it wraps returns.",
                )
            return outs

        return [*map(as_variable, stages.run(values, run_operation, call_each))]

    return run


def run_operation(operation: Operation, args: Sequence[Any]) -> list[Any]:
    """The outputs of an operation on arrays, as Variables."""
    outs = apply(None, operation.program, [*args, *operation.captured])
    return [*map(as_variable, outs)]
