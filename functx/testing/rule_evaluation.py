"""The evaluations of a rule case: the results of the rules of a primitive on one sample.

Each is a program that runs by NumPy definitions. The operations of all of them are compiled side by
side, because compilation takes most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import numpy as np

from functx import ops
from functx.core.config import program_checks
from functx.core.decompositions import Decomposition, registered_decompositions
from functx.core.primitive import LinearInput, Primitive
from functx.core.program import Atom, Equation, Program, Var
from functx.core.tracer import current_builder
from functx.core.tracing import trace
from functx.core.types import SHORT_NAMES, ShapedArray, is_inexact, x64_enabled
from functx.core.typing import ArrayLike, Avals, Cotangent, Value, Values
from functx.lax.parametric_functions import KernelFunction
from functx.lowering.functx_call import jit_program
from functx.ops.families import apply_mask
from functx.testing.numerical_derivatives import Array
from functx.testing.reference.interpreter import (
    NumpyInterpreter,
    copy_arguments,
    narrow_array,
    numpy_definition,
    read_atom,
)
from functx.transforms.batching import Batch
from functx.transforms.decompose import trace_decomposition
from functx.transforms.forward_mode import JVPRewrite
from functx.transforms.reverse_mode import SplitVJP, transpose_jvp_rule

if TYPE_CHECKING:
    from functx.testing.rule_cases import RuleCase

Dims = tuple[int | None, ...]
RuleEvaluation = Callable[["TracedInputs"], Sequence[ArrayLike]]
EvaluationName: TypeAlias = str | tuple[Hashable, ...]
TracedEvaluation: TypeAlias = tuple[Program, list[Value]]
EvaluationResults: TypeAlias = dict[EvaluationName, Any]

FAST_COMPILE_OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
    "xla_disable_hlo_passes": "simplify-while-loops,while-loop-invariant-code-motion",
}
"""XLA options for programs that run once: quick compilation instead of fast code."""

COMPARED_OPERATIONS: set[Hashable] = set()
"""The operations of rules whose lowering agreed with their definition in this process."""

BATCH_SIZES = 2, 3
"""The sizes of the inner and of the outer batch."""


@contextmanager
def checked_tracing(x64: bool = True) -> Iterator[None]:
    """Switch 64-bit types on or off, and check every program that is made."""
    enabled, program_checks.enabled = program_checks.enabled, True
    try:
        with jax.enable_x64(x64):
            yield
    finally:
        program_checks.enabled = enabled


class CheckedOperation(NamedTuple):
    """A primitive, the program that applies it to operands of some types, and sets of operands."""

    primitive: Primitive
    program: Program
    draws: list[list[Array]]

    def __repr__(self) -> str:
        return f"{self.primitive!r} on {', '.join(map(repr, self.program.in_avals))}"

    @property
    def dtype_name(self) -> str:
        """The name of the dtype of the first inexact operand or output, or else of the first."""
        avals = [*self.program.in_avals, *self.program.out_avals]
        return SHORT_NAMES[next((a.dtype for a in avals if is_inexact(a.dtype)), avals[0].dtype)]


class TracedInputs:
    """The traced operands, tangents and cotangents of a rule case."""

    def __init__(self, case: RuleCase, values: Values):
        remaining = iter(values)
        self.args = [next(remaining) for _ in case.args]
        self.tangents = [next(remaining) for _ in case.tangents]
        self.cts = [next(remaining) for _ in case.cts]
        self.ct_tangents = [next(remaining) for _ in case.ct_tangents]
        self.second_cts = [next(remaining) for _ in case.second_cts]


class InterpretedRules:
    """All evaluations of a rule case, each a program that runs by NumPy definitions.

    `operations` are the distinct operations of the programs that are not among
    `COMPARED_OPERATIONS`, with operands of that program: what must be lowered as it is defined.
    """

    def __init__(self, case: RuleCase):
        self.case = case
        self.programs: dict[EvaluationName, TracedEvaluation] = {}
        self.results: EvaluationResults = {}
        self.operations: dict[Hashable, CheckedOperation] = {}
        self._draws: set[Hashable] = set()
        for name, evaluation in rule_evaluations(case).items():
            try:
                self.programs[name] = self._trace(evaluation)
                values = self._values(name, case.args, case.cts)
                self.results[name] = self._outputs(name, values)
                self._note_operations(self.programs[name][0], values)
            except Exception as error:
                self.results[name] = error

    def at(self, name: EvaluationName, args: Sequence[Array], cts: Sequence[Array]) -> list[Array]:
        """The arrays of one evaluation on other operands and cotangents."""
        with checked_tracing():
            return self._outputs(name, self._values(name, args, cts))

    def _trace(self, evaluation: RuleEvaluation) -> TracedEvaluation:
        case = self.case
        avals = [*case.avals]
        for group in (case.tangents, case.cts, case.ct_tangents, case.second_cts):
            avals += [ShapedArray(x.shape, x.dtype) for x in group]
        return trace(
            lambda *xs: [*evaluation(TracedInputs(case, xs))], avals, name=case.primitive.name
        )

    def _values(
        self, name: EvaluationName, args: Sequence[Array], cts: Sequence[Array]
    ) -> dict[Var, Array]:
        """The value of each variable of the program of an evaluation."""
        case = self.case
        program, captured = self.programs[name]
        inputs: list[ArrayLike] = [*args, *case.tangents, *cts, *case.ct_tangents, *case.second_cts]
        inputs += captured
        return NumpyInterpreter().values(program, copy_arguments(program, inputs))

    def _outputs(self, name: EvaluationName, values: dict[Var, Array]) -> list[Array]:
        return [narrow_atom(values, atom) for atom in self.programs[name][0].outputs]

    def _note_operations(self, program: Program, values: dict[Var, Array]) -> None:
        """Note each operation once, but on all its operands if the sample states values.

        At such values an operation may fail that is right elsewhere.
        """
        is_special = self.case.sample.values is not None
        for eqn in program.equations:
            key = eqn.primitive, tuple([atom.aval for atom in eqn.inputs])
            # One without a definition was lowered to run the program.
            if numpy_definition(eqn.primitive) is None:
                continue
            if is_compared_elsewhere(eqn, self.case.primitive):
                continue
            if self._has_rows_of_the_sample(eqn):
                self._note_rows(eqn, values)
                continue
            if not is_special and (key in self.operations or key in COMPARED_OPERATIONS):
                continue
            operands = [narrow_atom(values, atom) for atom in eqn.inputs]
            self._note_draw(eqn.primitive, operands, [atom.aval for atom in eqn.inputs])

    def _has_rows_of_the_sample(self, eqn: Equation) -> bool:
        """Whether it is a function by a kernel on arrays of one shape, a batch of the sample's shapes."""
        shapes = {atom.aval.shape for atom in eqn.inputs}
        size = self.case.avals[0].size if self.case.avals else 0
        if not isinstance(eqn.primitive, KernelFunction) or len(shapes) > 1 or not size:
            return False
        return eqn.inputs[0].aval.size % size == 0

    def _note_rows(self, eqn: Equation, values: dict[Var, Array]) -> None:
        """Note each row of a batch, of the sample's shape, since a kernel compiles anew for each shape."""
        shape = self.case.avals[0].shape
        stacked = [narrow_atom(values, atom).reshape(-1, *shape) for atom in eqn.inputs]
        for operands in zip(*stacked, strict=True):
            avals = [ShapedArray(x.shape, x.dtype) for x in operands]
            self._note_draw(eqn.primitive, list(operands), avals)

    def _note_draw(self, primitive: Primitive, operands: list[Array], avals: Avals) -> None:
        key = primitive, tuple(avals)
        draw = key, tuple([x.tobytes() for x in operands])
        if draw not in self._draws:
            self._draws.add(draw)
            alone = CheckedOperation(primitive, one_equation(primitive, avals), [])
            self.operations.setdefault(key, alone).draws.append(operands)


