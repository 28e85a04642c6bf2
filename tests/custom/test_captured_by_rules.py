"""Rules may use arrays and traced values of the scope that they are defined in."""

from functools import cache
from itertools import count

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functx
import functx.numpy as fnp
from functx import lax
from functx.core.errors import EscapedTracerError
from functx.core.primitive import Primitive

WEIGHTS, X, V = (np.array(a, np.float32) for a in ([5.0, 6.0], [1.0, 2.0], [0.5, -1.0]))
XS = np.stack([X, V])
numbers = count()


def operator():
    """`sin(x) * k`, without rules."""

    @functx.custom_op(f"captures::op{next(numbers)}")
    def op(x: jax.Array, k: jax.Array) -> jax.Array:
        return jnp.sin(x) * k

    op.def_abstract(lambda x, k: jax.ShapeDtypeStruct(x.shape, x.dtype))
    return op


def of_operator(op, w):
    return lambda x: op(x, functx.stop_gradient(w))


def register_autograd(w):
    op = operator()
    op.register_autograd(
        lambda ctx, g: (g * fnp.cos(ctx.x) * w, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "x", inputs[0]),
    )
    return of_operator(op, w)


def save_for_backward(w):
    op = operator()
    op.save_for_backward(lambda inputs, output: fnp.cos(inputs.x) * w)
    op.backward(lambda ctx, saved, g: {"x": g * saved, "k": None})
    return of_operator(op, w)


def def_jvp(w):
    op = operator()
    op.def_jvp(lambda primals, tangents: (op(*primals), tangents.x * fnp.cos(primals.x) * w))
    return of_operator(op, w)


def def_vmap(w):
    op = operator()
    op.def_jvp(lambda primals, tangents: (op(*primals), tangents.x * fnp.cos(primals.x) * w))
    op.def_vmap(lambda info, in_dims, x, k: (fnp.sin(x) * functx.stop_gradient(w), 0))
    return of_operator(op, w)


def custom_jvp(w):
    fun = functx.custom_jvp(lambda x: fnp.sin(x) * functx.stop_gradient(w))
    fun.defjvp(lambda primals, tangents: (fun(*primals), tangents[0] * fnp.cos(primals[0]) * w))
    return fun


def custom_vjp(w):
    fun = functx.custom_vjp(lambda x: fnp.sin(x) * functx.stop_gradient(w))
    fun.defvjp(lambda x: (fun(x), x), lambda x, g: (g * fnp.cos(x) * w,))
    return fun


def custom_vmap(w):
    fun = functx.custom_vmap(lambda x: fnp.sin(x) * w)
    fun.def_vmap(lambda size, batched, x: (fnp.sin(x) * w, True))
    return fun


def primitive(**rules):
    def of(w):
        class Scaled(Primitive, abstract=True):
            def abstract_eval(self, x):
                return x

        def sin_scaled(self, ctx, x):
            scale = np.broadcast_to(WEIGHTS, ctx.avals_out[0].shape)
            return ctx.via_jax(lambda x: jnp.sin(x) * scale, x)

        Scaled.lower = sin_scaled
        Scaled.batch = lambda self, args, dims: (self(*args), dims[0])
        for name, rule in rules.items():
            setattr(Scaled, name, rule(w))
        return lambda x: Scaled()(x)

    return of


RULES = {
    "register_autograd": register_autograd,
    "save_for_backward": save_for_backward,
    "def_jvp": def_jvp,
    "def_vmap": def_vmap,
    "custom_jvp": custom_jvp,
    "custom_vjp": custom_vjp,
    "custom_vmap": custom_vmap,
    "primitive_jvp": primitive(
        jvp=lambda w: lambda self, p, t: (self(*p), t[0] * w * fnp.cos(p[0]))
    ),
    "primitive_vjp": primitive(
        vjp=lambda w: lambda self, ct, out, args, active: [ct * (fnp.cos(args[0]) * w)]
    ),
}
ONLY_REVERSE = "custom_vjp", "primitive_vjp"


