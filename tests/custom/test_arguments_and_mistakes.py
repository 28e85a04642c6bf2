"""The arguments of functions with rules, and the errors for mistakes in rules."""

from functools import partial

import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.core.errors import (
    ArgnumsError,
    ArgumentError,
    GradientError,
    LinearityError,
    MissingRuleError,
    RuleError,
)

ROW = onp.array([1.0, 2.0, 3.0], onp.float32)


@pytest.mark.parametrize("kind", [fx.custom_jvp, fx.custom_vjp])
def test_arguments_are_named_and_counted_by_the_signature(kind):
    def scaled(x, power=2, *, scale=3.0):
        return scale * x**power

    def plain(x, power=2, scale=3.0):
        return scale * x**power

    with pytest.raises(ArgumentError, match="keyword-only"):
        with_rule(kind(scaled, nondiff_argnames="power"))(1.0, scale=2.0)
    for options in (
        {"nondiff_argnames": "power"},
        {"nondiff_argnames": ("power",)},
        {"nondiff_argnums": 1},
        {"nondiff_argnums": (1,), "nondiff_argnames": ["power"]},
    ):
        f = with_rule(kind(plain, **options))
        assert float(fx.grad(lambda x, f=f: f(x, scale=2.0, power=3))(1.0)) == 3.0
        assert float(fx.grad(f)(1.0)) == 2.0
        assert float(f(2.0, scale=1.0)) == 4.0
    f = with_rule(partial(kind, nondiff_argnames=("power",))(plain))
    assert float(fx.grad(f)(1.0)) == 2.0


def with_rule(f):
    """`f(x, power, scale)` with the slope `power` in x."""
    if f.kind == "custom_jvp":
        f.defjvp(lambda power, p, t: (f(p[0], power, p[1]), power * t[0]))
    else:
        f.defvjp(
            lambda x, power, scale: (f(x, power, scale), None),
            lambda power, _, ct: (power * ct, None),
        )
    return f


@pytest.mark.parametrize("outside", [fx.jit, fx.vmap, lambda f: fx.jit(fx.vmap(f))])
@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_arguments_that_are_not_differentiated_may_be_traced(outside, kind):
    """JAX refuses traced values there for custom_vjp; here they are hidden operands."""
    if kind == "jvp":
        f = fx.custom_jvp(lambda w, x: w["by"] * x, nondiff_argnums=(0,))
        f.defjvp(lambda w, p, t: (f(w, *p), 10.0 * w["by"] * t[0]))
    else:
        f = fx.custom_vjp(lambda w, x: w["by"] * x, nondiff_argnums=(0,))
        f.defvjp(lambda w, x: (f(w, x), None), lambda w, _, ct: (10.0 * w["by"] * ct,))
    got = outside(lambda w: fx.grad(lambda x: f({"by": w}, x).sum())(ROW))(ROW)
    want = 10.0 * ROW[:, None] * onp.ones(3) if outside is not fx.jit else 10.0 * ROW
    onp.testing.assert_allclose(got, want)


def test_arguments_that_are_not_differentiated_have_no_derivative():
    f = fx.custom_vjp(lambda w, x: w * x, nondiff_argnums=(0,))
    f.defvjp(lambda w, x: (w * x, x), lambda w, x, ct: (w * ct,))
    with pytest.raises(GradientError, match="or in an argument of nondiff_argnums"):
        fx.grad(lambda w: f(w, 2.0))(3.0)
    assert float(fx.grad(lambda w: w * f(fx.stop_gradient(w), 2.0))(3.0)) == 6.0


def test_a_rule_for_each_mode():
    f = fx.custom_vjp(lambda x: x * x)
    f.defvjp(lambda x: (f(x), x), lambda x, ct: (3.0 * np.clip(ct, -1.0, 1.0) * x,))

    @f.defjvp
    def forward(primals, tangents):
        return f(*primals), 5.0 * primals[0] * tangents[0]

    for g in (f, fx.jit(f), fx.checkpoint(f)):
        assert float(fx.grad(g)(2.0)) == 6.0
        assert float(fx.jvp(g, (2.0,), (1.0,))[1]) == 10.0
        assert float(fx.jacfwd(g)(2.0)) == 10.0
    onp.testing.assert_allclose(fx.vmap(fx.jacfwd(f))(ROW), 5.0 * ROW)
    onp.testing.assert_allclose(fx.jvp(fx.vmap(f), (ROW,), (ROW,))[1], 5.0 * ROW**2)
    onp.testing.assert_allclose(fx.vmap(fx.grad(f))(ROW), 3.0 * ROW)
    assert float(fx.grad(fx.jacfwd(f))(2.0)) == 5.0


