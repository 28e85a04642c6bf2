"""Jets along many lines, of which the highest coefficients are propagated as their sum."""

from __future__ import annotations

from collections.abc import Sequence

from functx.core.masks import select_where
from functx.core.named_axes import AxisNames
from functx.core.program import Program
from functx.core.rewriting import Rewrite, apply, cached_rewrite
from functx.core.tracing import trace_closed
from functx.core.typing import Value
from functx.transforms.batching import Batch, add_axis
from functx.transforms.chunked_batching import standard_basis
from functx.transforms.coefficients import Curves, UncollapsedError
from functx.transforms.jet_rewrite import JetRewrite


class CollapsedJet(Rewrite[Program]):
    """The rewrite to a program of values and the highest coefficients of jets along lines, summed.

    Its inputs are those of the program, then, for each input marked `active`, the directions of the lines;
    none with `along_basis`, where these are the standard basis of the active inputs.
    It returns the outputs, then, for each inexact one, the coefficients from order `first` on.
    """

    active: tuple[bool, ...]
    curves: Curves
    first: int
    along_basis: bool = False

    def __call__(self, program: Program) -> Program:
        order, count = self.curves.order, len(program.outputs)
        line = (True, *[False] * (order - 1))
        given = tuple([line if on else () for on in self.active])

        active_avals = select_where(program.in_avals, self.active)

        def body(*args: Value) -> list[Value]:
            if self.along_basis:
                args = (*args, *standard_basis(active_avals))
            if order == 1:
                # The highest coefficients are those of the directions.
                lines = [self.curves.collapse(x) for x in args[len(given) :]]
                args = (*args[: len(given)], *lines)
            try:
                rewrite = JetRewrite(self.curves, order, given, self.along_basis)
                outs = apply(rewrite, program, args)
            except UncollapsedError:
                outs = self.sum_of_separate_jets(program, given, args)
            return [
                *outs[:count],
                *[c for i, c in enumerate(outs[count:]) if i % order + 1 >= self.first],
            ]

        directions = [
            add_axis(aval, 0, self.curves.directions or 0)
            for aval in active_avals
            if not self.along_basis
        ]
        avals = [*program.in_avals, *directions]
        name = f"derivatives_{program.name}"
        return trace_closed(body, avals, name=name, in_names=program.in_names)

    def sum_of_separate_jets(
        self, program: Program, given: tuple[tuple[bool, ...], ...], args: Sequence[Value]
    ) -> list[Value]:
        """The outputs of the `JetRewrite`, by a batch of jets along one line."""
        size, order, count = self.curves.directions, self.curves.order, len(program.outputs)
        assert size is not None
        one = cached_rewrite(JetRewrite(Curves(order), order, given), program)
        in_dims = (None,) * len(given) + (0,) * sum(self.active)
        out_dims = (None,) * count + (0,) * (len(one.outputs) - count)
        outs = apply(Batch(size, in_dims, out_dims, names=AxisNames()), one, args)
        return [
            self.curves.collapse(x) if i >= count and (i - count + 1) % order == 0 else x
            for i, x in enumerate(outs)
        ]