def derivatives(module, fun, forward):
    """Functions of `x` that differentiate `fun`, with the transforms of functx or of JAX."""

    def loss(x):
        return module.numpy.sum(fun(x) * V)

    def twice(x):
        return module.lax.scan(lambda c, _: (module.jit(fun)(c), None), x, None, length=2)[0]

    def counted(x):
        return module.lax.while_loop(lambda c: c[1] < 2, lambda c: (fun(c[0]), c[1] + 1), (x, 0))[0]

    grad, vmap = module.grad, module.vmap
    yield grad(loss)
    yield grad(module.jit(loss))
    yield lambda x: module.vjp(fun, x)[1](V)[0]
    yield module.jacrev(fun)
    yield lambda x: vmap(grad(loss))(XS * x)
    yield grad(lambda x: module.numpy.sum(vmap(loss)(XS * x)))
    yield grad(module.checkpoint(loss))
    yield grad(lambda x: module.lax.cond(x[0] > 0, loss, lambda x: x[0], x))
    yield grad(lambda x: module.numpy.sum(twice(x) * V))
    yield lambda x: vmap(grad(lambda x: module.numpy.sum(twice(x) * V)))(XS * x)
    if forward:
        yield lambda x: module.jvp(fun, (x,), (V,))[1]
        yield lambda x: module.linearize(fun, x)[1](V)
        yield module.jacfwd(fun)
        yield lambda x: module.jvp(twice, (x,), (V,))[1]
        yield lambda x: module.jvp(counted, (x,), (V,))[1]


class Jax:
    numpy = jnp

    def __getattr__(self, name):
        return getattr(jax, name)


def all_of(module, fun, forward):
    return lambda x: [f(x) for f in derivatives(module, fun, forward)]


@cache
def right_by_jax(forward):
    return jax.jit(all_of(Jax(), lambda x: jnp.sin(x) * WEIGHTS, forward))(X)


@pytest.mark.filterwarnings("ignore:.*has no vmap rule")
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_uses_a_captured_array_under_every_transform(rule):
    forward = rule not in ONLY_REVERSE
    right = right_by_jax(forward)
    for captured in (WEIGHTS.copy(), jnp.asarray(WEIGHTS)):
        fun = RULES[rule](captured)
        got = functx.jit(all_of(functx, fun, forward))(X)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-5), got, right)
        eager = [f(X) for f in list(derivatives(functx, fun, forward))[:4]]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5), eager, right[:4])

        # JAX takes derivatives by `jvp` rules alone.
        if rule == "primitive_vjp":
            continue

        def loss(x, fun=fun):
            return jnp.sum(functx.jit(fun)(x) * V)

        np.testing.assert_allclose(jax.grad(loss)(X), right[0], 1e-5)
        np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(loss)))(XS * X), right[4], 1e-5)


@pytest.mark.filterwarnings("ignore:.*has no vmap rule")
@pytest.mark.parametrize("rule", [r for r in RULES if not r.startswith("primitive")])
def test_a_rule_uses_a_traced_value_of_the_function_around_it(rule):
    def slope(w):
        fun = RULES[rule](w)
        twice = functx.jit(lambda x: lax.scan(lambda c, _: (fun(c), None), x, None, length=2)[0])
        return [functx.grad(lambda x, f=f: fnp.sum(f(x) * V))(X) for f in (fun, twice)]

    once = np.cos(X) * V
    twice = once * np.cos(np.sin(X) * WEIGHTS)
    right = once * WEIGHTS, twice * WEIGHTS**2
    # A rule for batches would be asked for one of the trace that gave it the weights.
    mapped = [functx.vmap(slope)(WEIGHTS[None])] if rule != "def_vmap" else []
    for found in (functx.jit(slope)(WEIGHTS), *mapped):
        np.testing.assert_allclose(found[0].ravel(), right[0], 1e-5)
        np.testing.assert_allclose(found[1].ravel(), right[1], 1e-5)
    along = functx.grad(lambda w: fnp.sum(slope(w)[0]))
    np.testing.assert_allclose(along(WEIGHTS), once, 1e-5)
    np.testing.assert_allclose(functx.jit(along)(WEIGHTS), once, 1e-5)


def test_a_rule_reads_a_captured_array_at_the_time_of_the_call():
    weights = WEIGHTS.copy()
    op = operator()
    op.register_autograd(lambda ctx, g: (g * weights, None))

    def slope():
        return functx.grad(lambda x: fnp.sum(op(x, WEIGHTS)))(X)

    np.testing.assert_array_equal(slope(), [5.0, 6.0])
    weights[0] = 1.0
    np.testing.assert_array_equal(slope(), [1.0, 6.0])
    weights = jnp.array([7.0, 8.0])
    np.testing.assert_array_equal(slope(), [7.0, 8.0])


def test_a_rule_that_captures_a_value_of_a_trace_that_has_ended_is_refused():
    def loss(w, x):
        return fnp.sum(register_autograd(w)(x))

    with pytest.raises(EscapedTracerError, match="must be used inside the function that made it"):
        functx.grad(loss, argnums=1)(WEIGHTS, X)


