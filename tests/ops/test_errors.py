"""Bad operands: what the message of a primitive must say, in rows where it says more than its family's."""

import pytest

from functx.core.errors import FunctxError
from functx.core.primitive import Primitive
from functx.core.tracing import trace
from functx.core.types import DTYPES_BY_SHORT_NAME
from functx.ops.convolution import ConvLayouts
from functx.ops.families import Elementwise
from functx.ops.windows import Window
from functx.testing import bool_, c64, f32, f64, i32, u32
from functx.testing.rule_cases import primitive_under_test
from tests.ops.registry import PRIMITIVES

KINDS = {"b": "bool", "i": "i32", "u": "u32", "f": "f32", "c": "c64"}


def windows(sizes, **changes):
    """The parameters of windows of `sizes`, one element apart."""
    ones = (1,) * len(sizes)
    fields = {"strides": ones, "padding": ((0, 0),) * len(ones)}
    return {"sizes": sizes, **fields, "base_dilation": ones, "window_dilation": ones, **changes}


# By primitive: its parameters and operands, the class of the error, and a part of its message.
ROWS = {
    "argmax": ({"axis": 0, "index_dtype": "int32"}, [f32[0]], "ShapeError", "must not be empty"),
    "argmin": (
        {"axis": 0, "index_dtype": "int8"},
        [f32[200]],
        "DTypeError",
        "the index dtype must hold 199; got int8",
    ),
    "bitcast_convert_type": (
        {"dtype": "float32"},
        [c64[3]],
        "DTypeError",
        "both dtypes must be real; got c64[3] and float32",
    ),
    "broadcast_in_dim": (
        {"shape": (2, 3), "dims": (1,)},
        [f32[2]],
        "ShapeError",
        "each dimension of the operand must be 1 or that of the result",
    ),
    "concatenate": (
        {"axis": 0},
        [f32[2, 3], f32[2, 4]],
        "ShapeError",
        "operands must have one dtype, and one shape but for axis 0; got f32[2,3] and f32[2,4]",
    ),
    "cumlogsumexp": ({"axis": 0}, [i32[3]], "DTypeError", "operands must be float; got i32[3]"),
    "cummax": (
        {"axis": 1},
        [f32[3]],
        "AxisError",
        "each axis must be in [0, 1), and named once; got ",
    ),
    "cummin": (
        {"axis": -1},
        [f32[3]],
        "AxisError",
        "each axis must be in [0, 1), and named once; got ",
    ),
    "cumprod": ({"axis": 0}, [f32[()]], "AxisError", "each axis must be in [0, 0)"),
    "cumsum": ({"axis": 0}, [bool_[3]], "DTypeError", "got bool[3]"),
    "cholesky": ({}, [f32[2, 3]], "ShapeError", "must hold square matrices; got f32[2,3]"),
    "cofactors": ({}, [f32[3]], "ShapeError", "must hold square matrices; got f32[3]"),
    "balanced_cofactors": ({}, [f32[3]], "ShapeError", "must hold square matrices; got f32[3]"),
    "det": ({}, [i32[2, 2]], "DTypeError", "complex64 or complex128; got i32[2,2]"),
    "eigh": ({}, [f32[2, 3]], "ShapeError", "must hold square matrices; got f32[2,3]"),
    "svd": ({}, [f32[3]], "ShapeError", "must hold matrices; got f32[3]"),
    "triangular_solve": ({}, [f32[2, 2], c64[2, 1]], "DTypeError", "got f32[2,2] and c64[2,1]"),
    "fft": ({"ndim": 2}, [c64[3]], "ShapeError", "there must be 2 dimensions with elements"),
    "custom_linear_solve": (
        Primitive.registry["custom_linear_solve"].samples[0].params,
        [f64[3], f64[4]],
        "ShapeError",
        "operands must be [f64[3], f64[3]], as its programs take them",
    ),
    "custom_root": (
        Primitive.registry["custom_root"].samples[0].params,
        [f64[3], f32[3]],
        "DTypeError",
        "operands must be [f64[3], f64[3]], as its programs take them",
    ),
    "dot_general": (
        {"contracting_dims": ((1,), (0,))},
        [f32[2, 3], f32[4, 5]],
        "ShapeError",
        "contracting dimensions must have one size; got f32[2,3] along (1,)",
    ),
    "dynamic_slice": ({"sizes": (4,)}, [f32[3], i32[()]], "ShapeError", "got"),
    "dynamic_update_slice": (
        {},
        [f32[3], i32[2], i32[()]],
        "DTypeError",
        "operands must have one dtype; got f32[3] and i32[2]",
    ),
    "full": (
        {"shape": (2,)},
        [f32[1]],
        "ShapeError",
        "the fill value must be a scalar; got f32[1]",
    ),
    "gather": (
        {"collapsed_slice_dims": (0,), "start_index_map": (0,), "slice_sizes": (1,)},
        [f32[3], f32[2, 1]],
        "DTypeError",
        "indices must be integers; got f32[2,1]",
    ),
    "iota": ({"dtype": "int32", "shape": (2,), "dimension": 1}, [], "AxisError", "got 1"),
    "convolution": (
        {
            "window": Window((2,), (1,), ((0, 0),), (1,), (1,)),
            "layouts": ConvLayouts((0, 1, 2), (0, 1, 2), (0, 1, 2)),
        },
        [f32[2, 3, 5], f32[4, 2, 2]],
        "ShapeError",
        "whose batch and channels are 2, 3 and 4, 2",
    ),
    "dot_product_attention": (
        {"scale": 1.0},
        [f32[1, 3, 1, 1, 2], f32[1, 4, 1, 3], f32[1, 4, 1, 2]],
        "ShapeError",
        "the key and the value must fit the query; got f32[1,3,1,1,2]",
    ),
    "dot_product_attention_backward": (
        {"scale": 1.0},
        [f32[1, 3, 1, 1, 2], f32[1, 3, 1, 2], f32[1, 3, 1, 2], *[f32[1, 1, 3, 2]] * 2, f32[3]],
        "ShapeError",
        "the logarithms and products must be (1, 1, 3, 1); got f32[1,1,3,2]",
    ),
    "layer_norm": (
        {"eps": 1e-5, "normalized_ndim": 1, "weighted": True, "biased": False},
        [f32[3, 4], f32[3]],
        "ShapeError",
        "layer_norm: the weight must have the shape (4,); got f32[3]",
    ),
    "layer_norm_backward": (
        {"eps": None, "normalized_ndim": 1, "weighted": False, "output_mask": (True,) * 3},
        [f32[3, 4], f32[3, 4], f32[4]],
        "ShapeError",
        "the saved 1 / sqrt(variance + eps) must have the shape (3,); got f32[4]",
    ),
    "rms_norm": (
        {"eps": 1e-5, "normalized_ndim": 2, "weighted": False, "biased": False},
        [f32[3]],
        "AxisError",
        "the operand must have at least the 2 dimensions to normalize over, and at least one; got f32[3]",
    ),
    "rms_norm_backward": (
        {"eps": 1e-5, "normalized_ndim": 1, "weighted": False, "output_mask": (True,) * 3},
        [f32[3], f32[4]],
        "ShapeError",
        "the cotangent must have the shape of x; got f32[3] and f32[4]",
    ),
    "group_norm": (
        {"eps": 1e-5, "groups": 2, "weighted": False, "biased": False},
        [f32[2, 3]],
        "ShapeError",
        "the channels, along axis 1, must be a multiple of 2 groups; got f32[2,3]",
    ),
    "group_norm_backward": (
        {"eps": 1e-5, "groups": 1, "weighted": False, "output_mask": (True,) * 3},
        [c64[2, 3], c64[2, 3]],
        "DTypeError",
        "operands must be float; got c64[2,3] and c64[2,3]",
    ),
    "batch_norm": (
        {"eps": 1e-5, "axes": (0,), "tracked": True, "weighted": False, "biased": False},
        [f32[2, 3], f32[2], f32[3]],
        "ShapeError",
        "the running mean must have the shape (3,); got f32[2]",
    ),
    "batch_norm_backward": (
        {"eps": 1e-5, "axes": (2,), "weighted": False, "output_mask": (True,) * 3},
        [f32[2, 3], f32[2, 3]],
        "AxisError",
        "each axis must be in [0, 2), and named once; got (2,)",
    ),
    "batch_norm_inference": (
        {"eps": 1e-5, "axes": (0,), "weighted": False, "biased": False},
        [f32[2, 3], f32[3], f32[2]],
        "ShapeError",
        "the variance must have the shape (3,); got f32[2]",
    ),
    "batch_norm_inference_backward": (
        {"eps": 1e-5, "axes": (0,), "weighted": False, "output_mask": (True,) * 5},
        [f32[3], f32[2, 3], f32[3], f32[3]],
        "ShapeError",
        "the cotangent must have the shape of x; got f32[3] and f32[2,3]",
    ),
    "variance": ({"axes": (0,)}, [i32[3]], "DTypeError", "must be float or complex; got i32[3]"),
    "standard_deviation": (
        {"axes": (1,)},
        [f32[3]],
        "AxisError",
        "each axis must be in [0, 1), and named once; got (1,)",
    ),
    "vector_norm": (
        {"axes": (0, 0), "ord": 2.0},
        [f32[3]],
        "AxisError",
        "each axis must be in [0, 1), and named once; got (0, 0)",
    ),
    "linear_recurrence": (
        {"axis": 0},
        [f32[3], f32[4]],
        "ShapeError",
        "operands must have one shape; got f32[3] and f32[4]",
    ),
    "log_softmax": ({"axes": (2,)}, [f32[3, 4]], "AxisError", "each axis must be in [0, 2)"),
    "log_sum_exp": ({"axes": (0,)}, [i32[3]], "DTypeError", "must be float; got i32[3]"),
    "softmax": ({"axes": (0, 0)}, [f32[3, 4]], "AxisError", "named once; got (0, 0)"),
    "log_sum_exp_derivative": (
        {"axes": (0, 0)},
        [f32[3, 4]],
        "AxisError",
        "named once; got (0, 0)",
    ),
    "softmax_backward": (
        {"axes": (0,)},
        [f32[3], f32[4]],
        "ShapeError",
        "the cotangent must have the shape of the output; got f32[3] for f32[4]",
    ),
    "log_softmax_backward": (
        {"axes": (0,), "dtype": "int32"},
        [f32[3], f32[3]],
        "DTypeError",
        "dtype must be a float type; got int32",
    ),
    "l1_loss": (
        {"reduction": "mean"},
        [f32[3], f32[3, 1]],
        "ShapeError",
        "the input, the target and weights must have one shape; got f32[3] and f32[3,1]",
    ),
    "mse_loss": (
        {"reduction": "average"},
        [f32[3], f32[3]],
        "ValueRangeError",
        "reduction must be 'none', 'mean' or 'sum'; got 'average'",
    ),
    "smooth_l1_loss": (
        {"reduction": "sum", "beta": -1.0},
        [f32[3], f32[3]],
        "ValueRangeError",
        "beta must not be negative; got -1.0",
    ),
    "huber_loss": (
        {"reduction": "sum", "delta": 0.0},
        [f32[3], f32[3]],
        "ValueRangeError",
        "delta must be positive; got 0.0",
    ),
    "binary_cross_entropy": (
        {"reduction": "sum"},
        [f32[3], f32[3], f32[2]],
        "ShapeError",
        "must have one shape; got f32[3] and f32[3] and f32[2]",
    ),
    "binary_cross_entropy_with_logits": (
        {"reduction": "sum"},
        [f32[3], i32[3]],
        "DTypeError",
        "must have one dtype; got f32[3] and i32[3]",
    ),
    "kl_div": ({"reduction": "sum"}, [c64[3], c64[3]], "DTypeError", "must be float; got c64[3]"),
    "mse_loss_backward": (
        {"reduction": "mean"},
        [f32[3], f32[3], f32[3]],
        "ShapeError",
        "the cotangent must have the shape of the loss, (); got f32[3] for f32[3]",
    ),
    "huber_loss_backward": (
        {"reduction": "none"},
        [f32[()], f32[3], f32[3]],
        "ShapeError",
        "the cotangent must have the shape of the loss, (3,); got f32[] for f32[3]",
    ),
    **{
        f"{name}_backward": (
            {"reduction": "none"},
            [f32[3], f32[3], f32[4]],
            "ShapeError",
            "must have one shape; got f32[3] and f32[4]",
        )
        for name in (
            "l1_loss",
            "smooth_l1_loss",
            "binary_cross_entropy",
            "binary_cross_entropy_with_logits",
            "kl_div",
        )
    },
    "nll_loss": (
        {"reduction": "mean"},
        [f32[3, 4], i32[4]],
        "ShapeError",
        "the shape of the input without axis 1, that of the classes; got i32[4] for f32[3,4]",
    ),
    "nll_loss_backward": (
        {"reduction": "mean", "classes": 4},
        [f32[3], i32[3]],
        "ShapeError",
        "the cotangent must have the shape of the loss, (); got f32[3] for a target i32[3]",
    ),
    "cross_entropy": (
        {"reduction": "mean"},
        [f32[3, 4], i32[3], f32[3]],
        "ShapeError",
        "the weights must be a vector, one for each of the 4 classes; got f32[3]",
    ),
    "cross_entropy_backward": (
        {"reduction": "mean"},
        [f32[()], f32[3, 4], f32[3]],
        "DTypeError",
        "the target must hold the numbers of classes, integers; got f32[3]",
    ),
    "soft_target_cross_entropy": (
        {"reduction": "mean", "label_smoothing": 1.5},
        [f32[3, 4], f32[3, 4]],
        "ValueRangeError",
        "label_smoothing must be between 0 and 1; got 1.5",
    ),
    "soft_target_cross_entropy_backward": (
        {"reduction": "none"},
        [f32[4], f32[3, 4], f32[3, 4]],
        "ShapeError",
        "the cotangent must have the shape of the loss, (3,); got f32[4]",
    ),
    "embedding": ({}, [i32[3], f32[3]], "ShapeError", "a row for each index; got f32[3]"),
    "embedding_backward": (
        {"rows": 4},
        [f32[3, 2], i32[2]],
        "ShapeError",
        "must have a row for each index; got f32[3,2] for i32[2]",
    ),
    "dropout": (
        {"rate": -0.5},
        [f32[3], u32[2]],
        "ValueRangeError",
        "rate must be a probability, from 0 to 1; got -0.5",
    ),
    "pad": (
        {"config": ((0, 0, 0),)},
        [f32[3], i32[()]],
        "ShapeError",
        "a scalar of the operand's dtype; got i32[] for f32[3]",
    ),
    "permute_dims": (
        {"axes": (0, 2)},
        [f32[2, 3]],
        "ShapeError",
        "must be a permutation of all axes; got (0, 2) for f32[2,3]",
    ),
    "reduce_and": ({"axes": (0,)}, [f32[3]], "DTypeError", "must be bool or int or uint"),
    "reduce_max": (
        {"axes": (-1,)},
        [f32[3]],
        "AxisError",
        "each axis must be in [0, 1), and named once; got ",
    ),
    "reduce_min": ({"axes": (0, 0)}, [f32[3]], "AxisError", "named once; got (0, 0)"),
    "reduce_or": ({"axes": (0,)}, [c64[3]], "DTypeError", "got c64[3]"),
    "reduce_prod": ({"axes": (0,)}, [bool_[3]], "DTypeError", "got bool[3]"),
    "reduce_sum": ({"axes": (0,)}, [bool_[3]], "DTypeError", "got bool[3]"),
    "reduce": (
        Primitive.registry["reduce"].samples[0].params,
        [f64[3, 4], i32[3], f64[()], i32[()]],
        "ShapeError",
        "operands must be arrays of one shape and scalars",
    ),
    "reduce_window": (
        Primitive.registry["reduce_window"].samples[0].params | {"strides": (1, 0)},
        [f64[3, 4], i32[3, 4], f64[()], i32[()]],
        "ValueRangeError",
        "window_strides must be positive; got (1, 0)",
    ),
    "reduce_window_argmax": (
        windows((2,)),
        [c64[3]],
        "DTypeError",
        "operands must be bool or int or uint or float; got c64[3]",
    ),
    "reduce_window_argmin": (
        windows((2, 2)),
        [f32[3]],
        "ShapeError",
        "window_dimensions must have an entry for each of 1 dimensions; got (2, 2)",
    ),
    "reduce_window_max": (
        windows((0,)),
        [f32[3]],
        "ValueRangeError",
        "window_dimensions must be positive; got (0,)",
    ),
    "reduce_window_min": (
        windows((2,), padding=((-2, -2),)),
        [f32[3]],
        "ShapeError",
        "padding must not make a length negative; got ((-2, -2),) for shape (3,)",
    ),
    "reduce_window_sum": (windows((2,)), [bool_[3]], "DTypeError", "got bool[3]"),
    "reduce_xor": ({"axes": (0,)}, [f32[3]], "DTypeError", "got f32[3]"),
    "reshape": (
        {"shape": (4,)},
        [f32[3]],
        "ShapeError",
        "the number of elements must stay; got f32[3] for shape (4,)",
    ),
    "rev": (
        {"axes": (1,)},
        [f32[3]],
        "AxisError",
        "each axis must be in [0, 1), and named once; got ",
    ),
    "scatter_add": (
        {"collapsed_slice_dims": (0,), "start_index_map": (0,)},
        [f32[3], i32[2, 1], f32[3]],
        "ShapeError",
        "updates must have the dimensions of the indices",
    ),
    "scatter_max": (
        {"collapsed_slice_dims": (0,), "start_index_map": (0,)},
        [c64[3], i32[2, 1], c64[2]],
        "DTypeError",
        "got c64[3]",
    ),
    "scatter_min": (
        {"collapsed_slice_dims": (0,), "start_index_map": (0, 0)},
        [f32[3], i32[2, 1], f32[2]],
        "ShapeError",
        "a component for each dimension in start_index_map",
    ),
    "scatter_mul": (
        {"collapsed_slice_dims": (1,), "start_index_map": (0,)},
        [f32[3], i32[2, 1], f32[2]],
        "ShapeError",
        "dimension numbers must be dimensions of the operand",
    ),
    "scatter_set": (
        {"collapsed_slice_dims": (0,), "start_index_map": (0,)},
        [f32[3], i32[2, 1], i32[2]],
        "DTypeError",
        "operands must have one dtype; got f32[3] and i32[2]",
    ),
    "search_sorted": ({}, [f32[2, 3], f32[4]], "ShapeError", "must be a vector; got f32[2,3]"),
    "slice": (
        {"start": (2,), "limit": (4,)},
        [f32[3]],
        "IndexingError",
        "0 <= start <= limit <= length",
    ),
    "show_progress": (
        {"label": "train"},
        [f32[()]],
        "DTypeError",
        "the step must be an integer scalar; got f32[]",
    ),
    "sort": (
        {"axis": 0},
        [f32[3], f32[4]],
        "ShapeError",
        "operands must have one shape; got f32[3] and f32[4]",
    ),
    "split": (
        {"sizes": (1, 1), "axis": 0},
        [f32[3]],
        "ShapeError",
        "sizes must sum to the length of axis 0; got (1, 1) for f32[3]",
    ),
    "as_strided": (
        {"shape": (2, 2), "start": (1,), "steps": ((2,), (1,))},
        [f32[4]],
        "ShapeError",
        "the places from 1 to 4 must lie in dimension 0 of the operand; got f32[4]",
    ),
    "top_k": (
        {"k": 4},
        [f32[3]],
        "ValueRangeError",
        "k must be between 0 and the length of the last axis; got 4 for f32[3]",
    ),
    "write": (
        {},
        [f32[3], i32[3]],
        "DTypeError",
        "the value must have the type of the target; got i32[3] for f32[3]",
    ),
    "random_seed": ({}, [f32[()]], "DTypeError", "the seed must be an integer; got f32[]"),
    "random_fold_in": ({}, [u32[2], i32[()]], "ShapeError", "data must be uint32"),
    "random_split": ({"shape": (2,)}, [u32[3]], "DTypeError", "got u32[3]"),
    "random_shuffle": ({"axis": 0}, [i32[2], f32[3]], "DTypeError", "got i32[2]"),
    "random_integers": (
        {"shape": (3,)},
        [u32[2], i32[()], f32[()]],
        "DTypeError",
        "operands must have one dtype; got i32[] and f32[]",
    ),
    "integer_pow": (
        {"exponent": -2},
        [i32[3]],
        "DTypeError",
        "for a negative exponent; got i32[3]",
    ),
    "named_axis_map": (
        {"primitive": Primitive.registry["psum"](("i",)), "axes": (("i", 4),)},
        [f32[3]],
        "ShapeError",
        "operands must begin with the sizes of (('i', 4),); got f32[3]",
    ),
    "all_gather": ({"axes": ("i",), "sizes": (4,), "axis": 1}, [f32[3]], "AxisError", "got 1"),
    "all_to_all": (
        {"axes": ("i",), "sizes": (4,), "split": 0, "concat": 1},
        [f32[6, 2]],
        "ShapeError",
        "dimension 0 must be a multiple of the 4 places that it is divided among; got f32[6,2]",
    ),
    "shard_map": (
        Primitive.registry["shard_map"].samples[0].params,
        [f64[3], f64[4]],
        "ShapeError",
        "operands must have the types whose parts the program takes; got f64[3], f64[4]",
    ),
    "view_as_real": ({}, [f32[3]], "DTypeError", "the operand must be complex; got f32[3]"),
    "view_as_complex": (
        {},
        [f32[2, 3]],
        "ShapeError",
        "the last dimension must be 2; got f32[2,3]",
    ),
    "spectral_function": (
        Primitive.registry["spectral_function"].samples[0].params,
        [f32[3, 3]],
        "DTypeError",
        "the program must take eigenvalues of float32, those of the operand; got one for f64[3]",
    ),
    "spectral_trace": (
        Primitive.registry["spectral_trace"].samples[0].params,
        [f64[3, 4]],
        "ShapeError",
        "got f64[3,4]",
    ),
    "pmax": ({"axes": ("i",)}, [c64[3]], "DTypeError", "got c64[3]"),
    "pmin": ({"axes": ("i",)}, [c64[3]], "DTypeError", "got c64[3]"),
    "psum": ({"axes": ("i",)}, [bool_[3]], "DTypeError", "operands must be int or uint or float"),
    "psum_scatter": (
        {"axes": ("i",), "sizes": (4,), "axis": 0},
        [f32[6]],
        "ShapeError",
        "must be a multiple of the 4 places",
    ),
    "any_active": ({}, [i32[()]], "DTypeError", "`mask` must be boolean; got i32[]"),
    "masked_operand": (
        {"borrow_active": False},
        [bool_[2], f32[3]],
        "ShapeError",
        "must have the first dimensions of the operand; got bool[2] for f32[3]",
    ),
    "select": ({}, [f32[3], f32[3], f32[3]], "DTypeError", "must be boolean; got f32[3]"),
    "pow": ({}, [i32[3], f32[3]], "DTypeError", "must have one dtype; got i32[3] and f32[3]"),
    "polygamma": ({}, [i32[3], i32[3]], "DTypeError", "got i32[3]"),
}


