"""Variances, norms and cosine similarities: values, and derivatives at singular points."""

import jax
import jax.numpy as jnp
import numpy
import pytest

import functx
import functx.numpy as np
from functx import nn
from functx.core.errors import AxisError, DTypeError, ShapeError, ValueRangeError

INF = numpy.inf
ORDERS = [None, 1, 2, 3, 1.5, 0.5, -1, -2.5, 0, INF, -INF]


def rows(*shape, seed=0):
    return numpy.random.RandomState(seed).normal(size=shape)


def close(found, wanted, tolerance=1e-10):
    found, wanted = numpy.asarray(found), numpy.asarray(wanted)
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    numpy.testing.assert_allclose(found, wanted, tolerance, tolerance)


# Values.


@pytest.mark.parametrize("order", ORDERS)
def test_norms_along_axes_agree_with_numpy(order, x64):
    for x in (rows(3, 4), rows(3, 4) + 1j * rows(3, 4, seed=1)):
        for axis in (0, -1):
            for keepdims in (False, True):
                wanted = numpy.linalg.norm(x, order, axis, keepdims)
                close(np.linalg.norm(x, order, axis, keepdims), wanted)
    close(np.linalg.norm(x), numpy.linalg.norm(x))
    close(np.linalg.norm(x, axis=(0, 1), keepdims=True), numpy.linalg.norm(x, keepdims=True))


@pytest.mark.parametrize("name", ["var", "std"])
def test_variances_agree_with_numpy(name, x64):
    ours, theirs = getattr(np, name), getattr(numpy, name)
    for x in (rows(3, 4), rows(3, 4) + 1j * rows(3, 4, seed=1), numpy.arange(12).reshape(3, 4)):
        for axis in (None, 1, (0, 1)):
            for options in ({}, {"ddof": 1}, {"keepdims": True}, {"ddof": 0.5}):
                close(ours(x, axis, **options), theirs(x, axis, **options))
    close(ours(rows(3), dtype="float32"), theirs(rows(3), dtype="float32"), 1e-6)
    close(ours(rows(3), correction=1), theirs(rows(3), ddof=1))


def test_too_few_elements_have_no_variance():
    one, none = numpy.ones(1, "float32"), numpy.zeros(0, "float32")
    assert np.var(one) == 0 and np.std(one) == 0
    assert np.isnan(np.var(one, ddof=1)) and np.isnan(np.std(one, ddof=1))
    assert np.isnan(np.var(none)) and np.isnan(np.std(none))
    assert np.var(numpy.ones((2, 0), "float32"), 0).shape == (0,)
    assert np.isinf(np.var(numpy.arange(2.0), ddof=5))
    for f in (np.var, np.std, np.linalg.norm):
        assert functx.grad(lambda x, f=f: f(x))(none).shape == (0,)
        assert functx.vmap(f)(numpy.zeros((3, 0), "float32")).shape == (3,)


def test_half_precision_is_computed_in_single_precision():
    x = jnp.asarray([300.0, 300.5, 299.0, 301.0], "float16")
    wide = numpy.asarray(x, "float64")
    for ours, theirs in (
        (np.var, numpy.var),
        (np.std, numpy.std),
        (np.linalg.norm, numpy.linalg.norm),
        (lambda x: np.linalg.norm(x, 3), lambda x: numpy.linalg.norm(x, 3)),
    ):
        close(ours(x), numpy.float16(theirs(wide)), 1e-3)
    truth = (wide - wide.mean()) / (4 * wide.std())
    close(functx.grad(np.std)(x), truth.astype("float16"), 1e-3)
    close(functx.grad(np.linalg.norm)(x), (wide / numpy.linalg.norm(wide)).astype("float16"), 1e-3)


# Derivatives.


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_derivatives_at_regular_points_agree_with_jax(kind, x64):
    x = rows(2, 3) + (1j * rows(2, 3, seed=1) if kind == "complex" else 0)
    pairs = [
        *[
            (lambda x, o=o: np.linalg.norm(x, o, 1), lambda x, o=o: jnp.linalg.norm(x, o, 1))
            for o in (None, 1, 3, 1.5, INF)
        ],
        (lambda x: np.var(x, 1, ddof=1), lambda x: jnp.var(x, 1, ddof=1)),
        (lambda x: np.std(x, 1), lambda x: jnp.std(x, 1)),
    ]

    def results(m, fs):
        def all_of(x):
            losses = [lambda x, f=f: (f(x) ** 2).sum() for f in fs]
            return [
                (m.grad(f)(x), m.jvp(m.grad(f), (x,), (x * x,))[1], m.vmap(g)(x[None]))
                for f, g in zip(losses, fs, strict=True)
            ]

        return m.jit(all_of)(x)

    ours = results(functx, [f for f, _ in pairs])
    theirs = results(jax, [f for _, f in pairs])
    for one, other in zip(functx.tree.leaves(ours), functx.tree.leaves(theirs), strict=True):
        close(one, other, 1e-9)


