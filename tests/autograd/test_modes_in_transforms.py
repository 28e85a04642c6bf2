"""Modes inside transforms: what is computed under no_grad is a constant; outer modes do not reach in."""

import contextlib

import jax
import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx import lax
from functx.autograd import (
    Variable,
    enable_grad,
    inference_mode,
    is_grad_enabled,
    no_grad,
    set_grad_enabled,
)
from functx.autograd import grad as autograd_grad
from functx.core.errors import AutogradError

X = onp.array([2.0, 3.0, 4.0], "float32")


def product_with_constant(x):
    with no_grad():
        assert not is_grad_enabled()
        y = x * x
        with enable_grad():
            assert is_grad_enabled()
            z = x * 3
        w = y + z
    assert is_grad_enabled()
    return x * w + z


def expect(fun, gradient, x=X, value=None):
    """`grad` of the sum of `fun`, eager, under `jit` and for each row of a batch."""

    def total(x):
        return np.sum(fun(x))

    onp.testing.assert_allclose(functx.grad(total)(x), gradient, rtol=1e-6)
    onp.testing.assert_allclose(functx.jit(functx.grad(total))(x), gradient, rtol=1e-6)
    rows = functx.vmap(functx.grad(total))(onp.stack([x, x]))
    onp.testing.assert_allclose(rows, onp.stack([gradient, gradient]), rtol=1e-6)
    if value is not None:
        onp.testing.assert_allclose(fun(functx.numpy.array(x)), value, rtol=1e-6)
        onp.testing.assert_allclose(functx.jit(fun)(x), value, rtol=1e-6)


def test_an_outer_no_grad_is_ignored_and_an_inner_one_stops_gradients():
    expect(product_with_constant, X * X + 3 * X + 3, value=X * (X * X + 3 * X) + 3 * X)
    with no_grad():
        assert functx.grad(lambda x: x**3)(2.0) == 12.0
        assert functx.grad(lambda x: x * is_grad_enabled())(2.0) == 1.0
        expect(product_with_constant, X * X + 3 * X + 3)
        _, pull = functx.vjp(product_with_constant, X)
        assert not is_grad_enabled()
    onp.testing.assert_allclose(pull(onp.ones(3, "float32"))[0], X * X + 3 * X + 3)


def test_derivatives_in_a_block_are_constants_and_those_around_it_nest():
    def slope(x):
        with no_grad():
            return functx.grad(lambda x: x**3)(x)

    assert slope(2.0) == 12.0
    assert functx.grad(lambda x: x * slope(x))(2.0) == 12.0

    def outer(x):
        return functx.grad(lambda y: product_with_constant(y) * x)(x)

    # (y y + 3 y + 3) x at y = x, where y in the first factor is a constant for each derivative.
    assert functx.grad(outer)(2.0) == 13.0


def test_forward_mode_ignores_no_grad_and_obeys_inference_mode():
    tangent = X * 0 + 1

    def square(x):
        return x * x

    def constant(x):
        with inference_mode():
            return square(x)

    def both(x):
        return x * constant(x)

    onp.testing.assert_allclose(functx.jvp(no_grad()(square), (X,), (tangent,))[1], 2 * X)
    onp.testing.assert_allclose(functx.jvp(both, (X,), (tangent,))[1], X * X)
    _, push = functx.linearize(no_grad()(square), X)
    onp.testing.assert_allclose(push(tangent), 2 * X)
    expect(both, X * X, value=X**3)
    stopped = no_grad()(square)
    assert functx.jacfwd(functx.jacrev(lambda x: x * stopped(x)))(2.0) == 4.0
    assert functx.jacrev(functx.jacfwd(lambda x: x * stopped(x)))(2.0) == 4.0


