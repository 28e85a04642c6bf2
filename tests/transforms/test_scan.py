"""Loops of a known length against unrolled Python, what they keep for a derivative, and their errors."""

from __future__ import annotations

import itertools
import re
from functools import partial

import jax
import numpy as np
import pytest

import functx
from functx import lax
from functx import numpy as fnp
from functx.core.errors import (
    ArgumentError,
    AxisSizeError,
    CarryTypeError,
    ValueRangeError,
)
from functx.testing import reference

RANDOM = np.random.RandomState(0)
W = RANDOM.randn(3, 3) * 0.5
ROWS = RANDOM.randn(4, 3)
TABLE = RANDOM.randn(5, 3)


@pytest.fixture(autouse=True)
def single_precision():
    with jax.enable_x64(False):
        yield


@pytest.fixture
def double_precision():
    with jax.enable_x64(True):
        yield


def unrolled(f, init, xs=None, length=None, reverse=False):
    """What `scan` means, step by step."""
    leaves = jax.tree.leaves(xs)
    length = len(leaves[0]) if leaves else length
    carry, ys = init, [None] * length
    for i in reversed(range(length)) if reverse else range(length):
        carry, ys[i] = f(carry, jax.tree.map(lambda x, i=i: x[i], xs))
    stacked = [fnp.stack(rows) for rows in zip(*map(jax.tree.leaves, ys), strict=True)]
    return carry, jax.tree.unflatten(jax.tree.structure(ys[0]), stacked)


# Functions of a number and of a way to loop, to be nested under transforms.


def recurrent(scan, x):
    w, bias = x * W, fnp.sin(x) * ROWS[0]

    def step(carry, row):
        h = fnp.tanh(carry["h"] @ w + row["a"] * (carry["n"] + 1) + bias)
        return {"h": h, "n": carry["n"] + 1}, (h * row["a"], carry["n"])

    rows = {"a": ROWS * x}
    carry, (ys, ns) = scan(step, {"h": ROWS[1] * x, "n": 0}, rows, reverse=True)
    return (carry["h"] ** 2).sum() + (ys * ns[:, None]).sum()


def nested(scan, x):
    def step(state, row):
        inner, rows = scan(lambda c, y: (c * y + state[0], c * row.sum() * x), state.sum(), row)
        return state + inner * fnp.sin(row * x), rows

    state, rows = scan(step, ROWS[0] * x, fnp.asarray(ROWS)[:3])
    return (state @ W).sum() + rows.prod(axis=0).sum()


def branching(scan, x):
    @functx.jit
    def block(s, row):
        return fnp.cos(s * row) @ W.T

    def step(carry, row):
        kept, state, unused = carry
        state = lax.cond(
            row.sum() > 0, lambda s: block(s, row), lambda s: s * kept + W[0] * x, state
        )
        return (kept, state, unused * state), None

    return scan(step, (x, ROWS[2] * x, fnp.ones(3)), ROWS)[0][1].sum()


def looking_up(scan, x):
    table, weights = TABLE * x, fnp.stack([W * x, W.T + x, W * W])

    def step(h, i):
        row = lax.dynamic_index_in_dim(table, i + 1, 0, keepdims=False)
        h = functx.checkpoint(lambda h: fnp.tanh(weights[i] @ h + row))(h)
        return h, table[2] * h.sum()

    h, ys = scan(step, ROWS[3] * x, fnp.arange(3))
    return h.sum() + (ys**2).sum()


def sharing(scan, x):
    w = W * x

    def step(carry, row):
        c, h = carry
        c, h = fnp.sin(w @ h + w.T @ row) + c, c * x
        return (h, c), (c, row, None)

    (h, c), (ys, rows, _) = scan(step, (ROWS[0] * x, ROWS[1]), ROWS * ROWS * x)
    return (h * c).sum() + (ys * rows).sum()


