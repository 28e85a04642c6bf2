"""Branches and loops against unrolled Python, `jax.lax`, and under every transform, nested."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

import functx
from functx import lax
from functx import numpy as fnp
from functx.core.errors import (
    ArgumentError,
    AxisSizeError,
    BranchTypeError,
    CarryTypeError,
    DTypeError,
    FunctxError,
    ShapeError,
    ValueRangeError,
)
from functx.testing import check_grads
from tests.by_reference import by_reference

FUNCTX = SimpleNamespace(np=fnp, lax=lax, fx=functx)
JAX = SimpleNamespace(np=jax.numpy, lax=jax.lax, fx=jax)
RANDOM = np.random.RandomState(0)
H = RANDOM.randn(3)
XS = RANDOM.randn(4, 3)
W = RANDOM.randn(3, 3) * 0.5


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def same(got, wanted, tolerance=1e-9):
    got, wanted = (jax.tree.leaves(x, is_leaf=lambda x: isinstance(x, list)) for x in (got, wanted))
    assert len(got) == len(wanted)
    for x, y in zip(got, wanted, strict=True):
        np.testing.assert_allclose(x, y, tolerance, tolerance)


# Functions of (h, xs, w), each a scalar, that differentiate in reverse mode.


def recurrent(lib, h, xs, w):
    def step(carry, x):
        state, n = carry["state"], carry["n"]
        state = lib.np.tanh(state @ w + x * (n + 1))
        return {"state": state, "n": n + 1}, (state * x, n)

    carry, (rows, ns) = lib.lax.scan(step, {"state": h, "n": 0}, xs, reverse=True)
    return (carry["state"] ** 2).sum() + (rows * ns[:, None]).sum()


def branching(lib, h, xs, w):
    def step(state, x):
        state = lib.lax.cond(
            x.sum() > 0, lambda s: lib.np.sin(s @ w), lambda s: s * x[0] + w[0], state
        )
        return state, None

    return lib.lax.scan(step, h, xs)[0].sum()


def counting(lib, h, xs, w):
    def step(i, state):
        return lib.lax.switch(
            i, [lambda s: s * s, lambda s: s + xs[1], lambda s: lib.np.cos(s @ w)], state
        )

    return (lib.lax.fori_loop(0, 5, step, h) * xs[2]).sum()


def nested(lib, h, xs, w):
    def step(state, x):
        inner, rows = lib.lax.scan(lambda c, y: (c * y + state[0], c * x.sum()), state.sum(), x)
        return state + inner * lib.np.sin(x), rows

    state, rows = lib.lax.scan(step, h, xs)
    return (state @ w).sum() + rows.prod(axis=0).sum()


def mapped(lib, h, xs, w):
    return (lib.lax.map(lambda x: lib.np.exp(x @ w - h), xs) ** 2).sum()


FUNCTIONS = [recurrent, branching, counting, nested, mapped]
each_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)


def of(lib, function):
    return lambda h, xs, w: function(lib, h, xs, w)


@each_function
def test_values_agree_with_jax_in_and_out_of_jit(function):
    wanted = jax.jit(of(JAX, function))(H, XS, W)
    same(function(FUNCTX, H, XS, W), wanted)
    same(functx.jit(of(FUNCTX, function))(H, XS, W), wanted)


@each_function
def test_first_derivatives_agree_with_jax_in_every_mode(function):
    f, args = of(FUNCTX, function), (H, XS, W)
    wanted = jax.jit(jax.grad(of(JAX, function), (0, 1, 2)))(*args)
    same(functx.grad(f, (0, 1, 2))(*args), wanted)
    same(functx.jacfwd(f, (0, 1, 2))(*args), wanted)
    along = sum((g * x).sum() for g, x in zip(wanted, args, strict=True))
    same(functx.linearize(f, *args)[1](*args), along)


@each_function
def test_second_derivatives_agree_with_jax_in_every_mode(function):
    f = of(FUNCTX, function)
    wanted = jax.jit(jax.hessian(of(JAX, function)))(H, XS, W)
    for outer, inner in (
        (functx.jacfwd, functx.jacrev),
        (functx.jacrev, functx.jacrev),
        (functx.jacrev, functx.jacfwd),
    ):
        same(functx.jit(outer(inner(f)))(H, XS, W), wanted, 1e-7)


@each_function
@pytest.mark.parametrize("axes", [(0, None, None), (None, 1, None), (0, 1, None), (None, None, 2)])
def test_batches_of_gradients_agree_with_jax(function, axes):
    batches = RANDOM.randn(2, 3), RANDOM.randn(4, 2, 3), RANDOM.randn(3, 3, 2)
    args = [b if a is not None else x for b, a, x in zip(batches, axes, (H, XS, W), strict=True)]
    got = functx.jit(functx.vmap(functx.grad(of(FUNCTX, function), (0, 1, 2)), axes))(*args)
    same(got, jax.jit(jax.vmap(jax.grad(of(JAX, function), (0, 1, 2)), axes))(*args))
    total = functx.grad(lambda *a: functx.vmap(of(FUNCTX, function), axes)(*a).sum(), (0, 1, 2))
    same(
        total(*args),
        jax.jit(jax.grad(lambda *a: jax.vmap(of(JAX, function), axes)(*a).sum(), (0, 1, 2)))(*args),
    )


@each_function
def test_gradients_match_differences(function):
    with by_reference():
        check_grads(of(FUNCTX, function), (H, XS, W), order=2)


# Conditions


def test_floats_that_are_whole_numbers_are_bounds_of_a_loop():
    for lower, upper in [(0.0, 3.0), (0, np.float32(3)), (np.array(-1.0), 2)]:
        found = lax.fori_loop(lower, upper, lambda i, c: c + i, 1)
        assert int(found) == 1 + sum(range(int(lower), int(upper)))
        found = functx.jit(lambda c: lax.fori_loop(lower, upper, lambda i, c: c * 2, c))(1)  # noqa: B023
        assert int(found) == 8
    assert float(functx.grad(lambda x: lax.fori_loop(0, x, lambda i, c: c * x, 1.0))(3.0)) == 27
    with pytest.raises(FunctxError, match=r"`upper` must be a whole number; got 2\.5"):
        lax.fori_loop(0, 2.5, lambda i, c: c, 1)
    with pytest.raises(
        FunctxError, match=r"`upper` must be an integer scalar.*[\s\S]*astype\(int\)"
    ):
        functx.jit(lambda n: lax.fori_loop(0, n, lambda i, c: c, 1))(2.0)


def test_only_the_chosen_branch_decides_the_derivative():
    f = lambda x: lax.cond(x > 0, fnp.sqrt, lambda x: x * 0.0, x)  # noqa: E731
    same(functx.grad(f)(-1.0), 0.0)
    same(functx.vmap(functx.grad(f))(np.array([-1.0, 4.0])), [0.0, 0.25])


def test_a_condition_may_be_a_number_and_branches_may_take_nothing():
    same(lax.cond(2, lambda: 1.0, lambda: 2.0), 1.0)
    same(functx.jit(lambda n: lax.cond(n, lambda: 1.0, lambda: n * 2.0))(0.0), 0.0)


def test_branches_capture_traced_values_and_arrays():
    def f(x, y, which):
        return lax.cond(which, lambda: x * y + H, lambda: y - H * x).sum()

    for which in (True, False):
        wanted = (2.0 * 3.0 + H).sum() if which else (3.0 - H * 2.0).sum()
        same(functx.jit(f)(2.0, 3.0, which), wanted)
    same(functx.jit(functx.grad(f, (0, 1)))(2.0, 3.0, True), (9.0, 6.0))


def test_an_index_out_of_range_takes_the_nearest_branch():
    branches = [lambda x: x, lambda x: x * x, lambda x: -x]
    indices = np.array([-7, 0, 1, 2, 9])
    got = functx.vmap(lambda i: lax.switch(i, branches, 3.0))(indices)
    same(got, [3.0, 3.0, 9.0, -3.0, -3.0])
    same([functx.jit(lambda i: lax.switch(i, branches, 3.0))(i) for i in indices], got)
    same(lax.switch(5, branches[:1], 3.0), 3.0)


def test_weak_results_take_the_dtype_of_the_other_branch():
    x = np.ones(2, "float32")[0]
    assert functx.jit(lambda p: lax.cond(p, lambda: x, lambda: 0.0))(True).dtype == np.float32
    assert functx.jit(lambda p: lax.cond(p, lambda: 1, lambda: 0.5))(True).dtype == np.float64


def test_a_batched_condition_chooses_by_lane_and_a_shared_one_stays_a_condition():
    f = lambda p, x: lax.cond(p, lambda x: x * 2.0, lambda x: x + 1.0, x)  # noqa: E731
    same(functx.vmap(f)(np.array([True, False, True]), np.arange(3.0)), [0.0, 2.0, 4.0])
    shared = functx.make_ir(functx.vmap(f, (None, 0)))(True, np.arange(3.0))
    assert any(eqn.primitive.name == "cond" for eqn in shared)


def test_a_literal_condition_leaves_no_condition():
    program = functx.make_ir(lambda x: lax.cond(True, lambda: x * 2.0, lambda: x))(1.0)
    assert [eqn.primitive.name for eqn in program] == ["mul"]


# Scans


def test_a_scan_is_its_unrolled_loop():
    def step(c, x):
        return c * 0.5 + x, c

    for reverse in (False, True):
        c, rows = 1.0, []
        for x in XS[::-1] if reverse else XS:
            c, y = step(c, x)
            rows.append(np.broadcast_to(y, 3))
        wanted = c, np.stack(rows[::-1] if reverse else rows)
        for unroll in (1, 2, 3, 7, True):
            same(lax.scan(step, np.ones(3), XS, reverse=reverse, unroll=unroll), wanted)


def test_weak_carries_settle_on_the_dtype_of_the_body():
    rows = np.ones(6, "float16")
    (a, b), none = lax.scan(lambda c, x: ((c[1], c[0] + c[1] * x), None), (0.0, 1.0), rows)
    assert (float(a), float(b), none) == (8.0, 13.0, None)
    assert a.dtype == b.dtype == np.float16
    assert lax.scan(lambda c, x: (c + x, None), 0, rows)[0].dtype == np.float16
    assert lax.while_loop(lambda c: c < 3, lambda c: c + 1.5, 0) == 3.0
    start = np.float32(1)
    assert lax.fori_loop(0, 3, lambda i, c: 2.0, start).dtype == np.float32


def test_loops_of_no_steps_return_what_they_began_with():
    f = lambda x: lax.scan(lambda c, t: (c * t, c), x, np.zeros(0))  # noqa: E731
    c, ys = f(3.0)
    assert (float(c), ys.shape) == (3.0, (0,))
    total = lambda x: f(x)[0] + f(x)[1].sum()  # noqa: E731
    same((functx.grad(total)(3.0), functx.jacfwd(functx.grad(total))(3.0)), (1.0, 0.0))
    same(functx.vmap(total)(np.arange(2.0)), np.arange(2.0))
    same(lax.fori_loop(5, 2, lambda i, x: x * 2.0, 1.0), 1.0)
    same(lax.map(lambda x: x * 2.0, np.zeros((0, 2)), batch_size=3), np.zeros((0, 2)))


def test_empty_carries_and_absent_rows_are_allowed():
    assert lax.scan(lambda c, x: (c, None), (), None, length=3) == ((), None)
    same(lax.scan(lambda c, x: (c, x["a"] * 2), None, {"a": XS})[1], XS * 2)
    same(lax.scan(lambda c, _: (c + 1, c), 0, length=3), (3, [0, 1, 2]))


def test_a_linear_loop_transposes_with_known_carries():
    def f(lib, x):
        step = lambda c, y: ((c[0] * 2.0, c[1] * c[0] + y), c[1])  # noqa: E731
        (_, last), rows = lib.lax.scan(step, (1.0, x[0]), x)
        return last, rows

    cts = np.float64(2.0), XS[:, 1]
    wanted = jax.vjp(lambda x: f(JAX, x), XS[:, 0])[1]((jax.numpy.asarray(2.0), cts[1]))
    same(functx.vjp(lambda x: f(FUNCTX, x), XS[:, 0])[1](cts), wanted)


@pytest.mark.usefixtures("all_kept")
def test_the_backward_loop_is_given_what_does_not_change_once():
    def loss(w, xs):
        return lax.scan(lambda h, x: (fnp.tanh(h @ w.T + x), None), H, xs)[0].sum()

    program = functx.make_ir(functx.grad(loss, (0, 1)))(W, XS)
    loops = [eqn for eqn in program if eqn.primitive.name == "scan"]
    assert len(loops) == 2
    saved = [v.aval.shape for v in loops[0].outputs]
    assert (4, 3, 3) not in saved


def test_a_map_in_batches_is_a_map():
    f = lambda x: {"a": x.sum(), "b": x * 2.0}  # noqa: E731
    wanted = {"a": XS.sum(1), "b": XS * 2}
    for size in (None, 1, 3, 4, 9):
        same(lax.map(f, XS, batch_size=size), wanted)


def test_complex_loops_agree_with_jax():
    z, ws = np.exp(1j), np.exp(1j * np.arange(3.0))

    def f(lib):
        return lambda z: abs(lib.lax.scan(lambda c, w: (c * c + w, None), z, ws)[0]) ** 2

    same(functx.jvp(f(FUNCTX), (z,), (1j,))[1], jax.jvp(f(JAX), (z,), (1j,))[1])
    got = functx.vjp(f(FUNCTX), z)[1](1.0)[0]
    same(got, jax.vjp(f(JAX), z)[1](1.0)[0])


# Loops until a condition fails

GROWTH = np.arange(1.0, 10.0).reshape(3, 3) / 9


def grow(lib, x, limit, k):
    def body(carry):
        x, n = carry
        return lib.np.tanh(GROWTH @ x) * k + x, n + 1

    x, n = lib.lax.while_loop(lambda c: (c[0] ** 2).sum() < limit, body, (x, 0))
    return x.sum() * n


LIMITS = np.array([0.1, 5.0, 20.0])
START = np.array([0.1, 0.2, 0.3])


def test_a_while_loop_agrees_with_jax_in_forward_mode():
    args = START, 20.0, 1.1
    f, g = (lambda *a: grow(FUNCTX, *a)), (lambda *a: grow(JAX, *a))
    same(f(*args), g(*args))
    same(functx.jit(functx.jacfwd(f, (0, 2)))(*args), jax.jit(jax.jacfwd(g, (0, 2)))(*args))
    same(functx.jacfwd(functx.jacfwd(f))(*args), jax.jit(jax.jacfwd(jax.jacfwd(g)))(*args))
    pushed = functx.linearize(lambda x: f(x, 20.0, 1.1), START)[1](START)
    same(pushed, jax.jvp(lambda x: g(x, 20.0, 1.1), (START,), (START,))[1])


@pytest.mark.parametrize("axes", [(0, 0, None), (0, None, None), (None, 0, None), (None, None, 0)])
def test_lanes_of_a_while_loop_stop_by_themselves(axes):
    batches = RANDOM.rand(3, 3), LIMITS, np.array([0.5, 1.0, 2.0])
    args = [b if a == 0 else x for b, a, x in zip(batches, axes, (START, 9.0, 1.1), strict=True)]
    f, g = (lambda *a: grow(FUNCTX, *a)), (lambda *a: grow(JAX, *a))
    same(functx.vmap(f, axes)(*args), jax.jit(jax.vmap(g, axes))(*args))
    same(
        functx.vmap(functx.jacfwd(f, 2), axes)(*args),
        jax.jit(jax.vmap(jax.jacfwd(g, 2), axes))(*args),
    )


def test_a_lane_that_has_stopped_is_left_alone():
    def f(n, x):
        return lax.while_loop(
            lambda c: c[0] < n, lambda c: (c[0] + 1, 1.0 / (c[1] - c[1])), (0, x)
        )[1]

    same(functx.vmap(f)(np.array([0, 0, 1]), np.arange(3.0)), [0.0, 1.0, np.inf])


def test_lanes_of_lanes_of_a_while_loop_stop_by_themselves():
    f = lambda n, m: lax.while_loop(lambda c: c < n, lambda c: c + m, 0)  # noqa: E731
    n, m = np.array([0, 4, 9]), np.array([1, 3])
    got = functx.vmap(functx.vmap(f, (None, 0)), (0, None))(n, m)
    same(got, [[-(-a // b) * b for b in m] for a in n])


def test_a_while_loop_that_does_not_vary_lets_reverse_mode_pass():
    def f(x):
        n = lax.while_loop(lambda n: n < 5, lambda n: n + 2, 0)
        return x * n

    same(functx.jit(functx.grad(f))(2.0), 6.0)


def test_bounds_known_to_a_derivative_make_a_scan():
    f = lambda x, n: lax.fori_loop(0, n, lambda i, a: a * x + i, x)  # noqa: E731
    power = lambda x: ((x * x) * x + 1) * x + 2  # noqa: E731
    slope = (power(2.0 + 1e-6) - power(2.0 - 1e-6)) / 2e-6
    same(functx.grad(f)(2.0, 3), slope, 1e-6)
    same(functx.jit(lambda x: functx.grad(f)(x, 3))(2.0), slope, 1e-6)
    same(functx.jit(f)(2.0, 3), power(2.0))
    same(functx.vmap(f, (None, 0))(2.0, np.array([0, 3])), [2.0, power(2.0)])


def test_the_index_of_a_loop_adapts_to_what_it_meets():
    small = np.int8(1)
    assert lax.fori_loop(0, 3, lambda i, x: x + i, small).dtype == np.int8
    assert lax.fori_loop(small, 3, lambda i, x: i, 0).dtype == np.int8


# Errors


def raises(error, function, *parts):
    with pytest.raises(error) as caught:
        function()
    assert all(part in str(caught.value) for part in parts), caught.value


def test_a_carry_that_changes_its_type_is_named_by_path():
    raises(
        CarryTypeError,
        lambda: lax.scan(lambda c, x: ({"a": (c["a"][0], fnp.ones(3))}, x), {"a": (1, 2.0)}, XS),
        "scan(lambda)", "carry['a'][1]", "f64[3]", "~f64[]",
    )  # fmt: skip
    raises(
        CarryTypeError,
        lambda: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0], c[1] + 0.5), (0, np.arange(2))),
        "carry[1]", "f64[2]", "i64[2]",
    )  # fmt: skip
    raises(CarryTypeError, lambda: lax.fori_loop(0, 3, lambda i, x: (x, x), 0.0), "structure")
    raises(TypeError, lambda: lax.fori_loop(0, 3, lambda i, x: fnp.ones(3), 0.0), "f64[3]")


def test_loops_say_what_is_wrong_with_their_arguments():
    same_row = lambda c, x: (c, x)  # noqa: E731
    raises(AxisSizeError, lambda: lax.scan(same_row, 0, {"u": XS, "v": XS.T}), "xs['u']", "xs['v']")
    raises(AxisSizeError, lambda: lax.scan(same_row, 0, XS, length=3), "length=3")
    raises(AxisSizeError, lambda: lax.scan(same_row, 0), "length")
    raises(AxisSizeError, lambda: lax.scan(same_row, 0, 1.0), "rows")
    raises(ArgumentError, lambda: lax.scan(lambda c, x: c, 0, XS), "pair")
    raises(ArgumentError, lambda: lax.scan(None, 0, XS), "`f`")
    raises(DTypeError, lambda: lax.while_loop(lambda c: c, lambda c: c, 0), "boolean")
    raises(ValueRangeError, lambda: lax.fori_loop(0.5, 3, lambda i, x: x, 0), "`lower`", "0.5")
    unrolled = functx.jit(lambda n: lax.fori_loop(0, n, lambda i, x: x, 0, unroll=2))
    raises(ValueRangeError, lambda: unrolled(3), "unroll")


def test_conditions_say_what_is_wrong_with_their_arguments():
    raises(BranchTypeError, lambda: lax.cond(True, lambda: 1, lambda: fnp.ones(3)), "f64[3]")
    raises(
        BranchTypeError, lambda: lax.cond(True, lambda: {"a": 1}, lambda: {"b": 1}), "'a'", "'b'"
    )
    raises(ShapeError, lambda: lax.cond(H > 0, lambda: 1, lambda: 2), "scalar")
    raises(ArgumentError, lambda: lax.cond(True, 1, lambda: 2), "`true_fun`")
    raises(DTypeError, lambda: lax.switch(0.5, [lambda: 1, lambda: 2]), "integer")
    raises(ArgumentError, lambda: lax.switch(0, []), "branch")
