"""The functions of JAX through `from_jax`: values, derivatives and batches are JAX's own."""

import inspect

import jax
import jax.numpy as jnp
import numpy as onp
import pytest
from jax import lax, nn
from jax.scipy import linalg, special

import functx as fx
from tests.interop.agreement import check

RANDOM = onp.random.RandomState(0)
# No element is at a kink, and no two are equal.
A, B, C = [RANDOM.uniform(0.2, 0.9, (2, 3)).astype("float32") for _ in range(3)]
ROW = onp.array([0.3, -0.7, 0.2, 0.9, 0.5], "float32")
M = (onp.eye(3) * 1.5 + RANDOM.uniform(-0.3, 0.3, (3, 3))).astype("float32")
I = onp.array([[3, 1, 2], [5, 0, 4]], "int32")  # noqa: E741
J = onp.array([[1, 2, 3], [2, 2, 1]], "int32")
L = A > 0.5
Z = (A + 1j * B).astype("complex64")


def functions(module):
    """The names of the public functions of a module."""
    return [
        name
        for name, f in vars(module).items()
        if not name.startswith("_")
        and callable(f)
        and not inspect.isclass(f)
        and not inspect.ismodule(f)
    ]


NN = {
    "dot_product_attention": (
        lambda x: nn.dot_product_attention(x[:, None, None], x[:, None, None], x[:, None, None]),
        A,
    ),
    "one_hot": (lambda i: nn.one_hot(i, 4), I),
    "glu": (nn.glu, A[:, :2]),
}
NOT_ON_EVERY_DEVICE = {"get_scaled_dot_general_config", "scaled_dot_general", "scaled_matmul"}


@pytest.mark.parametrize("name", sorted(set(functions(nn)) - NOT_ON_EVERY_DEVICE))
def test_jax_nn(name):
    check(*NN.get(name, (getattr(nn, name), A)))


TWO = (A, B)
SPECIAL = {
    **dict.fromkeys(
        [
            "beta",
            "betaln",
            "boxcox",
            "boxcox1p",
            "comb",
            "gammainc",
            "gammaincc",
            "kl_div",
            "owens_t",
            "poch",
            "rel_entr",
            "xlog1py",
            "xlogy",
        ],
        TWO,
    ),
    "zeta": (A + 1.5, B),
    "hyp1f1": (A, B + 1, C),
    "polygamma": (J, B),
}
SPECIAL_CALLS = {
    "bernoulli": (lambda x: x + special.bernoulli(4)[2], A),
    "bessel_jn": (lambda x: special.bessel_jn(x, v=2, n_iter=10), A[0]),
    "betainc": (lambda x: special.betainc(2.0, 3.0, x), A),
    "expn": (lambda x: special.expn(2, x), A),
    "hyp2f1": (lambda x: special.hyp2f1(0.5, 0.7, 1.5, x * 0.5), A[0]),
    "multigammaln": (lambda x: special.multigammaln(x + 2, 2), A),
    "sph_harm_y": (
        lambda t: special.sph_harm_y(jnp.array([1]), jnp.array([0]), t[:1], t[1:2], n_max=2),
        A[0],
    ),
}


SLOW_TO_COMPILE = {"hyp2f1"}


@pytest.mark.parametrize("name", sorted(functions(special)))
def test_jax_scipy_special(name):
    f, *args = SPECIAL_CALLS.get(name, (getattr(special, name), *SPECIAL.get(name, (A,))))
    check(f, *args, derivatives=name not in SLOW_TO_COMPILE)


ONE_OPERAND = [
    "abs",
    "arccosh",
    "arcsin",
    "arctan",
    "arctanh",
    "argmax",
    "argmin",
    "argsort",
    "around",
    "average",
    "cbrt",
    "ceil",
    "cosh",
    "count_nonzero",
    "cov",
    "cumprod",
    "cumsum",
    "diag",
    "diff",
    "exp2",
    "expm1",
    "flip",
    "floor",
    "frexp",
    "gradient",
    "i0",
    "isfinite",
    "log10",
    "log1p",
    "log2",
    "max",
    "mean",
    "median",
    "min",
    "modf",
    "nan_to_num",
    "nanmean",
    "nanstd",
    "negative",
    "prod",
    "ptp",
    "ravel",
    "reciprocal",
    "rot90",
    "sign",
    "sin",
    "sinc",
    "sort",
    "sqrt",
    "square",
    "std",
    "sum",
    "tan",
    "tanh",
    "trace",
    "transpose",
    "tril",
    "var",
]
TWO_OPERANDS = [
    "add",
    "append",
    "arctan2",
    "copysign",
    "divide",
    "divmod",
    "equal",
    "float_power",
    "floor_divide",
    "fmax",
    "hypot",
    "inner",
    "isin",
    "kron",
    "less_equal",
    "linspace",
    "logaddexp",
    "matvec",
    "maximum",
    "minimum",
    "mod",
    "outer",
    "polyval",
    "power",
    "remainder",
    "subtract",
    "vdot",
    "vecdot",
]
INTEGERS = [
    "bitwise_and",
    "bitwise_xor",
    "gcd",
    "lcm",
    "left_shift",
    "right_shift",
    "floor_divide",
    "power",
]
COMPLEX = ["abs", "angle", "conj", "exp", "imag", "sqrt", "sum"]


