"""Axes that `vmap` names, and collectives across them, against JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functx
import functx.numpy as xp
from functx import lax
from functx.core.errors import (
    ArgumentError,
    CollectiveError,
    FunctxError,
    ShapeError,
    UnboundAxisError,
    ValueRangeError,
)
from functx.core.program import Program

X = np.arange(12, dtype="f").reshape(4, 3) / 7
Y = np.arange(4, dtype="f") + 1


def agree(make, *args):
    """`make(library, lax, numpy)` gives for functx what it gives for JAX."""
    found = make(functx, lax, xp)(*args)
    wanted = jax.jit(make(jax, jax.lax, jnp))(*args)
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    for x, y in pairs:
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6)


def refused(error, call, *parts):
    """`call` raises `error`, with the parts and the user's line in its message."""
    with pytest.raises(FunctxError) as info:
        call()
    assert isinstance(info.value, error)
    for part in (*parts, "test_named_axes.py"):
        assert part in str(info.value)


def reductions(lax, v):
    return {
        "psum": lax.psum(v, "i"),
        "numbers": v * lax.psum(1, "i") + lax.psum(0.5, "i"),
        "tree": lax.psum({"a": v, "b": (v * 2,)}, "i"),
        "pmean": lax.pmean(v * v, "i"),
        "axis_index": v * lax.axis_index("i"),
        "axis_size": v * lax.axis_size("i"),
        "shared": lax.psum(v * 0 + 2.0, "i") * v,
    }


def exchanges(lax, v):
    rows = lax.all_gather(v, "i") * (1 + v[0])
    return {
        "all_gather": lax.all_gather(v, "i", axis=-1),
        "all_gather tiled": lax.all_gather(v, "i", tiled=True),
        "ppermute": lax.ppermute(v, "i", [(0, 1), (1, 2), (2, 3), (3, 0)]),
        "pshuffle": lax.pshuffle(v, "i", [2, 0, 3, 1]),
        "pswapaxes": lax.pswapaxes(rows, "i", 0),
        "all_to_all tiled": lax.all_to_all(rows, "i", 0, 1, tiled=True),
        "psum_scatter": lax.psum_scatter(rows, "i"),
        "psum_scatter tiled": lax.psum_scatter(rows, "i", tiled=True),
    }


def total(f, library):
    return lambda v: sum((y * y).sum() for y in library.tree.leaves(f(v)))


def mapped(library, f, **options):
    return library.vmap(f, axis_name="i", **options)


TRANSFORMS = {
    "vmap": lambda fx, f: mapped(fx, f),
    "jit of vmap of jit": lambda fx, f: fx.jit(mapped(fx, fx.jit(f))),
    "vmap of grad": lambda fx, f: mapped(fx, fx.grad(total(f, fx))),
    "grad of vmap": lambda fx, f: fx.grad(total(mapped(fx, f), fx)),
    "vmap of jvp": lambda fx, f: mapped(fx, lambda v: fx.jvp(f, (v,), (v * 2,))),
    "vmap of a second derivative": lambda fx, f: mapped(fx, fx.jacfwd(fx.grad(total(f, fx)))),
    "vmap of grad of checkpoint": lambda fx, f: mapped(fx, fx.grad(fx.checkpoint(total(f, fx)))),
    "an unnamed vmap inside": lambda fx, f: (
        lambda x: mapped(fx, fx.vmap(f))(fx.numpy.stack([x, x * 2], 1))
    ),
    "an unnamed vmap around": lambda fx, f: (
        lambda x: fx.vmap(mapped(fx, f))(fx.numpy.stack([x, x * 2]))
    ),
    "one of the same name around": lambda fx, f: (
        lambda x: mapped(fx, mapped(fx, f))(fx.numpy.stack([x, x * 2]))
    ),
}


OF_EXCHANGES = (
    "vmap",
    "vmap of grad",
    "vmap of jvp",
    "an unnamed vmap inside",
    "an unnamed vmap around",
)
CASES = [(reductions, name) for name in TRANSFORMS] + [(exchanges, name) for name in OF_EXCHANGES]


@pytest.mark.parametrize(("body", "transform"), CASES)
def test_collectives_are_those_of_jax(body, transform):
    def make(library, lax, _):
        return TRANSFORMS[transform](library, lambda v: body(lax, v))

    agree(make, X)


