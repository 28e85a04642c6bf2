"""NumPy functions that write to traced arrays: `out=`, `ufunc.at`, `put` and others."""

from functools import partial

import numpy
import pytest

import functx
import functx.numpy
from functx.core.errors import (
    ArgumentError,
    DTypeError,
    ImmutableArrayError,
    IndexingError,
    ShapeError,
    ValueRangeError,
)
from tests.by_reference import by_reference

X = numpy.arange(12.0).reshape(3, 4) + 1
FORTRAN = numpy.asfortranarray(X)
WHOLE = numpy.array([3, 1, 2])

# Each writes to arrays among x, w (whole numbers), o and p (zeros of the shape that it names).
CALLS = {
    "np.divmod(x, 2, out=(o, p))": (3, 4),
    "np.modf(x, out=(o, None))": (3, 4),
    "np.frexp(x, o)": (3, 4),
    "np.add(x, 1, out=o, where=x > 3)": (3, 4),
    "np.add(x, 1, out=(o,))": (3, 4),
    "np.matmul(x.T, x, out=o)": (4, 4),
    "np.dot(x.T, x, o)": (4, 4),
    "np.outer(x[0], x[1], o)": (4, 4),
    "np.trace(x, 0, 0, 1, None, o)": (),
    "np.linalg.multi_dot([x.T, x, x.T], out=o)": (4, 3),
    "np.clip(x, 2, 5, x)": (),
    "x.clip(2, 5, o)": (3, 4),
    "np.take(x, [0, 2], 0, o)": (2, 4),
    "np.take(x, [0, 9], axis=0, out=o, mode='clip')": (2, 4),
    "x.take([0], out=o)": (1,),
    "np.take(x, [0, 2], axis=0, out=x[:2])": (),
    "np.compress([True, False, True], x, 0, o)": (2, 4),
    "x.compress([True, False], 1, out=o)": (3, 1),
    "np.choose([0, 1, 0, 1], [x[0], x[1]], o)": (4,),
    "np.add.reduce(x, axis=1, out=o)": (3,),
    "np.add.accumulate(x, axis=1, out=x)": (),
    "np.maximum.reduce(x, out=o)": (4,),
    "np.subtract.reduce(x, out=o)": (4,),
    "np.bitwise_or.reduce(w)": (),
    "np.hypot.reduce(x, axis=1, keepdims=True)": (),
    "np.negative.at(x, [0, 0, 1])": (),
    "np.sqrt.at(x, ([0, 0], [1, 1]))": (),
    "np.divide.at(x, np.s_[::2, 1], 2)": (),
    "np.divide.at(x, (slice(None), [0, 0]), 2)": (),
    "np.floor_divide.at(w, [0, 0], 2)": (),
    "np.left_shift.at(w, [0, 0], 2)": (),
    "np.arctan2.at(x, [0, 0], [[1.0], [2.0]])": (),
    "np.put(x, [[0, 5], [5, 3]], [1, 2, 3])": (),
    "np.put(x, [0], [])": (),
    "np.put(w, w > 1, 7)": (),
    "np.copyto(o, x[None])": (3, 4),
    "np.copyto(x, 1.0, where=[True, False, True, False])": (),
    "np.fill_diagonal(x, [])": (),
    "x.ravel('K')[1:3]": (),
    "x.T.ravel('A')[1:3]": (),
    "x.reshape(4, 3, order='A')": (),
    "np.add(w, 1.7, out=w, casting='unsafe', where=w > 1)": (),
    "np.multiply(w, 2.7, out=w, casting='unsafe')": (),
    "np.add(w, 1, dtype='float32')": (),
    "np.isfinite(x, dtype=bool)": (),
}


