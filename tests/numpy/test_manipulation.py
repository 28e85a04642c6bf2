"""Array manipulation: values, types and derivatives against jax.numpy, and error messages."""

import jax.numpy as jnp
import numpy as np
import pytest

import functx.numpy as fnp
from functx import nn
from functx.core.errors import (
    ArgumentError,
    AxisError,
    ConcretizationError,
    DTypeError,
    ShapeError,
    ValueRangeError,
)
from functx.lowering.jit import jit
from functx.transforms.make_ir import make_ir
from tests.numpy.agreement import Agreement, agree_at_once, derivatives, label, values_of_a_batch

SHAPES = [
    ("np.reshape(x, (3, 2))", "f32[2,3]"),
    ("np.reshape(x, 6)", "f32[2,3]"),
    ("np.reshape(x, -1)", "f32[2,3]"),
    ("np.reshape(x, (3, -1))", "f32[2,3]"),
    ("np.reshape(x, [2, -1, 2])", "f32[4,3]"),
    ("np.reshape(x, (numpy.int64(3), 2))", "f32[2,3]"),
    ("np.reshape(x, (3, 2), order='F')", "f32[2,3]"),
    ("np.reshape(x, (2, -1, 3), 'F')", "f32[4,3,2]"),
    ("np.reshape(x, ())", "f32[1,1]"),
    ("np.reshape(x, (0, 3))", "f32[3,0]"),
    ("np.reshape(x, (3, -1))", "f32[3,0]"),
    ("np.reshape(2.0, (1, 1))",),
    ("np.reshape(x, (3, 2))", "~f32[2,3]"),
    ("np.ravel(x)", "f32[2,3]"),
    ("np.ravel(x)", "f32[]"),
    ("np.ravel(x, order='F')", "f32[2,3]"),
    ("np.ravel(x)", "f32[2,0]"),
    ("np.squeeze(x)", "f32[1,3,1]"),
    ("np.squeeze(x, 0)", "f32[1,3,1]"),
    ("np.squeeze(x, axis=(0, -1))", "f32[1,3,1]"),
    ("np.squeeze(3.0)",),
    ("np.expand_dims(x, 0)", "f32[2,3]"),
    ("np.expand_dims(x, -1)", "f32[2,3]"),
    ("np.expand_dims(x, (0, 2))", "f32[2,3]"),
    ("np.expand_dims(x, axis=[-1, 0])", "f32[2]"),
    ("np.transpose(x)", "f32[2,3]"),
    ("np.transpose(x)", "f32[3]"),
    ("np.transpose(x, (1, -1, 0))", "f32[2,3,4]"),
    ("np.transpose(x, axes=[0, 1])", "f32[2,3]"),
    ("np.permute_dims(x, (2, 0, 1))", "f32[2,3,4]"),
    ("np.matrix_transpose(x)", "f32[2,3,4]"),
    ("np.swapaxes(x, 0, -1)", "f32[2,3,4]"),
    ("np.swapaxes(x, 1, 1)", "f32[2,3]"),
    ("np.moveaxis(x, 0, -1)", "f32[2,3,4]"),
    ("np.moveaxis(x, (0, 1), (-1, 0))", "f32[2,3,4]"),
    ("np.moveaxis(x, [2], [0])", "f32[2,3,4]"),
    *[
        (f"np.rollaxis(x, {axis}, {start})", "f32[2,3,4]")
        for axis in (0, 1, -1)
        for start in (0, 1, 2, 3, -1)
    ],
    ("np.broadcast_to(x, (2, 3))", "f32[3]"),
    ("np.broadcast_to(x, (2, 3))", "f32[2,1]"),
    ("np.broadcast_to(x, 3)", "f32[]"),
    ("np.broadcast_to(2, (2, 2))",),
    ("np.broadcast_arrays(x, y, 1.0)", "f32[3]", "i32[2,1]"),
    ("np.broadcast_arrays()",),
    ("np.atleast_1d(x)", "f32[]"),
    ("np.atleast_1d(x, y, 2.0)", "f32[]", "f32[2,3]"),
    ("np.atleast_2d(x)", "f32[3]"),
    ("np.atleast_2d(x, y)", "f32[]", "f32[2,3,4]"),
    *[
        ("np.atleast_3d(x)", t)
        for t in ("f32[]", "f32[3]", "f32[2,3]", "f32[2,3,4]", "f32[1,2,3,4]")
    ],
]

