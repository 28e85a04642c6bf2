"""`autograd.gradcheck` and `gradgradcheck`: walks and dual numbers, compared with differences."""

import jax
import numpy as onp
import pytest

import functx.numpy as np
import functx.testing
from functx.autograd import Function, Variable, gradcheck, gradgradcheck, once_differentiable
from functx.core.errors import (
    ArgumentError,
    AutogradError,
    EmptyInputsError,
    GradcheckError,
    GradcheckModeError,
    GradientCountError,
)

ALL = {
    "check_forward_ad": True,
    "check_batched_grad": True,
    "check_batched_forward_grad": True,
    "check_grad_dtypes": True,
}


@pytest.fixture(autouse=True)
def _wide_numbers():
    with jax.enable_x64():
        yield


def leaf(*values):
    return Variable(list(values), requires_grad=True)


class Square(Function):
    """x * x, with the factor `factor` in its gradient."""

    factor = 2.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @classmethod
    def backward(cls, ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x * Square.factor


@pytest.mark.parametrize("fast_mode", [False, True])
def test_right_derivatives_pass_every_check(fast_mode):
    x, z = leaf(0.5, 1.5), leaf(1.0 + 2.0j, 0.5 - 1.0j)
    assert gradcheck(lambda x, y: (x * np.sin(y), x.sum()), (x, leaf(1.0, 2.0)), **ALL)
    assert gradcheck(lambda z: (z * z * np.conj(z), np.abs(z)), z, fast_mode=fast_mode, **ALL)


def test_right_second_derivatives_pass():
    assert gradgradcheck(lambda x: x**3, leaf(0.5, 1.5), check_forward_ad=True)
    options = {"gen_non_contig_grad_outputs": True, "check_fwd_over_rev": True}
    assert gradgradcheck(lambda x: x**3, leaf(0.5, 1.5), **options)
    assert gradgradcheck(lambda z: z * z * np.conj(z), leaf(1.0 + 2.0j))
    assert gradgradcheck(lambda x: x**2, leaf(0.5, 1.5), Variable([1.0, -2.0]))
    with pytest.raises(GradientCountError, match="got 1 for 2"):
        gradgradcheck(lambda x: (x**2, x), leaf(0.5, 1.5), Variable([1.0, -2.0]))


def test_the_checks_of_testing_are_those_of_the_walk_for_variables(monkeypatch):
    assert functx.testing.gradgradcheck(Square.apply, leaf(0.5, 1.5))
    monkeypatch.setattr(Square, "factor", 3.0)
    with pytest.raises(GradcheckError, match="output 0 in input 0 by reverse mode"):
        functx.testing.gradcheck(Square.apply, leaf(0.5, 1.5))
    assert functx.testing.gradcheck(np.sin, Variable([0.5, 1.5]))


def test_inputs_that_do_not_require_gradients_pass_through():
    seen = []

    def function(x, y, flag):
        seen.append((type(y), flag))
        return np.sin(x) * y.detach()

    assert gradcheck(function, (leaf(0.5, 1.5), Variable([2.0, 3.0]), "as it is"))
    assert set(seen) == {(Variable, "as it is")}
    with pytest.raises(EmptyInputsError, match="gradcheck: at least one input") as error:
        gradcheck(lambda x: x, Variable([1.0]))
    assert isinstance(error.value, ValueError)


def test_inputs_that_repeat_elements_are_refused():
    with pytest.raises(AutogradError, match="input 1, which repeats elements"):
        gradcheck(lambda x, y: x * y, (leaf(0.5, 1.5), np.broadcast_to(leaf(1.0), (2,))))


def test_outputs_that_do_not_require_gradients_are_not_compared():
    assert gradcheck(lambda x: (x * x, x.detach(), np.argmax(x)), leaf(0.5, 1.5))
    with pytest.raises(GradcheckError, match="output 0 has no derivative"):
        gradcheck(lambda x: x.detach(), leaf(0.5, 1.5))
    assert gradcheck(lambda x: ("a label", None, 3), leaf(0.5, 1.5))


def test_the_rules_of_functions_are_those_of_the_walk(monkeypatch):
    assert gradcheck(Square.apply, leaf(0.5, 1.5))
    monkeypatch.setattr(Square, "factor", 3.0)
    with pytest.raises(GradcheckError, match="output 0 in input 0 by reverse mode"):
        gradcheck(Square.apply, leaf(0.5, 1.5))
    assert gradcheck(Square.apply, leaf(0.5, 1.5), raise_exception=False) is False


def test_a_rule_that_fails_on_a_missing_gradient_is_a_failure_with_a_hint():
    class Both(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, a, b):
            return a * 2 + b * 3

    with pytest.raises(GradcheckError, match=r"must take None, .*got TypeError"):
        gradcheck(Both.apply, leaf(0.5, 1.5))
    assert gradcheck(Both.apply, leaf(0.5, 1.5), check_undefined_grad=False)


def test_a_rule_must_take_none_for_its_only_output():
    class Single(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2

        @staticmethod
        def backward(ctx, a):
            return onp.full(1, 7.0) if a is None else a * 2

    with pytest.raises(GradcheckError, match="the same for None as for zeros"):
        gradcheck(Single.apply, leaf(0.5))


def test_a_gradient_that_is_marked_once_differentiable_fails_the_second_check():
    class Once(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @once_differentiable
        def backward(ctx, gradient):
            return gradient * 2

    assert gradcheck(Once.apply, leaf(0.5))
    with pytest.raises(GradcheckError, match="gradgradcheck"):
        gradgradcheck(Once.apply, leaf(0.5))
    assert gradgradcheck(Once.apply, leaf(0.5), raise_exception=False) is False


def test_a_function_of_random_results_is_found():
    calls = []

    class Drifting(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            calls.append(0)
            return gradient * (2 + 1e-7 * len(calls))

    with pytest.raises(GradcheckError, match="deterministic"):
        gradcheck(Drifting.apply, leaf(0.5))
    assert gradcheck(Drifting.apply, leaf(0.5), nondet_tol=1e-3, check_undefined_grad=False)


def test_coarse_inputs_are_warned_of_and_wrong_options_refused():
    with pytest.warns(UserWarning, match="input 0 is float32") as caught:
        gradcheck(lambda x: x * 2, leaf(onp.float32(1.0)), raise_exception=False)
    assert caught[0].filename == __file__
    with pytest.raises(ArgumentError, match="got epsilon"):
        gradcheck(lambda x: x, leaf(1.0), epsilon=1e-3)
    with pytest.raises(GradcheckModeError):
        gradcheck(lambda x: x, leaf(1.0), check_backward_ad=False)