def raised(primitive, avals):
    """The error of a primitive on operands of these types, which must be one of ours."""

    def body(*xs):
        out = primitive(*xs)
        return out if primitive.multiple_results else [out]

    with pytest.raises(FunctxError) as info:
        trace(body, avals)
    return info.value


def check_form(error, primitive):
    """`<op>: <what must hold>; got <what was given>`, and the operation in the details."""
    assert "; got " in error.problem
    assert primitive.name in str(error) or primitive.name.replace("_", "") in str(error)
    assert str(error).endswith(f"More: python -m functx.errors {type(error).__name__}")


@pytest.mark.parametrize("name", ROWS)
def test_bad_operands_are_refused_by_name(name):
    params, avals, error_name, fragment = ROWS[name]
    primitive = Primitive.registry[name](**params)
    error = raised(primitive, avals)
    assert type(error).__name__ == error_name
    assert fragment in error.problem
    check_form(error, primitive)


ELEMENTWISE = [cls for cls in PRIMITIVES if issubclass(cls, Elementwise) and not cls.fields]
SEVERAL = [cls for cls in ELEMENTWISE if len(cls.samples[0].avals) > 1 and cls.name not in ROWS]


@pytest.mark.parametrize("cls", SEVERAL, ids=lambda cls: cls.name)
def test_operands_of_two_shapes_are_refused(cls):
    primitive, avals = cls(), cls.samples[0].avals
    avals = [avals[0].update(shape=(3,)), *[a.update(shape=(4,)) for a in avals[1:]]]
    error = raised(primitive, avals)
    assert type(error).__name__ == "ShapeError"
    assert f"operands must have one shape, or be scalars; got {avals[0]!r} and" in error.problem
    check_form(error, primitive)


