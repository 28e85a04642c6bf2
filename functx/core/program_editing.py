"""Calls and edits of programs, rewrites by rules of users, and the values that rules capture."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import numpy as np
from typing_extensions import TypeIs, TypeVar

from functx.core import tree
from functx.core.backend import backend
from functx.core.binding import bind
from functx.core.caches import IdentityKey
from functx.core.captured_state import CapturedState
from functx.core.checking import check_program
from functx.core.errors import (
    ArgumentError,
    EscapedTracerError,
    ProgramError,
    TreeError,
    ValueRangeError,
    type_name,
)
from functx.core.functionalization import Functionalize, write_to_numpy_arrays
from functx.core.memory_layouts import noncontiguous_strides
from functx.core.primitive import Primitive
from functx.core.primitive_families import HasNewStrides, HasPrograms
from functx.core.program import Atom, Equation, Program, Var, subprograms
from functx.core.rewriting import Rewrite, apply, bind_equation, cached_rewrite, interpret
from functx.core.source_info import Source
from functx.core.strides import MemoryOrder, Strides, row_major_strides
from functx.core.tracer import Tracer, aval_of, current_builder, is_variable, literal_of
from functx.core.tracing import trace, trace_closed
from functx.core.types import ShapedArray, kind
from functx.core.typing import ArrayLike, IRValue, PyTree, Value, Values

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


HoistedT = TypeVar("HoistedT", bound=Primitive)


def map_equations(
    program: Program,
    step: Callable[..., Sequence[Any]],
    avals: Sequence[ShapedArray] | None = None,
) -> Program:
    """The program in which the outputs of each equation are those of `step(eqn, *operands)`.

    Its inputs have the types `avals`, by default those of `program`.
    """

    def body(*args: Value) -> list[Value]:
        return interpret(program, args, step)

    in_avals = program.in_avals if avals is None else avals
    return trace_closed(body, in_avals, name=program.name, in_names=program.in_names)


def substitute_atoms(program: Program, substitutes: Mapping[Atom, Atom]) -> Program:
    """`program`, whose equations and outputs read other atoms in place of the keys of `substitutes`."""
    equations = [eqn.with_substitutes(substitutes) for eqn in program.equations]
    outputs = [substitutes.get(a, a) for a in program.outputs]
    return replace_program_fields(program, equations=equations, outputs=outputs)


class Retype(Rewrite[Program]):
    """Rewrites a program for inputs of other types `avals`, by applying its primitives to them."""

    avals: tuple[ShapedArray, ...]

    def __call__(self, program: Program) -> Program:
        def step(eqn: Equation, *args: Value) -> Values:
            return eqn.primitive.as_list(eqn.primitive(*args))

        return map_equations(program, step, self.avals)


def call_program(program: Program, args: Sequence[ArrayLike], kwargs: dict[str, Any]) -> PyTree:
    """The outputs of `program`: inlined inside a trace, computed outside one.

    Takes and returns pytrees if the program has `trees`; otherwise takes one argument for each
    input and returns a list. Raises TreeError or ArgumentError if the arguments do not fit.
    """
    if program.trees is None:
        if kwargs:
            raise ArgumentError(
                f"{program.name}: a program takes positional arguments; got `{next(iter(kwargs))}`"
            )
        return call_program_flat(program, args)
    in_tree, out_tree = program.trees
    leaves, structure = tree.flatten_with_key_data((tuple(args), kwargs))
    if structure != in_tree:
        raise argument_structure_error(
            program.name, "the program was made for", in_tree, structure, program.input_names()
        )
    return tree.unflatten(out_tree, call_program_flat(program, leaves))


def call_program_flat(program: Program, args: Sequence[ArrayLike]) -> list[Value]:
    """The outputs of `program` on `args`, one for each input without a captured value."""
    count = len(program.inputs) - len(program.captured)
    if len(args) != count:
        raise ArgumentError(
            f"{program.name}: arguments must be {count}; got {len(args)}",
            fix=which_arguments(program, count),
        )
    args = [
        check_argument_type(x, v.aval, program, i)
        for i, (x, v) in enumerate(zip([*args, *program.captured], program.inputs, strict=True))
    ]
    program = retype_program(program, args)
    if not program.writes or current_builder.get() is not None:
        return apply(None, program, args)
    pure = cached_rewrite(Functionalize(tuple(map(noncontiguous_strides, args))), program)
    outs = apply(None, pure.program, args)
    count = len(program.outputs)
    new = dict(zip(pure.written, outs[count:], strict=True))
    write_to_numpy_arrays(args, new)
    for i, x in new.items():
        state = args[i]
        if isinstance(state, CapturedState):
            state.store(x.compute() if is_variable(x) else x)  # type: ignore[attr-defined]
    return outs[:count]


def argument_structure_error(
    name: str, made: str, in_tree: object, given: Any, names: Sequence[str] | None
) -> TreeError:
    """The error for a call whose arguments have another structure than `in_tree`.

    `names` are those of the inputs. It says which arguments are missing or unknown, if some are.
    """
    problem = f"{name}: arguments must have the structure that {made}; got "
    if isinstance(in_tree, tree.TreeDef) and names:
        args, kwargs = in_tree.children()
        starts = [0, *accumulate([child.num_leaves for child in args.children()])]
        known = [
            re.split(r"\W", names[start], maxsplit=1)[0] if child.num_leaves else f"number {i}"
            for i, (start, child) in enumerate(zip(starts, args.children(), strict=False))
        ]
        required = [*known, *kwargs.node_data()[1]]
        given_args, given_kwargs = given.children()
        count = len(given_args.children())
        by_name = given_kwargs.node_data()[1]
        missing = [key for key in required if key not in known[:count] and key not in by_name]
        unknown = [key for key in by_name if key not in required]
        by_position = [key for key in by_name if key in known]
        too_many = count > len(known)
        if missing or unknown or by_position or too_many:
            got = [f"no {joined_names(missing)}"] * bool(missing)
            got += [f"also {joined_names(unknown)}"] * bool(unknown)
            got += [f"{count} arguments by position"] * too_many
            got += [f"{joined_names(by_position)} by name"] * bool(by_position)
            return TreeError(
                f"{name}: the arguments must be {joined_names(required) or 'none'}, those that {made}; got "
                + " and ".join(got),
                fix="Pass it by position, as then." if by_position else "",
            )
    difference = tree.describe_difference(in_tree, given)
    return TreeError(problem + difference, *tree.full_structures(in_tree, given))


def which_arguments(program: Program, count: int) -> str:
    """A sentence with the names of the first `count` inputs, if these have names, and of captured ones."""
    names = program.input_names()
    if names is None:
        return ""
    own, captured = names[:count], names[count : len(program.inputs)]
    cure = f"Pass {joined_names(own)}." if own else "Pass no arguments."
    return f"{cure} The program supplies {joined_names(captured)}." if captured else cure


def joined_names(names: Sequence[str]) -> str:
    """Names of inputs for a message, at most the first eight."""
    return ", ".join([f"`{name}`" for name in names[:8]] + ["..."] * (len(names) > 8))


def apply_program(program: Program, args: Sequence[Any]) -> list[Value]:
    """The outputs of `program` on `args`, whose weak types may differ from those of the inputs."""
    return apply(None, retype_program(program, args), args)


def retype_program(program: Program, args: Sequence[ArrayLike]) -> Program:
    """`program` rewritten for the types of `args`."""
    avals = tuple([aval_of(x) for x in args])
    if avals == tuple(program.in_avals):
        return program
    return cached_rewrite(Retype(avals), program)  # type: ignore[no-any-return]


def check_argument_type(x: ArrayLike, aval: ShapedArray, program: Program, i: int) -> ArrayLike:
    """`x` as input `i` of `program`: a Python number is cast to `aval`, an array must have its type."""
    x = cast_scalar(x, aval)
    actual = aval_of(x)
    if actual.shape != aval.shape or actual.dtype != aval.dtype:
        names = program.input_names()
        name = f"{i}" if names is None else f"`{names[i]}`"
        raise ArgumentError(
            f"{program.name}: argument {name} must be {aval!r}; got {type_name(x)}",
            fix="Make a program for arguments of this type, or convert the argument.",
        )
    return x


def cast_scalar(x: ArrayLike, aval: ShapedArray) -> Any:
    """The Python number `x` as a scalar of `aval` if `aval` is a scalar of its kind or a wider one; else `x`."""
    rank = _SCALAR_RANKS[kind(aval.dtype)]
    if type(x) not in _SCALAR_TYPES[: rank + 1] or aval.shape:
        return x
    try:
        with np.errstate(over="ignore"):
            number = aval.dtype.type(x)
    except OverflowError:
        raise ValueRangeError(f"a number must fit the dtype of {aval!r}; got {x}") from None
    return _SCALAR_TYPES[rank](x) if aval.weak_type else number


_SCALAR_TYPES: tuple[type, ...] = (bool, int, float, complex)
_SCALAR_RANKS = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}


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


class CapturedValue(IdentityKey):
    """A captured value, compared by identity and printed as its aval."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(aval_of(self.value))


