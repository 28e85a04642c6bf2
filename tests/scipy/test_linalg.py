"""`functx.scipy.linalg` against JAX and SciPy, and derivatives at equal eigenvalues."""

import jax
import jax.scipy.linalg
import numpy as np
import pytest
import scipy.linalg as reference

import functx.numpy as xp
from functx import eval_shape, grad, hessian, jacfwd, jit, jvp, vmap
from functx.core.errors import FunctxError
from functx.scipy import linalg
from functx.testing import check_grads
from tests.numpy.matrix_calls import check_calls, operands

CALLS = """
np.block_diag(A, v, W, 2.0)
np.block_diag()
np.cho_factor(S)[0]
np.cho_factor(H, lower=True)[0]
np.cho_solve((H, True), c)
np.cho_solve((H, False), C)
np.cholesky(S + 0.01 * A)
np.cholesky(S + 0.01 * A, lower=True)
np.circulant(B[0])
np.companion(B[0])
np.convolution_matrix(w, 3)
np.convolution_matrix(w, 2, "same")
np.convolution_matrix(w, 7, "same")
np.convolution_matrix(W, 3, "valid")
np.det(B)
np.dft(5)
np.dft(4, "sqrtn")
np.dft(3, "n")
np.eigh(S)
np.eigh(S, eigvals_only=True)
np.expm(B)
np.expm(9 * A)
np.expm(C)
np.expm(A[:0, :0])
np.expm_frechet(A, S)
np.fiedler(B[0])
np.fiedler_companion(w)
np.fiedler_companion(B[0, :, :2])
np.fiedler_companion(D)
np.hadamard(4)
np.hankel(v, w)
np.hankel(W)
np.helmert(4)
np.helmert(3, full=True)
np.hessenberg(D)
np.hessenberg(C, calc_q=True)
np.hilbert(3)
np.inv(I)
np.invhilbert(4)
np.invpascal(4)
np.invpascal(3, "lower")
np.leslie(B[0], B[0, :, 1:])
np.lu(D)
np.lu(W, permute_l=True)
np.lu_factor(R)
np.lu_solve(np.lu_factor(A), v)
np.lu_solve(np.lu_factor(C), C, trans=2)
np.lu_solve(np.lu_factor(A), A, trans=1)
np.pascal(4)
np.pascal(3, "upper")
np.polar(A)
np.polar(W, side="left")
np.polar(R[0], method="svd")
np.qr(R)
np.qr(W, mode="economic")
np.qr(D, mode="r", pivoting=True)
np.qr_multiply(A, v)
np.qr_multiply(R[0], A, mode="left")
np.qr_multiply(C, C, conjugate=True, pivoting=True)
np.rsf2csf(*np.schur(A))[0].imag ** 2
np.schur(B)
np.solve(A, v)
np.solve(S, A, assume_a="pos")
np.solve(H, C, assume_a="pos", lower=True)
np.solve_triangular(A, v)
np.solve_triangular(C, C, trans="C", lower=True)
np.solve_triangular(C, c, trans=1, unit_diagonal=True)
np.sqrtm(A)
np.svd(S, compute_uv=False)
np.toeplitz(v)
np.toeplitz(c, w)
np.toeplitz(W, u)
"""
MATRICES = operands("float64")
JORDAN_BLOCK = np.diag([2.0] * 3) + np.diag([1.0] * 2, 1)


@pytest.mark.parametrize("dtype, tolerance", [("float64", 2e-6), ("float32", 2e-4)])
def test_results_are_those_of_jax(dtype, tolerance):
    check_calls(linalg, jax.scipy.linalg, CALLS, dtype, tolerance)


def near(found, wanted, tolerance=1e-10):
    np.testing.assert_allclose(found, wanted, atol=tolerance * max(1, np.abs(wanted).max()), rtol=0)


