"""Transposes of linear functions, and the errors for functions that are not linear."""

import jax
import jax.numpy as jnp
import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.core.errors import (
    ArgumentError,
    GradientError,
    LinearityError,
    TangentError,
    TreeError,
)

ROW = onp.array([1.0, 2.0, 3.0], onp.float32)
MATRIX = onp.arange(6, dtype=onp.float32).reshape(2, 3)


def several(xp):
    return lambda d: {"a": d["u"][::2], "b": d["v"] @ MATRIX.T, "c": -d["u"].sum() + d["v"][1]}


FUNCTIONS = {
    "scaled": (lambda xp: lambda x: 3.0 * x - x[::-1], [ROW], ROW),
    "two": (lambda xp: lambda x, y: 2.0 * x.sum() - y, [ROW, 1.0], 2.0),
    "matrix": (lambda xp: lambda x: MATRIX @ x, [ROW], ROW[:2]),
    "tree": (several, [{"u": onp.ones(4, onp.float32), "v": ROW}], {"a": ROW[:2], "b": ROW[:2], "c": 2.0}),
    "pieces": (lambda xp: lambda x: xp.concatenate([x, xp.zeros(2), x[1:]]), [ROW], onp.ones(7, onp.float32)),
    "chosen": (lambda xp: lambda x: xp.where(onp.array([True, False, True]), x, 0.0), [ROW], ROW),
    "integers": (lambda xp: lambda n: 2 * n + n, [onp.arange(3)], onp.arange(3)),
    "complex": (lambda xp: lambda z: (2.0 + 1.0j) * z, [onp.complex64(1j)], onp.complex64(3.0)),
}  # fmt: skip


