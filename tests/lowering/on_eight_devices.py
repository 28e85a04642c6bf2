"""What must hold on several devices: run as a program, on eight simulated ones, by test_devices.

Each function of `CHECKS` raises unless its sentence, its name, is true.
"""

import contextlib
import io
import json
import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import functx
import functx.numpy as xp
from functx import lax
from functx.autograd import Function, Variable
from functx.compiled_autograd import compile_stages, disable, enable
from functx.core.errors import ArgumentError, EffectError, FunctxError, ReplicationError, ShapeError

EXAMPLE = Path(__file__).parents[2] / "examples" / "15_many_devices.py"
CHECKS = {}
ALL = ("i", "j")
X = np.arange(16, dtype="f").reshape(8, 2) / 7
W = np.arange(6, dtype="f").reshape(2, 3) / 5 - 0.3


def check(function):
    """Register a check."""
    CHECKS[function.__name__] = function
    return function


def mesh_of(kind=AxisType.Auto):
    return jax.make_mesh((4, 2), ALL, axis_types=(kind,) * 2)


def placed(x, *spec, mesh=None):
    return jax.device_put(x, NamedSharding(mesh or mesh_of(), P(*spec)))


def same(found, wanted):
    """Two pytrees of arrays agree to rounding, in shapes and dtypes too."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    for x, y in pairs:
        assert (x.shape, x.dtype) == (np.shape(y), np.asarray(y).dtype), (x.shape, np.shape(y))
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6)


def refused(error, call, *parts):
    """`call` raises `error`, whose message has the parts and this file's line."""
    try:
        call()
    except FunctxError as found:
        text = str(found)
        assert isinstance(found, error), type(found)
        for part in (*parts, "on_eight_devices.py"):
            assert part in text, (part, text)
    else:
        raise AssertionError(f"nothing was raised where {error.__name__} was expected")


# Collectives


def every_collective(lax, v, grouped=True):
    rows = lax.all_gather(v, "i") * (1 + v[0, 0])
    found = {
        "psum": lax.psum(v, "i"),
        "psum of both": lax.psum(v * v, ALL),
        "pmean": lax.pmean(v, "j"),
        "all_gather": lax.all_gather(v * v, "i", axis=1),
        "all_gather tiled": lax.all_gather(v, ALL, tiled=True),
        "ppermute": lax.ppermute(v, "i", [(0, 1), (1, 2), (3, 0)]),
        "pshuffle": lax.pshuffle(v, "i", [2, 0, 3, 1]),
        "axis_index": v * lax.axis_index(ALL),
        "axis_size": v * lax.axis_size("i") * lax.psum(1, ALL),
        "all_to_all": lax.all_to_all(rows, "i", 0, 1),
        "all_to_all tiled": lax.all_to_all(rows, "i", 0, 2, tiled=True),
        "pswapaxes": lax.pswapaxes(rows, "i", 0),
        "psum_scatter": lax.psum_scatter(rows, "i"),
        "psum_scatter tiled": lax.psum_scatter(rows, "i", tiled=True),
    }
    if grouped:
        found["groups"] = lax.psum(v, "i", axis_index_groups=[[0, 3], [1, 2]])
    return found


def on_devices(library, body=every_collective, **options):
    def run(v):
        return jax.tree.map(lambda x: x[None], body(library.lax, v))

    specs = {"mesh": mesh_of(), "in_specs": P(ALL), "out_specs": P(ALL)}
    return library.shard_map(run, **specs, **options)


def by_vmap(body=every_collective):
    """The same on one device: the places of the mesh as two mapped axes."""

    def run(x):
        rows = x.reshape(4, 2, 1, 2)
        inner = functx.vmap(lambda v: body(lax, v), axis_name="j")
        found = functx.vmap(inner, axis_name="i")(rows)
        return functx.tree.map(lambda y: y.reshape(8, *y.shape[2:]), found)

    return run


def total(f):
    return lambda x: sum((y * y).sum() for y in functx.tree.leaves(f(x)))


