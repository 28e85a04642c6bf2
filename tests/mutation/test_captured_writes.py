"""Writes of known values to captured arrays, which a compiled function would not repeat."""

from functools import partial

import numpy
import pytest

import functx
import functx.numpy as np
from functx.core.errors import ArgumentError, CapturedWriteError

X = numpy.ones(2, "float32")
table = numpy.zeros(2, "float32")
held = {"rows": [numpy.zeros(2, "float32")]}


def write():
    table[0] = 5.0


class Layer:
    def __init__(self):
        self.state = numpy.zeros(2, "float32")

    def __call__(self, x):
        self.state[0] = 1.0
        return x + self.state

    def step(self, x):
        self.state += 1.0
        return x


def assigns(x):
    table[0] = 5.0
    return np.sum(x + table)


def calls(x):
    write()
    return x


def through_a_view(x):
    table[1:] += 1
    return x


def into_out(x):
    numpy.add(table, 1.0, out=table)
    return x


def in_a_container(x):
    held["rows"][0].fill(2.0)
    return x


def sorts(array, x):
    array.sort()
    return x


@pytest.mark.parametrize(
    "fun",
    [assigns, calls, through_a_view, into_out, in_a_container, Layer(), Layer().step,
     partial(sorts, table)],
    ids=lambda fun: getattr(fun, "__name__", type(fun).__name__),
)  # fmt: skip
def test_a_known_value_written_around_a_jitted_function_is_refused_and_changes_nothing(fun):
    def nested(x):
        return functx.jit(fun)(x)

    for call in (functx.jit(fun), functx.jit(nested), functx.grad(lambda x: np.sum(nested(x)))):
        with pytest.raises(CapturedWriteError, match="happen in the first call alone; got") as e:
            call(X)
        assert "test_captured_writes.py" in str(e.value)
    arrays = [table, *held["rows"], *vars(fun).values()] if isinstance(fun, Layer) else [table]
    for array in arrays:
        assert array.tolist() == [0.0, 0.0] and array.flags.writeable


def test_arrays_around_a_jitted_function_can_be_written_to_elsewhere():
    base = numpy.zeros(3, "float32")
    view = base[1:]
    locked = numpy.ones(2)
    locked.flags.writeable = False

    def fun(x):
        x[0] = 3.0
        return x + view[:1] + base[0] + locked[0]

    x = X.copy()
    assert functx.jit(fun)(x).tolist() == [4.0, 2.0] and x.tolist() == [3.0, 1.0]
    assert base.flags.writeable and view.flags.writeable and not locked.flags.writeable
    # Outside of jit the function runs anew, and writes, each time.
    for _ in range(2):
        table[:] = 0.0
        assert functx.grad(assigns)(X).tolist() == [1.0, 1.0]
        assert table[0] == 5.0
    table[:] = 0.0


def fill_again(y):
    whole, rows = numpy.zeros(2, "float32"), numpy.zeros((3, 2), "float32")
    for i in range(3):
        whole[:] = i + 1
        rows[i] = i
        y = y * whole + rows[i] + rows.T[:, i]
        rows[i] = 100
    whole[:] = 1000
    return y


@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: functx.jit(f)(x),
        lambda f, x: functx.vmap(f)(x[None])[0],
        lambda f, x: functx.jvp(f, (x,), (x,))[0],
        lambda f, x: functx.vjp(f, x)[0],
        lambda f, x: functx.lax.cond(True, f, lambda y: y, x),
        lambda f, x: functx.jit(
            lambda x: functx.lax.scan(lambda y, _: (f(y), None), x, None, 1)[0]
        )(x),
        lambda f, x: functx.jit(functx.checkpoint(f))(x),
        lambda f, x: functx.functionalize(f)(x),
    ],
)
def test_a_traced_function_has_used_the_elements_that_an_array_of_numpy_had_then(call):
    numpy.testing.assert_array_equal(call(fill_again, X), fill_again(X))


def test_a_large_array_that_numpy_writes_to_after_its_use_is_refused():
    def fun(x):
        large = numpy.zeros(10_000, "float32")
        for i in range(2):
            large[:] = i
            x = x + large
        return x

    for call in (
        functx.jit(fun),
        functx.jit(functx.vmap(fun)),
        functx.grad(lambda x: fun(x).sum()),
    ):
        with pytest.raises(CapturedWriteError, match=r"40,000 bytes.*\n.*fun: x = x"):
            call(numpy.ones((2, 10_000), "float32"))
    # Written to before its first use only.
    assert functx.jit(lambda x: x + numpy.full(10_000, 2.0, "float32"))(1.0)[0] == 3.0


@pytest.mark.parametrize("size", [2, 5000])
def test_a_jitted_function_is_refused_an_argument_that_it_writes_to_and_has_captured(size):
    x = numpy.ones(size, "float32")

    def add_to(y):
        y += 1
        return x + y

    jitted = functx.jit(add_to)
    for argument in (x, x[::-1]):
        with pytest.raises(ArgumentError, match="shares memory with an array around the function"):
            jitted(argument)
    assert jitted(numpy.ones(size, "float32"))[0] == 3.0
    with pytest.raises(ArgumentError, match="shares memory with an array around the function"):
        jitted(x)
    assert x[0] == 1.0
