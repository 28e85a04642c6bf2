"""`Scan`: a loop of a known number of steps over the leading axis of arrays, and its rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from functx import ops
from functx.core.backend import Split, backend
from functx.core.checking import check_operands
from functx.core.config import memory_plan
from functx.core.index_sets import DependentOperand, stack_rows
from functx.core.masks import (
    T,
    inexact_mask,
    linear_mask,
    scatter_where,
    select_where,
    select_where_not,
    split_list,
)
from functx.core.primitive import Primitive
from functx.core.primitive_families import HasDCE, HasJet, HasPrograms
from functx.core.program import Program
from functx.core.program_calls import apply_program
from functx.core.rewriting import Uncompared, cached_rewrite
from functx.core.samples import LazySamples, f64, i32, sample
from functx.core.tracer import current_builder
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray
from functx.core.typing import (
    ArrayLike,
    Avals,
    Cotangent,
    Cotangents,
    Dims,
    Flags,
    IRValue,
    Tangents,
    Value,
    Values,
)
from functx.ops.operands import batch_size
from functx.ops.views import Copy
from functx.transforms.batching import Batch, BatchWithInferredOutDims
from functx.transforms.coefficients import Series
from functx.transforms.control.backward_scan import BuildBackwardScan
from functx.transforms.control.body_tracing import (
    WithProgress,
    carry_dependence,
    is_linearizing,
    show_completion,
)
from functx.transforms.control.partial_eval import (
    DCEScanBody,
    JVPScanBody,
    LinearizedScanBody,
    LoopPartialEval,
    PartialEvalScan,
    ResidualKind,
    SplitTranspose,
    carry_history,
)
from functx.transforms.dce import active_outputs, fixed_point, with_io
from functx.transforms.forward_mode import JVPRewrite, Linearize
from functx.transforms.jet_rewrite import JetRewrite, ProgramSeries, groups_where
from functx.transforms.reverse_mode import SplitVJP
from functx.transforms.series import SeriesEvaluator
from functx.transforms.symbolic_zeros import nonzero_output_mask

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext
    from functx.transforms.sparsity import SparsityAnalysis


_MOST_SAVED_BYTES = 1 << 23
"""The most bytes of residuals that a loop keeps in order to compute nothing twice.

