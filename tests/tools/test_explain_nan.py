"""`explain_nan`: the line, the equation and the values of the first nan or infinity."""

import math

import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.core.errors import ArgnumsError
from functx.tools import explain_nan

ZEROS = onp.zeros(2, "float32")


def length(x):
    s = (x * x)[0] + x[1]
    return np.sqrt(s)


def test_finite_values_are_reported_as_finite():
    found = explain_nan(lambda x: (x * x).sum())(ZEROS)
    assert not found and found.origins == ()
    assert str(found) == "the results and the derivative of lambda are finite"


def test_a_value_is_explained_by_the_equation_that_made_it():
    def share(x):
        part = x / x.sum()
        return part + 1.0

    found = explain_nan(share)(ZEROS)
    assert found and found.summary == "the result of share is nan in 2 of 2 elements"
    (birth,) = found.origins
    assert birth.line.endswith(
        "in test_a_value_is_explained_by_the_equation_that_made_it.share: part = x / x.sum()"
    )
    assert birth.equation.startswith("part: f32[2] = div x") and birth.index == (0,)
    assert birth.values["x"] == 0.0 and math.isnan(birth.values["part"]) and not birth.derivative


def test_infinities_from_which_a_nan_was_computed_are_explained():
    def logistic(x):
        y = np.exp(x)
        return y / (1 + y)

    found = explain_nan(logistic)(onp.array([1.0, 200.0], "float32"))
    nan, inf = found.origins
    assert "y / (1 + y)" in nan.line and nan.index == (1,)
    assert inf.line.endswith("y = np.exp(x)") and inf.values == {"x": 200.0, "y": math.inf}
    assert "computed from one made at" in str(found)


def test_a_derivative_is_explained_with_the_local_one_and_the_cotangent():
    found = explain_nan(length)(ZEROS)
    assert found.summary == "the derivative of length in x is nan in 1 of 2 elements"
    first, last = found.origins
    assert first.derivative and "s = (x * x)[0] + x[1]" in first.line
    assert last.line.endswith("in length: return np.sqrt(s)")
    assert (
        last.values["s"] == 0.0
        and last.local_derivatives == {"s": math.inf}
        and last.cotangent == 1.0
    )
    assert "local derivative in s = inf" in str(found) and "cotangent = 1.0" in str(found)


def in_a_scan(x):
    def step(height, fall):
        height = height - fall
        return height, np.log(height)

    return fx.lax.scan(step, x[0], x)[1].sum()


def in_a_loop(x):
    return fx.lax.while_loop(lambda c: c[1] > 0, lambda c: (np.log(c[0]), c[1] - 1), (x[0], 3))[0]


def in_a_branch(x):
    return fx.lax.cond(x[0] > 0, lambda x: np.log(x - 3.0), lambda x: x, x).sum()


def in_a_checkpoint(x):
    return fx.checkpoint(lambda x: np.log(x - 3.0))(x).sum()


def in_a_map(x):
    return fx.vmap(lambda x: np.log(x - 3.0))(x).sum()


@pytest.mark.parametrize("fun", [in_a_scan, in_a_loop, in_a_branch, in_a_checkpoint, in_a_map])
@pytest.mark.parametrize("jitted", [False, True])
def test_control_flow_is_followed_to_the_line(fun, jitted):
    found = explain_nan(fx.jit(fun) if jitted else fun)(onp.array([2.0, 3.0], "float32"))
    assert found and "log" in found.origins[-1].equation and "np.log" in found.origins[-1].line


def test_the_derivative_inside_a_loop_is_that_of_its_step():
    def f(x):
        return fx.lax.scan(lambda c, r: (np.sqrt(c * r), r), x[0], x)[0]

    found = explain_nan(f)(onp.array([1.0, 2.0, 0.0], "float32"))
    assert "np.sqrt(c * r)" in found.origins[-1].line
    assert found.origins[-1].local_derivatives and math.isinf(
        next(iter(found.origins[-1].local_derivatives.values()))
    )


def test_the_rows_of_a_reversed_loop_stay_in_their_order():
    def f(x):
        rows = fx.lax.scan(lambda c, r: (c + r, c * r), 1.0, x, reverse=True)[1]
        return np.sqrt(rows - 2.0)

    (origin,) = explain_nan(f)(onp.array([4.0, 3.0, 0.5], "float32")).origins
    # The products with the sums so far are 18, 4.5 and 0.5.
    assert origin.index == (2,)


def test_gradients_of_the_user_are_values_with_lines():
    found = explain_nan(fx.grad(length))(ZEROS)
    assert found.summary.startswith("the result of grad_length is nan")
    assert found.origins[-1].line.endswith("in length: return np.sqrt(s)")


def test_an_argument_may_be_nan():
    found = explain_nan(length)(onp.array([math.nan, 1.0], "float32"))
    assert found.origins[0].line == "the argument x" and math.isnan(found.origins[0].values["x"])


def test_arguments_are_named_by_their_path_and_chosen_by_argnums():
    def loss(params, y):
        return np.sqrt(params["w"][0]).sum() * y

    params = {"w": [ZEROS]}
    assert "params['w'][0]" in explain_nan(loss)(params, 1.0).summary
    assert not explain_nan(loss, argnums=1)(params, 1.0)
    assert explain_nan(loss, argnums=(0, 1))(params, y=1.0)


def test_values_that_where_does_not_select_are_not_reported():
    def safe(x):
        return np.where(x > 0, np.log(x), 0.0).sum()

    assert not explain_nan(safe)(ZEROS)


def test_in_place_code_is_explained_by_the_write():
    def fill(x):
        out = np.zeros(2, "float32")
        for i in range(2):
            out[i] = np.log(x[i])
        return out.sum()

    x = onp.array([1.0, -1.0], "float32")
    assert explain_nan(fill)(x).origins[-1].line.endswith("out[i] = np.log(x[i])")


def test_a_user_rule_is_the_origin_of_its_derivative():
    @fx.custom_jvp
    def rough(x):
        return x * 2.0

    rough.defjvp(lambda primals, tangents: (rough(primals[0]), tangents[0] / (primals[0] * 0.0)))
    found = explain_nan(lambda x: rough(x).sum())(onp.ones(2, "float32"))
    assert "rough(x).sum()" in found.origins[0].line and found.origins[0].derivative


def test_explain_nan_takes_a_function():
    with pytest.raises(fx.errors.ArgumentError, match="explain_nan: the first argument must be a"):
        explain_nan(3.0)


@pytest.mark.parametrize("argnums", [5, -3, "a", 1.5, (), (0, 0)])
def test_argnums_that_name_no_argument_are_refused(argnums):
    with pytest.raises(ArgnumsError, match="explain_nan"):
        explain_nan(lambda x: x * 2.0, argnums)(onp.ones(2))