@pytest.mark.parametrize(
    "cls",
    [cls for cls in SEVERAL if len({a.dtype for a in cls.samples[0].avals}) == 1],
    ids=lambda cls: cls.name,
)
def test_operands_of_two_dtypes_are_refused(cls):
    primitive, avals = cls(), cls.samples[0].avals
    other = next(n for n in ("i32", "u32") if DTYPES_BY_SHORT_NAME[n] != avals[0].dtype)
    avals = [*avals[:-1], avals[-1].update(dtype=DTYPES_BY_SHORT_NAME[other])]
    error = raised(primitive, avals)
    assert type(error).__name__ == "DTypeError"
    assert f"operands must have one dtype; got {avals[0]!r} and" in error.problem
    check_form(error, primitive)


@pytest.mark.parametrize(
    ("cls", "refused"),
    [
        (cls, k)
        for cls in ELEMENTWISE
        for k in "biufc"
        if k not in cls.accepts and cls.name not in ROWS
    ],
    ids=lambda value: KINDS.get(value) or value.name,
)
def test_operands_of_a_kind_without_meaning_are_refused(cls, refused):
    dtype = DTYPES_BY_SHORT_NAME[KINDS[refused]]
    primitive, avals = cls(), [a.update(dtype=dtype) for a in cls.samples[0].avals]
    error = raised(primitive, avals)
    assert type(error).__name__ == "DTypeError"
    assert f"; got {avals[0]!r}" in error.problem
    check_form(error, primitive)