@pytest.mark.parametrize("name", ONE_OPERAND)
def test_jax_numpy_of_one_operand(name):
    check(getattr(jnp, name), A + 1 if name == "arccosh" else A)


@pytest.mark.parametrize("name", TWO_OPERANDS)
def test_jax_numpy_of_two_operands(name):
    check(getattr(jnp, name), A, B[0] if name == "matvec" else B)


@pytest.mark.parametrize("name", INTEGERS)
def test_jax_numpy_of_integers(name):
    check(getattr(jnp, name), I, J)


@pytest.mark.parametrize("name", COMPLEX)
def test_jax_numpy_of_complex_numbers(name):
    check(lambda x, y: getattr(jnp, name)(x + 1j * y), A, B)


NUMPY = {
    "where": (jnp.where, L, A, B),
    "select": (lambda x: jnp.select([x > 0.7, x > 0.4], [x * 2, x * x], x), A),
    "clip": (lambda x: jnp.clip(x, 0.3, 0.6), A),
    "einsum": (lambda x, y: jnp.einsum("ij,kj->ki", x, y), A, B),
    "matmul": (lambda x, y: x @ y.T, A, B),
    "tensordot": (lambda x, y: jnp.tensordot(x, y, axes=((1,), (1,))), A, B),
    "take": (lambda x: jnp.take(x, jnp.array([2, 0, 2]), axis=1), A),
    "indexing": (lambda x: x[1, ::2] * x[0, -1] + x[jnp.array([0, 1]), 1:2].T[0], A),
    "setting": (lambda x: x.at[0].set(x[1]).at[:, 1].add(2.0).at[1, 2].mul(3.0), A),
    "pad": (lambda x: jnp.pad(x, ((1, 2), (0, 1)), mode="reflect"), A),
    "roll": (lambda x: jnp.roll(x, 2, axis=1), A),
    "repeat": (lambda x: jnp.repeat(x, 2, axis=0), A),
    "tile": (lambda x: jnp.tile(x, (2, 1)), A),
    "concatenate": (lambda x, y: jnp.concatenate([x, y], axis=1), A, B),
    "stack": (lambda x, y: jnp.stack([x, y], axis=1), A, B),
    "split": (lambda x: jnp.split(x, 3, axis=1), A),
    "moveaxis": (lambda x: jnp.moveaxis(x[None], 0, 2), A),
    "reshape": (lambda x: jnp.reshape(x, (3, 2), order="F"), A),
    "interp": (lambda x: jnp.interp(x, jnp.array([0.0, 0.4, 1.0]), jnp.array([1.0, 3.0, 2.0])), A),
    "searchsorted": (lambda x: jnp.searchsorted(jnp.sort(x), 0.4), ROW),
    "quantile": (lambda x: jnp.quantile(x, 0.3, axis=1), A),
    "convolve": (jnp.convolve, ROW, ROW[:3]),
    "histogram": (lambda x: jnp.histogram(x, bins=3)[0], ROW),
    "cross": (jnp.cross, A, B),
    "percentile": (lambda x: jnp.percentile(x, 40.0), ROW),
    "unwrap": (jnp.unwrap, ROW),
    "piecewise": (lambda x: jnp.piecewise(x, [x < 0.4], [jnp.sin, jnp.cos]), A),
    "vectorize": (jnp.vectorize(lambda x, y: jnp.sum(x * y), signature="(n),(n)->()"), A, B),
}


@pytest.mark.parametrize("name", NUMPY)
def test_jax_numpy(name):
    check(*NUMPY[name])


def symmetric(x):
    return x @ x.T + jnp.eye(3)


