"""Parameters that are not numbers, integers or flags are refused by name."""

import numpy
import pytest

import functx
import functx.numpy as np
from functx import aten, jit, lax, nn
from functx.core.errors import ArgumentError, DTypeError, ValueRangeError

X = numpy.ones((2, 4), "float32")
ROW = numpy.ones((1, 5, 2), "float32")
KERNEL = numpy.ones((3, 2, 2), "float32")
CLASSES = numpy.array([0, 1])
HEADS = numpy.ones((2, 3, 1, 4), "float32")
KEY = functx.random.key(0)

NUMBERS = {
    "smooth_l1_loss: beta": lambda v: nn.smooth_l1_loss(X, X, beta=v),
    "huber_loss: delta": lambda v: nn.huber_loss(X, X, delta=v),
    "cross_entropy: label_smoothing": lambda v: nn.cross_entropy(X, CLASSES, label_smoothing=v),
    "dropout: rate": lambda v: nn.dropout(X, v, KEY),
    "dot_product_attention: scale": lambda v: nn.dot_product_attention(
        HEADS, HEADS, HEADS, scale=v
    ),
    "huber_loss_backward: delta": lambda v: aten.huber_loss_backward(1.0, X, X, "mean", v),
}
INTEGERS = {
    "nll_loss: ignore_index": lambda v: nn.nll_loss(X, CLASSES, ignore_index=v),
    "cross_entropy: ignore_index": lambda v: nn.cross_entropy(X, CLASSES, ignore_index=v),
    "embedding: padding_idx": lambda v: nn.embedding(CLASSES, X, v),
    "one_hot: num_classes": lambda v: nn.one_hot(CLASSES, v),
    "dot_product_attention: block_size": lambda v: nn.dot_product_attention(
        HEADS, HEADS, HEADS, block_size=v
    ),
    "dot_product_attention: local_window_size": lambda v: nn.dot_product_attention(
        HEADS, HEADS, HEADS, local_window_size=v
    ),
    "conv_general_dilated: feature_group_count": lambda v: lax.conv_general_dilated(
        ROW, KERNEL, (1,), "SAME", feature_group_count=v
    ),
    "conv_transpose: strides": lambda v: lax.conv_transpose(ROW, KERNEL, (v,), "SAME"),
}
FLAGS = {
    "kl_div: log_target": lambda v: nn.kl_div(X, X, log_target=v),
    "gelu: approximate": lambda v: nn.gelu(X, v),
    "dropout: deterministic": lambda v: nn.dropout(X, 0.5, KEY, deterministic=v),
    "batch_norm: training": lambda v: nn.batch_norm(X, X[0], X[0], training=v),
    "instance_norm: use_input_stats": lambda v: nn.instance_norm(ROW, use_input_stats=v),
    "dot_product_attention: is_causal": lambda v: nn.dot_product_attention(
        HEADS, HEADS, HEADS, is_causal=v
    ),
    "conv_transpose: transpose_kernel": lambda v: lax.conv_transpose(
        ROW, KERNEL, (1,), "SAME", transpose_kernel=v
    ),
}
TWO = numpy.array([1, 2])


@pytest.mark.parametrize("what", NUMBERS)
def test_a_parameter_must_be_a_number(what):
    for value in ("mean", 1j, TWO, [0.5], object()):
        with pytest.raises(ArgumentError, match=f"{what} must be a number"):
            NUMBERS[what](value)
    with pytest.raises(ArgumentError, match="static_argnums"):
        jit(NUMBERS[what])(0.5)


@pytest.mark.parametrize("what", INTEGERS)
def test_a_parameter_must_be_an_integer(what):
    for value in ("2", 1.5, TWO.astype(float), object()):
        with pytest.raises(ArgumentError, match=f"{what} must be an integer"):
            INTEGERS[what](value)
    with pytest.raises(ArgumentError, match="static_argnums"):
        jit(INTEGERS[what])(1)


@pytest.mark.parametrize("what", FLAGS)
def test_a_parameter_must_be_a_bool(what):
    for value in ("False", TWO, [], 1.5):
        with pytest.raises(ArgumentError, match=f"{what} must be True or False"):
            FLAGS[what](value)
    with pytest.raises(ArgumentError, match="static_argnums"):
        jit(FLAGS[what])(True)


def test_numbers_that_arrays_hold_are_parameters_too():
    assert nn.huber_loss(X, X, delta=numpy.float32(0.5)) == 0.0
    assert nn.embedding(CLASSES, X, numpy.int64(1)).shape == (2, 4)
    assert (nn.gelu(X, numpy.bool_(True)) == nn.gelu(X, numpy.array(True))).all()


def test_an_alpha_of_elu_may_be_an_array_or_traced():
    alphas = numpy.array([1.0, 2.0, 1.0, 0.5], "float32")
    expected = numpy.expm1(-1.0) * alphas
    assert numpy.allclose(nn.elu(-X[0], alphas), expected)
    assert numpy.allclose(jit(nn.elu)(-X[0], alphas), expected)
    assert numpy.allclose(functx.grad(lambda a: nn.elu(-1.0, a))(1.0), numpy.expm1(-1.0))


def test_a_dtype_that_there_is_not_is_refused():
    for make in (lambda: np.zeros(3, "floating"), lambda: nn.one_hot(CLASSES, 2, dtype=7)):
        with pytest.raises(
            DTypeError, match="a dtype must be one that functx has, or its name; got"
        ):
            make()


def test_a_mode_of_rows_that_is_no_name_is_refused():
    with pytest.raises(ValueRangeError, match="mode must be"):
        np.convolve(TWO, TWO, ["full"])


def test_complex_results_of_real_convolutions_are_refused():
    with pytest.raises(DTypeError, match="preferred_element_type must be real for real operands"):
        lax.conv(ROW, ROW, (1,), "SAME", preferred_element_type="complex64")


def test_rows_of_an_empty_table_are_none_or_not_there():
    table, nothing = numpy.ones((0, 3), "float32"), numpy.zeros((2, 0), int)
    assert nn.embedding(nothing, table).shape == (2, 0, 3)
    assert numpy.isnan(jit(nn.embedding)(CLASSES, table)).all()
    assert functx.grad(lambda w: nn.embedding(nothing, w).sum())(table).shape == (0, 3)


def test_keepdims_and_lengths_are_checked_by_every_function():
    for keepdims in (TWO, "no", []):
        with pytest.raises(ArgumentError, match="keepdims must be True or False"):
            nn.var_mean(X, keepdims=keepdims)
    with pytest.raises(ArgumentError, match="num_classes must be less than"):
        nn.one_hot(CLASSES, 10**30)
