"""JAX's names for the primitives: the values, types and derivatives of jax.lax."""

import inspect

import jax
import numpy as np
import pytest

from functx import lax
from functx.core.errors import (
    ArgumentError,
    AxisError,
    IndexingError,
    ShapeError,
    ValueRangeError,
)
from functx.lowering.jit import jit
from functx.transforms.grad import grad
from functx.transforms.make_ir import make_ir
from tests.numpy.agreement import Agreement, agree_at_once, derivatives, label

FLOATS = (
    "abs acosh asinh atan cbrt ceil cos cosh digamma erf erfc exp exp2 expm1 floor is_finite lgamma "
    "logistic neg reciprocal sign sin sinh square tan tanh"
)
POSITIVE = "log log1p rsqrt sqrt"
WITHIN_ONE = "acos asin atanh erf_inv"
PAIRS = "add atan2 div eq ge gt le lt max min mul ne nextafter pow rem sub"
BITS = "bitwise_and bitwise_or bitwise_xor shift_left shift_right_arithmetic shift_right_logical"

ELEMENTWISE = [
    *[(f"lax.{name}(x)", "f32[2,3]") for name in FLOATS.split() if name != "acosh"],
    *[(f"lax.{name}(lax.add(lax.abs(x), 1.0))", "f32[5]") for name in ("acosh", *POSITIVE.split())],
    *[(f"lax.{name}(lax.mul(x, 0.4))", "f32[5]") for name in WITHIN_ONE.split()],
    *[(f"lax.{name}(x, y)", "f32[2,3]", "f32[2,3]") for name in PAIRS.split()],
    *[
        (f"lax.{name}(x, 3)", "i32[5]")
        for name in ["add", "div", "eq", "max", "min", "mul", "rem", "sub"]
    ],
    *[(f"lax.{name}(x, y)", "i32[5]", "i32[5]") for name in BITS.split()[:3]],
    *[(f"lax.{name}(x, 2)", "i32[5]") for name in BITS.split()],
    ("lax.bitwise_not(x)", "i32[5]"),
    ("lax.bitwise_not(x)", "bool[5]"),
    ("lax.population_count(x)", "u8[5]"),
    ("lax.clz(x)", "i32[5]"),
    ("lax.add(x, y)", "f32[2,3]", "f32[]"),
    ("lax.mul(2.0, x)", "f32[3]"),
    ("lax.sub(x, y)", "f32[1,3]", "f32[2,3]"),
    ("lax.mul(x, y)", "f32[2,1]", "f32[1,3]"),
    ("lax.add(x, y)", "f32[1]", "f32[0]"),
    ("lax.atan2(x, y)", "f32[2,1]", "f32[2,3]"),
    ("lax.ge(x, y)", "i32[2,1]", "i32[1,3]"),
    ("lax.bitwise_xor(x, y)", "bool[1,3]", "bool[2,1]"),
    ("lax.conj(x)", "f32[4]"),
    ("lax.pow(0.5, x)", "i32[4]"),
    ("lax.add(x, 1.0)", "f32[3]"),
    ("lax.add(x, y)", "~f32[3]", "~f32[3]"),
    ("lax.integer_pow(x, 3)", "f32[4]"),
    ("lax.integer_pow(x, -2)", "f32[4]"),
    ("lax.pow(lax.abs(x), 1.5)", "f32[4]"),
    ("lax.pow(x, 2)", "f32[4]"),
    ("lax.pow(x, y)", "f32[4]", "i32[4]"),
    ("lax.polygamma(1.0, lax.add(lax.abs(x), 0.5))", "f32[4]"),
    ("lax.complex(x, y)", "f32[4]", "f32[4]"),
    ("lax.real(x)", "c64[4]"),
    ("lax.imag(x)", "c64[4]"),
    ("lax.conj(x)", "c64[4]"),
    ("lax.abs(x)", "c64[4]"),
    ("lax.round(x)", "f32[9]"),
    ("lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)", "f32[9]"),
    ("lax.round(numpy.array([0.5, 1.5, -0.5, -2.5], 'float32'))",),
    ("lax.clamp(-1.0, x, 1.0)", "f32[9]"),
    ("lax.clamp(min=x, x=y, max=z)", "f32[]", "f32[3]", "f32[3]"),
    ("lax.select(pred=x, on_true=y, on_false=z)", "bool[3]", "f32[3]", "f32[3]"),
    ("lax.select(x, y, z)", "bool[]", "f32[3]", "f32[3]"),
    ("lax.select_n(x, y, z)", "bool[3]", "f32[3]", "f32[3]"),
    ("lax.select_n(lax.convert_element_type(x, 'int32'), y, z, y)", "bool[3]", "f32[3]", "f32[3]"),
    ("lax.convert_element_type(operand=x, new_dtype='int32')", "f32[4]"),
    ("lax.convert_element_type(x, 'float32')", "~f32[4]"),
    ("lax.convert_element_type(x, bool)", "f32[4]"),
    ("lax.bitcast_convert_type(x, 'int32')", "f32[4]"),
    ("lax.bitcast_convert_type(x, new_dtype='uint8')", "f32[4]"),
    ("lax.reduce_precision(x, exponent_bits=5, mantissa_bits=3)", "f32[4]"),
]

