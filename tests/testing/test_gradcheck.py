"""`gradcheck`: each of its checks passes what is right and finds the bug planted for it."""

import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.core.errors import ArgumentError, ValueRangeError
from functx.testing import check_grads, gradcheck, gradgradcheck

X = onp.array([0.5, 1.5])
Z = onp.array([1.0 + 2.0j, 0.5 - 1.0j])
ALL = {
    "check_forward_ad": True,
    "check_batched_grad": True,
    "check_batched_forward_grad": True,
    "check_grad_dtypes": True,
}


def with_rule(fwd, bwd):
    """The identity times 2, with such a rule."""

    @fx.custom_vjp
    def double(x):
        return x * 2.0

    double.defvjp(fwd, bwd)
    return double


def plain(x):
    return x * 2.0, None


@pytest.mark.parametrize("fast_mode", [False, True])
@pytest.mark.parametrize(
    ("fun", "inputs"),
    [
        (lambda x: x * np.sin(x), X),
        (lambda x, y: (x @ y, {"product": x * y}), (X, X + 1.0)),
        (lambda x, n: x * n, (X, onp.arange(2))),
        (lambda z: z * z * np.conj(z), Z),
        (lambda z: (np.abs(z), np.exp(z)), Z),
        (lambda x: x + 1.0j * x**2, X),
        (lambda x: (x**2, np.argmax(x)), X),
        (lambda x: np.argmax(x), X),
        (lambda x: x.sum(), onp.zeros((0, 3))),
        (lambda d: d["a"] * d["b"][0], ({"a": X, "b": [X]},)),
    ],
    ids=["real", "several", "integer input", "complex", "real of complex", "complex of real",
         "integer output beside", "integer output", "empty", "pytree"],
)  # fmt: skip
def test_right_derivatives_pass_every_check(fun, inputs, fast_mode):
    assert gradcheck(fun, inputs, fast_mode=fast_mode, **ALL) is True


@pytest.mark.parametrize("fun", [lambda x: x**3, lambda x: np.exp(x).sum(), np.abs])
@pytest.mark.parametrize("x", [X, Z], ids=["real", "complex"])
def test_right_second_derivatives_pass(fun, x):
    assert gradgradcheck(fun, x) is True


def test_second_derivatives_are_taken_at_the_cotangents_given():
    assert gradgradcheck(lambda x: (x**2, x**3), X, [onp.ones(2), onp.zeros(2)])


@pytest.mark.parametrize("fast_mode", [False, True])
def test_a_wrong_jacobian_is_shown_beside_that_of_differences(fast_mode):
    wrong = with_rule(plain, lambda _, ct: (3.0 * ct,))
    with pytest.raises(fx.errors.GradcheckError) as caught:
        gradcheck(lambda n, x: (x, wrong(x)), (1, X), fast_mode=fast_mode)
    message = str(caught.value)
    assert (
        "the Jacobian of output 1 in input 1 by reverse mode must be that of differences" in message
    )
    assert "[[3. 0.]" in message and "by differences:\n" in message
    assert isinstance(caught.value, RuntimeError)


def test_failure_is_false_where_no_exception_is_wanted():
    wrong = with_rule(plain, lambda _, ct: (3.0 * ct,))
    assert gradcheck(wrong, X, raise_exception=False) is False


def test_a_wrong_forward_rule_is_found():
    @fx.custom_jvp
    def double(x):
        return x * 2.0

    double.defjvp(lambda primals, tangents: (double(*primals), tangents[0] * 5.0))
    with pytest.raises(fx.errors.GradcheckError, match="by forward mode"):
        gradcheck(double, X, check_forward_ad=True, check_backward_ad=False)


def test_a_wrong_second_derivative_is_found():
    cube = fx.custom_vjp(lambda x: x**3)
    cube.defvjp(lambda x: (x**3, x), lambda x, ct: (ct * 3.0 * fx.stop_gradient(x) ** 2,))
    assert gradcheck(cube, X)
    with pytest.raises(fx.errors.GradcheckError, match="the gradient of"):
        gradgradcheck(cube, X)


