"""What a functx function means inside JAX: zeros, types, conventions, meshes, values, mistakes."""

import gc
import os
import subprocess
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters import partial_eval

import functx
import functx.numpy as xp
from functx.core.errors import (
    ConcretizationError,
    DTypeError,
    EscapedTracerError,
    LinearityError,
    NonFiniteError,
    ShapeError,
)
from functx.lowering.functx_call import bind_functx_call, functx_call

x = jnp.array([0.3, -0.7, 1.1])


def refused(error, call, *says):
    with pytest.raises(error) as caught:
        call()
    for words in says:
        assert words in str(caught.value), str(caught.value)


def calls(jaxpr):
    """The programs that a jaxpr calls, those within jit included."""
    found = []
    for eqn in jaxpr.eqns:
        if eqn.primitive is functx_call:
            found.append(eqn.params["program"].program)
        for inner in eqn.params.values():
            if hasattr(inner, "jaxpr"):
                found += calls(inner.jaxpr)
    return found


def test_integers_have_no_tangents():
    f = functx.jit(lambda x, n: (x * n, n + 1))
    float0 = np.zeros((), jax.dtypes.float0)
    (_, n), (t, no_tangent) = jax.jvp(f, (2.0, 3), (1.0, float0))
    assert (float(t), int(n)) == (3.0, 4) and no_tangent.dtype == jax.dtypes.float0
    by_x, by_n = jax.grad(lambda *a: f(*a)[0], (0, 1), allow_int=True)(2.0, 3)
    assert float(by_x) == 3.0 and by_n.dtype == jax.dtypes.float0
    value, pull = jax.vjp(lambda x: (xp.sin(x), xp.argmax(x)), x)
    np.testing.assert_allclose(pull((x, np.zeros((), jax.dtypes.float0)))[0], jnp.cos(x) * x)


def test_what_does_not_vary_has_a_zero_tangent_and_costs_nothing():
    f = functx.jit(lambda x, y: (xp.sin(x), xp.cos(y)))
    jaxpr = jax.make_jaxpr(lambda x: jax.jvp(lambda x: f(x, x * 1.0)[0], (x,), (x,)))(x)
    one = jax.make_jaxpr(lambda t: jax.linearize(lambda x: f(x, 2.0), x)[1](t))(x)
    assert [len(p.outputs) for p in calls(one.jaxpr)][-1] == 1
    assert jaxpr.out_avals[1].shape == (3,)


def test_jax_prunes_outputs_and_inputs_that_nothing_uses():
    f = functx.jit(lambda x, y: (xp.sin(x), xp.cosh(y)))
    closed = jax.make_jaxpr(f)(1.0, 2.0)
    pruned, used = partial_eval.dce_jaxpr(closed.jaxpr, [True, False])
    (program,) = calls(pruned)
    assert used == [True, False]
    assert [e.primitive.name for e in program] == ["sin"] and len(program.inputs) == 1
    text = jax.jit(lambda x, y: f(x, y)[0]).lower(1.0, 2.0).as_text()
    assert "sine" in text and "cosh" not in text and "exponential" not in text


def test_residuals_that_are_arguments_or_results_are_not_computed_again():
    f = functx.jit(lambda x, w: xp.exp(w * x))
    forward = calls(jax.make_jaxpr(jax.grad(lambda x, w: f(x, w).sum(), (0, 1)))(x, x).jaxpr)[0]
    assert len(forward.outputs) == 1


def test_rewrites_are_made_once_for_a_program_that_is_traced_often():
    f = functx.jit(lambda x: xp.sin(x) * x)
    trace = jax.make_jaxpr(jax.vmap(jax.grad(lambda x: f(x) * 2.0)))
    first, again = calls(trace(x).jaxpr), calls(trace(x).jaxpr)
    other = calls(jax.make_jaxpr(jax.vmap(jax.grad(lambda x: f(x) * 3.0)))(x).jaxpr)
    assert all(a is b is c for a, b, c in zip(first, again, other, strict=True))
    compiled = jax.jit(lambda x: f(x) + f(x * 2.0))
    assert compiled.lower(1.0).as_text().count("stablehlo.sine") == 1


def test_what_is_remembered_of_a_program_goes_with_it():
    def traced():
        program = functx.make_ir(lambda x, y: xp.sin(x) * x)(x, x)
        total = jax.vmap(jax.grad(lambda x: jnp.sum(bind_functx_call(program, [x, x])[0])))
        jax.make_jaxpr(total)(jnp.ones((2, 3)))
        return weakref.ref(program)

    gc.disable()
    try:
        assert traced()() is None
    finally:
        gc.enable()