JOINED = [
    ("np.concatenate([x, y])", "f32[2,3]", "f32[1,3]"),
    ("np.concatenate((x, y), axis=-1)", "f32[2,3]", "f32[2,1]"),
    ("np.concatenate([x, y], axis=None)", "f32[2,3]", "f32[4]"),
    ("np.concatenate([x])", "f32[2,3]"),
    ("np.concatenate([x, y])", "i32[2]", "f32[1]"),
    ("np.concatenate([x, y])", "bf16[2]", "f16[1]"),
    ("np.concatenate([x, y])", "~f32[2]", "bf16[1]"),
    ("np.concatenate([x, y])", "~f32[2]", "~f32[1]"),
    ("np.concatenate([x, y], dtype='int32')", "f32[2]", "f32[1]"),
    ("np.concatenate(x)", "f32[2,3,4]"),
    ("np.concatenate(x, axis=1)", "f32[2,3,4]"),
    ("np.concatenate([x, y])", "f32[0,3]", "f32[2,3]"),
    ("np.concat([x, y], axis=1)", "f32[2,3]", "f32[2,1]"),
    ("np.stack([x, y])", "f32[2,3]", "f32[2,3]"),
    ("np.stack([x, y], 1)", "f32[2,3]", "f32[2,3]"),
    ("np.stack([x, y, z], axis=-1)", "f32[2,3]", "f32[2,3]", "f32[2,3]"),
    ("np.stack([x, y], axis=-2)", "f32[2,3]", "i32[2,3]"),
    ("np.stack([x, y])", "f32[]", "f32[]"),
    ("np.stack([x, 1.0, 2])", "f32[]"),
    ("np.stack([1.0, 2.0])",),
    ("np.stack([x], axis=1)", "f32[2,3]"),
    ("np.stack(x, axis=1)", "f32[2,3]"),
    ("np.stack([x, y], dtype='float16')", "f32[2]", "f32[2]"),
    ("np.stack([x, y], 1)", "f32[0,3]", "f32[0,3]"),
    ("np.vstack([x, y])", "f32[3]", "f32[2,3]"),
    ("np.vstack((x, y), dtype='float16')", "f32[3]", "f32[3]"),
    ("np.hstack([x, y])", "f32[3]", "f32[2]"),
    ("np.hstack([x, y])", "f32[2,3]", "f32[2,1]"),
    ("np.hstack([x, 2.0])", "f32[]"),
    ("np.dstack([x, y])", "f32[2,3]", "f32[2,3]"),
    ("np.dstack([x, y])", "f32[3]", "f32[3]"),
    ("np.column_stack([x, y])", "f32[3]", "f32[3,2]"),
    ("np.append(x, y)", "f32[2,3]", "f32[4]"),
    ("np.append(x, y, axis=0)", "f32[2,3]", "i32[1,3]"),
    ("np.append(x, 2.0)", "bf16[2]"),
    ("np.block([x, y])", "f32[2]", "f32[3]"),
    ("np.block([[x, y], [z]])", "f32[2,2]", "f32[2,1]", "f32[1,3]"),
    ("np.block([[x, 1.0]])", "f32[]"),
    ("np.block([[x], [y]])", "f32[3]", "f32[3]"),
    ("np.block([x, y])", "f32[2,1]", "f32[2,2]"),
    ("np.block(x)", "f32[2]"),
    ("np.split(x, 3)", "f32[6,2]"),
    ("np.split(x, [1, 4], axis=1)", "f32[2,5]"),
    ("np.split(x, [3, 3])", "f32[5]"),
    ("np.split(x, 1)", "f32[5]"),
    ("np.split(x, numpy.array([2]))", "i32[5]"),
    ("np.array_split(x, 3)", "f32[8]"),
    ("np.array_split(x, 4, axis=-1)", "f32[2,3]"),
    ("np.array_split(x, [2, 3])", "f32[5]"),
    ("np.hsplit(x, 2)", "f32[2,4]"),
    ("np.hsplit(x, 2)", "f32[4]"),
    ("np.vsplit(x, [1])", "f32[3,2]"),
    ("np.dsplit(x, 2)", "f32[2,3,4]"),
    ("np.unstack(x)", "f32[3,2]"),
    ("np.unstack(x, axis=-1)", "f32[3,2]"),
    ("np.unstack(x)", "f32[0,2]"),
]

