"""The tracing of the functions that loops and branches run: captures, types of carries, checks."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from os.path import basename
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.backend import backend
from functx.core.builder import Builder, LinearBuilder
from functx.core.errors import ArgumentError, BranchTypeError, CarryTypeError, type_name
from functx.core.program import Atom, Program, Var, pad_input_names
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import Rewrite, apply
from functx.core.source_info import Source, source_line, unwrap_function
from functx.core.tracer import as_ndarray, aval_of, current_builder
from functx.core.tracing import trace_closed
from functx.core.tree import TreeDef
from functx.core.types import ShapedArray, promote_types
from functx.core.typing import ArrayLike, Avals, Flags, Function, PyTree, Value, Values
from functx.ops.operands import PYTHON_SCALARS, literal
from functx.ops.progress import ShowProgress
from functx.transforms.aliasing import (
    MemoryLayout,
    argument_strides,
    capture_key,
    check_captures_not_aliased,
    copy_if_aliased,
    trace_with_shared_captures,
    write_back_arguments,
    written_shared_buffers,
)
from functx.transforms.argument_names import function_name, key_path_strings
from functx.transforms.dce import active_outputs, fixed_point, with_io
from functx.transforms.tracing_api import TracedFunction, avals_of, trace_function


def with_captures_first(traced: TracedFunction, fun: Function | None = None) -> Program:
    """The program of a traced function with its captured values as the first inputs.

    The inputs take the names of the closure variables of `fun` that hold them, if it is given.
    """
    program = traced.program
    # `names` must not hold the program that holds it.
    count = len(program.inputs)
    num_own = count - len(traced.captured)
    outer_names = closure_variable_names(fun, traced.captured)
    in_names = program.in_names
    if outer_names and in_names is not None:

        def names() -> list[str]:
            known = pad_input_names(in_names(), count)
            return [
                *known[:num_own],
                *[a or b for a, b in zip(outer_names, known[num_own:], strict=True)],
            ]

        program = replace_program_fields(program, in_names=names)
    return with_io(program, [*program.inputs[num_own:], *program.inputs[:num_own]], program.outputs)


class LoopBody(NamedTuple):
    """The body of a loop: its program, the values of its consts, and the initial carry.

    The carry begins with the captured arrays that the body writes to, `written`.
    """

    program: Program
    consts: list[Value]
    written: list[Value]
    start: list[ArrayLike]

    @staticmethod
    def of(
        traced: TracedFunction, leaves: Values, carry: Avals, fun: Function | None = None
    ) -> LoopBody:
        """The body of a traced function, with `leaves` as initial carry of the types `carry`.

        The consts take the names of the closure variables of `fun`, if it is given.
        """
        traced, written = traced.with_writes_as_carries()
        types = [*[aval_of(x) for x in written], *carry]
        program = cast_outputs(with_captures_first(traced, fun), types)
        start = [*written, *[cast_to(x, a) for x, a in zip(leaves, carry, strict=True)]]
        return LoopBody(
            program, traced.captured[: len(traced.captured) - len(written)], written, start
        )

    def results(self, outs: Values) -> list[Value]:
        """The results of the loop, after its first outputs are written back to arrays."""
        count = len(self.written)
        if not count:
            return list(outs)
        results = copy_if_aliased(outs[count:], self.written)
        write_back_arguments(self.written, dict(zip(range(count), outs, strict=False)))
        return results


def closure_variable_names(fun: Function | None, values: Values) -> list[str]:
    """For each of `values`, the closure variable of `fun` that holds it, or an empty string."""
    fun = unwrap_function(fun)
    name_of = {}
    for name, cell in zip(
        getattr(getattr(fun, "__code__", None), "co_freevars", ()),
        getattr(fun, "__closure__", None) or (),
        strict=False,
    ):
        with suppress(ValueError):
            name_of[capture_key(cell.cell_contents)] = name
    return [name_of.get(capture_key(x), "") for x in values] if name_of else []


def trace_until_carry_types_settle(
    trace_with: Callable[[Avals], TracedFunction],
    avals: Avals,
    carry_tree: tree.TreeDef,
    carry_of: Callable[[Any], Any],
    caller: str,
    fun: Function | None = None,
) -> tuple[TracedFunction, list[ShapedArray]]:
    """A loop body traced with a carry of the types that it returns, and those types.

    Weak types are promoted to those that the body returns, until none changes. `carry_of`
    selects the structure of the carry from that of the result. Errors name the line at which
    `fun` computes or returns the carry.
    """

    def step(avals: list[ShapedArray]) -> tuple[list[ShapedArray], TracedFunction]:
        traced = trace_with(avals)
        out_tree = carry_of(traced.out_tree)
        if out_tree != carry_tree:
            raise carry_structure_error(caller, carry_tree, out_tree, fun)
        outs = traced.out_avals[: len(avals)]
        promoted = [common_aval((a, out), a) for a, out in zip(avals, outs, strict=True)]
        settled = [aval for aval in promoted if aval is not None]
        if len(settled) < len(promoted):
            raise _carry_type_error(caller, carry_tree, avals, promoted, traced, fun)
        return settled, traced

    carry, traced = fixed_point(list(avals), step)
    return traced, carry


def _carry_type_error(
    caller: str,
    carry_tree: tree.TreeDef,
    avals: Avals,
    promoted: Sequence[ShapedArray | None],
    traced: TracedFunction,
    fun: Function | None,
) -> CarryTypeError:
    """The error for carries of `avals` without a common type, None in `promoted`."""
    returned = return_source(fun)
    mismatches = [
        (path, aval, out, output_source(traced.program, atom) or returned)
        for path, aval, common, out, atom in zip(
            key_path_strings(carry_tree, avals),
            avals,
            promoted,
            traced.out_avals,
            traced.program.outputs,
            strict=False,
        )
        if common is None
    ]
    return CarryTypeError(
        f"{caller}: the body must return a carry of the types that it takes; got "
        + " and ".join([f"carry{path}: {out!r} for {aval!r}" for path, aval, out, _ in mismatches]),
        *[
            f"carry{path} made at {source_line(source)}"
            for path, _, _, source in mismatches
            if source is not None
        ],
        fix="Convert it in the body with astype, or begin with a carry of that type.",
    )


def carry_structure_error(
    caller: str, expected: TreeDef, actual: TreeDef, fun: Function | None
) -> CarryTypeError:
    """The error for a body that returns a carry of another structure than it takes."""
    before, after = key_path_strings(expected), key_path_strings(actual)
    missing = [f"carry{path}" for path in before if path not in after]
    new = [f"carry{path}" for path in after if path not in before]
    returned = return_source(fun)
    return CarryTypeError(
        f"{caller}: the body must return a carry of the structure that it takes; "
        f"got {tree.describe_difference(expected, actual)}",
        *tree.full_structures(expected, actual),
        *([f"missing: {', '.join(missing)}"] if missing else []),
        *([f"new: {', '.join(new)}"] if new else []),
        *([f"returned at {source_line(returned)}"] if returned else []),
        fix="Begin with a carry of the structure that the body returns, or return that of the carry.",
    )


def return_source(fun: Function | None) -> Source | None:
    """Where `fun` last returns, if it is a Python function."""
    fun = unwrap_function(fun)
    code = getattr(fun, "__code__", None)
    if code is None:
        return None
    returns = [i.offset for i in dis.get_instructions(code) if i.opname.startswith("RETURN_")]
    return code, returns[-1] if returns else 0


def output_source(program: Program, atom: Atom) -> Source | None:
    """Where the user's code computes an output of `program`; None for inputs and literals."""
    eqn = program.def_use.producers.get(atom)
    return None if eqn is None else eqn.source