FUNCTIONS = [recurrent, nested, branching, looking_up, sharing]
VERBS = {
    "jvp": lambda f: lambda x: functx.jvp(f, (x,), (fnp.ones_like(x),))[1],
    "vjp": lambda f: lambda x: functx.vjp(f, x)[1](fnp.ones_like(x))[0],
    "vmap": lambda f: lambda x: functx.vmap(f)(fnp.stack([x, x * x])).sum(),
    "jit": functx.jit,
}


def value(verbs, function, scan):
    """The function under `verbs` at a point, each equation by its NumPy meaning."""
    f = partial(function, scan)
    for verb in reversed(verbs):
        f = VERBS[verb](f)
    program = functx.make_ir(f)(np.float64(0.7))
    return reference.interpret_in_numpy(program, np.float64(0.7))[0]


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_nests_of_transforms_agree_with_an_unrolled_loop(function):
    wanted = {}
    for depth in range(4):
        for verbs in itertools.product(VERBS, repeat=depth):
            same = tuple("jvp" if verb == "vjp" else verb for verb in verbs if verb != "jit")
            if same not in wanted:
                wanted[same] = value(same, function, unrolled)
            got = value(verbs, function, lax.scan)
            np.testing.assert_allclose(got, wanted[same], 1e-8, 1e-8, err_msg=str(verbs))


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_a_compiled_second_derivative_agrees_with_an_unrolled_loop(function):
    f = functx.jit(functx.vmap(functx.grad(functx.grad(partial(function, lax.scan)))))
    wanted = value(("jvp", "jvp"), function, unrolled)
    np.testing.assert_allclose(f(np.array([0.7])), [wanted], 1e-8, 1e-8)


def test_a_loop_may_hold_a_loop_of_unknown_length_in_forward_mode():
    def f(lax):
        def step(c, row):
            doubled = lax.while_loop(lambda c: c < row, lambda c: c * 2.0, c)
            return doubled * 0.8, doubled

        rows = np.array([3.0, 5.0, 2.0], np.float32)
        return lambda x: sum(y.sum() for y in lax.scan(step, x, rows))

    got = functx.jit(functx.jacfwd(f(lax)))(0.8), functx.vmap(f(lax))(np.array([0.8, 3.0]))
    np.testing.assert_allclose(got[0], jax.jit(jax.jacfwd(f(jax.lax)))(0.8), 1e-6)
    np.testing.assert_allclose(got[1], jax.jit(jax.vmap(f(jax.lax)))(np.array([0.8, 3.0])), 1e-6)


# Kinds of operands

DTYPES = ["bool", "int8", "uint32", "int32", "float16", "bfloat16", "float32", "complex64"]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("length", [0, 1, 3])
def test_loops_of_every_dtype_agree_with_jax(length, wide):
    def f(lib):
        def step(carry, row):
            moved = {k: ~v if v.dtype == bool else v + row[k] for k, v in carry.items()}
            return moved, (row["int8"], carry["bfloat16"], carry["bool"])

        return lambda carry, rows: lib.lax.scan(step, carry, rows, reverse=True, unroll=2)

    with jax.enable_x64(wide):
        names = [*DTYPES, "float64", "int64"] if wide else DTYPES
        carry = {k: jax.numpy.ones(2, k) for k in names}
        rows = {k: jax.numpy.arange(2 * length).reshape(length, 2).astype(k) for k in names}
        got, wanted = f(functx)(carry, rows), jax.jit(f(jax))(carry, rows)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def test_keys_are_split_from_step_to_step():
    def f(lib):
        def step(key, _):
            key, now = lib.random.split(key)
            return key, lib.random.uniform(now, (2,))

        return lib.lax.scan(step, lib.random.PRNGKey(3), length=3)[1]

    np.testing.assert_array_equal(f(functx), f(jax))


@pytest.mark.parametrize("unroll", [2, 3, 5, 9, True, False, 0])
def test_rounds_of_several_steps_are_the_same_steps(unroll):
    f = lambda lax, **how: lax.scan(lambda c, x: (c * 0.5 + x, c), 1.0, ROWS[:, 0], **how)  # noqa: E731
    for reverse in (False, True):
        got, wanted = f(lax, unroll=unroll, reverse=reverse), f(jax.lax, reverse=reverse)
        np.testing.assert_allclose(got[0], wanted[0], 1e-6)
        np.testing.assert_allclose(got[1], wanted[1], 1e-6)
    g = lambda lax, **how: lambda x: lax.fori_loop(-1, 4, lambda i, c: c * x + i, x, **how)  # noqa: E731
    np.testing.assert_allclose(
        functx.grad(g(lax, unroll=unroll))(0.5), jax.jit(jax.grad(g(jax.lax)))(0.5), 1e-6
    )


