"""Reverse mode of loops of unknown length, against the same steps written out in Python."""

import itertools
from functools import cache

import jax
import numpy as np
import pytest

import functx
from functx import lax
from functx import numpy as fnp
from functx.core.errors import ArgumentError, EffectError, ValueRangeError
from functx.testing import check_grads, reference

RANDOM = np.random.RandomState(0)
X = RANDOM.randn(3)
W = RANDOM.randn(3, 3) * 0.6
MEANS = [{}, {"checkpoints": 1}, {"checkpoints": 2}, {"checkpoints": 5}, {"max_steps": 9}]
each_means = pytest.mark.parametrize("means", MEANS, ids=str)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def same(got, wanted, tolerance=1e-9):
    got, wanted = jax.tree.leaves(got), jax.tree.leaves(wanted)
    assert len(got) == len(wanted)
    for x, y in zip(got, wanted, strict=True):
        np.testing.assert_allclose(x, y, tolerance, tolerance)


def evaluated(f, *args):
    """`f(*args)` by the NumPy meaning of each equation, which compiles nothing."""
    program = functx.make_ir(f)(*args)
    outs = reference.interpret_in_numpy(program, *jax.tree.leaves(args))
    return jax.tree.unflatten(program.trees[1], outs)


def step(i, x, w):
    return fnp.sin(x @ w) + x * (i + 1) * 0.1


def looped(x, w, n, **means):
    """`n` steps, while the sum of squares is small; and what they pass, added up."""

    def body(carry):
        i, x, total = carry["i"], carry["x"], carry["total"]
        return {"i": i + 1, "x": step(i, x, w), "total": total + (x * x).sum(), "none": None}

    start = {"i": 0, "x": x, "total": x.sum(), "none": None}
    out = lax.while_loop(
        lambda c: (c["i"] < n) & ((c["x"] ** 2).sum() < 50.0), body, start, **means
    )
    return out["x"].sum() * 0.5 + out["total"]


def written_out(x, w, n):
    total = x.sum()
    for i in range(n):
        x, total = step(i, x, w), total + (x * x).sum()
    return x.sum() * 0.5 + total


@each_means
@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_gradients_agree_with_the_steps_written_out(means, n):
    f = functx.grad(lambda x, w, n: looped(x, w, n, **means), (0, 1))
    got = evaluated(f, X, W, np.int32(n))
    same(got, functx.grad(lambda x, w: written_out(x, w, n), (0, 1))(X, W))


@pytest.mark.parametrize("means", [{}, {"checkpoints": 1}, {"max_steps": 9}], ids=str)
def test_one_compiled_gradient_serves_every_number_of_steps(means):
    f = functx.jit(functx.value_and_grad(lambda x, w, n: looped(x, w, n, **means), (0, 1)))
    for n in (0, 1, 6, 8):
        value, gradients = f(X, W, n)
        same(value, looped(X, W, n))
        same(gradients, functx.grad(lambda x, w, n=n: written_out(x, w, n), (0, 1))(X, W))


ORDERS = {
    "hessian": functx.hessian,
    "jacrev of grad": lambda f: functx.jacrev(functx.grad(f)),
    "grad of jvp": lambda f: functx.jacrev(
        lambda x: functx.jvp(f, (x,), (fnp.cos(x),))[1] + functx.grad(f)(x).sum()
    ),
    "grad of linearize": lambda f: functx.grad(lambda x: functx.linearize(f, x)[1](x * x)),
    "grad of what linearize gives": lambda f: lambda x: functx.grad(functx.linearize(f, x)[1])(x),
    "vjp of what linearize gives": lambda f: (
        lambda x: functx.vjp(functx.linearize(f, x)[1], x)[1](2.0)
    ),
    "jacfwd of linearize": lambda f: functx.jacfwd(lambda x: functx.linearize(f, x)[1](x * x)),
    "grad of linearize of grad": lambda f: functx.grad(
        lambda x: functx.linearize(functx.grad(f), x)[1](x * x).sum()
    ),
    "vjp of linearize of grad": lambda f: (
        lambda x: functx.vjp(functx.linearize(functx.grad(f), x)[1], x)[1](x * x)
    ),
    "grad of vmap of grad": lambda f: functx.grad(
        lambda x: functx.vmap(functx.grad(f))(fnp.stack([x, x * x])).prod()
    ),
    "grad three times": lambda f: functx.grad(
        lambda a: functx.grad(lambda b: functx.grad(lambda c: f(X * c))(b) ** 2)(a) * a
    ),
}


@each_means
@pytest.mark.parametrize("order", ORDERS)
def test_higher_orders_agree_with_the_steps_written_out(order, means):
    transform = ORDERS[order]
    x = np.float64(0.4) if order == "grad three times" else X
    got = evaluated(transform(lambda x: looped(x, W, 4, **means)), x)
    same(got, evaluated(transform(lambda x: written_out(x, W, 4)), x), 1e-8)


