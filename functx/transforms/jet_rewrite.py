"""`JetRewrite`: the program of values and their Taylor coefficients, and operations that run programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from functx.core.masks import inexact_mask, scatter_where, select_where
from functx.core.program import Program
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray
from functx.core.typing import Flags, Value, Values
from functx.transforms.coefficients import Coefficient, Curves, Series
from functx.transforms.dce import active_outputs
from functx.transforms.forward_mode import canonicalize_for_ad
from functx.transforms.series import SeriesEvaluator
from functx.transforms.symbolic_zeros import nonzero_output_mask


class JetRewrite(Rewrite[Program]):
    """The rewrite to a program of values and their Taylor coefficients along `curves`.

    Its inputs are those of the program, then, for each input in turn, its coefficients of the orders that
    `given` marks, from 1 on; the others are zero. Its outputs are those of the program, then coefficients
    1 to `terms` of each inexact output in turn.
    """

    curves: Curves
    terms: int
    given: tuple[tuple[bool, ...], ...]
    along_basis: bool = False
    """Whether the first coefficients, along many curves, are the standard basis of the inputs."""

    @property
    def varying(self) -> tuple[bool, ...]:
        """The mask of the inputs that have coefficients."""
        return tuple([any(mask) for mask in self.given])

    def __call__(self, program: Program) -> Program:
        coefficient_avals = [
            self.curves.aval(aval, k + 1)
            for aval, mask in zip(program.in_avals, self.given, strict=True)
            for k, on in enumerate(mask)
            if on
        ]

        def body(*args: Value) -> list[Value]:
            primals, coefficients = args[: len(self.given)], iter(args[len(self.given) :])
            series = [
                Series.given(x, [next(coefficients) if on else None for on in mask])
                for x, mask in zip(primals, self.given, strict=True)
            ]
            evaluator = SeriesEvaluator(self.curves)
            moving = [x for x in series if not x.is_constant]
            if (
                self.along_basis
                and self.curves.is_batched(1)
                and len(moving) == 1
                and len(moving[0].aval.shape) == 1
            ):
                evaluator.basis = moving[0][1]
            canonical = canonicalize_for_ad(program, "jvp", "jet")
            outs = evaluator.evaluate_eagerly(canonical, series, self.terms)
            values = [x.first.value for x in outs]
            inexact = select_where(outs, inexact_mask(values))
            return [*values, *[c for x in inexact for c in evaluator.instantiated(x, self.terms)]]

        avals = [*program.in_avals, *coefficient_avals]
        return trace_closed(body, avals, name=f"jet_{program.name}", in_names=program.in_names)


class ProgramSeries:
    """The series of the outputs of an operation that runs programs.

    `run(terms)` gives the outputs, and for each of them its coefficients 1 to `terms`.
    """

    def __init__(self, run: Callable[[int], tuple[Values, Sequence[Sequence[Value | None]]]]):
        self.run = run
        self.memo: dict[int, tuple[Values, Sequence[Sequence[Value | None]]]] = {}

    def coefficient(self, i: int, k: int) -> Coefficient | None:
        """Coefficient k of output i, from a run that gives it."""
        terms = next((n for n in self.memo if n >= k), k)
        if terms not in self.memo:
            self.memo[terms] = self.run(terms)
        values, coefficients = self.memo[terms]
        value = coefficients[i][k - 1] if k else values[i]
        return None if value is None else Coefficient(value, k)

    def outputs(self, avals: Sequence[ShapedArray], varying: Flags) -> list[Series]:
        """The series of the outputs, of types `avals`."""

        def output(i: int) -> Series:
            return Series(
                avals[i],
                lambda k: self.coefficient(i, k) if varying[i] or not k else None,
                is_constant=not varying[i],
            )

        return [output(i) for i in range(len(avals))]


def run_jet_programs(
    evaluator: SeriesEvaluator,
    programs: Sequence[Program],
    args: Sequence[Series],
    run: Callable[[Sequence[Program], list[Value]], Values],
) -> list[Series]:
    """The series of the outputs of an operation that runs one of `programs` on `args`, once.

    `run(programs, operands)` runs that operation for other programs.
    """

    def results(terms: int) -> tuple[Values, Sequence[Sequence[Value | None]]]:
        orders = range(1, terms + 1)
        found = [[x[k] for k in orders] for x in args]
        given = tuple([tuple([c is not None for c in coefficients]) for coefficients in found])
        rewrite = JetRewrite(evaluator.curves, terms, given)
        rewritten = [cached_rewrite(rewrite, program) for program in programs]
        values = [c.value for coefficients in found for c in coefficients if c is not None]
        outs = run(rewritten, [*[x.first.value for x in args], *values])
        masks = [cached_rewrite(nonzero_output_mask, program) for program in rewritten]
        nonzero = [any(on) for on in zip(*masks, strict=True)]
        count = len(programs[0].outputs)
        higher = [x if on else None for x, on in zip(outs, nonzero, strict=True)][count:]
        return outs[:count], groups_where(higher, terms, inexact_mask(programs[0].out_avals))

    varying = [not x.is_constant for x in args]
    masks = [active_outputs(program, varying) for program in programs]
    out_varying = [any(on) for on in zip(*masks, strict=True)]
    return ProgramSeries(results).outputs(programs[0].out_avals, out_varying)


def groups_where(items: Sequence[Any], size: int, mask: Flags) -> list[list[Any]]:
    """`items` in groups of `size`, one for each index that `mask` marks; groups of None elsewhere."""
    starts = scatter_where(range(0, size * sum(mask), size) if size else [0] * sum(mask), mask)
    return [[None] * size if n is None else [*items[n : n + size]] for n in starts]