class Read:
    """What rules read: an attribute, and an array that is written to."""

    number = 1.0
    array = np.ones((), np.float32)

    @classmethod
    def change(cls, value):
        cls.number = value
        cls.array[...] = value


class ReadsNumber(Primitive):
    """x times what is read, and a tangent with another factor of it."""

    def abstract_eval(self, x):
        return x

    def jvp(self, primals, tangents):
        return self(*primals), tangents[0] * Read.number

    def batch(self, args, dims):
        return args[0] * Read.number, dims[0]

    def decompose(self, x):
        return x * Read.number


class ReadsArray(ReadsNumber):
    """As above, of an array."""

    def jvp(self, primals, tangents):
        return self(*primals), tangents[0] * Read.array

    def batch(self, args, dims):
        return args[0] * Read.array, dims[0]

    def decompose(self, x):
        return x * Read.array


class MadeOfBoth(Primitive):
    """A composite without other rules."""

    def abstract_eval(self, x):
        return x

    def decompose(self, x):
        return ReadsNumber()(x) * Read.array / Read.number


def reading():
    """Functions by their names that multiply by what is read, called with the argument 1."""
    op = operator()
    op.register_autograd(lambda ctx, g: (g * Read.number, None))
    op.def_vmap(lambda info, in_dims, x, k: (k * Read.number, in_dims[1]))
    mapped = functx.custom_vmap(lambda x: x)
    mapped.def_vmap(lambda size, batched, x: (x * Read.number * Read.array / Read.array, True))
    one = np.float32(1.0)

    def last(f):
        return lambda x: f(x[None])[0]

    def in_scan(x):
        return lax.scan(lambda c, _: (functx.nn.silu(c), None), x, None, length=1)[0]

    def of_pair(f):
        return lambda x: functx.vmap(lambda k: f(one, k))(x[None])[0]

    found = {
        "silu": functx.nn.silu,
        "silu in scan": in_scan,
        "operator": functx.grad(lambda x: op(x, one)),
    }
    found |= {"operator, mapped": of_pair(op), "custom_vmap": last(functx.vmap(mapped))}
    for primitive in (ReadsNumber(), ReadsArray(), MadeOfBoth()):
        name = type(primitive).__name__
        found |= {name: primitive, f"{name} grad": functx.grad(primitive)}
        found[f"{name} jvp"] = lambda x, f=primitive: functx.jvp(f, (x,), (one,))[1]
        found[f"{name} vmap"] = last(functx.vmap(primitive))
        found[f"{name} decomposed"] = functx.decompose(primitive)
    return found


def test_a_rule_that_runs_outside_jit_reads_the_current_value():
    with functx.decomp.scoped():
        functx.decomp.register("silu")(lambda x: x * Read.number * Read.array / Read.number)
        functions, x = reading(), np.float32(1.0)
        for value in (2.0, 5.0, 7.0):
            Read.change(value)
            found = {name: float(f(x)) for name, f in functions.items()}
            assert found == dict.fromkeys(found, value)


def test_a_compiled_decomposition_has_the_array_that_it_read_when_it_was_traced():
    with functx.decomp.scoped():
        Read.change(3.0)
        functx.decomp.register("silu")(lambda x: x * Read.array)
        f = functx.jit(lambda x: functx.nn.silu(x) * Read.array)
        assert float(f(np.float32(1.0))) == 9.0
        Read.change(4.0)
        assert float(f(np.float32(1.0))) == 9.0


def test_a_backward_rule_tells_the_values_that_it_captures_apart():
    def loss(x, a, b):
        fun = functx.custom_vjp(lambda x: x * functx.stop_gradient(a))
        fun.defvjp(lambda x: (fun(x), x), lambda x, g: (g * (2.0 * a + b * x),))
        return fun(x)

    assert float(functx.jit(functx.grad(loss))(3.0, 5.0, 7.0)) == 31.0
    assert float(functx.grad(loss)(3.0, 5.0, 7.0)) == 31.0
    lanes = functx.vmap(functx.grad(loss), (0, 0, None))(X, V, 7.0)
    np.testing.assert_allclose(lanes, 2 * V + 7 * X)


def test_a_batching_rule_uses_the_value_that_its_variable_has_at_the_call():
    @functx.jit
    def f(x, y, rows):
        w = x
        fun = functx.custom_vmap(lambda v: v * w)
        fun.def_vmap(lambda size, batched, v: (v * w, True))
        first = functx.vmap(fun)(rows)
        w = y
        return first, functx.vmap(fun)(rows)

    first, second = f(2.0, 3.0, X)
    np.testing.assert_allclose(first, 2 * X)
    np.testing.assert_allclose(second, 3 * X)
