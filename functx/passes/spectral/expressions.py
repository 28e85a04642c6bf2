"""Functions of eigenvalues, element by element, as the equations of a program show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import Any, NamedTuple

from functx import ops
from functx.core.program import Equation, Literal, Program
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.tracing import trace
from functx.core.types import ShapedArray, complex_dtype, is_complex, real_dtype
from functx.ops.families import Elementwise
from functx.ops.operands import literal
from functx.passes.einsum_factors import Label, LabelGroup, LabelGroups, resolve_labels
from functx.transforms.spectral_functions import (
    SpectralFunction,
    SpectralTrace,
    elementwise_derivative,
    hermitian_dilation,
)


class ConjugatedAtom(NamedTuple):
    """The complex conjugate of another atom, in its place in a product."""

    atom: Any


class EigenvalueTerm(NamedTuple):
    """The eigenvalues themselves."""


class EigenvalueIndices(NamedTuple):
    """The positions of the eigenvalues, as `aval.dtype`."""

    aval: ShapedArray


class ParameterTerm(NamedTuple):
    """The `place`-th of the arrays that do not vary along the eigenvalues."""

    place: int


class ElementwiseTerm(NamedTuple):
    """An elementwise operation on expressions and literals."""

    operation: Callable[..., Any]
    operands: tuple[Any, ...]


class ExpressionBuilder:
    """Arrays with the label of the eigenvalues, as elementwise functions of the eigenvalues.

    `values` is the variable of the eigenvalues, and `window` the range of them that has the label.
    An array without the label is a parameter, whatever it depends on: where eigenvalues are equal,
    a divided difference is a derivative in which parameters do not vary. `batch` has the labels of
    the dimensions before that of the eigenvalues, None as long as these did not occur.
    """

    def __init__(
        self, makers: dict[Any, Equation], values: Any, label: Label, window: tuple[int, int],
        batch: LabelGroup | None = None,
    ):  # fmt: skip
        self.producers, self.values, self.label, self.window = makers, values, label, window
        self.whole = window == (0, values.aval.shape[-1])
        self.batch = batch
        self.parameters: list[tuple[Any, LabelGroups]] = []
        self.memo: dict[Any, Any] = {}

    def of(self, atom: Any, groups: LabelGroups, inside: bool = False) -> Any:
        """The expression of `atom` with labels along its dimensions; None if it is none.

        `inside` says that the label stands for all eigenvalues, not those of the window.
        """
        if type(atom) is Literal:
            return atom
        groups = tuple([resolve_labels(group) for group in groups])
        key = atom, groups, inside
        if key not in self.memo:
            self.memo[key] = self.expression(atom, groups, inside)
        return self.memo[key]

    def expression(self, atom: Any, groups: LabelGroups, inside: bool) -> Any:
        if type(atom) is ConjugatedAtom:
            inner = self.of(atom.atom, groups, inside)
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

    def elementwise_term(self, eqn: Equation, groups: LabelGroups, inside: bool) -> Any:
        primitive: Any = eqn.primitive
        kind = type(primitive)
        if isinstance(primitive, Elementwise) or kind is ops.ConvertElementType:
            operands = [self.of(x, groups if x.aval.ndim else (), inside) for x in eqn.inputs]
            return None if None in operands else ElementwiseTerm(primitive, tuple(operands))
        if kind is ops.Iota:
            along = groups[primitive.dimension] == (self.label,) and (inside or self.whole)
            alone = sum(map(len, groups)) == 1
            return EigenvalueIndices(eqn.outputs[0].aval) if along and alone else None
        (x, *_) = [*eqn.inputs, None]
        if kind is ops.BroadcastInDim:
            dims = zip(x.aval.shape, primitive.dims, strict=True)
            return self.of(x, tuple([() if n == 1 else groups[d] for n, d in dims]), inside)
        if kind is ops.Full:
            return self.of(x, (), inside)
        if kind is ops.PermuteDims:
            place = {axis: i for i, axis in enumerate(primitive.axes)}
            return self.of(x, tuple([groups[place[d]] for d in range(len(groups))]), inside)
        if kind is ops.Reshape:
            given = squeeze_groups(x.aval.shape, eqn.outputs[0].aval.shape, groups)
            return None if given is None else self.of(x, given, inside)
        if kind is ops.Slice and not inside and primitive.strides is None:
            bounds = zip(primitive.start, primitive.limit, x.aval.shape, strict=True)
            parts = [(a, b) for a, b, n in bounds if (a, b) != (0, n)]
            axes = [d for d, group in enumerate(groups) if group == (self.label,)]
            own = [(primitive.start[d], primitive.limit[d]) for d in axes]
            return self.of(x, groups, True) if parts == own == [self.window] else None
        return None


def squeeze_groups(
    shape: tuple[int, ...], out: tuple[int, ...], groups: Sequence[LabelGroup]
) -> LabelGroups | None:
    """The groups of labels along `shape` when it is reshaped to `out`; None if others are regrouped."""
    if [n for n in shape if n != 1] != [n for n in out if n != 1]:
        return None
    rest = iter([group for group, n in zip(groups, out, strict=True) if n != 1])
    return tuple([() if n == 1 else next(rest) for n in shape])


class ExpressionEvaluator:
    """The values of expressions, for arrays of eigenvalues and of parameters."""

    def __init__(self, w: Any, places: Any, parameters: Sequence[Any]):
        self.w, self.places, self.parameters = w, places, parameters
        self.memo: dict[int, Any] = {}

    def of(self, x: Any) -> Any:
        """The array of an expression, or a scalar that stands for one."""
        if type(x) is float:
            return x
        if type(x) is Literal:
            return Tracer(x, current_builder.require())
        if type(x) is EigenvalueTerm:
            return self.w
        if type(x) is ParameterTerm:
            return self.parameters[x.place]
        if id(x) not in self.memo:
            if type(x) is EigenvalueIndices:
                self.memo[id(x)] = ops.convert_element_type(self.places, x.aval.dtype)
            else:
                self.memo[id(x)] = x.operation(*[self.of(y) for y in x.operands])
        return self.memo[id(x)]


def product_expression(factors: Iterable[tuple[Any, bool]]) -> Any:
    """The expression of a product of expressions, some of which divide; None for that of none."""
    found: Any = None
    for x, divides in sorted(factors, key=lambda pair: pair[1]):
        if found is None:
            found = ElementwiseTerm(ops.div, (1.0, x)) if divides else x
        else:
            found = ElementwiseTerm(ops.div if divides else ops.mul, (found, x))
    return found


def broadcast_batch(x: Any, shape: tuple[int, ...]) -> Any:
    """`x`, which has the first dimensions of `shape`, repeated along the others."""
    return x if not x.shape else ops.broadcast_in_dim(x, shape, tuple(range(x.ndim)))


IndexRange = tuple[int, int]
"""Which of some vectors or values are taken: from the first to before the second."""


class SpectralSum(NamedTuple):
    """In place of a factor's atom: the sum over eigenvalues of a function of them, or of that
    times two of their vectors.

    `outputs` are those of the equation that the vectors belong to, none for the bare sum.
    `expression` is the function, None for 1, and `parameters` are arrays that it needs, with labels
    along their dimensions. `own` are the labels of the batch of the equation, `batch` those of the
    result. Of vectors in part, `window` says which. With `diagonal`, just the diagonal counts.
    """

    eqn: Equation
    outputs: tuple[int, ...]
    expression: Any
    parameters: list[tuple[Any, LabelGroups]]
    equation_batch: LabelGroup
    batch: LabelGroup
    window: IndexRange
    diagonal: bool = False

    def emit(self, read: Callable[[Any], Any]) -> Any:
        """The equations that compute it, along `batch`, from what `read` gives for each variable."""
        a = read(self.eqn.inputs[0])
        a = align_to_batch(
            ops.reshape(a, (*label_sizes(self.equation_batch), *a.shape[-2:])),
            self.equation_batch,
            self.batch,
        )
        m, n = a.shape[-2:]
        rows = m if type(self.eqn.primitive) is ops.Svd else 0
        a = hermitian_dilation(a) if rows else a
        given = [self.parameter(atom, groups, read) for atom, groups in self.parameters]
        function = EigenvalueFunction(self, aval_of(a), rows)
        program = function.program([aval_of(x) for x in given])
        if is_complex(program.out_avals[0].dtype) and not is_complex(a.dtype):
            a = ops.convert_element_type(a, program.out_avals[0].dtype)
        if not self.outputs:
            return SpectralTrace(program, rows)(a, *given)
        found = SpectralFunction(program, rows)(a, *given)
        if rows:
            # Left vectors are the upper parts of eigenvectors, right ones the lower.
            parts = [(0, m) if output == 0 else (m, m + n) for output in self.outputs]
            for axis, (start, end) in zip((found.ndim - 2, found.ndim - 1), parts, strict=True):
                found = ops.slice_in_dim(found, start, end, axis=axis)
        return ops.extract_diagonal(found) if self.diagonal else found

    def parameter(self, atom: Any, groups: LabelGroups, read: Callable[[Any], Any]) -> Any:
        """A parameter along the batch."""
        labels = resolve_labels([label for group in groups for label in group])
        x = ops.reshape(read(atom), label_sizes(labels))
        return align_to_batch(x, labels, self.batch)


class EigenvalueFunction(NamedTuple):
    """The function of the eigenvalues of a matrix that a spectral sum has.

    Singular values are eigenvalues of [[0, x], [x^H, 0]], where x has `rows` rows.
    """

    of: SpectralSum
    aval: ShapedArray
    rows: int

    def program(self, parameters: list[ShapedArray]) -> Program:
        """As a program, of eigenvalues and of parameters."""
        shape, real = self.aval.shape[:-1], real_dtype(self.aval.dtype)
        avals = [ShapedArray(shape, real), *parameters]
        plain, _ = trace(self.values, avals, name="function")
        if not self.rows:
            return plain
        signed = partial(self.evaluate_singular_values, plain)
        return trace(signed, avals, name="function")[0]

    def values(self, w: Any, *parameters: Any) -> list[Any]:
        """The function at `w`, where the window is; else zeros."""
        real = w.dtype
        f = ops.full(w.shape, literal(1, real))
        if self.of.expression is not None:
            repeats = [broadcast_batch(x, w.shape) for x in parameters]
            f = ExpressionEvaluator(w, self.eigenvalue_indices(w), repeats).of(self.of.expression)
            wanted = complex_dtype(real) if is_complex(f.dtype) else real
            f = f if f.dtype == wanted else ops.convert_element_type(f, wanted)
        first, last = self.of.window
        if (first, last) != (0, self.width):
            inside = ops.bitwise_and(
                ops.ge(self.eigenvalue_indices(w), first), ops.lt(self.eigenvalue_indices(w), last)
            )
            return [ops.select(inside, f, literal(0, f.dtype))]
        return [f if f.shape else ops.full(w.shape, f)]

    @property
    def width(self) -> int:
        """How many eigenvalues or singular values there are."""
        n = self.aval.shape[-1]
        return min(self.rows, n - self.rows) if self.rows else n

    def eigenvalue_indices(self, w: Any) -> Any:
        """The position of each eigenvalue; of singular values those of both their signs."""
        places = ops.broadcasted_iota("int32", w.shape, w.ndim - 1)
        k = self.width
        return ops.select(ops.lt(places, k), places, ops.sub(places, k)) if self.rows else places

    def evaluate_singular_values(self, plain: Program, w: Any, *parameters: Any) -> list[Any]:
        """The values of the function at the singular values and their negatives.

        It is odd for a left with a right vector, even for two of one side, and half for a sum.
        """
        builder, is_odd = current_builder.require(), len({*self.of.outputs}) == 2
        places = ops.broadcasted_iota("int32", w.shape, w.ndim - 1)
        signs = ops.select(ops.lt(places, self.width), literal(1, w.dtype), literal(-1, w.dtype))
        (f,) = builder.inline(plain, [ops.mul(signs, w), *parameters])
        if not self.of.outputs:
            f = ops.mul(f, 0.5)
        elif is_odd:
            f = ops.mul(f, ops.cast_like(signs, f))
        if 2 * self.width == w.shape[-1]:
            return [f]
        # Vectors beyond meet those of values near 0 as if they were of such: there an odd function
        # has its slope, an even one its curvature. None is where they meet no such values.
        steep = (
            elementwise_derivative(plain)
            if is_odd
            else elementwise_derivative(elementwise_derivative(plain))
        )
        (leading,) = builder.inline(steep, [ops.zeros_like(w), *parameters])
        leading = ops.select(ops.lt(ops.abs(leading), inf), leading, literal(0, leading.dtype))
        power = w if is_odd else ops.mul(ops.mul(w, w), 0.5)
        beyond = ops.mul(leading, ops.cast_like(power, leading))
        return [ops.select(ops.lt(places, 2 * self.width), f, beyond)]


def label_sizes(labels: LabelGroup) -> tuple[int, ...]:
    """The lengths that labels run over."""
    return tuple([label.size for label in labels])


def align_to_batch(x: Any, labels: LabelGroup, batch: LabelGroup) -> Any:
    """`x`, with `labels` along its first dimensions, along those of `batch`, which has them all."""
    if labels == batch:
        return x
    ordered = [label for label in batch if label in labels]
    rest = range(len(labels), x.ndim)
    x = ops.permute_dims(x, (*[labels.index(label) for label in ordered], *rest))
    shape = (*label_sizes(batch), *x.shape[len(labels) :])
    places = [batch.index(label) for label in ordered]
    return ops.broadcast_in_dim(x, shape, (*places, *range(len(batch), len(shape))))
