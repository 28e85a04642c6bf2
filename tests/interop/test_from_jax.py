"""`from_jax`: what becomes of a JAX function in a trace of functx."""

import weakref

import jax
import jax.experimental.pallas as pl
import jax.numpy as jnp
import jax.random as jr
import numpy as onp
import pytest
from jax.experimental import io_callback

import functx as fx
from functx.core.primitive import Primitive
from functx.interop.jax_trace import TracedJaxFunction
from functx.interop.jaxprs import MutableStateError, function_fingerprint
from functx.interop.translation import JaxCall

X = onp.random.RandomState(0).uniform(0.2, 0.9, (4, 3)).astype("float32")
KEY = onp.array([0, 3], "uint32")


def close(x, y, tolerance=1e-5):
    for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True):
        onp.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def names(program):
    return [eqn.primitive.name for eqn in program]


def test_a_program_shows_functx_equations():
    program = fx.make_ir(fx.from_jax(lambda x: jnp.tanh(x @ x.T).sum()))(X)
    assert names(program) == ["permute_dims", "dot_general", "tanh", "reduce_sum"]
    assert "# test_from_jax.py" in str(program)


def test_outside_of_a_trace_it_is_the_function():
    seen = []
    f = fx.from_jax(lambda x: seen.append(type(x)) or x + 1)
    assert isinstance(f(jnp.ones(3)), jax.Array)
    assert issubclass(seen[0], jax.Array) and not issubclass(seen[0], jax.core.Tracer)
    assert f.__name__ == "lambda"


def test_arrays_of_a_closure_are_captured_and_literals_stay():
    table = jnp.arange(3.0)
    program = fx.make_ir(fx.from_jax(lambda x: x * table + 2))(X)
    assert len(program.inputs) == 2 and program.captured[0] is table
    close(program(X), X * onp.arange(3.0, dtype="float32") + 2)


def test_large_jitted_functions_become_calls_and_small_ones_are_inlined():
    @jax.jit
    def small(x):
        return jnp.sin(x) * 2

    @jax.jit
    def large(x):
        for _ in range(30):
            x = jnp.sin(x)
        return x

    assert names(fx.make_ir(fx.from_jax(small))(X)) == ["sin", "mul"]
    program = fx.make_ir(fx.from_jax(lambda x: large(large(x))))(X)
    assert names(program) == ["call", "call"]
    assert program.equations[0].primitive is program.equations[1].primitive


def test_arguments_are_pytrees_and_what_is_no_array_is_passed_as_it_is():
    marker = object()
    seen = {}

    def f(tree, mode, axis, *, fun, scale=2.0):
        seen.update(mode=mode, axis=axis, fun=fun, scale=scale, none=tree["none"])
        return {"sum": jnp.sum(tree["x"] * scale, axis=axis), "mode": mode, "fun": fun, "n": None}

    found = {}

    def user(x):
        found.update(fx.from_jax(f)({"x": x, "none": None}, "train", 1, fun=marker))
        return found["sum"]

    close(fx.jit(user)(X), X.sum(1) * 2)
    assert seen == {"mode": "train", "axis": 1, "fun": marker, "scale": 2.0, "none": None}
    assert found["mode"] == "train" and found["fun"] is marker and found["n"] is None


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "bfloat16", "float16"])
def test_dtypes_and_weak_types_are_those_of_jax(dtype):
    x = jnp.asarray(X * 3).astype(dtype)

    def f(x):
        return x * 2, x + 1.5, x > 1, jnp.where(x > 1, x, 0), jnp.sum(x), x.astype("complex64")

    wanted, given = f(x), fx.jit(fx.from_jax(f))(x)
    for a, b in zip(wanted, given, strict=True):
        assert a.dtype == b.dtype
        close(onp.asarray(b, "complex64"), onp.asarray(a, "complex64"))
    weak = fx.eval_shape(fx.from_jax(lambda x: (x * 2.0, jnp.float32(x) * 2.0)), 1.0)
    assert [a.weak_type for a in weak] == [True, False]