@check
def collectives_are_those_of_jax():
    same(on_devices(functx)(X), jax.jit(on_devices(jax, check_vma=False))(X))


@check
def collectives_are_those_of_vmap():
    same(on_devices(functx)(X), by_vmap()(X))


@check
def gradients_through_collectives_are_those_of_vmap():
    same(functx.grad(total(on_devices(functx)))(X), functx.grad(total(by_vmap()))(X))


@check
def tangents_go_through_collectives():
    f, g = on_devices(functx), by_vmap()
    same(functx.jvp(f, (X,), (X * 2,)), functx.jvp(g, (X,), (X * 2,)))


@check
def jax_maps_functx_functions_with_collectives():
    body = functx.jit(lambda v: every_collective(lax, v, grouped=False))
    specs = {"mesh": mesh_of(), "in_specs": P(ALL), "out_specs": P(ALL)}
    found = jax.shard_map(lambda v: jax.tree.map(lambda x: x[None], body(v)), **specs)(X)
    wanted = on_devices(functx, lambda lax, v: every_collective(lax, v, grouped=False))(X)
    same(found, wanted)


@check
def extrema_are_those_of_vmap():
    def both(lax, v):
        return lax.pmax(v, "i") * lax.pmin(v, ALL) + lax.pbroadcast(v, "i", 2)

    f, g = on_devices(functx, both), by_vmap(both)
    same(f(X), g(X))
    same(functx.grad(total(f))(X), functx.grad(total(g))(X))


# Derivatives taken inside


def derivatives(library, lax, np):
    """Derivatives on each device, of what is the same on all and of what is not."""

    def far(w, x):
        return lax.pmean(np.tanh(x @ w).mean(), ALL)

    def near(w, x):
        return np.tanh(x @ w).mean()

    def mixed(w, x):
        shared = (w**2).sum() + lax.psum((x @ w).sum(), "i")
        return lax.psum(shared * x.sum() * lax.axis_index("j"), ALL)

    def descent(w, _):
        return w - 0.1 * library.grad(far)(w, x), lax.psum(near(w, x), ALL)

    def square(w, x):
        return (library.grad(far)(w, x) ** 2).sum()

    def all_of(w, given):
        nonlocal x
        x = given
        return {
            "far": library.value_and_grad(far, (0, 1))(w, x),
            "near": library.grad(near)(w, x),
            "own": library.grad(near)(lax.pcast(w, ALL, to="varying"), x),
            "mean of near": lax.pmean(library.grad(near)(w, x), ALL),
            "mixed": library.grad(mixed, (0, 1))(w, x),
            "second": library.grad(square)(w, x),
            "jit": library.grad(library.jit(far))(w, x),
            "checkpoint": library.grad(library.checkpoint(mixed))(w, x),
            "vjp": library.vjp(lambda w: lax.psum(np.tanh(x @ w).sum(0), ALL), w)[1](w[0])[0],
            "jacrev": library.jacrev(lambda w: lax.psum(np.tanh(x @ w).sum(0), ALL))(w),
            "scan": library.lax.scan(descent, w, None, length=2),
            "rows": library.vmap(library.grad(near), (None, 0))(w, x),
        }

    x = None
    shared, own = P(), P(ALL)
    specs = dict.fromkeys(("near", "mean of near", "second", "jit", "checkpoint", "scan"), shared)
    specs |= {"far": (shared, (shared, own)), "mixed": (shared, own), "rows": own, "own": own}
    specs |= {"vjp": shared, "jacrev": P()}
    return all_of, {"mesh": mesh_of(), "in_specs": (shared, own), "out_specs": specs}


def derivatives_of_jax():
    f, specs = derivatives(jax, jax.lax, jnp)
    return jax.jit(jax.shard_map(f, **specs))(W, X)


@check
def derivatives_taken_on_each_device_are_those_of_jax():
    f, specs = derivatives(functx, lax, xp)
    mapped = functx.shard_map(f, **specs)
    same(functx.jit(mapped)(W, X), derivatives_of_jax())


