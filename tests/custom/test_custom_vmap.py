"""Functions with batching rules: in maps, in derivatives of maps, and in maps of derivatives."""

from functools import partial

import jax
import jax.custom_batching
import jax.numpy as jnp
import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.core.errors import ArgumentError, MissingRuleError, RuleError
from functx.custom_batching import sequential_vmap

X = onp.array([0.1, 0.2, 0.3], onp.float32)
Y = onp.array([1.0, 2.0, 3.0], onp.float32)
SIN, COS = onp.sin, onp.cos


def marked(log=None):
    """sin(x) y, and for a batch three times that."""
    f = fx.custom_vmap(lambda x, y: np.sin(x) * y)

    @f.def_vmap
    def rule(axis_size, in_batched, x, y):
        if log is not None:
            log.append((axis_size, in_batched, x.shape, y.shape))
        return 3.0 * np.sin(x) * y, True

    return f


def test_the_rule_gets_the_size_the_batched_flags_and_the_batch_on_the_first_axis():
    log = []
    f = marked(log)
    assert float(f(0.5, 2.0)) == pytest.approx(2.0 * SIN(0.5))
    onp.testing.assert_allclose(fx.vmap(f)(X, Y), 3.0 * SIN(X) * Y, rtol=1e-6)
    onp.testing.assert_allclose(fx.vmap(f, (0, None))(X, 2.0), 6.0 * SIN(X), rtol=1e-6)
    grid = onp.stack([X, X]).T
    onp.testing.assert_allclose(fx.vmap(f, (1, None))(grid, Y), [3.0 * SIN(X) * Y] * 2, rtol=1e-6)
    assert log == [
        (3, [True, True], (3,), (3,)),
        (3, [True, False], (3,), ()),
        (2, [True, False], (2, 3), (3,)),
    ]


F = marked()
SLOPE = 3.0 * COS(X) * Y


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (lambda: fx.grad(F)(0.1, 2.0), 2.0 * COS(0.1)),
        (lambda: fx.vmap(fx.grad(F))(X, Y), SLOPE),
        (lambda: fx.vmap(fx.grad(F, 1), (0, None))(X, 2.0), 3.0 * SIN(X)),
        (lambda: fx.vmap(fx.grad(F, 1), (None, 0))(0.1, Y), [3.0 * SIN(0.1)] * 3),
        (lambda: fx.vmap(lambda x: fx.jvp(F, (x, 2.0), (1.0, 1.0))[1])(X), 6 * COS(X) + 3 * SIN(X)),
        # A batch of tangents alone is no batch of the function.
        (lambda: fx.vmap(lambda t: fx.jvp(F, (0.1, 2.0), (t, 0.0))[1])(X), 2.0 * COS(0.1) * X),
        (lambda: fx.vmap(fx.vjp(F, 0.1, 2.0)[1])(X)[0], 2.0 * COS(0.1) * X),
        (lambda: fx.vmap(fx.jacfwd(F))(X, Y), SLOPE),
        (lambda: fx.vmap(fx.jacrev(F))(X, Y), SLOPE),
        (lambda: fx.vmap(fx.hessian(F))(X, Y), -3.0 * SIN(X) * Y),
        (lambda: fx.vmap(fx.grad(fx.grad(F, 1)))(X, Y), 3.0 * COS(X)),
        (lambda: fx.grad(lambda x: fx.vmap(F)(x, Y).sum())(X), SLOPE),
        (lambda: fx.grad(lambda y: fx.vmap(F, (0, None))(X, y).sum())(2.0), 3.0 * SIN(X).sum()),
        (lambda: fx.jit(fx.vmap(fx.jit(fx.grad(fx.checkpoint(F)))))(X, Y), SLOPE),
        (lambda: fx.vmap(lambda x, y: fx.linearize(F, x, y)[1](1.0, 0.0))(X, Y), SLOPE),
        (
            lambda: fx.vmap(lambda p: p(1.0)[0])(fx.vmap(lambda x, y: fx.vjp(F, x, y)[1])(X, Y)),
            SLOPE,
        ),
        (
            lambda: fx.vmap(fx.vmap(fx.grad(F), (0, None)), (None, 0))(X, Y),
            3.0 * COS(X) * Y[:, None],
        ),
        (
            lambda: fx.vmap(
                lambda x: fx.linear_transpose(lambda y: F(fx.stop_gradient(x), y), 1.0)(1.0)[0]
            )(X),
            3.0 * SIN(X),
        ),
        (lambda: jax.vmap(lambda x: F(x, 2.0))(X), 6.0 * SIN(X)),
    ],
)
def test_derivatives_keep_to_the_rule(got, want):
    onp.testing.assert_allclose(got(), want, rtol=1e-5)


