"""`check_grads` passes right derivatives and names wrong ones."""

import numpy as np
import pytest
from jax.extend.mlir.dialects import stablehlo

import functx
from functx.core.primitive import Primitive
from functx.ops.arithmetic import mul, neg
from functx.ops.autodiff import stop_gradient
from functx.ops.contraction import matmul
from functx.ops.families import Unary
from functx.ops.transcendental import cos, exp, sin, tanh
from functx.testing import check_grads, f32, sample


class WrongSine(Unary):
    """sin, pushed forward rightly and pulled back with the wrong sign."""

    samples = (sample(f32[3]),)

    def derivative(self, out, x):
        return cos(x)

    def vjp(self, ct, out, args, active):
        return [mul(ct, neg(cos(args[0])))]

    def lower(self, ctx, x):
        return stablehlo.sine(x)


del Primitive.registry[WrongSine.name]


def test_derivatives_of_functions_of_trees_pass_to_the_second_order():
    def layer(parameters, x, n):
        return {"y": tanh(matmul(x, parameters["w"])), "count": n}

    x = np.full((3, 2), 0.3, np.float32)
    check_grads(layer, ({"w": np.ones((2, 3), np.float32)}, x, 3), order=2)


def test_derivatives_to_the_third_order_pass():
    check_grads(lambda x: mul(x, sin(x)), (0.7,), order=3)


def test_derivatives_of_complex_functions_pass():
    check_grads(lambda x: exp(mul(x, x)), (np.ones(3) * 1j + 0.2,), order=2)


def test_derivatives_of_transformed_functions_pass():
    check_grads(functx.grad(lambda x: mul(x, sin(x))), (0.7,), order=1)
    check_grads(functx.jit(sin), (np.ones(2, np.float32),), order=1)


def test_arguments_are_checked_in_float64_whatever_the_switch():
    seen = []
    check_grads(lambda x: seen.append(x.dtype) or sin(x), (np.float32(1.0),), order=1)
    assert set(seen) == {np.dtype("float64")}


def test_a_wrong_derivative_is_named_by_its_mode():
    with pytest.raises(AssertionError, match=r"vjp of .* must match a central difference"):
        check_grads(lambda x: WrongSine()(x), (1.0,), order=1)
    check_grads(lambda x: WrongSine()(x), (1.0,), order=1, modes=("fwd",))


def test_a_wrong_second_derivative_is_named_by_its_path():
    def linear_at_second_sight(x):
        return mul(sin(stop_gradient(x)), x)

    with pytest.raises(AssertionError, match="jvp of"):
        check_grads(linear_at_second_sight, (1.0,), order=1)


def test_tolerances_and_step_can_be_given():
    check_grads(lambda x: WrongSine()(x), (1.0,), order=1, atol=10.0)
    with pytest.raises(AssertionError):
        check_grads(sin, (1.0,), order=1, eps=50.0)


def test_orders_and_modes_that_do_not_exist_are_refused():
    with pytest.raises(functx.core.errors.ValueRangeError, match="order must be at least 1"):
        check_grads(sin, (1.0,), order=0)
    with pytest.raises(functx.core.errors.ValueRangeError, match="modes among"):
        check_grads(sin, (1.0,), order=1, modes=("forward",))
