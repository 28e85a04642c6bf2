"""Attention against JAX's, against its own definition, and in memory."""

from functools import partial

import jax
import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.core.rewriting import cached_rewrite
from functx.nn import dot_product_attention
from functx.transforms.reverse_mode import SplitVJP

RNG = onp.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


Q, K, V = normal(2, 5, 4, 3), normal(2, 5, 2, 3), normal(2, 5, 2, 3)
BIAS = normal(1, 4, 5, 5)
MASK = RNG.random((2, 1, 5, 5)) < 0.6
MASK[..., 0] = True

OPTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "bias": {"bias": BIAS},
    "bias of rows": {"bias": BIAS[:, :1, :, :1]},
    "mask": {"mask": MASK},
    "all": {"bias": BIAS, "mask": MASK, "is_causal": True},
    "window": {"local_window_size": (2, 1)},
    "scale": {"scale": 0.3},
    "lengths": {"key_value_seq_lengths": onp.array([3, 5], "int32")},
}


def pulled(attend, options, framework):
    bias = options.get("bias")
    rest = {k: v for k, v in options.items() if k != "bias"}
    count = 3 if bias is None else 4

    def loss(*args):
        return (attend(*args[:3], args[3] if bias is not None else None, **rest) ** 2).sum()

    return framework.jit(framework.grad(loss, tuple(range(count))))(Q, K, V, bias)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("block", [512, 2])
def test_values_and_gradients_are_those_of_jax(options, block):
    ours = partial(dot_product_attention, block_size=block)
    theirs = jax.nn.dot_product_attention
    wanted = jax.jit(partial(theirs, **options))(Q, K, V)
    onp.testing.assert_allclose(ours(Q, K, V, **options), wanted, atol=2e-6)
    for x, y in zip(pulled(ours, options, fx), pulled(theirs, options, jax), strict=True):
        onp.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.parametrize("block", [512, 2])
def test_second_derivatives_are_those_of_jax(block):
    def forward_over_reverse(attend, framework):
        def loss(q, k, v):
            return (attend(q, k, v, is_causal=True) ** 2).sum()

        slope = framework.grad(loss, (0, 1, 2))
        along = framework.jit(lambda *args: framework.jvp(slope, args[:3], args[3:])[1])
        return along(Q, K, V, Q[::-1], K[::-1], V[::-1])

    ours = forward_over_reverse(partial(dot_product_attention, block_size=block), fx)
    theirs = forward_over_reverse(jax.nn.dot_product_attention, jax)
    for x, y in zip(ours, theirs, strict=True):
        onp.testing.assert_allclose(x, y, atol=2e-4)


@pytest.mark.parametrize("block", [512, 2])
@pytest.mark.parametrize("axes", [(0, 0, 0, None), (0, None, None, None), (None, 0, 0, 0)])
def test_mapped_attention_and_its_gradients_are_those_of_a_loop(block, axes):
    def f(q, k, v, bias):
        return dot_product_attention(q, k, v, bias, block_size=block)

    whole = [onp.stack([x, -x, 2 * x]) for x in (Q, K, V, BIAS)]
    args = [x if axis == 0 else x[0] for x, axis in zip(whole, axes, strict=True)]
    for fun in (f, fx.grad(lambda *args: (f(*args) ** 2).sum(), 3)):
        lanes = [
            fun(*[x if axis is None else x[i] for x, axis in zip(args, axes, strict=True)])
            for i in range(3)
        ]
        onp.testing.assert_allclose(fx.vmap(fun, axes)(*args), onp.stack(lanes), atol=1e-5)


@pytest.mark.parametrize("block", [512, 2])
def test_a_query_that_sees_no_key_gets_zeros_and_has_no_derivative(block):
    mask = onp.ones((5, 5), bool)
    mask[1] = False

    def f(q):
        return dot_product_attention(q, K, V, mask=mask, block_size=block)

    out, tangent = fx.jvp(f, (Q,), (Q,))
    assert not out[:, 1].any() and out[:, 0].all() and not tangent[:, 1].any()
    gradient = fx.grad(lambda q: f(q).sum())(Q)
    assert onp.isfinite(gradient).all() and not gradient[:, 1].any()
    hidden = fx.grad(lambda b: dot_product_attention(Q, K, V, b).sum())(onp.full((5, 5), -onp.inf))
    assert not hidden.any()