def common_aval(avals: Avals, *fixed: ShapedArray) -> ShapedArray | None:
    """The type that values of `avals` are promoted to, None if there is none.

    Only weak types are promoted: those of `fixed` that are not weak must have that type already.
    """
    first = avals[0]
    if any(a.shape != first.shape for a in avals):
        return None
    promoted = promote_types(tuple([(a.dtype, a.weak_type) for a in avals]))
    if promoted is None or any(a.dtype != promoted[0] for a in (fixed or avals) if not a.weak_type):
        return None
    dtype, weak = promoted
    if any(a.dtype != dtype and not a.weak_type for a in avals):
        return None
    # A carry that is not weak stays so if the body returns a weak one.
    return ShapedArray(first.shape, dtype, weak)


def cast_outputs(program: Program, avals: Avals) -> Program:
    """`program` with its first outputs converted to the dtypes of `avals`."""
    if all(atom.aval.dtype == a.dtype for atom, a in zip(program.outputs, avals, strict=False)):
        return program

    def body(*args: Value) -> list[Value]:
        outs = apply(None, program, args)
        return [cast_to(x, a) for x, a in zip(outs, avals, strict=False)] + outs[len(avals) :]

    return trace_closed(body, program.in_avals, name=program.name)


def cast_to(x: ArrayLike, aval: ShapedArray) -> Any:
    """`x` converted to the dtype of `aval`, to which it can be promoted."""
    if aval_of(x).dtype == aval.dtype:
        return x
    if type(x) in PYTHON_SCALARS:
        return literal(x, aval.dtype)
    return ops.convert_element_type(x, aval.dtype)


