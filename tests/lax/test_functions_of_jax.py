"""Functions of lax that only JAX has, against JAX."""

from functools import partial

import jax
import numpy as np
import pytest
from jax import lax as theirs

import functx
import functx.numpy as fnp
from functx import errors, lax

RANDOM = np.random.RandomState(0)


def normal(*shape):
    return RANDOM.standard_normal(shape).astype("float32")


def check(ours, expected, tolerance=1e-4):
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        assert (np.shape(x), np.asarray(x).dtype) == (np.shape(y), np.asarray(y).dtype)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


LAYOUTS = [None, ("NHWC", "HWIO", "NHWC"), ("NHWC", "WOHI", "CNWH")]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_patches_and_local_convolutions(layout):
    x = normal(2, 3, 5, 6) if layout is None else normal(2, 5, 6, 3)
    options = {"dimension_numbers": layout, "rhs_dilation": (1, 2)}
    arguments = (2, 3), (1, 2), "SAME"
    patches = theirs.conv_general_dilated_patches(x, *arguments, **options)
    check(lax.conv_general_dilated_patches(x, *arguments, **options), patches)
    numbers = theirs.conv_dimension_numbers(x.shape, (1, 1, 2, 3), layout)
    shape = [4] * 4
    roles = zip(numbers.out_spec[1:], numbers.rhs_spec[1:], strict=True)
    for ours, kernel in roles:
        shape[kernel] = patches.shape[ours]
    kernel = normal(*shape)
    arguments = x, kernel, (1, 2), "SAME", (2, 3)
    check(
        lax.conv_general_dilated_local(*arguments, **options),
        theirs.conv_general_dilated_local(*arguments, **options),
    )


@pytest.mark.parametrize("padding", ["SAME", "VALID", [(1, 2), (0, 1)]])
def test_shapes_of_convolutions(padding):
    layout, shapes = LAYOUTS[2], ((2, 5, 6, 3), (3, 4, 2, 3))
    for name in ("conv_general_shape_tuple", "conv_transpose_shape_tuple"):
        for strides in ((1, 2), (4, 1)):
            ours, expected = (
                getattr(m, name)(*shapes, strides, padding, layout) for m in (lax, theirs)
            )
            assert ours == tuple(map(int, expected))
    assert lax.conv_general_permutations(layout) == theirs.conv_general_permutations(layout)
    arguments = (2, 3, 5, 6), (4, 3, 2, 3), (1, 2), padding
    assert lax.conv_shape_tuple(*arguments) == tuple(map(int, theirs.conv_shape_tuple(*arguments)))
    if isinstance(padding, str):
        arguments = (5, 4), (2, 3), (1, 2), padding
        assert lax.padtype_to_pads(*arguments) == theirs.padtype_to_pads(*arguments)
    else:
        arguments = (5, 6), (2, 3), (1, 2), padding, (2, 1), (1, 2)
        expected = theirs.reduce_window_shape_tuple(*arguments)
        assert lax.reduce_window_shape_tuple(*arguments) == tuple(map(int, expected))


# Operands, dimension numbers, the ragged dimension, the group dimension, and the shape before the groups.
RAGGED = {
    "rows": (((2, 7, 3), (4, 2, 3, 5)), ([[2], [2]], [[0], [1]]), 1, [0], (2,)),
    "groups last": (((2, 7, 3), (2, 3, 5, 4)), ([[2], [1]], [[0], [0]]), 1, [3], (2,)),
    "rows behind others": (((6, 7, 3), (4, 3, 2)), ([[2], [1]], [[], []]), 1, [0], (6,)),
    "contracted": (((2, 6, 7), (2, 7, 6, 5)), ([[1, 2], [2, 1]], [[0], [0]]), 2, [], (2, 6)),
    "batch": (((7, 6, 3), (7, 3, 2)), ([[2], [1]], [[0], [0]]), 0, [], ()),
}


@pytest.mark.parametrize("case", RAGGED)
def test_ragged_products(case):
    shapes, dots, ragged, groups, prefix = RAGGED[case]
    operands, sizes = [normal(*shape) for shape in shapes], np.array([1, 2, 0, 3], "int32")
    numbers = lax.RaggedDotDimensionNumbers(dots, [ragged], groups)
    for given in (sizes, np.broadcast_to(sizes, (*prefix, 4))):
        expected = theirs.ragged_dot_general(*operands, given, numbers)
        check(lax.ragged_dot_general(*operands, given, numbers), expected)


def test_ragged_dot_under_transforms():
    def loss(dot, rows, matrices, sizes):
        return (dot(rows, matrices, sizes) ** 2).sum()

    rows, matrices, sizes = normal(2, 6, 3), normal(3, 3, 2), np.array([[2, 3, 1], [1, 1, 1]])
    ours = functx.vmap(functx.grad(partial(loss, lax.ragged_dot), (0, 1)), (0, None, 0))
    expected = [
        jax.grad(partial(loss, theirs.ragged_dot), (0, 1))(x, matrices, n)
        for x, n in zip(rows, sizes, strict=True)
    ]
    check(functx.jit(ours)(rows, matrices, sizes), jax.tree.map(lambda *x: np.stack(x), *expected))
    check(
        lax.ragged_dot(rows[0], matrices[1:], sizes[0], group_offset=np.array([1])),
        theirs.ragged_dot(rows[0], matrices, sizes[0]) * (np.arange(6) >= 2)[:, None],
    )