@pytest.mark.parametrize("means", [{"checkpoints": 2}, {"max_steps": 9}], ids=str)
def test_second_derivatives_agree_when_compiled(means):
    f = functx.jit(functx.jacrev(functx.grad(lambda x: looped(x, W, 5, **means))))
    same(f(X), functx.hessian(lambda x: written_out(x, W, 5))(X))


VERBS = {
    "jvp": lambda f: lambda x: functx.jvp(f, (x,), (fnp.ones_like(x),))[1],
    "vjp": lambda f: lambda x: functx.vjp(f, x)[1](fnp.ones_like(x))[0],
    "linearize": lambda f: lambda x: functx.linearize(f, x)[1](fnp.ones_like(x)),
    "vmap": lambda f: lambda x: functx.vmap(f)(fnp.stack([x, x * x])).sum(),
    "jit": functx.jit,
}


def composed(names, f):
    for name in reversed(names):
        f = VERBS[name](f)
    return f


def of_number(x, **means):
    # The number of steps depends on x: each batch element stops on its own.
    def body(carry):
        i, y = carry
        return i + 1, fnp.sin(y) * 1.6 + x * x * y * 0.3

    return lax.while_loop(lambda c: (c[0] < 3) & (c[1] < 1.5), body, (0, x + 0.2), **means)[1]


def of_number_written_out(x):
    y, goes_on = x + 0.2, True
    for _ in range(3):
        goes_on = goes_on & (y < 1.5)
        y = fnp.where(goes_on, fnp.sin(y) * 1.6 + x * x * y * 0.3, y)
    return y


@cache
def value_written_out(names):
    return float(evaluated(composed(names, of_number_written_out), np.float64(0.6)))


@pytest.mark.parametrize("means", [{}, {"checkpoints": 2}, {"max_steps": 4}], ids=str)
@pytest.mark.parametrize("first", VERBS)
def test_three_transforms_deep_agrees_with_the_steps_written_out(first, means):
    for names in [(first,), *itertools.product((first,), VERBS, VERBS)]:
        got = evaluated(composed(names, lambda x: of_number(x, **means)), np.float64(0.6))
        np.testing.assert_allclose(got, value_written_out(names), 1e-8, 1e-8, err_msg=str(names))


@each_means
@pytest.mark.parametrize("axes", [(0, None, 0), (None, 0, 0), (0, 0, None)], ids=str)
def test_lanes_that_stop_each_for_itself_have_their_own_gradients(means, axes):
    args = X, W, np.int32(3)
    several = [
        np.stack([a, a + 1, a - 1]) if on is not None else a
        for a, on in zip(args, axes, strict=True)
    ]
    elements = [
        [a[k] if on is not None else a for a, on in zip(several, axes, strict=True)]
        for k in range(3)
    ]
    f = functx.grad(lambda x, w, n: looped(x, w, n, **means), (0, 1))
    rows = [
        functx.grad(lambda x, w, n=n: written_out(x, w, n), (0, 1))(x, w) for x, w, n in elements
    ]
    same(evaluated(functx.vmap(f, axes), *several), [np.stack(r) for r in zip(*rows, strict=True)])
    total = functx.grad(
        lambda *xs: functx.vmap(lambda x, w, n: looped(x, w, n, **means), axes)(*xs).sum(), (0, 1)
    )
    wanted = [
        np.stack(r) if on is not None else sum(r)
        for r, on in zip(zip(*rows, strict=True), axes, strict=False)
    ]
    same(evaluated(total, *several), wanted)


def newton(a, **means):
    """The square root of `a`, by as many steps as it takes."""
    return lax.while_loop(
        lambda x: abs(x * x - a) > 1e-13, lambda x: 0.5 * (x + a / x), a * 0.5, **means
    )


def test_jax_differentiates_a_loop_too():
    f = functx.jit(lambda x, n: lax.fori_loop(0, n, lambda i, y: fnp.sin(y) * x, x, checkpoints=2))

    def plain(x):
        y = x
        for _ in range(4):
            y = fnp.sin(y) * x
        return y

    same(jax.grad(f)(0.7, 4), functx.grad(plain)(0.7))
    same(jax.grad(jax.grad(f))(0.7, 4), functx.grad(functx.grad(plain))(0.7))


@each_means
def test_nothing_flows_through_the_condition(means):
    f = lambda a: newton(a, **means)  # noqa: E731
    for a in (0.3, 2.0, 50.0):
        same(evaluated(functx.grad(f), a), 0.5 / np.sqrt(a))
    same(evaluated(functx.grad(functx.grad(f)), 2.0), -0.25 * 2**-1.5)


