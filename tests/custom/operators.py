"""Helpers of the tests of custom operators: a scope for their definitions, and some operators."""

import pytest

import functx
from functx import Array, custom_op
from functx import numpy as np


@pytest.fixture(autouse=True)
def scope():
    """Forget the operators and rules of one test after it."""
    with functx.library.scoped():
        yield


def opaque(name="test::sine", **options):
    """An operator without derivative rules that gives the sine of one array."""

    @custom_op(name, **options)
    def sine(x: Array) -> Array:
        return np.sin(x)

    sine.def_abstract(lambda x: x)
    return sine


def scaled_sum(name="test::scaled_sum"):
    """An operator of an array, an array that may be None, a list and a number; no rules."""

    @custom_op(name)
    def scaled_sum(x: Array, bias: Array | None, parts: list[Array], factor: float = 2.0) -> Array:
        total = x * factor if bias is None else x * factor + bias
        for part in parts:
            total = total + part
        return total

    scaled_sum.def_abstract(lambda x, bias, parts, factor: x)
    return scaled_sum