REPEATED = [
    ("np.tile(x, 2)", "f32[3]"),
    ("np.tile(x, (2, 3))", "f32[3]"),
    ("np.tile(x, (2, 1, 2))", "f32[2,3]"),
    ("np.tile(x, 2)", "f32[2,3]"),
    ("np.tile(x, ())", "f32[2,3]"),
    ("np.tile(x, (1, 1, 1))", "f32[2,3]"),
    ("np.tile(x, 0)", "f32[2,3]"),
    ("np.tile(2.0, 3)",),
    ("np.repeat(x, 2)", "f32[2,3]"),
    ("np.repeat(x, 3, axis=0)", "f32[2,3]"),
    ("np.repeat(x, 2, axis=-1)", "f32[2,3]"),
    ("np.repeat(x, 0, axis=1)", "f32[2,3]"),
    ("np.repeat(x, numpy.array([1, 2, 0]), axis=1)", "f32[2,3]"),
    ("np.repeat(x, numpy.array([2]), axis=1)", "f32[2,3]"),
    ("np.repeat(x, numpy.array([1, 2, 0]), axis=1, total_repeat_length=5)", "f32[2,3]"),
    ("np.repeat(x, numpy.array([1, 2, 0]), axis=1, total_repeat_length=2)", "f32[2,3]"),
    ("np.repeat(x, y % 3, total_repeat_length=7)", "f32[5]", "u8[5]"),
    ("np.repeat(x, y % 3, axis=1, total_repeat_length=2)", "f32[2,5]", "i32[5]"),
    ("np.repeat(x, y % 3, total_repeat_length=7)", "f32[5]", "i32[]"),
    ("np.flip(x)", "f32[2,3]"),
    ("np.flip(x, 1)", "f32[2,3]"),
    ("np.flip(x, axis=(0, -1))", "f32[2,3,2]"),
    ("np.flip(x)", "f32[]"),
    ("np.fliplr(x)", "f32[2,3]"),
    ("np.flipud(x)", "f32[3]"),
    *[(f"np.rot90(x, {k})", "f32[2,3]") for k in (0, 1, 2, 3, -1, 5)],
    ("np.rot90(x, 1, (1, 2))", "f32[2,3,4]"),
    ("np.rot90(x, k=-1, axes=(2, 0))", "f32[2,3,4]"),
    ("np.roll(x, 2)", "f32[5]"),
    ("np.roll(x, -1)", "f32[2,3]"),
    ("np.roll(x, 7, axis=1)", "f32[2,3]"),
    ("np.roll(x, (1, -1), axis=(0, 1))", "f32[2,3]"),
    ("np.roll(x, 1, axis=(0, 1))", "f32[2,3]"),
    ("np.roll(x, (1, 1), axis=(0, 0))", "f32[3]"),
    ("np.roll(x, numpy.array([1, 2]), axis=(0, 1))", "f32[2,3]"),
    ("np.roll(x, 1)", "f32[0]"),
    ("np.roll(x, 0)", "f32[3]"),
    ("np.roll(x, y)", "f32[5]", "i32[]"),
    ("np.roll(x, y)", "f32[2,3]", "i32[]"),
    ("np.roll(x, y, axis=1)", "f32[2,3]", "i32[]"),
    ("np.roll(x, y, axis=(0, 1))", "f32[2,3]", "i32[2]"),
    ("np.roll(x, y, axis=0)", "f32[3]", "u8[]"),
]

