"""`lower` of elementwise primitives against their NumPy definitions, on special values."""

from functools import cache

import numpy as np
import pytest

from functx.core.samples import avals_with_dtype
from functx.core.tracing import trace
from functx.core.types import DTYPES_BY_SHORT_NAME, is_inexact, kind
from functx.ops.families import Elementwise
from functx.testing.reference import apply_primitive, narrow_array, widen_array
from functx.testing.rule_cases import accepted_dtypes
from functx.testing.rule_evaluation import CheckedOperation, checked_tracing, run_side_by_side
from functx.testing.rules import DEFINITION_TOLERANCES
from tests.ops.registry import PRIMITIVES

SPECIAL_DTYPES = ("f32", "f64", "bf16", "f16")
# Its definition in NumPy holds for positive parameters and finite values.
DEFINED_INSIDE = {"random_gamma_grad"}
ELEMENTWISE = {
    cls.name: cls
    for cls in PRIMITIVES
    if issubclass(cls, Elementwise) and not cls.fields and cls.name not in DEFINED_INSIDE
}


def special_values(name):
    dtype = DTYPES_BY_SHORT_NAME[name]
    largest = float(np.finfo(np.float16).max) if name == "f16" else 1e30
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 7.5, largest, np.inf, -np.inf, np.nan]
    return np.asarray(values).astype(dtype)


@cache
def special_results(dtype_name):
    """By primitive, all combinations of special values and the outputs for them."""
    values = special_values(dtype_name)
    operations = {}
    with checked_tracing():
        for name, cls in ELEMENTWISE.items():
            primitive, sample = cls(), cls.samples[0]
            avals = avals_with_dtype(sample, values.dtype)
            if dtype_name in accepted_dtypes(primitive, sample) and {
                kind(a.dtype) for a in avals
            } == {"f"}:
                grid = [x.ravel() for x in np.meshgrid(*[values] * len(avals), indexing="ij")]
                avals = [a.update(shape=x.shape) for a, x in zip(avals, grid, strict=True)]
                program, _ = trace(lambda *xs, p=primitive: [p(*xs)], avals)
                operations[name] = CheckedOperation(primitive, program, [grid])
        results = run_side_by_side(list(operations.values()))
    return {
        name: (args, out)
        for (name, (_, _, [args])), [[out]] in zip(operations.items(), results, strict=True)
    }


@pytest.mark.parametrize("dtype_name", SPECIAL_DTYPES)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_special_values_are_those_of_numpy(name, dtype_name):
    found = special_results(dtype_name).get(name)
    if found is None:
        return
    args, x = found
    y = narrow_array(apply_primitive(ELEMENTWISE[name](), args)[0], x.dtype)
    if not is_inexact(x.dtype):
        np.testing.assert_array_equal(x, y)
        return
    x, y = widen_array(x), widen_array(y)
    tolerance = DEFINITION_TOLERANCES[dtype_name]
    wrong = ~np.isclose(x, y, tolerance, tolerance, equal_nan=True)
    shown = [[float(a[i]) for a in args] + [x[i], y[i]] for i in np.flatnonzero(wrong)]
    assert not shown, f"operands, got, NumPy: {shown}"
