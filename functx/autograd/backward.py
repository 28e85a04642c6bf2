"""`backward` and `grad`: the gradients of Variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from functx import ops
from functx.autograd.engine import Walk, running_walk, visiting_order
from functx.autograd.gradients import array_of_gradient
from functx.autograd.modes import grad_mode
from functx.autograd.nodes import Edge, GradientEdge, Pullback
from functx.autograd.planned_walks import run_walk
from functx.autograd.variable import Variable, as_variable
from functx.core.argument_errors import with_explained_errors
from functx.core.binding import bind
from functx.core.builder import Builder
from functx.core.dead_code import dce_equations
from functx.core.errors import (
    AutogradInTransformError,
    ContradictingOptionsError,
    EmptyInputsError,
    EmptyOutputsError,
    GradientCountError,
    GradientMismatchError,
    ImplicitGradientError,
    LostDerivativeError,
    NoHistoryError,
    UnusedInputError,
    type_name,
)
from functx.core.functionalization import functionalized_atom
from functx.core.program import Atom, Equation, Literal, Program, Var
from functx.core.rewriting import apply, cached_rewrite
from functx.core.source_info import warn_at_user_line
from functx.core.tracebacks import api_boundary
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.tracing import refuse_in_transform, refuse_of_traced
from functx.core.types import ShapedArray, is_complex, is_inexact
from functx.core.typing import ArrayLike, Value
from functx.ops.operands import literal
from functx.transforms.vmap import vmap

VariablesOrEdges: TypeAlias = "Variable | GradientEdge | Sequence[Variable | GradientEdge]"
Gradients: TypeAlias = "ArrayLike | Sequence[ArrayLike | None] | None"


@api_boundary
def backward(
    tensors: VariablesOrEdges,
    grad_tensors: Gradients = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Gradients = None,
    inputs: VariablesOrEdges | None = None,
) -> None:
    """Add the gradients of `tensors` to `.grad` of the leaves that they were computed from.

    A gradient edge among `tensors` stands for the value that it was taken from, which may be gone.
    `grad_tensors` are the gradients of `tensors`, by default 1 for each of a single real element.
    With `inputs`, only these get gradients, also if they are not leaves; an edge stands for a leaf, or for
    a value that retains its gradient. The walk frees the values that gradients need unless `retain_graph`,
    which is `create_graph` by default. With `create_graph` the gradients are differentiable themselves.
    The gradient of a complex value is the direction of steepest ascent, as in PyTorch: the conjugate of
    that of `functx.grad`.

    Raises NoHistoryError for a tensor that requires no gradient, ImplicitGradientError for a gradient
    that must not be left out, GradientMismatchError and GradientCountError for gradients that do not
    fit, GradientTypeError for one that is not an array, EmptyInputsError for no inputs, FreedValueError for
    a second walk over freed values, SavedValueError for a saved value that was written to since, and
    AutogradInTransformError inside a transform.

    >>> from functx.autograd import Variable, backward
    >>> x = Variable(3.0, requires_grad=True)
    >>> backward(x * x)
    >>> print(x.grad)
    6.0
    """
    if grad_variables is not None:
        if grad_tensors is not None:
            raise ContradictingOptionsError(
                "backward: pass gradients by grad_tensors alone; got grad_variables too",
                fix="Leave out grad_variables, which is the old name.",
            )
        warn_at_user_line("backward: grad_variables has the name grad_tensors now", FutureWarning)
        grad_tensors = grad_variables
    if create_graph:
        warn_of_cycles()
    input_list = None if inputs is None else as_list(inputs)
    if input_list == []:
        raise EmptyInputsError(
            "backward: inputs must not be empty; got none",
            fix="Leave inputs out, for the gradients of all leaves.",
        )
    roots = as_list(tensors)
    refuse_traced("backward", roots)
    pairs = root_gradients("backward", roots, grad_tensors, batched=False)
    if pairs:
        walk_backward(pairs, retain_graph, create_graph, input_list, accumulate=True)


_has_warned_of_cycles = False


def warn_of_cycles() -> None:
    """Warns once that gradients with a history and leaves refer to each other."""
    global _has_warned_of_cycles
    if _has_warned_of_cycles:
        return
    _has_warned_of_cycles = True
    warn_at_user_line(
        "backward(create_graph=True): gradients and leaves refer to each other, which keeps "
        "memory until the garbage collector runs; use functx.autograd.grad",
        UserWarning,
    )


# Here and not where it is exported, since `__functx_function__` of an array gets it.
@with_explained_errors
@api_boundary
def grad(
    outputs: VariablesOrEdges,
    inputs: VariablesOrEdges,
    grad_outputs: Gradients = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """The gradients of `outputs` in `inputs`, as a tuple; no `.grad` changes.

    `outputs` are the `tensors` of `backward`, and `grad_outputs`, `retain_graph` and `create_graph` are as
    there. An input that the outputs do not use is refused unless `allow_unused`, which is
    `materialize_grads` by default: its gradient is None, or with `materialize_grads` zeros that require
    gradients. With `is_grads_batched`, each gradient of an output has a leading batch axis, and so have
    the results. Arrays that a transform traces, such as the argument of a function under `functx.grad`,
    are differentiated in its trace.

    Raises UnusedInputError for such an input, EmptyInputsError (a ValueError) and EmptyOutputsError,
    ContradictingOptionsError (a ValueError) for `allow_unused=False` with `materialize_grads`, and the
    other errors of `backward`.

    >>> from functx.autograd import Variable, grad
    >>> x = Variable(3.0, requires_grad=True)
    >>> (slope,) = grad(x**3, x, create_graph=True)
    >>> (curvature,) = grad(slope, x)
    >>> print(slope, curvature)
    27.0 18.0
    """
    roots, input_list = as_list(outputs), as_list(inputs)
    options = {
        "grad_outputs": grad_outputs,
        "retain_graph": retain_graph,
        "create_graph": create_graph,
        "only_inputs": only_inputs,
        "allow_unused": allow_unused,
        "is_grads_batched": is_grads_batched,
        "materialize_grads": materialize_grads,
    }
    for x in (*roots, *input_list):
        override = getattr(type(x), "__functx_function__", None)
        if override is not None:
            return x.__functx_function__(grad, (outputs, inputs), options)  # type: ignore[no-any-return]
    check_grad_options(roots, input_list, options)
    allow_unused = materialize_grads if allow_unused is None else allow_unused
    gradients: Sequence[Any]
    if is_traced(roots):
        gradients = grad_of_traced(roots, grad_outputs, is_grads_batched, input_list)
    elif is_grads_batched:
        gradients = batched_gradients(roots, grad_outputs, retain_graph, create_graph, input_list)
    else:
        pairs = root_gradients("grad", roots, grad_outputs, batched=False)
        gradients = walk_backward(pairs, retain_graph, create_graph, input_list, accumulate=False)
    return tuple(
        [
            unused_gradient(i, x, allow_unused, materialize_grads) if g is None else g
            for i, (x, g) in enumerate(zip(input_list, gradients, strict=True))
        ]
    )


def check_grad_options(roots: list[Any], inputs: list[Any], options: dict[str, Any]) -> None:
    """Raise an error for no outputs, no inputs, or options that contradict each other."""
    if not options["only_inputs"]:
        warn_at_user_line(
            "grad: only_inputs=False has no effect; use backward to add to all leaves",
            FutureWarning,
        )
    if not roots:
        raise EmptyOutputsError(
            "grad: outputs must not be empty; got none", fix="Pass at least one output."
        )
    if not inputs:
        raise EmptyInputsError(
            "grad: inputs must not be empty; got none", fix="Pass at least one input."
        )
    if options["materialize_grads"] and options["allow_unused"] is False:
        raise ContradictingOptionsError(
            "grad: materialize_grads gives zeros for unused inputs, which allow_unused=False "
            "refuses; got both",
            fix="Leave allow_unused out.",
        )


def unused_gradient(i: int, x: Any, allow_unused: bool, materialize: bool) -> Value | None:
    """The gradient of input number `i`, which the outputs do not use."""
    if not allow_unused:
        raise UnusedInputError(
            f"grad: each input must be used by the outputs; got input number {i}, which is not",
            fix="Pass allow_unused=True, which gives None for it.",
        )
    if not materialize:
        return None
    if isinstance(x, GradientEdge):
        raise UnusedInputError(
            f"grad: materialize_grads needs arrays, whose shapes zeros take; got an edge as input "
            f"number {i}",
            fix="Pass the array itself, or allow_unused=True alone.",
        )
    zeros = ops.zeros_like(x.atom.aval)
    return zeros if type(x) is Tracer else Variable(zeros, requires_grad=True)


Roots = Sequence[tuple[Any, Any]]
"""Variables, edges or traced values, each with its gradient."""


def root_gradients(label: str, roots: Sequence[Any], gradients: Gradients, batched: bool) -> Roots:
    """Each root with its gradient, which is 1 by default for a single real element."""
    values = [None] * len(roots) if gradients is None else as_list(gradients)
    if len(values) != len(roots):
        raise GradientCountError(
            f"{label}: there must be a gradient or None for each output; got {len(values)} for "
            f"{len(roots)}",
            fix="Pass a list of as many gradients as outputs; None stands for 1.",
        )
    return [
        (root, root_gradient(label, i, root, value, batched))
        for i, (root, value) in enumerate(zip(roots, values, strict=True))
    ]


def root_gradient(
    label: str, i: int, root: object, value: object, batched: bool
) -> Value | Literal:
    """The gradient of root number `i`, in the dtype of the root."""
    if not isinstance(root, (Tracer, GradientEdge)):
        raise NoHistoryError(
            f"{label}: outputs must be Variables or gradient edges; got {type_name(root)} as number {i}",
            fix="Compute it from functx.autograd.Variable(x, requires_grad=True).",
        )
    aval = root_aval(root)
    has_gradient = root.requires_grad if isinstance(root, Variable) else is_inexact(aval.dtype)
    if not has_gradient:
        raise NoHistoryError(
            f"{label}: an output must require a gradient; got number {i}, {aval!r}, without "
            "history",
            fix="Make a leaf with requires_grad=True before computing it.",
        )
    if value is None:
        if aval.size != 1 or is_complex(aval.dtype):
            raise ImplicitGradientError(
                f"{label}: the gradient can be left out only for an output of one real element; "
                f"got number {i}, {aval!r}",
                fix="Reduce it to a real number (y.sum()), or pass its gradient.",
            )
        if current_builder.get() is None and not aval.shape:
            return literal(1, aval.dtype)
        one = ops.constant_like(aval, 1)
        return one if isinstance(one, Tracer) else Variable(one)
    gradient = array_of_gradient(value, f"{label}: gradient number {i}")
    shape = gradient.shape[1:] if batched else gradient.shape
    if shape != aval.shape or (batched and not gradient.shape):
        batch = ", after its first axis, the batch that vmap maps over" if batched else ""
        raise GradientMismatchError(
            f"{label}: a gradient must have the shape of its output{batch}; got "
            f"{gradient.atom.aval!r} as number {i} for output number {i}, {aval!r}",
            fix=f"Pass one of shape {(*(['batch'] if batched else []), *aval.shape)}.",
        )
    if is_complex(gradient.dtype) != is_complex(aval.dtype):
        raise GradientMismatchError(
            f"{label}: a gradient must be complex exactly if its output is; got "
            f"{gradient.dtype} as number {i} for output number {i}, of {aval.dtype}",
            fix=f"Convert the gradient to {aval.dtype}.",
        )
    if gradient.dtype != aval.dtype or gradient.weak_type:
        gradient = bind(ops.ConvertElementType(aval.dtype), (gradient,))
    return gradient


def root_aval(root: Tracer | GradientEdge) -> ShapedArray:
    """The type of a root."""
    if isinstance(root, GradientEdge):
        return root.node.out_avals[root.output_nr]
    return root.atom.aval  # type: ignore[return-value]


def walk_backward(
    roots: Roots,
    retain_graph: bool | None,
    create_graph: bool,
    inputs: Sequence[Any] | None,
    accumulate: bool,
) -> list[Any]:
    """The gradients of `inputs`, by a walk from `roots`, whose gradients may be None."""
    label = "backward" if accumulate else "grad"
    edges = None if inputs is None else [edge_of_input(label, i, x) for i, x in enumerate(inputs)]
    if accumulate:
        for x in inputs or ():
            if isinstance(x, Variable):
                x.retain_grad()
    walk = Walk(
        create_graph, create_graph if retain_graph is None else retain_graph, edges, accumulate
    )
    edges_of_roots = [x if isinstance(x, GradientEdge) else x.edge for x, _ in roots]
    gradients_of_roots = [g if g is None else walk.gradient_of(g).value for _, g in roots]
    run_walk(walk, [*zip(edges_of_roots, gradients_of_roots, strict=True)])
    if edges is None:
        return []
    gradients = [walk.wanted_gradients[edge] for edge in edges]
    return [None if g is None else walk.variable_of(g) for g in gradients]


def edge_of_input(label: str, i: int, x: object) -> Edge:
    """The edge of input number `i`; NoHistoryError if it does not require a gradient."""
    if isinstance(x, GradientEdge):
        return x
    edge = x.edge if isinstance(x, Variable) else None
    if edge is None:
        shown = repr(x.atom.aval) if isinstance(x, Variable) else type_name(x)
        raise NoHistoryError(
            f"{label}: an input must require a gradient; got number {i}, {shown}, which does not",
            fix="Make it with requires_grad=True before computing the outputs.",
        )
    return edge


def batched_gradients(
    roots: Sequence[Any],
    grad_outputs: Gradients,
    retain_graph: bool | None,
    create_graph: bool,
    inputs: Sequence[Any],
) -> list[Any]:
    """The gradients of `inputs`, with a leading axis, by a walk under `vmap`."""
    _, batches = zip(*root_gradients("grad", roots, grad_outputs, batched=True), strict=True)
    is_used: list[bool] = []

    def walk_once(*gradients: object) -> list[Any]:
        pairs = list(zip(roots, gradients, strict=True))
        results = walk_backward(pairs, retain_graph, create_graph, inputs, accumulate=False)
        is_used[:] = [g is not None for g in results]
        return [g for g in results if g is not None]

    mapped = vmap(walk_once, batched_dims(roots, grad_outputs))
    with grad_mode(create_graph):
        results = iter(mapped(*batches))
    return [as_variable(next(results)) if used else None for used in is_used]


def batched_dims(roots: Sequence[Any], grad_outputs: Gradients) -> tuple[int | None, ...]:
    """The batch axis of each gradient, None if it was left out; GradientCountError if all were."""
    values = [None] * len(roots) if grad_outputs is None else as_list(grad_outputs)
    if all([value is None for value in values]):
        raise GradientCountError(
            "grad: is_grads_batched must get at least one batch of gradients; got None for all of "
            f"{len(roots)} outputs",
            fix="Pass a gradient with a leading batch axis, or leave is_grads_batched out.",
        )
    return tuple([None if value is None else 0 for value in values])


def grad_of_traced(
    roots: Sequence[Any], grad_outputs: Gradients, batched: bool, inputs: Sequence[Any]
) -> list[Any]:
    """The gradients of traced values in traced values, as equations of their trace."""
    check_traced(roots, inputs)
    # Cotangents are conjugates of the gradients that users see.
    cts = [
        gradient if type(gradient) is Literal else ops.conj_if_complex(gradient)
        for _, gradient in root_gradients("grad", roots, grad_outputs, batched)
    ]
    builder = current_builder.require()
    if builder.gradient_stop is not None:
        builder.gradient_stop.apply()
    atoms: list[Atom] = []
    for x in [*roots, *inputs]:
        builder, atom = functionalized_atom(builder, builder.atom(x))
        atoms.append(atom)
    in_atoms = atoms[len(roots) :]
    program, varying = program_between(builder, in_atoms, atoms[: len(roots)])
    active = tuple([v in varying for v in program.inputs])
    pullback = cached_rewrite(Pullback(active, masked=False), program)
    operands = [Tracer(v, builder) for v in program.inputs]

    def pull_back(*cts: object) -> Sequence[Any]:
        # The masks of the gradients follow them, which are zero where these are false.
        return apply(None, pullback, [*cts, *operands])[: len(varying)]

    dims = batched_dims(roots, grad_outputs) if batched else None
    gradients = (pull_back if dims is None else vmap(pull_back, dims))(*cts)
    by_input = dict(zip(varying, map(ops.conj_if_complex, gradients), strict=True))
    return [by_input[v] if type(v) is Var and varying[v] else None for v in in_atoms]


def check_traced(outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Raise an error for an output or input that is not an array, or an input that is not differentiable."""
    for kind, values in (("outputs", outputs), ("inputs", inputs)):
        for i, x in enumerate(values):
            if not isinstance(x, Tracer):
                error = AutogradInTransformError(
                    f"grad: inside a transform, {kind} must be arrays; got {type_name(x)} as number {i}",
                    fix="Pass the array itself.",
                )
                refuse_in_transform(error, current_builder.innermost())
    for i, x in enumerate(inputs):
        if not is_inexact(x.dtype):
            raise NoHistoryError(
                "grad: an input must be of floating point or complex numbers; got number "
                f"{i}, {aval_of(x)!r}",
                fix="Convert it first (x.astype(float)).",
            )


