"""Loops backwards: cotangents from step to step, and those of consts summed over the steps.

Most of a sum can wait for the end of the loop: what is linear in each step is done once, to the
sum, and a sum of products of rows is one product of the stacked rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.program import Atom, Equation, Literal, Program, Var
from functx.core.program_editing import apply_program
from functx.core.records import Rewrite, Uncompared
from functx.core.rewriting import apply
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray
from functx.ops.families import Linear
from functx.ops.operands import upcast_aval, upcast_half
from functx.transforms.control.scan_partial_eval import loop_invariant_variables
from functx.transforms.dce import with_io
from functx.transforms.operand_masks import select_where
from functx.transforms.symbolic_zeros import ZeroPropagation


class BackwardScan(NamedTuple):
    """The body of a loop backwards, and what comes after the loop.

    The body takes consts, sums, carried cotangents, rows of cotangents, rows of what is
    needed. It returns the next sums and carried cotangents, then rows: cotangents, and those
    that `finish` needs. That takes the consts, the final sums, the arrays of these rows, and
    those of the rows at `whole` among what the body was given; it returns the cotangents of
    the consts.
    """

    body: Program
    sums: tuple[ShapedArray, ...]
    finish: Callable[..., list[Any]]
    stacked_inputs: tuple[int, ...]


class BuildBackwardScan(Rewrite[BackwardScan]):
    """The rewrite of the backward program of a body to that of a loop backwards.

    `sources` says where each cotangent comes from: `c` the step before, `x` a row, `0` it is
    zero; `kinds` whether each thing needed is a const (`c`) or a row (`x`). `reached` says
    which results can be other than zero, of which the first `sums` are added up over the
    steps. `names` gives names to the cotangents and to what is needed.
    """

    cotangent_kinds: str
    residual_kinds: str
    sums: int
    nonzero_results: tuple[bool, ...]
    names: Uncompared[Callable[[], Sequence[str]] | None]

    def __call__(self, pull: Program) -> BackwardScan:
        cts, needs = (
            pull.inputs[: len(self.cotangent_kinds)],
            pull.inputs[len(self.cotangent_kinds) :],
        )
        constants = [v for v, k in zip(needs, self.residual_kinds, strict=True) if k == "c"]
        carried = [v for v, k in zip(cts, self.cotangent_kinds, strict=True) if k == "c"]
        given = [v for v, k in zip(cts, self.cotangent_kinds, strict=True) if k == "x"]
        rows = [*given, *[v for v, k in zip(needs, self.residual_kinds, strict=True) if k == "x"]]
        zeros = [v for v, k in zip(cts, self.cotangent_kinds, strict=True) if k == "0"]
        if zeros:
            left = ZeroPropagation(pull.equations, cts, zeros)
            results = [left.read(a) for a in pull.outputs]
            pull = Program(pull.name, pull.inputs, left.equations, results)
        outputs = select_where(pull.outputs, self.nonzero_results)
        split = sum(self.nonzero_results[: self.sums])
        summed, others = outputs[:split], outputs[split:]

        plan = ReductionPlan(pull, constants, rows)
        order = sorted(range(split), key=lambda i: -summed[i].aval.size)
        totals = {i: plan.reduction_of(summed[i]) for i in order}
        sums = tuple([a.update(weak_type=False) for a in plan.sum_avals])
        stacked = [v for v in plan.stacked if v not in rows]
        whole = [v for v in rows if v in plan.stacked]
        parts = [plan.accumulation_of(term) for terms in plan.sums for term in terms]
        inside = [atom for _, atoms in parts for atom in atoms]
        step = with_io(pull, [*constants, *carried, *rows], [*others, *stacked, *inside])

        def body(*args: Any) -> list[Any]:
            n = len(constants)
            so_far, args = args[n : n + len(sums)], (*args[:n], *args[n + len(sums) :])
            found = apply(None, step, args)
            kept = found[: len(others) + len(stacked)]
            rest = iter(found[len(kept) :])
            pending = iter(parts)
            added = []
            for acc, terms in zip(so_far, plan.sums, strict=True):
                for _ in terms:
                    put, atoms = next(pending)
                    acc = put(acc, *[upcast_half(next(rest)) for _ in atoms])
                added.append(acc)
            return [*added, *kept]

        def finish(*args: Any) -> list[Any]:
            env = FinalValues(dict(zip(constants, args, strict=False)))
            rest = iter(args[len(constants) :])
            env.sums = [next(rest) for _ in sums]
            env.stacks = dict(zip([*stacked, *whole], rest, strict=True))
            env.values.update(evaluate_invariants(pull, env.values, plan.invariants))
            return [totals[i].value(env) for i in range(split)]

        names = self.names.value

        def in_names() -> list[str]:
            assert names is not None
            known = dict(zip([*cts, *needs], names(), strict=True))
            return [
                *[known[v] for v in constants],
                *[f"sum_{i}" for i in range(len(sums))],
                *[known[v] for v in [*carried, *rows]],
            ]

        loop_avals = [v.aval for v in [*carried, *rows]]
        const_avals = [v.aval for v in constants]
        return BackwardScan(
            trace_closed(
                body,
                [*const_avals, *sums, *loop_avals],
                name=pull.name,
                in_names=None if names is None else in_names,
            ),
            sums,
            finish,
            tuple([rows.index(v) for v in whole]),
        )


def evaluate_invariants(program: Program, known: dict[Any, Any], same: set[Any]) -> dict[Any, Any]:
    """The values of the variables of `program` in `same`, from those known."""
    equations = [eqn for eqn in program.equations if all(v in same for v in eqn.outputs)]
    wanted = [v for eqn in equations for v in eqn.outputs]
    inputs = [v for v in program.inputs if v in known]
    computed = Program(program.name, inputs, equations, wanted)
    return dict(zip(wanted, apply_program(computed, [known[v] for v in inputs]), strict=True))


@dataclass
class FinalValues:
    """What is known after the loop: consts and what comes of them, sums, and stacked rows."""

    values: dict[Any, Any]
    sums: Sequence[Any] = ()
    stacks: dict[Any, Any] = field(default_factory=dict)


class AccumulatedSum(NamedTuple):
    """A total of `dtype` that the loop adds up, half floats in single precision."""

    position: int
    dtype: Any

    def value(self, env: FinalValues) -> Any:
        total = env.sums[self.position]
        return total if total.dtype == self.dtype else ops.convert_element_type(total, self.dtype)


class ZeroSum(NamedTuple):
    """The total of nothing but zeros."""

    aval: ShapedArray

    def value(self, env: FinalValues) -> Any:
        return ops.zeros_like(self.aval)


class StackedSum(NamedTuple):
    """The total of rows that are stacked in any case, each summed over `axes`."""

    atom: Atom
    axes: tuple[int, ...] = ()

    def value(self, env: FinalValues) -> Any:
        return ops.reduce_sum(env.stacks[self.atom], (0, *[a + 1 for a in self.axes]))


class ContractedSum(NamedTuple):
    """The total of products of rows: one product of arrays, contracted over the steps too."""

    eqn: Equation

    def value(self, env: FinalValues) -> Any:
        dot: Any = self.eqn.primitive
        contract, batched = (
            [tuple([d + 1 for d in dims]) for dims in pair]
            for pair in (dot.contracting_dims, dot.batch_dims)
        )
        whole = ops.DotGeneral(
            ((0, *contract[0]), (0, *contract[1])),
            (batched[0], batched[1]),
            dot.precision,
            dot.preferred_element_type,
        )
        return whole(*[env.stacks[atom] for atom in self.eqn.inputs])


class LinearImageOfSums(NamedTuple):
    """The total of what is linear in `totals`, one an operand, None for those that stay."""

    eqn: Equation
    reductions: tuple[Any, ...]

    def value(self, env: FinalValues) -> Any:
        args = [
            total.value(env) if total is not None else env.values.get(atom, atom)
            for atom, total in zip(self.eqn.inputs, self.reductions, strict=True)
        ]
        return self.eqn.primitive(*args)


class SumOfSums(NamedTuple):
    """A total that is a sum of totals."""

    reductions: tuple[Any, ...]

    def value(self, env: FinalValues) -> Any:
        first, *others = [total.value(env) for total in self.reductions]
        for x in others:
            first = ops.add(first, x)
        return first


class ReductionPlan:
    """How totals over the steps of a loop come about.

    `sums` holds, for each sum that the loop adds up, the terms that a step adds to it; the
    keys of `stacked` are the variables whose rows are needed after the loop.
    """

    def __init__(self, program: Program, constants: Sequence[Var], rows: Sequence[Var]):
        self.producers: dict[Any, Equation] = {v: e for e in program.equations for v in e.outputs}
        self.invariants = loop_invariant_variables(program, set(constants))
        self.rows = set(rows)
        self.stacked: dict[Any, None] = {}
        self.reductions: dict[Any, Any] = {}
        self.sums: list[list[Atom]] = []
        self.sum_avals: list[ShapedArray] = []

    def reduction_of(self, atom: Atom) -> Any:
        """How the total of `atom` over the steps comes about."""
        if atom not in self.reductions:
            self.reductions[atom] = self.plan_reduction(atom)
        return self.reductions[atom]

    def plan_reduction(self, atom: Atom) -> Any:
        totals, later = [], []
        for term in self.addends(atom):
            found = self.deferred_reduction(term)
            if found is None:
                later.append(term)
            elif type(found) is not ZeroSum:
                totals.append(found)
        if later:
            totals.append(AccumulatedSum(len(self.sums), atom.aval.dtype))
            self.sums.append(later)
            self.sum_avals.append(upcast_aval(atom.aval))
        if not totals:
            return ZeroSum(atom.aval)
        return totals[0] if len(totals) == 1 else SumOfSums(tuple(totals))

    def addends(self, atom: Atom) -> list[Atom]:
        """The terms of which `atom` is the sum."""
        found, pending = [], [atom]
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
                # Only for its part: what that is added to is a term, too.
                found.append(term)
                pending.append(eqn.inputs[0])  # type: ignore[union-attr]
            else:
                found.append(term)
        return found

    def deferred_reduction(self, atom: Atom) -> Any:
        """How the total of `atom` comes about after the loop; None if the loop is to add it up."""
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
        moving = self.linear_operands(eqn)
        if not moving:
            return None
        size = sum([eqn.inputs[i].aval.size for i in moving if not self.is_zero(eqn.inputs[i])])
        if size > atom.aval.size and not all(self.is_stacked(eqn.inputs[i]) for i in moving):
            return None
        return LinearImageOfSums(
            eqn,
            tuple(
                [self.reduction_of(a) if i in moving else None for i, a in enumerate(eqn.inputs)]
            ),
        )

    def is_stacked(self, atom: Atom) -> bool:
        """Whether the rows of `atom` are there after the loop in any case."""
        return atom in self.rows or atom in self.stacked

    def is_stacked_product(self, eqn: Equation) -> bool:
        """Whether it is less to keep the factors of a product of rows than to add it up."""
        if type(eqn.primitive) is not ops.DotGeneral or any(
            a in self.invariants for a in eqn.inputs
        ):
            return False
        new = {a for a in eqn.inputs if not self.is_stacked(a)}
        return sum([a.aval.size for a in new]) <= eqn.outputs[0].aval.size

    def linear_operands(self, eqn: Equation) -> list[int]:
        """The operands that `eqn` is linear in, the others being the same in every step."""
        primitive: Any = eqn.primitive
        moving = [
            i for i, a in enumerate(eqn.inputs) if type(a) is Var and a not in self.invariants
        ]
        fixed = [a for i, a in enumerate(eqn.inputs) if i not in moving]
        if isinstance(primitive, Linear) and not primitive.multiple_results:
            return moving if all(self.is_zero(a) for a in fixed) else []
        if type(primitive) is ops.DotGeneral:
            return moving if len(moving) == 1 else []
        # A sum of float16 that waits for its factor may leave their range.
        if (
            type(primitive) in (ops.Mul, ops.Div, ops.Neg)
            and eqn.outputs[0].aval.dtype != np.float16
        ):
            return moving if len(moving) == 1 and moving[0] in primitive.linear else []
        return []

    def is_zero(self, atom: Any) -> bool:
        """Whether `atom` is made to be zero."""
        if type(atom) is Literal:
            return not atom.value
        eqn = self.producers.get(atom)
        return eqn is not None and type(eqn.primitive) is ops.Full and self.is_zero(eqn.inputs[0])

    def accumulation_of(self, term: Atom) -> tuple[Callable[..., Any], Sequence[Atom]]:
        """How a step adds `term` to a sum, and what it needs for that: no zeros around a part."""
        eqn = self.producers.get(term)
        added = self.sparse_update(eqn)
        if added is not None:
            return added
        if eqn is not None and self.is_zero(eqn.inputs[0] if eqn.inputs else None):
            if type(eqn.primitive) is ops.DynamicUpdateSlice:
                return add_to_slice, eqn.inputs[1:]
            if type(eqn.primitive) is ops.ScatterAdd:
                return eqn.primitive, eqn.inputs[1:]
        return ops.add, [term]

    def sparse_update(
        self, eqn: Equation | None
    ) -> tuple[Callable[..., Any], Sequence[Atom]] | None:
        """How to add the part that `eqn` adds to its first operand, and what that needs, if it does."""
        if eqn is None or not eqn.inputs or self.is_zero(eqn.inputs[0]):
            return None
        if type(eqn.primitive) is ops.ScatterAdd:
            return eqn.primitive, eqn.inputs[1:]
        if type(eqn.primitive) is not ops.DynamicUpdateSlice:
            return None
        base, new, *indices = eqn.inputs
        added = self.producers.get(new)
        if added is None or type(added.primitive) is not ops.Add:
            return None
        read = self.producers.get(added.inputs[0])
        if (
            read is None
            or type(read.primitive) is not ops.DynamicSlice
            or list(read.inputs) != [base, *indices]
            or added.inputs[1].aval.shape != new.aval.shape
        ):
            return None
        return add_to_slice, [added.inputs[1], *indices]


def add_to_slice(total: Any, part: Any, *indices: Any) -> Any:
    """`total` with `part` added to it at `indices`."""
    so_far = ops.DynamicSlice(part.shape)(total, *indices)
    return ops.DynamicUpdateSlice()(total, ops.add(so_far, part), *indices)