def rule_evaluations(case: RuleCase) -> dict[EvaluationName, RuleEvaluation]:
    """The evaluations that the checks in `rules.py` read, by name."""
    primitive = case.primitive
    evaluations: dict[EvaluationName, RuleEvaluation] = {}
    registered = registered_decompositions(type(primitive))
    for entry in registered:
        evaluations["decompose", entry.table] = partial(_evaluate_decomposition, case, entry)
    decompose = primitive.decompose
    if decompose is not None and (primitive.has_rule("lower") or registered):
        evaluations["decompose"] = lambda inputs: primitive.as_list(decompose(*inputs.args))
    for dims in case.batchings:
        evaluations["batch", dims] = partial(_evaluate_batch, case, dims, None)
    for inner, outer in case.nested_batchings:
        evaluations["batch", inner, outer] = partial(_evaluate_batch, case, inner, outer)
    if not case.inexact or not case.inexact_outs:
        return evaluations
    for varying in case.varying_subsets:
        evaluations["jvp", varying] = partial(_evaluate_jvp, case, varying)
        evaluations["vjp", varying] = partial(_evaluate_vjp, case, varying)
    for varying, zero in case.linear_sets:
        evaluations["transpose", varying] = partial(_evaluate_transpose, case, varying, zero)
    if primitive.vjp is not None and primitive.has_rule("jvp") and primitive.differentiable:
        evaluations["vjp from jvp"] = partial(_derived_vjp, case)
    if len(case.inexact_outs) > 1:
        for i in range(len(case.inexact_outs)):
            evaluations["vjp of output", i] = partial(_vjp_of_one_output, case, i)
    has_jvp = primitive.differentiable and primitive.has_rule("jvp")
    if has_jvp and primitive.has_rule("tangent_mask") and not primitive.multiple_results:
        evaluations["masks", "tangent"] = partial(_masked_tangent, case)
    if primitive.has_rule("cotangent_masks") and len(case.out_avals) == 1:
        evaluations["masks", "everywhere"] = partial(_masked_cotangents, case, None)
        # A random mask of the output.
        mask = np.asarray(np.random.RandomState(3).rand(*case.out_avals[0].shape) < 0.5)
        evaluations["masks", "random"] = partial(_masked_cotangents, case, mask)
    if not case.has_stated_gradients:
        evaluations["jvp of vjp"] = partial(_jvp_of_vjp, case)
        evaluations["vjp of vjp"] = partial(_vjp_of_vjp, case)
    return evaluations