ARRAYS = [
    ("lax.broadcast(x, (4, 5))", "f32[2]"),
    ("lax.broadcast_in_dim(x, (2, 3, 4), broadcast_dimensions=(0, 2))", "f32[2,1]"),
    ("lax.broadcast_to_rank(x, 3)", "f32[2]"),
    ("lax.reshape(x, (3, 2))", "f32[2,3]"),
    ("lax.reshape(x, new_sizes=(6,), dimensions=(1, 0))", "f32[2,3]"),
    ("lax.transpose(x, permutation=(2, 0, 1))", "f32[2,3,4]"),
    ("lax.squeeze(x, dimensions=(0, -1))", "f32[1,3,1]"),
    ("lax.expand_dims(x, dimensions=(0, 2))", "f32[3,4]"),
    ("lax.collapse(x, 1)", "f32[2,3,4]"),
    ("lax.collapse(x, 0, 2)", "f32[2,3,4]"),
    ("lax.collapse(x, -3, -1)", "f32[2,3,4]"),
    ("lax.concatenate([x, y], dimension=1)", "f32[2,3]", "f32[2,1]"),
    ("lax.stack([x, y], axis=1)", "f32[2,3]", "f32[2,3]"),
    ("lax.unstack(x, axis=1)", "f32[2,3]"),
    ("lax.split(x, [1, 2], axis=1)", "f32[2,3]"),
    ("lax.tile(x, (2, 1, 3))", "f32[1,2,3]"),
    ("lax.pad(x, 1.0, ((1, 2, 0), (0, -1, 1)))", "f32[2,3]"),
    ("lax.pad(x, y, padding_config=[(1, 0, 2)])", "f32[3]", "f32[]"),
    ("lax.rev(x, dimensions=(0, 1))", "f32[2,3]"),
    ("lax.iota('int32', 4)",),
    ("lax.broadcasted_iota(numpy.float32, (2, 3), dimension=1)",),
    ("lax.full((2, 3), 1.5)",),
    ("lax.full((2, 3), 1.5, 'int32')",),
    ("lax.full((2,), x, dtype=numpy.float16)", "f32[]"),
    ("lax.full_like(x, 2)", "f32[3]"),
    ("lax.full_like(x, 2)", "~f32[3]"),
    ("lax.full_like(x, fill_value=2.7, dtype='int32', shape=(2,))", "f32[3]"),
    ("lax.stop_gradient({'a': x, 'b': (y,)})", "f32[3]", "i32[2]"),
]

