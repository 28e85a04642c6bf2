"""Analysis of a function: its writes to inputs, and the memory that outputs share, by one trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from functx.aot.meta import (
    BaseKind,
    InputInfo,
    Meta,
    MutationKind,
    OutputInfo,
    OutputKind,
    ViewStep,
)
from functx.core import tree
from functx.core.effects import Effect
from functx.core.errors import ArgumentError, type_name
from functx.core.functionalization import (
    Alias,
    Functionalizer,
    Storage,
    Strides,
    noncontiguous_strides,
    row_major_strides,
)
from functx.core.masks import select_where
from functx.core.primitive import View
from functx.core.program import (
    Atom,
    Equation,
    Literal,
    Part,
    Program,
    Var,
    pad_input_names,
    scalar_literal,
)
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.tracer import Tracer, is_variable
from functx.core.tracing import elide_copies, trace_closed
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Flags, Function, PyTree, Value
from functx.ops import BOOL, Select
from functx.ops.autodiff import Detach, WithValue
from functx.transforms.aliasing import ROW_MAJOR, find_memory_layout
from functx.transforms.argument_names import check_callable, wrap_transform
from functx.transforms.dce import with_io
from functx.transforms.tracing_api import (
    TracedFunction,
    abstractify,
    function_tracer,
    has_aval,
)


class RecordedWrites(NamedTuple):
    """The writes to the memory of an input.

    `is_hidden` says that all go through a detached alias, `is_under_no_grad` that all are made under
    no_grad, `in_forward` and `in_backward` that some are in that part of a joint function.
    """

    is_hidden: bool = True
    is_under_no_grad: bool = True
    in_forward: bool = False
    in_backward: bool = False


class OutputMemory(NamedTuple):
    """The storage of an output, by number, and the views that lead from it to the output.

    An output behind a view with computed operands has a storage of its own.
    """

    storage: int
    view: tuple[ViewStep, ...]


class AnalyzedProgram(NamedTuple):
    """A pure program, with the writes to its inputs and the memory of its outputs.

    The outputs are those of the function, then the new values of the inputs at the keys of `writes`,
    then the final values of the storages at the keys of `roots`, which no input owns, then the values
    after the forward part of the inputs at the keys of `forward_values`, which both parts write to.
    `roots` and `forward_values` hold the numbers of these outputs.
    """

    program: Program
    outputs: tuple[OutputMemory, ...]
    writes: dict[int, RecordedWrites]
    roots: dict[int, int]
    forward_values: dict[int, int]
    layout_dependent: bool

    @property
    def written(self) -> tuple[int, ...]:
        """The numbers of the inputs that are written to."""
        return tuple(self.writes)


class RecordingFunctionalizer(Functionalizer):
    """A functionalizer that notes how inputs are written to.

    A write that no derivative sees leaves the history of the array as it is, as a write to a
    Variable does: the new value has the derivative of the old one.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.writes: dict[Storage, RecordedWrites] = {}
        self.forward_values: dict[Storage, Tracer] = {}

    def write(self, eqn: Equation, target: Alias, value: Tracer) -> None:
        before = self.writes.get(target.storage, RecordedWrites())
        under_no_grad: bool = eqn.primitive.under_no_grad  # type: ignore[attr-defined]
        in_backward = eqn.part in (Part.BACKWARD, Part.STAYS_BACKWARD)
        if in_backward and not before.in_backward:
            self.forward_values[target.storage] = target.storage.value
        self.writes[target.storage] = RecordedWrites(
            before.is_hidden and is_detached(target),
            before.is_under_no_grad and under_no_grad,
            before.in_forward or not in_backward,
            before.in_backward or in_backward,
        )
        if under_no_grad and is_inexact(value.dtype) and value.atom is not target.read().atom:
            value = WithValue()(target.read(), value)
        target.write(value, keep_history)


def is_detached(alias: Alias) -> bool:
    """Whether a detached alias is among the views that lead to `alias`."""
    step: Alias | None = alias
    while step is not None and step.step is not None:
        if isinstance(step.step.view, Detach) and step.step.view.writable:
            return True
        step = step.parent
    return False


def keep_history(
    view: View, part: Tracer, index: int, base: Tracer, *other_operands: Tracer
) -> Tracer:
    """The value of `base` after its view has the value `part`, which a detached alias hides from it."""
    if isinstance(view, Detach) and is_inexact(base.dtype):
        return WithValue()(base, part)
    return view.scatter_into_base(part, index, base, *other_operands)


