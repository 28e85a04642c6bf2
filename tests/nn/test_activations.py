"""Activations at special points, to second order, in either mode; embeddings and dropout."""

import jax
import numpy as np
import pytest

import functx
from functx import aten, nn, random
from functx.core.errors import (
    ArgumentError,
    DTypeError,
    IndexingError,
    ShapeError,
    ValueRangeError,
)
from tests.nn.test_losses import close, program_of

INF = np.inf


def orders(f, x):
    """`f`, its slope, and the slope's slope in either mode, at each point of `x`."""
    slope = functx.grad(f)

    def at(x):
        forward = functx.jvp(slope, (x,), (functx.numpy.ones_like(x),))[1]
        return f(x), slope(x), functx.grad(slope)(x), forward

    return functx.jit(functx.vmap(at))(x)


def test_log_sigmoid_is_right_to_second_order_everywhere(x64):
    x = np.array([0.0, 1e-3, -1e-3, 30.0, -30.0, 1000.0, -1000.0])
    value, slope, second, forward = orders(nn.log_sigmoid, x)
    with np.errstate(over="ignore"):
        s = 1 / (1 + np.exp(-x))
        beside = 1 / (1 + np.exp(x))
    np.testing.assert_allclose(value, -np.logaddexp(0, -x), 1e-15)
    np.testing.assert_allclose(slope, beside, 1e-14)
    np.testing.assert_allclose(second, -s * beside, 1e-14)
    np.testing.assert_array_equal(second, forward)
    assert (slope[0], second[0]) == (0.5, -0.25)


def test_log_sigmoid_forward_gives_a_buffer_only_on_a_cpu(x64):
    x = np.array([[0.0, 2.0], [-3.0, 1000.0]])
    value, buffer = aten.log_sigmoid_forward(x, "cpu")
    close(value, nn.log_sigmoid(x))
    close(buffer, np.exp(-abs(x)))
    value, empty = aten.log_sigmoid_forward(x, "gpu")
    close(value, nn.log_sigmoid(x))
    assert empty.shape == (0,) and aten.log_sigmoid_forward(x)[1].shape == x.shape
    ct = np.array([[1.0, -1.0], [2.0, 3.0]])
    for given in (buffer, empty):
        pulled = aten.log_sigmoid_backward(ct, x, given)
        close(pulled, ct * np.array([[0.5, 1 / (1 + np.exp(2))], [1 / (1 + np.exp(-3)), 0.0]]))


def test_the_formula_of_log_sigmoid_holds_away_from_0_and_to_first_order_there(x64):
    # Its kinks at 0 cancel to first order, and not to second, which is why it has a rule.
    primitive = functx.ops.activations.LogSigmoid()
    formula = lambda x: primitive.decompose(x)  # noqa: E731
    x = np.array([0.0, 1e-3, -1e-3, 30.0, -1000.0])
    by_formula, by_rule = orders(formula, x), orders(nn.log_sigmoid, x)
    close(by_formula[0], by_rule[0])
    close(by_formula[1], by_rule[1])
    close(by_formula[2][1:], by_rule[2][1:])


LIMITS = [-INF, -1e30, -1000.0, 1000.0, 1e30, INF]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_slopes_far_out_are_those_of_nothing_and_of_the_identity(dtype):
    with np.errstate(over="ignore"):
        x = np.array(LIMITS).astype(dtype)
    activations = [nn.silu, nn.mish, nn.gelu, lambda x: nn.gelu(x, approximate=False)]
    for _, slope, second, forward in functx.jit(lambda x: [orders(f, x) for f in activations])(x):
        assert slope.tolist() == [0, 0, 0, 1, 1, 1]
        assert not np.any(second) and not np.any(forward)