def program_between(
    builder: Builder, inputs: Sequence[Atom], outputs: Sequence[Atom]
) -> tuple[Program, dict[Var, bool]]:
    """The equations of a trace from `inputs` to `outputs`, as a program.

    Its first inputs are the differentiable ones of `inputs`, each returned with whether the program
    reads it; its other inputs are values that earlier equations computed.
    """
    known = {v for v in inputs if type(v) is Var}
    equations = [
        eqn
        for eqn in dce_equations(builder.equations, outputs)
        if known.isdisjoint(eqn.outputs) and not eqn.primitive.is_constant_in_reverse_mode
    ]
    equations = dce_equations(equations, outputs)
    check_not_computed_outside(builder, equations, outputs, inputs)
    computed = {v for eqn in equations for v in eqn.outputs}
    atoms_read = [*[a for eqn in equations for a in eqn.inputs], *outputs]
    read = dict.fromkeys(a for a in atoms_read if type(a) is Var)
    others = [v for v in read if v not in computed and v not in known]
    varying = {v: v in read for v in inputs if type(v) is Var and is_inexact(v.aval.dtype)}
    return Program("traced", [*varying, *others], equations, outputs), varying


def is_traced(roots: Sequence[Any]) -> bool:
    """Whether gradients of `roots` are taken in a trace, as its equations.

    Inside a transform they are, also for Variables, unless a walk runs.
    """
    return any([type(x) is Tracer for x in roots]) or (
        current_builder.get() is not None and running_walk.get() is None
    )


