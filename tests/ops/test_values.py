"""`lower` against the NumPy meaning of each primitive: every sample, dtype and special value."""

from functools import cache

import numpy as np
import pytest

from functx.core.samples import avals_with_dtype, draw_operands
from functx.core.tracing import trace
from functx.core.types import DTYPES_BY_SHORT_NAME, SHORT_NAMES, ShapedArray, is_inexact, kind
from functx.lowering.functx_call import jit_program
from functx.ops.families import Elementwise
from functx.testing import reference
from functx.testing.rule_cases import accepted_dtypes, primitive_under_test
from functx.testing.rule_evaluation import FAST_COMPILE_OPTIONS, checked_tracing, inline
from tests.ops.registry import PRIMITIVES, SAMPLES, label

TOLERANCES = {"f64": 1e-12, "c128": 1e-12, "f32": 4e-6, "c64": 4e-6, "f16": 4e-3, "bf16": 3e-2}
"""How far a value may be from NumPy's, relative to the largest value."""


@pytest.mark.parametrize("case", SAMPLES, ids=label)
def test_lower_gives_what_numpy_gives_in_every_dtype(case):
    cls, number = case
    one = cls.samples[number]
    with checked_tracing():
        primitive = primitive_under_test(cls, one)
        names = accepted_dtypes(primitive, one)
        calls = [
            (primitive, draw_operands(one, 1, DTYPES_BY_SHORT_NAME[n] if one.avals else None))
            for n in names
        ]
        for name, (_, args), outs in zip(names, calls, run(calls), strict=True):
            check(f"{primitive!r} in {name}", outs, reference.apply_primitive(primitive, args))


def run(calls):
    """The outputs of primitives on operands, all compiled together."""
    programs = []
    for primitive, args in calls:
        avals = [ShapedArray(x.shape, x.dtype) for x in args]

        def body(*xs, primitive=primitive):
            out = primitive(*xs)
            return out if primitive.multiple_results else [out]

        programs.append(trace(body, avals)[0])
    flat = [x for _, args in calls for x in args]

    def together(*xs):
        rest = iter(xs)
        return [out for p in programs for out in inline(p, [next(rest) for _ in p.inputs])]

    everything, _ = trace(together, [ShapedArray(x.shape, x.dtype) for x in flat])
    compiled = jit_program(everything, compiler_options=FAST_COMPILE_OPTIONS)
    outs = iter([np.asarray(x) for x in compiled(*flat)])
    return [[next(outs) for _ in p.outputs] for p in programs]


def check(what, outs, wanted):
    for x, y in zip(outs, wanted, strict=True):
        assert x.shape == y.shape, f"{what}: got shape {x.shape}, NumPy {y.shape}"
        if is_inexact(x.dtype):
            close(what, x, y)
        else:
            np.testing.assert_array_equal(x, y.astype(x.dtype), what)


def narrowed(y, dtype):
    with np.errstate(all="ignore"):
        return y.astype(dtype)


def close(what, x, y):
    tolerance = TOLERANCES[SHORT_NAMES[x.dtype]]
    y = narrowed(y, x.dtype)
    x, y = reference.widen_array(x), reference.widen_array(y)
    scale = np.max(np.abs(y), initial=1.0, where=np.isfinite(y))
    np.testing.assert_allclose(x, y, tolerance, tolerance * scale, err_msg=what)


SPECIAL_DTYPES = ("f32", "f64", "bf16", "f16")
ELEMENTWISE = {
    cls.name: cls for cls in PRIMITIVES if issubclass(cls, Elementwise) and not cls.fields
}
OPERANDS = {name: len(cls.samples[0].avals) for name, cls in ELEMENTWISE.items()}


def special_values(name):
    dtype = DTYPES_BY_SHORT_NAME[name]
    largest = float(np.finfo(np.float16).max) if name == "f16" else 1e30
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -3.0, 7.5, largest, np.inf, -np.inf, np.nan]
    return np.asarray(values).astype(dtype)


@cache
def special_results(dtype_name):
    """By primitive, all combinations of special values and the outputs for them."""
    with checked_tracing():
        calls = {}
        for name, cls in ELEMENTWISE.items():
            primitive, n = cls(), OPERANDS[name]
            values = special_values(dtype_name)
            grid = [x.ravel() for x in np.meshgrid(*[values] * n, indexing="ij")]
            avals = avals_with_dtype(cls.samples[0], values.dtype)
            if dtype_name in accepted_dtypes(primitive, cls.samples[0]) and all(
                kind(a.dtype) == "f" for a in avals
            ):
                calls[name] = primitive, grid
        found = run(list(calls.values()))
        return {
            name: (args, outs[0])
            for (name, (_, args)), outs in zip(calls.items(), found, strict=True)
        }


@pytest.mark.parametrize("dtype_name", SPECIAL_DTYPES)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_special_values_are_those_of_numpy(name, dtype_name):
    found = special_results(dtype_name).get(name)
    if found is None:
        return
    args, x = found
    y = narrowed(reference.apply_primitive(ELEMENTWISE[name](), args)[0], x.dtype)
    if not is_inexact(x.dtype):
        np.testing.assert_array_equal(x, y)
        return
    x, y = reference.widen_array(x), reference.widen_array(y)
    tolerance = TOLERANCES[dtype_name]
    wrong = ~np.isclose(x, y, tolerance, tolerance, equal_nan=True)
    shown = [[float(a[i]) for a in args] + [x[i], y[i]] for i in np.flatnonzero(wrong)]
    assert not shown, f"operands, got, NumPy: {shown}"
