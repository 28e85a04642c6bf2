"""The limits at which operations on Variables run although no value was looked at."""

import numpy as np
import pytest

import functx
from functx.autograd import Variable, recorded
from functx.core.errors import ArgumentError, ValueRangeError


def count():
    return len(recorded().equations)


def test_a_recording_of_as_many_operations_as_the_limit_runs():
    x = Variable([1.0, 2.0], requires_grad=True)
    with functx.config.set(recording_operations=3):
        y = x * 2
        y = y + 1
        assert count() == 2
        y = y * 3
        assert count() == 0
        assert y.tolist() == [9.0, 15.0]
        (y * y).sum().backward()
        assert x.grad.tolist() == [108.0, 180.0]


def test_a_limit_of_one_runs_each_operation_at_once():
    x = Variable([1.0, 2.0])
    with functx.config.set(recording_operations=1):
        for _ in range(3):
            x = x * 2
            assert count() == 0
    assert x.tolist() == [8.0, 16.0]


def test_bytes_of_operands_and_results_count_once_each():
    x, y = Variable(np.ones(10, "float32")), Variable(np.ones(10, "float32"))
    assert x.tolist() == y.tolist()
    with functx.config.set(recording_bytes=200):
        z = x * x  # 80 bytes
        z = z + y  # 160
        assert count() == 2
        z = z + x
        assert count() == 0
    assert z.tolist() == [3.0] * 10


def test_a_loop_over_batches_without_a_look_keeps_as_many_as_the_limit_allows():
    total, longest = Variable(0.0), 0
    with functx.config.set(recording_bytes="40kB"):
        for _ in range(10):
            total = total + Variable(np.ones(2500, "float32")).sum()
            longest = max(longest, len(recorded().inputs))
    assert longest < 6
    assert float(total) == 25_000.0


def test_limits_are_positive_numbers_and_bytes_also_sizes():
    default = functx.config.recording_bytes
    with functx.config.set(recording_bytes="1.5 GiB"):
        assert functx.config.recording_bytes == 3 * 2**29
    assert functx.config.recording_bytes == default
    with pytest.raises(ValueRangeError, match="recording_operations must be a positive int; got 0"):
        functx.config.recording_operations = 0
    with pytest.raises(ArgumentError, match="recording_operations must be a positive int; got str"):
        functx.config.recording_operations = "2GiB"
    with pytest.raises(ValueRangeError, match=r"positive int or a size; got 'many'(?s:.*)2GiB"):
        functx.config.recording_bytes = "many"
    for wrong in (1.5, True, None):
        with pytest.raises(ArgumentError, match="recording_bytes must be a positive int or a size"):
            functx.config.recording_bytes = wrong
