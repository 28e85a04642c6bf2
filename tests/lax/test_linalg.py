"""`functx.lax.linalg` against `jax.lax.linalg`, and derivatives that JAX does not have."""

import jax
import numpy as np
import pytest

import functx
from functx import grad, jit, jvp, lax, vmap
from functx.core.errors import FunctxError
from functx.testing import check_grads
from tests.numpy.matrix_calls import check_calls, operands

CALLS = """
np.cholesky(H)
np.cholesky(S + 0.01 * A, symmetrize_input=False)
np.cholesky_update(A, v)
np.eig(B)
np.eig(C, compute_left_eigenvectors=False)
np.eig(A, compute_left_eigenvectors=False, compute_right_eigenvectors=False)
np.eigh(H)
np.eigh(A, symmetrize_input=False)
np.hessenberg(D)
np.hessenberg(C)
np.householder_product(R, B[:, 0])
np.householder_product(C, c[:2])
np.ormqr(D, w, R[0])
np.ormqr(C, c[:2], C, transpose=True)
np.ormqr(C, c, C, left=False)
np.ormqr(B, B[:, 0], B, left=False, transpose=True)
np.lu(R)
np.lu(W)
np.lu(C)
np.lu_pivots_to_permutation(np.lu(R)[1], 5)
np.qr(R)
np.qr(W, full_matrices=False)
np.qr(C, pivoting=True)
np.schur(B)
np.schur(C, compute_schur_vectors=False)
np.svd(R, compute_uv=False)
np.symmetric_product(W, A[:2, :2] + A[:2, :2].T, alpha=2.0, beta=0.5, symmetrize_output=True)
np.triangular_solve(B, R[:, :2])
np.triangular_solve(C, C, left_side=True, lower=True, transpose_a=True, conjugate_a=True)
np.triangular_solve(C, C, conjugate_a=True, unit_diagonal=True)
np.triangular_solve(C, C, transpose_a=True)
np.triangular_solve(B, A[:2], left_side=True)
np.tridiagonal(S)
np.tridiagonal(H, lower=False)
np.tridiagonal_solve(B[:, 0], 9 + B[:, 1], B[:, 2], B)
np.tridiagonal_solve(c, 9 + c, c, C)
"""
MATRICES = operands("float64")
pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-9), ("float32", 1e-4)])
def test_results_are_those_of_jax(dtype, tolerance):
    check_calls(lax.linalg, jax.lax.linalg, CALLS, dtype, tolerance)


def test_the_polar_iteration_converges_as_that_of_jax_and_has_derivatives():
    x = MATRICES["R"][0]
    found, wanted = jit(lax.linalg.qdwh)(x), jax.jit(jax.lax.linalg.qdwh)(x)
    for g, w in zip(found, wanted, strict=True):
        np.testing.assert_allclose(g, w, atol=1e-12)
    equal = grad(lambda x: (lax.linalg.qdwh(x)[0] * MATRICES["A"]).sum())(np.eye(3))
    skew = (MATRICES["A"] - MATRICES["A"].T) / 2
    np.testing.assert_allclose(equal, skew, atol=1e-12)


def test_derivatives_match_differences():
    names = ["A", "D", "R", "S", "W", "v", "w"]
    real = np.array([[1.0, 2.0, 0.5], [0.5, -1.0, 1.0], [-0.5, 0.2, 3.0]])

    def all_of_them(a, d, r, s, w, v, four, real):
        return [
            lax.linalg.cholesky_update(s, v),
            lax.linalg.householder_product(r[0], v),
            lax.linalg.ormqr(d, four, r[0]),
            lax.linalg.lu(w)[0],
            lax.linalg.schur(real),
            [abs(y) ** 2 for y in lax.linalg.eig(a)],
            abs(lax.linalg.schur(real + 0.3j * a)[0]),
            lax.linalg.qr(r[0], pivoting=True)[1],
            lax.linalg.triangular_solve(s, a),
            lax.linalg.symmetric_product(w, s[:2, :2]),
        ]

    # One program for all, since compilation takes most of the time.
    check_grads(jit(all_of_them), (*[MATRICES[name] for name in names], real), order=1)


def test_derivatives_of_a_schur_form_with_blocks_or_equal_eigenvalues_are_undefined():
    turn = np.array([[1.0, 2.0], [-2.0, 1.0]])
    for x in (turn, 2 * np.eye(2)):
        _, (_, dz) = jvp(lax.linalg.schur, (x,), (np.array([[0.0, 1.0], [1.0, 0.5]]),))
        assert np.isnan(dz).any()


def test_a_reflector_of_a_batch_within_vmap_of_grad():
    def loss(x, tau):
        return (lax.linalg.householder_product(x, tau) ** 2).sum()

    x, tau = MATRICES["R"], MATRICES["B"][:, 0]
    found = jit(vmap(grad(loss)))(x, tau)
    np.testing.assert_allclose(found[1], grad(loss)(x[1], tau[1]))


def test_mistakes_are_refused():
    m = MATRICES
    for call in (
        lambda: lax.linalg.cholesky(m["W"]),
        lambda: lax.linalg.cholesky_update(m["A"], m["w"]),
        lambda: lax.linalg.eig(m["A"], implementation="lapack"),
        lambda: lax.linalg.eigh(m["S"], subset_by_index=(0, 9)),
        lambda: lax.linalg.lu(m["v"]),
        lambda: lax.linalg.lu_pivots_to_permutation(np.array([0, 1, 2], "i"), 2),
        lambda: lax.linalg.ormqr(m["D"], m["w"], m["A"]),
        lambda: lax.linalg.qdwh(m["W"]),
        lambda: lax.linalg.schur(m["A"], sort_eig_vals=True),
        lambda: lax.linalg.triangular_solve(m["A"], m["w"]),
        lambda: lax.linalg.tridiagonal_solve(m["v"], m["v"], m["w"], m["A"]),
        lambda: functx.lax.linalg.qr(np.ones((2, 2), "i")),
    ):
        with pytest.raises(FunctxError):
            call()
