"""Branches and loops under vmap whose batch elements choose and stop on their own."""

from functools import partial

import jax
import numpy as np
import pytest

import functx
from functx import lax
from functx import numpy as fnp
from functx.core.errors import ArgumentError, BranchTypeError, DTypeError, ShapeError
from functx.core.primitive import Primitive
from tests.by_reference import by_reference

jnp = jax.numpy
W = np.random.RandomState(0).randn(2, 2) * 0.4


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def same(got, wanted, tolerance=1e-9):
    got, wanted = (jax.tree.leaves(x, is_leaf=lambda x: isinstance(x, list)) for x in (got, wanted))
    assert len(got) == len(wanted)
    for x, y in zip(got, wanted, strict=True):
        np.testing.assert_allclose(x, y, tolerance, tolerance)


def names(program):
    return [eqn.primitive.name for each in program.walk() for eqn in each.equations]


# Functions of one element (x, w), each with a scalar result. Their values are 0 where a branch not
# taken, or the step after the last, would have an infinite derivative or never end.


def logarithm(x, w):
    return lax.cond(x[0] > 0, lambda x: (fnp.log(x) @ w).sum() * x[1], lambda x: x.sum(), x)


def three_ways(x, w):
    branches = [
        lambda x: fnp.sqrt(x[0]) + x[1],
        lambda x: fnp.where(x > 0, x, 1.0).prod() * w[0, 0],
        lambda x: (x * x @ w).sum(),
    ]
    return lax.switch(fnp.floor(x[0]).astype("int32") + 1, branches[::-1], x)


def stopping(x, w):
    def body(carry):
        y, rows, n, nothing = carry["y"], carry["rows"], carry["n"], carry["nothing"]
        rows = rows.at[n].set(fnp.sqrt(y) * (x + rows[n - 1]) @ w)
        return {"y": fnp.where(y > 1, y - 1, 0.0), "rows": rows, "n": n + 1, "nothing": nothing}

    start = {"y": 2 * x[0], "rows": fnp.zeros((4, 2)), "n": 0, "nothing": (None, {})}
    last = lax.while_loop(lambda c: c["y"] > 0, body, start)
    return (last["rows"] * fnp.arange(8.0).reshape(4, 2)).sum() + last["n"] * x.sum()


def loop_in_a_branch(x, w):
    def count(x):
        step = lambda c: (c[0] + x[0], fnp.sin(c[1] @ w) * x[0])  # noqa: E731
        return lax.while_loop(lambda c: c[0] < 2.5, step, (0.0, x))[1].sum()

    return lax.cond(x[0] > 0, count, lambda x: x[0] * x[1], x)


def loop_in_a_loop(x, w):
    def outer(carry):
        n, y = carry
        y, _ = lax.while_loop(
            lambda c: c[0].sum() < 5.0 * (n + 1), lambda c: (c[0] + x * x, c[1] + 1), (y, 0)
        )
        return n + 1, fnp.tanh(y @ w) * 2.0

    steps = fnp.where(x[0] > 0, 3, 0)
    return lax.while_loop(lambda c: c[0] < steps, outer, (0, x))[1].sum()


def written(x, w):
    def body(carry):
        n, rows = carry
        rows = lax.cond(
            fnp.take(x, n % 2) > 0,
            lambda r: r.at[n].set(fnp.log(fnp.take(x, n % 2)) * w[0, 0]),
            lambda r: r.at[0].add(x[0] * w[1, 1]).at[n].multiply(3.0),
            rows,
        )
        return n + 1, rows

    return fnp.sin(lax.while_loop(lambda c: c[0] < 1 + (x[0] > 0), body, (0, x))[1]).sum()


ELEMENTS = np.array([[0.5, 2.0], [0.0, 1.5], [1.5, 0.3], [-1.0, 0.0], [-0.5, 1.2]])
IDLE = ELEMENTS[[1, 3, 3, 1, 3]]
FUNCTIONS = [logarithm, three_ways, stopping, loop_in_a_branch, loop_in_a_loop, written]
each_function = pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
some_elements = pytest.mark.parametrize("xs", [ELEMENTS, IDLE], ids=["some", "none"])