def test_weak_types_settle_over_several_carries():
    row = np.ones(2, np.float16)
    carry, _ = lax.scan(lambda c, x: ((c[1], c[2], c[0] + x), None), (0, 0, 0), row)
    assert [x.dtype for x in carry] == [np.float16] * 3
    carry, ys = lax.scan(lambda c, _: (c + 1.5, c), 0, length=2)
    assert carry == 3.0 and ys.tolist() == [0.0, 1.5]
    start = np.float16(1)
    assert lax.scan(lambda c, _: (c * 2.0, c), start, length=1)[0].dtype == np.float16
    assert lax.map(lambda x: x * 2.0, np.ones(2, np.float16)).dtype == np.float16


def test_loops_with_nothing_in_them():
    assert lax.scan(lambda c, x: (c, x), None, None, length=2) == (None, None)
    assert lax.scan(lambda c, x: ((), {}), (), {}, length=0) == ((), {})
    c, ys = lax.scan(lambda c, x: (c, (c, x)), np.zeros((2, 0)), np.zeros((3, 0, 2)))
    assert (c.shape, ys[0].shape, ys[1].shape) == ((2, 0), (3, 2, 0), (3, 0, 2))
    assert lax.map(lambda x: x, np.zeros((0, 2))).shape == (0, 2)
    assert lax.fori_loop(3, 3, lambda i, c: (), ()) == ()


def test_carries_and_rows_handed_on_as_they_are_stay_what_they_were():
    def f(x, rows):
        (same, c), (ys, kept) = lax.scan(lambda c, r: (c, (r, c[0])), (x, x * 2.0), rows)
        return same * 3.0 + c + (ys * kept).sum()

    assert functx.jit(f)(2.0, np.ones(3, np.float32)) == 16.0
    assert functx.grad(f)(2.0, np.ones(3, np.float32)) == 8.0
    assert functx.vmap(f)(np.array([2.0]), np.ones((1, 3))).tolist() == [16.0]


def test_effects_in_a_loop_whose_results_are_not_used_take_place():
    seen = []

    def step(c, x):
        functx.debug.callback(lambda v: seen.append(float(v)), c)
        return c + x, None

    def f(x):
        lax.scan(step, x, np.ones(3, np.float32))
        return x

    functx.jit(f)(1.0)
    jax.effects_barrier()
    assert seen == [1.0, 2.0, 3.0]


# What a derivative keeps


def loops(f, *args):
    """The loops in the program of `f`."""
    return [eqn for eqn in functx.make_ir(f)(*args) if eqn.primitive.name == "scan"]


def stacked(eqn):
    """The types of the rows that a loop stacks."""
    return [repr(a) for a in eqn.primitive.program.out_avals[eqn.primitive.carries :]]


def carried(eqn):
    return [repr(a) for a in eqn.primitive.program.out_avals[: eqn.primitive.carries]]


H, V = np.ones((2, 3), np.float32), np.ones((4, 2, 3), np.float32)
M = np.ones((3, 3), np.float32)
WIDE_M, WIDE_H, WIDE_V = [np.ones(shape, np.float32) for shape in ((9, 9), (2, 9), (4, 2, 9))]
"""Weights that are too large to be summed up in each step."""


def rnn(w, u, b, h, xs):
    def step(h, x):
        h = fnp.tanh(x @ w + h @ u + b)
        return h, h

    return lax.scan(step, h, xs)[1].sum()


