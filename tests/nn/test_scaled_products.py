"""Products of arrays in formats of 8 and 4 bits with scales."""

import ml_dtypes
import numpy as np
import pytest

import functx
from functx import errors, nn

RANDOM = np.random.RandomState(0)
ROWS, COLUMNS = (RANDOM.standard_normal(shape).astype("float32") for shape in ((32, 64), (64, 32)))
DIMENSIONS = ((1,), (0,)), ((), ())
LARGEST = {"mxfp8": 448, "nvfp4": 6}


def rounded(x, config, scale):
    """`x` with rows of blocks in a format, by the dtypes of ml_dtypes."""
    blocks = x.reshape(-1, config.block_size) / scale
    scales = np.abs(blocks).max(1, keepdims=True) / LARGEST[config.mode]
    if config.mode == "mxfp8":
        scales = 2.0 ** np.ceil(np.log2(scales))
    else:
        scales = scales.astype(ml_dtypes.float8_e4m3fn).astype("float32")
    limit = LARGEST[config.mode]
    elements = np.clip(blocks / scales, -limit, limit).astype(config.data_type)
    return (elements.astype("float32") * scales * scale).reshape(x.shape)


@pytest.mark.parametrize(("mode", "scale"), [("mxfp8", None), ("nvfp4", None), ("nvfp4", 0.5)])
def test_operands_are_rounded_to_the_format(mode, scale):
    config = nn.get_scaled_dot_general_config(mode, scale)
    out = nn.scaled_dot_general(ROWS, COLUMNS, DIMENSIONS, configs=[config] * 3)
    unit = scale or 1.0
    expected = rounded(ROWS, config, unit) @ rounded(COLUMNS.T, config, unit).T
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-4)
    zeros = nn.scaled_dot_general(ROWS * 0, COLUMNS, DIMENSIONS, configs=[config] * 3)
    np.testing.assert_array_equal(zeros, 0)


@pytest.mark.parametrize(("mode", "error"), [("mxfp8", 0.1), ("nvfp4", 0.2)])
def test_derivatives_are_near_those_of_the_exact_product(mode, error):
    configs = [nn.get_scaled_dot_general_config(mode)] * 3

    def loss(product):
        return lambda x, y: (product(x, y) ** 2).sum()

    def product(x, y):
        return nn.scaled_dot_general(x, y, DIMENSIONS, configs=configs)

    found = functx.jit(functx.grad(loss(product), (0, 1)))(ROWS, COLUMNS)
    exact = functx.grad(loss(lambda x, y: x @ y), (0, 1))(ROWS, COLUMNS)
    for x, y in zip(found, exact, strict=True):
        assert np.abs(x - y).max() < error * np.abs(y).max()
    mapped = functx.vmap(product, (0, None))(np.stack([ROWS, ROWS]), COLUMNS)
    np.testing.assert_allclose(mapped[1], product(ROWS, COLUMNS), rtol=1e-5, atol=1e-4)


def test_an_operand_beyond_the_range_has_no_derivative():
    config = nn.get_scaled_dot_general_config("nvfp4", np.float32([1e-3]))
    x = ROWS.copy()
    x[0, 0] = 100.0
    slope = functx.grad(
        lambda x: nn.scaled_dot_general(x, COLUMNS, DIMENSIONS, configs=[config] * 3).sum()
    )(x)
    np.testing.assert_array_equal(np.asarray(slope)[0, :3] == 0, [True, False, False])


def test_products_with_given_scales():
    x, y = RANDOM.rand(2, 3, 8).astype("f"), RANDOM.rand(2, 4, 8).astype("f")
    a, b = RANDOM.rand(2, 3, 2).astype("f"), RANDOM.rand(2, 4, 4).astype("f")
    expected = np.einsum("bmk,bnk->bmn", x * a.repeat(4, -1), y * b.repeat(2, -1))
    np.testing.assert_allclose(nn.scaled_matmul(x, y, a, b), expected, rtol=1e-5)
    assert nn.scaled_matmul(x, y, a, b, "bfloat16").dtype == ml_dtypes.bfloat16


def test_mistakes():
    configs = [nn.get_scaled_dot_general_config("mxfp8")] * 3
    with pytest.raises(errors.ShapeError, match="must have the shapes"):
        nn.scaled_matmul(ROWS, COLUMNS, ROWS, COLUMNS)
    with pytest.raises(errors.ValueRangeError, match="a multiple of 32 elements"):
        nn.scaled_dot_general(ROWS[:, :20], COLUMNS[:20], DIMENSIONS, configs=configs)
    with pytest.raises(errors.ValueRangeError, match="mode must be 'mxfp8' or 'nvfp4'"):
        nn.get_scaled_dot_general_config("int8")
