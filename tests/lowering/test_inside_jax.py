"""Every transform of JAX's on functx functions, against the same functions written in JAX."""

from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functx
from functx.numpy import linalg

FUNCTX = SimpleNamespace(
    np=functx.numpy,
    norm=linalg.norm,
    softmax=functx.nn.softmax,
    scan=functx.lax.scan,
    cond=functx.lax.cond,
    grad=functx.grad,
    vmap=functx.vmap,
    jit=functx.jit,
    checkpoint=functx.checkpoint,
    custom_jvp=functx.custom_jvp,
)
JAX = SimpleNamespace(
    np=jnp,
    norm=jnp.linalg.norm,
    softmax=jax.nn.softmax,
    scan=jax.lax.scan,
    cond=jax.lax.cond,
    grad=jax.grad,
    vmap=jax.vmap,
    jit=jax.jit,
    checkpoint=jax.checkpoint,
    custom_jvp=jax.custom_jvp,
)

x = jnp.array([0.3, -0.7, 1.1], "float32")
y = jnp.array([1.2, 0.4, -0.5], "float32")
rows = jnp.linspace(-1.0, 1.3, 12, dtype="float32").reshape(4, 3)
weights = np.array([[0.2, -0.5, 1.0], [0.7, 0.1, -0.3], [-0.4, 0.9, 0.6]], "float32")


def elementwise(fx):
    return lambda x: fx.np.sin(x) * x**2 + fx.np.exp(-x)


def layer(fx):
    return lambda x: fx.softmax(fx.np.tanh(weights @ x + 0.1)) / (1.0 + fx.norm(x))


def loop(fx):
    def step(carry, row):
        carry = fx.np.sin(carry * 1.5) + row
        return carry, carry * row

    return lambda x: fx.scan(step, x, weights)[1].sum(axis=0)


def branch(fx):
    return lambda x: fx.cond(
        x[0] > 0, lambda v: fx.np.cos(v) * v[1], lambda v: fx.np.where(v > 0, v, -(v**2)), x
    )


def gradient(fx):
    """A function that was transformed, of a kept computation and a jitted one."""
    inner = fx.jit(lambda v: fx.np.cos(v).sum() * v[2])
    return fx.grad(lambda v: inner(v) + fx.checkpoint(lambda w: fx.np.exp(w * w).sum())(v))


def custom(fx):
    @fx.custom_jvp
    def square(v):
        return v * v

    @square.defjvp
    def push(primals, tangents):
        (v,), (t,) = primals, tangents
        return square(v), 3.0 * v * t

    return lambda v: fx.vmap(square)(v) * v[::-1]


FUNCTIONS = [elementwise, layer, loop, branch, gradient, custom]


def total(f):
    return lambda x: f(x).sum()


def with_custom_vjp(f):
    @jax.custom_vjp
    def g(x):
        return f(x)

    g.defvjp(lambda x: (f(x), x), lambda x, ct: (jax.vjp(f, x)[1](2.0 * ct)[0],))
    return jax.grad(total(g))(x)


def with_custom_jvp(f):
    @jax.custom_jvp
    def g(x):
        return f(x)

    g.defjvp(lambda primals, tangents: (f(*primals), f(tangents[0]) * 2.0))
    return jax.jvp(g, (x,), (y,))


def sharded(f):
    """Derivatives taken inside and outside of a shard_map, of an argument that all share too."""
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    split, whole = jax.P("d"), jax.P()

    def scaled(rows, scale):
        return jax.vmap(f)(rows) * scale.sum()

    outer = jax.shard_map(scaled, mesh=mesh, in_specs=(split, whole), out_specs=split)
    inner = jax.shard_map(
        jax.grad(lambda *args: scaled(*args).sum(), (0, 1)),
        mesh=mesh,
        in_specs=(split, whole),
        out_specs=(split, whole),
    )

    @jax.jit
    def run(rows, y):
        def loss(*args):
            return outer(*args).sum()

        return outer(rows, y), jax.grad(loss, (0, 1))(rows, y), inner(rows, y)

    return run(rows, y)


def controlled(f):
    """In the bodies of JAX's own control flow, and derivatives of that."""

    def looped(x):
        carry, outs = jax.lax.scan(lambda c, r: (f(c) + r, f(r)), x, rows)
        return (carry + outs.sum(0)).sum()

    def chosen(x):
        return jax.lax.cond(x[1] < 0, total(f), lambda x: x.sum(), x)

    def repeated(x):
        return jax.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, f(s[1])), (0, x))[1]

    def run(x, rows):
        return (
            jax.grad(looped)(x),
            jax.grad(chosen)(x),
            jax.jvp(repeated, (x,), (y,)),
            jax.lax.map(f, rows),
            jax.lax.map(f, rows, batch_size=3),
        )

    return jax.jit(run)(x, rows)


def kept(f):
    policies = jax.checkpoint_policies
    several = [policies.everything_saveable, policies.nothing_saveable, policies.dots_saveable]
    return jax.jit(lambda x: [jax.grad(total(jax.checkpoint(f, policy=p)))(x) for p in several])(x)


def without_jit(f):
    with jax.disable_jit():
        return f(x), jax.grad(total(f))(x), jax.vmap(f)(rows)


def push(f):
    return jax.linearize(f, x)[1]


