"""Loop rerolling: repeated parts of a program that follow one another become a `scan`.

The operands of the parts become consts, carries, rows or slices of arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.concretization import is_concrete_literal
from functx.core.primitive import Primitive
from functx.core.primitive_families import ReadsPart
from functx.core.program import Atom, Equation, Literal, Program, Var, subprograms
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import cached_rewrite
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import NumPyArray
from functx.ops.families import Constant, Elementwise, Linear
from functx.passes.costs import bytes_of
from functx.passes.loop_reads import LoopReads
from functx.passes.repeat_detection import RepeatGroup, index_literal
from functx.passes.static_slices import StaticSlice, coalesce_rows, static_slice_of
from functx.transforms.call_primitive import Call
from functx.transforms.control.scan import Scan

_LINEAR_OPS = Linear, Constant, ops.DotGeneral, ops.DynamicSlice, ops.Gather, ops.ScatterAdd


def has_finite_derivatives(equations: Iterable[Equation]) -> bool:
    """Whether zero tangents and cotangents stay zero through all `equations`, on finite numbers."""
    return all(map(_has_finite_derivative, equations))


def _has_finite_derivative(eqn: Equation) -> bool:
    """Whether zero tangents and cotangents stay zero through one equation, on finite numbers."""
    primitive = eqn.primitive
    if not primitive.differentiable or isinstance(primitive, _LINEAR_OPS):
        return True
    if primitive.has_finite_derivative:
        return True
    if type(primitive) is Call:
        return all(
            [cached_rewrite(has_finite_derivatives, nested) for nested in subprograms(primitive)]
        )
    return isinstance(primitive, Elementwise) and all(
        [
            primitive.preserves_zero(i, *eqn.inputs)
            for i, atom in enumerate(eqn.inputs)
            if type(atom) is Var and is_inexact(atom.aval.dtype)
        ]
    )


# The largest stack, in bytes, of which most rows may be unused.
_MAX_SPARSE_STACK_BYTES = 1 << 16
_INDEX_AVAL = index_literal(0).aval


def consecutive_runs(group: RepeatGroup) -> list[RepeatGroup]:
    """The parts of `group`, split into sequences in which each begins where the one before ends."""
    runs: list[list[int]] = []
    for start in group.starts:
        if runs and start == runs[-1][-1] + group.length:
            runs[-1].append(start)
        else:
            runs.append([start])
    return [RepeatGroup(group.flow, starts, group.length, group.live_outs) for starts in runs]


def reroll(
    group: RepeatGroup,
    names: Iterator[int],
    rewrite: object,
    known_slices: dict[Atom, StaticSlice],
    replaced_until: Sequence[int],
) -> list[Equation] | None:
    """Equations with a loop for parts that follow one another; None if they do not fit.

    Results that the loop stacks are entered in `known_slices`. `replaced_until` has for each
    replaced equation the end of its part, and 0 for the others. Before transforms, the list is
    empty for parts that transforms handle better unrolled: if the loop would stack results, or
    need masks, which end at a loop.
    """
    return _Reroller(group, known_slices, replaced_until).build(names, rewrite)


class _Carry(NamedTuple):
    """A carry: its variable in the body, its initial value, and its next value.

    The next value is a result of the block, by its number, or another carry.
    """

    var: Var
    initial: Atom
    following: int | Var


class _Reroller:
    """Builds the loop for one group of parts."""

    def __init__(
        self,
        group: RepeatGroup,
        known_slices: dict[Atom, StaticSlice],
        replaced_until: Sequence[int],
    ):
        self.group, self.flow = group, group.flow
        self.known_slices, self.replaced_until = known_slices, replaced_until
        self.count = len(group.starts)
        self.start, self.stop = group.starts[0], group.starts[-1] + group.length
        # The variables of the results of each part, and the numbers of those of the first part.
        self.results = [group.outputs(start) for start in group.starts]
        self.number_of: dict[Atom, int] = {v: i for i, v in enumerate(self.results[0])}
        self.hoisted: list[Equation] = []
        self.sliced_results: list[int] = []
        self.slice_equations: list[Equation] = []
        self.consts: dict[Atom, Var] = {}
        self.carries: list[_Carry] = []
        # By row input: the array of the rows; the scalars of the steps, if it is one. By the
        # starts of slices: their row input.
        self.row_inputs: dict[Var, Atom] = {}
        self.scalar_inputs: dict[Atom, tuple[Atom, ...]] = {}
        self.position_inputs: dict[tuple[Atom, ...], Var] = {}

    def build(self, names: Iterator[int], rewrite: Any) -> list[Equation] | None:
        """The equations before the loop, the loop, and slices of its results; see `reroll`."""
        block, operands = self.group.program()
        if block.effects:
            return None
        unmatched = list(zip(block.inputs, operands, strict=True))
        for match in (
            self.match_invariant, self.match_carry, self.match_delayed_carry,
            self.match_slices, self.match_scalars,
        ):  # fmt: skip
            unmatched = [(v, atoms) for v, atoms in unmatched if not match(v, atoms)]
        stacked = None if unmatched else self.stacked_results()
        if stacked is None or self.costs_more_slices(block, stacked):
            return None
        equations = [*self.slice_equations, *block.equations]
        if rewrite.before_transforms:
            if stacked or self.sliced_results or self.needs_masks(block):
                return []
            equations = self.slices_to_rows(equations)
        carried = {carry.following for carry in self.carries}
        # Results of which only the last is used are carried, from an unused initial value.
        for i, v in enumerate(self.results[-1]):
            if i not in carried and i not in stacked and i not in self.sliced_results:
                self.carries.append(_Carry(Var(v.aval), self.zeros(v.aval), i))
        block = Program(f"step_{next(names)}", block.inputs, equations, block.outputs)
        scan = self.scan_equation(block, stacked, rewrite)
        slices = self.slices_of_results(scan, stacked)
        return [*self.hoisted, scan, *slices]

    def scan_equation(self, block: Program, stacked: Sequence[int], rewrite: Any) -> Equation:
        """The loop whose steps run `block`, with `stacked` results."""
        inputs = [(v, operand) for operand, v in self.consts.items()]
        inputs += [(carry.var, carry.initial) for carry in self.carries]
        inputs += list(self.row_inputs.items())
        next_values = [carry.following for carry in self.carries]
        outputs = [block.outputs[x] if type(x) is int else x for x in [*next_values, *stacked]]
        body = Program(block.name, [v for v, _ in inputs], block.equations, outputs)  # type: ignore[arg-type]
        body = rewrite(body)
        moved = LoopReads(body.equations, self.count, self.scalars_of).moved()
        body = replace_program_fields(body, equations=moved)
        loop = Scan(body, len(self.consts), len(self.carries), self.count)
        finals = list(map(self.final_result, self.carries))
        final_vars: dict[tuple[int, int], Var | None] = {
            each: self.results[-each[1]][each[0]] for each in finals
        }
        carries = [final_vars.pop(x, None) or Var(self.results[0][x[0]].aval) for x in finals]
        stacks = [Var(stacked_aval(self.count, self.results[-1][i].aval)) for i in stacked]
        source = self.flow.equations[self.start].source
        return Equation(loop, [operand for _, operand in inputs], [*carries, *stacks], source)

    def slices_of_results(self, scan: Equation, stacked: Sequence[int]) -> list[Equation]:
        """Equations after the loop for the results of all parts, as slices of its stacked outputs.

        Results that are slices of other arrays are computed before the loop.
        """
        for i in self.sliced_results:
            self.hoisted += [eqn for r in self.results for eqn in self.emit_slice(r[i])]
        carries = {*scan.outputs[: len(self.carries)]}
        equations = []
        for i, stack in zip(stacked, scan.outputs[len(self.carries) :], strict=True):
            for step, variables in enumerate(self.results):
                v = variables[i]
                start, sizes = (step, *[0] * v.aval.ndim), (1, *v.aval.shape)
                self.known_slices[v] = StaticSlice(stack, start, sizes)
                if v not in carries:
                    equations += self.emit_slice(v)
        return equations

    # Each `match` method tries to make the input `v` of the block, which is `atoms` in the
    # parts, an input of the loop, and returns whether it could.

    def match_invariant(self, v: Var, atoms: Sequence[Atom]) -> bool:
        """As a loop-invariant value."""
        is_invariant = all([atom is atoms[0] for atom in atoms])
        if is_invariant:
            self.consts[atoms[0]] = v
        return is_invariant

    def match_delayed_carry(self, v: Var, atoms: Sequence[Atom]) -> bool:
        """As a result of the step before the last one, or of the one before that."""
        return any([self.match_carry(v, atoms, lag) for lag in (2, 3)])

    def match_carry(self, v: Var, atoms: Sequence[Atom], lag: int = 1) -> bool:
        """As a result of the step before, or of the step `lag` steps before."""
        number = self.number_of.get(atoms[lag]) if lag < self.count else None
        if number is None or not all([self.is_known(atom) for atom in atoms[:lag]]):
            return False
        if any([a is not r[number] for a, r in zip(atoms[lag:], self.results, strict=False)]):
            return False
        following: int | Var = number
        for i in range(lag - 1, 0, -1):
            same = [c.var for c in self.carries if c[1:] == (atoms[i], following)]
            if not same:
                same = [Var(v.aval)]
                self.carries.append(_Carry(same[0], atoms[i], following))
            following = same[0]
        self.carries.append(_Carry(v, atoms[0], following))
        return True

    def match_slices(self, v: Var, atoms: Sequence[Atom]) -> bool:
        """As slices of one array, of the same sizes."""
        pieces = []
        for atom in atoms:
            piece = self.slice_before_loop(atom)
            if piece is None:
                return False
            pieces.append(piece)
        array, _, sizes = pieces[0]
        if any([piece.array is not array or piece.sizes != sizes for piece in pieces]):
            return False
        array_input = self.consts.get(array)
        if array_input is None:
            array_input = self.consts[array] = Var(array.aval)
        starts = map(self.position_operand, zip(*[piece.start for piece in pieces], strict=True))
        equation = Equation.of(ops.DynamicSlice(sizes), [array_input, *starts])
        self.slice_equations += reshaped_to(v, equation)
        return True

    def match_scalars(self, v: Var, atoms: Sequence[Atom]) -> bool:
        """As a scalar of each step."""
        fits = v.aval.shape == () and all([self.is_known(atom) for atom in atoms])
        if fits:
            self.add_scalar_input(v, tuple(atoms))
        return fits

    def add_scalar_input(self, v: Var, scalars: tuple[Atom, ...]) -> None:
        """Make `v` a row input: the next of `scalars` in each step."""
        self.row_inputs[v] = self.stack_scalars(v.aval, scalars)
        self.scalar_inputs[v] = scalars

    def scalars_of(self, atom: Atom) -> Sequence[Atom] | None:
        """The value of `atom` in each step, if it is a literal or a scalar from before the loop."""
        return [atom] * self.count if type(atom) is Literal else self.scalar_inputs.get(atom)

    def final_result(self, carry: _Carry) -> tuple[int, int]:
        """The result that a carry is at the end, and of which part, counted from the last."""
        following, from_last = carry.following, 1
        while type(following) is not int:
            following = next(c.following for c in self.carries if c.var is following)
            from_last += 1
        return following, from_last

    def is_known(self, atom: Atom) -> bool:
        """Whether `atom` has its value before the loop, outside of other replaced parts."""
        producer = self.flow.producers.get(atom)
        if producer is None:
            return True
        return producer[0] < self.start and not self.flow.is_internal(atom, self.replaced_until)

    def stack_scalars(self, aval: ShapedArray, atoms: Sequence[Atom]) -> Var:
        """An array of the scalars `atoms`, one for each step."""
        if all([is_concrete_literal(atom) for atom in atoms]):
            numbers = np.array([atom.value for atom in atoms], aval.dtype)  # type: ignore[union-attr]
            if aval is _INDEX_AVAL and (np.diff(numbers, 2) == 0).all():
                return self.affine_indices(numbers)
            stacked = stacked_aval(self.count, aval)
            return self.emit(ops.DenseConstant(stacked, numbers.tobytes()), [])
        rows = [
            self.emit(ops.Full((1,)) if type(a) is Literal else ops.Reshape((1,)), [a])
            for a in atoms
        ]
        concatenated = self.emit(ops.Concatenate(0), rows)
        slice_of = dict(zip(rows, map(self.slice_before_loop, atoms), strict=True))
        coalesced = coalesce_rows(self.hoisted[-1], slice_of.get)  # type: ignore[arg-type]
        if coalesced is not None:
            self.hoisted[-1:] = coalesced
        return concatenated

    def slice_before_loop(self, atom: Atom) -> StaticSlice | None:
        """The slice that `atom` is of an array which is computed before the loop."""
        piece = static_slice_of(atom, self.flow, self.known_slices)
        return piece if piece is not None and self.is_known(piece.array) else None

    def affine_indices(self, numbers: NumPyArray) -> Var:
        """An array of equidistant indices."""
        indices = self.emit(ops.Iota(_INDEX_AVAL.dtype, (self.count,)), [])
        first, step = int(numbers[0]), int(numbers[1] - numbers[0])
        if step != 1:
            indices = self.emit(ops.Mul(), [indices, index_literal(step)])
        return self.emit(ops.Add(), [indices, index_literal(first)]) if first else indices

    def needs_masks(self, block: Program) -> bool:
        """Whether derivatives of the loop may be nan where its results have no influence."""
        later = self.flow.equations[self.stop :]
        if any(type(eqn.primitive) is ops.Select for eqn in later):
            return True
        unbounded = [i for i, eqn in enumerate(block) if not _has_finite_derivative(eqn)]
        # A literal divisor of each part is an input of the block.
        equations = [
            eqn
            for start in self.group.starts
            for i in unbounded
            if not _has_finite_derivative(eqn := self.flow.equations[start + i])
        ]
        unmasked = self.flow.unmasked if equations else ()
        return not all(any(v in unmasked for v in eqn.outputs) for eqn in equations)

    def slices_to_rows(self, equations: Sequence[Equation]) -> list[Equation]:
        """`equations` with row inputs in place of slices of consecutive rows."""
        array_of: dict[Atom, Atom] = {v: array for array, v in self.consts.items()}
        rewritten = []
        for eqn in equations:
            row = self.row_input(array_of, eqn)
            if row is None:
                rewritten.append(eqn)
                continue
            reshape = ops.Reshape(eqn.outputs[0].aval.shape)
            rewritten.append(eqn.replace(primitive=reshape, inputs=[row]))
        needed = {atom for eqn in rewritten for atom in eqn.inputs}
        self.row_inputs = {v: rows for v, rows in self.row_inputs.items() if v in needed}
        self.consts = {array: v for array, v in self.consts.items() if v in needed}
        return rewritten

    def row_input(self, array_of: dict[Atom, Atom], eqn: Equation) -> Var | None:
        """The row that `eqn` slices, if each step takes the next one.

        `array_of` has the arrays before the loop that inputs of the block are.
        """
        if type(eqn.primitive) is not ops.DynamicSlice or eqn.inputs[0] not in array_of:
            return None
        array = array_of[eqn.inputs[0]]
        starts: list[tuple[Any, ...]] = [
            self.scalar_inputs.get(atom, (atom,)) for atom in eqn.inputs[1:]
        ]
        if not starts or not all([is_concrete_literal(atom) for atoms in starts for atom in atoms]):
            return None
        rows, *columns = [[atom.value for atom in atoms] for atoms in starts]
        first, stop, shape = rows[0], rows[0] + self.count, array.aval.shape
        is_whole_row = eqn.outputs[0].aval.shape == (1, *shape[1:])
        if not is_whole_row or rows != [*range(first, stop)] or any(map(any, columns)):
            return None
        if self.count != shape[0]:
            begin, limit = (first, *[0] * (len(shape) - 1)), (stop, *shape[1:])
            array = self.emit(ops.Slice(begin, limit), [array])
        v = Var(array.aval.update(shape=shape[1:]))
        self.row_inputs[v] = array
        return v

    def position_operand(self, starts: tuple[int, ...]) -> Atom:
        """The start of a slice along one axis: a literal, or a row input with one for each step."""
        literals = tuple([index_literal(start) for start in starts])
        if len({*starts}) == 1:
            return literals[0]
        v = self.position_inputs.get(literals)
        if v is None:
            v = self.position_inputs[literals] = Var(literals[0].aval)
            self.add_scalar_input(v, literals)
        return v

    def stacked_results(self) -> list[int] | None:
        """The results to stack, because later equations use those of several parts.

        None if the stack of one would be large and mostly unused.
        """
        stacked = []
        carried: dict[int, int] = {}
        for i, from_last in map(self.final_result, self.carries):
            carried[i] = max(from_last, carried.get(i, 1))
        for i, first in enumerate(self.results[0]):
            used = [self.flow.last_use.get(r[i], -1) >= self.stop for r in self.results]
            if not any(used):
                continue
            all_sliced = all([self.slice_before_loop(r[i]) is not None for r in self.results])
            if all_sliced and i not in carried:
                self.sliced_results.append(i)
            elif any(used[: -carried.get(i, 1)]):
                is_large = self.count * bytes_of(first.aval) > _MAX_SPARSE_STACK_BYTES
                if is_large and sum(used) < self.count / 2:
                    return None
                stacked.append(i)
        return stacked

    def costs_more_slices(self, block: Program, stacked: Sequence[int]) -> bool:
        """Whether a step computes less than is needed to gather its scalars and to return its results.

        A returned result is sliced and reshaped; a scalar is reshaped and joined, and backwards that again.
        """
        end = len(self.flow.equations)
        returned = [
            i for i in stacked if all([self.flow.last_use.get(r[i]) == end for r in self.results])
        ]
        gathered = [
            atoms
            for atoms in self.scalar_inputs.values()
            if not any([is_concrete_literal(a) or self.slice_before_loop(a) for a in atoms])
        ]
        return len(block.equations) < 2 * len(returned) + 4 * len(gathered)

    def emit_slice(self, v: Var) -> list[Equation]:
        """Equations that compute the variable `v`, which is a slice of an array."""
        piece = static_slice_of(v, self.flow, self.known_slices)
        assert piece is not None
        limit = tuple([a + n for a, n in zip(piece.start, piece.sizes, strict=True)])
        return reshaped_to(v, Equation.of(ops.Slice(piece.start, limit), [piece.array]))

    def zeros(self, aval: ShapedArray) -> Atom:
        """Zeros of type `aval`."""
        zero = Literal(aval.dtype.type(0).item(), ShapedArray((), aval.dtype, aval.weak_type))
        return self.emit(ops.Full(aval.shape), [zero]) if aval.shape else zero

    def emit(self, primitive: Primitive, operands: Sequence[Atom]) -> Var:
        """The result of a new equation before the loop."""
        avals = tuple([atom.aval for atom in operands])
        outs = primitive.out_avals(avals)
        v = Var(outs[0])
        self.hoisted.append(Equation(primitive, [*operands], [v], None))
        return v


def reshaped_to(v: Var, equation: Equation) -> list[Equation]:
    """`equation`, and a reshape of its result if needed, so that `v` is the result."""
    if equation.outputs[0].aval.shape == v.aval.shape:
        return [equation.replace(outputs=[v])]
    return [equation, Equation(ops.Reshape(v.aval.shape), [*equation.outputs], [v], None)]


def accumulates_cotangent(eqn: Equation) -> bool:
    """Whether the cotangent of the first operand is added in place, as that of a slice is."""
    return isinstance(eqn.primitive, ReadsPart)


def stacked_aval(count: int, aval: ShapedArray) -> ShapedArray:
    """The type of `count` stacked arrays of type `aval`."""
    return aval.update(shape=(count, *aval.shape))
