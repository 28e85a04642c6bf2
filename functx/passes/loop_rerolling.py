"""Loop rerolling: parts of a program that follow one another and repeat become a `scan`.

The operands of the parts become consts, carries, rows or slices of arrays, which takes an
analysis of static slices; concatenated rows of one array become one slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.concretization import is_concrete_literal
from functx.core.program import Atom, Equation, Literal, Program, Var, subprograms
from functx.core.rewriting import cached_rewrite
from functx.core.types import ShapedArray, is_inexact
from functx.ops.families import Constant, Elementwise, Linear
from functx.passes.memory_cost_model import bytes_of
from functx.passes.repeat_detection import (
    EquationDataflow,
    RepeatGroup,
    has_unit_strides,
    index_literal,
)
from functx.transforms.call_primitive import Call
from functx.transforms.control.scan import Scan

Shape = tuple[int, ...]


class StaticSlice(NamedTuple):
    """The slice of `array` of shape `sizes` from `start` on; a variable may hold it reshaped."""

    array: Atom
    start: Shape
    sizes: Shape


def static_slice_of(
    atom: Atom, flow: EquationDataflow, known_slices: dict[Any, StaticSlice]
) -> StaticSlice | None:
    """The slice that `atom` is, by `known_slices` or the equations that compute it; else None."""
    while type(atom) is Var:
        if atom in known_slices:
            return known_slices[atom]
        position = flow.producers.get(atom)
        if position is None:
            return None
        eqn = flow.equations[position[0]]
        primitive = eqn.primitive
        if type(primitive) is ops.Slice and has_unit_strides(primitive):
            return StaticSlice(eqn.inputs[0], primitive.start, eqn.outputs[0].aval.shape)
        if type(primitive) is ops.Split:
            offset = sum(primitive.sizes[: position[1]])
            start = [0] * atom.aval.ndim
            start[primitive.axis] = offset
            return StaticSlice(eqn.inputs[0], tuple(start), atom.aval.shape)
        if type(primitive) is not ops.Reshape:
            return None
        atom = eqn.inputs[0]
    return None


_LINEAR_OPS = Linear, Constant, ops.DotGeneral, ops.DynamicSlice


def has_finite_derivatives(equations: Iterable[Equation]) -> bool:
    """Whether zero tangents and cotangents stay zero through all `equations`, on finite numbers."""
    return all(map(_has_finite_derivative, equations))


def _has_finite_derivative(eqn: Equation) -> bool:
    """Whether zero tangents and cotangents stay zero through one equation, on finite numbers."""
    primitive = eqn.primitive
    if not primitive.differentiable or isinstance(primitive, _LINEAR_OPS):
        return True
    if type(primitive) is Call:
        return all(
            [cached_rewrite(has_finite_derivatives, nested) for nested in subprograms(primitive)]
        )
    if not isinstance(primitive, Elementwise):
        return False
    return primitive.has_finite_derivative or all(
        [
            primitive.preserves_zero(i, *eqn.inputs)
            for i, atom in enumerate(eqn.inputs)
            if type(atom) is Var and is_inexact(atom.aval.dtype)
        ]
    )


# From this length on, one slice of all rows is cheaper than one slice for each.
_MIN_RUN_LENGTH = 4


class RowRun(NamedTuple):
    """`length` rows of `array` from `first` on, at a constant `stride` that may be negative."""

    array: Atom
    first: int
    stride: int
    length: int


def coalesce_rows(
    eqn: Equation, slice_of: Callable[[Atom], StaticSlice | None]
) -> list[Equation] | None:
    """Equations for the concatenation `eqn`, with runs of rows as one slice; None without runs.

    `slice_of` gives the slice of an existing array that an operand is.
    """
    pieces = row_runs(eqn.inputs, slice_of)
    if all([type(piece) is not RowRun for piece in pieces]):
        return None
    axis, equations, operands = eqn.primitive.axis, [], []  # type: ignore[attr-defined]
    position = 0
    for piece in pieces:
        if type(piece) is RowRun:
            run_equations = emit_row_run(piece, eqn.inputs[position].aval.shape, axis)
            equations += run_equations
            operands.append(run_equations[-1].outputs[0])
            position += piece.length
        else:
            operands.append(piece)
            position += 1
    equations.append(eqn.replace(primitive=ops.Concatenate(axis), inputs=operands))
    return equations


def row_runs(operands: Sequence[Atom], slice_of: Callable[[Atom], StaticSlice | None]) -> list[Any]:
    """The operands, with a `RowRun` in place of consecutive rows of one array."""
    rows = [row_number(slice_of(atom)) for atom in operands]
    items: list[Any] = []
    position = 0
    while position < len(rows):
        run = longest_run(rows, position)
        if run is None or run.length < _MIN_RUN_LENGTH:
            items.append(operands[position])
            position += 1
        else:
            items.append(run)
            position += run.length
    return items


def row_number(static_slice: StaticSlice | None) -> tuple[Atom, int] | None:
    """The array and position of the row that `part` is; None for other slices."""
    if static_slice is None:
        return None
    array, start, sizes = static_slice
    if not start or sizes != (1, *array.aval.shape[1:]):
        return None
    return array, start[0]


def longest_run(rows: Sequence[tuple[Atom, int] | None], position: int) -> RowRun | None:
    """The longest run of rows that begins at `position`; None if there is none."""
    row = rows[position]
    if row is None:
        return None
    array, first = row
    following = rows[position + 1] if position + 1 < len(rows) else None
    if following is None or following[0] is not array or following[1] == first:
        return None
    stride = following[1] - first
    count = 1
    while position + count < len(rows) and rows[position + count] == (
        array,
        first + stride * count,
    ):
        count += 1
    return RowRun(array, first, stride, count)


def emit_row_run(run: RowRun, shape: tuple[int, ...], axis: int) -> list[Equation]:
    """Equations for the rows of a run, each reshaped to `shape`, concatenated along `axis`."""
    equations: list[Equation] = []

    def append(primitive: Any) -> None:
        equations.append(
            Equation.of(primitive, [equations[-1].outputs[0] if equations else run.array])
        )

    shape_of_array = run.array.aval.shape
    ends = run.first, run.first + run.stride * (run.length - 1)
    trailing, step = shape_of_array[1:], abs(run.stride)
    strides = (step, *[1] * len(trailing)) if step > 1 else None
    append(ops.Slice((min(ends), *[0] * len(trailing)), (max(ends) + 1, *trailing), strides))
    if run.stride < 0:
        append(ops.Rev((0,)))
    append(ops.Reshape((run.length, *shape)))
    if prod(shape[:axis]) != 1:
        append(ops.PermuteDims((*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1))))
    append(ops.Reshape((*shape[:axis], run.length * shape[axis], *shape[axis + 1 :])))
    return equations


# The largest stack, in bytes, of which most rows may be unused.
_MAX_SPARSE_STACK_BYTES = 1 << 16
_INDEX_AVAL = index_literal(0).aval


# By part, the variables of its results.
ResultVars = list[list[Var]]


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
    rewrite: Any,
    known_slices: dict[Any, StaticSlice],
    replaced_until: Sequence[int],
) -> list[Equation] | None:
    """Equations with a loop for parts that follow one another; None if they do not fit.

    Results that the loop stacks are entered in `known_slices`. `replaced_until` has for each
    replaced equation the end of its part, and 0 for the others. Before transforms, the list is
    empty for parts that transforms handle better unrolled: if the loop would stack results, read
    slices other than consecutive rows, or need masks, which end at a loop.
    """
    return _Reroller(group, known_slices, replaced_until).build(names, rewrite)


class _Reroller:
    """Builds the loop for one group of parts."""

    def __init__(self, group: RepeatGroup, known: dict[Any, StaticSlice], ends: Sequence[int]):
        self.group, self.known_slices, self.replaced_until = group, known, ends
        self.flow, self.starts = group.flow, group.starts
        self.count = len(group.starts)
        self.stop = group.starts[-1] + group.length
        self.hoisted: list[Equation] = []
        self.result_positions: dict[Any, int] = {}
        self.sliced_results: list[int] = []
        self.slice_equations: list[Equation] = []
        self.consts: dict[Atom, Var] = {}
        # Each with its initial and its next value: the number of a result, or another carry.
        self.carries: list[tuple[Var, Atom, int | Var]] = []
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
        results = [self.group.outputs(start) for start in self.starts]
        self.result_positions = {v: i for i, v in enumerate(results[0])}
        unmatched = list(zip(block.inputs, operands, strict=True))
        for match in (
            self.match_invariant,
            self.match_carry,
            self.match_delayed_carry,
            self.match_slices,
            self.match_scalars,
        ):
            unmatched = [each for each in unmatched if not match(*each, results)]
        stacked = None if unmatched else self.stacked_results(results)
        if stacked is None:
            return None
        equations: list[Equation] | None = [*self.slice_equations, *block.equations]
        if rewrite.before_transforms:
            keep_unrolled = stacked or self.sliced_results or self.needs_masks(block)
            equations = None if keep_unrolled else self.slices_to_rows(block.equations)
        if equations is None:
            return []
        carried = {i for _, _, i in self.carries}
        # Results of which only the last is used are carried, from an unused initial value.
        for i, v in enumerate(results[-1]):
            if i not in carried and i not in stacked and i not in self.sliced_results:
                self.carries.append((Var(v.aval), self.zeros(v.aval), i))
        scan = self.scan_equation(block, equations, stacked, results, names, rewrite)
        slices = self.slices_of_results(scan, stacked, results)
        return [*self.hoisted, scan, *slices]

    def scan_equation(
        self,
        block: Program,
        equations: Sequence[Equation],
        stacked: Sequence[int],
        results: ResultVars,
        names: Iterator[int],
        rewrite: Any,
    ) -> Equation:
        """The loop whose body has `equations`, with `stacked` results."""
        inputs = [(v, operand) for operand, v in self.consts.items()]
        inputs += [(v, initial) for v, initial, _ in self.carries]
        inputs += list(self.row_inputs.items())
        next_carry = [i if type(i) is Var else block.outputs[i] for _, _, i in self.carries]  # type: ignore[index]
        outputs = [*next_carry, *[block.outputs[i] for i in stacked]]
        body = Program(f"step_{next(names)}", [v for v, _ in inputs], equations, outputs)
        loop = Scan(rewrite(body), len(self.consts), len(self.carries), self.count)
        finals = list(map(self.final_result, self.carries))
        final_vars: dict[Any, Any] = {each: results[-each[1]][each[0]] for each in finals}
        carries = [final_vars.pop(each, None) or Var(results[0][each[0]].aval) for each in finals]
        stacks = [Var(stacked_aval(self.count, results[-1][i].aval)) for i in stacked]
        source = self.flow.equations[self.starts[0]].source
        return Equation(loop, [operand for _, operand in inputs], [*carries, *stacks], source)

    def slices_of_results(
        self, scan: Equation, stacked: Sequence[int], results: ResultVars
    ) -> list[Equation]:
        """Equations after the loop for the results of all parts, as slices of what it stacks.

        Results that are slices of other arrays are computed before the loop.
        """
        for i in self.sliced_results:
            self.hoisted += [eqn for r in results for eqn in self.emit_slice(r[i])]
        stacks = scan.outputs[len(self.carries) :]
        carries = {*scan.outputs[: len(self.carries)]}
        equations = []
        for i, stack in zip(stacked, stacks, strict=True):
            for step, variables in enumerate(results):
                v = variables[i]
                start, sizes = (step, *[0] * v.aval.ndim), (1, *v.aval.shape)
                self.known_slices[v] = StaticSlice(stack, start, sizes)
                if v not in carries:
                    equations += self.emit_slice(v)
        return equations

    # Each `match` method tries to make the input `v` of the block, which is `atoms` in the
    # parts, an input of the loop, and returns whether it could.

    def match_invariant(self, v: Var, atoms: Sequence[Atom], results: ResultVars) -> bool:
        """As a loop-invariant value."""
        is_invariant = all([atom is atoms[0] for atom in atoms])
        if is_invariant:
            self.consts[atoms[0]] = v
        return is_invariant

    def match_delayed_carry(self, v: Var, atoms: Sequence[Atom], results: ResultVars) -> bool:
        """As a result of the step before the last one, or of the one before that."""
        return any([self.match_carry(v, atoms, results, lag) for lag in (2, 3)])

    def match_scalars(self, v: Var, atoms: Sequence[Atom], results: ResultVars) -> bool:
        """As a scalar of each step."""
        fits = v.aval.shape == () and all([self.is_known(atom) for atom in atoms])
        if fits:
            self.add_scalar_input(v, tuple(atoms))
        return fits

    def add_scalar_input(self, v: Var, numbers: tuple[Atom, ...]) -> None:
        """Make `v` a row input: the next of `scalars` in each step."""
        self.row_inputs[v] = self.stack_scalars(v.aval, numbers)
        self.scalar_inputs[v] = numbers

    def match_carry(self, v: Var, atoms: Sequence[Atom], results: ResultVars, lag: int = 1) -> bool:
        """As a result of the step before, or of the step `lag` steps before."""
        position = self.result_positions.get(atoms[lag]) if lag < self.count else None
        if position is None or not all([self.is_known(atom) for atom in atoms[:lag]]):
            return False
        if any([a is not r[position] for a, r in zip(atoms[lag:], results, strict=False)]):
            return False
        next_value: int | Var = position
        for i in range(lag - 1, 0, -1):
            same_carry = [c for c, *rest in self.carries if rest == [atoms[i], next_value]]
            if not same_carry:
                same_carry = [Var(v.aval)]
                self.carries.append((same_carry[0], atoms[i], next_value))
            next_value = same_carry[0]
        self.carries.append((v, atoms[0], next_value))
        return True

    def final_result(self, carry: tuple[Var, Atom, int | Var]) -> tuple[int, int]:
        """The result that a carry is at the end, and of which part, counted from the last."""
        next_value, from_last = carry[2], 1
        while type(next_value) is not int:
            next_value = next(source for v, _, source in self.carries if v is next_value)
            from_last += 1
        return next_value, from_last

    def is_known(self, atom: Atom) -> bool:
        """Whether `atom` has its value before the loop, outside of other replaced parts."""
        producer = self.flow.producers.get(atom)
        if producer is None:
            return True
        return producer[0] < self.starts[0] and not self.flow.is_internal(atom, self.replaced_until)

    def stack_scalars(self, aval: ShapedArray, atoms: Sequence[Atom]) -> Var:
        """An array of the scalars `atoms`, one for each step."""
        stacked = stacked_aval(self.count, aval)
        if all([is_concrete_literal(atom) for atom in atoms]):
            numbers = np.array([atom.value for atom in atoms], aval.dtype)  # type: ignore[union-attr]
            is_affine = aval is _INDEX_AVAL and (np.diff(numbers, 2) == 0).all()
            return (
                self.affine_indices(numbers)
                if is_affine
                else self.emit(ops.DenseConstant(stacked, numbers.tobytes()), [])
            )
        pieces = [
            self.emit(ops.Full((1,)) if type(a) is Literal else ops.Reshape((1,)), [a])
            for a in atoms
        ]
        concatenated = self.emit(ops.Concatenate(0), pieces)
        slice_of: dict[Any, StaticSlice | None] = {
            piece: self.slice_before_loop(atom) for piece, atom in zip(pieces, atoms, strict=True)
        }
        coalesced = coalesce_rows(self.hoisted[-1], slice_of.get)
        if coalesced is not None:
            self.hoisted[-1:] = coalesced
        return concatenated

    def slice_before_loop(self, atom: Atom) -> StaticSlice | None:
        """The slice that `atom` is of an array which is computed before the loop."""
        static_slice = static_slice_of(atom, self.flow, self.known_slices)
        return (
            static_slice if static_slice is not None and self.is_known(static_slice.array) else None
        )

    def affine_indices(self, numbers: Any) -> Var:
        """An array of equidistant indices."""
        indices = self.emit(ops.Iota(_INDEX_AVAL.dtype, (self.count,)), [])
        step = int(numbers[1] - numbers[0])
        if step != 1:
            indices = self.emit(ops.Mul(), [indices, index_literal(step)])
        return (
            self.emit(ops.Add(), [indices, index_literal(int(numbers[0]))])
            if numbers[0]
            else indices
        )

    def match_slices(self, v: Var, atoms: Sequence[Atom], results: ResultVars) -> bool:
        """As slices of one array, of the same sizes."""
        slices = []
        for atom in atoms:
            static_slice = self.slice_before_loop(atom)
            if static_slice is None:
                return False
            slices.append(static_slice)
        array, _, sizes = slices[0]
        if any(
            [
                static_slice.array is not array or static_slice.sizes != sizes
                for static_slice in slices
            ]
        ):
            return False
        array_input = self.consts.get(array)
        if array_input is None:
            array_input = self.consts[array] = Var(array.aval)
        starts = [
            self.position_operand(each) for each in zip(*[p.start for p in slices], strict=True)
        ]
        dynamic_slice = Equation.of(ops.DynamicSlice(sizes), [array_input, *starts])
        if sizes == v.aval.shape:
            dynamic_slice.outputs[:] = [v]
            self.slice_equations.append(dynamic_slice)
        else:
            self.slice_equations += [
                dynamic_slice,
                Equation(ops.Reshape(v.aval.shape), [*dynamic_slice.outputs], [v], None),
            ]
        return True

    def needs_masks(self, block: Program) -> bool:
        """Whether derivatives of the loop may be nan where a later selection drops its results."""
        later = self.flow.equations[self.stop :]
        return not has_finite_derivatives(block) or any(
            type(eqn.primitive) is ops.Select for eqn in later
        )

    def slices_to_rows(self, equations: Sequence[Equation]) -> list[Equation] | None:
        """`equations` with row inputs for the rows that they slice; None if they slice others."""
        array_of: dict[Any, Atom] = {v: array for array, v in self.consts.items()}
        rewritten = []
        for eqn in [*self.slice_equations, *equations]:
            if not accumulates_cotangent(eqn) or eqn.inputs[0] not in array_of:
                rewritten.append(eqn)
                continue
            array_input, *start_inputs = eqn.inputs
            row_var = self.row_input(
                array_of[array_input],
                eqn,
                [
                    self.scalar_inputs.get(start_input, (start_input,))
                    for start_input in start_inputs
                ],
            )
            if row_var is None:
                return None
            rewritten.append(
                eqn.replace(primitive=ops.Reshape(eqn.outputs[0].aval.shape), inputs=[row_var])
            )
        needed = {atom for eqn in rewritten for atom in eqn.inputs}
        self.row_inputs = {v: rows for v, rows in self.row_inputs.items() if v in needed}
        self.consts = {array: v for array, v in self.consts.items() if v in needed}
        return rewritten

    def row_input(self, array: Atom, eqn: Equation, starts: list[tuple[Any, ...]]) -> Var | None:
        """The row of `array` that `eqn` slices, if each step takes the next one."""
        if type(eqn.primitive) is not ops.DynamicSlice or not starts:
            return None
        if not all([is_concrete_literal(atom) for atoms in starts for atom in atoms]):
            return None
        first_row, stop = starts[0][0].value, starts[0][0].value + self.count
        positions = [[atom.value for atom in atoms] for atoms in starts]
        shape = array.aval.shape
        is_whole_row = eqn.outputs[0].aval.shape == (1, *shape[1:])
        if (
            not is_whole_row
            or positions[0] != [*range(first_row, stop)]
            or any(map(any, positions[1:]))
        ):
            return None
        rows = array
        if self.count != shape[0]:
            trailing = [0] * (len(shape) - 1)
            rows = self.emit(ops.Slice((first_row, *trailing), (stop, *shape[1:])), [array])
        v = Var(array.aval.update(shape=shape[1:]))
        self.row_inputs[v] = rows
        return v

    def position_operand(self, starts: tuple[int, ...]) -> Any:
        """The start of a slice along one axis: a literal, or a row input with one for each step."""
        literals = tuple([index_literal(start) for start in starts])
        if len({*starts}) == 1:
            return literals[0]
        row_var = self.position_inputs.get(literals)
        if row_var is None:
            row_var = self.position_inputs[literals] = Var(literals[0].aval)
            self.add_scalar_input(row_var, literals)
        return row_var

    def stacked_results(self, results: ResultVars) -> list[int] | None:
        """The results to stack, because later equations use those of several parts."""
        stacked = []
        carried: dict[int, int] = {}
        for position, from_last in map(self.final_result, self.carries):
            carried[position] = max(from_last, carried.get(position, 1))
        for position in range(len(results[0])):
            used = [self.flow.last_use.get(r[position], -1) >= self.stop for r in results]
            if not any(used):
                continue
            all_sliced = all([self.slice_before_loop(r[position]) is not None for r in results])
            if all_sliced and position not in carried:
                self.sliced_results.append(position)
            elif any(used[: -carried.get(position, 1)]):
                aval = results[0][position].aval
                is_large = self.count * bytes_of(aval) > _MAX_SPARSE_STACK_BYTES
                if is_large and sum(used) < self.count / 2:
                    return None
                stacked.append(position)
        return stacked

    def emit_slice(self, v: Var) -> list[Equation]:
        """Equations that compute the variable `v`, which is a slice of an array."""
        static_slice = static_slice_of(v, self.flow, self.known_slices)
        assert static_slice is not None
        limit = tuple([a + n for a, n in zip(static_slice.start, static_slice.sizes, strict=True)])
        slice_equation = Equation.of(ops.Slice(static_slice.start, limit), [static_slice.array])
        if static_slice.sizes == v.aval.shape:
            return [slice_equation.replace(outputs=[v])]
        return [
            slice_equation,
            Equation(ops.Reshape(v.aval.shape), [*slice_equation.outputs], [v], None),
        ]

    def zeros(self, aval: ShapedArray) -> Atom:
        """Zeros of type `aval`."""
        zero = Literal(aval.dtype.type(0).item(), ShapedArray((), aval.dtype, aval.weak_type))
        return self.emit(ops.Full(aval.shape), [zero]) if aval.shape else zero

    def emit(self, primitive: Any, operands: list[Any]) -> Var:
        """The result of a new equation before the loop."""
        avals = tuple([atom.aval for atom in operands])
        outs = primitive.out_avals_memo.get(avals) or primitive.infer_out_avals(avals)
        v = Var(outs[0])
        self.hoisted.append(Equation(primitive, operands, [v], None))
        return v


def accumulates_cotangent(eqn: Equation) -> bool:
    """Whether the cotangent of the first operand is added in place, as that of a slice is."""
    return type(eqn.primitive) is ops.Slice or eqn.primitive.add_to_cotangent is not None


def stacked_aval(count: int, aval: ShapedArray) -> ShapedArray:
    """The type of `count` stacked arrays of type `aval`."""
    return aval.update(shape=(count, *aval.shape))
