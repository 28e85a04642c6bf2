"""Functions of matrices, and Fourier transforms."""

# ruff: noqa: N802 - functions are named as the classes whose meaning they are

from __future__ import annotations

import numpy as np

from functx.testing.reference.meanings import MEANING, meaning


@meaning
def Fft(x, ndim, inverse):
    return (np.fft.ifftn if inverse else np.fft.fftn)(x, axes=range(-ndim, 0))


def adjoint(x):
    return np.conj(np.swapaxes(x, -1, -2))


@meaning
def TriangularSolve(a, b, lower_triangle, transposed, conjugated, unit):
    a = np.tril(a) if lower_triangle else np.triu(a)
    if unit:
        a = np.where(np.eye(a.shape[-1], dtype=bool), 1, a)
    a = np.swapaxes(a, -1, -2) if transposed else a
    return np.linalg.solve(np.conj(a) if conjugated else a, b)


@meaning
def Solve(a, b, transposed):
    return np.linalg.solve(np.swapaxes(a, -1, -2) if transposed else a, b)


@meaning
def Cofactors(x):
    rows = range(x.shape[-1])
    minors = [[np.delete(np.delete(x, i, -2), j, -1) for j in rows] for i in rows]
    found = [[(-1) ** (i + j) * np.linalg.det(minors[i][j]) for j in rows] for i in rows]
    return np.moveaxis(np.array(found), (0, 1), (-2, -1))


MEANING |= {
    "Cholesky": lambda x: np.linalg.cholesky((x + adjoint(x)) / 2),
    "Det": np.linalg.det,
    "Eigh": lambda x: np.linalg.eigh((x + adjoint(x)) / 2),
    "Slogdet": np.linalg.slogdet,
    "Svd": lambda x: np.linalg.svd(x, full_matrices=False),
}