DIMENSIONS = "(((1,), (0,)), ((), ()))"
PRODUCTS = [
    (f"lax.dot_general(x, y, {DIMENSIONS})", "f32[2,3]", "f32[3,4]"),
    ("lax.dot_general(x, y, (([2], [1]), ([0], [0])))", "f32[5,2,3]", "f32[5,3,4]"),
    (f"lax.dot_general(x, y, {DIMENSIONS}, precision='highest')", "f32[2,3]", "f32[3,4]"),
    (f"lax.dot_general(x, y, {DIMENSIONS}, lax.Precision.HIGH)", "f32[2,3]", "f32[3,4]"),
    (
        f"lax.dot_general(x, y, {DIMENSIONS}, (lax.Precision.HIGH, lax.Precision.DEFAULT))",
        "f32[2,3]",
        "f32[3,4]",
    ),
    (
        f"lax.dot_general(x, y, {DIMENSIONS}, preferred_element_type='float32')",
        "bf16[2,3]",
        "bf16[3,4]",
    ),
    (f"lax.dot_general(x, y, {DIMENSIONS})", "~f32[2,3]", "~f32[3,4]"),
    ("lax.dot(x, y)", "f32[3]", "f32[3]"),
    ("lax.dot(x, y)", "f32[2,3]", "i32[3]"),
    ("lax.dot(x, y)", "bool[2,3]", "f32[3]"),
    ("lax.dot(x, y, preferred_element_type='float32')", "f16[2,3]", "f32[3]"),
    ("lax.dot(x, y)", "f32[2,3]", "f32[3]"),
    ("lax.dot(x, y, dimension_numbers=(((0,), (0,)), ((), ())))", "f32[3,2]", "f32[3,4]"),
    ("lax.dot(x, y, preferred_element_type='int32')", "i8[2,3]", "i8[3]"),
    ("lax.batch_matmul(x, y)", "f32[5,2,3]", "f32[5,3,4]"),
]

REDUCTIONS = [
    *[
        (f"lax.reduce_{name}(x, axes=(0, 2))", "f32[2,3,4]")
        for name in ("sum", "prod", "max", "min")
    ],
    *[(f"lax.reduce_{name}(x, [1])", "bool[2,3]") for name in ("and", "or", "xor")],
    *[(f"lax.reduce_{name}(x, (1,))", "i32[2,3]") for name in ("and", "or", "xor", "sum", "max")],
    *[(f"lax.{name}(x, axis=1, index_dtype='int32')", "f32[2,3]") for name in ("argmax", "argmin")],
    *[
        (f"lax.cum{name}(x, axis=1{reverse})", "f32[2,3]")
        for name in ("sum", "prod", "max", "min", "logsumexp")
        for reverse in ("", ", reverse=True")
    ],
    ("lax.cumsum(operand=x)", "i32[2,3]"),
    ("lax.sort(x)", "f32[2,3]"),
    ("lax.sort(x, dimension=0)", "f32[2,3]"),
    ("lax.sort((x, y), num_keys=2)", "i32[9]", "f32[9]"),
    ("lax.sort_key_val(x, y, dimension=0)", "f32[4,2]", "i32[4,2]"),
    ("lax.top_k(x, 2)", "f32[2,3]"),
    ("lax.top_k(x, 2)", "bool[2,3]"),
    ("lax.top_k(x, k=1, axis=0)", "f32[2,3]"),
]

GATHERED = (
    "lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,))"
)
SCATTERED = (
    "lax.ScatterDimensionNumbers(update_window_dims=(1,), inserted_window_dims=(0,), "
    "scatter_dims_to_operand_dims=(0,))"
)
PARTS = [
    ("lax.slice(x, (1, 0), (2, 3))", "f32[2,3]"),
    ("lax.slice(x, start_indices=[0], limit_indices=[5], strides=[2])", "f32[5]"),
    ("lax.slice_in_dim(x, 1, None, axis=1)", "f32[2,5]"),
    ("lax.slice_in_dim(x, start_index=None, limit_index=-1, stride=2)", "f32[5]"),
    ("lax.index_in_dim(x, 1)", "f32[2,3]"),
    ("lax.index_in_dim(x, -1, axis=1, keepdims=False)", "f32[2,3]"),
    ("lax.dynamic_slice(x, (y, 0), (1, 2))", "f32[2,3]", "i32[]"),
    ("lax.dynamic_slice(x, y, slice_sizes=(1, 2))", "f32[4,5]", "i32[2]"),
    ("lax.dynamic_slice(x, numpy.array([1, -1]), (1, 1))", "f32[4,5]"),
    ("lax.dynamic_slice(x, y, (1, 2), allow_negative_indices=False)", "f32[4,5]", "i32[2]"),
    ("lax.dynamic_slice_in_dim(x, y, 2)", "f32[4,5]", "i32[]"),
    ("lax.dynamic_slice_in_dim(x, start_index=1, slice_size=2, axis=-1)", "f32[4,5]"),
    ("lax.dynamic_index_in_dim(x, y)", "f32[4,5]", "i32[]"),
    ("lax.dynamic_index_in_dim(x, index=y, axis=1, keepdims=False)", "f32[4,5]", "i32[]"),
    ("lax.dynamic_update_slice(x, y, (z, 1))", "f32[4,5]", "f32[2,2]", "i32[]"),
    ("lax.dynamic_update_slice(x, y, start_indices=z)", "f32[4,5]", "f32[2,2]", "i32[2]"),
    ("lax.dynamic_update_slice_in_dim(x, y, z, axis=1)", "f32[4,5]", "f32[4,2]", "i32[]"),
    ("lax.dynamic_update_index_in_dim(x, y, z, 0)", "f32[4,5]", "f32[5]", "i32[]"),
    ("lax.dynamic_update_index_in_dim(x, y, index=1, axis=1)", "f32[4,5]", "f32[4,1]"),
    ("lax.dynamic_update_index_in_dim(x, 2.0, z, axis=0)", "f32[4]", "f32[]", "i32[]"),
    *[
        (f"lax.gather(x, y, {GATHERED}, slice_sizes=(1, 3){mode})", "f32[5,3]", "i32[4,1]")
        for mode in (
            "",
            ", mode='clip'",
            ", mode=lax.GatherScatterMode.CLIP",
            ", mode=lax.GatherScatterMode.FILL_OR_DROP, fill_value=7",
        )
    ],
    *[
        (f"lax.{name}(x, y, z, {SCATTERED}{mode})", "f32[5,3]", "i32[4,1]", "f32[4,3]")
        for name in ("scatter_add", "scatter_sub", "scatter_mul", "scatter_min", "scatter_max")
        for mode in ("", ", mode='clip'")
    ],
    (f"lax.scatter(x, y, z, {SCATTERED})", "f32[5,3]", "u8[1,1]", "f32[1,3]"),
]