def with_one_operand_changed(avals):
    """The operand types of a sample with another rank, size or dtype of one operand."""
    for i, aval in enumerate(avals):
        shapes = (), (2, *aval.shape), tuple([n + 1 for n in aval.shape])
        changed = [aval.update(shape=shape) for shape in shapes]
        changed += [aval.update(dtype=DTYPES_BY_SHORT_NAME[name]) for name in KINDS.values()]
        yield from [(*avals[:i], other, *avals[i + 1 :]) for other in changed if other != aval]


@pytest.mark.parametrize("cls", PRIMITIVES, ids=lambda cls: cls.name)
def test_operands_of_a_sample_with_one_changed_are_taken_or_refused_by_name(cls):
    one = cls.samples[0]
    primitive = primitive_under_test(cls, one)
    for avals in with_one_operand_changed(one.avals):
        try:
            primitive.infer_out_avals(avals)
        except FunctxError as error:
            assert "; got " in error.problem


RANDOM = [cls for cls in PRIMITIVES if cls.name.startswith("random_") and cls.name != "random_seed"]


@pytest.mark.parametrize("cls", RANDOM, ids=lambda cls: cls.name)
def test_keys_of_another_type_are_refused(cls):
    one = cls.samples[0]
    primitive = cls(**one.params)
    error = raised(primitive, [i32[2], *one.avals[1:]])
    assert "; got i32[2]" in error.problem
    check_form(error, primitive)