def cast_to_strong(x: ArrayLike, aval: ShapedArray) -> Any:
    """`x` converted to the dtype of `aval`, to which it can be promoted, without a weak type."""
    if type(x) in PYTHON_SCALARS:
        return literal(x, aval.dtype)
    own = aval_of(x)
    if own.dtype == aval.dtype and not own.weak_type:
        return x
    return ops.convert_element_type(x, aval.dtype)


def carry_dependence(
    program: Program, start: int, count: int, mask: Flags
) -> tuple[tuple[bool, ...], list[bool]]:
    """The inputs of a loop body that vary when those of `mask` do before the loop; the outputs.

    `program` takes its `count` carries from input `start` on, and returns them first.
    """
    end = start + count

    def step(varying: list[bool]) -> tuple[list[bool], list[bool]]:
        outs = active_outputs(program, varying)
        carry = [a or b for a, b in zip(varying[start:end], outs, strict=False)]
        return [*varying[:start], *carry, *varying[end:]], outs

    varying, outs = fixed_point(list(mask), step)
    # A carry varies if its initial value does: there may be no steps.
    return tuple(varying), [*varying[start:end], *outs[count:]]


def is_linearizing() -> bool:
    """Whether equations on tangents must be linear in them, because they will be transposed."""
    builder = current_builder.get()
    if type(builder) is LinearBuilder:
        return True
    # Builders of programs nested in a derivative rule belong to the rule.
    while type(builder) is Builder:
        builder = builder.parent
    return builder is not None and type(builder) is not LinearBuilder and builder.is_linear


def inline_or_run(program: Program, args: Values, *others: ArrayLike) -> list[Value]:
    """The outputs of `program`: inlined while tracing, else computed like a single operation.

    Computed outputs are `ndarray`s, unless a JAX array is among `args` or `others`.
    """
    outs = apply(None, program, args)
    if current_builder.get() is not None:
        return outs
    if any(backend.aval_of_jax_array(x) is not None for x in (*args, *others)):
        return outs
    return [as_ndarray(to_numpy(out), out.weak_type) for out in outs]


def to_numpy(x: ArrayLike) -> ArrayLike:
    """`x` as a new NumPy array; `x` itself while JAX traces it, for then it has no value."""
    try:
        return np.array(x)
    except TypeError:
        return x


def describe_function(fun: Function) -> str:
    """`double (train.py:12)`: the name of a function and where it is defined."""
    code = getattr(fun, "__code__", None)
    where = "" if code is None else f" ({basename(code.co_filename)}:{code.co_firstlineno})"
    return function_name(fun) + where


def body_name(kind: str, fun: Function) -> str:
    """`scan(step)`: a loop or branch as messages name it."""
    return f"{kind}({function_name(fun)})"


