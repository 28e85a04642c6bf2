"""The numbers of jax.nn.initializers."""

import jax
import numpy as np
import pytest

from functx import random
from functx.core.errors import ShapeError, ValueRangeError
from functx.nn import initializers

CALLS = [
    ("zeros", (3, 5)),
    ("ones", (3, 5)),
    ("constant(3.5)", (3, 5)),
    ("constant(np.arange(4.0))", (3, 4)),
    ("uniform()", (3, 5)),
    ("normal(0.5)", (3, 5)),
    ("truncated_normal(2.0, lower=-1.0, upper=0.5)", (3, 5)),
    ("glorot_uniform()", (3, 5)),
    ("glorot_normal()", (3, 5)),
    ("he_uniform(in_axis=0, out_axis=1)", (3, 5)),
    ("kaiming_normal()", (2, 3, 5)),
    ("lecun_uniform()", (2, 3, 5)),
    ("lecun_normal()", (2, 3, 5)),
    ("xavier_uniform(dtype='bfloat16')", (3, 5)),
    ("xavier_normal(dtype='complex64')", (3, 5)),
    ("he_uniform(dtype='complex64')", (3, 5)),
    ("variance_scaling(1.5, 'fan_geo_avg', 'normal')", (3, 5)),
    ("variance_scaling(1.5, 'fan_out', 'uniform', -1, -2, 0)", (2, 3, 5)),
    ("orthogonal(2.0)", (3, 5)),
    ("orthogonal(1.0, 0)", (4, 2, 3)),
    ("orthogonal()", (0, 3)),
    ("delta_orthogonal()", (3, 4, 5)),
    ("delta_orthogonal(2.0)", (2, 3, 2, 2)),
]


@pytest.mark.parametrize(("call", "shape"), CALLS)
def test_the_numbers_are_those_of_jax(call, shape):
    found = eval(f"initializers.{call}")(random.key(3), shape)
    expected = eval(f"jax.nn.initializers.{call}")(jax.random.key(3), shape)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(
        np.asarray(found, "complex64"), np.asarray(expected, "complex64"), 2e-6, 1e-8
    )


def test_an_initializer_takes_the_dtype_of_the_call_first():
    init = initializers.normal(dtype="float16")
    assert init(random.key(0), (2,)).dtype == np.float16
    assert init(random.key(0), (2,), "float32").dtype == np.float32
    assert isinstance(init, initializers.Initializer)


def test_wrong_arguments_are_told():
    with pytest.raises(ShapeError, match=r"an axis of inputs and one of outputs; got \(3,\)"):
        initializers.he_normal()(random.key(0), (3,))
    with pytest.raises(ValueRangeError, match=r"mode must be one of 'fan_in'.*; got 'fan'"):
        initializers.variance_scaling(1.0, "fan", "normal")
    with pytest.raises(ShapeError, match="orthogonal: a shape must have at least two axes"):
        initializers.orthogonal()(random.key(0), (3,))
    with pytest.raises(ShapeError, match="at least n outputs; got"):
        initializers.delta_orthogonal()(random.key(0), (3, 4, 2))
