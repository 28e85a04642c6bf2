"""NumPy's own functions, ufuncs and methods on traced arrays: what NumPy computes, under transforms."""

import jax
import numpy as np
import pytest
import scipy.special

import functx
import functx.numpy as fnp
from functx.core.errors import ForeignCodeError, IndexingError

X = np.linspace(-2, 2, 12).reshape(3, 4)
V = np.array([0.5, -1.5, 2.0, 0.25])
P = np.array([3, 1, 2, 0])
CALLS = """
np.all(x > 0) | np.any(x > 0, axis=1) | np.allclose(x, x + 1e-9) | np.amax(x, 0) | np.amin(x) | np.max(x, axis=1, keepdims=True)
np.min(x, 0) | np.angle(x + 1j) | np.append(x, v) | np.apply_along_axis(np.cumsum, 1, x) | np.apply_over_axes(np.sum, x, [0, 1])
np.argmax(x, 1) | np.argmin(v) | np.sort(np.argpartition(v, 1)[:1]) | np.argsort(v) | np.around(x, 1) | np.round(x, 2) | np.array_equal(x, x)
np.array_equiv(x, x[:1]) | np.array_split(v, 3) | np.astype(x, np.float32) | np.atleast_1d(v) | np.atleast_2d(v) | np.atleast_3d(v)
np.average(x, 0) | np.average(x, axis=1, weights=v) | np.block([[x, x], [x, x]]) | np.broadcast_arrays(x, v) | np.broadcast_to(v, (3, 4))
np.choose(p % 2, [v, -v]) | np.clip(x, -1, 1) | np.clip(x, None, v) | np.column_stack([v, v]) | np.compress([True, False, True], x, 0)
np.concatenate([x, x], axis=1) | np.concat([v, v]) | np.convolve(v, v, "same") | np.copy(x) | np.corrcoef(x) | np.correlate(v, v, "full")
np.count_nonzero(x > 0) | np.count_nonzero(x, axis=0) | np.cov(x) | np.cross(v[:3], v[1:]) | np.cumprod(x, 0) | np.cumsum(x) | np.cumulative_sum(v)
np.cumulative_prod(v) | np.delete(v, 1) | np.diag(v) | np.diag(x, 1) | np.diagflat(v) | np.diagonal(x) | np.diff(x, axis=0) | np.digitize(v, [-1, 0, 1])
np.dot(x, v) | np.dsplit(x[:, :, None] * v, 2) | np.dstack([x, x]) | np.ediff1d(v) | np.einsum("ij,j->i", x, v) | np.empty_like(x).shape
np.expand_dims(x, (0, 2)) | np.flip(x) | np.fliplr(x) | np.flipud(x) | np.full_like(x, 3) | np.geomspace(v[0], 3.0, 4)
np.gradient(v) | np.gradient(x, axis=0) | np.histogram(v, 3)[0] * 1.0 | np.histogram2d(v, v, 2)[0] * 1.0 | np.histogram_bin_edges(v, 3) | np.histogramdd(x, 2)[1]
np.hsplit(x, 2) | np.hstack([v, v]) | np.i0(v) | np.imag(x) | np.inner(v, v) | np.insert(v, 1, 9.0) | np.interp(v, [-2, 0, 3], [1, 2, 0])
np.isclose(x, 0) | np.iscomplex(x) | np.iscomplexobj(x) | np.isin(p, [1, 3]) | np.isneginf(x) | np.isposinf(x) | np.isreal(x) | np.isrealobj(x)
np.kron(v, v) | np.lexsort((v, p)) | np.linspace(v[0], v[1], 5) | np.linspace(v, 1.0, 3, axis=1) | np.logspace(v[0], 1, 3) | np.matrix_transpose(x)
np.mean(x) | np.mean(x, 0, dtype=np.float64) | np.mean(x, where=x > 0) | np.median(x, 1) | np.meshgrid(v, v) | np.moveaxis(x, 0, 1) | np.nan_to_num(x)
np.nanargmax(v) | np.nanargmin(v) | np.nancumprod(v) | np.nancumsum(v) | np.nanmax(x, 0) | np.nanmean(x) | np.nanmedian(v) | np.nanmin(x)
np.nanpercentile(v, 30) | np.nanprod(v) | np.nanquantile(v, 0.3) | np.nanstd(x, 0) | np.nansum(x) | np.nanvar(x) | np.ndim(x) | np.ones_like(x)
np.outer(v, v) | np.packbits(x > 0) | np.pad(x, 1) | np.pad(v, 2, mode="reflect") | np.partition(v, 1)[1] | np.percentile(x, [20, 50], axis=0)
np.permute_dims(x, (1, 0)) | np.piecewise(v, [v > 0], [lambda y: y**2, 0.0]) | np.poly(v) | np.polyadd(v, p) | np.polyder(v) | np.polyint(v)
np.polymul(v, v) | np.polysub(v, v[1:]) | np.polyval(v, x) | np.prod(x, 1) | np.ptp(x, 0) | np.quantile(v, 0.4) | np.ravel(x) | np.real(x)
np.real_if_close(x) | np.repeat(x, 2, axis=0) | np.reshape(x, (2, 6)) | np.resize(v, (2, 3)) | np.roll(x, 1, axis=1) | np.rollaxis(x, 1) | np.rot90(x)
np.searchsorted([-1, 0, 1], v) | np.select([v > 0, v < -1], [v, -v], 0.0) | np.shape(x) | np.sinc(v) | np.size(x, 1) | np.sort(x, 0) | np.sort_complex(v)
np.split(x, 2, axis=1) | np.squeeze(x[None]) | np.stack([v, v], 1) | np.std(x, ddof=1) | np.sum(x, axis=(0, 1)) | np.sum(x, where=x > 0, initial=2.0) | np.swapaxes(x, 0, 1)
np.take(x, [0, 2], axis=1) | np.take_along_axis(v, p, 0) | np.tensordot(x, x, 2) | np.tile(v, 2) | np.trace(x) | np.transpose(x) | np.trapezoid(v)
np.tril(x) | np.triu(x, 1) | np.unpackbits(p.astype(np.uint8)) | np.unstack(x) | np.unwrap(v * 5) | np.vander(v, 3) | np.var(x, 0) | np.vdot(v, v)
np.vsplit(x, 3) | np.vstack([v, v]) | np.where(x > 0, x, v) | np.zeros_like(x) | np.common_type(x).__name__ | np.result_type(x, 1).name | np.can_cast(x.dtype, np.float64)
np.ravel_multi_index((p % 3, p), (3, 4), mode="clip") | np.unravel_index(p, (2, 2)) | np.tril_indices_from(x) | np.triu_indices_from(x) | np.diag_indices_from(x[:, :3]) | np.ix_(p, p)
np.bincount(np.array([0, 1, 1]), v[:3]) | np.linalg.cholesky(x @ x.T + 9 * np.eye(3)) | np.linalg.det(x[:, :3] + np.eye(3)) | np.linalg.inv(x[:, :3] + 3 * np.eye(3))
np.linalg.norm(x) | np.linalg.norm(x, axis=0) | np.linalg.solve(x[:, :3] + 3 * np.eye(3), v[:3]) | np.linalg.matrix_power(x[:, :3], 2) | np.linalg.multi_dot([x, x.T, x])
np.linalg.slogdet(x[:, :3] + np.eye(3)) | np.linalg.svd(x, compute_uv=False) | np.linalg.svdvals(x) | np.linalg.vector_norm(x) | np.linalg.eigvalsh(x @ x.T) | np.linalg.matmul(x, v)
np.fft.fft(v) | np.fft.ifft(v) | np.fft.rfft(v) | np.fft.irfft(v) | np.fft.fft2(x) | np.fft.ifft2(x) | np.fft.fftn(x) | np.fft.ifftn(x) | np.fft.fftshift(v) | np.fft.ifftshift(v)
np.add.reduce(x) | np.add.reduce(x, axis=None) | np.add.reduce(x, axis=(0, 1), keepdims=True, initial=1.0) | np.multiply.reduce(x, 1) | np.maximum.reduce(x) | np.minimum.reduce(v)
np.logical_and.reduce(x > 0) | np.logical_or.reduce(x > 0, axis=1) | np.logical_xor.reduce(x > 0) | np.subtract.reduce(x) | np.divide.reduce(x, axis=1) | np.hypot.reduce(v)
np.bitwise_or.reduce(p) | np.bitwise_and.reduce(p + 4) | np.bitwise_xor.reduce(p) | np.gcd.reduce(p * 6) | np.logaddexp.reduce(x, axis=1) | np.logaddexp2.reduce(v) | np.fmax.reduce(v)
np.fmin.reduce(x, axis=1) | np.subtract.reduce(x, where=x > 0, initial=1.0) | np.add.reduce(x, where=x > 0, axis=1)
np.add.accumulate(x) | np.multiply.accumulate(x, 1) | np.maximum.accumulate(v) | np.minimum.accumulate(x, axis=1) | np.subtract.accumulate(v) | np.logaddexp.accumulate(v)
np.bitwise_xor.accumulate(p) | np.logical_and.accumulate(x > 0) | np.add.reduceat(v, [0, 2, 1, 3]) | np.multiply.reduceat(x, [0, 2], axis=1) | np.maximum.reduceat(v, p)
np.add.outer(v, v) | np.multiply.outer(x, v) | np.subtract.outer(v, 2.0) | np.divmod.outer(p + 1, p + 1) | np.add(x, v, dtype=np.float64)
np.divmod(v, 0.4) | np.frexp(v) | np.modf(v) | np.spacing(v) | np.nextafter(v, 1.0) | np.heaviside(v, 0.5) | np.signbit(v) | np.copysign(v, -1.0) | np.ldexp(v, p) | np.rint(v)
np.matmul(x, x.T) | np.vecdot(x, x) | np.matvec(x, v) | np.float_power(np.abs(v), 2) | np.bitwise_count(p) | np.positive(x) | np.square(x) | np.fmod(v, 0.4) | np.trunc(v)
x.sum(0) | x.mean() | x.std(1) | x.argmax() | x.clip(0, 1) | x.ravel("F") | x.flatten() | x.reshape(4, -1) | x.T.copy() | x.take([1], 0) | x.cumsum(1) | x.dot(v) | x.trace()
x.round(1) | x.repeat(2, 1) | x.squeeze() | x.swapaxes(0, 1) | x.astype(np.float32) | x.diagonal() | x.prod(0) | x.var() | x.any() | x.all(0) | x.max(1) | x.min() | x.nbytes | x.itemsize | x.ndim
"""
TEXTS = [text for line in CALLS.strip().splitlines() for text in line.split(" | ")]


