"""Names that JAX has and functx has not."""

from importlib import import_module

import jax
import numpy as np
import pytest

import functx

ABSENT = {
    "lax": ("ragged_all_to_all", jax.lax),
}


def module(path):
    found = functx
    for name in path.split("."):
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("path", ABSENT)
def test_a_function_that_only_jax_has_is_said_to_be_jax_s(path):
    name, original = ABSENT[path]
    hint = rf"'functx.{path}' has no attribute '{name}'; .*write {original.__name__}.{name}, which"
    with pytest.raises(AttributeError, match=hint):
        getattr(module(path), name)
    assert not hasattr(module(path), name)


def hint(path):
    """What the message about a missing name says to do."""
    where, name = path.rsplit(".", 1)
    with pytest.raises(AttributeError) as error:
        getattr(import_module(where), name)
    return str(error.value).split("; ", 1)[1]


CURES = {
    "functx.tree_map": ("functx.tree.map", lambda: functx.tree.map(lambda x: x + 1, [1])[0], 2),
}


@pytest.mark.parametrize("path", CURES)
def test_the_way_out_of_a_name_that_is_no_function_of_arrays_works(path):
    words, cure, result = CURES[path]
    assert words in hint(path)
    np.testing.assert_allclose(cure(), result, atol=1e-5)


def test_a_module_that_is_elsewhere_is_named():
    with pytest.raises(
        AttributeError, match=r"'random'; write functx\.random\.normal\(key, shape\)"
    ):
        functx.numpy.random  # noqa: B018


def test_a_name_that_nobody_has_gets_python_s_words():
    for where in (functx, functx.lax, functx.numpy):
        with pytest.raises(AttributeError) as error:
            where.no_such_name  # noqa: B018
        assert str(error.value) == f"module {where.__name__!r} has no attribute 'no_such_name'"
        assert error.value.name == "no_such_name" and error.value.obj is where
    with pytest.raises(ImportError, match="cannot import name"):
        from functx.lax import no_such_name  # noqa: F401


def test_the_way_out_that_the_message_names_works_under_transforms():
    patches = jax.lax.conv_general_dilated_patches
    x = np.ones((2, 3, 6, 6), "f")
    loss = lambda find: lambda x: (find(x, (2, 2), (1, 1), "SAME") ** 2).sum()  # noqa: E731
    expected = jax.grad(loss(jax.lax.conv_general_dilated_patches))(x)
    np.testing.assert_allclose(functx.jit(functx.grad(loss(patches)))(x), expected, rtol=1e-5)
