"""`vmap`: where axes come from and go to, and what is refused."""

from collections import OrderedDict

import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx import grad, jit, vmap
from functx.core.errors import (
    ArgumentError,
    AxisError,
    AxisSizeError,
    ConcretizationError,
    InAxesError,
    OutAxesError,
)

rows = np.arange(12.0, dtype="float32").reshape(4, 3)
row = np.array([1.0, 2.0, 3.0], "float32")


def refused(error, call, *says):
    with pytest.raises(error) as caught:
        call()
    for words in says:
        assert words in str(caught.value), str(caught.value)


def test_axes_may_be_ints_none_negative_or_tree_prefixes():
    np.testing.assert_allclose(vmap(lambda x, y: x @ y, in_axes=(0, None))(rows, row), rows @ row)
    np.testing.assert_allclose(vmap(lambda x: x.sum(), in_axes=-1)(rows), rows.sum(0))
    f = lambda d, z: d["a"] + d["b"].sum() + z  # noqa: E731
    got = vmap(f, in_axes=({"a": 0, "b": None}, 0))({"a": rows[:, 0], "b": row}, rows[:, 1])
    np.testing.assert_allclose(got, rows[:, 0] + 6 + rows[:, 1])
    np.testing.assert_allclose(
        vmap(f, in_axes=[{"a": 0, "b": None}, 0])({"a": rows[:, 0], "b": row}, rows[:, 1]), got
    )


def test_keyword_arguments_are_mapped_over_their_first_axis():
    np.testing.assert_allclose(vmap(lambda x, y: x * y)(rows, y=rows), rows * rows)


def test_out_axes_place_the_new_axis():
    assert vmap(lambda x: x, out_axes=1)(rows).shape == (3, 4)
    assert vmap(lambda x: x, out_axes=-1)(rows).shape == (3, 4)
    a, b = vmap(lambda x: (x, {"b": x.sum()}), out_axes=(1, 0))(rows)
    assert a.shape == (3, 4) and b["b"].shape == (4,)
    assert vmap(lambda x: x, out_axes=(1,))(rows).shape == (3, 4)


def test_results_that_do_not_depend_on_the_batch_are_repeated_or_left():
    assert vmap(lambda x: row)(rows).shape == (4, 3)
    assert vmap(lambda x: 1.0)(rows).shape == (4,)
    constant, mapped = vmap(lambda x: (row * 2.0, x), out_axes=(None, 0))(rows)
    assert constant.shape == (3,) and mapped.shape == (4, 3)


def test_results_may_be_any_pytree():
    out = vmap(lambda x: OrderedDict(a=x, b=(x.sum(), None)))(rows)
    assert list(out) == ["a", "b"] and out["b"][0].shape == (4,) and out["b"][1] is None


def test_nested_maps_compose():
    f = lambda x, y: x * y  # noqa: E731
    outer = vmap(vmap(f, in_axes=(None, 0)), in_axes=(0, None))(row, row)
    np.testing.assert_allclose(outer, np.outer(row, row))
    assert vmap(lambda x: vmap(lambda y: row)(rows))(rows).shape == (4, 4, 3)


def test_an_empty_batch_has_an_empty_result():
    assert vmap(lambda x: xp.sin(x).sum())(np.zeros((0, 3), "float32")).shape == (0,)


def test_axis_size_stands_in_for_mapped_arguments():
    assert vmap(lambda x: x * 2.0, in_axes=None, axis_size=5)(row).shape == (5, 3)


def test_vmap_is_a_decorator_with_and_without_arguments():
    @vmap
    def f(x):
        return x.sum()

    @vmap(in_axes=1)
    def g(x):
        return x.sum()

    assert f(rows).shape == (4,) and g(rows).shape == (3,)


def test_per_example_gradients_equal_a_loop():
    loss = lambda w, x: (xp.tanh(x @ w) ** 2).sum()  # noqa: E731
    w = np.ones((3, 2), "float32")
    got = jit(vmap(grad(loss), in_axes=(None, 0)))(w, rows)
    np.testing.assert_allclose(got, np.stack([grad(loss)(w, x) for x in rows]), rtol=1e-5)


