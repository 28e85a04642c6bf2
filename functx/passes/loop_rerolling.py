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


def row_number(part: StaticSlice | None) -> tuple[Atom, int] | None:
    """The array and position of the row that `part` is; None for other slices."""
    if part is None:
        return None
    array, start, sizes = part
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
        block, operands = self.group.program()
        if block.effects:
            return None
        results = [self.group.outputs(start) for start in self.starts]
        self.result_positions = {v: at for at, v in enumerate(results[0])}
        left = list(zip(block.inputs, operands, strict=True))
        for fits in (
            self.match_invariant,
            self.match_carry,
            self.match_delayed_carry,
            self.match_slices,
            self.match_scalars,
        ):
            left = [each for each in left if not fits(*each, results)]
        if left:
            return None
        stacked = self.stacked_results(results)
        if stacked is None:
            return None
        equations: list[Equation] | None = [*self.slice_equations, *block.equations]
        if rewrite.before_transforms:
            apart = stacked or self.sliced_results or self.needs_masks(block)
            equations = None if apart else self.slices_to_rows(block.equations)
        if equations is None:
            return []
        carried = {at for _, _, at in self.carries}
        # Results of which only the last is used are carried, from an unused initial value.
        for at, v in enumerate(results[-1]):
            if at not in carried and at not in stacked and at not in self.sliced_results:
                self.carries.append((Var(v.aval), self.zeros(v.aval), at))
        inputs = [(v, operand) for operand, v in self.consts.items()]
        inputs += [(v, start) for v, start, _ in self.carries]
        inputs += list(self.row_inputs.items())
        outputs = [at if type(at) is Var else block.outputs[at] for _, _, at in self.carries]  # type: ignore[index]
        outputs += [block.outputs[at] for at in stacked]
        body = Program(f"step_{next(names)}", [v for v, _ in inputs], equations, outputs)
        loop = Scan(rewrite(body), len(self.consts), len(self.carries), self.count)
        finals = {each: results[-each[1]][each[0]] for each in map(self.final_result, self.carries)}
        carries = [
            finals.pop(each, None) or Var(results[0][each[0]].aval)  # type: ignore[arg-type]
            for each in map(self.final_result, self.carries)
        ]
        stacks = [Var(stacked_aval(self.count, results[-1][at].aval)) for at in stacked]
        source = self.flow.equations[self.starts[0]].source
        scan = Equation(loop, [operand for _, operand in inputs], [*carries, *stacks], source)
        given = {*carries}
        made = [scan]
        for at in self.sliced_results:
            self.hoisted += [eqn for r in results for eqn in self.emit_slice(r[at])]
        for at, stack in zip(stacked, stacks, strict=True):
            for i, each in enumerate(results):
                start, sizes = (i, *[0] * each[at].aval.ndim), (1, *each[at].aval.shape)
                self.known_slices[each[at]] = StaticSlice(stack, start, sizes)
                if each[at] not in given:
                    made += self.emit_slice(each[at])
        return [*self.hoisted, *made]

    # Each `match` method tries to make the input `v` of the block, which is `atoms` in the
    # parts, an input of the loop, and returns whether it could.

    def match_invariant(self, v: Var, atoms: Sequence[Atom], results: ResultVars) -> bool:
        """As a loop-invariant value."""
        same = all([atom is atoms[0] for atom in atoms])
        if same:
            self.consts[atoms[0]] = v
        return same

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
        at = self.result_positions.get(atoms[lag]) if lag < self.count else None
        if at is None or not all([self.is_known(atom) for atom in atoms[:lag]]):
            return False
        if any([a is not r[at] for a, r in zip(atoms[lag:], results, strict=False)]):
            return False
        following: int | Var = at
        for i in range(lag - 1, 0, -1):
            alike = [c for c, *rest in self.carries if rest == [atoms[i], following]]
            if not alike:
                alike = [Var(v.aval)]
                self.carries.append((alike[0], atoms[i], following))
            following = alike[0]
        self.carries.append((v, atoms[0], following))
        return True

    def final_result(self, carry: tuple[Var, Atom, int | Var]) -> tuple[int, int]:
        """The result that a carry is at the end, and of which part, counted from the last."""
        following, back = carry[2], 1
        while type(following) is not int:
            following = next(source for v, _, source in self.carries if v is following)
            back += 1
        return following, back

    def is_known(self, atom: Atom) -> bool:
        """Whether `atom` has its value before the loop, outside of other replaced parts."""
        place = self.flow.producers.get(atom)
        if place is None:
            return True
        return place[0] < self.starts[0] and not self.flow.is_internal(atom, self.replaced_until)

    def stack_scalars(self, aval: ShapedArray, atoms: Sequence[Atom]) -> Var:
        """An array of the scalars `atoms`, one for each step."""
        whole = stacked_aval(self.count, aval)
        if all([is_concrete_literal(atom) for atom in atoms]):
            numbers = np.array([atom.value for atom in atoms], aval.dtype)  # type: ignore[union-attr]
            even = aval is _INDEX_AVAL and (np.diff(numbers, 2) == 0).all()
            return (
                self.affine_indices(numbers)
                if even
                else self.emit(ops.DenseConstant(whole, numbers.tobytes()), [])
            )
        pieces = [
            self.emit(ops.Full((1,)) if type(a) is Literal else ops.Reshape((1,)), [a])
            for a in atoms
        ]
        joint = self.emit(ops.Concatenate(0), pieces)
        parts: dict[Any, StaticSlice | None] = {
            piece: self.slice_before_loop(atom) for piece, atom in zip(pieces, atoms, strict=True)
        }
        at_once = coalesce_rows(self.hoisted[-1], parts.get)
        if at_once is not None:
            self.hoisted[-1:] = at_once
        return joint

    def slice_before_loop(self, atom: Atom) -> StaticSlice | None:
        """The slice that `atom` is of an array which is computed before the loop."""
        part = static_slice_of(atom, self.flow, self.known_slices)
        return part if part is not None and self.is_known(part.array) else None

    def affine_indices(self, numbers: Any) -> Var:
        """An array of equidistant indices."""
        found = self.emit(ops.Iota(_INDEX_AVAL.dtype, (self.count,)), [])
        step = int(numbers[1] - numbers[0])
        if step != 1:
            found = self.emit(ops.Mul(), [found, index_literal(step)])
        return (
            self.emit(ops.Add(), [found, index_literal(int(numbers[0]))]) if numbers[0] else found
        )

    def match_slices(self, v: Var, atoms: Sequence[Atom], results: ResultVars) -> bool:
        """As slices of one array, of the same sizes."""
        parts = []
        for atom in atoms:
            part = self.slice_before_loop(atom)
            if part is None:
                return False
            parts.append(part)
        whole, _, sizes = parts[0]
        if any([part.array is not whole or part.sizes != sizes for part in parts]):
            return False
        source = self.consts.get(whole)
        if source is None:
            source = self.consts[whole] = Var(whole.aval)
        places = [
            self.position_operand(each) for each in zip(*[p.start for p in parts], strict=True)
        ]
        shown = Equation.of(ops.DynamicSlice(sizes), [source, *places])
        if sizes == v.aval.shape:
            shown.outputs[:] = [v]
            self.slice_equations.append(shown)
        else:
            self.slice_equations += [
                shown,
                Equation(ops.Reshape(v.aval.shape), [*shown.outputs], [v], None),
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
        wholes: dict[Any, Atom] = {v: whole for whole, v in self.consts.items()}
        found = []
        for eqn in [*self.slice_equations, *equations]:
            if not accumulates_cotangent(eqn) or eqn.inputs[0] not in wholes:
                found.append(eqn)
                continue
            source, *start = eqn.inputs
            row = self.row_input(
                wholes[source], eqn, [self.scalar_inputs.get(at, (at,)) for at in start]
            )
            if row is None:
                return None
            found.append(
                eqn.replace(primitive=ops.Reshape(eqn.outputs[0].aval.shape), inputs=[row])
            )
        needed = {atom for eqn in found for atom in eqn.inputs}
        self.row_inputs = {v: rows for v, rows in self.row_inputs.items() if v in needed}
        self.consts = {whole: v for whole, v in self.consts.items() if v in needed}
        return found

    def row_input(self, whole: Atom, eqn: Equation, starts: list[tuple[Any, ...]]) -> Var | None:
        """The row of `array` that `eqn` slices, if each step takes the next one."""
        if type(eqn.primitive) is not ops.DynamicSlice or not starts:
            return None
        if not all([is_concrete_literal(atom) for atoms in starts for atom in atoms]):
            return None
        first, stop = starts[0][0].value, starts[0][0].value + self.count
        places = [[atom.value for atom in atoms] for atoms in starts]
        shape = whole.aval.shape
        full = eqn.outputs[0].aval.shape == (1, *shape[1:])
        if not full or places[0] != [*range(first, stop)] or any(map(any, places[1:])):
            return None
        rows = whole
        if self.count != shape[0]:
            rest = [0] * (len(shape) - 1)
            rows = self.emit(ops.Slice((first, *rest), (stop, *shape[1:])), [whole])
        v = Var(whole.aval.update(shape=shape[1:]))
        self.row_inputs[v] = rows
        return v

    def position_operand(self, places: tuple[int, ...]) -> Any:
        """The start of a slice along one axis: a literal, or a row input with one for each step."""
        literals = tuple([index_literal(at) for at in places])
        if len({*places}) == 1:
            return literals[0]
        found = self.position_inputs.get(literals)
        if found is None:
            found = self.position_inputs[literals] = Var(literals[0].aval)
            self.add_scalar_input(found, literals)
        return found

    def stacked_results(self, results: ResultVars) -> list[int] | None:
        """The results to stack, because later equations use those of several parts."""
        found = []
        carried: dict[int, int] = {}
        for at, back in map(self.final_result, self.carries):
            carried[at] = max(back, carried.get(at, 1))
        for at in range(len(results[0])):
            used = [self.flow.last_use.get(r[at], -1) >= self.stop for r in results]
            if not any(used):
                continue
            around = all([self.slice_before_loop(r[at]) is not None for r in results])
            if around and at not in carried:
                self.sliced_results.append(at)
            elif any(used[: -carried.get(at, 1)]):
                aval = results[0][at].aval
                large = self.count * aval.size * aval.dtype.itemsize > _MAX_SPARSE_STACK_BYTES
                if large and sum(used) < self.count / 2:
                    return None
                found.append(at)
        return found

    def emit_slice(self, v: Var) -> list[Equation]:
        """Equations that compute the variable `v`, which is a slice of an array."""
        part = static_slice_of(v, self.flow, self.known_slices)
        assert part is not None
        limit = tuple([a + n for a, n in zip(part.start, part.sizes, strict=True)])
        cut = Equation.of(ops.Slice(part.start, limit), [part.array])
        if part.sizes == v.aval.shape:
            return [cut.replace(outputs=[v])]
        return [cut, Equation(ops.Reshape(v.aval.shape), [*cut.outputs], [v], None)]

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
