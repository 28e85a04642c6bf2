"""Eigenvalues and eigenvectors of matrices that need not be Hermitian."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jax import lax

from functx import ops
from functx.core.samples import Rounding, c64, f32, sample
from functx.core.types import ShapedArray, complex_dtype, is_complex
from functx.core.typing import IRValue, Tangent, Value
from functx.ops.factorizations import MaskedReciprocal
from functx.ops.linear_algebra import MatrixFunction
from functx.ops.linear_systems import solve
from functx.ops.operands import cast_like, literal

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext

_MATRIX = np.array([[1.0, 2.0, 0.5], [-1.5, -1.0, 1.0], [-0.5, 0.2, 3.0]])
_COMPLEX_MATRIX = _MATRIX + 1j * np.array([[0.3, 0, 0], [0, 0.5, 0.2], [0.1, 0, -0.4]])


class Eig(MatrixFunction):
    """The eigenvalues of matrices; with `left` and `right` also their eigenvectors, as columns.

    The results are complex. Eigenvectors have length 1, and the component with the largest absolute
    value is real; a left one is an eigenvector of the adjoint. Where eigenvalues are equal, the
    derivatives of their eigenvectors are nan, as for `Eigh`.
    """

    left: bool = False
    right: bool = False
    multiple_results = True
    rounding = Rounding(is_normwise=True)
    samples = (
        sample(f32[3, 3], left=True, right=True, values={0: _MATRIX}, dtypes=("f64", "f32")),
        sample(c64[1, 3, 3], right=True, values={0: _COMPLEX_MATRIX}, dtypes=("c128", "c64")),
        sample(f32[3, 3], values={0: _MATRIX}, dtypes=("f64", "f32")),
    )

    def abstract_eval(self, x: ShapedArray) -> Sequence[ShapedArray]:
        self.check(x)
        x = x.update(dtype=complex_dtype(x.dtype))
        return [x.update(shape=x.shape[:-1]), *[x] * (self.left + self.right)]

    def jvp(
        self, primals: Sequence[Value], tangents: Sequence[Value]
    ) -> tuple[Sequence[Value], Sequence[Tangent]]:
        (dx,) = tangents
        w, *lefts, right = Eig(self.left, True)(*primals)
        dx = dx if is_complex(dx.dtype) else cast_like(dx, right)
        rotation = solve(right, ops.matmul_highest(dx, right))
        outs, out_tangents = [w, *lefts], [ops.extract_diagonal(rotation)]
        for left in lefts:
            of_adjoint = solve(left, ops.matmul_highest(ops.adjoint(dx), left))
            out_tangents.append(eigenvector_tangent(ops.conj(w), left, of_adjoint))
        if self.right:
            outs.append(right)
            out_tangents.append(eigenvector_tangent(w, right, rotation))
        return outs, out_tangents

    def lower(self, ctx: LoweringContext, x: IRValue) -> Sequence[IRValue]:
        def eig(x: Value) -> Value | tuple[Value, ...]:
            outs = lax.linalg.eig(
                x, compute_left_eigenvectors=self.left, compute_right_eigenvectors=self.right
            )
            return tuple(outs) if len(outs) > 1 else outs[0]

        outs = ctx.via_jax(eig, x)
        return outs if self.left or self.right else [outs]


def eigenvector_tangent(w: Value, v: Value, rotation: Value) -> Value:
    """The tangent of the eigenvectors `v` for a tangent dx of the matrix, given v^-1 dx v.

    The multiple of a vector that it gains keeps its length, and its largest component real.
    """
    gaps = MaskedReciprocal.from_gaps(w, w).off_diagonal
    change = ops.matmul_highest(v, gaps.multiply_tangent(rotation))
    rows = v.ndim - 2
    along = ops.real(ops.reduce_sum(ops.mul(ops.conj(v), change), (rows,)))
    largest = ops.argmax(ops.abs(v), rows, np.int32)
    chosen = ops.eq(
        ops.broadcasted_iota(np.int32, v.shape, rows), ops.insert_matrix_dim(largest, v.shape, 2)
    )
    zero = literal(0, v.dtype)
    turned, scale = [ops.reduce_sum(ops.select(chosen, x, zero), (rows,)) for x in (change, v)]
    phase = ops.div(ops.imag(turned), ops.real(scale))
    gained = ops.neg(ops.complex(along, phase))
    return ops.add(change, ops.scale_columns(v, gained))
