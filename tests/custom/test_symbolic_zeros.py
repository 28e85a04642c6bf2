"""Rules with symbolic zeros, and tangents of integers."""

import jax
import jax.numpy as jnp
import numpy as onp
import pytest
from jax import custom_derivatives as of_jax

import functx as fx
import functx.numpy as np
from functx import custom_derivatives as of_functx
from functx.custom_derivatives import CustomVJPPrimal, SymbolicZero

ROW = onp.array([1.0, 2.0, 3.0], onp.float32)
LIBRARIES = [(fx, np, of_functx), (jax, jnp, of_jax)]


def product(lib):
    """x y, with slopes 5 y and 7 x that are left out where an argument does not vary."""
    m, _, kinds = lib
    f = m.custom_jvp(lambda x, y: x * y)
    seen = []

    def rule(primals, tangents):
        (x, y), (dx, dy) = primals, tangents
        zeros = [isinstance(t, kinds.SymbolicZero) for t in tangents]
        seen.append(tuple(zeros))
        along_x = 0.0 if zeros[0] else 5.0 * y * dx
        return f(x, y), along_x if zeros[1] else along_x + 7.0 * x * dy

    f.defjvp(rule, symbolic_zeros=True)
    return f, seen


@pytest.mark.parametrize(
    "use",
    [
        lambda m, f: m.grad(f)(2.0, 3.0),
        lambda m, f: m.grad(f, 1)(2.0, 3.0),
        lambda m, f: m.grad(f, (0, 1))(2.0, 3.0),
        lambda m, f: m.jit(m.vmap(m.grad(f, 1), (0, None)))(ROW, 3.0),
        lambda m, f: m.grad(lambda x: m.vmap(f, (0, None))(x, 2.0).sum())(ROW),
        lambda m, f: m.grad(m.grad(f, 1), 0)(2.0, 3.0),
        lambda m, f: m.jacfwd(m.checkpoint(f))(2.0, 3.0),
        lambda m, f: m.grad(lambda x: m.lax.scan(lambda c, _: (f(c, 2.0), c), x, length=2)[0])(2.0),
    ],
)
def test_a_forward_rule_gets_symbolic_zeros_and_perturbed_flags_as_in_jax(use):
    got, want = (use(lib[0], product(lib)[0]) for lib in LIBRARIES)
    for a, b in zip(fx.tree.leaves(got), fx.tree.leaves(want), strict=True):
        onp.testing.assert_allclose(a, b, rtol=1e-6)
    f, seen = product(LIBRARIES[0])
    use(fx, f)
    assert any(any(zeros) for zeros in seen) or "(0, 1)" in str(use.__code__.co_consts)


def scaled(lib):
    """(x y, x), whose rule marks with 100 the cotangent of the second output."""
    m, _, kinds = lib
    g = m.custom_vjp(lambda x, y: (x * y, x))
    seen = []

    def fwd(x, y):
        seen.append((x.perturbed, y.perturbed))
        return g(x.value, y.value), (x.value, y.value if x.perturbed else None)

    def bwd(residuals, cts):
        x, y = residuals
        zeros = [isinstance(ct, kinds.SymbolicZero) for ct in cts]
        seen.append(tuple(zeros))
        total = 0.0 if zeros[0] or y is None else cts[0] * y
        total = total if zeros[1] else total + 100.0 * cts[1]
        return total, None if zeros[0] else 3.0 * x * cts[0]

    g.defvjp(fwd, bwd, symbolic_zeros=True)
    return g, seen


@pytest.mark.parametrize(
    "use",
    [
        lambda m, g: m.grad(lambda x: g(x, 2.0)[0])(3.0),
        lambda m, g: m.grad(lambda x: g(x, 2.0)[1])(3.0),
        lambda m, g: m.grad(lambda y: g(3.0, y)[0])(2.0),
        lambda m, g: m.vmap(m.grad(lambda x: g(x, 2.0)[1]))(ROW),
        lambda m, g: m.jit(m.grad(lambda x: m.vmap(lambda x: g(x, 2.0)[0])(x).sum()))(ROW),
        lambda m, g: m.grad(m.grad(lambda x: g(x, x)[0]))(3.0),
    ],
)
def test_a_backward_rule_gets_symbolic_zeros_as_in_jax(use):
    got, want = (use(lib[0], scaled(lib)[0]) for lib in LIBRARIES)
    onp.testing.assert_allclose(got, want, rtol=1e-6)