def test_types_keep_their_weakness():
    f = functx.jit(lambda x: xp.sin(x) * 2.0)
    for g in (f, jax.grad(f), jax.vmap(f, axis_size=2, in_axes=None)):
        assert jax.make_jaxpr(g)(1.0).out_avals[0].weak_type
        assert not jax.make_jaxpr(g)(np.float32(1)).out_avals[0].weak_type


@pytest.mark.parametrize("wide", [False, True])
def test_derivatives_of_other_dtypes_are_those_of_jax(wide):
    with jax.enable_x64(wide):

        def f(np):
            return lambda z: np.abs(z * z + 1.0)

        for z in (1.0 + 2.0j, jnp.bfloat16(0.5), np.float64(0.3), jnp.float16(2.0)):
            found, wanted = jax.grad(functx.jit(f(xp)))(z), jax.grad(f(jnp))(z)
            assert found.dtype == wanted.dtype
            np.testing.assert_allclose(
                np.asarray(found, complex), np.asarray(wanted, complex), rtol=1e-2
            )
    assert jax.grad(functx.jit(xp.sin))(1.0).dtype == "float32"


@pytest.mark.parametrize("wrap", [lambda f: f, functx.jit, lambda f: jax.jit(functx.jit(f))])
def test_conventions_at_kinks_are_those_of_functx(wrap):
    assert float(jax.grad(wrap(xp.abs))(0.0)) == 0.0
    np.testing.assert_array_equal(jax.grad(wrap(xp.linalg.norm))(jnp.zeros(3)), 0.0)
    assert float(jax.grad(wrap(lambda x: xp.clip(x, 0.0, 1.0)))(0.0)) == 0.0
    assert float(jax.grad(wrap(lambda x: x**2.0))(0.0)) == 0.0
    assert float(jax.jacfwd(wrap(lambda x: xp.where(x > 0, xp.sqrt(x), 0.0)))(0.0)) == 0.0
    assert float(jax.grad(wrap(lambda x: functx.stop_gradient(x) * x))(3.0)) == 3.0


@functx.custom_vjp
def doubled(x):
    return xp.sin(x)


doubled.defvjp(lambda x: (xp.sin(x), x), lambda x, ct: (2.0 * ct * x,))


@pytest.mark.parametrize("wrap", [lambda f: f, functx.jit, functx.checkpoint])
def test_custom_rules_hold_in_jax(wrap):
    f = wrap(doubled)
    assert float(jax.grad(f)(3.0)) == 6.0
    assert float(jax.hessian(f)(3.0)) == 2.0
    assert float(jax.jvp(f, (3.0,), (1.0,))[1]) == 6.0
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(f)))(x), 2 * x)


def test_rules_that_users_of_jax_write_get_its_numbers_with_types():
    @jax.custom_jvp
    def f(x):
        return xp.sin(x)

    f.defjvp(lambda p, t: (xp.sin(p[0]), functx.jit(xp.cos)(p[0]) * t[0]))
    np.testing.assert_allclose(jax.grad(f)(2.0), np.cos(2.0), rtol=1e-6)
    np.testing.assert_allclose(jax.jvp(f, (2.0,), (1.0,))[1], np.cos(2.0), rtol=1e-6)


def test_python_decides_on_values_that_jax_knows():
    def f(x):
        return x**2 if x > 0 else -x

    assert float(jax.grad(functx.grad(f))(3.0)) == 2.0
    assert float(jax.jvp(functx.grad(f), (-1.0,), (1.0,))[1]) == 0.0
    power = functx.grad(lambda v: sum(v**i for i in range(int(functx.stop_gradient(v)))))
    assert float(jax.grad(power)(3.0)) == 2.0


def test_python_cannot_decide_on_values_that_jax_traces():
    f = functx.grad(lambda x: x**2 if x > 0 else -x)
    for wrap, arg in ((jax.jit, 1.0), (jax.vmap, x)):
        refused(ConcretizationError, lambda w=wrap, a=arg: w(f)(a), "`if`", "JAX", "lax.cond")


def test_values_that_depend_on_no_argument_are_known_while_jax_traces():
    f = functx.grad(lambda x: x * 2.0 if (xp.ones(3) * 2.0).sum() > 5 else x)
    assert float(jax.jit(f)(1.0)) == 2.0


