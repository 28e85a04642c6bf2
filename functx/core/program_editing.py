"""Edits of programs, and rewrites by rules of users."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from functx.core.checking import check_program
from functx.core.errors import ArgumentError, ProgramError, type_name
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Program, Var, subprograms
from functx.core.program_calls import call_program_flat, cast_scalar
from functx.core.rewriting import bind_equation, interpret
from functx.core.source_info import Source
from functx.core.tracer import Tracer, aval_of, current_builder, literal_of
from functx.core.tracing import trace
from functx.core.typing import Value, Values

if TYPE_CHECKING:
    pass


def substitute_atoms(program: Program, substitutes: Mapping[Atom, Atom]) -> Program:
    """`program`, whose equations and outputs read other atoms in place of the keys of `substitutes`."""
    equations = [eqn.with_substitutes(substitutes) for eqn in program.equations]
    outputs = [substitutes.get(a, a) for a in program.outputs]
    return replace_program_fields(program, equations=equations, outputs=outputs)


def new_equation(primitive: Primitive, inputs: Iterable[Any], source: Source | None) -> Equation:
    """The equation `primitive(inputs)`, with new variables for its outputs."""
    atoms: list[Atom] = []
    for x in inputs:
        atom = x if type(x) is Var else literal_of(x)
        if atom is None:
            raise ArgumentError(
                f"{primitive.name}: operands of an equation must be variables, literals or "
                f"numbers; got {type_name(x)}"
            )
        atoms.append(atom)
    avals = tuple([atom.aval for atom in atoms])
    outs = primitive.out_avals(avals)
    return Equation(primitive, atoms, [Var(aval) for aval in outs], source)


def replace_equation(program: Program, old: Equation, new: Sequence[Equation]) -> Program:
    """`program` with the equations `new` in place of `old`.

    Outputs of `old` that `new` does not define are replaced by the outputs of its last equation.
    """
    if stray := [x for x in (old, *new) if not isinstance(x, Equation)]:
        raise ArgumentError(
            f"{program.name}: replace takes equations; got {type_name(stray[0])}",
            fix="An equation is program.equations[i], or eqn.replace(inputs=...) of one.",
        )
    position = next((i for i, eqn in enumerate(program.equations) if eqn is old), None)
    if position is None:
        raise ProgramError(
            f"{program.name}: the equation to replace must be one of the program's own; "
            f"got one of {old.primitive.name}"
        )
    defined = {v for eqn in new for v in eqn.outputs}
    replacements: dict[Atom, Atom] = {}
    if new and len(new[-1].outputs) == len(old.outputs):
        pairs = zip(old.outputs, new[-1].outputs, strict=True)
        replacements = {v: w for v, w in pairs if v not in defined}
    following = program.equations[position + 1 :]
    if replacements:
        following = [
            eqn.replace(inputs=[replacements.get(atom, atom) for atom in eqn.inputs])
            if any(atom in replacements for atom in eqn.inputs)
            else eqn
            for eqn in following
        ]
    edited = replace_program_fields(
        program,
        equations=[*program.equations[:position], *new, *following],
        outputs=[replacements.get(atom, atom) for atom in program.outputs],
    )
    check_program(edited)
    return edited


def replace_program_fields(program: Program, **changes: object) -> Program:
    """`program` with other values in some fields."""
    fields = ("name", "inputs", "equations", "outputs", "in_names", "trees", "captured")
    return Program(**{field: getattr(program, field) for field in fields} | changes)


def rewrite(program: Program, rule: Callable[..., Any]) -> Program:
    """`program` with the results of `rule` in place of its equations; see `Program.rewrite`."""
    if not callable(rule):
        raise ArgumentError(
            f"{program.name}: the rule of rewrite must be a function; got {type_name(rule)}",
            fix="It is called as rule(eqn, *args), and returns the new output or NotImplemented.",
        )
    rewritten: dict[Program, Program] = {}

    def rewrite_subprogram(subprogram: Program) -> Program:
        if subprogram not in rewritten:
            result = _rewrite_by_rule(subprogram, rule, rewrite_subprogram)
            rewritten[subprogram] = result
            if result.captured:
                raise ProgramError(
                    f"{subprogram.name}: a rule must not bring arrays into a program within an "
                    "equation; got "
                    + ", ".join(repr(v.aval) for v in result.inputs[len(subprogram.inputs) :]),
                    fix="Use numbers, or inline the calls first (program.inline()).",
                )
        return rewritten[subprogram]

    return _rewrite_by_rule(program, rule, rewrite_subprogram)


def _rewrite_by_rule(
    program: Program, rule: Callable[..., Any], rewrite_subprogram: Callable[[Program], Program]
) -> Program:
    def step(eqn: Equation, *args: Value) -> Values:
        outs = rule(eqn, *args)
        if outs is NotImplemented:
            primitive = map_primitive_programs(eqn.primitive, rewrite_subprogram)
            if primitive is eqn.primitive and all(
                aval_of(x) is atom.aval for x, atom in zip(args, eqn.inputs, strict=True)
            ):
                return bind_equation(eqn, *args)
            outs = primitive(*args)
        if outs is None and eqn.outputs:
            raise ProgramError(
                f"rewrite: the rule must return the output of {eqn.primitive.name} or NotImplemented; "
                "got None",
                fix="End the rule with `return NotImplemented`, which keeps the other equations.",
            )
        return _check_rule_outputs(eqn, tuple(eqn.primitive.as_list(outs)))

    def body(*args: Value) -> list[Value]:
        return interpret(program, args, step)

    result, captured = trace(body, program.in_avals, name=program.name, kind="rewrite")
    return replace_program_fields(
        program,
        inputs=result.inputs,
        equations=result.equations,
        outputs=result.outputs,
        captured=[*program.captured, *captured],
    )


def _check_rule_outputs(eqn: Equation, outs: tuple[Any, ...]) -> list[Any]:
    """The results of a rule for `eqn` as traced values; raises unless they have the types of its outputs."""
    if len(outs) != len(eqn.outputs):
        raise ProgramError(
            f"rewrite: the rule must return {len(eqn.outputs)} outputs for "
            f"{eqn.primitive.name}; got {len(outs)}"
        )
    checked = []
    for x, v in zip(outs, eqn.outputs, strict=True):
        x = to_tracer(cast_scalar(x, v.aval))
        if x.shape != v.aval.shape or x.dtype != v.aval.dtype:
            raise ProgramError(
                f"rewrite: the rule must return {v.aval!r} for {eqn.primitive.name}; got {aval_of(x)!r}"
            )
        checked.append(x)
    return checked


def to_tracer(x: object) -> Tracer:
    """`x` as a traced value of the current builder."""
    return current_builder.require().tracer(x)


def map_primitive_programs(primitive: Primitive, change: Callable[[Program], Program]) -> Primitive:
    """`primitive` with `change(sub)` in place of each program in its parameters."""
    if not subprograms(primitive):
        return primitive

    def map_value(value: object) -> object:
        if type(value) is Program:
            return change(value)
        if type(value) is tuple:
            return tuple([map_value(item) for item in value])
        return value

    params = {field: map_value(getattr(primitive, field)) for field in primitive.fields}
    return type(primitive)(**params)


def map_subprograms(program: Program, change: Callable[[Program], Program]) -> Program:
    """`program` with `change(sub)` in place of each sub-program; equal ones are changed once."""
    cached_change = cache(change)
    equations = []
    for eqn in program.equations:
        primitive = map_primitive_programs(eqn.primitive, cached_change)
        equations.append(eqn if primitive is eqn.primitive else eqn.replace(primitive=primitive))
    edited = replace_program_fields(program, equations=equations)
    check_program(edited)
    return edited


def inline(program: Program, names: Sequence[str]) -> Program:
    """`program` with the body of the called program in place of each primitive in `names`."""

    def rule(eqn: Equation, *args: Value) -> object:
        if eqn.primitive.name not in names:
            return NotImplemented
        # The equations of the body keep their own sources.
        current_builder.require().source = None
        return call_program_flat(inline(eqn.primitive.program, names), args)  # type: ignore[attr-defined]

    return rewrite(program, rule)
