"""Functions of numbers and vectors made functions of arrays: `vectorize`, `frompyfunc`, `apply_along_axis`."""

import jax.numpy as jnp
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from tests.numpy.agreement import Agreement, derivatives, label, same, values_of_a_batch

CALLS = [
    ("np.vectorize(lambda x, y: x * y + 1)(x, y)", "f32[2,1]", "f32[3]"),
    ("np.vectorize(np.dot, signature='(n,k),(k)->(n)')(x, y)", "f32[5,2,3]", "f32[3]"),
    ("np.vectorize(np.dot, signature='(n,k),(k)->(n)')(x, y)", "f32[2,3]", "f32[5,1,3]"),
    ("np.vectorize(np.outer, signature='(n),(m)->(n,m)')(x, y)", "f32[2,3]", "f32[4,1,2]"),
    ("np.vectorize(lambda x: (x.sum(), x * 2), signature='(n)->(),(n)')(x)", "f32[2,3]"),
    ("np.vectorize(lambda x, y: x + y, excluded={1})(x, y)", "f32[2,3]", "f32[3]"),
    ("np.vectorize(lambda x, n: x**n, excluded={'n'})(x, n=3)", "f32[4]"),
    ("np.vectorize(lambda x, y=None: x if y is None else x * y)(x, None)", "f32[4]"),
    ("np.vectorize(np.vdot, signature='(n),(n)->()')(x, x)", "c64[2,3]"),
    ("np.apply_along_axis(lambda v: v / v.sum(), 0, x * x + 1)", "f32[2,3]"),
    ("np.apply_along_axis(lambda v: np.outer(v, v), 1, x)", "f32[2,3,4]"),
    ("np.apply_along_axis(lambda v, k: np.sort(v)[k], -1, x, 1)", "f32[2,3]"),
    ("np.apply_along_axis(lambda v: v.sum(), 2, x)", "f32[2,3,4,2]"),
    ("np.frompyfunc(lambda x, y: x * y - y, 2, 1)(x, y)", "f32[2,1]", "f32[3]"),
    ("np.frompyfunc(lambda x, y: x * y - y, 2, 1).reduce(x)", "f32[4,2]"),
    ("np.frompyfunc(lambda x, y: x * y - y, 2, 1).reduce(x, axis=1, keepdims=True)", "f32[4,2]"),
    ("np.frompyfunc(lambda x, y: x * y - y, 2, 1).accumulate(x, axis=1)", "f32[2,4]"),
    ("np.frompyfunc(lambda x, y: x * y - y, 2, 1).outer(x, y)", "f32[3]", "f32[2,2]"),
    ("np.frompyfunc(lambda x, y: x * y, 2, 1, identity=1).reduce(x)", "f32[0,2]"),
    ("np.frompyfunc(lambda x, y: x * y, 2, 1).at(x, y, 2.0, inplace=False)", "f32[9]", "u8[4]"),
    ("np.add.at(x, numpy.array([0, 0]), 2.0, inplace=False)", "f32[3]"),
    ("np.add.reduceat(x, numpy.array([0, 2, 1]))", "f32[4,2]"),
    ("np.multiply.reduceat(x, numpy.array([0, 3]), axis=1)", "f32[2,5]"),
    ("np.subtract.reduce(x, axis=None)", "f32[3]"),
    ("np.logaddexp.accumulate(x)", "f32[4]"),
    ("np.negative.at(x, numpy.array([1, 1, 0]), inplace=False)", "f32[3]"),
]
DIFFERENTIATED = [call for call in CALLS if "u8" not in str(call)]
agreement = Agreement(fnp, jnp, CALLS, weak=False)
batched = Agreement(fnp, jnp, CALLS, values_of_a_batch, weak=False)
differentiated = Agreement(fnp, jnp, DIFFERENTIATED, derivatives, weak=False)


@pytest.mark.parametrize("call", CALLS, ids=label)
def test_values_are_those_of_jax(call):
    agreement.check(call, 32)


@pytest.mark.parametrize("call", CALLS, ids=label)
def test_mapped_values_are_those_of_jax(call):
    batched.check(call, 32)


@pytest.mark.parametrize("call", DIFFERENTIATED, ids=label)
def test_derivatives_are_those_of_jax(call):
    differentiated.check(call, 32)


def test_keyword_arguments_are_mapped_as_numpy_maps_them():
    x, y = np.ones((2, 3)), np.arange(3.0)
    fun = lambda x, y=1: x * y  # noqa: E731
    assert np.allclose(fnp.vectorize(fun)(x, y=y), np.vectorize(fun)(x, y=y))


def test_functions_of_functx_with_methods_are_ufuncs():
    assert isinstance(fnp.add, fnp.ufunc) and isinstance(fnp.sin, fnp.ufunc)
    assert not isinstance(fnp.sum, fnp.ufunc) and not isinstance(3, fnp.ufunc)
    assert (fnp.add.nin, fnp.add.nout, fnp.add.identity) == (2, 1, 0)
    assert fnp.multiply.identity == 1 and fnp.subtract.identity is None
    made = fnp.frompyfunc(lambda x, y: (x - y, x), 2, 2)
    assert isinstance(made, fnp.ufunc) and made.nargs == 4
    same(
        made(1, np.arange(3)), (1 - np.arange(3, dtype=np.int32), np.ones(3, np.int32)), weak=False
    )


def test_a_vectorized_function_runs_under_transforms_of_transforms():
    norm = fnp.vectorize(fnp.linalg.norm, signature="(n)->()")
    x = np.arange(12.0, dtype=np.float32).reshape(2, 2, 3) + 1
    slopes = functx.jit(functx.vmap(functx.grad(lambda x: norm(x).sum())))(x)
    assert np.allclose(slopes, x / np.linalg.norm(x, axis=-1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fnp.vectorize(abs, signature="n->n"), ValueRangeError, "signature must be"),
        (lambda: fnp.vectorize(abs, excluded={-1}), ArgumentError, "not negative"),
        (
            lambda: fnp.vectorize(fnp.add, signature="(n),(n)->(n)")(np.ones(3), np.ones(2)),
            ShapeError,
            "core dimension 'n' must have one length; got 3 and 2",
        ),
        (
            lambda: fnp.vectorize(fnp.sum, signature="(n)->(n)")(np.ones(3)),
            ShapeError,
            r"a result must have the core dimensions \(n\); got",
        ),
        (
            lambda: fnp.vectorize(fnp.sum, signature="(n)->(),()")(np.ones(3)),
            ArgumentError,
            "the 2 results of the signature; got 1",
        ),
        (
            lambda: fnp.vectorize(fnp.sum, signature="(n)->()")(1.0),
            ShapeError,
            r"an argument must have the core dimensions \(n\)",
        ),
        (
            lambda: fnp.frompyfunc(lambda x, y: x, 2, 1).reduce(np.ones(0)),
            ValueRangeError,
            "for want of an identity",
        ),
        (lambda: fnp.frompyfunc(abs, 1, 1).reduce(np.ones(3)), ValueRangeError, "two operands"),
        (lambda: fnp.frompyfunc(abs, 1, 1)(1, 2), ArgumentError, "must be 1 operands; got 2"),
        (
            lambda: fnp.apply_over_axes(lambda x, d: x.sum(), np.ones((2, 2, 2)), 0),
            ShapeError,
            "as many dimensions as the array",
        ),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
