"""The rules at points where a formula may fail though the function is smooth, and on empty arrays."""

from functools import partial

import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx.core.primitive import Primitive
from functx.testing import check_rules, f32, sample

# Unary functions at 0, and far out, where a quotient of large numbers would be nan.
AT_ZERO = [
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "erf",
    "erf_inv",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "log1p",
    "logistic",
    "sin",
    "sinh",
    "square",
    "tan",
    "tanh",
]
FAR_OUT = ["asinh", "atan", "erf", "erfc", "logistic", "tanh"]

POINTS = {
    "a power of 0": ("pow", [f32[3], f32[3]], {"values": {1: [0.0] * 3}, "domain": (0.5, 2.0)}),
    "a whole power": (
        "pow",
        [f32[3], f32[3]],
        {"values": {1: [1.0, 2.0, 3.0]}, "domain": (0.5, 2.0)},
    ),
    "the square of 0": ("integer_pow", [f32[2]], {"exponent": 2, "values": {0: [0.0, 1.0]}}),
    "the cube of 0": ("integer_pow", [f32[2]], {"exponent": 3, "values": {0: [0.0, -1.0]}}),
    "angles of axes": (
        "atan2",
        [f32[4], f32[4]],
        {"values": {0: [0.0, 1.0, 0.0, -1.0], 1: [1.0, 0.0, 2.0, 0.0]}},
    ),
    "one side of 0": ("hypot", [f32[2], f32[2]], {"values": {0: [0.0, 1.0], 1: [1.0, 0.0]}}),
    "sums of equals": ("logaddexp", [f32[2], f32[2]], {"values": {0: [0.0, 1.0], 1: [0.0, 1.0]}}),
    "a product with one 0": (
        "reduce_prod",
        [f32[4]],
        {"axes": (0,), "values": {0: [0.0, 1.5, 2.0, -1.0]}},
    ),
    "a product with two": (
        "reduce_prod",
        [f32[4]],
        {"axes": (0,), "values": {0: [0.0, 0.0, 2.0, -1.0]}},
    ),
    "products with two 0": ("cumprod", [f32[4]], {"axis": 0, "values": {0: [2.0, 0.0, 0.0, -1.0]}}),
    "products from the end": (
        "cumprod",
        [f32[4]],
        {"axis": 0, "reverse": True, "values": {0: [0.0, 1.5, 2.0, -1.0]}},
    ),
    "a recurrence cut off": (
        "linear_recurrence",
        [f32[4], f32[4]],
        {"axis": 0, "values": {0: [0.0, 0.0, 1.0, 0.0]}},
    ),
    "a running sum of equals": ("cumlogsumexp", [f32[4]], {"axis": 0, "values": {0: [0.0] * 4}}),
}
FAR_APART = [[0.0, 0.0, 0.0], [500.0, 0.0, -500.0]]
POINTS |= {
    f"{name} of numbers far apart": (name, [f32[2, 3]], {"axes": (1,), "values": {0: FAR_APART}})
    for name in ("log_softmax", "log_sum_exp", "softmax")
}

EMPTY = {
    "no columns": [
        ("log_softmax", [f32[2, 0]], {"axes": (1,)}),
        ("log_sum_exp", [f32[2, 0]], {"axes": (1,)}),
        ("softmax", [f32[2, 0]], {"axes": (1,)}),
        ("top_k", [f32[3, 0]], {"k": 0}),
        ("dot_general", [f32[2, 0], f32[0, 2]], {"contracting_dims": ((1,), (0,))}),
    ],
    "no rows": [
        *[
            (f"reduce_{kind}", [f32[0, 3]], {"axes": (0,)})
            for kind in ("max", "min", "prod", "sum")
        ],
        *[
            (f"reduce_{kind}", [f32[0, 3]], {"axes": (1,)})
            for kind in ("max", "min", "prod", "sum")
        ],
        *[
            (f"cum{kind}", [f32[0, 3]], {"axis": axis})
            for kind in ("logsumexp", "max", "min", "prod", "sum")
            for axis in (0, 1)
        ],
        ("sort", [f32[0, 3]], {"axis": 1}),
        ("dot_general", [f32[0, 3], f32[3, 2]], {"contracting_dims": ((1,), (0,))}),
        ("concatenate", [f32[0, 3], f32[2, 3]], {"axis": 0}),
    ],
    "nothing": [
        *[(name, [f32[0]], {}) for name in ("exp", "neg", "sqrt")],
        *[(name, [f32[0], f32[0]], {}) for name in ("add", "max", "mul", "pow")],
        ("pad", [f32[0], f32[()]], {"config": ((1, 1, 2),)}),
        ("pad", [f32[3], f32[()]], {"config": ((-1, -2, 0),)}),
        ("rev", [f32[0]], {"axes": (0,)}),
        ("slice", [f32[3]], {"start": (1,), "limit": (1,)}),
        ("split", [f32[3]], {"sizes": (0, 3, 0), "axis": 0}),
    ],
    "scalars": [
        *[(f"reduce_{kind}", [f32[()]], {"axes": ()}) for kind in ("max", "prod", "sum")],
        *[
            (name, [f32[()], f32[()]], {"domain": (0.5, 2.0)})
            for name in ("add", "max", "mul", "pow")
        ],
    ],
}


@pytest.mark.parametrize("name", AT_ZERO)
def test_rules_hold_at_zero(name):
    check_rules(Primitive.registry[name], sample(f32[1], values={0: [0.0]}))


@pytest.mark.parametrize("name", FAR_OUT)
def test_rules_hold_far_out(name):
    check_rules(Primitive.registry[name], sample(f32[4], values={0: [30.0, -30.0, 8.0, -8.0]}))


@pytest.mark.parametrize("point", POINTS)
def test_rules_hold_at(point):
    name, avals, given = POINTS[point]
    check_rules(Primitive.registry[name], sample(*avals, **given))


@pytest.mark.parametrize("kind", EMPTY)
def test_rules_hold_for(kind):
    for name, avals, given in EMPTY[kind]:
        check_rules(Primitive.registry[name], sample(*avals, **given))


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_extrema_of_many_elements_are_nan_where_one_is(dtype):
    # XLA computes those of large arrays on a CPU by a library that leaves out nans.
    x = fnp.asarray(np.random.standard_normal((40, 8, 8, 16)), dtype)
    x = fnp.asarray(np.where(np.arange(x.size).reshape(x.shape) % 4999 == 7, np.nan, x), dtype)
    cases = [
        *[(partial(f, axis=axes), axes) for f in (fnp.max, fnp.min) for axes in (0, (1, 2), None)],
        (lambda x: functx.vmap(fnp.max)(x), (1, 2, 3)),
        (lambda x: fnp.linalg.norm(x.reshape(40, -1), np.inf, axis=1), (1, 2, 3)),
        (lambda x: fnp.sum(functx.nn.softmax(x, axis=(1, 2)), (1, 2)), (1, 2)),
        (lambda x: functx.nn.logsumexp(x, axis=(1, 2)), (1, 2)),
        (lambda x: functx.nn.max_pool(x, (8, 8), (8, 8))[:, 0, 0], (1, 2)),
        (lambda x: -functx.nn.max_pool(-x, (8, 8), (8, 8))[:, 0, 0], (1, 2)),
    ]
    found = functx.jit(lambda x: [f(x) for f, _ in cases])(x)
    for (_, axes), values in zip(cases, found, strict=True):
        wanted = np.isnan(np.asarray(x, "float32")).any(axes)
        assert wanted.any()
        np.testing.assert_array_equal(np.isnan(np.asarray(values, "float32")), wanted)