def test_64_bit_types(x64):
    x = onp.arange(3.0)

    def f(x):
        return jnp.sin(x) * 2, jnp.arange(3) + jnp.asarray(x, int), jax.nn.relu(x)

    for a, b in zip(fx.jit(fx.from_jax(f))(x), f(x), strict=True):
        assert a.dtype == b.dtype
        close(a, b, 1e-12)
    slope = fx.grad(fx.from_jax(lambda x: jax.scipy.special.gammainc(2.0, x + 1).sum()))(x)
    close(
        slope, jax.jit(jax.grad(lambda x: jax.scipy.special.gammainc(2.0, x + 1).sum()))(x), 1e-12
    )


def test_conventions_at_kinks_are_those_of_functx():
    zero = onp.float32(0)
    assert fx.grad(fx.from_jax(jnp.abs))(zero) == 0
    # A rule of JAX's own is kept.
    assert fx.grad(fx.from_jax(jax.nn.relu))(zero) == jax.grad(jax.nn.relu)(0.0)


# What has no counterpart


def igamma(x):
    return jax.scipy.special.gammainc(2.0, x)


def test_what_has_no_counterpart_is_one_equation_with_rules_of_jax():
    program = fx.make_ir(fx.from_jax(igamma))(X)
    assert names(program) == ["jax_call"] and "igamma" in str(program)
    loss = lambda x: igamma(x).sum()  # noqa: E731
    close(fx.grad(fx.from_jax(loss))(X), jax.jit(jax.grad(loss))(X))
    close(fx.hessian(fx.from_jax(loss))(X[0]), jax.hessian(loss)(X[0]))
    close(
        fx.vmap(fx.vmap(fx.grad(fx.from_jax(igamma))))(X),
        jax.jit(jax.vmap(jax.vmap(jax.grad(igamma))))(X),
    )
    close(fx.jacfwd(fx.jacrev(fx.from_jax(igamma)))(X[0]), jax.jacfwd(jax.jacrev(igamma))(X[0]))
    assert fx.Program.parse(str(program)) == program


def test_linear_calls_are_transposed():
    kernel = jnp.asarray(X[None, None, :2, :2])

    def f(x):
        return jax.lax.conv(x[None, None], kernel, (1, 1), "SAME")[0, 0]

    out, pull = jax.vjp(f, X)
    close(fx.vjp(fx.from_jax(f), X)[1](onp.asarray(out))[0], pull(out)[0])
    wanted = jax.linear_transpose(f, X)(out)
    close(fx.linear_transpose(fx.from_jax(f), X)(onp.asarray(out)), wanted)


def test_equal_jaxprs_make_equal_primitives():
    programs = [fx.make_ir(fx.from_jax(lambda x: igamma(x)))(X) for _ in range(2)]
    first, second = [p.equations[0].primitive for p in programs]
    assert isinstance(first, JaxCall) and first is second
    other = fx.make_ir(fx.from_jax(lambda x: jax.scipy.special.gammainc(3.0, x)))(X)
    assert programs[0] == programs[1] != other