CALLS = [*ELEMENTWISE, *ARRAYS, *PRODUCTS, *REDUCTIONS, *PARTS]


VALUES = Agreement(lax, jax.lax, CALLS)


@pytest.mark.parametrize("call", VALUES.calls, ids=label)
def test_calls_agree_with_jax(call):
    VALUES.check(call)


@pytest.mark.parametrize("call", CALLS[::8], ids=label)
def test_calls_agree_with_jax_step_by_step(call):
    agree_at_once(lax, jax.lax, *call)


def wider(text):
    types = {"f32": "f64", "i32": "i64", "c64": "c128"}
    return next((text.replace(a, b) for a, b in types.items() if a in text), text)


WIDE = Agreement(lax, jax.lax, [(call[0], *map(wider, call[1:])) for call in CALLS[::7]])


@pytest.mark.parametrize("call", WIDE.calls, ids=label)
def test_calls_agree_with_jax_in_64_bits(call, x64):
    WIDE.check(call)


DISCRETE = ("int32", "uint8", "arg", "stop_gradient", "is_finite", "nextafter", "reduce_precision")
VARYING = [
    call
    for call in [*ARRAYS, *PRODUCTS, *REDUCTIONS, *PARTS]
    if len(call) > 1
    and all(t.startswith("f32") for t in call[1:])
    and not any(name in call[0] for name in DISCRETE)
]


DERIVATIVES = Agreement(lax, jax.lax, VARYING[::2], derivatives, weak=False)


@pytest.mark.parametrize("call", DERIVATIVES.calls, ids=label)
def test_derivatives_agree_with_jax(call):
    DERIVATIVES.check(call)


def test_filled_arrays_of_wide_dtypes_are_narrow_without_the_64_bit_switch():
    for fill, wanted in (
        (lambda: lax.full((2,), 3, "int64"), "int32"),
        (lambda: lax.full_like(np.float32(1), 2.5, float), "float32"),
        (lambda: lax.empty((2,), complex), "complex64"),
    ):
        assert fill().dtype == jit(fill)().dtype == wanted


def test_stop_gradient_stops_it_in_trees():
    def loss(x):
        stopped = lax.stop_gradient({"x": x})["x"]
        return lax.reduce_sum(lax.mul(stopped, x), (0,))

    np.testing.assert_array_equal(grad(loss)(np.array([1.0, 2.0], np.float32)), [1.0, 2.0])


OURS = [
    name
    for name, function in vars(lax).items()
    if inspect.isfunction(function)
    and function.__module__.startswith(("functx.lax", "functx.ops"))
    # Backward rules have PyTorch's names, where JAX has no such function.
    and hasattr(jax.lax, name)
    # Loops have further arguments, for progress and memory.
    and name not in ("fori_loop", "scan", "while_loop")
]
LEFT_OUT = {"accuracy"}