class AnalyzeMemory(Rewrite[AnalyzedProgram]):
    """The analysis of a program with writes, for inputs with the strides `layouts`."""

    layouts: tuple[Strides | None, ...] = ()

    def __call__(self, program: Program) -> AnalyzedProgram:
        if not program.writes:
            return analyze_without_writes(program, self.layouts)
        outputs: list[OutputMemory] = []
        writes: dict[int, RecordedWrites] = {}
        roots: dict[int, int] = {}
        forward_values: dict[int, int] = {}
        layout_dependent = False

        def body(*args: Tracer) -> list[Tracer]:
            nonlocal layout_dependent
            layouts = [*self.layouts, *[None] * (len(args) - len(self.layouts))]
            functionalizer = RecordingFunctionalizer(program.inputs, args, layouts)
            functionalizer.emit_all(program.equations)
            layout_dependent = functionalizer.layout_dependent
            aliases = functionalizer.aliases
            storages = {aliases[v].storage: i for i, v in enumerate(program.inputs)}
            outs = [functionalizer.read(atom) for atom in program.outputs]
            for storage, i in storages.items():
                if storage.value.atom is not storage.initial_value.atom:
                    writes[i] = functionalizer.writes[storage]
            new = [storage.value for storage, i in storages.items() if i in writes]
            for atom in program.outputs:
                number = len(args) + len(outputs)
                view: tuple[ViewStep, ...] = ()
                if type(atom) is not Literal:
                    steps = view_steps(aliases[atom])
                    if steps is not None:
                        number = storages.setdefault(aliases[atom].storage, number)
                        view = steps
                outputs.append(OutputMemory(number, view))
            for memory in outputs:
                if memory.view and memory.storage >= len(args):
                    roots.setdefault(memory.storage, len(outs) + len(new) + len(roots))
            values = {number: storage.value for storage, number in storages.items()}
            results = [*outs, *new, *[values[number] for number in roots]]
            for storage, i in storages.items():
                if i in writes and writes[i].in_forward and writes[i].in_backward:
                    forward_values[i] = len(results)
                    results.append(functionalizer.forward_values[storage])
            return results

        pure = trace_closed(body, program.in_avals, name=program.name, in_names=program.in_names)
        return AnalyzedProgram(
            pure, tuple(outputs), writes, roots, forward_values, layout_dependent
        )


def analyze_without_writes(program: Program, layouts: Sequence[Strides | None]) -> AnalyzedProgram:
    """As `AnalyzeMemory`, for a program without writes: it stays as it is, without its copies."""
    count = len(program.inputs)
    storages: dict[Atom, int] = {v: i for i, v in enumerate(program.inputs)}
    strides = dict(zip(program.inputs, layouts, strict=False))
    outputs: list[OutputMemory] = []
    roots: dict[int, Atom] = {}
    for atom in program.outputs:
        number = count + len(outputs)
        view: tuple[ViewStep, ...] = ()
        if type(atom) is Var:
            root, view = views_of(program, atom, strides)
            number = storages.setdefault(root, number)
            if view and number >= count:
                roots.setdefault(number, root)
        outputs.append(OutputMemory(number, view))
    results = [*program.outputs, *roots.values()]
    equations = program.equations
    if any([eqn.primitive.is_copy for eqn in equations]):
        equations, results = elide_copies(equations, results)
    pure = program
    if roots or equations is not program.equations:
        pure = replace_program_fields(program, equations=equations, outputs=results)
    numbers = {number: len(program.outputs) + k for k, number in enumerate(roots)}
    return AnalyzedProgram(pure, tuple(outputs), {}, numbers, {}, False)


def views_of(
    program: Program, atom: Var, strides_of: dict[Var, Strides | None]
) -> tuple[Var, tuple[ViewStep, ...]]:
    """The array that `atom` is a view of, and the views that lead from there to it.

    An array behind a view with computed operands is one of its own.
    """
    chain: list[tuple[Equation, int]] = []
    root: Atom = atom
    producers = program.def_use.producers
    while (
        (eqn := producers.get(root)) is not None
        and isinstance(eqn.primitive, View)
        and type(eqn.inputs[0]) is Var
    ):
        chain.append((eqn, eqn.outputs.index(root)))  # type: ignore[arg-type]
        root = eqn.inputs[0]
    assert type(root) is Var
    strides = strides_of.get(root) or row_major_strides(root.aval.shape)
    steps: list[ViewStep] = []
    for eqn, index in reversed(chain):
        view, (base, *others) = eqn.primitive, eqn.inputs
        assert isinstance(view, View)
        shared = view.view_strides(base.aval, strides)
        literals = tuple([a for a in others if type(a) is Literal])
        if shared is None or len(literals) < len(others):
            root, steps = eqn.outputs[index], []
            strides = row_major_strides(root.aval.shape)
        else:
            strides = shared
            steps.append(ViewStep(view, literals, index))
    return root, tuple(steps)