@check
def derivatives_taken_within_a_map_of_jax_are_those_of_jax():
    f, specs = derivatives(functx, lax, xp)
    mapped = jax.shard_map(functx.jit(f), **specs)
    same(jax.jit(mapped)(W, X), derivatives_of_jax())


@check
def jax_differentiates_functions_with_collectives_on_each_device():
    def loss(w, x):
        return lax.pmean(xp.tanh(x @ w).mean(), ALL)

    specs = {"mesh": mesh_of(), "in_specs": (P(), P(ALL)), "out_specs": (P(), (P(), P(ALL)))}
    found = jax.shard_map(jax.value_and_grad(functx.jit(loss), (0, 1)), **specs)(W, X)
    same(found, jax.value_and_grad(lambda w, x: jnp.tanh(x @ w).mean(), (0, 1))(W, X))


@check
def a_derivative_of_a_map_of_derivatives_is_that_of_jax():
    def outer(library, lax, np):
        f = library.grad(lambda w, x: lax.pmean(np.tanh(x @ w).mean(), ALL))
        specs = {"mesh": mesh_of(), "in_specs": (P(), P(ALL)), "out_specs": P()}
        return library.jit(library.grad(lambda w: (library.shard_map(f, **specs)(w, X) ** 2).sum()))

    same(outer(functx, lax, xp)(W), outer(jax, jax.lax, jnp)(W))


@check
def maps_of_jax_become_maps_of_functx():
    def body(w, x):
        return jax.value_and_grad(lambda w: jax.lax.pmean(jnp.tanh(x @ w).mean(), ALL))(w)

    specs = {"mesh": mesh_of(), "in_specs": (P(), P(ALL)), "out_specs": P()}
    mapped = jax.shard_map(body, **specs)
    own = functx.from_jax(mapped)
    assert "shard_map[" in str(functx.make_ir(own)(W, X))
    same(functx.jit(own)(W, X), mapped(W, X))
    found = functx.grad(lambda w: own(w, X)[1].sum())(W)
    same(found, jax.grad(lambda w: mapped(w, X)[1].sum())(W))


# Training steps

LAYERS = [np.sin(np.arange(12, dtype="f")).reshape(2, 6), np.cos(np.arange(6, dtype="f"))[:, None]]
TARGET = X.sum(1, keepdims=True) ** 2


def loss(layers, x, y):
    first, second = layers
    return ((xp.tanh(x @ first) @ second - y) ** 2).mean()


def descended(layers, grads):
    return functx.tree.map(lambda w, g: w - 0.1 * g, layers, grads)


@functx.jit
def step(layers, x, y):
    value, grads = functx.value_and_grad(loss)(layers, x, y)
    return value, descended(layers, grads)


@check
def a_step_on_a_divided_batch_is_that_on_one_device():
    wanted = step(LAYERS, X, TARGET)
    x, y = placed(X, ALL), placed(TARGET, ALL)
    layers = [placed(w) for w in LAYERS]
    value, new = step(layers, x, y)
    same((value, new), wanted)
    assert all(w.sharding.is_fully_replicated for w in new), new[0].sharding
    mesh = mesh_of()
    rows, whole = NamedSharding(mesh, P(ALL)), NamedSharding(mesh, P())
    options = {"in_shardings": (whole, rows, rows), "out_shardings": (whole, whole)}
    same(functx.jit(step, **options)(LAYERS, X, TARGET), wanted)


@check
def a_step_that_each_device_takes_on_its_rows_is_that_on_one_device():
    def body(layers, x, y):
        total = lambda layers: lax.pmean(loss(layers, x, y), ALL)  # noqa: E731
        value, grads = functx.value_and_grad(total)(layers)
        return value, descended(layers, grads)

    specs = {"in_specs": (P(), P(ALL), P(ALL)), "out_specs": P()}
    wanted = step(LAYERS, X, TARGET)
    same(functx.jit(functx.shard_map(body, mesh=mesh_of(), **specs))(LAYERS, X, TARGET), wanted)
    same(jax.shard_map(functx.jit(body), mesh=mesh_of(), **specs)(LAYERS, X, TARGET), wanted)