def check_callables(caller: str, **functions: object) -> None:
    """Raise ArgumentError unless each of the `functions`, arguments of `caller`, is callable."""
    for name, fun in functions.items():
        if not callable(fun):
            raise ArgumentError(f"{caller}: `{name}` must be a function; got {type_name(fun)}")


class TracedBranches(NamedTuple):
    """The programs of functions, adapted to take and return values of common types.

    They take the operands, then the values `captured` by any. After the results, of the structure
    `out_tree`, they return new values of the inputs at `written`, which any of them writes to.
    """

    programs: tuple[Program, ...]
    captured: list[Value]
    out_tree: tree.TreeDef
    written: list[int]


def trace_branches(
    branches: dict[str, Callable[..., Any]], operands: PyTree, caller: str
) -> TracedBranches:
    """The functions `branches` on `operands`, traced."""
    leaves, in_tree = tree.flatten_with_key_data((operands, {}))
    functions = list(branches.values())

    def trace(memory: MemoryLayout) -> list[TracedFunction]:
        return [
            trace_function(
                f,
                in_tree,
                avals_of(leaves, caller, f, in_tree),
                caller,
                memory=memory,
                carries_writes=True,
            )
            for f in functions
        ]

    traced = trace_with_shared_captures(trace)
    written_operands = {i for each in traced for i in each.written if i < len(leaves)}
    layouts = argument_strides(leaves) if any(each.layout_dependent for each in traced) else []
    blocks = written_shared_buffers(leaves, written_operands) if written_operands else ()
    if blocks or any(layouts):
        # A branch depends on the memory layout of the operands, or writes to memory that they share.
        memory = MemoryLayout(blocks, strides=tuple(layouts))
        traced = trace_with_shared_captures(trace, memory)
    common_avals = _common_out_avals(traced, caller, branches)
    programs, captured, written = _unify_captures(traced, len(leaves))
    if written and leaves:
        check_captures_not_aliased(leaves, captured, written)
    cast = tuple([cast_outputs(p, common_avals) for p in programs])
    return TracedBranches(cast, captured, traced[0].out_tree, written)


def _common_out_avals(
    traced: Sequence[TracedFunction], caller: str, branches: dict[str, Function]
) -> list[ShapedArray]:
    """The types to which the outputs of all branches can be cast; raises where there are none."""
    out_tree = traced[0].out_tree
    first, *others = branches
    for name, each in zip(others, traced[1:], strict=True):
        if each.out_tree != out_tree:
            raise _structure_mismatch_error(
                caller, (first, name), (out_tree, each.out_tree), branches
            )
    by_output = list(zip(*[each.out_avals for each in traced], strict=True))
    common_avals: list[Any] = [common_aval(avals) for avals in by_output]
    if None in common_avals:
        raise BranchTypeError(
            f"{caller}: all branches must return values of one type; got "
            + "; ".join(
                f"output{path}: " + " and ".join(_describe_types(branches, avals))
                for path, avals, aval in zip(
                    key_path_strings(out_tree, traced[0].out_avals),
                    by_output,
                    common_avals,
                    strict=True,
                )
                if aval is None
            ),
            *_describe_branches(branches),
            fix="Convert the result of one branch with astype, or broadcast it.",
        )
    return common_avals


def _describe_types(branches: Iterable[str], avals: Avals) -> list[str]:
    """`f32[] of true_fun`, for each type that branches return."""
    by_type: dict[ShapedArray, list[str]] = {}
    for name, aval in zip(branches, avals, strict=True):
        by_type.setdefault(aval, []).append(name)
    return [f"{aval!r} of {', '.join(names)}" for aval, names in by_type.items()]