def test_mistakes_in_ragged_products():
    x, y = normal(6, 3), normal(2, 3, 4)
    with pytest.raises(errors.ShapeError, match="a matrix for each of 3 groups; got 2"):
        lax.ragged_dot(x, y, np.array([1, 2, 3]))
    with pytest.raises(errors.ShapeError, match="group_sizes must be a vector"):
        lax.ragged_dot(x, y, 3)
    with pytest.raises(errors.ShapeError, match="must have the lengths of the dimensions before"):
        lax.ragged_dot(x, y, np.ones((6, 2), int))
    with pytest.raises(errors.ShapeError, match="one ragged dimension of lhs, from 0 to 1"):
        numbers = lax.RaggedDotDimensionNumbers((([1], [1]), ([], [])), [2], [0])
        lax.ragged_dot_general(x, y, np.ones(2, int), numbers)
    with pytest.raises(errors.ShapeError, match="must have 1 group dimensions, since"):
        numbers = lax.RaggedDotDimensionNumbers((([1], [1]), ([], [])), [0], [])
        lax.ragged_dot_general(x, y, np.ones(2, int), numbers)


def test_products_with_scales():
    x, y, scale = normal(2, 4, 8), normal(2, 8, 3), RANDOM.rand(2, 4, 2).astype("float32")
    ours, expected = (
        m.scaled_dot(x, y, lhs_scale=scale, preferred_element_type="float32") for m in (lax, theirs)
    )
    check(ours, np.einsum("bmk,bkn->bmn", x * np.repeat(scale, 4, -1), y))
    check(ours, expected, 0.1)
    assert lax.scaled_dot(x, y).dtype == fnp.bfloat16
    with pytest.raises(errors.ValueRangeError, match="must be a multiple of that of its scale"):
        lax.scaled_dot(x, y, lhs_scale=scale[..., :1].repeat(3, -1))
    with pytest.raises(errors.ShapeError, match="a scale must have the shape of its operand"):
        lax.scaled_dot(x, y, lhs_scale=scale[:1])


def test_elements_at_vectors_of_indices():
    x, i, j = normal(4, 5, 6), np.array([1, -2, 7]), np.array([0, 5, 3])
    for indices, axes in (((i,), (1,)), ((i, j), (0, 2))):
        check(lax.index_take(x, indices, axes), theirs.index_take(x, indices, axes))


def test_windows_of_a_gather_have_one_element_along_batching_dimensions():
    numbers = lax.GatherDimensionNumbers((1,), (), (1,), (0,), (0,))
    x, indices = normal(3, 4), np.zeros((3, 1), int)
    check(lax.gather(x, indices, numbers, (1, 4)), x)
    with pytest.raises(errors.ShapeError, match="batching dimensions must have length 1"):
        lax.gather(x, indices, numbers, (2, 4))


class TestScatterApply:
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    indices = np.array([[1], [3], [1], [9]])

    def applied(self, x, **options):
        return lax.scatter_apply(
            x, self.indices, fnp.sin, self.numbers, update_shape=(4,), **options
        )

    def test_a_function_is_applied_as_often_as_an_index_occurs(self):
        x = np.arange(5, dtype="float32")
        numbers = theirs.ScatterDimensionNumbers((), (0,), (0,))
        expected = theirs.scatter_apply(
            jax.numpy.asarray(x), self.indices, jax.numpy.sin, numbers, update_shape=(4,)
        )
        check(self.applied(x), expected)

    def test_derivatives(self):
        x = np.arange(5, dtype="float32")
        slope = functx.grad(lambda x: self.applied(x).sum())(x)
        check(slope, np.float32([1, np.cos(np.sin(1)) * np.cos(1), 1, np.cos(3), 1]))
        once = functx.jit(functx.vmap(lambda x: self.applied(x, unique_indices=True)))(x[None])
        check(once, np.where(np.isin(x, [1, 3]), np.sin(x), x)[None])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_the_upper_half_of_a_product(dtype):
    info, bits = np.iinfo(dtype), np.dtype(dtype).itemsize * 8
    ends = np.array([info.min, info.max, 0, 1], dtype)
    x = np.concatenate([RANDOM.randint(info.min, info.max, 12, dtype=dtype), ends])
    x, y = np.repeat(x, 16), np.tile(x, 16)
    expected = np.array([int(a) * int(b) >> bits for a, b in zip(x, y, strict=True)], object)
    with jax.enable_x64(bits == 64):
        check(lax.mulhi(x, y), expected.astype(dtype))
    with pytest.raises(errors.DTypeError, match="integers of one dtype"):
        lax.mulhi(1.0, 2.0)


