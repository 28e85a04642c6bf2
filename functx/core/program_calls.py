"""Calls of programs: arguments are checked, cast and flattened, and programs rewritten for their types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from functx.core import tree
from functx.core.captured_state import CapturedState
from functx.core.errors import ArgumentError, TreeError, ValueRangeError, type_name
from functx.core.functionalization import Functionalize, write_to_numpy_arrays
from functx.core.memory_layouts import noncontiguous_strides
from functx.core.program import Equation, Program
from functx.core.rewriting import Rewrite, apply, cached_rewrite
from functx.core.tracer import aval_of, current_builder, is_variable
from functx.core.tracing import map_equations
from functx.core.types import ShapedArray, kind
from functx.core.typing import ArrayLike, PyTree, Value, Values

if TYPE_CHECKING:
    pass


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
