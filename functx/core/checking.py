"""Checks that programs are well-formed: scope, single assignment and types."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import lru_cache
from math import inf

import numpy as np

from functx.core.concretization import SymbolicScalar
from functx.core.effects import Effect
from functx.core.errors import (
    ArgumentError,
    DTypeError,
    FunctxError,
    ProgramError,
    ShapeError,
    type_name,
)
from functx.core.primitive import Primitive
from functx.core.printing import equation_text
from functx.core.program import Equation, Literal, Program, Var, subprograms
from functx.core.types import ShapedArray, kind


def check_program_argument(label: str, program: object) -> None:
    """Raise ArgumentError, which begins with `label`, unless `program` is a program."""
    if not isinstance(program, Program):
        raise ArgumentError(
            f"{label}: the argument must be a program; got {type_name(program)}",
            fix="Make one of a function with functx.make_ir(f)(*args).",
        )


def check_program(program: Program) -> None:
    """Raise ProgramError unless `program` is well-formed.

    Each variable must be defined once, before its first use. The outputs of each equation must have
    the types that its primitive infers, and each literal a value of its dtype. Sub-programs are
    checked too, each once.
    """
    defined: set[Var] = set()
    for i, v in enumerate(program.inputs):
        if type(v) is not Var or v in defined:
            raise ProgramError(
                f"{program.name}: every input must be a variable of its own; got input {i}, "
                + ("which is another input too" if type(v) is Var else f"{v!r}")
            )
        defined.add(v)
    for eqn in program.equations:
        problem = _equation_problem(eqn, defined)
        if problem:
            raise _program_error(program, eqn, problem)
        for nested in subprograms(eqn.primitive):
            if check_program not in nested.memo:
                check_program(nested)
    for i, atom in enumerate(program.outputs):
        problem = _atom_problem(atom, defined)
        if problem:
            raise ProgramError(f"{program.name}: output {i} {problem}")
    program.memo[check_program] = True


def lint_program(program: Program) -> None:
    """Raise ProgramError, which names the equation, unless `program` is well-formed and tidy.

    Beyond what `check_program` requires, writes come last and go to inputs, and every equation has an
    effect or an output that is used. Sub-programs are checked too. Names need no check: they are given
    where a program is printed, each once.
    """
    check_program(program)
    for each in program.walk():
        _check_writes(each)
        _check_all_used(each)


def _check_writes(program: Program) -> None:
    """Raise ProgramError unless all writes follow all other equations, and go to inputs."""
    if not program.writes:
        return
    inputs = set(program.inputs)
    following = False
    for eqn in reversed(program.equations):
        if Effect.WRITE not in eqn.primitive.effects:
            following = True
        elif following or eqn.inputs[0] not in inputs:
            problem = (
                "writes must come last; got one before other equations"
                if following
                else "writes must go to inputs; got one to a value of the program"
            )
            raise _program_error(program, eqn, problem)


def _check_all_used(program: Program) -> None:
    """Raise ProgramError for an equation without effects of which no output is used."""
    used = {*program.outputs, *[a for eqn in program.equations for a in eqn.inputs]}
    for eqn in program.equations:
        if not eqn.primitive.effects and used.isdisjoint(eqn.outputs):
            raise _program_error(
                program,
                eqn,
                "every equation must have an effect or an output that is used; got one without",
            )


def check_operands(
    primitive: Primitive, actual: Sequence[ShapedArray], expected: Sequence[ShapedArray]
) -> None:
    """Raise unless operands have the shapes and dtypes that the programs of `primitive` take."""
    same_count = len(actual) == len(expected)
    if same_count and all(
        a is b or (a.shape == b.shape and a.dtype == b.dtype)
        for a, b in zip(actual, expected, strict=True)
    ):
        return
    dtypes = same_count and any(a.dtype != b.dtype for a, b in zip(actual, expected, strict=True))
    raise (DTypeError if dtypes else ShapeError)(
        f"{primitive.name}: operands must be {list(expected)}, as its programs take them; "
        f"got {list(actual)}"
    )


def _program_error(program: Program, eqn: Equation, problem: str) -> ProgramError:
    shown = [f"in {equation_text(program, eqn)}"] if isinstance(eqn.primitive, Primitive) else []
    return ProgramError(f"{program.name}: {problem}", *shown, source=eqn.source)


def _equation_problem(eqn: Equation, defined: set[Var]) -> str:
    """The fault of an equation as text, empty without one; adds the outputs to `defined`."""
    primitive = eqn.primitive
    if not isinstance(primitive, Primitive):
        return f"an equation must have a Primitive; got {primitive!r}"
    for i, atom in enumerate(eqn.inputs):
        if type(atom) is not Var or atom not in defined:
            problem = _atom_problem(atom, defined)
            if problem:
                return f"operand {i} of {primitive.name} {problem}"
    avals = tuple([atom.aval for atom in eqn.inputs])
    operands = arity_problem(primitive, len(avals))
    if operands is not None:
        return f"{primitive.name} must have {operands}; got {len(avals)}"
    try:
        outs = primitive.out_avals(avals)
    except Exception as error:
        reason = error.problem if isinstance(error, FunctxError) else repr(error)
        return f"operands must fit; got {reason}"
    if len(outs) != len(eqn.outputs):
        expected = pluralize(len(outs), "output")
        return f"{primitive.name} must have {expected}; got {len(eqn.outputs)}"
    for i, (v, aval) in enumerate(zip(eqn.outputs, outs, strict=True)):
        if type(v) is not Var:
            return f"output {i} of {primitive.name} must be a variable; got {v!r}"
        if v in defined:
            return f"output {i} of {primitive.name} must be a new variable; got one in use"
        defined.add(v)
        if v.aval is not aval:
            return f"output {i} of {primitive.name} must be {aval!r}; got {v.aval!r}"
    return ""


def _atom_problem(atom: object, defined: set[Var]) -> str:
    if type(atom) is Var:
        return "" if atom in defined else f"must be defined before its use; got {atom.aval!r}"
    if type(atom) is Literal:
        return literal_problem(atom)
    return f"must be a variable or a literal; got {atom!r}"


def literal_problem(literal: Literal) -> str:
    """The fault of a literal as text, empty without one."""
    value, aval = literal.value, literal.aval
    dtype_kind = kind(aval.dtype) if type(aval) is ShapedArray and aval.shape == () else ""
    if dtype_kind and type(value) is SymbolicScalar:
        return ""
    if dtype_kind and dtype_kind in _KINDS_BY_SCALAR_TYPE.get(type(value), ""):
        try:
            with np.errstate(over="ignore"):
                rounded = aval.dtype.type(value).item()
            if (aval.weak_type and dtype_kind in "fc") or repr(rounded) == repr(value):
                return ""
        except OverflowError:
            pass
    return f"must be a literal that fits its type; got {value!r} of {aval!r}"


_KINDS_BY_SCALAR_TYPE: dict[type, str] = {bool: "b", int: "iu", float: "f", complex: "c"}


@lru_cache(maxsize=4096)
def _arity(cls: type[Primitive]) -> tuple[float, float]:
    """The smallest and the largest number of operands that the rules of a primitive take."""
    for rule, num_own in (("abstract_eval", 1), ("lower", 2), ("decompose", 1)):
        if not cls.has_rule(rule):
            continue
        parameters = list(inspect.signature(getattr(cls, rule)).parameters.values())[num_own:]
        if all(p.kind is not p.VAR_POSITIONAL for p in parameters):
            return sum(p.default is p.empty for p in parameters), len(parameters)
    return 0, inf


def arity_problem(primitive: Primitive, count: int) -> str | None:
    """None if `primitive` takes `count` operands, else the number that it takes, as `2 operands`."""
    least, most = _arity(type(primitive))
    if least <= count <= most:
        return None
    return pluralize(least, "operand") if least == most else f"{least:g} to {most:g} operands"


def pluralize(number: float, thing: str) -> str:
    """`1 output`, `2 outputs`."""
    return f"{number:g} {thing}{'' if number == 1 else 's'}"