def _structure_mismatch_error(
    caller: str, names: Sequence[str], trees: Sequence[Any], branches: dict[str, Any]
) -> BranchTypeError:
    """The error for two branches that return different structures."""
    paths = [key_path_strings(each) for each in trees]
    alone = [
        f"only {name} returns " + ", ".join([f"output{path}" for path in extra])
        for name, mine, theirs in zip(names, paths, paths[::-1], strict=True)
        if (extra := [path for path in mine if path not in theirs])
    ]
    return BranchTypeError(
        f"{caller}: all branches must return the structure that {names[0]} returns; "
        f"got {tree.describe_difference(*trees)} from {names[1]}",
        *tree.full_structures(*trees),
        *alone,
        *_describe_branches({name: branches[name] for name in names}),
        fix="Return the same containers with the same keys from every branch.",
    )


def _describe_branches(branches: dict[str, Any]) -> list[str]:
    """`true_fun is double (train.py:12)`, for each branch."""
    return [f"{name} is {describe_function(fun)}" for name, fun in branches.items()]


def _unify_captures(
    traced: Sequence[TracedFunction], num_own: int
) -> tuple[list[Program], list[Any], list[int]]:
    """The programs with the captured values of all as inputs after the first `own`; those values.

    Also returns the positions of the inputs that a program writes to. Each program returns their
    new values after its results.
    """
    values = {capture_key(x): x for function in traced for x in function.captured}
    position_of = {key: num_own + i for i, key in enumerate(values)}
    new_values = [
        {
            i if i < num_own else position_of[capture_key(function.captured[i - num_own])]: atom
            for i, atom in zip(
                function.written, function.program.outputs[len(function.out_avals) :], strict=True
            )
        }
        for function in traced
    ]
    written = sorted(set().union(*new_values))
    programs = []
    for function, own_new_values in zip(traced, new_values, strict=True):
        own_inputs = {
            capture_key(x): v
            for x, v in zip(function.captured, function.program.inputs[num_own:], strict=True)
        }
        inputs = [
            own_inputs[key] if key in own_inputs else Var(aval_of(x)) for key, x in values.items()
        ]
        program = function.program
        inputs = [*program.inputs[:num_own], *inputs]
        results = program.outputs[: len(function.out_avals)]
        programs.append(
            with_io(
                program, inputs, [*results, *[own_new_values.get(i, inputs[i]) for i in written]]
            )
        )
    return programs, list(values.values()), written


COUNTER_AVAL = ShapedArray((), np.dtype("int32"))


class WithProgress(Rewrite[Program]):
    """Rewrites the body of a loop to one that shows the number of steps done before it.

    The number is one more carry, after the `carries` that follow the `consts`.
    """

    label: str
    total: int | None
    consts: int
    carries: int

    def __call__(self, program: Program) -> Program:
        n = self.consts + self.carries

        def body(*args: Value) -> list[Value]:
            ShowProgress(self.label, self.total)(args[n])
            outs = apply(None, program, [*args[:n], *args[n + 1 :]])
            return [*outs[: self.carries], ops.add(args[n], 1), *outs[self.carries :]]

        avals = [*program.in_avals[:n], COUNTER_AVAL, *program.in_avals[n:]]
        names = program.in_names

        def with_counter() -> list[str]:
            before = names()
            return [*before[:n], "step", *before[n:]] if len(before) >= n else before

        in_names = None if names is None else with_counter
        return trace_closed(body, avals, name=program.name, in_names=in_names)


def show_completion(label: str, total: int | None, step: ArrayLike, outs: Values) -> None:
    """Show that the loop is done after `step` steps, once its results `outs` are computed."""
    nonempty = [x for x in outs if aval_of(x).size][:4]
    # XLA may know the number of steps in advance, so the line waits for an element of the results.
    elements = [
        ops.reshape(ops.slice_in_dim(ops.reshape(x, (aval_of(x).size,)), 0, 1), ())
        for x in nonempty
    ]
    ShowProgress(label, total, True)(step, *elements)


def check_progress(caller: str, progress: object) -> None:
    """Raise ArgumentError unless `progress` is a name or None."""
    if progress is not None and not (isinstance(progress, str) and progress):
        raise ArgumentError(
            f"{caller}: progress must be a name for the line that shows it, or None; got "
            f"{type_name(progress)} {progress!r}",
            fix='Pass progress="train", for instance.',
        )