def with_unused_results(lib):
    """Functions of two numbers, of which the second matters to the second result alone."""
    m, np_, _ = lib
    jvp, several = m.custom_jvp(lambda x, y: (x, y)), m.custom_vjp(lambda x, y: (x, y))
    jvp.defjvp(lambda primals, tangents: (jvp(*primals), tangents))
    several.defvjp(lambda x, y: ((x, y), None), lambda _, cts: (cts[0], None))
    return [
        jvp,
        several,
        m.jit(lambda x, y: (np_.sin(x), np_.cos(y) * x)),
        m.checkpoint(lambda x, y: (np_.sin(x), np_.cos(y) * x)),
        lambda x, y: m.lax.cond(x > 0, lambda x, y: (x, y), lambda x, y: (x + 1, y + 1), x, y),
        lambda x, y: m.lax.switch(1, [lambda x, y: (x, y), lambda x, y: (x * x, y + x)], x, y),
        lambda x, y: m.lax.scan(lambda c, _: ((np_.sin(c[0]), c[1]), None), (x, y), None, 2)[0],
    ]


def test_cotangents_that_are_zero_after_a_call_are_symbolic():
    found = []
    for lib in LIBRARIES:
        slopes = []
        for fun in with_unused_results(lib):
            up = scaled(lib)[0]
            slopes.append(lib[0].grad(lambda x, up=up, fun=fun: fun(*up(x, 3.0))[0])(0.5))
            slopes.append(lib[0].grad(lambda x, up=up, fun=fun: fun(*up(x, 3.0)[::-1])[0])(0.5))
        found.append(slopes)
    onp.testing.assert_allclose(*found, rtol=1e-6)


def test_the_rules_in_a_backward_rule_get_symbolic_zeros():
    g, seen = scaled(LIBRARIES[0])
    fx.grad(lambda x: g(x, 2.0)[1])(3.0)
    assert seen[-1] == (True, False)
    assert float(fx.jvp(lambda x: g(x, 2.0)[0], (3.0,), (1.0,))[1]) == 2.0


@pytest.mark.parametrize(
    "outside", [lambda f: f, fx.jit, lambda f: fx.vmap(f, (None,), axis_size=2)]
)
def test_symbolic_zeros_and_captured_values(outside):
    def outer(w):
        f = fx.custom_vjp(lambda x, y: x * w + y)
        f.defvjp(
            lambda x, y: (x.value * w + y.value, None),
            lambda _, ct: (3.0 * w * ct, ct),
            symbolic_zeros=True,
        )
        g = fx.custom_jvp(lambda x, y: x * w + y)
        g.defjvp(lambda p, t: (g(*p), 5.0 * w * t[0]), symbolic_zeros=True)
        return fx.grad(f)(1.0, 2.0), fx.grad(g)(1.0, 2.0)

    for got, want in zip(outside(outer)(2.0), (6.0, 10.0), strict=True):
        onp.testing.assert_allclose(got, want)


@pytest.mark.parametrize("zero", [None, onp.zeros(3, fx.float0), onp.zeros(3, onp.int32)])
def test_integer_arguments_may_be_given_zeros_of_any_kind(zero):
    f = fx.custom_vjp(lambda x, n: x * n)
    f.defvjp(lambda x, n: (x * n, n), lambda n, ct: (ct * n, zero))
    n = onp.array([1, 2, 3])
    onp.testing.assert_allclose(fx.grad(lambda x: f(x, n).sum())(ROW), n)


@pytest.mark.parametrize(
    "zero", [None, onp.zeros((), fx.float0), SymbolicZero.from_primal_value(3)]
)
def test_integer_outputs_may_be_given_zeros_of_any_kind(zero):
    f = fx.custom_jvp(lambda x: (np.exp(x), 3))
    f.defjvp(lambda p, t: (f(*p), (np.exp(p[0]) * t[0], zero)))

    def run(x):
        y, n = fx.vmap(f)(x)
        return y * np.bitwise_and(n, 1)

    value, slope = fx.jvp(run, (onp.zeros(2),), (onp.array([1.0, 5.0]),))
    onp.testing.assert_allclose(value, [1.0, 1.0])
    onp.testing.assert_allclose(slope, [1.0, 5.0])