def test_all_to_all_is_that_of_jax():
    def make(library, lax, _):
        def body(v):
            rows = lax.all_gather(v, "i") * v[1]
            return lax.all_to_all(rows, "i", 0, 1), lax.all_to_all(rows.T, "i", 1, 0)

        return mapped(library, body)

    agree(make, X)


def test_derivatives_of_all_to_all_match_those_of_what_it_does():
    def sent(v):
        return lax.all_to_all(lax.all_gather(v, "i") * v[1], "i", 0, 1)

    def by_hand(x):
        rows = x[None] * x[:, 1:2, None]
        return xp.swapaxes(rows, 0, 1).swapaxes(1, 2)

    f = functx.vmap(sent, axis_name="i")
    np.testing.assert_allclose(f(X), by_hand(X), rtol=1e-6)
    weights = np.cos(np.arange(48, dtype="f")).reshape(4, 3, 4)
    found = functx.grad(lambda x: (f(x) * weights).sum())(X)
    np.testing.assert_allclose(
        found, functx.grad(lambda x: (by_hand(x) * weights).sum())(X), rtol=1e-5
    )


@pytest.mark.parametrize("name", ["pmax", "pmin"])
def test_extrema_share_their_derivative(name):
    agree(lambda library, lax, _: mapped(library, lambda v: getattr(lax, name)(v, "i")), X)
    f = functx.vmap(lambda v: getattr(lax, name)(v, "i"), axis_name="i")
    found = functx.grad(lambda x: f(x).sum())(np.array([2.0, 1.0, 2.0, 1.0], "f"))
    chosen = [2, 0, 2, 0] if name == "pmax" else [0, 2, 0, 2]
    np.testing.assert_array_equal(found, chosen)


def test_groups_are_axes_of_their_own():
    groups = [[0, 3], [2, 1]]

    def body(v):
        return (
            lax.psum(v, "i", axis_index_groups=groups),
            lax.all_gather(v, "i", axis_index_groups=groups),
            lax.pmean(v, "i", axis_index_groups=groups),
            v * lax.psum(1, "i", axis_index_groups=groups),
        )

    sums, rows, means, twice = functx.vmap(body, axis_name="i")(Y)
    np.testing.assert_array_equal(sums, [5, 5, 5, 5])
    np.testing.assert_array_equal(rows, [[1, 4], [3, 2], [3, 2], [1, 4]])
    np.testing.assert_array_equal(means, [2.5] * 4)
    np.testing.assert_array_equal(twice, Y * 2)


def test_each_group_shares_the_derivatives_of_its_own_extrema():
    def lane(v):
        return lax.pmax(v, "i", axis_index_groups=[[0, 3], [2, 1]])

    f = functx.vmap(lane, axis_name="i")
    x, weights = np.array([[2, 5, 7, 2], [1, 2, 3, 4]], "f")
    np.testing.assert_array_equal(f(x), [2, 7, 7, 2])
    slope = functx.grad(lambda x: (f(x) * weights).sum())(x)
    np.testing.assert_array_equal(slope, [2.5, 0, 5, 2.5])
    inside = functx.vmap(lambda v, w: functx.grad(lambda v: lane(v) * w)(v), axis_name="i")
    np.testing.assert_array_equal(inside(x, weights), slope)


def test_several_names_count_as_one_axis():
    rows = np.arange(6, dtype="f").reshape(2, 3)

    def body(v):
        every = lax.all_gather(v, ("i", "j"))
        return (
            lax.psum(v, ("i", "j")),
            every,
            lax.axis_index(("i", "j")),
            v * lax.axis_size(("i", "j")),
            lax.psum_scatter(every * v, ("i", "j")),
            lax.all_to_all(every + 10 * v, ("i", "j"), 0, 0),
        )

    f = functx.vmap(functx.vmap(body, axis_name="j"), axis_name="i")
    total, every, number, size, scattered, sent = f(rows)
    np.testing.assert_array_equal(total, np.full((2, 3), 15))
    np.testing.assert_array_equal(every, np.broadcast_to(rows.ravel(), (2, 3, 6)))
    np.testing.assert_array_equal(number, rows)
    np.testing.assert_array_equal(size, rows * 6)
    np.testing.assert_array_equal(scattered, rows * 15)
    np.testing.assert_array_equal(sent, np.arange(6) * 10 + rows[..., None])
    functx.testing.check_grads(lambda x: f(x)[4] * f(x)[5][..., 0], (rows,), order=1)


