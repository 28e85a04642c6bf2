"""Joint functions and programs: the outputs of a function, and the gradients in its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import count
from typing import Any

from functx import ops
from functx.aot.analysis import flags_of_leaves, requires_grad_flags
from functx.core import tree
from functx.core.errors import (
    DTypeError,
    LossOutputError,
    OutputMaskError,
    ShapeError,
    TangentCountError,
    type_name,
)
from functx.core.masks import scatter_where, select_where
from functx.core.program import Part, Program, pad_input_names
from functx.core.program_calls import cast_scalar
from functx.core.rewriting import Rewrite, apply, cached_rewrite
from functx.core.tracebacks import api_boundary
from functx.core.tracer import aval_of
from functx.core.tracing import program_part, trace_closed
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Flags, Function, PyTree, Value
from functx.passes.memory_planning import JointProgram, inline_checkpoints
from functx.transforms.aliasing import copy_transform_results, write_back_arguments
from functx.transforms.argument_names import check_callable, function_name
from functx.transforms.dce import eliminate_common_subexpressions
from functx.transforms.forward_mode import canonicalize_for_ad
from functx.transforms.reverse_mode import CotangentSums, forward_sweep, propagate_cotangents
from functx.transforms.tracing_api import TracedFunction, avals_of, trace_function


class JoinGradients(Rewrite[tuple[Program, tuple[int | None, ...]]]):
    """The rewrite to the outputs, then the gradients in the `active` inputs that outputs depend on.

    The program takes the inputs, then a tangent for each output with an entry True in `mask`; with
    `is_loss`, no tangent, but 1 for it. Also returns for each input the number of its gradient, None
    without one. With `zeros`, each active input has a gradient. Equations have the part that they
    were made in.
    """

    active: tuple[bool, ...]
    mask: tuple[bool, ...]
    zeros: bool = False
    is_loss: bool = False

    def __call__(self, program: Program) -> tuple[Program, tuple[int | None, ...]]:
        numbers: list[int | None] = []
        num_inputs = len(program.inputs)
        avals = [] if self.is_loss else select_where(program.out_avals, self.mask)
        canonical = canonicalize_for_ad(program, "vjp", "jvp")

        def body(*args: Value) -> list[Value]:
            seeds: Sequence[Value] = args[num_inputs:]
            with program_part(Part.FORWARD):
                outs, tape = forward_sweep(canonical, args[:num_inputs], self.active)
            with program_part(Part.BACKWARD):
                if self.is_loss:
                    seeds = [ops.constant_like(x, 1) for x in select_where(outs, self.mask)]
                cts = CotangentSums()
                propagate_cotangents(canonical, tape, scatter_where(seeds, self.mask), cts)
                inputs = select_where(canonical.inputs, self.active)
                found = cts.take(inputs) if self.zeros else [cts.pop(v) for v in inputs]
            grads = scatter_where(found, self.active)
            positions = count()
            numbers.extend([None if grad is None else next(positions) for grad in grads])
            return [*outs, *[grad for grad in grads if grad is not None]]

        def names() -> list[str]:
            own = program.in_names() if program.in_names is not None else []
            return [*pad_input_names(own, num_inputs), *tangent_names(len(avals))]

        joint = trace_closed(body, [*program.in_avals, *avals], name=program.name, in_names=names)
        return joint, tuple(numbers)


def tangent_names(count: int) -> list[str]:
    """The names of tangents, which are the cotangents of outputs."""
    return ["ct"] if count == 1 else [f"ct_{i}" for i in range(count)]


def join_gradients(
    program: Program, active: Flags, mask: Flags, zeros: bool = False, is_loss: bool = False
) -> JointProgram:
    """The joint program of a program without writes.

    It has tangents for the outputs with an entry True in `mask`, and gradients in the `active` inputs.
    Regions under `functx.checkpoint` are inlined.
    """
    rewrite = JoinGradients(tuple(active), tuple(mask), zeros, is_loss)
    joint, numbers = cached_rewrite(rewrite, program)
    return inline_checkpoints(
        JointProgram(
            eliminate_common_subexpressions(joint),
            len(program.inputs),
            len(program.outputs),
            gradients=numbers,
        )
    )


def create_joint(
    fun: Function, requires_grad: PyTree = None, *, loss_only: bool = False, zeros: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """The joint function of `fun`: from primals and tangents to outputs and gradients.

    `fun(*primals)` returns `(outputs, mask)`, with a bool for each output that says whether it takes
    a tangent, as the result of `fn_prepped_for_autograd` does. The joint function takes a sequence
    of primals, and the tangents of these outputs in their order, None for zero. It returns the
    outputs, and a sequence like the primals with a gradient in each array: None where none is needed
    or no output depends on it, or zeros with `zeros`. A tangent may have another shape with as many
    elements.

    `requires_grad` says which primals need a gradient, as for `analyze`. If none does, nothing is
    differentiated. With `loss_only`, the function takes no tangents; the one output that has a
    gradient must have one element. What `fun` writes to primals is written after all is computed.

    Raises OutputMaskError, TangentCountError, LossOutputError, ShapeError and DTypeError for masks and
    tangents that do not fit.

    >>> import functx
    >>> joint = functx.aot.create_joint(lambda x, y: ([x * y, x], [True, False]))
    >>> [[float(a) for a in each] for each in joint([2.0, 3.0], [1.0])]
    [[6.0, 2.0], [3.0, 2.0]]
    """
    check_callable(fun, "create_joint")
    label = f"create_joint({function_name(fun)})"

    def joint(primals: Sequence[PyTree], tangents: Sequence[Any] = ()) -> tuple[Any, Any]:
        given = None
        leaves, in_tree = tree.flatten_with_key_data((tuple(primals), {}))
        if requires_grad is not None:
            given = flags_of_leaves(requires_grad, in_tree, label)
        traced, mask = trace_masked(fun, leaves, in_tree, label)
        flags = requires_grad_flags(leaves, [], given)
        operands = [*leaves, *traced.captured]
        takes, cts = tangents_of_outputs(traced, mask, tangents, loss_only, label)
        gradients: Sequence[int | None] = [None] * len(leaves)
        program = traced.program
        if any(flags) and (zeros or any(takes)):
            active = [*flags, *[False] * len(traced.captured)]
            found = join_gradients(program, active, takes, zeros, loss_only)
            program, gradients, operands = found.program, found.gradients or (), [*operands, *cts]
        outs = apply(None, program, operands)
        num_outs, end = len(traced.out_avals), len(traced.program.outputs)
        results = copy_transform_results([*outs[:num_outs], *outs[end:]], operands)
        new = dict(zip(traced.written, outs[num_outs:end], strict=True))
        with program_part(Part.STAYS_FORWARD):
            write_back_arguments(operands, new)
        grads = [None if n is None else results[num_outs + n] for n in gradients[: len(leaves)]]
        by_argument, _ = tree.unflatten(in_tree, grads)
        return (
            tree.unflatten(traced.out_tree, results[:num_outs]),
            list(by_argument) if isinstance(primals, list) else by_argument,
        )

    joint.__name__ = f"joint_{function_name(fun)}"
    return api_boundary(joint)


def trace_masked(
    fun: Function, leaves: list[Value], in_tree: tree.TreeDef, label: str
) -> tuple[TracedFunction, list[bool]]:
    """The traced call of `fun`, which returns outputs and their mask, and the mask."""
    mask: list[bool] = []

    @wraps(fun)
    def outputs_of(*args: PyTree) -> PyTree:
        result = fun(*args)
        mask[:] = checked_mask(result, label)
        return result[0]

    avals = avals_of(leaves, "create_joint", fun, in_tree)
    traced = trace_function(outputs_of, in_tree, avals, "create_joint", values=leaves)
    if len(mask) != len(traced.out_avals):
        raise OutputMaskError(
            f"{label}: the mask must have a bool for each output; got {len(mask)} for "
            f"{len(traced.out_avals)} outputs"
        )
    return traced, mask


def checked_mask(result: PyTree, label: str) -> list[bool]:
    """The mask in the result of a function that returns `(outputs, mask)`."""
    if isinstance(result, tuple) and len(result) == 2:
        mask = result[1]
        if isinstance(mask, (list, tuple)) and all([type(flag) is bool for flag in mask]):
            return list(mask)
    raise OutputMaskError(
        f"{label}: the function must return (outputs, mask), where mask has a bool for each output; got "
        f"{type_name(result)}",
        fix="Use the result of functx.aot.fn_prepped_for_autograd(f, meta).",
    )


def tangents_of_outputs(
    traced: TracedFunction, mask: list[bool], tangents: Sequence[Any], loss_only: bool, label: str
) -> tuple[list[bool], list[Value]]:
    """The mask of the outputs of the program that take a tangent which is not zero, and these tangents."""
    avals = traced.out_avals
    rest = [False] * len(traced.written)
    if loss_only:
        sizes = [aval.size for aval in select_where(avals, mask)]
        if sizes != [1]:
            raise LossOutputError(
                f"{label}: with loss_only=True exactly one output must have a gradient, of one element; "
                f"got {select_where(avals, mask)}"
            )
    expected = 0 if loss_only else sum(mask)
    if len(tangents) != expected:
        raise TangentCountError(
            f"{label}: there must be {expected} tangents, one for each output that takes one; got "
            f"{len(tangents)}",
            fix="Pass none with loss_only=True, and None for a tangent that is zero.",
        )
    if loss_only:
        return [*mask, *rest], []
    given = iter(tangents)
    values = [next(given) if takes else None for takes in mask]
    for aval, takes in zip(avals, mask, strict=True):
        if takes and not is_inexact(aval.dtype):
            raise OutputMaskError(
                f"{label}: an output that takes a tangent must be inexact; got {aval!r}"
            )
    cts = [
        tangent_of_type(x, aval, label)
        for x, aval in zip(values, avals, strict=True)
        if x is not None
    ]
    return [*[x is not None for x in values], *rest], cts


def tangent_of_type(x: Value, aval: ShapedArray, label: str) -> Value:
    """The tangent `x` of an output of type `aval`; the shape may be another one of as many elements."""
    x = cast_scalar(x, aval)
    given = aval_of(x)
    if given.size != aval.size:
        raise ShapeError(
            f"{label}: a tangent must have as many elements as its output; got {given!r} for {aval!r}"
        )
    if given.dtype != aval.dtype:
        raise DTypeError(
            f"{label}: a tangent must have the dtype of its output; got {given!r} for {aval!r}"
        )
    if given.shape != aval.shape:
        x = ops.reshape(x, aval.shape)
    return (
        x
        if given.weak_type == aval.weak_type
        else ops.convert_element_type(x, aval.dtype, aval.weak_type)
    )