def test_a_rule_that_ignores_its_cotangent_is_found():
    rule = with_rule(plain, lambda _, ct: (2.0 * np.ones_like(ct),))
    with pytest.raises(fx.errors.GradcheckError, match="must be 0 for cotangents of 0"):
        gradcheck(rule, onp.array(1.5))


def test_a_rule_that_gives_something_else_each_time_is_found():
    random = onp.random.default_rng(0)

    def noisy(ct):
        noise = fx.pure_callback(lambda x: x + 1e-7 * random.normal(size=x.shape), ct, ct)
        return (2.0 * noise,)

    rule = with_rule(plain, lambda _, ct: noisy(ct))
    with pytest.raises(fx.errors.GradcheckError, match=r"must be deterministic.*nondet_tol=0\.0"):
        gradcheck(rule, onp.array(1.5))


def test_an_integer_output_that_follows_the_input_is_found():
    with pytest.raises(fx.errors.GradcheckError, match="output 0 has no derivative"):
        gradcheck(lambda x: np.astype(x * 1e9, int), X)


def test_a_rule_that_cannot_be_mapped_is_found():
    class Twice(fx.Primitive):
        """Twice the operand, without a rule for batches."""

        def abstract_eval(self, x):
            return x

        def lower(self, ctx, x):
            return ctx.via_jax(lambda x: 2.0 * x, x)

    rule = with_rule(plain, lambda _, ct: (Twice()(ct),))
    try:
        assert gradcheck(rule, X)
        with pytest.raises(fx.errors.GradcheckError, match="must work under vmap, for output 0"):
            gradcheck(rule, X, check_batched_grad=True)
    finally:
        del fx.Primitive.registry["twice"]


def test_inputs_that_cannot_be_checked_are_refused():
    with pytest.raises(
        fx.errors.ArgumentError, match="at least one input must be an inexact array"
    ):
        gradcheck(lambda n: n, onp.arange(3))
    with pytest.raises(fx.errors.ArgumentError, match="input 1, which repeats elements"):
        gradcheck(lambda x, y: x * y, (X, onp.broadcast_to(onp.array([1.0]), (2,))))
    with pytest.raises(fx.errors.ArgumentError, match="at least one output must be inexact"):
        gradgradcheck(np.argmax, X)


def test_coarse_inputs_are_warned_of():
    with pytest.warns(UserWarning, match="input 0 is float32"):
        assert not gradcheck(np.sin, X.astype("float32"), raise_exception=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"check_backward_ad": False}, "check_forward_ad or check_backward_ad must be on"),
        ({"check_batched_forward_grad": True}, "must come with check_forward_ad"),
        (
            {"check_backward_ad": False, "check_forward_ad": True, "check_batched_grad": True},
            "must come with check_backward_ad",
        ),
    ],
)
def test_switches_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(fx.errors.GradcheckModeError, match=message) as caught:
        gradcheck(np.sin, X, **options)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, AssertionError)


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_functions_that_write_to_their_arguments_are_checked_on_copies(check):
    def scaled(x):
        x *= x
        x[0] += x[1] ** 2
        return x

    x = onp.array([1.0, 2.0])
    assert check(scaled, x, check_forward_ad=True, check_batched_grad=True)
    check_grads(scaled, (x,), order=2)
    assert x.tolist() == [1.0, 2.0]


def test_gradcheck_says_which_of_its_own_arguments_is_wrong():
    x = onp.array([1.0])
    with pytest.raises(ArgumentError, match="the first argument must be a function; got int"):
        gradcheck(3, x)
    with pytest.raises(ArgumentError, match="gradcheck: eps must be a number"):
        gradcheck(abs, x, eps="small")
    for eps in (0.0, -1e-6, onp.nan):
        with pytest.raises(ValueRangeError, match="eps must be positive and finite"):
            gradcheck(abs, x, eps=eps)