@check
def a_step_with_divided_layers_is_that_on_one_device():
    """A column of the first layer, and a row of the second, on each device along `j`."""
    wanted = step(LAYERS, X, TARGET)

    def body(layers, x, y):
        def total(layers):
            first, second = layers
            out = lax.psum(xp.tanh(x @ first) @ second, "j")
            return lax.pmean(((out - y) ** 2).mean(), "i")

        value, grads = functx.value_and_grad(total)(layers)
        return value, descended(layers, grads)

    parts = [P(None, "j"), P("j")]
    specs = {"in_specs": (parts, P("i"), P("i")), "out_specs": (P(), parts)}
    mapped = functx.jit(functx.shard_map(body, mesh=mesh_of(), **specs))
    same(mapped(LAYERS, X, TARGET), wanted)
    value, new = mapped([placed(w, *p) for w, p in zip(LAYERS, parts, strict=True)], X, TARGET)
    same((value, new), wanted)
    assert new[0].sharding.spec == P(None, "j")


@check
def steps_send_as_many_messages_as_those_of_jax():
    """Sums over devices in a gradient of three blocks with divided layers and a divided batch."""

    def messages(library, lax, np):
        def total(layers, x):
            first, second = layers
            h = x
            for _ in range(3):
                h = h + lax.psum(np.tanh(h @ first) @ second, "j")
            return lax.pmean((h**2).mean(), "i")

        parts = [P(None, "j"), P("j")]
        specs = {"in_specs": (parts, P("i")), "out_specs": (P(), parts)}
        mapped = library.shard_map(library.value_and_grad(total), mesh=mesh_of(), **specs)
        layers = [LAYERS[0], LAYERS[0].T]
        return library.jit(mapped).lower(layers, X).compile().as_text().count(" all-reduce(")

    assert 0 < messages(functx, lax, xp) <= messages(jax, jax.lax, jnp)


@check
def a_step_with_constraints_is_that_on_one_device():
    mesh = mesh_of()

    def total(layers, x, y):
        first, second = layers
        hidden = lax.with_sharding_constraint(xp.tanh(x @ first), NamedSharding(mesh, P("i", "j")))
        return ((hidden @ second - y) ** 2).mean()

    layers = [placed(LAYERS[0], None, "j"), placed(LAYERS[1], "j")]
    value, grads = functx.jit(functx.value_and_grad(total))(layers, placed(X, "i"), TARGET)
    same((value, descended(LAYERS, grads)), step(LAYERS, X, TARGET))
    text = functx.jit(functx.grad(total)).lower(layers, X, TARGET).as_text()
    # On the value and on its cotangent.
    assert text.count("@Sharding") + text.count("sdy.sharding_constraint") >= 2, text


@check
def the_example_runs():
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert printed.getvalue().startswith("8 devices: loss 0.0"), printed.getvalue()


# Constraints and arguments


@check
def constraints_say_where_values_lie():
    mesh = mesh_of()
    both = NamedSharding(mesh, P("i", "j"))
    f = lambda x: lax.with_sharding_constraint({"a": x * 2, "b": x}, {"a": both, "b": None})  # noqa: E731
    found = functx.jit(f)(X)
    same(found, {"a": X * 2, "b": X})
    assert found["a"].sharding == both
    assert lax.with_sharding_constraint(X, NamedSharding(mesh, P("i"))).sharding.spec == P("i")
    g = functx.vmap(lambda x: f(x)["a"], spmd_axis_name=None)
    same(g(np.stack([X, X])), np.stack([X, X]) * 2)
    rows = NamedSharding(mesh, P("j"))
    over = functx.vmap(lambda x: lax.with_sharding_constraint(x, rows), spmd_axis_name="i")
    assert over(X.reshape(4, 2, 2)).sharding.spec == P("i", "j")
    with jax.set_mesh(mesh):
        assert functx.jit(lambda x: lax.with_sharding_constraint(x, P("i")))(X).sharding.spec == P(
            "i"
        )