def stacked(f, xs, *rest):
    return jax.tree.map(lambda *ys: np.stack(ys), *[f(x, *rest) for x in xs])


@some_elements
@each_function
def test_values_agree_with_a_loop_over_elements(f, xs):
    wanted = stacked(f, xs, W)
    same(functx.vmap(f, (0, None))(xs, W), wanted)
    pairs = np.stack([xs, xs[::-1]])
    twice = functx.vmap(functx.vmap(f, (0, None)), (0, None))
    same(twice(pairs, W), np.stack([wanted, wanted[::-1]]))


@each_function
def test_batches_of_two_arguments_agree_with_two_loops(f):
    every = functx.jit(functx.vmap(functx.vmap(f, (None, 0)), (0, None)))
    wanted = [stacked(f, ELEMENTS, W), stacked(f, ELEMENTS, -W)]
    same(every(ELEMENTS, np.stack([W, -W])), np.stack(wanted, 1))


@some_elements
@each_function
def test_tangents_agree_with_a_loop_over_elements(f, xs):
    tangents = np.cos(xs), np.sin(W)

    def pushed(x, dx, w, dw):
        return functx.jvp(f, (x, w), (dx, dw))

    elements = [pushed(x, dx, W, tangents[1]) for x, dx in zip(xs, tangents[0], strict=True)]
    wanted = tuple([np.stack(parts) for parts in zip(*elements, strict=True)])
    axes = (0, 0, None, None)
    same(functx.vmap(pushed, axes)(xs, tangents[0], W, tangents[1]), wanted)
    batched = functx.vmap(f, (0, None))
    same(functx.jvp(batched, (xs, W), tangents), wanted)


@some_elements
@each_function
def test_gradients_agree_with_a_loop_over_elements(f, xs):
    gradient = functx.grad(f, (0, 1))
    of_sum = functx.grad(lambda xs, w: functx.vmap(f, (0, None))(xs, w).sum(), (0, 1))
    # Values and tangents of the same functions are compiled.
    with by_reference():
        wanted = stacked(gradient, xs, W)
        assert all(np.isfinite(g).all() for g in wanted)
        same(functx.vmap(gradient, (0, None))(xs, W), wanted)
        same(of_sum(xs, W), (wanted[0], wanted[1].sum(0)))


@some_elements
@pytest.mark.parametrize("f", [logarithm, three_ways], ids=lambda f: f.__name__)
def test_second_derivatives_agree_with_a_loop_over_elements(f, xs):
    hessian = functx.jacfwd(functx.grad(f, (0, 1)), (0, 1))
    wanted = stacked(hessian, xs, W)
    assert all(np.isfinite(h).all() for h in jax.tree.leaves(wanted))
    same(functx.vmap(hessian, (0, None))(xs, W), wanted)

    def total(v, w):
        return functx.vmap(lambda x: f(x + v, w))(xs).sum()

    zero = np.zeros(2)
    for outer, inner in (
        (functx.jacfwd, functx.jacrev),
        (functx.jacrev, functx.jacrev),
        (functx.jacrev, functx.jacfwd),
    ):
        got = outer(inner(total, (0, 1)), (0, 1))(zero, W)
        same(got, jax.tree.map(lambda h: h.sum(0), wanted))


@pytest.mark.parametrize("f", [logarithm, three_ways], ids=lambda f: f.__name__)
def test_linear_maps_of_batches_transpose(f):
    batched = functx.vmap(f, (0, None))
    _, push = functx.linearize(batched, ELEMENTS, W)
    pulled = functx.linear_transpose(push, ELEMENTS, W)(np.ones(5))
    same(pulled, functx.grad(lambda xs, w: batched(xs, w).sum(), (0, 1))(ELEMENTS, W))
    _, push = functx.linearize(lambda x: f(x, W), ELEMENTS[0])
    each = functx.vmap(lambda x, t: functx.jvp(lambda x: f(x, W), (x,), (t,))[1], (0, 0))
    transposed = functx.linear_transpose(lambda ts: each(ELEMENTS, ts), ELEMENTS)(np.ones(5))
    same(transposed, pulled[0])


