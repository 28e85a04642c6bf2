"""The reductions of segments against jax.ops."""

import jax
import numpy as np
import pytest

import functx
from functx import ops
from functx.core.errors import DTypeError, ShapeError, ValueRangeError

IDS = np.array([0, 2, 2, 5, -1, 1, 9], "int32")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *[(name, dtype) for name in ("sum", "prod") for dtype in ("float32", "uint8", "complex64")],
        *[(name, dtype) for name in ("max", "min") for dtype in ("float32", "int32", "bool")],
    ],
)
def test_the_results_are_those_of_jax(name, dtype):
    data = (np.arange(14.0).reshape(7, 2) % 5).astype(dtype)
    for options in (
        {"num_segments": 7},
        {},
        {"num_segments": 6, "bucket_size": 2},
        {"num_segments": 3, "mode": "clip", "indices_are_sorted": False},
    ):
        found = getattr(ops, f"segment_{name}")(data, IDS, **options)
        expected = getattr(jax.ops, f"segment_{name}")(data, IDS, **options)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


def test_derivatives_pass_zeros_and_ties():
    segments = np.array([0, 0, 1, 1])
    x = np.array([0.0, 2.0, 3.0, 3.0], "float32")

    def loss(function):
        return lambda x: (np.array([1.0, 10.0, 7.0], "float32") * function(x, segments, 3)).sum()

    assert functx.grad(loss(ops.segment_sum))(x).tolist() == [1.0, 1.0, 10.0, 10.0]
    assert functx.grad(loss(ops.segment_prod))(x).tolist() == [2.0, 0.0, 30.0, 30.0]
    assert functx.grad(loss(ops.segment_max))(x).tolist() == [0.0, 1.0, 5.0, 5.0]
    mapped = functx.vmap(functx.grad(loss(ops.segment_min)))(np.stack([x, x]))
    assert mapped.tolist() == [[1.0, 0.0, 5.0, 5.0]] * 2


def test_wrong_arguments_are_told():
    x = np.ones(3, "float32")
    with pytest.raises(DTypeError, match="segment_sum: segment_ids must be integers; got f32"):
        ops.segment_sum(x, x)
    with pytest.raises(ShapeError, match="a row for each of segment_ids"):
        ops.segment_max(x, np.zeros(2, int))
    with pytest.raises(ValueRangeError, match="num_segments must not be negative; got -1"):
        ops.segment_prod(x, np.zeros(3, int), -1)
    with pytest.raises(functx.errors.ConcretizationError, match="segment_sum without num_segments"):
        functx.jit(ops.segment_sum)(x, np.zeros(3, int))
    assert ops.segment_sum(np.zeros((0, 2), "float32"), np.zeros(0, int)).shape == (0, 2)