@pytest.mark.parametrize("name", OURS)
def test_arguments_have_the_names_and_the_order_of_jax(name):
    def arguments(namespace):
        parameters = inspect.signature(getattr(namespace, name)).parameters
        return [p for p in parameters if p not in LEFT_OUT]

    if name not in ("broadcast_shapes", "random_gamma_grad"):
        assert arguments(lax) == arguments(jax.lax)


X, V = np.ones((2, 3), np.float32), np.ones(3, np.float32)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: lax.add(X, V), ShapeError, r"add: operands must have one shape"),
        (lambda: lax.add(X, X[:, :2]), ShapeError, r"add: operands must have one shape"),
        (lambda: lax.add(V.astype(int), 1j), TypeError, r"must fit the dtype int32 .*; got 1j"),
        (lambda: lax.mul(V.astype(int), np.inf), TypeError, r"must fit the dtype int32.*; got inf"),
        (lambda: lax.add(V, V.astype(np.int32)), TypeError, r"add: operands must have one dtype"),
        (lambda: lax.round(V, 3), ValueRangeError, r"round: rounding_method"),
        (lambda: lax.integer_pow(V, 0.5), ArgumentError, r"integer_pow: the exponent"),
        (lambda: lax.reshape(X, (4,)), ShapeError, r"reshape: the number of elements"),
        (lambda: lax.reshape(X, (-1,)), ArgumentError, r"reshape: new_sizes must not be negative"),
        (lambda: lax.transpose(X, (0,)), AxisError, r"transpose: permutation must name every"),
        (lambda: lax.transpose(X, 1), ArgumentError, r"permutation must be a sequence"),
        (lambda: lax.rev(X, 0), ArgumentError, r"rev: dimensions must be a sequence of integers"),
        (
            lambda: lax.dot_general(X, X, ((0, 0), ((), ()))),
            ArgumentError,
            r"lhs dimensions must be a sequence of integers; got 0",
        ),
        (lambda: lax.collapse(X, 1, 1), AxisError, r"collapse"),
        (lambda: lax.broadcast_to_rank(X, 1), ShapeError, r"broadcast_to_rank"),
        (lambda: lax.concatenate([X, V], 0), ShapeError, r"concatenate"),
        (lambda: lax.dot(X, np.ones((2, 3, 4))), ShapeError, r"dot: operands must be vectors"),
        (
            lambda: lax.dot_general(X, X, ((1, 1),)),
            ArgumentError,
            r"dot_general: dimension_numbers",
        ),
        (
            lambda: lax.dot_general(X, V, (((0,), (0,)), ((), ()))),
            ShapeError,
            r"dot_general: contracting dimensions must have one size; got f32\[2,3\]",
        ),
        (lambda: lax.batch_matmul(X, V), ShapeError, r"batch_matmul"),
        (lambda: lax.index_in_dim(X, 2), IndexingError, r"index_in_dim: .* \[-2, 2\)"),
        (lambda: lax.dynamic_slice(X, (0,), (1, 1)), IndexingError, r"one index a dimension"),
        (lambda: lax.dynamic_slice(X, (0, 0), (1, 4)), ShapeError, r"dynamic_slice"),
        (lambda: lax.reduce_sum(X, (2,)), AxisError, r"axis must be in"),
        (lambda: jit(lambda n: lax.broadcast(V, (n,)))(2), ArgumentError, r"broadcast: sizes"),
    ],
)
def test_misuse_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_functions_with_an_accuracy_are_operations_that_jax_runs():
    x = np.float32(0.5)
    for name in [
        "cbrt",
        "cos",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "logistic",
        "rsqrt",
        "sin",
        "sqrt",
        "tan",
        "tanh",
    ]:
        function = getattr(lax, name)
        assert "accuracy" in inspect.signature(function).parameters
        plain, default = [
            str(make_ir(lambda y, f=function, k=k: f(y, **k))(x)).split("#")[0]
            for k in ({}, {"accuracy": jax.lax.AccuracyMode.DEFAULT})
        ]
        assert plain == default
        with_mode = make_ir(lambda x, f=function: f(x, accuracy=jax.lax.AccuracyMode.HIGHEST))(x)
        assert "jax_call" in str(with_mode)