def one_of(key):
    return functx.random.uniform(key)


@pytest.mark.parametrize("around", [lambda f: f, jax.jit])
def test_every_transform_takes_typed_keys(around):
    key, keys = jax.random.key(0), jax.random.split(jax.random.key(0), 3)

    def draw(x, key):
        return functx.random.normal(key, x.shape) * x

    noise = jax.random.normal(key, (3,))
    np.testing.assert_allclose(around(functx.jit(draw))(x, key), noise * x, rtol=1e-6)
    one = functx.grad(lambda x, key: draw(x, key).sum())
    np.testing.assert_allclose(around(one)(x, key), noise, rtol=1e-6)
    found = around(functx.vmap(draw, in_axes=(None, -1)))(x, keys)
    np.testing.assert_allclose(found, jax.vmap(lambda k: jax.random.normal(k, (3,)) * x)(keys))
    np.testing.assert_allclose(around(jax.vmap(one, in_axes=(None, 0)))(x, keys) * x, found)
    np.testing.assert_allclose(around(lambda k: functx.jacrev(draw)(x, k))(key), np.diag(noise))
    np.testing.assert_allclose(functx.vjp(draw, x, key)[1](x)[0], noise * x, rtol=1e-6)
    total = sum(jax.random.uniform(k) for k in keys)
    summed = around(lambda keys: functx.lax.scan(lambda c, k: (c + one_of(k), None), 0.0, keys)[0])
    np.testing.assert_allclose(summed(keys), total, rtol=1e-6)
    folded = around(
        lambda key: functx.lax.fori_loop(0, 2, lambda i, k: functx.random.fold_in(k, i), key)
    )
    wanted = jax.random.fold_in(jax.random.fold_in(key, 0), 1)
    np.testing.assert_array_equal(jax.random.key_data(folded(key)), jax.random.key_data(wanted))
    assert functx.eval_shape(draw, x, key).shape == (3,)
    assert functx.make_ir(draw)(x, jax.eval_shape(lambda: key)).in_avals[1].shape == (2,)
    refused(
        DTypeError, lambda: one(x, jax.random.key(0, impl="rbg")), "threefry2x32", "got one of rbg"
    )


def test_shapes_must_be_made_of_numbers():
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("a, 3"), "float32")
    for f in (xp.sin, functx.jit(xp.sin)):
        refused(ShapeError, lambda f=f: jax.export.export(jax.jit(f))(shape), "(a, 3)", "Export")


def test_what_jax_transposes_must_be_linear():
    np.testing.assert_allclose(
        jax.linear_transpose(lambda x: xp.cumsum(x) * 2.0, x)(x)[0],
        jax.linear_transpose(lambda x: jnp.cumsum(x) * 2.0, x)(x)[0],
        rtol=1e-6,
    )
    refused(LinearityError, lambda: jax.linear_transpose(functx.jit(xp.sin), x)(x), "linear")


@pytest.mark.parametrize(
    "call",
    [
        lambda: functx.jit(lambda x: xp.log(x) + 1.0)(-1.0),
        lambda: jax.jit(functx.jit(lambda x: functx.jit(xp.log)(x) + 1.0))(-1.0),
        lambda: functx.grad(lambda x: xp.log(x))(-1.0) + xp.log(jnp.float32(-1)),
        lambda: jax.grad(functx.jit(lambda x: xp.log(x - 2.0)))(1.0),
    ],
)
def test_debug_nans_names_the_operation_and_the_line(call):
    with jax.debug_nans():
        refused(NonFiniteError, call, "log: no value may be nan", "test_rules_in_jax.py")
        assert float(functx.grad(lambda x: x**2)(1.0)) == 2.0


def test_debug_infs_and_disable_jit_run_equation_by_equation():
    with jax.disable_jit(), jax.debug_infs():
        f = functx.jit(lambda x: (xp.exp(x) * 2.0, 3.0))
        assert [float(v) for v in f(0.0)] == [2.0, 3.0]
        refused(NonFiniteError, lambda: f(1000.0), "exp: no value may be inf", "f32[]")


def test_a_value_that_leaked_is_refused_by_whose_it_is():
    saved = []

    def leak(x):
        saved.append(x)
        return x

    jax.jit(functx.jit(leak))(1.0)
    refused(EscapedTracerError, lambda: xp.sin(saved[0]), "which has ended")
    jax.jit(lambda x: leak(x))(1.0)
    with pytest.raises(jax.errors.UnexpectedTracerError):
        xp.sin(saved[1]) + 1.0
    np.testing.assert_allclose(
        functx.jit(lambda x: jax.jit(jnp.sin)(x))(1.0), np.sin(1.0), rtol=1e-6
    )