def _evaluate_decomposition(case: RuleCase, entry: Decomposition, inputs: TracedInputs) -> Values:
    program = trace_decomposition(entry, case.primitive, tuple(case.avals), x64_enabled())
    return inline(program, inputs.args)


def _evaluate_batch(
    case: RuleCase, inner: Dims, outer: Dims | None, inputs: TracedInputs
) -> Values:
    outs = (0,) * len(case.out_avals)
    program = case.rewritten(Batch(BATCH_SIZES[0], inner, outs), case.program)
    if outer is not None:
        program = case.rewritten(Batch(BATCH_SIZES[1], outer, outs), program)
    stacked = [
        case.batched_operand(i, d, e)
        for i, (d, e) in enumerate(zip(inner, outer or [None] * len(inner), strict=True))
    ]
    return inline(program, stacked)


def _evaluate_jvp(case: RuleCase, varying: Sequence[int], inputs: TracedInputs) -> Values:
    mask = tuple([i in varying for i in range(len(case.avals))])
    program = case.rewritten(JVPRewrite(mask), case.program)
    tangents = [t for i, t in zip(case.inexact, inputs.tangents, strict=True) if i in varying]
    return inline(program, [*inputs.args, *tangents])


def _evaluate_vjp(case: RuleCase, varying: Sequence[int], inputs: TracedInputs) -> list[Value]:
    mask = tuple([i in varying for i in range(len(case.avals))])
    return _run_vjp(case, case.program, mask, inputs.args, inputs.cts)


def _run_vjp(
    case: RuleCase, program: Program, mask: tuple[bool, ...], args: Values, cts: Values
) -> list[Value]:
    forward, backward = case.rewritten(SplitVJP(mask), program)
    outs = inline(forward, args)
    return inline(backward, [*cts, *outs[len(program.outputs) :]])


def _vjp_of_one_output(case: RuleCase, output: int, inputs: TracedInputs) -> list[Value]:
    """The cotangents of the operands when only one output has a cotangent."""
    k = case.inexact_outs[output]
    program, _ = trace(lambda *xs: [case.bind(*xs)[k]], case.avals)
    return _run_vjp(case, program, case.inexact_mask, inputs.args, [inputs.cts[output]])


