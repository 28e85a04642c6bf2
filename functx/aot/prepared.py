"""Functions prepared by their analysis: new values of inputs as outputs, and trailing copies to inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from functx.aot.analysis import (
    analyze_program,
    requires_gradient,
    split_arguments,
    trace_with_writes,
)
from functx.aot.joint import join_gradients
from functx.aot.memory_analysis import AnalyzedProgram, AnalyzeMemory
from functx.aot.meta import Meta, OutputKind
from functx.core import tree
from functx.core.errors import (
    ArgumentError,
    BackwardWriteError,
    GradientError,
    OutputCountError,
    type_name,
)
from functx.core.masks import inexact_mask
from functx.core.program import Atom, Equation, Part, Program
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import apply, cached_rewrite
from functx.core.strides import Strides
from functx.core.tracer import Tracer, abstractify
from functx.core.tracing import program_part
from functx.core.typing import Function, PyTree, Value
from functx.ops.views import Copy, Write
from functx.passes.memory_planning import JointProgram
from functx.transforms.aliasing import copy_if_aliased, write_back_arguments
from functx.transforms.argument_names import check_callable, function_name, wrap_transform
from functx.transforms.make_ir import copy_host_array, functionalize, make_ir
from functx.transforms.tracing_api import TracedFunction


def fn_input_mutations_to_outputs(fun: Function, meta: Meta) -> Callable[..., tuple[Any, ...]]:
    """`fun` as a function that returns `(*mutated, *outputs)`, flat, and leaves these inputs alone.

    `mutated` are the new values of the inputs that `meta`, the analysis of `fun`, calls out of the
    graph. Inputs written in the graph are still written to.

    Raises OutputCountError if `fun` has other outputs, or writes to other inputs, than were analysed.

    >>> import functx, numpy
    >>> def step(x, y):
    ...     x += y
    ...     return x * y
    >>> x, y = numpy.ones(2), numpy.full(2, 3.0)
    >>> pure = functx.aot.fn_input_mutations_to_outputs(step, functx.aot.analyze(step)(x, y))
    >>> [out.tolist() for out in pure(x, y)], x.tolist()
    ([[4.0, 4.0], [12.0, 12.0]], [1.0, 1.0])
    """
    prepared = prepare(fun, meta, "fn_input_mutations_to_outputs")

    def wrapper(*args: PyTree, **kwargs: PyTree) -> tuple[Any, ...]:
        outs = prepared(args, kwargs)
        return tuple(outs[: len(outs) - len(meta.bases)])

    return with_name_of(fun, wrap_transform(wrapper, fun, "fn_input_mutations_to_outputs"))


def fn_prepped_for_autograd(
    fun: Function, meta: Meta
) -> Callable[..., tuple[tuple[Any, ...], list[bool]]]:
    """`fun` as a function that returns `((*mutated, *outputs, *bases), mask)`, for `create_joint`.

    `mutated` and `outputs` are those of `fn_input_mutations_to_outputs`, and `bases` the extra outputs
    of `meta`, the analysis of `fun`. The mask says which of them take a tangent: the new value of an
    input if it has a history, an output if it is plain and depends on an input that requires a
    gradient, and each base. Gradients are those at the inputs as they were before.

    Raises OutputCountError as `fn_input_mutations_to_outputs`.

    >>> import functx, numpy
    >>> def step(x, y):
    ...     x += y
    ...     return x[:1], x * y
    >>> x, y = numpy.ones(2), numpy.full(2, 3.0)
    >>> prepped = functx.aot.fn_prepped_for_autograd(step, functx.aot.analyze(step)(x, y))
    >>> outs, mask = prepped(x, y)
    >>> [out.tolist() for out in outs], mask
    ([[4.0, 4.0], [4.0], [12.0, 12.0]], [True, False, True])
    """
    prepared = prepare(fun, meta, "fn_prepped_for_autograd")

    def wrapper(*args: PyTree, **kwargs: PyTree) -> tuple[tuple[Any, ...], list[bool]]:
        return tuple(prepared(args, kwargs)), list(meta.mask)

    return with_name_of(fun, wrap_transform(wrapper, fun, "fn_prepped_for_autograd"))


def prepare(fun: Function, meta: Meta, label: str) -> Callable[..., list[Value]]:
    """The function `(args, kwargs) -> [*mutated, *outputs, *bases]` of `fun` with the analysis `meta`."""
    check_callable(fun, label)
    check_meta(meta, label)
    label = f"{label}({function_name(fun)})"

    def prepared(args: Sequence[PyTree], kwargs: dict[str, PyTree]) -> list[Value]:
        _, program, operands = trace_as_analyzed(fun, meta, args, kwargs, label)
        outs = copy_if_aliased(apply(None, program, operands), operands)
        first, last = len(meta.mutated), len(meta.mutated) + len(meta.in_graph)
        write_back_arguments(operands, dict(zip(meta.in_graph, outs[first:last], strict=True)))
        results = [*outs[:first], *outs[last:]]
        for k, i in outputs_in_graph(meta).items():
            if is_writable(operands[i]):
                results[k] = operands[i]
        return results

    return prepared


def check_meta(meta: object, label: str) -> None:
    """Raise ArgumentError unless `meta` is an analysis."""
    if not isinstance(meta, Meta):
        raise ArgumentError(
            f"{label}: meta must be a functx.aot.Meta; got {type_name(meta)}",
            fix="Analyse the function: functx.aot.analyze(f)(*args).",
        )


def trace_as_analyzed(
    fun: Function, meta: Meta, args: Sequence[PyTree], kwargs: dict[str, PyTree], label: str
) -> tuple[TracedFunction, Program, list[Value]]:
    """The traced call of `fun`, its analysed program, and the operands; it must be as `meta` says."""
    strides = [info.strides for info in meta.inputs]
    traced, found_strides, leaves = trace_arguments(fun, args, kwargs, label, strides)
    operands = [*leaves, *traced.captured]
    if len(operands) != len(meta.inputs):
        raise count_error(label, "inputs", len(operands), len(meta.inputs))
    found, program = analyze_program(
        traced.program, meta.needs_grad, meta.keep_input_mutations, strides=found_strides
    )
    if len(found.outputs) != len(meta.outputs):
        raise count_error(label, "outputs", len(found.outputs), len(meta.outputs))
    groups = (found.mutated, found.in_graph, len(found.bases))
    if groups != (meta.mutated, meta.in_graph, len(meta.bases)):
        raise OutputCountError(
            f"{label}: the function must write to the inputs that it wrote to when it was analysed, "
            f"and share memory in the same way; got\n{found}",
            fix="Analyse it again, for these arguments.",
        )
    return traced, program, operands


def outputs_in_graph(meta: Meta) -> dict[int, int]:
    """The input that each result is which is an input that the program writes to.

    Results are numbered as in `(*mutated, *outputs, *bases)`.
    """
    in_graph = {*meta.in_graph}
    return {
        len(meta.mutated) + k: info.base
        for k, info in enumerate(meta.outputs)
        if info.kind is OutputKind.IS_INPUT and info.base in in_graph
    }


def is_writable(x: object) -> bool:
    """Whether a write to `x` changes it: NumPy arrays, Variables and traced arrays, but no JAX arrays."""
    return isinstance(x, (np.ndarray, Tracer))


def count_error(label: str, what: str, found: int, expected: int) -> OutputCountError:
    """The error for a function that has another number of inputs or outputs than when it was analysed."""
    return OutputCountError(
        f"{label}: there must be as many {what} as were analysed, {expected}; got {found}",
        fix="Analyse the function that is called: functx.aot.analyze(f)(*args).",
    )


def trace_arguments(
    fun: Function,
    args: Sequence[PyTree],
    kwargs: dict[str, PyTree],
    label: str,
    strides: Sequence[Strides | None] | None = None,
) -> tuple[TracedFunction, Any, list[Value]]:
    """The call of `fun`, traced with its writes, the strides of the inputs, and the traced leaves.

    `strides` are those of all inputs, by default as the arguments have them.
    """
    leaves, in_tree = split_arguments(args, kwargs)
    avals = [abstractify(x) for x in leaves]
    if strides is not None:
        strides = strides[: len(leaves)]
    traced, strides = trace_with_writes(fun, in_tree, avals, label, leaves, strides)
    return traced, strides, leaves


def create_functionalized_fn(
    fun: Function, meta: Meta, joint: bool = False, *, create_graph: bool = False
) -> Function:
    """`fun` as a function without writes but copies to its inputs, at the end.

    `fun` is a function that was prepared by its analysis `meta`, or with `joint` a function of
    `(primals, tangents)`, as `create_joint` makes. An output that is an input which is written to is
    returned as that input. In a joint function, an input that both parts write to is written twice,
    with the value after each part; the copies have the parts `must_stay_forward` and
    `must_stay_backward`. The backward part is what runs in `program_part(Part.BACKWARD)`.

    Raises BackwardWriteError for a write in the backward part to a tangent and, with `create_graph`,
    to an input that requires a gradient.

    >>> import functx, numpy
    >>> def count(x, n):
    ...     n += 1
    ...     return x * n
    >>> x, n = numpy.ones(2, "float32"), numpy.zeros(1, "int32")
    >>> meta = functx.aot.analyze(count, keep_input_mutations=True)(x, n)
    >>> prepared = functx.aot.fn_input_mutations_to_outputs(count, meta)
    >>> print(functx.make_ir(functx.aot.create_functionalized_fn(prepared, meta))(x, n).out_avals)
    [f32[2]]
    """
    check_callable(fun, "create_functionalized_fn")
    label = f"create_functionalized_fn({function_name(fun)})"

    def wrapper(*args: PyTree, **kwargs: PyTree) -> PyTree:
        traced, strides, leaves = trace_arguments(fun, args, kwargs, label)
        operands = [*leaves, *traced.captured]
        analyzed = cached_rewrite(AnalyzeMemory(tuple(strides)), traced.program)
        if joint:
            num_primals = len(tree.leaves(args[0])) if args else 0
            check_backward_writes(analyzed, meta, num_primals, len(leaves), create_graph, label)
        outs = copy_if_aliased(apply(None, analyzed.program, operands), operands)
        num_outs = len(analyzed.outputs)
        new = dict(zip(analyzed.writes, outs[num_outs:], strict=False))
        forward = {i: x for i, x in new.items() if analyzed.writes[i].in_forward}
        forward |= {i: outs[n] for i, n in analyzed.forward_values.items()}
        backward = {i: x for i, x in new.items() if analyzed.writes[i].in_backward}
        for part, values in ((Part.STAYS_FORWARD, forward), (Part.STAYS_BACKWARD, backward)):
            with program_part(part):
                write_back_arguments(operands, values)
        results = [
            operands[memory.storage]
            if memory.storage in new and not memory.view and is_writable(operands[memory.storage])
            else out
            for memory, out in zip(analyzed.outputs, outs[:num_outs], strict=True)
        ]
        return tree.unflatten(traced.out_tree, results)

    return with_name_of(fun, wrap_transform(wrapper, fun, "create_functionalized_fn"))


def with_name_of(fun: Function, wrapper: Function) -> Function:
    """`wrapper` with the name of `fun`, so that programs of prepared functions have it."""
    wrapper.__name__ = function_name(fun)
    return wrapper


def check_backward_writes(
    analyzed: AnalyzedProgram,
    meta: Meta,
    num_primals: int,
    num_leaves: int,
    create_graph: bool,
    label: str,
) -> None:
    """Raise BackwardWriteError for writes of the backward part that are not allowed."""
    for i, writes in analyzed.writes.items():
        if not writes.in_backward:
            continue
        if num_primals <= i < num_leaves:
            raise BackwardWriteError(
                f"{label}: the backward part must not write to a tangent; got a write to tangent number "
                f"{i - num_primals}",
                fix="Write to a copy of it (x.copy()).",
            )
        if create_graph and i < num_primals and meta.inputs[i].requires_grad:
            raise BackwardWriteError(
                f"{label}: the backward part must not write to an input that requires a gradient when the "
                f"gradients are differentiated; got a write to `{meta.inputs[i].name}`",
                fix="Write to a copy of it (x.copy()), or pass create_graph=False.",
            )


def joint_program(fun: Function, meta: Meta | None = None) -> Callable[..., JointProgram]:
    """The function that returns the `JointProgram` of `fun` for its arguments.

    The program takes the primals (the leaves of the arguments, then the captured values of
    `fun`), then tangents; it returns the new values of the arguments that `fun` writes to, the
    outputs of `fun`, and gradients. Each inexact output takes a tangent. Each inexact argument has a
    gradient; of captured values, Variables that require one do. `captured` holds the captured values,
    which the forward program of a partition supplies. Regions under `functx.checkpoint` are inlined;
    `recompute` holds the values that they recompute. Arguments may be arrays, or anything with `shape` and `dtype`.

    With `meta`, the analysis of `fun`, the program is that of `create_joint` for the function that
    `fn_prepped_for_autograd` prepares, functionalized: outputs are `(*mutated, *outputs, *bases)`, those
    in the mask take a tangent, and a primal has a gradient if it requires one and an output depends on
    it. What is written in the graph is written at the end.

    Raises GradientError for a function without inexact outputs, OutputCountError for one that was
    analysed otherwise, and ArgumentError if `meta` is not a Meta.

    >>> import functx, numpy
    >>> joint = functx.aot.joint_program(functx.numpy.sin)(numpy.float32(1.0))
    >>> joint.num_primals, len(joint.tangents), len(joint.program.outputs)
    (1, 1, 2)
    """
    check_callable(fun, "joint_program")
    if meta is not None:
        check_meta(meta, "joint_program")

    def functional(*args: PyTree, **kwargs: PyTree) -> JointProgram:
        program = make_ir(functionalize(fun))(*args, **kwargs)
        if not any(inexact_mask(program.out_avals)):
            raise GradientError(
                f"joint_program({function_name(fun)}): an output must be inexact to have a gradient; "
                f"got {program.out_avals}"
            )
        assert program.trees is not None
        results, written = program.trees[1].children()
        outputs = [*program.outputs[results.num_leaves :], *program.outputs[: results.num_leaves]]
        program = replace_program_fields(program, outputs=outputs)
        captured = program.captured
        num_leaves = len(program.inputs) - len(captured)
        active = [*inexact_mask(program.in_avals[:num_leaves]), *map(requires_gradient, captured)]
        joint = join_gradients(program, active, inexact_mask(program.out_avals), zeros=True)
        return joint._replace(num_mutated=written.num_leaves, captured=tuple(captured))

    def analyzed(*args: PyTree, **kwargs: PyTree) -> JointProgram:
        assert meta is not None
        label = f"joint_program({function_name(fun)})"
        traced, program, _ = trace_as_analyzed(fun, meta, args, kwargs, label)
        captured = tuple([copy_host_array(x) for x in traced.captured])
        return analyzed_joint_program(meta, program)._replace(captured=captured)

    return wrap_transform(functional if meta is None else analyzed, fun, "joint_program")


def analyzed_joint_program(meta: Meta, program: Program) -> JointProgram:
    """The joint program of an analysed program: gradients, and trailing writes.

    The outputs are `(*mutated, *outputs, *bases)`, of which those that the mask of `meta` says take a
    tangent.
    """
    first = len(meta.mutated)
    mask = [*meta.mask[:first], *[False] * len(meta.in_graph), *meta.mask[first:]]
    joint = join_gradients(program, meta.needs_grad, mask)
    return joint._replace(
        program=with_trailing_writes(joint.program, meta, Part.STAYS_FORWARD),
        num_outputs=joint.num_outputs - len(meta.in_graph),
        num_mutated=first,
        num_bases=len(meta.bases),
    )


def with_trailing_writes(program: Program, meta: Meta, part: Part | None) -> Program:
    """`program` that at the end writes to the inputs in the graph, instead of returning the new values.

    An output of the function that is such an input is returned as the input. Its value from before
    is copied where the program returns or writes it.
    """
    if not meta.in_graph:
        return program
    first, last = len(meta.mutated), len(meta.mutated) + len(meta.in_graph)
    targets = [program.inputs[i] for i in meta.in_graph]
    values = program.outputs[first:last]
    outputs = [*program.outputs[:first], *program.outputs[last:]]
    kept = {*outputs, *values}
    copies = {v: Equation.of(Copy(), [v]) for v in targets if v in kept}

    def read(atom: Atom) -> Atom:
        return copies[atom].outputs[0] if atom in copies else atom  # type: ignore[index]

    outputs = [read(atom) for atom in outputs]
    for k, i in outputs_in_graph(meta).items():
        outputs[k] = program.inputs[i]
    writes = [
        Equation(Write(), [target, read(value)], [], None, part)
        for target, value in zip(targets, values, strict=True)
    ]
    before = [eqn.replace(part=part) for eqn in copies.values()]
    return replace_program_fields(
        program, equations=[*before, *program.equations, *writes], outputs=outputs
    )
