"""Functions of matrices by their spectra: derivatives where eigenvalues are equal."""

import numpy
import pytest
import scipy.linalg

import functx
import functx.numpy as np
from functx.testing.reference import interpret_in_numpy

RANDOM = numpy.random.RandomState(0)
B, W = RANDOM.randn(4, 4), RANDOM.randn(4, 4)


@pytest.fixture(autouse=True)
def _wide(x64):
    pass


def turned(values, left, right):
    return left @ numpy.diag(values) @ right.conj().T


def orthogonal(n, kind=float):
    x = RANDOM.randn(n, n) + (1j * RANDOM.randn(n, n) if kind is complex else 0)
    return numpy.linalg.qr(x)[0]


def spectral(combine):
    """The function of a matrix that `combine` makes of its eigenvalues and eigenvectors."""
    return lambda a: combine(*np.linalg.eigh(a))


def singular(combine):
    return lambda a: combine(*np.linalg.svd(a, full_matrices=False))


TIMES = numpy.array([0.1, 0.2])
SYMMETRIC = {
    "square root": spectral(lambda w, v: (v * np.sqrt(w)) @ v.T),
    "exponential by a diagonal": spectral(lambda w, v: v @ np.diag(np.exp(w)) @ v.T),
    "inverse square root of rows": spectral(lambda w, v: v @ (v.T / np.sqrt(w)[:, None])),
    "solution": spectral(lambda w, v: v @ ((v.T @ B[0]) / w)),
    "trace of a product": spectral(lambda w, v: np.einsum("ij,jk,k,ik->", B, v, np.log(w), v)),
    "quadratic form": spectral(lambda w, v: np.sum((v.T @ B[0]) ** 2 * w**-0.5)),
    "two functions": spectral(lambda w, v: ((v * np.exp(w)) @ (v.T @ B @ v)) @ (v * w**3).T),
    "projector": spectral(lambda w, v: v[:, 1:] @ v[:, 1:].T),
    "pseudo-inverse": spectral(lambda w, v: (v * np.where(w > 0.1, 1 / w, 0.0)) @ v.T),
    "density": spectral(lambda w, v: (v * (np.exp(-w) / np.exp(-w).sum())) @ v.T),
    "flow": spectral(lambda w, v: np.einsum("ij,tj,kj->tik", v, np.exp(TIMES[:, None] * w), v)),
    "diagonal": spectral(lambda w, v: np.sum(v**2 * w**3, -1)),
    "entropy": spectral(lambda w, v: np.sum(w * np.log(w))),
    "log determinant": lambda a: np.log(np.linalg.eigvalsh(a)).sum(),
}
Q = orthogonal(4)
MATRICES = numpy.stack(
    [
        numpy.diag([1.0, 2.0, 2.0, 2.0]),
        turned([1.0, 2.0, 2.0, 5.0], Q, Q),
        turned([1.0, 2.0, 2.0 + 1e-9, 5.0], Q, Q),
        turned([1.0, 2.0, 3.0, 5.0], Q, Q),
    ]
)
FULL = {
    "identity": singular(lambda u, s, vh: u @ np.diag(s) @ vh),
    "tanh": singular(lambda u, s, vh: np.einsum("ij,j,jk->ik", u, np.tanh(s), vh)),
    "square": singular(lambda u, s, vh: vh.T @ (s[:, None] ** 2 * vh)),
    "left square": singular(lambda u, s, vh: (u * s**2) @ u.T),
    "pseudo-inverse": singular(lambda u, s, vh: (vh.T * np.where(s > 0.5, 1 / s, 0.0)) @ u.T),
    "truncation": singular(lambda u, s, vh: (u[:, :1] * s[:1]) @ vh[:1]),
}
OF_FULL_RANK = {
    "polar factor": singular(lambda u, s, vh: u @ vh),
    "inverse": singular(lambda u, s, vh: (vh.T / s) @ u.T),
    "one side": singular(lambda u, s, vh: (u * s) @ u.T),
    "projector": singular(lambda u, s, vh: u @ u.T),
    "nuclear norm": lambda a: np.linalg.norm(a, "nuc"),
    "sum of powers": lambda a: np.sum(np.linalg.svdvals(a) ** 1.5),
}