def _derived_vjp(case: RuleCase, inputs: TracedInputs) -> list[Value]:
    """The cotangents by transposing `jvp`, which an overridden `vjp` must match."""
    cts = dict(zip(case.inexact_outs, inputs.cts, strict=True))
    all_cts = [cts.get(k) for k in range(len(case.out_avals))]
    results = transpose_jvp_rule(case.primitive, all_cts, inputs.args, case.inexact_mask)
    return [_or_zeros(results[i], case.avals[i]) for i in case.inexact]


def _evaluate_transpose(
    case: RuleCase, varying: Sequence[int], zero: bool, inputs: TracedInputs
) -> list[Value]:
    args: list[Any] = []
    for i, x in enumerate(inputs.args):
        if i in varying:
            args.append(LinearInput(case.avals[i]))
        else:
            args.append(ops.zeros_like(x) if zero and case.inexact_mask[i] else x)
    cts = dict(zip(case.inexact_outs, inputs.cts, strict=True))
    all_cts = [cts.get(k) for k in range(len(case.out_avals))]
    results = case.primitive.transpose(
        all_cts if case.primitive.multiple_results else all_cts[0], *args
    )
    assert len(results) == len(args), (
        f"`transpose` must return one entry for each operand; got {len(results)} for {len(args)}"
    )
    for i, result in enumerate(results):
        assert i in varying or result is None, (
            f"`transpose` must return None for operand {i}, which has a value"
        )
    return [_or_zeros(results[i], case.avals[i]) for i in varying]


def _masked_tangent(case: RuleCase, inputs: TracedInputs) -> list[Any]:
    """The tangent of the output and its mask, for tangents of which every second element is zero."""
    tangents: list[Any] = [None] * len(case.avals)
    masks: list[Any] = [False] * len(case.avals)
    for i, t in zip(case.inexact, inputs.tangents, strict=True):
        aval = case.avals[i]
        masks[i] = (np.arange(aval.size) % 2 == 0).reshape(aval.shape)
        tangents[i] = apply_mask(masks[i], t)
    _, tangent = case.primitive.jvp(inputs.args, tangents)
    assert case.primitive.tangent_mask is not None
    mask = case.primitive.tangent_mask(masks, inputs.args)
    return [_or_zeros(tangent, case.out_avals[0]), np.array(True) if mask is None else mask]


def _masked_cotangents(case: RuleCase, mask: Any, inputs: TracedInputs) -> list[ArrayLike]:
    """The cotangents of the operands and their masks, for an output cotangent that is zero outside `mask`."""
    (ct,) = inputs.cts
    args = inputs.args
    cts = _run_vjp(
        case,
        case.program,
        case.inexact_mask,
        args,
        [ct if mask is None else apply_mask(mask, ct)],
    )
    masks = case.primitive.cotangent_masks(mask, args)
    pairs = []
    for i, cotangent in zip(case.inexact, cts, strict=True):
        operand_mask = np.array(True) if masks[i] is None else masks[i]
        assert operand_mask.shape in ((), cotangent.shape), (
            f"`cotangent_masks` must give operand {i} a mask of its shape; got {operand_mask.shape}"
        )
        pairs += [cotangent, operand_mask]
    return pairs


def pullback_program(case: RuleCase) -> Program:
    """The program from operands and output cotangents to the cotangents of all operands."""
    n = len(case.avals)
    return trace(
        lambda *xs: _run_vjp(case, case.program, case.inexact_mask, xs[:n], xs[n:]),
        [*case.avals, *[case.out_avals[k] for k in case.inexact_outs]],
        name=f"vjp_{case.primitive.name}",
    )[0]


def _jvp_of_vjp(case: RuleCase, inputs: TracedInputs) -> Values:
    mask = (*case.inexact_mask, *[True] * len(inputs.cts))
    program = case.rewritten(JVPRewrite(mask), case.pullback)
    tangents = [*inputs.tangents, *inputs.ct_tangents]
    return inline(program, [*inputs.args, *inputs.cts, *tangents])


def _vjp_of_vjp(case: RuleCase, inputs: TracedInputs) -> list[Value]:
    mask = (*case.inexact_mask, *[True] * len(inputs.cts))
    return _run_vjp(case, case.pullback, mask, [*inputs.args, *inputs.cts], inputs.second_cts)


