"""Anomaly detection: warnings with source lines, nan from pullbacks, and the flags."""

import inspect
import warnings

import numpy as onp
import pytest

import functx.numpy as np
from functx.autograd import (
    Function,
    Variable,
    detect_anomaly,
    grad,
    is_anomaly_check_nan_enabled,
    is_anomaly_enabled,
    set_detect_anomaly,
)
from functx.core.errors import AnomalyError


def leaf(value):
    return Variable(value, requires_grad=True)


def flags():
    return is_anomaly_enabled(), is_anomaly_check_nan_enabled()


class Fails(Function):
    """The identity, whose rule raises."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        raise ZeroDivisionError("rule")


class GivesNan(Function):
    """The sum of two arrays, with a gradient of nan for the second."""

    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient * onp.nan


class Doubles(Function):
    """`2 * x`, whose pullback calls `Fails` in the derivative of it."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return Fails.apply(gradient) * 2


def texts(record):
    return [str(w.message) for w in record]


def test_detect_anomaly_warns_when_made_at_the_line_of_the_user():
    with pytest.warns(UserWarning, match="debugging alone") as record:
        detect_anomaly()
    assert len(record) == 1 and record[0].filename == __file__


def test_a_rule_that_raises_is_shown_with_the_forward_line_and_keeps_its_error():
    x = leaf(2.0)
    with pytest.warns(UserWarning) as record, detect_anomaly():
        line = inspect.currentframe().f_lineno + 1
        y = Fails.apply(x) * 3
        with pytest.raises(ZeroDivisionError, match=r"^rule"):
            y.backward()
    made, shown = texts(record)
    assert "detect_anomaly" in made
    assert "the pullback of `FailsBackward` failed" in shown
    assert f"test_anomaly.py:{line} in " in shown and "y = Fails.apply(x) * 3" in shown
    assert record[1].filename == __file__ and record[1].lineno == line + 2


def test_without_forward_lines_the_warning_says_how_to_get_them():
    x = leaf(2.0)
    y = Fails.apply(x)
    with (
        pytest.warns(UserWarning) as record,
        pytest.raises(ZeroDivisionError),
        detect_anomaly(),
    ):
        y.backward()
    assert "No source line of it is known" in texts(record)[1]


def test_a_nan_from_a_pullback_names_rule_and_output_number():
    x, y = leaf(2.0), leaf(3.0)
    with pytest.warns(UserWarning) as record, detect_anomaly():
        z = GivesNan.apply(x, y)
        with pytest.raises(
            AnomalyError, match=r"`GivesNanBackward` .* nan in output number 1"
        ) as error:
            z.backward()
    assert isinstance(error.value, RuntimeError) and "z = GivesNan" in texts(record)[1]
    z = GivesNan.apply(x, y)
    z.backward()
    assert onp.isnan(float(y.grad))


def test_masked_gradients_that_are_nan_pass():
    x = leaf([0.0, 4.0])
    with set_detect_anomaly(True):
        np.where(x > 0, np.sqrt(x), 0.0).sum().backward()
        onp.testing.assert_array_equal(x.grad, [0.0, 0.25])
        with (
            pytest.warns(UserWarning, match=r"0 \* np.sqrt"),
            pytest.raises(AnomalyError, match="sqrt"),
        ):
            (0 * np.sqrt(x)).sum().backward()


def test_check_nan_false_keeps_the_lines_alone():
    x = leaf(0.0)
    with pytest.warns(UserWarning) as record, detect_anomaly(check_nan=False):
        assert flags() == (True, False)
        (np.sqrt(x) * 0).backward()
        assert onp.isnan(float(x.grad))
        with pytest.raises(ZeroDivisionError):
            Fails.apply(x).backward()
    assert len(record) == 2 and "Fails.apply(x).backward()" in texts(record)[1]


def test_a_derivative_of_a_derivative_shows_the_lines_of_its_parent():
    x = leaf(2.0)
    with pytest.warns(UserWarning) as record, detect_anomaly():
        y = Doubles.apply(x)
        seed = leaf(1.0)
        (slope,) = grad(y, x, seed, create_graph=True)
        with pytest.raises(ZeroDivisionError):
            slope.backward()
    shown = texts(record)[1]
    assert (
        "the pullback of `FailsBackward` failed" in shown and "(slope,) = grad(y, x, seed" in shown
    )
    assert "part of the pullback of `DoublesBackward`" in shown and "y = Doubles.apply(x)" in shown
    assert len(record) == 2


def test_leaving_restores_both_flags_and_set_detect_anomaly_acts_when_made_without_a_warning():
    assert flags() == (False, True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mode = set_detect_anomaly(1, check_nan=False)
        assert flags() == (True, False)
        for _ in range(2):
            with mode:
                assert flags() == (True, False)
                with set_detect_anomaly(False):
                    assert flags() == (False, True)
                assert flags() == (True, False)
            assert flags() == (False, True)
        set_detect_anomaly(True)
        set_detect_anomaly(False, check_nan=True)
    assert flags() == (False, True)


def test_a_batched_walk_and_nested_derivatives_work_while_anomalies_are_detected():
    x = leaf([1.0, 2.0])
    with set_detect_anomaly(True):
        (rows,) = grad(x * x, x, onp.eye(2, dtype="float32"), is_grads_batched=True)
        onp.testing.assert_array_equal(rows, onp.diag([2.0, 4.0]))
        (slope,) = grad((x**3).sum(), x, create_graph=True)
        (second,) = grad(slope.sum(), x)
        onp.testing.assert_array_equal(second, [6.0, 12.0])