def check_not_computed_outside(
    builder: Builder, equations: Sequence[Equation], outputs: Sequence[Atom], inputs: Sequence[Atom]
) -> None:
    """Raise LostDerivativeError if the trace captures a value computed from an input outside it."""
    read = {a for eqn in equations for a in eqn.inputs} | set(outputs)
    captured = [(v, x) for v, x in builder.captures.values() if isinstance(x, Tracer)]
    sources = [x for v, x in captured if v in inputs]
    for v, x in captured:
        if v in read and v not in inputs and is_inexact(x.dtype) and depends_on(x, sources):
            error = LostDerivativeError(
                "grad: inside a transform, values are differentiated that are computed in it; got "
                f"{x.describe()}, which is computed from an input outside {builder.owner}",
                fix="Compute it inside, or call functx.autograd.grad outside the transform.",
            )
            refuse_in_transform(error, builder)


def depends_on(x: Tracer, sources: Sequence[Tracer]) -> bool:
    """Whether a Variable or a traced value is one of `sources`, or was computed from one."""
    if any([x is y for y in sources]):
        return True
    if isinstance(x, Variable):
        nodes = {y.edge[0] for y in sources if isinstance(y, Variable) and y.edge is not None}
        return x.edge is not None and not nodes.isdisjoint(visiting_order([x.edge[0]])[1])
    builder, atom = functionalized_atom(x.builder, x.atom)
    atoms: set[Atom] = {v for v, y in builder.captures.values() if any([y is s for s in sources])}
    atoms |= {
        functionalized_atom(x.builder, y.atom)[1]
        for y in sources
        if type(y) is Tracer and y.builder is x.builder
    }
    if atom in atoms:
        return True
    read = {a for eqn in dce_equations(builder.equations, [atom]) for a in eqn.inputs} | {atom}
    return not atoms.isdisjoint(read) or any(
        [
            depends_on(y, sources)
            for v, y in builder.captures.values()
            if v in read and isinstance(y, Tracer)
        ]
    )


def refuse_traced(label: str, values: Sequence[Any]) -> None:
    """Raise AutogradInTransformError inside a transform, whose values have no leaves."""
    builder = current_builder.get()
    if builder is None and not any([type(x) is Tracer for x in values]):
        return
    builder = builder or current_builder.require()
    error = AutogradInTransformError(
        f"{label}: it must not be called inside a transform, whose values are traced; got a call "
        f"in {builder.owner}",
        fix="Use functx.grad or functx.vjp of a function, which nest; under functx.jit, a Variable that "
        "gets a gradient is read from around the function, not passed to it.",
    )
    for x in values:
        if type(x) is Tracer:
            refuse_of_traced(error, x)
    refuse_in_transform(error, builder)


def as_list(x: Any) -> list[Any]:
    """One array or several, as a list."""
    is_sequence = isinstance(x, (list, tuple)) and not isinstance(x, GradientEdge)
    return list(x) if is_sequence else [x]