PADDED = [
    ("np.pad(x, 2)", "f32[3]"),
    ("np.pad(x, 0)", "f32[3]"),
    ("np.pad(x, (1, 2))", "f32[2,3]"),
    ("np.pad(x, ((1, 2),))", "f32[2,3]"),
    ("np.pad(x, ((1, 2), (0, 3)))", "f32[2,3]"),
    ("np.pad(x, numpy.array([[1, 0], [2, 1]]))", "f32[2,3]"),
    ("np.pad(x, 1, constant_values=5)", "f32[2,3]"),
    ("np.pad(x, 1, constant_values=2.7)", "i8[3]"),
    ("np.pad(x, 1, constant_values=1.5)", "bf16[3]"),
    ("np.pad(x, 1, constant_values=(1, 2))", "f32[2,3]"),
    ("np.pad(x, 1, constant_values=((1, 2), (3, 4)))", "f32[2,3]"),
    ("np.pad(x, 1, constant_values=y)", "f32[2,3]", "f32[]"),
    ("np.pad(x, 1, constant_values=y)", "f32[2,3]", "i32[]"),
    ("np.pad(x, 1, mode='constant')", "bool[3]"),
    ("np.pad(x, 1)", "~f32[3]"),
    ("np.pad(x, 1)", "f32[0]"),
    *[
        (f"np.pad(x, {width}, mode={mode!r})", "f32[2,3]")
        for mode in ("edge", "reflect", "symmetric", "wrap")
        for width in ("1", "((0, 1), (2, 0))", "((3, 4), (5, 2))", "((11, 0), (0, 13))")
    ],
    ("np.pad(x, 2, 'edge')", "i32[1]"),
    ("np.pad(x, 2, 'wrap')", "~f32[3]"),
    ("np.pad(x, 2, 'reflect')", "f32[1]"),
    *[
        (f"np.pad(x, ((1, 2), (2, 0)), mode={mode!r}{length})", kind)
        for mode in ("maximum", "minimum", "mean")
        for length in ("", ", stat_length=1", ", stat_length=((1, 2), (2, 9))")
        for kind in ("f32[2,3]", "i32[2,3]")
    ],
    ("np.pad(x, 1, 'median')", "f32[2,3]"),
    ("np.pad(x, ((1, 2), (2, 0)), 'linear_ramp', end_values=((1, 2), (3, -4)))", "f32[2,3]"),
    ("np.pad(x, ((11, 0), (3, 13)), 'reflect', reflect_type='odd')", "f32[2,3]"),
    ("np.pad(x, ((3, 4), (5, 2)), 'symmetric', reflect_type='odd')", "i32[2,3]"),
]

CHANGED = [
    ("np.delete(x, 1)", "f32[4]"),
    ("np.delete(x, -1, axis=1)", "f32[2,3]"),
    ("np.delete(x, numpy.array([0, 2]), axis=0)", "f32[4,2]"),
    ("np.delete(x, slice(None, None, 2), axis=1)", "f32[2,5]"),
    ("np.delete(x, numpy.array([True, False, True]))", "f32[3]"),
    ("np.delete(x, 2)", "f32[2,3]"),
    ("np.insert(x, 1, 5.0)", "f32[3]"),
    ("np.insert(x, -1, y)", "f32[3]", "f32[]"),
    ("np.insert(x, 1, y, axis=0)", "f32[2,3]", "f32[3]"),
    ("np.insert(x, 1, y, axis=1)", "f32[2,3]", "f32[2]"),
    ("np.insert(x, numpy.array([1, 2]), y)", "f32[3]", "f32[2]"),
    ("np.insert(x, numpy.array([2, 0, 2]), 7, axis=1)", "f32[2,3]"),
    ("np.insert(x, numpy.array([1]), y, axis=1)", "f32[2,3]", "f32[2,2]"),
    ("np.insert(x, slice(0, 2), y)", "f32[3]", "f32[2]"),
    ("np.insert(x, 0, 1.5)", "i32[3]"),
    ("np.resize(x, (2, 4))", "f32[3]"),
    ("np.resize(x, 2)", "f32[2,3]"),
    ("np.resize(x, (3, 0))", "f32[3]"),
    ("np.resize(x, (2, 2))", "f32[0]"),
    ("np.copy(x)", "f32[3]"),
    ("np.copy(2.0)",),
    ("np.astype(x, 'int32')", "f32[3]"),
    ("np.astype(x, 'float32')", "~f32[3]"),
    ("np.astype(x, bool)", "f32[3]"),
    ("np.astype(x, float)", "i32[3]"),
    ("np.astype(x, 'bfloat16')", "f32[3]"),
    ("np.ix_(x, y)", "i32[2]", "i32[3]"),
    ("np.unravel_index(x, (2, 3))", "i32[4]"),
    ("np.unravel_index(x, (2, 3))", "u8[4]"),
    ("np.unravel_index(5, (2, 3))",),
    ("np.unravel_index(-1, (2, 3))",),
    ("np.unravel_index(x, 7)", "i32[2,2]"),
    ("np.ravel_multi_index((x, y), (2, 3), mode='clip')", "i32[4]", "i32[4]"),
    ("np.ravel_multi_index((x, y), (2, 3), mode='wrap')", "i32[4]", "i32[4]"),
    ("np.ravel_multi_index((x, y), (2, 3), mode='wrap', order='F')", "i32[4]", "i32[4]"),
]

