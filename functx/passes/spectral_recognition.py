"""Recognizes functions of matrices that a program computes from eigenvalues and vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from functx import ops
from functx.core.program import Atom, Equation, Literal, Program, Var
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import bind_equation, interpret
from functx.core.tracer import Tracer
from functx.core.tracing import trace
from functx.core.types import is_complex
from functx.core.typing import Value, Values
from functx.ops.families import Elementwise
from functx.ops.operands import literal
from functx.passes.einsum import Einsum
from functx.passes.einsum_factors import (
    Factor,
    Label,
    LabelGroup,
    LabelGroups,
    ProductExpression,
    fresh_labels,
    resolve_labels,
)
from functx.passes.spectral_expressions import (
    ConjugatedAtom,
    ExpressionBuilder,
    IndexRange,
    SpectralSum,
    product_expression,
)
from functx.passes.sums_of_products import expand_summands

TRANSPARENT_PRIMITIVES = frozenset(
    {
        ops.BroadcastInDim, ops.Conj, ops.ConvertElementType, ops.Div, ops.DotGeneral, ops.Full, ops.IntegerPow, ops.Mul, ops.Neg,
        ops.PermuteDims, ops.ReduceSum, ops.Reshape, ops.Slice, ops.Square,
    }
)  # fmt: skip
"""The primitives through which eigenvectors are followed."""
CONTRACTING_PRIMITIVES = frozenset(
    {ops.DotGeneral, ops.IntegerPow, ops.Mul, ops.ReduceSum, ops.Square}
)
"""The primitives that may contract eigenvectors with eigenvectors."""
HIGHEST_PRECISION = ("HIGHEST", "HIGHEST")
MAX_ASPECT_RATIO = 4
"""The largest aspect ratio of a matrix whose functions of singular values are recognized."""


def recognize_spectral_functions(program: Program) -> Program:
    """`program` with single operations in place of functions of matrices computed from spectra.

    These have derivatives at equal eigenvalues, where eigenvectors have none. Equations that are
    not recognized stay.
    """
    matches = SpectralSearch(program).matches
    if not matches:
        return program
    values: dict[Any, Any] = {}

    def read(atom: object) -> Value:
        if type(atom) is ConjugatedAtom:
            return ops.conj(read(atom.atom))
        return atom.emit(read) if type(atom) is SpectralSum else values[atom]

    def step(eqn: Equation, *args: Tracer) -> Values:
        einsum = matches.get(eqn)
        outs = bind_equation(eqn, *args) if einsum is None else [einsum.emit(read)]
        values.update(zip(eqn.outputs, outs, strict=True))
        return outs

    def body(*args: Tracer) -> list[Tracer]:
        values.update(zip(program.inputs, args, strict=True))
        return interpret(program, args, step)

    rewritten, _ = trace(body, program.in_avals, name=program.name)
    return replace_program_fields(
        program, inputs=rewritten.inputs, equations=rewritten.equations, outputs=rewritten.outputs
    )


class Eigenvectors(NamedTuple):
    """Eigenvectors or singular vectors along the last dimension, as a factor's atom.

    `output` is the index among the outputs of `eqn`, and `window` the range of vectors.
    """

    eqn: Equation
    output: int
    window: IndexRange
    conjugated: bool = False

    def contracts_with(self, other: Eigenvectors) -> bool:
        """Whether the product with `other`, summed over vectors, is a function of the matrix."""
        same = self.eqn is other.eqn and self.window == other.window
        real = not is_complex(self.eqn.outputs[self.output].aval.dtype)
        return same and (real or self.conjugated != other.conjugated)


class SpectralSearch:
    """Finds the equations that compute functions of matrices, as einsums without vectors."""

    def __init__(self, program: Program):
        self.matches: dict[Equation, Einsum] = {}
        self.producers = program.def_use.producers
        # Arrays that depend on eigenvectors, and elementwise functions of eigenvalues.
        self.of_vectors: set[Atom] = set()
        self.of_values: dict[Atom, Equation] = {}
        for eqn in program:
            self.visit(eqn)

    def visit(self, eqn: Equation) -> None:
        kind = type(eqn.primitive)
        if kind is ops.Eigh or kind is ops.Svd:
            m, n = eqn.inputs[0].aval.shape[-2:]
            # The Hermitian dilation would be much larger than a slim matrix.
            if 1 < max(m, n) <= MAX_ASPECT_RATIO * min(m, n) and not getattr(
                eqn.primitive, "full", False
            ):
                at = eigenvalue_output_index(eqn)
                self.of_values[eqn.outputs[at]] = eqn
                self.of_vectors.update([v for i, v in enumerate(eqn.outputs) if i != at])
            return
        vectors = kind in TRANSPARENT_PRIMITIVES and not self.of_vectors.isdisjoint(eqn.inputs)
        values = [self.of_values[x] for x in eqn.inputs if x in self.of_values]
        if vectors:
            self.of_vectors.update(eqn.outputs)
        if (vectors and kind in CONTRACTING_PRIMITIVES) or (
            values and kind in (ops.ReduceSum, ops.DotGeneral)
        ):
            einsum = self.match_contraction(eqn, [] if vectors else values)
            if einsum is not None:
                self.matches[eqn] = einsum
                self.of_vectors.difference_update(eqn.outputs)
        elif (
            values
            and kind is ops.Slice
            and (einsum := self.match_single_eigenvalue(eqn, values)) is not None
        ):
            self.matches[eqn] = einsum
        elif values and (kind in TRANSPARENT_PRIMITIVES or issubclass(kind, Elementwise)):
            self.of_values[eqn.outputs[0]] = values[0]

    def match_contraction(self, eqn: Equation, values: list[Equation]) -> Einsum | None:
        """The output of `eqn` as an einsum without eigenvectors; None if it is none.

        `values` are the equations whose eigenvalues it may sum.
        """
        (out,) = eqn.outputs
        if eqn.primitive.multiple_results or not out.aval.size:
            return None
        product, whole = SpectralProduct(self), fresh_labels(out.aval.shape)
        groups: LabelGroups | None = whole
        if type(eqn.primitive) is ops.ReduceSum:
            groups = expand_summands(product, eqn, [eqn.inputs[0].aval.shape])
        else:
            product.multiply(out, whole)
        if groups is None or any([f.atom is out for f in product.factors]):
            return None
        product.squares = []
        closing = EigenvectorElimination(
            self, product.factors, resolve_labels([x for group in groups for x in group])
        )
        if not (
            closing.replace_eigenvalue_sum(values) if values else closing.eliminate_eigenvectors()
        ):
            return None
        product.factors = closing.factors
        product.summed = [x for x in resolve_labels(product.summed) if x not in closing.eliminated]
        return Einsum.from_product(product, groups, out.aval, HIGHEST_PRECISION)

    def match_single_eigenvalue(self, eqn: Equation, values: list[Equation]) -> Einsum | None:
        """The single eigenvalue, or function of it, that `eqn` slices, as an einsum; else None.

        It is the sum of a function that is 0 at the other eigenvalues, which may be equal.
        """
        parts = slice_range(eqn.primitive, eqn.inputs[0])
        if parts is None or parts[2] != parts[1] + 1:
            return None
        axis, first, last = parts
        (x,), (out,) = eqn.inputs, eqn.outputs
        groups = fresh_labels(out.aval.shape)
        label = Label(x.aval.shape[axis])
        factor = Factor(x, (*groups[:axis], (label,), *groups[axis + 1 :]))
        closing = EigenvectorElimination(
            self, [factor], resolve_labels([x for group in groups for x in group])
        )
        if not closing.replace_eigenvalue_sum(values, (first, last)):
            return None
        product = SpectralProduct(self)
        product.factors = closing.factors
        return Einsum.from_product(product, groups, out.aval, HIGHEST_PRECISION)


def full_range(eqn: Equation) -> IndexRange:
    """The range of all eigenvalues or singular values of `eqn`."""
    return 0, eqn.outputs[eigenvalue_output_index(eqn)].aval.shape[-1]


def eigenvalue_output_index(eqn: Equation) -> int:
    """The index of the eigenvalues or singular values among the outputs of `eqn`."""
    return 0 if type(eqn.primitive) is ops.Eigh else 1


class SpectralProduct(ProductExpression):
    """A product with eigenvectors as factors, expanded through arrays that depend on them."""

    def __init__(self, search: SpectralSearch):
        super().__init__(search.producers, search.of_vectors.__contains__)
        self.search = search

    def sub_product(self) -> ProductExpression:
        return SpectralProduct(self.search)

    def multiply(self, atom: Any, groups: LabelGroups) -> None:
        eqn = self.producers.get(atom)
        if eqn is None:
            return super().multiply(atom, groups)
        if type(eqn.primitive) in (ops.Eigh, ops.Svd) and atom in self.search.of_vectors:
            self.factors.append(eigenvector_factor(eqn, atom, groups))
        elif (along := diagonal_operand(atom, self.producers)) is not None:
            self.diagonal(along, atom, groups)
        elif atom not in self.search.of_vectors:
            self.factors.append(Factor(atom, groups))
        elif not self.open(eqn, groups):
            super().multiply(atom, groups)
        return None

    def open(self, eqn: Equation, groups: LabelGroups) -> bool:
        """Expands a factor by its equation `eqn`; False for an equation that is not handled."""
        primitive: Any = eqn.primitive
        kind = type(primitive)
        (x, *_) = eqn.inputs
        if kind is ops.Conj:
            start = len(self.factors)
            self.multiply(x, groups)
            self.factors[start:] = [
                f._replace(atom=conjugate(f.atom)) for f in self.factors[start:]
            ]
            return True
        if kind is ops.ConvertElementType and ops.holds_exactly(primitive.dtype, x.aval.dtype):
            self.multiply(x, groups)
            return True
        if kind is ops.ReduceSum:
            given, summed = iter(groups), self.sum_over([x.aval.shape[d] for d in primitive.axes])
            at = dict(zip(primitive.axes, summed, strict=True))
            self.multiply(x, tuple([at[d] if d in at else next(given) for d in range(x.aval.ndim)]))
            return True
        return kind is ops.Slice and self.window(primitive, x, groups)

    def window(self, primitive: ops.Slice, x: Atom, groups: LabelGroups) -> bool:
        """Takes a slice of the vectors; False unless `x` is vectors sliced by number."""
        parts = slice_range(primitive, x)
        if parts is None:
            return False
        axis, first, last = parts
        start, label = len(self.factors), Label(x.aval.shape[axis])
        self.multiply(x, (*groups[:axis], (label,), *groups[axis + 1 :]))
        (factor, *more) = self.factors[start:]
        if more or type(factor.atom) is not Eigenvectors or factor.groups[-1] != (label,):
            del self.factors[start:]
            return False
        atom = factor.atom._replace(window=(first, last))
        self.factors[start] = Factor(atom, (*factor.groups[:-1], groups[axis]))
        return True

    def diagonal(self, x: Atom, atom: Atom, groups: LabelGroups) -> None:
        """Takes a matrix with `x` on its diagonal, of which one label is summed over."""
        rows, cols = [resolve_labels(group) for group in groups[-2:]]
        if len(rows) == len(cols) == 1 and rows != cols:
            summed = resolve_labels(self.summed)
            for one, other in ((rows[0], cols[0]), (cols[0], rows[0])):
                if one in summed:
                    one.parts = (other,)
                    self.multiply(x, (*groups[:-2], (other,)))
                    return
        self.factors.append(Factor(atom, groups))


def slice_range(primitive: Any, x: Atom) -> tuple[int, int, int] | None:
    """The axis, start and end of a slice of `x` along one axis; None for other slices."""
    bounds = zip(primitive.start, primitive.limit, x.aval.shape, strict=True)
    parts = [(d, a, b) for d, (a, b, n) in enumerate(bounds) if (a, b) != (0, n)]
    return parts[0] if primitive.strides is None and len(parts) == 1 else None


def eigenvector_factor(eqn: Equation, atom: Var, groups: LabelGroups) -> Factor:
    """The factor for the eigenvectors `atom`, an output of `eqn`."""
    output, window = eqn.outputs.index(atom), full_range(eqn)
    if output == 2:
        return Factor(Eigenvectors(eqn, 2, window, True), (*groups[:-2], groups[-1], groups[-2]))
    return Factor(Eigenvectors(eqn, output, window), groups)


def conjugate(atom: Any) -> Any:
    """The complex conjugate of a factor's atom."""
    if type(atom) is Eigenvectors:
        return atom._replace(conjugated=not atom.conjugated)
    if type(atom) is ConjugatedAtom:
        return atom.atom
    if not is_complex(atom.aval.dtype):
        return atom
    if type(atom) is Literal:
        return literal(complex(atom.value).conjugate(), atom.aval.dtype)
    return ConjugatedAtom(atom)


