"""Ordinary differential equations against JAX, known solutions and differences."""

from functools import partial

import jax
import numpy as np
import pytest
from jax.experimental.ode import odeint as jax_odeint

import functx
import functx.numpy as xp
from functx.core.errors import FunctxError
from functx.experimental.ode import odeint

TIMES = np.linspace(0.0, 2.0, 4)
START = {"x": np.array([0.1, 0.2]), "v": np.array(1.0)}


@pytest.fixture(autouse=True)
def _doubles():
    with jax.enable_x64():
        yield


def growth(np_):
    def slope(y, t, rate, decay):
        return {"x": rate * y["x"] * (1 - y["x"]) + np_.sin(t), "v": -decay * y["v"]}

    return slope


def loss(solve, np_, asarray=lambda t: t):
    def total(y0, t, rate, decay):
        y = solve(growth(np_), y0, asarray(t), rate, decay)
        return (y["x"] ** 2).sum() + (y["v"] ** 3).sum()

    return total


def test_values_and_gradients_of_pytrees_equal_those_of_jax():
    arguments = START, TIMES, 1.5, 0.7
    found, expected = [
        framework.jit(framework.value_and_grad(loss(solve, np_, jax.numpy.asarray), (0, 1, 2, 3)))(
            *arguments
        )
        for framework, solve, np_ in ((functx, odeint, xp), (jax, jax_odeint, jax.numpy))
    ]
    for value, want in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert value.dtype == want.dtype
        np.testing.assert_allclose(value, want, rtol=1e-4)


def test_forward_mode_and_second_derivatives_equal_differences():
    solve = partial(odeint, rtol=1e-11, atol=1e-11)
    f = lambda rate: loss(solve, xp)(START, TIMES, rate, 0.7)  # noqa: E731
    step = 1e-3
    rates = 1.5 + step * np.array([-1.0, 0.0, 1.0])
    values = functx.jit(functx.vmap(f))(rates)
    slope, second = functx.jit(lambda r: functx.jvp(functx.grad(f), (r,), (1.0,)))(1.5)
    np.testing.assert_allclose(slope, (values[2] - values[0]) / (2 * step), rtol=1e-4)
    np.testing.assert_allclose(second, (values[2] - 2 * values[1] + values[0]) / step**2, rtol=1e-3)
    tangent = functx.jit(lambda r: functx.jvp(f, (r,), (1.0,))[1])(1.5)
    np.testing.assert_allclose(tangent, slope, rtol=1e-9)


def test_each_element_of_a_batch_has_its_own_steps():
    end = lambda rate: odeint(lambda y, t: -rate * y, 1.0, np.array([0.0, 1.0]))[-1]  # noqa: E731
    rates = np.array([0.5, 3.0, 40.0])
    values, slopes = functx.jit(functx.vmap(functx.value_and_grad(end)))(rates)
    np.testing.assert_allclose(values, np.exp(-rates), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(slopes, -np.exp(-rates), rtol=1e-5, atol=1e-7)


def test_times_fall_and_repeat():
    found = odeint(lambda y, t: -y, 1.0, np.array([1.0, 0.5, 0.0]))
    np.testing.assert_allclose(found, np.exp([0.0, 0.5, 1.0]), rtol=1e-7)
    slope = functx.jacfwd(lambda t: odeint(lambda y, t: -y, 1.0, t)[-1])(np.array([1.0, 0.0]))
    np.testing.assert_allclose(slope, np.exp(1.0) * np.array([1.0, -1.0]), rtol=1e-6)
    again = odeint(lambda y, t: y, np.ones(2), np.array([0.0, 0.0, 1.0]))
    np.testing.assert_allclose(again, np.exp([[0, 0], [0, 0], [1, 1]]), rtol=1e-7)
    assert odeint(lambda y, t: y, np.ones(2), np.array([0.0])).shape == (1, 2)


def test_a_slope_may_be_a_list_of_as_many_numbers():
    found = odeint(lambda y, t: [y[1], -y[0]], np.array([0.0, 1.0]), np.array([0.0, np.pi]))
    np.testing.assert_allclose(found[1], [0.0, -1.0], atol=1e-6)


def test_complex_values_and_single_precision():
    turn = odeint(lambda y, t: 1j * y, np.complex128(1.0), np.array([0.0, np.pi]))
    np.testing.assert_allclose(turn[-1], -1.0, atol=1e-6)
    with jax.enable_x64(False):
        end = odeint(lambda y, t: -y, np.float32(1.0), np.array([0.0, 1.0], "f4"), rtol=1e-5)
        assert end.dtype == np.float32
        np.testing.assert_allclose(end[-1], np.exp(-1.0), rtol=1e-4)


def test_the_default_tolerance_holds_in_single_precision_where_the_slope_jumps():
    def slope(y, t):
        return xp.where(t <= 2.0, 1.0, xp.where((t >= 5.0) & (t <= 7.0), -1.0, 0.0))

    with jax.enable_x64(False):
        ends = odeint(slope, np.float32(0.0), np.array([0.0, 5.0, 10.0], "f4"), hmax=1.0)
    np.testing.assert_allclose(ends, [0.0, 2.0, 0.0], atol=1e-4)


def test_a_solution_that_is_not_reached_is_nan():
    few = odeint(lambda y, t: -y, 1.0, np.array([0.0, 10.0]), mxstep=3)
    pole = odeint(lambda y, t: y * y, 1.0, np.array([0.0, 2.0]))
    assert few[0] == pole[0] == 1.0 and np.isnan(few[1]) and np.isnan(pole[1])
    short = odeint(lambda y, t: -y, 1.0, np.array([0.0, 1.0]), hmax=0.01)
    np.testing.assert_allclose(short[1], np.exp(-1.0), rtol=1e-9)


@pytest.mark.parametrize(
    "call",
    [
        lambda: odeint(lambda y, t: y, 1.0, np.array([0, 1])),
        lambda: odeint(lambda y, t: y, 1.0, np.float64(1.0)),
        lambda: odeint(lambda y, t: (y, y), 1.0, np.array([0.0, 1.0])),
        lambda: odeint(lambda y, t: xp.ones((3, 2)), np.ones((2, 3)), np.array([0.0, 1.0])),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call):
    with pytest.raises(FunctxError):
        call()
