"""NumPy definitions of products, convolutions, attention and functions of matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.linalg

from functx import ops
from functx.core.program import Program
from functx.core.typing import Function
from functx.nn import attention
from functx.ops import convolution
from functx.testing.reference.interpreter import (
    Array,
    Run,
    numpy_definition,
    runs_subprograms,
    takes_primitive,
)
from functx.transforms.spectral_functions import elementwise_derivative

# ruff: noqa: N802 - a definition has the name of the primitive class


@takes_primitive
def DotGeneral(dot: ops.DotGeneral, x: Array, y: Array) -> Array:
    if dot.preferred_element_type is not None and x.dtype.kind in "iu":
        x, y = x.astype(dot.preferred_element_type), y.astype(dot.preferred_element_type)
    letters = iter("abcdefghijklmnop")
    left, right = [""] * x.ndim, [""] * y.ndim
    for i, j in (*zip(*dot.batch_dims, strict=True), *zip(*dot.contracting_dims, strict=True)):
        left[i] = right[j] = next(letters)
    batch = "".join([left[i] for i in dot.batch_dims[0]])
    free = ["", ""]
    for k, labels in enumerate((left, right)):
        for i, label in enumerate(labels):
            if not label:
                labels[i] = next(letters)
                free[k] += labels[i]
    return np.einsum(f"{''.join(left)},{''.join(right)}->{batch}{free[0]}{free[1]}", x, y)


@takes_primitive
def Convolution(conv: convolution.Convolution, x: Array, k: Array) -> Array:
    window, layouts, groups = conv.window, conv.layouts, conv.groups
    x, k = np.transpose(x, layouts.array), np.transpose(k, layouts.kernel)
    (n, c), (o, i), space = x.shape[:2], k.shape[:2], x.shape[2:]
    widths = [
        (low, max((size - 1) * hole + 1, 0), high)
        for size, hole, (low, high) in zip(space, window.base_dilation, window.padding, strict=True)
    ]
    around = [max(low, 0) + size + max(high, 0) for low, size, high in widths]
    wide = np.zeros((n, c, *around), x.dtype)
    places = [
        np.s_[max(low, 0) : max(low, 0) + size : hole]
        for (low, size, _), hole in zip(widths, window.base_dilation, strict=True)
    ]
    wide[(np.s_[:], np.s_[:], *places)] = x
    cut = [
        np.s_[max(-low, 0) : end - max(-high, 0)]
        for (low, _, high), end in zip(widths, around, strict=True)
    ]
    wide = wide[(np.s_[:], np.s_[:], *cut)]
    out = np.zeros((n // groups.batch, o, *window.result_shape(space)), x.dtype)
    for at in np.ndindex(*out.shape):
        b, channel, *place = at
        group = channel // (o // (groups.channels * groups.batch))
        lane = b + (group * out.shape[0] if groups.batch > 1 else 0)
        first = group * i if groups.channels > 1 else 0
        rows = [
            np.s_[p * stride : p * stride + (size - 1) * apart + 1 : apart]
            for p, stride, size, apart in zip(
                place, window.strides, window.sizes, window.window_dilation, strict=True
            )
        ]
        out[at] = (wide[(lane, np.s_[first : first + i], *rows)] * k[channel]).sum()
    return np.transpose(out, np.argsort(layouts.out))


def attention_scores(op: attention.AttentionBase, operands: AttentionOperands) -> Array:
    """The scores of attention, (B, K, T, G, S); -inf where a key is masked."""
    q, k, _, bias, mask, _ = operands
    s = np.einsum("btkgh,bskh->bktgs", q, k) * op.scale + (0 if bias is None else bias)
    rows, columns = np.arange(q.shape[1])[:, None, None], np.arange(k.shape[1])
    left, right = op.window or (len(columns) + len(rows),) * 2
    visible = (columns >= rows - left) & (columns <= (rows if op.causal else rows + right))
    return np.where(visible & (True if mask is None else mask), s, -np.inf)


def attention_weights(s: Array) -> tuple[Array, Array]:
    """The softmax of scores, and the logarithms of the sums of their exponentials."""
    maximum = s.max(-1, initial=-np.inf, keepdims=True)
    shift = np.where(maximum == -np.inf, 0, maximum)
    exponentials = np.exp(s - shift)
    sums = exponentials.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return exponentials / np.where(sums == 0, 1, sums), (np.log(sums) + shift)[..., 0]


AttentionOperands = tuple[Array, Array, Array, Array | None, Array | None, list[Array]]
"""The operands of attention: queries, keys, values, bias or None, mask or None, residuals."""


def attention_operands(op: attention.AttentionBase, args: Sequence[Array]) -> AttentionOperands:
    q, k, v, *residuals = args
    bias = residuals.pop(0) if op.biased else None
    mask = residuals.pop(0) if op.masked else None
    return q, k, v, bias, mask, residuals


@takes_primitive
def DotProductAttention(op: attention.DotProductAttention, *args: Array) -> tuple[Array, Array]:
    operands = attention_operands(op, args)
    weights, logs = attention_weights(attention_scores(op, operands))
    return np.einsum("bktgs,bskv->btkgv", weights, operands[2]), logs


@takes_primitive
def DotProductAttentionBackward(op: attention.AttentionBase, *args: Array) -> list[Array]:
    operands = attention_operands(op, args)
    q, k, v, bias, _, (logs, products, ct) = operands
    s, scale = attention_scores(op, operands), op.scale
    p = np.where(s == -np.inf, 0, np.exp(s - logs[..., None]))
    ds = p * (np.einsum("btkgv,bskv->bktgs", ct, v) - products[..., None])
    cotangents = [
        np.einsum("bktgs,bskh->btkgh", ds, k) * scale,
        np.einsum("bktgs,btkgh->bskh", ds, q) * scale,
        np.einsum("bktgs,btkgv->bskv", p, ct),
    ]
    if bias is not None:
        axes = tuple(i for i, n in enumerate(bias.shape) if n == 1)
        cotangents.append(ds.sum(axes, keepdims=True))
    return cotangents


def adjoint(x: Array) -> Array:
    """The conjugate transpose."""
    return np.conj(np.swapaxes(x, -1, -2))


@takes_primitive
def TriangularSolve(solve: ops.TriangularSolve, a: Array, b: Array) -> Array:
    a = np.tril(a) if solve.lower_triangle else np.triu(a)
    if solve.unit_diagonal:
        a = np.where(np.eye(a.shape[-1], dtype=bool), 1, a)
    a = np.swapaxes(a, -1, -2) if solve.transposed else a
    a = np.conj(a) if solve.conjugated else a
    rows = range(a.shape[-1])
    out = np.zeros_like(b)
    for i in rows if solve.lower_triangle != solve.transposed else reversed(rows):
        known_terms = np.einsum("...j,...jk->...k", a[..., i, :], out)
        out[..., i, :] = (b[..., i, :] - known_terms) / a[..., i, i, None]
    return out


def BalancedCofactors(x: Array) -> Array:
    rows = range(x.shape[-1])
    minors = [[np.delete(np.delete(x, i, -2), j, -1) for j in rows] for i in rows]
    cofactors = [[(-1) ** (i + j) * np.linalg.det(minors[i][j]) for j in rows] for i in rows]
    return np.moveaxis(np.array(cofactors), (0, 1), (-2, -1))


def Cofactors(x: Array) -> Array:
    return BalancedCofactors(x)


def eigendecomposition(a: Array, rows: int) -> Array | tuple[Array, Array]:
    """The eigenvalues and eigenvectors of Hermitian matrices, or of [[0, x], [x^H, 0]]."""
    if not rows:
        return np.linalg.eigh((a + adjoint(a)) / 2)
    u, s, vh = np.linalg.svd(a[..., :rows, rows:])
    k, left, right = s.shape[-1], np.swapaxes(u, -1, -2), vh.conj()
    paired = [
        np.concatenate([left[..., :k, :], x], -1) for x in (right[..., :k, :], -right[..., :k, :])
    ]
    zeros = [
        np.zeros((*x.shape[:-2], x.shape[-2] - k, y.shape[-1]))
        for x, y in ((left, right), (right, left))
    ]
    unpaired = [
        np.concatenate([left[..., k:, :], zeros[0]], -1) * 2**0.5,
        np.concatenate([zeros[1], right[..., k:, :]], -1) * 2**0.5,
    ]
    vectors = np.concatenate([*paired, *unpaired], -2) / 2**0.5
    values = np.concatenate([s, -s, np.zeros((*s.shape[:-1], vectors.shape[-2] - 2 * k))], -1)
    return values, np.swapaxes(vectors, -1, -2)


def pairwise(operation: Function, x: Array) -> Array:
    """`operation(x_j, x_i)` in row i and column j."""
    return operation(x[..., None, :], x[..., None])


def divided_differences(
    w: Array, f: Array, slopes: Array, curvatures: Array
) -> tuple[Array, Array]:
    """f[w_i, w_j] at [i, j] and f[w_i, w_k, w_j] at [i, k, j], from f and its derivatives at w.

    They are quotients, or means of derivatives for points so close that these are more precise:
    the trapezoidal rule with its correction by curvatures, and the mean of three curvatures. They
    are nan for points that are equal up to rounding where f differs.
    """
    gaps, changes, size = pairwise(np.subtract, w), pairwise(np.subtract, f), np.abs(w)
    corrections = np.where(gaps == 0, 0, gaps * pairwise(np.subtract, curvatures) / 12)
    means = pairwise(np.add, slopes) / 2 - corrections
    agree = np.abs(changes - gaps * means) <= 1e-5 * pairwise(
        np.add, np.abs(f) + np.abs(w * slopes)
    )
    rounding = 8 * w.shape[-1] * np.finfo(float).eps * size.max(-1)[..., None, None]
    agree &= np.abs(gaps) <= np.maximum(rounding, pairwise(np.maximum, size) / 100)
    same = (gaps == 0) & (changes == 0)
    # Means have relative errors of the order of `limit` squared, and of `limit`.
    close, very_close = [
        same | (agree & (np.abs(corrections) <= limit * pairwise(np.add, np.abs(slopes))))
        for limit in (1e-7, 1e-11)
    ]
    tied = np.abs(gaps) <= rounding
    first = np.where(close, means, np.where(tied, np.nan, changes / np.where(close, 1, gaps)))
    # Each triple is divided by the largest of its three gaps.
    triples = (*w.shape, w.shape[-1], w.shape[-1])
    ij, ik, kj = [
        lambda x, axis=axis: np.broadcast_to(np.expand_dims(x, axis), triples)
        for axis in (-2, -1, -3)
    ]
    widest = np.argmax([np.abs(pair(gaps)) for pair in (ij, ik, kj)], 0)
    changes = np.choose(
        widest, [kj(first) - ik(first), kj(first) - ij(first), ij(first) - ik(first)]
    )
    gaps, very_close = [
        np.choose(widest, [pair(x) for pair in (ij, ik, kj)]) for x in (gaps, very_close)
    ]
    sums = (
        curvatures[..., None, None]
        + curvatures[..., None, :, None]
        + curvatures[..., None, None, :]
    )
    return first, np.where(very_close, sums / 6, changes / np.where(very_close, 1, gaps))


@runs_subprograms
def SpectralFunction(
    run: Run, a: Array, *others: Array, program: Program, rows: int, order: int
) -> Array:
    w, v = eigendecomposition(a, rows)
    f, first_derivatives, second_derivatives = [
        run(p, [w, *others[order:]])[0]
        for p in (
            program,
            elementwise_derivative(program),
            elementwise_derivative(elementwise_derivative(program)),
        )
    ]
    rotated = [adjoint(v) @ e @ v for e in others[:order]]
    if order == 0:
        return (v * f[..., None, :]) @ adjoint(v)
    first, second = divided_differences(w, f, first_derivatives, second_derivatives)
    if order == 1:
        return v @ (first * rotated[0]) @ adjoint(v)
    return v @ np.einsum("...ikj,...ik,...kj->...ij", second, *rotated) @ adjoint(v)


@runs_subprograms
def SpectralTrace(run: Run, a: Array, *parameters: Array, program: Program, rows: int) -> Array:
    return run(program, [eigendecomposition(a, rows)[0], *parameters])[0].sum(-1)


def Cholesky(x: Array) -> Array:
    return np.linalg.cholesky((x + adjoint(x)) / 2)


def Lu(x: Array) -> tuple[Array, Array, Array]:
    lu, (m, n) = x.copy(), x.shape[-2:]
    pivots = np.zeros((*x.shape[:-2], min(m, n)), np.int32)
    permutation = np.broadcast_to(np.arange(m, dtype=np.int32), x.shape[:-1]).copy()
    for at in np.ndindex(*x.shape[:-2]):
        a, order = lu[at], permutation[at]
        for k in range(min(m, n)):
            j = k + int(np.argmax(np.abs(a[k:, k].real) + np.abs(a[k:, k].imag)))
            a[[k, j]], order[[k, j]], pivots[(*at, k)] = a[[j, k]], order[[j, k]], j
            a[k + 1 :, k] /= a[k, k]
            a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return lu, pivots, permutation


def Qr(x: Array, full_matrices: bool, pivoting: bool) -> tuple[Array, ...]:
    mode = "full" if full_matrices else "economic"
    parts = [
        scipy.linalg.qr(a, mode=mode, pivoting=pivoting, check_finite=False)
        for a in x.reshape(-1, *x.shape[-2:])
    ]
    outs = [
        np.stack(part).reshape(*x.shape[:-2], *part[0].shape) for part in zip(*parts, strict=True)
    ]
    return (*outs[:2], *[order.astype(np.int32) for order in outs[2:]])


def _by_lapack(routine: str, x: Array) -> tuple[Array, Array]:
    """The packed matrices and factors that a LAPACK routine gives for each matrix."""
    (function,) = scipy.linalg.lapack.get_lapack_funcs((routine,), (x,))
    options = {} if routine == "geqrf" else {"lower": 1} if routine.endswith("trd") else {}
    results = [function(a, **options) for a in x.reshape(-1, *x.shape[-2:])]
    taus = np.stack([result[-3 if routine == "geqrf" else -2] for result in results])
    packed = np.stack([result[0] for result in results]).reshape(x.shape)
    return packed, taus.reshape(*x.shape[:-2], -1)


def Geqrf(x: Array) -> tuple[Array, Array]:
    return _by_lapack("geqrf", x)


def Hessenberg(x: Array) -> tuple[Array, Array]:
    return _by_lapack("gehrd", x)


def Tridiagonal(x: Array) -> tuple[Array, Array]:
    return _by_lapack("hetrd" if x.dtype.kind == "c" else "sytrd", x)


def SolveSylvester(a: Array, b: Array, c: Array, tol: float) -> Array:
    batch = c.shape[:-2]
    flat = [x.reshape(-1, *x.shape[-2:]) for x in (a, b, c)]
    found = [scipy.linalg.solve_sylvester(*each) for each in zip(*flat, strict=True)]
    return np.stack(found).reshape(*batch, *c.shape[-2:])


def Expm(a: Array, upper_triangular: bool, max_squarings: int) -> Array:
    return scipy.linalg.expm(a)


def _of_each(function: Function, a: Array) -> Array:
    found = [function(x) for x in a.reshape(-1, *a.shape[-2:])]
    return np.stack(found).reshape(a.shape).astype(a.dtype)


def Sqrtm(a: Array) -> Array:
    return _of_each(scipy.linalg.sqrtm, a)


def Logm(a: Array) -> Array:
    return _of_each(scipy.linalg.logm, a)


@runs_subprograms
def Funm(run: Run, a: Array, *parameters: Array, program: Program) -> Array:
    # Cauchy's integral along a circle around the eigenvalues, for functions without singularities.
    n, nodes = a.shape[-1], np.exp(2j * np.pi * np.arange(64) / 64)
    center = np.trace(a, axis1=-2, axis2=-1)[..., None] / n
    radius = 1 + 1.5 * np.abs(np.linalg.eigvals(a) - center).max(-1, keepdims=True)
    z = center + radius * nodes
    values = run(program, [z, *[p[..., None] for p in parameters]])[0]
    resolvents = np.linalg.inv(z[..., None, None] * np.eye(n) - a[..., None, :, :])
    return np.einsum("...k,...kij->...ij", values * radius * nodes / len(nodes), resolvents)


@runs_subprograms
def FrechetDerivative(
    run: Run, a: Array, e: Array, *others: Array, function: ops.MatrixFunction
) -> Array:
    n, define = a.shape[-1], numpy_definition(function, run)
    assert define is not None
    block = np.block([[a, e], [np.zeros_like(a), a]])
    return define(block, *others)[..., :n, n:]
