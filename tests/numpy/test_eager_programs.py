"""Functions of several operations, called outside a trace: as one program, with the values of the operations."""

from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx.core.errors import FunctxError
from functx.numpy.eager_programs import as_one_program, eager_programs

X = np.array([3.0, 1.0, 2.0], np.float32)


@as_one_program
def weighted(x, y, scale=1.0, shift=None, flip=False):
    """A result that depends on the order of all its arguments."""
    out = fnp.stack([fnp.subtract(x, fnp.multiply(2, y)), fnp.multiply(fnp.sin(x), scale)])
    out = out if shift is None else fnp.add(out, fnp.multiply(3, shift))
    signed = fnp.copysign(x, y)
    return (fnp.negative(out), fnp.negative(signed)) if flip else (out, signed)


plain = weighted.__wrapped__
ARGUMENTS = [
    ((X, X + 1), {}),
    ((X,), {"y": X + 1}),
    ((), {"y": X + 1, "x": X}),
    ((), {"x": X, "shift": X * X, "y": X + 1}),
    ((), {"shift": X * X, "y": X + 1, "scale": 2.0, "x": X}),
    ((X, X + 1, 2), {"flip": True}),
    ((X, 1.5), {}),
    ((X, -0.0), {}),
    ((X, 0.0), {}),
]


@pytest.mark.parametrize("place", [np.asarray, fnp.asarray, jax.numpy.asarray])
@pytest.mark.parametrize("number", range(len(ARGUMENTS)))
def test_a_call_gives_what_its_operations_give(number, place):
    args, kwargs = ARGUMENTS[number]
    args = [place(x) if isinstance(x, np.ndarray) else x for x in args]
    kwargs = {k: place(x) if isinstance(x, np.ndarray) else x for k, x in kwargs.items()}
    for _ in range(2):
        for ours, theirs in zip(weighted(*args, **kwargs), plain(*args, **kwargs), strict=True):
            assert type(ours) is type(theirs) and ours.dtype == theirs.dtype
            assert np.allclose(ours, theirs, rtol=1e-6)
            assert np.signbit(ours).tolist() == np.signbit(theirs).tolist()


def test_a_call_is_traced_once_for_its_types():
    count = eager_programs.info().misses
    for i in range(5):
        fnp.allclose(X + i, X)
    assert eager_programs.info().misses <= count + 1
    fnp.allclose(X, X, rtol=1e-3)
    assert eager_programs.info().misses <= count + 2


def test_arrays_as_keywords_keep_their_places():
    positions, values = np.array([0.0, 1.0, 4.0]), np.array([5.0, 7.0, 9.0])
    found = fnp.interp(x=np.array([0.5, 2.0]), xp=positions, fp=values)
    assert np.allclose(found, np.interp([0.5, 2.0], positions, values))


def test_results_are_new_arrays_that_can_be_written_to():
    x = fnp.ones((2, 2))
    out = fnp.tril(x)
    out[0, 0] = 7
    assert x[0, 0] == 1 and type(out) is type(x) and fnp.diff(X, n=0).base is not None


def test_the_switch_of_64_bits_is_a_part_of_the_types(x64):
    assert fnp.linspace(0, 1, 3).dtype == np.float64
    with jax.enable_x64(False):
        assert fnp.linspace(0, 1, 3).dtype == np.float32
    assert not fnp.allclose(1.0, 1.0 + 1e-9, rtol=0.0, atol=1e-12)


def test_results_are_written_to_out():
    out = np.zeros((), np.float32)
    assert fnp.median(X, out=out) is out and out == 2
    assert fnp.quantile(X, 1.0, None, out) is out and out == 3


def test_variables_are_recorded():
    leaf = functx.autograd.Variable(X, requires_grad=True)
    fnp.median(leaf).backward()
    assert leaf.grad.tolist() == [0, 0, 1]


def test_errors_are_those_of_the_operations():
    for call in (lambda: fnp.allclose(X, X[:2]), lambda: fnp.linspace(0, 1, -1)):
        with pytest.raises(FunctxError) as caught:
            call()
        assert "test_eager_programs.py" in str(caught.value)


def test_threads_share_the_programs():
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda i: float(fnp.trapezoid(X * i)), range(64))
    assert np.allclose(list(found), np.trapezoid(X) * np.arange(64))