@pytest.mark.parametrize("namespace", [numpy, functx.numpy], ids=["numpy", "functx.numpy"])
def test_calls_write_as_with_numpy(namespace, x64):
    for text, shape in CALLS.items():
        own = "casting" in text or "dtype" in text or "s_[" in text or "multi_dot" in text
        np = numpy if own else namespace
        scope = {}
        exec(f"def f(np, x, w, o, p):\n    return {text}, x, w, o, p", scope)
        for x in (X, FORTRAN):
            given = [[a.copy("K") for a in (x, WHOLE)] + [numpy.zeros(shape)] * 2 for _ in "ab"]
            given = [[*arrays[:2], arrays[2].copy(), arrays[3].copy()] for arrays in given]
            wanted = scope["f"](numpy, *given[0])
            call = partial(scope["f"], np)
            with by_reference():
                got = functx.functionalize(call)(*given[1])
            flat = [functx.tree.leaves(values) for values in (wanted, got, *given)]
            for one, other in (flat[:2], flat[2:]):
                for a, b in zip(one, other, strict=True):
                    numpy.testing.assert_allclose(
                        numpy.asarray(b), a, rtol=1e-6, err_msg=f"{text} of {x.flags}"
                    )


REFUSED = {
    "x[0, 0] = np.ones(1)": (ShapeError, "one element takes a number; got a value of 1"),
    "x[0] = [[1, 2, 3, 4]]": (ShapeError, "1 dimensions take a list as deep; got a value of 2"),
    "w8[0] = 300": (ValueRangeError, "must fit the dtype that it gets; got 300 for uint8"),
    "w8.fill(-1)": (ValueRangeError, "got -1 for uint8"),
    "np.copyto(w8, 256)": (ValueRangeError, "got 256 for uint8"),
    "w8 += w": (DTypeError, r"x \+= y: the result must be of the kind .* array of uint8"),
    "x.fill(1j)": (DTypeError, "a complex value must not be written"),
    "np.put(x, [0], 1j)": (DTypeError, "a complex value must not be written"),
    "np.put(x, 12, 1)": (IndexingError, r"must be in \[-12, 12\) .* got 12"),
    "np.add(x, 1, out=x, where=x)": (DTypeError, "add: where= must be boolean; got f"),
    "np.copyto(x, 1, where=x)": (DTypeError, "copyto: where= must be boolean"),
    "np.divmod(x, 1, out=(x, x, x))": (ArgumentError, "an array for each of 2 results; got 3"),
    "del x[0]": (ImmutableArrayError, r"del x\[...\]: an array keeps its elements"),
    "x.shape = (4, 3)": (ImmutableArrayError, r"x.shape =: an array keeps its shape"),
    "x.resize(3)": (ImmutableArrayError, "must not share its memory; got .* an argument"),
    "z = np.zeros(4); v = z[1:]; z.resize(2)": (ImmutableArrayError, "which has views"),
    "np.reshape(x.T, -1, copy=False)": (
        ShapeError,
        "with copy=False the layout of the array must allow",
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_calls_that_numpy_refuses_are_refused(text):
    kind, message = REFUSED[text]
    scope = {"np": functx.numpy}
    exec(f"def f(x, w, w8):\n    {text}", scope)
    arrays = X.astype("float32"), WHOLE.astype("int32"), WHOLE.astype("uint8")
    with pytest.raises(kind, match=message) as error:
        functx.functionalize(scope["f"])(*arrays)
    assert "in f" in str(error.value)
    numpy.testing.assert_array_equal(arrays[0], X)


def test_an_array_that_was_resized_is_written_to_as_before():
    def f(x):
        z = functx.numpy.zeros(4)
        z[1] = x[0]
        first = z[1]
        z.resize(2, 3)
        z[1, 2] = first
        return z

    wanted = [[0, 1, 0], [0, 0, 1]]
    numpy.testing.assert_array_equal(functx.jit(f)(X[0].astype("float32")), wanted)


def test_a_reshape_with_copy_is_an_array_of_its_own():
    def f(x):
        functx.numpy.reshape(x, -1, copy=True)[0] = 9.0
        functx.numpy.reshape(x, -1, copy=False)[1] = 8.0
        return x

    numpy.testing.assert_array_equal(
        functx.jit(f)(numpy.zeros((2, 2), "float32")), [[0, 8], [0, 0]]
    )


def test_flat_gives_numbers_of_numpy_so_that_pytest_compares_arrays():
    x = functx.numpy.asarray([1.0, 2.0])
    assert [type(v) for v in x.flat] == [numpy.float32] * 2
    assert x == pytest.approx([1.0, 2.0])
    assert x[0] == pytest.approx(1.0)
