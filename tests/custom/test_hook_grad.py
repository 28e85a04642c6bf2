"""`hook_grad`: cotangents that pass through a function, under every transform."""

import jax
import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx import lax
from functx.autograd import Variable, grad
from functx.core.errors import ArgumentError, HookResultError


def squared(ct):
    return ct * ct


def hooked(x):
    return functx.hook_grad(np.sin(x), squared) * x


def slope(x):
    return x * x * onp.cos(x) + onp.sin(x)


def test_the_cotangent_passes_through_the_hook_under_every_transform():
    x, batch = onp.float32(2), onp.linspace(0.5, 2, 3, dtype="float32")
    variable = Variable(x, requires_grad=True)
    for found in (
        functx.grad(hooked)(x),
        functx.jit(functx.grad(hooked))(x),
        functx.grad(functx.jit(hooked))(x),
        functx.grad(functx.checkpoint(hooked))(x),
        functx.vjp(hooked, x)[1](onp.float32(1))[0],
        functx.grad(lambda x: lax.cond(x > 0, hooked, lambda x: x, x))(x),
        functx.grad(lambda x: lax.scan(lambda c, _: (c, hooked(c)), x, None, length=1)[1][0])(x),
        grad(hooked(variable), variable)[0],
        jax.grad(hooked)(x),
    ):
        onp.testing.assert_allclose(onp.asarray(found), slope(x), rtol=1e-5)
    for found in (
        functx.vmap(functx.grad(hooked))(batch),
        functx.grad(lambda x: functx.vmap(hooked)(x).sum())(batch),
    ):
        onp.testing.assert_allclose(found, slope(batch), rtol=1e-5)


def test_the_value_and_the_tangents_are_those_of_the_operand():
    x = onp.float32(2)
    value, tangent = functx.jvp(hooked, (x,), (onp.float32(1),))
    onp.testing.assert_allclose(value, x * onp.sin(x), rtol=1e-6)
    onp.testing.assert_allclose(tangent, onp.sin(x) + x * onp.cos(x), rtol=1e-5)


def test_hooks_are_differentiated_and_may_capture_traced_values():
    expected = 2 * 2 * onp.cos(2) - 4 * onp.sin(2) + onp.cos(2)
    onp.testing.assert_allclose(functx.grad(functx.grad(hooked))(2.0), expected, rtol=1e-5)
    onp.testing.assert_allclose(functx.hessian(hooked)(2.0), expected, rtol=1e-5)

    def scaled(x, scale):
        return functx.hook_grad(x, lambda ct: ct * scale) ** 2

    assert float(functx.grad(scaled)(3.0, 5.0)) == 30
    scales = onp.arange(3, dtype="float32")
    found = functx.grad(lambda x: functx.vmap(scaled, (None, 0))(x, scales).sum())(3.0)
    assert float(found) == 18


def test_a_hook_that_returns_none_sees_the_cotangent_and_leaves_it():
    seen = []
    found = functx.grad(lambda x: (functx.hook_grad(x, seen.append) ** 2).sum())(onp.ones(2))
    onp.testing.assert_array_equal(found, [2, 2])
    assert [ct.shape for ct in seen] == [(2,)]


def test_equal_hooks_are_not_merged_and_pytrees_are_hooked_array_by_array():
    found = functx.jit(
        functx.grad(lambda x: functx.hook_grad(x, squared) + 2 * functx.hook_grad(x, squared))
    )(1.0)
    assert float(found) == 5
    tree = {"a": 3.0, "b": 2}
    assert functx.hook_grad(tree, squared) == tree
    found = functx.grad(lambda x: 5 * functx.hook_grad({"a": x, "b": 2}, squared)["a"])(1.0)
    assert float(found) == 25


def test_the_hook_keeps_zero_cotangents_from_infinite_derivatives():
    def loss(x):
        return np.where(x > 1, functx.hook_grad(np.log(x), lambda ct: ct * 3), 0).sum()

    found = functx.grad(loss)(onp.array([0, 2], "float32"))
    onp.testing.assert_array_equal(found, [0, 1.5])


def test_mistakes_of_hooks_are_named():
    def shortened(ct):
        return ct[:1]

    with pytest.raises(HookResultError, match=r"`shortened` must return.*f32\[1\] for f32\[2\]"):
        functx.grad(lambda x: functx.hook_grad(x, shortened).sum())(onp.ones(2, "float32"))
    with pytest.raises(ArgumentError, match="must be a function"):
        functx.hook_grad(1.0, 2.0)