def all_of(functions):
    """The outputs of all, one behind the other, and where each begins."""
    return lambda a: np.concatenate([np.ravel(f(a)) for f in functions.values()])


def check(functions, matrices, along, across, second=True):
    """All functions, at all matrices, to second order and in both modes, against differences."""
    together = all_of(functions)
    values = functx.jit(functx.vmap(together))

    def difference(f, x, direction, step):
        near, far = [f(x + k * step * direction) - f(x - k * step * direction) for k in (1, 2)]
        return (8 * near - far) / (12 * step)

    def first(x):
        return difference(values, x, along, 1e-3)

    wanted = numpy.asarray(first(matrices))
    cts = RANDOM.randn(*wanted.shape)

    def derivatives(a, ct, e, g):
        def push(a):
            return functx.jvp(together, (a,), (e,))[1]

        def pull(a):
            return functx.vjp(together, a)[1](ct)[0]

        pushed, pulled = push(a), pull(a)
        if not second:
            return pushed, np.sum(pulled * e)
        mixed = [
            np.sum(functx.jvp(pull, (a,), (g,))[1] * e),
            np.sum(functx.vjp(push, a)[1](ct)[0] * g),
            np.sum(functx.vjp(pull, a)[1](e)[0] * g),
        ]
        return pushed, np.sum(pulled * e), functx.jvp(push, (a,), (g,))[1], *mixed

    inputs = matrices, cts, along, across
    # The program is long, and compilation would take most of the time.
    program = functx.make_ir(functx.decompose(functx.vmap(derivatives)))(*inputs)
    found = interpret_in_numpy(program, *inputs)
    numpy.testing.assert_allclose(found[0], wanted, rtol=1e-8, atol=1e-8)
    numpy.testing.assert_allclose(found[1], (wanted * cts).sum(1), rtol=1e-8)
    if second:
        steps = difference(lambda x: difference(values, x, along, 1e-2), matrices, across, 1e-2)
        steps = numpy.asarray(steps)
        numpy.testing.assert_allclose(found[2], steps, rtol=1e-4, atol=1e-4)
        for total in found[3:]:
            numpy.testing.assert_allclose(total, (found[2] * cts).sum(1), rtol=1e-8)


def symmetric_directions(shape):
    x = RANDOM.randn(*shape)
    return (x + numpy.swapaxes(x, -1, -2)) / 2


def test_functions_of_symmetric_matrices_have_their_derivatives_where_eigenvalues_are_equal():
    shape = MATRICES.shape
    check(SYMMETRIC, MATRICES, symmetric_directions(shape), symmetric_directions(shape))


@pytest.mark.parametrize(("m", "n"), [(3, 3), (4, 3)])
def test_functions_of_singular_values_have_their_derivatives_where_some_are_equal_or_zero(m, n):
    u, v = orthogonal(m)[:, :3], orthogonal(n)[:, :3]
    ranks = numpy.stack([turned(s, u, v) for s in ([5.0, 2, 2], [5.0, 2, 0], [5.0, 2, 1])])
    # A pseudo-inverse varies smoothly as long as the rank stays.
    along, across = [u @ RANDOM.randn(3, 3, 3) @ v.T for _ in range(2)]
    along[1, :], across[1, :] = [u[:, :2] @ RANDOM.randn(2, 2) @ v[:, :2].T for _ in range(2)]
    check(FULL, ranks, along, across)
    equal = numpy.stack([turned(s, u, v) for s in ([2.0, 2, 2], [5.0, 2, 2], [5.0, 2, 1])])
    check(OF_FULL_RANK, equal, *RANDOM.randn(2, *equal.shape))


