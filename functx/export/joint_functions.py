"""`joint_simple`: the program of a function of arrays, and of its gradients, by the convention of its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from functx.aot.analysis import analyze_call
from functx.aot.joint import join_gradients
from functx.aot.meta import Meta, OutputKind
from functx.core import tree
from functx.core.errors import ExportError, type_name
from functx.core.masks import scatter_where
from functx.core.tree import TreeDef
from functx.core.typing import PyTree
from functx.export.archives import Contents
from functx.export.exported import Exported
from functx.export.functions import (
    check_platforms,
    check_sizes_fixed,
    constant_values,
    input_names,
    interface_of,
)
from functx.export.signature import BackwardSignature, Signature, output_names
from functx.transforms.argument_names import check_callable, function_name
from functx.transforms.dce import with_io
from functx.transforms.tracing_api import has_aval


def joint_simple(
    fun: Callable[..., Any],
    args: Sequence[Any],
    *,
    trace_joint: bool = True,
    requires_grad: PyTree = None,
    platforms: Sequence[str] | None = None,
) -> Exported:
    """The `Exported` of a function of arrays, with its gradients, whose calls are like those of the function.

    `fun` takes arrays and returns a tuple or list of arrays. With `trace_joint`, if an argument requires
    a gradient, the result is called as `exported(primals, tangents)`, with a tangent for each output
    that depends on such an argument, and returns the outputs as `fun` does, and a tuple with the
    gradient in each argument, None where none is required; both are as those of `functx.vjp`. Otherwise
    it is called as `fun` is.
    `requires_grad` is as for `functx.aot.analyze`, and `platforms` as for `export`.

    Raises ExportError, with the reason, for arguments that are pytrees, symbolic sizes, another result than a tuple or
    list of arrays, writes to arguments, and results that share memory with each other or with arguments.

    >>> import functx, numpy
    >>> exported = functx.export.joint_simple(lambda x, y: (x * y,), (2.0, 3.0))
    >>> (product,), (in_x, in_y) = exported((2.0, 3.0), (1.0,))
    >>> float(product), float(in_x), float(in_y)
    (6.0, 3.0, 2.0)
    """
    check_callable(fun, "export.joint_simple")
    label = f"export.joint_simple({function_name(fun)})"
    chosen = check_platforms(label, platforms)
    args = tuple(args)
    check_flat_arguments(args, label)
    check_sizes_fixed(label, args)
    analysis = analyze_call(fun, args, {}, label, requires_grad=requires_grad)
    meta, program = analysis.meta, analysis.program
    constants = constant_values(label, analysis.captured)
    names = input_names(program)
    check_no_writes(meta, names[: len(args)], label)
    check_flat_results(analysis.out_tree, label)
    check_no_sharing(meta, names, label)
    num_args, num_outputs = len(args), len(meta.outputs)
    active = [trace_joint and on for on in meta.needs_grad[:num_args]]
    in_tree, out_tree = tree.call_treedef(*[tree.structure(0)] * num_args), analysis.out_tree
    backward = None
    if any(active):
        num_inputs = len(program.inputs)
        all_active = [*active, *[False] * len(constants)]
        joint = join_gradients(program, all_active, meta.mask, zeros=True).program
        primals, tangents = joint.inputs[:num_inputs], joint.inputs[num_inputs:]
        inputs = [*primals[:num_args], *tangents, *primals[num_args:]]
        own = joint.input_names() or []
        order = [*own[:num_args], *own[num_inputs:], *own[num_args:num_inputs]]
        program = with_io(joint, inputs, joint.outputs)
        program.in_names = order.copy
        in_tree = tree.call_treedef(
            *[tree.structure((0,) * len(group)) for group in (args, tangents)]
        )
        gradients = output_names(num_outputs, sum(active))
        placed = scatter_where(gradients, active)
        out_tree = tree.treedef_tuple([out_tree, tree.structure(tuple(placed))])
        names = input_names(program)
        given = zip(names, placed, strict=False)
        backward = BackwardSignature({}, {output: name for name, output in given if output}, None)
    signature = Signature(
        user_inputs=names[: len(names) - len(constants)],
        user_outputs=output_names(0, num_outputs),
        constants=names[len(names) - len(constants) :],
        backward_signature=backward,
    )
    interface = interface_of(program)._replace(in_tree=in_tree, out_tree=out_tree)
    return Exported(Contents(interface, signature, chosen, constants, {}, lambda: program))


def check_flat_arguments(args: tuple[Any, ...], label: str) -> None:
    """Raises ExportError for an argument that is no array."""
    for i, x in enumerate(args):
        if not (has_aval(x) or (hasattr(x, "shape") and hasattr(x, "dtype"))):
            raise ExportError(
                f"{label}: in the simple form each argument must be an array; got {type_name(x)} for "
                f"number {i}",
                fix="Pass the leaves of a pytree, or use functx.export.export.",
            )


def check_flat_results(out_tree: TreeDef, label: str) -> None:
    """Raises ExportError unless the result is a tuple or list of arrays and None."""
    root = tree.root_node_type(out_tree)
    is_flat = root in (tuple, list) and all(
        [tree.root_node_type(child) in (None, type(None)) for child in out_tree.children()]
    )
    if not is_flat:
        raise ExportError(
            f"{label}: in the simple form the result must be a tuple or a list of arrays; got {out_tree}",
            fix="Return (out,), or the leaves of a pytree.",
        )


def check_no_writes(meta: Meta, names: Sequence[str], label: str) -> None:
    """Raises ExportError for a write to an argument, or to an array from outside."""
    for i in meta.mutated:
        what = f"`{names[i]}`" if i < len(names) else "an array from outside the function"
        raise ExportError(
            f"{label}: in the simple form nothing may be written to that comes from outside; got a write "
            f"to {what}",
            fix="Write to a copy (x.copy()), and return it.",
        )


def check_no_sharing(meta: Meta, names: Sequence[str], label: str) -> None:
    """Raises ExportError for a result that shares memory with an argument or with another result."""
    for i, out in enumerate(meta.outputs):
        if out.kind is not OutputKind.PLAIN:
            is_input = out.kind is not OutputKind.ALIAS_OF_INTERMEDIATE
            other = f"`{names[out.base or 0]}`" if is_input else "another result"
            raise ExportError(
                f"{label}: in the simple form a result must share memory with no argument and no other "
                f"result; got result {i}, which shares that of {other}",
                fix="Return a copy of it (x.copy()).",
            )
