"""`linear_transpose`: the transpose of a linear function, and of a linear program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from functx import ops
from functx.core import tree
from functx.core.dead_code import dce_equations
from functx.core.errors import (
    ArgumentError,
    GradientError,
    LinearityError,
    MissingRuleError,
    TangentError,
    type_name,
)
from functx.core.masks import linear_mask, scatter_where, select_where, select_where_not
from functx.core.primitive_families import HasDCE
from functx.core.program import Atom, Equation, Program, Var
from functx.core.program_editing import inline
from functx.core.rewriting import (
    Rewrite,
    apply,
    bind_equation,
    cached_rewrite,
    rewrite_by_structure,
)
from functx.core.tracebacks import api_boundary
from functx.core.tracer import abstractify, aval_of, current_builder
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray, is_inexact, kind
from functx.core.typing import Avals, Cotangent, Function, PyTree, Value, Values
from functx.ops.autodiff import raise_refusal
from functx.transforms.argument_names import (
    argument_names,
    check_callable,
    function_name,
    key_path_strings,
)
from functx.transforms.dce import RemoveEffects, used_variables, varied
from functx.transforms.decompose import decompose_missing_rules
from functx.transforms.reverse_mode import CotangentSums, transpose_equations, transpose_operand
from functx.transforms.rule_checks import find_nonlinear_term
from functx.transforms.tracing_api import trace_function


@api_boundary
def linear_transpose(fun: Function, *primals: PyTree) -> Function:
    """The transpose of `fun`: a function from a cotangent of the output to cotangents of `primals`.

    `fun` must be linear in all its arguments together, and map inexact arrays to inexact ones, or
    integers to integers. Only the structure, shapes and dtypes of `primals` matter, so anything
    that has these will do. The transpose returns a tuple with the structure of `primals`; None in
    its argument stands for zero. It costs as much as `fun`, which is not computed.

    Raises LinearityError for a function that is not linear, GradientError for one between other
    dtypes; the transpose raises TreeError and TangentError for a cotangent unlike the output.

    >>> import functx
    >>> transpose = functx.linear_transpose(lambda x, y: 2.0 * x - y, 1.0, 1.0)
    >>> [float(ct) for ct in transpose(3.0)]
    [6.0, -3.0]
    """
    check_callable(fun, "linear_transpose")
    label = f"linear_transpose({function_name(fun)})"
    leaves, in_tree = tree.flatten((primals, {}))
    avals = [_abstractify_primal(i, fun, in_tree, leaves) for i in range(len(leaves))]
    traced = trace_function(fun, in_tree, avals, "linear_transpose").refuse_writes(label)
    out_avals = traced.program.out_avals
    inexact = {is_inexact(a.dtype) for a in [*avals, *out_avals]}
    if len(inexact) > 1:
        raise GradientError(
            f"{label}: the function must map inexact arrays to inexact ones, or integers to "
            f"integers; got {', '.join(map(repr, avals))} -> {', '.join(map(repr, out_avals))}"
        )
    pull = rewrite_by_structure(LinearTranspose(label, len(avals)), traced.program)

    def transpose(captured: Values, ct: PyTree) -> PyTree:
        cts = _check_output_cotangents(label, traced.out_tree, out_avals, ct)
        args, _ = tree.unflatten(in_tree, apply(None, pull, [*cts, *captured]))
        return args

    return tree.Partial(transpose, traced.captured)


def _abstractify_primal(
    i: int, fun: Function, in_tree: tree.TreeDef, leaves: Values
) -> ShapedArray:
    x = leaves[i]
    try:
        return abstractify(x)
    except ArgumentError:
        raise ArgumentError(
            f"linear_transpose({function_name(fun)}): primals must be arrays, or have a shape and a "
            f"dtype; got {type_name(x)} for `{argument_names(fun, in_tree, leaves)()[i]}`"
        ) from None


def _check_output_cotangents(
    label: str, out_tree: tree.TreeDef, avals: Avals, ct: PyTree
) -> list[Value]:
    """The cotangents of the outputs, with zeros for None."""
    leaves = tree.flatten_up_to(out_tree, ct, f"{label}: the cotangent", "the output")
    converted = []
    for i, (x, aval) in enumerate(zip(leaves, avals, strict=True)):
        given = aval if x is None else aval_of(x)
        weak = given.weak_type and _DTYPE_KIND_ORDER.index(
            kind(given.dtype)
        ) <= _DTYPE_KIND_ORDER.index(kind(aval.dtype))
        if given.shape != aval.shape or (given.dtype != aval.dtype and not weak):
            raise TangentError(
                f"{label}: a cotangent must have the shape and dtype of its output; "
                f"got {given!r} for output{key_path_strings(out_tree, avals)[i]}: {aval!r}"
            )
        if x is None:
            x = ops.zeros_like(aval)
        elif given.dtype != aval.dtype or (given is not aval and current_builder.get() is not None):
            x = ops.convert_element_type(x, aval.dtype, aval.weak_type)
        converted.append(x)
    return converted


_DTYPE_KIND_ORDER = "buifc"


class Transpose(Rewrite[Program]):
    """The rewrite to the transpose of a program that is linear in the inputs marked `linear`.

    The result takes the cotangents of the inexact outputs, then the other inputs, and returns the
    cotangents of the linear ones.
    """

    linear: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        program = decompose_missing_rules(program, "transpose")
        outputs = [a for a in program.outputs if is_inexact(a.aval.dtype)]
        return trace_transpose(program, self.linear, outputs, transpose_equations)


def trace_transpose(
    program: Program,
    linear: Sequence[bool],
    outputs: Sequence[Atom],
    sweep: Callable[[Sequence[Equation], dict[Var, Any], CotangentSums], None],
) -> Program:
    """The transpose of `program` in the inputs marked `linear`.

    It takes the cotangents of `outputs`, then the other inputs. `sweep` propagates the cotangents,
    as `transpose_equations` does.
    """
    others = select_where_not(program.inputs, linear)

    def body(*args: Value) -> list[Value]:
        count = len(outputs)
        known: dict[Var, Any] = dict(zip(others, args[count:], strict=True))
        cts = CotangentSums()
        cts.seed(outputs, args[:count])
        sweep(evaluate_known(program, known), known, cts)
        return cts.take(select_where(program.inputs, linear))

    avals = [a.aval for a in (*outputs, *others)]
    return trace_closed(body, avals, name=f"transpose_{program.name}")


def transpose_call(
    program: Program,
    cts: Sequence[Cotangent],
    args: Sequence[Any],
    run: Callable[[Program, list[Value]], Sequence[Value]],
) -> list[Cotangent]:
    """The cotangents of the linear operands among `args` of a call of `program`.

    `run` runs the transpose of the program on its operands.
    """
    linear = linear_mask(args)
    transposed = cached_rewrite(Transpose(linear), program)
    operands = [*ops.inexact_cotangents(cts, program.out_avals), *select_where_not(args, linear)]
    return scatter_where(run(transposed, operands), linear)


def first_inputs(program: Program, count: int) -> tuple[bool, ...]:
    """The mask of the first `count` inputs of `program`."""
    return tuple([i < count for i in range(len(program.inputs))])


def evaluate_known(program: Program, known: dict[Var, Any]) -> list[Equation]:
    """Evaluates the equations on known values alone; returns the others, which are linear.

    A loop, a branch or a call may compute both: its outputs that do not vary are evaluated.
    """
    linear = []
    read = used_variables(program.equations, ())
    for eqn in program.equations:
        if all(type(a) is not Var or a in known for a in eqn.inputs):
            args = [transpose_operand(atom, known) for atom in eqn.inputs]
            known.update(zip(eqn.outputs, bind_equation(eqn, *args), strict=True))
            continue
        linear.append(eqn)
        if not isinstance(eqn.primitive, HasDCE):
            continue
        active = {a for a in eqn.inputs if type(a) is Var and a not in known}
        moving = varied(eqn, active)
        steady = [v for v in eqn.outputs if v in read and v not in moving]
        part = Program(program.name, program.inputs, dce_equations([eqn], steady), steady)
        for own in RemoveEffects()(part).equations:
            if all(type(a) is not Var or a in known for a in own.inputs):
                args = [transpose_operand(atom, known) for atom in own.inputs]
                known.update(zip(own.outputs, bind_equation(own, *args), strict=True))
    return linear


class LinearTranspose(Rewrite[Program]):
    """The rewrite to the transpose of a program in its first `linear` inputs.

    The result takes the cotangents of all outputs, then the other inputs. Messages name the
    function `label`.
    """

    label: str
    linear: int

    def __call__(self, program: Program) -> Program:
        program = decompose_missing_rules(inline(program, ("call",)), "transpose")
        self.check_linearity(program)
        linear = first_inputs(program, self.linear)
        return trace_transpose(program, linear, program.outputs, self.transpose_equations)

    def transpose_equations(
        self, equations: Sequence[Equation], known: dict[Var, Any], cts: CotangentSums
    ) -> None:
        """As the function of this name; LinearityError for an equation that is not linear."""
        made = current_builder.require().equations
        for eqn in reversed(equations):
            start = len(made)
            try:
                transpose_equations([eqn], known, cts)
                raise_refusal([made[start:]])
            except MissingRuleError:
                raise
            except Exception as error:  # Rules may fail in any way on what is not linear.
                raise self.linearity_error(eqn, "it is not linear") from error

    def check_linearity(self, program: Program) -> None:
        """Raise LinearityError unless the outputs are linear in the first inputs."""
        inputs = program.inputs[: self.linear]
        found = find_nonlinear_term(program.equations, inputs, program.outputs, strict=True)
        if found is None:
            return
        eqn = found.place
        if not isinstance(eqn, Equation):
            raise LinearityError(
                f"{self.label}: the function must be linear; got an output that does not "
                f"depend on its arguments: {eqn.aval!r}"
            )
        if not eqn.primitive.differentiable:
            raise self.linearity_error(eqn, "its output does not vary smoothly")
        raise self.linearity_error(eqn, "it adds a constant, which makes the function affine")

    def linearity_error(self, eqn: Equation, why: str) -> LinearityError:
        return LinearityError(
            f"{self.label}: the function must be linear; got {eqn.primitive!r}: {why}",
            source=eqn.source,
        )


def transpose_program(program: Program, linear: int, problem: str, fix: str = "") -> Program:
    """The transpose of `program` in its first `linear` inputs.

    Raises LinearityError with `problem` if it is not linear in them.
    """
    try:
        transposed = cached_rewrite(Transpose(first_inputs(program, linear)), program)
    except MissingRuleError:
        raise
    except Exception as error:  # Rules may fail in any way on equations that are not linear.
        raise LinearityError(problem, fix=fix) from error
    raise_refusal(transposed.walk())
    return transposed