@pytest.mark.usefixtures("x64")
def test_results_are_those_of_scipy_where_jax_has_none_or_others():
    a, c, s, h = [MATRICES[name] for name in "ACSH"]
    for kind in (1, 2, 3):
        w, v = linalg.eigh(c + c.conj().T, h, type=kind)
        near(w, reference.eigh(c + c.conj().T, h, type=kind)[0])
        left = h if kind == 1 else np.eye(3)
        product = {1: c + c.conj().T, 2: (c + c.conj().T) @ h, 3: h @ (c + c.conj().T)}[kind]
        near(product @ v, (left @ v) * w)
    d, e = MATRICES["w"], MATRICES["v"]
    near(linalg.eigh_tridiagonal(d, e)[0], reference.eigh_tridiagonal(d, e)[0])
    selected = linalg.eigh_tridiagonal(d, e, select="i", select_range=(1, 2), eigvals_only=True)
    near(selected, reference.eigh_tridiagonal(d, e)[0][1:3])
    # Of complex diagonals, e is the upper one, as in JAX.
    e = (e + 1j * e[::-1]).astype("complex64")
    w, v = linalg.eigh_tridiagonal(d.astype("complex64"), e)
    near((np.diag(d) + np.diag(e, 1) + np.diag(e.conj(), -1)) @ v, v * w, 1e-6)
    near(linalg.logm(s), reference.logm(s))
    near(linalg.logm(np.stack([a, JORDAN_BLOCK])[1]), reference.logm(JORDAN_BLOCK))
    near(linalg.pascal(20), reference.pascal(20), 1e-6)
    near(
        linalg.solve_sylvester(a, s[:2, :2], a[:, :2]),
        reference.solve_sylvester(a, s[:2, :2], a[:, :2]),
    )
    assert np.isnan(linalg.solve_sylvester(a, -a, s)).all()
    t, z = linalg.rsf2csf(*linalg.schur(a))
    near(z @ t @ z.conj().T, a)
    for side in ("left", "right"):
        for x in (MATRICES["W"], MATRICES["R"][0]):
            for g, w in zip(linalg.polar(x, side), reference.polar(x, side), strict=True):
                near(g, w)


@pytest.mark.usefixtures("x64")
def test_functions_of_matrices_with_equal_close_and_too_few_eigenvectors():
    random = np.random.RandomState(3)
    basis = random.randn(6, 6)
    diagonals = {
        "distinct": np.diag([1.0, 2, 3, -1, 0.5, -2]),
        "equal": np.diag([1.0, 1, 3, 3, 3, -2]),
        "close": np.diag([1.0, 1.001, 1.002, 3, 3.00001, -2]),
        "defective": np.diag([1.0, 1, 1, 3, 3, -2]) + np.diag([1.0, 1, 0, 0.5, 0], 1),
        "interleaved": np.diag([1.0, 3, 1, 3, 1, 3]) + np.diag([0.5, 0.7, 0.2, 0.1, 0.4], 1),
    }
    matrices = np.stack([basis @ d @ np.linalg.inv(basis) for d in diagonals.values()])
    found = linalg.funm(matrices, xp.exp)
    for g, x in zip(found, matrices, strict=True):
        near(g, reference.expm(x), 1e-8)
    # A Jordan block needs as many derivatives as it has rows, unless they become small.
    block = np.diag([2.0] * 14) + np.diag([1.0] * 13, 1)
    near(linalg.funm(block, xp.exp), reference.expm(block), 1e-9)
    assert np.isnan(linalg.funm(block, lambda x: 1 / (x - 1.5))).all()
    assert linalg.funm(np.zeros((0, 0)), xp.exp).shape == (0, 0)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (2, 0, 3)])
def test_lu_factors_without_elements_have_derivatives(shape):
    x = np.zeros(shape)
    _, tangents = eval_shape(lambda x: jvp(linalg.lu, (x,), (x,)), x)
    assert [t.shape for t in tangents] == [f.shape for f in linalg.lu(x)]


def difference(f, x, t, step=1e-5):
    return (np.asarray(f(x + step * t)) - np.asarray(f(x - step * t))) / (2 * step)