def test_functions_of_hermitian_matrices_have_them_too():
    u = orthogonal(3, complex)
    a = turned([1.0, 2.0, 2.0], u, u)
    functions = {
        "square root": spectral(lambda w, v: (v * np.sqrt(w)) @ v.conj().T),
        "conjugate": spectral(lambda w, v: (v.conj() * w**2) @ v.T),
        "evolution": spectral(lambda w, v: v @ (np.exp(1j * w)[:, None] * v.conj().T)),
        "trace": spectral(lambda w, v: np.sum(np.exp(1j * w))),
        "polar factor": lambda a: singular(lambda u, s, vh: u @ vh)(a + 0.5j * B[:3, :3]),
    }

    def at(t):
        return all_of(functions)(a + t * e)

    e = RANDOM.randn(3, 3) + 1j * RANDOM.randn(3, 3)
    e = e + e.conj().T
    step = 1e-3
    ((_, slope), bend) = functx.jit(
        lambda t: functx.jvp(lambda t: functx.jvp(at, (t,), (1.0,)), (t,), (1.0,))
    )(0.0)
    values = functx.jit(functx.vmap(at))(numpy.array([-2, -1, 0, 1, 2]) * step)
    numpy.testing.assert_allclose(
        slope, (8 * (values[3] - values[1]) - values[4] + values[0]) / (12 * step), rtol=1e-7
    )
    second = (16 * (values[3] + values[1]) - values[4] - values[0] - 30 * values[2]) / 12
    numpy.testing.assert_allclose(bend[1], second / step**2, rtol=1e-3, atol=1e-5)
    ct = RANDOM.randn(*slope.shape) + 1j * RANDOM.randn(*slope.shape)
    pulled = functx.vjp(all_of(functions), a)[1](ct)[0]
    assert numpy.isclose((pulled * e).sum().real, (ct * slope).sum().real)


def test_the_identity_written_as_a_decomposition_has_the_gradient_of_the_identity():
    weights = numpy.array([[1.0, 1.0], [0.0, 2.0]])
    for write in (FULL["identity"], spectral(lambda w, v: (v * w) @ v.T)):
        for x in (2 * numpy.eye(2), numpy.zeros((2, 2)), numpy.diag([2.0, 1.0])):
            found = functx.grad(lambda x, write=write: (write(x) * weights).sum())(x)
            symmetric = write is not FULL["identity"]
            wanted = (weights + weights.T) / 2 if symmetric else weights
            numpy.testing.assert_allclose(found, wanted, atol=1e-15)