def test_queries_behind_the_end_get_zeros():
    ends = onp.array([2, 5], "int32")
    out = dot_product_attention(Q, K, V, query_seq_lengths=ends)
    assert not out[0, 2:].any()
    onp.testing.assert_array_equal(out[1], dot_product_attention(Q, K, V)[1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_are_as_good_as_their_precision(dtype):
    q, k, v = [np.astype(x, dtype) for x in (Q, K, V)]
    out = dot_product_attention(q, k, v, block_size=2)
    exact = dot_product_attention(*[np.astype(x, "float32") for x in (q, k, v)])
    assert out.dtype == dtype
    onp.testing.assert_allclose(out.astype("float32"), exact, atol=2e-2)
    slopes = fx.grad(lambda *args: dot_product_attention(*args).sum(), (0, 1, 2))(q, k, v)
    assert {str(x.dtype) for x in slopes} == {dtype}


@pytest.mark.parametrize("scale", [0.0, 1000.0])
def test_extreme_scores_are_finite_in_both_modes(scale):
    def loss(q):
        return dot_product_attention(q, K, V, block_size=2).sum()

    slope = fx.grad(loss)
    for x in (slope(scale * Q), fx.jacfwd(loss)(scale * Q), fx.jvp(slope, (scale * Q,), (Q,))[1]):
        assert onp.isfinite(x).all()


@pytest.mark.parametrize("shape", [(0, 4, 2, 3), (2, 0, 2, 3), (2, 4, 2, 0)])
def test_nothing_is_attended_to_in_empty_arrays(shape):
    x = onp.zeros(shape, "float32")
    assert dot_product_attention(x, x, x).shape == shape
    assert fx.grad(lambda x: dot_product_attention(x, x, x).sum())(x).shape == shape


def test_without_a_batch_there_is_none_in_the_result():
    out, logs = dot_product_attention(Q[0], K[0], V[0], return_residual=True)
    whole, whole_logs = dot_product_attention(Q, K, V, return_residual=True)
    onp.testing.assert_allclose(out, whole[0], atol=1e-6)
    onp.testing.assert_allclose(logs, whole_logs[0], atol=1e-6)
    half = jax.numpy.asarray(Q[0], "bfloat16")
    assert dot_product_attention(half, half, half, return_residual=True)[1].dtype == half.dtype


@pytest.mark.usefixtures("all_kept")
def test_a_gradient_is_one_equation_with_the_residuals_of_flash_attention():
    program = fx.make_ir(fx.grad(lambda q: dot_product_attention(q, K, V).sum()))(Q)
    names = [eqn.primitive.name for eqn in program]
    assert (
        names.count("dot_product_attention") == names.count("dot_product_attention_backward") == 1
    )
    assert "scan" not in names and "exp" not in names


def test_the_way_back_keeps_operands_output_and_logarithms():
    program = fx.make_ir(partial(dot_product_attention, is_causal=True))(Q, K, V)
    kept = len(program.outputs), cached_rewrite(SplitVJP((True,) * 3), program)[0].outputs
    shapes = sorted(x.aval.shape for x in kept[1][kept[0] :])
    grouped = (2, 5, 2, 2, 3)
    assert shapes == sorted([grouped, K.shape, V.shape, grouped, (2, 2, 5, 2)])


@pytest.mark.parametrize("gradient", [False, True])
def test_memory_grows_with_the_length_and_not_its_square(gradient):
    def bytes_at(length):
        x = jax.ShapeDtypeStruct((1, length, 1, 8), "float32")

        def loss(x):
            return dot_product_attention(x, x, x, is_causal=True, block_size=128).sum()

        compiled = fx.jit(fx.grad(loss) if gradient else loss).lower(x).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert bytes_at(4096) < 2.5 * bytes_at(2048)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"key": K[:, :, :, :2]}, "ShapeError", "the key its size; got shapes (2, 5, 4, 3)"),
        ({"key": normal(2, 5, 3, 3), "value": normal(2, 5, 3, 3)}, "ShapeError", "got 4 and 3"),
        ({"query": Q[0]}, "ShapeError", "or all without batch; got shapes (1, 5, 4, 3)"),
        ({"bias": BIAS[:, :3]}, "ShapeError", "bias must be broadcast to (batch, heads, queries"),
        ({"mask": BIAS}, "DTypeError", "mask must be boolean; got f32[1,2,5,2,5]"),
        (
            {"query_seq_lengths": [1.0, 2.0]},
            "ArgumentError",
            "must be 2 integers, one for each batch element",
        ),
        ({"local_window_size": -1}, "ValueRangeError", "must not be negative; got -1"),
        ({"block_size": 0}, "ValueRangeError", "block_size must be positive; got 0"),
        ({"implementation": "cudnn"}, "ValueRangeError", "functx.from_jax"),
    ],
)
def test_mistakes_are_named(change, kind, message):
    with pytest.raises(getattr(fx.errors, kind)) as caught:
        dot_product_attention(**{"query": Q, "key": K, "value": V, **change})
    assert message in str(caught.value)