# Branches


def test_a_predicate_that_elements_share_still_chooses_one_branch():
    def f(p, x):
        return lax.cond(p, fnp.sin, fnp.cos, x)

    program = functx.make_ir(functx.vmap(f, (None, 0)))(True, np.ones(3))
    assert names(program).count("cond") == 1 and "select" not in names(program)
    program = functx.make_ir(functx.vmap(f))(np.array([True, False]), np.ones(2))
    assert "cond" not in names(program) and "select" in names(program)


def test_an_array_that_elements_share_is_not_copied_for_each():
    program = functx.make_ir(functx.vmap(logarithm, (0, None)))(ELEMENTS, W)
    (product,) = [eqn for eqn in program if eqn.primitive.name == "dot_general"]
    assert product.inputs[1].aval.shape == W.shape


def test_what_no_branch_changes_needs_no_choice():
    def f(p, x, y):
        return lax.cond(p, lambda x, y: (x, fnp.sin(y)), lambda x, y: (x, y), x, y)

    xs = np.ones((2, 3))
    program = functx.make_ir(functx.vmap(f))(np.array([True, False]), xs, xs)
    assert program.outputs[0] is program.inputs[1]
    assert functx.make_ir(functx.vmap(f, (0, None, 0)))(np.ones(2) > 0, xs[0], xs).out_avals


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_stays_in_its_element(value):
    def f(x, w):
        return lax.cond(fnp.isfinite(x), lambda: (x * w).sum(), lambda: 0.0 * w[0])

    xs = np.array([1.0, value, 2.0])
    total = functx.grad(lambda xs, w: functx.vmap(f, (0, None))(xs, w).sum(), (0, 1))
    same(total(xs, np.ones(2)), ([2.0, 0.0, 2.0], [3.0, 3.0]))
    tangent = functx.jvp(lambda xs: functx.vmap(f, (0, None))(xs, np.ones(2)), (xs,), (xs,))[1]
    same(tangent, [2.0, 0.0, 4.0])