SPREADS = {
    **{f"norm {o}": lambda x, o=o: np.linalg.norm(x, o) for o in ORDERS},
    "var": np.var,
    "std": np.std,
    "std less one": lambda x: np.std(x, ddof=1),
    "var_mean": lambda x: nn.var_mean(x, correction=0)[0],
    "norm kept": lambda x: np.linalg.norm(x, axis=0, keepdims=True)[0],
}


@pytest.mark.parametrize("name", SPREADS)
def test_at_equal_elements_first_derivatives_are_zero_and_second_ones_finite(name):
    f = SPREADS[name]
    x, t = numpy.zeros(3, "float32"), numpy.array([1.0, -2.0, 3.0], "float32")

    def derivatives(x):
        return (
            functx.grad(f)(x),
            functx.jvp(f, (x,), (t,))[1],
            functx.hessian(f)(x),
            functx.jacrev(functx.grad(f))(x),
        )

    first, along, hessian, other = functx.jit(derivatives)(x)
    numpy.testing.assert_array_equal(first, x)
    assert along == 0
    assert numpy.isfinite(hessian).all()
    numpy.testing.assert_allclose(hessian, other, 1e-6)
    if name.startswith("var"):
        numpy.testing.assert_allclose(hessian, 2 / 3 * (numpy.eye(3) - 1 / 3), 1e-5)


@pytest.mark.parametrize("order", [o for o in ORDERS if o not in (0, -INF)])
def test_an_element_that_is_zero_has_a_finite_derivative(order):
    x = numpy.array([0.0, 2.0, -3.0], "float32")
    f = lambda x: np.linalg.norm(x, order)  # noqa: E731
    first, second = functx.grad(f)(x), functx.hessian(f)(x)
    assert first[0] == 0
    assert numpy.isfinite(first).all() and numpy.isfinite(second).all()


def test_tied_largest_elements_share_the_derivative_of_the_maximum_norm():
    x = numpy.array([2.0, -2.0, 1.0], "float32")
    assert functx.grad(lambda x: np.linalg.norm(x, INF))(x).tolist() == [0.5, -0.5, 0.0]
    assert functx.grad(lambda x: np.linalg.norm(x, -INF))(x).tolist() == [0.0, 0.0, 1.0]


def test_elements_masked_by_where_do_not_affect_derivatives():
    x = numpy.array([[1.0, 2.0, 4.0], [0.0, 1.0, 2.0], [INF, 1.0, 2.0]], "float32")
    kept = numpy.array([True, False, False])
    norms = [lambda x, axis, o=o: np.linalg.norm(x, o, axis) for o in (2, 3)]
    for f in (*norms, np.std, np.var):

        def loss(x, f=f):
            return np.where(kept, f(np.log(x), axis=1), 0.0).sum()

        found = functx.grad(loss)(x)
        close(found[:1], functx.grad(loss)(numpy.concatenate([x[:1]] * 3))[:1], 1e-6)
        assert not numpy.any(found[1:])


def test_a_norm_and_a_deviation_are_one_equation():
    x = numpy.ones((2, 3), "float32")

    def names(f):
        return [eqn.primitive.name for eqn in functx.make_ir(f)(x)]

    assert names(lambda x: np.linalg.norm(x, 3, axis=1)) == ["vector_norm"]
    assert names(lambda x: np.linalg.norm(x)) == ["vector_norm"]
    assert names(np.std) == ["standard_deviation"]
    assert names(lambda x: np.var(x, 1, ddof=1)) == ["variance"]
    assert names(functx.vmap(np.std)) == ["standard_deviation"]
    assert names(lambda x: functx.jvp(np.std, (x,), (x,))[0]) == ["standard_deviation"]


def test_variances_with_masks_and_given_means_agree_with_jax(x64):
    x, mask = rows(3, 4), rows(3, 4, seed=1) > 0
    close(np.std(x, where=mask), numpy.std(x, where=mask))
    close(np.var(x, mean=0.5), ((x - 0.5) ** 2).mean())
    close(functx.jit(lambda d: np.var(x, ddof=d))(1.0), numpy.var(x, ddof=1))


# The trace.


