"""Compiled programs: functions of one list of inputs, which they empty, and the compilers of users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from threading import RLock
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from functx.autograd.recorded_operations import is_wide
from functx.autograd.variable import Variable
from functx.core.dead_code import dce_equations
from functx.core.effects import Effect
from functx.core.errors import CompiledResultError, CompilerFunctionError, type_name
from functx.core.program import Program, Var
from functx.core.program_editing import replace_program_fields
from functx.core.tracer import aval_of
from functx.core.types import x64_enabled
from functx.lowering.argument_checks import check_usable
from functx.lowering.execution import find_executable
from functx.lowering.jax_bridge import call_reraising_callback_errors

CompiledFunction: TypeAlias = Callable[[list[Any]], Sequence[Any]]
"""A compiled program: takes the inputs in one list, which it empties, and returns the outputs."""
Compiler: TypeAlias = Callable[[Program], CompiledFunction]
"""Compiles a program."""


def default_compiler(program: Program) -> CompiledFunction:
    """Compiles a program with XLA: the function of the list of its inputs, which it empties.

    A write of the program goes to the array itself that is in the list, a NumPy array or a Variable.

    >>> import functx
    >>> from functx.aot import default_compiler
    >>> program = functx.make_ir(lambda x, y: x * y)(2.0, 3.0)
    >>> values = [2.0, 3.0]
    >>> float(default_compiler(program)(values)[0]), values
    (6.0, [])
    """
    pure, written = without_trailing_writes(program)
    count = len(program.outputs)
    found: list[Any] = []

    def run(values: list[Any]) -> Sequence[Any]:
        args = [*values]
        values.clear()
        targets = [args[i] for i in written]
        for i in written:
            args[i] = value_of(args[i])
        try:
            if not found:
                found.extend(find_executable(None, pure, args))
            compiled, literals = found
            outs = call_reraising_callback_errors(compiled, *args, *literals)
        except (OverflowError, ValueError, RuntimeError):
            check_usable(program.name, program.input_names(), args)
            raise
        for x, new in zip(targets, outs[count:], strict=True):
            write_to(x, new)
        return outs[:count] if written else outs  # type: ignore[no-any-return]

    return run


def without_trailing_writes(program: Program) -> tuple[Program, tuple[int, ...]]:
    """A program without its writes to inputs, which are its last equations, and the numbers of these.

    The values that are written follow the outputs.
    """
    writes = [eqn for eqn in program.equations if Effect.WRITE in eqn.primitive.effects]
    if not writes:
        return program, ()
    number = {v: i for i, v in enumerate(program.inputs)}
    new = {eqn.inputs[0]: eqn.inputs[1] for eqn in writes}
    # An output that is such an input has the value after the write.
    outputs = [*[new.get(a, a) for a in program.outputs], *new.values()]
    kept = [eqn for eqn in program.equations if Effect.WRITE not in eqn.primitive.effects]
    pure = replace_program_fields(
        program, equations=dce_equations(kept, outputs), outputs=outputs, trees=None
    )
    return pure, tuple([number[v] for v in new])  # type: ignore[index]


def value_of(x: object) -> Any:
    """The value of an array to which a program writes: that of a Variable, or the array itself."""
    return x.read().look() if isinstance(x, Variable) else x


def write_to(x: Any, new: Any) -> None:
    """Writes a value to a Variable or a NumPy array; another array cannot be written to."""
    if isinstance(x, Variable) or not isinstance(x, jax.Array):
        x[...] = new


class CompiledProgram:
    """A program, and from its first run on the function that a compiler makes of it.

    `compiler` is the one that the user gave as the option `option`, None for the default one.
    """

    def __init__(self, program: Program, compiler: Compiler | None, option: str):
        self.program, self.compiler, self.option = program, compiler, option
        self.function: CompiledFunction | None = None
        made = [v for eqn in program.equations for v in eqn.outputs]
        self.is_wide = any([is_wide(v.aval) for v in (*program.inputs, *made)])
        self._lock = RLock()

    def compile(self) -> CompiledFunction:
        """The function; compiles the program unless that was done before."""
        with self._lock:
            if self.function is None:
                self.function = self.run_compiler()
            return self.function

    def run_compiler(self) -> CompiledFunction:
        """The result of the compiler; CompilerFunctionError unless it can be called."""
        if self.compiler is None:
            return default_compiler(self.program)
        function = self.compiler(self.program)
        if isinstance(function, Program):
            return default_compiler(function)
        if not callable(function):
            raise CompilerFunctionError(
                f"aot_function: {self.option} must return a function of the list of inputs, or a program; "
                f"got {type_name(function)} for {self.program.name}",
                fix="Return functx.aot.default_compiler(program), or the program itself.",
            )
        return function

    def __call__(self, values: list[Any]) -> Sequence[Any]:
        """The outputs for a list of inputs, which is empty after it."""
        run = self.function or self.compile()
        # The types are known: 64-bit values stay so where the switch is off by now.
        wide = self.is_wide and not x64_enabled()
        targets = [] if self.compiler is None else self.targets(values)
        if wide:
            with jax.enable_x64(True):
                outs = run(values)
        else:
            outs = run(values)
        values.clear()
        if self.compiler is None:
            return outs
        for x, writes in targets:
            if x.version_counter.writes == writes:
                raise CompiledResultError(
                    f"aot_function: the function that {self.option} returns for {self.program.name} must write "
                    f"to the inputs that the program writes to; got no write to {x.describe()}",
                    fix="Write to the array in the list (x[...] = value), or compile with "
                    "keep_inference_input_mutations=False.",
                )
        return self.check_results(outs)

    def targets(self, values: Sequence[Any]) -> list[tuple[Variable, int]]:
        """The Variables that the program writes to, with their counts of writes."""
        _, written = without_trailing_writes(self.program)
        found = [values[i] for i in written]
        return [(x, x.version_counter.writes) for x in found if isinstance(x, Variable)]

    def check_results(self, outs: object) -> Sequence[Any]:
        """The results of a user's function; CompiledResultError unless they are of the types of the program."""
        avals = self.program.out_avals
        if not isinstance(outs, (list, tuple)) or len(outs) != len(avals):
            got = len(outs) if isinstance(outs, (list, tuple)) else type_name(outs)
            raise CompiledResultError(
                f"aot_function: the function that {self.option} returns for {self.program.name} must return "
                f"a list of {len(avals)} values; got {got}",
                fix="Return the outputs of the program, in its order.",
            )
        outs = [value_of(x) for x in outs]
        for i, (x, aval) in enumerate(zip(outs, avals, strict=True)):
            found = aval_of(x)
            if (found.shape, found.dtype) != (aval.shape, aval.dtype):
                raise CompiledResultError(
                    f"aot_function: the function that {self.option} returns for {self.program.name} must return "
                    f"values of the types of the program; got {found!r} as number {i}, expected {aval!r}",
                    fix="Return the outputs of the program, in its order.",
                )
        wide = self.is_wide and not x64_enabled()
        with jax.enable_x64(True) if wide else nullcontext():
            return [
                x if isinstance(x, jax.Array) else jnp.array(x, a.dtype)
                for x, a in zip(outs, avals, strict=True)
            ]


def check_function_option(fun: object, option: str) -> None:
    """Raises CompilerFunctionError unless a compiler, or `partition_fn`, is a function or None."""
    if fun is not None and not callable(fun):
        raise CompilerFunctionError(
            f"aot_function: {option} must be a function of a program; got {type_name(fun)}",
            fix="Pass functx.aot.default_partition, or another function of a joint program."
            if option == "partition_fn"
            else "Pass a function that takes a program and returns a function of a list, or nothing for "
            "functx.aot.default_compiler.",
        )


def is_input(program: Program, output: int) -> bool:
    """Whether an output of a program is one of its inputs."""
    atom = program.outputs[output]
    return type(atom) is Var and atom in program.inputs