More than the caches of a processor hold takes longer to write and read than to compute again.
"""


def _sample_step() -> Program:
    def step(w: Value, n: Value, c: Value, x: Value) -> list[Value]:
        h = ops.sin(ops.add(ops.mul(c, w), x))
        return [ops.add(n, 1), h, ops.mul(h, c)]

    return trace_closed(step, [f64[2], i32[()], f64[2], f64[2]], name="step")


def _linear_sample_step() -> Program:
    def step(n: Value, c: Value, x: Value) -> list[Value]:
        return [ops.add(n, 1.0), ops.add(ops.mul(c, n), x), c]

    return trace_closed(step, [f64[()], f64[2], f64[2]], name="step")


class Scan(HasPrograms, HasDCE, HasJet):
    """A loop of `length` steps, each of which runs `program` on the carry of the step before.

    Operands, in the order in which `program` takes them: `consts` loop-invariant values,
    `carries` initial carries, and the arrays `xs`, of which a step gets one row. With `reverse`
    the loop begins at the last row. `program` returns the next carry, then the rows of `ys`.
    The results are the final carry and the stacked `ys`.
    """

    program: Program
    consts: int
    carries: int
    length: int
    reverse: bool = False
    unroll: int = 1
    size_fields = ("length",)
    samples = LazySamples(lambda: (
        sample(
            f64[2], i32[()], f64[2], f64[3, 2],
            program=_sample_step(), consts=1, carries=2, length=3, dtypes=("f64",),
        ),
        sample(
            f64[()], f64[2], f64[5, 2],
            program=_linear_sample_step(), consts=0, carries=2, length=5, reverse=True, unroll=2,
            dtypes=("f64",),
        ),
        sample(
            f64[2], i32[()], f64[2], f64[0, 2],
            program=_sample_step(), consts=1, carries=2, length=0, dtypes=("f64",),
        ),
    ))  # fmt: skip

    def abstract_eval(self, *avals: ShapedArray) -> Avals:
        n, length = self.consts + self.carries, self.length
        in_avals, outs = self.program.in_avals, self.program.out_avals
        stacked = [a.update(shape=(length, *a.shape)) for a in in_avals[n:]]
        check_operands(self, avals, [*in_avals[:n], *stacked])
        check_operands(self, outs[: self.carries], in_avals[self.consts : n])
        rows = outs[self.carries :]
        return [*in_avals[self.consts : n], *[a.update(shape=(length, *a.shape)) for a in rows]]

    def split_operands(self, items: Sequence[T]) -> tuple[Sequence[T], Sequence[T], Sequence[T]]:
        """Split `items`, one an operand, into those of the consts, the carry and `xs`."""
        consts, carry, xs = split_list(items, [self.consts, self.carries])
        return consts, carry, xs

    def varying(self, mask: Flags) -> tuple[tuple[bool, ...], list[bool]]:
        """The operands that vary in the loop if those of `mask` do before it; the outputs."""
        return carry_dependence(self.program, self.consts, self.carries, mask)

    def varying_outputs(self, avals: Avals, active: Flags) -> Flags:
        return self.varying(active)[1]

    def with_program(
        self, program: Program, consts: int, carries: int, flipped: bool = False
    ) -> Scan:
        """A scan of the same length with another body; `flipped` reverses its direction."""
        return Scan(program, consts, carries, self.length, self.reverse ^ flipped, self.unroll)

    def hoist_constants(
        self, programs: Sequence[Program], extras: Sequence[Sequence[T]], operands: Sequence[T]
    ) -> tuple[Primitive, Sequence[T]]:
        loop = self.with_program(programs[0], self.consts + len(extras[0]), self.carries)
        return loop, [*extras[0], *operands]

    def dce(self, used: Flags) -> tuple[Primitive, Sequence[int], Sequence[int]] | None:
        rewritten = cached_rewrite(
            DCEScanBody(self.consts, self.carries, tuple(used)), self.program
        )
        if rewritten is None:
            return None
        program, inputs, outputs = rewritten
        consts = sum([i < self.consts for i in inputs])
        carries = sum([i < self.carries for i in outputs])
        return self.with_program(program, consts, carries), inputs, outputs

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        varying, out_varying = self.varying([t is not None for t in tangents])
        like = select_where(primals, varying)
        tangents = ops.instantiate_zeros(select_where(tangents, varying), like)
        dconsts, dcarry, dxs = (
            [t for t in group if t is not None]
            for group in self.split_operands(scatter_where(tangents, varying))
        )
        if is_linearizing():
            split = self.partial_eval(Linearize(varying))
            outs, (invariants, per_step) = self.run_known(split, primals)
            kept = tuple(select_where(out_varying, inexact_mask(self.program.out_avals)))
            body = cached_rewrite(
                LinearizedScanBody(len(tangents), len(dconsts), len(invariants), kept),
                split.unknown,
            )
            linear = self.with_program(body, len(dconsts) + len(invariants), len(dcarry))
            out_tangents = linear(*dconsts, *invariants, *dcarry, *dxs, *per_step)
            return outs, scatter_where(out_tangents, out_varying)
        body = cached_rewrite(
            JVPScanBody(self.consts, self.carries, JVPRewrite(varying), tuple(out_varying)),
            self.program,
        )
        outs, out_tangents = self.run_with_tangents(body, primals, (dconsts, dcarry, dxs))
        return outs, scatter_where(out_tangents, out_varying)

    def run_with_tangents(
        self, body: Program, primals: Values, tangents: Sequence[Values]
    ) -> tuple[list[Value], list[Value]]:
        """The outputs, and their tangents, of a scan of a `body` that is a `JVPScanBody`.

        `tangents` are those of the consts, of the carry, and of `xs`.
        """
        consts, carry, xs = self.split_operands(primals)
        dconsts, dcarry, dxs = tangents
        both = self.with_program(body, len(consts) + len(dconsts), len(carry) + len(dcarry))
        results = both(*consts, *dconsts, *carry, *dcarry, *xs, *dxs)
        carries, ys = results[: both.carries], results[both.carries :]
        n, num_ys = len(carry), len(self.program.outputs) - len(carry)
        return [*carries[:n], *ys[:num_ys]], [*carries[n:], *ys[num_ys:]]

    def jet(self, evaluator: SeriesEvaluator, *args: Series) -> list[Series] | None:
        if any(x.is_shifted for x in args):
            return None
        varying, out_varying = self.varying([not x.is_constant for x in args])
        primals, curves = [x.first.value for x in args], evaluator.curves

        def results(terms: int) -> tuple[Values, list[list[Value | None]]]:
            rewrite = JetRewrite(
                curves, terms, tuple([(True,) * terms if on else () for on in varying])
            )
            body = cached_rewrite(
                JVPScanBody(self.consts, self.carries, rewrite, tuple(out_varying)), self.program
            )
            orders = [
                evaluator.instantiated(x, terms) if on else []
                for x, on in zip(args, varying, strict=True)
            ]
            consts, carry, xs = self.split_operands(orders)
            # The axis of the curves, where there is one, follows that of the steps.
            rows = [[curves.move_axis(c, k, 0, 1) for k, c in enumerate(x, 1)] for x in xs]
            flat = [[c for x in group for c in x] for group in (consts, carry, rows)]
            outs, found = self.run_with_tangents(body, primals, flat)
            coefficients = groups_where(found, terms, out_varying)
            stacked = [
                [c if c is None else curves.move_axis(c, k, 1, 0) for k, c in enumerate(y, 1)]
                for y in coefficients[self.carries :]
            ]
            return outs, [*coefficients[: self.carries], *stacked]

        return ProgramSeries(results).outputs(evaluator.out_avals(self, args), out_varying)

    def partial_eval(self, rewrite: Split[tuple[Program, Program]]) -> LoopPartialEval:
        """The body split by `rewrite` into a known and an unknown program."""
        count = len(self.program.outputs)
        most_saved = 0 if memory_plan() != "off" else _MOST_SAVED_BYTES // max(self.length, 1)
        split = PartialEvalScan(rewrite, self.consts, self.carries, count, most_saved)
        return cached_rewrite(split, self.program)

    def run_known(
        self, split: LoopPartialEval, args: Values
    ) -> tuple[list[Value], tuple[list[Value], list[Value]]]:
        """The outputs; the loop-invariant residuals, and arrays with the others of all steps."""
        _, carry, xs = self.split_operands(args)
        loop = self.with_program(split.known, self.consts, self.carries)
        outs = loop(*args) if split.known.outputs or split.known.effects else []
        invariants = apply_program(split.invariant, args[: self.consts + self.carries])
        ys, per_step = outs[self.carries :], []
        for r in split.residuals:
            if r.kind is ResidualKind.OPERAND:
                per_step.append(xs[r.position])
            elif r.kind is ResidualKind.OUTPUT:
                per_step.append(ys[r.position])
            elif r.kind is ResidualKind.CARRY_BEFORE:
                per_step.append(carry_history(carry[r.carry], ys[r.position], self.reverse))
        return outs[: len(self.program.outputs)], (invariants, per_step)

    def vjp_partial_eval(self, active: Flags) -> tuple[LoopPartialEval, tuple[bool, ...]]:
        """The split for reverse mode, and the operands that vary.

        Residuals that are consts or rows of `xs` cost no memory.
        """
        varying, _ = self.varying(active)
        carries_end = self.consts + self.carries
        free_to_save = (*range(self.consts), *range(carries_end, len(varying)))
        split = backend.limit_residuals(SplitVJP(varying), free_to_save, self.consts)
        return self.partial_eval(split), varying

    def forward(self, args: Values, active: Flags) -> tuple[Values, tuple[Values, Values]]:
        split, _ = self.vjp_partial_eval(active)
        return self.run_known(split, args)

    def vjp(
        self, cts: Cotangents, residuals: tuple[Values, Values], args: Values, active: Flags
    ) -> Cotangents:
        split, varying = self.vjp_partial_eval(active)
        return self.run_backward(split.unknown, varying, cts, residuals, split.names)

    def index_sets(
        self, sets: SparsityAnalysis, *operands: DependentOperand
    ) -> Sequence[DependentOperand]:
        consts, carry, xs = self.split_operands(operands)
        if not self.length or not sets.can_follow(self.program, self.length):
            return self.index_sets_of_any_step(sets, operands)
        rows = []
        for i in reversed(range(self.length)) if self.reverse else range(self.length):
            outs = sets.run(self.program, [*consts, *carry, *[x.row(i) for x in xs]])
            carry = outs[: self.carries]
            rows.append(outs[self.carries :])
        rows = rows[::-1] if self.reverse else rows
        return [*carry, *[stack_rows(ys) for ys in zip(*rows, strict=True)]]

    def index_sets_of_any_step(
        self, sets: SparsityAnalysis, operands: Sequence[DependentOperand]
    ) -> Sequence[DependentOperand]:
        """As `index_sets`, for carries that any step may have made."""
        consts, start, xs = self.split_operands(operands)
        rows = [
            DependentOperand(v.aval, sets.union_along(x.sets, (0,)))
            for v, x in zip(self.program.inputs[len(consts) + len(start) :], xs, strict=True)
        ]

        def step(carry: Sequence[DependentOperand]) -> Sequence[DependentOperand]:
            return sets.run(self.program, [*consts, *carry, *rows])[: self.carries]

        carry = sets.fixed_point(step, start, operands)
        in_dims = (None,) * (self.consts + self.carries) + (0,) * len(xs)
        batch = Batch(self.length, in_dims, (0,) * len(self.program.outputs))
        outs = sets.run(cached_rewrite(batch, self.program), [*consts, *carry, *xs])
        return [*carry, *outs[self.carries :]]

    def transpose(self, cts: Cotangents, *args: Value) -> Cotangents:
        linear = linear_mask(args)
        varying, _ = self.varying(linear)
        consts, carries, _ = (group.count(False) for group in self.split_operands(varying))
        rewrite = SplitTranspose(varying, self.consts, self.carries)
        split = cached_rewrite(PartialEvalScan(rewrite, consts, carries, carries), self.program)
        known = self.with_program(split.known, consts, carries)
        _, residuals = known.run_known(split, select_where_not(args, varying))
        in_cts = self.run_backward(split.unknown, varying, cts, residuals)
        return [ct if on else None for ct, on in zip(in_cts, linear, strict=True)]

    def run_backward(
        self,
        backward: Program,
        varying: Flags,
        cts: Cotangents,
        residuals: tuple[Values, Values],
        names: Callable[[], list[str]] | None = None,
    ) -> list[Cotangent]:
        """The cotangents of the operands that vary, by a scan of `backward` in reverse.

        `backward` takes the cotangents of the inexact outputs of the body, then the residuals:
        loop-invariant ones, then rows of the other arrays.
        """
        invariants, per_step = residuals
        avals, n = self.program.out_avals, self.carries
        inexact = inexact_mask(avals)
        ct_mask = [ct is not None for ct in cts]
        carry_mask, nonzero = self.cotangent_carries(backward, varying, ct_mask)
        carried = [*carry_mask, *[False] * (len(avals) - n)]
        ct_is_row = [i >= n and ct_mask[i] and inexact[i] for i in range(len(avals))]
        num_consts = sum(varying[: self.consts])
        loop = cached_rewrite(
            BuildBackwardScan(
                tuple(select_where(carried, inexact)),
                tuple(select_where(ct_is_row, inexact)),
                len(invariants),
                num_consts,
                nonzero,
                Uncompared(names),
            ),
            backward,
        )
        carry_cts = ops.instantiate_zeros(select_where(cts, carried), select_where(avals, carried))
        row_cts = [ct for ct, on in zip(cts, ct_is_row, strict=True) if on and ct is not None]
        rows = [*row_cts, *per_step]
        sums = [ops.zeros_like(aval) for aval in loop.sums]
        scan = self.with_program(
            loop.body, len(invariants), len(sums) + len(carry_cts), flipped=True
        )
        outs = run_scan(scan, [*invariants, *sums, *carry_cts, *rows])
        # The results: sums, cotangents of carries and rows of `xs`, arrays that `finish` takes.
        xs_end = len(sums) + sum(nonzero) - sum(nonzero[:num_consts])
        arrays = [*outs[xs_end:], *[rows[i] for i in loop.stacked_inputs]]
        const_cts = loop.finish(*invariants, *outs[: len(sums)], *arrays)
        in_cts = scatter_where([*const_cts, *outs[len(sums) : xs_end]], nonzero)
        return scatter_where(in_cts, varying)

    def cotangent_carries(
        self, backward: Program, varying: Flags, ct_mask: Flags
    ) -> tuple[list[bool], tuple[bool, ...]]:
        """The carries with a cotangent in the backward loop, and the nonzero results."""
        consts_mask, carry_mask, _ = self.split_operands(varying)
        inexact = inexact_mask(self.program.out_avals)
        carries = slice(sum(consts_mask), sum(consts_mask) + sum(carry_mask))
        count = sum(inexact)
        residuals = [False] * (len(backward.inputs) - count)
        # A rule of a `custom_vjp` may return a cotangent that does not depend on those it takes.
        dependent = active_outputs(backward, [*[True] * count, *residuals])
        maybe_nonzero = zip(dependent, nonzero_output_mask(backward), strict=True)
        independent = [not on and nonzero for on, nonzero in maybe_nonzero]

        def step(carried: list[bool]) -> tuple[list[bool], list[bool]]:
            nonzero_cts = select_where([*carried, *ct_mask[self.carries :]], inexact)
            active = active_outputs(backward, [*nonzero_cts, *residuals])
            nonzero = [on or other for on, other in zip(active, independent, strict=True)]
            from_body = scatter_where(nonzero[carries], carry_mask)
            return [on or bool(ct) for on, ct in zip(carried, from_body, strict=True)], nonzero

        start = [on and has_ct for on, has_ct in zip(carry_mask, ct_mask, strict=False)]
        carried, nonzero = fixed_point(start, step)
        nonzero[carries] = select_where(carried, carry_mask)
        return carried, tuple(nonzero)

    def batch(self, args: Values, dims: Dims) -> tuple[Values, Dims]:
        size = batch_size(args, dims)
        n = self.consts + self.carries

        def step(batched: list[bool]) -> tuple[list[bool], Sequence[int | None]]:
            in_dims = tuple([0 if on else None for on in batched])
            _, body_dims = cached_rewrite(BatchWithInferredOutDims(size, in_dims), self.program)
            carry = [
                on or d is not None
                for on, d in zip(batched[self.consts : n], body_dims, strict=False)
            ]
            return [*batched[: self.consts], *carry, *batched[n:]], body_dims

        batched, body_dims = fixed_point([d is not None for d in dims], step)
        outs_batched = [
            *batched[self.consts : n],
            *[d is not None for d in body_dims[self.carries :]],
        ]
        in_dims, out_dims = (
            tuple([0 if on else None for on in mask]) for mask in (batched, outs_batched)
        )
        body = cached_rewrite(Batch(size, in_dims, out_dims), self.program)
        # The batch axis is the first of what a step takes, so the second of stacked arrays.
        operands = [
            ops.batch_dim_at(x, d, 1 if i >= n else 0, size) if on else x
            for i, (x, d, on) in enumerate(zip(args, dims, batched, strict=True))
        ]
        outs = self.with_program(body, self.consts, self.carries)(*operands)
        return outs, [None if d is None else int(i >= self.carries) for i, d in enumerate(out_dims)]

    def lower(self, ctx: LoweringContext, *values: IRValue) -> Sequence[IRValue]:
        return ctx.scan(self, values)


def run_scan(loop: Scan, args: Sequence[ArrayLike], progress: str | None = None) -> list[Value]:
    """The outputs of `loop`; while tracing, carries that no step changes become consts.

    `progress` names the progress line, if one is shown.
    """
    if progress is not None:
        n, carries = loop.consts + loop.carries, loop.carries
        with_progress = cached_rewrite(
            WithProgress(progress, loop.length, loop.consts, carries), loop.program
        )
        counted = loop.with_program(with_progress, loop.consts, carries + 1)
        results = run_scan(counted, [*args[:n], np.int32(0), *args[n:]])
        ys = results[carries + 1 :]
        show_completion(progress, loop.length, results[carries], results[:carries] or ys)
        return [*results[:carries], *ys]
    builder = current_builder.get()
    program, num_consts = loop.program, loop.consts
    carry_in, out_atoms = program.inputs[num_consts : num_consts + loop.carries], program.outputs
    unchanged = [v is atom for v, atom in zip(carry_in, out_atoms, strict=False)]
    if builder is None or not any(unchanged):
        return loop(*args)
    consts, carry, xs = loop.split_operands(program.inputs)
    changing = [not on for on in unchanged]
    inputs = [*consts, *select_where(carry, unchanged), *select_where(carry, changing), *xs]
    body = with_io(
        program,
        inputs,
        [*select_where(out_atoms[: loop.carries], changing), *out_atoms[loop.carries :]],
    )
    arg_of = dict(zip(program.inputs, args, strict=True))
    count = sum(changing)
    results = loop.with_program(body, num_consts + sum(unchanged), count)(
        *[arg_of[v] for v in inputs]
    )
    changed = scatter_where(results[:count], changing)
    return [
        *[Copy()(arg_of[v]) if y is None else y for v, y in zip(carry_in, changed, strict=True)],
        *results[count:],
    ]