@pytest.mark.parametrize("name", ["approx_max_k", "approx_min_k"])
def test_about_the_largest_and_the_smallest(name):
    ours, expected = getattr(lax, name), getattr(theirs, name)
    x = normal(3, 500)
    for options in ({}, {"aggregate_to_topk": False, "recall_target": 0.5}):
        check(ours(x, 4, **options), expected(x, 4, **options))
    slopes = [
        m.vmap(m.grad(lambda v, f=f: f(v, 2, 0)[0].prod()))(x[:, :4])
        for m, f in ((functx, ours), (jax, expected))
    ]
    check(*slopes)


def test_dtypes_and_values():
    for x in (1.5, 1, True, 2j, np.ones(2), "float32", float, int, np.float32, np.dtype("i4")):
        assert lax.dtype(x) == theirs.dtype(x)
    with pytest.raises(errors.ArgumentError, match="got None"):
        lax.dtype(None)
    with pytest.raises(errors.DTypeError, match="must be one of numbers; got <U3"):
        lax.dtype(np.dtype("U3"))
    for shape in ((), (2, 3)):
        check(lax.shape_as_value(shape), theirs.shape_as_value(shape))
    check(
        lax.broadcast_like(np.float32([1, 2]), np.ones((3, 2))), np.tile(np.float32([1, 2]), (3, 1))
    )
    assert lax.stage(2.0) == 2
    assert functx.make_ir(lambda x: lax.stage(2.0) * x)(3.0)(3.0) == 6


def test_tokens():
    token = functx.jit(lambda: lax.after_all(lax.create_token(), lax.create_token()))()
    assert lax.after_all(token).shape == lax.after_all().shape == (0,)
    with pytest.raises(errors.ShapeError, match="operands must be tokens"):
        lax.after_all(1.0)


def test_barriers_have_derivatives():
    def f(x):
        return lax.optimization_barrier({"a": x * 2, "b": 3})["a"] ** 2

    assert functx.jit(functx.grad(functx.grad(f)))(1.0) == 8
    assert lax.optimization_barrier(()) == ()
    text = jax.jit(functx.jit(functx.vmap(f))).lower(np.ones(2)).as_text()
    assert "optimization_barrier" in text


def test_a_sink_keeps_a_computation_in_the_program():
    def f(x):
        lax.dce_sink({"sine": fnp.sin(x)})
        return x * 2

    assert "sin x" in str(functx.make_ir(functx.grad(f))(1.0))
    check(functx.jit(functx.vmap(functx.grad(f)))(np.ones(2, "f")), np.full(2, 2, "f"))
    kept = functx.jit(lambda x: (lax.dce_sink(x, prevent_mlir_dce=True), x)[1])
    assert "dce_sink" in jax.jit(kept).lower(1.0).as_text()


class TestComposite:
    @staticmethod
    @partial(lax.composite, name="my.tan", version=2)
    def tan(x, /, *, table=(1.0,), label="a", scale=None):
        return fnp.sin(x) / fnp.cos(x), x * table[0]

    def test_it_is_one_operation_of_stablehlo(self):
        f = functx.jit(lambda x: self.tan(x, table=np.array([2.5, 1.0]), label="a", scale=None)[0])
        text = jax.jit(f).lower(1.0).as_text()
        assert 'stablehlo.composite "my.tan"' in text and "func private @my.tan(" in text
        assert 'label = "a"' in text
        assert "version = 2" in text

    def test_values_and_derivatives(self):
        x = np.float32([0.5, 1.0])
        check(functx.jit(self.tan)(x), (np.tan(x), x))
        check(functx.vmap(functx.grad(lambda x: self.tan(x)[0]))(x), 1 + np.tan(x) ** 2)
        check(functx.vmap(functx.jit(lambda x: self.tan(x, table=[3])[1]))(x), 3 * x)

    def test_an_attribute_is_known_before_the_program_runs(self):
        with pytest.raises(errors.ArgumentError, match="attributes, known before"):
            functx.jit(lambda x: self.tan(1.0, table=[x]))(2.0)


class TestPlatformDependent:
    @staticmethod
    def f(x):
        return lax.platform_dependent(x, cpu=fnp.sin, cuda=fnp.cos, default=lambda x: x)

    def test_the_function_of_the_platform_runs(self):
        x = np.float32([0.5, 1.0])
        check(self.f(x), np.sin(x))
        check(functx.jit(functx.vmap(functx.grad(self.f)))(x), np.cos(x))

    def test_others_are_not_compiled(self):
        text = jax.jit(functx.jit(self.f)).lower(1.0).as_text()
        assert "sine" in text
        assert "cosine" not in text
        assert "case" not in text

    def test_a_program_for_several_platforms_has_their_functions(self):
        exported = functx.export.export(self.f, platforms=("cpu", "cuda"))(1.0)
        check(exported.call(1.0), np.sin(np.float32(1)))

    def test_mistakes(self):
        with pytest.raises(errors.ArgumentError, match="got none for cpu, and no default"):
            lax.platform_dependent(1.0, tpu=abs)
        with pytest.raises(errors.ValueRangeError, match=r"must be named cpu, cuda, rocm or tpu"):
            lax.platform_dependent(1.0, gpu=abs)
        with pytest.raises(errors.ArgumentError, match="cpu must be a function; got int"):
            lax.platform_dependent(1.0, cpu=1)