CALLS = [*SHAPES, *JOINED, *REPEATED, *PADDED, *CHANGED]


REARRANGEMENTS = Agreement(fnp, jnp, CALLS)


@pytest.mark.parametrize("call", REARRANGEMENTS.calls, ids=label)
def test_rearrangements_agree_with_jax(call):
    REARRANGEMENTS.check(call)


@pytest.mark.parametrize("call", CALLS[::7], ids=label)
def test_rearrangements_agree_with_jax_step_by_step(call):
    agree_at_once(fnp, jnp, *call)


BATCHES = Agreement(
    fnp, jnp, [call for call in CALLS if len(call) > 1][::10], values_of_a_batch, weak=False
)


@pytest.mark.parametrize("call", BATCHES.calls, ids=label)
def test_rearrangements_map_over_batches(call):
    BATCHES.check(call)


WIDE = Agreement(
    fnp,
    jnp,
    [
        tuple([part.replace("f32", "f64").replace("i32", "i64") for part in call])
        for call in CALLS[::9]
    ],
)


@pytest.mark.parametrize("call", WIDE.calls, ids=label)
def test_rearrangements_agree_with_jax_in_64_bits(call, x64):
    WIDE.check(call)


INEXACT = [
    call
    for call in CALLS
    if len(call) > 1
    and all(t.startswith("f32") for t in call[1:])
    and not any(name in call[0] for name in ("int32", "bool"))
]


DERIVATIVES = Agreement(fnp, jnp, INEXACT[::4], derivatives, weak=False)


@pytest.mark.parametrize("call", DERIVATIVES.calls, ids=label)
def test_derivatives_of_rearrangements_agree_with_jax(call):
    DERIVATIVES.check(call)


def test_any_iterable_of_integers_is_a_shape():
    lengths = {2: "rows", 3: "columns"}.keys()
    for shaped in (fnp.zeros(lengths), fnp.arange(6).reshape(range(2, 4)), fnp.empty(iter((2, 3)))):
        assert shaped.shape == (2, 3)


@pytest.mark.parametrize("function", [fnp.sum, fnp.average, nn.standardize])
def test_axes_are_no_set_and_no_iterator_which_is_read_once(function):
    for axes in ({0, 1}, iter((0, 1))):
        with pytest.raises(ArgumentError, match="axis must be an integer; got"):
            function(np.ones((2, 3), "float32"), axis=axes)


def test_broadcast_shapes_takes_ints_and_tuples():
    assert fnp.broadcast_shapes((2, 1), 3, ()) == (2, 3)