@pytest.mark.parametrize(("make", "primals", "ct"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_transpose_is_that_of_jax(make, primals, ct):
    want = jax.linear_transpose(make(jnp), *primals)(ct)
    types = fx.tree.map(lambda x: jax.ShapeDtypeStruct(onp.shape(x), jnp.result_type(x)), primals)
    jitted = fx.jit(lambda ct: fx.linear_transpose(make(np), *types)(ct))
    for got in (
        fx.linear_transpose(make(np), *primals)(ct),
        fx.linear_transpose(fx.jit(make(np)), *types)(ct),
        jitted(ct),
    ):
        assert fx.tree.structure(got) == fx.tree.structure(want)
        for a, b in zip(fx.tree.leaves(got), fx.tree.leaves(want), strict=True):
            onp.testing.assert_allclose(a, b, rtol=1e-6)
            assert onp.asarray(a).dtype == onp.asarray(b).dtype


def test_transposes_nest_with_other_transforms():
    transpose = fx.linear_transpose(lambda x: MATRIX @ x, ROW)
    onp.testing.assert_allclose(fx.vmap(transpose)(onp.eye(2, dtype=onp.float32))[0], MATRIX)
    onp.testing.assert_allclose(
        fx.linear_transpose(lambda ct: transpose(ct)[0], ROW[:2])(ROW)[0], MATRIX @ ROW
    )
    of_weight = fx.grad(lambda w: fx.linear_transpose(lambda x: w * x, 1.0)(2.0)[0])
    assert float(of_weight(5.0)) == 2.0
    loop = fx.linear_transpose(lambda x: fx.lax.scan(lambda c, _: (2.0 * c, c), x, length=3), ROW)
    onp.testing.assert_allclose(loop((ROW, onp.stack([ROW] * 3)))[0], 15.0 * ROW)
    # What does not get a cotangent has a zero one.
    x, y = fx.linear_transpose(lambda x, y: (x, 2.0 * y), ROW, ROW)((None, ROW))
    onp.testing.assert_allclose(x, onp.zeros(3))
    onp.testing.assert_allclose(y, 2.0 * ROW)


def transpose(f, *primals):
    return lambda: fx.linear_transpose(f, *primals)


@pytest.mark.parametrize(
    ("make", "kind", "match"),
    [
        (transpose(lambda x: x * x, 1.0), LinearityError, "must be linear; got mul: it is not"),
        (transpose(np.sin, 1.0), LinearityError, "got sin: it is not linear"),
        (transpose(lambda x: 1.0 / x, 1.0), LinearityError, "got div: it is not linear"),
        (transpose(lambda x: x**3, 1.0), LinearityError, "got integer_pow"),
        (transpose(fx.jit(np.exp), 1.0), LinearityError, "got exp: it is not linear"),
        (transpose(lambda x: x + 1.0, 1.0), LinearityError, "got add: it adds a constant"),
        (transpose(lambda x: ROW - x, 1.0), LinearityError, "got sub: it adds a constant"),
        (
            transpose(lambda x: np.concatenate([x, np.ones(1)]), ROW),
            LinearityError,
            "it adds a constant",
        ),
        (transpose(lambda x: np.where(x > 0, x, 0.0), 1.0), LinearityError, "got gt: its output"),
        (transpose(lambda x: (x, 1.0), 1.0), LinearityError, "an output that does not depend"),
        (transpose(lambda x: x.astype(int), 1.0), GradientError, r"got ~f32\[\] -> i32\[\]"),
        (transpose(lambda x, n: x * 1.0, 1.0, 3), GradientError, "inexact arrays to inexact"),
        (transpose(lambda: 1.0), LinearityError, "does not depend on its arguments"),
        (transpose(lambda x: x, {"a": "b"}), ArgumentError, r"got str for `x\['a'\]`"),
        (transpose(3, 1.0), ArgumentError, "must be a function; got int"),
        (
            lambda: fx.linear_transpose(lambda x: {"a": x}, ROW)(ROW),
            TreeError,
            "must have the structure of the output",
        ),
        (
            lambda: fx.linear_transpose(lambda x: {"a": x}, ROW)({"a": ROW[:2]}),
            TangentError,
            r"got f32\[2\] for output\['a'\]: f32\[3\]",
        ),
        (
            lambda: fx.linear_transpose(lambda x: x, ROW)(onp.arange(3)),
            TangentError,
            r"got i32\[3\] for output: f32\[3\]",
        ),
    ],
)
def test_mistakes_are_named(make, kind, match):
    with pytest.raises(kind, match=match) as error:
        make()
    assert type(error.value) is kind
    assert "linear_transpose" in str(error.value)


@pytest.mark.parametrize(
    "zeros",
    [lambda: 0.0 * np.asarray(ROW), lambda: np.where(ROW > 1.0, 0.0, np.zeros(3))],
    ids=["product", "choice"],
)
def test_a_constant_that_is_known_to_be_zero_may_be_added(zeros):
    transpose = fx.linear_transpose(lambda x: 2.0 * x + zeros(), ROW)
    assert onp.array_equal(transpose(ROW)[0], 2.0 * ROW)


def test_a_linearized_function_may_write_into_a_new_array():
    def table(x):
        rows = np.zeros((2, 3))
        rows[0] = np.sin(x)
        rows[1] = rows[0] * 2.0
        return rows.sum(axis=0)

    for f in (table, fx.jit(table), fx.checkpoint(table)):
        (got,) = fx.linear_transpose(fx.linearize(f, ROW)[1], ROW)(ROW)
        onp.testing.assert_allclose(got, 3.0 * onp.cos(ROW) * ROW, rtol=1e-6)


@pytest.mark.parametrize(
    "divisor",
    [
        lambda: -np.zeros(3),
        lambda: np.full(3, -0.0),
        lambda: np.zeros(3) * -1.0,
        lambda: np.broadcast_to(0.0, (3,)),
        lambda: np.zeros(3) * np.array(onp.inf),
    ],
    ids=["negative", "full of -0.0", "product", "weakly typed", "nan"],
)
def test_linearize_keeps_the_bits_of_constants_that_look_like_zeros(divisor):
    def f(x):
        return x / divisor()

    expected = fx.jvp(f, (ROW,), (ROW,))[1]
    assert onp.array_equal(fx.linearize(f, ROW)[1](ROW), expected, equal_nan=True)
    got = fx.jit(lambda x, t: fx.linearize(f, x)[1](t))(ROW, ROW)
    assert onp.array_equal(got, expected, equal_nan=True)


@pytest.mark.parametrize("factor", [None, 1.01], ids=["squares", "products"])
def test_linearize_takes_long_chains_of_products(factor):
    def f(x):
        y = fx.lax.stop_gradient(np.cos(x))
        for _ in range(500):
            y = y * (y if factor is None else factor)
        return x * y

    def g(x):
        y = fx.jvp(f, (x,), (x,))[1]
        return fx.linear_transpose(lambda t: t + 0.0 * y, x)(x)[0]

    onp.testing.assert_allclose(fx.linearize(f, ROW)[1](ROW), f(ROW), rtol=1e-6)
    onp.testing.assert_allclose(fx.jit(g)(ROW), ROW)


def test_the_error_of_a_function_that_is_not_linear_has_its_line():
    def f(x):
        y = 2.0 * x
        return y * y

    with pytest.raises(LinearityError) as error:
        fx.linear_transpose(f, 1.0)
    assert f"test_linear_transpose.py:{f.__code__.co_firstlineno + 2} in" in str(error.value)
    assert "return y * y" in str(error.value)


@pytest.mark.parametrize(
    ("tangents", "kind", "match"),
    [
        ((ROW,), TreeError, "must have the structure of primals"),
        ((ROW, {"b": 1.0}), TreeError, "must have the structure of primals"),
        ((ROW[:2], {"a": 1.0}), TangentError, r"got f32\[2\] for `x`: f32\[3\]"),
        ((ROW, {"a": 1j}), TangentError, r"got c64\[\]|got ~c64\[\] for `y\['a'\]`"),
    ],
)
def test_linearize_checks_its_tangents(tangents, kind, match):
    _, push = fx.linearize(lambda x, y: x * y["a"], ROW, {"a": onp.float32(2.0)})
    with pytest.raises(kind, match=match):
        push(*tangents)


@pytest.mark.parametrize("dtype", [onp.float32, jnp.bfloat16, onp.complex64])
def test_a_python_number_takes_the_dtype_of_its_primal(dtype, x64):
    x = onp.asarray(2.0).astype(dtype)
    double = fx.linear_transpose(lambda x: 2.0 * x, x)
    found = [
        fx.jvp(lambda x: 2.0 * x, (x,), (1.0,))[1],
        fx.linearize(lambda x: 2.0 * x, x)[1](1),
        fx.vjp(lambda x: 2.0 * x, x)[1](1.0)[0],
        double(1.0)[0],
        double(1)[0],
    ]
    assert [(complex(t), t.dtype) for t in found] == [(2.0, onp.dtype(dtype))] * 5


def test_stop_gradient_of_a_pytree():
    def f(p):
        held = fx.stop_gradient({"a": p["a"], "n": (p["n"], None, 3)})
        return held["a"] * p["a"] * p["n"] * held["n"][2]

    grads = fx.grad(f)({"a": 2.0, "n": 5.0})
    assert fx.tree.map(float, grads) == {"a": 30.0, "n": 12.0}
    out = fx.stop_gradient((ROW, {"n": 3}))
    onp.testing.assert_array_equal(out[0], ROW)
    assert int(out[1]["n"]) == 3


def test_terms_that_are_not_selected_have_no_influence_on_a_transpose():
    bad, good = onp.array([onp.nan, 2.0, onp.inf]), onp.array([3.0, 5.0, 7.0])
    valid = onp.isfinite(bad)

    def scale(t):
        return np.where(valid, t * bad, (t * good)[::-1][::-1])

    (ct,) = fx.linear_transpose(scale, onp.zeros(3))(onp.ones(3))
    onp.testing.assert_allclose(ct, [3.0, 2.0, 7.0])

    function = fx.custom_jvp(lambda x: scale(x))
    function.defjvp(lambda primals, tangents: (scale(*primals), scale(*tangents)))
    onp.testing.assert_allclose(fx.grad(lambda x: function(x).sum())(onp.ones(3)), [3.0, 2.0, 7.0])