def collatz(n, x):
    def step(state):
        n, x = state
        return lax.cond(n % 2 == 0, lambda n: n // 2, lambda n: 3 * n + 1, n), 2 * x @ W

    return lax.while_loop(lambda state: state[0] != 1, step, (n, x))[1]


def updates(n, x):
    return lax.fori_loop(0, n, lambda i, a: a.at[i].set(a[i] * lax.axis_index("rows")), x)


def total_in_a_branch(n, x):
    total = lax.psum(x, "rows")
    return lax.cond(total.sum() > 0, lambda: lax.psum(x, "rows"), lambda: x * n)


EMPTY_BATCHES = {
    "branches": lambda n, x: logarithm(x, W) + loop_in_a_branch(x, W),
    "loops": collatz,
    "updates": updates,
    "collectives": total_in_a_branch,
    "draws": lambda n, x: lax.cond(n > 0, lambda: x + functx.random.rand(2), lambda: x),
    "solvers": lambda n, x: functx.numpy.linalg.solve(functx.numpy.outer(x, x) + np.eye(2), x),
}


@pytest.mark.parametrize("f", EMPTY_BATCHES.values(), ids=EMPTY_BATCHES.keys())
def test_a_batch_of_no_elements_has_results_and_derivatives_of_its_shapes(f):
    def mapped(f):
        return functx.vmap(f, axis_name="rows", randomness="different")

    def slopes(n, x):
        return functx.grad(lambda x: f(n, x).sum())(x)

    def shapes(f, size):
        out = functx.eval_shape(f, np.ones((*size, 2), int)[..., 0], np.ones((*size, 2)))
        return [leaf.shape for leaf in jax.tree.leaves(out)]

    for g in (f, slopes):
        element = [shape[1:] for shape in shapes(mapped(g), (3,))]
        assert shapes(mapped(g), (0,)) == [(0, *each) for each in element]
        assert shapes(mapped(mapped(g)), (0, 3)) == [(0, 3, *each) for each in element]
        assert shapes(mapped(mapped(g)), (3, 0)) == [(3, 0, *each) for each in element]
    assert shapes(functx.grad(lambda n, x: mapped(f)(n, x).sum(), 1), (0,)) == [(0, 2)]


def test_a_batch_of_no_elements_keeps_what_does_not_depend_on_it():
    def f(x, w):
        sums = lax.psum(x, "rows"), lax.psum(1, "rows")
        return x * w, w * 2, sums, lax.optimization_barrier((x, w))[1]

    f = functx.vmap(f, (0, None), (0, None, None, None), axis_name="rows")
    product, double, (total, count), w = f(np.ones((0, 2)), np.ones(3)[0])
    assert product.shape == (0, 2) and double == 2 and w == 1
    assert total.tolist() == [0, 0] and count == 0


def test_an_array_that_a_branch_returns_changed_and_as_it_was_is_two_arrays():
    def f(p, x):
        first = lambda x: (x.at[0].set(5.0), x, x * 2.0)  # noqa: E731
        second = lambda x: (x.at[1].set(6.0), x, x.at[2].set(7.0))  # noqa: E731
        return lax.cond(p, first, second, x)

    chosen, xs = np.array([True, False]), np.arange(6.0).reshape(2, 3)
    for i, rows in enumerate(functx.vmap(f)(chosen, xs)):
        same(rows, [f(p, x)[i] for p, x in zip(chosen, xs, strict=True)])


# Loops and elements that do not run them


def endless(x):
    return lax.while_loop(lambda c: c < 4.0, lambda c: c + x, 0.0)


def wrapped_in(kind):
    if kind == "scan":
        return lambda x: lax.scan(lambda c, _: (c + endless(x), None), 0.0, length=2)[0]
    if kind == "cond":
        return lambda x: lax.cond(x < 9, endless, fnp.sin, x)
    if kind == "while":
        return lambda x: lax.while_loop(lambda c: c[0] < x, lambda c: (c[0] + 1, endless(x)),
                                        (0.0, 0.0))[1]  # fmt: skip
    if kind == "jit":
        return functx.jit(endless)
    if kind == "checkpoint":
        return functx.checkpoint(endless)
    rule = functx.custom_jvp(endless)
    rule.defjvps(lambda t, out, x: t * endless(x))
    return rule


KINDS = ["scan", "cond", "while", "jit", "checkpoint", "rule"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_in_a_branch_ends_for_elements_that_do_not_take_it(kind):
    inner = wrapped_in(kind)

    def f(x):
        return lax.cond(x > 0, inner, lambda x: x * 2.0, x)

    xs = np.array([1.0, 0.0, 3.0, -1.0])
    wanted = [float(f(x)) for x in xs]
    same(functx.vmap(f)(xs), wanted)
    same(functx.vmap(f)(-abs(xs)), -2.0 * abs(xs))
    if kind == "cond":
        same(functx.vmap(functx.vmap(f))(xs.reshape(2, 2)), np.reshape(wanted, (2, 2)))
    _, tangents = functx.jvp(functx.vmap(f), (xs,), (np.ones(4),))
    same(tangents, [float(functx.jvp(f, (x,), (1.0,))[1]) for x in xs])
    same(functx.vmap(lambda x: functx.jvp(f, (x,), (1.0,))[1])(xs), tangents)


def test_a_loop_that_elements_share_runs_once_if_any_takes_it():
    def f(p, x, n):
        return lax.cond(p, lambda: x + lax.while_loop(lambda c: c < n, lambda c: c + 1.0, 0.0),
                        lambda: x)  # fmt: skip

    program = functx.make_ir(functx.vmap(f, (0, 0, None)))(np.array([True, False]), np.ones(2), 3.0)
    (loop,) = [e for p in program.walk() for e in p if e.primitive.name == "while"]
    assert loop.outputs[0].aval.shape == ()
    batched = functx.vmap(f, (0, 0, None))
    same(batched(np.array([True, False]), np.ones(2), 3.0), [4.0, 1.0])
    same(batched(np.array([False, False]), np.ones(2), np.inf), [1.0, 1.0])


def test_elements_that_have_stopped_run_no_inner_loops():
    def f(n, x):
        def body(c):
            return c[0] + 1, lax.while_loop(lambda y: y < 4.0, lambda y: y + x, c[1] * 0.0)

        return lax.while_loop(lambda c: c[0] < n, body, (0, 7.0))[1]

    same(functx.vmap(f)(np.array([2, 0, 1]), np.array([1.0, 0.0, 3.0])), [4.0, 7.0, 6.0])


# Loops that write


def fill(size, n):
    body = lambda c: (c[0] + 1, c[1].at[c[0]].set(c[0] * 2.0))  # noqa: E731
    return lax.while_loop(lambda c: c[0] < n, body, (0, fnp.zeros(size)))[1]


UPDATES = {
    "set": lambda x, i: x.at[i].set(5.0),
    "add": lambda x, i: x.at[i].add(5.0),
    "multiply": lambda x, i: x.at[i].multiply(5.0),
    "min": lambda x, i: x.at[i].min(-5.0),
    "max": lambda x, i: x.at[i].max(5.0),
    "slice": lambda x, i: lax.dynamic_update_slice(x, x[:2] + x[1:2], (i,)),
    "several": lambda x, i: x.at[fnp.stack([i, i, 9 + i])].add(x[i]).at[-1].set(x[0]),
}


def whole_arrays(program, size):
    """The operations in loops, reads and writes apart, that compute an array of `size`."""
    loops = [e.primitive.body for p in program.walk() for e in p if e.primitive.name == "while"]
    return [
        eqn.primitive.name
        for loop in loops
        for each in loop.walk()
        for eqn in each
        if any(size in v.aval.shape for v in eqn.outputs)
        and not eqn.primitive.name.startswith(("scatter", "dynamic_update"))
    ]


@pytest.mark.parametrize(
    ("update", "dtype"),
    [*[(update, "float64") for update in UPDATES], ("set", "int32"), ("add", "complex64")],
)
def test_elements_that_have_stopped_keep_what_they_wrote(update, dtype):

    def f(n, x):
        def body(c):
            return c[0] + 1, UPDATES[update](c[1], c[0]).astype(dtype)

        return lax.while_loop(lambda c: c[0] < n, body, (0, x))[1]

    ns = np.array([0, 2, 3])
    x = np.array([-0.0, 1, 2, 3, 4]).astype(dtype)
    batched = functx.vmap(f, (0, None))
    got = batched(ns, x)
    same(got, stacked(f, ns, x))
    assert np.signbit(got[0].real).tolist() == np.signbit(x.real).tolist()
    if dtype == "float64":
        assert whole_arrays(functx.make_ir(batched)(ns, x), 5) == []


def test_a_mapped_loop_that_fills_an_array_copies_it_in_no_step():
    ns = np.array([3, 5])
    batched = functx.vmap(partial(fill, 7))
    same(batched(ns), stacked(partial(fill, 7), ns))
    assert whole_arrays(functx.make_ir(batched)(ns), 7) == []
    twice = functx.vmap(batched)
    assert whole_arrays(functx.make_ir(twice)(np.stack([ns, ns])), 7) == []
    derived = functx.make_ir(
        lambda s: functx.jvp(lambda s: functx.vmap(lambda n: written_times(s, n))(ns), (s,), (s,))
    )(2.0)
    assert whole_arrays(derived, 7) == []


def written_times(s, n):
    body = lambda c: (c[0] + 1, c[1].at[c[0]].set(fnp.sin(c[0] * s)))  # noqa: E731
    return lax.while_loop(lambda c: c[0] < n, body, (0, fnp.zeros(7)))[1]


def test_a_condition_that_writes_in_a_mapped_loop_copies_nothing():
    def f(n):
        def body(c):
            i, x, hits = c
            x, hits = lax.cond(
                i % 2 == 0,
                lambda x, hits: (x.at[i].set(i * 1.0), hits + 1),
                lambda x, hits: (x.at[i].add(x[0] + 3.0), hits),
                x, hits,
            )  # fmt: skip
            return i + 1, x, hits

        return lax.while_loop(lambda c: c[0] < n, body, (0, fnp.zeros(7), 0))[1:]

    ns = np.array([3, 0, 6])
    batched = functx.vmap(f)
    same(batched(ns), stacked(f, ns))
    assert whole_arrays(functx.make_ir(batched)(ns), 7) == []


def test_what_a_loop_does_not_change_is_not_copied_for_each_element():
    def f(n, x):
        return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1], c[2] + c[1][0]),
                              (0, x, 0.0))[1:]  # fmt: skip

    program = functx.make_ir(functx.vmap(f, (0, None)))(np.arange(3), np.ones(4))
    (loop,) = [eqn for eqn in program if eqn.primitive.name == "while"]
    assert (4,) in [v.aval.shape for v in loop.outputs]
    same(functx.vmap(f, (0, None))(np.arange(3), np.ones(4))[1], [0.0, 1.0, 2.0])