@check
def arguments_keep_their_shardings_and_donated_ones_their_memory():
    x = placed(X, "i", "j")
    assert (functx.jit(lambda x: xp.sin(x))(x)).sharding.spec == P("i", "j")
    assert functx.grad(lambda x: (x * x).sum())(x).sharding.spec == P("i", "j")
    f = functx.jit(lambda x: x * 2, donate_argnums=0)
    y = f(x)
    assert x.is_deleted() and y.sharding.spec == P("i", "j")
    same(y, X * 2)


@check
def repeats_are_outlined_on_several_devices_when_asked_for():
    def blocks(layers, x):
        for w in layers:
            x = x + xp.tanh(x @ w) @ w.T
        return (x**2).mean()

    layers = [W * k for k in range(1, 7)]
    wanted = functx.value_and_grad(blocks)(layers, X)
    f = functx.jit(functx.value_and_grad(blocks), outline="always")
    same(f([placed(w, None, None) for w in layers], placed(X, ALL)), wanted)
    body = functx.value_and_grad(lambda layers, x: lax.pmean(blocks(layers, x), ALL))
    specs = {"mesh": mesh_of(), "in_specs": (P(), P(ALL)), "out_specs": P()}
    g = functx.jit(functx.shard_map(body, **specs), outline="always")
    same(g(layers, X), wanted)
    assert "func.call" in g.lower(layers, X).as_text() or "call @" in g.lower(layers, X).as_text()


@check
def what_each_device_keeps_is_planned():
    def blocks(w, x):
        for _ in range(3):
            x = xp.exp(xp.sin(xp.tanh(x @ w) ** 2)) @ w.T
        return lax.pmean((x**2).mean(), ALL)

    specs = {"mesh": mesh_of(), "in_specs": (P(), P(ALL)), "out_specs": P()}
    f = functx.grad(functx.shard_map(blocks, **specs))
    plain, planned = functx.jit(f), functx.jit(f, memory="min_cut")
    same(planned(W, X), plain(W, X))

    def outputs(memory):
        program = functx.make_ir(functx.jit(f, memory=memory))(W, X).inline()
        return max(len(e.outputs) for e in program if e.primitive.name == "shard_map")

    assert outputs("min_cut") < outputs("off")


@check
def loops_run_on_each_device():
    def body(library, lax, v):
        def turn(c, _):
            return c * 0.5 + lax.psum(c, "i") / 8, lax.pmean(c, "j")

        c, ys = library.lax.scan(turn, v, None, length=3)
        d = library.lax.while_loop(
            lambda c: lax.psum(c.sum(), ALL) < 100.0, lambda c: c * 1.5 + lax.pmean(c, "i"), v + 1
        )
        return (
            c,
            ys,
            library.lax.cond(lax.psum(v.sum(), ALL) > 0, lambda: lax.psum(d, "j"), lambda: d),
        )

    specs = {"mesh": mesh_of(), "in_specs": P(ALL), "out_specs": (P(ALL), P(None, "i"), P(ALL))}
    found = functx.jit(functx.shard_map(lambda v: body(functx, lax, v), **specs))
    wanted = jax.jit(jax.shard_map(lambda v: body(jax, jax.lax, v), **specs, check_vma=False))
    same(found(X), wanted(X))
    loss = lambda f: lambda x: f(x)[0].sum() + (f(x)[1] ** 2).sum()  # noqa: E731
    same(functx.grad(loss(found))(X), jax.grad(loss(wanted))(X))


