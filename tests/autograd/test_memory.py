"""Steps on Variables keep nothing while the garbage collector is off, and deep compositions agree."""

import gc

import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx import lax
from functx.autograd import Variable, checkpoint, forward_ad, grad, no_grad

ROWS = onp.ones((3, 2), "float32")


def leaf(*values):
    return Variable(list(values), requires_grad=True)


def gradient_step():
    x = leaf(1.0, 2.0)
    y = x * x
    y.register_hook(lambda g: g * 2)
    y.retain_grad()
    y.sum().backward()
    with no_grad():
        x -= 0.1 * x.grad
    return x


def write_step():
    y = leaf(1.0, 2.0, 3.0) * 1
    part = y[1:]
    part *= 2
    y[0] = part[0]
    return grad(y.sum(), y)[0]


def dual_step():
    with forward_ad.dual_level():
        x = forward_ad.make_dual(Variable(2.0), Variable(1.0))
        return forward_ad.unpack_dual(x * x).tangent


def mapped_step():
    x = leaf(1.0, 2.0)
    functx.vmap(lambda row: row * x)(ROWS).sum().backward()
    return x.grad


def scan_step():
    x = leaf(1.0, 2.0)
    y, _ = lax.scan(lambda carry, row: (carry * row + x, carry), x, ROWS)
    return grad(y.sum(), x)[0]


def jitted_step():
    x = leaf(1.0, 2.0)
    return grad(functx.jit(lambda y: y * x)(ROWS).sum(), x)[0]


def checkpoint_step():
    x = leaf(1.0, 2.0)
    return grad(checkpoint(lambda y: y * y * y, x, use_reentrant=False).sum(), x)[0]


def failing_step():
    y = leaf(1.0, 2.0) * 2
    y.register_hook(lambda g: g.missing)
    with pytest.raises(AttributeError):
        y.sum().backward()
    return y


@pytest.mark.parametrize(
    "step",
    [
        gradient_step,
        write_step,
        dual_step,
        mapped_step,
        scan_step,
        jitted_step,
        checkpoint_step,
        failing_step,
    ],
)
def test_a_step_keeps_nothing_without_the_garbage_collector(step):
    def kinds():
        return [type(x).__name__ for x in gc.get_objects()].count

    names = ("Program", "Variable", "Recorded", "OperationNode", "OperationSplit", "cell")
    for _ in range(3):
        step().tolist()
    gc.collect()
    gc.disable()
    try:
        before = kinds()
        for _ in range(4):
            step().tolist()
        after = kinds()
    finally:
        gc.enable()
    grown = {name: after(name) - before(name) for name in names}
    assert all(count < 4 for count in grown.values()), grown


def test_variables_captured_at_each_level_of_a_nest_of_transforms_get_gradients():
    x = onp.array([1.0, 2.0], "float32")
    leaves = [leaf(1.0, 2.0), leaf(3.0, 4.0), leaf(0.5, 0.6), Variable(2.0, requires_grad=True)]
    leaves.append(leaf(0.1, 0.2))

    def nest(a, b, c, d, e):
        def step(carry, row):
            return carry * e + row, (carry * d).sum()

        def loop(row):
            carry, rows = lax.scan(step, row * c, np.stack([row, row * 2]))
            return (carry * carry).sum() + rows.sum()

        def slope(row):
            return functx.grad(lambda y: loop(y * b))(row).sum()

        return functx.jit(lambda y: functx.vmap(slope)(np.stack([y * a, y])))(x).sum()

    values = [v.numpy() for v in leaves]
    every = tuple(range(5))
    first = grad(nest(*leaves), leaves, create_graph=True)
    wanted = functx.grad(nest, every)(*values)
    for found, expected in zip(first, wanted, strict=True):
        onp.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)
    second = grad(sum([g.sum() for g in first]), leaves)
    total = functx.grad(lambda *vs: sum([g.sum() for g in functx.grad(nest, every)(*vs)]), every)
    for found, expected in zip(second, total(*values), strict=True):
        onp.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)


def test_a_long_chain_is_recorded_walked_and_freed():
    x = y = Variable(1.0, requires_grad=True)
    for _ in range(3000):
        y = y + x * 1e-3
    assert grad(y, x)[0].item() == pytest.approx(4.0, rel=1e-3)