@pytest.mark.usefixtures("x64")
def test_derivatives_of_functions_of_matrices_at_equal_eigenvalues():
    positive = MATRICES["S"]

    @jit
    def all_of_them(a, scale):
        return [
            linalg.expm(a),
            linalg.logm(a).real,
            linalg.sqrtm(a).real,
            linalg.funm(a, lambda x: xp.sin(scale * x)).real,
        ]

    for a in (np.eye(3), JORDAN_BLOCK, positive):
        check_grads(all_of_them, (a, 0.7), order=1)
    second = jit(hessian(lambda a: linalg.funm(a, xp.exp).real[0].sum()))
    exact = jit(hessian(lambda a: linalg.expm(a)[0].sum()))
    for a in (np.eye(2), JORDAN_BLOCK[:2, :2]):
        near(second(a), exact(a), 1e-8)
    near(jit(jacfwd(linalg.expm))(np.zeros((2, 2)))[0, 1], [[0, 1], [0, 0]])


@pytest.mark.usefixtures("x64")
def test_derivatives_of_systems_and_decompositions():
    m = MATRICES

    def all_of_them(a, s, d, e, v):
        return [
            linalg.solve_sylvester(s, a @ a.T, a),
            linalg.cho_solve(linalg.cho_factor(s), v),
            linalg.lu_solve(linalg.lu_factor(a), v, trans=1),
            linalg.solve(s, v, assume_a="pos"),
            linalg.eigh(a, s, eigvals_only=True),
            linalg.eigh_tridiagonal(d, e, eigvals_only=True),
            linalg.polar(a),
            linalg.hessenberg(a, calc_q=True),
            linalg.qr_multiply(a, s)[0],
            linalg.toeplitz(v),
            linalg.companion(v),
        ]

    check_grads(jit(all_of_them), (m["A"], m["S"], m["w"], m["v"], m["v"]), order=1)


@pytest.mark.usefixtures("x64")
def test_a_batch_of_gradients_is_that_of_each_matrix():
    f = grad(lambda a, t: linalg.funm(a, lambda x: xp.exp(t * x)).real.sum() + linalg.expm(a).sum())
    matrices, times = np.stack([np.eye(2), JORDAN_BLOCK[:2, :2]]), np.array([0.5, 1.0])
    found = jit(vmap(f))(matrices, times)
    for k in range(2):
        near(found[k], jit(f)(matrices[k], times[k]))


def test_large_and_undefined_matrices_give_nan():
    assert np.isnan(linalg.expm(np.full((2, 2), 1e9, "f"))).all()
    assert np.isnan(linalg.expm(np.array([[np.nan, 0], [0, 0]], "f"))).any()
    assert np.isnan(linalg.sqrtm(np.array([[0.0, 1], [0, 0]], "f"))).any()
    near(linalg.sqrtm(np.zeros((2, 2), "f")), np.zeros((2, 2)))


def test_mistakes_are_refused():
    a, v = np.eye(3, dtype="f"), np.ones(3, "f")
    for call in (
        lambda: linalg.cho_solve((a, True), np.ones(4, "f")),
        lambda: linalg.companion(np.ones(1)),
        lambda: linalg.convolution_matrix(v, 0),
        lambda: linalg.dft(3, "m"),
        lambda: linalg.eigh(a, type=4),
        lambda: linalg.eigh_tridiagonal(v, v),
        lambda: linalg.expm(np.ones((2, 3))),
        lambda: linalg.expm_frechet(a, np.eye(2)),
        lambda: linalg.funm(a, lambda x: xp.stack([x, x])),
        lambda: linalg.hadamard(3),
        lambda: linalg.hankel(1.0),
        lambda: linalg.helmert(0),
        lambda: linalg.leslie(v, v),
        lambda: linalg.lu_solve(linalg.lu_factor(a), v, trans=3),
        lambda: linalg.pascal(3, "odd"),
        lambda: linalg.polar(a, side="top"),
        lambda: linalg.qr(a, mode="raw"),
        lambda: linalg.qr_multiply(a, np.ones(4)),
        lambda: linalg.schur(a, output="both"),
        lambda: linalg.solve(a, v, assume_a="odd"),
        lambda: linalg.solve_sylvester(a, a, np.ones((2, 3))),
        lambda: linalg.solve_triangular(a, v, trans=3),
        lambda: linalg.sqrtm(a, blocksize=2),
    ):
        with pytest.raises(FunctxError):
            call()