@check
def maps_nest_with_vmap():
    def mapped(f, **names):
        return functx.shard_map(f, mesh=mesh_of(), in_specs=P("i"), out_specs=P(None), **names)

    sums = X.reshape(4, 2, 2).sum(0)
    stacked = np.stack([X, X * 2])
    inside = mapped(functx.vmap(lambda v: lax.psum(v, ("i", "k")), axis_name="k"))
    same(inside(X), np.stack([X.sum(0)] * 2))
    outside = functx.vmap(mapped(lambda v: lax.psum(v, ("i", "k"))), axis_name="k")
    same(outside(stacked), np.stack([3 * sums] * 2))
    same(functx.vmap(mapped(lambda v: lax.psum(v, "i")))(stacked), np.stack([sums, 2 * sums]))
    over = functx.vmap(mapped(lambda v: lax.psum(v, "i")), spmd_axis_name="j")
    same(over(stacked), np.stack([sums, 2 * sums]))
    columns = {"in_specs": P("j"), "out_specs": P(), "axis_names": {"j"}}
    each = functx.shard_map(lambda v: lax.psum(v, "j"), mesh=mesh_of(), **columns)
    rows = {"in_specs": P("i"), "out_specs": P("i"), "axis_names": {"i"}}
    within = functx.shard_map(each, mesh=mesh_of(), **rows)
    same(within(X), X.reshape(4, 2, 2).sum(1))
    partial = functx.jit(mapped(lambda v: lax.psum(v, "i"), axis_names={"i"}))
    same(partial(X), sums)
    same(
        jax.vmap(functx.jit(mapped(lambda v: lax.psum(v, "i"))))(stacked),
        np.stack([sums, 2 * sums]),
    )


@check
def maps_stand_in_loops_and_branches():
    specs = {"mesh": mesh_of(), "in_specs": P("i"), "out_specs": P("i")}
    mapped = functx.shard_map(lambda v: v / lax.psum((v * v).sum(), "i"), **specs)

    def body(library, f, x):
        turn = lambda c, _: (f(c), None)  # noqa: E731
        x = library.lax.scan(turn, x, None, length=2)[0]
        return (library.lax.cond(x.sum() > 0, f, lambda x: x, x) ** 3).sum()

    found = functx.value_and_grad(lambda x: body(functx, mapped, x))(X)
    same(found, jax.value_and_grad(lambda x: body(jax, lambda x: x / (x * x).sum(), x))(X))


@check
def a_decorator_makes_a_map():
    @functx.shard_map(mesh=mesh_of(), in_specs=P("i"), out_specs=P("i"))
    def doubled(v):
        return 2 * v

    same(doubled(X), 2 * X)


@check
def functions_write_in_place_on_each_device():
    def fill(v):
        v[0] = lax.psum(v[1], "i")
        return (v**2).sum()

    def both(v):
        rows = v * 1.0
        return functx.grad(fill)(rows), rows

    specs = {"mesh": mesh_of(), "in_specs": P("i"), "out_specs": P("i")}
    grads, rows = functx.shard_map(both, **specs)(X)
    sums = X[1::2].sum(0)
    same(rows, np.stack([row for x in X[1::2] for row in (sums, x)]))
    same(grads, np.stack([row for x in X[1::2] for row in (0 * x, 2 * x + 8 * sums)]))