def test_a_place_that_nothing_is_sent_to_gets_zeros():
    f = functx.vmap(lambda v: lax.ppermute(v, "i", [(0, 2), (3, 1)]), axis_name="i")
    np.testing.assert_array_equal(f(Y), [0, 4, 1, 0])
    np.testing.assert_array_equal(functx.grad(lambda y: (f(y) * Y).sum())(Y), [3, 0, 0, 2])
    shared = functx.vmap(
        lambda v: lax.ppermute(2.0 + 0 * lax.psum(v, "i"), "i", [(0, 2)]), axis_name="i"
    )
    np.testing.assert_array_equal(shared(Y), [0, 0, 2, 0])
    source = functx.vmap(lambda v: lax.pbroadcast(v, "i", 2), axis_name="i")
    np.testing.assert_array_equal(source(Y), [3, 3, 3, 3])


def bodies(library, lax, np):
    """Functions of a number, in which collectives stand in other constructs."""

    def scan(v):
        def turn(c, y):
            return c * y + lax.psum(c * v, "i") / 10, lax.axis_index("i") * c

        c, ys = library.lax.scan(turn, v, np.arange(3, dtype="float32"))
        return c + ys.sum()

    def loop_of_numbers(v):
        def turn(c, y):
            return c + lax.axis_index("i") * y, lax.psum(y, "i") * c

        return v * library.lax.scan(turn, 1.0, np.arange(3, dtype="float32"))[1].sum()

    def cond(v):
        taken = lax.psum(v, "i") > 3.0
        return library.lax.cond(taken, lambda v: lax.psum(v * v, "i") * v, lambda v: v, v)

    def fori(v):
        return library.lax.fori_loop(0, 3, lambda i, c: c * 0.5 + lax.pmean(c * c, "i"), v)

    def custom_jvp(v):
        f = library.custom_jvp(lambda x: lax.psum(np.sin(x), "i") * x)
        f.defjvp(lambda p, t: (f(*p), t[0] * 3 * lax.psum(p[0], "i")))
        return f(v) * v

    def custom_vjp(v):
        f = library.custom_vjp(lambda x: lax.psum(np.sin(x), "i") * x)
        f.defvjp(lambda x: (f(x), x), lambda x, ct: (lax.psum(ct, "i") * x + lax.axis_index("i"),))
        return f(v) * v

    def rule_that_calls_itself(v):
        f = library.custom_jvp(np.sin)
        f.defjvp(lambda p, t: (f(*p), t[0] * f(p[0]) * lax.psum(p[0], "i")))
        return f(v)

    def norm(v):
        return v * np.sqrt(lax.pmean((v - lax.pmean(v, "i")) ** 2, "i") + 1)

    found = (
        scan,
        loop_of_numbers,
        cond,
        fori,
        custom_jvp,
        custom_vjp,
        rule_that_calls_itself,
        norm,
    )
    return {f.__name__: f for f in found}


INSIDE = {
    "vmap": lambda fx, f: mapped(fx, f),
    "vmap of grad": lambda fx, f: mapped(fx, fx.grad(f)),
    "grad of vmap": lambda fx, f: fx.grad(lambda x: (mapped(fx, f)(x) ** 2).sum()),
    "jit": lambda fx, f: mapped(fx, fx.jit(fx.grad(fx.jit(f)))),
}


@pytest.mark.parametrize("transform", INSIDE)
@pytest.mark.parametrize("name", bodies(functx, lax, xp))
def test_collectives_stand_in_other_constructs(name, transform):
    agree(lambda fx, lax, np: INSIDE[transform](fx, bodies(fx, lax, np)[name]), Y)


def test_a_condition_may_be_the_same_everywhere():
    def make(library, lax, _):
        return mapped(
            library,
            lambda v: library.lax.while_loop(
                lambda c: lax.psum(c, "i") < 100.0, lambda c: c * 1.5 + lax.psum(c, "i") / 8, v
            ),
        )

    agree(make, Y)


def test_a_jitted_function_is_traced_for_each_length():
    f = functx.jit(lambda v: lax.psum(v, "i") * lax.axis_size("i"))
    np.testing.assert_array_equal(functx.vmap(f, axis_name="i")(Y), [40] * 4)
    np.testing.assert_array_equal(functx.vmap(f, axis_name="i")(Y[:2]), [6, 6])
    square = np.ones((2, 2), "f")
    # Called once in each lane of either axis, with operands of the same types.
    both = functx.vmap(functx.vmap(lambda v: f(v)), axis_name="i")(square * [[1, 3]])
    np.testing.assert_array_equal(both, [[4, 12], [4, 12]])
    both = functx.vmap(functx.vmap(f, axis_name="i"))(square * [[1, 3]])
    np.testing.assert_array_equal(both, [[8, 8], [8, 8]])
    assert (
        functx.vmap(lambda v: functx.eval_shape(f, v) is not None and f(v), axis_name="i")(Y)[0]
        == 40
    )