def test_bad_in_axes_are_refused_in_order():
    f = lambda x, y: x  # noqa: E731
    refused(InAxesError, lambda: vmap(f, in_axes="0"), "int", "str")
    refused(InAxesError, lambda: vmap(f, in_axes={0}), "set")
    refused(AxisSizeError, lambda: vmap(lambda: 1.0)(), "argument")
    refused(InAxesError, lambda: vmap(f, in_axes=(0,))(row, row), "1 entries", "2 arguments")
    refused(InAxesError, lambda: vmap(f, in_axes=({"a": 0}, 0))({"b": row}, row), "tree prefix")
    refused(InAxesError, lambda: vmap(f, in_axes=(1.0, 0)), "float")
    refused(InAxesError, lambda: vmap(f, in_axes=(0, 0))("text", row), "`x`", "None")
    refused(AxisError, lambda: vmap(f, in_axes=(1, 0))(row, row), "`x`", "[-1, 1)", "f32[3]")
    refused(AxisError, lambda: vmap(f)(1.0, row), "`x`", "~f32[]", "None")
    refused(InAxesError, lambda: vmap(f)(row, y="text"), "`y`", "functools.partial(f, name=x)")
    refused(AxisError, lambda: vmap(f)(row, y=1.0), "`y`", "functools.partial(f, name=x)")
    refused(AxisSizeError, lambda: vmap(f, in_axes=None)(row, row), "at least one")


def test_unequal_sizes_are_refused_with_all_of_them_by_name():
    g = lambda mean, scale, shift: mean * scale + shift  # noqa: E731
    call = lambda: vmap(g)(np.ones(3, "f"), shift=np.ones(4, "f"), scale=np.ones(3, "f"))  # noqa: E731
    refused(
        AxisSizeError, call, "3 and 4", "mean: f32[3]", "shift: f32[4]", "scale: f32[3]", "in_axes"
    )
    assert issubclass(AxisSizeError, ValueError)


def test_bad_outputs_and_out_axes_are_refused():
    refused(ArgumentError, lambda: vmap(lambda x: "text")(row), "str")
    refused(OutAxesError, lambda: vmap(lambda x: x, out_axes=None)(row), "None", "depend")
    refused(OutAxesError, lambda: vmap(lambda x: x, out_axes="0"), "str")
    refused(OutAxesError, lambda: vmap(lambda x: (x, x), out_axes=(0, 0, 0))(row), "out_axes")
    refused(AxisError, lambda: vmap(lambda x: x, out_axes=2)(row), "[-1, 1)")


def test_values_of_batched_arrays_are_refused_with_line_and_remedy():
    def soft(t):
        if t < 0.5:
            return t * t
        return t - 0.25

    refused(
        ConcretizationError,
        lambda: vmap(soft)(row),
        "`if`",
        "if t < 0.5:",
        "test_vmap.py",
        "`t`",
        "vmap(soft)",
        "where",
        "lax.cond",
    )
    for ask in (float, int, bool, lambda x: x.item()):
        refused(ConcretizationError, lambda ask=ask: vmap(lambda x: ask(x) * x)(row), "vmap")
    assert issubclass(ConcretizationError, RuntimeError)


def test_a_value_without_dependence_on_the_batch_is_concrete():
    def f(x):
        n = xp.arange(4).sum()
        return x * 2.0 if n > 5 else x

    np.testing.assert_allclose(vmap(f)(row), 2 * row)


def test_the_size_of_a_data_dependent_result_is_refused():
    refused(functx.errors.FunctxError, lambda: vmap(lambda x: xp.nonzero(x)[0])(rows), "size")


def test_in_dims_and_out_dims_are_in_axes_and_out_axes():
    def f(x, y):
        return xp.outer(x, y)

    wanted = vmap(f, in_axes=(1, None), out_axes=-1)(rows, row)
    np.testing.assert_array_equal(vmap(f, in_dims=(1, None), out_dims=-1)(rows, row), wanted)
    np.testing.assert_array_equal(vmap(in_dims=1)(xp.sum)(rows), rows.sum(0))
    refused(InAxesError, lambda: vmap(f, in_axes=0, in_dims=0), "in_dims", "both, 0 and 0")
    refused(OutAxesError, lambda: vmap(f, out_axes=None, out_dims=1), "both, None and 1")
    refused(InAxesError, lambda: vmap(f, in_dims="01"), "str", "'01'")
    refused(OutAxesError, lambda: vmap(f, out_dims=0.5), "out_axes", "float 0.5")


def test_products_of_a_matrix_with_many_vectors_are_rows():
    w, xs = np.ones((3, 4), "f"), np.ones((5, 4), "f")
    program = functx.make_ir(
        functx.vmap(lambda x: functx.lax.dot(w, x, precision=("high", "default")))
    )(xs)
    (dot,) = program.equations
    assert dot.outputs[0].aval.shape == (5, 3) and dot.inputs[0] is program.inputs[0]
    assert dot.primitive.precision == ("DEFAULT", "HIGH")
