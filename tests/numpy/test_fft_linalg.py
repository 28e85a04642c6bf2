"""Fourier transforms and norms against JAX and NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functx.numpy as xp
from functx import grad, hessian, jit, lax, make_ir, vmap
from functx.core.errors import FunctxError

R = np.random.RandomState(0)
x = R.randn(3, 4, 5).astype("f")
z = (x + 1j * R.randn(3, 4, 5)).astype("complex64")

TRANSFORMS = [
    ("fft", z, {}),
    ("fft", x, {"n": 7, "axis": 1}),
    ("ifft", z, {"norm": "ortho"}),
    ("fft2", z, {}),
    ("ifft2", z, {"norm": "forward"}),
    ("ifftn", z, {}),
    ("fftn", z, {"s": (2, 6)}),
    ("rfft", x, {}),
    ("rfft", x, {"n": 4, "axis": 0, "norm": "forward"}),
    ("irfft", z, {}),
    ("irfft", z, {"n": 7}),
    ("irfft", z, {"axis": 1, "norm": "ortho"}),
    ("rfftn", x, {"axes": (2, 0), "s": (4, 5)}),
    ("rfft2", x, {"norm": "ortho"}),
    ("irfftn", z, {"s": (3, 4, 7)}),
    ("irfft2", z, {"axes": (0, 2), "norm": "forward"}),
    ("hfft", z, {"n": 6, "axis": 1, "norm": "ortho"}),
    ("ihfft", x, {"norm": "forward"}),
    ("fftshift", x, {}),
    ("ifftshift", x, {"axes": 1}),
]


@pytest.mark.parametrize("name, a, options", TRANSFORMS)
def test_transforms_equal_those_of_jax(name, a, options):
    got, want = getattr(xp.fft, name)(a, **options), getattr(jnp.fft, name)(a, **options)
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_frequencies_equal_those_of_numpy():
    np.testing.assert_allclose(xp.fft.fftfreq(5, 0.1), np.fft.fftfreq(5, 0.1), rtol=1e-6)
    np.testing.assert_allclose(xp.fft.rfftfreq(6), np.fft.rfftfreq(6), rtol=1e-6)


def test_transforms_differentiate_and_batch():
    f = lambda np_: lambda v: (np_.abs(np_.fft.irfft(np_.fft.rfft(v) * 2.0)) ** 2).sum()  # noqa: E731
    v = x[0, 0][:4]
    np.testing.assert_allclose(jit(grad(f(xp)))(v), jax.jit(jax.grad(f(jnp)))(v), rtol=1e-4)
    np.testing.assert_allclose(vmap(xp.fft.fft)(z), np.fft.fft(z), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", [None, 0, 1, 2, 3, np.inf, -np.inf])
def test_norms_of_vectors_equal_those_of_numpy(order):
    got = xp.linalg.norm(x, order, axis=1, keepdims=True)
    np.testing.assert_allclose(got, np.linalg.norm(x, order, axis=1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("order", [None, "fro", 1, -1, np.inf, -np.inf])
@pytest.mark.parametrize("axes", [(0, 2), (2, 1)])
def test_norms_of_matrices_equal_those_of_numpy(order, axes):
    got = xp.linalg.norm(z, order, axis=axes)
    np.testing.assert_allclose(got, np.linalg.norm(z, order, axis=axes), rtol=1e-5)


def test_the_norm_has_derivative_zero_at_zero():
    n = xp.linalg.norm
    zero = np.zeros(2, "f")
    np.testing.assert_array_equal(grad(n)(zero), zero)
    np.testing.assert_array_equal(grad(lambda v: 3.0 * n(v) ** 2)(zero), zero)
    np.testing.assert_array_equal(grad(lambda v: xp.exp(-(n(v) ** 2)))(zero), zero)
    np.testing.assert_allclose(
        hessian(n)(np.array([3.0, 4.0], "f")) @ np.array([3.0, 4.0]), 0, atol=1e-6
    )


def test_unknown_orders_and_scalings_are_refused():
    for call in (
        lambda: xp.linalg.norm(x[0], "none"),
        lambda: xp.linalg.norm(x[0, 0], "fro"),
        lambda: xp.fft.fft(z, norm="none"),
        lambda: xp.fft.rfft(z),
        lambda: xp.fft.fft(z, n=0),
    ):
        with pytest.raises(FunctxError):
            call()


def test_real_transforms_need_half_the_work():
    program = str(make_ir(lambda v: xp.fft.irfftn(xp.fft.rfftn(v), (3, 4, 5)))(x))
    assert "real_fft[ndim=3]" in program and "inverse_real_fft" in program
    assert " fft" not in program


@pytest.mark.parametrize("kind", ["fft", "IFFT", lax.FftType.RFFT, "irfft"])
def test_transforms_of_lax_equal_those_of_jax(kind):
    a = x if kind == lax.FftType.RFFT else z[..., :3] if kind == "irfft" else z
    lengths = (4, 5)
    got, want = lax.fft(a, kind, lengths), jax.lax.fft(a, kind, lengths)
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_transforms_of_lax_refuse_what_does_not_fit():
    for call in (
        lambda: lax.fft(x, "dft", (5,)),
        lambda: lax.fft(z, "rfft", (5,)),
        lambda: lax.fft(x, "fft", (4,)),
        lambda: lax.fft(z, "irfft", (4,)),
        lambda: xp.fft.irfft(z[..., :1]),
        lambda: xp.fft.rfftn(x, (2, 3), axes=(0,)),
        lambda: xp.fft.hfft(z, norm="full"),
    ):
        with pytest.raises(FunctxError):
            call()
