"""The backward loop of a scan: cotangents of carries and rows, and sums of cotangents of consts.

Most of the work for a sum is deferred until after the loop: linear operations of each step are
applied once, to the sum, and a sum of products of rows becomes one product of stacked rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.masks import select_where, split_list
from functx.core.program import Atom, Equation, Literal, Program, Var
from functx.core.program_calls import apply_program
from functx.core.rewriting import Rewrite, Uncompared, apply
from functx.core.tracing import trace_closed
from functx.core.types import DType, ShapedArray
from functx.core.typing import ArrayLike, Value, Values
from functx.ops.families import Linear
from functx.ops.operands import upcast_aval, upcast_half
from functx.transforms.dce import loop_invariant_variables, with_io
from functx.transforms.symbolic_zeros import ZeroPropagation, is_zero_array

_SCALINGS = ops.Mul, ops.Div, ops.Neg

Accumulation = tuple[Callable[..., Any], Sequence[Atom]]
"""A function that adds a term to a sum, and the operands that it takes after the sum."""


class BackwardScan(NamedTuple):
    """The body of a backward loop, and the computation after it.

    The body takes consts, sums, cotangents of carries, rows of cotangents, rows of residuals. It
    returns the next sums and cotangents of carries, then rows: cotangents of rows, and rows for
    `finish`. `finish` takes the consts, the final sums, the stacked rows for it, and the arrays of
    the rows at `stacked_inputs` among those that the body takes. It returns the cotangents of
    the consts.
    """

    body: Program
    sums: tuple[ShapedArray, ...]
    finish: Callable[..., list[Value]]
    stacked_inputs: tuple[int, ...]


class BuildBackwardScan(Rewrite[BackwardScan]):
    """Rewrites the backward program of a body to the body of a scan in reverse.

    The program takes cotangents, then residuals. Cotangents in `carried` come from the step
    before, those where `ct_is_row` are rows, all others are zero. The first `invariants` residuals are
    consts, the others rows. `nonzero_results` are the results that can be nonzero; the first
    `num_consts` results are cotangents of consts, summed over the steps. `names` gives the
    names of the inputs.
    """

    carried: tuple[bool, ...]
    ct_is_row: tuple[bool, ...]
    invariants: int
    num_consts: int
    nonzero_results: tuple[bool, ...]
    names: Uncompared[Callable[[], Sequence[str]] | None]

    def __call__(self, backward: Program) -> BackwardScan:
        cts, constants, row_residuals = split_list(
            backward.inputs, [len(self.carried), self.invariants]
        )
        carried = select_where(cts, self.carried)
        rows = [*select_where(cts, self.ct_is_row), *row_residuals]
        zeros = [v for v in cts if v not in carried and v not in rows]
        if zeros:
            nonzero = ZeroPropagation(backward.equations, cts, zeros)
            results = [nonzero.read(a) for a in backward.outputs]
            backward = Program(backward.name, backward.inputs, nonzero.equations, results)
        outputs = select_where(backward.outputs, self.nonzero_results)
        num_sums = sum(self.nonzero_results[: self.num_consts])
        loop = SummingLoop(backward, constants, carried, rows, outputs, num_sums)
        names = self.names.value
        body = trace_closed(
            loop.body,
            loop.in_avals,
            name=backward.name,
            in_names=None if names is None else lambda: loop.in_names(names()),
        )
        return BackwardScan(body, loop.sums, loop.finish, loop.stacked_inputs)


class SummingLoop:
    """The loop that runs a backward program in each step, and sums the terms of its first results.

    Its body takes constants, the sums so far, carries and rows. It returns the sums, the other
    results, and the values that must be stacked.
    """

    def __init__(
        self,
        backward: Program,
        constants: Sequence[Var],
        carried: Sequence[Var],
        rows: Sequence[Var],
        outputs: Sequence[Atom],
        num_sums: int,
    ):
        self.backward, self.constants = backward, constants
        self.loop_inputs = [*carried, *rows]
        summed, others = outputs[:num_sums], outputs[num_sums:]
        self.plan = plan = ReductionPlan(backward, constants, rows)
        largest_first = sorted(range(num_sums), key=lambda i: -summed[i].aval.size)
        reductions = {i: plan.reduction_of(summed[i]) for i in largest_first}
        self.reductions = [reductions[i] for i in range(num_sums)]
        self.sums = tuple([a.update(weak_type=False) for a in plan.sum_avals])
        stacked = [v for v in plan.stacked if v not in rows]
        stacked_rows = [v for v in rows if v in plan.stacked]
        self.stacks = [*stacked, *stacked_rows]
        self.stacked_inputs = tuple([rows.index(v) for v in stacked_rows])
        self.accumulations = [[plan.accumulation_of(term) for term in terms] for terms in plan.sums]
        added = [atom for terms in self.accumulations for _, atoms in terms for atom in atoms]
        self.outs = [*others, *stacked]
        self.step = with_io(backward, [*constants, *self.loop_inputs], [*self.outs, *added])

    @property
    def in_avals(self) -> list[ShapedArray]:
        """The types of the inputs of the body."""
        loop_avals = [v.aval for v in self.loop_inputs]
        return [*[v.aval for v in self.constants], *self.sums, *loop_avals]

    def in_names(self, names: Sequence[str]) -> list[str]:
        """The names of the inputs of the body, from those of the backward program."""
        name_of = dict(zip(self.backward.inputs, names, strict=True))
        return [
            *[name_of[v] for v in self.constants],
            *[f"sum_{i}" for i in range(len(self.sums))],
            *[name_of[v] for v in self.loop_inputs],
        ]

    def body(self, *args: Value) -> list[Value]:
        """One step."""
        consts, so_far, loop_args = split_list(args, [len(self.constants), len(self.sums)])
        results = apply(None, self.step, [*consts, *loop_args])
        outs, added = split_list(results, [len(self.outs)])
        return [*add_terms(so_far, self.accumulations, added), *outs]

    def finish(self, *args: Value) -> list[Value]:
        """The sums, from the constants, the sums of the last step, and the stacks."""
        consts, final_sums, stacks = split_list(args, [len(self.constants), len(self.sums)])
        stack_of = dict(zip(self.stacks, stacks, strict=True))
        final = FinalValues(dict(zip(self.constants, consts, strict=True)), final_sums, stack_of)
        known = evaluate_invariants(self.backward, final.values, self.plan.invariants)
        final.values.update(known)
        return [reduction.evaluate(final) for reduction in self.reductions]


def evaluate_invariants(
    program: Program, known: dict[Atom, Any], invariants: set[Atom]
) -> dict[Atom, Any]:
    """The values of the variables in `invariants`, computed from `known` values."""
    equations = [eqn for eqn in program.equations if all(v in invariants for v in eqn.outputs)]
    outputs = [v for eqn in equations for v in eqn.outputs]
    inputs = [v for v in program.inputs if v in known]
    computed = Program(program.name, inputs, equations, outputs)
    return dict(zip(outputs, apply_program(computed, [known[v] for v in inputs]), strict=True))


class FinalValues(NamedTuple):
    """The values after the loop: of loop-invariant variables, of sums, and of stacked rows."""

    values: dict[Atom, Value]
    sums: Sequence[Any]
    stacks: dict[Atom, Any]


class AccumulatedSum(NamedTuple):
    """A sum of `dtype` that the loop accumulates, half floats in single precision."""

    position: int
    dtype: DType | None

    def evaluate(self, final: FinalValues) -> Value:
        total = final.sums[self.position]
        return total if total.dtype == self.dtype else ops.convert_element_type(total, self.dtype)


class ZeroSum(NamedTuple):
    """A sum of zeros."""

    aval: ShapedArray

    def evaluate(self, final: FinalValues) -> Value:
        return ops.zeros_like(self.aval)


class StackedSum(NamedTuple):
    """A sum of rows that are stacked in any case, each summed over `axes`."""

    atom: Atom
    axes: tuple[int, ...] = ()

    def evaluate(self, final: FinalValues) -> Value:
        return ops.reduce_sum(final.stacks[self.atom], (0, *[a + 1 for a in self.axes]))


class ContractedSum(NamedTuple):
    """A sum of products of rows: one product of arrays, contracted over the steps too."""

    eqn: Equation

    def evaluate(self, final: FinalValues) -> Value:
        dot: Any = self.eqn.primitive
        contracting, batch = (
            [tuple([d + 1 for d in dims]) for dims in pair]
            for pair in (dot.contracting_dims, dot.batch_dims)
        )
        product = ops.DotGeneral(
            ((0, *contracting[0]), (0, *contracting[1])),
            (batch[0], batch[1]),
            dot.precision,
            dot.preferred_element_type,
        )
        return product(*[final.stacks[atom] for atom in self.eqn.inputs])


class LinearImageOfSums(NamedTuple):
    """A linear function of the sums `reductions`, one an operand; None for invariant operands."""

    eqn: Equation
    reductions: tuple[Reduction | None, ...]

    def evaluate(self, final: FinalValues) -> Value:
        args = [
            total.evaluate(final) if total is not None else final.values.get(atom, atom)
            for atom, total in zip(self.eqn.inputs, self.reductions, strict=True)
        ]
        return self.eqn.primitive(*args)


class SumOfSums(NamedTuple):
    """A sum of several sums."""

    reductions: tuple[Reduction, ...]

    def evaluate(self, final: FinalValues) -> Value:
        first, *others = [total.evaluate(final) for total in self.reductions]
        for x in others:
            first = ops.add(first, x)
        return first


Reduction = AccumulatedSum | ZeroSum | StackedSum | ContractedSum | LinearImageOfSums | SumOfSums
"""How a sum over the steps is computed after the loop."""


MAX_ACCUMULATED_PRODUCT = 64
"""The size of products that each step of a loop adds up, since they cost less than rows of factors."""


class ReductionPlan:
    """The plan of how to compute sums over the steps of a loop.

    `sums` has, for each sum that the loop accumulates, the terms that a step adds. The keys of
    `stacked` are the variables whose rows are needed after the loop.
    """

    def __init__(self, program: Program, constants: Sequence[Var], rows: Sequence[Var]):
        self.producers = program.def_use.producers
        self.invariants = loop_invariant_variables(program, set(constants))
        self.rows = set(rows)
        self.stacked: dict[Atom, None] = {}
        self.reductions: dict[Atom, Reduction] = {}
        self.sums: list[list[Atom]] = []
        self.sum_avals: list[ShapedArray] = []

    def reduction_of(self, atom: Atom) -> Reduction:
        """The reduction that gives the sum of `atom` over the steps."""
        if atom not in self.reductions:
            self.reductions[atom] = self.plan_reduction(atom)
        return self.reductions[atom]

    def plan_reduction(self, atom: Atom) -> Reduction:
        """Plan the sum of `atom`: deferred for as many of its addends as possible."""
        reductions, accumulated = [], []
        for term in self.addends(atom):
            reduction = self.deferred_reduction(term)
            if reduction is None:
                accumulated.append(term)
            elif type(reduction) is not ZeroSum:
                reductions.append(reduction)
        if accumulated:
            reductions.append(AccumulatedSum(len(self.sums), atom.aval.dtype))
            self.sums.append(accumulated)
            self.sum_avals.append(upcast_aval(atom.aval))
        if not reductions:
            return ZeroSum(atom.aval)
        return reductions[0] if len(reductions) == 1 else SumOfSums(tuple(reductions))

    def addends(self, atom: Atom) -> list[Atom]:
        """The terms whose sum is `atom`."""
        terms, pending = [], [atom]
        while pending:
            term = pending.pop()
            eqn = self.producers.get(term)
            if (
                eqn is not None
                and type(eqn.primitive) is ops.Add
                and term not in self.invariants
                and all(a.aval.shape == term.aval.shape for a in eqn.inputs)
            ):
                pending += reversed(eqn.inputs)
            elif self.sparse_update(eqn) is not None and not self.is_stacked(term):
                # Only the added slice; the operand that it is added to is another term.
                terms.append(term)
                pending.append(eqn.inputs[0])  # type: ignore[union-attr]
            else:
                terms.append(term)
        return terms

    def deferred_reduction(self, atom: Atom) -> Reduction | None:
        """The reduction of `atom` after the loop; None if the loop must accumulate it."""
        if self.is_zero(atom):
            return ZeroSum(atom.aval)
        if type(atom) is Literal or atom in self.invariants:
            return None
        if self.is_stacked(atom):
            self.stacked[atom] = None
            return StackedSum(atom)
        eqn = self.producers.get(atom)
        if eqn is None:
            return None
        if type(eqn.primitive) is ops.ReduceSum and self.is_stacked(eqn.inputs[0]):
            self.stacked[eqn.inputs[0]] = None
            return StackedSum(eqn.inputs[0], eqn.primitive.axes)
        if self.is_stacked_product(eqn):
            self.stacked.update(dict.fromkeys(eqn.inputs))
            return ContractedSum(eqn)
        varying = self.linear_operands(eqn)
        if not varying:
            return None
        size = sum([eqn.inputs[i].aval.size for i in varying if not self.is_zero(eqn.inputs[i])])
        if size > atom.aval.size and not all(self.is_stacked(eqn.inputs[i]) for i in varying):
            return None
        is_scaling = type(eqn.primitive) in _SCALINGS and size == atom.aval.size
        if is_scaling and self.discard_plain_accumulation(eqn.inputs[varying[0]]):
            return None
        return LinearImageOfSums(
            eqn,
            tuple(
                [self.reduction_of(a) if i in varying else None for i, a in enumerate(eqn.inputs)]
            ),
        )

    def discard_plain_accumulation(self, atom: Atom) -> bool:
        """Drop the plan for the sum of `atom` if the loop would only accumulate it; whether it did.

        Terms that are scaled before they are added then need no second sum.
        """
        if atom in self.reductions or type(self.reduction_of(atom)) is not AccumulatedSum:
            return False
        if any([self.accumulation_of(term)[0] is not ops.add for term in self.sums[-1]]):
            return False
        del self.reductions[atom], self.sums[-1], self.sum_avals[-1]
        return True

    def is_stacked(self, atom: Atom) -> bool:
        """Whether the rows of `atom` exist after the loop in any case."""
        return atom in self.rows or atom in self.stacked

    def is_stacked_product(self, eqn: Equation) -> bool:
        """Whether to multiply the stacked factors of a product after the loop.

        So unless the stacks take more memory than its sum, or the product is small.
        """
        if type(eqn.primitive) is not ops.DotGeneral or any(
            a in self.invariants for a in eqn.inputs
        ):
            return False
        size = eqn.outputs[0].aval.size
        new = {a for a in eqn.inputs if not self.is_stacked(a)}
        return not new or MAX_ACCUMULATED_PRODUCT < size >= sum([a.aval.size for a in new])

    def linear_operands(self, eqn: Equation) -> list[int]:
        """The operands in which `eqn` is linear, if all others are loop-invariant; else none."""
        primitive: Any = eqn.primitive
        varying = [
            i for i, a in enumerate(eqn.inputs) if type(a) is Var and a not in self.invariants
        ]
        others = [a for i, a in enumerate(eqn.inputs) if i not in varying]
        if isinstance(primitive, Linear) and not primitive.multiple_results:
            return varying if all(self.is_zero(a) for a in others) else []
        if type(primitive) is ops.DotGeneral:
            return varying if len(varying) == 1 else []
        # Without its factor, a sum of float16 may overflow.
        if type(primitive) in _SCALINGS and eqn.outputs[0].aval.dtype != np.float16:
            return varying if len(varying) == 1 and varying[0] in primitive.linear else []
        return []

    def is_zero(self, atom: Atom) -> bool:
        """Whether `atom` is known to be zero."""
        return is_zero_array(atom, self.producers)

    def accumulation_of(self, term: Atom) -> Accumulation:
        """The function that adds `term` to a sum, and its operands without zeros around a slice."""
        eqn = self.producers.get(term)
        added = self.sparse_update(eqn)
        if added is not None:
            return added
        if eqn is not None and eqn.inputs and self.is_zero(eqn.inputs[0]):
            if type(eqn.primitive) is ops.DynamicUpdateSlice:
                return add_to_slice, eqn.inputs[1:]
            if type(eqn.primitive) is ops.ScatterAdd:
                return eqn.primitive, eqn.inputs[1:]
        return ops.add, [term]

    def sparse_update(self, eqn: Equation | None) -> Accumulation | None:
        """The function and operands that add to a slice of the first operand of `eqn`, or None."""
        if eqn is None or not eqn.inputs or self.is_zero(eqn.inputs[0]):
            return None
        if type(eqn.primitive) is ops.ScatterAdd:
            return eqn.primitive, eqn.inputs[1:]
        if type(eqn.primitive) is not ops.DynamicUpdateSlice:
            return None
        base, new, *indices = eqn.inputs
        addition = self.producers.get(new)
        if addition is None or type(addition.primitive) is not ops.Add:
            return None
        slice_read = self.producers.get(addition.inputs[0])
        if (
            slice_read is None
            or type(slice_read.primitive) is not ops.DynamicSlice
            or list(slice_read.inputs) != [base, *indices]
            or addition.inputs[1].aval.shape != new.aval.shape
        ):
            return None
        return add_to_slice, [addition.inputs[1], *indices]


def add_terms(
    sums: Values, accumulations: Sequence[Sequence[Accumulation]], operands: Values
) -> list[Value]:
    """The `sums` with the terms of one step added; `operands` are those of the terms, in order."""
    remaining = iter(operands)
    new_sums = []
    for total, terms in zip(sums, accumulations, strict=True):
        for add, atoms in terms:
            total = add(total, *[upcast_half(next(remaining)) for _ in atoms])
        new_sums.append(total)
    return new_sums


def add_to_slice(total: Value, part: Value, *indices: ArrayLike) -> Value:
    """`total` with `part` added at `indices`."""
    current = ops.DynamicSlice(part.shape)(total, *indices)
    return ops.DynamicUpdateSlice()(total, ops.add(current, part), *indices)