def diagonal_operand(atom: Atom, producers: dict[Atom, Equation]) -> Atom | None:
    """The diagonal of `atom` if it was built as diagonal matrices; else None."""
    outer = producers[atom]
    inner = producers.get(outer.inputs[0]) if type(outer.primitive) is ops.Reshape else None
    if inner is None or type(inner.primitive) is not ops.Pad:
        return None
    x, value = inner.inputs
    n = x.aval.shape[-1] if x.aval.shape else 0
    config = (*[(0, 0, 0)] * (x.aval.ndim - 1), (0, 0, n))
    fits = inner.primitive.config == config and outer.outputs[0].aval.shape == (*x.aval.shape, n)
    return x if fits and type(value) is Literal and value.value == 0 else None


class EigenvectorElimination:
    """Replaces factors with eigenvectors by functions of matrices.

    The labels in `out` are not summed over.
    """

    def __init__(self, search: SpectralSearch, factors: Sequence[Factor], out: LabelGroup):
        self.search, self.factors, self.out = search, [*factors], out
        # The labels of eigenvalues that are summed over.
        self.eliminated: list[Label] = []

    def eliminate_eigenvectors(self) -> bool:
        """Replaces all eigenvectors by functions of matrices; False if some are left."""
        if any([f.atom in self.search.of_vectors for f in self.factors if type(f.atom) is Var]):
            return False
        while (
            first := next((f for f in self.factors if type(f.atom) is Eigenvectors), None)
        ) is not None:
            if first.is_divisor or not any(
                [self.eliminate_pair(first, f) for f in self.factors if f is not first]
            ):
                return False
        return True

    def eliminate_pair(self, one: Factor, other: Factor) -> bool:
        """Replaces two factors with eigenvectors, if they share a summed label."""
        if (
            type(other.atom) is not Eigenvectors
            or other.is_divisor
            or not one.atom.contracts_with(other.atom)
        ):
            return False
        if one.atom.conjugated:
            one, other = other, one
        (own, rows, label), (others, cols, same) = (
            eigenvector_labels(one),
            eigenvector_labels(other),
        )
        if own != others or label != same or not {*own}.isdisjoint((*rows, *cols)):
            return False
        diagonal = rows == cols
        if len({*rows}) < len(rows) or (not diagonal and not {*rows}.isdisjoint(cols)):
            return False
        vectors: Eigenvectors = one.atom
        outputs = vectors.output, other.atom.output
        # A single vector shares no label with functions of eigenvalues.
        functions = [f for f in self.factors if label and label[0] in f.labels()]
        functions = [f for f in functions if f is not one and f is not other]
        if label and (len(label) > 1 or label[0] in (*self.out, *own, *rows, *cols)):
            return False
        found = self.spectral_sum(vectors.eqn, label, vectors.window, functions, own)
        if found is None or not {*found.batch}.isdisjoint((*rows, *cols)):
            return False
        matrix = (rows,) if diagonal else (rows, cols)
        atom = found._replace(outputs=outputs, diagonal=diagonal)
        self.replace_factors(atom, label, matrix, [one, other, *functions])
        return True

    def replace_eigenvalue_sum(
        self, values: Sequence[Equation], window: IndexRange | None = None
    ) -> bool:
        """Replaces factors by a sum over a window of eigenvalues; False if there is none."""
        labels = {label: None for f in self.factors for label in f.labels()}
        for eqn in values:
            for label in labels:
                if label not in self.out:
                    functions = [f for f in self.factors if label in f.labels()]
                    found = self.spectral_sum(eqn, (label,), full_range(eqn), functions, None)
                    if found is not None:
                        found = found._replace(window=window or found.window)
                        self.replace_factors(found, (label,), (), functions)
                        return True
        return False

    def spectral_sum(
        self, eqn: Equation, label: LabelGroup, window: IndexRange, factors: list[Factor], own: Any
    ) -> SpectralSum | None:
        """The sum over `label` of a product of functions of eigenvalues; None if it is none."""
        if not label:
            return SpectralSum(eqn, (), None, [], own, own, window)
        values = eqn.outputs[eigenvalue_output_index(eqn)]
        expressions = ExpressionBuilder(self.search.producers, values, label[0], window, own)
        found = [(expressions.build(f.atom, f.groups), f.is_divisor) for f in factors]
        terms = [(x, divides) for x, divides in found if x is not None]
        if len(terms) < len(found) or expressions.batch is None:
            return None
        own, parameters = expressions.batch, expressions.parameters
        labels = [[x for group in groups for x in group] for _, groups in parameters]
        if any([len({*each}) < len(each) for each in [*labels, [*own, *label]]]):
            return None
        more = tuple(dict.fromkeys([x for each in labels for x in each if x not in own]))
        return SpectralSum(
            eqn, (), product_expression(terms), parameters, own, (*more, *own), window
        )

    def replace_factors(
        self, atom: SpectralSum, label: LabelGroup, matrix: LabelGroups, instead: list[Factor]
    ) -> None:
        """Replaces the factors `instead`, summed over `label`, by the spectral sum `atom`."""
        left = [f for f in self.factors if not any([f is x for x in instead])]
        self.eliminated += label
        self.factors = [*left, Factor(atom, (*[(x,) for x in atom.batch], *matrix))]


def eigenvector_labels(factor: Factor) -> tuple[LabelGroup, LabelGroup, LabelGroup]:
    """The labels of a factor with eigenvectors: of the batch, the elements, and the vectors."""
    *batch, elements, vectors = [resolve_labels(group) for group in factor.groups]
    return tuple([label for group in batch for label in group]), elements, vectors
