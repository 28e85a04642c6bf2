"""Cosine transforms against SciPy."""

import jax
import numpy as np
import pytest

import functx
from functx.core.errors import FunctxError
from functx.scipy.fft import dct, dctn, idct, idctn

scipy_fft = pytest.importorskip("scipy.fft")
R = np.random.RandomState(0)


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_the_transforms_of_all_types_equal_those_of_scipy(n):
    x = R.randn(2, n)
    calls = [
        (name, {"type": kind, "norm": norm})
        for name in ("dct", "idct")
        for kind in (1, 2, 3, 4)
        for norm in (None, "ortho", "forward")
        if n > 1 or kind > 1
    ]
    ours = {"dct": dct, "idct": idct}
    with jax.enable_x64():
        found = functx.jit(lambda v: [ours[name](v, **options) for name, options in calls])(x)
    for (name, options), value in zip(calls, found, strict=True):
        expected = getattr(scipy_fft, name)(x, **options)
        np.testing.assert_allclose(value, expected, atol=1e-12, err_msg=f"{name} {options}")


def test_the_transforms_along_several_axes_crop_and_pad_as_those_of_jax():
    x = R.randn(3, 4, 5).astype("float32")
    z = (x + 1j * x[::-1]).astype("complex64")
    calls = [
        ("dctn", x, {}),
        ("idctn", x, {"s": (3, 7)}),
        ("dctn", x, {"s": (3, 7), "axes": (2, 0), "norm": "ortho"}),
        ("dct", x, {"n": 3, "axis": 1}),
        ("idct", z, {"n": 7, "axis": 0}),
        ("dct", np.arange(4), {}),
    ]
    for name, a, options in calls:
        ours = {"dct": dct, "dctn": dctn, "idct": idct, "idctn": idctn}[name]
        found, expected = ours(a, **options), getattr(jax.scipy.fft, name)(a, **options)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_the_orthogonal_transform_is_orthogonal_in_both_modes():
    x = R.randn(5).astype("float32")
    f = functx.vmap(lambda v: dct(v, norm="ortho"))
    forward, reverse = functx.jacfwd(lambda v: f(v[None])[0])(x), functx.jacrev(dct)(x)
    np.testing.assert_allclose(forward @ forward.T, np.eye(5), atol=1e-6)
    np.testing.assert_allclose(functx.jacfwd(dct)(x), reverse, atol=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: dct(x, 5),
        lambda x: dct(x, norm="full"),
        lambda x: dct(x, n=0),
        lambda x: dct(x, 1, n=1),
        lambda x: dctn(x, s=(3, 4)),
        lambda x: dct(x, axis=2),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call):
    with pytest.raises(FunctxError):
        call(np.ones(3))