@check
def meshes_with_explicit_axes_are_taken():
    mesh = mesh_of(AxisType.Explicit)
    f = functx.shard_map(lambda v: lax.psum(v**2, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    wanted = (X**2).reshape(4, 2, 2).sum(0)
    same(f(X), wanted)
    x = placed(X, "i", mesh=mesh)
    same(f(x), wanted)
    same(functx.shard_map(lambda v: lax.psum(v**2, "i"), mesh=mesh, out_specs=P())(x), wanted)
    with jax.set_mesh(mesh):
        same(functx.jit(f)(x), wanted)
        same(functx.jit(functx.grad(lambda x: f(x).sum()))(x), 2 * X)


@check
def constraints_and_out_sharding_determine_explicit_shardings():
    mesh = mesh_of(AxisType.Explicit)
    rows, columns = P("i", None), P(None, "j")
    square = np.ones((8, 8), "f")

    def spec_of(function, *args):
        result = functx.jit(function)(*args)
        assert function(*args).sharding.spec == result.sharding.spec
        same(result, np.asarray(function(*args)))
        return result.sharding.spec

    constrain = lax.with_sharding_constraint
    with jax.set_mesh(mesh):
        x = placed(square, "i", mesh=mesh)
        assert spec_of(lambda v: xp.sin(constrain(v, columns)) * 2, x) == columns
        assert spec_of(lambda v: xp.dot(v, v, out_sharding=columns), square) == columns
        assert spec_of(lambda: constrain(xp.ones((8, 8)), rows)) == rows
        assert spec_of(lambda v: constrain(v, P(None, None)), x) == P(None, None)
        assert spec_of(functx.jit(lambda v: constrain(v, columns)), x) == columns
        assert (
            spec_of(lambda v: lax.fori_loop(0, 2, lambda i, c: c * 2, constrain(v, columns)), x)
            == columns
        )
        assert spec_of(functx.grad(lambda v: (constrain(v, columns) ** 2).sum()), x) == columns
        drawn = functx.random.normal(functx.random.key(0), (8, 8), out_sharding=rows)
        assert drawn.sharding.spec == rows
        sizes = np.full(2, 4, np.int32)
        ragged = lax.ragged_dot(square, np.ones((2, 8, 8), "f"), sizes, out_sharding=rows)
        assert ragged.sharding.spec == rows


@check
def unreduced_axes_are_refused():
    mesh = mesh_of(AxisType.Explicit)
    spec = P("i", unreduced={"j"})
    sharding = NamedSharding(mesh, spec)
    said = "must have no unreduced and no reduced axes"
    refused(ArgumentError, lambda: lax.with_sharding_constraint(X, sharding), said)
    refused(ArgumentError, lambda: functx.jit(xp.sin, in_shardings=sharding)(X), said)
    mapped = functx.shard_map(xp.sin, mesh=mesh, in_specs=P("i", reduced={"j"}), out_specs=P("i"))
    refused(ArgumentError, lambda: mapped(X), said)
    with jax.set_mesh(mesh):
        shares = placed(X, None, "j", mesh=mesh)
        row = placed(X[:2].T, "j", mesh=mesh)
        total = jnp.einsum("ij,jk->ik", shares, row, out_sharding=P(None, None, unreduced={"j"}))
        refused(ArgumentError, lambda: functx.jit(xp.sin)(total), said)
        same(functx.jit(xp.sin)(functx.reshard(total, P())), np.sin(X @ X[:2].T))


# Captured walks


class Scale(Function):
    """x * scale, whose rule gives gradients as for scale * x**2 / 2."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * float(scale.numpy())

    @staticmethod
    def backward(ctx, gradient):
        x, scale = ctx.saved_tensors
        return gradient * scale * x, None


class ScaleOnHost(Scale):
    """The same by a rule that sees where the number lies, and computes with its value."""

    is_opaque = True
    devices: ClassVar[list] = []

    @staticmethod
    def backward(ctx, gradient):
        x, scale = ctx.saved_tensors
        ScaleOnHost.devices.append(scale.compute().devices())
        return gradient * float(scale.numpy()) * x, None


def scale_by_number_on_host(function, run, x):
    """Walks through a call of `function` on `x` and a number that was put on the first device."""
    for _ in range(3):
        w = Variable(x, requires_grad=True)
        scale = Variable(jax.device_put(np.float32(2), jax.devices()[0]))
        with run:
            function.apply(w, scale).sum().backward()
        same(w.grad.numpy(), 2 * np.asarray(x))
        assert w.grad.compute().devices() == x.devices()


@check
def numbers_on_the_host_move_to_the_device_of_a_captured_walk():
    x = jax.device_put(X, jax.devices()[3])
    for run in (enable(), enable(compile_stages)):
        scale_by_number_on_host(Scale, run, x)
        scale_by_number_on_host(Scale, run, placed(X, "i", "j"))
    try:
        scale_by_number_on_host(Scale, disable(), x)
    except ValueError as error:
        assert "incompatible devices" in str(error)
    else:
        raise AssertionError("a walk node by node moves it too")


@check
def numbers_on_the_host_that_python_sees_do_not_move():
    x, home = jax.device_put(X, jax.devices()[3]), {jax.devices()[0]}
    for run in (enable(), enable(compile_stages), disable()):
        scale_by_number_on_host(ScaleOnHost, run, x)
        found = []

        def hook(gradient, found=found):
            found.append(gradient.compute().devices())
            return Variable(jax.device_put(gradient.compute(), jax.devices()[3]))

        for _ in range(3):
            w = Variable(x, requires_grad=True)
            y = (w * w).sum()
            y.register_hook(hook)
            with run:
                y.backward(Variable(jax.device_put(np.float32(3), jax.devices()[0])))
            same(w.grad.numpy(), 6 * X)
        assert found == [home] * 3
    assert ScaleOnHost.devices == [home] * 9


# Mistakes


@check
def shapes_that_do_not_divide_are_refused():
    mesh = mesh_of()
    f = functx.shard_map(lambda v: v, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    text = "a dimension must be a multiple of the 4 devices that it is divided among; got f32[6,2]"
    refused(ShapeError, lambda: f(X[:6]), "shard_map(lambda): `v`: " + text, "Pad it")
    rows = NamedSharding(mesh, P("i"))
    refused(ShapeError, lambda: lax.with_sharding_constraint(X[:6], rows), text)
    jitted = functx.jit(lambda n, v: v, static_argnums=0, in_shardings=(rows,))
    refused(ShapeError, lambda: jitted(1, {"a": X[:6]}), "jit(lambda): `v['a']`: " + text)
    scatter = functx.shard_map(
        lambda v: lax.psum_scatter(v, "i", tiled=True), mesh=mesh, in_specs=P("i"), out_specs=P("i")
    )
    refused(ShapeError, lambda: scatter(X), "psum_scatter: dimension 0 must be a multiple of the 4")


@check
def results_that_differ_are_refused():
    options = {"mesh": mesh_of(), "in_specs": P("i")}
    f = functx.shard_map(lambda v: {"a": v * 2}, out_specs=P(), **options)
    parts = "output['a']: f32[2,2] with P(None, None), which differs along 'i'", "lax.psum(x, 'i')"
    refused(ReplicationError, lambda: f(X), *parts)
    unchecked = functx.shard_map(lambda v: v, out_specs=P(), check_vma=False, **options)
    assert unchecked(X).shape == (2, 2)


@check
def effects_in_order_are_refused():
    def noisy(v):
        functx.debug.print("{}", v.sum(), ordered=True)
        return v

    f = functx.shard_map(noisy, mesh=mesh_of(), in_specs=P("i"), out_specs=P("i"))
    refused(EffectError, lambda: f(X), "effects on several devices must not be ordered")


@check
def specs_that_do_not_fit_are_refused():
    mesh = mesh_of()

    def mapped(**specs):
        return functx.shard_map(lambda v: v, **{"mesh": mesh, "out_specs": P("i"), **specs})

    refused(ArgumentError, lambda: mapped(in_specs=P("k"))(X), "axes of the mesh, each once")
    refused(ArgumentError, lambda: mapped(in_specs=(P(), P()))(X), "in_specs must be a tree prefix")
    refused(ArgumentError, lambda: mapped(in_specs="i")(X), "specs must be PartitionSpecs; got str")
    refused(ArgumentError, lambda: mapped(in_specs=P("i"), mesh=None)(X), "within jax.set_mesh")
    refused(ArgumentError, lambda: functx.jit(mapped())(X), "must be given for a traced argument")
    some = mapped(in_specs=P("i"), out_specs=P("j"), axis_names={"i"})
    refused(ArgumentError, lambda: some(X), "specs must name axes among axis_names; got 'j'")


def main():
    """Print, as JSON, what each check said, and how long it took."""
    found = {}
    for name in sys.argv[1:] or CHECKS:
        start = time.process_time()
        try:
            CHECKS[name]()
            said = ""
        except Exception:
            said = traceback.format_exc()
        found[name] = said, time.process_time() - start
    print(json.dumps(found))


if __name__ == "__main__":
    main()