def test_the_same_program_is_batched_over_a_name_and_without():
    def body(row):
        f = functx.jit(lambda v: lax.psum(v, "i") * 2)
        return f(row[0]), functx.vmap(f)(row)

    one, each = functx.vmap(body, axis_name="i")(np.arange(9, dtype="f").reshape(3, 3))
    np.testing.assert_array_equal(one, [18] * 3)
    np.testing.assert_array_equal(each, [[18, 24, 30]] * 3)


def test_programs_name_their_axes_and_are_read_back():
    programs = []

    def body(v):
        programs.append(functx.make_ir(lambda v: lax.all_gather(lax.psum(v, "i"), "i") * v)(v))
        return programs[0](v)

    program = functx.make_ir(functx.vmap(body, axis_name="i"))(Y)
    text = str(programs[0])
    assert "psum[axes=('i',)]" in text and "all_gather[axes=('i',), sizes=(4,), axis=0]" in text
    assert Program.parse(text) == programs[0]
    assert programs[0].named_axes == {"i"} and not program.named_axes
    refused(UnboundAxisError, lambda: programs[0](Y[0]), "must run within a map over its axis")


def test_lanes_that_meet_are_not_taken_in_chunks():
    f = functx.vmap(lambda v: lax.psum(v, "i") * v, axis_name="i", chunk_size=2)
    np.testing.assert_array_equal(f(Y), 10 * Y)
    chunked = functx.vmap(lambda v: v * lax.axis_size("i"), axis_name="i", chunk_size=2)
    np.testing.assert_array_equal(chunked(Y), 4 * Y)
    assert "scan" in str(functx.make_ir(chunked)(Y))


def test_jacobians_inside_have_lanes_of_their_own():
    def make(library, lax, _):
        return mapped(library, library.jacrev(lambda v: lax.psum(v * v, "i") * v))

    agree(make, X[:, :2])
    f = functx.vmap(lambda v: lax.psum(v**3, "i") * v, axis_name="i")
    g = jax.vmap(lambda v: jax.lax.psum(v**3, "i") * v, axis_name="i")
    found = functx.hessian(lambda x: f(x).sum())(Y)
    np.testing.assert_allclose(found, jax.hessian(lambda x: g(x).sum())(Y), rtol=1e-5)


def test_jax_maps_functions_with_collectives():
    f = functx.jit(lambda v: (lax.psum(v, "i") * v, lax.axis_index("i"), lax.all_gather(1.0, "i")))
    total, number, ones = jax.vmap(f, axis_name="i")(Y)
    np.testing.assert_array_equal(total, 10 * Y)
    np.testing.assert_array_equal(number, range(4))
    assert ones.shape == (4, 4)
    found = jax.vmap(jax.grad(lambda v: f(v)[0]), axis_name="i")(Y)
    wanted = jax.vmap(jax.grad(lambda v: jax.lax.psum(v, "i") * v), axis_name="i")(Y)
    np.testing.assert_array_equal(found, wanted)


def test_names_may_be_any_hashable_values():
    found = functx.vmap(lambda v: lax.psum(v, frozenset("ab")), axis_name=frozenset("ab"))(Y)
    np.testing.assert_array_equal(found, [10] * 4)
    f = functx.vmap(lambda v: lax.psum(v, "i"), axis_name="i", axis_size=3, in_axes=None)
    np.testing.assert_array_equal(f(2.0), [6, 6, 6])
    assert functx.vmap(lambda v: lax.psum(v > 2, "i"), axis_name="i")(Y).dtype == np.int32


# Mistakes


def test_names_that_are_not_bound_are_refused():
    parts = "psum: the axis must be bound around the call; got 'i'", "bound names are: none"
    refused(UnboundAxisError, lambda: lax.psum(Y, "i"), *parts, "functx.vmap(f, axis_name='i')")
    refused(UnboundAxisError, lambda: lax.psum(1, "i"), "psum")
    refused(UnboundAxisError, lambda: functx.vmap(lambda v: lax.axis_index("i"))(Y), "axis_index")
    two = functx.vmap(functx.vmap(lambda v: lax.axis_size("k"), axis_name="j"), axis_name="i")
    refused(UnboundAxisError, lambda: two(X), "got 'k'", "bound names are: 'i', 'j'")
    assert issubclass(UnboundAxisError, NameError)