@each_means
@pytest.mark.parametrize("around", ["scan", "cond", "while"])
def test_loops_nest_in_other_control_flow(around, means):
    def inner(x, n):
        return lax.fori_loop(0, n, lambda i, y: fnp.sin(y) * x + i * 0.1, x, **means)

    def nested(x):
        if around == "scan":
            return lax.scan(lambda c, n: (inner(c, n), None), x, np.arange(4))[0]
        if around == "cond":
            return lax.cond(x.sum() > -100.0, lambda x: inner(x, 3), lambda x: x, x)
        return lax.while_loop(
            lambda c: c[0] < 3, lambda c: (c[0] + 1, inner(c[1], c[0] + 1)), (0, x), **means
        )[1]

    def plain(x, n):
        y = x
        for i in range(n):
            y = fnp.sin(y) * x + i * 0.1
        return y

    def nested_plain(x):
        for n in {"scan": (0, 1, 2, 3), "cond": (3,), "while": (1, 2, 3)}[around]:
            x = plain(x, n)
        return x

    f = lambda x: nested(x).sum()  # noqa: E731
    wanted = functx.grad(lambda x: nested_plain(x).sum())(X)
    same(evaluated(functx.grad(f), X), wanted)
    same(functx.jit(functx.grad(f))(X), wanted)
    second = functx.jacfwd(functx.grad(lambda x: nested_plain(x).sum()))(X)
    same(evaluated(functx.jacfwd(functx.grad(f)), X), second)


@each_means
def test_carries_of_every_kind_are_pulled_back_or_left_alone(means):
    z = RANDOM.randn(2) + 1j * RANDOM.randn(2)

    def f(x, z, n):
        def body(carry):
            i, x, z, fixed, (flag, empty, none), key = carry
            x, z = x * fixed + z.real.sum(), z * z * 0.3 + x[0]
            return i + 1, x, z, fixed * 0.5, (~flag, empty * 2.0, none), key + 1

        start = 0, x, z, 3.0, (True, fnp.zeros((0, 2)), None), np.uint8(7)
        out = lax.while_loop(lambda c: c[0] < n, body, start, **means)
        return (out[1] ** 2).sum() + abs(out[2]).sum() + out[3] + out[5] + out[4][1].sum()

    def plain(x, z, n):
        fixed = 3.0
        for _ in range(n):
            x, z, fixed = x * fixed + z.real.sum(), z * z * 0.3 + x[0], fixed * 0.5
        return (x**2).sum() + abs(z).sum() + fixed

    for n in (0, 3):
        got = evaluated(lambda x, z, n=n: functx.vjp(lambda x, z: f(x, z, n), x, z)[1](1.0), X, z)
        same(got, functx.vjp(lambda x, z, n=n: plain(x, z, n), X, z)[1](1.0))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("means", [{}, {"checkpoints": 1}, {"max_steps": 5}], ids=str)
def test_cotangents_keep_the_dtype(dtype, means):
    x = fnp.asarray(1.5, dtype)
    slope = functx.grad(lambda x: lax.fori_loop(0, np.int32(4), lambda i, y: y * x, x, **means))
    got = functx.jit(slope)(x)
    assert got.dtype == x.dtype
    same(np.float64(got), 5 * 1.5**4, 1e-2)


@pytest.mark.parametrize("means", [{"checkpoints": 2}, {"max_steps": 9}], ids=str)
def test_derivatives_pass_the_check_of_gradients(means):
    check_grads(lambda x: looped(x, W, 3, **means), (X,), order=1)


@each_means
def test_a_linear_loop_transposes(means):
    f = lambda x: lax.fori_loop(0, np.int32(3), lambda i, y: y @ W * (i + 1.0) + x, x, **means)  # noqa: E731

    def plain(x):
        y = x
        for i in range(3):
            y = y @ W * (i + 1.0) + x
        return y

    wanted = functx.linear_transpose(plain, X)(X)
    same(evaluated(functx.jit(f), X), plain(X))
    dynamic = functx.jit(
        lambda x, n: lax.fori_loop(0, n, lambda i, y: y @ W * (i + 1.0) + x, x, **means)
    )
    same(functx.linear_transpose(lambda x: dynamic(x, 3), X)(X), wanted)


def test_the_memory_of_the_gradient_is_that_of_the_checkpoints():
    f = functx.grad(
        lambda x, n: lax.fori_loop(0, n, lambda i, x: fnp.sin(x), x, checkpoints=4).sum()
    )
    program = functx.make_ir(f)(np.ones(100), 1000)
    largest = max(
        v.aval.size for each in program.walk() for eqn in each.equations for v in eqn.outputs
    )
    assert largest == 5 * 100


