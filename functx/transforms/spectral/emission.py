"""What two vectors that meet come to, and the equations that compute it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from functx.core.avals import ShapedArray
from functx.core.dtypes import complex_dtype, is_complex
from functx.core.program import Equation, Program
from functx.core.tracing import trace
from functx.ops.arithmetic import mul, sub
from functx.ops.comparison import ge, lt
from functx.ops.conversion import convert_element_type
from functx.ops.creation import broadcasted_iota
from functx.ops.factorizations import Svd
from functx.ops.logical import bitwise_and
from functx.ops.matrices import diagonal_of
from functx.ops.operands import literal
from functx.ops.selection import select
from functx.ops.shaping import broadcast_in_dim, full, permute_dims, reshape
from functx.ops.slicing import slice_in_dim
from functx.transforms.simplify.factors import Group, Groups, resolved
from functx.transforms.spectral.expressions import Evaluation, repeated
from functx.transforms.spectral.functions import SpectralFunction, SpectralTrace, with_blocks


class Spectral(NamedTuple):
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
    parameters: list[tuple[Any, Groups]]
    own: Group
    batch: Group
    window: tuple[int, int]
    diagonal: bool = False

    @property
    def halves(self) -> bool:
        """Whether it is one of singular values."""
        return type(self.eqn.primitive) is Svd

    def emit(self, read: Callable[[Any], Any]) -> Any:
        """The equations that compute it, along `batch`, from what `read` gives for each variable."""
        a = read(self.eqn.inputs[0])
        n = a.shape[-1]
        a = laid_out(reshape(a, (*sizes(self.own), n, n)), self.own, self.batch)
        a = with_blocks(a) if self.halves else a
        given = [self.parameter(atom, groups, read) for atom, groups in self.parameters]
        program = self.program(a, [x.aval for x in given])
        if is_complex(program.out_avals[0].dtype) and not is_complex(a.dtype):
            a = convert_element_type(a, program.out_avals[0].dtype)
        if not self.outputs:
            return SpectralTrace(program, self.halves)(a, *given)
        found = SpectralFunction(program, self.halves)(a, *given)
        if self.halves:
            at = [0 if output == 0 else n for output in self.outputs]
            for axis, start in zip((found.ndim - 2, found.ndim - 1), at, strict=True):
                found = slice_in_dim(found, start, start + n, axis=axis)
        return diagonal_of(found) if self.diagonal else found

    def parameter(self, atom: Any, groups: Groups, read: Callable[[Any], Any]) -> Any:
        """A parameter along the batch."""
        labels = resolved([label for group in groups for label in group])
        x = reshape(read(atom), sizes(labels))
        return laid_out(x, labels, self.batch)

    def program(self, a: Any, parameters: list[ShapedArray]) -> Program:
        """The function, element by element, of the eigenvalues of `a` and of parameters."""
        shape = a.shape[:-1]
        real = np.finfo(a.dtype).dtype

        def body(w: Any, *given: Any) -> list[Any]:
            places = broadcasted_iota("int32", shape, len(shape) - 1)
            signs = None
            if self.halves:
                n = shape[-1] // 2
                first = lt(places, n)
                places = select(first, places, sub(places, n))
                signs = select(first, literal(1, real), literal(-1, real))
                w = mul(signs, w)
            f: Any = literal(1, real)
            if self.expression is not None:
                evaluation = Evaluation(
                    w,
                    lambda dtype: convert_element_type(places, dtype),
                    [repeated(x, shape) for x in given],
                )
                f = evaluation.of(self.expression)
                wanted = complex_dtype(real) if is_complex(f.dtype) else real
                f = f if f.dtype == wanted else convert_element_type(f, wanted)
            first, last = self.window
            if (first, last) != (0, self.eqn.inputs[0].aval.shape[-1]):
                inside = bitwise_and(ge(places, first), lt(places, last))
                f = select(inside, f, literal(0, f.aval.dtype))
            elif not f.aval.shape:
                f = full(shape, f)
            if self.halves and not self.outputs:
                f = mul(f, 0.5)
            if self.halves and len({*self.outputs}) == 2:
                f = mul(f, signs if f.dtype == real else convert_element_type(signs, f.dtype))
            return [f]

        avals = [ShapedArray(shape, real), *parameters]
        return trace(body, avals, name="function")[0]


def sizes(labels: Group) -> tuple[int, ...]:
    """The lengths that labels run over."""
    return tuple([label.size for label in labels])


def laid_out(x: Any, labels: Group, batch: Group) -> Any:
    """`x`, with `labels` along its first dimensions, along those of `batch`, which has them all."""
    if labels == batch:
        return x
    ordered = [label for label in batch if label in labels]
    rest = range(len(labels), x.ndim)
    x = permute_dims(x, (*[labels.index(label) for label in ordered], *rest))
    shape = (*sizes(batch), *x.shape[len(labels) :])
    places = [batch.index(label) for label in ordered]
    return broadcast_in_dim(x, shape, (*places, *range(len(batch), len(shape))))