@pytest.mark.usefixtures("all_kept")
def test_states_that_are_returned_in_any_case_are_stacked_once():
    forwards, backwards = loops(
        functx.grad(rnn, (0, 1, 2, 3, 4)), WIDE_M, WIDE_M, WIDE_M[0], WIDE_H, WIDE_V
    )
    assert stacked(forwards) == ["f32[2,9]"]
    # The cotangents of the rows, and the factor that both products after the loop share.
    assert stacked(backwards) == ["f32[2,9]", "f32[2,9]"]
    assert carried(backwards) == ["f32[2,9]"]


@pytest.mark.usefixtures("all_kept")
def test_products_of_rows_are_summed_up_by_one_product_after_the_loop():
    derivative = functx.grad(rnn, (0, 1, 2))
    program = functx.make_ir(derivative)(WIDE_M, WIDE_M, WIDE_M[0], WIDE_H, WIDE_V)
    after = [eqn.primitive for eqn in program if eqn.primitive.name == "dot_general"]
    assert [dot.contracting_dims for dot in after] == [((0, 1), (0, 1))] * 2
    (_, backwards) = [eqn for eqn in program if eqn.primitive.name == "scan"]
    assert len(backwards.inputs) == 4  # u, the carried cotangent, rows of cotangents, the states


@pytest.mark.usefixtures("all_kept")
def test_small_products_of_rows_are_summed_up_in_the_loop():
    _, backwards = loops(functx.grad(rnn, (0, 1, 2)), M, M, M[0], H, V)
    assert (stacked(backwards), carried(backwards)) == (
        [],
        ["f32[3,3]"] * 2 + ["f32[3]", "f32[2,3]"],
    )


def test_products_of_large_rows_are_summed_up_in_the_loop():
    wide = np.ones((4, 5, 3), np.float32)
    f = functx.grad(lambda w: lax.scan(lambda c, x: (c + fnp.sin(x @ w).sum(), None), 0.0, wide)[0])
    forwards, backwards = loops(f, M[:, :1])
    assert (stacked(backwards), carried(backwards)) == ([], ["f32[3,1]"])
    assert len(stacked(forwards)) <= 1


@pytest.mark.usefixtures("all_kept")
def test_what_does_not_depend_on_the_step_is_computed_once():
    def f(w, h):
        step = lambda h, _: (fnp.sin(fnp.exp(w) @ h), None)  # noqa: E731
        return lax.scan(step, h, length=4)[0].sum()

    forwards, backwards = loops(functx.grad(f, (0, 1)), M, M[0])
    assert stacked(forwards) == ["f32[3]", "f32[3]"]
    assert "exp" not in {eqn.primitive.name for eqn in backwards.primitive.program}


@pytest.mark.usefixtures("all_kept")
def test_what_the_derivative_needs_of_each_step_is_kept_while_that_is_small():
    def backward(length):
        def step(c, _):
            return functx.nn.logsumexp(c + M, 0), None

        f = functx.grad(lambda c: lax.scan(step, c, None, length=length)[0].sum())
        forwards, backwards = loops(f, M[0])
        return stacked(forwards), {eqn.primitive.name for eqn in backwards.primitive.program}

    kept, computed = backward(5)
    assert "f32[3,3]" in kept and "exp" not in computed
    kept, computed = backward(1 << 20)
    assert "f32[3,3]" not in kept and "exp" in computed


@pytest.mark.usefixtures("all_kept")
def test_scaled_terms_of_a_step_are_added_to_one_sum():
    def f(w, c):
        step = lambda c, _: (fnp.sin(w / 3 * c).sum() - fnp.cos(w * c).sum() * 0.1, None)  # noqa: E731
        return lax.scan(step, c, length=4)[0]

    w, c = M * 0.3, np.float32(0.5)
    _, backwards = loops(functx.grad(f), w, c)
    assert carried(backwards) == ["f32[3,3]", "f32[]"]
    slopes = [
        (f(w + e, c) - f(w - e, c)) / 2e-2 for e in 1e-2 * np.eye(9, dtype="f").reshape(9, 3, 3)
    ]
    np.testing.assert_allclose(functx.grad(f)(w, c).ravel(), slopes, atol=2e-3)


