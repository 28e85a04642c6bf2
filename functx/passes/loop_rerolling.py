"""Variables that show a part of an array at a known place, so that a loop can look it up."""

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
    """The part of `whole` of shape `sizes` that begins at `start`, under another shape or not."""

    array: Atom
    start: Shape
    sizes: Shape


def static_slice_of(
    atom: Atom, flow: EquationDataflow, known: dict[Any, StaticSlice]
) -> StaticSlice | None:
    """The part that `atom` shows, by `known` or by the equations that make it; None for others."""
    while type(atom) is Var:
        if atom in known:
            return known[atom]
        place = flow.producers.get(atom)
        if place is None:
            return None
        eqn = flow.equations[place[0]]
        primitive = eqn.primitive
        if type(primitive) is ops.Slice and has_unit_strides(primitive):
            return StaticSlice(eqn.inputs[0], primitive.start, eqn.outputs[0].aval.shape)
        if type(primitive) is ops.Split:
            before = sum(primitive.sizes[: place[1]])
            start = [0] * atom.aval.ndim
            start[primitive.axis] = before
            return StaticSlice(eqn.inputs[0], tuple(start), atom.aval.shape)
        if type(primitive) is not ops.Reshape:
            return None
        atom = eqn.inputs[0]
    return None


_LINEAR_OPS = Linear, Constant, ops.DotGeneral, ops.DynamicSlice


def has_finite_derivatives(equations: Iterable[Equation]) -> bool:
    """Whether zero tangents and cotangents stay zero through all `equations`, of finite numbers."""
    return all(map(_has_finite_derivative, equations))


def _has_finite_derivative(eqn: Equation) -> bool:
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


# From so many rows on, to cut them and to join them costs more than to move all of them at once.
_MIN_RUN_LENGTH = 4


class RowRun(NamedTuple):
    """`length` rows of `whole` from `first` on, each `step` after the one before, or before it."""

    array: Atom
    first: int
    stride: int
    length: int


def coalesce_rows(
    eqn: Equation, shown: Callable[[Atom], StaticSlice | None]
) -> list[Equation] | None:
    """Equations that join what the concatenation `eqn` does, rows at once; None for no rows.

    `shown` tells which part of an array that exists an operand is.
    """
    pieces = row_runs(eqn.inputs, shown)
    if all([type(piece) is not RowRun for piece in pieces]):
        return None
    axis, made, operands = eqn.primitive.axis, [], []  # type: ignore[attr-defined]
    at = 0
    for piece in pieces:
        if type(piece) is RowRun:
            found = emit_row_run(piece, eqn.inputs[at].aval.shape, axis)
            made += found
            operands.append(found[-1].outputs[0])
            at += piece.length
        else:
            operands.append(piece)
            at += 1
    made.append(eqn.replace(primitive=ops.Concatenate(axis), inputs=operands))
    return made


def row_runs(operands: Sequence[Atom], shown: Callable[[Atom], StaticSlice | None]) -> list[Any]:
    """The operands, with a `RowRun` in the place of rows that follow one another."""
    rows = [row_number(shown(atom)) for atom in operands]
    found: list[Any] = []
    at = 0
    while at < len(rows):
        run = longest_run(rows, at)
        if run is None or run.length < _MIN_RUN_LENGTH:
            found.append(operands[at])
            at += 1
        else:
            found.append(run)
            at += run.length
    return found


def row_number(part: StaticSlice | None) -> tuple[Atom, int] | None:
    """The array of which `part` is one row, and which one; None for other parts."""
    if part is None:
        return None
    whole, start, sizes = part
    if not start or sizes != (1, *whole.aval.shape[1:]):
        return None
    return whole, start[0]


def longest_run(rows: Sequence[tuple[Atom, int] | None], at: int) -> RowRun | None:
    """The longest run that begins with the row `at`; None where there is none."""
    here = rows[at]
    if here is None:
        return None
    whole, first = here
    following = rows[at + 1] if at + 1 < len(rows) else None
    if following is None or following[0] is not whole or following[1] == first:
        return None
    step = following[1] - first
    count = 1
    while at + count < len(rows) and rows[at + count] == (whole, first + step * count):
        count += 1
    return RowRun(whole, first, step, count)


