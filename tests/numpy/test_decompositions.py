"""Decompositions, least squares and what follows from them, against JAX, NumPy and differences."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx import grad, hessian, jacfwd, jacrev, jit, vmap
from functx.core.errors import FunctxError
from functx.testing import check_grads
from tests.numpy.matrix_calls import check_calls

CALLS = """
np.cond(A)
np.cond(B, p=-2)
np.cond(A, p=1)
np.cond(A, "fro")
np.cond(I)
np.cond(R)
np.cross(v, B[0])
np.cross(A.T, B, axis=-2)
np.diagonal(B)
np.diagonal(R, offset=-1)
np.trace(B)
np.trace(I, offset=1)
np.trace(I, dtype="float32")
np.eigvals(C)
np.eigvals(A)
np.eig(B)
np.eig(I)
np.lstsq(R[0], w)
np.lstsq(R[0], R[1])
np.lstsq(W, u)
np.lstsq(W, u, rcond=0.5)
np.lstsq(R[0], w, rcond=-1)
np.lstsq(N, N[:, 0])
np.matrix_norm(B)
np.matrix_norm(B, ord="nuc", keepdims=True)
np.matrix_norm(I, ord=1)
np.matrix_rank(B)
np.matrix_rank(Z)
np.matrix_rank(S, hermitian=True)
np.matrix_rank(v)
np.matrix_rank(0 * A)
np.matrix_transpose(B)
np.matrix_power(A, -2)
np.outer(I[0], v)
np.pinv(R)
np.pinv(C)
np.pinv(W)
np.pinv(S, hermitian=True)
np.pinv(H, hermitian=True)
np.pinv(Z)
np.pinv(A, rtol=0.5)
np.pinv(B, rcond=u * u)
np.pinv(N)
np.qr(A)
np.qr(R)
np.qr(R, mode="complete")
np.qr(W, mode="r")
np.qr(R, mode="raw")
np.qr(C, mode="raw")
np.qr(C)
np.qr(I)
np.tensordot(A, B, axes=([0], [1]))
np.tensorinv(T)
np.tensorinv(A, ind=1)
np.tensorsolve(T, B[:, 0])
np.tensorsolve(T.swapaxes(0, 1), B[:, 0], axes=(0,))
np.vecdot(C, C)
np.matmul(A, B)
np.svd(S, hermitian=True)
np.svd(H, hermitian=True, compute_uv=False)
np.cholesky(H)
np.cholesky(S + 0.01 * A, symmetrize_input=False)
np.cholesky(S, upper=True)
np.eigh(A, symmetrize_input=False)
np.eigvalsh(A, UPLO="U", symmetrize_input=False)
np.slogdet(B, method="qr")
np.slogdet(C)
np.slogdet(0 * A)
np.solve(I, v)
np.inv(I)
"""

R = np.random.RandomState(0)
A = R.randn(3, 3)
LOW_RANK = R.randn(4, 2) @ R.randn(2, 3)


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-6), ("float32", 2e-4)])
def test_results_are_those_of_jax(dtype, tolerance):
    check_calls(xp.linalg, jnp.linalg, CALLS, dtype, tolerance)


def test_what_jax_has_wrong_is_as_in_numpy():
    assert xp.linalg.cond(np.zeros((2, 2))) == np.linalg.cond(np.zeros((2, 2))) == np.inf
    for options in ({"rtol": 0.5}, {"tol": 2.5}):
        big = np.diag([4.0, 3.0, 1.0])
        assert xp.linalg.matrix_rank(big, **options) == np.linalg.matrix_rank(big, **options) == 2


FACTORIZATION = re.compile("getrf|potrf|gesdd|gesvd|geqrf|syevd|geev")


def factorizations(f, *args):
    """The names of the factorizations in the compiled program, in order of their names."""
    lines = jit(f).lower(*args).compile().as_text().splitlines()
    found = [FACTORIZATION.search(line) for line in lines if "custom-call(" in line]
    return sorted([match[0] for match in found if match])


def log_likelihood(parameters):
    points = np.linspace(0.0, 1.0, 6, dtype="float32")[:, None] / parameters[0]
    kernel = xp.exp(-((points - points.T) ** 2)) + parameters[1] * xp.eye(6)
    y = np.arange(6.0, dtype="float32")
    return y @ xp.linalg.solve(kernel, y) + xp.linalg.slogdet(kernel)[1]


def test_systems_and_determinants_of_one_matrix_factor_it_once_with_their_derivatives():
    at = np.ones(2, "float32")
    assert factorizations(grad(log_likelihood), at) == ["getrf"]
    assert factorizations(hessian(log_likelihood), at) == ["getrf"]
    assert factorizations(grad(lambda p: xp.linalg.cholesky(xp.eye(3) + p).sum()), 1.0) == ["potrf"]

    def chain(matrices, x):
        return functx.lax.scan(lambda x, m: (xp.linalg.solve(m, x), None), x, matrices)[0].sum()

    # The backward loop uses the factors that the forward loop saved.
    assert factorizations(grad(chain), np.stack([np.eye(3, dtype="f")] * 4), np.ones(3, "f")) == [
        "getrf"
    ]


def test_a_batch_of_right_sides_is_solved_at_once():
    a, b = np.eye(3, dtype="f") * 2, np.ones((5, 3), "f")
    program = functx.make_ir(vmap(xp.linalg.solve, in_axes=(None, 0)))(a, b)
    assert "lu_solve" in str(program) and "f32[5,3,3]" not in str(program)
    np.testing.assert_allclose(vmap(xp.linalg.solve, in_axes=(None, 0))(a, b), b / 2)


def central_differences(f, x, step=1e-6):
    columns = []
    for place in np.ndindex(x.shape):
        t = np.zeros_like(x)
        t[place] = step
        columns.append((np.asarray(f(x + t)) - np.asarray(f(x - t))) / (2 * step))
    return np.stack(columns, -1).reshape(*columns[0].shape, *x.shape)


@pytest.mark.usefixtures("x64")
def test_pseudo_inverses_have_derivatives_at_constant_rank():
    # Along matrices of rank 2; one has equal singular values.
    left, right, b = R.randn(4, 2), R.randn(2, 3), R.randn(4)
    orthonormal = np.linalg.qr(left)[0] @ np.linalg.qr(right.T)[0].T
    for base in (left @ right, orthonormal):
        u, s, vh = np.linalg.svd(base)

        def curve(t, u=u, s=s, vh=vh):
            sizes = xp.stack([s[0] + t, s[1] * (1 + 2 * t), 0.0])
            turn = xp.stack([xp.cos(t), -xp.sin(t), xp.sin(t), xp.cos(t)]).reshape(2, 2)
            columns = xp.concatenate([u[:, :1], u[:, 1:3] @ turn], 1)
            return (columns * sizes) @ vh

        def f(t, curve=curve):
            return xp.concatenate(
                [
                    xp.linalg.pinv(curve(t)).ravel(),
                    xp.linalg.lstsq(curve(t), b)[0],
                    xp.linalg.lstsq(curve(t), b)[1],
                ]
            )

        at = np.array(0.1)
        np.testing.assert_allclose(
            jit(jacfwd(f))(at), central_differences(jit(f), at), rtol=1e-6, atol=1e-7
        )
        np.testing.assert_allclose(jit(jacrev(f))(at), jit(jacfwd(f))(at), atol=1e-9)


@pytest.mark.usefixtures("x64")
def test_derivatives_match_differences():
    tall, wide = R.randn(4, 2), R.randn(2, 3)

    def all_of_them(tall, wide, square):
        return [
            xp.linalg.lstsq(tall, np.ones(4))[:2],
            xp.linalg.lstsq(wide, np.ones(2))[0],
            tuple(xp.linalg.qr(tall)),
            tuple(xp.linalg.qr(wide)),
            xp.linalg.qr(tall, mode="complete")[1],
            xp.abs(xp.linalg.eig(square)[1]) ** 2,
            xp.real(xp.linalg.eigvals(square) ** 2),
            xp.linalg.svd(tall)[1],
            xp.linalg.cond(square),
        ]

    # One program for all, since compilation takes most of the time.
    check_grads(jit(all_of_them), (tall, wide, A), order=1)
    second = jit(jacfwd(jacrev(lambda a: xp.linalg.pinv(a).sum() + xp.linalg.qr(a)[1].sum())))
    first = jit(grad(lambda a: xp.linalg.pinv(a).sum() + xp.linalg.qr(a)[1].sum()))
    np.testing.assert_allclose(second(wide), central_differences(first, wide), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("x64")
def test_the_derivative_of_an_svd_of_equal_singular_values_is_finite_where_it_exists():
    total = grad(lambda a: xp.linalg.svd(a)[1].sum())
    tall = np.concatenate([2 * np.eye(2), np.zeros((2, 2))])
    np.testing.assert_allclose(total(tall), tall / 2, atol=1e-12)
    assert np.isfinite(grad(lambda a: xp.linalg.matrix_norm(a, ord="nuc"))(np.zeros((3, 2)))).all()


def test_mistakes_are_refused():
    for call in (
        lambda: xp.linalg.outer(A, A),
        lambda: xp.linalg.cross(np.ones(2), np.ones(2)),
        lambda: xp.linalg.qr(A, mode="bad"),
        lambda: xp.linalg.pinv(A, 1.0, rcond=1.0),
        lambda: xp.linalg.eig(LOW_RANK),
        lambda: xp.linalg.cond(np.zeros((0, 2))),
        lambda: xp.linalg.lstsq(A, np.ones(4)),
        lambda: xp.linalg.matrix_rank(A, 1.0, tol=1.0),
        lambda: xp.linalg.tensorinv(np.ones((2, 3))),
        lambda: xp.linalg.tensorsolve(np.ones((2, 3)), np.ones(2)),
        lambda: xp.linalg.svd(A, subset_by_index=(2, 5)),
        lambda: xp.linalg.slogdet(A, method="svd"),
        lambda: xp.linalg.eig(np.ones((2, 2), np.float16)),
    ):
        with pytest.raises(FunctxError):
            call()