def test_the_tanh_form_of_gelu_keeps_its_digits_where_it_is_small():
    x = np.array([-1.0, -3.0, -5.0, -8.0], np.float32)
    u = 2 * np.sqrt(2 / np.pi) * (x.astype(float) + 0.044715 * x.astype(float) ** 3)
    share = 1 / (1 + np.exp(-u))
    slope = share + x * share * (1 - share) * 2 * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2.0)
    value, tangent = functx.jit(lambda x: functx.jvp(nn.gelu, (x,), (np.ones_like(x),)))(x)
    np.testing.assert_allclose(value, x * share, 2e-5)
    np.testing.assert_allclose(tangent, slope, 2e-5)


# By name: the kinks or special points, and the slopes there.
KINKS = {
    "leaky_relu": (nn.leaky_relu, [-1.0, 0.0, 1.0], [0.01, 1.0, 1.0]),
    "relu": (nn.relu, [-1.0, 0.0, 1.0], [0.0, 0.0, 1.0]),
    "relu6": (nn.relu6, [0.0, 3.0, 6.0], [0.0, 1.0, 0.0]),
    "hard_tanh": (nn.hard_tanh, [-1.0, 0.0, 1.0], [0.0, 1.0, 1.0]),
    "hard_swish": (nn.hard_swish, [-3.0, 0.0, 3.0], [0.0, 0.5, 1.0]),
    "elu": (nn.elu, [-1000.0, 0.0, 1000.0], [0.0, 1.0, 1.0]),
    "softplus": (nn.softplus, [-1000.0, 0.0, 1000.0], [0.0, 0.5, 1.0]),
    "silu": (nn.silu, [-1000.0, 0.0, 1000.0], [0.0, 0.5, 1.0]),
    "mish": (nn.mish, [-1000.0, 0.0, 1000.0], [0.0, 0.6, 1.0]),
    "gelu": (nn.gelu, [-1000.0, 0.0, 1000.0], [0.0, 0.5, 1.0]),
}


def test_slopes_at_kinks_and_at_0_are_those_of_the_table(x64):
    points = [np.array(x) for _, x, _ in KINKS.values()]
    found = functx.jit(
        lambda *xs: [orders(f, x) for (f, *_), x in zip(KINKS.values(), xs, strict=True)]
    )(*points)
    for name, (_, slope, second, forward) in zip(KINKS, found, strict=True):
        close(slope, KINKS[name][2])
        np.testing.assert_allclose(second, forward, 1e-12, 1e-12)
        assert np.isfinite(second).all()


@pytest.mark.parametrize("name", ["log_sigmoid", "mish", "silu", "softplus", "gelu"])
def test_an_activation_is_one_equation(name):
    assert program_of(getattr(nn, name), np.ones(3, "float32")) == [name]


# Embeddings

TABLE = np.random.RandomState(0).normal(size=(5, 3)).astype("float32")
PLACES = np.array([[1, 4], [1, 0]])


def test_an_embedding_reads_rows_and_sums_their_cotangents():
    close(nn.embedding(PLACES, TABLE), TABLE[PLACES])
    ct = np.random.RandomState(1).normal(size=(2, 2, 3)).astype("float32")
    wanted = np.zeros_like(TABLE)
    np.add.at(wanted, PLACES, ct)
    for padding, row in ((None, None), (1, 1), (-1, 4)):
        pulled = functx.vjp(lambda w, p=padding: nn.embedding(PLACES, w, p), TABLE)[1](ct)[0]
        low = aten.embedding_backward(ct, PLACES, 5, row)
        expected = wanted.copy()
        if row is not None:
            expected[row] = 0
        close(pulled, expected, 1e-6)
        close(low, expected, 1e-6)
        pushed = functx.jvp(lambda w, p=padding: nn.embedding(PLACES, w, p), (TABLE,), (TABLE,))[1]
        kept = np.ones(5) if row is None else np.arange(5) != row
        close(pushed, (TABLE * kept[:, None])[PLACES], 1e-6)
    gradient = functx.grad(lambda w: nn.embedding(PLACES, w, 0).sum())
    assert program_of(gradient, TABLE)[-1] == "embedding_backward"
    batched = functx.vmap(nn.embedding, (0, None))(PLACES, TABLE)
    close(batched, TABLE[PLACES])