# Effects


SEEN = []


def note(tag):
    return lambda x: functx.debug.callback(lambda x: SEEN.append((tag, float(x))), x)


def seen():
    jax.effects_barrier()
    found = SEEN.copy()
    SEEN.clear()
    return found


def noting(x):
    def positive(t):
        note("+")(t)
        return t * 2.0

    def negative(t):
        note("-")(t)
        return t * 3.0

    return lax.cond(x > 0, positive, negative, x)


@pytest.mark.parametrize(
    "transform",
    [
        functx.vmap,
        lambda f: functx.jit(functx.vmap(f)),
        lambda f: lambda xs: functx.grad(lambda xs: functx.vmap(f)(xs).sum())(xs),
        lambda f: functx.vmap(functx.grad(f)),
        lambda f: lambda xs: functx.jvp(functx.vmap(f), (xs,), (xs,)),
    ],
    ids=["vmap", "jit vmap", "grad vmap", "vmap grad", "jvp vmap"],
)
def test_effects_of_a_branch_take_place_for_its_elements_in_order(transform):
    transform(noting)(np.array([1.0, -1.0, 3.0]))
    assert seen() == [("+", 1.0), ("-", -1.0), ("+", 3.0)]


def test_effects_of_a_loop_take_place_for_each_element_as_often_as_it_runs():
    def f(n):
        def body(i):
            note("step")(i * 1.0)
            return i + 1

        return lax.while_loop(lambda i: i < n, body, 0)

    same(functx.vmap(f)(np.array([2, 0, 1])), [2, 0, 1])
    assert seen() == [("step", 0.0), ("step", 1.0), ("step", 0.0)]


