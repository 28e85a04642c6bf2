"""`associative_scan` against a loop."""

import numpy as np
import pytest

import functx
from functx import lax
from functx.core.errors import ArgumentError, AxisError, DTypeError, ShapeError, TreeError
from functx.testing import check_grads


def compose(first, then):
    """t -> a t + b followed by t -> c t + d."""
    (a, b), (c, d) = first, then
    return a * c, c * b + d


def pair(length, axis=0, seed=0):
    random = np.random.RandomState(seed)
    shape = [2, 2]
    shape.insert(axis if axis >= 0 else axis + 3, length)
    return tuple(random.randn(2, *shape).astype("float32"))


def looped(elems, axis=0, reverse=False):
    """The same by a loop."""
    rows = [list(np.moveaxis(x, axis, 0)) for x in elems]
    steps = list(zip(*rows, strict=True))[:: -1 if reverse else 1]
    found = steps[:1]
    for step in steps[1:]:
        found.append(compose(found[-1], step))
    found = found[:: -1 if reverse else 1]
    return [np.stack(x, axis) for x in zip(*found, strict=True)] if found else elems


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("length", "axis"), [(0, 0), (1, 1), (2, -1), (5, 1), (8, 0), (13, -2)])
def test_it_combines_what_lies_before_each_place(length, axis, reverse):
    elems = pair(length, axis)
    found = functx.jit(lambda *e: lax.associative_scan(compose, e, reverse, axis))(*elems)
    for x, y in zip(found, looped(elems, axis, reverse), strict=True):
        assert x.dtype == np.float32
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_a_function_that_does_not_commute_gets_earlier_elements_first():
    digits = np.array([[3], [1], [4], [1], [5]], np.int32)
    after = lambda x, y: x * 10 + y  # noqa: E731 - of one digit each, the last two count
    last = lax.associative_scan(lambda x, y: {"d": y["d"]}, {"d": digits})
    np.testing.assert_array_equal(last["d"], digits)
    first = lax.associative_scan(lambda x, y: x, digits, reverse=True)
    np.testing.assert_array_equal(first, np.full((5, 1), 5))
    assert after(3, 1) == lax.associative_scan(after, digits[:2])[1, 0]


def test_outside_a_trace_it_gives_what_it_was_given():
    out = lax.associative_scan(np.add, np.arange(5))
    assert type(out) is functx.numpy.ndarray and out.tolist() == [0, 1, 3, 6, 10]


def test_its_program_grows_with_the_logarithm_of_the_length():
    def count(n):
        scan = functx.make_ir(lambda x: lax.associative_scan(lambda x, y: x * y, x))
        return len(scan(np.ones(n, "float32")))

    assert count(4096) - count(1024) == count(1024) - count(256) <= 40


def test_it_differentiates_and_maps(x64):
    a, b = (x.astype(float) for x in pair(5))

    def scanned(a, b):
        return lax.associative_scan(compose, (a, b))[1]

    check_grads(scanned, (a, b), order=2)
    mapped = functx.vmap(scanned, (1, 1), 1)(a, b)
    np.testing.assert_allclose(mapped, looped((a, b))[1], atol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "problem"),
    [
        (lambda: lax.associative_scan(3, np.ones(3)), ArgumentError, "`fn` must be a function"),
        (
            lambda: lax.associative_scan(compose, ()),
            TreeError,
            r"associative_scan\(compose\): there must be an array to scan; got \(\)",
        ),
        (
            lambda: lax.associative_scan(compose, (np.ones(3), np.ones(4))),
            ShapeError,
            r"one length along axis 0; got elems\[0\]: f32\[3\] and elems\[1\]: f32\[4\]",
        ),
        (
            lambda: lax.associative_scan(lambda x, y: (x, y), np.ones(3)),
            TreeError,
            "what fn returns must have the structure of elems",
        ),
        (
            lambda: lax.associative_scan(lambda x, y: (x + y).sum(), np.ones(6)),
            ShapeError,
            r"shapes and dtypes that it takes; got f32\[\] for elems: f32\[3\]",
        ),
        (
            lambda: lax.associative_scan(lambda x, y: x["a"], {"a": np.ones(6)}),
            TreeError,
            "structure of elems",
        ),
        (
            lambda: lax.associative_scan(lambda x, y: x > y, np.ones(6)),
            DTypeError,
            r"got bool\[3\] for elems: f32\[3\]",
        ),
        (
            lambda: lax.associative_scan(lambda x, y: x, np.ones(3), axis=1),
            AxisError,
            r"axis must be in \[-1, 1\)",
        ),
    ],
)
def test_bad_calls_are_refused_by_name(call, error, problem):
    with pytest.raises(error, match=problem):
        call()
