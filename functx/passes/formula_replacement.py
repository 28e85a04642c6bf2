"""Replaces formulas that overflow or cancel by stable ones, before derivatives and before the lowering."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from functx import ops
from functx.core.caches import invalidate_caches
from functx.core.config import config
from functx.core.dead_code import dce_equations
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Program, Var
from functx.core.program_editing import map_primitive_programs, replace_program_fields
from functx.core.rewriting import cached_rewrite
from functx.core.source_info import Source
from functx.core.tracing import trace
from functx.core.types import ShapedArray, is_floating
from functx.core.typing import Value
from functx.passes import formula_matching as matching
from functx.passes.formula_emission import Replacement
from functx.passes.formula_kinds import KindIndex, Kinds, marking_names, scaled_operand
from functx.passes.formula_matching import Matcher, Notation, Pattern
from functx.transforms.dce import dependents_of

if TYPE_CHECKING:
    from functx.passes.stable_formulas import Formula


def stabilize_formulas(program: Program) -> Program:
    """`program` with stable formulas in place of those of the table, in programs inside too."""
    if not config.stable_formulas or program.writes or program.memo.get(_STABLE):
        return program
    kinds = {type(eqn.primitive) for eqn in program.equations}
    if any([kind.multiple_results for kind in kinds]):
        equations = [_stabilize_inside(eqn) for eqn in program.equations]
        if any([a is not b for a, b in zip(equations, program.equations, strict=True)]):
            program = replace_program_fields(program, equations=equations)
    if any([table.concerns(kind) for kind in kinds]):
        table.update()
        replacement = FormulaReplacement(program, table)
        program = replacement.result()
        program.memo[_REPLACED] = replacement.replaced
    program.memo[_STABLE] = True
    return program


_STABLE, _REPLACED = "stable formulas", "replaced formulas"
"""Keys in the memo of a program: of whether it went through the pass, and of the replaced formulas."""


def replaced_formulas(program: Program) -> list[tuple[Source | None, str]]:
    """The formulas that the pass replaces in `program` and in programs inside, with their sources."""
    stable = cached_rewrite(stabilize_formulas, program)
    return [found for each in stable.walk() for found in each.memo.get(_REPLACED, ())]


def _stabilize_inside(eqn: Equation) -> Equation:
    """`eqn` with the programs inside rewritten."""
    if not eqn.primitive.multiple_results:
        return eqn
    primitive = map_primitive_programs(
        eqn.primitive, lambda inner: cached_rewrite(stabilize_formulas, inner)
    )
    return eqn if primitive is eqn.primitive else eqn.replace(primitive=primitive)


class CompiledFormula(NamedTuple):
    """A formula with its pattern as a program, and the kinds of the operands of its last operation."""

    formula: Formula
    pattern: Pattern
    operand_kinds: list[Kinds]

    def may_match(self, kinds: Sequence[Kinds]) -> bool:
        """Whether an operation with operands of these kinds can be the last of the formula."""
        return len(kinds) >= len(self.operand_kinds) and all(
            [any([needed <= found for found in kinds]) for needed in self.operand_kinds]
        )


_EXPONENTIALS = "exp", "expm1", "log", "log1p", "log_sum_exp", "logistic"
_NORMS = "abs", "hypot", "reduce_sum", "sqrt", "standard_deviation", "vector_norm"
_MARKING = *_EXPONENTIALS, *_NORMS, "cos", "erf"


class FormulaTable:
    """The rows of the table with their patterns as programs, each after the rows before it.

    A formula that is a sum or a product has a result of a primitive in `marking` as a term or factor, or
    a factor that is a sum, product or selection of such results. Another formula ends with a primitive in
    `ending`. Both hold names, those of functx's formulas from the start, so that a program without any is
    left alone before the patterns are traced.
    """

    def __init__(self) -> None:
        self.rows: list[CompiledFormula] = []
        self.marking = {*_MARKING}
        self.ending = {"exp", "log", "log1p", "sqrt"}
        self.by_root: dict[type[Primitive], list[tuple[int, Kinds]]] = {}
        self.lock = Lock()

    def update(self) -> None:
        """Compiles the rows that are new."""
        from functx.passes.stable_formulas import FORMULAS

        with self.lock:
            for formula in FORMULAS[len(self.rows) :]:
                self.compile(formula)

    def compile(self, formula: Formula) -> None:
        inputs = inspect.signature(formula.plain).parameters
        aval = ShapedArray((_LENGTH,), np.dtype("float32"))
        pattern, _ = trace(lambda *xs: [formula.plain(*xs)], [aval] * len(inputs))
        pattern = FormulaReplacement(pattern, self).result()
        kinds = KindIndex(pattern.def_use.producers).kinds_of_operands(pattern.equations[-1])
        kind = type(pattern.equations[-1].primitive)
        every = frozenset().union(*kinds)
        row = len(self.rows)
        self.rows.append(CompiledFormula(formula, Pattern(pattern), kinds))
        roots = next((g for g in (matching.SUMS, matching.PRODUCTS) if kind in g), (kind,))
        for each in roots:
            self.by_root.setdefault(each, []).append((row, every))
        if len(roots) == 1:
            self.ending.add(kind.name)
        else:
            self.marking.update([name for label in kinds for name in marking_names(label)])

    def concerns(self, kind: type[Primitive]) -> bool:
        """Whether an operation of this kind marks the terms of a formula, or ends one."""
        return kind.name in self.marking or kind.name in self.ending


def register_formula(
    text: str, plain: Callable[..., Value], stable: Callable[..., Value]
) -> Formula:
    """Adds a row to the table of formulas: `stable` takes the place of `plain`; `text` names it.

    Both are functions of the same arrays; `stable` also takes `axes` if `plain` sums over some. Programs
    that are compiled or differentiated from then on have it.
    """
    from functx.passes.stable_formulas import FORMULAS, Formula

    formula = Formula(text, plain, stable)
    FORMULAS.append(formula)
    table.update()
    invalidate_caches()
    return formula


_LENGTH = 7
"""The length of the arrays on which patterns are traced."""
table = FormulaTable()


class FormulaReplacement:
    """The equations of a program, one after the other, of which some become stable formulas."""

    def __init__(self, program: Program, rows: FormulaTable):
        self.program, self.table = program, rows
        self.equations: list[Equation] = []
        self.producers: dict[Atom, Equation] = {}
        self.notation = Notation(self.producers)
        self.index = KindIndex(self.producers)
        # 2 for the results of marking operations, 1 for sums and products of these.
        self.marks: dict[Atom, int] = {}
        # Values that depend on eigenvalues stay: functions of matrices are recognized by their plain sums.
        spectra = [eqn for eqn in program if type(eqn.primitive) in (ops.Eigh, ops.Svd)]
        outputs = [v for eqn in spectra for v in eqn.outputs]
        self.of_spectra = dependents_of(outputs, program) if spectra else set()
        self.substitutes: dict[Atom, Atom] = {}
        self.replaced: list[tuple[Source | None, str]] = []

    def result(self) -> Program:
        changed = False
        for eqn in self.program.equations:
            changed |= self.append(eqn.with_substitutes(self.substitutes))
        if not changed:
            return self.program
        outputs = [self.substitutes.get(a, a) for a in self.program.outputs]
        equations = dce_equations(self.equations, outputs)
        return replace_program_fields(self.program, equations=equations, outputs=outputs)

    def append(self, eqn: Equation, start: int = 0) -> bool:
        """Appends `eqn`, or a stable formula of a row from `start` in its place; whether it was one."""
        self.equations.append(eqn)
        for v in eqn.outputs:
            self.producers[v] = eqn
        rows = self.table.by_root.get(type(eqn.primitive))
        if not self.mark(eqn) or rows is None or not is_floating(eqn.outputs[0].aval.dtype):
            return False
        kinds = self.index.kinds_of_operands(eqn)
        every: Kinds = frozenset().union(*kinds)
        for i, needed in rows:
            is_likely = i >= start and needed <= every and self.table.rows[i].may_match(kinds)
            if is_likely and self.replace(eqn, i):
                return True
        return False

    def mark(self, eqn: Equation) -> bool:
        """Whether `eqn` may end a formula; if a later one may for its sake, its output is marked."""
        level, kind, marks = 0, type(eqn.primitive), self.marks
        for a in eqn.inputs:
            if type(a) is Var and (mark := marks.get(a, 0)) > level:
                level = mark
        if kind.name in self.table.marking:
            marks[eqn.outputs[0]] = 2
        elif (
            level and kind in matching.TRANSPARENT and scaled_operand(kind, eqn.inputs) is not None
        ):
            marks[eqn.outputs[0]] = level
            return False
        elif level == 2 and kind in _PASSES_MARKS:
            marks[eqn.outputs[0]] = 1
        if kind in matching.SUMS:
            return level == 2
        return level > 0 if kind in matching.PRODUCTS else kind.name in self.table.ending

    def replace(self, eqn: Equation, i: int) -> bool:
        """Replaces the last equation, `eqn`, by the stable formula of a row if it computes the plain one."""
        row = self.table.rows[i]
        match = Matcher(row.pattern, self.notation, row.formula.accepts_complex).match_root(eqn)
        if match is None or row.formula.unless(self.notation, match):
            return False
        cores = [binding.core.atom for binding in match.bindings.values()]
        if match.axes is not None and not self.of_spectra.isdisjoint(cores):
            return False
        found = Replacement(row.formula.stable, row.pattern.names, match, eqn).equations()
        if found is None:
            return False
        equations, result = found
        self.replaced.append((eqn.source, row.formula.text))
        self.equations.pop()
        self.notation.forget()
        self.index.found.clear()
        for each in equations:
            self.append(each, i + 1 if each is equations[-1] else len(self.table.rows))
        if result is not eqn.outputs[0]:
            self.substitutes[eqn.outputs[0]] = result
        return True


_PASSES_MARKS = frozenset([*matching.SUMS, *matching.PRODUCTS, ops.Select])
