"""The primitive `call`, which runs a program, and its derivative with masks of cotangents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from functx import ops
from functx.core.backend import backend
from functx.core.errors import DTypeError
from functx.core.index_sets import DependentOperand
from functx.core.masks import (
    indices_where,
    inexact_mask,
    mask_of,
    scatter_where,
    select_where,
    set_result_masks,
)
from functx.core.primitive import Primitive
from functx.core.primitive_families import HasDCE, HasJet, HasPrograms
from functx.core.program import Atom, Literal, Program
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.samples import LazySamples, f64, sample
from functx.core.tracer import aval_of
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray
from functx.core.typing import (
    Avals,
    Cotangent,
    Cotangents,
    Dims,
    Flags,
    IRValue,
    Mask,
    Tangents,
    Value,
    Values,
)
from functx.ops.operands import batch_size
from functx.transforms.batching import BatchWithInferredOutDims
from functx.transforms.coefficients import Series
from functx.transforms.dce import Subprogram, active_outputs, dce_program
from functx.transforms.forward_mode import Linearize, canonicalize_for_ad
from functx.transforms.jet_rewrite import run_jet_programs
from functx.transforms.linear_transpose import transpose_call
from functx.transforms.reverse_mode import trace_vjp_split
from functx.transforms.series import SeriesEvaluator
from functx.transforms.symbolic_zeros import (
    DropZeroInputs,
    continued_state,
    nonzero_output_mask,
    programs_run,
    state_operand,
    with_programs,
)

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext
    from functx.transforms.sparsity import SparsityAnalysis


class SplitMaskedVJP(Rewrite[tuple[Program, Program, Program]]):
    """The split of a program into a forward, an unmasked and a masked backward program.

    The forward program returns the outputs, then the residuals. The unmasked backward program takes
    the cotangents of the inexact outputs, then the residuals. The masked one takes behind the
    cotangents their masks, which mark the elements that can be nonzero. Both return the cotangents
    of the inputs marked `active`, then the masks of these: a literal for an unknown mask, and no
    masks at all if all are unknown.
    """

    active: tuple[bool, ...]

    def __call__(self, program: Program) -> tuple[Program, Program, Program]:
        values, unmasked, masked = trace_vjp_split(program, self.active, (False, True), True)
        return values, unmasked, masked


class SelectMaskedVJP(Rewrite[tuple[Program, Program]]):
    """The forward program of `SplitMaskedVJP`, and the `masked` or the unmasked backward one."""

    active: tuple[bool, ...]
    masked: bool

    def __call__(self, program: Program) -> tuple[Program, Program]:
        return self.select(*cached_rewrite(self.split, program))

    @property
    def split(self) -> SplitMaskedVJP:
        """The split that gives both."""
        return SplitMaskedVJP(self.active)

    def select(
        self, values: Program, unmasked: Program, masked: Program
    ) -> tuple[Program, Program]:
        """The forward program and the selected backward program."""
        return values, masked if self.masked else unmasked


def select_pullback(
    active: Flags, program: Program, cts: Cotangents, masks: Sequence[Mask]
) -> tuple[Program, list[Value]]:
    """The backward program for `cts`, and its operands without the residuals.

    It is the masked one if a mask is known.
    """
    split = backend.limit_residuals(SplitMaskedVJP(tuple(active)))
    _, unmasked, masked = cached_rewrite(split, program)
    inexact = inexact_mask(program.out_avals)
    cts, masks = select_where(cts, inexact), select_where(masks, inexact)
    if any([mask is not None for mask in masks]):
        avals = select_where(program.out_avals, inexact)
        instantiated = [
            ops.constant_like(a, 0) if ct is None else ct for ct, a in zip(cts, avals, strict=True)
        ]
        return masked, [*instantiated, *broadcast_masks(masks, instantiated)]
    nonzero = tuple([ct is not None for ct in cts])
    backward = cached_rewrite(DropZeroInputs(nonzero), unmasked)
    return backward, [ct for ct in cts if ct is not None]


def broadcast_masks(masks: Sequence[Mask], cts: Values) -> list[Value]:
    """The masks as arrays of the shapes of the cotangents."""
    return [ops.instantiate_mask(mask, ct.shape) for mask, ct in zip(masks, cts, strict=True)]


def unpack_cotangents(active: Flags, program: Program, outs: Cotangents) -> list[Cotangent]:
    """The cotangents in `outs`, the outputs of a backward `program`, by operand; states their masks.

    A cotangent that the program fills with zeros is None, so that no rule multiplies with it.
    """
    count = sum(active)
    mask_atoms = program.outputs[count:]
    if mask_atoms:
        set_result_masks(scatter_where(known_masks(mask_atoms, outs[count:]), active))
    nonzero = cached_rewrite(nonzero_output_mask, program)[:count]
    cts = [x if on else None for x, on in zip(outs[:count], nonzero, strict=True)]
    return scatter_where(cts, active)


def known_masks(atoms: Sequence[Atom], masks: Sequence[Mask]) -> list[Mask]:
    """The masks that a program returns as `atoms`, with None for a literal: an unknown mask."""
    return [None if type(a) is Literal else x for a, x in zip(atoms, masks, strict=True)]


def example_program() -> Program:
    def body(x: Value, y: Value) -> list[Value]:
        return [ops.Sin()(ops.Mul()(x, y))]

    return trace_closed(body, [f64[3], f64[3]], name="example")


def input_indices_of_outputs(program: Program) -> list[int | None]:
    """For each output of `program` that is an input, the index of that input; None for the others."""
    input_index: dict[Atom, int] = {v: i for i, v in enumerate(program.inputs)}
    return [input_index.get(atom) for atom in program.outputs]


class ProgramCall(HasPrograms, HasDCE, HasJet, abstract=True):
    """A primitive that runs its `program` once on its operands: `Call` and `Checkpoint`."""

    program: Program

    def with_program(self, program: Program) -> Self:
        """A call of another program with the other parameters of this one."""
        return self.replace(program=program)

    def dce(self, used: Flags) -> tuple[Primitive, Sequence[int], Sequence[int]] | None:
        if all(used):
            return None
        outputs = indices_where(used)
        program, inputs = dce_program(self.program, outputs)
        return self.with_program(program), inputs, outputs

    def varying_outputs(self, avals: Avals, active: Flags) -> Flags:
        return active_outputs(self.program, active)

    def index_sets(
        self, sets: SparsityAnalysis, *operands: DependentOperand
    ) -> Sequence[DependentOperand]:
        return sets.run(self.program, operands)

    def jet(self, evaluator: SeriesEvaluator, *args: Series) -> list[Series]:
        if any(x.is_shifted for x in args):
            return evaluator.evaluate(canonicalize_for_ad(self.program, "jvp", "jet"), args)

        def run(programs: Sequence[Program], operands: list[Value]) -> Values:
            outs: Values = self.with_program(programs[0])(*operands)
            return outs

        return run_jet_programs(evaluator, [self.program], args, run)

    def batch(self, args: Values, dims: Dims) -> tuple[Values, Dims]:
        size = batch_size(args, dims)
        program, out_dims = cached_rewrite(
            BatchWithInferredOutDims(size, tuple(dims)), self.program
        )
        return self.with_program(program)(*args), out_dims

    def hoist_constants(
        self, programs: Sequence[Program], extras: Sequence[Sequence[Any]], operands: Sequence[Any]
    ) -> tuple[Primitive, Sequence[Any]]:
        return self.with_program(programs[0]), [*extras[0], *operands]


class Call(ProgramCall):
    """The outputs of `program` on the operands, as a function that is not inlined into the program.

    With `noinline`, XLA does not inline it either.
    """

    noinline: bool = False
    samples = LazySamples(lambda: (sample(f64[3], f64[3], program=example_program()),))

    def abstract_eval(self, *avals: ShapedArray) -> Avals:
        expected = self.program.in_avals
        if [(a.shape, a.dtype) for a in avals] != [(a.shape, a.dtype) for a in expected]:
            raise DTypeError(
                "call: operands must have the types of the program's inputs; got "
                f"{', '.join(map(repr, avals))} for {', '.join(map(repr, expected))}"
            )
        return self.program.out_avals

    def backward_call(
        self, backward: Program, split: Callable[[Program], tuple[Program, ...]]
    ) -> Call:
        """A call of `backward`, a program of `split`; a `RematerializedCall` if it recomputes."""
        return (
            RematerializedCall(backward, True)
            if backend.recomputes_forward(split, self.program)
            else self.with_program(backward)
        )

    def call_with_forwarding(self, program: Program, args: Values) -> list[Value]:
        """The outputs of `program` on `args`.

        Outputs that are inputs are forwarded; a call computes the others.
        """
        forwarded = [
            index if index is None or aval_of(args[index]) is program.inputs[index].aval else None
            for index in cached_rewrite(input_indices_of_outputs, program)
        ]
        computed = tuple([n for n, index in enumerate(forwarded) if index is None])
        if len(computed) == len(forwarded):
            return self.with_program(program)(*args)
        outs = iter(self.with_program(cached_rewrite(Subprogram(outputs=computed), program))(*args))
        return [next(outs) if index is None else args[index] for index in forwarded]

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        varying = tuple([t is not None for t in tangents])
        given_masks = [mask_of(t) for t in tangents]
        masked = tuple([mask is not None for mask in given_masks])
        split = Linearize(varying, masked)
        values, tangent_program = cached_rewrite(split, self.program)
        masks = [
            ops.instantiate_mask(m, x.shape)
            for m, x, on in zip(given_masks, primals, masked, strict=True)
            if on
        ]
        found = self.call_with_forwarding(values, [*primals, *masks])
        inexact = inexact_mask(self.program.out_avals)
        count, end = len(inexact), len(inexact) + sum(inexact)
        given = [t for t in tangents if t is not None]
        pushed = self.with_program(tangent_program)(*given, *found[end:])
        out_masks = known_masks(values.outputs[count:end], found[count:end])
        set_result_masks(scatter_where(out_masks, inexact))
        return found[:count], scatter_where(pushed, inexact)

    def forward(self, args: Values, active: Flags) -> tuple[Values, Any]:
        split = backend.limit_residuals(SplitMaskedVJP(tuple(active)))
        values, *_ = cached_rewrite(split, self.program)
        outs = self.call_with_forwarding(values, args)
        count = len(self.program.outputs)
        return outs[:count], outs[count:]

    def vjp(self, cts: Cotangents, residuals: Values, args: Values, active: Flags) -> Cotangents:
        masks = [mask_of(ct) for ct in cts]
        backward, operands = select_pullback(active, self.program, cts, masks)
        pullback = self.backward_call(
            backward, backend.limit_residuals(SplitMaskedVJP(tuple(active)))
        )
        return unpack_cotangents(active, backward, pullback(*operands, *residuals))

    def transpose(self, cts: Cotangents, *args: Value) -> Cotangents:
        def run(pullback: Program, operands: Values) -> Values:
            return self.with_program(pullback)(*operands)

        return transpose_call(self.program, cts, args, run)

    def lower(self, ctx: LoweringContext, *values: IRValue) -> Sequence[IRValue]:
        return ctx.call(self.program, values, self.noinline)


class RematerializedCall(Call):
    """A call that recomputes values of the forward computation.

    It is not merged with the forward computation, and starts only when all its operands are ready.
    """

    samples = LazySamples(
        lambda: (sample(f64[3], f64[3], program=example_program(), noinline=True),)
    )

    def lower(self, ctx: LoweringContext, *values: IRValue) -> Sequence[IRValue]:
        return ctx.call(self.program, ctx.barrier(values), True)


@programs_run.register
def _program_of_call(primitive: ProgramCall) -> Sequence[Program]:
    return (primitive.program,)


@with_programs.register
def _call_of_program(primitive: ProgramCall, programs: Sequence[Program]) -> Primitive:
    return primitive.with_program(programs[0])


@state_operand.register
def _state_of_call(primitive: ProgramCall, output: int) -> int | None:
    return continued_state(primitive.program, output)
