"""The backward of layer and batch norm: right to every order, though statistics were saved."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functx
from functx import aten, nn
from functx.core.errors import ArgumentError, FunctxError, ShapeError
from functx.core.rewriting import cached_rewrite
from functx.ops.arithmetic import div, mul, sub
from functx.ops.batch_norm import BatchNormInference
from functx.ops.powers import square
from functx.ops.shapes import broadcast_in_dim
from functx.ops.statistics import Standardized, standardize, standardize_jacobian
from functx.ops.transcendental import rsqrt
from functx.testing import f32
from functx.transforms.decompose import builtin_decomposition
from functx.transforms.reverse_mode import SplitVJP

EPS = 1e-2
pytestmark = pytest.mark.usefixtures("x64")


def rows(*shape, seed=0, scale=1.0):
    return np.random.RandomState(seed).normal(size=shape) * scale


def layer(x, w, b, eps=EPS):
    """Layer norm by its definition."""
    m, v = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - m) / (v + eps) ** 0.5 * w + b


def batch(x, w, b, eps=EPS):
    """Batch norm in training by its definition."""
    axes, kept = (0, *range(2, x.ndim)), (-1, *[1] * (x.ndim - 2))
    m, v = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - m) / (v + eps) ** 0.5 * w.reshape(kept) + b.reshape(kept)


def saved(x, axes, eps=EPS, keepdims=True):
    """The mean and 1 / sqrt(variance + eps) that a forward computation leaves."""
    m, v = x.mean(axes, keepdims=keepdims), x.var(axes, keepdims=keepdims)
    return m, 1 / np.sqrt(v + eps)


def pulled(definition):
    """The cotangents of x, w and b as a function of them and of that of the output."""
    return lambda g, *primals: jax.vjp(definition, *primals)[1](g)


# The tangents of a backward with saved statistics: right, and wrong in two ways.


def tangent_error(backward, definition, primals, order=1):
    """How far the tangents of `backward` are from those of the true one, at that order."""
    tangents = [rows(*x.shape, seed=9 + i) for i, x in enumerate(primals)]

    def along(jvp, f):
        return lambda *xs: jvp(f, tuple(xs), tuple(tangents))[1]

    ours, theirs = backward, pulled(definition)
    for _ in range(order):
        ours, theirs = along(functx.jvp, ours), along(jax.jvp, theirs)
    # A wrong rule gives the cotangent of x alone.
    pairs = zip(functx.jit(ours)(*primals), jax.jit(theirs)(*primals), strict=False)
    return max(np.abs(np.asarray(a) - b).max() for a, b in pairs)


def of_layer(x):
    mean, rstd = saved(x, -1)
    return lambda g, x, w, b: aten.native_layer_norm_backward(
        g, x, x.shape[-1:], mean, rstd, w, b, (True, True, True)
    )


def with_saved_statistics(x):
    """The circulating rule: what was saved is taken as it is, so that it does not vary."""
    mean, rstd = saved(x, -1)

    def backward(g, x, w, b):
        out = (x - mean) * rstd
        found = Standardized(
            out, mean[:, 0], None, broadcast_in_dim(rstd[:, 0], rstd.shape[:1], (0,))
        )
        g = mul(g, broadcast_in_dim(w, x.shape, (1,)))
        return [standardize_jacobian(g, found, (1,))]

    return backward


def with_varying_eps(x):
    """The eps, recovered from what was saved, varies with the variance that it cancels."""
    _, rstd = saved(x, -1, keepdims=False)

    def backward(g, x, w, b):
        found = standardize(x, (1,), EPS)
        recovered = sub(div(1.0, square(rstd)), found.variance)
        found = found._replace(rstd=rsqrt(found.variance + recovered))
        centered = sub(x, broadcast_in_dim(found.mean, x.shape, (0,)))
        found = found._replace(x=mul(centered, broadcast_in_dim(found.rstd, x.shape, (0,))))
        g = mul(g, broadcast_in_dim(w, x.shape, (1,)))
        return [standardize_jacobian(g, found, (1,))]

    return backward


def layer_primals(scale=0.5):
    x = rows(3, 5, scale=scale)
    return rows(3, 5, seed=1), x, rows(5, seed=2), rows(5, seed=3)


@pytest.mark.parametrize("order", [1, 2])
def test_tangents_of_layer_norm_backward_are_those_of_the_true_one(order):
    primals = layer_primals()
    assert tangent_error(of_layer(primals[1]), layer, primals, order) < 2e-13 * 20**order


@pytest.mark.parametrize("wrong", [with_saved_statistics, with_varying_eps])
def test_the_check_of_tangents_finds_the_wrong_rules(wrong):
    primals = layer_primals()
    values = functx.jit(wrong(primals[1]))(*primals)
    np.testing.assert_allclose(values[0], pulled(layer)(*primals)[0], atol=1e-13)
    assert tangent_error(wrong(primals[1]), layer, primals) > 1


@pytest.mark.parametrize(("shape", "order"), [((3, 4, 2, 2), 1), ((4, 3), 2)])
def test_tangents_of_batch_norm_backward_are_those_of_the_true_one(shape, order):
    x, c = rows(*shape), shape[1]
    mean, invstd = saved(x, (0, *range(2, x.ndim)), keepdims=False)

    def backward(g, x, w, b):
        return aten.native_batch_norm_backward(
            g, x, w, None, None, mean, invstd, True, EPS, (True, True, True)
        )

    primals = rows(*shape, seed=1), x, rows(c, seed=2), rows(c, seed=3)
    assert tangent_error(backward, batch, primals, order) < 1e-12 * 20**order


def test_tangents_of_batch_norm_backward_in_evaluation():
    mean, var = rows(4, seed=4), rows(4, seed=5) ** 2 + 0.5

    def definition(x, w, b):
        kept = (-1, 1, 1)
        out = (x - mean.reshape(kept)) / np.sqrt(var.reshape(kept) + EPS)
        return out * w.reshape(kept) + b.reshape(kept)

    def backward(g, x, w, b):
        return aten.native_batch_norm_backward(
            g, x, w, mean, var, None, None, False, EPS, (True, True, True)
        )

    primals = rows(3, 4, 2, 2, seed=1), rows(3, 4, 2, 2), rows(4, seed=2), rows(4, seed=3)
    assert tangent_error(backward, definition, primals) < 1e-12


def test_evaluation_takes_one_root_and_no_reciprocal():
    primitive = BatchNormInference(eps=EPS, weighted=True, biased=True, axes=(0, 2))
    avals = (f32[3, 4, 2], *[f32[4]] * 4)
    names = [eqn.primitive.name for eqn in builtin_decomposition(primitive, avals)]
    assert names.count("rsqrt") == 1
    assert not {"div", "reciprocal", "sqrt"} & set(names)


# The third derivative of layer norm, by the composite.


def test_third_order_of_layer_norm_equals_the_direct_definition():
    x, t, u, g = rows(2, 4), rows(2, 4, seed=1), rows(2, 4, seed=2), rows(2, 4, seed=3)
    w, b = rows(4, seed=4), rows(4, seed=5)

    def third(m, f, x):
        def pull(x):
            return m.vjp(lambda x: f(x, w, b), x)[1](g)[0]

        def along(x):
            return m.jvp(pull, (x,), (t,))[1]

        return m.jvp(along, (x,), (u,))[1]

    ours = functx.jit(
        lambda x: third(functx, lambda x, w, b: nn.layer_norm(x, 4, w, b, EPS), x),
    )(x)
    theirs = jax.jit(lambda x: third(jax, layer, x))(x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-11)


# A static eps, and one recovered from what was saved.


def test_a_static_and_a_recovered_eps_agree_to_second_order():
    g, x, w, b = layer_primals()

    def static(g, x, w, b):
        return functx.vjp(lambda x, w, b: nn.layer_norm(x, 5, w, b, EPS), x, w, b)[1](g)

    recovered = of_layer(x)

    def transformed(pull, g, x, w, b):
        return (
            pull(g, x, w, b),
            functx.jvp(pull, (g, x, w, b), (x, g, b, w)),
            functx.vjp(pull, g, x, w, b)[1]((x, w, b)),
            functx.vmap(pull, (0, 0, None, None))(g[None], x[None], w, b),
        )

    both = functx.jit(lambda *args: [transformed(pull, *args) for pull in (static, recovered)])
    pairs = zip(*map(functx.tree.leaves, both(g, x, w, b)), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_a_recovered_eps_may_be_lost_in_rounding_and_yet_serve(scale):
    g, x, w, b = [a.astype("float32") for a in layer_primals(scale)]
    true = 1e-5
    mean, rstd = [a.astype("float32") for a in saved(x.astype("float64"), -1, true)]
    variance = x.astype("float64").var(-1, keepdims=True).astype("float32")
    implied = 1 / np.square(rstd) - variance
    if scale == 1.0:
        np.testing.assert_allclose(implied, true, rtol=0.02)
    else:
        assert np.abs(implied - true).max() > 1e-3
    found = aten.native_layer_norm_backward(g, x, (5,), mean, rstd, w, b, (True,) * 3)
    truth = jax.vjp(
        lambda x, w, b: layer(x, w, b, true), *[a.astype("float64") for a in (x, w, b)]
    )[1](g.astype("float64"))
    for one, other in zip(found, truth, strict=True):
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * np.abs(other).max())


def test_recomputed_statistics_have_the_shape_asked_for_and_vary():
    x = rows(3, 4)
    mean, rstd = saved(x, 1)
    for keepdim, shape in ((True, (3, 1)), (False, (3,))):
        found = aten.recompute_mean_var(x, rstd, (1,), keepdim)
        assert [part.shape for part in found] == [shape, shape]
        for part, wanted in zip(found, (mean, rstd), strict=True):
            np.testing.assert_allclose(np.ravel(part), np.ravel(wanted), rtol=1e-12)
    ours = functx.jvp(lambda x: aten.recompute_mean_var(x, rstd, 1), (x,), (rows(3, 4, seed=1),))[1]
    theirs = jax.jvp(
        lambda x: (x.mean(1, keepdims=True), (x.var(1, keepdims=True) + EPS) ** -0.5),
        (x,),
        (rows(3, 4, seed=1),),
    )[1]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11)


# Masks, absent operands and empty arrays.

MASKS = list(product([False, True], repeat=3))


def same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert np.shape(one) == np.shape(other)
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_each_mask_of_layer_norm_backward(weighted, biased):
    g, x, w, b = layer_primals()
    mean, rstd = saved(x, -1)
    truth = pulled(layer)(g, x, w if weighted else np.ones(5), b)
    backward = aten.native_layer_norm_backward
    of_each = functx.jit(
        lambda g, x, w, b: [backward(g, x, (5,), mean, rstd, w, b, mask) for mask in MASKS]
    )
    there = weighted, biased
    found_of_each = of_each(g, x, w if weighted else None, b if biased else None)
    for mask, found in zip(MASKS, found_of_each, strict=True):
        affine = [
            (part if on else np.zeros(5)) if given else np.zeros(())
            for part, on, given in zip(truth[1:], mask[1:], there, strict=True)
        ]
        same(found, [truth[0] if mask[0] else np.zeros_like(x), *affine])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_each_mask_of_batch_norm_backward(weighted, train):
    g, x, w = rows(4, 3, 2, seed=1), rows(4, 3, 2), rows(3, seed=2)
    mean, invstd = saved(x, (0, 2), keepdims=False)
    var = 1 / invstd**2 - EPS
    if train:
        definition = batch
    else:

        def definition(x, w, b):
            return (x - mean[:, None]) * invstd[:, None] * w[:, None] + b[:, None]

    truth = pulled(definition)(g, x, w if weighted else np.ones(3), np.zeros(3))
    backward, statistics = aten.native_batch_norm_backward, (mean, var, mean, invstd)
    of_each = functx.jit(
        lambda g, x, w: [backward(g, x, w, *statistics, train, EPS, mask) for mask in MASKS]
    )
    of_weight = np.zeros(3) if weighted else np.zeros(())
    for mask, found in zip(MASKS, of_each(g, x, w if weighted else None), strict=True):
        # The first result is there whatever the mask says.
        same(
            found,
            [truth[0], truth[1] if mask[1] else of_weight, truth[2] if mask[2] else np.zeros(3)],
        )


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0), (2, 0, 4)])
def test_layer_norm_backward_of_nothing_is_zeros(shape):
    x, w = np.zeros(shape), np.ones(shape[-1:])
    kept = (*shape[:-1], 1)
    for mask, weight in product([(True, True, True), (False, False, False)], [w, None]):
        found = aten.native_layer_norm_backward(
            x, x, shape[-1:], np.zeros(kept), np.ones(kept), weight, None, mask
        )
        same(found, [np.zeros(shape), np.zeros(shape[-1:]), np.zeros(shape[-1:])])

    def pull(x, w):
        return functx.vjp(lambda x, w: nn.layer_norm(x, shape[-1:], w), x, w)[1](x)

    same(pull(x, w), [np.zeros(shape), np.zeros(shape[-1:])])


@pytest.mark.parametrize("shape", [(0, 3), (0, 3, 2), (2, 3, 0), (2, 0)])
def test_batch_norm_backward_of_nothing_is_zeros(shape):
    x, w = np.zeros(shape), np.ones(shape[1])
    found = aten.native_batch_norm_backward(
        x, x, w, None, None, 0 * w, w, True, EPS, (True, True, True)
    )
    same(found, [np.zeros(shape), np.zeros(shape[1]), np.zeros(shape[1])])
    out, mean, var = nn.batch_norm(x, 0 * w + 2, w, w, w, training=True)
    same((out, mean, var), (x, 0 * w + 2, w))


def test_batch_norm_backward_of_one_element_is_zero():
    x, ones = np.full((1, 3), 7.0), np.ones(3)
    found = aten.native_batch_norm_backward(
        ones[None], x, ones, None, None, x[0], ones / np.sqrt(EPS), True, EPS, (True,) * 3
    )
    same(found, [np.zeros((1, 3)), np.zeros(3), ones])


# Other signatures of the same.


def test_other_signatures_of_batch_norm_backward_differ_in_order_alone():
    g, x, w = rows(4, 3, seed=1), rows(4, 3), rows(3, seed=2)
    mean, invstd = saved(x, 0, keepdims=False)
    wanted = aten.native_batch_norm_backward(
        g, x, w, mean, invstd, mean, invstd, True, EPS, (True,) * 3
    )
    for found in (
        aten.batch_norm_backward(
            g, x, w, mean, invstd, mean, invstd, True, EPS, (True,) * 3, np.zeros(0)
        ),
        aten.cudnn_batch_norm_backward(x, g, w, mean, invstd, mean, invstd, EPS, np.zeros(0)),
        aten.miopen_batch_norm_backward(x, g, w, mean, invstd, mean, invstd, EPS),
    ):
        same(found, wanted)


# Dtypes.


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_computed_with_in_single_precision(dtype):
    g, x, w, b = [jnp.asarray(a, dtype) for a in layer_primals(2.0)]
    wide = [np.asarray(a, "float64") for a in (g, x, w, b)]
    stats = [a.astype("float32") for a in saved(wide[1], -1)]
    found = aten.native_layer_norm_backward(g, x, (5,), *stats, w, b, (True,) * 3)
    digits = float(jnp.finfo(dtype).eps)
    for one, other in zip(found, pulled(layer)(*wide), strict=True):
        assert one.dtype == dtype
        # One rounding, of the result.
        np.testing.assert_allclose(np.asarray(one, "float64"), other, digits, 1e-6)


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_half_input_with_wide_statistics_gives_wide_cotangents_of_these(dtype, train):
    g, x = jnp.asarray(rows(4, 3, seed=1), dtype), jnp.asarray(rows(4, 3), dtype)
    w, wide = rows(3, seed=2).astype("float32"), np.asarray(x, "float32")
    mean, invstd = saved(wide, 0, keepdims=False)
    var = wide.var(0)
    found = aten.native_batch_norm_backward(
        g, x, w, mean, var, mean, invstd, train, EPS, (True,) * 3
    )
    assert [str(part.dtype) for part in found] == [dtype, "float32", "float32"]

    def ours(x, w, b):
        return nn.batch_norm(x, mean, var, w, b, train, eps=EPS)[0]

    out, pull = functx.vjp(ours, x, w, w)
    assert out.dtype == dtype
    for one, other in zip(pull(g), found, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(
            np.asarray(one, "float32"), np.asarray(other, "float32"), 1e-2, 1e-5
        )


# What a gradient shows, and what it keeps.


def names(program):
    return [eqn.primitive.name for eqn in program if "norm" in eqn.primitive.name]


NORMS = {
    "layer_norm": lambda x, w, b: nn.layer_norm(x, 4, w, b),
    "rms_norm": lambda x, w, b: nn.rms_norm(x, 4, w),
    "group_norm": lambda x, w, b: nn.group_norm(x, 2, w, b),
    "batch_norm": lambda x, w, b: nn.batch_norm(x, b, w, w, b, training=True)[0],
    "batch_norm_inference": lambda x, w, b: nn.batch_norm(x, b, w, w, b)[0],
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_and_its_backward_are_one_equation_each(name):
    f, x, w = NORMS[name], rows(3, 4), rows(4) ** 2
    assert [eqn.primitive.name for eqn in functx.make_ir(f)(x, w, w)] == [name]

    def loss(x, w, b):
        return f(x, w, b).sum()

    assert names(functx.make_ir(functx.grad(loss, (0, 1, 2)))(x, w, w)) == [f"{name}_backward"]
    value = functx.value_and_grad(loss, (0, 1, 2))
    assert names(functx.make_ir(value)(x, w, w)) == [name, f"{name}_backward"]
    pushed = functx.make_ir(lambda x: functx.jvp(lambda x: f(x, w, w), (x,), (x,)))(x)
    if name != "batch_norm_inference":
        assert names(pushed) == [name]
    mapped = functx.vmap(value, (0, None, None))
    program = functx.make_ir(mapped)(np.stack([x, x]), w, w)
    assert names(program) == [name, f"{name}_backward"]


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        # PyTorch keeps x, the mean, 1 / sqrt(variance + eps) and the weight.
        ("layer_norm", [(3, 4), (4,)]),
        ("rms_norm", [(3, 4), (4,)]),
        ("group_norm", [(3, 4), (4,)]),
        ("batch_norm", [(3, 4), (4,)]),
        ("batch_norm_inference", [(3, 4), (4,), (4,), (4,)]),
    ],
)
def test_a_norm_keeps_for_its_backward_its_operands_alone(name, kept):
    avals = [f32[3, 4], f32[4], f32[4]]
    x, w, b = [np.ones(a.shape, a.dtype) for a in avals]
    program = functx.make_ir(NORMS[name])(x, w, b)
    count = len(program.inputs)
    forward, _ = cached_rewrite(SplitVJP((True,) * count), program)
    residuals = {a: a.aval for a in forward.outputs[1:]}
    assert set(residuals) <= set(forward.inputs)
    bytes_kept = sum(aval.size * 4 for aval in residuals.values())
    assert bytes_kept <= sum(4 * int(np.prod(shape)) for shape in kept)
    assert len(residuals) <= len(kept)


def test_a_frozen_norm_with_a_bias_that_learns_keeps_nothing():
    program = functx.make_ir(NORMS["layer_norm"])(*[np.ones(s, "float32") for s in ((3, 4), 4, 4)])
    forward, _ = cached_rewrite(SplitVJP((False, False, True)), program)
    assert len(forward.outputs) == 1


# Mistakes.

ONES, X = np.ones(4), np.ones((3, 4))
STATS = np.ones((3, 1))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: aten.native_layer_norm_backward(
                X, X, (3,), STATS, STATS, ONES, ONES, [1, 1, 1]
            ),
            ShapeError,
            "normalized_shape must be the last dimensions of input, at least one; got (3,) for",
        ),
        (
            lambda: aten.native_layer_norm_backward(X, X, (4,), STATS, ONES, ONES, ONES, [1, 1, 1]),
            ShapeError,
            "rstd must have the shape (3, 1); got",
        ),
        (
            lambda: aten.native_layer_norm_backward(X, X, (4,), STATS, STATS, X, ONES, [1, 1, 1]),
            ShapeError,
            "weight must have the shape (4,); got",
        ),
        (
            lambda: aten.native_layer_norm_backward(X, X, (4,), STATS, STATS, ONES, ONES, [1, 1]),
            ArgumentError,
            "output_mask must have one flag for each of input, weight and bias; got [1, 1]",
        ),
        (
            lambda: aten.native_batch_norm_backward(
                X, X, ONES, ONES, ONES, None, None, True, EPS, [1, 1, 1]
            ),
            ArgumentError,
            "save_mean and save_invstd must be arrays if train=True; got None",
        ),
        (
            lambda: aten.native_batch_norm_backward(
                X, X, ONES, None, None, ONES, ONES, False, EPS, [1, 1, 1]
            ),
            ArgumentError,
            "running_mean and running_var must be arrays if train=False; got None",
        ),
        (
            lambda: aten.native_batch_norm_backward(
                ONES, ONES, ONES, ONES, ONES, ONES, ONES, True, EPS, [1, 1, 1]
            ),
            ShapeError,
            "input must have axes for examples and channels; got",
        ),
        (
            lambda: aten.native_batch_norm_backward(
                X[:2], X, ONES, ONES, ONES, ONES, ONES, True, EPS, [1, 1, 1]
            ),
            ShapeError,
            "the cotangent must have the shape of x; got",
        ),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error) as found:
        call()
    assert isinstance(found.value, FunctxError)
    assert message in str(found.value)