def test_rows_of_operands_are_not_stacked_again():
    f = lambda h, xs: lax.scan(lambda h, x: (h * x, None), h, xs)[0].sum()  # noqa: E731
    (backwards,) = loops(functx.grad(f), M[0], M)
    assert stacked(backwards) == []
    assert len(backwards.inputs) == 2


def test_a_checkpointed_body_keeps_its_carries_alone():
    def f(w, h, xs):
        step = lambda h, x: (fnp.tanh(fnp.exp(h) @ w + x) * fnp.sin(h), None)  # noqa: E731
        return lax.scan(functx.checkpoint(step), h, xs)[0].sum()

    forwards, backwards = loops(functx.grad(f), M, H, V)
    assert stacked(forwards) == ["f32[2,3]"]
    assert stacked(backwards) == []


def test_carries_and_rows_that_nothing_needs_are_dropped():
    def f(h, xs):
        def step(carry, x):
            h, n, unused, fixed = carry
            return (h * x["a"] * fixed, n + 1, unused + h, fixed), (h, unused)

        carry, (hs, _) = lax.scan(step, (h, 0, h, h), {"a": xs, "b": xs})
        return carry[0].sum() + hs.sum()

    (loop,) = loops(f, M[0], M)
    assert (carried(loop), stacked(loop)) == (["f32[3]"], ["f32[3]"])
    assert (loop.primitive.consts, len(loop.inputs)) == (1, 3)
    forwards, backwards = loops(functx.grad(f), M[0], M)
    assert carried(forwards) == ["f32[3]"]
    assert f(M[0], M) == 12.0


def test_cotangents_that_are_zero_are_not_carried():
    def f(h, g, xs):
        step = lambda c, x: ((c[0] * x, c[1] * c[0]), c[1] * x)  # noqa: E731
        return lax.scan(step, (h, g), xs)[0][0].sum()

    (backwards,) = loops(functx.grad(f, (0, 1)), M[0], M[0], M)
    assert carried(backwards) == ["f32[3]"]
    names = [eqn.primitive.name for eqn in backwards.primitive.program]
    assert names == ["mul"]
    assert functx.grad(f, 1)(M[0], M[0], M).tolist() == [0.0] * 3


@pytest.mark.usefixtures("all_kept")
def test_rows_of_a_table_are_looked_up_again_and_summed_up_in_place():
    def f(table):
        def step(i, carry):
            table, c = carry
            return table, c * table[i] + fnp.sin(table[i + 1])

        return lax.fori_loop(0, 2, step, (table, M[0]))[1].sum()

    forwards, backwards = loops(functx.grad(f), M)
    assert set(stacked(forwards)) == {"f32[3]", "i32[]"}
    body = backwards.primitive.program
    assert [v.aval.shape for v in body.inputs].count((3, 3)) == 2  # the table and its cotangent
    assert "full" not in {eqn.primitive.name for eqn in body}
    np.testing.assert_allclose(functx.grad(f)(M * 1.0), jax.jit(jax.grad(plain_table))(M), 1e-6)


def plain_table(table):
    c = M[0]
    for i in range(2):
        c = c * table[i] + jax.numpy.sin(table[i + 1])
    return c.sum()


# Printing


@pytest.mark.usefixtures("all_kept")
def test_the_loops_of_a_gradient_read_well(golden):
    text = str(
        functx.make_ir(functx.grad(rnn, (0, 1, 2)))(WIDE_M, WIDE_M, WIDE_M[0], WIDE_H, WIDE_V)
    )
    golden("grad_scan", re.sub(" *#.*", "", text))


@functx.custom_vjp
def clipped(x):
    return x


clipped.defvjp(lambda x: (x, None), lambda _, ct: (fnp.clip(ct, -1.0, 1.0),))


@functx.custom_jvp
def doubled(x):
    return x * 2.0


doubled.defjvp(lambda x, dx: (doubled(x[0]), dx[0] * 2.0))