def test_loops_and_branches_keep_to_the_rule():
    def twice(x, y):
        return fx.lax.scan(lambda c, _: (F(c, y), None), x, length=2)[0]

    once = 3.0 * SIN(X) * Y
    onp.testing.assert_allclose(fx.vmap(twice)(X, Y), 3.0 * SIN(once) * Y, rtol=1e-5)
    want = 3.0 * COS(once) * Y * SLOPE
    onp.testing.assert_allclose(fx.vmap(fx.grad(twice))(X, Y), want, rtol=1e-5)
    # A residual of the batch is that of its rows.
    pulls = fx.vmap(lambda x, y: fx.vjp(F, x, y)[1])(X, Y)
    one = fx.tree.map(lambda r: r[1], pulls)
    onp.testing.assert_allclose(one(1.0)[0], COS(X[1]) * Y[1], rtol=1e-5)


def test_nested_maps_call_the_rule_as_jax_does():
    def log_of(m, xp):
        log = []
        f = m.custom_batching.custom_vmap(xp.sin)

        def rule(size, batched, x):
            log.append((size, batched, x.shape))
            return 2.0 * f(x), True

        f.def_vmap(rule)
        out = m.vmap(m.vmap(f, 1), 2)(onp.ones((2, 3, 4), onp.float32))
        return log, onp.asarray(out)

    (log, out), (wanted_log, wanted) = log_of(fx, np), log_of(jax, jnp)
    assert log == wanted_log
    onp.testing.assert_allclose(out, wanted, rtol=1e-6)


def test_rules_and_functions_may_close_over_mapped_values():
    def outer(w):
        f = fx.custom_vmap(lambda x: w * x)

        def rule(size, batched, x, factor=3.0):
            return factor * w * x, batched[0]

        f.def_vmap(partial(rule, factor=5.0))
        return fx.vmap(f)(X), f(2.0), fx.vmap(fx.grad(f))(X)

    rows, one, slopes = fx.vmap(outer)(Y)
    onp.testing.assert_allclose(rows, 5.0 * Y[:, None] * X, rtol=1e-6)
    # The outer map is one of `f` too, through what it closes over.
    onp.testing.assert_allclose(one, 10.0 * Y, rtol=1e-6)
    onp.testing.assert_allclose(slopes, 5.0 * Y[:, None] * onp.ones(3), rtol=1e-6)
    rows, one, _ = fx.jit(outer)(2.0)
    onp.testing.assert_allclose(rows, 10.0 * X, rtol=1e-6)
    assert float(one) == 4.0
    assert float(fx.grad(lambda w: outer(w)[0].sum())(2.0)) == pytest.approx(5.0 * X.sum())


def test_a_rule_may_use_arrays():
    f = fx.custom_vmap(lambda x: 1.0 * x)
    f.def_vmap(lambda size, batched, x: (x * onp.arange(size, dtype=onp.float32), True))
    for g in (fx.vmap(f), fx.jit(fx.vmap(f))):
        onp.testing.assert_allclose(g(Y), Y * onp.arange(3))
    onp.testing.assert_allclose(fx.vmap(fx.grad(f))(Y), onp.arange(3))


