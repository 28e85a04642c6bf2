"""What branches and loops share: their traced bodies, and which values in them vary."""

from __future__ import annotations

import dis
from collections.abc import Callable, Sequence
from contextlib import suppress
from os.path import basename
from typing import Any

import numpy as np

from functx.core import tree
from functx.core.arrays import as_ndarray
from functx.core.avals import ShapedArray
from functx.core.dtypes import promote_types
from functx.core.editing import replace_program_fields
from functx.core.errors import ArgumentError, CarryTypeError, DTypeError, ShapeError, type_name
from functx.core.primitive import Primitive
from functx.core.program import Atom, Program, pad_input_names
from functx.core.provenance import Source, source_line, unwrap_function
from functx.core.rewriting import apply
from functx.core.tracing import (
    Builder,
    LinearBuilder,
    aval_of,
    backend,
    current_builder,
    trace_closed,
)
from functx.ops.conversion import convert_element_type
from functx.ops.operands import PYTHON_SCALARS, literal
from functx.transforms.calls import (
    TracedFunction,
    capture_key,
    copy_if_aliased,
    function_name,
    key_path_strings,
    write_back_arguments,
)
from functx.transforms.parts import active_outputs, with_io


def with_captures_first(traced: TracedFunction, fun: Any = None) -> Program:
    """The program of a traced call with what it captured as its first inputs.

    They take the names of the variables around `fun` that hold them, if it is given.
    """
    program = traced.program
    own = len(program.inputs) - len(traced.captured)
    outer = closure_variable_names(fun, traced.captured)
    in_names = program.in_names
    if outer and in_names is not None:

        def names() -> list[str]:
            given = pad_input_names(in_names(), len(program.inputs))
            return [*given[:own], *[a or b for a, b in zip(outer, given[own:], strict=True)]]

        program = replace_program_fields(program, in_names=names)
    return with_io(program, [*program.inputs[own:], *program.inputs[:own]], program.outputs)


