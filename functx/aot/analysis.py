"""Analysis of a function: its writes to inputs, and the memory that outputs share, by one trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from functx.aot.memory_analysis import AnalyzedProgram, AnalyzeMemory, is_differentiated
from functx.aot.meta import (
    BaseKind,
    InputInfo,
    Meta,
    MutationKind,
    OutputInfo,
    OutputKind,
)
from functx.core import tree
from functx.core.effects import Effect
from functx.core.errors import ArgumentError, type_name
from functx.core.masks import select_where
from functx.core.memory_layouts import noncontiguous_strides
from functx.core.program import (
    Atom,
    Program,
    pad_input_names,
)
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import cached_rewrite
from functx.core.strides import Strides
from functx.core.tracer import abstractify, is_variable
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Flags, Function, PyTree, Value
from functx.ops.autodiff import Detach, WithValue
from functx.transforms.aliasing import ROW_MAJOR, find_memory_layout
from functx.transforms.argument_names import check_callable, function_name, wrap_transform
from functx.transforms.dce import with_io
from functx.transforms.tracing_api import TracedFunction, function_tracer, has_aval


def analyze(
    fun: Function,
    keep_input_mutations: bool = False,
    requires_grad: PyTree = None,
) -> Callable[..., Meta]:
    """The function that returns the `Meta` of `fun` for its arguments: mutated inputs, aliased outputs.

    `fun` is traced once with the types of the arguments; nothing is computed, and no effect takes
    place. Arguments may be arrays, or anything with `shape` and `dtype`. NumPy arrays that share
    memory with one that `fun` writes to count as written to. With `keep_input_mutations`, writes to
    inputs stay in the program where no derivative sees them.

    `requires_grad` says in which arguments gradients are computed: a bool, or a tuple of bools or
    pytrees of them, one for each argument. By default these are the Variables that require a
    gradient; if no argument is a Variable, all inexact arrays. Of captured values, Variables that
    require a gradient do.

    Raises ArgumentError if `fun` is not callable, if `keep_input_mutations` is not a bool, or if
    `requires_grad` does not fit the arguments.

    >>> import functx, numpy
    >>> def scale(x, y):
    ...     x *= 2.0
    ...     return x[:2], x + y
    >>> print(functx.aot.analyze(scale)(numpy.ones(3, "float32"), numpy.ones(3, "float32")))
    scale
            type    grad  memory
      x     f32[3]  yes   written to out of graph
      y     f32[3]  yes   not mutated
      -> 0  f32[2]  yes   view of x
      -> 1  f32[3]  yes   plain
    """
    check_callable(fun, "analyze")
    if not isinstance(keep_input_mutations, bool):
        raise ArgumentError(
            f"analyze({function_name(fun)}): keep_input_mutations must be a bool; got "
            f"{type_name(keep_input_mutations)}",
            fix="Pass the arguments of the function in a second call: functx.aot.analyze(f)(x, y).",
        )

    def wrapper(*args: PyTree, **kwargs: PyTree) -> Meta:
        return analyze_call(fun, args, kwargs, "analyze", keep_input_mutations, requires_grad).meta

    return wrap_transform(wrapper, fun, "analyze")


class Analysis(NamedTuple):
    """A function that was traced once: what it does to its inputs, and its pure program.

    The inputs of `program` are the leaves of the arguments, then the captured values. Its outputs are
    the new values of the mutated inputs (those out of the graph, then those in the graph), the
    outputs of the function, and the bases.
    """

    meta: Meta
    program: Program
    captured: list[Value]
    in_tree: Any
    out_tree: Any


def analyze_call(
    fun: Function,
    args: Sequence[PyTree],
    kwargs: dict[str, PyTree],
    label: str,
    keep_input_mutations: bool = False,
    requires_grad: PyTree = None,
) -> Analysis:
    """The analysis of `fun(*args, **kwargs)`, which messages call `label`."""
    leaves, in_tree = split_arguments(args, kwargs)
    given = None
    if requires_grad is not None:
        given = flags_of_leaves(requires_grad, in_tree, label)
    avals = [abstractify(x) for x in leaves]
    traced, strides = trace_with_writes(fun, in_tree, avals, label, leaves)
    flags = requires_grad_flags(leaves, traced.captured, given)
    is_leaf = [not is_variable(x) or bool(x.is_leaf) for x in (*leaves, *traced.captured)]
    meta, program = analyze_program(
        traced.program, flags, keep_input_mutations, strides=strides, is_leaf=is_leaf
    )
    return Analysis(meta, program, traced.captured, in_tree, traced.out_tree)


def split_arguments(
    args: Sequence[PyTree], kwargs: dict[str, PyTree]
) -> tuple[list[Any], tree.TreeDef | tree.TreeDefWithStatic]:
    """The leaves of a call that are arrays, numbers or types of arrays; the structure holds all others."""
    leaves, in_tree = tree.flatten_with_key_data((tuple(args), kwargs))
    static = {
        i: x
        for i, x in enumerate(leaves)
        if not has_aval(x) and not (hasattr(x, "shape") and hasattr(x, "dtype"))
    }
    traced = [x for i, x in enumerate(leaves) if i not in static]
    return traced, tree.treedef_with_static(in_tree, static)


def flags_of_leaves(
    requires_grad: PyTree, in_tree: tree.TreeDef | tree.TreeDefWithStatic, label: str
) -> list[bool]:
    """The flag that `requires_grad` gives each traced leaf of `(args, kwargs)`.

    A bool is that of all leaves; a pytree has flags for positional arguments, and keywords have False.
    """
    if isinstance(requires_grad, bool):
        return [requires_grad] * in_tree.num_leaves
    positional, keywords = in_tree.children()
    flags = tree.broadcast_prefix(requires_grad, positional, f"{label}: requires_grad")
    for flag in flags:
        if not isinstance(flag, bool):
            raise ArgumentError(
                f"{label}: requires_grad must be a bool, or a tuple with a bool or a pytree of bools "
                f"for each positional argument; got {type_name(flag)} in it"
            )
    flags += [False] * keywords.num_leaves
    if isinstance(in_tree, tree.TreeDefWithStatic):
        return list(in_tree.without_static(flags))
    return flags


def requires_grad_flags(
    leaves: Sequence[Any], captured: Sequence[Any], given: Sequence[bool] | None
) -> list[bool]:
    """Whether each leaf and each captured value requires a gradient.

    Inexact arrays do where the flags `given` say so. Without these, Variables say it themselves, and
    if there are none, all inexact arrays do. Captured Variables say it themselves.
    """
    if given is None and any(map(is_variable, leaves)):
        flags = [requires_gradient(x) for x in leaves]
    else:
        inexact = [is_inexact(abstractify(x).dtype) for x in leaves]
        flags = [on and yes for on, yes in zip(given or inexact, inexact, strict=True)]
    return [*flags, *[requires_gradient(x) for x in captured]]


def requires_gradient(x: object) -> bool:
    """Whether `x` is a Variable that requires a gradient."""
    return is_variable(x) and bool(x.requires_grad)  # type: ignore[attr-defined]


def trace_with_writes(
    fun: Function,
    in_tree: object,
    avals: Sequence[ShapedArray],
    label: str,
    leaves: Sequence[Any] | None = None,
    strides: Sequence[Strides | None] | None = None,
) -> tuple[TracedFunction, tuple[Strides | None, ...]]:
    """The traced call of `fun`, whose program has its writes and copies, and the strides of its inputs.

    `leaves` are the arguments if they are known, whose memory the trace is made for. `strides` are
    those of the arguments, by default as the leaves have them.
    """
    values = None if leaves is None or not all(map(has_aval, leaves)) else leaves
    if strides is None:
        strides = () if values is None else [noncontiguous_strides(x) for x in values]
    memory = ROW_MAJOR._replace(strides=tuple(strides) if any(strides) else ())
    trace_in = function_tracer(fun, in_tree, avals, label, keeps_copies=True)
    traced, writes = trace_in(memory)
    if not writes:
        return traced, memory.strides
    return find_memory_layout(traced, trace_in, memory, values, AnalyzeMemory)


def analyze_program(
    program: Program,
    requires_grad: Flags,
    keep_input_mutations: bool = False,
    *,
    strides: Sequence[Strides | None] = (),
    is_leaf: Flags | None = None,
    shares_all: bool = False,
) -> tuple[Meta, Program]:
    """The `Meta` of a program with writes and copies, and the pure program.

    `requires_grad` and `is_leaf` have a flag for each input. The pure program returns the new values
    of mutated inputs (those out of the graph, then those in the graph), the outputs, and the bases.
    With `shares_all`, outputs that share memory have a base also where it needs no gradient, or where
    they are results of one view.
    """
    analyzed = cached_rewrite(AnalyzeMemory(tuple(strides)), program)
    pure, count = analyzed.program, len(program.inputs)
    active = differentiable_dependents(pure, requires_grad)
    if analyzed.overwrites:
        pure = without_needless_overwrites(pure, analyzed.overwrites, active)
        analyzed = analyzed._replace(program=pure)
    names = pad_input_names(pure.in_names() if pure.in_names else [], count)
    leaf_flags = [True] * count if is_leaf is None else is_leaf
    all_strides = [*strides, *[None] * (count - len(strides))]
    inputs = []
    for i, (v, name) in enumerate(zip(pure.inputs, names, strict=True)):
        info = InputInfo(name, v.aval, requires_grad[i], leaf_flags[i], strides=all_strides[i])
        if i in analyzed.writes:
            info = mutated_input_info(info, i, analyzed, keep_input_mutations, active)
        inputs.append(info)
    outputs, bases = output_infos(analyzed, inputs, active, shares_all)
    written = dict(zip(analyzed.writes, pure.outputs[len(program.outputs) :], strict=False))
    base_values = [pure.outputs[analyzed.roots[number]] for number in bases]
    meta = Meta(
        pure.name,
        tuple(inputs),
        tuple(outputs),
        tuple([atom.aval for atom in base_values]),
        tuple([atom in active for atom in base_values]),
        keep_input_mutations,
        program.effects - {Effect.WRITE},
        program.draws,
    )
    new = [written[i] for i in (*meta.mutated, *meta.in_graph)]
    results = [*new, *pure.outputs[: len(program.outputs)], *base_values]
    if {*results} != {*pure.outputs}:
        pure = with_io(pure, pure.inputs, results)
    elif results != pure.outputs:
        pure = replace_program_fields(pure, outputs=results)
    return meta, pure


def without_needless_overwrites(
    program: Program, overwrites: Collection[Atom], active: set[Atom]
) -> Program:
    """`program` with the new value in place of each of `overwrites`, but where the old one needs a gradient.

    `active` are the variables that need one.
    """
    new_value: dict[Atom, Atom] = {}
    equations = []
    for eqn in program.equations:
        inputs = [new_value.get(a, a) for a in eqn.inputs]
        if eqn.outputs[:1] and eqn.outputs[0] in overwrites:
            _, old, new = inputs
            if new in active or old not in active:
                new_value[eqn.outputs[0]] = new
                continue
        equations.append(eqn.replace(inputs=inputs))
    outputs = [new_value.get(a, a) for a in program.outputs]
    return replace_program_fields(program, equations=equations, outputs=outputs)


def differentiable_dependents(program: Program, requires_grad: Flags) -> set[Atom]:
    """The variables that reverse mode takes to depend on the inputs that require a gradient."""
    reached: set[Atom] = {*select_where(program.inputs, requires_grad)}
    for eqn in program.equations:
        if reached.isdisjoint(eqn.inputs):
            continue
        primitive = eqn.primitive
        if not is_differentiated(primitive):
            continue
        if type(primitive) is WithValue and eqn.inputs[0] not in reached:
            continue
        # As operations on Variables do, also where the derivative is always zero.
        reached.update([v for v in eqn.outputs if is_inexact(v.aval.dtype)])
    return reached


def mutated_input_info(
    info: InputInfo, i: int, analyzed: AnalyzedProgram, keeps: bool, active: set[Atom]
) -> InputInfo:
    """`info` with what the program does to input `i`, which it writes to."""
    writes = analyzed.writes[i]
    position = len(analyzed.outputs) + analyzed.written.index(i)
    # A write leaves an array that requires a gradient as one that does, also a write of a constant.
    gets_history = info.requires_grad or analyzed.program.outputs[position] in active
    is_in_graph = keeps and (not gets_history or writes.is_hidden or writes.is_under_no_grad)
    return replace(
        info,
        mutates_data=True,
        is_hidden=writes.is_hidden,
        is_under_no_grad=writes.is_under_no_grad,
        gets_history=gets_history,
        kind=MutationKind.IN_GRAPH if is_in_graph else MutationKind.OUT_OF_GRAPH,
    )


def output_infos(
    analyzed: AnalyzedProgram, inputs: Sequence[InputInfo], active: set[Atom], shares_all: bool
) -> tuple[list[OutputInfo], list[int]]:
    """The `OutputInfo` of each output, and the storages whose final values are the bases.

    `shares_all` is as in `analyze_program`.
    """
    values = analyzed.program.outputs
    sharing = Counter([m.storage for m in analyzed.outputs])
    own_views = Counter(
        [m.storage for m in analyzed.outputs if not m.view or not m.view[-1].view.multiple_results]
    )
    owners: dict[int, int] = {}
    for k, memory in enumerate(analyzed.outputs):
        if not memory.view:
            owners.setdefault(memory.storage, k)
    bases: list[int] = []
    found: list[OutputInfo] = []
    for k, (storage, view) in enumerate(analyzed.outputs):
        is_detached = any([isinstance(step.view, Detach) for step in view])
        grad = values[k] in active
        # A view of an array that was detached from its history may have one of its own.
        has_own_history = grad and is_detached
        if storage < len(inputs) and not is_detached:
            grad = grad or inputs[storage].gets_history
        info = OutputInfo(values[k].aval, OutputKind.PLAIN, grad, storage, view=view)
        if has_own_history:
            pass
        elif storage < len(inputs):
            if not grad or own_views[storage]:
                kind = OutputKind.ALIAS_OF_INPUT if view else OutputKind.IS_INPUT
                info = replace(info, kind=kind, base=storage)
        elif view and (
            (shares_all and sharing[storage] > 1)
            or (
                values[analyzed.roots[storage]] in active
                and (own_views[storage] > 1 if grad else storage in owners)
            )
        ):
            if storage in owners:
                base, base_kind = owners[storage], BaseKind.USER_OUTPUT
            elif storage in bases:
                base, base_kind = bases.index(storage), BaseKind.SAVED
            else:
                base, base_kind = len(bases), BaseKind.NEW
                bases.append(storage)
            alias = OutputKind.ALIAS_OF_INTERMEDIATE
            info = replace(info, kind=alias, base=base, base_kind=base_kind)
        found.append(info)
    return found, bases