def test_eigenvalues_that_nearly_agree_cost_no_digits():
    gaps = numpy.array([0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1])
    narrow = (numpy.diag([1.0, 1.0, 3.0]) + gaps[:, None, None] * numpy.diag([0, 1, 0])).astype("f")
    slopes = functx.vmap(
        functx.grad(lambda a: (SYMMETRIC["square root"](a) * B[:3, :3].astype(a.dtype)).sum())
    )
    numpy.testing.assert_allclose(slopes(narrow), slopes(narrow.astype("d")), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("gap", [0.0, 1e-9, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1])
def test_second_derivatives_keep_their_digits_where_three_eigenvalues_nearly_agree(gap):
    e, g = symmetric_directions((2, 3, 3))
    a = numpy.diag([1.0, 1.0 + gap, 1.0 + 3 * gap])
    zero = numpy.zeros_like(a)
    wanted = sum(
        scipy.linalg.expm(numpy.block([[a, x, zero], [zero, a, y], [zero, zero, a]]))[:3, 6:]
        for x, y in ((e, g), (g, e))
    )

    def push(a):
        return functx.jvp(SYMMETRIC["exponential by a diagonal"], (a,), (e,))[1]

    found = functx.jvp(push, (a,), (g,))[1]
    numpy.testing.assert_allclose(found, wanted, rtol=0, atol=2e-12 * abs(wanted).max())


def test_what_is_not_found_is_nan_where_eigenvalues_are_equal_and_unchanged_elsewhere():
    def mixed(a):
        w, v = np.linalg.eigh(a)
        return v[0, 1] * w[0]

    assert numpy.isnan(functx.grad(mixed)(2 * numpy.eye(2))).all()
    numpy.testing.assert_allclose(
        functx.grad(mixed)(numpy.diag([1.0, 2.0])), [[0, 0.5], [0.5, 0]], atol=1e-15
    )

    # Its cotangent of v is zero at 2 I, though its derivative is not.
    def through_a_loop(a):
        w, v = np.linalg.eigh(a)
        return functx.lax.fori_loop(0, 1, lambda i, x: (v * (w - 2)) @ v.T + x, a * 0).sum()

    assert numpy.isnan(functx.grad(through_a_loop)(2 * numpy.eye(2))).all()

    def vectors(a):
        return np.linalg.eigh(a)[1]

    across = numpy.array([[0.0, 1.0], [1.0, 0.0]])
    assert numpy.isnan(functx.jvp(vectors, (2 * numpy.eye(2),), (across,))[1]).all()
    along = numpy.diag([1.0, 2.0])
    assert not numpy.any(functx.jvp(vectors, (2 * numpy.eye(2),), (along,))[1])
    # A cut between equal eigenvalues is no function of the matrix.
    cut = functx.grad(lambda a: (SYMMETRIC["projector"](a) * W).sum())
    slopes, curvatures = functx.jvp(cut, (2 * numpy.eye(4),), (B + B.T,))
    assert not numpy.isfinite(slopes).any() and not numpy.isfinite(curvatures).any()


def test_vectors_that_are_left_out_may_have_equal_eigenvalues():
    a = numpy.diag([1.0, 1.0, 2.0])
    wanted = [[0, 0, 0.5], [0, 0, 0], [0.5, 0, 0]]
    found = functx.grad(lambda a: np.linalg.eigh(a)[1][0, 2] * np.sign(np.linalg.eigh(a)[1][2, 2]))
    numpy.testing.assert_allclose(found(a), wanted, atol=1e-15)

    def largest(a):
        return np.linalg.eigvalsh(a)[-1]

    numpy.testing.assert_allclose(functx.grad(largest)(a), numpy.diag([0.0, 0.0, 1.0]), atol=1e-15)
    second = functx.jvp(functx.grad(largest), (a,), (numpy.ones((3, 3)),))[1]
    numpy.testing.assert_allclose(second, [[0, 0, 1], [0, 0, 1], [1, 1, 0]], atol=1e-12)


def test_full_matrices_of_rectangular_matrices_have_values_and_a_gradient_of_the_singular_values():
    for shape in ((3, 2), (2, 3), (2, 2, 4)):
        a = RANDOM.randn(*shape)
        u, s, vh = np.linalg.svd(a)
        m, n = shape[-2:]
        assert u.shape[-2:] == (m, m) and vh.shape[-2:] == (n, n)
        k = min(m, n)
        numpy.testing.assert_allclose(
            (u[..., :k] * s[..., None, :]) @ vh[..., :k, :], a, atol=1e-12
        )
        whole = functx.grad(lambda a: np.linalg.svd(a)[1].sum())(a)
        thin = functx.grad(lambda a: np.linalg.svd(a, full_matrices=False)[1].sum())(a)
        numpy.testing.assert_allclose(whole, thin, atol=1e-12)

    def first(a, full):
        u, _, vh = np.linalg.svd(a, full_matrices=full)
        return u[0, 0] * vh[0, 1] + u[1, 1] * vh[1, 0]

    a = RANDOM.randn(3, 2)
    numpy.testing.assert_allclose(functx.grad(first)(a, True), functx.grad(first)(a, False))
    pushed = functx.jvp(lambda a: np.linalg.svd(a)[0], (a,), (a,))[1]
    assert numpy.isnan(pushed[:, 2]).all() and numpy.isfinite(pushed[:, :2]).all()
    assert numpy.isnan(functx.grad(lambda a: np.linalg.svd(a)[0].sum())(a)).all()


def test_functions_are_found_in_loops_calls_and_batches():
    def power(a):
        w, v = np.linalg.eigh(a)
        return (v * w[..., None, :] ** 2) @ np.swapaxes(v, -1, -2)

    def looped(a):
        return functx.lax.scan(lambda c, _: (functx.jit(power)(c), None), a, None, length=2)[0]

    a = numpy.stack([2 * numpy.eye(2), numpy.diag([1.0, 2.0])])
    loss = functx.vmap(functx.grad(lambda a: (looped(a) * W[:2, :2]).sum()))
    whole = functx.grad(lambda a: (functx.checkpoint(power)(power(a)) * W[:2, :2]).sum())
    numpy.testing.assert_allclose(loss(a), whole(a))
    numpy.testing.assert_allclose(loss(a)[0], 32 * (W + W.T)[:2, :2] / 2)
