"""What was not selected has no influence: neither its cotangents nor its tangents leak."""

import math

import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx import lax, nn, ops
from functx.ops.families import Inexact

INF = math.inf
X = onp.asarray([0.0, 1.0, 4.0], "float32")
NEGATIVE = onp.asarray([-1.0, 1.0, 4.0], "float32")
KEPT = onp.asarray([False, True, True])
LOG = [0.0, 1.0, 0.25]
ROOT = [0.0, 0.5, 0.25]


class UserLog(Inexact, abstract=True):
    def derivative(self, out, x):
        return ops.div(1.0, x)

    def decompose(self, x):
        return ops.log(x)


class LogWithRules(UserLog, abstract=True):
    def jvp(self, primals, tangents):
        return self(*primals), ops.div(*tangents, *primals)

    def vjp(self, ct, out, args, active):
        return [ops.div(ct, *args)]


def overwritten(x):
    y = np.log(x)
    y[0] = 0.0
    return y.sum()


def overwritten_by_mask(x):
    y = np.log(x)
    y[x <= 0] = 0.0
    return y.sum()


def scanned(x):
    def step(total, a):
        return total + np.where(a > 0, np.sqrt(a), 0.0), total

    return lax.scan(step, np.float32(0.0), x)[0]


def branches(x):
    return fx.vmap(lambda x: lax.cond(x > 0, np.log, lambda x: x * 0.0, x))(x).sum()