def test_what_cannot_be_a_name_is_refused():
    for name in (["i"], ("i",), 0):
        refused(
            ArgumentError,
            lambda name=name: functx.vmap(xp.sin, axis_name=name),
            "the name of an axis",
        )
    refused(ArgumentError, lambda: lax.psum(Y, None), "the name of an axis must be a string")
    refused(
        ArgumentError, lambda: functx.vmap(xp.sin, spmd_axis_name=3), "vmap(sin): spmd_axis_name"
    )


def test_choices_that_differ_from_place_to_place_are_refused():
    def branch(v):
        return lax.cond(v > 2, lambda v: lax.psum(v, "i"), lambda v: v, v)

    def loop(v):
        return lax.while_loop(lambda c: c < 10, lambda c: c + lax.psum(c, "i"), v)

    message = (
        "cond: the predicate must be the same along a named axis that a branch communicates over"
    )
    refused(CollectiveError, lambda: functx.vmap(branch, axis_name="i")(Y), message, "along 'i'")
    message = "while: the condition must be the same along a named axis"
    refused(CollectiveError, lambda: functx.vmap(loop, axis_name="i")(Y), message, "lax.pmax")
    # Nothing meets along the other axis.
    rows = np.stack([Y, Y * 2])
    found = functx.vmap(functx.vmap(loop, axis_name="i", in_axes=None, axis_size=2))(rows[0])
    assert found.shape == (4, 2)


def test_each_element_of_a_loop_or_branch_reads_its_own_index():
    def make(library, lax, np):
        def scaled(v):
            return v * (1 + lax.axis_index("i"))

        rule = library.custom_jvp(scaled)
        rule.defjvp(lambda primals, tangents: (scaled(*primals), 2 * tangents[0]))

        def stops(v):
            # Without its own limit as an operand, an element would not end in the other branch.
            limit = lax.while_loop(lambda c: c != lax.axis_index("i"), lambda c: c + 1, 0)
            return v * lax.while_loop(lambda c: c < 3.0 * (1 + limit), lambda c: c + v, v)

        def both(v):
            grows = lax.while_loop(
                lambda c: c < 3 + lax.axis_index("i"), lambda c: c * (2 + lax.axis_index("i")), v
            )
            return (
                grows,
                lax.cond(v > 2, stops, lambda v: v, v),
                lax.cond(v > 2, rule, lambda v: v, v),
            )

        def tangents(y):
            return library.jvp(library.vmap(both, axis_name="i"), (y,), (y + 1,))

        return library.jit(tangents)

    agree(make, Y)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda v: lax.ppermute(v, "i", [(0, 1), (0, 2)]), ValueRangeError, "at most once"),
        (lambda v: lax.ppermute(v, "i", [(0, 4)]), ValueRangeError, "each of the 4 places"),
        (lambda v: lax.ppermute(v, "i", [0, 1]), ArgumentError, "pairs of integers"),
        (lambda v: lax.pshuffle(v, "i", [0, 1, 2]), ValueRangeError, "each of the 4 places once"),
        (lambda v: lax.psum_scatter(v, "i"), ShapeError, "as long as there are places; got f32[3]"),
        (lambda v: lax.all_to_all(v, "i", 0, 0), ShapeError, "all_to_all: without `tiled`"),
        (
            lambda v: lax.all_to_all(v, "i", 0, 0, tiled=True),
            ShapeError,
            "must be a multiple of the 4 places",
        ),
        (
            lambda v: lax.psum(v, "i", axis_index_groups=[[0, 1], [2]]),
            ValueRangeError,
            "each of the 4 places once",
        ),
        (
            lambda v: lax.psum(v, "i", axis_index_groups=[[0, 1, 2], [3]]),
            ValueRangeError,
            "must have one length",
        ),
        (lambda v: lax.psum("one", "i"), ArgumentError, "arrays or numbers"),
        (lambda v: lax.all_gather(v, "i", to="all"), ValueRangeError, '"varying" or "invariant"'),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call, error, message):
    refused(error, lambda: functx.vmap(call, axis_name="i")(X), message)