def everything(x, xs):
    @functx.jit
    def block(c, row):
        return clipped(c) * row + doubled(c)

    def step(c, row):
        c = lax.cond(row > 0, block, lambda c, row: c - row, c, row)
        return functx.checkpoint(fnp.sin)(c), c

    c, ys = lax.scan(step, x, xs, reverse=True, unroll=2)
    n = lax.while_loop(lambda n: n < 3, lambda n: n + 1, 0)
    return c * n + lax.fori_loop(0, 2, lambda i, a: a * ys[i], c)


@pytest.mark.parametrize(
    "f",
    [everything, functx.grad(everything, (0, 1)), functx.vmap(functx.grad(everything), (None, 0))],
    ids=["plain", "grad", "vmap-grad"],
)
def test_programs_with_loops_are_read_back_from_their_text(f):
    rows = np.ones((3, 3), np.float32)
    args = (np.float32(0.5), rows if "vmap" in getattr(f, "__name__", "") else rows[0])
    program = functx.make_ir(f)(*args)
    again = functx.Program.parse(str(program))
    assert again == program
    assert str(again) == str(functx.Program.parse(str(again)))


# Errors


def raises(error, function, *parts):
    with pytest.raises(error) as caught:
        function()
    text = str(caught.value)
    assert all(part in text for part in parts), text
    assert "test_scan.py" in text


def step_of(carry):
    return lambda c, x: (carry, x)


def bad_step(c, x):
    wide = fnp.stack([c["h"][0], x])
    return {"h": (wide, c["h"][1])}, x