def test_split_at_descending_indices_overlaps_as_numpy_does():
    x = np.arange(6)
    for ours, theirs in zip(fnp.split(x, [4, 2]), np.split(x, [4, 2]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_split_beyond_the_end_gives_empty_sections():
    assert [x.shape for x in fnp.split(np.ones(5), (2, 9))] == [(2,), (3,), (0,)]


def test_ix_takes_masks():
    rows, columns = fnp.ix_([0, 1], [True, False, True])
    np.testing.assert_array_equal(rows, [[0], [1]])
    np.testing.assert_array_equal(columns, [[0, 2]])


def test_pad_takes_a_width_an_axis_and_a_dict_of_axes():
    x = np.ones((2, 3), np.float32)
    assert fnp.pad(x, [[1], [2]]).shape == (4, 7)
    assert fnp.pad(x, {-1: (1, 2)}).shape == (2, 6)
    assert fnp.pad(x, {1: 4}).shape == (2, 11)


@pytest.mark.parametrize("mode", ["edge", "reflect", "linear_ramp", "maximum", "median"])
def test_pad_leaves_an_axis_without_elements_as_it_is(mode):
    assert fnp.pad(np.ones((2, 0, 2)), ((3, 3), (0, 0), (1, 1)), mode).shape == (8, 0, 4)


@pytest.mark.parametrize("indices", [3, -1, [7, -10, 2]])
def test_delete_takes_distinct_traced_integers(indices):
    x = np.arange(10.0, dtype=np.float32)
    call = jit(lambda x, i: fnp.delete(x, i, assume_unique_indices=True))
    np.testing.assert_array_equal(call(x, np.array(indices)), np.delete(x, indices))


def test_ravel_multi_index_takes_known_indices():
    places = fnp.ravel_multi_index((np.array([1, 0]), np.array([2, 1])), (2, 3))
    np.testing.assert_array_equal(places, [5, 1])
    assert fnp.ravel_multi_index((1, 2), (2, 3), order="F") == 5


def equations(call, *shapes):
    program = make_ir(call)(*[np.ones(shape, np.float32) for shape in shapes])
    return [eqn.primitive.name for eqn in program.equations]


@pytest.mark.parametrize(
    "call, shapes, expected",
    [
        (lambda np, x: np.reshape(x, (2, -1)), [(2, 3)], []),
        (lambda np, x: np.reshape(x, -1), [(2, 3)], ["reshape"]),
        (lambda np, x: np.transpose(x), [(2, 3)], ["permute_dims"]),
        (lambda np, x, y: np.stack([x, y]), [(2, 3)] * 2, ["concatenate", "reshape"]),
        (lambda np, x, y: np.concatenate([x, y]), [(2, 3)] * 2, ["concatenate"]),
        (lambda np, x: np.tile(x, (2, 2)), [(2, 3)], ["broadcast_in_dim", "reshape"]),
        (lambda np, x: np.repeat(x, 2, 0), [(2, 3)], ["broadcast_in_dim", "reshape"]),
        (lambda np, x: np.pad(x, 1), [(2, 3)], ["pad"]),
        (lambda np, x: np.roll(x, 1, 0), [(2, 3)], ["slice", "slice", "concatenate"]),
        (lambda np, x: np.pad(x, 1, "wrap"), [(3,)], ["slice", "slice", "concatenate"]),
        (lambda np, x: np.delete(x, 1), [(5,)], ["slice", "slice", "concatenate"]),
    ],
)
def test_array_manipulation_takes_few_equations(call, shapes, expected):
    assert equations(lambda *xs: call(fnp, *xs), *shapes) == expected


X, V = np.ones((2, 3), np.float32), np.ones(3, np.float32)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda np: np.reshape(X, (4, 2)), ShapeError, r"reshape: .* got f32\[2,3\] .* \(4, 2\)"),
        (lambda np: np.reshape(X, (-1, -1)), ShapeError, r"reshape: .*one dimension at most"),
        (lambda np: np.reshape(X, (-2, -3)), ShapeError, r"reshape"),
        (lambda np: np.reshape(X, (4, -1)), ShapeError, r"reshape"),
        (lambda np: np.reshape(X, 6.0), ArgumentError, r"reshape: the shape must be an integer"),
        (lambda np: np.reshape(X, 6, "K"), ValueRangeError, r'order must be "C" or "F"'),
        (lambda np: np.squeeze(X, 0), ShapeError, r"squeeze: axes must have length 1"),
        (lambda np: np.squeeze(X, 2), AxisError, r"squeeze: axis must be in \[-2, 2\)"),
        (lambda np: np.expand_dims(X, 3), AxisError, r"expand_dims: axis"),
        (
            lambda np: np.transpose(X, (0, 0)),
            AxisError,
            r"transpose: axes must name each axis once",
        ),
        (lambda np: np.transpose(X, (0,)), AxisError, r"transpose: axes must name every axis"),
        (lambda np: np.matrix_transpose(V), ShapeError, r"matrix_transpose"),
        (lambda np: np.swapaxes(X, 0, 2), AxisError, r"swapaxes: axis2"),
        (lambda np: np.moveaxis(X, (0, 1), 0), AxisError, r"moveaxis: .* one length"),
        (lambda np: np.broadcast_to(X, (3,)), ShapeError, r"broadcast_to"),
        (lambda np: np.broadcast_to(X, (-1, 3)), ArgumentError, r"must not be negative"),
        (lambda np: np.concatenate([]), ValueRangeError, r"concatenate: .*at least one"),
        (lambda np: np.concatenate([X, V]), ShapeError, r"concatenate: .*f32\[2,3\] and f32\[3\]"),
        (lambda np: np.concatenate([1.0, 2.0]), ShapeError, r"concatenate: .*one dimension"),
        (lambda np: np.concatenate([X, X], 2), AxisError, r"concatenate: axis"),
        (lambda np: np.stack([X, V]), ShapeError, r"stack: arrays must have one shape"),
        (lambda np: np.stack([X, X], 3), AxisError, r"stack: axis"),
        (lambda np: np.split(V, 2), ValueRangeError, r"split: .*2 sections"),
        (lambda np: np.split(V, 0), ValueRangeError, r"split: .*0 sections"),
        (lambda np: np.dsplit(X, 2), ShapeError, r"dsplit: .*3 dimensions"),
        (lambda np: np.block([[X], X]), ShapeError, r"block: lists must be nested to one depth"),
        (lambda np: np.repeat(V, [1, 2]), ValueRangeError, r"repeat: the counts"),
        (lambda np: np.repeat(V, -1), ValueRangeError, r"repeat: the counts"),
        (lambda np: np.repeat(V, 1.5), DTypeError, r"repeat: the counts must be integers"),
        (lambda np: jit(lambda n: np.repeat(V, n))(2), ConcretizationError, r"repeat: the counts"),
        (lambda np: np.rot90(V), ShapeError, r"rot90"),
        (lambda np: np.rot90(X, axes=(0, 0)), AxisError, r"rot90"),
        (lambda np: np.roll(X, (1, 2, 3), (0, 1)), AxisError, r"roll: shifts and axes must pair"),
        (lambda np: np.pad(X, -1), ValueRangeError, r"pad: widths must not be negative"),
        (lambda np: np.pad(X, ((1, 2),) * 3), ValueRangeError, r"pad: widths must be"),
        (lambda np: np.pad(X, 1.5), ArgumentError, r"pad: widths must be an integer"),
        (lambda np: np.pad(X, 1, "mirror"), ValueRangeError, r"pad: mode must be one of"),
        (
            lambda np: np.pad(X, 1, "edge", constant_values=1),
            ArgumentError,
            r"pad: the mode 'edge'",
        ),
        (lambda np: np.pad(X[:0], 1, "edge"), ShapeError, r"pad: an axis without elements"),
        (lambda np: np.delete(V, 3), ValueRangeError, r"delete: indices must be in \[-3, 3\)"),
        (lambda np: np.insert(V, 5, 1.0), ValueRangeError, r"insert: indices"),
        (lambda np: np.ix_(X), ShapeError, r"ix_: operands must have one dimension"),
        (lambda np: np.unravel_index(V, (3,)), DTypeError, r"unravel_index: indices must be int"),
        (lambda np: np.ravel_multi_index((5,), (3,)), ValueRangeError, r"ravel_multi_index"),
    ],
)
def test_misuse_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call(fnp)
