"""Searches for cyclic garbage are rarer while anything is traced, and as before afterwards."""

import gc

import pytest

import functx


@pytest.fixture(autouse=True)
def thresholds():
    before = gc.get_threshold()
    gc.set_threshold(600, 5, 5)
    yield
    gc.set_threshold(*before)


def test_thresholds_are_raised_in_a_trace_and_in_those_inside_it():
    def loss(x):
        seen.append(gc.get_threshold())
        return x * x

    seen = []
    functx.make_ir(functx.grad(lambda x: functx.jit(loss)(x)))(2.0)
    assert seen == [(100_000, 5, 5)]
    assert gc.get_threshold() == (600, 5, 5)


def test_thresholds_are_as_before_when_a_trace_fails():
    with pytest.raises(ZeroDivisionError):
        functx.make_ir(lambda x: 1 // 0)(2.0)
    assert gc.get_threshold() == (600, 5, 5)


def test_no_search_stays_no_search():
    gc.set_threshold(0, 5, 5)
    seen = []
    functx.make_ir(lambda x: seen.append(gc.get_threshold()))(2.0)
    assert seen == [(0, 5, 5)]
    assert gc.get_threshold() == (0, 5, 5)