def emit_row_run(run: RowRun, shape: tuple[int, ...], axis: int) -> list[Equation]:
    """Equations for the rows of a run, each under `shape`, joined along `axis`."""
    made: list[Equation] = []

    def then(primitive: Any) -> None:
        made.append(Equation.of(primitive, [made[-1].outputs[0] if made else run.array]))

    whole = run.array.aval.shape
    ends = run.first, run.first + run.stride * (run.length - 1)
    rest, gap = whole[1:], abs(run.stride)
    strides = (gap, *[1] * len(rest)) if gap > 1 else None
    then(ops.Slice((min(ends), *[0] * len(rest)), (max(ends) + 1, *rest), strides))
    if run.stride < 0:
        then(ops.Rev((0,)))
    then(ops.Reshape((run.length, *shape)))
    if prod(shape[:axis]) != 1:
        then(ops.PermuteDims((*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1))))
    then(ops.Reshape((*shape[:axis], run.length * shape[axis], *shape[axis + 1 :])))
    return made


# A stack in which most rows are never looked at may be this large, in bytes.
_MAX_SPARSE_STACK_BYTES = 1 << 16
_INDEX_AVAL = index_literal(0).aval


# The variables for each result of the block, in each of the parts.
ResultVars = list[list[Var]]


def consecutive_runs(group: RepeatGroup) -> list[RepeatGroup]:
    """The parts of `group` in sequences in which each begins where the one before ends."""
    found: list[list[int]] = []
    for start in group.starts:
        if found and start == found[-1][-1] + group.length:
            found[-1].append(start)
        else:
            found.append([start])
    return [RepeatGroup(group.flow, starts, group.length, group.live_outs) for starts in found]


def reroll(
    group: RepeatGroup,
    names: Iterator[int],
    rewrite: Any,
    known: dict[Any, StaticSlice],
    ends: Sequence[int],
) -> list[Equation] | None:
    """Equations, a loop among them, in place of parts that follow one another; None if they cannot.

    What the loop stacks for later is entered in `known` for those who use it. `ends` says of each
    equation that was replaced where what stands in its place ends, and is 0 for the others.
    Before transforms there are none for what is better transformed in the open: loops that stack
    results, look up parts of arrays other than rows in their order, or need masks, which end at
    a loop.
    """
    return _Reroller(group, known, ends).equations(names, rewrite)