def test_a_vjp_rule_has_forward_mode_and_second_derivatives():
    f = fx.custom_vjp(lambda x: x * np.sin(x).sum())
    f.defvjp(
        lambda x: (f(x), x),
        lambda x, ct: (2.0 * ct * np.sin(x).sum() + (ct * x).sum() * np.cos(x),),
    )
    jacobian = 2.0 * onp.eye(3) * onp.sin(ROW).sum() + ROW[:, None] * onp.cos(ROW)
    for d in (fx.jacrev, fx.jacfwd):
        onp.testing.assert_allclose(d(f)(ROW), jacobian, rtol=1e-5)
    _, push = fx.linearize(f, ROW)
    onp.testing.assert_allclose(push(ROW), jacobian @ ROW, rtol=1e-5)
    reverse = fx.jacrev(fx.jacrev(f))(ROW)
    for second in (fx.jacfwd(fx.jacrev(f)), fx.jacrev(fx.jacfwd(f)), fx.jacfwd(fx.jacfwd(f))):
        onp.testing.assert_allclose(second(ROW), reverse, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "loop",
    [
        lambda f: lambda x: fx.lax.fori_loop(0, 2, lambda i, c: f(c), x),
        lambda f: lambda x: fx.lax.cond(x > 0.0, f, lambda x: x, f(x)),
        lambda f: (
            lambda x: fx.lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, f(c[1])), (0, x))[
                1
            ]
        ),
    ],
)
@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_rules_hold_in_loops_and_branches(loop, kind):
    if kind == "jvp":
        f = fx.custom_jvp(lambda x: 1.0 * x)
        f.defjvp(lambda p, t: (f(*p), 7.0 * t[0]))
    else:
        f = fx.custom_vjp(lambda x: 1.0 * x)
        f.defvjp(lambda x: (f(x), None), lambda _, ct: (7.0 * ct,))
    g = loop(f)
    assert float(fx.jvp(g, (1.0,), (1.0,))[1]) == 49.0
    onp.testing.assert_allclose(fx.vmap(lambda x: fx.jvp(g, (x,), (1.0,))[1])(ROW), [49.0] * 3)
    onp.testing.assert_allclose(fx.jit(fx.vmap(fx.jacfwd(g)))(ROW), [49.0] * 3)


def line_of(rule):
    """The file and line that a message names for a rule that returns in one place."""
    return f"test_arguments_and_mistakes.py:{rule.__code__.co_firstlineno + 1} in"


def test_an_error_has_the_line_where_the_rule_returns():
    f = fx.custom_vjp(lambda x: x)

    def forward(x):
        return x, None

    def backward(residuals, ct):
        return {"a": ct}, ct

    f.defvjp(forward, backward)
    with pytest.raises(RuleError) as error:
        fx.grad(f)(2.0)
    assert "must be a tuple with a cotangent for each of 1 arguments; got tuple of 2" in str(
        error.value
    )
    assert line_of(backward) in str(error.value)
    assert 'return {"a": ct}, ct' in str(error.value)

    g = fx.custom_jvp(lambda x: {"y": x})

    @g.defjvp
    def push(primals, tangents):
        return {"y": primals[0]}, {"y": np.stack([tangents[0]] * 2)}

    with pytest.raises(RuleError) as error:
        fx.jvp(g, (2.0,), (1.0,))
    message = str(error.value)
    assert "got ~f32[2] where ~f32[] is expected, at ['y']" in message
    assert f"{push.__code__.co_firstlineno + 2} in" in message

    h = fx.custom_jvp(lambda x, y: x * y)

    def slope(t, out, x, y):
        return np.ones(3) * t

    h.defjvps(slope, None)
    with pytest.raises(RuleError) as error:
        fx.jvp(h, (2.0, 3.0), (1.0, 1.0))
    assert line_of(slope) in str(error.value)
    h.defjvps(slope)
    with pytest.raises(RuleError, match="a rule for each argument; got 1 for 2") as error:
        fx.jvp(h, (2.0, 3.0), (1.0, 1.0))
    assert line_of(slope) in str(error.value)


def of_forward(fwd):
    f = fx.custom_vjp(lambda x: x)
    f.defvjp(fwd, lambda r, ct: (ct,))
    return lambda: fx.grad(f)(2.0)