def test_mistakes_of_embeddings_are_named():
    with pytest.raises(IndexingError, match=r"indices must be in \[0, 5\); got 5 at \(0, 1\)"):
        nn.embedding(np.array([[0, 5]]), TABLE)
    with pytest.raises(DTypeError, match=r"indices must be integers; got f32\[2\]"):
        nn.embedding(np.ones(2), TABLE)
    with pytest.raises(ShapeError, match=r"must be a matrix, a row for each index; got f32\[3\]"):
        nn.embedding(np.array([0]), TABLE[0])
    with pytest.raises(ValueRangeError, match=r"padding_idx must be the number of a row .* got 7"):
        nn.embedding(PLACES, TABLE, 7)
    assert np.isnan(functx.jit(nn.embedding)(np.array([9]), TABLE)).all()


# Dropout


def test_dropout_keeps_and_scales_the_elements_of_jaxs_bernoulli():
    key, x = random.key(3), np.arange(1.0, 41.0, dtype="float32").reshape(4, 10)
    kept = np.asarray(jax.random.bernoulli(jax.random.PRNGKey(3), 0.7, x.shape))
    out = nn.dropout(x, 0.3, key)
    close(out, np.where(kept, x / np.float32(0.7), 0), 1e-6)
    for whole in (nn.dropout(x, 0.0), nn.dropout(x, 0.3, deterministic=True)):
        assert np.array_equal(whole, x) and not np.shares_memory(whole, x)
    assert not np.any(nn.dropout(x, 1.0, key))
    value, pullback = functx.vjp(lambda x: nn.dropout(x, 0.3, key), x)
    close(pullback(np.ones_like(x))[0], kept / np.float32(0.7), 1e-6)
    assert program_of(functx.grad(lambda x: nn.dropout(x, 0.3, key).sum()), x)[-1] == "dropout"
    # The same key leaves out the same of each member; keys of their own, others.
    same = functx.vmap(lambda x: nn.dropout(x, 0.3, key))(x)
    assert (np.asarray(same) != 0).all(0).any() and ((same != 0) == (same[0] != 0)).all()
    own = functx.vmap(lambda x, key: nn.dropout(x, 0.3, key))(x, random.split(key, 4))
    close(own[2], nn.dropout(x[2], 0.3, random.split(key, 4)[2]), 1e-6)


def test_mistakes_of_dropout_are_named():
    x = np.ones(3, "float32")
    with pytest.raises(
        ArgumentError, match="a key or a generator must be given, unless deterministic; got neither"
    ):
        nn.dropout(x, 0.5)
    with pytest.raises(ValueRangeError, match=r"rate must be a probability, from 0 to 1; got 1.5"):
        nn.dropout(x, 1.5, random.key(0))
    with pytest.raises(ShapeError, match=r"the key must be one key, u32\[2\]; got u32\[2,2\]"):
        nn.dropout(x, 0.5, random.split(random.key(0)))


@pytest.mark.parametrize("x64", [False, True])
def test_integers_and_booleans_become_floats_as_in_jax(x64):
    names = "elu celu selu leaky_relu hard_sigmoid hard_swish relu6 relu sparse_plus sparse_sigmoid"
    names += " softplus soft_sign mish"
    with jax.enable_x64(x64):
        for name in names.split():
            for dtype in ("int32", "uint8", "bool"):
                x = jax.ShapeDtypeStruct((2,), dtype)
                expected = jax.eval_shape(getattr(jax.nn, name), x).dtype
                assert functx.eval_shape(getattr(nn, name), x).dtype == expected, (name, dtype)
    np.testing.assert_array_equal(nn.hard_tanh(np.uint8([0, 1, 9])), np.uint8([0, 1, 1]))
