"""Well-formedness of programs: scope, single assignment, and types."""

from __future__ import annotations

import inspect
from functools import lru_cache
from math import inf
from typing import Any

import numpy as np

from functx.core.concretization import SymbolicScalar
from functx.core.errors import ArgumentError, FunctxError, ProgramError, type_name
from functx.core.primitive import Primitive
from functx.core.printing import equation_text
from functx.core.program import Equation, Literal, Program, Var, subprograms
from functx.core.types import ShapedArray, kind


def check_program_argument(what: str, given: Any) -> None:
    """Raise ArgumentError, in the name of `what`, unless `given` is a program."""
    if not isinstance(given, Program):
        raise ArgumentError(
            f"{what}: the argument must be a program; got {type_name(given)}",
            fix="Make one of a function with functx.make_ir(f)(*args).",
        )


def check_program(program: Program) -> None:
    """Raise ProgramError unless `program` is well-formed.

    Every variable must be defined once, before its first use. Every equation must have the
    output types that its primitive gives, every literal a number of its dtype. The programs
    in parameters are checked too, each once.
    """
    defined: set[Any] = set()
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


def _program_error(program: Program, eqn: Equation, problem: str) -> ProgramError:
    shown = [f"in {equation_text(program, eqn)}"] if isinstance(eqn.primitive, Primitive) else []
    return ProgramError(f"{program.name}: {problem}", *shown, source=eqn.source)


def _equation_problem(eqn: Equation, defined: set[Any]) -> str:
    """The fault of an equation, as text; empty without one. Adds its outputs to `defined`."""
    primitive = eqn.primitive
    if not isinstance(primitive, Primitive):
        return f"an equation must have a Primitive; got {primitive!r}"
    for i, atom in enumerate(eqn.inputs):
        if type(atom) is not Var or atom not in defined:
            problem = _atom_problem(atom, defined)
            if problem:
                return f"operand {i} of {primitive.name} {problem}"
    avals = tuple([atom.aval for atom in eqn.inputs])
    wanted = arity_problem(primitive, len(avals))
    if wanted is not None:
        return f"{primitive.name} must have {wanted}; got {len(avals)}"
    try:
        outs = primitive.out_avals_memo.get(avals) or primitive.infer_out_avals(avals)
    except Exception as error:
        reason = error.problem if isinstance(error, FunctxError) else repr(error)
        return f"operands must fit; got {reason}"
    if len(outs) != len(eqn.outputs):
        wanted = pluralize(len(outs), "output")
        return f"{primitive.name} must have {wanted}; got {len(eqn.outputs)}"
    for i, (v, aval) in enumerate(zip(eqn.outputs, outs, strict=True)):
        if type(v) is not Var:
            return f"output {i} of {primitive.name} must be a variable; got {v!r}"
        if v in defined:
            return f"output {i} of {primitive.name} must be a new variable; got one in use"
        defined.add(v)
        if v.aval is not aval:
            return f"output {i} of {primitive.name} must be {aval!r}; got {v.aval!r}"
    return ""


def _atom_problem(atom: Any, defined: set[Any]) -> str:
    if type(atom) is Var:
        return "" if atom in defined else f"must be defined before its use; got {atom.aval!r}"
    if type(atom) is Literal:
        return literal_problem(atom)
    return f"must be a variable or a literal; got {atom!r}"


def literal_problem(literal: Literal) -> str:
    """The fault of a literal, as text; empty without one."""
    value, aval = literal.value, literal.aval
    of = kind(aval.dtype) if type(aval) is ShapedArray and aval.shape == () else ""
    if of and type(value) is SymbolicScalar:
        return ""
    if of and of in _KINDS_BY_SCALAR_TYPE.get(type(value), ""):
        try:
            with np.errstate(over="ignore"):
                held = aval.dtype.type(value).item()
            if (aval.weak_type and of in "fc") or repr(held) == repr(value):
                return ""
        except OverflowError:
            pass
    return f"must be a literal that fits its type; got {value!r} of {aval!r}"


_KINDS_BY_SCALAR_TYPE: dict[type, str] = {bool: "b", int: "iu", float: "f", complex: "c"}


@lru_cache(maxsize=4096)
def _arity(cls: type[Primitive]) -> tuple[float, float]:
    """The least and the largest number of operands that the rules of a primitive take."""
    for rule, own in (("abstract_eval", 1), ("lower", 2), ("decompose", 1)):
        if not cls.has_rule(rule):
            continue
        parameters = list(inspect.signature(getattr(cls, rule)).parameters.values())[own:]
        if all(p.kind is not p.VAR_POSITIONAL for p in parameters):
            return sum(p.default is p.empty for p in parameters), len(parameters)
    return 0, inf


def arity_problem(primitive: Primitive, given: int) -> str | None:
    """None if `given` operands are what `primitive` takes, else `2 operands`, which are."""
    least, most = _arity(type(primitive))
    if least <= given <= most:
        return None
    return pluralize(least, "operand") if least == most else f"{least:g} to {most:g} operands"


def pluralize(number: float, thing: str) -> str:
    """`1 output`, `2 outputs`."""
    return f"{number:g} {thing}{'' if number == 1 else 's'}"