class _Reroller:
    """A loop in the making."""

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
        # Each with its first value, and what the next is: a result by number, or another carry.
        self.carries: list[tuple[Var, Atom, int | Var]] = []
        # Each with the array of which it is a row in each step; which numbers those are, if it is
        # a number; and those that are places of look-ups, by their numbers.
        self.row_inputs: dict[Var, Atom] = {}
        self.scalar_inputs: dict[Atom, tuple[Atom, ...]] = {}
        self.position_inputs: dict[tuple[Atom, ...], Var] = {}

    def equations(self, names: Iterator[int], rewrite: Any) -> list[Equation] | None:
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
        # What only the last part gives is carried, from a start that nothing looks at.
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

    # Whether the input `v` of the block, which is `atoms` in the parts, fits into a loop as it
    # says. What a look-up is made of comes before look-ups.

    def match_invariant(self, v: Var, atoms: Sequence[Atom], results: ResultVars) -> bool:
        """As what is the same in all steps."""
        same = all([atom is atoms[0] for atom in atoms])
        if same:
            self.consts[atoms[0]] = v
        return same

    def match_delayed_carry(self, v: Var, atoms: Sequence[Atom], results: ResultVars) -> bool:
        """As what the last step but one or two computed."""
        return any([self.match_carry(v, atoms, results, lag) for lag in (2, 3)])

    def match_scalars(self, v: Var, atoms: Sequence[Atom], results: ResultVars) -> bool:
        """As a number of its own for each step."""
        fits = v.aval.shape == () and all([self.is_known(atom) for atom in atoms])
        if fits:
            self.add_scalar_input(v, tuple(atoms))
        return fits

    def add_scalar_input(self, v: Var, numbers: tuple[Atom, ...]) -> None:
        """Let `v` be one of `numbers` in each step."""
        self.row_inputs[v] = self.stack_scalars(v.aval, numbers)
        self.scalar_inputs[v] = numbers

    def match_carry(self, v: Var, atoms: Sequence[Atom], results: ResultVars, lag: int = 1) -> bool:
        """As what the step before computed, or the one `lag` steps before."""
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
        """The result that a carry is, and of which part, counted from the last, at the end."""
        following, back = carry[2], 1
        while type(following) is not int:
            following = next(source for v, _, source in self.carries if v is following)
            back += 1
        return following, back

    def is_known(self, atom: Atom) -> bool:
        """Whether `atom` has its value before the loop, and not just inside of another."""
        place = self.flow.producers.get(atom)
        if place is None:
            return True
        return place[0] < self.starts[0] and not self.flow.is_internal(atom, self.replaced_until)

    def stack_scalars(self, aval: ShapedArray, atoms: Sequence[Atom]) -> Var:
        """An array of the scalars `atoms`, one a step."""
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
        """The part that `atom` shows of an array that is there before the loop."""
        part = static_slice_of(atom, self.flow, self.known_slices)
        return part if part is not None and self.is_known(part.array) else None

    def affine_indices(self, numbers: Any) -> Var:
        """An array of indices that lie equally far apart."""
        found = self.emit(ops.Iota(_INDEX_AVAL.dtype, (self.count,)), [])
        step = int(numbers[1] - numbers[0])
        if step != 1:
            found = self.emit(ops.Mul(), [found, index_literal(step)])
        return (
            self.emit(ops.Add(), [found, index_literal(int(numbers[0]))]) if numbers[0] else found
        )

    def match_slices(self, v: Var, atoms: Sequence[Atom], results: ResultVars) -> bool:
        """As parts of one array, which the loop finds there."""
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
        """Whether a derivative of the loop may be nan for what is not selected after it."""
        later = self.flow.equations[self.stop :]
        return not has_finite_derivatives(block) or any(
            type(eqn.primitive) is ops.Select for eqn in later
        )

    def slices_to_rows(self, equations: Sequence[Equation]) -> list[Equation] | None:
        """`equations` given rows of the arrays they look up in; None where they look up others."""
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
        """The row of `whole` that `eqn` looks up, if each step looks up the next one."""
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
        """Where a part begins along one axis: a number, or a row of all of them."""
        literals = tuple([index_literal(at) for at in places])
        if len({*places}) == 1:
            return literals[0]
        found = self.position_inputs.get(literals)
        if found is None:
            found = self.position_inputs[literals] = Var(literals[0].aval)
            self.add_scalar_input(found, literals)
        return found

    def stacked_results(self, results: ResultVars) -> list[int] | None:
        """The results to be stacked, since what follows looks at those of several parts."""
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
        """Equations for the variable `v`, which is a part of an array."""
        part = static_slice_of(v, self.flow, self.known_slices)
        assert part is not None
        limit = tuple([a + n for a, n in zip(part.start, part.sizes, strict=True)])
        cut = Equation.of(ops.Slice(part.start, limit), [part.array])
        if part.sizes == v.aval.shape:
            return [cut.replace(outputs=[v])]
        return [cut, Equation(ops.Reshape(v.aval.shape), [*cut.outputs], [v], None)]

    def zeros(self, aval: ShapedArray) -> Atom:
        """Zeros of `aval`."""
        zero = Literal(aval.dtype.type(0).item(), ShapedArray((), aval.dtype, aval.weak_type))
        return self.emit(ops.Full(aval.shape), [zero]) if aval.shape else zero

    def emit(self, primitive: Any, operands: list[Any]) -> Var:
        """What an equation before the loop computes."""
        avals = tuple([atom.aval for atom in operands])
        outs = primitive.out_avals_memo.get(avals) or primitive.infer_out_avals(avals)
        v = Var(outs[0])
        self.hoisted.append(Equation(primitive, operands, [v], None))
        return v


def accumulates_cotangent(eqn: Equation) -> bool:
    """Whether the cotangent of the first operand is added in its place, as that of a part is."""
    return type(eqn.primitive) is ops.Slice or eqn.primitive.add_to_cotangent is not None


def stacked_aval(count: int, aval: ShapedArray) -> ShapedArray:
    """The type of `count` arrays of `aval` in one."""
    return aval.update(shape=(count, *aval.shape))