# Results and mistakes


@pytest.mark.parametrize(
    "call",
    [
        lambda x: lax.cond(True, lambda x: x + 1, lambda x: x, x),
        lambda x: lax.cond(np.array(False), lambda x: x, lambda x: x, x),
        lambda x: lax.cond(x[0] > 0, fnp.sin, fnp.cos, x),
        lambda x: lax.switch(np.int32(7), [fnp.sin, fnp.cos], x),
        lambda x: lax.switch(x.argmax(), [fnp.sin], x),
        lambda x: lax.scan(lambda c, y: (c + y, c), 0.0, x)[1],
        lambda x: lax.while_loop(lambda c: c[0] < 2, lambda c: c + 1, x),
        lambda x: lax.fori_loop(0, 2, lambda i, c: c * 2, x),
    ],
)
def test_results_outside_transforms_are_of_the_kind_of_the_arguments(call):
    got = call(np.arange(3.0))
    assert type(got) is fnp.ndarray and got.flags.writeable
    assert isinstance(call(jnp.arange(3.0)), jax.Array)
    same(call(jnp.arange(3.0)), got)


def test_a_predicate_that_jax_traces_or_holds_chooses_as_any_other():
    def f(p):
        return lax.cond(p, lambda: 1.0, lambda: 2.0)

    assert float(f(jnp.array(True))) == 1.0 and isinstance(f(jnp.array(True)), jax.Array)
    assert float(jax.jit(f)(False)) == 2.0
    assert float(jax.jit(lambda: f(True))()) == 1.0
    assert isinstance(f(np.bool_(True)), np.ndarray)