def view_steps(alias: Alias) -> tuple[ViewStep, ...] | None:
    """The views that lead from the storage to `alias`; None if one of them has computed operands."""
    steps: list[ViewStep] = []
    while alias.step is not None:
        view, _, others, output = alias.step
        atoms = [x.atom for x in others]
        literals = tuple([a for a in atoms if type(a) is Literal])
        if len(literals) < len(atoms):
            return None
        steps.append(ViewStep(view, literals, output))
        assert alias.parent is not None
        alias = alias.parent
    return tuple(reversed(steps))


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

    Raises ArgumentError if `fun` is not callable, or if `requires_grad` does not fit the arguments.

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
    leaves, in_tree = tree.flatten_with_key_data((tuple(args), kwargs))
    given = None if requires_grad is None else flags_of_leaves(requires_grad, in_tree, label)
    static = {i: x for i, x in enumerate(leaves) if not _is_array_like(x)}
    if static:
        in_tree = tree.treedef_with_static(in_tree, static)
        given = given and [flag for i, flag in enumerate(given) if i not in static]
        leaves = [x for i, x in enumerate(leaves) if i not in static]
    avals = [abstractify(x) for x in leaves]
    traced, strides = trace_with_writes(fun, in_tree, avals, label, leaves)
    flags = requires_grad_flags(leaves, traced.captured, given)
    is_leaf = [not is_variable(x) or bool(x.is_leaf) for x in (*leaves, *traced.captured)]
    meta, program = analyze_program(
        traced.program, flags, keep_input_mutations, strides=strides, is_leaf=is_leaf
    )
    return Analysis(meta, program, traced.captured, in_tree, traced.out_tree)


def _is_array_like(x: object) -> bool:
    return has_aval(x) or (hasattr(x, "shape") and hasattr(x, "dtype"))


def flags_of_leaves(requires_grad: PyTree, in_tree: tree.TreeDef, label: str) -> list[bool]:
    """The flag that `requires_grad` gives each leaf of `(args, kwargs)`; False for keyword arguments."""
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
    return [*flags, *[False] * keywords.num_leaves]


def requires_grad_flags(
    leaves: Sequence[Any], captured: Sequence[Any], given: Sequence[bool] | None
) -> list[bool]:
    """Whether each leaf and each captured value requires a gradient.

    Inexact arrays do where the flags `given` say so. Without these, Variables say it themselves, and
    if there are none, all inexact arrays do. Captured Variables say it themselves.
    """
    if given is None and any(map(is_variable, leaves)):
        flags = [is_variable(x) and bool(x.requires_grad) for x in leaves]
    else:
        inexact = [is_inexact(abstractify(x).dtype) for x in leaves]
        flags = [on and yes for on, yes in zip(given or inexact, inexact, strict=True)]
    return [*flags, *[is_variable(x) and bool(x.requires_grad) for x in captured]]


def trace_with_writes(
    fun: Function,
    in_tree: Any,
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
    names = pad_input_names(pure.in_names() if pure.in_names else [], count)
    leaf_flags = [True] * count if is_leaf is None else is_leaf
    layouts = [*strides, *[None] * (count - len(strides))]
    inputs = []
    for i, (v, name) in enumerate(zip(pure.inputs, names, strict=True)):
        info = InputInfo(name, v.aval, requires_grad[i], leaf_flags[i], strides=layouts[i])
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
    )
    constant = [i for i in meta.mutated if requires_grad[i] and written[i] not in active]
    if constant:
        zeros = {i: zero_derivative(pure.inputs[i], written[i]) for i in constant}
        written |= {i: eqn.outputs[0] for i, eqn in zeros.items()}
        pure = replace_program_fields(pure, equations=[*pure.equations, *zeros.values()])
    new = [written[i] for i in (*meta.mutated, *meta.in_graph)]
    results = [*new, *pure.outputs[: len(program.outputs)], *base_values]
    if {*results} != {*pure.outputs}:
        pure = with_io(pure, pure.inputs, results)
    elif results != pure.outputs:
        pure = replace_program_fields(pure, outputs=results)
    return meta, pure


def zero_derivative(x: Var, new: Atom) -> Equation:
    """The equation of the value `new` that depends on `x` with a derivative of zero."""
    true = scalar_literal(True, BOOL, False, "True")
    return Equation(Select(), [true, x, new], [Var(new.aval)], None)


def differentiable_dependents(program: Program, requires_grad: Flags) -> set[Atom]:
    """The variables that reverse mode takes to depend on the inputs that require a gradient."""
    reached: set[Atom] = {*select_where(program.inputs, requires_grad)}
    for eqn in program.equations:
        if reached.isdisjoint(eqn.inputs):
            continue
        primitive = eqn.primitive
        if not primitive.differentiable or primitive.is_constant_in_reverse_mode:
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
    """What is known of each output, and the storages whose final values are the bases.

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