def test_arrays_captured_while_jax_traces_are_kept_for_later_calls():
    table = np.arange(3.0, dtype="float32")
    f = functx.jit(lambda x: (x * table).sum())
    np.testing.assert_allclose(jax.jit(jax.grad(f))(x), table)
    np.testing.assert_allclose(jax.vmap(f)(jnp.ones((2, 3))), [3.0, 3.0])
    np.testing.assert_allclose(f(jnp.ones(3)), 3.0)


def test_values_of_jax_that_are_closed_over_are_differentiated():
    def loss(w):
        return functx.grad(lambda v: functx.jit(lambda u: (u * w).sum() ** 2)(v))(x).sum()

    def plain(w):
        return jax.grad(lambda v: (v * w).sum() ** 2)(x).sum()

    np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), jax.grad(plain)(x), rtol=1e-5)


ON_FOUR_DEVICES = """
import jax, numpy as np, functx, functx.numpy as xp, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

x, w = jnp.arange(12.0).reshape(4, 3) / 10, jnp.ones((3, 2)) * 0.3
make = lambda np: lambda x, w: np.tanh(x @ w) * 2.0
def same(run, *wraps):
    for wrap in wraps:
        found, wanted = run(wrap(make(xp))), run(make(jnp))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, wanted)

plain = lambda f: f
mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
def mapped(f, **options):
    specs = dict(mesh=mesh, in_specs=(P("d"), P()), out_specs=P("d"))
    return jax.shard_map(f, **specs, **options)
def inner(f):
    g = jax.grad(lambda x, w: f(x, w).sum(), (0, 1))
    return jax.shard_map(g, mesh=mesh, in_specs=(P("d"), P()), out_specs=(P("d"), P()))
loss = lambda f: lambda x, w: mapped(f)(x, w).sum()
same(lambda f: mapped(f)(x, w), plain, functx.jit)
same(lambda f: mapped(f, check_vma=False)(x, w), functx.jit)
same(lambda f: jax.jit(jax.grad(loss(f), (0, 1)))(x, w), plain, functx.jit)
same(lambda f: jax.jit(inner(f))(x, w), plain, functx.jit)
same(lambda f: jax.vmap(mapped(f), in_axes=(0, None))(jnp.stack([x, x]), w), functx.jit)
same(lambda f: jax.pmap(f, in_axes=(0, None))(x, w), functx.jit)
types = []
def spy(x, w):
    types.append(jax.typeof(functx.jit(lambda x, w: (x @ w, w * 2))(x, w)[0]))
    types.append(jax.typeof(functx.jit(lambda w: w * 2)(w)))
    return x
jax.jit(mapped(spy))(x, w)
assert [t.manual_axis_type.varying for t in types] == [{"d"}, set()], types
sharded = jax.jit(functx.jit(make(xp)), in_shardings=(NamedSharding(mesh, P("d")), None))
np.testing.assert_allclose(sharded(x, w), make(jnp)(x, w), rtol=1e-6)

mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
with jax.set_mesh(mesh):
    xs = jax.device_put(x, NamedSharding(mesh, P("a", None)))
    ws = jax.device_put(w, NamedSharding(mesh, P(None, "b")))
    same(lambda f: jax.jit(f)(xs, ws), plain, functx.jit)
    total = lambda f: lambda x, w: f(x, w).sum()
    same(lambda f: jax.jit(jax.grad(total(f), (0, 1)))(xs, ws), functx.jit)
    same(lambda f: jax.jit(jax.vmap(f, in_axes=(0, None)))(xs, ws), functx.jit)
    kinds = []
    f = functx.jit(lambda x, w: (x * 2, x @ w, x.sum()))
    jax.jit(lambda x, w: kinds.extend(map(jax.typeof, f(x, w))))(xs, ws)
    assert [t.sharding.spec for t in kinds] == [P("a", None), P(None, None), P()], kinds
    assert functx.grad(total(make(xp)), 1)(xs, ws).sharding.spec == P(None, "b")
"""


def test_meshes_of_several_devices():
    flags = f"--xla_force_host_platform_device_count=4 {os.environ['XLA_FLAGS']}"
    done = subprocess.run(
        [sys.executable, "-c", ON_FOUR_DEVICES],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
