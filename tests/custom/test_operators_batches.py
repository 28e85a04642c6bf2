"""Batches of custom operators, by a rule and without one."""

import warnings

import jax
import numpy
import pytest

import functx
from functx import Array, custom_op, grad, jit, library, vmap
from functx import numpy as np
from functx.core.errors import MissingRuleError, OperatorRuleError, RegistrationError
from tests.custom.operators import opaque, scope  # noqa: F401

x = numpy.arange(12, dtype="float32").reshape(3, 4)


def row_sums(name="test::row_sums"):
    """The sum of `x * scale` along its last axis, and `x` itself times two."""

    @custom_op(name)
    def row_sums(x: Array, scale: float = 1.0, shift: Array | None = None) -> tuple[Array, Array]:
        return (x * scale).sum(-1), x * 2

    row_sums.def_abstract(lambda x, scale, shift: (jax.ShapeDtypeStruct(x.shape[:-1], x.dtype), x))
    return row_sums


def test_a_rule_gets_the_batch_and_where_it_is():
    op = row_sums()
    seen = []

    @op.def_vmap
    def rule(info, in_dims, x, *rest):
        seen.append((info.batch_size, info.randomness, in_dims, len(rest)))
        (dim,) = in_dims[:1]
        moved = np.moveaxis(x, dim, 0)
        return op(moved, *rest), (0, 0)

    sums, twice = vmap(op)(x)
    assert sums.tolist() == x.sum(-1).tolist() and twice.tolist() == (2 * x).tolist()
    sums, twice = vmap(op, in_axes=1, out_axes=(0, 1))(x)
    assert sums.tolist() == x.sum(0).tolist() and twice.tolist() == (2 * x).tolist()
    vmap(lambda x: op(x, 3.0))(x)
    assert seen == [(3, "error", (0,), 0), (4, "error", (1,), 0), (3, "error", (0, None), 1)]


def test_results_lie_where_the_rule_says():
    op = row_sums()
    op.def_vmap(lambda info, dims, x: ((x.sum(-1), np.moveaxis(2 * x, 0, 1)), (0, -1)))
    assert vmap(op)(x)[1].tolist() == (2 * x).tolist()
    op.def_vmap(lambda info, dims, x: ((x.sum(-1), 2 * x), 0))
    assert vmap(op)(x)[1].tolist() == (2 * x).tolist()
    constant = opaque()
    constant.def_vmap(lambda info, dims, x: (np.zeros(4), None))
    assert vmap(constant)(x).tolist() == [[0.0] * 4] * 3


def test_a_rule_nests_and_is_left_out_where_nothing_is_batched():
    op = opaque()
    seen = []

    @op.def_vmap
    def rule(info, in_dims, x):
        seen.append((info.batch_size, in_dims))
        return op(x), in_dims[0]

    assert np.allclose(vmap(vmap(op))(x), numpy.sin(x))
    assert seen == [(4, (0,)), (3, (0,))]
    assert np.allclose(
        vmap(vmap(op, in_axes=0, out_axes=0), in_axes=1, out_axes=1)(x), numpy.sin(x)
    )
    seen.clear()
    vmap(lambda y: y + op(2.0))(x)
    assert not seen
    op(x)
    assert np.allclose(jit(vmap(op))(x), jax.vmap(op)(x))


def test_arguments_have_their_batch_dimensions():
    @custom_op("test::mixed")
    def mixed(xs: list[Array], y: Array | None, n: int, z: Array) -> Array:
        return xs[0] + xs[1] + z * n

    mixed.def_abstract(lambda xs, y, n, z: z)
    seen = []

    @mixed.def_vmap
    def rule(info, in_dims, xs, y, n, z):
        seen.append(in_dims)
        return np.moveaxis(xs[0], 1, 0) + xs[1] + z * n, 0

    first, last = numpy.ones((4, 3), "float32"), numpy.ones((3, 4), "float32")
    out = vmap(lambda a, b: mixed([a, x[0]], None, 2, b), in_axes=(1, 0))(first, last)
    assert seen == [([1, None], None, None, 0)]
    assert out.tolist() == (x[0] + 3 + 0 * x).tolist()


