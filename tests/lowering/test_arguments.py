"""Arguments that a program cannot take, and calls of what was lowered and compiled."""

from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx.core.errors import (
    ArgumentError,
    ConcretizationError,
    DonationError,
    TreeError,
    ValueRangeError,
)

x = np.array([1.0, 2.0, 3.0], "float32")


def refused(error, call, *says):
    with pytest.raises(error) as caught:
        call()
    for words in says:
        assert words in str(caught.value), str(caught.value)


def test_a_donated_array_is_passed_once():
    f = functx.jit(lambda a, t: a + t["b"], donate_argnums=0)
    y = jnp.ones(3)
    refused(
        DonationError, lambda: f(y, {"b": y}), "passed once", "`a`, which is donated", "`t['b']`"
    )


def test_a_donated_array_is_not_used_again():
    y = jnp.ones(3)
    functx.jit(lambda a: a + 1.0, donate_argnums=0)(y)
    for call, name in (
        (lambda: functx.jit(lambda v: v * 2.0)(y), "`v`"),
        (lambda: functx.grad(lambda u, w: (u * w).sum())(x, y), "`w`"),
        (lambda: xp.sin(y), "number 0"),
        (lambda: functx.jit(lambda v: v).lower(y).compile()(y), "`v`"),
    ):
        refused(DonationError, call, "must still have its buffer; got f32[3]", name)


def test_an_argument_is_not_both_static_and_donated():
    for options in (
        {"static_argnums": 0, "donate_argnums": 0},
        {"static_argnums": -2, "donate_argnums": (1, 0)},
        {"static_argnames": "n", "donate_argnums": 0},
    ):
        refused(
            ArgumentError, lambda o=options: functx.jit(lambda n, x: x, **o), "static and donated"
        )


@pytest.mark.parametrize(
    "call",
    [
        lambda t: functx.jit(lambda t: t[1])(t),
        lambda t: functx.grad(lambda t: t[1])([(t, 1.0)]),
        lambda t: functx.vmap(lambda x: t)(x),
        lambda t: functx.jit(lambda x: t)(x),
    ],
)
def test_keys_of_dictionaries_have_an_order(call):
    refused(TreeError, lambda: call({1: 1.0, "a": 2.0}), "sortable; got 1, 'a'", "OrderedDict")


def test_an_ordered_dictionary_keeps_its_order():
    t = OrderedDict([("b", 1.0), (0, 2.0)])
    assert list(functx.jit(lambda t: t)(t)) == ["b", 0]


@pytest.mark.parametrize("transform", [functx.jit, functx.grad])
def test_an_int_fits_the_dtype_that_it_gets(transform):
    f = transform(lambda x, t: x * t["n"])
    refused(ValueRangeError, lambda: f(1.0, {"n": 2**40}), "`t['n']`", "int32", "x64")
    with jax.enable_x64():
        assert float(f(1.0, {"n": 2**40})) == 2.0**40
        refused(ValueRangeError, lambda: f(1.0, {"n": 2**70}), "int64")


def test_names_of_arguments_count_static_ones():
    f = functx.jit(lambda n, x: x if x > n else -x, static_argnums=0)
    refused(ConcretizationError, lambda: f(1, 2.0), "`x`")
    refused(ArgumentError, lambda: f(1, "two"), "`x`")
    assert (
        float(functx.grad(lambda x: functx.jit(lambda n, x: x * n, static_argnums=0)(2, x))(3.0))
        == 2.0
    )


compiled = functx.jit(lambda x, t: x + t["y"]).lower(x, {"y": 1.0}).compile()


def test_what_is_compiled_takes_arguments_of_its_types():
    np.testing.assert_array_equal(compiled(x, {"y": 1.0}), x + 1.0)
    np.testing.assert_array_equal(compiled(x, {"y": np.float32(1)}), x + 1.0)
    for arguments, words in (
        ((x[:2], {"y": 1.0}), "got f32[2] for `x`: f32[3]"),
        ((x.astype("int32"), {"y": 1.0}), "got i32[3] for `x`: f32[3]"),
        ((x, {"y": 1}), "got i32[] for `t['y']`: f32[]"),
        ((x, {"y": "one"}), "got str for `t['y']`"),
    ):
        refused(ArgumentError, lambda a=arguments: compiled(*a), "compiled lambda", words, "Lower")


def test_what_is_compiled_takes_arguments_of_its_structure():
    for arguments in ((x,), (x, 1.0), (x, {"z": 1.0}), (x, {"y": 1.0}, 2.0)):
        refused(TreeError, lambda a=arguments: compiled(*a), "structure", "expected")
    static = functx.jit(lambda x, n: x * n, static_argnums=1).lower(x, 2).compile()
    np.testing.assert_array_equal(static(x), 2 * x)
    refused(TreeError, lambda: static(x, 2), "structure")


def test_what_is_compiled_is_not_transformed():
    def f(x):
        return compiled(x, {"y": 1.0}).sum()

    for call in (lambda: functx.grad(f)(x), lambda: jax.grad(f)(x), lambda: jax.jit(f)(x)):
        refused(ArgumentError, call, "must be arrays", "traced f32[3] for `x`", "itself")


def test_typed_keys_are_arguments_of_what_is_compiled():
    key = jax.random.key(0)
    draw = functx.jit(lambda key: functx.random.uniform(key)).lower(key).compile()
    np.testing.assert_array_equal(draw(key), jax.random.uniform(key))
    refused(ArgumentError, lambda: draw(1.0), "got f32[] for `key`: u32[2]")


def test_what_is_lowered_has_types():
    refused(ArgumentError, lambda: functx.jit(lambda x: x).lower("one"), "got str for `x`")


def test_shardings_are_one_for_each_argument():
    f = functx.jit(lambda n, x: x, static_argnums=0, in_shardings=(None, None))
    refused(ArgumentError, lambda: f(1, x), "in_shardings", "got 2 for 1")
