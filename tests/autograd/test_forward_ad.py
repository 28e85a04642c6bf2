"""Dual numbers: values, views and writes, levels, and their mistakes."""

import threading
import weakref
from contextlib import nullcontext

import numpy as onp
import pytest

import functx
import functx.numpy as np
from functx.autograd import Variable, forward_ad, grad, inference_mode, no_grad, saved_tensors_hooks
from functx.autograd.forward_ad import dual_level, make_dual, unpack_dual
from functx.core.errors import (
    AutogradError,
    AutogradInTransformError,
    DualLevelError,
    DualValueError,
)

POINT = onp.array([0.5, 2.0], "float32")
DIRECTION = onp.array([1.0, -3.0], "float32")


def function(x):
    return np.sin(x) * x[::-1] + functx.jit(np.exp)(x)


def test_results_of_duals_are_duals():
    with dual_level():
        x = make_dual(Variable(2.0), Variable(1.0))
        y = unpack_dual(x * x)
    assert (float(y.primal), float(y.tangent)) == (4, 4)


def test_tangents_are_those_of_jvp_and_ignore_no_grad():
    with dual_level(), no_grad():
        _, tangent = unpack_dual(function(make_dual(POINT, DIRECTION)))
    expected = functx.jvp(function, (POINT,), (DIRECTION,))[1]
    onp.testing.assert_allclose(tangent, expected, rtol=1e-5)


def test_both_parts_are_differentiable_backwards():
    x, t = (Variable(a, requires_grad=True) for a in (POINT, DIRECTION))
    with dual_level():
        primal, tangent = unpack_dual(np.sin(make_dual(x, t)))
        value, slope = grad(primal.sum() + 2 * tangent.sum(), [x, t])
    onp.testing.assert_allclose(value, np.cos(POINT) - 2 * np.sin(POINT) * DIRECTION, rtol=1e-5)
    onp.testing.assert_allclose(slope, 2 * np.cos(POINT), rtol=1e-5)


def test_the_tangent_is_taken_as_it_is_and_lives_as_long_as_the_level():
    t = Variable(DIRECTION)
    with dual_level():
        x = make_dual(Variable(POINT), t)
        assert unpack_dual(x).tangent is t
        assert unpack_dual(Variable(POINT)).tangent is None
    assert unpack_dual(x).tangent is None
    with dual_level():
        assert unpack_dual(x).tangent is None


def test_a_dual_shares_the_memory_of_its_primal_and_views_have_views_of_the_tangent():
    x = Variable(POINT)
    with dual_level():
        dual = make_dual(x, DIRECTION)
        first = unpack_dual(dual[:1])
        assert float(first.tangent[0]) == 1
        dual *= 2
        primal, tangent = unpack_dual(dual)
        onp.testing.assert_array_equal(primal, 2 * POINT)
        onp.testing.assert_array_equal(tangent, 2 * DIRECTION)
    onp.testing.assert_array_equal(x, 2 * POINT)


def test_levels_are_opened_and_closed_one_at_a_time():
    with pytest.raises(DualLevelError, match="must be open"):
        make_dual(POINT, DIRECTION)
    with pytest.raises(DualLevelError, match="no open level"):
        forward_ad.exit_dual_level()
    level = forward_ad.enter_dual_level()
    with pytest.raises(DualLevelError, match="second one") as error:
        forward_ad.enter_dual_level()
    assert "functx.jvp" in str(error.value)
    with pytest.raises(DualLevelError, match="while"):
        forward_ad.exit_dual_level(level=level + 1)
    forward_ad.exit_dual_level(level=level)
    with pytest.raises(ZeroDivisionError), dual_level():
        raise ZeroDivisionError
    with pytest.raises(DualLevelError):
        forward_ad.exit_dual_level()


def test_parts_that_do_not_fit_are_named():
    with dual_level():
        with pytest.raises(DualValueError, match="shape and dtype"):
            make_dual(POINT, DIRECTION[:1])
        with pytest.raises(ValueError, match="floating point"):
            make_dual(onp.array([1, 2]), onp.array([1, 2]))


def test_duals_are_made_of_known_values_that_are_not_dual():
    with dual_level() as level:
        dual = make_dual(POINT, DIRECTION, level=level)
        assert unpack_dual(dual, level=level + 1).tangent is None
        for parts in ((dual, DIRECTION), (POINT, dual)):
            with pytest.raises(DualValueError, match="must not be dual itself"):
                make_dual(*parts)
        with pytest.raises(AutogradError, match="while a dual level is open; got level"):
            functx.jit(lambda x: make_dual(x, x))(POINT)
        for transform in (functx.vmap, functx.grad):
            with pytest.raises(AutogradInTransformError, match=r"functx\.jvp"):
                transform(lambda x: unpack_dual(make_dual(x, x)).tangent)(POINT)
            with pytest.raises(
                AutogradInTransformError, match="unpack_dual: it must not be called"
            ):
                transform(lambda x: unpack_dual(x).primal)(POINT)
        tangent = unpack_dual(functx.jit(lambda x: x * dual)(POINT)).tangent
    onp.testing.assert_allclose(tangent, POINT * DIRECTION)


def test_inference_mode_switches_dual_numbers_off():
    with dual_level(), inference_mode():
        assert unpack_dual(make_dual(POINT, DIRECTION)).tangent is None


def test_a_rule_for_cotangents_gives_tangents_as_under_jvp():
    @functx.custom_vjp
    def f(x):
        return x * 2

    f.defvjp(lambda x: (x * 2, None), lambda _, ct: (ct * 5,))
    with dual_level():
        tangent = unpack_dual(f(make_dual(POINT, DIRECTION))).tangent
    onp.testing.assert_array_equal(tangent, 5 * DIRECTION)
    onp.testing.assert_array_equal(functx.jvp(f, (POINT,), (DIRECTION,))[1], 5 * DIRECTION)


@pytest.mark.parametrize(("create_graph", "packs"), [(True, False), (False, False), (True, True)])
def test_gradients_of_duals_are_dual(create_graph, packs):
    def function(x):
        return (np.sin(x) * x[::-1] + functx.jit(np.exp)(x) * x**3).sum()

    expected = functx.hvp(function, (POINT,), (DIRECTION,))[0]
    x = Variable(POINT, requires_grad=True)
    with dual_level(), saved_tensors_hooks(lambda x: x, lambda x: x) if packs else nullcontext():
        dual = make_dual(x, DIRECTION)
        (gradient,) = grad(function(dual), dual, create_graph=create_graph)
        primal, tangent = unpack_dual(gradient)
    onp.testing.assert_allclose(primal, functx.grad(function)(POINT), rtol=1e-5)
    onp.testing.assert_allclose(tangent, expected, rtol=1e-5)


def test_a_level_that_a_thread_leaves_open_goes_with_the_thread():
    kept = []

    def work():
        forward_ad.enter_dual_level()
        dual = make_dual(Variable(3.0), Variable(1.0))
        forward_ad.keep_until_exit(dual)
        kept.append(weakref.ref(dual))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert kept[0]() is None
