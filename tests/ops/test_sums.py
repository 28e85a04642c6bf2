"""Sums that keep their digits: of half floats, and beside what is almost all of a total."""

import ml_dtypes
import numpy
import pytest

import functx
import functx.numpy as np
from functx import aten, lax, nn

COUNT = 60000


@pytest.mark.parametrize("dtype", [numpy.float16, ml_dtypes.bfloat16])
def test_half_floats_are_added_up_in_single_precision(dtype):
    terms, places = numpy.full(COUNT, 0.125, dtype), numpy.zeros(COUNT, "int32")
    table = numpy.ones((3, 2), dtype)

    def scan(w):
        return lax.scan(lambda c, x: (c + w[0, 0] * x, w[1, 0] * x), 0 * w[0, 0], terms)

    def loop(w):
        return lax.while_loop(
            lambda c: c[0] < 4000, lambda c: (c[0] + 1, c[1] + w[0, 0]), (0, w[0, 1])
        )[1]

    def everything(w, x):
        return (
            x.sum(),
            np.cumsum(np.concatenate([x, x[:1] * 0]))[-1],
            np.zeros(3, dtype).at[places].add(x)[0],
            functx.grad(lambda w: (w[places] * terms[:, None]).sum())(w)[0, 1],
            functx.grad(lambda w: (nn.embedding(places, w) * terms[:, None]).sum())(w)[0, 0],
            functx.grad(lambda w: functx.vmap(lambda i, x: w[i] * x)(places, terms).sum())(w)[0, 0],
            functx.grad(lambda b: ((b + np.zeros((COUNT, 2), dtype)) * terms[:, None]).sum())(w[0])[
                0
            ],
            functx.grad(lambda w: scan(w)[0])(w)[0, 0],
            functx.grad(lambda w: scan(w)[1].sum())(w)[1, 0],
        )

    found = [float(x) for x in functx.jit(everything)(table, terms)]
    # Half floats round the sum, 7500, once.
    assert found == [float(numpy.asarray(7500, dtype))] * len(found)
    assert float(functx.grad(loop)(table)[0, 0]) == float(numpy.asarray(4000, dtype))
    mean = functx.grad(lambda x: (x - x.mean()).sum())(terms)
    assert not numpy.any(mean)


@pytest.mark.parametrize("dtype", [numpy.float16, ml_dtypes.bfloat16])
def test_running_sums_of_half_floats_keep_small_terms(dtype):
    # A half float does not change when 1 is added to the first term.
    x = numpy.ones(9, dtype)
    x[0] = 2 / ml_dtypes.finfo(dtype).eps
    sums = numpy.cumsum(x, dtype="float32").astype(dtype)
    assert float(sums[2]) == float(x[0]) + 2
    slope = functx.grad(lambda y: (np.cumsum(y) * x[::-1]).sum())(x)
    found = np.cumsum(x), lax.cumsum(x[::-1], reverse=True)[::-1], slope[::-1]
    for each in found:
        numpy.testing.assert_array_equal(numpy.asarray(each), sums)


def test_small_entries_of_derivatives_of_softmax_are_as_precise_as_large_ones(x64):
    x, small = numpy.array([37.5, 0.0]), numpy.exp(-37.5)
    along = numpy.array([1.0, 0.0])
    both = numpy.array([small, -small])
    found = {
        "softmax": functx.grad(lambda x: nn.softmax(x)[0])(x),
        "softmax pushed": functx.jvp(nn.softmax, (x,), (along,))[1],
        "masked": functx.grad(lambda x: nn.softmax(x, where=numpy.array([True, True]))[0])(x),
        "log_softmax": functx.grad(lambda x: nn.log_softmax(x)[0])(x),
        "log_softmax of the third": functx.grad(lambda x: nn.log_softmax(x)[0])(
            numpy.array([37.5, 0.0, -numpy.inf])
        )[:2],
        "cross_entropy": -functx.grad(lambda x: nn.cross_entropy(x[None], numpy.array([0])))(x),
        "twice": functx.hessian(lambda x: nn.softmax(x)[1])(x)[0],
        "twice, of logarithms": -functx.hessian(lambda x: nn.log_softmax(x)[0])(x)[0],
    }
    for name, value in found.items():
        numpy.testing.assert_allclose(value, both, rtol=1e-12, err_msg=name)
    pushed = functx.jvp(nn.log_softmax, (x,), (along,))[1]
    numpy.testing.assert_allclose(pushed, [small, -1.0], rtol=1e-12)
    # Two that share almost all.
    shared = functx.grad(lambda x: nn.softmax(x)[:2].sum())(numpy.array([40.0, 40.0, 0.0]))
    less = numpy.exp(-40.0)
    numpy.testing.assert_allclose(shared, [less / 4, less / 4, -less / 2], rtol=1e-12)


def test_backward_operations_of_softmax_keep_their_digits_whatever_the_outcome_sums_to():
    ct, out = (
        numpy.arange(24, dtype="float32").reshape(2, 3, 4),
        numpy.full((2, 3, 4), 3, "float32"),
    )
    rest = ct - ct.mean((0, 2), keepdims=True)
    numpy.testing.assert_allclose(aten.log_softmax_backward(ct, out, (0, 2)), rest, rtol=1e-6)
    numpy.testing.assert_allclose(aten.softmax_backward(ct, out, (0, 2)), 3 * rest, rtol=1e-6)
