"""`jacfwd`, `jacrev`, `hessian` and `hvp` against JAX."""

import jax
import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx import hessian, hvp, jacfwd, jacrev, jit, vmap
from functx.core.errors import GradientError

x32 = np.array([0.5, 1.0, 2.0], "float32")
m32 = np.arange(6.0, dtype="float32").reshape(2, 3)


def same(got, want):
    assert jax.tree_util.tree_structure(got) == jax.tree_util.tree_structure(want)
    for a, b in zip(jax.tree_util.tree_leaves(got), jax.tree_util.tree_leaves(want), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def f(np_, a, b):
    return {"m": np_.sin(a["w"]) @ b, "s": (a["c"] * b).sum()}


@pytest.mark.parametrize("argnums", [0, 1, (0, 1), (1, 0), -1])
@pytest.mark.parametrize("name", ["jacfwd", "jacrev", "hessian"])
def test_results_nest_outputs_over_arguments(name, argnums):
    a, b = {"w": m32, "c": np.float32(2.0)}, x32
    ours = getattr(functx, name)(lambda a, b: f(xp, a, b), argnums=argnums)(a, b)
    numbers = tuple(n % 2 for n in argnums) if isinstance(argnums, tuple) else argnums % 2
    theirs = getattr(jax, name)(lambda a, b: f(jax.numpy, a, b), argnums=numbers)(a, b)
    same(ours, theirs)


@pytest.mark.parametrize("jacobian", [jacfwd, jacrev])
def test_unrelated_pieces_are_zero_and_scalars_fit(jacobian):
    d = jacobian(lambda x, y: (x * 2.0, xp.ones(2)), argnums=(0, 1))(1.0, x32)
    assert float(d[0][0]) == 2.0 and d[1][1].shape == (2, 3) and not np.any(d[1][1])


@pytest.mark.parametrize("jacobian", [jacfwd, jacrev])
def test_aux_comes_back(jacobian):
    d, aux = jacobian(lambda x: (x * x, {"n": x.sum()}), has_aux=True)(x32)
    same(d, np.diag(2 * x32))
    assert float(aux["n"]) == 3.5


def test_hessian_of_aux_and_under_vmap_and_jit():
    batch = np.stack([x32, 2 * x32])
    got = jit(vmap(hessian(lambda x: (x**3).sum())))(batch)
    same(got, np.stack([np.diag(6 * x) for x in batch]))


def test_hvp_is_the_hessian_times_a_vector():
    g = lambda x, y: xp.sin(x).sum() * y  # noqa: E731
    hx, hy = hvp(g, (x32, 2.0), (x32, 1.0))
    want = jax.jvp(
        jax.grad(lambda x, y: jax.numpy.sin(x).sum() * y, (0, 1)), (x32, 2.0), (x32, 1.0)
    )[1]
    same((hx, hy), want)


@pytest.mark.parametrize("jacobian", [jacfwd, jacrev])
def test_holomorphic_jacobians(jacobian):
    z = np.array([1 + 1j, 2.0], "complex64")
    same(jacobian(lambda z: z * z, holomorphic=True)(z), np.diag(2 * z))


@pytest.mark.parametrize("jacobian", [jacfwd, jacrev])
def test_complex_arrays_stand_where_the_mode_is_linear_and_integers_nowhere(jacobian):
    z = (x32 * (1 + 2j)).astype("complex64")
    if jacobian is jacfwd:
        same(jacfwd(lambda x: x * (1j + 2))(x32), jax.jit(jax.jacfwd(lambda x: x * (1j + 2)))(x32))
        with pytest.raises(GradientError, match=r"c64\[3\].*`z`"):
            jacobian(lambda z: z)(z)
    else:
        modulus = lambda z: abs(z) ** 2  # noqa: E731
        for size in (None, 1):
            same(
                jacrev(modulus, chunk_size=size)(z),
                jax.jit(jax.jacrev(modulus))(jax.numpy.asarray(z)),
            )
        with pytest.raises(GradientError, match=r"c64\[3\], number 0"):
            jacobian(lambda x: x * 1j)(x32)
        assert jacrev(lambda x, n: x[n], (0, 1), allow_int=True)(x32, 1)[1] is None
    with pytest.raises(GradientError, match=r"i32\[3\].*`n`"):
        jacobian(lambda n: n)(np.arange(3))


def test_the_text_of_a_jacobian_does_not_grow_with_its_size():
    sizes = [
        len(jit(jacrev(lambda x: x[1:])).lower(np.zeros(n, "f")).as_text()) for n in (100, 1000)
    ]
    assert sizes[1] < sizes[0] + 200 < 20_000


def test_jacobians_of_empty_arrays_are_empty():
    assert jacfwd(lambda x: x * 2.0)(np.zeros(0, "f")).shape == (0, 0)
    assert jacrev(lambda x: x.sum())(np.zeros(0, "f")).shape == (0,)