def test_the_trace_takes_matrices_of_any_shape_and_no_vectors():
    for shape in ((2, 3), (3, 2), (3, 0)):
        x = rows(*shape).astype("float32")
        close(np.trace(x), numpy.trace(x), 1e-6)
        numpy.testing.assert_array_equal(functx.grad(np.trace)(x), numpy.eye(*shape))
    with pytest.raises(ShapeError, match="trace: the operand must have at least two dimensions"):
        np.trace(numpy.ones(3))


# Cosines.


def cosine(x, y, axis=1):
    dot = (x * y).sum(axis)
    return dot / (jnp.sqrt((x * x).sum(axis)) * jnp.sqrt((y * y).sum(axis)))


def test_the_cosine_of_ordinary_vectors_and_its_derivatives(x64):
    x, y = rows(3, 4), rows(3, 4, seed=1)
    close(nn.cosine_similarity(x, y), cosine(x, y))
    close(nn.cosine_similarity(x, y, 0), cosine(x, y, 0))
    close(nn.cosine_similarity(x, y[:1], -1), cosine(x, y[:1]))
    close(nn.cosine_similarity(x[:, None], y[None], 2), cosine(x[:, None], y[None], 2))

    def second(m, f):
        loss = lambda x, y: (f(x, y) ** 2).sum()  # noqa: E731
        gradient = m.grad(loss, (0, 1))
        return m.jvp(gradient, (x, y), (y, x))

    ours, theirs = second(functx, nn.cosine_similarity), second(jax, cosine)
    for one, other in zip(functx.tree.leaves(ours), functx.tree.leaves(theirs), strict=True):
        close(one, other)
    close(functx.vmap(lambda x, y: nn.cosine_similarity(x, y, 0))(x, y), cosine(x, y))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_cosine_with_a_zero_vector_is_zero_and_smooth(dtype):
    x, y = jnp.zeros((2, 3), dtype), jnp.asarray([[3.0, 0.0, 4.0], [0.0, 0.0, 0.0]], dtype)
    out = nn.cosine_similarity(x, y, eps=0.5)
    assert out.dtype == dtype and out.tolist() == [0.0, 0.0]
    loss = lambda x, y: nn.cosine_similarity(x, y, eps=0.5).sum()  # noqa: E731
    of_x, of_y = functx.grad(loss, (0, 1))(x, y)
    numpy.testing.assert_allclose(
        numpy.asarray(of_x, "float32"), [[1.2, 0.0, 1.6], [0.0, 0.0, 0.0]], 1e-2
    )
    assert not numpy.asarray(of_y, "float32").any()
    second = functx.hessian(lambda x: loss(x, y))(x)
    assert numpy.isfinite(numpy.asarray(second, "float32")).all()
    assert numpy.isfinite(numpy.asarray(nn.cosine_similarity(x, y), "float32")).all()


def test_errors_name_the_mistake():
    x = numpy.ones((2, 3), "float32")
    with pytest.raises(AxisError, match=r"cosine_similarity: axis must be in \[-2, 2\)"):
        nn.cosine_similarity(x, x, 2)
    with pytest.raises(ShapeError, match="shapes must broadcast"):
        nn.cosine_similarity(x, x.T)
    with pytest.raises(DTypeError, match=r"cosine_similarity: arrays must be real; got c64\[2,3\]"):
        nn.cosine_similarity(x * 1j, x)
    with pytest.raises(ValueRangeError, match="norm: with ord=inf there must be elements; got f32"):
        np.linalg.norm(x[0, :0], INF)
    with pytest.raises(ValueRangeError, match="norm: ord of a vector must be a number; got 'nuc'"):
        np.linalg.norm(x[0], "nuc")


def test_equal_elements_have_zero_variance_for_every_rounding_of_their_mean():
    x = (rows(100) * 10 ** rows(100, seed=1)).astype(numpy.float32)
    given = numpy.ones(7, bool)
    for spread in (np.std, np.var, lambda a: np.std(a, where=given)):
        f = functx.vmap(
            functx.value_and_grad(lambda x, spread=spread: spread(np.broadcast_to(x, 7)))
        )
        for found in f(x):
            assert not numpy.any(found)


@pytest.mark.parametrize("ddof", [1, 2, 3])
def test_spreads_of_no_more_elements_than_ddof_are_nan(ddof):
    gaps = numpy.array([[1.0, 2.0, INF - INF], [1.0, 2.0, 4.0], [INF - INF] * 3], "float32")
    for name in ("nanvar", "nanstd"):
        found = getattr(np, name)(gaps, 1, ddof=ddof)
        numpy.testing.assert_allclose(found, getattr(jnp, name)(gaps, 1, ddof=ddof), 1e-6)