def test_none_stands_for_the_zero_of_a_whole_argument():
    f = fx.custom_vjp(lambda p, q: p["a"] * p["b"][0] + q)
    f.defvjp(lambda p, q: (f(p, q), None), lambda _, ct: (None, ct))
    grads = fx.grad(f, (0, 1))({"a": 2.0, "b": (3.0, None)}, 1.0)
    assert fx.tree.map(float, grads) == ({"a": 0.0, "b": (0.0, None)}, 1.0)
    f.defvjp(lambda p, q: (f(p, q), None), lambda _, ct: ({"a": ct, "b": None}, None))
    grads = fx.grad(f, (0, 1))({"a": 2.0, "b": (3.0, None)}, 1.0)
    assert fx.tree.map(float, grads) == ({"a": 1.0, "b": (0.0, None)}, 0.0)


def test_symbolic_zeros_have_a_type():
    zero = SymbolicZero.from_primal_value(onp.ones((2, 3), onp.float32))
    assert (zero.shape, zero.ndim, zero.size, zero.dtype) == ((2, 3), 2, 6, onp.float32)
    assert repr(zero) == "SymbolicZero(f32[2,3])"
    assert SymbolicZero.from_primal_value(3).dtype == fx.float0 == jax.dtypes.float0
    zeros = of_functx.zero_from_primal({"x": ROW, "n": 3})
    onp.testing.assert_array_equal(zeros["x"], onp.zeros(3))
    assert zeros["n"].dtype == fx.float0
    values = of_functx.custom_vjp_primal_tree_values((CustomVJPPrimal(1.0, True), 2.0))
    assert values == (1.0, 2.0)


@pytest.mark.parametrize("within", ["checkpoint", "jit", "cond", "scan"])
def test_a_zero_less_a_cotangent_is_its_negative(within):
    pair = fx.custom_vjp(lambda x: (x * 3.0, x * 5.0))
    pair.defvjp(lambda x: (pair(x), None), lambda _, cts: (cts[0] * 3.0 - cts[1] * 5.0,))
    wrapped = {
        "checkpoint": fx.checkpoint(pair),
        "jit": fx.jit(pair),
        "cond": lambda x: fx.lax.cond(x > 0, pair, lambda x: (x, x), x),
        "scan": lambda x: [y[0] for y in fx.lax.scan(lambda c, x: (c, pair(x)), 0.0, x[None])[1]],
    }[within]
    for i, slope in ((0, 3.0), (1, -5.0)):
        # The other result is needed, so that it is no dead code.
        loss = fx.grad(lambda x, i=i: wrapped(x)[:: 1 - 2 * i], has_aux=True)
        assert float(loss(onp.float32(2.0))[0]) == slope


def refusing_forward_rule(captured):
    f = fx.custom_vjp(lambda x, y: x * y)

    def fwd(x, y):
        if x.perturbed:
            raise ValueError("no derivative in x")
        return f(x.value, y.value), x.value * captured

    f.defvjp(fwd, lambda saved, ct: (None, saved * ct), symbolic_zeros=True)
    return f


def refusing_tangent_rule(captured):
    f = fx.custom_jvp(lambda x, y: x * y)

    def rule(primals, tangents):
        if not isinstance(tangents[0], SymbolicZero):
            raise ValueError("no derivative in x")
        return f(*primals), primals[0] * captured * tangents[1]

    f.defjvp(rule, symbolic_zeros=True)
    return f


@pytest.mark.parametrize("make", [refusing_forward_rule, refusing_tangent_rule])
def test_a_derivative_that_a_rule_refuses_is_an_error_only_where_it_is_taken(make):
    def slope(x):
        f = make(np.cos(x) * 0 + 3.0)
        assert fx.make_ir(f)(x, x).out_avals[0].shape == ()
        return fx.grad(f, 1)(2.0, x)

    onp.testing.assert_array_equal(fx.jit(fx.vmap(slope))(ROW), [6.0, 6.0, 6.0])
    with pytest.raises(ValueError, match="no derivative in x"):
        fx.grad(make(3.0))(2.0, 3.0)


def test_a_rule_that_refuses_every_derivative_leaves_the_function_usable():
    def refuse(*_):
        raise NotImplementedError("no derivative")

    f, g = fx.custom_jvp(lambda x: x * x), fx.custom_vjp(lambda x: x * x)
    f.defjvp(refuse)
    g.defvjp(refuse, refuse)
    onp.testing.assert_array_equal(fx.jit(fx.vmap(lambda x: f(x) + g(x)))(ROW), 2 * ROW**2)
    for h in (f, g):
        with pytest.raises(NotImplementedError, match="no derivative"):
            fx.make_ir(fx.grad(h))(2.0)