def test_a_second_registration_replaces_the_first():
    op = opaque()
    op.def_vmap(lambda info, dims, x: (x, dims[0]))
    compiled = jit(vmap(op))
    assert compiled(x[0]).tolist() == x[0].tolist()
    op.def_vmap(lambda info, dims, x: (x * 2, dims[0]))
    assert compiled(x[0]).tolist() == (x[0] * 2).tolist()
    library.def_vmap("test::sine")(lambda info, dims, x: (x * 3, dims[0]))
    assert compiled(x[0]).tolist() == (x[0] * 3).tolist()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda x: x, r"return a pair \(output, out_dims\); got f32\[3,4\]"),
        (lambda x: (x, 0, 0), r"return a pair \(output, out_dims\); got tuple of 3"),
        (lambda x: ((x.sum(-1), x), (0, 0, 0)), r"out_dims of the structure of its output, .*\*, \*.* got .*\*, \*, \*"),
        (lambda x: ((x.sum(-1), x), (0, 3)), r"return dimensions from -2 to 1, or None, as out_dims; got 3"),
        (lambda x: ((x.sum(-1), x), (0, "a")), "as out_dims; got 'a'"),
        (lambda x: ((x.sum(-1), x, x), 0), "outputs of the structure"),
        (lambda x: ((x.sum(0), x), 0), r"return f32\[3\] as output 0; got f32\[4\]"),
    ],
)  # fmt: skip
def test_the_result_of_a_rule_is_checked(result, message):
    op = row_sums()
    op.def_vmap(lambda info, dims, x: result(x))
    with pytest.raises(RuntimeError, match=message) as caught:
        vmap(op)(x)
    assert isinstance(caught.value, OperatorRuleError)
    text = str(caught.value)
    assert "test::row_sums: its vmap rule, registered at test_operators_batches.py:" in text


def test_without_a_rule_elements_follow_each_other_with_one_warning():
    op = row_sums()
    with pytest.warns(UserWarning, match=r"test::row_sums has no vmap rule") as caught:
        sums, twice = vmap(op)(x)
    assert [w.filename for w in caught] == [__file__]
    assert sums.tolist() == x.sum(-1).tolist() and twice.tolist() == (2 * x).tolist()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert vmap(op, in_axes=1)(x)[0].tolist() == x.sum(0).tolist()
        nested = vmap(vmap(lambda x, s: op(x, 1.0, s), in_axes=(0, None)), in_axes=(None, 0))
        assert nested(x, numpy.ones(2, "float32"))[0].tolist() == [x.sum(-1).tolist()] * 2


def test_derivatives_are_mapped_without_a_rule_too():
    op = opaque()
    op.register_autograd(
        lambda ctx, g: g * np.cos(ctx.saved_tensors[0]),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    assert vmap(grad(op))(x[0]) == pytest.approx(numpy.cos(x[0]))
    with pytest.warns(UserWarning, match=r"no vmap rule"):
        assert grad(lambda x: vmap(op)(x).sum())(x[0]) == pytest.approx(numpy.cos(x[0]))
    assert functx.jacrev(op)(x[0]).shape == (4, 4)


def test_the_loop_without_a_rule_may_be_an_error():
    op = opaque()
    with (
        functx.config.set(operator_vmap="error"),
        pytest.raises(MissingRuleError, match=r"test::sine: .* must have a vmap rule"),
    ):
        vmap(op)(x)
    with pytest.warns(UserWarning, match=r"no vmap rule"):
        vmap(op)(x)
    with pytest.raises(ValueError, match=r"operator_vmap must be one of"):
        functx.config.operator_vmap = "never"


def test_operators_that_write_or_decompose_have_no_rule():
    @custom_op("test::written", mutates_args={"x"}, kernel="numpy")
    def written(x: Array) -> None:
        x *= 2

    with pytest.raises(RuntimeError, match=r"with a vmap rule must write to no argument") as caught:
        written.def_vmap(lambda info, dims, x: (None, None))
    assert isinstance(caught.value, RegistrationError)
    composite = custom_op("test::composite", decomposition=True, schema="(Array x) -> Array")(
        lambda x: np.sin(x)
    )
    with pytest.raises(RuntimeError, match=r"it decomposes instead"):
        composite.def_vmap(lambda info, dims, x: (x, 0))


def test_a_written_argument_is_written_for_each_element():
    @custom_op("test::written", mutates_args={"x"}, kernel="numpy")
    def written(x: Array, y: Array) -> Array:
        x += y
        return x.sum()

    written.def_abstract(lambda x, y: jax.ShapeDtypeStruct((), x.dtype))
    given = x.copy()
    with pytest.warns(UserWarning, match=r"no vmap rule"):
        sums = vmap(written, in_axes=(0, None))(given, numpy.ones(4, "float32"))
    assert given.tolist() == (x + 1).tolist() and sums.tolist() == (x + 1).sum(-1).tolist()