def test_only_what_a_step_back_needs_is_kept():
    def f(x, n):
        # The sum does not need what it was; the product needs the other factor alone.
        body = lambda i, c: (c[0] + c[1].sum(), c[1] * (i + 1.0), c[2])  # noqa: E731
        return lax.fori_loop(0, n, body, (x.sum(), x, 0), checkpoints=4)[0]

    program = functx.make_ir(functx.grad(f))(np.ones(100), 3)
    largest = max(
        v.aval.size for each in program.walk() for eqn in each.equations for v in eqn.outputs
    )
    assert largest == 100
    same(functx.jit(functx.grad(f))(np.ones(100), 3), np.full(100, 1 + 1 + 1 + 2))


def test_a_loop_with_a_bound_stops_there():
    count = functx.jit(lambda n: lax.while_loop(lambda i: i < n, lambda i: i + 1, 0, max_steps=5))
    assert [count(n) for n in (0, 3, 5, 99)] == [0, 3, 5, 5]
    total = lambda n: lax.fori_loop(0, n, lambda i, s: s + i, 0, max_steps=4)  # noqa: E731
    assert total(9) == functx.jit(total)(9) == 6
    assert functx.jit(total)(2) == 1
    assert functx.jit(functx.vmap(total))(np.array([0, 2, 9])).tolist() == [0, 1, 6]


def test_a_known_number_of_steps_makes_a_scan_unless_checkpoints_are_asked_for():
    def names(**means):
        program = functx.make_ir(lambda x: lax.fori_loop(0, 3, lambda i, x: x * x, x, **means))(2.0)
        return {eqn.primitive.name for eqn in program}

    assert "scan" in names() and "while" not in names()
    assert "scan" in names(max_steps=2)
    assert "while" in names(checkpoints=2)
    same(lax.fori_loop(0, 3, lambda i, x: x * x, 2.0, max_steps=2), 16.0)
    same(
        functx.grad(lambda x: lax.fori_loop(0, 3, lambda i, x: x * x, x, checkpoints=1))(2.0), 1024
    )


@pytest.mark.parametrize("means", [{}, {"checkpoints": 2}, {"max_steps": 9}], ids=str)
@pytest.mark.parametrize(
    "transform",
    [
        functx.grad,
        functx.hessian,
        lambda f: functx.grad(lambda x: functx.linearize(f, x)[1](x)),
    ],
    ids=["grad", "hessian", "grad of linearize"],
)
def test_effects_of_a_body_take_place_once(transform, means):
    seen = []

    def body(i, x):
        functx.debug.callback(lambda i: seen.append(int(i)), i, ordered=True)
        return fnp.sin(x)

    def looped(x, n):
        return lax.fori_loop(0, n, body, x, **means)

    jax.block_until_ready(functx.jit(lambda x, n: transform(lambda x: looped(x, n))(x))(0.5, 3))
    jax.effects_barrier()
    assert seen == [0, 1, 2]


def test_an_effect_with_results_is_not_computed_again():
    def f(x, n, **means):
        def body(i, x):
            return x * functx.io_callback(lambda i: np.cos(i), np.float64(0), i)

        return lax.fori_loop(0, n, body, x, **means)

    slope = functx.jit(functx.grad(lambda x, n: f(x, n, max_steps=5)))
    same(slope(0.5, 3), np.cos([0, 1, 2]).prod())
    with pytest.raises(EffectError, match="a loop of no known length") as caught:
        functx.jit(functx.grad(f))(0.5, 3)
    assert "test_loops_in_reverse.py" in str(caught.value)


@pytest.mark.parametrize("name", ["checkpoints", "max_steps"])
def test_means_that_are_none_are_named(name):
    loops = [
        lambda **means: lax.while_loop(lambda x: x < 3.0, lambda x: x * 2.0, 1.0, **means),
        lambda **means: lax.fori_loop(0, 3, lambda i, x: x * 2.0, 1.0, **means),
    ]
    for loop, what in zip(loops, ("while_loop", "fori_loop"), strict=True):
        for bad in (0, -1, 2**31):
            with pytest.raises(ValueRangeError, match=rf"{what}\(.*\): {name} must .* got {bad}"):
                loop(**{name: bad})
        for bad, given in ((2.0, "float"), (True, "bool"), ("3", "str")):
            with pytest.raises(ArgumentError, match=f"{name} must .* got {given}") as caught:
                loop(**{name: bad})
            assert "test_loops_in_reverse.py" in str(caught.value)
        with pytest.raises(ArgumentError, match="checkpoints=2 and max_steps=3") as caught:
            loop(checkpoints=2, max_steps=3)
        assert "Leave out" in str(caught.value)


def test_steps_cannot_be_unrolled_between_checkpoints():
    with pytest.raises(ValueRangeError, match="no checkpoints; got unroll=2"):
        lax.fori_loop(0, 3, lambda i, x: x, 0, unroll=2, checkpoints=2)