def test_the_former_ways_to_give_operands_are_taken():
    same(lax.cond(True, lambda x: x["a"], lambda x: 0.0, operand={"a": 3.0}), 3.0)
    same(lax.cond(False, lambda _: 1.0, lambda _: 2.0, operand=None), 2.0)
    same(lax.switch(1, [lambda x: x, lambda x: -x], operand=3.0), -3.0)
    same(lax.cond(False, 1.0, lambda x: x, 2.0, lambda y: -y), -2.0)
    same(lax.cond(true_fun=fnp.sin, pred=True, false_fun=fnp.cos, operand=0.0), 0.0)
    same(lax.switch(1, (f for f in (fnp.sin, fnp.cos)), 0.0), 1.0)
    with pytest.raises(ArgumentError, match=r"by position or one as `operand`; got both"):
        lax.cond(True, lambda x: x, lambda x: x, 1.0, operand=2.0)


def small(x):
    return {"a": x, "b": x}


def large(x):
    return {"a": x, "b": fnp.ones(3)}


@pytest.mark.parametrize(
    ("call", "error", "parts"),
    [
        (lambda: lax.cond(True, small, large, 1.0), BranchTypeError,
         ["cond: all branches must return values of one type; got output['b']: ~f64[] of true_fun "
          "and f64[3] of false_fun", "true_fun is small (test_control_flow_under_vmap.py:",
          "false_fun is large", "lax.cond(True, small, large", "Convert the result"]),
        (lambda: lax.cond(True, small, lambda x: {"a": x, "c": x}, 1.0), BranchTypeError,
         ["got dict with the keys 'a', 'c' for dict with the keys 'a', 'b' from false_fun",
          "only true_fun returns output['b']", "only false_fun returns output['c']",
          "true_fun is small"]),
        (lambda: lax.switch(0, [lambda: 1, lambda: 2, lambda: (3,)]), BranchTypeError,
         ["got tuple of 1 for a leaf from branches[2]", "only branches[2] returns"]),
        (lambda: lax.switch(0, [lambda: 1, lambda: True, lambda: 2]), BranchTypeError,
         ["output: ~i64[] of branches[0], branches[2] and bool[] of branches[1]"]),
        (lambda: lax.cond(True, 1.0, lambda x: x, 1.0), ArgumentError,
         ["cond: `true_fun` must be a function; got float"]),
        (lambda: lax.switch(0, [lambda: 1, 2]), ArgumentError,
         ["switch: `branches[1]` must be a function; got int"]),
        (lambda: lax.switch(0, 3), ArgumentError,
         ["switch: the branches must be a sequence of functions; got int"]),
        (lambda: lax.switch(0, small), ArgumentError, ["sequence of functions; got function"]),
        (lambda: lax.cond(np.ones(2) > 0, small, small, 1.0), ShapeError,
         ["cond: the predicate must be a scalar; got bool[2]", "functx.numpy.where"]),
        (lambda: lax.cond(None, small, small, 1.0), ArgumentError,
         ["cond: the predicate must be a scalar; got NoneType"]),
        (lambda: lax.cond(1j, small, small, 1.0), DTypeError,
         ["must be a boolean or a real number; got ~c128[]", "x != 0"]),
        (lambda: lax.switch(1.0, [small, small], 1.0), DTypeError,
         ["switch: the index must be an integer; got ~f64[]", "astype"]),
        (lambda: lax.switch(np.arange(2), [small, small], 1.0), ShapeError,
         ["switch: the index must be a scalar; got i64[2]"]),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_branch_path_and_line(call, error, parts):
    for run in (call, functx.jit(call)):
        with pytest.raises(error) as caught:
            run()
        for part in [*parts, "test_control_flow_under_vmap.py"]:
            assert part in str(caught.value)


def test_masking_operations_print_and_parse():
    program = functx.make_ir(functx.vmap(logarithm, (0, None)))(ELEMENTS, W)
    assert "masked_operand[borrow_active=True]" in str(program)
    assert functx.Program.parse(str(program)) == program
    assert {"masked_operand", "any_active"} <= Primitive.registry.keys()