class Captured(HasNewStrides, abstract=True):
    """An operation without operands whose output is a captured array or traced value, held in `box`."""

    box: CapturedValue
    differentiable = False
    has_captures = True
    name = "captured"

    @property
    def memory_order(self) -> MemoryOrder:  # type: ignore[override]
        value = self.box.value
        if isinstance(value, np.ndarray) and noncontiguous_strides(value):
            return MemoryOrder.REARRANGED
        return MemoryOrder.ROW_MAJOR

    def new_strides(
        self, avals: Sequence[ShapedArray], strides: Sequence[Strides], shape: tuple[int, ...]
    ) -> Strides:
        value: Any = self.box.value
        return noncontiguous_strides(value) or row_major_strides(shape)

    def abstract_eval(self) -> ShapedArray:
        return aval_of(self.box.value)

    def lower(self, ctx: LoweringContext) -> IRValue:
        # Reached only in sub-programs of a primitive that is not a `HasPrograms`.
        value = None if type(self.box.value) is Tracer else backend.concrete_or_none(self.box.value)
        if value is None:
            raise EscapedTracerError(
                "a rule that captures a traced value must not be inside of a primitive that cannot "
                f"pass it on; got {self.box!r}",
                fix="Pass the value as an argument, or derive the primitive from `HasPrograms`.",
            )
        return ctx.dense(np.asarray(value, self.abstract_eval().dtype))


