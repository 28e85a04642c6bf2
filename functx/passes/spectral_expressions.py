"""Elementwise functions of eigenvalues, as expressions that a program's equations spell out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from functx import ops
from functx.core.program import Atom, Equation, Literal, Program
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.tracing import trace
from functx.core.types import ShapedArray, complex_dtype, is_complex, real_dtype
from functx.core.typing import Function, Value, Values
from functx.ops.families import Elementwise
from functx.ops.operands import cast_like, literal
from functx.passes.einsum_factors import Label, LabelGroup, LabelGroups, resolve_labels
from functx.transforms.spectral_functions import (
    SpectralFunction,
    SpectralTrace,
    elementwise_derivative,
    hermitian_dilation,
)

if TYPE_CHECKING:
    from functx.core.program import Var


class ConjugatedAtom(NamedTuple):
    """The complex conjugate of an atom, as a factor of a product."""

    atom: Atom


FactorAtom: TypeAlias = Atom | ConjugatedAtom


class EigenvalueTerm(NamedTuple):
    """The eigenvalues themselves."""


class EigenvalueIndices(NamedTuple):
    """The indices of the eigenvalues, as an array like `aval`."""

    aval: ShapedArray


class ParameterTerm(NamedTuple):
    """A parameter, by its index: an array that does not vary along the eigenvalues."""

    place: int


class ElementwiseTerm(NamedTuple):
    """An elementwise operation on expressions and literals."""

    operation: Function
    operands: tuple[Term, ...]


Term: TypeAlias = (
    float | Literal | EigenvalueTerm | EigenvalueIndices | ParameterTerm | ElementwiseTerm
)


class ExpressionBuilder:
    """Builds expressions of arrays as elementwise functions of eigenvalues.

    `values` is the variable of the eigenvalues, and `label` the label of those in the range
    `window`. An array without the label is a parameter, even if it depends on the eigenvalues: at
    equal eigenvalues, a divided difference is a derivative in which parameters are fixed. `batch`
    has the labels of the dimensions before that of the eigenvalues, None until they are known.
    """

    def __init__(
        self, producers: dict[Atom, Equation], values: Var, label: Label, window: tuple[int, int],
        batch: LabelGroup | None = None,
    ):  # fmt: skip
        self.producers, self.values, self.label, self.window = producers, values, label, window
        self.whole = window == (0, values.aval.shape[-1])
        self.batch = batch
        self.parameters: list[tuple[FactorAtom, LabelGroups]] = []
        self.memo: dict[tuple[FactorAtom, LabelGroups, bool], Term | None] = {}

    def build(self, atom: FactorAtom, groups: LabelGroups, inside: bool = False) -> Term | None:
        """The expression of `atom` with labels along its dimensions; None if there is none.

        With `inside`, the label stands for all eigenvalues, not those in the window.
        """
        if type(atom) is Literal:
            return atom
        groups = tuple([resolve_labels(group) for group in groups])
        key = atom, groups, inside
        if key not in self.memo:
            self.memo[key] = self.expression(atom, groups, inside)
        return self.memo[key]

    def expression(self, atom: FactorAtom, groups: LabelGroups, inside: bool) -> Term | None:
        if isinstance(atom, ConjugatedAtom):
            inner = self.build(atom.atom, groups, inside)
            return None if inner is None else ElementwiseTerm(ops.conj, (inner,))
        labels = [label for group in groups for label in group]
        if labels.count(self.label) > 1:
            return None
        if self.label not in labels:
            self.parameters.append((atom, groups))
            return ParameterTerm(len(self.parameters) - 1)
        if atom is self.values:
            batch = tuple([label for group in groups[:-1] for label in group])
            if self.batch is None:
                self.batch = batch
            fits = groups[-1] == (self.label,) and batch == self.batch
            return EigenvalueTerm() if fits and (inside or self.whole) else None
        eqn = self.producers.get(atom)
        return None if eqn is None else self.elementwise_term(eqn, groups, inside)

    def elementwise_term(self, eqn: Equation, groups: LabelGroups, inside: bool) -> Term | None:
        primitive: Any = eqn.primitive
        kind = type(primitive)
        if isinstance(primitive, Elementwise) or kind is ops.ConvertElementType:
            operands = [self.build(x, groups if x.aval.ndim else (), inside) for x in eqn.inputs]
            terms = tuple([x for x in operands if x is not None])
            return ElementwiseTerm(primitive, terms) if len(terms) == len(operands) else None
        if kind is ops.Iota:
            along = groups[primitive.dimension] == (self.label,) and (inside or self.whole)
            alone = sum(map(len, groups)) == 1
            return EigenvalueIndices(eqn.outputs[0].aval) if along and alone else None
        (x, *_) = [*eqn.inputs, None]
        if kind is ops.BroadcastInDim:
            dims = zip(x.aval.shape, primitive.dims, strict=True)
            return self.build(x, tuple([() if n == 1 else groups[d] for n, d in dims]), inside)
        if kind is ops.Full:
            return self.build(x, (), inside)
        if kind is ops.PermuteDims:
            place = {axis: i for i, axis in enumerate(primitive.axes)}
            return self.build(x, tuple([groups[place[d]] for d in range(len(groups))]), inside)
        if kind is ops.Reshape:
            given = squeeze_groups(x.aval.shape, eqn.outputs[0].aval.shape, groups)
            return None if given is None else self.build(x, given, inside)
        if kind is ops.Slice and not inside and primitive.strides is None:
            bounds = zip(primitive.start, primitive.limit, x.aval.shape, strict=True)
            parts = [(a, b) for a, b, n in bounds if (a, b) != (0, n)]
            axes = [d for d, group in enumerate(groups) if group == (self.label,)]
            own = [(primitive.start[d], primitive.limit[d]) for d in axes]
            return self.build(x, groups, True) if parts == own == [self.window] else None
        return None


def squeeze_groups(
    shape: tuple[int, ...], out: tuple[int, ...], groups: Sequence[LabelGroup]
) -> LabelGroups | None:
    """The groups of labels along `shape`, from those along `out`, to which it is reshaped.

    None if dimensions other than those of size 1 change.
    """
    if [n for n in shape if n != 1] != [n for n in out if n != 1]:
        return None
    remaining = iter([group for group, n in zip(groups, out, strict=True) if n != 1])
    return tuple([() if n == 1 else next(remaining) for n in shape])


class ExpressionEvaluator:
    """Evaluates expressions on arrays of eigenvalues, their indices and parameters."""

    def __init__(self, w: Value, places: Value | None, parameters: Values):
        self.w, self.places, self.parameters = w, places, parameters
        self.memo: dict[int, Value] = {}

    def evaluate(self, x: Term) -> Any:
        """The value of an expression: an array, or a scalar that is broadcast."""
        if isinstance(x, float):
            return x
        if isinstance(x, Literal):
            return Tracer(x, current_builder.require())
        if isinstance(x, EigenvalueTerm):
            return self.w
        if isinstance(x, ParameterTerm):
            return self.parameters[x.place]
        if id(x) not in self.memo:
            if isinstance(x, EigenvalueIndices):
                assert self.places is not None
                self.memo[id(x)] = ops.convert_element_type(self.places, x.aval.dtype)
            else:
                self.memo[id(x)] = x.operation(*[self.evaluate(y) for y in x.operands])
        return self.memo[id(x)]


def product_expression(factors: Iterable[tuple[Term, bool]]) -> Term | None:
    """The product of expressions, of which some divide; None for no factors."""
    product: Term | None = None
    for x, divides in sorted(factors, key=lambda pair: pair[1]):
        if product is None:
            product = ElementwiseTerm(ops.div, (1.0, x)) if divides else x
        else:
            product = ElementwiseTerm(ops.div if divides else ops.mul, (product, x))
    return product


def broadcast_batch(x: Value, shape: tuple[int, ...]) -> Value:
    """`x`, whose shape begins `shape`, broadcast along the other dimensions."""
    return x if not x.shape else ops.broadcast_leading(x, shape)


IndexRange = tuple[int, int]
"""A range of vectors or values: from the first index to before the second."""


class SpectralSum(NamedTuple):
    """A sum over eigenvalues of a function, alone or times two eigenvectors, as a factor's atom.

    `outputs` are the indices of the outputs of `eqn` that hold the vectors, none for the sum alone.
    `expression` is the function, None for 1; `parameters` are the arrays that it needs, with the
    labels along their dimensions. `equation_batch` are the batch labels of the equation, `batch`
    those of the result. `window` is the range of vectors; with `diagonal`, only the diagonal of the
    result is taken.
    """

    eqn: Equation
    outputs: tuple[int, ...]
    expression: Term | None
    parameters: list[tuple[FactorAtom, LabelGroups]]
    equation_batch: LabelGroup
    batch: LabelGroup
    window: IndexRange
    diagonal: bool = False

    def emit(self, read: Callable[[Any], Any]) -> Value:
        """Appends the equations that compute it along `batch`; `read` gives the variables."""
        a = read(self.eqn.inputs[0])
        a = align_to_batch(
            ops.reshape(a, (*label_sizes(self.equation_batch), *a.shape[-2:])),
            self.equation_batch,
            self.batch,
        )
        m, n = a.shape[-2:]
        rows = m if type(self.eqn.primitive) is ops.Svd else 0
        a = hermitian_dilation(a) if rows else a
        parameters = [self.parameter(atom, groups, read) for atom, groups in self.parameters]
        function = EigenvalueFunction(self, aval_of(a), rows)
        program = function.program([aval_of(x) for x in parameters])
        if is_complex(program.out_avals[0].dtype) and not is_complex(a.dtype):
            a = ops.convert_element_type(a, program.out_avals[0].dtype)
        if not self.outputs:
            return SpectralTrace(program, rows)(a, *parameters)
        result = SpectralFunction(program, rows)(a, *parameters)
        if rows:
            # Left singular vectors are the upper parts of eigenvectors, right ones the lower.
            parts = [(0, m) if output == 0 else (m, m + n) for output in self.outputs]
            for axis, (start, end) in zip((result.ndim - 2, result.ndim - 1), parts, strict=True):
                result = ops.slice_in_dim(result, start, end, axis=axis)
        return ops.extract_diagonal(result) if self.diagonal else result

    def parameter(self, atom: FactorAtom, groups: LabelGroups, read: Callable[[Any], Any]) -> Value:
        """A parameter along the batch."""
        labels = resolve_labels([label for group in groups for label in group])
        x = ops.reshape(read(atom), label_sizes(labels))
        return align_to_batch(x, labels, self.batch)


class EigenvalueFunction(NamedTuple):
    """The function of eigenvalues in a spectral sum.

    Singular values are eigenvalues of [[0, x], [x^H, 0]], where x has `rows` rows.
    """

    sum: SpectralSum
    aval: ShapedArray
    rows: int

    def program(self, parameters: list[ShapedArray]) -> Program:
        """The function as a program of eigenvalues and parameters."""
        shape, real = self.aval.shape[:-1], real_dtype(self.aval.dtype)
        avals = [ShapedArray(shape, real), *parameters]
        plain, _ = trace(self.values, avals, name="function")
        if not self.rows:
            return plain
        signed = partial(self.evaluate_singular_values, plain)
        return trace(signed, avals, name="function")[0]

    def values(self, w: Value, *parameters: Value) -> list[Value]:
        """The function at `w` inside the window, and zeros outside."""
        real = w.dtype
        f = ops.full(w.shape, literal(1, real))
        if self.sum.expression is not None:
            broadcast = [broadcast_batch(x, w.shape) for x in parameters]
            f = ExpressionEvaluator(w, self.eigenvalue_indices(w), broadcast).evaluate(
                self.sum.expression
            )
            dtype = complex_dtype(real) if is_complex(f.dtype) else real
            f = f if f.dtype == dtype else ops.convert_element_type(f, dtype)
        first, last = self.sum.window
        if (first, last) != (0, self.width):
            inside = ops.bitwise_and(
                ops.ge(self.eigenvalue_indices(w), first), ops.lt(self.eigenvalue_indices(w), last)
            )
            return [ops.select(inside, f, literal(0, f.dtype))]
        return [f if f.shape else ops.full(w.shape, f)]

    @property
    def width(self) -> int:
        """The number of eigenvalues or singular values."""
        n = self.aval.shape[-1]
        return min(self.rows, n - self.rows) if self.rows else n

    def eigenvalue_indices(self, w: Value) -> Value:
        """The index of each eigenvalue; both signs of a singular value have one."""
        places = ops.broadcasted_iota("int32", w.shape, w.ndim - 1)
        k = self.width
        return ops.select(ops.lt(places, k), places, ops.sub(places, k)) if self.rows else places

    def evaluate_singular_values(self, plain: Program, w: Value, *parameters: Value) -> list[Value]:
        """The function at the singular values and their negatives.

        It is odd for a left with a right vector, even for two of one side, and halved for a sum.
        """
        builder, is_odd = current_builder.require(), len({*self.sum.outputs}) == 2
        places = ops.broadcasted_iota("int32", w.shape, w.ndim - 1)
        signs = ops.select(ops.lt(places, self.width), literal(1, w.dtype), literal(-1, w.dtype))
        f: Value = builder.inline(plain, [ops.mul(signs, w), *parameters])[0]
        if not self.sum.outputs:
            f = ops.mul(f, 0.5)
        elif is_odd:
            f = ops.mul(f, cast_like(signs, f))
        if 2 * self.width == w.shape[-1]:
            return [f]
        # Vectors without a singular value count as vectors for 0: there an odd function
        # contributes its slope, an even one its curvature, if these are finite.
        steep = (
            elementwise_derivative(plain)
            if is_odd
            else elementwise_derivative(elementwise_derivative(plain))
        )
        (slope,) = builder.inline(steep, [ops.zeros_like(w), *parameters])
        leading = ops.select(ops.lt(ops.abs(slope), inf), slope, literal(0, slope.dtype))
        power = w if is_odd else ops.mul(ops.mul(w, w), 0.5)
        beyond = ops.mul(leading, cast_like(power, leading))
        return [ops.select(ops.lt(places, 2 * self.width), f, beyond)]


def label_sizes(labels: LabelGroup) -> tuple[int, ...]:
    """The sizes of the dimensions that labels stand for."""
    return tuple([label.size for label in labels])


def align_to_batch(x: Value, labels: LabelGroup, batch: LabelGroup) -> Value:
    """`x`, whose first dimensions have `labels`, broadcast to dimensions for all of `batch`."""
    if labels == batch:
        return x
    ordered = [label for label in batch if label in labels]
    rest = range(len(labels), x.ndim)
    x = ops.permute_dims(x, (*[labels.index(label) for label in ordered], *rest))
    shape = (*label_sizes(batch), *x.shape[len(labels) :])
    places = [batch.index(label) for label in ordered]
    return ops.broadcast_in_dim(x, shape, (*places, *range(len(batch), len(shape))))
