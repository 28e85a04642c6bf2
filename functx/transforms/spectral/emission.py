"""Emission of recognized functions of matrices: the equations that compute them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, NamedTuple

from functx.core.avals import ShapedArray
from functx.core.dtypes import complex_dtype, is_complex, real_dtype
from functx.core.program import Equation, Program
from functx.core.tracing import aval_of, current_builder, trace
from functx.ops.arithmetic import abs, mul, sub
from functx.ops.comparison import ge, lt
from functx.ops.conversion import convert_element_type
from functx.ops.creation import broadcasted_iota
from functx.ops.factorizations import Svd
from functx.ops.logical import bitwise_and
from functx.ops.matrices import cast_like, extract_diagonal
from functx.ops.operands import literal
from functx.ops.selection import select
from functx.ops.shaping import broadcast_in_dim, full, permute_dims, reshape, zeros_like
from functx.ops.slicing import slice_in_dim
from functx.transforms.simplify.factors import LabelGroup, LabelGroups, resolve_labels
from functx.transforms.spectral.expressions import ExpressionEvaluator, broadcast_batch
from functx.transforms.spectral.functions import (
    SpectralFunction,
    SpectralTrace,
    elementwise_derivative,
    hermitian_dilation,
)

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
            reshape(a, (*label_sizes(self.equation_batch), *a.shape[-2:])),
            self.equation_batch,
            self.batch,
        )
        m, n = a.shape[-2:]
        rows = m if type(self.eqn.primitive) is Svd else 0
        a = hermitian_dilation(a) if rows else a
        given = [self.parameter(atom, groups, read) for atom, groups in self.parameters]
        function = EigenvalueFunction(self, aval_of(a), rows)
        program = function.program([aval_of(x) for x in given])
        if is_complex(program.out_avals[0].dtype) and not is_complex(a.dtype):
            a = convert_element_type(a, program.out_avals[0].dtype)
        if not self.outputs:
            return SpectralTrace(program, rows)(a, *given)
        found = SpectralFunction(program, rows)(a, *given)
        if rows:
            # Left vectors are the upper parts of eigenvectors, right ones the lower.
            parts = [(0, m) if output == 0 else (m, m + n) for output in self.outputs]
            for axis, (start, end) in zip((found.ndim - 2, found.ndim - 1), parts, strict=True):
                found = slice_in_dim(found, start, end, axis=axis)
        return extract_diagonal(found) if self.diagonal else found

    def parameter(self, atom: Any, groups: LabelGroups, read: Callable[[Any], Any]) -> Any:
        """A parameter along the batch."""
        labels = resolve_labels([label for group in groups for label in group])
        x = reshape(read(atom), label_sizes(labels))
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
        f = full(w.shape, literal(1, real))
        if self.of.expression is not None:
            repeats = [broadcast_batch(x, w.shape) for x in parameters]
            f = ExpressionEvaluator(w, self.eigenvalue_indices(w), repeats).of(self.of.expression)
            wanted = complex_dtype(real) if is_complex(f.dtype) else real
            f = f if f.dtype == wanted else convert_element_type(f, wanted)
        first, last = self.of.window
        if (first, last) != (0, self.width):
            inside = bitwise_and(
                ge(self.eigenvalue_indices(w), first), lt(self.eigenvalue_indices(w), last)
            )
            return [select(inside, f, literal(0, f.dtype))]
        return [f if f.shape else full(w.shape, f)]

    @property
    def width(self) -> int:
        """How many eigenvalues or singular values there are."""
        n = self.aval.shape[-1]
        return min(self.rows, n - self.rows) if self.rows else n

    def eigenvalue_indices(self, w: Any) -> Any:
        """The position of each eigenvalue; of singular values those of both their signs."""
        places = broadcasted_iota("int32", w.shape, w.ndim - 1)
        k = self.width
        return select(lt(places, k), places, sub(places, k)) if self.rows else places

    def evaluate_singular_values(self, plain: Program, w: Any, *parameters: Any) -> list[Any]:
        """The values of the function at the singular values and their negatives.

        It is odd for a left with a right vector, even for two of one side, and half for a sum.
        """
        builder, is_odd = current_builder.require(), len({*self.of.outputs}) == 2
        places = broadcasted_iota("int32", w.shape, w.ndim - 1)
        signs = select(lt(places, self.width), literal(1, w.dtype), literal(-1, w.dtype))
        (f,) = builder.inline(plain, [mul(signs, w), *parameters])
        if not self.of.outputs:
            f = mul(f, 0.5)
        elif is_odd:
            f = mul(f, cast_like(signs, f))
        if 2 * self.width == w.shape[-1]:
            return [f]
        # Vectors beyond meet those of values near 0 as if they were of such: there an odd function
        # has its slope, an even one its curvature. None is where they meet no such values.
        steep = (
            elementwise_derivative(plain)
            if is_odd
            else elementwise_derivative(elementwise_derivative(plain))
        )
        (leading,) = builder.inline(steep, [zeros_like(w), *parameters])
        leading = select(lt(abs(leading), inf), leading, literal(0, leading.dtype))
        power = w if is_odd else mul(mul(w, w), 0.5)
        beyond = mul(leading, cast_like(power, leading))
        return [select(lt(places, 2 * self.width), f, beyond)]


def label_sizes(labels: LabelGroup) -> tuple[int, ...]:
    """The lengths that labels run over."""
    return tuple([label.size for label in labels])


def align_to_batch(x: Any, labels: LabelGroup, batch: LabelGroup) -> Any:
    """`x`, with `labels` along its first dimensions, along those of `batch`, which has them all."""
    if labels == batch:
        return x
    ordered = [label for label in batch if label in labels]
    rest = range(len(labels), x.ndim)
    x = permute_dims(x, (*[labels.index(label) for label in ordered], *rest))
    shape = (*label_sizes(batch), *x.shape[len(labels) :])
    places = [batch.index(label) for label in ordered]
    return broadcast_in_dim(x, shape, (*places, *range(len(batch), len(shape))))