def of_backward(bwd, *args):
    f = fx.custom_vjp(lambda *xs: xs[0])
    f.defvjp(lambda *xs: (xs[0], None), bwd)
    return lambda: fx.grad(f)(*args or (2.0,))


def of_push(jvp, reverse=False):
    f = fx.custom_jvp(lambda x: x)
    f.defjvp(jvp)
    return lambda: fx.grad(f)(2.0) if reverse else fx.jvp(f, (2.0,), (1.0,))


@pytest.mark.parametrize(
    ("make", "kind", "match"),
    [
        (of_forward(lambda x: x), RuleError, r"must be a pair \(output, residuals\); got ~f32"),
        (of_forward(lambda x: (x, 1, 2)), RuleError, "residuals.; got tuple of 3"),
        (of_forward(lambda x: ((x, x), None)), RuleError, "structure of the function's output"),
        (of_forward(lambda x: (np.ones(3), None)), RuleError, r"got f32\[3\] where ~f32\[\]"),
        (of_forward(lambda x: (1j * x, None)), RuleError, "got ~c64"),
        (of_backward(lambda r, ct: ct), RuleError, "for each of 1 arguments; got ~f32"),
        (of_backward(lambda r, ct: None), RuleError, "for each of 1 arguments; got NoneType"),
        (of_backward(lambda r, ct: (ct, None)), RuleError, "got tuple of 2"),
        (of_backward(lambda r, ct: ((ct, ct),)), RuleError, "structure of the arguments"),
        (of_backward(lambda r, ct: (np.ones(2),)), RuleError, r"f32\[2\] where.*at \[0\]"),
        (of_backward(lambda r, ct: (ct, np.ones(2)), 1.0, 1), RuleError, r"None or float0\[\]"),
        (of_push(lambda p, t: t[0]), RuleError, r"must be a pair \(output, output tangent\)"),
        (of_push(lambda p, t: (p[0], (t[0],))), RuleError, "output tangent of its rule.*structure"),
        (of_push(lambda p, t: (p[0], np.ones(2))), RuleError, r"got f32\[2\] where"),
        (of_push(lambda p, t: (p[0], "a")), RuleError, "must be made of arrays; got str"),
        (of_push(lambda p, t: (t[0], t[0])), RuleError, "must not depend on the tangents"),
        (of_push(lambda p, t: (p[0], t[0] ** 2), True), LinearityError, "linear in the tangents"),
        (lambda: fx.custom_jvp(np.sin)(1.0), MissingRuleError, "must have a derivative rule"),
        (lambda: fx.custom_vjp(np.sin)(1.0), MissingRuleError, "Give it one with defvjp"),
        (lambda: fx.custom_jvp("f"), ArgumentError, "must be a function; got str"),
        (lambda: fx.custom_jvp(np.sin).defjvp(3), ArgumentError, "defjvp.*got int"),
        (lambda: fx.custom_jvp(np.sin).defjvps(3), ArgumentError, "defjvps.*got int"),
        (lambda: fx.custom_vjp(np.sin).defvjp(np.sin, None), ArgumentError, "got NoneType"),
        (lambda: fx.custom_jvp(np.sin, (0, 0)), ArgnumsError, "must be distinct ints"),
        (lambda: fx.custom_jvp(np.sin, "x"), ArgnumsError, "must be distinct ints"),
        (
            lambda: fx.custom_vjp(lambda x: x, nondiff_argnames="y"),
            ArgnumsError,
            "must name parameters of the function; got 'y', and parameters \\['x'\\]",
        ),
        (
            lambda: (
                with_rule(fx.custom_vjp(lambda x, power, s: x, (5,)))(1.0, 2, 3.0)
                and fx.grad(with_rule(fx.custom_vjp(lambda x, p, s: x, (5,))))(1.0, 2, 3.0)
            ),
            ArgnumsError,
            "must name positional arguments; got .5,. for 3",
        ),
        (
            lambda: fx.custom_jvp(np.sin, (0,)).defjvps(None),
            ArgumentError,
            "nondiff_argnums must be empty",
        ),
        (
            lambda: fx.grad(with_rule(fx.custom_jvp(lambda x, power, s: x, 1)))(1.0),
            ArgumentError,
            "must fit the signature",
        ),
    ],
)
def test_mistakes_are_named(make, kind, match):
    with pytest.raises(kind, match=match) as error:
        make()
    assert f"python -m functx.errors {kind.__name__}" in str(error.value)