def close_over(program: Program, values: Sequence[ArrayLike]) -> Program:
    """`program` with `captured` equations in place of its last inputs, which stand for `values`."""
    count = len(program.inputs) - len(values)
    captured = [
        Equation(Captured(CapturedValue(x)), [], [v], None)
        for x, v in zip(values, program.inputs[count:], strict=True)
    ]
    equations = [*captured, *program.equations]
    return replace_program_fields(program, inputs=program.inputs[:count], equations=equations)


def split_captured(program: Program) -> tuple[dict[Var, Any], list[Equation]]:
    """The values of the `captured` equations by their variables, and all other equations."""
    captured: dict[Var, object] = {}
    equations = []
    for eqn in program.equations:
        if type(eqn.primitive) is Captured:
            captured[eqn.outputs[0]] = eqn.primitive.box.value
        else:
            equations.append(eqn)
    return captured, equations


def hoist_captures(program: Program) -> tuple[Program, list[Any]]:
    """`program` with inputs in place of its `captured` equations, at any depth; and their values.

    The new inputs are the last. A primitive with sub-programs that is not a `HasPrograms` keeps
    their captured values.
    """
    if not program.has_captures:
        return program, []
    hoisted: dict[Captured, Var] = {}
    equations, outputs = _CAPTURES.hoist_into(program, hoisted)
    inputs = [*program.inputs, *hoisted.values()]
    values = [captured.box.value for captured in hoisted]
    return replace_program_fields(
        program, inputs=inputs, equations=equations, outputs=outputs
    ), values


def bind_with_captures(primitive: HasPrograms, args: Sequence[Any]) -> list[Value]:
    """`primitive(*args)`, with the captured values of its sub-programs as further operands."""
    builder = current_builder.get()
    if builder is None:
        return bind(primitive, args)
    programs, captured = _CAPTURES.hoist_from_subprograms(primitive)
    extras = [[builder.tracer(each.box.value) for each in values] for values in captured]
    return bind(*primitive.hoist_constants(programs, extras, args))


class Hoisting(NamedTuple, Generic[HoistedT]):
    """The making of inputs from equations without operands, whose operations satisfy `chosen`.

    `holds` says whether such equations are in the sub-programs of an operation.
    """

    chosen: Callable[[Primitive], TypeIs[HoistedT]]
    holds: Callable[[Primitive], bool]

    def hoist_into(
        self, program: Program, hoisted: dict[HoistedT, Var]
    ) -> tuple[list[Equation], list[Atom]]:
        """The other equations and the outputs of `program`; the variables are added to `hoisted`."""
        env: dict[Atom, Atom] = {}
        equations = []
        for eqn in program.equations:
            primitive = eqn.primitive
            inputs: Sequence[Atom] = [env.get(a, a) for a in eqn.inputs]
            if self.chosen(primitive):
                (out,) = eqn.outputs
                env[out] = hoisted.setdefault(primitive, Var(out.aval))
                continue
            if isinstance(primitive, HasPrograms) and self.holds(primitive):
                programs, operations = self.hoist_from_subprograms(primitive)
                extras = [
                    [
                        hoisted.setdefault(each, Var(v.aval))
                        for each, v in zip(own, p.inputs, strict=False)
                    ]
                    for own, p in zip(operations, programs, strict=True)
                ]
                primitive, inputs = primitive.hoist_constants(programs, extras, inputs)
            equations.append(eqn.replace(primitive=primitive, inputs=list(inputs)))
        return equations, [env.get(a, a) for a in program.outputs]

    def hoist_from_subprograms(
        self, primitive: Primitive
    ) -> tuple[list[Program], list[list[HoistedT]]]:
        """The sub-programs of `primitive` with the hoisted values as first inputs; their operations."""
        programs, operations = [], []
        for subprogram in subprograms(primitive):
            hoisted: dict[HoistedT, Var] = {}
            equations, outputs = self.hoist_into(subprogram, hoisted)
            inputs = [*hoisted.values(), *subprogram.inputs]
            programs.append(Program(subprogram.name, inputs, equations, outputs))
            operations.append(list(hoisted))
        return programs, operations


def _is_captured(primitive: Primitive) -> TypeIs[Captured]:
    return type(primitive) is Captured


_CAPTURES = Hoisting(_is_captured, lambda primitive: primitive.has_captures)