def evaluate(text, x, v, p):
    return eval(text, {"np": np, "x": x, "v": v, "p": p})


def leaves(out):
    return functx.tree.leaves(list(out) if isinstance(out, tuple) else out)


@pytest.fixture(scope="module")
def traced():
    """The results under `jit`, in one program; the error of a call that has one."""
    failed, static = {}, {}

    def together(x, v, p):
        outs = {}
        for text in TEXTS:
            try:
                out = evaluate(text, x, v, p)
            except Exception as error:
                failed[text] = error
                continue
            if isinstance(out, (str, bool)):
                static[text] = out
            else:
                outs[text] = leaves(out)
        return outs

    with jax.enable_x64(True):
        found = functx.jit(together)(X, V, P)
    return {**found, **static, **failed}


@pytest.mark.parametrize("text", TEXTS)
def test_functions_of_numpy_compute_with_traced_arrays_what_they_compute_with_their_own(
    text, traced
):
    found, expected = traced[text], evaluate(text, X, V, P)
    if isinstance(found, Exception):
        raise found
    if isinstance(expected, str):
        assert found == expected
        return
    found = [found] if isinstance(found, bool) else found
    expected = leaves(expected)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert np.shape(ours) == np.shape(theirs)
        assert np.asarray(ours).dtype.kind == np.asarray(theirs).dtype.kind
        assert np.allclose(ours, theirs, rtol=1e-9, atol=1e-9, equal_nan=True)