def axis_options(f):
    def run(x, rows):
        return (
            jax.vmap(f, in_axes=1, out_axes=1)(rows.T),
            jax.vmap(f, in_axes=None, axis_size=2)(x),
            jax.vmap(jax.vmap(f), out_axes=2)(jnp.stack([rows, -rows])),
            jax.vmap(f, axis_name="rows", spmd_axis_name="d")(rows),
            jax.vmap(f)(rows[:0]),
        )

    return jax.vmap(f)(rows), jax.jit(run)(x, rows)


TRANSFORMS = {
    "jit": lambda f: jax.jit(f)(x),
    "grad": lambda f: (jax.grad(total(f))(x), jax.jit(jax.value_and_grad(total(f)))(x)),
    "jvp": lambda f: jax.jvp(f, (x,), (y,)),
    "vjp": lambda f: jax.vjp(f, x)[1](y),
    "linearize": lambda f: (push(f)(x), push(f)(y)),
    "vmap": axis_options,
    "vmap_of_grad": lambda f: jax.jit(jax.vmap(jax.grad(total(f))))(rows),
    "grad_of_vmap": lambda f: jax.grad(total(jax.vmap(f)))(rows),
    "jacobians": lambda f: jax.jit(lambda x: (jax.jacfwd(f)(x), jax.jacrev(f)(x)))(x),
    "hessian": lambda f: jax.jit(jax.hessian(total(f)))(x),
    "reverse_twice": lambda f: jax.jit(jax.jacrev(jax.grad(total(f))))(x),
    "forward_twice": lambda f: jax.jvp(lambda x: jax.jvp(f, (x,), (y,))[1], (x,), (y,)),
    "vmap_of_hessian": lambda f: jax.jit(jax.vmap(jax.hessian(total(f))))(rows),
    "control_flow": controlled,
    "checkpoint": kept,
    "shard_map": sharded,
    "pmap": lambda f: jax.pmap(f)(rows[:1]),
    "linear_transpose": lambda f: jax.linear_transpose(push(f), x)(y),
    "custom_vjp": with_custom_vjp,
    "custom_jvp": with_custom_jvp,
    "export": lambda f: jax.export.export(jax.jit(f), platforms=("cpu", "cuda"))(x).call(x),
    "eval_shape": lambda f: jax.eval_shape(f, x).shape,
    "donation": lambda f: jax.jit(f, donate_argnums=0)(x + 0.0),
    "disable_jit": without_jit,
}


def assert_close(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), found, expected
    )


@cache
def expected_of(transform, make):
    """What JAX says, compiled as one program, which is quickest."""
    return jax.jit(lambda: transform(make(JAX)))()


@pytest.mark.parametrize("make", FUNCTIONS)
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_jitted_function_is_transformed_like_one_of_jax(transform, make):
    assert_close(transform(functx.jit(make(FUNCTX))), expected_of(transform, make))


@pytest.mark.parametrize("make", [elementwise, loop, gradient])
@pytest.mark.parametrize("name", ["jit", "grad", "vmap", "hessian", "control_flow", "disable_jit"])
def test_a_function_that_is_not_jitted_is_transformed_like_one_of_jax(name, make):
    transform = TRANSFORMS[name]
    assert_close(transform(make(FUNCTX)), expected_of(transform, make))


def test_transforms_of_both_nest_at_any_depth():
    def nested(fx):
        f = elementwise(fx)
        return fx.jit(fx.vmap(fx.grad(lambda v: f(v[None]).sum())))

    def mixed(fx):
        return jax.jit(jax.vmap(jax.jacrev(fx.jit(fx.vmap(jax.grad(lambda v: v**3))))))(rows)

    assert_close(mixed(functx), mixed(jax))
    deep = [jax.jit(jax.vmap(jax.jacfwd(jax.jacrev(nested(fx)))))(rows) for fx in (FUNCTX, JAX)]
    assert_close(*deep)


def test_exported_functions_are_saved_and_read():
    pytest.importorskip("flatbuffers", reason="JAX needs it to save exported functions")
    exported = jax.export.export(jax.jit(total(layer(FUNCTX))), platforms=("cpu", "tpu"))(x)
    again = jax.export.deserialize(exported.serialize(vjp_order=2))
    expected = total(layer(JAX))
    assert_close(again.call(x), expected(x))
    assert_close(jax.grad(again.call)(x), jax.grad(expected)(x))


def test_jax_minimizes_a_functx_objective():
    from jax.scipy.optimize import minimize

    objective = functx.jit(lambda v: ((v - y) ** 2).sum() + functx.numpy.cosh(v - y).sum())
    np.testing.assert_allclose(minimize(objective, x, method="BFGS").x, y, atol=1e-4)


@pytest.mark.parametrize("library", ["optax", "flax", "equinox"])
def test_libraries_built_on_jax_differentiate_functx_functions(library):
    module = pytest.importorskip(library, reason=f"{library} is not a dependency of the tests")
    loss = functx.jit(lambda v: ((v - y) ** 2).sum())
    if library == "optax":
        optimizer = module.sgd(0.1)
        state, v = optimizer.init(x), x
        for _ in range(100):
            updates, state = optimizer.update(jax.grad(loss)(v), state)
            v = module.apply_updates(v, updates)
        np.testing.assert_allclose(v, y, atol=1e-4)
    elif library == "equinox":
        np.testing.assert_allclose(module.filter_grad(loss)(x), 2 * (x - y), rtol=1e-5)
    else:
        dense = module.linen.Dense(3)
        params = dense.init(jax.random.key(0), x)
        gradient = jax.grad(lambda p: loss(dense.apply(p, x)))(params)
        expected = jax.grad(lambda p: ((dense.apply(p, x) - y) ** 2).sum())(params)
        assert_close(gradient, expected)
