"""Functions of matrices, and Fourier transforms."""

# ruff: noqa: N802 - functions are named as the classes whose meaning they are

from __future__ import annotations

import numpy as np

from functx.testing.reference.meanings import REFERENCE_RULES, reference_rule, subprogram_rule
from functx.transforms.spectral.functions import elementwise_derivative


@reference_rule
def Fft(x, ndim, inverse):
    return (np.fft.ifftn if inverse else np.fft.fftn)(x, axes=range(-ndim, 0))


def adjoint(x):
    return np.conj(np.swapaxes(x, -1, -2))


@reference_rule
def TriangularSolve(a, b, lower_triangle, transposed, conjugated, unit):
    a = np.tril(a) if lower_triangle else np.triu(a)
    if unit:
        a = np.where(np.eye(a.shape[-1], dtype=bool), 1, a)
    a = np.swapaxes(a, -1, -2) if transposed else a
    a = np.conj(a) if conjugated else a
    rows = range(a.shape[-1])
    out = np.zeros_like(b)
    for i in rows if lower_triangle != transposed else reversed(rows):
        carried = np.einsum("...j,...jk->...k", a[..., i, :], out)
        out[..., i, :] = (b[..., i, :] - carried) / a[..., i, i, None]
    return out


@reference_rule
def Solve(a, b, transposed):
    return np.linalg.solve(np.swapaxes(a, -1, -2) if transposed else a, b)


@reference_rule
def Cofactors(x):
    rows = range(x.shape[-1])
    minors = [[np.delete(np.delete(x, i, -2), j, -1) for j in rows] for i in rows]
    found = [[(-1) ** (i + j) * np.linalg.det(minors[i][j]) for j in rows] for i in rows]
    return np.moveaxis(np.array(found), (0, 1), (-2, -1))


def eigendecomposition(a, rows):
    """The eigenvalues and eigenvectors of Hermitian matrices, or of [[0, x], [x^H, 0]]."""
    if not rows:
        return np.linalg.eigh((a + adjoint(a)) / 2)
    u, s, vh = np.linalg.svd(a[..., :rows, rows:])
    k, left, right = s.shape[-1], np.swapaxes(u, -1, -2), vh.conj()
    both = [
        np.concatenate([left[..., :k, :], x], -1) for x in (right[..., :k, :], -right[..., :k, :])
    ]
    zeros = [
        np.zeros((*x.shape[:-2], x.shape[-2] - k, y.shape[-1]))
        for x, y in ((left, right), (right, left))
    ]
    beyond = [
        np.concatenate([left[..., k:, :], zeros[0]], -1) * 2**0.5,
        np.concatenate([zeros[1], right[..., k:, :]], -1) * 2**0.5,
    ]
    vectors = np.concatenate([*both, *beyond], -2) / 2**0.5
    values = np.concatenate([s, -s, np.zeros((*s.shape[:-1], vectors.shape[-2] - 2 * k))], -1)
    return values, np.swapaxes(vectors, -1, -2)


@subprogram_rule
def SpectralFunction(run, a, *others, program, rows, order):
    w, v = eigendecomposition(a, rows)
    f, slopes, curvatures = [
        run(p, [w, *others[order:]])[0]
        for p in (
            program,
            elementwise_derivative(program),
            elementwise_derivative(elementwise_derivative(program)),
        )
    ]
    turned = [adjoint(v) @ e @ v for e in others[:order]]
    if order == 0:
        return (v * f[..., None, :]) @ adjoint(v)
    gaps = w[..., None, :] - w[..., None]
    near = np.abs(gaps) < 1e-6 * np.abs(w).max(-1)[..., None, None]
    apart = np.where(near, 1, gaps)
    first = np.where(near, slopes[..., None], (f[..., None, :] - f[..., None]) / apart)
    if order == 1:
        return v @ (first * turned[0]) @ adjoint(v)
    twice = np.where(near, curvatures[..., None] / 2, (first - slopes[..., None]) / apart)
    changes = (first[..., None, :, :] - first[..., None]) / apart[..., :, None, :]
    second = np.where(near[..., :, None, :], twice[..., None], changes)
    return v @ np.einsum("...ikj,...ik,...kj->...ij", second, *turned) @ adjoint(v)


@subprogram_rule
def SpectralTrace(run, a, *parameters, program, rows):
    return run(program, [eigendecomposition(a, rows)[0], *parameters])[0].sum(-1)


REFERENCE_RULES |= {
    "Cholesky": lambda x: np.linalg.cholesky((x + adjoint(x)) / 2),
    "Det": np.linalg.det,
    "Eigh": lambda x: np.linalg.eigh((x + adjoint(x)) / 2),
    "Slogdet": np.linalg.slogdet,
    "Svd": lambda x, full: np.linalg.svd(x, full_matrices=full),
    "Undefined": lambda which, x: np.where(which & (x != 0), np.nan, x),
}