def energy(x):
    """A program in terms of NumPy alone."""
    rows = np.linalg.norm(x, axis=-1, keepdims=True)
    scaled = np.where(x > 0, np.sin(x), np.exp(-np.abs(x))) / rows
    total = np.add.reduce(np.multiply.outer(scaled[0], scaled[1]), axis=None)
    return total + np.logaddexp.reduce(np.cumsum(x, axis=1)[:, -1]) + np.dot(x[0], x[1])


def test_programs_of_numpy_run_unchanged_under_transforms(x64):
    direction = np.cos(X)
    slope = functx.jvp(energy, (X,), (direction,))[1]
    step = 1e-6
    difference = (energy(X + step * direction) - energy(X - step * direction)) / (2 * step)
    assert np.allclose(slope, difference, rtol=1e-6)
    assert np.allclose(np.vdot(functx.grad(energy)(X), direction), slope)
    mapped = functx.jit(functx.vmap(functx.grad(energy)))(np.stack([X, 2 * X]))
    assert np.allclose(mapped[1], functx.grad(energy)(2 * X))
    product = functx.hvp(energy, (X,), (direction,))
    numbers = (functx.grad(energy)(X + step * direction) - functx.grad(energy)(X)) / step
    assert np.allclose(product, numbers, atol=1e-4)


