"""Iterative solvers against dense ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx.core.errors import FunctxError
from functx.scipy.sparse.linalg import bicgstab, cg, gmres

R = np.random.RandomState(0)
N = 6
A = R.randn(N, N) + 4 * np.eye(N)
H = A + 1j * R.randn(N, N)
B = R.randn(N)
SOLVERS = [cg, bicgstab, gmres]


def definite(a):
    return a @ a.conj().T


@pytest.fixture(autouse=True)
def _doubles():
    with jax.enable_x64():
        yield


@pytest.mark.parametrize("solver", SOLVERS)
def test_solutions_equal_those_of_dense_solvers(solver):
    systems = [(definite(A), B), (definite(H), B + 1j)]
    systems += [] if solver is cg else [(A, B), (H, B + 1j)]
    options = [{}, {"x0": np.ones(N)}, {"M": np.diag(1 / (2 + np.arange(N)))}]

    def solve(systems):
        return [solver(a, b, tol=1e-12, **kw)[0] for a, b in systems for kw in options]

    found = iter(functx.jit(solve)(systems))
    for a, b in systems:
        for _ in options:
            np.testing.assert_allclose(next(found), np.linalg.solve(a, b), rtol=1e-8)


@pytest.mark.parametrize("guess", [None, np.ones(N)], ids=["from zero", "from a guess"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_derivatives_are_those_of_the_solution(solver, guess):
    a, tangent = (definite(A) if solver is cg else A), R.randn(N)

    def loss(np_, solve):
        return lambda a, b: np_.sin(solve((a + a.T) / 2 if solver is cg else a, b)).sum()

    ours = loss(xp, lambda a, b: solver(a, b, x0=guess, tol=1e-13)[0])
    theirs = loss(jnp, jnp.linalg.solve)

    def derivatives(f, framework):
        gradient = framework.grad(f, (0, 1))
        return gradient(a, B), framework.jvp(lambda b: gradient(a, b), (B,), (tangent,))[1]

    found, expected = [
        jax.tree.leaves(framework.jit(lambda f=f, framework=framework: derivatives(f, framework))())
        for f, framework in ((ours, functx), (theirs, jax))
    ]
    for value, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, want, atol=1e-8)


@pytest.mark.parametrize("solver", SOLVERS)
def test_functions_of_pytrees_are_solved_in_batches(solver):
    matrix = definite(A)

    def apply(tree):
        vector = xp.concatenate([tree["a"], xp.ravel(tree["b"])])
        out = xp.matmul(matrix, vector)
        return {"a": out[:2], "b": out[2:].reshape(2, 2)}

    def solve(scale):
        rhs = {"a": scale * B[:2], "b": scale * B[2:].reshape(2, 2)}
        x = solver(apply, rhs, tol=1e-12)[0]
        return xp.concatenate([x["a"], xp.ravel(x["b"])])

    found = functx.vmap(functx.jacfwd(solve))(np.array([1.0, 3.0]))
    np.testing.assert_allclose(found, [np.linalg.solve(matrix, B)] * 2, rtol=1e-8)


def test_a_guess_is_none_of_the_solution_s_derivative():
    far = 1e6 * np.ones(N)
    with jax.enable_x64(False):
        solve = functx.jacfwd(lambda b: cg(np.eye(N, dtype="f4"), b, x0=far)[0])
        np.testing.assert_allclose(solve(far.astype("f4")), np.eye(N), atol=1e-6)


def test_spaces_end_early_and_begin_anew():
    np.testing.assert_allclose(gmres(np.diag([1.0, 1, 2, 2]), np.ones(4))[0], [1, 1, 0.5, 0.5])
    again = gmres(A, B, restart=3, tol=1e-12, maxiter=200, solve_method="incremental")[0]
    np.testing.assert_allclose(again, np.linalg.solve(A, B), rtol=1e-8)
    for solver in SOLVERS:
        np.testing.assert_array_equal(solver(definite(A), np.zeros(N))[0], np.zeros(N))


def test_a_breakdown_gives_nans():
    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    assert np.isnan(bicgstab(turn, np.array([1.0, 0.0]))[0]).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda: cg(np.ones((2, 3)), np.ones(3)),
        lambda: cg(3.0, np.ones(3)),
        lambda: cg(np.eye(3), np.ones(3), M=np.ones(3)),
        lambda: cg(np.eye(3), np.ones(3), x0=np.ones(2)),
        lambda: cg(np.eye(3), np.ones(3), x0=[np.ones(3)]),
        lambda: gmres(np.eye(3), np.ones(3), restart=0),
        lambda: gmres(np.eye(3), np.ones(3), solve_method="exact"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call):
    with pytest.raises(FunctxError):
        call()