THREE = np.arange(3.0)
CASES = {
    "a carry of another shape": (
        CarryTypeError, lambda: lax.scan(bad_step, {"h": (1.0, 2.0)}, THREE),
        "scan(bad_step)", "carry['h'][0]", "f32[2]", "~f32[]", "in bad_step: wide = fnp.stack",
    ),
    "a carry of another dtype": (
        CarryTypeError, lambda: lax.scan(lambda c, x: (c + 0.5, x), np.arange(2), THREE),
        "carry: ~f32[2] for i32[2]", "astype",
    ),
    "a carry of another structure": (
        CarryTypeError, lambda: lax.scan(step_of((1.0,)), 1.0, THREE), "structure", "PyTreeDef((*,))",
        "missing: carry", "new: carry[0]", "returned at test_scan.py", "return lambda c, x: (carry, x)",
    ),
    "a carry that a number takes the place of": (
        CarryTypeError, lambda: lax.scan(step_of({"a": 1}), {"a": THREE}, THREE),
        "carry['a']: ~i32[] for f32[3]", "carry['a'] made at test_scan.py", "(carry, x)",
    ),
    "a body without a pair": (
        ArgumentError, lambda: lax.scan(lambda c, x: c, 1.0, THREE), "pair (carry, y)", "f32[]",
    ),
    "a body with three results": (
        ArgumentError, lambda: lax.scan(lambda c, x: (c, x, x), 1.0, THREE), "pair", "tuple",
    ),
    "a body that is no function": (ArgumentError, lambda: lax.scan(3, 1.0, THREE), "`f`", "int"),
    "a carry that is no array": (
        ArgumentError, lambda: lax.scan(lambda c, x: (c, x), {"a": "no"}, THREE), "str", "['a']",
    ),
    "rows that are no arrays": (
        ArgumentError, lambda: lax.scan(lambda c, x: (c, x), 0, {"a": "no"}), "str", "['a']",
    ),
    "a result that is no array": (
        ArgumentError, lambda: lax.scan(lambda c, x: (c, {"y": "no"}), 0, THREE), "str", "['y']",
    ),
    "rows of different numbers": (
        AxisSizeError, lambda: lax.scan(step_of(0), 0, {"a": THREE, "b": (np.ones((2, 3)),)}),
        "2 and 3", "xs['a']: f32[3]", "xs['b'][0]: f32[2,3]",
    ),
    "a row that is a scalar": (
        AxisSizeError, lambda: lax.scan(step_of(0), 0, (THREE, 1.0)), "xs[1]", "~f32[]",
    ),
    "a length that the rows contradict": (
        AxisSizeError, lambda: lax.scan(step_of(0), 0, THREE, length=4), "length=4", "f32[3]",
    ),
    "no length": (AxisSizeError, lambda: lax.scan(step_of(0), 0), "Pass length=n"),
    "a negative length": (AxisSizeError, lambda: lax.scan(step_of(0), 0, length=-1), "-1"),
    "a fractional length": (ArgumentError, lambda: lax.scan(step_of(0), 0, length=1.5), "1.5"),
    "a traced length": (
        ArgumentError, lambda: functx.jit(lambda n: lax.scan(step_of(0), 0, length=n))(3),
        "known while tracing", "i32[]", "while_loop",
    ),
    "a fractional unroll": (
        ArgumentError, lambda: lax.scan(step_of(0), 0, THREE, unroll=1.5), "unroll", "1.5",
    ),
    "a negative unroll": (
        ValueRangeError, lambda: lax.scan(step_of(0), 0, THREE, unroll=-2), "unroll", "-2",
    ),
    "a fori_loop without a body": (
        ArgumentError, lambda: lax.fori_loop(0, 3, None, 0), "`body_fun`", "NoneType",
    ),
    "a fori_loop that changes its value": (
        CarryTypeError, lambda: lax.fori_loop(0, 3, lambda i, c: {"a": c["a"] * THREE}, {"a": 1.0}),
        "carry['a']: f32[3] for ~f32[]", "test_scan.py",
    ),
    "a fori_loop of another structure": (
        CarryTypeError, lambda: lax.fori_loop(0, 3, lambda i, c: (c, c), 1.0), "structure",
    ),
    "a fori_loop from a fraction": (
        ValueRangeError, lambda: lax.fori_loop(0.5, 3, lambda i, c: c, 0), "`lower`", "0.5", "math.ceil",
    ),
    "a fori_loop to an array": (
        TypeError, lambda: lax.fori_loop(0, np.arange(2), lambda i, c: c, 0), "`upper`", "i32[2]",
    ),
    "a fori_loop on a value that is no array": (
        ArgumentError, lambda: lax.fori_loop(0, 3, lambda i, c: c, "no"), "str", "init_val",
    ),
    "a map of no function": (ArgumentError, lambda: lax.map(None, THREE), "`f`", "NoneType"),
    "a map over a scalar": (AxisSizeError, lambda: lax.map(lambda x: x, 1.0), "map", "~f32[]"),
    "a map over nothing": (AxisSizeError, lambda: lax.map(lambda x: x, ()), "map"),
    "a map in batches of a negative size": (
        ValueRangeError, lambda: lax.map(lambda x: x, THREE, batch_size=-1), "batch_size", "-1",
    ),
    "a map in batches of a fractional size": (
        ArgumentError, lambda: lax.map(lambda x: x, THREE, batch_size=1.5), "batch_size", "1.5",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_named(case):
    error, function, *parts = CASES[case]
    raises(error, function, *parts)


def test_equal_residuals_are_saved_once():
    def loss(x):
        def step(c, _):
            return fnp.sin(c) * fnp.exp(c) + fnp.exp(c), None

        return lax.scan(step, x, None, length=3)[0]

    program = functx.make_ir(functx.grad(loss))(0.1)
    forward = next(eqn for eqn in program.equations if eqn.primitive.name == "scan")
    saved = [v for v in forward.outputs if v.aval.shape == (3,)]
    assert len(saved) == 3, program


def test_coefficients_of_cotangents_are_computed_in_the_forward_loop():
    def loss(x):
        def step(c, _):
            shifted = fnp.concatenate([c[1:], c[:1]])
            return fnp.logaddexp(c, shifted), None

        return lax.scan(step, x, None, length=3)[0].sum()

    program = functx.make_ir(functx.grad(loss))(np.arange(5.0))
    loops = [eqn for eqn in program.equations if eqn.primitive.name == "scan"]
    forward, backward = [[e.primitive.name for e in eqn.primitive.program] for eqn in loops]
    assert "exp" in forward, program
    assert {"exp", "div"}.isdisjoint(backward), program
    functx.testing.check_grads(loss, (np.arange(5.0),), order=2)