def is_compared_elsewhere(eqn: Equation, checked: Primitive) -> bool:
    """Whether the kernel of an operation is left to other checks than those of the primitive `checked`.

    One of another class is compared in the cases of its own samples. Of the second derivatives in
    several parameters, which compile for long, the mixed ones in neighbouring parameters represent all.
    """
    primitive = eqn.primitive
    if not isinstance(primitive, KernelFunction):
        return False
    if type(primitive) is not type(checked):
        return True
    orders = getattr(primitive, "orders", ())
    varied = [i for i, order in enumerate(orders) for _ in range(order)]
    is_mixed = varied == [len(orders) - 2, len(orders) - 1]
    return len(varied) > 1 and len(eqn.inputs) > 2 and not is_mixed


def one_equation(primitive: Primitive, avals: Avals) -> Program:
    """The program of one equation, whose operands are its inputs."""
    inputs = [Var(aval) for aval in avals]
    alone = Equation.of(primitive, inputs)
    return Program(primitive.name, inputs, [alone], alone.outputs)


def narrow_atom(values: dict[Var, Array], atom: Atom) -> Array:
    """The value of a variable or of a literal, in the dtype of the program."""
    return narrow_array(read_atom(values, atom), atom.aval.dtype)


def inline(program: Program, args: Sequence[ArrayLike]) -> list[Value]:
    """The outputs of `program` on traced values; its equations are copied into the trace."""
    builder = current_builder.get()
    assert builder is not None
    return [*builder.inline(program, args)]


def side_by_side(programs: Sequence[Program]) -> Program:
    """One program that takes the inputs and returns the outputs of all `programs`.

    It returns a vector for each dtype, since XLA compiles one output in half the time of many.
    """

    def body(*xs: Value) -> list[Value]:
        operands = iter(xs)
        packed: dict[np.dtype[Any], list[Value]] = {}
        for program in programs:
            for out in inline(program, [next(operands) for _ in program.inputs]):
                packed.setdefault(out.dtype, []).append(ops.reshape(out, (out.size,)))
        return [ops.concatenate(parts, 0) for parts in packed.values()]

    return trace(body, [aval for p in programs for aval in p.in_avals])[0]


def unpack(programs: Sequence[Program], vectors: Sequence[Array]) -> Iterator[Array]:
    """The outputs of all `programs`, of the vectors that `side_by_side` returns."""
    remaining = {x.dtype: x for x in vectors}
    for aval in [aval for p in programs for aval in p.out_avals]:
        vector = remaining[aval.dtype]
        yield vector[: aval.size].reshape(aval.shape)
        remaining[aval.dtype] = vector[aval.size :]


def lower_side_by_side(programs: Sequence[Program]) -> jax.stages.Lowered:
    """The programs lowered in one module, which MLIR verifies."""
    avals = [aval for p in programs for aval in p.in_avals]
    jitted = jit_program(side_by_side(programs), compiler_options=FAST_COMPILE_OPTIONS)
    return jitted.lower(*[np.zeros(a.shape, a.dtype) for a in avals])


def run_side_by_side(
    operations: Sequence[CheckedOperation], lowered: jax.stages.Lowered | None = None
) -> list[list[list[Array]]]:
    """The outputs of each operation on each of its sets of operands, all compiled together.

    `lowered` is their `lower_side_by_side`, if it is known.
    """
    programs = [operation.program for operation in operations]
    compiled = (lowered or lower_side_by_side(programs)).compile()
    results: list[list[list[Array]]] = [[] for _ in operations]
    for run in range(max([len(operation.draws) for operation in operations], default=0)):
        # One with fewer sets of operands runs on the last again.
        operands = [draws[min(run, len(draws) - 1)] for _, _, draws in operations]
        vectors = [np.asarray(x) for x in compiled(*chain.from_iterable(operands))]
        outs = unpack(programs, vectors)
        for operation, found in zip(operations, results, strict=True):
            one = [next(outs) for _ in operation.program.outputs]
            if run < len(operation.draws):
                found.append(one)
    return results


def _or_zeros(ct: Cotangent, aval: ShapedArray) -> Value:
    return ops.zeros_like(aval) if ct is None else ct
