"""Typed keys of JAX in functions of functx: they stay keys, as in JAX."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functx
from functx import nn
from functx.autograd import Variable
from functx.core.errors import ArgumentError, TypedKeyError

KEYS = jax.random.split(jax.random.key(3), 6)
SELECTED = np.array([True, False] * 3)

REARRANGEMENTS = {
    "concatenate": lambda numpy, lax, k: numpy.concatenate([k[:2], k[3:]]),
    "stack": lambda numpy, lax, k: numpy.stack([k[0], k[1]]),
    "vstack": lambda numpy, lax, k: numpy.vstack([k, k]),
    "take": lambda numpy, lax, k: numpy.take(k, np.array([0, 2]), axis=0),
    "where": lambda numpy, lax, k: numpy.where(SELECTED, k, k[0]),
    "reshape": lambda numpy, lax, k: numpy.reshape(k, (3, 2)).T,
    "flip": lambda numpy, lax, k: numpy.flip(k),
    "repeat": lambda numpy, lax, k: numpy.repeat(k, 2),
    "expand_dims": lambda numpy, lax, k: numpy.expand_dims(k, 0),
    "broadcast_to": lambda numpy, lax, k: numpy.broadcast_to(k[0], (4,)),
    "atleast_2d": lambda numpy, lax, k: numpy.atleast_2d(k),
    "array": lambda numpy, lax, k: numpy.array([k[0], k[1]]),
    "select": lambda numpy, lax, k: lax.select(SELECTED, k, k[::-1]),
    "dynamic_slice": lambda numpy, lax, k: lax.dynamic_slice(k, (2,), (2,)),
    "broadcast_like": lambda numpy, lax, k: lax.broadcast_like(k[0], k),
    "array_equiv": lambda numpy, lax, k: numpy.array_equiv(k[:1], k[0]),
    "equal": lambda numpy, lax, k: numpy.equal(k[:3], k[3:]),
    "scan": lambda numpy, lax, k: lax.scan(
        lambda c, q: (numpy.roll(c, 1), numpy.stack([q, q])), k, k
    ),
    "cond": lambda numpy, lax, k: lax.cond(
        k.ndim > 1, lambda a: numpy.tile(a, 2), lambda a: numpy.concatenate([a, a]), k
    ),
}


def rearranged(numpy, lax, keys):
    return {name: fun(numpy, lax, keys) for name, fun in REARRANGEMENTS.items()}


def words(tree):
    return jax.tree.map(lambda x: x if x.dtype == bool else jax.random.key_data(x), tree)


def test_functions_that_rearrange_elements_give_keys_as_those_of_jax_do():
    expected = words(rearranged(jnp, jax.lax, KEYS))
    for call in (lambda f: f, functx.jit):
        result = words(call(lambda k: rearranged(functx.numpy, functx.lax, k))(KEYS))
        jax.tree.map(np.testing.assert_array_equal, result, expected)
    pairs = functx.vmap(lambda q: functx.numpy.stack([q, functx.random.clone(q)]))(KEYS)
    np.testing.assert_array_equal(words(pairs), words(jnp.stack([KEYS, KEYS], axis=1)))


def test_functions_of_each_leaf_and_callbacks_take_keys():
    gathered = functx.vmap(
        lambda q: functx.lax.all_gather(functx.stop_gradient({"q": q}), "i"), axis_name="i"
    )(KEYS[:2])
    np.testing.assert_array_equal(words(gathered)["q"], words(jnp.stack([KEYS[:2]] * 2)))
    received = []

    @functx.jit
    def draw(q):
        functx.debug.callback(received.append, q)
        return functx.checkpoint_name(q, "key")

    np.testing.assert_array_equal(words(draw(KEYS[0])), words(KEYS[0]))
    np.testing.assert_array_equal(received, [words(KEYS[0])])


def test_axes_of_functions_of_each_leaf_are_those_of_the_keys():
    pairs = KEYS[:4].reshape(2, 2)
    for library in (functx, jax):
        gather = partial(library.lax.all_gather, axis_name="i", axis=-1)
        gathered = library.vmap(gather, axis_name="i")(pairs)
        np.testing.assert_array_equal(words(gathered)[0], words(pairs.T))
    exchanged = functx.vmap(lambda q: functx.lax.all_to_all(q, "i", -1, -1), axis_name="i")(pairs)
    np.testing.assert_array_equal(words(exchanged), words(pairs.T))
    swapped = functx.vmap(lambda q: functx.lax.pswapaxes(q, "i", -1), axis_name="i")(pairs)
    np.testing.assert_array_equal(words(swapped), words(pairs.T))
    np.testing.assert_array_equal(words(functx.lax.stop_gradient(x=KEYS)), words(KEYS))


@pytest.mark.parametrize("make", [Variable, nn.Parameter, nn.Buffer])
def test_variables_are_not_made_of_keys(make):
    with pytest.raises(TypedKeyError, match="got typed keys, key<fry>\\[6\\]"):
        make(KEYS)


@pytest.mark.parametrize("name", ["sin", "sum", "sort"])
def test_functions_of_numbers_refuse_keys(name):
    fun = getattr(functx.numpy, name)
    for call in (fun, functx.jit(fun)):
        with pytest.raises(TypedKeyError, match="got typed keys"):
            call(KEYS)


def test_a_function_of_the_user_that_refuses_keys_is_traced_once():
    calls = []

    def branch(x):
        calls.append(x)
        return functx.numpy.sin(KEYS)

    with pytest.raises(ArgumentError, match="got typed keys"):
        functx.numpy.apply_along_axis(branch, 0, np.ones(3))
    assert len(calls) == 1