# The sum of what each function of x gives has this gradient in x.
CASES = {
    "where": (lambda x: np.where(x > 0, np.log(x), 0.0), X, LOG),
    "where of an operand": (lambda x: np.sqrt(np.where(x > 0, x, 0.0)), X, ROOT),
    "where of a quotient": (lambda x: np.where(x > 0, 1 / x, 0.0), X, [0.0, -1.0, -1 / 16]),
    "where in where": (
        lambda x: np.where(x != 4, np.where(x > 0, 1 / (x - 4), 2.0), 0.0),
        X,
        [0.0, -1 / 9, 0.0],
    ),
    "a product of two": (
        lambda x: np.where(KEPT, x, 0.0) * np.where(KEPT, 1 / x, 0.0),
        X,
        [0.0, 0.0, 0.0],
    ),
    "a chain": (
        lambda x: np.where(x > 0, np.exp(-np.sqrt(x)), 0.0),
        X,
        [0.0, -0.5 * math.exp(-1), -0.25 * math.exp(-2)],
    ),
    "an operation of the user": (lambda x: np.where(KEPT, UserLog()(x), 0.0), X, LOG),
    "rules of the user": (lambda x: np.where(KEPT, LogWithRules()(x), 0.0), X, LOG),
    "inf times what is left out": (
        lambda x: np.where(KEPT, x, 0.0) * onp.asarray([INF, 1.0, 2.0], "float32"),
        X,
        [0.0, 1.0, 2.0],
    ),
    "nan times what is left out": (
        lambda x: np.where(KEPT, x * onp.asarray([math.nan, 1.0, 2.0], "float32"), 0.0),
        X,
        [0.0, 1.0, 2.0],
    ),
    "a scalar condition": (lambda x: np.where(x.min() > 0, np.log(x).sum(), x.sum()), X, [1.0] * 3),
    "gathered after": (
        lambda x: np.where(KEPT, np.log(x), 0.0)[onp.asarray([0, 1, 2, 0])],
        X,
        LOG,
    ),
    "gathered before": (lambda x: np.take(np.log(x), onp.asarray([1, 2])), X, LOG),
    "compressed": (lambda x: np.log(x)[KEPT], X, LOG),
    "multiplied after": (lambda x: np.where(KEPT, np.log(x), 0.0) @ np.ones(3), X, LOG),
    "multiplied before": (lambda x: np.where(KEPT, np.log(np.eye(3) @ x), 0.0), X, LOG),
    "summed along": (lambda x: np.cumsum(np.where(KEPT, np.log(x), 0.0)), X, [0.0, 2.0, 0.25]),
    "multiplied along": (
        lambda x: np.where(KEPT[::-1], np.cumprod(np.sqrt(x)[::-1]), 0.0),
        X,
        [0.0, 1.0, 0.5],
    ),
    "a loop": (scanned, X, ROOT),
    "maximum of a logarithm": (lambda x: np.maximum(np.log(x), -5.0), X, LOG),
    "minimum of a quotient": (lambda x: np.minimum(1 / x, 5.0), X, [0.0, -1.0, -1 / 16]),
    "relu of a logarithm": (lambda x: nn.relu(np.log(x)), X, [0.0, 0.0, 0.25]),
    "clip of a logarithm": (lambda x: np.clip(np.log(x), -5.0, 5.0), X, LOG),
    "root of a maximum": (lambda x: np.sqrt(np.maximum(x, 0.0)), NEGATIVE, ROOT),
    "root of relu": (lambda x: np.sqrt(nn.relu(x)), X, ROOT),
    "root of clip": (lambda x: np.sqrt(np.clip(x, 0.0, 3.0)), X, [0.0, 0.5, 0.0]),
    "root of abs": (lambda x: np.sqrt(np.abs(x)), X, ROOT),
    "largest logarithm": (lambda x: np.log(x).max(), X, [0.0, 0.0, 0.25]),
    "sum where": (lambda x: np.sum(np.log(x), where=KEPT), X, LOG),
    "mean where": (lambda x: np.mean(np.log(x), where=KEPT), X, [0.0, 0.5, 0.125]),
    "max where": (
        lambda x: np.max(np.log(x), where=KEPT, initial=-9.0),
        X,
        [0.0, 0.0, 0.25],
    ),
    "prod where": (lambda x: np.prod(np.sqrt(x), where=KEPT), X, [0.0, 1.0, 0.25]),
    "std where": (lambda x: np.std(np.sqrt(x), where=KEPT), X, [0.0, -0.25, 0.125]),
    "overwritten": (overwritten, X, LOG),
    "overwritten by a mask": (overwritten_by_mask, X, LOG),
    "piecewise": (
        lambda x: np.piecewise(x, [x > 0, x <= 0], [np.log, lambda x: x * 0.0]),
        X,
        LOG,
    ),
    "select": (
        lambda x: np.select([x > 2, x > 0], [np.sqrt(x), np.log(x)], 0.0),
        X,
        [0.0, 1.0, 0.25],
    ),
    "sliced": (lambda x: np.log(x)[1:], X, LOG),
    "indexed": (lambda x: np.log(x)[1], X, [0.0, 1.0, 0.0]),
    "sliced where asked": (lambda x: lax.dynamic_slice(np.log(x), (1,), (2,)), X, LOG),
    "root of padding": (lambda x: np.sqrt(np.pad(x[1:], (1, 0))), X, ROOT),
    "root of zeros beside": (lambda x: np.sqrt(np.concatenate([x[1:], np.zeros(1)])), X, ROOT),
    "reshaped": (lambda x: np.where(KEPT[:, None], np.log(x).reshape(3, 1), 0.0), X, LOG),
    "repeated": (
        lambda x: np.sqrt(np.broadcast_to(np.where(KEPT, x, 0.0), (2, 3))),
        X,
        [0.0, 1.0, 0.5],
    ),
    "summed before a root": (
        lambda x: np.sqrt(np.where(onp.asarray([[False], [True]]), x, 0.0).sum(1)),
        X,
        [0.5 / math.sqrt(5.0)] * 3,
    ),
    "converted": (lambda x: np.where(KEPT, np.log(x).astype("float16"), 0.0), X, LOG),
    "a branch": (
        lambda x: lax.cond(False, lambda x: np.log(x).sum(), lambda x: x.sum(), x),
        X,
        [1.0] * 3,
    ),
    "branches by element": (branches, X, LOG),
    "under checkpoint": (
        lambda x: fx.checkpoint(lambda x: np.where(x > 0, np.log(x), 0.0).sum())(x),
        X,
        LOG,
    ),
    "under jit": (lambda x: fx.jit(lambda x: np.where(x > 0, np.log(x), 0.0))(x), X, LOG),
    "a jitted function": (lambda x: np.where(x > 0, fx.jit(np.log)(x), 0.0), X, LOG),
    "of a jitted selection": (
        lambda x: np.sqrt(fx.jit(lambda x: np.where(x > 0, x, 0.0))(x)),
        X,
        ROOT,
    ),
    "a jitted function of a selection": (
        lambda x: fx.jit(np.sqrt)(np.where(x > 0, x, 0.0)),
        X,
        ROOT,
    ),
    "a checkpoint": (lambda x: np.where(x > 0, fx.checkpoint(np.log)(x), 0.0), X, LOG),
    "sums of exponentials": (lambda x: nn.logsumexp(np.where(KEPT & False, x, -INF)), X, [0.0] * 3),
}