def write_back_captures(around: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
    """The results of a loop behind the first of `outs`, which are written to the arrays `around`."""
    if not around:
        return list(outs)
    results = copy_if_aliased(outs[len(around) :], around)
    write_back_arguments(around, dict(zip(range(len(around)), outs, strict=False)))
    return results


def closure_variable_names(fun: Any, values: Sequence[Any]) -> list[str]:
    """For each of `values`, the variable around `fun` that holds it; empty where there is none."""
    fun = unwrap_function(fun)
    known = {}
    for name, cell in zip(
        getattr(getattr(fun, "__code__", None), "co_freevars", ()),
        getattr(fun, "__closure__", None) or (),
        strict=False,
    ):
        with suppress(ValueError):
            known[capture_key(cell.cell_contents)] = name
    return [known.get(capture_key(x), "") for x in values] if known else []


def trace_until_carry_types_settle(
    trace_with: Callable[[Sequence[ShapedArray]], TracedFunction],
    avals: Sequence[ShapedArray],
    carry_tree: Any,
    carry_of: Callable[[Any], Any],
    what: str,
    fun: Any = None,
) -> tuple[TracedFunction, list[ShapedArray]]:
    """A loop body traced with carries of types that it returns, and those types.

    A weak type gives way to the one that the body makes of it, until none changes.
    `carry_of` picks the structure of the carry from that of the result. Errors name the
    line at which `fun` returns what they are about, or makes it.
    """
    avals = list(avals)
    while True:
        traced = trace_with(avals)
        out_tree = carry_of(traced.out_tree)
        if out_tree != carry_tree:
            raise carry_structure_error(what, carry_tree, out_tree, fun)
        outs = traced.out_avals[: len(avals)]
        settled = [common_aval((a, out), a) for a, out in zip(avals, outs, strict=True)]
        if None in settled:
            returned = return_source(fun)
            sources = [
                output_source(traced.program, atom) or returned for atom in traced.program.outputs
            ]
            bad: list[Any] = [
                row
                for *row, fits in zip(
                    key_path_strings(carry_tree, avals), avals, outs, sources, settled, strict=False
                )
                if fits is None
            ]
            raise CarryTypeError(
                f"{what}: the body must return a carry of the types that it takes; got "
                + " and ".join(
                    [f"carry{path}: {out!r} for {aval!r}" for path, aval, out, _ in bad]
                ),
                *[
                    f"carry{path} made at {source_line(source)}"
                    for path, _, _, source in bad
                    if source is not None
                ],
                fix="Convert it in the body with astype, or begin with a carry of that type.",
            )
        if settled == avals:
            return traced, avals
        avals = settled  # type: ignore[assignment]


def carry_structure_error(what: str, expected: Any, given: Any, fun: Any) -> CarryTypeError:
    """The error for a body that returns a carry of the structure `given`."""
    before, after = key_path_strings(expected), key_path_strings(given)
    missing = [f"carry{path}" for path in before if path not in after]
    new = [f"carry{path}" for path in after if path not in before]
    returned = return_source(fun)
    return CarryTypeError(
        f"{what}: the body must return a carry of the structure that it takes; "
        f"got {tree.describe_difference(expected, given)}",
        *tree.full_structures(expected, given),
        *([f"missing: {', '.join(missing)}"] if missing else []),
        *([f"new: {', '.join(new)}"] if new else []),
        *([f"returned at {source_line(returned)}"] if returned else []),
        fix="Begin with a carry of the structure that the body returns, or return that of the carry.",
    )


def return_source(fun: Any) -> Source | None:
    """Where `fun` last returns, if it is a function of Python's."""
    fun = unwrap_function(fun)
    code = getattr(fun, "__code__", None)
    if code is None:
        return None
    returns = [i.offset for i in dis.get_instructions(code) if i.opname.startswith("RETURN_")]
    return code, returns[-1] if returns else 0


def output_source(program: Program, atom: Atom) -> Source | None:
    """Where in the user's code an output of `program` was made; None for an input or a number."""
    return next((eqn.source for eqn in program.equations if atom in eqn.outputs), None)


def common_aval(avals: Sequence[ShapedArray], *fixed: ShapedArray) -> ShapedArray | None:
    """The one type that values of `avals` take on, weak ones giving way; None without one.

    Those of `fixed` that are not weak must have that type already.
    """
    first = avals[0]
    if any(a.shape != first.shape for a in avals):
        return None
    found = promote_types(tuple([(a.dtype, a.weak_type) for a in avals]))
    if found is None or any(a.dtype != found[0] for a in (fixed or avals) if not a.weak_type):
        return None
    dtype, weak = found
    if any(a.dtype != dtype and not a.weak_type for a in avals):
        return None
    # A carry that is not weak stays so when the body returns a weak one.
    return ShapedArray(first.shape, dtype, weak)


def cast_outputs(program: Program, avals: Sequence[ShapedArray]) -> Program:
    """`program` with its first outputs converted to the dtypes of `avals`."""
    if all(atom.aval.dtype == a.dtype for atom, a in zip(program.outputs, avals, strict=False)):
        return program

    def body(*args: Any) -> list[Any]:
        outs = apply(None, program, args)
        return [cast_to(x, a) for x, a in zip(outs, avals, strict=False)] + outs[len(avals) :]

    return trace_closed(body, program.in_avals, name=program.name)


def cast_to(x: Any, aval: ShapedArray) -> Any:
    """`x` in the dtype of `aval`, which it can take on."""
    if aval_of(x).dtype == aval.dtype:
        return x
    if type(x) in PYTHON_SCALARS:
        return literal(x, aval.dtype)
    return convert_element_type(x, aval.dtype)


def cast_to_strong(x: Any, aval: ShapedArray) -> Any:
    """`x` in the dtype of `aval`, which it can take on, and not weak."""
    if type(x) in PYTHON_SCALARS:
        return literal(x, aval.dtype)
    given = aval_of(x)
    if given.dtype == aval.dtype and not given.weak_type:
        return x
    return convert_element_type(x, aval.dtype)


def check_operands(
    primitive: Primitive, given: Sequence[ShapedArray], expected: Sequence[ShapedArray]
) -> None:
    """Raise unless operands have the shapes and dtypes that the programs of `primitive` take."""
    same_count = len(given) == len(expected)
    if same_count and all(
        a is b or (a.shape == b.shape and a.dtype == b.dtype)
        for a, b in zip(given, expected, strict=True)
    ):
        return
    dtypes = same_count and any(a.dtype != b.dtype for a, b in zip(given, expected, strict=True))
    raise (DTypeError if dtypes else ShapeError)(
        f"{primitive.name}: operands must be {list(expected)}, as its programs take them; "
        f"got {list(given)}"
    )


def carry_dependence(
    program: Program, start: int, count: int, flags: Sequence[bool]
) -> tuple[tuple[bool, ...], list[bool]]:
    """`flags` with the carries added that come to vary in a loop, and the results that do.

    `program` takes its `count` carries from input `start` on, and returns them first.
    """
    found = list(flags)
    while True:
        outs = active_outputs(program, found)
        grown = [a or b for a, b in zip(found[start : start + count], outs, strict=False)]
        if grown == found[start : start + count]:
            # A carry keeps a variation that it begins with, for there may be no steps.
            return tuple(found), [*grown, *outs[count:]]
        found[start : start + count] = grown


def is_linearizing() -> bool:
    """Whether equations on tangents must be linear in them, since they will be transposed."""
    builder = current_builder.get()
    if type(builder) is LinearBuilder:
        return True
    # What a derivative rule traces is of the rule.
    while type(builder) is Builder:
        builder = builder.parent
    return builder is not None and type(builder) is not LinearBuilder and builder.is_linear


def inline_or_run(program: Program, args: Sequence[Any], *others: Any) -> list[Any]:
    """The outputs of `program`: inlined in a trace, outside one run like a single operation.

    That gives an `ndarray` each, unless a JAX array is among `args` or `others`.
    """
    outs = apply(None, program, args)
    if current_builder.get() is not None:
        return outs
    if any(backend.aval_of_jax_array(x) is not None for x in (*args, *others)):
        return outs
    return [as_ndarray(to_numpy(out), out.weak_type) for out in outs]


def to_numpy(x: Any) -> Any:
    """`x` as a new NumPy array; `x` itself while JAX is tracing it, for it has no value then."""
    try:
        return np.array(x)
    except TypeError:
        return x


def describe_function(fun: Any) -> str:
    """`double (train.py:12)`: a function by its name and where it is defined."""
    code = getattr(fun, "__code__", None)
    where = "" if code is None else f" ({basename(code.co_filename)}:{code.co_firstlineno})"
    return function_name(fun) + where


def body_name(kind: str, fun: Any) -> str:
    """`scan(step)`: a loop or branch as messages name it."""
    return f"{kind}({function_name(fun)})"


def check_callables(what: str, **functions: Any) -> None:
    """Raise ArgumentError unless each of `functions`, which `what` takes, can be called."""
    for name, fun in functions.items():
        if not callable(fun):
            raise ArgumentError(f"{what}: `{name}` must be a function; got {type_name(fun)}")
