"""Collectives of JAX, within maps of functx."""

import jax
import numpy as np

import functx

X = np.arange(12, dtype="f").reshape(4, 3)


def body(v):
    lax = jax.lax
    rows = lax.all_gather(v, "i") * v[0]

    def turn(c, _):
        return c + lax.psum(c, "i"), None

    return {
        "psum": lax.psum({"a": v, "b": v * v}, "i"),
        "pmean": lax.pmean(v, "i"),
        "pmax": lax.pmax(v, "i") - lax.pmin(v, "i"),
        "psum_scatter": lax.psum_scatter(rows, "i"),
        "psum_scatter tiled": lax.psum_scatter(rows, "i", tiled=True),
        "all_to_all": lax.all_to_all(rows, "i", 0, 1),
        "ppermute": lax.ppermute(v, "i", [(0, 1), (1, 2), (2, 3), (3, 0)]),
        "axis_index": v * lax.axis_index("i") * lax.axis_size("i"),
        "jit": jax.jit(lambda v: lax.psum(v, "i"))(v),
        "scan": lax.scan(turn, v, None, length=2)[0],
    }


def test_collectives_become_those_of_functx():
    found = functx.vmap(functx.from_jax(body), axis_name="i")(X)
    jax.tree.map(np.testing.assert_allclose, found, jax.vmap(body, axis_name="i")(X))
    program = functx.make_ir(functx.vmap(functx.from_jax(body), axis_name="i"))(X)
    assert "jax_call" not in str(program)


def test_functions_are_translated_for_each_length():
    f = functx.from_jax(lambda v: jax.lax.psum(v, "i") * v)
    for rows in (X, X[:2]):
        np.testing.assert_array_equal(functx.vmap(f, axis_name="i")(rows), rows.sum(0) * rows)
    found = functx.vmap(functx.grad(lambda v: f(v).sum()), axis_name="i")(X)
    wanted = jax.jit(jax.vmap(jax.grad(lambda v: (jax.lax.psum(v, "i") * v).sum()), axis_name="i"))(
        X
    )
    np.testing.assert_array_equal(found, wanted)
