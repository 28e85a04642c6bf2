"""functx.nn against jax.nn: values, derivatives to second order, and extreme values."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functx
from functx import nn
from functx.core.errors import DTypeError, ShapeError, ValueRangeError

INF = np.inf
ACTIVATIONS = [
    "celu",
    "elu",
    "gelu",
    "hard_sigmoid",
    "hard_silu",
    "hard_tanh",
    "identity",
    "leaky_relu",
    "log_sigmoid",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softplus",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
    "tanh",
]
TOLERANCES = {"float64": 1e-12, "float32": 3e-6, "float16": 4e-3, "bfloat16": 3e-2}


def close(ours, theirs, tolerance=None):
    theirs = np.asarray(theirs)
    ours = np.asarray(ours)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    tolerance = tolerance or TOLERANCES.get(str(ours.dtype), 0.0)
    if ours.dtype.kind != "c":
        ours, theirs = ours.astype("float64"), theirs.astype("float64")
    np.testing.assert_allclose(ours, theirs, tolerance, tolerance)


def points(dtype="float64"):
    """Away from every kink."""
    return np.concatenate([np.linspace(-7.1, 7.3, 29), [30.0, -30.0]]).astype(dtype)


def of_each(library, f):
    """The values of `f` at each array of a list, compiled together."""
    return library.jit(lambda arrays: [f(x) for x in arrays])


def rows(*shape, seed=0):
    return np.random.RandomState(seed).normal(size=shape) * 3


# Activations


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_have_jaxs_values(name):
    ours, theirs = getattr(nn, name), getattr(jax.nn, name)
    special = np.array([0.0, -0.0, np.nan, 1e30, -1e30], "float32")
    arrays = [*map(points, ("float32", "bfloat16", "float16")), special]
    expected = of_each(jax, theirs)(arrays)
    for x, y in zip(of_each(functx, ours)(arrays), expected, strict=True):
        close(x, y)
    close(ours(special), expected[-1])


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_have_jaxs_derivatives_to_second_order(x64, name):
    ours, theirs = getattr(nn, name), getattr(jax.nn, name)

    def derivatives(library, f):
        slope = library.grad(f)
        functions = [
            slope,
            library.grad(slope),
            lambda x: library.jvp(slope, (x,), (np.float64(1.0),))[1],
        ]
        return library.jit(lambda x: [library.vmap(f)(x) for f in functions])(points())

    found, wanted = derivatives(functx, ours), derivatives(jax, theirs)
    for x, y, tolerance in zip(found, wanted, (None, 1e-11, 1e-11), strict=True):
        close(x, y, tolerance)


@pytest.mark.parametrize("approximate", [True, False])
def test_gelu(x64, approximate):
    x = points()
    close(nn.gelu(x, approximate), jax.nn.gelu(x, approximate))
    close(
        functx.vmap(functx.grad(lambda x: nn.gelu(x, approximate)))(x),
        jax.jit(jax.vmap(jax.grad(lambda x: jax.nn.gelu(x, approximate))))(x),
    )


def test_parameters_of_activations():
    x = points("float32")
    close(nn.elu(x, 0.5), jax.nn.elu(x, 0.5))
    close(nn.celu(x, 2.0), jax.nn.celu(x, 2.0))
    close(nn.leaky_relu(x, 0.2), jax.nn.leaky_relu(x, 0.2))
    close(nn.squareplus(x, 2.0), jax.nn.squareplus(x, 2.0))
    slope = np.float32(0.3)
    close(
        functx.grad(lambda s: nn.leaky_relu(x, s).sum())(slope),
        jax.jit(jax.grad(lambda s: jax.nn.leaky_relu(x, s).sum()))(slope),
    )
    pairs = rows(3, 8).astype("float32")
    for axis in (-1, 1):
        close(nn.glu(pairs, axis), jax.nn.glu(pairs, axis))
    with pytest.raises(ShapeError, match="even length; got 3"):
        nn.glu(pairs, 0)
    positive = np.array([1e-6, 0.1, 0.69, 0.7, 5.0, 80.0], "float32")
    close(nn.log1mexp(positive), jax.nn.log1mexp(positive))
    close(
        functx.vmap(functx.grad(nn.log1mexp))(positive),
        jax.jit(jax.vmap(jax.grad(jax.nn.log1mexp)))(positive),
    )


def test_derivatives_at_kinks_and_extremes():
    x = np.array([-INF, -1e30, -1.0, 0.0, 1.0, 6.0, 1e30, INF], "float32")

    def slopes(f):
        return functx.vmap(functx.grad(f))(x).tolist()

    assert slopes(nn.relu) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert slopes(nn.relu6) == [0, 0, 0, 0, 1, 0, 0, 0]
    assert slopes(nn.softplus)[:2] == [0, 0] and slopes(nn.softplus)[3] == 0.5
    assert slopes(nn.softplus)[-2:] == [1, 1]
    assert slopes(nn.elu)[:2] == [0, 0] and slopes(nn.elu)[3:] == [1] * 5
    for f in (nn.elu, nn.selu, nn.celu, nn.sigmoid, nn.log_sigmoid, nn.softplus, nn.relu):
        assert np.isfinite(slopes(f)).all()
        assert np.isfinite(functx.vmap(functx.grad(functx.grad(f)))(x)).all()


def test_integers_become_floats():
    x = np.arange(-2, 3)
    assert nn.relu(x).tolist() == [0, 0, 0, 1, 2]
    assert nn.relu(x).dtype == np.int32
    close(nn.gelu(x), jax.nn.gelu(x))
    close(nn.sigmoid(x), jax.nn.sigmoid(x.astype("float32")))
    close(nn.softmax(x), jax.nn.softmax(x))


# Along axes

FUNCTIONS = ["softmax", "log_softmax", "logsumexp"]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("axis", [-1, 0, (0, 2), None])
def test_functions_along_axes_have_jaxs_values(name, axis):
    ours, theirs = getattr(nn, name), getattr(jax.nn, name)
    arrays = [rows(2, 3, 4).astype(dtype) for dtype in ("float32", "bfloat16", "float16")]
    for x, y in zip(
        of_each(functx, lambda x: ours(x, axis))(arrays),
        of_each(jax, lambda x: theirs(x, axis))(arrays),
        strict=True,
    ):
        close(x, y)
    x = arrays[0]
    where = rows(2, 3, 4, seed=1) > 0
    masks = [where, where[:, :, :1]]
    expected = of_each(jax, lambda where: theirs(x, axis, where=where))(masks)
    for mask, y in zip(masks, expected, strict=True):
        close(ours(x, axis, where=mask), y)


@pytest.mark.parametrize("name", [*FUNCTIONS, "standardize", "logmeanexp"])
@pytest.mark.parametrize("masked", [False, True])
def test_functions_along_axes_have_jaxs_derivatives_to_second_order(x64, name, masked):
    x, weights, direction = rows(3, 4), rows(3, 4, seed=1), rows(3, 4, seed=2)
    where = {"where": rows(3, 4, seed=3) > -2} if masked else {}

    def total(library):
        def f(x):
            out = (
                getattr(library, name)(x, axis=1, keepdims=True, **where)
                if "exp" in name
                else (getattr(library, name)(x, axis=1, **where))
            )
            if masked and name == "log_softmax":
                out = (functx.numpy if library is nn else jnp).where(where["where"], out, 0.0)
            return (out * weights).sum()

        return f

    ours, theirs = total(nn), total(jax.nn)
    slopes, wanted = jax.jit(lambda x: jax.jvp(jax.grad(theirs), (x,), (direction,)))(x)
    close(functx.grad(ours)(x), slopes)
    close(functx.jvp(functx.grad(ours), (x,), (direction,))[1], wanted, 1e-11)
    close(functx.hvp(ours, (x,), (direction,))[0], wanted, 1e-11)
    reverse = functx.grad(lambda x: (functx.grad(ours)(x) * direction).sum())(x)
    close(reverse, wanted, 1e-11)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_along_axes_in_a_batch(name):
    x = rows(2, 3, 4).astype("float32")
    ours, theirs = getattr(nn, name), getattr(jax.nn, name)
    for dim in range(3):
        close(
            functx.vmap(lambda x: ours(x, 0), dim, 1 if name != "logsumexp" else 0)(x),
            jax.jit(jax.vmap(lambda x: theirs(x, 0), dim, 1 if name != "logsumexp" else 0))(x),
        )


def test_logsumexp_with_factors_signs_and_complex_numbers():
    a, b = rows(3, 4).astype("float32"), rows(3, 4, seed=1).astype("float32")
    b[0, :2] = 0
    for kwargs in (
        {"b": np.abs(b)},
        {"b": b, "return_sign": True},
        {"b": b},
        {"return_sign": True},
    ):
        for keepdims in (False, True):
            ours = nn.logsumexp(a, 1, keepdims=keepdims, **kwargs)
            theirs = jax.jit(partial(jax.nn.logsumexp, axis=1, keepdims=keepdims, **kwargs))(a)
            for x, y in zip(
                *[o if type(o) is tuple else (o,) for o in (ours, theirs)], strict=True
            ):
                close(x, y)
    b = np.abs(b)
    close(
        functx.grad(lambda a, b: nn.logsumexp(a, 1, b).sum(), (0, 1))(a, b)[0],
        jax.jit(jax.grad(lambda a, b: jax.nn.logsumexp(a, 1, b).sum()))(a, b),
    )
    z = (a + 1j * b).astype("complex64")
    np.testing.assert_allclose(nn.logsumexp(z, 1), jax.nn.logsumexp(z, 1), 1e-5)


def test_logsumexp_of_nothing_and_of_infinities():
    x = np.array([[-INF, -INF], [0.0, -INF], [INF, 0.0], [1e30, 1e30]], "float32")
    assert nn.logsumexp(x, 1).tolist()[:3] == [-INF, 0.0, INF]
    assert nn.logsumexp(np.zeros((0, 2), "float32"), 0).tolist() == [-INF, -INF]
    slopes = functx.grad(lambda x: nn.logsumexp(x, 1).sum())(x)
    np.testing.assert_array_equal(slopes[:2], [[0, 0], [1, 0]])
    np.testing.assert_array_equal(slopes[3], [0.5, 0.5])
    none = np.zeros((2, 2), bool)
    slopes = functx.grad(lambda x: nn.logsumexp(x, 1, where=none).sum())(x[:2])
    np.testing.assert_array_equal(slopes, np.zeros((2, 2)))
    second = functx.hvp(lambda x: nn.logsumexp(x, 1).sum(), (x[:2],), (np.ones_like(x[:2]),))[0]
    np.testing.assert_array_equal(second, np.zeros((2, 2)))
    slopes = functx.grad(lambda a, b: nn.logsumexp(a, 1, b).sum(), (0, 1))(
        x[:1], np.ones_like(x[:1])
    )
    assert np.isfinite(slopes).all()


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_masks_leave_derivatives_finite(name):
    f = getattr(nn, name)
    x = rows(3, 4).astype("float32")
    where = np.array([[1, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], bool)

    def filled(x):
        return functx.numpy.where(where, x, -INF)[np.array([0, 2])]

    def kept(out):
        return functx.numpy.where(where, out, 0.0)

    for loss in (
        lambda x: (kept(f(x, where=where)) ** 2).sum(),
        lambda x: (f(filled(x))[:, :2] ** 2).sum(),
    ):
        slopes = functx.grad(loss)(x)
        assert np.isfinite(slopes).all()
        assert (np.asarray(slopes)[~where] == 0).all()
        assert np.isfinite(functx.hvp(loss, (x,), (np.ones_like(x),))[0]).all()
    assert nn.softmax(x, where=where)[1].tolist() == [0, 0, 0, 0]


def test_extremes_do_not_overflow():
    x = np.array([1e30, 1e30, -1e30], "float32")
    assert nn.softmax(x).tolist() == [0.5, 0.5, 0.0]
    assert np.isfinite(functx.jacrev(nn.softmax)(x)).all()
    assert np.isfinite(functx.jacfwd(nn.log_softmax)(x)).all()
    assert np.isfinite(functx.grad(nn.logsumexp)(x)).all()


@pytest.mark.parametrize("algorithm", ["fast", "stable"])
def test_standardize(algorithm):
    x = rows(3, 4).astype("float32")
    for kwargs in (
        {},
        {"axis": 0},
        {"axis": (0, 1), "epsilon": 0.1},
        {"mean": np.float32(0.5)},
        {"variance": np.ones((3, 1), "float32")},
        {"where": x > -1},
    ):
        close(
            nn.standardize(x, **kwargs, algorithm=algorithm),
            jax.jit(partial(jax.nn.standardize, **kwargs, algorithm=algorithm))(x),
            1e-5,
        )
    constant = np.full((2, 4), 3.0, "float32")
    weights = rows(2, 4).astype("float32")
    slopes = functx.grad(lambda x: (nn.standardize(x, algorithm=algorithm) * weights).sum())(
        constant
    )
    assert np.isfinite(slopes).all()
    with pytest.raises(ValueRangeError, match="'fast' or 'stable'"):
        nn.standardize(x, algorithm="slow")


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int8", "bool"])
def test_one_hot(dtype):
    x = np.array([[0, 2, 1], [1, 0, 3]]).astype(dtype)
    for axis in (-1, 0, 1):
        close(nn.one_hot(x, 3, axis=axis), jax.nn.one_hot(x.astype("int32"), 3, axis=axis))
    close(nn.one_hot(x, 300, dtype="int8"), jax.nn.one_hot(x.astype("int32"), 300, dtype="int8"))
    close(
        functx.vmap(lambda x: nn.one_hot(x, 3))(x),
        jax.nn.one_hot(x.astype("int32"), 3),
    )
    with pytest.raises(DTypeError, match="one_hot: x must hold integers"):
        nn.one_hot(np.ones(3), 3)


def test_programs_are_short():
    x = np.ones((3, 4), "float32")

    def names(f):
        return [eqn.primitive.name for eqn in functx.make_ir(f)(x)]

    assert names(nn.softmax) == ["softmax"]
    assert names(nn.logsumexp) == ["log_sum_exp"]
    assert names(nn.gelu) == ["gelu"]
    assert names(nn.relu) == ["relu"]
    assert len(names(functx.grad(lambda x: nn.relu(x).sum()))) == 4