def test_set_grad_enabled_without_a_context_is_active_until_the_end_of_the_trace():
    def f(x):
        y = x * x
        mode = set_grad_enabled(False)
        z = x * 3
        mode.__enter__()
        mode.__exit__()
        w = x * y
        kept = w * z
        set_grad_enabled(False)
        return kept, x * 5 + kept

    assert functx.grad(lambda x: f(x)[0])(2.0) == 3 * 2.0**2 * 6.0
    assert functx.grad(lambda x: f(x)[1])(2.0) == 0.0 and is_grad_enabled()
    with no_grad():
        functx.jit(lambda x: set_grad_enabled(True) and x)(1.0)
        assert not is_grad_enabled()

    def step(carry, row):
        set_grad_enabled(False)
        return carry * row, row

    def loss(x):
        return lax.scan(step, np.array(1.0, "float32"), x)[0] * x[0]

    onp.testing.assert_allclose(functx.grad(loss)(X), [24.0, 0.0, 0.0])
    with pytest.raises(ZeroDivisionError):
        functx.jit(lambda x: set_grad_enabled(False) and x / (1 // 0))(1.0)
    assert is_grad_enabled()


def test_writes_in_a_block_keep_the_gradients_of_other_elements():
    def through_view(x, y):
        a = x * 1
        with no_grad():
            part = a[1:]
            part *= 2
            part += y[1:]
        return a

    def by_item(x, y):
        a = x * 1
        with no_grad():
            a[1] = a[1] * 2 + y[1]
            a[2] = y[2]
        return a

    def by_mask(x, y):
        a = x * 1
        with no_grad():
            a[x > 2.5] = np.zeros(())
        return a

    weight = onp.array([1.0, 10.0, 100.0], "float32")
    for fun in (through_view, by_item, by_mask):

        def loss(x, y, fun=fun):
            return np.sum(fun(x, y) * weight)

        along_x, along_y = functx.jit(functx.grad(loss, argnums=(0, 1)))(X, X)
        onp.testing.assert_allclose(along_x, [1.0, 0.0, 0.0])
        onp.testing.assert_allclose(along_y, [0.0, 0.0, 0.0])
    onp.testing.assert_allclose(functx.jit(through_view)(X, X), [2.0, 9.0, 12.0])
    onp.testing.assert_allclose(functx.jit(by_item)(X, X), [2.0, 9.0, 4.0])


def test_a_write_in_a_block_is_a_constant_in_a_trace_and_leaves_the_history_of_a_variable():
    def whole(x):
        a = x * 2
        with no_grad():
            a[...] = x * 5
        return a.sum()

    def in_place(x):
        a = x * 2
        with no_grad():
            a *= 5
        return a.sum()

    for fun in (whole, in_place):
        assert functx.grad(fun)(X).tolist() == [0, 0, 0]
        x = Variable(X, requires_grad=True)
        fun(x).backward()
        assert x.grad.tolist() == [2, 2, 2]


def test_arrays_made_in_a_block_take_gradients_by_later_writes():
    def f(x):
        with no_grad():
            buffer = np.zeros(3) + 0 * x
            tail = buffer[1:]
        buffer[0] = x[0] ** 2
        tail[0] = x[1] ** 2
        buffer *= 2
        return buffer + tail[0]

    expect(f, [4.0 * 2, 3 * 4.0 * 3 + 4.0 * 3, 0.0])


def test_a_buffer_made_in_a_block_takes_gradients_in_loops():
    def f(x):
        with no_grad():
            buffer = np.zeros(3) + 0 * x

        def step(i, total):
            buffer[i] = x[i] ** 2
            return total + buffer[i]

        total = lax.fori_loop(0, 3, step, np.array(0.0, "float32"))
        return buffer * total

    total = (X**2).sum()
    onp.testing.assert_allclose(
        functx.jit(functx.grad(lambda x: np.sum(f(x))))(X), 4 * X * total, rtol=1e-6
    )


def test_a_view_taken_in_a_block_shares_memory_and_is_read_as_a_constant():
    def f(x):
        a = x * 2
        with no_grad():
            view = a[1:]
        a[2] = 7.0
        return a * view[1] + view[0]

    onp.testing.assert_allclose(functx.jit(f)(X), [34.0, 48.0, 55.0])
    expect(f, [14.0, 14.0, 0.0])

    def writes(x):
        a = x * 2
        with no_grad():
            view = a[1:]
        view[0] = x[0]
        return a

    with pytest.raises(AutogradError, match=r"view made under no_grad .*got") as error:
        functx.grad(lambda x: np.sum(writes(x)))(X)
    assert "copy" in str(error.value)


def test_bodies_of_loops_and_branches_obey_the_mode():
    def scanned(x):
        def step(carry, row):
            with no_grad():
                scale = carry * row
            return carry * scale, scale + row

        return lax.scan(step, np.array(1.0, "float32"), x)

    def reference(x):
        carry, rows = np.array(1.0, "float32"), []
        for i in range(3):
            scale = functx.stop_gradient(carry * x[i])
            rows.append(scale + x[i])
            carry = carry * scale
        return carry, np.stack(rows)

    def loss(fun):
        return lambda x: fun(x)[0] + np.sum(fun(x)[1] ** 2)

    onp.testing.assert_allclose(
        functx.grad(loss(scanned))(X), functx.grad(loss(reference))(X), rtol=1e-6
    )

    def around(x):
        with no_grad():
            carry, rows = scanned(x)
            chosen = lax.cond(x[0] > 0, lambda x: x * 2, lambda x: x, x)
        return x * carry + rows + chosen

    onp.testing.assert_allclose(functx.grad(lambda x: np.sum(around(x)))(X), [scanned(X)[0]] * 3)


def test_jitted_functions_and_captured_values_in_a_block_are_constants():
    double = functx.jit(lambda x: x * 2)

    def f(x):
        with no_grad():

            def inner(y):
                return y * x

            mapped = functx.vmap(inner)(double(x))
        return mapped.sum() + x

    expect(f, onp.ones(3))


def test_decorated_functions_obey_the_mode_also_after_errors():
    @no_grad()
    def fails(x):
        x * 2
        raise KeyError

    def f(x):
        with contextlib.suppress(KeyError):
            fails(x)
        return x * no_grad(lambda x: x * x)(x)

    expect(f, X * X)


def test_autograd_grad_of_traced_values_obeys_no_grad():
    def f(x):
        y = x**3
        (slope,) = autograd_grad(y, x)
        return slope

    assert functx.grad(f)(1.0) == 6.0
    onp.testing.assert_allclose(functx.vmap(f)(X), 3 * X**2)

    def constant_slope(x):
        y = x**3
        with no_grad():
            (slope,) = autograd_grad(y, x)
        return slope * x

    assert functx.grad(constant_slope)(2.0) == 12.0

    def without_history(x):
        with no_grad():
            y = x**3
            (slope,) = autograd_grad(y, x, allow_unused=True)
            assert slope is None
        return x

    assert functx.grad(without_history)(2.0) == 1.0


def test_values_of_variables_through_functions_with_blocks():
    x = Variable(2.0, requires_grad=True)
    functx.jit(product_with_constant)(x).backward()
    assert float(x.grad) == 13.0
    x = Variable(2.0, requires_grad=True)
    product_with_constant(x).backward()
    assert float(x.grad) == 13.0


def test_requires_grad_is_not_changed_inside_a_transform():
    captured = Variable(2.0)

    def f(x):
        captured.requires_grad_()
        return x * captured

    for transform in (functx.grad(f), functx.grad(functx.jit(f))):
        with pytest.raises(AutogradError, match="must not be changed inside a transform") as error:
            transform(1.0)
        assert "functx.grad" in str(error.value)
    assert not captured.requires_grad


def test_under_a_transform_of_jax_alone_no_grad_is_refused():
    def f(x):
        with no_grad():
            y = np.square(x)
        return x * y

    with pytest.raises(AutogradError, match="JAX alone traces"):
        jax.grad(f)(2.0)
    assert float(functx.grad(f)(2.0)) == 4
