"""Linear algebra against NumPy, and derivatives at points where formulas divide by zero."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functx.numpy as xp
from functx import grad, hessian, jacfwd, jacrev, jit, jvp, make_ir, vmap
from functx.core.errors import FunctxError
from functx.testing.reference.interpreter import interpret_in_numpy

R = np.random.RandomState(0)
SQUARE = R.randn(2, 3, 3)
RECTANGLE = R.randn(2, 4, 3)
COMPLEX = R.randn(3, 3) + 1j * R.randn(3, 3)
HERMITIAN = COMPLEX + COMPLEX.conj().T
POSITIVE = COMPLEX @ COMPLEX.conj().T + np.eye(3)

pytestmark = pytest.mark.usefixtures("x64")


def agree(got, want):
    assert type(got)._fields == type(want)._fields if hasattr(want, "_fields") else True
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "name, args, options",
    [
        ("solve", (SQUARE, R.randn(2, 3, 2)), {}),
        ("solve", (SQUARE[0], R.randn(3)), {}),
        ("solve", (SQUARE, R.randn(3)), {}),
        ("solve", (SQUARE[0], R.randn(5, 3, 2)), {}),
        ("solve", (COMPLEX, R.randn(3)), {}),
        ("inv", (SQUARE,), {}),
        ("inv", (COMPLEX,), {}),
        ("det", (SQUARE,), {}),
        ("det", (COMPLEX,), {}),
        ("slogdet", (SQUARE,), {}),
        ("slogdet", (COMPLEX,), {}),
        ("cholesky", (POSITIVE,), {}),
        ("cholesky", (POSITIVE,), {"upper": True}),
        ("eigh", (POSITIVE.real,), {}),
        ("eigvalsh", (HERMITIAN,), {}),
        ("svd", (RECTANGLE,), {"full_matrices": False}),
        ("svd", (SQUARE,), {}),
        ("svd", (RECTANGLE,), {"compute_uv": False}),
        ("svdvals", (RECTANGLE,), {}),
        ("norm", (RECTANGLE[0],), {"ord": 2}),
        ("norm", (RECTANGLE,), {"ord": "nuc", "axis": (2, 0)}),
        ("norm", (RECTANGLE,), {"ord": -2, "axis": (1, 2), "keepdims": True}),
    ],
)
def test_results_equal_those_of_jax(name, args, options):
    want = getattr(jnp.linalg, name)(*args, **options)
    agree(getattr(xp.linalg, name)(*args, **options), want)
    agree(jit(lambda *a: getattr(xp.linalg, name)(*a, **options))(*args), want)


def holomorphic_free(f, x):
    """The gradients in the real and imaginary parts, by functx and by differences."""

    def of_parts(parts):
        return f(parts[0] + 1j * parts[1])

    parts = np.stack([x.real, x.imag])
    got = grad(of_parts)(parts)
    step = 1e-6
    want = np.zeros_like(parts)
    for place in np.ndindex(parts.shape):
        up, down = parts.copy(), parts.copy()
        up[place] += step
        down[place] -= step
        want[place] = (float(of_parts(up)) - float(of_parts(down))) / (2 * step)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


W = R.randn(3, 3)


@pytest.mark.parametrize(
    "f",
    [
        lambda a: xp.abs(xp.linalg.det(a)) ** 2,
        lambda a: xp.abs((xp.linalg.inv(a) * W).sum()) ** 2,
        lambda a: xp.linalg.slogdet(a).logabsdet + xp.linalg.slogdet(a).sign.imag,
        lambda a: (xp.abs(xp.linalg.cholesky(a @ a.conj().T)) * W).sum(),
        lambda a: (xp.linalg.eigvalsh(a) ** 3 * W[0]).sum(),
        lambda a: (xp.abs(xp.linalg.eigh(a).eigenvectors) ** 2 * W).sum(),
        lambda a: (xp.linalg.svdvals(a) * W[0]).sum(),
        lambda a: (xp.abs(xp.linalg.svd(a).U) ** 2 * W).sum(),
        lambda a: (xp.abs(xp.linalg.svd(a[:2], full_matrices=False).Vh) ** 2 * W[:2]).sum(),
        lambda a: (xp.abs(xp.linalg.svd(a[:, :2], full_matrices=False).U) ** 2 * W[:, :2]).sum(),
    ],
)
def test_derivatives_of_complex_matrices_match_differences(f):
    holomorphic_free(f, COMPLEX)


def test_the_gradient_of_a_determinant_is_its_cofactors():
    slope = grad(xp.linalg.det)
    np.testing.assert_allclose(slope(np.array([[1.0, 2.0], [2.0, 4.0]])), [[4, -2], [-2, 1]])
    np.testing.assert_allclose(slope(np.ones((3, 3))), np.zeros((3, 3)), atol=1e-12)
    np.testing.assert_allclose(
        slope(np.diag([2.0, 3.0, 0.0])), np.diag([0.0, 0.0, 6.0]), atol=1e-12
    )
    got = vmap(slope)(SQUARE)
    np.testing.assert_allclose(got, vmap(jacfwd(xp.linalg.det))(SQUARE), rtol=1e-9)
    np.testing.assert_allclose(got, jax.jit(jax.vmap(jax.grad(jnp.linalg.det)))(SQUARE), rtol=1e-9)


def test_the_gradient_of_a_determinant_is_accurate_for_rows_and_columns_of_any_size():
    plain = SQUARE[0]
    scaling = 10.0 ** np.array([[-6], [3], [5]]) * 10.0 ** np.array([4, -7, 1])
    slope = grad(xp.linalg.det)((plain * scaling).astype("float32"))
    cofactors = np.linalg.det(plain) * np.linalg.inv(plain).T
    # The product of the sizes of all rows and columns is 1.
    np.testing.assert_allclose(np.asarray(slope) * scaling, cofactors, rtol=1e-4)
    # Cofactors of 2**-384 are out of range.
    assert not np.any(grad(xp.linalg.det)(np.float32(2.0**-96) * np.eye(5, dtype="float32")))


def test_second_derivatives_of_a_determinant_at_zero():
    # det = ad - bc
    want = np.zeros((2, 2, 2, 2))
    want[0, 0, 1, 1] = want[1, 1, 0, 0] = 1
    want[0, 1, 1, 0] = want[1, 0, 0, 1] = -1
    np.testing.assert_allclose(hessian(xp.linalg.det)(np.zeros((2, 2))), want, atol=1e-12)


def test_derivatives_of_a_determinant_of_any_order():
    # Equal singular values, and a matrix that is singular, have derivatives as others have.
    ones, unit = np.ones((3, 3)), np.eye(4)
    small = np.stack([np.eye(3) + ones, ones, 0 * ones])
    low_ranks = [np.diag([1.0] * rank + [0.0] * (4 - rank)) for rank in (3, 2, 1, 0)]
    large = np.stack([unit + 1, *low_ranks, R.randn(4, 4)])
    wide = np.stack([np.diag([1.0, 2.0] * 3), np.diag([3.0] + [0.0] * 5), np.zeros((6, 6))])
    for batch in (small, large, wide):
        direction = R.randn(*batch.shape[1:])
        derivative = xp.linalg.det
        for _ in range(3):
            derivative = lambda x, f=derivative, v=direction: jvp(f, (x,), (v,))[1]  # noqa: E731
        program = make_ir(vmap(derivative))(batch)
        (derivatives,) = interpret_in_numpy(program, batch)
        (far,) = interpret_in_numpy(program, 1e90 * batch)
        np.testing.assert_allclose(far, derivatives * 1e90 ** (batch.shape[-1] - 3), rtol=1e-8)
        for got, x in zip(derivatives, batch, strict=True):
            points = np.arange(len(x) + 1.0)
            values = [np.linalg.det(x + t * direction) for t in points]
            third = np.linalg.solve(np.vander(points), values)[-4]
            np.testing.assert_allclose(got, 6 * third, rtol=1e-8, atol=1e-8)


def test_forward_mode_of_a_solve():
    a, b = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    along = np.array([[0.0, 3.0], [0.0, 0.0]])
    x, dx = jvp(lambda m: xp.linalg.solve(m, b), (a,), (along,))
    np.testing.assert_allclose(x, [0.2, 0.6])
    np.testing.assert_allclose(dx, [-1.08, 0.36])
    got = jacrev(lambda m: xp.linalg.solve(m, b))(a)
    np.testing.assert_allclose(got, jax.jit(jax.jacobian(lambda m: jnp.linalg.solve(m, b)))(a))


def test_repeated_eigenvalues_and_singular_values_have_derivatives():
    three = np.eye(3)
    np.testing.assert_allclose(grad(lambda a: xp.linalg.eigvalsh(a).sum())(three), three)
    np.testing.assert_allclose(
        grad(lambda a: (xp.linalg.eigvalsh(a) ** 2).sum())(2 * three), 4 * three
    )
    weights = np.arange(9.0).reshape(3, 3)

    def reconstructed(a):
        u, s, vh = xp.linalg.svd(a, full_matrices=False)
        return (weights * ((u * s) @ vh) ** 2).sum()

    a = np.diag([2.0, 2.0, 5.0])
    np.testing.assert_allclose(grad(reconstructed)(a), 2 * weights * a, atol=1e-12)
    np.testing.assert_allclose(
        grad(lambda a: xp.linalg.svdvals(a).sum())(np.zeros((2, 2))).shape, (2, 2)
    )
    assert np.isfinite(grad(lambda a: xp.linalg.norm(a, "nuc"))(np.zeros((2, 2)))).all()


def test_mistakes_are_refused():
    for call in (
        lambda: xp.linalg.det(RECTANGLE),
        lambda: xp.linalg.inv(np.ones(3)),
        lambda: xp.linalg.solve(SQUARE, np.ones(4)),
        lambda: xp.linalg.solve(SQUARE, np.ones((3, 3, 1))),
        lambda: xp.linalg.eigh(POSITIVE, UPLO="X"),
        lambda: xp.linalg.det(np.ones((2, 2), np.float16)),
        lambda: xp.linalg.norm(RECTANGLE[0], 3),
    ):
        with pytest.raises(FunctxError):
            call()