def test_pytrees_keywords_and_outputs_that_all_share():
    seen = []

    @fx.custom_vmap
    def f(params, k=2):
        return {"a": params["x"] + k, "b": params["y"]}

    @f.def_vmap
    def rule(size, batched, params, k):
        seen.append(batched)
        return f(params, k), {"a": True, "b": batched[0]["y"]}

    axes = ({"x": 0, "y": None},)
    out = fx.vmap(f, axes, out_axes={"a": 0, "b": None})({"x": X, "y": 1.0})
    onp.testing.assert_allclose(out["a"], X + 2.0)
    assert float(out["b"]) == 1.0
    assert seen == [[{"x": True, "y": False}, False]]
    grads = fx.vmap(fx.grad(lambda p: f(p, k=3)["b"]), axes, {"x": 0, "y": 0})({"x": X, "y": 1.0})
    onp.testing.assert_allclose(grads["y"], onp.ones(3))
    onp.testing.assert_allclose(grads["x"], onp.zeros(3))


def test_a_derivative_rule_within():
    # The 10 marks the rule of the derivative.
    product = fx.custom_vjp(lambda a, b: a * b)
    product.defvjp(lambda a, b: (a * b, (a, b)), lambda r, ct: (10.0 * ct * r[1], ct * r[0]))
    f = fx.custom_vmap(product)
    f.def_vmap(lambda size, batched, a, b: (product(a, b), True))
    assert float(fx.grad(f)(3.0, 4.0)) == 40.0
    onp.testing.assert_allclose(fx.vmap(fx.grad(f))(Y, Y), 10.0 * Y)


def test_one_row_after_the_other():
    f = sequential_vmap(lambda x, y: np.sin(x) * y["k"])
    onp.testing.assert_allclose(fx.vmap(f, (0, None))(X, {"k": 2.0}), 2.0 * SIN(X), rtol=1e-6)
    onp.testing.assert_allclose(fx.vmap(fx.grad(f))(X, {"k": Y}), COS(X) * Y, rtol=1e-6)
    program = fx.make_ir(fx.vmap(fx.vmap(f)))(onp.ones((2, 3)), {"k": onp.ones((2, 3))})
    scans = [e.primitive for p in program.walk() for e in p if e.primitive.name == "scan"]
    assert sorted([s.length for s in scans]) == [2, 3]


def mistaken(rule):
    f = fx.custom_vmap(lambda x: x)
    f.def_vmap(rule)
    return lambda: fx.vmap(f)(X)


def escaping():
    class Box:
        value = None

    f = fx.custom_vmap(lambda x: 2.0 * x)
    f.def_vmap(lambda size, batched, x: (Box.value * x, True))

    def outer(w):
        Box.value = w
        return f(w)

    return fx.vmap(outer)(X)


@pytest.mark.parametrize(
    ("make", "kind", "match"),
    [
        (mistaken(lambda n, b, x: x), RuleError, r"pair \(output, out_batched\); got f32\[3\]"),
        (mistaken(lambda n, b, x: (x, [True, True])), RuleError, "out_batched.*prefix"),
        (mistaken(lambda n, b, x: (x, 1)), RuleError, "made of True and False; got int"),
        (mistaken(lambda n, b, x: ((x, x), True)), RuleError, "structure of the function's output"),
        (mistaken(lambda n, b, x: (x.sum(), True)), RuleError, r"got f32\[\] where f32\[3\]"),
        (mistaken(lambda n, b, x: (x, False)), RuleError, r"got f32\[3\] where f32\[\]"),
        (mistaken(lambda n, b, x: (x > 0.0, True)), RuleError, r"got bool\[3\] where f32\[3\]"),
        (escaping, ArgumentError, "traced values that are arguments, or variables around"),
        (lambda: fx.custom_vmap(np.sin)(1.0), MissingRuleError, "Give it one with def_vmap"),
        (lambda: fx.custom_vmap(3), ArgumentError, "must be a function; got int"),
        (lambda: fx.custom_vmap(np.sin).def_vmap(None), ArgumentError, "def_vmap.*got NoneType"),
    ],
)
def test_mistakes_are_named(make, kind, match):
    with pytest.raises(kind, match=match) as error:
        make()
    assert f"python -m functx.errors {kind.__name__}" in str(error.value)


def test_an_error_has_the_line_where_the_rule_returns():
    def rule(axis_size, in_batched, x):
        return x

    with pytest.raises(RuleError) as error:
        mistaken(rule)()
    line = rule.__code__.co_firstlineno + 1
    assert f"test_custom_vmap.py:{line} in" in str(error.value)
    assert str(error.value).count("return x") == 1
