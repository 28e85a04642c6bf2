"""`functx.tools.cost`: flops and bytes against XLA's count, and by the lines of the user."""

import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.core.errors import ArgumentError
from functx.tools import cost
from functx.tools.cost import format_count

X, W = onp.ones((16, 24), "float32"), onp.ones((24, 8), "float32")
IMAGE, KERNEL = onp.ones((2, 10, 10, 3), "float32"), onp.ones((3, 3, 3, 4), "float32")


def convolution(a, b):
    layouts = ("NHWC", "HWIO", "NHWC")
    return fx.lax.conv_general_dilated(a, b, (1, 1), "VALID", dimension_numbers=layouts)


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        (lambda x, w: x @ w, (X, W)),
        (lambda x, w: x @ w, (X.astype("complex64"), W.astype("complex64"))),
        (convolution, (IMAGE, KERNEL)),
        (np.tanh, (X,)),
        (lambda x: x.sum(0), (X,)),
        (fx.nn.softmax, (X,)),
        (lambda x: np.where(x > 0, x, 0.0), (X,)),
    ],
)
def test_the_work_is_that_which_xla_counts(fun, args):
    total = cost(fun)(*args).total
    known = fx.jit(fun).lower(*args).cost_analysis()
    assert total.flops == known.get("flops", 0)
    assert total.transcendentals == known.get("transcendentals", 0)
    assert not total.is_lower_bound


def test_factorizations_and_transforms_have_the_work_of_their_algorithms():
    s = onp.eye(16, dtype="float32")
    assert cost(np.linalg.solve)(s, s).total.flops == round(2 * 16**3 / 3) + 2 * 16**3
    assert cost(np.linalg.cholesky)(s).total.flops == round(16**3 / 3)
    wave = onp.ones((4, 1024), "complex64")
    assert cost(np.fft.fft)(wave).total.flops == 4 * 5 * 1024 * 10
    assert cost(np.linalg.solve)(s[:0, :0], s[:0, :0]).total.flops == 0


def test_steps_of_loops_count_as_often_as_they_run():
    def steps(x):
        return fx.lax.scan(lambda c, row: (c * row + 1.0, None), x[0], x)[0]

    assert cost(steps)(X).total.flops == 2 * 24 * 16
    doubled = cost(lambda x: fx.lax.while_loop(lambda c: c.sum() < 5, lambda c: c * 2.0, x))(X)
    assert doubled.total.is_lower_bound and doubled.total.flops == 2 * X.size
    assert ">" in str(doubled)
    both = cost(lambda x: fx.lax.cond(x[0, 0] > 0, np.sin, lambda v: v * v @ v.T @ v, x))(X)
    assert both.operations["dot_general"].flops > 0 and "sin" not in both.operations


def test_costs_are_those_of_lines_and_of_operations():
    def loss(w, x):
        h = np.tanh(x @ w)
        return h.sum()

    table = cost(fx.grad(loss))(W, X)
    forward, backward = [
        next(c for line, c in table.lines.items() if "tanh" in line.text and line.is_backward == b)
        for b in (False, True)
    ]
    assert forward.flops == 2 * 16 * 24 * 8 and forward.transcendentals == 16 * 8
    assert backward.flops > forward.flops
    assert sum(c.flops for c in table.lines.values()) == table.total.flops
    assert sum(c.flops for c in table.operations.values()) == table.total.flops
    assert "h = np.tanh(x @ w) (backward)" in str(table)


def test_elementwise_operations_that_are_fused_move_no_bytes():
    table = cost(lambda x: np.sin(x * 2.0) + 1.0)(X)
    assert table.total.bytes == 2 * X.nbytes


def test_what_is_unknown_is_a_lower_bound():
    def host(x):
        return fx.pure_callback(onp.sin, x, x)

    assert cost(host)(X).total.is_lower_bound
    with pytest.raises(ArgumentError, match="must be a function"):
        cost(3)


def test_counts_have_three_digits():
    assert [format_count(n) for n in (0, 7, 999, 1000, 12345, 10**6, 2.5e18)] == [
        *("0", "7", "999", "1 k", "12.3 k", "1 M", "2.5e+03 P")
    ]