SPECIAL = ["expit", "logit", "erf", "gammaln", "psi", "xlogy", "entr", "i0e", "ndtr", "log_ndtr"]


@pytest.mark.parametrize("name", SPECIAL)
def test_ufuncs_of_scipy_compute_with_traced_arrays(name, x64):
    fun = getattr(scipy.special, name)
    x = np.array([0.2, 0.4, 0.7])
    args = (x, x + 0.1)[: fun.nin]
    found = functx.jit(lambda *args: fun(*args))(*args)
    assert np.allclose(found, fun(*args), rtol=1e-10)
    slope = functx.grad(lambda x: fun(*[x, *args[1:]]).sum())(x)
    difference = (fun(x + 1e-6, *args[1:]) - fun(x - 1e-6, *args[1:])) / 2e-6
    assert np.allclose(slope, difference, rtol=1e-6)


def test_a_function_that_functx_lacks_is_named_with_what_to_write():
    with pytest.raises(ForeignCodeError) as caught:
        functx.jit(lambda x: scipy.special.struve(1.0, x))(V)
    assert "scipy.special.struve cannot be traced; got f32[4]" in str(caught.value)
    assert "functx.pure_callback" in str(caught.value)
    with pytest.raises(ForeignCodeError, match=r"numpy\.busday_count cannot be traced"):
        functx.jit(lambda x: np.busday_count("2011-01", x))(V)
    with pytest.raises(ForeignCodeError, match=r"numpy\.isnat cannot be traced"):
        functx.jit(lambda x: np.isnat(x))(V)
    with pytest.raises(
        ForeignCodeError, match=r"save: it needs the value of an array; got f32\[4\]"
    ):
        functx.jit(lambda x: np.save("x.npy", x))(V)
    with pytest.raises(ForeignCodeError, match=r"x\.tobytes\(\): it needs the value of an array"):
        functx.jit(lambda x: x.tobytes() and x)(V)


def test_views_of_traced_arrays_share_memory():
    found = []

    def f(x):
        found.append(np.shares_memory(x, x[::2]))
        found.append(np.shares_memory(x[::2], x[1::2]))
        found.append(np.may_share_memory(x[0], x[:, 1]))
        found.append(np.shares_memory(x, x + 1))
        found.append(np.shares_memory(x.T[1], x[1:, :2]))
        return x

    functx.functionalize(f)(X.copy())
    assert found == [True, False, True, False, True]


def test_numbers_of_real_if_close_and_min_scalar_type_are_those_of_known_values():
    assert np.real_if_close(fnp.array([1 + 1e-14j])).dtype.kind == "f"
    assert np.min_scalar_type(fnp.array(3)) == np.uint8
    with pytest.raises(ForeignCodeError, match="real_if_close"):
        functx.jit(np.real_if_close)(V * 1j)


def test_ufunc_at_writes_to_traced_arrays():
    @functx.jit
    def f(v):
        x = fnp.zeros(4, fnp.float32)
        np.add.at(x, [0, 0, 2], v[:3])
        np.multiply.at(x, [2], 3.0)
        np.negative.at(x, [0, 0, 2])
        return x

    expected = np.zeros(4)
    np.add.at(expected, [0, 0, 2], V[:3])
    assert np.allclose(f(V), expected * [1, 1, -3, 1])


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "maximum"])
def test_slices_of_traced_indices_are_reduced(name):
    indices = np.array([0, 4, 1, 5, 2, 6, 3, 7])
    rows = np.arange(16.0, dtype=np.float32).reshape(8, 2) - 5
    fun, ours = getattr(np, name), getattr(fnp, name)
    expected = fun.reduceat(rows, indices)
    assert np.allclose(functx.jit(ours.reduceat)(rows, indices), expected)
    assert np.allclose(ours.reduceat(rows, indices), expected)
    slope = functx.grad(lambda x: ours.reduceat(x, indices[:2], axis=1).sum())
    with pytest.raises(IndexingError, match=r"indices must be in \[0, 2\); got 4"):
        slope(rows)
