"""Functions with user-defined derivatives, against the mathematics and against JAX."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.core.errors import (
    ArgumentError,
    GradientError,
    MissingRuleError,
    RuleError,
)

ONE = onp.float32(1.0)
ZERO = onp.float32(0.0)
ROW = onp.array([1.0, 2.0, 3.0], onp.float32)


def marked(kind):
    """x**2 with the slope 7, by either kind of rule."""
    if kind == "jvp":
        f = fx.custom_jvp(lambda x: x * x)
        f.defjvp(lambda p, t: (f(*p), 7.0 * t[0]))
    else:
        f = fx.custom_vjp(lambda x: x * x)
        f.defvjp(lambda x: (f(x), x), lambda x, ct: (7.0 * ct,))
    return f


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
@pytest.mark.parametrize(
    "derivative",
    [
        fx.vmap,
        lambda d: fx.jit(fx.vmap(d)),
        lambda d: fx.vmap(fx.jit(d)),
        lambda d: lambda x: np.stack([d(a) for a in x]),
    ],
)
def test_every_transform_keeps_to_the_rule(kind, derivative):
    f = marked(kind)
    wanted = onp.full(3, 7.0)
    for d in (
        fx.grad(f),
        fx.grad(fx.jit(f)),
        fx.grad(fx.checkpoint(f)),
        fx.jacfwd(f),
        fx.jacrev(f),
        lambda x: fx.jvp(f, (x,), (np.ones_like(x),))[1],
        lambda x: fx.linearize(f, x)[1](np.ones_like(x)),
        lambda x: fx.grad(lambda v: fx.vmap(f)(v).sum())(np.stack([x, x]))[0],
    ):
        onp.testing.assert_allclose(derivative(d)(ROW), wanted)
    onp.testing.assert_allclose(fx.grad(lambda x: fx.vmap(f)(x).sum())(ROW), wanted)
    onp.testing.assert_allclose(derivative(f)(ROW), ROW**2)


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_a_rule_that_calls_its_function_holds_at_every_order(kind):
    if kind == "jvp":
        f = fx.custom_jvp(np.exp)
        f.defjvp(lambda p, t: (f(*p), 10.0 * f(*p) * t[0]))
    else:
        f = fx.custom_vjp(np.exp)
        f.defvjp(lambda x: (f(x), x), lambda x, ct: (10.0 * f(x) * ct,))
    second = (
        fx.grad(fx.grad(f)),
        fx.hessian(f),
        fx.jacrev(fx.jacfwd(f)),
        fx.jacfwd(fx.jacfwd(f)),
        fx.jit(fx.grad(fx.jit(fx.grad(f)))),
    )
    for d in second:
        assert float(d(ZERO)) == 100.0
        onp.testing.assert_allclose(fx.vmap(d)(onp.zeros(2, onp.float32)), [100.0, 100.0])
    assert float(fx.grad(fx.grad(fx.grad(f)))(ZERO)) == 1000.0
    total = fx.grad(lambda v: fx.vmap(fx.grad(f))(v).sum())
    onp.testing.assert_allclose(total(onp.zeros(2, onp.float32)), [100.0, 100.0])


@pytest.mark.parametrize("outside", [fx.jit, fx.vmap])
def test_captured_values_reach_a_rule_that_calls_its_function(outside):
    constant = onp.array([1.0, 2.0, 3.0], onp.float32)

    def outer(w):
        @fx.custom_jvp
        def f(x):
            return w * np.exp(x)

        @f.defjvp
        def rule(primals, tangents):
            (x,), (t,) = primals, tangents
            return f(x), 10.0 * f(x) * t * constant * onp.ones(3, onp.float32)

        return fx.grad(lambda x: fx.grad(lambda y: f(y).sum())(x).sum())(np.zeros(3))

    wanted = 200.0 * constant**2
    if outside is fx.jit:
        onp.testing.assert_allclose(outside(outer)(2.0), wanted)
    else:
        onp.testing.assert_allclose(outside(outer)(np.array([1.0, 2.0])), [wanted / 2, wanted])


def test_captured_values_and_arguments_are_batched_separately():
    def outer(w):
        f = fx.custom_vjp(lambda v: w * v)
        f.defvjp(lambda v: (w * v, None), lambda _, ct: (w * ct,))
        return f(3.0), fx.grad(f)(3.0)

    values, slopes = fx.vmap(outer)(np.array([1.0, 2.0]))
    onp.testing.assert_allclose(values, [3.0, 6.0])
    onp.testing.assert_allclose(slopes, [1.0, 2.0])


def test_a_captured_value_is_not_differentiated():
    def outer(w):
        f = fx.custom_vjp(lambda v: w * v)
        f.defvjp(lambda v: (w * v, None), lambda _, ct: (w * ct,))
        return f(3.0)

    with pytest.raises(GradientError, match="closes over"):
        fx.grad(outer)(2.0)
    with pytest.raises(GradientError, match="closes over"):
        fx.jvp(outer, (2.0,), (1.0,))
    assert float(fx.grad(lambda w: w * outer(fx.stop_gradient(w)))(2.0)) == 6.0


def test_shared_operands_get_the_sum_over_a_batch():
    f = fx.custom_vjp(lambda a, b: a * b)
    f.defvjp(lambda a, b: (a * b, (a, b)), lambda r, ct: (10.0 * ct * r[1], ct * r[0]))

    def loss(a):
        return fx.vmap(f, in_axes=(None, 0))(a, ROW).sum()

    assert float(fx.grad(loss)(2.0)) == 60.0

    def loss(b):
        return fx.vmap(f, in_axes=(0, None))(ROW, b).sum()

    assert float(fx.grad(loss)(2.0)) == 6.0


def test_fixed_point_solved_by_its_own_rule():
    # x = (x + a / x) / 2 has the solution sqrt(a).
    @partial(fx.custom_vjp, nondiff_argnums=(0,))
    def fixed_point(f, a, x):
        for _ in range(30):
            x = f(a, x)
        return x

    def fwd(f, a, x):
        x = fixed_point(f, a, x)
        return x, (a, x)

    def reverse(f, packed, u):
        a, x, ct = packed
        return ct + fx.vjp(lambda x: f(a, x), x)[1](u)[0]

    def bwd(f, residuals, ct):
        a, x = residuals
        u = fixed_point(partial(reverse, f), (a, x, ct), ct)
        return fx.vjp(lambda a: f(a, x), a)[1](u)[0], np.zeros_like(x)

    fixed_point.defvjp(fwd, bwd)

    def root(a):
        return fixed_point(lambda a, x: 0.5 * (x + a / x), a, a)

    two = onp.float32(2.0)
    onp.testing.assert_allclose(root(two), 2**0.5, rtol=1e-6)
    onp.testing.assert_allclose(fx.grad(root)(two), 0.5 * 2**-0.5, rtol=1e-5)
    onp.testing.assert_allclose(fx.grad(fx.grad(root))(two), -0.25 * 2**-1.5, rtol=1e-4)
    onp.testing.assert_allclose(fx.jit(fx.jacfwd(root))(two), 0.5 * 2**-0.5, rtol=1e-5)


def test_pytrees_defaults_and_keywords():
    @fx.custom_vjp
    def f(params, scale=2.0):
        return {"out": params["w"] * scale + params["b"]}

    f.defvjp(
        lambda params, scale: (f(params, scale), (params, scale)),
        lambda res, ct: ({"w": ct["out"] * res[1] * 5.0, "b": None}, None),
    )
    params = {"w": ROW, "b": ROW}
    found = fx.grad(lambda p: f(p, scale=3.0)["out"].sum())(params)
    onp.testing.assert_allclose(found["w"], onp.full(3, 15.0))
    onp.testing.assert_allclose(found["b"], onp.zeros(3))
    found = fx.grad(lambda p: f(p)["out"].sum())(params)
    onp.testing.assert_allclose(found["w"], onp.full(3, 10.0))


def test_integers_carry_no_derivative():
    @fx.custom_jvp
    def f(x, n):
        return np.exp(x) * n, n

    @f.defjvp
    def rule(primals, tangents):
        assert tangents[1] is None
        out = f(*primals)
        return out, (out[0] * tangents[0], onp.zeros((), jax.dtypes.float0))

    def run(x):
        return fx.vmap(lambda x: f(x, 3))(x)[0]

    _, t = fx.jvp(run, (onp.zeros(2, onp.float32),), (onp.array([1.0, 5.0], onp.float32),))
    onp.testing.assert_allclose(t, [3.0, 15.0])

    g = fx.custom_vjp(lambda x, n: (x * n, n))
    g.defvjp(lambda x, n: ((x * n, n), n), lambda n, ct: (ct[0] * n, None))
    assert float(fx.grad(lambda x: g(x, 3)[0])(1.0)) == 3.0
    assert float(fx.jvp(lambda x: g(x, 3)[0], (1.0,), (1.0,))[1]) == 3.0


def test_defjvps_takes_none_for_no_dependence():
    f = fx.custom_jvp(lambda x, y: np.cos(x) + y)
    f.defjvps(None, lambda t, out, x, y: 100.0 * t)
    assert float(fx.grad(f, 0)(2.0, 3.0)) == 0.0
    assert float(fx.grad(f, 1)(2.0, 3.0)) == 100.0
    assert float(fx.jvp(f, (2.0, 3.0), (1.0, 1.0))[1]) == 100.0
    # What does not vary leaves no equations.
    along_x = fx.make_ir(lambda x, t: fx.jvp(lambda x: f(x, 1.0), (x,), (t,))[1])(2.0, 1.0)
    assert len(along_x) == 0


def test_nondiff_arguments_come_first_in_the_rules():
    @partial(fx.custom_jvp, nondiff_argnums=(1,))
    def apply(x, fun):
        return fun(x)

    apply.defjvp(lambda fun, p, t: (fun(*p), 9.0 * t[0]))
    assert float(fx.grad(lambda x: apply(x, np.sin))(1.0)) == 9.0

    @partial(fx.custom_vjp, nondiff_argnums=(0,))
    def power(n, x):
        return x**n

    power.defvjp(lambda n, x: (x**n, x), lambda n, x, ct: (n * 100.0 * ct,))
    assert float(fx.grad(lambda x: power(3, x))(1.0)) == 300.0


def test_rules_may_ask_for_values_where_python_may():
    f = fx.custom_vjp(lambda x: x if x > 0 else -x)
    f.defvjp(
        lambda x: (x if x > 0 else -x, x),
        lambda x, ct: (ct * 3.0 if x > 0 else ct * 5.0,),
    )
    assert float(fx.grad(f)(2.0)) == 3.0
    assert float(fx.grad(f)(-2.0)) == 5.0


def test_gradient_clipping_has_no_forward_mode():
    f = fx.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (x, None), lambda _, ct: (np.clip(ct, -1.0, 1.0),))
    assert float(fx.grad(lambda x: 5.0 * f(x))(2.0)) == 1.0
    with pytest.raises(GradientError, match="linear in the cotangents"):
        fx.jvp(f, (1.0,), (1.0,))
    value, push = fx.linearize(lambda x: 5.0 * f(x), 2.0)
    assert float(value) == 10.0
    with pytest.raises(GradientError, match="linear in the cotangents"):
        push(1.0)
    assert float(fx.linear_transpose(push, 2.0)(1.0)[0]) == 1.0
    assert float(jax.grad(lambda x: 5.0 * f(x))(2.0)) == 1.0
    rows = jax.numpy.array([2.0, 3.0])
    assert jax.vmap(jax.grad(lambda x: 5.0 * f(x)))(rows).tolist() == [1.0, 1.0]


def test_linearizing_computes_the_residuals_of_a_rule_and_nothing_of_its_backward_loop():
    f = fx.custom_vjp(np.sin)

    def backward(count, ct):
        steps = lambda s: (s[0] + 1, s[1] * 0.5)  # noqa: E731
        return (fx.lax.while_loop(lambda s: s[0] < count, steps, (0, ct))[1],)

    f.defvjp(lambda x: (np.sin(x), np.int32(x) + 2), backward)
    program = fx.make_ir(lambda x: fx.tree.leaves(fx.linearize(f, x)))(1.0)
    assert "while" not in {eqn.primitive.name for part in program.walk() for eqn in part}
    _, push = fx.linearize(f, 1.0)
    assert float(push(2.0)) == 0.25
    assert float(fx.linear_transpose(push, 1.0)(2.0)[0]) == 0.25


def custom_vmapped(f):
    g = fx.custom_batching.custom_vmap(f)
    g.def_vmap(
        lambda size, batched, x, t: (
            fx.vmap(f, [0 if b else None for b in batched])(x, t),
            (True, batched[1]),
        )
    )
    return g


def on_one_device(f):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = (jax.P(), jax.P())
    return fx.shard_map(f, mesh=mesh, in_specs=specs, out_specs=specs)


@pytest.mark.parametrize(
    "wrap",
    [
        fx.jit,
        fx.checkpoint,
        custom_vmapped,
        on_one_device,
        lambda f: lambda x, t: fx.lax.cond(x > 0, f, lambda x, t: (x, t), x, t),
        lambda f: lambda x, t: fx.lax.while_loop(lambda s: s[1] < 9.0, lambda s: f(*s), (x, t)),
        lambda f: fx.vmap(f, axis_size=1, in_axes=None, out_axes=None),
    ],
    ids=["jit", "checkpoint", "custom_vmap", "shard_map", "cond", "while", "vmap"],
)
def test_outputs_that_depend_on_no_varying_operand_have_no_tangent(wrap):
    time = jax.custom_jvp(lambda t: t)  # A rule of JAX is traced when it is needed.

    @time.defjvp
    def refuse(primals, tangents):
        raise AssertionError("time is differentiated")

    wrapped = wrap(lambda x, t: (x * time(t), time(t) + 1.0))

    def fun(x):
        carry = fx.lax.scan(lambda carry, _: (wrapped(*carry), None), (x, 1.0), None, length=3)[0]
        return wrapped(*carry)[0]

    wanted = fun(onp.float32(2.0)) / 2.0
    assert fx.grad(fun)(2.0) == wanted
    assert fx.jvp(fun, (2.0,), (1.0,))[1] == wanted
    assert fx.linearize(fun, 2.0)[1](1.0) == wanted


def test_forward_mode_needs_nonlinear_values_of_a_loop_in_the_backward_rule():
    lax = fx.lax

    def by_while(x, ct):
        def body(state):
            i, ct, w = state
            i, ct = lax.cond(i > 1, lambda: (i + 2, ct * x[i]), lambda: (i + 1, 2.0 * ct))
            return i, ct, w * 2.0

        i, ct, w = lax.while_loop(lambda state: state[0] < 3, body, (0, ct, x[0]))
        return (ct * x[i - 1] * w,)

    def by_scan(x, ct):
        def body(carry, _):
            i, ct, w = carry
            return (i + 1, ct * x[i], w * 2.0), (ct, i, w)

        (i, ct, w), (cts, js, ws) = lax.scan(body, (0, ct, x[0]), None, length=3)
        return (ct * x[i - 1] * w + (cts * (ws * x[js])[:, None]).sum(0),)

    def by_cond(x, ct):
        factor, ct = lax.cond(x[0] > 0, lambda: (x * 2.0, ct * 3.0), lambda: (x, ct))
        return (ct * factor,)

    def affine(x, ct):
        def body(state):
            return state[0] + 1, state[1] * 2.0, state[2] * 2.0

        _, ct, w = lax.while_loop(lambda state: state[0] < 3, body, (0, ct, x))
        return (ct + w,)

    x, tangent = onp.arange(1.0, 5.0, dtype="f4"), onp.array([0.5, 2.0, -1.0, 3.0], "f4")

    def ruled(bwd):
        f = fx.custom_vjp(np.sin)
        f.defvjp(lambda x: (np.sin(x), x), bwd)
        return f

    for f in map(ruled, (by_while, by_scan, by_cond)):
        wanted = fx.jacrev(f)(x) @ tangent
        for found in (fx.jvp(f, (x,), (tangent,))[1], fx.linearize(f, x)[1](tangent)):
            onp.testing.assert_allclose(found, wanted, rtol=1e-6)
    with pytest.raises(GradientError, match="add, which adds a constant"):
        fx.jvp(ruled(affine), (x,), (tangent,))


@pytest.mark.parametrize("transform", [fx.grad, lambda f: fx.jit(fx.grad(f)), fx.hessian])
def test_against_jax(transform):
    def of(m, xp):
        f = m.custom_jvp(lambda x, y: xp.sin(x) * y)
        f.defjvp(lambda p, t: (f(*p), xp.sin(p[0]) * p[1] * t[0] * 2.0 + xp.cos(p[1]) * t[1]))
        g = m.custom_vjp(lambda x: x**3)
        g.defvjp(lambda x: (g(x), x), lambda x, ct: (xp.exp(x) * ct * g(x),))
        return lambda x: g(f(x, xp.tanh(f(x, x))))

    got = transform(of(fx, np))(onp.float32(0.7))
    import_of_jax = {fx.grad: jax.grad, fx.hessian: lambda f: jax.grad(jax.grad(f))}
    wanted = import_of_jax.get(transform, jax.grad)(of(jax, jnp))(onp.float32(0.7))
    onp.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("bwd", "match"),
    [
        (lambda r, ct: ct, "tuple with a cotangent"),
        (lambda r, ct: (ct, ct), "tuple of 2"),
        (lambda r, ct: (np.ones(3),), r"\[3\] where"),
        (lambda r, ct: None, "got NoneType"),
        (lambda r, ct: (ct * 1j,), r"got ~?c"),
        (lambda r, ct: ({"a": ct},), "structure of the arguments"),
        (lambda r, ct: ("a",), "arrays"),
    ],
)
def test_mistakes_in_a_backward_rule_name_it(bwd, match):
    f = fx.custom_vjp(lambda x: x)
    bwd.__name__ = "my_bwd"
    f.defvjp(lambda x: (x, None), bwd)
    with pytest.raises(RuleError, match=match) as error:
        fx.grad(f)(2.0)
    assert "my_bwd" in str(error.value)


@pytest.mark.parametrize(
    ("jvp", "match"),
    [
        (lambda p, t: p[0], "pair"),
        (lambda p, t: ((p[0], p[0]), t[0]), "structure of the function's output"),
        (lambda p, t: (p[0], (t[0], t[0])), "structure of the function's output"),
        (lambda p, t: (p[0], np.stack([t[0], t[0]])), r"f32\[2\]"),
        (lambda p, t: (t[0], t[0]), "must not depend on the tangents"),
    ],
)
def test_mistakes_in_a_forward_rule_name_it(jvp, match):
    f = fx.custom_jvp(lambda x: x)
    jvp.__name__ = "my_jvp"
    f.defjvp(jvp)
    with pytest.raises(RuleError, match=match) as error:
        fx.jvp(f, (ONE,), (ONE,))
    assert "my_jvp" in str(error.value)


def test_other_mistakes():
    with pytest.raises(MissingRuleError, match="defjvp"):
        fx.custom_jvp(np.sin)(1.0)
    with pytest.raises(ArgumentError):
        fx.custom_vjp(3)


CONTROL = {
    "checkpoint": fx.checkpoint(lambda x: np.sin(x)),
    "cond": lambda x: fx.lax.cond(x > 0, np.sin, np.cos, x),
    "scan": lambda x: fx.lax.scan(lambda c, _: (np.sin(c), c), x, None, length=2)[0],
    "while": lambda x: fx.lax.while_loop(lambda c: c < 2.0, lambda c: c * c + 0.5, x),
    "cond in vmap": lambda x: fx.vmap(CONTROL["cond"])(x[None])[0],
}


@pytest.mark.parametrize("name", CONTROL)
def test_a_rule_may_push_tangents_through_control_flow(name):
    fun = CONTROL[name]

    @fx.custom_jvp
    def ruled(x):
        return fun(x)

    ruled.defjvp(lambda primals, tangents: fx.jvp(fun, primals, tangents))
    grad, x = fx.grad, onp.float32(0.7)

    def all_of(f):
        mapped = fx.vmap(grad(f))(x[None])
        return fx.jvp(f, (x,), (x,))[1], grad(f)(x), mapped, grad(grad(f))(x)

    found, wanted = fx.jit(lambda: all_of(ruled))(), fx.jit(lambda: all_of(fun))()
    jax.tree.map(partial(onp.testing.assert_allclose, rtol=1e-6), found, wanted)


def without_gradient():
    """A function whose backward rule raises an error."""
    f = fx.custom_vjp(lambda x: x * 2.0)

    def backward(_, ct):
        raise NotImplementedError("no gradient")

    f.defvjp(lambda x: (x * 2.0, None), backward)
    return f


REGIONS = {
    "jit": lambda f: fx.jit(lambda x: (x * x, f(x))),
    "checkpoint": lambda f: fx.checkpoint(lambda x: (x * x, f(x))),
    "cond": lambda f: lambda x: fx.lax.cond(x > 0, lambda x: (x * x, f(x)), lambda x: (x, x), x),
    "scan": lambda f: (
        lambda x: fx.lax.scan(lambda c, _: ((c[0] * c[0], f(c[1])), None), (x, x), None, length=1)[
            0
        ]
    ),
}


@pytest.mark.parametrize("region", REGIONS)
def test_an_error_of_a_backward_rule_is_raised_only_where_it_is_needed(region):
    fun = REGIONS[region](without_gradient())
    assert fx.grad(lambda x: fun(x)[0])(0.5) == 1.0
    assert fx.jit(fun)(0.5) == (0.25, 1.0)
    with pytest.raises(NotImplementedError, match="no gradient") as caught:
        fx.grad(lambda x: fun(x)[1])(0.5)
    assert any("in backward" in note for note in caught.value.__notes__)


def test_an_error_of_a_backward_rule_is_raised_by_every_derivative():
    f = without_gradient()
    for derivative in (fx.grad(f), fx.jit(fx.grad(f)), lambda x: fx.jvp(f, (x,), (x,))):
        with pytest.raises(NotImplementedError, match="no gradient"):
            derivative(0.5)


def test_a_rule_may_have_terms_that_do_not_vary():
    f = fx.custom_jvp(lambda x: fx.lax.integer_pow(x, 0) + x * x)
    f.defjvp(lambda x, t: fx.jvp(lambda x: fx.lax.integer_pow(x, 0) + x * x, x, t))
    assert fx.grad(f)(3.0) == 6.0


def state_rules(library):
    """A function whose rule returns new state as a cotangent, and one that ends its derivative."""
    keep = library.custom_vjp(lambda x, state: x * 1.0)
    keep.defvjp(lambda x, state: (x * 1.0, state), lambda state, ct: (ct, state + 100.0))
    end = library.custom_vjp(lambda x, y: y * 2.0)
    end.defvjp(lambda x, y: (y * 2.0, None), lambda _, ct: (ct * 2.0, None))
    return keep, end


def in_loop(library, step):
    return lambda x, s: library.lax.scan(lambda c, _: (step(c, s), None), x, None, length=3)[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda m, keep, end: in_loop(m, keep),
        lambda m, keep, end: in_loop(m, lambda c, s: end(c, m.numpy.sin(keep(c, s)))),
        lambda m, keep, end: lambda x, s: end(x, keep(x, s)),
        lambda m, keep, end: lambda x, s: end(x, x * keep(keep(x, s), s)),
        lambda m, keep, end: lambda x, s: m.lax.cond(x > 0, lambda: end(x, keep(x, s)), lambda: x),
        lambda m, keep, end: lambda x, s: end(x, m.numpy.round(keep(x, s))),
        lambda m, keep, end: lambda x, s: (keep(x, s), end(x, 3.0))[1],
    ],
)
def test_state_returned_as_a_cotangent_arrives_whatever_the_cotangents_of_outputs_are(function):
    wanted, got = (
        m.jit(m.grad(function(m, *state_rules(m)), argnums=(0, 1)))(3.0, 4.0) for m in (jax, fx)
    )
    onp.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_a_linear_rule_is_not_applied_to_a_cotangent_that_another_rule_made_zero():
    pole = fx.custom_vjp(lambda x: x)
    pole.defvjp(lambda x: (x, x), lambda x, ct: (ct / (x - x),))
    _, end = state_rules(fx)
    assert fx.grad(lambda x: end(x, pole(x)))(3.0) == 2.0
