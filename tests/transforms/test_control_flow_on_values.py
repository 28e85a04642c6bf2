"""Python's `if`, `while`, `int` and `range` on values, outside `jit`."""

import math

import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx import grad, hessian, jacfwd, jvp, linearize, vjp, vmap
from functx.core.errors import ArgumentError, ConcretizationError, DifferentiatedValueError


def newton(a):
    x = a
    while abs(x * x - a) > 1e-6 * a:
        x = 0.5 * (x + a / x)
    return x


def test_while_on_values_runs_as_long_as_it_takes():
    np.testing.assert_allclose(grad(newton)(2.0), 0.5 / 2**0.5, rtol=1e-5)
    np.testing.assert_allclose(jvp(newton, (2.0,), (1.0,))[1], 0.5 / 2**0.5, rtol=1e-5)
    np.testing.assert_allclose(vjp(newton, 2.0)[1](1.0)[0], 0.5 / 2**0.5, rtol=1e-5)
    np.testing.assert_allclose(linearize(newton, 2.0)[1](1.0), 0.5 / 2**0.5, rtol=1e-5)
    np.testing.assert_allclose(jacfwd(newton)(2.0), 0.5 / 2**0.5, rtol=1e-5)


def test_if_takes_the_branch_of_the_value():
    soft = lambda t: t * t if t < 0.5 else t - 0.25  # noqa: E731
    assert [round(float(grad(soft)(t)), 6) for t in (0.1, 2.0)] == [0.2, 1.0]


def test_control_flow_works_in_nested_derivatives():
    f = lambda x: x**3 if x > 1 else x**2  # noqa: E731
    assert float(grad(grad(f))(2.0)) == 12.0
    assert float(hessian(f)(0.5)) == 2.0
    assert float(grad(lambda x: grad(f)(x) if grad(f)(x) > 1 else x)(2.0)) == 12.0


def test_int_and_range_take_values():
    def power(x, n):
        y = 1.0
        for _ in range(int(n)):
            y = y * x
        return y

    assert float(grad(power)(2.0, 3)) == 12.0
    assert float(grad(lambda x: power(x, x))(3.0)) == 27.0


def test_values_that_are_not_differentiated_become_floats():
    f = lambda x, y: x * float(y)  # noqa: E731
    assert float(grad(f)(2.0, 3.0)) == 3.0
    assert float(grad(lambda x: x * float(functx.stop_gradient(x)))(3.0)) == 3.0


@pytest.mark.parametrize(
    "ask", [float, complex, np.asarray, lambda x: x.item(), lambda x: x.tolist()]
)
def test_plain_numbers_of_differentiated_values_are_refused(ask):
    with pytest.raises(DifferentiatedValueError) as caught:
        grad(lambda x: ask(x) * x)(1.0)
    assert "stop_gradient" in str(caught.value) and "grad(lambda)" in str(caught.value)


def test_a_value_captured_from_outside_a_map_is_concrete_inside_it():
    def f(x):
        return vmap(lambda y: y * 2.0 if x > 0 else y)(xp.ones(3)).sum() * x

    assert float(grad(f)(1.0)) == 6.0


def test_long_loops_evaluate_each_equation_once():
    def f(x):
        n = 0
        while x < 300.0:
            x, n = x + 1.0, n + 1
        return x * n

    assert float(grad(f)(0.5)) == 300.0


def test_a_value_that_jit_lacks_is_asked_for_with_a_cure_for_the_asking():
    cures = {
        "fori_loop": lambda n: [0 for _ in range(n)],
        "functx.lax.switch": lambda n: [1, 2][n],
        "functx.numpy in place of math": lambda n: math.sin(n),
    }
    for cure, f in cures.items():
        with pytest.raises(ConcretizationError, match=rf"(?s)needs the value.*{cure}"):
            functx.jit(f)(1)


def test_a_shape_that_jit_traces_is_said_to_come_from_an_argument():
    with pytest.raises(ArgumentError, match=r"(?s)known while tracing.*argument `n`.*static"):
        functx.jit(lambda n: xp.zeros((2, n)))(3)


@pytest.mark.parametrize("transform", [functx.jit, grad])
def test_an_exception_of_the_users_own_about_a_traced_value_stays_as_it_is(transform):
    def refuse(x):
        raise ValueError(f"bad step: {x}")

    with pytest.raises(ValueError, match="bad step: Traced<") as caught:
        transform(refuse)(1.0)
    assert type(caught.value) is ValueError