def test_kernels():
    def kernel(x_ref, out_ref):
        out_ref[...] = x_ref[...] * 2 + 1

    def f(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(kernel, out_shape=shape, interpret=True)(x)

    close(fx.jit(fx.from_jax(f))(X), X * 2 + 1)
    close(fx.vmap(fx.from_jax(f))(X), X * 2 + 1)
    close(fx.jvp(fx.from_jax(f), (X,), (X,))[1], X * 2)


def test_functions_with_references_inside():
    def f(x):
        ref = jax.new_ref(x)
        ref[0] = x[1] * 2
        return ref[...]

    close(fx.jit(fx.from_jax(f))(X), f(X))
    loss = lambda x: (f(x) ** 2).sum()  # noqa: E731
    close(fx.grad(fx.from_jax(loss))(X), jax.jit(jax.grad(loss))(X))


def test_a_function_of_functx_inside_is_what_it_was():
    inner = fx.jit(lambda x: fx.numpy.sin(x) * 2)
    assert names(fx.make_ir(fx.from_jax(lambda x: inner(x) + 1))(X)) == ["sin", "mul", "add"]


# Keys


def draw(key, x):
    first, second = jr.split(key)
    rows = jax.vmap(lambda k: jr.normal(k, (3,)))(jr.split(jr.fold_in(first, 7), 4))
    return rows * x + jr.bernoulli(second, 0.4, x.shape) + jr.permutation(first, 3)


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_typed_keys(generator):
    key = jr.key(3, impl=generator)
    close(fx.jit(lambda x: fx.from_jax(draw)(key, x))(X), draw(key, X))
    close(fx.jit(fx.from_jax(lambda x: draw(key, x)))(X), draw(key, X))


def test_keys_are_words_here():
    draws = fx.jit(fx.from_jax(lambda key, x: draw(jr.wrap_key_data(key), x)))
    close(draws(KEY, X), draw(jr.wrap_key_data(KEY), X))
    program = fx.make_ir(lambda x: fx.from_jax(lambda k: jr.split(k)[1])(jr.key(3)))(X)
    assert names(program) == ["random_seed", "random_split", "slice", "reshape"]


def test_keys_in_loops():
    def noise(key, x):
        def step(key, row):
            key, own = jr.split(key)
            return key, jr.normal(own, (3,)) * row

        return jax.lax.scan(step, key, x)[1]

    key = jr.key(5)
    close(fx.jit(lambda x: fx.from_jax(noise)(key, x))(X), noise(key, X))
    loss = lambda f: lambda x: (f(key, x) ** 2).sum()  # noqa: E731
    close(fx.grad(loss(fx.from_jax(noise)))(X), jax.jit(jax.grad(loss(noise)))(X))


@pytest.mark.parametrize("draw", [jr.gamma, jr.poisson, jr.categorical, jr.dirichlet])
def test_draws_without_a_counterpart(draw):
    key, parameter = jr.key(1), X[0] * 3
    close(fx.jit(lambda p: fx.from_jax(draw)(key, p))(parameter), draw(key, parameter))


# Effects


def test_callbacks_run_once_for_each_run(capfd):
    seen = []

    def f(x):
        jax.debug.callback(lambda v: seen.append(float(v)), x)
        jax.debug.print("{}: {x}", "value", x=x, ordered=True)
        io_callback(lambda v: seen.append("io"), None, x, ordered=True)
        y = jax.pure_callback(lambda v: onp.asarray(v * 2), x, x, vmap_method="sequential")
        return x * x + jax.lax.stop_gradient(y)

    assert fx.jit(fx.from_jax(f))(onp.float32(3)) == 15
    fx.effects_barrier()
    assert sorted(map(str, seen)) == ["3.0", "io"] and "value: 3.0" in capfd.readouterr().out
    seen.clear()
    assert fx.jit(fx.grad(fx.from_jax(f)))(onp.float32(3)) == 6
    fx.effects_barrier()
    assert sorted(map(str, seen)) == ["3.0", "io"]


# Inside JAX


def test_inside_jax():
    def user(x, theta):
        def loss(x):
            return fx.from_jax(lambda a: jnp.sum(jnp.sin(a) * theta))(x)

        return fx.grad(loss)(x), fx.jit(loss)(x)

    close(jax.jit(user)(X, 2.0), (onp.cos(X) * 2, onp.sin(X).sum() * 2))
    f = fx.jit(fx.from_jax(lambda a: jnp.sum(jax.nn.relu(a) * jnp.sin(a))))
    close(jax.grad(f)(X), onp.sin(X) + X * onp.cos(X))
    close(jax.vmap(f)(X), (X * onp.sin(X)).sum(1))


def test_a_trace_of_jax_leaves_nothing_behind():
    f = fx.from_jax(lambda a: jnp.sin(a) * 2)
    jax.jit(lambda x: fx.jit(f)(x))(X)
    close(fx.jit(lambda x: f(x))(X), onp.sin(X) * 2)


# Memory


def test_a_translation_is_remembered_while_it_stays_right():
    seen = []
    scale = 2.0

    def f(x, n):
        seen.append(n)
        return x * scale * n

    g = fx.from_jax(f)
    fx.make_ir(lambda x: g(x, 1))(X)
    # `seen` is a list, of which nobody knows what will become.
    fx.make_ir(lambda x: g(x, 1))(X)
    assert len(seen) == 2

    calls = TracedJaxFunction(lambda x: jnp.sin(x) * scale)
    flat = calls.flat_function("tree", [])
    assert calls.flat_function("tree", []) is flat
    scale = 3.0
    assert calls.flat_function("tree", []) is not flat


def test_what_changes_in_a_closure_is_seen():
    factor = {"value": 2.0}
    f = fx.from_jax(lambda x: x * factor["value"])
    step = jnp.ones(())
    g = fx.from_jax(lambda x: x * step)
    assert fx.make_ir(f)(X)(X)[0, 0] == X[0, 0] * 2
    close(fx.vmap(g)(X), X)
    factor["value"], step = 5.0, jnp.full((), 3.0)
    close(fx.vmap(f)(X), X * 5)
    close(fx.vmap(g)(X), X * 3)


def test_a_snapshot_holds_what_a_function_reads():
    def reads(value):
        return lambda x: jnp.sin(x) * value

    assert (
        function_fingerprint(reads(2.0))
        == function_fingerprint(reads(2.0))
        != function_fingerprint(reads(3.0))
    )
    assert function_fingerprint(reads(-0.0)) != function_fingerprint(reads(0.0))
    array = jnp.ones(3)
    assert (
        function_fingerprint(reads(array))
        == function_fingerprint(reads(array))
        != function_fingerprint(reads(jnp.ones(3)))
    )
    assert function_fingerprint(reads(jnp.cos)) == function_fingerprint(reads(jnp.cos))
    assert function_fingerprint(reads(reads(1))) == function_fingerprint(reads(reads(1)))
    for changeable in ([1.0], {}, onp.ones(3), object(), fx, reads([1])):
        with pytest.raises(MutableStateError):
            function_fingerprint(reads(changeable))


def test_programs_go_with_the_caches():
    f = fx.from_jax(jax.jit(lambda x: jnp.sin(x)))
    program = fx.make_ir(f)(X)
    alive = weakref.ref(program)
    del program
    assert alive() is None
    fx.clear_caches()
    assert fx.cache_info()["from_jax"].size == 0


def test_the_primitive_is_registered():
    assert Primitive.registry["jax_call"] is JaxCall


@pytest.mark.parametrize("left_side", [False, True])
def test_every_flag_of_a_triangular_solve_keeps_its_meaning(left_side):
    random = onp.random.RandomState(1)
    a, b = (
        (random.uniform(0.5, 1, (3, 3)) + 1j * random.uniform(0.5, 1, (3, 3))).astype("complex64")
        for _ in range(2)
    )
    flags = "lower", "transpose_a", "conjugate_a", "unit_diagonal"

    def solutions(a, b):
        return [
            jax.lax.linalg.triangular_solve(
                a, b, left_side=left_side, **{f: bool(n >> i & 1) for i, f in enumerate(flags)}
            )
            for n in range(16)
        ]

    program = fx.make_ir(fx.from_jax(solutions))(a, b)
    assert names(program).count("triangular_solve") == 16
    close(fx.jit(program)(a, b), jax.jit(solutions)(a, b), 1e-4)


def test_each_lane_of_a_loop_that_jax_batches_stops_on_its_own():
    def doubled(n, x):
        return jax.lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 2), (0, x))[1]

    f = fx.from_jax(jax.vmap(doubled))
    n, x = onp.array([1, 0, 3], "int32"), onp.array([1.0, 5.0, 2.0], "float32")
    wanted = onp.array([2.0, 5.0, 16.0])
    close(fx.jit(f)(n, x), wanted)
    close(fx.jvp(lambda x: f(n, x), (x,), (x,))[1], wanted)