@pytest.mark.parametrize("name", CASES)
def test_derivatives_do_not_see_what_was_left_out(name):
    f, x, wanted = CASES[name]

    def loss(x):
        return np.sum(f(x))

    def derivatives(x):
        tangent = fx.linearize(loss, x)[1](np.ones_like(x))
        by_batch = fx.vmap(fx.grad(loss))(x[None])[0]
        return fx.grad(loss)(x), fx.jacfwd(loss)(x), by_batch, tangent

    *found, tangent = fx.jit(derivatives)(x)
    for gradient in found:
        onp.testing.assert_allclose(gradient, wanted, rtol=2e-3, atol=1e-6)
    onp.testing.assert_allclose(tangent, sum(wanted), rtol=2e-3, atol=1e-6)


SECOND = {
    "where": (CASES["where"][0], X, [0.0, -1.0, -1 / 16]),
    "where of an operand": (CASES["where of an operand"][0], X, [0.0, -0.25, -1 / 32]),
    "maximum of a logarithm": (CASES["maximum of a logarithm"][0], X, [0.0, -1.0, -1 / 16]),
    "root of relu": (CASES["root of relu"][0], X, [0.0, -0.25, -1 / 32]),
    "sliced": (CASES["sliced"][0], X, [0.0, -1.0, -1 / 16]),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_do_not_see_it_either(name):
    f, x, wanted = SECOND[name]

    def loss(x):
        return np.sum(f(x))

    def curvatures(x):
        ones = np.ones_like(x)
        return (
            fx.jvp(fx.grad(loss), (x,), (ones,))[1],
            fx.grad(lambda x: fx.grad(loss)(x).sum())(x),
            fx.jacfwd(fx.jacfwd(loss))(x) @ ones,
            fx.grad(lambda x: fx.jvp(loss, (x,), (ones,))[1])(x),
        )

    for found in fx.jit(curvatures)(x):
        onp.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def primitives(program):
    return [eqn.primitive.name for eqn in program]


def test_programs_that_leave_nothing_out_have_no_masks():
    def mlp(w, x):
        return ((np.tanh(x @ w) @ w.T) ** 2).mean()

    for derivative in (fx.grad(mlp), fx.jacfwd(mlp)):
        program = fx.make_ir(derivative)(onp.ones((3, 2), "float32"), onp.ones((4, 3), "float32"))
        assert "select" not in primitives(program)


def test_what_both_branches_of_a_selection_read_and_updates_at_known_places_have_no_masks():
    def both_branches(x):
        y = np.log(x)
        return np.where(y > 0, y, np.exp(np.where(y > 0, 0.0, y))).sum()

    def positive(x):
        return nn.elu(np.log(x)).sum()

    def written(x):
        return (np.zeros(5).at[onp.array([1, 4, 1])].add(np.log(x)) ** 2).sum()

    x = onp.array([0.5, 2.0, 3.0], "float32")
    for f in (positive, written):
        names = primitives(fx.make_ir(fx.grad(f))(x))
        assert names[names.index("log") :].count("or") == 0
        assert names[-1] == "div"
    # Comparisons that are written twice are two, and keep the mask.
    assert "or" in primitives(fx.make_ir(fx.grad(both_branches))(x))
    onp.testing.assert_allclose(fx.grad(both_branches)(x), [1.0, 0.5, 1 / 3], rtol=1e-5)


def test_masks_end_where_no_local_derivative_can_be_infinite():
    def relu_layers(w, x):
        return ((nn.relu(nn.relu(x @ w + 1.0) * 2.0 - 1.0) @ w.T) ** 2).sum()

    w, x = onp.ones((3, 2), "float32"), onp.ones((4, 3), "float32")
    names = primitives(fx.make_ir(fx.grad(relu_layers))(w, x))
    # Backward the slope of each relu, and no masks.
    assert names.count("relu") == names.count("select") == 2