LINEAR_ALGEBRA = {
    "cholesky": (lambda x: jnp.linalg.cholesky(symmetric(x)), M),
    "eigh": (lambda x: jnp.linalg.eigh(symmetric(x))[0], M),
    "svd": (lambda x: jnp.linalg.svd(x, full_matrices=False)[1], M),
    "singular values": (lambda x: jnp.linalg.svdvals(x), M),
    "qr": (lambda x: jnp.linalg.qr(x)[1], M),
    "det": (jnp.linalg.det, M),
    "slogdet": (jnp.linalg.slogdet, M),
    "inv": (jnp.linalg.inv, M),
    "solve": (jnp.linalg.solve, M, M[:, :2]),
    "norm": (lambda x: jnp.linalg.norm(x, axis=1), A),
    "pinv": (jnp.linalg.pinv, M),
    "triangular solve": (lambda a, b: linalg.solve_triangular(a, b, trans=1, lower=True), M, M),
    "solve on the right": (
        lambda a, b: lax.linalg.triangular_solve(a, b, lower=True, transpose_a=True),
        M,
        M[:2],
    ),
    "expm": (linalg.expm, M * 0.1),
    "fft": (lambda x: jnp.fft.fft(x), A),
    "ifft2": (lambda x: jnp.fft.ifft2(x + 1j), A),
    "rfft": (lambda x: jnp.fft.rfft(x), A),
    "irfft": (lambda x: jnp.fft.irfft(x * (1 + 2j)), A),
}


@pytest.mark.parametrize("name", LINEAR_ALGEBRA)
def test_linear_algebra_and_transforms(name):
    check(*LINEAR_ALGEBRA[name], tolerance=5e-3)


LAX = {
    "scan": lambda x: lax.scan(lambda h, r: (jnp.tanh(h * r), h + r), x[0], x),
    "reversed scan": lambda x: lax.scan(
        lambda h, r: (jnp.sin(h) * r, h + r), x[0], x, reverse=True, unroll=2
    ),
    "pad": lambda x: lax.pad(x, 2.0, ((1, 2, 1), (0, -1, 0))),
    "map": lambda x: lax.map(jnp.sin, x),
    "fori_loop": lambda x: lax.fori_loop(0, 3, lambda i, h: jnp.sin(h) * (i + 1), x),
    "cond": lambda x: lax.cond(x[0, 0] > 0.5, jnp.sin, jnp.cos, x),
    "switch": lambda x: lax.switch(jnp.int32(x[0, 0] * 3), [jnp.sin, jnp.cos, lambda x: x * x], x),
    "checkpoint": lambda x: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x),
    "a policy": lambda x: jax.checkpoint(
        lambda x: jnp.sin(x @ x.T), policy=jax.checkpoint_policies.dots_saveable
    )(x),
    "associative_scan": lambda x: lax.associative_scan(jnp.add, x, axis=1),
    "top_k": lambda x: lax.top_k(x, 2),
    "sort_key_val": lambda x: lax.sort_key_val(x, x * 2),
    "dynamic_slice": lambda x: lax.dynamic_slice(x, (jnp.argmax(x[:, 0]), 1), (1, 2)),
    "dynamic_update_slice": lambda x: lax.dynamic_update_slice(
        x, x[:1, :2], (jnp.int32(1), jnp.int32(7))
    ),
    "convolution": lambda x: lax.conv(x[None, None], x[None, None, :1, :2], (1, 1), "SAME"),
    "maxima in windows": lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 1), "SAME"),
    "a reducer": lambda x: lax.reduce(x, jnp.float32(0), lambda a, b: a + b * 1.0, (1,)),
    "reduce_precision": lambda x: lax.reduce_precision(x, 8, 10),
    "a jitted function": jax.jit(lambda x: jnp.tanh(x) * 2),
    "a batch within": jax.vmap(lambda r: jnp.dot(r, r)),
    "a gradient within": jax.grad(lambda x: jnp.sum(jnp.sin(x) ** 2)),
    "a jacobian within": lambda x: jax.jacfwd(lambda r: jnp.cumsum(r * r))(x[0]),
}


@pytest.mark.parametrize("name", LAX)
def test_control_flow_and_the_rest_of_lax(name):
    check(LAX[name], A)


def test_loops_of_unknown_length_go_forward():
    def f(x):
        return lax.while_loop(lambda h: h.sum() < 50, lambda h: h * 1.5 + 1, x)

    check(f, A, derivatives=False)
    ones = onp.ones_like(A)
    for g in (f, jax.vmap(f)):
        wanted = jax.jvp(g, (A,), (ones,))[1]
        onp.testing.assert_allclose(fx.jvp(fx.from_jax(g), (A,), (ones,))[1], wanted, rtol=1e-5)
